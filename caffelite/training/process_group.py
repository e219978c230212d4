"""The process group of training: one process that computes all rows of each batch, or several that share the rows.

`fit` asks its ProcessGroup once for a step, epochs, evaluation and loop. `SINGLE_PROCESS` has these
parts for one process, and `caffelite.distributed` for several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from caffelite._support.interrupts import Interrupts, InterruptsBetweenSteps
from caffelite.files.state import BaseModel
from caffelite.optimizers import Optimizer
from caffelite.training.callbacks.base import LoopHook
from caffelite.training.epochs import make_epochs
from caffelite.training.epochs.base import Epochs
from caffelite.training.epochs.evaluation import Evaluation
from caffelite.training.history import History
from caffelite.training.loop import Loop
from caffelite.training.objective import Objective
from caffelite.training.step import EvaluationStep, Step

NO_CONTEXT: AbstractContextManager[None] = nullcontext()


class ProcessGroup:
    """A group of one process. A group of several overrides all methods."""

    rank = 0  # the number of this process
    is_main = True  # whether it shows the training and writes files

    # ---- around a training --------------------------------------------------------------------------------------

    def training_context(self) -> AbstractContextManager[None]:
        """Return a context in which all processes train. If one leaves by an exception, no other waits for it."""
        return NO_CONTEXT

    def share_rngs(self, *rngs: np.random.Generator) -> None:
        """Make the random streams equal on all processes."""

    def call_on_main(self, make: Callable[[], Any]) -> Any:
        """Call `make` on the first process. All processes return its value or raise its error."""
        return make()

    def check_accumulate(self, count: int) -> None:
        """Raise ValueError if no step can be made of `count` batches, more than one."""

    def sync_state(
        self, model: BaseModel, optimizer: Optimizer, data: Iterable[Any], fingerprint: Callable[[], dict[str, Any]]
    ) -> None:
        """Make all processes begin with the same state. Raise RuntimeError if their fingerprints differ."""

    def defer_interrupts(self, interrupts: InterruptsBetweenSteps) -> AbstractContextManager[None]:
        """Return a context in which Ctrl-C takes effect on all processes after the same step."""
        return NO_CONTEXT

    # ---- its parts ----------------------------------------------------------------------------------------------

    def make_step(self, model: BaseModel, objective: Objective, optimizer: Optimizer, clip_norm: float | None) -> Step:
        """Return the step of a training."""
        return Step(model, objective, optimizer, clip_norm)

    def make_epochs(
        self, step: Step, batches: Iterable[Any], epochs: int, interrupts: Interrupts | None = None
    ) -> Epochs:
        """Return the epochs of a step over these batches."""
        return make_epochs(step, batches, epochs, interrupts)

    def make_evaluation(self, model: BaseModel, objective: Objective, batches: Iterable[Any], times: int) -> Evaluation:
        """Return the evaluation of these batches, at most this many times."""
        return Evaluation(EvaluationStep(model, objective), batches, times)

    def make_loop(
        self, model: BaseModel, max_epochs: int, hooks: Sequence[LoopHook], history: History, interrupts: Interrupts
    ) -> Loop:
        """Return the loop of a training."""
        return Loop(max_epochs, hooks, history, interrupts)

    # ---- between steps ------------------------------------------------------------------------------------------

    def broadcast(self, value: float) -> float:
        """Return the value that all processes use, if their values differ."""
        return value

    def is_interrupted(self) -> bool:
        """Return whether this process has got Ctrl-C, which takes effect only after a step."""
        return False

    def average_gradients(self, optimizer: Optimizer) -> None:
        """Replace each process's gradients by the mean over all processes."""


SINGLE_PROCESS = ProcessGroup()


class DistributedOptimizer:
    """An optimizer with its process group. `fit` takes it like an Optimizer."""

    optimizer: Optimizer
    processes: ProcessGroup


def unwrap_optimizer(optimizer: Any) -> tuple[Any, ProcessGroup]:
    """Return the optimizer without its wrapper, and its process group."""
    if isinstance(optimizer, DistributedOptimizer):
        return optimizer.optimizer, optimizer.processes
    return optimizer, SINGLE_PROCESS
