"""A model as a list of calls of layers, and where the arrays between them lie in memory.

The arrays between layers, `Value`s, share one block of memory: a layer that can work in place does so if nobody reads
later what it overwrites, and arrays that are not needed at the same time may have the same place.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite import functions
from caffelite.c.code import HELPERS, Shape, as_comment, braced, brackets, in_double, indented, parameter
from caffelite.c.layers import IDENTITIES, LAYERS, Layer, copied
from caffelite.core.autograd import inputs_first
from caffelite.core.function import Function, formula_of, shape_text
from caffelite.core.modes import inference, mode, placeholders
from caffelite.core.recording import Recording
from caffelite.core.tables import shortened
from caffelite.core.tensor import Tensor
from caffelite.model.model import Model

MOST_SAID = 80  # characters of a Function's `repr`
LARGEST = 2**31 - 1  # what an `int` counts to
ROWS = 2  # with which a model is traced: as good as any other number, but no length that something is broadcast from


@dataclass(eq=False)
class Value:
    """An array between layers, needed from the call number `first` to the call number `last`."""

    size: int
    first: int = 0
    last: int = 0
    offset: int = 0  # in the memory that all share
    place: str = ""  # what C calls it

    def is_needed_beside(self, other: Value) -> bool:
        """Whether there is a call at which both are needed."""
        return self.first <= other.last and other.first <= self.last


Part = tuple[Any, Any]  # a value and its shape; or None and a number


class Net:
    """The layers that a model applies to a row, in order, and the values between them, from `x` to `y`."""

    def __init__(self, model: Model, shape: Shape) -> None:
        self.dtype = model.dtype
        self.number = "float" if model.dtype == np.float32 else "double"
        self.x = Value(_count(shape), place="x")
        self.values: list[Value] = []  # that layers make
        self.kept: list[Value] = []  # that calls will read which are not there yet
        self.calls: list[tuple[str, list[tuple[Value, Shape]]]] = []  # a layer's name, and its arrays as it sees them
        self.names: dict[tuple, str] = {}  # of layers, by what they were made of
        self.places: dict[tuple, str] = {}  # where Functions are first, as names say it
        self.definitions: list[str] = []
        self.used: set[str] = set()  # helpers
        self.constant_bytes = 0
        self.y, self.y_shape = self.apply(model, (), [(self.x, shape)])
        if self.y is self.x:
            self.y = self.call(model, (0,), copied(shape), [(self.x, shape)], shape)
        self.y.place = "y"
        self.memory = _arrange([value for value in self.values if value is not self.y])

    def apply(self, function: Any, place: Shape, parts: list[Part], y_shape: Any = None) -> Part:
        """The output for inputs of these shapes, and its shape; `place` says where in the model the Function is."""
        kind, (x, *_) = type(function), parts
        if isinstance(function, Model) and kind.forward is Model.forward:
            if kind.call is Model.call:
                return self.sequence(function, place, x)
            function.all_functions()
            return self.graph(function, function, place, [x])
        if kind not in LAYERS and kind not in IDENTITIES:
            if (formula := formula_of(function)) is None:
                raise TypeError(f"export: there is no C for {function!r}")
            return self.graph(function, formula, place, parts)
        if y_shape is None:
            y_shape = function.output_shape(*[(None, *shape) for _, shape in parts])[1:]
        if kind in IDENTITIES:
            return x[0], y_shape
        if kind is functions.Residual:
            parts = [x, *self.branches([function.function], place, x)]
        elif kind is functions.Parallel:
            parts = self.branches(function.functions, place, x)
        layer = LAYERS[kind](function, *[shape for _, shape in parts], y_shape)
        arrays = [part for part in parts if isinstance(part[0], Value)]
        return self.call(function, place, layer, arrays, y_shape), y_shape

    def sequence(self, model: Model, place: Shape, x: Part) -> Part:
        """What the Functions of a model make of x, one after the other."""
        for i, function in enumerate(model.functions):
            x = self.apply(function, (*place, i), [x])
        return x

    def branches(self, beside: Sequence[Function], place: Shape, x: Part) -> list[Part]:
        """What each Function makes of x; neither that nor x is written over meanwhile."""
        before = len(self.kept)
        self.kept.append(x[0])
        outputs = []
        for i, function in enumerate(beside):
            outputs.append(self.apply(function, (*place, i), [x]))
            self.kept.append(outputs[-1][0])
        del self.kept[before:]
        return outputs

    def graph(self, of: Function, call: Callable[..., Any], place: Shape, parts: list[Part]) -> Part:
        """What the `call` of a model, or the formula of a Function, makes of its inputs.

        It is known by the graph of Tensors that it makes of zeros.
        """
        given, y, numbers = traced(of, call, [shape for _, shape in parts], self.dtype)
        tensors = [tensor for tensor in inputs_first(y) if tensor.function is not None]
        uses = Counter(id(tensor) for made in tensors for tensor in made.inputs)
        found = {id(x): part for x, part in zip(given, parts, strict=True)}
        for x, (value, _) in zip(given, parts, strict=True):
            self.kept += [value] * uses[id(x)]
        for i, tensor in enumerate(tensors):
            function: Any = tensor.function
            if tensor.shape[:1] != (ROWS,) or tensor._place is not None:
                raise TypeError(f"export: there is no C for {function!r} as it is used in {of!r}")
            operands = []
            for k, part in enumerate(tensor.inputs):
                number = numbers.get((kernels.address(tensor._data), k))
                if id(part) not in found and number is None:
                    raise TypeError(f"export: there is no C for {function!r} of what is made of no row, in {of!r}")
                operands.append(found.get(id(part), (None, number)))
            for value, _ in operands:
                if value is not None:
                    self.kept.remove(value)
            found[id(tensor)] = made = self.apply(function, (*place, i), operands, tensor.shape[1:])
            self.kept += [made[0]] * uses[id(tensor)]
        return found[id(y)]

    def call(self, function: Function, place: Shape, layer: Layer, parts: list[Part], y_shape: Shape) -> Value:
        """Note a call of the layer of a Function; its y, a new value or in the place of an input."""
        inputs, shapes = [x for x, _ in parts], [*[shape for _, shape in parts], y_shape]
        free = [x for x in inputs if layer.in_place and x is not self.x and x not in self.kept]
        y = free[0] if free else Value(_count(shapes[-1]), first=len(self.calls))
        if not free:
            self.values.append(y)
        for x in (*inputs, y):
            x.last = len(self.calls)
        given = dict(zip(layer.inputs, inputs, strict=True))
        renamed = {name: "y" if x is y else next(n for n, z in given.items() if z is x) for name, x in given.items()}
        key = (*_identity(function), *layer.body, *shapes, *renamed.values())
        if key not in self.names:
            self.names[key] = self.define(function, place, layer, renamed, shapes)
        arrays = [(x, layer.inputs[name]) for name, x in given.items() if renamed[name] == name]
        self.calls.append((self.names[key], [*arrays, (y, layer.y)]))
        return y

    def define(
        self, function: Function, place: Shape, layer: Layer, renamed: dict[str, str], shapes: list[Shape]
    ) -> str:
        """Write a layer in C; its name. Inputs that are the same array, or y's, have got its name."""
        suffix = "".join(f"_{i}" for i in place)
        first = self.places.setdefault(_identity(function), suffix)  # whose weights it shares
        body = "\n".join(layer.body)
        for name, other in renamed.items():
            body = re.sub(rf"\b{name}\[", f"{other}[", body)
        for name in layer.constants:
            body = re.sub(rf"\b{name}\[", f"{name}{first}[", body)
        inputs = [f"const {parameter(name, layer.inputs[name])}" for name in renamed if renamed[name] == name]
        head = f"{type(function).__name__.lower()}{suffix}"
        what = f"{'.'.join(map(str, place))}: {shortened(repr(function), MOST_SAID)}"
        sizes = f"{', '.join(map(shape_text, shapes[:-1]))} -> {shape_text(shapes[-1])}"
        over = ", in place" if "y" in renamed.values() else ""
        self.definitions.append(f"/* {as_comment(what)}: {sizes}{over} */")
        if first == suffix:
            self.definitions += [self.constant(f"{name}{first}", array) for name, array in layer.constants.items()]
        signature = f"static void {head}({', '.join([*inputs, parameter('y', layer.y)])})"
        self.definitions.append(self.c(f"{signature}\n{{\n{indented(body)}\n}}\n"))
        return head

    def c(self, code: str) -> str:
        """C for numbers of the model's dtype, of C for `float`."""
        self.used |= {name for name in HELPERS if re.search(rf"\b{name}\(", code)}
        return code if self.number == "float" else in_double(code)

    def constant(self, name: str, array: np.ndarray) -> str:
        """The definition of an array of weights."""
        array = array.astype(self.dtype)
        self.constant_bytes += array.nbytes
        return f"static const {self.number} {name}{brackets(array.shape)} ={braced(array)};"


def traced(
    of: Function, call: Callable[..., Any], shapes: Sequence[Shape], dtype: np.dtype
) -> tuple[list[Tensor], Tensor, dict[tuple[int, int], Any]]:
    """Rows of zeros, the Tensor that a call makes of them, as in use, with its graph, and the numbers in operators.

    The numbers are by the address of what the operator makes and by which of its inputs they are. TypeError where the
    call can't be followed, as where it looks at values.
    """
    with inference(), placeholders(), kernels.Paused(), Recording() as recording, np.errstate(all="ignore"):
        mode.records_graph = True  # until the end of `inference`
        given = [Tensor(np.zeros((ROWS, *shape), dtype), requires_grad=True) for shape in shapes]
        try:
            y = call(*given)
        except Exception as error:
            how = "call" if isinstance(of, Model) else "formula"
            raise TypeError(f"export: {of!r} can't be followed through `{how}`: {error}") from error
    if isinstance(y, tuple):
        raise TypeError(f"export: the function in C has one output, and {of!r} has {len(y)}")
    if not isinstance(y, Tensor) or not y.requires_grad:
        raise TypeError(f"export: {of!r} makes {y!r} of a row, and no Tensor that depends on it")
    numbers = {
        (kernels.address(call.arrays[0]), i): array.reshape(-1)[0]
        for call in recording.entries
        if isinstance(call, kernels.RecordedCall)
        for i, array in enumerate(call.arrays[1:])
        if array is not None and array.size == 1
    }
    return given, y, numbers


def _identity(function: Function) -> tuple:
    """What two Functions share that compute the same with the same weights, copies for example."""
    return repr(function), *map(id, function.parameters()), *map(id, function.buffers().values())


def _arrange(values: list[Value]) -> int:
    """Give values places in one block of memory, the largest first, each the first that is free. The block's size."""
    placed: list[Value] = []
    for value in sorted(values, key=lambda value: -value.size):
        for other in sorted(placed, key=lambda other: other.offset):
            if other.is_needed_beside(value) and value.offset + value.size > other.offset:
                value.offset = max(value.offset, other.offset + other.size)
        value.place = f"memory + {value.offset}" if value.offset else "memory"
        placed.append(value)
    return max([value.offset + value.size for value in placed], default=0)


def _count(shape: Shape) -> int:
    """How many numbers an array of this shape has; ValueError for more than a loop in C counts."""
    count = math.prod(shape)
    if not 0 < count <= LARGEST:
        raise ValueError(f"export: arrays have 1 to {LARGEST:,} numbers, got shape {shape}")
    return count
