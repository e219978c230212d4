"""`LayerGraph`: find the nodes of a graph that are layers, single nodes and groups of them.

First, it computes everything that depends on constants alone (`_fold_constants`). Then `GROUPS` finds groups,
by the operator of a group's last node, and `SINGLE_NODES` layers of one node. Each function returns the node that takes
their place, or None. At last, a branch beside a connection becomes a Residual, and concatenated branches a Parallel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from caffelite import functions
from caffelite.core.function import Function, Shape
from caffelite.files.structure import MAX_DEPTH
from caffelite.model.model import Model
from caffelite.onnx.constraints import find_unsupported_attribute
from caffelite.onnx.families import GROUPS, OPERATORS, SINGLE_NODES
from caffelite.onnx.families.dense import einsum_terms
from caffelite.onnx.families.recurrent import Recurrence
from caffelite.onnx.nodes import Finder, Node, NodeGraph

#: The types of floats that models have.
FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE)

#: Operators of indices, which are int64 in models.
INTEGER_TYPES = (TensorProto.INT32, TensorProto.INT64)

#: Operators whose results are not larger than their inputs.
NON_GROWING = {
    *("Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"),
    *("Slice", "Split", "Concat", "TopK"),
}


class LayerGraph(NodeGraph):
    """The nodes of a graph, after those that are layers have become such."""

    def __init__(self, reader: Any) -> None:
        super().__init__(reader)
        self._depths: dict[Function, int] = {}  # of Functions of Functions
        self._fold_constants()
        self._integers = self._find_integers()
        self._remove_copies()
        for table in (GROUPS, SINGLE_NODES):
            self._find_layers(table)
        self._find_containers()
        self.functions = {node.layer: self.functions[node.layer] for node in self.nodes if node.layer is not None}

    def _fold_constants(self) -> None:
        """Compute nodes of constants, and nodes of weights that nothing else uses."""
        self.index()
        unknown = {node: {x for x in node.inputs if x and x not in self.constants} for node in self.nodes}
        users: dict[str, list[Node]] = {}
        for node, names in unknown.items():
            for name in names:
                users.setdefault(name, []).append(node)
        #: How many nodes use a value beside one that is not computed yet.
        self._unfolded_uses = Counter([name for node, names in unknown.items() if names for name in set(node.inputs)])
        budget = 4 * sum(a.size for a in self.constants.values()) + 2**22  # numbers
        rest = []
        for node in self.nodes:
            inputs = [name for name in node.inputs if name]
            # (Programs that write files store equal weights once, and name them again by Identity.)
            is_tied = node.operator != "Identity" and any(
                name in self.reader.weights and not self._is_foldable(name) for name in inputs
            )
            if node.operator not in OPERATORS or is_tied or not all(name in self.constants for name in inputs):
                rest.append(node)
                continue
            with node.translate_errors():
                budget -= _max_size(node, [self.constants[name] for name in inputs])
            if budget < 0:
                raise node.error("makes more constants than a file of this size should")
            if not find_unsupported_attribute(node):
                with np.errstate(all="ignore"), node.translate_errors():
                    y = OPERATORS[node.operator](node, *[self.constants.get(name) for name in node.inputs])
                ys = y if isinstance(y, tuple) else (y,)
                if all(isinstance(a, np.ndarray | np.generic) for a in ys):
                    budget -= sum(a.size for a in ys)
                    self._add_constants(node, ys, any(name in self.reader.weights for name in inputs))
                    for name in node.outputs:
                        for user in users.get(name, ()):
                            unknown[user].discard(name)
                            if not unknown[user]:
                                self._unfolded_uses.subtract(set(user.inputs))
                    continue
            rest.append(node)
        self.nodes = rest
        self.index()

    def _add_constants(self, node: Node, arrays: Iterable[Any], are_weights: bool) -> None:
        for name, a in zip(node.outputs, arrays, strict=False):
            self.constants[name] = np.asarray(a)
            if are_weights and self.constants[name].dtype.kind == "f" and self.constants[name].ndim > 0:
                self.reader.weights.add(name)

    def _is_foldable(self, name: str) -> bool:
        """Return whether a weight is used only where constants are computed."""
        return name not in self.outputs and not self._unfolded_uses[name]

    def _find_integers(self) -> set[str]:
        """Return the names of integers and bools, such as lengths. No layer computes anything of them."""
        names = {name for name, a in self.constants.items() if a.dtype.kind != "f"}
        names |= {name for name, kind in self.reader.inputs.items() if kind.tensor_type.elem_type not in FLOAT_TYPES}
        for node in self.nodes:
            first = node.inputs[{"Where": 1, "CastLike": 1}.get(node.operator, 0)] if node.inputs else ""
            if node.operator == "Cast":
                is_integer = node.get("to") not in FLOAT_TYPES
            elif node.operator == "ConstantOfShape":
                is_integer = "value" in node.attributes and node.attributes["value"].dtype.kind != "f"
            else:
                is_integer = node.operator in ("Shape", "Size") or first in names
            if is_integer:
                names.update(node.outputs)
        return names

    def _remove_copies(self) -> None:
        """Leave out nodes that do not change their input, such as a cast of float32 to float32."""
        names: dict[str, str] = {}
        indices = {k for k, kind in self.reader.inputs.items() if kind.tensor_type.elem_type in INTEGER_TYPES}
        rest = []
        for node in self.nodes:
            node.inputs = [names.get(name, name) for name in node.inputs]
            to_floats = node.operator == "Cast" and node.get("to") == helper.np_dtype_to_tensor_dtype(node.dtype)
            to_indices = node.operator == "Cast" and node.get("to") in INTEGER_TYPES and node.inputs[0] in indices
            to_floats = to_floats and node.inputs[0] not in self._integers
            if node.operator in ("Identity", "ZipMap") or to_floats or to_indices:
                names[node.outputs[0]] = node.inputs[0]
            else:
                rest.append(node)
        self.nodes, self.reader.outputs = rest, [names.get(name, name) for name in self.reader.outputs]
        self.index()

    def _find_layers(self, table: dict[str, list[Finder]]) -> None:
        """Put layers in the place of the nodes for which the table has some.

        `nodes` are those that have been looked at; what a layer needs before it is appended to them.
        """
        nodes, self.nodes = self.nodes, []
        for node in nodes:
            new = None if node.layer is not None or node.outputs[0] in self._integers else self._find_layer(table, node)
            if new is not None:
                self.replace(new, node)
            self.nodes.append(new or node)
        self.remove_unused()

    def _find_layer(self, table: dict[str, list[Finder]], node: Node) -> Node | None:
        """Return the node that takes the place of this one; None if it stays."""
        finders = () if find_unsupported_attribute(node) else table.get(node.operator, ())
        return next(filter(None, (find(self, node) for find in finders)), None)

    def _find_containers(self) -> None:
        """Find each Residual and Parallel, and the shapes before them."""
        shapes = {name: _declared_shape(kind) for name, kind in self.reader.inputs.items()}
        for i, node in enumerate(self.nodes):
            new = None
            if node.operator == "Add" and node.layer is None:
                new = self._find_residual(node, shapes)
            elif node.operator == "Concat" and node.layer is None:
                new = self._find_parallel(node)
            if new is not None:
                self.replace(new, node)
                self.nodes[i] = node = new
            if isinstance(self.functions.get(node.layer or ""), Recurrence):
                continue  # it would be applied to an array of that shape
            if node.layer is not None and (shape := shapes.get(node.inputs[0])) is not None:
                self._reshape_rows(node, shape)
                try:
                    shapes[node.outputs[0]] = self.functions[node.layer].output_shape(shape)
                except ValueError:
                    continue
        self.remove_unused()

    def _reshape_rows(self, node: Node, shape: Shape) -> None:
        """Replace a layer that reshapes the whole array by one that reshapes rows, if it leaves rows as they are."""
        function = self.functions[node.layer or ""]
        if isinstance(function, functions.ToShape) and function.shape[:1] == (-1,) and None not in shape[1:]:
            row = function.shape[1:]
            if math.prod(row) == math.prod(shape[1:]):  # type: ignore[arg-type]
                self.functions[node.layer or ""] = functions.Flatten() if len(row) == 1 else functions.Reshape(row)

    def _ancestors(self, name: str) -> list[str]:
        """Return the value, the input of the layer that makes it, and so on, while nothing else uses the values."""
        names = [name]
        while True:
            node = self.producers.get(name)
            if node is None or node.layer is None or len(node.inputs) > 1 or not self._is_in_chain(name):
                return names
            name = node.inputs[0]
            names.append(name)

    def _is_in_chain(self, name: str) -> bool:
        return self.is_used_once(name) and len([y for y in self.producers[name].outputs if y]) == 1

    def _make_branch(self, end: str, start: str) -> Function:
        """Return the layers from a value to another as one Function; ValueError if it is too deep for one."""
        branch: list[Function] = []
        while end != start:
            node = self.producers[end]
            branch.append(self.functions[node.layer or ""])
            end = node.inputs[0]
        branch.reverse()
        depth = max(self._depths.get(function, 1) for function in branch) + (len(branch) > 1)
        if depth > MAX_DEPTH - 2:  # it goes into a Function of the Model
            raise ValueError(f"Functions in Functions {depth} deep")
        function = branch[0] if len(branch) == 1 else Model(branch, dtype=self.reader.dtype)
        self._depths[function] = depth
        return function

    def _find_residual(self, node: Node, shapes: dict[str, Any]) -> Node | None:
        """x + f(x)."""
        for x, fx in (node.inputs, node.inputs[::-1]):
            if x != fx and x in self._ancestors(fx) and (shape := shapes.get(x)) is not None:
                try:
                    branch = self._make_branch(fx, x)
                    function = functions.Residual(branch)
                    if None in function.function.output_shape(shape)[1:] and None not in shape[1:]:
                        continue
                    function.output_shape(shape)
                except ValueError:
                    continue  # it is broadcast, or too deep
                self._depths[function] = self._depths[branch] + 1
                return self.layer(node, function, [x])
        return None

    def _find_parallel(self, node: Node) -> Node | None:
        """f(x) beside g(x)."""
        lines = [self._ancestors(name) for name in node.inputs]
        later_lines = [set(line) for line in lines[1:]]
        common = [name for name in lines[0] if all(name in line for line in later_lines)]
        if len(lines) < 2 or not common or any(line[0] == common[0] for line in lines):
            return None
        try:
            branches = [self._make_branch(line[0], common[0]) for line in lines]
        except ValueError:
            return None
        with node.translate_errors():
            function = functions.Parallel(branches, node.get("axis"))
        self._depths[function] = max(self._depths[branch] for branch in branches) + 1
        return self.layer(node, function, common[:1])

    def chain(self) -> list[Node] | None:
        """Return the nodes of the layers in order; None if the net is not only a chain of layers."""
        if len(self.reader.inputs) != 1 or len(self.reader.outputs) != 1:
            return None
        (name,) = self.reader.inputs
        nodes: list[Node] = []
        for node in self.nodes:
            if node.layer is None or node.inputs != [name] or (nodes and not self.is_used_once(name)):
                return None
            if isinstance(self.functions[node.layer], Recurrence):
                return None
            nodes.append(node)
            name = node.outputs[0]
        return nodes if [name] == self.reader.outputs and nodes else None


def _max_size(node: Node, arrays: list[np.ndarray]) -> int:
    """How many numbers a node may make of constants, unless an attribute or an input says how many."""
    if node.operator in NON_GROWING:
        return sum(a.size for a in arrays)
    if node.operator == "GatherElements":
        return arrays[1].size
    if node.operator == "Gather":
        table, places = arrays
        axis = node.get("axis", 0)
        return places.size * (table.size // max(1, table.shape[axis]))
    if node.operator == "Gemm":
        a, b = arrays[0].shape, arrays[1].shape
        return a[-1 if node.get("transA", 0) else 0] * b[0 if node.get("transB", 0) else -1]
    if node.operator == "GatherND":
        table, places = arrays
        return places.size * table.size // max(1, math.prod(table.shape[: places.shape[-1]]))
    if node.operator == "Einsum":  # it makes the products before it sums them
        lengths = {
            n: m
            for term, a in zip(einsum_terms(node), arrays, strict=False)
            for n, m in zip(term, a.shape, strict=True)
        }
        return math.prod(lengths.values())
    try:
        return math.prod(np.broadcast_shapes(*[a.shape for a in arrays]))
    except ValueError:
        return math.prod(max(1, a.size) for a in arrays)


def _declared_shape(kind: Any) -> Shape | None:
    """Return the shape of an input as a file says it, None for a length with a name; None if it says none."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return (None, *[dim.dim_value if dim.HasField("dim_value") else None for dim in list(dims)[1:]])
