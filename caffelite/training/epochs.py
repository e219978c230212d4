"""Epochs: where a training is in its data, and how it goes on."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from caffelite.data.generator import DataGenerator, is_replayed
from caffelite.training.step import Step


class Epochs(ABC):
    """Where a training is in its data. `epoch` and `batch` are what is done, `steps` counts all steps."""

    epoch: int
    batch: int
    steps: int
    is_told_each = False  # whether the results of each epoch are told before the next one begins

    @abstractmethod
    def run_until(self, epochs: int) -> None:
        """Take steps towards so many epochs, for a while. A Ctrl-C takes effect between two steps."""

    @abstractmethod
    def results(self, done: int) -> np.ndarray:
        """A row of loss and metrics for each epoch that is done, beginning after so many."""

    @abstractmethod
    def loss(self) -> float:
        """The mean loss of the epoch under way, NaN before its first step."""

    @abstractmethod
    def state(self) -> State:
        """For `restore`."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Go on where `state()` was."""

    def close(self) -> None:  # noqa: B027 (most have nothing to leave)
        """Leave the epoch under way."""

    def last(self, done: int) -> int:
        """After how many epochs the results have to be asked for, so many being done."""
        return done + 1

    def one_more(self) -> np.ndarray:
        """Go through the next epoch: its row of loss and metrics."""
        done = self.epoch
        while self.epoch == done:
            self.run_until(done + 1)
        return self.results(done)


class State(NamedTuple):
    """Where a training is: what is done, and arrays by name, of the data's order and of the epoch under way."""

    epoch: int
    batch: int
    arrays: dict[str, np.ndarray]

    def kept(self) -> list[np.ndarray]:
        """The outputs and the targets of the rows of the epoch so far; empty if none were kept."""
        names = itertools.takewhile(self.arrays.__contains__, map(_name_of_output, itertools.count()))
        outputs = [self.arrays[name] for name in names]
        return [*outputs, self.arrays["targets"]] if outputs else []

    def check(self, step: Step, batches: Iterable) -> None:
        """ValueError unless a training with these batches can be there."""
        epoch, batch, arrays = self
        if type(epoch) is not int or type(batch) is not int or min(epoch, batch) < 0:
            raise ValueError(f"epoch {epoch!r} and batch {batch!r} are no numbers of what is done")
        sums, expected = arrays["sums"], (step.objective.quantities, 2)
        if (sums.shape, sums.dtype) != (expected, np.float64):
            raise ValueError(f"expected sums of shape {expected}, got {sums.dtype} of shape {sums.shape}")
        measured = len(arrays.get("targets", ()))
        outputs = self.kept()[:-1]
        if measured and not (step.objective.epoch_metrics and all(rows.dtype == step.model.dtype for rows in outputs)):
            raise ValueError(f"expected no outputs of the epoch, or ones of {step.model.dtype}")
        if any(len(rows) != measured for rows in outputs):
            raise ValueError("expected as many outputs as targets of the epoch")
        if isinstance(batches, DataGenerator):
            batches.check(arrays)
            in_memory = is_replayed(batches) and batches.blocks is None
            last = len(batches) - in_memory  # others come back before they begin the next epoch
            if batch > last or measured > min(batch * batches.batch_size + (batch == len(batches)), batches.rows):
                raise ValueError(
                    f"batch {batch} of {len(batches)}, and {measured} rows of the epoch, are no place in it"
                )


def named_rows(kept: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs and the targets of rows by the names that a State has for them; nothing if none are kept."""
    arrays = list(kept)
    return dict(zip([*map(_name_of_output, range(len(arrays) - 1)), "targets"], arrays, strict=True)) if arrays else {}


def _name_of_output(i: int) -> str:
    return f"outputs.{i}" if i > 0 else "outputs"
