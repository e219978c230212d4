"""cl.fit_many: each model's bits are those of its lone fit, on any number of threads."""

import contextlib
import itertools
import re
import signal
import threading
import warnings

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program import Program
from tests.conftest import bits
from tests.model.many_models import (
    MODELS,
    OPTIMIZERS,
    ROWS,
    Swish,
    assert_alike,
    data,
    entries,
    lone,
    many,
    small_models,
)


@pytest.mark.filterwarnings("ignore:the schedule of the learning rate has 6 steps")
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [*[(model, "Adam") for model in MODELS], *[("plain", other) for other in OPTIMIZERS if other != "Adam"]],
)
def test_each_model_has_the_bits_of_its_lone_fit(threads, model, optimizer):
    x, y = data()
    alone, together = entries(model, optimizer), entries(model, optimizer)
    for options in ({}, {"seed": 5}, {"shuffle": False}):  # one after the other: then there is something in all of them
        options = {"epochs": 3, "batch_size": 16, **options}
        assert many(*together, x, y, **options) == lone(*alone, x, y, **options)
        assert_alike(together, alone)


def test_a_schedule_with_fewer_steps_than_the_training_is_a_warning():
    x, y = data()
    steps = 2 * -(-len(x) // 16)
    for length, warns in ((steps, 0), (steps - 1, 1)):
        models = [MODELS["plain"](0)]
        optimizers = [cl.SGD(models[0].parameters(), lr=cl.schedules.cosine(0.1, length))]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            many(models, optimizers, x, y, epochs=2, batch_size=16)
        assert [f"makes {steps}: the last 1 have rate 0" in str(w.message) for w in caught] == [True] * warns


def test_they_go_on_with_fit_and_predict(threads):
    x, y = data()
    alone, together = entries("plain", "Adam"), entries("plain", "Adam")
    lone(*alone, x, y, epochs=2)
    many(*together, x, y, epochs=2)
    for these, those in zip(zip(*alone, strict=True), zip(*together, strict=True), strict=True):
        assert np.array_equal(these[0].predict(x), those[0].predict(x))
    assert lone(*alone, x, y, epochs=2) == lone(*together, x, y, epochs=2)
    assert_alike(together, alone)


def test_models_of_all_kinds_go_together(threads):
    x, y = data()
    alone, together = (
        tuple([*itertools.chain(*column)] for column in zip(*[entries(m, "Adam", 4) for m in MODELS], strict=True))
        for _ in range(2)
    )
    assert many(*together, x, y, epochs=2, batch_size=16) == lone(*alone, x, y, epochs=2, batch_size=16)
    assert_alike(together, alone)


@pytest.mark.parametrize("seed", [None, 3])
def test_folds_are_what_their_rows_would_give(threads, seed):
    x, y = data()
    rng = np.random.default_rng(1)
    folds = [np.delete(np.arange(ROWS), np.arange(i, ROWS, 5)) for i in range(5)]  # 40 rows each
    folds += [rng.integers(0, ROWS, ROWS), np.arange(17)[::-1], np.array([3], dtype=np.uint8)]
    alone, together = entries("plain", "Adam", len(folds)), entries("plain", "Adam", len(folds))
    options = {"epochs": 3, "batch_size": 16, "seed": seed}
    histories = many(*together, x, y, rows=[folds[0].tolist(), *folds[1:]], **options)
    assert histories == lone(*alone, x, y, rows=folds, **options)
    assert_alike(together, alone)


def test_losses_may_be_each_models_own(threads):
    x, y = data()
    alone, together = entries("plain", "SGD"), entries("plain", "SGD")
    losses = [
        [
            cl.Penalized(cl.SoftmaxLoss(label_smoothing=0.1 * (i % 2)), m.parameters()[::2], l2=0.1)
            for i, m in enumerate(ms)
        ]
        for ms in (alone[0], together[0])
    ]
    assert many(*together, x, y, loss=losses[1], epochs=3) == lone(*alone, x, y, loss=losses[0], epochs=3)
    assert_alike(together, alone)


def test_models_that_differ_in_a_number_alone_are_not_confused(threads):
    def make_models():
        models = [
            cl.Model([cl.Linear(4, 8), cl.LeakyReLU(slope), cl.Dropout(p), cl.Linear(8, 3)], seed=0)
            for slope in (0.0, 0.1)
            for p in (0.0, 0.2, 0.5)
            for _ in range(4)
        ]
        return models, [cl.SGD(m.parameters(), lr=0.1, momentum=0.9 * (i % 2)) for i, m in enumerate(models)]

    x, y = data()
    alone, together = make_models(), make_models()
    assert many(*together, x, y, epochs=3) == lone(*alone, x, y, epochs=3)
    assert_alike(together, alone)


def test_a_constant_that_a_step_looks_at_is_each_models_own(threads):
    class Branching(cl.Model):
        def __init__(self, seed):
            super().__init__(seed=seed)
            self.f, self.sign = cl.Linear(4, 3), np.array([seed % 2])

        def call(self, x):
            return self.f(x) if self.sign[0] else self.f(x).tanh()

    def make_models():
        models = [Branching(seed) for seed in range(10)]
        return models, [cl.SGD(m.parameters(), lr=0.1) for m in models]

    x, y = data()
    alone, together = make_models(), make_models()
    assert many(*together, x, y, epochs=3) == lone(*alone, x, y, epochs=3)
    assert_alike(together, alone)


def test_several_inputs_and_indices(threads):
    class Tabular(cl.Model):
        takes_indices = (False, True)

        def __init__(self, seed, sparse):
            super().__init__(seed=seed)
            self.embedding, self.last = cl.Embedding(6, 3, sparse=sparse), cl.Linear(7, 3)

        def call(self, numbers, words):
            return self.last(cl.concatenate([numbers, self.embedding(words)], axis=1))

    def make_models():
        models = [Tabular(seed, sparse=seed % 2 == 0) for seed in range(8)]
        return models, [cl.SGD(m.parameters(), lr=0.1) for m in models]

    x, y = data()
    words = np.arange(ROWS) % 6
    alone, together = make_models(), make_models()
    expected = [
        m.fit((x, words), y, loss=cl.SoftmaxLoss(), optimizer=o, epochs=3, verbose=0)
        for m, o in zip(*alone, strict=True)
    ]
    assert many(*together, (x, words), y, epochs=3) == expected
    assert_alike(together, alone)


def test_models_that_are_alike_share_their_recordings(threads, monkeypatch):
    recordings = []

    def record(self, *arguments, original=Program.record):
        recordings.append(self)
        original(self, *arguments)

    monkeypatch.setattr(Program, "record", record)
    many(*entries("plain", "Adam", 12), *data(), epochs=2, batch_size=16)
    assert len(recordings) <= 2 * threads
    recordings.clear()
    many(*entries("Python", "Adam", 6), *data(), epochs=2, batch_size=16)
    assert len(recordings) == 2 * 6


def test_kernels_in_it_run_on_the_threads_it_has(threads):
    sizes = []

    class Notes(Swish):
        def forward(self, x):
            sizes.append((kernels.available_threads(), threading.current_thread()))
            return super().forward(x)

    models = [cl.Model([cl.Linear(4, 8), Notes(), cl.Linear(8, 3)], seed=i) for i in range(6)]
    many(models, [cl.SGD(m.parameters(), lr=0.1) for m in models], *data(), epochs=20)
    assert {size for size, _ in sizes} == {1}
    assert len({thread for _, thread in sizes}) <= threads
    assert kernels.available_threads() == threads


def test_a_graph_made_before_knows_that_the_values_are_gone(threads):
    x, y = data()
    models, optimizers = entries("plain", "SGD", 5)
    values = [cl.SoftmaxLoss()(m(x.astype(np.float32)), y) for m in models]
    many(models, optimizers, x, y)
    for value in values:
        with pytest.raises(RuntimeError, match="changed"):
            value.backward()


def test_the_callers_arrays_are_not_written_and_may_lie_as_they_like(threads):
    x, y = data()
    wide = np.zeros((2 * ROWS, 8))[::-2, ::2]
    wide[...] = x
    wide.flags.writeable = False
    alone, together = entries("plain", "Adam"), entries("plain", "Adam")
    assert many(*together, wide, y.astype(">i2")) == lone(*alone, x, y)
    assert_alike(together, alone)
    assert np.array_equal(wide, x)


# ---- how it ends ----------------------------------------------------------------------------------------------------


def test_a_divergence_does_not_stop_the_other_models(threads):
    x, y = data()
    x = 100 * x
    rates = [0.001, 1e30, 0.002, 1e25, 0.001, 1e28, 0.003]

    def make_models():
        models = [cl.Model([cl.Linear(4, 8), cl.Dropout(0.1), cl.Linear(8, 3)], seed=i) for i in range(7)]
        return models, [cl.SGD(m.parameters(), lr=lr) for m, lr in zip(models, rates, strict=True)]

    alone, together = make_models(), make_models()
    histories, messages = [], []
    for i, model_and_optimizer in enumerate(zip(*alone, strict=True)):
        diverges = pytest.raises(cl.TrainingDiverged) if rates[i] > 1 else contextlib.nullcontext()
        with diverges as caught:
            histories += lone(*[[one] for one in model_and_optimizer], x, y, epochs=3)
        if caught is not None:
            messages.append(str(caught.value))
            histories.append(caught.value.history)
    with pytest.raises(cl.TrainingDiverged) as caught:
        many(*together, x, y, epochs=3)
    assert len(messages) == 3
    assert str(caught.value) == f"model 1 diverged: {messages[0]}; so did 3, 5"
    assert caught.value.histories == histories
    assert caught.value.history is caught.value.histories[1]
    assert_alike(together, alone, but=["gradient"])  # which is as it was where the step that diverged was recorded


@pytest.mark.parametrize("kind", [ZeroDivisionError, StopIteration, KeyboardInterrupt])
def test_an_exception_of_a_users_function_comes_through(threads, kind):
    class Raising(cl.Function):
        def __init__(self, at):
            self.left = np.array([at])

        def forward(self, x):
            self.left -= 1
            if self.left == 0:
                raise kind("mine")
            return x

        def backward(self, dy):
            return dy

    before = threading.active_count()  # others may have left a thread that watches progress bars
    x, y = data()
    models = [*entries("plain", "SGD", 3)[0], cl.Model([cl.Linear(4, 3), Raising(6)], seed=0)]
    models += entries("plain", "SGD", 3)[0]
    with pytest.raises(kind, match="mine"):
        many(models, [cl.SGD(m.parameters(), lr=0.1) for m in models], x, y, epochs=100)
    assert threading.active_count() == before
    assert np.isfinite(models[0].predict(x)).all()


def test_ctrl_c_ends_all_between_steps(threads):
    before = threading.active_count()
    x, y = data()
    alone, together = entries("plain", "Adam", 9), entries("plain", "Adam", 9)
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        many(*together, x, y, epochs=10_000_000, batch_size=16)
    timer.join()
    assert threading.active_count() == before
    histories = caught.value.histories
    assert len(histories) == 9
    done = [int(optimizer.steps[0, 1]) for optimizer in together[1]]
    begun = [i for i in range(9) if done[i] > 0]
    assert 0 < len(begun) <= threads
    for i in begun:
        assert histories[i].epochs == done[i] // 4
        take(alone[0][i], alone[1][i], x, y, done[i])
        assert bits(together[0][i]) == bits(alone[0][i])


def take(model, optimizer, x, y, steps):
    """So many steps of a fit in batches of 16."""
    left = [steps]

    class LimitedBatches(cl.DataGenerator):
        """Batches, as long as there are steps left."""

        def __iter__(self):
            for batch in super().__iter__():
                if left[0] > 0:
                    left[0] -= 1
                    yield batch

    batches = LimitedBatches(x, y, batch_size=16, seed=model._model_state.rng)
    epochs = -(-steps // 4)
    model.fit(batches, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, verbose=0)


def test_a_handler_of_ctrl_c_that_raises_nothing_lets_it_go_on(threads):
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
        timer.start()
        histories = many(*entries("plain", "Adam", 4), *data(), epochs=1000)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    assert [h.epochs for h in histories] == [1000] * 4


# ---- progress -------------------------------------------------------------------------------------------------------


def test_the_epochs_of_all_models_are_shown_without_those_that_an_early_end_saves(capsys):
    _, data, options = small_models()
    histories = cl.fit_many(*data, **options, epochs=40, validation_split=0.25, patience=1, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    found = [re.match(r"5 models, epoch (\d+)/(\d+)  loss \S+  val_loss \S+  ", line).groups() for line in lines]
    assert histories[0].epochs == 2
    assert [int(epoch) for epoch, _ in found] == list(range(1, len(lines) + 1))
    assert len(lines) == sum(history.epochs for history in histories)
    assert int(found[-1][1]) < 5 * 40


def test_a_verbose_that_there_is_not_raises_before_the_first_step():
    models, data, options = small_models()
    before = [bits(model) for model in models]
    with pytest.raises(ValueError, match="verbose: expected 0, 1, 2 or"):
        cl.fit_many(*data, **options, verbose=7)
    assert [bits(model) for model in models] == before
