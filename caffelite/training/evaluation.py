"""Evaluation: compute the loss and the metrics of batches, without training."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from caffelite.core.interrupts import InterruptsBetweenSteps
from caffelite.data.generator import is_replayed
from caffelite.training.buffered import Buffered
from caffelite.training.epochs import Epochs
from caffelite.training.in_memory import InMemory
from caffelite.training.step import EvaluationStep, Step
from caffelite.training.streamed import Streamed
from caffelite.training.team import ONE_PROCESS, Team


def epochs_of(
    step: Step, team: Team, batches: Iterable, epochs: int, interrupts: InterruptsBetweenSteps | None = None
) -> Epochs:
    """Return Epochs over batches that are in memory, in files, or made one by one."""
    if is_replayed(batches):
        return (InMemory if batches.blocks is None else Buffered)(step, team, batches, epochs, interrupts)
    return Streamed(step, team, batches, interrupts)


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
