"""Losses of labels, as ONNX has them: classes along axis 1, and a sum, a mean or a loss for each label."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import functions
from caffelite.functions.arithmetic import as_tensor
from caffelite.onnx.families.elementwise import numpy_op
from caffelite.onnx.nodes import Node, Operator

# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_label_loss(node: Node, log_p: Any, labels: Any, weights: Any = None) -> Any:
    """−w log p of each label; their sum, or their mean Σ w l / Σ w. The class `ignore_index` has weight 0."""
    log_p, ignored = as_tensor(log_p), node.get("ignore_index")
    count = log_p.shape[1]
    along = (1, count, *[1] * (log_p.ndim - 2))

    def is_class(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
        if ((labels < 0) | (labels >= count))[labels != ignored].any():
            raise node.error(f"got labels outside 0 … {count - 1}")
        return labels == classes

    classes = node.cache(np.arange(count).reshape(along))
    chosen = numpy_op(is_class, operator="Equal")(node, labels.reshape((len(labels), 1, *labels.shape[1:])), classes)
    counts = node.cache((np.arange(count) != ignored).reshape(along).astype(log_p.dtype))
    w = counts if weights is None else weights.reshape(along) * counts
    losses = functions.where(chosen, log_p * w, 0.0).sum(1) * -1.0
    if node.get("reduction", "mean") == "none":
        return losses
    total = losses.sum()
    return total if node.get("reduction", "mean") == "sum" else total / (as_tensor(chosen * w) * 1.0).sum()


def compute_softmax_loss(node: Node, scores: Any, labels: Any, weights: Any = None) -> Any:
    """Return the loss, and log p if the node has an output for it."""
    log_p = functions.LogSoftmax(1)(as_tensor(scores))
    loss = compute_label_loss(node, log_p, labels, weights)
    return (loss, log_p) if len(node.outputs) > 1 else loss


OPERATORS: dict[str, Operator] = {
    "NegativeLogLikelihoodLoss": compute_label_loss,
    "SoftmaxCrossEntropyLoss": compute_softmax_loss,
}
