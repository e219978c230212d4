"""The record of a step: its calls, its effects on Tensors, and the arrays that it has read."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import Line
from caffelite.core.tensor import Tensor
from caffelite.program.ir import Buffer, RecordedStep


def hash_values(array: np.ndarray) -> int:
    """Return a hash of the bits in an array."""
    return hash(array.tobytes())


class ForeignArray:
    """An array that kernels of a step read, and none of them made, with the values that they read."""

    def __init__(self, owner: np.ndarray) -> None:
        self.owner = owner
        self.reads: list[tuple[np.ndarray, int]] = []  # with hashes of the values

    def add_read(self, array: np.ndarray) -> None:
        self.reads.append((array, hash_values(array)))

    def is_unchanged(self) -> bool:
        """Return whether the array still has the values that each kernel read."""
        return all(hash_values(array) == values for array, values in self.reads)

    def has_same_values(self, other: ForeignArray) -> bool:
        return [values for _, values in self.reads] == [values for _, values in other.reads]


class TensorSnapshot:
    """The state of a Tensor when a recording first read it, and what the step did to its gradient since."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.version = tensor._version[0]
        self.had_gradient: bool | None = None  # whether it had a gradient; None if nobody asked
        self.changes_gradient = False  # whether the step has reset it or contributed to it
        self.data = tensor._data.view(kernels.RecordedArray)

    def record_gradient_read(self, tensor: Tensor) -> None:
        """Record that the step depends on whether the Tensor has a gradient now."""
        if not self.changes_gradient and self.had_gradient is None:
            self.had_gradient = tensor._has_gradient


@dataclass
class CapturedStep:
    """The calls and effects of a step. Once its recording is gone, weak references tell which arrays others use."""

    inputs: list[np.ndarray]
    result: Any
    step: RecordedStep
    buffers: list[Buffer]
    tensors: list[tuple[Tensor, TensorSnapshot]]  # as `forget_dead_tensors` finds them
    snapshots: list[TensorSnapshot]
    attributes: list[kernels.AttributeGuard]  # of Functions and Optimizers that the step depends on
    replaced_ids: set[int]  # of arrays in the user's attributes that the step replaced by its results
    foreign: dict[int, ForeignArray]  # by id, the arrays that kernels read but do not write, and that they did not make
    is_guarded: bool = False  # whether a user's Python decides what the step does
    first_line: Line | None = None  # of this Python, if it has lines
    has_hidden_state: bool = False  # whether this Python reads objects whose changes can't be seen
    hidden: str | None = None  # the name of such an object, if it is a library's
    may_read_inputs: bool = False  # whether this Python may compute with the inputs in NumPy without a word
    has_constants: bool = False  # whether NumPy made arrays in the step that kernels read, always the same
    input_values: tuple[int, ...] = ()  # hashes of the inputs' values, if NumPy may have made arrays of them

    def forget_dead_tensors(self) -> None:
        """Drop the snapshots of Tensors that nobody else uses, since these keep arrays alive."""
        self.tensors = [(t, snapshot) for snapshot in self.snapshots if (t := snapshot.tensor()) is not None]
        self.snapshots = []
