"""Guards: what a recorded step depends on in Python, so that it is recorded again when this changes."""
