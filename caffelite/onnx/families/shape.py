"""Arrays in other shapes, side by side, padded, repeated, and made of a shape only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.arrays import normalize_axes
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor
from caffelite.model.export_graph import SymbolicLength
from caffelite.onnx import nodes
from caffelite.onnx.families.indexing import take
from caffelite.onnx.nodes import Finder, Node, NodeGraph, Operator, check_size, is_plain, simple_finder
from caffelite.onnx.writing import Rule, Value, Writer, node_rule

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_stack(g: Writer, f: Any, *inputs: Value) -> str:
    axis = f.axis % (inputs[0].ndim + 1)
    return g.node("Concat", *[g.node("Unsqueeze", x, g.integers((axis,))) for x in inputs], axis=axis)


def write_pad(g: Writer, f: Any, x: Value) -> str:
    """Return a node, or one for each axis if a border is longer than its mirror image, which ONNX does not continue."""
    pairs = f.pairs(x.ndim)
    mode = f.modes[f.mode]
    if mode == "reflect":
        if isinstance(x.shape[0], SymbolicLength) and any(pairs[0]):
            raise ValueError(f"export: {f!r} mirrors the rows of a batch")
        lengths: Any = x.shape
        along = [(axis, n, pair) for axis, (n, pair) in enumerate(zip(lengths, pairs, strict=True)) if any(pair)]
        if any(max(pair) >= n for _, n, pair in along):
            y: Any = x
            for axis, n, pair in along:
                y = g.node("Gather", y, g.constant(np.pad(np.arange(n), pair, mode)), axis=axis)
            return y
    value = g.number(f.value) if mode == "constant" else None
    begins, ends = zip(*pairs, strict=True)
    return g.node("Pad", x, g.integers([*begins, *ends]), value, mode=mode)


RULES: dict[type, Rule] = {
    functions.Flatten: lambda g, f, x: g.node("Flatten", x, axis=1),
    functions.Reshape: lambda g, f, x: g.node("Reshape", x, g.integers((0, *g.application.shapes[0][1:]))),
    functions.ToShape: lambda g, f, x: g.node("Reshape", x, g.shape(g.application.shapes[0])),
    functions.Transpose: lambda g, f, x: g.node(
        "Transpose", x, perm=[i % x.ndim for i in f.axes or range(x.ndim)[::-1]]
    ),
    functions.Concatenate: node_rule("Concat", axis="axis"),
    functions.Stack: write_stack,
    functions.Pad: write_pad,
    functions.PadAxes: write_pad,
}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


def find_reshape(g: NodeGraph, node: Node) -> Node | None:
    lengths = nodes.constant_integers(g, node, "shape")
    if lengths is None or node.inputs[0] in g.constants or 0 in lengths[1 - node.get("allowzero", 0) :]:
        return None
    if lengths[:1] == [0] and lengths.count(-1) < 2:
        return g.layer(
            node, lambda: functions.Flatten() if lengths == [0, -1] else functions.Reshape(lengths[1:]), node.inputs[:1]
        )
    return g.layer(node, lambda: functions.ToShape(*lengths), node.inputs[:1])


SINGLE_NODES: dict[str, list[Finder]] = {
    "Reshape": [find_reshape],
    "Flatten": [
        lambda g, node: simple_finder(lambda node: functions.Flatten())(g, node) if node.get("axis", 1) == 1 else None
    ],
    "Transpose": [simple_finder(lambda node: functions.Transpose(*(node.get("perm") or ())))],
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_reshape(node: Node, x: Any, lengths: Any = None) -> Any:
    shape = node.argument("shape", lengths)
    if not node.get("allowzero", 0):
        if any(n == 0 and i >= x.ndim for i, n in enumerate(shape)):
            raise node.error(f"keeps an axis that shape {x.shape} does not have")
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return x.reshape(tuple([int(n) for n in shape]))


def compute_flatten(node: Node, x: Any) -> Any:
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def compute_squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    axes = node.argument("axes", axes)
    squeezed = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else normalize_axes(tuple(axes), x.ndim)
    if any(x.shape[i] != 1 for i in squeezed):
        raise node.error(f"takes away axes {sorted(squeezed)} of shape {x.shape}")
    return x.reshape(tuple([n for i, n in enumerate(x.shape) if i not in squeezed]))


def compute_unsqueeze(node: Node, x: Any, axes: Any = None) -> Any:
    axes = node.argument("axes", axes)
    axes = [axes] if isinstance(axes, int) else axes
    ndim = x.ndim + len(axes)
    new, lengths = normalize_axes(tuple(axes), ndim), iter(x.shape)
    return x.reshape(tuple([1 if i in new else next(lengths) for i in range(ndim)]))


def compute_expand(node: Node, x: Any, lengths: Any) -> Any:
    to = check_size(node, np.broadcast_shapes(x.shape, tuple(node.constant(lengths, "shape").tolist())), x)
    if isinstance(x, Tensor):
        return x if list(x.shape) == to else x + node.cache(np.zeros(to, x.dtype))
    return np.broadcast_to(x, to)


def compute_tile(node: Node, x: Any, repeats: Any) -> Any:
    counts = node.constant(repeats, "repeats").tolist()
    check_size(node, [max(1, n) * count for n, count in zip(x.shape, counts, strict=True)], x)
    if is_plain(x):
        return np.tile(x, counts)
    for axis, count in enumerate(counts):
        if count != 1:
            x = take(as_tensor(x), axis, np.tile(np.arange(x.shape[axis]), count).tolist())
    return x


def concatenate(values: Sequence[Any], axis: int) -> Any:
    return np.concatenate(values, axis) if is_plain(*values) else functions.concatenate(values, axis)


def compute_pad(node: Node, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    pads, mode = node.argument("pads", pads), node.get("mode", "constant")
    value = node.argument("value", value, 0.0)
    axes = node.argument("axes", axes, list(range(x.ndim)))
    for i, axis in enumerate(axes):
        x = pad_axis(node, x, axis, pads[i], pads[i + len(axes)], mode, value)
    return x


def pad_axis(node: Node, x: Any, axis: int, before: int, after: int, mode: str = "constant", value: float = 0.0) -> Any:
    """x with more numbers along an axis, or with fewer where they are below 0."""
    n = x.shape[axis]
    if before < 0 or after < 0:
        x = take(x, axis, slice(max(0, -before), n + min(0, after)))
        before, after, n = max(0, before), max(0, after), x.shape[axis]
    if before == after == 0:
        return x
    check_size(node, [before + m + after if i == axis % x.ndim else m for i, m in enumerate(x.shape)], x)
    if mode != "constant":
        return take(x, axis, np.pad(np.arange(n), (before, after), mode).tolist())  # type: ignore[call-overload]
    shapes = [[m if i == axis % x.ndim else k for i, k in enumerate(x.shape)] for m in (before, after)]
    first, last = [node.cache(np.full(shape, value, x.dtype)) for shape in shapes]
    return concatenate([first, x, last], axis)


def compute_depth_to_space(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        return x.reshape((n, b, b, c // b**2, h, w)).transpose((0, 3, 4, 1, 5, 2)).reshape((n, c // b**2, h * b, w * b))
    return x.reshape((n, c // b**2, b, b, h, w)).transpose((0, 1, 4, 2, 5, 3)).reshape((n, c // b**2, h * b, w * b))


def compute_space_to_depth(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    return x.reshape((n, c, h // b, b, w // b, b)).transpose((0, 3, 5, 1, 2, 4)).reshape((n, c * b**2, h // b, w // b))


def compute_trilu(node: Node, x: Any, k: Any = None) -> Any:
    k = 0 if k is None else int(node.constant(k, "diagonal"))
    triangle = np.triu if node.get("upper", 1) else np.tril
    if is_plain(x):
        return triangle(x, k)
    return functions.where(node.cache(triangle(np.ones(x.shape[-2:], np.bool_), k)), x, 0.0)


def compute_constant_of_shape(node: Node, lengths: Any) -> np.ndarray:
    value = node.get("value", np.zeros(1, np.float32))
    return np.full(check_size(node, node.constant(lengths, "shape").tolist()), value.item(), value.dtype)


def compute_range(node: Node, start: Any, limit: Any, step: Any) -> np.ndarray:
    dtype: Any = start.dtype
    start, limit, step = (node.constant(x, "bound").item() for x in (start, limit, step))
    if step == 0:
        raise node.error("counts in steps of 0")
    check_size(node, [max(0, math.ceil((limit - start) / step))])
    return np.arange(start, limit, step).astype(dtype)


OPERATORS: dict[str, Operator] = {
    "Shape": lambda node, x: np.array(x.shape, np.int64)[slice(node.get("start", 0), node.get("end"))],
    "Size": lambda node, x: np.array(math.prod(x.shape), np.int64),
    "Reshape": compute_reshape,
    "Flatten": compute_flatten,
    "Squeeze": compute_squeeze,
    "Unsqueeze": compute_unsqueeze,
    "Transpose": lambda node, x: x.transpose(node.get("perm") or range(x.ndim)[::-1]),
    "Expand": compute_expand,
    "Tile": compute_tile,
    "Concat": lambda node, *values: concatenate(values, node.get("axis")),
    "Pad": compute_pad,
    "DepthToSpace": compute_depth_to_space,
    "SpaceToDepth": compute_space_to_depth,
    "Trilu": compute_trilu,
    "ConstantOfShape": compute_constant_of_shape,
    "Range": compute_range,
}
