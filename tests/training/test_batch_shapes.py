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


def fit_batch_sizes(sizes, hidden, **options):
    """Train a net for an epoch with each of these batch sizes. Return it, and the bytes of its Programs after each."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 8)), rng.integers(0, 3, 300)
    model, loss, nbytes = classifier(8, hidden, 3), cl.SoftmaxLoss(), []
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    for size in sizes:
        model.fit(x, y, loss=loss, optimizer=optimizer, batch_size=size, verbose=0, **options)
        nbytes.append(sum(program.nbytes for program in model._model_state.programs._programs.values()))
    return model, nbytes


def test_trainings_with_many_batch_sizes_take_at_most_twice_the_memory_of_the_largest():
    sizes = [*range(20, 301, 20), 130, 110]
    _, (largest,) = fit_batch_sizes([300], 1500, validation_split=0.1)
    model, nbytes = fit_batch_sizes(sizes, 1500, validation_split=0.1)
    assert largest > cache.SMALL_MEMORY
    assert max(nbytes) <= 2 * largest
    assert len(model._model_state.programs._programs) == 5  # two full, two short, a validation batch


def test_two_batch_sizes_in_turn_are_recorded_once_each(recorded_calls):
    model, _ = fit_batch_sizes([150, 130] * 4, 1500)
    assert len(recorded_calls) == 3  # 150, and 130 with 40 that are left
    assert len(model._model_state.programs._programs) == 3


def test_many_batch_sizes_of_a_small_net_in_turn_are_recorded_once_each(recorded_calls):
    fit_batch_sizes([10, 20, 30, 50, 60] * 3, 5)
    assert len(recorded_calls) == 5


def test_a_training_is_recorded_although_earlier_ones_have_filled_the_budget(recorded_calls, monkeypatch):
    monkeypatch.setattr(cache, "MEMORY_BUDGET", 2 << 20)
    model, _ = fit_batch_sizes(range(130, 150), 1500)
    assert len(recorded_calls) == 40
    assert not any(program.runs_eagerly for program in model._model_state.programs._programs.values())


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
