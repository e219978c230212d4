"""Epochs over data from a source, read one buffer at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator

import numpy as np

from caffelite._support.interrupts import Interrupts
from caffelite.data.generator import Batch, BlockBuffer, DataGenerator, unpack_single
from caffelite.data.out_of_core import Source
from caffelite.training import inputs
from caffelite.training.epochs.base import EpochAccumulator, Epochs, EpochState, concat_rows
from caffelite.training.epochs.in_memory import InMemoryEpochs
from caffelite.training.step import Step


class OutOfCoreEpochs(Epochs):
    """Epochs over a DataGenerator that reads a source.

    It trains on each buffer as on data in memory. Meanwhile a thread reads the next buffer, even across epochs.
    """

    def __init__(self, step: Step, data: DataGenerator, epochs: int, interrupts: Interrupts | None = None) -> None:
        super().__init__(step, interrupts)
        self.generator, self.max_epochs = data, epochs
        self.data = inputs.convert_generator(self.model, data)
        self.memory = data.allocate_buffers(self.data.columns())
        self.epoch = 0
        self.buffers: Generator[Callable[[], BlockBuffer]] | None = None
        self.read_epoch = 0  # which of the generator's epochs was read last
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.start_state = self.generator.state()
        self.accumulator = EpochAccumulator(self.objective)
        self.batches_before = 0  # batches of the epoch before the current buffer
        self.buffer_epochs: InMemoryEpochs | None = None  # on the current buffer

    @property
    def batch(self) -> int:  # type: ignore[override]
        """The number of finished batches of the epoch."""
        return self.batches_before + (0 if self.buffer_epochs is None else self.buffer_epochs.steps)

    @property
    def steps(self) -> int:  # type: ignore[override]
        """The number of finished steps."""
        return self.epoch * len(self.generator) + self.batch

    def run_until(self, epochs: int, steps: float = math.inf) -> None:
        """Take steps in the epoch for a while. Ctrl-C takes effect between two steps or buffers."""
        if self.batch < len(self.generator):
            if self.buffer_epochs is None:
                self.buffer_epochs = self._open_buffer()
            self.buffer_epochs.run_until(1, steps)
        with self.interrupts.defer():
            if self.buffer_epochs is not None and self.buffer_epochs.epoch == 1:
                self._end_buffer(self.buffer_epochs)
            if self.batches_before == len(self.generator):
                self.accumulator.batches = self.batches_before
                self.accumulator.check_batches(f"in epoch {self.epoch + 1}")
                self.last_results = self.compute_results(self.accumulator.sums, concat_rows(self.accumulator.pieces))
                self.epoch += 1
                self._begin_epoch()

    def _open_buffer(self) -> InMemoryEpochs:
        """Return the training on the next buffer, from its first batch that is not done."""
        batches_per_buffer = self.generator.blocks.batches  # type: ignore[union-attr]
        first = self.batches_before // batches_per_buffer
        if self.batches_before == 0 and self.buffers is not None:
            if self.generator._epochs == self.read_epoch:
                self.read_epoch = self.generator.begin()
            else:  # other code has iterated over the generator in the meantime
                self.close()
        if self.buffers is None:
            columns, epochs = self.data.columns(), max(self.max_epochs - self.epoch, 1)
            self.buffers = self.generator.buffers(columns, self.memory, first, epochs)
            self.read_epoch = self.generator._epochs
        buffer = next(self.buffers)()
        batch = self.data.layout().batch(buffer.columns)
        self._check(batch, buffer.pieces)
        x = batch.inputs if isinstance(self.generator.x, tuple) else batch.inputs[0]
        y, size = unpack_single(batch.targets), self.generator.batch_size
        data = DataGenerator(x, y, batch_size=size, shuffle=False, seed=0, sample_weight=batch.weights)
        data._order[:], data._merges_last = buffer.order, self.generator._merges_last
        buffer_epochs = self.make_buffer_epochs(data)
        buffer_epochs.replay.go_to(0, self.batches_before - first * batches_per_buffer, 0)
        self.batches_before = first * batches_per_buffer
        buffer_epochs.sums[0], buffer_epochs.position = self.accumulator.sums[0], self
        return buffer_epochs

    def make_buffer_epochs(self, data: DataGenerator) -> InMemoryEpochs:
        """Return one epoch on a buffer."""
        return InMemoryEpochs(self.step, data, 1, self.interrupts)

    def _check(self, data: Batch, pieces: list[tuple[int, int]]) -> None:
        """Raise the error of the model or the loss for these rows, and name the rows of the source."""
        try:
            self._check_rows(data)
        except (ValueError, IndexError):
            offset = 0
            for start, stop in pieces:
                rows = [column[offset : offset + stop - start] for column in data.columns()]
                try:
                    self._check_rows(data.layout().batch(rows))
                except (ValueError, IndexError) as error:
                    location = f"among the rows {start:,} … {stop - 1:,}, {start:,} being row 0"
                    raise type(error)(f"{location}: {error}") from None
                offset += stop - start
            raise

    def _check_rows(self, data: Batch) -> None:
        """Raise the error of the model or the loss for these rows. Targets in memory were checked before."""
        inputs.check_indices(self.model, "x", data.inputs)
        if Source in map(type, self.data.targets):
            inputs.check_targets(self.objective.loss, self.model.shape_for(data.inputs, data.rows), data.targets)

    def _end_buffer(self, buffer_epochs: InMemoryEpochs) -> None:
        self.batches_before += buffer_epochs.steps
        self.accumulator.sums[0] = buffer_epochs.sums[0]
        self.accumulator.pieces += [buffer_epochs.epoch_rows()] if buffer_epochs.row_buffers else []
        self.buffer_epochs = None

    def results(self, done: int) -> np.ndarray:
        return self.last_results

    def loss(self) -> float:
        return self.accumulator.loss() if self.buffer_epochs is None else self.buffer_epochs.loss()

    def state(self) -> EpochState:
        buffer_epochs, sums, pieces = self.buffer_epochs, self.accumulator.sums[0], list(self.accumulator.pieces)
        if buffer_epochs is not None:
            sums = buffer_epochs.sums[0]
            pieces += [buffer_epochs.epoch_rows()] if buffer_epochs.row_buffers else []
        rows = self.gather_all(concat_rows(pieces))
        return EpochState(self.epoch, self.batch, {**self.start_state, "sums": sums, **rows})

    def restore(self, state: EpochState) -> None:
        self.epoch, batch, arrays = state
        self.generator.restore(arrays)
        self._begin_epoch()
        self.batches_before, self.accumulator.sums[0] = batch, arrays["sums"]
        if epoch_rows := state.epoch_rows():
            self.accumulator.pieces = [{name: self.scatter_rows(rows) for name, rows in epoch_rows.items()}]

    def close(self) -> None:
        """Leave the current epoch. The reading thread ends."""
        if self.buffers is not None:
            self.buffers.close()
            self.buffers = None
