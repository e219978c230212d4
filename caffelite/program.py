"""Program: a step recorded once, replayed without Python.

Recording runs the step as it is and notes every kernel call with the arrays it was bound to (`recording.py`). What
comes out is a list of calls whose operands are places in memory: a buffer, an offset, strides. A few passes tidy it:

    drop_unread       calls whose results nobody reads, such as the gradient of the data
    fuse_relu         ReLU into the matrix product before it, its gradient's mask into the one before that
    place_temporaries what only the step itself can see, next to each other in one block of memory

and the replay is a loop over the calls (`_kernels.tape`). Every pass leaves every bit of the result as it is.

The reasoning rests on one distinction. A buffer is *temporary* if the step writes it before it reads it and nobody
else can see it once the recording is over, which weak references tell. All else, parameters, gradients, results,
constants, stays where it lies, and is read and written there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite.interrupts import InterruptsBetweenSteps
from caffelite.modes import mode
from caffelite.recording import Note, PythonCall, Recording, with_tensors
from caffelite.tables import table
from caffelite.tensor import Tensor

ALIGNMENT = 64  # bytes; a cache line, and the widest vector register


# ---- the recorded step ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Buffer:
    """Memory that a recorded step works on: what one array owns."""

    owner: weakref.ref[np.ndarray]
    address: int
    nbytes: int
    written: bool | np.ndarray = False  # whether the step has written it so far: all, nothing, or byte by byte
    read_early: str = ""  # the kernel that read it before all of it was written
    temporary: bool = False


class Operand(NamedTuple):
    """Where an operand of a call lies, and what it is."""

    buffer: Buffer
    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    dtype: np.dtype
    nbytes: int

    def is_written(self) -> bool:
        """Whether the step has written all of this operand."""
        written = self.buffer.written
        if isinstance(written, bool):
            return written or self.nbytes == 0
        return bool(self._bytes_of(written).all())

    def note_written(self) -> None:
        """The step writes all of this operand."""
        if self.nbytes == self.buffer.nbytes:
            self.buffer.written = True
        elif self.buffer.written is not True and self.nbytes > 0:
            if self.buffer.written is False:
                self.buffer.written = np.zeros(self.buffer.nbytes, np.bool_)
            self._bytes_of(self.buffer.written)[...] = True

    def _bytes_of(self, buffer: np.ndarray) -> np.ndarray:
        """Its bytes among those of the buffer, as a view."""
        shape, strides = (*self.shape, self.dtype.itemsize), (*self.strides, 1)
        return np.ndarray(shape, buffer.dtype, buffer, self.offset, strides)


@dataclass(eq=False)
class Call:
    """A recorded kernel with its operands, output first, None where there is none; and what it reads and writes."""

    kernel: kernels.Kernel
    operands: list[Operand | None]
    reads: list[Buffer]
    writes: list[Buffer]

    def placed(self) -> kernels.Kernel:
        """The kernel, told where its operands lie."""
        for i, operand in enumerate(self.operands):
            if operand is not None:
                self.kernel.place(i, operand.buffer.address + operand.offset)
        return self.kernel


Step = list[Call | PythonCall]


def _step(entries: list) -> tuple[Step, list[Buffer], list[np.ndarray | None]]:
    """A recording's entries as calls on buffers, all these buffers, and the arrays that borders made from numbers.

    The entries let go of their arrays, so that weak references tell who else holds them.
    """
    buffers: dict[int, Buffer] = {}
    numbers: list[np.ndarray | None] = []
    step: Step = []
    for entry in entries:
        if not isinstance(entry, kernels.Kernel):
            step.append(entry)
            continue
        operands: list[Operand | None] = []
        read, written = [], []
        reads, writes, constants = entry.reads, entry.writes, entry.constants
        for i, array in enumerate(entry.arrays):
            if array is None or constants >> i & 1:
                operands.append(None)
                numbers.append(array)
                continue
            owner = array if array.base is None else _owner(array)
            buffer = buffers.get(id(owner))
            if buffer is None:
                buffer = buffers[id(owner)] = Buffer(weakref.ref(owner), kernels.address(owner), owner.nbytes)
            offset = 0 if array is owner else kernels.address(array) - buffer.address
            operand = Operand(buffer, offset, array.shape, array.strides, array.dtype, array.nbytes)
            operands.append(operand)
            if reads >> i & 1:
                read.append(buffer)
                if not operand.is_written():
                    buffer.read_early = buffer.read_early or entry.name
            if writes >> i & 1:
                written.append(operand)
        for operand in written:
            operand.note_written()
        step.append(Call(entry, operands, read, [operand.buffer for operand in written]))
    for entry in entries:
        if isinstance(entry, kernels.Kernel):
            entry.release()
    return step, list(buffers.values()), numbers


# ---- passes: a step in, a shorter or better placed one out ----------------------------------------------------------


def drop_unread(step: Step) -> Step:
    """Leave out the calls that write nothing but temporaries which no later call reads."""
    kept: Step = []
    wanted: set[Buffer] = set()
    for call in reversed(step):
        if isinstance(call, Call):
            if not call.kernel.stops and all(b.temporary and b not in wanted for b in call.writes):
                continue
            wanted.update(call.reads)
        kept.append(call)
    return kept[::-1]


def fuse_relu(step: Step) -> Step:
    """Let a matrix product store max(y, 0), or 0 where a mask is not above 0, instead of a call of its own after it.

    Both times the product's own result has to be a temporary that nobody but that call reads.
    """
    fused: list[Call | PythonCall | None] = list(step)
    users: dict[Buffer, list[int]] = {}
    for i, call in enumerate(step):
        for buffer in (*call.reads, *call.writes) if isinstance(call, Call) else ():
            users.setdefault(buffer, []).append(i)

    for k, relu in enumerate(step):
        if not isinstance(relu, Call) or relu.kernel.name not in ("relu", "relu_grad"):
            continue
        out, x, mask = relu.operands[:3]
        if out is None or x is None or (mask is None) != (relu.kernel.name == "relu") or not x.buffer.temporary:
            continue
        i = users[x.buffer][0]
        product = fused[i]
        if not isinstance(product, Call) or product.kernel.name != "matmul" or users[x.buffer] != [i, k]:
            continue
        if (
            out.buffer in (*product.reads, mask and mask.buffer)  # a long sum's parts wait in the output
            or product.operands[0] != x
            or out.shape != x.shape
            or (mask or x).shape != x.shape
        ):
            continue
        # What was done at k is done at i now. Nobody in between may use the result's memory or write the mask.
        calls = [call for call in step[i + 1 : k] if isinstance(call, Call)]
        if len(calls) < k - i - 1 or any(out.buffer in (*call.reads, *call.writes) for call in calls):
            continue
        if mask is not None and any(mask.buffer in call.writes for call in calls):
            continue
        fused[i], fused[k] = _fused(product, out, mask), None
    return [call for call in fused if call is not None]


def _fused(product: Call, out: Operand, mask: Operand | None) -> Call:
    kernel = product.kernel.copy("matmul_relu" if mask is None else "matmul_relu_grad")
    kernel.lay(0, tuple(s // out.dtype.itemsize for s in out.strides))
    if mask is None:
        kernel.set_relu()
    else:
        kernel.set_mask()
        kernel.lay(4, tuple(s // mask.dtype.itemsize for s in mask.strides))
    reads = product.reads if mask is None else [*product.reads, mask.buffer]
    return Call(kernel, [out, *product.operands[1:4], mask], reads, [out.buffer])


def place_temporaries(step: Step) -> np.ndarray:
    """Give every temporary of the step an address in one block of memory, aligned, and return the block.

    It is filled with NaN, so that a call that read before it wrote would be seen.
    """
    temporaries = _temporaries(step)
    room = [-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in temporaries]
    block = np.full(sum(room) + ALIGNMENT, 0xFF, dtype=np.uint8)
    address = -(-kernels.address(block) // ALIGNMENT) * ALIGNMENT
    for buffer, size in zip(temporaries, room, strict=True):
        buffer.address = address
        address += size
    return block


def scatter_temporaries(step: Step) -> list[np.ndarray]:
    """Give every temporary memory of its own; what `place_temporaries` is compared with."""
    blocks = []
    for buffer in _temporaries(step):
        blocks.append(np.full(buffer.nbytes + 1, 0xFF, dtype=np.uint8))
        buffer.address = kernels.address(blocks[-1])
    return blocks


def _temporaries(step: Step) -> list[Buffer]:
    calls = [call for call in step if isinstance(call, Call)]
    return list(
        dict.fromkeys(x.buffer for call in calls for x in call.operands if x is not None and x.buffer.temporary)
    )


#: The passes that a Program takes, in this order; the last one places what the others have left.
PASSES = [drop_unread, fuse_relu, place_temporaries]


# ---- the Program ----------------------------------------------------------------------------------------------------


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
        self._step: Step = []
        self._result: Any = None
        self.tape = kernels.Tape([])
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
                    stopped = self.tape.replay()
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
        """After replays of the tape, note on the Tensors what has happened to them."""
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
        step, buffers, numbers = _step(entries)
        del entries
        notes = with_tensors(all_notes)  # of Tensors that others know, now that the recording has let go of its own
        del all_notes
        depends_on = [_state(t, note) for t, note in notes] + attributes
        of_python = [array for call in step if isinstance(call, PythonCall) for array in call.outputs]
        of_tensors = [array for t, _ in notes for array in (t._data, t._gradient)]
        _check_result(result, [*inputs, *of_python, *of_tensors], buffers)
        written = {id(buffer.owner()) for buffer in buffers if buffer.written is not False} | {id(x) for x in inputs}
        effects = [Effect.on(t, note, id(_owner(t._data)) in written) for t, note in notes]
        memory: list[Any] = [numbers]  # what the calls' addresses point into
        for buffer in buffers:
            owner = buffer.owner()
            buffer.temporary = owner is None
            memory.append(owner)
            if buffer.temporary and buffer.read_early:
                raise TypeError(
                    f"{buffer.read_early} reads an array that NumPy made inside the recorded function; a replay would "
                    "not make it anew. Make it outside and keep it, or use caffelite's Functions or kernels"
                )
        for tidied_by in (drop_unread, fuse_relu):
            if tidied_by in PASSES:
                step = tidied_by(step)
        memory.append((place_temporaries if place_temporaries in PASSES else scatter_temporaries)(step))
        self.tape = kernels.Tape([call.placed() if isinstance(call, Call) else call for call in step], memory)
        self._inputs, self._step, self._result = inputs, step, result
        self._depends_on, self._mode = depends_on, (mode.records_graph, mode.training)
        self._effects = [effect for effect in effects if effect.changed or effect.has_gradient is not None]

    def __len__(self) -> int:
        return len(self._step)

    def __str__(self) -> str:
        return table(["kernel", "shapes", "FLOP", "bytes"], [_facts(call) for call in self._step], "<<>>")

    def profile(self, replays: int = 100) -> str:
        """A table of each kernel's time, the least of so many replays, its GFLOP/s and GB/s, and its share of the step.

        The replays are real steps, on the data of the last one: a step that trains goes on training.
        """
        with self._lock:
            if not self.is_current():
                raise RuntimeError("there is nothing up to date to profile: call the Program first")
            seconds = self.tape.seconds(replays)
            self.replayed()
        rows = []
        for call, time in zip(self._step, seconds, strict=True):
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
    owners = {id(_owner(array)) for array in known if array is not None}
    owners |= {id(buffer.owner()) for buffer in buffers}

    def check(x: Any) -> None:
        if isinstance(x, np.ndarray) and id(_owner(x)) not in owners:
            raise TypeError(
                f"the recorded function returns an array of shape {x.shape} that NumPy made; a replay would not make "
                "it anew. Compute it with caffelite's Functions or kernels"
            )

    _mapped(check, result)


def _owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


# ---- tables ---------------------------------------------------------------------------------------------------------


def _facts(call: Call | PythonCall) -> list[str]:
    """Name, shapes, FLOPs (of matrix products, which have nearly all) and bytes of a call."""
    if isinstance(call, PythonCall):
        shapes = [x.shape for x in call.arguments if isinstance(x, np.ndarray)]
        return [f"Python: {call.name}", " ".join(map(_shape, shapes)), "", ""]
    operands = [x for x in call.operands if x is not None]
    return [
        call.kernel.name,
        " ".join(_shape(x.shape) for x in operands),
        f"{call.kernel.work:,.0f}" if call.kernel.name.startswith("matmul") else "",
        f"{sum(x.nbytes for x in operands):,}",
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "1"
