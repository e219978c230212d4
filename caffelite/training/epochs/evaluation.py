"""Evaluation: compute the loss and the metrics of batches, without training."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from caffelite import _kernels as kernels
from caffelite.training.epochs.dispatch import choose_epochs
from caffelite.training.epochs.in_memory import InMemoryEpochs
from caffelite.training.process_group import SINGLE_PROCESS, ProcessGroup
from caffelite.training.step import EvaluationStep


class Evaluation:
    """Evaluates the same batches, `times` times at most. Data in memory is prepared only the first time."""

    def __init__(
        self, step: EvaluationStep, batches: Iterable, processes: ProcessGroup = SINGLE_PROCESS, times: int = 1
    ) -> None:
        self.step, self.batches, self.processes, self.times = step, batches, processes, times
        self.epochs: InMemoryEpochs | None = None
        self.num_returned = 0  # how many evaluations of `epochs` have been returned

    def native_call(self) -> kernels.EvaluationHook | None:
        """Return a call that evaluates without Python, None if there is none now. `results` has what it measured."""
        return None if self.epochs is None else self.epochs.native_call()

    def results(self, n: int) -> list[list[float]]:
        """Return the loss and the metrics of the last n evaluations. It makes those that no call has made."""
        epochs = self.epochs
        if epochs is None:
            return [self() for _ in range(n)]
        for _ in range(epochs.epoch - self.num_returned, n):
            epochs.run_epoch()
        rows, self.num_returned = epochs.results(self.num_returned), epochs.epoch
        return rows.tolist()

    def __call__(self) -> list[float]:
        """Evaluate once. Return the loss and the metrics."""
        if self.epochs is not None:
            return self.results(1)[0]
        epochs = choose_epochs(self.step, self.processes, self.batches, self.times)
        if isinstance(epochs, InMemoryEpochs):
            self.epochs, self.num_returned = epochs, 1
        with closing(epochs):
            return epochs.measure_epoch()[0].tolist()
