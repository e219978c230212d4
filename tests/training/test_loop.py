"""The loop runs epochs without Python until a callback needs it, and then calls all callbacks."""

import math

import numpy as np
import pytest

from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite.training.callbacks.base import Callback
from caffelite.training.history import History
from caffelite.training.loop import Loop


class TenSteps:
    """Epochs of ten steps, whose loss is the number of the epoch."""

    returns_each_epoch = False

    def __init__(self, has_native_calls=True):
        self.epoch, self.steps, self.has_native_calls = 0, 0, has_native_calls
        self.stretches = []  # the steps of each stretch, and its number of native calls

    def set_native_calls(self, calls):
        self.num_calls = len(calls)

    def last_epoch(self, done):
        return 1000

    def run_until(self, epochs, steps):
        count = min(10 * epochs - self.steps, steps)
        self.stretches.append((count, self.num_calls))
        self.steps += count
        self.epoch = self.steps // 10

    def results(self, done):
        return np.arange(done, self.epoch, dtype=float)[:, None]

    def loss(self):
        return math.nan

    def close(self):
        pass


class CallLog(Callback):
    """Writes down its calls. It needs Python after each `every` epochs, or has a native call for each epoch."""

    def __init__(self, every=math.inf, native=False, steps=math.inf, ends_after=math.inf):
        self.every, self.native, self.steps, self.ends_after = every, native, steps, ends_after
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def next_python_epoch(self, done, native_calls):
        if self.native and native_calls is not None:
            native_calls.append("call")
            return math.inf
        return done + 1 if self.native else done - done % self.every + self.every if self.every < math.inf else math.inf

    def steps_until_due(self):
        return self.steps

    def step(self, count, loss):
        self.calls.append(("step", count))

    def epoch(self, count, history):
        self.calls.append(("epoch", count))
        return history.epochs >= self.ends_after

    def end(self):
        self.calls.append("end")


def run(callbacks, max_epochs=6, **options):
    epochs, history = TenSteps(**options), History({"loss": []})
    with InterruptsBetweenSteps() as interrupts:
        Loop(max_epochs, callbacks, history, interrupts).run(lambda: epochs)
    return epochs, history


def test_without_a_callback_that_needs_python_all_epochs_run_in_one_stretch():
    callback = CallLog()
    epochs, history = run([callback])
    assert epochs.stretches == [(60, 0)]
    assert callback.calls == ["begin", ("step", 60), ("epoch", 6), "end"]
    assert history == {"loss": [0, 1, 2, 3, 4, 5]}


def test_the_callback_that_needs_python_first_ends_the_stretch_for_all():
    often, seldom = CallLog(every=2), CallLog(every=3)
    run([often, seldom])
    counts = [("step", 20), ("epoch", 2), ("step", 10), ("epoch", 1)]
    assert often.calls == seldom.calls == ["begin", *counts, *counts[2:], *counts[:2], "end"]


def test_a_native_call_is_made_after_each_epoch_without_python():
    epochs, _ = run([CallLog(native=True), CallLog(every=3)])
    assert epochs.stretches == [(30, 1), (30, 1)]


@pytest.mark.parametrize(("callbacks", "has_native_calls"), [([CallLog(native=True)], False), ([CallLog(1)], True)])
def test_each_epoch_returns_to_python_if_a_callback_needs_it(callbacks, has_native_calls):
    epochs, _ = run([CallLog(native=True), *callbacks], has_native_calls=has_native_calls)
    assert epochs.stretches == [(10, 0)] * 6


def test_a_stretch_ends_after_the_steps_that_a_callback_asks_for():
    callback = CallLog(steps=25)
    epochs, _ = run([callback])
    assert [count for count, _ in epochs.stretches] == [25, 25, 10]
    assert callback.calls[1:4] == [("step", 25), ("epoch", 2), ("step", 25)]


def test_a_callback_ends_the_training_and_all_are_ended():
    first, second = CallLog(ends_after=2), CallLog(every=1)
    _, history = run([first, second])
    assert history.epochs == 2
    assert first.calls[-1] == second.calls[-1] == "end"
