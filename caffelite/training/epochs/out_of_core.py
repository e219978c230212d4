"""Epochs over data from a source, read one buffer at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import nullcontext

import numpy as np

from caffelite._support.interrupts import Interrupts
from caffelite.data.generator import Batch, Buffer, DataGenerator, unpack_single
from caffelite.data.out_of_core import Source
from caffelite.training import inputs
from caffelite.training.epochs.base import State, joined
from caffelite.training.epochs.in_memory import InMemory, converted
from caffelite.training.epochs.steps import Steps, Sums
from caffelite.training.process_group import Team
from caffelite.training.step import Step


class Buffered(Steps):
    """Epochs over a DataGenerator that reads a source.

    It trains on each buffer as on data in memory. Meanwhile a thread reads the next buffer, also across epochs.
    """

    def __init__(
        self,
        step: Step,
        team: Team,
        data: DataGenerator,
        epochs: int,
        interrupts: Interrupts | None = None,
    ) -> None:
        super().__init__(step, team)
        self.generator, self.until, self.interrupts = data, epochs, interrupts
        self.data = converted(data, self.model)
        self.memory = data.allocate_buffers(self.data.columns())
        self.epoch = 0
        self.buffers: Generator[Callable[[], Buffer]] | None = None
        self.read_epoch = 0  # which of the generator's epochs was read last
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.before = self.generator.state()
        self.sums = Sums(self.step, self.team)
        self.done = 0  # batches of the epoch before the current buffer
        self.in_buffer: InMemory | None = None  # on the current buffer

    @property
    def batch(self) -> int:  # type: ignore[override]
        """The number of finished batches of the epoch."""
        return self.done + (0 if self.in_buffer is None else self.in_buffer.steps)

    @property
    def steps(self) -> int:  # type: ignore[override]
        """The number of finished steps."""
        return self.epoch * len(self.generator) + self.batch

    def run_until(self, epochs: int, steps: float = math.inf) -> None:
        """Take steps in the epoch for a while. Ctrl-C takes effect between two steps or buffers."""
        if self.batch < len(self.generator):
            if self.in_buffer is None:
                self.in_buffer = self._next_run()
            self.in_buffer.run_until(1, steps)
        with nullcontext() if self.interrupts is None else self.interrupts.defer():
            if self.in_buffer is not None and self.in_buffer.epoch == 1:
                self._end_buffer(self.in_buffer)
            if self.done == len(self.generator):
                self.sums.batches = self.done
                self.last_results = self.sums.results(f"in epoch {self.epoch + 1}")
                self.epoch += 1
                self._begin_epoch()

    def _next_run(self) -> InMemory:
        """Return the training on the next buffer, from its first batch that is not done."""
        per_buffer = self.generator.blocks.batches  # type: ignore[union-attr]
        first = self.done // per_buffer
        if self.done == 0 and self.buffers is not None:
            if self.generator._epochs == self.read_epoch:
                self.read_epoch = self.generator.begin()
            else:  # other code has iterated over the generator in the meantime
                self.close()
        if self.buffers is None:
            columns, epochs = self.data.columns(), max(self.until - self.epoch, 1)
            self.buffers = self.generator.buffers(columns, self.memory, first, epochs)
            self.read_epoch = self.generator._epochs
        buffer = next(self.buffers)()
        batch = self.data.layout().batch(buffer.columns)
        self._check(batch, buffer.pieces)
        x = batch.inputs if isinstance(self.generator.x, tuple) else batch.inputs[0]
        y, size = unpack_single(batch.targets), self.generator.batch_size
        data = DataGenerator(x, y, batch_size=size, shuffle=False, seed=0, sample_weight=batch.weights)
        data._order[:], data._merges_last = buffer.order, self.generator._merges_last
        run = InMemory(self.step, self.team, data, 1, self.interrupts)
        run.replay.go_to(0, self.done - first * per_buffer, 0)
        self.done = first * per_buffer
        run.sums[0], run.position = self.sums.means[0], self
        return run

    def _check(self, data: Batch, pieces: list[tuple[int, int]]) -> None:
        """Raise the error of the model or the loss for these rows, and name the rows of the source."""
        try:
            self._check_rows(data)
        except (ValueError, IndexError):
            place = 0
            for start, stop in pieces:
                rows = [column[place : place + stop - start] for column in data.columns()]
                try:
                    self._check_rows(data.layout().batch(rows))
                except (ValueError, IndexError) as error:
                    where = f"among the rows {start:,} … {stop - 1:,}, {start:,} being row 0"
                    raise type(error)(f"{where}: {error}") from None
                place += stop - start
            raise

    def _check_rows(self, data: Batch) -> None:
        """Raise the error of the model or the loss for these rows. Targets in memory were checked before."""
        inputs.check_indices(self.model, "x", data.inputs)
        if Source in map(type, self.data.targets):
            inputs.check_targets(self.objective.loss, self.model.shape_for(data.inputs, data.rows), data.targets)

    def _end_buffer(self, run: InMemory) -> None:
        self.done += run.steps
        self.sums.means[0] = run.sums[0]
        self.sums.kept += [run.measured()] if run.kept else []
        self.in_buffer = None

    def results(self, done: int) -> np.ndarray:
        return self.last_results

    def loss(self) -> float:
        return self.sums.loss() if self.in_buffer is None else self.in_buffer.loss()

    def state(self) -> State:
        run, sums, kept = self.in_buffer, self.sums.means[0], list(self.sums.kept)
        if run is not None:
            sums = run.sums[0]
            kept += [run.measured()] if run.kept else []
        rows = {name: self.team.all_rows(x) for name, x in joined(kept).items()}
        return State(self.epoch, self.batch, {**self.before, "sums": sums, **rows})

    def restore(self, state: State) -> None:
        self.epoch, batch, arrays = state
        self.generator.restore(arrays)
        self._begin_epoch()
        self.done, self.sums.means[0] = batch, arrays["sums"]
        if kept := state.kept():
            self.sums.kept = [{name: self.team.own_rows(rows) for name, rows in kept.items()}]

    def close(self) -> None:
        """Leave the current epoch. The reading thread ends."""
        if self.buffers is not None:
            self.buffers.close()
            self.buffers = None
