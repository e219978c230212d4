"""The nodes of a graph of ONNX, as they are written."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from caffelite.core.function import Function
from caffelite.core.python_callback import PythonCallback
from caffelite.files.state import state_arrays
from caffelite.model import export_graph
from caffelite.model.export_graph import Application, ExportGraph, InputColumns, Lengths, N, SymbolicLength
from caffelite.onnx.estimators import FittedEstimator

OPSET = 17
BATCH = "batch"  # the name of the rows' axis


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


def value_name(x: Any) -> str:
    return x.name if isinstance(x, Value) else x or ""


def type_code(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


class Writer:
    """The nodes of a graph, in the order in which they are run, in a dtype.

    `find_rule` returns the rule for a Function of a class, or None.
    """

    def __init__(self, graph: ExportGraph, dtype: np.dtype, find_rule: Callable[[type[Function]], Rule | None]) -> None:
        self.graph, self.dtype, self._find_rule = graph, dtype, find_rule
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, np.ndarray] = {}
        self._model_arrays = state_arrays(graph.model)
        self._array_names: dict[tuple, str] = {}  # of the model's arrays, by their memory
        for name, array in self._model_arrays.items():
            self._array_names.setdefault(export_graph.memory_key(array), name)
        self._names = set(self._model_arrays)  # of values, in use
        self._numbers: Counter[str] = Counter()  # appended to names in use, to tell them apart
        self._cache: dict[Any, str] = {}  # constants, and what is computed of inputs alone
        self.application: Application  # the one that is being written
        self.inputs = [
            Value(self._new(name), shape, self.dtype if dtype.kind == "f" else dtype)
            for name, shape, dtype in zip(_input_names(graph), graph.shapes, graph.dtypes, strict=True)
        ]
        self._results: list[tuple[Value, ...]] = []
        for application in graph.leaves():
            self._results.append(self._apply(application))
        names = ["output"] if len(graph.outputs) == 1 else [f"output_{i}" for i in range(len(graph.outputs))]
        self.outputs = [(name, self._value(x, self.dtype)) for name, x in zip(names, graph.outputs, strict=True)]

    # ---- applications -------------------------------------------------------------------------------------------

    def _apply(self, application: Application) -> tuple[Value, ...]:
        """Write the nodes of an application."""
        rule = self._find_rule(application.kind)
        if rule is None:
            raise _no_rule_error(application)
        inputs = [self._value(source, self.dtype) for source in application.inputs]
        self.application = application
        names = rule(self, application.function, *inputs)
        names = names if isinstance(names, tuple) else (names,)
        return tuple(
            [Value(value_name(x), shape, self.dtype) for x, shape in zip(names, application.shapes, strict=True)]
        )

    def _value(self, source: Any, dtype: np.dtype) -> Any:
        """Return the value that comes from there; None for None."""
        if source is None:
            return None
        if isinstance(source, export_graph.ModelInput):
            return self.inputs[source.place]
        if isinstance(source, export_graph.Result):
            return self._results[source.application][source.place]
        if isinstance(source, export_graph.StoredArray):
            return self.initializer(self._model_arrays[source.name])
        if isinstance(source, InputColumns):
            return self._columns(source)
        if isinstance(source, export_graph.Cast):
            integers = self._value(source.source, dtype)
            return Value(self.node("Cast", integers, to=type_code(dtype)), integers.shape, dtype)
        return self._constant(source, dtype)

    def initializer(self, x: Any) -> Value:
        """Return a parameter or a buffer of the model."""
        array = getattr(x, "_data", x)
        name = self._array_names.get(export_graph.memory_key(array))
        if name is None:
            return Value(self.constant(array), array.shape, array.dtype)
        self.initializers[name] = array.astype(self.dtype)
        return Value(name, array.shape, self.dtype)

    def _columns(self, source: InputColumns) -> Value:
        """Take the elements in these columns of each row of an input."""
        x, columns = self.inputs[source.place], source.columns
        row: Any = x.shape[1:]
        shape = (N, *columns.shape)
        flat = self.node("Reshape", x, self.integers((0, -1)))
        if not np.array_equal(columns.ravel(), np.arange(math.prod(row))):
            flat = self.node("Gather", flat, self.constant(columns.ravel()), axis=1)
        return Value(self.node("Reshape", flat, self.shape(shape)), shape, x.dtype)

    def _constant(self, source: export_graph.Constant, dtype: np.dtype) -> Value:
        values = source.values
        if isinstance(values, SymbolicLength):
            number = self.node("Cast", self.length(values), to=type_code(dtype))
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
        arguments = [value_name(x) for x in inputs]
        while arguments and not arguments[-1]:
            arguments.pop()
        self.nodes.append(helper.make_node(operator, arguments, names, name=names[0], **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def constant(self, array: Any) -> str:
        """Return the name of a constant array."""
        array = np.asarray(array)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._cache:
            self._cache[key] = self.node("Constant", value=numpy_helper.from_array(array))
        return self._cache[key]

    def number(self, x: float) -> str:
        """Return the name of a number in the model's dtype."""
        return self.constant(np.array(x, self.dtype))

    def length(self, length: export_graph.Length) -> str:
        """Return the name of a length, int64 (1,)."""
        if not isinstance(length, SymbolicLength):
            return self.constant(np.array([length], np.int64))
        if length not in self._cache:
            if length == N:
                self._cache[length] = self.node("Shape", self.inputs[0], start=0, end=1)
            else:
                n = self.length(N)
                scaled = self.node("Mul", n, self.length(length.scale)) if length.scale != 1 else n
                self._cache[length] = self.node("Add", scaled, self.length(length.offset))
        return self._cache[length]

    def integers(self, lengths: Sequence[export_graph.Length]) -> str:
        """Return the name of so many lengths, int64 (k,)."""
        if not any(isinstance(length, SymbolicLength) for length in lengths):
            return self.constant(np.array(lengths, np.int64))
        return self.node("Concat", *[self.length(length) for length in lengths], axis=0)

    def shape(self, shape: Lengths) -> str:
        """Return the name of a shape to which something is reshaped."""
        if sum(isinstance(length, SymbolicLength) for length in shape) > 1:
            return self.integers(shape)
        return self.integers([-1 if isinstance(length, SymbolicLength) else length for length in shape])

    def _new(self, name: str) -> str:
        """Return the name, or one like it that is not taken yet."""
        new = name
        while new in self._names:
            self._numbers[name] += 1
            new = f"{name}_{self._numbers[name]}"
        self._names.add(new)
        return new

    def add_labels(self, estimator: FittedEstimator) -> None:
        """Add an output for the labels, before the scores or probabilities: the class of the highest score.

        If a row has several labels, the output is 1 for those that are more probable than not, else 0.
        """
        if estimator.classes is None:
            return
        ((_, scores),) = self.outputs
        labels = np.asarray(estimator.classes)
        labels = labels.astype({"i": np.int64, "u": np.int64, "U": object}.get(labels.dtype.kind, labels.dtype))
        if estimator.is_multilabel:
            likely = self.node("Greater", scores, self.number(0.5))
            label = Value(self.node("Cast", likely, to=TensorProto.INT64), scores.shape, np.dtype(np.int64))
        else:
            best = self.node("ArgMax", scores, axis=1, keepdims=0)
            label = Value(self.node("Gather", self.constant(labels), best), scores.shape[:1], labels.dtype)
        self.outputs = [("label", label), ("probabilities" if estimator.has_probabilities else "scores", scores)]

    # ---- the whole ----------------------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        """All of it, without nodes that nothing needs."""
        outputs = []
        for name, value in self.outputs:
            new = self._new(name)
            self.nodes.append(helper.make_node("Identity", [value.name], [new], name=new))
            outputs.append(helper.make_tensor_value_info(new, type_code(value.dtype), _dims(value.shape)))
        needed = {info.name for info in outputs}
        nodes = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                required = onnx.defs.get_schema(node.op_type, OPSET).min_output
                node.output[:] = [name if name in needed or i < required else "" for i, name in enumerate(node.output)]
                while not node.output[-1]:
                    del node.output[-1]
                nodes.append(node)
        nodes = _remove_identities(nodes[::-1], {x.name for x in self.inputs} | self.initializers.keys())
        graph = helper.make_graph(
            nodes,
            type(self.graph.model).__name__,
            [helper.make_tensor_value_info(x.name, type_code(x.dtype), _dims(x.shape)) for x in self.inputs],
            outputs,
            [numpy_helper.from_array(np.asarray(a), k) for k, a in self.initializers.items() if k in needed],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets), producer_name="caffelite"
        )


def node_rule(operator: str, **attributes: str) -> Rule:
    """Return the rule for a Function that is one node. `attributes` has the Function's name of each ONNX attribute."""

    def rule(g: Writer, f: Any, *inputs: Value) -> str:
        return g.node(operator, *inputs, **{name: getattr(f, attribute) for name, attribute in attributes.items()})

    return rule


def known_lengths(shape: Lengths) -> tuple[int | None, ...]:
    """Return the shape with None for lengths that follow the number of rows."""
    return tuple([None if isinstance(n, SymbolicLength) else n for n in shape])


def _no_rule_error(application: Application) -> TypeError:
    in_python = [call.name for call in application.steps[0].calls if isinstance(call, PythonCallback)]
    if in_python:
        what, where = f"{in_python[0]} computes in Python, and can't be exported", "in the `call` of a Model"
    else:
        what = f"{application.function!r} is a Function without nodes in ONNX"
        where = "in its `formula` or in the `call` of a Model"
    return TypeError(f"{what}: write it with Tensor's operators, {where}")


def _remove_identities(nodes: list[onnx.NodeProto], fixed: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes, where a node's result gets its name by an Identity at the end with that name at once."""
    names: dict[str, str] = {}
    rest = []
    for node in nodes:
        if node.op_type == "Identity" and node.input[0] not in fixed and node.input[0] not in names:
            names[node.input[0]] = node.output[0]
        else:
            rest.append(node)
    for node in rest:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        node.name = names.get(node.name, node.name)
    return rest


def _input_names(graph: ExportGraph) -> list[str]:
    """`input`, or what `call` calls its inputs if there are several."""
    if len(graph.shapes) == 1:
        return ["input"]
    names = [
        name
        for name, parameter in inspect.signature(graph.model.call).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return [names[i] if i < len(names) else f"input_{i}" for i in range(len(graph.shapes))]


def _dims(shape: Lengths) -> list[Any]:
    """Return a shape as a file says it."""
    return [BATCH if n == N else None if isinstance(n, SymbolicLength) else int(n) for n in shape]
