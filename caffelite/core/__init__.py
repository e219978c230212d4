"""The base of all rooms: Tensor, Function, back-propagation, recording, modes, helpers for arrays and threads."""
