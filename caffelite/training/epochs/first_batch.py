"""FirstBatch: check all rows in memory when the outputs of the first batch are there, before its step.

Only a batch shows the outputs of a model in which users' Python decides. So `fit` and `evaluate` cannot check labels
and indices before they apply the model. They do it between the first forward pass and the loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.function import Function
from caffelite.data.generator import Batch
from caffelite.program.ir import get_owner
from caffelite.program.recording import Recording
from caffelite.training.inputs import check_counts, check_index_limits, check_targets, largest_indices


class FirstBatch:
    """The rows that wait for the outputs of the first batch, and the Functions of indices that were applied to it."""

    def __init__(self, loss: Function) -> None:
        self.loss = loss
        self.data: list[tuple[str, Batch]] = []  # the rows, with the names of their inputs in messages
        self.lookups: list[tuple[Function, tuple[Any, ...]]] = []

    def watch(self) -> None:
        """Note the Functions of indices that the step of this thread applies, if it is recorded."""
        recording = kernels.recorder()
        if isinstance(recording, Recording):
            recording.observer = self._note_lookup

    def _note_lookup(self, function: Function, inputs: tuple[Any, ...], results: tuple[Any, ...]) -> None:
        if function.index_count is not None:
            self.lookups.append((function, inputs))

    def check(self, outputs: Any, batch: Batch) -> None:
        """Raise IndexError or ValueError for the first row whose index or label does not fit the outputs of a batch.

        If the outputs do not have a row for each row of the batch, or their shape has its length elsewhere, another
        batch may have other outputs. Then each step checks its own labels.
        """
        recording = kernels.recorder()
        if isinstance(recording, Recording):
            recording.observer = None
        if self.lookups:
            self._check_indices(batch.inputs)
        shapes = [y.shape for y in (outputs if isinstance(outputs, tuple) else (outputs,))]
        check_counts(self.loss, len(shapes), len(batch.targets))
        if any(shape[:1] != (batch.rows,) or batch.rows in shape[1:] for shape in shapes):
            return
        row_shapes = [(None, *shape[1:]) for shape in shapes]
        shape = tuple(row_shapes) if isinstance(outputs, tuple) else row_shapes[0]
        with kernels.pause_recording():  # a replay does not check all rows again
            for _, data in self.data:
                check_targets(self.loss, shape, data.targets)

    def _check_indices(self, inputs: tuple[Any, ...]) -> None:
        """Raise IndexError for an index that is too large for a Function that got it in the first batch."""
        limits = [largest_indices(self.lookups, get_owner(x)) if isinstance(x, np.ndarray) else None for x in inputs]
        for name, data in self.data:  # by NumPy, which no recording notes
            pairs = zip(limits, data.inputs, strict=True)
            fits = [limit if limit is not None and limit.shape == x.shape[1:] else None for limit, x in pairs]
            check_index_limits(name, data.inputs, fits)
