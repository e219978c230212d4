"""Epochs over an iterable of batches. Python makes each batch just before its step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.interrupts import Interrupts
from caffelite._support.tracebacks import error_note
from caffelite.core.shard import PartialShard
from caffelite.core.sparse import to_row_array
from caffelite.data.conversion import as_targets, as_weights
from caffelite.data.generator import Batch, DataGenerator, start_epoch
from caffelite.training import inputs as door
from caffelite.training.epochs.base import State, joined, named_rows
from caffelite.training.epochs.divergence import Position, naming_epoch_and_batch
from caffelite.training.epochs.steps import Steps, Sums
from caffelite.training.objective import check_takes_weights
from caffelite.training.process_group import Team
from caffelite.training.step import Step


class Streamed(Steps):
    """Epochs over an iterable of batches.

    From a checkpoint, a DataGenerator continues at its position. Any other iterable makes its batches again up to
    there, and they are discarded. So an iterable that draws batches from a seed draws the same ones.
    """

    is_told_each = True

    def __init__(self, step: Step, team: Team, batches: Iterable, interrupts: Interrupts | None = None) -> None:
        super().__init__(step, team)
        self.batches, self.interrupts = batches, interrupts
        self.epoch = self.batch = self.steps = 0
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.sums = Sums(self.step, self.team)
        self.rest: Iterator[Callable[[], Any]] | None = None
        self.before = self.batches.state() if isinstance(self.batches, DataGenerator) else {}  # before its shuffle

    def run_until(self, epochs: int, steps: float = math.inf) -> None:
        """Take the next step. If the epoch has no more batches, end the epoch."""
        with error_note(lambda: f"in the making of epoch {self.epoch + 1}, batch {self.batch + 1}, called by fit"):
            batches = self._next()
        self._check_batches(batches)
        if not batches:
            self.last_results = self.sums.results(f"in epoch {self.epoch + 1}" if self.step.trains else "to evaluate")
            self.epoch, self.batch = self.epoch + 1, 0
            self._begin_epoch()
            return
        held = nullcontext() if self.interrupts is None else self.interrupts.defer()
        with held, naming_epoch_and_batch(self.position, batches, self.step):
            self.step_on(batches, self.sums)
            self.batch += len(batches)
            self.steps += 1
        if self.step.trains:
            self.team.step_done()

    @property
    def position(self) -> Position:
        """The position of the next step."""
        return Position(self.epoch, self.batch)

    def _next(self) -> list[Batch]:
        """Return the next step's batches, usually one; none at the end of the epoch.

        (A generator function would change a user's StopIteration to another exception.)
        """
        if self.rest is None:
            self.rest = start_epoch(self.batches, self.batch)
        for given in self.rest:
            return [as_batch(self.step, given())]
        return []

    def _check_batches(self, batches: list[Batch]) -> None:
        """Raise RuntimeError unless all ranks got the same batch, or none at the end of the epoch."""
        of_all: list[Batch | None] = [*batches] or [None]
        for batch in of_all if self.step.trains else []:
            self.team.check_batch(f"epoch {self.epoch + 1}, batch {self.batch + 1}", batch)

    def step_on(self, batches: list[Batch], sums: Sums) -> None:
        """Take a step on these batches, and add its loss and metrics to the sums."""
        (batch,) = batches
        sums.batches += 1
        if batch.weights is not None and not batch.weights.any():
            return
        layout, columns, rows = batch.layout(), batch.columns(), batch.rows
        part = self.team.part(rows)
        if part is not None:
            columns = [column[part.slice] for column in columns]
        with self.programs.using_cursor():
            self.cursor["sums"] = kernels.address(sums.means)
            program = self.program("step", layout, [*map(to_row_array, columns)], rows)
            outputs = program.run(functools.partial(self.take_step, layout, part), *columns)
        if self.objective.epoch_metrics:
            self.keep(sums, outputs, batch, part)

    def keep(self, sums: Sums, outputs: Any, batch: Batch, part: PartialShard | None = None) -> None:
        """Keep the outputs and targets of a batch, or of a part of it, for the metrics of the epoch."""
        own = slice(None) if part is None else part.slice
        kept = named_rows(outputs, [y[own].copy() for y in batch.targets])  # the user may fill these arrays again
        sums.keep(kept if part is None else {name: _in_batch(part, rows) for name, rows in kept.items()})

    def results(self, done: int) -> np.ndarray:
        return self.last_results

    def loss(self) -> float:
        return self.sums.loss()

    def state(self) -> State:
        kept = {name: self.team.all_rows(rows) for name, rows in joined(self.sums.kept).items()}
        return State(self.epoch, self.batch, {**self.before, "sums": self.sums.means[0], **kept})

    def restore(self, state: State) -> None:
        self.epoch, self.batch, arrays = state
        if isinstance(self.batches, DataGenerator):
            self.batches.restore(arrays)
        else:
            for _ in range(self.epoch):
                for given in start_epoch(self.batches):
                    given()
        self._begin_epoch()
        self.sums.means[0], self.sums.batches = arrays["sums"], self.batch
        if kept := state.kept():
            self.sums.kept = [{name: self.team.own_rows(rows) for name, rows in kept.items()}]

    def close(self) -> None:
        """Leave the current epoch. If a thread makes its batches, the thread ends."""
        if self.rest is not None and hasattr(self.rest, "close"):
            self.rest.close()


def as_batch(step: Step, given: Any) -> Batch:
    """Convert a batch (x, y) or (x, y, weights) of an iterable for the model and the loss, and check it."""
    model, loss = step.model, step.objective.loss
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        what = f"{len(given)} parts" if isinstance(given, tuple | list) else type(given).__name__
        raise TypeError(f"without y, x must give batches (x, y) or (x, y, weights), got a batch that is {what}")
    inputs, columns = door.model_inputs(model, "a batch's x", given[0])
    if step.trains:
        door.remember_columns(model, columns)
    y = tuple([as_targets(a, model.dtype, name) for name, a in door.targets_of(loss, given[1])])
    rows = len(y[0]) if y[0].ndim > 0 else 0
    if rows == 0 or any(a.shape[:1] != (rows,) for a in (*inputs, *y)):
        shapes = [" and ".join([str(a.shape) for a in arrays]) for arrays in (inputs, y)]
        raise ValueError(
            f"expected batches with as many rows in x as in y, got one with x of shape {shapes[0]} and y of shape "
            f"{shapes[1]}"
        )
    door.check_indices(model, "a batch's x", inputs)
    door.check_targets(loss, model.shape_for(inputs, rows), y)
    if len(given) == 2:
        return Batch(inputs, y)
    check_takes_weights(loss)
    return Batch(inputs, y, as_weights(given[2], rows, model.dtype, "a batch's weights"))


def _in_batch(part: PartialShard, rows: np.ndarray) -> np.ndarray:
    """Return the whole batch, with the rows of a part at their places and 0 for all others."""
    batch = np.zeros((part.batch_size, *rows.shape[1:]), rows.dtype)
    if part.is_counted:
        batch[part.slice] = rows
    return batch
