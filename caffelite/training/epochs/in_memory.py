"""Epochs over data in memory. The replay fetches each batch by itself, so one call can replay many epochs.

A batch whose weights are all 0 is skipped: there is no step.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.interrupts import Interrupts
from caffelite.core.sparse import from_row_array, to_row_array
from caffelite.data.generator import DataGenerator
from caffelite.data.lengths import cut_batch
from caffelite.functions import Losses
from caffelite.program import Program
from caffelite.training.epochs.base import Epochs, EpochState, name_rows, split_rows
from caffelite.training.epochs.divergence import annotate_step
from caffelite.training.inputs import check_indices, check_targets, convert_generator
from caffelite.training.step import Step

REPLAY_SECONDS = 0.05  # seconds of replay before Python updates the bar and looks for Ctrl-C
MAX_STORED_EPOCHS = 1024  # the sums of at most this many epochs are stored before they go into the history


class InMemoryEpochs(Epochs):
    """Epochs over a DataGenerator's arrays.

    A step without a Program is recorded. All others are replayed, many in one call.
    """

    def __init__(self, step: Step, data: DataGenerator, epochs: int, interrupts: Interrupts | None = None) -> None:
        super().__init__(step, interrupts)
        self.generator = data
        self.data = convert_generator(self.model, data)
        if self.objective.row_check is not None:
            self.objective.row_check.pending.append(("x", cut_batch(self.data, data.lengths)))
        weights = self.data.weights
        counted_rows = None if weights is None else weights != 0
        self.row_limits = self.model._model_state.row_limits
        self.columns = [*map(to_row_array, self.data.columns())]
        # The Functions and the precision with which Programs were found, and these Programs.
        self.program_cache: tuple[Any, str, list[Program]] | None = None
        self.row_buffers: dict[str, np.ndarray] = {}  # the epoch's outputs and targets, as more columns
        self.sums = np.zeros((min(epochs, MAX_STORED_EPOCHS), self.objective.num_sums, 2))
        full, last = data.batch_sizes(data.rows)
        shuffle = _record_shuffle(data)
        self.batch_sizes, row_forms = self.find_forms(full, last)
        self.replay = kernels.EpochReplay(
            self.columns,
            data._order[: full * data.batch_size + last],
            shuffle,
            self.sums,
            self.cursor,
            data.batch_size,
            full,
            full + (last > 0),
            len(self.batch_sizes),
            row_forms,
            None if counted_rows is None or counted_rows.all() else counted_rows,
            self.stop_flag(),
        )
        self.counted_steps = 0  # the steps that `_count_replays` has counted
        self.position: Any = self.replay  # its `epoch` and `batch` are the position of the training

    # ---- forms: batches of one form have the same shapes --------------------------------------------------------

    def find_forms(self, full: int, last: int) -> tuple[list[int], np.ndarray | None]:
        """Return the rows of each form's batches, and the form of each row as an EpochReplay takes it.

        The forms are a full batch and a last batch of another size, if there are such batches.
        """
        return [rows for rows in (self.generator.batch_size if full else 0, last) if rows > 0], None

    def find_form_program(self, form: int) -> Program:
        """Return the Program for batches of a form."""
        return self.find_program("fetch and step", self.data.layout(), self.columns, self.batch_sizes[form])

    def fetched_columns(self, form: int) -> list[tuple[int, np.ndarray]]:
        """Return the columns that a step on batches of a form gets, with their numbers.

        Targets for the metrics of the epoch follow if they differ from the targets of the step.
        """
        return list(enumerate(self.columns))

    def output_specs(self, outputs: list[np.ndarray], form: int) -> list[tuple[Any, ...]]:
        """Return the shapes and dtypes of rows of the epoch's outputs, for the outputs of a batch of a form."""
        return _row_specs(outputs)

    # ---- epochs -------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The number of finished epochs."""
        return int(self.replay.epoch)

    @property
    def steps(self) -> int:  # type: ignore[override]
        """The number of finished steps."""
        return int(self.replay.epoch * self.replay.batches + self.replay.batch)

    @property
    def takes_epoch_hooks(self) -> bool:  # type: ignore[override]
        return not self.objective.epoch_metrics

    def set_epoch_hooks(self, hooks: Sequence[kernels.EpochHook]) -> None:
        chain: list[Any] = [*hooks, None]
        for hook, next_hook in itertools.pairwise(chain):
            hook.next = next_hook
        self.replay.epoch_hook = chain[0]

    def make_epoch_hook(self) -> kernels.EvaluationHook | None:
        """Return a hook that runs the next epoch after an epoch of a training. None if it needs Python now."""
        programs = self._find_programs() if self.takes_epoch_hooks else []
        self._count_replays(programs)
        if not programs or not all(program.is_current() for program in programs):
            return None
        self._set_programs(programs, programs)
        return kernels.EvaluationHook(self.replay, has_loss_first=not isinstance(self.objective.loss, Losses))

    def last_epoch(self, done: int) -> int:
        return done + 1 if self.objective.epoch_metrics else done - done % MAX_STORED_EPOCHS + MAX_STORED_EPOCHS

    def run_until(self, epochs: int, steps: float = math.inf) -> None:
        last = self.steps + steps
        for seconds in self.time_limits(lambda: self.epoch >= epochs or self.steps >= last):
            self._replay_steps(epochs, seconds, min(last - self.steps, sys.maxsize))

    def stop_flag(self) -> np.ndarray | None:
        """Return an array. If its number is not 0, the replay stops after a step."""
        return self.interrupts.pending

    def time_limits(self, is_done: Callable[[], bool]) -> Iterable[float]:
        """Return the seconds of each stretch of steps. After it Python updates the bar and looks for Ctrl-C."""
        return (REPLAY_SECONDS,)

    def _replay_steps(self, epochs: int, seconds: float, steps: float) -> None:
        """Replay at most so many steps for some seconds. If the next batch has no current Program, record its step."""
        annotation = annotate_step(self.position, [self.data], self.step)
        with self.interrupts.defer(), self.programs.lock_cursor(), annotation:
            programs = self._find_programs()
            current = [program for program in programs if program.is_current()]
            for program in current:
                if self.objective.row_check is not None and program in self.row_limits:
                    self.objective.row_check.check_pending(self.row_limits[program])
                if self.objective.epoch_metrics:
                    self._allocate_rows(self.programs.output_specs[program])
            self._set_programs(programs, current)
            steps = min([steps, *[1 if program.calls_python else program.replays_left for program in current]])
            try:
                stopped_call = self.replay.run(epochs, seconds, int(steps))
            finally:
                if self.steps > self.counted_steps or not self.replay.needs_python:
                    self._count_replays(programs)
                    for program in current:
                        program.apply_effects()
                        program.check_callbacks()
            if stopped_call is not None:
                self._raise_error(stopped_call)
            if self.replay.needs_python:
                self.replay.run_in_python(functools.partial(self._record, programs))
                self.counted_steps = self.steps

    def _count_replays(self, programs: list[Program]) -> None:
        """Take the steps since the last call from the number that each Program may replay."""
        steps, self.counted_steps = self.steps - self.counted_steps, self.steps
        for program in programs:
            program.replays_left -= steps

    def _set_programs(self, programs: list[Program], current: list[Program]) -> None:
        """Set the Programs that the batches replay: only Programs that are current."""
        self.replay.set_replays([program.replay if program in current else None for program in programs])

    def _find_programs(self) -> list[Program]:
        """Return the Program of each form.

        A short epoch takes less time than finding them. So they are found once, if they are recorded and the model's
        Functions stay the same.
        """
        cached, current = self.program_cache, (self.model.all_functions(), kernels.current_precision())
        if cached is None or cached[0] is not current[0] or cached[1] != current[1]:
            programs = [*map(self.find_form_program, range(len(self.batch_sizes)))]
            self.program_cache = (*current, programs) if all(program.is_recorded for program in programs) else None
            return programs
        self.programs.mark_used(cached[2])
        for program in cached[2]:
            program.supervise(self.programs.disturbances)
        return cached[2]

    def _record(self, programs: list[Program], form: int) -> None:
        """Take the next step, on a batch of this form, and record it."""
        program, batch_rows = programs[form], self.batch_sizes[form]
        shard = self.shard(batch_rows)
        first, rows = (0, batch_rows) if shard is None else (shard.first, shard.size)
        layout, count = self.data.layout(), len(self.columns)
        is_counted = shard is None or shard.is_counted
        fetched = self.fetched_columns(form)
        buffers = [from_row_array(np.empty((rows, *column.shape[1:]), column.dtype)) for _, column in fetched]

        def fetch_and_step(*columns: np.ndarray) -> None:
            """Copy the batch at the cursor, or a part of it, into the columns, and take a step on it."""
            if first > 0:
                kernels.advance(self.cursor, first)
            for (i, _), column in zip(fetched, columns, strict=True):
                kernels.take_batch(self.cursor, i, to_row_array(column), _row_bytes(self.columns[i]))
            outputs = self.take_step(layout, shard, *columns[:count])
            if outputs is not None:
                output_arrays = [x.data for x in (outputs if isinstance(outputs, tuple) else (outputs,))]
                specs = self.programs.output_specs[program] = self.output_specs(output_arrays, form)
                self._allocate_rows(specs)
                if is_counted:
                    arrays = [*output_arrays, *(columns[count:] or layout.batch(columns).targets)]
                    for i, (array, buffer) in enumerate(zip(arrays, self.row_buffers.values(), strict=True)):
                        kernels.put_batch(self.cursor, count + i, array, _row_bytes(buffer))
            kernels.advance(self.cursor, batch_rows - first)

        if program.runs_eagerly:
            fetch_and_step(*buffers)
        else:
            program.record(fetch_and_step, *buffers)
        if self.objective.row_check is not None:
            self.row_limits[program] = self.objective.row_check.limits

    def _allocate_rows(self, output_specs: list[tuple[Any, ...]]) -> None:
        """Allocate arrays for the epoch's outputs and targets. Raise ValueError if the batches' rows differ."""
        if not self.row_buffers:
            row_specs, rows = [output_specs, _row_specs(self.data.targets)], self.generator.rows
            outputs, targets = ([np.zeros((rows, *shape), dtype) for shape, dtype in specs] for specs in row_specs)
            self.row_buffers = name_rows(tuple(outputs), targets)
            for column, buffer in enumerate(self.row_buffers.values(), start=len(self.columns)):
                self.replay.place(column, buffer)
        if (first_specs := _row_specs(split_rows(self.row_buffers)[0])) != output_specs:
            raise ValueError(
                f"metrics of an epoch: a batch has outputs with rows of {output_specs}, an earlier one of {first_specs}"
            )

    def _raise_error(self, stopped_call: kernels.RecordedCall) -> None:
        """Raise the error of the kernel that stopped. For bad labels and indices, name the caller's rows."""
        data = cut_batch(self.data, self.generator.lengths)
        check_indices(self.model, "x", data.inputs)
        check_targets(self.objective.loss, self.model.shape_for(data.inputs, data.rows), data.targets)
        stopped_call.raise_error()

    def results(self, done: int) -> np.ndarray:
        rows = np.arange(done, self.epoch) % len(self.sums)
        results = self.compute_results(self.sums[rows], self.epoch_rows())
        self.reset_rows(self.row_buffers.values())
        return results

    def loss(self) -> float:
        row = self.epoch % len(self.sums)
        return self.objective.mean_loss(self.sums[row : row + 1]) if self.replay.batch else np.nan

    def epoch_rows(self) -> dict[str, np.ndarray]:
        """Return the epoch's outputs and targets so far, by name, or {} if they are not kept."""
        return {name: rows[: self.replay.measured_rows] for name, rows in self.row_buffers.items()}

    def state(self) -> EpochState:
        batch, has_begun = self.replay.batch, self.replay.batch > 0
        sums = self.sums[self.epoch % len(self.sums)] * has_begun
        epoch_rows = self.gather_all(self.epoch_rows()) if has_begun else {}
        return EpochState(self.epoch, batch, {**self.generator.state(), "sums": sums, **epoch_rows})

    def restore(self, state: EpochState) -> None:
        epoch, batch, arrays = state
        self.generator.restore(arrays)
        self.sums[epoch % len(self.sums)] = arrays["sums"]
        num_rows = 0
        if epoch_rows := state.epoch_rows():
            num_rows = len(epoch_rows["targets"])
            self._allocate_rows(_row_specs(split_rows(epoch_rows)[0]))
            for name, rows in epoch_rows.items():
                self.row_buffers[name][:num_rows] = self.scatter_rows(rows)
        self.replay.go_to(epoch, batch, num_rows)
        self.counted_steps = self.steps


class CallRecorder(kernels.Recorder):
    """The kernel calls that this thread makes inside a `with`."""

    def __init__(self) -> None:
        self.entries: list[kernels.RecordedCall] = []


def _record_shuffle(data: DataGenerator) -> kernels.Replay | None:
    """Shuffle for the first epoch, and return the recorded calls, which shuffle for each later one."""
    if not data.shuffle:
        return None
    with CallRecorder() as calls:
        data.shuffle_rows()
    return kernels.Replay(calls.entries)


def _row_bytes(rows: np.ndarray) -> int:
    return rows.nbytes // len(rows)


def _row_specs(rows: Sequence[np.ndarray]) -> list[tuple[Any, ...]]:
    """Return the shapes and dtypes of rows."""
    return [(x.shape[1:], x.dtype) for x in rows]
