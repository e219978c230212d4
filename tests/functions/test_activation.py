"""Activations: what their cases do not say."""

import math

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from caffelite.functions import activation
from tests import reference
from tests.cases import FAMILIES, both_dtypes
from tests.reference import assert_close, assert_same_bits


def test_relu_has_slope_0_at_0():
    relu = cl.ReLU()
    relu.forward(np.array([0.0, -0.0, 1.0, -1.0]))
    assert relu.backward(np.ones(4)).tolist() == [0, 0, 1, 0]


LAYERS = {function.__name__.lower(): function for function in FAMILIES}


@pytest.mark.parametrize("name", [name for name in activation.__all__ if name.islower()])
def test_an_activation_is_a_layer_a_method_and_a_function(name):
    family = FAMILIES[LAYERS[name.replace("_", "")]]
    for case in [family.build(*arguments) for arguments in family.listed]:
        layer, (x,) = case.make(), case.inputs(np.float32)
        arguments = vars(layer).copy()
        for y in (
            getattr(cl, name)(x, **arguments),
            getattr(cl.Tensor(x), name)(**arguments),
            eval(f"cl.{layer!r}")(x),
        ):
            assert_same_bits(y.data, layer(x).data)


@pytest.mark.parametrize("layer", [cl.LeakyReLU, cl.ELU])
def test_an_activations_number_is_finite_and_not_below_0(layer):
    for value in (-0.1, np.nan, np.inf):
        with pytest.raises(ValueError, match=f"{layer.__name__}: .* {value}"):
            layer(value)
    for value in ("1", None, True, [1.0]):
        with pytest.raises(TypeError, match=f"{layer.__name__}: "):
            layer(value)
    assert repr(layer(np.float32(0.5))) == f"{layer.__name__}(0.5)"


def test_activations_near_zero_lose_no_digits():
    x = np.array([-1e-300, 1e-300, -1e-9, -0.1, -5, -20, -36])
    normal = [math.erfc(-value / math.sqrt(2)) / 2 for value in x]
    for layer, truth in [
        (cl.GELU(), x * normal),
        (cl.ELU(), np.where(x > 0, x, np.expm1(x))),
        (cl.SiLU(), x * (np.exp(x) / (1 + np.exp(x)))),
        (cl.Softplus(), np.log1p(np.exp(x))),
    ]:
        np.testing.assert_allclose(layer.forward(x), truth, 1e-13)


@both_dtypes
def test_activations_saturate_at_the_end_of_their_range(dtype):
    x = np.array([-3e38, 3e38, -1e30, 1e30, -500, 500], dtype)
    positive = np.maximum(x, 0)
    for layer, low, slope in [
        (cl.LeakyReLU(0.5), 0.5 * x, 0.5),
        (cl.ELU(2.0), -2, 0),
        (cl.GELU(), 0, 0),
        (cl.GELU(approximate=True), 0, 0),
        (cl.SiLU(), -500 * np.exp(dtype(-500)), 0),
        (cl.Softplus(), np.exp(dtype(-500)), 0),
    ]:
        np.testing.assert_allclose(layer.forward(x), np.where(x > 0, positive, low), atol=1e-200)
        np.testing.assert_allclose(layer.backward(np.ones_like(x)), np.where(x > 0, 1, slope), atol=1e-200)


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


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_computes_its_derivative_for_a_training(approximate):
    x, layer = np.linspace(-3, 3, 7), cl.GELU(approximate)
    y, dx = layer.forward(x), layer.backward(np.ones_like(x))
    assert layer.x is None
    with cl.inference():
        np.testing.assert_array_equal(layer.forward(x), y)
        assert layer.derivative is None
        np.testing.assert_array_equal(layer.backward(np.ones_like(x)), dx)
