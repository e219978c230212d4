"""Clip, Maximum, Minimum and Where: what their cases do not say."""

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from tests.cases import both_dtypes
from tests.reference import assert_same_bits, assert_same_values, special_values


@both_dtypes
@pytest.mark.parametrize("bounds", [(-1, 1), (None, 0.5), (-np.inf, 0), (0, None), (1, -1), (np.nan, 1), (0, np.nan)])
def test_clipped_values_are_numpys_and_the_gradient_is_1_from_bound_to_bound(bounds, dtype):
    values, clip = special_values(dtype), functions.Clip(*bounds)
    assert_same_values(clip.forward(values), np.clip(values, *bounds))
    low, high = (-np.inf if bounds[0] is None else bounds[0]), (np.inf if bounds[1] is None else bounds[1])
    inside = values == high if low > high else (values >= low) & (values <= high)
    assert_same_bits(clip.backward(np.full_like(values, 3)), np.where(inside, 3, 0).astype(dtype))


@pytest.mark.parametrize("bound", [np.zeros(3), "1", [0], 1j])
def test_bounds_are_numbers_or_none(bound):
    with pytest.raises(TypeError, match="clip"):
        functions.Clip(bound, 1)
    with pytest.raises(TypeError, match="clip"):
        cl.Tensor([1.0]).clip(0, bound)


@both_dtypes
def test_the_where_function_copies_only_the_bits_of_the_chosen_operand(dtype):
    values = special_values(dtype)
    a, b = np.repeat(values, len(values)), np.tile(values, len(values))
    condition = np.arange(len(a)) % 3 > 0
    where = functions.Where()
    assert_same_bits(where.forward(a, b, condition), np.where(condition, a, b))
    for gradient, chosen in zip(where.backward(a), (condition, ~condition), strict=True):
        assert_same_bits(gradient, np.where(chosen, a, dtype(0)))


@both_dtypes
@pytest.mark.parametrize("dtype_of_condition", ["bool", "float32", "float64", "int8", "uint64"])
def test_conditions_may_be_arrays_lists_and_tensors(dtype_of_condition, dtype):
    condition = np.array([[1], [0]]).astype(dtype_of_condition)
    a, b = cl.Tensor(np.arange(3, dtype=dtype), requires_grad=True), np.full((2, 1), 5, dtype)
    expected = np.where(condition, a.data, b)
    for like in (condition, condition.tolist(), cl.Tensor(condition)):
        y = cl.where(like, a, b)
        assert_same_bits(y.data, expected)
        y.sum().backward()
        assert (a.grad == 1).all()
        a.zero_grad()
    assert_same_bits(cl.where(condition, a, 5).data, expected)
    assert_same_bits(cl.where(condition == 0, 5, a).data, expected)


def test_the_where_function_of_arrays_makes_a_tensor():
    assert_same_bits(cl.where(True, 1, 2).data, np.float32(1))
    assert_same_bits(cl.where([True, False], 1, np.zeros(2)).data, np.array([1.0, 0.0]))
    assert_same_bits(cl.where([True, False], np.zeros(2), 1).data, np.array([0.0, 1.0]))


@pytest.mark.parametrize(
    "condition", [2, 0, -0.0, np.nan, np.float32(1), np.array(3), np.array(False), np.array(np.nan)]
)
def test_a_condition_may_be_one_number(condition):
    t = cl.Tensor([1.0, 2.0])
    for like in (condition, cl.Tensor(condition)):
        assert_same_bits(cl.where(like, t, 0).data, np.where(condition, t.data, np.float32(0)))


def test_a_condition_of_numbers_that_float32_does_not_know_holds():
    assert cl.where(cl.Tensor(np.array([1e-300, 0, np.nan])), cl.Tensor([1.0] * 3), 0).data.tolist() == [1, 0, 1]


def test_the_where_function_adapts_lists_on_either_side():
    assert_same_bits(cl.where([True, False], [1, 2], np.zeros(2)).data, np.array([1.0, 0.0]))
    assert_same_bits(cl.where([True, False], np.zeros(2), [1, 2]).data, np.array([0.0, 2.0]))


def test_the_where_function_refuses_shapes_that_do_not_fit():
    one = cl.Tensor(np.ones(3, np.float32))
    for a, b in [(one, cl.Tensor(np.ones(3))), (one, "b"), (one, 1j)]:
        with pytest.raises(TypeError, match="where"):
            cl.where([True, False, True], a, b)
    with pytest.raises(TypeError, match="where"):
        cl.where(["a", "b", "c"], one, one)
    with pytest.raises(ValueError, match="broadcast") as raised:
        cl.where(np.ones((2, 2), bool), one, 0)
    assert "(2, 2)" in str(raised.value)
    assert "(3,)" in str(raised.value)


def test_a_condition_that_an_optimizer_changed_is_noticed():
    condition, a = cl.Tensor([1.0, 0.0], requires_grad=True), cl.Tensor([1.0, 2.0], requires_grad=True)
    y = cl.where(condition, a, 0).sum()
    condition.data = [0.0, 1.0]
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()


@both_dtypes
def test_any_place_of_where_takes_lists_and_numbers(dtype):
    x = np.arange(6, dtype=dtype).reshape(2, 3)
    chosen = functions.Where()(x, 7, [[True, False, True], [False, True, False]])
    assert_same_bits(chosen.data, np.array([[0, 7, 2], [7, 4, 7]], dtype))
    assert_same_bits(functions.Concatenate()(x, [[6, 7, 8]]).data, np.arange(9, dtype=dtype).reshape(3, 3))


@pytest.mark.parametrize("odd", [None, "text", object(), [1j]])
def test_an_operand_that_is_not_numeric_is_a_type_error(odd):
    x = np.ones((2, 3), np.float32)
    with pytest.raises(TypeError):
        functions.Where()(x, x, odd)
    with pytest.raises(TypeError):
        functions.Concatenate()(x, odd)


@both_dtypes
def test_ties_of_maximum_and_minimum_give_the_gradient_to_the_first(dtype):
    a, b = [cl.Tensor(np.array(x, dtype), requires_grad=True) for x in ([0.0, 1, 2, np.nan], [0.0, 2, np.nan, 3])]
    cl.maximum(a, b).sum().backward(dtype(3))
    assert (a.grad.tolist(), b.grad.tolist()) == ([3, 0, 0, 3], [0, 3, 3, 0])
    a.zero_grad()
    b.zero_grad()
    cl.minimum(a, b).sum().backward(dtype(3))
    assert (a.grad.tolist(), b.grad.tolist()) == ([3, 3, 0, 3], [0, 0, 3, 0])


@both_dtypes
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_maximum_and_minimum_take_numbers_and_lists_on_either_side(name, dtype):
    function, x = getattr(cl, name), np.array([[-1.0, 2.0], [0.5, np.inf]], dtype)
    for other in (0.4, np.float64(0.1), 1, [0.0, 1.0], np.array([0.1, 3]), np.arange(2)):
        t = cl.Tensor(x, requires_grad=True)
        for y in (function(t, other), function(other, t)):
            expected = getattr(np, name)(x, np.asarray(other, dtype))
            assert_same_bits(y.data, expected)
            y.sum().backward()
            assert_same_bits(t.grad != 0, expected == x)
            t.zero_grad()


def test_maximum_refuses_what_does_not_fit():
    one = cl.Tensor(np.ones(3, np.float32))
    with pytest.raises(TypeError, match="maximum got float32 and float64"):
        cl.maximum(one, cl.Tensor(np.ones(3)))
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
        cl.minimum(one, np.ones(2))


@both_dtypes
def test_numbers_alone_can_be_recorded(dtype):
    values = np.random.default_rng(0).normal(size=(4, 3)).astype(dtype)

    def weigh(x, mask):
        return (cl.Tensor(x) * cl.where(mask, cl.Tensor(0.1, dtype=dtype), -3) + cl.Tensor(2**53 + 1, dtype=dtype)).data

    def choose(x, mask):
        return cl.where(mask, 0.1, -3).data

    for function in (weigh, choose):
        recorded = cl.capture(function, values, values > 0)
        for least in (-1, 0, 1):
            assert_same_bits(recorded(values, values > least), function(values, values > least))
