"""Products of matrices and of stacks of matrices: values, bits, strides, and what does not fit."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from caffelite import _kernels as kernels
from tests import reference
from tests.kernels.arguments import uniform
from tests.reference import LAYOUTS, assert_close, assert_same_bits, plain_copy, to_float64

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


def random_view(rng, rows, columns, dtype):
    """Return a matrix with strides of its own: transposed, with steps, reversed, or with one row or column repeated."""
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
    truth, _ = reference.linear(to_float64(a), to_float64(b), None if bias is None else to_float64(bias))
    y = kernels.matmul(a, b, bias=bias)
    assert_close(y, truth, dtype, scale=np.abs(to_float64(a)) @ np.abs(to_float64(b)))
    assert_same_bits(y, kernels.matmul(plain_copy(a), plain_copy(b), bias=bias))


@both_dtypes
@given(st.integers(1, 4), st.integers(1, 150), st.integers(0, 300), st.integers(0, 2**32))
def test_a_product_of_few_rows_or_few_columns_is_the_judges_and_part_of_a_larger_one(dtype, few, n, k, seed):
    rng = np.random.default_rng(seed)
    a, b, bias = random_view(rng, 30, k, dtype), random_view(rng, k, n, dtype), rng.uniform(-1, 1, n).astype(dtype)
    scale = (1 + k / 8) * np.abs(to_float64(a)) @ np.abs(to_float64(b))  # of equal terms, all errors may add up
    larger = kernels.matmul(a, b, bias=bias)
    rows = kernels.matmul(a[:few], b, bias=bias)
    assert_same_bits(rows, larger[:few])
    assert_close(rows, reference.linear(to_float64(a[:few]), to_float64(b), to_float64(bias))[0], dtype, scale[:few])
    columns = kernels.matmul(b.T, a[:few].T)
    assert_same_bits(columns, kernels.matmul(a[:few], b).T)
    assert_close(columns, reference.matmul_of_matrices(to_float64(b.T), to_float64(a[:few].T)), dtype, scale[:few].T)
    before = rng.uniform(-1, 1, (few, n)).astype(dtype)
    assert_same_bits(kernels.matmul(a[:few], b, before.copy(), accumulate=True), before + columns.T)


@both_dtypes
@pytest.mark.parametrize("m", [1, 5, 6, 8, 97, 193])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (8, 255), (16, 256), (17, 257), (48, 300), (481, 600), (961, 3)])
def test_a_product_across_the_edges_of_blocks_is_the_judges(m, n, k, dtype):
    a, b = uniform(m, k, dtype=dtype), uniform(k, n, dtype=dtype, seed=1)
    truth = reference.matmul_of_matrices(a, b)
    assert_close(kernels.matmul(a, b), truth, dtype, scale=np.abs(to_float64(a)) @ np.abs(to_float64(b)))


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
    for layout in (reference.fortran_ordered, reference.strided_view, reference.negatively_strided):
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
@given(st.sampled_from([40, 64, 96, 300]), st.sampled_from([32, 64, 128]), st.sampled_from([32, 64, 128]), st.data())
def test_rows_that_crowd_each_other_in_the_cache_have_the_bits_of_others(dtype, m, n, stride, data):
    """Their sums are computed in shorter blocks of K."""
    k, rng = data.draw(st.integers(60, 300)), np.random.default_rng(0)
    a = rng.normal(size=(k, -(-m // stride) * stride)).astype(dtype)[:, :m].T
    b = rng.normal(size=(k, n)).astype(dtype)
    wide = np.zeros((k, n + 3), dtype)
    wide[:, :n] = b
    y = kernels.matmul(a.copy(), wide[:, :n])
    assert_same_bits(kernels.matmul(a, b), y)
    assert_same_bits(kernels.matmul(a.copy(), b), y)
    assert_same_bits(kernels.matmul(a[-1:], b), y[-1:])
    before = rng.normal(size=(m, n)).astype(dtype)
    assert_same_bits(kernels.matmul(a, b, before.copy(), accumulate=True), before + y)


@both_dtypes
@depths
def test_a_bias_is_added_to_the_finished_sum(k, dtype):
    a, b, bias = uniform(30, k, dtype=dtype), uniform(k, 50, dtype=dtype, seed=1), uniform(50, dtype=dtype)
    assert_same_bits(kernels.matmul(a, b, bias=bias), kernels.matmul(a, b) + bias)
    assert_same_bits(kernels.matmul(a, b, bias=reference.strided_view(bias)), kernels.matmul(a, b, bias=bias))


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


def test_a_product_onto_its_bias_raises():
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


@both_dtypes
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 7, 5), (17, 1, 40), (1, 300, 2), (70, 600, 33), (0, 2, 3), (2, 0, 3)])
def test_a_stack_of_products_is_the_products_one_by_one(sizes, dtype):
    m, k, n = sizes
    a, b = uniform(4, m, k, dtype=dtype), uniform(4, k, n, dtype=dtype)
    turned = uniform(k, m, 4, dtype=dtype).transpose(2, 1, 0)
    for left, right in (
        (a, b),
        (turned, b[::-1]),
        (np.broadcast_to(a[0], a.shape), b),
        (reference.unaligned_view(a), b),
    ):
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
