"""Data on their way to a model: mini-batches, frames, files that are read block by block, augmentation, datasets."""
