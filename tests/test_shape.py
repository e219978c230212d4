"""Reshape and Transpose: what their cases do not say."""

import numpy as np
import pytest
from reference import assert_same_bits

import caffelite as cl
from caffelite import functions


def test_reshape_and_transpose_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match=r"\(4,\)|\(4\)"):
        functions.ToShape(4).forward(np.ones((2, 3)))
    with pytest.raises(ValueError, match="axes"):
        functions.Transpose(0).forward(np.ones((2, 3)))


def test_reshape_and_transpose_take_arrays_of_numbers():
    t = cl.Tensor(np.arange(6.0).reshape(2, 3))
    assert_same_bits(t.reshape(np.array([3, 2])).data, t.data.reshape(3, 2))
    assert_same_bits(t.transpose(np.array([1, 0])).data, t.data.T)
    assert repr(functions.ToShape(*np.array([3, 2]))) == "ToShape(3, 2)"
    for method in (t.reshape, t.transpose):
        with pytest.raises(TypeError, match="integer"):
            method(1.0)
