"""The C of each kind of Function: `LAYERS` has the function that writes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.c.emit import Shape, at, axes, dims, indexed, literal, loop, loops
from caffelite.c.int8 import KINDS, as_int8
from caffelite.core.arrays import normalize_axes
from caffelite.core.function import Function


@dataclass
class Layer:
    """A C function of arrays, by name, that sets `y`: how it sees each, (6, 28, 28) as float [6][28][28], and its body.

    `constants` are weights by name. A layer can be `in_place`, y being written over an input of the same size, if it
    reads nothing of that at a place after it has written there. `own` are arrays in which it keeps numbers while it
    runs. `types` has the inputs that are indices or masks.
    """

    inputs: dict[str, Shape]
    y: Shape
    body: list[str]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    in_place: bool = False
    own: Mapping[str, Shape] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)


Part = tuple[Any, Any]  # a value and its shape; or None and a number

#: Writes one call of a layer, of a Function and its inputs. Returns what it makes, and then the arrays of its own.
Write = Callable[..., list[Part]]


def elementwise(shape: Shape, y: str, *inputs: str) -> Layer:
    """Each element of y by itself, from the elements [] of the inputs."""
    counts = axes(i=math.prod(shape))
    body = loops(counts, f"y[] = {y};".replace("[]", at(counts)))
    return Layer(dict.fromkeys(inputs, dims(counts)), dims(counts), body, in_place=True)


def activation(helper: str, *attributes: str) -> Callable[..., Layer]:
    """Make a function that writes an activation: a helper computes it of x and of attributes of the Function."""

    def write(f: Function, x: Shape, y: Shape) -> Layer:
        arguments = ["x[]", *[literal(getattr(f, name)) for name in attributes]]
        return elementwise(x, f"{helper}({', '.join(arguments)})", "x")

    return write


def prelu(f: functions.PReLU, x: Shape, y: Shape) -> Layer:
    if f.channels == 1:
        counts, slope = axes(i=math.prod(x)), "slope[0]"
    else:
        counts, slope = {"c": f.channels} | axes(i=math.prod(x[1:])), "slope[c]"
    element = at(counts)
    body = loops(counts, f"y{element} = leaky_relu(x{element}, {slope});")
    return Layer({"x": dims(counts)}, dims(counts), body, {"slope": f.slope.data}, in_place=True)


def gelu(f: functions.GELU, x: Shape, y: Shape) -> Layer:
    return elementwise(x, "gelu_tanh(x[])" if f.approximate else "gelu(x[])", "x")


def copied(shape: Shape) -> Layer:
    return elementwise(shape, "x[]", "x")


def negative(f: functions.Negative, x: Shape, y: Shape) -> Layer:
    return elementwise(x, "-x[]", "x")


def residual(f: functions.Residual, x: Shape, fx: Shape, y: Shape) -> Layer:
    return elementwise(x, "x[] + f[]", "x", "f")


def side_by_side(f: Any, *shapes: Shape) -> Layer:
    """`part0`, `part1` … side by side: seen as rows r, all axes before the one along which they are, of elements j."""
    (axis,) = normalize_axes(getattr(f, "concatenate", f).axis, 1 + len(shapes[0]))
    if axis == 0:
        raise ValueError(f"export: there is no C for {f!r}, which joins rows")
    *parts, y = [axes(r=math.prod(shape[: axis - 1]), j=math.prod(shape[axis - 1 :])) for shape in shapes]
    body, begin = [], 0
    for i, (part, shape) in enumerate(zip(parts, shapes[:-1], strict=True)):
        behind = [str(begin)] * (begin > 0) + ["j"] * ("j" in part)
        place = at(y).replace("[j]", f"[{' + '.join(behind) or 0}]")
        body += loops(part, f"y{place} = part{i}{at(part)};")
        begin += math.prod(shape[axis - 1 :])
    return Layer({f"part{i}": dims(part) for i, part in enumerate(parts)}, dims(y), body)


def pad(f: functions.PadAxes, x: Shape, y: Shape) -> Layer:
    """A number everywhere first, then x inside; or elements of x, from tables of their places."""
    from_x, to_y, mode = indexed(f, x), indexed(f, y), f.modes[f.mode]
    along = list(zip(from_x, x, f.pairs(1 + len(x))[1:], strict=True))
    if mode == "constant":
        inside = "".join(f"[{i} + {before}]" if before else f"[{i}]" for i, _, (before, _) in along)
        body = [*loops(to_y, f"y{at(to_y)} = {literal(f.value)};"), *loops(from_x, f"y{inside} = x{at(from_x)};")]
        return Layer({"x": x}, y, body)
    numbers: dict[str, Any] = {i: np.pad(range(n), pair, mode) for i, n, pair in along if any(pair)}  # type: ignore
    places = "".join(f"[from_{i}[{i}]]" if i in numbers else f"[{i}]" for i in from_x)
    tables = [f"static const int {_table(f'from_{i}', table.tolist())};" for i, table in numbers.items()]
    return Layer({"x": x}, y, [*tables, *loops(to_y, f"y{at(to_y)} = x{places};")])


class Weights:
    """The weight and bias of a layer, in C: the start of an output's sum, and the operation at its end.

    A weight of int8 is multiplied by the scale of its output at the end.
    """

    def __init__(self, f: Any, in_int8: bool) -> None:
        self.constants = {"weight": f.weight.data} if f.bias is None else {"weight": f.weight.data, "bias": f.bias.data}
        self.has_bias, self.in_int8 = f.bias is not None, in_int8
        if in_int8:
            numbers, scale, _ = as_int8(f)
            self.constants |= {"weight": numbers, "scale": scale}

    def start(self, output: str) -> str:
        return f"bias[{output}]" if self.has_bias and not self.in_int8 else "0"

    def finished(self, y: str, output: str) -> list[str]:
        """Statements that turn a sum y into the output."""
        bias = f" + bias[{output}]" if self.has_bias else ""
        return [f"{y} = {y} * scale[{output}]{bias};"] if self.in_int8 else []


def linear(f: functions.Linear, x: Shape, y: Shape, in_int8: bool = False) -> Layer:
    """Input by input, for each row r if there are several: outputs lie side by side, as vectors of a processor do."""
    rows, n, m, weights = axes(r=math.prod(x[:-1])), f.in_features, f.out_features, Weights(f, in_int8)
    row = at(rows) if rows else ""
    body = loops(
        rows,
        loop("j", m, f"y{row}[j] = {weights.start('j')};"),
        loop("i", n, loop("j", m, f"y{row}[j] += x{row}[i] * weight[i][j];")),
        *[loop("j", m, statement) for statement in weights.finished(f"y{row}[j]", "j")],
    )
    return Layer({"x": (*rows.values(), n)}, (*rows.values(), m), body, weights.constants)


class Windows:
    """Windows that move over images or series, of a `length` along each axis, and stop at so many `positions`.

    At position i, tap k of the window is at place s i + d k - p, with stride s, dilation d and padding p.
    The loops over taps are the outer ones: those over positions run along rows, and only where the tap is inside.
    """

    def __init__(self, f: Any, length: Shape, positions: Shape, dilation: Shape, padding: Shape) -> None:
        self.position = self.place = self.tap = ""
        self.tables: list[str] = []
        self.over_positions: dict[str, int] = {}
        self.over_taps: dict[str, int] = {}
        self.inside: dict[str, tuple[Any, Any]] = {}  # of the positions, by index: begin and end
        names = [("i", "k", "top", "bottom"), ("j", "l", "left", "right")][-len(length) :]
        along = zip(names, length, positions, f.kernel_size, f.stride, dilation, padding, strict=True)
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


def convolution(f: functions.Conv2d, x: Shape, y: Shape, in_int8: bool = False) -> Layer:
    weights = Weights(f, in_int8)
    windows = Windows(f, x[1:], y[1:], f.dilation, f.pads_before(x[1:]))
    to, tap, place = f"y[o]{windows.position}", f"weight[o][c]{windows.tap}", windows.place
    taps = windows.each_tap(f"{to} += {tap} * x[{_channel_of_group(f)}]{place};")
    body = loops(
        {"o": f.out_channels},
        *windows.each(f"{to} = {weights.start('o')};"),
        *loops({"c": f.in_channels // f.groups}, *taps),
        *[text for statement in weights.finished(to, "o") for text in windows.each(statement)],
    )
    return Layer({"x": x}, y, [*windows.tables, *body], weights.constants)


def transposed_convolution(f: functions.ConvTranspose2d, x: Shape, y: Shape, in_int8: bool = False) -> Layer:
    """Write to the places that a convolution from y to x reads."""
    weights = Weights(f, in_int8)
    windows = Windows(f, y[1:], x[1:], f.dilation, f.padding)
    counts = dict(zip("ij"[-len(y[1:]) :], y[1:], strict=True))
    c, o = _channel_of_group(f), "o" if f.groups == 1 else f"o % {f.out_channels // f.groups}"
    taps = windows.each_tap(f"y[o]{windows.place} += weight[{c}][{o}]{windows.tap} * x[{c}]{windows.position};")
    body = loops(
        {"o": f.out_channels},
        *loops(counts, f"y[o]{at(counts)} = {weights.start('o')};"),
        *loops({"c": f.in_channels // f.groups}, *taps),
        *[text for statement in weights.finished(f"y[o]{at(counts)}", "o") for text in loops(counts, statement)],
    )
    return Layer({"x": x}, y, [*windows.tables, *body], weights.constants)


def _channel_of_group(f: functions.Conv2d | functions.ConvTranspose2d) -> str:
    """The channel of x that is number c of those that output channel o sees."""
    if f.groups == 1:
        return "c"
    inputs, outputs = f.in_channels // f.groups, f.out_channels // f.groups
    group = "o" if outputs == 1 else f"o / {outputs}"
    return f"{group} + c" if inputs == 1 else f"{group} * {inputs} + c"


def max_pool(f: Any, x: Shape, y: Shape) -> Layer:
    windows = Windows(f, x[1:], y[1:], (1,) * len(x[1:]), f.padding)
    to = f"y[c]{windows.position}"
    taps = windows.each_tap(f"{to} = larger({to}, x[c]{windows.place});")
    body = loops({"c": x[0]}, *windows.each(f"{to} = -INFINITY;"), *taps)
    return Layer({"x": x}, y, [*windows.tables, *body])


def average_pool(f: Any, x: Shape, y: Shape) -> Layer:
    windows = Windows(f, x[1:], y[1:], (1,) * len(x[1:]), f.padding)
    to = f"y[c]{windows.position}"
    share = literal(1 / math.prod(f.kernel_size))  # of each number, as the sum of large ones overflows
    taps = windows.each_tap(f"{to} += {share} * x[c]{windows.place};")
    return Layer({"x": x}, y, [*windows.tables, *loops({"c": x[0]}, *windows.each(f"{to} = 0;"), *taps)])


def global_average_pool(f: functions.GlobalAvgPool, x: Shape, y: Shape) -> Layer:
    counts = {"c": x[0], "i": math.prod(x[1:])}
    mean = f"y[c] = (float)(sum / {counts['i']});"
    body = loops({"c": x[0]}, "double sum = 0;", loop("i", counts["i"], "sum += (double)x[c][i];"), mean)
    return Layer({"x": dims(counts)}, y, body)


def global_max_pool(f: functions.GlobalMaxPool, x: Shape, y: Shape) -> Layer:
    counts = {"c": x[0], "i": math.prod(x[1:])}
    body = loops({"c": x[0]}, "y[c] = x[c][0];", loop("i", counts["i"], "y[c] = larger(y[c], x[c][i]);"))
    return Layer({"x": dims(counts)}, y, body)


def upsample(f: functions.Upsample, x: Shape, y: Shape) -> Layer:
    place = "".join(f"[{i} / {scale}]" for i, scale in zip("ij", f.scale[-len(x[1:]) :], strict=False))
    counts = dict(zip("cij", y, strict=False))
    return Layer({"x": x}, y, loops(counts, f"y{at(counts)} = x[c]{place};"))


def batch_norm(f: functions.BatchNorm, x: Shape, y: Shape) -> Layer:
    """Use the running moments. Everything that does not depend on x is computed now."""
    counts = {"c": x[0], **axes(i=math.prod(x[1:]))}
    factor = f.scale.data / np.sqrt(f.variance.astype(np.float64) + f.eps)
    body = loops(counts, f"y{at(counts)} = (x{at(counts)} - mean[c]) * factor[c] + shift[c];")
    constants = {"mean": f.mean, "factor": factor, "shift": f.shift.data}
    return Layer({"x": dims(counts)}, dims(counts), body, constants, in_place=True)


def layer_norm(f: functions.LayerNorm, x: Shape, y: Shape) -> Layer:
    return normalized(f, axes(r=math.prod(x[:-1])), {"j": f.features}, "[j]", (f.features,))


def rms_norm(f: functions.RMSNorm, x: Shape, y: Shape) -> Layer:
    rows, n = axes(r=math.prod(x[:-1])), f.features
    counts = rows | {"j": n}
    element = at(counts)
    body = loops(
        rows,
        "double squares = 0;",
        loop("j", n, f"squares += (double)x{element} * x{element};"),
        f"const double factor = 1 / sqrt(squares / {n} + {literal(np.float64(f.epsilon()))});",
        loop("j", n, f"y{element} = (float)(x{element} * factor) * scale[j];"),
    )
    return Layer({"x": dims(counts)}, dims(counts), body, {"scale": f.scale.data}, in_place=True)


def group_norm(f: functions.GroupNorm | functions.InstanceNorm, x: Shape, y: Shape) -> Layer:
    channels = f.channels // f.groups
    inner = {"c": channels, "i": math.prod(x[1:])}
    return normalized(f, {"g": f.groups}, inner, "[g][c]", (f.groups, channels))


def normalized(f: Any, groups: dict[str, int], members: dict[str, int], at_scale: str, scale_shape: Shape) -> Layer:
    """Normalize differences from a group's first number. They are exact if numbers differ little from their mean."""
    counts, n = groups | members, math.prod(members.values())
    element, first = at(counts), "".join([f"[{i}]" for i in groups] + ["[0]"] * len(members))
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
    return Layer({"x": dims(counts)}, dims(counts), body, constants, in_place=True)


def softmax(f: functions.Softmax | functions.LogSoftmax, x: Shape, y: Shape) -> Layer:
    """The largest exponent is 0, so no exponential overflows."""
    (axis,) = normalize_axes(f.axis, 1 + len(x))
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


#: Functions that write the layer of a Function, of it, the shapes of its inputs and the shape of its output.
LAYERS: dict[type, Callable[..., Layer]] = {
    functions.Linear: linear,
    functions.DropConnect: linear,
    functions.Conv1d: convolution,
    functions.Conv2d: convolution,
    functions.ConvTranspose1d: transposed_convolution,
    functions.ConvTranspose2d: transposed_convolution,
    functions.MaxPool1d: max_pool,
    functions.MaxPool2d: max_pool,
    functions.AvgPool1d: average_pool,
    functions.AvgPool2d: average_pool,
    functions.GlobalAvgPool: global_average_pool,
    functions.GlobalMaxPool: global_max_pool,
    functions.Upsample: upsample,
    functions.BatchNorm: batch_norm,
    functions.LayerNorm: layer_norm,
    functions.RMSNorm: rms_norm,
    functions.GroupNorm: group_norm,
    functions.InstanceNorm: group_norm,
    functions.ReLU: activation("relu"),
    functions.LeakyReLU: activation("leaky_relu", "slope"),
    functions.PReLU: prelu,
    functions.ELU: activation("elu", "alpha"),
    functions.GELU: gelu,
    functions.SiLU: activation("silu"),
    functions.Softplus: activation("softplus"),
    functions.Tanh: activation("tanhf"),
    functions.Sigmoid: activation("sigmoid"),
    functions.Softmax: softmax,
    functions.LogSoftmax: softmax,
    functions.Concatenate: side_by_side,
    functions.Pad: pad,
    functions.PadAxes: pad,
    functions.Negative: negative,
    functions.Exp: activation("expf"),
    functions.Log: activation("logf"),
    functions.Sqrt: activation("sqrtf"),
    functions.Abs: activation("fabsf"),
    functions.Sin: activation("sinf"),
    functions.Cos: activation("cosf"),
}

#: The same, with weights of int8.
IN_INT8: dict[type, Callable[..., Layer]] = {kind: partial(LAYERS[kind], in_int8=True) for kind in KINDS}

#: Functions that write the layer of a Function of Functions, of the inputs of the last Function in its `formula`.
COMPOSITES: dict[type, Callable[..., Layer]] = {
    functions.Residual: residual,
    functions.Parallel: side_by_side,
}

#: Functions whose output is their input, seen as another shape perhaps.
IDENTITIES = (functions.Dropout, functions.Flatten, functions.Reshape, functions.ToShape)
