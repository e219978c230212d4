"""ModelState: a Model's Functions, one vector of their parameters, its random stream and its recorded steps."""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.fork import reset_after_fork
from caffelite.core.arrays import ARRAY_TYPES, FLOATS, make_rng
from caffelite.core.autograd import is_parameter, parameter_count
from caffelite.core.function import Function
from caffelite.core.modes import meta_init
from caffelite.core.tensor import Tensor
from caffelite.files.state import BaseModel, float64_buffers
from caffelite.functions import BatchNorm
from caffelite.model.shapes import runs_user_code
from caffelite.optimizers.segments import join_views
from caffelite.program.cache import ProgramCache, are_same_objects
from caffelite.program.program import Program

MAX_INFERENCES = 64  # results of `infer_once` that a model keeps at most


class _RegistrationLock:
    """A lock: only one thread at a time makes Functions a model's own."""

    def __init__(self) -> None:
        self._after_fork()
        reset_after_fork(self)

    def _after_fork(self) -> None:
        self.lock = threading.RLock()


_registration = _RegistrationLock()


class ModelState:
    """The Functions, parameters, random stream and recorded steps of one Model.

    A shallow copy of the model shares its `ModelState`, and changes nothing in it.
    Pickles and deep copies of a model keep the random streams, the names of columns and the arguments: see
    `persistent_state`.
    """

    def __init__(
        self,
        model: BaseModel,
        is_seeded: bool,
        rng: np.random.Generator,
        split_rngs: dict[int, np.random.Generator] | None = None,
        column_names: list[list[Any] | None] | None = None,
        init_arguments: dict[str, Any] | None = None,
    ) -> None:
        self.model = ref(model)  # weak: a model is freed with its last reference
        self.is_seeded, self.rng = is_seeded, rng
        # The random streams of validation splits, by the number of rows.
        self.split_rngs = {} if split_rngs is None else split_rngs
        self.column_names = column_names  # of each input, if the model was fitted on frames
        self.init_arguments = init_arguments or {}  # of `__init__`, if no attribute has the same name
        self.programs = ProgramCache()
        self.functions: tuple[Function, ...] = ()  # all Functions in the model, at any depth
        self.batch_norms: list[BatchNorm] = []  # among them
        self.parameters: list[Tensor] = []
        self.last_parameter_count = -1  # how many existed in the process when these were listed
        self.structure: tuple[Any, ...] = ()  # how the Functions follow and contain each other
        # The last results of is_rowwise and runs_user_code, until a Function changes.
        self.rowwise: bool | None = None
        self.has_user_code: bool | None = None
        self.has_advice = False  # whether a training has looked for advice about the Functions and the data
        self.rows_belong_together = False  # whether a block of `predict` has shown, or not ruled out, that they do
        self.row_traces: WeakKeyDictionary[Program, Any] = WeakKeyDictionary()  # of Programs for blocks of `predict`
        self.row_limits: WeakKeyDictionary[Program, Any] = WeakKeyDictionary()  # of Programs for batches in memory
        self.guards: list[kernels.AttributeGuard] = []  # the attributes in which the Functions were found
        self.is_registering = False
        self.registered: WeakValueDictionary[int, Function] = WeakValueDictionary()  # all that ever were, by id
        self.inference_cache: dict[tuple[Any, ...], tuple[kernels.AttributeGuard, Any]] = {}  # results of `infer_once`
        self._training_lock = threading.RLock()  # held by the thread that trains
        reset_after_fork(self)

    def _after_fork(self) -> None:
        """Reset after a fork: in the child, no other thread trains, draws from the Generator or registers Functions."""
        self._training_lock = threading.RLock()
        self.rng = copy.deepcopy(self.rng)  # with a lock of its own
        if self.is_registering:
            self.is_registering, self.guards = False, []

    @contextmanager
    def lock_training(self) -> Iterator[None]:
        """Inside, no other thread can train the model. Raise RuntimeError if one is training it now."""
        lock = self._training_lock
        if not lock.acquire(blocking=False):
            raise RuntimeError("another thread trains this model; train a copy, copy.deepcopy(model), or wait for it")
        try:
            yield
        finally:
            lock.release()

    def persistent_state(self) -> tuple[Any, ...]:
        """Return the state for pickles and deep copies, as arguments of `ModelState`."""
        return self.is_seeded, self.rng, self.split_rngs, self.column_names, self.init_arguments

    def restart_rng(self, seed: Any) -> np.random.Generator:
        """Return the random stream of a seed, which is now the model's. A Generator is returned unchanged."""
        rng = make_rng("seed", seed)
        if rng is not seed:
            self.rng, self.split_rngs = rng, {}
        return rng

    def find_split_rng(self, rows: int, rng: np.random.Generator, reseed: bool) -> np.random.Generator:
        """Return the random stream for a validation split of this many rows: the same as last time, unless `reseed`.

        So a further `fit` never evaluates a row that the model was trained on.
        """
        if not reseed and rows in self.split_rngs:
            return copy.deepcopy(self.split_rngs[rows])
        self.split_rngs[rows] = copy.deepcopy(rng)
        return rng

    def cache_inference(self, key: tuple[Any, ...], result: tuple[kernels.AttributeGuard, Any]) -> None:
        """Keep a result of `infer_once`, with the attributes that it depends on."""
        if len(self.inference_cache) >= MAX_INFERENCES:
            self.inference_cache.clear()
        self.inference_cache[key] = result

    # ---- registration -------------------------------------------------------------------------------------------

    def belongs_to(self, model: Function) -> bool:
        """Return whether this model is the owner, not a copy of it."""
        return self.model() is model

    def is_up_to_date(self, model: Function) -> bool:
        """Return whether this model is the owner, and no attribute of its Functions has changed since it knows them."""
        return self.belongs_to(model) and bool(self.guards) and kernels.are_unchanged(self.guards)

    def register(self, model: BaseModel) -> None:
        """Make all Functions in the model its own: convert them, move their parameters, draw new ones from its seed.

        For a copy of the model this does nothing.
        """
        if not self.belongs_to(model):
            return
        with _registration.lock:
            if self.is_registering:
                return
            functions, self.is_registering = _find_functions(model), True
            try:
                is_same = bool(self.guards) and are_same_objects(functions, self.functions)
                if not (is_same and are_same_objects(Function.parameters(model), self.parameters)):
                    self._register_functions(model, functions)
                self.set_functions(model, functions)
            finally:
                self.is_registering = False

    def has_parameters(self, model: BaseModel) -> bool:
        """Return whether `parameters` is up to date for this model. For a copy it never is."""
        return not self.is_registering and self.last_parameter_count == parameter_count() and self.belongs_to(model)

    def set_functions(self, model: BaseModel, functions: tuple[Function, ...]) -> None:
        """Note that these are the model's own, until one of their attributes changes."""
        self.last_parameter_count = parameter_count()
        self.functions, self.parameters = functions, Function.parameters(model)
        self.batch_norms = [f for f in functions if isinstance(f, BatchNorm)]
        self.structure = _get_structure(model)
        self.rowwise, self.has_user_code = None, None
        self.rows_belong_together = self.has_advice = False
        self.guards = [_guard_attributes(f) for f in (model, *functions)]

    def is_rowwise(self, model: BaseModel) -> bool:
        """Return whether each row of the outputs is known to depend on the same row of the inputs only."""
        if self.rowwise is None:
            self.rowwise = all(f.is_rowwise() for f in (model, *self.functions))
        return self.rowwise

    def runs_user_code(self, model: BaseModel) -> bool:
        """Return whether code of the user's runs if the model, which knows its Functions, is applied."""
        if self.has_user_code is None:
            self.has_user_code = any(map(runs_user_code, (model, *self.functions)))
        return self.has_user_code

    def mark_registered(self, functions: Iterable[Function]) -> None:
        """Note that these Functions keep the parameters they have: they are not drawn again."""
        self.registered.update({id(f): f for f in functions})

    def unmark_registered(self, function: Function) -> None:
        """Note that this Function may be drawn again."""
        self.registered.pop(id(function), None)

    def _register_functions(self, model: BaseModel, functions: tuple[Function, ...]) -> None:
        recording = kernels.recorder()
        if recording is not None and recording.entries:  # its kernel calls are bound to the parameters' old memory
            recording.record_obstacle(
                f"{type(model).__name__} got Functions inside a recorded step; add them before it"
            )
        with kernels.pause_recording():
            models = [f for f in functions if is_model(f)]
            drawn_ids = self._find_registered(functions, models)
            for m in models:
                m._model_state.inference_cache.clear()
                if m.dtype != model.dtype:
                    m.dtype = model.dtype
            for m in reversed(models):  # inner models first: outer ones use what they found
                if not m._model_state.is_up_to_date(m):
                    m._model_state.set_functions(m, _find_functions(m))
                    m._model_state.mark_registered(m._model_state.functions)
            self.inference_cache.clear()
            if not meta_init.is_on:
                self.allocate(model, functions)
                if self.is_seeded:
                    drawn_ids.update(
                        id(f) for f in functions if not all(p._has_initial_values() for p in f.parameters())
                    )
                    model._draw_children(self.rng, drawn_ids)
            self.mark_registered(functions)
        if recording is not None:
            recording.refresh_arrays()

    def _find_registered(self, functions: tuple[Function, ...], models: list[BaseModel]) -> set[int]:
        """Return the ids of the Functions that the model, or a model in it, has registered before."""
        ids = {id(f) for f in functions if self.registered.get(id(f)) is f}
        for m in models:
            if not self.is_seeded:
                m.all_functions()  # draws new parameters from its own seed, if it has one
            if id(m) in ids:  # it has already drawn or kept what it registered itself
                ids.update(id(f) for f in _find_functions(m) if m._model_state.registered.get(id(f)) is f)
        return ids

    # ---- memory -------------------------------------------------------------------------------------------------

    def allocate(self, model: BaseModel, functions: Iterable[Function]) -> None:
        """Move parameters and buffers to memory of the model's dtype. They may have been made in `meta_init`."""
        _convert_buffers(model, [model, *functions])
        _flatten_parameters(model)


def is_model(function: Function) -> TypeGuard[BaseModel]:
    """Return whether it is a model, or a copy of one. Before `__init__` of a Model, it is not."""
    return type(vars(function).get("_model_state")) is ModelState


def _find_functions(model: BaseModel) -> tuple[Function, ...]:
    """Return the descendants. A Model among them that knows its Functions is not searched again."""
    functions: dict[int, Function] = {}
    _search(model, functions)
    return tuple(functions.values())


def _search(function: Function, functions: dict[int, Function]) -> None:
    """Add the descendants of a Function, by their ids."""
    for child in function.children():
        if id(child) not in functions:
            functions[id(child)] = child
            if is_model(child) and child._model_state.is_up_to_date(child):
                functions.update({id(f): f for f in child._model_state.functions if id(f) not in functions})
            else:
                _search(child, functions)


def _get_structure(model: BaseModel) -> tuple[Any, ...]:
    """Return how the Functions of a model follow and contain each other, by their ids."""
    return tuple([_get_structure(f) if is_model(f) else id(f) for f in model.functions])


def _guard_attributes(function: Function) -> kernels.AttributeGuard:
    """Return the attributes of a Function that hold, or could hold, Functions or parameters."""
    attributes = {
        name: value
        for name, value in vars(function).items()
        if name not in function.not_recorded
        and type(value) not in ARRAY_TYPES
        and (not isinstance(value, Tensor) or is_parameter(value))
    }
    return kernels.AttributeGuard(function, attributes, count=len(vars(function)))


def _convert_buffers(model: BaseModel, functions: list[Function]) -> None:
    """Convert float buffers to the model's dtype, and copy buffers that are read-only."""
    for function in model._descendants():
        if function.frame_reader is function:
            function.dtype = model.dtype
    exact = float64_buffers(functions)
    buffers = {
        id(a): a
        for a in model.buffers().values()
        if not a.flags.writeable or (a.dtype in FLOATS and a.dtype != model.dtype and id(a) not in exact)
    }
    same_dtype = exact | {i for i, a in buffers.items() if a.dtype not in FLOATS}
    converted = {i: a.astype(a.dtype if i in same_dtype else model.dtype, order="C") for i, a in buffers.items()}
    for function in functions if buffers else ():
        _replace(vars(function), converted, set())


def _replace(value: Any, arrays: dict[int, np.ndarray], seen: set[int]) -> Any:
    """Return the value with some arrays replaced, given by the old ones' ids. Lists and dicts are changed in place."""
    if id(value) in arrays:
        return arrays[id(value)]
    if not isinstance(value, list | tuple | dict) or id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, dict):
        for key, item in list(value.items()):
            if (new := _replace(item, arrays, seen)) is not item:
                value[key] = new
        return value
    items = [_replace(item, arrays, seen) for item in value]
    if all(map(operator.is_, items, value)):
        return value
    if isinstance(value, list):
        value[:] = items
        return value
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _are_flat(parameters: list[Tensor], dtype: np.dtype) -> bool:
    """Return whether parameters of this dtype, and their gradients, are side by side in memory already."""
    gradients = [p._gradient.reshape(-1) for p in parameters if p._gradient is not None]
    if len(gradients) < len(parameters) or any(p.dtype != dtype or not p._data.flags.writeable for p in parameters):
        return False
    values = [p._data.reshape(-1) for p in parameters]
    return all(join_views(a, b) is not None for vectors in (values, gradients) for a, b in pairwise(vectors))


def _flatten_parameters(model: BaseModel) -> None:
    """Move the parameters into one vector of the model's dtype, and their gradients into another.

    The parameters of a slice of another model stay where they are, side by side in that model's vector.
    """
    parameters = model.parameters()
    if _are_flat(parameters, model.dtype):
        return
    size = sum(p.size for p in parameters)
    data, gradients = np.empty(size, model.dtype), np.empty(size, model.dtype)
    start = 0
    for p in parameters:
        part = slice(start, start + p.size)
        if p.size == 1 or any(p._data.strides):  # otherwise it was made without values
            data[part] = p._data.reshape(-1)
        if p._has_gradient and p._gradient is not None:
            gradients[part] = p._gradient.reshape(-1)
        p._data, p._gradient = data[part].reshape(p.shape), gradients[part].reshape(p.shape)
        if not p._has_gradient:
            p._clear_used_rows()
        p._owns_data = True
        start += p.size
