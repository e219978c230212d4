"""Convolutions of images and series."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.reprs import as_code, repr_with_arguments
from caffelite.core.arrays import check_integers, check_positive_integer
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.initializers import Initializer, check_initializer, initialize
from caffelite.core.tensor import make_parameter

__all__ = ["Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d"]

Integers = int | Sequence[int]


class Convolution(Function, recordable=True):
    """The base of convolutions: a window that moves over images, its weights, and the shapes it accepts.

    `Conv2d` and `ConvTranspose2d` create the parameters, count the positions of the window, and compute.
    """

    axes = 2
    is_transposed = False  # from the positions of the window to the pixels, instead of from pixels to positions
    axis_names: tuple[str, ...] = ("n", "C", "H", "W")
    padding: tuple[int, ...] | str  # a word if the number of pads depends on the size of x

    def _set_up(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Integers,
        stride: Integers,
        dilation: Integers,
        groups: int,
        initializer: Initializer | None,
    ) -> None:
        name = type(self).__name__
        self.in_channels = check_positive_integer(f"{name}: in_channels", in_channels)
        self.out_channels = check_positive_integer(f"{name}: out_channels", out_channels)
        self.groups = check_positive_integer(f"{name}: groups", groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{name}: {in_channels} and {out_channels} channels can't be divided into {groups} groups")
        self.kernel_size = self._numbers("kernel_size", kernel_size)
        self.stride = self._numbers("stride", stride)
        self.dilation = self._numbers("dilation", dilation)
        self.initializer = check_initializer(name, initializer)

    def _numbers(self, what: str, value: Any, least: int = 1) -> tuple[int, ...]:
        """Return one number for each axis."""
        return check_integers(f"{type(self).__name__}: {what}", value, self.axes, least, max_value=2**31 - 1)

    def _set_parameters(self, shape: tuple[int, ...], bias: bool) -> None:
        try:
            self.weight = make_parameter("weight", shape)
        except (MemoryError, ValueError):
            raise ValueError(f"{type(self).__name__}: there is no memory for weights of shape {shape}") from None
        self.bias = make_parameter("bias", self.out_channels) if bias else None
        self._set_initial_values()

    def initialize(self, rng: Any) -> None:
        initialize(self.weight, self.bias, self.initializer, rng)

    @property
    def required_input_shape(self) -> Any:
        return (None, self.in_channels, None, None)[: 2 + self.axes]

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        self.check_input_shape(shape)
        return self._output_shape(shape)

    def _output_shape(self, shape: Shape) -> Shape:
        return (shape[0], self.out_channels, *[self._positions(shape, axis) for axis in range(self.axes)])

    @abstractmethod
    def _positions(self, shape: Shape, axis: int) -> int | None:
        """Return the length of an axis of y for x of this shape; None if the length in x is not known."""

    def _extent(self, axis: int) -> int:
        """Return how many pixels the window spans."""
        return self.dilation[axis] * (self.kernel_size[axis] - 1) + 1

    @abstractmethod
    def pads_before(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return the number of zeros before each axis of the convolution's input, if its axes have these lengths."""

    def _window(self) -> dict[str, Any]:
        """Return how the window moves, in the form that kernels take."""
        return {"stride": self.stride, "padding": self.pads, "dilation": self.dilation, "groups": self.groups}

    def _prepare(self, x: np.ndarray) -> None:
        """Keep x, in the memory order in which the kernels read it, W, the pads, and the shapes of x and y."""
        x = self.check_input(x, self.weight)
        self.x_shape, self.y_shape, self.W = x.shape, self._output_shape(x.shape), self.weight.data
        self.pads = self.pads_before(x.shape[2:])
        self.x = kernels.to_conv_layout(x, self.W, self.groups)

    def _prepare_gradient(self, dy: np.ndarray) -> Any:
        """Return dy in the memory order in which the kernels read it. Raise ValueError unless its shape is y's."""
        if dy.shape != self.y_shape:
            raise ValueError(f"{self!r} got a gradient of shape {dy.shape}; its output was {self.y_shape}")
        return kernels.to_conv_layout(dy, self.W, self.groups)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self._prepare(x)
        kernel = kernels.transposed_convolution if self.is_transposed else kernels.convolution
        bias = None if self.bias is None else self.bias.data
        return kernel(self.x, self.W, self.y_shape[2:], bias, **self._window())

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        dy = self._prepare_gradient(dy)
        pixels, positions = (dy, self.x) if self.is_transposed else (self.x, dy)
        self.weight.add_grad_of(kernels.convolution_weight_grad, pixels, positions, **self._window())
        if self.bias is not None:
            self.bias.add_grad_of(kernels.sum_of_channels, dy)
        if not self.wants_gradient(0):
            return None
        kernel = kernels.convolution if self.is_transposed else kernels.transposed_convolution
        return kernel(dy, self.W, self.x_shape[2:], **self._window())


class Conv2d(Convolution, recordable=True, rowwise=True):
    """A convolution of images: weighted sums of the pixels in a moving window:

        y[n, o, i, j] = b[o] + Σ x[n, c, s i + d k − p, s j + d l − p] W[o, c, k, l]  over c, k, l
        dW[o, c, k, l] = Σ x[n, c, s i + d k − p, s j + d l − p] dy[n, o, i, j]  over n, i, j,  db = Σ dy
        dx[n, c, s i + d k − p, s j + d l − p] += dy[n, o, i, j] W[o, c, k, l]  for all o, i, j, k, l

    The stride s, the dilation d and the padding p are in pixels, each one number or a pair for height and width.
    Outside, x counts as 0. (Strictly speaking, this is a cross-correlation, as everywhere in the field.) `groups`
    divides the channels into that many groups, and an output channel sees only the input channels of its own group.

    x (n, in_channels, H, W), W `weight` (out_channels, in_channels / groups, k, l), b `bias` (out_channels,),
    y (n, out_channels, H′, W′), H′ = ⌊(H + 2p − d (k − 1) − 1) / s⌋ + 1. Instead of p, `padding` may be a word:

    - "valid" is p = 0;
    - "same" makes H′ = ⌈H / s⌉. It adds as few zeros as possible: max((H′ − 1) s + d (k − 1) + 1 − H, 0), half of them
      before x and half after it. If the number is odd, the extra zero comes after x. This is TensorFlow's rule; with
      stride 1 it is PyTorch's, too.

    W and b are drawn from U(−a, a), a = 1/√(k l in_channels / groups), as in PyTorch. An `initializer`, (shape, rng) ->
    array, draws W instead, and b is 0. Raise ValueError if x has the wrong shape, if the window is larger than the
    padded x, or if `groups` does not divide the channels. Raise TypeError if x and W differ in dtype.

    V. Dumoulin and F. Visin, "A guide to convolution arithmetic for deep learning", 2016, arXiv:1603.07285, illustrates
    all of these.
    """

    paddings: tuple[str, ...] = ("valid", "same")  # words that `padding` may be

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Integers,
        stride: Integers = 1,
        padding: Integers | str = 0,
        dilation: Integers = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        initializer: Initializer | None = None,
    ) -> None:
        self._set_up(in_channels, out_channels, kernel_size, stride, dilation, groups, initializer)
        if not isinstance(padding, str):
            self.padding = self._numbers("padding", padding, least=0)
        elif padding in self.paddings:
            self.padding = (0,) * self.axes if padding == "valid" else padding
        else:
            words = ", ".join([f'"{word}"' for word in self.paddings])
            raise ValueError(f"{type(self).__name__}: padding takes integers or one of {words}, got {padding!r}")
        self._set_parameters((self.out_channels, self.in_channels // self.groups, *self.kernel_size), bias)

    def pads_before(self, lengths: Sequence[int]) -> tuple[int, ...]:
        if not isinstance(self.padding, str):
            return self.padding
        extents = [self._extent(axis) for axis in range(self.axes)]
        if self.padding == "causal":
            return tuple([extent - 1 for extent in extents])
        dimensions = zip(lengths, self.stride, extents, strict=True)
        return tuple([max((-(-n // s) - 1) * s + extent - n, 0) // 2 for n, s, extent in dimensions])

    def _positions(self, shape: Shape, axis: int) -> int | None:
        length = shape[2 + axis]
        if length is None:
            return None
        if isinstance(self.padding, str):
            return -(-length // self.stride[axis])
        padded_length, extent = length + 2 * self.padding[axis], self._extent(axis)
        if padded_length < extent:
            raise ValueError(
                f"{self!r} got shape {format_shape(shape)}: a window of {extent} pixels does not fit into {length} "
                f"and {2 * self.padding[axis]} of padding"
            )
        return (padded_length - extent) // self.stride[axis] + 1

    __repr__ = repr_with_arguments


class Conv1d(Conv2d, recordable=True, rowwise=True):
    """A convolution of series: `Conv2d` along one axis.

    x (n, in_channels, L), W `weight` (out_channels, in_channels / groups, k), y (n, out_channels, L′).

    With padding="causal", y[i] depends only on x[0] … x[s i], never on later values: d (k − 1) zeros come before x and
    none after it, and L′ = ⌈L / s⌉.

    A. van den Oord et al., "WaveNet: a generative model for raw audio", 2016, arXiv:1609.03499.
    """

    axes = 1
    axis_names = ("n", "C", "L")
    paddings = ("valid", "same", "causal")


class ConvTranspose2d(Convolution, recordable=True, rowwise=True):
    """A transposed convolution, from window positions to pixels. It enlarges images:

        y[n, o, s i + d k − p, s j + d l − p] += x[n, c, i, j] W[c, o, k, l],  plus b[o] everywhere

    x (n, in_channels, H, W), W `weight` (in_channels, out_channels / groups, k, l), y (n, out_channels, H′, W′), H′ =
    (H − 1) s − 2p + d (k − 1) + 1 + `output_padding`. (For s different image heights, a convolution has height H.
    `output_padding` chooses one of them as H′.) Instead of p, `padding` may be "same": H′ = H s, and y is computed like
    the gradient of a `Conv2d` with padding="same", which is TensorFlow's rule. The gradients are those of `Conv2d` with
    x and dy swapped.

    W and b are drawn from U(−a, a), a = 1/√(k l out_channels / groups), as in PyTorch. The arguments are in PyTorch's
    order, too. Raise ValueError if x has the wrong shape, and unless `output_padding` is less than stride or dilation
    (and 0 with "same").

    M. Zeiler, D. Krishnan, G. Taylor and R. Fergus, "Deconvolutional networks", CVPR 2010.
    """

    is_transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Integers,
        stride: Integers = 1,
        padding: Integers | str = 0,
        output_padding: Integers = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Integers = 1,
        *,
        initializer: Initializer | None = None,
    ) -> None:
        self._set_up(in_channels, out_channels, kernel_size, stride, dilation, groups, initializer)
        is_same = isinstance(padding, str) and padding == "same"
        self.padding = "same" if is_same else self._numbers("padding", padding, least=0)
        self.output_padding = self._numbers("output_padding", output_padding, least=0)
        for extra, s, d in zip(self.output_padding, self.stride, self.dilation, strict=True):
            if extra >= max(s, d):
                raise ValueError(
                    f"{type(self).__name__}: output_padding must be less than stride or dilation, got "
                    f"{output_padding}, stride {stride}, dilation {dilation}"
                )
        if is_same and any(self.output_padding):
            raise ValueError(f'{type(self).__name__}: padding="same" takes no output_padding, got {output_padding}')
        self._set_parameters((self.in_channels, self.out_channels // self.groups, *self.kernel_size), bias)

    def crops(self) -> list[tuple[int, int]]:
        """Return how many pixels are cut off at the start and end of each axis. Negative numbers add some."""
        if not isinstance(self.padding, str):
            return [(p, p - extra) for p, extra in zip(self.padding, self.output_padding, strict=True)]
        totals = [self._extent(axis) - s for axis, s in enumerate(self.stride)]
        return [(max(total, 0) // 2, total - max(total, 0) // 2) for total in totals]

    def pads_before(self, lengths: Sequence[int]) -> tuple[int, ...]:
        return tuple([before for before, _ in self.crops()])

    def _positions(self, shape: Shape, axis: int) -> int | None:
        length = shape[2 + axis]
        if length is None:
            return None
        y = (length - 1) * self.stride[axis] + self._extent(axis) - sum(self.crops()[axis])
        if y < 1:
            raise ValueError(f"{self!r} got shape {format_shape(shape)}: padding leaves no pixel of the output")
        return y

    def __repr__(self) -> str:
        names = ("stride", "padding", "dilation", "groups", "initializer", "output_padding")
        options = {"bias": self.bias is not None, **{name: getattr(self, name) for name in names}}
        return as_code(self, self.in_channels, self.out_channels, self.kernel_size, **options)


class ConvTranspose1d(ConvTranspose2d, recordable=True, rowwise=True):
    """A transposed convolution of series, which lengthens them: `ConvTranspose2d` along one axis.

    x (n, in_channels, L), W `weight` (in_channels, out_channels / groups, k), y (n, out_channels, L′).
    """

    axes = 1
    axis_names = ("n", "C", "L")
