"""Prefetch: batches that are made ahead in a thread."""

import os
import threading
import time

import numpy as np
import pytest

import caffelite as cl
from tests.data.sources import FEATURES, N, Stopping, X, Y, assert_same, classifier, fit_classifier

h5py = pytest.importorskip("h5py")


pytestmark = pytest.mark.usefixtures("small_buffers", "thread_leak_check")


def test_prefetch_gives_the_batches_in_order_each_time_and_their_number():
    batches = [(np.full(3, i), np.arange(3)) for i in range(10)]
    ahead = cl.Prefetch(batches)
    assert len(ahead) == 10
    for _ in range(2):
        assert [int(x[0]) for x, _ in ahead] == list(range(10))
    assert list(cl.Prefetch([])) == []


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_prefetch_makes_as_many_batches_ahead_as_it_should(depth):
    made = []

    def batches():
        for i in range(20):
            made.append(i)
            yield i

    for i in cl.Prefetch(batches(), depth):
        deadline = time.monotonic() + 5
        while len(made) < min(i + 1 + depth, 20) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)
        assert len(made) == min(i + 1 + depth, 20)


def test_training_on_prefetched_batches_has_the_same_bits():
    class Batches:
        def __iter__(self):
            x, y = np.empty((50, FEATURES), np.float32), np.empty(50, np.int64)
            for i in range(0, N, 50):  # in the same arrays
                x[:], y[:] = X[i : i + 50], Y[i : i + 50]
                yield x, y

    plain = fit_classifier(Batches(), metrics=["f1"], validation_data=(X, Y))
    assert_same(plain, fit_classifier(cl.Prefetch(Batches()), metrics=["f1"], validation_data=(X, Y)))
    assert_same(
        fit_classifier(cl.Prefetch(cl.DataGenerator(X, Y, seed=0, batch_size=48))),
        fit_classifier(cl.DataGenerator(X, Y, seed=0, batch_size=48, transform=lambda x, y: (x, y))),
    )


def test_a_prefetched_training_is_resumed(tmp_path):
    def data():
        return cl.Prefetch([(X[i : i + 50], Y[i : i + 50]) for i in range(0, N, 50)])

    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        fit_classifier(data(), callbacks=[Stopping(path, 130)])
    assert_same(fit_classifier(data(), resume=path), fit_classifier(data()))


class UserException(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyError("mine"), UserException("mine"), KeyboardInterrupt("mine")]
)
@pytest.mark.parametrize("at", [0, 3])
def test_an_exception_is_raised_at_the_batch_that_caused_it(error, at):
    def batches():
        for i in range(10):
            if i == at:
                raise error
            yield i

    seen = []
    with pytest.raises(type(error), match="mine") as caught:
        seen.extend(cl.Prefetch(batches()))
    assert seen == list(range(at))
    assert caught.value is error


def test_stop_iteration_of_a_transform_comes_through():
    def transform(x, y):
        raise StopIteration("mine")

    generator = cl.DataGenerator(X, Y, transform=transform)
    with pytest.raises(StopIteration, match="mine"):
        fit_classifier(cl.Prefetch(generator))
    with pytest.raises(StopIteration, match="mine"):
        fit_classifier(cl.Prefetch(cl.Prefetch(generator)))


def test_leaving_early_stops_the_thread_and_the_iterable():
    closed = []

    def batches():
        try:
            yield from range(1000)
        finally:
            closed.append(True)

    for i in cl.Prefetch(batches()):
        if i == 3:
            break
    assert closed == [True]
    given = iter(cl.Prefetch(batches()))
    next(given)
    del given
    assert closed == [True] * 2
    iter(cl.Prefetch(batches()))  # never begun


def test_an_exception_in_a_training_stops_the_thread():
    def raising(epoch, history):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit_classifier(cl.Prefetch(cl.DataGenerator(X, Y)), callbacks=[raising])
    with pytest.raises(ValueError, match="row 1"):
        fit_classifier(cl.Prefetch([(X[:3], [0, 7, 0])] * 10))


def test_an_exception_in_evaluate_stops_the_thread_whoever_keeps_it():
    with pytest.raises(ValueError, match="row 1") as kept:
        classifier().evaluate(cl.Prefetch([(X[:3], [0, 7, 0])] * 10), loss=cl.SoftmaxLoss())
    assert kept.traceback
    assert "caffelite prefetch" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_begins_again_and_does_not_hang():
    ahead = cl.Prefetch([1, 2, 3, 4, 5, 6])
    given = iter(ahead)
    assert next(given) == 1
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert list(ahead) == [1, 2, 3, 4, 5, 6]
            try:
                list(given)
            except RuntimeError as error:
                status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done[1] == 0
    assert list(given) == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("batches", "depth", "error"),
    [(3, 2, TypeError), (None, 2, TypeError), ([], 0, ValueError), ([], 1.5, TypeError), ([], True, TypeError)],
)
def test_prefetch_of_no_iterable_or_to_no_depth_raises(batches, depth, error):
    with pytest.raises(error, match=r"Prefetch takes an iterable|depth"):
        cl.Prefetch(batches, depth)


def test_an_iterator_gives_its_batches_once():
    with pytest.raises(ValueError, match="no batches in epoch 2"):
        fit_classifier(cl.Prefetch(iter([(X[:48], Y[:48])])))
