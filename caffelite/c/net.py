"""A model as a list of calls of layers, and where the arrays between them lie in memory.

The arrays between layers, `CArray`s, share one block of memory. A layer that can work in place does so if nobody reads
later what it overwrites. Arrays that are not needed at the same time may have the same place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.c import layers, layers_sequence, operators
from caffelite.c.definitions import Definitions
from caffelite.c.emit import Shape
from caffelite.c.int8 import Rounding, measure_rounding, round_weights
from caffelite.c.layers import COMPOSITES, IDENTITIES, CLayer, Operand, elementwise
from caffelite.core.function import Function
from caffelite.files.state import state_arrays
from caffelite.model import export_graph
from caffelite.model.export_graph import Application, Cast, InputColumns, ModelInput, N, Result, SymbolicLength
from caffelite.model.model import Model
from caffelite.model.tracing import original_class, unwrap_tensor

MAX_INT = 2**31 - 1  # the largest `int`

#: Functions that write the layer of a Function, of it, the shapes of its inputs and the shape of its output.
LAYERS: dict[type, Callable[..., CLayer]] = layers.LAYERS | layers_sequence.LAYERS | operators.LAYERS

#: Functions that write the calls of a Function that is several layers, and return what it makes.
STACKS: dict[type, Callable[..., list[Operand]]] = layers_sequence.STACKS | operators.STACKS

C_TYPES = {"f": "float", "i": layers_sequence.INDEX_TYPE, "b": layers_sequence.MASK_TYPE}


@dataclass(eq=False)
class CArray:
    """An array between layers, needed from the call number `first` to the call number `last`."""

    size: int
    type: str = "float"  # of the numbers; other ones are in inputs
    first: int = 0
    last: int = 0
    offset: int = 0  # in the memory that all share
    pointer: str = ""  # its name in C; at first only inputs and constants have one


@dataclass
class Argument:
    """An array that a call passes to a layer: how the layer sees it, and whether it writes there."""

    value: CArray
    view: Shape
    is_written: bool


class CModel:
    """The layers that a model applies to a row, in order, and the values between them, from `inputs` to `outputs`."""

    def __init__(self, model: Model, shapes: Sequence[Shape], quantize: bool = False) -> None:
        self.dtype = model.dtype
        self.layers = LAYERS | layers.INT8_LAYERS if quantize else LAYERS
        self.values: list[CArray] = []  # that layers make
        self.calls: list[tuple[str, list[Argument]]] = []  # a layer's name, and its arrays as it sees them
        self.definitions = Definitions(model.dtype)
        sizes = [_size(shape) for shape in shapes]
        self.graph = _trace(model, shapes)
        self.leaves, outputs = self.graph.leaves(), self.graph.outputs
        self.needed = _row_dependent(self.leaves) & _reachable(self.leaves, outputs)
        used = [*outputs, *[x for a in self.leaves if a.number in self.needed for x in a.inputs]]
        self.uses = Counter([source for source in used if _depends_on_row(source)])
        self.results: dict[Any, Operand] = {}  # values, by where they come from
        self.live: list[CArray] = []  # values that will be read, each as often as it will be
        self.is_single = len(shapes) == len(outputs) == 1
        self.inputs: list[Operand] = []
        for i, (shape, size, dtype) in enumerate(zip(shapes, sizes, self.graph.dtypes, strict=True)):
            value = CArray(size, C_TYPES[dtype.kind], pointer="x" if self.is_single else f"in_{i + 1}")
            self.inputs.append((value, shape))
            self.add_result(ModelInput(i), self.inputs[-1])
        self.write_applications(self.graph.applications, (), model)
        self.outputs: list[Operand] = []
        for i, source in enumerate(outputs):
            self.outputs.append(self.make_output(source, model, i))
            self.outputs[-1][0].pointer = "y" if self.is_single else f"out_{i + 1}"
        output_values = [value for value, _ in self.outputs]
        self.memory = _assign_offsets([value for value in self.values if value not in output_values])
        self.reference = round_weights(model) if quantize else model  # the model whose outputs C computes
        self.rounding: Rounding | None = measure_rounding(self.graph, self.reference) if quantize else None

    def make_output(self, source: Any, model: Model, number: int) -> Operand:
        """Return the value from this source, in an array of its own."""
        if not _depends_on_row(source) or source not in self.results:
            raise TypeError(f"export: an output of {model!r} does not depend on the row")
        value, shape = self.results[source]
        if value.pointer:  # an input, or an output before
            copy = elementwise(shape, "x[]", "x")
            value, *_ = self.add_call(functions.ToShape(-1, *shape), (number,), copy, [(value, shape)], shape)
        return value, shape

    def add_result(self, source: Any, part: Operand) -> None:
        """Note what comes from there. It is kept as long as it is read."""
        self.results[source] = part
        self.live += [part[0]] * self.uses[source]

    # ---- applications -------------------------------------------------------------------------------------------

    def write_applications(self, applications: list[Application], path: Shape, parent: Function) -> None:
        """Write the applications in a Function that is followed; `path` says where in the model the Function is.

        In a sequence, the place of an application is the Function's place. Elsewhere it is its number among the
        applications that are written.
        """
        if not (isinstance(parent, Model) and parent.is_sequence()):
            applications = [a for a in _flatten_models(applications) if self.is_needed(a)]
        for i, application in enumerate(applications):
            self.write_application(application, (*path, i), parent)

    def is_needed(self, application: Application) -> bool:
        if application.inner is None:
            return application.number in self.needed
        return any(map(self.is_needed, application.inner))

    def write_application(self, a: Application, path: Shape, parent: Function) -> None:
        """Write an application, in a Function that is followed."""
        if a.inner is not None and a.kind in COMPOSITES:
            *branches, last = a.inner
            pinned = [self.results[source][0] for source in a.inputs if _depends_on_row(source)]
            self.live += pinned
            for i, branch in enumerate(branches):
                self.write_application(branch, (*path, i), parent)
            for value in pinned:
                self.live.remove(value)
            self.write_layer(last, a, COMPOSITES[a.kind], path, self.operands(last, parent))
        elif a.inner is not None:
            self.write_applications(a.inner, path, a.function)
        elif self.is_needed(a):
            if any(0 in shape for shape in a.shapes):
                raise ValueError(f"export: {a.function!r} makes an array without elements, as it is used in {parent!r}")
            if not all(map(_has_row_axis, a.shapes)) or (len(a.shapes) > 1 and a.kind not in STACKS):
                raise TypeError(f"export: there is no C for {a.function!r} as it is used in {parent!r}")
            if a.kind in STACKS:
                self.write_stack(a, path, parent)
            elif a.kind in self.layers:
                self.write_layer(a, a, self.layers[a.kind], path, self.operands(a, parent))
            elif a.kind in IDENTITIES:
                self.add_result(Result(a.number, 0), (self.operands(a, parent)[0][0], a.shapes[0][1:]))
            else:
                raise TypeError(f"export: there is no C for {a.function!r}")

    def write_layer(self, a: Application, step: Application, writer: Any, path: Shape, operands: list[Operand]) -> None:
        """Write a call of the layer of a Function, which has the result of application `a`."""
        shape: Any = a.shapes[0][1:]
        layer = writer(step.function, *[input_shape for _, input_shape in operands], shape)
        arrays = [part for part in operands if isinstance(part[0], CArray)]
        self.add_result(Result(a.number, 0), (self.add_call(step.function, path, layer, arrays, shape)[0], shape))

    def write_stack(self, a: Application, path: Shape, parent: Function) -> None:
        """Write the calls of a Function that is several layers."""

        def write_call(f: Any, *parts: Operand, shape: Shape, writer: Any = None, index: Shape = ()) -> list[Operand]:
            make_layer = writer or self.layers.get(original_class(f))
            if make_layer is None:
                raise TypeError(f"export: there is no C for {f!r}")
            layer = make_layer(f, *[input_shape for _, input_shape in parts], shape)
            y, *scratch = self.add_call(f, (*path, *index), layer, [*parts], shape)
            return [(y, shape), *zip(scratch, layer.scratch.values(), strict=True)]

        operands = self.operands(a, parent)
        pinned = [value for value, _ in operands if value is not None]  # no call works in their place
        self.live += pinned
        for i, part in enumerate(STACKS[a.kind](a.function, write_call, *operands)):
            self.add_result(Result(a.number, i), part)
        for value in pinned:
            self.live.remove(value)

    def operands(self, a: Application, parent: Function) -> list[Operand]:
        """Return the inputs of a Function. They are read now, and no longer kept for it."""
        parts = [self.get_operand(source, a, parent) for source in a.inputs]
        for source, (value, _) in zip(a.inputs, parts, strict=True):
            if _depends_on_row(source) and source in self.results:
                self.live.remove(value)
        return parts

    def get_operand(self, source: Any, a: Application, parent: Function) -> Operand:
        """Return the value or number that comes from there; TypeError for a number that follows the number of rows."""
        if source is None:
            return None, None
        if _depends_on_row(source) and source in self.results:
            return self.results[source]
        if isinstance(source, Cast):
            value, shape = self.get_operand(source.source, a, parent)
            floats = operators.FloatCast(value.type)
            return self.add_call(floats, (len(self.calls),), floats.layer(shape), [(value, shape)], shape)[0], shape
        if isinstance(source, InputColumns):
            return self.get_columns(source, a, parent)
        values = self._values(source, a)
        if isinstance(values, SymbolicLength):
            raise TypeError(f"export: there is no C for {a.function!r} of a number that depends on the number of rows")
        if np.ndim(values) == 0:
            return None, np.asarray(values, self.dtype)[()]
        if 0 in np.shape(values):
            raise ValueError(f"export: {a.function!r} gets an array without elements, as it is used in {parent!r}")
        name = source.name if isinstance(source, export_graph.StoredArray) else f"a constant of {parent!r}"
        return self.make_constant(name, np.asarray(values))

    def get_columns(self, source: InputColumns, a: Application, parent: Function) -> Operand:
        """Return the elements of an input that follow one another in each row; TypeError for others."""
        value, _ = self.inputs[source.place]
        indices = source.columns.reshape(-1)
        if not np.array_equal(indices, indices[0] + np.arange(indices.size)):
            raise TypeError(
                f"export: there is no C for {a.function!r} of elements that are not adjacent, in {parent!r}"
            )
        pointer = f"{value.pointer} + {indices[0]}" if indices[0] else value.pointer
        return CArray(indices.size, value.type, pointer=pointer), source.columns.shape

    def make_constant(self, what: str, array: np.ndarray) -> Operand:
        """Return an array that is the same for each row."""
        shape = array.shape
        _size(shape)
        array = array.reshape(-1).astype(np.uint8 if array.dtype.kind == "b" else self.dtype)
        kind = layers_sequence.MASK_TYPE if array.dtype == np.uint8 else "float"
        return CArray(array.size, kind, pointer=self.definitions.add_constant(what, array, shape)), shape

    def _values(self, source: Any, a: Application) -> Any:
        """Return the values that a Function gets from there for each row. They are the same for all rows.

        If an array has an axis of rows, it goes: it has an entry for each row, or one that is broadcast to all rows.
        """
        if isinstance(source, export_graph.StoredArray):
            source = export_graph.Constant(state_arrays(self.graph.model)[source.name])
        elif isinstance(source, Result):
            steps = self.leaves[source.application].steps
            results = [unwrap_tensor(step.outputs[source.place]) for step in steps]
            try:
                source = export_graph.merge_constants(results, repr(steps[0].function))
            except ValueError as error:
                raise ValueError(f"export: {error}") from error
        if source.shape is not None:
            return source.values[0] if _has_row_axis(source.shape) else N
        axes = max(len(a.shapes[0]), 1 + 2 * (a.kind is functions.MatMul))  # a matrix has no axis of rows
        if np.ndim(source.values) < axes:
            return source.values
        if len(source.values) > 1:
            raise TypeError(f"export: there is no C for {a.function!r} of an array with more axes than a row")
        return source.values[0]

    # ---- calls --------------------------------------------------------------------------------------------------

    def add_call(
        self, function: Function, path: Shape, layer: CLayer, parts: list[Operand], y_shape: Shape
    ) -> tuple[CArray, ...]:
        """Note a call of a layer; its y, a new value or in the place of an input, and the arrays of its own."""
        inputs, shapes = [x for x, _ in parts], [*[shape for _, shape in parts], y_shape]
        arrays = dict(zip(layer.inputs, inputs, strict=True))
        for name, x in arrays.items():
            if x.type != layer.types.get(name, "float"):
                raise TypeError(f"export: there is no C for {function!r} of {x.type} as {name}")
        size = _size(y_shape)
        reshaped = [x for name, x in arrays.items() if layer.inputs[name] != layer.y]  # not seen as y is
        needed = self.live + reshaped
        free = [x for x in inputs if layer.in_place and x.size == size and not x.pointer and x not in needed]
        scratch = [CArray(_size(shape), first=len(self.calls)) for shape in layer.scratch.values()]
        y = free[0] if free else CArray(size, first=len(self.calls))
        self.values += scratch if free else [*scratch, y]
        for x in (*inputs, *scratch, y):
            x.last = len(self.calls)
        aliases = {name: "y" if x is y else next(n for n, z in arrays.items() if z is x) for name, x in arrays.items()}
        layer_name = self.definitions.add_layer(function, path, layer, aliases, shapes)
        arguments = [Argument(x, layer.inputs[name], False) for name, x in arrays.items() if aliases[name] == name]
        arguments += [Argument(x, view, True) for x, view in zip(scratch, layer.scratch.values(), strict=True)]
        self.calls.append((layer_name, [*arguments, Argument(y, layer.y, True)]))
        return y, *scratch


def _trace(model: Model, shapes: Sequence[Shape]) -> export_graph.ExportGraph:
    """Find the Functions that a model applies to a row; TypeError or ValueError if it can't be followed."""
    if model.is_sequence():
        model.output_shape(*[(None, *shape) for shape in shapes])  # which says what does not fit
    try:
        return export_graph.trace_graph(model, shapes, {*LAYERS, *STACKS, *IDENTITIES}.__contains__)
    except Exception as error:
        how = "" if model.is_sequence() else " through `call`"
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"export: {model!r} can't be followed{how}: {error}") from error


def _has_row_axis(shape: export_graph.Lengths) -> bool:
    """Return True if an array of this shape has one part for each row."""
    return shape[:1] == (N,) and not any(isinstance(n, SymbolicLength) for n in shape[1:])


def _depends_on_row(source: Any) -> bool:
    """Return True if the values from there may depend on the row."""
    return isinstance(source, ModelInput | Result)


def _row_dependent(leaves: list[Application]) -> set[int]:
    """Return the numbers of the applications that depend on the model's input."""
    numbers: set[int] = set()
    for a in leaves:
        if any(
            x.application in numbers if isinstance(x, Result) else isinstance(x, ModelInput | InputColumns | Cast)
            for x in a.inputs
        ):
            numbers.add(a.number)
    return numbers


def _reachable(leaves: list[Application], outputs: list[Any]) -> set[int]:
    """Return the numbers of the applications on which the outputs depend."""
    numbers = {output.application for output in outputs if isinstance(output, Result)}
    for a in reversed(leaves):
        if a.number in numbers:
            numbers |= {x.application for x in a.inputs if isinstance(x, Result)}
    return numbers


def _flatten_models(applications: Sequence[Application]) -> list[Application]:
    """Return the applications, with each Model replaced by the applications in it."""
    parts = [(a, a.inner if issubclass(a.kind, Model) and a.inner is not None else None) for a in applications]
    return [inner for a, within in parts for inner in ([a] if within is None else _flatten_models(within))]


def _assign_offsets(values: list[CArray]) -> int:
    """Give values places in one block of memory, the largest first, each the first that is free. The block's size."""
    placed: list[CArray] = []
    for value in sorted(values, key=lambda value: -value.size):
        for other in sorted(placed, key=lambda other: other.offset):
            is_needed_too = other.first <= value.last and value.first <= other.last
            if is_needed_too and value.offset + value.size > other.offset:
                value.offset = max(value.offset, other.offset + other.size)
        value.pointer = f"memory + {value.offset}" if value.offset else "memory"
        placed.append(value)
    return max([value.offset + value.size for value in placed], default=0)


def _size(shape: Shape) -> int:
    """Count the numbers in an array of this shape; ValueError for more than a loop in C counts."""
    count = math.prod(shape)
    if not 0 < count <= MAX_INT:
        raise ValueError(f"export: arrays have 1 to {MAX_INT:,} numbers, got shape {shape}")
    return count
