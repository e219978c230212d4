"""Rows of a table by their numbers, and places in a sequence."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family


def embedding(x, weight):
    def backward(dy):
        gradient = np.zeros(weight.shape)
        np.add.at(gradient, x, dy)
        return (gradient,)

    return weight[x], backward


def lookup(shape, count, size, sparse=False):
    return Case(
        lambda: functions.Embedding(count, size, sparse),
        (),
        embedding,
        lambda torch, x, weight: torch.nn.functional.embedding(x, weight),
        held=lambda rng: [rng.integers(0, count, shape)],
    )


def sines(length, size):
    """Return the table, element by element."""
    angle = np.array([[p / 10_000 ** (2 * (j // 2) / size) for j in range(size)] for p in range(length)])
    return np.where(np.arange(size) % 2, np.cos(angle), np.sin(angle)).reshape(length, size)


def positions(n, length, size, more=0):
    return Case(
        lambda: functions.PositionalEncoding(size, length + more),
        ((n, length, size),),
        lambda x: (x + sines(length, size), lambda dy: (dy,)),
        lambda torch, x: x + torch.tensor(sines(length, size)),
    )


side = st.integers(1, 6)

CASES = [
    Family(
        lookup,
        listed=[
            ((5,), 3, 4),
            ((1,), 1, 1),
            ((4, 3), 10, 8),
            ((2, 1, 3), 5, 13),
            ((2, 70), 3, 70),
            ((4, 3), 10, 8, True),
        ],
        empty=[((0,), 3, 4), ((2, 0), 3, 4)],
        random=st.tuples(
            hnp.array_shapes(max_dims=4, max_side=6), st.integers(1, 20), st.integers(1, 40), st.booleans()
        ),
    ),
    Family(
        positions,
        listed=[(2, 3, 4), (1, 1, 1), (2, 5, 3, 2), (3, 70, 16)],
        empty=[(0, 3, 4)],
        random=st.tuples(side, side, side, st.integers(0, 3)),
    ),
]
