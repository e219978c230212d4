"""cl.gradient: the gradient of a callable, which changes nothing."""

import numpy as np
import pytest

import caffelite as cl

X = np.random.default_rng(0).normal(size=(5, 3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gradient_has_the_shape_and_dtype_of_x(dtype):
    x = X.astype(dtype)
    gradient = cl.gradient(lambda x: (x * x).sum(), x)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient, 2 * x, rtol=1e-6)
    np.testing.assert_allclose(cl.gradient(lambda x: (x.transpose() * 3).sum(), x.T[::-1].T), np.full((5, 3), 3))


def test_several_inputs_give_a_tuple_and_one_without_a_part_zeros():
    a, b, c = cl.gradient(lambda a, b, c: (a * b).sum(), X, 2 * X, np.ones(4))
    np.testing.assert_allclose(a, 2 * X)
    np.testing.assert_allclose(b, X)
    assert c.tolist() == [0] * 4
    assert cl.gradient(lambda x: cl.Tensor(3.0), X).tolist() == np.zeros((5, 3)).tolist()


@pytest.mark.parametrize("has_gradients", [False, True])
def test_gradients_of_parameters_and_inputs_stay_as_they_are(has_gradients):
    model, outside = cl.Model([cl.Linear(3, 4), cl.Tanh(), cl.Linear(4, 1)], seed=0), cl.Tensor(2.0, requires_grad=True)
    x = cl.Tensor(X.astype(np.float32), requires_grad=True)

    def f(x):
        return (model(x) * outside).sum()

    if has_gradients:
        f(x).backward()
    tensors = [*model.parameters(), outside, x]
    before = [None if p.grad is None else p.grad.copy() for p in tensors]
    gradient = cl.gradient(f, x)
    for p, old in zip(tensors, before, strict=True):
        assert (p.grad is None) == (old is None)
        np.testing.assert_array_equal(p.grad, old)
    f(x).backward()
    np.testing.assert_array_equal(x.grad, (2 if has_gradients else 1) * gradient)


def test_it_works_inside_no_grad_and_in_a_captured_step():
    with cl.no_grad():
        np.testing.assert_allclose(cl.gradient(lambda x: (x * x).mean(), X), 2 * X / X.size)
    program = cl.capture(lambda x: cl.gradient(lambda t: (t * t * t).sum(), x), X)
    np.testing.assert_allclose(program(2 * X), 3 * (2 * X) ** 2)


def test_a_result_of_several_elements_or_of_another_type_raises():
    with pytest.raises(ValueError, match=r"single element, got shape \(5, 3\); add \.sum\(\)"):
        cl.gradient(lambda x: x * 2, X)
    with pytest.raises(TypeError, match="returned float; it has to return a Tensor"):
        cl.gradient(lambda x: 2.0, X)
    with pytest.raises(TypeError, match="gradient"):
        cl.gradient(lambda x: x.sum(), ["a"])


def test_hints_say_that_there_are_no_second_derivatives():
    with pytest.raises(TypeError, match="no second derivatives"):
        cl.Tensor(1.0, requires_grad=True).backward(create_graph=True)
    with pytest.raises(AttributeError, match=r"cl\.gradient\(f, x\)"):
        _ = cl.grad
