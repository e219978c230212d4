"""The C of each kind of Function: `LAYERS` has the function that writes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from string import Formatter
from typing import Any

import numpy as np

from caffelite import functions
from caffelite._kernels.operations import by_function
from caffelite.c.emit import Shape, axes, dims, index_axes, literal, loop, loops, subscript
from caffelite.c.int8 import QUANTIZED_CLASSES, quantize_weight
from caffelite.core.arrays import normalize_axes
from caffelite.core.function import Function

#: The difference between 1 and the next number, in C that `to_double` changes.
MACHINE_EPSILON = f"(sizeof(float) == 4 ? {np.finfo(np.float32).eps} : {np.finfo(np.float64).eps})"


@dataclass
class CLayer:
    """A C function of arrays, by name, that sets `y`: how it sees each, (6, 28, 28) as float [6][28][28], and its body.

    `constants` are weights by name. A layer can be `in_place`, y being written over an input of the same size, if it
    reads nothing of that at a place after it has written there. `scratch` are arrays in which it keeps numbers while it
    runs. `types` has the inputs that are indices or masks.
    """

    inputs: dict[str, Shape]
    y: Shape
    body: list[str]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    in_place: bool = False
    scratch: Mapping[str, Shape] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)


Operand = tuple[Any, Any]  # a value and its shape; or None and a number

#: Writes one call of a layer, of a Function and its inputs. Returns what it makes, and then the arrays of its own.
WriteCall = Callable[..., list[Operand]]


def elementwise(shape: Shape, y: str, *inputs: str) -> CLayer:
    """Each element of y by itself, from the elements [] of the inputs."""
    counts = axes(i=math.prod(shape))
    body = loops(counts, f"y[] = {y};".replace("[]", subscript(counts)))
    return CLayer(dict.fromkeys(inputs, dims(counts)), dims(counts), body, in_place=True)


def operation(text: str) -> Callable[..., CLayer]:
    """Make a function that writes an elementwise operation, of x and of attributes of the Function by their names."""

    def write(f: Function, x: Shape, y: Shape) -> CLayer:
        names = {name for _, name, _, _ in Formatter().parse(text) if name} - {"x"}
        return elementwise(x, text.format(x="x[]", **{name: literal(getattr(f, name)) for name in names}), "x")

    return write


def prelu(f: functions.PReLU, x: Shape, y: Shape) -> CLayer:
    is_shared = f.channels == 1
    counts = axes(i=math.prod(x)) if is_shared else {"c": f.channels} | axes(i=math.prod(x[1:]))
    element = subscript(counts)
    body = loops(counts, f"y{element} = leaky_relu(x{element}, slope[{0 if is_shared else 'c'}]);")
    return CLayer({"x": dims(counts)}, dims(counts), body, {"slope": f.slope.data}, in_place=True)


def concatenation(f: Any, *shapes: Shape) -> CLayer:
    """`part0`, `part1` … side by side: seen as rows r, all axes before the one along which they are, of elements j."""
    (axis,) = normalize_axes(getattr(f, "concatenate", f).axis, 1 + len(shapes[0]))
    if axis == 0:
        raise ValueError(f"export: there is no C for {f!r}, which joins rows")
    *parts, y = [axes(r=math.prod(shape[: axis - 1]), j=math.prod(shape[axis - 1 :])) for shape in shapes]
    body, begin = [], 0
    for i, (part, shape) in enumerate(zip(parts, shapes[:-1], strict=True)):
        behind = [str(begin)] * (begin > 0) + ["j"] * ("j" in part)
        place = subscript(y).replace("[j]", f"[{' + '.join(behind) or 0}]")
        body += loops(part, f"y{place} = part{i}{subscript(part)};")
        begin += math.prod(shape[axis - 1 :])
    return CLayer({f"part{i}": dims(part) for i, part in enumerate(parts)}, dims(y), body)


def pad(f: functions.PadAxes, x: Shape, y: Shape) -> CLayer:
    """Return a number everywhere first, then x inside; or elements of x, from tables of their places."""
    from_x, to_y, mode = index_axes(f, x), index_axes(f, y), f.modes[f.mode]
    along = list(zip(from_x, x, f.pairs(1 + len(x))[1:], strict=True))
    if mode == "constant":
        inside = "".join(f"[{i} + {before}]" if before else f"[{i}]" for i, _, (before, _) in along)
        body = [
            *loops(to_y, f"y{subscript(to_y)} = {literal(f.value)};"),
            *loops(from_x, f"y{inside} = x{subscript(from_x)};"),
        ]
        return CLayer({"x": x}, y, body)
    numbers: dict[str, Any] = {i: np.pad(range(n), pair, mode) for i, n, pair in along if any(pair)}  # type: ignore
    places = "".join(f"[from_{i}[{i}]]" if i in numbers else f"[{i}]" for i in from_x)
    tables = [f"static const int {_table(f'from_{i}', table.tolist())};" for i, table in numbers.items()]
    return CLayer({"x": x}, y, [*tables, *loops(to_y, f"y{subscript(to_y)} = x{places};")])


class Weights:
    """The weight and bias of a layer, in C: the start of an output's sum, and the operation at its end.

    A weight of int8 is multiplied by the scale of its output at the end.
    """

    def __init__(self, f: Any, is_int8: bool) -> None:
        self.constants = {"weight": f.weight.data} if f.bias is None else {"weight": f.weight.data, "bias": f.bias.data}
        self.has_bias, self.is_int8 = f.bias is not None, is_int8
        if is_int8:
            numbers, scale, _ = quantize_weight(f)
            self.constants |= {"weight": numbers, "scale": scale}

    def start(self, output: str) -> str:
        return f"bias[{output}]" if self.has_bias and not self.is_int8 else "0"

    def finish(self, y: str, output: str) -> list[str]:
        """Statements that turn a sum y into the output."""
        bias = f" + bias[{output}]" if self.has_bias else ""
        return [f"{y} = {y} * scale[{output}]{bias};"] if self.is_int8 else []


def linear(f: functions.Linear, x: Shape, y: Shape, is_int8: bool = False) -> CLayer:
    """Input by input, for each row r if there are several: outputs lie side by side, as vectors of a processor do."""
    rows, n, m, weights = axes(r=math.prod(x[:-1])), f.in_features, f.out_features, Weights(f, is_int8)
    row = subscript(rows) if rows else ""
    body = loops(
        rows,
        loop("j", m, f"y{row}[j] = {weights.start('j')};"),
        loop("i", n, loop("j", m, f"y{row}[j] += x{row}[i] * weight[i][j];")),
        *[loop("j", m, statement) for statement in weights.finish(f"y{row}[j]", "j")],
    )
    return CLayer({"x": (*rows.values(), n)}, (*rows.values(), m), body, weights.constants)


class WindowLoops:
    """Windows that move over images or series, of a `length` along each axis, and stop at so many `position_counts`.

    At position i, tap k of the window is at place s i + d k - p, with stride s, dilation d and padding p.
    The loops over taps are the outer ones: those over positions run along rows, and only where the tap is inside.
    """

    def __init__(self, f: Any, length: Shape, position_counts: Shape, dilation: Shape, padding: Shape) -> None:
        self.position = self.place = self.tap = ""
        self.tables: list[str] = []
        self.positions: dict[str, int] = {}
        self.taps: dict[str, int] = {}
        self.inside: dict[str, tuple[Any, Any]] = {}  # of the positions, by index: begin and end
        names = [("i", "k", "top", "bottom"), ("j", "l", "left", "right")][-len(length) :]
        along = zip(names, length, position_counts, f.kernel_size, f.stride, dilation, padding, strict=True)
        for (i, k, first, last), n, m, taps, s, d, p in along:
            self.positions[i], self.taps[k] = m, taps
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

    def loop_positions(self, statement: str) -> list[str]:
        """Return a statement for all positions of a window."""
        return loops(self.positions, statement)

    def loop_taps(self, statement: str) -> list[str]:
        """Return a statement for all taps of a window, and the positions where they are inside."""
        for i, (begin, end) in reversed(self.inside.items()):
            statement = loop(i, end, statement, begin=begin)
        return loops(self.taps, statement)


def _table(name: str, numbers: list[int]) -> str:
    return f"{name}[{len(numbers)}] = {{{', '.join(map(str, numbers))}}}"


def convolution(f: functions.Conv2d, x: Shape, y: Shape, is_int8: bool = False) -> CLayer:
    weights = Weights(f, is_int8)
    windows = WindowLoops(f, x[1:], y[1:], f.dilation, f.pads_before(x[1:]))
    to, tap, place = f"y[o]{windows.position}", f"weight[o][c]{windows.tap}", windows.place
    taps = windows.loop_taps(f"{to} += {tap} * x[{_channel_of_group(f)}]{place};")
    body = loops(
        {"o": f.out_channels},
        *windows.loop_positions(f"{to} = {weights.start('o')};"),
        *loops({"c": f.in_channels // f.groups}, *taps),
        *[text for statement in weights.finish(to, "o") for text in windows.loop_positions(statement)],
    )
    return CLayer({"x": x}, y, [*windows.tables, *body], weights.constants)


def transposed_convolution(f: functions.ConvTranspose2d, x: Shape, y: Shape, is_int8: bool = False) -> CLayer:
    """Write to the places that a convolution from y to x reads."""
    weights = Weights(f, is_int8)
    windows = WindowLoops(f, y[1:], x[1:], f.dilation, f.pads_before(y[1:]))
    counts = dict(zip("ij"[-len(y[1:]) :], y[1:], strict=True))
    c, o = _channel_of_group(f), "o" if f.groups == 1 else f"o % {f.out_channels // f.groups}"
    taps = windows.loop_taps(f"y[o]{windows.place} += weight[{c}][{o}]{windows.tap} * x[{c}]{windows.position};")
    body = loops(
        {"o": f.out_channels},
        *loops(counts, f"y[o]{subscript(counts)} = {weights.start('o')};"),
        *loops({"c": f.in_channels // f.groups}, *taps),
        *[text for statement in weights.finish(f"y[o]{subscript(counts)}", "o") for text in loops(counts, statement)],
    )
    return CLayer({"x": x}, y, [*windows.tables, *body], weights.constants)


def _channel_of_group(f: functions.Conv2d | functions.ConvTranspose2d) -> str:
    """Return the channel of x that is number c of those that output channel o sees."""
    if f.groups == 1:
        return "c"
    inputs, outputs = f.in_channels // f.groups, f.out_channels // f.groups
    group = "o" if outputs == 1 else f"o / {outputs}"
    return f"{group} + c" if inputs == 1 else f"{group} * {inputs} + c"


def pool(f: Any, x: Shape, y: Shape) -> CLayer:
    windows = WindowLoops(f, x[1:], y[1:], (1,) * len(x[1:]), f.padding)
    to, element = f"y[c]{windows.position}", f"x[c]{windows.place}"
    if isinstance(f, functions.MaxPool1d | functions.MaxPool2d):
        start, tap = "-INFINITY", f"{to} = larger({to}, {element});"
    else:  # a share of each number is added, as the sum of large ones overflows
        start, tap = "0", f"{to} += {literal(1 / math.prod(f.kernel_size))} * {element};"
    body = loops({"c": x[0]}, *windows.loop_positions(f"{to} = {start};"), *windows.loop_taps(tap))
    return CLayer({"x": x}, y, [*windows.tables, *body])


def upsample(f: functions.Upsample, x: Shape, y: Shape) -> CLayer:
    place = "".join(f"[{i} / {scale}]" for i, scale in zip("ij", f.scale[-len(x[1:]) :], strict=False))
    counts = dict(zip("cij", y, strict=False))
    return CLayer({"x": x}, y, loops(counts, f"y{subscript(counts)} = x[c]{place};"))


def batch_norm(f: functions.BatchNorm, x: Shape, y: Shape) -> CLayer:
    """Use the running moments. Everything that does not depend on x is computed now."""
    counts = {"c": x[0], **axes(i=math.prod(x[1:]))}
    factor = f.scale.data / np.sqrt(f.variance.astype(np.float64) + f.eps)
    body = loops(counts, f"y{subscript(counts)} = (x{subscript(counts)} - mean[c]) * factor[c] + shift[c];")
    constants = {"mean": f.mean, "factor": factor, "shift": f.shift.data}
    return CLayer({"x": dims(counts)}, dims(counts), body, constants, in_place=True)


def rms_norm(f: functions.RMSNorm, x: Shape, y: Shape) -> CLayer:
    rows, n = axes(r=math.prod(x[:-1])), f.features
    counts = rows | {"j": n}
    element = subscript(counts)
    eps = MACHINE_EPSILON if f.eps is None else literal(np.float64(f.eps))
    scale, constants = ("", {}) if f.scale is None else (" * scale[j]", {"scale": f.scale.data})
    body = loops(
        rows,
        "double squares = 0;",
        loop("j", n, f"squares += (double)x{element} * x{element};"),
        f"const double factor = 1 / sqrt(squares / {n} + {eps});",
        loop("j", n, f"y{element} = (float)(x{element} * factor){scale};"),
    )
    return CLayer({"x": dims(counts)}, dims(counts), body, constants, in_place=True)


def group_norm(f: functions.GroupNorm | functions.InstanceNorm, x: Shape, y: Shape) -> CLayer:
    channels = f.channels // f.groups
    inner = {"c": channels, "i": math.prod(x[1:])}
    return normalization(f, {"g": f.groups}, inner, "[g][c]", (f.groups, channels))


def normalization(f: Any, groups: dict[str, int], members: dict[str, int], at_scale: str, scale_shape: Shape) -> CLayer:
    """Normalize differences from a group's first number. They are exact if numbers differ little from their mean."""
    counts, n = groups | members, math.prod(members.values())
    element, first = subscript(counts), "".join([f"[{i}]" for i in groups] + ["[0]"] * len(members))
    shift = "" if f.shift is None else f" + shift{at_scale}"
    body = loops(
        groups,
        f"const double first = x{first};",
        "double mean = 0, variance = 0;",
        *loops(members, f"mean += x{element} - first;"),
        f"mean /= {n};",
        *loops(members, f"variance += (x{element} - first - mean) * (x{element} - first - mean);"),
        f"const double factor = 1 / sqrt(variance / {n} + {literal(np.float64(f.eps))});",
        *loops(members, f"y{element} = (float)((x{element} - first - mean) * factor) * scale{at_scale}{shift};"),
    )
    parameters = {"scale": f.scale, "shift": f.shift}
    constants = {name: p.data.reshape(scale_shape) for name, p in parameters.items() if p is not None}
    return CLayer({"x": dims(counts)}, dims(counts), body, constants, in_place=True)


def softmax(f: functions.Softmax | functions.LogSoftmax, x: Shape, y: Shape) -> CLayer:
    """Return the means. The largest exponent is 0, so no exponential overflows."""
    (axis,) = normalize_axes(f.axis, 1 + len(x))
    if axis == 0:
        raise ValueError(f"export: there is no C for {f!r} along the rows of a batch")
    before, n, behind = math.prod(x[: axis - 1]), x[axis - 1], math.prod(x[axis:])
    outer, counts = axes(r=before, i=behind), axes(r=before) | {"j": n} | axes(i=behind)
    element = subscript(counts)
    largest = [
        f"float largest = x{element.replace('[j]', '[0]')};",
        loop("j", n, f"largest = larger(largest, x{element});"),
    ]
    if isinstance(f, functions.Softmax):
        sum_loop = loop("j", n, f"y{element} = expf(x{element} - largest);", f"sum += y{element};")
        last = loop("j", n, f"y{element} /= sum;")
    else:
        sum_loop = loop("j", n, f"sum += expf(x{element} - largest);")
        last = loop("j", n, f"y{element} = x{element} - largest - logf(sum);")
    body = loops(outer, *largest, "float sum = 0;", sum_loop, last)
    return CLayer({"x": dims(counts)}, dims(counts), body, in_place=True)


#: Functions that write the layer of a Function, of it, the shapes of its inputs and the shape of its output.
LAYERS: dict[type, Callable[..., CLayer]] = {
    **{getattr(functions, name): operation(c) for name, c in by_function("c").items() if "{x}" in c},
    **dict.fromkeys((functions.Linear, functions.DropConnect), linear),
    **dict.fromkeys((functions.Conv1d, functions.Conv2d), convolution),
    **dict.fromkeys((functions.ConvTranspose1d, functions.ConvTranspose2d), transposed_convolution),
    **dict.fromkeys((functions.MaxPool1d, functions.MaxPool2d, functions.AvgPool1d, functions.AvgPool2d), pool),
    functions.Upsample: upsample,
    functions.BatchNorm: batch_norm,
    functions.LayerNorm: lambda f, x, y: normalization(
        f, axes(r=math.prod(x[:-1])), {"j": f.features}, "[j]", (f.features,)
    ),
    functions.RMSNorm: rms_norm,
    **dict.fromkeys((functions.GroupNorm, functions.InstanceNorm), group_norm),
    functions.PReLU: prelu,
    functions.GELU: lambda f, x, y: elementwise(x, "gelu_tanh(x[])" if f.approximate else "gelu(x[])", "x"),
    **dict.fromkeys((functions.Softmax, functions.LogSoftmax), softmax),
    functions.Concatenate: concatenation,
    **dict.fromkeys((functions.Pad, functions.PadAxes), pad),
}

#: The same, with weights of int8.
INT8_LAYERS = {kind: partial(LAYERS[kind], is_int8=True) for kind in QUANTIZED_CLASSES}

#: Functions that write the layer of a Function of Functions, of the inputs of the last Function in its `formula`.
COMPOSITES: dict[type, Callable[..., CLayer]] = {
    functions.Residual: lambda f, x, fx, y: elementwise(x, "x[] + f[]", "x", "f"),
    functions.Parallel: concatenation,
}

#: Functions whose output is their input, seen as another shape perhaps.
IDENTITIES = (functions.Dropout, functions.Flatten, functions.Reshape, functions.ToShape)
