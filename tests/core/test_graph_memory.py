"""Graphs are freed without the garbage collector, and threads do not mix them."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import caffelite as cl
from tests.core.tensors import Swish, leaf
from tests.reference import assert_same_bits

# ---- memory ----


@pytest.fixture
def disabled_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def graph_of_everything():
    """Return a graph of every kind of operation; weak references to its Tensors and applied Functions."""
    x, linear = leaf(np.ones((4, 3), np.float32)), cl.Linear(3, 3)
    h = Swish()(cl.ReLU()(linear(x)))
    h = ((h @ linear.weight) * h / 2.0 - h**2 + (-h)).reshape(12).reshape(3, 4).T
    y = cl.SoftmaxLoss()(h, [0, 1, 2, 0]) + h.mean() + h.sum(axis=0).sum()
    tensors, stack = {}, [y]
    while stack:
        tensor = stack.pop()
        if tensor is not None and tensor not in tensors:
            tensors[tensor] = None
            stack.extend(tensor.inputs)
    things = [*tensors, *[t.function for t in tensors if t.function is not None]]
    return y, x, [weakref.ref(thing) for thing in things if thing is not x and thing is not linear.weight]


@pytest.mark.usefixtures("disabled_collector")
def test_a_graph_holds_no_reference_cycle():
    y, _x, references = graph_of_everything()
    assert len(references) > 20
    assert all(reference() is not None for reference in references)
    del y
    assert [reference() for reference in references if reference() is not None] == []


@pytest.mark.usefixtures("disabled_collector")
@pytest.mark.parametrize("backward", [True, False], ids=["with backward", "dropped without"])
def test_10_000_graphs_leave_nothing_behind(backward):
    x, w = np.ones((4, 3), np.float32), leaf(np.ones((3, 2), np.float32))

    def make_and_drop(graphs):
        for _ in range(graphs):
            y = cl.SoftmaxLoss()((x @ w).tanh() * 2 + w.mean(axis=0), [0, 1, 0, 1]) + (w * w).sum()
            if backward:
                y.backward()

    make_and_drop(100)
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    make_and_drop(10_000)
    # Not one for a hundred graphs; other threads and Python's free lists may take some.
    assert len(gc.get_objects()) - objects < 100
    assert sys.getallocatedblocks() - blocks < 10_000


@pytest.mark.usefixtures("disabled_collector")
def test_backward_frees_what_it_is_done_with_as_it_goes():
    alive = []

    class Watching(cl.Function):
        def forward(self, x):
            return x * 1

        def backward(self, dy):
            alive.append(sum(reference() is not None for reference in later))
            return dy

    y, later = Watching()(leaf([1.0])), []
    for _ in range(10):
        y = y * 2.0
        later.append(weakref.ref(y))
    y.backward()
    assert alive == [1]  # y itself


def test_backward_frees_the_graph_while_the_result_lives():
    y, x, references = graph_of_everything()
    y.backward()
    assert x.grad is not None
    assert [reference() for reference in references if reference() is not None and reference() is not y] == []


# ---- threads ----


def test_graphs_made_and_walked_in_many_threads_do_not_mix():
    linear = cl.Linear(3, 2)
    linear.weight.requires_grad = linear.bias.requires_grad = False

    def gradient(i):
        x = leaf(np.full((1, 3), i, np.float32))
        for _ in range(50):
            x.zero_grad()
            (Swish()(linear(x)).relu() * float(i)).sum().backward()
        return x.grad

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(gradient, range(8)))
    for i, result in enumerate(results):
        assert_same_bits(result, gradient(i))
