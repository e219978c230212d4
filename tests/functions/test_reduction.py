"""Reductions: what their cases do not say."""

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from tests.cases import both_dtypes
from tests.reference import LAYOUTS, assert_close, assert_same_bits


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


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "Var", "Std", "LogSumExp"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [2, -3, (0, 2), (0, 0), (0, -2)])
def test_axes_that_do_not_exist_or_come_twice_raise(name, axis):
    with pytest.raises(ValueError, match=r"ax[ei]s"):
        getattr(functions, name)(axis).forward(np.ones((2, 3)))


@pytest.mark.parametrize("axis", [True, False, 1.0, "0", (True,), (0, 1.0)])
@pytest.mark.parametrize("name", [*map(str.lower, REDUCTIONS), "cumsum", "argmax", "argmin"])
def test_an_axis_is_an_integer(name, axis):
    with pytest.raises(TypeError, match=r"integer|one axis"):
        getattr(cl, name)(cl.Tensor(np.ones((2, 3))), axis)


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()])
def test_a_mean_of_no_elements_raises(shape):
    x = np.ones((*shape, 0))
    with pytest.raises(ValueError, match="no elements"):
        functions.Mean().forward(x)


def test_a_mean_of_no_elements_along_an_axis_raises():
    with pytest.raises(ValueError, match="no elements"):
        functions.Mean(0).forward(np.ones((0, 3)))


# ---- products ----


@both_dtypes
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("zeros", [0, 1, 2, 5])
def test_the_gradient_of_a_product_with_zeros_is_right(zeros, axis, dtype):
    rng = np.random.default_rng(zeros)
    x = rng.uniform(0.5, 2, (5, 5)).astype(dtype)
    for line in x if axis != 0 else x.T:
        line[rng.permutation(5)[:zeros]] = 0
    t = cl.Tensor(x, requires_grad=True)
    t.prod(axis).sum().backward()
    for place in np.ndindex(5, 5):
        others = x.astype(np.float64)
        others[place] = 1
        expected = others.prod(axis) if axis is None else others.prod(axis)[place[1 - axis]]
        assert t.grad[place] == pytest.approx(expected, rel=1e-6)


def test_a_float32_product_does_not_overflow_on_the_way():
    t = cl.Tensor(np.array([1e30, 1e30, 1e-30, 1e-30], np.float32), requires_grad=True)
    y = t.prod()
    y.backward()
    assert y.item() == pytest.approx(1)
    np.testing.assert_allclose(t.grad, [1e-30, 1e-30, 1e30, 1e30], 1e-6)


# ---- variances ----


@both_dtypes
@pytest.mark.parametrize("ddof", [0, 1, 1.5, -1, np.float64(2)])
@pytest.mark.parametrize("name", ["var", "std"])
def test_the_degrees_of_freedom_are_numpys(name, ddof, dtype):
    x = np.random.default_rng(0).standard_normal((4, 5, 3)).astype(dtype)
    for axis in (None, 0, (0, 2)):
        for keepdims in (False, True):
            y = getattr(cl.Tensor(x), name)(axis, keepdims, ddof)
            expected = getattr(np, name)(x.astype(np.float64), axis=axis, ddof=ddof, keepdims=keepdims)
            assert_close(y.data, expected, dtype)
    assert cl.check_gradients(getattr(functions, name.title())(1, ddof=ddof), x.astype(np.float64)) < 1e-7


@pytest.mark.parametrize(("shape", "axis", "ddof"), [((0,), None, 0), ((2, 0), 1, 0), ((3,), None, 3), ((2, 1), 1, 1)])
@pytest.mark.parametrize("name", ["var", "std"])
def test_a_variance_of_too_few_elements_raises(name, shape, axis, ddof):
    with pytest.raises(ValueError, match=rf"{name} of \d elements, with ddof={ddof}"):
        getattr(cl.Tensor(np.ones(shape)), name)(axis, ddof=ddof)


@pytest.mark.parametrize("ddof", ["1", None, True, np.ones(1)])
def test_ddof_is_a_number(ddof):
    with pytest.raises(TypeError, match="Var: ddof must be a number"):
        cl.Tensor([1.0, 2.0]).var(ddof=ddof)


@both_dtypes
def test_a_variance_far_from_0_keeps_its_digits(dtype):
    x = np.random.default_rng(0).uniform(0, 1, (100, 100)).astype(dtype) + dtype(1e4)
    for axis in (0, 1):
        np.testing.assert_allclose(cl.var(x, axis).data, np.var(x.astype(np.float64), axis), 1e-6)


def test_equal_elements_have_the_standard_deviation_0_with_gradient_0():
    x = np.array([[0.1, 0.1, 0.1], [1.0, 2.0, 3.0]])
    for axis, array in ((1, x), (0, x.T)):
        t = cl.Tensor(array, requires_grad=True)
        y = t.std(axis)
        y.sum().backward()
        assert y.data[0] == 0
        assert (np.take(t.grad, 0, 1 - axis) == 0).all()
        assert (np.take(t.grad, 1, 1 - axis) != 0).any()


# ---- logarithms of sums ----


@both_dtypes
def test_no_exponential_overflows_and_small_terms_count(dtype):
    x = np.array([[1000, 1000.0], [-1000, -1000], [-2000, 1000], [0, -20]], dtype)
    for axis, array in ((1, x), (0, x.T)):
        t = cl.Tensor(array, requires_grad=True)
        y = cl.logsumexp(t, axis)
        assert_close(y.data, np.logaddexp.reduce(array.astype(np.float64), axis), dtype)
        y.sum().backward()
        assert_close(t.grad, cl.softmax(array.astype(np.float64), axis).data, dtype)


def test_the_logarithm_of_the_sum_of_no_terms_is_minus_infinity():
    assert cl.logsumexp(np.zeros(0)).item() == -np.inf
    t = cl.Tensor(np.zeros((0, 2)), requires_grad=True)
    y = cl.logsumexp(t, 0)
    assert y.data.tolist() == [-np.inf, -np.inf]
    y.sum().backward()
    assert t.grad.shape == (0, 2)


@both_dtypes
@pytest.mark.parametrize("axis", [0, 1])
def test_infinite_terms_of_a_logarithm_of_a_sum_have_pytorchs_gradients(axis, dtype):
    inf, nan = np.inf, np.nan
    x = np.array([[inf, 1], [-inf, 1], [-inf, -inf], [nan, 1]], dtype)
    expected = np.array([[nan, 0], [0, 1], [nan, nan], [nan, nan]])
    t = cl.Tensor(x if axis else x.T, requires_grad=True)
    cl.logsumexp(t, axis).sum().backward()
    np.testing.assert_array_equal(t.grad, expected if axis else expected.T)


# ---- places ----


@both_dtypes
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_places_are_numpys(layout, dtype):
    rng = np.random.default_rng(0)
    for shape in [(), (7,), (3, 1, 70), (70, 9)]:
        x = layout(
            rng.choice([0.0, 1, 2, np.inf, -np.inf, np.nan], shape, p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.05]).astype(dtype)
        )
        for name in ("argmax", "argmin"):
            for axis in (None, *range(-len(shape), len(shape))):
                for keepdims in (False, True):
                    found = getattr(cl.Tensor(x), name)(axis, keepdims)
                    assert type(found) is np.ndarray
                    assert_same_bits(found, np.asarray(getattr(np, name)(x, axis, keepdims=keepdims), np.int64))
                    assert_same_bits(getattr(cl, name)(x, axis, keepdims), found)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_place_of_the_largest_of_no_elements_raises(name):
    with pytest.raises(ValueError, match="no elements"):
        getattr(cl, name)(np.zeros((0, 3)), 0)
    assert getattr(cl, name)(np.zeros((0, 3)), 1).shape == (0,)


def test_a_step_that_looks_for_the_largest_is_replayed_on_its_own_data():
    rows, loss = np.arange(3), cl.SoftmaxLoss()

    def step(x):
        best = cl.argmax(x, 1)
        return cl.Tensor(x)[rows, best].sum() + loss(x, best)

    program = cl.capture(step, np.zeros((3, 4)))
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 4))
        assert_same_bits(program(x).data, step(x).data)
