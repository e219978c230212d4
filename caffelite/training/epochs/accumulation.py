"""`fit(accumulate=k)`: steps on k batches each, whose gradients add up.

Data in memory, or read in buffers, become batches of k times the rows, and a step cuts such a batch into k parts
(`MicroBatchStep`). So each step is recorded as a unit, and many are replayed in one call. Batches that Python makes are
collected, k at a time (`AccumulationEpochs`), even if some weights are 0, because a batch whose weights are all 0 is
left out.

A group of batches is always one step. So callbacks, schedules and checkpoints only see complete groups.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import reshape_array
from caffelite.core.autograd import leaf_count
from caffelite.core.modes import no_grad
from caffelite.core.sparse import to_row_array
from caffelite.data.generator import Batch, Layout, is_replayed, start_epoch
from caffelite.functions import Losses
from caffelite.functions.indexing import concatenate
from caffelite.training.epochs.base import EpochAccumulator, warn_of_untrained
from caffelite.training.epochs.iterable import IterableEpochs
from caffelite.training.step import Step


def apply_accumulation(step: Step, batches: Iterable[Any], count: int) -> tuple[Step, Iterable[Any]]:
    """Return the step on `count` batches, and the batches as it takes them.

    Raise ValueError for `Losses` that ignore labels, because each of them would need a different weight for a batch.
    """
    loss = step.objective.loss
    if isinstance(loss, Losses) and any(getattr(part_loss, "ignore", None) is not None for part_loss in loss.losses):
        raise ValueError(f"accumulate={count}: {loss!r} ignores labels, so its losses count different rows of a batch")
    if is_replayed(batches) and (batches.sample_weight is None or batches.sample_weight.all()):
        return MicroBatchStep(step, count, batches.batch_size, batches._merges_last), batches.join_batches(count)
    return AccumulationStep(step, count), batches


class AccumulationStep(Step):
    """One step on several batches. Their gradients add up to the gradient of all rows:

        g ← Σ weight · d loss / Σ weight

    over the batches. A batch's weight is its number of rows, or the sum of its weights. The model and the loss see the
    batches one by one, so memory is needed for only one.
    """

    unit = "step"

    def __init__(self, step: Step, count: int) -> None:
        super().__init__(step.model, step.objective, step.optimizer, step.clip_norm)
        self.batches_per_step = self.num_batches = count
        self.cursor = step.model._model_state.programs.cursor

    def __call__(self, *batches: Batch) -> list[Any]:
        self.optimizer.zero_grad()
        outputs, total_weight = [], None
        for batch in batches:
            batch_outputs, weight = self.add_gradient(batch)
            outputs.append(batch_outputs)
            total_weight = weight if total_weight is None else kernels.add(total_weight, weight)
        for segment in self.optimizer.segments():
            kernels.divide(segment.gradient, total_weight, out=segment.gradient)
        self.optimizer.step(clip_norm=self.clip_norm)
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

    def fingerprint(self) -> dict[str, Any]:
        return {**super().fingerprint(), "number of batches in a step": self.num_batches}


class MicroBatchStep(AccumulationStep):
    """One step on a batch in parts of `rows` rows; the last has the rest. `merges_last`: no last part has one row."""

    def __init__(self, step: Step, count: int, rows: int, merges_last: bool) -> None:
        super().__init__(step, count)
        self.batches_per_step, self.rows, self.merges_last = 1, rows, merges_last

    def __call__(self, batch: Batch) -> Any:  # type: ignore[override]
        rows = batch.rows
        cuts = [*range(0, rows, self.rows), rows]
        if self.merges_last and len(cuts) > 2 and rows % self.rows == 1:
            del cuts[-2]
        layout, columns = batch.layout(), batch.columns()
        parts = [layout.batch([x[a:b] for x in columns]) for a, b in itertools.pairwise(cuts)]
        outputs = super().__call__(*parts)
        return _concat_outputs(outputs) if self.objective.epoch_metrics else None

    def key(self) -> tuple[Any, ...]:
        return (*super().key(), self.rows, self.merges_last)


def _concat_outputs(outputs: list[Any]) -> Any:
    """Join the outputs of several batches, as if they were one batch."""
    with no_grad():
        if isinstance(outputs[0], tuple):
            return tuple([concatenate(parts) for parts in zip(*outputs, strict=True)])
        return concatenate(outputs)


class AccumulationEpochs(IterableEpochs):
    """Epochs over an iterable of batches, several for each step. A batch whose weights are all 0 is left out."""

    def _next_batches(self) -> list[Batch]:
        if self.rest is None:
            self.rest = start_epoch(self.batches, self.batch, copy_batches=True)  # the user may fill the arrays again
        batches: list[Batch] = []
        while len(batches) < self.step.batches_per_step and (next_batches := super()._next_batches()):
            batches += next_batches
        return batches

    def run_step(self, batches: list[Batch], accumulator: EpochAccumulator) -> None:
        accumulator.batches += len(batches)
        counted_batches = [batch for batch in batches if batch.weights is None or batch.weights.any()]
        if not counted_batches:
            return
        columns = [column for batch in counted_batches for column in batch.columns()]
        specs = tuple([(batch.layout(), batch.rows) for batch in counted_batches])
        with self.programs.lock_cursor():
            self.cursor["sums"] = kernels.address(accumulator.sums)
            program = self.find_program("step on several", specs, [*map(to_row_array, columns)], len(counted_batches))
            outputs = program.run(functools.partial(self.take_joint_step, specs), *columns)
        if self.objective.epoch_metrics:
            for batch, batch_outputs in zip(counted_batches, outputs, strict=True):
                self.collect_rows(accumulator, batch_outputs, batch)

    def take_joint_step(self, specs: tuple[tuple[Layout, int], ...], *columns: np.ndarray) -> Any:
        """Take a step on the columns of several batches. Return their outputs if the epoch needs them."""
        rest, leaves = iter(columns), leaf_count()
        outputs = self.step(*[layout.batch([*itertools.islice(rest, sum(layout))]) for layout, _ in specs])
        warn_of_untrained(self.step, leaves)
        return outputs if self.objective.epoch_metrics else None
