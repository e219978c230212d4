"""Arithmetic: what its cases do not say."""

import numpy as np
import pytest

from caffelite import functions


@pytest.mark.parametrize("name", ["Add", "Subtract", "Multiply", "Divide", "Power"])
def test_shapes_that_dont_broadcast_raise_with_both(name):
    with pytest.raises(ValueError, match=r"\(2, 3\)") as raised:
        getattr(functions, name)().forward(np.ones((2, 3)), np.ones((3, 2)))
    assert "(3, 2)" in str(raised.value)
