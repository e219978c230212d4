"""Recording: what a step does, noted while it runs, so that a Program can do it again.

While a thread is in a `Recording`, its kernels note their calls there (`_kernels/record.pyx`), Tensors say that their
arrays or gradients are looked at, and Functions and Optimizers that are not declared recordable become a
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
from caffelite.core.arrays import as_real, base_of
from caffelite.core.cautions import Line, users_line
from caffelite.core.modes import mode
from caffelite.core.rows import computing, rows_here
from caffelite.core.tensor import Tensor


class Obstacle:
    """Why a step can't be replayed, and the line where it does what a replay would not repeat, if that is known."""

    def __init__(self, reason: str, line: Line | None = None) -> None:
        self.reason, self.line = reason, line


class Recording(kernels.Recorder):
    """Notes what this thread does from entering to leaving; RuntimeError if it is recording already.

    What a replay would not repeat is a TypeError if the recording is `strict`. Else it is noted as the `obstacle`, and
    the step goes on: it has been made rightly, once, and can't be replayed.
    """

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self.obstacle: Obstacle | None = None
        self._surroundings: Any = None  # what the user's code decides by, if any takes part
        self.entries: list[kernels.RecordedCall | PythonCall] = []
        self._notes: dict[int, Note] = {}
        self._copies: dict[int, tuple[Any, Any]] = {}  # copies of Functions, and what they were copied from
        self._optimizers: dict[int, Any] = {}
        self._unrepeatable = False

    def note(self, tensor: Tensor) -> Note:
        """A Tensor's array is looked at. What it was before is kept."""
        note = self._notes.get(id(tensor))
        if note is None or note.tensor() is not tensor:
            note = self._notes[id(tensor)] = Note(tensor)
        return note

    def look_again(self) -> None:
        """Tensors' arrays have moved, before a kernel was called."""
        for tensor, note in with_tensors(self.notes()):
            note.data = tensor._data.view(kernels.Recorded)

    def refuse(self, reason: str) -> None:
        """The step does what a replay would not repeat."""
        obstacle = Obstacle(reason, users_line())
        if self.strict:
            raise TypeError(reason if obstacle.line is None else f"{reason} ({obstacle.line})")
        self.obstacle = self.obstacle or obstacle

    def line(self) -> Line | None:
        """The line of the user's that runs, if the user's code takes part."""
        return None if self._surroundings is None else users_line(most=8)  # of a kernel that it calls, not of `fit`

    def note_copy(self, copy: Any, original: Any) -> None:
        """A Function is applied: its attributes have an influence on what happens. A copy's copy is of the first."""
        first = self.original(original)
        original = original if first is None else first
        self._copies[id(copy)] = (copy, original)
        if not original.runs_in_python:
            self.note_decider(original.decider())

    def note_decider(self, decider: Any) -> None:
        """This code decides in Python what the step does. Looked at before it runs, if it is the user's."""
        if getattr(decider, "__module__", "").startswith("caffelite."):
            return
        if self._surroundings is None:
            from caffelite.core.surroundings import Surroundings  # which few need

            self._surroundings = Surroundings()
        self._surroundings.add(decider)

    def _written(self) -> set[int]:
        """The ids of the arrays that own what kernels wrote."""
        calls = [entry for entry in self.entries if isinstance(entry, kernels.RecordedCall)]
        return {id(base_of(a)) for c in calls for i, a in enumerate(c.arrays) if a is not None and c.writes >> i & 1}

    def replaced(self) -> list[Any]:
        """The Tensors and arrays that the user's code had in attributes and lists, and has replaced by its results."""
        return [] if self._surroundings is None else self._surroundings.replaced

    def change(self) -> Obstacle | None:
        """What the step has changed that it decides by: a replay would not. None if there is nothing."""
        if self._surroundings is None or self._unrepeatable:  # then Python runs in each step, and changes what it likes
            return None
        found = self._surroundings.changed(self._written)
        return None if found is None else Obstacle(*found)

    def note_application(self, function: Any, inputs: tuple, results: tuple[Tensor, ...]) -> None:
        """A Function was applied, to Tensors, arrays, numbers or None. What it did its kernels have noted."""

    def note_optimizer(self, optimizer: Any) -> None:
        """An optimizer makes its step: its attributes have an influence on what happens."""
        self._optimizers[id(optimizer)] = optimizer
        if not type(optimizer).__module__.startswith("caffelite."):
            self.note_decider(types.MethodType(inspect.unwrap(type(optimizer).step), optimizer))

    def note_unrepeatable(self) -> None:
        """What happens next is decided in Python, each time anew: the step must be recorded again, not replayed."""
        self._unrepeatable = True

    def original(self, copy: Any) -> Any:
        """What a Function that is applied was copied from; None if it is no copy."""
        return self._copies.get(id(copy), (None, None))[1]

    def notes(self) -> list[Note]:
        """Of all Tensors that were looked at."""
        return list(self._notes.values())

    def untrained(self, trained: Iterable[Tensor]) -> list[Tensor]:
        """The leaves to whose gradients the step has contributed so far, but for those that are trained."""
        ids = set(map(id, trained))
        found = [note.tensor() for note in self._notes.values() if note.gradient_set]
        return [t for t in found if t is not None and id(t) not in ids and t._requires_grad and t.function is None]

    def attributes(self) -> list[kernels.Attributes]:
        """The attributes of Functions and Optimizers that had an influence."""
        watched = [_watched(original, original._attributes_used(copy)) for copy, original in self._copies.values()]
        watched += [_watched(optimizer, vars(optimizer)) for optimizer in self._optimizers.values()]
        if self._surroundings is not None:
            self._surroundings.watch.leave_out({id(original) for _, original in self._copies.values()})
            watched.append(self._surroundings.watch)
        if self._unrepeatable:  # then something needed is gone, always
            watched.append(kernels.Attributes(Recording(), {}, needed=True))
        return watched


def _watched(of: Any, attributes: dict[str, Any]) -> kernels.Attributes:
    """What these attributes are; and how many the object has, since one more may hide one of its class."""
    count = -1 if of.runs_in_python else len(vars(of))
    return kernels.Attributes(
        of, {name: x for name, x in attributes.items() if name not in of.not_recorded}, count=count
    )


class Note:
    """What a Tensor was when a recording first looked at it, and what has happened to its gradient since."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.version = tensor._version[0]
        self.gradient_before: bool | None = None  # whether it had one, where that mattered
        self.gradient_set = False  # whether the step has reset it or contributed to it
        self.data = tensor._data.view(kernels.Recorded)

    def gradient_is_read(self, tensor: Tensor) -> None:
        """Whether there is a gradient has an influence on what happens next."""
        if not self.gradient_set and self.gradient_before is None:
            self.gradient_before = tensor._has_gradient


def with_tensors(notes: list[Note]) -> list[tuple[Tensor, Note]]:
    """The notes of Tensors that are still there."""
    return [(t, note) for note in notes if (t := note.tensor()) is not None]


class PythonCall:
    """A call into Python between the kernels of a recorded step.

    It gets copies of its arguments and its results are copied into `outputs`, so the function may keep and compute what
    it likes. Gradients and modes are set as they were at this place of the step.
    """

    def __init__(self, name: str, function: Callable[..., Any], arguments: tuple, parameters: Iterable[Tensor]) -> None:
        self.name, self.function = name, function
        self.arguments = _mapped(lambda x: x.view(np.ndarray), arguments)
        self.gradients = [(p, p._has_gradient) for p in parameters]
        self.mode = (mode.records_graph, mode.training)
        self.rows = rows_here()

    def first(self) -> Any:
        """Call for the first time: the result, its arrays being this call's outputs."""
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
        before = (mode.records_graph, mode.training)
        mode.records_graph, mode.training = self.mode
        for p, has_gradient in self.gradients:
            p._has_gradient = has_gradient
        try:
            if self.rows.are_all:
                return self.function(*_mapped(np.array, self.arguments))
            with computing(self.rows):
                return self.function(*_mapped(np.array, self.arguments))
        finally:
            mode.records_graph, mode.training = before

    def __repr__(self) -> str:
        shapes = ", ".join(str(x.shape) if isinstance(x, np.ndarray) else repr(x) for x in self.arguments)
        return f"{self.name}({shapes})"


def _mapped(f: Callable[[np.ndarray], np.ndarray], values: tuple) -> tuple:
    """The values with f of the arrays among them, in tuples too."""
    return tuple([f(x) if isinstance(x, np.ndarray) else _mapped(f, x) if type(x) is tuple else x for x in values])


def _leaves(result: Any) -> list[Any]:
    """What is in a tuple, and in the tuples in it; a result that is no tuple is the only one."""
    return [leaf for r in result for leaf in _leaves(r)] if isinstance(result, tuple) else [result]


def _like(result: Any, leaves: Iterator[Any]) -> Any:
    """A result of the same form, of these leaves."""
    return tuple([_like(r, leaves) for r in result]) if isinstance(result, tuple) else next(leaves)


def _form(array: np.ndarray | None) -> str:
    return "None" if array is None else f"{array.dtype} of shape {array.shape}"


def call_python(name: str, function: Callable[..., Any], *arguments: Any, parameters: Iterable[Tensor] = ()) -> Any:
    """Call a function that computes in Python; where this thread records, it is called again at each replay."""
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
    """Make a method of a Function or an Optimizer one that is called back where a step is recorded."""

    @functools.wraps(method)
    def called_back(self: Any, *arguments: Any) -> Any:
        recording = kernels.recorder()
        if recording is None:
            return method(self, *arguments)
        parameters = self.parameters() if callable(self.parameters) else self.parameters
        name = f"{type(self).__name__}.{method.__name__}"
        original = recording.original(self) if method.__name__ == "forward" else None
        function = functools.partial(_call if original is None else _forward_anew, method, self, original)
        return call_python(name, function, *arguments, parameters=parameters)

    return called_back


def _call(method: Callable[..., Any], self: Any, original: Any, *arguments: Any) -> Any:
    return method(self, *arguments)


def _forward_anew(method: Callable[..., Any], self: Any, original: Any, *arguments: Any) -> Any:
    """`forward` on a copy of the original as it is now, as if it had just been applied."""
    self._restore_from(original)
    return method(self, *arguments)
