"""The C of Functions that read indices, sequences or several inputs, and of those that are several calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.c.emit import Shape, axes, dims, indent, literal, loop, loops, subscript
from caffelite.c.layers import CLayer, Operand, WriteCall
from caffelite.functions.recurrent import PARAMETER_NAMES
from caffelite.model.tracing import original_class
from caffelite.tables import Columns, Splines

INDEX_TYPE, MASK_TYPE = "int64_t", "uint8_t"


def embedding(f: functions.Embedding, x: Shape, y: Shape) -> CLayer:
    """NaN stands for an index that is not in the table."""
    rows = axes(r=math.prod(x))
    counts = rows | {"j": f.size}
    body = loops(counts, f"y{subscript(counts)} = {lookup('weight', f'x{subscript(rows)}', f.count)};")
    return CLayer({"x": dims(rows)}, dims(counts), body, {"weight": f.weight.data}, types={"x": INDEX_TYPE})


def lookup(table: str, index: str, count: int) -> str:
    return f"{index} >= 0 && {index} < {count} ? {table}[{index}][j] : NAN"


def columns(f: Columns, *shapes: Shape) -> CLayer:
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
        element = lookup(f"category{i}", f"codes[{i}]", part.count)
        body.append(loop("j", part.size, f"y[{f'{end} + j' if end else 'j'}] = {element};"))
        constants[f"category{i}"] = part.weight.data
        end += part.size
    return CLayer(inputs, shapes[-1], body, constants, end == len(f.numbers), types={"codes": INDEX_TYPE})


LARGE = 1e15  # its square is finite


def _numbers(f: Columns) -> list[str]:
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
        low, high = map(literal, (-LARGE, LARGE))
        lines.append(f"const float q = z < {low} ? {low} : z > {high} ? {high} : z;")
        lines.append(f"y[j] = q / sqrtf(1 + q * q / {literal(f.limit**2)});")
    else:
        lines.append("y[j] = z;")
    return [*body, loop("j", k, *lines)]


def splines(f: Splines, *shapes: Shape) -> CLayer:
    """Return the sum of the rows around the place of each number, and of the vectors of categories."""
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
        place = f"const float at = place(x[{i}], {bounds}, {bins}), f = at - (int)at;"
        knots = f"const float (*t)[{f.size}] = &knots[{f.knots[i]} + (int)at];"
        add = loop("j", f.size, "y[j] += t[0][j] + f * (t[f > 0][j] - t[0][j]);")
        body += ["{", *map(indent, (place, knots, add)), "}"]
        end += bins
    if f.categories:
        inputs["codes"] = (len(f.categories),)
    for i, known in enumerate(f.categories.values()):
        body.append(loop("j", f.size, f"y[j] += {lookup(f'category{i}', f'codes[{i}]', len(known) + 2)};"))
        constants[f"category{i}"] = table[f.knots[k + i] : f.knots[k + i + 1]]
    return CLayer(inputs, shapes[-1], body, constants, types={"codes": INDEX_TYPE})


def positional_encoding(f: functions.PositionalEncoding, x: Shape, y: Shape) -> CLayer:
    counts = {"i": x[0], "j": x[1]}
    waves = f.table(np.float64)[: x[0]]
    return CLayer({"x": x}, y, loops(counts, "y[i][j] = x[i][j] + waves[i][j];"), {"waves": waves}, in_place=True)


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


def recurrent_pass(f: Any, x: Shape, *shapes: Shape) -> CLayer:
    """One layer in one direction. The states are arrays of its own; without `sequences`, y is the state h."""
    *states, y = shapes
    (length, features), m = x, f.hidden
    gates = f.gates * m
    names = ["h" if f.sequences else "y", *f.state_names[1:]]
    first = [f"first_{name}" for name in f.state_names[: len(states)]]
    state_sum = "b" if f.gates == 3 else "a"  # the array with the state's part of a sum

    def rename(statement: str) -> str:
        for times in (3, 2, 1):
            statement = statement.replace(f"[{times if times > 1 else ''}H + j]", f"[{times * m} + j]")
        return statement if f.sequences else statement.replace("h[j]", "y[j]")

    starts = [
        f"{name}[j] = {f'{first_state}[j]' if states else 0};"
        for name, first_state in zip(names, first or names, strict=True)
    ]
    index, reversal = ("step", [f"const int t = {length - 1} - step;"]) if f.suffix.endswith("_reverse") else ("t", [])
    step = [
        *reversal,
        loop("k", gates, *["a[k] = bias_ih[k];", "b[k] = bias_hh[k];"][: 1 + (state_sum == "b")]),
        loop("i", features, loop("k", gates, "a[k] += x[t][i] * weight_ih[i][k];")),
        loop("i", m, loop("k", gates, f"{state_sum}[k] += {names[0]}[i] * weight_hh[i][k];")),
        loop("j", m, *map(rename, STEPS[type(f)]), *["y[t][j] = h[j];"] * f.sequences),
    ]
    weight_ih, weight_hh, bias_ih, bias_hh = (getattr(f, name).data for name in PARAMETER_NAMES)
    constants = {"weight_ih": weight_ih.T, "weight_hh": weight_hh.T, "bias_ih": bias_ih, "bias_hh": bias_hh}
    if state_sum == "a":
        constants["bias_ih"] = bias_ih + bias_hh
        del constants["bias_hh"]
    scratch = {name: (m,) for name in names if name != "y"} | dict.fromkeys(["a", state_sum], (gates,))
    inputs = {"x": x} | dict.fromkeys(first, (m,))
    return CLayer(inputs, y, [loop("j", m, *starts), loop(index, length, *step)], constants, scratch=scratch)


def recurrent(f: Any, write: WriteCall, x: Operand, *options: Operand) -> list[Operand]:
    """Return a call for each layer in each direction, and one that puts both directions side by side."""
    states, lengths = options[: len(f.state_names)], options[len(f.state_names) :]
    if any(part != NOTHING for part in lengths):
        raise TypeError(f"export: there is no C for the lengths that {f!r} gets: each row has all steps")
    first = [state for state in states if state != NOTHING]
    last: list[Operand] = []
    for layer in range(f.layers):
        sequences = f.sequences or layer < f.layers - 1
        shape = (x[1][0], f.hidden) if sequences else (f.hidden,)
        directions = []
        for direction, suffix in enumerate(f._suffixes(layer)):
            place = (layer * f.directions + direction,) if f.layers * f.directions > 1 else ()
            y, *scratch = write(
                _single_layer(f, suffix, sequences), x, *first, shape=shape, writer=recurrent_pass, index=place
            )
            last = scratch[: len(f.state_names)] if sequences else [y, *scratch[: len(f.state_names) - 1]]
            directions.append(y)
        shape = (*shape[:-1], f.directions * f.hidden)
        place = (f.layers * f.directions + layer,)
        (x,) = (
            directions if f.directions == 1 else write(functions.Concatenate(-1), *directions, shape=shape, index=place)
        )
    return [x, *last] if first else [x]


def _single_layer(f: Any, suffix: str, sequences: bool) -> Any:
    """Return the layer of a stack whose parameters have this suffix, as a layer of its own."""
    layer: Any = object.__new__(original_class(f))
    layer.hidden, layer.sequences, layer.suffix = f.hidden, sequences, suffix
    layer.layers, layer.dropout, layer.bidirectional = 1, 0.0, False
    for part in PARAMETER_NAMES:
        setattr(layer, part, getattr(f, part + suffix))
    layer.in_features = layer.weight_ih.shape[1]
    return layer


# ---- attention ------------------------------------------------------------------------------------------------------


NOTHING: Operand = (None, None)  # in the place of an input that is left out


def attention(
    f: Any, write: WriteCall, x: Operand, context: Operand = NOTHING, mask: Operand = NOTHING, cache: Operand = NOTHING
) -> list[Operand]:
    """Return a call for each of the four Linears, one for rotary positions, and one for the weighted means."""
    if not f.has_context:
        context, mask = x, (mask if mask[0] is not None else context)
    (q,), (k,), (v,) = (
        write(part, source, shape=(*source[1][:-1], f.heads * f.head_size), index=(i,))
        for i, (part, source) in enumerate(((f.query, x), (f.key, context), (f.value, context)))
    )
    if f.rotary:
        (q,), (k,) = (write(f, source, shape=source[1], writer=rotary, index=(i,)) for i, source in ((3, q), (4, k)))
    h, _ = write(f, q, k, v, *[mask] * (mask[0] is not None), shape=q[1], writer=weighted_means)
    return write(f.output, h, shape=x[1], index=(5,))


def rotary(f: Any, x: Shape, y: Shape) -> CLayer:
    """Turn the pairs of numbers 2 j, 2 j + 1 of each head."""
    d = f.head_size
    angles = np.arange(x[0])[:, np.newaxis] / 10_000 ** (2 * np.arange(d // 2) / d)
    counts = {"i": x[0], "g": f.heads, "j": d // 2}
    body = loops(
        counts,
        "const float a = x[i][g][j][0], b = x[i][g][j][1];",
        "y[i][g][j][0] = a * cosine[i][j] - b * sine[i][j];",
        "y[i][g][j][1] = a * sine[i][j] + b * cosine[i][j];",
    )
    shape = (x[0], f.heads, d // 2, 2)
    return CLayer({"x": shape}, shape, body, {"cosine": np.cos(angles), "sine": np.sin(angles)}, in_place=True)


def weighted_means(f: Any, q: Shape, k: Shape, v: Shape, *shapes: Shape) -> CLayer:
    """Return the means. The largest exponent is 0, so no exponential overflows. A position that sees no key gets 0."""
    *mask, _ = shapes
    (length, _), keys, d = q, k[0], f.head_size
    end = f"i + {keys - length + 1}" if f.causal else keys  # if causal, the queries are the last positions
    skip = [f"if (!mask{'[i]' * (len(mask[0]) == 2)}[j]) continue;"] if mask else []
    statements = [
        "float largest = -INFINITY;",
        loop(
            "j",
            end,
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
            end,
            *skip,
            "const float part = expf(score[j] - largest);",
            "sum += part;",
            loop("l", d, "y[i][g][l] += part * v[j][g][l];"),
        ),
        *["if (sum == 0) continue;"] * len(mask),
        loop("l", d, "y[i][g][l] /= sum;"),
    ]
    x_shape, keys_shape = (length, f.heads, d), (keys, f.heads, d)
    inputs = {"q": x_shape, "k": keys_shape, "v": keys_shape} | ({"mask": mask[0]} if mask else {})
    body = loops({"g": f.heads, "i": length}, *statements)
    return CLayer(inputs, x_shape, body, scratch={"score": (keys,)}, types={"mask": MASK_TYPE})


#: Functions that write a layer, as those in `layers.LAYERS`.
LAYERS: dict[type, Callable[..., CLayer]] = {
    Columns: columns,
    Splines: splines,
    functions.Embedding: embedding,
    functions.PositionalEncoding: positional_encoding,
}

#: Functions that write the calls of a Function that is several layers, and return what it makes.
STACKS: dict[type, Callable[..., list[Operand]]] = {
    **dict.fromkeys((functions.RNN, functions.GRU, functions.LSTM), recurrent),
    functions.MultiHeadAttention: attention,
}
