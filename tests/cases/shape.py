"""Other shapes, other orders of axes and elements, and elements several times."""

import math

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family


def reshape(x, shape):
    return x.reshape(shape), lambda dy: (dy.reshape(x.shape),)


def transpose(x, axes):
    inverse = None if axes is None else np.argsort([axis % x.ndim for axis in axes])
    return x.transpose(axes), lambda dy: (dy.transpose(inverse),)


def reshaping(shape, new_shape):
    return Case(
        lambda: functions.ToShape(*new_shape),
        (shape,),
        lambda x: reshape(x, new_shape),
        lambda torch, x: x.reshape(new_shape),
    )


@st.composite
def random_reshaping(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=5, max_side=4))
    new_shape = draw(st.permutations(shape))
    if new_shape and draw(st.booleans()):
        new_shape[draw(st.integers(0, len(new_shape) - 1))] = -1
    return shape, tuple(new_shape)


def row_reshaping(shape, row):
    return Case(
        lambda: functions.Reshape(row),
        (shape,),
        lambda x: reshape(x, (len(x), *row)),
        lambda torch, x: x.reshape(len(x), *row),
    )


def flattening(shape):
    k = math.prod(shape[1:])
    return Case(
        functions.Flatten,
        (shape,),
        lambda x: reshape(x, (len(x), k)),
        lambda torch, x: x.flatten(1) if x.ndim > 1 else x[:, None],
    )


def transposing(shape, axes):
    return Case(
        lambda: functions.Transpose(*axes or ()),
        (shape,),
        lambda x: transpose(x, axes),
        lambda torch, x: x.permute(axes or tuple(range(x.ndim))[::-1]),
    )


@st.composite
def random_transposing(draw):
    shape = draw(hnp.array_shapes(max_dims=5, max_side=4))
    axes = draw(st.none() | st.permutations([draw(st.sampled_from([i, i - len(shape)])) for i in range(len(shape))]))
    return shape, axes and tuple(axes)


def flipping(shape, axis):
    def judge(x):
        return np.flip(x, axis), lambda dy: (np.flip(dy, axis),)

    def pytorch(torch, x):
        axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        return x.flip(tuple(axes))

    return Case(lambda: functions.Flip(axis), (shape,), judge, pytorch)


def rolling(shape, shifts, axes):
    def judge(x):
        return np.roll(x, shifts, axes), lambda dy: (np.roll(dy, [-shift for shift in shifts], axes),)

    return Case(lambda: functions.Roll(shifts, axes), (shape,), judge, lambda torch, x: torch.roll(x, shifts, axes))


def repeating(shape, repeats, axis):
    def judge(x):
        n = x.shape[axis]
        apart = axis % x.ndim

        def backward(dy):
            return (dy.reshape(*x.shape[:apart], n, repeats, *x.shape[apart + 1 :]).sum(axis=apart + 1),)

        return np.repeat(x, repeats, axis), backward

    def pytorch(torch, x):
        return x.repeat_interleave(repeats, axis)

    return Case(lambda: functions.Repeat(repeats, axis), (shape,), judge, pytorch)


@st.composite
def random_flipping(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=5, max_side=4))
    axes = [draw(st.sampled_from([i, i - len(shape)])) for i in range(len(shape))]
    some = st.lists(st.sampled_from(axes), unique=True).map(tuple) if axes else st.just(())
    return shape, draw(st.none() | some | (st.sampled_from(axes) if axes else st.none()))


@st.composite
def random_rolling(draw):
    shape = draw(hnp.array_shapes(max_dims=4, max_side=5))
    axes = draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, max_size=3))
    return shape, tuple(draw(st.lists(st.integers(-9, 9), min_size=len(axes), max_size=len(axes)))), tuple(axes)


@st.composite
def random_repeating(draw):
    shape = draw(hnp.array_shapes(max_dims=4, max_side=4))
    return shape, draw(st.integers(0, 4)), draw(st.integers(-len(shape), len(shape) - 1))


CASES = [
    Family(
        reshaping,
        listed=[((2, 3), (3, 2)), ((2, 3), (-1,)), ((1, 4), (2, 1, 2)), ((), (1, 1)), ((1,), ())],
        empty=[((0, 3), (3, 0)), ((2, 0), (-1, 2)), ((0,), (0, 5))],
        random=random_reshaping(),
    ),
    Family(
        row_reshaping,
        listed=[((2, 6), (3, 2)), ((2, 3, 4), (-1,)), ((2, 1), (1, 1, 1)), ((1, 2, 3), (3, -1)), ((4,), (1,))],
        empty=[((0, 6), (3, 2)), ((2, 0, 3), (3, 0))],
        random=st.tuples(st.integers(1, 4), st.permutations((2, 3, 4))).map(lambda x: ((x[0], 24), tuple(x[1]))),
    ),
    Family(
        flattening,
        listed=[((2, 6),), ((2, 3, 4),), ((4,),), ((1, 1, 1, 3),)],
        empty=[((0, 2, 3),), ((2, 0, 3),)],
        random=hnp.array_shapes(min_dims=1, max_dims=5, max_side=4).map(lambda shape: (shape,)),
    ),
    Family(
        transposing,
        listed=[((2, 3), None), ((2, 1, 3), (1, 2, 0)), ((2, 3, 4), (-1, 0, 1)), ((), None), ((1, 4), (1, 0))],
        empty=[((0, 3), None), ((2, 0, 3), (2, 0, 1))],
        random=random_transposing(),
    ),
    Family(
        flipping,
        listed=[((4,), 0), ((2, 3), None), ((2, 3, 4), (0, -1)), ((2, 1, 3), 1), ((), None), ((2, 3), ())],
        empty=[((0,), 0), ((2, 0, 3), None)],
        random=random_flipping(),
    ),
    Family(
        rolling,
        listed=[
            *[((4,), (1,), (0,)), ((2, 3), (-1,), (1,)), ((3, 4), (2, 5), (0, -1))],
            *[((3, 1), (2, 2), (0, 0)), ((2, 3), (0,), (0,)), ((1, 4), (-9,), (1,))],
        ],
        empty=[((0,), (1,), (0,)), ((2, 0, 3), (1, 1), (0, 1))],
        random=random_rolling(),
    ),
    Family(
        repeating,
        listed=[((4,), 2, 0), ((2, 3), 3, 1), ((2, 3, 4), 2, -2), ((2, 1), 1, 0), ((1, 1), 5, -1)],
        empty=[((0, 3), 2, 0), ((2, 3), 0, 1), ((2, 0), 3, 0)],
        random=random_repeating(),
    ),
]
