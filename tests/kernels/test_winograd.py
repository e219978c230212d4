"""Winograd's convolutions: their matrices, which convolutions they are, their error, NaN, infinity, zeros."""

import itertools
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program.recording import Recording
from tests.conftest import bits, training_step
from tests.reference import assert_same_bits

HEADER = Path(kernels.__file__).parent / "loops" / "winograd.h"
POINTS = {3: ["0", "1", "-1", "1/2", "-2"], 5: ["0", "1", "-1", "1/2", "-1/2", "2", "-2"]}
LIMIT = 5e-6  # of the largest number of a result
WINDOWS = [(3, 3), (1, 3), (3, 1), (1, 5), (5, 1)]
every_window = pytest.mark.parametrize("window", WINDOWS, ids=str)
ONCE = {"stride": (1, 1), "dilation": (1, 1)}


# ---- the matrices ----


def polynomial(roots):
    """Return the coefficients of Π (x − root), lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [a - root * b for a, b in zip(shifted, [*coefficients, 0], strict=True)]
    return coefficients


def derived_matrices(taps):
    """Bᵀ, G and A of F(4, taps), from its points and ∞."""
    points = [Fraction(p) for p in POINTS[taps]]
    BT, G, A = [], [], []
    for p in points:
        others = [q for q in points if q != p]
        at_p = np.prod([p - q for q in others])
        BT.append([*polynomial(others), Fraction(0)])
        G.append([p**k / at_p for k in range(taps)])
        A.append([p**k for k in range(4)])
    BT.append(polynomial(points))
    G.append([Fraction(int(k == taps - 1)) for k in range(taps)])
    A.append([Fraction(int(k == 3)) for k in range(4)])
    return {"BT": BT, "G": G, "A": A}


def matrix_in_header(name, taps):
    table = re.search(
        rf"float {name}_{taps}\[\d\]\[\d\] = \{{\n(.*?)\n\}};", HEADER.read_text(encoding="utf-8"), re.DOTALL
    )
    return [[eval(number) for number in row.split(",")] for row in re.findall(r"\{(.*)\}", table[1])]


@pytest.mark.sources
@pytest.mark.parametrize("taps", POINTS)
def test_the_matrices_follow_from_the_points(taps):
    for name, matrix in derived_matrices(taps).items():
        assert matrix_in_header(name, taps) == [[float(value) for value in row] for row in matrix], name


@pytest.mark.parametrize("taps", POINTS)
def test_the_formula_is_the_convolution(taps):
    """In fractions, so that nothing is rounded: y = Aᵀ [(G g) ⊙ (Bᵀ d)]."""
    rng = np.random.default_rng(0)
    BT, G, A = [np.array(matrix) for matrix in derived_matrices(taps).values()]
    d, g = [np.array([Fraction(int(v)) for v in rng.integers(-9, 10, n)]) for n in (taps + 3, taps)]
    assert (A.T @ ((G @ g) * (BT @ d))).tolist() == [d[i : i + taps] @ g for i in range(4)]


# ---- which convolutions are Winograd's ----


def kernel_names(x, w, *, padding=(1, 1), groups=1, **window):
    """Return the kernels of a convolution and of its gradients."""
    options = {"padding": padding, "groups": groups, **ONCE, **window}
    along = zip(x.shape[2:], w.shape[2:], padding, options["stride"], options["dilation"], strict=True)
    positions = tuple([(m + 2 * p - d * (k - 1) - 1) // s + 1 for m, k, p, s, d in along])
    dy = np.ones((len(x), len(w), *positions), x.dtype)
    with Recording() as recording:
        kernels.convolution(x, w, positions, **options)
        kernels.transposed_convolution(dy, w, x.shape[2:], **options)
        kernels.convolution_weight_grad(x, dy, np.empty_like(w), **options)
    return {call.name for call in recording.entries} - {"copy"}


WINOGRADS = {"winograd_weights", "winograd_convolution", "winograd_sums", "winograd_weight_grad"}
DIRECT = {"convolution", "transposed_convolution", "convolution_weight_grad"}


@every_window
@pytest.mark.parametrize("n", [1, 3, 70])
def test_windows_of_many_channels_are_winograds_whatever_the_number_of_images(window, n):
    for channels, size in (((16, 16), (1, 7)), ((17, 40), (6, 5)), ((1024, 16), (5, 5))):
        x, w = np.ones((n, channels[1], *size), np.float32), np.ones((*channels, *window), np.float32)
        assert kernel_names(x, w, padding=(2, 2)) == WINOGRADS


@pytest.mark.parametrize(
    "change",
    [
        {"channels": (15, 64)},
        {"channels": (64, 15)},
        {"channels": (1025, 16)},
        {"channels": (16, 16), "dtype": np.float64},
        {"channels": (32, 8), "groups": 4},
        {"channels": (16, 16), "stride": (2, 2)},
        {"channels": (16, 16), "stride": (1, 2)},
        {"channels": (16, 16), "dilation": (2, 1)},
        {"channels": (16, 16), "window": (5, 5)},
        {"channels": (16, 16), "window": (3, 5)},
        {"channels": (16, 16), "window": (1, 4)},
    ],
    ids=str,
)
def test_all_others_are_direct(change):
    (outputs, inputs), groups = change.pop("channels"), change.pop("groups", 1)
    dtype, window = change.pop("dtype", np.float32), change.pop("window", (3, 3))
    x, w = np.ones((2, inputs * groups, 7, 6), dtype), np.ones((outputs, inputs, *window), dtype)
    assert kernel_names(x, w, padding=(2, 2), groups=groups, **change) == DIRECT


def test_series_and_transposed_convolutions_are_winograds_too():
    layers = [(cl.Conv1d(20, 16, 5, padding=2), (2, 20, 9)), (cl.ConvTranspose2d(16, 20, 3, padding=1), (2, 16, 5, 6))]
    for layer, shape in layers:
        with Recording() as recording:
            y = layer.forward(np.ones(shape, np.float32))
            layer.backward(np.ones(y.shape, np.float32))
        assert {call.name for call in recording.entries if "sum" not in call.name} >= WINOGRADS - {"winograd_sums"}


# ---- error ----


def results(x, w, bias, dy, padding, groups=1):
    """y, dx and dw."""
    options = {"padding": padding, "groups": groups, **ONCE}
    dw = np.empty_like(w)
    kernels.convolution_weight_grad(x, dy, dw, **options)
    dx = kernels.transposed_convolution(dy, w, x.shape[2:], **options)
    return kernels.convolution(x, w, dy.shape[2:], bias, **options), dx, dw


def errors(x, w, dy, padding, groups=1):
    """Of y, dx and dw in float32, beside the direct convolution in float64: the largest, by the scale of the result.

    The scale is the largest number, or the root of the largest sum of squared terms: a result of one number may be
    nearly 0, while its terms are not.
    """
    arrays = [a.astype(np.float32) for a in (x, w, dy)]
    of_float32 = results(arrays[0], arrays[1], None, arrays[2], padding, groups)
    x, w, dy = [a.astype(np.float64) for a in arrays]
    truths = results(x, w, None, dy, padding, groups)
    squares = results(x * x, w * w, None, dy * dy, padding, groups)
    return [
        np.abs(mine - truth).max() / max(np.abs(truth).max(), np.sqrt(square.max()), 1e-30)
        for mine, truth, square in zip(of_float32, truths, squares, strict=True)
    ]


def random_arrays(rng, n, channels, size, window, padding, groups=1):
    """x, w and dy: standard normal, w as He draws it."""
    outputs, inputs = channels
    positions = [m + 2 * p - k + 1 for m, p, k in zip(size, padding, window, strict=True)]
    x, dy = rng.standard_normal((n, inputs * groups, *size)), rng.standard_normal((n, outputs * groups, *positions))
    w = rng.standard_normal((outputs * groups, inputs, *window)) * np.sqrt(2 / (inputs * np.prod(window)))
    return x, w, dy


def one_bright_pixel(x):
    x[0, 0, x.shape[2] // 2, x.shape[3] // 2] = 1e4
    return x


INPUTS = {
    "normal": lambda rng, x: x,
    "behind a ReLU": lambda rng, x: np.maximum(x, 0),
    "mean 100": lambda rng, x: x + 100,
    "one pixel of 1e4": lambda rng, x: one_bright_pixel(x),
    "Cauchy": lambda rng, x: rng.standard_cauchy(x.shape),
    "of 1e-30": lambda rng, x: x * 1e-30,
}


@pytest.fixture(params=kernels.available_instruction_sets())
def instruction_set(request):
    before = kernels.ISA
    kernels.use_instruction_set(request.param)
    yield
    kernels.use_instruction_set(before)


@pytest.mark.parametrize("inputs", INPUTS)
@every_window
@pytest.mark.usefixtures("instruction_set")
def test_the_error_is_at_most_5e_6_of_the_result_for_hard_inputs_too(window, inputs):
    for n, channels, size in ((4, (64, 64), (13, 15)), (3, (17, 300), (7, 9)), (40, (16, 16), (8, 8))):
        rng = np.random.default_rng(0)
        x, w, dy = random_arrays(rng, n, channels, size, window, (1, 1))
        found = errors(INPUTS[inputs](rng, x), w, INPUTS[inputs](rng, dy), (1, 1))
        assert max(found) <= LIMIT, (channels, found)


@st.composite
def geometries(draw):
    """Images, channels, a window, padding and groups; channels to 130, sizes to 40, the work limited."""
    window = draw(st.sampled_from(WINDOWS))
    channels = draw(st.tuples(st.integers(1, 130), st.integers(1, 130)))
    padding = draw(st.tuples(*[st.integers(0, k) for k in window]))
    least = [max(k - 2 * p, 1) for k, p in zip(window, padding, strict=True)]
    size = [draw(st.integers(m, 40)) for m in least]
    groups = draw(st.integers(1, 3)) if max(channels) < 40 else 1
    n = draw(st.integers(1, max(min(4_000_000 // (channels[0] * channels[1] * size[0] * size[1]), 20), 1)))
    return n, channels, size, window, padding, groups


@given(geometry=geometries(), seed=st.integers(0, 2**32))
def test_the_error_is_at_most_5e_6_of_the_result_for_random_shapes(geometry, seed):
    n, channels, size, window, padding, groups = geometry
    arrays = random_arrays(np.random.default_rng(seed), n, channels, size, window, padding, groups)
    assert max(errors(*arrays, padding, groups)) <= LIMIT


def test_a_gradient_of_weights_of_many_tiles_is_a_sum_of_sums():
    """All roundings of equal numbers are in the same direction."""
    for n, size in ((64, 32), (4, 128)):
        x, dy = np.full((n, 16, size, size), 0.1), np.full((n, 16, size, size), 0.3)
        assert errors(x, np.ones((16, 16, 3, 3)), dy, (1, 1))[2] <= LIMIT


# ---- bits ----


def test_a_large_call_is_cut_among_threads():
    """So that the tests of all settings in test_convolution.py, with several threads, can fail."""
    x, w = np.ones((64, 33, 12, 12), np.float32), np.ones((40, 33, 3, 3), np.float32)
    with Recording() as recording:
        results(x, w, None, np.ones((64, 40, 12, 12), np.float32), (1, 1))
    work = {call.name: call.work for call in recording.entries}
    assert work["winograd_convolution"] > kernels.PARALLEL_WORK
    assert work["winograd_sums"] > kernels.PARALLEL_WORK


class Residual(cl.Model):
    """Blocks of 16 and of 33 channels, whose sums, activations and masks are done in Winograd's convolutions."""

    def __init__(self, dtype=np.float32):
        super().__init__(seed=0, dtype=dtype)
        self.first = cl.Conv2d(3, 16, 3, padding=1)
        self.one, self.two = cl.Conv2d(16, 16, 3, padding=1), cl.Conv2d(16, 16, 3, padding=1)
        self.three, self.around = cl.Conv2d(16, 33, 3, padding=1), cl.Conv2d(16, 33, 1)
        self.pool, self.last = cl.GlobalAvgPool(), cl.Linear(33, 4)

    def call(self, x):
        x = cl.relu(self.first(x))
        x = cl.relu(x + self.two(cl.relu(self.one(x))))
        x = cl.tanh(self.three(x) + self.around(x))
        return self.last(self.pool(x))

    def output_shape(self, shape):
        return (shape[0], 4)


def data(dtype=np.float32):
    rng = np.random.default_rng(0)
    return rng.standard_normal((128, 3, 15, 14)).astype(dtype), rng.integers(0, 4, 128)


def training(dtype=np.float32, epochs=5):
    """Return the losses of ten steps and the model."""
    model, losses = Residual(dtype), []
    x, y = data(dtype)
    optimizer, loss = cl.SGD(model.parameters(), lr=0.05, momentum=0.9), cl.SoftmaxLoss()
    history = model.fit(*(x, y), loss=loss, optimizer=optimizer, epochs=epochs, batch_size=64, shuffle=False, verbose=0)
    losses += history["loss"]
    return losses, model


@pytest.mark.usefixtures("restored_threads")
def test_a_recorded_training_has_the_bits_of_the_loop_by_hand_on_any_threads():
    x, y = data()
    cl.set_num_threads(1)
    model, loss = Residual(), cl.SoftmaxLoss()
    optimizer = cl.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        for rows in (slice(0, 64), slice(64, 128)):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    for threads in (1, 2, 3, 8):
        cl.set_num_threads(threads)
        trained = training(epochs=2)[1]
        assert bits(trained) == bits(model)
        for rows in (slice(0, 1), slice(5, 12), slice(0, 128)):
            assert_same_bits(trained.predict(x[rows]), model.predict(x)[rows])


def test_additions_and_masks_are_done_in_winograds_convolutions():
    x, y = data()
    model = Residual()
    step = training_step(model, cl.SGD(model.parameters(), lr=0.05))
    names = {line.split()[0] for line in str(cl.capture(step, x, y)).splitlines()[2:]}
    assert names >= {"winograd_convolution_relu", "winograd_convolution_add", "winograd_convolution_relu_grad"}


def test_the_losses_of_ten_steps_equal_float64_to_five_digits():
    np.testing.assert_allclose(training()[0], training(np.float64)[0], 1e-5)


# ---- NaN, infinity, zeros ----


@every_window
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_never_become_numbers_and_stay_in_the_tiles_that_read_them(window, bad):
    rng = np.random.default_rng(0)
    x, w, dy = [a.astype(np.float32) for a in random_arrays(rng, 3, (16, 17), (13, 14), window, (1, 1))]
    for row, column in itertools.product((0, 5, 12), (0, 7, 13)):
        spoilt = x.copy()
        spoilt[1, 3, row, column] = bad
        y, _, dw = results(spoilt, w, None, dy, (1, 1))
        pixels = ~np.isfinite(y[1]).all(axis=0)
        reads = np.zeros(y.shape[2:], bool)
        top, left = max(row + 2 - window[0], 0), max(column + 2 - window[1], 0)
        reads[top : row + 2, left : column + 2] = True
        assert pixels[reads].all()
        tiles = np.zeros_like(reads)
        for i, j in np.argwhere(reads):
            tile = [slice(at // 4 * 4, at // 4 * 4 + 4) if k > 1 else at for at, k in zip((i, j), window, strict=True)]
            tiles[tuple(tile)] = True
        # A tile reads as many pixels as its outputs do, so a neighbour that reads the pixel reads it for an output.
        assert not pixels[~tiles].any()
        assert np.isfinite(y[[0, 2]]).all()
        assert not np.isfinite(dw[:, 3]).all(axis=(1, 2)).any()


@every_window
def test_a_tile_of_zeros_gives_exact_zeros(window):
    rng = np.random.default_rng(0)
    x, w, dy = [a.astype(np.float32) for a in random_arrays(rng, 2, (16, 16), (16, 16), window, (0, 0))]
    x[:], dy[1] = 0, 0
    y, dx, dw = results(x, w, None, dy, (0, 0))
    assert not y.any()
    assert not dw.any()
    assert not dx[1].any()


def test_an_output_of_zeros_in_a_tile_of_numbers_is_at_most_noise():
    """The limit in docs/winograd.md: 1e-6 of the scale."""
    rng = np.random.default_rng(0)
    x, w, dy = [a.astype(np.float32) for a in random_arrays(rng, 4, (32, 32), (16, 16), (3, 3), (1, 1))]
    x[..., :8] = 0
    y = results(x, w, None, dy, (1, 1))[0]
    assert np.abs(y[..., :7]).max() <= 1e-6 * np.abs(y).max()
