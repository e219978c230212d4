"""Epochs over an iterable of batches. Python makes each batch just before its step."""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.interrupts import Interrupts
from caffelite._support.tracebacks import add_note, error_note, has_user_code
from caffelite.core.arrays import FLOATS
from caffelite.core.shard import PartialShard
from caffelite.core.sparse import to_row_array
from caffelite.data.conversion import INT64, as_weights
from caffelite.data.generator import Batch, DataGenerator, Layout, start_epoch
from caffelite.program import Program
from caffelite.program.cache import MAX_PROGRAMS
from caffelite.program.runner import array_specs
from caffelite.training.epochs.base import EpochAccumulator, Epochs, EpochState, concat_rows, name_rows
from caffelite.training.epochs.divergence import annotate_step
from caffelite.training.epochs.in_memory import REPLAY_SECONDS
from caffelite.training.inputs import check_batch_values, has_internal_check, prepare_batch, remember_columns
from caffelite.training.step import Step


class BatchKind:
    """A batch that passed all checks. Of others with its shapes and dtypes, only values are still to be checked."""

    def __init__(self, batch: Batch) -> None:
        self.layout, self.dtypes = batch.layout(), [column.dtype for column in batch.columns()]
        self.program: Callable[[], Program | None] = lambda: None  # the recorded step, as long as the model keeps it

    def fits(self, arrays: list[np.ndarray]) -> bool:
        """Return whether these arrays become the columns of the batch by a conversion of each."""
        pairs = zip(arrays, self.dtypes, strict=False)
        return len(arrays) == len(self.dtypes) and all(
            array.dtype == dtype or (dtype in (*FLOATS, INT64) and array.dtype != np.uint64) for array, dtype in pairs
        )

    def convert(self, arrays: list[np.ndarray], dtype: np.dtype) -> Batch:
        """Return a batch of these arrays, for a model of this dtype. Check its weights."""
        columns = [a if a.dtype == t else kernels.convert(a, t) for a, t in zip(arrays, self.dtypes, strict=True)]
        if self.layout.has_weights:
            columns[-1] = as_weights(columns[-1], len(columns[0]), dtype, "a batch's weights")
        return self.layout.batch(columns)


class IterableEpochs(Epochs):
    """Epochs over an iterable of batches.

    From a checkpoint, a DataGenerator continues at its position. Any other iterable makes its batches again up to
    there, and they are discarded. So an iterable that draws batches from a seed draws the same ones.
    """

    returns_each_epoch = True
    seconds = REPLAY_SECONDS  # of a call of `run_until`

    def __init__(self, step: Step, batches: Iterable[Any], interrupts: Interrupts | None = None) -> None:
        super().__init__(step, interrupts)
        self.batches = batches
        self.epoch = self.batch = self.steps = 0
        self.functions: Any = None  # of the model, when the kinds were found
        self.kinds: dict[Any, BatchKind] = {}  # by the shapes and dtypes of a batch as the user gives it
        is_whole = self.shard(1) is None  # whether a recorded step gets whole batches, and so can check their values
        self.checks_values = is_whole and self.model.frame_reader is None and has_internal_check(self.objective.loss)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.accumulator = EpochAccumulator(self.objective)
        self.rest: Iterator[Callable[[], Any]] | None = None
        self.start_state = self.batches.state() if isinstance(self.batches, DataGenerator) else {}  # before its shuffle

    def run_until(self, epochs: int, steps: float = math.inf) -> None:
        """Take steps for a while, until the epoch has no more batches at the latest."""
        done, last_step, end = self.epoch, self.steps + steps, time.perf_counter() + self.seconds
        self._take_step()
        while self.epoch == done and self.steps < last_step and time.perf_counter() < end:
            self._take_step()

    def _take_step(self) -> None:
        """Take the next step. If the epoch has no more batches, end the epoch."""
        try:
            batches = self._next_batches()
        except Exception:  # only now: to enter a context takes longer than to find the step
            with error_note(self._describe_batch):
                raise
        if self.step.is_training:
            self.check_equal(batches)
        if not batches:
            self.accumulator.check_batches(f"in epoch {self.epoch + 1}" if self.step.is_training else "to evaluate")
            self.last_results = self.compute_results(self.accumulator.sums, concat_rows(self.accumulator.pieces))
            self.epoch, self.batch = self.epoch + 1, 0
            self._begin_epoch()
            return
        with self.interrupts.defer():
            try:
                self.run_step(batches, self.accumulator)
            except Exception as error:
                is_bad_value = self.program is not None and isinstance(error, IndexError | ValueError)
                if is_bad_value and not has_user_code(error.__traceback__):  # a replay has found it
                    add_note(error, self._describe_batch())
                with annotate_step(self, batches, self.step):
                    raise
            self.batch += len(batches)
            self.steps += 1
        if self.step.is_training:
            self.end_step()

    def _describe_batch(self) -> str:
        return f"in the making of epoch {self.epoch + 1}, batch {self.batch + 1}, called by fit"

    def _next_batches(self) -> list[Batch]:
        """Return the next step's batches, usually one; none at the end of the epoch.

        (A generator function would change a user's StopIteration to another exception.)
        """
        if self.rest is None:
            self.rest = start_epoch(self.batches, self.batch)
        for make_batch in self.rest:
            return [self._prepare(make_batch())]
        return []

    def _prepare(self, given: Any) -> Batch:
        """Return a batch as arrays that the model and the loss take. Of a known kind, only the weights are checked."""
        self.programs.disturbances += 1
        functions = self.model.all_functions()
        if functions is not self.functions or len(self.kinds) > MAX_PROGRAMS:
            self.functions, self.kinds = functions, {}
        arrays: list[np.ndarray] = []
        specs = array_specs(given, arrays)
        kind = self.kinds.get(specs)
        self.program = None if kind is None else kind.program()  # of the batch, if its kind is known
        if kind is not None and self.program is not None and not self.program.runs_eagerly:
            return kind.convert(arrays, self.model.dtype)
        batch, column_names = prepare_batch(self.model, given, self.objective.loss)
        self.program, self.kind = None, BatchKind(batch)
        if self.checks_values and specs is not None and self.kind.fits(arrays):
            self.kinds[specs] = self.kind
        if self.step.is_training:
            remember_columns(self.model, column_names)
        return batch

    def check_equal(self, batches: list[Batch]) -> None:
        """Raise RuntimeError unless all processes got the same batches, none at the end of the epoch."""

    def end_step(self) -> None:
        """Act after a step of the training."""

    def take_step(self, layout: Layout, shard: PartialShard | None, *columns: np.ndarray) -> Any:
        """Take a step on the columns of a batch. A recorded step checks the values of each batch first."""
        if self.checks_values and (self.program is not None or kernels.recorder() is not None):
            check_batch_values(self.model, self.objective.loss, layout.batch(columns))
        return super().take_step(layout, shard, *columns)

    def run_step(self, batches: list[Batch], accumulator: EpochAccumulator) -> None:
        """Take a step on these batches, and add its loss and metrics to the sums."""
        (batch,) = batches
        accumulator.batches += 1
        if batch.weights is not None and not batch.weights.any():
            return
        layout, columns, shard = batch.layout(), batch.columns(), self.shard(batch.rows)
        if shard is not None:
            columns = [column[shard.slice] for column in columns]
        with self.programs.lock_cursor():
            self.cursor["sums"] = kernels.address(accumulator.sums)
            program = self.program
            if program is None:
                program = self.find_program("step", layout, [*map(to_row_array, columns)], batch.rows)
                self.kind.program = weakref.ref(program)
            else:
                program.supervise(self.programs.disturbances)
                self.programs.mark_used((program,))
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
    """Return the entire batch, with the rows of a part at their places and 0 for all others."""
    batch = np.zeros((shard.batch_size, *rows.shape[1:]), rows.dtype)
    if shard.is_counted:
        batch[shard.slice] = rows
    return batch
