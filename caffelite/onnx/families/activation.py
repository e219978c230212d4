"""Activations, and Softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.functions.arithmetic import as_tensor
from caffelite.onnx.families.elementwise import numpy_op
from caffelite.onnx.nodes import Finder, Node, NodeGraph, Operator, shortest_decimal, simple_finder
from caffelite.onnx.writing import Rule, Value, Writer, node_rule

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_leaky_relu(g: Writer, f: Any, x: Value) -> str:
    """Write a LeakyRelu, or a PRelu if the slope is not a float32, because ONNX's attributes are float32."""
    slope = f.slope
    if g.dtype == np.float64 and float(np.float32(slope)) != slope:
        return g.node("PRelu", x, g.number(slope))
    return g.node("LeakyRelu", x, alpha=slope)


def write_prelu(g: Writer, f: Any, x: Value) -> str:
    slope = g.initializer(f.slope)
    if f.channels == 1 or x.ndim == 2:
        return g.node("PRelu", x, slope)
    return g.node("PRelu", x, g.node("Reshape", slope, g.integers((f.channels, *[1] * (x.ndim - 2)))))


def write_gelu(g: Writer, f: Any, x: Value) -> str:
    if f.approximate:
        cube = g.node("Mul", g.node("Mul", x, x), x)
        inner = g.node("Add", x, g.node("Mul", cube, g.number(0.044715)))
        part = g.node("Tanh", g.node("Mul", inner, g.number(math.sqrt(2 / math.pi))))
    else:
        part = g.node("Erf", g.node("Div", x, g.number(math.sqrt(2))))
    return g.node("Mul", g.node("Mul", x, g.node("Add", part, g.number(1))), g.number(0.5))


RULES: dict[type, Rule] = {
    functions.LeakyReLU: write_leaky_relu,
    functions.PReLU: write_prelu,
    functions.ELU: node_rule("Elu", alpha="alpha"),
    functions.GELU: write_gelu,
    functions.Softmax: node_rule("Softmax", axis="axis"),
    functions.LogSoftmax: node_rule("LogSoftmax", axis="axis"),
}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


def find_silu(g: NodeGraph, node: Node) -> Node | None:
    """x σ(x)."""
    for x, s in (node.inputs, node.inputs[::-1]):
        sigmoid = g.producer(s, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs == [x]:
            return g.layer(node, functions.SiLU, [x])
    return None


def find_gelu(g: NodeGraph, node: Node) -> Node | None:
    """x (1 + erf(x / √2)) / 2, or with tanh(√(2/π) (x + 0.044715 x³)) for the error function, in any order."""
    parts = factors(g, *node.inputs)
    halves = [name for name in parts if _is_close(g.number(name), 0.5)]
    sums = [(name, y) for name in parts if (y := _find_plus_one(g, name)) is not None]
    if len(parts) != 3 or len(halves) != 1 or len(sums) != 1:
        return None
    (x,) = drop_name(drop_name(parts, halves[0]), sums[0][0])
    inner = sums[0][1]
    if (erf := g.producer(inner, "Erf")) is not None and _is_scaled(g, erf.inputs[0], x, math.sqrt(0.5)):
        return g.layer(node, functions.GELU, [x])
    if (tanh := g.producer(inner, "Tanh")) is not None:
        scaled = factors(g, tanh.inputs[0])
        constant = [name for name in scaled if _is_close(g.number(name), math.sqrt(2 / math.pi))]
        if len(scaled) == 2 and len(constant) == 1 and _is_cubic(g, drop_name(scaled, constant[0])[0], x):
            return g.layer(node, lambda: functions.GELU(approximate=True), [x])
    return None


MAX_FACTORS = 4  # of 0.044715 x³


def factors(g: NodeGraph, *names: str) -> list[str]:
    """Take a product apart into its factors. A long product is not taken apart completely."""
    parts: list[str] = []
    rest = list(names)
    while rest:
        name = rest.pop(0)
        node = g.producer(name, "Mul")
        if node is None or len(parts) + len(rest) >= MAX_FACTORS:
            parts.append(name)
        else:
            rest[:0] = node.inputs
    return parts


def drop_name(names: list[str], x: str) -> list[str]:
    names = list(names)
    if x in names:
        names.remove(x)
    return names


def _is_close(number: float | None, expected: float) -> bool:
    return number is not None and math.isclose(number, expected, rel_tol=1e-5)


def _find_plus_one(g: NodeGraph, name: str) -> str | None:
    """y of y + 1."""
    node = g.producer(name, "Add")
    for y, constant in () if node is None else (node.inputs, node.inputs[::-1]):
        if _is_close(g.number(constant), 1):
            return y
    return None


def _is_scaled(g: NodeGraph, name: str, x: str, scale: float) -> bool:
    """Return whether the value is x times the scale."""
    if (quotient := g.producer(name, "Div")) is not None:
        return quotient.inputs[0] == x and _is_close(g.number(quotient.inputs[1]), 1 / scale)
    rest = drop_name(factors(g, name), x)
    return len(rest) == 1 and _is_close(g.number(rest[0]), scale)


def _is_cubic(g: NodeGraph, name: str, x: str) -> bool:
    """Return whether the value is x + 0.044715 x³."""
    node = g.producer(name, "Add")
    if node is None or x not in node.inputs:
        return False
    parts = factors(g, drop_name(node.inputs, x)[0])
    constant = [part for part in parts if _is_close(g.number(part), 0.044715)]
    rest = drop_name(parts, constant[0]) if constant else []
    if rest == [x] * 3:
        return True
    cube = g.producer(rest[0], "Pow") if len(rest) == 1 else None
    return cube is not None and cube.inputs[0] == x and _is_close(g.number(cube.inputs[1]), 3)


def find_leaky_relu(g: NodeGraph, node: Node) -> Node | None:
    """Find a LeakyReLU: a PRelu with one number as its slope, which is not learned."""
    x, slope = node.inputs
    number = None if slope in g.reader.weights else g.number(slope)
    if number is None or not 0 <= number < math.inf or x in g.constants or g.constants[slope].ndim > 0:
        return None
    return g.layer(node, lambda: functions.LeakyReLU(number), [x])


def find_prelu(g: NodeGraph, node: Node) -> Node | None:
    """Find a PReLU with one slope. Of several slopes, the file does not say to which axis they belong."""
    x, slope = node.inputs
    a = g.constants.get(slope)
    if a is None or a.size != 1 or a.dtype != g.reader.dtype or x in g.constants:
        return None
    if a.ndim != 1 and not g.is_used_once(slope):
        return None
    g.constants[slope] = a.reshape(1)
    return g.layer(node, functions.PReLU, [x], {"slope": slope})


def axis_finder(kind: Any) -> Finder:
    """Find a layer along an axis. Old versions mean something else by an axis that is not the last one."""

    def find(g: NodeGraph, node: Node) -> Node | None:
        if node.version < 13 and node.get("axis", 1) != -1:
            return None
        return simple_finder(lambda node: kind(node.get("axis", -1)))(g, node)

    return find


GROUPS: dict[str, list[Finder]] = {"Mul": [find_silu, find_gelu]}

SINGLE_NODES: dict[str, list[Finder]] = {
    "Relu": [simple_finder(lambda node: functions.ReLU())],
    "PRelu": [find_leaky_relu, find_prelu],
    "LeakyRelu": [simple_finder(lambda node: functions.LeakyReLU(shortest_decimal(node.get("alpha", 0.01))))],
    "Elu": [simple_finder(lambda node: functions.ELU(shortest_decimal(node.get("alpha", 1.0))))],
    "Gelu": [simple_finder(lambda node: functions.GELU(node.get("approximate", "none") == "tanh"))],
    "Softplus": [simple_finder(lambda node: functions.Softplus())],
    "Tanh": [simple_finder(lambda node: functions.Tanh())],
    "Sigmoid": [simple_finder(lambda node: functions.Sigmoid())],
    "Softmax": [axis_finder(functions.Softmax)],
    "LogSoftmax": [axis_finder(functions.LogSoftmax)],
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def softmax_op(kind: Any) -> Operator:
    def rule(node: Node, x: Any) -> Any:
        axis = node.get("axis", -1 if node.version >= 13 else 1)
        x = as_tensor(x)
        if node.version >= 13 or axis % x.ndim == x.ndim - 1:
            return kind(axis)(x)
        flat = x.reshape(math.prod(x.shape[: axis % x.ndim]), -1)  # as these versions have it
        return kind(-1)(flat).reshape(x.shape)

    return rule


OPERATORS: dict[str, Operator] = {
    "Relu": lambda node, x: functions.relu(x),
    "LeakyRelu": lambda node, x: functions.leaky_relu(x, node.get("alpha", 0.01)),
    "PRelu": lambda node, x, slope: functions.relu(x) - functions.relu(-x) * slope,
    "Elu": lambda node, x: functions.elu(x, node.get("alpha", 1.0)),
    "Celu": lambda node, x: functions.elu(x / node.get("alpha", 1.0)) * node.get("alpha", 1.0),
    "Selu": lambda node, x: (
        functions.elu(x, node.get("alpha", 1.6732632423543772)) * node.get("gamma", 1.0507009873554805)
    ),
    "ThresholdedRelu": lambda node, x: functions.where(
        numpy_op(np.greater, operator="Greater")(node, x, node.get("alpha", 1.0)), x, 0.0
    ),
    "Gelu": lambda node, x: functions.gelu(x, node.get("approximate", "none") == "tanh"),
    "Sigmoid": lambda node, x: functions.sigmoid(x),
    "HardSigmoid": lambda node, x: functions.clip(x * node.get("alpha", 0.2) + node.get("beta", 0.5), 0, 1),
    "HardSwish": lambda node, x: x * functions.clip(x / 6.0 + 0.5, 0, 1),
    "Swish": lambda node, x: x * functions.sigmoid(x * node.get("alpha", 1.0)),
    "Mish": lambda node, x: x * functions.tanh(functions.softplus(x)),
    "Softplus": lambda node, x: functions.softplus(x),
    "Softsign": lambda node, x: x / (functions.abs(x) + 1.0),
    "Tanh": lambda node, x: functions.tanh(x),
    "Softmax": softmax_op(functions.Softmax),
    "LogSoftmax": softmax_op(functions.LogSoftmax),
}
