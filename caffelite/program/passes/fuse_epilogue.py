"""Do elementwise calls on a kernel's result while the result is still in the cache."""

from __future__ import annotations

import math
from typing import Any

from caffelite.core.python_callback import PythonCallback
from caffelite.program.ir import Buffer, Instruction, Operand, RecordedStep

BIAS, EPILOGUE = 3, 8  # a product's operands: y a b, the bias; from 8 on, the epilogue's output and inputs


def fuse_epilogue(step: RecordedStep) -> RecordedStep:
    """Move elementwise calls into the products, convolutions and other kernels whose results they take.

    Examples are an activation, the gradient of an activation (which multiplies or masks the gradient of its output),
    and a sum with another branch. A row that is added to every row becomes the product's bias. If nobody else reads the
    product's own result, it is never stored.
    """
    instructions: list[Instruction | PythonCallback | None] = list(step.instructions)
    users: dict[Buffer, list[int]] = {}
    for k, instruction in enumerate(step.instructions):
        if isinstance(instruction, Instruction):
            for buffer in dict.fromkeys((*instruction.reads, *instruction.writes)):
                users.setdefault(buffer, []).append(k)

    for k, consumer in enumerate(step.instructions):
        if not isinstance(consumer, Instruction) or not consumer.call.is_elementwise:
            continue
        for variant, x in [(f, operand) for f in _variants(consumer) for operand in dict.fromkeys(f.operands[1:])]:
            i = _find_producer(x, k, instructions, users)
            if x is not None and i is not None and _can_fuse(variant, x, i, k, instructions):
                producer = instructions[i]
                assert isinstance(producer, Instruction)
                instructions[i], instructions[k] = _fuse(producer, variant, x, _is_read_elsewhere(x, i, k, users)), None
                for buffer in (*consumer.reads, *consumer.writes):
                    users[buffer] = sorted({i if user == k else user for user in users[buffer]})
                break
    return RecordedStep([instruction for instruction in instructions if instruction is not None], step.memory)


def _variants(consumer: Instruction) -> list[Instruction]:
    """Return an elementwise call as it is and, if possible, the same call on matrices, as products have two axes."""
    out = consumer.operands[0]
    assert out is not None
    matrices = [operand and operand.as_matrix() for operand in consumer.operands]
    rows = math.prod(out.shape[:-1])
    fits = all(
        operand is None or (matrix is not None and (len(matrix.shape) < 2 or matrix.shape[0] in (1, rows)))
        for operand, matrix in zip(consumer.operands, matrices, strict=True)
    )
    if len(out.shape) < 3 or not fits:
        return [consumer]
    return [consumer, Instruction(consumer.call, matrices, consumer.reads, consumer.writes)]


def _find_producer(x: Operand | None, k: int, instructions: list[Any], users: dict[Buffer, list[int]]) -> int | None:
    """Return the number of the call before k whose result is x, if it can have an epilogue, otherwise None."""
    if x is None:
        return None
    for i in reversed(users[x.buffer]):
        if i < k and x.buffer in instructions[i].writes:
            call = instructions[i].call
            free = call.takes_epilogue and not call.has_epilogue and not call.accumulates
            return i if free and instructions[i].operands[0] == x else None
    return None


def _can_fuse(consumer: Instruction, x: Operand, i: int, k: int, instructions: list[Any]) -> bool:
    """Return whether the call at k, `consumer`, can be done at i already, where x is made."""
    out, producer = consumer.operands[0], instructions[i]
    side_inputs = [operand for operand in consumer.operands[1:] if operand is not None and operand != x]
    between = [instruction for instruction in instructions[i + 1 : k] if instruction is not None]
    read, written = {buffer for buffer in consumer.reads if buffer is not x.buffer}, set(consumer.writes)
    assert out is not None
    if out.shape != x.shape or (out.buffer is x.buffer and out != x):
        return False
    if not written.isdisjoint(producer.reads):  # the output holds the parts of a long sum for a while
        return False
    if any(side_input.buffer is out.buffer or side_input.buffer is x.buffer for side_input in side_inputs):
        return False
    if producer.call.kernel.is_product:
        if any(len(side_input.shape) > 2 for side_input in side_inputs):
            return False
    elif any((side_input.shape, side_input.strides) != (x.shape, x.strides) for side_input in (out, *side_inputs)):
        return False
    # Calls in between may not use the results' memory, or write other operands. Calls into Python may do both.
    return all(
        isinstance(instruction, Instruction)
        and written.isdisjoint((*instruction.reads, *instruction.writes))
        and read.isdisjoint(instruction.writes)
        for instruction in between
    )


def _is_read_elsewhere(x: Operand, i: int, k: int, users: dict[Buffer, list[int]]) -> bool:
    """Return whether anybody except the instruction at k reads the result itself."""
    return not x.buffer.is_temporary or users[x.buffer] != [i, k]


def _fuse(producer: Instruction, consumer: Instruction, x: Operand, keeps_result: bool) -> Instruction:
    out, side_inputs = consumer.operands[0], [side_input for side_input in consumer.operands[1:] if side_input != x]
    assert out is not None
    read = [buffer for buffer in consumer.reads if buffer is not x.buffer]
    operands = [*producer.operands, *[None] * (EPILOGUE - len(producer.operands))]
    if not keeps_result:
        operands[0] = out
    result = operands[0]
    assert result is not None
    writes = list(dict.fromkeys([*[b for b in producer.writes if keeps_result or b is not x.buffer], *consumer.writes]))
    is_product = producer.call.kernel.is_product
    is_bias = (
        is_product and consumer.call.is_addition and len(read) == 1 and not keeps_result and operands[BIAS] is None
    )
    if is_bias and _is_row(side_inputs[0], x):
        operands[BIAS] = side_inputs[0]
        call = producer.call.with_bias(_strides(result, x))
        return Instruction(call, operands, [*producer.reads, *read], writes)
    operands.append(out if keeps_result and out != x else None)
    operands += [None if side_input == x else side_input for side_input in consumer.operands[1:]]
    strides = [operand and (_strides(operand, x) if is_product else ()) for operand in operands[EPILOGUE:]]
    y: Any = _strides(result, x) if is_product else None
    call = producer.call.with_epilogue(consumer.call, y, strides)
    return Instruction(call, operands, [*producer.reads, *read], writes)


def _strides(operand: Operand, x: Operand) -> tuple[int, ...]:
    """Return the operand's strides, in elements, along x's rows and columns; 0 along an axis where it is repeated."""
    lengths = (1,) * (2 - len(operand.shape)) + operand.shape
    strides = (0,) * (2 - len(operand.shape)) + operand.strides
    return tuple(
        [0 if n < m else s // operand.dtype.itemsize for n, m, s in zip(lengths, x.shape, strides, strict=True)]
    )


def _is_row(operand: Operand | None, x: Operand) -> bool:
    """Return whether the operand is one contiguous row that is used for all rows of x."""
    return (
        operand is not None
        and operand.shape in (x.shape[1:], (1, *x.shape[1:]))
        and operand.strides[-1] == operand.dtype.itemsize
    )
