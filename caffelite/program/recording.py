"""Recording: write down what a step does while it runs. A Program can then run the step again.

A thread inside a `Recording` records three things. Kernels record their calls (`_kernels/record.pyx`). Tensors record
that their arrays or gradients are read. Functions and Optimizers that are not declared recordable become a
`PythonCallback`.
"""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from caffelite import _kernels as kernels
from caffelite._support.warnings import Line, user_line
from caffelite.core.python_callback import PythonCallback
from caffelite.core.tensor import Tensor
from caffelite.program.ir import Buffer, RecordedStep, get_owner, lower_entries


class Obstacle:
    """Why a step can't be replayed, and, if known, the user's line that a replay would not repeat."""

    def __init__(self, reason: str, line: Line | None = None) -> None:
        self.reason, self.line = reason, line


def is_internal(code: Any) -> bool:
    """Return whether caffelite defines this class or function. (`exec` makes functions without a module.)"""
    return (getattr(code, "__module__", None) or "").startswith("caffelite.")


class Recording(kernels.Recorder):
    """Record what this thread does inside a `with`. Raise RuntimeError if this thread is recording already.

    A step may do something that a replay would not repeat. If the recording is `strict`, this raises TypeError.
    Otherwise the recording keeps it as the `obstacle`, and the step goes on. Its results are right; only a replay is
    not possible.
    """

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self.obstacle: Obstacle | None = None
        self._guards: Any = None  # the values that the user's code reads to decide; None without such code
        self.entries: list[kernels.RecordedCall | PythonCallback] = []
        self._snapshots: dict[int, TensorSnapshot] = {}
        self._copies: dict[int, tuple[Any, Any]] = {}  # copies of Functions, with their originals
        self._optimizers: dict[int, Any] = {}
        self._unrepeatable = False
        # Gets each Function with its inputs and results.
        self.observer: Callable[[Any, tuple[Any, ...], tuple[Tensor, ...]], None] | None = None

    def snapshot(self, tensor: Tensor) -> TensorSnapshot:
        """Record that a Tensor's array is read, and return its snapshot, which has the state from before the step."""
        snapshot = self._snapshots.get(id(tensor))
        if snapshot is None or snapshot.tensor() is not tensor:
            snapshot = self._snapshots[id(tensor)] = TensorSnapshot(tensor)
        return snapshot

    def refresh_arrays(self) -> None:
        """Read the arrays of all these Tensors again. Call this if they were moved before a kernel used them."""
        for snapshot in self._snapshots.values():
            if (tensor := snapshot.tensor()) is not None:
                snapshot.data = tensor._data.view(kernels.RecordedArray)

    def record_obstacle(self, reason: str) -> None:
        """Record the obstacle that a replay would not repeat this. Raise TypeError instead if `strict`."""
        obstacle = Obstacle(reason, user_line())
        if self.strict:
            raise TypeError(reason if obstacle.line is None else f"{reason} ({obstacle.line})")
        self.obstacle = self.obstacle or obstacle

    def line(self) -> Line | None:
        """Return the user's line that is running, or None if no code of the user takes part in the step."""
        return None if self._guards is None else user_line(max_depth=8)  # the line that calls a kernel, not `fit`

    def record_copy(self, copy: Any, original: Any) -> None:
        """Record that a copy of a Function is applied, so the step depends on the Function's attributes.

        If the original is a copy itself, the Function that it was copied from is recorded.
        """
        first = self.original(original)
        original = original if first is None else first
        self._copies[id(copy)] = (copy, original)
        if not original.runs_in_python:
            self.guard_code(original.python_code())

    def guard_code(self, code: Any) -> None:
        """Guard the values that this code reads to decide what the step does. Call this before the code runs.

        caffelite's own code needs no guard.
        """
        if is_internal(code):
            return
        if self._guards is None:
            from caffelite.program.guards.state import StateGuards  # most steps do not need it

            self._guards = StateGuards()
        self._guards.add(code)

    def _written_ids(self) -> set[int]:
        """Return the ids of the arrays that kernels wrote into; for a view, the id of its memory's owner."""
        calls = [entry for entry in self.entries if isinstance(entry, kernels.RecordedCall)]
        return {id(get_owner(a)) for c in calls for i, a in enumerate(c.arrays) if a is not None and c.writes >> i & 1}

    def find_change(self) -> Obstacle | None:
        """Return the obstacle that the step changes a value which it also reads to decide; None if it does not."""
        if self._guards is None or self._unrepeatable:  # an unrepeatable step runs in Python every time
            return None
        reason = self._guards.find_change(self._written_ids)
        return None if reason is None else Obstacle(*reason)

    def record_application(self, function: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
        """Record that a Function was applied to Tensors, arrays, numbers or None. Its kernels are recorded already."""
        if self.observer is not None:
            self.observer(function, inputs, results)

    def record_optimizer(self, optimizer: Any) -> None:
        """Record that an optimizer makes its step, so the recorded step depends on the optimizer's attributes."""
        self._optimizers[id(optimizer)] = optimizer
        if not is_internal(type(optimizer)):
            self.guard_code(types.MethodType(inspect.unwrap(type(optimizer).step), optimizer))

    def mark_unrepeatable(self) -> None:
        """Record that Python decides in every step what comes next: the step must be recorded again each time."""
        self._unrepeatable = True

    def original(self, copy: Any) -> Any:
        """Return the Function that this applied Function was copied from; None if it is not a copy."""
        return self._copies.get(id(copy), (None, None))[1]

    def find_untrained(self, trained: Iterable[Tensor]) -> list[Tensor]:
        """Return the leaves that got a gradient in this step so far but are not in `trained`."""
        ids = set(map(id, trained))
        leaves = [snapshot.tensor() for snapshot in self._snapshots.values() if snapshot.changes_gradient]
        return [t for t in leaves if t is not None and id(t) not in ids and t._requires_grad and t.function is None]

    def finish(self, result: Any) -> CapturedStep:
        """Return what the step did, with its result. The recording drops its arrays, and is of no use afterwards."""
        replaced = [] if self._guards is None else self._guards.replaced_values
        replaced_ids = {id(get_owner(x._data if isinstance(x, Tensor) else x)) for x in replaced}
        attributes = self.attribute_guards()
        step, buffers = lower_entries(self.entries)
        return CapturedStep(result, step, buffers, [], list(self._snapshots.values()), attributes, replaced_ids)

    def attribute_guards(self) -> list[kernels.AttributeGuard]:
        """Return the attributes of Functions and Optimizers that the step depends on."""
        guards = [
            _attribute_guard(original, original._used_attributes(copy)) for copy, original in self._copies.values()
        ]
        guards += [_attribute_guard(optimizer, vars(optimizer)) for optimizer in self._optimizers.values()]
        if self._guards is not None:
            self._guards.table.exclude({id(original) for _, original in self._copies.values()})
            guards.append(self._guards.table)
        if self._unrepeatable:  # this entry needs an object that is gone, so the Program always records again
            guards.append(kernels.AttributeGuard(Recording(), {}, needed=True))
        return guards


def _attribute_guard(owner: Any, attributes: dict[str, Any]) -> kernels.AttributeGuard:
    """Return the attributes' values, and their number: a new attribute of the object may hide one of its class."""
    count = -1 if owner.runs_in_python else len(vars(owner))
    return kernels.AttributeGuard(
        owner, {name: x for name, x in attributes.items() if name not in owner.not_recorded}, count=count
    )


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

    result: Any
    step: RecordedStep
    buffers: list[Buffer]
    tensors: list[tuple[Tensor, TensorSnapshot]]  # as `forget_dead_tensors` finds them
    snapshots: list[TensorSnapshot]
    attributes: list[kernels.AttributeGuard]  # of Functions and Optimizers that the step depends on
    replaced_ids: set[int]  # of arrays in the user's attributes that the step replaced by its results

    def forget_dead_tensors(self) -> None:
        """Drop the snapshots of Tensors that nobody else uses, since these keep arrays alive."""
        self.tensors = [(t, snapshot) for snapshot in self.snapshots if (t := snapshot.tensor()) is not None]
        self.snapshots = []
