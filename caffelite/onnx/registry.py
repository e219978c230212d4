"""The rules by which each kind of Function becomes nodes of ONNX."""

from __future__ import annotations

from typing import Any

from caffelite.core.function import Function
from caffelite.onnx.families import (
    activation,
    attention,
    convolution,
    dense,
    elementwise,
    indexing,
    normalization,
    recurrent,
    reduction,
    resizing,
    shape,
)
from caffelite.onnx.writing import Rule

#: A function for each class of Functions. It gets a `Writer`, the application and the inputs, and returns the result,
#: or a tuple of results. A Function without one is written by its `formula`.
RULES: dict[type, Rule] = {
    **elementwise.RULES,
    **activation.RULES,
    **dense.RULES,
    **attention.RULES,
    **convolution.RULES,
    **resizing.RULES,
    **recurrent.RULES,
    **normalization.RULES,
    **reduction.RULES,
    **shape.RULES,
    **indexing.RULES,
}


def find_rule(kind: type[Function]) -> Rule | None:
    """Return the rule for a Function of a class; None if there is none, or if the class computes something else."""
    base: Any
    for base in kind.__mro__:
        if base in RULES and base.forward is kind.forward and base.__call__ is kind.__call__:
            return RULES[base]
    return None
