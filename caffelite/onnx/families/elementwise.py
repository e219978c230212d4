"""Arithmetic, comparisons, and elementary functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from caffelite import functions
from caffelite._kernels.operations import OPERATIONS, by_function
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor
from caffelite.onnx.nodes import Node, Operator, is_plain
from caffelite.onnx.writing import Rule, Value, Writer, node_rule, type_code


class NumPyFunction(Function):
    """A computation of NumPy's, and the derivative of one of a single input. ONNX's `operator` computes the same.

    Without a derivative it changes in steps, so its gradient is 0. The results are numbers of a dtype. `to` is the type
    to which Cast casts.
    """

    def __init__(
        self, operator: str, compute: Callable[..., Any], dtype: np.dtype, derivative: Any = None, to: int | None = None
    ) -> None:
        self.operator, self.compute, self.dtype, self.derivative, self.to = operator, compute, dtype, derivative, to

    def forward(self, *inputs: Any) -> np.ndarray:
        self.inputs = inputs
        return np.asarray(self.compute(*inputs)).astype(self.dtype)

    def backward(self, dy: np.ndarray) -> Any:
        if self.derivative is not None:
            return (dy * self.derivative(*self.inputs)).astype(dy.dtype)
        return tuple(
            [np.zeros_like(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else None for x in self.inputs]
        )

    def __repr__(self) -> str:
        return self.operator


def numpy_op(compute: Callable[..., Any], derivative: Any = None, operator: str = "") -> Operator:
    """Make an operator of a `NumPyFunction`. Its name is the node's by default."""

    def rule(node: Node, *values: Any) -> Any:
        if is_plain(*values):
            return compute(*values)
        return NumPyFunction(operator or node.operator, compute, node.dtype, derivative)(*values)

    return rule


erf = np.vectorize(math.erf, otypes=[np.float64])


def numpy_or_tensor(numpy_function: Callable[..., Any], tensor_function: Callable[..., Any]) -> Operator:
    """Make an operator that NumPy computes of plain arrays, and caffelite of Tensors."""

    def rule(node: Node, *values: Any) -> Any:
        return numpy_function(*values) if is_plain(*values) else tensor_function(*values)

    return rule


# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def as_bool(g: Writer, condition: Value) -> Any:
    return condition if condition.dtype == np.bool_ else g.node("Cast", condition, to=TensorProto.BOOL)


def write_numpy_function(g: Writer, f: Any, *inputs: Value) -> str:
    """Write an operator of a loaded graph. True and false are numbers of the model's dtype, 1 and 0."""
    if f.operator in ("Not", "And", "Or", "Xor"):
        arguments = [as_bool(g, x) for x in inputs]
    elif len({x.dtype for x in inputs}) > 1:
        arguments = [x if x.dtype == g.dtype else g.node("Cast", x, to=type_code(g.dtype)) for x in inputs]
    else:
        arguments = list(inputs)
    if f.derivative is not None or f.operator in ("Floor", "Ceil", "Round", "Sign"):
        return g.node(f.operator, *arguments)
    result = g.node(f.operator, *arguments, **({} if f.to is None else {"to": f.to}))
    return g.node("Cast", result, to=type_code(g.dtype))


def elementwise_rule(entry: Any) -> Rule:
    """Return the rule of a row of the table: one node, or what the row's function writes."""
    return node_rule(entry) if isinstance(entry, str) else lambda g, f, x: entry(g, x)


RULES: dict[type, Rule] = {
    **{getattr(functions, name): elementwise_rule(entry) for name, entry in by_function("onnx").items()},
    functions.Clip: lambda g, f, x: g.node("Clip", x, *[n if n is None else g.number(n) for n in (f.low, f.high)]),
    functions.Where: lambda g, f, x, y, condition: g.node("Where", as_bool(g, condition), x, y),
    NumPyFunction: write_numpy_function,
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_divide(node: Node, a: Any, b: Any) -> Any:
    if is_plain(a, b) and np.asarray(a).dtype.kind in "iu":
        if not np.all(b):
            raise node.error("divides integers by 0")
        return np.sign(a) * np.sign(b) * (abs(a) // abs(b))  # towards 0
    return a / b


def compute_mod(node: Node, a: Any, b: Any) -> Any:
    if not is_plain(a, b):
        raise node.error("divides numbers that depend on data")
    return np.fmod(a, b) if node.get("fmod", 0) else np.mod(a, b)


def variadic_op(numpy_function: Callable[..., Any], tensor_function: Callable[..., Any]) -> Operator:
    """Make an operator of one input or more: the first and the second, the result and the third, and so on."""
    compute = numpy_or_tensor(numpy_function, tensor_function)
    return lambda node, *values: functools.reduce(functools.partial(compute, node), values)


def add_all(values: Sequence[Any]) -> Any:
    return functools.reduce(lambda a, b: a + b, values)


def compute_clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    low, high = node.argument("min", low), node.argument("max", high)
    return functions.clip(x, low, high) if isinstance(x, Tensor) else np.clip(x, low, high).astype(x.dtype)


def compute_cast(node: Node, x: Any, dtype: Any = None) -> Any:
    if dtype is None:
        try:
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(node.get("to")))
        except (KeyError, TypeError):
            raise node.error(f"casts to type {node.get('to')} that there is not") from None
    if is_plain(x):
        return x.astype(dtype)
    if dtype == x.dtype or (dtype.kind in "iu" and not isinstance(x, Tensor)):
        return x
    if isinstance(x, Tensor) and dtype.kind == "f":
        raise node.error(f"casts {x.dtype} to {dtype}: caffelite's models have one of them")
    compute = np.trunc if dtype.kind in "iu" else dtype.type
    return NumPyFunction("Cast", compute, node.dtype, to=helper.np_dtype_to_tensor_dtype(dtype))(x)


OPERATORS: dict[str, Operator] = {
    "Identity": lambda node, x: x,
    "Constant": lambda node: node.get("value"),
    "Cast": compute_cast,
    "CastLike": lambda node, x, like: compute_cast(node, x, node.dtype if isinstance(like, Tensor) else like.dtype),
    "Add": lambda node, a, b: a + b,
    "Sub": lambda node, a, b: a - b,
    "Mul": lambda node, a, b: a * b,
    "Div": compute_divide,
    "Pow": lambda node, a, b: np.power(a, b).astype(a.dtype) if is_plain(a, b) else as_tensor(a) ** b,
    "Neg": lambda node, x: -x,
    "Mod": compute_mod,
    "Reciprocal": lambda node, x: 1 / x,
    "Sum": lambda node, *values: add_all(values),
    "Mean": lambda node, *values: add_all(values) / float(len(values)),
    "Max": variadic_op(np.maximum, functions.maximum),
    "Min": variadic_op(np.minimum, functions.minimum),
    **{
        row.onnx: numpy_or_tensor(getattr(np, row.kernel), getattr(functions, row.kernel))
        for row in OPERATIONS
        if row.y and isinstance(row.onnx, str) and hasattr(np, row.kernel)
    },
    "Erf": numpy_op(erf, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
    "Tan": numpy_op(np.tan, lambda x: 1 / np.cos(x) ** 2),
    "Asin": numpy_op(np.arcsin, lambda x: 1 / np.sqrt(1 - x * x)),
    "Acos": numpy_op(np.arccos, lambda x: -1 / np.sqrt(1 - x * x)),
    "Atan": numpy_op(np.arctan, lambda x: 1 / (1 + x * x)),
    "Sinh": numpy_op(np.sinh, np.cosh),
    "Cosh": numpy_op(np.cosh, np.sinh),
    "Asinh": numpy_op(np.arcsinh, lambda x: 1 / np.sqrt(x * x + 1)),
    "Acosh": numpy_op(np.arccosh, lambda x: 1 / np.sqrt(x * x - 1)),
    "Atanh": numpy_op(np.arctanh, lambda x: 1 / (1 - x * x)),
    **{name: numpy_op(getattr(np, name.lower())) for name in ("Floor", "Ceil", "Round", "Sign", "IsNaN")},
    **{name: numpy_op(getattr(np, name.lower())) for name in ("Equal", "Less", "Greater")},
    "LessOrEqual": numpy_op(np.less_equal),
    "GreaterOrEqual": numpy_op(np.greater_equal),
    **{name: numpy_op(getattr(np, f"logical_{name.lower()}")) for name in ("Not", "And", "Or", "Xor")},
    "Where": numpy_or_tensor(np.where, functions.where),
    "Clip": compute_clip,
}
