"""Elements by their places, and arrays put together."""

import functools

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from cases.case import Case, Family


def index(x, index):
    def backward(dy):
        dx = np.zeros(x.shape)
        np.add.at(dx, index, dy)
        return (dx,)

    return np.array(x[index]), backward


def concatenate(*arrays, axis):
    ends = np.cumsum([x.shape[axis] for x in arrays])
    return np.concatenate(arrays, axis), lambda dy: tuple(np.split(dy, ends[:-1], axis))


def stack(*arrays, axis):
    return np.stack(arrays, axis), lambda dy: tuple(np.moveaxis(dy, axis, 0))


def indexing(shape, place):
    def pytorch(torch, x):
        """x[place]; PyTorch has no negative steps, so NumPy says which of all elements are meant."""
        return x.reshape(-1)[torch.tensor(np.array(np.arange(x.numel()).reshape(x.shape)[place]))]

    return Case(lambda: functions.Index(place), (shape,), lambda x: index(x, place), pytorch)


@st.composite
def random_indexing(draw):
    """Numbers, slices, None, one `...`, arrays of integers that broadcast to each other, and masks, in any order."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, max_side=4))
    if shape and draw(st.integers(0, 4)) == 0:
        return shape, draw(hnp.arrays(bool, shape[: draw(st.integers(1, len(shape)))]))
    arrays = draw(hnp.mutually_broadcastable_shapes(num_shapes=4, max_dims=3, max_side=3)).input_shapes
    kinds = ["number", "slice", "array", "array", "mask", "new axis", "..."]
    index, axis = [], 0
    while axis < len(shape) and ("..." not in kinds or draw(st.integers(0, 7)) > 0):
        kind, n = draw(st.sampled_from(kinds)), shape[axis]
        axis += 1
        if kind == "number":
            index.append(draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            index.append(draw(st.slices(n)))
        elif kind == "array":
            dtype = draw(st.sampled_from([np.int64, np.int8]))
            index.append(draw(hnp.arrays(dtype, arrays[axis - 1], elements=st.integers(-n, n - 1))))
        elif kind == "mask":  # of one element, which broadcasts to all arrays
            index.append(np.arange(n) == draw(st.integers(0, n - 1)))
        elif kind == "new axis":
            index.append(None)
            axis -= 1
        else:
            kinds.remove("...")
            index.append(...)
            axis = draw(st.integers(axis - 1, len(shape)))
    return shape, tuple(index)


def joining(function, judge, pytorch, shapes, axis):
    return Case(
        lambda: function(axis),
        shapes,
        lambda *arrays: judge(*arrays, axis=axis),
        lambda torch, *arrays: getattr(torch, pytorch)(arrays, axis),
    )


@st.composite
def random_concatenation(draw):
    shape = draw(hnp.array_shapes(max_dims=4, max_side=4))
    axis, lengths = (
        draw(st.integers(-len(shape), len(shape) - 1)),
        draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)),
    )
    place = axis % len(shape)
    return [(*shape[:place], n, *shape[place + 1 :]) for n in lengths], axis


@st.composite
def random_stack(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, max_side=4))
    return [shape] * draw(st.integers(1, 4)), draw(st.integers(-len(shape) - 1, len(shape)))


CASES = [
    Family(
        indexing,
        listed=[
            *[((4,), 2), ((), ()), ((), None), ((2, 3), (..., 0))],
            *[((4, 3), np.s_[::-2, 1:]), ((2, 1, 3), np.s_[:, None, 0])],
            *[((4,), [2, 0, 2, -1]), ((4, 3), np.s_[[0, 0, 3], 1]), ((2, 3, 4), np.s_[:, [[2], [0]], ::2])],
            *[((2, 3, 4), np.s_[0, :, [3, 0, 3]]), ((2, 3), [[True, False, True], [False, True, True]])],
            *[((3, 1), [False, True, True]), ((2, 3), np.s_[..., [], None]), ((), True), ((2, 1), (False, ...))],
        ],
        empty=[((0, 3), np.s_[:, [0, 0]]), ((0,), []), ((2, 0), [1, 1]), ((2, 0), np.s_[:, 3:])],
        random=random_indexing(),
    ),
    Family(
        functools.partial(joining, functions.Concatenate, concatenate, "cat"),
        listed=[
            *[([(3,)], 0), ([(2, 3), (1, 3), (4, 3)], 0), ([(2, 1), (2, 3)], -1)],
            ([(2, 3, 1), (2, 1, 1), (2, 3, 1)], 1),
        ],
        empty=[([(0,), (2,)], 0), ([(2, 0), (2, 0)], 0), ([(0, 1), (0, 3)], 1)],
        random=random_concatenation(),
    ),
    Family(
        functools.partial(joining, functions.Stack, stack, "stack"),
        listed=[
            *[([()], 0), ([(), (), ()], -1), ([(3,), (3,)], 1), ([(2, 1), (2, 1)], 0)],
            ([(2, 3), (2, 3), (2, 3)], -2),
        ],
        empty=[([(0,)] * 3, 1), ([(2, 0)] * 2, 0)],
        random=random_stack(),
    ),
]
