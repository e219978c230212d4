"""Pooling and upsampling: memory orders, ties, NaN and pads, and what is refused."""

import itertools
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program.recording import Recording
from tests.cases import FAMILIES, both_dtypes
from tests.reference import assert_same_bits

POOLS = [cl.MaxPool1d, cl.MaxPool2d, cl.AvgPool1d, cl.AvgPool2d]
every_pool = pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.__name__)
GLOBAL = [cl.GlobalAvgPool, cl.GlobalMaxPool]
FUNCTIONS = [*POOLS, *GLOBAL, cl.Upsample]
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)


def in_order(x, order):
    """Return the same array, its axes in this order in memory."""
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


def images_last(x):
    return in_order(x, (*range(1, x.ndim), 0))


def channels_last(x):
    return in_order(x, (0, *range(2, x.ndim), 1))


ORDERS = [images_last, channels_last]


# ---- memory orders ----


@every_function
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_the_order_of_memory_changes_no_bits_for_random_shapes(function, data, seed):
    case = FAMILIES[function].build(*data.draw(FAMILIES[function].random))
    (x,) = case.inputs(np.float32, seed)
    (y,), dys, (dx,) = case.forward_and_backward(case.function(np.float32), [x])
    of_x, of_dy = (data.draw(st.permutations(range(a.ndim))) for a in (x, y))
    ys, _, dxs = case.forward_and_backward(
        case.function(np.float32), [in_order(x, of_x)], dys, layout=lambda dy: in_order(dy, of_dy)
    )
    assert_same_bits(ys[0], y)
    assert_same_bits(dxs[0], dx)


@both_dtypes
@pytest.mark.parametrize("function", [cl.MaxPool2d(2), cl.AvgPool2d(3, 2, 1), cl.Upsample(2)], ids=repr)
def test_outputs_and_gradients_have_the_inputs_order_of_memory(function, dtype):
    x = np.random.default_rng(0).uniform(-1, 1, (5, 6, 7, 8)).astype(dtype)
    for order in itertools.permutations(range(4)):
        y = function.forward(in_order(x, order))
        assert y.strides == in_order(y, order).strides
        dx = function.backward(y.copy())
        assert dx.strides == in_order(dx, order).strides


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", GLOBAL)
def test_numbers_of_whole_channels_have_the_inputs_order_of_memory(order, kind):
    function = kind()
    x = order(np.random.default_rng(0).uniform(-1, 1, (5, 6, 7, 8)))
    y = function.forward(x)
    assert y.strides == ((8, 40) if order is images_last else (48, 8))
    assert function.backward(y).strides == x.strides


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(64, 6, 8, 8), (3, 33, 4, 4), (5, 7, 9)])
def test_images_in_the_order_of_a_convolution_are_pooled_in_that_order(order, shape):
    pool = cl.MaxPool2d(2) if len(shape) == 4 else cl.MaxPool1d(2)
    x = order(np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32))
    with Recording() as recording:
        pool.backward(pool.forward(x))
    assert [call.name for call in recording.entries] == ["max_pool", "max_pool_grad"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(64, 6, 8, 8), (3, 33, 4, 4), (5, 7, 9)])
@pytest.mark.parametrize("kind", GLOBAL)
def test_whole_channels_in_the_order_of_a_convolution_are_pooled_in_that_order(kind, order, shape):
    pool, x = kind(), order(np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32))
    with Recording() as recording:
        pool.backward(pool.forward(x))
    name = {cl.GlobalAvgPool: "average_pool", cl.GlobalMaxPool: "max_pool"}[kind]
    assert [call.name for call in recording.entries] == [name, f"{name}_grad"]


def test_an_image_alone_is_pooled_as_the_image_among_others():
    x = np.random.default_rng(0).uniform(-1, 1, (20, 7, 9, 9)).astype(np.float32)
    for function, order in itertools.product([cl.MaxPool2d(3, 2, 1), cl.AvgPool2d(3, 2, 1)], ORDERS):
        y = function.forward(order(x))
        dx = function.backward(y)
        assert_same_bits(function.forward(order(x[3:4])), y[3:4])
        assert_same_bits(function.backward(y[3:4]), dx[3:4])


# ---- what is the largest ----


def where_gradients_go(pool, x):
    """y, and the numbers of the elements that have a gradient, of one series or image."""
    x = np.array(x, np.float32)[np.newaxis, np.newaxis]
    y = pool.forward(x)
    return y.ravel().tolist(), np.flatnonzero(pool.backward(np.ones_like(y))).tolist()


@both_dtypes
@given(
    st.tuples(*[st.integers(1, 9)] * 4), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.sampled_from(ORDERS)
)
def test_the_gradient_of_windows_side_by_side_is_at_their_largest_pixels(dtype, shape, height, width, ceil, order):
    rng = np.random.default_rng(height)
    x = order(rng.uniform(-1, 1, (shape[0], 5 * shape[1], max(shape[2], height), max(shape[3], width))).astype(dtype))
    window = (height, width), (height, width), (0, 0), ceil
    y, places = kernels.max_pool(x, *window)
    dy = rng.uniform(-1, 1, y.shape).astype(dtype)
    expected = np.zeros((*x.shape[:2], x[0, 0].size), dtype)
    np.put_along_axis(expected, *(a.reshape(*x.shape[:2], -1) for a in (places, dy)), axis=2)
    assert_same_bits(kernels.max_pool_grad(dy, places, x, *window), expected.reshape(x.shape))


def test_of_equal_elements_the_first_has_the_gradient():
    assert where_gradients_go(cl.MaxPool1d(3), [2, 5, 5, 1, 1, 1]) == ([5, 1], [1, 3])
    assert where_gradients_go(cl.MaxPool2d(2), [[1, 7], [7, 7]]) == ([7], [1])
    assert where_gradients_go(cl.MaxPool2d(2), [[-0.0, 0.0], [0.0, -0.0]]) == ([0], [0])
    assert where_gradients_go(cl.GlobalMaxPool(), [2, 5, 5, 1]) == ([5], [1])


def test_the_first_nan_has_the_gradient():
    y, places = where_gradients_go(cl.MaxPool1d(4), [np.inf, np.nan, 9, np.nan])
    assert np.isnan(y).all()
    assert places == [1]


def test_pads_are_never_the_largest():
    inf = np.inf
    assert where_gradients_go(cl.MaxPool1d(3, 2, 1), [-inf, -inf, -inf]) == ([-inf, -inf], [0, 1])
    assert where_gradients_go(cl.MaxPool2d(2, 2, 1), [[-3, -2], [-4, -1]]) == ([-3, -2, -4, -1], [0, 1, 2, 3])


def test_a_last_window_may_go_beyond_the_pads_if_it_begins_before_them():
    assert where_gradients_go(cl.MaxPool1d(2, ceil=True), [1, 2, 3]) == ([2, 3], [1, 2])
    assert where_gradients_go(cl.MaxPool1d(2, 2, 1, ceil=True), [1, 2, 3, 4]) == ([1, 3, 4], [0, 2, 3])
    assert where_gradients_go(cl.MaxPool1d(2, 2, 1, ceil=True), [1, 2, 3]) == (
        [1, 3],
        [0, 2],
    )  # the third is in the pads
    assert where_gradients_go(cl.MaxPool1d(4, 3, ceil=True), [1, 2]) == ([2], [1])  # longer than x
    assert where_gradients_go(cl.MaxPool2d(2, ceil=True), [[1, 2, 3], [4, 5, 6], [7, 9, 8]]) == (
        [5, 6, 9, 8],
        [4, 5, 7, 8],
    )
    for pool, shape in ((cl.MaxPool1d(4, 2, ceil=True), (1, 1, 2)), (cl.MaxPool1d(4, 3), (1, 1, 2))):
        with pytest.raises(ValueError, match="larger than the padded images"):
            pool.forward(np.zeros(shape, np.float32))
    with pytest.raises(TypeError, match="MaxPool1d: ceil must be True or False, got 1"):
        cl.MaxPool1d(2, ceil=1)


def test_pads_count_in_means():
    x = np.ones((1, 1, 2, 2), np.float32)
    assert cl.AvgPool2d(2, 2, 1).forward(x).ravel().tolist() == [0.25] * 4


def test_a_mean_of_a_million_float32_is_as_good_as_its_elements():
    x = np.full((1, 1, 1000, 1000), 0.1, np.float32)
    assert cl.GlobalAvgPool().forward(x).item() == np.float32(0.1)


# ---- shapes ----


def test_channels_may_be_none():
    for function in (cl.MaxPool2d(2), cl.AvgPool2d(3, 1, 1), cl.Upsample(2), cl.GlobalAvgPool(), cl.GlobalMaxPool()):
        for shape in ((2, 0, 4, 4), (0, 0, 4, 4), (0, 3, 4, 4)):
            x = np.empty(shape, np.float32)
            y = function.forward(x)
            assert y.shape == function.output_shape(shape)
            assert function.backward(y).shape == shape


def test_series_of_length_0_are_enlarged_to_such():
    assert cl.Upsample(2).forward(np.empty((2, 3, 0), np.float32)).shape == (2, 3, 0)


@pytest.mark.parametrize(
    ("function", "shape", "named"),
    [
        (cl.MaxPool2d(3), (2, 3, 2, 5), [r"MaxPool2d\(3\)", r"\(2, 3, 2, 5\)"]),
        (cl.AvgPool2d((2, 9), 1, (0, 1)), (2, 3, 4, 6), [r"AvgPool2d\(\(2, 9\), stride=1, padding=\(0, 1\)\)"]),
        (cl.MaxPool1d(4), (2, 3, 3), [r"MaxPool1d\(4\)", r"\(2, 3, 3\)"]),
        (cl.MaxPool1d(4), (2, 3, 3, 3), [r"\(n, C, L\)"]),
        (cl.MaxPool2d(1), (2, 3, 4), [r"\(n, C, H, W\)"]),
        (cl.MaxPool2d(1), (2, 3, 0, 4), [r"\(2, 3, 0, 4\)"]),
        (cl.AvgPool2d(2, padding=1), (2, 3, 4, 0), [r"\(2, 3, 4, 0\)"]),
        (cl.GlobalAvgPool(), (2,), [r"\(2,\)", r"\(n, C, …\)"]),
        (cl.GlobalAvgPool(), (2, 3, 0), [r"\(2, 3, 0\)"]),
        (cl.GlobalMaxPool(), (2, 3), [r"GlobalMaxPool\(\)", r"\(2, 3\)", r"\(n, C, …\)"]),
        (cl.GlobalMaxPool(), (2, 3, 0, 2), [r"\(2, 3, 0, 2\)"]),
        (cl.GlobalAvgPool(axis=1), (2,), [r"GlobalAvgPool\(axis=1\)", r"\(2,\)", "with axis 1"]),
        (cl.GlobalAvgPool(axis=1), (2, 0, 3), [r"\(2, 0, 3\)", "none of length 0"]),
        (cl.GlobalMaxPool(axis=-2), (2, 3), [r"axis -2"]),
        (cl.GlobalMaxPool(axis=(1, 1)), (2, 3, 4), [r"axis \(1, 1\)"]),
        (cl.Upsample(2), (2, 3), [r"Upsample\(2\)", r"\(2, 3\)"]),
        (cl.Upsample((1, 2)), (2, 3, 4), [r"Upsample\(\(1, 2\)\)", r"\(2, 3, 4\)"]),
    ],
    ids=repr,
)
def test_shapes_that_dont_fit_raise_naming_both(function, shape, named):
    for attempt in (lambda: function.output_shape(shape), lambda: function.forward(np.ones(shape, np.float32))):
        for text in named:
            with pytest.raises(ValueError, match=text):
                attempt()


@every_pool
@pytest.mark.parametrize("bad", [-1, 2.0, "2", True, (0, -1), (2, 2, 2), (2, 2.0), (True, 2), 2**63, ()])
@pytest.mark.parametrize("argument", ["kernel_size", "stride", "padding"])
def test_windows_are_integers_above_0_or_pairs_of_them(pool, argument, bad):
    with pytest.raises((ValueError, TypeError), match=pool.__name__):
        pool(**{"kernel_size": 4, argument: bad})


@every_pool
def test_pads_are_at_most_half_a_window(pool):
    pool(4, 1, 2)
    pool(5, 1, 2)
    for size, padding in ((4, 3), (5, 3), (1, 1)):
        with pytest.raises(ValueError, match="padding must be at most half of kernel_size"):
            pool(size, 1, padding)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", True, None, (2,), (2, 0), (1, 2, 3), 2**63])
def test_scales_are_positive_integers(bad):
    with pytest.raises((ValueError, TypeError), match="Upsample: scale"):
        cl.Upsample(bad)


def test_huge_sizes_take_no_memory_and_raise_or_are_right():
    x, largest = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6), 2**63 - 1
    tracemalloc.start()
    for pool in (cl.MaxPool2d(largest), cl.AvgPool2d((1, 10**12)), cl.MaxPool2d(10**9, 1, 10**8)):
        with pytest.raises(ValueError, match="larger"):
            pool.forward(x)
    for scale in (largest, 2**31, (1, 2**61)):
        with pytest.raises(ValueError, match="Upsample"):
            cl.Upsample(scale).forward(x)
    for size in (10**12, largest - 1):
        y = cl.MaxPool2d(size, 1, size // 2).forward(x)
        assert y.shape == (1, 1, 5, 7)
        assert (y == 23).all()
    assert cl.MaxPool2d(2, largest, ceil=True).forward(x).tolist() == [[[[7]]]]
    assert cl.MaxPool2d(largest - 2, largest, ceil=True).forward(x).tolist() == [[[[23]]]]
    for pool, mean in ((cl.MaxPool2d(2, largest), 7), (cl.AvgPool2d(2, largest), 3.5)):
        assert pool.forward(x).tolist() == [[[[mean]]]]
        assert pool.backward(np.ones((1, 1, 1, 1), np.float32)).sum() == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


def test_kernels_refuse_windows_that_dont_fit():
    x = np.ones((2, 3, 4, 4), np.float32)
    good = ((2, 2), (2, 2), (0, 0))
    y, places = kernels.max_pool(x, *good)
    for bad in (
        ((0, 2), *good[1:]),
        (good[0], (2, 0), good[2]),
        (*good[:2], (2, 0)),
        (*good[:2], (0, -1)),
        ((5, 2),) * 3,
    ):
        for call in (kernels.max_pool, kernels.average_pool):
            with pytest.raises(ValueError, match=call.__name__):
                call(x, *bad)
    for dy in (x, y[:1], y[0]):
        with pytest.raises(ValueError, match="max_pool_grad"):
            kernels.max_pool_grad(dy, places, x, *good)
        with pytest.raises(ValueError, match="average_pool_grad"):
            kernels.average_pool_grad(dy, x, *good)
    for wrong in (y, places.astype(np.int64), places[:1], np.ascontiguousarray(places)):
        with pytest.raises(TypeError, match="places"):
            kernels.max_pool_grad(y, wrong, x, *good)
    for scale in ((0, 1), (1, -1), (2**62, 2)):
        with pytest.raises(ValueError, match="upsample"):
            kernels.upsample(x, scale)


@every_pool
def test_windows_of_no_size_or_stride_raise(pool):
    for arguments in ((0,), (None,), (2, 0)):
        with pytest.raises((ValueError, TypeError), match=pool.__name__):
            pool(*arguments)


# ---- in a model ----


def test_a_functions_repr_says_what_it_was_made_with():
    assert repr(cl.MaxPool2d(2)) == "MaxPool2d(2)"
    assert repr(cl.AvgPool2d((2, 3), 1, (1, 0))) == "AvgPool2d((2, 3), stride=1, padding=(1, 0))"
    assert repr(cl.MaxPool1d(3, stride=2, padding=1)) == "MaxPool1d(3, stride=2, padding=1)"
    assert repr(cl.MaxPool2d(3, ceil=True)) == "MaxPool2d(3, ceil=True)"
    assert repr(cl.Upsample((2, 1))) == "Upsample((2, 1))"


def test_a_model_with_pools_learns_the_places_of_bright_spots():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 200)
    x = rng.uniform(0, 0.5, (200, 1, 8, 8)).astype(np.float32)
    x[np.arange(200), 0, 4 * (y // 2) + 1, 4 * (y % 2) + 2] = 1
    model = cl.Model([cl.MaxPool2d(2), cl.AvgPool2d(2), cl.Upsample(2), cl.MaxPool2d(2), cl.Flatten()], seed=0)
    model.add(cl.Linear(4, 4))
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters(), lr=0.1), epochs=30, verbose=0)
    assert (model.predict(x).argmax(axis=1) == y).mean() > 0.95


@pytest.mark.parametrize("kind", GLOBAL)
def test_a_global_pool_of_sequences_is_the_pool_of_series_transposed(kind):
    x = np.random.default_rng(0).uniform(-1, 1, (5, 7, 3)).astype(np.float32)
    series = np.ascontiguousarray(x.transpose(0, 2, 1))
    along, channels = kind(axis=1), kind()
    y = along.forward(x)
    assert_same_bits(y, channels.forward(series))
    assert_same_bits(along.backward(y), channels.backward(y).transpose(0, 2, 1))
    assert repr(along) == f"{kind.__name__}(axis=1)"


def test_words_with_vectors_of_their_mean_are_learned(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 20, (200, 8))
    y = (x < 5).any(axis=1).astype(int)
    model = cl.Model([cl.Embedding(20, 8), cl.GlobalAvgPool(axis=1), cl.Linear(8, 2)], seed=0)
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters(), lr=0.05), epochs=30, verbose=0)
    assert (model.predict(x).argmax(axis=1) == y).mean() > 0.95
    model.save(tmp_path / "model")
    assert_same_bits(cl.load(tmp_path / "model").predict(x), model.predict(x))


@pytest.mark.parametrize(
    ("axis", "error"), [(0, ValueError), ((1, 0), ValueError), (True, TypeError), ("1", TypeError), (1.0, TypeError)]
)
def test_the_axis_of_a_global_pool_is_not_the_first(axis, error):
    for kind in GLOBAL:
        with pytest.raises(error, match=f"{kind.__name__}: axis"):
            kind(axis=axis)


def test_a_global_average_takes_no_rows_without_positions():
    """The mean of one number for each channel would be those numbers: a Flatten too many, and no word of it."""
    with pytest.raises(ValueError, match=r"GlobalAvgPool\(\) got shape \(4, 3\); expected \(n, C, …\) with an axis"):
        cl.GlobalAvgPool()(np.ones((4, 3), np.float32))
    with pytest.raises(ValueError, match="GlobalAvgPool"):
        cl.Model([cl.GlobalAvgPool(), cl.Linear(3, 2)]).predict(np.ones((4, 3)))
