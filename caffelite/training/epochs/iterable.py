"""Epochs over an iterable of batches. Python makes each batch just before its step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.interrupts import Interrupts
from caffelite._support.tracebacks import error_note
from caffelite.core.shard import PartialShard
from caffelite.core.sparse import to_row_array
from caffelite.data.generator import Batch, DataGenerator, start_epoch
from caffelite.training.epochs.base import EpochAccumulator, Epochs, EpochState, concat_rows, name_rows
from caffelite.training.epochs.divergence import Position, annotate_step
from caffelite.training.inputs import prepare_batch, remember_columns
from caffelite.training.step import Step


class IterableEpochs(Epochs):
    """Epochs over an iterable of batches.

    From a checkpoint, a DataGenerator continues at its position. Any other iterable makes its batches again up to
    there, and they are discarded. So an iterable that draws batches from a seed draws the same ones.
    """

    returns_each_epoch = True

    def __init__(self, step: Step, batches: Iterable[Any], interrupts: Interrupts | None = None) -> None:
        super().__init__(step, interrupts)
        self.batches = batches
        self.epoch = self.batch = self.steps = 0
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.accumulator = EpochAccumulator(self.objective)
        self.rest: Iterator[Callable[[], Any]] | None = None
        self.start_state = self.batches.state() if isinstance(self.batches, DataGenerator) else {}  # before its shuffle

    def run_until(self, epochs: int, steps: float = math.inf) -> None:
        """Take the next step. If the epoch has no more batches, end the epoch."""
        with error_note(lambda: f"in the making of epoch {self.epoch + 1}, batch {self.batch + 1}, called by fit"):
            batches = self._next_batches()
        if self.step.is_training:
            self.check_equal(batches)
        if not batches:
            self.accumulator.check_batches(f"in epoch {self.epoch + 1}" if self.step.is_training else "to evaluate")
            self.last_results = self.compute_results(self.accumulator.sums, concat_rows(self.accumulator.pieces))
            self.epoch, self.batch = self.epoch + 1, 0
            self._begin_epoch()
            return
        with self.interrupts.defer(), annotate_step(self.position, batches, self.step):
            self.run_step(batches, self.accumulator)
            self.batch += len(batches)
            self.steps += 1
        if self.step.is_training:
            self.end_step()

    @property
    def position(self) -> Position:
        """The position of the next step."""
        return Position(self.epoch, self.batch)

    def _next_batches(self) -> list[Batch]:
        """Return the next step's batches, usually one; none at the end of the epoch.

        (A generator function would change a user's StopIteration to another exception.)
        """
        if self.rest is None:
            self.rest = start_epoch(self.batches, self.batch)
        for make_batch in self.rest:
            batch, columns = prepare_batch(self.model, make_batch(), self.objective.loss)
            self.programs.disturbances += 1
            if self.step.is_training:
                remember_columns(self.model, columns)
            return [batch]
        return []

    def check_equal(self, batches: list[Batch]) -> None:
        """Raise RuntimeError unless all processes got the same batches, none at the end of the epoch."""

    def end_step(self) -> None:
        """Act after a step of the training."""

    def run_step(self, batches: list[Batch], accumulator: EpochAccumulator) -> None:
        """Take a step on these batches, and add its loss and metrics to the sums."""
        (batch,) = batches
        accumulator.batches += 1
        if batch.weights is not None and not batch.weights.any():
            return
        layout, columns, rows = batch.layout(), batch.columns(), batch.rows
        shard = self.shard(rows)
        if shard is not None:
            columns = [column[shard.slice] for column in columns]
        with self.programs.lock_cursor():
            self.cursor["sums"] = kernels.address(accumulator.sums)
            program = self.find_program("step", layout, [*map(to_row_array, columns)], rows)
            outputs = program.run(functools.partial(self.take_step, layout, shard), *columns)
        if self.objective.epoch_metrics:
            self.collect_rows(accumulator, outputs, batch, shard)

    def collect_rows(
        self, accumulator: EpochAccumulator, outputs: Any, batch: Batch, shard: PartialShard | None = None
    ) -> None:
        """Keep the outputs and targets of a batch, or of a part of it, for the metrics of the epoch."""
        row_slice = slice(None) if shard is None else shard.slice
        rows_by_name = name_rows(outputs, [y[row_slice].copy() for y in batch.targets])  # users may refill them
        accumulator.add_rows(
            rows_by_name if shard is None else {name: _pad_to_batch(shard, rows) for name, rows in rows_by_name.items()}
        )

    def results(self, done: int) -> np.ndarray:
        return self.last_results

    def loss(self) -> float:
        return self.accumulator.loss()

    def state(self) -> EpochState:
        sums, rows = self.accumulator.sums[0], self.gather_all(concat_rows(self.accumulator.pieces))
        return EpochState(self.epoch, self.batch, {**self.start_state, "sums": sums, **rows})

    def restore(self, state: EpochState) -> None:
        self.epoch, self.batch, arrays = state
        if isinstance(self.batches, DataGenerator):
            self.batches.restore(arrays)
        else:
            for _ in range(self.epoch):
                for make_batch in start_epoch(self.batches):
                    make_batch()
        self._begin_epoch()
        self.accumulator.sums[0], self.accumulator.batches = arrays["sums"], self.batch
        if epoch_rows := state.epoch_rows():
            self.accumulator.pieces = [{name: self.scatter_rows(rows) for name, rows in epoch_rows.items()}]

    def close(self) -> None:
        """Leave the current epoch. If a thread makes its batches, the thread ends."""
        if self.rest is not None and hasattr(self.rest, "close"):
            self.rest.close()


def _pad_to_batch(shard: PartialShard, rows: np.ndarray) -> np.ndarray:
    """Return the whole batch, with the rows of a part at their places and 0 for all others."""
    batch = np.zeros((shard.batch_size, *rows.shape[1:]), rows.dtype)
    if shard.is_counted:
        batch[shard.slice] = rows
    return batch
