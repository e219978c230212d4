"""Linear layers, products of matrices, tables of vectors and Dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import functions
from caffelite.functions.arithmetic import as_tensor
from caffelite.onnx.nodes import Finder, Node, NodeGraph, Operator, is_plain, shortest_decimal
from caffelite.onnx.writing import Rule, Value, Writer, node_rule, type_code
from caffelite.tables import Columns, Splines

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_linear(g: Writer, f: Any, x: Value) -> str:
    if f.bias is None:
        return g.node("MatMul", x, g.initializer(f.weight))
    if x.ndim == 2:
        return g.node("Gemm", x, g.initializer(f.weight), g.initializer(f.bias))
    return g.node("Add", g.node("MatMul", x, g.initializer(f.weight)), g.initializer(f.bias))


def write_columns(g: Writer, f: Any, *inputs: Value) -> str:
    """Write the numbers, 0 where they are missing, where these are, and the vectors of the categories."""
    parts = []
    if f.numbers:
        center, scale = map(g.constant, f.moments(g.dtype))
        missing = g.node("IsNaN", inputs[0])
        z = g.node("Where", missing, g.number(0), g.node("Div", g.node("Sub", inputs[0], center), scale))
        if f.robust:
            z = g.node("Clip", z, g.number(-LARGE), g.number(LARGE))
            squared = g.node("Div", g.node("Mul", z, z), g.number(f.limit**2))
            z = g.node("Div", z, g.node("Sqrt", g.node("Add", squared, g.number(1))))
        parts.append(z)
        if len(f.gaps):
            flags = g.node("Gather", missing, g.constant(f.gaps), axis=1)
            parts.append(g.node("Cast", flags, to=type_code(g.dtype)))
        if any(f.bins):
            parts.append(write_bins(g, f, inputs[0], missing))
    for i, embedding in enumerate(f.embeddings):
        codes = g.node("Gather", inputs[-1], g.constant(np.int64(i)), axis=1)
        parts.append(g.node("Gather", g.initializer(embedding.weight), codes, axis=0))
    return g.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


def write_bins(g: Writer, f: Any, x: Value, missing: str) -> str:
    """Write the piecewise linear code of each number, 0 where it is missing."""
    column, lower, width = map(g.constant, f.bin_bounds(g.dtype))
    number, is_missing = (g.node("Gather", values, column, axis=1) for values in (x, missing))
    share = g.node("Div", g.node("Sub", number, lower), width)
    return g.node("Where", is_missing, g.number(0), g.node("Clip", share, g.number(0), g.number(1)))


def write_splines(g: Writer, f: Any, *inputs: Value) -> str:
    """Write a product of the codes of the numbers, and the vectors of the categories, each with its column's scale."""
    k, y = len(f.numbers), g.initializer(f.bias).name
    weight, scale = g.initializer(f.weight), g.initializer(f.column_scale)

    def rows(array: Value | str, places: Any) -> str:
        return g.node("Gather", array, g.constant(np.asarray(places, np.int64)), axis=0)

    def scales(columns: Any) -> str:
        return g.node("Unsqueeze", rows(scale, columns), g.constant(np.array([1])))

    if f.numbers:
        f.moments(g.dtype)  # refuses columns whose numbers this dtype hardly tells apart
        slope, z0 = g.initializer(f.slope), g.constant(f.z[f.starts[:-1], np.newaxis].astype(g.dtype))
        is_missing = g.node("IsNaN", inputs[0])
        missing = g.node("Cast", is_missing, to=type_code(g.dtype))
        number_scales = scales(range(k))
        codes = [g.node("Sub", g.number(1), missing), missing]
        vectors = [g.node("Mul", z0, slope), rows(weight, f.starts[1:] - 1)]
        vectors = [g.node("Mul", number_scales, v) for v in vectors]
        if any(f.bins):
            column = np.repeat(np.arange(k), f.bins)
            dz = np.delete(np.diff(f.z), f.starts[1:-1] - 1)[:, np.newaxis].astype(g.dtype)
            linear = g.node("Mul", g.constant(dz), rows(slope, column))
            rises = g.node("Add", linear, rows(weight, np.delete(np.arange(f.starts[-1]), f.starts[1:] - 1)))
            codes.append(write_bins(g, f, inputs[0], is_missing))
            vectors.append(g.node("Mul", scales(column), rises))
        y = g.node("Gemm", g.node("Concat", *codes, axis=1), g.node("Concat", *vectors, axis=0), y)
    for i in range(len(f.categories)):
        embedding = g.node("Mul", scales([k + i]), rows(weight, range(f.rows[k + i], f.rows[k + i + 1])))
        category_codes = g.node("Gather", inputs[-1], g.constant(np.int64(i)), axis=1)
        y = g.node("Add", y, g.node("Gather", embedding, category_codes, axis=0))
    return y


LARGE = 1e15  # its square is finite

RULES: dict[type, Rule] = {
    functions.Linear: write_linear,
    Columns: write_columns,
    Splines: write_splines,
    functions.DropConnect: write_linear,
    functions.MatMul: node_rule("MatMul"),
    functions.Embedding: lambda g, f, x: g.node("Gather", g.initializer(f.weight), x, axis=0),
    functions.PositionalEncoding: lambda g, f, x: g.node("Add", x, g.constant(f.table(g.dtype)[: x.shape[1]])),
    functions.Dropout: lambda g, f, x: g.node("Dropout", x, g.constant(np.float32(f.p))),
}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


def find_matmul_add(g: NodeGraph, node: Node) -> Node | None:
    """x W + b."""
    for product, bias in (node.inputs, node.inputs[::-1]):
        b, matmul = g.row(bias), g.producer(product, "MatMul")
        if b is not None and matmul is not None:
            x, w = matmul.inputs
            if (linear := _find_linear(g, node, x, w, bias)) is not None:
                return linear
    return None


def find_gemm(g: NodeGraph, node: Node) -> Node | None:
    """x W + b, or with Wᵀ."""
    x, w, *biases = node.inputs
    bias = biases[0] if any(biases) else None
    if node.get("transA", 0) or node.get("alpha", 1.0) != 1 or (bias is not None and node.get("beta", 1.0) != 1):
        return None
    return _find_linear(g, node, x, w, bias, bool(node.get("transB", 0)))


def _find_linear(
    g: NodeGraph, node: Node, x: str, w: str, bias: str | None = None, transposed: bool = False
) -> Node | None:
    """Return a Linear; None if x is a constant, or if the weights are not constants of shapes that fit."""
    weight, b = g.array(w, 2), None if bias is None else g.array(bias, 1)
    if weight is None or x in g.constants:
        return None
    rows, columns = weight.shape[::-1] if transposed else weight.shape
    if bias is not None and (b is None or b.shape != (columns,)):
        return None
    weights = {"weight": w} | ({} if bias is None else {"bias": bias})
    return g.layer(node, lambda: functions.Linear(rows, columns, bias is not None), [x], weights, transposed)


def find_embedding(g: NodeGraph, node: Node) -> Node | None:
    w, places = node.inputs
    a = g.array(w, 2)
    if a is None or node.get("axis", 0) or (places not in g.reader.inputs and places not in g.producers):
        return None
    return g.layer(node, lambda: functions.Embedding(*a.shape), [_unwrap_negative(g, places, len(a))], {"weight": w})


def _unwrap_negative(g: NodeGraph, places: str, count: int) -> str:
    """i if the places are where(i < 0, i + count, i), otherwise the places. Keras counts from the end this way."""
    where = g.producers.get(places)
    if where is None or where.operator != "Where":
        return places
    condition, wrapped, i = where.inputs
    less, add = g.producers.get(condition), g.producers.get(wrapped)
    if less is None or add is None or (less.operator, add.operator) != ("Less", "Add"):
        return places
    is_wrapped = less.inputs[0] == i and g.number(less.inputs[1]) == 0 and i in add.inputs
    return i if is_wrapped and count in map(g.number, add.inputs) else places


def find_positional_encoding(g: NodeGraph, node: Node) -> Node | None:
    """x with a table of waves added."""
    for x, table in (node.inputs, node.inputs[::-1]):
        a = g.constants.get(table)
        if a is None or a.ndim not in (2, 3) or a.dtype != g.reader.dtype or a.shape[:-2] not in ((), (1,)):
            continue
        if a.size == 0:
            continue
        length, size = a.shape[-2:]
        function = functions.PositionalEncoding(size, length)
        if x not in g.constants and np.allclose(function.table(a.dtype), a, atol=1e-6):
            return g.layer(node, function, [x])
    return None


def find_dropout(g: NodeGraph, node: Node) -> Node | None:
    ratio = g.number(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else node.get("ratio", 0.5)
    return None if ratio is None else g.layer(node, lambda: functions.Dropout(shortest_decimal(ratio)), node.inputs[:1])


GROUPS: dict[str, list[Finder]] = {"Add": [find_matmul_add, find_positional_encoding]}

SINGLE_NODES: dict[str, list[Finder]] = {
    "MatMul": [lambda g, node: _find_linear(g, node, node.inputs[0], node.inputs[1])],
    "Gemm": [find_gemm],
    "Gather": [find_embedding],
    "Dropout": [find_dropout],
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_gemm(node: Node, a: Any, b: Any, c: Any = None) -> Any:
    a, b = (as_tensor(x).T if node.get(flag, 0) else as_tensor(x) for x, flag in ((a, "transA"), (b, "transB")))
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    y = a @ b if alpha == 1 else (a @ b) * alpha
    return y if c is None else y + (c if beta == 1 else c * beta)


def compute_einsum(node: Node, *values: Any) -> Any:
    """Return sums of products, by letters for axes, of one array or of two."""
    *terms, _ = einsum_terms(node)
    if is_plain(*values):
        return np.einsum(node.get("equation"), *values)
    if any(len(term) != x.ndim for term, x in zip(terms, values, strict=True)):
        raise node.error(f"sums {node.get('equation')!r} of shapes {', '.join(str(x.shape) for x in values)}")
    return functions.einsum(node.get("equation"), *values)


def einsum_terms(node: Node) -> list[str]:
    """Return the letters of the axes of each input of an Einsum. The last item has the letters of its output."""
    equation = node.get("equation").replace(" ", "")
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    if not arrow:
        result = "".join(sorted(letter for letter in set(inputs) - {","} if inputs.count(letter) == 1))
    are_letters = all(f"a{x}".isalpha() and len(set(x)) == len(x) for x in (*terms, result)) and set(result) <= set(
        inputs
    )
    if not are_letters or len(terms) != len(node.inputs) or len(terms) > 2:
        raise node.error(f"has the equation {equation!r}, which caffelite does not have")
    return [*terms, result]


OPERATORS: dict[str, Operator] = {"MatMul": lambda node, a, b: a @ b, "Gemm": compute_gemm, "Einsum": compute_einsum}
