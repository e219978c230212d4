"""The seconds that training may take: if all nets would take longer, there are fewer nets and epochs.

`measure_cost` trains a net for a moment, and throws it away. From the time this took, `choose_plan` computes how many
nets, and how many epochs of each, fit into the seconds. Both have to be known before training begins, because the
learning rate falls to 0 in the last epoch.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.text_table import plural
from caffelite._support.warnings import warn
from caffelite.data.generator import unpack_single
from caffelite.model.many.shared_programs import Parts
from caffelite.training.callbacks.early_stopping import EarlyStopping

# The processor time of this thread. Elsewhere, the system does not measure it, or only to 16 milliseconds.
clock = time.thread_time if sys.platform in ("linux", "darwin") else time.perf_counter

RESERVE = 0.05  # share of the seconds for what is not measured
PRECISION = 0.02  # share of the seconds that the probe measures at least
MAX_SECONDS = 5.0  # above which the probe measures no longer
PROBE_BATCHES = 8  # of an epoch of the probe, at most
MIN_EPOCHS = 1 / 16  # of the recipe's epochs: a net of fewer has hardly learned


class Cost(NamedTuple):
    """The seconds of one thread that training takes: once, for each net, and for each epoch of a net."""

    start: float
    net: float
    epoch: float

    def seconds(self, nets: int, epochs: int) -> float:
        """Return the seconds that training takes. Half as many finer nets compete with the nets."""
        return self.start + count_trainings(nets) * (self.net + epochs * self.epoch)


def count_trainings(nets: int) -> int:
    """Return how many nets are trained to get this many: half of them have to compete with finer ones."""
    return nets + nets // 2


class TrainingPlan(NamedTuple):
    """The number of nets and of epochs, and an estimate of the seconds that their training takes."""

    nets: int
    epochs: int
    seconds: float


class NetRows(NamedTuple):
    """The rows of a table, and the numbers of those that a net is trained and validated on."""

    x: tuple[np.ndarray, ...]
    y: np.ndarray
    weights: np.ndarray | None
    training: np.ndarray
    held_out: np.ndarray

    def sample(self, batch_size: int) -> NetRows:
        """Return fewer rows of a large table: a few whole batches, and a last one as short as the table's."""
        n = len(self.training)
        share = min(PROBE_BATCHES * batch_size + n % batch_size, n) / n
        training, held_out = [
            rows[np.linspace(0, len(rows), math.ceil(share * len(rows)), endpoint=False, dtype=np.int64)]
            for rows in (self.training, self.held_out)
        ]
        return self._replace(training=training, held_out=held_out)

    def take(self, rows: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray | None]:
        """Return x, y and the weights of these rows."""
        x = tuple([part[rows] for part in self.x])
        return unpack_single(x), self.y[rows], None if self.weights is None else self.weights[rows]


class Budget:
    """A number of seconds of this thread, from now on, for training and for everything before it.

    `plan` is None before training. `summary` says in words what was chosen. If `warns`, training warns if it takes
    longer all the same.
    """

    plan: TrainingPlan | None = None
    summary = ""

    def __init__(self, seconds: float, warns: bool = True) -> None:
        self.seconds, self.warns, self._start = seconds, warns, clock()

    def choose_plan(
        self, nets: int, epochs: int, make_probe: Callable[[], Parts], data: NetRows, **options: Any
    ) -> TrainingPlan:
        """Return the largest plan of at most this many nets and epochs that takes no longer.

        `make_probe` returns a net, its optimizer and its loss. The options are options of `fit`.
        """
        with kernels.thread_limit(1):
            cost = measure_cost(make_probe, data, self.seconds, nets, epochs, **options)
        spent = clock() - self._start
        plan = self.plan = choose_plan((1 - RESERVE) * self.seconds - spent, cost, nets, epochs)
        total = f"{spent + plan.seconds:.2g} seconds of one thread"
        if spent + plan.seconds > self.seconds:
            self.summary = f"even {plural(plan.nets, 'net')} of {plural(plan.epochs, 'epoch')} takes about {total}"
            if self.warns:
                warn(f"time={self.seconds:g}: {self.summary}")
        elif plan[:2] == (nets, epochs):
            self.summary = f"enough for all nets and epochs, which take about {total}"
        else:
            self.summary = f"{plan.nets} of {nets} nets and {plan.epochs} of {epochs} epochs, which take about {total}"
        return plan


def measure_cost(
    make_probe: Callable[[], Parts], data: NetRows, seconds: float, nets: int, epochs: int, **options: Any
) -> Cost:
    """Train a net, and return what training costs.

    The first epoch records the steps, and counts as the start of training. The probe measures the other epochs for at
    least PRECISION of the given seconds, or of the seconds of the entire training if these are fewer.
    """
    began = clock()
    net, optimizer, loss = make_probe()
    net_seconds = clock() - began
    sample = data.sample(options["batch_size"])
    x, y, weights = sample.take(sample.training)
    options |= {"loss": loss, "optimizer": optimizer, "sample_weight": weights, "verbose": 0}
    options["validation_data"] = [part for part in sample.take(sample.held_out) if part is not None]

    def train(count: int) -> float:
        """Return the seconds of some epochs."""
        began = clock()
        net.fit(x, y, epochs=count, callbacks=[EarlyStopping(patience=count, restore_best=True)], **options)
        return clock() - began

    start, short, count = train(1), min(train(1), train(1)), 1
    while True:
        count *= 2
        spent = max(train(1 + count) - short, 0.0)
        cost = Cost(start, net_seconds, spent / count * len(data.training) / len(sample.training))
        if spent >= PRECISION * min(seconds, cost.seconds(nets, epochs), MAX_SECONDS):
            return cost


def choose_plan(seconds: float, cost: Cost, nets: int, epochs: int) -> TrainingPlan:
    """Return the largest plan of at most this many nets and epochs that takes at most this many seconds.

    Nets and epochs are reduced by about the same factor, because reducing only one of them costs more of the score. The
    smallest plan is one net with MIN_EPOCHS, even if it takes longer.
    """
    total, fewest = cost.seconds(nets, epochs), math.ceil(MIN_EPOCHS * epochs)
    if total > seconds:
        share = max(seconds - cost.start, 0.0) / (total - cost.start)
        for count in range(max(1, round(nets * math.sqrt(share))), 0, -1):
            fitting = ((seconds - cost.start) / count_trainings(count) - cost.net) / cost.epoch
            if fitting >= fewest:
                break
        nets, epochs = count, min(max(int(fitting), fewest), epochs)
    return TrainingPlan(nets, epochs, cost.seconds(nets, epochs))
