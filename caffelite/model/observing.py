"""What each Function in a model does while the model is applied: what `summary` counts and `inspect` looks at.

A copy of the model is applied. Every Function in it is made a member of a subclass of its class that does the same, and
notes what goes in, what comes out, which kernels were called in between, and later the gradient of what came out. (A
call applies copies, which are of their originals' class; so nobody has to ask them to be looked at.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import places_in
from caffelite.core.autograd import results_so_far
from caffelite.core.function import Function
from caffelite.core.recording import PythonCall
from caffelite.core.tensor import Tensor
from caffelite.program.step import owner_of

UNLIMITED = np.uint64(2**64 - 1)  # negative indices are, as numbers without a sign, beyond all others


class Application:
    """One application of a Function."""

    def __init__(self, name: str, function: Function, inputs: tuple, outputs: Any, number: int) -> None:
        self.name = name  # of the Function in the model, `blocks.2.attention`
        self.function = function  # the copy that was applied
        self.inputs = [_array(x) for x in inputs]
        self.outputs = [_array(y) for y in _listed(outputs)]
        self.gradients: list[np.ndarray | None] = [None] * len(self.outputs)  # of the outputs, from `backward`
        self.number = number  # of the result that it made or went into: results are numbered in order
        self.calls: list[Any] = []  # what a recording, if there was one, noted meanwhile
        self.within: list[Application] = []  # those of Functions in this one


def observed(model: Function) -> tuple[Any, list[Application]]:
    """A copy of a model, with the same parameters and buffers, and a list to which its applications will be added."""
    applications: list[Application] = []
    model = model.copy()
    for name, function in _named_descendants(model, "", set()):
        _observe(function, name, applications)
    return model, applications


def _observe(function: Function, name: str, applications: list[Application]) -> None:
    """Have a Function, and its copies, note their applications."""
    original: Any = type(function)
    latest: dict[int, Application] = {}  # of each copy, by its id, which its application keeps from being another's

    def noted(compute: Any) -> Any:
        @functools.wraps(compute)
        def apply(self: Any, *inputs: Any) -> Any:
            calls = [] if kernels.recorder() is None else kernels.recorder().entries
            calls_before, before = len(calls), len(applications)
            outputs = compute(self, *inputs)
            latest[id(self)] = application = Application(name, self, inputs, outputs, results_so_far() + 1)
            application.calls, application.within = calls[calls_before:], applications[before:]
            applications.append(application)
            return outputs

        return apply

    def backward(self: Any, dy: Any) -> Any:
        if id(self) in latest:
            latest[id(self)].gradients = _listed(dy)
        return original.backward(self, dy)

    calls_others = hasattr(original, "call")  # a Model, whose `forward` nobody needs
    methods = {"__call__": original.__call__} if calls_others else {"forward": original.forward}
    own: dict[str, Any] = {name: noted(method) for name, method in methods.items()}
    own |= {"__module__": original.__module__, "__qualname__": original.__qualname__, "backward": backward}
    observing = type(original)(original.__name__, (original,), own, recordable=True)
    observing.recordable, observing.runs_in_python = original.recordable, original.runs_in_python
    function.__class__ = observing


def multiply_adds(calls: Iterable[Any]) -> int | None:
    """How many multiplications with an addition these calls make in products and convolutions; None where it is not
    known, because a part is computed in Python."""
    calls = list(calls)
    if any(isinstance(call, PythonCall) for call in calls):
        return None
    return sum(call.flops or 0 for call in calls) // 2


def bytes_made(applications: Iterable[Application]) -> int:
    """How much memory the outputs of these applications take, and of those within them: each once, and no views."""
    made: dict[int, int] = {}
    for application in applications:
        for a in (*application.within, application):
            given = {id(owner_of(x)) for x in a.inputs if isinstance(x, np.ndarray)}
            made |= {id(owner_of(y)): owner_of(y).nbytes for y in a.outputs if id(owner_of(y)) not in given}
    return sum(made.values())


def largest_indices(applications: Iterable[Application], inputs: Iterable[np.ndarray]) -> list[np.ndarray | None]:
    """The largest index that may stand at each place of a row, uint64, for each input; None where nothing is known.

    That is said by the Functions to which the inputs, or views of them, went.
    """
    found = []
    for given in inputs:
        most = np.full(given[0].size, UNLIMITED)
        for a in applications:
            x, count = a.inputs[0], a.function.index_count
            if count is not None and isinstance(x, np.ndarray) and owner_of(x) is given and given.size:
                used = places_in(given, x) % most.size
                most[used] = np.minimum(most[used], np.uint64(count - 1))
        found.append(most.reshape(given.shape[1:]) if (most < UNLIMITED).any() else None)
    return found


def _named_descendants(function: Function, prefix: str, seen: set[int]) -> list[tuple[str, Function]]:
    """The Functions in a Function, each once, with the names of their first places."""
    found = []
    for name, child in function._named_children():
        if id(child) not in seen:
            seen.add(id(child))
            found += [(prefix + name, child), *_named_descendants(child, f"{prefix}{name}.", seen)]
    return found


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _array(x: Any) -> Any:
    return x._data if isinstance(x, Tensor) else x
