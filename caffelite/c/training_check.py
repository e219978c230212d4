"""The program in a file of C that repeats the first steps of a training.

A copy of the model in float64 computes the expected losses, and they are rounded. So they are the same on every
processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.c.capture import Snapshots, TrainingStep
from caffelite.c.emit import define_array, literal, wrap_items
from caffelite.c.memory import C_TYPES
from caffelite.core.modes import precision

STEPS = 3
DIGITS = {"float": 7, "double": 10}  # of the expected losses
TOLERANCE = {"float": 1e-4, "double": 1e-9}  # of 1 + |loss|
COARSE = 1e-3  # if there is no copy in float64, losses have fewer digits


def expected_losses(
    step: TrainingStep, arrays: Sequence[np.ndarray], snapshots: Snapshots
) -> tuple[list[float], float]:
    """Return the losses of the first steps on a batch, rounded, and how far a loss in C may be from them."""
    snapshots.restore()
    real = "float" if step.model.dtype == np.float32 else "double"
    exact = run_steps(step.copy_in_float64(), arrays, np.float64) if real == "float" else []
    snapshots.restore()
    losses = run_steps(step, arrays, step.model.dtype)
    if real == "double" or (exact and np.allclose(exact, losses, rtol=1e-4, atol=1e-4)):
        return [float(f"{x:.{DIGITS[real]}g}") for x in exact or losses], TOLERANCE[real]
    return [float(f"{x:.4g}") for x in losses], COARSE


def run_steps(step: TrainingStep | None, arrays: Sequence[np.ndarray], dtype: Any) -> list[float]:
    """Return the losses of the first steps, in a dtype; none without a step, or if a step of a copy fails."""
    if step is None:
        return []
    inputs = [x.astype(dtype) if x.dtype.kind == "f" else x for x in arrays]
    try:
        with precision("float32"), kernels.portable_kernels(), np.errstate(all="ignore"):
            return [float(step(*inputs)) for _ in range(STEPS)]
    except (TypeError, ValueError):
        return []


def check_program(net: Any, arrays: Sequence[np.ndarray], losses: Sequence[float], tolerance: float) -> str:
    """Return `main` in C, which makes the steps and compares their losses."""
    names = [*net.inputs, *net.targets]
    lines = []
    for name, array in zip(names, arrays, strict=True):
        head = f"    static const {C_TYPES[array.dtype.name]} {name}[{array.size}] ="
        lines.append(define_array(head, array.reshape(-1)))
    expected = [literal(np.float64(x)) for x in losses]
    lines.append(wrap_items(f"    static const double losses[{len(losses)}] = {{", expected, "};", " " * 8))
    types = [f"const {C_TYPES[array.dtype.name]} *" for array in arrays]
    lines.append(wrap_items(f"    {net.real} (*volatile step)(", types, f") = {net.name}_train;", " " * 8))
    text = "\n".join(lines)
    return f"""\
#ifdef {net.name.upper()}_CHECK
/* Return 1 if a loss differs from the export's. */
int main(void)
{{
{text}

    {net.name}_init();
    for (int i = 0; i < {len(losses)}; i++)
        if (!(fabs(step({", ".join(names)}) - losses[i]) <= {tolerance:g} * (1 + fabs(losses[i]))))
            return 1;
    return 0;
}}
#endif
"""
