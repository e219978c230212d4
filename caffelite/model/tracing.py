"""Tracing: note the Functions that a model applies, and their inputs.

A `Trace` is a recording that notes kernel calls and applied Functions (`TraceStep`). It learns of these in two ways:

- A Function that is applied to Tensors tells the recording (`record_application`). So does an operator such as `+`.
- A Function inside another one computes with arrays, by `forward`, and tells nobody. So a trace applies a copy of the
  model. In this copy each Function's class is replaced by a subclass. It computes the same, and notes the inputs, the
  outputs and, later, the outputs' gradients. A copy of a Function has the same class. So a trace also sees the copies
  that a call applies, and the Functions inside them.

Summaries and inspections read the steps. `export_graph` makes a graph of them, which ONNX and C write.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.program.recording import Recording


@dataclass(eq=False)
class TraceStep:
    """One application of a Function."""

    name: str  # of the Function in the model, `blocks.2.attention`; "" if it is not in the model, such as `+`
    kind: type[Function]  # the Function's class
    function: Function  # the copy that was applied
    inputs: list[Any]  # Tensors, arrays, numbers or None
    outputs: list[Any]  # Tensors; arrays, of a Function in a Function
    calls: list[Any]  # kernel calls, and calls into Python, that the recording noted during this step
    inner: list[TraceStep]  # the inner steps that this one consists of
    gradients: list[np.ndarray | None] = field(init=False)  # of the outputs, from `backward`

    def __post_init__(self) -> None:
        self.gradients = [None] * len(self.outputs)

    def all_steps(self) -> Iterator[TraceStep]:
        """Yield all inner steps, then this one: in the order in which they ended."""
        for step in self.inner:
            yield from step.all_steps()
        yield self


class Trace(Recording):
    """The steps of a model, noted while `trace.model` is applied.

        with Trace(model) as trace:
            trace.model(x)

    Without `with`, nothing is recorded. Then only the model's own Functions make steps, and these have no calls.
    """

    def __init__(self, model: Function, strict: bool = True) -> None:
        super().__init__(strict)
        self.steps: list[TraceStep] = []  # in the order in which they ended, without inner steps
        self._starts: dict[int, tuple[int, int]] = {}  # the position when each copy was made, by the copy's id
        self._latest: dict[int, TraceStep] = {}  # the last step of each copy, by the copy's id
        self._kinds: dict[type, type] = {}  # the original class of each tracing subclass
        self.model = model.copy()
        for name, function in list(self.model._walk()):
            function.__class__ = self._make_tracing_class(type(function), name)

    def all_steps(self) -> list[TraceStep]:
        """All steps, in the order in which they ended."""
        return [inner for step in self.steps for inner in step.all_steps()]

    def record_copy(self, copy: Any, original: Any) -> None:
        """Note that a Function is copied: the copy's application begins."""
        super().record_copy(copy, original)
        self._starts[id(copy)] = self._position()

    def guard_code(self, code: Any) -> None:
        """Ignore the code that decides what happens: nothing is replayed."""

    def record_application(self, function: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
        """Note that a Function was applied to Tensors. A Function of the model has noted its arrays before."""
        step = self._latest.get(id(function))
        if step is not None:
            step.inputs, step.outputs = [*inputs], [*results]
            return
        kind = self._kinds.get(type(function), type(function))
        self._add("", kind, function, inputs, results, self._starts.get(id(function), self._position()))

    def _position(self) -> tuple[int, int]:
        return len(self.entries), len(self.steps)

    def _add(
        self, name: str, kind: Any, function: Any, inputs: tuple[Any, ...], outputs: Any, start: tuple[int, int]
    ) -> None:
        """Add a step that began at position `start`. Everything recorded since then is part of it."""
        calls, steps = start
        step = TraceStep(name, kind, function, [*inputs], to_list(outputs), self.entries[calls:], self.steps[steps:])
        self.steps[steps:] = [step]
        self._latest[id(function)] = step

    def _make_tracing_class(self, original: Any, name: str) -> type:
        """Make a subclass of a Function's class that records each application as a step of this name."""
        trace = self
        method = "__call__" if hasattr(original, "call") else "forward"  # `forward` of a Model calls it, or its parts
        compute, compute_gradient = getattr(original, method), original.backward

        @functools.wraps(compute)
        def apply(self: Any, *inputs: Any) -> Any:
            start = trace._position()
            outputs = compute(self, *inputs)
            trace._add(name, original, self, inputs, outputs, start)
            return outputs

        def backward(self: Any, dy: Any) -> Any:
            if id(self) in trace._latest:
                trace._latest[id(self)].gradients = to_list(dy)
            return compute_gradient(self, dy)

        namespace = {method: apply, "backward": backward, "_traced": original}
        namespace |= {"__module__": original.__module__, "__qualname__": original.__qualname__}
        subclass: type[Any] = type(original)(original.__name__, (original,), namespace, recordable=True)
        subclass.recordable, subclass.runs_in_python = original.recordable, original.runs_in_python
        self._kinds[subclass] = original
        return subclass


def original_class(function: Any) -> type:
    """Return the class of a Function. In a trace, it is not the tracing subclass."""
    kind: type = vars(type(function)).get("_traced", type(function))
    return kind


def unwrap_tensor(x: Any) -> Any:
    """Return the array of a Tensor; everything else as it is."""
    return x._data if isinstance(x, Tensor) else x


def to_list(outputs: Any, kind: type = Tensor) -> list[Any]:
    """Return a Function's outputs, or their shapes, as a list. A single one becomes a list of one."""
    is_single = not isinstance(outputs, tuple) or (kind is tuple and not any(isinstance(y, tuple) for y in outputs))
    return [outputs] if is_single else list(outputs)
