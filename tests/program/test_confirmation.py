"""Where a user's Python decides what a step does, two steps in a row do the same before the third is a replay."""

import os
import tracemalloc
from contextvars import ContextVar

import numpy as np
import pytest

import caffelite as cl

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)


class Net(cl.Model):
    """A model with a `call` of its own."""

    def __init__(self):
        super().__init__(seed=0)
        self.layer, self.factor = cl.Linear(4, 2), 1.0

    def call(self, x):
        return self.layer(x) * self.factor


@pytest.fixture
def records(monkeypatch):
    """Return a list that grows with each step that a Program runs in Python."""
    calls, record = [], cl.Program.record
    monkeypatch.setattr(cl.Program, "record", lambda *given: calls.append(given) or record(*given))
    return calls


def fit(model, steps, loss=None, **options):
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    loss = loss or (lambda o, y: (o * o).mean())
    return model.fit(X, X, loss=loss, optimizer=optimizer, epochs=steps, batch_size=8, verbose=0, **options)


def test_two_steps_and_one_at_each_doubling_run_in_python(records):
    fit(Net(), 1000)
    assert len(records) == 2 + 8  # before the replays 1 to 2, 3 to 6, 7 to 14, …


def test_the_third_prediction_is_a_replay(records):
    model = Net()
    for _ in range(4):
        np.testing.assert_array_equal(model.predict(X), model(X).data)
    assert len(records) == 2


def test_layers_of_caffelite_are_recorded_in_their_first_step(records):
    model = cl.Model([cl.Linear(4, 2), cl.ReLU()], seed=0)
    for _ in range(100):
        model.predict(X)
    assert len(records) == 1


def test_a_number_that_differs_is_named_with_its_line():
    def loss(o, y):
        return (o * o).mean() * (1 + os.urandom(1)[0])

    line = loss.__code__.co_firstlineno + 1
    with pytest.warns(cl.NotRecorded, match="the kernel multiply with another number") as caught:
        history = fit(Net(), 12, loss)
    assert len(caught) == 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)
    assert len(set(history["loss"])) == 12


def test_a_first_step_may_prepare_something_that_cannot_be_seen():
    prepared = ContextVar("prepared", default=False)

    def loss(o, y):
        factor = 1.0 if prepared.get() else 2.0
        prepared.set(True)
        return (o * o).mean() * factor

    history = fit(Net(), 5, loss)  # warnings are errors
    assert history["loss"][0] > 1.9 * history["loss"][1]


def test_a_difference_after_replays_says_how_many_steps_may_be_wrong():
    step = ContextVar("step", default=0)

    def loss(o, y):
        step.set(step.get() + 1)
        return (o * o).mean() * (1.0 if step.get() < 3 else 2.0)

    with pytest.warns(cl.NotRecorded, match="The numbers of the last 2 steps, which were replayed, may be wrong"):
        fit(Net(), 20, loss)


def test_a_state_that_cannot_be_seen_is_compared_after_each_callback():
    state = ContextVar("state")

    def loss(o, y):
        return (o * o).mean() * float(state.get())

    def change(epoch, history):
        state.set(1 + epoch // 7)

    losses = []
    for by_hand in (False, True):
        state.set(1)
        model = Net()
        if by_hand:
            optimizer, history = cl.SGD(model.parameters(), lr=0.1), []
            for epoch in range(30):
                optimizer.zero_grad()
                value = loss(model(X), X)
                value.backward()
                optimizer.step()
                history.append(value.item())
                change(epoch, None)
            losses.append(history)
        else:
            losses.append(fit(model, 30, loss, callbacks=[change], shuffle=False)["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_constants_of_numpy_are_confirmed_by_other_inputs():
    def step(x):
        return cl.Tensor(x) * np.float32(np.asarray(x)[0] > -9)

    program = cl.capture(step, X)
    np.testing.assert_array_equal(program(X + 1), step(X + 1).data)
    with pytest.raises(TypeError, match="perhaps of the step's inputs"):  # the code has `asarray`
        program(X + 2)


def test_a_constant_of_numpy_stays_one_while_the_inputs_change():
    program = cl.capture(lambda x: cl.Tensor(x) * np.linspace(0, 1, x.shape[1], dtype=np.float32), X)
    for i in range(10):
        np.testing.assert_array_equal(program(X + i), (X + i) * np.linspace(0, 1, 4, dtype=np.float32))
    assert program.replays_left > 0


def test_an_array_that_the_step_changes_in_place_between_two_kernels_is_seen():
    factor = np.ones(100, np.float32)

    def step(x):
        factor[...] += 1
        return cl.Tensor(x) * factor[:4]

    program = cl.capture(lambda x: cl.Tensor(x) * factor[:4], X)
    for _ in range(3):
        factor[...] += 1  # from outside: each replay reads it
        np.testing.assert_array_equal(program(X), X * factor[:4])
    with pytest.raises(TypeError, match=r"changes .* in place in Python"):
        cl.capture(step, X)


@pytest.mark.parametrize("attribute", ["call", "scale"])
def test_a_method_or_property_that_is_replaced_in_the_class_takes_effect(attribute):
    class Multiplier(Net):
        @property
        def scale(self):
            return 2.0

        def call(self, x):
            return self.layer(x) * self.scale

    model = Multiplier()
    for _ in range(4):
        model.predict(X)
    if attribute == "call":
        Multiplier.call = lambda self, x: self.layer(x) * 3.0
    else:
        Multiplier.scale = property(lambda self: 3.0)
    np.testing.assert_array_equal(model.predict(X), (model.layer(X) * 3.0).data)


def test_defaults_of_a_function_that_are_replaced_take_effect():
    def scale(x, factor=2.0):
        return x * factor

    class Multiplier(Net):
        def call(self, x):
            return scale(self.layer(x))

    model = Multiplier()
    for _ in range(4):
        model.predict(X)
    scale.__defaults__ = (3.0,)
    np.testing.assert_array_equal(model.predict(X), (model.layer(X) * 3.0).data)


def test_predictions_with_an_object_of_a_library_run_in_python_with_one_warning():
    class Multiplier(Net):
        def call(self, x):
            return self.layer(x) * float(self.state.get())

    model = Multiplier()
    model.state = ContextVar("state", default=1)
    with pytest.warns(cl.NotRecorded, match="it reads state, whose changes can't be seen"):
        model.predict(X)
    for factor in (2, 3, 4, 5):
        model.state.set(factor)
        np.testing.assert_array_equal(model.predict(X), (model.layer(X) * float(factor)).data)


class Config:
    scale = 1.0


class Switch(cl.Function):
    """Returns x. Each replay calls it in Python, and its fortieth call changes the scale that a model reads."""

    def __init__(self, config):
        self.config, self.calls = config, [0]

    def forward(self, x):
        self.calls[0] += 1
        if self.calls[0] == 40:
            self.config.scale = 3.0
        return x

    def backward(self, dy):
        return dy


def test_a_function_that_replays_call_may_change_what_the_step_reads():
    class SwitchNet(Net):
        def __init__(self, config):
            super().__init__()
            self.config, self.switch = config, Switch(config)

        def call(self, x):
            return self.switch(self.layer(x) * self.config.scale)

    by_hand, by_fit = SwitchNet(Config()), SwitchNet(Config())
    optimizer = cl.SGD(by_hand.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        y = by_hand(X)
        (y * y).mean().backward()
        optimizer.step()
    with pytest.warns(cl.NotRecorded, match="each replay calls changes a value that the step reads"):
        fit(by_fit, 60)
    np.testing.assert_array_equal(by_fit.layer.weight.data, by_hand.layer.weight.data)


class Mask(cl.Function):
    def forward(self, x, mask):
        self.mask = mask
        return x * mask

    def backward(self, dy):
        return dy * self.mask, None


def test_an_array_that_numpy_makes_for_a_users_function_is_compared():
    class MaskNet(Net):
        def __init__(self):
            super().__init__()
            self.mask = Mask()

        def call(self, x):
            return self.mask(self.layer(x), (np.asarray(x.data) > 0).astype(np.float32)[:, :2])

    model, batches = MaskNet(), np.random.default_rng(0).standard_normal((8, 8, 4)).astype(np.float32)
    with pytest.warns(cl.NotRecorded):
        outputs = [model.predict(x) for x in batches]
    for x, y in zip(batches, outputs, strict=True):
        np.testing.assert_array_equal(y, model(x).data)


def test_an_array_with_a_mask_is_not_compared_by_its_values_alone():
    class TableNet(Net):
        def call(self, x):
            return self.layer(x) * float(self.table.mean())

    model = TableNet()
    model.table = np.ma.MaskedArray(np.float32([1, 5]), mask=[False, False])
    with pytest.warns(cl.NotRecorded, match="it reads table"):
        before = model.predict(X)
    model.table[1] = np.ma.masked
    np.testing.assert_allclose(model.predict(X), before / 3, rtol=1e-6)


def test_a_program_in_another_recording_is_watched_as_a_part_of_it():
    config = Config()
    inner = cl.capture(lambda x: cl.Tensor(x) * config.scale, X)
    outer = cl.capture(lambda x: inner(x), X)
    for _ in range(4):
        outer(X)
    config.scale = 4.0
    np.testing.assert_array_equal(outer(X), X * 4)


def test_a_large_constant_is_not_copied_for_each_kernel_that_reads_it():
    table = np.ones((1 << 20, 4), np.float32)  # 16 MiB

    def step(x):
        h = cl.Tensor(x)
        return sum([(h @ table[:4]).sum() for _ in range(5)])

    program = cl.capture(step, X)
    tracemalloc.start()
    try:
        for _ in range(20):
            program(X)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20


def test_a_constant_is_confirmed_only_by_other_inputs():
    program = cl.capture(lambda x: cl.Tensor(x) * np.linspace(0, 1, 4, dtype=np.float32), X)
    for _ in range(5):
        program(X)
    assert program.replays_left == 0  # NumPy may have made the constant of these inputs
    program(X + 1)
    assert program.replays_left > 0


def test_an_array_too_large_to_watch_that_the_step_changes_for_a_kernel_is_seen():
    table = np.ones((1 << 17, 4), np.float32)  # 2 MiB

    def step(x):
        table[...] += 1
        return cl.Tensor(x) * table[:1]

    program = cl.capture(step, X)
    with pytest.raises(TypeError, match="changes an array in place in Python"):
        program(X)
