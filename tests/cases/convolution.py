"""Convolutions, tap by tap."""

import math
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family


class Geometry(NamedTuple):
    """A convolution: channels and kernel, images of some size, each a number or one for every axis."""

    n: int
    channels: tuple[int, int]  # of a group, from and to
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    bias: bool = True
    images: tuple[int, ...] | None = None  # the size of a transposed convolution's y, if its padding is a word

    @property
    def axes(self):
        return len(self.size)

    def pads(self):
        """Before and behind, along each axis."""
        along = zip(self.images or self.size, self.kernel, self.stride, self.dilation, strict=False)
        if self.padding == "causal":
            return [(d * (k - 1), 0) for _, k, _, d in along]
        if self.padding == "same":  # so many that there are n / s windows, rounded up
            whole = [max((math.ceil(n / s) - 1) * s + d * (k - 1) + 1 - n, 0) for n, k, s, d in along]
            return [(p // 2, p - p // 2) for p in whole]
        return [(p, p) for p in self.padding[: self.axes]]

    def taps(self, positions):
        """Each tap's place in the window, and the padded pixels that it covers at so many positions."""
        for tap in np.ndindex(*self.kernel):
            starts = [k * d for k, d in zip(tap, self.dilation, strict=False)]
            yield (
                tap,
                tuple(
                    [slice(a, a + s * (n - 1) + 1, s) for a, s, n in zip(starts, self.stride, positions, strict=False)]
                ),
            )

    def crop(self, padded):
        """Return the pixels between the pads."""
        return padded[(..., *[slice(p, n - q) for (p, q), n in zip(self.pads(), padded.shape[2:], strict=True)])]


def split_groups(x, groups, axis=1):
    """Return the channels of each group on an axis of their own."""
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])


def forward(g, x, w, positions):
    """y of x (n, C, …) and w (O, C / groups, …)."""
    padded = split_groups(np.pad(x, [(0, 0), (0, 0), *g.pads()]), g.groups)
    w = split_groups(w, g.groups, 0)
    y = np.zeros((len(x), g.groups, w.shape[1], *positions))
    for tap, pixels in g.taps(positions):
        y += np.einsum("ngc...,goc->ngo...", padded[(..., *pixels)], w[(..., *tap)])
    return y.reshape(len(x), w.shape[0] * w.shape[1], *positions)


def backward(g, y, w, size):
    """Return what y, spread over the windows' pixels, gives each pixel of images of this size."""
    w, grouped_y = split_groups(w, g.groups, 0), split_groups(y, g.groups)
    sizes = [n + sum(pads) for n, pads in zip(size, g.pads(), strict=True)]
    padded = np.zeros((len(y), g.groups, w.shape[2], *sizes))
    for tap, pixels in g.taps(y.shape[2:]):
        padded[(..., *pixels)] += np.einsum("ngo...,goc->ngc...", grouped_y, w[(..., *tap)])
    return g.crop(padded.reshape(len(y), w.shape[0] * w.shape[2], *sizes))


def weight_grad(g, x, y, shape):
    """How x and y meet at each tap, for weights of this shape."""
    padded, y = split_groups(np.pad(x, [(0, 0), (0, 0), *g.pads()]), g.groups), split_groups(y, g.groups)
    dw = np.zeros((g.groups, shape[0] // g.groups, *shape[1:]))
    for tap, pixels in g.taps(y.shape[3:]):
        covered = padded[(..., *pixels)]
        dw[(..., *tap)] = np.einsum(
            "ngcp,ngop->goc", *[a.reshape(*a.shape[:3], math.prod(a.shape[3:])) for a in (covered, y)]
        )
    return dw.reshape(shape)


def layer(*geometry):
    g = Geometry(*geometry)
    channels, out_channels = (g.groups * c for c in g.channels)
    make = functions.Conv1d if g.axes == 1 else functions.Conv2d
    padding = g.padding if isinstance(g.padding, str) else g.padding[: g.axes]

    def judge(x, w, b=None):
        positions = [
            (n + sum(pads) - d * (k - 1) - 1) // s + 1
            for n, pads, k, s, d in zip(g.size, g.pads(), g.kernel, g.stride, g.dilation, strict=False)
        ]
        y = forward(g, x, w, positions)
        axes = (0, *range(2, x.ndim))

        def gradients(dy):
            dx, dw = backward(g, dy, w, g.size), weight_grad(g, x, dy, w.shape)
            return (dx, dw) if b is None else (dx, dw, dy.sum(axes))

        return (y if b is None else y + b.reshape(-1, *[1] * g.axes)), gradients

    def pytorch(torch, x, w, b=None):
        convolution = torch.nn.functional.conv1d if g.axes == 1 else torch.nn.functional.conv2d
        padded = torch.nn.functional.pad(x, [p for pads in reversed(g.pads()) for p in pads])
        return convolution(padded, w, b, g.stride[: g.axes], 0, g.dilation[: g.axes], g.groups)

    return Case(
        lambda: make(
            channels,
            out_channels,
            g.kernel,
            g.stride[: g.axes],
            padding,
            g.dilation[: g.axes],
            g.groups,
            g.bias,
        ),
        ((g.n, channels, *g.size),),
        judge,
        pytorch,
        scale=3.0,
    )


def transposed_layer(*geometry):
    *geometry, more = geometry
    g = Geometry(*geometry)
    channels, out_channels = (g.groups * c for c in g.channels)
    is_same = g.padding == "same"
    if is_same:
        size = [n * s for n, s in zip(g.size, g.stride, strict=True)]
        g = g._replace(images=tuple(size))
    else:
        size = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1 + m
            for n, k, s, p, d, m in zip(g.size, g.kernel, g.stride, g.padding, g.dilation, more, strict=True)
        ]
    axes = (0, *range(2, 2 + g.axes))
    make = functions.ConvTranspose1d if g.axes == 1 else functions.ConvTranspose2d

    def judge(x, w, b=None):
        y = backward(g, x, w, size)

        def gradients(dy):
            dx, dw = forward(g, dy, w, g.size), weight_grad(g, dy, x, w.shape)
            return (dx, dw) if b is None else (dx, dw, dy.sum(axes))

        return (y if b is None else y + b.reshape(-1, *[1] * g.axes)), gradients

    def pytorch(torch, x, w, b=None):
        convolution = torch.nn.functional.conv_transpose1d if g.axes == 1 else torch.nn.functional.conv_transpose2d
        if not is_same:
            return convolution(x, w, b, g.stride, g.padding, more, g.groups, g.dilation)
        extents = [d * (k - 1) + 1 for d, k in zip(g.dilation, g.kernel, strict=True)]
        short = [max(s - extent, 0) for s, extent in zip(g.stride, extents, strict=True)]
        y = convolution(x, w, None, g.stride, 0, 0, g.groups, g.dilation)
        y = torch.nn.functional.pad(y, [n for m in reversed(short) for n in (0, m)])
        return g.crop(y) if b is None else g.crop(y) + b.reshape(-1, *[1] * g.axes)

    return Case(
        lambda: make(channels, out_channels, g.kernel, g.stride, g.padding, more, g.groups, g.bias, g.dilation),
        ((g.n, channels, *g.size),),
        judge,
        pytorch,
        scale=3.0,
    )


@st.composite
def geometries(draw, axes, transposed=False):
    """Any that has a y: windows and images down to one pixel, up to 70 channels, strides, pads, dilations, groups."""
    pairs = st.tuples(*[st.integers(1, 3)] * axes)
    kernel = draw(st.tuples(*[st.integers(1, 4)] * axes))
    stride, dilation = draw(pairs), draw(pairs)
    size = draw(st.tuples(*[st.integers(1, 8)] * axes))
    groups = draw(st.integers(1, 3))
    few, many = st.integers(1, 5), st.integers(1, 70 // groups)
    channels = draw(
        st.sampled_from([(few, few), (few, few), (many, few), (few, many)]).flatmap(lambda c: st.tuples(*c))
    )
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    n, bias = draw(st.integers(1, 3) | st.integers(1, 35)), draw(st.booleans())
    if transposed and draw(st.booleans()):
        return (n, channels, size, kernel, stride, "same", dilation, groups, bias, (0,) * axes)
    if transposed:
        most = [(m - 1) * s + e for m, s, e in zip(size, stride, extents, strict=True)]
        padding = tuple([draw(st.integers(0, (m - 1) // 2)) for m in most])
        more = tuple([draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)])
        return (n, channels, size, kernel, stride, padding, dilation, groups, bias, more)
    if draw(st.booleans()):
        word = draw(st.sampled_from(["same", "causal"])) if axes == 1 else "same"
        return (n, channels, size, kernel, stride, word, dilation, groups, bias)
    padding = tuple([draw(st.integers(max(0, -((m - e) // 2)), 4 + e)) for m, e in zip(size, extents, strict=True)])
    return (n, channels, size, kernel, stride, padding, dilation, groups, bias)


def with_zero(g):
    """Images one of whose pixels is infinite, and one NaN: outputs that see neither stay numbers."""
    x = np.ones((1, 1, *[5] * g), np.float64)
    x.reshape(-1)[[0, -1]] = np.inf, np.nan
    return [x]


CASES = [
    Family(
        layer,
        listed=[
            (2, (1, 1), (1,), (1,), (1,)),
            (3, (2, 3), (9,), (3,), (2,), (1,)),
            (17, (3, 40), (6,), (3,), (1,), "same", (2,), 1, False),
            (2, (1, 2), (5,), (2,), (1,), "same", (1,), 3),
            (2, (2, 3), (7,), (4,), (3,), "same", (2,)),
            (2, (3, 2), (8,), (1,), (3,), "same"),
            (3, (2, 3), (6,), (3,), (1,), "causal", (2,)),
            (2, (17, 20), (9,), (3,), (1,), "causal"),
            (2, (33, 2), (8,), (4,), (3,), "causal"),
        ],
        empty=[(0, (2, 3), (5,), (3,), (1,)), (0, (20, 17), (5,), (3,), (1,))],
        random=geometries(1),
        special=lambda dtype: [((1, (1, 1), (5,), (3,), (1,), (0,)), with_zero(1))],
    ),
    Family(
        layer,
        listed=[
            (2, (1, 1), (1, 1), (1, 1), (1, 1)),
            (3, (2, 3), (5, 4), (3, 2), (1, 1), (1, 1)),
            (17, (1, 6), (7, 7), (5, 5), (1, 1), (2, 2)),
            (17, (6, 16), (6, 6), (5, 5), (1, 1)),
            (5, (3, 40), (6, 7), (3, 3), (2, 1), (1, 1), (1, 2)),
            (18, (33, 5), (4, 4), (3, 3), (1, 1), (1, 1)),
            (2, (40, 40), (3, 3), (1, 1), (1, 1)),
            (2, (33, 2), (4, 5), (2, 3), (1, 1), "same", (1, 2), 2, False),
            (2, (2, 3), (7, 8), (3, 4), (2, 3), "same", (1, 2)),
            (3, (40, 33), (8, 5), (3, 3), (2, 2), "same"),
            (2, (1, 1), (5, 6), (3, 3), (2, 1), "same", (1, 1), 40),
            (16, (1, 1), (6, 5), (3, 3), (2, 2), (1, 1), (1, 1), 4),
            (2, (2, 3), (3, 3), (2, 2), (1, 1), (5, 4), (3, 2)),
            (1, (1, 1), (9, 9), (9, 9), (1, 1), (4, 4)),
            (1, (2, 2), (1, 70), (1, 70), (1, 1), (0, 1)),
        ],
        empty=[(0, (2, 3), (5, 5), (3, 3), (1, 1)), (0, (2, 33), (5, 5), (3, 3), (1, 1))],
        random=geometries(2),
        special=lambda dtype: [((1, (1, 1), (5, 5), (3, 3), (1, 1), (0, 0)), with_zero(2))],
    ),
    Family(
        transposed_layer,
        listed=[
            (2, (1, 1), (1, 1), (1, 1), (1, 1), (0, 0), (1, 1), 1, True, (0, 0)),
            (3, (2, 3), (3, 4), (3, 2), (2, 2), (1, 0), (1, 1), 1, True, (1, 0)),
            (17, (16, 3), (4, 4), (4, 4), (2, 2), (1, 1), (1, 1), 1, False, (0, 0)),
            (17, (40, 4), (4, 4), (3, 3), (2, 1), (1, 1), (1, 2), 1, True, (1, 1)),
            (2, (2, 1), (3, 3), (2, 3), (3, 3), (0, 0), (2, 1), 3, True, (2, 2)),
            (2, (2, 3), (3, 4), (3, 2), (2, 3), "same", (1, 1), 1, True, (0, 0)),
        ],
        empty=[(0, (2, 3), (3, 3), (3, 3), (2, 2), (0, 0), (1, 1), 1, True, (0, 0))],
        random=geometries(2, transposed=True),
    ),
    Family(
        transposed_layer,
        listed=[
            (2, (1, 1), (1,), (1,), (1,), (0,), (1,), 1, True, (0,)),
            (3, (2, 3), (4,), (3,), (2,), (1,), (1,), 1, True, (1,)),
            (2, (40, 33), (5,), (4,), (2,), (0,), (2,), 1, False, (0,)),
            (2, (17, 20), (6,), (3,), (1,), (1,), (1,), 1, True, (0,)),
            (2, (2, 1), (3,), (2,), (3,), (0,), (1,), 3, True, (2,)),
            (3, (2, 3), (4,), (3,), (2,), "same", (1,), 1, True, (0,)),
            (2, (17, 5), (5,), (7,), (2,), "same", (2,), 1, False, (0,)),
            (2, (1, 2), (3,), (2,), (4,), "same", (1,), 2, True, (0,)),
        ],
        empty=[(0, (2, 3), (3,), (3,), (2,), (0,), (1,), 1, True, (0,))],
        random=geometries(1, transposed=True),
    ),
]
