"""Model, and what works with whole models: loading, many trainings at once, L-BFGS, the learning rate test."""
