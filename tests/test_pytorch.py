"""Every Function against its counterpart in PyTorch, where that is installed."""

import hypothesis.strategies as st
import numpy as np
import pytest
from cases import FAMILIES, every_function, named
from hypothesis import given

torch = pytest.importorskip("torch")


def check_against_pytorch(case, seed=0):
    function, inputs = case.function(), case.inputs(seed=seed)
    ys, dys, gradients = case.forward_and_backward(function, inputs)
    their_ys, their_gradients = case.pytorchs(torch, function, inputs, dys)
    for mine, theirs in zip([*ys, *gradients], [*their_ys, *their_gradients], strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, 1e-9, 1e-9)


@pytest.mark.parametrize("case", named("listed") + named("empty"))
def test_values_and_gradients_are_pytorchs(case):
    check_against_pytorch(case)


@every_function
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_values_and_gradients_are_pytorchs_for_random_shapes(function, data, seed):
    check_against_pytorch(FAMILIES[function].build(*data.draw(FAMILIES[function].random)), seed)
