"""Arithmetic: what its cases do not say."""

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions


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
def test_an_integer_beyond_the_floats_is_refused(operate):
    with pytest.raises(ValueError, match="integer that is too large for"):
        operate(cl.Tensor([1.0, 2.0]), 10**400)


def test_floats_of_another_dtype_are_refused_with_what_to_write_instead():
    tensor = cl.Tensor(np.ones(2, np.float32))
    with pytest.raises(TypeError, match=r"Tensor \* got float32 and float64; make the other one with dtype=np.float32"):
        tensor * np.ones(2)


def test_a_function_of_an_integer_beyond_the_floats_is_a_value_error():
    t = cl.Tensor([1.0])
    for function in (cl.functions.Subtract(), cl.functions.Add(), cl.functions.Multiply()):
        with pytest.raises(ValueError, match="numbers that floats can hold"):
            function(t, 10**400)
