"""Stages of a Program: the step as it was recorded and after each pass, with the places of temporaries and times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.text_table import format_bytes
from caffelite.core.python_callback import PythonCallback
from caffelite.program.ir import Buffer, Instruction, RecordedStep
from caffelite.program.labels import describe_call, shape_text
from caffelite.program.passes.place_temporaries import aligned_size, make_block


class Stage(NamedTuple):
    """A step between two passes."""

    name: str  # "as recorded", "after drop_unread"
    instructions: list[Instruction | PythonCallback]
    offsets: dict[Buffer, int]  # bytes from the first temporary; of those that have no place yet, as if one by one
    size: int  # bytes of all temporaries

    @classmethod
    def from_step(cls, name: str, step: RecordedStep) -> Stage:
        """Return the stage of a step whose temporaries may have places."""
        temporaries = list(dict.fromkeys([x.buffer for _, x in step.operands() if x.buffer.is_temporary]))
        addresses = {buffer: buffer.address for buffer in temporaries if buffer.address is not None}
        first = min(addresses.values(), default=0)
        offsets = {buffer: address - first for buffer, address in addresses.items()}
        size = max([offset + aligned_size(buffer) for buffer, offset in offsets.items()], default=0)
        for buffer in temporaries:
            if buffer not in offsets:
                offsets[buffer], size = size, size + aligned_size(buffer)
        return cls(name, list(step.instructions), offsets, size)


class Bar(NamedTuple):
    """A temporary in a timed stage."""

    buffer: Buffer
    text: str  # its shape, or how large it is
    begin: int  # the first kernel that has it as an operand
    end: int  # the last one
    offset: int  # bytes
    nbytes: int


class Timeline(NamedTuple):
    """A stage with the time that each call takes."""

    name: str
    calls: list[str]  # their names
    writes: list[Buffer | None]  # the first temporary that each call writes
    seconds: np.ndarray
    bars: list[Bar]
    size: int  # bytes of all temporaries


def measure_stages(stages: list[Stage], step: RecordedStep, replays: int) -> list[Timeline]:
    """Replay each stage so many times, and return it with the least time of each call.

    Everything that kernels write is set back before each stage and at the end. `step` is the one that is replayed
    otherwise: afterwards, its calls have their own places again.
    """
    written = {b: b.owner() for stage in stages for call in stage.instructions if isinstance(call, Instruction)
               for b in call.writes if not b.is_temporary}  # fmt: skip
    arrays = [owner.view(np.ndarray) for owner in written.values() if owner is not None]
    arrays += [x.view(np.ndarray) for call in step.instructions if isinstance(call, PythonCallback)
               for x in call.outputs if x is not None]  # fmt: skip
    old_values = [array.copy() for array in arrays]
    timelines = []
    try:
        for stage in stages:
            timelines.append(_measure(stage, step.memory, replays))
            for array, values in zip(arrays, old_values, strict=True):
                array[...] = values
    finally:
        for array, values in zip(arrays, old_values, strict=True):
            array[...] = values
        for call in step.instructions:
            if isinstance(call, Instruction):
                call.assign_addresses()
    return timelines


def _measure(stage: Stage, memory: list[np.ndarray], replays: int) -> Timeline:
    block, first = make_block(stage.size)
    addresses = {buffer: buffer.address for buffer in stage.offsets}
    try:
        for buffer, offset in stage.offsets.items():
            buffer.address = first + offset
        calls = [call.assign_addresses() if isinstance(call, Instruction) else call for call in stage.instructions]
        replay = kernels.Replay(calls, [*memory, block])
    finally:
        for buffer, address in addresses.items():
            buffer.address = address
    seconds = replay.seconds(replays)
    lives: dict[Buffer, list[int]] = {}
    shapes: dict[Buffer, str] = {}
    for i, call in enumerate(stage.instructions):
        if isinstance(call, Instruction):
            for operand in call.operands:
                if operand is not None and operand.buffer.is_temporary:
                    lives.setdefault(operand.buffer, [i, i])[1] = i
                    if operand.nbytes == operand.buffer.nbytes:
                        shapes.setdefault(operand.buffer, shape_text(operand.shape))
    bars = [
        Bar(b, shapes.get(b, format_bytes(b.nbytes)), begin, end, stage.offsets[b], b.nbytes)
        for b, (begin, end) in lives.items()
    ]
    names = [describe_call(call)[0] for call in stage.instructions]
    writes = [
        next((b for b in call.writes if b.is_temporary), None) if isinstance(call, Instruction) else None
        for call in stage.instructions
    ]
    return Timeline(stage.name, names, writes, seconds, bars, stage.size)
