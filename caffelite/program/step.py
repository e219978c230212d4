"""A recorded step, with operands as places in memory: a buffer, an offset, strides.

The reasoning of the passes rests on one distinction. A buffer is *temporary* if the step writes it before it reads it
and nobody else can see it once the recording is over, which weak references tell. All else, parameters, gradients,
results, constants, stays where it lies, and is read and written there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite.recording import PythonCall


@dataclass(eq=False)
class Buffer:
    """Memory that a recorded step works on: what one array owns."""

    owner: weakref.ref[np.ndarray]
    address: int | None  # None: to be placed
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
class Instruction:
    """A recorded call with its operands, output first, None where there is none; and what it reads and writes."""

    call: kernels.RecordedCall
    operands: list[Operand | None]
    reads: list[Buffer]
    writes: list[Buffer]

    def placed(self) -> kernels.RecordedCall:
        """The call, told where its operands lie."""
        for i, operand in enumerate(self.operands):
            if operand is not None:
                assert operand.buffer.address is not None
                self.call.place(i, operand.buffer.address + operand.offset)
        return self.call


class Step(NamedTuple):
    """A recorded step, and what its calls' addresses point into, which has to live as long as they do."""

    instructions: list[Instruction | PythonCall]
    memory: list[Any]

    def operands(self) -> Iterator[tuple[int, Operand]]:
        """All operands of kernel calls, each with the number of its instruction, in order."""
        for i, instruction in enumerate(self.instructions):
            if isinstance(instruction, Instruction):
                for operand in instruction.operands:
                    if operand is not None:
                        yield i, operand


def recorded_step(entries: list) -> tuple[Step, list[Buffer]]:
    """A recording's entries as a Step, and all buffers that it works on.

    The entries let go of their arrays, so that weak references tell who else holds them.
    """
    buffers: dict[int, Buffer] = {}
    numbers: list[Any] = []
    instructions: list[Instruction | PythonCall] = []
    for entry in entries:
        if not isinstance(entry, kernels.RecordedCall):
            instructions.append(entry)
            continue
        operands: list[Operand | None] = []
        read, written = [], []
        reads, writes, constants = entry.reads, entry.writes, entry.constants
        for i, array in enumerate(entry.arrays):
            if array is None or constants >> i & 1:
                operands.append(None)
                numbers.append(array)
                continue
            owner = array if array.base is None else owner_of(array)
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
        instructions.append(Instruction(entry, operands, read, [operand.buffer for operand in written]))
    for entry in entries:
        if isinstance(entry, kernels.RecordedCall):
            entry.release()
    return Step(instructions, numbers), list(buffers.values())


def owner_of(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
