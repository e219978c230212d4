"""Batches of an iterable whose shapes and dtypes came before: only their values are checked again."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.training.epochs import iterable
from caffelite.training.epochs.iterable import IterableEpochs
from tests.conftest import bits, classifier, train
from tests.training.columns import TARGETS, A, B, X, Y, pairs


@pytest.fixture
def checked_batches(monkeypatch):
    """Return a list that gets the batches that pass all checks in Python."""
    batches, prepare = [], iterable.prepare_batch
    monkeypatch.setattr(iterable, "prepare_batch", lambda *given: batches.append(given[1]) or prepare(*given))
    return batches


def cut(*columns, size=20):
    return [tuple([column[i : i + size] for column in columns]) for i in range(0, len(columns[0]), size)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_a_shape_is_checked_once_and_the_bits_are_those_without_batches(checked_batches, dtype):
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    rows = (10 * X).astype(dtype)
    history = train(model, cut(rows, Y, size=25), epochs=4)
    assert [len(batch[0]) for batch in checked_batches] == [25, 10]
    assert history == train(other, rows, Y, batch_size=25, shuffle=False, epochs=4)
    assert bits(model) == bits(other)


def test_batches_of_several_inputs_with_weights_are_checked_once(checked_batches):
    weights, runs = np.tile(np.float32([1, 2, 0.5]), 10), []
    in_memory = cl.DataGenerator((A, B), TARGETS, sample_weight=weights, batch_size=10, shuffle=False)
    for batches in ([*pairs(10, weights)], in_memory):
        model = TwoInputs(seed=0)
        optimizer = cl.SGD(model.parameters(), lr=0.1)
        runs.append((model.fit(batches, loss=cl.MSELoss(), optimizer=optimizer, epochs=3, verbose=0), bits(model)))
    assert len(checked_batches) == 1
    assert runs[0] == runs[1]


class TwoInputs(cl.Model):
    def __init__(self, seed):
        super().__init__(seed=seed)
        self.first, self.second = cl.Linear(2, 3), cl.Linear(3, 3)

    def call(self, a, b):
        return self.first(a) + self.second(b)


def raised_error(model, batches):
    with pytest.raises((ValueError, IndexError)) as error:
        train(model, batches)
    assert error.value.__notes__ == [f"in the making of epoch 1, batch {len(batches)}, called by fit"]
    return str(error.value)


@pytest.mark.parametrize("label", [3, -1])
def test_a_bad_label_in_a_later_batch_raises_as_in_the_first_and_nothing_is_written(label):
    def make_model():
        return cl.Model([cl.Linear(2, 8), cl.BatchNorm(8), cl.Dropout(0.2), cl.Linear(8, 3)], seed=0)

    good, bad = cut(X, Y), (X[:20], np.where(np.arange(20) == 7, label, Y[:20]))
    model, shorter = make_model(), make_model()
    message = raised_error(model, [*good, *good, bad])
    assert "row 7" in message
    assert message == raised_error(make_model(), [bad])
    train(shorter, [*good, *good])
    states = [m.state_dict() for m in (model, shorter)]
    assert all((states[0][name] == x).all() for name, x in states[1].items())


@pytest.mark.parametrize("index", [9, -1])
def test_a_bad_index_in_a_later_batch_raises_as_in_the_first_and_nothing_is_written(index):
    def make_model():
        return cl.Model([cl.Embedding(9, 4), cl.Flatten(), cl.Linear(8, 3)], seed=0)

    x, y, model, shorter = np.tile([[1, 2], [3, 4]], (10, 1)), np.arange(20) % 3, make_model(), make_model()
    bad = x.copy()
    bad[13, 1] = index
    message = raised_error(model, [(x, y), (x, y), (x, y), (bad, y)])
    assert f"a batch's x: index {index} in row 13, at (13, 1), is not in 0 … 8" in message
    assert message == raised_error(make_model(), [(bad, y)])
    train(shorter, [(x, y)] * 3)
    assert bits(model) == bits(shorter)


def test_bad_weights_in_a_later_batch_raise_and_weights_of_zero_skip_it():
    weights = np.ones(20, np.float32)
    good = [(*batch, weights) for batch in cut(X, Y)]
    model, other = classifier(2, 3), classifier(2, 3)
    train(model, [*good, (X[:20], Y[:20], 0 * weights), good[0]])
    train(other, [*good, good[0]])
    assert bits(model) == bits(other)
    with pytest.raises(ValueError, match=r"a batch's weights: .* got -1\.0 in row 0"):
        train(model, [*good, (X[:20], Y[:20], -weights)])


def test_a_users_own_check_sees_each_batch():
    seen = []

    class LossWithCheck(cl.SoftmaxLoss, recordable=True):
        def check_targets(self, targets, scores_shape):
            seen.append(targets.sum())
            super().check_targets(targets, scores_shape)

    model = classifier(2, 3)
    batches = cut(X, Y)
    model.fit(batches, loss=LossWithCheck(), optimizer=cl.SGD(model.parameters(), lr=0.1), epochs=2, verbose=0)
    assert seen == [y.sum() for _, y in batches] * 2


def test_a_model_that_grows_between_batches_gets_its_checks_again(checked_batches):
    model = cl.Model([cl.Linear(2, 3)], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=0.1)

    def batches():
        yield from cut(X, Y)
        model.add(cl.ReLU())
        yield from cut(X, Y)

    model.fit(batches(), loss=cl.SoftmaxLoss(), optimizer=optimizer, verbose=0)
    assert len(checked_batches) == 2


def test_callbacks_that_wait_for_a_step_get_it_and_the_others_each_batch(monkeypatch):
    runs, run_until = [], IterableEpochs.run_until
    monkeypatch.setattr(IterableEpochs, "seconds", np.inf)
    monkeypatch.setattr(IterableEpochs, "run_until", lambda *given: runs.append(given) or run_until(*given))

    class Listener:
        steps = 0

        def between_steps(self):
            self.steps += 1

        def __call__(self, epoch, history):
            pass

    steps, listener = [], Listener()
    train(classifier(2, 3), cut(X, Y, size=5))
    assert len(runs) == 2  # the first step, which warns of parameters without a gradient, and all others
    train(
        classifier(2, 3), cut(X, Y, size=5), callbacks=[cl.callbacks.Each(4, lambda step, training: steps.append(step))]
    )
    train(classifier(2, 3), cut(X, Y, size=5), callbacks=[listener])
    assert steps == [4, 8, 12]
    assert listener.steps >= 12
