"""Recording: what a step does, noted while it runs, so that a Program can do it again.

While a thread is in a `Recording`, its kernels note their calls there (`_kernels.tape`), Tensors say that their
arrays or gradients are looked at, and Functions and Optimizers that are not declared recordable become a
`PythonCall`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.tensor import Tensor, as_real, mode


class Recording:
    """Notes what this thread does from entering to leaving; RuntimeError if it is recording already."""

    def __init__(self) -> None:
        self.entries: list[kernels.Kernel | PythonCall] = []
        self._notes: dict[int, Note] = {}

    def __enter__(self) -> Recording:
        if kernels.recorder() is not None:
            raise RuntimeError("this thread is recording already")
        kernels.set_recorder(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        kernels.set_recorder(None)

    def note(self, tensor: Tensor) -> Note:
        """A Tensor's array is looked at. What it was before is kept."""
        note = self._notes.get(id(tensor))
        if note is None or note.tensor() is not tensor:
            note = self._notes[id(tensor)] = Note(tensor)
        return note

    def notes(self) -> list[Note]:
        """Of the Tensors that are still there."""
        return [note for note in self._notes.values() if note.tensor() is not None]


class Note:
    """What a Tensor was when a recording first looked at it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.version = tensor._version[0]
        self.gradient_before: bool | None = None  # whether it had one, where that mattered
        self.gradient_reset = False

    def gradient_read(self, tensor: Tensor) -> None:
        """Whether there is a gradient has an influence on what happens next."""
        if not self.gradient_reset and self.gradient_before is None:
            self.gradient_before = tensor._has_gradient


@contextmanager
def paused() -> Iterator[None]:
    """Note nothing inside, in this thread."""
    before = kernels.set_recorder(None)
    try:
        yield
    finally:
        kernels.set_recorder(before)


class PythonCall:
    """A call into Python between the kernels of a recorded step.

    It gets copies of its arguments and its results are copied into `outputs`, so the function may keep and compute what
    it likes. Gradients and modes are set as they were at this place of the step.
    """

    def __init__(self, name: str, function: Callable[..., Any], arguments: tuple, parameters: Iterable[Tensor]) -> None:
        self.name, self.function = name, function
        self.arguments = [x.view(np.ndarray) if isinstance(x, kernels.Recorded) else x for x in arguments]
        self.gradients = [(p, p._has_gradient) for p in parameters]
        self.mode = (mode.records_graph, mode.training)

    def first(self) -> Any:
        """Call for the first time: the result, its arrays being this call's outputs."""
        result = self._call()
        self.single = not isinstance(result, tuple)
        results = (result,) if self.single else result
        self.outputs = [None if r is None else np.array(as_real(r, None, self)).view(kernels.Recorded) for r in results]
        return self.outputs[0] if self.single else tuple(self.outputs)

    def __call__(self) -> None:
        result = self._call()
        results = (result,) if self.single else result
        for out, new in zip(self.outputs, results, strict=True):
            if out is not None:
                if np.shape(new) != out.shape:
                    raise ValueError(
                        f"{self.name} returned shape {np.shape(new)}, and {out.shape} when it was recorded"
                    )
                out[...] = new

    def _call(self) -> Any:
        before = (mode.records_graph, mode.training)
        mode.records_graph, mode.training = self.mode
        for p, has_gradient in self.gradients:
            p._has_gradient = has_gradient
        try:
            return self.function(*[np.array(x) if isinstance(x, np.ndarray) else x for x in self.arguments])
        finally:
            mode.records_graph, mode.training = before

    def __repr__(self) -> str:
        shapes = ", ".join(str(x.shape) if isinstance(x, np.ndarray) else repr(x) for x in self.arguments)
        return f"{self.name}({shapes})"


def call_python(name: str, function: Callable[..., Any], *arguments: Any, parameters: Iterable[Tensor] = ()) -> Any:
    """Call a function that computes in Python; where this thread records, it is called again at each replay."""
    recording = kernels.recorder()
    if recording is None:
        return function(*arguments)
    parameters = list(parameters)
    for p in parameters:
        recording.note(p).gradient_read(p)
    call = PythonCall(name, function, arguments, parameters)
    with paused():
        result = call.first()
    recording.entries.append(call)
    return result


def in_python(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of a Function or an Optimizer one that is called back where a step is recorded."""

    @functools.wraps(method)
    def called_back(self: Any, *arguments: Any) -> Any:
        if kernels.recorder() is None:
            return method(self, *arguments)
        parameters = self.parameters() if callable(self.parameters) else self.parameters
        name = f"{type(self).__name__}.{method.__name__}"
        return call_python(name, functools.partial(method, self), *arguments, parameters=parameters)

    return called_back
