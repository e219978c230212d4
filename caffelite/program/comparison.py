"""Comparing two recordings of a step: would a replay of one do what the other did?

If a user's Python decides what a step does, one recording does not show whether the next step is the same. So a step
is recorded twice. It is replayed only if both recordings have the same kernel calls, on the same arrays. NumPy may
make arrays in the step. If these have the same values in both, they are constants.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import Line
from caffelite.program.captured_step import CapturedStep
from caffelite.program.ir import Instruction, get_owner
from caffelite.program.obstacle import Obstacle
from caffelite.program.runner import tree_map

_MAX_REPLAYS = 1 << 40


class Confirmation:
    """Whether a step, in which a user's Python decides what is done, does the same again and again.

    Replays begin after two steps in a row that did the same. Later, at each doubling of the number of steps, a step
    runs in Python again, and must do the same. If a user's Python runs between steps, `disturb` asks for such a step,
    too. A first step may only prepare something, so a single difference before the first replay is allowed.
    """

    def __init__(self) -> None:
        self.previous: CapturedStep | None = None  # the step in Python that is compared with the next one
        self.replays = 0  # that may follow the last step in Python
        self._differences = 0  # in a row
        self._is_disturbed = False  # whether a user's Python has run between steps

    @property
    def keeps_lines(self) -> bool:
        """Return whether the next difference would be told, with its line."""
        return self.replays > 0 or self._differences > 0

    def forget(self) -> None:
        """Forget the step: a value that it reads has changed since then, as can be seen."""
        self.previous, self.replays = None, 0

    def reject(self) -> bool:
        """Forget the step, which itself changed a value that it reads. Return whether this was the second in a row."""
        self.forget()
        self._differences += 1
        return self._differences > 1

    def is_confirmed(self) -> bool:
        """Return whether the last step was like the one before, and nothing has disturbed it since."""
        return self.replays > 0 and not self._is_disturbed

    def disturb(self) -> bool:
        """Note that a user's Python has run between steps. Return whether the next step must run in Python."""
        self._is_disturbed = self.previous is not None and self.previous.has_hidden_state
        return self._is_disturbed

    def judge(self, captured: CapturedStep, replays_left: int, is_supervised: bool) -> Obstacle | None:
        """Compare a step in Python with the one before, and set `replays`. Return the obstacle that it differs.

        `replays_left` of the replays after the step before were not made. If each run of a user's Python between steps
        is followed by `disturb`, the Program `is_supervised`.
        """
        if captured.hidden is not None and not is_supervised:
            text = f"it reads {captured.hidden}, whose changes can't be seen. Keep the number or array that it gives"
            return Obstacle(text, captured.first_line)
        previous, replayed, is_disturbed = self.previous, self.replays - replays_left, self._is_disturbed
        self._is_disturbed = False
        if previous is None:
            self.previous, self.replays = (captured, 0) if captured.is_guarded else (None, _MAX_REPLAYS)
            return None
        difference, self.previous = find_difference(previous, captured), captured
        if difference is None:
            self._differences, self.replays = 0, min(2 * max(self.replays, 1), _MAX_REPLAYS)
            if captured.has_constants and captured.input_values == previous.input_values:
                captured.has_hidden_state = True  # perhaps NumPy made the constants of the inputs
                if not is_supervised:
                    self.replays = 0
            return None
        had_replays, self.replays = self.replays > 0, 0
        self._differences += not is_disturbed
        if is_disturbed or (self._differences < 2 and not had_replays):
            return None
        reason, line = difference
        if replayed > 0:
            reason += f". The numbers of the last {replayed} steps, which were replayed, may be wrong"
        text = f"the step in Python differs from the one before: {reason}. Give it what differs as an input"
        return Obstacle(text, line or captured.first_line)


def find_difference(before: CapturedStep, after: CapturedStep) -> tuple[str, Line | None] | None:
    """Return how a step differs from the step before, and the user's line if it is known; None if both are alike.

    If arrays that NumPy made in the steps have the same values, they count as constants: `after.has_constants`.
    """
    values_before, values_after = iter(before.step.memory), iter(after.step.memory)
    place_before, place = _PlaceFinder(before), _PlaceFinder(after)
    for old, new in zip_longest(before.step.instructions, after.step.instructions):
        if old is None or new is None:
            numbers = len(after.step.instructions), len(before.step.instructions)
            return "it makes {} kernel calls in place of {}".format(*numbers), _line(new)
        if isinstance(old, Instruction) != isinstance(new, Instruction):
            return "it calls Python in place of a kernel, or the reverse", _line(new)
        difference = old.find_difference(new)  # type: ignore[arg-type]
        if difference is not None:
            return difference, _line(new)
        if isinstance(new, Instruction):
            for operand in new.operands:
                if operand is None and not _have_same_bits(next(values_before), next(values_after)):
                    return f"it calls the kernel {new.call.name} with another number", _line(new)
        else:
            for x, y in zip(old.argument_arrays(), new.argument_arrays(), strict=True):  # type: ignore[union-attr]
                if place_before.find(x) != place.find(y) and (reason := _compare_constants(before, x, after, y)):
                    return f"the call of {new.name} {reason}", None
    for old, new in zip(before.buffers, after.buffers, strict=True):
        a, b = old.owner(), new.owner()
        is_same = (a is not None and a is b) or place_before.given.get(id(a), 0) == place.given.get(id(b), -1)
        if (old.early_read or new.early_read) and not is_same and (reason := _compare_constants(before, a, after, b)):
            name, line = new.early_read or old.early_read or ("", None)
            return f"the kernel {name} {reason}", line
    if place_before.describe_result() != place.describe_result():
        return "it returns another result", None
    return None


def _line(instruction: Any) -> Line | None:
    return instruction.call.line if isinstance(instruction, Instruction) else None


def _have_same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Return whether two arrays, each made from a number, have the same bits; or both are None."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _compare_constants(before: CapturedStep, a: Any, after: CapturedStep, b: Any) -> str:
    """Return why two arrays are not one constant, which NumPy made in both steps; "" if they are."""
    old, new = [step.foreign.get(id(None if x is None else get_owner(x))) for step, x in ((before, a), (after, b))]
    if old is None or new is None or not old.has_same_values(new):
        return "reads another array, or other values of an array that NumPy made"
    if after.may_read_inputs:
        return "reads an array that NumPy made, perhaps of the step's inputs"
    after.has_constants = True
    return ""


class _PlaceFinder:
    """The places of arrays in a step: of those that a replay gets from outside, and of the results of kernels."""

    def __init__(self, captured: CapturedStep) -> None:
        self.result = captured.result
        arrays = list(captured.inputs)
        for call in captured.step.instructions:  # a replay gets the results of Python from outside, too
            arrays += [] if isinstance(call, Instruction) else [x for x in call.outputs if x is not None]
        self.given = {id(get_owner(x)): i for i, x in enumerate(arrays, start=1)}
        self.numbers = {id(buffer.owner()): buffer.number for buffer in captured.buffers if buffer.owner() is not None}

    def find(self, array: np.ndarray) -> Any:
        """Return the place of an array, its shape and strides."""
        owner = get_owner(array)
        key = id(owner)
        place = ("given", self.given[key]) if key in self.given else self.numbers.get(key, key)
        return place, array.shape, array.strides, kernels.address(array) - kernels.address(owner)

    def describe_result(self) -> Any:
        """Return the result with places instead of arrays."""
        return tree_map(self._describe, self.result)

    def _describe(self, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return self.find(x)
        return type(x), repr(x) if isinstance(x, bool | int | float | complex | str) else None
