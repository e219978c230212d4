"""Functions made of Functions: children and what derives from them, several outputs, layers of the package."""

import copy
import pickle
from collections import namedtuple

import numpy as np
import pytest

import caffelite as cl
from tests.cases.combinators import AROUND
from tests.conftest import training_step
from tests.functions.nested import (
    RNG,
    Block,
    Net,
    RecordableBlock,
    RecordableSplit,
    Scale,
    Split,
    X,
    assert_same_parameters,
)
from tests.reference import assert_same_bits

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


# ---- the walk -------------------------------------------------------------------------------------------------------
Pair = namedtuple("Pair", ["left", "right"])


def test_children_are_the_functions_in_attributes_in_order_and_each_once():
    a, b, c, d, e = (cl.Linear(2, 2) for _ in range(5))
    holder = Block(a)
    holder.many = [b, (c, {"x": d, "again": a}), 3, "word", np.ones(2)]
    holder.pair = Pair(e, None)
    holder.self_containing = holder.many
    holder.many.append(holder.many)
    assert [id(f) for f in holder.children()] == [id(f) for f in (a, b, c, d, e)]
    assert cl.ReLU().children() == []


def test_parameters_and_names_follow_from_the_children():
    shared = cl.Linear(2, 2, bias=False)
    holder = Block(cl.Model([shared, cl.ReLU(), Block(cl.Linear(2, 3))]))
    holder.more = {"head": shared, "rest": [cl.Linear(1, 1)]}
    names = ["function.0.weight", "function.2.function.weight", "function.2.function.bias"]
    assert list(holder.named_parameters()) == [*names, "more.rest.0.weight", "more.rest.0.bias"]
    assert [id(p) for p in holder.parameters()] == [id(p) for p in holder.named_parameters().values()]


def test_a_function_with_parameters_of_its_own_includes_its_childrens():
    class Affine(Block):
        def __init__(self, function):
            super().__init__(function)
            self.shift = cl.Tensor(np.zeros(2, np.float32), requires_grad=True, name="shift")

        def parameters(self):
            return [self.shift, *super().parameters()]

    model = cl.Model([Affine(cl.Linear(2, 2))])
    assert list(model.state_dict()) == ["0.shift", "0.function.weight", "0.function.bias"]


def test_parameters_that_would_have_the_same_name_raise():
    holder = Block(cl.ReLU())
    holder.two = {1: cl.Linear(1, 1, bias=False), "1": cl.Linear(1, 1, bias=False)}
    with pytest.raises(ValueError, match=r"two\.1\.weight"):
        holder.named_parameters()


def test_names_of_a_model_by_call():
    names = list(Net().named_parameters())
    assert names[:4] == ["f.0.weight", "f.0.bias", "f.2.weight", "f.2.bias"]
    assert names[4:] == [f"blocks.{name}.{p}" for name in ("0.function", "1.last") for p in ("weight", "bias")]


@DTYPES
@pytest.mark.parametrize("kind", [Block, RecordableBlock])
def test_a_nested_function_applied_twice_adds_both_gradients(kind, dtype):
    block = kind(cl.Linear(1, 1, bias=False))
    model = cl.Model([block], dtype=dtype)
    a, b = (cl.Tensor(np.full((1, 1), value, dtype)) for value in (1, 10))
    (block(a) + block(b)).sum().backward()
    assert block.function.weight.grad == 11
    assert model.parameters()[0].dtype == dtype


def test_a_copy_shares_inside_what_the_original_shares():
    shared = Scale()
    holder = Block(shared)
    holder.many, holder.log = [Block(shared), {"again": shared}], [1]
    other = holder.copy()
    assert other.function is not shared
    assert other.many[0].function is other.many[1]["again"] is other.function
    assert other.log is holder.log
    assert holder.many[0].function is shared


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_tree_pickles_and_deepcopies(duplicate):
    net = Net(seed=3)
    other = duplicate(net)
    assert_same_parameters(net, other)
    assert_same_bits(net.predict(X), other.predict(X))
    assert other.parameters()[0] is not net.parameters()[0]


# ---- several outputs ------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("kind", [Split, RecordableSplit])
@pytest.mark.parametrize("used", ["both", "first", "second", "twice", "none"])
def test_a_function_of_several_outputs_gets_a_gradient_for_each_that_was_used(kind, used, dtype):
    split = kind()

    def f(x):
        y, z = split(x)
        return {
            "both": lambda: y + z,
            "first": lambda: y * 1.0,
            "second": lambda: z * 3.0,
            "twice": lambda: y * z + y,
            "none": lambda: x * 1.0,
        }[used]()

    truth = {"both": 2 + 2 * X, "first": 2 + 0 * X, "second": 6 * X, "twice": 6 * X * X + 2, "none": 1 + 0 * X}[used]
    x = cl.Tensor(X.astype(dtype), requires_grad=True)
    y = f(x)
    y.backward(np.ones(X.shape, dtype))
    np.testing.assert_allclose(x.grad, truth, rtol=1e-5)

    def step(array):
        x.data = array
        x.zero_grad()
        f(x).backward(ones)
        return x.grad

    ones = np.ones(X.shape, dtype)
    program = cl.capture(step, X.astype(dtype))
    new = (X + 1).astype(dtype)
    assert_same_bits(program(new), step(new))


def test_the_backward_of_several_outputs_is_called_once():
    class CountedSplit(Split):
        calls: list = []  # noqa: RUF012 (shared by the copies)

        def backward(self, dys):
            self.calls.append([dy is not None for dy in dys])
            return super().backward(dys)

    x = cl.Tensor(X, requires_grad=True)
    y, z = CountedSplit()(x)
    (y.exp() + z * y).sum().backward()
    y, z = CountedSplit()(x)
    z.sum().backward()
    assert CountedSplit.calls == [[True, True], [False, True]]


def test_the_graph_of_several_outputs_is_freed_once():
    x = cl.Tensor(X, requires_grad=True)
    y, z = Split()(x)
    y.retain_grad()
    (y + z).sum().backward()
    assert_same_bits(y.grad, np.ones_like(X))
    with pytest.raises(RuntimeError, match="second time"):
        z.sum().backward()


def test_a_sequence_may_end_with_several_outputs():
    model = cl.Model([cl.Linear(4, 3), Split()])
    y, z = model(X)
    arrays = model.forward(X)
    assert_same_bits(arrays[0], y.data)
    assert_same_bits(arrays[1], z.data)
    assert model.backward((np.ones((12, 3), np.float32), None)).shape == X.shape
    with pytest.raises(TypeError, match="tuple"):
        cl.Model([Split(), cl.ReLU()])(X)


@pytest.mark.parametrize("bare", [True, False])
def test_a_loss_of_several_outputs_gets_them_as_a_tuple(bare):
    class OutputSum(cl.Function):
        def forward(self, outputs, targets):
            self.shape = targets.shape
            y, z = outputs
            return np.asarray((y * targets).sum() + 2 * z.sum(), y.dtype)

        def backward(self, dy=1.0):
            ds = np.full(self.shape, 1.0, np.float32), np.full(self.shape, 2.0, np.float32)
            return ds if bare else (ds, None)

    model = cl.Model([cl.Linear(4, 3, bias=False), RecordableSplit()], seed=0)
    targets = np.ones((12, 3), np.float32)
    one = training_step(model, cl.SGD(model.parameters(), lr=0.0), OutputSum())
    one(X, targets)
    h = X @ model.parameters()[0].data
    np.testing.assert_allclose(model.parameters()[0].grad, X.T @ (2 + 4 * h), rtol=1e-4)
    program = cl.capture(one, X, targets)
    assert_same_bits(program(X + 1, targets), one(X + 1, targets).data)


def test_a_tuple_of_tensors_is_not_taken_for_an_array():
    with pytest.raises((TypeError, ValueError)):
        cl.ReLU()(Split()(cl.Tensor(X)))


# ---- layers of the package -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_only_functions_can_be_put_into_a_function(around):
    for wrong in (cl.ReLU, 1, None):
        with pytest.raises(TypeError, match="takes"):
            around(wrong)


def test_parallel_takes_a_list_of_functions():
    with pytest.raises(ValueError, match="no Functions"):
        cl.Parallel([])
    with pytest.raises(TypeError, match="takes"):
        cl.Parallel(cl.ReLU())
    assert cl.Parallel([cl.Linear(4, 3), cl.Linear(4, 2)]).output_shape((None, 4)) == (None, 5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_function_in_a_parallel_gets_all_inputs(dtype):
    frame = {"a": np.linspace(-1, 1, 12), "b": np.arange(12.0) ** 2, "word": np.array(list("xyzxyzxyzxyz"))}
    splines = [cl.Splines(frame, size, bins=3) for size in (4, 2)]
    parts = [cl.Model([splines[0], cl.ReLU(), cl.Linear(4, 3)]), splines[1]]
    model = cl.Model([cl.Parallel(parts), cl.Linear(5, 2)], seed=0, dtype=dtype)
    assert model.takes_indices == (False, True)
    assert model.input_dtype == np.float64
    arrays = splines[0].arrays(frame)
    outputs = np.concatenate([part.predict(arrays) for part in (parts[0], cl.Model([parts[1]], dtype=dtype))], axis=1)
    np.testing.assert_allclose(model[:1].predict(frame), outputs, rtol=0, atol=0)
    np.testing.assert_array_equal(model.predict(frame), model.predict(arrays))
    if dtype == np.float64:
        between = arrays[0] * 0.99 + 0.013  # not at a knot
        assert cl.check_gradients(model, between, arrays[1]) < 1e-6
    with pytest.raises(TypeError, match="column 'word' holds numbers"):
        model.predict({**frame, "word": np.ones(12)})


def test_a_parallel_of_other_columns_takes_no_frames():
    one, other = {"a": [1.0, 2], "b": [3.0, 5]}, {"c": [10.0, 20], "d": [30.0, 50]}
    with pytest.raises(ValueError, match=r"Columns\(a, b\) got \(n, 4\); expected numbers \(n, 2\)"):
        cl.Model([cl.Parallel([cl.Columns(one), cl.Columns(other)])]).predict({**one, **other})
    x = np.array([[1.0, 3], [2, 5]])
    assert cl.Model([cl.Parallel([cl.Columns(one), cl.Linear(2, 3)])], seed=0).predict(x).shape == (2, 5)


def test_one_function_twice_in_a_parallel_adds_its_gradients():
    class DoubledInput(Block):
        """y = f(2 x)."""

        def forward(self, x):
            return self.function.forward(2 * x)

        def backward(self, dy):
            return 2 * self.function.backward(dy)

    f = cl.Linear(4, 4)
    others = [around(f) for around in AROUND.values()]
    assert cl.check_gradients(cl.Parallel([f, f, DoubledInput(f), *others]), X[:2]) < 1e-6


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: cl.Parallel([cl.ReLU(), cl.Tanh()], axis=1), "Parallel([ReLU(), Tanh()], axis=1)"),
        (lambda: cl.Flatten(), "Flatten()"),
        (lambda: cl.Reshape([2, -1]), "Reshape((2, -1))"),
        (lambda: cl.Reshape(6), "Reshape((6,))"),
    ],
)
def test_layers_are_written_as_they_are_made(make, text):
    assert repr(make()) == text


def test_reshape_and_flatten_say_what_does_not_fit():
    assert cl.Reshape((2, -1)).output_shape((None, 4, 3)) == (None, 2, 6)
    assert cl.Reshape((2, -1)).output_shape((None, None, 3)) == (None, 2, None)
    assert cl.Flatten().output_shape((5, 4, 3)) == (5, 12)
    for layer, shape in ((cl.Reshape((2, 3)), (5, 5)), (cl.Reshape((4, -1)), (5, 6)), (cl.Flatten(), ())):
        with pytest.raises(ValueError, match="got"):
            layer.output_shape(shape)
        with pytest.raises(ValueError, match="got"):
            layer.forward(np.zeros(shape, np.float32))
    for shape in ((-2,), (-1, -1)):
        with pytest.raises(ValueError, match="Reshape"):
            cl.Reshape(shape)


@DTYPES
@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 3, 2, 4), (0, 3, 4), (2, 0, 4)])
def test_a_linear_layer_treats_more_axes_as_rows(shape, dtype):
    layer = cl.Linear(4, 5)
    cl.Model([layer], dtype=dtype)
    x = np.asfortranarray(RNG.normal(size=shape).astype(dtype))
    dy = RNG.normal(size=(*shape[:-1], 5)).astype(dtype)
    y, dx, dw = layer.forward(x), layer.backward(dy), layer.weight.grad.copy()
    layer.weight.zero_grad()
    assert_same_bits(y, layer.forward(x.reshape(-1, 4)).reshape(dy.shape))
    assert_same_bits(dx, layer.backward(dy.reshape(-1, 5)).reshape(shape))
    assert_same_bits(dw, layer.weight.grad)


def test_layers_of_more_axes_can_follow_a_linear_layer():
    class Three(cl.Function):
        def forward(self, x):
            return x

        def backward(self, dy):
            return dy

        def output_shape(self, *shapes):
            if len(shapes[0]) != 3:
                raise ValueError(f"three axes, not {shapes[0]}")
            return shapes[0]

    model = cl.Model([cl.Linear(4, 5), Three(), cl.Linear(5, 2)])
    assert model.output_shape((None, 3, 4)) == (None, 3, 2)
    with pytest.raises(ValueError, match="three axes"):
        model.output_shape((None, 4))
