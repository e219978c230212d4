"""Model and History: building, training, predicting, state, and what happens when something is wrong."""

import contextlib
import copy
import itertools
import os
import pickle
import random
import re
import signal
import threading
import time

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from tests.conftest import bits, classifier, train
from tests.reference import LAYOUTS, plain_copy

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


# ---- a user's own parts, in NumPy -----------------------------------------------------------------------------------


class Scale(cl.Function):
    """y = w x, elementwise over the features."""

    def __init__(self, features):
        self.w = cl.Tensor(np.ones(features), requires_grad=True, name="w")

    def parameters(self):
        return [self.w]

    def forward(self, x):
        self.x = x
        return x * self.w.data

    def backward(self, dy):
        self.w.add_grad((dy * self.x).sum(axis=0))
        return dy * self.w.data


class Rectifier(cl.Function):
    """max(x, 0)."""

    def forward(self, x):
        self.mask = x > 0
        return np.where(self.mask, x, 0)

    def backward(self, dy):
        return np.where(self.mask, dy, 0)


class SquaredError(cl.Function):
    """The mean of (outputs − targets)²."""

    def forward(self, outputs, targets):
        self.difference = outputs - targets
        return (self.difference**2).mean()

    def backward(self, dy):
        return dy * 2 * self.difference / self.difference.size


class CrossEntropy(cl.Function):
    """Softmax and mean negative log-likelihood."""

    def forward(self, scores, targets):
        self.p = np.exp(scores - scores.max(axis=1, keepdims=True))
        self.p /= self.p.sum(axis=1, keepdims=True)
        self.targets = targets
        return -np.log(self.p[np.arange(len(targets)), targets]).mean()

    def backward(self, dy):
        return dy * (self.p - np.eye(self.p.shape[1], dtype=self.p.dtype)[self.targets]) / len(self.p)


class Descent(cl.Optimizer):
    """w ← w − lr g."""

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - np.asarray(self.lr, p.dtype) * p.grad


class Through(cl.Function):
    """The identity, calling back at each forward and backward."""

    def __init__(self, forward=None, backward=None):
        self.on_forward, self.on_backward = forward, backward

    def forward(self, x):
        if self.on_forward:
            self.on_forward()
        return x

    def backward(self, dy):
        return dy if self.on_backward is None else self.on_backward(dy)


# ---- training -------------------------------------------------------------------------------------------------------


def by_hand(model, x, y, steps, loss=None, **options):
    """The textbook's loop over Functions, full batches."""
    loss, optimizer = loss or cl.SoftmaxLoss(), cl.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})
    for _ in range(steps):
        optimizer.zero_grad()
        h = x
        for function in model.functions:
            h = function.forward(h)
        loss.forward(h, y)
        d = loss.backward()
        for function in reversed(model.functions):
            d = function.backward(d)
        optimizer.step()
    return model


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-3), (np.float64, 1e-9)])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_hundred_steps_are_those_of_a_numpy_loop_in_float64(dtype, tolerance, nesterov):
    x, y = cl.datasets.spiral(points_per_class=100, seed=0)
    model = classifier(2, 100, 3, dtype=dtype)
    w1, b1, w2, b2 = weights = [p.data.astype(np.float64) for p in model.parameters()]
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=nesterov)
    history = train(model, x, y, optimizer=optimizer, epochs=100, batch_size=len(x))

    x, velocity, losses = x.astype(np.float64), [np.zeros_like(w) for w in weights], []
    for _ in range(100):
        h = np.maximum(x @ w1 + b1, 0)
        p = np.exp(h @ w2 + b2)
        p /= p.sum(axis=1, keepdims=True)
        losses.append(-np.log(p[np.arange(len(y)), y]).mean())
        d = (p - np.eye(3)[y]) / len(y)
        dh = (d @ w2.T) * (h > 0)
        for w, v, g in zip(weights, velocity, [x.T @ dh, dh.sum(axis=0), h.T @ d, d.sum(axis=0)], strict=True):
            g += 1e-3 * w
            v[...] = 0.9 * v + g
            w -= 0.1 * (g + 0.9 * v if nesterov else v)

    got = np.concatenate([p.data.ravel() for p in model.parameters()]).astype(np.float64)
    expected = np.concatenate([w.ravel() for w in weights])
    assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)
    np.testing.assert_allclose(history["loss"], losses, rtol=tolerance)


@DTYPES
def test_the_textbook_loop_gives_the_bits_of_fit(dtype):
    x = X.astype(dtype)
    fitted = classifier(2, 16, 8, 3, dtype=dtype)
    train(fitted, x, Y, epochs=5, batch_size=len(x), shuffle=False)
    assert bits(by_hand(classifier(2, 16, 8, 3, dtype=dtype), x, Y, 5)) == bits(fitted)


def test_the_textbook_loop_over_batches_gives_the_bits_of_fit():
    fitted = classifier(2, 16, 3)
    train(fitted, X, Y, epochs=2, batch_size=16, shuffle=False)
    model, loss = classifier(2, 16, 3), cl.SoftmaxLoss()
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for i in range(0, len(X), 16):
            optimizer.zero_grad()
            loss.forward(model.forward(X[i : i + 16]), Y[i : i + 16])
            model.backward(loss.backward())
            optimizer.step()
    assert bits(model) == bits(fitted)


def test_the_graph_gives_the_bits_of_fit():
    fitted = classifier(2, 16, 3)
    train(fitted, X, Y, epochs=3, batch_size=len(X), shuffle=False)
    model, loss = classifier(2, 16, 3), cl.SoftmaxLoss()
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(cl.Tensor(X)), Y).backward()
        optimizer.step()
    assert bits(model) == bits(fitted)


def test_a_spiral_is_learned():
    x, y = cl.datasets.spiral(points_per_class=100, seed=0)
    model = classifier(2, 100, 3)
    history = train(model, x, y, lr=0.1, epochs=300)
    assert history["loss"][-1] < 0.1 < history["loss"][0]
    assert (model.predict(x).argmax(axis=1) == y).mean() > 0.97


@DTYPES
def test_two_runs_give_the_same_bits_and_the_same_history(dtype):
    runs = []
    for _ in range(2):
        model = classifier(2, 16, 3, dtype=dtype)
        history = train(model, X, Y, epochs=3, validation_split=0.2, metrics=["accuracy"])
        runs.append((bits(model), dict(history)))
    assert runs[0] == runs[1]


def test_the_seed_of_the_model_and_that_of_fit_are_heard():
    def trained(stream, seed):
        model = classifier(2, 16, 3, seed=stream)
        model.load_state_dict(classifier(2, 16, 3).state_dict())
        train(model, X, Y, seed=seed)
        return bits(model)

    assert trained(0, None) != trained(1, None)
    assert trained(0, seed=1) == trained(1, seed=1) != trained(0, seed=2)


def test_fit_goes_on_from_the_present_parameters():
    model, whole = classifier(2, 16, 3), classifier(2, 16, 3)
    for _ in range(3):
        train(model, X, Y, momentum=0.0, shuffle=False)
    train(whole, X, Y, momentum=0.0, shuffle=False, epochs=3)
    assert bits(model) == bits(whole)


def test_the_short_last_batch_is_trained_on():
    model, by_batches = classifier(2, 16, 3), classifier(2, 16, 3)
    train(model, X, Y, batch_size=25, shuffle=False)
    train(by_batches, [(X[:25], Y[:25]), (X[25:50], Y[25:50]), (X[50:], Y[50:])])
    assert bits(model) == bits(by_batches)


def test_the_order_of_the_rows_changes_from_epoch_to_epoch():
    orders = []

    def order(outputs, targets):
        orders.append(targets.ravel().tolist())
        return 0

    rows = np.arange(20.0)[:, None]
    train(cl.Model([cl.Linear(1, 1)]), rows, rows, lr=0, loss=SquaredError(), metrics=[order], epochs=3, batch_size=20)
    assert all(sorted(each) == list(range(20)) for each in orders)
    assert len({tuple(each) for each in [*orders, range(20)]}) == 4


def test_training_is_training_and_evaluating_is_not():
    seen = []
    model = cl.Model([cl.Linear(2, 3), Through(lambda: seen.append(cl.is_training()))])
    train(model, X, Y, batch_size=len(X), validation_data=(X, Y))
    model.predict(X)
    model.evaluate(X, Y, loss=cl.SoftmaxLoss())
    model.forward(X)
    assert seen == [True, False, False, False, True]


# ---- data -----------------------------------------------------------------------------------------------------------


def test_arrays_with_a_seed_are_a_generator_with_that_seed():
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    histories = [
        train(model, X, Y, seed=5, epochs=3, batch_size=16),
        train(other, cl.DataGenerator(X, Y, seed=5, batch_size=16), epochs=3),
    ]
    assert bits(model) == bits(other)
    assert histories[0] == histories[1]


@DTYPES
@pytest.mark.parametrize(
    "convert",
    [
        np.ndarray.tolist,
        lambda x: x.astype(np.float64),
        memoryview,
        cl.Tensor,
        lambda x: x.astype(">f4"),
    ],
    ids=["lists", "float64", "memoryview", "Tensor", "big-endian"],
)
def test_anything_numpy_can_read_is_data(dtype, convert):
    model, other = classifier(2, 16, 3, dtype=dtype), classifier(2, 16, 3, dtype=dtype)
    train(model, X, Y)
    train(other, convert(X), Y.tolist())
    assert bits(model) == bits(other)
    assert model.predict(X).tobytes() == other.predict(convert(X)).tobytes()
    assert model.evaluate(X, Y, loss=cl.SoftmaxLoss()) == other.evaluate(convert(X), Y.tolist(), loss=cl.SoftmaxLoss())


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.float16, bool])
def test_numbers_of_other_dtypes_become_the_dtype_of_the_model(kind):
    x = (np.arange(40).reshape(20, 2) % 7).astype(kind)
    model, other = classifier(2, 3), classifier(2, 3)
    train(model, x, Y[:20])
    train(other, x.astype(np.float32), Y[:20])
    assert bits(model) == bits(other)


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8"])
def test_labels_of_any_integer_dtype_give_the_same_bits(kind):
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    train(model, X, Y)
    train(other, X, Y.astype(kind))
    assert bits(model) == bits(other)


@DTYPES
def test_float_targets_become_the_dtype_of_the_model_and_integers_stay(dtype):
    seen = []

    def note(outputs, targets):
        seen.append((outputs.dtype, targets.dtype))
        return 0

    model = cl.Model([cl.Linear(2, 1)], dtype=dtype)
    for kind in (np.float16, np.float32, np.float64, np.int16, np.uint8):
        train(model, X, np.ones((len(X), 1), kind), loss=SquaredError(), metrics=[note], batch_size=len(X))
    assert [outputs for outputs, _ in seen] == [dtype] * 5
    assert [targets for _, targets in seen] == [dtype, dtype, dtype, np.int16, np.uint8]


def batches_of(x, y, size):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


class Batches:
    """An iterable of unknown length that can be read again."""

    def __iter__(self):
        yield from batches_of(X, Y, 25)


@pytest.mark.parametrize(
    "batches", [batches_of(X, Y, 25), tuple(batches_of(X.tolist(), Y.tolist(), 25)), Batches()], ids=type
)
def test_any_iterable_of_batches_is_data(batches):
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    histories = [train(model, X, Y, shuffle=False, batch_size=25, epochs=2), train(other, batches, epochs=2)]
    assert bits(model) == bits(other)
    assert histories[0] == histories[1]
    assert other.evaluate(batches, loss=cl.SoftmaxLoss())["loss"] == pytest.approx(
        other.evaluate(X, Y, loss=cl.SoftmaxLoss())["loss"], rel=1e-6
    )


def test_an_iterator_that_is_exhausted_in_the_second_epoch_raises_value_error_naming_it():
    model, once = classifier(2, 16, 3), classifier(2, 16, 3)
    with pytest.raises(ValueError, match="epoch 2"):
        train(model, iter(batches_of(X, Y, 25)), epochs=3)
    train(once, iter(batches_of(X, Y, 25)))
    assert bits(model) == bits(once)


def test_an_iterable_without_any_batch_raises_value_error():
    with pytest.raises(ValueError, match="epoch 1"):
        train(classifier(2, 3), [])
    with pytest.raises(ValueError, match="no batches"):
        classifier(2, 3).evaluate([], loss=cl.SoftmaxLoss())


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (X, TypeError),
        ((X,), TypeError),
        ((X, Y, Y, Y), TypeError),
        ((X, Y[:-1]), ValueError),
        ((X[:0], Y[:0]), ValueError),
        ((X, Y + 1), ValueError),
        ((X, Y.astype(float)), TypeError),
        ((X.astype(complex), Y), TypeError),
        ((X[:, :1], Y), ValueError),
    ],
)
def test_a_bad_batch_raises_before_its_step(batch, error):
    model, one_step = classifier(2, 3), classifier(2, 3)
    with pytest.raises(error):
        train(model, [(X, Y), batch])
    train(one_step, [(X, Y)])
    assert bits(model) == bits(one_step)


@pytest.mark.parametrize(
    ("x", "y"),
    [(X, None), (cl.DataGenerator(X, Y), Y), (cl.DataGenerator(X), None)],
    ids=["none", "two", "none in it"],
)
def test_data_without_targets_or_with_two_raise_value_error(x, y):
    model = classifier(2, 3)
    with pytest.raises(ValueError, match=r"\by\b|targets"):
        train(model, x, y)
    with pytest.raises(ValueError, match=r"\by\b|targets"):
        model.evaluate(x, y, loss=cl.SoftmaxLoss())


def rows_seen(model, x, y, **options):
    """The targets of the rows that a fit trains on, by epoch, and those that it evaluates."""
    trained, evaluated = [], []

    def note(outputs, targets):
        (trained if cl.is_training() else evaluated).append(sorted(targets.ravel().tolist()))
        return 0

    history = train(model, x, y, loss=SquaredError(), metrics=[note], batch_size=1000, **options)
    return trained, evaluated, history


def test_a_validation_split_holds_out_the_same_rows_in_every_epoch():
    rows = np.arange(21.0)[:, None]
    trained, evaluated, history = rows_seen(
        cl.Model([cl.Linear(1, 1)]), rows, rows, lr=0, validation_split=0.3, epochs=3, seed=0
    )
    assert len(evaluated[0]) == 6  # int(21 · 0.3)
    assert sorted(trained[0] + evaluated[0]) == list(range(21))
    assert trained == [trained[0]] * 3
    assert evaluated == [evaluated[0]] * 3
    assert list(history) == ["loss", "note", "val_loss", "val_note"]


def test_the_rows_held_out_depend_on_the_seed():
    rows = np.arange(50.0)[:, None]

    def held_out(seed, **options):
        model = cl.Model([cl.Linear(1, 1)], seed=0)
        return rows_seen(model, rows, rows, lr=0, validation_split=0.5, seed=seed, **options)[1][0]

    assert held_out(1) == held_out(1, shuffle=False) != held_out(2)
    assert held_out(None) == held_out(None)  # from the stream of the model
    assert held_out(1) != list(range(25, 50))


def held_out_by(model, n=20, share=0.4, **options):
    """The rows of n that a fit of the model evaluates."""
    rows = np.arange(float(n))[:, None]
    return rows_seen(model, rows, rows, lr=0, validation_split=share, **options)[1][0]


def test_a_further_fit_holds_out_the_same_rows():
    model = cl.Model([cl.Linear(1, 1)], seed=0)
    first = held_out_by(model)
    assert held_out_by(cl.Model([cl.Linear(1, 1)], seed=0)) == first
    other = held_out_by(model, 30)
    assert held_out_by(model) == first
    assert held_out_by(model, 30) == other
    assert set(held_out_by(model, share=0.2)) < set(first)


def test_a_seed_draws_another_split_which_is_then_remembered():
    model = cl.Model([cl.Linear(1, 1)], seed=0)
    first, anew = held_out_by(model), held_out_by(model, seed=1)
    assert anew == held_out_by(model, seed=1) == held_out_by(model) != first


def test_copies_and_pickles_remember_a_split_and_a_model_that_is_drawn_again_does_not():
    model = cl.Model([cl.Linear(1, 1)], seed=0)
    first = held_out_by(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert held_out_by(other) == first
    model.initialize(7)
    assert held_out_by(model) == held_out_by(cl.Model([cl.Linear(1, 1)], seed=7)) != first


@pytest.mark.parametrize("give", [lambda: (X, Y), lambda: [X.tolist(), Y], lambda: cl.DataGenerator(X, Y)])
def test_validation_data_are_evaluated_after_each_epoch(give):
    model = classifier(2, 16, 3)
    evaluated = []

    def evaluate(epoch, history):
        evaluated.append(model.evaluate(X, Y, loss=cl.SoftmaxLoss(), metrics=["accuracy"]))

    history = train(model, X, Y, validation_data=give(), metrics=["accuracy"], epochs=3, callbacks=[evaluate])
    np.testing.assert_allclose(history["val_loss"], [e["loss"] for e in evaluated], rtol=1e-6)
    assert history["val_accuracy"] == pytest.approx([e["accuracy"] for e in evaluated])


def test_validation_does_not_change_the_training():
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    train(model, X, Y, epochs=3)
    train(other, X, Y, epochs=3, validation_data=(X[:7], Y[:7]))
    assert bits(model) == bits(other)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"validation_split": 1.0}, ValueError),
        ({"validation_split": -0.1}, ValueError),
        ({"validation_split": float("nan")}, ValueError),
        ({"validation_split": 0.01}, ValueError),  # none of 60 rows
        ({"validation_split": 0.2, "validation_data": (X, Y)}, ValueError),
        ({"validation_split": "0.2"}, TypeError),
        ({"validation_split": True}, TypeError),
        ({"validation_split": None}, TypeError),
        ({"validation_data": X}, TypeError),
        ({"validation_data": (X, Y, Y, Y)}, TypeError),
        ({"validation_data": (X, Y[:-1])}, ValueError),
        ({"validation_data": (X, Y + 1)}, ValueError),
        ({"validation_data": (X[:, :1], Y)}, ValueError),
        ({"validation_data": (X[:0], Y[:0])}, ValueError),
        ({"validation_data": cl.DataGenerator(X, Y - 1)}, ValueError),
    ],
)
def test_bad_validation_raises_before_the_first_step(options, error):
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(error):
        train(model, X, Y, **options)
    assert bits(model) == before


def test_a_validation_split_needs_arrays():
    with pytest.raises(ValueError, match="validation_split"):
        train(classifier(2, 3), cl.DataGenerator(X, Y), validation_split=0.5)


# ---- history, callbacks, output -------------------------------------------------------------------------------------


def test_the_history_has_a_number_for_each_epoch():
    history = train(classifier(2, 16, 3), X, Y, epochs=4, metrics=["accuracy"])
    assert isinstance(history, cl.History)
    assert list(history) == ["loss", "accuracy"]
    assert history.epochs == len(history["loss"]) == len(history["accuracy"]) == 4
    assert all(type(value) is float for values in history.values() for value in values)


def test_the_loss_of_an_epoch_is_the_mean_over_its_rows():
    model = classifier(2, 16, 3)
    history = train(model, X, Y, lr=0, batch_size=25, metrics=["accuracy"])
    evaluated = model.evaluate(X, Y, loss=cl.SoftmaxLoss(), metrics=["accuracy"])
    assert history["loss"] == pytest.approx([evaluated["loss"]], rel=1e-6)
    assert history["accuracy"] == pytest.approx([evaluated["accuracy"]])


def test_penalties_are_not_in_the_history():
    model, penalized = classifier(2, 16, 3), classifier(2, 16, 3)
    history = train(model, X, Y, lr=0, shuffle=False)
    optimizer = cl.SGD(penalized.parameters(), lr=0, weight_decay=10)
    assert train(penalized, X, Y, shuffle=False, optimizer=optimizer) == history


def test_a_history_can_be_plotted():
    pytest.importorskip("matplotlib")
    history = train(classifier(2, 3), X, Y, epochs=3, metrics=["accuracy"], validation_data=(X, Y))
    figure = history.plot()
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[i + 1, v] for i, v in enumerate(history["loss"])]
    assert figure.axes[0].lines[1].get_ydata().tolist() == history["val_loss"]


def test_callbacks_are_called_after_each_epoch_counted_from_zero():
    calls = []

    def first(epoch, history):
        calls.append((epoch, history.epochs))

    train(classifier(2, 3), X, Y, epochs=3, callbacks=[first, lambda epoch, history: calls.append("second")])
    assert calls == [(0, 1), "second", (1, 2), "second", (2, 3), "second"]


def test_a_callback_that_returns_true_ends_the_training():
    model, two = classifier(2, 16, 3), classifier(2, 16, 3)
    history = train(model, X, Y, epochs=10, callbacks=[lambda epoch, history: epoch == 1])
    train(two, X, Y, epochs=2)
    assert history.epochs == 2
    assert bits(model) == bits(two)


def test_a_callback_may_set_the_learning_rate():
    model, slowed = classifier(2, 16, 3), classifier(2, 16, 3)
    optimizer = cl.SGD(slowed.parameters(), lr=0.1)

    def stop(epoch, history):
        optimizer.lr = 0

    train(slowed, X, Y, optimizer=optimizer, epochs=3, callbacks=[stop])
    train(model, X, Y, momentum=0)
    assert bits(model) == bits(slowed)


def test_the_exception_of_a_callback_comes_through_and_the_model_stays_usable():
    class Mine(Exception):
        pass

    def fail(epoch, history):
        if epoch == 1:
            raise Mine("here")

    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    with pytest.raises(Mine, match="here"):
        train(model, X, Y, epochs=5, callbacks=[fail], shuffle=False, momentum=0)
    train(model, X, Y, shuffle=False, momentum=0)
    train(other, X, Y, epochs=3, shuffle=False, momentum=0)
    assert bits(model) == bits(other)


def test_the_exception_of_a_generator_comes_through_and_the_model_stays_usable():
    def batches():
        yield X, Y
        raise OSError("gone")

    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    with pytest.raises(OSError, match="gone"):
        train(model, batches(), momentum=0)
    train(model, [(X, Y)], momentum=0)
    train(other, [(X, Y)], momentum=0, epochs=2)
    assert bits(model) == bits(other)


def test_verbose_0_prints_nothing(capsys):
    train(classifier(2, 3), X, Y, epochs=3, verbose=0, callbacks=[lambda *_: time.sleep(0.3)])
    assert capsys.readouterr() == ("", "")


def test_verbose_2_prints_a_line_an_epoch_counted_from_one(capsys):
    train(classifier(2, 3), X, Y, epochs=3, verbose=2, metrics=["accuracy"], validation_data=(X, Y))
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert all(name in lines[0] for name in ("loss", "accuracy", "val_loss", "val_accuracy"))
    assert printed.err == ""


def test_verbose_1_draws_a_bar(capsys):
    train(classifier(2, 3), X, Y, epochs=4, verbose=1, callbacks=[lambda *_: time.sleep(0.1)])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "epoch 4/4" in printed.err
    assert " 75%" in printed.err
    assert "100%" in printed.err
    assert "loss" in printed.err


def test_verbose_auto_is_silent_for_a_short_run(capsys):
    train(classifier(2, 3), X, Y, epochs=3, verbose="auto")
    assert capsys.readouterr() == ("", "")


def test_verbose_auto_prints_lines_where_there_is_no_terminal(capsys):
    train(classifier(2, 3), X, Y, epochs=4, verbose="auto", callbacks=[lambda *_: time.sleep(0.3)])
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("epoch 4/4")
    assert 2 <= len(printed.out.splitlines()) < 4
    assert printed.err == ""


def test_verbose_auto_draws_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    train(classifier(2, 3), X, Y, epochs=4, verbose="auto", callbacks=[lambda *_: time.sleep(0.3)])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "epoch 4/4" in printed.err


# ---- predicting and evaluating --------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize(
    "sizes", [(2, 100, 3), (1, 1), (7, 33, 5), (64, 128, 10), (300, 257, 131, 17), (512, 512, 512, 10)], ids=str
)
def test_the_prediction_for_a_row_does_not_depend_on_its_batch(sizes, dtype):
    model = classifier(*sizes, dtype=dtype)
    x = np.random.default_rng(0).normal(size=(67, sizes[0])).astype(dtype)
    together = model.predict(x)
    assert (together.shape, together.dtype) == ((67, sizes[-1]), dtype)
    for i in range(67):
        assert model.predict(x[i : i + 1])[0].tobytes() == together[i].tobytes()
    for size in (1, 13, 66, 67, 2**40):
        assert model.predict(x, batch_size=size).tobytes() == together.tobytes()
    assert model.predict(x[::-1])[::-1].tobytes() == together.tobytes()


def test_a_prediction_is_what_forward_returns_and_belongs_to_the_caller():
    model = classifier(2, 16, 3)
    prediction = model.predict(X)
    assert prediction.tobytes() == model.forward(X).tobytes() == model(X).data.tobytes()
    kept = prediction.copy()
    model.predict(X)[...] = 0
    assert (prediction == kept).all()


def test_evaluating_gives_row_weighted_means_whatever_the_batches():
    model = classifier(2, 16, 3)
    whole = model.evaluate(X, Y, loss=cl.SoftmaxLoss(), metrics=["accuracy"])
    for size in (1, 7, 59):
        parts = model.evaluate(X, Y, loss=cl.SoftmaxLoss(), metrics=["accuracy"], batch_size=size)
        assert parts == pytest.approx(whole, rel=1e-6)
    assert list(whole) == ["loss", "accuracy"]
    generated = model.evaluate(cl.DataGenerator(X, Y), loss=cl.SoftmaxLoss(), metrics=["accuracy"])
    assert generated == pytest.approx(whole, rel=1e-6)


def test_predicting_and_evaluating_change_neither_parameters_nor_gradients():
    model = classifier(2, 16, 3)
    by_hand(model, X, Y, 1)
    before, gradients = bits(model), [p.grad.copy() for p in model.parameters()]
    model.predict(X)
    model.evaluate(X, Y, loss=cl.SoftmaxLoss())
    assert bits(model) == before
    assert all((p.grad == g).all() for p, g in zip(model.parameters(), gradients, strict=True))


# ---- what is wrong --------------------------------------------------------------------------------------------------

BAD_LABELS = {
    "negative": (np.where(np.arange(60) >= 7, -1, Y), ValueError, r"-1 .*row 7\b.*0 … 2"),
    "the number of classes": (np.where(np.arange(60) == 50, 3, Y), ValueError, r"3 .*row 50\b.*0 … 2"),
    "large": (np.where(np.arange(60) == 0, 2**40, Y), ValueError, r"row 0\b.*0 … 2"),
    "beyond int64": (np.where(np.arange(60) == 9, 2**64 - 1, Y.astype(np.uint64)), ValueError, r"row 9\b.*0 … 2"),
    "just beyond int64": (np.where(np.arange(60) == 9, 2**63, Y.astype(np.uint64)), ValueError, r"row 9\b.*0 … 2"),
    "beyond uint64": ([*Y.tolist()[:-1], 2**70], TypeError, r"0 … 2"),
    "int8, negative": (np.where(np.arange(60) == 3, -128, Y).astype(np.int8), ValueError, r"-128 .*row 3\b.*0 … 2"),
    "float": (Y.astype(float), TypeError, r"0 … 2.*float64"),
    "half": (Y.astype(np.float16), TypeError, r"0 … 2.*float16"),
    "NaN": (np.where(Y == 1, np.nan, Y), TypeError, r"0 … 2.*float64"),
    "bool": (Y == 1, TypeError, r"0 … 2.*bool"),
    "complex": (Y.astype(complex), TypeError, r"0 … 2.*complex"),
    "string": (Y.astype(str), TypeError, r"0 … 2"),
    "object": (Y.astype(object), TypeError, r"0 … 2.*object"),
    "None": ([*Y.tolist()[:-1], None], TypeError, r"0 … 2.*object"),
    "time": (Y.astype("M8[s]"), TypeError, r"0 … 2"),
    "2-d": (Y[:, None], ValueError, r"\(60, 1\)"),
    "one-hot": (np.eye(3, dtype=int)[Y], ValueError, r"\(60, 3\)"),
    "too short": (Y[:-1], ValueError, r"60.*59|59.*60"),
    "too long": (np.append(Y, 0), ValueError, r"60.*61|61.*60"),
    "empty": (Y[:0], ValueError, r"60.*\(0,\)|\(0,\).*60"),
    "0-d": (np.int64(1), ValueError, r"60"),
}


@pytest.mark.parametrize("kind", BAD_LABELS)
@pytest.mark.parametrize("where", ["fit", "generator", "validation", "evaluate", "forward"])
def test_bad_labels_raise_before_anything_is_written(kind, where):
    labels, error, message = BAD_LABELS[kind]
    model, loss = classifier(2, 16, 3), cl.SoftmaxLoss()
    before = bits(model)
    calls = {
        "fit": lambda: train(model, X, labels, batch_size=16),
        "generator": lambda: train(model, cl.DataGenerator(X, labels, batch_size=16)),
        "validation": lambda: train(model, X, Y, validation_data=(X, labels)),
        "evaluate": lambda: model.evaluate(X, labels, loss=loss, batch_size=16),
        "forward": lambda: loss.forward(model.forward(X), labels),
    }
    with pytest.raises(error, match=None if where == "generator" else message):
        calls[where]()
    assert bits(model) == before
    assert all(p.grad is None for p in model.parameters())


def test_with_a_validation_split_the_first_bad_row_is_that_of_the_caller():
    labels = np.where(np.arange(60) >= 41, 9, Y)
    with pytest.raises(ValueError, match=r"row 41\b"):
        train(classifier(2, 3), X, labels, validation_split=0.4, seed=0)


def test_backward_after_a_forward_that_failed_raises_runtime_error():
    loss = cl.SoftmaxLoss()
    loss.forward(np.zeros((60, 3), np.float32), Y)
    with pytest.raises(ValueError, match="row 0"):
        loss.forward(np.zeros((60, 3), np.float32), Y + 3)
    with pytest.raises(RuntimeError):
        loss.backward()


def test_labels_that_change_after_the_forward_that_checked_them_do_not_reach_the_backward():
    loss, labels = cl.SoftmaxLoss(), Y.copy()
    loss.forward(np.zeros((60, 3), np.float32), labels)
    expected = loss.backward()
    labels[...] = 0
    assert (loss.backward() == expected).all()


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (X[:, :1], ValueError),
        (np.ones((60, 3)), ValueError),
        (np.ones((60, 2, 2)), ValueError),
        (np.ones(60), ValueError),
        (np.ones(()), ValueError),
        (X[:0], ValueError),
        ([], ValueError),
        (np.ones((60, 0)), ValueError),
        (X[:59], ValueError),
        (np.concatenate([X, X]), ValueError),
        (X.astype(complex), TypeError),
        (X.astype(str), TypeError),
        (X.astype(object), TypeError),
        (X.astype(np.longdouble), TypeError),
        (X.astype("M8[s]"), TypeError),
        (np.zeros(60, "f4,f4"), TypeError),
        ([None] * 60, TypeError),
        ([[1.0, 2.0], [3.0]] * 30, ValueError),
    ],
)
def test_bad_rows_raise_before_anything_is_written(x, error):
    model = classifier(2, 16, 3)
    before = bits(model)
    for call in (
        lambda: train(model, x, Y),
        lambda: train(model, X, Y, validation_data=(x, Y)),
        lambda: model.evaluate(x, Y, loss=cl.SoftmaxLoss()),
    ):
        with pytest.raises(error):
            call()
    assert bits(model) == before


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (X[:, :1], ValueError),
        (np.ones((60, 2, 3)), ValueError),
        (np.ones(2), ValueError),
        (1.0, ValueError),
        (X[:0], ValueError),
        ([], ValueError),
        (X.astype(complex), TypeError),
        (X.astype(np.longdouble), TypeError),
        (X.astype(str), TypeError),
        (X.astype(object), TypeError),
        (None, TypeError),
    ],
)
def test_predict_raises_for_bad_rows(x, error):
    with pytest.raises(error):
        classifier(2, 16, 3).predict(x)


def test_wrong_shapes_are_named_both():
    model = classifier(64, 10)
    for call in (
        lambda: model.predict(np.ones((32, 100))),
        lambda: train(model, np.ones((32, 100)), np.zeros(32, int)),
        lambda: model.forward(np.ones((32, 100), np.float32)),
        lambda: model(np.ones((32, 100), np.float32)),
    ):
        with pytest.raises(ValueError, match=r"64.*100|100.*64"):
            call()


def test_epochs_and_the_batch_size_of_predict_are_never_none():
    with pytest.raises(TypeError, match="epochs must be an integer"):
        train(classifier(2, 3), X, Y, epochs=None)
    with pytest.raises(TypeError, match="batch_size must be an integer"):
        classifier(2, 3).predict(X, batch_size=None)


@pytest.mark.parametrize("name", ["epochs", "batch_size"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-1, ValueError), (1.0, TypeError), ("3", TypeError), (True, TypeError)],
)
def test_epochs_or_batch_size_that_are_no_positive_integer_raise(name, value, error):
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(error, match=name):
        train(model, X, Y, **{name: value})
    if name == "batch_size":
        with pytest.raises(error, match=name):
            model.predict(X, batch_size=value)
        with pytest.raises(error, match=name):
            model.evaluate(X, Y, loss=cl.SoftmaxLoss(), batch_size=value)
    assert bits(model) == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"loss": "softmax"}, TypeError),
        ({"loss": cl.SoftmaxLoss}, TypeError),
        ({"optimizer": "sgd"}, TypeError),
        ({"optimizer": cl.SGD}, TypeError),
        ({"callbacks": [3]}, TypeError),
        ({"verbose": 3}, ValueError),
        ({"verbose": "loud"}, ValueError),
    ],
)
def test_other_bad_options_raise_before_the_first_step(options, error):
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(error, match=next(iter(options))):
        train(model, X, Y, **options)
    assert bits(model) == before


def test_a_loss_of_several_elements_raises_and_writes_nothing():
    class Elementwise(SquaredError):
        def forward(self, outputs, targets):
            return (outputs - targets) ** 2

    model = classifier(2, 1)
    before = bits(model)
    with pytest.raises(ValueError, match="single element"):
        train(model, X, np.ones((60, 1)), loss=Elementwise())
    assert bits(model) == before


def test_a_model_without_functions_raises_value_error():
    p = cl.Tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match="no Functions"):
        train(cl.Model(), X, Y, optimizer=cl.SGD([p], lr=0.1))
    with pytest.raises(ValueError, match="no Functions"):
        cl.Model().predict(X)


@DTYPES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_data_in_any_layout_give_the_bits_of_their_plain_copy_and_are_not_written(layout, dtype):
    odd_x, odd_y = layout(X.astype(dtype)), layout(Y)
    x, y = plain_copy(odd_x), plain_copy(odd_y)
    before = odd_x.tobytes(), odd_y.tobytes()
    model, other = classifier(2, 16, 3, dtype=dtype), classifier(2, 16, 3, dtype=dtype)
    assert train(model, x, y, validation_data=(x, y)) == train(other, odd_x, odd_y, validation_data=(odd_x, odd_y))
    train(model, x, y, validation_split=0.5)
    train(other, odd_x, odd_y, validation_split=0.5)
    train(model, [(x, y)])
    train(other, [(odd_x, odd_y)])
    assert bits(model) == bits(other)
    assert model.predict(x).tobytes() == other.predict(odd_x).tobytes()
    assert model.evaluate(x, y, loss=cl.SoftmaxLoss()) == other.evaluate(odd_x, odd_y, loss=cl.SoftmaxLoss())
    assert (odd_x.tobytes(), odd_y.tobytes()) == before


# ---- diverging ------------------------------------------------------------------------------------------------------


class Watched:
    """Five batches an epoch. Spoils one of them, and notes the state of the training before each."""

    def __init__(self, model, optimizer, epoch=None, batch=None, value=np.nan):
        self.model, self.optimizer, self.spoilt, self.value = model, optimizer, (epoch, batch), value
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        for self.batch in range(1, 6):
            x = X[12 * self.batch - 12 : 12 * self.batch].copy()
            if (self.epoch, self.batch) == self.spoilt:
                x[7, 1] = self.value
            self.before = self.state()
            yield x, Y[12 * self.batch - 12 : 12 * self.batch]

    def state(self):
        return bits(self.model), self.optimizer.state_dict()["velocity.float32"].tobytes()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_stops_the_training_before_its_step(seed, value):
    rng = random.Random(seed)
    epoch, batch = rng.randint(1, 4), rng.randint(1, 5)
    model = classifier(2, 16, 3)
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = Watched(model, optimizer, epoch, batch, value)
    with pytest.raises(cl.TrainingDiverged, match=rf"epoch {epoch}, batch {batch}\b") as error:
        train(model, batches, optimizer=optimizer, epochs=5)
    assert batches.state() == batches.before
    assert error.value.history.epochs == epoch - 1
    assert isinstance(error.value, RuntimeError)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_an_infinite_gradient_under_a_finite_loss_stops_the_training_before_its_step(seed, value, clip_norm):
    rng = random.Random(seed)
    epoch, batch = rng.randint(1, 4), rng.randint(1, 5)

    def spoilt(dy):
        return np.full_like(dy, value) if (batches.epoch, batches.batch) == (epoch, batch) else dy

    model = classifier(2, 16, 3).add(Through(backward=spoilt)).add(cl.Linear(3, 3))
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = Watched(model, optimizer)
    with pytest.raises(cl.TrainingDiverged, match=rf"epoch {epoch}, batch {batch}\b") as error:
        train(model, batches, optimizer=optimizer, epochs=5, clip_norm=clip_norm)
    assert batches.state() == batches.before
    assert error.value.history.epochs == len(error.value.history["loss"]) == epoch - 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_stops_the_training_even_if_its_gradients_are(value):
    class Spoilt(SquaredError):
        def forward(self, outputs, targets):
            super().forward(outputs, targets)
            return np.float32(value)

    model = classifier(2, 1)
    before = bits(model)
    with pytest.raises(cl.TrainingDiverged, match=r"epoch 1, batch 1\b"):
        train(model, X, np.ones((60, 1)), loss=Spoilt())
    assert bits(model) == before


def test_with_arrays_the_batch_that_holds_the_nan_is_named():
    x = X.copy()
    x[33, 0] = np.nan
    model = classifier(2, 16, 3)
    with pytest.raises(cl.TrainingDiverged, match=r"epoch 1, batch 4\b"):
        train(model, x, Y, batch_size=10, shuffle=False)
    assert all(np.isfinite(p.data).all() for p in model.parameters())


def test_a_users_optimizer_does_not_see_a_gradient_that_is_not_finite():
    model = classifier(2, 3).add(Through(backward=lambda dy: np.full_like(dy, np.inf)))
    before = bits(model)
    with pytest.raises(cl.TrainingDiverged):
        train(model, X, Y, optimizer=Descent(model.parameters(), lr=0.1))
    assert bits(model) == before


def test_a_learning_rate_that_is_too_high_ends_in_training_diverged():
    model = classifier(2, 16, 3)
    with pytest.raises(cl.TrainingDiverged) as error:
        train(model, X, Y, lr=1e30, epochs=50)
    assert 0 <= error.value.history.epochs < 50


@pytest.mark.parametrize("data", [lambda: (X, Y), lambda: ([(X, Y)],)])
def test_a_training_that_diverged_says_try_a_smaller_learning_rate(data):
    model = classifier(2, 16, 3)
    message = r"^epoch \d+, batch \d+: the (loss is nan|gradient of .* is not finite.*); try a smaller learning rate$"
    with pytest.raises(cl.TrainingDiverged, match=message):
        train(model, *data(), lr=1e30, epochs=50)


@pytest.mark.parametrize("later", [0, 1])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_training_that_diverged_names_the_layer_whose_gradient_was_the_first(later, clip_norm):
    """Those of layers 0 and 2 are not finite; that of 2 was there first. In an eager step, and in a replay."""
    count = [0]

    def spoilt(dy):
        count[0] += 1
        return np.full_like(dy, np.inf) if count[0] == 1 + later else dy

    layers = [cl.Linear(2, 4), cl.ReLU(), cl.Linear(4, 3), Through(backward=spoilt), cl.Linear(3, 3)]
    model = cl.Model(layers, seed=0)
    message = "not finite; in the backward pass, the gradient of 2.weight was the first; try a smaller learning rate"
    with pytest.raises(cl.TrainingDiverged, match=rf"^epoch 1, batch {1 + later}: .* {message}$"):
        train(model, X, Y, batch_size=20, clip_norm=clip_norm)


def test_a_parameter_that_is_not_finite_is_named_and_no_rate_is_blamed():
    model = classifier(2, 3)
    model.functions[0].weight.data = np.full((2, 3), np.nan)
    with pytest.raises(cl.TrainingDiverged, match=r"batch 1: the loss is nan; the parameter 0.weight is not finite$"):
        train(model, X, Y)


def test_a_model_that_diverged_can_be_trained_on():
    model = classifier(2, 16, 3)
    with pytest.raises(cl.TrainingDiverged):
        train(model, np.full_like(X, np.nan), Y)
    history = train(model, X, Y, epochs=3)
    assert history["loss"][-1] < history["loss"][0]


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


def interrupt():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def handler_kept():
    """Checks that fit puts Python's own handler of Ctrl-C back."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler


def interrupted(model, x=X, y=Y, **options):
    in_order = {} if y is None else {"batch_size": len(X), "shuffle": False}
    with pytest.raises(KeyboardInterrupt) as error:
        train(model, x, y, **{**in_order, **options})
    return error.value.history


@pytest.mark.usefixtures("handler_kept")
def test_ctrl_c_in_a_callback_leaves_the_completed_epochs():
    model = classifier(2, 16, 3)
    history = interrupted(model, epochs=9, callbacks=[lambda epoch, history: interrupt() if epoch == 3 else None])
    assert history.epochs == len(history["loss"]) == 4
    assert bits(model) == bits(by_hand(classifier(2, 16, 3), X, Y, 4))


@pytest.mark.usefixtures("handler_kept")
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_ctrl_c_in_a_users_function_waits_for_the_end_of_the_step(where):
    calls = itertools.count(1)

    def on_third(dy=None):
        if next(calls) == 3:
            interrupt()
        return dy

    model = classifier(2, 16, 3).add(Through(**{where: on_third}))
    history = interrupted(model, epochs=9, metrics=["accuracy"])
    assert bits(model) == bits(by_hand(classifier(2, 16, 3), X, Y, 3))
    assert [len(values) for values in history.values()] == [3, 3]  # the step was the last of the third epoch
    train(model, X, Y)
    assert next(calls) > 4


@pytest.mark.usefixtures("handler_kept")
def test_ctrl_c_in_a_users_optimizer_waits_for_the_end_of_the_step():
    class Interrupted(Descent):
        def step(self):
            for p in self.parameters:
                interrupt()
                p.data = p.data - np.float32(self.lr) * p.grad

    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    history = interrupted(model, optimizer=Interrupted(model.parameters(), lr=0.1), epochs=9)
    assert history.epochs == 1  # of one step
    train(other, X, Y, optimizer=Descent(other.parameters(), lr=0.1), batch_size=len(X), shuffle=False)
    assert bits(model) == bits(other)


@pytest.mark.usefixtures("handler_kept")
def test_ctrl_c_in_a_generator_or_a_metric_leaves_the_steps_made_so_far():
    def batches():
        yield X, Y
        interrupt()
        yield X, Y

    def metric(outputs, targets):
        interrupt()
        return 0.0

    for data, options, steps in ((batches(), {}, 1), ([(X, Y)] * 2, {"metrics": [metric]}, 2)):
        model = classifier(2, 16, 3)
        assert interrupted(model, data, None, **options).epochs == 0
        assert bits(model) == bits(by_hand(classifier(2, 16, 3), X, Y, steps))


@pytest.mark.usefixtures("handler_kept")
def test_ctrl_c_during_validation_leaves_lists_of_one_length():
    history = interrupted(
        cl.Model([cl.Linear(2, 3), Through(lambda: None if cl.is_training() else interrupt())], seed=0),
        epochs=3,
        validation_data=(X, Y),
    )
    assert {name: len(values) for name, values in history.items()} == {"loss": 0, "val_loss": 0}


@pytest.mark.usefixtures("handler_kept")
@pytest.mark.parametrize("seed", range(8))
def test_ctrl_c_at_a_random_time_leaves_a_whole_number_of_steps(seed):
    delay = random.Random(seed).uniform(0, 0.03)
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    model = classifier(2, 64, 3)
    with contextlib.closing(model_states(classifier(2, 64, 3))) as states:
        history = interrupted(
            model, epochs=10**6, batch_size=15, callbacks=[lambda epoch, history: epoch or timer.start()]
        )
        timer.join()
        before = next(itertools.islice(states, 4 * history.epochs, None))
        within = [before, *itertools.islice(states, 4)]  # four steps an epoch
    assert bits(model) in within
    assert np.isfinite(history["loss"]).all()
    train(model, X, Y)


def model_states(model):
    """The parameters' bytes before the first step of batches of 15, and after each step."""
    loss, optimizer = cl.SoftmaxLoss(), cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    yield bits(model)
    for i in itertools.cycle(range(0, 60, 15)):
        optimizer.zero_grad()
        loss(model(X[i : i + 15]), Y[i : i + 15]).backward()
        optimizer.step()
        yield bits(model)


def test_the_handler_of_the_program_is_called_and_put_back():
    calls = []

    def handler(number, frame):
        calls.append(number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        model = classifier(2, 16, 3).add(Through(interrupt))
        history = train(model, X, Y, epochs=3, batch_size=len(X))
        assert history.epochs == 3
        assert calls == [signal.SIGINT] * 3
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("handler_kept")
def test_the_handler_is_put_back_after_errors_too():
    with pytest.raises(cl.TrainingDiverged):
        train(classifier(2, 3), np.full_like(X, np.nan), Y)
    with pytest.raises(ZeroDivisionError):
        train(classifier(2, 3), X, Y, callbacks=[lambda epoch, history: 1 / 0])


def test_fit_on_another_thread_gives_the_same_bits():
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    histories = []
    thread = threading.Thread(target=lambda: histories.append(train(model, X, Y, epochs=3)))
    thread.start()
    thread.join()
    assert histories == [train(other, X, Y, epochs=3)]
    assert bits(model) == bits(other)


# ---- users' own parts -----------------------------------------------------------------------------------------------


def test_users_functions_loss_optimizer_and_metric_train():
    def share(outputs, targets):
        return (outputs.argmax(axis=1) == targets).mean()

    ours, theirs = classifier(2, 16, 3), classifier(2, 16, 3)
    theirs = cl.Model([theirs.functions[0], Rectifier(), theirs.functions[2]])
    histories = [
        train(ours, X, Y, momentum=0, metrics=["accuracy"], epochs=20, seed=0),
        train(
            theirs,
            X,
            Y,
            loss=CrossEntropy(),
            optimizer=Descent(theirs.parameters(), lr=0.1),
            metrics=[share],
            epochs=20,
            seed=0,
        ),
    ]
    np.testing.assert_allclose(histories[1]["loss"], histories[0]["loss"], rtol=1e-4)
    assert histories[1]["share"] == pytest.approx(histories[0]["accuracy"], abs=0.02)
    assert histories[0]["loss"][-1] < histories[0]["loss"][0]


@DTYPES
def test_a_users_function_with_parameters_is_trained_like_any_other(dtype):
    model = cl.Model([Scale(2), cl.Linear(2, 3), Scale(3)], seed=0, dtype=dtype)
    assert cl.check_gradients(model, X[:5]) < 1e-6
    before = [p.data.copy() for p in model.parameters()]
    history = train(model, X, Y, epochs=10)
    assert history["loss"][-1] < history["loss"][0]
    assert all((p.data != w).any() for p, w in zip(model.parameters(), before, strict=True))
    assert all(p.dtype == dtype for p in model.parameters())


def test_a_users_loss_of_other_targets_trains():
    x = np.random.default_rng(0).normal(size=(100, 3))
    targets = x @ np.array([[1.0], [-2.0], [3.0]]) + 4
    model = classifier(3, 1)
    train(model, x, targets, loss=SquaredError(), lr=0.05, epochs=100)
    np.testing.assert_allclose(model.functions[0].weight.data, [[1], [-2], [3]], atol=1e-3)
    np.testing.assert_allclose(model.functions[0].bias.data, [4], atol=1e-3)


def test_a_loss_without_a_check_is_still_told_about_wrong_lengths():
    with pytest.raises(ValueError, match="60"):
        train(classifier(2, 1), X, np.ones((59, 1)), loss=SquaredError())


# ---- building -------------------------------------------------------------------------------------------------------


def test_add_returns_the_model_and_keeps_the_order():
    model, functions = cl.Model(), [cl.Linear(2, 4), cl.ReLU(), cl.Linear(4, 3)]
    for function in functions:
        assert model.add(function) is model
    assert model.functions == functions
    first, _, last = functions
    expected = [first.weight, first.bias, last.weight, last.bias]
    assert all(a is b for a, b in zip(model.parameters(), expected, strict=True))
    assert repr(model) == "Model([Linear(2, 4), ReLU(), Linear(4, 3)])"


def test_shapes_that_cannot_fit_raise_value_error_and_add_nothing():
    model = classifier(2, 100).add(cl.ReLU())
    before = bits(model)
    with pytest.raises(ValueError, match=r"64.*100|100.*64"):
        model.add(cl.Linear(64, 10))
    assert len(model.functions) == 2
    assert bits(model) == before
    with pytest.raises(ValueError, match=r"64.*3|3.*64"):
        cl.Model([cl.Linear(2, 3), cl.Model([cl.ReLU(), cl.Linear(64, 10)])])


@pytest.mark.parametrize("function", [np.tanh, cl.ReLU, None, "relu"])
def test_only_functions_can_be_added(function):
    with pytest.raises(TypeError, match="Function"):
        cl.Model().add(function)


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.longdouble, complex, object])
def test_a_model_computes_in_float32_or_float64_only(dtype):
    with pytest.raises(TypeError, match="float32 or float64"):
        cl.Model(dtype=dtype)


@DTYPES
def test_everything_in_a_model_has_its_dtype(dtype):
    seen = []
    model = classifier(2, 16, 3, dtype=dtype).add(Through(backward=lambda dy: seen.append(dy.dtype) or dy))
    train(model, X.tolist(), Y)
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {np.dtype(dtype)}
    assert set(seen) == {np.dtype(dtype)}
    for x in (X, X.astype(np.float64), X.tolist()):
        assert model.predict(x).dtype == dtype


def test_the_seed_draws_the_parameters_in_the_order_of_adding():
    model, same, other = (classifier(2, 16, 3, seed=seed) for seed in (1, 1, 2))
    assert bits(model) == bits(same) != bits(other)
    layer = cl.Linear(2, 3)
    before = layer.weight.data.copy()
    cl.Model([layer])
    assert (layer.weight.data == before).all()  # without a seed, as it was
    cl.Model([layer], seed=0)
    assert (layer.weight.data != before).any()


def test_initialize_draws_the_parameters_anew_and_starts_the_stream_again():
    model, fresh = classifier(2, 16, 3, seed=0), classifier(2, 16, 3, seed=7)
    train(model, X, Y)
    model.initialize(7)
    assert bits(model) == bits(fresh)
    train(model, X, Y)
    train(fresh, X, Y)
    assert bits(model) == bits(fresh)
    model.initialize(np.random.default_rng(7))
    assert bits(model) == bits(classifier(2, 16, 3, seed=7))


def test_values_that_changed_between_forward_and_backward_are_noticed():
    for change in (
        lambda model: model.initialize(1),
        lambda model: model.load_state_dict(model.state_dict()),
        lambda model: train(model, X, Y),
    ):
        model = classifier(2, 16, 3)
        value = cl.SoftmaxLoss()(model(X), Y)
        change(model)
        with pytest.raises(RuntimeError, match="changed"):
            value.backward()


def test_a_model_in_a_model_trains_to_the_bits_of_the_flat_one():
    flat = classifier(2, 16, 8, 3)
    nested = cl.Model([cl.Model([cl.Linear(2, 16), cl.ReLU()]), cl.Model([cl.Linear(16, 8), cl.ReLU()])], seed=0)
    nested.add(cl.Linear(8, 3))
    assert bits(nested) == bits(flat)
    assert len(nested.parameters()) == 6
    histories = [train(model, X, Y, epochs=3) for model in (flat, nested)]
    assert bits(nested) == bits(flat)
    assert histories[0] == histories[1]
    assert nested.predict(X).tobytes() == flat.predict(X).tobytes()
    assert bits(by_hand(nested, X, Y, 2)) == bits(by_hand(flat, X, Y, 2))


def test_a_model_goes_on_learning_inside_another_and_alone():
    inner = classifier(2, 8, seed=3)
    outer = cl.Model([inner, cl.ReLU(), cl.Linear(8, 3)])
    before = bits(inner)
    train(outer, X, Y)
    assert bits(inner) != before
    assert inner.predict(X).tobytes() == outer.functions[0].predict(X).tobytes()
    assert bits(outer).startswith(bits(inner))


def test_a_model_of_one_dtype_in_a_model_of_another_takes_over_its_dtype():
    inner = classifier(2, 4, dtype=np.float64)
    outer = cl.Model([inner, cl.Linear(4, 3)])
    assert outer.predict(X).dtype == np.float32
    assert inner.predict(X).shape == (60, 4)


def test_a_function_that_is_in_a_model_twice_is_applied_twice():
    shared = cl.Linear(4, 4)
    model = cl.Model([cl.Linear(2, 4), shared, cl.ReLU(), shared, cl.Linear(4, 3)], seed=0)
    assert len(model.parameters()) == 6
    assert cl.check_gradients(model, X[:7] + 0.1) < 1e-6

    by_fit, by_calls = copy.deepcopy(model), copy.deepcopy(model)
    train(by_fit, X, Y, momentum=0, batch_size=len(X), shuffle=False)
    loss, optimizer = cl.SoftmaxLoss(), cl.SGD(by_calls.parameters(), lr=0.1)
    loss.forward(by_calls.forward(X), Y)
    by_calls.backward(loss.backward())
    optimizer.step()
    assert bits(by_fit) == bits(by_calls) != bits(model)

    unshared = cl.Model([copy.deepcopy(function) for function in model.functions])
    loss(unshared(X), Y).backward()
    loss(model(X), Y).backward()
    twice = unshared.functions[1].weight.grad + unshared.functions[3].weight.grad
    np.testing.assert_allclose(shared.weight.grad, twice, rtol=1e-4, atol=1e-7)


def test_frozen_parameters_stay_as_they_are():
    model = classifier(2, 16, 3)
    frozen = model.functions[0].parameters()
    for p in frozen:
        p.requires_grad = False
    before, others = [p.data.copy() for p in frozen], bits(model)
    train(model, X, Y, epochs=3)  # in the optimizer
    train(model, X, Y, optimizer=cl.SGD(model.functions[2].parameters(), lr=0.1))  # and not
    assert all((p.data == w).all() for p, w in zip(frozen, before, strict=True))
    assert bits(model) != others
    for p in frozen:
        p.requires_grad = True
    train(model, X, Y)
    assert all((p.data != w).any() for p, w in zip(frozen, before, strict=True))


def test_a_frozen_parameter_of_a_users_function_stays_as_it_is():
    model = cl.Model([cl.Linear(2, 3), Scale(3)], seed=0)
    model.functions[1].w.requires_grad = False
    train(model, X, Y, epochs=3)
    assert model.functions[1].w.data.tolist() == [1, 1, 1]


def test_a_parameter_that_the_optimizer_lacks_raises_value_error_naming_it():
    model = classifier(2, 16, 3)
    optimizer = cl.SGD([p for p in model.parameters() if p.shape != (3,)], lr=0.1)
    before = bits(model)
    with pytest.raises(ValueError, match=r"bias \(3,\)"):
        train(model, X, Y, optimizer=optimizer)
    assert bits(model) == before


def test_a_model_can_grow_after_a_fit():
    model = classifier(2, 16, 3)
    train(model, X, Y)
    before = bits(model)
    model.add(cl.ReLU()).add(cl.Linear(3, 3))
    assert bits(model).startswith(before)
    history = train(model, X, Y, epochs=3)
    assert history["loss"][-1] < history["loss"][0]
    assert model.predict(X).shape == (60, 3)


def rows_of(summary):
    """The cells of a summary that are not empty, line by line."""
    return [re.split(r" {2,}", line.strip()) for line in summary.splitlines()[2:]]


def test_the_summary_lists_functions_shapes_and_parameters():
    assert rows_of(classifier(2, 100, 3).summary()) == [
        ["0", "Linear(2, 100)", "(n, 100)", "300", "1.2 kB", "200", "400 B"],
        ["1", "ReLU()", "(n, 100)", "0", "0 B", "0", "400 B"],
        ["2", "Linear(100, 3)", "(n, 3)", "303", "1.2 kB", "300", "12 B"],
        ["total", "603", "2.4 kB", "500", "812 B"],
    ]


def test_the_summary_takes_the_shape_of_a_row_where_it_is_not_known():
    model = cl.Model([cl.ReLU()])
    assert "?" in model.summary()
    assert "(n, 8, 8)" in model.summary(input_shape=(8, 8))
    with pytest.raises(ValueError, match=r"2.*5|5.*2"):
        classifier(2, 3).summary(input_shape=(5,))
    with pytest.raises(ValueError, match=r"the shape of a row of one input, got \(\(2,\), \(3,\)\)"):
        classifier(2, 3).summary(((2,), (3,)))
    with pytest.raises(ValueError, match=r"Conv1d\(3, 4, 5\) got shape \(n, 3\)"):
        cl.Model([cl.Conv1d(3, 4, 5)]).summary((3,))
    assert rows_of(cl.Model().summary()) == [["total", "0", "0 B", "?", "?"]]


class Skipping(cl.Model):
    """y = x + f(x), f a convolution: its output's shape is known from images alone."""

    def __init__(self, channels):
        super().__init__()
        self.f = cl.Conv2d(channels, channels, 3, padding=1)

    def call(self, x):
        return x + self.f(x)


@pytest.mark.parametrize(
    "within", [lambda f: f, cl.Residual, lambda f: cl.Model([f])], ids=["bare", "residual", "model"]
)
def test_a_model_that_writes_call_follows_a_convolution_before_there_are_images(within):
    model = cl.Model([cl.Conv2d(1, 4, 3), within(Skipping(4)), cl.GlobalAvgPool(), cl.Linear(4, 3)], seed=0)
    assert [row[2:3] + row[-2:] for row in rows_of(model.summary())[1:3]] == [["?", "?", "?"]] * 2
    assert "(n, 4, 6, 6)" in model.summary((1, 8, 8)).splitlines()[3]
    assert model.predict(np.ones((5, 1, 8, 8), np.float32)).shape == (5, 3)
    with pytest.raises(ValueError, match=r"has to know all lengths but the first; got rows of \(4, None, None\)"):
        model.functions[1].output_shape((None, 4, None, None))
    with pytest.raises(ValueError, match=r"Conv2d\(4, 4, 3, padding=1\) got shape \(2, 2, 6, 6\)"):
        cl.Model([cl.Conv2d(1, 2, 3), within(Skipping(4))]).predict(np.ones((5, 1, 8, 8), np.float32))


def test_the_summary_of_a_function_that_raises_for_zeros_has_all_that_is_known_without():
    class Root(cl.Function):
        def forward(self, x):
            if (x <= 0).any():
                raise ArithmeticError("zeros have no gradient")
            self.y = np.sqrt(x)
            return self.y

        def backward(self, dy):
            return dy / 2 / self.y

    assert rows_of(cl.Model([Root(), cl.Linear(4, 3)]).summary((4,))) == [
        ["0", "Root()", "(n, 4)", "0", "0 B", "?", "?"],
        ["1", "Linear(4, 3)", "(n, 3)", "15", "60 B", "?", "?"],
        ["total", "15", "60 B", "?", "?"],
    ]


def test_the_summary_says_how_much_is_frozen():
    class Called(cl.Model):
        def __init__(self):
            super().__init__()
            self.linear = cl.Linear(4, 3)

        def call(self, x):
            return self.linear(x)

    sequence, called = classifier(4, 3, 3), Called()
    assert [row[-5] for row in rows_of(called.summary())] == ["?", "?"]  # before there is a shape
    for model in (sequence, called):
        model.children()[0].requires_grad = False
        assert rows_of(model.summary((4,)))[-1] == ["frozen", "15", "60 B"]


def test_the_summary_cuts_what_is_long():
    model = cl.Model([cl.MLP(10, [10] * 20)])
    assert max(map(len, model.summary().splitlines())) <= 120
    assert "Model([Linear(10, 10), ReLU(), " in model.summary()


def test_the_summary_counts_the_multiply_adds_and_the_memory_that_a_row_takes():
    class Double(cl.Function):
        def forward(self, x):
            return np.float32(2) * x

        def backward(self, dy):
            return np.float32(2) * dy

    model = cl.Model(
        [cl.Conv2d(2, 6, 3, padding=1, groups=2), cl.Residual(cl.Model([cl.Conv2d(6, 6, 1)])), cl.Flatten()]
    )
    model.add(cl.Linear(6 * 5 * 4, 3))
    products = [6 * 9 * 5 * 4, 6 * 6 * 5 * 4, 0, 6 * 5 * 4 * 3]
    rows = rows_of(model.summary((2, 5, 4)))
    assert [row[-2] for row in rows] == [f"{n:,}" for n in (*products, sum(products))]
    assert [row[-1] for row in rows] == ["480 B", "960 B", "0 B", "12 B", "1.5 kB"]  # a view takes none
    rows = rows_of(model.add(Double()).summary((2, 5, 4)))
    assert [row[-2] for row in rows[-3:]] == ["360", "?", "?"]
    assert [row[-1] for row in rows[-2:]] == ["12 B", "1.5 kB"]


def test_a_notebook_shows_a_model_as_its_summary():
    model = classifier(2, 3)
    assert model._repr_html_() == model.summary()._repr_html_()
    assert ">Linear(2, 3)<" in model._repr_html_()


def test_a_summary_changes_nothing():
    model = cl.Model([cl.Linear(3, 4), cl.BatchNorm(4), cl.Dropout(), cl.Residual(cl.Linear(4, 4))], seed=0)
    before, rng, types = (
        pickle.dumps(model.state_dict()),
        str(model._own.rng.bit_generator.state),
        list(map(type, model.functions)),
    )
    model.summary()
    assert pickle.dumps(model.state_dict()) == before
    assert str(model._own.rng.bit_generator.state) == rng
    assert list(map(type, model.functions)) == types
    assert all(p.grad is None for p in model.parameters())


def test_what_a_users_function_calls_its_input_shape_is_its_own_affair():
    class Flatten(cl.Function):
        def forward(self, x):
            self.input_shape = x.shape
            return x.reshape(len(x), -1)

        def backward(self, dy):
            return dy.reshape(self.input_shape)

        def output_shape(self, shape):
            return (shape[0], None)

    model = cl.Model([Flatten(), cl.Linear(4, 3)])
    before = model.summary()
    x = np.ones((5, 2, 2), np.float32)
    flatten, linear = model.functions
    assert flatten.backward(linear.backward(linear.forward(flatten.forward(x)))).shape == x.shape
    assert model.summary() == before
    assert model.add(cl.ReLU()).predict(np.ones((7, 4, 1), np.float32)).shape == (7, 3)


def test_masked_rows_and_labels_are_refused():
    mask = np.zeros(len(Y), bool)
    mask[3] = True
    for x, y in ((np.ma.masked_array(X, np.stack([mask, mask], axis=1)), Y), (X, np.ma.masked_array(Y, mask))):
        with pytest.raises(ValueError, match="masked elements"):
            train(classifier(2, 3), x, y)


def test_a_shared_function_counts_once_in_the_total():
    shared = cl.Linear(4, 4)
    rows = rows_of(cl.Model([shared, cl.ReLU(), shared]).summary())
    assert rows[-1][:2] == ["total", "20"]
    assert [row[-2] for row in rows] == ["16", "0", "16", "32"]


def test_the_output_shape_is_that_of_the_last_function():
    model = classifier(2, 16, 3)
    assert model.output_shape((None, 2)) == (None, 3)
    assert model.output_shape((7, 2)) == (7, 3)
    with pytest.raises(ValueError, match="5"):
        model.output_shape((None, 5))


# ---- the multilayer perceptron --------------------------------------------------------------------------------------


@DTYPES
def test_a_multilayer_perceptron_is_the_model_of_its_layers_with_the_bits_of_its_seed(dtype):
    model = cl.MLP(2, [16, np.int64(8), 3], seed=0, dtype=dtype)
    by_hand = classifier(2, 16, 8, 3, dtype=dtype)
    assert repr(model) == repr(by_hand)
    assert model.dtype == dtype
    assert bits(model) == bits(by_hand)
    assert train(model, X, Y, epochs=2) == train(by_hand, X, Y, epochs=2)
    assert bits(model) == bits(by_hand)


def test_a_multilayer_perceptron_has_its_activation_between_layers_only():
    assert repr(cl.MLP(2, [1], cl.Tanh)) == "Model([Linear(2, 1)])"
    assert repr(cl.MLP(2, iter([4, 1]), activation=cl.Tanh)) == "Model([Linear(2, 4), Tanh(), Linear(4, 1)])"


def test_each_hidden_layer_has_an_activation_of_its_own():
    model = cl.MLP(2, [4, 4, 1], lambda: Scale(4))
    assert model.functions[1] is not model.functions[3]
    assert len(model.parameters()) == 8


def test_a_multilayer_perceptron_nests_grows_and_is_copied():
    model = cl.Model([cl.MLP(2, [4, 4]), cl.ReLU(), cl.MLP(4, [3])], seed=0)
    other = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    train(model, X, Y)
    train(other, X, Y)
    assert bits(other) == bits(model)
    assert cl.MLP(2, [4]).add(cl.Linear(4, 3)).output_shape((5, 2)) == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((2, 3), TypeError, "sizes of its layers in a list.* got 3"),
        ((2, []), ValueError, "at least one layer"),
        ((2, [4, 1.0]), TypeError, r"sizes\[1\] must be an integer, got 1.0"),
        ((2, "41"), TypeError, r"sizes\[0\] must be an integer, got '4'"),
        ((2, [4, True]), TypeError, r"sizes\[1\] must be an integer, got True"),
        ((2, [0, 1]), ValueError, r"sizes\[0\] must be at least 1, got 0"),
        (("2", [4]), TypeError, "inputs must be an integer, got '2'"),
        ((0, [4]), ValueError, "inputs must be at least 1, got 0"),
        ((2, [1], "relu"), TypeError, "a class or a callable that makes a Function, got 'relu'"),
        ((2, [4, 1], cl.ReLU()), TypeError, r"a class or a callable that makes a Function, got ReLU\(\)"),
        ((2, [4, 1], dict), TypeError, "must make a Function, .* returned {}"),
        ((2, [4, 1], cl.relu), TypeError, "a class or a callable that makes a Function, got <function relu"),
        ((2, [4, 1], cl.SoftmaxLoss), TypeError, r"a Function of one input, .* got SoftmaxLoss\(\)"),
        ((2, [4, 1], functions.Sum), ValueError, r"shape \(\); expected \(n, …, 4\)"),
    ],
)
def test_a_multilayer_perceptron_that_cannot_be_made_raises(arguments, error, message):
    with pytest.raises(error, match=message):
        cl.MLP(*arguments)


# ---- state ----------------------------------------------------------------------------------------------------------

DUPLICATES = pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["deepcopy", "pickle"]
)


@DUPLICATES
@DTYPES
def test_a_copy_trains_on_with_the_same_bits(duplicate, dtype):
    model = classifier(2, 16, 3, dtype=dtype)
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    train(model, X, Y, optimizer=optimizer)
    for pair in ((model, optimizer), (optimizer, model)):
        copied = duplicate(pair)
        other, other_optimizer = copied if pair[0] is model else copied[::-1]
        assert bits(other) == bits(model)
        assert other.dtype == model.dtype
    train(model, X, Y, optimizer=optimizer, epochs=2)
    assert bits(other) != bits(model)
    train(other, X, Y, optimizer=other_optimizer, epochs=2)
    assert bits(other) == bits(model)


@DUPLICATES
def test_a_copy_keeps_what_was_shared_and_frozen(duplicate):
    shared = cl.Linear(4, 4)
    shared.bias.requires_grad = False
    model = cl.Model([cl.Linear(2, 4), shared, cl.Model([cl.ReLU(), shared]), cl.Linear(4, 3)], seed=0)
    other = duplicate(model)
    assert len(other.parameters()) == 6
    assert other.functions[1] is other.functions[2].functions[1]
    assert [p.requires_grad for p in other.parameters()] == [True, True, True, False, True, True]
    train(model, X, Y)
    train(other, X, Y)
    assert bits(other) == bits(model)


def test_a_state_is_a_copy_of_the_parameters_by_name():
    model = cl.Model([cl.Linear(2, 4), cl.Model([cl.ReLU(), cl.Linear(4, 3)]), Scale(3)])
    state = model.state_dict()
    assert len(state) == 5
    assert all((a == p.data).all() for a, p in zip(state.values(), model.parameters(), strict=True))
    before = bits(model)
    for values in state.values():
        values[...] = 0
    assert bits(model) == before


def test_a_loaded_state_replaces_the_parameters_in_place():
    model, other = classifier(2, 16, 3, seed=0), classifier(2, 16, 3, seed=1)
    data = [p.data for p in other.parameters()]
    other.load_state_dict(model.state_dict())
    assert bits(other) == bits(model)
    assert all(p.data is a for p, a in zip(other.parameters(), data, strict=True))


def test_a_state_of_the_other_dtype_is_converted():
    model = classifier(2, 16, 3, dtype=np.float64)
    other = classifier(2, 16, 3, seed=1)
    other.load_state_dict(model.state_dict())
    assert {p.dtype for p in other.parameters()} == {np.dtype(np.float32)}
    assert (other.functions[0].weight.data == model.functions[0].weight.data.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda state, last: state.pop(last), ValueError),
        (lambda state, last: state.update(more=np.ones(3)), ValueError),
        (lambda state, last: state.update({last: np.ones(4)}), ValueError),
        (lambda state, last: state.update({last: np.ones((3, 1))}), ValueError),
        (lambda state, last: state.update({last: 1.0}), ValueError),
        (lambda state, last: state.update({last: np.ones(3, complex)}), TypeError),
        (lambda state, last: state.update({last: np.array([None] * 3)}), TypeError),
        (lambda state, last: state.clear(), ValueError),
    ],
)
def test_a_state_of_another_model_raises_before_anything_is_written(change, error):
    model = classifier(2, 16, 3, seed=0)
    state = classifier(2, 16, 3, seed=1).state_dict()
    last = list(state)[-1]
    change(state, last)
    before = bits(model)
    with pytest.raises(error):
        model.load_state_dict(state)
    assert bits(model) == before


@pytest.mark.parametrize("state", [3, [1.0], "weights", np.ones(3)])
def test_a_state_that_is_no_dict_is_refused(state):
    with pytest.raises(TypeError, match="expected a dict of names and arrays"):
        classifier(2, 3).load_state_dict(state)


def test_a_call_that_returns_an_empty_tuple_is_a_type_error_and_no_net_without_outputs():
    class Nothing(cl.Model):
        def call(self, x):
            return ()

    for use in (lambda m: m(X), lambda m: m.predict(X), lambda m: m.output_shape((None, 2))):
        with pytest.raises(TypeError, match=r"Nothing.call has to return a Tensor or a tuple of them, got \(\)"):
            use(Nothing([cl.Linear(2, 3)], seed=0))


@pytest.mark.parametrize(
    ("compute", "got"),
    [
        (lambda x: (x, (x, None)), r"got \(Tensor, \(Tensor, None\)\)$"),
        (lambda x: [x, x], r"got \[Tensor, Tensor\]$"),
        (lambda x: {"a": x}, "got dict$"),
        (lambda x: None, "got None$"),
        (lambda x: x.numpy(), "got ndarray$"),
    ],
)
def test_a_call_that_returns_something_else_is_a_type_error_in_a_recording_as_well(compute, got):
    class Other(cl.Model):
        def call(self, x):
            return compute(x)

    for use in (lambda m: m(X), lambda m: m.predict(X), lambda m: m.output_shape((None, 2))):
        with pytest.raises(TypeError, match=r"Other.call has to return a Tensor or a tuple of them, " + got):
            use(Other())


def test_a_model_around_nested_models_looks_at_each_function_a_few_times(monkeypatch):
    """However deep they are nested: counted, not timed."""
    count = 0
    found = cl.Function._named_children

    def counted(self):
        nonlocal count
        count += 1
        return found(self)

    def nested(depth, functions):
        inner = cl.ReLU()
        for _ in range(depth):
            inner = cl.Model([inner, *[cl.ReLU() for _ in range(functions)]])
        return inner

    monkeypatch.setattr(cl.Function, "_named_children", counted)
    counts = []
    for depth in (5, 20):
        inner = nested(depth, 100 // depth)
        count = 0
        outer = cl.Model([inner, cl.Linear(2, 2)], seed=0)
        outer.add(cl.ReLU())
        counts.append(count)
    assert counts[1] < 2 * counts[0] + 100
    assert counts[1] < 1000
