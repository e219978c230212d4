"""Batches of many shapes: how many steps are recorded, and when they make room."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.program import cache
from tests.conftest import bits, classifier
from tests.training.columns import X, Y


def texts(lengths, epochs=3):
    """Return a net that takes texts, and batches of these lengths in turn."""
    rng = np.random.default_rng(0)
    model = cl.Model([cl.Embedding(20, 4), cl.GRU(4, 8), cl.Linear(8, 2)], seed=0)
    batches = [(rng.integers(0, 20, (8, length)), rng.integers(0, 2, 8)) for length in lengths]
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(batches, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, verbose=0)
    return model


@pytest.fixture
def recorded_calls(monkeypatch):
    calls, record = [], cl.Program.record
    monkeypatch.setattr(cl.Program, "record", lambda *given: calls.append(given) or record(*given))
    return calls


def test_batches_of_forty_lengths_in_turn_are_recorded_once_each(recorded_calls):
    texts(range(1, 41))
    assert len(recorded_calls) == 40


def test_steps_beyond_the_budget_of_memory_run_in_python_with_the_same_bits(recorded_calls, monkeypatch):
    expected = bits(texts(range(1, 11)))
    recorded_calls.clear()
    monkeypatch.setattr(cache, "MEMORY_BUDGET", 0)
    model = texts(range(1, 11))
    assert bits(model) == expected
    assert len(recorded_calls) == cache.MIN_PROGRAMS


def test_a_program_that_was_not_asked_for_in_a_long_while_makes_room(recorded_calls, monkeypatch):
    monkeypatch.setattr(cache, "MEMORY_BUDGET", 0)
    monkeypatch.setattr(cache, "STALE_REQUESTS", 5)
    model = texts(range(1, 7))
    recorded_calls.clear()
    for rows in (1, 2, 3, *range(2, 20), 3, 3):
        model.predict(np.zeros((rows, 5), int))
    assert recorded_calls
    assert len(model._model_state.programs._programs) <= cache.MIN_PROGRAMS + cache.PREDICT_LIMITS[0]


class CallNet(cl.Model):
    """A model that writes `call`: its rows may depend on each other."""

    def __init__(self):
        super().__init__(seed=0)
        self.linear = cl.Linear(2, 3)

    def call(self, x):
        return self.linear(x)


def test_predict_of_ever_other_numbers_of_rows_records_few_of_them(recorded_calls):
    model, x = CallNet(), np.random.default_rng(0).normal(size=(100, 2))
    for rows in range(1, 101):
        np.testing.assert_array_equal(model.predict(x[:rows]), model(x[:rows].astype(np.float32)).data)
    assert len(recorded_calls) == 16


@pytest.mark.parametrize(
    "batches",
    [lambda g: g, cl.Prefetch, lambda g: [(X, Y)]],
    ids=["DataGenerator", "Prefetch", "list"],
)
def test_batches_refuse_a_batch_size_and_a_shuffle_that_are_not_theirs(batches):
    model = classifier(2, 3)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    given = batches(cl.DataGenerator(X, Y, batch_size=10, seed=0))
    before = bits(model)
    with pytest.raises(ValueError, match=r"batch_size=5 needs x and y as arrays.* leave out batch_size"):
        model.fit(given, loss=cl.SoftmaxLoss(), optimizer=optimizer, batch_size=5, verbose=0)
    with pytest.raises(ValueError, match=r"shuffle=False needs x and y as arrays.* leave out shuffle"):
        model.fit(given, loss=cl.SoftmaxLoss(), optimizer=optimizer, shuffle=False, verbose=0)
    with pytest.raises(ValueError, match=r"batch_size=5 needs x and y as arrays.* leave out batch_size"):
        model.evaluate(given, loss=cl.SoftmaxLoss(), batch_size=5)
    assert bits(model) == before


def test_a_generators_own_batch_size_may_be_given_again():
    model, given = classifier(2, 3), cl.DataGenerator(X, Y, batch_size=10, seed=0)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(given, loss=cl.SoftmaxLoss(), optimizer=optimizer, batch_size=10, shuffle=True, verbose=0)
    assert model.evaluate(given, loss=cl.SoftmaxLoss(), batch_size=10)["loss"] > 0
