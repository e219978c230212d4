"""Functions, losses, optimizers and metrics of users train like the package's own."""

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import classifier, train
from tests.training.numpy_parts import DTYPES, Descent, Scale, SquaredError, X, Y


class Rectifier(cl.Function):
    """max(x, 0)."""

    def forward(self, x):
        self.mask = x > 0
        return np.where(self.mask, x, 0)

    def backward(self, dy):
        return np.where(self.mask, dy, 0)


class CrossEntropy(cl.Function):
    """Softmax and mean negative log-likelihood."""

    def forward(self, scores, targets):
        self.p = np.exp(scores - scores.max(axis=1, keepdims=True))
        self.p /= self.p.sum(axis=1, keepdims=True)
        self.targets = targets
        return -np.log(self.p[np.arange(len(targets)), targets]).mean()

    def backward(self, dy):
        return dy * (self.p - np.eye(self.p.shape[1], dtype=self.p.dtype)[self.targets]) / len(self.p)


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
