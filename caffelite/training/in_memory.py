"""Epochs over data in memory, and the parts that all epochs share: a recorded step, and its sums of loss and metrics.

The training records the first step for each shape of batch, and replays it after that. If the data are in memory, the
replay also fetches the batch. Then many epochs are replayed in one call. A batch whose weights are all 0 is skipped,
without a step.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.recording import PythonCall, Recording
from caffelite.core.rows import ALL, SomeRows, computing
from caffelite.core.sparse import array_of, rows_from
from caffelite.data.conversion import as_inputs, as_targets, as_weights
from caffelite.data.generator import Batch, DataGenerator
from caffelite.program import Program
from caffelite.training import door
from caffelite.training.divergence import naming_epoch_and_batch
from caffelite.training.epochs import Epochs, State, named_rows
from caffelite.training.objective import means
from caffelite.training.step import Step
from caffelite.training.team import Team

AT_ONCE = 1024  # the most epochs whose sums are kept before they go into the history


class Steps(Epochs):
    """Epochs of a step that is recorded once for each shape of batch, and then replayed."""

    def __init__(self, step: Step, team: Team) -> None:
        self.step, self.team = step, team
        self.model, self.objective = step.model, step.objective
        self.programs = self.model._own.programs
        self.cursor = self.programs.cursor

    def take_step(self, weighted: bool, part: SomeRows | None, *columns: np.ndarray) -> Any:
        """Take a step on the columns of a batch, or of a part of it. Return the outputs if the epoch needs them."""
        batch = Batch.of(list(columns), weighted)
        with computing(part or ALL):
            outputs = self.step(batch)
            self.step.warn_of_untrained()
            self.step.measure(self.cursor, outputs, batch)
        return outputs if self.objective.epoch_metrics else None

    def program(self, name: str, weighted: bool, columns: list[np.ndarray], rows: int) -> Program:
        """Return the Program for steps of this name on batches of `rows` rows of these columns."""
        used = (*self.model.all_functions(), *self.step.used())
        forms = [(column.shape[1:], column.dtype) for column in map(array_of, columns)]
        return self.programs.find(used, name, self.model.structure(), rows, weighted, self.step.clip_norm, *forms)


class Sums:
    """The sums of an epoch over an iterable."""

    def __init__(self, step: Step, team: Team) -> None:
        self.step, self.team, self.objective = step, team, step.objective
        self.means = np.zeros((1, self.objective.quantities, 2))
        self.batches = 0
        self.kept: list[list[np.ndarray]] = []  # outputs and targets, for the metrics of the epoch

    def loss(self) -> float:
        """Return the mean loss so far, or NaN before the first step."""
        return float(means(self.means)[0, 0])

    def results(self, where: str) -> np.ndarray:
        """Return a row of loss and metrics. Raise ValueError if there were no batches."""
        if self.batches == 0:
            raise ValueError(
                f"there were no batches {where}; an iterator gives its batches only once. Give a list, or an object "
                "whose __iter__ returns a new iterator: these give their batches in every epoch"
            )
        sums = self.team.all_sums(self.step, self.means)
        if not self.objective.epoch_metrics:
            return self.objective.means(sums)
        *outputs, targets = [self.team.all_rows(rows) for rows in self.all_kept()]
        return self.step.results(sums, outputs, targets)

    def keep(self, rows: list[np.ndarray]) -> None:
        """Keep the outputs and targets of a batch. Raise ValueError if its rows have another shape."""
        first, now = [[x.shape[1:] for x in kept] for kept in (self.kept[0] if self.kept else rows, rows)]
        if first != now:
            raise ValueError(
                f"{', '.join(self.objective.epoch_metrics)}: metrics of the whole epoch take rows of one shape; a "
                f"batch has outputs and targets of shape {_rows_text(now)}, others of shape {_rows_text(first)}"
            )
        self.kept.append(rows)

    def all_kept(self) -> list[np.ndarray]:
        """Return the outputs and the targets of all rows so far."""
        return [np.concatenate(rows) for rows in zip(*self.kept, strict=True)] if self.kept else [np.empty(0)] * 2


class InMemory(Steps):
    """Epochs over a DataGenerator's arrays.

    A step without a Program is recorded. All others are replayed, many in one call. `interrupts` has `pending` and
    `held()`, see `InterruptsBetweenSteps`.
    """

    def __init__(self, step: Step, team: Team, data: DataGenerator, epochs: int, interrupts: Any = None) -> None:
        super().__init__(step, team)
        self.generator, self.interrupts = data, interrupts
        self.data = converted(data, self.model, in_memory=True)
        weights = self.data.weights
        counts = None if weights is None else weights != 0
        self.columns = self.data.columns()
        self.kept: list[np.ndarray] = []  # the epoch's outputs and targets, as more columns
        self.sums = np.zeros((min(epochs, AT_ONCE), self.objective.quantities, 2))
        full, last = data.sizes(data.rows)
        self.rows = [data.batch_size if full else 0, last]  # of a full batch, and of a shorter last batch
        with Recording() as recording:  # shuffle for the first epoch, and record how
            if data.shuffle:
                kernels.shuffle(data._order, data._state)
        shuffle = recording.entries[0] if data.shuffle else None
        assert not isinstance(shuffle, PythonCall)
        self.loop = kernels.Epochs(
            [*map(array_of, self.columns)],
            data._order,
            shuffle,
            self.sums,
            self.cursor,
            data.batch_size,
            full,
            len(data),
            None if counts is None or counts.all() else counts,
            team.stop_flag(interrupts),
        )
        self.at: Any = self.loop  # its `epoch` and `batch` are the position of the training

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The number of finished epochs."""
        return self.loop.epoch

    @property
    def steps(self) -> int:  # type: ignore[override]
        """The number of finished steps."""
        return self.loop.epoch * self.loop.batches + self.loop.batch

    def last(self, done: int) -> int:
        return done + 1 if self.objective.epoch_metrics else done - done % AT_ONCE + AT_ONCE

    def run_until(self, epochs: int) -> None:
        for seconds in self.team.stretches(lambda: self.epoch >= epochs):
            self._run_for(epochs, seconds)

    def _run_for(self, epochs: int, seconds: float) -> None:
        """Replay steps for some seconds. If the next batch has no current Program, record its step instead."""
        weighted = self.data.weights is not None
        held = nullcontext() if self.interrupts is None else self.interrupts.held()
        with held, self.programs.using_cursor(), naming_epoch_and_batch(self.at, self.data, self.step):
            programs = [
                self.program("fetch and step", weighted, self.columns, rows) if rows else None for rows in self.rows
            ]
            current = [program if program is not None and program.is_current() else None for program in programs]
            due = self.loop.batch >= self.loop.full_batches  # 1: the short last batch
            if current[due] is None:
                new = programs[due]
                assert new is not None
                self.loop.step_in_python(lambda: self._record(new))
                return
            if self.objective.epoch_metrics:
                for program in current:
                    if program is not None:
                        self._make_room(self.programs.kept[program])
            self.loop.full, self.loop.last = [None if program is None else program.replay for program in current]
            try:
                stopped = self.loop.run(epochs, seconds)
            finally:
                for program in current:
                    if program is not None:
                        program.replayed()
            if stopped is not None:
                self._raise_why(stopped)

    def _record(self, program: Program) -> None:
        """Take the next step, and record it."""
        whole = self.rows[self.loop.batch >= self.loop.full_batches]
        part = self.team.part(whole)
        first, rows = (0, whole) if part is None else (part.first, part.size)
        keeps = part is None or part.counted
        room = [rows_from(np.empty((rows, *column.shape[1:]), column.dtype)) for column in map(array_of, self.columns)]

        def fetch_and_step(*columns: np.ndarray) -> None:
            """Copy the batch at the cursor, or a part of it, into the columns, and take a step on it."""
            if first > 0:
                kernels.advance(self.cursor, first)
            for i, column in enumerate(columns):
                kernels.take_batch(self.cursor, i, array_of(column))
            outputs = self.take_step(self.data.weights is not None, part, *columns)
            if outputs is not None:
                rows = [x.data for x in (outputs if isinstance(outputs, tuple) else (outputs,))]
                self.programs.kept[program] = _forms(rows)
                self._make_room(_forms(rows))
                if keeps:
                    for i, kept in enumerate([*rows, columns[len(self.data.inputs)]], start=len(columns)):
                        kernels.put_batch(self.cursor, i, kept)
            kernels.advance(self.cursor, whole - first)

        if program.runs_eagerly:
            fetch_and_step(*room)
        else:
            program.record(fetch_and_step, *room)

    def _make_room(self, forms: list[tuple]) -> None:
        """Allocate arrays for the epoch's outputs and targets. Raise ValueError if the batches' rows differ."""
        if not self.kept:
            y, rows = self.data.targets, self.generator.rows
            of_outputs = [np.zeros((rows, *shape), dtype) for shape, dtype in forms]
            self.kept = [*of_outputs, np.zeros((rows, *y.shape[1:]), y.dtype)]
            for column, room in enumerate(self.kept, start=len(self.columns)):
                self.loop.place(column, room)
        if (first := _forms(self.kept[:-1])) != forms:
            raise ValueError(f"metrics of an epoch: the rows of a batch's outputs are {forms}, of others {first}")

    def _raise_why(self, stopped: kernels.RecordedCall) -> None:
        """Raise the error of the kernel that stopped. For bad labels and indices, name the caller's rows."""
        door.check_indices(self.model, "x", self.data.inputs)
        if hasattr(self.objective.loss, "check_targets"):
            shape = self.model.shape_for(self.data.inputs, len(self.data.targets))
            self.objective.loss.check_targets(self.data.targets, shape)
        stopped.raise_why()

    def results(self, done: int) -> np.ndarray:
        first = done % len(self.sums)
        sums = self.team.all_sums(self.step, self.sums[first : first + self.epoch - done])
        if not self.objective.epoch_metrics:
            return self.objective.means(sums)
        kept = [self.team.all_rows(rows[: self.loop.measured]) for rows in self.kept or [np.empty(0)] * 2]
        results = self.step.results(sums, kept[:-1], kept[-1])
        self.team.forget(self.kept)
        return results

    def loss(self) -> float:
        row = self.epoch % len(self.sums)
        return float(means(self.sums[row : row + 1])[0, 0]) if self.loop.batch else np.nan

    def kept_so_far(self) -> list[list[np.ndarray]]:
        """Return one list of the epoch's outputs and targets so far, or [] if they are not kept."""
        return [[rows[: self.loop.measured] for rows in self.kept]] if self.kept else []

    def state(self) -> State:
        batch, under_way = self.loop.batch, self.loop.batch > 0
        sums = self.sums[self.epoch % len(self.sums)] * under_way
        kept = [self.team.all_rows(rows[: self.loop.measured]) for rows in self.kept] if under_way else []
        return State(self.epoch, batch, {**self.generator.state(), "sums": sums, **named_rows(kept)})

    def restore(self, state: State) -> None:
        epoch, batch, arrays = state
        self.generator.restore(arrays)
        self.sums[epoch % len(self.sums)] = arrays["sums"]
        measured = 0
        if kept := state.kept():
            measured = len(kept[-1])
            self._make_room(_forms(kept[:-1]))
            for room, rows in zip(self.kept, kept, strict=True):
                room[:measured] = self.team.own_rows(rows)
        self.loop.go_to(epoch, batch, measured)


def converted(data: DataGenerator, model: Any, in_memory: bool = False) -> Batch:
    """Return all rows of a DataGenerator as arrays, or Sources, of the model's dtype."""
    if data.in_dtype_of_model:
        return Batch(data.x if isinstance(data.x, tuple) else (data.x,), data.y, data.sample_weight)
    weights = data.sample_weight
    if weights is not None:
        weights = as_weights(weights, len(weights) if in_memory else data.rows, model.dtype)
    of_inputs = getattr(model, "input_dtype", model.dtype)
    inputs = as_inputs(data.x, of_inputs, getattr(model, "takes_indices", False), "x")
    return Batch(inputs, as_targets(data.y, model.dtype), weights)


def _forms(rows: list[np.ndarray]) -> list[tuple]:
    """Return the shapes and dtypes of rows."""
    return [(x.shape[1:], x.dtype) for x in rows]


def _rows_text(shapes: list[tuple]) -> str:
    return " and ".join(str(("n", *shape)).replace("'", "") for shape in shapes)
