"""What users' losses, callbacks and iterables raise in a `fit`, and how long trainings are added up."""

import itertools
import tracemalloc

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.columns import LOSS, TARGETS, A, Epochs, SquaredError, X, Y


class CheckedLoss(SquaredError):
    """A loss that refuses negative targets."""

    def check_targets(self, targets, scores_shape):
        assert scores_shape == np.shape(targets)
        if (np.asarray(targets) < 0).any():
            raise ValueError(f"row {np.nonzero(np.asarray(targets) < 0)[0][0]} is negative")


class Subclass(cl.DataGenerator):
    pass


def test_a_loss_is_asked_about_the_targets_of_each_batch_before_its_step():
    good = np.abs(TARGETS)
    bad = good.copy()
    bad[13] = -1
    for make in (lambda y: Subclass(A, y, batch_size=10, shuffle=False), lambda y: Epochs(cl.DataGenerator(A, y))):
        model, loss = classifier(2, 3), CheckedLoss()
        with pytest.raises(ValueError, match=r"row \d+ is negative"):
            train(model, make(bad), loss=loss)
        with pytest.raises(ValueError, match=r"row \d+ is negative"):
            model.evaluate(make(bad), loss=loss)
    model, one_step = classifier(2, 3), classifier(2, 3)
    with pytest.raises(ValueError, match="row 3 is negative"):
        train(model, Subclass(A, bad, batch_size=10, shuffle=False), loss=CheckedLoss())
    train(one_step, A[:10], good[:10], loss=CheckedLoss(), shuffle=False)
    assert bits(model) == bits(one_step)


@pytest.mark.parametrize("epochs", [10**9, 10**12, 10**30])
@pytest.mark.parametrize("metrics", [[], ["f1"]])
def test_epochs_without_end_need_no_memory_before_they_are_done(epochs, metrics):
    model = classifier(2, 3)
    train(model, X, Y, metrics=metrics)
    for x, y in ((X, Y), ([(X, Y)], None)):
        tracemalloc.start()
        history = train(model, x, y, epochs=epochs, metrics=metrics, callbacks=[lambda epoch, _: epoch == 4])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert history.epochs == 5
        assert peak < 2**20


def test_more_epochs_than_are_added_up_at_once_have_the_history_of_epochs_one_by_one():
    models = [classifier(2, 3) for _ in range(2)]
    options = {"epochs": 2500, "batch_size": 50, "metrics": ["accuracy"], "seed": 0, "lr": 1e-3}
    histories = [
        train(model, X, Y, callbacks=callbacks, **options)
        for model, callbacks in zip(models, ([], [lambda epoch, history: None]), strict=True)
    ]
    assert bits(models[0]) == bits(models[1])
    assert histories[0] == histories[1]
    assert histories[0].epochs == 2500
    numbers = itertools.count()

    def number(outputs, targets):
        return next(numbers)

    assert train(models[0], X, Y, epochs=2500, batch_size=60, metrics=[number])["number"] == list(range(2500))


class Stops:
    """Raises StopIteration wherever it is asked to."""

    def __call__(self, *arguments):
        raise StopIteration("mine")

    __iter__ = __call__


class Stopping(cl.Function):
    def __init__(self, where):
        self.where = where

    def forward(self, x):
        if self.where == "forward":
            raise StopIteration("mine")
        return x

    def backward(self, dy):
        if self.where == "backward":
            raise StopIteration("mine")
        return dy


class StoppingDescent(cl.SGD):
    def step(self):
        raise StopIteration("mine")


def stopping_uses():
    def with_function(where):
        return train(cl.Model([cl.Linear(2, 3), Stopping(where)]), X, Y)

    def in_the_second_epoch():
        calls = itertools.count()

        def metric(outputs, targets):
            if next(calls) == 1:
                raise StopIteration("mine")
            return 0

        train(classifier(2, 3), X, Y, metrics=[metric], epochs=3)

    class Refusing(SquaredError):
        check_targets = Stops()

    def with_optimizer():
        model = classifier(2, 3)
        train(model, X, Y, optimizer=StoppingDescent(model.parameters(), lr=0.1))

    return {
        "metric": lambda: train(classifier(2, 3), X, Y, metrics=[Stops()]),
        "metric, evaluate": lambda: classifier(2, 3).evaluate(X, Y, loss=LOSS, metrics=[Stops()]),
        "metric, batches": lambda: train(classifier(2, 3), [(X, Y)], metrics=[Stops()]),
        "metric, replay": in_the_second_epoch,
        "callback": lambda: train(classifier(2, 3), X, Y, callbacks=[Stops()]),
        "forward": lambda: with_function("forward"),
        "backward": lambda: with_function("backward"),
        "predict": lambda: cl.Model([Stopping("forward")]).predict(X),
        "iterable": lambda: train(classifier(2, 3), Stops()),
        "iterable, evaluate": lambda: classifier(2, 3).evaluate(Stops(), loss=LOSS),
        "check, batches": lambda: train(classifier(2, 3), [(A, TARGETS)], loss=Refusing()),
        "optimizer": with_optimizer,
        "transform": lambda: train(classifier(2, 3), cl.DataGenerator(X, Y, transform=Stops())),
        "transform, evaluate": lambda: classifier(2, 3).evaluate(cl.DataGenerator(X, Y, transform=Stops()), loss=LOSS),
    }


@pytest.mark.parametrize("where", stopping_uses())
def test_a_users_stop_iteration_comes_through_as_it_is(where):
    with pytest.raises(StopIteration, match="mine"):
        stopping_uses()[where]()


@pytest.mark.parametrize("kind", "bhilqBHILQ")
def test_labels_of_every_c_integer_type_are_labels(kind):
    labels, model, other = Y.astype(kind), classifier(2, 3), classifier(2, 3)
    assert labels.dtype.char == kind  # if two types have one size, NumPy keeps the one that was asked for
    options = {"epochs": 3, "metrics": ["accuracy"], "batch_size": 25, "shuffle": False}
    expected = train(other, X, Y, **options)
    assert train(model, X, labels, **options) == expected
    assert bits(model) == bits(other)
    batches = [(X[i : i + 25], labels[i : i + 25]) for i in range(0, 60, 25)]
    assert train(classifier(2, 3), batches, epochs=3, metrics=["accuracy"]) == expected
    measured = model.evaluate(X, labels, loss=LOSS, metrics=["accuracy"])
    assert measured == other.evaluate(X, Y, loss=LOSS, metrics=["accuracy"])
    step = cl.capture(lambda x, y: cl.SoftmaxLoss()(model(x), y), X, labels)
    assert step(X, labels) == cl.SoftmaxLoss()(model(X), Y).data
    assert cl.SoftmaxLoss()(model(X), labels).data == cl.SoftmaxLoss()(model(X), Y).data
