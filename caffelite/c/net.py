"""A model as a list of calls of layers, and where the arrays between them lie in memory.

The arrays between layers, `Value`s, share one block of memory. A layer that can work in place does so if nobody reads
later what it overwrites. Arrays that are not needed at the same time may have the same place.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caffelite import functions
from caffelite._support.text_table import shorten
from caffelite.c import layers, layers_sequence, operators
from caffelite.c.emit import (
    HELPERS,
    Shape,
    as_comment,
    as_pointer,
    brackets,
    defined,
    in_double,
    in_lines,
    indented,
    parameter,
)
from caffelite.c.int8 import Rounding, rounding
from caffelite.c.layers import COMPOSITES, IDENTITIES, Layer, Part, copied
from caffelite.core.function import Function, format_shape
from caffelite.files.state import state_arrays
from caffelite.model.export_graph import (
    Application,
    InputColumns,
    Constant,
    Cast,
    ModelInput,
    ExportGraph,
    Lengths,
    N,
    Result,
    SymbolicLength,
    StoredArray,
    trace_graph,
    merge_constants,
)
from caffelite.model.model import Model
from caffelite.model.tracing import unwrap_tensor, original_class

MOST_SAID = 80  # characters of a Function's `repr`
LARGEST = 2**31 - 1  # the largest `int`


#: Functions that write the layer of a Function, of it, the shapes of its inputs and the shape of its output.
LAYERS: dict[type, Callable[..., Layer]] = layers.LAYERS | layers_sequence.LAYERS | operators.LAYERS

#: Functions that write the calls of a Function that is several layers, and return what it makes.
STACKS: dict[type, Callable[..., list[Part]]] = layers_sequence.STACKS | operators.STACKS

TYPES = {
    "f": "float",
    "i": layers_sequence.INDEX,
    "b": layers_sequence.MASK,
}  # in C, of inputs by the kind of their dtype


@dataclass(eq=False)
class Value:
    """An array between layers, needed from the call number `first` to the call number `last`."""

    size: int
    type: str = "float"  # of the numbers; other ones are in inputs
    first: int = 0
    last: int = 0
    offset: int = 0  # in the memory that all share
    place: str = ""  # its name in C; at first only inputs and constants have one

    def is_needed_beside(self, other: Value) -> bool:
        """Whether there is a call at which both are needed."""
        return self.first <= other.last and other.first <= self.last


@dataclass
class Argument:
    """An array that a call passes to a layer: how the layer sees it, and whether it writes there."""

    value: Value
    seen: Shape
    is_written: bool


class Net:
    """The layers that a model applies to a row, in order, and the values between them, from `inputs` to `outputs`."""

    def __init__(self, model: Model, shapes: Sequence[Shape], quantize: bool = False) -> None:
        self.dtype = model.dtype
        self.number = "float" if model.dtype == np.float32 else "double"
        self.layers = LAYERS | layers.IN_INT8 if quantize else LAYERS
        self.values: list[Value] = []  # that layers make
        self.calls: list[tuple[str, list[Argument]]] = []  # a layer's name, and its arrays as it sees them
        self.names: dict[tuple, str] = {}  # of layers, by what they were made of
        self.places: dict[tuple, str] = {}  # the place of each Function's first use, as names say it
        self.definitions: list[str] = []
        self.used: set[str] = set()  # helpers
        self.constants: dict[tuple, str] = {}  # names of arrays outside of layers, by their bytes
        self.constant_bytes = 0
        sizes = [_count(shape) for shape in shapes]
        self.graph = _graph(model, shapes)
        self.leaves, outputs = self.graph.leaves(), self.graph.outputs
        self.written = _made_of_rows(self.leaves) & _needed(self.leaves, outputs)  # the numbers of applications
        used = [*outputs, *[x for a in self.leaves if a.number in self.written for x in a.inputs]]
        self.uses = Counter([source for source in used if _is_value(source)])
        self.parts: dict[Any, Part] = {}  # values, by where they come from
        self.kept: list[Value] = []  # values that will be read, each as often as it will be
        self.single = len(shapes) == len(outputs) == 1
        self.inputs: list[Part] = []
        for i, (shape, size, dtype) in enumerate(zip(shapes, sizes, self.graph.dtypes, strict=True)):
            value = Value(size, TYPES[dtype.kind], place="x" if self.single else f"in_{i + 1}")
            self.inputs.append((value, shape))
            self.made(ModelInput(i), self.inputs[-1])
        self.follow(self.graph.applications, (), model)
        self.outputs: list[Part] = []
        for i, source in enumerate(outputs):
            self.outputs.append(self.output(source, model, i))
            self.outputs[-1][0].place = "y" if self.single else f"out_{i + 1}"
        of_others = [value for value, _ in self.outputs]
        self.memory = _arrange([value for value in self.values if value not in of_others])
        self.rounding: Rounding | None = rounding(self.graph) if quantize else None

    def output(self, source: Any, model: Model, number: int) -> Part:
        """Return the value from this source, in an array of its own."""
        if not _is_value(source) or source not in self.parts:
            raise TypeError(f"export: an output of {model!r} does not depend on the row")
        value, shape = self.parts[source]
        if value.place:  # an input, or an output before
            value, *_ = self.call(functions.ToShape(-1, *shape), (number,), copied(shape), [(value, shape)], shape)
        return value, shape

    def made(self, source: Any, part: Part) -> None:
        """Note what comes from there. It is kept as long as it is read."""
        self.parts[source] = part
        self.kept += [part[0]] * self.uses[source]

    # ---- applications -------------------------------------------------------------------------------------------

    def follow(self, applications: list[Application], place: Shape, of: Function) -> None:
        """Write the applications in a Function that is followed; `place` says where in the model the Function is.

        In a sequence, the place of an application is the Function's place. Elsewhere it is its number among the
        applications that are written.
        """
        if not (isinstance(of, Model) and of.is_sequence()):
            applications = [a for a in _without_models(applications) if self.is_written(a)]
        for i, application in enumerate(applications):
            self.apply(application, (*place, i), of)

    def is_written(self, application: Application) -> bool:
        if application.inner is None:
            return application.number in self.written
        return any(map(self.is_written, application.inner))

    def apply(self, a: Application, place: Shape, of: Function) -> None:
        """Write an application, in a Function that is followed."""
        if a.inner is not None and a.kind in COMPOSITES:
            *branches, last = a.inner
            held = [self.parts[source][0] for source in a.inputs if _is_value(source)]  # no branch works in their place
            self.kept += held
            for i, branch in enumerate(branches):
                self.apply(branch, (*place, i), of)
            for value in held:
                self.kept.remove(value)
            self.write(last, a, COMPOSITES[a.kind], place, self.operands(last, of))
        elif a.inner is not None:
            self.follow(a.inner, place, a.function)
        elif self.is_written(a):
            if any(0 in shape for shape in a.shapes):
                raise ValueError(f"export: {a.function!r} makes an array without elements, as it is used in {of!r}")
            if not all(map(_is_of_rows, a.shapes)) or (len(a.shapes) > 1 and a.kind not in STACKS):
                raise TypeError(f"export: there is no C for {a.function!r} as it is used in {of!r}")
            if a.kind in STACKS:
                self.write_stack(a, place, of)
            elif a.kind in self.layers:
                self.write(a, a, self.layers[a.kind], place, self.operands(a, of))
            elif a.kind in IDENTITIES:
                self.made(Result(a.number, 0), (self.operands(a, of)[0][0], a.shapes[0][1:]))
            else:
                raise TypeError(f"export: there is no C for {a.function!r}")

    def write(self, a: Application, of: Application, layer_of: Any, place: Shape, operands: list[Part]) -> None:
        """Write a call of the layer of a Function, which has the result of application `a`."""
        shape: Any = a.shapes[0][1:]
        layer = layer_of(of.function, *[seen for _, seen in operands], shape)
        arrays = [part for part in operands if isinstance(part[0], Value)]
        self.made(Result(a.number, 0), (self.call(of.function, place, layer, arrays, shape)[0], shape))

    def write_stack(self, a: Application, place: Shape, of: Function) -> None:
        """Write the calls of a Function that is several layers."""

        def write(f: Any, *parts: Part, shape: Shape, by: Any = None, place_in: Shape = ()) -> list[Part]:
            layer_of = by or self.layers.get(original_class(f))
            if layer_of is None:
                raise TypeError(f"export: there is no C for {f!r}")
            layer = layer_of(f, *[seen for _, seen in parts], shape)
            y, *own = self.call(f, (*place, *place_in), layer, [*parts], shape)
            return [(y, shape), *zip(own, layer.own.values(), strict=True)]

        operands = self.operands(a, of)
        held = [value for value, _ in operands if value is not None]  # no call works in their place
        self.kept += held
        for i, part in enumerate(STACKS[a.kind](a.function, write, *operands)):
            self.made(Result(a.number, i), part)
        for value in held:
            self.kept.remove(value)

    def operands(self, a: Application, of: Function) -> list[Part]:
        """Return the inputs of a Function. They are read now, and no longer kept for it."""
        found = [self.part(source, a, of) for source in a.inputs]
        for source, (value, _) in zip(a.inputs, found, strict=True):
            if _is_value(source) and source in self.parts:
                self.kept.remove(value)
        return found

    def part(self, source: Any, a: Application, of: Function) -> Part:
        """Return the value or number that comes from there; TypeError for a number that follows the number of rows."""
        if source is None:
            return None, None
        if _is_value(source) and source in self.parts:
            return self.parts[source]
        if isinstance(source, Cast):
            value, shape = self.part(source.source, a, of)
            floats = operators.Floats(value.type)
            return self.call(floats, (len(self.calls),), floats.layer(shape), [(value, shape)], shape)[0], shape
        if isinstance(source, InputColumns):
            return self.columns(source, a, of)
        values = self._values(source, a)
        if isinstance(values, SymbolicLength):
            raise TypeError(f"export: there is no C for {a.function!r} of a number that depends on the number of rows")
        if np.ndim(values) == 0:
            return None, np.asarray(values, self.dtype)[()]
        if 0 in np.shape(values):
            raise ValueError(f"export: {a.function!r} gets an array without elements, as it is used in {of!r}")
        name = source.name if isinstance(source, StoredArray) else f"a constant of {of!r}"
        return self.constant_value(name, np.asarray(values))

    def columns(self, source: InputColumns, a: Application, of: Function) -> Part:
        """Return the elements of an input that follow one another in each row; TypeError for others."""
        value, _ = self.inputs[source.place]
        places = source.columns.reshape(-1)
        if not np.array_equal(places, places[0] + np.arange(places.size)):
            raise TypeError(f"export: there is no C for {a.function!r} of elements that are not adjacent, in {of!r}")
        place = f"{value.place} + {places[0]}" if places[0] else value.place
        return Value(places.size, value.type, place=place), source.columns.shape

    def constant_value(self, what: str, array: np.ndarray) -> Part:
        """Return an array that is the same for each row."""
        shape = array.shape
        _count(shape)
        array = array.reshape(-1).astype(np.uint8 if array.dtype.kind == "b" else self.dtype)
        key = array.dtype.char, array.tobytes()
        if key not in self.constants:
            self.constants[key] = name = f"constant_{len(self.constants)}"
            comment = as_comment(shorten(what, MOST_SAID))
            self.definitions.append(f"/* {comment}: {format_shape(shape)} */\n{self.constant(name, array)}\n")
        name = self.constants[key]
        return Value(array.size, layers_sequence.MASK if array.dtype == np.uint8 else "float", place=name), shape

    def _values(self, source: Any, a: Application) -> Any:
        """Return the values that a Function gets from there for each row. They are the same for all rows.

        If an array has an axis of rows, it goes: it has an entry for each row, or one that is broadcast to all rows.
        """
        if isinstance(source, StoredArray):
            source = Constant(state_arrays(self.graph.model)[source.name])
        elif isinstance(source, Result):
            steps = self.leaves[source.application].steps
            try:
                source = merge_constants([unwrap_tensor(step.outputs[source.place]) for step in steps], repr(steps[0].function))
            except ValueError as error:
                raise ValueError(f"export: {error}") from error
        if source.shape is not None:
            return source.values[0] if _is_of_rows(source.shape) else N
        axes = max(len(a.shapes[0]), 1 + 2 * (a.kind is functions.MatMul))  # a matrix has no axis of rows
        if np.ndim(source.values) < axes:
            return source.values
        if len(source.values) > 1:
            raise TypeError(f"export: there is no C for {a.function!r} of an array with more axes than a row")
        return source.values[0]

    # ---- calls --------------------------------------------------------------------------------------------------

    def call(
        self, function: Function, place: Shape, layer: Layer, parts: list[Part], y_shape: Shape
    ) -> tuple[Value, ...]:
        """Note a call of a layer; its y, a new value or in the place of an input, and the arrays of its own."""
        inputs, shapes = [x for x, _ in parts], [*[shape for _, shape in parts], y_shape]
        given = dict(zip(layer.inputs, inputs, strict=True))
        for name, x in given.items():
            if x.type != layer.types.get(name, "float"):
                raise TypeError(f"export: there is no C for {function!r} of {x.type} as {name}")
        size = _count(y_shape)
        others = [x for name, x in given.items() if layer.inputs[name] != layer.y]  # not seen as y is
        free = [x for x in inputs if layer.in_place and x.size == size and not x.place and x not in self.kept + others]
        made = [Value(_count(shape), first=len(self.calls)) for shape in layer.own.values()]
        y = free[0] if free else Value(size, first=len(self.calls))
        self.values += made if free else [*made, y]
        for x in (*inputs, *made, y):
            x.last = len(self.calls)
        renamed = {name: "y" if x is y else next(n for n, z in given.items() if z is x) for name, x in given.items()}
        key = (*_identity(function, layer), *layer.body, *shapes, *renamed.values())
        if key not in self.names:
            self.names[key] = self.define(function, place, layer, renamed, shapes)
        arguments = [Argument(x, layer.inputs[name], False) for name, x in given.items() if renamed[name] == name]
        arguments += [Argument(x, seen, True) for x, seen in zip(made, layer.own.values(), strict=True)]
        self.calls.append((self.names[key], [*arguments, Argument(y, layer.y, True)]))
        return y, *made

    def define(
        self, function: Function, place: Shape, layer: Layer, renamed: dict[str, str], shapes: list[Shape]
    ) -> str:
        """Write a layer in C; its name. Inputs that are the same array, or y's, have got its name.

        If they see the array in another shape, a pointer of that shape has their name.
        """
        suffix = "".join(f"_{i}" for i in place)
        first = self.places.setdefault(_identity(function, layer), suffix)  # the layer with the same weights
        seen, pointers = {"y": layer.y, **layer.inputs}, []
        body = "\n".join(layer.body)
        for name, other in renamed.items():
            if seen[name] == seen[other]:
                body = re.sub(rf"\b{name}\[", f"{other}[", body)
            else:
                pointers.append(f"const {as_pointer(name, seen[name])} = (const {as_pointer('', seen[name])}){other};")
        body = "\n".join([*pointers, body])
        for name in layer.constants:
            body = re.sub(rf"\b{name}\[", f"{name}{first}[", body)
        inputs = [
            f"const {parameter(name, layer.inputs[name], layer.types.get(name, 'float'))}"
            for name in renamed
            if renamed[name] == name
        ]
        inputs += [parameter(name, seen) for name, seen in layer.own.items()]
        head = f"{type(function).__name__.lower()}{suffix}"
        what = f"{'.'.join(map(str, place))}: {shorten(repr(function), MOST_SAID)}"
        sizes = f"{', '.join(map(format_shape, shapes[:-1]))} -> {format_shape(shapes[-1])}"
        over = ", in place" if "y" in renamed.values() else ""
        self.definitions.append(f"/* {as_comment(what)}: {sizes}{over} */")
        if first == suffix:
            self.definitions += [self.constant(f"{name}{first}", array) for name, array in layer.constants.items()]
        signature = in_lines(f"static void {head}(", [*inputs, parameter("y", layer.y)], ")")
        self.definitions.append(self.c(f"{signature}\n{{\n{indented(body)}\n}}\n"))
        tables = [line for line in layer.body if line.startswith("static const int ")]
        self.constant_bytes += 4 * sum([int(n) for line in tables for n in re.findall(r"\[(\d+)\] = ", line)])
        return head

    def c(self, code: str) -> str:
        """C for numbers of the model's dtype, of C for `float`."""
        self.used |= {name for name in HELPERS if re.search(rf"\b{name}\(", code)}
        return code if self.number == "float" else in_double(code)

    def constant(self, name: str, array: np.ndarray) -> str:
        """The definition of an array of weights."""
        array = array.astype(self.dtype) if array.dtype.kind == "f" else array
        self.constant_bytes += array.nbytes
        number = self.number if array.dtype.kind == "f" else f"{array.dtype}_t"
        return defined(f"static const {number} {name}{brackets(array.shape)} =", array)


def _graph(model: Model, shapes: Sequence[Shape]) -> ExportGraph:
    """Find the Functions that a model applies to a row; TypeError or ValueError if it can't be followed."""
    if model.is_sequence():
        model.output_shape(*[(None, *shape) for shape in shapes])  # which says what does not fit
    try:
        return trace_graph(model, shapes, lambda kind: kind in LAYERS or kind in STACKS or kind in IDENTITIES)
    except Exception as error:
        how = "" if model.is_sequence() else " through `call`"
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"export: {model!r} can't be followed{how}: {error}") from error


def _is_of_rows(shape: Lengths) -> bool:
    """Return True if an array of this shape has one part for each row."""
    return shape[:1] == (N,) and not any(isinstance(n, SymbolicLength) for n in shape[1:])


def _is_value(source: Any) -> bool:
    """Return True if the values from there may depend on the row."""
    return isinstance(source, ModelInput | Result)


def _made_of_rows(leaves: list[Application]) -> set[int]:
    """The numbers of the applications that depend on the model's input."""
    found: set[int] = set()
    for a in leaves:
        if any(
            x.application in found if isinstance(x, Result) else isinstance(x, ModelInput | InputColumns | Cast)
            for x in a.inputs
        ):
            found.add(a.number)
    return found


def _needed(leaves: list[Application], outputs: list[Any]) -> set[int]:
    """The numbers of the applications on which the outputs depend."""
    found = {output.application for output in outputs if isinstance(output, Result)}
    for a in reversed(leaves):
        if a.number in found:
            found |= {x.application for x in a.inputs if isinstance(x, Result)}
    return found


def _without_models(applications: Sequence[Application]) -> list[Application]:
    """The applications, with each Model replaced by the applications in it."""
    parts = [(a, a.inner if issubclass(a.kind, Model) and a.inner is not None else None) for a in applications]
    return [one for a, within in parts for one in ([a] if within is None else _without_models(within))]


def _identity(function: Function, layer: Layer) -> tuple:
    """A key that is the same for layers of Functions that compute the same with the same weights, such as copies."""
    arrays = *map(id, function.parameters()), *map(id, function.buffers().values())
    return repr(function), *arrays, *[(name, array.shape) for name, array in layer.constants.items()]


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
    """Count the numbers in an array of this shape; ValueError for more than a loop in C counts."""
    count = math.prod(shape)
    if not 0 < count <= LARGEST:
        raise ValueError(f"export: arrays have 1 to {LARGEST:,} numbers, got shape {shape}")
    return count
