"""Ctrl-C during `fit` leaves a whole number of steps."""

import contextlib
import itertools
import random
import signal
import threading

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.numpy_parts import Descent, Through, X, Y, by_hand


def interrupt():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def sigint_handler():
    """Check that fit puts Python's own handler of Ctrl-C back."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler


def interrupt_fit(model, x=X, y=Y, **options):
    in_order = {} if y is None else {"batch_size": len(X), "shuffle": False}
    with pytest.raises(KeyboardInterrupt) as error:
        train(model, x, y, **{**in_order, **options})
    return error.value.history


@pytest.mark.usefixtures("sigint_handler")
def test_ctrl_c_in_a_callback_leaves_the_completed_epochs():
    model = classifier(2, 16, 3)
    history = interrupt_fit(model, epochs=9, callbacks=[lambda epoch, history: interrupt() if epoch == 3 else None])
    assert history.epochs == len(history["loss"]) == 4
    assert bits(model) == bits(by_hand(classifier(2, 16, 3), X, Y, 4))


@pytest.mark.usefixtures("sigint_handler")
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_ctrl_c_in_a_users_function_waits_for_the_end_of_the_step(where):
    calls = itertools.count(1)

    def on_third(dy=None):
        if next(calls) == 3:
            interrupt()
        return dy

    model = classifier(2, 16, 3).add(Through(**{where: on_third}))
    history = interrupt_fit(model, epochs=9, metrics=["accuracy"])
    assert bits(model) == bits(by_hand(classifier(2, 16, 3), X, Y, 3))
    assert [len(values) for values in history.values()] == [3, 3]  # the step was the last of the third epoch
    train(model, X, Y)
    assert next(calls) > 4


@pytest.mark.usefixtures("sigint_handler")
def test_ctrl_c_in_a_users_optimizer_waits_for_the_end_of_the_step():
    class InterruptedDescent(Descent):
        def step(self):
            for p in self.parameters:
                interrupt()
                p.data = p.data - np.float32(self.lr) * p.grad

    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    history = interrupt_fit(model, optimizer=InterruptedDescent(model.parameters(), lr=0.1), epochs=9)
    assert history.epochs == 1  # of one step
    train(other, X, Y, optimizer=Descent(other.parameters(), lr=0.1), batch_size=len(X), shuffle=False)
    assert bits(model) == bits(other)


@pytest.mark.usefixtures("sigint_handler")
def test_ctrl_c_in_a_generator_or_a_metric_leaves_the_steps_made_so_far():
    def batches():
        yield X, Y
        interrupt()
        yield X, Y

    def metric(outputs, targets):
        interrupt()
        return 0.0

    for data, options, steps in ((batches(), {}, 1), ([(X, Y)] * 2, {"metrics": [metric]}, 2)):
        model = classifier(2, 16, 3)
        assert interrupt_fit(model, data, None, **options).epochs == 0
        assert bits(model) == bits(by_hand(classifier(2, 16, 3), X, Y, steps))


@pytest.mark.usefixtures("sigint_handler")
def test_ctrl_c_during_validation_leaves_lists_of_one_length():
    history = interrupt_fit(
        cl.Model([cl.Linear(2, 3), Through(lambda: None if cl.is_training() else interrupt())], seed=0),
        epochs=3,
        validation_data=(X, Y),
    )
    assert {name: len(values) for name, values in history.items()} == {"loss": 0, "val_loss": 0}


@pytest.mark.usefixtures("sigint_handler")
@pytest.mark.parametrize("seed", range(8))
def test_ctrl_c_at_a_random_time_leaves_a_whole_number_of_steps(seed):
    delay = random.Random(seed).uniform(0, 0.03)
    timer = threading.Timer(delay, interrupt)
    model = classifier(2, 64, 3)
    with contextlib.closing(model_states(classifier(2, 64, 3))) as states:
        history = interrupt_fit(
            model, epochs=10**6, batch_size=15, callbacks=[lambda epoch, history: epoch or timer.start()]
        )
        timer.join()
        before = next(itertools.islice(states, 4 * history.epochs, None))
        within = [before, *itertools.islice(states, 4)]  # four steps an epoch
    assert bits(model) in within
    assert np.isfinite(history["loss"]).all()
    train(model, X, Y)


def model_states(model):
    """Yield the parameters' bytes before the first step of batches of 15, and after each step."""
    loss, optimizer = cl.SoftmaxLoss(), cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    yield bits(model)
    for i in itertools.cycle(range(0, 60, 15)):
        optimizer.zero_grad()
        loss(model(X[i : i + 15]), Y[i : i + 15]).backward()
        optimizer.step()
        yield bits(model)


def test_the_handler_of_the_program_is_called_and_put_back():
    calls = []

    def handler(number, frame):
        calls.append(number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        model = classifier(2, 16, 3).add(Through(interrupt))
        history = train(model, X, Y, epochs=3, batch_size=len(X))
        assert history.epochs == 3
        assert calls == [signal.SIGINT] * 3
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_handler")
def test_the_handler_is_put_back_after_errors_too():
    with pytest.raises(cl.TrainingDiverged):
        train(classifier(2, 3), np.full_like(X, np.nan), Y)
    with pytest.raises(ZeroDivisionError):
        train(classifier(2, 3), X, Y, callbacks=[lambda epoch, history: 1 / 0])


def test_fit_on_another_thread_gives_the_same_bits():
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    histories = []
    thread = threading.Thread(target=lambda: histories.append(train(model, X, Y, epochs=3)))
    thread.start()
    thread.join()
    assert histories == [train(other, X, Y, epochs=3)]
    assert bits(model) == bits(other)
