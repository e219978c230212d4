"""Models that are made alike share one recording, through a stand-in.

Recording takes a large part of the time of a small model. So each thread has a stand-in: a copy of one of these models
with its own Programs. The stand-in takes the values of the next model and computes in its place. After a training it
gives the values back. `Form` says which models are alike, and what their values are.
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


class Form:
    """A description of a model, its optimizer and its loss; and all their arrays and Tensors, in a fixed order.

    If two Forms have the same `text`, their steps do the same, each with its own arrays. `text` is None if that can't
    be known: steps call Python, or there is an object of an unknown type. The known types are Functions, Tensors,
    optimizers, arrays, constants, and containers of these. The values of an array count too if steps do not change it,
    because a step may depend on them.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.arrays: list[np.ndarray] = []
        self.tensors: list[Tensor] = []
        self._text: list[Any] = []
        self._numbers: dict[int, int] = {}  # the order in which objects were met, by their ids
        self._changing = {id(buffer) for buffer in parts.model.buffers().values()}
        self._in_optimizer = False  # there, all arrays change
        is_known = self._note(parts.model)
        self._in_optimizer = True
        is_known = is_known and self._note(parts.optimizer)
        self._in_optimizer = False
        self.own = len(self.arrays)  # the model's and the optimizer's; models may share the loss
        self.text = tuple(self._text) if is_known and self._note(parts.loss) else None

    def _note(self, x: Any) -> bool:
        """Note the kind of x and its contents. Return whether all of that is known."""
        text, number = self._text, self._numbers.get(id(x))
        text.append(type(x))
        if isinstance(x, CONSTANTS):
            text.append(repr(x) if isinstance(x, float | np.floating) else x)  # since 0.0 == −0.0
            return True
        if number is not None:
            text.append(number)
            return True
        self._numbers[id(x)] = len(self._numbers)
        if type(x) in ARRAY_TYPES:
            self.arrays.append(x)
            changes = self._in_optimizer or id(x) in self._changing
            text += (x.shape, x.dtype, None if changes else sha256(x.tobytes()).digest())
            return True
        if isinstance(x, Tensor):
            self.tensors.append(x)
            text.append(x._requires_grad)
            parts = x._data, x._gradient, x._used_rows
            self._changing.update(map(id, parts))
            return x.function is None and self._note_all(parts)
        if isinstance(x, list | tuple):
            text.append(len(x))
            return self._note_all(x)
        if isinstance(x, dict):
            text += (len(x), *x)
            return self._note_all(x.values())
        if isinstance(x, Function | Optimizer | ScheduleState):
            own = {name: part for name, part in vars(x).items() if name not in x.not_recorded}
            text += (len(own), *own)
            repeats = not x.runs_in_python and (x.recordable if isinstance(x, Optimizer) else True)
            return repeats and self._note_all(own.values())
        return False

    def _note_all(self, parts: Iterable[Any]) -> bool:
        return all(self._note(part) for part in parts)


class StandIn:
    """Copies of a Form's parts, which compute in place of the parts of any Form that is made alike."""

    def __init__(self, form: Form) -> None:
        self.form = Form(copy.deepcopy(form.parts))

    @contextmanager
    def of(self, form: Form) -> Iterator[Parts]:
        """Give the copies with the values of these parts, which get them back at the end."""
        parts = self.with_values_of(form)
        try:
            yield parts
        finally:
            for mine, theirs in zip(self.form.arrays[: self.form.own], form.arrays, strict=False):
                if theirs.flags.writeable:  # a read-only one has not changed
                    theirs[...] = mine
            for t, other in zip(self.form.tensors, form.tensors, strict=True):
                other._has_gradient, other._version[0] = t._has_gradient, t._version[0]

    def with_values_of(self, form: Form) -> Parts:
        """Return the copies, with the values of these parts."""
        for mine, theirs in zip(self.form.arrays, form.arrays, strict=True):
            mine[...] = theirs
        for t, other in zip(self.form.tensors, form.tensors, strict=True):
            t._has_gradient, t._version[0] = other._has_gradient, other._version[0]
        return self.form.parts


def stand_in(form: Form) -> StandIn | None:
    """Return a StandIn for these parts; None if copies of them are not made alike."""
    try:
        made = StandIn(form)
    except Exception:
        return None
    return made if made.form.text == form.text else None
