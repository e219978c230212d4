"""Epochs: the position of a training in its data, and how it continues."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite.data.generator import DataGenerator, is_replayed
from caffelite.training.step import Step


class Epochs(ABC):
    """The position of a training in its data.

    `epoch` counts the finished epochs, `batch` the finished batches of the current epoch, and `steps` all steps.
    """

    epoch: int
    batch: int
    steps: int
    returns_each_epoch = False  # whether listeners get each epoch's results before the next epoch begins
    has_native_calls = False  # whether they can make calls after each epoch without Python, see `set_native_calls`

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
    def state(self) -> EpochState:
        """Return the state that `restore` takes."""

    @abstractmethod
    def restore(self, state: EpochState) -> None:
        """Continue from the position where `state` was made."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Leave the current epoch."""

    def set_native_calls(self, calls: Sequence[kernels.EpochHook]) -> None:
        """Make these calls after each epoch that is replayed. They may be none."""
        assert not calls

    def last_epoch(self, done: int) -> int:
        """Return the epoch by which the caller must ask for results. `done` epochs are done."""
        return done + 1

    def run_epoch(self) -> None:
        """Run the next epoch."""
        done = self.epoch
        while self.epoch == done:
            self.run_until(done + 1)

    def measure_epoch(self) -> np.ndarray:
        """Run the next epoch and return its row of loss and metrics."""
        done = self.epoch
        self.run_epoch()
        return self.results(done)


class EpochState(NamedTuple):
    """The position of a training: finished epochs and batches, and arrays by name.

    The arrays hold the order of the data and the sums, outputs and targets of the current epoch.
    """

    epoch: int
    batch: int
    arrays: dict[str, np.ndarray]

    def epoch_rows(self) -> dict[str, np.ndarray]:
        """Return the outputs and the targets of the epoch's rows so far, by name, or {} if none were kept."""
        names = [itertools.takewhile(self.arrays.__contains__, _row_names(kind)) for kind in ("outputs", "targets")]
        return {name: self.arrays[name] for name in itertools.chain(*names)}

    def check(self, step: Step, batches: Iterable) -> None:
        """Raise ValueError unless a training on these batches can be at this position."""
        epoch, batch, arrays = self
        if type(epoch) is not int or type(batch) is not int or min(epoch, batch) < 0:
            raise ValueError(f"epoch {epoch!r} and batch {batch!r} are not counts of finished epochs and batches")
        sums, expected = arrays["sums"], (step.objective.num_sums, 2)
        if (sums.shape, sums.dtype) != (expected, np.float64):
            raise ValueError(f"expected sums of shape {expected}, got {sums.dtype} of shape {sums.shape}")
        num_rows, epoch_rows = len(arrays.get("targets", ())), self.epoch_rows()
        outputs, targets = split_rows(epoch_rows)
        if num_rows and not (step.objective.epoch_metrics and all(rows.dtype == step.model.dtype for rows in outputs)):
            raise ValueError(f"expected no outputs of the epoch, or ones of {step.model.dtype}")
        if bool(outputs) != bool(targets) or any(len(rows) != num_rows for rows in epoch_rows.values()):
            raise ValueError("expected as many outputs as targets of the epoch")
        if isinstance(batches, DataGenerator):
            batches.check(arrays)
            if targets and len(targets) != len(batches._targets()):
                raise ValueError(f"expected {len(batches._targets())} targets of the epoch, got {len(targets)}")
            in_memory = is_replayed(batches) and batches.blocks is None and step.batches == 1
            last = len(batches) - in_memory  # other Epochs return before they begin the next epoch
            if batch > last or num_rows > min(batch * batches.batch_size + (batch == len(batches)), batches.rows):
                raise ValueError(
                    f"batch {batch} of {len(batches)}, and {num_rows} rows of the epoch, are not a position in it"
                )


def name_rows(outputs: Any, targets: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a model, one or a tuple, and the targets by their names in a State."""
    output_tuple = outputs if isinstance(outputs, tuple) else (outputs,)
    return dict([*zip(_row_names("outputs"), output_tuple), *zip(_row_names("targets"), targets)])  # noqa: B905 (names never end)


def concat_rows(pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the rows of all pieces, one after the other, or {} if there are none."""
    return {name: np.concatenate([rows[name] for rows in pieces]) for name in (pieces[0] if pieces else ())}


def split_rows(rows: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return outputs and targets, each in a list, of what `name_rows` returned."""
    return tuple([[x for name, x in rows.items() if name.startswith(kind)] for kind in ("outputs", "targets")])  # type: ignore


def _row_names(kind: str) -> Iterator[str]:
    return itertools.chain([kind], (f"{kind}.{i}" for i in itertools.count(1)))
