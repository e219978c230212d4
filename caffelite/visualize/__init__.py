"""Pictures and descriptions of a model: a Tensor's graph, statistics of a step, plots."""
