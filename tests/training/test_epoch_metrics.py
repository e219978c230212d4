"""Metrics of whole epochs."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.training.metrics.base import resolve_metrics
from tests.conftest import bits, classifier, train
from tests.training.columns import LOSS, X, Y

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@DTYPES
@pytest.mark.parametrize("batch_size", [7, 60, 100])
def test_a_metric_of_an_epoch_is_computed_over_all_its_rows_at_once(dtype, batch_size):
    names = ["precision", "accuracy", "recall", "f1", "auc", "top_k(2)"]
    model, loss = classifier(2, 8, 3, dtype=dtype), cl.SoftmaxLoss()
    model.fit(X, Y, loss=loss, optimizer=cl.Adam(model.parameters(), lr=0.05), epochs=20, verbose=0)
    outputs = model.predict(X)
    expected = {name: metric(outputs, Y) for name, metric in resolve_metrics(names).items()}
    assert len(set(expected.values())) > 4
    data = [(X[i : i + batch_size], Y[i : i + batch_size]) for i in range(0, 60, batch_size)]
    for given in ({"x": X, "y": Y, "batch_size": batch_size}, {"x": data}):
        history = train(model, lr=1e-300, metrics=names, epochs=3, **given)
        measured = model.evaluate(loss=loss, metrics=names, **given)
        assert list(history) == list(measured) == ["loss", *names]
        for name, value in expected.items():
            assert history[name] == [pytest.approx(value, rel=1e-12)] * 3
            assert measured[name] == pytest.approx(value, rel=1e-12)


def test_metrics_of_an_epoch_change_neither_the_training_nor_what_is_replayed():
    models = [classifier(2, 8, 3) for _ in range(2)]
    histories = [
        train(m, X, Y, epochs=6, seed=0, metrics=given) for m, given in zip(models, (["auc", "f1"], []), strict=True)
    ]
    assert bits(models[0]) == bits(models[1])
    assert histories[0]["loss"] == histories[1]["loss"]
    programs = list(models[0]._model_state.programs._programs.values())
    assert programs
    assert not any("Python" in str(program) for program in programs)


def test_a_metric_of_an_epoch_is_found_again_by_the_next_fit():
    model, optimizer = classifier(2, 8, 3), None
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, X, Y, optimizer=optimizer, metrics=["f1", "top_k(2)"], loss=LOSS, batch_size=32)
    assert len(model._model_state.programs._programs) == 2


def test_batches_whose_memory_is_used_again_are_measured_as_they_were():
    def batches():
        x, y = np.empty((20, 2), np.float32), np.empty(20, np.int64)
        for i in range(0, 60, 20):
            x[:], y[:] = X[i : i + 20], Y[i : i + 20]
            yield x, y

    model = classifier(2, 3)
    measured = model.evaluate(batches(), loss=LOSS, metrics=["f1"])
    assert measured["f1"] == cl.metrics.f1(model.predict(X), Y)


@pytest.mark.parametrize(
    ("metric", "targets"),
    [
        ("accuracy", np.zeros((60, 3), int)),
        ("mse", np.zeros((60, 2))),
        ("r2", np.zeros((60, 3, 1))),
        ("f1", np.zeros((60, 3))),
        ("auc", np.zeros((60, 1))),
    ],
)
def test_a_metric_of_another_shape_raises_before_anything_is_written(metric, targets):
    class Nothing(cl.Function):
        def forward(self, scores, targets):
            self.shape = scores.shape
            return np.zeros((), np.float32)

        def backward(self, dy):
            return np.ones(self.shape, np.float32)

    model = classifier(2, 3)
    before = bits(model)
    for given in ({"x": X, "y": targets}, {"x": [(X, targets)]}):
        with pytest.raises(ValueError, match=rf"{metric}.*\(\d+, 3\)"):
            train(model, loss=Nothing(), metrics=[metric], **given)
    assert bits(model) == before
