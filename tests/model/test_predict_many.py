"""`predict_many` has the bits of `predict`."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.program import Program
from tests.conftest import bits, classifier
from tests.model.many_models import MODELS, ROWS, TwoHeads, data, entries, many


@pytest.mark.parametrize("rows", [1, 7, ROWS, 1500])
def test_predict_many_has_the_bits_of_predict(threads, rows):
    x = np.random.default_rng(2).normal(size=(rows, 4))
    trained, others = ([m for kind in MODELS for m in entries(kind, "Adam", 4)[0]] for _ in range(2))
    optimizers = [cl.Adam(m.parameters()) for m in trained]
    many(trained, optimizers, *data(), epochs=2)  # BatchNorms have seen something
    for models in (trained, others, trained[:1]):
        before = [bits(model) for model in models]
        for _ in range(2):
            found = cl.predict_many(models, x)
            expected = [model.predict(x) for model in models]
            assert [y.tobytes() for y in found] == [y.tobytes() for y in expected]
            assert [(y.shape, y.dtype) for y in found] == [(y.shape, y.dtype) for y in expected]
        assert [bits(model) for model in models] == before


def test_predict_many_takes_what_predict_takes(threads):
    x, _ = data()
    heads = [TwoHeads(seed) for seed in range(5)]
    for found, model in zip(cl.predict_many(iter(heads), x.tolist(), batch_size=16), heads, strict=True):
        assert isinstance(found, tuple)
        for y, expected in zip(found, model.predict(x, batch_size=16), strict=True):
            assert np.array_equal(y, expected)
    readers = [cl.Model([cl.Embedding(5, 3), cl.Flatten(), cl.Linear(6, 2)], seed=i) for i in range(5)]
    words = np.array([[0, 4], [1, 2], [3, 3]])
    for y, model in zip(cl.predict_many(readers, words), readers, strict=True):
        assert np.array_equal(y, model.predict(words))
    same = cl.predict_many([heads[0]] * 4, x)
    assert all(np.array_equal(a, b) for ys in same for a, b in zip(ys, same[0], strict=True))
    words[1, 1] = 5
    with pytest.raises(IndexError, match="model 0: predict: index 5 in row 1"):
        cl.predict_many(readers, words)


def test_predict_many_shares_recordings(threads, monkeypatch):
    recordings = []

    def record(self, *arguments, original=Program.record):
        recordings.append(self)
        original(self, *arguments)

    monkeypatch.setattr(Program, "record", record)
    cl.predict_many(entries("plain", "Adam", 12)[0], data()[0])
    assert 0 < len(recordings) <= threads


def test_predict_many_refuses_before_it_predicts():
    x, _ = data()
    models = entries("plain", "SGD", 3)[0]
    with pytest.raises(ValueError, match="models: expected one or more, got none"):
        cl.predict_many([], x)
    with pytest.raises(TypeError, match="models: expected a list with one for each model"):
        cl.predict_many(models[0], x)
    with pytest.raises(TypeError, match="model 3: expected a Model, got 3"):
        cl.predict_many([*models, 3], x)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        cl.predict_many(models, x, batch_size=0)
    with pytest.raises(ValueError, match=r"model 3: .*rows of 4 features"):
        cl.predict_many([*models, classifier(5, 3)], x)
    with pytest.raises(TypeError, match="model 0: predict: expected real numbers"):
        cl.predict_many(models, np.full((5, 4), "a"))


def test_an_exception_of_a_function_comes_through_predict_many(threads):
    class Raising(cl.Function):
        def forward(self, x):
            raise ZeroDivisionError("mine")

        def backward(self, dy):
            return dy

        def output_shape(self, shape):
            return shape

    models = [*entries("plain", "SGD", 3)[0], cl.Model([cl.Linear(4, 3), Raising()], seed=0)]
    with pytest.raises(ZeroDivisionError, match="mine"):
        cl.predict_many(models, data()[0])
