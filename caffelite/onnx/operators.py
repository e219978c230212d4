"""The operators of ONNX: functions that compute them, and facts about their inputs, outputs and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caffelite.onnx.families import (
    activation,
    attention,
    convolution,
    dense,
    elementwise,
    estimators,
    indexing,
    loss,
    normalization,
    reduction,
    resizing,
    shape,
)
from caffelite.onnx.nodes import Node, Operator

#: A function for each operator. It gets the node and its inputs, and returns the output, or a tuple of outputs.
OPERATORS: dict[str, Operator] = {
    **elementwise.OPERATORS,
    **activation.OPERATORS,
    **dense.OPERATORS,
    **attention.OPERATORS,
    **convolution.OPERATORS,
    **resizing.OPERATORS,
    **normalization.OPERATORS,
    **reduction.OPERATORS,
    **shape.OPERATORS,
    **indexing.OPERATORS,
    **loss.OPERATORS,
    **estimators.OPERATORS,
}

#: The checks of attributes when a file is loaded, if a list of what they may say is not enough.
ATTRIBUTE_CHECKS: dict[str, Callable[[Node], Any]] = {
    "Einsum": dense.einsum_terms,
    "LRN": normalization.check_response_norm,
}

#: Inputs that say how something is done, by their places, and are never learned.
OPTION_INPUTS: dict[str, tuple[int, ...]] = {
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Clip": (1, 2),
    "Pad": (2,),
    "Range": (0, 1, 2),
    "Dropout": (1,),
    "CumSum": (1,),
    "NegativeLogLikelihoodLoss": (2,),
    "SoftmaxCrossEntropyLoss": (2,),
}

#: Operators that have several outputs; of others only the first is known.
MULTI_OUTPUT = (
    *("Split", "LayerNormalization", "RNN", "GRU", "LSTM", "TopK", "SoftmaxCrossEntropyLoss", "LinearClassifier"),
    "Attention",
)
