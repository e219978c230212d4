"""`export`: a model as a file of ONNX, and which nodes each Function becomes.

`RULES` has a function for each kind of Function: it is given a `Writer`, the application, and the inputs, and returns
the result, or a tuple of them. What is applied to what is found by `traced`.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from caffelite import functions
from caffelite.core.arrays import normalized_axes
from caffelite.core.function import Function, shape_text
from caffelite.files import safetensors as files
from caffelite.functions.indexing import WHOLE, _is_basic, _parted
from caffelite.model.model import Model
from caffelite.onnx.checking import check
from caffelite.onnx.estimators import Estimator
from caffelite.onnx.operators import Computed, Elementwise
from caffelite.onnx.tracing import (
    Application,
    Columns,
    Constant,
    Given,
    Graph,
    Length,
    Lengths,
    Result,
    Rows,
    Stored,
    memory_of,
    traced,
)

OPSET = 17
BATCH = "batch"  # the name of the rows' axis
LAST = 2**62  # where a slice that has no end stops


@dataclass(frozen=True)
class Value:
    """An array in the graph that is written: its name, its shape, its dtype."""

    name: str
    shape: Lengths
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)


Rule = Callable[..., Any]


def export(model: Any, path: str | os.PathLike, input_shape: Any = None) -> None:
    """Write a model, as it is used and not trained, as a file of ONNX (opset 17), which many programs run.

    Inputs and outputs have any number of rows, an axis named `batch`; `input_shape` is that of one row, without it, or
    a tuple of such for several inputs; it is needed where the first Function takes any. Inputs are float32 or float64
    as the model is, int64 where it takes indices, bool where an input is a mask. Parameters and buffers have the
    model's names, `f.0.weight`. A `call` is written as what it applies: Functions and Tensor's operators. An estimator
    of `caffelite.sklearn` has the outputs `label` and `probabilities`, or `output`.

    The graph is checked by onnx's checker, and its outputs for random rows are compared with the model's, computed by
    onnxruntime, if it is installed. (It has not all operators in float64; then it computes them in float32.)

    Raises, before anything is written, TypeError naming a Function that computes in Python or any other that ONNX can't
    say; ValueError for a shape that is missing or doesn't fit, and for what depends on the number of rows; RuntimeError
    if the outputs differ. OSError naming the path if it can't be written. The file replaces an older one when it is
    whole.
    """
    files.replace(path, [written(model, input_shape).SerializeToString()])


def written(model: Any, input_shape: Any = None) -> onnx.ModelProto:
    """The graph of a model or an estimator, checked; see `export`."""
    estimator = Estimator(model) if hasattr(model, "model_") else None
    net = model if estimator is None else estimator.model
    if not isinstance(net, Model):
        hint = ": its last step, pipeline[-1], for rows as the steps before make them" * hasattr(model, "named_steps")
        raise TypeError(f"export takes a Model, or an estimator that was fitted, got {model!r}{hint}")
    features = getattr(model, "n_features_in_", None)
    rows = _rows(net, (features,) if input_shape is None and features is not None else input_shape)
    finish = (lambda y: y) if estimator is None else estimator.finish
    try:
        net.output_shape(*[(None, *row) for row in rows])  # which says what does not fit
        graph = traced(net, rows, lambda function: _rule_of(function) is not None, finish)
    except (TypeError, ValueError, IndexError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{type(net).__name__} can't be exported: {error}") from error

    def proto(dtype: np.dtype) -> onnx.ModelProto:
        writer = Writer(graph, dtype)
        if estimator is not None:
            writer.add_labels(estimator)
        return writer.model()

    found = proto(net.dtype)
    try:
        onnx.checker.check_model(found, full_check=True)
    except Exception as error:
        raise RuntimeError(f"what was made of {net!r} is no ONNX: {error}") from error
    check(proto, graph, finish)
    return found


def _rows(model: Model, input_shape: Any) -> list[tuple[int, ...]]:
    """The shapes of a row of each input; ValueError or TypeError where a length is missing, or is none."""
    if input_shape is None:
        model.all_functions()
        more = model._axes_that_fit(model.functions) if model._is_sequence() else None
        required: Any = model.required_input_shape
        shapes = required if required and isinstance(required[0], tuple) else (required,)
        found = [
            shape and tuple(n for m in shape for n in ((None,) * (more or 0) if m is ... else (m,))) for shape in shapes
        ]
        for shape in found:
            if shape is None:
                for_two = "" if model._is_sequence() else ", or ((64,), (3,)) for two inputs"
                raise ValueError(f"export has to know the shape of a row: give input_shape, such as (64,){for_two}")
            if None in shape[1:]:
                example = tuple([28 if n is None else n for n in shape[1:]])
                raise ValueError(
                    f"export has to know the shape of a row, of which is known only {shape_text(shape)}: give "
                    f"input_shape, such as {example}"
                )
        return [shape[1:] for shape in found]
    if not isinstance(input_shape, tuple | list):
        raise TypeError(f"export: expected the shape of a row, such as (64,), got {input_shape!r}")
    several = bool(input_shape) and all(isinstance(row, tuple | list) for row in input_shape)
    rows = [tuple(row) for row in input_shape] if several else [tuple(input_shape)]
    for n in [n for row in rows for n in row]:
        if isinstance(n, bool) or not isinstance(n, int | np.integer):
            raise TypeError(
                f"export: expected the shape of a row, without the axis of the rows, such as (64,), got {input_shape!r}"
            )
        if n < 1:
            raise ValueError(f"export: lengths are 1 or more, got {input_shape!r}")
    return rows


class Writer:
    """The nodes of a graph, in the order in which they are run, in a dtype."""

    def __init__(self, graph: Graph, dtype: np.dtype) -> None:
        self.graph, self.dtype = graph, dtype
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, np.ndarray] = {}
        self._stored = graph.model._arrays()
        self._places: dict[tuple, str] = {}  # of the arrays that are stored: their names
        for name, own in self._stored.items():
            self._places.setdefault(memory_of(own), name)
        self._names = set(self._stored)  # that are taken
        self._numbers: Counter[str] = Counter()  # behind the names that would be taken
        self._made: dict[Any, str] = {}  # constants, and what is computed of inputs alone
        self.inputs = [
            Value(self._new(name), shape, self.dtype if dtype.kind == "f" else dtype)
            for name, shape, dtype in zip(_input_names(graph), graph.shapes, graph.dtypes, strict=True)
        ]
        self._results: list[tuple[Value, ...]] = []
        for application in graph.applications:
            self._results.append(self._apply(application))
        self.outputs: list[tuple[str, Value]] = []
        for i, source in enumerate(graph.outputs):
            name = "output" if len(graph.outputs) == 1 else f"output_{i}"
            self.outputs.append((name, self._value(source, self.dtype)))

    # ---- applications -------------------------------------------------------------------------------------------

    def _apply(self, application: Application) -> tuple[Value, ...]:
        """Write what an application does."""
        rule = _rule_of(application.function)
        if rule is None:
            raise TypeError(
                f"{application.function!r} is no Function that can be written as nodes of ONNX: write it with Tensor's "
                "operators, in its `formula` or in the `call` of a Model"
            )
        inputs = [self._value(source, self.dtype) for source in application.inputs]
        names = rule(self, application, *inputs)
        names = names if isinstance(names, tuple) else (names,)
        return tuple([Value(_name(x), shape, self.dtype) for x, shape in zip(names, application.shapes, strict=True)])

    def _value(self, source: Any, dtype: np.dtype) -> Any:
        """The value that comes from there; None for None."""
        if source is None:
            return None
        if isinstance(source, Given):
            return self.inputs[source.place]
        if isinstance(source, Result):
            return self._results[source.application][source.place]
        if isinstance(source, Stored):
            return self.stored(self._stored[source.name])
        if isinstance(source, Columns):
            return self._columns(source)
        return self._constant(source, dtype)

    def stored(self, x: Any) -> Value:
        """A parameter or a buffer of the model."""
        array = getattr(x, "_data", x)
        name = self._places.get(memory_of(array))
        if name is None:
            return Value(self.constant(array), array.shape, array.dtype)
        self.initializers[name] = array.astype(self.dtype)
        return Value(name, array.shape, self.dtype)

    def _columns(self, source: Columns) -> Value:
        """Of each row of an input the elements in these columns."""
        given, columns = self.inputs[source.place], source.columns
        shape = (Rows(1, 0), *columns.shape)
        flat = self.node("Reshape", given, self.integers((0, -1)))
        if not np.array_equal(columns.ravel(), np.arange(_count(given.shape[1:]))):
            flat = self.node("Gather", flat, self.constant(columns.ravel()), axis=1)
        return Value(self.node("Reshape", flat, self.shape(shape)), shape, given.dtype)

    def _constant(self, source: Constant, dtype: np.dtype) -> Value:
        values = source.values
        if isinstance(values, Rows):
            number = self.node("Cast", self.length(values), to=_code(dtype))
            return Value(self.node("Reshape", number, self.integers(())), (), dtype)
        array = np.asarray(values)
        if array.dtype.kind == "f" or not isinstance(values, np.ndarray):
            array = array.astype(dtype)
        name = self.constant(array)
        if source.shape is None:
            return Value(name, array.shape, array.dtype)
        return Value(self.node("Expand", name, self.integers(source.shape)), source.shape, array.dtype)

    # ---- nodes --------------------------------------------------------------------------------------------------

    def node(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Write a node; the name of its output, or of so many. An input is a Value, a name, or None for none."""
        names = [self._new(operator.lower()) for _ in range(outputs)]
        given = [_name(x) for x in inputs]
        while given and not given[-1]:
            given.pop()
        self.nodes.append(helper.make_node(operator, given, names, name=names[0], **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def constant(self, array: Any) -> str:
        """The name of a constant array."""
        array = np.asarray(array)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = self.node("Constant", value=numpy_helper.from_array(array))
        return self._made[key]

    def number(self, x: float) -> str:
        """The name of a number in the model's dtype."""
        return self.constant(np.array(x, self.dtype))

    def length(self, length: Length) -> str:
        """The name of a length, int64 (1,)."""
        if not isinstance(length, Rows):
            return self.constant(np.array([length], np.int64))
        if length not in self._made:
            if length == Rows(1, 0):
                self._made[length] = self.node("Shape", self.inputs[0], start=0, end=1)
            else:
                n = self.length(Rows(1, 0))
                scaled = self.node("Mul", n, self.length(length.scale)) if length.scale != 1 else n
                self._made[length] = self.node("Add", scaled, self.length(length.offset))
        return self._made[length]

    def integers(self, lengths: Sequence[Length]) -> str:
        """The name of so many lengths, int64 (k,)."""
        if not any(isinstance(length, Rows) for length in lengths):
            return self.constant(np.array(lengths, np.int64))
        return self.node("Concat", *[self.length(length) for length in lengths], axis=0)

    def shape(self, shape: Lengths) -> str:
        """The name of a shape to which something is reshaped."""
        if sum(isinstance(length, Rows) for length in shape) > 1:
            return self.integers(shape)
        return self.integers([-1 if isinstance(length, Rows) else length for length in shape])

    def _new(self, name: str) -> str:
        """The name, or one like it that is not taken yet."""
        new = name
        while new in self._names:
            self._numbers[name] += 1
            new = f"{name}_{self._numbers[name]}"
        self._names.add(new)
        return new

    def add_labels(self, estimator: Estimator) -> None:
        """Have the label of the class of the highest score as an output, before the scores or probabilities.

        Where there are several labels a row, those that are more probable than not, as 1 and 0.
        """
        if estimator.classes is None:
            return
        ((_, scores),) = self.outputs
        labels = np.asarray(estimator.classes)
        labels = labels.astype({"i": np.int64, "u": np.int64, "U": object}.get(labels.dtype.kind, labels.dtype))
        if estimator.has_several:
            likely = self.node("Greater", scores, self.number(0.5))
            label = Value(self.node("Cast", likely, to=TensorProto.INT64), scores.shape, np.dtype(np.int64))
        else:
            best = self.node("ArgMax", scores, axis=1, keepdims=0)
            label = Value(self.node("Gather", self.constant(labels), best), scores.shape[:1], labels.dtype)
        self.outputs = [("label", label), ("scores" if estimator.link == "scores" else "probabilities", scores)]

    # ---- the whole ----------------------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        """All of it, without nodes that nothing needs."""
        outputs = []
        for name, value in self.outputs:
            new = self._new(name)
            self.nodes.append(helper.make_node("Identity", [value.name], [new], name=new))
            outputs.append(helper.make_tensor_value_info(new, _code(value.dtype), _dims(value.shape)))
        needed = {info.name for info in outputs}
        nodes = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                node.output[:] = [name if name in needed else "" for name in node.output]
                while not node.output[-1]:
                    del node.output[-1]
                nodes.append(node)
        nodes = _without_identities(nodes[::-1], {x.name for x in self.inputs} | self.initializers.keys())
        graph = helper.make_graph(
            nodes,
            type(self.graph.model).__name__,
            [helper.make_tensor_value_info(x.name, _code(x.dtype), _dims(x.shape)) for x in self.inputs],
            outputs,
            [numpy_helper.from_array(np.asarray(a), k) for k, a in self.initializers.items() if k in needed],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=helper.find_min_ir_version_for(opsets),
            producer_name="caffelite",
        )


def _without_identities(nodes: list[onnx.NodeProto], fixed: set[str]) -> list[onnx.NodeProto]:
    """The nodes, where a node's result gets its name by an Identity at the end with that name at once."""
    names: dict[str, str] = {}
    left = []
    for node in nodes:
        if node.op_type == "Identity" and node.input[0] not in fixed and node.input[0] not in names:
            names[node.input[0]] = node.output[0]
        else:
            left.append(node)
    for node in left:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        node.name = names.get(node.name, node.name)
    return left


def _input_names(graph: Graph) -> list[str]:
    """`input`, or what `call` calls its inputs if there are several."""
    if len(graph.shapes) == 1:
        return ["input"]
    import inspect

    taken = [
        name
        for name, parameter in inspect.signature(graph.model.call).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return [taken[i] if i < len(taken) else f"input_{i}" for i in range(len(graph.shapes))]


def _name(x: Any) -> str:
    return x.name if isinstance(x, Value) else x or ""


def _code(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _dims(shape: Lengths) -> list[Any]:
    """A shape as a file says it."""
    return [BATCH if n == Rows(1, 0) else None if isinstance(n, Rows) else int(n) for n in shape]


def _count(shape: Any) -> int:
    return math.prod(shape)


def _rule_of(function: Function) -> Rule | None:
    """The rule for a Function; None if there is none, or if a subclass computes something else."""
    kind: Any
    for kind in type(function).__mro__:
        if kind in RULES and kind.forward is type(function).forward and kind.__call__ is type(function).__call__:
            return RULES[kind]
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
    slope = a.function.slope  # type: ignore[attr-defined]
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
        given = [x if x.dtype == g.dtype else g.node("Cast", x, to=_code(g.dtype)) for x in inputs]
    else:
        given = list(inputs)
    if f.operator in ("Floor", "Ceil", "Round", "Sign"):
        return g.node(f.operator, *given)
    if f.operator in ("Max", "Min"):
        better = g.node({"Max": "GreaterOrEqual", "Min": "LessOrEqual"}[f.operator], *given)
        found = g.node("Or", better, g.node("IsNaN", given[0]))
    else:
        found = g.node(f.operator, *given, **({} if f.to is None else {"to": f.to}))
    return g.node("Cast", found, to=_code(g.dtype))


def elementwise(g: Writer, a: Application, x: Value) -> str:
    return g.node(a.function.operator, x)  # type: ignore[attr-defined]


def reshape(g: Writer, a: Application, x: Value) -> str:
    return g.node("Reshape", x, g.shape(a.shapes[0]))


def reshape_rows(g: Writer, a: Application, x: Value) -> str:
    return g.node("Reshape", x, g.integers((0, *a.shapes[0][1:])))


def flatten(g: Writer, a: Application, x: Value) -> str:
    return g.node("Flatten", x, axis=1)


def transpose(g: Writer, a: Application, x: Value) -> str:
    axes = a.function.axes or range(x.ndim)[::-1]  # type: ignore[attr-defined]
    return g.node("Transpose", x, perm=[axis % x.ndim for axis in axes])


def concatenate(g: Writer, a: Application, *inputs: Value) -> str:
    return g.node("Concat", *inputs, axis=a.function.axis)  # type: ignore[attr-defined]


def stack(g: Writer, a: Application, *inputs: Value) -> str:
    axis = a.function.axis % (inputs[0].ndim + 1)  # type: ignore[attr-defined]
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
    return _name(name)


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
