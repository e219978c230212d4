"""Activations: what their cases do not say."""

import numpy as np
import pytest
import reference
from cases import both_dtypes
from reference import assert_close, assert_same_bits

import caffelite as cl
from caffelite import functions


def test_relu_has_slope_0_at_0():
    relu = cl.ReLU()
    relu.forward(np.array([0.0, -0.0, 1.0, -1.0]))
    assert relu.backward(np.ones(4)).tolist() == [0, 0, 1, 0]


@both_dtypes
@pytest.mark.parametrize("row", [[1e38, -1e38, 0], [-3e38, -3e38, -3e38], [3e38, -3e38, 3e38], [1000, 0, -1000]])
def test_softmax_of_numbers_at_the_end_of_float32_is_finite_and_sums_to_1(row, dtype):
    x = np.array([row] * 100, dtype)
    softmax, log_softmax = functions.Softmax(), functions.LogSoftmax(1)
    assert_close(softmax.forward(x), reference.softmax(x), dtype)
    np.testing.assert_allclose(softmax.y.sum(axis=1), 1, 1e-6)
    assert not np.isnan(log_softmax.forward(x)).any()
    for function in (softmax, log_softmax):
        assert np.isfinite(function.backward(np.ones_like(x))).all()


def test_softmax_of_no_numbers_is_empty():
    for function in (functions.Softmax(), functions.LogSoftmax()):
        assert function.forward(np.ones((3, 0))).shape == (3, 0)
        assert function.backward(np.ones((3, 0))).shape == (3, 0)


@pytest.mark.parametrize("function", [functions.Softmax, functions.LogSoftmax])
def test_softmax_is_along_one_axis_that_exists(function):
    for shape, axis in [((), -1), ((3,), 1), ((3, 2), -3)]:
        with pytest.raises(ValueError, match=f"no axis {axis}"):
            function(axis).forward(np.ones(shape))
    for axis in (None, (0, 1), 1.0):
        with pytest.raises(TypeError):
            function(axis).forward(np.ones((2, 2)))


@pytest.mark.parametrize("function", [functions.Softmax, functions.LogSoftmax])
def test_a_rows_softmax_does_not_depend_on_the_rows_beside_it(function):
    x = np.random.default_rng(0).normal(size=(100, 37)).astype(np.float32)
    y = function().forward(x)
    for i in range(100):
        assert_same_bits(function().forward(x[i : i + 1])[0], y[i])
