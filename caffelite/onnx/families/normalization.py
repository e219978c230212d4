"""Normalization."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor
from caffelite.onnx.families.shape import pad_axis
from caffelite.onnx.nodes import Finder, Node, NodeGraph, Operator, shortest_decimal
from caffelite.onnx.writing import Rule, Value, Writer

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_layer_norm(g: Writer, f: Any, x: Value) -> str:
    shift = None if f.shift is None else g.initializer(f.shift)
    return g.node("LayerNormalization", x, g.initializer(f.scale), shift, axis=-1, epsilon=f.eps)


def write_batch_norm(g: Writer, f: Any, x: Value) -> str:
    moments = [g.initializer(y) for y in (f.scale, f.shift, f.mean, f.variance)]
    return g.node("BatchNormalization", x, *moments, epsilon=f.eps, momentum=1 - f.momentum)


RULES: dict[type, Rule] = {
    functions.InstanceNorm: lambda g, f, x: g.node(
        "InstanceNormalization", x, g.initializer(f.scale), g.initializer(f.shift), epsilon=f.eps
    ),
    functions.LayerNorm: write_layer_norm,
    functions.BatchNorm: write_batch_norm,
}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


def find_batch_norm(g: NodeGraph, node: Node) -> Node | None:
    x, *parameters = node.inputs
    arrays = [g.array(name, 1) for name in parameters]
    if any(a is None for a in arrays):
        raise node.error("has parameters that are not constants")
    size = len(arrays[0])  # type: ignore[arg-type]
    with node.translate_errors():
        layer = functions.BatchNorm(size, round(1 - node.get("momentum", 0.9), 6), _epsilon(node))
    if any(a.shape != (size,) for a in arrays):  # type: ignore[union-attr]
        raise node.error("has parameters of different lengths")
    layer.mean, layer.variance = (np.array(a) for a in arrays[2:])
    return g.layer(node, layer, [x], {"scale": parameters[0], "shift": parameters[1]})


def find_layer_norm(g: NodeGraph, node: Node) -> Node | None:
    """Find a LayerNorm, or an RMSNorm, which has no shift."""
    x, scale, *shifts = node.inputs
    a, shift = g.array(scale, 1), g.array(shifts[0], 1) if any(shifts) else None
    if a is None or (any(shifts) and shift is None) or node.get("axis", -1) != -1 or any(node.outputs[1:]):
        return None
    weights = {"scale": scale, **({"shift": shifts[0]} if any(shifts) else {})}
    kind: Any = functools.partial(functions.LayerNorm, bias=any(shifts))
    kind = functions.RMSNorm if node.operator == "RMSNormalization" else kind
    return g.layer(node, lambda: kind(len(a), _epsilon(node)), [x], weights)


def find_channel_norm(g: NodeGraph, node: Node) -> Node | None:
    """Find an InstanceNorm, or since opset 21 a GroupNorm; before, each group had one scale."""
    x, scale, shift = node.inputs
    a, b = g.array(scale, 1), g.array(shift, 1)
    groups = node.get("num_groups")
    if a is None or b is None or a.shape != b.shape or (groups is not None and node.version < 21):
        return None
    kind: Any = functions.InstanceNorm if groups is None else functools.partial(functions.GroupNorm, groups)
    with node.translate_errors():
        layer = kind(len(a), _epsilon(node))
    return g.layer(node, layer, [x], {"scale": scale, "shift": shift})


def _epsilon(node: Node) -> float:
    return shortest_decimal(node.get("epsilon", 1e-5))


SINGLE_NODES: dict[str, list[Finder]] = {
    "BatchNormalization": [find_batch_norm],
    "InstanceNormalization": [find_channel_norm],
    "RMSNormalization": [find_layer_norm],
    "LayerNormalization": [find_layer_norm],
    "GroupNormalization": [find_channel_norm],
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def normalize(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x with mean 0 and variance 1 over axes."""
    x = x - x.mean(axes, True)
    return x / ((x * x).mean(axes, True) + eps).sqrt()


def expand_channels(p: Any, x: Tensor) -> Any:
    """Return a number a channel, as it is broadcast to x."""
    return p.reshape(-1, *[1] * (x.ndim - 2))


def compute_instance_norm(node: Node, x: Any, scale: Any, shift: Any) -> Any:
    x = as_tensor(x)
    y = normalize(x, tuple(range(2, x.ndim)), node.get("epsilon", 1e-5))
    return y * expand_channels(scale, x) + expand_channels(shift, x)


def compute_group_norm(node: Node, x: Any, scale: Any, shift: Any) -> Any:
    x, groups = as_tensor(x), node.get("num_groups")
    n, channels = x.shape[:2]
    grouped = x.reshape(n, groups, channels // groups, *x.shape[2:])
    y = normalize(grouped, tuple(range(2, grouped.ndim)), node.get("epsilon", 1e-5))
    if len(scale) == channels:
        return y.reshape(x.shape) * expand_channels(scale, x) + expand_channels(shift, x)
    return (y * expand_channels(scale, y) + expand_channels(shift, y)).reshape(x.shape)


def compute_layer_norm(node: Node, x: Any, scale: Any, shift: Any = None) -> Any:
    """Normalize rows. Returns the means and the inverse deviations, too, if the node has outputs for them."""
    x = as_tensor(x)
    axes = tuple(range(node.get("axis", -1) % x.ndim, x.ndim))
    mean = x.mean(axes, True) if node.operator == "LayerNormalization" else 0.0
    inverse = 1 / (((x - mean) * (x - mean)).mean(axes, True) + node.get("epsilon", 1e-5)).sqrt()
    y = (x - mean) * inverse * scale
    y = y if shift is None else y + shift
    return y if len(node.outputs) == 1 else (y, mean, inverse)


def compute_mean_variance_norm(node: Node, x: Any) -> Any:
    x = as_tensor(x)
    return normalize(x, tuple([i % x.ndim for i in node.get("axes", [0, 2, 3])]), 1e-9)


def check_response_norm(node: Node) -> None:
    """ValueError for windows of no channels."""
    if node.get("size", 0) < 1:
        raise node.error(f"has size = {node.get('size')}, expected 1 or more")


def compute_response_norm(node: Node, x: Any) -> Any:
    """x / (bias + alpha · mean of x² over `size` channels around each)^beta, with zeros beside the channels."""
    x, size = as_tensor(x), node.get("size")
    squares = pad_axis(node, (x * x).reshape(len(x), 1, x.shape[1], -1), 2, (size - 1) // 2, size // 2)
    means = functions.AvgPool2d((size, 1), 1)(squares).reshape(x.shape)
    return x / (means * node.get("alpha", 1e-4) + node.get("bias", 1.0)) ** node.get("beta", 0.75)


def divide_by_norm(x: Any, norm: str, axis: int = -1) -> Tensor:
    """x / its norm along an axis, "L1", "L2" or "MAX". If the norm is 0, x stays as it is."""
    x = as_tensor(x)
    if norm == "MAX":
        size = x.max(axis, True)
    else:
        size = x.abs().sum(axis, True) if norm == "L1" else (x * x).sum(axis, True).sqrt()
    return x / functions.where(size, size, 1.0)


OPERATORS: dict[str, Operator] = {
    "InstanceNormalization": compute_instance_norm,
    "GroupNormalization": compute_group_norm,
    "LayerNormalization": compute_layer_norm,
    "RMSNormalization": compute_layer_norm,
    "MeanVarianceNormalization": compute_mean_variance_norm,
    "LpNormalization": lambda node, x: divide_by_norm(x, f"L{node.get('p', 2)}", node.get("axis", -1)),
    "Normalizer": lambda node, x: divide_by_norm(x, node.get("norm", "MAX")),
    "LRN": compute_response_norm,
}
