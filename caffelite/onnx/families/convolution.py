"""Convolutions and pools: windows that move over images or series."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite import functions
from caffelite.core.modes import meta_init
from caffelite.functions.arithmetic import as_tensor
from caffelite.onnx.families.indexing import take
from caffelite.onnx.families.reduction import reduction_rule
from caffelite.onnx.families.shape import pad_axis
from caffelite.onnx.nodes import Finder, Node, NodeGraph, Operator, constant_integers
from caffelite.onnx.writing import Rule, Value, Writer


def window_attributes(node: Node, axes: int) -> tuple[list[int], list[int], list[int]]:
    """Return the strides, the dilations and the pads, before and after, of a node with windows of so many axes."""
    names = {"strides": [1] * axes, "dilations": [1] * axes, "pads": [0] * 2 * axes}
    for name, default in names.items():
        if len(node.get(name) or default) != len(default):
            raise node.error(f"has {name} = {node.get(name)}, expected {len(default)} numbers")
    strides, dilations, pads = [node.get(name) or default for name, default in names.items()]
    return strides, dilations, pads


def window_pads(node: Node, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pads before and after each axis of these lengths, from the node's `pads` or its `auto_pad`."""
    window = node.get("kernel_shape")
    strides, dilations, pads = window_attributes(node, len(window))
    auto = node.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return list(zip(pads[: len(window)], pads[len(window) :], strict=True))
    pairs = []
    for n, k, s, d in zip(lengths, window, strides, dilations, strict=True):
        total = 0 if auto == "VALID" else max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
        pairs.append((total // 2, total - total // 2) if auto != "SAME_LOWER" else (total - total // 2, total // 2))
    return pairs


def _ceil_pads(node: Node, lengths: Sequence[int], pads: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pads. With `ceil_mode` they are as large as the last window needs."""
    if not node.get("ceil_mode", 0) or node.get("auto_pad", "NOTSET") != "NOTSET":
        return pads
    strides, dilations, _ = window_attributes(node, len(lengths))
    pairs = []
    for n, k, s, d, (before, after) in zip(lengths, node.get("kernel_shape"), strides, dilations, pads, strict=True):
        k = d * (k - 1) + 1
        count = -(-(n + before + after - k) // s) + 1
        if (count - 1) * s >= n + before:  # a window that would begin in the pads behind
            count -= 1
        pairs.append((before, max(after, (count - 1) * s + k - n - before)))
    return pairs


# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_convolution(g: Writer, f: Any, x: Value) -> str:
    if f.padding == "same" and set(f.stride) != {1} and set(f.dilation) == {1}:
        return _convolution(g, "Conv", f, x, auto_pad="SAME_UPPER")
    lengths: Any = x.shape[2:]
    before = after = f.pads_before(lengths)
    if isinstance(f.padding, str):
        positions: Any = g.application.shapes[0][2:]
        along = zip(lengths, positions, before, f.kernel_size, f.stride, f.dilation, strict=True)
        after = [max((m - 1) * s + d * (k - 1) + 1 - first - n, 0) for n, m, first, k, s, d in along]
    return _convolution(g, "Conv", f, x, pads=[*before, *after])


def write_transposed_convolution(g: Writer, f: Any, x: Value) -> str:
    before, after = zip(*f.crops(), strict=True)
    pads = [*before, *[max(0, n) for n in after]]
    return _convolution(g, "ConvTranspose", f, x, pads=pads, output_padding=[max(0, -n) for n in after])


def _convolution(g: Writer, operator: str, f: Any, x: Value, **attributes: Any) -> str:
    bias = None if f.bias is None else g.initializer(f.bias)
    attributes |= {"kernel_shape": [*f.kernel_size], "strides": [*f.stride], "dilations": [*f.dilation]}
    return g.node(operator, x, g.initializer(f.weight), bias, group=f.groups, **attributes)


def pool_rule(operator: str, **attributes: int) -> Rule:
    def rule(g: Writer, f: Any, x: Value) -> str:
        window: dict[str, Any] = {"kernel_shape": [*f.kernel_size], "strides": [*f.stride], "pads": [*f.padding] * 2}
        if f.ceil:
            window |= _last_windows(f, x.shape[2:], g.application.shapes[0][2:])
        return g.node(operator, x, **window, **attributes)

    return rule


def global_pool_rule(operator: str, along_axes: str) -> Rule:
    """Make a rule for a global pool: an `operator` that pools all axes after the channels, or one along its axes."""
    along = reduction_rule(along_axes)
    return lambda g, f, x: g.node("Flatten", g.node(operator, x)) if f.axis is None else along(g, f, x)


def _last_windows(f: Any, lengths: Any, positions: Any) -> dict[str, Any]:
    """Return the attributes of a pool with `ceil`.

    ONNX's checker also counts a last window that would begin in the pads behind. If there is one, pads are written.
    """
    along = list(zip(lengths, positions, f.kernel_size, f.stride, f.padding, strict=True))
    if all(m == -(-(n + 2 * p - k) // s) + 1 for n, m, k, s, p in along):
        return {"ceil_mode": 1}
    return {"pads": [*f.padding, *[max(p, (m - 1) * s + k - n - p) for n, m, k, s, p in along]]}


RULES: dict[type, Rule] = {
    **dict.fromkeys((functions.Conv1d, functions.Conv2d), write_convolution),
    **dict.fromkeys((functions.ConvTranspose1d, functions.ConvTranspose2d), write_transposed_convolution),
    **dict.fromkeys((functions.MaxPool1d, functions.MaxPool2d), pool_rule("MaxPool")),
    **dict.fromkeys((functions.AvgPool1d, functions.AvgPool2d), pool_rule("AveragePool", count_include_pad=1)),
    functions.GlobalAvgPool: global_pool_rule("GlobalAveragePool", "ReduceMean"),
    functions.GlobalMaxPool: global_pool_rule("GlobalMaxPool", "ReduceMax"),
}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


def _find_weights(g: NodeGraph, node: Node) -> tuple[np.ndarray, dict[str, str]]:
    """Return the weights of a convolution of images or series, and the names of its parameters."""
    _, w, *biases = node.inputs
    a = g.constants.get(w)
    has_bias = any(biases)
    if a is None or a.ndim not in (3, 4) or a.dtype != g.reader.dtype or (has_bias and g.array(biases[0], 1) is None):
        raise node.error("has weights that are not constants, or has no images or series")
    return a, {"weight": w, **({"bias": biases[0]} if has_bias else {})}


def find_convolution(g: NodeGraph, node: Node) -> Node | None:
    """Find a convolution of images or series. If its two sides have different pads, x is padded before."""
    x, (a, weights) = node.inputs[0], _find_weights(g, node)
    k, groups = list(a.shape[2:]), node.get("group", 1)
    node.attributes["kernel_shape"] = k
    stride, dilation, pads = window_attributes(node, len(k))
    before, after = pads[: len(k)], pads[len(k) :]
    total = [d * (n - 1) for d, n in zip(dilation, k, strict=True)]
    auto = node.get("auto_pad", "NOTSET")
    padding: Any = {"NOTSET": before, "SAME_UPPER": "same", "VALID": 0}.get(auto)
    if auto == "NOTSET" and before != after:
        is_same = all(p == n // 2 and q == n - n // 2 for p, q, n in zip(before, after, total, strict=True))
        padding = "same" if is_same and set(stride) == {1} else None
        if len(k) == 1 and (before, after) == (total, [0]):
            padding = "causal"
    if padding is None:
        padded_name = f"{node.outputs[0]} padded"
        pad = Node("PadWindows", node.name, [x], [padded_name], dict(node.attributes), node.version, node.dtype)
        g.append(pad)
        x, padding = padded_name, 0
    kind: Any = functions.Conv1d if len(k) == 1 else functions.Conv2d
    return g.layer(
        node,
        lambda: kind(a.shape[1] * groups, a.shape[0], k, stride, padding, dilation, groups, bias="bias" in weights),
        [x],
        weights,
    )


def find_transposed_convolution(g: NodeGraph, node: Node) -> Node | None:
    a, weights = _find_weights(g, node)
    groups, axes = node.get("group", 1), a.ndim - 2
    stride, dilation, pads = window_attributes(node, axes)
    extra = node.get("output_padding") or [0] * axes
    if len(extra) != axes:
        raise node.error(f"has output_padding = {extra}, expected {axes} numbers")
    if node.get("auto_pad") == "VALID":
        pads = [0] * 2 * axes
    before, after = pads[:axes], pads[axes:]
    extra = [m + p - q for m, p, q in zip(extra, before, after, strict=True)]
    kind: Any = functions.ConvTranspose1d if axes == 1 else functions.ConvTranspose2d

    def make(padding: Any, extra: Any) -> Any:
        sizes = a.shape[0], a.shape[1] * groups, a.shape[2:], stride, padding, extra, groups
        return kind(*sizes, bias="bias" in weights, dilation=dilation)

    if min(extra) >= 0:
        return g.layer(node, lambda: make(before, extra), node.inputs[:1], weights)
    with meta_init():
        same = make("same", 0)
    if same.crops() != [(p, p - m) for p, m in zip(before, extra, strict=True)]:
        raise node.error(f"cuts {after} pixels behind and {before} before, which caffelite does not have")
    return g.layer(node, lambda: make("same", 0), node.inputs[:1], weights)


def pool_finder(*kinds: Any) -> Callable[[NodeGraph, Node], Node | None]:
    """Find a pool that has the same pads on both sides, and counts them as caffelite does."""

    def find(g: NodeGraph, node: Node) -> Node | None:
        window = node.get("kernel_shape") or []
        strides, dilations, pads = window_attributes(node, len(window))
        before, after = pads[: len(window)], pads[len(window) :]
        is_max = node.operator == "MaxPool"
        has_same_counts = is_max or not any(pads) or node.get("count_include_pad", 0)
        fits = before == after and all(2 * p <= k for p, k in zip(before, window, strict=True))
        if len(window) not in ((1, 2, 3) if is_max else (1, 2)):
            raise node.error("is not a pool of images or series")
        if min(*window, *strides, *dilations) < 1:
            raise node.error(f"has windows {window}, strides {strides} and dilations {dilations}")
        ceil, auto = {"ceil": True} if node.get("ceil_mode", 0) else {}, node.get("auto_pad", "NOTSET")
        if ceil and not (is_max and auto == "NOTSET"):
            return None
        if not (has_same_counts and fits and auto in ("NOTSET", "VALID") and set(dilations) == {1} and len(window) < 3):
            return None
        kind = kinds[len(window) - 1]
        return g.layer(node, lambda: kind(window, strides, before, **ceil), node.inputs)

    return find


def find_global_pool(g: NodeGraph, node: Node) -> Node | None:
    """Return the means or the largest elements of channels, without the axes that they leave."""
    kinds: dict[str, Any] = {"GlobalAveragePool": functions.GlobalAvgPool, "GlobalMaxPool": functions.GlobalMaxPool}
    pool = next((pool for name in kinds if (pool := g.producer(node.inputs[0], name)) is not None), None)
    if pool is None:
        return None
    if node.operator == "Flatten":
        drops_axes = node.get("axis", 1) == 1
    elif node.operator == "Reshape":
        drops_axes = constant_integers(g, node, "shape") == [0, -1]
    else:
        drops_axes = sorted(constant_integers(g, node, "axes") or []) in ([2], [2, 3], [-1], [-2, -1])
    return g.layer(node, kinds[pool.operator], pool.inputs[:1]) if drops_axes else None


def find_mean_along_axes(g: NodeGraph, node: Node) -> Node | None:
    """Return the mean along axes, without the axes. (ReduceMax may take integers, and stays an operator.)"""
    axes = constant_integers(g, node, "axes")
    if not axes or min(axes) < 1 or node.get("keepdims", 1):
        return None
    axis = axes[0] if len(axes) == 1 else tuple(axes)
    return g.layer(node, lambda: functions.GlobalAvgPool(axis), node.inputs[:1])


GROUPS: dict[str, list[Finder]] = {operator: [find_global_pool] for operator in ("Flatten", "Reshape", "Squeeze")}

SINGLE_NODES: dict[str, list[Finder]] = {
    "Conv": [find_convolution],
    "ConvTranspose": [find_transposed_convolution],
    "MaxPool": [pool_finder(functions.MaxPool1d, functions.MaxPool2d)],
    "AveragePool": [pool_finder(functions.AvgPool1d, functions.AvgPool2d)],
    "ReduceMean": [find_mean_along_axes],
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_pad_windows(node: Node, x: Any) -> Any:
    """x with the zeros around it that a convolution is to see."""
    for axis, (before, after) in enumerate(window_pads(node, x.shape[2:]), 2):
        x = pad_axis(node, x, axis, before, after)
    return x


def compute_max_pool(node: Node, x: Any) -> Any:
    x = as_tensor(x)
    for axis, (before, after) in enumerate(_ceil_pads(node, x.shape[2:], window_pads(node, x.shape[2:])), 2):
        x = pad_axis(node, x, axis, before, after, value=-math.inf)
    window = node.get("kernel_shape")
    strides, dilations, _ = window_attributes(node, len(window))
    if set(dilations) != {1} or len(window) == 3:
        for axis, (k, s, d) in enumerate(zip(window, strides, dilations, strict=True), 2):
            x = _max_pool_axis(node, x, axis, k, s, d)
        return x
    kind = functions.MaxPool1d if x.ndim == 3 else functions.MaxPool2d
    return kind(window, strides)(x)


def _max_pool_axis(node: Node, x: Any, axis: int, size: int, stride: int, dilation: int) -> Any:
    """Return the largest of `size` elements, which are `dilation` apart, for each window along an axis."""
    last = x.shape[axis] - dilation * (size - 1)  # the number of places where a window may begin
    if last < 1:
        raise node.error(f"has windows that are larger than x, of shape {x.shape} with its pads")
    begins = [slice(i * dilation, i * dilation + last, stride) for i in range(size)]
    return functools.reduce(functions.maximum, [take(x, axis, begin) for begin in begins])


def compute_average_pool(node: Node, x: Any) -> Any:
    """Return the means of windows, and not of what is outside: of its pads, where it has such, only what it counts."""
    x = as_tensor(x)
    pads = window_pads(node, x.shape[2:])
    counted = np.ones((1, 1, *x.shape[2:]), x.dtype)
    for axis, ((before, after), (_, last)) in enumerate(zip(pads, _ceil_pads(node, x.shape[2:], pads), strict=True), 2):
        x = pad_axis(node, x, axis, before, last)
        counted = pad_axis(node, counted, axis, before, after, value=float(node.get("count_include_pad", 0)))
        counted = pad_axis(node, counted, axis, 0, last - after)
    kind = functions.AvgPool1d if x.ndim == 3 else functions.AvgPool2d
    pool = kind(node.get("kernel_shape"), node.get("strides") or 1)
    if (counted == 1).all():
        return pool(x)
    with kernels.pause_recording():
        shares = pool.forward(counted)
    return pool(x) / node.cache(shares)


def global_pool_op(name: str) -> Operator:
    return lambda node, x: getattr(as_tensor(x), name)(tuple(range(2, x.ndim)), True)


OPERATORS: dict[str, Operator] = {
    "PadWindows": compute_pad_windows,
    "MaxPool": compute_max_pool,
    "AveragePool": compute_average_pool,
    "GlobalAveragePool": global_pool_op("mean"),
    "GlobalMaxPool": global_pool_op("max"),
}
