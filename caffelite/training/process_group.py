"""The team of a training: one process that computes all rows of each batch, or several that share the rows.

`fit` and the epochs call a method of their Team wherever several processes act differently from one. The methods for
one process, `ONE_PROCESS`, are here. `caffelite.distributed` overrides them for several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite.core.shard import PartialShard
from caffelite.data.generator import Batch
from caffelite.optimizers import Optimizer
from caffelite.training.history import History
from caffelite.training.loop import Listener, Loop
from caffelite.training.objective import Objective
from caffelite.training.step import EvaluationStep, Step

NOTHING: AbstractContextManager[None] = nullcontext()
ATTENTION = 0.05  # seconds of replay before Python updates the bar and looks for Ctrl-C


class Team:
    """A team of one process. A team of several overrides all methods."""

    rank = 0  # the number of this process
    leads = True  # whether it shows the training and writes files

    # ---- around a training --------------------------------------------------------------------------------------

    def entered(self) -> AbstractContextManager[None]:
        """A context in which all processes train. If one leaves by an exception, no other waits for it."""
        return NOTHING

    def share_streams(self, *streams: np.random.Generator) -> None:
        """Make the random streams equal on all processes."""

    def by_first(self, make: Callable[[], Any]) -> Any:
        """Call `make` on the first process. All processes return its value or raise its error."""
        return make()

    def begin(self, model: Any, optimizer: Optimizer, data: Iterable[Any], facts: Callable[[], dict[str, Any]]) -> None:
        """Make all processes begin with the same state. Raise RuntimeError if a fact differs."""

    def holding(self, interrupts: InterruptsBetweenSteps) -> AbstractContextManager[None]:
        """A context in which Ctrl-C takes effect on all processes after the same step."""
        return NOTHING

    def loop(self, model: Any, until: int, listeners: Sequence[Listener], history: History, interrupts: Any) -> Loop:
        """Return the loop of a training."""
        return Loop(until, listeners, history, interrupts)

    # ---- between steps ------------------------------------------------------------------------------------------

    def agreed(self, value: float) -> float:
        """Return the value that all processes use, if their values differ."""
        return value

    def stop_flag(self, interrupts: Any) -> np.ndarray | None:
        """Return an array. If its number is not 0, the replay stops after a step."""
        return None if interrupts is None else interrupts.pending

    def is_interrupted(self) -> bool:
        """Whether this process has got Ctrl-C, which takes effect only after a step."""
        return False

    def stretches(self, is_done: Callable[[], bool]) -> Iterable[float]:
        """Return the seconds of each stretch of steps. After it Python updates the bar and looks for Ctrl-C."""
        return (ATTENTION,)

    def check_batch(self, where: str, batch: Batch | None) -> None:
        """Raise RuntimeError unless all processes got the same batch, or None at the end of the epoch."""

    def step_done(self) -> None:
        """Called after a step on a batch that Python made."""

    # ---- a step -------------------------------------------------------------------------------------------------

    def step(self, model: Any, objective: Objective, optimizer: Optimizer, clip_norm: float | None) -> Step:
        """Return the step of a training."""
        return Step(model, objective, optimizer, clip_norm)

    def evaluation_step(self, model: Any, objective: Objective) -> EvaluationStep:
        """Return the step of an evaluation."""
        return EvaluationStep(model, objective)

    def part(self, rows: int) -> PartialShard | None:
        """Return which of the batch's rows this process computes, or None if it computes all."""
        return None

    def average(self, optimizer: Optimizer) -> None:
        """Replace each process's gradients by the mean over all processes."""

    # ---- outputs, targets and sums ------------------------------------------------------------------------------

    def all_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return all rows. Each process has its own rows, and 0 for the others."""
        return rows

    def own_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return this process's part of all rows: from these parts, `all_rows` makes all rows again."""
        return rows

    def all_sums(self, step: Step, sums: np.ndarray) -> np.ndarray:
        """Return the sums over all processes."""
        return sums

    def forget(self, rows: list[np.ndarray]) -> None:
        """Reset these rows at the end of an epoch. The next epoch fills them."""


ONE_PROCESS = Team()


class OfTeam:
    """An optimizer with its team. `fit` takes it like an Optimizer."""

    optimizer: Optimizer
    team: Team


def optimizer_and_team(optimizer: Any) -> tuple[Any, Team]:
    """Return the optimizer without its wrapper, and its team."""
    return (optimizer.optimizer, optimizer.team) if isinstance(optimizer, OfTeam) else (optimizer, ONE_PROCESS)
