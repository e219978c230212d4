"""The walk back through the graph, and the gradients that it leaves."""

import operator
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import caffelite as cl
from caffelite.program.recording import Recording
from tests.core.tensors import Swish, leaf
from tests.reference import assert_close, assert_same_bits


def elsewhere(function):
    """Return what a function returns in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=60)


def test_shared_inputs_add_up():
    x = leaf([3.0])
    (x * x + x).backward()
    assert x.grad.tolist() == [7]


@pytest.mark.parametrize(
    "expression",
    [
        lambda a, b: (a * 2) + (a + b),
        lambda a, b: (a + b) + (a * 2),
        lambda a, b: (b + a) + (a * 2),
        lambda a, b: (2 * a) + (b + a),
        lambda a, b: (a + b).reshape(1) + (a + a),
    ],
)
def test_one_input_of_several_operations_does_not_disturb_another(expression):
    """PureTorch's aliased gradient buffers made b's gradient 3 here."""
    a, b = leaf([1.0]), leaf([5.0])
    expression(a, b).backward()
    assert a.grad.tolist() == [3]
    assert b.grad.tolist() == [1]


def test_the_gradient_that_backward_is_given_is_left_alone():
    x, dy = leaf([1.0, 2.0]), np.array([1.0, 3.0], np.float32)
    (x + x + x).backward(dy)
    assert dy.tolist() == [1, 3]
    assert x.grad.tolist() == [3, 9]


def test_an_operation_on_the_same_tensor_twice():
    x = leaf([2.0, 3.0])
    (x + x).sum().backward()
    assert x.grad.tolist() == [2, 2]
    x.zero_grad()
    (x - x).sum().backward()
    assert x.grad.tolist() == [0, 0]
    x.zero_grad()
    (x / x).sum().backward()
    assert x.grad.tolist() == [0, 0]


def test_a_diamond_is_walked_once_on_each_side():
    x = leaf([2.0])
    y = x * x
    for _ in range(40):  # 2⁴⁰ paths
        y = y * 0.5 + y * 0.5
    y.backward()
    assert x.grad.tolist() == [4]


def test_a_function_may_be_applied_twice():
    relu, swish = cl.ReLU(), Swish()
    x = leaf([1.0, -1.0, 2.0])
    (relu(x) * 10 + relu(-x) + swish(x) - swish(x)).sum().backward()
    np.testing.assert_allclose(x.grad, [10, -1, 10], atol=1e-6)


def test_a_layer_applied_twice_adds_both_contributions():
    linear = cl.Linear(2, 2)
    a, b = np.array([[1, 2]], np.float32), np.array([[3, 5]], np.float32)
    (linear(a).sum() + 10 * linear(b).sum()).backward()
    assert linear.weight.grad.tolist() == [[31, 31], [52, 52]]
    assert linear.bias.grad.tolist() == [11, 11]


def test_a_loss_applied_twice_before_backward():
    loss, w = cl.SoftmaxLoss(), leaf(np.zeros((2, 3)))
    first = loss(w * 1.0, [0, 1])
    second = loss(w * 2.0, [2, 2])
    first.backward()
    one = np.full((2, 3), 1 / 6) - np.array([[0.5, 0, 0], [0, 0.5, 0]])
    assert_close(w.grad, one, np.float64)
    second.backward()
    assert_close(w.grad, one + 2 * (np.full((2, 3), 1 / 6) - np.array([[0, 0, 0.5]] * 2)), np.float64)


def test_gradients_add_up_over_calls_until_they_are_forgotten():
    x = leaf([1.0, 2.0])
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5, 5]
    x.zero_grad()
    assert x.grad is None
    (x * 4).sum().backward()
    assert x.grad.tolist() == [4, 4]


def test_the_first_contribution_overwrites_the_memory():
    x, w = leaf([1.0, 2.0]), leaf([[1.0, 1.0], [1.0, 1.0]])
    for t in (x, w):
        t.add_grad(np.full(t.shape, np.nan))
        t.zero_grad()
    (x @ w).sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert w.grad.tolist() == [[1, 1], [2, 2]]


def test_add_grad_adds_a_copy():
    x, g = leaf([1.0, 2.0]), np.array([1.0, 1.0], np.float32)
    x.add_grad(g)
    x.add_grad(g)
    assert x.grad.tolist() == [2, 2]
    assert g.tolist() == [1, 1]
    x.add_grad([1, 2])
    assert x.grad.tolist() == [3, 4]
    with pytest.raises(ValueError, match=r"\(2,\)") as raised:
        x.add_grad(np.ones((3,)))
    assert "(3,)" in str(raised.value)
    with pytest.raises(TypeError):
        x.add_grad(np.array(["a", "b"]))
    assert x.grad.tolist() == [3, 4]


@pytest.mark.parametrize("view", [lambda a: a[::-1], lambda a: a.T, lambda a: a[:, ::-1].T], ids=["rows", "T", "both"])
def test_a_view_of_itself_is_assigned_or_added_as_its_copy_would_be(view):
    values = np.arange(9.0).reshape(3, 3)
    p = leaf(values)
    p.data = view(p.data)
    assert (p.data == view(values)).all()
    p.add_grad(values)
    p.add_grad(view(p.grad))
    assert (p.grad == values + view(values)).all()
    memory = np.arange(9.0)
    cl.Tensor(memory[2:8]).data = memory[1:7]
    assert memory.tolist() == [0, 1, 1, 2, 3, 4, 5, 6, 8]


def test_a_gradient_does_not_alias_the_one_that_backward_was_given():
    x, dy = leaf([1.0, 2.0]), np.array([1.0, 1.0], np.float32)
    x.reshape(2).backward(dy)
    x.add_grad(dy)
    assert dy.tolist() == [1, 1]
    dy[...] = 77
    assert x.grad.tolist() == [2, 2]


def test_leaves_do_not_share_one_gradient():
    a, b = leaf([1.0]), leaf([1.0])
    (a + b).backward()
    a.grad[...] = 77
    assert b.grad.tolist() == [1]


def test_backward_without_an_argument_needs_a_single_element():
    x = leaf([1.0, 2.0])
    with pytest.raises(ValueError, match=r"\(2,\)"):
        (x * 2).backward()
    for shape in [(), (1,), (1, 1)]:
        (x.sum().reshape(shape) * 1).backward()
    assert x.grad.tolist() == [3, 3]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 2), (2, 1)])
def test_backward_with_a_gradient_of_another_shape_raises_with_both(shape):
    y = leaf([1.0, 2.0]) * 2
    with pytest.raises(ValueError, match=r"\(2,\)") as raised:
        y.backward(np.ones(shape))
    assert str(shape) in str(raised.value).replace("(2,)", "")


def test_backward_takes_arrays_lists_and_tensors():
    for dy in (np.array([1.0, 2.0]), [1, 2], cl.Tensor([1.0, 2.0]), np.array([1, 2], ">f8")):
        x = leaf([1.0, 1.0])
        (x * 3).backward(dy)
        assert x.grad.tolist() == [3, 6]
        assert x.grad.dtype == np.float32


def test_a_second_backward_through_a_freed_graph_raises():
    x = leaf([1.0])
    y = x * 2
    y.backward()
    with pytest.raises(RuntimeError, match="second"):
        y.backward()
    h = x * 2
    first, second = h * h, h + 1
    first.backward()
    with pytest.raises(RuntimeError, match="second"):
        second.backward()


def test_a_refused_second_backward_leaves_gradients_alone():
    x, z = leaf([1.0]), leaf([1.0])
    h = x * 2
    h.backward()
    x.zero_grad()
    with pytest.raises(RuntimeError, match="second"):
        (z * 3 + h).backward()
    assert x.grad is None
    assert z.grad is None


def test_backward_without_a_graph_raises():
    with pytest.raises(RuntimeError, match="gradient"):
        cl.Tensor([1.0]).backward()
    with cl.no_grad():
        y = leaf([1.0]) * 2
    with pytest.raises(RuntimeError, match="gradient"):
        y.backward()


def test_only_leaves_that_require_it_get_a_gradient():
    x, constant = leaf([1.0]), cl.Tensor([2.0])
    h = x * constant
    (h + constant).backward()
    assert x.grad.tolist() == [2]
    assert constant.grad is None
    assert h.grad is None


def test_an_intermediate_keeps_its_gradient_when_asked():
    x = leaf([1.0, 2.0])
    h = x * 3
    h.retain_grad()
    (h * h).sum().backward()
    assert h.grad.tolist() == [6, 12]
    assert x.grad.tolist() == [18, 36]


def test_operations_on_plain_data_record_nothing():
    y = cl.Tensor([1.0]) * 2 + np.ones(1, np.float32)
    assert not y.requires_grad
    assert y.function is None
    assert y.inputs == ()


def test_an_empty_tensor_goes_back():
    x = leaf(np.zeros((0, 3)))
    ((x * 2).sum() + 1).backward()
    assert x.grad.shape == (0, 3)


def test_a_chain_of_20_000_operations_goes_back():
    x = leaf([1.0])
    y = x
    for _ in range(10_000):
        y = y * 1.0 + 0.0
    y.backward()
    assert x.grad.tolist() == [1]


def test_a_chain_of_20_000_operations_may_be_dropped_and_shown():
    y = leaf([1.0])
    for _ in range(20_000):
        y = -y
    assert "Negative" in repr(y)
    del y


def where_odd(a, b):
    return cl.where([True, False, True], a, b)


@pytest.mark.parametrize("with_gradient", [0, 1])
@pytest.mark.parametrize(
    "operation", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.matmul, where_odd]
)
def test_nothing_is_computed_for_an_operand_without_gradient(operation, with_gradient):
    rng = np.random.default_rng(0)

    def backward(*need):
        operands = [cl.Tensor(rng.uniform(1, 2, (3, 3)), requires_grad=needed) for needed in need]
        y = operation(*operands)
        with Recording() as recording:
            y.backward(np.ones((3, 3)))
        return operands, [entry.name for entry in recording.entries]

    operands, kernels_of_one = backward(with_gradient == 0, with_gradient == 1)
    _, kernels_of_both = backward(True, True)
    assert operands[with_gradient].grad is not None
    assert operands[1 - with_gradient].grad is None
    assert len(kernels_of_one) < len(kernels_of_both)


def test_the_first_layer_computes_no_gradient_of_the_data():
    linear, x = cl.Linear(3, 2), np.ones((4, 3), np.float32)
    y = linear(x)
    with Recording() as recording:
        y.backward(np.ones((4, 2), np.float32))
    assert [entry.name for entry in recording.entries].count("matmul") == 1
    linear.forward(x)
    assert linear.backward(np.ones((4, 2), np.float32)).shape == (4, 3)  # on arrays, everybody wants everything


def test_a_deep_graph_needs_no_recursion():
    limit = sys.getrecursionlimit()
    x = leaf([1.0])
    y = x
    for _ in range(2 * limit):
        y = y + 1
    assert elsewhere(y.backward) is None
    assert x.grad.tolist() == [1]


def test_a_gradient_is_cleared_by_setting_it_to_none():
    t = cl.Tensor([1.0, 2.0], requires_grad=True)
    t.grad = None
    assert t.grad is None
    for _ in range(2):
        (t * t).sum().backward()
        assert t.grad.tolist() == [2, 4]
        t.grad = None
        assert t.grad is None
    optimizer, before = cl.SGD([t], 1.0), t.data.copy()
    optimizer.step()
    assert_same_bits(t.data, before)


def test_a_gradient_may_be_changed_in_place_and_is_set_to_nothing_else():
    t = cl.Tensor([1.0, 2.0], requires_grad=True)
    (t * t).sum().backward()
    t.grad *= 0.5
    assert t.grad.tolist() == [1, 2]
    for value in (np.zeros(2, np.float32), cl.Tensor([0.0, 0.0]), 0, [0, 0]):
        with pytest.raises(TypeError, match=r"Tensor.grad can be set to None only, got .*add_grad\(g\)"):
            t.grad = value
    assert t.grad.tolist() == [1, 2]


def test_a_replay_clears_gradients_that_the_step_sets_to_none():
    w = cl.Tensor(np.ones(2, np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        (w * x).sum().backward()

    program = cl.capture(step, np.array([1, 2], np.float32))
    for x in ([3, 4], [5, 6]):
        program(np.array(x, np.float32))
        assert w.grad.tolist() == x
