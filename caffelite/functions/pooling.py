"""Pooling and upsampling of images (n, C, H, W) and series (n, C, L).

Kernels take windows as pairs, for rows and columns, and treat a series as an image of height 1.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.reprs import as_code, repr_with_arguments
from caffelite.core.arrays import check_bool, check_integers, normalize_axes, reshape_array
from caffelite.core.function import Function, Shape, format_shape

__all__ = ["AvgPool1d", "AvgPool2d", "GlobalAvgPool", "GlobalMaxPool", "MaxPool1d", "MaxPool2d", "Upsample"]

Window = tuple[int, ...]  # a length along rows and one along columns


class Pool(Function):
    """The base of all pools: in each channel, each window of an image or a series becomes one number."""

    ceil = False  # whether the last window may extend beyond the pads

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        self.kernel_size = check_integers(f"{type(self).__name__}: kernel_size", kernel_size, len(self.axes))
        self.stride = self.kernel_size
        if stride is not None:
            self.stride = check_integers(f"{type(self).__name__}: stride", stride, len(self.axes))
        self.padding = check_integers(f"{type(self).__name__}: padding", padding, len(self.axes), 0)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            raise ValueError(f"{self!r}: padding must be at most half of kernel_size")

    @property
    @abstractmethod
    def axes(self) -> str:
        """The axes of x after n and C."""

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if len(shape) != 2 + len(self.axes) or 0 in shape[2:]:
            raise ValueError(
                f"{self!r} got shape {format_shape(shape)}; expected (n, C, {', '.join(self.axes)}). Only n, C may be 0"
            )
        counts = [self._positions(n, axis) for axis, n in enumerate(shape[2:])]
        if any(count is not None and count < 1 for count in counts):
            raise ValueError(f"{self!r} got shape {format_shape(shape)}: its windows are larger than the padded images")
        return (*shape[:2], *counts)

    def _positions(self, length: int | None, axis: int) -> int | None:
        """Return the number of windows along an axis of this length."""
        if length is None:
            return None
        stride, padding = self.stride[axis], self.padding[axis]
        span = length + 2 * padding - self.kernel_size[axis]
        if not self.ceil:
            return span // stride + 1
        last = -(-span // stride)
        return last if last * stride >= length + padding else last + 1  # it must start before the pads

    def windows(self) -> tuple[Window, Window, Window]:
        """Return the kernel size, stride and padding for rows and columns, as kernels take them."""
        if len(self.axes) == 2:
            return self.kernel_size, self.stride, self.padding
        return (1, *self.kernel_size), (1, *self.stride), (0, *self.padding)

    def __repr__(self) -> str:
        stride = None if self.stride == self.kernel_size else self.stride
        ceil = {"ceil": True} if self.ceil else {}
        return as_code(self, self.kernel_size, stride=stride, padding=self.padding, **ceil)


class MaxPool(Pool, recordable=True, rowwise=True):
    """y = the largest element of each window; see `Pool`."""

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil: bool = False) -> None:
        super().__init__(kernel_size, stride, padding)
        self.ceil = check_bool(f"{type(self).__name__}: ceil", ceil)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.output_shape(x.shape)
        y, self.indices = kernels.max_pool(x, *self.windows(), self.ceil)
        self.x = x
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.max_pool_grad(dy, self.indices, self.x, *self.windows(), self.ceil)


class MaxPool1d(MaxPool, recordable=True, rowwise=True):
    """Max pooling: y[i] = the largest element of window i of x, by channel; NaN if it contains one. x (n, C, L).

    dx = Σ dy over the windows in which the element is the largest: the first one in a tie, or the first NaN. Pads are
    never the largest. The windows have `kernel_size` elements and start `stride` elements apart (by default side by
    side), the first one `padding` elements before x. No window extends beyond the pads after x:

        length of y = ⌊(length of x + 2 padding − kernel_size) / stride⌋ + 1

    With `ceil`, the quotient is rounded up: the last window may extend beyond the pads if it starts before them. y and
    dx have x's memory order. Raise ValueError if a window is larger than x with its pads, and if `padding` is more than
    half a window.
    """

    axes = "L"


class MaxPool2d(MaxPool, recordable=True, rowwise=True):
    """Max pooling: y[i, j] = the largest element of a window of x, by channel; NaN if it contains one. x (n, C, H, W).

    Like `MaxPool1d`, but along rows and columns: `kernel_size`, `stride` and `padding` are integers, or pairs for rows
    and columns. In a tie, the first element row by row counts as the largest.
    """

    axes = "HW"


class AvgPool(Pool, recordable=True, rowwise=True):
    """y = the mean of each window; see `Pool`."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.output_shape(x.shape)
        self.x = x
        return kernels.average_pool(x, *self.windows())

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.average_pool_grad(dy, self.x, *self.windows())


class AvgPool1d(AvgPool, recordable=True, rowwise=True):
    """Average pooling: y[i] = the mean of window i of x, channel by channel; pads count as zeros. x (n, C, L).

    dx = Σ dy / kernel_size over the windows that an element is in. The windows are as in `MaxPool1d`.
    """

    axes = "L"


class AvgPool2d(AvgPool, recordable=True, rowwise=True):
    """Average pooling: y[i, j] = the mean of a window of x, channel by channel; pads count as zeros. x (n, C, H, W).

    dx = Σ dy / (elements of a window) over the windows that an element is in. The windows are as in `MaxPool2d`.
    """

    axes = "HW"


class GlobalPool(Function):
    """The base of the global pools: all elements along some axes become one number."""

    keepdims = False

    def __init__(self, axis: int | tuple[int, ...] | None = None) -> None:
        if axis is not None:
            name = f"{type(self).__name__}: axis"
            axes = check_integers(name, axis, len(axis) if isinstance(axis, tuple | list) else 1, -64)
            if 0 in axes:
                raise ValueError(f"{name} 0 has the rows, which are not pooled; got {axis!r}")
            axis = axes if isinstance(axis, tuple | list) else axes[0]
        self.axis = axis

    def axes(self, ndim: int) -> tuple[int, ...]:
        """Return the axes to pool: by default all axes after the channels."""
        return tuple(range(2, ndim)) if self.axis is None else normalize_axes(self.axis, ndim)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        expected = "(n, C, …) with an axis of places or more" if self.axis is None else f"(n, …) with axis {self.axis}"
        try:
            axes = self.axes(len(shape))
        except ValueError:
            axes = ()
        if not axes or 0 in axes or any(shape[i] == 0 for i in axes):
            raise ValueError(
                f"{self!r} got shape {format_shape(shape)}; expected {expected}, none of length 0 but n and C"
            )
        return tuple([n for i, n in enumerate(shape) if i not in axes])

    def _keep(self, x: np.ndarray) -> Any:
        """Keep x, with all positions on one axis after the channels. Return the shape of y."""
        y_shape: Any = self.output_shape(x.shape)
        axes = self.axes(x.ndim)
        self.order = (*[i for i in range(x.ndim) if i not in axes], *axes)
        x = x.transpose(self.order)
        self.shape = x.shape
        self.x = reshape_array(x, (y_shape[0], math.prod(y_shape[1:]), math.prod(x.shape[len(y_shape) :])))
        return y_shape

    def _as_pooled(self, dy: np.ndarray) -> np.ndarray:
        """Return dy as the gradient of what the kernel returned."""
        return dy.reshape(*self.x.shape[:2], 1)

    def _restore(self, dx: np.ndarray) -> np.ndarray:
        """Return dx, which has the shape that `_keep` gave x, in the shape of x."""
        return dx.reshape(self.shape).transpose(np.argsort(self.order))

    def windows(self) -> tuple[Window, Window, Window]:
        """Return the kernel size, stride and padding of the one window."""
        return (1, self.x.shape[2]), (1, 1), (0, 0)

    __repr__ = repr_with_arguments


class GlobalAvgPool(GlobalPool, recordable=True, rowwise=True):
    """Global average pooling: y (n, C) = the mean of each channel's elements in x (n, C, …). dx = dy / their number.

    `axis`, an integer or a tuple, chooses other axes to average over: `GlobalAvgPool(axis=1)` takes sequences (n,
    length, features), such as those from an Embedding, and y is (n, features).

    Raise ValueError if x has no positions, (n, C), or its channels have no elements.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        y_shape = self._keep(x)
        return kernels.average_pool(self.x, *self.windows()).reshape(y_shape)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return self._restore(kernels.average_pool_grad(self._as_pooled(dy), self.x, *self.windows()))


class GlobalMaxPool(GlobalPool, recordable=True, rowwise=True):
    """Global max pooling: y (n, C) = the largest element of each channel in x (n, C, …); NaN if it contains one.

    dx = dy where the element is the largest (the first one in a tie, or the first NaN), and 0 elsewhere. `axis` and
    errors are as in `GlobalAvgPool`.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        y_shape = self._keep(x)
        y, self.indices = kernels.max_pool(self.x, *self.windows())
        return y.reshape(y_shape)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return self._restore(kernels.max_pool_grad(self._as_pooled(dy), self.indices, self.x, *self.windows()))


class Upsample(Function, recordable=True, rowwise=True):
    """Repeats each element in a block: y[i, j] = x[⌊i / scale⌋, ⌊j / scale⌋]. dx = Σ dy over the block.

    x (n, C, H, W), or (n, C, L); `scale` is an integer or, for images, a pair for rows and columns. y and dx have x's
    memory order. Raise ValueError if x has other axes, or if y would not fit into any memory.
    """

    def __init__(self, scale: Any) -> None:
        self.scale = check_integers("Upsample: scale", scale, 2)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if len(shape) != 4 and not (len(shape) == 3 and self.scale[0] == self.scale[1]):
            raise ValueError(
                f"{self!r} got shape {format_shape(shape)}; expected (n, C, H, W), or with one scale (n, C, L)"
            )
        y = (*shape[:2], *[None if n is None else n * s for n, s in zip(shape[2:], self.scale, strict=False)])
        if math.prod(n for n in y if n is not None) > sys.maxsize // 8:
            raise ValueError(
                f"{self!r} got shape {format_shape(shape)}; there is no memory for an array of shape {format_shape(y)}"
            )
        return y

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.output_shape(x.shape)
        self.x = x
        return kernels.upsample(x, self.scale if x.ndim == 4 else (1, self.scale[1]))

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.upsample_grad(dy, self.x, self.scale if dy.ndim == 4 else (1, self.scale[1]))

    __repr__ = repr_with_arguments
