"""RowCheck: check all rows in memory as soon as a batch shows the outputs of the model, before its step.

Only a batch shows the outputs of a model in which users' Python decides. So `fit` and `evaluate` cannot check labels
and indices before they apply the model. They do it between the forward pass of the first batch and the loss. If this
step is replayed, its recording knows the outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.function import Function
from caffelite.data.generator import Batch
from caffelite.data.lengths import follow_lengths
from caffelite.data.out_of_core import Source
from caffelite.program.ir import get_owner
from caffelite.program.recording import Recording
from caffelite.training.inputs import check_counts, check_index_limits, check_targets, largest_indices


class Limits(NamedTuple):
    """Limits of rows that a step shows: the largest index at each place of each input, and the shape of the outputs.

    The shape is None if the outputs do not have a row for each row of the batch, or have its length elsewhere. Then
    another batch may have other outputs, and each step checks its own labels.
    """

    indices: list[np.ndarray | None]
    outputs_shape: Any
    width: int | None  # of the batch's first input, if it has axis 1


class RowCheck:
    """Checks rows that wait for the outputs of a batch, with the Functions of indices that the batch goes through."""

    def __init__(self, loss: Function) -> None:
        self.loss = loss
        self.pending: list[tuple[str, Batch]] = []  # the rows, with the names of their inputs in messages
        self.lookups: list[tuple[Function, tuple[Any, ...]]] = []
        self.limits: Limits | None = None  # of the last step in Python

    def watch(self) -> None:
        """Note the Functions of indices that the step of this thread applies, if it is recorded."""
        recording = kernels.recorder()
        if isinstance(recording, Recording):
            self.lookups, recording.observer = [], self._note_lookup

    def _note_lookup(self, function: Function, inputs: tuple[Any, ...], results: tuple[Any, ...]) -> None:
        if function.index_count is not None:
            self.lookups.append((function, inputs))

    def check_batch(self, outputs: Any, batch: Batch) -> None:
        """Check all pending rows against the outputs of a batch, before its loss is computed."""
        recording = kernels.recorder()
        if isinstance(recording, Recording):
            recording.observer = None
        arrays = [get_owner(x) if isinstance(x, np.ndarray) and self.lookups else None for x in batch.inputs]
        indices = [None if array is None else largest_indices(self.lookups, array) for array in arrays]
        shapes = [y.shape for y in (outputs if isinstance(outputs, tuple) else (outputs,))]
        check_counts(self.loss, len(shapes), len(batch.targets))
        outputs_shape: Any = None
        if all(shape[:1] == (batch.rows,) and batch.rows not in shape[1:] for shape in shapes):
            outputs_shape = tuple([(None, *shape[1:]) for shape in shapes])
            outputs_shape = outputs_shape if isinstance(outputs, tuple) else outputs_shape[0]
        width = batch.inputs[0].shape[1] if batch.inputs[0].ndim > 1 else None
        self.limits, self.lookups = Limits(indices, outputs_shape, width), []
        with kernels.pause_recording():  # a replay does not check all rows again
            self.check_pending(self.limits)

    def check_pending(self, limits: Limits) -> None:
        """Raise IndexError or ValueError for the first pending row with an index or a label beyond the limits."""
        pending, self.pending = self.pending, []
        for name, data in [(name, piece) for name, rows in pending for piece in _split_width(rows, limits.width)]:
            pairs = zip(limits.indices, data.inputs, strict=True)
            fits = [limit if limit is not None and limit.shape == x.shape[1:] else None for limit, x in pairs]
            check_index_limits(name, data.inputs, fits)
            check_targets(self.loss, limits.outputs_shape, data.targets)


def _split_width(data: Batch, width: int | None) -> list[Batch]:
    """Return all targets in pieces that are as wide as the batch, if it was cut, with the first part of the inputs."""
    full = data.inputs[0].shape[1] if data.inputs[0].ndim > 1 else 0
    if width is None or full <= width or Source in map(type, data.columns()):
        return [data]

    def cut(columns: tuple[Any, ...], start: int) -> tuple[Any, ...]:
        pairs = zip(columns, follow_lengths(columns, full), strict=True)
        return tuple([x[:, start : start + width] if is_cut else x for x, is_cut in pairs])

    starts = [*range(0, full - width, width), full - width]
    return [Batch(cut(data.inputs, 0), cut(data.targets, start)) for start in starts]
