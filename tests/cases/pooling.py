"""Pools, window by window, and upsampling."""

import math

import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family


def windows_along(n, kernel, stride, padding, ceil):
    """How many windows begin inside x or before it and end with the pads or, with `ceil`, less than a stride later."""
    most = n + padding + (stride - 1 if ceil else 0)
    return len([start for start in range(-padding, n, stride) if start + kernel <= most])


def pool_windows(x, kernel, stride, padding, place, slope, ceil=False):
    """y = Σ slope x of each window, with a `slope` of the window's elements that `place` gives, pads left out.

    x is (n, C, H, W), or (n, C, L), whose windows have one number each.
    """
    images = x if x.ndim == 4 else x[:, :, np.newaxis]
    kernel, stride, padding = ((1,) * (2 - len(a)) + a for a in (kernel, stride, (0,) * (2 - len(padding)) + padding))
    along = zip(images.shape[2:], kernel, stride, padding, strict=True)
    lengths = [windows_along(n, k, s, p, ceil) for n, k, s, p in along]
    y, spread = np.zeros((*images.shape[:2], *lengths)), []
    for at in np.ndindex(*y.shape):
        starts = [i * s - p for i, s, p in zip(at[2:], stride, padding, strict=True)]
        window = (*at[:2], *[slice(max(a, 0), a + k) for a, k in zip(starts, kernel, strict=True)])
        taken, share = place(images[window]), slope(kernel)
        y[at] = (taken * images[window])[taken].sum() * share
        spread.append((at, window, taken * share))

    def backward(dy):
        dx, dy = np.zeros(images.shape), dy.reshape(y.shape)
        for at, window, slopes in spread:
            dx[window] += np.where(slopes > 0, slopes * dy[at], 0)
        return (dx.reshape(x.shape),)

    return y.reshape(*x.shape[:2], *lengths[4 - x.ndim :]), backward


def first_largest(window):
    taken = np.zeros(window.shape, bool)
    taken[np.unravel_index(window.argmax(), window.shape)] = True
    return taken


def largest(x, kernel, stride, padding, ceil=False):
    return pool_windows(x, kernel, stride, padding, first_largest, lambda kernel: 1.0, ceil)


def mean(x, kernel, stride, padding):
    return pool_windows(
        x, kernel, stride, padding, lambda window: np.ones(window.shape, bool), lambda k: 1 / math.prod(k)
    )


@st.composite
def small_shape(draw, axes):
    """Few elements, for each has its difference quotient: 0 rows or more, 1 to 70 channels, lengths from 1."""
    shape, rest = [draw(st.integers(0, 9)), draw(st.integers(1, 70) | st.integers(1, 4))], 400
    for _ in range(axes):
        rest //= max(shape[-1], shape[0] if len(shape) == 2 else 1)
        shape.append(draw(st.integers(1, max(1, min(9, rest)))))
    return tuple(shape)


@st.composite
def geometry(draw, axes, may_ceil):
    shape = draw(small_shape(axes))
    kernel, stride = (draw(st.tuples(*[st.integers(1, 5)] * axes)) for _ in range(2))
    ceil = may_ceil and draw(st.booleans())
    # How much longer than the axis with its pads a window may be.
    longer = [s - 1 if ceil else 0 for s in stride]
    along = zip(shape[2:], kernel, longer, strict=True)
    padding = tuple([draw(st.integers(max(0, k - n - more + 1) // 2, k // 2)) for n, k, more in along])
    return (shape, kernel, stride, padding, ceil) if may_ceil else (shape, kernel, stride, padding)


def pool(function, axes, judge, pytorch, may_ceil=False):
    def build(shape, kernel, stride=None, padding=None, ceil=False):
        stride, padding = stride or kernel, padding or (0,) * axes
        windows = kernel, stride, padding
        options = {"ceil": True} if ceil else {}
        return Case(
            lambda: function(*[a[0] if axes == 1 else a for a in windows], **options),
            (shape,),
            lambda x: judge(x, *windows, **options),
            lambda torch, x: getattr(torch.nn.functional, pytorch)(x, *windows, ceil_mode=ceil),
        )

    inf, nan = np.inf, np.nan
    series = [[1, nan, 2, nan], [-inf, -inf, -inf, -inf], [inf, -inf, 0, inf], [3, 3, 3, 3], [-0.0, 0.0, nan, inf]]
    special = np.array(series)[np.newaxis]
    if axes == 1:
        listed = [((2, 3, 8), (2,)), ((3, 1, 7), (3,), (2,), (1,)), ((1, 2, 5), (2,), (3,)), ((1, 1, 1), (1,))]
        empty = [((0, 3, 8), (2,))]
        at_special = [((special.shape, (2,)), [special]), ((special.shape, (3,), (1,), (1,)), [special])]
    else:
        listed = [
            *[((2, 3, 4, 6), (2, 2)), ((3, 17, 5, 5), (3, 3), (2, 2), (1, 1)), ((1, 1, 1, 1), (1, 1))],
            *[((17, 1, 4, 5), (2, 3), (1, 1)), ((2, 2, 7, 4), (2, 1), (3, 2)), ((1, 2, 1, 3), (4, 2), (5, 1), (2, 1))],
        ]
        empty = [((0, 3, 4, 4), (2, 2)), ((0, 1, 1, 1), (2, 2), (1, 1), (1, 1))]
        images = special.reshape(1, 5, 2, 2)
        at_special = [((images.shape, (2, 2)), [images]), ((images.shape, (2, 2), (1, 1), (1, 1)), [images])]
    if may_ceil and axes == 1:
        listed += [((2, 3, 8), (3,), (2,), (0,), True), ((1, 2, 2), (4,), (3,), (0,), True)]
        listed += [((1, 2, 5), (3,), (4,), (1,), True), ((3, 2, 6), (2,), (3,), (1,), True)]
    elif may_ceil:
        listed += [((2, 3, 4, 6), (3, 2), (2, 3), (1, 0), True), ((17, 2, 7, 5), (3, 3), (2, 2), (0, 1), True)]
    return Family(
        build,
        listed=listed,
        empty=empty,
        random=geometry(axes, may_ceil),
        special=lambda dtype: at_special,
        special_gradients=lambda dtype: at_special,
    )


def along(judge):
    """Return the judge along axes: that of channels, of x whose axes are moved behind the others."""

    def judge_of_axes(x, axes):
        order = (*[i for i in range(x.ndim) if i not in axes], *axes)
        moved = x.transpose(order)
        shape = moved.shape[: x.ndim - len(axes)]
        y, backward = judge(moved.reshape(shape[0], math.prod(shape[1:]), *moved.shape[len(shape) :]))

        def backward_of_axes(dy):
            (dx,) = backward(dy.reshape(y.shape))
            return (dx.reshape(moved.shape).transpose(np.argsort(order)),)

        return y.reshape(shape), backward_of_axes

    return judge_of_axes


def global_mean(x):
    axes = tuple(range(2, x.ndim))
    count = math.prod(x.shape[2:])
    return x.mean(axes), lambda dy: (np.broadcast_to(dy.reshape(*dy.shape, *[1] * len(axes)) / count, x.shape),)


def global_largest(x):
    places = x.reshape(*x.shape[:2], -1) if x.size else np.zeros((*x.shape[:2], 1))
    first = np.arange(places.shape[2]) == places.argmax(2)[..., np.newaxis]
    return places.max(2), lambda dy: ((first * dy[..., np.newaxis])[:, :, : math.prod(x.shape[2:])].reshape(x.shape),)


def global_pool(function, judge, pytorch):
    def build(shape, axis=None):
        axes = tuple(range(2, len(shape))) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        axes = tuple([i % len(shape) for i in axes])
        judge_of_axes = judge if axis is None else lambda x: along(judge)(x, axes)
        return Case(lambda: function(axis), (shape,), judge_of_axes, lambda torch, x: getattr(x, pytorch)(axes))

    return Family(
        build,
        listed=[
            *[((2, 3, 4, 5),), ((17, 2, 9),), ((3, 20, 2, 2),), ((2, 3, 2, 1, 4),), ((3, 5, 4), 1), ((2, 1, 20), -2)],
            *[((2, 3, 4, 5), (1, 2)), ((2, 3, 4, 5), (3, 1)), ((4, 3), -1)],
        ],
        empty=[((0, 3, 4, 5),), ((0, 2, 3),), ((0, 2, 3), 1), ((3, 2, 0), 1)],
        random=st.tuples(st.integers(1, 3).flatmap(small_shape)),
        special=lambda dtype: [(((1, 3, 2),), [[[[np.nan, 1], [np.inf, 1], [np.inf, -np.inf]]]])],
    )


def repeat_pixels(x, scale):
    y = x
    for axis, times in enumerate(scale, 2):
        y = y.repeat(times, axis)

    def backward(dy):
        blocks = [length for n, times in zip(x.shape[2:], scale, strict=True) for length in (n, times)]
        return (dy.reshape(*x.shape[:2], *blocks).sum(tuple(range(3, 3 + 2 * len(scale), 2))),)

    return y, backward


def upsampling(shape, scale):
    scales = scale if isinstance(scale, tuple) else (scale,) * (len(shape) - 2)
    return Case(
        lambda: functions.Upsample(scale),
        (shape,),
        lambda x: repeat_pixels(x, scales),
        lambda torch, x: torch.nn.functional.interpolate(x, scale_factor=scales),
    )


CASES = [
    pool(functions.MaxPool1d, 1, largest, "max_pool1d", may_ceil=True),
    pool(functions.MaxPool2d, 2, largest, "max_pool2d", may_ceil=True),
    pool(functions.AvgPool1d, 1, mean, "avg_pool1d"),
    pool(functions.AvgPool2d, 2, mean, "avg_pool2d"),
    global_pool(functions.GlobalAvgPool, global_mean, "mean"),
    global_pool(functions.GlobalMaxPool, global_largest, "amax"),
    Family(
        upsampling,
        listed=[((2, 3, 4, 5), 2), ((2, 3, 4), 3), ((1, 17, 2, 3), (2, 1)), ((17, 1, 1, 2), (1, 4)), ((1, 1, 1), 1)],
        empty=[((0, 3, 4, 5), 2), ((0, 3, 4), 2)],
        random=st.tuples(small_shape(2), st.tuples(st.integers(1, 3), st.integers(1, 3)))
        | st.tuples(small_shape(1), st.integers(1, 4)),
        special=lambda dtype: [(((1, 1, 2, 2), 2), [[[[[np.nan, np.inf], [-np.inf, 0]]]]])],
    ),
]
