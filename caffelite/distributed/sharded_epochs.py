"""Epochs of steps that several ranks share: each computes a part of each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from caffelite.data.generator import Batch, DataGenerator, is_replayed
from caffelite.distributed.consistency import check_batch
from caffelite.distributed.mpi import Communicator, RankShard
from caffelite.distributed.stop_signal import StopSignal
from caffelite.training.epochs.base import Epochs
from caffelite.training.epochs.by_length import LengthEpochs
from caffelite.training.epochs.in_memory import InMemoryEpochs
from caffelite.training.epochs.iterable import IterableEpochs
from caffelite.training.epochs.out_of_core import OutOfCoreEpochs
from caffelite.training.step import Step


class ShardedEpochs(Epochs):
    """Epochs that combine sums and rows from the parts of all ranks. Subclasses define where the batches come from."""

    def __init__(self, comm: Communicator, stop: StopSignal, *args: Any) -> None:
        self.comm, self.stop = comm, stop
        super().__init__(*args)

    def shard(self, rows: int) -> RankShard:
        return RankShard(self.comm, rows)

    def reduce_sums(self, sums: np.ndarray) -> np.ndarray:
        return sums if self.step.is_training else self.comm.all_reduce(sums)  # a training step already added them up

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        return self.comm.all_reduce(rows)

    def scatter_rows(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.comm.rank == 0 else np.zeros_like(rows)

    def reset_rows(self, rows: Iterable[np.ndarray]) -> None:
        for array in rows:  # the rows of other ranks must stay 0
            array[...] = 0


class InMemoryShardedEpochs(ShardedEpochs, InMemoryEpochs):
    """Epochs over data in memory."""

    takes_epoch_hooks = False

    def stop_flag(self) -> np.ndarray:
        return self.stop.flag

    def time_limits(self, is_done: Callable[[], bool]) -> Iterable[float]:
        return self.stop.time_limits(is_done)


class LengthShardedEpochs(InMemoryShardedEpochs, LengthEpochs):
    """Epochs over rows of different lengths in memory."""


class OutOfCoreShardedEpochs(ShardedEpochs, OutOfCoreEpochs):
    """Epochs over a source that is read buffer by buffer."""

    def make_buffer_epochs(self, data: DataGenerator) -> InMemoryEpochs:
        return InMemoryShardedEpochs(self.comm, self.stop, self.step, data, 1, self.interrupts)


class IterableShardedEpochs(ShardedEpochs, IterableEpochs):
    """Epochs over batches that Python makes: the same on all ranks."""

    seconds = 0.0  # all ranks call the loop's hooks after the same steps

    def check_equal(self, batches: list[Batch]) -> None:
        location = f"epoch {self.epoch + 1}, batch {self.batch + 1}"
        compared: list[Batch | None] = [*batches] or [None]
        for batch in compared:
            check_batch(self.comm, location, batch)
            self.stop.reset()

    def end_step(self) -> None:
        self.stop.raise_interrupt()


def make_sharded_epochs(
    comm: Communicator, stop: StopSignal, step: Step, batches: Any, epochs: int, interrupts: Any
) -> Epochs:
    """Return the epochs of a step over these batches, as `training.epochs.make_epochs` does for one process."""
    if is_replayed(batches):
        in_memory = InMemoryShardedEpochs if batches.groups is None else LengthShardedEpochs
        kind = in_memory if batches.blocks is None else OutOfCoreShardedEpochs
        return kind(comm, stop, step, batches, epochs, interrupts)
    return IterableShardedEpochs(comm, stop, step, batches, interrupts)
