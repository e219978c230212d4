"""Arithmetic: what its cases do not say."""

import operator

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from tests.cases import both_dtypes
from tests.reference import assert_same_bits


@pytest.mark.parametrize("name", ["Add", "Subtract", "Multiply", "Divide", "Power"])
def test_shapes_that_dont_broadcast_raise_with_both(name):
    with pytest.raises(ValueError, match=r"\(2, 3\)") as raised:
        getattr(functions, name)().forward(np.ones((2, 3)), np.ones((3, 2)))
    assert "(3, 2)" in str(raised.value)


@pytest.mark.parametrize(
    "operate",
    [
        lambda t, n: t - n,
        lambda t, n: n * t,
        lambda t, n: cl.where(True, t, n),
        lambda t, n: t.clip(0, n),
        lambda t, n: t < n,
    ],
)
def test_an_integer_beyond_the_floats_raises(operate):
    with pytest.raises(ValueError, match="integer that is too large for"):
        operate(cl.Tensor([1.0, 2.0]), 10**400)


def test_tensors_of_two_dtypes_raise_with_what_to_write_instead():
    tensor = cl.Tensor(np.ones(2, np.float32))
    with pytest.raises(
        TypeError, match=r"Tensor \* got float32 and float64; make the other one of Tensor\(…, dtype=np.float32\)"
    ):
        tensor * cl.Tensor(np.ones(2))


@both_dtypes
@pytest.mark.parametrize("other", ["float16", "float32", "float64", ">f8", "int64", "bool"])
def test_a_plain_array_takes_the_tensors_dtype(other, dtype):
    t, rng = cl.Tensor(np.arange(1, 5, dtype=dtype).reshape(2, 2), requires_grad=True), np.random.default_rng(0)
    array = rng.uniform(1, 3, (2, 2)).astype(other)
    for operate in [
        *[operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.matmul],
        *[cl.maximum, cl.minimum, cl.matmul, lambda a, b: cl.where(t.data > 2, a, b)],
        *[lambda a, b: cl.concatenate([a, b]), lambda a, b: cl.stack([a, b])],
    ]:
        for swapped in (False, True):
            results = []
            for like in (array, array.tolist(), cl.Tensor(array.astype(dtype))):
                y = operate(like, t) if swapped else operate(t, like)
                y.sum().backward()
                results.append((y.data, t.grad.copy()))
                t.zero_grad()
            assert results[0][0].dtype == dtype
            for of_array, of_list, of_tensor in zip(*results, strict=True):
                assert_same_bits(of_array, of_tensor)
                if dtype == np.float64 or other not in ("float64", ">f8"):
                    assert_same_bits(of_list, of_tensor)


def test_without_a_tensor_the_first_array_of_floats_decides():
    a, b = np.ones((2, 2), np.float32), np.ones((2, 2))
    assert cl.matmul(a, b).dtype == cl.maximum([[1, 2]], a).dtype == np.float32
    assert cl.matmul(b, a).dtype == cl.concatenate([b, a]).dtype == np.float64


def test_a_function_of_an_integer_beyond_the_floats_is_a_value_error():
    t = cl.Tensor([1.0])
    for function in (cl.functions.Subtract(), cl.functions.Add(), cl.functions.Multiply()):
        with pytest.raises(ValueError, match="numbers that floats can hold"):
            function(t, 10**400)
