"""Early stopping, checkpoints and falling rates: what is monitored and restored."""

import copy
import math
import pickle
import re
import signal
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from caffelite.callbacks import CSVLog, EarlyStopping, ReduceLROnPlateau, Training

import caffelite as cl
from caffelite.training.epochs.evaluation import Evaluation
from tests.conftest import bits, classifier, train
from tests.training.callback_data import VALIDATION, Noting, X, Y, play_values, same, with_buffers

# ---- what is monitored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("callback", [EarlyStopping(), ReduceLROnPlateau()])
def test_an_unmeasured_quantity_cannot_be_monitored(callback):
    model = classifier(2, 3)
    before = bits(model)
    message = f"{type(callback).__name__}: there is no 'val_loss' to monitor, only loss, accuracy; give validation_data"
    with pytest.raises(ValueError, match=re.escape(message)):
        train(model, X, Y, metrics=["accuracy"], callbacks=[callback])
    assert bits(model) == before


@pytest.mark.parametrize(
    ("monitor", "higher"),
    [
        ("loss", False),
        ("val_mse", False),
        ("rmse", False),
        *[(name, False) for name in ("mae", "mape", "log_loss")],
        *[(name, True) for name in ("accuracy", "top_k(3)", "precision", "recall", "f1", "auc", "r2")],
        *[(name, True) for name in ("balanced_accuracy", "matthews", "average_precision")],
        ("val_accuracy", True),
        ("val_top_k(10)", True),
    ],
)
def test_some_quantities_are_better_when_higher(monitor, higher):
    callback = EarlyStopping(monitor, patience=2)
    assert play_values(callback, [1, 2, 3, 4, 5], monitor) == ([False] * 5 if higher else [False, False, True])
    assert play_values(callback, [5, 4, 3, 2, 1], monitor) == ([False, False, True] if higher else [False] * 5)


@pytest.mark.parametrize(
    ("values", "patience", "min_delta", "stops_after", "best"),
    [
        ([5, 4, 4, 4], 2, 0.0, 4, (4, 1)),  # the same is not better
        ([5, 4, 6, 3, 4, 4], 2, 0.0, 6, (3, 3)),  # in a row
        ([5, 5], 1, 0.0, 2, (5, 0)),
        ([4, 3.75, 3.5], 2, 0.25, 3, (3.5, 2)),  # by no more than min_delta each, which counts as none, yet is best
        ([4, 3.5, 3.25, 2.5, 2.5, 2.5], 2, 0.25, 6, (2.5, 3)),
        ([math.nan, math.nan, math.nan], 3, 0.0, 3, (None, None)),
        ([math.nan, 3, math.nan, math.inf], 2, 0.0, 4, (3, 1)),
        ([-math.inf, 2, 3, 1, -math.inf, 2], 2, 0.0, 6, (1, 3)),
    ],
)
def test_early_stopping_stops_after_so_many_epochs_that_are_not_better(values, patience, min_delta, stops_after, best):
    callback = EarlyStopping(patience=patience, min_delta=min_delta)
    with pytest.warns(cl.TrainingWarning, match="val_loss is NaN") if math.isnan(values[0]) else nullcontext():
        returned = play_values(callback, [*values, 0, 0, 0])
    assert returned == [False] * (stops_after - 1) + [True]
    assert (callback.best, callback.best_epoch) == best


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: EarlyStopping(patience=0), ValueError),
        (lambda: EarlyStopping(patience=1.5), TypeError),
        (lambda: EarlyStopping(min_delta=-1), ValueError),
        (lambda: EarlyStopping(min_delta=math.nan), ValueError),
        (lambda: ReduceLROnPlateau(factor=0), ValueError),
        (lambda: ReduceLROnPlateau(factor=1.0), ValueError),
        (lambda: ReduceLROnPlateau(factor="0.1"), TypeError),
        (lambda: ReduceLROnPlateau(patience=0), ValueError),
        (lambda: ReduceLROnPlateau(min_lr=-0.1), ValueError),
    ],
)
def test_options_of_callbacks_are_checked(make, error):
    with pytest.raises(error):
        make()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("EarlyStopping", lambda **mode: EarlyStopping("mine", patience=2, **mode)),
        ("ReduceLROnPlateau", lambda **mode: ReduceLROnPlateau("mine", **mode)),
        ("Checkpoint", lambda **mode: cl.callbacks.Checkpoint("never written", monitor="mine", **mode)),
    ],
)
def test_the_direction_of_a_metric_of_ones_own_is_not_guessed(name, make):
    def mine(outputs, targets):
        return 0.0

    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(ValueError, match=f'{name}: is a higher mine better, or a lower one\\? Give mode="max"'):
        train(model, X, Y, metrics=[mine], callbacks=[make()])
    assert bits(model) == before
    with pytest.raises(ValueError, match=f'{name}: mode is "auto", "min" or "max", got \'up\''):
        make(mode="up")


def test_a_checkpoint_with_a_mode_but_no_monitor_raises():
    with pytest.raises(ValueError, match="give monitor=, too"):
        cl.callbacks.Checkpoint("never written", mode="max")


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_direction_is_what_the_callback_or_the_metric_says(mode):
    values = [3, 1, 2, 4, 0] if mode == "max" else [1, 3, 2, 0, 4]
    for where in ("callback", "metric"):
        metric = cl.metrics.metric(lambda outputs, targets: 0.0, "mine", mode if where == "metric" else None)
        losses = Losses(values)
        stopping = EarlyStopping("mine", patience=9, mode=mode if where == "callback" else "auto")
        train(classifier(2, 3), X, Y, epochs=5, metrics=[metric], callbacks=[losses, stopping])
        assert (stopping.best_epoch, stopping.best) == (3, values[3])


def test_the_mode_of_a_callback_overrides_the_mode_of_the_name():
    stopping = EarlyStopping("accuracy", patience=9, mode="min")
    play_values(stopping, [3, 1, 2], "accuracy")
    assert stopping.best == 1


def test_of_epochs_with_the_same_metric_the_one_with_the_lowest_loss_is_the_best():
    for names, expected in ((["loss"], 3), (["loss", "val_loss"], 2)):
        model, history = classifier(2, 3), cl.History({name: [] for name in [*names, "val_accuracy"]})
        stopping = EarlyStopping("val_accuracy", patience=4)
        stopping.begin(Training(model, cl.SGD(model.parameters(), lr=1.0), cl.SoftmaxLoss(), history))
        losses = {"loss": [5, 4, 3, 2, 1], "val_loss": [5, 4, 3, 4, 1], "val_accuracy": [0.5, 0.9, 0.9, 0.9, 0.8]}
        for epoch in range(5):
            for name, values in history.items():
                values.append(losses[name][epoch])
            assert not stopping(epoch, history)
        assert stopping.best_epoch == expected
        assert stopping.waited == 3  # the same is not better


@pytest.mark.parametrize("make", [EarlyStopping, ReduceLROnPlateau])
def test_a_quantity_that_is_nan_from_the_first_epoch_on_is_one_warning(make):
    x, y = VALIDATION[0].copy(), VALIDATION[1]
    x[3] = np.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(classifier(2, 3), X, Y, epochs=4, validation_data=(x, y), callbacks=[make("val_loss", patience=1)])
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith(f"{make.__name__}: val_loss is NaN in epoch 1")
    with pytest.warns(cl.TrainingWarning, match="auc is NaN in epoch 1"):
        train(classifier(2, 3), X, np.where(Y == 2, 0, Y), metrics=["auc"], callbacks=[make("auc", patience=1)])


def test_a_quantity_that_becomes_nan_later_gives_no_warning():
    assert play_values(EarlyStopping(patience=2), [3, math.nan, math.nan]) == [False, False, True]


# ---- early stopping -------------------------------------------------------------------------------------------------


class Losses:
    """A metric that goes through these values, one an epoch; and a callback that notes the model's state at each."""

    __name__ = "mine"

    def __init__(self, values):
        self.values, self.states = iter(values), []

    def begin(self, training):
        self.model, self.history = training.model, training.history

    def __call__(self, epoch, history):
        self.states.append(self.model.state_dict())
        history["mine"][-1] = next(self.values)


def train_on_values(callback, values, **options):
    """Train a model on these values of `mine`; what its state was after each epoch, what it is, and the history."""
    model, losses = with_buffers(), Losses(values)
    metric = lambda outputs, targets: 0.0  # noqa: E731
    metric.__name__ = "mine"
    options = {"epochs": len(values), "metrics": [metric], "callbacks": [losses, callback], **options}
    history = train(model, X, Y, **options)
    return losses.states, model.state_dict(), history


def test_early_stopping_restores_the_best_parameters_and_buffers():
    states, state, history = train_on_values(EarlyStopping("mine", mode="min", patience=2), [3, 1, 2, 2, 0, 0])
    assert history.epochs == 4
    assert same(state, states[1])
    changed = {name for name, array in states[3].items() if not np.array_equal(array, states[1][name])}
    assert changed >= {"0.weight", "1.scale", "1.mean", "1.variance", "4.bias"}


def test_the_best_is_restored_too_when_all_epochs_ran():
    states, state, history = train_on_values(EarlyStopping("mine", mode="min"), [3, 1, 2])
    assert history.epochs == 3
    assert same(state, states[1])


def test_without_restore_best_the_model_keeps_what_it_has():
    states, state, _ = train_on_values(EarlyStopping("mine", mode="min", restore_best=False), [3, 1, 2])
    assert same(state, states[2])


def test_without_a_best_epoch_nothing_is_restored():
    with pytest.warns(cl.TrainingWarning, match="mine is NaN in epoch 1"):
        states, state, _ = train_on_values(EarlyStopping("mine", mode="min", patience=2), [math.nan] * 3)
    assert len(states) == 2
    assert same(state, states[1])


def test_the_best_is_restored_after_an_exception():
    model, losses = with_buffers(), Losses([1, 2, 3, 4])
    metric = lambda outputs, targets: 0.0  # noqa: E731
    metric.__name__ = "mine"

    def interrupt(epoch, history):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model, X, Y, epochs=9, metrics=[metric], callbacks=[losses, EarlyStopping("mine", mode="min"), interrupt])
    assert same(model.state_dict(), losses.states[0])


def test_a_ctrl_c_while_the_best_is_restored_takes_effect_afterwards(monkeypatch):
    model, losses = with_buffers(), Losses([1, 2, 3])
    metric = lambda outputs, targets: 0.0  # noqa: E731
    metric.__name__ = "mine"
    load = model.load_state_dict

    def interrupt_and_load(state):
        signal.raise_signal(signal.SIGINT)
        load(state)

    notes = []
    callbacks = [losses, EarlyStopping("mine", mode="min"), Noting("after", notes)]
    monkeypatch.setattr(model, "load_state_dict", interrupt_and_load)
    with pytest.raises(KeyboardInterrupt) as raised:
        train(model, X, Y, epochs=3, metrics=[metric], callbacks=callbacks)
    assert same(model.state_dict(), losses.states[0])
    assert raised.value.history.epochs == 3
    assert notes[-1] == ("end", "after")


def test_the_best_is_restored_when_the_training_diverges():
    model = classifier(2, 16, 3)
    states = []

    def run_away(epoch, history):
        states.append(model.state_dict())
        if epoch == 2:
            optimizer.lr = 1e30

    optimizer = cl.SGD(model.parameters(), lr=0.01)
    stopping = EarlyStopping("loss")
    with pytest.raises(cl.TrainingDiverged) as raised:
        train(model, X, Y, optimizer=optimizer, epochs=9, callbacks=[run_away, stopping])
    assert raised.value.history.epochs == 3
    assert same(model.state_dict(), states[stopping.best_epoch])


def test_the_optimizer_and_replays_go_on_from_what_was_restored():
    def train_on(restored):
        model = with_buffers()
        optimizer = cl.SGD(model.parameters(), lr=0.1)
        callbacks = [EarlyStopping("loss", patience=9)] if restored else []
        train(model, X, Y, optimizer=optimizer, epochs=4, seed=1, callbacks=callbacks)
        state = model.state_dict()
        other = with_buffers()
        other.load_state_dict(state)
        train(model, X, Y, optimizer=optimizer, epochs=2, seed=2)
        train(other, X, Y, optimizer=cl.SGD(other.parameters(), lr=0.1), epochs=2, seed=2)
        return model, other

    for restored in (False, True):
        model, other = train_on(restored)
        assert same(model.state_dict(), other.state_dict())


def test_callbacks_start_again_with_a_second_training():
    stopping = EarlyStopping("mine", mode="min", patience=2)
    first = train_on_values(stopping, [0, 1, 2, 3])
    assert (stopping.best, stopping.best_epoch) == (0, 0)
    second = train_on_values(stopping, [5, 4, 3, 4, 4])
    assert (stopping.best, stopping.best_epoch) == (3, 2)
    assert (first[2].epochs, second[2].epochs) == (3, 5)


def test_callbacks_can_be_copied_and_pickled():
    for callback in (EarlyStopping("loss"), ReduceLROnPlateau("loss"), CSVLog("log.csv")):
        for other in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
            assert type(other) is type(callback)
            assert vars(other) == vars(callback)


# ---- learning rates on a plateau ------------------------------------------------------------------------------------


def test_the_rate_falls_after_so_many_epochs_without_a_better_one():
    model = classifier(2, 3)
    optimizer = cl.SGD(model.parameters(), lr=1.0)
    rates = []
    callback = ReduceLROnPlateau(factor=0.5, patience=2)

    def note_rate(epoch, history):
        returned = callback(epoch, history)
        rates.append(optimizer.lr)
        return returned

    note_rate.begin = callback.begin
    assert not any(play_values(note_rate, [3, 3, 3, 3, 3, 2, 2, math.nan, 1], optimizer=optimizer))
    assert rates == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]


@pytest.mark.filterwarnings("ignore:the schedule of the learning rate has 4 steps")
def test_the_rates_of_all_groups_fall_and_schedules_go_on_lower():
    model = classifier(2, 4, 3)
    first, *others = model.parameters()
    schedule = cl.schedules.linear(1.0, steps=4)
    optimizer = cl.SGD([{"parameters": [first], "lr": 0.5}, {"parameters": others, "lr": schedule}], lr=0.1)
    rates = []

    def note(*_):
        rates.append([group["lr"] for group in optimizer.groups])

    train(
        model,
        X,
        Y,
        optimizer=optimizer,
        batch_size=60,
        epochs=6,
        callbacks=[note, lambda epoch, _: epoch == 1 and optimizer.scale_lr(0.5)],
    )
    assert rates == [[0.5, 0.75], [0.5, 0.5], [0.25, 0.125], [0.25, 0], [0.25, 0], [0.25, 0]]


def test_scaling_rates_raises_if_a_replay_would_not_repeat_it():
    model = classifier(2, 3)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="recorded"):
        cl.capture(lambda: optimizer.scale_lr(0.5))
    with pytest.raises(ValueError, match="factor"):
        optimizer.scale_lr(-1)
    assert optimizer.lr == 0.1


# ---- validation and early stopping without Python --------------------------------------------------------------------


class PythonEarlyStopping(cl.callbacks.EarlyStopping):
    """The same, but every epoch goes through Python, as `fit` replays only what it knows."""


def stopped_early(kind, seed, **options):
    """Return the state after a training that is stopped early: parameters, buffers, history and what the callback
    found.
    """
    rng = np.random.default_rng(seed)
    rows, size = int(rng.integers(20, 70)), int(rng.integers(3, 40))
    x, y = rng.normal(size=(rows, 4)), rng.integers(0, 3, rows)
    layers = [
        cl.Linear(4, 8),
        *[cl.BatchNorm(8)] * (seed % 2),
        cl.ReLU(),
        *[cl.Dropout(0.2)] * (seed % 3 == 0),
        cl.Linear(8, 3),
    ]
    model = cl.Model(layers, seed=seed, dtype=[np.float32, np.float64][seed % 2])
    stopping = kind(**{"patience": int(rng.integers(1, 6)), "min_delta": float(rng.choice([0, 0.01])), **options})
    given = {
        "loss": cl.SoftmaxLoss(),
        "optimizer": cl.Adam(model.parameters(), lr=float(rng.choice([0.003, 0.1]))),
        "epochs": 40,
        "batch_size": size,
        "validation_split": 0.3,
        "metrics": ["accuracy"] if seed % 4 == 0 else [],
        "sample_weight": (rng.random(rows) < 0.9) * 1.0 if seed % 5 == 0 else None,
        "callbacks": [stopping],
        "verbose": 0,
    }
    history = model.fit(x, y, **given)
    return bits(model), {**model.buffers()}, dict(history), stopping.state_dict()


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("options", [{}, {"restore_best": False}, {"monitor": "loss"}], ids=str)
def test_early_stopping_without_python_is_that_with_python(seed, options):
    states = [stopped_early(kind, seed, **options) for kind in (cl.callbacks.EarlyStopping, PythonEarlyStopping)]
    np.testing.assert_equal(states[0], states[1])


@pytest.mark.parametrize("others", [[], [cl.callbacks.Each(700, lambda step, training: None)]])
def test_epochs_with_validation_and_early_stopping_come_back_to_python_now_and_then(others, monkeypatch):
    times = []
    results = Evaluation.results
    monkeypatch.setattr(Evaluation, "results", lambda self, n: times.append(n) or results(self, n))
    x = np.random.default_rng(0).normal(size=(60, 3))
    model = cl.MLP(3, [4, 1], seed=0)
    history = model.fit(
        x,
        x[:, :1],
        loss=cl.MSELoss(),
        optimizer=cl.SGD(model.parameters(), lr=0.01),
        epochs=3000,
        validation_split=0.2,
        callbacks=[cl.callbacks.EarlyStopping(patience=3000), *others],
        verbose=0,
    )
    assert sum(times) == history.epochs == 3000
    assert max(times) > 100


class EndsBetweenSteps:
    """Ends a training after so many steps, in the middle of an epoch."""

    def __init__(self, steps):
        self.steps, self.done = steps, 0

    def begin(self, training):
        self.training = training

    def steps_until_due(self):
        return max(1, self.steps - self.done)

    def steps_done(self, count):
        self.done += count

    def due(self, epochs):
        return float("inf")

    def between_steps(self):
        self.so_far = self.training.loss_so_far()
        return self.done >= self.steps

    def __call__(self, epoch, history):
        pass


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_callback_may_end_the_training_between_two_steps(in_memory):
    x, y = cl.datasets.spiral(seed=0)
    batches = [(x[i : i + 30], y[i : i + 30]) for i in range(0, 300, 30)]
    model, other = (cl.MLP(2, [10, 3], seed=0) for _ in range(2))
    given = [(x, y), {"batch_size": 30, "shuffle": False}] if in_memory else [(batches,), {}]
    ends = EndsBetweenSteps(24)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    history = model.fit(
        *given[0], **given[1], loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=9, callbacks=[ends], verbose=0
    )
    assert (history.epochs, ends.done) == (2, 24)
    assert 0 < ends.so_far < 2
    optimizer, loss = cl.SGD(other.parameters(), lr=0.1), cl.SoftmaxLoss()
    for rows, labels in (batches * 3)[:24]:
        optimizer.zero_grad()
        loss(other(rows), labels).backward()
        optimizer.step()
    assert all((p.data == q.data).all() for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_a_rate_on_a_plateau_does_not_fall_below_min_lr():
    first, *others = classifier(2, 4, 3).parameters()
    optimizer = cl.SGD([{"parameters": [first]}, {"parameters": others, "lr": 1e-4}], lr=1.0)
    rates = []
    callback = ReduceLROnPlateau(factor=0.1, patience=1, min_lr=0.05)

    def note_rates(epoch, history):
        callback(epoch, history)
        rates.append([group["lr"] for group in optimizer.groups])

    note_rates.begin = callback.begin
    play_values(note_rates, [3, 3, 3, 3], optimizer=optimizer)
    assert rates == [[1.0, 1e-4], [0.1, 1e-4], [0.05, 1e-4], [0.05, 1e-4]]


def test_a_schedule_on_a_plateau_does_not_fall_below_min_lr():
    optimizer = cl.SGD([cl.Tensor(np.ones(2), requires_grad=True)], lr=cl.schedules.linear(1.0, 4))
    optimizer.scale_lr(0.1, min_lr=0.06)
    rates = []
    for _ in range(5):
        rates.append(optimizer.lr)
        optimizer.step()
    assert rates == pytest.approx([0.1, 0.075, 0.06, 0.06, 0.0])
    for factor, min_lr in [(-1, 0), (0.1, -1), (0.1, float("nan"))]:
        with pytest.raises(ValueError, match=r"factor|min_lr"):
            optimizer.scale_lr(factor, min_lr)
