"""Arithmetic, comparisons, and elementary functions."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from caffelite import _kernels as kernels
from caffelite import functions
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor
from caffelite.model.export_graph import Application
from caffelite.onnx.nodes import Node, Operator, is_plain
from caffelite.onnx.writing import Rule, Value, Writer, code_of, same


class Computed(Function):
    """A computation of NumPy's that gives numbers of a dtype. It changes in steps, so its gradient is 0.

    ONNX's `operator` computes the same. `to` is the type to which Cast casts.
    """

    def __init__(self, operator: str, compute: Callable[..., Any], dtype: np.dtype, to: int | None = None) -> None:
        self.operator, self.compute, self.dtype, self.to = operator, compute, dtype, to

    def forward(self, *inputs: Any) -> np.ndarray:
        self.inputs = inputs
        return np.asarray(self.compute(*inputs)).astype(self.dtype)

    def backward(self, dy: np.ndarray) -> tuple:
        return tuple(
            [np.zeros_like(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else None for x in self.inputs]
        )

    def __repr__(self) -> str:
        return self.operator


class Elementwise(Function):
    """An elementary function without a kernel, in NumPy, and its derivative. ONNX's `operator` computes the same."""

    def __init__(
        self, operator: str, compute: Callable[[np.ndarray], np.ndarray], derivative: Callable[[np.ndarray], Any]
    ) -> None:
        self.operator, self.compute, self.derivative = operator, compute, derivative

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return self.compute(x).astype(x.dtype)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return (dy * self.derivative(self.x)).astype(dy.dtype)

    def __repr__(self) -> str:
        return self.operator


def smooth(compute: Any, derivative: Any) -> Operator:
    """Make an operator of an elementary function."""
    return lambda node, x: compute(x) if is_plain(x) else Elementwise(node.operator, compute, derivative)(x)


erf = np.vectorize(math.erf, otypes=[np.float64])


def in_steps(compute: Callable[..., Any], operator: str = "") -> Operator:
    """Make an operator of a function that changes in steps, such as rounding. Its name is the node's by default."""

    def rule(node: Node, *values: Any) -> Any:
        if is_plain(*values):
            return compute(*values)
        return Computed(operator or node.operator, compute, node.dtype)(*values)

    return rule


def either(plain: Callable[..., Any], of_tensors: Callable[..., Any]) -> Operator:
    """Make an operator that NumPy computes of plain arrays, and caffelite of Tensors."""

    def rule(node: Node, *values: Any) -> Any:
        return plain(*values) if is_plain(*values) else of_tensors(*values)

    return rule


# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_clip(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    return g.node("Clip", x, *[None if bound is None else g.number(bound) for bound in (f.low, f.high)])


def write_where(g: Writer, a: Application, x: Value, y: Value, condition: Value) -> str:
    return g.node("Where", as_bool(g, condition), x, y)


def as_bool(g: Writer, condition: Value) -> Any:
    return condition if condition.dtype == np.bool_ else g.node("Cast", condition, to=TensorProto.BOOL)


def write_computed(g: Writer, a: Application, *inputs: Value) -> str:
    """Write an operator of a loaded graph. True and false are numbers of the model's dtype, 1 and 0."""
    f: Any = a.function
    if f.operator in ("Not", "And", "Or", "Xor"):
        given = [as_bool(g, x) for x in inputs]
    elif len({x.dtype for x in inputs}) > 1:
        given = [x if x.dtype == g.dtype else g.node("Cast", x, to=code_of(g.dtype)) for x in inputs]
    else:
        given = list(inputs)
    if f.operator in ("Floor", "Ceil", "Round", "Sign"):
        return g.node(f.operator, *given)
    found = g.node(f.operator, *given, **({} if f.to is None else {"to": f.to}))
    return g.node("Cast", found, to=code_of(g.dtype))


def write_elementwise(g: Writer, a: Application, x: Value) -> str:
    return g.node(a.function.operator, x)


RULES: dict[type, Rule] = {
    functions.Add: same("Add"),
    functions.Subtract: same("Sub"),
    functions.Multiply: same("Mul"),
    functions.Divide: same("Div"),
    functions.Power: same("Pow"),
    functions.Negative: same("Neg"),
    functions.Exp: same("Exp"),
    functions.Log: same("Log"),
    functions.Sqrt: same("Sqrt"),
    functions.Abs: same("Abs"),
    functions.Sin: same("Sin"),
    functions.Cos: same("Cos"),
    functions.Maximum: same("Max"),
    functions.Minimum: same("Min"),
    functions.Clip: write_clip,
    functions.Where: write_where,
    Computed: write_computed,
    Elementwise: write_elementwise,
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_divide(node: Node, a: Any, b: Any) -> Any:
    if is_plain(a, b) and np.asarray(a).dtype.kind in "iu":
        if not np.all(b):
            raise node.refuse("divides integers by 0")
        return np.sign(a) * np.sign(b) * (abs(a) // abs(b))  # towards 0
    return a / b


def compute_power(node: Node, a: Any, b: Any) -> Any:
    return np.power(a, b).astype(a.dtype) if is_plain(a, b) else as_tensor(a) ** b


def compute_mod(node: Node, a: Any, b: Any) -> Any:
    if not is_plain(a, b):
        raise node.refuse("divides numbers that depend on data")
    return np.fmod(a, b) if node.get("fmod", 0) else np.mod(a, b)


def of_several(plain: Callable[..., Any], of_tensors: Callable[..., Any]) -> Operator:
    """Make an operator of one input or more: the first and the second, the result and the third, and so on."""
    compute = either(plain, of_tensors)
    return lambda node, *values: functools.reduce(functools.partial(compute, node), values)


def compute_clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    low, high = node.argument("min", low), node.argument("max", high)
    return functions.clip(x, low, high) if isinstance(x, Tensor) else np.clip(x, low, high).astype(x.dtype)


def compute_where(node: Node, condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition, a, b) if is_plain(condition, a, b) else functions.where(condition, a, b)


def compute_cast(node: Node, x: Any, dtype: Any = None) -> Any:
    if dtype is None:
        try:
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(node.get("to")))
        except (KeyError, TypeError):
            raise node.refuse(f"casts to type {node.get('to')} that there is not") from None
    if isinstance(x, Tensor):
        if dtype.kind == "f":
            if dtype != x.dtype:
                raise node.refuse(f"casts {x.dtype} to {dtype}: caffelite's models have one of them")
            return x
        return Computed(
            "Cast", np.trunc if dtype.kind in "iu" else np.bool_, x.dtype, helper.np_dtype_to_tensor_dtype(dtype)
        )(x)
    if isinstance(x, kernels.RecordedArray):
        if dtype == x.dtype or dtype.kind in "iu":
            return x
        return Computed("Cast", lambda a: a.astype(dtype), node.dtype, helper.np_dtype_to_tensor_dtype(dtype))(x)
    return x.astype(dtype)


def compute_cast_like(node: Node, x: Any, like: Any) -> Any:
    dtype = node.dtype if isinstance(like, Tensor) else like.dtype
    return compute_cast(node, x, dtype)


compute_total = of_several(operator.add, operator.add)

OPERATORS: dict[str, Operator] = {
    "Identity": lambda node, x: x,
    "Constant": lambda node: node.get("value"),
    "Cast": compute_cast,
    "CastLike": compute_cast_like,
    "Add": lambda node, a, b: a + b,
    "Sub": lambda node, a, b: a - b,
    "Mul": lambda node, a, b: a * b,
    "Div": compute_divide,
    "Pow": compute_power,
    "Neg": lambda node, x: -x,
    "Mod": compute_mod,
    "Reciprocal": lambda node, x: 1 / x,
    "Sum": compute_total,
    "Mean": lambda node, *values: compute_total(node, *values) / float(len(values)),
    "Max": of_several(np.maximum, functions.maximum),
    "Min": of_several(np.minimum, functions.minimum),
    "Abs": either(np.abs, functions.abs),
    "Exp": either(np.exp, functions.exp),
    "Log": either(np.log, functions.log),
    "Sqrt": either(np.sqrt, functions.sqrt),
    "Erf": smooth(erf, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
    "Sin": either(np.sin, functions.sin),
    "Cos": either(np.cos, functions.cos),
    "Tan": smooth(np.tan, lambda x: 1 / np.cos(x) ** 2),
    "Asin": smooth(np.arcsin, lambda x: 1 / np.sqrt(1 - x * x)),
    "Acos": smooth(np.arccos, lambda x: -1 / np.sqrt(1 - x * x)),
    "Atan": smooth(np.arctan, lambda x: 1 / (1 + x * x)),
    "Sinh": smooth(np.sinh, np.cosh),
    "Cosh": smooth(np.cosh, np.sinh),
    "Asinh": smooth(np.arcsinh, lambda x: 1 / np.sqrt(x * x + 1)),
    "Acosh": smooth(np.arccosh, lambda x: 1 / np.sqrt(x * x - 1)),
    "Atanh": smooth(np.arctanh, lambda x: 1 / (1 - x * x)),
    "Floor": in_steps(np.floor),
    "Ceil": in_steps(np.ceil),
    "Round": in_steps(np.round),
    "Sign": in_steps(np.sign),
    "IsNaN": in_steps(np.isnan),
    "Equal": in_steps(np.equal),
    "Less": in_steps(np.less),
    "LessOrEqual": in_steps(np.less_equal),
    "Greater": in_steps(np.greater),
    "GreaterOrEqual": in_steps(np.greater_equal),
    "Not": in_steps(np.logical_not),
    "And": in_steps(np.logical_and),
    "Or": in_steps(np.logical_or),
    "Xor": in_steps(np.logical_xor),
    "Where": compute_where,
    "Clip": compute_clip,
}
