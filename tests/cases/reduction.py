"""Sums, means and extremes along axes."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
from reference import sum

from caffelite import functions
from cases.case import Case, Family


def mean(x, axis, keepdims):
    y, backward = sum(x, axis, keepdims)
    count = x.size / max(y.size, 1)
    return y / count, lambda dy: (backward(dy)[0] / count,)


def largest(x, axis, keepdims):
    """The first of the largest elements, in C order of the reduced ones, has the gradient."""
    axes = tuple(range(x.ndim)) if axis is None else np.atleast_1d(np.array(axis, int)) % x.ndim
    axes = sorted(int(a) for a in axes)
    rest = [d for d in range(x.ndim) if d not in axes]
    together = x.transpose([*rest, *axes])
    flat = together.reshape(int(np.prod([x.shape[d] for d in rest])), int(np.prod([x.shape[d] for d in axes])))

    def backward(dy):
        d = np.zeros(flat.shape)
        for i, row in enumerate(flat):
            d[i, row.argmax()] = dy.reshape(-1)[i]
        return (d.reshape(together.shape).transpose(np.argsort([*rest, *axes])),)

    return x.max(axis=axis, keepdims=keepdims), backward


def smallest(x, axis, keepdims):
    y, backward = largest(-x, axis, keepdims)
    return -y, backward


def reduced(reduce, x, axis, keepdims):
    """x reduced along axes; to PyTorch no axes are all of them."""
    axes = tuple(range(x.ndim)) if axis is None else axis
    return x.clone() if axes == () else reduce(x, axes, keepdims)


def reduction(function, judge, pytorch, empty=()):
    def build(shape, axis, keepdims):
        return Case(
            lambda: function(axis, keepdims),
            (shape,),
            lambda x: judge(x, axis, keepdims),
            lambda torch, x: reduced(getattr(torch, pytorch), x, axis, keepdims),
        )

    @st.composite
    def random(draw):
        shape = draw(hnp.array_shapes(max_dims=5, max_side=4))
        some = hnp.valid_tuple_axes(len(shape))
        axis = draw(st.none() | st.integers(-len(shape), len(shape) - 1) | some)
        return shape, axis, draw(st.booleans())

    inf, nan = np.inf, np.nan
    rows = np.array([[1, nan], [inf, 1], [-inf, 1], [inf, -inf], [inf, inf], [nan, inf], [0.0, -0.0]])
    return Family(
        build,
        listed=[
            *[((), None, False), ((5,), None, False), ((5,), 0, True), ((2, 3), 0, False), ((2, 3), -1, True)],
            *[((1, 3), 0, False), ((3, 1), 1, False), ((2, 3, 4), (0, 2), False), ((2, 3, 4), (-1, 0), True)],
            ((2, 1, 3), (), False),
        ],
        empty=[((0, 3), 1, False), ((2, 0, 3), (0, 2), True), *empty],
        random=random(),
        special=lambda dtype: [(((7, 2), 1, False), [rows]), (((2, 7), 0, False), [rows.T])],
    )


CASES = [
    reduction(functions.Sum, sum, "sum", [((0,), None, False), ((0, 3), 0, True), ((2, 0, 3), (0, 2), False)]),
    reduction(functions.Max, largest, "amax"),
    reduction(functions.Min, smallest, "amin"),
    reduction(functions.Mean, mean, "mean"),
]
