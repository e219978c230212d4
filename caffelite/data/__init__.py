"""Data on its way to a model: mini-batches, frames, sources read block by block, augmentation, datasets."""
