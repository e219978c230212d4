"""Callbacks: what `fit` asks of them, and the ready-made ones."""

import copy
import json
import math
import os
import pickle
import re
import resource
import signal
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from caffelite.callbacks import CSVLog, Each, EarlyStopping, ReduceLROnPlateau, Training

import caffelite as cl
from caffelite.training.evaluation import Evaluation
from tests.conftest import bits, classifier, train

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)
VALIDATION = cl.datasets.spiral(points_per_class=20, seed=1)


class Noting:
    """A callback that notes what happens to it."""

    def __init__(self, name, notes, begin=None, call=None, end=None):
        self.name, self.notes, self.raises = name, notes, {"begin": begin, "call": call, "end": end}

    def _note(self, what):
        self.notes.append((what, self.name))
        if self.raises[what] is not None:
            raise self.raises[what]

    def begin(self, training):
        self.training = training
        self._note("begin")

    def __call__(self, epoch, history):
        self._note("call")

    def end(self):
        self._note("end")


def played(callback, values, monitor="val_loss", model=None, optimizer=None):
    """What a callback returns for each of these values of what it monitors, until it ends the training."""
    model = model if model is not None else classifier(2, 3)
    optimizer = optimizer if optimizer is not None else cl.SGD(model.parameters(), lr=1.0)
    history = cl.History({"loss": [], monitor: []})
    callback.begin(Training(model, optimizer, cl.SoftmaxLoss(), history))
    returned = []
    for epoch, value in enumerate(values):
        for column in history.values():
            column.append(value)
        returned.append(callback(epoch, history))
        if returned[-1]:
            break
    return returned


# ---- the protocol ---------------------------------------------------------------------------------------------------


def test_callbacks_begin_are_called_and_end_in_their_order():
    notes = []
    model = classifier(2, 3)
    first, second = Noting("a", notes), Noting("b", notes)
    optimizer, loss = cl.SGD(model.parameters(), lr=0.1), cl.SoftmaxLoss()
    history = train(model, X, Y, optimizer=optimizer, loss=loss, epochs=2, callbacks=[first, second])
    assert notes == [(what, name) for what in ("begin", "call", "call", "end") for name in "ab"]
    training = first.training
    assert training.model is model
    assert training.optimizer is optimizer
    assert training.loss is loss
    assert training.history is history


def test_begin_comes_before_the_first_step():
    model = classifier(2, 3)
    before = bits(model)

    class Looking:
        def begin(self, training):
            self.seen = bits(training.model), training.history.epochs, list(training.history)

        def __call__(self, epoch, history):
            pass

    looking = Looking()
    train(model, X, Y, callbacks=[looking], metrics=["accuracy"], validation_data=VALIDATION)
    assert looking.seen == (before, 0, ["loss", "accuracy", "val_loss", "val_accuracy"])


class Due:
    """A callback that is to be called after every third epoch, and ends the training in the ninth."""

    def __init__(self, notes):
        self.notes = notes

    def due(self, epochs):
        return epochs + 3 - epochs % 3

    def __call__(self, epoch, history):
        self.notes.append(epoch)
        return epoch == 8


def test_epochs_run_in_one_go_until_a_callback_is_due():
    notes, model, eager = [], classifier(2, 10, 3), classifier(2, 10, 3)
    history = train(model, X, Y, epochs=20, callbacks=[Due(notes)])
    # The first steps of a kind are recorded, one by one, and told; from then on it is every third.
    assert notes[-2:] == [5, 8]
    assert history.epochs == 9
    assert history["loss"] == train(eager, X, Y, epochs=9)["loss"]
    assert bits(model) == bits(eager)


def test_a_callback_that_is_never_due_is_called_at_the_end_and_beside_others_after_each_epoch():
    class Never(Due):
        def due(self, epochs):
            return math.inf

    notes, each = [], []
    train(classifier(2, 10, 3), X, Y, epochs=7, callbacks=[Never(notes)])
    assert notes[-1] == 6
    assert len(notes) < 7
    train(classifier(2, 10, 3), X, Y, epochs=7, callbacks=[Never(each), lambda epoch, history: None])
    assert each == list(range(7))


@pytest.mark.parametrize("missing", ["begin", "end"])
def test_everything_but_the_call_is_optional(missing):
    methods = {"begin": lambda self, training: None, "__call__": lambda self, epoch, history: None}
    methods["end"] = lambda self: None
    del methods[missing]
    train(classifier(2, 3), X, Y, callbacks=[type("Some", (), methods)()])


def test_where_one_begin_raises_those_that_have_begun_are_ended_and_nothing_is_trained():
    notes = []
    model = classifier(2, 3)
    before = bits(model)
    callbacks = [Noting("a", notes), Noting("b", notes, begin=KeyError("b")), Noting("c", notes)]
    with pytest.raises(KeyError, match="b"):
        train(model, X, Y, callbacks=callbacks)
    assert notes == [("begin", "a"), ("begin", "b"), ("end", "a")]
    assert bits(model) == before
    train(model, X, Y, callbacks=[Noting("a", notes)])


@pytest.mark.parametrize("error", [RuntimeError("here"), KeyboardInterrupt(), StopIteration("here")])
def test_callbacks_are_ended_after_an_exception(error):
    notes = []
    callbacks = [Noting("a", notes), Noting("b", notes, call=error)]
    with pytest.raises(type(error)):
        train(classifier(2, 3), X, Y, callbacks=callbacks)
    assert notes[-2:] == [("end", "a"), ("end", "b")]


def test_all_callbacks_are_ended_where_the_end_of_one_raises():
    notes = []
    callbacks = [Noting("a", notes, end=KeyError("a")), Noting("b", notes)]
    with pytest.raises(KeyError, match="a"):
        train(classifier(2, 3), X, Y, callbacks=callbacks)
    assert notes[-2:] == [("end", "a"), ("end", "b")]


def test_a_callback_that_ends_the_training_does_not_keep_others_from_being_called():
    notes = []
    history = train(classifier(2, 3), X, Y, epochs=5, callbacks=[lambda *_: True, Noting("b", notes)])
    assert history.epochs == 1
    assert notes == [("begin", "b"), ("call", "b"), ("end", "b")]


@pytest.mark.parametrize("wrong", [3, EarlyStopping, "EarlyStopping"])
def test_what_is_no_callback_is_refused(wrong):
    with pytest.raises(TypeError, match="callbacks: expected callables"):
        train(classifier(2, 3), X, Y, callbacks=[wrong])


def test_callbacks_come_in_a_list():
    with pytest.raises(TypeError, match="callbacks: expected a list"):
        train(classifier(2, 3), X, Y, callbacks=EarlyStopping("loss"))


@pytest.mark.parametrize("wrong", [3, None])
def test_callbacks_that_are_no_list_are_an_error_that_says_what_is_expected(wrong):
    with pytest.raises(TypeError, match=rf"callbacks: expected a list of callables .*, got {wrong}"):
        train(classifier(2, 3), X, Y, callbacks=wrong)


def test_methods_that_other_frameworks_call_are_not_ignored_in_silence():
    class Keras:
        def on_train_end(self, logs=None):
            raise AssertionError

        def on_epoch_end(self, epoch, logs=None):
            raise AssertionError

    class Both(Keras):
        def __call__(self, epoch, history):
            pass

    with pytest.raises(TypeError, match=r"no __call__ \(caffelite does not call on_train_end, on_epoch_end\)"):
        train(classifier(2, 3), X, Y, callbacks=[Keras()])
    message = r"does not call on_train_end, on_epoch_end of Both: .* begin\(training\), __call__\(epoch, history\)"
    with pytest.warns(cl.TrainingWarning, match=message):
        train(classifier(2, 3), X, Y, callbacks=[Both()])


@pytest.mark.parametrize(
    "change",
    [
        lambda history: history.clear(),
        lambda history: history["loss"].clear(),
        lambda history: history.pop("accuracy"),
        lambda history: history.update(mine=[1.0]),
        lambda history: history["loss"].append(1.0),
    ],
)
def test_a_callback_that_changes_how_long_the_history_is_is_an_error_that_names_it(change):
    def mine(epoch, history):
        if epoch == 1:
            change(history)

    with pytest.raises(
        RuntimeError, match=r"the callback .*mine.* changed the history from .*'loss': 2, 'accuracy': 2"
    ):
        train(classifier(2, 3), X, Y, epochs=5, metrics=["accuracy"], callbacks=[mine])


# ---- what is monitored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("callback", [EarlyStopping(), ReduceLROnPlateau()])
def test_what_is_not_measured_cannot_be_monitored(callback):
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
    assert played(callback, [1, 2, 3, 4, 5], monitor) == ([False] * 5 if higher else [False, False, True])
    assert played(callback, [5, 4, 3, 2, 1], monitor) == ([False, False, True] if higher else [False] * 5)


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
        returned = played(callback, [*values, 0, 0, 0])
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


def test_a_checkpoint_with_a_mode_but_no_monitor_is_refused():
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


def test_the_mode_of_a_callback_is_stronger_than_that_of_the_name():
    stopping = EarlyStopping("accuracy", patience=9, mode="min")
    played(stopping, [3, 1, 2], "accuracy")
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
def test_what_is_nan_from_the_first_epoch_on_is_one_warning(make):
    x, y = VALIDATION[0].copy(), VALIDATION[1]
    x[3] = np.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(classifier(2, 3), X, Y, epochs=4, validation_data=(x, y), callbacks=[make("val_loss", patience=1)])
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith(f"{make.__name__}: val_loss is NaN in epoch 1")
    with pytest.warns(cl.TrainingWarning, match="auc is NaN in epoch 1"):
        train(classifier(2, 3), X, np.where(Y == 2, 0, Y), metrics=["auc"], callbacks=[make("auc", patience=1)])


def test_what_becomes_nan_later_is_no_reason_to_warn():
    assert played(EarlyStopping(patience=2), [3, math.nan, math.nan]) == [False, False, True]


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


def with_buffers():
    """A model with parameters, running means, and a counter of draws."""
    return cl.Model([cl.Linear(2, 8), cl.BatchNorm(8), cl.Dropout(0.2), cl.ReLU(), cl.Linear(8, 3)], seed=0)


def followed_by(callback, values, **options):
    """Train a model on these values of `mine`; what its state was after each epoch, what it is, and the history."""
    model, losses = with_buffers(), Losses(values)
    metric = lambda outputs, targets: 0.0  # noqa: E731
    metric.__name__ = "mine"
    options = {"epochs": len(values), "metrics": [metric], "callbacks": [losses, callback], **options}
    history = train(model, X, Y, **options)
    return losses.states, model.state_dict(), history


def same(state, other):
    return state.keys() == other.keys() and all(np.array_equal(state[name], other[name]) for name in state)


def test_early_stopping_restores_the_best_parameters_and_buffers():
    states, state, history = followed_by(EarlyStopping("mine", mode="min", patience=2), [3, 1, 2, 2, 0, 0])
    assert history.epochs == 4
    assert same(state, states[1])
    changed = {name for name, array in states[3].items() if not np.array_equal(array, states[1][name])}
    assert changed >= {"0.weight", "1.scale", "1.mean", "1.variance", "4.bias"}


def test_the_best_is_restored_too_when_all_epochs_ran():
    states, state, history = followed_by(EarlyStopping("mine", mode="min"), [3, 1, 2])
    assert history.epochs == 3
    assert same(state, states[1])


def test_without_restore_best_the_model_keeps_what_it_has():
    states, state, _ = followed_by(EarlyStopping("mine", mode="min", restore_best=False), [3, 1, 2])
    assert same(state, states[2])


def test_without_a_best_epoch_nothing_is_restored():
    with pytest.warns(cl.TrainingWarning, match="mine is NaN in epoch 1"):
        states, state, _ = followed_by(EarlyStopping("mine", mode="min", patience=2), [math.nan] * 3)
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

    def interrupted(state):
        signal.raise_signal(signal.SIGINT)
        load(state)

    notes = []
    callbacks = [losses, EarlyStopping("mine", mode="min"), Noting("after", notes)]
    monkeypatch.setattr(model, "load_state_dict", interrupted)
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
    def trained(restored):
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
        model, other = trained(restored)
        assert same(model.state_dict(), other.state_dict())


def test_callbacks_start_anew_with_a_second_training():
    stopping = EarlyStopping("mine", mode="min", patience=2)
    first = followed_by(stopping, [0, 1, 2, 3])
    assert (stopping.best, stopping.best_epoch) == (0, 0)
    second = followed_by(stopping, [5, 4, 3, 4, 4])
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

    def noted(epoch, history):
        returned = callback(epoch, history)
        rates.append(optimizer.lr)
        return returned

    noted.begin = callback.begin
    assert not any(played(noted, [3, 3, 3, 3, 3, 2, 2, math.nan, 1], optimizer=optimizer))
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


def test_scaling_rates_is_refused_where_a_replay_would_not_repeat_it():
    model = classifier(2, 3)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="recorded"):
        cl.capture(lambda: optimizer.scale_lr(0.5))
    with pytest.raises(ValueError, match="factor"):
        optimizer.scale_lr(-1)
    assert optimizer.lr == 0.1


# ---- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: EarlyStopping("mine", mode="min", patience=3), lambda: ReduceLROnPlateau("mine", mode="min")]
)
def test_the_state_of_a_callback_lets_another_one_go_on(make):
    values = [5, 3, 4, 6]
    callback, other = make(), make()
    model = with_buffers()
    played(callback, values[:2], "mine", model=model)
    state = callback.state_dict()
    arrays = {name for name, value in state.items() if isinstance(value, np.ndarray)}
    assert json.loads(json.dumps({name: state[name] for name in state.keys() - arrays})) == {
        name: state[name] for name in state.keys() - arrays
    }
    history = cl.History({"loss": [5, 3], "mine": [5, 3]})
    other.begin(Training(model, cl.SGD(model.parameters(), lr=1.0), cl.SoftmaxLoss(), history))
    other.load_state_dict(state)
    for epoch, value in enumerate(values[2:], start=2):
        for column in history.values():
            column.append(value)
        assert callback(epoch, history) == other(epoch, history)
    assert same(callback.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"best": math.nan},
        {"best": "3"},
        {"best": None},
        {"best_epoch": -1},
        {"best_epoch": None},
        {"waited": -1},
        {"waited": 0.5},
        {"model.0.weight": np.zeros((3, 3))},
        {"model.9.weight": np.zeros((3, 3))},
    ],
)
def test_a_state_that_cannot_be_is_refused(change):
    callback = EarlyStopping("mine", mode="min")
    played(callback, [5, 3], "mine", model=with_buffers())
    state = callback.state_dict()
    with pytest.raises(ValueError, match="EarlyStopping"):
        callback.load_state_dict(state | change)
    assert same(callback.state_dict(), state)


# ---- the log --------------------------------------------------------------------------------------------------------


def rows_of(path):
    return [line.split(",") for line in path.read_text().splitlines()]


def test_the_log_has_a_row_for_each_epoch_as_soon_as_it_is_completed(tmp_path):
    path, seen = tmp_path / "log.csv", []
    path.write_text("an older file")
    callbacks = [CSVLog(path), lambda *_: seen.append(len(rows_of(path)))]
    history = train(
        classifier(2, 3), X, Y, epochs=3, metrics=["accuracy"], validation_data=VALIDATION, callbacks=callbacks
    )
    names, *rows = rows_of(path)
    assert names == ["epoch", "loss", "accuracy", "val_loss", "val_accuracy"]
    assert [int(row[0]) for row in rows] == [1, 2, 3]
    assert [[float(value) for value in row[1:]] for row in rows] == [list(row) for row in zip(*history.values())]  # noqa: B905
    assert seen == [2, 3, 4]


def test_the_log_of_a_training_that_goes_on_has_the_epochs_before(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n1,3.0\n2,2.0\n3,1.5\n")  # epoch 3 was in no checkpoint
    history = cl.History({"loss": [3.0, 2.0]})
    log = CSVLog(path)
    model = classifier(2, 3)
    log.begin(Training(model, cl.SGD(model.parameters(), lr=1.0), cl.SoftmaxLoss(), history))
    history["loss"].append(1.25)
    log(2, history)
    assert path.read_text() == "epoch,loss\n1,3.0\n2,2.0\n3,1.25\n"


def test_a_log_that_cannot_be_written_is_an_error_before_the_first_step(tmp_path):
    model = classifier(2, 3)
    before = bits(model)
    path = tmp_path / "missing" / "log.csv"
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        train(model, X, Y, callbacks=[CSVLog(path)])
    assert bits(model) == before


def test_a_log_that_may_not_grow_is_an_error_that_names_the_file_and_leaves_the_model(tmp_path):
    model, path = classifier(2, 3), tmp_path / "log.csv"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len("epoch,loss\n"), limits[1]))
    try:
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            train(model, X, Y, callbacks=[CSVLog(path)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    train(model, X, Y)


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_log_where_a_fifo_or_a_device_is_is_an_error_before_the_first_step(kind, tmp_path):
    """Opening a FIFO would wait for ever, or until the test is given up."""
    model, path = classifier(2, 3), tmp_path / "fifo" if kind == "fifo" else Path(os.devnull)
    if kind == "fifo":
        os.mkfifo(path)
    before = bits(model)
    with pytest.raises(OSError, match=f"expected a file, and there is a FIFO, a socket or a device: '{path}'"):
        train(model, X, Y, callbacks=[CSVLog(path)])
    assert bits(model) == before


# ---- every so many steps --------------------------------------------------------------------------------------------


def streamed(size):
    """The batches of X and Y as an iterable: Python makes each."""
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, len(X), size)]


WAYS = {
    "in memory": lambda: cl.DataGenerator(X, Y, batch_size=8, seed=1),  # 60 rows: 7 full batches and a short one
    "streamed": lambda: streamed(8),
    "read": lambda: cl.DataGenerator(Rows(X), Rows(Y), batch_size=8, seed=1),
}


class Rows:
    """A source: an array that is read block by block."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        return self.array[rows]


def steps_made(training):
    """How many steps a training with Adam has made."""
    return int(training.optimizer.state_dict()["steps"][0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("every", [1, 3, 8, 11, 100])
def test_each_is_called_after_every_so_many_steps_over_all_epochs(way, every):
    called, model = [], classifier(2, 3)
    each = Each(every, lambda step, training: called.append((step, steps_made(training), training.history.epochs)))
    train(model, WAYS[way](), optimizer=cl.Adam(model.parameters()), epochs=5, callbacks=[each])
    behind = 1 if way == "streamed" else 0  # there, an epoch has ended only when there is no further batch
    assert called == [(step, step, (step - behind) // 8) for step in range(every, 41, every)]


@pytest.mark.parametrize("way", WAYS)
def test_each_changes_no_bit_and_may_change_the_rate_at_its_step(way):
    def rate_falls(step, training):
        training.optimizer.lr /= 2

    by_each, by_schedule, untouched, looked_at = (classifier(2, 3) for _ in range(4))
    train(by_each, WAYS[way](), epochs=3, callbacks=[Each(5, rate_falls)])
    train(by_schedule, WAYS[way](), lr=cl.schedules.steps(0.1, 24, every=5, factor=0.5), epochs=3)
    assert bits(by_each) == bits(by_schedule)
    train(untouched, WAYS[way](), epochs=3)
    train(looked_at, WAYS[way](), epochs=3, callbacks=[Each(5, lambda step, training: None)])
    assert bits(looked_at) == bits(untouched)


@pytest.mark.parametrize("way", WAYS)
def test_each_counts_on_from_a_checkpoint(way, tmp_path):
    path, called = tmp_path / "checkpoint", []

    def run(resume=None, stop=None):
        def f(step, training):
            called.append((step, steps_made(training)))
            training.write(path)
            if step == stop:
                raise KeyError

        model = classifier(2, 3)
        train(
            model, WAYS[way](), optimizer=cl.Adam(model.parameters()), epochs=3, callbacks=[Each(4, f)], resume=resume
        )
        return bits(model)

    never_stopped = run()
    for stop in (4, 8, 12, 24):
        called.clear()
        with pytest.raises(KeyError):
            run(stop=stop)
        assert run(resume=path) == never_stopped
        assert called == [(step, step) for step in range(4, 25, 4)]


def test_each_is_called_before_a_checkpoint_of_the_same_step(tmp_path):
    called = []
    checkpoint = cl.callbacks.Checkpoint(tmp_path / "checkpoint", seconds=0)
    callbacks = [checkpoint, Each(3, lambda step, training: called.append(step)), Each(6, lambda *_: 1 / 0)]
    with pytest.raises(ZeroDivisionError):
        train(classifier(2, 3), streamed(8), callbacks=callbacks)
    callbacks[-1].f = lambda *_: None
    train(classifier(2, 3), streamed(8), callbacks=callbacks, resume=checkpoint.path)
    assert called == [3, 6, 6]  # the checkpoint is of step 5


def test_each_takes_a_number_of_steps_and_a_callable():
    with pytest.raises(ValueError, match="steps"):
        Each(0, print)
    with pytest.raises(TypeError, match=r"\(step, training\)"):
        Each(1, 2)
    for state in ({}, {"steps_done": -1}, {"steps_done": 1.0}):
        with pytest.raises(ValueError, match="steps_done"):
            Each(1, print).load_state_dict(state)


# ---- TensorBoard ----------------------------------------------------------------------------------------------------


def scalars_in(folder):
    """The scalars in the event files of a folder, (tag, step, value), as a reader of these files finds them."""
    messages = pytest.importorskip("tensorboardX").proto.event_pb2
    found = []
    for path in sorted(folder.glob("events.*"), key=lambda path: int(path.suffix[1:])):  # by their time
        content, place = path.read_bytes(), 0
        while place < len(content):  # a record: its length, a checksum, the message, a checksum
            length = int.from_bytes(content[place : place + 8], "little")
            event = messages.Event.FromString(content[place + 12 : place + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            if event.session_log.status == messages.SessionLog.START:
                found = [scalar for scalar in found if scalar[1] < event.step]  # as TensorBoard does
            place += 16 + length
    return found


def scalars_of(history):
    rows = zip(*history.values(), strict=True)
    return [(name, i, np.float32(x)) for i, row in enumerate(rows, 1) for name, x in zip(history, row, strict=True)]


def test_tensorboard_gets_the_history_as_soon_as_an_epoch_is_completed(tmp_path):
    pytest.importorskip("tensorboardX")
    folder, seen = tmp_path / "runs" / "first", []
    callbacks = [cl.callbacks.TensorBoard(folder), lambda *_: seen.append(len(scalars_in(folder)))]
    options = {"metrics": ["accuracy"], "validation_data": VALIDATION, "callbacks": callbacks}
    history = train(classifier(2, 3), X, Y, epochs=3, **options)
    assert scalars_in(folder) == scalars_of(history)
    assert seen == [4, 8, 12]
    copy.deepcopy(callbacks[0])
    pickle.dumps(callbacks[0])


def test_tensorboard_shows_each_epoch_of_a_training_that_goes_on_once(tmp_path):
    pytest.importorskip("tensorboardX")
    folder, path = tmp_path / "run", tmp_path / "checkpoint"
    callbacks = [cl.callbacks.TensorBoard(folder), cl.callbacks.Checkpoint(path, every=2)]
    train(classifier(2, 3), X, Y, epochs=3, callbacks=callbacks)  # epoch 3 is in no checkpoint
    history = train(classifier(2, 3), X, Y, epochs=5, callbacks=callbacks, resume=path)
    assert scalars_in(folder) == scalars_of(history)


def test_a_folder_that_cannot_be_made_is_an_error_before_the_first_step(tmp_path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(OSError, match="file"):
        train(model, X, Y, callbacks=[cl.callbacks.TensorBoard(tmp_path / "file" / "run")])
    assert bits(model) == before


def test_without_tensorboardx_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"-m pip install tensorboardX"):
        cl.callbacks.TensorBoard(tmp_path)


# ---- validation and early stopping without Python --------------------------------------------------------------------


class InPython(cl.callbacks.EarlyStopping):
    """The same, but every epoch goes through Python, as `fit` replays only what it knows."""


def stopped_early(kind, seed, **options):
    """The state after a training that is stopped early: parameters, buffers, history and what the callback found."""
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
    states = [stopped_early(kind, seed, **options) for kind in (cl.callbacks.EarlyStopping, InPython)]
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
