"""Attributes of Functions inside others that change after recording are seen."""

import copy

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.cases.combinators import AROUND
from tests.conftest import training_step
from tests.functions.nested import Block, RecordableBlock, RecordableSplit, Scale, X, Y, assert_same_parameters
from tests.reference import assert_same_bits

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.mark.parametrize("kind", [Block, RecordableBlock, *AROUND.values()], ids=["", "recordable", *AROUND])
def test_an_attribute_of_a_child_that_changes_after_recording_is_seen(kind):
    inner = Scale()
    function = kind(RecordableBlock(inner))
    program = cl.capture(lambda x: function(x), X)
    for value in (5.0, 7.0):
        inner.s = value  # at first it was the class's
        assert_same_bits(program(X), function(X).data)
    function.other = 1
    (function.children()[0]).function = Scale()
    assert_same_bits(program(X), function(X).data)


@pytest.mark.parametrize("around", [Block, RecordableBlock, *AROUND.values()], ids=["", "recordable", *AROUND])
@pytest.mark.parametrize("twice", [False, True])
def test_a_changed_attribute_of_a_nested_users_function_is_seen(around, twice):
    inner = Block(cl.ReLU())
    function = around(cl.Model([inner, inner]) if twice else inner)
    program = cl.capture(lambda x: function(x), X)
    for value in (5.0, 7.0):
        inner.s = value
        assert_same_bits(program(X), function(X).data)


def test_an_attribute_that_was_the_classs_and_is_set_on_the_instance_is_seen():
    model = cl.Model([Scale()])
    model.predict(X)
    model.functions[0].s = 3.0
    assert_same_bits(model.predict(X), 3 * X)
    model.functions[0].forward = lambda x: x
    assert_same_bits(model.predict(X), X)
    del model.functions[0].s, model.functions[0].forward
    assert_same_bits(model.predict(X), 2 * X)


@pytest.mark.parametrize("kind", [Block, RecordableBlock])
def test_a_child_that_is_replaced_after_recording_is_seen(kind):
    def train_net(replay):
        block = kind(cl.Linear(4, 3))
        model = cl.Model([block], seed=0)
        one = training_step(model, cl.SGD(model.parameters(), lr=0.1))
        run = cl.capture(one, X, Y) if replay else one
        if not replay:
            run(X, Y)
        block.function = cl.Linear(4, 3)
        block.function.initialize(1)
        values = [np.asarray(run(X, Y).data if not replay else run(X, Y)) for _ in range(3)]
        return values, block.function.weight.grad

    (eager, g), (replayed, h) = train_net(False), train_net(True)
    assert_same_bits(np.array(eager), np.array(replayed))
    assert_same_bits(g, h)


def test_changes_inside_a_dict_or_nested_list_are_seen():
    class Options(cl.Function, recordable=True):
        def __init__(self):
            self.options = {"factors": [[2.0]]}

        def forward(self, x):
            self.factor = self.options["factors"][0][0]
            return kernels.multiply(x, self.factor)

        def backward(self, dy):
            return kernels.multiply(dy, self.factor)

    model = cl.Model([Options()])
    model.predict(X)
    model.functions[0].options["factors"][0][0] = 3.0
    assert_same_bits(model.predict(X), 3 * X)
    model.functions[0].options["factors"] = [[4.0]]
    assert_same_bits(model.predict(X), 4 * X)


def random_tree(rng, depth):
    """Return a Function of rows of 4 features, made of others."""
    kind = rng.integers(0, 7 + len(AROUND) if depth else 3)
    inner = [random_tree(rng, depth - 1) for _ in range(2)] if kind > 2 else []
    shared = inner[0] if inner and rng.random() < 0.3 else None
    if kind == 0:
        return cl.Linear(4, 4)
    if kind == 1:
        return Scale()
    if kind == 2:
        return cl.Tanh()
    if kind == 3:
        return Block(cl.Model(inner))
    if kind == 4:
        return RecordableBlock(inner[0], s=float(rng.normal()))
    if kind == 5:
        return cl.Model([cl.Parallel([shared or inner[1], inner[0]]), cl.Linear(8, 4)])
    if kind == 6:
        return RepeatingNet(inner, shared or inner[1])
    around = list(AROUND.values())[kind - 7](inner[0])
    return cl.Model([around, cl.Linear(around.output_shape((None, 4))[-1], 4)])


class RepeatingNet(cl.Model):
    """Applies one of its Functions twice."""

    def __init__(self, functions, last):
        super().__init__()
        self.parts, self.last = {"all": functions}, last

    def call(self, x):
        for function in self.parts["all"]:
            x = x + function(x)
        y, z = RecordableSplit()(x)
        return (self.last(self.last(y)) + z).tanh()


@DTYPES
@pytest.mark.parametrize("seed", range(25))
def test_random_trees_replay_to_the_bit_while_their_attributes_change(seed, dtype):
    rng = np.random.default_rng(seed)
    tree = cl.Model([random_tree(rng, 3), cl.Linear(4, 3)], seed=seed, dtype=dtype)
    twin = copy.deepcopy(tree)
    steps = [training_step(model, cl.SGD(model.parameters(), lr=0.01, momentum=0.9)) for model in (tree, twin)]
    x = X.astype(dtype)
    program = cl.capture(steps[0], x, Y)
    steps[1](x, Y)
    scales = [[f for f in model.all_functions() if isinstance(f, Scale | Block)] for model in (tree, twin)]
    for i in range(6):
        x = rng.normal(size=X.shape).astype(dtype)
        if i % 2 and scales[0]:
            which, value = rng.integers(len(scales[0])), float(rng.uniform(0.5, 1.5))
            for of_model in scales:
                of_model[which].s = value
        assert_same_bits(program(x, Y), steps[1](x, Y).data)
        assert_same_parameters(tree, twin)
    assert_same_bits(tree.predict(X), twin(X.astype(dtype)).data)


@pytest.mark.parametrize("seed", range(25))
def test_the_gradients_of_random_trees_are_right_by_graph_and_by_hand(seed):
    rng = np.random.default_rng(seed)
    model = cl.Model([random_tree(rng, 2)], seed=seed)
    assert cl.check_gradients(model, X[:2]) < 1e-4
    model = cl.Model([random_tree(np.random.default_rng(seed), 2)], seed=seed, dtype=np.float64)
    assert cl.check_gradients(lambda x: model(x), X[:2]) < 1e-4
