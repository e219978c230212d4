"""Reductions: what their cases do not say."""

import numpy as np
import pytest
from cases import both_dtypes
from reference import assert_same_bits

import caffelite as cl
from caffelite import functions


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 70])
@pytest.mark.parametrize("axis", [0, 1])
@both_dtypes
def test_ties_of_max_and_min_give_the_gradient_to_the_first(dtype, axis, n):
    rng = np.random.default_rng(n)
    x = rng.choice([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan], (5 * n, n), p=[0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    x = (x if axis else x.T).astype(dtype)
    for name, index in (("Max", x.argmax(axis)), ("Min", x.argmin(axis))):
        function = getattr(functions, name)(axis)
        assert_same_bits(function.forward(x), np.take_along_axis(x, np.expand_dims(index, axis), axis).squeeze(axis))
        expected = np.zeros_like(x)
        np.put_along_axis(expected, np.expand_dims(index, axis), dtype(2), axis)
        assert_same_bits(function.backward(np.full(5 * n, 2, dtype)), expected)


def test_the_first_of_several_axes_is_in_the_order_of_their_elements():
    x = np.zeros((2, 3, 2))
    x[1, 2, 0] = x[1, 0, 1] = x[0, 1, 1] = 1
    for axis, first in [(None, (0, 1, 1)), ((2, 0, 1), (0, 1, 1)), ((1, 0), (0, 1, 1)), ((2, 0), (0, 1, 1))]:
        function = functions.Max(axis)
        dx = function.backward(np.ones_like(function.forward(x)))
        assert dx[first] == 1
    assert dx[1, 0, 1] == dx[1, 2, 0] == 1
    assert dx.sum() == 3


@pytest.mark.parametrize("name", ["Max", "Min"])
@pytest.mark.parametrize(("shape", "axis"), [((0,), None), ((0, 3), 0), ((3, 0), (0, 1)), ((2, 0), 1), ((0, 3), None)])
def test_the_largest_of_no_elements_raises(name, shape, axis):
    with pytest.raises(ValueError, match="zero-size"):
        getattr(np, name.lower())(np.ones(shape), axis)
    with pytest.raises(ValueError, match="no elements"):
        getattr(functions, name)(axis).forward(np.ones(shape))


def test_a_float32_mean_does_not_overflow_on_the_way():
    largest = np.finfo(np.float32).max
    assert functions.Mean().forward(np.full(10, largest)) == largest


@pytest.mark.parametrize("function", [functions.Sum, functions.Mean, functions.Max, functions.Min])
@pytest.mark.parametrize("axis", [2, -3, (0, 2), (0, 0), (0, -2)])
def test_axes_that_do_not_exist_or_come_twice_raise(function, axis):
    with pytest.raises(ValueError, match=r"ax[ei]s"):
        function(axis).forward(np.ones((2, 3)))


@pytest.mark.parametrize("axis", [True, False, 1.0, "0", (True,), (0, 1.0)])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_an_axis_is_an_integer(name, axis):
    with pytest.raises(TypeError, match="integer"):
        getattr(cl.Tensor(np.ones((2, 3))), name)(axis)


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()])
def test_a_mean_of_no_elements_raises(shape):
    x = np.ones((*shape, 0))
    with pytest.raises(ValueError, match="no elements"):
        functions.Mean().forward(x)


def test_a_mean_of_no_elements_along_an_axis_raises():
    with pytest.raises(ValueError, match="no elements"):
        functions.Mean(0).forward(np.ones((0, 3)))
