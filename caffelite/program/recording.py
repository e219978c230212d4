"""Recording: write down what a step does while it runs. A Program can then run the step again.

A thread inside a `Recording` records three things. Kernels record their calls (`_kernels/record.pyx`). Tensors record
that their arrays or gradients are read. Functions and Optimizers that are not declared recordable become a
`PythonCallback`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import Line, user_line
from caffelite.core.python_callback import PythonCallback
from caffelite.core.tensor import Tensor
from caffelite.program.captured_step import CapturedStep, ForeignArray, TensorSnapshot, hash_values
from caffelite.program.guards.code import ITEM_ASSIGNMENT
from caffelite.program.ir import get_owner, lower_entries, written_ids
from caffelite.program.obstacle import Obstacle

# NumPy's functions that make a plain array of a recorded one, and do not tell it.
_CONVERSIONS = (
    *("array", "asarray", "ascontiguousarray", "asfortranarray", "require", "frombuffer", "memoryview"),
    *("view", "copyto", ITEM_ASSIGNMENT),
)


def is_internal(code: Any) -> bool:
    """Return whether caffelite defines this class or function. (`exec` makes functions without a module.)"""
    return (getattr(code, "__module__", None) or "").startswith("caffelite.")


class Recording(kernels.Recorder):
    """Record what this thread does inside a `with`. Raise RuntimeError if this thread is recording already.

    A step may do something that a replay would not repeat. If the recording is `strict`, this raises TypeError.
    Otherwise the recording keeps it in `obstacles`, and the step goes on. Its results are right; only a replay is
    not possible.
    """

    def __init__(self, strict: bool = True, previous: CapturedStep | None = None, keeps_lines: bool = False) -> None:
        self.strict, self.keeps_lines = strict, keeps_lines
        self.obstacles: list[Obstacle] = []
        self._guards: Any = None  # the values that the user's code reads to decide; None without such code
        self.entries: list[kernels.RecordedCall | PythonCallback] = []
        self._snapshots: dict[int, TensorSnapshot] = {}
        self._copies: dict[int, tuple[Any, Any]] = {}  # copies of Functions, with their originals
        self._optimizers: dict[int, Any] = {}
        self._unrepeatable = False
        self._foreign: dict[int, ForeignArray] = {}  # by the ids of the arrays that own the memory
        self._written: set[int] = set()  # the ids of the arrays that the first `_num_seen` entries write into
        self._num_seen = 0
        # The arrays that the step before read, with their values at the beginning of this step.
        foreign = [] if previous is None else previous.foreign.values()
        self._values_before = [(x.owner, hash_values(x.owner)) for x in foreign]
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
            raise TypeError(str(obstacle))
        self.obstacles.append(obstacle)

    def line(self) -> Line | None:
        """Return the user's line that is running, if it calls a kernel, and not just `fit`."""
        return user_line(max_depth=8)

    def record_read(self, array: np.ndarray, updates: bool = False) -> None:
        """Record an array that a kernel reads, with its values, unless a kernel has made it or updates it now."""
        owner = get_owner(array)
        if not updates and id(owner) not in self._written_ids():
            self._foreign.setdefault(id(owner), ForeignArray(owner)).add_read(array)

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
            self.watches_reads = True
        self._guards.add(code)

    def _written_ids(self) -> set[int]:
        """Return the ids of the arrays that kernels wrote into so far."""
        self._written |= written_ids(self.entries[self._num_seen :])
        self._num_seen = len(self.entries)
        return self._written

    def find_change(self) -> Obstacle | None:
        """Return the obstacle that the step changes a value which it also reads to decide; None if it does not."""
        if self._guards is None or self._unrepeatable:  # an unrepeatable step runs in Python every time
            return None
        reason = self._guards.find_change(self._written_ids())
        if reason is None and not self._keeps_foreign_arrays():
            text = "it changes an array in place in Python, and a replay would not. Use caffelite's kernels for this"
            reason = text, self._guards.find_line()
        return None if reason is None else Obstacle(*reason)

    def _keeps_foreign_arrays(self) -> bool:
        """Return whether no array that kernels read has changed in the step, unless a kernel changed it."""
        written = self._written_ids()
        if not all(x.is_unchanged() for x in self._foreign.values() if id(x.owner) not in written):
            return False
        values = [(x, before) for x, before in self._values_before if id(x) in self._foreign and id(x) not in written]
        return all(hash_values(owner) == before for owner, before in values)

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

    def finish(self, inputs: list[np.ndarray], result: Any) -> CapturedStep:
        """Return what the step did, with its result. The recording drops its arrays, and is of no use afterwards."""
        foreign = {key: x for key, x in self._foreign.items() if key not in self._written_ids()}
        replaced = [] if self._guards is None else self._guards.replaced_values
        replaced_ids = {id(get_owner(x._data if isinstance(x, Tensor) else x)) for x in replaced}
        attributes = self.attribute_guards()
        step, buffers = lower_entries(self.entries)
        captured = CapturedStep(
            inputs, result, step, buffers, [], list(self._snapshots.values()), attributes, replaced_ids, foreign
        )
        if self._guards is not None:
            self._guards.exclude_kernel_reads(foreign.keys())
            captured.is_guarded = True
            captured.first_line, captured.has_hidden_state = self._guards.first_line(), self._guards.has_hidden_state
            captured.hidden = self._guards.hidden_name
            captured.may_read_inputs = not self._guards.names.isdisjoint(_CONVERSIONS)
            captured.input_values = tuple(map(hash_values, inputs)) if foreign else ()
        return captured

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
