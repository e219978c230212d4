"""Place temporaries in one block of memory, and use memory again that is no longer needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.program.ir import Buffer, RecordedStep

ALIGNMENT = 64  # bytes; a cache line, and the widest vector register


def place_temporaries(step: RecordedStep) -> RecordedStep:
    """Place every temporary in one block of memory, aligned. Memory that is no longer read is used again.

    A temporary is alive from the first to the last call that has it as an operand. When its life begins, it is placed
    in the smallest gap that is large enough, or at the end of the block. The block is filled with NaN, so a call that
    reads before it writes gives NaN, and tests find it.
    """
    lives: dict[Buffer, list[int]] = {}
    for i, operand in step.operands():
        if operand.buffer.is_temporary:
            lives.setdefault(operand.buffer, [i, i])[1] = i
    offsets, size = assign_offsets(
        {buffer: (begin, end, aligned_size(buffer)) for buffer, (begin, end) in lives.items()}
    )
    block, first = make_block(size)
    for buffer, offset in offsets.items():
        buffer.address = first + offset
    return RecordedStep(step.instructions, [*step.memory, block])


def assign_offsets(lives: dict[Any, tuple[int, int, int]]) -> tuple[dict[Any, int], int]:
    """Return an offset for each temporary, and the size of the block.

    A temporary is alive from one number to another, and takes so much room. The temporaries are in the order in which
    their lives begin.
    """
    ends: dict[int, list[Any]] = {}
    for temporary, (_, end, _) in lives.items():
        ends.setdefault(end, []).append(temporary)

    gaps: list[tuple[int, int]] = []  # (offset, size), sorted; memory after `size` is free, too
    size, time = 0, 0
    offsets: dict[Any, int] = {}
    for temporary, (begin, _, room) in lives.items():
        while time < begin:  # free the temporaries that lived until here
            for dead in ends.get(time, ()):
                gaps = _add_gap(gaps, offsets[dead], lives[dead][2])
            time += 1
        fitting = [gap for gap in gaps if gap[1] >= room]
        if fitting:
            offset, available = min(fitting, key=lambda gap: gap[1])
            gaps.remove((offset, available))
            if available > room:
                gaps = _add_gap(gaps, offset + room, available - room)
        elif gaps and sum(gaps[-1]) == size:  # the end of the block is free: it only has to grow
            offset = gaps.pop()[0]
            size = offset + room
        else:
            offset, size = size, size + room
        offsets[temporary] = offset
    return offsets, size


def aligned_size(buffer: Buffer) -> int:
    """Return the bytes that a buffer takes in a block."""
    return -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT


def make_block(size: int) -> tuple[np.ndarray, int]:
    """Return memory for `size` bytes, filled with NaN, and its first aligned address."""
    block = np.full(size + ALIGNMENT, 0xFF, dtype=np.uint8)
    return block, _first_address(block)


def replace_block(temporaries: Iterable[Buffer], old: np.ndarray, new: np.ndarray) -> bool:
    """Move temporaries from a block into another one, at least as large. Return False if another pass placed them."""
    first, new_first = _first_address(old), _first_address(new)
    places = [(buffer, (buffer.address or 0) - first) for buffer in temporaries]
    if not all(0 <= place <= len(old) - ALIGNMENT - buffer.nbytes for buffer, place in places):
        return False
    for buffer, place in places:
        buffer.address = new_first + place
    return True


def _first_address(block: np.ndarray) -> int:
    """Return the first aligned address in a block."""
    address: int = kernels.address(block)
    return -(-address // ALIGNMENT) * ALIGNMENT


def _add_gap(gaps: list[tuple[int, int]], offset: int, size: int) -> list[tuple[int, int]]:
    """Return the gaps with another one added; neighbouring gaps are joined."""
    merged: list[tuple[int, int]] = []
    for gap in sorted([*gaps, (offset, size)]):
        if merged and sum(merged[-1]) == gap[0]:
            merged[-1] = (merged[-1][0], merged[-1][1] + gap[1])
        else:
            merged.append(gap)
    return merged
