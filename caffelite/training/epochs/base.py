"""Epochs: the position of training in its data, its steps, each recorded once, and the sums that they measure."""

from __future__ import annotations

import contextlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.interrupts import Interrupts, NullInterrupts
from caffelite.core.autograd import leaf_count
from caffelite.core.shard import WHOLE_BATCH, PartialShard, use_shard
from caffelite.core.tensor import Tensor
from caffelite.data.generator import DataGenerator, Layout, is_replayed
from caffelite.files.state import BaseModel
from caffelite.program import Program
from caffelite.program.recording import Recording
from caffelite.training.epochs.row_check import RowCheck
from caffelite.training.objective import Objective
from caffelite.training.step import Step


class Epochs(ABC):
    """The position of training in its data, and its step, which is recorded once for each shape of batch.

    `epoch` counts the finished epochs, `batch` the finished batches of the current epoch, and `steps` all steps.
    """

    epoch: int
    batch: int
    steps: int
    returns_each_epoch = False  # whether callbacks get each epoch's results before the next epoch begins
    takes_epoch_hooks = False  # whether they can make calls after each epoch without Python, see `set_epoch_hooks`

    def __init__(self, step: Step, interrupts: Interrupts | None = None) -> None:
        self.step, self.model, self.objective = step, step.model, step.objective
        self.interrupts: Interrupts = NullInterrupts() if interrupts is None else interrupts
        self.programs = self.model._model_state.programs
        self.programs.disturbances += 1
        self.cursor = self.programs.cursor
        if self.objective.row_check is None and self.model._model_state.runs_user_code(self.model):
            self.objective.row_check = RowCheck(self.objective.loss)

    @abstractmethod
    def run_until(self, epochs: int, steps: float = math.inf) -> None:
        """Take at most `steps` steps, until `epochs` epochs are done at the latest.

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

    def set_epoch_hooks(self, hooks: Sequence[kernels.EpochHook]) -> None:
        """Call these hooks, or none, after each epoch that is replayed."""
        assert not hooks

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

    # ---- a step, recorded once for each shape of batch ----------------------------------------------------------

    def take_step(self, layout: Layout, shard: PartialShard | None, *columns: np.ndarray) -> Any:
        """Take a step on the columns of a batch, or of a part of it. Return the outputs if the epoch needs them."""
        batch, leaves = layout.batch(columns), leaf_count()
        if self.objective.row_check is not None:
            self.objective.row_check.watch()
        with use_shard(shard or WHOLE_BATCH):
            outputs = self.step(batch)
            if self.step.is_training:
                warn_of_untrained(self.step, leaves)
            self.step.measure(self.cursor, outputs, batch)
        return outputs if self.objective.epoch_metrics else None

    def find_program(self, name: str, layout: Any, columns: list[np.ndarray], rows: int) -> Program:
        """Return the Program for steps of this name on batches of `rows` rows of these columns.

        `layout` says which columns these are. For a step on several batches, it describes each of them.
        """
        dependencies = (*self.model.all_functions(), *self.step.dependencies())
        specs = [(column.shape[1:], column.dtype) for column in columns]
        key = (self.model.structure(), rows, layout, *self.step.key(), *specs)
        program: Program = self.programs.find(Program, dependencies, name, *key)
        program.supervise(self.programs.disturbances)
        return program

    def compute_results(self, sums: np.ndarray, epoch_rows: dict[str, np.ndarray]) -> np.ndarray:
        """Return loss and metrics, a row for each epoch in the sums. Metrics of the epoch take its rows so far."""
        sums = self.reduce_sums(sums)
        if not self.objective.epoch_metrics:
            return self.objective.means(sums)
        self.programs.disturbances += 1  # a metric may be a user's
        return self.step.results(sums, *split_rows(self.gather_all(epoch_rows)))

    def gather_all(self, epoch_rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all rows of the outputs and the targets, by name."""
        return {name: self.gather_rows(rows) for name, rows in epoch_rows.items()}

    # ---- all rows, or a part of each batch, if other processes compute the rest ---------------------------------

    def shard(self, rows: int) -> PartialShard | None:
        """Return the part of a batch of `rows` rows that the step computes, or None for all of it."""
        return None

    def reduce_sums(self, sums: np.ndarray) -> np.ndarray:
        """Return the sums of all parts."""
        return sums

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of all parts. Each has its own rows, and 0 for the others."""
        return rows

    def scatter_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return what this part has of all rows: from the parts, `gather_rows` makes all rows again."""
        return rows

    def reset_rows(self, rows: Iterable[np.ndarray]) -> None:  # noqa: B027 (one process overwrites all rows)
        """Reset these rows at the end of an epoch. The next epoch fills them."""


class EpochState(NamedTuple):
    """The position of training: finished epochs and batches, and arrays by name.

    The arrays hold the order of the data and the sums, outputs and targets of the current epoch.
    """

    epoch: int
    batch: int
    arrays: dict[str, np.ndarray]

    def epoch_rows(self) -> dict[str, np.ndarray]:
        """Return the outputs and the targets of the epoch's rows so far, by name, or {} if none were kept."""
        names = [itertools.takewhile(self.arrays.__contains__, _row_names(kind)) for kind in ("outputs", "targets")]
        return {name: self.arrays[name] for name in itertools.chain(*names)}

    def check(self, step: Step, batches: Iterable[Any]) -> None:
        """Raise ValueError unless training on these batches can be at this position."""
        epoch, batch, arrays = self
        if type(epoch) is not int or type(batch) is not int or min(epoch, batch) < 0:
            raise ValueError(f"epoch {epoch!r} and batch {batch!r} are not counts of finished epochs and batches")
        sums, expected = arrays["sums"], (step.objective.num_sums, 2)
        if sums.shape != expected or sums.dtype != np.float64:
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
            in_memory = is_replayed(batches) and batches.blocks is None and step.batches_per_step == 1
            last = len(batches) - (1 if in_memory else 0)  # other Epochs return before they begin the next epoch
            if batch > last or num_rows > min(batch * batches.batch_size + (batch == len(batches)), batches.rows):
                raise ValueError(
                    f"batch {batch} of {len(batches)}, and {num_rows} rows of the epoch, are not a position in it"
                )


def name_rows(outputs: Any, targets: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a model, one or a tuple, and the targets by their names in an EpochState."""
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


class EpochAccumulator:
    """The sums of an epoch over an iterable."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.sums = np.zeros((1, self.objective.num_sums, 2))
        self.batches = 0
        self.pieces: list[dict[str, np.ndarray]] = []  # outputs and targets, for the metrics of the epoch

    def loss(self) -> float:
        """Return the mean loss so far, or NaN before the first step."""
        return self.objective.mean_loss(self.sums)

    def check_batches(self, location: str) -> None:
        """Raise ValueError if there were no batches."""
        if self.batches == 0:
            raise ValueError(
                f"there were no batches {location}; an iterator gives its batches only once. Give a list, or an object "
                "whose __iter__ returns a new iterator: these give their batches in every epoch"
            )

    def add_rows(self, rows: dict[str, np.ndarray]) -> None:
        """Keep the outputs and targets of a batch. Raise ValueError if its rows have another shape."""
        first, now = [
            [x.shape[1:] for x in piece.values()] for piece in (self.pieces[0] if self.pieces else rows, rows)
        ]
        if first != now:
            raise ValueError(
                f"{', '.join(self.objective.epoch_metrics)}: metrics of the whole epoch take rows of one shape; a "
                f"batch has outputs and targets of shape {_rows_text(now)}, the first one of shape {_rows_text(first)}"
            )
        self.pieces.append(rows)


def _rows_text(shapes: list[tuple[Any, ...]]) -> str:
    return " and ".join(str(("n", *shape)).replace("'", "") for shape in shapes)


def warn_of_untrained(step: Step, leaves: int) -> None:
    """Warn of parameters that get a gradient but are not in the optimizer.

    While a step is recorded, it checks all parameters in the step, and otherwise the model's parameters. `leaves` is
    the `leaf_count()` before the step: a Tensor that the step made, such as one that a Function's `forward` keeps for
    `backward`, is not a parameter to be trained.
    """
    recording, trained = kernels.recorder(), step.optimizer.parameters
    if isinstance(recording, Recording):
        untrained = recording.find_untrained(trained)
    else:
        known = set(trained)
        untrained = [p for p in step.model.parameters() if p.requires_grad and p.grad is not None and p not in known]
    untrained = [p for p in untrained if p._leaf_number <= leaves]
    if untrained:
        names_text = ", ".join(name_parameters(step.model, untrained))
        step.objective.warn_once(
            f"not trained: {names_text}. A gradient is computed for each, but the optimizer does not have them. Make "
            "a new optimizer, or freeze them: requires_grad = False"
        )


def name_parameters(model: BaseModel, parameters: Iterable[Tensor]) -> list[str]:
    """Return the names of parameters in the model, or their own if it lacks them or has two of the same name."""
    names: dict[Tensor, str] = {}
    with contextlib.suppress(ValueError):
        names = {p: name for name, p in model.named_parameters().items()}
    return [names.get(p, p.name or p._description()) for p in parameters]
