"""The loop runs epochs without Python until a hook needs it, and then calls all hooks."""

import math

import numpy as np
import pytest

import caffelite as cl
from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite.training.callbacks.base import LoopHook
from caffelite.training.history import History
from caffelite.training.loop import Loop
from tests.conftest import classifier, train


class TenSteps:
    """Epochs of ten steps, whose loss is the number of the epoch."""

    returns_each_epoch = False

    def __init__(self, takes_epoch_hooks=True):
        self.epoch, self.steps, self.takes_epoch_hooks = 0, 0, takes_epoch_hooks
        self.stretches = []  # the steps of each stretch, and its number of epoch hooks

    def set_epoch_hooks(self, hooks):
        self.num_hooks = len(hooks)

    def last_epoch(self, done):
        return 1000

    def run_until(self, epochs, steps):
        count = min(10 * epochs - self.steps, steps)
        self.stretches.append((count, self.num_hooks))
        self.steps += count
        self.epoch = self.steps // 10

    def results(self, done):
        return np.arange(done, self.epoch, dtype=float)[:, None]

    def loss(self):
        return math.nan

    def close(self):
        pass


class LogHook(LoopHook):
    """Writes down its calls. It needs Python after each `every` epochs, or has an epoch hook."""

    def __init__(self, every=math.inf, compiled=False, steps=math.inf, ends_after=math.inf):
        self.every, self.compiled, self.steps, self.ends_after = every, compiled, steps, ends_after
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def next_python_epoch(self, done, epoch_hooks):
        if self.compiled and epoch_hooks is not None:
            epoch_hooks.append("hook")
            return math.inf
        return (
            done + 1 if self.compiled else done - done % self.every + self.every if self.every < math.inf else math.inf
        )

    def steps_until_due(self):
        return self.steps

    def step(self, count, loss):
        self.calls.append(("step", count))

    def epoch(self, count, history):
        self.calls.append(("epoch", count))
        return history.epochs >= self.ends_after

    def end(self):
        self.calls.append("end")


def run(hooks, max_epochs=6, **options):
    epochs, history = TenSteps(**options), History({"loss": []})
    with InterruptsBetweenSteps() as interrupts:
        Loop(max_epochs, hooks, history, interrupts).run(lambda: epochs)
    return epochs, history


def test_without_a_hook_that_needs_python_all_epochs_run_in_one_stretch():
    hook = LogHook()
    epochs, history = run([hook])
    assert epochs.stretches == [(60, 0)]
    assert hook.calls == ["begin", ("step", 60), ("epoch", 6), "end"]
    assert history == {"loss": [0, 1, 2, 3, 4, 5]}


def test_the_hook_that_needs_python_first_ends_the_stretch_for_all():
    often, seldom = LogHook(every=2), LogHook(every=3)
    run([often, seldom])
    counts = [("step", 20), ("epoch", 2), ("step", 10), ("epoch", 1)]
    assert often.calls == seldom.calls == ["begin", *counts, *counts[2:], *counts[:2], "end"]


def test_an_epoch_hook_runs_after_each_epoch_without_python():
    epochs, _ = run([LogHook(compiled=True), LogHook(every=3)])
    assert epochs.stretches == [(30, 1), (30, 1)]


@pytest.mark.parametrize(("hooks", "takes_epoch_hooks"), [([LogHook(compiled=True)], False), ([LogHook(1)], True)])
def test_each_epoch_returns_to_python_if_a_hook_needs_it(hooks, takes_epoch_hooks):
    epochs, _ = run([LogHook(compiled=True), *hooks], takes_epoch_hooks=takes_epoch_hooks)
    assert epochs.stretches == [(10, 0)] * 6


def test_a_stretch_ends_after_the_steps_that_a_hook_asks_for():
    hook = LogHook(steps=25)
    epochs, _ = run([hook])
    assert [count for count, _ in epochs.stretches] == [25, 25, 10]
    assert hook.calls[1:4] == [("step", 25), ("epoch", 2), ("step", 25)]


def test_a_hook_ends_the_training_and_all_are_ended():
    first, second = LogHook(ends_after=2), LogHook(every=1)
    _, history = run([first, second])
    assert history.epochs == 2
    assert first.calls[-1] == second.calls[-1] == "end"


def test_epochs_of_one_batch_run_without_python_in_a_first_training_too(monkeypatch):
    advance, calls = Loop.advance, []
    monkeypatch.setattr(Loop, "advance", lambda loop: calls.append(advance(loop)))
    x, y = cl.datasets.spiral(points_per_class=5, seed=0)
    train(classifier(2, 4, 3), x, y, epochs=500, batch_size=len(x))
    assert 1 < len(calls) < 50
