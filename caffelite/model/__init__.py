"""Model, and functions that work on models: load one, train many at once, minimize by L-BFGS, find a learning rate."""
