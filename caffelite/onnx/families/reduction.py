"""Sums, means, extremes and norms along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.arrays import normalize_axes
from caffelite.functions.arithmetic import as_tensor
from caffelite.model.export_graph import Application, SymbolicLength
from caffelite.onnx.nodes import Node, Operator, is_plain
from caffelite.onnx.writing import Rule, Value, Writer, code_of

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_reduction(operator: str) -> Rule:
    def rule(g: Writer, a: Application, x: Value) -> str:
        f: Any = a.function
        axes = normalize_axes(f.axis, x.ndim)
        if not axes:
            return x.name
        if operator == "ReduceSum":
            return g.node(operator, x, g.integers(axes), keepdims=int(f.keepdims))
        return g.node(operator, x, axes=axes, keepdims=int(f.keepdims))

    return rule


def write_variance(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    axes = normalize_axes(f.axis, x.ndim)
    d = g.node("Sub", x, g.node("ReduceMean", x, axes=axes, keepdims=1) if axes else x)
    total = g.node("Mul", d, d)
    if axes:
        total = g.node("ReduceSum", total, g.integers(axes), keepdims=int(f.keepdims))
    lengths = [x.shape[i] for i in axes]
    if any(isinstance(n, SymbolicLength) for n in lengths):
        count = g.node("Cast", g.node("ReduceProd", g.integers(lengths), keepdims=0), to=code_of(g.dtype))
        y = g.node("Div", total, g.node("Sub", count, g.number(f.ddof)))
    else:
        y = g.node("Div", total, g.number(math.prod(lengths) - f.ddof))
    return g.node("Sqrt", y) if isinstance(f, functions.Std) else y


def write_cumsum(g: Writer, a: Application, x: Value) -> str:
    axis = a.function.axis
    given = g.node("Reshape", x, g.integers((-1,))) if axis is None else x
    return g.node("CumSum", given, g.constant(np.int64(axis or 0)))


RULES: dict[type, Rule] = {
    functions.Sum: write_reduction("ReduceSum"),
    functions.Mean: write_reduction("ReduceMean"),
    functions.Max: write_reduction("ReduceMax"),
    functions.Min: write_reduction("ReduceMin"),
    functions.Prod: write_reduction("ReduceProd"),
    functions.LogSumExp: write_reduction("ReduceLogSumExp"),
    functions.Var: write_variance,
    functions.Std: write_variance,
    functions.CumSum: write_cumsum,
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
        axis = normalize_axes(tuple(axes), x.ndim)
        if is_plain(x) and plain is not None:
            return plain(x, axis=axis, keepdims=keepdims)
        return of_tensor(as_tensor(x), axis, keepdims)

    return rule


def compute_cumsum(node: Node, x: Any, axis: Any) -> Any:
    axis = int(node.constant(axis, "axis"))
    return np.cumsum(x, axis, x.dtype) if is_plain(x) else functions.cumsum(x, axis)


OPERATORS: dict[str, Operator] = {
    "ReduceSum": compute_reduction(functions.sum, np.sum),
    "ReduceMean": compute_reduction(functions.mean),
    "ReduceMax": compute_reduction(functions.max, np.max),
    "ReduceMin": compute_reduction(functions.min, np.min),
    "ReduceProd": compute_reduction(functions.prod, np.prod),
    "ReduceL1": compute_reduction(lambda x, axis, keepdims: x.abs().sum(axis, keepdims)),
    "ReduceL2": compute_reduction(lambda x, axis, keepdims: (x * x).sum(axis, keepdims).sqrt()),
    "ReduceSumSquare": compute_reduction(lambda x, axis, keepdims: (x * x).sum(axis, keepdims)),
    "ReduceLogSum": compute_reduction(lambda x, axis, keepdims: x.sum(axis, keepdims).log()),
    "ReduceLogSumExp": compute_reduction(functions.logsumexp),
    "CumSum": compute_cumsum,
}
