"""What Python threads may share, with Python's lock and without it. (`test_threads.py` is about kernels' threads.)"""

import os
import pkgutil
import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite._support import fork as forks
from caffelite.core import autograd
from caffelite.model.many import pool
from tests.conftest import bits, classifier, train
from tests.core.free_threading import ROWS, SharedNets, run_at_once, run_jobs

pytestmark = pytest.mark.usefixtures("restored_threads")

HAS_LOCK = not sysconfig.get_config_var("Py_GIL_DISABLED")
THREADS, MANY = 8, 1000 if HAS_LOCK else 30_000  # repetitions in each thread, to meet what happens rarely
X, Y = cl.datasets.spiral(points_per_class=40, seed=0)

without_lock = pytest.mark.skipif(HAS_LOCK, reason="this Python has its lock")


@without_lock
def test_no_module_brings_the_lock_back():
    modules = pkgutil.walk_packages(cl.__path__, "caffelite.")
    compiled = [m.name for m in modules if m.module_finder.find_spec(m.name).origin.endswith((".so", ".pyd"))]
    assert {"caffelite._kernels.bindings", "caffelite.core.autograd", "caffelite.program.runner"} < set(compiled)
    program = f"import importlib, sys\nfor name in {['caffelite', *compiled]}: importlib.import_module(name)\n"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    command = [sys.executable, "-W", "error", "-c", program + "print(sys._is_gil_enabled())"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
def test_threads_that_train_and_predict_have_the_bits_of_one_and_leave_the_number_of_threads(n):
    cl.set_num_threads(n)
    assert run_jobs(seconds=1, threads=THREADS) > THREADS
    assert kernels.available_threads() == n


@pytest.mark.parametrize("name", SharedNets().uses)
def test_threads_may_be_the_first_to_use_a_net(name):
    expected = [SharedNets().predict(name, i) for i in range(len(ROWS))]
    for _ in range(10):
        shared, results = SharedNets(), [b""] * THREADS

        def predict(i, shared=shared, results=results):
            results[i] = shared.predict(name, i % len(ROWS))

        run_at_once(THREADS, predict)
        assert results == [expected[i % len(ROWS)] for i in range(THREADS)]


def test_results_on_any_thread_are_numbered_in_their_order():
    """The order decides which gradient is complete when back-propagation comes to a result."""
    before, numbers = autograd.application_count(), [np.zeros(MANY, int) for _ in range(THREADS)]

    def apply(i):
        x = cl.Tensor(np.ones(1, np.float32))
        for k in range(MANY):
            numbers[i][k] = (x * 2.0)._serial_number

    run_at_once(THREADS, apply)
    assert autograd.application_count() - before == THREADS * MANY
    assert all((np.diff(own) > 0).all() for own in numbers)
    assert len(np.unique(np.concatenate(numbers))) == THREADS * MANY


def test_parameters_on_any_thread_are_counted():
    """A model looks for new parameters if their number has grown."""
    before = autograd.parameter_count()

    def make(i):
        for _ in range(MANY):
            cl.Tensor(np.zeros(1, np.float32)).requires_grad = True

    run_at_once(THREADS, make)
    assert autograd.parameter_count() - before == THREADS * MANY


def test_replays_on_many_threads_leave_the_number_of_threads():
    cl.set_num_threads(2 * THREADS)
    programs = [cl.capture(lambda x: cl.tanh(cl.Tensor(x)), X[:1]) for _ in range(THREADS)]

    def replay(i):
        for _ in range(MANY):
            programs[i](X[:1])

    run_at_once(THREADS, replay)
    assert kernels.available_threads() == 2 * THREADS


def test_each_of_many_models_is_taken_by_one_thread(monkeypatch):
    monkeypatch.setattr(pool, "Counter", lambda keys: {None: 0})  # no model is like another
    cl.set_num_threads(THREADS)
    signature, taken = type("Signature", (), {"key": None})(), []
    pool.run_jobs([signature] * THREADS * MANY, lambda i, shared_model: taken.append(i), pool.StopFlag())
    assert sorted(taken) == list(range(THREADS * MANY))


def test_every_object_with_a_lock_is_known_to_a_forked_child(monkeypatch):
    class Thing:
        def _after_fork(self):
            pass

    things = [[Thing() for _ in range(MANY)] for _ in range(THREADS)]
    monkeypatch.setattr(forks, "_registered", {})
    run_at_once(THREADS, lambda i: [forks.reset_after_fork(thing) for thing in things[i]])
    known = {reference() for reference in forks._registered.values()}
    assert known.issuperset(thing for own in things for thing in own)


# ---- one model in two trainings --------------------------------------------------------------------------------------


def test_a_model_that_another_thread_trains_raises_before_anything_is_written():
    model, other, in_training, done = classifier(2, 8, 3), classifier(2, 8, 3), threading.Event(), threading.Event()
    frame = {"east": X[:, 0], "north": X[:, 1]}

    def wait(epoch, history):
        in_training.set()
        done.wait(60)

    with_callback = threading.Thread(target=train, args=(model, X, Y), kwargs={"callbacks": [wait]})
    with_callback.start()
    try:
        assert in_training.wait(60)
        before, models = bits(model), [other, model]
        optimizers = [cl.SGD(m.parameters(), lr=0.1) for m in models]
        with pytest.raises(RuntimeError, match="another thread trains this model"):
            train(model, frame, Y)
        with pytest.raises(RuntimeError, match="another thread trains this model"):
            cl.fit_many(models, frame, Y, loss=cl.SoftmaxLoss(), optimizers=optimizers, verbose=0)
        assert bits(model) == before
        assert model._model_state.column_names is other._model_state.column_names is None
        assert model.predict(X).shape == (len(X), 3)
    finally:
        done.set()
        with_callback.join()
    train(model, frame, Y)
    train(other, frame, Y)


def test_a_callback_may_train_the_model_itself():
    model = classifier(2, 8, 3)
    train(model, X, Y, callbacks=[lambda epoch, history: train(model, X, Y) and None])
    before = bits(model)
    train(model, X, Y)
    assert bits(model) != before
