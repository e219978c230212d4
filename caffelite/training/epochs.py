"""Epochs: the position of a training in its data, and how it continues."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from caffelite.data.generator import DataGenerator, is_replayed
from caffelite.training.step import Step


class Epochs(ABC):
    """The position of a training in its data.

    `epoch` counts the finished epochs, `batch` the finished batches of the current epoch, and `steps` all steps.
    """

    epoch: int
    batch: int
    steps: int
    is_told_each = False  # whether listeners get each epoch's results before the next epoch begins

    @abstractmethod
    def run_until(self, epochs: int, steps: float = math.inf) -> None:
        """Take at most `steps` steps for a while, at most until `epochs` epochs are done.

        Ctrl-C takes effect between two steps.
        """

    @abstractmethod
    def results(self, done: int) -> np.ndarray:
        """Return a row of loss and metrics for each finished epoch after the first `done`."""

    @abstractmethod
    def loss(self) -> float:
        """Return the mean loss of the current epoch so far, or NaN before its first step."""

    @abstractmethod
    def state(self) -> State:
        """Return the state that `restore` takes."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from the position where `state` was made."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Leave the current epoch."""

    def last(self, done: int) -> int:
        """Return the epoch by which the caller must ask for results. `done` epochs are done."""
        return done + 1

    def one_more(self) -> np.ndarray:
        """Run the next epoch and return its row of loss and metrics."""
        done = self.epoch
        while self.epoch == done:
            self.run_until(done + 1)
        return self.results(done)


class State(NamedTuple):
    """The position of a training: finished epochs and batches, and arrays by name.

    The arrays hold the order of the data and the sums, outputs and targets of the current epoch.
    """

    epoch: int
    batch: int
    arrays: dict[str, np.ndarray]

    def kept(self) -> list[np.ndarray]:
        """Return the outputs and the targets of the epoch's rows so far, or [] if none were kept."""
        names = itertools.takewhile(self.arrays.__contains__, map(_name_of_output, itertools.count()))
        outputs = [self.arrays[name] for name in names]
        return [*outputs, self.arrays["targets"]] if outputs else []

    def check(self, step: Step, batches: Iterable) -> None:
        """Raise ValueError unless a training on these batches can be at this position."""
        epoch, batch, arrays = self
        if type(epoch) is not int or type(batch) is not int or min(epoch, batch) < 0:
            raise ValueError(f"epoch {epoch!r} and batch {batch!r} are not counts of finished epochs and batches")
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
            in_memory = is_replayed(batches) and batches.blocks is None and step.batches == 1
            last = len(batches) - in_memory  # other Epochs return before they begin the next epoch
            if batch > last or measured > min(batch * batches.batch_size + (batch == len(batches)), batches.rows):
                raise ValueError(
                    f"batch {batch} of {len(batches)}, and {measured} rows of the epoch, are not a position in it"
                )


def named_rows(kept: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Return outputs and targets by their names in a State, or {} if none are kept."""
    arrays = list(kept)
    return dict(zip([*map(_name_of_output, range(len(arrays) - 1)), "targets"], arrays, strict=True)) if arrays else {}


def _name_of_output(i: int) -> str:
    return f"outputs.{i}" if i > 0 else "outputs"
