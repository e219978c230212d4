"""Operators and methods of Tensors: values, gradients, and operands of other kinds."""

import math
import operator

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from caffelite import functions
from tests.core.tensors import leaf
from tests.reference import WIDE, assert_close

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
OPERATORS = {
    "+": (operator.add, lambda a, b: (1, 1)),
    "-": (operator.sub, lambda a, b: (1, -1)),
    "*": (operator.mul, lambda a, b: (b, a)),
    "/": (operator.truediv, lambda a, b: (1 / b, -a / b**2)),
    "**": (operator.pow, lambda a, b: (b * a ** (b - 1), a**b * np.log(a))),
}
every_operator = pytest.mark.parametrize("symbol", OPERATORS)


def derivatives(symbol, a, b):
    """Return the gradients of Σ (a ∘ b) in float64, with a and b of one shape."""
    da, db = OPERATORS[symbol][1](a, b)
    return np.broadcast_to(da, a.shape), np.broadcast_to(db, b.shape)


@every_operator
@both_dtypes
def test_operators_have_numpys_values_and_true_gradients(symbol, dtype):
    a, b = np.array([1.5, 2.0, 0.5]), np.array([0.5, 3.0, 2.0])
    x, y = leaf(a, dtype=dtype), leaf(b, dtype=dtype)
    result = OPERATORS[symbol][0](x, y)
    assert_close(result.data, OPERATORS[symbol][0](a, b), dtype)
    result.sum().backward()
    da, db = derivatives(symbol, a, b)
    assert_close(x.grad, da, dtype)
    assert_close(y.grad, db, dtype)


@every_operator
@both_dtypes
@pytest.mark.parametrize(
    "other",
    [2, 2.0, True, np.float32(2), np.float64(2), np.int8(2), np.bool_(True), np.longdouble(2), [2, 2, 2], [1.5, 2, 3]],
    ids=lambda other: f"{type(other).__name__}",
)
def test_numbers_on_either_side_adapt(symbol, dtype, other):
    a, b = np.array([1.5, 2.0, 0.5]), np.broadcast_to(np.asarray(other, np.float64), (3,))
    apply = OPERATORS[symbol][0]
    x = leaf(a, dtype=dtype)
    y = apply(x, other)
    assert type(y) is cl.Tensor
    assert_close(y.data, apply(a, b), dtype)
    y.sum().backward()
    assert_close(x.grad, derivatives(symbol, a, b)[0], dtype)
    x.zero_grad()
    y = apply(other, x)
    assert type(y) is cl.Tensor
    assert_close(y.data, apply(b, a), dtype)
    y.sum().backward()
    assert_close(x.grad, derivatives(symbol, b, a)[1], dtype)


@every_operator
@both_dtypes
@pytest.mark.parametrize("kind", ["float", "int8", "int64", "uint16", "bool"])
def test_arrays_on_either_side_of_the_same_dtype_or_integers(symbol, dtype, kind):
    a = np.array([1.5, 2.0, 0.5])
    other = np.array([1, 1, 1]).astype(dtype if kind == "float" else kind)
    apply = OPERATORS[symbol][0]
    for left, right, x in [(t := leaf(a, dtype=dtype), other, t), (other, t := leaf(a, dtype=dtype), t)]:
        y = apply(left, right)
        assert type(y) is cl.Tensor
        assert_close(y.data, apply(np.ones(3), a) if left is other else apply(a, np.ones(3)), dtype)
        y.sum().backward()
        assert x.grad.shape == (3,)


@pytest.mark.parametrize("symbol", [*OPERATORS, "@"])
def test_float32_and_float64_tensors_do_not_mix_and_arrays_take_their_dtype(symbol):
    apply = operator.matmul if symbol == "@" else OPERATORS[symbol][0]
    a, b = np.ones((2, 2), np.float32), np.ones((2, 2))
    for left, right in [(cl.Tensor(a), cl.Tensor(b)), (cl.Tensor(b), cl.Tensor(a))]:
        with pytest.raises(TypeError, match="float32") as raised:
            apply(left, right)
        assert "float64" in str(raised.value)
    for array, other in [(a, b), (b, a)]:
        assert apply(cl.Tensor(array), other).dtype == apply(other, cl.Tensor(array)).dtype == array.dtype


@pytest.mark.parametrize("symbol", [*OPERATORS, "@"])
@pytest.mark.parametrize(
    "other",
    [
        *(None, "2", b"2", 1j, object(), ["a"], np.complex64(2), np.complex128(2), np.str_("2"), np.bytes_(b"2")),
        *(np.datetime64(1, "s"), np.timedelta64(1, "s"), np.void(b"2")),
        *(np.ones(2, complex), np.ones(2, object), np.ones(2, "U1"), np.ones(2, WIDE), np.ones(2, "m8[s]")),
    ],
    ids=lambda other: f"{getattr(other, 'dtype', type(other).__name__)}",
)
def test_operators_refuse_what_is_not_a_real_number(symbol, other):
    apply = operator.matmul if symbol == "@" else OPERATORS[symbol][0]
    with pytest.raises(TypeError):
        apply(cl.Tensor([1.0, 2.0]), other)
    with pytest.raises(TypeError):
        apply(other, cl.Tensor([1.0, 2.0]))


@every_operator
@given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), seed=st.integers(0, 2**32))
def test_gradients_of_broadcast_operands_are_summed_back(symbol, shapes, seed):
    rng = np.random.default_rng(seed)
    a, b = (np.asarray(rng.uniform(0.5, 2, shape)) for shape in shapes.input_shapes)
    x, y = leaf(a), leaf(b)
    OPERATORS[symbol][0](x, y).backward(np.ones(shapes.result_shape))
    da, db = derivatives(symbol, *[np.array(whole) for whole in np.broadcast_arrays(a, b)])
    for tensor, whole in ((x, da), (y, db)):
        expected = np.zeros(tensor.shape)
        index = np.broadcast_to(np.arange(tensor.size).reshape(tensor.shape), whole.shape)
        np.add.at(expected.reshape(-1), index, whole)
        assert_close(tensor.grad, expected, np.float64)


def test_shapes_that_dont_broadcast_raise_with_both():
    for symbol in OPERATORS:
        with pytest.raises(ValueError, match=r"\(2,\)") as raised:
            OPERATORS[symbol][0](cl.Tensor([1.0, 2.0]), cl.Tensor([1.0, 2.0, 3.0]))
        assert "(3,)" in str(raised.value)


def test_minus_x():
    x = leaf([1.0, -2.0])
    y = -x
    y.sum().backward()
    assert y.data.tolist() == [-1, 2]
    assert x.grad.tolist() == [-1, -1]


@pytest.mark.parametrize("shapes", [((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((1, 1), (1, 1))])
def test_matrix_products_with_tensors_and_arrays_on_either_side(shapes):
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape) for shape in shapes)
    x, y = leaf(a), leaf(b)
    dy = np.asarray(rng.uniform(-1, 1, (a @ b).shape))
    (x @ y).backward(dy)
    left, right = a.reshape(-1, a.shape[-1]), b.reshape(b.shape[0], -1)
    matrix = dy.reshape(len(left), -1)
    da, db = (matrix @ right.T).reshape(a.shape), (left.T @ matrix).reshape(b.shape)
    assert_close(x.grad, da, np.float64)
    assert_close(y.grad, db, np.float64)
    for left, right in [(leaf(a), b), (a, leaf(b)), (leaf(a), cl.Tensor(b)), (cl.Tensor(a), leaf(b))]:
        result = left @ right
        assert_close(result.data, a @ b, np.float64)
        result.backward(dy)
        own, expected = (right, db) if isinstance(right, cl.Tensor) and right.requires_grad else (left, da)
        assert_close(own.grad, expected, np.float64)


def test_matrices_that_dont_fit_raise_with_both_shapes():
    with pytest.raises(ValueError, match=r"\(2, 3\)") as raised:
        cl.Tensor(np.ones((2, 3))) @ np.ones((2, 4))
    assert "(2, 4)" in str(raised.value)


METHODS = {
    "sum": [(), (0,), (-1, True), ((0, 1),), (None, True)],
    "mean": [(), (1,), (0, True), ((0, 1),), (None, True)],
    "reshape": [(6,), (3, 2), ((3, 2),), ([3, -1],), (np.int64(6),)],
    "transpose": [(), (1, 0), ((1, 0),), (-1, 0)],
}


@pytest.mark.parametrize(("name", "arguments"), [(name, a) for name in METHODS for a in METHODS[name]], ids=str)
def test_methods_and_functions_do_what_numpys_do(name, arguments):
    a = np.random.default_rng(0).uniform(-1, 1, (2, 3))
    if name in ("sum", "mean") and len(arguments) > 1:
        expected = getattr(a, name)(arguments[0], keepdims=arguments[1])
    else:
        expected = getattr(a, name)(*arguments)
    for result in (getattr(leaf(a), name)(*arguments), getattr(cl, name)(leaf(a), *arguments)):
        assert_close(result.data, expected, np.float64)
    x = leaf(a)
    y = getattr(x, name)(*arguments)
    dy = np.asarray(np.random.default_rng(1).uniform(-1, 1, y.shape))
    y.backward(dy)
    if name in ("sum", "mean"):
        axis = arguments[0] if arguments else None
        kept = dy.reshape(a.sum(axis=axis, keepdims=True).shape)
        expected = np.broadcast_to(kept, a.shape) * (y.size / a.size if name == "mean" else 1)
    else:
        expected = getattr(dy, "reshape" if name == "reshape" else "transpose")(*[(2, 3)] * (name == "reshape"))
    assert_close(x.grad, expected, np.float64)


def test_keywords_of_the_reductions():
    t = cl.Tensor(np.ones((2, 3)))
    assert t.sum(axis=1, keepdims=True).shape == (2, 1)
    assert cl.mean(t, axis=0).shape == (3,)


def test_relu_and_matmul_are_methods_and_functions():
    a, b = cl.Tensor([[-1.0, 2.0]]), cl.Tensor([[1.0], [3.0]])
    assert a.relu().data.tolist() == cl.relu(a).data.tolist() == [[0, 2]]
    assert a.matmul(b).data.tolist() == cl.matmul(a, b).data.tolist() == [[5]]


def test_a_view_of_a_tensor_shares_its_memory():
    t = cl.Tensor(np.arange(6.0))
    assert np.shares_memory(t.reshape(2, 3).data, t.data)
    assert np.shares_memory(t.reshape(2, 3).T.data, t.data)


def test_in_place_operators_make_a_new_tensor():
    x = leaf([1.0])
    y = x
    y += 1
    assert x.data.tolist() == [1]
    y.backward()
    assert x.grad.tolist() == [1]


def test_functions_of_the_package_are_what_the_operators_record():
    x = leaf([[1.0]])
    for y, function in [
        (x + 1, functions.Add),
        (x @ x, functions.MatMul),
        (x.relu(), functions.ReLU),
        (x.sum(), functions.Sum),
    ]:
        assert isinstance(y.function, function)
        assert math.isfinite(y.item())
