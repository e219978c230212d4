"""Convolutions: promises about their bits, windows and pads, parameters."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import caffelite as cl
from caffelite import _kernels as kernels
from tests.cases import DTYPES, FAMILIES, both_dtypes
from tests.functions.convolutions import TRANSPOSED, every_convolution, uniform
from tests.reference import LAYOUTS, assert_same_bits, channels_last, fortran_ordered, images_last


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
@pytest.mark.usefixtures("restored_threads")
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

    def widen(a, axis, before, after):
        """Zeros behind the channels of each group."""
        if c == o == 1:
            more = [(0, 40 - groups if d == axis else 0) for d in range(a.ndim)]
            return np.pad(a, more)
        parts = a.reshape(*a.shape[:axis], -1, before, *a.shape[axis + 1 :])
        parts = np.pad(parts, [(0, after - before if d == axis + 1 else 0) for d in range(parts.ndim)])
        return parts.reshape(*a.shape[:axis], -1, *a.shape[axis + 1 :])

    def narrow(a, before, after):
        """Return the channels that were there."""
        if c == o == 1:
            return a[:, :groups]
        return a.reshape(n, groups, after, *a.shape[2:])[:, :, :before].reshape(n, -1, *a.shape[2:])

    wide_w = widen(w, 0, o, 35)
    if c * o > 1:
        wide_w = widen(wide_w, 1, c, 15)
    arrays = widen(x, 1, c, 15), wide_w, widen(bias, 0, o, 35), widen(dy, 1, o, 35)
    wide_y, wide_dx, _ = wider.results(*arrays)
    assert [a.strides[axis] for a, axis in ((y, 0), (wide_y, 1))] == [y.itemsize] * 2
    assert_same_bits(narrow(wide_y, o, 35), y)
    assert_same_bits(narrow(wide_dx, c, 15), dx)


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


def slide_window(x, kernel_size, *arguments, **options):
    """Return what a window of powers of 10 makes of a series of digits: each digit of y is the tap that saw it."""
    layer = cl.Conv1d(1, 1, kernel_size, *arguments, bias=False, **options)
    layer.weight.data = 10.0 ** np.arange(kernel_size).reshape(1, 1, -1)
    return layer.forward(np.array(x, np.float32)[None, None]).ravel().tolist()


def test_pads_of_strided_windows_are_tensorflows():
    """As many positions as the length divided by the stride, rounded up; the odd pad is behind."""
    assert slide_window([1, 2, 3, 4, 5], 3, 2, "same") == [210, 432, 54]  # one pad on each side
    assert slide_window([1, 2, 3, 4], 3, 2, "same") == [321, 43]  # one pad, behind
    assert slide_window([1, 2, 3, 4, 5], 4, 3, "same") == [3210, 543]  # one on each side
    assert slide_window([1, 2, 3, 4, 5], 2, 3, "same") == [21, 54]  # none
    assert slide_window([1, 2, 3, 4, 5], 1, 3, "same") == [1, 4]  # none, and some pixels are not seen
    assert slide_window([1, 2, 3, 4, 5], 2, 2, "same", 3) == [30, 52, 4]  # a dilated window, from pixel −1 on
    image = cl.Conv2d(1, 1, 3, (2, 3), "same")
    assert image.output_shape((None, 1, 5, 7)) == (None, 1, 3, 3)
    assert image.output_shape((2, 1, None, 6)) == (2, 1, None, 2)


def test_a_causal_convolution_sees_nothing_of_what_comes_later():
    assert slide_window([1, 2, 3, 4], 3, padding="causal") == [100, 210, 321, 432]
    assert slide_window([1, 2, 3, 4, 5], 3, 2, "causal") == [100, 321, 543]
    assert slide_window([1, 2, 3, 4, 5], 2, 1, "causal", 2) == [10, 20, 31, 42, 53]
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
        else:  # the windows begin far before x, at its first pixel, and so on; one of their taps is on that
            truth = np.zeros((2, channels, *[2] * narrow.axes))
            for places in itertools.product((0, 1), repeat=narrow.axes):
                taps = tuple([1 - place for place in places])
                truth[(..., *places)] = x[(..., *[0] * narrow.axes)] @ w[(..., *taps)].T
        np.testing.assert_allclose(y, truth, 1e-5, 1e-5)
        assert np.isfinite(narrow.backward(np.ones_like(y))).all()


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 2, 1), (7, 2, 1), (4, 2, 1), (2, 3, 1), (3, 2, 2), (3, 1, 1)]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_with_same_is_the_gradient_of_the_convolution_with_same(
    kernel, stride, dilation, groups, dtype
):
    rng = np.random.default_rng(0)
    layer = cl.ConvTranspose1d(4, 6, kernel, stride, "same", 0, groups, dilation=dilation, bias=False)
    convolution = cl.Conv1d(6, 4, kernel, stride, "same", dilation, groups, bias=False)
    for each in (layer, convolution):
        cl.Model([each], seed=0, dtype=dtype)
    convolution.weight.data = layer.weight.data
    x = rng.normal(size=(3, 4, 5)).astype(dtype)
    convolution.forward(np.zeros((3, 6, 5 * stride), dtype))
    y = layer.forward(x)
    assert y.shape == (3, 6, 5 * stride) == layer.output_shape((3, 4, 5))
    assert_same_bits(y, convolution.backward(x))


def test_same_of_a_transposed_convolution_takes_no_output_padding():
    layer = cl.ConvTranspose2d(2, 3, 4, 2, "same")
    assert repr(layer) == "ConvTranspose2d(2, 3, 4, stride=2, padding='same')"
    assert layer.output_shape((None, 2, 5, None)) == (None, 3, 10, None)
    with pytest.raises(ValueError, match='padding="same" takes no output_padding, got 1'):
        cl.ConvTranspose2d(2, 3, 4, 2, "same", 1)
    with pytest.raises(TypeError, match="padding takes integers, got 'SAME'"):
        cl.ConvTranspose2d(2, 3, 4, 2, "SAME")
