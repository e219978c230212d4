"""The text of C: loops, arrays and numbers, and the functions of numbers that layers call."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caffelite._kernels.operations import by_function

WIDTH = 120  # characters of a line
INDICES = "ijklmnop"  # of axes

Shape = tuple[int, ...]  # of a row, and of an array in C

#: Functions of numbers, by name.
HELPERS = {
    "relu": """\
/* max(x, 0); NaN stays NaN */
static float relu(float x) { return x < 0 ? 0 : x; }""",
    "leaky_relu": "static float leaky_relu(float x, float slope) { return x > 0 ? x : slope * x; }",
    "elu": "static float elu(float x, float alpha) { return x > 0 ? x : alpha * expm1f(x); }",
    "gelu": """\
/* x P(X < x) for a standard normal X */
static float gelu(float x) { return 0.5f * x * erfcf(-0.7071067811865476f * x); }""",
    "gelu_tanh": """\
static float gelu_tanh(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}""",
    "sigmoid": "static float sigmoid(float x) { return 1 / (1 + expf(-x)); }",
    "silu": "static float silu(float x) { return x / (1 + expf(-x)); }",
    "softplus": """\
/* log(1 + exp(x)), where exp(x) may overflow */
static float softplus(float x) { return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x))); }""",
    "larger": """\
/* the larger of two numbers, or NaN if one of them is */
static float larger(float a, float b) { return b > a || b != b ? b : a; }""",
    "smaller": """\
/* the smaller of two numbers, or NaN if one of them is */
static float smaller(float a, float b) { return b < a || b != b ? b : a; }""",
    "place": """\
/* i + f for an x in bin i, at the share f of its width; 0 below the first bin, n above the last, n + 1 for NAN */
static float place(float x, const float *lower, const float *width, int n)
{
    int i = 0;
    for (int t = 1; t < n; t++)
        i += x >= lower[t];
    const float share = n > 0 ? (x - lower[i]) / width[i] : 0;
    return x != x ? n + 1 : i + (share > 0 ? (share < 1 ? share : 1) : 0);
}""",
}

#: C's functions of numbers, without the f of those for floats.
MATH = {"erfc", "expm1", "log1p", *re.findall(r"(\w+)f\(", " ".join(by_function("c").values()))}


def to_double(code: str) -> str:
    """C for `double` of C for `float`."""
    code = re.sub(r"\bfloat\b", "double", code)
    code = re.sub(rf"\b({'|'.join(MATH)})f\(", r"\1(", code)
    return re.sub(r"(\d)f\b", r"\1", code)


def loop(index: str, count: object, *body: str, begin: object = 0) -> str:
    """Statements for each value of an index."""
    head = f"for (int {index} = {begin}; {index} < {count}; {index}++)"
    inside = indent("\n".join(body))
    return f"{head} {{\n{inside}\n}}" if len(body) > 1 else f"{head}\n{inside}"


def loops(counts: Mapping[str, int], *body: str) -> list[str]:
    """Statements for all values of several indices. The last index runs fastest."""
    statements = list(body)
    for index, count in reversed([*counts.items()]):
        statements = [loop(index, count, *statements)]
    return statements


def axes(**counts: int) -> dict[str, int]:
    """Return the axes that are longer than 1, by their indices."""
    return {index: count for index, count in counts.items() if count > 1}


def index_axes(function: Any, shape: Shape) -> dict[str, int]:
    """All axes of an array that a Function reads or makes, by their indices; TypeError if there are too many."""
    if len(shape) > len(INDICES):
        raise TypeError(f"export: there is no C for {function!r} of rows with more than {len(INDICES)} axes")
    return dict(zip(INDICES, shape, strict=False))


def dims(counts: Mapping[str, int]) -> Shape:
    """Return the shape of an array with these axes, as C sees it."""
    return tuple(counts.values()) or (1,)


def subscript(counts: Mapping[str, int]) -> str:
    """Return an element of such an array, as C writes it."""
    return "".join(f"[{index}]" for index in counts) or "[0]"


def indent(text: str) -> str:
    return textwrap.indent(text, "    ", lambda line: True)


def brackets(shape: Shape) -> str:
    return "".join(f"[{n}]" for n in shape)


def parameter(name: str, shape: Shape, number_type: str = "float") -> str:
    """Return a parameter that is an array of numbers of this type, or an array of arrays."""
    return as_pointer(f"restrict {name}", shape, number_type)


def as_pointer(name: str, shape: Shape, number_type: str = "float") -> str:
    """Return a pointer to an array of this shape, or its type if the name is empty."""
    return f"{number_type} *{name}" if len(shape) == 1 else f"{number_type} (*{name}){brackets(shape[1:])}"


def wrap_items(head: str, items: Sequence[str], tail: str, margin: str = "    ") -> str:
    """Items between commas, in as many lines as they need."""
    lines = [head]
    for i, item in enumerate(items):
        text = item + (tail if i == len(items) - 1 else ",")
        if len(lines[-1]) + len(text) + 1 > WIDTH and lines[-1] != margin:
            lines.append(margin)
        lines[-1] += text if lines[-1] in (head, margin) else f" {text}"
    return "\n".join(lines)


def literal(value: Any) -> str:
    """Return a number in C: the shortest decimal that reads back to its bits."""
    if isinstance(value, np.integer | np.bool_):
        return str(int(value))
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return str(value) if isinstance(value, np.float64) else f"{value!s}f"


def define_array(head: str, array: np.ndarray, width: int = WIDTH) -> str:
    """Return the definition of an array in C, in lines; `head` is what comes before the numbers."""
    texts = list(map(literal, array.reshape(-1)))
    inner = 1
    for n in reversed(array.shape):
        inner *= n
        texts[::inner] = [f"{{{text}" for text in texts[::inner]]
        texts[inner - 1 :: inner] = [f"{text}}}" for text in texts[inner - 1 :: inner]]
    lines, line = [], ""
    for text in texts:
        if len(line) + len(text) > width - 7:  # 4 of indentation, and 3 of commas and a blank
            lines.append(f"{line},")
            line = ""
        line = f"{line}, {text}" if line else text
    fits = not lines and len(head) + len(line) + 2 <= width
    return f"{head} {line};" if fits else "\n    ".join([head, *lines, f"{line};"])


def has_two_orders(body: str) -> bool:
    """Return True unless each array in the statements has one subscript, without another array's element in it."""
    body = re.sub(r"static const .*", "", body)
    subscripts = dict(found := re.findall(r"(\w+)((?:\[[^][]*\])+)", body))
    return "[" in re.sub(r"\[[^][]*\]", "", body) or any(subscripts[name] != subscript for name, subscript in found)


def as_comment(text: str) -> str:
    """Lines of a comment. Nothing in them ends it, begins another, or makes a compiler warn."""
    text = "".join([x if x.isprintable() or x == "\n" else x.encode("unicode_escape").decode() for x in text])
    for wrong in ("*/", "/*", "??/"):
        text = text.replace(wrong, f"{wrong[:-1]} {wrong[-1]}")
    return re.sub(" +\n", "\n", text.replace("\n", "\n * "))
