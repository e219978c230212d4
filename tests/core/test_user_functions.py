"""Functions of users in the graph."""

import numpy as np
import pytest

import caffelite as cl
from tests.core.tensors import Swish, leaf
from tests.reference import odd_array


def test_a_users_function_joins_the_graph():
    x = leaf(np.linspace(-2, 2, 5))
    y = (Swish()(x * 2) + 1).sum()
    y.backward()
    s = 1 / (1 + np.exp(-2 * x.data))
    np.testing.assert_allclose(x.grad, 2 * (s + 2 * x.data * s * (1 - s)))
    assert Swish()(np.ones(3, np.float32)).dtype == np.float32


def test_a_users_function_may_have_parameters_and_several_inputs():
    class Scale(cl.Function):
        def __init__(self):
            self.factor = leaf(3.0, name="factor")

        def parameters(self):
            return [self.factor]

        def forward(self, x, shift, times):
            self.x, self.times = x, times
            return times * self.factor.data * x + shift

        def backward(self, dy):
            self.factor.add_grad(np.sum(self.times * dy * self.x))
            return self.times * dy * self.factor.data, dy

    scale, x, shift = Scale(), leaf([1.0, 2.0]), leaf([0.0, 5.0])
    y = scale(x, shift, 2)
    assert y.data.tolist() == [6, 17]
    y.backward([1, 10])
    assert x.grad.tolist() == [6, 60]
    assert shift.grad.tolist() == [1, 10]
    assert scale.factor.grad.tolist() == 42
    assert cl.check_gradients(Scale(), np.ones(3), np.ones(3), 2) < 1e-7


def test_a_users_function_may_return_a_scalar_and_no_gradient():
    class Largest(cl.Function):
        def forward(self, x, weight):
            self.x = x
            return x.max()

        def backward(self, dy):
            return dy * (self.x == self.x.max()), None

    x, w = leaf(np.array([1.0, 3.0])), leaf(np.array([1.0]))
    y = Largest()(x, w)
    assert y.shape == ()
    assert y.dtype == np.float64
    y.backward()
    assert x.grad.tolist() == [0, 1]
    assert w.grad is None


def test_gradients_of_a_users_function_are_checked():
    class Wrong(cl.Function):
        def __init__(self, gradient):
            self.gradient = gradient

        def forward(self, x, y):
            return x + y

        def backward(self, dy):
            return self.gradient

    for gradient in (np.ones(3), (np.ones(2), np.ones((1, 2))), np.ones(2), (np.ones(2),), 1.0):
        with pytest.raises(ValueError, match=r"Wrong\(\)"):
            Wrong(gradient)(leaf([1.0, 2.0]), leaf([1.0, 2.0])).backward([1, 1])
    with pytest.raises(TypeError, match=r"Wrong\(\)"):
        Wrong((np.ones(2), np.array(["a", "b"])))(leaf([1.0, 2.0]), leaf([1.0, 2.0])).backward([1, 1])


@pytest.mark.parametrize("dtype", ["int64", "bool", "float16", ">f4", ">f8", "complex64", "object", "longdouble", "U3"])
def test_a_users_function_that_returns_an_odd_dtype(dtype):
    class Odd(cl.Function):
        def forward(self, x):
            return odd_array(dtype, x.shape)

        def backward(self, dy):
            return dy

    if np.dtype(dtype).kind in "biuf" and np.dtype(dtype).itemsize <= 8:
        expected = np.float64 if dtype in (">f8", "longdouble") else np.float32
        y = Odd()(leaf([1.0, 2.0]))
        assert y.dtype == expected
        assert y.data.tolist() == [1, 1]
    else:
        with pytest.raises(TypeError, match="Odd"):
            Odd()(leaf([1.0, 2.0]))


def test_an_instance_keeps_nothing_of_a_call_on_tensors():
    swish = Swish()
    swish(leaf([1.0]))
    assert vars(swish) == {}


def test_the_abstract_classes_cannot_be_made():
    for abstract in (cl.Function, lambda: cl.Optimizer([leaf([1.0])], lr=0.1)):
        with pytest.raises(TypeError, match="abstract"):
            abstract()
