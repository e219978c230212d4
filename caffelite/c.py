"""A trained model as one file of C99, which computes what `predict` does and needs nothing but the C library.

A net becomes a list of `Layer`s, C functions from arrays to an array, in the order in which they are called. The arrays
between them, `Value`s, share one block of memory: a layer that can work in place does so where nobody reads later what
it overwrites, and those that are not needed at the same time may lie at the same place.

What is written for each kind of Function is said by one function of Python, listed in `LAYERS`. It writes C for
`float`, of which `in_double` makes C for `double`.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite import functions
from caffelite.core.arrays import integers, normalized_axes
from caffelite.core.autograd import inputs_first
from caffelite.core.function import Function, formula_of, shape_text
from caffelite.core.modes import inference, mode, probing
from caffelite.core.recording import Recording
from caffelite.core.tables import bytes_text, shortened
from caffelite.core.tensor import Tensor
from caffelite.files import safetensors as files
from caffelite.model.model import Model

__all__ = ["export"]

WIDTH = 120  # characters of a line
MOST_SAID = 80  # characters of a Function's `repr`
LARGEST = 2**31 - 1  # what an `int` counts to
ROWS = 2  # with which a model is traced: as good as any other number, but no length that something is broadcast from

Shape = tuple[int, ...]  # in this file, of a row


def export(model: Model, path: str | os.PathLike, input_shape: Sequence[int] | None = None) -> None:
    """Write a model as a file of C99: its weights, and a function that predicts a row:

        void predict(const float *x, float *y);

    It computes the outputs y of a row x as `model.predict` does; `double` for a model of float64. x and y are in C
    order, so an image comes channel by channel. The function allocates nothing, and needs no library but libm. A
    comment in the file says how to compile and to call it, what it computes, and how much memory that takes.

    The model is made of Linear, convolutions, pools, GlobalAvgPool, Upsample, BatchNorm (by its running mean and
    variance), LayerNorm, GroupNorm, the activations, Softmax and LogSoftmax, Flatten, Reshape, Dropout and DropConnect
    (which drop nothing), Columns of numbers, Residual, Parallel, and Models, with one input and one output, and other
    Functions whose `formula` uses only these. One that writes `call` is followed on zeros: besides those Functions it
    may use + - * / ** of Tensors of one shape and of numbers, exp, log, sqrt, abs, concatenate and reshape; what it
    decides by looking at values is refused. `input_shape` is that of a row, needed where the first Function takes any.

    Raises, before anything is written, TypeError naming a Function of another kind, and ValueError for shapes that
    don't fit; OSError naming the path if it can't be written. The file replaces an older one when it is whole.
    """
    files.replace(path, [source(model, path, input_shape).encode()])


def _row_shape(model: Model, given: Any) -> Shape:
    """The shape of a row, as it is given or as the model requires it; ValueError where it is not known."""
    if given is not None:
        if not isinstance(given, tuple | list):
            raise TypeError(f"export: expected input_shape to be the shape of a row, such as (64,), got {given!r}")
        if any(isinstance(n, tuple | list) for n in given):
            raise TypeError(f"export: the function in C takes one input, got the shapes {given!r} of several")
        return integers("export: input_shape", given, len(given), most=LARGEST)
    shape: Any = model.required_input_shape or (None, None)
    if isinstance(shape[0], tuple):
        raise TypeError(f"export: the function in C takes one input, and {shortened(repr(model), MOST_SAID)} several")
    required = [n for n in shape[1:] if n is not ...]
    if None in required:
        raise ValueError(
            f"export: {shortened(repr(model), MOST_SAID)} takes rows of several shapes, {shape_text(shape)}: say "
            "which, as in input_shape=(3, 32, 32)"
        )
    return tuple(required)


# ---- layers and memory ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Value:
    """An array between layers, needed from the call number `first` to the call number `last`."""

    size: int
    first: int = 0
    last: int = 0
    offset: int = 0  # in the memory that all share
    place: str = ""  # what C calls it

    def is_needed_beside(self, other: Value) -> bool:
        """Whether there is a call at which both are needed."""
        return self.first <= other.last and other.first <= self.last


Part = tuple[Any, Any]  # a value and its shape; or None and a number


@dataclass
class Layer:
    """A C function of arrays, by name, that sets `y`: how it sees each, (6, 28, 28) as float [6][28][28], and its body.

    `constants` are weights by name. A layer can be `in_place`, y being written over an input of the same size, if it
    reads nothing of that at a place after it has written there.
    """

    inputs: dict[str, Shape]
    y: Shape
    body: list[str]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    in_place: bool = False


class Net:
    """The layers that a model applies to a row, in order, and the values between them, from `x` to `y`."""

    def __init__(self, model: Model, shape: Shape) -> None:
        self.dtype = model.dtype
        self.number = "float" if model.dtype == np.float32 else "double"
        self.x = Value(_count(shape), place="x")
        self.values: list[Value] = []  # that layers make
        self.kept: list[Value] = []  # that calls will read which are not there yet
        self.calls: list[tuple[str, list[tuple[Value, Shape]]]] = []  # a layer's name, and its arrays as it sees them
        self.names: dict[tuple, str] = {}  # of layers, by what they were made of
        self.places: dict[tuple, str] = {}  # where Functions are first, as names say it
        self.definitions: list[str] = []
        self.used: set[str] = set()  # helpers
        self.constant_bytes = 0
        self.y, self.y_shape = self.apply(model, (), [(self.x, shape)])
        if self.y is self.x:
            self.y = self.call(model, (0,), copied(shape), [(self.x, shape)], shape)
        self.y.place = "y"
        self.memory = _arrange([value for value in self.values if value is not self.y])

    def apply(self, function: Any, place: Shape, parts: list[Part], y_shape: Any = None) -> Part:
        """The output for inputs of these shapes, and its shape; `place` says where in the model the Function is."""
        kind, (x, *_) = type(function), parts
        if isinstance(function, Model) and kind.forward is Model.forward:
            if kind.call is Model.call:
                return self.sequence(function, place, x)
            function.all_functions()
            return self.graph(function, function, place, [x])
        if kind not in LAYERS and kind not in IDENTITIES:
            if (formula := formula_of(function)) is None:
                raise TypeError(f"export: there is no C for {function!r}")
            return self.graph(function, formula, place, parts)
        if y_shape is None:
            y_shape = function.output_shape(*[(None, *shape) for _, shape in parts])[1:]
        if kind in IDENTITIES:
            return x[0], y_shape
        if kind is functions.Residual:
            parts = [x, *self.branches([function.function], place, x)]
        elif kind is functions.Parallel:
            parts = self.branches(function.functions, place, x)
        layer = LAYERS[kind](function, *[shape for _, shape in parts], y_shape)
        arrays = [part for part in parts if isinstance(part[0], Value)]
        return self.call(function, place, layer, arrays, y_shape), y_shape

    def sequence(self, model: Model, place: Shape, x: Part) -> Part:
        """What the Functions of a model make of x, one after the other."""
        for i, function in enumerate(model.functions):
            x = self.apply(function, (*place, i), [x])
        return x

    def branches(self, beside: Sequence[Function], place: Shape, x: Part) -> list[Part]:
        """What each Function makes of x; neither that nor x is written over meanwhile."""
        before = len(self.kept)
        self.kept.append(x[0])
        outputs = []
        for i, function in enumerate(beside):
            outputs.append(self.apply(function, (*place, i), [x]))
            self.kept.append(outputs[-1][0])
        del self.kept[before:]
        return outputs

    def graph(self, of: Function, call: Callable[..., Any], place: Shape, parts: list[Part]) -> Part:
        """What the `call` of a model, or the formula of a Function, makes of its inputs.

        It is known by the graph of Tensors that it makes of zeros.
        """
        given, y, numbers = _traced(of, call, [shape for _, shape in parts], self.dtype)
        tensors = [tensor for tensor in inputs_first(y) if tensor.function is not None]
        uses = Counter(id(tensor) for made in tensors for tensor in made.inputs)
        found = {id(x): part for x, part in zip(given, parts, strict=True)}
        for x, (value, _) in zip(given, parts, strict=True):
            self.kept += [value] * uses[id(x)]
        for i, tensor in enumerate(tensors):
            function: Any = tensor.function
            if tensor.shape[:1] != (ROWS,) or tensor._place is not None:
                raise TypeError(f"export: there is no C for {function!r} as it is used in {of!r}")
            operands = []
            for k, part in enumerate(tensor.inputs):
                number = numbers.get((kernels.address(tensor._data), k))
                if id(part) not in found and number is None:
                    raise TypeError(f"export: there is no C for {function!r} of what is made of no row, in {of!r}")
                operands.append(found.get(id(part), (None, number)))
            for value, _ in operands:
                if value is not None:
                    self.kept.remove(value)
            found[id(tensor)] = made = self.apply(function, (*place, i), operands, tensor.shape[1:])
            self.kept += [made[0]] * uses[id(tensor)]
        return found[id(y)]

    def call(self, function: Function, place: Shape, layer: Layer, parts: list[Part], y_shape: Shape) -> Value:
        """Note a call of the layer of a Function; its y, a new value or in the place of an input."""
        inputs, shapes = [x for x, _ in parts], [*[shape for _, shape in parts], y_shape]
        free = [x for x in inputs if layer.in_place and x is not self.x and x not in self.kept]
        y = free[0] if free else Value(_count(shapes[-1]), first=len(self.calls))
        if not free:
            self.values.append(y)
        for x in (*inputs, y):
            x.last = len(self.calls)
        given = dict(zip(layer.inputs, inputs, strict=True))
        renamed = {name: "y" if x is y else next(n for n, z in given.items() if z is x) for name, x in given.items()}
        key = (*_identity(function), *layer.body, *shapes, *renamed.values())
        if key not in self.names:
            self.names[key] = self.define(function, place, layer, renamed, shapes)
        arrays = [(x, layer.inputs[name]) for name, x in given.items() if renamed[name] == name]
        self.calls.append((self.names[key], [*arrays, (y, layer.y)]))
        return y

    def define(
        self, function: Function, place: Shape, layer: Layer, renamed: dict[str, str], shapes: list[Shape]
    ) -> str:
        """Write a layer in C; its name. Inputs that are the same array, or y's, have got its name."""
        suffix = "".join(f"_{i}" for i in place)
        first = self.places.setdefault(_identity(function), suffix)  # whose weights it shares
        body = "\n".join(layer.body)
        for name, other in renamed.items():
            body = re.sub(rf"\b{name}\[", f"{other}[", body)
        for name in layer.constants:
            body = re.sub(rf"\b{name}\[", f"{name}{first}[", body)
        inputs = [f"const {_parameter(name, layer.inputs[name])}" for name in renamed if renamed[name] == name]
        head = f"{type(function).__name__.lower()}{suffix}"
        what = f"{'.'.join(map(str, place))}: {shortened(repr(function), MOST_SAID)}"
        sizes = f"{', '.join(map(shape_text, shapes[:-1]))} -> {shape_text(shapes[-1])}"
        over = ", in place" if "y" in renamed.values() else ""
        self.definitions.append(f"/* {_as_comment(what)}: {sizes}{over} */")
        if first == suffix:
            self.definitions += [self.constant(f"{name}{first}", array) for name, array in layer.constants.items()]
        signature = f"static void {head}({', '.join([*inputs, _parameter('y', layer.y)])})"
        self.definitions.append(self.c(f"{signature}\n{{\n{_indented(body)}\n}}\n"))
        return head

    def c(self, code: str) -> str:
        """C for numbers of the model's dtype, of C for `float`."""
        self.used |= {name for name in HELPERS if re.search(rf"\b{name}\(", code)}
        return code if self.number == "float" else in_double(code)

    def constant(self, name: str, array: np.ndarray) -> str:
        """The definition of an array of weights."""
        array = array.astype(self.dtype)
        self.constant_bytes += array.nbytes
        return f"static const {self.number} {name}{_brackets(array.shape)} ={_braced(array)};"


def _traced(
    of: Function, call: Callable[..., Any], shapes: Sequence[Shape], dtype: np.dtype
) -> tuple[list[Tensor], Tensor, dict[tuple[int, int], Any]]:
    """Rows of zeros, the Tensor that a call makes of them, as in use, with its graph, and the numbers in operators.

    The numbers are by the address of what the operator makes and by which of its inputs they are. TypeError where the
    call can't be followed, as where it looks at values.
    """
    with inference(), probing(), kernels.Paused(), Recording() as recording, np.errstate(all="ignore"):
        mode.records_graph = True  # until the end of `inference`
        given = [Tensor(np.zeros((ROWS, *shape), dtype), requires_grad=True) for shape in shapes]
        try:
            y = call(*given)
        except Exception as error:
            how = "call" if isinstance(of, Model) else "formula"
            raise TypeError(f"export: {of!r} can't be followed through `{how}`: {error}") from error
    if isinstance(y, tuple):
        raise TypeError(f"export: the function in C has one output, and {of!r} has {len(y)}")
    if not isinstance(y, Tensor) or not y.requires_grad:
        raise TypeError(f"export: {of!r} makes {y!r} of a row, and no Tensor that depends on it")
    numbers = {
        (kernels.address(call.arrays[0]), i): array.reshape(-1)[0]
        for call in recording.entries
        if isinstance(call, kernels.RecordedCall)
        for i, array in enumerate(call.arrays[1:])
        if array is not None and array.size == 1
    }
    return given, y, numbers


def _identity(function: Function) -> tuple:
    """What two Functions share that compute the same with the same weights, copies for example."""
    return repr(function), *map(id, function.parameters()), *map(id, function.buffers().values())


def _arrange(values: list[Value]) -> int:
    """Give values places in one block of memory, the largest first, each the first that is free. The block's size."""
    placed: list[Value] = []
    for value in sorted(values, key=lambda value: -value.size):
        for other in sorted(placed, key=lambda other: other.offset):
            if other.is_needed_beside(value) and value.offset + value.size > other.offset:
                value.offset = max(value.offset, other.offset + other.size)
        value.place = f"memory + {value.offset}" if value.offset else "memory"
        placed.append(value)
    return max([value.offset + value.size for value in placed], default=0)


def _count(shape: Shape) -> int:
    """How many numbers an array of this shape has; ValueError for more than a loop in C counts."""
    count = math.prod(shape)
    if not 0 < count <= LARGEST:
        raise ValueError(f"export: arrays have 1 to {LARGEST:,} numbers, got shape {shape}")
    return count


# ---- C --------------------------------------------------------------------------------------------------------------

#: Functions of numbers, by name.
HELPERS = {
    "relu": """\
/* max(x, 0); NaN stays NaN */
static float relu(float x) { return x < 0 ? 0 : x; }""",
    "leaky_relu": """\
static float leaky_relu(float x, float slope) { return x > 0 ? x : slope * x; }""",
    "elu": """\
static float elu(float x, float alpha) { return x > 0 ? x : alpha * expm1f(x); }""",
    "gelu": """\
/* x P(X < x) for a standard normal X */
static float gelu(float x) { return 0.5f * x * erfcf(-0.7071067811865476f * x); }""",
    "gelu_tanh": """\
static float gelu_tanh(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}""",
    "sigmoid": """\
static float sigmoid(float x) { return 1 / (1 + expf(-x)); }""",
    "silu": """\
static float silu(float x) { return x / (1 + expf(-x)); }""",
    "softplus": """\
/* log(1 + exp(x)), where exp(x) may overflow */
static float softplus(float x) { return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x))); }""",
    "larger": """\
/* the larger of two numbers, or NaN if one of them is */
static float larger(float a, float b) { return b > a || b != b ? b : a; }""",
}


def in_double(code: str) -> str:
    """C for `double` of C for `float`."""
    code = re.sub(r"\bfloat\b", "double", code)
    code = re.sub(r"\b(erfc|exp|expm1|fabs|log|log1p|pow|sqrt|tanh)f\(", r"\1(", code)
    return re.sub(r"(\d)f\b", r"\1", code)


def loop(index: str, count: object, *body: str, begin: object = 0) -> str:
    """Statements for each value of an index."""
    head = f"for (int {index} = {begin}; {index} < {count}; {index}++)"
    inside = _indented("\n".join(body))
    return f"{head} {{\n{inside}\n}}" if len(body) > 1 else f"{head}\n{inside}"


def loops(counts: Mapping[str, int], *body: str) -> list[str]:
    """Statements for all values of several indices, the last of which runs fastest."""
    statements = list(body)
    for index, count in reversed([*counts.items()]):
        statements = [loop(index, count, *statements)]
    return statements


def axes(**counts: int) -> dict[str, int]:
    """Those axes that are longer than 1, by their indices."""
    return {index: count for index, count in counts.items() if count > 1}


def dims(counts: Mapping[str, int]) -> Shape:
    """How an array with these axes is seen."""
    return tuple(counts.values()) or (1,)


def at(counts: Mapping[str, int]) -> str:
    """How an element of it is written."""
    return "".join(f"[{index}]" for index in counts) or "[0]"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _brackets(dims: Shape) -> str:
    return "".join(f"[{n}]" for n in dims)


def _parameter(name: str, seen: Shape) -> str:
    """A parameter that is an array, or an array of arrays."""
    return f"float *restrict {name}" if len(seen) == 1 else f"float (*restrict {name}){_brackets(seen[1:])}"


def literal(value: Any) -> str:
    """A number in C: the shortest decimal that reads back to its bits."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return str(value) if isinstance(value, np.float64) else f"{value!s}f"


def _braced(array: np.ndarray) -> str:
    """An array in C, in lines."""
    texts = list(map(literal, array.reshape(-1)))
    inner = 1
    for n in reversed(array.shape):
        inner *= n
        texts[::inner] = [f"{{{text}" for text in texts[::inner]]
        texts[inner - 1 :: inner] = [f"{text}}}" for text in texts[inner - 1 :: inner]]
    lines, line = [], ""
    for text in texts:
        if len(line) + len(text) > WIDTH - 7:  # 4 of indentation, and 3 of commas and a blank
            lines.append(f"{line},")
            line = ""
        line = f"{line}, {text}" if line else text
    return "\n    ".join(["", *lines, line]) if lines else f" {line}"


# ---- what is written for each kind of Function ----------------------------------------------------------------------


def elementwise(shape: Shape, y: str, *inputs: str) -> Layer:
    """Each element of y by itself, from the elements [] of the inputs."""
    counts = axes(i=math.prod(shape))
    body = loops(counts, f"y[] = {y};".replace("[]", at(counts)))
    return Layer(dict.fromkeys(inputs, dims(counts)), dims(counts), body, in_place=True)


def activation(helper: str, *attributes: str) -> Callable[..., Layer]:
    """What writes an activation that a helper computes of x and of attributes of the Function."""

    def write(f: Function, x: Shape, y: Shape) -> Layer:
        arguments = ["x[]", *[literal(getattr(f, name)) for name in attributes]]
        return elementwise(x, f"{helper}({', '.join(arguments)})", "x")

    return write


def gelu(f: functions.GELU, x: Shape, y: Shape) -> Layer:
    return elementwise(x, "gelu_tanh(x[])" if f.approximate else "gelu(x[])", "x")


def copied(shape: Shape) -> Layer:
    return elementwise(shape, "x[]", "x")


def arithmetic(text: str) -> Callable[..., Layer]:
    """What writes an operator of Tensors of one shape, or of a Tensor and a number."""

    def write(f: Function, a: Any, b: Any, y: Shape) -> Layer:
        operands = {name: x for name, x in (("a", a), ("b", b)) if isinstance(x, tuple)}
        if {*operands.values()} != {y}:
            raise TypeError(f"export: there is no C for {f!r} of shapes {a} and {b}, which are broadcast")
        a, b = (f"{name}[]" if name in operands else literal(x) for name, x in (("a", a), ("b", b)))
        return elementwise(y, text.format(a, b), *operands)

    return write


def negative(f: functions.Negative, x: Shape, y: Shape) -> Layer:
    return elementwise(x, "-x[]", "x")


def residual(f: functions.Residual, x: Shape, fx: Shape, y: Shape) -> Layer:
    return elementwise(x, "x[] + f[]", "x", "f")


def side_by_side(f: Any, *shapes: Shape) -> Layer:
    """`part0`, `part1` … side by side: seen as rows r, all axes before the one along which they are, of elements j."""
    (axis,) = normalized_axes(getattr(f, "concatenate", f).axis, 1 + len(shapes[0]))
    if axis == 0:
        raise ValueError(f"export: there is no C for {f!r}, which puts rows together")
    *parts, y = [axes(r=math.prod(shape[: axis - 1]), j=math.prod(shape[axis - 1 :])) for shape in shapes]
    body, begin = [], 0
    for i, (part, shape) in enumerate(zip(parts, shapes[:-1], strict=True)):
        behind = [str(begin)] * (begin > 0) + ["j"] * ("j" in part)
        place = at(y).replace("[j]", f"[{' + '.join(behind) or 0}]")
        body += loops(part, f"y{place} = part{i}{at(part)};")
        begin += math.prod(shape[axis - 1 :])
    return Layer({f"part{i}": dims(part) for i, part in enumerate(parts)}, dims(y), body)


def linear(f: functions.Linear, x: Shape, y: Shape) -> Layer:
    """Input by input, for each row r if there are several: outputs lie side by side, as vectors of a processor do."""
    rows, n, m = axes(r=math.prod(x[:-1])), f.in_features, f.out_features
    row = at(rows) if rows else ""
    body = loops(
        rows,
        loop("j", m, f"y{row}[j] = {_bias(f, 'j')};"),
        loop("i", n, loop("j", m, f"y{row}[j] += x{row}[i] * weight[i][j];")),
    )
    return Layer({"x": (*rows.values(), n)}, (*rows.values(), m), body, _weights(f))


def _weights(f: Any) -> dict[str, np.ndarray]:
    return {"weight": f.weight.data} | ({} if f.bias is None else {"bias": f.bias.data})


def _bias(f: Any, index: str) -> str:
    return "0" if f.bias is None else f"bias[{index}]"


class Windows:
    """Windows that move over images or series, of a `length` along each axis, and stop at so many `positions`.

    At position i, tap k of the window is at place s i + d k - p, with stride s, dilation d and padding p.
    The loops over taps are the outer ones: those over positions run along rows, and only where the tap is inside.
    """

    def __init__(self, f: Any, length: Shape, positions: Shape, dilation: Shape) -> None:
        self.position = self.place = self.tap = ""
        self.tables: list[str] = []
        self.over_positions: dict[str, int] = {}
        self.over_taps: dict[str, int] = {}
        self.inside: dict[str, tuple[Any, Any]] = {}  # of the positions, by index: begin and end
        names = [("i", "k", "top", "bottom"), ("j", "l", "left", "right")][-len(length) :]
        along = zip(names, length, positions, f.kernel_size, f.stride, dilation, f.padding, strict=True)
        for (i, k, first, last), n, m, taps, s, d, p in along:
            self.over_positions[i], self.over_taps[k] = m, taps
            place = [i if s == 1 else f"{s} * {i}", k if d == 1 else f"{d} * {k}"]
            self.place += f"[{' + '.join(place)}{f' - {p}' if p else ''}]"
            self.position += f"[{i}]"
            self.tap += f"[{k}]"
            firsts = [min(max(-((d * tap - p) // s), 0), m) for tap in range(taps)]  # 0 <= s i + d k - p
            ends = [min(max(-((d * tap - p - n) // s), 0), m) for tap in range(taps)]  # s i + d k - p < n
            if {*firsts} == {0} and {*ends} == {m}:
                self.inside[i] = 0, m
            else:
                self.inside[i] = f"{first}[{k}]", f"{last}[{k}]"
                self.tables.append(f"static const int {_table(first, firsts)}, {_table(last, ends)};")

    def each(self, statement: str) -> list[str]:
        """A statement for all positions of a window."""
        return loops(self.over_positions, statement)

    def each_tap(self, statement: str) -> list[str]:
        """A statement for all taps of a window, and the positions where they are inside."""
        for i, (begin, end) in reversed(self.inside.items()):
            statement = loop(i, end, statement, begin=begin)
        return loops(self.over_taps, statement)


def _table(name: str, numbers: list[int]) -> str:
    return f"{name}[{len(numbers)}] = {{{', '.join(map(str, numbers))}}}"


def convolution(f: functions.Conv2d, x: Shape, y: Shape) -> Layer:
    windows = Windows(f, x[1:], y[1:], f.dilation)
    to, tap, place = f"y[o]{windows.position}", f"weight[o][c]{windows.tap}", windows.place
    taps = windows.each_tap(f"{to} += {tap} * x[{_channel_of_group(f)}]{place};")
    body = loops(
        {"o": f.out_channels},
        *windows.each(f"{to} = {_bias(f, 'o')};"),
        *loops({"c": f.in_channels // f.groups}, *taps),
    )
    return Layer({"x": x}, y, [*windows.tables, *body], _weights(f))


def transposed_convolution(f: functions.ConvTranspose2d, x: Shape, y: Shape) -> Layer:
    """What a convolution from y to x reads, this writes."""
    windows = Windows(f, y[1:], x[1:], f.dilation)
    c, o = _channel_of_group(f), "o" if f.groups == 1 else f"o % {f.out_channels // f.groups}"
    taps = windows.each_tap(f"y[o]{windows.place} += weight[{c}][{o}]{windows.tap} * x[{c}]{windows.position};")
    body = loops(
        {"o": f.out_channels},
        *loops({"i": y[1], "j": y[2]}, f"y[o][i][j] = {_bias(f, 'o')};"),
        *loops({"c": f.in_channels // f.groups}, *taps),
    )
    return Layer({"x": x}, y, [*windows.tables, *body], _weights(f))


def _channel_of_group(f: functions.Conv2d) -> str:
    """The channel of x that is number c of those that output channel o sees."""
    if f.groups == 1:
        return "c"
    inputs, outputs = f.in_channels // f.groups, f.out_channels // f.groups
    group = "o" if outputs == 1 else f"o / {outputs}"
    return f"{group} + c" if inputs == 1 else f"{group} * {inputs} + c"


def max_pool(f: Any, x: Shape, y: Shape) -> Layer:
    windows = Windows(f, x[1:], y[1:], (1,) * len(x[1:]))
    to = f"y[c]{windows.position}"
    taps = windows.each_tap(f"{to} = larger({to}, x[c]{windows.place});")
    body = loops({"c": x[0]}, *windows.each(f"{to} = -INFINITY;"), *taps)
    return Layer({"x": x}, y, [*windows.tables, *body])


def average_pool(f: Any, x: Shape, y: Shape) -> Layer:
    windows = Windows(f, x[1:], y[1:], (1,) * len(x[1:]))
    to = f"y[c]{windows.position}"
    taps = windows.each_tap(f"{to} += x[c]{windows.place};")
    mean = windows.each(f"{to} /= {math.prod(f.kernel_size)};")
    return Layer({"x": x}, y, [*windows.tables, *loops({"c": x[0]}, *windows.each(f"{to} = 0;"), *taps, *mean)])


def global_average_pool(f: functions.GlobalAvgPool, x: Shape, y: Shape) -> Layer:
    counts = {"c": x[0], "i": math.prod(x[1:])}
    mean = f"y[c] = (float)(sum / {counts['i']});"
    body = loops({"c": x[0]}, "double sum = 0;", loop("i", counts["i"], "sum += (double)x[c][i];"), mean)
    return Layer({"x": dims(counts)}, y, body)


def upsample(f: functions.Upsample, x: Shape, y: Shape) -> Layer:
    place = "".join(f"[{i} / {scale}]" for i, scale in zip("ij", f.scale[-len(x[1:]) :], strict=False))
    counts = dict(zip("cij", y, strict=False))
    return Layer({"x": x}, y, loops(counts, f"y{at(counts)} = x[c]{place};"))


def batch_norm(f: functions.BatchNorm, x: Shape, y: Shape) -> Layer:
    """By the running moments; what does not depend on x is computed now."""
    counts = {"c": x[0], **axes(i=math.prod(x[1:]))}
    factor = f.scale.data / np.sqrt(f.variance.astype(np.float64) + f.eps)
    body = loops(counts, f"y{at(counts)} = (x{at(counts)} - mean[c]) * factor[c] + shift[c];")
    constants = {"mean": f.mean, "factor": factor, "shift": f.shift.data}
    return Layer({"x": dims(counts)}, dims(counts), body, constants, in_place=True)


def columns(f: functions.Columns, x: Shape, y: Shape) -> Layer:
    """Numbers, standardized."""
    if f.categories:
        raise TypeError(f"export: there is no C for categories, which {f!r} has")
    body = loops({"j": len(f.numbers)}, "y[j] = (x[j] - mean[j]) / deviation[j];")
    mean, deviation = f.moments(np.float32)
    return Layer({"x": x}, y, body, {"mean": mean, "deviation": deviation}, in_place=True)


def layer_norm(f: functions.LayerNorm, x: Shape, y: Shape) -> Layer:
    return normalized(f, axes(r=math.prod(x[:-1])), {"j": f.features}, "[j]", (f.features,))


def group_norm(f: functions.GroupNorm, x: Shape, y: Shape) -> Layer:
    channels = f.features // f.groups
    inner = {"c": channels, "i": math.prod(x[1:])}
    return normalized(f, {"g": f.groups}, inner, "[g][c]", (f.groups, channels))


def normalized(f: Any, groups: dict[str, int], members: dict[str, int], at_scale: str, scale_shape: Shape) -> Layer:
    """Of differences from a group's first number, which are exact where numbers differ little from their mean."""
    counts, n = groups | members, math.prod(members.values())
    element, first = at(counts), "".join([f"[{i}]" for i in groups] + ["[0]"] * len(members))
    shift = "" if f.shift is None else f" + shift{at_scale}"
    body = loops(
        groups,
        f"const float first = x{first};",
        "float mean = 0, variance = 0;",
        *loops(members, f"mean += x{element} - first;"),
        f"mean /= {n};",
        *loops(members, f"variance += (x{element} - first - mean) * (x{element} - first - mean);"),
        f"const float factor = 1 / sqrtf(variance / {n} + {literal(f.eps)});",
        *loops(members, f"y{element} = (x{element} - first - mean) * factor * scale{at_scale}{shift};"),
    )
    parameters = {"scale": f.scale, "shift": f.shift}
    constants = {name: p.data.reshape(scale_shape) for name, p in parameters.items() if p is not None}
    return Layer({"x": dims(counts)}, dims(counts), body, constants, in_place=True)


def softmax(f: functions.Softmax | functions.LogSoftmax, x: Shape, y: Shape) -> Layer:
    """The largest exponent is 0, so that none overflows."""
    (axis,) = normalized_axes(f.axis, 1 + len(x))
    if axis == 0:
        raise ValueError(f"export: there is no C for {f!r} along the rows of a batch")
    before, n, behind = math.prod(x[: axis - 1]), x[axis - 1], math.prod(x[axis:])
    others, counts = axes(r=before, i=behind), axes(r=before) | {"j": n} | axes(i=behind)
    element = at(counts)
    largest = [
        f"float largest = x{element.replace('[j]', '[0]')};",
        loop("j", n, f"largest = larger(largest, x{element});"),
    ]
    if isinstance(f, functions.Softmax):
        summed = loop("j", n, f"y{element} = expf(x{element} - largest);", f"sum += y{element};")
        last = loop("j", n, f"y{element} /= sum;")
    else:
        summed = loop("j", n, f"sum += expf(x{element} - largest);")
        last = loop("j", n, f"y{element} = x{element} - largest - logf(sum);")
    body = loops(others, *largest, "float sum = 0;", summed, last)
    return Layer({"x": dims(counts)}, dims(counts), body, in_place=True)


#: What writes the layer of a Function, given it, the shapes of its inputs and that of its output.
LAYERS: dict[type, Callable[..., Layer]] = {
    functions.Linear: linear,
    functions.DropConnect: linear,
    functions.Conv1d: convolution,
    functions.Conv2d: convolution,
    functions.ConvTranspose2d: transposed_convolution,
    functions.MaxPool1d: max_pool,
    functions.MaxPool2d: max_pool,
    functions.AvgPool1d: average_pool,
    functions.AvgPool2d: average_pool,
    functions.GlobalAvgPool: global_average_pool,
    functions.Upsample: upsample,
    functions.BatchNorm: batch_norm,
    functions.LayerNorm: layer_norm,
    functions.GroupNorm: group_norm,
    functions.Columns: columns,
    functions.ReLU: activation("relu"),
    functions.LeakyReLU: activation("leaky_relu", "slope"),
    functions.ELU: activation("elu", "alpha"),
    functions.GELU: gelu,
    functions.SiLU: activation("silu"),
    functions.Softplus: activation("softplus"),
    functions.Tanh: activation("tanhf"),
    functions.Sigmoid: activation("sigmoid"),
    functions.Softmax: softmax,
    functions.LogSoftmax: softmax,
    functions.Residual: residual,
    functions.Parallel: side_by_side,
    functions.Concatenate: side_by_side,
    functions.Add: arithmetic("{} + {}"),
    functions.Subtract: arithmetic("{} - {}"),
    functions.Multiply: arithmetic("{} * {}"),
    functions.Divide: arithmetic("{} / {}"),
    functions.Power: arithmetic("powf({}, {})"),
    functions.Negative: negative,
    functions.Exp: activation("expf"),
    functions.Log: activation("logf"),
    functions.Sqrt: activation("sqrtf"),
    functions.Abs: activation("fabsf"),
}

#: Functions whose output is their input, seen as another shape perhaps.
IDENTITIES = (functions.Dropout, functions.Flatten, functions.Reshape, functions.ToShape)


# ---- the file -------------------------------------------------------------------------------------------------------

HEAD = """\
/*
 * {name}: a neural network, written by caffelite.
 *
 *     void predict(const {number} *x, {number} *y);        (in C++ extern "C")
 *
 * computes the outputs y of one row x, both in C order. They must not overlap.
 *
 *     x         {x}
 *     y         {y}
 *     weights   {weights}, constant
 *     memory    {memory}
 *
 *     cc -std=c99 -O3 -c {name}
 *
 * and -lm to link. -DPREDICT=other names the function otherwise, where a program has several nets.{storage}
 *
 * {summary}
 */

#include <math.h>

#ifndef PREDICT
#define PREDICT predict
#endif
{definition}
enum {{ PREDICT_INPUTS = {inputs}, PREDICT_OUTPUTS = {outputs} }};

#ifdef __cplusplus
#define restrict __restrict
extern "C"
#endif
void PREDICT(const {number} *x, {number} *y);
"""

STORAGE = """ The memory is
 * static: one call runs at a time. With -DPREDICT_MEMORY= it is on the stack, and with -std=c11 and
 * -DPREDICT_MEMORY="static _Thread_local" each thread has its own."""

DEFINITION = """
#ifndef PREDICT_MEMORY
#define PREDICT_MEMORY static
#endif
"""


def source(model: Model, path: str | os.PathLike, input_shape: Sequence[int] | None = None) -> str:
    """The text of a file at this path; see `export`."""
    if not isinstance(model, Model):
        of_estimator = ": an estimator's is its `model_`" if hasattr(model, "get_params") else ""
        raise TypeError(f"export takes a Model, got {model!r}{of_estimator}")
    shape = _row_shape(model, input_shape)
    with np.errstate(all="ignore"):  # weights may be NaN, or variances 0
        net = Net(model, shape)
    head = HEAD.format(
        name=_as_comment(Path(path).name),
        number=net.number,
        x=f"{net.x.size:,} numbers, shape {shape_text(shape)}",
        y=f"{net.y.size:,} numbers, shape {shape_text(net.y_shape)}",
        weights=bytes_text(net.constant_bytes),
        memory=bytes_text(net.memory * model.dtype.itemsize),
        storage=STORAGE if net.memory else "",
        summary=_as_comment(str(model.summary(shape))),
        definition=DEFINITION if net.memory else "",
        inputs=net.x.size,
        outputs=net.y.size,
    )
    helpers = [f"{net.c(text)}\n" for name, text in HELPERS.items() if name in net.used]
    return "\n".join([head, *helpers, *net.definitions, _predict(net), ""])


def _as_comment(text: str) -> str:
    return re.sub(" +\n", "\n", text.replace("*/", "* /").replace("\n", "\n * "))


def _predict(net: Net) -> str:
    """The function itself, which calls the layers."""
    lines = [f"    PREDICT_MEMORY float memory[{net.memory}];", ""] if net.memory else []
    for name, arrays in net.calls:
        arguments = [value.place for value, _ in arrays]
        for i, (value, seen) in enumerate(arrays):
            if len(seen) > 1:
                const = "const " * (i < len(arrays) - 1)
                start = f"({value.place})" if value.offset else value.place
                arguments[i] = f"({const}float (*){_brackets(seen[1:])}){start}"
        lines.append(f"    {name}({', '.join(arguments)});")
    return net.c("\n".join(["void PREDICT(const float *x, float *y)", "{", *lines, "}"]))
