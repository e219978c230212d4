"""Sums, means, extremes and norms along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.arrays import normalized_axes
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor
from caffelite.model.dataflow import Application
from caffelite.onnx.nodes import Node, Operator, is_plain
from caffelite.onnx.writing import Rule, Value, Writer

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_reduction(operator: str) -> Rule:
    def rule(g: Writer, a: Application, x: Value) -> str:
        f: Any = a.function
        axes = normalized_axes(f.axis, x.ndim)
        if not axes:
            return x.name
        if operator == "ReduceSum":
            return g.node(operator, x, g.integers(axes), keepdims=int(f.keepdims))
        return g.node(operator, x, axes=axes, keepdims=int(f.keepdims))

    return rule


RULES: dict[type, Rule] = {
    functions.Sum: write_reduction("ReduceSum"),
    functions.Mean: write_reduction("ReduceMean"),
    functions.Max: write_reduction("ReduceMax"),
    functions.Min: write_reduction("ReduceMin"),
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_reduction(of_tensor: Callable[..., Any], plain: Any = None) -> Operator:
    """Make an operator of a function (x, axis, keepdims)."""

    def rule(node: Node, x: Any, axes: Any = None) -> Any:
        axes = node.argument("axes", axes)
        keepdims = bool(node.get("keepdims", 1))
        if not axes and node.get("noop_with_empty_axes", 0):
            axes, keepdims = [], True
        elif not axes:
            axes = range(x.ndim)
        axis = normalized_axes(tuple(axes), x.ndim)
        if is_plain(x) and plain is not None:
            return plain(x, axis=axis, keepdims=keepdims)
        return of_tensor(as_tensor(x), axis, keepdims)

    return rule


def log_sum_exp(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    most = x.detach().max(axis, True).clip(np.finfo(x.dtype).min, np.finfo(x.dtype).max)
    y = (x - most).exp().sum(axis, True).log() + most
    return y if keepdims else y.reshape([n for i, n in enumerate(y.shape) if i not in axis])


OPERATORS: dict[str, Operator] = {
    "ReduceSum": compute_reduction(functions.sum, np.sum),
    "ReduceMean": compute_reduction(functions.mean),
    "ReduceMax": compute_reduction(functions.max, np.max),
    "ReduceMin": compute_reduction(functions.min, np.min),
    "ReduceL1": compute_reduction(lambda x, axis, keepdims: x.abs().sum(axis, keepdims)),
    "ReduceL2": compute_reduction(lambda x, axis, keepdims: (x * x).sum(axis, keepdims).sqrt()),
    "ReduceSumSquare": compute_reduction(lambda x, axis, keepdims: (x * x).sum(axis, keepdims)),
    "ReduceLogSum": compute_reduction(lambda x, axis, keepdims: x.sum(axis, keepdims).log()),
    "ReduceLogSumExp": compute_reduction(log_sum_exp),
}
