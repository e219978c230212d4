"""Which nodes of a graph are layers: single ones, and groups that compute what a layer does.

First what can be computed of constants alone is (`fold`). Then `GROUPS` says, for the operator of a group's last node,
which functions look for a group, and `SINGLE`, which make a layer of one node; each returns the node that takes their
place, or None. At last, what is beside a connection becomes a Residual, and what is concatenated a Parallel.

A file may have thousands of nodes, so a replacement costs the nodes that it touches and not the graph: `makers` and
`uses` follow each replacement, and the nodes that nothing uses any more leave the list once, after each table.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from caffelite import functions as f
from caffelite.core.function import Function, Shape
from caffelite.core.modes import without_values
from caffelite.core.tensor import Tensor
from caffelite.files.structure import DEEPEST
from caffelite.model.model import Model
from caffelite.onnx.operators import NOT_WITH, ONLY, OPERATORS, Kept, Node, letters_of, window_of

#: The types of floats that models have.
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)

#: Those of indices, which are int64 in models.
INTEGERS = (TensorProto.INT32, TensorProto.INT64)

#: Operators whose results are no larger than their inputs.
NO_LARGER = {"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Concat"}


class Layers:
    """The nodes of a graph, layers among them, and the layers by name."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self.constants: dict[str, np.ndarray] = reader.constants
        self.nodes: list[Node] = reader.nodes
        self.functions: dict[str, Function] = {}
        self._weights: dict[Any, Tensor] = {}
        self._layers: dict[Any, str] = {}  # those made before, by what they were made of
        self._names: Counter[str] = Counter()  # how many layers have a name, but for the number behind it
        self._depths: dict[Function, int] = {}  # of Functions of Functions
        self._fold()
        self._integers = self._find_integers()
        self._leave_out_copies()
        for table in (GROUPS, SINGLE):
            self._replace(table)
        self._contain()
        self.functions = {node.layer: self.functions[node.layer] for node in self.nodes if node.layer is not None}

    # ---- the graph ----------------------------------------------------------------------------------------------

    def _index(self) -> None:
        """Note which node makes each value, and how often the value is used, as an output too."""
        self.makers = {name: node for node in self.nodes for name in node.outputs if name}
        self.uses = Counter([name for node in self.nodes for name in node.inputs])
        self.uses.update(self.reader.outputs)
        self.outputs = set(self.reader.outputs)

    def maker(self, name: str, operator: str) -> Node | None:
        """The node of this operator, which is no layer yet, that makes a value which nobody else uses; else None."""
        node = self.makers.get(name)
        if node is None or node.layer is not None or node.operator != operator:
            return None
        return node if self.is_used_once(name) else None

    def is_used_once(self, name: str) -> bool:
        return self.uses[name] == 1 and name not in self.outputs

    def number(self, name: str) -> float | None:
        """The constant number of this name."""
        a = self.constants.get(name)
        return a.item() if a is not None and a.size == 1 else None

    def array(self, name: str, ndim: int) -> np.ndarray | None:
        """The constant array of floats of this name and of so many axes."""
        a = self.constants.get(name)
        return a if a is not None and a.ndim == ndim and a.dtype == self.reader.dtype else None

    def row(self, name: str) -> np.ndarray | None:
        """The constant vector of this name, also as one row, which it then becomes, unless somebody else has it."""
        a = self.array(name, 2)
        if a is not None and len(a) == 1 and self.is_used_once(name):
            self.constants[name] = a[0]
        return self.array(name, 1)

    def _fold(self) -> None:
        """Compute what can be computed of constants; of weights, where these are used for nothing else."""
        self._index()
        unknown = {node: {x for x in node.inputs if x and x not in self.constants} for node in self.nodes}
        users: dict[str, list[Node]] = {}
        for node, names in unknown.items():
            for name in names:
                users.setdefault(name, []).append(node)
        #: How many nodes use a value beside one that is not computed yet.
        self._kept_by = Counter([name for node, names in unknown.items() if names for name in set(node.inputs)])
        most = 4 * sum(a.size for a in self.constants.values()) + 2**22  # numbers
        left = []
        for node in self.nodes:
            used = [name for name in node.inputs if name]
            # (Those who write files have one array for weights that are equal, and say so by Identity.)
            tied = node.operator != "Identity" and any(
                name in self.reader.weights and not self._goes_into_constants(name) for name in used
            )
            if node.operator not in OPERATORS or tied or not all(name in self.constants for name in used):
                left.append(node)
                continue
            with node.blamed():
                most -= _most_made(node, [self.constants[name] for name in used])
            if most < 0:
                raise node.refuse("makes more constants than a file of this size should")
            if not _refusal(node):
                with np.errstate(all="ignore"), node.blamed():
                    y = OPERATORS[node.operator](node, *[self.constants.get(name) for name in node.inputs])
                ys = y if isinstance(y, tuple) else (y,)
                if all(isinstance(a, np.ndarray | np.generic) for a in ys):
                    most -= sum(a.size for a in ys)
                    self._keep(node, ys, any(name in self.reader.weights for name in used))
                    for name in node.outputs:
                        for user in users.get(name, ()):
                            unknown[user].discard(name)
                            if not unknown[user]:
                                self._kept_by.subtract(set(user.inputs))
                    continue
            left.append(node)
        self.nodes = left
        self._index()

    def _keep(self, node: Node, arrays: Iterable[Any], are_weights: bool) -> None:
        for name, a in zip(node.outputs, arrays, strict=False):
            self.constants[name] = np.asarray(a)
            if are_weights and self.constants[name].dtype.kind == "f" and self.constants[name].ndim > 0:
                self.reader.weights.add(name)

    def _goes_into_constants(self, name: str) -> bool:
        """Whether a weight is used only where constants are computed."""
        return name not in self.outputs and not self._kept_by[name]

    def _find_integers(self) -> set[str]:
        """The names of what is integers or bool, lengths say, of which no layer computes anything."""
        found = {name for name, a in self.constants.items() if a.dtype.kind != "f"}
        found |= {name for name, kind in self.reader.inputs.items() if kind.tensor_type.elem_type not in FLOATS}
        for node in self.nodes:
            first = node.inputs[{"Where": 1, "CastLike": 1}.get(node.operator, 0)] if node.inputs else ""
            if node.operator == "Cast":
                is_integer = node.get("to") not in FLOATS
            elif node.operator == "ConstantOfShape":
                is_integer = "value" in node.attributes and node.attributes["value"].dtype.kind != "f"
            else:
                is_integer = node.operator in ("Shape", "Size") or first in found
            if is_integer:
                found.update(node.outputs)
        return found

    def _leave_out_copies(self) -> None:
        """Leave out nodes that pass on what they get, floats to floats of the same kind say."""
        names: dict[str, str] = {}
        indices = {k for k, kind in self.reader.inputs.items() if kind.tensor_type.elem_type in INTEGERS}
        left = []
        for node in self.nodes:
            node.inputs = [names.get(name, name) for name in node.inputs]
            to_floats = node.operator == "Cast" and node.get("to") == helper.np_dtype_to_tensor_dtype(node.dtype)
            to_indices = node.operator == "Cast" and node.get("to") in INTEGERS and node.inputs[0] in indices
            to_floats = to_floats and node.inputs[0] not in self._integers
            if node.operator in ("Identity", "ZipMap") or to_floats or to_indices:
                names[node.outputs[0]] = node.inputs[0]
            else:
                left.append(node)
        self.nodes, self.reader.outputs = left, [names.get(name, name) for name in self.reader.outputs]
        self._index()

    def _replace(self, table: dict[str, list[Callable[[Layers, Node], Node | None]]]) -> None:
        """Put layers in the place of the nodes for which the table has some.

        `nodes` are those that have been looked at; what a layer needs before it is appended to them.
        """
        nodes, self.nodes = self.nodes, []
        for node in nodes:
            new = None if node.layer is not None or node.outputs[0] in self._integers else self._found(table, node)
            if new is not None:
                self._put(new, node)
            self.nodes.append(new or node)
        self._leave_out_unused()

    def _found(self, table: dict[str, list[Callable[[Layers, Node], Node | None]]], node: Node) -> Node | None:
        """The node that takes the place of this one; None if it stays."""
        for find in table.get(node.operator, ()):
            if _refusal(node):
                return None
            if (new := find(self, node)) is not None:
                return new
        return None

    def append(self, node: Node) -> None:
        """Have a node before the one that is looked at."""
        self.nodes.append(node)
        self.makers[node.outputs[0]] = node
        self.uses.update(node.inputs)

    def _put(self, new: Node, old: Node) -> None:
        """Note that a node is in the place of another one."""
        self.makers.update({name: new for name in new.outputs if name})
        self.uses.update(new.inputs)
        self._release(old)

    def _release(self, node: Node) -> None:
        """Note that a node is gone, and with it the nodes that only it used."""
        gone = [node]
        while gone:
            for name in gone.pop().inputs:
                self.uses[name] -= 1
                maker = self.makers.get(name)
                if maker is not None and not any(self.uses[y] for y in maker.outputs if y):
                    gone.append(maker)

    def _leave_out_unused(self) -> None:
        """Leave out nodes that nothing needs any more."""
        needed, nodes = set(self.reader.outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                nodes.append(node)
        self.nodes = nodes[::-1]
        self._index()

    # ---- layers -------------------------------------------------------------------------------------------------

    def weight(self, name: str, last: str | None = None, transposed: bool = False) -> Tensor:
        """The parameter that an initializer is, the same for all who use it."""
        key = name, transposed
        if key not in self._weights:
            a = self.constants[name]
            a = np.array(a.T if transposed else a, self.reader.dtype, order="C")
            self._weights[key] = Tensor(a, True, name=last or name)
        return self._weights[key]

    def layer(
        self, node: Node, make: Callable[[], Function], inputs: Sequence[str], weights: dict[str, Any] | None = None
    ) -> Node:
        """A node that applies a layer. `weights` are its parameters: names of initializers, in a tuple if transposed.

        One that is made of the same initializers as another is the same one.
        """
        weights = weights or {}
        with without_values(), node.blamed():
            function = make()
        key = (*weights.values(), repr(function) if weights else node.outputs[0])
        if key not in self._layers:
            for attribute, x in weights.items():
                name, transposed = (x[0], True) if isinstance(x, tuple) else (x, False)
                setattr(function, attribute, self.weight(name, attribute, transposed))
            self._layers[key] = self._name(node, list(weights.values()))
            self.functions[self._layers[key]] = function
        return dataclasses.replace(node, inputs=list(inputs), attributes={}, layer=self._layers[key])

    def _name(self, node: Node, weights: list[Any]) -> str:
        """The name of a layer: that of its weights, `conv1` of `conv1.weight`, or its operator's."""
        names = [x[0] if isinstance(x, tuple) else x for x in weights]
        name = names[0].rpartition(".")[0] if names else ""
        name = name or node.operator.lower()
        new = name
        while new in self.functions:
            self._names[name] += 1
            new = f"{name}_{self._names[name]}"
        return new

    # ---- Functions of Functions ---------------------------------------------------------------------------------

    def _contain(self) -> None:
        """Find what is a Residual or a Parallel, and shapes on the way."""
        shapes = {name: _shape_of(kind) for name, kind in self.reader.inputs.items()}
        for i, node in enumerate(self.nodes):
            new = None
            if node.operator == "Add" and node.layer is None:
                new = self._residual(node, shapes)
            elif node.operator == "Concat" and node.layer is None:
                new = self._parallel(node)
            if new is not None:
                self._put(new, node)
                self.nodes[i] = node = new
            if isinstance(self.functions.get(node.layer or ""), Recurrence):
                continue  # it would be applied to an array of that shape
            if node.layer is not None and (shape := shapes.get(node.inputs[0])) is not None:
                self._of_rows(node, shape)
                try:
                    shapes[node.outputs[0]] = self.functions[node.layer].output_shape(shape)
                except ValueError:
                    continue
        self._leave_out_unused()

    def _of_rows(self, node: Node, shape: Shape) -> None:
        """Where a layer puts all elements in another shape, and that leaves rows as they are, say so."""
        function = self.functions[node.layer or ""]
        if isinstance(function, f.ToShape) and function.shape[:1] == (-1,) and None not in shape[1:]:
            row = function.shape[1:]
            if math.prod(row) == math.prod(shape[1:]):  # type: ignore[arg-type]
                self.functions[node.layer or ""] = f.Flatten() if len(row) == 1 else f.Reshape(row)

    def _ancestors(self, name: str) -> list[str]:
        """The value, that of which a layer makes it, if nothing else uses it, and so on."""
        found = [name]
        while True:
            node = self.makers.get(name)
            if node is None or node.layer is None or len(node.inputs) > 1 or not self._only_of_layers(name):
                return found
            name = node.inputs[0]
            found.append(name)

    def _only_of_layers(self, name: str) -> bool:
        return self.is_used_once(name) and len([y for y in self.makers[name].outputs if y]) == 1

    def _branch(self, end: str, start: str) -> Function:
        """The layers from a value to another as one Function; ValueError if it is too deep for a Function of it."""
        found: list[Function] = []
        while end != start:
            node = self.makers[end]
            found.append(self.functions[node.layer or ""])
            end = node.inputs[0]
        found.reverse()
        depth = max(self._depths.get(function, 1) for function in found) + (len(found) > 1)
        if depth > DEEPEST - 2:  # it goes into a Function of the Model
            raise ValueError(f"Functions in Functions {depth} deep")
        function = found[0] if len(found) == 1 else Model(found, dtype=self.reader.dtype)
        self._depths[function] = depth
        return function

    def _residual(self, node: Node, shapes: dict[str, Any]) -> Node | None:
        """x + f(x)."""
        for x, fx in (node.inputs, node.inputs[::-1]):
            if x != fx and x in self._ancestors(fx) and (shape := shapes.get(x)) is not None:
                try:
                    branch = self._branch(fx, x)
                    function = f.Residual(branch)
                    if None in function.function.output_shape(shape)[1:] and None not in shape[1:]:
                        continue
                    function.output_shape(shape)
                except ValueError:
                    continue  # it is broadcast, or too deep
                self._depths[function] = self._depths[branch] + 1
                return self.layer(node, functools.partial(_given, function), [x])
        return None

    def _parallel(self, node: Node) -> Node | None:
        """f(x) beside g(x)."""
        lines = [self._ancestors(name) for name in node.inputs]
        others = [set(line) for line in lines[1:]]
        common = [name for name in lines[0] if all(name in line for line in others)]
        if len(lines) < 2 or not common or any(line[0] == common[0] for line in lines):
            return None
        try:
            branches = [self._branch(line[0], common[0]) for line in lines]
        except ValueError:
            return None
        with node.blamed():
            function = f.Parallel(branches, node.get("axis"))
        self._depths[function] = max(self._depths[branch] for branch in branches) + 1
        return self.layer(node, functools.partial(_given, function), common[:1])

    def in_sequence(self) -> list[Node] | None:
        """The nodes of the layers in order, if that is all there is; else None."""
        if len(self.reader.inputs) != 1 or len(self.reader.outputs) != 1:
            return None
        (name,) = self.reader.inputs
        found: list[Node] = []
        for node in self.nodes:
            if node.layer is None or node.inputs != [name] or (found and not self.is_used_once(name)):
                return None
            if isinstance(self.functions[node.layer], Recurrence):
                return None
            found.append(node)
            name = node.outputs[0]
        return found if [name] == self.reader.outputs and found else None


def _most_made(node: Node, arrays: list[np.ndarray]) -> int:
    """How many numbers a node may make of constants, where it is not asked for a number of them."""
    if node.operator in NO_LARGER:
        return sum(a.size for a in arrays)
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
            n: m for term, a in zip(letters_of(node), arrays, strict=False) for n, m in zip(term, a.shape, strict=True)
        }
        return math.prod(lengths.values())
    try:
        return math.prod(np.broadcast_shapes(*[a.shape for a in arrays]))
    except ValueError:
        return math.prod(max(1, a.size) for a in arrays)


def _given(function: Function) -> Function:
    return function


def _refusal(node: Node) -> bool:
    """Whether the node has an attribute that caffelite has not."""
    return any(
        name in node.attributes and node.attributes[name] not in values
        for name, values in ONLY.get(node.operator, {}).items()
    ) or any(name in node.attributes for name in NOT_WITH.get(node.operator, ()))


def _shape_of(kind: Any) -> Shape | None:
    """The shape of an input as a file says it, None for a length with a name; None if it says none."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return (None, *[dim.dim_value if dim.HasField("dim_value") else None for dim in list(dims)[1:]])


# ---- groups ---------------------------------------------------------------------------------------------------------


def linear_of_product(g: Layers, node: Node) -> Node | None:
    """x W + b."""
    for product, bias in (node.inputs, node.inputs[::-1]):
        b, matmul = g.row(bias), g.maker(product, "MatMul")
        if b is None or matmul is None:
            continue
        x, w = matmul.inputs
        weight = g.array(w, 2)
        if weight is not None and x not in g.constants and b.shape == weight.shape[1:]:
            return g.layer(node, functools.partial(f.Linear, *weight.shape), [x], {"weight": w, "bias": bias})
    return None


MOST_FACTORS = 4  # of 0.044715 x³


def factors(g: Layers, *names: str) -> list[str]:
    """The values whose product this is, or the product of these; a longer product is not taken apart to its end."""
    found: list[str] = []
    left = list(names)
    while left:
        name = left.pop(0)
        node = g.maker(name, "Mul")
        if node is None or len(found) + len(left) >= MOST_FACTORS:
            found.append(name)
        else:
            left[:0] = node.inputs
    return found


def without(names: list[str], x: str) -> list[str]:
    names = list(names)
    if x in names:
        names.remove(x)
    return names


def silu(g: Layers, node: Node) -> Node | None:
    """x σ(x)."""
    for x, s in (node.inputs, node.inputs[::-1]):
        sigmoid = g.maker(s, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs == [x]:
            return g.layer(node, f.SiLU, [x])
    return None


def gelu(g: Layers, node: Node) -> Node | None:
    """x (1 + erf(x / √2)) / 2, or with tanh(√(2/π) (x + 0.044715 x³)) for the error function, in any order."""
    parts = factors(g, *node.inputs)
    halves = [name for name in parts if _is(g.number(name), 0.5)]
    sums = [(name, y) for name in parts if (y := _plus_one(g, name)) is not None]
    if len(parts) != 3 or len(halves) != 1 or len(sums) != 1:
        return None
    (x,) = without(without(parts, halves[0]), sums[0][0])
    inner = sums[0][1]
    if (erf := g.maker(inner, "Erf")) is not None and _is_scaled(g, erf.inputs[0], x, math.sqrt(0.5)):
        return g.layer(node, f.GELU, [x])
    if (tanh := g.maker(inner, "Tanh")) is not None:
        scaled = factors(g, tanh.inputs[0])
        constant = [name for name in scaled if _is(g.number(name), math.sqrt(2 / math.pi))]
        if len(scaled) == 2 and len(constant) == 1 and _with_cube(g, without(scaled, constant[0])[0], x):
            return g.layer(node, lambda: f.GELU(approximate=True), [x])
    return None


def _is(number: float | None, expected: float) -> bool:
    return number is not None and math.isclose(number, expected, rel_tol=1e-5)


def _plus_one(g: Layers, name: str) -> str | None:
    """y of y + 1."""
    node = g.maker(name, "Add")
    for y, one in () if node is None else (node.inputs, node.inputs[::-1]):
        if _is(g.number(one), 1):
            return y
    return None


def _is_scaled(g: Layers, name: str, x: str, scale: float) -> bool:
    """Whether the value is x times the scale."""
    if (quotient := g.maker(name, "Div")) is not None:
        return quotient.inputs[0] == x and _is(g.number(quotient.inputs[1]), 1 / scale)
    rest = without(factors(g, name), x)
    return len(rest) == 1 and _is(g.number(rest[0]), scale)


def _with_cube(g: Layers, name: str, x: str) -> bool:
    """Whether the value is x + 0.044715 x³."""
    node = g.maker(name, "Add")
    if node is None or x not in node.inputs:
        return False
    parts = factors(g, without(node.inputs, x)[0])
    constant = [part for part in parts if _is(g.number(part), 0.044715)]
    rest = without(parts, constant[0]) if constant else []
    if rest == [x] * 3:
        return True
    cube = g.maker(rest[0], "Pow") if len(rest) == 1 else None
    return cube is not None and cube.inputs[0] == x and _is(g.number(cube.inputs[1]), 3)


def integers(g: Layers, node: Node, attribute: str) -> list[int] | None:
    """What a node has as an attribute, or as its second input if that is a constant."""
    if len(node.inputs) < 2 or not node.inputs[1]:
        return node.get(attribute)
    a = g.constants.get(node.inputs[1])
    return None if a is None or a.ndim != 1 else a.tolist()


def global_pool(g: Layers, node: Node) -> Node | None:
    """The means of channels, without the axes that they leave."""
    pool = g.maker(node.inputs[0], "GlobalAveragePool")
    if pool is None:
        return None
    if node.operator == "Flatten":
        drops = node.get("axis", 1) == 1
    elif node.operator == "Reshape":
        drops = integers(g, node, "shape") == [0, -1]
    else:
        drops = sorted(integers(g, node, "axes") or []) in ([2], [2, 3], [-1], [-2, -1])
    return g.layer(node, f.GlobalAvgPool, pool.inputs[:1]) if drops else None


def positional_encoding(g: Layers, node: Node) -> Node | None:
    """x with a table of waves added."""
    for x, table in (node.inputs, node.inputs[::-1]):
        a = g.constants.get(table)
        if a is None or a.ndim not in (2, 3) or a.dtype != g.reader.dtype or a.shape[:-2] not in ((), (1,)):
            continue
        if a.size == 0:
            continue
        length, size = a.shape[-2:]
        function = f.PositionalEncoding(size, length)
        if x not in g.constants and np.allclose(function.table(a.dtype), a, atol=1e-6):
            return g.layer(node, functools.partial(_given, function), [x])
    return None


# ---- recurrent layers -----------------------------------------------------------------------------------------------

#: The layer of an operator, and its gates in the operator's order.
RECURRENT: dict[str, tuple[Any, list[int]]] = {
    "RNN": (f.RNN, [0]),
    "GRU": (f.GRU, [1, 0, 2]),
    "LSTM": (f.LSTM, [0, 3, 1, 2]),
}


class Recurrence(Model):
    """A recurrent layer as ONNX has it: x (length, n, features) → y (length, directions, n, hidden), and last states
    (directions, n, hidden); lengths and states may be given. The second of two directions, or the only one where
    `backward`, goes from the last step to the first.
    """

    def __init__(self, layers: list[Any], backward: bool, dtype: Any) -> None:
        super().__init__(dtype=dtype)
        self.layers, self.backward_alone, self.kept = layers, backward, Kept()

    def arguments(self) -> dict[str, Any]:
        return {"layers": self.layers, "backward": self.backward_alone, "dtype": self.dtype}

    def call(self, x: Any, lengths: Any = None, *states: Any) -> Any:
        x = x.transpose(1, 0, 2)
        found = []
        for i, layer in enumerate(self.layers):
            turned = self.backward_alone or i == 1
            zero = self.kept(np.zeros((len(x), layer.hidden), x.dtype))
            given = [h[i] for h in states] or [zero for _ in layer.state_names]
            y, last = layer(x[:, ::-1] if turned else x, *given, lengths=lengths)
            found.append((y[:, ::-1] if turned else y, *(last if isinstance(last, tuple) else (last,))))
        y, *last = [f.stack(parts) for parts in zip(*found, strict=True)]
        return (y.transpose(2, 0, 1, 3), *last)


def _layers_of(g: Layers, node: Node) -> list[Any] | None:
    """The recurrent layers that a node is, one for each direction; None if its weights are no constants."""
    kind, order = RECURRENT[node.operator]
    w, r = (g.array(name, 3) for name in node.inputs[1:3])
    if w is None or r is None or any(node.inputs[7:8]) or any(node.outputs[3:]):
        return None
    directions, rows, features = w.shape
    hidden = r.shape[2]
    given = g.array(node.inputs[3], 2) if len(node.inputs) > 3 and node.inputs[3] else None
    if len(node.inputs) > 3 and node.inputs[3] and given is None:
        return None
    biases = np.zeros((directions, 2 * rows), w.dtype) if given is None else given
    if (
        r.shape != (directions, len(order) * hidden, hidden)
        or rows != len(order) * hidden
        or biases.shape != (directions, 2 * rows)
    ):
        raise node.refuse(f"has weights of shapes {w.shape}, {r.shape} and {biases.shape}")
    direction = node.get("direction", "forward")
    if directions != (2 if direction == "bidirectional" else 1):
        raise node.refuse(f"goes {direction}, and has weights for {directions} directions")
    if node.get("hidden_size", hidden) != hidden:
        raise node.refuse(f"has hidden_size {node.get('hidden_size')}, and weights of shape {r.shape}")
    layers = []
    for i in range(directions):
        with without_values(), node.blamed():
            layer = kind(features, hidden, sequences=True)
        parts = {"weight_ih": w[i], "weight_hh": r[i], "bias_ih": biases[i, :rows], "bias_hh": biases[i, rows:]}
        for name, a in parts.items():
            gates = np.split(a, len(order))
            ordered = np.concatenate([gates[order.index(gate)] for gate in range(len(order))])
            setattr(layer, name, Tensor(ordered.astype(g.reader.dtype), True, name=name))
        layers.append(layer)
    return layers


def _is_zero(g: Layers, name: str) -> bool:
    """Whether a value is known to be 0."""
    maker = g.makers.get(name)
    while maker is not None and maker.operator in ("Expand", "Slice", "Unsqueeze", "Reshape"):
        name = maker.inputs[0]
        maker = g.makers.get(name)
    if maker is not None and maker.operator == "ConstantOfShape":
        return not np.any(maker.get("value", 0))
    return not name or (name in g.constants and not g.constants[name].any())


def _alone(g: Layers, name: str, output: int) -> tuple[Node, list[Any]] | None:
    """The recurrent node of which this output alone is used, where it goes forward, from states of 0, and through
    sequences of one length whose steps another node has put first; and its layers.
    """
    node = g.makers.get(name)
    if node is None or node.operator not in RECURRENT or _refusal(node) or not g.is_used_once(name):
        return None
    if node.operator == "GRU" and not node.get("linear_before_reset", 0):
        return None
    used = [i for i, y in enumerate(node.outputs) if y and g.uses[y]]
    before = g.maker(node.inputs[0], "Transpose")
    if used != [output] or before is None or before.get("perm") != [1, 0, 2] or any(node.inputs[4:5]):
        return None
    if node.get("direction", "forward") != "forward" or not all(_is_zero(g, h) for h in node.inputs[5:7]):
        return None
    layers = _layers_of(g, node)
    return None if layers is None else (before, layers)


def recurrent_sequences(g: Layers, node: Node) -> Node | None:
    """All states of a recurrent layer, in caffelite's order of axes."""
    squeeze = g.maker(node.inputs[0], "Squeeze")
    if node.get("perm") != [1, 0, 2] or squeeze is None or integers(g, squeeze, "axes") != [1]:
        return None
    found = _alone(g, squeeze.inputs[0], 0)
    return found and g.layer(node, lambda: found[1][0], found[0].inputs)


def recurrent_last(g: Layers, node: Node) -> Node | None:
    """The last state of a recurrent layer."""
    found = _alone(g, node.inputs[0], 1) if integers(g, node, "axes") == [0] else None
    if found is None:
        return None
    (layer,) = found[1]
    layer.sequences = False
    return g.layer(node, lambda: layer, found[0].inputs)


def recurrence(g: Layers, node: Node) -> Node | None:
    """A recurrent layer in ONNX's order of axes."""
    if node.operator == "GRU" and not node.get("linear_before_reset", 0):
        raise node.refuse("resets before the product (linear_before_reset = 0), which caffelite has not")
    layers = _layers_of(g, node)
    if layers is None:
        raise node.refuse("has weights that are no constants, or peepholes")
    lengths, *states = [*node.inputs[4:], *[""] * 3][:3]
    states = states[: len(layers[0].state_names)]
    if lengths and node.get("direction", "forward") != "forward":
        raise node.refuse("goes backward through sequences of different lengths")
    if all(_is_zero(g, h) for h in states):
        states = []
    if not all(states):
        raise node.refuse("has one state, and not the other")
    turned = node.get("direction") == "reverse"
    inputs = [node.inputs[0], lengths, *states] if states or lengths else node.inputs[:1]
    return g.layer(node, lambda: Recurrence(layers, turned, g.reader.dtype), inputs)


# ---- single nodes ---------------------------------------------------------------------------------------------------


def simple(make: Callable[[Node], Function]) -> Callable[[Layers, Node], Node | None]:
    """A layer without parameters of one input."""

    def found(g: Layers, node: Node) -> Node | None:
        x, *others = node.inputs
        return None if x in g.constants or any(others) else g.layer(node, lambda: make(node), [x])

    return found


def along_axis(kind: Any) -> Callable[[Layers, Node], Node | None]:
    def found(g: Layers, node: Node) -> Node | None:
        if node.version < 13 and node.get("axis", 1) != -1:
            return None
        return simple(lambda node: kind(node.get("axis", -1)))(g, node)

    return found


def linear(g: Layers, node: Node) -> Node | None:
    """x W."""
    x, w = node.inputs
    weight = g.array(w, 2)
    if weight is None or x in g.constants:
        return None
    rows, columns = weight.shape
    return g.layer(node, lambda: f.Linear(rows, columns, False), [x], {"weight": w})


def linear_of_gemm(g: Layers, node: Node) -> Node | None:
    """x W + b, or with Wᵀ."""
    x, w, *biases = node.inputs
    weight = g.array(w, 2)
    bias = g.array(biases[0], 1) if any(biases) else None
    if weight is None or x in g.constants or node.get("transA", 0) or (bias is None and any(biases)):
        return None
    if node.get("alpha", 1.0) != 1 or (bias is not None and node.get("beta", 1.0) != 1):
        return None
    transposed = bool(node.get("transB", 0))
    rows, columns = weight.shape[::-1] if transposed else weight.shape
    if bias is not None and bias.shape != (columns,):
        return None
    weights: dict[str, Any] = {"weight": (w,) if transposed else w}
    if bias is not None:
        weights["bias"] = biases[0]
    return g.layer(node, lambda: f.Linear(rows, columns, bias is not None), [x], weights)


def convolution(g: Layers, node: Node) -> Node | None:
    """A convolution of images or series; pads that are not as many on both sides are put around x before."""
    x, w, *biases = node.inputs
    a = g.constants.get(w)
    if (
        a is None
        or a.ndim not in (3, 4)
        or a.dtype != g.reader.dtype
        or (any(biases) and g.array(biases[0], 1) is None)
    ):
        raise node.refuse("has weights that are no constants, or no images or series")
    k, groups = list(a.shape[2:]), node.get("group", 1)
    node.attributes["kernel_shape"] = k
    stride, dilation, pads = window_of(node, len(k))
    before, after = pads[: len(k)], pads[len(k) :]
    padding: Any = before
    total = [d * (n - 1) for d, n in zip(dilation, k, strict=True)]
    auto = node.get("auto_pad", "NOTSET")
    if auto == "NOTSET" and before != after:
        same = all(p == n // 2 and q == n - n // 2 for p, q, n in zip(before, after, total, strict=True))
        padding = "same" if same and set(stride) == {1} else None
    elif auto == "SAME_UPPER" and set(stride) == {1}:
        padding = "same"
    elif auto == "VALID":
        padding = 0
    elif auto != "NOTSET":
        padding = None
    if padding is None:
        padded = f"{node.outputs[0]} padded"
        pad = Node("PadWindows", node.name, [x], [padded], dict(node.attributes), node.version, node.dtype)
        g.append(pad)
        x, padding = padded, 0
    kind: Any = f.Conv1d if len(k) == 1 else f.Conv2d
    weights = {"weight": w, **({"bias": biases[0]} if any(biases) else {})}
    return g.layer(
        node,
        lambda: kind(a.shape[1] * groups, a.shape[0], k, stride, padding, dilation, groups, bias=any(biases)),
        [x],
        weights,
    )


def transposed_convolution(g: Layers, node: Node) -> Node | None:
    x, w, *biases = node.inputs
    a = g.array(w, 4)
    if a is None or (any(biases) and g.array(biases[0], 1) is None):
        raise node.refuse("has weights that are no constants, or not of images")
    groups, none = node.get("group", 1), [0, 0]
    stride, dilation, pads = window_of(node, 2)
    more = node.get("output_padding") or none
    if len(more) != 2:
        raise node.refuse(f"has output_padding = {more}, expected 2 numbers")
    if node.get("auto_pad") == "VALID":
        pads = [0] * 4
    before, after = pads[:2], pads[2:]
    more = [m + p - q for m, p, q in zip(more, before, after, strict=True)]
    if min(more) < 0:
        raise node.refuse(f"cuts {after} pixels behind and {before} before, which caffelite has not")
    weights = {"weight": w, **({"bias": biases[0]} if any(biases) else {})}
    sizes = a.shape[0], a.shape[1] * groups, a.shape[2:], stride, before, more, groups
    return g.layer(node, lambda: f.ConvTranspose2d(*sizes, bias=any(biases), dilation=dilation), [x], weights)


def batch_norm(g: Layers, node: Node) -> Node | None:
    x, *others = node.inputs
    arrays = [g.array(name, 1) for name in others]
    if any(a is None for a in arrays):
        raise node.refuse("has parameters that are no constants")
    size = len(arrays[0])  # type: ignore[arg-type]
    with node.blamed():
        layer = f.BatchNorm(size, round(1 - node.get("momentum", 0.9), 6), _shortest(node.get("epsilon", 1e-5)))
    if any(a.shape != (size,) for a in arrays):  # type: ignore[union-attr]
        raise node.refuse("has parameters of different lengths")
    layer.mean, layer.variance = (np.array(a) for a in arrays[2:])
    return g.layer(node, lambda: layer, [x], {"scale": others[0], "shift": others[1]})


def layer_norm(g: Layers, node: Node) -> Node | None:
    x, scale, *shifts = node.inputs
    a, shift = g.array(scale, 1), g.array(shifts[0], 1) if any(shifts) else None
    if a is None or (any(shifts) and shift is None) or node.get("axis", -1) != -1 or any(node.outputs[1:]):
        return None
    weights = {"scale": scale, **({"shift": shifts[0]} if any(shifts) else {})}
    return g.layer(
        node, lambda: f.LayerNorm(len(a), _shortest(node.get("epsilon", 1e-5)), bias=any(shifts)), [x], weights
    )


def group_norm(g: Layers, node: Node) -> Node | None:
    """Since opset 21; before, each group had one scale."""
    x, scale, shift = node.inputs
    a, b = g.array(scale, 1), g.array(shift, 1)
    if a is None or b is None or a.shape != b.shape or node.version < 21:
        return None
    with node.blamed():
        layer = f.GroupNorm(node.get("num_groups"), len(a), _shortest(node.get("epsilon", 1e-5)))
    return g.layer(node, lambda: layer, [x], {"scale": scale, "shift": shift})


def embedding(g: Layers, node: Node) -> Node | None:
    w, places = node.inputs
    a = g.array(w, 2)
    if a is None or node.get("axis", 0) or (places not in g.reader.inputs and places not in g.makers):
        return None
    return g.layer(node, lambda: f.Embedding(*a.shape), [_not_negative(g, places, len(a))], {"weight": w})


def _not_negative(g: Layers, places: str, count: int) -> str:
    """Of where(i < 0, i + count, i), by which Keras counts indices from the end, i, which is not negative."""
    where = g.makers.get(places)
    if where is None or where.operator != "Where":
        return places
    condition, wrapped, i = where.inputs
    less, add = g.makers.get(condition), g.makers.get(wrapped)
    if less is None or add is None or (less.operator, add.operator) != ("Less", "Add"):
        return places
    is_wrapped = less.inputs[0] == i and g.number(less.inputs[1]) == 0 and i in add.inputs
    return i if is_wrapped and count in map(g.number, add.inputs) else places


def leaky_relu(g: Layers, node: Node) -> Node | None:
    """A PRelu whose slope is one number, and not learned."""
    x, slope = node.inputs
    number = None if slope in g.reader.weights else g.number(slope)
    if number is None or not 0 <= number < math.inf or x in g.constants or g.constants[slope].ndim > 0:
        return None
    return g.layer(node, lambda: f.LeakyReLU(number), [x])


def dropout(g: Layers, node: Node) -> Node | None:
    ratio = g.number(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else node.get("ratio", 0.5)
    return None if ratio is None else g.layer(node, lambda: f.Dropout(_shortest(ratio)), node.inputs[:1])


def reshape(g: Layers, node: Node) -> Node | None:
    lengths = integers(g, node, "shape")
    if lengths is None or node.inputs[0] in g.constants or 0 in lengths[1 - node.get("allowzero", 0) :]:
        return None
    if lengths[:1] == [0] and lengths.count(-1) < 2:
        return g.layer(node, lambda: f.Flatten() if lengths == [0, -1] else f.Reshape(lengths[1:]), node.inputs[:1])
    return g.layer(node, lambda: f.ToShape(*lengths), node.inputs[:1])


def pool(*kinds: Any) -> Callable[[Layers, Node], Node | None]:
    """A pool whose pads are as many on both sides, and as caffelite counts them."""

    def found(g: Layers, node: Node) -> Node | None:
        window = node.get("kernel_shape") or []
        strides, _, pads = window_of(node, len(window))
        before, after = pads[: len(window)], pads[len(window) :]
        counts = node.operator == "MaxPool" or not any(pads) or node.get("count_include_pad", 0)
        fits = before == after and all(2 * p <= k for p, k in zip(before, window, strict=True))
        if len(window) not in (1, 2):
            raise node.refuse("is no pool of images or series")
        if (
            not counts
            or not fits
            or node.get("ceil_mode", 0)
            or node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        ):
            return None
        kind = kinds[len(window) - 1]
        return g.layer(node, lambda: kind(window, strides, before), node.inputs)

    return found


def upsample(g: Layers, node: Node) -> Node | None:
    """Each element repeated in a block."""
    name = node.inputs[1] if node.operator == "Upsample" else [*node.inputs, "", "", ""][2]
    scales = g.constants[name].tolist() if name in g.constants else node.get("scales")
    if not scales or len(scales) not in (3, 4) or scales[:2] != [1, 1] or any(s != int(s) or s < 1 for s in scales):
        return None
    how = node.get("coordinate_transformation_mode", "half_pixel"), node.get("nearest_mode", "round_prefer_floor")
    repeats = how in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")) or node.version < 11
    if node.get("mode", "nearest") != "nearest" or not repeats or node.get("axes"):
        return None
    factors = [int(s) for s in scales[2:]]
    return g.layer(node, lambda: f.Upsample(factors if len(factors) == 2 else factors[0]), node.inputs[:1])


Find = Callable[[Layers, Node], "Node | None"]

GROUPS: dict[str, list[Find]] = {
    "Add": [linear_of_product, positional_encoding],
    "Mul": [silu, gelu],
    "Flatten": [global_pool],
    "Reshape": [global_pool],
    "Squeeze": [recurrent_last, global_pool],
    "Transpose": [recurrent_sequences],
}

SINGLE: dict[str, list[Find]] = {
    "MatMul": [linear],
    "Gemm": [linear_of_gemm],
    "Conv": [convolution],
    "ConvTranspose": [transposed_convolution],
    "BatchNormalization": [batch_norm],
    "LayerNormalization": [layer_norm],
    "GroupNormalization": [group_norm],
    "Gather": [embedding],
    "RNN": [recurrence],
    "GRU": [recurrence],
    "LSTM": [recurrence],
    "Dropout": [dropout],
    "Reshape": [reshape],
    "Flatten": [lambda g, node: simple(lambda node: f.Flatten())(g, node) if node.get("axis", 1) == 1 else None],
    "Transpose": [simple(lambda node: f.Transpose(*(node.get("perm") or ())))],
    "MaxPool": [pool(f.MaxPool1d, f.MaxPool2d)],
    "AveragePool": [pool(f.AvgPool1d, f.AvgPool2d)],
    "Resize": [upsample],
    "Upsample": [upsample],
    "Relu": [simple(lambda node: f.ReLU())],
    "PRelu": [leaky_relu],
    "LeakyRelu": [simple(lambda node: f.LeakyReLU(_shortest(node.get("alpha", 0.01))))],
    "Elu": [simple(lambda node: f.ELU(_shortest(node.get("alpha", 1.0))))],
    "Gelu": [simple(lambda node: f.GELU(node.get("approximate", "none") == "tanh"))],
    "Softplus": [simple(lambda node: f.Softplus())],
    "Tanh": [simple(lambda node: f.Tanh())],
    "Sigmoid": [simple(lambda node: f.Sigmoid())],
    "Softmax": [along_axis(f.Softmax)],
    "LogSoftmax": [along_axis(f.LogSoftmax)],
}


def _shortest(x: float) -> float:
    """The shortest number that a float32 stands for: 0.01, and not 0.009999999776482582."""
    return float(str(np.float32(x)))
