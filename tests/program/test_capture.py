"""What a captured step may read and return, and what cannot be recorded."""

import signal
from typing import NamedTuple

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program import program as programs
from tests.conftest import training_step
from tests.program.steps import batch, small_net


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "uint64", "float64"])
def test_a_step_may_be_given_integers_and_read_integers_kept_outside(dtype):
    images, shift, mask = np.arange(12).reshape(3, 4).astype(dtype), np.arange(3).astype(dtype), np.ones((4, 3), bool)
    w = cl.Tensor(np.ones((4, 3)), requires_grad=True, dtype=np.float32)

    def step(x, mask):
        w.zero_grad()
        x = cl.where(mask.T, cl.Tensor(x[:, ::-1], dtype=np.float32), 0)
        loss = (x @ w + cl.Tensor(shift, dtype=np.float32)).sum()
        loss.backward()
        return loss

    program = cl.capture(step, images, mask)
    images, shift[:], mask = images[::-1], shift[::-1] * 3 + 1, np.arange(12).reshape(4, 3) % 2 == 0
    result, gradient = program(images, mask), w.grad.copy()
    assert result == step(images, mask).data
    assert (gradient == w.grad).all()


def test_the_first_result_has_the_types_of_a_replay_and_the_numbers_of_the_step():
    model, by_hand, (x, y) = small_net(), small_net(), batch(0)
    steps = [training_step(net, cl.SGD(net.parameters(), lr=0.1)) for net in (model, by_hand)]
    program = cl.capture(lambda x, y: {"loss": steps[0](x, y), "rows": (len(x), model(x))}, x, y)
    assert program.first["loss"] == steps[1](x, y).data
    np.testing.assert_array_equal(program.first["rows"][1], by_hand(x).data)
    first = program.first["rows"][1].copy()
    for _ in range(3):
        replayed = program(x, y)
        assert type(program.first["loss"]) is type(replayed["loss"]) is np.ndarray
        assert program.first["loss"].shape == replayed["loss"].shape
        assert type(program.first["rows"]) is type(replayed["rows"]) is tuple
        assert program.first["rows"][0] == replayed["rows"][0] == len(x)
        assert type(program.first["rows"][1]) is type(replayed["rows"][1]) is np.ndarray
    np.testing.assert_array_equal(program.first["rows"][1], first)


@pytest.mark.parametrize("dtype", ["float16", ">f4", ">i4"])
def test_a_step_that_is_recorded_says_which_arrays_it_cannot_read(dtype):
    with pytest.raises(TypeError, match=f"{dtype}.*in native byte order, and not in float16"):
        cl.capture(lambda x: cl.Tensor(x) * 2, np.ones(3, dtype))


def test_labels_kept_outside_are_a_constant():
    model, (x, y) = small_net(), batch(0)
    for labels in (y, y.astype(np.int32), np.repeat(y, 2)[::2], np.repeat(y, 2).astype(np.int8)[::2]):
        program = cl.capture(lambda x, labels=labels: cl.SoftmaxLoss()(model(x), labels), x)
        labels[:] = (labels + 1) % 4
        assert program(x) == cl.SoftmaxLoss()(model(x), labels).data
        labels[3] = 7
        with pytest.raises(ValueError, match="label 7 in row 3"):
            program(x)


def test_a_program_inside_a_captured_step_is_a_part_of_it():
    inner = cl.capture(lambda x: kernels.relu(x), np.ones(3, np.float32))
    outer = cl.capture(lambda x: kernels.add(inner(x), 1), np.ones(3, np.float32))
    assert outer(np.array([-5, 2, 3], np.float32)).tolist() == [1, 3, 4]


def test_results_in_tuples_and_dicts_are_copies():
    class Pair(NamedTuple):
        double: np.ndarray
        parts: dict

    def step(x):
        return Pair(kernels.add(x, x), {"negative": [kernels.negative(x)], "none": None})

    program = cl.capture(step, np.ones(2, np.float32))
    first, second = program(np.array([1, 2], np.float32)), program(np.array([3, 4], np.float32))
    assert first.double.tolist() == [2, 4]
    assert first.parts["negative"][0].tolist() == [-1, -2]
    assert second.double.tolist() == [6, 8]
    assert type(first.double) is np.ndarray


def test_indices_may_be_recorded_data():
    table = cl.Tensor(np.arange(12.0).reshape(4, 3), requires_grad=True)

    def look_up(rows, columns):
        table.zero_grad()
        y = table[rows, columns[None, 1:]] * 2.0
        y.sum().backward()
        return y, table.grad

    program = cl.capture(look_up, np.array([[0], [3]]), np.array([0, 1, 2], np.int16))
    rows, columns = np.array([[1], [-1]]), np.array([1, 1, 0], np.int16)
    for replayed, eager in zip(program(rows, columns), look_up(rows, columns), strict=True):
        assert replayed.tobytes() == getattr(eager, "data", eager).tobytes()
    before = table.grad.copy()
    with pytest.raises(IndexError, match="index 3 is out of bounds for an axis of length 3"):
        program(rows, np.array([1, 1, 3], np.int16))
    assert (table.grad == before).all()


def test_an_array_of_indices_that_is_kept_outside_is_read_at_each_replay():
    order, x = np.array([2, 0, 1]), np.arange(3, dtype=np.float32)
    program = cl.capture(lambda x: cl.Tensor(x)[order], x)
    order[:] = [1, 1, 0]
    assert program(x).tolist() == [1, 1, 0]


def test_an_array_of_indices_that_numpy_makes_inside_is_a_constant():
    x = np.arange(3, dtype=np.float32)
    program = cl.capture(lambda x: cl.Tensor(x)[np.arange(2, -1, -1)], x)
    for i in range(10):
        assert program(x + i).tolist() == [2 + i, 1 + i, i]


def test_a_mask_is_not_an_index_of_a_recorded_step():
    x = np.arange(3, dtype=np.float32)
    mask = x > 0
    for index in (lambda x: mask, lambda x: x > 0):
        with pytest.raises(TypeError, match="recorded"):
            cl.capture(lambda x, index=index: cl.Tensor(x)[index(cl.Tensor(x))], x)
    assert cl.capture(lambda x: cl.Tensor(x)[[False, True, True]], x)(x + 1).tolist() == [2, 3]


def test_labels_that_numpy_makes_inside_are_constants():
    model, loss = cl.Model([cl.Linear(batch(0)[0].shape[1], 3)], seed=0), cl.SoftmaxLoss()
    program = cl.capture(lambda x: loss(model(x), np.zeros(len(x), np.int64)), batch(0)[0])
    for seed in range(10):
        x = batch(seed)[0]
        assert program(x).tobytes() == loss(model(x), np.zeros(len(x), np.int64)).data.tobytes()


def test_empty_views_can_be_recorded():
    x = np.arange(3, dtype=np.float32)
    assert cl.capture(lambda x: cl.Tensor(x)[:0].sum(), x)(x) == 0


def test_numbers_and_many_axes_can_be_recorded():
    x = np.arange(64, dtype=np.float32).reshape(2, 2, 2, 2, 2, 2)
    program = cl.capture(lambda x: kernels.multiply(x.transpose(5, 3, 1, 4, 2, 0), 3.0), x)
    assert (program(x + 1) == 3 * (x + 1).transpose(5, 3, 1, 4, 2, 0)).all()


def test_a_ctrl_c_while_recording_waits_for_its_end():
    class Interrupts(cl.Function):
        def forward(self, x):
            signal.raise_signal(signal.SIGINT)
            return x

        def backward(self, dy):
            return dy

    program = programs.Program(lambda x: Interrupts()(x))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            program(np.ones(2, np.float32))
        assert kernels.recorder() is None


def computes_in_numpy(self, x):
    return np.maximum(x, 0)


def reads_a_value(self, x):
    return kernels.multiply(x, x[0, 0].item())


def asks_for_the_sum(self, x):
    return kernels.multiply(x, x.sum())


def escapes(self, x):
    return kernels.multiply(x, np.asarray(x) + 1)


def copies(self, x):
    return kernels.relu(x.copy())


def converts(self, x):
    return kernels.relu(x.astype(np.float32))


def assigns(self, x):
    y = kernels.copy(x)
    y[0] = 1
    return y


def formats(self, x):
    return kernels.multiply(x, float(f"{kernels.sum(x):.3f}"))


def returns_what_numpy_made(self, x):
    return np.asarray(x) * 2


def capture_and_call(step, forward):
    program = cl.capture(step, batch(0)[0])
    for seed in (1, 2):
        assert program(batch(seed)[0]).tobytes() == np.asarray(forward(batch(seed)[0])).tobytes()


@pytest.mark.parametrize(
    "forward",
    [
        computes_in_numpy,
        reads_a_value,
        asks_for_the_sum,
        escapes,
        copies,
        converts,
        assigns,
        formats,
        returns_what_numpy_made,
    ],
)
def test_a_function_that_computes_outside_kernels_raises(forward):
    members = {"forward": forward, "backward": lambda self, dy: dy}
    false = type("False_", (cl.Function,), members, recordable=True)
    with pytest.raises(TypeError, match=r"recorded|differs from the one before"):
        capture_and_call(lambda x: false()(x), lambda x: forward(None, x))
    assert kernels.recorder() is None
    honest = type("Honest", (cl.Function,), members)
    program = cl.capture(lambda x: honest()(x), batch(0)[0])
    x = batch(1)[0]
    assert program(x).tobytes() == np.asarray(forward(None, x)).tobytes()


@pytest.mark.parametrize(
    "step",
    [
        lambda w: w.data.__isub__(1),
        lambda w: w.grad.__imul__(0),
        lambda w: w.item(),
        lambda w: float(w),
        lambda w: w > 0,
        lambda w: np.asarray(w.numpy()[...] + 1),
    ],
)
def test_reading_or_writing_parameters_with_numpy_in_a_recorded_step_raises(step):
    w = cl.Tensor(1.0, requires_grad=True)
    w.add_grad(1.0)
    with pytest.raises(TypeError, match="recorded"):
        cl.capture(lambda x: (step(w), kernels.relu(x))[1], np.ones(2, np.float32))
    assert kernels.recorder() is None


def test_capture_names_all_lines_that_a_replay_would_not_repeat_at_once():
    made = []

    def step(x):
        largest = x.max()
        y = cl.Tensor(x) * float(largest)
        made.append(np.exp(x))
        return y

    first = step.__code__.co_firstlineno
    with pytest.raises(TypeError) as caught:
        cl.capture(step, np.ones(2, np.float32))
    assert all(f"test_capture.py:{first + i})" in str(caught.value) for i in (1, 3)), caught.value
    assert len(made) == 1  # the step was made, as by hand


def test_an_optimizer_that_rebinds_its_state_raises():
    class Rebinding(cl.Optimizer, recordable=True):
        def __init__(self, parameters):
            super().__init__(parameters, lr=0.1)
            self.velocity = [np.zeros(p.shape, p.dtype) for p in self.parameters]

        def step(self):
            for i, p in enumerate(self.parameters):
                self.velocity[i] = kernels.add(kernels.multiply(self.velocity[i], 0.9), p.grad)
                kernels.subtract(p.data, self.velocity[i], p.data)

    model = small_net()
    program = cl.capture(training_step(model, Rebinding(model.parameters())), *batch(0))
    with pytest.raises(TypeError, match="NumPy made inside"):
        program(*batch(1))


def test_a_recorded_array_is_an_ordinary_one_after_the_recording():
    loss = cl.SoftmaxLoss()
    x, y = batch(0, rows=5)
    cl.capture(lambda x, y: loss.forward(kernels.matmul(x, x.T), y), x, y)
    assert loss.probabilities.sum() == pytest.approx(5, rel=1e-5)
    assert float(loss.probabilities[0, 0]) >= 0


def test_other_shapes_dtypes_and_counts_raise():
    program = cl.capture(lambda x: kernels.relu(x), np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(3, 2\)"):
        program(np.zeros((3, 2), np.float32))
    with pytest.raises(TypeError, match=r"float32.*float64"):
        program(np.zeros((2, 3)))
    with pytest.raises(TypeError, match="1 arrays, got 2"):
        program(np.zeros((2, 3), np.float32), np.zeros(1))
