"""Elementwise kernels: broadcasting, outputs, and how exact the elementary functions are."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from caffelite import _kernels as kernels
from tests import reference
from tests.kernels.arguments import uniform
from tests.reference import assert_same_bits, plain_copy

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
UNARY = {"copy": np.positive, "negative": np.negative, "relu": lambda a: np.maximum(a, 0)}


@both_dtypes
@pytest.mark.parametrize("name", [*BINARY, *UNARY])
def test_elementwise_kernels_take_more_axes_than_a_call_has(name, dtype):
    """Transposed and repeated axes cannot be merged, and a call has four."""
    shape = (2, 3, 2, 3, 2, 3, 2)
    a = uniform(*shape, dtype=dtype).transpose(6, 4, 2, 0, 5, 3, 1)
    b = uniform(2, 1, 2, 1, 3, 1, 3, dtype=dtype, seed=1)[..., ::-1]
    arguments = (a, b) if name in BINARY else (a,)
    expected = (BINARY | UNARY)[name](*arguments)
    kernel = getattr(kernels, name)
    assert_same_bits(kernel(*arguments), expected)
    out = np.full(shape, np.nan, dtype).transpose(0, 2, 4, 6, 1, 3, 5)
    assert kernel(*arguments, out) is out
    assert_same_bits(out, expected)


@both_dtypes
@pytest.mark.parametrize("name", BINARY)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_elementwise_kernels_broadcast_as_numpy_does(name, dtype, data, seed):
    ndim, rng = data.draw(st.integers(0, 6)), np.random.default_rng(seed)
    shape = rng.integers(1, 4, ndim)
    operands = []
    for _ in range(2):
        own = np.where(rng.random(ndim) < 0.3, 1, shape)[rng.integers(0, ndim + 1) :]
        array = rng.uniform(0.5, 2, own[::-1]).astype(dtype).transpose()
        operands.append(array[(..., *[slice(None, None, rng.choice([-1, 1])) for _ in own])])
    assert_same_bits(getattr(kernels, name)(*operands), np.asarray(BINARY[name](*operands)))


@pytest.mark.parametrize("name", BINARY)
def test_a_number_takes_the_arrays_dtype(name):
    a = uniform(3) + 2
    for number in (3, 3.5, np.float64(3.5), np.int8(3), True):
        like = np.float32(number)
        assert_same_bits(getattr(kernels, name)(a, number), BINARY[name](a, like))
        assert_same_bits(getattr(kernels, name)(number, a), BINARY[name](like, a))


def test_kernels_may_write_into_their_own_operand():
    a, b = uniform(5, 7), uniform(5, 7, seed=1)
    expected = a + b
    kernels.add(a, b, a)
    assert_same_bits(a, expected)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 2)), ((2,), (3,)), ((2, 3), (2,))])
def test_shapes_that_dont_broadcast_raise_with_both(shapes):
    with pytest.raises(ValueError, match="add") as raised:
        kernels.add(*map(np.ones, shapes))
    assert all(str(shape) in str(raised.value) for shape in shapes)


@pytest.mark.parametrize("shape", [(3,), (3, 2), (1, 2, 3), (1, 3), ()])
def test_an_output_that_the_operands_dont_fill_raises(shape):
    a = np.ones((2, 3)) if shape != (1, 2, 3) else np.ones((2, 1, 2, 3))
    with pytest.raises(ValueError, match="add") as raised:
        kernels.add(a, a, np.ones(shape))
    assert str(shape) in str(raised.value)


@pytest.mark.parametrize("layout", [reference.read_only, reference.unaligned_view, reference.byte_swapped])
@pytest.mark.parametrize("name", ["add", "matmul", "sum"])
def test_an_output_in_memory_that_cannot_be_written_raises(name, layout):
    out = layout(np.ones((2, 2), np.float32))
    before = plain_copy(out)
    arguments = {"add": (out, out), "matmul": (out, out), "sum": (np.ones((2, 2, 3), np.float32), 2)}[name]
    with pytest.raises(ValueError, match="out"):
        getattr(kernels, name)(*arguments, out=out)
    assert_same_bits(out, before)


# The largest errors in units in the last place, as loops/math.pxd states them.
ELEMENTARY = {
    "exp": (np.exp, (-103, 88), 1.1, 1.0),
    "log": (np.log, (1e-30, 1e30), 1.0, 1.0),
    "tanh": (np.tanh, (-10, 10), 2.6, 2.6),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), (-80, 80), 2.5, 2.4),
    "sin": (np.sin, (-(2**21), 2**21), 0.6, 2.2),
    "cos": (np.cos, (-(2**21), 2**21), 0.6, 2.2),
}


def units_in_the_last_place(y, truth):
    return np.abs(y - truth) / np.spacing(np.abs(truth.astype(y.dtype))).astype(np.longdouble)


@pytest.fixture(params=kernels.available_instruction_sets())
def instruction_set(request):
    chosen = kernels.ISA
    kernels.use_instruction_set(request.param)
    yield request.param
    kernels.use_instruction_set(chosen)


@both_dtypes
@pytest.mark.parametrize("name", ELEMENTARY)
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs a type with more digits as the judge")
def test_elementary_functions_are_as_exact_as_they_say(name, dtype):
    judge, (low, high), *errors = ELEMENTARY[name]
    rng = np.random.default_rng(0)
    near_0, far = rng.uniform(-1, 1, 50_000), rng.uniform(low, high, 50_000)
    scales = np.exp(rng.uniform(np.log(1e-30), np.log(high), 50_000))
    x = np.concatenate([scales, abs(near_0)] if name == "log" else [near_0, far, scales, -scales]).astype(dtype)
    x = x[(x >= low) & (x <= high)]
    truth = judge(x.astype(np.longdouble))
    assert units_in_the_last_place(getattr(kernels, name)(x), truth).max() <= errors[dtype == np.float64]


@both_dtypes
@pytest.mark.usefixtures("instruction_set")
def test_elementary_functions_of_extreme_numbers_are_numpys(dtype):
    info = np.finfo(dtype)
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, info.smallest_subnormal, -1.0])
    x = np.concatenate([x, np.log([info.max, info.tiny]), [-2000.0, 2000.0]]).astype(dtype)
    with np.errstate(all="ignore"):
        expected = {name: judge(x) for name, (judge, *_) in ELEMENTARY.items()}
    for name, y in expected.items():
        np.testing.assert_allclose(getattr(kernels, name)(x), y, 10 * info.eps, 4 * info.smallest_subnormal, name)
    assert np.signbit(kernels.tanh(x)).tolist()[:2] == [False, True]
    assert np.signbit(kernels.sin(x)).tolist()[:2] == [False, True]
    assert kernels.cos(x)[:2].tolist() == [1, 1]


@both_dtypes
@pytest.mark.parametrize("name", ELEMENTARY)
@pytest.mark.usefixtures("instruction_set")
def test_a_result_does_not_depend_on_the_place_of_an_element(name, dtype):
    x, kernel = np.random.default_rng(0).uniform(0.1, 30, 100).astype(dtype), getattr(kernels, name)
    y = kernel(x)
    for first, last in [(0, 1), (3, 20), (17, 100), (50, 57)]:
        assert_same_bits(kernel(x[first:last]), y[first:last])
        assert_same_bits(kernel(np.repeat(x, 2)[::2][first:last]), y[first:last])


def test_full_repeats_a_value():
    assert_same_bits(kernels.full((2, 3), 0.1, np.float32), np.full((2, 3), 0.1, np.float32))
    assert_same_bits(kernels.full((), 2, np.float64), np.array(2.0))
