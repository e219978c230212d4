"""Guards: the values in Python that a recorded step depends on. If one changes, the step is recorded again."""
