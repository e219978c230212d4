"""What changes between steps: a replay sees it, or is recorded again."""

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.conftest import training_step
from tests.program.steps import batch, small_net


def test_a_learning_rate_set_later_takes_effect():
    model = small_net()
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    program = cl.capture(training_step(model, optimizer), *batch(0))
    before = model.state_dict()
    optimizer.lr = 0.0
    program(*batch(1))
    assert all((before[name] == values).all() for name, values in model.state_dict().items())


def test_a_learning_rate_set_inside_a_recorded_step_raises():
    optimizer = cl.SGD([cl.Tensor(1.0, requires_grad=True)], lr=0.1)

    def step(x):
        optimizer.lr = optimizer.lr / 2
        return kernels.relu(x)

    with pytest.raises(TypeError, match="lr was set"):
        cl.capture(step, np.ones(2, np.float32))
    assert optimizer.lr == 0.1


@pytest.mark.parametrize("change", ["assign", "load", "initialize", "add", "freeze"])
def test_a_program_never_answers_with_old_parameters(change):
    model, other = small_net(), small_net(seed=1)
    program = cl.capture(lambda x: model(x), batch(0)[0])
    x = batch(1)[0]
    program(x)
    if change == "assign":
        model.parameters()[0].data = np.ones((3, 8))
    elif change == "load":
        model.load_state_dict(other.state_dict())
    elif change == "initialize":
        model.initialize(7)
    elif change == "add":
        model.add(cl.Linear(4, 2))
    else:
        model.parameters()[0].requires_grad = False
    assert program(x).tobytes() == model.forward(x).tobytes()
    assert model.predict(x).tobytes() == model.forward(x).tobytes()


def make_subclass(base):
    """Return a class that overrides nothing."""
    return type("Child", (base,), {})


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("make", [cl.Linear, make_subclass(cl.Linear)])
def test_a_program_never_answers_with_replaced_parameters(make, by_hand):
    layer, x = make(3, 2), batch(0)[0]
    program = cl.capture(layer.forward if by_hand else layer, x)
    layer.weight = cl.Tensor(np.zeros((3, 2), np.float32), requires_grad=True)
    layer.bias = cl.Tensor(np.ones(2, np.float32), requires_grad=True)
    assert (program(x) == 1).all()


def test_an_optimizer_that_overrides_nothing_steps_the_parameters_it_has_now():
    old, new = (cl.Tensor(np.ones(3), requires_grad=True) for _ in range(2))
    optimizer = make_subclass(cl.SGD)([old], lr=0.1)

    def step(x):
        for p in (old, new):
            p.zero_grad()
            (p * x).sum().backward()
        optimizer.step()

    program = cl.capture(step, np.ones(3))
    optimizer.__init__([new], lr=0.1)
    program(np.ones(3))
    assert old.data.tolist() == [0.9] * 3
    assert new.data.tolist() == [0.9] * 3


@pytest.mark.parametrize("read", [cl.Tensor.detach, cl.Tensor])
def test_a_view_of_a_parameter_follows_it(read):
    w, x = cl.Tensor([1.0, 2.0]), np.ones(2, np.float32)
    program = cl.capture(lambda x: cl.Tensor(x) * read(w), x)
    w.requires_grad = True  # which moves it
    w.data = [3, 4]
    assert program(x).tolist() == [3, 4]


def test_a_replay_that_stops_has_changed_what_it_changed():
    w = cl.Tensor(np.ones(3, np.float32), requires_grad=True)

    def step(x, index):
        w.data = x
        return cl.Tensor(x)[index]

    program = cl.capture(step, np.ones(3, np.float32), np.array([0]))
    y = (w * w).sum()
    with pytest.raises(IndexError, match="7 is out of bounds"):
        program(np.full(3, 5, np.float32), np.array([7]))
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()


def test_a_gradient_that_is_not_finite_is_named_in_a_replay_that_forgets_it_later():
    w = cl.Tensor(np.ones(3, np.float32), requires_grad=True, name="w")
    optimizer = cl.SGD([w], lr=0.1)

    def step(x):
        optimizer.zero_grad()
        (w * cl.Tensor(x)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    program = cl.capture(step, np.ones(3, np.float32))
    with pytest.raises(cl.TrainingDiverged, match=r"parameter 0, w \(3,\), is not finite"):
        program(np.float32([np.inf, 1, 1]))


def test_numpy_cannot_read_a_tensor_of_a_recorded_step():
    x = np.ones(3, np.float32)
    for read in (np.asarray, np.array, np.float32):
        with pytest.raises(TypeError, match="recorded"):
            cl.capture(lambda x, read=read: read(cl.Tensor(x) * 2.0) is None, x)


def test_a_frozen_parameter_stays_in_later_fits():
    model = small_net()
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = batch(0, rows=40)
    options = {"loss": cl.SoftmaxLoss(), "optimizer": optimizer, "verbose": 0}
    model.fit(x, y, **options)
    frozen = model.parameters()[0]
    frozen.requires_grad = False
    before = frozen.data.copy()
    model.fit(x, y, epochs=3, **options)
    assert (frozen.data == before).all()


def test_a_constant_kept_outside_is_read_at_each_replay():
    shift = np.zeros(3, np.float32)
    program = cl.capture(lambda x: kernels.add(x, shift), np.zeros(3, np.float32))
    shift[:] = 7
    assert program(np.ones(3, np.float32)).tolist() == [8, 8, 8]


def test_versions_move_on_with_replays():
    model = small_net()
    program = cl.capture(training_step(model, cl.SGD(model.parameters(), lr=0.1)), *batch(0))
    x, y = batch(1)
    value = cl.SoftmaxLoss()(model(x), y)
    program(x, y)
    with pytest.raises(RuntimeError, match="changed since its forward"):
        value.backward()


class Scaling(cl.Function, recordable=True):
    """s · x, with a number that may be set at any time."""

    def __init__(self, s):
        self.s = s

    def forward(self, x):
        return kernels.multiply(x, self.s)

    def backward(self, dy):
        return kernels.multiply(dy, self.s)


class NumPyScaling(cl.Function):
    def __init__(self, s):
        self.s = s
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * np.float32(self.s * self.calls)

    def backward(self, dy):
        return dy * np.float32(self.s)


@pytest.mark.parametrize("function", [Scaling, NumPyScaling])
def test_an_attribute_of_a_function_set_later_takes_effect(function):
    model = cl.Model([cl.Linear(3, 3), function(2.0)], seed=0)
    x = batch(0)[0]
    for s in (2.0, 3.0, 0.5):
        model.functions[1].s = s
        for _ in range(3):  # an attribute that a call sets on its copy does not reach the next call
            assert model.predict(x).tobytes() == model.forward(x).tobytes()


def test_a_layer_or_an_optimizer_that_is_changed_is_recorded_again():
    x, y = batch(0)
    replayed, eager = small_net(), small_net()
    first, second = [cl.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (replayed, eager)]
    program, step = cl.capture(training_step(replayed, first), x, y), training_step(eager, second)
    step(x, y)
    for optimizer in (first, second):
        optimizer.keep("velocity")
    assert program(x, y) == step(x, y).data
    for optimizer in (first, second):
        optimizer.__init__(optimizer.parameters[2:], lr=0.1, momentum=0.9)
    assert program(x, y) == step(x, y).data
    for model in (replayed, eager):
        model.functions[2].bias = None
    assert program(x, y) == step(x, y).data
    for model in (replayed, eager):
        model.functions[1] = Scaling(0.5)
    assert program(x, y) == step(x, y).data
    assert [p.data.tobytes() for p in replayed.parameters()] == [p.data.tobytes() for p in eager.parameters()]


def test_models_of_the_same_functions_in_another_order_differ():
    a, b, c = (cl.Linear(3, 3) for _ in range(3))
    model, x = cl.Model([cl.Model([a, b]), c]), batch(0)[0]
    model.predict(x)
    model.functions[:] = [cl.Model([b, a]), c]
    assert model.predict(x).tobytes() == model.forward(x).tobytes()


def test_predict_and_evaluate_leave_gradients_alone():
    model, (x, y) = small_net(), batch(0)
    optimizer, loss = cl.SGD(model.parameters(), lr=0.1), cl.SoftmaxLoss()
    model.predict(x)
    loss(model(x), y).backward()
    model.predict(x)
    assert all(p.grad is not None for p in model.parameters())
    optimizer.zero_grad()
    model.predict(x)
    model.evaluate(x, y, loss=loss)
    assert all(p.grad is None for p in model.parameters())


def test_a_program_does_not_hold_for_another_mode():
    class Doubles(cl.Function, recordable=True):
        def forward(self, x):
            return kernels.multiply(x, 2 if cl.is_training() else 1)

        def backward(self, dy):
            return dy

    program, x = cl.capture(lambda x: Doubles()(x), np.ones(2, np.float32)), np.ones(2, np.float32)
    with cl.inference():
        assert program(x).tolist() == [1, 1]
    assert program(x).tolist() == [2, 2]


def test_a_parameter_that_is_given_a_view_of_itself_is_replayed():
    p = cl.Tensor(np.arange(6.0), requires_grad=True)
    program = cl.capture(lambda x: setattr(p, "data", p.data[::-1]), np.zeros(1))
    assert p.data.tolist() == [5, 4, 3, 2, 1, 0]
    program(np.zeros(1))
    assert p.data.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_stop_in_a_replay_does_not_run_the_step_again():
    counted = []

    class Counts(cl.Function):
        def forward(self, x):
            counted.append(1)
            return x

        def backward(self, dy):
            return dy

    model = cl.Model([cl.Linear(3, 4), Counts()], seed=0)
    program = cl.capture(training_step(model, cl.SGD(model.parameters(), lr=0.1)), *batch(0))
    before = len(counted)
    with pytest.raises(cl.TrainingDiverged):
        program(batch(0)[0] * np.float32(np.nan), batch(0)[1])
    assert len(counted) == before + 1


def test_a_metric_may_evaluate_the_model_that_is_trained():
    model, (x, y) = small_net(), batch(0, rows=40)
    seen = []

    def on_everything(outputs, targets):
        seen.append(model.evaluate(x, y, loss=cl.SoftmaxLoss())["loss"])
        return seen[-1]

    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1), "verbose": 0}
    history = model.fit(x, y, epochs=3, batch_size=10, metrics=[on_everything], **options)
    assert history["on_everything"] == seen
    assert len(seen) == 3
