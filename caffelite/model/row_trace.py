"""RowTrace: what a model computes for a block of rows, and whether each row of the outputs comes from the same row.

`predict` may compute more rows than `batch_size` in blocks only if no row depends on another one. But in a `call`, rows
may belong together: `a @ b.T`, `x - x.mean(axis=0)`, `x / len(x)`. Two blocks of the user's rows have to show that they
do not. The blocks have different sizes:

    1. Each Function that `call` applies keeps rows apart, as `_keeps_rows_apart` knows it.
    2. Both blocks apply the same Functions, and use the same numbers. Only lengths may follow the number of rows.

In doubt, rows belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import normalize_axes
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.functions.activation import AxisFunction
from caffelite.functions.arithmetic import BroadcastFunction, Negative
from caffelite.functions.embedding import Embedding
from caffelite.functions.indexing import FULL_SLICE, Concatenate, Index, Split
from caffelite.functions.linear import MatMul
from caffelite.functions.math import FUNCTIONS
from caffelite.functions.reduction import CumSum, Reduction
from caffelite.functions.shape import Flip, Repeat, ToShape, Transpose
from caffelite.model.tracing import to_list, unwrap_tensor
from caffelite.program.ir import get_owner
from caffelite.program.recording import Recording

ELEMENTWISE = (*FUNCTIONS.values(), Negative, Embedding)  # of one input, with any number of axes
PLAIN = (bool, int, float, str, type(None), tuple, slice)


class RowTrace:
    """The Functions that a recorded step applies to rows, and whether the rows stay apart."""

    def __init__(self, recording: Recording, inputs: Sequence[Any]) -> None:
        self.rows = len(inputs[0])
        self.are_apart = True
        self.steps: list[tuple[type, Any, list[Any]]] = []  # Functions, with their attributes and constant operands
        self._matches: WeakSet[RowTrace] = WeakSet()
        self._recording = recording
        self._sparse = [x for x in inputs if not isinstance(x, np.ndarray)]
        self._row_arrays = {_memory_key(x): x for x in inputs if isinstance(x, np.ndarray)}
        self._owners = {id(get_owner(x)) for x in self._row_arrays.values()}
        self._constants: list[np.ndarray] = []  # operands that no Function has computed from rows
        self._constant_owners: set[int] = set()  # results of Functions of constants
        recording.observer = self._note

    def finish(self, outputs: Any) -> None:
        """Look at the outputs. Afterwards, the trace needs no array of the step."""
        self._recording.observer = None
        written = self._recording._written_ids() - self._constant_owners
        self.are_apart = (
            self.are_apart
            and all(self._is_rows(unwrap_tensor(y)) for y in to_list(outputs))
            and not any(id(get_owner(x)) in written for x in self._constants)  # such as the `argmax` of rows
        )
        del self._recording, self._sparse, self._row_arrays, self._constants

    def matches(self, other: RowTrace) -> bool:
        """Return whether the other trace is of the same Functions with the same numbers, apart from lengths."""
        if other is self or other in self._matches:
            return True
        is_match = len(self.steps) == len(other.steps) and all(
            kind is other_kind
            and _match(attributes, other_attributes, self, other)
            and _match(operands, other_operands, self, other)
            for (kind, attributes, operands), (other_kind, other_attributes, other_operands) in zip(
                self.steps, other.steps, strict=True
            )
        )
        if is_match:
            self._matches.add(other)
        return is_match

    def _note(self, function: Function, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
        """Note an application. Its results are rows if one input is, and constants otherwise."""
        if not self.are_apart:
            return
        operands, arrays = [unwrap_tensor(x) for x in inputs], [y._data for y in results]
        if isinstance(function, Index):
            operands += [entry for entry in function.index if isinstance(entry, np.ndarray)]
        are_rows = [self._is_rows(x) for x in operands]
        constants = [x for x, is_rows in zip(operands, are_rows, strict=True) if not is_rows]
        self._constants += [x for x in constants if isinstance(x, np.ndarray)]
        known = [x for x in constants if not (isinstance(x, np.ndarray) and id(get_owner(x)) in self._constant_owners)]
        attributes = {name: x for name, x in vars(function).items() if type(x) in PLAIN}
        self.steps.append((type(function), attributes, known))
        if any(isinstance(x, np.ndarray) and id(get_owner(x)) in self._owners for x in constants):
            self.are_apart = False  # a view of rows that no Function has made
        elif not any(are_rows):
            self._constants += arrays  # keeps them alive, and so their ids
            self._constant_owners |= {id(get_owner(y)) for y in arrays}
        elif _keeps_rows_apart(function, operands, are_rows, arrays, self.rows):
            self._row_arrays |= {_memory_key(y): y for y in arrays}
            self._owners |= {id(get_owner(y)) for y in arrays}
        else:
            self.are_apart = False

    def _is_rows(self, x: Any) -> bool:
        if isinstance(x, np.ndarray):
            return _memory_key(x) in self._row_arrays
        return any(x is sparse for sparse in self._sparse)


def _memory_key(array: np.ndarray) -> tuple[Any, ...]:
    return kernels.address(array), array.shape, array.strides, array.dtype


def _match(a: Any, b: Any, trace: RowTrace, other: RowTrace, may_be_length: bool = False) -> bool:
    """Return whether both are the same. Integers in a tuple, such as a shape, may be in proportion to the rows."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_match(a[name], b[name], trace, other) for name in a)
    if isinstance(a, slice):
        return _match((a.start, a.stop, a.step), (b.start, b.stop, b.step), trace, other)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(
            _match(x, y, trace, other, may_be_length=type(a) is tuple) for x, y in zip(a, b, strict=True)
        )
    if isinstance(a, np.ndarray):
        if a.shape[:1] == (trace.rows,) and b.shape[:1] == (other.rows,):  # equal rows: see `_keeps_rows_apart`
            a, b = a[0], b[0]
        return a is b or bool(np.array_equal(a, b))
    return bool(a == b) or (may_be_length and type(a) is int and a * other.rows == b * trace.rows)


def _keeps_rows_apart(
    function: Function, operands: list[Any], are_rows: list[bool], results: list[np.ndarray], n: int
) -> bool:
    """Return whether row i of each result is computed from row i of those operands that are rows, for n rows."""
    if not all(y.shape[:1] == (n,) for y in results):
        return False
    rows = [x for x, is_rows in zip(operands, are_rows, strict=True) if is_rows]
    if isinstance(function, MatMul):
        a, b = operands
        if not are_rows[1]:
            return bool(a.ndim >= 2 and (b.ndim <= 2 or b.ndim < a.ndim))
        return bool(b.ndim >= 3 and (a.ndim == b.ndim if are_rows[0] else a.ndim < b.ndim))
    constants = [x for x, is_rows in zip(operands, are_rows, strict=True) if not is_rows and isinstance(x, np.ndarray)]
    if not isinstance(function, Index) and any(x.shape[:1] == (n,) and not (x == x[0]).all() for x in constants):
        return False  # such as the states of n certain rows
    if isinstance(function, BroadcastFunction):
        return all(x.ndim == results[0].ndim for x in rows)
    if isinstance(function, Reduction | CumSum | Flip | AxisFunction | Split | Repeat):
        return 0 not in normalize_axes(function.axis, rows[0].ndim)
    if isinstance(function, Concatenate):
        return 0 not in normalize_axes(function.axis, results[0].ndim)
    if isinstance(function, Transpose):
        return function.axes is not None and function.axes[0] % rows[0].ndim == 0
    if isinstance(function, Index):
        return _takes_all_rows(function.index, rows[0].ndim)
    if isinstance(function, ToShape) or type(function) in ELEMENTWISE:
        return True
    return all(x.ndim >= 2 for x in rows) and all(f.is_rowwise() for f in (function, *function._descendants()))


def _takes_all_rows(index: Iterable[Any], ndim: int) -> bool:
    """Return whether an index takes all rows in order, and no array in it moves their axis."""
    first, *rest = [*index, ...]
    others = [entry for entry in rest if not isinstance(entry, slice) and entry is not ...]
    if len(others) > 1 and any(isinstance(entry, np.ndarray | list) for entry in others):
        return False
    if first is ...:
        return len([entry for entry in rest if entry is not None and entry is not ...]) < ndim
    return isinstance(first, slice) and first == FULL_SLICE
