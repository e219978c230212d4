"""A loss or a gradient that is not finite ends the training before its step."""

import random
import re

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.numpy_parts import Descent, SquaredError, Through, X, Y


class SpoiltBatches:
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
    batches = SpoiltBatches(model, optimizer, epoch, batch, value)
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
    batches = SpoiltBatches(model, optimizer)
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


def test_a_parameter_that_is_not_finite_is_named():
    model = classifier(2, 3)
    model.functions[0].weight.data = np.full((2, 3), np.nan)
    message = "batch 1: the loss is nan; the parameter 0.weight is not finite; try a smaller learning rate$"
    with pytest.raises(cl.TrainingDiverged, match=message):
        train(model, X, Y)


def test_a_model_that_diverged_can_be_trained_on():
    model = classifier(2, 16, 3)
    with pytest.raises(cl.TrainingDiverged):
        train(model, np.full_like(X, np.nan), Y)
    history = train(model, X, Y, epochs=3)
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize(
    ("x", "scaled"),
    [(X * 100, "(x - x.mean(axis=0)) / x.std(axis=0)"), (np.arange(60 * 64).reshape(60, 64) % 256, "x / 255")],
    ids=["columns", "pixels"],
)
def test_large_numbers_in_x_are_named_with_the_way_to_scale_them(x, scaled):
    message = rf"; x reaches \d+(\.\d+)?: scale it, {re.escape(scaled)}, or try a smaller learning rate$"
    with pytest.raises(cl.TrainingDiverged, match=message):
        train(classifier(x.shape[1], 16, 3), x, Y, lr=1e30, epochs=50)
