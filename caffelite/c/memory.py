"""The memory of recorded steps in C: constants, state with its first values, and an arena for temporaries.

A buffer of a recorded step is divided into regions: parts that no call's operand joins. A region that no call writes is
a constant. A region that is read before it is written is state, and has first values. Others, such as gradients, are
written before they are read, and need none. Temporaries have their places in arenas, one for each type, and memory is
used again once nobody reads it. An elementwise call may write its result over its input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.c.capture import Capture, Snapshots
from caffelite.program.ir import Buffer, Instruction, Operand, get_owner
from caffelite.program.passes.place_temporaries import assign_offsets

#: The type in C of an array's elements. Indices are short in C.
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int64": "int32_t",
    "int32": "int32_t",
    "bool": "uint8_t",
    "uint8": "uint8_t",
}
SIZES = {"double": 8, "uint64_t": 8, "float": 4, "int32_t": 4, "uint8_t": 1}
SEEDED = "uint64_t"  # the seed and the step of random numbers keep their 64 bits


@dataclass(eq=False)
class Region:
    """A part of a buffer, from byte `begin` to `end`. Temporaries have their place in an arena instead."""

    buffer: Buffer
    dtype: np.dtype
    begin: int
    end: int
    is_read_first: bool
    is_written: bool
    type: str = ""
    name: str = ""
    first_values: np.ndarray | None = None

    @property
    def size(self) -> int:
        return (self.end - self.begin) // self.dtype.itemsize

    @property
    def kind(self) -> str:
        return "state" if self.is_read_first and self.is_written else "scratch" if self.is_written else "constant"


@dataclass(eq=False)
class Arena:
    """Temporaries of one type: where each begins, by its buffer, and the size of the whole, in elements."""

    type: str
    name: str
    offsets: dict[Buffer, int] = field(default_factory=dict)
    size: int = 0


class Memory:
    """The memory of several captured steps, which share buffers."""

    def __init__(self, dtype: np.dtype, names: dict[int, str], snapshots: Snapshots) -> None:
        self.dtype, self.names, self.snapshots = dtype, names, snapshots
        self.number_type = C_TYPES[dtype.name]
        self.regions: list[Region] = []
        self.arenas: dict[str, Arena] = {}
        self.room = 0  # elements of memory inside a call
        self.tables: dict[bytes, tuple[str, np.ndarray]] = {}  # constants that calls need, with their names
        self._inputs: dict[int, str] = {}  # by the owner's id
        self._outputs: dict[int, str] = {}
        self._owners: dict[int, list[Region]] = {}
        self._seeded: set[Buffer] = set()

    def add(self, capture: Capture, inputs: Sequence[str], uses: list[list[int]]) -> None:
        """Add a step. `uses` are the numbers of the operands that each call needs in C."""
        for array, name in zip(capture.inputs, inputs, strict=True):
            self._inputs[id(array)] = name
        accesses: dict[Buffer, list[tuple[int, int, Operand, bool, bool]]] = {}
        for instruction, numbers in zip(capture.instructions, uses, strict=True):
            if instruction.call.facts.kernel == "next_draw":
                self._seeded.update(instruction.operands[i].buffer for i in numbers)  # type: ignore[union-attr]
            operands = [(i, instruction.operands[i]) for i in numbers]
            for i, operand in sorted(operands, key=lambda pair: not reads(instruction, pair[0])):
                if operand is None or operand.nbytes == 0:
                    continue
                begin, end = extent(operand)
                access = begin, end, operand, reads(instruction, i), bool(instruction.call.writes >> i & 1)
                accesses.setdefault(operand.buffer, []).append(access)
        for buffer, entries in accesses.items():
            owner = buffer.owner()
            if not buffer.is_temporary and id(owner) not in self._inputs:
                for begin, end, operand, is_read, is_written in entries:
                    self._add_access(buffer, operand.dtype, begin, end, is_read, is_written)
        buffers = {id(buffer.owner()): buffer for buffer in capture.buffers if not buffer.is_temporary}
        for array in capture.results:
            key = id(get_owner(array))
            if array.size and key in buffers and key not in self._inputs:
                begin, end = extent(Operand(buffers[key], array.view(np.ndarray)))
                self._add_access(buffers[key], array.dtype, begin, end, True, False)
        self._place_temporaries(capture, uses)

    def _add_access(
        self, buffer: Buffer, dtype: np.dtype, begin: int, end: int, is_read: bool, is_written: bool
    ) -> None:
        """Join what a call accesses with the regions that it overlaps. The earliest access decides what is first."""
        regions = self._owners.setdefault(id(buffer.owner()), [])
        joined = [r for r in regions if r.begin < end and begin < r.end]
        new = Region(buffer, dtype, begin, end, is_read, is_written)
        for region in joined:
            new.begin, new.end = min(new.begin, region.begin), max(new.end, region.end)
            new.is_written |= region.is_written
            regions.remove(region)
            self.regions.remove(region)
        if joined:
            new.is_read_first = any(r.is_read_first for r in joined) or (is_read and not covers(joined, begin, end))
        regions.append(new)
        self.regions.append(new)

    def finish(self, variable_ids: set[int]) -> None:
        """Give all regions their types, names and first values. Arrays with these ids are state in any case."""
        taken: dict[str, int] = {}
        for region in self.regions:
            owner: Any = region.buffer.owner()
            if id(owner) in variable_ids:
                region.is_read_first = region.is_written = True
            region.type = SEEDED if region.buffer in self._seeded else C_TYPES[region.dtype.name]
            name = self.names.get(id(owner), "array")
            number = taken[name] = taken.get(name, -1) + 1
            region.name = name if number == 0 and name != "array" else f"{name}_{number}"
            values = self.snapshots.find(owner).view(np.ndarray)
            flat = values.ravel(order="K").view(np.uint8)[region.begin : region.end].view(region.dtype)
            region.first_values = flat if region.kind != "scratch" else None

    def set_output(self, array: np.ndarray, name: str) -> None:
        """Let the step write this array straight into an array of the caller."""
        self._outputs[id(array)] = name
        self.regions = [r for r in self.regions if r.buffer.owner() is not array]

    def table(self, name: str, values: np.ndarray) -> str:
        """Return the name of a constant array, which is defined once."""
        key = values.dtype.char.encode() + values.tobytes()
        if key not in self.tables:
            self.tables[key] = f"{name}_{len(self.tables)}", values
        return self.tables[key][0]

    def pointer(self, operand: Operand | None) -> str:
        """Return C for the address of an operand; NULL if it has no elements."""
        if operand is None or operand.nbytes == 0:
            return "NULL"
        buffer, offset = operand.buffer, operand.offset
        if not buffer.is_temporary:
            return self._find(buffer.owner(), offset, operand.dtype) or "NULL"
        arena = self.arenas[self.type(operand)]
        return plus(f"ram.{arena.name}", arena.offsets.get(buffer, 0) + offset // operand.dtype.itemsize)

    def find_array(self, array: np.ndarray) -> str:
        """Return C for the address of an array that outlives the step. Raise TypeError if the step does not use it."""
        owner = get_owner(array)
        offset = kernels.address(array.view(np.ndarray)) - kernels.address(owner.view(np.ndarray))
        if found := self._find(owner, offset, array.dtype):
            return found
        raise TypeError("the step returns an array that none of its kernels uses")

    def _find(self, owner: Any, offset: int, dtype: np.dtype) -> str | None:
        """Return C for a place in an array that is not temporary; None if no call uses it."""
        for given in (self._inputs, self._outputs):
            if id(owner) in given:
                return plus(given[id(owner)], offset // dtype.itemsize)
        for region in self._owners.get(id(owner), ()):
            if region.begin <= offset < region.end:
                prefix = "" if region.kind == "constant" else "ram."
                return plus(prefix + region.name, (offset - region.begin) // dtype.itemsize)
        return None

    def type(self, operand: Operand) -> str:
        """Return the type of an operand's elements in C."""
        return SEEDED if operand.buffer in self._seeded else C_TYPES[operand.dtype.name]

    def inputs_in(self, text: str) -> list[str]:
        """Return the arrays of the caller that a text in C reads or writes, in their order."""
        names = dict.fromkeys([*self._inputs.values(), *self._outputs.values()])
        words = set(re.findall(r"\w+", text))
        return [name for name in names if name in words]

    # ---- temporaries ----

    def _place_temporaries(self, capture: Capture, uses: list[list[int]]) -> None:
        """Place the temporaries of a step. The arenas of all steps are the same memory."""
        lives, sizes = _find_lives(capture, uses)
        share = _find_shared(capture, uses, lives)
        by_type: dict[str, dict[Buffer, list[int]]] = {}
        for buffer, (begin, end, operand) in lives.items():
            place = share.get(buffer, buffer)
            life = by_type.setdefault(self.type(operand), {}).setdefault(place, [begin, end, 0])
            life[0], life[1] = min(life[0], begin), max(life[1], end)
            life[2] = max(life[2], sizes[buffer] // operand.dtype.itemsize)
        for kind, found in by_type.items():
            name = "memory" if kind == self.number_type else f"memory_{kind}"
            arena = self.arenas.setdefault(kind, Arena(kind, name))
            ordered = dict(sorted(found.items(), key=lambda item: item[1][0]))
            offsets, size = assign_offsets({buffer: (a, b, n) for buffer, (a, b, n) in ordered.items()})
            arena.offsets |= offsets
            arena.size = max(arena.size, size, 1)
        for buffer, place in share.items():
            for arena in self.arenas.values():
                if place in arena.offsets:
                    arena.offsets[buffer] = arena.offsets[place]


def _find_lives(
    capture: Capture, uses: list[list[int]]
) -> tuple[dict[Buffer, tuple[int, int, Operand]], dict[Buffer, int]]:
    """Return the first and the last call of each temporary, with one of its operands, and its size in bytes."""
    lives: dict[Buffer, tuple[int, int, Operand]] = {}
    sizes: dict[Buffer, int] = {}
    packed: set[Buffer] = set()
    for i, (instruction, numbers) in enumerate(zip(capture.instructions, uses, strict=True)):
        facts = instruction.call.facts
        for number in numbers:
            operand = instruction.operands[number]
            if operand is None or not operand.buffer.is_temporary:
                continue
            buffer = operand.buffer
            begin, _, first = lives.get(buffer, (i, i, operand))
            lives[buffer] = begin, i, first
            if facts.kernel == "pack" and number == 0:  # in C, a matrix; the strips depend on the processor
                packed.add(buffer)
                sizes[buffer] = facts.sizes[0] * facts.sizes[1] * operand.dtype.itemsize
            elif buffer not in packed:
                sizes[buffer] = max(sizes.get(buffer, 0), extent(operand)[1])
    return lives, sizes


def _find_shared(
    capture: Capture, uses: list[list[int]], lives: dict[Buffer, tuple[int, int, Operand]]
) -> dict[Buffer, Buffer]:
    """Return the results of elementwise calls that can be written over an input, with the buffer that has the place.

    An input may itself be written over another one.
    """
    share: dict[Buffer, Buffer] = {}
    for i, (instruction, numbers) in enumerate(zip(capture.instructions, uses, strict=True)):
        facts, y = instruction.call.facts, instruction.operands[0]
        if not instruction.call.is_elementwise or facts.op == "nothing" or y is None or not y.buffer.is_temporary:
            continue
        if lives[y.buffer][0] != i:
            continue
        for number in numbers[1:]:
            x = instruction.operands[number]
            if (
                x is not None
                and x.buffer is not y.buffer
                and x.buffer.is_temporary
                and lives[x.buffer][1] == i
                and instruction.call.writes >> number & 1 == 0
                and x.dtype == y.dtype
                and x.offset == y.offset == 0
                and x.nbytes == y.nbytes == x.buffer.nbytes == y.buffer.nbytes
                and facts.strides[number] == facts.strides[0]
            ):
                share[y.buffer] = share.get(x.buffer, x.buffer)
                break
    return share


def reads(instruction: Instruction, number: int) -> bool:
    """Return whether a call reads an operand in C."""
    facts = instruction.call.facts
    if facts.kernel == "use_rows" and number == 0:  # in C, it sets all of it to 0
        return bool(facts.accumulates)
    return bool(instruction.call.reads >> number & 1)


def extent(operand: Operand) -> tuple[int, int]:
    """Return the first byte of an operand in its buffer, and the byte after its last."""
    if operand.nbytes == 0:
        return operand.offset, operand.offset
    reach = [(n - 1) * stride for n, stride in zip(operand.shape, operand.strides, strict=True)]
    begin = operand.offset + sum([min(r, 0) for r in reach])
    return begin, operand.offset + sum([max(r, 0) for r in reach]) + operand.dtype.itemsize


def covers(regions: list[Region], begin: int, end: int) -> bool:
    """Return whether regions cover all bytes from `begin` to `end`."""
    for region in sorted(regions, key=lambda region: region.begin):
        if region.begin > begin:
            return False
        begin = max(begin, region.end)
    return begin >= end


def plus(name: str, offset: int) -> str:
    return f"{name} + {offset}" if offset else name
