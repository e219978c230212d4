"""Elementary functions: what their cases do not say."""

import numpy as np

from caffelite import functions


def test_the_absolute_value_has_slope_0_at_0_and_the_root_an_infinite_one():
    absolute, root = functions.Abs(), functions.Sqrt()
    absolute.forward(np.array([0.0, -0.0, 2.0, -2.0]))
    assert absolute.backward(np.full(4, 3.0)).tolist() == [0, 0, 3, -3]
    assert root.forward(np.array([0.0, 4.0])).tolist() == [0, 2]
    assert root.backward(np.ones(2)).tolist() == [np.inf, 0.25]
