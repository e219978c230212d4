"""`predict` and `evaluate`."""

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier
from tests.training.numpy_parts import DTYPES, X, Y, by_hand


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
