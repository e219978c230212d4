"""`fit(accumulate=k)`: steps on k batches each, whose gradients add up.

Data in memory, or read in buffers, become batches of k times the rows, and a step cuts such a batch into k parts
(`StepInParts`). So a step is recorded as a whole, and many are replayed in one call. Batches that Python makes are
collected, k at a time (`Grouped`). If some weights are 0, batches are collected, too, because a batch whose weights are
all 0 is left out.

A group of batches is always one step. So callbacks, schedules and checkpoints meet whole groups only.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.modes import no_grad
from caffelite.core.sparse import to_row_array
from caffelite.data.generator import Batch, Layout, start_epoch, is_replayed
from caffelite.functions import Losses
from caffelite.functions.indexing import concatenate
from caffelite.functions.shape import reshape_array
from caffelite.training.epochs.divergence import Position
from caffelite.training.epochs.iterable import Streamed
from caffelite.training.epochs.steps import Sums, warn_of_untrained
from caffelite.training.process_group import ONE_PROCESS, Team
from caffelite.training.step import Step


def accumulated(step: Step, team: Team, batches: Iterable, count: int) -> tuple[Step, Iterable]:
    """Return the step on `count` batches, and the batches as it takes them.

    Raises ValueError if several processes share each batch, and for `Losses` that ignore labels, because each of them
    would need another weight for a batch.
    """
    if count == 1:
        return step, batches
    if team is not ONE_PROCESS:
        raise ValueError(
            f"accumulate={count}: several processes share each batch, so none of them holds a large one; give "
            f"batch_size {count} times as large instead"
        )
    loss = step.objective.loss
    if isinstance(loss, Losses) and any(getattr(one, "ignore", None) is not None for one in loss.losses):
        raise ValueError(f"accumulate={count}: {loss!r} ignores labels, so its losses count different rows of a batch")
    if is_replayed(batches) and (batches.sample_weight is None or batches.sample_weight.all()):
        return StepInParts(step, count, batches.batch_size, batches._merges_last), batches.join_batches(count)
    return StepOnSeveral(step, count), batches


class StepOnSeveral(Step):
    """One step on several batches. Their gradients add up to the gradient of all rows:

        g ← Σ weight · d loss / Σ weight

    over the batches. A batch's weight is its number of rows, or the sum of its weights. The model and the loss see the
    batches one by one, so memory is needed for one only.
    """

    unit = "step"

    def __init__(self, step: Step, count: int) -> None:
        super().__init__(step.model, step.objective, step.optimizer, step.clip_norm)
        self.batches = self.accumulates = count
        self.cursor = step.model._own.programs.cursor

    def __call__(self, *batches: Batch) -> list[Any]:
        self.optimizer.zero_grad()
        outputs, total = [], None
        for batch in batches:
            of_batch, weight = self.add_gradient(batch)
            outputs.append(of_batch)
            total = weight if total is None else kernels.add(total, weight)
        for run in self.optimizer.segments():
            kernels.divide(run.gradient, total, out=run.gradient)
        self.optimizer.step(clip_norm=self.clip_norm)  # type: ignore[call-arg]
        return outputs

    def add_gradient(self, batch: Batch) -> tuple[Any, np.ndarray]:
        """Add the gradient of a batch, and measure it. Return its outputs, if the epoch needs them, and its weight."""
        outputs = self.model(*batch.inputs)
        loss = self.objective(outputs, batch)
        weights = self.objective.terms[0].weights(batch)  # of `Losses`, all terms have the same
        if weights is None:
            weight = kernels.full(loss.shape, batch.rows, loss.dtype)
        else:
            weight = reshape_array(kernels.convert(kernels.sum(weights), loss.dtype), loss.shape)
        loss.backward(weight)
        self.objective.measure(self.cursor, outputs, batch)
        if not self.objective.epoch_metrics:
            return None, weight
        return (tuple([y.data for y in outputs]) if isinstance(outputs, tuple) else outputs.data), weight

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Do nothing, because the step has measured each batch."""

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "number of batches in a step": self.accumulates}


class StepInParts(StepOnSeveral):
    """One step on a batch in parts of `rows` rows; the last part has the rest. `joins`: no last part has one row."""

    def __init__(self, step: Step, count: int, rows: int, joins: bool) -> None:
        super().__init__(step, count)
        self.batches, self.rows, self.joins = 1, rows, joins

    def __call__(self, batch: Batch) -> Any:  # type: ignore[override]
        rows = batch.rows
        cuts = [*range(0, rows, self.rows), rows]
        if self.joins and len(cuts) > 2 and rows % self.rows == 1:
            del cuts[-2]
        layout, columns = batch.layout(), batch.columns()
        parts = [layout.batch([x[a:b] for x in columns]) for a, b in itertools.pairwise(cuts)]
        outputs = super().__call__(*parts)
        return _of_all_rows(outputs) if self.objective.epoch_metrics else None

    def key(self) -> tuple[Any, ...]:
        return (*super().key(), self.rows, self.joins)


def _of_all_rows(outputs: list[Any]) -> Any:
    """Join the outputs of several batches, as if they were one batch."""
    with no_grad():
        if isinstance(outputs[0], tuple):
            return tuple([concatenate(of_batches) for of_batches in zip(*outputs, strict=True)])
        return concatenate(outputs)


class Grouped(Streamed):
    """Epochs over an iterable of batches, several for each step. A batch whose weights are all 0 is left out."""

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.batch // self.step.batches)

    def _next(self) -> list[Batch]:
        if self.rest is None:
            self.rest = start_epoch(self.batches, self.batch, copy_batches=True)  # the user may fill the arrays again
        batches: list[Batch] = []
        while len(batches) < self.step.batches and (more := super()._next()):
            batches += more
        return batches

    def step_on(self, batches: list[Batch], sums: Sums) -> None:
        sums.batches += len(batches)
        counted = [batch for batch in batches if batch.weights is None or batch.weights.any()]
        if not counted:
            return
        columns = [column for batch in counted for column in batch.columns()]
        forms = tuple([(batch.layout(), batch.rows) for batch in counted])
        with self.programs.using_cursor():
            self.cursor["sums"] = kernels.address(sums.means)
            program = self.program("step on several", forms, [*map(to_row_array, columns)], len(counted))
            outputs = program.run(functools.partial(self.take_step_on, forms), *columns)
        if self.objective.epoch_metrics:
            for batch, of_batch in zip(counted, outputs, strict=True):
                self.keep(sums, of_batch, batch)

    def take_step_on(self, forms: tuple[tuple[Layout, int], ...], *columns: np.ndarray) -> Any:
        """Take a step on the columns of several batches. Return their outputs if the epoch needs them."""
        rest = iter(columns)
        outputs = self.step(*[layout.batch([*itertools.islice(rest, sum(layout))]) for layout, _ in forms])
        warn_of_untrained(self.step)
        return outputs if self.objective.epoch_metrics else None
