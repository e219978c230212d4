"""Who trains: one process, which computes all rows of each batch, or several that share them.

`fit` and the epochs of a training ask their Team wherever several processes do something else than one. The answers of
one process, `ONE_PROCESS`, are here. `caffelite.parallel` has the answers of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from caffelite.core.interrupts import InterruptsBetweenSteps
from caffelite.core.rows import SomeRows
from caffelite.data.generator import Batch
from caffelite.optimizers import Optimizer
from caffelite.training.loop import Loop
from caffelite.training.objective import Objective
from caffelite.training.step import EvaluationStep, Step

NOTHING: AbstractContextManager[None] = nullcontext()
ATTENTION = 0.05  # seconds of replay after which Python gets to see to the bar and to Ctrl-C


class Team:
    """One process. A Team of several overrides all of this."""

    loop: type[Loop] = Loop
    rank = 0  # the number of this process
    leads = True  # whether it shows the training and writes files

    # ---- around a training --------------------------------------------------------------------------------------

    def entered(self) -> AbstractContextManager[None]:
        """Inside, all train: if one leaves by an exception, no other waits for it."""
        return NOTHING

    def share_streams(self, *streams: np.random.Generator) -> None:
        """Have the random streams be the same for all."""

    def by_first(self, make: Callable[[], Any]) -> Any:
        """What the first process makes, or raises."""
        return make()

    def begin(self, model: Any, optimizer: Optimizer, data: Iterable[Any], facts: Callable[[], dict[str, Any]]) -> None:
        """Have all begin with the same; RuntimeError if one of the facts differs."""

    def holding(self, interrupts: InterruptsBetweenSteps) -> AbstractContextManager[None]:
        """Inside, a Ctrl-C takes effect on all after the same step."""
        return NOTHING

    # ---- between steps ------------------------------------------------------------------------------------------

    def agreed(self, value: float) -> float:
        """What all do if they differ."""
        return value

    def stop_flag(self, interrupts: Any) -> np.ndarray | None:
        """Where a number that is not 0 ends a stretch of steps."""
        return None if interrupts is None else interrupts.pending

    def stretches(self, is_done: Callable[[], bool]) -> Iterator[float]:
        """How many seconds of steps there are before Python sees to other things, stretch by stretch."""
        yield ATTENTION

    def check_batch(self, where: str, batch: Batch | None) -> None:
        """RuntimeError unless all were given the same batch, or None, there being no more."""

    def step_done(self) -> None:
        """A step on a batch that Python made is done."""

    # ---- a step -------------------------------------------------------------------------------------------------

    def step(self, model: Any, objective: Objective, optimizer: Optimizer, clip_norm: float | None) -> Step:
        """The step of a training."""
        return Step(model, objective, optimizer, clip_norm)

    def evaluation_step(self, model: Any, objective: Objective) -> EvaluationStep:
        """The step of an evaluation."""
        return EvaluationStep(model, objective)

    def part(self, rows: int) -> SomeRows | None:
        """Which of so many rows of a batch this process computes; None if it computes all."""
        return None

    def average(self, optimizer: Optimizer) -> None:
        """Have the mean of all processes' gradients in the place of each one's own."""

    # ---- what was measured --------------------------------------------------------------------------------------

    def all_rows(self, rows: np.ndarray) -> np.ndarray:
        """All rows, of which each process has its own, and 0 for those of others."""
        return rows

    def own_rows(self, rows: np.ndarray) -> np.ndarray:
        """All rows as what `all_rows` takes."""
        return rows

    def all_sums(self, step: Step, sums: np.ndarray) -> np.ndarray:
        """The sums over all processes."""
        return sums

    def forget(self, rows: list[np.ndarray]) -> None:
        """An epoch is over: the next one begins to fill these rows."""


ONE_PROCESS = Team()


class OfTeam:
    """An optimizer of a team, which `fit` takes for an Optimizer: `optimizer` itself, and the `team`."""

    optimizer: Optimizer
    team: Team


def optimizer_and_team(optimizer: Any) -> tuple[Any, Team]:
    """An optimizer itself, without what wraps it, and its team."""
    return (optimizer.optimizer, optimizer.team) if isinstance(optimizer, OfTeam) else (optimizer, ONE_PROCESS)
