"""Recording: note what a step does while it runs. A Program can then run the step again.

A thread inside a `Recording` notes three things there. Kernels note their calls (`_kernels/record.pyx`). Tensors note
that their arrays or gradients are read. Functions and Optimizers that are not declared recordable become a
`PythonCall`.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import Line, users_line
from caffelite.core.arrays import as_real, base_of
from caffelite.core.modes import mode
from caffelite.core.shard import computing, rows_here
from caffelite.core.tensor import Tensor


class Obstacle:
    """Why a step can't be replayed, and, if known, the user's line that a replay would not repeat."""

    def __init__(self, reason: str, line: Line | None = None) -> None:
        self.reason, self.line = reason, line


def is_of_package(code: Any) -> bool:
    """Whether caffelite defines this class or function. (The module of a function that `exec` made may be None.)"""
    return (getattr(code, "__module__", None) or "").startswith("caffelite.")


class Recording(kernels.Recorder):
    """Note what this thread does inside a `with`. Raise RuntimeError if this thread is recording already.

    A step may do something that a replay would not repeat. If the recording is `strict`, this raises TypeError.
    Otherwise the recording notes it as the `obstacle`, and the step goes on. Its results are right; only a replay is
    not possible.
    """

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self.obstacle: Obstacle | None = None
        self._surroundings: Any = None  # the values that the user's code reads to decide; None without such code
        self.entries: list[kernels.RecordedCall | PythonCall] = []
        self._notes: dict[int, Note] = {}
        self._copies: dict[int, tuple[Any, Any]] = {}  # copies of Functions, with their originals
        self._optimizers: dict[int, Any] = {}
        self._unrepeatable = False

    def note(self, tensor: Tensor) -> Note:
        """Note that a Tensor's array is read, and return the Note, which has the state from before the step."""
        note = self._notes.get(id(tensor))
        if note is None or note.tensor() is not tensor:
            note = self._notes[id(tensor)] = Note(tensor)
        return note

    def look_again(self) -> None:
        """Read the arrays of all noted Tensors again. Call this if they were moved before a kernel used them."""
        for tensor, note in with_tensors(self.notes()):
            note.data = tensor._data.view(kernels.Recorded)

    def refuse(self, reason: str) -> None:
        """Note the obstacle that a replay would not repeat this. Raise TypeError instead if `strict`."""
        obstacle = Obstacle(reason, users_line())
        if self.strict:
            raise TypeError(reason if obstacle.line is None else f"{reason} ({obstacle.line})")
        self.obstacle = self.obstacle or obstacle

    def line(self) -> Line | None:
        """The user's line that is running, or None if no code of the user takes part in the step."""
        return None if self._surroundings is None else users_line(most=8)  # the line that calls a kernel, not `fit`

    def note_copy(self, copy: Any, original: Any) -> None:
        """Note that a copy of a Function is applied, so the step depends on the Function's attributes.

        If the original is a copy itself, the Function that it was copied from is noted.
        """
        first = self.original(original)
        original = original if first is None else first
        self._copies[id(copy)] = (copy, original)
        if not original.runs_in_python:
            self.note_decider(original.decider())

    def note_decider(self, decider: Any) -> None:
        """Note that this code decides in Python what the step does. Call this before the code runs.

        caffelite's own code is not noted.
        """
        if is_of_package(decider):
            return
        if self._surroundings is None:
            from caffelite.core.surroundings import Surroundings  # most steps do not need it

            self._surroundings = Surroundings()
        self._surroundings.add(decider)

    def _written(self) -> set[int]:
        """The ids of the arrays that kernels wrote into; for a view, the id of the array that owns its memory."""
        calls = [entry for entry in self.entries if isinstance(entry, kernels.RecordedCall)]
        return {id(base_of(a)) for c in calls for i, a in enumerate(c.arrays) if a is not None and c.writes >> i & 1}

    def replaced(self) -> list[Any]:
        """The Tensors and arrays in the user's attributes and lists that the step has replaced by its results."""
        return [] if self._surroundings is None else self._surroundings.replaced

    def change(self) -> Obstacle | None:
        """The obstacle that the step changes a value which it also reads to decide; None if it does not."""
        if self._surroundings is None or self._unrepeatable:  # an unrepeatable step runs in Python every time
            return None
        found = self._surroundings.changed(self._written)
        return None if found is None else Obstacle(*found)

    def note_application(self, function: Any, inputs: tuple, results: tuple[Tensor, ...]) -> None:
        """Note that a Function was applied to Tensors, arrays, numbers or None. Its kernels are noted already."""

    def note_optimizer(self, optimizer: Any) -> None:
        """Note that an optimizer makes its step, so the recorded step depends on the optimizer's attributes."""
        self._optimizers[id(optimizer)] = optimizer
        if not is_of_package(type(optimizer)):
            self.note_decider(types.MethodType(inspect.unwrap(type(optimizer).step), optimizer))

    def note_unrepeatable(self) -> None:
        """Note that Python decides in every step what comes next: the step must be recorded again each time."""
        self._unrepeatable = True

    def original(self, copy: Any) -> Any:
        """The Function that this applied Function was copied from; None if it is not a copy."""
        return self._copies.get(id(copy), (None, None))[1]

    def notes(self) -> list[Note]:
        """The Notes of all Tensors that the step has read."""
        return list(self._notes.values())

    def untrained(self, trained: Iterable[Tensor]) -> list[Tensor]:
        """The leaves that got a gradient in this step so far but are not in `trained`."""
        ids = set(map(id, trained))
        found = [note.tensor() for note in self._notes.values() if note.gradient_set]
        return [t for t in found if t is not None and id(t) not in ids and t._requires_grad and t.function is None]

    def attributes(self) -> list[kernels.Attributes]:
        """The attributes of Functions and Optimizers that the step depends on."""
        watched = [_watched(original, original._attributes_used(copy)) for copy, original in self._copies.values()]
        watched += [_watched(optimizer, vars(optimizer)) for optimizer in self._optimizers.values()]
        if self._surroundings is not None:
            self._surroundings.watch.leave_out({id(original) for _, original in self._copies.values()})
            watched.append(self._surroundings.watch)
        if self._unrepeatable:  # this entry needs an object that is gone, so the Program always records again
            watched.append(kernels.Attributes(Recording(), {}, needed=True))
        return watched


def _watched(of: Any, attributes: dict[str, Any]) -> kernels.Attributes:
    """The attributes' values, and their number: a new attribute of the object may hide one of its class."""
    count = -1 if of.runs_in_python else len(vars(of))
    return kernels.Attributes(
        of, {name: x for name, x in attributes.items() if name not in of.not_recorded}, count=count
    )


class Note:
    """The state of a Tensor when a recording first read it, and what the step did to its gradient since."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.version = tensor._version[0]
        self.gradient_before: bool | None = None  # whether it had a gradient; None if nobody asked
        self.gradient_set = False  # whether the step has reset it or contributed to it
        self.data = tensor._data.view(kernels.Recorded)

    def gradient_is_read(self, tensor: Tensor) -> None:
        """Note that the step depends on whether the Tensor has a gradient now."""
        if not self.gradient_set and self.gradient_before is None:
            self.gradient_before = tensor._has_gradient


def with_tensors(notes: list[Note]) -> list[tuple[Tensor, Note]]:
    """The Tensors that still exist, with their notes."""
    return [(t, note) for note in notes if (t := note.tensor()) is not None]


class PythonCall:
    """A call into Python between the kernels of a recorded step.

    The function gets copies of its arguments, and its results are copied into `outputs`. So it may keep the arrays and
    compute with them as it likes. During the call, gradients and modes are as they were at this place of the step.
    """

    def __init__(self, name: str, function: Callable[..., Any], arguments: tuple, parameters: Iterable[Tensor]) -> None:
        self.name, self.function = name, function
        self.arguments = _mapped(lambda x: x.view(np.ndarray), arguments)
        self.gradients = [(p, p._has_gradient) for p in parameters]
        self.modes = mode.state
        self.rows = rows_here()

    def first(self) -> Any:
        """Call the function for the first time. Return its result, made of the arrays in `outputs`."""
        result = self._call()
        self.outputs = [
            None if r is None else np.array(as_real(r, None, self)).view(kernels.Recorded) for r in _leaves(result)
        ]
        return _like(result, iter(self.outputs))

    def __call__(self) -> None:
        for out, new in zip(self.outputs, _leaves(self._call()), strict=True):
            array = None if new is None else as_real(new, None, self)
            if _form(array) != _form(out):
                raise ValueError(f"{self.name} returned {_form(array)}; when it was recorded it was {_form(out)}")
            if out is not None:
                out[...] = array

    def _call(self) -> Any:
        before, mode.state = mode.state, self.modes
        for p, has_gradient in self.gradients:
            p._has_gradient = has_gradient
        try:
            if self.rows.are_all:
                return self.function(*_mapped(np.array, self.arguments))
            with computing(self.rows):
                return self.function(*_mapped(np.array, self.arguments))
        finally:
            mode.state = before

    def __repr__(self) -> str:
        shapes = ", ".join(str(x.shape) if isinstance(x, np.ndarray) else repr(x) for x in self.arguments)
        return f"{self.name}({shapes})"


def _mapped(f: Callable[[np.ndarray], np.ndarray], values: tuple) -> tuple:
    """The values, with f applied to every array, in tuples too."""
    return tuple([f(x) if isinstance(x, np.ndarray) else _mapped(f, x) if type(x) is tuple else x for x in values])


def _leaves(result: Any) -> list[Any]:
    """The values in nested tuples as one list; a result that is not a tuple is a list of one value."""
    return [leaf for r in result for leaf in _leaves(r)] if isinstance(result, tuple) else [result]


def _like(result: Any, leaves: Iterator[Any]) -> Any:
    """The same nested tuples as `result`, filled with these leaves."""
    return tuple([_like(r, leaves) for r in result]) if isinstance(result, tuple) else next(leaves)


def _form(array: np.ndarray | None) -> str:
    return "None" if array is None else f"{array.dtype} of shape {array.shape}"


def call_python(name: str, function: Callable[..., Any], *arguments: Any, parameters: Iterable[Tensor] = ()) -> Any:
    """Call a function that computes in Python. If this thread is recording, each replay calls it again."""
    recording = kernels.recorder()
    if recording is None:
        return function(*arguments)
    parameters = list(parameters)
    for p in parameters:
        note = recording.note(p)
        note.gradient_is_read(p)
        note.gradient_set = True
    call = PythonCall(name, function, arguments, parameters)
    with kernels.Paused():
        result = call.first()
    recording.entries.append(call)
    return result


def in_python(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a Function or an Optimizer. A replay of a recorded step then calls it again in Python."""

    @functools.wraps(method)
    def called_back(self: Any, *arguments: Any) -> Any:
        recording = kernels.recorder()
        if recording is None:
            return method(self, *arguments)
        parameters = self.parameters() if callable(self.parameters) else self.parameters
        name = f"{type(self).__name__}.{method.__name__}"
        original = recording.original(self) if method.__name__ == "forward" else None
        function = functools.partial(_call if original is None else _forward_again, method, self, original)
        return call_python(name, function, *arguments, parameters=parameters)

    return called_back


def _call(method: Callable[..., Any], self: Any, original: Any, *arguments: Any) -> Any:
    return method(self, *arguments)


def _forward_again(method: Callable[..., Any], self: Any, original: Any, *arguments: Any) -> Any:
    """Run `forward` with the original's present attributes, as if the Function had just been applied."""
    self._restore_from(original)
    return method(self, *arguments)
