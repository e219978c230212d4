"""Transforms of batches."""

import itertools

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.columns import LOSS, X, Y

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@DTYPES
@pytest.mark.parametrize("options", [{}, {"sample_weight": np.arange(60) % 3}, {"drop_last": True, "shuffle": False}])
def test_a_transform_that_changes_nothing_changes_no_bit_of_the_training(options, dtype):
    """With a short last batch, weights, batches without weight, several epochs, metrics and validation."""

    def train_net(**transform):
        model = classifier(2, 16, 3, dtype=dtype)
        data = cl.DataGenerator(X, Y, batch_size=25, seed=4, **options, **transform)
        measures = ["accuracy", "f1"]
        history = train(model, data, epochs=4, metrics=measures, validation_data=data)
        return bits(model), dict(history), model.evaluate(data, loss=LOSS, metrics=measures)

    (weights, history, measured), (expected, other, same) = train_net(transform=lambda x, y: (x, y)), train_net()
    assert weights == expected
    assert history == other
    assert measured == same


def test_training_sees_transformed_batches_and_the_callers_stay():
    x, y = X.copy(), Y.copy()
    doubled = train(classifier(2, 3), cl.DataGenerator(2 * X, 2 - Y, batch_size=25, seed=4), epochs=3)

    def transform(x, y):
        x *= 2
        return x, 2 - y

    data = cl.DataGenerator(x, y, batch_size=25, seed=4, transform=transform)
    assert train(classifier(2, 3), data, epochs=3) == doubled
    assert (x == X).all()
    assert (y == Y).all()


def test_a_transform_may_change_shapes_dtypes_and_kinds_of_targets():
    data = cl.DataGenerator(
        X, Y, batch_size=25, transform=lambda x, y: (np.hstack([x, x]).astype(np.int8), np.eye(3, dtype=">f8")[y])
    )
    assert train(classifier(4, 3), data, epochs=2).epochs == 2


def test_a_transforms_exception_comes_through_and_training_can_go_on():
    calls = itertools.count()

    def transform(x, y):
        if next(calls) == 4:
            raise LookupError("mine")
        return x, y

    model, other = classifier(2, 3), classifier(2, 3)
    with pytest.raises(LookupError, match="mine"):
        train(model, cl.DataGenerator(X, Y, batch_size=25, seed=4, transform=transform), epochs=3)
    data = cl.DataGenerator(X, Y, batch_size=25, seed=4)
    train(other, [batch for _ in range(2) for batch in data][:4])
    assert bits(model) == bits(other)
    train(model, X, Y)


def test_labels_that_a_transform_spoils_are_named_before_anything_is_written():
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(ValueError, match="row 0"):
        train(model, cl.DataGenerator(X, Y, shuffle=False, transform=lambda x, y: (x, y + 3)))
    assert bits(model) == before


@pytest.mark.parametrize("metrics", [[], ["accuracy", "f1"]], ids=str)
@pytest.mark.parametrize("shuffled", [False, True])
def test_validation_after_each_epoch_is_what_evaluate_gives_then(shuffled, metrics):
    def rows():  # a generator's are in other batches each time, so their sums are rounded otherwise
        return (cl.DataGenerator(X, Y, batch_size=7, seed=3), None) if shuffled else (X, Y)

    def evaluate(epoch, history):
        found.append(model.evaluate(x, y, loss=loss, metrics=metrics))

    model, loss, found, (x, y), validation = classifier(2, 5, 3), cl.SoftmaxLoss(), [], rows(), rows()
    options = {"validation_data": validation[0] if shuffled else validation, "callbacks": [evaluate]}
    history = train(model, X, Y, loss=loss, epochs=4, metrics=metrics, **options)
    for name in ("loss", *metrics):
        assert history[f"val_{name}"] == [values[name] for values in found]
