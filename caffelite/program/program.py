"""Program: a step recorded once, replayed without Python.

Recording runs the step as it is and notes every kernel call with the arrays it was bound to (`recording.py`). What
comes out is a list of calls whose operands are places in memory (`step.py`). A few passes tidy it (`passes/`):

    drop_unread       calls whose results nobody reads, such as the gradient of the data
    fuse_epilogue     what follows a matrix product element by element into that product
    place_temporaries what only the step itself can see, in one block of memory that serves again and again

and the replay is a loop over the calls (`_kernels/replay.pyx`). Every pass leaves every bit of the result as it is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite.interrupts import InterruptsBetweenSteps
from caffelite.modes import mode
from caffelite.program.passes import PASSES
from caffelite.program.step import Buffer, Instruction, Step, owner_of, recorded_step
from caffelite.recording import Note, PythonCall, Recording, with_tensors
from caffelite.tables import table
from caffelite.tensor import Tensor


def _state(t: Tensor, note: Note) -> kernels.Attributes:
    """How the step has to find a Tensor if it is to do what it did when it was recorded."""
    attributes = {"_data": t._data, "_gradient": t._gradient, "_requires_grad": t._requires_grad}
    if note.gradient_before is not None:  # else it made no difference
        attributes["_has_gradient"] = note.gradient_before
    return kernels.Attributes(t, attributes, needed=True)  # it may be gone because another is in its place


class Effect(NamedTuple):
    """What the step does to a Tensor, besides what its kernels write."""

    tensor: weakref.ref[Tensor]
    has_gradient: bool | None  # whether it has one afterwards; None where the step leaves that as it was
    changed: bool  # whether its values are others

    @classmethod
    def on(cls, t: Tensor, note: Note, written: bool) -> Effect:
        return cls(
            note.tensor, t._has_gradient if note.gradient_set else None, written or t._version[0] != note.version
        )


class Program:
    """A recorded step. Called with new arrays of the same shapes and dtypes, it is replayed; returns copies of results.

    After a call, parameters, gradients and the optimizer's state are what the step itself would have left. Where it
    can't be replayed, because a Tensor's array was moved, or a gradient is there that was not before (or the reverse),
    it is recorded anew. Raises ValueError for other shapes and TypeError for other dtypes.

    `print(program)` lists the kernels; `profile(replays)` says where the time goes.
    """

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function = function
        self._lock = threading.RLock()
        self._depends_on: list[kernels.Attributes] | None = None  # None: nothing is recorded yet
        self._effects: list[Effect] = []
        self._mode = (True, True)
        self._inputs: list[np.ndarray] = []
        self._step = Step([], [])
        self._result: Any = None
        self.replay = kernels.Replay([])
        self.used: Any = None  # what has to live as long as the Program does

    def __call__(self, *arrays: Any) -> Any:
        if self._function is None:
            raise TypeError("this Program belongs to a Model; call `run` with the function that it stands for")
        return self.run(self._function, *arrays)

    def run(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """Replay on these arrays, or record `function` on them; returns copies of its results."""
        given = [x if type(x) is np.ndarray else np.asanyarray(x.data if isinstance(x, Tensor) else x) for x in arrays]
        if kernels.recorder() is not None:  # inside a step that is being recorded: a part of it
            return _plain(function(*given))
        with self._lock:
            if self._depends_on is not None:
                self._check_like_before(given)
            if self.is_current():
                for buffer, array in zip(self._inputs, given):  # noqa: B905 (slower with strict)
                    buffer[...] = array
                try:
                    stopped = self.replay.run()
                finally:  # what it did before it stopped may have been anything
                    self.replayed()
                if stopped is not None:
                    stopped.raise_why()
            else:
                self.record(function, *given)
            return _copied(self._result)

    def _check_like_before(self, arrays: list[np.ndarray]) -> None:
        if len(arrays) != len(self._inputs):
            raise TypeError(f"the Program was recorded with {len(self._inputs)} arrays, got {len(arrays)}")
        if all(map(kernels.alike, arrays, self._inputs)):  # as is usual, and in no time
            return
        for i, (array, buffer) in enumerate(zip(arrays, self._inputs, strict=True)):
            if array.shape != buffer.shape:
                raise ValueError(f"argument {i} was recorded with shape {buffer.shape}, got {array.shape}")
            if array.dtype != buffer.dtype:
                raise TypeError(f"argument {i} was recorded with dtype {buffer.dtype}, got {array.dtype}")

    def is_current(self) -> bool:
        """Whether a replay would do what the step would."""
        return (
            self._depends_on is not None
            and self._mode == (mode.records_graph, mode.training)
            and kernels.are_unchanged(self._depends_on)
        )

    def replayed(self) -> None:
        """After replays, note on the Tensors what has happened to them."""
        for tensor, has_gradient, changed in self._effects:
            t = tensor()
            if t is not None:
                if has_gradient is not None:
                    t._has_gradient = has_gradient
                if changed:
                    t._changed()

    def record(self, function: Callable[..., Any], *arrays: np.ndarray) -> None:
        """Run `function` on the arrays, really, and keep what it did."""
        inputs = [np.array(array, order="C") for array in arrays]
        recording = Recording()
        with InterruptsBetweenSteps() as interrupts, interrupts.held(), recording:
            result = _plain(function(*[x.view(kernels.Recorded) for x in inputs]))
        all_notes, attributes, entries = recording.notes(), recording.attributes(), recording.entries
        del recording
        step, buffers = recorded_step(entries)
        del entries
        notes = with_tensors(all_notes)  # of Tensors that others know, now that the recording has let go of its own
        del all_notes
        depends_on = [_state(t, note) for t, note in notes] + attributes
        of_python = [array for call in step.instructions if isinstance(call, PythonCall) for array in call.outputs]
        of_tensors = [array for t, _ in notes for array in (t._data, t._gradient)]
        _check_result(result, [*inputs, *of_python, *of_tensors], buffers)
        written = {id(buffer.owner()) for buffer in buffers if buffer.written is not False} | {id(x) for x in inputs}
        effects = [Effect.on(t, note, id(owner_of(t._data)) in written) for t, note in notes]
        for buffer in buffers:
            owner = buffer.owner()
            buffer.temporary = owner is None
            step.memory.append(owner)  # what the calls' addresses point into
            if not buffer.temporary:
                continue
            buffer.address = None
            if buffer.read_early:
                raise TypeError(
                    f"{buffer.read_early} reads an array that NumPy made inside the recorded function; a replay would "
                    "not make it anew. Make it outside and keep it, or use caffelite's Functions or kernels"
                )
        for tidied in PASSES:
            step = tidied(step)
        _place_the_rest(step)
        calls = [call.placed() if isinstance(call, Instruction) else call for call in step.instructions]
        self.replay = kernels.Replay(calls, step.memory)
        self._inputs, self._step, self._result = inputs, step, result
        self._depends_on, self._mode = depends_on, (mode.records_graph, mode.training)
        self._effects = [effect for effect in effects if effect.changed or effect.has_gradient is not None]

    def __len__(self) -> int:
        return len(self._step.instructions)

    def __str__(self) -> str:
        return table(["kernel", "shapes", "FLOP", "bytes"], [_facts(call) for call in self._step.instructions], "<<>>")

    def profile(self, replays: int = 100) -> str:
        """A table of each kernel's time, the least of so many replays, its GFLOP/s and GB/s, and its share of the step.

        The replays are real steps, on the data of the last one: a step that trains goes on training.
        """
        with self._lock:
            if not self.is_current():
                raise RuntimeError("there is nothing up to date to profile: call the Program first")
            seconds = self.replay.seconds(replays)
            self.replayed()
        rows = []
        for call, time in zip(self._step.instructions, seconds, strict=True):
            name, shapes, *amounts = _facts(call)
            rates = [f"{float(x.replace(',', '')) / time / 1e9:.1f}" if x else "" for x in amounts]
            rows.append([name, shapes, f"{time * 1e6:.2f}", *rates, f"{time / seconds.sum():.0%}"])
        rows.append(["total", "", f"{seconds.sum() * 1e6:.2f}", "", "", ""])
        return table(["kernel", "shapes", "µs", "GFLOP/s", "GB/s", "share"], rows, "<<>>>>")


def capture(function: Callable[..., Any], *example_arrays: Any) -> Program:
    """Run `function` on the arrays, really, and record what it does as a Program.

    `function` gets arrays and may return Tensors, arrays, or tuples or lists of them. It has to compute with
    Functions, Tensors, losses, optimizers and kernels. An array made outside and kept by somebody is a constant, read
    at each replay.

    Raises TypeError, saying what, for what can't be recorded: NumPy arithmetic on a recorded array, reading its
    value, or an array that NumPy made inside.
    """
    program = Program(function)
    program(*example_arrays)
    return program


def _place_the_rest(step: Step) -> None:
    """Give every temporary that no pass has placed memory of its own."""
    for _, operand in step.operands():
        if operand.buffer.address is None:
            block = np.full(operand.buffer.nbytes + 1, 0xFF, dtype=np.uint8)
            operand.buffer.address = kernels.address(block)
            step.memory.append(block)


def _plain(result: Any) -> Any:
    """A step's result with arrays instead of Tensors."""
    return _mapped(lambda x: x.data if isinstance(x, Tensor) else x, result)


def _copied(result: Any) -> Any:
    return _mapped(lambda x: np.array(x) if isinstance(x, np.ndarray) else x, result)


def _mapped(f: Callable[[Any], Any], result: Any) -> Any:
    """The result with f of everything in it, through tuples, lists and dicts."""
    if isinstance(result, np.ndarray):
        return f(result)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*[_mapped(f, x) for x in result])
    if isinstance(result, tuple | list):
        return type(result)(_mapped(f, x) for x in result)
    if isinstance(result, dict):
        return {key: _mapped(f, x) for key, x in result.items()}
    return f(result)


def _check_result(result: Any, known: list[np.ndarray | None], buffers: list[Buffer]) -> None:
    """TypeError for an array that neither kernels made nor Tensors and arguments own; a replay would not make it."""
    owners = {id(owner_of(array)) for array in known if array is not None}
    owners |= {id(buffer.owner()) for buffer in buffers}

    def check(x: Any) -> None:
        if isinstance(x, np.ndarray) and id(owner_of(x)) not in owners:
            raise TypeError(
                f"the recorded function returns an array of shape {x.shape} that NumPy made; a replay would not make "
                "it anew. Compute it with caffelite's Functions or kernels"
            )

    _mapped(check, result)


# ---- tables ---------------------------------------------------------------------------------------------------------


def _facts(instruction: Instruction | PythonCall) -> list[str]:
    """Name, shapes, FLOPs (of matrix products, which have nearly all) and bytes of a call."""
    if isinstance(instruction, PythonCall):
        shapes = [x.shape for x in instruction.arguments if isinstance(x, np.ndarray)]
        return [f"Python: {instruction.name}", " ".join(map(_shape, shapes)), "", ""]
    operands, flops = [x for x in instruction.operands if x is not None], instruction.call.flops
    return [
        instruction.call.name,
        " ".join(_shape(x.shape) for x in operands),
        "" if flops is None else f"{flops:,}",
        f"{sum(x.nbytes for x in operands):,}",
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "1"
