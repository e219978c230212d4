"""Sums over any axes: values, orders of summation, and axes that do not exist."""

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


def every_axis(ndim):
    return [None, *[axes for count in range(ndim + 1) for axes in itertools.combinations(range(ndim), count)]]


@both_dtypes
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(), (7,), (70, 3), (3, 70), (2, 3, 4, 5), (1, 3, 1, 2), (2, 0, 3)])
def test_sums_over_all_combinations_of_axes_are_the_judges(shape, keepdims, dtype):
    a = uniform(*shape, dtype=dtype)
    for axis in every_axis(len(shape)):
        truth, _ = reference.sum(to_float64(a), axis, keepdims)
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
    assert kernels.sum(a) == np.float32(to_float64(a).sum())
    assert (kernels.sum(a.reshape(-1, 2), 0) == np.float32(to_float64(a).sum() / 2)).all()


@both_dtypes
@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_is_finite_even_if_a_partial_sum_is_not(axis, dtype):
    large = np.finfo(dtype).max / 2
    a = np.tile(np.array([large] * 100 + [-large] * 100, np.float32 if dtype == np.float32 else dtype), (5, 1))
    a[3] = 1
    expected = [0, 0, 0, 200, 0]
    if dtype == np.float64:  # there is no wider type to sum in
        a, expected = a[3:4], expected[3:4]
    assert_same_bits(kernels.sum(a if axis else a.T.copy(), axis), np.array(expected, dtype))


@both_dtypes
@given(st.integers(0, 70), st.integers(2, 150), st.integers(0, 2**32))
def test_sums_of_columns_are_the_judges_and_do_not_depend_on_the_columns_beside_them(dtype, n, columns, seed):
    rng = np.random.default_rng(seed)
    a = rng.uniform(-1, 1, (3, n, columns)).astype(dtype)
    y = kernels.sum(a, 1)
    assert_close(y, reference.sum(to_float64(a), 1)[0], dtype, np.abs(to_float64(a)).sum(1))
    some = np.sort(rng.choice(columns, 2, replace=False))
    assert_same_bits(kernels.sum(np.ascontiguousarray(a[..., some]), 1), y[:, some])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_with_an_infinite_number_leaves_its_neighbours(axis, bad):
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


def test_a_sum_may_be_written_into_what_is_summed():
    memory = uniform(4, 4)
    expected = memory.sum(axis=1) + memory[2]
    kernels.sum(memory, 1, out=memory[2], accumulate=True)
    assert_close(memory[2], expected, np.float32)
    expected = 2 * memory
    assert_same_bits(kernels.sum(memory, (), out=memory, scale=2), expected)


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
