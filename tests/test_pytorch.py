"""Every Function against its counterpart in PyTorch, where that is installed."""

import hypothesis.strategies as st
import pytest
from cases import FAMILIES, every_function, named
from hypothesis import given

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("case", named("listed") + named("empty"))
def test_values_and_gradients_are_pytorchs(case):
    case.check_against_pytorch(torch)


@every_function
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_values_and_gradients_are_pytorchs_for_random_shapes(function, data, seed):
    FAMILIES[function].build(*data.draw(FAMILIES[function].random)).check_against_pytorch(torch, seed)
