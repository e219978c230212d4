"""Metrics, in `fit` and `evaluate`: row-weighted means by name."""

import numpy as np
import pytest
from conftest import classifier, train

import caffelite as cl
from caffelite.metrics import accuracy


class Rows(cl.Function):
    """A loss that is 0 everywhere, so that metrics can be looked at alone."""

    def forward(self, scores, targets):
        self.shape, self.dtype = scores.shape, scores.dtype
        return np.zeros((), scores.dtype)

    def backward(self, dy):
        return np.zeros(self.shape, self.dtype)


class Identity(cl.Function):
    def forward(self, x):
        return x

    def backward(self, dy):
        return dy


def evaluate(x, y, metrics, **options):
    return cl.Model([Identity()]).evaluate(x, y, loss=Rows(), metrics=metrics, **options)


def test_accuracy_is_the_share_of_rows_with_the_largest_output_at_the_label():
    outputs = np.array([[3, 1, 2], [0, 5, 9], [0, 0, 0], [-1, -2, -3]])
    assert accuracy(outputs, np.array([0, 1, 0, 2])) == 0.5
    assert accuracy(outputs, np.array([0, 2, 1, 0])) == 0.75  # among equals the first is the largest


@pytest.mark.parametrize("shape", [(4, 1), (3,), (), (5,)])
def test_accuracy_of_other_shapes_raises_value_error_naming_both(shape):
    with pytest.raises(ValueError, match=r"\(4, 3\)"):
        accuracy(np.zeros((4, 3)), np.zeros(shape, int))


def test_accuracy_by_name_is_that_of_the_predictions():
    x, y = cl.datasets.spiral(points_per_class=11, seed=0)
    model = classifier(2, 8, 3)
    measured = model.evaluate(x, y, loss=cl.SoftmaxLoss(), metrics=["accuracy"], batch_size=7)
    assert measured["accuracy"] == pytest.approx((model.predict(x).argmax(axis=1) == y).mean(), rel=1e-12)
    assert list(measured) == ["loss", "accuracy"]


def test_a_callable_is_called_by_its_name_with_outputs_and_targets():
    def error(outputs, targets):
        assert type(outputs) is type(targets) is np.ndarray
        return np.abs(outputs - targets).mean()

    assert evaluate([[1.0], [2.0]], [[1.5], [3.0]], [error]) == {"loss": 0, "error": 0.75}


def test_a_callable_without_a_name_takes_that_of_its_class():
    class Largest:
        def __call__(self, outputs, targets):
            return outputs.max()

    assert evaluate([[1.0], [2.0]], [0, 0], [Largest()])["Largest"] == 2


def test_a_short_last_batch_weighs_as_many_rows_as_it_has():
    def mean(outputs, targets):
        return outputs.mean()

    x = np.arange(10.0)[:, None]
    assert evaluate(x, x, [mean], batch_size=4)["mean"] == 4.5
    model = cl.Model([cl.Linear(1, 1, initializer=lambda shape, rng: np.ones(shape))])
    history = train(model, x, x, loss=Rows(), metrics=[mean], batch_size=4)
    assert history["mean"] == [4.5]


def test_metrics_of_an_epoch_are_measured_while_it_runs():
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    seen = []

    def rows(outputs, targets):
        seen.append(len(targets))
        return 1

    history = train(classifier(2, 3), x, y, metrics=["accuracy", rows], epochs=2, batch_size=25)
    assert seen == [25, 25, 10] * 2
    assert history["rows"] == [1, 1]
    assert len(history["accuracy"]) == 2


@pytest.mark.parametrize("metrics", ["accuracy", accuracy, [3], [None], 5])
def test_metrics_that_are_no_list_of_names_and_callables_raise_type_error(metrics):
    x, y = cl.datasets.spiral(points_per_class=5)
    with pytest.raises(TypeError):
        train(classifier(2, 3), x, y, metrics=metrics)
    with pytest.raises(TypeError):
        classifier(2, 3).evaluate(x, y, loss=cl.SoftmaxLoss(), metrics=metrics)


def loss(outputs, targets):
    return 0.0


@pytest.mark.parametrize(
    "metrics", [["precise"], ["top_k(0)"], ["top_k"], ["accuracy", "accuracy"], ["accuracy", accuracy], [loss]]
)
def test_an_unknown_name_or_one_that_is_taken_raises_value_error(metrics):
    x, y = cl.datasets.spiral(points_per_class=5)
    with pytest.raises(ValueError, match="metrics"):
        train(classifier(2, 3), x, y, metrics=metrics)


def test_an_exception_in_a_metric_comes_through():
    def broken(outputs, targets):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(classifier(2, 3), *cl.datasets.spiral(points_per_class=5), metrics=[broken])
