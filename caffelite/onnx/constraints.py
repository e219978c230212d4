"""The attributes and outputs that nodes may have, if ONNX knows more of them than caffelite."""

from __future__ import annotations

from caffelite.onnx.nodes import Node

#: The values that an attribute may have, if ONNX allows more.
SUPPORTED_VALUES: dict[str, dict[str, tuple]] = {
    "Resize": {
        "mode": ("nearest", "linear"),
        "coordinate_transformation_mode": ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"),
        "antialias": (0,),
        "exclude_outside": (0,),
        "keep_aspect_ratio_policy": ("stretch",),
    },
    "Upsample": {"mode": ("nearest",)},
    "SpaceToDepth": {"mode": ("DCR",)},
    "CumSum": {"exclusive": (0,), "reverse": (0,)},
    "GatherND": {"batch_dims": (0,)},
    "Pad": {"mode": ("constant", "edge", "reflect", "wrap")},
    "MaxPool": {"storage_order": (0,)},
    "AveragePool": {"dilations": ([1], [1, 1])},
    "LSTM": {
        "activations": (["Sigmoid", "Tanh", "Tanh"], ["Sigmoid", "Tanh", "Tanh"] * 2),
        "input_forget": (0,),
        "layout": (0,),
    },
    "GRU": {"activations": (["Sigmoid", "Tanh"], ["Sigmoid", "Tanh"] * 2), "linear_before_reset": (1,), "layout": (0,)},
    "RNN": {"activations": (["Tanh"], ["Tanh"] * 2), "layout": (0,)},
    "BatchNormalization": {"training_mode": (0,), "spatial": (1,)},
    "ConvTranspose": {"auto_pad": ("NOTSET", "VALID"), "output_shape": ()},
    **{f"{kind}Normalization": {"stash_type": (1,)} for kind in ("Layer", "RMS", "Group")},
    "Reshape": {"allowzero": (0, 1)},
    "Attention": {"qk_matmul_output_mode": (0, 1, 2, 3), "softmax_precision": (1, 10, 11, 16)},
    "LinearClassifier": {"post_transform": ("NONE", "LOGISTIC", "SOFTMAX")},
    "LinearRegressor": {"post_transform": ("NONE",)},
    "Normalizer": {"norm": ("MAX", "L1", "L2")},
    "NegativeLogLikelihoodLoss": {"reduction": ("none", "mean", "sum")},
    "SoftmaxCrossEntropyLoss": {"reduction": ("none", "mean", "sum")},
}

#: Attributes that a node may not have.
UNSUPPORTED_ATTRIBUTES = dict.fromkeys(("LSTM", "GRU", "RNN"), ("clip", "activation_alpha", "activation_beta"))

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


def find_unsupported_attribute(node: Node) -> str | None:
    """Return an attribute that caffelite does not know, or one with its value; None if it knows all."""
    for name, values in SUPPORTED_VALUES.get(node.operator, {}).items():
        if name in node.attributes and node.attributes[name] not in values:
            return f"{name} = {node.attributes[name]!r}"
    return next((name for name in UNSUPPORTED_ATTRIBUTES.get(node.operator, ()) if name in node.attributes), None)
