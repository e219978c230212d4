"""Sums, means, extremes and norms along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.arrays import normalize_axes
from caffelite.functions.arithmetic import as_tensor
from caffelite.model.export_graph import SymbolicLength
from caffelite.onnx.nodes import Node, Operator, is_plain
from caffelite.onnx.writing import Rule, Value, Writer, type_code

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def reduction_rule(operator: str) -> Rule:
    def rule(g: Writer, f: Any, x: Value) -> str:
        axes = f.axes(x.ndim)
        if not axes:
            return x.name
        if operator == "ReduceSum":
            return g.node(operator, x, g.integers(axes), keepdims=int(f.keepdims))
        return g.node(operator, x, axes=axes, keepdims=int(f.keepdims))

    return rule


def write_variance(g: Writer, f: Any, x: Value) -> str:
    axes = normalize_axes(f.axis, x.ndim)
    d = g.node("Sub", x, g.node("ReduceMean", x, axes=axes, keepdims=1) if axes else x)
    total = g.node("Mul", d, d)
    if axes:
        total = g.node("ReduceSum", total, g.integers(axes), keepdims=int(f.keepdims))
    lengths = [x.shape[i] for i in axes]
    if any(isinstance(n, SymbolicLength) for n in lengths):
        count = g.node("Cast", g.node("ReduceProd", g.integers(lengths), keepdims=0), to=type_code(g.dtype))
        y = g.node("Div", total, g.node("Sub", count, g.number(f.ddof)))
    else:
        y = g.node("Div", total, g.number(math.prod(lengths) - f.ddof))
    return g.node("Sqrt", y) if isinstance(f, functions.Std) else y


def write_cumsum(g: Writer, f: Any, x: Value) -> str:
    flat = g.node("Reshape", x, g.integers((-1,))) if f.axis is None else x
    return g.node("CumSum", flat, g.constant(np.int64(f.axis or 0)))


RULES: dict[type, Rule] = {
    functions.Sum: reduction_rule("ReduceSum"),
    functions.Mean: reduction_rule("ReduceMean"),
    functions.Max: reduction_rule("ReduceMax"),
    functions.Min: reduction_rule("ReduceMin"),
    functions.Prod: reduction_rule("ReduceProd"),
    functions.LogSumExp: reduction_rule("ReduceLogSumExp"),
    functions.Var: write_variance,
    functions.Std: write_variance,
    functions.CumSum: write_cumsum,
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def reduction_op(tensor_function: Callable[..., Any], numpy_function: Any = None) -> Operator:
    """Make an operator of a function (x, axis, keepdims)."""

    def rule(node: Node, x: Any, axes: Any = None) -> Any:
        axes = node.argument("axes", axes)
        keepdims = bool(node.get("keepdims", 1))
        if not axes and node.get("noop_with_empty_axes", 0):
            axes, keepdims = [], True
        elif not axes:
            axes = range(x.ndim)
        axis = normalize_axes(tuple(axes), x.ndim)
        if is_plain(x) and numpy_function is not None:
            return numpy_function(x, axis=axis, keepdims=keepdims)
        return tensor_function(as_tensor(x), axis, keepdims)

    return rule


def compute_cumsum(node: Node, x: Any, axis: Any) -> Any:
    axis = int(node.constant(axis, "axis"))
    return np.cumsum(x, axis, x.dtype) if is_plain(x) else functions.cumsum(x, axis)


OPERATORS: dict[str, Operator] = {
    "ReduceSum": reduction_op(functions.sum, np.sum),
    "ReduceMean": reduction_op(functions.mean),
    "ReduceMax": reduction_op(functions.max, np.max),
    "ReduceMin": reduction_op(functions.min, np.min),
    "ReduceProd": reduction_op(functions.prod, np.prod),
    "ReduceL1": reduction_op(lambda x, axis, keepdims: x.abs().sum(axis, keepdims)),
    "ReduceL2": reduction_op(lambda x, axis, keepdims: (x * x).sum(axis, keepdims).sqrt()),
    "ReduceSumSquare": reduction_op(lambda x, axis, keepdims: (x * x).sum(axis, keepdims)),
    "ReduceLogSum": reduction_op(lambda x, axis, keepdims: x.sum(axis, keepdims).log()),
    "ReduceLogSumExp": reduction_op(functions.logsumexp),
    "CumSum": compute_cumsum,
}
