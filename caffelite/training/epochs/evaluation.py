"""Evaluation: compute the loss and the metrics of batches, without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

from caffelite import _kernels as kernels
from caffelite.training.callbacks.base import LoopHook
from caffelite.training.epochs import make_epochs
from caffelite.training.epochs.base import Epochs
from caffelite.training.epochs.in_memory import InMemoryEpochs
from caffelite.training.step import EvaluationStep


class Evaluation(LoopHook):
    """Evaluates the same batches, at most `times` times; as a hook, after each epoch of training.

    Data in memory is prepared only the first time.
    """

    def __init__(
        self,
        step: EvaluationStep,
        batches: Iterable[Any],
        times: int = 1,
        epochs_factory: Callable[[EvaluationStep, Iterable[Any], int], Epochs] = make_epochs,
    ) -> None:
        self.evaluation_step, self.batches, self.times, self.epochs_factory = step, batches, times, epochs_factory
        self.epochs: InMemoryEpochs | None = None
        self.num_returned = 0  # how many evaluations of `epochs` have been returned

    def next_python_epoch(self, done: int, epoch_hooks: list[kernels.EpochHook] | None) -> float:
        if epoch_hooks is not None and self.epochs is not None:
            epoch_hook = self.epochs.make_epoch_hook()
            if epoch_hook is not None:
                epoch_hooks.append(epoch_hook)
                return math.inf
        return done + 1

    def results(self, epochs: int) -> Sequence[Sequence[float]]:
        return list(zip(*self._evaluate(epochs), strict=True))

    def _evaluate(self, n: int) -> list[list[float]]:
        """Return the loss and the metrics of the last n evaluations. Make those that no epoch hook has made."""
        epochs = self.epochs
        if epochs is None:
            return [self() for _ in range(n)]
        for _ in range(epochs.epoch - self.num_returned, n):
            epochs.run_epoch()
        rows: list[list[float]] = epochs.results(self.num_returned).tolist()
        self.num_returned = epochs.epoch
        return rows

    def __call__(self) -> list[float]:
        """Evaluate once. Return the loss and the metrics."""
        if self.epochs is not None:
            return self._evaluate(1)[0]
        epochs = self.epochs_factory(self.evaluation_step, self.batches, self.times)
        if isinstance(epochs, InMemoryEpochs):
            self.epochs, self.num_returned = epochs, 1
        with closing(epochs):
            row: list[float] = epochs.measure_epoch()[0].tolist()
        return row
