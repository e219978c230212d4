"""A model as a graph of applications: which Functions it applies, and where each input comes from.

The model is applied to zeros in a `Trace`. The trace refuses what a list of applications can't express: NumPy on the
model's arrays, or a look at their values. This is done for three numbers of rows. Whatever differs between them, such
as a length in `x.reshape(len(x) * 2, -1)`, has to follow the number of rows.

The exports to ONNX and C write such graphs. If they have no code for a Function, the graph inlines it: a Model by the
steps of its `call`, any other Function by the operators of its `formula`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite import functions
from caffelite._support.text_table import shorten
from caffelite.core.arrays import positions_in
from caffelite.core.function import Function
from caffelite.core.modes import inference, precision
from caffelite.core.python_callback import PythonCallback
from caffelite.files.state import state_arrays
from caffelite.functions.arithmetic import as_tensor
from caffelite.functions.recurrent import Recurrent
from caffelite.model.model import Model
from caffelite.model.shapes import dry_run, input_dtypes, zeros
from caffelite.model.tracing import Trace, TraceStep, to_list, unwrap_tensor
from caffelite.program.ir import get_owner

ROWS = (2, 3, 5)  # the numbers of rows for which a model is traced
MAX_VALUE_TEXT = 60  # characters of a value in an error


class SymbolicLength(NamedTuple):
    """A number that depends on the number n of rows: scale · n + offset."""

    scale: int
    offset: int


Length = int | SymbolicLength
Lengths = tuple[Length, ...]
N = SymbolicLength(1, 0)  # the number of rows


# ---- where an input of a Function comes from ------------------------------------------------------------------------


class ModelInput(NamedTuple):
    """An input of the model."""

    place: int


class InputColumns(NamedTuple):
    """Some elements of each row of an input of the model: `columns` are their places in the row."""

    place: int
    columns: Any


class Cast(NamedTuple):
    """Integers or bools of an input, `source` a ModelInput or InputColumns, as numbers of the model's dtype."""

    source: Any


class Result(NamedTuple):
    """An output of an earlier application, by the application's number."""

    application: int
    place: int


class StoredArray(NamedTuple):
    """A parameter or a buffer."""

    name: str


class Constant(NamedTuple):
    """Values that do not change. `shape` is what they are broadcast to, if that follows the number of rows."""

    values: Any
    shape: Lengths | None = None


@dataclass(eq=False)
class Application:
    """One application of a Function: where its inputs come from, and the shapes of its results."""

    steps: tuple[TraceStep, ...]  # for each number of rows
    inputs: list[Any]  # none, of a Model
    shapes: list[Lengths]
    number: int  # of the application in a `Result`; -1 if it is inlined
    inner: list[Application] | None  # the inner ones, if it is inlined

    @property
    def kind(self) -> type[Function]:
        return self.steps[0].kind

    @property
    def function(self) -> Any:
        return self.steps[0].function

    def get_attribute(self, name: str) -> Any:
        """Return an attribute of the Function, with `SymbolicLength` for numbers that depend on the number of rows."""
        return merge([getattr(step.function, name) for step in self.steps], repr(self.function))


@dataclass(eq=False)
class ExportGraph:
    """A model as a list of applications, in order."""

    model: Model
    dtypes: list[np.dtype]  # of the inputs
    shapes: list[Lengths]
    applications: list[Application]
    outputs: list[Any]  # their sources

    def columns(self) -> list[Application]:
        """Return the applications of Functions that read frames."""
        applications, queue = [], [*self.applications]
        while queue:
            a = queue.pop(0)
            if a.function.frame_reader is a.function:
                applications.append(a)
            elif a.inner is not None:
                queue = [*a.inner, *queue]
        return applications

    def leaves(self) -> list[Application]:
        """Return the applications that are not inlined, in order. Their numbers are their places in the list."""
        return [*_leaves(self.applications)]


def trace_graph(
    model: Model,
    rows: Sequence[tuple[int, ...]],
    is_native: Callable[[type[Function]], bool],
    finish: Callable[[Any], Any] = lambda y: y,
) -> ExportGraph:
    """Trace a model for rows of these shapes. `finish` is applied to the model's outputs.

    A Function is not inlined if its class is native. An input is bool if it is a mask of attention, or is used only as
    a condition. Raise TypeError if the model is not a list of applications. Raise ValueError if it depends on the
    number of rows in another way than `SymbolicLength` allows.
    """
    model.all_functions()
    dtypes = [model.dtype if dtype.kind == "f" else dtype for dtype in input_dtypes(model, [False] * len(rows))]
    first = _Flow(model, ROWS[0], rows, dtypes, is_native, finish)
    if masks := first.masks():
        dtypes = [np.dtype(np.bool_) if i in masks else dtype for i, dtype in enumerate(dtypes)]
        first = _Flow(model, ROWS[0], rows, dtypes, is_native, finish)
    flows = [first, *[_Flow(model, n, rows, dtypes, is_native, finish) for n in ROWS[1:]]]
    numbers = {step: k for k, step in enumerate(first.leaves())}
    applications = _merge_applications(model, flows, [flow.trace.steps for flow in flows], numbers)
    outputs = _merge_sources(flows, [flow.outputs for flow in flows], "an output")
    return ExportGraph(model, dtypes, [(N, *row) for row in rows], applications, outputs)


class _Flow:
    """A trace of a model on n rows of zeros, and where the inputs of each step come from."""

    def __init__(
        self,
        model: Model,
        n: int,
        rows: Sequence[tuple[int, ...]],
        dtypes: list[np.dtype],
        is_native: Callable[[type[Function]], bool],
        finish: Callable[[Any], Any],
    ) -> None:
        self.is_native = is_native
        self.inlined: set[TraceStep] = set()
        self.formulas: list[tuple[list[Any], list[Any]]] = []  # a step's outputs, and the outputs of its formula
        self.inputs = zeros([(n, *row) for row in rows], tuple(dtypes))
        with dry_run(model), Trace(model) as self.trace:
            self.outputs = to_list(finish(self.trace.model(*[x.view(kernels.RecordedArray) for x in self.inputs])))
            for step in [*self.trace.steps]:
                self._inline(step)
        results = [(y, Result(k, i)) for k, step in enumerate(self.leaves()) for i, y in enumerate(step.outputs)]
        arrays: list[tuple[np.ndarray, Any]] = [(unwrap_tensor(y), source) for y, source in results]
        arrays += [(a, StoredArray(name)) for name, a in state_arrays(model).items()]
        arrays += [(x, ModelInput(i)) for i, x in enumerate(self.inputs)]
        self._by_tensor: dict[int, Any] = {id(y): source for y, source in results}
        self._by_memory = {memory_key(a): source for a, source in arrays if a.size}
        for outputs, formula_outputs in self.formulas:
            for y, formula_output in zip(outputs, formula_outputs, strict=True):
                source = self._by_tensor[id(y)] = self.source(formula_output)
                self._by_memory[memory_key(unwrap_tensor(y))] = source

    def _inline(self, step: TraceStep) -> None:
        """If a step is inlined, replace its inner steps by the steps of its formula or its `call`."""
        formula = None if self.is_native(step.kind) else find_formula(step.kind)
        if formula is not None:
            floats = [as_tensor(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in step.inputs]
            start = len(self.trace.steps)
            results = to_list(formula(step.function, *floats))
            step.inner = self.trace.steps[start:]
            del self.trace.steps[start:]
        elif not _is_inlined_call(step.kind):
            return
        self.inlined.add(step)
        for inner in step.inner:
            self._inline(inner)
        if formula is not None:  # after the inner formulas: its outputs may be theirs
            self.formulas.append((step.outputs, results))

    def leaves(self) -> list[TraceStep]:
        """Return the steps that are not inlined, in order."""
        leaves: list[TraceStep] = []
        stack = self.trace.steps[::-1]
        while stack:
            step = stack.pop()
            if step in self.inlined:
                stack += step.inner[::-1]
            else:
                leaves.append(step)
        return leaves

    def source(self, x: Any) -> Any:
        """Find where an input of a Function comes from; None for None."""
        if x is None:
            return None
        if id(x) in self._by_tensor:
            return self._by_tensor[id(x)]
        array = unwrap_tensor(x)
        if not isinstance(array, np.ndarray):
            return Constant(array)
        source = self._by_memory.get(memory_key(array))
        owner = get_owner(array)
        if source is not None and array.size:
            return source
        for i, model_input in enumerate(self.inputs):
            if owner is model_input:
                return InputColumns(i, _find_columns(array, model_input))
        integers = self._casts.get(memory_key(array))
        if integers is not None and isinstance(cast := self.source(integers), ModelInput | InputColumns):
            return Cast(cast)
        if isinstance(owner, kernels.RecordedArray) and id(owner) in self._computed_ids:
            raise TypeError(f"an array of shape {array.shape} that a kernel made outside a Function")
        return Constant(np.array(array.view(np.ndarray)))

    @functools.cached_property
    def _casts(self) -> dict[tuple[Any, ...], np.ndarray]:
        """The integers and bools that a kernel converted to floats outside any Function, by the floats' memory."""
        calls = [call for call in self.trace.entries if call.name == "convert"]
        return {memory_key(call.arrays[0]): call.arrays[1] for call in calls if call.arrays[0].dtype.kind == "f"}

    @functools.cached_property
    def _computed_ids(self) -> set[int]:
        """The ids of the arrays that kernels compute from the inputs, or from what the model stores."""
        ids = {id(get_owner(a)) for a in (*self.inputs, *state_arrays(self.trace.model).values())}
        for call in self.trace.entries:
            if isinstance(call, PythonCallback):
                inputs, outputs = [*call.arguments], call.outputs
            else:
                inputs = [a for i, a in enumerate(call.arrays) if call.reads >> i & 1]
                outputs = [a for i, a in enumerate(call.arrays) if call.writes >> i & 1]
            if any(isinstance(a, np.ndarray) and id(get_owner(a)) in ids for a in inputs):
                ids.update([id(get_owner(a)) for a in outputs if a is not None])
        return ids

    def masks(self) -> set[int]:
        """Return the inputs that are masks of attention, and those that are used only as conditions."""
        masks: set[int] = set()
        uses: dict[int, set[bool]] = {}
        for step in self.leaves():
            for i, x in enumerate(step.inputs):
                source = self.source(x)
                if isinstance(source, ModelInput | InputColumns):
                    if _is_mask(step, i):
                        masks.add(source.place)
                    uses.setdefault(source.place, set()).add(step.kind is functions.Where and i == 2)
        return masks | {i for i, are_conditions in uses.items() if are_conditions == {True}}


def _is_mask(step: TraceStep, i: int) -> bool:
    """Return whether input i of a step is a mask of attention, which is always bool."""
    function: Any = step.function
    return step.kind is functions.MultiHeadAttention and (i == 2 or (i == 1 and not function.has_context))


def memory_key(array: np.ndarray) -> tuple[Any, ...]:
    """Return a key for an array's memory, shape, strides and dtype."""
    return kernels.address(array), array.shape, array.strides, array.dtype


def _is_inlined_call(kind: type[Function]) -> bool:
    """Return True for a Model that computes what its `call` says."""
    return issubclass(kind, Model) and kind.forward is Model.forward


def _find_columns(array: np.ndarray, model_input: np.ndarray) -> np.ndarray:
    """Return the elements of each row that a view of a given array takes; ValueError if its rows differ."""
    places, row = positions_in(model_input, array), model_input[0].size
    if len(places) != len(model_input) or any((places[i] != places[0] + i * row).any() for i in range(len(places))):
        raise ValueError(f"an array of shape {array.shape} that does not have one row for each row of an input")
    columns: np.ndarray = places[0].copy()
    return columns


def _leaves(applications: Iterable[Application]) -> Iterable[Application]:
    for application in applications:
        if application.inner is None:
            yield application
        else:
            yield from _leaves(application.inner)


# ---- what the flows of three numbers of rows have in common ---------------------------------------------------------


def _merge_applications(
    model: Model, flows: Sequence[_Flow], flow_steps: Iterable[list[TraceStep]], numbers: dict[TraceStep, int]
) -> list[Application]:
    """Make applications of the steps of all flows; ValueError if they apply different Functions."""
    flow_steps = [*flow_steps]
    if len({tuple([step.kind for step in steps]) for steps in flow_steps}) > 1:
        raise ValueError(f"{model!r} applies different Functions to a different number of rows")
    applications = []
    for steps in zip(*flow_steps, strict=True):
        first, inputs, shapes = steps[0], [], []
        if not _is_inlined_call(first.kind):
            inputs = _merge_sources(flows, [step.inputs for step in steps], repr(first.function))
            lengths = zip(*[[y.shape for y in step.outputs] for step in steps], strict=True)
            shapes = [merge(shape, repr(first.function)) for shape in lengths]
        inner = None
        if first not in numbers:
            inner = _merge_applications(model, flows, [step.inner for step in steps], numbers)
        applications.append(Application(steps, inputs, shapes, numbers.get(first, -1), inner))
    return applications


def _merge_sources(flows: Sequence[_Flow], flow_values: Iterable[list[Any]], what: str) -> list[Any]:
    """Find where values come from in all flows; ValueError if they differ in another way."""
    sources = [list(map(flow.source, values)) for flow, values in zip(flows, flow_values, strict=True)]
    return [_merge_source(group, what) for group in zip(*sources, strict=True)]


def merge(values: Sequence[Any], what: str) -> Any:
    """Return the value that they all share, with `SymbolicLength` for numbers that depend on the number of rows.

    Raise ValueError if the values differ in another way.
    """
    first = values[0]
    if isinstance(first, tuple | list) and len({len(x) for x in values}) == 1:
        return type(first)([merge(items, what) for items in zip(*values, strict=True)])
    if isinstance(first, slice):
        return slice(*merge([(x.start, x.stop, x.step) for x in values], what))
    if isinstance(first, np.ndarray):
        if all(np.shape(x) == first.shape and _are_equal(x, first) for x in values[1:]):
            return first
    elif all(x is first or _are_equal(x, first) for x in values[1:]):
        return first
    elif all(isinstance(x, int | float) and x == int(x) for x in values):
        scale = int(values[1] - first)
        length = SymbolicLength(scale, int(first) - scale * ROWS[0])
        if all(x == length.scale * n + length.offset for x, n in zip(values, ROWS, strict=True)):
            return length
    texts = ", ".join([shorten(str(x), MAX_VALUE_TEXT) for x in values])
    raise ValueError(f"{what} depends on the number of rows: {texts} for {', '.join(map(str, ROWS))}")


def _are_equal(x: Any, y: Any) -> bool:
    """Return True if values are equal, or arrays everywhere. NaN is equal to NaN."""
    return bool(np.all((x == y) | ((x != x) & (y != y))))


def _merge_source(sources: Sequence[Any], what: str) -> Any:
    first = sources[0]
    if len({type(source) for source in sources}) == 1:
        if isinstance(first, Constant):
            return merge_constants([source.values for source in sources], what)
        if isinstance(first, Cast):
            return Cast(_merge_source([source.source for source in sources], what))
        if isinstance(first, InputColumns):
            return InputColumns(first.place, merge([source.columns for source in sources], what))
        if len(set(sources)) == 1:
            return first
    raise ValueError(f"{what} gets different values for a different number of rows")


def merge_constants(values: Sequence[Any], what: str) -> Constant:
    """Make one constant of several: they are equal, or equal for all rows."""
    if isinstance(values[0], np.ndarray) and len({x.ndim for x in values}) == 1:
        shape = merge([x.shape for x in values], what)
        first_rows = tuple([slice(0, 1) if isinstance(n, SymbolicLength) else slice(None) for n in shape])
        row = values[0][first_rows]
        if any(isinstance(n, SymbolicLength) for n in shape) and all(_are_equal(x, row) for x in values):
            return Constant(row, shape)
    return Constant(merge(values, what))


def find_formula(kind: type[Function]) -> Callable[..., Any] | None:
    """Return the `formula` of a class; None if it has none, or inherits it from a base that computes something else."""
    for base in kind.__mro__:
        if "formula" in vars(base):
            return kind.formula
        if not {"forward", "__call__"}.isdisjoint(vars(base)):
            return None
    return None


# ---- rows to try a graph on ------------------------------------------------------------------------------------------


def random_rows(graph: ExportGraph, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw random inputs. Indices and lengths are valid. Numbers of a table are like the numbers in its columns."""
    inputs: list[np.ndarray] = []
    for i, (shape, dtype) in enumerate(zip(graph.shapes, graph.dtypes, strict=True)):
        row: Any = shape[1:]
        if dtype == np.bool_:
            inputs.append(rng.random((n, *row)) < 0.7)
        elif dtype.kind == "f":
            mean, deviation = _moments(graph, i)
            inputs.append((mean + deviation * rng.standard_normal((n, *row))).astype(dtype))
        else:
            lower, upper = np.zeros(row, np.int64), np.full(row, np.iinfo(np.int64).max)
            for columns, low, high in _limits(graph, i):  # several Functions may read the same column
                lower.reshape(-1)[columns] = np.maximum(lower.reshape(-1)[columns], low)
                upper.reshape(-1)[columns] = np.minimum(upper.reshape(-1)[columns], high)
            upper[upper == np.iinfo(np.int64).max] = 2  # a number
            inputs.append(rng.integers(lower, upper, (n, *row)))
    return inputs


def apply_to_rows(model: Model, rows: list[np.ndarray], finish: Callable[[Any], Any] = lambda y: y) -> list[np.ndarray]:
    """Apply a model to random rows, and `finish` to its outputs. Record nothing, warn of nothing, round no products."""
    exact, quiet = precision("float32"), np.errstate(all="ignore")
    with inference(), exact, quiet, kernels.pause_recording():
        return [y.numpy() for y in to_list(finish(model(*rows)))]


def _moments(graph: ExportGraph, place: int) -> tuple[Any, Any]:
    """Return the center and the scale of the numbers of an input."""
    for a in graph.columns():
        if a.inputs[0] == ModelInput(place) and a.function.numbers:
            return a.function.center, a.function.scale
    return 0.0, 1.0


def _limits(graph: ExportGraph, place: int) -> Iterable[tuple[Any, int, int]]:
    """Yield the places of indices and lengths in a row of an input, with their least and largest (exclusive) values."""
    row: Any = graph.shapes[place][1:]
    for a in graph.leaves():
        function: Any = a.function
        for source in a.inputs:
            if not isinstance(source, ModelInput | InputColumns) or source.place != place:
                continue
            columns = source.columns.reshape(-1) if isinstance(source, InputColumns) else np.arange(math.prod(row))
            if function.frame_reader is function:
                for i, categories in zip(columns, function.categories.values(), strict=True):
                    yield i, 0, len(categories) + 2
            elif function.index_count is not None:
                yield columns, 0, function.index_count
            elif isinstance(function, Recurrent):
                yield columns, 1, 1 + function.shape[1]
