"""Padding: extra elements before and after an array, along its axes. `Pad` is a layer, and adds no rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import NUMBERS, native_dtype, normalize_axes, to_integers
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor, sum_to_shape

__all__ = ["Pad", "pad"]

Pairs = tuple[tuple[int, int], ...]  # for each axis, the numbers of elements before and after it
Part = tuple[slice, ...]


class PadAxes(Function, recordable=True):
    """x with extra elements before and after it along each axis, like `numpy.pad`; see `pad`.

    dx is dy without the added elements. Elements that were copied get the gradients of their copies as well.
    """

    #: The name of each mode in `numpy.pad`.
    modes: ClassVar[dict[str, str]] = {"constant": "constant", "reflect": "reflect", "edge": "edge"}
    name = "pad"  # in errors

    def __init__(self, widths: Any, mode: str = "constant", value: float = 0.0) -> None:
        if mode not in self.modes:
            raise ValueError(f"{self.name} knows the modes {', '.join(self.modes)}, got {mode!r}")
        if isinstance(value, bool) or not isinstance(value, NUMBERS):
            raise TypeError(f"{self.name}: constant_values must be a number, got {value!r}")
        self.widths, self.mode, self.value = self.check_widths(widths), mode, float(value)

    def check_widths(self, widths: Any) -> Any:
        """Return the widths as integers, or tuples of them. TypeError unless they are; ValueError below 0."""
        widths = widths.tolist() if isinstance(widths, np.ndarray) else widths
        if isinstance(widths, list | tuple):
            return tuple([self.check_widths(width) for width in widths])
        (width,) = to_integers(f"{self.name}: widths", widths)
        if width < 0:
            raise ValueError(f"{self.name}: widths must be 0 or more, got {width}")
        return width

    def pairs(self, ndim: int) -> Pairs:
        """Return the widths for an array with this many axes."""
        try:
            return tuple([(before, after) for before, after in np.broadcast_to(self.widths, (ndim, 2)).tolist()])
        except ValueError:
            raise ValueError(
                f"pad takes an integer, a pair, or a pair for each axis, got {self.widths} for {ndim} axes"
            ) from None

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        axes = list(zip(shape, self.pairs(len(shape)), strict=True))
        if self.modes[self.mode] != "constant" and any(n == 0 and any(pair) for n, pair in axes):
            raise ValueError(
                f"{self!r} got shape {format_shape(shape)}: there is nothing to copy along an axis of length 0"
            )
        return tuple([None if n is None else before + n + after for n, (before, after) in axes])

    def forward(self, x: np.ndarray) -> np.ndarray:
        shape: Any = self.output_shape(x.shape)
        pairs = self.pairs(x.ndim)
        self.inner: Any = tuple([slice(before, before + n) for n, (before, _) in zip(x.shape, pairs, strict=True)])
        self.copies = [] if self.modes[self.mode] == "constant" else list(self.border_copies(x.shape, pairs))
        y = kernels.output(shape, native_dtype(x)) if self.copies else kernels.full(shape, self.value, native_dtype(x))
        kernels.copy(x, y[(*self.inner, ...)])
        for source, target in self.copies:
            kernels.copy(y[source], y[target])
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        if self.copies:
            dy = kernels.copy(dy)
        for source, target in reversed(self.copies):
            dsource = dy[source]
            kernels.add(dsource, sum_to_shape(dy[target], dsource.shape), dsource)
        return dy[(*self.inner, ...)]

    def border_copies(self, shape: tuple[int, ...], pairs: Pairs) -> Iterator[tuple[Part, Part]]:
        """Yield the copies that fill the borders, in order, each as a source and a target in y.

        Along each axis, they include what was filled along the axes before it, so the corners are filled, too.
        """
        for axis, (n, (before, after)) in enumerate(zip(shape, pairs, strict=True)):
            filled, inner = (slice(None),) * axis, self.inner[axis + 1 :]
            for source, target in self.axis_copies(n, before, after):
                yield (*filled, source, *inner), (*filled, target, *inner)

    def axis_copies(self, n: int, before: int, after: int) -> list[tuple[slice, slice]]:
        """Return the copies along an axis of length n: sources and targets.

        If a border is longer than its mirror image, several copies fill it. Each mirrors all elements so far.
        """
        begin, end, length = before, before + n, before + n + after
        if self.modes[self.mode] == "edge" or n == 1:  # a single element has no mirror image, so NumPy repeats it
            copies = [(slice(begin, begin + 1), slice(begin)), (slice(end - 1, end), slice(end, length))]
            return [copy for copy, width in zip(copies, (before, after), strict=True) if width]
        copies = []
        while begin > 0:
            width = min(begin, end - 1 - begin)
            copies.append((_reversed_slice(begin + 1, begin + 1 + width), slice(begin - width, begin)))
            begin -= width
        while end < length:
            width = min(length - end, end - 1 - before)
            copies.append((_reversed_slice(end - 1 - width, end - 1), slice(end, end + width)))
            end += width
        return copies

    def __repr__(self) -> str:
        options = ("" if self.mode == "constant" else f", {self.mode!r}", f", value={self.value}" if self.value else "")
        return f"PadAxes({self.widths}{''.join(options)})"


def _reversed_slice(begin: int, end: int) -> slice:
    """Return the places begin … end − 1 in reverse order."""
    return slice(end - 1, begin - 1 if begin else None, -1)


class Pad(PadAxes, recordable=True, rowwise=True):
    """Padding: extra elements around images (n, C, height, width) or series (n, C, length).

    They are added along all axes from axis 2 on. `widths` is their number on each side, or a pair for each of these
    axes: `((top, bottom), (left, right))`. The new elements are

    - "zero": 0,
    - "reflect": the mirror image of x, without the element at the edge: 3 2 | 1 2 3 | 2 1,
    - "replicate": the element at the edge: 1 1 | 1 2 3 | 3 3.

    dx is dy without the new elements. Elements that were copied get the gradients of their copies as well. Raise
    ValueError for an unknown mode, a width below 0, the wrong number of axes, and an axis of length 0 with nothing to
    copy.
    """

    modes: ClassVar[dict[str, str]] = {"zero": "constant", "reflect": "reflect", "replicate": "edge"}
    name = "Pad"

    def __init__(self, widths: Any, mode: str = "zero") -> None:
        super().__init__(widths, mode)
        if not isinstance(self.widths, int) and not (
            self.widths and all(isinstance(pair, tuple) and len(pair) == 2 for pair in self.widths)
        ):
            raise ValueError(
                f"Pad takes an integer, or a pair for each axis from 2 on, ((top, bottom), (left, right)), got {widths}"
            )

    @property
    def required_input_shape(self) -> Any:
        return (None, None, ...) if isinstance(self.widths, int) else (None,) * (2 + len(self.widths))

    def pairs(self, ndim: int) -> Pairs:
        widths = self.widths
        axis_pairs = ((widths, widths),) * (ndim - 2) if isinstance(widths, int) else widths
        return ((0, 0), (0, 0), *axis_pairs)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        self.check_input_shape(shape)
        return super().output_shape(shape)

    def __repr__(self) -> str:
        return f"Pad({self.widths}{'' if self.mode == 'zero' else f', {self.mode!r}'})"


def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: float = 0.0) -> Tensor:
    """Return x with extra elements before and after it along axes, like `numpy.pad`.

    `pad_width` is an integer, a pair (before, after), a pair for each axis, or a dict of axes with integers or pairs.
    The new elements are

    - "constant": `constant_values`, a number,
    - "reflect": the mirror image of x, without the element at the edge: 3 2 | 1 2 3 | 2 1,
    - "edge": the element at the edge: 1 1 | 1 2 3 | 3 3.

    Raise ValueError for an unknown mode, a width below 0, widths that do not fit the axes, and an axis of length 0 with
    nothing to copy.
    """
    x = as_tensor(x)
    if isinstance(pad_width, Mapping):
        widths, pad_width = pad_width, [(0, 0)] * x.ndim
        for axis, width in widths.items():
            pad_width[normalize_axes(axis, x.ndim)[0]] = width if isinstance(width, list | tuple) else (width, width)
    return PadAxes(pad_width, mode, constant_values).apply_once(x)
