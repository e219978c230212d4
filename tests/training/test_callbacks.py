"""Callbacks: what `fit` asks of them, their states, and calls after every n steps."""

import json
import math

import numpy as np
import pytest
from caffelite.callbacks import Each, EarlyStopping, ReduceLROnPlateau, Training

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.callback_data import VALIDATION, Noting, Rows, X, Y, play_values, same, with_buffers

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


def test_a_callback_that_is_never_due_is_called_at_the_end_and_with_others():
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
    history = train(classifier(2, 3), X, Y, epochs=2, callbacks=[type("Some", (), methods)()])
    assert history.epochs == 2


def test_if_one_begin_raises_the_begun_callbacks_end_and_nothing_is_trained():
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


def test_all_callbacks_end_even_if_the_end_of_one_raises():
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
def test_something_other_than_a_callback_raises(wrong):
    with pytest.raises(TypeError, match="callbacks: expected callables"):
        train(classifier(2, 3), X, Y, callbacks=[wrong])


def test_callbacks_come_in_a_list():
    with pytest.raises(TypeError, match="callbacks: expected a list"):
        train(classifier(2, 3), X, Y, callbacks=EarlyStopping("loss"))


@pytest.mark.parametrize("wrong", [3, None])
def test_callbacks_other_than_a_list_raise_and_say_what_is_expected(wrong):
    with pytest.raises(TypeError, match=rf"callbacks: expected a list of callables .*, got {wrong}"):
        train(classifier(2, 3), X, Y, callbacks=wrong)


def test_methods_that_other_frameworks_call_are_not_ignored_in_silence():
    class Keras:
        def on_train_end(self, logs=None):
            raise AssertionError

        def on_epoch_end(self, epoch, logs=None):
            raise AssertionError

    class TwoStyles(Keras):
        def __call__(self, epoch, history):
            pass

    with pytest.raises(TypeError, match=r"no __call__ \(caffelite does not call on_train_end, on_epoch_end\)"):
        train(classifier(2, 3), X, Y, callbacks=[Keras()])
    message = r"does not call on_train_end, on_epoch_end of TwoStyles: .* begin\(training\), __call__\(epoch, history\)"
    with pytest.warns(cl.TrainingWarning, match=message):
        train(classifier(2, 3), X, Y, callbacks=[TwoStyles()])


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


# ---- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: EarlyStopping("mine", mode="min", patience=3), lambda: ReduceLROnPlateau("mine", mode="min")]
)
def test_the_state_of_a_callback_lets_another_one_go_on(make):
    values = [5, 3, 4, 6]
    callback, other = make(), make()
    model = with_buffers()
    play_values(callback, values[:2], "mine", model=model)
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
def test_a_state_that_cannot_be_raises(change):
    callback = EarlyStopping("mine", mode="min")
    play_values(callback, [5, 3], "mine", model=with_buffers())
    state = callback.state_dict()
    with pytest.raises(ValueError, match="EarlyStopping"):
        callback.load_state_dict(state | change)
    assert same(callback.state_dict(), state)


# ---- every so many steps --------------------------------------------------------------------------------------------


def make_batches(size):
    """Return the batches of X and Y as an iterable: Python makes each."""
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, len(X), size)]


WAYS = {
    "in memory": lambda: cl.DataGenerator(X, Y, batch_size=8, seed=1),  # 60 rows: 7 full batches and a short one
    "streamed": lambda: make_batches(8),
    "read": lambda: cl.DataGenerator(Rows(X), Rows(Y), batch_size=8, seed=1),
}


def num_steps(training):
    """How many steps a training with Adam has made."""
    return int(training.optimizer.state_dict()["steps"][0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("every", [1, 3, 8, 11, 100])
def test_each_is_called_after_every_so_many_steps_over_all_epochs(way, every):
    called, model = [], classifier(2, 3)
    each = Each(every, lambda step, training: called.append((step, num_steps(training), training.history.epochs)))
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
            called.append((step, num_steps(training)))
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
        train(classifier(2, 3), make_batches(8), callbacks=callbacks)
    callbacks[-1].f = lambda *_: None
    train(classifier(2, 3), make_batches(8), callbacks=callbacks, resume=checkpoint.path)
    assert called == [3, 6, 6]  # the checkpoint is of step 5


def test_each_takes_a_number_of_steps_and_a_callable():
    with pytest.raises(ValueError, match="steps"):
        Each(0, print)
    with pytest.raises(TypeError, match=r"\(step, training\)"):
        Each(1, 2)
    for state in ({}, {"steps_done": -1}, {"steps_done": 1.0}):
        with pytest.raises(ValueError, match="steps_done"):
            Each(1, print).load_state_dict(state)
