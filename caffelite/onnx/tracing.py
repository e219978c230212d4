"""What a model applies, Function after Function, with where everything that goes in comes from.

The model is applied to zeros while its thread records. A recording is told of each application, and it refuses whatever
a list of them can't say: NumPy on the model's arrays, or a look at their values. This is done for three numbers of
rows. What differs between them, a length in `x.reshape(len(x) * 2, -1)` say, has to follow the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite import functions
from caffelite.core.arrays import places_in
from caffelite.core.function import Function, formula_of
from caffelite.core.modes import inference, placeholders
from caffelite.core.recording import PythonCall, Recording
from caffelite.core.tensor import Tensor
from caffelite.files.state import arrays_of
from caffelite.functions.arithmetic import as_tensor
from caffelite.model.model import Model
from caffelite.model.shapes import dtypes_of_inputs
from caffelite.onnx.operators import Computed, Elementwise
from caffelite.program.step import owner_of

ROWS = (2, 3, 5)

#: What computes in Python, as an operator of ONNX does.
WRITABLE = {f"{kind.__name__}.forward" for kind in (Computed, Elementwise)}


class Rows(NamedTuple):
    """A number that follows the number n of rows: scale · n + offset."""

    scale: int
    offset: int


Length = int | Rows
Lengths = tuple[Length, ...]


# ---- where an input of a Function comes from ------------------------------------------------------------------------


class Given(NamedTuple):
    """An input of the model."""

    place: int


class Columns(NamedTuple):
    """Of each row of an input of the model, these elements, an array of places in the row."""

    place: int
    columns: Any


class Result(NamedTuple):
    """A result of an application before."""

    application: int
    place: int


class Stored(NamedTuple):
    """A parameter or a buffer."""

    name: str


class Constant(NamedTuple):
    """Values that do not change; `shape` is what they are broadcast to, where that follows the number of rows."""

    values: Any
    shape: Lengths | None = None


@dataclass
class Application:
    """One application of a Function: where its inputs come from, and the shapes of its results."""

    functions: tuple[Function, ...]  # the copies that were applied, for each number of rows
    inputs: list[Any]
    shapes: list[Lengths]

    @property
    def function(self) -> Function:
        return self.functions[0]

    def merged(self, attribute: str) -> Any:
        """An attribute of the Function, with `Rows` for what follows their number."""
        return merged([getattr(f, attribute) for f in self.functions], repr(self.function))


@dataclass
class Graph:
    """A model as a list of applications."""

    model: Model
    dtypes: list[np.dtype]  # of the inputs
    shapes: list[Lengths]
    applications: list[Application]
    outputs: list[Any]  # where they come from


def traced(
    model: Model,
    rows: Sequence[tuple[int, ...]],
    is_native: Callable[[Function], bool],
    finish: Callable[[Any], Any] = lambda y: y,
) -> Graph:
    """The applications of a model for rows of these shapes; `finish` computes the outputs from the model's.

    If a Function is not native and has a formula, the operators of its formula are applied in its place.
    An input that is a mask and nothing else is bool. Raises TypeError for what can't be written as a list of
    applications, and ValueError for what depends on the number of rows in another way than `Rows` says.
    """
    dtypes = [model.dtype if dtype.kind == "f" else dtype for dtype in dtypes_of_inputs(model, [False] * len(rows))]
    first = _Trace(model, ROWS[0], rows, dtypes, is_native, finish)
    if masks := first.masks():
        dtypes = [np.dtype(np.bool_) if i in masks else dtype for i, dtype in enumerate(dtypes)]
        first = _Trace(model, ROWS[0], rows, dtypes, is_native, finish)
    traces = [first, *[_Trace(model, n, rows, dtypes, is_native, finish) for n in ROWS[1:]]]
    if len({tuple([type(function) for function, _, _ in trace.noted]) for trace in traces}) > 1:
        raise ValueError(f"{model!r} applies other Functions to another number of rows")
    applications = []
    for applied in zip(*[trace.noted for trace in traces], strict=True):
        what = repr(applied[0][0])
        inputs = zip(*[map(t._source, given) for t, (_, given, _) in zip(traces, applied, strict=True)], strict=True)
        shapes = zip(*[[y.shape for y in results] for _, _, results in applied], strict=True)
        applications.append(
            Application(
                tuple([function for function, _, _ in applied]),
                [_same_source(sources, what) for sources in inputs],
                [merged(lengths, what) for lengths in shapes],
            )
        )
    outputs = zip(*[map(t._source, t.outputs) for t in traces], strict=True)
    return Graph(
        model,
        dtypes,
        [(Rows(1, 0), *row) for row in rows],
        applications,
        [_same_source(sources, "an output") for sources in outputs],
    )


class _Trace(Recording):
    """What a model applies to so many rows of zeros."""

    def __init__(
        self,
        model: Model,
        n: int,
        rows: Sequence[tuple[int, ...]],
        dtypes: list[np.dtype],
        is_native: Callable[[Function], bool],
        finish: Callable,
    ) -> None:
        super().__init__()
        self._is_native = is_native
        self._written_out: list[tuple[Function, Tensor, Tensor]] = []  # with the result, and the formula's
        self.noted: list[tuple[Function, tuple, tuple[Tensor, ...]]] = []
        given = [np.full((n, *row), dtype == np.bool_, dtype) for row, dtype in zip(rows, dtypes, strict=True)]
        with inference(), placeholders(), kernels.Paused(), self, np.errstate(all="ignore"):
            outputs = finish(_expanded(model)(*[x.view(kernels.Recorded) for x in given]))
        self.outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        writable = WRITABLE | {f"{type(function).__name__}.forward" for function, _, _ in self._written_out}
        for entry in self.entries:
            if isinstance(entry, PythonCall) and entry.name not in writable:
                raise _unwritable(entry.name)
        self.given = given
        self._by_tensor = {id(y): Result(k, j) for k, (_, _, ys) in enumerate(self.noted) for j, y in enumerate(ys)}
        known: list[tuple[np.ndarray, Any]] = [(y._data, self._by_tensor[id(y)]) for _, _, ys in self.noted for y in ys]
        known += [(a, Stored(name)) for name, a in arrays_of(model).items()]
        known += [(x, Given(i)) for i, x in enumerate(given)]
        self._by_memory = {memory_of(a): source for a, source in known if a.size}
        for _, result, y in self._written_out:
            source = self._by_tensor[id(result)] = self._source(y)
            self._by_memory[memory_of(result._data)] = source

    def note_application(self, function: Function, inputs: tuple, results: tuple[Tensor, ...]) -> None:
        formula = None if self._is_native(function) else formula_of(function)
        if formula is None:
            self.noted.append((function, inputs, results))
            return
        floats = [as_tensor(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in inputs]
        self._written_out.append((function, *results, formula(*floats)))

    def _source(self, x: Any) -> Any:
        """Where an input of a Function comes from; None for None."""
        if x is None:
            return None
        if id(x) in self._by_tensor:
            return self._by_tensor[id(x)]
        array = x._data if isinstance(x, Tensor) else x
        if not isinstance(array, np.ndarray):
            return Constant(array)
        found = self._by_memory.get(memory_of(array))
        owner = owner_of(array)
        if found is not None and array.size:
            return found
        for i, given in enumerate(self.given):
            if owner is given:
                return Columns(i, _columns(array, given))
        if isinstance(owner, kernels.Recorded):
            raise TypeError(f"an array of shape {array.shape} that a kernel made outside of a Function")
        return Constant(np.array(array.view(np.ndarray)))

    def masks(self) -> set[int]:
        """The inputs that are masks or conditions, and nothing else."""
        uses: dict[int, set[bool]] = {}
        for function, inputs, _ in self.noted:
            for i, x in enumerate(inputs):
                is_mask = (type(function), i) in {(functions.MultiHeadAttention, 1), (functions.Where, 2)}
                source = self._source(x)
                if isinstance(source, Given | Columns):
                    uses.setdefault(source.place, set()).add(is_mask)
        return {i for i, are_masks in uses.items() if are_masks == {True}}


def memory_of(array: np.ndarray) -> tuple:
    """What tells arrays apart that lie in the same memory."""
    return kernels.address(array), array.shape, array.strides, array.dtype


def _columns(array: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Which elements of each row a view of a given array takes; ValueError if it has other rows."""
    used, row = places_in(given, array), given[0].size
    if len(used) != len(given) or any((used[i] != used[0] + i * row).any() for i in range(len(used))):
        raise ValueError(f"an array of shape {array.shape} that has not a row for each of an input's")
    return used[0].copy()


def _unwritable(name: str) -> TypeError:
    return TypeError(
        f"{name} computes in Python, and can't be exported: write it with Tensor's operators, in the `call` of a Model"
    )


# ---- what three traces have in common -------------------------------------------------------------------------------


def merged(values: Sequence[Any], what: str) -> Any:
    """What all have, with `Rows` for numbers that follow the number of rows; ValueError for anything else."""
    first = values[0]
    if isinstance(first, tuple | list) and len({len(x) for x in values}) == 1:
        return type(first)([merged(items, what) for items in zip(*values, strict=True)])
    if isinstance(first, slice):
        return slice(*merged([(x.start, x.stop, x.step) for x in values], what))
    if isinstance(first, np.ndarray):
        if all(np.array_equal(first, x) for x in values[1:]):
            return first
    elif all(x is first or x == first for x in values[1:]):
        return first
    elif all(isinstance(x, int | float) and x == int(x) for x in values):
        scale = int(values[1] - first)
        found = Rows(scale, int(first) - scale * ROWS[0])
        if all(x == found.scale * n + found.offset for x, n in zip(values, ROWS, strict=True)):
            return found
    raise ValueError(
        f"{what} depends on the number of rows: {', '.join(map(str, values))} for {', '.join(map(str, ROWS))}"
    )


def _same_source(sources: Sequence[Any], what: str) -> Any:
    first = sources[0]
    if len({type(source) for source in sources}) == 1:
        if isinstance(first, Constant):
            return _same_values([source.values for source in sources], what)
        if isinstance(first, Columns):
            return Columns(first.place, merged([source.columns for source in sources], what))
        if len(set(sources)) == 1:
            return first
    raise ValueError(f"{what} gets something else for another number of rows")


def _same_values(values: Sequence[Any], what: str) -> Constant:
    """Constants as one: they are the same, or the same for all rows."""
    if isinstance(values[0], np.ndarray) and len({x.ndim for x in values}) == 1:
        shape = merged([x.shape for x in values], what)
        of_rows = tuple([slice(0, 1) if isinstance(n, Rows) else slice(None) for n in shape])
        one = values[0][of_rows]
        if any(isinstance(n, Rows) for n in shape) and all((x == one).all() for x in values):
            return Constant(one, shape)
    return Constant(merged(values, what))


# ---- Functions of Functions, which are several applications ---------------------------------------------------------


class _Residual(functions.Residual, recordable=True):
    def __call__(self, x: Any) -> Any:
        return x + self.function(x)


class _Parallel(functions.Parallel, recordable=True):
    def __call__(self, x: Any) -> Any:
        return self.concatenate(*[function(x) for function in self.functions])


class _TransformerBlock(functions.TransformerBlock, recordable=True):
    def __call__(self, x: Any, mask: Any = None) -> Any:
        h = x + self.attention(self.attention_norm(x), mask)
        return h + self.narrow(self.gelu(self.widen(self.mlp_norm(h))))


class _Columns(functions.Columns, recordable=True):
    def __call__(self, *inputs: Any) -> Any:
        mean, deviation = self.moments(self.dtype)
        numbers = [(Tensor(inputs[0]) - mean) / deviation] if self.numbers else []
        return self.concatenate(*numbers, *[f(inputs[-1][:, i]) for i, f in enumerate(self.embeddings)])


EXPANDED = {kind.__base__: kind for kind in (_Residual, _Parallel, _TransformerBlock, _Columns)}


def _expanded(model: Model) -> Model:
    """A copy of a model in which Functions of Functions apply these, instead of doing it all within their `forward`."""
    copy: Any = model.copy()
    for function in copy._descendants():
        function.__class__ = EXPANDED.get(type(function), type(function))
    return copy
