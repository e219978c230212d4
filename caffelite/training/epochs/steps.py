"""The base of all Epochs: a step, recorded once for each shape of batch, and the sums that it measures."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.shard import WHOLE_BATCH, PartialShard, use_shard
from caffelite.data.generator import Layout
from caffelite.program import Program
from caffelite.program.recording import Recording
from caffelite.training.epochs.base import Epochs, concat_rows, split_rows
from caffelite.training.process_group import ProcessGroup
from caffelite.training.step import Step


class RecordedEpochs(Epochs):
    """Epochs of a step that is recorded once for each shape of batch, and then replayed."""

    def __init__(self, step: Step, processes: ProcessGroup) -> None:
        self.step, self.processes = step, processes
        self.model, self.objective = step.model, step.objective
        self.programs = self.model._state.programs
        self.cursor = self.programs.cursor

    def take_step(self, layout: Layout, shard: PartialShard | None, *columns: np.ndarray) -> Any:
        """Take a step on the columns of a batch, or of a part of it. Return the outputs if the epoch needs them."""
        batch = layout.batch(columns)
        with use_shard(shard or WHOLE_BATCH):
            outputs = self.step(batch)
            if self.step.is_training:
                warn_of_untrained(self.step)
            self.step.measure(self.cursor, outputs, batch)
        return outputs if self.objective.epoch_metrics else None

    def find_program(self, name: str, layout: Any, columns: list[np.ndarray], rows: int) -> Program:
        """Return the Program for steps of this name on batches of `rows` rows of these columns.

        `layout` says which columns these are. For a step on several batches, it describes each of them.
        """
        dependencies = (*self.model.all_functions(), *self.step.dependencies())
        specs = [(column.shape[1:], column.dtype) for column in columns]
        key = (self.model.structure(), rows, layout, *self.step.key(), *specs)
        return self.programs.find(Program, dependencies, name, *key)


class EpochAccumulator:
    """The sums of an epoch over an iterable."""

    def __init__(self, step: Step, processes: ProcessGroup) -> None:
        self.step, self.processes, self.objective = step, processes, step.objective
        self.means = np.zeros((1, self.objective.num_sums, 2))
        self.batches = 0
        self.pieces: list[dict[str, np.ndarray]] = []  # outputs and targets, for the metrics of the epoch

    def loss(self) -> float:
        """Return the mean loss so far, or NaN before the first step."""
        return self.objective.mean_loss(self.means)

    def results(self, location: str) -> np.ndarray:
        """Return a row of loss and metrics. Raise ValueError if there were no batches."""
        if self.batches == 0:
            raise ValueError(
                f"there were no batches {location}; an iterator gives its batches only once. Give a list, or an object "
                "whose __iter__ returns a new iterator: these give their batches in every epoch"
            )
        sums = self.processes.reduce_sums(self.step, self.means)
        if not self.objective.epoch_metrics:
            return self.objective.means(sums)
        epoch_rows = {name: self.processes.gather_rows(rows) for name, rows in concat_rows(self.pieces).items()}
        return self.step.results(sums, *split_rows(epoch_rows))

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


def _rows_text(shapes: list[tuple]) -> str:
    return " and ".join(str(("n", *shape)).replace("'", "") for shape in shapes)


def warn_of_untrained(step: Step) -> None:
    """Warn of parameters that get a gradient but are not in the optimizer.

    While a step is recorded, it checks all parameters in the step, and otherwise the model's parameters.
    """
    recording, trained = kernels.recorder(), step.optimizer.parameters
    if isinstance(recording, Recording):
        untrained = recording.find_untrained(trained)
    else:
        known = set(trained)
        untrained = [p for p in step.model.parameters() if p.requires_grad and p.grad is not None and p not in known]
    if untrained:
        names = {p: name for name, p in step.model.named_parameters().items()}
        names_text = ", ".join([names.get(p, p.name or repr(p)) for p in untrained])
        step.objective.warn_once(
            f"not trained: {names_text}. A gradient is computed for each, but the optimizer does not have them. Make "
            "a new optimizer, or freeze them: requires_grad = False"
        )
