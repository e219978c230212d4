"""Training: the step, epochs, history, metrics, callbacks, checkpoints, progress."""
