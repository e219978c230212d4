"""Program: a step recorded once, replayed without Python.

Recording runs the step as it is and notes every kernel call with the arrays it was bound to (`core/recording.py`). What
comes out is a list of calls whose operands are places in memory (`step.py`). A few passes tidy it (`passes/`):

    drop_unread       calls whose results nobody reads, such as the gradient of the data
    fuse_epilogue     what follows a matrix product element by element into that product
    place_temporaries what only the step itself can see, in one block of memory that serves again and again

and the replay is a loop over the calls (`_kernels/replay.pyx`). Every pass leaves every bit of the result as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.autograd import Node, results_so_far
from caffelite.core.cautions import NotRecorded, warn
from caffelite.core.interrupts import InterruptsBetweenSteps
from caffelite.core.recording import Obstacle, PythonCall, Recording, with_tensors
from caffelite.core.sparse import array_of, rows_from
from caffelite.core.tables import Table, table
from caffelite.program.passes import PASSES
from caffelite.program.running import Precondition, Runner, StateChange, mapped, plain
from caffelite.program.step import Buffer, Instruction, Step, owner_of, recorded_step


class Program(Runner):
    """A recorded step. Called with new arrays of the same shapes and dtypes, it is replayed; returns copies of results.

    After a call, parameters, gradients and the optimizer's state are what the step itself would have left. Where it
    can't be replayed, because a Tensor's array was moved, or a gradient is there that was not before (or the reverse),
    it is recorded anew. Raises ValueError for other shapes and TypeError for other dtypes.

    `print(program)` lists the kernels, and so does a notebook; `profile(replays)` says where the time goes.
    """

    def __init__(self, function: Callable[..., Any] | None = None, *, strict: bool = False) -> None:
        self._step = Step([], [])
        self.used: Any = None  # what has to live as long as the Program does
        self.strict = strict
        self.warned_of: set[str] = set()  # of which obstacles the user has been warned
        self.nbytes = 0  # of the memory that it has for itself: what it reads, and what it keeps between kernels
        self.asked_for = 0  # which request for one of a model's Programs was the last for this one
        self._changes = 0  # how many times in a row the step has changed what it decides by

    def record(self, function: Callable[..., Any], *arrays: np.ndarray) -> None:
        """Run `function` on the arrays, really, and keep what it did.

        A step that can't be replayed has been made all the same. It is a TypeError if the Program is `strict`; else the
        Program `runs_eagerly` from now on, and says so in a warning, `NotRecorded`. A step that has changed what it
        decides by may only have prepared something, and gets a second chance.
        """
        inputs = [np.array(array_of(array), order="C") for array in arrays]
        recording, results_before = Recording(self.strict), results_so_far()
        with InterruptsBetweenSteps() as interrupts, interrupts.held(), recording:
            if self.function is not None:
                recording.note_decider(self.function)
            result = plain(function(*[rows_from(x.view(kernels.Recorded)) for x in inputs]))
        change = recording.change()
        self._changes = 0 if change is None else self._changes + 1
        if obstacle := recording.obstacle or change:
            self.forget(result)
            if recording.obstacle or self.strict or self._changes > 1:
                self._give_up(obstacle)
            return
        all_notes, attributes, entries = recording.notes(), recording.attributes(), recording.entries
        replaced = {id(owner_of(x._data if isinstance(x, Node) else x)) for x in recording.replaced()}
        del recording
        step, buffers = recorded_step(entries)
        del entries
        notes = with_tensors(all_notes)  # of Tensors that others know, now that the recording has let go of its own
        del all_notes
        found = [Precondition(t, note.gradient_before, needed=t._serial_number <= results_before) for t, note in notes]
        of_python = [array for call in step.instructions if isinstance(call, PythonCall) for array in call.outputs]
        of_tensors = [array for t, _ in notes for array in (t._data, t._gradient)]
        if obstacle := _foreign(result, [*inputs, *of_python, *of_tensors], buffers) or _read_early(buffers, replaced):
            self.forget(result)
            self._give_up(obstacle)
            return
        written = {id(buffer.owner()) for buffer in buffers if buffer.written is not False} | {id(x) for x in inputs}
        effects = [
            StateChange(t, t._has_gradient if note.gradient_set else None, changed)
            for t, note in notes
            if (changed := id(owner_of(t._data)) in written or t._version[0] != note.version) or note.gradient_set
        ]
        for buffer in buffers:
            owner = buffer.owner()
            buffer.temporary = owner is None
            step.memory.append(owner)  # what the calls' addresses point into
            if not buffer.temporary:
                continue
            buffer.address = None
        of_others = len(step.memory)
        for tidied in PASSES:
            step = tidied(step)
        _place_the_rest(step)
        calls = [call.placed() if isinstance(call, Instruction) else call for call in step.instructions]
        self._step = step
        self.nbytes = sum(array.nbytes for array in (*inputs, *step.memory[of_others:]))
        self.keep(kernels.Replay(calls, step.memory), inputs, result, found, attributes, effects)

    def _give_up(self, obstacle: Obstacle) -> None:
        """The step can't be replayed: TypeError if the Program is strict, else from now on it is made in Python."""
        reason, line = obstacle.reason, obstacle.line
        if self.strict:
            raise TypeError(reason if line is None else f"{reason} ({line})")
        self.runs_eagerly = True
        if reason in self.warned_of:
            return
        self.warned_of.add(reason)
        text = f"steps run in Python, with the right numbers but slower, since they can't be recorded: {reason}"
        warn(text, NotRecorded, line)

    def __len__(self) -> int:
        return len(self._step.instructions)

    def __str__(self) -> str:
        return self._listing()

    def _repr_html_(self) -> str:
        return self._listing()._repr_html_()

    def _listing(self) -> Table:
        return table(["kernel", "shapes", "FLOP", "bytes"], [_facts(call) for call in self._step.instructions], "<<>>")

    def profile(self, replays: int = 100) -> Table:
        """A table of each kernel's time, the least of so many replays, its GFLOP/s and GB/s, and its share of the step.

        The replays are real steps, on the data of the last one: a step that trains goes on training.
        """
        with self.lock:
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

    Raises TypeError, saying what and in which line, for what can't be recorded: NumPy arithmetic on a recorded array,
    reading its value, an array that NumPy made inside, random numbers drawn in Python, or a change of a variable or an
    attribute that the function decides by.
    """
    program = Program(function, strict=True)
    program(*example_arrays)
    return program


def _place_the_rest(step: Step) -> None:
    """Give every temporary that no pass has placed memory of its own."""
    for _, operand in step.operands():
        if operand.buffer.address is None:
            block = np.full(operand.buffer.nbytes + 1, 0xFF, dtype=np.uint8)
            operand.buffer.address = kernels.address(block)
            step.memory.append(block)


def _foreign(result: Any, known: list[np.ndarray | None], buffers: list[Buffer]) -> Obstacle | None:
    """An array in the result that neither kernels made nor Tensors and arguments own: a replay would not make it."""
    owners = {id(owner_of(array)) for array in known if array is not None}
    owners |= {id(buffer.owner()) for buffer in buffers}
    foreign: list[np.ndarray] = []

    def look(x: Any) -> None:
        if isinstance(x, np.ndarray) and id(owner_of(x)) not in owners:
            foreign.append(x)

    mapped(look, result)
    if not foreign:
        return None
    return Obstacle(
        f"the recorded function returns an array of shape {foreign[0].shape} that NumPy made; a replay would not make "
        "it again. Compute it with caffelite's Functions or kernels"
    )


def _read_early(buffers: list[Buffer], replaced: set[int]) -> Obstacle | None:
    """A buffer that nobody keeps, or that the step has replaced, and that one of its kernels read before it wrote it.

    NumPy made it, or the step before.
    """
    for buffer in buffers:
        if buffer.read_early is not None and (buffer.owner() is None or id(buffer.owner()) in replaced):
            name, line = buffer.read_early
            return Obstacle(
                f"{name} reads an array that NumPy made inside the recorded function; a replay would not make it "
                "again. Make it outside and keep it, or use caffelite's Functions or kernels",
                line,
            )
    return None


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
