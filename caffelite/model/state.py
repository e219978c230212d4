"""Own: a Model's Functions, one vector of their parameters, its random stream and its recorded steps."""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Iterable
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.fork import reset_after_fork
from caffelite.core.arrays import ARRAY_TYPES, FLOATS, make_rng
from caffelite.core.autograd import as_parameters, parameter_count
from caffelite.core.function import Function
from caffelite.core.modes import meta_init
from caffelite.core.tensor import Tensor
from caffelite.files.state import float64_buffers
from caffelite.functions import BatchNorm, Columns
from caffelite.optimizers.segments import join_views
from caffelite.program.cache import Programs, are_same

MAX_FOUND = 64  # results of `found_by_applying` that a model keeps at most


class _Adopting:
    """A lock: only one thread at a time makes Functions a model's own."""

    def __init__(self) -> None:
        self._after_fork()
        reset_after_fork(self)

    def _after_fork(self) -> None:
        self.lock = threading.RLock()


_adopting = _Adopting()


class Own:
    """The Functions, parameters, random stream and recorded steps of one Model.

    A shallow copy of the model shares its `Own`, and changes nothing in it.
    Pickles and deep copies of a model keep the random stream, the splits, the names of columns and the arguments: see
    `kept`.
    """

    def __init__(
        self,
        model: Any,
        seeded: bool,
        rng: np.random.Generator,
        splits: dict[int, np.random.Generator] | None = None,
        column_names: list[list[Any] | None] | None = None,
        given: dict[str, Any] | None = None,
    ) -> None:
        self.model = ref(model)  # weak: a model is freed with its last reference
        self.seeded, self.rng = seeded, rng
        self.splits = {} if splits is None else splits  # the streams of validation splits, by the number of rows
        self.column_names = column_names  # of each input, if the model was fitted on frames
        self.given = {} if given is None else given  # arguments of `__init__` that are in no attribute of the same name
        self.programs = Programs()
        self.functions: tuple[Function, ...] = ()  # all Functions in the model, at any depth
        self.batch_norms: list[BatchNorm] = []  # among them
        self.parameters: list[Tensor] = []
        self.parameters_found = -1  # how many parameters existed in the process when they were found
        self.structure: tuple = ()  # how the Functions follow and contain each other
        self.separates_rows: bool | None = None  # the last result of is_rowwise, until a Function changes
        self.tree: list[kernels.Attributes] = []  # the attributes in which the Functions were found
        self.is_adopting = False
        self.adopted_before: WeakValueDictionary[int, Function] = WeakValueDictionary()  # all ever adopted, by id
        self.found_before: dict[tuple, tuple[kernels.Attributes, Any]] = {}  # results of `found_by_applying`
        reset_after_fork(self)

    def _after_fork(self) -> None:
        """Reset after a fork: in the child, no other thread draws from the stream or adopts Functions."""
        self.rng = copy.deepcopy(self.rng)  # with a lock of its own
        if self.is_adopting:
            self.is_adopting, self.tree = False, []

    def kept(self) -> tuple:
        """Return the state for pickles and deep copies, as arguments of `Own`."""
        return self.seeded, self.rng, self.splits, self.column_names, self.given

    def restart_stream(self, seed: Any) -> np.random.Generator:
        """Return the stream of a seed, which is now the model's. A Generator is returned unchanged."""
        rng = make_rng("seed", seed)
        if rng is not seed:
            self.rng, self.splits = rng, {}
        return rng

    def stream_of_split(self, rows: int, rng: np.random.Generator, drawn_anew: bool) -> np.random.Generator:
        """Return the stream for a validation split of this many rows: the same as last time, unless `drawn_anew`.

        So a further `fit` never evaluates a row that the model was trained on.
        """
        if not drawn_anew and rows in self.splits:
            return copy.deepcopy(self.splits[rows])
        self.splits[rows] = copy.deepcopy(rng)
        return rng

    def keep_found(self, key: tuple, found: tuple[kernels.Attributes, Any]) -> None:
        """Keep a result of `found_by_applying`, with the attributes that it depends on."""
        if len(self.found_before) >= MAX_FOUND:
            self.found_before.clear()
        self.found_before[key] = found

    # ---- adoption -----------------------------------------------------------------------------------------------

    def is_of(self, model: Any) -> bool:
        """Return whether this model is the owner, not a copy of it."""
        return self.model() is model

    def is_settled(self) -> bool:
        """Return whether the Functions are known, and none of their attributes has changed since."""
        return bool(self.tree) and kernels.are_unchanged(self.tree)

    def adopt(self, model: Any) -> None:
        """Make all Functions in the model its own: convert them, move their parameters, draw new ones from its seed.

        For a copy of the model this does nothing.
        """
        if not self.is_of(model):
            return
        with _adopting.lock:
            if self.is_adopting:
                return
            functions, self.is_adopting = _all_within(model), True
            try:
                same = bool(self.tree) and are_same(functions, self.functions)
                if not (same and are_same(Function.parameters(model), self.parameters)):
                    self._adopt_functions(model, functions)
                self.remember_functions(model, functions)
            finally:
                self.is_adopting = False

    def has_parameters(self, model: Any) -> bool:
        """Return whether `parameters` is up to date for this model. For a copy it never is."""
        return not self.is_adopting and self.parameters_found == parameter_count() and self.is_of(model)

    def remember_functions(self, model: Any, functions: tuple[Function, ...]) -> None:
        """Note that these are the model's own, until one of their attributes changes."""
        self.parameters_found = parameter_count()
        self.functions, self.parameters = functions, Function.parameters(model)
        self.batch_norms = [f for f in functions if isinstance(f, BatchNorm)]
        self.structure = _structure_of(model)
        self.separates_rows = None
        self.tree = [_attributes(f) for f in (model, *functions)]

    def is_rowwise(self, model: Any) -> bool:
        """Whether each row of the outputs is known to depend on the same row of the inputs only."""
        if self.separates_rows is None:
            self.separates_rows = all(f.is_rowwise() for f in (model, *self.functions))
        return self.separates_rows

    def note_adopted(self, functions: Iterable[Function]) -> None:
        """Note that these Functions keep the parameters they have: they are not drawn again."""
        self.adopted_before.update({id(f): f for f in functions})

    def forget_adopted(self, function: Function) -> None:
        """Note that this Function may be drawn again."""
        self.adopted_before.pop(id(function), None)

    def _adopt_functions(self, model: Any, functions: tuple[Function, ...]) -> None:
        recording = kernels.recorder()
        if recording is not None and recording.entries:  # its kernel calls are bound to the parameters' old memory
            recording.refuse(f"{type(model).__name__} got Functions inside a recorded step; add them before it")
        with kernels.Paused():
            models: list[Any] = [f for f in functions if own_of(f) is not None]
            drawn = self._drawn(functions, models)
            for m in models:
                m._own.found_before.clear()
                if m.dtype != model.dtype:
                    m.dtype = model.dtype
            for m in reversed(models):  # inner models first: outer ones use what they found
                if not _is_settled(m):
                    m._own.remember_functions(m, _all_within(m))
                    m._own.note_adopted(m._own.functions)
            self.found_before.clear()
            if not meta_init.is_on:
                self.allocate(model, functions)
                if self.seeded:
                    drawn.update(id(f) for f in functions if not all(p._has_initial_values() for p in f.parameters()))
                    model._draw_children(self.rng, drawn)
            self.note_adopted(functions)
        if recording is not None:
            recording.refresh_arrays()

    def _drawn(self, functions: tuple[Function, ...], models: list[Any]) -> set[int]:
        """Return the ids of the Functions that the model, or a model in it, has adopted before."""
        drawn = {id(f) for f in functions if self.adopted_before.get(id(f)) is f}
        for m in models:
            if not self.seeded:
                m.all_functions()  # draws new parameters from its own seed, if it has one
            if id(m) in drawn:  # it has already drawn or kept what it adopted itself
                drawn.update(id(f) for f in _all_within(m) if m._own.adopted_before.get(id(f)) is f)
        return drawn

    # ---- memory -------------------------------------------------------------------------------------------------

    def allocate(self, model: Any, functions: Iterable[Function]) -> None:
        """Move parameters and buffers to memory of the model's dtype. They may have been made `meta_init`."""
        _convert_buffers(model, [model, *functions])
        _into_one_vector(model)


def own_of(function: Any) -> Own | None:
    """Return what a Model, or a copy of one, owns; None for any other Function."""
    own = vars(function).get("_own")
    return own if type(own) is Own else None


def _is_settled(model: Any) -> bool:
    """Return whether a model knows its Functions and is not a copy."""
    return model._own.is_of(model) and model._own.is_settled()


def _all_within(model: Any) -> tuple[Function, ...]:
    """Return the descendants. A Model among them that knows its Functions is not searched again."""
    found: dict[int, Function] = {}
    _search(model, found)
    return tuple(found.values())


def _search(function: Function, found: dict[int, Function]) -> None:
    """Add all descendants of a Function to `found`, by their ids."""
    for child in function.children():
        if id(child) not in found:
            found[id(child)] = child
            own = own_of(child)
            if own is not None and _is_settled(child):
                for inner in own.functions:
                    found.setdefault(id(inner), inner)
            else:
                _search(child, found)


def _structure_of(model: Any) -> tuple:
    """Return how the Functions of a model follow and contain each other, by their ids."""
    return tuple([id(f) if own_of(f) is None else _structure_of(f) for f in model.functions])


def _attributes(function: Function) -> kernels.Attributes:
    """Return the attributes of a Function that hold, or could hold, Functions or parameters."""
    own = {
        name: value
        for name, value in vars(function).items()
        if name not in function.not_recorded
        and type(value) not in ARRAY_TYPES
        and (not isinstance(value, Tensor) or as_parameters(value))
    }
    return kernels.Attributes(function, own, count=len(vars(function)))


def _convert_buffers(model: Any, functions: list[Function]) -> None:
    """Convert float buffers to the model's dtype, and copy buffers that are read-only."""
    for function in model._descendants():
        if isinstance(function, Columns):
            function.dtype = model.dtype
    exact = float64_buffers(functions)
    other = {
        id(a): a
        for a in model.buffers().values()
        if not a.flags.writeable or (a.dtype in FLOATS and a.dtype != model.dtype and id(a) not in exact)
    }
    kept = exact | {i for i, a in other.items() if a.dtype not in FLOATS}
    converted = {i: a.astype(a.dtype if i in kept else model.dtype, order="C") for i, a in other.items()}
    for function in functions if other else ():
        _replaced(vars(function), converted, set())


def _replaced(value: Any, arrays: dict[int, np.ndarray], seen: set[int]) -> Any:
    """Return the value with some arrays replaced, given by the old ones' ids. Lists and dicts are changed in place."""
    if id(value) in arrays:
        return arrays[id(value)]
    if not isinstance(value, list | tuple | dict) or id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, dict):
        for key, item in list(value.items()):
            if (new := _replaced(item, arrays, seen)) is not item:
                value[key] = new
        return value
    items = [_replaced(item, arrays, seen) for item in value]
    if all(map(operator.is_, items, value)):
        return value
    if isinstance(value, list):
        value[:] = items
        return value
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _are_in_one_vector(parameters: list[Tensor], dtype: np.dtype) -> bool:
    """Return whether parameters of this dtype, and their gradients, are side by side in memory already."""
    gradients = [p._gradient.reshape(-1) for p in parameters if p._gradient is not None]
    if len(gradients) < len(parameters) or any(p.dtype != dtype or not p._data.flags.writeable for p in parameters):
        return False
    values = [p._data.reshape(-1) for p in parameters]
    return all(join_views(a, b) is not None for vectors in (values, gradients) for a, b in pairwise(vectors))


def _into_one_vector(model: Any) -> None:
    """Move the parameters into one vector of the model's dtype, and their gradients into another.

    The parameters of a slice of another model stay where they are, side by side in that model's vector.
    """
    parameters = model.parameters()
    if _are_in_one_vector(parameters, model.dtype):
        return
    size = sum(p.size for p in parameters)
    data, gradients = np.empty(size, model.dtype), np.empty(size, model.dtype)
    start = 0
    for p in parameters:
        here = slice(start, start + p.size)
        if p.size == 1 or any(p._data.strides):  # otherwise it was made without values
            data[here] = p._data.reshape(-1)
        if p._has_gradient and p._gradient is not None:
            gradients[here] = p._gradient.reshape(-1)
        p._data, p._gradient = data[here].reshape(p.shape), gradients[here].reshape(p.shape)
        if not p._has_gradient:
            p._clear_used_rows()
        p._owns_data = True
        start += p.size
