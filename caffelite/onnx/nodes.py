"""The nodes of a file of ONNX: `Node`, and `NodeGraph`, all of a graph with the layers that they become."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.function import Function
from caffelite.core.modes import meta_init
from caffelite.core.tensor import Tensor

MAX_SIZE = 2**24  # numbers in an array that a file makes of a few bytes
MAX_GROWTH = 256  # times as many numbers may be made of data

Operator = Callable[..., Any]  # a node and its inputs → its output, or a tuple of them


class UnsupportedGraph(ValueError):
    """A file is wrong, or has something that caffelite does not have. Other errors are caffelite's mistakes."""


class ConstantCache:
    """The last hundred arrays that NumPy made of shapes. Recordings take them for constants."""

    def __init__(self) -> None:
        self._arrays: dict[tuple, np.ndarray] = {}

    def __call__(self, array: np.ndarray) -> np.ndarray:
        cached = self._arrays.setdefault((array.dtype.str, array.shape, array.tobytes()), array)
        while len(self._arrays) > 100:
            self._arrays.pop(next(iter(self._arrays)), None)
        return cached


@dataclass(eq=False)
class Node:
    """A node of a graph."""

    operator: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    version: int  # of the operators
    dtype: np.dtype  # of the model
    layer: str | None = None  # the Function that it is, by name
    cache: ConstantCache = field(default_factory=ConstantCache)

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.attributes.get(attribute, default)

    def argument(self, name: str, value: Any, default: Any = None) -> Any:
        """Return an argument that is an attribute, or an input with this value, as a list or a number."""
        if value is None:
            return self.get(name, default)
        return self.constant(value, name).tolist()

    def constant(self, value: Any, what: str) -> np.ndarray:
        """Return the value as a plain array; ValueError if it is not a plain array."""
        if isinstance(value, Tensor | kernels.RecordedArray):
            raise self.error(f"gets a {what} that depends on data")
        return np.asarray(value)

    def error(self, why: str) -> UnsupportedGraph:
        return UnsupportedGraph(f"node {self.name!r} ({self.operator}) {why}")

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Inside, an error of a Function or of NumPy, which get numbers of the file, names this node."""
        try:
            yield
        except UnsupportedGraph:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
            raise self.error(f"can't be computed: {str(error) or type(error).__name__}") from error


def is_plain(*values: Any) -> bool:
    """Return whether these are arrays that NumPy computes with at once."""
    return not any(isinstance(x, Tensor | kernels.RecordedArray) for x in values)


def check_size(node: Node, shape: Sequence[int], x: Any = None) -> list[int]:
    """Return the shape of an array that is made of x, or of nothing; ValueError if it is too large.

    An axis of length 0 counts as one of length 1, because the others cost work all the same.
    """
    max_size = MAX_SIZE if is_plain(x) else max(MAX_SIZE, MAX_GROWTH * math.prod(x.shape))
    if any(n < 0 for n in shape) or math.prod([max(1, n) for n in shape]) > max_size:
        raise node.error(f"makes an array of shape {tuple(shape)}")
    return [int(n) for n in shape]


def select_needed(nodes: list[Node], outputs: Iterable[str]) -> tuple[list[Node], set[str]]:
    """Return the nodes on which the outputs depend, and the names of the outputs and of all inputs of these nodes."""
    needed, needed_nodes = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            needed_nodes.append(node)
    return needed_nodes[::-1], needed


class NodeGraph:
    """The nodes of a graph, its layers by name, and the producer and the number of uses of each value.

    A file may have thousands of nodes, so a replacement costs only the nodes that it touches: `producers` and
    `uses` follow each replacement. `remove_unused` takes away the nodes that nothing uses any more.
    """

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self.constants: dict[str, np.ndarray] = reader.constants
        self.nodes: list[Node] = reader.nodes
        self.functions: dict[str, Function] = {}
        self._weights: dict[Any, Tensor] = {}
        self._layers: dict[Any, str] = {}  # those made before, by what they were made of
        self._names: Counter[str] = Counter()  # how many layers have a name, but for the number behind it
        self.index()

    def index(self) -> None:
        """Find which node makes each value, and how often the value is used, as an output too."""
        self.producers = {name: node for node in self.nodes for name in node.outputs if name}
        self.uses = Counter([name for node in self.nodes for name in node.inputs])
        self.uses.update(self.reader.outputs)
        self.outputs = set(self.reader.outputs)

    def producer(self, name: str, operator: str) -> Node | None:
        """Return the node of this operator that makes a value, if it is not a layer yet and nothing else uses it."""
        node = self.producers.get(name)
        if node is None or node.layer is not None or node.operator != operator:
            return None
        return node if self.is_used_once(name) else None

    def is_used_once(self, name: str) -> bool:
        return self.uses[name] == 1 and name not in self.outputs

    def number(self, name: str) -> float | None:
        """Return the constant number of this name."""
        a = self.constants.get(name)
        return a.item() if a is not None and a.size == 1 else None

    def array(self, name: str, ndim: int) -> np.ndarray | None:
        """Return the constant array of floats of this name and of so many axes."""
        a = self.constants.get(name)
        return a if a is not None and a.ndim == ndim and a.dtype == self.reader.dtype else None

    def row(self, name: str) -> np.ndarray | None:
        """Return the constant vector of this name. One row becomes a vector, unless something else uses it."""
        a = self.array(name, 2)
        if a is not None and len(a) == 1 and self.is_used_once(name):
            self.constants[name] = a[0]
        return self.array(name, 1)

    def append(self, node: Node) -> None:
        """Add a node before the one that is replaced."""
        self.nodes.append(node)
        self.producers[node.outputs[0]] = node
        self.uses.update(node.inputs)

    def replace(self, new: Node, old: Node) -> None:
        """Note that a node is in the place of another one, which is gone with the nodes that only it used."""
        self.producers.update({name: new for name in new.outputs if name})
        self.uses.update(new.inputs)
        unused = [old]
        while unused:
            for name in unused.pop().inputs:
                self.uses[name] -= 1
                producer = self.producers.get(name)
                if producer is not None and not any(self.uses[y] for y in producer.outputs if y):
                    unused.append(producer)

    def remove_unused(self) -> None:
        """Leave out nodes that nothing needs any more."""
        self.nodes, _ = select_needed(self.nodes, self.reader.outputs)
        self.index()

    # ---- layers -------------------------------------------------------------------------------------------------

    def weight(self, name: str, last: str | None = None, transposed: bool = False) -> Tensor:
        """Return the parameter of an initializer: the same one for all layers that use it."""
        key = name, transposed
        if key not in self._weights:
            a = self.constants[name]
            a = np.array(a.T if transposed else a, self.reader.dtype, order="C")
            self._weights[key] = Tensor(a, True, name=last or name)
        return self._weights[key]

    def layer(
        self,
        node: Node,
        make: Any,
        inputs: Sequence[str],
        weights: Mapping[str, str] = MappingProxyType({}),
        transposed: bool = False,
    ) -> Node:
        """Return a node that applies a layer: a Function, or a callable that makes one.

        `weights` are its parameters, by the names of initializers. The parameter `weight` may be `transposed`. A layer
        that is made of the same initializers as another is the same one.
        """
        with meta_init(), node.translate_errors():
            function: Any = make if isinstance(make, Function) else make()
        key = (transposed, *weights.values(), repr(function)) if weights else tuple(node.outputs)  # some may be ""
        if key not in self._layers:
            for attribute, name in weights.items():
                setattr(function, attribute, self.weight(name, attribute, transposed and attribute == "weight"))
            self._layers[key] = self._name(node, next(iter(weights.values()), ""))
            self.functions[self._layers[key]] = function
        return dataclasses.replace(node, inputs=list(inputs), attributes={}, layer=self._layers[key])

    def _name(self, node: Node, weight: str) -> str:
        """Return the name of a layer: from its first weight, `conv1` from `conv1.weight`, or from its operator."""
        new = name = weight.rpartition(".")[0] or node.operator.lower()
        while new in self.functions:
            self._names[name] += 1
            new = f"{name}_{self._names[name]}"
        return new


Finder = Callable[[NodeGraph, Node], "Node | None"]  # the node that takes the place of one; None if it stays


def simple_finder(make: Callable[[Node], Function]) -> Finder:
    """Find a layer without parameters, of one input."""

    def find(g: NodeGraph, node: Node) -> Node | None:
        x, *options = node.inputs
        return None if x in g.constants or any(options) else g.layer(node, lambda: make(node), [x])

    return find


def constant_integers(g: NodeGraph, node: Node, attribute: str) -> list[int] | None:
    """Return the integers that a node has as an attribute, or as its second input if that is a constant."""
    if len(node.inputs) < 2 or not node.inputs[1]:
        return node.get(attribute)
    a = g.constants.get(node.inputs[1])
    return None if a is None or a.ndim != 1 else a.tolist()


def shortest_decimal(x: float) -> float:
    """Return the shortest number that a float32 stands for: 0.01, and not 0.009999999776482582."""
    return float(str(np.float32(x)))
