"""Versions: values that change between forward and backward are noticed."""

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite import functions
from tests.core.tensors import Swish, leaf
from tests.reference import assert_same_bits


class Descent(cl.Optimizer):
    """A user's optimizer, in NumPy."""

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data[...] -= self.lr * p.grad


def make_step(optimizer):
    def change(p):
        p.add_grad(np.ones(p.shape))
        optimizer([p], lr=0.1).step()
        p.zero_grad()

    return change


def assign(p):
    p.data = p.data + 1


CHANGES = {
    "SGD.step": make_step(cl.SGD),
    "a user's step": make_step(Descent),
    "p.data =": assign,
    "detached.data =": lambda p: assign(p.detach()),
    "view.data =": lambda p: assign(p.reshape(p.size)),
    "Tensor(p).data =": lambda p: assign(cl.Tensor(p)),
}
every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
KEEPING = {
    "p * p": lambda p: p * p,
    "p * 2": lambda p: p * cl.Tensor(np.ones((2, 2)), requires_grad=True),
    "1 / p": lambda p: 1 / p,
    "p ** 3": lambda p: p**3,
    "2 ** p": lambda p: 2**p,
    "p @ p": lambda p: p @ p,
    "a @ p": lambda p: leaf(np.ones((3, 2))) @ p,
    "of a view": lambda p: p.reshape(4) * leaf(np.ones(4)),
    "of a view of a view": lambda p: p.reshape(4).reshape(2, 2).T @ leaf(np.ones((2, 2))),
    "a user's Function": lambda p: Swish()(p),
    "in the middle": lambda p: (p * p) * 2 + 1,
    "relu of a sum, times p": lambda p: (p + 1).relu() * p,
}


@every_change
@pytest.mark.parametrize("operation", KEEPING.values(), ids=KEEPING)
def test_values_changed_after_a_forward_that_kept_them_are_noticed(operation, change):
    p = leaf(np.full((2, 2), 1.5), name="p")
    y = operation(p)
    change(p)
    with pytest.raises(RuntimeError, match="changed"):
        y.backward(np.ones(y.shape))


NOT_KEEPING = {
    "p + p": lambda p: p + p,
    "a + p": lambda p: leaf(np.ones((2, 2))) + p,
    "p - 1": lambda p: p - 1,
    "-p": lambda p: -p,
    "sum": lambda p: p.sum(),
    "mean": lambda p: p.mean(axis=0),
    "reshape": lambda p: p.reshape(4),
    "transpose": lambda p: p.T,
    "relu keeps its output": lambda p: p.relu(),
}


@every_change
@pytest.mark.parametrize("operation", NOT_KEEPING.values(), ids=NOT_KEEPING)
def test_values_that_no_backward_needs_may_change(operation, change):
    p, before = leaf(np.full((2, 2), 1.5)), leaf(np.full((2, 2), 1.5))
    y, expected = operation(p), operation(before)
    change(p)
    y.backward(np.ones(y.shape))
    expected.backward(np.ones(y.shape))
    assert_same_bits(p.grad, before.grad)


def test_a_changed_output_that_its_own_function_kept_is_noticed():
    for operation in (lambda x: x.relu(), lambda x: 1 / x, lambda x: x**2.5):
        x = leaf([1.0, 2.0])
        y = operation(x)
        y.data = [-1, -1]
        with pytest.raises(RuntimeError, match="changed"):
            y.sum().backward()


def test_a_function_that_returns_its_input_shares_its_version():
    class Identity(cl.Function):
        def forward(self, x):
            return x

        def backward(self, dy):
            return dy

    x = leaf([1.0, 2.0])
    y = Identity()(x)
    z = (y * y).sum()
    x.data = [5, 5]
    with pytest.raises(RuntimeError, match="changed"):
        z.backward()


def notices_a_change(function, keep):
    """Whether backward refuses a graph of a Function that keeps its input in some way, and whose input changed."""
    function.keep = keep
    x = leaf([1.0, 2.0])
    y = function(x).sum()
    x.data = [5, 5]
    try:
        y.backward()
    except RuntimeError as error:
        if "changed" not in str(error):
            raise
        return True
    return False


def test_values_that_a_users_function_keeps_anywhere_are_noticed():
    class Square(cl.Function):
        def forward(self, x):
            self.kept = self.keep(x)
            return x * x

        def backward(self, dy):
            return dy

    for keep in (lambda x: [x], lambda x: {"x": (x,)}, cl.Tensor, lambda x: lambda: x, lambda x: iter([x])):
        assert notices_a_change(Square(), keep)


def test_values_that_a_declared_function_keeps_in_a_container_are_noticed():
    class Square(cl.Function, recordable=True):
        def forward(self, x):
            self.kept = self.keep(x)
            return kernels.multiply(x, x)

        def backward(self, dy):
            return dy

    for keep in (lambda x: [x], lambda x: ((x,), 1), lambda x: {"x": x}, lambda x: [{"a": (x,)}]):
        assert notices_a_change(Square(), keep)
    assert not notices_a_change(Square(), lambda x: None)


def test_a_class_that_overrides_nothing_keeps_what_its_base_keeps():
    relu = type("MyReLU", (cl.ReLU,), {})()
    assert not notices_a_change(relu, None)  # it keeps its output
    assert notices_a_change(type("MyLog", (functions.Log,), {})(), None)


def test_parameters_that_a_step_changed_before_it_failed_are_noticed():
    class Failing(cl.Optimizer):
        def step(self):
            self.parameters[0].data[...] = -99
            raise OSError("disk full")

    p = leaf([1.0, 2.0])
    y = (p * p).sum()
    p.add_grad([1, 1])
    with pytest.raises(OSError, match="disk full"):
        Failing([p], lr=0.1).step()
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()


@pytest.mark.parametrize("frozen", [True, False])
def test_a_view_of_a_parameter_shares_its_version(frozen):
    class Row(cl.Function):
        def __init__(self):
            self.table = cl.Tensor(np.ones((2, 3)), requires_grad=not frozen)

        def parameters(self):
            return [self.table]

        def forward(self):
            return self.table.data[0]

        def backward(self, dy):
            return ()

    row, w = Row(), leaf(np.ones(3))
    with cl.no_grad():
        y = row()
    z = (w * y).sum()
    row.table.data = np.full((2, 3), 50)
    with pytest.raises(RuntimeError, match="changed"):
        z.backward()


def test_a_parameter_that_is_the_result_shares_its_version():
    class Itself(cl.Function):
        def __init__(self):
            self.w = cl.Tensor(np.ones(3))

        def parameters(self):
            return [self.w]

        def forward(self, x):
            return self.w.data

        def backward(self, dy):
            return dy * 0

    itself, u = Itself(), leaf(np.ones(3))
    z = (itself(cl.Tensor(np.ones(3))) * u).sum()
    itself.w.data = np.full(3, 5)
    with pytest.raises(RuntimeError, match="changed"):
        z.backward()


def test_memory_that_a_tensor_has_left_is_still_watched():
    x, w = cl.Tensor(np.ones(3)), leaf(np.ones(3))
    view = x.detach()
    y = (w * x).sum()
    x.requires_grad = True  # which gives it memory of its own
    view.data = np.full(3, 9)
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()


def test_a_backward_that_returns_too_many_or_too_few_gradients_raises():
    class Pair(cl.Function):
        def forward(self, a, b):
            return a + b

        def backward(self, dy):
            return self.gradients * (dy,)

    for gradients in (1, 3):
        pair = Pair()
        pair.gradients = gradients
        with pytest.raises(ValueError, match=f"{gradients} gradients for 2 inputs"):
            pair(leaf([1.0]), leaf([2.0])).backward()


def test_a_change_is_noticed_though_the_function_refers_to_itself():
    class Selfish(cl.Function):
        def forward(self, x):
            self.me, self.x = self, x
            return x * 1

        def backward(self, dy):
            return dy

    x = leaf([1.0, 2.0])
    y = Selfish()(x)
    x.data = [5, 5]
    with pytest.raises(RuntimeError, match="changed"):
        y.sum().backward()


def test_layers_notice_their_parameters_changes():
    x = np.ones((2, 3), np.float32)
    for change in (
        lambda linear: linear.initialize(1),
        lambda linear: assign(linear.weight),
        lambda linear: cl.Model([linear]).load_state_dict(cl.Model([cl.Linear(3, 2)]).state_dict()),
        lambda linear: make_step(cl.SGD)(linear.weight),
        lambda linear: make_step(Descent)(linear.weight),
    ):
        linear = cl.Linear(3, 2)
        y = linear(x).sum()
        change(linear)
        with pytest.raises(RuntimeError, match="weight"):
            y.backward()


def test_a_backward_that_raises_for_a_change_leaves_gradients_alone():
    p, q = leaf([1.0, 2.0]), leaf([1.0, 2.0])
    y = (q * 3.0 + p * p).sum()
    assign(p)
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()
    assert q.grad is None
    assert p.grad is None


def test_unchanged_values_raise_no_alarm():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    y = (x * w).sum()
    other = leaf([0.0, 0.0])
    assign(other)
    x.zero_grad()
    x.add_grad([1, 1])
    y.backward()
    assert w.grad.tolist() == [1, 2]
    assert x.grad.tolist() == [4, 5]
