"""RowCheck: check all rows in memory as soon as a batch shows the outputs of the model, before its step.

Only a batch shows the outputs of a model in which the user's Python code decides. So `fit` and `evaluate` cannot check
labels and indices before they apply the model. They do it between the forward pass of the first batch and the loss. If
this step is replayed, its recording knows the outputs.
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
        for name, data in pending:
            inputs, outputs_shape = _fit_width(limits, data)
            pairs = zip(limits.indices, inputs, strict=True)
            fits = [limit if limit is not None and limit.shape == x.shape[1:] else None for limit, x in pairs]
            check_index_limits(name, inputs, fits)
            check_targets(self.loss, outputs_shape, data.targets)


def _fit_width(limits: Limits, data: Batch) -> tuple[tuple[Any, ...], Any]:
    """Return inputs as wide as the batch, if it was cut, and the shape of the outputs of rows as wide as the data."""
    width, full = limits.width, data.inputs[0].shape[1] if data.inputs[0].ndim > 1 else None
    if width is None or full is None or width == full or limits.outputs_shape is None:
        return data.inputs, limits.outputs_shape
    pairs = zip(data.inputs, follow_lengths(data.inputs, full), strict=True)
    inputs = tuple([x[:, :width] if is_cut and not isinstance(x, Source) else x for x, is_cut in pairs])
    is_single = not isinstance(limits.outputs_shape[0], tuple)
    shapes = (limits.outputs_shape,) if is_single else limits.outputs_shape
    follows = [*follow_lengths(data.targets, full), *[False] * len(shapes)]  # there may be more outputs than targets
    pairs = zip(shapes, follows, strict=False)
    shapes = tuple([(s[0], full, *s[2:]) if is_cut and s[1:2] == (width,) else s for s, is_cut in pairs])
    return inputs, shapes[0] if is_single else shapes
