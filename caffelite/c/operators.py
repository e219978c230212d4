"""The C of Tensor's operators: arithmetic with broadcasting, reductions, products, and elements in another order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions
from caffelite._kernels.operations import by_function
from caffelite.c.emit import INDICES, Shape, axes, dims, index_axes, literal, loop, loops, subscript
from caffelite.c.layers import CLayer, Operand, WriteCall, elementwise
from caffelite.core.function import Function

ROWS = 3  # on which it is tried whether elements are of their own row


class FloatCast(Function):
    """Integers or bools of this type in C as floats."""

    def __init__(self, type: str) -> None:
        self.type = type

    def forward(self, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64)

    def backward(self, dy: np.ndarray) -> None:
        """Integers have no gradient."""

    def layer(self, shape: Shape) -> CLayer:
        counts = axes(i=math.prod(shape))
        body = loops(counts, f"y{subscript(counts)} = (float)x{subscript(counts)};")
        return CLayer({"x": dims(counts)}, dims(counts), body, types={"x": self.type})

    def __repr__(self) -> str:
        return f"FloatCast({self.type})"


def arithmetic(text: str) -> Callable[..., CLayer]:
    """Make a function that writes an operator of two Tensors, or of a Tensor and a number."""

    def write(f: Function, a: Any, b: Any, y: Shape) -> CLayer:
        operands = {name: x for name, x in (("a", a), ("b", b)) if isinstance(x, tuple)}
        if {*operands.values()} == {y}:
            a, b = (f"{name}[]" if name in operands else literal(x) for name, x in (("a", a), ("b", b)))
            return elementwise(y, text.format(a=a, b=b), *operands)
        counts = index_axes(f, y)
        shapes = {name: x or (1,) for name, x in operands.items()}
        a, b = (
            f"{name}{_broadcast_subscript(shapes[name], y)}" if name in shapes else literal(x)
            for name, x in (("a", a), ("b", b))
        )
        return CLayer(shapes, y, loops(counts, f"y{subscript(counts)} = {text.format(a=a, b=b)};"), in_place=True)

    return write


def _broadcast_subscript(x: Shape, y: Shape) -> str:
    """Return the element of an array of shape x for an element of y. Their last axes belong together."""
    indices = INDICES[len(y) - len(x) : len(y)]
    return "".join("[0]" if n == 1 else f"[{i}]" for i, n in zip(indices, x, strict=True))


def reduction(number: str, start: str, update: str, end: str = "result") -> Callable[..., CLayer]:
    """Make a function that writes a reduction: `result`, a C `number`, begins as `start`, and each x updates it."""

    def write(f: Any, x: Shape, y: Shape) -> CLayer:
        over = [axis - 1 for axis in f.axes(1 + len(x))]
        counts = index_axes(f, x)
        outer = {i: n for axis, (i, n) in enumerate(counts.items()) if axis not in over}
        inner = {i: n for axis, (i, n) in enumerate(counts.items()) if axis in over}
        first = f"x{''.join('[0]' if i in inner else f'[{i}]' for i in counts)}"
        body = loops(
            outer,
            f"{number} result = {start.format(first=first)};",
            *loops(inner, update.format(x=f"x{subscript(counts)}")),
            f"y{subscript(outer)} = {end.format(n=math.prod(inner.values()))};",
        )
        return CLayer({"x": x}, dims(outer), body)

    return write


def rearrangement(select: Callable[[Any, np.ndarray], np.ndarray]) -> Callable[..., CLayer]:
    """Make a function that writes the layer of a Function that takes elements, as this does in NumPy."""

    def write(f: Any, x: Shape, y: Shape) -> CLayer:
        return gather(f, x, y, select(f, np.arange(ROWS * math.prod(x)).reshape(ROWS, *x)))

    return write


def gather(f: Any, x: Shape, y: Shape, indices: np.ndarray) -> CLayer:
    """Elements of x in another order: along each axis of y the place in x grows by a stride, or is in a table.

    `indices` has the places for several rows. ValueError if a row of them is not of a row of x.
    """
    size = math.prod(x)
    if len(indices) != ROWS or any(not np.array_equal(row, indices[0] + i * size) for i, row in enumerate(indices)):
        raise ValueError(f"export: there is no C for {f!r}, which joins rows")
    places, counts = indices[0], index_axes(f, y)
    start = int(places.flat[0])
    seconds = map(tuple, np.eye(len(y), dtype=int))  # the index of the second element along each axis
    strides = [int(places[second]) - start if n > 1 else 0 for second, n in zip(seconds, y, strict=True)]
    grid = sum((s * g for s, g in zip(strides, np.indices(y), strict=True)), start=np.full(y, start))
    if np.array_equal(grid, places):
        terms = [f"{s} * {i}" if s != 1 else i for s, i in zip(strides, counts, strict=True) if s]
        place = " + ".join([*[str(start)] * (start > 0 or not terms), *terms]).replace("+ -", "- ")
        return CLayer({"x": (size,)}, dims(counts), loops(counts, f"y{subscript(counts) or '[0]'} = x[{place}];"))
    flat = axes(i=math.prod(y))
    table = f"static const int places[{places.size}] = {{{', '.join(map(str, places.flat))}}};"
    body = loops(flat, f"y{subscript(flat)} = x[places{subscript(flat)}];")
    return CLayer({"x": (size,)}, dims(flat), [table, *body])


def matmul(f: Any, a: Shape, b: Shape, y: Shape) -> CLayer:
    """Products of matrices, or of a vector and a matrix. Stacks of matrices are broadcast to each other."""
    r, c = ["r"] * (len(a) > 1), ["c"] * (len(b) > 1)  # of the rows of a, and the columns of b
    lengths = dict(zip([*r, *c], y[len(y) - len(r) - len(c) :], strict=True))
    stack = index_axes(f, y[: len(y) - len(lengths)])
    target = f"y{subscript(stack | lengths)}"
    a_element = f"a{_broadcast_subscript(a[:-2], (*stack.values(),))}{'[r]' * len(r)}[t]"
    b_element = f"b{_broadcast_subscript(b[:-2], (*stack.values(),))}[t]{'[c]' * len(c)}"
    outer, inner = stack | {i: lengths[i] for i in r}, {i: lengths[i] for i in c}
    body = loops(
        outer,
        *loops(inner, f"{target} = 0;"),
        loop("t", a[-1], *loops(inner, f"{target} += {a_element} * {b_element};")),
    )
    return CLayer({"a": a, "b": b}, dims(stack | lengths), body)


def split(f: functions.Split, write: WriteCall, x: Operand) -> list[Operand]:
    """Return a call for each part."""
    parts: list[Operand] = []
    for i, index in enumerate(f.indices((1, *x[1]))):
        shape = np.empty((1, *x[1]))[index].shape[1:]
        parts += write(functions.Index(index), x, shape=shape, index=(i,))
    return parts


#: Functions that write a layer, as those in `layers.LAYERS`.
LAYERS: dict[type, Callable[..., CLayer]] = {
    **{getattr(functions, name): arithmetic(c) for name, c in by_function("c").items() if "{a}" in c},
    functions.Sum: reduction("double", "0", "result += {x};", "(float)result"),
    **dict.fromkeys(
        (functions.Mean, functions.GlobalAvgPool), reduction("double", "0", "result += {x};", "(float)(result / {n})")
    ),
    **dict.fromkeys(
        (functions.Max, functions.GlobalMaxPool), reduction("float", "{first}", "result = larger(result, {x});")
    ),
    functions.Min: reduction("float", "{first}", "result = smaller(result, {x});"),
    functions.Index: rearrangement(lambda f, x: x[f.index]),
    functions.Flip: rearrangement(lambda f, x: x[f.reversing_index(x.ndim)]),
    functions.Transpose: rearrangement(lambda f, x: x.transpose(f.axes)),
    functions.MatMul: matmul,
}

#: Functions that write the calls of a Function that is several layers, as those in `sequences.STACKS`.
STACKS: dict[type, Callable[..., list[Operand]]] = {functions.Split: split}
