"""Activations, elementwise and along an axis."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
from reference import softmax, special_values

from caffelite import functions
from cases.case import Case, Family, elementwise, side


def relu(x):
    return np.where(x < 0, 0.0, x), lambda dy: (np.where(x <= 0, 0.0, dy),)


def tanh(x):
    y = np.tanh(x)
    return y, lambda dy: (dy * (1 - y * y),)


def sigmoid(x):
    y = 1 / (1 + np.exp(-x))
    return y, lambda dy: (dy * y * (1 - y),)


def silu(x):
    s = 1 / (1 + np.exp(-x))
    return x * s, lambda dy: (dy * s * (1 + x * (1 - s)),)


def softmax_along(x, axis):
    """y = softmax(x); the Jacobian of a row is diag(y) − y yᵀ."""
    rows = np.moveaxis(x, axis, -1)
    y = softmax(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)

    def backward(dy):
        dy = np.moveaxis(dy, axis, -1)
        jacobian = y[..., np.newaxis] * np.eye(y.shape[-1]) - y[..., np.newaxis] * y[..., np.newaxis, :]
        return (np.moveaxis((jacobian @ dy[..., np.newaxis])[..., 0], -1, axis),)

    return np.moveaxis(y, -1, axis), backward


def log_softmax_along(x, axis):
    y = softmax_along(x, axis)[0]
    return np.log(y), lambda dy: (dy - y * dy.sum(axis=axis, keepdims=True),)


def along(function, judge, pytorch):
    """A family of a Function along one axis."""

    def build(shape, axis):
        return Case(
            lambda: function(axis),
            (shape,),
            lambda x: judge(x, axis),
            lambda torch, x: pytorch(torch, x, axis),
            high=5.0,
        )

    @st.composite
    def random(draw):
        shape = list(draw(hnp.array_shapes(max_dims=4, max_side=3)))
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        shape[axis] = draw(side)
        return tuple(shape), axis

    inf, nan = np.inf, np.nan
    rows = [[0, -inf, 0], [-inf, -inf, -inf], [inf, 0, 1], [inf, inf, 0], [nan, 0, 1], [0, nan, 1], [0, -inf, inf]]
    return Family(
        build,
        listed=[((5,), -1), ((1,), 0), ((4, 3), -1), ((4, 3), 0), ((3, 1), 1), ((2, 3, 4), 1), ((2, 1, 3), -3)],
        empty=[((0, 3), -1), ((0, 3, 2), 1), ((2, 0, 3), -1)],
        random=random(),
        special=lambda dtype: [(((7, 3), -1), [np.array(rows)]), (((3, 7), 0), [np.array(rows).T])],
    )


def saturating(dtype):
    """Special values, but for those at which 1 − y of a sigmoid's kin loses digits and isn't yet 0."""
    values = special_values(dtype)
    return values[~((abs(values) >= 1) & (abs(values) < 4))]


CASES = [
    elementwise(functions.ReLU, relu, lambda torch, x: x.relu()),
    elementwise(functions.Tanh, tanh, lambda torch, x: x.tanh(), special=saturating),
    elementwise(functions.Sigmoid, sigmoid, lambda torch, x: x.sigmoid(), special=saturating),
    elementwise(functions.SiLU, silu, lambda torch, x: torch.nn.functional.silu(x)),
    along(functions.Softmax, softmax_along, lambda torch, x, axis: x.softmax(axis)),
    along(functions.LogSoftmax, log_softmax_along, lambda torch, x, axis: x.log_softmax(axis)),
]
