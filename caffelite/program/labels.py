"""The facts about calls in tables and pictures of a Program."""

from __future__ import annotations

import numpy as np

from caffelite.core.python_callback import PythonCallback
from caffelite.program.ir import Instruction


def describe_call(instruction: Instruction | PythonCallback) -> list[str]:
    """Name, shapes, FLOPs and bytes of a call. Only matrix products have FLOPs here, because they have nearly all."""
    if isinstance(instruction, PythonCallback):
        shapes = [x.shape for x in instruction.arguments if isinstance(x, np.ndarray)]
        return [f"Python: {instruction.name}", " ".join(map(shape_text, shapes)), "", ""]
    operands, flops = [x for x in instruction.operands if x is not None], instruction.call.flops
    return [
        instruction.call.name,
        " ".join(shape_text(x.shape) for x in operands),
        "" if flops is None else f"{flops:,}",
        f"{sum(x.nbytes for x in operands):,}",
    ]


def shape_text(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "1"
