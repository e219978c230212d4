"""Validation: the rows held out, and data of its own."""

import copy
import pickle

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.numpy_parts import SquaredError, X, Y


def record_rows(model, x, y, **options):
    """Return the targets of the rows that a fit trains on, by epoch, and those that it evaluates."""
    trained, evaluated = [], []

    def note(outputs, targets):
        (trained if cl.is_training() else evaluated).append(sorted(targets.ravel().tolist()))
        return 0

    history = train(model, x, y, loss=SquaredError(), metrics=[note], batch_size=1000, **options)
    return trained, evaluated, history


def test_a_validation_split_holds_out_the_same_rows_in_every_epoch():
    rows = np.arange(21.0)[:, None]
    trained, evaluated, history = record_rows(
        cl.Model([cl.Linear(1, 1)]), rows, rows, lr=1e-300, validation_split=0.3, epochs=3, seed=0
    )
    assert len(evaluated[0]) == 6  # int(21 · 0.3)
    assert sorted(trained[0] + evaluated[0]) == list(range(21))
    assert trained == [trained[0]] * 3
    assert evaluated == [evaluated[0]] * 3
    assert list(history) == ["loss", "note", "val_loss", "val_note"]


def test_the_rows_held_out_depend_on_the_seed():
    rows = np.arange(50.0)[:, None]

    def draw_validation_rows(seed, **options):
        model = cl.Model([cl.Linear(1, 1)], seed=0)
        return record_rows(model, rows, rows, lr=1e-300, validation_split=0.5, seed=seed, **options)[1][0]

    assert draw_validation_rows(1) == draw_validation_rows(1, shuffle=False) != draw_validation_rows(2)
    assert draw_validation_rows(None) == draw_validation_rows(None)  # from the stream of the model
    assert draw_validation_rows(1) != list(range(25, 50))


def validation_rows(model, n=20, share=0.4, **options):
    """Return the rows of n that a fit of the model evaluates."""
    rows = np.arange(float(n))[:, None]
    return record_rows(model, rows, rows, lr=1e-300, validation_split=share, **options)[1][0]


def test_a_further_fit_holds_out_the_same_rows():
    model = cl.Model([cl.Linear(1, 1)], seed=0)
    first = validation_rows(model)
    assert validation_rows(cl.Model([cl.Linear(1, 1)], seed=0)) == first
    other = validation_rows(model, 30)
    assert validation_rows(model) == first
    assert validation_rows(model, 30) == other
    assert set(validation_rows(model, share=0.2)) < set(first)


def test_a_seed_draws_another_split_which_is_then_remembered():
    model = cl.Model([cl.Linear(1, 1)], seed=0)
    first, anew = validation_rows(model), validation_rows(model, seed=1)
    assert anew == validation_rows(model, seed=1) == validation_rows(model) != first


def test_copies_and_pickles_remember_a_split_and_a_redrawn_model_does_not():
    model = cl.Model([cl.Linear(1, 1)], seed=0)
    first = validation_rows(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert validation_rows(other) == first
    model.initialize(7)
    assert validation_rows(model) == validation_rows(cl.Model([cl.Linear(1, 1)], seed=7)) != first


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
