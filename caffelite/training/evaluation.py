"""Evaluation: compute the loss and the metrics of batches, without training."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from caffelite.training.choosing import epochs_of
from caffelite.training.epochs import Epochs
from caffelite.training.in_memory import InMemory
from caffelite.training.step import EvaluationStep
from caffelite.training.team import ONE_PROCESS, Team


class Evaluation:
    """Evaluates the same batches repeatedly. Data in memory is prepared only the first time."""

    def __init__(self, step: EvaluationStep, batches: Iterable, team: Team = ONE_PROCESS) -> None:
        self.step, self.batches, self.team = step, batches, team
        self.kept: Epochs | None = None

    def __call__(self) -> list[float]:
        """Return the loss and the metrics."""
        if self.kept is not None:
            return self.kept.one_more()[0].tolist()
        epochs = epochs_of(self.step, self.team, self.batches, 1)
        if isinstance(epochs, InMemory):
            self.kept = epochs
        with closing(epochs):
            return epochs.one_more()[0].tolist()
