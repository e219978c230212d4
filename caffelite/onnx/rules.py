"""Which nodes of ONNX each kind of Function becomes.

`RULES` has a function for each kind of Function: it is given a `Writer`, the application, and the inputs, and returns
the result, or a tuple of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from caffelite import functions
from caffelite.core.arrays import normalized_axes
from caffelite.core.function import Function
from caffelite.functions.indexing import WHOLE, _is_basic, _parted
from caffelite.model.dataflow import Application, Lengths, Rows
from caffelite.onnx.operators import Computed, Elementwise
from caffelite.onnx.writing import Rule, Value, Writer, code_of, name_of

LAST = 2**62  # where a slice that has no end stops


def rule_of(kind: type[Function]) -> Rule | None:
    """The rule for a Function of a class; None if there is none, or if the class computes something else."""
    base: Any
    for base in kind.__mro__:
        if base in RULES and base.forward is kind.forward and base.__call__ is kind.__call__:
            return RULES[base]
    return None


# ---- the rules: layers ----------------------------------------------------------------------------------------------


def linear(g: Writer, a: Application, x: Value) -> str:
    return _linear(g, a.function, x)


def _linear(g: Writer, f: Any, x: Value) -> str:
    if f.bias is None:
        return g.node("MatMul", x, g.stored(f.weight))
    if x.ndim == 2:
        return g.node("Gemm", x, g.stored(f.weight), g.stored(f.bias))
    return g.node("Add", g.node("MatMul", x, g.stored(f.weight)), g.stored(f.bias))


def convolution(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    before = list(f.padding)
    after = before
    if f.same:
        after = [d * (k - 1) - p for p, k, d in zip(before, f.kernel_size, f.dilation, strict=True)]
    return _convolution(g, "Conv", f, x, pads=[*before, *after])


def transposed_convolution(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    after, more = list(f.padding), list(f.output_padding)
    for i, stride in enumerate(f.stride):
        if more[i] >= stride:  # which onnxruntime refuses; to cut less from the end is the same
            after[i], more[i] = max(0, after[i] - more[i]), max(0, more[i] - after[i])
    return _convolution(g, "ConvTranspose", f, x, pads=[*f.padding, *after], output_padding=more)


def _convolution(g: Writer, operator: str, f: Any, x: Value, **attributes: Any) -> str:
    bias = None if f.bias is None else g.stored(f.bias)
    attributes |= {"kernel_shape": [*f.kernel_size], "strides": [*f.stride], "dilations": [*f.dilation]}
    return g.node(operator, x, g.stored(f.weight), bias, group=f.groups, **attributes)


def pool(operator: str, **attributes: int) -> Rule:
    def rule(g: Writer, a: Application, x: Value) -> str:
        f: Any = a.function
        window: dict[str, Any] = {"kernel_shape": [*f.kernel_size], "strides": [*f.stride], "pads": [*f.padding] * 2}
        return g.node(operator, x, **window, **attributes)

    return rule


def global_average_pool(g: Writer, a: Application, x: Value) -> str:
    return x.name if x.ndim == 2 else g.node("Flatten", g.node("GlobalAveragePool", x))


def upsample(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    scales = np.array([1, 1, *f.scale[: x.ndim - 2]], np.float32)
    return g.node(
        *("Resize", x, None, g.constant(scales)),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def layer_norm(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    shift = None if f.shift is None else g.stored(f.shift)
    return g.node("LayerNormalization", x, g.stored(f.scale), shift, axis=-1, epsilon=f.eps)


def batch_norm(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    moments = [g.stored(y) for y in (f.scale, f.shift, f.mean, f.variance)]
    return g.node("BatchNormalization", x, *moments, epsilon=f.eps, momentum=1 - f.momentum)


def embedding(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    return g.node("Gather", g.stored(f.weight), x, axis=0)


def positional_encoding(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    return g.node("Add", x, g.constant(f.table(g.dtype)[: x.shape[1]]))


def attention(g: Writer, a: Application, x: Value, mask: Value | None = None) -> str:
    """Softmax(q kᵀ / √d) v in every head; what a position does not see has the least score, and then no part."""
    f: Any = a.function
    length, d = _plain(x.shape)[1], f.size // f.heads

    def heads(part: Any) -> str:
        part = g.node("Reshape", _linear(g, part, x), g.integers((0, 0, f.heads, d)))
        return g.node("Transpose", part, perm=[0, 2, 1, 3])

    q, k, v = heads(f.query), heads(f.key), heads(f.value)
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.number(1 / math.sqrt(d)))
    seen = g.constant(np.tri(length or 0, dtype=np.bool_)) if f.causal else None
    if mask is not None:
        of_keys = g.node("Unsqueeze", _as_bool(g, mask), g.integers((1, 2)))
        seen = of_keys if seen is None else g.node("And", of_keys, seen)
    if seen is not None:
        scores = g.node("Where", seen, scores, g.number(np.finfo(g.dtype).min))
    p = g.node("Softmax", scores, axis=-1)
    if mask is not None:  # a position may see none
        p = g.node("Where", seen, p, g.number(0))
    h = g.node("Transpose", g.node("MatMul", p, v), perm=[0, 2, 1, 3])
    h = g.node("Reshape", h, g.integers((0, 0, f.size)))
    return _linear(g, f.output, Value(h, x.shape, x.dtype))


def recurrent(operator: str, order: Sequence[int], **attributes: int) -> Rule:
    """The rule for a layer whose gates are in this order in ONNX."""

    def rule(g: Writer, a: Application, x: Value, *given: Value | None) -> Any:
        f: Any = a.function
        count = len(f.state_names)
        padded: list[Any] = [*given, *[None] * (count + 1 - len(given))]
        states, lengths = [h and g.node("Unsqueeze", h, g.integers((0,))) for h in padded[:-1]], padded[-1]
        rows = np.concatenate([np.arange(f.hidden) + gate * f.hidden for gate in order])

        def ordered(p: Any) -> str:
            name = g.stored(p).name
            return name if len(order) == 1 else g.node("Gather", name, g.constant(rows), axis=0)

        biases = g.node("Concat", ordered(f.bias_ih), ordered(f.bias_hh), axis=0)
        of_direction = [
            g.node("Unsqueeze", y, g.integers((0,))) for y in (ordered(f.weight_ih), ordered(f.weight_hh), biases)
        ]
        by_hand = operator == "RNN" and lengths is not None  # of its lengths onnxruntime makes other numbers
        counts = None if lengths is None or by_hand else g.node("Cast", lengths, to=TensorProto.INT32)
        steps_first = g.node("Transpose", x, perm=[1, 0, 2])
        inputs = [steps_first, *of_direction, counts, *states]
        all_steps, *last = g.node(operator, *inputs, outputs=1 + count, hidden_size=f.hidden, **attributes)
        all_steps = g.node("Transpose", g.node("Squeeze", all_steps, g.integers((1,))), perm=[1, 0, 2])
        last = [g.node("Squeeze", h, g.integers((0,))) for h in last]
        if by_hand:
            all_steps, *last = _until(g, all_steps, lengths, f.shape[1])
        y = all_steps if f.sequences else last[0]
        return (y, *last) if len(a.shapes) > 1 else y

    return rule


def _until(g: Writer, y: str, lengths: Any, steps: int) -> tuple[str, str]:
    """Sequences, 0 behind their lengths, and their last steps."""
    lengths = g.node("Unsqueeze", lengths, g.integers((1,)))
    step = g.constant(np.arange(1, 1 + steps)[None])

    def those(operator: str) -> str:
        places = g.node("Unsqueeze", g.node(operator, step, lengths), g.integers((2,)))
        return g.node("Where", places, y, g.number(0))

    return those("LessOrEqual"), g.node("ReduceSum", those("Equal"), g.integers((1,)), keepdims=0)


# ---- the rules: Tensor's operators ----------------------------------------------------------------------------------


def same(operator: str, **attributes: str) -> Rule:
    """The rule for what is one node; `attributes` are those of ONNX by the Function's names for them."""

    def rule(g: Writer, a: Application, *inputs: Value) -> str:
        return g.node(operator, *inputs, **{name: getattr(a.function, of) for name, of in attributes.items()})

    return rule


def leaky_relu(g: Writer, a: Application, x: Value) -> str:
    """With the slope as an array if it is float64: ONNX's attributes are float32."""
    slope = a.function.slope
    if g.dtype == np.float64 and float(np.float32(slope)) != slope:
        return g.node("PRelu", x, g.number(slope))
    return g.node("LeakyRelu", x, alpha=slope)


def gelu(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    if f.approximate:
        cube = g.node("Mul", g.node("Mul", x, x), x)
        inner = g.node("Add", x, g.node("Mul", cube, g.number(0.044715)))
        part = g.node("Tanh", g.node("Mul", inner, g.number(math.sqrt(2 / math.pi))))
    else:
        part = g.node("Erf", g.node("Div", x, g.number(math.sqrt(2))))
    return g.node("Mul", g.node("Mul", x, g.node("Add", part, g.number(1))), g.number(0.5))


def reduction(operator: str) -> Rule:
    def rule(g: Writer, a: Application, x: Value) -> str:
        f: Any = a.function
        axes = normalized_axes(f.axis, x.ndim)
        if not axes:
            return x.name
        if operator == "ReduceSum":
            return g.node(operator, x, g.integers(axes), keepdims=int(f.keepdims))
        return g.node(operator, x, axes=axes, keepdims=int(f.keepdims))

    return rule


def clip(g: Writer, a: Application, x: Value) -> str:
    f: Any = a.function
    return g.node("Clip", x, *[None if bound is None else g.number(bound) for bound in (f.low, f.high)])


def where(g: Writer, a: Application, x: Value, y: Value, condition: Value) -> str:
    return g.node("Where", _as_bool(g, condition), x, y)


def _as_bool(g: Writer, condition: Value) -> Any:
    return condition if condition.dtype == np.bool_ else g.node("Cast", condition, to=TensorProto.BOOL)


def computed(g: Writer, a: Application, *inputs: Value) -> str:
    """What a graph computed that was loaded: true and false are numbers of the model's dtype, 1 and 0."""
    f: Any = a.function
    if f.operator in ("Not", "And", "Or", "Xor"):
        given = [_as_bool(g, x) for x in inputs]
    elif len({x.dtype for x in inputs}) > 1:
        given = [x if x.dtype == g.dtype else g.node("Cast", x, to=code_of(g.dtype)) for x in inputs]
    else:
        given = list(inputs)
    if f.operator in ("Floor", "Ceil", "Round", "Sign"):
        return g.node(f.operator, *given)
    if f.operator in ("Max", "Min"):
        better = g.node({"Max": "GreaterOrEqual", "Min": "LessOrEqual"}[f.operator], *given)
        found = g.node("Or", better, g.node("IsNaN", given[0]))
    else:
        found = g.node(f.operator, *given, **({} if f.to is None else {"to": f.to}))
    return g.node("Cast", found, to=code_of(g.dtype))


def elementwise(g: Writer, a: Application, x: Value) -> str:
    return g.node(a.function.operator, x)


def reshape(g: Writer, a: Application, x: Value) -> str:
    return g.node("Reshape", x, g.shape(a.shapes[0]))


def reshape_rows(g: Writer, a: Application, x: Value) -> str:
    return g.node("Reshape", x, g.integers((0, *a.shapes[0][1:])))


def flatten(g: Writer, a: Application, x: Value) -> str:
    return g.node("Flatten", x, axis=1)


def transpose(g: Writer, a: Application, x: Value) -> str:
    axes = a.function.axes or range(x.ndim)[::-1]
    return g.node("Transpose", x, perm=[axis % x.ndim for axis in axes])


def concatenate(g: Writer, a: Application, *inputs: Value) -> str:
    return g.node("Concat", *inputs, axis=a.function.axis)


def stack(g: Writer, a: Application, *inputs: Value) -> str:
    axis = a.function.axis % (inputs[0].ndim + 1)
    return g.node("Concat", *[g.node("Unsqueeze", x, g.integers((axis,))) for x in inputs], axis=axis)


def index(g: Writer, a: Application, x: Value) -> str:
    """Slices, numbers and None one after the other; arrays as `Index.forward` takes them."""
    entries = a.merged("index")
    if all(_is_basic(entry) or isinstance(entry, Rows) for entry in entries):
        return _basic_index(g, entries, x)
    slices, numbers, side_by_side = _parted(entries, _plain(x.shape))
    view = _basic_index(g, slices, x)
    ndim = len(slices)
    axes = list(numbers)
    if len(axes) == 1 and np.ndim(numbers[axes[0]]) <= 1:
        return g.node("Gather", view, g.constant(np.asarray(numbers[axes[0]], np.int64)), axis=axes[0])
    rest = [axis for axis in range(ndim) if axis not in axes]
    places = np.stack(np.broadcast_arrays(*[np.asarray(x, np.int64) for x in numbers.values()]), axis=-1)
    y = g.node("GatherND", g.node("Transpose", view, perm=[*axes, *rest]), g.constant(places))
    first, count = axes[0] if side_by_side else 0, places.ndim - 1
    order = [*range(count, count + first), *range(count), *range(count + first, count + len(rest))]
    return g.node("Transpose", y, perm=order)


def _plain(shape: Lengths) -> tuple[int | None, ...]:
    return tuple([None if isinstance(n, Rows) else n for n in shape])


def _basic_index(g: Writer, entries: Sequence[Any], x: Value) -> str:
    """Slices as one node, then numbers, which take axes away, and None, which makes some."""
    entries = entries if any(entry is ... for entry in entries) else (*entries, ...)
    used = sum(entry is not None and entry is not ... for entry in entries)
    full = [e for entry in entries for e in ([WHOLE] * (x.ndim - used) if entry is ... else [entry])]
    of_axes = [entry for entry in full if entry is not None]
    name: Any = x
    slices = {axis: entry for axis, entry in enumerate(of_axes) if isinstance(entry, slice) and entry != WHOLE}
    if slices:
        steps = [1 if entry.step is None else entry.step for entry in slices.values()]
        starts = [_start(entry, step) for entry, step in zip(slices.values(), steps, strict=True)]
        stops = [_stop(entry, step) for entry, step in zip(slices.values(), steps, strict=True)]
        name = g.node("Slice", name, *map(g.integers, (starts, stops, list(slices), steps)))
    for axis in reversed(range(len(of_axes))):
        if not isinstance(entry := of_axes[axis], slice):
            place = g.length(entry) if isinstance(entry, Rows) else None
            place = g.constant(np.int64(entry)) if place is None else g.node("Reshape", place, g.integers(()))
            name = g.node("Gather", name, place, axis=axis)
    left = [entry for entry in full if entry is None or isinstance(entry, slice)]
    if new := [axis for axis, entry in enumerate(left) if entry is None]:
        name = g.node("Unsqueeze", name, g.integers(new))
    return name_of(name)


def _start(entry: slice, step: int) -> Any:
    return (0 if step > 0 else LAST) if entry.start is None else entry.start


def _stop(entry: slice, step: int) -> Any:
    return (LAST if step > 0 else -LAST) if entry.stop is None else entry.stop


RULES: dict[type, Rule] = {
    functions.Linear: linear,
    functions.DropConnect: linear,
    functions.Conv1d: convolution,
    functions.Conv2d: convolution,
    functions.ConvTranspose2d: transposed_convolution,
    functions.MaxPool1d: pool("MaxPool"),
    functions.MaxPool2d: pool("MaxPool"),
    functions.AvgPool1d: pool("AveragePool", count_include_pad=1),
    functions.AvgPool2d: pool("AveragePool", count_include_pad=1),
    functions.GlobalAvgPool: global_average_pool,
    functions.Upsample: upsample,
    functions.LayerNorm: layer_norm,
    functions.BatchNorm: batch_norm,
    functions.Embedding: embedding,
    functions.PositionalEncoding: positional_encoding,
    functions.MultiHeadAttention: attention,
    functions.RNN: recurrent("RNN", [0]),
    functions.GRU: recurrent("GRU", [1, 0, 2], linear_before_reset=1),
    functions.LSTM: recurrent("LSTM", [0, 3, 1, 2]),
    functions.Dropout: lambda g, a, x: g.node("Dropout", x, g.constant(np.float32(a.function.p))),
    functions.Flatten: flatten,
    functions.Reshape: reshape_rows,
    functions.ToShape: reshape,
    functions.Transpose: transpose,
    functions.Index: index,
    functions.Concatenate: concatenate,
    functions.Stack: stack,
    functions.ReLU: same("Relu"),
    functions.LeakyReLU: leaky_relu,
    functions.ELU: same("Elu", alpha="alpha"),
    functions.GELU: gelu,
    functions.Softplus: same("Softplus"),
    functions.Tanh: same("Tanh"),
    functions.Sigmoid: same("Sigmoid"),
    functions.Softmax: same("Softmax", axis="axis"),
    functions.LogSoftmax: same("LogSoftmax", axis="axis"),
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
    functions.MatMul: same("MatMul"),
    functions.Sum: reduction("ReduceSum"),
    functions.Mean: reduction("ReduceMean"),
    functions.Max: reduction("ReduceMax"),
    functions.Min: reduction("ReduceMin"),
    functions.Clip: clip,
    functions.Where: where,
    Computed: computed,
    Elementwise: elementwise,
}
