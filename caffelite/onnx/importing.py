"""`load`: a Model of a file of ONNX, whoever wrote it.

`Reader` reads and checks the nodes of the file. `LayerGraph` makes layers of some. If the rest is a chain,
the result is a Model in sequence. Otherwise it is a `GraphModel`, which runs the nodes.
"""

from __future__ import annotations

import bisect
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from caffelite._support.text_table import shorten
from caffelite.core.arrays import FLOATS
from caffelite.files.atomic import NotAFileError, open_file, open_no_link
from caffelite.functions.arithmetic import as_tensor
from caffelite.model.model import Model
from caffelite.model.shapes import find_extra_axes
from caffelite.onnx.constraints import MULTI_OUTPUT, OPTION_INPUTS, find_unsupported_attribute
from caffelite.onnx.families import OPERATORS, dense, normalization
from caffelite.onnx.layers import LayerGraph
from caffelite.onnx.nodes import Node, UnsupportedGraph, is_plain, select_needed
from caffelite.onnx.opsets import convert_opset, opset_version

MAX_MESSAGE = 500  # characters of what is wrong with a file
DOMAINS = {"", "ai.onnx", "ai.onnx.ml"}
#: Checks of attributes if a list of their values is not enough.
ATTRIBUTE_CHECKS = {"Einsum": dense.einsum_terms, "LRN": normalization.check_response_norm}
LABEL_OPERATORS = {"ArgMax", "ArrayFeatureExtractor", "LabelEncoder", "Binarizer"}  # without a gradient


def load(path: str | os.PathLike) -> Model:
    """Return the model in a file of ONNX, written by caffelite, PyTorch's exporter, Keras or skl2onnx.

    A chain of layers becomes a Model in sequence, `Linear`, `ReLU`, `Conv2d` …. Any other graph becomes a model that
    runs its nodes with caffelite's Functions and Tensor's operators. You can train the weights in the file, which are
    parameters: weights of layers, and all other arrays of floats with at least one axis that are stored as
    initializers. Inputs of integers are indices. Outputs are arrays of floats. Others, such as the labels of a
    classifier, are left out. So the model of a classifier returns the probabilities.

    Raise OSError if the path can't be read. Raise ValueError before it computes anything, in these cases:

    - The file is not ONNX.
    - It has an operator, version or attribute that caffelite does not know. The message names the node.
    - It has an input or array of a type that caffelite does not know. The message names it.

    float32, float64 and all opsets are known. onnx converts opsets before 7, if it knows the shapes of all values. Any
    other error is a mistake of caffelite's.
    """
    try:
        return Reader(convert_opset(read(path)), Path(path).parent).model()
    except UnsupportedGraph as error:
        raise ValueError(f"{os.fspath(path)}: {shorten(str(error), MAX_MESSAGE)}") from error


def read(path: str | os.PathLike) -> onnx.ModelProto:
    """Read a file; ValueError if it is not ONNX."""
    try:
        with open(path, "rb", opener=open_file) as file:
            content = file.read()
    except NotAFileError as error:
        raise UnsupportedGraph(error.strerror) from None
    try:
        proto = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf's own
        raise UnsupportedGraph(f"not an ONNX file: {error}") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise UnsupportedGraph("not an ONNX file, or a file without a graph")
    for name in all_names(proto):
        if not isinstance(name, str):
            raise UnsupportedGraph(f"it has a name that is not a text: {name!r}")
    return proto


def all_names(proto: onnx.ModelProto) -> Iterator[Any]:
    """Yield all names that are looked at. protobuf gives bytes for a name that is not text."""
    graph = proto.graph
    yield from [opset.domain for opset in proto.opset_import]
    yield from [x.name for xs in (graph.input, graph.output, graph.initializer, proto.functions) for x in xs]
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.t.name)
    for tensor in graph.initializer:
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)


class Reader:
    """A graph: its inputs and outputs, its nodes, and its constants."""

    def __init__(self, proto: onnx.ModelProto, folder: Path) -> None:
        graph = proto.graph
        self.version = opset_version(proto)
        self.context = onnx.checker.C.CheckerContext()
        self.context.ir_version = proto.ir_version
        self.context.opset_imports = {x.domain: x.version for x in proto.opset_import} | {"": self.version}
        if proto.functions:
            raise UnsupportedGraph(f"it defines an operator {proto.functions[0].name!r}, which caffelite does not have")
        if graph.sparse_initializer:
            raise UnsupportedGraph("it has sparse initializers")
        self.constants = {tensor.name: read_tensor(tensor, folder) for tensor in graph.initializer}
        self.inputs = {info.name: info.type for info in graph.input if info.name not in self.constants}
        self.dtype = self._dtype()
        #: The constants that are learned.
        self.weights = {name for name, a in self.constants.items() if a.dtype.kind == "f" and a.ndim > 0}
        #: The types of the values known so far, as ONNX writes them, without lengths.
        self._types = {name: drop_lengths(kind) for name, kind in self.inputs.items()}
        self._integers: dict[str, TensorProto] = {}  # axes, shapes
        for name, a in self.constants.items():
            self._add_constant(name, a)
        self.nodes = [self._read_node(node, i) for i, node in enumerate(graph.node)]
        for node in self.nodes:
            options = OPTION_INPUTS.get(node.operator, ())
            self.weights -= {name for i, name in enumerate(node.inputs) if i in options}
        self.outputs = self._find_outputs(graph)
        self._check_names()

    def _dtype(self) -> np.dtype:
        """Return the one dtype of all floats; ValueError for others, and for inputs that are not arrays."""
        dtypes = {a.dtype for a in self.constants.values() if a.dtype.kind == "f" and a.ndim > 0}
        for name, kind in self.inputs.items():
            if not kind.HasField("tensor_type"):
                raise UnsupportedGraph(f"its input {name!r} is not an array")
            dtype = to_dtype(kind.tensor_type.elem_type, f"its input {name!r}")
            if dtype.kind == "f":
                dtypes.add(dtype)
        if len(dtypes) > 1 or not dtypes <= set(FLOATS):
            raise UnsupportedGraph(
                f"it computes in {', '.join(sorted(map(str, dtypes)))}; expected float32 or float64, one of them"
            )
        return dtypes.pop() if dtypes else np.dtype(np.float32)

    def _read_node(self, proto: onnx.NodeProto, index: int) -> Node:
        """Return a node, checked by itself."""
        attributes = {a.name: self._read_attribute(a) for a in proto.attribute}
        name = proto.name or f"{proto.op_type} {index}"
        node = Node(proto.op_type, name, list(proto.input), list(proto.output), attributes, self.version, self.dtype)
        if proto.op_type == "Constant":
            node.attributes = {"value": self._read_constant(node)}
        if proto.domain not in DOMAINS:
            raise node.error(f"is of the domain {proto.domain!r}, which caffelite does not have")
        if not node.outputs:
            raise node.error("has no output")
        if not onnx.defs.has(proto.op_type, "" if proto.domain == "ai.onnx" else proto.domain):
            raise node.error("is an operator that caffelite does not have")
        try:
            onnx.checker.check_node(proto, self.context)
        except onnx.checker.ValidationError as error:
            raise node.error(f"is not valid: {first_line(error)}") from None
        self._check_types(node, proto)
        return node

    def _add_constant(self, name: str, a: np.ndarray) -> None:
        code = helper.np_dtype_to_tensor_dtype(a.dtype)
        self._types[name] = helper.make_tensor_type_proto(code, [None] * a.ndim)
        if a.dtype.kind == "i" and a.ndim < 2 and a.size <= 100:
            self._integers[name] = numpy_helper.from_array(a, name)

    def _check_types(self, node: Node, proto: onnx.NodeProto) -> None:
        """ValueError if ONNX finds the node impossible: an axis that its input does not have, or a stride of 0.

        Lengths are left out, since a file may have been written for other inputs than the model gets.
        """
        if node.operator == "Constant":
            self._add_constant(node.outputs[0], node.attributes["value"])
        names = set(node.inputs)
        if not names <= self._types.keys():  # nor with an input left out: onnx 1.16 can't infer that
            return
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        schema = onnx.defs.get_schema(proto.op_type, self.context.opset_imports[domain], domain)
        try:
            inferred = shape_inference.infer_node_outputs(
                schema,
                proto,
                {name: self._types[name] for name in names},
                {name: self._integers[name] for name in names & self._integers.keys()},
            )
        except (shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            reason = re.sub(r"^\[\w+\] *", "", first_line(error))
            raise node.error(f"is not valid: {reason}") from None
        for name, kind in inferred.items():
            if name not in self._types and kind.HasField("tensor_type"):
                self._types[name] = drop_lengths(kind)

    @staticmethod
    def _read_attribute(attribute: onnx.AttributeProto) -> Any:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            return None
        value = helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            return read_tensor(value, None)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, list | tuple) or hasattr(value, "__iter__"):
            return [x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in value]
        return value

    @staticmethod
    def _read_constant(node: Node) -> np.ndarray:
        for kind, dtype in {"float": np.float32, "floats": np.float32, "int": np.int64, "ints": np.int64}.items():
            if f"value_{kind}" in node.attributes:
                return np.array(node.attributes[f"value_{kind}"], dtype)
        if not isinstance(node.get("value"), np.ndarray):
            raise node.error("is of a kind that caffelite does not have")
        return node.attributes["value"]

    def _find_outputs(self, graph: onnx.GraphProto) -> list[str]:
        """Return the names of the outputs that are arrays of floats; only what these need is kept."""
        producers = {name: node for node in self.nodes for name in node.outputs}
        outputs = []
        for info in graph.output:
            producer, is_array = producers.get(info.name), info.type.HasField("tensor_type")
            is_float = info.type.tensor_type.elem_type in (TensorProto.UNDEFINED, TensorProto.FLOAT, TensorProto.DOUBLE)
            if (is_array and is_float) or (producer is not None and producer.operator == "ZipMap"):
                outputs.append(info.name)
        if not outputs:
            raise UnsupportedGraph("it has no output that is an array of float32 or float64")
        self.nodes, needed = select_needed(self.nodes, outputs)
        for node in reversed(self.nodes):
            if node.operator not in MULTI_OUTPUT and needed.intersection(node.outputs[1:]):
                raise node.error(f"also makes {node.outputs[1]!r}, which caffelite does not have")
        return outputs

    def _check_names(self) -> None:
        """ValueError unless every node's inputs are there before it, and every name is given once."""
        known = {"", *self.inputs, *self.constants}
        if len(known) < 1 + len(self.inputs) + len(self.constants):
            raise UnsupportedGraph("a name comes twice")
        for node in self.nodes:
            for name in node.inputs:
                if name not in known:
                    raise node.error(f"has the input {name!r}, which no node before it makes")
            for name in filter(None, node.outputs):
                if name in known:
                    raise node.error(f"makes {name!r}, which exists already")
                known.add(name)
        for name in self.outputs:
            if name not in known:
                raise UnsupportedGraph(f"nothing makes its output {name!r}")

    def model(self) -> Model:
        """Return the Model."""
        layers = LayerGraph(self)
        for node in layers.nodes:
            check_operator(node)
        if (nodes := layers.chain()) is None:
            return GraphModel(self, layers)
        functions = [layers.functions[node.layer or ""] for node in nodes]
        try:
            return Model(functions, dtype=self.dtype)
        except ValueError as error:  # one of them can't follow those before it
            lengths = range(1, len(nodes) + 1)
            fit = bisect.bisect_left(lengths, True, key=lambda n: find_extra_axes(functions[:n]) is None)
            raise nodes[min(fit, len(nodes) - 1)].error(f"can't follow the layers before it: {error}") from error


def check_operator(node: Node) -> None:
    """ValueError for an operator, or for one with an attribute, that caffelite does not have."""
    if node.layer is not None:
        return
    if node.operator in LABEL_OPERATORS:
        raise node.error("makes labels, and other nodes compute with them, which caffelite does not have")
    if (unsupported := find_unsupported_attribute(node)) is not None:
        raise node.error(f"has {unsupported}, which caffelite does not have")
    if node.operator in ATTRIBUTE_CHECKS:
        ATTRIBUTE_CHECKS[node.operator](node)
    if node.operator not in OPERATORS:
        raise node.error("is an operator that caffelite does not have")


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def drop_lengths(kind: onnx.TypeProto) -> onnx.TypeProto:
    """Return the type of an array with as many axes, of unknown lengths."""
    copy = onnx.TypeProto()
    copy.CopyFrom(kind)
    for dim in copy.tensor_type.shape.dim:
        dim.Clear()
    return copy


def to_dtype(code: int, what: str) -> np.dtype:
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, TypeError):
        raise UnsupportedGraph(f"{what} is of type {code}, which there is not") from None


def read_tensor(tensor: TensorProto, folder: Path | None) -> np.ndarray:
    """Return the array that a tensor in a file is; its numbers may be in another file of that folder."""
    what = f"the tensor {tensor.name!r}"
    dtype = to_dtype(tensor.data_type, what)
    size = math.prod(tensor.dims)
    if any(n < 0 for n in tensor.dims):
        raise UnsupportedGraph(f"{what} has shape {tuple(tensor.dims)}")
    if tensor.data_location == TensorProto.EXTERNAL:
        content = read_external(tensor, folder, size * dtype.itemsize, what)
        return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(tuple(tensor.dims))
    try:
        return np.array(numpy_helper.to_array(tensor))
    except Exception as error:
        raise UnsupportedGraph(f"{what}: {error}") from None


def read_external(tensor: TensorProto, folder: Path | None, size: int, what: str) -> bytes:
    """Return the bytes of a tensor in another file of the folder; ValueError for one elsewhere, or without as many."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None or Path(location).name != location or location in ("", ".", ".."):
        raise UnsupportedGraph(f"{what} is in the file {location!r}; expected one in the same folder")
    numbers = entries.get("offset", "0"), entries.get("length", str(size))
    if not all(re.fullmatch("-?[0-9]{1,19}", number) for number in numbers):
        raise UnsupportedGraph(f"{what} is not in the file {location!r}: offset and length are {' and '.join(numbers)}")
    offset, length = map(int, numbers)
    try:
        with open(folder / location, "rb", opener=open_no_link) as file:
            if length != size or offset < 0 or offset + size > os.fstat(file.fileno()).st_size:
                raise UnsupportedGraph(f"{what} is not in the file {location!r}: expected {size} bytes at {offset}")
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise UnsupportedGraph(f"{what} can't be read: {error}") from None


class GraphModel(Model):
    """A net as a file of ONNX describes it, node after node. `layers` are the Functions in it, by name.

    Its structure stays ONNX's: `caffelite.onnx.export` writes all of it, `save` its weights, which a model takes over
    by `load` that `caffelite.onnx.load` has made again.
    """

    def __init__(self, reader: Reader, layers: LayerGraph) -> None:
        super().__init__(dtype=reader.dtype)
        self.nodes, self.layers = layers.nodes, layers.functions
        self.inputs, self.outputs = list(reader.inputs), reader.outputs
        used = {name for node in self.nodes for name in node.inputs} | set(self.outputs)
        constants = {name: a for name, a in reader.constants.items() if name in used}
        self.weights = {name: layers.weight(name) for name in constants if name in reader.weights}
        self.constants = {name: a for name, a in constants.items() if name not in reader.weights}
        codes = [kind.tensor_type.elem_type for kind in reader.inputs.values()]
        are_indices = [to_dtype(code, "an input").kind in "iu" for code in codes]
        self.takes_indices = are_indices[0] if len(are_indices) == 1 else tuple(are_indices)

    def arguments(self) -> dict[str, Any]:
        raise TypeError("it was loaded from a file of ONNX, and caffelite.onnx.export writes it as such again")

    def call(self, *inputs: Any) -> Any:
        """Run the nodes, one after the other."""
        if len(inputs) != len(self.inputs):
            raise TypeError(f"the graph takes {len(self.inputs)} inputs, {', '.join(self.inputs)}, got {len(inputs)}")
        values: dict[str, Any] = {"": None, **self.constants, **self.weights}
        values.update(zip(self.inputs, inputs, strict=True))
        for node in self.nodes:
            arguments = [values[name] for name in node.inputs]
            rule: Callable[..., Any] = OPERATORS.get(node.operator, node.error)
            y = rule(node, *arguments) if node.layer is None else self.layers[node.layer](*arguments)
            ys = y if isinstance(y, tuple) else (y,)
            values.update({name: self._cache_constant(node, y) for name, y in zip(node.outputs, ys, strict=False)})
        outputs = [as_tensor(values[name]) for name in self.outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @staticmethod
    def _cache_constant(node: Node, y: Any) -> Any:
        """Return a result. Arrays that are computed from shapes are kept as constants."""
        if not is_plain(y):
            return y
        y = np.asarray(y)
        return y[()] if y.ndim == 0 and y.dtype.kind == "f" else node.cache(y)

    def __repr__(self) -> str:
        return f"GraphModel({', '.join(f'{name}={layer!r}' for name, layer in self.layers.items())})"
