"""Data on their way to a model: mini-batches, frames, sources that are read block by block, augmentation, datasets."""
