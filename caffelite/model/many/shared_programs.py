"""Models of the same structure share one recording, through a shared model.

Recording takes a large part of the time of a small model. So each thread has a SharedModel: a copy of one of them with
its own Programs. It takes the values of the next model and computes in its place. After training, it gives the values
back. `Signature` says which models are alike, and what their values are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.arrays import ARRAY_TYPES
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.model.model import Model
from caffelite.optimizers import Optimizer
from caffelite.optimizers.schedules import ScheduleState

CONSTANTS: tuple[type, ...] = (bool, int, float, str, bytes, NoneType, frozenset, type, FunctionType)
CONSTANTS += (BuiltinFunctionType, np.dtype, np.generic)


class Parts(NamedTuple):
    """A model, and the optimizer and the loss if it is trained."""

    model: Model
    optimizer: Optimizer | None = None
    loss: Function | None = None


class Signature:
    """A description of a model, its optimizer and its loss; and all their arrays and Tensors, in a fixed order.

    If two Signatures have the same `key`, their steps do the same with different arrays. `key` is None if that can't
    be known: steps call Python, or there is an object of an unknown type. The known types are Functions, Tensors,
    optimizers, arrays, constants, and containers of these. The values of an array count too if steps do not change it,
    because a step may depend on them.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.arrays: list[np.ndarray] = []
        self.tensors: list[Tensor] = []
        self._key: list[Any] = []
        self._numbers_by_id: dict[int, int] = {}  # the order in which objects were met, by their ids
        self._changing = {id(buffer) for buffer in parts.model.buffers().values()}
        self._in_optimizer = False  # there, all arrays change
        is_known = self._visit(parts.model)
        self._in_optimizer = True
        is_known = is_known and self._visit(parts.optimizer)
        self._in_optimizer = False
        self.loss_start = len(self.arrays)  # the loss's arrays follow; models may share them
        self.key = tuple(self._key) if is_known and self._visit(parts.loss) else None

    def _visit(self, x: Any) -> bool:
        """Add the type of x and its contents to the key. Return whether all types are known."""
        key, number = self._key, self._numbers_by_id.get(id(x))
        key.append(type(x))
        if isinstance(x, CONSTANTS):
            key.append(repr(x) if isinstance(x, float | np.floating) else x)  # since 0.0 == −0.0
            return True
        if number is not None:
            key.append(number)
            return True
        self._numbers_by_id[id(x)] = len(self._numbers_by_id)
        if type(x) in ARRAY_TYPES:
            self.arrays.append(x)
            changes = self._in_optimizer or id(x) in self._changing
            key += (x.shape, x.dtype, None if changes else sha256(x.tobytes()).digest())
            return True
        if isinstance(x, Tensor):
            self.tensors.append(x)
            key.append(x._requires_grad)
            parts = x._data, x._gradient, x._used_rows
            self._changing.update(map(id, parts))
            return x.function is None and self._visit_all(parts)
        if isinstance(x, list | tuple):
            key.append(len(x))
            return self._visit_all(x)
        if isinstance(x, dict):
            key += (len(x), *x)
            return self._visit_all(x.values())
        if isinstance(x, Function | Optimizer | ScheduleState):
            attributes = {name: part for name, part in vars(x).items() if name not in x.not_recorded}
            key += (len(attributes), *attributes)
            repeats = not x.runs_in_python and (x.recordable if isinstance(x, Optimizer) else True)
            return repeats and self._visit_all(attributes.values())
        return False

    def _visit_all(self, parts: Iterable[Any]) -> bool:
        return all(self._visit(part) for part in parts)


class SharedModel:
    """Copies of a model and its parts, which compute in place of the parts of any model of the same Signature."""

    def __init__(self, signature: Signature) -> None:
        self.signature = Signature(copy.deepcopy(signature.parts))

    @contextmanager
    def borrow_values(self, signature: Signature) -> Iterator[Parts]:
        """Yield the copies with the values of these parts, which get the new values at the end."""
        copies = self.load_values(signature)
        try:
            yield copies
        finally:
            for array, original in zip(
                self.signature.arrays[: self.signature.loss_start], signature.arrays, strict=False
            ):
                if original.flags.writeable:  # a read-only one has not changed
                    original[...] = array
            for t, source in zip(self.signature.tensors, signature.tensors, strict=True):
                source._has_gradient, source._version[0] = t._has_gradient, t._version[0]

    def load_values(self, signature: Signature) -> Parts:
        """Return the copies, with the values of these parts."""
        for array, original in zip(self.signature.arrays, signature.arrays, strict=True):
            array[...] = original
        for t, source in zip(self.signature.tensors, signature.tensors, strict=True):
            t._has_gradient, t._version[0] = source._has_gradient, source._version[0]
        return self.signature.parts


def share_model(signature: Signature) -> SharedModel | None:
    """Return a SharedModel for these parts; None if copies of them get another key."""
    try:
        shared = SharedModel(signature)
    except Exception:
        return None
    return shared if shared.signature.key == signature.key else None
