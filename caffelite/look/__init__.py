"""What is drawn and told of a model: the graph of a Tensor, statistics of a step, plots."""
