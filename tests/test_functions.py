"""Every Function that `caffelite.functions` exports, against its judge in `reference.py`.

A Function is listed once, in FAMILIES, and everything here is parametrised over that list.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import reference
from hypothesis import given
from reference import LAYOUTS, ODD_DTYPES, assert_close, assert_same_bits, odd_array, plain_copy, widened

import caffelite as cl
from caffelite import functions

DTYPES = [np.float32, np.float64]
side, seeds = st.integers(1, 20), st.integers(0, 2**32)
FUNCTIONS = [f for _, f in inspect.getmembers(functions, inspect.isclass) if issubclass(f, cl.Function)]


@dataclass(frozen=True)
class Case:
    """A Function, the shapes of its inputs, and its judge.

    Inputs are ± numbers of `low` to `high`, away from kinks and from each other, so that no maximum is nearly tied.
    """

    make: Callable[[], cl.Function]
    shapes: tuple[tuple[int, ...], ...]
    judge: Callable
    low: float = 0.1
    high: float = 2.0
    signed: bool = True
    kinks: tuple[float, ...] = ()  # besides 0
    classes: int = 0  # a loss: its second input are labels below this
    condition: tuple[int, ...] | None = None  # the shape of a last input of bool

    def function(self, dtype=np.float64):
        function = self.make()
        if function.parameters():
            cl.Model([function], seed=0, dtype=dtype)
        return function

    def inputs(self, dtype=np.float64, seed=0):
        rng = np.random.default_rng(seed)
        arrays = [self.array(rng, shape, dtype) for shape in self.shapes]
        if self.classes:
            arrays.append(rng.integers(0, self.classes, self.shapes[0][0]))
        if self.condition is not None:
            arrays.append(np.asarray(rng.random(self.condition) < 0.5))
        return arrays

    def array(self, rng, shape, dtype):
        n = math.prod(shape)
        # One number in the middle half of each of n equal parts of the interval.
        parts = rng.permutation(n) + rng.uniform(0.25, 0.75, n)
        x = self.low + (self.high - self.low) * parts / max(n, 1)
        x *= rng.choice([-1.0, 1.0], n) if self.signed else 1.0
        for kink in self.kinks:
            x = kink + np.copysign(np.maximum(abs(x - kink), 0.01), x - kink)
        return x.reshape(shape).astype(dtype)

    def judged(self, function, inputs):
        """The true y, and the function from dy to the true gradients of inputs and parameters."""
        return self.judge(*map(widened, inputs), *[widened(p.data) for p in function.parameters()])


class Family(NamedTuple):
    """The cases of one Function: `build` makes one of its arguments, listed ones or random ones."""

    build: Callable[..., Case]
    listed: list[tuple]  # size-1 axes and 0-d among them
    empty: list[tuple]  # with axes of size 0
    random: st.SearchStrategy[tuple]


def elementwise(function, judge, inputs, **interval):
    """A family of a Function whose inputs broadcast to each other."""

    def build(*shapes):
        return Case(function, shapes, judge, **interval)

    if inputs == 1:
        listed = [((),), ((4,),), ((2, 3),), ((1, 3, 1),)]
        empty = [((0,),), ((2, 0, 3),)]
        return Family(build, listed, empty, st.tuples(hnp.array_shapes(min_dims=0, max_dims=5, max_side=4)))
    listed = [((), ()), ((3,), (3,)), ((2, 3), (3,)), ((3, 1), (1, 4)), ((2, 1, 3), (4, 1)), ((1, 1), (1,)), ((3,), ())]
    empty = [((0,), (0,)), ((0,), (1,)), ((2, 0, 3), (3,)), ((0,), ()), ((1, 3), (0, 3))]
    shapes = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=5, max_side=4)
    return Family(build, listed, empty, shapes.map(lambda drawn: drawn.input_shapes))


def clipping(shape, low, high):
    kinks = tuple(bound for bound in (low, high) if bound is not None)
    return Case(lambda: functions.Clip(low, high), (shape,), lambda x: reference.clip(x, low, high), kinks=kinks)


def choosing(a_shape, b_shape, condition):
    return Case(functions.Where, (a_shape, b_shape), reference.where, condition=condition)


def along(function, judge):
    """A family of a Function along one axis."""

    def build(shape, axis):
        return Case(lambda: function(axis), (shape,), lambda x: judge(x, axis), high=5.0)

    @st.composite
    def random(draw):
        shape = list(draw(hnp.array_shapes(max_dims=4, max_side=3)))
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        shape[axis] = draw(side)
        return tuple(shape), axis

    listed = [((5,), -1), ((1,), 0), ((4, 3), -1), ((4, 3), 0), ((3, 1), 1), ((2, 3, 4), 1), ((2, 1, 3), -3)]
    empty = [((0, 3), -1), ((0, 3, 2), 1), ((2, 0, 3), -1)]
    return Family(build, listed, empty, random())


def reduction(function, judge, empty):
    def build(shape, axis, keepdims):
        return Case(lambda: function(axis, keepdims), (shape,), lambda x: judge(x, axis, keepdims))

    @st.composite
    def random(draw):
        shape = draw(hnp.array_shapes(max_dims=5, max_side=4))
        some = hnp.valid_tuple_axes(len(shape))
        axis = draw(st.none() | st.integers(-len(shape), len(shape) - 1) | some)
        return shape, axis, draw(st.booleans())

    listed = [
        ((), None, False),
        ((5,), None, False),
        ((5,), 0, True),
        ((2, 3), 0, False),
        ((2, 3), -1, True),
        ((1, 3), 0, False),
        ((3, 1), 1, False),
        ((2, 3, 4), (0, 2), False),
        ((2, 3, 4), (-1, 0), True),
        ((2, 1, 3), (), False),
    ]
    return Family(build, listed, empty, random())


def linear(rows, in_features, out_features, bias):
    return Case(lambda: cl.Linear(in_features, out_features, bias), ((rows, in_features),), reference.linear)


def reshaping(shape, new_shape):
    return Case(lambda: functions.ToShape(*new_shape), (shape,), lambda x: reference.reshape(x, new_shape))


@st.composite
def random_reshaping(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=5, max_side=4))
    new_shape = draw(st.permutations(shape))
    if new_shape and draw(st.booleans()):
        new_shape[draw(st.integers(0, len(new_shape) - 1))] = -1
    return shape, tuple(new_shape)


def row_reshaping(shape, row):
    return Case(lambda: functions.Reshape(row), (shape,), lambda x: reference.reshape(x, (len(x), *row)))


def flattening(shape):
    k = math.prod(shape[1:])
    return Case(functions.Flatten, (shape,), lambda x: reference.reshape(x, (len(x), k)))


def residual(rows, size):
    def judge(x, weight, bias):
        y, backward = reference.linear(x, weight, bias)

        def backward_of_both(dy):
            dx, *others = backward(dy)
            return dx + dy, *others

        return x + y, backward_of_both

    return Case(lambda: functions.Residual(cl.Linear(size, size)), ((rows, size),), judge)


def parallel(rows, size):
    """A layer beside the data themselves."""

    def judge(x, weight, bias):
        y, backward = reference.linear(x, weight, bias)

        def backward_of_both(dy):
            dx, *others = backward(dy[:, :2])
            return dx + dy[:, 2:], *others

        return np.concatenate([y, x], axis=1), backward_of_both

    return Case(lambda: functions.Parallel([cl.Linear(size, 2), functions.Flatten()]), ((rows, size),), judge)


def indexing(shape, index):
    return Case(lambda: functions.Index(index), (shape,), lambda x: reference.index(x, index))


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


def joining(function, judge, shapes, axis):
    return Case(lambda: function(axis), shapes, lambda *arrays: judge(*arrays, axis=axis))


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


def transposing(shape, axes):
    return Case(lambda: functions.Transpose(*axes or ()), (shape,), lambda x: reference.transpose(x, axes))


@st.composite
def random_transposing(draw):
    shape = draw(hnp.array_shapes(max_dims=5, max_side=4))
    axes = draw(st.none() | st.permutations([draw(st.sampled_from([i, i - len(shape)])) for i in range(len(shape))]))
    return shape, axes and tuple(axes)


def softmax_loss(rows, classes):
    return Case(cl.SoftmaxLoss, ((rows, classes),), reference.softmax_loss, low=0.0, high=4.0, classes=classes)


def matrix_product(a_shape, b_shape):
    return Case(functions.MatMul, (a_shape, b_shape), reference.matmul)


@st.composite
def random_matrix_product(draw):
    m, k, n = draw(st.tuples(*[st.integers(1, 20)] * 3))
    stacks = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, min_dims=0, max_dims=2, max_side=3)).input_shapes
    a, b = ((*stack, *shape) for stack, shape in zip(stacks, [(m, k), (k, n)], strict=True))
    return draw(st.sampled_from([a, (k,)])), draw(st.sampled_from([b, (k,)]))


FAMILIES = {
    functions.Add: elementwise(functions.Add, reference.add, 2),
    functions.Subtract: elementwise(functions.Subtract, reference.subtract, 2),
    functions.Multiply: elementwise(functions.Multiply, reference.multiply, 2),
    functions.Divide: elementwise(functions.Divide, reference.divide, 2, low=0.5),
    functions.Power: elementwise(functions.Power, reference.power, 2, low=0.5, signed=False),
    functions.Negative: elementwise(functions.Negative, reference.negative, 1),
    functions.ReLU: elementwise(functions.ReLU, reference.relu, 1),
    functions.Exp: elementwise(functions.Exp, reference.exp, 1),
    functions.Log: elementwise(functions.Log, reference.log, 1, signed=False),
    functions.Sqrt: elementwise(functions.Sqrt, reference.sqrt, 1, signed=False),
    functions.Abs: elementwise(functions.Abs, reference.absolute, 1),
    functions.Clip: Family(
        clipping,
        [((4,), -0.5, 0.7), ((), 0.0, None), ((2, 3), None, 0.5), ((1, 3, 1), None, None), ((20,), 0.5, -0.5)],
        [((0,), 0.0, 1.0), ((2, 0, 3), None, 1)],
        st.tuples(
            hnp.array_shapes(min_dims=0, max_dims=5, max_side=4),
            st.none() | st.floats(-2, 0.05),
            st.none() | st.floats(-0.05, 2),
        ),
    ),
    functions.Where: Family(
        choosing,
        [
            ((), (), ()),
            ((2, 3), (2, 3), (2, 3)),
            ((3,), (2, 1), ()),
            ((), (4,), (3, 1)),
            ((1, 3), (1,), (2, 1, 1)),
        ],
        [((0,), (0,), (0,)), ((0, 3), (3,), (1,)), ((), (), (2, 0))],
        hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=5, max_side=4).map(lambda drawn: drawn.input_shapes),
    ),
    functions.Softmax: along(functions.Softmax, reference.softmax_along),
    functions.LogSoftmax: along(functions.LogSoftmax, reference.log_softmax_along),
    functions.Tanh: elementwise(functions.Tanh, reference.tanh, 1),
    functions.Sigmoid: elementwise(functions.Sigmoid, reference.sigmoid, 1),
    functions.Sum: reduction(
        functions.Sum,
        reference.sum,
        [((0,), None, False), ((0, 3), 0, True), ((0, 3), 1, False), ((2, 0, 3), (0, 2), False)],
    ),
    functions.Max: reduction(functions.Max, reference.largest, [((0, 3), 1, False), ((2, 0, 3), (0, 2), True)]),
    functions.Min: reduction(functions.Min, reference.smallest, [((0, 3), 1, False), ((2, 0, 3), (0, 2), True)]),
    functions.Mean: reduction(functions.Mean, reference.mean, [((0, 3), 1, False), ((2, 0, 3), (0, 2), True)]),
    functions.Linear: Family(
        linear,
        [(3, 2, 4, True), (1, 3, 2, False), (4, 1, 1, True), (1, 1, 1, False)],
        [(0, 3, 2, True), (0, 1, 1, False)],
        st.tuples(side, side, side, st.booleans()),
    ),
    functions.MatMul: Family(
        matrix_product,
        [
            *[((2, 3), (3, 4)), ((1, 3), (3, 1)), ((3, 1), (1, 2)), ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,))],
            *[((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (4, 3, 2))],
            *[((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((1, 2, 3), (5, 3, 1))],
        ],
        [
            *[((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0)), ((0,), (0,)), ((0, 3), (3,))],
            *[((0, 2, 3), (3, 4)), ((0, 2, 3), (1, 3, 4)), ((5, 2, 0), (0, 3))],
        ],
        random_matrix_product(),
    ),
    functions.SoftmaxLoss: Family(
        softmax_loss, [(4, 3), (1, 5), (3, 1), (1, 1)], [], st.tuples(st.integers(1, 40), st.integers(1, 40))
    ),
    functions.Index: Family(
        indexing,
        [
            *[
                ((4,), 2),
                ((), ()),
                ((), None),
                ((2, 3), (..., 0)),
                ((4, 3), np.s_[::-2, 1:]),
                ((2, 1, 3), np.s_[:, None, 0]),
            ],
            *[((4,), [2, 0, 2, -1]), ((4, 3), np.s_[[0, 0, 3], 1]), ((2, 3, 4), np.s_[:, [[2], [0]], ::2])],
            *[((2, 3, 4), np.s_[0, :, [3, 0, 3]]), ((2, 3), [[True, False, True], [False, True, True]])],
            *[((3, 1), [False, True, True]), ((2, 3), np.s_[..., [], None]), ((), True), ((2, 1), (False, ...))],
        ],
        [((0, 3), np.s_[:, [0, 0]]), ((0,), []), ((2, 0), [1, 1]), ((2, 0), np.s_[:, 3:])],
        random_indexing(),
    ),
    functions.Concatenate: Family(
        functools.partial(joining, functions.Concatenate, reference.concatenate),
        [([(3,)], 0), ([(2, 3), (1, 3), (4, 3)], 0), ([(2, 1), (2, 3)], -1), ([(2, 3, 1), (2, 1, 1), (2, 3, 1)], 1)],
        [([(0,), (2,)], 0), ([(2, 0), (2, 0)], 0), ([(0, 1), (0, 3)], 1)],
        random_concatenation(),
    ),
    functions.Stack: Family(
        functools.partial(joining, functions.Stack, reference.stack),
        [([()], 0), ([(), (), ()], -1), ([(3,), (3,)], 1), ([(2, 1), (2, 1)], 0), ([(2, 3), (2, 3), (2, 3)], -2)],
        [([(0,)] * 3, 1), ([(2, 0)] * 2, 0)],
        random_stack(),
    ),
    functions.ToShape: Family(
        reshaping,
        [((2, 3), (3, 2)), ((2, 3), (-1,)), ((1, 4), (2, 1, 2)), ((), (1, 1)), ((1,), ())],
        [((0, 3), (3, 0)), ((2, 0), (-1, 2)), ((0,), (0, 5))],
        random_reshaping(),
    ),
    functions.Reshape: Family(
        row_reshaping,
        [((2, 6), (3, 2)), ((2, 3, 4), (-1,)), ((2, 1), (1, 1, 1)), ((1, 2, 3), (3, -1)), ((4,), (1,))],
        [((0, 6), (3, 2)), ((2, 0, 3), (3, 0))],
        st.tuples(st.integers(1, 4), st.permutations((2, 3, 4))).map(lambda x: ((x[0], 24), tuple(x[1]))),
    ),
    functions.Flatten: Family(
        flattening,
        [((2, 6),), ((2, 3, 4),), ((4,),), ((1, 1, 1, 3),)],
        [((0, 2, 3),), ((2, 0, 3),)],
        hnp.array_shapes(min_dims=1, max_dims=5, max_side=4).map(lambda shape: (shape,)),
    ),
    functions.Residual: Family(
        residual,
        [(1, 1), (3, 2), (4, 5)],
        [(0, 3)],
        st.tuples(st.integers(1, 9), st.integers(1, 9)),
    ),
    functions.Parallel: Family(
        parallel,
        [(1, 1), (3, 2), (4, 5)],
        [(0, 3)],
        st.tuples(st.integers(1, 9), st.integers(1, 9)),
    ),
    functions.Transpose: Family(
        transposing,
        [((2, 3), None), ((2, 1, 3), (1, 2, 0)), ((2, 3, 4), (-1, 0, 1)), ((), None), ((1, 4), (1, 0))],
        [((0, 3), None), ((2, 0, 3), (2, 0, 1))],
        random_transposing(),
    ),
}


def named(kind):
    """The listed or empty cases of all Functions, as pytest parameters."""
    return [
        pytest.param(family.build(*arguments), id=f"{function.__name__}-{'-'.join(map(str, arguments))}")
        for function, family in FAMILIES.items()
        for arguments in getattr(family, kind)
    ]


every_case = pytest.mark.parametrize("case", named("listed"))
every_empty_case = pytest.mark.parametrize("case", named("empty"))
every_function = pytest.mark.parametrize("function", list(FAMILIES), ids=lambda function: function.__name__)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


def as_tuple(gradients):
    return gradients if isinstance(gradients, tuple) else (gradients,)


def forward_and_backward(function, inputs, dy=None, *, layout=plain_copy):
    """y, a random dy, and the gradients of inputs and parameters, by hand."""
    y = function.forward(*inputs)
    if dy is None:
        dy = np.asarray(np.random.default_rng(1).uniform(-1, 1, np.shape(y))).astype(y.dtype)
    dy = layout(dy)
    gradients = as_tuple(function.backward(dy))
    return y, dy, [*gradients, *[p.grad for p in function.parameters()]]


def check_against_judge(case, dtype, seed=0):
    function, inputs = case.function(dtype), case.inputs(dtype, seed)
    y, dy, gradients = forward_and_backward(function, inputs)
    truth, backward = case.judged(function, inputs)
    assert_close(y, truth, dtype)
    for gradient, true_gradient in zip(gradients, backward(widened(dy)), strict=True):
        assert_close(gradient, true_gradient, dtype)


# ---- values and gradients ----


def test_every_function_of_the_package_has_cases():
    assert set(FAMILIES) == set(FUNCTIONS)
    assert all(family.listed for family in FAMILIES.values())


@every_case
@both_dtypes
def test_values_and_gradients_are_the_judges(case, dtype):
    check_against_judge(case, dtype)


@every_empty_case
@both_dtypes
def test_arrays_without_elements_have_values_and_gradients(case, dtype):
    check_against_judge(case, dtype)


@every_function
@given(data=st.data(), seed=seeds)
def test_values_and_gradients_are_right_for_random_shapes(function, data, seed):
    """The judge's, in both dtypes, and the gradients also central differences."""
    case = FAMILIES[function].build(*data.draw(FAMILIES[function].random))
    for dtype in DTYPES:
        check_against_judge(case, dtype, seed)
    assert cl.check_gradients(case.function(), *case.inputs(seed=seed)) < 1e-7


@every_case
def test_gradients_pass_the_numerical_check(case):
    assert cl.check_gradients(case.function(), *case.inputs()) < 1e-7


@every_case
@both_dtypes
def test_a_call_on_tensors_gives_what_forward_and_backward_give(case, dtype):
    function, inputs = case.function(dtype), case.inputs(dtype)
    y, dy, gradients = forward_and_backward(case.function(dtype), inputs)
    tensors = [cl.Tensor(x, requires_grad=True) if x.dtype.kind == "f" else x for x in inputs]
    result = function(*tensors)
    result.backward(dy)
    assert_same_bits(result.data, y)
    leaves = [t for t in tensors if isinstance(t, cl.Tensor)] + function.parameters()
    for leaf, gradient in zip(leaves, gradients, strict=True):
        assert_same_bits(leaf.grad, gradient)


@every_case
def test_the_second_of_two_backwards_gives_what_the_first_gave(case):
    function, inputs = case.function(), case.inputs()
    _, dy, gradients = forward_and_backward(function, inputs)
    for p in function.parameters():
        p.zero_grad()
    again = [*as_tuple(function.backward(dy)), *[p.grad for p in function.parameters()]]
    for gradient, same in zip(gradients, again, strict=True):
        assert_same_bits(gradient, same)


@every_case
@both_dtypes
def test_a_function_writes_into_nothing_that_it_is_given(case, dtype):
    function, inputs = case.function(dtype), case.inputs(dtype)
    before = [x.copy() for x in inputs]
    _, dy, _ = forward_and_backward(function, inputs)
    assert_same_bits(dy, np.asarray(np.random.default_rng(1).uniform(-1, 1, dy.shape)).astype(dtype))
    for x, same in zip(inputs, before, strict=True):
        assert_same_bits(x, same)


def test_parameters_gradients_overwrite_what_lay_in_their_memory_and_then_add():
    linear = cl.Linear(3, 2)
    x, dy = np.ones((4, 3), np.float32), np.full((4, 2), 0.5, np.float32)
    for p in linear.parameters():
        p.add_grad(np.full(p.shape, np.nan))
        p.zero_grad()
    linear.forward(x)
    linear.backward(dy)
    assert_same_bits(linear.weight.grad, np.full((3, 2), 2.0, np.float32))
    linear.backward(dy)
    assert_same_bits(linear.weight.grad, np.full((3, 2), 4.0, np.float32))
    assert_same_bits(linear.bias.grad, np.full(2, 4.0, np.float32))


# ---- layouts and dtypes ----


@every_case
@both_dtypes
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_odd_layouts_give_the_plain_copys_bits_and_stay_unchanged(case, dtype, layout):
    odd = [layout(x) for x in case.inputs(dtype)]
    before = [plain_copy(x) for x in odd]
    y, dy, gradients = forward_and_backward(case.function(dtype), odd, layout=layout)
    plain_y, _, plain_gradients = forward_and_backward(case.function(dtype), before, plain_copy(dy))
    for mine, plain in zip([y, *gradients, *odd], [plain_y, *plain_gradients, *before], strict=True):
        assert_same_bits(mine, plain)


@every_case
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_call_makes_a_plain_dtype_of_odd_layouts(case, layout):
    odd = [layout(x) for x in case.inputs(np.float32)]
    y = case.function(np.float32)(*odd)
    assert y.dtype == np.float32
    assert_same_bits(y.data, case.function(np.float32).forward(*[plain_copy(x) for x in odd]))


@every_function
@pytest.mark.parametrize("dtype", ODD_DTYPES)
def test_odd_dtypes_give_float32_or_float64_or_a_type_error(function, dtype):
    family = FAMILIES[function]
    case = family.build(*family.listed[0])
    inputs = [odd_array(dtype, shape) for shape in case.shapes] + case.inputs()[len(case.shapes) :]
    native = np.dtype(dtype).newbyteorder("=")
    try:
        y = case.function(native if native in DTYPES else np.float32)(*inputs)
    except TypeError:
        assert native not in DTYPES
    else:
        assert y.dtype in DTYPES
        inputs[: len(case.shapes)] = [x.astype(y.dtype) for x in inputs[: len(case.shapes)]]
        assert_close(y.data, case.judged(case.function(y.dtype), inputs)[0], y.dtype)


@pytest.mark.parametrize("function", [f for f, family in FAMILIES.items() if len(family.listed[0]) == 2])
def test_float32_and_float64_do_not_mix(function):
    family = FAMILIES[function]
    case = family.build(*family.listed[0])
    if len(case.shapes) == 2:
        a, b = case.inputs()
        with pytest.raises(TypeError, match=r"float(32|64) and float(32|64)"):
            case.function().forward(a.astype(np.float32), b)


# ---- NaN, infinity, signed zero ----

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, -2.0, 3.0, 0.5]


def special_values(dtype):
    """NaN, infinities, zeros, the largest finite numbers, the smallest normal and a denormal one."""
    info = np.finfo(dtype)
    return np.array([*SPECIAL, info.max, -info.max, info.tiny, info.smallest_subnormal], dtype)


def assert_same_values(actual, truth):
    """NaN and infinities where the truth, rounded to the dtype, has them; other values close."""
    with np.errstate(all="ignore"):
        truth = np.asarray(truth).astype(actual.dtype)
    ordinary = np.isfinite(truth) & np.isfinite(actual)
    np.testing.assert_array_equal(np.where(ordinary, 0, actual), np.where(ordinary, 0, truth))
    np.testing.assert_allclose(actual[ordinary], truth[ordinary], rtol=2e-6)


@both_dtypes
@pytest.mark.parametrize("name", ["Add", "Subtract", "Multiply", "Divide", "Power"])
def test_arithmetic_has_numpys_nan_and_infinity(name, dtype):
    values = special_values(dtype)
    a, b = np.repeat(values, len(values)), np.tile(values, len(values))
    judge = getattr(reference, name.lower())
    with np.errstate(all="ignore"):
        truth, _ = judge(widened(a), widened(b))
    assert_same_values(getattr(functions, name)().forward(a, b), truth)


@both_dtypes
@pytest.mark.parametrize("name", ["Add", "Subtract", "Multiply", "Divide", "Power"])
def test_gradients_of_arithmetic_have_numpys_nan_and_infinity(name, dtype):
    values = np.array(SPECIAL, dtype)
    a, b = np.repeat(values, len(values)), np.tile(values, len(values))
    function, dy = getattr(functions, name)(), np.ones(len(a), dtype)
    with np.errstate(all="ignore"):
        _, backward = getattr(reference, name.lower())(widened(a), widened(b))
        truth = backward(widened(dy))
    function.forward(a, b)
    for gradient, true_gradient in zip(function.backward(dy), truth, strict=True):
        assert_same_values(gradient, true_gradient)


@both_dtypes
@pytest.mark.parametrize("name", ["Negative", "ReLU"])
def test_unary_functions_keep_nan_and_infinity(name, dtype):
    values, function = special_values(dtype), getattr(functions, name)()
    truth, backward = getattr(reference, name.lower())(widened(values))
    assert_same_values(function.forward(values), truth)
    assert_same_values(function.backward(np.ones_like(values)), *backward(np.ones(len(values))))


def test_relu_has_slope_0_at_0():
    relu = cl.ReLU()
    relu.forward(np.array([0.0, -0.0, 1.0, -1.0]))
    assert relu.backward(np.ones(4)).tolist() == [0, 0, 1, 0]


@both_dtypes
@pytest.mark.parametrize("name", ["Sqrt", "Abs"])
def test_roots_and_absolute_values_have_numpys_nan_and_infinity(name, dtype):
    values = special_values(dtype)
    with np.errstate(all="ignore"):
        truth = getattr(np, name.lower())(widened(values))
    assert_same_values(getattr(functions, name)().forward(values), truth)


def test_the_absolute_value_has_slope_0_at_0_and_the_root_an_infinite_one():
    absolute, root = functions.Abs(), functions.Sqrt()
    absolute.forward(np.array([0.0, -0.0, 2.0, -2.0]))
    assert absolute.backward(np.full(4, 3.0)).tolist() == [0, 0, 3, -3]
    assert root.forward(np.array([0.0, 4.0])).tolist() == [0, 2]
    assert root.backward(np.ones(2)).tolist() == [np.inf, 0.25]


@both_dtypes
@pytest.mark.parametrize("bounds", [(-1, 1), (None, 0.5), (-np.inf, 0), (0, None), (1, -1), (np.nan, 1), (0, np.nan)])
def test_clipped_values_are_numpys_and_the_gradient_is_1_from_bound_to_bound(bounds, dtype):
    values, clip = special_values(dtype), functions.Clip(*bounds)
    assert_same_values(clip.forward(values), np.clip(values, *bounds))
    low, high = (-np.inf if bounds[0] is None else bounds[0]), (np.inf if bounds[1] is None else bounds[1])
    inside = values == high if low > high else (values >= low) & (values <= high)
    assert_same_bits(clip.backward(np.full_like(values, 3)), np.where(inside, 3, 0).astype(dtype))


@pytest.mark.parametrize("bound", [np.zeros(3), "1", [0], 1j])
def test_bounds_are_numbers_or_none(bound):
    with pytest.raises(TypeError, match="clip"):
        functions.Clip(bound, 1)
    with pytest.raises(TypeError, match="clip"):
        cl.Tensor([1.0]).clip(0, bound)


@both_dtypes
def test_where_copies_bits_and_lets_nothing_through_from_what_was_not_chosen(dtype):
    values = special_values(dtype)
    a, b = np.repeat(values, len(values)), np.tile(values, len(values))
    condition = np.arange(len(a)) % 3 > 0
    where = functions.Where()
    assert_same_bits(where.forward(a, b, condition), np.where(condition, a, b))
    for gradient, chosen in zip(where.backward(a), (condition, ~condition), strict=True):
        assert_same_bits(gradient, np.where(chosen, a, dtype(0)))


@both_dtypes
@pytest.mark.parametrize("dtype_of_condition", ["bool", "float32", "float64", "int8", "uint64"])
def test_conditions_may_be_arrays_lists_and_tensors(dtype_of_condition, dtype):
    condition = np.array([[1], [0]]).astype(dtype_of_condition)
    a, b = cl.Tensor(np.arange(3, dtype=dtype), requires_grad=True), np.full((2, 1), 5, dtype)
    expected = np.where(condition, a.data, b)
    for like in (condition, condition.tolist(), cl.Tensor(condition)):
        y = cl.where(like, a, b)
        assert_same_bits(y.data, expected)
        y.sum().backward()
        assert (a.grad == 1).all()
        a.zero_grad()
    assert_same_bits(cl.where(condition, a, 5).data, expected)
    assert_same_bits(cl.where(condition == 0, 5, a).data, expected)


def test_where_without_tensors_makes_one():
    assert_same_bits(cl.where(True, 1, 2).data, np.float32(1))
    assert_same_bits(cl.where([True, False], 1, np.zeros(2)).data, np.array([1.0, 0.0]))
    assert_same_bits(cl.where([True, False], np.zeros(2), 1).data, np.array([0.0, 1.0]))


@pytest.mark.parametrize(
    "condition", [2, 0, -0.0, np.nan, np.float32(1), np.array(3), np.array(False), np.array(np.nan)]
)
def test_a_condition_may_be_one_number(condition):
    t = cl.Tensor([1.0, 2.0])
    for like in (condition, cl.Tensor(condition)):
        assert_same_bits(cl.where(like, t, 0).data, np.where(condition, t.data, np.float32(0)))


def test_a_condition_of_numbers_that_float32_does_not_know_holds():
    assert cl.where(cl.Tensor(np.array([1e-300, 0, np.nan])), cl.Tensor([1.0] * 3), 0).data.tolist() == [1, 0, 1]


def test_where_adapts_lists_to_arrays_on_either_side():
    assert_same_bits(cl.where([True, False], [1, 2], np.zeros(2)).data, np.array([1.0, 0.0]))
    assert_same_bits(cl.where([True, False], np.zeros(2), [1, 2]).data, np.array([0.0, 2.0]))


def test_where_refuses_what_does_not_fit():
    one = cl.Tensor(np.ones(3, np.float32))
    for a, b in [(one, np.ones(3)), (np.ones(3), one), (one, cl.Tensor(np.ones(3))), (one, "b"), (one, 1j)]:
        with pytest.raises(TypeError, match="where"):
            cl.where([True, False, True], a, b)
    with pytest.raises(TypeError, match="where"):
        cl.where(["a", "b", "c"], one, one)
    with pytest.raises(ValueError, match="broadcast") as raised:
        cl.where(np.ones((2, 2), bool), one, 0)
    assert "(2, 2)" in str(raised.value)
    assert "(3,)" in str(raised.value)


def test_a_condition_that_an_optimizer_changed_is_no_wrong_gradient():
    condition, a = cl.Tensor([1.0, 0.0], requires_grad=True), cl.Tensor([1.0, 2.0], requires_grad=True)
    y = cl.where(condition, a, 0).sum()
    condition.data = [0.0, 1.0]
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 70])
@pytest.mark.parametrize("axis", [0, 1])
@both_dtypes
def test_ties_of_max_and_min_give_the_gradient_to_the_first(dtype, axis, n):
    rng = np.random.default_rng(n)
    x = rng.choice([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan], (5 * n, n), p=[0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    x = (x if axis else x.T).astype(dtype)
    for name, index in (("Max", x.argmax(axis)), ("Min", x.argmin(axis))):
        function = getattr(functions, name)(axis)
        assert_same_bits(function.forward(x), np.take_along_axis(x, np.expand_dims(index, axis), axis).squeeze(axis))
        expected = np.zeros_like(x)
        np.put_along_axis(expected, np.expand_dims(index, axis), dtype(2), axis)
        assert_same_bits(function.backward(np.full(5 * n, 2, dtype)), expected)


def test_the_first_of_several_axes_is_in_the_order_of_their_elements():
    x = np.zeros((2, 3, 2))
    x[1, 2, 0] = x[1, 0, 1] = x[0, 1, 1] = 1
    for axis, first in [(None, (0, 1, 1)), ((2, 0, 1), (0, 1, 1)), ((1, 0), (0, 1, 1)), ((2, 0), (0, 1, 1))]:
        function = functions.Max(axis)
        dx = function.backward(np.ones_like(function.forward(x)))
        assert dx[first] == 1
    assert dx[1, 0, 1] == dx[1, 2, 0] == 1
    assert dx.sum() == 3


@pytest.mark.parametrize("name", ["Max", "Min"])
@pytest.mark.parametrize(("shape", "axis"), [((0,), None), ((0, 3), 0), ((3, 0), (0, 1)), ((2, 0), 1), ((0, 3), None)])
def test_the_largest_of_no_elements_raises(name, shape, axis):
    with pytest.raises(ValueError, match="zero-size"):
        getattr(np, name.lower())(np.ones(shape), axis)
    with pytest.raises(ValueError, match="no elements"):
        getattr(functions, name)(axis).forward(np.ones(shape))


@both_dtypes
@pytest.mark.parametrize("row", [[1e38, -1e38, 0], [-3e38, -3e38, -3e38], [3e38, -3e38, 3e38], [1000, 0, -1000]])
def test_softmax_of_numbers_at_the_end_of_float32_is_finite_and_sums_to_1(row, dtype):
    x = np.array([row] * 100, dtype)
    softmax, log_softmax = functions.Softmax(), functions.LogSoftmax(1)
    assert_close(softmax.forward(x), reference.softmax(x), dtype)
    np.testing.assert_allclose(softmax.y.sum(axis=1), 1, 1e-6)
    assert not np.isnan(log_softmax.forward(x)).any()
    for function in (softmax, log_softmax):
        assert np.isfinite(function.backward(np.ones_like(x))).all()


@both_dtypes
def test_softmax_of_nan_and_infinity_is_what_numpys_stable_formula_gives(dtype):
    inf, nan = np.inf, np.nan
    rows = [[0, -inf, 0], [-inf, -inf, -inf], [inf, 0, 1], [inf, inf, 0], [nan, 0, 1], [0, nan, 1], [0, -inf, inf]]
    x = np.array(rows, dtype)
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis=1, keepdims=True)
        total = np.exp(shifted).sum(axis=1, keepdims=True)
        assert_same_values(functions.Softmax().forward(x), np.exp(shifted) / total)
        assert_same_values(functions.Softmax(0).forward(x.T), (np.exp(shifted) / total).T)
        assert_same_values(functions.LogSoftmax().forward(x), shifted - np.log(total))


def test_softmax_of_no_numbers_is_empty():
    for function in (functions.Softmax(), functions.LogSoftmax()):
        assert function.forward(np.ones((3, 0))).shape == (3, 0)
        assert function.backward(np.ones((3, 0))).shape == (3, 0)


@pytest.mark.parametrize("function", [functions.Softmax, functions.LogSoftmax])
def test_softmax_is_along_one_axis_that_exists(function):
    for shape, axis in [((), -1), ((3,), 1), ((3, 2), -3)]:
        with pytest.raises(ValueError, match=f"no axis {axis}"):
            function(axis).forward(np.ones(shape))
    for axis in (None, (0, 1), 1.0):
        with pytest.raises(TypeError):
            function(axis).forward(np.ones((2, 2)))


@pytest.mark.parametrize("function", [functions.Softmax, functions.LogSoftmax])
def test_a_rows_softmax_does_not_depend_on_the_rows_beside_it(function):
    x = np.random.default_rng(0).normal(size=(100, 37)).astype(np.float32)
    y = function().forward(x)
    for i in range(100):
        assert_same_bits(function().forward(x[i : i + 1])[0], y[i])


@both_dtypes
@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min"])
def test_reductions_have_numpys_nan_and_infinity(name, dtype):
    rows = [[1, np.nan], [np.inf, 1], [-np.inf, 1], [np.inf, -np.inf], [np.inf, np.inf], [np.nan, np.inf], [0.0, -0.0]]
    x = np.array(rows, dtype)
    judge = getattr(np, name.lower())
    with np.errstate(all="ignore"):
        for axis, operand in [(1, x), (0, x.T)]:
            truth = judge(widened(operand), axis)
            assert_same_values(getattr(functions, name)(axis).forward(operand), truth)


def test_a_float32_mean_does_not_overflow_on_the_way():
    largest = np.finfo(np.float32).max
    assert functions.Mean().forward(np.full(10, largest)) == largest


@both_dtypes
def test_a_matrix_product_has_numpys_nan_and_infinity_and_keeps_them_in_their_rows(dtype):
    a = np.array([[1, np.nan], [np.inf, 1], [np.inf, -np.inf], [0, np.inf], [1, 2]], dtype)
    b = np.array([[1, 0, 1], [1, 1, -np.inf]], dtype)
    with np.errstate(all="ignore"):
        truth, _ = reference.matmul(widened(a), widened(b))
    assert_same_values(functions.MatMul().forward(a, b), truth)


@both_dtypes
@pytest.mark.parametrize("scores", [[3e38, -3e38], [-3e38, 3e38], [3e38, 3e38], [-3e38, -3e38], [1000, 0], [0, 1000]])
def test_scores_at_the_end_of_float32_have_a_finite_loss_and_gradient(scores, dtype):
    loss = cl.SoftmaxLoss()
    value = loss.forward(np.array([scores] * 100, dtype), np.array([0, 1] * 50))
    assert np.isfinite(value)
    assert value >= 0
    assert np.isfinite(loss.backward()).all()
    np.testing.assert_allclose(loss.probabilities.sum(axis=1), 1)


@both_dtypes
def test_a_softmax_loss_of_not_a_number_is_not_a_number(dtype):
    for scores, label in [
        ([0, np.nan], 0),
        ([np.nan, 0], 1),
        ([np.nan, np.nan], 0),
        ([np.inf, 0], 0),
        ([np.inf, np.inf], 1),
        ([-np.inf, -np.inf], 0),
    ]:
        loss = cl.SoftmaxLoss()
        assert np.isnan(loss.forward(np.array([scores], dtype), np.array([label])))
        assert np.isnan(loss.backward()).any()


@both_dtypes
def test_a_score_of_minus_infinity_is_a_class_of_probability_0(dtype):
    scores = np.array([[0.0, -np.inf, 0.0]], dtype)
    loss = cl.SoftmaxLoss()
    assert loss.forward(scores, np.array([0])) == pytest.approx(math.log(2))
    assert loss.probabilities.tolist() == [[0.5, 0.0, 0.5]]
    assert loss.forward(scores, np.array([1])) == np.inf
    assert loss.backward().tolist() == [[0.5, -1.0, 0.5]]


# ---- softmax loss: labels and state ----

SCORES = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 1.0], [0.2, 0.1, 0.0], [3.0, 1.0, 2.0]], np.float32)

# Labels for four rows and three classes, what they raise, and the first bad row.
BAD_LABELS = {
    "negative": ([0, -1, 2, -5], ValueError, 1),
    "too large": ([0, 1, 3, 9], ValueError, 2),
    "the smallest int64": (np.array([0, 1, 2, -(2**63)]), ValueError, 3),
    "beyond int64, unsigned": (np.array([0, 2**63, 1, 2], np.uint64), ValueError, 1),
    "all bits set, unsigned": (np.array([2**64 - 1, 0, 1, 2], np.uint64), ValueError, 0),
    "beyond int64, in a list": ([0, 1, 2**63, 2], (TypeError, ValueError), 2),
    "beyond uint64, in a list": ([0, 1, 2, 2**70], (TypeError, ValueError), 3),
    "float": ([0.0, 1.0, 2.0, 0.0], TypeError, 0),
    "fractions": ([0.5, 1.0, 2.0, 0.0], TypeError, 0),
    "nan": ([np.nan, 1, 2, 0], (TypeError, ValueError), 0),
    "bool": ([True, False, True, False], TypeError, 0),
    "string": (["0", "1", "2", "0"], TypeError, 0),
    "bytes": ([b"0", b"1", b"2", b"0"], TypeError, 0),
    "object": (np.array([0, 1, None, 2], object), TypeError, 2),
    "complex": ([0j, 1, 2, 0], TypeError, 0),
    "timedelta": (np.array([0, 1, 2, 0], "m8[s]"), TypeError, 0),
}
BAD_SHAPES = {
    "2-d": [[0, 1, 2, 0]],
    "a column": [[0], [1], [2], [0]],
    "too short": [0, 1, 2],
    "too long": [0, 1, 2, 0, 1],
    "empty": np.array([], np.int64),
    "0-d": np.int64(1),
}


@pytest.mark.parametrize("labels", BAD_LABELS)
def test_bad_labels_raise_with_the_first_bad_row_and_the_allowed_range(labels):
    targets, error, row = BAD_LABELS[labels]
    for method in (cl.SoftmaxLoss().forward, lambda scores, y: cl.SoftmaxLoss().check_targets(y, scores.shape)):
        with pytest.raises(error, match=rf"row {row}\b") as raised:
            method(SCORES, targets)
        assert "0 … 2" in str(raised.value)


@pytest.mark.parametrize("labels", BAD_SHAPES)
def test_labels_of_another_shape_raise_with_both_shapes(labels):
    targets = BAD_SHAPES[labels]
    with pytest.raises(ValueError, match="SoftmaxLoss") as raised:
        cl.SoftmaxLoss().forward(SCORES, targets)
    assert str(np.shape(targets)) in str(raised.value)
    assert str(SCORES.shape) in str(raised.value)


def test_an_empty_list_of_labels_raises():
    with pytest.raises((TypeError, ValueError), match="0 … 2"):
        cl.SoftmaxLoss().forward(SCORES, [])


@pytest.mark.parametrize("shape", [(4,), (4, 3, 2), (), (0, 3)])
def test_scores_that_are_no_matrix_of_rows_raise(shape):
    with pytest.raises(ValueError, match=r"SoftmaxLoss|softmax_loss"):
        cl.SoftmaxLoss().forward(np.zeros(shape, np.float32), np.zeros(shape[:1], np.int64))


def test_backward_needs_a_forward_that_succeeded():
    loss = cl.SoftmaxLoss()
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()
    loss.forward(SCORES, [0, 1, 2, 0])
    with pytest.raises(ValueError, match="row 3"):
        loss.forward(SCORES, [0, 1, 2, 3])
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()
    loss.forward(SCORES, [0, 1, 2, 0])
    with pytest.raises(TypeError):
        loss.forward(SCORES.astype(np.float16), [0, 1, 2, 0])
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()


def test_backward_is_of_the_labels_that_forward_saw():
    loss, labels = cl.SoftmaxLoss(), np.array([0, 1, 2, 0])
    loss.forward(SCORES, labels)
    expected = loss.backward().copy()
    labels[1] = 3
    assert_same_bits(loss.backward(), expected)


def test_probabilities_are_the_softmax_and_survive_backward():
    loss = cl.SoftmaxLoss()
    assert loss.probabilities is None
    loss.forward(SCORES, [0, 1, 2, 0])
    loss.backward()
    assert_close(loss.probabilities, reference.softmax(SCORES), np.float32)


def test_probabilities_stay_with_the_instance_that_ran():
    loss = cl.SoftmaxLoss()
    loss.forward(SCORES, [0, 1, 2, 0])
    kept, values = loss.probabilities, loss.probabilities.copy()
    loss(cl.Tensor(SCORES * 2), [0, 1, 2, 0])
    assert loss.probabilities is kept
    loss.forward(SCORES * 2, [0, 1, 2, 0])
    assert_same_bits(kept, values)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i4"])
def test_labels_are_integers_of_any_width(dtype):
    expected = cl.SoftmaxLoss().forward(SCORES, [0, 1, 2, 0])
    assert_same_bits(cl.SoftmaxLoss().forward(SCORES, np.array([0, 1, 2, 0], dtype)), expected)


def test_the_incoming_gradient_scales_the_losss():
    loss = cl.SoftmaxLoss()
    loss.forward(SCORES, [0, 1, 2, 0])
    assert_close(loss.backward(-2.5), reference.softmax_loss(SCORES, [0, 1, 2, 0])[1](-2.5)[0], np.float32)
    with pytest.raises(ValueError, match=r"\(2,\)"):
        loss.backward(np.ones(2))
    for dy in (None, "1", 1j):
        with pytest.raises(TypeError, match=r"SoftmaxLoss\(\).backward"):
            loss.backward(dy)


# ---- linear ----


@pytest.mark.parametrize("shape", [(2, 4), (3,), (2, 3, 4), ()])
def test_linear_names_both_shapes_where_they_dont_fit(shape):
    linear = cl.Linear(3, 2)
    for raises in (lambda: linear.forward(np.zeros(shape, np.float32)), lambda: linear.output_shape(shape)):
        with pytest.raises(ValueError, match="Linear") as raised:
            raises()
        assert str(shape) in str(raised.value)
        assert "3" in str(raised.value).replace(str(shape), "")


def test_linear_says_which_rows_it_got():
    with pytest.raises(ValueError, match=r"Linear\(64 → 10\) got rows of 100 features, shape \(32, 100\)"):
        cl.Linear(64, 10).forward(np.zeros((32, 100), np.float32))


def test_linear_refuses_another_dtype_than_its_weights():
    with pytest.raises(TypeError, match="float32") as raised:
        cl.Linear(3, 2).forward(np.zeros((1, 3)))
    assert "float64" in str(raised.value)


def test_linear_refuses_a_gradient_of_another_shape():
    linear = cl.Linear(3, 2)
    linear.forward(np.zeros((4, 3), np.float32))
    with pytest.raises(ValueError, match=r"\(3, 2\)"):
        linear.backward(np.zeros((4, 3), np.float32))


@pytest.mark.parametrize("features", [0, -1])
def test_features_are_counted_from_1(features):
    with pytest.raises(ValueError, match=f"in_features.*{features}"):
        cl.Linear(features, 2)
    with pytest.raises(ValueError, match=f"out_features.*{features}"):
        cl.Linear(2, features)


@pytest.mark.parametrize("features", [1.0, "3", None, True])
def test_features_are_integers(features):
    with pytest.raises(TypeError, match="in_features"):
        cl.Linear(features, 2)
    with pytest.raises(TypeError, match="out_features"):
        cl.Linear(2, features)


def test_a_new_linear_is_uniform_within_one_over_the_root_of_its_inputs():
    linear = cl.Linear(100, 200)
    for p in linear.parameters():
        assert p.dtype == np.float32
        assert 0.095 < np.abs(p.data).max() <= 0.1
    assert abs(linear.weight.data.mean()) < 0.002
    assert linear.weight.data.std() == pytest.approx(0.2 / math.sqrt(12), rel=0.05)


def test_initialize_draws_the_same_from_the_same_seed():
    a, b = cl.Linear(5, 4), cl.Linear(5, 4)
    assert (a.weight != b.weight).any()
    a.initialize(3)
    b.initialize(np.random.default_rng(3))
    assert_same_bits(a.weight.data, b.weight.data)
    assert_same_bits(a.bias.data, b.bias.data)


def ones(shape, rng):
    return np.ones(shape)


def test_an_initializer_draws_the_weight_and_leaves_the_bias_0():
    shapes = []

    def noted(shape, rng):
        shapes.append(shape)
        return ones(shape, rng)

    linear = cl.Linear(2, 3, initializer=noted)
    assert shapes == [(2, 3)]
    assert (linear.weight == 1).all()
    assert (linear.bias == 0).all()


def test_parameters_come_weight_first_and_a_bias_may_be_left_out():
    linear = cl.Linear(2, 3)
    assert [p.shape for p in linear.parameters()] == [(2, 3), (3,)]
    assert [p.shape for p in cl.Linear(2, 3, bias=False).parameters()] == [(2, 3)]
    assert cl.Linear(2, 3, bias=False).bias is None


def test_a_frozen_parameter_gets_no_gradient():
    linear = cl.Linear(2, 3)
    linear.weight.requires_grad = False
    linear.forward(np.ones((1, 2), np.float32))
    linear.backward(np.ones((1, 3), np.float32))
    assert linear.weight.grad is None
    assert linear.bias.grad is not None


def test_a_rows_output_does_not_depend_on_the_rows_beside_it():
    linear, x = cl.Linear(300, 7), np.random.default_rng(0).normal(size=(50, 300)).astype(np.float32)
    batch = linear.forward(x)
    for i in range(50):
        assert_same_bits(linear.forward(x[i : i + 1])[0], batch[i])


# ---- the contract of Function ----


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (cl.Linear(2, 100), "Linear(2, 100)"),
        (cl.Linear(2, 3, bias=False), "Linear(2, 3, bias=False)"),
        (cl.ReLU(), "ReLU()"),
        (cl.SoftmaxLoss(), "SoftmaxLoss()"),
        (functions.Sum((0, 1), keepdims=True), "Sum((0, 1), keepdims=True)"),
        (functions.Mean(), "Mean()"),
        (functions.Min(keepdims=True), "Min(keepdims=True)"),
        (functions.Max(-1), "Max(-1)"),
        (functions.Softmax(), "Softmax()"),
        (functions.LogSoftmax(0), "LogSoftmax(0)"),
        (functions.Concatenate(), "Concatenate()"),
        (functions.Stack(1), "Stack(1)"),
        (cl.Linear(2, 3, initializer=ones), "Linear(2, 3, initializer=ones)"),
        (functions.Clip(0, None), "Clip(0, None)"),
        (functions.ToShape(2, 3), "ToShape(2, 3)"),
        (functions.ToShape(3), "ToShape(3)"),
        (functions.Transpose(1, 0), "Transpose(1, 0)"),
        (functions.Transpose(0), "Transpose(0)"),
    ],
    ids=str,
)
def test_a_repr_is_how_it_is_made(function, text):
    assert repr(function) == text


def check_output_shape(case):
    """That of forward's result; with lengths unknown, those that are known are right."""
    function, inputs = case.function(), case.inputs()
    true_shape, shapes = function.forward(*inputs).shape, [x.shape for x in inputs]
    assert function.output_shape(*shapes) == true_shape
    for hidden in [lambda i: i == 0, lambda i: i > 0, lambda i: True]:
        unknown = [tuple(None if hidden(i) else n for i, n in enumerate(shape)) for shape in shapes]
        y = function.output_shape(*unknown)
        assert len(y) == len(true_shape)
        assert all(n in (None, true) for n, true in zip(y, true_shape, strict=True))


@pytest.mark.parametrize("case", named("listed") + named("empty"))
def test_the_output_shape_is_that_of_what_forward_returns(case):
    check_output_shape(case)


@every_function
@given(data=st.data())
def test_the_output_shape_is_right_for_random_shapes(function, data):
    check_output_shape(FAMILIES[function].build(*data.draw(FAMILIES[function].random)))


N = None


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (cl.Linear(2, 5), [(N, 2)], (N, 5)),
        (cl.ReLU(), [(N, 3, 4)], (N, 3, 4)),
        (functions.Add(), [(N, 1), (1, 3)], (N, 3)),
        (functions.Add(), [(N, 3), (5, 1)], (5, 3)),
        (functions.Where(), [(3,), (), (N, 1)], (N, 3)),
        (functions.Sum(), [(N, 3)], ()),
        (functions.Mean(1), [(N, 3)], (N,)),
        (functions.Max(0, keepdims=True), [(N, 3)], (1, 3)),
        (functions.MatMul(), [(N, 3), (3, 4)], (N, 4)),
        (functions.MatMul(), [(N, 2, 3), (N, 3)], (N, 2, 3)),
        (functions.MatMul(), [(N, 2, 3), (3,)], (N, 2)),
        (functions.ToShape(-1, 6), [(N, 2, 3)], (N, 6)),
        (functions.ToShape(4, 3), [(N, 3)], (4, 3)),
        (functions.Transpose(), [(N, 3)], (3, N)),
        (functions.Index(np.s_[:, 0]), [(N, 3, 4)], (N, 4)),
        (functions.Index(np.s_[1:, 1:]), [(N, 3)], (N, 2)),
        (functions.Index([0, 7]), [(N, 3)], (2, 3)),
        (functions.Index([True, False]), [(N, 3)], (1, 3)),
        (functions.Concatenate(1), [(N, 3), (N, 4)], (N, 7)),
        (functions.Concatenate(), [(N, 3), (2, N)], (N, 3)),
        (functions.Stack(1), [(N, 3), (2, N)], (2, 2, 3)),
        (cl.SoftmaxLoss(), [(N, 3), (N,)], ()),
    ],
    ids=str,
)
def test_the_output_shape_has_none_where_it_is_unknown(function, shapes, expected):
    assert function.output_shape(*shapes) == expected


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (functions.Add(), [(N, 2), (N, 3)]),
        (functions.Where(), [(2,), (2,), (N, 3)]),
        (functions.MatMul(), [(N, 2), (3, 4)]),
        (functions.MatMul(), [(), (3, 4)]),
        (functions.MatMul(), [(2, N, 3), (5, 3, 4)]),
        (functions.ToShape(4), [(2, 3)]),
        (functions.ToShape(4, -1), [(2, 3)]),
        (functions.Transpose(1, 0), [(N, 2, 3)]),
        (functions.Index([0, 3]), [(3, N)]),
        (functions.Index(np.s_[0, 0]), [(N,)]),
        (functions.Index([True, False]), [(3, N)]),
        (functions.Index(([0, 1], [0, 1, 2])), [(N, 3)]),
        (functions.Concatenate(1), [(2, 3), (3, 3)]),
        (functions.Concatenate(), [(N, 3), (N, 3, 1)]),
        (functions.Stack(), [(N, 3), (N, 4)]),
        (cl.SoftmaxLoss(), [(4, 3), (5,)]),
        (cl.SoftmaxLoss(), [(N, 3), (N, 1)]),
    ],
    ids=str,
)
def test_the_output_shape_of_what_does_not_fit_raises_with_the_shapes(function, shapes):
    with pytest.raises(ValueError, match="shape") as raised:
        function.output_shape(*shapes)
    assert all(str(shape) in str(raised.value) for shape in shapes if function.__class__ is not functions.MatMul)


@pytest.mark.parametrize("axis", [2, -3])
def test_the_output_shape_along_an_axis_that_does_not_exist_raises(axis):
    for function in (functions.Sum, functions.Softmax, functions.Concatenate):
        with pytest.raises(ValueError, match="axis"):
            function(axis).output_shape((N, 3))


def test_functions_are_abstract():
    with pytest.raises(TypeError, match="abstract"):
        cl.Function()

    class Half(cl.Function):
        def forward(self, x):
            return x

    with pytest.raises(TypeError, match="backward"):
        Half()


@every_function
def test_the_packages_functions_compute_with_kernels_alone_and_say_so(function):
    assert function.recordable

    class Child(function):
        pass

    assert not Child.recordable


# ---- shapes that do not fit ----


@pytest.mark.parametrize("name", ["Add", "Subtract", "Multiply", "Divide", "Power"])
def test_shapes_that_dont_broadcast_raise_with_both(name):
    with pytest.raises(ValueError, match=r"\(2, 3\)") as raised:
        getattr(functions, name)().forward(np.ones((2, 3)), np.ones((3, 2)))
    assert "(3, 2)" in str(raised.value)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((3,), (2,)), ((2, 3), (2,)), ((), (2,)), ((2,), ())])
def test_matrices_that_dont_fit_raise_with_both_shapes(shapes):
    with pytest.raises(ValueError, match="matmul") as raised:
        functions.MatMul().forward(*map(np.ones, shapes))
    assert all(str(shape) in str(raised.value) for shape in shapes)


@pytest.mark.parametrize("function", [functions.Sum, functions.Mean, functions.Max, functions.Min])
@pytest.mark.parametrize("axis", [2, -3, (0, 2), (0, 0), (0, -2)])
def test_axes_that_do_not_exist_or_come_twice_raise(function, axis):
    with pytest.raises(ValueError, match=r"ax[ei]s"):
        function(axis).forward(np.ones((2, 3)))


@pytest.mark.parametrize("axis", [True, False, 1.0, "0", (True,), (0, 1.0)])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_an_axis_is_an_integer(name, axis):
    with pytest.raises(TypeError, match="integer"):
        getattr(cl.Tensor(np.ones((2, 3))), name)(axis)


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()])
def test_a_mean_of_no_elements_raises(shape):
    x = np.ones((*shape, 0))
    with pytest.raises(ValueError, match="no elements"):
        functions.Mean().forward(x)


def test_a_mean_of_no_elements_along_an_axis_raises():
    with pytest.raises(ValueError, match="no elements"):
        functions.Mean(0).forward(np.ones((0, 3)))


def test_reshape_and_transpose_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match=r"\(4,\)|\(4\)"):
        functions.ToShape(4).forward(np.ones((2, 3)))
    with pytest.raises(ValueError, match="axes"):
        functions.Transpose(0).forward(np.ones((2, 3)))


def test_reshape_and_transpose_take_arrays_of_numbers():
    t = cl.Tensor(np.arange(6.0).reshape(2, 3))
    assert_same_bits(t.reshape(np.array([3, 2])).data, t.data.reshape(3, 2))
    assert_same_bits(t.transpose(np.array([1, 0])).data, t.data.T)
    assert repr(functions.ToShape(*np.array([3, 2]))) == "ToShape(3, 2)"
    for method in (t.reshape, t.transpose):
        with pytest.raises(TypeError, match="integer"):
            method(1.0)


# ---- what the functions take ----

ONE_INPUT = ["sum", "mean", "max", "min", "exp", "log", "sqrt", "abs", "tanh", "sigmoid", "relu"]
ONE_ROW = [*ONE_INPUT, "softmax", "log_softmax", "transpose"]


@pytest.mark.parametrize("name", ONE_ROW)
@pytest.mark.parametrize("data", [[1, 2], (0.5, 3.0), np.array([1, 2]), np.array([True, False]), np.float16([1, 2])])
def test_the_functions_take_what_tensor_takes(name, data):
    function = getattr(cl, name)
    assert_same_bits(function(data).data, function(cl.Tensor(data)).data)
    assert function(np.array(data, float)).dtype == np.float64
    with pytest.raises(TypeError, match="real numbers"):
        function(["a"])


@pytest.mark.parametrize("name", ONE_INPUT)
@pytest.mark.parametrize("number", [2, 0.5, True, np.float64(2)])
def test_the_functions_take_numbers(name, number):
    assert_same_bits(getattr(cl, name)(number).data, getattr(cl, name)(cl.Tensor(number)).data)


def test_the_functions_with_arguments_take_lists():
    assert cl.reshape([[1, 2]], 2).data.tolist() == [1, 2]
    assert cl.clip([1, 5], 2, 3).data.tolist() == [2, 3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix_product_adapts_lists_and_integers_on_either_side(dtype):
    t = cl.Tensor(np.array([[1, 2], [3, 4]], dtype), requires_grad=True)
    for other in ([[1, 2], [0, 1]], np.array([[1, 2], [0, 1]]), np.array([[True, True], [False, True]])):
        assert_same_bits(cl.matmul(other, t).data, (other @ t).data)
        assert_same_bits(cl.matmul(t, other).data, (t @ other).data)
        assert cl.matmul(other, t).dtype == dtype
    assert cl.matmul([[1, 2]], [3, 4]).data.tolist() == [11]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_call_on_a_list_takes_the_dtype_of_the_parameters(dtype):
    model = cl.Model([cl.Linear(3, 2), cl.ReLU()], dtype=dtype)
    rows = [[1, 2, 3], [4, 5, 6]]
    assert_same_bits(model(rows).data, model(np.array(rows, dtype)).data)
    assert_same_bits(model.functions[0](rows).data, model.functions[0](np.array(rows, dtype)).data)
    assert_same_bits(cl.ReLU()(rows).data, np.array(rows, np.float32))
    assert cl.SoftmaxLoss()(rows, [0, 1]).data == cl.SoftmaxLoss().forward(np.array(rows, np.float32), [0, 1])


def test_a_users_function_gets_a_list_as_it_is():
    class Rows(cl.Function):
        """The rows of a table with these numbers."""

        def forward(self, numbers):
            assert numbers == [2, 0]
            return np.eye(3)[numbers]

        def backward(self, dy):
            return None

    assert Rows()([2, 0]).data.tolist() == [[0, 0, 1], [1, 0, 0]]
