"""Calls into Python between the kernels of a recorded step, for methods that are not declared recordable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real
from caffelite.core.modes import mode
from caffelite.core.shard import current_shard, use_shard

if TYPE_CHECKING:
    from caffelite.core.tensor import Tensor


class PythonCallback:
    """A call into Python between the kernels of a recorded step.

    The function gets copies of its arguments, and its results are copied into `outputs`. So it may keep the arrays and
    do with them as it likes. During the call, gradients and modes are as they were at this point in the step.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], parameters: Iterable[Tensor]
    ) -> None:
        self.name, self.function = name, function
        self.arguments = _map_arrays(lambda x: x.view(np.ndarray), arguments)
        self.gradients = [(p, p._has_gradient) for p in parameters]
        self.modes = mode.state
        self.rows = current_shard()

    def record(self) -> Any:
        """Call the function for the first time. Return its result, with the arrays of `outputs` in it."""
        result = self._call()
        self.outputs = [
            None if r is None else np.array(as_real(r, None, self)).view(kernels.RecordedArray)
            for r in _flatten(result)
        ]
        return _unflatten(result, iter(self.outputs))

    def __call__(self) -> None:
        for out, new in zip(self.outputs, _flatten(self._call()), strict=True):
            array = None if new is None else as_real(new, None, self)
            if _describe(array) != _describe(out):
                raise ValueError(
                    f"{self.name} returned {_describe(array)}; when it was recorded it was {_describe(out)}"
                )
            if out is not None:
                out[...] = array

    def _call(self) -> Any:
        before, mode.state = mode.state, self.modes
        for p, has_gradient in self.gradients:
            p._has_gradient = has_gradient
        try:
            if self.rows.is_whole:
                return self.function(*_map_arrays(np.array, self.arguments))
            with use_shard(self.rows):
                return self.function(*_map_arrays(np.array, self.arguments))
        finally:
            mode.state = before

    def argument_arrays(self) -> list[np.ndarray]:
        """Return the arrays among the arguments."""
        return [x for x in _flatten(self.arguments) if isinstance(x, np.ndarray)]

    def find_difference(self, other: PythonCallback) -> str | None:
        """Return how another call differs in a replay; None if it does not."""
        if self.name != other.name:
            return f"it calls {other.name} in place of {self.name}"
        if _summarize(self.arguments) != _summarize(other.arguments):
            return f"it calls {other.name} with other arguments"
        is_same = [*map(_describe, self.outputs)] == [*map(_describe, other.outputs)]
        return None if is_same else f"{other.name} returns arrays of another shape"

    def __repr__(self) -> str:
        shapes = ", ".join(str(x.shape) if isinstance(x, np.ndarray) else repr(x) for x in self.arguments)
        return f"{self.name}({shapes})"


def _map_arrays(f: Callable[[np.ndarray], np.ndarray], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values with f applied to every array, also in tuples."""
    return tuple([f(x) if isinstance(x, np.ndarray) else _map_arrays(f, x) if type(x) is tuple else x for x in values])


def _summarize(values: tuple[Any, ...]) -> list[Any]:
    """Return the shapes of arrays, the values of numbers and strings, and the types of other values, also in tuples."""
    return [
        _describe(x) if isinstance(x, np.ndarray) else x if isinstance(x, bool | int | float | str) else type(x)
        for x in _flatten(values)
    ]


def _flatten(result: Any) -> list[Any]:
    """Return the values in nested tuples as one list; a result that is not a tuple becomes a list of one value."""
    return [leaf for r in result for leaf in _flatten(r)] if isinstance(result, tuple) else [result]


def _unflatten(result: Any, leaves: Iterator[Any]) -> Any:
    """Return the same nested tuples as `result`, filled with these leaves."""
    return tuple([_unflatten(r, leaves) for r in result]) if isinstance(result, tuple) else next(leaves)


def _describe(array: np.ndarray | None) -> str:
    return "None" if array is None else f"{array.dtype} of shape {array.shape}"


def call_python(name: str, function: Callable[..., Any], *arguments: Any, parameters: Iterable[Tensor] = ()) -> Any:
    """Call a function that computes in Python. If this thread is recording, each replay calls it again."""
    recording = kernels.recorder()
    if recording is None:
        return function(*arguments)
    parameters = list(parameters)
    for p in parameters:
        snapshot = recording.snapshot(p)
        snapshot.record_gradient_read(p)
        snapshot.changes_gradient = True
    if recording.watches_reads:
        for x in _flatten(arguments):
            if type(x) is np.ndarray:
                recording.record_read(x)
    call = PythonCallback(name, function, arguments, parameters)
    with kernels.pause_recording():
        result = call.record()
    recording.entries.append(call)
    return result


def replay_in_python(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a Function or an Optimizer, so that replays of a recorded step call it again in Python."""

    @functools.wraps(method)
    def wrapper(self: Any, *arguments: Any) -> Any:
        recording = kernels.recorder()
        if recording is None:
            return method(self, *arguments)
        parameters = self.parameters() if callable(self.parameters) else self.parameters
        name = f"{type(self).__name__}.{method.__name__}"
        original = recording.original(self) if method.__name__ == "forward" else None
        function = functools.partial(_call_method if original is None else _rerun_forward, method, self, original)
        return call_python(name, function, *arguments, parameters=parameters)

    return wrapper


def _call_method(method: Callable[..., Any], self: Any, original: Any, *arguments: Any) -> Any:
    return method(self, *arguments)


def _rerun_forward(method: Callable[..., Any], self: Any, original: Any, *arguments: Any) -> Any:
    """Run `forward` with the original's current attributes, as if the Function had just been applied."""
    self._restore_from(original)
    return method(self, *arguments)
