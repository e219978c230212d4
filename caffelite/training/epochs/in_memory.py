"""Epochs over data in memory. The replay fetches each batch by itself, so one call can replay many epochs.

A batch whose weights are all 0 is passed over: there is no step.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.sparse import to_row_array, from_row_array
from caffelite.data.conversion import as_inputs, as_targets, as_weights, name_targets
from caffelite.data.generator import Batch, DataGenerator
from caffelite.functions import Losses
from caffelite.program import Program
from caffelite.training import inputs as door
from caffelite.training.epochs.base import State, named_rows, parted
from caffelite.training.epochs.divergence import naming_epoch_and_batch
from caffelite.training.epochs.steps import Steps
from caffelite.training.process_group import ONE_PROCESS, Team
from caffelite.training.step import Step

AT_ONCE = 1024  # the most epochs whose sums are kept before they go into the history


class InMemory(Steps):
    """Epochs over a DataGenerator's arrays.

    A step without a Program is recorded. All others are replayed, many in one call. `interrupts` has `pending` and
    `held()`, see `Interrupts`.
    """

    def __init__(self, step: Step, team: Team, data: DataGenerator, epochs: int, interrupts: Any = None) -> None:
        super().__init__(step, team)
        self.generator, self.interrupts = data, interrupts
        self.data = converted(data, self.model, in_memory=True)
        weights = self.data.weights
        counts = None if weights is None else weights != 0
        self.columns = [*map(to_row_array, self.data.columns())]
        # The Programs, and the Functions and the precision with which they were found.
        self.found: tuple[Any, str, list[Program]] | None = None
        self.kept: dict[str, np.ndarray] = {}  # the epoch's outputs and targets, as more columns
        self.sums = np.zeros((min(epochs, AT_ONCE), self.objective.quantities, 2))
        full, last = data.batch_sizes(data.rows)
        # The rows of a full batch and of a shorter last batch, as far as there are such batches.
        self.rows = [rows for rows in (data.batch_size if full else 0, last) if rows > 0]
        self.replay = kernels.EpochReplay(
            self.columns,
            data._order[: full * data.batch_size + last],
            _recorded_shuffle(data),
            self.sums,
            self.cursor,
            data.batch_size,
            full,
            full + (last > 0),
            None if counts is None or counts.all() else counts,
            team.stop_flag(interrupts),
        )
        self.position: Any = self.replay  # its `epoch` and `batch` are the position of the training

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The number of finished epochs."""
        return self.replay.epoch

    @property
    def steps(self) -> int:  # type: ignore[override]
        """The number of finished steps."""
        return self.replay.epoch * self.replay.batches + self.replay.batch

    @property
    def makes_calls(self) -> bool:  # type: ignore[override]
        return self.team is ONE_PROCESS and not self.objective.epoch_metrics

    def call_after_each(self, calls: Sequence[kernels.AfterEpoch]) -> None:
        for call, following in itertools.pairwise([*calls, None]):
            call.next = following
        self.replay.after = calls[0] if calls else None

    def as_call(self) -> kernels.OneMoreEpoch | None:
        """Return a call that runs the next epoch, for other epochs to make. None if it needs Python now."""
        programs = self._programs_of_batches() if self.makes_calls else []
        if not programs or not all(program.is_current() for program in programs):
            return None
        self._set_programs(programs, programs)
        return kernels.OneMoreEpoch(self.replay, has_loss_first=not isinstance(self.objective.loss, Losses))

    def last(self, done: int) -> int:
        return done + 1 if self.objective.epoch_metrics else done - done % AT_ONCE + AT_ONCE

    def run_until(self, epochs: int, steps: float = math.inf) -> None:
        last = self.steps + steps
        for seconds in self.team.stretches(lambda: self.epoch >= epochs or self.steps >= last):
            self._run_for(epochs, seconds, min(last - self.steps, sys.maxsize))

    def _run_for(self, epochs: int, seconds: float, steps: float) -> None:
        """Replay at most so many steps for some seconds. If the next batch has no current Program, record its step."""
        held = nullcontext() if self.interrupts is None else self.interrupts.defer()
        with held, self.programs.using_cursor(), naming_epoch_and_batch(self.position, [self.data], self.step):
            programs = self._programs_of_batches()
            current = [program for program in programs if program.is_current()]
            due = programs[-1 if self.is_at_last_batch() else 0]
            if due not in current:
                self.replay.step_in_python(functools.partial(self._record, due))
                return
            if self.objective.epoch_metrics:
                for program in current:
                    self._make_room(self.programs.kept[program])
            self._set_programs(programs, current)
            try:
                stopped = self.replay.run(epochs, seconds, int(steps))
            finally:
                for program in current:
                    program.replayed()
            if stopped is not None:
                self._raise_why(stopped)

    def _set_programs(self, programs: list[Program], current: list[Program]) -> None:
        """Set the Programs that the batches replay: only Programs that are current."""
        full, last = programs[0], programs[-1]
        self.replay.full = full.replay if full in current else None
        self.replay.last = last.replay if last in current else None

    def _programs_of_batches(self) -> list[Program]:
        """Return the Programs of a full batch and of a shorter last batch, as far as there are such batches.

        A short epoch takes less time than to find them. So they are found once, if they are recorded and the model's
        Functions stay the same.
        """
        found, now = self.found, (self.model.all_functions(), kernels.precision_here())
        if found is None or found[0] is not now[0] or found[1] != now[1]:
            layout = self.data.layout()
            programs = [self.program("fetch and step", layout, self.columns, rows) for rows in self.rows]
            self.found = (*now, programs) if all(program.is_recorded for program in programs) else None
            return programs
        self.programs.note_use(found[2])
        return found[2]

    def is_at_last_batch(self) -> bool:
        """Return whether the next batch is a last batch that is shorter than the others."""
        return self.replay.batch >= self.replay.full_batches

    def _record(self, program: Program) -> None:
        """Take the next step, and record it."""
        whole = self.rows[-1 if self.is_at_last_batch() else 0]
        part = self.team.part(whole)
        first, rows = (0, whole) if part is None else (part.first, part.size)
        layout = self.data.layout()
        keeps = part is None or part.is_counted
        room = [from_row_array(np.empty((rows, *column.shape[1:]), column.dtype)) for column in self.columns]

        def fetch_and_step(*columns: np.ndarray) -> None:
            """Copy the batch at the cursor, or a part of it, into the columns, and take a step on it."""
            if first > 0:
                kernels.advance(self.cursor, first)
            for i, column in enumerate(columns):
                kernels.take_batch(self.cursor, i, to_row_array(column))
            outputs = self.take_step(layout, part, *columns)
            if outputs is not None:
                of_outputs = [x.data for x in (outputs if isinstance(outputs, tuple) else (outputs,))]
                self.programs.kept[program] = _forms(of_outputs)
                self._make_room(_forms(of_outputs))
                if keeps:
                    for i, kept in enumerate([*of_outputs, *layout.batch(columns).targets], start=len(columns)):
                        kernels.put_batch(self.cursor, i, kept)
            kernels.advance(self.cursor, whole - first)

        if program.runs_eagerly:
            fetch_and_step(*room)
        else:
            program.record(fetch_and_step, *room)

    def _make_room(self, forms: list[tuple]) -> None:
        """Allocate arrays for the epoch's outputs and targets. Raise ValueError if the batches' rows differ."""
        if not self.kept:
            of_each, rows = [forms, _forms(self.data.targets)], self.generator.rows
            outputs, targets = ([np.zeros((rows, *shape), dtype) for shape, dtype in each] for each in of_each)
            self.kept = named_rows(tuple(outputs), targets)
            for column, room in enumerate(self.kept.values(), start=len(self.columns)):
                self.replay.place(column, room)
        if (first := _forms(parted(self.kept)[0])) != forms:
            raise ValueError(
                f"metrics of an epoch: a batch has outputs with rows of {forms}, an earlier one of {first}"
            )

    def _raise_why(self, stopped: kernels.RecordedCall) -> None:
        """Raise the error of the kernel that stopped. For bad labels and indices, name the caller's rows."""
        door.check_indices(self.model, "x", self.data.inputs)
        door.check_targets(
            self.objective.loss, self.model.shape_for(self.data.inputs, self.data.rows), self.data.targets
        )
        stopped.raise_why()

    def results(self, done: int) -> np.ndarray:
        rows = np.arange(done, self.epoch) % len(self.sums)
        sums = self.team.all_sums(self.step, self.sums[rows])
        if not self.objective.epoch_metrics:
            return self.objective.means(sums)
        results = self.step.results(sums, *parted(self._all_measured()))
        self.team.forget([*self.kept.values()])
        return results

    def loss(self) -> float:
        row = self.epoch % len(self.sums)
        return self.objective.mean_loss(self.sums[row : row + 1]) if self.replay.batch else np.nan

    def measured(self) -> dict[str, np.ndarray]:
        """Return the epoch's outputs and targets so far, by name, or {} if they are not kept."""
        return {name: rows[: self.replay.measured] for name, rows in self.kept.items()}

    def _all_measured(self) -> dict[str, np.ndarray]:
        """Return the same of all processes together."""
        return {name: self.team.all_rows(rows) for name, rows in self.measured().items()}

    def state(self) -> State:
        batch, under_way = self.replay.batch, self.replay.batch > 0
        sums = self.sums[self.epoch % len(self.sums)] * under_way
        kept = self._all_measured() if under_way else {}
        return State(self.epoch, batch, {**self.generator.state(), "sums": sums, **kept})

    def restore(self, state: State) -> None:
        epoch, batch, arrays = state
        self.generator.restore(arrays)
        self.sums[epoch % len(self.sums)] = arrays["sums"]
        measured = 0
        if kept := state.kept():
            measured = len(kept["targets"])
            self._make_room(_forms(parted(kept)[0]))
            for name, rows in kept.items():
                self.kept[name][:measured] = self.team.own_rows(rows)
        self.replay.go_to(epoch, batch, measured)


class Calls(kernels.Recorder):
    """The kernel calls that this thread makes inside a `with`."""

    def __init__(self) -> None:
        self.entries: list[kernels.RecordedCall] = []


def _recorded_shuffle(data: DataGenerator) -> kernels.RecordedCall | None:
    """Shuffle for the first epoch, and return the recorded call, which shuffles for each later one."""
    if not data.shuffle:
        return None
    with Calls() as calls:
        kernels.shuffle(data._order, data._state)
    return calls.entries[0]


def converted(data: DataGenerator, model: Any, in_memory: bool = False) -> Batch:
    """Return all rows of a DataGenerator as arrays, or Sources, of the model's dtype."""
    if data.has_model_dtype:
        return Batch(data._inputs(), data._targets(), data.sample_weight)
    weights = data.sample_weight
    if weights is not None:
        weights = as_weights(weights, len(weights) if in_memory else data.rows, model.dtype)
    of_inputs = getattr(model, "input_dtype", model.dtype)
    inputs = as_inputs(data.x, of_inputs, getattr(model, "takes_indices", False), "x")
    return Batch(inputs, tuple([as_targets(y, model.dtype, name) for name, y in name_targets(data.y)]), weights)


def _forms(rows: Sequence[np.ndarray]) -> list[tuple]:
    """Return the shapes and dtypes of rows."""
    return [(x.shape[1:], x.dtype) for x in rows]
