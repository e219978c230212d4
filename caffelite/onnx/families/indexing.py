"""Parts of arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite import functions
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor
from caffelite.functions.indexing import FULL_SLICE, _is_basic, _split_index
from caffelite.model.export_graph import SymbolicLength
from caffelite.onnx.nodes import Node, Operator, is_plain
from caffelite.onnx.writing import Rule, Value, Writer, known_lengths, type_code, value_name

SLICE_END = 2**62  # the end of a slice without an end


class TopK(Function):
    """The k largest elements along an axis, or the smallest, in order, and their places, numbers of x's dtype.

    dx = dy at the places, and 0 elsewhere. Of equal elements, those with smaller places come first.
    """

    def __init__(self, k: int, axis: int, largest: bool) -> None:
        self.k, self.axis, self.largest = k, axis, largest

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.shape, self.places = x.shape, top_k_indices(x, self.k, self.axis, self.largest)
        return np.take_along_axis(x, self.places, self.axis), self.places.astype(x.dtype)

    def backward(self, dys: tuple[np.ndarray | None, ...]) -> np.ndarray:
        dx = np.zeros(self.shape, next(dy.dtype for dy in dys if dy is not None))
        if dys[0] is not None:
            np.put_along_axis(dx, self.places, dys[0], self.axis)
        return dx

    def __repr__(self) -> str:
        return f"TopK({self.k}, {self.axis}, {self.largest})"


def top_k_indices(x: np.ndarray, k: int, axis: int, largest: bool) -> np.ndarray:
    """Return the places of the k largest or smallest elements along an axis, in their order; int64."""
    if largest:  # the last ones in ascending order; both flips keep the order of equal elements
        ordered = x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable")
        ordered = np.flip(ordered, axis)
    else:
        ordered = np.argsort(x, axis, kind="stable")
    return np.take(ordered, range(k), axis)


# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_index(g: Writer, f: Any, x: Value) -> str:
    """Slices, numbers and None one after the other; arrays as `Index.forward` takes them."""
    entries = g.application.get_attribute("index")
    if all(_is_basic(entry) or isinstance(entry, SymbolicLength) for entry in entries):
        return _write_basic_index(g, entries, x)
    slices, numbers, side_by_side = _split_index(entries, known_lengths(x.shape))
    view = _write_basic_index(g, slices, x)
    ndim = len(slices)
    axes = list(numbers)
    if len(axes) == 1 and np.ndim(numbers[axes[0]]) <= 1:
        return g.node("Gather", view, g.constant(np.asarray(numbers[axes[0]], np.int64)), axis=axes[0])
    rest = [axis for axis in range(ndim) if axis not in axes]
    places = np.stack(np.broadcast_arrays(*[np.asarray(x, np.int64) for x in numbers.values()]), axis=-1)
    y = g.node("GatherND", g.node("Transpose", view, perm=[*axes, *rest]), g.constant(places))
    first, count = axes[0] if side_by_side else 0, places.ndim - 1
    order = [*range(count, count + first), *range(count), *range(count + first, count + len(rest))]
    return g.node("Transpose", y, perm=order)


def _write_basic_index(g: Writer, entries: Sequence[Any], x: Value) -> str:
    """Return an index as nodes: one for all slices, one for each number, and one for all None. Numbers remove axes."""
    entries = entries if any(entry is ... for entry in entries) else (*entries, ...)
    used = sum(entry is not None and entry is not ... for entry in entries)
    full = [e for entry in entries for e in ([FULL_SLICE] * (x.ndim - used) if entry is ... else [entry])]
    axis_entries = [entry for entry in full if entry is not None]
    name: Any = x
    slices = {
        axis: entry for axis, entry in enumerate(axis_entries) if isinstance(entry, slice) and entry != FULL_SLICE
    }
    if slices:
        starts, stops, steps = zip(*map(_slice_bounds, slices.values()), strict=True)
        name = g.node("Slice", name, *map(g.integers, (starts, stops, list(slices), steps)))
    for axis in reversed(range(len(axis_entries))):
        if not isinstance(entry := axis_entries[axis], slice):
            place = g.length(entry) if isinstance(entry, SymbolicLength) else None
            place = g.constant(np.int64(entry)) if place is None else g.node("Reshape", place, g.integers(()))
            name = g.node("Gather", name, place, axis=axis)
    rest = [entry for entry in full if entry is None or isinstance(entry, slice)]
    if new := [axis for axis, entry in enumerate(rest) if entry is None]:
        name = g.node("Unsqueeze", name, g.integers(new))
    return value_name(name)


def _slice_bounds(entry: slice) -> tuple[Any, Any, Any]:
    """Return the start, the stop and the step of a slice, with numbers for None."""
    step = 1 if entry.step is None else entry.step
    start, stop = (0, SLICE_END) if step > 0 else (SLICE_END, -SLICE_END)
    return start if entry.start is None else entry.start, stop if entry.stop is None else entry.stop, step


def write_split(g: Writer, f: Any, x: Value) -> tuple[str, ...]:
    if isinstance(x.shape[f.axis % x.ndim], SymbolicLength):
        raise ValueError(f"export: {f!r} splits the rows of a batch")
    return tuple([_write_basic_index(g, index, x) for index in f.indices(x.shape)])


def write_take_along_axis(g: Writer, f: Any, x: Value, places: Value) -> str:
    """ONNX does not broadcast the two to each other."""
    axis, shape = f.axis % x.ndim, g.application.shapes[0]
    x_shape = (*shape[:axis], x.shape[axis], *shape[axis + 1 :])
    inputs = [
        value if value.shape == target_shape else g.node("Expand", value, g.integers(target_shape))
        for value, target_shape in ((x, x_shape), (places, shape))
    ]
    return g.node("GatherElements", *inputs, axis=axis)


def write_top_k(g: Writer, f: Any, x: Value) -> tuple[str, str]:
    y, places = g.node("TopK", x, g.integers((f.k,)), outputs=2, axis=f.axis, largest=int(f.largest))
    return y, g.node("Cast", places, to=type_code(g.dtype))


RULES: dict[type, Rule] = {
    TopK: write_top_k,
    functions.Index: write_index,
    functions.Flip: lambda g, f, x: _write_basic_index(g, f.reversing_index(x.ndim), x),
    functions.Split: write_split,
    functions.TakeAlongAxis: write_take_along_axis,
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def take(x: Any, axis: int, places: Any) -> Any:
    return x[(*[slice(None)] * (axis % x.ndim), places)]


def compute_gather(node: Node, x: Any, places: Any) -> Any:
    axis = node.get("axis", 0)
    if is_plain(x, places):
        return np.take(x, places, axis)
    if isinstance(x, kernels.RecordedArray):
        return take(x, axis, _as_slice(node, node.constant(places, "place")))
    if isinstance(places, Tensor):
        places = np.asarray(places).astype(np.int64)
    return take(as_tensor(x), axis, int(places) if places.ndim == 0 and is_plain(places) else places)


def _as_slice(node: Node, places: np.ndarray) -> Any:
    """Places that follow each other at the same distance as a slice; of integers, no others can be taken."""
    if places.ndim == 0:
        return int(places)
    step = int(places[1] - places[0]) if places.size > 1 else 1
    if places.ndim > 1 or step == 0 or (np.diff(places) != step).any():
        raise node.error("takes integers in an order that caffelite does not have")
    end = int(places[-1]) + step
    return slice(int(places[0]), None if end < 0 else end, step)


def compute_slice(node: Node, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    starts, ends = node.argument("starts", starts), node.argument("ends", ends)
    axes = node.argument("axes", axes, list(range(len(starts))))
    steps = node.argument("steps", steps, [1] * len(starts))
    index = [slice(None)] * x.ndim
    for axis, *part in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(*part)
    return x[tuple(index)]


def compute_split(node: Node, x: Any, sizes: Any = None) -> Any:
    axis, count = node.get("axis", 0), len(node.outputs)
    sizes = node.argument("split", sizes)
    if sizes is None:
        size = -(-x.shape[axis] // count)
        sizes = [size] * (count - 1) + [x.shape[axis] - size * (count - 1)]
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple([take(x, axis, slice(a, b)) for a, b in itertools.pairwise(ends)])


def compute_gather_elements(node: Node, x: Any, places: Any) -> Any:
    """Elements at places along an axis. The places may be fewer than x has along the other axes."""
    axis = node.get("axis", 0) % x.ndim
    x = x[tuple([slice(None) if i == axis else slice(n) for i, n in enumerate(places.shape)])]
    if isinstance(places, Tensor):
        places = np.asarray(places).astype(np.int64)
    return np.take_along_axis(x, places, axis) if is_plain(x, places) else functions.take_along_axis(x, places, axis)


def compute_top_k(node: Node, x: Any, k: Any = None) -> Any:
    """Return the largest or smallest elements, in order if `sorted` is 0, too; and their places."""
    k, axis, largest = node.argument("k", k), node.get("axis", -1) % x.ndim, bool(node.get("largest", 1))
    (k,) = k if isinstance(k, list) else (k,)
    if not 0 <= k <= x.shape[axis]:
        raise node.error(f"takes {k} elements along axis {axis} of shape {x.shape}")
    if is_plain(x):
        places = top_k_indices(x, k, axis, largest)
        return np.take_along_axis(x, places, axis), places
    if x.dtype.kind != "f" or x.shape[axis] > 2 / np.finfo(x.dtype).eps:
        raise node.error(f"orders {x.shape[axis]} elements of {x.dtype}, which caffelite does not have")
    return TopK(k, axis, largest)(x)


OPERATORS: dict[str, Operator] = {
    "GatherElements": compute_gather_elements,
    "TopK": compute_top_k,
    "Gather": compute_gather,
    "GatherND": lambda node, x, places: x[tuple(np.moveaxis(node.constant(places, "place"), -1, 0))],
    "Slice": compute_slice,
    "Split": compute_split,
}
