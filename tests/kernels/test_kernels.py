"""The kernels: values, orders of summation, layouts, recordings, instruction sets."""

import functools
import inspect
import itertools
import os
import subprocess
import sys
import textwrap
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.core.recording import Recording
from caffelite.core.sparse import Numbers, sparse_rows
from tests import reference
from tests.reference import (
    LAYOUTS,
    ODD_DTYPES,
    about,
    assert_close,
    assert_same_bits,
    odd_array,
    plain_copy,
    read_only,
    widened,
)

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


def uniform(*shape, dtype=np.float32, seed=0):
    return np.asarray(np.random.default_rng(seed).uniform(-1, 1, shape)).astype(dtype)


def run_python(program, **environment):
    """Run a program of its own; its output if it succeeds."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# ---- matrix product ----


def random_view(rng, rows, columns, dtype):
    """A matrix with strides of its own: transposed, with steps, reversed, or with one row or column repeated."""
    steps = rng.integers(1, 4, 2)
    larger = rng.uniform(-1, 1, (rows * steps[0], columns * steps[1])).astype(dtype)
    if rng.random() < 0.5:
        larger = np.asfortranarray(larger)
    view = larger[:: steps[0], :: steps[1]][:: rng.choice([-1, 1]), :: rng.choice([-1, 1])]
    if rng.random() < 0.2:
        view = np.broadcast_to(view[:1] if rng.random() < 0.5 else view[:, :1], (rows, columns))
    return view


@both_dtypes
@given(st.tuples(*[st.integers(0, 70)] * 3), st.booleans(), st.integers(0, 2**32))
def test_a_product_of_strided_matrices_is_the_judges(dtype, sizes, with_bias, seed):
    (m, n, k), rng = sizes, np.random.default_rng(seed)
    a, b = random_view(rng, m, k, dtype), random_view(rng, k, n, dtype)
    bias = rng.uniform(-1, 1, n).astype(dtype) if with_bias else None
    truth, _ = reference.linear(widened(a), widened(b), None if bias is None else widened(bias))
    y = kernels.matmul(a, b, bias=bias)
    assert_close(y, truth, dtype, scale=np.abs(widened(a)) @ np.abs(widened(b)))
    assert_same_bits(y, kernels.matmul(plain_copy(a), plain_copy(b), bias=bias))


@both_dtypes
@pytest.mark.parametrize("m", [1, 5, 6, 8, 97, 193])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (8, 255), (16, 256), (17, 257), (48, 300), (481, 600), (961, 3)])
def test_a_product_across_the_edges_of_blocks_is_the_judges(m, n, k, dtype):
    a, b = uniform(m, k, dtype=dtype), uniform(k, n, dtype=dtype, seed=1)
    truth = reference.matmul_of_matrices(a, b)
    assert_close(kernels.matmul(a, b), truth, dtype, scale=np.abs(widened(a)) @ np.abs(widened(b)))


# The blocks of K end at 256: on both sides of it the order of a sum must not depend on anything else.
depths = pytest.mark.parametrize("k", [0, 1, 7, 256, 257, 600])


@both_dtypes
@depths
def test_a_row_alone_equals_the_row_among_others(k, dtype):
    a, b, bias = uniform(100, k, dtype=dtype), uniform(k, 50, dtype=dtype, seed=1), uniform(50, dtype=dtype)
    y = kernels.matmul(a, b, bias=bias)
    for rows in [slice(0, 1), slice(99, 100), slice(41, 42), slice(3, 10), slice(50, 100)]:
        assert_same_bits(kernels.matmul(a[rows], b, bias=bias), y[rows])


@both_dtypes
@depths
def test_strides_of_operands_and_output_do_not_change_a_bit(k, dtype):
    a, b = uniform(30, k, dtype=dtype), uniform(k, 50, dtype=dtype, seed=1)
    y = kernels.matmul(a, b)
    for layout_a, layout_b in itertools.product(LAYOUTS, LAYOUTS):
        if reference.zero_strided not in (layout_a, layout_b):
            assert_same_bits(kernels.matmul(layout_a(a), layout_b(b)), y)
    for layout in (reference.fortran_ordered, reference.strided, reference.negatively_strided):
        out = layout(np.full_like(y, np.nan))
        assert kernels.matmul(a, b, out) is out
        assert_same_bits(out, y)


@both_dtypes
@depths
def test_accumulating_adds_what_overwriting_writes(k, dtype):
    a, b, bias = uniform(30, k, dtype=dtype), uniform(k, 50, dtype=dtype, seed=1), uniform(50, dtype=dtype)
    y, before = kernels.matmul(a, b, bias=bias), uniform(30, 50, dtype=dtype, seed=2)
    out = before.copy()
    assert kernels.matmul(a, b, out, bias=bias, accumulate=True) is out
    assert_same_bits(out, before + y)
    out = np.zeros_like(y)
    kernels.matmul(a, b, out, bias=bias, accumulate=True)
    np.testing.assert_array_equal(out, y)


@both_dtypes
@depths
def test_a_bias_is_added_to_the_finished_sum(k, dtype):
    a, b, bias = uniform(30, k, dtype=dtype), uniform(k, 50, dtype=dtype, seed=1), uniform(50, dtype=dtype)
    assert_same_bits(kernels.matmul(a, b, bias=bias), kernels.matmul(a, b) + bias)
    assert_same_bits(kernels.matmul(a, b, bias=reference.strided(bias)), kernels.matmul(a, b, bias=bias))


def test_a_product_overwrites_what_its_output_held():
    out = np.full((30, 50), np.nan, np.float32)
    kernels.matmul(uniform(30, 600), uniform(600, 50), out)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("k", [30, 600])
@pytest.mark.parametrize("operand", [0, 1])
def test_a_product_into_one_of_its_operands_is_right_or_refused(operand, k):
    operands = [uniform(k, k, dtype=np.float64), uniform(k, k, dtype=np.float64, seed=1)]
    expected = kernels.matmul(*operands)
    try:
        kernels.matmul(*operands, operands[operand])
    except ValueError:
        return
    assert_same_bits(operands[operand], expected)


def test_a_product_onto_its_bias_is_refused():
    out = uniform(3, 4)
    with pytest.raises(ValueError, match="operands"):
        kernels.matmul(uniform(3, 5), uniform(5, 4), out, bias=out[0])


def test_a_sum_of_no_products_is_0_or_the_bias():
    empty, bias = np.empty((3, 0)), np.array([1.0, 2.0])
    assert_same_bits(kernels.matmul(empty, np.empty((0, 2))), np.zeros((3, 2)))
    assert_same_bits(kernels.matmul(empty, np.empty((0, 2)), bias=bias), np.tile(bias, (3, 1)))


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        ({"a": (2, 3), "b": (2, 3)}, ["(2, 3)"]),
        ({"a": (3,), "b": (3, 2)}, ["(3,)", "(3, 2)"]),
        ({"a": (2, 3), "b": (3,)}, ["(2, 3)", "(3,)"]),
        ({"a": (1, 2, 3), "b": (3, 4)}, ["(1, 2, 3)", "(3, 4)"]),
        ({"a": (2, 3), "b": (3, 4), "bias": (3,)}, ["(3,)", "(4,)"]),
        ({"a": (2, 3), "b": (3, 4), "bias": (1, 4)}, ["(1, 4)", "(4,)"]),
        ({"a": (2, 3), "b": (3, 4), "out": (4, 2)}, ["(4, 2)", "(2, 4)"]),
        ({"a": (2, 3), "b": (3, 4), "out": (2, 4, 1)}, ["(2, 4, 1)", "(2, 4)"]),
    ],
)
def test_matrices_that_dont_fit_raise_with_both_shapes(shapes, named):
    with pytest.raises(ValueError, match="matmul") as raised:
        kernels.matmul(**{name: np.ones(shape) for name, shape in shapes.items()})
    assert all(shape in str(raised.value) for shape in named)


# ---- sums ----


def every_axis(ndim):
    return [None, *[axes for count in range(ndim + 1) for axes in itertools.combinations(range(ndim), count)]]


@both_dtypes
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(), (7,), (70, 3), (3, 70), (2, 3, 4, 5), (1, 3, 1, 2), (2, 0, 3)])
def test_sums_over_all_combinations_of_axes_are_the_judges(shape, keepdims, dtype):
    a = uniform(*shape, dtype=dtype)
    for axis in every_axis(len(shape)):
        truth, _ = reference.sum(widened(a), axis, keepdims)
        y = kernels.sum(a, axis, keepdims)
        assert_close(y, truth, dtype)
        assert_close(kernels.sum(a, axis, keepdims, scale=-0.25), -0.25 * truth, dtype)
        for layout in LAYOUTS:
            odd = layout(a)
            assert_same_bits(kernels.sum(odd, axis, keepdims), kernels.sum(plain_copy(odd), axis, keepdims))


def test_axes_may_be_negative_and_in_any_order():
    a = uniform(2, 3, 4, 5)
    assert_same_bits(kernels.sum(a, -1), kernels.sum(a, 3))
    assert_same_bits(kernels.sum(a, (2, -4)), kernels.sum(a, (0, 2)))


@both_dtypes
@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), None])
def test_an_accumulated_sum_adds_what_an_overwriting_one_writes(axis, dtype):
    a = uniform(20, 30, 100, dtype=dtype)
    y = kernels.sum(a, axis)
    before = uniform(*y.shape, dtype=dtype, seed=1)
    out = before.copy()
    assert kernels.sum(a, axis, out=out, accumulate=True) is out
    assert_same_bits(out, np.asarray(before + y))
    kernels.sum(a, axis, out=out)
    assert_same_bits(out, y)


def test_a_sum_of_a_million_float32_is_as_good_as_its_elements():
    a = np.full(1_000_000, 0.1, np.float32)
    assert kernels.sum(a) == np.float32(widened(a).sum())
    assert (kernels.sum(a.reshape(-1, 2), 0) == np.float32(widened(a).sum() / 2)).all()


@both_dtypes
@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_is_finite_where_only_sums_of_some_elements_are_not(axis, dtype):
    large = np.finfo(dtype).max / 2
    a = np.tile(np.array([large] * 100 + [-large] * 100, np.float32 if dtype == np.float32 else dtype), (5, 1))
    a[3] = 1
    expected = [0, 0, 0, 200, 0]
    if dtype == np.float64:  # there is no wider type to sum in
        a, expected = a[3:4], expected[3:4]
    assert_same_bits(kernels.sum(a if axis else a.T.copy(), axis), np.array(expected, dtype))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_with_a_number_that_is_not_finite_is_not_finite_and_leaves_its_neighbours(axis, bad):
    a = uniform(100, 130)
    expected = kernels.sum(a, axis)
    a[7, 9] = bad
    expected[7 if axis else 9] = bad
    assert_same_bits(kernels.sum(a, axis), expected)


def test_a_rows_sum_does_not_depend_on_the_rows_beside_it():
    a = uniform(50, 1000)
    assert_same_bits(kernels.sum(a[7:8], 1), kernels.sum(a, 1)[7:8])


@pytest.mark.parametrize("axis", [2, -3, (0, 0), (1, -1)])
def test_axes_that_do_not_exist_or_come_twice_raise(axis):
    with pytest.raises(ValueError, match=r"sum|axis"):
        kernels.sum(uniform(2, 3), axis)


@pytest.mark.parametrize("axis", [1.0, "0", [0]])
def test_axes_are_integers(axis):
    with pytest.raises(TypeError):
        kernels.sum(uniform(2, 3), axis)


# ---- elementwise ----

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


@pytest.mark.parametrize("layout", [reference.read_only, reference.unaligned, reference.byte_swapped])
@pytest.mark.parametrize("name", ["add", "matmul", "sum"])
def test_an_output_that_cannot_be_written_as_it_lies_raises(name, layout):
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
def every_instruction_set_in_turn(request):
    chosen = kernels.ISA
    kernels.use_instruction_set(request.param)
    yield request.param
    kernels.use_instruction_set(chosen)


@both_dtypes
@pytest.mark.parametrize("name", ELEMENTARY)
@pytest.mark.usefixtures("every_instruction_set_in_turn")
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
@pytest.mark.usefixtures("every_instruction_set_in_turn")
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
@pytest.mark.usefixtures("every_instruction_set_in_turn")
def test_a_result_does_not_depend_on_where_an_element_stands(name, dtype):
    x, kernel = np.random.default_rng(0).uniform(0.1, 30, 100).astype(dtype), getattr(kernels, name)
    y = kernel(x)
    for first, last in [(0, 1), (3, 20), (17, 100), (50, 57)]:
        assert_same_bits(kernel(x[first:last]), y[first:last])
        assert_same_bits(kernel(np.repeat(x, 2)[::2][first:last]), y[first:last])


def test_full_repeats_a_value():
    assert_same_bits(kernels.full((2, 3), 0.1, np.float32), np.full((2, 3), 0.1, np.float32))
    assert_same_bits(kernels.full((), 2, np.float64), np.array(2.0))


# ---- softmax loss, finiteness, updates ----


@both_dtypes
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (64, 10), (3, 1000)])
def test_softmax_loss_and_its_gradient_are_the_judges(shape, dtype):
    scores, labels = 5 * uniform(*shape, dtype=dtype), np.random.default_rng(0).integers(0, shape[1], shape[0])
    rows, p = kernels.softmax_loss(scores, labels)
    value = kernels.sum(rows, scale=1 / rows.size)
    truth, backward = reference.softmax_loss(scores, labels)
    assert_close(value, truth, dtype)
    assert_close(p, reference.softmax(scores), dtype)
    gradient = kernels.softmax_loss_grad(p, labels, np.array(0.3, dtype))
    assert_close(gradient, backward(np.float64(np.array(0.3, dtype)))[0], dtype)


@pytest.mark.parametrize("bad", [-1, 3, 10, 2**62, -(2**63)])
def test_check_labels_finds_the_first_bad_row(bad):
    labels = np.array([0, 1, 2, bad, 0, bad])
    assert kernels.check_labels(labels, 3) == 3
    assert kernels.check_labels(labels[:3], 3) == -1
    assert kernels.check_labels(labels[3:][::-1], 3) == 0
    assert kernels.check_labels(labels[:0], 3) == -1


@both_dtypes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_finds_one_bad_element_anywhere(bad, dtype):
    for n in (1, 31, 32, 33, 100):
        a = np.full(n, np.finfo(dtype).max)
        assert kernels.all_finite(a)
        for i in range(n):
            a[i], kept = bad, a[i]
            assert not kernels.all_finite(a)
            assert not kernels.all_finite(a[::-1])
            a[i] = kept
    assert kernels.all_finite(np.empty(0, dtype))


@both_dtypes
@pytest.mark.parametrize(
    "hyper", [(0.1, 0, 0, 0), (0.1, 0, 0.01, 0), (0.1, 0.9, 0, 0), (0.1, 0.9, 0.01, 0), (0.1, 0.9, 0.01, 1)]
)
def test_steps_of_sgd_are_the_judges(hyper, dtype):
    for n in (0, 1, 67):
        w, v = uniform(n, dtype=dtype), np.zeros((1, n), dtype) if hyper[1] else None
        true_w, true_v = widened(w), np.zeros(n)
        for step in range(5):
            g = uniform(n, dtype=dtype, seed=step)
            kernels.update("sgd", w, g, v, np.array(hyper, np.float64))
            true_w, true_v = reference.sgd(true_w, g, true_v, *hyper)
        assert_close(w, true_w, dtype)
        if v is not None:
            assert_close(v[0], true_v, dtype)


def test_sgd_takes_contiguous_vectors_of_one_size():
    w, hyper = np.ones(6), np.array([0.1, 0.9, 0, 0])
    for g in (np.ones(5), np.ones((6, 1)), np.ones(12)[::2]):
        with pytest.raises(ValueError, match="sgd"):
            kernels.update("sgd", w, g, np.zeros((1, 6)), hyper)
        with pytest.raises(ValueError, match="sgd"):
            kernels.update("sgd", w, np.ones(6), g, hyper)
    with pytest.raises(ValueError, match="sgd"):
        kernels.update("sgd", read_only(w), np.ones(6), None, hyper)
    with pytest.raises(ValueError, match="sgd"):
        kernels.update("sgd", w, np.ones(6), None, hyper[:3])
    with pytest.raises(ValueError, match="sgd takes no steps"):
        kernels.update("sgd", w, np.ones(6), None, hyper, np.array([[6, 1.0]]))
    with pytest.raises(ValueError, match="'sdg'"):
        kernels.update("sdg", w, np.ones(6), None, hyper)
    assert (w == 1).all()


ADAM = np.array([0.01, 0.9, 0.999, 1e-8, 0.1])  # η, β₁, β₂, ε, λ


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(dtype, scale) for dtype in (np.float32, np.float64) for scale in (1.0, 1e-30, 1e30, 3e37)]
    + [(np.float64, 1e-200), (np.float64, 1e200), (np.float64, 1e306)],
)
def test_a_norm_is_as_exact_as_float64_and_neither_overflows_nor_vanishes(dtype, scale):
    for n in (1, 7, 8, 9, 67, 1000):
        g, others = uniform(n, dtype=dtype) * dtype(scale), np.array([2 * scale])
        before = g.copy()
        truth = scale * np.sqrt(np.sum((np.float64(g) / scale) ** 2))
        norm = kernels.norm(g)
        assert (norm.shape, norm.dtype) == ((1,), np.float64)
        least = 0 if scale < 1e-150 else truth  # squares of float64 may vanish, but not what counts
        assert least * (1 - 1e-14) <= norm[0] <= truth * (1 + 1e-14)
        assert kernels.norm(g, others)[0] == pytest.approx(np.hypot(norm[0], 2 * scale), rel=1e-15)
        assert_same_bits(g, before)
    assert kernels.norm(np.empty(0, dtype))[0] == 0


@both_dtypes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_norm_finds_one_bad_element_anywhere(bad, dtype):
    for n in (1, 8, 33):
        for i in range(n):
            g = np.full(n, np.finfo(dtype).max / 64)
            assert np.isfinite(kernels.norm(g)[0])
            g[i] = bad
            with pytest.raises(ArithmeticError):
                kernels.norm(g, None, refuse)
    with pytest.raises(ArithmeticError):
        kernels.norm(np.full(3, 1.7e308), None, refuse)  # finite, but not their norm


@both_dtypes
def test_a_norm_is_limited_by_one_factor_where_it_is_too_large(dtype):
    for n in (0, 1, 8, 67):
        g = uniform(n, dtype=dtype)
        norm = kernels.norm(g)
        for limit in (1e-3, norm[0] / 2, norm[0], norm[0] + 1e-3, 1e9):
            limited, factor = g.copy(), limit / (norm[0] + 1e-6)
            kernels.limit_norm(limited, norm, limit)
            assert_close(limited, np.float64(g) * factor if factor < 1 else np.float64(g), dtype)
            if factor >= 1:
                assert_same_bits(limited, g)
    huge = np.full(64, np.finfo(dtype).max / 8, dtype)  # the factor is a subnormal number
    kernels.limit_norm(huge, kernels.norm(huge), 1e-3)
    np.testing.assert_allclose(huge, 1e-3 / 8, rtol=1e-6)


def test_norms_are_of_contiguous_vectors():
    g, norm = np.ones(6), np.ones(1)
    for bad in (g[::2], np.ones((2, 3)), np.ones(())):
        with pytest.raises(ValueError, match="norm"):
            kernels.norm(bad)
        with pytest.raises(ValueError, match="limit_norm"):
            kernels.limit_norm(bad, norm, 1.0)
    for bad in (np.ones(2), np.ones(())):
        with pytest.raises(ValueError, match="norm"):
            kernels.norm(g, bad)
        with pytest.raises(ValueError, match="limit_norm"):
            kernels.limit_norm(g, bad, 1.0)
    with pytest.raises(ValueError, match="limit_norm"):
        kernels.limit_norm(read_only(g), norm, 1.0)


@both_dtypes
@pytest.mark.parametrize("rule", ["adam", "adamw"])
@pytest.mark.parametrize(
    "hyper", [ADAM, (0.01, 0.9, 0.999, 1e-8, 0), (0.01, 0, 0.99, 1e-3, 0.1), (0.01, 0.5, 0, 1, 0), (0.01, 0, 0, 1, 0)]
)
def test_steps_of_adam_are_the_judges(hyper, rule, dtype):
    hyper = np.array(hyper, np.float64)
    for n in (0, 1, 67):
        w, moments, steps = uniform(n, dtype=dtype), np.zeros((2, n), dtype), np.array([[n, 0.0]])
        truth = widened(w), *widened(moments)
        for t in range(1, 6):
            g = uniform(n, dtype=dtype, seed=t)
            kernels.count_steps(steps)
            kernels.update(rule, w, g, moments, hyper, steps)
            truth = reference.adam(truth[0], g, *truth[1:], t, *hyper, decoupled=rule == "adamw")
        for array, true in zip((w, *moments), truth, strict=True):
            assert_close(array, true, dtype)


def test_each_parameter_of_a_run_is_in_its_own_step_of_adam():
    sizes, counts = [5, 0, 40, 3, 19], [1.0, 7.0, 1.0, 2.0, 1000.0]
    w, g, moments = uniform(67), uniform(67, seed=1), np.abs(uniform(2, 67, seed=2))
    expected = []
    for (size, t), last in zip(zip(sizes, counts, strict=True), np.cumsum(sizes), strict=True):
        part = slice(last - size, last)
        alone = w[part].copy(), moments[:, part].copy()
        kernels.update("adam", alone[0], g[part], alone[1], ADAM, np.array([[size, t]]))
        expected.append(np.vstack(alone))
    kernels.update("adam", w, g, moments, ADAM, np.array([sizes, counts]).T.copy())
    assert_same_bits(np.vstack([w, moments]), np.hstack(expected))


@both_dtypes
def test_a_mean_of_adam_that_gradients_no_longer_feed_ends_at_zero(dtype):
    w, zero, moments = np.ones(40, dtype), np.zeros(40, dtype), np.full((2, 40), 3 * np.finfo(dtype).tiny, dtype)
    for t in range(1, 20):
        kernels.update("adamw", w, zero, moments, ADAM, np.array([[40.0, t]]))
    assert (moments[0] == 0).all()
    assert (moments[1] > 0).all()


def test_adam_takes_contiguous_vectors_of_one_size_and_steps_of_that_many_elements():
    w, g, moments, steps = np.ones(6), np.ones(6), np.zeros((2, 6)), np.array([[2, 1.0], [4, 1.0]])
    bad = [(w, a, moments, ADAM, steps) for a in (g[:5], np.ones((6, 1)), np.ones(12)[::2])]
    bad += [(w, g, a, ADAM, steps) for a in (np.zeros((2, 5)), np.zeros((3, 6)), np.zeros((1, 6)), np.zeros(12), None)]
    bad += [(w, g, a, ADAM, steps) for a in (np.zeros((2, 12))[:, ::2], np.zeros((6, 2)).T)]
    bad += [(w, g, moments, ADAM, a) for a in (steps[:1], steps[0], np.zeros((0, 2)), steps.T, steps[:, :1], None)]
    bad += [(w, g, moments, ADAM[:4], steps)]
    bad += [(read_only(w), g, moments, ADAM, steps), (w, g, read_only(moments), ADAM, steps)]
    for arguments in bad:
        with pytest.raises(ValueError, match="adam"):
            kernels.update("adam", *arguments)
    for rows in (steps[0], steps.T, read_only(steps)):
        with pytest.raises(ValueError, match="count_steps"):
            kernels.count_steps(rows)
    assert (w == 1).all()
    assert (moments == 0).all()


# ---- batches ----


@pytest.mark.parametrize("n", [0, 1, 2, 3, 100, 10_000])
def test_shuffling_permutes(n):
    order, state = np.arange(n), np.arange(1, 5, dtype=np.uint64)
    kernels.shuffle(order, state)
    assert sorted(order) == list(range(n))
    assert n < 100 or (order != np.arange(n)).mean() > 0.9


def test_the_same_state_gives_the_same_order_and_moves_on():
    orders = []
    for _ in range(2):
        order, state = np.arange(50), np.arange(1, 5, dtype=np.uint64)
        kernels.shuffle(order, state)
        first = order.copy()
        kernels.shuffle(order, state)
        assert (order != first).any()
        orders.append(order)
    assert_same_bits(*orders)


def test_all_orders_are_equally_likely():
    counts, state = {}, np.random.default_rng(0).integers(0, 2**64, 4, np.uint64)
    for _ in range(24_000):
        order = np.arange(4)
        kernels.shuffle(order, state)
        key = order.tobytes()
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 24
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert 7.5 < chi_square < 49.7  # the middle 99.8 % for 23 degrees of freedom


def test_a_row_comes_to_every_place_equally_often():
    counts, state = np.zeros((37, 37)), np.random.default_rng(1).integers(0, 2**64, 4, np.uint64)
    for _ in range(3700):
        order = np.arange(37)
        kernels.shuffle(order, state)
        counts[order, np.arange(37)] += 1
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert 1140 < chi_square < 1458  # the middle 99.8 % for 36² degrees of freedom


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "complex128", ">f4", "S5", "i1,f8"])
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 5), (7, 0)])
def test_take_copies_rows_of_any_dtype(dtype, shape):
    rows, order = odd_array(dtype, shape), np.array([6, 0, 0, 3])
    rows.view(np.uint8)[...] = np.random.default_rng(0).integers(0, 2, rows.view(np.uint8).shape)
    taken = kernels.take(rows, order)
    assert taken.dtype == rows.dtype
    assert taken.tobytes() == rows[order].tobytes()
    if rows.dtype.isnative:
        out = np.empty_like(taken)
        assert kernels.take(rows, reference.unaligned(order), out) is out
        assert out.tobytes() == taken.tobytes()
    assert kernels.take(rows, order[:0]).shape == (0, *shape[1:])


@pytest.mark.parametrize("bad", [-1, 7, 2**62, -(2**63)])
def test_take_refuses_rows_that_are_not_there(bad):
    out = np.full((3, 2), 5.0)
    with pytest.raises(IndexError, match=f"{bad} at 1.* 7 rows"):
        kernels.take(np.ones((7, 2)), np.array([0, bad, 3]), out)
    assert (out == 5).all()


@pytest.mark.usefixtures("threads_restored")
def test_no_thread_takes_a_row_if_another_one_refuses_its_rows():
    cl.set_num_threads(2)
    out, order = np.full((1000, 10_000), 5, np.float32), np.zeros(1000, np.int64)
    order[-1] = 7
    with pytest.raises(IndexError, match="7 at 999"):
        kernels.take(np.ones((7, 10_000), np.float32), order, out)
    assert (out == 5).all()


@both_dtypes
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 7, 5), (17, 1, 40), (1, 300, 2), (70, 600, 33), (0, 2, 3), (2, 0, 3)])
def test_a_stack_of_products_is_the_products_one_by_one(sizes, dtype):
    m, k, n = sizes
    a, b = uniform(4, m, k, dtype=dtype), uniform(4, k, n, dtype=dtype)
    turned = uniform(k, m, 4, dtype=dtype).transpose(2, 1, 0)
    for left, right in ((a, b), (turned, b[::-1]), (np.broadcast_to(a[0], a.shape), b), (reference.unaligned(a), b)):
        expected = np.stack([kernels.matmul(x, y) for x, y in zip(left, right, strict=True)])
        assert_same_bits(kernels.matmul_stack(left, right), expected)
        out = np.full((m, n, 4), np.nan, dtype).transpose(2, 0, 1)
        assert kernels.matmul_stack(left, right, out) is out
        assert_same_bits(out, expected)


def test_stacks_of_matrices_that_dont_fit_raise_with_both_shapes():
    a = np.ones((2, 3, 4))
    for b in (np.ones((2, 3, 4)), np.ones((3, 4, 2)), np.ones((4, 2))):
        with pytest.raises(ValueError, match="matmul_stack") as raised:
            kernels.matmul_stack(a, b)
        assert str(a.shape) in str(raised.value)
        assert str(b.shape) in str(raised.value)
    for out in (np.ones((2, 3, 3)), a):
        with pytest.raises(ValueError, match="out"):
            kernels.matmul_stack(a, np.ones((2, 4, 4)), out)


@pytest.mark.parametrize("kind", ["i1", "i8", "u2", ">i4"])
def test_ravel_index_is_numpys_for_indices_from_either_end(kind):
    rng, lengths = np.random.default_rng(0), (4, 3, 70)
    shapes = [(5, 1, 2), (1,), (7, 1)]
    indices = [
        rng.integers(-n if kind[-2] == "i" else 0, n, s).astype(kind) for n, s in zip(lengths, shapes, strict=True)
    ]
    expected = np.ravel_multi_index([np.where(i < 0, i + n, i) for i, n in zip(indices, lengths, strict=True)], lengths)
    places = kernels.ravel_index(lengths, *indices)
    assert_same_bits(places, expected)
    assert_same_bits(kernels.ravel_index(lengths, *[reference.strided(i) for i in indices]), expected)
    assert kernels.ravel_index((3,), -1) == 2


def test_ravel_index_takes_more_axes_than_a_call_has():
    index = np.arange(64).reshape(2, 2, 2, 2, 2, 2).transpose(5, 3, 1, 4, 2, 0)
    assert_same_bits(kernels.ravel_index((3, 64), index[..., :1] % 3, index), index[..., :1] % 3 * 64 + index)


def test_ravel_index_takes_every_place_of_an_axis_and_lists_of_many_axes():
    index, lengths = np.array([[1, 0, 2], [2, 2, 1]]), (2, 4, 3)
    expected = np.ravel_multi_index((np.arange(2)[:, None, None], index[:, :, None], np.arange(3)), lengths)
    assert_same_bits(kernels.ravel_index(lengths, None, index[:, :, None], None), expected)
    odd = np.arange(96).reshape(2, 2, 2, 2, 2, 3)[..., ::2].transpose(5, 3, 1, 4, 2, 0)
    expected = np.arange(2).reshape(2, 1, 1, 1, 1, 1) * 96 + odd
    places = np.arange(2).reshape(2, 1, 1, 1, 1, 1).tolist()
    assert_same_bits(kernels.ravel_index((2, 96), places, odd), expected)


def test_ravel_index_refuses_negative_indices_where_they_do_not_count_from_the_end():
    assert kernels.ravel_index((3, 4), np.array([2]), 1, wraps=False) == 9
    for indices in ((np.array([2, -1]), 0), (0, -1)):
        with pytest.raises(IndexError, match="index -1 is out of bounds"):
            kernels.ravel_index((3, 4), *indices, wraps=False)
    with pytest.raises(ArithmeticError, match=r"\[2, 3\]"):
        kernels.ravel_index((3,), np.array([2, 3]), on_stop=refuse)


@pytest.mark.parametrize("bad", [4, -5, 2**62, -(2**63)])
def test_ravel_index_names_the_index_that_is_out_of_bounds(bad):
    with pytest.raises(IndexError, match=f"{bad} is out of bounds.* 4"):
        kernels.ravel_index((3, 4), np.array([0, 1, 2]), np.array([3, bad, 9]))
    with pytest.raises(IndexError, match=r"\(3,\).*\(2,\)"):
        kernels.ravel_index((3, 4), np.array([0, 1, 2]), np.array([3, 0]))
    for indices in ([np.array([1]), np.array([2])], []):
        with pytest.raises(ValueError, match=f"{len(indices)} indices"):
            kernels.ravel_index((5,), *indices)


@both_dtypes
@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 70), (9, 2, 3), (9, 0), (0, 3)])
def test_take_grad_adds_up_what_was_taken_repeatedly(shape, dtype):
    dy, order = uniform(*shape, dtype=dtype), np.random.default_rng(0).integers(0, 4, shape[0])
    expected = np.zeros((6, *shape[1:]), dtype)
    np.add.at(expected, order, dy)
    assert_same_bits(kernels.take_grad(dy, order, 6), expected)


@pytest.mark.parametrize("bad", [-1, 7, 2**62, -(2**63)])
def test_take_grad_refuses_rows_that_are_not_there(bad):
    with pytest.raises(IndexError, match=f"{bad} at 1.* 7 rows"):
        kernels.take_grad(np.ones((3, 2)), np.array([0, bad, 3]), 7)


# ---- dtypes and layouts ----


def arrays_taken(kernel):
    """How many arguments a kernel's function requires."""
    parameters = inspect.signature(getattr(kernels, kernel.name)).parameters.values()
    return sum(parameter.default is parameter.empty for parameter in parameters)


def places_in(a):
    """Places in three series, each of which lies in a column."""
    places = np.array([[0, 1, 1], [1, 1, 2], [2, 0, 1]], np.int64 if a.itemsize == 8 else np.int32)
    return places.T[:, None]


WITH_NUMBERS = ("clip", "clip_grad", "leaky_relu", "leaky_relu_grad", "elu", "elu_grad", "penalty", "penalty_grad")
WITH_NUMBERS += ("maximum_grad", "minimum_grad")
ELEMENTWISE = [
    kernel for kernel in kernels.KERNELS.values() if kernel.op and kernel.name not in ("full", *WITH_NUMBERS)
]
SERIES = {"stride": (1,), "padding": (1,), "dilation": (1,)}  # of a convolution of series
WINDOWS = ((1, 3), (1, 1), (0, 1))  # sizes, strides and pads of windows of a series
LEVELS = np.array([0.1, 0.5, 0.9])  # one for each element of a row
TURNED = np.array([[0.8, 0.5], [-0.4, 1.1]])


def steps_for(rule, rows):
    """The steps that a rule takes, of rows (elements, t, product of momenta); None if it takes none."""
    return np.ascontiguousarray(rows[:, : rule.steps]) if rule.steps else None


FLOAT_KERNELS = {
    **{
        kernel.name: lambda a, kernel=kernel: arrays_of(getattr(kernels, kernel.name)(*[a] * arrays_taken(kernel)))[0]
        for kernel in ELEMENTWISE
    },
    "clip": lambda a: kernels.clip(a, 0.25, 0.5),
    "clip_grad": lambda a: kernels.clip_grad(a, a, 0.25, 0.5),
    "leaky_relu": lambda a: kernels.leaky_relu(a, 0.25),
    "leaky_relu_grad": lambda a: kernels.leaky_relu_grad(a, a, 0.25),
    "elu": lambda a: kernels.elu(a, 0.25),
    "elu_grad": lambda a: kernels.elu_grad(a, a, 0.25),
    "penalty": lambda a: kernels.penalty(a, 0.1, 0.2),
    "penalty_grad": lambda a: kernels.penalty_grad(a, a, 0.1, 0.2),
    "maximum_grad": lambda a: kernels.maximum_grad(a, a, a[::-1], True),
    "minimum_grad": lambda a: kernels.minimum_grad(a, a, a[::-1], False),
    "matmul": lambda a: kernels.matmul(a, a),
    "sum": lambda a: kernels.sum(a, 0),
    "cumsum": lambda a: kernels.cumsum(a, 0),
    "prod": lambda a: kernels.prod(a, 0),
    "prod_grad": lambda a: kernels.prod_grad(a[0], a, 1),
    "variance": lambda a: kernels.variance(a, 1, scale=0.5),
    "variance_grad": lambda a: kernels.variance_grad(a[0], a, 0, scale=0.5),
    "logsumexp": lambda a: kernels.logsumexp(a, 0),
    "logsumexp_grad": lambda a: kernels.logsumexp_grad(a[0], a, 1),
    "largest": lambda a: kernels.largest(a, 0)[0],
    "smallest": lambda a: kernels.smallest(a, 1)[0],
    "extreme_grad": lambda a: kernels.extreme_grad(a[0], np.array([0, 2, 1]), (3, 3), 0),
    "softmax": lambda a: kernels.softmax(a, 0),
    "softmax_grad": lambda a: kernels.softmax_grad(a, a),
    "log_softmax": lambda a: kernels.log_softmax(a),
    "log_softmax_grad": lambda a: kernels.log_softmax_grad(a, a, 0),
    "all_finite": lambda a: kernels.all_finite(a),
    "softmax_loss": lambda a: kernels.softmax_loss(a, np.array([0, 1, 1]))[1],
    "softmax_loss_grad": lambda a: kernels.softmax_loss_grad(a, np.array([0, 1, 1]), a[0, :1]),
    "soft_loss": lambda a: kernels.soft_loss(a, a, 0.1)[1],
    "soft_loss_grad": lambda a: kernels.soft_loss_grad(a, a, a[0, :1], None, 0.1),
    "hinge_loss": lambda a: kernels.hinge_loss(a, np.array([0, 1, 1]), 1.0),
    "hinge_loss_grad": lambda a: kernels.hinge_loss_grad(a, np.array([0, 1, 1]), a[0, :1], 1.0),
    "mse_loss": lambda a: kernels.mse_loss(a, a[::-1]),
    "mse_loss_grad": lambda a: kernels.mse_loss_grad(a, a[::-1], a[0, :1]),
    "mae_loss": lambda a: kernels.mae_loss(a, a[::-1]),
    "mae_loss_grad": lambda a: kernels.mae_loss_grad(a, a[::-1], a[0, :1]),
    "huber_loss": lambda a: kernels.huber_loss(a, a[::-1], 0.5),
    "huber_loss_grad": lambda a: kernels.huber_loss_grad(a, a[::-1], a[0, :1], 0.5),
    "sigmoid_loss": lambda a: kernels.sigmoid_loss(a, a[::-1], np.array([2.0])),
    "sigmoid_loss_grad": lambda a: kernels.sigmoid_loss_grad(a, a[::-1], a[0, :1], np.array([2.0])),
    "quantile_loss": lambda a: kernels.quantile_loss(a, a[::-1], LEVELS),
    "quantile_loss_grad": lambda a: kernels.quantile_loss_grad(a, a[::-1], a[0, :1], LEVELS),
    "poisson_loss": lambda a: kernels.poisson_loss(a, a[::-1]),
    "poisson_loss_grad": lambda a: kernels.poisson_loss_grad(a, a[::-1], a[0, :1]),
    "gaussian_loss": lambda a: kernels.gaussian_loss(a[:, :2], a[:, 2:]),
    "gaussian_loss_grad": lambda a: kernels.gaussian_loss_grad(a[:, :2], a[:, 2:], a[0, :1]),
    "focal": lambda a: kernels.focal(a, 2.0)[0],
    "weighted_mean": lambda a: kernels.weighted_mean(a[0], a[1])[1],
    "shift": lambda a: kernels.shift(a[None], np.array([7, 3, 1]), 1),
    "flip": lambda a: kernels.flip(a[:, None], np.array([7, 3, 1])),
    "cutout": lambda a: kernels.cutout(a[None], np.array([7, 3, 1]), 2),
    "crop": lambda a: kernels.crop(a[None], np.array([7, 3, 1]), 4, 2, 1),
    "affine": lambda a: kernels.affine(a[None], TURNED[None]),
    "check_probabilities": lambda a: kernels.check_probabilities(a, 0.5, 1.0),
    "max_pool": lambda a: kernels.max_pool(a[:, None], *WINDOWS)[0],
    "max_pool_grad": lambda a: kernels.max_pool_grad(a[:, None], places_in(a), a[:, None], *WINDOWS),
    "average_pool": lambda a: kernels.average_pool(a[:, None], *WINDOWS),
    "average_pool_grad": lambda a: kernels.average_pool_grad(a[:, None], a[:, None], *WINDOWS),
    "upsample": lambda a: kernels.upsample(a[:, None], (1, 2)),
    "upsample_grad": lambda a: kernels.upsample_grad(a[:, None], a[:, None], (1, 1)),
    "convolution": lambda a: kernels.convolution(a[:, None], a[:, None], (3,), a[0], **SERIES),
    "transposed_convolution": lambda a: kernels.transposed_convolution(
        a[:, :, None], a[:, None], (3,), a[0, :1], **SERIES
    ),
    "convolution_weight_grad": lambda a: kernels.convolution_weight_grad(
        *(a[:, None], a[:, None], np.full((1, 1, 3), np.nan, np.float32 if a.itemsize == 4 else np.float64)), **SERIES
    ),
}


@pytest.mark.parametrize("name", FLOAT_KERNELS)
def test_kernels_compute_in_float32_or_float64_only(name):
    for dtype in ODD_DTYPES:
        a = odd_array(dtype, (3, 3))
        native = np.dtype(dtype).newbyteorder("=")
        with about(dtype):
            if native in DTYPES:
                assert_same_bits(FLOAT_KERNELS[name](a), FLOAT_KERNELS[name](a.astype(native)))
            else:
                with pytest.raises(TypeError, match=name):
                    FLOAT_KERNELS[name](a)


@pytest.mark.parametrize("name", FLOAT_KERNELS)
@both_dtypes
def test_kernels_give_the_plain_copys_bits(name, dtype):
    for layout in LAYOUTS:
        with about(layout.__name__):
            odd = layout(uniform(3, 3, dtype=dtype) + 2)
            before = plain_copy(odd)
            assert_same_bits(FLOAT_KERNELS[name](odd), FLOAT_KERNELS[name](before))
            assert_same_bits(odd, before)


# ---- orders of memory ----

ORDERS = [plain_copy, reference.fortran_ordered, reference.images_last, reference.channels_last]
every_order = pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
IMAGES = (3, 4, 5, 6)


def strides_that_count(array):
    return [stride for stride, n in zip(array.strides, array.shape, strict=True) if n > 1]


def has_order(array, order):
    return strides_that_count(array) == strides_that_count(order(np.empty(array.shape, array.dtype)))


@pytest.mark.parametrize("name", [name for name in FLOAT_KERNELS if kernels.KERNELS[name].op and name != "copy"])
@every_order
@both_dtypes
def test_an_elementwise_kernels_output_has_the_memory_order_of_its_input(name, order, dtype):
    a = uniform(*IMAGES, dtype=dtype) + 2
    y = FLOAT_KERNELS[name](order(a))
    assert_same_bits(y, FLOAT_KERNELS[name](a))
    assert has_order(y, order)


@pytest.mark.parametrize("kernel", [kernels.gelu, kernels.gelu_tanh], ids=["gelu", "gelu_tanh"])
@every_order
@both_dtypes
def test_the_slope_that_a_kernel_gives_besides_lies_as_its_output(kernel, order, dtype):
    a = uniform(*IMAGES, dtype=dtype) - 0.5
    y, slope = kernel(a)
    np.testing.assert_allclose(slope, (kernel(a + 1e-3)[0] - kernel(a - 1e-3)[0]) / 2e-3, atol=1e-3)
    assert_same_bits(kernel(order(a))[1], slope)
    alone, no_slope = kernel(order(a), slope=False)
    assert_same_bits(alone, y)
    assert no_slope is None
    assert has_order(kernel(order(a))[1], order)
    wide = np.zeros((*a.shape, 2), dtype)
    in_place = order(a.copy())
    for out in (wide[..., 0], in_place):
        given, slope_beside = kernel(in_place, out)
        assert given is out
        assert_same_bits(out, y)
        assert_same_bits(slope_beside, slope)
    for strided in (wide[..., 0], order(a.copy())):  # whose own elements are where a slope would be written
        strided[...] = a
        kernel(strided, np.empty_like(a), slope=False)
        assert_same_bits(strided, a)
        kernel(strided, strided, slope=False)
        assert_same_bits(strided, y)
    deep = a.reshape(2, 1, *a.shape[:2], 1, -1).transpose(5, 3, 4, 1, 2, 0)
    assert_same_bits(kernel(deep)[1], slope.reshape(2, 1, *a.shape[:2], 1, -1).transpose(5, 3, 4, 1, 2, 0))


@every_order
@both_dtypes
def test_the_first_input_of_the_outputs_shape_gives_the_order(order, dtype):
    a, b = uniform(*IMAGES, dtype=dtype), uniform(*IMAGES, dtype=dtype, seed=1)
    others = [
        b,
        *[layout(b) for layout in LAYOUTS],
        b[:1],
        b[:, :1],
        b[0, :, :1, :1],
        b[..., 0, 0][..., None, None],
        0.5,
    ]
    for other in others:
        y = kernels.subtract(order(a), other)
        assert_same_bits(y, a - np.asarray(other, dtype))
        assert has_order(y, order)
        assert_same_bits(kernels.where(other, a, order(b)), np.where(other, a, b))
        if np.shape(other) != IMAGES:
            assert has_order(kernels.subtract(other, order(a)), order)


@every_order
def test_what_is_repeated_gives_no_order(order):
    a, repeated = uniform(*IMAGES), np.broadcast_to(uniform(4, 1, 1), IMAGES)
    assert has_order(kernels.add(repeated, order(a)), order)
    assert kernels.negative(repeated).flags.c_contiguous
    assert kernels.add(repeated, 1).flags.c_contiguous


@every_order
def test_a_part_of_an_array_gives_its_order_without_its_gaps(order):
    a = uniform(7, 8, 9, 10)
    for part in [np.s_[2:5], np.s_[:, 1:3], np.s_[..., ::2], np.s_[:, :, ::-1], np.s_[:, :1], np.s_[:1]]:
        y = kernels.negative(order(a)[part])
        assert_same_bits(y, -a[part])
        assert strides_that_count(y) == strides_that_count(np.copy(order(a)[part], order="K"))


def test_a_new_copy_is_in_c_order():
    for order in ORDERS:
        a = order(uniform(*IMAGES))
        assert kernels.copy(a).flags.c_contiguous
        assert kernels.convert(a, np.float64).flags.c_contiguous


@both_dtypes
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (64, 3, 5, 5), (17, 33, 9, 7), (130, 16, 8, 8), (5, 70, 3, 31)])
def test_a_copy_from_any_order_to_any_other_has_the_same_elements(shape, dtype):
    a = uniform(*shape, dtype=dtype)
    for before, after in itertools.product(ORDERS, ORDERS):
        out = after(np.full_like(a, np.nan))
        kernels.copy(before(a), out)
        assert_same_bits(out, a)
    out = np.full((*shape[:3], 2 * shape[3]), 77, dtype)
    kernels.copy(reference.images_last(a), out[..., : shape[3]])
    assert_same_bits(out[..., : shape[3]], a)
    assert (out[..., shape[3] :] == 77).all()


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_a_copy_in_another_order_that_threads_share_is_whole(threads):
    cl.set_num_threads(threads)
    a = uniform(67, 33, 17, 15)
    for before, after in itertools.permutations(ORDERS, 2):
        out = after(np.full_like(a, np.nan))
        kernels.copy(before(a), out)
        assert_same_bits(out, a)


@every_order
@both_dtypes
@pytest.mark.parametrize("shape", [(5, 3, 7), (70, 66, 3, 5), (3, 130, 2, 2), (1, 4, 3, 3), (6, 1, 2, 9), (9, 4, 1, 1)])
@pytest.mark.usefixtures("threads_restored")
def test_batch_norm_has_the_same_bits_and_keeps_the_order_in_every_order_of_memory(shape, order, dtype):
    x, dy = 10 + uniform(*shape, dtype=dtype), uniform(*shape, dtype=dtype, seed=1)
    scale, shift = uniform(shape[1], dtype=dtype), uniform(shape[1], dtype=dtype, seed=2)

    def everything(x, dy):
        y, moments = kernels.batch_norm(x, scale, shift, 1e-5)
        fixed = kernels.batch_norm_fixed(x, scale, shift, moments)
        return y, fixed, moments, *kernels.batch_norm_grad(dy, x, scale, moments)

    expected = everything(x, dy)
    for threads, other in itertools.product((1, 2, 3, 8), (order, plain_copy)):
        cl.set_num_threads(threads)
        results = everything(order(x), other(dy))
        for result, same in zip(results, expected, strict=True):
            assert_same_bits(result, same)
        if order is not reference.fortran_ordered and max(shape[2:]) > 1:
            assert all(has_order(result, order) for result in (*results[:2], results[3]))
    gaps = order(np.repeat(x, 2, 0))[::2]
    for result, same in zip(everything(gaps, dy), expected, strict=True):
        assert_same_bits(result, same)


@every_order
@both_dtypes
def test_a_dropped_element_is_dropped_in_every_order_of_memory(order, dtype):
    x, drawn = uniform(*IMAGES, dtype=dtype), np.array([7, 3])
    y = kernels.dropout_grad(order(x), drawn, 0.5)
    assert_same_bits(y, kernels.dropout_grad(x, drawn, 0.5))
    assert has_order(y, order)


@both_dtypes
def test_a_product_written_as_columns_has_the_bits_of_one_written_as_rows(dtype):
    for m, n, k in itertools.product((1, 5, 16, 97), (1, 3, 16, 130), (0, 3, 300)):
        a, b, bias = uniform(m, k, dtype=dtype), uniform(k, n, dtype=dtype, seed=1), uniform(n, dtype=dtype, seed=2)
        before = uniform(m, n, dtype=dtype, seed=3)
        for accumulate in (False, True):
            rows, columns = before.copy(), before.copy(order="F")
            for out in (rows, columns):
                kernels.matmul(a, b, out, bias=bias, accumulate=accumulate)
            assert_same_bits(columns, rows)


def test_float32_and_float64_do_not_mix():
    a, b = np.ones((3, 3), np.float32), np.ones((3, 3))
    mixtures = {
        "add": lambda: kernels.add(a, b),
        "add to": lambda: kernels.add(a, a, b),
        "relu to": lambda: kernels.relu(a, b),
        "where": lambda: kernels.where(a, a, b),
        "where condition": lambda: kernels.where(b, a, a),
        "softmax_grad": lambda: kernels.softmax_grad(a, b),
        "matmul": lambda: kernels.matmul(a, b),
        "matmul_stack": lambda: kernels.matmul_stack(a[None], b[None]),
        "matmul bias": lambda: kernels.matmul(a, a, bias=b[0]),
        "matmul to": lambda: kernels.matmul(a, a, b),
        "sum to": lambda: kernels.sum(a, 0, out=b[0]),
        "softmax_loss_grad": lambda: kernels.softmax_loss_grad(a, np.array([0, 1, 1]), np.array(1.0)),
        "sgd": lambda: kernels.update("sgd", a[0], b[0], None, np.zeros(4)),
        "sgd velocity": lambda: kernels.update("sgd", a[0], a[0], b[:1], np.zeros(4)),
        "adam": lambda: kernels.update("adam", a[0], b[0], a[:2].copy(), ADAM, np.array([[3, 1.0]])),
        "adam moments": lambda: kernels.update("adam", a[0], a[0], b[:2], ADAM, np.array([[3, 1.0]])),
    }
    for name, mixture in mixtures.items():
        with pytest.raises(TypeError, match=name.split()[0]) as raised:
            mixture()
        assert "float32" in str(raised.value)
        assert "float64" in str(raised.value)


def test_other_arguments_of_a_wrong_dtype_are_type_errors():
    order, state, rows = np.arange(3), np.ones(4, np.uint64), np.ones((3, 2))
    wrong = {
        "softmax_loss": lambda: kernels.softmax_loss(rows, order.astype(np.int32)),
        "check_labels": lambda: kernels.check_labels(order.astype(np.float64), 3),
        "convert": lambda: kernels.convert(order.astype(complex), np.float32),
        "convert to": lambda: kernels.convert(order, np.int32),
        "convert swapped to": lambda: kernels.convert(order, ">f4"),
        "convert bool": lambda: kernels.convert(order > 1, np.int64),
        "convert float": lambda: kernels.convert(rows, np.int64),
        "extreme_grad": lambda: kernels.extreme_grad(rows[0], np.zeros(2, np.int32), (3, 2), 0),
        "shuffle": lambda: kernels.shuffle(order.astype(np.int32), state),
        "shuffle state": lambda: kernels.shuffle(order, state.astype(np.int64)),
        "take": lambda: kernels.take(rows, order.astype(np.float64)),
        "take_grad": lambda: kernels.take_grad(rows, order.astype(np.float64), 3),
        "take objects": lambda: kernels.take(rows.astype(object), order),
        "take to": lambda: kernels.take(rows, order, np.ones((3, 2), np.float32)),
        "sgd": lambda: kernels.update("sgd", rows[0], rows[0], None, np.zeros(4, np.float32)),
        "adam": lambda: kernels.update("adam", *rows[:2], rows[:2], ADAM.astype(np.float32), np.array([[2, 1.0]])),
        "adam steps": lambda: kernels.update("adam", *rows[:2], rows[:2], ADAM, np.array([[2, 1]])),
        "count_steps": lambda: kernels.count_steps(np.array([[2, 1]])),
        "norm": lambda: kernels.norm(rows[0], np.ones(1, np.float32)),
        "limit_norm": lambda: kernels.limit_norm(rows[0], np.ones(1, np.float32), 1.0),
    }
    for name, call in wrong.items():
        with pytest.raises(TypeError, match=name.split()[0]):
            call()


@pytest.mark.parametrize("name", FLOAT_KERNELS)
def test_kernels_take_arrays_only(name):
    with pytest.raises(TypeError):
        FLOAT_KERNELS[name]([[1.0, 2.0, 3.0]] * 3)


def test_sizes_that_cannot_be_are_errors():
    one = np.ones(1, np.float32)
    for call in [
        lambda: kernels.matmul(np.broadcast_to(one, (2**40, 1)), np.broadcast_to(one, (1, 2**40))),
        lambda: kernels.add(np.broadcast_to(one, (2**40, 1)), np.broadcast_to(one, (1, 2**40))),
        lambda: kernels.relu(np.broadcast_to(one, (2**60,))),
        lambda: kernels.sum(np.broadcast_to(one, (2**60,))),
    ]:
        with pytest.raises((ValueError, MemoryError)):
            call()


# ---- an output that overlaps an operand ----

OVERLAPS = {
    "the same": (np.s_[:, :], lambda v: v),
    "reversed": (np.s_[:, :], lambda v: v[::-1]),
    "transposed": (np.s_[:, :], lambda v: v.T),
    "shifted up": (np.s_[1:], lambda v: v[:-1]),
    "shifted down": (np.s_[:-1], lambda v: v[1:]),
    "interleaved": (np.s_[:, 1:7:2], lambda v: v[:, 0:6:2]),
    "a row of it": (np.s_[:, :], lambda v: v[3]),
    "a column of it": (np.s_[:, :], lambda v: v[:, 3:4]),
}


@pytest.mark.parametrize("name", OVERLAPS)
@both_dtypes
def test_an_output_that_overlaps_an_operand_gets_what_a_copy_of_the_operand_would_give(name, dtype):
    part, of = OVERLAPS[name]
    for kernel in (
        lambda x, out: kernels.copy(x, out),
        lambda x, out: kernels.exp(x, out),
        lambda x, out: kernels.subtract(out, x, out),
        lambda x, out: kernels.divide(x, out, out),
        lambda x, out: kernels.multiply(x, x, out),
    ):
        memory = uniform(8, 8, dtype=dtype)
        apart = memory.copy()
        kernel(of(memory), memory[part])
        kernel(of(apart).copy(), apart[part])
        assert_same_bits(memory, apart)


def test_an_operand_of_many_axes_may_overlap_the_output():
    memory = uniform(64).reshape([2] * 6)
    expected = memory.transpose(5, 3, 1, 4, 2, 0).copy()
    kernels.copy(memory.transpose(5, 3, 1, 4, 2, 0), memory)
    assert_same_bits(memory, expected)


def test_the_copy_of_an_operand_that_overlaps_the_output_is_recorded():
    memory = uniform(6)
    before = memory.copy()
    with Recording() as recording:
        kernels.copy(memory[::-1], memory)
    kernels.Replay(recording.entries).run()
    assert_same_bits(memory, before)
    with Recording() as recording:
        kernels.add(memory, uniform(6), memory)
    assert len(recording.entries) == 1


def test_a_sum_may_be_written_into_what_is_summed():
    memory = uniform(4, 4)
    expected = memory.sum(axis=1) + memory[2]
    kernels.sum(memory, 1, out=memory[2], accumulate=True)
    assert_close(memory[2], expected, np.float32)
    expected = 2 * memory
    assert_same_bits(kernels.sum(memory, (), out=memory, scale=2), expected)


def test_take_and_matmul_refuse_to_write_into_an_operand():
    rows, order = uniform(4, 4), np.arange(4)
    for call in [
        lambda: kernels.take(rows, order, rows),
        lambda: kernels.take(order, order[:3], order[1:]),
        lambda: kernels.matmul(rows, rows, rows),
    ]:
        with pytest.raises(ValueError, match="into one of its operands"):
            call()


def test_an_operand_without_elements_overlaps_nothing():
    memory = np.ones(8, np.float32)
    kernels.matmul(memory[4:4].reshape(2, 0), np.ones((0, 2), np.float32), memory[:4].reshape(2, 2))
    assert memory.tolist() == [0] * 4 + [1] * 4


# ---- threads ----


@pytest.mark.usefixtures("threads_restored")
@both_dtypes
def test_every_number_of_threads_gives_the_same_bits(dtype):
    a, b, long = uniform(300, 600, dtype=dtype), uniform(600, 130, dtype=dtype), uniform(1000, 1001, dtype=dtype)
    labels, steps = np.arange(1000) % 1001, np.array([[9, 1.0, 0.5], [long.size - 9, 2.0, 0.25]])

    def everything():
        updated, out = [], np.ones((300, 130), dtype)
        for name, rule in kernels.border.RULES.items():
            for rows, last in itertools.product(range(rule.least_state, rule.most_state + 1), (0.0, 0.5)):
                w, state, hyper = long.ravel().copy(), np.ones((rows, long.size), dtype), np.full(rule.hyper, 0.1)
                hyper[-1] = last
                own = state if rows > 0 else None, hyper, steps_for(rule, steps)
                kernels.update(name, w, long[::-1].ravel(), *own)
                updated += [w, state]
        kernels.matmul(a, b, out, accumulate=True)
        losses, p = kernels.softmax_loss(long, labels)
        loss = kernels.sum(losses)
        products = [kernels.matmul(a, b), kernels.matmul(b.T, a.T), out]
        products += [kernels.matmul_stack(a.reshape(30, 10, 600), np.broadcast_to(b, (30, *b.shape)))]
        sums = [kernels.sum(long, axis) for axis in (0, 1, None)]
        numbers = (100 * long).astype(np.int16)
        others = [kernels.add(long, long[0]), kernels.add(long.T, long.T), kernels.relu(long), kernels.power(long, 3)]
        others += [*kernels.largest(long, 0), *kernels.smallest(long, 1), kernels.where(long, long[0], long[::-1])]
        others += [kernels.softmax(long), kernels.log_softmax(long, 0), kernels.log_softmax_grad(long, long)]
        others += [kernels.take_grad(long, np.arange(1000) % 7, 9), kernels.take(long, np.arange(999, -1, -1))]
        others += [kernels.convert(numbers, dtype), kernels.convert(numbers.T, np.float64)]
        for axis in (0, 1):
            line = long[0] if axis == 0 else long[:, 0]
            others += [kernels.cumsum(long, axis), kernels.prod(long, axis), kernels.prod_grad(line, long, axis)]
            others += [kernels.variance(long, axis, scale=0.1), kernels.variance_grad(line, long, axis, scale=0.1)]
            others += [kernels.logsumexp(long, axis), kernels.logsumexp_grad(line, long, axis)]
        others += [kernels.softmax_grad(long, p), kernels.extreme_grad(long[0], np.arange(1001), (1001, 1001), 0)]
        others += [*kernels.dropout(long, np.array([7, 3]), 0.3), kernels.dropout_grad(long.T, np.array([7, 3]), 0.9)]
        for x in (long, long.reshape(40, 143, 175)):
            scale = x[0, :, 0] if x.ndim > 2 else x[0]
            y, of_features = kernels.batch_norm(x, scale, scale, 1e-5)
            others += [y, of_features, *kernels.batch_norm_grad(y, x, scale, of_features)]
            others += [kernels.batch_norm_fixed(x, scale, scale, of_features)]
        images = long[:, :1000].reshape(40, 25, 25, 40)
        for x in (images, images.transpose(1, 3, 2, 0), images.transpose(3, 0, 1, 2)):
            y, places = kernels.max_pool(x, (3, 3), (2, 2), (1, 1))
            others += [y, places, kernels.max_pool_grad(y, places, x, (3, 3), (2, 2), (1, 1))]
            y = kernels.average_pool(x, (3, 3), (2, 2), (1, 1))
            others += [y, kernels.average_pool_grad(y, x, (3, 3), (2, 2), (1, 1))]
            y = kernels.upsample(x, (2, 2))
            others += [y, kernels.upsample_grad(y, x, (2, 2))]
        y, of_rows = kernels.layer_norm(long, long[0], long[1], 1e-5)
        others += [y, kernels.layer_norm_grad(y, long, long[0], of_rows), *kernels.layer_norm_sums(y, long, of_rows)]
        return [*updated, loss, p, kernels.softmax_loss_grad(p, labels, loss), *products, *sums, *others]

    cl.set_num_threads(1)
    expected = everything()
    for n in (2, 3, 8):
        cl.set_num_threads(n)
        for array, same in zip(everything(), expected, strict=True):
            assert_same_bits(array, same)


# ---- recordings ----

LABELS = np.array([2, 0, 1, 1])

PLACES = (np.arange(72, dtype=np.int32) % 30).reshape(3, 3, 2, 4).transpose(3, 0, 1, 2)

# Arguments that recordings are made with; the same kernel then runs again on other values in the same memory.
# An elementwise kernel that takes nothing but arrays needs no entry.
SPARSE, OUTSIDE = (
    sparse_rows(
        Numbers(uniform(6), np.array([1, 3, 0, 1, last, 2]), None), np.array([0, 2, 2, 5]), np.array([2, 0, 3, 1]), 40
    )
    for last in (2, 40)
)
RECORDED = {
    "add": (uniform(4, 5), uniform(5)),
    "subtract": (uniform(4, 5), uniform(4, 1)),
    "multiply": (uniform(4, 5), uniform(4, 5)[::-1]),
    "where": (uniform(4, 5) + 2, uniform(5), uniform(4, 1)),
    "clip": (uniform(4, 5), -0.5, 0.5),
    "clip_grad": (uniform(4, 5), uniform(4, 5), -0.5, 0.5),
    "leaky_relu": (uniform(4, 5), 0.25),
    "leaky_relu_grad": (uniform(4, 5), uniform(4, 5), 0.25),
    "elu_grad": (uniform(4, 5), uniform(4, 5), 0.25),
    "copy": (uniform(2, 3, 2, 3, 2, 3).transpose(5, 3, 1, 4, 2, 0),),
    "negative": (uniform(4, 5).T,),
    "relu": (uniform(600, 1000),),
    "tanh": (uniform(4, 5).T,),
    "elu": (reference.images_last(uniform(3, 4, 5, 6)), 0.25),
    "gelu": (reference.channels_last(uniform(3, 4, 5, 6)),),
    "matmul": (uniform(40, 30).T, uniform(40, 50)),
    "matmul_stack": (uniform(3, 7, 9).transpose(0, 2, 1), uniform(3, 7, 5)),
    "maximum_grad": (uniform(4, 5), uniform(4, 5), uniform(5, seed=1), True),
    "minimum_grad": (uniform(4, 5), uniform(4, 5), uniform(4, 1, seed=1), False),
    "sum": (uniform(4, 5, 6), (0, 2)),
    "cumsum": (uniform(4, 5, 6), 1, True),
    "prod": (uniform(4, 5, 6), (0, 2)),
    "prod_grad": (uniform(5), uniform(4, 5, 6), (0, 2)),
    "variance": (uniform(4, 5, 6), (0, 2)),
    "variance_grad": (uniform(4, 6), uniform(4, 5, 6), 1),
    "logsumexp": (uniform(4, 5, 6), (1, 2)),
    "logsumexp_grad": (uniform(5), uniform(4, 5, 6), (0, 2)),
    "largest": (uniform(4, 5, 6), (0, 2)),
    "smallest": (uniform(4, 5, 6), 1),
    "follow": (uniform(4, dtype=np.float64), uniform(3, dtype=np.float64), np.array([1])),
    "norm": (uniform(40), uniform(1, dtype=np.float64)),
    "limit_norm": (uniform(40), uniform(1, dtype=np.float64) ** 2 + 2, 1.5),
    "extreme_grad": (uniform(4, 6), np.arange(24).reshape(4, 6) % 5, (4, 5, 6), 1),
    "softmax": (uniform(4, 5, 6), 1),
    "softmax_grad": (uniform(4, 5), uniform(4, 5)),
    "log_softmax": (uniform(4, 5).T,),
    "log_softmax_grad": (uniform(4, 5), uniform(4, 5), 0),
    "soft_loss": (uniform(4, 3), uniform(4, 3), 0.1),
    "standardize": (uniform(4, 3, dtype=np.float64), np.zeros(3), np.ones(3), np.array([2]), 3.0, np.float32),
    "piecewise": (uniform(4, 2, dtype=np.float64), np.array([-1.0, 0, 1, -1, 1])),
    "piecewise_grad": (uniform(4, 3), uniform(4, 2, dtype=np.float64), np.array([-1.0, 0, 1, -1, 1])),
    "places": (uniform(4, 2, dtype=np.float64), np.array([-1.0, 0, 1, -1, 1])),
    "splines": (uniform(9, 40), uniform(40), uniform(6, 2), None),
    "splines_of_codes": (uniform(9, 40), uniform(40), uniform(6, 1), np.arange(6).reshape(6, 1) % 3),
    "splines_grad": (uniform(6, 40), uniform(6, 2), None),
    "splines_of_codes_grad": (uniform(6, 40), uniform(6, 1), np.arange(6).reshape(6, 1) % 3),
    "splines_input_grad": (uniform(6, 40), uniform(9, 40), uniform(6, 2)),
    "spline_table": (uniform(7, 40), uniform(2, 40), uniform(2), np.arange(7.0)),
    "spline_table_grad": (uniform(9, 40), uniform(7, 40), uniform(2, 40), uniform(2), np.arange(7.0)),
    "standardize_grad": (uniform(4, 4), uniform(4, 3, dtype=np.float64), np.zeros(3), np.ones(3), 3.0),
    "soft_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32), uniform(4), 0.1),
    "hinge_loss": (uniform(4, 3), LABELS, 1.0),
    "hinge_loss_grad": (uniform(4, 3), LABELS, np.array(0.5, np.float32), 1.0, uniform(4)),
    "mse_loss": (uniform(4, 3), uniform(4, 3)),
    "mse_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32)),
    "mae_loss": (uniform(4, 3), uniform(4, 3)),
    "mae_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32)),
    "huber_loss": (uniform(4, 3), uniform(4, 3), 0.5),
    "huber_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32), 0.5, uniform(4)),
    "sigmoid_loss": (uniform(4, 3), uniform(4, 3), LEVELS),
    "sigmoid_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32), LEVELS),
    "quantile_loss": (uniform(4, 3), uniform(4, 3), LEVELS),
    "quantile_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32), LEVELS, uniform(4)),
    "poisson_loss": (uniform(4, 3), uniform(4, 3)),
    "poisson_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32)),
    "gaussian_loss": (uniform(4, 6), uniform(4, 3)),
    "gaussian_loss_grad": (uniform(4, 6), uniform(4, 3), np.array(0.5, np.float32), uniform(4)),
    "focal": (uniform(4, 3), 2.0),
    "weighted_mean": (uniform(8), uniform(4) + 2, np.array([0, 1, -1, 2, 0, -1, -1, 1]), -1),
    "check_probabilities": (uniform(4, 3) + 2, 4.0, 100.0),
    "penalty": (uniform(4, 5), 0.1, 0.2),
    "penalty_grad": (np.array(0.5, np.float32), uniform(4, 5), 0.1, 0.2),
    "softmax_loss": (uniform(4, 3).copy(order="F"), LABELS),
    "softmax_loss_grad": (uniform(4, 3), LABELS, np.array(0.5, np.float32)),
    "layer_norm": (uniform(4, 5), uniform(5), uniform(5), 1e-5),
    "layer_norm_grad": (uniform(4, 5), uniform(4, 5), uniform(5), uniform(2, 4, dtype=np.float64)),
    "layer_norm_sums": (uniform(4, 5), uniform(4, 5), uniform(2, 4, dtype=np.float64)),
    "batch_norm": (reference.images_last(uniform(4, 5, 3)), uniform(5), uniform(5), 1e-5),
    "batch_norm_fixed": (uniform(4, 5), uniform(5), uniform(5), uniform(3, 5, dtype=np.float64)),
    "batch_norm_grad": (
        *(uniform(5, 4, 3), reference.channels_last(uniform(5, 4, 3))),
        *(uniform(4), uniform(3, 4, dtype=np.float64)),
    ),
    "feature_sums": (reference.channels_last(uniform(4, 5, 3)),),
    "joined_moments": (uniform(2, 3, 5, dtype=np.float64), 1e-5),
    "batch_norm_sums": (uniform(4, 5, 3), uniform(4, 5, 3), uniform(3, 5, dtype=np.float64)),
    "batch_norm_grad_of_sums": (
        *(uniform(4, 5, 3), uniform(4, 5, 3), uniform(5), uniform(3, 5, dtype=np.float64)),
        *(uniform(2, 5, dtype=np.float64), uniform(2, 5, dtype=np.float64), 20),
    ),
    "follow_moments": (uniform(5), uniform(5), uniform(3, 5, dtype=np.float64), 7, 0.1),
    "fixed_moments": (uniform(5), uniform(5) ** 2, 1e-5),
    "max_pool": (uniform(4, 3, 6, 5), (2, 2), (2, 2), (0, 0)),
    "max_pool_grad": (uniform(4, 3, 3, 2), PLACES, uniform(4, 3, 6, 5), (2, 2), (2, 2), (0, 0)),
    "average_pool": (uniform(3, 6, 5, 4).transpose(3, 0, 1, 2), (3, 3), (2, 2), (1, 1)),
    "average_pool_grad": (uniform(4, 3, 3, 3), uniform(4, 3, 6, 5), (3, 3), (2, 2), (1, 1)),
    "upsample": (uniform(4, 3, 5), (1, 3)),
    "upsample_grad": (uniform(4, 3, 6, 5), uniform(4, 3, 3, 5), (2, 1)),
    "convolution": (uniform(5, 4, 7, 6), uniform(6, 2, 3, 3), (4, 3), uniform(6)),
    "transposed_convolution": (reference.images_last(uniform(5, 40, 4)), uniform(40, 3, 3), (8,), uniform(3)),
    "convolution_weight_grad": (uniform(5, 34, 6), reference.channels_last(uniform(5, 15, 6)), uniform(15, 34, 3)),
    "depthwise": (uniform(5, 33, 7, 6), uniform(33, 1, 3, 3), (7, 6), uniform(33)),
    "transposed_depthwise": (uniform(5, 33, 7, 6), uniform(33, 1, 3, 3), (7, 6)),
    "depthwise_weight_grad": (uniform(5, 33, 7, 6), uniform(5, 33, 7, 6, seed=1), uniform(33, 1, 3, 3)),
    "winograd_weights": (uniform(5, 17, 7), uniform(17, 18, 3), (7,), uniform(18)),
    "winograd_convolution": (uniform(5, 17, 7, 6), uniform(18, 17, 3, 3), (7, 6), uniform(18)),
    "winograd_sums": (uniform(5, 17, 7), uniform(5, 18, 7), uniform(18, 17, 5)),
    "winograd_weight_grad": (uniform(5, 17, 7, 6), uniform(5, 18, 7, 6), uniform(18, 17, 3, 3)),
    "rnn": (uniform(3, 4, 5), uniform(5, 5), uniform(5), uniform(3, 5), np.array([4, 1, 3])),
    "gru": (uniform(3, 4, 15), uniform(15, 5), uniform(15), uniform(3, 5), np.array([4, 1, 3]), True),
    "lstm": (uniform(3, 4, 20), uniform(20, 5), uniform(20), uniform(3, 5), uniform(3, 5), np.array([4, 1, 3]), True),
    "rnn_grad": (uniform(3, 4, 5), uniform(5, 5), uniform(3, 4, 5), uniform(3, 5), np.array([4, 1, 3])),
    "gru_grad": (
        *(uniform(3, 4, 15), uniform(15, 5), uniform(3, 4, 5), uniform(3, 4, 5)),
        *(uniform(3, 4, 5), uniform(3, 5), np.array([4, 1, 3])),
    ),
    "lstm_grad": (
        *(uniform(3, 4, 20), uniform(20, 5), uniform(3, 4, 5), uniform(3, 5)),
        *(uniform(3, 4, 5), uniform(3, 5), uniform(3, 5), np.array([4, 1, 3])),
    ),
    "pack": (uniform(96, 30).T,),  # strips that are filled
    "cut": (uniform(3, 4, 5).swapaxes(1, 2), np.array([5, 1, 3])),
    "next_draw": (np.array([7, 3]),),
    "shift": (uniform(20, 2, 4, 5), np.array([7, 3, 1]), 2),
    "flip": (uniform(20, 5, 4).swapaxes(1, 2), np.array([7, 3, 1])),
    "cutout": (uniform(20, 4, 5), np.array([7, 3, 1]), 3),
    "crop": (uniform(20, 2, 4, 5), np.array([7, 3, 1]), 3, 6, 1),
    "affine": (uniform(20, 2, 4, 5), np.tile(TURNED, (20, 1, 1))),
    "rotary": (uniform(2, 5, 8), 2, 3),
    "attention": (uniform(2, 5, 6), uniform(2, 7, 6), uniform(2, 7, 6), 2, True, np.arange(14).reshape(2, 7) % 3 > 0),
    "attention_grad": (
        *(uniform(2, 5, 6), uniform(2, 5, 6), uniform(2, 7, 6), uniform(2, 7, 6), uniform(2, 5, 6)),
        *(uniform(2, 2, 2, 5), 2, True, None, np.array([7, 3]), 0.5),
    ),
    "dropout": (uniform(20, 10).T, np.array([7, 3]), 0.5),
    "dropout_grad": (uniform(20, 10), np.array([7, 3]), 0.5),
    "count_steps": (np.array([[4, 3], [6, 2]], np.float64),),
    "shuffle": (np.arange(20), np.arange(1, 5, dtype=np.uint64)),
    "ravel_index": ((4, 3, 2), np.array([[2], [-1]]), LABELS, 1),
    "take": (uniform(4, 3), LABELS),
    "take_grad": (uniform(4, 3), LABELS, 3),
    "use_rows": (np.zeros(9, np.int64), LABELS, uniform(4, 3), False),
    "use_all_rows": (np.zeros(9, np.int64),),
    "use_columns": (np.zeros(81, np.int64), SPARSE.rows, uniform(40, 3), False),
    "sparse_matmul": (SPARSE.rows, uniform(40, 5)),
    "sparse_matmul_grad": (SPARSE.rows, uniform(4, 5)),
    "sparse_to_dense": (SPARSE.rows,),
    "all_finite": (uniform(40),),
    "check_labels": (LABELS, 3),
    "convert": (np.arange(20, dtype=np.uint8).reshape(4, 5).T, np.float64),
}
DEPTHWISE = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 33}
BY_KEYWORD = {
    "piecewise": {"starts": np.array([0, 3, 5]), "dtype": np.float32},
    "places": {"starts": np.array([0, 3, 5]), "dtype": np.float32},
    "splines": {"starts": np.array([0, 5, 9])},
    "splines_of_codes": {"starts": np.array([0, 5, 9])},
    "splines_grad": {"starts": np.array([0, 5, 9])},
    "splines_of_codes_grad": {"starts": np.array([0, 5, 9])},
    "splines_input_grad": {
        "starts": np.array([0, 5, 9]),
        "edges": np.arange(7.0),
        "of_edges": np.array([0, 4, 7]),
    },
    "spline_table": {"starts": np.array([0, 4, 7])},
    "spline_table_grad": {"starts": np.array([0, 4, 7])},
    "piecewise_grad": {"starts": np.array([0, 3, 5])},
    "depthwise": DEPTHWISE,
    "transposed_depthwise": DEPTHWISE,
    "depthwise_weight_grad": DEPTHWISE,
    "variance": {"scale": 0.5},
    "variance_grad": {"scale": 0.5},
    "convolution": {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 2},
    "transposed_convolution": {"stride": (2,), "padding": (1,), "dilation": (1,)},
    "convolution_weight_grad": SERIES,
    "winograd_weights": {"stride": (1,), "padding": (1,), "dilation": (1,)},
    "winograd_convolution": {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)},
    "winograd_sums": {"stride": (1,), "padding": (2,), "dilation": (1,)},
    "winograd_weight_grad": {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)},
}
MADE_BY = {
    "splines_of_codes": kernels.splines,
    "splines_of_codes_grad": kernels.splines_grad,
    "depthwise": kernels.convolution,
    "transposed_depthwise": kernels.transposed_convolution,
    "depthwise_weight_grad": kernels.convolution_weight_grad,
    "winograd_weights": kernels.transposed_convolution,
    "winograd_convolution": kernels.convolution,
    "winograd_sums": kernels.convolution_weight_grad,
    "winograd_weight_grad": kernels.convolution_weight_grad,
}
THROUGH_A_CURSOR = {"take_batch", "put_batch", "advance", "add_mean", "add_weighted_mean", "add_correct"}


for kernel in ELEMENTWISE:
    if kernel.name not in RECORDED:
        RECORDED[kernel.name] = tuple(uniform(4, 5, seed=i) + 2 for i in range(arrays_taken(kernel)))
for name, rule in kernels.border.RULES.items():
    steps = steps_for(rule, np.array([[4, 3, 0.5], [6, 2, 0.25]]))
    own = uniform(rule.most_state, 10) ** 2, np.linspace(0.1, 0.9, rule.hyper)
    RECORDED[name] = (uniform(10), uniform(10), *own, steps)


def new_values(argument, seed):
    """Other values of the same shape, in the same memory layout."""
    if not isinstance(argument, np.ndarray):
        return argument
    rng, fresh = np.random.default_rng(seed), np.empty_like(argument)
    if argument.shape in ((2, 2), (2, 3)) and argument.dtype == np.float64:  # steps, which speak of all elements
        fresh[...] = argument + np.array([[seed, 0, 0], [-seed, seed, 0]])[:, : argument.shape[1]]
    elif argument.dtype.kind == "f":
        fresh[...] = rng.uniform(0.1, 1, argument.shape)
    else:
        fresh[...] = rng.permutation(argument)
    return fresh


def copied(arguments):
    return [np.copy(a, order="K") if isinstance(a, np.ndarray) else a for a in arguments]


def arrays_of(result):
    return [np.asarray(array) for array in (result if isinstance(result, tuple) else (result,)) if array is not None]


def test_every_kernel_is_tried_in_a_recording():
    assert set(kernels.KERNELS) - {"full"} - THROUGH_A_CURSOR == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_kernel_run_again_on_other_values_gives_eager_bits(name):
    kernel = MADE_BY.get(name) or getattr(kernels, name, None) or functools.partial(kernels.update, name)
    kernel, arguments = functools.partial(kernel, **BY_KEYWORD.get(name, {})), copied(RECORDED[name])
    with Recording() as recording:
        result = kernel(*arguments)
    assert name in [call.name for call in recording.entries]
    for seed in (1, 2):
        fresh = [new_values(a, seed) for a in arguments]
        for argument, values in zip(arguments, fresh, strict=True):
            if isinstance(argument, np.ndarray):
                argument[...] = values
        for array in arrays_of(result):
            if array.ndim > 0:
                array.fill(-77)
        assert kernels.Replay(recording.entries).run() is None
        expected = kernel(*fresh)
        for array, same in zip(arrays_of(result), arrays_of(expected), strict=True):
            assert_same_bits(array, same)
        for argument, same in zip(arguments, fresh, strict=True):
            assert_same_bits(argument, same)


def cursor_at(*columns, order=None, sums=None):
    """A cursor on these columns, and what it points to."""
    addresses = np.array([kernels.address(column) for column in columns], np.intp)
    cursor = np.zeros((), kernels.CURSOR)
    for name, array in (("columns", addresses), ("order", order), ("sums", sums)):
        cursor[name] = 0 if array is None else kernels.address(array)
    return cursor, (addresses, columns, order, sums)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_recorded_batch_is_found_and_measured_through_the_cursor(dtype):
    x, y, w = uniform(10, 3, dtype=dtype), np.arange(10) % 3, uniform(10, dtype=dtype)
    order, sums, kept = np.random.default_rng(0).permutation(10), np.zeros((3, 2)), np.zeros((10, 3), dtype)
    cursor, _held = cursor_at(x, y, w, kept, order=order, sums=sums)
    batch, labels, weights = np.empty((4, 3), dtype), np.empty(4, np.int64), np.empty(4, dtype)
    with Recording() as recording:
        kernels.take_batch(cursor, 0, batch)
        kernels.take_batch(cursor, 1, labels)
        kernels.take_batch(cursor, 2, weights)
        kernels.add_mean(cursor, 0, batch[0, :1], 4)
        kernels.add_correct(cursor, 1, batch, labels)
        kernels.add_weighted_mean(cursor, 2, batch[0, :1], weights)
        kernels.put_batch(cursor, 3, batch)
        kernels.advance(cursor, 4)
    assert_same_bits(batch, x[order[:4]])
    kernels.Replay(recording.entries).run()
    assert_same_bits(batch, x[order[4:8]])
    assert_same_bits(labels, y[order[4:8]])
    assert_same_bits(kept, np.append(x[order[:8]], np.zeros((2, 3), dtype), axis=0))
    correct = (x.argmax(axis=1) == y)[order[:8]].sum()
    first, second = float(x[order[0], 0]), float(x[order[4], 0])
    assert sums[:2].tolist() == [[4 * first + 4 * second, 8], [correct, 8]]
    weight = w[order].astype(np.float64)
    expected = [weight[:4].sum() * first + weight[4:8].sum() * second, weight[:8].sum()]
    np.testing.assert_allclose(sums[2], expected, rtol=1e-14)
    assert cursor["position"] == cursor["measured"] == 8


def test_equal_outputs_count_as_numpys_argmax_does():
    outputs = np.array([[1, 1, 0], [0, 1, 1], [-np.inf] * 3, [0, -0.0, 0]], np.float32)
    for label in range(3):
        sums, labels = np.zeros((2, 2)), np.full(len(outputs), label)
        kernels.add_correct(cursor_at(sums=sums)[0], 1, outputs, labels)
        assert sums[1].tolist() == [(outputs.argmax(axis=1) == label).sum(), 4]


@pytest.mark.parametrize("row", [[np.nan, 1, 2], [1, np.nan, 2], [2, 1, np.nan], [np.nan]])
def test_outputs_that_are_nan_are_not_counted_as_right_or_wrong(row):
    outputs, sums = np.array([row, [0] * len(row)], np.float32), np.zeros((1, 2))
    kernels.add_correct(cursor_at(sums=sums)[0], 0, outputs, np.array([0, 0]))
    assert np.isnan(sums[0, 0])
    sums = np.zeros((1, 2))
    kernels.add_correct(cursor_at(sums=sums)[0], 0, outputs, np.array([-1, 0]), -1)
    assert sums[0].tolist() == [1, 1]


@pytest.mark.parametrize(("threshold", "ones"), [(0.0, 3), (0.5, 1)])
def test_a_single_output_above_the_threshold_counts_as_class_1(threshold, ones):
    outputs = np.array([[2], [0], [-1], [0.5], [1e-30]], np.float32)
    for label, correct in ((0, 5 - ones), (1, ones), (2, 0)):
        sums = np.zeros((1, 2))
        kernels.add_correct(cursor_at(sums=sums)[0], 0, outputs, np.full(5, label), None, threshold)
        assert sums[0].tolist() == [correct, 5]


def test_what_is_no_cursor_is_refused():
    for cursor in (np.zeros(5, np.int64), None, np.zeros(2, kernels.CURSOR)):
        with pytest.raises(TypeError, match="cursor"):
            kernels.advance(cursor, 1)


NUMBERS = {
    "bool": [False, True, True],
    "float16": [-0.0, 0.1, 65504, -np.inf, np.nan],
    "float32": [-0.0, 0.1, 1e-40, 3e38, -np.inf, np.nan],
    "float64": [-0.0, 0.1, 1e-40, 1e-300, 1e300, 1 + 2**-24, -np.inf, np.nan],
}
for integers in ("int8", "int16", "int32", "int64", "longlong", "uint8", "uint16", "uint32", "uint64"):
    info = np.iinfo(integers)
    halves = [2**24 + 1, 2**53 + 1, 2**62 + 2**38 + 1, 2**63 + 2**39 + 1]  # between two numbers of float32 or float64
    NUMBERS[integers] = [0, 1, 100, info.max - 1, info.max, info.min, *[x for x in halves if x < info.max]]


@pytest.mark.parametrize("target", ["float32", "float64", "int64"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_every_type_are_converted_as_numpy_converts_them(kind, target):
    if target == "int64" and "int" not in kind and kind != "longlong":
        return
    numbers = np.array(NUMBERS[kind], kind)
    wide = np.resize(numbers, (3, 1, 5, 2, 7, 3, 2))
    swapped = numbers.astype(numbers.dtype.newbyteorder())
    views = [numbers[::-1], numbers[:0], numbers[1, ...], np.repeat(numbers, 2)[::2]]
    for array in (numbers, swapped, *views, wide, wide.T, wide[::-1, :, ::2, ..., ::3, ::-1]):
        with np.errstate(over="ignore"):
            expected = array.astype(target, order="C")
        assert_same_bits(kernels.convert(array, target), expected)


def test_every_byte_of_a_bool_array_but_0_is_true():
    bools = np.arange(4, dtype=np.uint8).view(np.bool_)
    assert kernels.convert(bools, np.float32).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("dtype", ["float16", ">f4", ">i2"])
def test_what_only_numpy_converts_is_refused_in_a_recorded_step(dtype):
    array = np.ones(3, dtype)
    with Recording(), pytest.raises(TypeError, match=rf"{dtype}.*a step that is being recorded can't convert it"):
        kernels.convert(array, np.float32)


@pytest.mark.parametrize("k", [30, 300])
def test_a_recorded_accumulation_adds_again(k):
    a, b, out, sums = uniform(20, k), uniform(k, 10), np.zeros((20, 10), np.float32), np.zeros(k, np.float32)
    with Recording() as recording:
        kernels.matmul(a, b, out, accumulate=True)
        kernels.sum(a, 0, out=sums, accumulate=True)
    kernels.Replay(recording.entries).run()
    assert_same_bits(out, 2 * kernels.matmul(a, b))
    assert_same_bits(sums, 2 * kernels.sum(a, 0))


def test_a_recorded_check_says_when_to_stop():
    a, labels, rows = uniform(40), LABELS.copy(), uniform(4, 3)
    with Recording() as recording:
        kernels.all_finite(a)
        kernels.check_labels(labels, 3)
        kernels.take(rows, labels)
    assert kernels.Replay(recording.entries).run() is None
    labels[2] = 4
    assert kernels.Replay(recording.entries).run() is recording.entries[1]
    a[17] = np.nan
    assert kernels.Replay(recording.entries).run() is recording.entries[0]


STOPPED = {  # a kernel that may stop a step, its arguments, which of them goes bad, and the bad value
    "take": ((np.arange(12.0).reshape(4, 3), LABELS), 1, 4),
    "take_grad": ((np.ones((4, 3)), LABELS, 4), 1, -1),
    "cut": ((np.ones((4, 3)), LABELS + 1), 1, 4),
    "use_rows": ((np.zeros(9, np.int64), LABELS, np.ones((4, 3)), True), 1, 4),
    "use_columns": ((np.zeros(81, np.int64), SPARSE.rows, np.ones((40, 3)), True), 1, OUTSIDE.rows[2]),
    "sparse_matmul": ((SPARSE.rows, uniform(40, 5)), 0, OUTSIDE.rows[2]),
    "sparse_matmul_grad": ((SPARSE.rows, uniform(4, 5)), 0, OUTSIDE.rows[2]),
    "sparse_to_dense": ((SPARSE.rows,), 0, OUTSIDE.rows[2]),
    "ravel_index": (((3, 4), LABELS, 1), 1, 3),
    "softmax_loss": ((np.ones((4, 3)), LABELS), 1, 3),
    "softmax_loss_grad": ((np.ones((4, 3)) / 3, LABELS, np.ones(1)), 1, -1),
    "hinge_loss": ((np.ones((4, 3)), LABELS, 1.0), 1, 3),
    "hinge_loss_grad": ((np.ones((4, 3)), LABELS, np.ones(1), 1.0), 1, -1),
    "weighted_mean": ((np.ones(4), np.ones(4), None, None, lambda weights: refuse(weights)), 1, -1),
    "check_probabilities": ((np.ones((4, 1)), 1.0, 1e-3, lambda rows: refuse(rows)), 0, 0.5),
    "extreme_grad": ((np.ones(4), LABELS, (3, 4), 0), 1, 3),
    "check_labels": ((LABELS, 3, lambda labels: refuse(labels)), 0, 5),
    "splines_of_codes": (
        (np.zeros((9, 4)), np.zeros(4), np.zeros((3, 1)), np.zeros((3, 1), int), np.array([0, 5, 9])),
        3,
        4,
    ),
    "splines_of_codes_grad": ((np.zeros((3, 4)), np.zeros((3, 1)), np.zeros((3, 1), int), np.array([0, 5, 9])), 2, 4),
    "norm": ((np.ones(5), None, lambda values: refuse(values)), 0, np.nan),
    "all_finite": ((np.ones(5), lambda values: refuse(values)), 0, np.nan),
}


def refuse(values):
    raise ArithmeticError(f"got {values.tolist()}")


def test_every_kernel_that_may_stop_a_step_is_tried():
    may_stop = {name for name, kernel in kernels.KERNELS.items() if kernel.may_stop}
    assert may_stop == set(STOPPED)


@pytest.mark.parametrize("name", STOPPED)
def test_a_kernel_that_stops_a_replay_raises_what_it_raises_eagerly(name):
    kernel = MADE_BY.get(name) or getattr(kernels, name)
    arguments, bad, value = STOPPED[name]
    arguments = copied(arguments)
    with Recording() as recording:
        kernel(*arguments)
    replay = kernels.Replay(recording.entries)
    assert replay.run() is None
    arguments[bad][2] = value
    with pytest.raises((IndexError, ArithmeticError)) as eager:
        kernel(*arguments)
    stopped = replay.run()
    assert stopped is not None
    with pytest.raises(type(eager.value)) as replayed:
        stopped.raise_why()
    assert str(replayed.value) == str(eager.value)


def test_recorded_kernels_have_their_names():
    a = uniform(3, 3)
    with Recording() as recording:
        kernels.relu(kernels.matmul(a, a))
    assert [kernel.name for kernel in recording.entries] == ["matmul", "relu"]
    assert repr(recording.entries[0]).startswith("matmul")
    assert all(isinstance(call, kernels.RecordedCall) for call in recording.entries)


def test_a_recording_keeps_its_arrays_alive():
    with Recording() as recording:
        result = kernels.add(uniform(1000), uniform(1000, seed=1))
    expected = result.copy()
    junk = [np.full(1000, np.nan, np.float32) for _ in range(100)]
    kernels.Replay(recording.entries).run()
    assert_same_bits(result, expected)
    assert len(junk) == 100


def test_kernels_outside_a_recording_are_not_recorded():
    a = uniform(3)
    kernels.relu(a)
    with Recording() as recording:
        kernels.relu(a)
    kernels.negative(a)
    assert [kernel.name for kernel in recording.entries] == ["relu"]


def test_a_second_recording_in_the_same_thread_raises_and_leaves_the_first_alone():
    a = uniform(3)
    with Recording() as recording:
        with pytest.raises(RuntimeError, match="recording"), Recording():
            pass
        kernels.relu(a)
    assert [kernel.name for kernel in recording.entries] == ["relu"]


def test_an_exception_ends_a_recording():
    with pytest.raises(ZeroDivisionError), Recording():
        raise ZeroDivisionError
    with Recording() as recording:
        kernels.relu(uniform(3))
    assert len(recording.entries) == 1


def test_a_recording_is_its_threads_own():
    a, in_thread = uniform(3), []
    started, recorded = threading.Barrier(2, timeout=10), threading.Barrier(2, timeout=10)

    def other():
        with Recording() as recording:
            started.wait()
            kernels.negative(a)
            recorded.wait()
        in_thread.extend(kernel.name for kernel in recording.entries)

    thread = threading.Thread(target=other)
    thread.start()
    with Recording() as recording:
        started.wait()
        kernels.relu(a)
        recorded.wait()
    thread.join()
    assert [kernel.name for kernel in recording.entries] == ["relu"]
    assert in_thread == ["negative"]


# ---- instruction sets ----

BEST, *OTHERS = kernels.available_instruction_sets()
every_instruction_set = pytest.mark.parametrize("isa", [BEST, *OTHERS])
every_instruction_set_the_others_slow = pytest.mark.parametrize(
    "isa", [BEST, *[pytest.param(isa, marks=pytest.mark.slow) for isa in OTHERS]]
)

ALL_KERNELS = """
    import numpy as np
    from caffelite import _kernels as k

    def everything(dtype):
        rng = np.random.default_rng(0)
        a, b, c = rng.uniform(0.5, 2, (33, 70)), rng.uniform(-1, 1, (70, 51)), rng.uniform(-2, 2, (33, 70))
        a, b, c = a.astype(dtype), b.astype(dtype), c.astype(dtype)
        labels = rng.integers(0, 70, 33)
        w, v, hyper = a.ravel().copy(), c.ravel().copy(), np.array([0.1, 0.9, 0.01, 1.0])
        k.update("sgd", w, b.ravel()[: w.size], v[None], hyper)
        x, moments, adam = a.ravel().copy(), np.array([c.ravel(), a.ravel()]), np.array([0.01, 0.9, 0.999, 1e-8, 0.1])
        k.update("adam", x, b.ravel()[: x.size], moments, adam, np.array([[x.size, 3.0]]))
        losses, p = k.softmax_loss(c, labels)
        loss = k.sum(losses)
        y, of_rows = k.layer_norm(c, a[0], c[0], 1e-5)
        dscale, dshift = k.layer_norm_sums(a, c, of_rows)
        of_features = k.batch_norm(c, a[0], c[0], 1e-5)[1]
        images = c.reshape(3, 11, 70)
        of_images = k.batch_norm(images, a[:11, 0], c[:11, 0], 1e-5)[1]
        heads, hidden = (a.reshape(3, 11, 70), images, b.T[:33].reshape(3, 11, 70)), rng.random((3, 11)) < 0.8
        h, norms, drawn = k.attention(*heads, 5, True, hidden, np.array([7, 3]), 0.2)
        of_heads = k.attention_grad(images[::-1], *heads, h, norms, 5, True, hidden, drawn, 0.2)
        mean, variance = c[0].copy(), a[0].copy()
        k.follow_moments(mean, variance, of_features, 33, 0.1)
        convolutions = {}
        few, many = ((5, 3, 6, 1), (5, 2, 3, 2), (19, 1, 1, 5)), ((5, 3, 37, 1), (19, 34, 2, 2), (5, 1, 1, 35))
        for n, into, of, groups in few + many:
            x = rng.uniform(-1, 1, (n, into * groups, 7, 9)).astype(dtype)
            weights = rng.uniform(-1, 1, (of * groups, into, 3, 2)).astype(dtype)
            window = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2), "groups": groups}
            dy = rng.uniform(-1, 1, (n, of * groups, 4, 9)).astype(dtype)
            y_of_it = k.convolution(x, weights, (4, 9), a[0, : of * groups], **window)
            dx = k.transposed_convolution(dy, weights, (7, 9), c[0, : into * groups], **window)
            dw = k.convolution_weight_grad(x, dy, np.empty_like(weights), **window)
            for name, result in (("convolution", y_of_it), ("transposed", dx), ("weights", dw)):
                convolutions[f"{name} {n} {into} {of} {groups}"] = result
        recurrences = {}
        for count, forward, backward in ((1, k.rnn, k.rnn_grad), (3, k.gru, k.gru_grad), (4, k.lstm, k.lstm_grad)):
            gates, weights = (rng.uniform(-1, 1, (n, count * 17)).astype(dtype) for n in (11 * 5, 17))
            gates, weights, last = gates.reshape(11, 5, -1), weights.T / 9, c[:11, :17]
            states, lengths, dy = [last] * (1 + (count == 4)), np.arange(11) % 5 + 1, c.ravel()[: 11 * 5 * 17]
            found = forward(gates, weights, c.ravel()[: count * 17], *states, lengths)
            kept = [] if count == 1 else [found[0], found[2]] if count == 3 else [found[2], last]
            found += backward(gates, weights, *kept, dy.reshape(11, 5, 17), *states, lengths)
            recurrences |= {f"{count} {i}": a for i, a in enumerate([gates, *found]) if a is not None}
        return {
            **convolutions, **recurrences, "attention": h, **dict(zip(("dq", "dk", "dv"), of_heads, strict=True)),
            "layer_norm": y, "layer_norm_grad": k.layer_norm_grad(a, c, a[0], of_rows),
            "batch_norm": k.batch_norm(c, a[0], c[0], 1e-5)[0],
            "of images": k.batch_norm(images, a[:11, 0], c[:11, 0], 1e-5)[0],
            "fixed": k.batch_norm_fixed(c, a[0], c[0], k.fixed_moments(mean, variance, 1e-5)), "mean": mean,
            "variance": variance, "of_features": of_features, "of_images": of_images,
            **dict(zip("abc", k.batch_norm_grad(a, c, a[0], of_features), strict=True)),
            **dict(zip("def", k.batch_norm_grad(a.reshape(3, 11, 70), images, a[:11, 0], of_images), strict=True)),
            "shift": k.shift(images, np.array([2**62 + 7, 3, 1]), 9), "flip": k.flip(images, np.array([7, 3, 1])),
            "cutout": k.cutout(images, np.array([7, 2**40, 1]), 5),
            "crop": k.crop(images, np.array([7, 3, 1]), 5, 9, 3),
            "affine": k.affine(images, np.tile([[0.8, 0.5], [-0.4, 1.1]], (len(images), 1, 1))),
            "dscale": dscale, "dshift": dshift, "dropout": k.dropout_grad(c, np.array([2**62 + 7, 3]), 0.3),
            "matmul": k.matmul(c, b, bias=b[0]),
            "sum0": k.sum(c, 0), "sum1": k.sum(c, 1), "sum": k.sum(c),
            "max0": k.largest(c, 0)[0], "max1": k.largest(c, 1)[0], "min0": k.smallest(c, 0)[0],
            "softmax": k.softmax(c), "softmax0": k.softmax(c, 0), "log_softmax": k.log_softmax(c),
            "softmax_grad": k.softmax_grad(a, p), "log_softmax_grad": k.log_softmax_grad(a, k.log_softmax(c)),
            "maximum": k.maximum(a, c), "minimum": k.minimum(a, c), "where": k.where(k.relu(c), a, c[0]),
            "abs": k.abs(c), "abs_grad": k.abs_grad(a, c), "sqrt": k.sqrt(a), "sqrt_grad": k.sqrt_grad(c, a),
            "add": k.add(a, c[0]), "subtract": k.subtract(a, c), "multiply": k.multiply(a, c),
            "divide": k.divide(c, a), "power": k.power(a, c), "negative": k.negative(c),
            "relu": k.relu(c), "relu_grad": k.relu_grad(a, c),
            "base": k.power_grad_base(a, a, c), "exponent": k.power_grad_exponent(a, a, c),
            "exp": k.exp(c), "log": k.log(a), "tanh": k.tanh(c), "sigmoid": k.sigmoid(c),
            "sin": k.sin(c), "cos": k.cos(c), "sin_grad": k.sin_grad(a, c), "cos_grad": k.cos_grad(a, c),
            "maximum_grad": k.maximum_grad(a, a, c, False), "minimum_grad": k.minimum_grad(a, a, c, True),
            "cumsum0": k.cumsum(c, 0), "cumsum1": k.cumsum(c, 1, reverse=True),
            "prod0": k.prod(c[:5], 0), "prod1": k.prod(c[:, :5], 1),
            "prod_grad0": k.prod_grad(c[0], a[:5], 0), "prod_grad1": k.prod_grad(c[:, 0], a[:, :5], 1),
            "variance0": k.variance(c, 0, scale=0.1), "variance1": k.variance(c, 1, scale=0.1),
            "variance_grad0": k.variance_grad(c[0], a, 0, scale=0.1),
            "variance_grad1": k.variance_grad(c[:, 0], a, 1, scale=0.1),
            "logsumexp0": k.logsumexp(c, 0), "logsumexp1": k.logsumexp(c, 1),
            "logsumexp_grad0": k.logsumexp_grad(c[0], a, 0), "logsumexp_grad1": k.logsumexp_grad(c[:, 0], a, 1),
            "tanh_grad": k.tanh_grad(c, k.tanh(c)), "sigmoid_grad": k.sigmoid_grad(c, k.sigmoid(c)),
            "few columns": k.matmul(c, b[:, :3]), "few rows": k.matmul(c[:2], b), "transposed": k.matmul(b.T, c.T),
            "loss": loss, "p": p, "ds": k.softmax_loss_grad(p, labels, loss), "w": w, "v": v,
            "x": x, "moments": moments, "norm": k.norm(c.ravel()),
        }
"""


@every_instruction_set
def test_every_instruction_set_agrees_with_float64_within_tolerance(isa, tmp_path):
    path = str(tmp_path / "results.npz")
    run_python(
        ALL_KERNELS
        + f"""
    assert k.ISA == {isa!r}, k.ISA
    results = {{}}
    for dtype in ("float32", "float64"):
        results |= {{f"{{dtype}}.{{name}}": array for name, array in everything(dtype).items()}}
    np.savez({path!r}, **results)
        """,
        CAFFELITE_ISA=isa,
    )
    namespace = {}
    exec(textwrap.dedent(ALL_KERNELS), namespace)
    truth = namespace["everything"]("float64")
    with np.load(path) as results:
        assert len(results) == 2 * len(truth)
        for name in results:
            dtype, kernel = name.split(".")
            np.testing.assert_allclose(
                results[name], truth[kernel], *((5e-6, 2e-5) if dtype == "float32" else (1e-12, 1e-12)), err_msg=name
            )


@every_instruction_set
def test_a_part_of_an_update_has_the_bits_of_the_whole(isa):
    """Wherever threads cut it: its elements may be the last ones of a loop, which vectors don't fill."""
    run_python(
        """
        import numpy as np
        from caffelite import _kernels as k

        def updated(dtype, a, b):
            results, (g, start, *states) = [], np.random.default_rng(0).uniform(0.1, 1, (4, 67)).astype(dtype)[:, a:b]
            for name, rule in k.border.RULES.items():
                steps = np.array([[b - a, 3.0, 0.5]])[:, : rule.steps].copy() if rule.steps else None
                for rows in range(rule.least_state, rule.most_state + 1):
                    for last in (0.0, 0.3):
                        w, state, hyper = start.copy(), np.array(states[:rows]), np.linspace(0.1, 0.01, rule.hyper)
                        hyper[-1] = last
                        k.update(name, w, g, state if rows > 0 else None, hyper, steps)
                        results += [w, *state]
            return np.array(results)

        for dtype in (np.float32, np.float64):
            whole = updated(dtype, 0, 67)
            for a in range(67):
                for b in range(a + 1, 68):
                    assert (updated(dtype, a, b) == whole[:, a:b]).all(), (dtype, a, b)
        """,
        CAFFELITE_ISA=isa,
    )


def test_an_unknown_instruction_set_is_refused_at_import():
    result = subprocess.run(
        [sys.executable, "-c", "import caffelite"],
        env={**os.environ, "CAFFELITE_ISA": "z80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "CAFFELITE_ISA is 'z80'" in result.stderr
    assert kernels.available_instruction_sets()[0] in result.stderr


@every_instruction_set_the_others_slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect through the C library")
def test_no_kernel_reads_or_writes_past_the_end_of_an_array(isa):
    """Arrays that end where the next page may not be touched; a stray access ends the process."""
    run_python(
        """
        import ctypes, itertools, mmap
        import numpy as np
        from caffelite import _kernels as k
        from caffelite.core.recording import Recording
        from caffelite.core.sparse import Numbers, sparse_rows

        PAGE = mmap.PAGESIZE
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        kept = []

        def guarded(values):
            # A copy of the values right before a page that may not be touched, or right behind one.
            values = np.ascontiguousarray(values)
            pages = -(-max(values.nbytes, 1) // PAGE)
            memory = mmap.mmap(-1, (pages + 2) * PAGE)
            kept.append(memory)
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            for page in (start, start + (pages + 1) * PAGE):
                assert libc.mprotect(page, PAGE, 0) == 0
            first = (pages + 1) * PAGE - values.nbytes if at_end else PAGE
            array = np.frombuffer(memory, values.dtype, values.size, first)
            array = array.reshape(values.shape)
            array[...] = values
            return array

        def fused(product, after, mask):
            # The product again, with what only passes over a recording ask it to do at its end.
            strides = tuple(s // mask.itemsize for s in mask.strides)
            call = product.with_epilogue(after, strides, [None, None, strides])
            call.place(6, k.address(mask))
            k.Replay([call], mask).run()

        def memory_of(array):
            upwards = array[tuple([slice(None, None, -1 if step < 0 else 1) for step in array.strides])]
            return np.lib.stride_tricks.as_strided(upwards, (array.size,), (array.itemsize,))

        at_end = True
        regions = [guarded(np.zeros(2**20, np.uint8)) for _ in range(4)]

        def convolution_again(recording):
            # The same, between guards whatever it is bound to: y and the room for its sums, too.
            names = "convolution", "depthwise", "winograd"
            calls = [call for call in recording.entries if any(name in call.name for name in names)]
            for call in calls:
                for i, (array, region) in enumerate(zip(call.arrays, regions)):
                    if array is not None:
                        values = memory_of(array).view(np.uint8)
                        part = region[region.size - values.size :] if at_end else region[: values.size]
                        part[...] = values if i else 255
                        call.place(i, k.address(part) + k.address(array) - k.address(memory_of(array)))
                        result = part if i == 0 else result
                k.Replay([call], regions).run()
            assert result.tobytes() == memory_of(calls[-1].arrays[0]).tobytes()

        def recurrences_again(recording):
            # The same, between guards whatever they are bound to.
            for call in recording.entries:
                if call.name in ("pack", "rnn", "gru", "lstm", "rnn_grad", "gru_grad", "lstm_grad"):
                    placed = [None if array is None else guarded(array.view(np.ndarray)) for array in call.arrays]
                    for i, array in enumerate(placed):
                        if array is not None:
                            call.place(i, k.address(array))
                    k.Replay([call], placed).run()

        rng = np.random.default_rng(0)
        for at_end, n, dtype in itertools.product((True, False), range(68), (np.float32, np.float64)):
            hyper, state = guarded(np.array([0.1, 0.9, 0.01, 1.0])), guarded(np.arange(1, 5, dtype=np.uint64))
            x, y, one = (guarded(rng.uniform(1, 2, shape).astype(dtype)) for shape in (n, n, ()))
            for kernel in (k.add, k.subtract, k.multiply, k.divide, k.power, k.relu_grad, k.tanh_grad, k.sigmoid_grad,
                           k.maximum, k.minimum, k.equal, k.abs_grad, k.sqrt_grad):
                kernel(x, y, guarded(np.empty(n, dtype)))
            for kernel in (k.copy, k.negative, k.relu, k.abs, k.sqrt, k.exp, k.log, k.tanh, k.sigmoid, k.sin, k.cos):
                kernel(x, guarded(np.empty(n, dtype)))
            for kernel in (k.prod, k.logsumexp):
                kernel(x)
            for kernel in (k.prod_grad, k.logsumexp_grad):
                kernel(one, x)
            k.cumsum(x, 0)
            k.variance(x, scale=0.5)
            k.variance_grad(one, x, scale=0.5)
            k.where(x, y, one)
            k.clip_grad(x, y, 0.5, 1.5)
            k.power_grad_base(x, y, one)
            for kind in ("b1", "u1", "i2", "u4", "i8", "f4", "f8"):
                k.convert(guarded(np.ones(n, kind)), dtype)
            k.softmax(x)
            k.log_softmax_grad(x, y)
            k.add(x, one)
            k.sum(x)
            k.dropout_grad(x, k.next_draw(guarded(np.array([7, 3]))), 0.5)
            images = guarded(np.ones((2, 3, n), dtype))
            for pixels in (1, 9, 99):
                k.shift(images, guarded(np.array([7, n, pixels])), pixels)
                k.cutout(images, guarded(np.array([7, n, pixels])), pixels)
                k.crop(images, guarded(np.array([7, n, pixels])), pixels, n // 2, pixels)
            k.affine(images, guarded(np.tile([[0.8, 0.5], [-0.4, 1.1]], (2, 1, 1))))
            k.flip(images, guarded(np.array([7, n, 0])))
            k.all_finite(x)
            k.limit_norm(x, guarded(k.norm(x, guarded(np.ones(1)))), 2.0)
            steps, of_nadam = guarded(np.array([[n, 0.0]])), guarded(np.array([[n, 0.0, 1.0]]))
            k.count_steps(steps)
            k.count_steps(of_nadam, guarded(np.full(6, 0.1)))
            for name, rule in k.border.RULES.items():
                for rows in range(rule.least_state, rule.most_state + 1):
                    own = guarded(np.full(rule.hyper, 0.1)), {0: None, 2: steps, 3: of_nadam}[rule.steps]
                    k.update(name, x, y, guarded(np.ones((rows, n), dtype)) if rows > 0 else None, *own)
                    k.update(name, x, y, guarded(np.ones((rows, n), dtype))[::-1] if rows > 0 else None, *own)
            k.follow(hyper, guarded(np.ones(n + 1)), guarded(np.array([n])))
            # Depthwise, channels last: lines of x that are shorter than a window.
            narrow, dy = (guarded(np.ones((1, 2, m, 32), dtype)).transpose(0, 3, 1, 2) for m in (1, 5))
            window = {"stride": (1, 1), "padding": (1, 3), "dilation": (1, 1), "groups": 32}
            k.convolution(narrow, guarded(np.ones((32, 1, 3, 3), dtype)), (2, 5), **window)
            k.convolution_weight_grad(narrow, dy, guarded(np.empty((32, 1, 3, 3), dtype)), **window)
            for m in (1, 3, 7, 17):
                a, b = guarded(rng.uniform(1, 2, (m, n)).astype(dtype)), guarded(np.ones((n, m), dtype))
                k.matmul(a, b, guarded(np.empty((m, m), dtype)), bias=guarded(np.ones(m, dtype)))
                out, mask = (guarded(rng.uniform(-1, 1, (n, n)).astype(dtype)) for _ in range(2))
                with Recording() as recording:
                    k.matmul(b, a, out, bias=guarded(np.ones(n, dtype)), accumulate=True)
                    k.relu_grad(out, mask, out)
                    k.tanh_grad(out, mask, out)
                for after in recording.entries[1:]:
                    fused(recording.entries[0], after, mask)
                for left in (a, guarded(a.T).T):
                    for right in (b, guarded(b.T).T):
                        k.matmul(left, right)
                        k.matmul(right, left)
                k.matmul(a.T, a)
                k.matmul_stack(guarded(a[None]), guarded(b[None]), guarded(np.empty((1, m, m), dtype)))
                for axis in (0, 1):
                    k.sum(a, axis)
                    k.softmax(a, axis)
                    k.log_softmax(a, axis)
                    k.softmax_grad(a, a, axis)
                    k.log_softmax_grad(a, a, axis)
                    if n or axis == 0:
                        y, first = k.largest(a, axis)
                        k.extreme_grad(guarded(y), guarded(first), a.shape, axis)
                for heads in (heads for heads in (1, 3) if n and n % heads == 0):
                    q, hidden = guarded(a[None]), guarded(rng.random((1, m)) < 0.7)
                    h, norms, drawn = k.attention(q, q, q, heads, True, hidden, guarded(np.array([7, 3])), 0.2)
                    others = q, guarded(h), guarded(norms), heads, True, hidden, guarded(drawn), 0.2
                    k.attention_grad(q, q, q, *others)
                k.take(a, guarded(np.arange(m)), guarded(np.empty((m, n), dtype)))
                k.take_grad(a, guarded(np.arange(m)), m)
                gapped = guarded(np.ones((m, n + 3), dtype))
                used = guarded(np.zeros(2 * m + 1, np.int64))
                if n:
                    for order in (np.arange(m)[::-1], np.arange(m)[:1].repeat(3)):
                        k.use_rows(used, guarded(order), a, True)
                    own = guarded(np.ones((m, n), dtype)).reshape(-1), guarded(np.ones((2, m * n), dtype))
                    steps = guarded(np.array([[m * n, 1.0]]))
                    k.update("adam", a.reshape(-1), *own, guarded(np.full(5, 0.1)), steps, used)
                    k.limit_norm(own[0], k.norm(own[0], None, None, used), 0.5, used)
                    k.all_finite(own[0], None, used)
                    k.use_rows(used, guarded(np.arange(m)), guarded(np.ones((m, n), dtype)), False)
                k.use_all_rows(used)
                if m == 3:
                    counts, w = np.array([9, 0, 4]), guarded(np.ones((5, n), dtype))
                    numbers = guarded(np.ones(13, dtype)), guarded(np.arange(13, dtype=np.int32) % 5)
                    sparse = sparse_rows(Numbers(*numbers, None), np.array([0, 9, 9]), counts, 5)
                    assert [k.address(a) for a in sparse.numbers[:2]] == [k.address(a) for a in numbers]
                    rows = guarded(sparse.rows)
                    k.sparse_matmul(rows, w, guarded(np.empty((m, n), dtype)), bias=guarded(np.ones(n, dtype)))
                    k.sparse_matmul_grad(rows, guarded(np.ones((m, n), dtype)), w)
                    k.sparse_matmul_grad(rows, gapped[:, 3:], w, accumulate=True)
                    k.sparse_to_dense(rows)
                    if n:
                        k.use_columns(guarded(np.zeros(11, np.int64)), rows, w, False)
                for part in (gapped[:, 3:], gapped[:, :n]):
                    k.take_grad(part, guarded(np.arange(m)[::-1]), m, guarded(np.ones((m, n), dtype)), accumulate=True)
                k.ravel_index((m, n + 1), guarded(np.arange(m)[:, None]), guarded(np.arange(n)))
                if n in (1, 5, 8, 17, 40) and m < 17:
                    lengths, h = guarded(np.arange(m) % 3 + 1), guarded(np.ones((m, n), dtype))
                    k.cut(guarded(np.ones((m, 3, n), dtype)), lengths)
                    k.pack(guarded(np.ones((m, n), dtype)))
                    layers = (1, k.rnn, k.rnn_grad), (3, k.gru, k.gru_grad), (4, k.lstm, k.lstm_grad)
                    for count, layer, back in layers:
                        gates, w = guarded(np.ones((m, 3, count * n), dtype)), guarded(np.ones((count * n, n), dtype))
                        states = [h] * (1 + (count == 4))
                        of_bias = guarded(np.ones(count * n, dtype))
                        with Recording() as recording:
                            found = layer(gates, w, of_bias, *states, lengths, *[True] * (count > 1))
                            kept = [] if count == 1 else [found[0], found[2]] if count == 3 else [found[2], h]
                            back(gates, w, *kept, guarded(np.ones((m, 3, n), dtype)), *states, lengths)
                        recurrences_again(recording)
                if n:
                    scale = guarded(np.ones(n, dtype))
                    y, of_rows = k.layer_norm(a, scale, scale, 1e-5)
                    k.layer_norm_grad(guarded(y), a, scale, guarded(of_rows))
                    k.layer_norm_sums(guarded(y), a, guarded(of_rows))
                    images = [
                        *(a, guarded(a.reshape(m, n, 1).repeat(2, 2)), guarded(np.ones((2, n, m), dtype))),
                        guarded(np.ones((m, 3, n), dtype)).transpose(0, 2, 1),
                        guarded(np.ones((n, 3, m), dtype)).transpose(2, 0, 1),
                    ]
                    for x, after in itertools.product(images[2:], ((0, 1, 2), (0, 2, 1), (1, 2, 0))):
                        out = guarded(np.empty([x.shape[d] for d in after], dtype))
                        k.copy(x, out.transpose(np.argsort(after)))
                    for x in images:
                        mean, variance = guarded(np.zeros(n, dtype)), guarded(np.ones(n, dtype))
                        moments = k.fixed_moments(mean, variance, 1e-5)
                        y = k.batch_norm_fixed(x, scale, scale, guarded(moments))
                        k.batch_norm_grad(guarded(y), x, scale, guarded(moments), True)
                        if x.size > n:
                            y, moments = k.batch_norm(x, scale, scale, 1e-5)
                            k.batch_norm_grad(guarded(y), x, scale, guarded(moments))
                            k.follow_moments(mean, variance, guarded(moments), x.size // n, 0.1)
                    labels = guarded(rng.integers(0, n, m))
                    _, p = k.softmax_loss(a, labels)
                    k.softmax_loss_grad(guarded(p), labels, one)
                    k.check_labels(labels, n)
                    share = guarded(np.ones(m, dtype))
                    k.hinge_loss(a, labels, 1.0)
                    k.hinge_loss_grad(a, labels, one, 1.0, share)
                    k.softmax_loss_grad(guarded(p), labels, one, share, 0.1, 0)
                    k.soft_loss_grad(k.soft_loss(a, a)[1], a, one, share)
                    for loss, gradient, *number in [
                        (k.mse_loss, k.mse_loss_grad),
                        (k.mae_loss, k.mae_loss_grad),
                        (k.huber_loss, k.huber_loss_grad, 1.0),
                        (k.sigmoid_loss, k.sigmoid_loss_grad, guarded(np.ones(n))),
                        (k.quantile_loss, k.quantile_loss_grad, guarded(np.full(1, 0.5))),
                        (k.poisson_loss, k.poisson_loss_grad),
                    ]:
                        loss(a, a, *number)
                        gradient(a, a, one, *number, share)
                    pairs = guarded(np.ones((m, 2 * n), dtype))
                    k.gaussian_loss(pairs, a)
                    k.gaussian_loss_grad(pairs, a, one, share)
                    k.focal(a, 2.0)
                    k.weighted_mean(share, share, labels, n)
                    k.check_probabilities(a, 9.0, 1e9)
            k.shuffle(guarded(np.arange(n)), state)
            m, window = max(n, 1), {"stride": (1 + n % 2, 1 + n // 2 % 2), "padding": (n % 3, 1)}
            window["dilation"] = 1, 1 + n % 2
            slides = {"stride": (1, 1), "padding": (n % 3, n % 2), "dilation": (1, 1)}
            for images, into, of, groups, kernel, window in [
                *((n, 2, 3, 1, (3, 2), window), (n, 1, 1, 3, (3, 2), window), (n, 33, 2, 1, (3, 2), window)),
                *((n, 1, 1, 33, (3, 2), window), (3, m, 2, 1, (3, 2), window), (3, 2, m, 1, (3, 2), window)),
                *((3, 1, 1, m, (3, 2), window), (17, 33, m, 1, (3, 2), window), (17, m, 33, 1, (3, 2), window)),
                *((2, m, 3, 3, (3, 2), window), (2, 1, 1, 31 + m, (3, 3), slides)),
            ]:
                x = rng.uniform(1, 2, (images, into * groups, 5, 7)).astype(dtype)
                w = rng.uniform(1, 2, (of * groups, into, *kernel)).astype(dtype)
                y = (images, of * groups, *[(l + 2 * p - d * (f - 1) - 1) // s + 1 for l, f, s, p, d in zip(
                    (5, 7), kernel, *window.values(), strict=True)])
                dy = rng.uniform(1, 2, y).astype(dtype)
                for compute, *arguments in [
                    (k.convolution, x, w, y[2:], np.ones(of * groups, dtype)),
                    (k.transposed_convolution, dy, w, (5, 7), np.ones(into * groups, dtype)),
                    (k.convolution_weight_grad, x, dy, np.empty_like(w)),
                ]:
                    with Recording() as recording:
                        result = compute(*arguments, groups=groups, **window)
                    if result.size:
                        convolution_again(recording)
            window = {"stride": (1, 1), "padding": (n % 3, n % 2), "dilation": (1, 1)}
            into, of, size = 16 + n % 17, 16 + n // 2 % 18, (1 + n % 7, 4 + n % 5)
            kernel = [(3, 3), (1, 3), (1, 5), (5, 1), (3, 1)][n % 5 if min(size) > 4 else 0]
            y = [l + 2 * p - f + 1 for l, p, f in zip(size, window["padding"], kernel)]
            if min(y) > 0:
                x, dy = (rng.uniform(1, 2, (2, c, *s)).astype(dtype) for c, s in ((into, size), (of, y)))
                w, bias = rng.uniform(1, 2, (of, into, *kernel)).astype(dtype), np.ones(of, dtype)
                for kernel, *arguments in [
                    (k.convolution, x, w, tuple(y), bias),
                    (k.transposed_convolution, dy, w, size, np.ones(into, dtype)),
                    (k.convolution_weight_grad, x, dy, np.empty_like(w)),
                ]:
                    with Recording() as recording:
                        kernel(*arguments, **window)
                    convolution_again(recording)
            kept.clear()
        """,
        CAFFELITE_ISA=isa,
    )


# ---- the processor's state ----


def test_rounding_and_denormals_are_left_as_they_were_on_every_thread():
    """The control bits of MXCSR where the C library gives them; denormal arithmetic and the rounding mode anywhere."""
    run_python(
        """
        import ctypes, ctypes.util, platform, sys, threading
        import numpy as np

        libm = ctypes.CDLL(ctypes.util.find_library("m"))
        MXCSR = platform.machine() == "x86_64" and sys.platform.startswith("linux")

        def state():
            environment = (ctypes.c_uint32 * 64)()
            libm.fegetenv(environment)
            denormal = np.float32(1e-38) * np.float32(1e-3)
            third = np.float32(1) / np.float32(3)
            control = environment[7] & ~0x3F if MXCSR else None
            return libm.fegetround(), control, denormal.tobytes(), third.tobytes()

        states, imported, fitted = [], threading.Event(), threading.Event()

        def other_thread():
            states.append(state())
            imported.wait()
            states.append(state())
            fitted.wait()
            states.append(state())

        before = state()
        assert before[0] == 0 and np.frombuffer(before[2], np.float32)[0] > 0
        thread = threading.Thread(target=other_thread, daemon=True)
        thread.start()
        import caffelite as cl
        from caffelite import _kernels as kernels
        imported.set()
        states.append(state())

        def check_where_kernels_compute():  # each share of these arrays is another thread's
            for dtype, denormal, ulp in ((np.float32, 1e-38, 2.0**-23), (np.float64, 1e-308, 2.0**-52)):
                a = np.full(2_000_000, denormal, dtype)
                assert (kernels.multiply(a, 0.125) == a[0] * dtype(0.125)).all() and a[0] * dtype(0.125) > 0  # out
                assert (kernels.multiply(a, 2.0**40) == a[0] * dtype(2.0**40)).all() and a[0] * dtype(2.0**40) > 0  # in
                one = np.ones(2_000_000, dtype)
                for sign in (one, -one):
                    assert (kernels.add(sign, sign[0] * ulp * 0.25) == sign).all()
                    assert (kernels.add(sign, sign[0] * ulp * 0.75) == sign * dtype(1 + ulp)).all()

        cl.set_num_threads(4)
        assert 10 * 2_000_000 > kernels.PARALLEL_WORK
        check_where_kernels_compute()
        x, y = np.random.default_rng(0).normal(size=(256, 300)), np.arange(256) % 10
        model = cl.Model([cl.Linear(300, 200), cl.ReLU(), cl.Linear(200, 10)], seed=0)
        model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0, epochs=2)
        fitted.set()
        thread.join()
        states.append(state())
        assert len(states) == 5 and set(states) == {before}, (before, states)
        check_where_kernels_compute()
        """
    )


@pytest.mark.parametrize("label", [-1, 3, 2**62, -(2**63)])
def test_a_label_out_of_range_is_an_index_error_where_nobody_checked_it(label):
    scores, labels = np.zeros((4, 3), np.float32), np.array([0, 1, label, 2])
    with pytest.raises(IndexError, match="softmax_loss"):
        kernels.softmax_loss(scores, labels)
    with pytest.raises(IndexError, match="softmax_loss_grad"):
        kernels.softmax_loss_grad(scores, labels, np.ones((), np.float32))


def test_extreme_grad_refuses_places_that_are_not_there_and_other_shapes():
    dy = np.ones(2, np.float32)
    for place in (-1, 3, 2**62, -(2**63)):
        with pytest.raises(IndexError, match="extreme_grad"):
            kernels.extreme_grad(dy, np.array([0, place]), (3, 2), 0)
    for shape in ((3,), (3, 3), (2, 2, 2), (0,)):
        with pytest.raises(ValueError, match=r"\(2,\)"):
            kernels.extreme_grad(dy, np.array([0, 1]), shape, 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scaled_sum_that_accumulates_adds_the_rounded_sum(axis):
    for seed in range(50):
        a, out = (
            uniform(5, 7, dtype=np.float64, seed=seed),
            uniform(12, dtype=np.float64, seed=seed)[: 12 - 5 - 2 * axis],
        )
        expected = out + kernels.sum(a, axis, scale=1 / 3)
        kernels.sum(a, axis, scale=1 / 3, out=out, accumulate=True)
        assert_same_bits(out, expected)


# ---- tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": np.zeros((4, 3), np.float32)}, TypeError, "standardize takes float64, got float32"),
        ({"x": np.zeros(3)}, ValueError, r"standardize got x \(3,\), center \(3,\)"),
        ({"center": np.zeros(2)}, ValueError, r"center \(2,\), scale \(3,\).*expected \(n, k\), \(k,\), \(k,\)"),
        ({"scale": np.ones(6)[::2]}, ValueError, "contiguous"),
        ({"limit": 0.0}, ValueError, "more than 0"),
        ({"limit": np.nan}, ValueError, "more than 0"),
        ({"gaps": np.array([0, 3])}, IndexError, r"standardize got gaps \[0, 3\] for 3 columns"),
        ({"gaps": np.array([-1])}, IndexError, r"gaps \[-1\] for 3 columns"),
        ({"gaps": np.array([0.0])}, TypeError, "int64"),
        ({"dtype": np.int64}, TypeError, "standardize makes float32 or float64"),
    ],
)
def test_standardize_refuses_what_does_not_fit(change, error, message):
    given = {"x": np.zeros((4, 3)), "center": np.zeros(3), "scale": np.ones(3), "gaps": np.array([1]), "limit": 3.0}
    with pytest.raises(error, match=message):
        kernels.standardize(*{**given, "dtype": np.float32, **change}.values())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": np.zeros((4, 2), np.float32)}, TypeError, "piecewise takes float64, float64 and int64, got float32"),
        ({"starts": np.array([0.0, 3, 5])}, TypeError, "got float64, float64, float64"),
        ({"x": np.zeros((4, 3))}, ValueError, r"piecewise got x \(4, 3\), edges \(5,\), starts \(3,\)"),
        ({"edges": np.arange(10.0)[::2]}, ValueError, "contiguous"),
        ({"starts": np.array([0, 3, 6])}, ValueError, r"piecewise got starts \[0, 3, 6\] for 5 edges"),
        ({"starts": np.array([1, 3, 5])}, ValueError, r"starts \[1, 3, 5\]"),
        ({"starts": np.array([0, 0, 5])}, ValueError, r"starts \[0, 0, 5\]"),
        ({"dtype": np.int64}, TypeError, "piecewise makes float32 or float64"),
    ],
)
def test_piecewise_refuses_what_does_not_fit(change, error, message):
    given = {"x": np.zeros((4, 2)), "edges": np.arange(5.0), "starts": np.array([0, 3, 5])}
    with pytest.raises(error, match=message):
        kernels.piecewise(*{**given, "dtype": np.float32, **change}.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_places_are_those_between_edges_and_missing_numbers_are_after_them(dtype):
    edges, starts = np.array([-1.0, 0, 0.5, 4, 7, 2, 3]), np.array([0, 4, 5, 7])
    x = np.array([[-5.0, 7, 2], [-1, 8, 2.25], [-0.5, -np.inf, 3], [0, 0, 99], [0.375, 7, -99], [4, 7, np.nan]])
    x = np.concatenate([x, [[np.inf, np.nan, np.inf], [np.nan, 7, -np.inf]]])
    places = [[0, 0, 0], [0, 0, 0.25], [0.5, 0, 1], [1, 0, 1], [1.75, 0, 0], [3, 0, 2], [3, 1, 1], [4, 0, 0]]
    np.testing.assert_array_equal(kernels.places(x, edges, starts, dtype), np.array(places, dtype))


def test_more_places_than_a_type_can_tell_apart_are_refused():
    starts = np.array([0, 2**23 + 1])
    edges = np.arange(2.0**23 + 1)
    assert kernels.places(np.array([[np.nan]]), edges, starts, np.float64) == 2**23 + 1
    with pytest.raises(ValueError, match="places got 8388609 edges of a column, too many for float32"):
        kernels.places(np.array([[np.nan]]), edges, starts, np.float32)


@pytest.mark.parametrize(
    "change",
    [
        {"edges": np.zeros(8)},
        {"edges": np.zeros(7, np.float32)},
        {"edges": np.zeros(14)[::2]},
        {"of_edges": np.array([0, 3, 7])},
        {"of_edges": np.array([0, 7])},
    ],
)
def test_edges_that_are_not_those_of_the_table_are_refused(change):
    given = {
        "dy": np.zeros((3, 4)),
        "table": np.zeros((9, 4)),
        "places": np.zeros((3, 2)),
        "starts": np.array([0, 5, 9]),
    }
    given |= {"edges": np.zeros(7), "of_edges": np.array([0, 4, 7])}
    kernels.splines_input_grad(*given.values())
    with pytest.raises(ValueError, match="splines_input_grad got edges"):
        kernels.splines_input_grad(*{**given, **change}.values())


SPLINES = {
    "table": np.zeros((9, 4)),
    "bias": np.zeros(4),
    "places": np.zeros((3, 1)),
    "codes": np.zeros((3, 1), np.int64),
    "starts": np.array([0, 5, 9]),
}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"table": np.zeros((9, 4), np.float32)}, TypeError, "splines got float32 and float64"),
        ({"table": np.zeros((9, 4), int)}, TypeError, "int64"),
        ({"table": np.zeros((8, 4))}, ValueError, r"table of shape \(8, 4\); expected 9 rows"),
        ({"table": np.zeros(9)}, ValueError, "an array of rows"),
        ({"bias": np.zeros(5)}, ValueError, r"bias of shape \(5,\)"),
        ({"places": np.zeros((2, 1))}, ValueError, r"places \(2, 1\), codes \(3, 1\)"),
        ({"places": np.zeros(3)}, ValueError, r"places \(3,\)"),
        ({"codes": np.zeros((3, 1))}, TypeError, "codes of int64, got float64"),
        ({"codes": np.array([[0], [4], [0]])}, IndexError, "a code that is not among the rows"),
        ({"codes": np.array([[0], [-1], [0]])}, IndexError, "a code that is not among the rows"),
        ({"codes": None}, ValueError, r"starts \(3,\)"),
        ({"codes": np.zeros((4, 0), np.int64), "starts": np.array([0, 9])}, ValueError, r"codes \(4, 0\)"),
        ({"starts": np.array([0, 5, 5])}, ValueError, "rising"),
        ({"starts": np.array([1, 5, 9])}, ValueError, "rising"),
        ({"starts": np.array([0.0, 5, 9])}, TypeError, "starts of int64"),
    ],
)
def test_splines_refuse_what_does_not_fit(change, error, message):
    kernels.splines(*SPLINES.values())
    with pytest.raises(error, match=message):
        kernels.splines(*{**SPLINES, **change}.values())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"slope": np.zeros((3, 4))}, ValueError, r"slope \(3, 4\)"),
        ({"slope": np.zeros((1, 5))}, ValueError, r"slope \(1, 5\)"),
        ({"slope": np.zeros((1, 4), np.float32)}, TypeError, "float32 and float64"),
        ({"scale": np.zeros(3)}, ValueError, r"scale \(3,\)"),
        ({"z": np.zeros(8)}, ValueError, r"z \(8,\)"),
        ({"z": np.zeros(5, np.float32)}, TypeError, "z in float64"),
        ({"weight": np.zeros((8, 4))}, ValueError, r"weight \(8, 4\)"),
    ],
)
def test_spline_table_refuses_what_does_not_fit(change, error, message):
    given = {"weight": np.zeros((9, 4)), "slope": np.zeros((1, 4)), "scale": np.zeros(2), "z": np.zeros(5)}
    given["starts"] = np.array([0, 5, 9])
    table = kernels.spline_table(*given.values())
    with pytest.raises(error, match=message):
        kernels.spline_table(*{**given, **change}.values())
    with pytest.raises(error, match=message.replace("spline_table", "spline_table_grad")):
        kernels.spline_table_grad(table, *{**given, **change}.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_standardize_takes_any_layout_and_numbers_of_any_size(dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 8)) * 10.0 ** rng.integers(-300, 300, (50, 8))
    x[rng.random(x.shape) < 0.2] = np.nan
    center, scale, gaps = np.zeros(8), np.full(8, 1e-10), np.array([7, 0, 3])
    for limit in (3.0, 1e-300):
        with np.errstate(over="ignore", invalid="ignore"):
            q = np.clip(x / scale / limit, -1e150, 1e150)
            expected = np.where(np.isnan(x), 0, limit * (q / np.sqrt(1 + q * q)))
        for laid_out in (x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
            y = kernels.standardize(laid_out, center, scale, gaps, limit, dtype)
            np.testing.assert_allclose(y[:, :8], expected.astype(dtype), rtol=1e-6)
            assert (y[:, 8:] == np.isnan(x[:, gaps])).all()
