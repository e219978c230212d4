"""The C of Functions that read indices, sequences or several inputs, and of those that are several calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.c.emit import Shape, at, axes, dims, indented, literal, loop, loops
from caffelite.c.layers import Layer, Part, Write
from caffelite.functions.recurrent import PARAMETER_NAMES
from caffelite.model.tracing import original_class

INDEX, MASK = "int64_t", "uint8_t"


def embedding(f: functions.Embedding, x: Shape, y: Shape) -> Layer:
    """NaN stands for an index that is not in the table."""
    counts = axes(r=math.prod(x)) | {"j": f.size}
    found = looked_up("weight", f"x{at(axes(r=math.prod(x)))}", f.count)
    body = loops(counts, f"y{at(counts)} = {found};")
    seen = dims(axes(r=math.prod(x)))
    return Layer({"x": seen}, dims(counts), body, {"weight": f.weight.data}, types={"x": INDEX})


def looked_up(table: str, index: str, count: int) -> str:
    return f"{index} >= 0 && {index} < {count} ? {table}[{index}][j] : NAN"


def columns(f: functions.Columns, *shapes: Shape) -> Layer:
    """Numbers, standardized and held within limits, which of them are missing, bins, and the vectors of categories."""
    inputs: dict[str, Shape] = {}
    body: list[str] = []
    constants: dict[str, np.ndarray] = {}
    end = len(f.numbers) + len(f.gaps) + sum(f.bins)
    if f.numbers:
        inputs["x"] = (len(f.numbers),)
        body = _numbers(f)
        constants["center"], constants["scale"] = f.moments(f.dtype)
    if any(f.bins):
        _, constants["lower"], constants["width"] = f.bin_bounds(f.dtype)
    if f.categories:
        inputs["codes"] = (len(f.categories),)
    for i, part in enumerate(f.embeddings):
        found = looked_up(f"category{i}", f"codes[{i}]", part.count)
        body.append(loop("j", part.size, f"y[{f'{end} + j' if end else 'j'}] = {found};"))
        constants[f"category{i}"] = part.weight.data
        end += part.size
    return Layer(inputs, shapes[-1], body, constants, end == len(f.numbers), types={"codes": INDEX})


LARGE = 1e15  # its square is finite


def _numbers(f: functions.Columns) -> list[str]:
    """Statements for the numbers x. NAN is a missing one, and not above 0."""
    k = len(f.numbers)
    body = [f"y[{k + i}] = x[{j}] != x[{j}];" for i, j in enumerate(f.gaps)]
    end = 0
    for j, count in enumerate(f.bins):
        begin, end = end, end + count
        share = f"const float share = (x[{j}] - lower[t]) / width[t];"
        code = f"y[{k + len(f.gaps)} + t] = share > 0 ? (share < 1 ? share : 1) : 0;"
        body += [loop("t", end, share, code, begin=begin)] * (count > 0)
    lines = ["const float z = x[j] != x[j] ? 0 : (x[j] - center[j]) / scale[j];"]
    if f.robust:
        least, most = map(literal, (-LARGE, LARGE))
        lines.append(f"const float q = z < {least} ? {least} : z > {most} ? {most} : z;")
        lines.append(f"y[j] = q / sqrtf(1 + q * q / {literal(f.limit**2)});")
    else:
        lines.append("y[j] = z;")
    return [*body, loop("j", k, *lines)]


def splines(f: functions.Splines, *shapes: Shape) -> Layer:
    """The sum of the rows around the place of each number, and of the vectors of categories."""
    inputs: dict[str, Shape] = {}
    body = [loop("j", f.size, "y[j] = bias[j];")]
    constants: dict[str, np.ndarray] = {"bias": f.bias.data}
    table, k = f.table(), len(f.numbers)
    if f.numbers:
        f.moments(f.dtype)  # refuses columns whose numbers this dtype hardly tells apart
        inputs["x"] = (k,)
        _, lower, width = f.bin_bounds(f.dtype)
        constants["knots"] = table[: f.knots[k]]
        if any(f.bins):
            constants |= {"lower": lower, "width": width}
    end = 0
    for i, bins in enumerate(f.bins):
        bounds = f"&lower[{end}], &width[{end}]" if bins else "0, 0"
        found = f"const float at = place(x[{i}], {bounds}, {bins}), f = at - (int)at;"
        knots = f"const float (*t)[{f.size}] = &knots[{f.knots[i]} + (int)at];"
        body += [
            "{",
            *map(indented, (found, knots, loop("j", f.size, "y[j] += t[0][j] + f * (t[f > 0][j] - t[0][j]);"))),
        ]
        body.append("}")
        end += bins
    if f.categories:
        inputs["codes"] = (len(f.categories),)
    for i, known in enumerate(f.categories.values()):
        body.append(loop("j", f.size, f"y[j] += {looked_up(f'category{i}', f'codes[{i}]', len(known) + 2)};"))
        constants[f"category{i}"] = table[f.knots[k + i] : f.knots[k + i + 1]]
    return Layer(inputs, shapes[-1], body, constants, types={"codes": INDEX})


def positional_encoding(f: functions.PositionalEncoding, x: Shape, y: Shape) -> Layer:
    counts = {"i": x[0], "j": x[1]}
    waves = f.table(np.float64)[: x[0]]
    return Layer({"x": x}, y, loops(counts, "y[i][j] = x[i][j] + waves[i][j];"), {"waves": waves}, in_place=True)


# ---- recurrent layers -----------------------------------------------------------------------------------------------

#: A step's statements for each of the H units. a is the sum of a gate of x and the state, b a GRU's of the state.
STEPS: dict[type, list[str]] = {
    functions.RNN: ["h[j] = tanhf(a[j]);"],
    functions.GRU: [
        "const float r = sigmoid(a[j] + b[j]);",
        "const float z = sigmoid(a[H + j] + b[H + j]);",
        "const float n = tanhf(a[2H + j] + r * b[2H + j]);",
        "h[j] = (1 - z) * n + z * h[j];",
    ],
    functions.LSTM: [
        "const float i = sigmoid(a[j]), f = sigmoid(a[H + j]);",
        "const float g = tanhf(a[2H + j]), o = sigmoid(a[3H + j]);",
        "c[j] = f * c[j] + i * g;",
        "h[j] = o * tanhf(c[j]);",
    ],
}


def one_pass(f: Any, x: Shape, *shapes: Shape) -> Layer:
    """One layer in one direction. The states are arrays of its own; without `sequences`, y is the state h."""
    *states, y = shapes
    (length, features), m = x, f.hidden
    gates = f.gates * m
    names = ["h" if f.sequences else "y", *f.state_names[1:]]
    first = [f"first_{name}" for name in f.state_names[: len(states)]]
    of_state = "b" if f.gates == 3 else "a"  # the array with the state's part of a sum

    def renamed(statement: str) -> str:
        for times in (3, 2, 1):
            statement = statement.replace(f"[{times if times > 1 else ''}H + j]", f"[{times * m} + j]")
        return statement if f.sequences else statement.replace("h[j]", "y[j]")

    starts = [
        f"{name}[j] = {f'{given}[j]' if states else 0};" for name, given in zip(names, first or names, strict=True)
    ]
    index, turned = ("step", [f"const int t = {length - 1} - step;"]) if f.suffix.endswith("_reverse") else ("t", [])
    step = [
        *turned,
        loop("k", gates, *["a[k] = bias_ih[k];", "b[k] = bias_hh[k];"][: 1 + (of_state == "b")]),
        loop("i", features, loop("k", gates, "a[k] += x[t][i] * weight_ih[i][k];")),
        loop("i", m, loop("k", gates, f"{of_state}[k] += {names[0]}[i] * weight_hh[i][k];")),
        loop("j", m, *map(renamed, STEPS[type(f)]), *["y[t][j] = h[j];"] * f.sequences),
    ]
    weight_ih, weight_hh, bias_ih, bias_hh = (getattr(f, name).data for name in PARAMETER_NAMES)
    constants = {"weight_ih": weight_ih.T, "weight_hh": weight_hh.T, "bias_ih": bias_ih, "bias_hh": bias_hh}
    if of_state == "a":
        constants["bias_ih"] = bias_ih + bias_hh
        del constants["bias_hh"]
    own = {name: (m,) for name in names if name != "y"} | dict.fromkeys(["a", of_state], (gates,))
    inputs = {"x": x} | dict.fromkeys(first, (m,))
    return Layer(inputs, y, [loop("j", m, *starts), loop(index, length, *step)], constants, own=own)


def recurrent(f: Any, write: Write, x: Part, *given: Part) -> list[Part]:
    """A call for each layer in each direction, and one that puts both directions side by side."""
    states, lengths = given[: len(f.state_names)], given[len(f.state_names) :]
    if any(part != (None, None) for part in lengths):
        raise TypeError(f"export: there is no C for the lengths that {f!r} gets: each row has all steps")
    first = [state for state in states if state != (None, None)]
    last: list[Part] = []
    for layer in range(f.layers):
        sequences = f.sequences or layer < f.layers - 1
        shape = (x[1][0], f.hidden) if sequences else (f.hidden,)
        found = []
        for direction, suffix in enumerate(f._suffixes(layer)):
            place = (layer * f.directions + direction,) if f.layers * f.directions > 1 else ()
            y, *own = write(_pass(f, suffix, sequences), x, *first, shape=shape, by=one_pass, place_in=place)
            last = own[: len(f.state_names)] if sequences else [y, *own[: len(f.state_names) - 1]]
            found.append(y)
        shape = (*shape[:-1], f.directions * f.hidden)
        place = (f.layers * f.directions + layer,)
        (x,) = found if f.directions == 1 else write(functions.Concatenate(-1), *found, shape=shape, place_in=place)
    return [x, *last] if first else [x]


def _pass(f: Any, suffix: str, sequences: bool) -> Any:
    """The layer of a stack whose parameters have this suffix, as a layer of its own."""
    one: Any = object.__new__(original_class(f))
    one.hidden, one.sequences, one.suffix = f.hidden, sequences, suffix
    one.layers, one.dropout, one.bidirectional = 1, 0.0, False
    for part in PARAMETER_NAMES:
        setattr(one, part, getattr(f, part + suffix))
    one.in_features = one.weight_ih.shape[1]
    return one


# ---- attention ------------------------------------------------------------------------------------------------------


def attention(
    f: Any, write: Write, x: Part, context: Part = (None, None), mask: Part = (None, None), cache: Part = (None, None)
) -> list[Part]:
    """A call for each of the four Linears, one for rotary positions, and one for the weighted means."""
    if not f.has_context:
        context, mask = x, (mask if mask[0] is not None else context)
    (q,), (k,), (v,) = (
        write(part, of, shape=of[1], place_in=(i,))
        for i, (part, of) in enumerate(((f.query, x), (f.key, context), (f.value, context)))
    )
    if f.rotary:
        (q,), (k,) = (write(f, of, shape=of[1], by=rotary, place_in=(i,)) for i, of in ((3, q), (4, k)))
    h, _ = write(f, q, k, v, *[mask] * (mask[0] is not None), shape=x[1], by=weighted_means)
    return write(f.output, h, shape=x[1], place_in=(5,))


def rotary(f: Any, x: Shape, y: Shape) -> Layer:
    """Turn the pairs of numbers 2 j, 2 j + 1 of each head."""
    d = f.size // f.heads
    angles = np.arange(x[0])[:, np.newaxis] / 10_000 ** (2 * np.arange(d // 2) / d)
    counts = {"i": x[0], "g": f.heads, "j": d // 2}
    body = loops(
        counts,
        "const float a = x[i][g][j][0], b = x[i][g][j][1];",
        "y[i][g][j][0] = a * cosine[i][j] - b * sine[i][j];",
        "y[i][g][j][1] = a * sine[i][j] + b * cosine[i][j];",
    )
    seen = (x[0], f.heads, d // 2, 2)
    return Layer({"x": seen}, seen, body, {"cosine": np.cos(angles), "sine": np.sin(angles)}, in_place=True)


def weighted_means(f: Any, q: Shape, k: Shape, v: Shape, *shapes: Shape) -> Layer:
    """The largest exponent is 0, so no exponential overflows. A position that sees no key gets 0."""
    *mask, _ = shapes
    (length, _), keys, d = q, k[0], f.size // f.heads
    seen = f"i + {keys - length + 1}" if f.causal else keys  # if causal, the queries are the last positions
    skip = [f"if (!mask{'[i]' * (len(mask[0]) == 2)}[j]) continue;"] if mask else []
    each = [
        "float largest = -INFINITY;",
        loop(
            "j",
            seen,
            *skip,
            "score[j] = 0;",
            loop("l", d, "score[j] += q[i][g][l] * k[j][g][l];"),
            f"score[j] *= {literal(1 / math.sqrt(d))};",
            "largest = larger(largest, score[j]);",
        ),
        "float sum = 0;",
        loop("l", d, "y[i][g][l] = 0;"),
        loop(
            "j",
            seen,
            *skip,
            "const float part = expf(score[j] - largest);",
            "sum += part;",
            loop("l", d, "y[i][g][l] += part * v[j][g][l];"),
        ),
        *["if (sum == 0) continue;"] * len(mask),
        loop("l", d, "y[i][g][l] /= sum;"),
    ]
    of_x, of_keys = (length, f.heads, d), (keys, f.heads, d)
    inputs = {"q": of_x, "k": of_keys, "v": of_keys} | ({"mask": mask[0]} if mask else {})
    body = loops({"g": f.heads, "i": length}, *each)
    return Layer(inputs, of_x, body, own={"score": (keys,)}, types={"mask": MASK})


#: Functions that write a layer, as those in `layers.LAYERS`.
LAYERS: dict[type, Callable[..., Layer]] = {
    functions.Columns: columns,
    functions.Splines: splines,
    functions.Embedding: embedding,
    functions.PositionalEncoding: positional_encoding,
}

#: Functions that write the calls of a Function that is several layers, and return what it makes.
STACKS: dict[type, Callable[..., list[Part]]] = {
    functions.RNN: recurrent,
    functions.GRU: recurrent,
    functions.LSTM: recurrent,
    functions.MultiHeadAttention: attention,
}
