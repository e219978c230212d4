"""Do what follows a matrix product element by element while its result is still in cache."""

from __future__ import annotations

from caffelite.program.step import Buffer, Instruction, Operand, Step
from caffelite.recording import PythonCall

BIAS, EPILOGUE = 3, 4  # a product's operands: y a b, the bias, then output and inputs of what follows


def fuse_epilogue(step: Step) -> Step:
    """The step with elementwise calls done by the matrix products whose results they take.

    An activation, its gradient (which multiplies or masks the product that is the gradient of its output), a sum with
    another branch. A row that is added to every row becomes the product's bias. Where nobody else wants the product's
    own result, it is never stored.
    """
    fused: list[Instruction | PythonCall | None] = list(step.instructions)
    users: dict[Buffer, list[int]] = {}
    for k, instruction in enumerate(step.instructions):
        if isinstance(instruction, Instruction):
            for buffer in dict.fromkeys((*instruction.reads, *instruction.writes)):
                users.setdefault(buffer, []).append(k)

    for k, after in enumerate(step.instructions):
        if not isinstance(after, Instruction) or not after.call.is_elementwise:
            continue
        for x in dict.fromkeys(after.operands[1:]):
            i = _product_of(x, k, fused, users)
            if x is not None and i is not None and _can_move(after, x, i, k, fused):
                product = fused[i]
                assert isinstance(product, Instruction)
                fused[i], fused[k] = _fused(product, after, x, _is_wanted(x, i, k, users)), None
                for buffer in (*after.reads, *after.writes):
                    users[buffer] = sorted({i if user == k else user for user in users[buffer]})
                break
    return Step([instruction for instruction in fused if instruction is not None], step.memory)


def _product_of(x: Operand | None, k: int, fused: list, users: dict[Buffer, list[int]]) -> int | None:
    """Where the matrix product stands that x, as it is before k, is the result of, if it can have an epilogue."""
    if x is None or len(x.shape) != 2:
        return None
    for i in reversed(users[x.buffer]):
        if i < k and x.buffer in fused[i].writes:
            call = fused[i].call
            free = call.kernel.is_product and not call.has_epilogue and not call.accumulates
            return i if free and fused[i].operands[0] == x else None
    return None


def _can_move(after: Instruction, x: Operand, i: int, k: int, fused: list) -> bool:
    """Whether what is done at k, to x and others, can be done at i, where the product is."""
    out, others = after.operands[0], [other for other in after.operands[1:] if other is not None and other != x]
    product, between = fused[i], [instruction for instruction in fused[i + 1 : k] if instruction is not None]
    assert out is not None
    if out.shape != x.shape or (out.buffer is x.buffer and out != x):
        return False
    if out.buffer in product.reads:  # a long sum's parts wait in the output
        return False
    if any(other.buffer is out.buffer or other.buffer is x.buffer or len(other.shape) > 2 for other in others):
        return False
    # Nobody in between may use the result's memory, or write what else is read. What is called in Python may do both.
    touched = {other.buffer for other in others}
    return all(
        isinstance(instruction, Instruction)
        and out.buffer not in (*instruction.reads, *instruction.writes)
        and touched.isdisjoint(instruction.writes)
        for instruction in between
    )


def _is_wanted(x: Operand, i: int, k: int, users: dict[Buffer, list[int]]) -> bool:
    """Whether anybody but the instruction at k needs the product's own result."""
    return not x.buffer.temporary or users[x.buffer] != [i, k]


def _fused(product: Instruction, after: Instruction, x: Operand, wanted: bool) -> Instruction:
    out, others = after.operands[0], [other for other in after.operands[1:] if other != x]
    assert out is not None
    read = [other.buffer for other in others if other is not None]
    operands = [*product.operands, *[None] * (EPILOGUE - len(product.operands))]
    if not wanted:
        operands[0] = out
    result = operands[0]
    assert result is not None
    if after.call.is_addition and len(read) == 1 and not wanted and operands[BIAS] is None and _is_row(others[0], x):
        operands[BIAS] = others[0]
        call = product.call.with_bias(_strides(result, x))
        return Instruction(call, operands, [*product.reads, *read], [out.buffer])
    operands.append(out if wanted and out != x else None)
    operands += [None if other == x else other for other in after.operands[1:]]
    strides = [None if operand is None else _strides(operand, x) for operand in operands[EPILOGUE:]]
    call = product.call.with_epilogue(after.call, _strides(result, x), strides)
    writes = dict.fromkeys([*(product.writes if wanted else []), out.buffer])
    return Instruction(call, operands, [*product.reads, *read], list(writes))


def _strides(operand: Operand, x: Operand) -> tuple[int, ...]:
    """The strides, in elements, along rows and columns of x; 0 where the operand is repeated."""
    lengths = (1,) * (2 - len(operand.shape)) + operand.shape
    strides = (0,) * (2 - len(operand.shape)) + operand.strides
    return tuple(
        [0 if n < m else s // operand.dtype.itemsize for n, m, s in zip(lengths, x.shape, strides, strict=True)]
    )


def _is_row(operand: Operand | None, x: Operand) -> bool:
    """Whether it is one contiguous row for all rows of x."""
    return (
        operand is not None
        and operand.shape in (x.shape[1:], (1, *x.shape[1:]))
        and operand.strides[-1] == operand.dtype.itemsize
    )
