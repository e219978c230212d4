"""The process group of a training: one process that computes all rows of each batch, or several that share the rows.

`fit` and the epochs call a method of their ProcessGroup where several processes act differently. The methods for
one process, `SINGLE_PROCESS`, are here. `caffelite.distributed` overrides them for several.
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

NO_CONTEXT: AbstractContextManager[None] = nullcontext()
REPLAY_SECONDS = 0.05  # seconds of replay before Python updates the bar and looks for Ctrl-C


class ProcessGroup:
    """A group of one process. A group of several overrides all methods."""

    rank = 0  # the number of this process
    is_main = True  # whether it shows the training and writes files

    # ---- around a training --------------------------------------------------------------------------------------

    def training_context(self) -> AbstractContextManager[None]:
        """Return a context in which all processes train. If one leaves by an exception, no other waits for it."""
        return NO_CONTEXT

    def share_streams(self, *streams: np.random.Generator) -> None:
        """Make the random streams equal on all processes."""

    def call_on_main(self, make: Callable[[], Any]) -> Any:
        """Call `make` on the first process. All processes return its value or raise its error."""
        return make()

    def sync_state(
        self, model: Any, optimizer: Optimizer, data: Iterable[Any], facts: Callable[[], dict[str, Any]]
    ) -> None:
        """Make all processes begin with the same state. Raise RuntimeError if a fact differs."""

    def defer_interrupts(self, interrupts: InterruptsBetweenSteps) -> AbstractContextManager[None]:
        """Return a context in which Ctrl-C takes effect on all processes after the same step."""
        return NO_CONTEXT

    def make_loop(
        self, model: Any, max_epochs: int, listeners: Sequence[Listener], history: History, interrupts: Any
    ) -> Loop:
        """Return the loop of a training."""
        return Loop(max_epochs, listeners, history, interrupts)

    # ---- between steps ------------------------------------------------------------------------------------------

    def broadcast(self, value: float) -> float:
        """Return the value that all processes use, if their values differ."""
        return value

    def stop_flag(self, interrupts: Any) -> np.ndarray | None:
        """Return an array. If its number is not 0, the replay stops after a step."""
        return None if interrupts is None else interrupts.pending

    def is_interrupted(self) -> bool:
        """Whether this process has got Ctrl-C, which takes effect only after a step."""
        return False

    def time_limits(self, is_done: Callable[[], bool]) -> Iterable[float]:
        """Return the seconds of each stretch of steps. After it Python updates the bar and looks for Ctrl-C."""
        return (REPLAY_SECONDS,)

    def check_batch(self, location: str, batch: Batch | None) -> None:
        """Raise RuntimeError unless all processes got the same batch, or None at the end of the epoch."""

    def end_step(self) -> None:
        """Act after a step on a batch that Python made."""

    # ---- a step -------------------------------------------------------------------------------------------------

    def make_step(self, model: Any, objective: Objective, optimizer: Optimizer, clip_norm: float | None) -> Step:
        """Return the step of a training."""
        return Step(model, objective, optimizer, clip_norm)

    def make_evaluation_step(self, model: Any, objective: Objective) -> EvaluationStep:
        """Return the step of an evaluation."""
        return EvaluationStep(model, objective)

    def shard(self, rows: int) -> PartialShard | None:
        """Return the rows of the batch that this process computes, or None if it computes all."""
        return None

    def average_gradients(self, optimizer: Optimizer) -> None:
        """Replace each process's gradients by the mean over all processes."""

    # ---- outputs, targets and sums ------------------------------------------------------------------------------

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return all rows. Each process has its own rows, and 0 for the others."""
        return rows

    def scatter_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return this process's part of all rows: from these parts, `gather_rows` makes all rows again."""
        return rows

    def reduce_sums(self, step: Step, sums: np.ndarray) -> np.ndarray:
        """Return the sums over all processes."""
        return sums

    def reset_rows(self, rows: list[np.ndarray]) -> None:
        """Reset these rows at the end of an epoch. The next epoch fills them."""


SINGLE_PROCESS = ProcessGroup()


class DistributedOptimizer:
    """An optimizer with its process group. `fit` takes it like an Optimizer."""

    optimizer: Optimizer
    processes: ProcessGroup


def unwrap_optimizer(optimizer: Any) -> tuple[Any, ProcessGroup]:
    """Return the optimizer without its wrapper, and its process group."""
    return (
        (optimizer.optimizer, optimizer.processes)
        if isinstance(optimizer, DistributedOptimizer)
        else (optimizer, SINGLE_PROCESS)
    )
