"""Evaluation: compute the loss and the metrics of batches, without training."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from caffelite import _kernels as kernels
from caffelite.training.epochs.dispatch import epochs_of
from caffelite.training.epochs.in_memory import InMemory
from caffelite.training.process_group import ONE_PROCESS, Team
from caffelite.training.step import EvaluationStep


class Evaluation:
    """Evaluates the same batches, `times` times at most. Data in memory is prepared only the first time."""

    def __init__(self, step: EvaluationStep, batches: Iterable, team: Team = ONE_PROCESS, times: int = 1) -> None:
        self.step, self.batches, self.team, self.times = step, batches, team, times
        self.kept: InMemory | None = None
        self.told = 0  # how many evaluations of `kept` have been returned

    def as_call(self) -> kernels.OneMoreEpoch | None:
        """Return a call that evaluates without Python, None if there is none now. `results` has what it measured."""
        return None if self.kept is None else self.kept.as_call()

    def results(self, times: int) -> list[list[float]]:
        """Return the loss and the metrics of the last so many evaluations. It makes those that no call has made."""
        kept = self.kept
        if kept is None:
            return [self() for _ in range(times)]
        for _ in range(kept.epoch - self.told, times):
            kept.run_one()
        found, self.told = kept.results(self.told), kept.epoch
        return found.tolist()

    def __call__(self) -> list[float]:
        """Evaluate once. Return the loss and the metrics."""
        if self.kept is not None:
            return self.results(1)[0]
        epochs = epochs_of(self.step, self.team, self.batches, self.times)
        if isinstance(epochs, InMemory):
            self.kept, self.told = epochs, 1
        with closing(epochs):
            return epochs.one_more()[0].tolist()
