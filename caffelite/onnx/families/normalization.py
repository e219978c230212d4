"""Normalization."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor
from caffelite.model.export_graph import Application
from caffelite.onnx.families.shape import padded
from caffelite.onnx.nodes import Find, Node, Nodes, Operator, shortest
from caffelite.onnx.writing import Rule, Value, Writer

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_layer_norm(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    shift = None if f.shift is None else g.stored(f.shift)
    return g.node("LayerNormalization", x, g.stored(f.scale), shift, axis=-1, epsilon=f.eps)


def write_batch_norm(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    moments = [g.stored(y) for y in (f.scale, f.shift, f.mean, f.variance)]
    return g.node("BatchNormalization", x, *moments, epsilon=f.eps, momentum=1 - f.momentum)


def write_instance_norm(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    return g.node("InstanceNormalization", x, g.stored(f.scale), g.stored(f.shift), epsilon=f.eps)


RULES: dict[type, Rule] = {
    functions.InstanceNorm: write_instance_norm,
    functions.LayerNorm: write_layer_norm,
    functions.BatchNorm: write_batch_norm,
}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


def find_batch_norm(g: Nodes, node: Node) -> Node | None:
    x, *others = node.inputs
    arrays = [g.array(name, 1) for name in others]
    if any(a is None for a in arrays):
        raise node.refuse("has parameters that are not constants")
    size = len(arrays[0])  # type: ignore[arg-type]
    with node.blamed():
        layer = functions.BatchNorm(size, round(1 - node.get("momentum", 0.9), 6), shortest(node.get("epsilon", 1e-5)))
    if any(a.shape != (size,) for a in arrays):  # type: ignore[union-attr]
        raise node.refuse("has parameters of different lengths")
    layer.mean, layer.variance = (np.array(a) for a in arrays[2:])
    return g.layer(node, layer, [x], {"scale": others[0], "shift": others[1]})


def find_layer_norm(g: Nodes, node: Node) -> Node | None:
    x, scale, *shifts = node.inputs
    a, shift = g.array(scale, 1), g.array(shifts[0], 1) if any(shifts) else None
    if a is None or (any(shifts) and shift is None) or node.get("axis", -1) != -1 or any(node.outputs[1:]):
        return None
    weights = {"scale": scale, **({"shift": shifts[0]} if any(shifts) else {})}
    return g.layer(
        node, lambda: functions.LayerNorm(len(a), shortest(node.get("epsilon", 1e-5)), bias=any(shifts)), [x], weights
    )


def find_rms_norm(g: Nodes, node: Node) -> Node | None:
    x, scale = node.inputs
    a = g.array(scale, 1)
    if a is None or node.get("axis", -1) != -1:
        return None
    return g.layer(node, lambda: functions.RMSNorm(len(a), shortest(node.get("epsilon", 1e-5))), [x], {"scale": scale})


def find_instance_norm(g: Nodes, node: Node) -> Node | None:
    x, scale, shift = node.inputs
    a, b = g.array(scale, 1), g.array(shift, 1)
    if a is None or b is None or a.shape != b.shape:
        return None
    with node.blamed():
        layer = functions.InstanceNorm(len(a), shortest(node.get("epsilon", 1e-5)))
    return g.layer(node, layer, [x], {"scale": scale, "shift": shift})


def find_group_norm(g: Nodes, node: Node) -> Node | None:
    """Since opset 21; before, each group had one scale."""
    x, scale, shift = node.inputs
    a, b = g.array(scale, 1), g.array(shift, 1)
    if a is None or b is None or a.shape != b.shape or node.version < 21:
        return None
    with node.blamed():
        layer = functions.GroupNorm(node.get("num_groups"), len(a), shortest(node.get("epsilon", 1e-5)))
    return g.layer(node, layer, [x], {"scale": scale, "shift": shift})


SINGLE: dict[str, list[Find]] = {
    "BatchNormalization": [find_batch_norm],
    "InstanceNormalization": [find_instance_norm],
    "RMSNormalization": [find_rms_norm],
    "LayerNormalization": [find_layer_norm],
    "GroupNormalization": [find_group_norm],
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def normalized(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x with mean 0 and variance 1 over axes."""
    x = x - x.mean(axes, True)
    return x / ((x * x).mean(axes, True) + eps).sqrt()


def of_channels(p: Any, x: Tensor) -> Any:
    """A number a channel, as it is broadcast to x."""
    return p.reshape(-1, *[1] * (x.ndim - 2))


def compute_instance_norm(node: Node, x: Any, scale: Any, shift: Any) -> Any:
    x = as_tensor(x)
    y = normalized(x, tuple(range(2, x.ndim)), node.get("epsilon", 1e-5))
    return y * of_channels(scale, x) + of_channels(shift, x)


def compute_group_norm(node: Node, x: Any, scale: Any, shift: Any) -> Any:
    x, groups = as_tensor(x), node.get("num_groups")
    n, channels = x.shape[:2]
    grouped = x.reshape(n, groups, channels // groups, *x.shape[2:])
    y = normalized(grouped, tuple(range(2, grouped.ndim)), node.get("epsilon", 1e-5))
    if len(scale) == channels:
        return y.reshape(x.shape) * of_channels(scale, x) + of_channels(shift, x)
    return (y * of_channels(scale, y) + of_channels(shift, y)).reshape(x.shape)


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
    return normalized(x, tuple([i % x.ndim for i in node.get("axes", [0, 2, 3])]), 1e-9)


def check_response_norm(node: Node) -> None:
    """ValueError for windows of no channels."""
    if node.get("size", 0) < 1:
        raise node.refuse(f"has size = {node.get('size')}, expected 1 or more")


def compute_response_norm(node: Node, x: Any) -> Any:
    """x / (bias + alpha · mean of x² over `size` channels around each)^beta, with zeros beside the channels."""
    x, size = as_tensor(x), node.get("size")
    squares = padded(node, (x * x).reshape(len(x), 1, x.shape[1], -1), 2, (size - 1) // 2, size // 2)
    means = functions.AvgPool2d((size, 1), 1)(squares).reshape(x.shape)
    return x / (means * node.get("alpha", 1e-4) + node.get("bias", 1.0)) ** node.get("beta", 0.75)


def compute_lp_norm(node: Node, x: Any) -> Any:
    x, axis = as_tensor(x), node.get("axis", -1)
    norm = x.abs().sum(axis, True) if node.get("p", 2) == 1 else (x * x).sum(axis, True).sqrt()
    return x / functions.where(norm, norm, 1.0)


OPERATORS: dict[str, Operator] = {
    "InstanceNormalization": compute_instance_norm,
    "GroupNormalization": compute_group_norm,
    "LayerNormalization": compute_layer_norm,
    "RMSNormalization": compute_layer_norm,
    "MeanVarianceNormalization": compute_mean_variance_norm,
    "LpNormalization": compute_lp_norm,
    "LRN": compute_response_norm,
}
