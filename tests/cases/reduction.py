"""Sums, means and extremes along axes."""

from functools import partial

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family
from tests.reference import keep_axes, sum


def mean(x, axis, keepdims):
    y, backward = sum(x, axis, keepdims)
    count = x.size / max(y.size, 1)
    return y / count, lambda dy: (backward(dy)[0] / count,)


def largest(x, axis, keepdims):
    """Return the first of the largest elements, in C order of the reduced ones, has the gradient."""
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


def prod(x, axis, keepdims):
    axes = tuple(range(x.ndim)) if axis is None else axis

    def backward(dy):
        dx = np.empty(x.shape)
        for place in np.ndindex(x.shape):
            others = x.copy()
            others[place] = 1
            dx[place] = np.broadcast_to(keep_axes(dy * others.prod(axis=axes, keepdims=keepdims), x, axes), x.shape)[
                place
            ]
        return (dx,)

    return x.prod(axis=axes, keepdims=keepdims), backward


def var(x, axis, keepdims, ddof=0):
    m, _ = mean(x, axis, True)
    y = x.var(axis=axis, keepdims=keepdims, ddof=ddof)
    n = x.size / max(y.size, 1) - ddof
    return y, lambda dy: (keep_axes(dy, x, axis) * 2 * (x - m) / n,)


def std(x, axis, keepdims, ddof=0):
    variance, backward = var(x, axis, keepdims, ddof)
    y = np.sqrt(variance)
    return y, lambda dy: backward(np.divide(dy, 2 * y, out=np.zeros(y.shape), where=y != 0))


def logsumexp(x, axis, keepdims):
    axes = tuple(range(x.ndim)) if axis is None else axis
    y = np.logaddexp.reduce(x, axis=axes, keepdims=keepdims)
    return y, lambda dy: (keep_axes(dy, x, axis) * np.exp(x - keep_axes(y, x, axis)),)


def cumsum(x, axis):
    def backward(dy):
        return (np.flip(np.cumsum(np.flip(dy, axis), axis), axis).reshape(x.shape),)

    return np.cumsum(x, axis), backward


def prod_of_axes(torch, x, axes, keepdims):
    for axis in sorted([d % x.ndim for d in np.atleast_1d(axes)], reverse=True):
        x = x.prod(axis, keepdims)
    return x


def scatter(name, torch, x, axes, keepdims):
    """PyTorch's var or std. It warns where there are no elements."""
    return getattr(torch, name)(x, axes, correction=0, keepdim=keepdims) if x.numel() else x.sum(axes, keepdims)


def reduce_axes(reduce, x, axis, keepdims, of_one=lambda x: x.clone()):
    """x reduced along axes; to PyTorch no axes are all of them. `of_one` reduces each element by itself."""
    axes = tuple(range(x.ndim)) if axis is None else axis
    return of_one(x) if axes == () else reduce(x, axes, keepdims)


def reduction(function, judge, pytorch, empty=(), of_one=lambda x: x.clone(), step=1e-6):
    """`pytorch` is the name of PyTorch's function of (x, axes, keepdims), or a function of PyTorch and these."""

    def counterpart(torch, x, axis, keepdims):
        reduce = getattr(torch, pytorch) if isinstance(pytorch, str) else partial(pytorch, torch)
        return reduce_axes(reduce, x, axis, keepdims, of_one)

    def build(shape, axis, keepdims):
        return Case(
            lambda: function(axis, keepdims),
            (shape,),
            lambda x: judge(x, axis, keepdims),
            lambda torch, x: counterpart(torch, x, axis, keepdims),
            step=step,
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


def summing(shape, axis):
    return Case(
        lambda: functions.CumSum(axis),
        (shape,),
        lambda x: cumsum(x, axis),
        lambda torch, x: x.flatten().cumsum(0) if axis is None else x.cumsum(axis),
        step=0.125,
    )


@st.composite
def random_sums(draw):
    shape = draw(hnp.array_shapes(max_dims=3, max_side=4))  # central differences of longer sums lose digits
    return shape, draw(st.none() | st.integers(-len(shape), len(shape) - 1))


EMPTY = [((0,), None, False), ((0, 3), 0, True), ((2, 0, 3), (0, 2), False)]

CASES = [
    reduction(functions.Sum, sum, "sum", EMPTY),
    reduction(functions.Prod, prod, prod_of_axes, EMPTY, step=0.125),
    reduction(functions.LogSumExp, logsumexp, "logsumexp"),
    reduction(functions.Var, var, partial(scatter, "var"), of_one=lambda x: 0 * x),
    reduction(functions.Std, std, partial(scatter, "std"), of_one=lambda x: 0 * x),
    Family(
        summing,
        listed=[
            ((), None),
            ((5,), 0),
            ((5,), None),
            ((2, 3), -1),
            ((2, 3), 0),
            ((2, 3, 4), 1),
            ((2, 3), None),
            ((1, 3, 1), 2),
        ],
        empty=[((0,), 0), ((2, 0, 3), 0), ((2, 0, 3), 1), ((2, 0), None)],
        random=random_sums(),
        special=lambda dtype: [
            (((4, 3), 1), [np.array([[1, np.nan, 2], [np.inf, 1, -np.inf], [-np.inf, 1, 2], [0, 1, 2]])])
        ],
    ),
    reduction(functions.Max, largest, "amax"),
    reduction(functions.Min, smallest, "amin"),
    reduction(functions.Mean, mean, "mean"),
]
