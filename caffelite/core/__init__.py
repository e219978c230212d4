"""The base of all other subpackages: Tensor, Function, back-propagation, modes, helpers for arrays and threads."""
