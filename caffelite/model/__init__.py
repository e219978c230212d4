"""Model, and functions for whole models: load a model, train many at once, L-BFGS, find a learning rate."""
