"""Convolutions: promises about their bits, what is refused, in models, beside PyTorch."""

import copy
import itertools
import math
import pickle
import subprocess
import sys
import textwrap
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.core.recording import Recording
from tests.cases import DTYPES, FAMILIES, both_dtypes
from tests.conftest import bits
from tests.reference import (
    LAYOUTS,
    assert_same_bits,
    channels_last,
    fortran_ordered,
    images_last,
    plain_copy,
    read_only,
)

CONVOLUTIONS = [cl.Conv1d, cl.Conv2d, cl.ConvTranspose1d, cl.ConvTranspose2d]
TRANSPOSED = [cl.ConvTranspose1d, cl.ConvTranspose2d]
every_convolution = pytest.mark.parametrize("layer", CONVOLUTIONS, ids=lambda layer: layer.__name__)


def uniform(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


class Setting(NamedTuple):
    """A convolution of images, as kernels take it."""

    channels: tuple[int, int]  # of a group, from and to
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def window(self):
        return {name: getattr(self, name) for name in ("stride", "padding", "dilation", "groups")}

    @property
    def positions(self):
        along = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple([(m + 2 * p - d * (k - 1) - 1) // s + 1 for m, k, s, p, d in along])

    def arrays(self, n, dtype):
        """x, w, bias and dy."""
        c, o = self.channels
        x, dy = uniform(n, c * self.groups, *self.size, dtype=dtype), (n, o * self.groups, *self.positions)
        w, bias = uniform(o * self.groups, c, *self.kernel, dtype=dtype, seed=1), uniform(o * self.groups, dtype=dtype)
        return x, w, bias, uniform(*dy, dtype=dtype, seed=2)

    def results(self, x, w, bias, dy):
        """y, dx and dw."""
        dw = np.full(w.shape, np.nan, w.dtype.newbyteorder("="))
        kernels.convolution_weight_grad(x, dy, dw, **self.window)
        dx = kernels.transposed_convolution(dy, w, self.size, **self.window)
        return kernels.convolution(x, w, self.positions, bias, **self.window), dx, dw

    def work(self, n):
        """In operations."""
        return 2 * n * self.groups * math.prod(self.channels) * math.prod(self.kernel) * math.prod(self.positions)


FEW = Setting((3, 6), (13, 12), (5, 5), (1, 1), (2, 2))
MANY = Setting((33, 40), (6, 7), (3, 3), (1, 1), (1, 1))
SETTINGS = {
    "few": FEW,
    "few, strided": Setting((2, 5), (15, 14), (3, 4), (2, 3), (1, 2), (2, 1)),
    "few, in groups": Setting((2, 3), (9, 10), (3, 3), (1, 1), (1, 1), groups=3),
    "few, depthwise": Setting((1, 1), (11, 13), (3, 5), (1, 1), (1, 2), groups=7),
    "few, depthwise, 3 × 3": Setting((1, 1), (11, 13), (3, 3), (1, 1), (1, 1), groups=7),
    "few, a window of more taps than go together": Setting((2, 3), (12, 70), (2, 67), (1, 1), (1, 30)),
    "many": MANY,
    "many, of few": Setting((3, 40), (9, 10), (3, 3), (1, 1), (1, 1)),
    "many, into few": Setting((70, 2), (6, 5), (3, 3), (1, 1), (1, 1)),
    "many, strided": Setting((40, 33), (9, 8), (3, 2), (2, 1), (1, 1), (1, 2)),
    "many, one pixel": Setting((64, 64), (5, 6), (1, 1)),
    "many, in groups": Setting((33, 2), (6, 7), (3, 3), (1, 1), (1, 1), groups=2),
    "many, depthwise": Setting((1, 1), (11, 9), (3, 3), (2, 1), (1, 1), groups=37),
    "many, depthwise, wide": Setting((1, 1), (8, 33), (3, 7), (1, 1), (1, 3), groups=33),
    "many, depthwise, 3 × 3": Setting((1, 1), (11, 9), (3, 3), (1, 1), (1, 1), groups=64),
    "many, depthwise, 3 × 3, some pads": Setting((1, 1), (5, 12), (3, 3), (1, 1), (2, 0), groups=39),
    "many, depthwise, 3 × 3, one pixel wide": Setting((1, 1), (9, 1), (3, 3), (1, 1), (1, 1), groups=40),
    "Winograd's": Setting((17, 35), (9, 6), (3, 3), (1, 1), (1, 1)),
    "Winograd's, of single pixels": Setting((20, 16), (1, 1), (3, 3), (1, 1), (2, 1)),
    "Winograd's, in groups": Setting((16, 19), (6, 5), (3, 3), (1, 1), (0, 2), groups=2),
    "Winograd's, a row": Setting((33, 20), (2, 23), (1, 5), (1, 1), (0, 2)),
    "Winograd's, a short row": Setting((16, 50), (1, 10), (1, 3), (1, 1), (1, 1)),
    "Winograd's, a column": Setting((18, 16), (13, 3), (5, 1), (1, 1), (1, 0)),
}


def is_winograds(setting):
    """Whether float32 computes it by Winograd's algorithm: see test_winograd.py."""
    once = setting.stride == setting.dilation == (1, 1)
    return once and min(setting.channels) >= 16 and sorted(setting.kernel) in ([3, 3], [1, 3], [1, 5])


every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


# ---- bits ----


@every_setting
@both_dtypes
@pytest.mark.usefixtures("threads_restored")
def test_any_number_of_threads_gives_the_same_bits(setting, dtype):
    n = max(math.ceil((4 if is_winograds(setting) else 1.1) * kernels.PARALLEL_WORK / setting.work(1)), 17)
    arrays = setting.arrays(n, dtype)
    cl.set_num_threads(1)
    expected = setting.results(*arrays)
    for threads in (2, 3, 8):
        cl.set_num_threads(threads)
        for result, same in zip(setting.results(*arrays), expected, strict=True):
            assert_same_bits(result, same)


@every_setting
@both_dtypes
def test_an_image_alone_has_the_bits_of_the_image_among_others(setting, dtype):
    x, w, bias, dy = setting.arrays(33, dtype)
    y, dx, _ = setting.results(x, w, bias, dy)
    for rows in [slice(0, 1), slice(32, 33), slice(3, 8), slice(1, 17), slice(0, 16), slice(11, 29)]:
        of_rows = setting.results(x[rows], w, bias, dy[rows])
        assert_same_bits(of_rows[0], y[rows])
        assert_same_bits(of_rows[1], dx[rows])


@pytest.mark.parametrize("name", [name for name in SETTINGS if name.startswith("few")])
@pytest.mark.parametrize("n", [1, 5, 16, 33])
@both_dtypes
def test_few_channels_have_the_bits_of_the_same_among_many(name, n, dtype):
    """With channels of zeros, or further groups, it is a convolution of the other order of memory.

    The input stays below the 16 channels from which a convolution is Winograd's, whose last digits are others.
    """
    setting = SETTINGS[name]
    x, w, bias, dy = setting.arrays(n, dtype)
    y, dx, _ = setting.results(x, w, bias, dy)
    (c, o), groups = setting.channels, setting.groups
    wider = setting._replace(groups=40) if c == o == 1 else setting._replace(channels=(15, 35))

    def widened(a, axis, before, after):
        """Zeros behind the channels of each group."""
        if c == o == 1:
            more = [(0, 40 - groups if d == axis else 0) for d in range(a.ndim)]
            return np.pad(a, more)
        parts = a.reshape(*a.shape[:axis], -1, before, *a.shape[axis + 1 :])
        parts = np.pad(parts, [(0, after - before if d == axis + 1 else 0) for d in range(parts.ndim)])
        return parts.reshape(*a.shape[:axis], -1, *a.shape[axis + 1 :])

    def narrowed(a, before, after):
        """The channels that were there."""
        if c == o == 1:
            return a[:, :groups]
        return a.reshape(n, groups, after, *a.shape[2:])[:, :, :before].reshape(n, -1, *a.shape[2:])

    wide_w = widened(w, 0, o, 35)
    if c * o > 1:
        wide_w = widened(wide_w, 1, c, 15)
    arrays = widened(x, 1, c, 15), wide_w, widened(bias, 0, o, 35), widened(dy, 1, o, 35)
    wide_y, wide_dx, _ = wider.results(*arrays)
    assert [a.strides[axis] for a, axis in ((y, 0), (wide_y, 1))] == [y.itemsize] * 2
    assert_same_bits(narrowed(wide_y, o, 35), y)
    assert_same_bits(narrowed(wide_dx, c, 15), dx)


@every_setting
@both_dtypes
def test_strides_of_operands_and_gradients_do_not_change_a_bit(setting, dtype):
    x, w, bias, dy = setting.arrays(5, dtype)
    expected = setting.results(x, w, bias, dy)
    for layout in LAYOUTS:
        if layout.__name__ == "zero_strided":
            continue
        for result, same in zip(setting.results(*map(layout, (x, w, bias, dy))), expected, strict=True):
            assert_same_bits(result, same)
    for layout in (fortran_ordered, images_last, channels_last):
        out = layout(np.full_like(w, np.nan))
        assert kernels.convolution_weight_grad(x, dy, out, **setting.window) is out
        assert_same_bits(out, expected[2])


@every_setting
@both_dtypes
def test_an_accumulated_gradient_adds_what_an_overwriting_one_writes(setting, dtype):
    x, w, bias, dy = setting.arrays(5, dtype)
    dw, before = setting.results(x, w, bias, dy)[2], uniform(*w.shape, dtype=dtype, seed=3)
    out = before.copy()
    kernels.convolution_weight_grad(x, dy, out, accumulate=True, **setting.window)
    assert_same_bits(out, before + dw)


@every_setting
@both_dtypes
def test_a_bias_is_added_to_the_finished_sum(setting, dtype):
    x, w, bias, dy = setting.arrays(5, dtype)
    y, without = (setting.results(x, w, b, dy)[0] for b in (bias, None))
    assert_same_bits(y, without + bias.reshape(-1, 1, 1))


@pytest.mark.parametrize("transposed", [False, True])
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_both_orders_of_memory_give_the_same_bits_for_random_shapes(transposed, data, seed):
    """As far as channels go: that of zeros added to each group changes none of the others.

    The side with fewer channels keeps them, so both are Winograd's convolutions or neither is.
    """
    family = FAMILIES[cl.ConvTranspose2d if transposed else cl.Conv2d]
    arguments = data.draw(family.random)
    case = family.build(*arguments)
    narrow = case.function(np.float32)
    (x,) = case.inputs(np.float32, seed)
    if narrow.groups > 1:
        return
    inputs, outputs = narrow.in_channels, narrow.out_channels
    more_inputs, more_outputs = (32, 0) if inputs > outputs else (0, 32)
    more = {"in_channels": inputs + more_inputs, "out_channels": outputs + more_outputs}
    if transposed:
        more["output_padding"] = narrow.output_padding
    wide = type(narrow)(
        kernel_size=narrow.kernel_size,
        stride=narrow.stride,
        padding=narrow.padding,
        dilation=narrow.dilation,
        bias=narrow.bias is not None,
        **more,
    )
    inside = tuple([slice(0, m) for m in narrow.weight.shape[:2]])
    wide.weight.data = np.zeros(wide.weight.shape, np.float32)
    wide.weight.data[inside] = narrow.weight.data
    wide_x = np.pad(x, [(0, 0), (0, more_inputs), (0, 0), (0, 0)])
    if narrow.bias is not None:
        wide.bias.data = np.pad(narrow.bias.data, (0, more_outputs))
    y, wide_y = narrow.forward(x), wide.forward(wide_x)
    assert_same_bits(wide_y[:, : narrow.out_channels], y)
    dy = uniform(*y.shape, seed=seed)
    dx, wide_dx = narrow.backward(dy), wide.backward(np.pad(dy, [(0, 0), (0, more_outputs), (0, 0), (0, 0)]))
    assert_same_bits(wide_dx[:, : narrow.in_channels], dx)


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    padding=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    channels=st.integers(32, 70),
    of=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_a_window_that_slides_gives_the_bits_of_one_that_is_loaded_tap_by_tap(size, padding, channels, of, seed):
    """A window of 3 × 3 slides. One of 3 × 4 does not, and with zeros in its last column it has the same sums."""
    size = tuple([max(length, 3 - 2 * p) for length, p in zip(size, padding, strict=True)])
    setting = Setting((1, 1), size, (3, 3), (1, 1), padding, groups=channels)
    x, w, bias, dy = (uniform(*a.shape, dtype=of, seed=seed + i) for i, a in enumerate(setting.arrays(2, of)))
    loaded = kernels.convolution(x, np.pad(w, [(0, 0)] * 3 + [(0, 1)]), setting.positions, bias, **setting.window)
    loaded_dx = kernels.transposed_convolution(dy, np.pad(w, [(0, 0)] * 3 + [(0, 1)]), size, **setting.window)
    y, dx, dw = setting.results(x, w, bias, dy)
    assert_same_bits(y, loaded)
    assert_same_bits(dx, loaded_dx)
    loaded_dw = np.empty((channels, 1, 3, 4), of)
    kernels.convolution_weight_grad(x, dy, loaded_dw, **setting.window)
    np.testing.assert_allclose(dw, loaded_dw[..., :3], 0, 1e-5 if of == np.float32 else 1e-14)


@every_setting
def test_float32_is_as_close_to_float64_as_its_sums_allow(setting):
    arrays = setting.arrays(20, np.float64)
    for mine, truth in zip(
        setting.results(*[a.astype(np.float32) for a in arrays]), setting.results(*arrays), strict=True
    ):
        # Winograd's transforms add and subtract before they multiply, which loses a digit.
        tolerance = 5e-6 if is_winograds(setting) else 2e-6
        assert np.abs(mine - truth).max() <= tolerance * max(np.abs(truth).max(), 1)


@both_dtypes
def test_a_sum_over_many_pixels_is_of_sums_over_fewer(dtype):
    """All roundings of equal numbers are in the same direction: a sum of float32 in one go would be off by 0.25 %."""
    for channels, off in ((1, 1e-3), (40, 2e-5)):
        x, dy = np.full((16, channels, 128, 128), 0.1, dtype), np.ones((16, 1, 128, 128), dtype)
        dw = np.empty((1, channels, 1, 1), dtype)
        kernels.convolution_weight_grad(x, dy, dw, stride=(1, 1), padding=(0, 0), dilation=(1, 1))
        truth = float(x[0, 0, 0, 0]) * 16 * 128 * 128
        np.testing.assert_allclose(dw, np.full_like(dw, truth), off if dtype == np.float32 else 1e-11)


def test_a_depthwise_sum_over_many_pixels_is_of_sums_over_fewer():
    x, dy = np.full((16, 32, 128, 128), 0.1, np.float32), np.ones((16, 32, 126, 126), np.float32)
    dw = np.empty((32, 1, 3, 3), np.float32)
    kernels.convolution_weight_grad(x, dy, dw, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=32)
    np.testing.assert_allclose(dw, np.full_like(dw, float(x[0, 0, 0, 0]) * 16 * 126 * 126), 2e-5)


# ---- windows ----


def test_an_even_window_has_the_odd_pad_behind():
    """As PyTorch's: with padding="same" one more is on the right, and below."""
    for layer, x in ((cl.Conv1d, [[[1, 2, 3]]]), (cl.Conv2d, [[[[1, 2, 3]]]])):
        same = layer(1, 1, 2 if layer is cl.Conv1d else (1, 2), padding="same", bias=False)
        same.weight.data = np.array([1, 10]).reshape(same.weight.shape)
        assert same.forward(np.array(x, np.float32)).ravel().tolist() == [21, 32, 3]
    same = cl.Conv1d(1, 1, 2, padding="same", dilation=3, bias=False)
    same.weight.data = np.array([[[1, 10]]])
    assert same.forward(np.arange(1, 6, dtype=np.float32)[None, None]).ravel().tolist() == [30, 41, 52, 3, 4]


def windowed(x, kernel_size, *arguments, **options):
    """What a window of powers of 10 makes of a series of digits: each digit of y is the tap that saw it."""
    layer = cl.Conv1d(1, 1, kernel_size, *arguments, bias=False, **options)
    layer.weight.data = 10.0 ** np.arange(kernel_size).reshape(1, 1, -1)
    return layer.forward(np.array(x, np.float32)[None, None]).ravel().tolist()


def test_pads_of_strided_windows_are_tensorflows():
    """As many positions as the length divided by the stride, rounded up; the odd pad is behind."""
    assert windowed([1, 2, 3, 4, 5], 3, 2, "same") == [210, 432, 54]  # one pad on each side
    assert windowed([1, 2, 3, 4], 3, 2, "same") == [321, 43]  # one pad, behind
    assert windowed([1, 2, 3, 4, 5], 4, 3, "same") == [3210, 543]  # one on each side
    assert windowed([1, 2, 3, 4, 5], 2, 3, "same") == [21, 54]  # none
    assert windowed([1, 2, 3, 4, 5], 1, 3, "same") == [1, 4]  # none, and some pixels are not seen
    assert windowed([1, 2, 3, 4, 5], 2, 2, "same", 3) == [30, 52, 4]  # a dilated window, from pixel −1 on
    image = cl.Conv2d(1, 1, 3, (2, 3), "same")
    assert image.output_shape((None, 1, 5, 7)) == (None, 1, 3, 3)
    assert image.output_shape((2, 1, None, 6)) == (2, 1, None, 2)


def test_a_causal_convolution_sees_nothing_of_what_comes_later():
    assert windowed([1, 2, 3, 4], 3, padding="causal") == [100, 210, 321, 432]
    assert windowed([1, 2, 3, 4, 5], 3, 2, "causal") == [100, 321, 543]
    assert windowed([1, 2, 3, 4, 5], 2, 1, "causal", 2) == [10, 20, 31, 42, 53]
    for channels in (3, 20, 40):
        layer = cl.Conv1d(channels, channels, 3, padding="causal", dilation=2)
        x, later = uniform(2, channels, 12), uniform(2, channels, 12, seed=1)
        later[:, :, :7] = x[:, :, :7]
        y, of_later = layer.forward(x), layer.forward(later)
        assert_same_bits(of_later[:, :, :7], y[:, :, :7])
        assert (of_later[:, :, 7:] != y[:, :, 7:]).all()


def test_valid_is_another_word_for_no_pads():
    assert repr(cl.Conv1d(2, 3, 4, padding="valid")) == "Conv1d(2, 3, 4)"
    assert cl.Conv2d(2, 3, 4, padding="valid").padding == (0, 0)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (cl.Conv1d(2, 3, 3, 2, "same"), (2, 2, 0)),
        (cl.Conv1d(20, 17, 3, padding="causal"), (2, 20, 0)),
        (cl.Conv1d(3, 2, 2, 3, "causal"), (2, 3, 0)),
        (cl.Conv2d(2, 3, 3, (1, 2), "same"), (2, 2, 0, 5)),
        (cl.Conv2d(33, 20, 3, padding="same"), (2, 33, 4, 0)),
        (cl.Conv2d(40, 40, 3, padding="same", groups=40), (2, 40, 0, 4)),
    ],
    ids=repr,
)
def test_series_and_images_of_length_0_stay_such_with_pads_that_follow_the_length(layer, shape):
    y = layer.forward(np.empty(shape, np.float32))
    assert y.shape == layer.output_shape(shape)
    assert y.size == 0
    assert layer.backward(y).shape == shape
    assert not layer.weight.grad.any()
    assert not layer.bias.grad.any()


def test_a_window_among_the_pads_gives_the_bias():
    for channels in (1, 40):
        layer = cl.Conv2d(channels, channels, 1, padding=2)
        y = layer.forward(uniform(3, channels, 1, 1))
        outside = np.ones((5, 5), bool)
        outside[2, 2] = False
        assert_same_bits(y[:, :, outside], np.broadcast_to(layer.bias.data[:, None], (3, channels, 24)))


@every_convolution
def test_huge_strides_dilations_and_pads_that_leave_few_pixels_are_right(layer):
    far = 2**31 - 1
    for channels in (1, 40):
        if layer in TRANSPOSED:
            narrow = layer(channels, channels, 1, stride=far, bias=False)
            x = uniform(2, channels, *[1] * narrow.axes)
        else:
            narrow = layer(channels, channels, 2, stride=far, padding=far, dilation=far, bias=False)
            x = uniform(2, channels, *[3] * narrow.axes)
        y = narrow.forward(x)
        w = narrow.weight.data.astype(np.float64)
        if layer in TRANSPOSED:
            truth = np.einsum("nc...,co->no...", x, w[(..., *[0] * narrow.axes)])
        else:  # the windows begin far before x, at its first pixel, and so on; one of their taps lies on that
            truth = np.zeros((2, channels, *[2] * narrow.axes))
            for places in itertools.product((0, 1), repeat=narrow.axes):
                taps = tuple([1 - place for place in places])
                truth[(..., *places)] = x[(..., *[0] * narrow.axes)] @ w[(..., *taps)].T
        np.testing.assert_allclose(y, truth, 1e-5, 1e-5)
        assert np.isfinite(narrow.backward(np.ones_like(y))).all()


# ---- what is refused ----

NOT_SIZES = [(True, TypeError), (2.0, TypeError), ("2", TypeError), (None, TypeError), (np.float32(2), TypeError)]
NOT_SIZES += [(-1, ValueError), (2**31, ValueError), (10**30, ValueError), ((), ValueError), ((1, 2, 3), ValueError)]
NOT_SIZES += [((2, -1), ValueError), ((2, 2.0), TypeError), ((2, True), TypeError), (np.array([2, 2]), TypeError)]


@every_convolution
@pytest.mark.parametrize("argument", ["kernel_size", "stride", "padding", "dilation"])
@pytest.mark.parametrize(("bad", "error"), NOT_SIZES, ids=lambda value: repr(value))
def test_windows_are_integers_or_one_for_each_axis(layer, argument, bad, error):
    of_a_word = isinstance(bad, str) and argument == "padding" and layer not in TRANSPOSED
    if of_a_word or (layer.axes == 1 and isinstance(bad, tuple) and len(bad) == 2):
        error = ValueError
    with pytest.raises(error, match=f"{layer.__name__}: {argument}"):
        layer(**{"in_channels": 1, "out_channels": 1, "kernel_size": 3, argument: bad})


@every_convolution
@pytest.mark.parametrize("argument", ["kernel_size", "stride", "dilation"])
def test_windows_strides_and_dilations_are_at_least_1(layer, argument):
    with pytest.raises(ValueError, match=f"{layer.__name__}: {argument} takes 1 to"):
        layer(**{"in_channels": 1, "out_channels": 1, "kernel_size": 3, argument: 0})


@every_convolution
@pytest.mark.parametrize("argument", ["in_channels", "out_channels", "groups"])
def test_channels_and_groups_are_positive_integers(layer, argument):
    for bad, error in [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), ("1", TypeError)]:
        with pytest.raises(error, match=f"{layer.__name__}: {argument}"):
            layer(**{"in_channels": 1, "out_channels": 1, "kernel_size": 3, argument: bad})


@every_convolution
def test_groups_divide_the_channels(layer):
    for channels in ((4, 6), (6, 4), (3, 3)):
        with pytest.raises(ValueError, match=f"{layer.__name__}: {channels[0]} and {channels[1]} channels.*4 groups"):
            layer(*channels, 3, groups=4)


@pytest.mark.parametrize("layer", [cl.Conv1d, cl.Conv2d])
def test_no_other_words_than_valid_same_and_causal_are_known(layer):
    words = '"valid", "same", "causal"' if layer is cl.Conv1d else '"valid", "same"'
    for word in ("SAME", "", "full", *(["causal"] if layer is cl.Conv2d else [])):
        with pytest.raises(
            ValueError, match=f"{layer.__name__}: padding takes integers or one of {words}, got '{word}'"
        ):
            layer(1, 1, 3, padding=word)
    with pytest.raises(TypeError, match=f"{layer.__name__}: padding"):
        layer(1, 1, 3, padding=b"same")


def test_a_transposed_convolution_takes_numbers_of_pads_and_adds_less_than_a_stride_or_dilation():
    for word in ("same", "valid"):
        with pytest.raises(TypeError, match="ConvTranspose2d: padding takes integers, got"):
            cl.ConvTranspose2d(1, 1, 3, padding=word)
    cl.ConvTranspose2d(1, 1, 3, 2, output_padding=1)
    cl.ConvTranspose2d(1, 1, 3, 1, output_padding=1, dilation=2)
    for stride, dilation, more in ((1, 1, 1), (2, 1, 2), ((2, 1), 1, (0, 1)), (2, 3, (3, 0))):
        with pytest.raises(ValueError, match=r"output_padding must be less than stride or dilation, got") as raised:
            cl.ConvTranspose2d(1, 1, 3, stride, 0, more, dilation=dilation)
        assert str(more) in str(raised.value)
    for bad in (-1, True, 1.0, "1", (1,)):
        with pytest.raises((TypeError, ValueError), match="ConvTranspose2d: output_padding"):
            cl.ConvTranspose2d(1, 1, 3, 2, output_padding=bad)


@pytest.mark.parametrize(
    ("layer", "shape", "named"),
    [
        (cl.Conv2d(2, 3, 3), (4, 3, 8, 8), [r"Conv2d\(2, 3, 3\)", r"\(4, 3, 8, 8\)", r"expected \(n, 2, H, W\)"]),
        (cl.Conv2d(2, 3, 3), (4, 2, 8), [r"\(4, 2, 8\)", r"expected \(n, 2, H, W\)"]),
        (cl.Conv2d(2, 3, 3), (2, 8, 8), [r"\(2, 8, 8\)"]),
        (cl.Conv2d(2, 3, 3), (), [r"\(\)"]),
        (cl.Conv2d(2, 3, 3), (1, 1, 2, 8, 8), [r"\(1, 1, 2, 8, 8\)"]),
        (cl.Conv1d(2, 3, 3), (4, 2, 8, 8), [r"Conv1d\(2, 3, 3\)", r"\(4, 2, 8, 8\)", r"expected \(n, 2, L\)"]),
        (
            cl.Conv2d(1, 1, (3, 5), padding=(0, 1)),
            (1, 1, 3, 2),
            [r"\(3, 5\), padding=\(0, 1\)", "5 pixels", "into 2 and 2"],
        ),
        (cl.Conv2d(1, 1, 3, dilation=4), (1, 1, 8, 9), ["dilation=4", "9 pixels", "into 8 and 0"]),
        (cl.Conv1d(1, 1, 2), (1, 1, 1), [r"Conv1d\(1, 1, 2\)", "2 pixels", "into 1 and 0"]),
        (cl.Conv1d(1, 1, 1), (1, 1, 0), ["1 pixels", "into 0 and 0"]),
        (cl.ConvTranspose2d(2, 3, 3), (4, 3, 8, 8), [r"ConvTranspose2d\(2, 3, 3\)", r"\(4, 3, 8, 8\)"]),
        (
            cl.ConvTranspose2d(1, 1, 3, padding=2),
            (1, 1, 2, 9),
            [r"padding=2\)", r"\(1, 1, 2, 9\)", "padding leaves no pixel"],
        ),
        (cl.ConvTranspose2d(1, 1, 1), (1, 1, 0, 3), [r"\(1, 1, 0, 3\)"]),
        (cl.ConvTranspose1d(2, 3, 3), (4, 2, 8, 8), [r"ConvTranspose1d\(2, 3, 3\)", r"expected \(n, 2, L\)"]),
    ],
    ids=repr,
)
def test_shapes_that_dont_fit_raise_naming_shapes_and_parameters(layer, shape, named):
    for attempt in (lambda: layer.output_shape(shape), lambda: layer.forward(np.zeros(shape, np.float32))):
        for text in named:
            with pytest.raises(ValueError, match=text):
                attempt()


@every_convolution
def test_another_dtype_than_that_of_the_weights_is_refused(layer):
    function = layer(2, 3, 3)
    x = np.zeros((1, 2, *[5] * function.axes), np.float32)
    for wrong in (np.float64, np.int64, np.float16, bool, np.complex64, object):
        with pytest.raises(TypeError, match=layer.__name__) as raised:
            function.forward(x.astype(wrong))
        assert "float32" in str(raised.value)
        assert np.dtype(wrong).name in str(raised.value)
    function.forward(x)
    with pytest.raises(TypeError, match="float64"):
        function.backward(np.zeros(function.output_shape(x.shape)))
    assert all(p.grad is None for p in function.parameters())


@every_convolution
def test_a_gradient_of_another_shape_than_the_output_is_refused(layer):
    for channels in (2, 40):
        function = layer(channels, channels, 3)
        shape = function.forward(uniform(4, channels, *[6] * function.axes)).shape
        for axis, by in itertools.product(range(len(shape)), (-1, 1)):
            wrong = tuple([m + by if d == axis else m for d, m in enumerate(shape)])
            with pytest.raises(ValueError, match=layer.__name__) as raised:
                function.backward(np.ones(wrong, np.float32))
            assert str(wrong) in str(raised.value)
            assert str(shape) in str(raised.value)
        with pytest.raises(ValueError, match=layer.__name__):
            function.backward(np.ones(shape[:-1], np.float32))
        assert all(p.grad is None for p in function.parameters())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits on memory as Linux has them")
def test_huge_sizes_are_refused_at_once_and_without_memory():
    """64 MiB more than the process has, and a few seconds, are enough to say so."""
    program = """
        import resource, signal
        import numpy as np
        import caffelite as cl

        x, series = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 4), np.float32)
        small = cl.Conv2d(1, 1, 3)
        before = small.forward(x)
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[0])
        limit = pages * resource.getpagesize() + 64 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        signal.alarm(20)
        far = 2**31 - 1

        def enlarged(x):
            return cl.Conv2d(1, 1, 1, padding=2**30)(x)

        attempts = {
            "kernel": (lambda: cl.Conv2d(1, 1, 10**9), ["1000000000"]),
            "long": (lambda: cl.Conv1d(1, 1, 10**9), ["1000000000"]),
            "row": (lambda: cl.Conv2d(1, 1, (1, 10**9)), ["1000000000"]),
            "transposed kernel": (lambda: cl.ConvTranspose2d(1, 1, 10**9), ["1000000000"]),
            "channels": (lambda: cl.Conv2d(10**9, 10**9, 1), ["1000000000"]),
            "many channels": (lambda: cl.Conv2d(10**18, 10**18, 1), ["10**18"]),
            "all channels": (lambda: cl.Conv2d(10**30, 1, 1), ["10**30"]),
            "pads": (lambda: cl.Conv2d(1, 1, 3, padding=2**30).forward(x), ["2**30", "(1, 1, 4, 4)"]),
            "10**15": (lambda: cl.Conv2d(1, 1, 1, padding=16 * 10**6).forward(x), ["16000000", "(1, 1, 4, 4)"]),
            "row of pads": (lambda: cl.Conv1d(1, 1, 1, padding=far).forward(series), ["2147483647", "(1, 1, 4)"]),
            "no images": (lambda: cl.Conv2d(1, 1, 1, padding=2**30).forward(x[:0]), ["2**30", "(0, 1, 4, 4)"]),
            "window": (lambda: cl.Conv2d(1, 1, 2, dilation=far).forward(x), ["2147483648", "(1, 1, 4, 4)"]),
            "dilation": (lambda: cl.Conv2d(1, 1, 2, 1, far, far).forward(x), ["2147483647", "(1, 1, 4, 4)"]),
            "stride": (lambda: cl.ConvTranspose2d(1, 1, 1, far).forward(x), ["2147483647", "(1, 1, 4, 4)"]),
            "spread": (lambda: cl.ConvTranspose2d(1, 1, 2, dilation=far).forward(x), ["2147483647", "(1, 1, 4, 4)"]),
            "recorded": (lambda: cl.capture(enlarged, x), ["2**30"]),
            "gradient": (lambda: small.backward(np.broadcast_to(x[:, :, :1, :1], (1, 1, 2**29, 2**29))), ["2**29"]),
        }
        for name, (attempt, texts) in attempts.items():
            try:
                attempt()
            except ValueError as error:
                for text in texts:
                    assert str(eval(text)) in str(error), (name, str(error))
            else:
                raise AssertionError(name)
        assert (small.forward(x) == before).all()
        assert small.weight.grad is None
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# ---- the kernels' borders ----

GOOD = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}


@pytest.mark.parametrize("channels", [2, 40])
@pytest.mark.parametrize(
    "bad",
    [
        {"x": (3, 5, 5)},
        {"x": (4, 1, 5, 5)},
        {"x": (5, 5)},
        {"w": (6, 3, 3, 3)},
        {"w": (6, 3, 3)},
        {"w": (6,)},
        {"w": ()},
        {"x": ()},
        {"groups": 0},
        {"groups": -1},
        {"groups": 4},
        {"stride": (1,)},
        {"stride": (0, 1)},
        {"stride": (1, -1)},
        {"padding": (0, -1)},
        {"padding": ()},
        {"dilation": (1, 0)},
        {"dilation": (1, 1, 1)},
        {"shape": (3,)},
        {"shape": (3, 3, 3)},
        {"shape": (3, -1)},
        {"bias": (5,)},
        {"bias": (1, 6)},
    ],
    ids=str,
)
def test_convolutions_of_shapes_that_dont_fit_are_refused(bad, channels):
    arguments = {"x": (4, channels, 5, 5), "w": (6, channels, 3, 3), "shape": (3, 3), "groups": 1, **GOOD, **bad}
    for name in ("x", "w", "bias"):
        if name in arguments:
            arguments[name] = np.ones(arguments[name], np.float32)
    with pytest.raises(ValueError, match="convolution"):
        kernels.convolution(**arguments)
    if "x" not in bad and "bias" not in bad:
        arguments["x"], arguments["shape"] = np.ones((4, 6, 3, 3), np.float32), bad.get("shape", (5, 5))
        if "w" in bad and len(bad["w"]) == 4:  # the number of channels that it makes follows from w
            return
        with pytest.raises(ValueError, match="convolution"):
            kernels.transposed_convolution(**arguments)


@pytest.mark.parametrize("channels", [2, 40])
def test_gradients_of_weights_that_dont_fit_are_refused_before_anything_is_written(channels):
    good = {"x": (4, channels, 5, 5), "dy": (4, 6, 3, 3), "out": (6, channels, 3, 3)}
    for name, shape in [
        ("x", (3, channels, 5, 5)),
        ("x", (4, channels + 1, 5, 5)),
        ("x", (4, channels, 5)),
        ("dy", (4, 5, 3, 3)),
        ("dy", (3, 6, 3, 3)),
        ("dy", (4, 6, 3)),
        ("dy", ()),
        ("out", (5, channels, 3, 3)),
        ("out", (6, channels, 3)),
    ]:
        arrays = {key: np.ones(value, np.float32) for key, value in {**good, name: shape}.items()}
        with pytest.raises(ValueError, match="convolution"):
            kernels.convolution_weight_grad(**arrays, **GOOD)
        assert (arrays["out"] == 1).all()


@pytest.mark.parametrize("layout", [read_only, *[a for a in LAYOUTS if a.__name__ in ("unaligned", "byte_swapped")]])
def test_a_gradient_that_cannot_be_written_as_it_lies_is_refused(layout):
    out = layout(np.ones((6, 2, 3, 3), np.float32))
    with pytest.raises(ValueError, match="out"):
        kernels.convolution_weight_grad(uniform(4, 2, 5, 5), uniform(4, 6, 3, 3), out, **GOOD)
    assert (out == 1).all()


@pytest.mark.parametrize(("channels", "order"), [(1, (1, 2, 3, 0)), (33, (0, 2, 3, 1))])
def test_a_gradient_into_one_of_its_operands_is_refused_where_that_is_not_copied(channels, order):
    shape, dy = (4, channels, 4, 4), uniform(4, 1, 2, 2)
    memory = uniform(math.prod(shape))
    x, out = memory.reshape([shape[axis] for axis in order]), memory[: channels * 9].reshape(1, channels, 3, 3)
    before = memory.copy()
    with pytest.raises(ValueError, match="into one of its operands"):
        kernels.convolution_weight_grad(x.transpose(np.argsort(order)), dy, out, **GOOD)
    assert_same_bits(memory, before)
    expected = kernels.convolution_weight_grad(before.reshape(shape), dy, np.empty_like(out), **GOOD)
    assert_same_bits(kernels.convolution_weight_grad(memory.reshape(shape), dy, out, **GOOD), expected)


def test_convolutions_of_float32_and_float64_do_not_mix():
    x, w, y = np.ones((1, 2, 3, 3), np.float32), np.ones((1, 2, 3, 3), np.float32), np.ones((1, 1, 1, 1), np.float32)
    for call in [
        lambda: kernels.convolution(x, w.astype(np.float64), (1, 1), **GOOD),
        lambda: kernels.convolution(x, w, (1, 1), np.ones(1), **GOOD),
        lambda: kernels.transposed_convolution(y.astype(np.float64), w, (3, 3), **GOOD),
        lambda: kernels.convolution_weight_grad(x, y.astype(np.float64), w, **GOOD),
        lambda: kernels.convolution_weight_grad(x, y, w.astype(np.float64), **GOOD),
    ]:
        with pytest.raises(TypeError, match=r"convolution.*float32.*float64|convolution.*float64.*float32"):
            call()
    assert (w == 1).all()


# ---- parameters ----


@pytest.mark.parametrize("groups", [1, 4])
@every_convolution
def test_a_new_convolution_is_uniform_within_pytorchs_bounds(layer, groups):
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.nn, layer.__name__)(64, 96, 3, groups=groups)
    function = layer(64, 96, 3, groups=groups)
    bound = 1 / math.sqrt(theirs.weight[0].numel())
    for p, q in zip(function.parameters(), theirs.parameters(), strict=True):
        assert p.shape == tuple(q.shape)
        assert p.dtype == np.float32
        for drawn in (p.data, q.detach().numpy()):
            assert 0.9 * bound < np.abs(drawn).max() <= bound
    drawn = function.weight.data
    assert abs(drawn.mean()) < 5 * bound / math.sqrt(drawn.size)
    assert drawn.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@every_convolution
def test_an_initializer_draws_the_weights_and_leaves_the_bias_0(layer):
    function = layer(2, 4, 3, initializer=cl.initializers.he_normal)
    assert (function.bias.data == 0).all()
    ones = layer(2, 4, 3, initializer=lambda shape, rng: np.ones(shape))
    assert (ones.weight.data == 1).all()


@every_convolution
def test_initialize_draws_the_same_from_the_same_seed(layer):
    a, b = layer(2, 4, 3), layer(2, 4, 3)
    assert (a.weight != b.weight).any()
    for function in (a, b):
        function.initialize(3)
    assert_same_bits(a.weight.data, b.weight.data)
    assert_same_bits(a.bias.data, b.bias.data)


def test_a_convolution_is_written_as_it_is_made():
    for text in [
        "Conv2d(1, 6, 5)",
        "Conv2d(1, 6, (5, 3), stride=2, padding=(1, 0), dilation=3)",
        "Conv2d(4, 8, 3, padding='same', groups=4, bias=False)",
        "Conv1d(9, 64, 5, stride=2)",
        "Conv1d(9, 64, 5, stride=2, padding='causal')",
        "ConvTranspose1d(4, 2, 3, stride=2, output_padding=1)",
        "ConvTranspose2d(4, 2, 3, stride=2, output_padding=1)",
        "ConvTranspose2d(4, 2, 3, stride=2, groups=2, output_padding=(1, 0))",
    ]:
        assert repr(eval(text, vars(cl))) == text


@every_convolution
def test_frozen_parameters_get_no_gradient(layer):
    for frozen, other in (("weight", "bias"), ("bias", "weight")):
        function = layer(2, 3, 3)
        getattr(function, frozen).requires_grad = False
        y = function.forward(uniform(4, 2, *[5] * function.axes))
        function.backward(np.ones_like(y))
        assert getattr(function, frozen).grad is None
        assert getattr(function, other).grad is not None


# ---- in a model ----


def small_net(dtype=np.float32, seed=0):
    """Convolutions of few channels and of many, what stands between them, and a mean over pixels."""
    layers = [cl.Conv2d(2, 5, 3, padding=1), cl.ReLU(), cl.MaxPool2d(2), cl.Conv2d(5, 36, 3, bias=False)]
    layers += [cl.BatchNorm(36), cl.ReLU(), cl.GlobalAvgPool(), cl.Linear(36, 4)]
    return cl.Model(layers, seed=seed, dtype=dtype)


class Residual(cl.Model):
    """Two blocks of convolutions around which their input goes too, the second by way of a convolution of one pixel."""

    def __init__(self, dtype=np.float32, seed=0):
        super().__init__(seed=seed, dtype=dtype)
        self.first = cl.Conv2d(2, 8, 3, padding="same", bias=False)
        self.norm = cl.BatchNorm(8)
        self.one, self.two = cl.Conv2d(8, 8, 3, padding="same"), cl.Conv2d(8, 8, 3, padding=1)
        self.three, self.around = cl.Conv2d(8, 40, 3, 2, 1), cl.Conv2d(8, 40, 1, 2, bias=False)
        self.pool, self.last = cl.GlobalAvgPool(), cl.Linear(40, 4)

    def call(self, x):
        x = cl.relu(self.norm(self.first(x)))
        x = cl.relu(x + self.two(cl.relu(self.one(x))))
        x = cl.relu(self.three(x) + self.around(x))
        return self.last(self.pool(x))

    def output_shape(self, shape):
        return (shape[0], 4)


NETS = [small_net, Residual]
every_net = pytest.mark.parametrize("net", NETS, ids=lambda net: net.__name__)
LABELS = np.random.default_rng(1).integers(0, 4, 48)


def images(dtype=np.float32, n=48):
    """Spots in one of four corners, in noise."""
    x = np.random.default_rng(0).uniform(0, 0.5, (n, 2, 9, 8))
    for i, label in enumerate(LABELS[:n]):
        x[i, i % 2, 4 * (label // 2) : 4 * (label // 2) + 3, 4 * (label % 2) : 4 * (label % 2) + 3] += 0.5
    return x.astype(dtype)


def pytorchs_losses(torch, net, model, x, y, steps):
    """Those of so many steps of Adam from the model's present parameters."""
    functional = torch.nn.functional
    w = {name: torch.tensor(value.copy()) for name, value in model.state_dict().items()}
    learned = [w[name].requires_grad_() for name, _ in zip(w, model.parameters(), strict=False)]
    assert sum(p.numel() for p in learned) == sum(p.data.size for p in model.parameters())
    p = iter(learned)
    adam, losses = torch.optim.Adam(learned, lr=0.01), []

    def normed(x, scale, shift):
        return functional.batch_norm(x, None, None, scale, shift, training=True)

    for _ in range(steps):
        p = iter(learned)
        if net is small_net:
            h = functional.max_pool2d(torch.relu(functional.conv2d(x, next(p), next(p), padding=1)), 2)
            h = torch.relu(normed(functional.conv2d(h, next(p)), next(p), next(p)))
        else:
            h = torch.relu(normed(functional.conv2d(x, next(p), padding=1), next(p), next(p)))
            inner = torch.relu(functional.conv2d(h, next(p), next(p), padding=1))
            h = torch.relu(h + functional.conv2d(inner, next(p), next(p), padding=1))
            outer = functional.conv2d(h, next(p), next(p), 2, 1)
            h = torch.relu(outer + functional.conv2d(h, next(p), stride=2))
        loss = functional.cross_entropy(h.mean((2, 3)) @ next(p) + next(p), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


@every_net
def test_losses_of_ten_steps_are_pytorchs(net):
    torch = pytest.importorskip("torch")
    model, x = net(np.float64), images(np.float64)
    theirs = pytorchs_losses(torch, net, model, torch.tensor(x), torch.tensor(LABELS), 10)
    history = model.fit(
        *(x, LABELS),
        loss=cl.SoftmaxLoss(),
        optimizer=cl.Adam(model.parameters(), lr=0.01),
        epochs=10,
        batch_size=48,
        shuffle=False,
        verbose=0,
    )
    np.testing.assert_allclose(history["loss"], theirs, 1e-9)


@every_net
@both_dtypes
@pytest.mark.usefixtures("threads_restored")
def test_a_recorded_training_has_the_bits_of_the_loop_by_hand(net, dtype):
    x, trained = images(dtype), []
    for threads in (1, 2, 3):
        cl.set_num_threads(threads)
        model, loss = net(dtype), cl.SoftmaxLoss()
        optimizer = cl.Adam(model.parameters(), lr=0.01)
        if threads == 1:
            for begin in (0, 20, 40) * 3:
                optimizer.zero_grad()
                rows = slice(begin, min(begin + 20, 48))
                loss(model(x[rows]), LABELS[rows]).backward()
                optimizer.step()
        else:
            options = {"epochs": 3, "batch_size": 20, "shuffle": False, "verbose": 0}
            model.fit(x, LABELS, loss=loss, optimizer=optimizer, **options)
        trained.append((bits(model), model.predict(x).tobytes()))
    assert trained[1:] == trained[:1] * 2


@pytest.mark.parametrize("channels", [2, 40])
def test_a_recorded_gradient_of_weights_adds_again(channels):
    x, dy, before = uniform(5, channels, 6, 6), uniform(5, 3, 4, 4), uniform(3, channels, 3, 3)
    out = before.copy()
    with Recording() as recording:
        kernels.convolution_weight_grad(x, dy, out, accumulate=True, **GOOD)
    x *= 2
    kernels.Replay(recording.entries).run()
    expected = before.copy()
    for scaled in (x / 2, x):
        kernels.convolution_weight_grad(scaled, dy, expected, accumulate=True, **GOOD)
    assert_same_bits(out, expected)


@every_net
@both_dtypes
def test_a_net_learns(net, dtype):
    model = net(dtype)
    options = {"epochs": 25, "batch_size": 16, "seed": 0, "verbose": 0}
    model.fit(images(dtype), LABELS, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters(), lr=0.01), **options)
    assert (model.predict(images(dtype)).argmax(axis=1) == LABELS).mean() > 0.95


@every_net
@both_dtypes
def test_predictions_of_an_image_do_not_depend_on_the_others(net, dtype):
    model, x = net(dtype), images(dtype)
    together = model.predict(x)
    for i in (0, 7, 47):
        assert_same_bits(model.predict(x[i : i + 1])[0], together[i])
    for size in (1, 5, 16, 33):
        assert_same_bits(model.predict(x, batch_size=size), together)
    for layout in LAYOUTS:
        if layout.__name__ not in ("zero_strided",):
            assert_same_bits(model.predict(layout(x)), together)


@every_net
def test_the_gradients_of_a_net_are_right(net):
    model, x = net(np.float64), images(np.float64, 6)
    cl.check_gradients(model, x)


@every_net
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_net_pickles_and_deepcopies(net, duplicate):
    model, x = net(), images()
    options = {"loss": cl.SoftmaxLoss(), "epochs": 2, "verbose": 0, "seed": 0}

    def fitted(model):
        model.fit(x, LABELS, optimizer=cl.Adam(model.parameters(), lr=0.01), **options)
        return bits(model)

    fitted(model)
    same = duplicate(model)
    assert_same_bits(same.predict(x), model.predict(x))
    assert repr(same) == repr(model)
    before = bits(model)
    after = fitted(same)
    assert bits(model) == before
    assert fitted(model) == after


def test_parameters_have_the_names_of_their_layers_and_states_are_exchanged_by_them():
    model = small_net()
    state = model.state_dict()
    assert [name for name in state if name.startswith(("0", "3", "7"))] == [
        *("0.weight", "0.bias", "3.weight", "7.weight", "7.bias")
    ]
    assert next(iter(Residual().state_dict())) == "first.weight"
    other = small_net(seed=1)
    other.load_state_dict(state)
    assert_same_bits(other.predict(images()), model.predict(images()))
    state["3.weight"] = state["3.weight"].transpose(1, 0, 2, 3)
    with pytest.raises(ValueError, match=r"3\.weight"):
        other.load_state_dict(state)


def test_a_summary_has_shapes_and_numbers_of_parameters():
    lines = small_net().summary((2, 9, 8)).splitlines()
    for text, shape, count in [
        ("Conv2d(2, 5, 3, padding=1)", "(n, 5, 9, 8)", "95"),
        ("MaxPool2d(2)", "(n, 5, 4, 4)", "0"),
        ("Conv2d(5, 36, 3, bias=False)", "(n, 36, 2, 2)", "1,620"),
        ("Linear", "(n, 4)", "148"),
    ]:
        (line,) = [line for line in lines if text in line]
        assert shape in line
        assert count in line.split()
    assert "(n, 2, 9, 8)" in Residual().summary((2, 9, 8)) or "Residual" in repr(Residual())


@every_net
def test_a_net_is_drawn_with_the_shapes_of_its_images(net):
    model, x = net(), images(n=6)
    drawn = str(cl.graph(model(x)))
    for text in ("Conv2d", "(6, 40, 5, 4)" if net is Residual else "(6, 36, 2, 2)", "(6, 4)"):
        assert text in drawn


def test_a_net_refuses_images_that_do_not_fit_before_the_first_step():
    model = small_net()
    before = bits(model)
    for shape in ((48, 3, 9, 8), (48, 2, 9), (48, 2, 3, 3), (48, 144)):
        with pytest.raises(ValueError, match=r"Conv2d|MaxPool2d"):
            model.fit(
                np.zeros(shape, np.float32), LABELS, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1)
            )
        with pytest.raises(ValueError, match=r"Conv2d|MaxPool2d"):
            model.predict(np.zeros(shape, np.float32))
    assert bits(model) == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_net_of_series_and_one_that_enlarges_images_learn_to_give_what_they_got(dtype):
    rng = np.random.default_rng(0)
    flat = rng.uniform(0, 1, (32, 3, 12)).astype(dtype)
    large = rng.uniform(0, 1, (32, 1, 8, 8)).astype(dtype)
    nets = [
        (flat, [cl.Conv1d(3, 36, 5, padding="same"), cl.ReLU(), cl.Conv1d(36, 3, 3, padding="same")]),
        (large, [cl.Conv2d(1, 12, 3, 2, 1), cl.ReLU(), cl.ConvTranspose2d(12, 1, 3, 2, 1, 1)]),
    ]
    for x, layers in nets:
        model = cl.Model(layers, seed=0, dtype=dtype)
        options = {"epochs": 40, "batch_size": 8, "seed": 0, "verbose": 0}
        history = model.fit(x, x, loss=cl.MSELoss(), optimizer=cl.Adam(model.parameters(), lr=0.01), **options)
        assert history["loss"][-1] < 0.35 * history["loss"][0]
        assert_same_bits(model.predict(plain_copy(x))[3], model.predict(x[3:4])[0])


# ---- what layers say of the usual mistakes ----

ONE_CHANNEL = ": x[:, None] has an axis for the one channel"
FIRST = ": channels come first, x.transpose"


@pytest.mark.parametrize(
    ("layer", "shape", "expected", "right"),
    [
        (cl.Conv2d(1, 8, 3), (5, 28, 28), f"(n, 1, H, W){ONE_CHANNEL}", lambda x: x[:, None]),
        (cl.Conv1d(1, 8, 3), (5, 128), f"(n, 1, L){ONE_CHANNEL}", lambda x: x[:, None]),
        (cl.Conv2d(3, 8, 3), (5, 8, 9, 3), f"(n, 3, H, W){FIRST}(0, 3, 1, 2)", lambda x: x.transpose(0, 3, 1, 2)),
        (cl.Conv1d(9, 8, 3), (5, 128, 9), f"(n, 9, L){FIRST}(0, 2, 1)", lambda x: x.transpose(0, 2, 1)),
        (cl.Conv2d(3, 8, 3), (5, 28, 28), "(n, 3, H, W)", None),
        (cl.Conv2d(3, 8, 3), (5, 4, 8, 9), "(n, 3, H, W)", None),
    ],
)
def test_an_input_of_another_shape_is_refused_with_what_makes_the_usual_mistakes_right(layer, shape, expected, right):
    x = np.ones(shape, np.float32)
    for f, rows in ((layer.forward, "5"), (cl.Model([layer]).predict, "n")):
        with pytest.raises(ValueError, match="expected") as raised:
            f(x)
        said = f"{layer!r} got shape ({rows}, {str(shape)[4:]}; expected {expected}"
        assert str(raised.value) == said
    if right is not None:
        assert layer.forward(right(x)).shape[:2] == (5, 8)
