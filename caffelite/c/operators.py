"""The C of Tensor's operators: arithmetic with broadcasting, reductions, products, and elements in another order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.c.emit import INDICES, Shape, at, axes, dims, indexed, literal, loop, loops
from caffelite.c.layers import Layer, Part, Write, elementwise
from caffelite.core.arrays import normalize_axes
from caffelite.core.function import Function

ROWS = 3  # on which it is tried whether elements are of their own row


class Floats(Function):
    """Integers or bools of this type in C as floats."""

    def __init__(self, of: str) -> None:
        self.of = of

    def forward(self, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64)

    def backward(self, dy: np.ndarray) -> None:
        """Integers have no gradient."""

    def layer(self, shape: Shape) -> Layer:
        counts = axes(i=math.prod(shape))
        body = loops(counts, f"y{at(counts)} = (float)x{at(counts)};")
        return Layer({"x": dims(counts)}, dims(counts), body, types={"x": self.of})

    def __repr__(self) -> str:
        return f"Floats({self.of})"


def arithmetic(text: str) -> Callable[..., Layer]:
    """Make a function that writes an operator of two Tensors, or of a Tensor and a number."""

    def write(f: Function, a: Any, b: Any, y: Shape) -> Layer:
        operands = {name: x for name, x in (("a", a), ("b", b)) if isinstance(x, tuple)}
        if {*operands.values()} == {y}:
            a, b = (f"{name}[]" if name in operands else literal(x) for name, x in (("a", a), ("b", b)))
            return elementwise(y, text.format(a, b), *operands)
        counts = indexed(f, y)
        seen = {name: x or (1,) for name, x in operands.items()}
        a, b = (
            f"{name}{_broadcast(seen[name], y)}" if name in seen else literal(x) for name, x in (("a", a), ("b", b))
        )
        return Layer(seen, y, loops(counts, f"y{at(counts)} = {text.format(a, b)};"), in_place=True)

    return write


def _broadcast(x: Shape, y: Shape) -> str:
    """The element of an array of shape x for an element of y. Their last axes belong together."""
    indices = INDICES[len(y) - len(x) : len(y)]
    return "".join("[0]" if n == 1 else f"[{i}]" for i, n in zip(indices, x, strict=True))


def reduction(number: str, start: str, each: str, end: str = "found") -> Callable[..., Layer]:
    """Make a function that writes a reduction: `found`, such a number, starts as this, and each x changes it."""

    def write(f: Any, x: Shape, y: Shape) -> Layer:
        over = [axis - 1 for axis in normalize_axes(f.axis, 1 + len(x))]
        counts = indexed(f, x)
        kept = {i: n for axis, (i, n) in enumerate(counts.items()) if axis not in over}
        gone = {i: n for axis, (i, n) in enumerate(counts.items()) if axis in over}
        first = f"x{''.join('[0]' if i in gone else f'[{i}]' for i in counts)}"
        body = loops(
            kept,
            f"{number} found = {start.format(first=first)};",
            *loops(gone, each.format(x=f"x{at(counts)}")),
            f"y{at(kept)} = {end.format(n=math.prod(gone.values()))};",
        )
        return Layer({"x": x}, dims(kept), body)

    return write


def rearrangement(taken: Callable[[Any, np.ndarray], np.ndarray]) -> Callable[..., Layer]:
    """Make a function that writes the layer of a Function that takes elements, as this does in NumPy."""

    def write(f: Any, x: Shape, y: Shape) -> Layer:
        return rearranged(f, x, y, taken(f, np.arange(ROWS * math.prod(x)).reshape(ROWS, *x)))

    return write


def rearranged(f: Any, x: Shape, y: Shape, found: np.ndarray) -> Layer:
    """Elements of x in another order: along each axis of y the place in x grows by a stride, or is in a table.

    `found` has the places for several rows. ValueError if a row of them is not of a row of x.
    """
    size = math.prod(x)
    if len(found) != ROWS or any(not np.array_equal(row, found[0] + i * size) for i, row in enumerate(found)):
        raise ValueError(f"export: there is no C for {f!r}, which joins rows")
    places, counts = found[0], indexed(f, y)
    start = int(places.flat[0])
    strides = [int(places[_second(axis, y)]) - start if n > 1 else 0 for axis, n in enumerate(y)]
    grid = sum((s * g for s, g in zip(strides, np.indices(y), strict=True)), start=np.full(y, start))
    if np.array_equal(grid, places):
        terms = [f"{s} * {i}" if s != 1 else i for s, i in zip(strides, counts, strict=True) if s]
        place = " + ".join([*[str(start)] * (start > 0 or not terms), *terms]).replace("+ -", "- ")
        return Layer({"x": (size,)}, dims(counts), loops(counts, f"y{at(counts) or '[0]'} = x[{place}];"))
    flat = axes(i=math.prod(y))
    table = f"static const int places[{places.size}] = {{{', '.join(map(str, places.flat))}}};"
    return Layer({"x": (size,)}, dims(flat), [table, *loops(flat, f"y{at(flat)} = x[places{at(flat)}];")])


def _second(axis: int, shape: Shape) -> Shape:
    """The place of the second element along an axis."""
    return tuple([int(i == axis) for i in range(len(shape))])


def matmul(f: Any, a: Shape, b: Shape, y: Shape) -> Layer:
    """Products of matrices, or of a vector and a matrix. Stacks of matrices are broadcast to each other."""
    r, c = ["r"] * (len(a) > 1), ["c"] * (len(b) > 1)  # of the rows of a, and the columns of b
    lengths = dict(zip([*r, *c], y[len(y) - len(r) - len(c) :], strict=True))
    stack = indexed(f, y[: len(y) - len(lengths)])
    to = f"y{at(stack | lengths)}"
    of_a = f"a{_broadcast(a[:-2], (*stack.values(),))}{'[r]' * len(r)}[t]"
    of_b = f"b{_broadcast(b[:-2], (*stack.values(),))}[t]{'[c]' * len(c)}"
    outer, inner = stack | {i: lengths[i] for i in r}, {i: lengths[i] for i in c}
    body = loops(outer, *loops(inner, f"{to} = 0;"), loop("t", a[-1], *loops(inner, f"{to} += {of_a} * {of_b};")))
    return Layer({"a": a, "b": b}, dims(stack | lengths), body)


def split(f: functions.Split, write: Write, x: Part) -> list[Part]:
    """A call for each part."""
    found: list[Part] = []
    for i, index in enumerate(f.indices((1, *x[1]))):
        shape = np.empty((1, *x[1]))[index].shape[1:]
        found += write(functions.Index(index), x, shape=shape, place_in=(i,))
    return found


#: Functions that write a layer, as those in `layers.LAYERS`.
LAYERS: dict[type, Callable[..., Layer]] = {
    functions.Add: arithmetic("{} + {}"),
    functions.Subtract: arithmetic("{} - {}"),
    functions.Multiply: arithmetic("{} * {}"),
    functions.Divide: arithmetic("{} / {}"),
    functions.Power: arithmetic("powf({}, {})"),
    functions.Maximum: arithmetic("larger({}, {})"),
    functions.Minimum: arithmetic("smaller({}, {})"),
    functions.Sum: reduction("double", "0", "found += {x};", "(float)found"),
    functions.Mean: reduction("double", "0", "found += {x};", "(float)(found / {n})"),
    functions.Max: reduction("float", "{first}", "found = larger(found, {x});"),
    functions.Min: reduction("float", "{first}", "found = smaller(found, {x});"),
    functions.Index: rearrangement(lambda f, x: x[f.index]),
    functions.Flip: rearrangement(lambda f, x: x[f.reversing_index(x.ndim)]),
    functions.Transpose: rearrangement(lambda f, x: x.transpose(f.axes)),
    functions.MatMul: matmul,
}

#: Functions that write the calls of a Function that is several layers, as those in `sequences.STACKS`.
STACKS: dict[type, Callable[..., list[Part]]] = {functions.Split: split}
