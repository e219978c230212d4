"""Epochs: take steps on the batches of rows in memory, out of core, or of an iterable; and evaluate."""
