"""Do elementwise calls on a kernel's result while the result is still in the cache."""

from __future__ import annotations

import math

from caffelite.core.recording import PythonCallback
from caffelite.program.ir import Buffer, Instruction, Operand, RecordedStep

BIAS, EPILOGUE = 3, 8  # a product's operands: y a b, the bias; from 8 on, the epilogue's output and inputs


def fuse_epilogue(step: RecordedStep) -> RecordedStep:
    """Move elementwise calls into the products, convolutions and other kernels whose results they take.

    Examples are an activation, the gradient of an activation (which multiplies or masks the gradient of its output),
    and a sum with another branch. A row that is added to every row becomes the product's bias. If nobody else reads the
    product's own result, it is never stored.
    """
    fused: list[Instruction | PythonCallback | None] = list(step.instructions)
    users: dict[Buffer, list[int]] = {}
    for k, instruction in enumerate(step.instructions):
        if isinstance(instruction, Instruction):
            for buffer in dict.fromkeys((*instruction.reads, *instruction.writes)):
                users.setdefault(buffer, []).append(k)

    for k, after in enumerate(step.instructions):
        if not isinstance(after, Instruction) or not after.call.is_elementwise:
            continue
        for form, x in [(f, operand) for f in _forms(after) for operand in dict.fromkeys(f.operands[1:])]:
            i = _maker_of(x, k, fused, users)
            if x is not None and i is not None and _can_move(form, x, i, k, fused):
                maker = fused[i]
                assert isinstance(maker, Instruction)
                fused[i], fused[k] = _fused(maker, form, x, _is_wanted(x, i, k, users)), None
                for buffer in (*after.reads, *after.writes):
                    users[buffer] = sorted({i if user == k else user for user in users[buffer]})
                break
    return RecordedStep([instruction for instruction in fused if instruction is not None], step.memory)


def _forms(after: Instruction) -> list[Instruction]:
    """An elementwise call as it is and, if possible, the same call on matrices, because products have two axes."""
    out = after.operands[0]
    assert out is not None
    matrices = [operand and operand.as_matrix() for operand in after.operands]
    rows = math.prod(out.shape[:-1])
    fits = all(
        operand is None or (matrix is not None and (len(matrix.shape) < 2 or matrix.shape[0] in (1, rows)))
        for operand, matrix in zip(after.operands, matrices, strict=True)
    )
    if len(out.shape) < 3 or not fits:
        return [after]
    return [after, Instruction(after.call, matrices, after.reads, after.writes)]


def _maker_of(x: Operand | None, k: int, fused: list, users: dict[Buffer, list[int]]) -> int | None:
    """The number of the call before k whose result is x, if it can have an epilogue, otherwise None."""
    if x is None:
        return None
    for i in reversed(users[x.buffer]):
        if i < k and x.buffer in fused[i].writes:
            call = fused[i].call
            free = call.takes_epilogue and not call.has_epilogue and not call.accumulates
            return i if free and fused[i].operands[0] == x else None
    return None


def _can_move(after: Instruction, x: Operand, i: int, k: int, fused: list) -> bool:
    """Whether the call at k, `after`, can be done at i already, where x is made."""
    out, others = after.operands[0], [other for other in after.operands[1:] if other is not None and other != x]
    maker, between = fused[i], [instruction for instruction in fused[i + 1 : k] if instruction is not None]
    read, written = {buffer for buffer in after.reads if buffer is not x.buffer}, set(after.writes)
    assert out is not None
    if out.shape != x.shape or (out.buffer is x.buffer and out != x):
        return False
    if not written.isdisjoint(maker.reads):  # the output holds the parts of a long sum for a while
        return False
    if any(other.buffer is out.buffer or other.buffer is x.buffer for other in others):
        return False
    if maker.call.kernel.is_product:
        if any(len(other.shape) > 2 for other in others):
            return False
    elif any((other.shape, other.strides) != (x.shape, x.strides) for other in (out, *others)):
        return False
    # Calls in between may not use the results' memory, or write other operands. Calls into Python may do both.
    return all(
        isinstance(instruction, Instruction)
        and written.isdisjoint((*instruction.reads, *instruction.writes))
        and read.isdisjoint(instruction.writes)
        for instruction in between
    )


def _is_wanted(x: Operand, i: int, k: int, users: dict[Buffer, list[int]]) -> bool:
    """Whether anybody except the instruction at k reads the result itself."""
    return not x.buffer.temporary or users[x.buffer] != [i, k]


def _fused(maker: Instruction, after: Instruction, x: Operand, wanted: bool) -> Instruction:
    out, others = after.operands[0], [other for other in after.operands[1:] if other != x]
    assert out is not None
    read = [buffer for buffer in after.reads if buffer is not x.buffer]
    operands = [*maker.operands, *[None] * (EPILOGUE - len(maker.operands))]
    if not wanted:
        operands[0] = out
    result = operands[0]
    assert result is not None
    writes = list(dict.fromkeys([*[b for b in maker.writes if wanted or b is not x.buffer], *after.writes]))
    is_product = maker.call.kernel.is_product
    is_bias = is_product and after.call.is_addition and len(read) == 1 and not wanted and operands[BIAS] is None
    if is_bias and _is_row(others[0], x):
        operands[BIAS] = others[0]
        call = maker.call.with_bias(_strides(result, x))
        return Instruction(call, operands, [*maker.reads, *read], writes)
    operands.append(out if wanted and out != x else None)
    operands += [None if other == x else other for other in after.operands[1:]]
    strides = [operand and (_strides(operand, x) if is_product else ()) for operand in operands[EPILOGUE:]]
    call = maker.call.with_epilogue(after.call, _strides(result, x) if is_product else None, strides)
    return Instruction(call, operands, [*maker.reads, *read], writes)


def _strides(operand: Operand, x: Operand) -> tuple[int, ...]:
    """The operand's strides, in elements, along x's rows and columns; 0 along an axis on which it is repeated."""
    lengths = (1,) * (2 - len(operand.shape)) + operand.shape
    strides = (0,) * (2 - len(operand.shape)) + operand.strides
    return tuple(
        [0 if n < m else s // operand.dtype.itemsize for n, m, s in zip(lengths, x.shape, strides, strict=True)]
    )


def _is_row(operand: Operand | None, x: Operand) -> bool:
    """Whether the operand is one contiguous row that is used for all rows of x."""
    return (
        operand is not None
        and operand.shape in (x.shape[1:], (1, *x.shape[1:]))
        and operand.strides[-1] == operand.dtype.itemsize
    )
