"""The base of all rooms: Tensor, Function, back-propagation, recording, modes, and helpers for arrays and threads."""
