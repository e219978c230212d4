"""Images and series of another length: elements that are repeated, or means of neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.onnx.families.indexing import take
from caffelite.onnx.nodes import Finder, Node, NodeGraph, Operator, check_size
from caffelite.onnx.writing import Rule, Value, Writer

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_upsample(g: Writer, f: Any, x: Value) -> str:
    scales = np.array([1, 1, *f.scale[: x.ndim - 2]], np.float32)
    return g.node(
        *("Resize", x, None, g.constant(scales)),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


RULES: dict[type, Rule] = {functions.Upsample: write_upsample}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


def find_upsample(g: NodeGraph, node: Node) -> Node | None:
    """Each element repeated in a block."""
    name = node.inputs[1] if node.operator == "Upsample" else [*node.inputs, "", "", ""][2]
    scales = g.constants[name].tolist() if name in g.constants else node.get("scales")
    if not scales or len(scales) not in (3, 4) or scales[:2] != [1, 1] or any(s != int(s) or s < 1 for s in scales):
        return None
    modes = node.get("coordinate_transformation_mode", "half_pixel"), node.get("nearest_mode", "round_prefer_floor")
    repeats = modes in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")) or node.version < 11
    if node.get("mode", "nearest") != "nearest" or not repeats or node.get("axes"):
        return None
    factors = [int(s) for s in scales[2:]]
    return g.layer(node, lambda: functions.Upsample(factors if len(factors) == 2 else factors[0]), node.inputs[:1])


SINGLE_NODES: dict[str, list[Finder]] = {operator: [find_upsample] for operator in ("Resize", "Upsample")}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_resize(node: Node, x: Any, *inputs: Any) -> Any:
    """Along each axis the nearest elements, or a mean of two of them, weighed."""
    if node.operator == "Upsample" or node.version < 11:
        scales, sizes, mode = node.argument("scales", inputs[0] if inputs else None), None, "asymmetric"
    else:
        _, scales, sizes = [*inputs, None, None, None][:3]
        scales, sizes = (
            None if s is None or s.size == 0 else node.constant(s, "size").tolist() for s in (scales, sizes)
        )
        mode = node.get("coordinate_transformation_mode", "half_pixel")
    axes = node.get("axes") or list(range(x.ndim))
    lengths = [math.floor(x.shape[axis] * scales[i]) if sizes is None else sizes[i] for i, axis in enumerate(axes)]
    check_size(node, [lengths[axes.index(i)] if i in axes else n for i, n in enumerate(x.shape)], x)
    for i, axis in enumerate(axes):
        n, m = x.shape[axis], lengths[i]
        scale = m / n if sizes is not None else scales[i]
        if n == m and scale == 1:
            continue
        places = _source_positions(mode, n, m, scale)
        if node.get("mode", "nearest") == "nearest":
            rounding = node.get("nearest_mode", "round_prefer_floor") if node.version >= 11 else "floor"
            x = take(x, axis, np.clip(ROUNDINGS[rounding](places), 0, n - 1).astype(np.int64).tolist())
        else:
            x = _interpolate(node, x, axis, np.clip(places, 0, n - 1))
    return x


ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _source_positions(mode: str, n: int, m: int, scale: float) -> np.ndarray:
    """Compute where in an axis of length n the m elements of the result are."""
    i = np.arange(m, dtype=np.float64)
    if mode == "align_corners":
        return i * (n - 1) / (n * scale - 1) if n * scale > 1 else i * 0
    if mode == "asymmetric":
        return i / scale
    if mode == "pytorch_half_pixel" and m == 1:
        return i * 0
    return (i + 0.5) / scale - 0.5


def _interpolate(node: Node, x: Any, axis: int, places: np.ndarray) -> Any:
    """Return the means of the elements beside these places."""
    before = np.floor(places).astype(np.int64)
    after = np.minimum(before + 1, x.shape[axis] - 1)
    share = node.cache((places - before).reshape(-1, *[1] * (x.ndim - 1 - axis % x.ndim)).astype(x.dtype))
    return take(x, axis, before.tolist()) * node.cache(1 - share) + take(x, axis, after.tolist()) * share


OPERATORS: dict[str, Operator] = dict.fromkeys(("Resize", "Upsample"), compute_resize)
