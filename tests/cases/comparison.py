"""Clipped and chosen elements."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family, broadcast
from tests.reference import unbroadcast


def clip(x, low, high):
    low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
    return np.clip(x, low, high), lambda dy: (np.where((x >= low) & (x <= high), dy, 0.0),)


def where(a, b, condition):
    def backward(dy):
        return unbroadcast(np.where(condition, dy, 0.0), a), unbroadcast(np.where(condition, 0.0, dy), b)

    return np.where(condition, a, b), backward


def maximum(a, b):
    first = ~((a < b) | np.isnan(b))
    return np.maximum(a, b), lambda dy: (
        unbroadcast(np.where(first, dy, 0.0), a),
        unbroadcast(np.where(first, 0.0, dy), b),
    )


def minimum(a, b):
    y, backward = maximum(-a, -b)
    return -y, backward


def clipping(shape, low, high):
    return Case(
        lambda: functions.Clip(low, high),
        (shape,),
        lambda x: clip(x, low, high),
        lambda torch, x: x.clip(-np.inf if low is None else low, np.inf if high is None else high),
        kinks=tuple(bound for bound in (low, high) if bound is not None),
    )


def choosing(a_shape, b_shape, condition):
    return Case(
        functions.Where,
        (a_shape, b_shape),
        where,
        lambda torch, a, b, condition: torch.where(condition, a, b),
        held=lambda rng: [rng.random(condition) < 0.5],
    )


CASES = [
    broadcast(functions.Maximum, maximum, lambda torch, a, b: torch.maximum(a, b)),
    broadcast(functions.Minimum, minimum, lambda torch, a, b: torch.minimum(a, b)),
    Family(
        clipping,
        listed=[((4,), -0.5, 0.7), ((), 0.0, None), ((2, 3), None, 0.5), ((1, 3, 1), None, None), ((20,), 0.5, -0.5)],
        empty=[((0,), 0.0, 1.0), ((2, 0, 3), None, 1)],
        random=st.tuples(
            hnp.array_shapes(min_dims=0, max_dims=5, max_side=4),
            st.none() | st.floats(-2, 0.05),
            st.none() | st.floats(-0.05, 2),
        ),
    ),
    Family(
        choosing,
        listed=[
            *[((), (), ()), ((2, 3), (2, 3), (2, 3)), ((3,), (2, 1), ())],
            *[((), (4,), (3, 1)), ((1, 3), (1,), (2, 1, 1))],
        ],
        empty=[((0,), (0,), (0,)), ((0, 3), (3,), (1,)), ((), (), (2, 0))],
        random=hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=5, max_side=4).map(
            lambda drawn: drawn.input_shapes
        ),
    ),
]
