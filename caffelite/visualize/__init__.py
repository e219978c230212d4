"""Pictures and descriptions of a model: the graph of a Tensor, statistics of a step, plots."""
