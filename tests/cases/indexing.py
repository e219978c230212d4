"""Elements by their places, and arrays put together."""

import functools

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family


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


def take_along_axis(x, index, axis):
    def backward(dy):
        dx = np.zeros(x.shape)
        places = list(np.indices(dy.shape))
        for i, n in enumerate(x.shape):
            places[i] = np.broadcast_to(index, dy.shape) if i == axis % x.ndim else np.minimum(places[i], n - 1)
        np.add.at(dx, tuple(places), dy)
        return (dx,)

    return np.take_along_axis(x, index, axis), backward


def split(x, parts, axis):
    def backward(*dys):
        places = np.split(np.arange(x.size).reshape(x.shape), parts, axis)
        return (np.bincount(*map(concatenate_raveled, (places, dys)), minlength=x.size).reshape(x.shape),)

    return tuple(np.split(x, parts, axis)), backward


def concatenate_raveled(arrays):
    return np.concatenate([array.ravel() for array in arrays])


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


def taking_along(shape, index_shape, axis):
    n = shape[axis]

    def pytorch(torch, x, index):
        return torch.take_along_dim(x, index % max(n, 1), axis)

    return Case(
        lambda: functions.TakeAlongAxis(axis),
        (shape,),
        lambda x, index: take_along_axis(x, index, axis),
        pytorch,
        held=lambda rng: [rng.integers(-n, max(n, 1), index_shape)],
    )


@st.composite
def random_taking_along(draw):
    """Two shapes of as many axes, which are broadcast to each other along all axes but one."""
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=4, max_side=4)).input_shapes
    ndim = max(map(len, shapes))
    shapes = [[*[1] * (ndim - len(shape)), *shape] for shape in shapes]
    axis = draw(st.integers(-ndim, ndim - 1))
    for shape in shapes:
        shape[axis] = draw(st.integers(1, 4))
    return (*map(tuple, shapes), axis)


def splitting(shape, parts, axis):
    def pytorch(torch, x):
        return torch.tensor_split(x, parts, axis)

    return Case(lambda: functions.Split(parts, axis), (shape,), lambda x: split(x, parts, axis), pytorch)


@st.composite
def random_splitting(draw):
    """So many parts, or places in any order, some of them beyond the end or counted from there."""
    shape = draw(hnp.array_shapes(max_dims=4, max_side=6))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    places = draw(st.lists(st.integers(-7, 7), min_size=1, max_size=4))
    divisors = [k for k in range(2, shape[axis] + 1) if shape[axis] % k == 0]
    return shape, draw(st.sampled_from([*divisors, tuple(places)])), axis


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
        taking_along,
        listed=[
            *[((4,), (2,), 0), ((3, 4), (3, 1), 1), ((3, 4), (5, 4), 0), ((2, 3, 4), (2, 6, 4), -2)],
            *[((1, 4), (3, 2), 1), ((3, 4), (1, 2), -1)],
        ],
        empty=[((0,), (0,), 0), ((3, 0), (3, 0), 1), ((0, 3), (0, 2), 1), ((3, 4), (3, 0), 1)],
        random=random_taking_along(),
    ),
    Family(
        splitting,
        listed=[
            *[((4,), 2, 0), ((2, 6), 3, 1), ((5, 2), (1, 3), 0), ((2, 3, 4), (2, -1), -1)],
            *[((4, 1), (0, 2, 2, 9), 0), ((4,), (3, 1), 0), ((1, 1), (1,), 1)],
        ],
        empty=[((0,), 2, 0), ((0, 3), (1, 2), 1), ((3, 0), (1,), 0)],
        random=random_splitting(),
    ),
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
