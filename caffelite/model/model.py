"""Model: Functions in sequence, with `fit`, `predict` and `evaluate`. MLP makes one."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import operator
import os
import threading
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import (
    FLOATS,
    PLAIN,
    as_array,
    as_indices,
    as_real,
    is_array_of_others,
    positive,
    positive_integer,
    random_stream,
    refuse_indices,
)
from caffelite.core.autograd import holds_tensors, parameters_of, parameters_so_far, propagate
from caffelite.core.cautions import warn
from caffelite.core.forks import renew_in_children
from caffelite.core.function import Function, Shape, shape_text, signature_of
from caffelite.core.modes import inference, is_blank, mode, probing
from caffelite.core.recording import Recording
from caffelite.core.sparse import as_sparse, given_as, is_sparse, stored
from caffelite.core.tables import Table, bytes_text, table
from caffelite.core.tensor import Tensor
from caffelite.data import frames
from caffelite.data.generator import DataGenerator, as_inputs, same_length, way_to_several
from caffelite.data.sources import Source
from caffelite.files import safetensors as files
from caffelite.files import structure
from caffelite.functions import BatchNorm, Columns, Linear, ReLU
from caffelite.model.observing import Application, bytes_made, largest_indices, multiply_adds, observed
from caffelite.optimizers import Optimizer
from caffelite.program import Programs
from caffelite.training import checks
from caffelite.training.callbacks import Callbacks
from caffelite.training.checkpoints import Start
from caffelite.training.evaluation import Evaluation
from caffelite.training.fitting import Fitting
from caffelite.training.history import History
from caffelite.training.metrics import Metric, named
from caffelite.training.objective import Objective
from caffelite.training.step import EvaluationStep
from caffelite.training.team import OfTeam, joined

FLOAT64, INT64, BOOL = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
MAX_REMEMBERED = 64  # shapes for which it is remembered what `call` makes of them
KEPT = {"_rng", "_splits", "_column_names"}  # of what is not watched, in copies


class _Adopting:
    """Lets one thread at a time make Functions a model's own."""

    def __init__(self) -> None:
        self._after_fork()
        renew_in_children(self)

    def _after_fork(self) -> None:
        self.lock = threading.RLock()


_adopting = _Adopting()


class _Complete(ABCMeta):
    """The class of Model classes: a model is one whole when `__init__` has run, a subclass's too."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """What `help` shows: that of `__init__`, and not of the call below."""
        return signature_of(cls)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        model = super().__call__(*arguments, **options)
        if "functions" not in vars(model):
            raise TypeError(f"{cls.__name__}.__init__ has to call super().__init__()")
        model.all_functions()
        return model


class Model(Function, recordable=True, metaclass=_Complete):
    """Functions in sequence; or any graph of them, by `call`. Itself a Function, so that Models nest.

    Parameters
    ----------
    functions : iterable of Function
        Added in order.
    seed : int, optional
        Makes the model's random stream: parameters are drawn from it, and the orders of `fit`. Without a seed,
        Functions keep the parameters they came with.
    dtype : float32 or float64
        What the model computes in; `fit`, `predict` and `evaluate` convert their data to it.

    What is no sequence is a subclass that has its Functions in attributes and writes `call`:

        class Gated(cl.Model):  # y = f(x) · sigmoid(g(x))
            def __init__(self, size, seed=None):
                super().__init__(seed=seed)
                self.f, self.g = cl.Linear(size, size), cl.Linear(size, size)
            def call(self, x):
                return self.f(x) * self.g(x).sigmoid()

    A Function becomes the model's own by `add`, or in attributes and their lists, tuples and dicts when `__init__` is
    done or, later, when the model is used next. Then it gets the model's dtype and, once, is drawn from its seed; but
    one whose parameters were trained, loaded or set keeps them, so that what one model has learned can go into another
    (which then shares it: what either learns, both have; `copy.deepcopy` of a Function is one's own).
    A model lays its parameters out side by side in one vector, and their gradients in another, so that optimizers
    update them in one call.
    """

    unwatched = frozenset(
        {
            "_programs",
            "_applied",
            "_rng",
            "_splits",
            "_identity",
            "_adopted",
            "_tree",
            "_is_adopting",
            "_structure",
            "_known",
            "_parameters",
            "_parameters_found",
            "_remembered",
            "_column_names",
        }
    )

    def __init__(self, functions: Iterable[Function] = (), *, seed: int | None = None, dtype: Any = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in FLOATS:
            raise TypeError(f"Model: expected dtype float32 or float64, got {self.dtype}")
        self.functions: list[Function] = []
        self._seeded = seed is not None
        self._rng = random_stream("seed", seed)
        self._splits: dict[int, np.random.Generator] = {}  # what `validation_split` was drawn from, by the rows
        self._column_names: list[list[Any] | None] | None = None  # of the frames it was fitted on, for each input
        self._begin()
        if isinstance(functions, Function):
            raise TypeError(f"Model takes a list of Functions, Model([Linear(2, 3), …]), got {functions!r}")
        self._extend(functions)

    def _begin(self) -> None:
        """Set what neither copies nor files take over."""
        self._programs = Programs()
        self._identity = id(self)  # a copy that is applied has that of its original, and adopts nothing
        self._adopted: tuple[Function, ...] = ()  # the Functions that are its own …
        self._parameters: list[Tensor] = []
        self._parameters_found = -1  # after how many had been made in all
        self._structure: tuple = ()
        self._tree: list[kernels.Attributes] = []  # … and the attributes in which they were found; at first none
        self._is_adopting = False
        self._known: WeakValueDictionary[int, Function] = WeakValueDictionary()  # all it ever adopted, by id
        self._remembered: dict[tuple, tuple[kernels.Attributes, Any]] = {}
        self._applied: Any = None  # what the last `forward` made, for `backward`
        renew_in_children(self)

    def _after_fork(self) -> None:
        """In a forked child, no other thread draws from the model's stream, or is making Functions the model's own."""
        self._rng = copy.deepcopy(self._rng)  # with a lock of its own
        if self._is_adopting:
            self._is_adopting, self._tree = False, []

    # ---- building -----------------------------------------------------------------------------------------------

    def add(self, function: Function) -> Model:
        """Append a Function and return the model.

        Raises TypeError for anything but a Function and ValueError where its input can't have the shape before it.
        """
        self._extend([function])
        return self

    def _extend(self, functions: Iterable[Function]) -> None:
        new = list(functions)
        for function in new:
            if not isinstance(function, Function):
                raise TypeError(f"Model.add takes a Function such as ReLU(), got {function!r}{_instead_of(function)}")
            if self._is_sequence() and not _takes(type(function).forward, inputs=1):
                raise TypeError(f"Model.add takes a Function of one input, such as ReLU(), got {function!r}")
        if new and self._is_sequence():
            self._check_sequence([*self.functions, *new])
        self.functions.extend(new)
        if new:
            self.all_functions()

    def _is_sequence(self) -> bool:
        """Whether the model applies `functions` one after the other."""
        return type(self).call is Model.call

    @staticmethod
    def _check_sequence(functions: list[Function]) -> None:
        """ValueError where a Function can't follow the one before it, whatever number of axes the input has."""
        if Model._axes_that_fit(functions) is None:
            Model._shape_after(functions)

    @staticmethod
    def _axes_that_fit(functions: list[Function]) -> int | None:
        """With how many axes more than it requires the first input that fits all Functions comes; None if none does."""
        for more in range(4):
            with suppress(ValueError):
                Model._shape_after(functions, more=more)
                return more
        return None

    def all_functions(self) -> tuple[Function, ...]:
        """The Functions in the model and in its Functions, each once; those that are new become the model's own."""
        if not self._tree or not kernels.are_unchanged(self._tree):
            self._adopt()
        return self._adopted

    def structure(self) -> tuple:
        """How the Functions follow and contain each other; `all_functions` looks whether that has changed."""
        return self._structure

    def _find_structure(self) -> tuple:
        return tuple([f._find_structure() if isinstance(f, Model) else id(f) for f in self.functions])

    def _adopt(self) -> None:
        """Make all Functions the model's own: its dtype, its vectors, and drawn from its seed where they are new."""
        if self._identity != id(self):
            return
        with _adopting.lock:
            if self._is_adopting:
                return
            functions, self._is_adopting = self._all_within(), True
            try:
                if not (self._tree and _are_same(functions, self._adopted) and self._has_same_parameters()):
                    self._make_own(functions)
                self._note_tree(functions)
            finally:
                self._is_adopting = False

    def _has_same_parameters(self) -> bool:
        return _are_same(super().parameters(), self._parameters)

    def _all_within(self) -> tuple[Function, ...]:
        """The descendants. A Model among them that knows its own, and has not changed since, is not searched again."""
        found: dict[int, Function] = {}
        _search(self, found)
        return tuple(found.values())

    def _is_settled(self) -> bool:
        """Whether the model has looked for its Functions, and no attribute of them has changed since."""
        return self._identity == id(self) and bool(self._tree) and kernels.are_unchanged(self._tree)

    def _note_tree(self, functions: tuple[Function, ...]) -> None:
        """These are the model's own, as long as no attribute of them changes."""
        self._parameters_found = parameters_so_far()
        self._adopted, self._parameters = functions, super().parameters()
        self._structure = self._find_structure()
        self._tree = [_attributes(f) for f in (self, *functions)]

    def _make_own(self, functions: tuple[Function, ...]) -> None:
        recording = kernels.recorder()
        if recording is not None and recording.entries:  # which know the parameters where they are now
            recording.refuse(f"{type(self).__name__} got Functions in the midst of a recorded step; add them before")
        with kernels.Paused():
            models = [f for f in functions if isinstance(f, Model)]
            drawn = {id(f) for f in functions if self._known.get(id(f)) is f}
            for m in models:
                if not self._seeded:
                    m.all_functions()  # which draws from its own seed, if it has one
                if id(m) in drawn:  # what it has adopted since, it has drawn or kept
                    drawn.update(id(f) for f in m._all_within() if m._known.get(id(f)) is f)
            for m in models:
                m._remembered.clear()
                if m.dtype != self.dtype:
                    m.dtype = self.dtype
            for m in reversed(models):  # what is inside first: what it found serves those that contain it
                if not m._is_settled():
                    m._note_tree(m._all_within())
                    m._known.update({id(f): f for f in m._adopted})
            self._remembered.clear()
            if not is_blank():
                self._take_memory(functions)
                if self._seeded:
                    drawn.update(id(f) for f in functions if not all(p._is_as_drawn() for p in f.parameters()))
                    self._draw_children(self._rng, drawn)
            self._known.update({id(f): f for f in functions})
        if recording is not None:
            recording.look_again()

    def _take_memory(self, functions: Iterable[Function]) -> None:
        """Have parameters and buffers, which may have been made `without_values`, in memory of the model's dtype."""
        self._convert_buffers([self, *functions])
        self._lay_out()

    def _convert_buffers(self, functions: list[Function]) -> None:
        """Have the buffers of floats in the model's dtype, and all where they can be written."""
        for function in self._descendants():
            if isinstance(function, Columns):
                function.dtype = self.dtype
        exact = _exact_buffers(functions)
        other = {
            id(a): a
            for a in self.buffers().values()
            if not a.flags.writeable or (a.dtype in FLOATS and a.dtype != self.dtype and id(a) not in exact)
        }
        kept = exact | {i for i, a in other.items() if a.dtype not in FLOATS}
        converted = {i: a.astype(a.dtype if i in kept else self.dtype, order="C") for i, a in other.items()}
        for function in functions if other else ():
            _replaced(vars(function), converted, set())

    @property
    def takes_float64(self) -> bool:  # type: ignore[override]
        """Whether floats come as float64: as the first Function has it."""
        functions = self.functions
        return bool(functions) and functions[0].takes_float64

    @property
    def _input_dtype(self) -> np.dtype:
        """The dtype of inputs that are floats."""
        return FLOAT64 if self.takes_float64 else self.dtype

    def _lay_out(self) -> None:
        """Move the parameters into one vector, and their gradients into another, of the model's dtype."""
        parameters = self.parameters()
        size = sum(p.size for p in parameters)
        data, gradients = np.empty(size, self.dtype), np.empty(size, self.dtype)
        start = 0
        for p in parameters:
            here = slice(start, start + p.size)
            if p.size == 1 or any(p._data.strides):  # else it has no values
                data[here] = p._data.reshape(-1)
            if p._has_gradient and p._gradient is not None:
                gradients[here] = p._gradient.reshape(-1)
            p._data, p._gradient = data[here].reshape(p.shape), gradients[here].reshape(p.shape)
            if not p._has_gradient:
                p._use_no_rows()
            p._owns_data = True
            start += p.size

    def initialize(self, seed: Any) -> None:
        """Draw all parameters anew, from a seed (which also restarts the model's stream) or from a Generator."""
        rng = random_stream("seed", seed)
        if rng is not seed:
            self._rng, self._splits = rng, {}
        self.all_functions()
        self._draw_children(rng, set())

    def _draw(self, rng: np.random.Generator, drawn: set[int]) -> None:
        if type(self).initialize is Model.initialize:
            self._draw_children(rng, drawn)
        else:
            super()._draw(rng, drawn)

    def _parts(self) -> list[tuple[str, Any]]:
        """As every Function's; those in `functions` have their numbers alone as names."""
        return [(name.removeprefix("functions."), part) for name, part in super()._parts()]

    def parameters(self) -> list[Tensor]:
        """The parameters in order, W₁, b₁, W₂, b₂ …, a shared one once; see `Function.parameters`."""
        self.all_functions()
        if self._is_adopting or self._identity != id(self) or self._parameters_found != parameters_so_far():
            return super().parameters()
        return self._parameters.copy()

    @property
    def takes_indices(self) -> bool | tuple[bool, ...]:
        """Whether the input is integers, which are not converted to the model's dtype: as the first Function has it.

        A model that writes `call` sets it, with several inputs to a tuple.
        """
        given = vars(self).get("_takes_indices")
        return given if given is not None else bool(self.functions) and self.functions[0].takes_indices

    @takes_indices.setter
    def takes_indices(self, value: bool | tuple[bool, ...]) -> None:
        self._takes_indices = value

    @property
    def takes_sparse(self) -> bool:  # type: ignore[override]
        """Whether the input may be sparse: as the first Function has it; in `call`, those that get it say so."""
        return not self._is_sequence() or (bool(self.functions) and self.functions[0].takes_sparse)

    def _first_input(self, x: Any) -> Any:
        if is_sparse(x) and self._is_sequence() and self.functions:
            return self.functions[0]._first_input(x)
        return super()._first_input(x)

    # ---- shapes -------------------------------------------------------------------------------------------------

    @property
    def required_input_shape(self) -> Any:
        """The shape of the input that the first Function of a sequence requires."""
        return self.functions[0].required_input_shape if self.functions else None

    def output_shape(self, *input_shapes: Shape) -> Any:
        """The shape of y, or of each of several; of a model that writes `call`, by calling it on zeros.

        For that, all lengths but the first have to be known, else ValueError.
        """
        if self._is_sequence():
            count = len(input_shapes)
            if count != 1 and not (self.functions and _takes(type(self.functions[0]).forward, count)):
                raise ValueError(
                    f"{type(self).__name__} is a sequence of Functions, which takes one input, got {count} "
                    f"of shapes {', '.join(map(shape_text, input_shapes))}; for several, write `call`"
                )
            shapes: Any = input_shapes
            for function in self.functions:
                shapes = (function.output_shape(*shapes),)
            (shape,) = shapes
            return shape
        return self._shape_by_call(input_shapes, self._dtypes([False] * len(input_shapes)))

    def shape_for(self, inputs: Sequence[np.ndarray], n: int | None = None) -> Any:
        """`output_shape` for n rows like these; a model that writes `call` is called with masks where these are."""
        shapes: list[Any] = [(n, *x.shape[1:]) for x in inputs]
        if self._is_sequence() or type(self).output_shape is not Model.output_shape:
            return self.output_shape(*shapes)
        return self._shape_by_call(tuple(shapes), self._dtypes_like(inputs))

    def _shape_by_call(self, input_shapes: tuple[Shape, ...], dtypes: tuple[np.dtype, ...]) -> Any:
        self.all_functions()
        rows = tuple([shape[1:] for shape in input_shapes])
        shapes = self._found_by_applying(("shapes", rows, dtypes), lambda model: model._shapes_of_call(rows, dtypes))
        n = input_shapes[0][:1] if input_shapes else ()
        filled = [n + shape[1:] if shape[:1] == (None,) else shape for shape in _listed(shapes, of=tuple)]
        return tuple(filled) if shapes and isinstance(shapes[0], tuple) else filled[0]

    def _shapes_of_call(self, rows: tuple[Shape, ...], dtypes: tuple[np.dtype, ...]) -> Any:
        """The shapes of the outputs for rows of these shapes, None for the number of rows."""
        if any(None in shape for shape in rows):
            raise _UnknownLengths(
                f"{type(self).__name__}.output_shape calls the model, and has to know all lengths but the first; "
                f"got rows of {', '.join(map(str, rows))}"
            )
        n = 2  # as good as any other number, but no length that something is broadcast from
        outputs = self(*_blank([(n, *shape) for shape in rows], dtypes))
        shapes = [(None, *y.shape[1:]) if y.shape[:1] == (n,) else y.shape for y in _listed(outputs)]
        return tuple(shapes) if isinstance(outputs, tuple) else shapes[0]

    @staticmethod
    def _shape_after(functions: list[Function], shape: Any = None, *, more: int = 0) -> Any:
        """The shape after these; where it is not known, it is the one required, with so many axes more if it may."""
        for function in functions:
            shape = _with_axes(function.required_input_shape, more) if shape is None else shape
            try:
                shape = None if shape is None else function.output_shape(*_listed(shape, of=tuple))
            except _UnknownLengths:  # as after a convolution, before there are images
                shape = None
        return shape

    def summary(self, input_shape: tuple[Any, ...] | None = None) -> Table:
        """A table of the Functions: the shapes of their outputs, their parameters, and what they cost.

        `input_shape` is that of one row, without the batch axis, or a tuple of such for several inputs; it is needed
        where the first Function takes any shape. `memory` is that of the parameters; `multiply-adds`, those in products
        and convolutions, and `activations`, the memory of all outputs of Functions, are counted while the model is used
        on one row of zeros: "?" where lengths are unknown, Python computes, or a Function raises for zeros. What the
        model multiplies besides is in the total alone. What is frozen has a row of its own. A notebook shows the table
        as HTML.

        Raises TypeError for what is no shape, and ValueError for one that does not fit.
        """
        if input_shape is not None and not isinstance(input_shape, tuple | list):
            raise TypeError(f"summary: expected the shape of a row, such as (64,), got {input_shape!r}")
        more = self._axes_that_fit(self.functions) if self._is_sequence() else None
        shapes: Any = _listed(_with_axes(self.required_input_shape, more or 0), of=tuple)
        if input_shape is not None:
            shapes = [(None, *shape) for shape in _listed(input_shape, of=tuple)]
        if self._is_sequence() and len(shapes) != len(_listed(self.required_input_shape, of=tuple)):
            raise ValueError(f"summary: expected the shape of a row of one input, got {input_shape}")
        known = all(shape is not None and None not in shape[1:] for shape in shapes)
        if known:
            self.output_shape(*shapes)  # which says what does not fit
        applied = self._applied_to_a_row(shapes) if known else None
        known = applied is not None
        calls, applications = applied or ([], [])
        if self._is_sequence():
            parts, output = self._parts_in_sequence(shapes, applications), "total"
        else:
            parts, output = self._parts_of_call(applications, known), "?"
            if known:
                output = ", ".join(map(_text, _listed(self.output_shape(*shapes), of=tuple)))
        rows = []
        for name, function, text, own in parts:
            costs = _costs(function, [call for a in own for call in a.calls], own, known)
            rows.append((name, repr(function), text, *costs))
        rows.append(("", "" if output == "total" else "total", output, *_costs(self, calls, applications, known)))
        frozen = [p for p in self.parameters() if not p.requires_grad]
        if frozen:
            where = ("", "frozen") if output == "total" else ("frozen", "")
            rows.append(("", *where, *_sizes(frozen), "", ""))
        head = ["", "function", "output", "parameters", "memory", "multiply-adds", "activations"]
        return table(head, rows, "><<>>>>", cut=1)

    def _parts_in_sequence(self, shapes: list[Any], applications: list[Application]) -> list[tuple]:
        """The name, Function, output and application of each place."""
        within = {id(inner) for a in applications for inner in a.within}
        left = [a for a in applications if id(a) not in within]
        first_places = {id(function): name for name, function in self._named_children()}
        shape, parts = shapes[0] if len(shapes) == 1 else tuple(shapes), []
        for i, function in enumerate(self.functions):
            shape = self._shape_after([function], shape)
            own = [a for a in left if a.name == first_places[id(function)]][:1]
            left = [a for a in left if a not in own]
            parts.append((str(i), function, _text(shape), own))
        return parts

    def _parts_of_call(self, applications: list[Application], known: bool) -> list[tuple]:
        """The name, Function, output, if it is known, and applications of each child."""
        parts = []
        for name, function in self._named_children():
            own = [a for a in applications if a.name == name]
            shapes = [shape_text((None, *y.shape[1:])) for a in own[:1] for y in a.outputs]
            parts.append((name, function, ", ".join(shapes) if known else "?", own))
        return parts

    def _applied_to_a_row(self, shapes: list[Shape]) -> tuple[list[Any], list[Application]] | None:
        """The kernel calls of using the model on a row of zeros, and the applications of the Functions in it.

        None where one of them raises: zeros may be what it does not take.
        """
        self.all_functions()
        with (
            inference(),
            probing(),
            kernels.Paused(),
            self._undisturbed(),
            Recording(strict=False) as recording,
            np.errstate(all="ignore"),
        ):
            model, applications = observed(self)
            try:
                model(*_blank([(1, *shape[1:]) for shape in shapes], self._dtypes([False] * len(shapes))))
            except Exception:
                return None
        return recording.entries, applications

    def _dtypes(self, are_masks: Sequence[bool]) -> tuple[np.dtype, ...]:
        """What the model gets where inputs are bool, or are not; see `as_inputs`."""
        n, takes = len(are_masks), self.takes_indices
        takes = takes if isinstance(takes, tuple) else (takes,) * n
        if len(takes) != n:
            raise ValueError(f"{type(self).__name__} takes {len(takes)} inputs, got {n}")
        kinds = zip(takes, are_masks, strict=True)
        return tuple([INT64 if indices else BOOL if mask and n > 1 else self._input_dtype for indices, mask in kinds])

    def _dtypes_like(self, inputs: Sequence[Any]) -> tuple[np.dtype, ...]:
        """What the model gets where inputs are like these; that of their rows where they are sparse."""
        dtypes = self._dtypes([stored(x).dtype == np.bool_ for x in inputs])
        pairs = zip(inputs, dtypes, strict=True)
        return tuple([kernels.sparse_row(dtype, x.shape[1]) if is_sparse(x) else dtype for x, dtype in pairs])

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def __repr__(self) -> str:
        if self._is_sequence():
            return f"Model([{', '.join(map(repr, self.functions))}])"
        return f"{type(self).__name__}({', '.join([f'{name}={child!r}' for name, child in self._named_children()])})"

    # ---- state --------------------------------------------------------------------------------------------------

    def _named_state(self) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
        """The parameters and the buffers by name; ValueError where one of each has the same."""
        parameters, buffers = self.named_parameters(), self.buffers()
        if not parameters.keys().isdisjoint(buffers):
            raise ValueError(f"a parameter and a buffer have the name {min(parameters.keys() & buffers)}")
        return parameters, buffers

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, `0.weight`, `0.bias`, `2.weight` …, and of the buffers, by name."""
        parameters, buffers = self._named_state()
        return {name: p.data.copy() for name, p in parameters.items()} | {k: x.copy() for k, x in buffers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the values of a `state_dict`, parameters in the model's dtype, buffers in their own.

        Raises ValueError, before anything is written, for names or shapes that are not this model's, and for values
        that a buffer of integers can't hold; TypeError for what is not numbers.
        """
        parameters, buffers = self._named_state()
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict: expected a dict of names and arrays, got {state!r}")
        if {*parameters, *buffers} != state.keys():
            raise ValueError(f"Model has the parameters {[*parameters, *buffers]}, got {list(state)}")
        if buffers and kernels.recorder() is not None:
            kernels.refuse("load_state_dict")
        new: dict[str, np.ndarray] = {}
        for name, old in (parameters | buffers).items():
            what = f"load_state_dict, {name}"
            if isinstance(old, Tensor) or old.dtype in FLOATS:
                new[name] = as_real(state[name], old.dtype, what)
            else:
                given = as_array(state[name], what)
                new[name] = given.astype(old.dtype)
                if not np.array_equal(new[name], given):
                    raise ValueError(f"{what}: expected values that {old.dtype} holds, got {given.dtype}")
            if new[name].shape != old.shape:
                raise ValueError(f"load_state_dict: {name} has shape {old.shape}, got {new[name].shape}")
        for name, p in parameters.items():
            p.data = new[name]
        for name, array in buffers.items():
            array[...] = new[name]

    def save(self, path: str | os.PathLike) -> None:
        """Write parameters and buffers to a safetensors file, of which Functions the model is made, and what is frozen.

        The file replaces an older one when it is whole. `caffelite.load` makes the model again, given its classes that
        are not caffelite's: they say by `arguments()` what they are made with. Where something can't say it, its
        parameters are saved nevertheless, for `Model.load`.

        Raises OSError naming the path if the file can't be written, and leaves an older one as it was.
        """
        files.write(path, self._arrays(), self._texts())

    def _arrays(self) -> dict[str, np.ndarray]:
        """Parameters and buffers themselves, by name."""
        parameters, buffers = self._named_state()
        return {name: p.data for name, p in parameters.items()} | buffers

    def _texts(self) -> dict[str, str]:
        """The structure, as a file has it, or why there is none; the names of frozen parameters, and of columns."""
        frozen = [name for name, p in self.named_parameters().items() if not p.requires_grad]
        texts = {"caffelite.frozen": structure.as_text(frozen)} if frozen else {}
        if self._column_names is not None:
            texts["caffelite.columns"] = structure.as_text(self._column_names)
        try:
            return {"caffelite.structure": structure.as_text(structure.described(self)), **texts}
        except structure.Unwritable as error:
            return {"caffelite.unwritten": str(error), **texts}

    def _frozen_in(self, texts: Mapping[str, str]) -> set[str]:
        """The names of the parameters that are frozen by the texts of a file; ValueError for any that there is not."""
        frozen = files.strict_json(texts.get("caffelite.frozen", "[]"))
        if not isinstance(frozen, list) or not all(isinstance(name, str) for name in frozen):
            raise ValueError(f"expected a list of the frozen parameters' names, got {frozen!r}")
        if unknown := set(frozen) - self.named_parameters().keys():
            raise ValueError(f"the model has no parameter {min(unknown)}, which is said to be frozen")
        return set(frozen)

    @staticmethod
    def _columns_in(texts: Mapping[str, str]) -> list[list[Any] | None] | None:
        """The names of columns, for each input, in the texts of a file; ValueError for what are none."""
        given = files.strict_json(texts.get("caffelite.columns", "null"))
        inputs = [] if given is None else given
        if not isinstance(inputs, list) or not all(names is None or isinstance(names, list) for names in inputs):
            raise ValueError(f"expected the names of columns, for each input, got {given!r}")
        if not all(isinstance(name, str | int) for names in inputs for name in names or ()):
            raise ValueError(f"expected names of columns that are words or integers, got {given!r}")
        return given

    def _freeze(self, names: set[str]) -> None:
        """Freeze the parameters of these names, and thaw all others."""
        for name, p in self.named_parameters().items():
            p.requires_grad = name not in names

    def load(self, path: str | os.PathLike) -> Model:
        """Take over parameters and buffers from a file that a model of the same structure has saved; returns the model.

        Any safetensors file will do that has arrays of the same names and shapes, but for one whose metadata say that
        it is PyTorch's: its weights are transposed. Floats are converted to the model's dtype. Raises OSError for a
        path that can't be read, and ValueError, before anything is written, for what is no such file, and for other
        names, shapes or kinds of numbers.
        """
        with files.File(path) as file:
            found = self._found(file, self._forms(), exactly=False)
            self.load_state_dict(file.arrays(found))
        return self

    def _forms(self) -> dict[str, files.Form]:
        """Shape and dtype of parameters and buffers, by name; of a model that is made `without_values`, too."""
        parameters, buffers = self._named_state()
        return self._forms_of(parameters | buffers)

    def _forms_of(self, state: dict[str, Any]) -> dict[str, files.Form]:
        exact = _exact_buffers(self._descendants())
        return {
            name: files.Form(x.shape, self.dtype if x.dtype in FLOATS and id(x) not in exact else x.dtype)
            for name, x in state.items()
        }

    @staticmethod
    def _found(file: files.File, forms: dict[str, files.Form], exactly: bool) -> dict[str, files.Form]:
        """What there is of the model in a file, names and forms; ValueError unless it is all that it has."""
        file.refuse_pytorchs()
        found = {name: form for name, form in file.forms.items() if not name.startswith(files.OF_TRAINING)}
        file.check(forms, found, exactly)
        return found

    def _fill(self, file: files.File) -> None:
        """Have the values in a file, of a model that was made `without_values`."""
        parameters, buffers = self._named_state()
        forms, exact = self._forms_of(parameters | buffers), _exact_buffers(self._descendants())
        exact_names = {name for name, x in buffers.items() if id(x) in exact}
        older = {name for name in exact_names if name in file.forms and file.forms[name].dtype == self.dtype}
        forms.update({name: forms[name]._replace(dtype=self.dtype) for name in older})
        self._found(file, forms, exactly=True)
        self._take_memory(self._descendants())
        arrays = {name: p._data for name, p in parameters.items()} | self.buffers()
        rounded = {name: np.empty_like(arrays[name], self.dtype) for name in older}
        file.read(arrays | rounded)
        for name, values in rounded.items():
            arrays[name][...] = values
        for p in parameters.values():
            p._changed()

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if name not in self.unwatched or name in KEPT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
        self._known.update({id(f): f for f in self._descendants()})  # drawn as they are
        self.all_functions()

    # ---- forward and backward -----------------------------------------------------------------------------------

    def decider(self) -> Callable[..., Any]:
        return self.call

    def call(self, *inputs: Any) -> Any:
        """What the model computes: Tensors in (integers and bool as arrays), a Tensor or a tuple of Tensors out.

        By default the `functions` in sequence.
        """
        for function in self.functions:
            inputs = (function(*inputs),)
        return inputs[0]

    def __call__(self, *inputs: Any) -> Any:
        """`call` on Tensors, arrays or lists of the model's dtype; the graph is that of the Functions it applies."""
        self.all_functions()
        if type(self).forward is not Model.forward and self._is_sequence():
            return super().__call__(*inputs)  # a subclass's own
        recording = kernels.recorder()
        if recording is not None:
            self._shallow_copy()
        outputs = self.call(*map(self._as_input, inputs))
        if isinstance(outputs, tuple) and not outputs:
            raise TypeError(f"{type(self).__name__}.call has to return a Tensor or a tuple of them, got ()")
        for y in _listed(outputs):
            if not isinstance(y, Tensor):
                raise TypeError(f"{type(self).__name__}.call has to return a Tensor or a tuple of them, got {y!r}")
        return outputs

    def _as_input(self, x: Any) -> Any:
        """What `call` is given: floats as a Tensor, all else as it is."""
        if is_sparse(x):
            return as_sparse(x)
        if isinstance(x, list | tuple) and not holds_tensors(x):
            x = as_indices(x, self) if self.takes_indices is True else as_real(x, self._input_dtype, self)
        elif not isinstance(x, Tensor) and is_array_of_others(x):
            x = as_array(x, self)
        return Tensor(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x

    def forward(self, *inputs: Any) -> Any:
        """Through copies of all Functions, which keep what `backward` needs; the Functions themselves keep nothing."""
        self.all_functions()
        if not self._is_sequence():
            return self._forward_by_call(inputs)
        self._applied = [function.copy() for function in self.functions]
        if is_sparse(inputs[0]):
            inputs = (self._first_input(inputs[0]),)
        for function in self._applied:
            inputs = (function.forward(*inputs),)
            if inputs[0] is None:
                raise TypeError(f"{function!r}.forward returned None; it has to return an array")
        return inputs[0]

    def backward(self, dy: Any) -> Any:
        """Back through the copies that the last `forward` made: the gradient of every float input."""
        if self._applied is None:
            raise RuntimeError(f"{type(self).__name__}.backward without a forward")
        if not self._is_sequence():
            return self._backward_by_call(dy)
        for function in reversed(self._applied):
            dy = function.backward(dy)
            if dy is None and not (function.takes_indices or function.takes_sparse):
                raise TypeError(f"{function!r}.backward returned None; it has to return the gradient of its input")
        return dy

    def _forward_by_call(self, inputs: tuple) -> Any:
        """The arrays that `call` computes, with the graph for `backward`."""
        given = [self._as_input(x) for x in inputs]
        for x in given:
            if isinstance(x, Tensor):
                x._requires_grad = True
        before, mode.records_graph = mode.records_graph, True
        try:
            outputs = self(*given)
        finally:
            mode.records_graph = before
        self._applied = given, outputs
        return tuple([y.data for y in outputs]) if isinstance(outputs, tuple) else outputs.data

    def _backward_by_call(self, dy: Any) -> Any:
        inputs, outputs = self._applied
        gradients: dict[Tensor, np.ndarray] = {}
        dys = dy if isinstance(outputs, tuple) else (dy,)
        if not isinstance(dys, tuple) or len(dys) != len(_listed(outputs)):
            raise ValueError(f"{type(self).__name__}.backward takes as many gradients as the model has outputs")
        for y, d in zip(_listed(outputs), dys, strict=True):
            if d is None or not y.requires_grad:
                continue
            d = as_real(d, y.dtype, "backward")
            if d.shape != y.shape:
                raise ValueError(f"backward of an output of shape {y.shape} got a gradient of shape {d.shape}")
            gradients[y] = d if y not in gradients else kernels.add(gradients[y], d)
        for x in inputs:
            if isinstance(x, Tensor):
                x._has_gradient = False
        propagate(gradients)
        dxs = [_gradient_of(x) if isinstance(x, Tensor) else None for x in inputs]
        return dxs[0] if len(dxs) == 1 else tuple(dxs)

    # ---- training and use ---------------------------------------------------------------------------------------

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        loss: Function | Callable[..., Tensor],
        optimizer: Optimizer | OfTeam,
        epochs: int = 1,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        validation_data: Any = None,
        validation_split: float = 0.0,
        callbacks: Iterable[Callable[[int, History], Any]] = (),
        metrics: Iterable[str | Metric] = (),
        verbose: int | str = "auto",
        seed: int | None = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | str | None = None,
        clip_norm: float | None = None,
        resume: str | os.PathLike | None = None,
    ) -> History:
        """Train from the present parameters on.

        Parameters
        ----------
        x, y : array-like (n, …)
            The rows and their targets; or x a DataGenerator or any iterable of (x, y) or (x, y, weights) batches, which
            each epoch goes through once, and no y. A tuple x, of arrays of as many rows, is several inputs. Converted
            to the model's dtype (integer targets stay integers, and so do inputs that the model takes as indices) and
            never written. Frames of pandas or polars, or dicts of columns, are arrays of their numbers, and tables for
            a model that begins with `Columns`. A sparse matrix of SciPy's stays sparse where it goes into a Linear, and
            its gradient too. Mapped files, h5py datasets and what else has `shape`, `dtype` and slices are read block
            by block where they are large; `caffelite.sources` says in what order.
        loss : Function, or callable (outputs, targets) -> Tensor
            Called with outputs and targets, and with weights if there are any; returns a single element. If the model
            has several outputs, it gets a tuple.
        optimizer : Optimizer
            Has to know every parameter that requires a gradient. `caffelite.mpi.DataParallel` makes one for several
            processes, each of which takes its share of every batch.
        epochs : int
        batch_size : int, optional
            32 if it is None. A DataGenerator and batches have their own: ValueError for another one. The last batch
            of an epoch may be short; its rows weigh as the loss weighs them. If a BatchNorm is trained
            and the last batch would have one row, that row joins the batch before it.
        shuffle : bool, optional
            Whether each epoch has its own order; True if it is None. A DataGenerator and batches have their own order.
        validation_data : (x, y), (x, y, weights) or DataGenerator
            Evaluated after each epoch.
        validation_split : float in [0, 1)
            The share of the rows, drawn at random before the first epoch, that is not trained on but evaluated
            instead; of what is read, whole blocks. A model remembers its split: every further `fit` on as many rows
            holds out the same rows, unless it is given a `seed`. Copies and pickles remember it, too; files do not.
        callbacks : iterable of callables (epoch, history)
            Called after each epoch, counted from 0; one that returns True ends the training. They may also have
            `begin` and `end`; see `caffelite.callbacks`, where some are ready-made.
        metrics : iterable of names or callables (outputs, targets) -> float
            "accuracy", "top_k(3)", "precision", "recall", "f1", "auc", "mse", "mae", "rmse", "r2" (see
            `caffelite.metrics`). A callable is called once an epoch, with the outputs and the targets of all its rows;
            targets (n,) for outputs (n, 1) come as (n, 1). The outputs are those that the steps computed.
        verbose : 0 silent, 1 a bar, 2 a line an epoch, "auto"
        seed : int, optional
            For the split and the orders, instead of the model's own stream.
        sample_weight : array-like (n,), optional
            How much each row weighs in the loss, not negative. The loss of an epoch is then Σ w l / Σ w; a batch whose
            weights are all 0 is passed over.
        class_weight : {label: weight} or "balanced", optional
            How much each row weighs by its label in y, labels being integers, one a row; 1 for labels that are missing.
            "balanced" is n / (number of classes · rows of the class), of all rows given, as scikit-learn has it. It
            multiplies `sample_weight`, and has no part in validation. A DataGenerator and batches bring their own
            weights instead.
        clip_norm : float, optional
            The largest norm that the gradients, all together, may have; larger ones are scaled down to it, as
            `Optimizer.clip_gradients` says.
        resume : path, optional
            A checkpoint (`callbacks.Checkpoint`) of the same training, which goes on there and ends with the bits of
            one that never stopped; `epochs` includes what was done before. Data, batch size, model, optimizer, loss,
            metrics, dtype and what is frozen have to be the same, else ValueError saying which is not, and all is left
            as it was. The optimizer's rates and other numbers are those of the checkpoint; but if the optimizer has
            another schedule than it had then, it follows that, from the checkpoint's step on. Of what is read block by
            block, rows from all over it are compared. An iterable of batches is gone through again up to there. A path
            where there is no file is a FileNotFoundError.

        Raises
        ------
        ValueError, TypeError, IndexError
            For data, labels, indices and options that cannot be used, before the first step where data are in memory.
        TrainingDiverged
            If the loss or a gradient is not finite; parameters are as they were before that step. Has `history`.
        KeyboardInterrupt
            On Ctrl-C, after the step under way. Has `history`, of the completed epochs.
        """
        rule, team = joined(optimizer)
        data = [x, validation_data, seed]
        with team.entered(), Start(resume, self, rule, called := Callbacks(callbacks), data) as start:
            until, measures = positive_integer("epochs", epochs, math.inf), named(metrics)
            clip_norm = None if clip_norm is None else positive("clip_norm", clip_norm)
            loss = checks.as_loss(loss)
            checks.check_optimizer(self, rule)
            rng = self._rng if seed is None else random_stream("seed", seed)
            team.share_streams(self._rng, rng)
            start.read(team, rng)
            fitting = Fitting(self, loss, measures, rule, clip_norm, called, team, start, rng)
            given = {"batch_size": batch_size, "shuffle": shuffle}
            held_out = validation_data, validation_split, seed is not None
            batches, validation, columns = checks.training_batches(
                self, loss, x, y, sample_weight, class_weight, given, rng, *held_out
            )
            history = fitting.run(batches, validation, columns, until, verbose)
        self._warn_of_overflow()
        return history

    def predict(self, x: Any, *, batch_size: int = 1024) -> Any:
        """The outputs (n, …) for the rows of x (n, …), taken as in `fit`; a tuple where the model has several.

        Of a classifier they are scores: `argmax(axis=1)` are the labels, `loss.link` of them the probabilities.
        A row's output does not depend on the rows beside it. May be called from several threads at once.
        Raises ValueError for no rows or rows of another shape, TypeError for what is not numbers, IndexError for an
        index that is not in its table.
        """
        batch_size = positive_integer("batch_size", batch_size)
        inputs = self.as_inputs("predict", x)
        rows = same_length("predict", inputs)
        if Source in map(type, inputs):
            return self._predict_source(inputs, rows, batch_size)
        try:
            with inference():
                if rows <= batch_size:
                    return self._outputs(inputs)
                outputs = [self._outputs([x[i : i + batch_size] for x in inputs]) for i in range(0, rows, batch_size)]
        except IndexError:
            self.check_indices("predict", inputs)  # which knows the row, and not only that in the batch
            raise
        if isinstance(outputs[0], tuple):
            return tuple([np.concatenate(column) for column in zip(*outputs, strict=True)])
        return np.concatenate(outputs)

    def _predict_source(self, inputs: tuple[Any, ...], rows: int, batch_size: int) -> Any:
        """The outputs for rows of which some are read."""
        outputs: Any = None
        generator = DataGenerator(inputs, batch_size=batch_size, shuffle=False, seed=0)
        columns, place = list(inputs), 0
        with closing(generator.buffers(columns, generator.memory_for(columns))) as buffers:
            for read in buffers:
                rows_read, order, _ = read()
                try:
                    found = self.predict(tuple(rows_read), batch_size=batch_size)
                except IndexError as error:
                    raise IndexError(f"among the rows from {place:,} on, {place:,} being row 0: {error}") from None
                if outputs is None:
                    outputs = [np.empty((rows, *y.shape[1:]), y.dtype) for y in _listed(found)]
                for y, part in zip(outputs, _listed(found), strict=True):
                    y[place : place + len(order)] = part
                place += len(order)
        return tuple(outputs) if isinstance(found, tuple) else outputs[0]

    def _outputs(self, inputs: Sequence[np.ndarray]) -> Any:
        forms = [(x.shape, x.dtype, type(x)) for x in inputs]
        functions = self.all_functions()
        program = self._programs.find(functions, "outputs", self.structure(), *forms)
        if program.used is not functions:
            self.check_rows("predict", tuple(inputs))
            program.used = functions
        return program.run(self._checked_call, *inputs)

    def _checked_call(self, *inputs: np.ndarray) -> Any:
        """A call for `predict`, which is replayed later: then inputs of these shapes need no check."""
        self.check_rows("predict", inputs)
        return self(*inputs)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        loss: Function | Callable[..., Tensor],
        metrics: Iterable[str | Metric] = (),
        batch_size: int | None = None,
        sample_weight: Any = None,
    ) -> dict[str, float]:
        """The loss and the metrics on x (n, …) and y (n, …), or on a DataGenerator or an iterable of batches.

        Data, weights and metrics are as in `fit`; `batch_size` is 1024 if it is None. Raises as `fit` does.
        """
        loss = checks.as_loss(loss)
        measures = named(metrics)
        given = {"batch_size": batch_size}
        batches = checks.batches(self, "x", x, y, sample_weight, loss, given, batch_size=1024, shuffle=False)
        step = EvaluationStep(self, Objective(loss, measures, self._programs.told))
        return dict(zip(step.objective.names, Evaluation(step, batches)(), strict=True))

    # ---- checks -------------------------------------------------------------------------------------------------

    def as_inputs(self, name: str, x: Any) -> tuple[np.ndarray, ...]:
        """x as arrays that the model takes, see `caffelite.data.as_inputs`; a frame by `Columns` if that is first.

        ValueError for a frame whose columns are not those of the one that the model was fitted on, and for rows without
        names where `Columns` has numbers and categories.
        """
        if type(x) is not np.ndarray:
            if isinstance(x, list) and (least := self._fewest_inputs()) > 1:
                raise ValueError(f"{name}: the model takes {least} inputs, got 1{way_to_several(x)}")
            columns = self._columns()
            if columns is not None and frames.is_frame(x):
                x = columns.arrays(x, name)
            else:
                self.check_frames(name, x)
        takes = self.takes_indices
        if isinstance(takes, tuple) and not isinstance(x, tuple) and (columns := self._columns()) is not None:
            raise ValueError(f"{name}: expected {columns.expected}; got one {type(x).__name__}")
        return as_inputs(x, self._input_dtype, takes, name)

    def _fewest_inputs(self) -> int:
        """How many inputs the model takes at least."""
        if self._is_sequence():
            return 1
        inputs = inspect.signature(self.call).parameters.values()
        return sum(x.default is x.empty and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD) for x in inputs)

    def check_frames(self, name: str, x: Any, expected: Any = None) -> None:
        """`check_columns` of the frames in x, but for one in which `Columns` finds its own."""
        if self._columns() is None or not frames.is_frame(x):
            self.check_columns(name, frames.names_of_inputs(x), expected)

    def check_columns(self, name: str, columns: Any, expected: Any = None) -> None:
        """ValueError unless frames with these columns, as arrays, are such as the model was, or will be, fitted on."""
        first = self._columns()
        expected = (self._column_names or expected) if first is None else first.names
        if expected is not None:
            frames.check_names(expected, columns, name)

    def remember_columns(self, names: list[list[Any] | None] | None) -> None:
        """From now on frames have to have these columns, unless there are some already; `Columns` finds its own."""
        if names is not None and self._column_names is None and self._columns() is None:
            self._column_names = names

    def _columns(self) -> Columns | None:
        """The Columns that are first in a sequence."""
        first: Function = self
        while Model in type(first).__mro__ and first._is_sequence() and first.functions:  # type: ignore[attr-defined]
            first = first.functions[0]  # type: ignore[attr-defined]
        return first if Columns in type(first).__mro__ else None  # type: ignore[return-value] # isinstance is slow here

    def check_rows(self, name: str, inputs: tuple[np.ndarray, ...]) -> int:
        """How many rows the inputs have; ValueError if it is none, or if they are not what the model takes."""
        rows = same_length(name, inputs)
        if self._is_sequence() and not self.functions:
            raise ValueError(f"{type(self).__name__} has no Functions: add some, or write what it computes in `call`")
        if is_sparse(inputs[0]) and self._is_sequence():
            self._first_input(inputs[0])
        self.shape_for(inputs)
        return rows

    def check_indices(self, name: str, inputs: tuple[np.ndarray, ...]) -> None:
        """IndexError naming the first row with an index that a Function in the model does not take.

        What an input is used for is seen on two rows of zeros: an index that goes somewhere by other ways than a view
        of the input is checked by the Function that gets it, and by no other.
        """
        takes = self.takes_indices
        if not (any(takes) if isinstance(takes, tuple) else takes):
            return
        names = [f"{name}[{i}]" for i in range(len(inputs))] if len(inputs) > 1 else [name]
        for x, of, most in zip(inputs, names, self._largest_indices(inputs), strict=True):
            if most is not None and not isinstance(x, Source):  # which is checked when it has been read
                indices = as_indices(x, of)
                if (indices.view(np.uint64) > most).any():
                    refuse_indices(of, most, x.shape, x.dtype, indices)

    def _largest_indices(self, inputs: tuple[np.ndarray, ...]) -> list[np.ndarray | None]:
        """What `largest_indices` finds, for each input."""
        if not any(f.index_count is not None for f in self.all_functions()):
            return [None] * len(inputs)
        dtypes = self._dtypes_like(inputs)
        key = "largest indices", tuple([x.shape[1:] for x in inputs]), dtypes

        def find(model: Model) -> list[np.ndarray | None]:
            rows = _blank([(2, *x.shape[1:]) for x in inputs], dtypes)
            model, applications = observed(model)
            model(*rows)
            return largest_indices(applications, rows)

        return self._found_by_applying(key, find)

    def _found_by_applying(self, key: tuple, find: Callable[[Model], Any]) -> Any:
        """What `find` returns of a copy of the model, kept by the key as long as the model's attributes stay."""
        attributes, found = self._remembered.get(key, (None, None))
        if attributes is None or not kernels.are_unchanged([attributes]):
            with inference(), probing(), kernels.Paused(), np.errstate(all="ignore"), self._undisturbed():
                other: Any = self._shallow_copy()  # for what `call` may keep
                found = find(other)
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            own = {k: x for k, x in self._influential(other).items() if k not in self.unwatched}
            self._remembered[key] = kernels.Attributes(self, own), found
        return found

    def _undisturbed(self) -> AbstractContextManager[None]:
        """Inside, a user's `call` or `forward` may run once more without a trace in what it counts and draws."""
        users = [f for f in (self, *self._adopted) if not f.decider().__module__.startswith("caffelite.")]
        if not users:
            return nullcontext()
        from caffelite.core.surroundings import undisturbed  # which few need

        return undisturbed(users)

    def _stream_of_split(self, rows: int, rng: np.random.Generator, drawn_anew: bool) -> np.random.Generator:
        """The random stream that a split of so many rows is drawn from; that of the last such split, if there was one.

        So a further `fit` evaluates no row that the model was trained on.
        """
        if not drawn_anew and rows in self._splits:
            return copy.deepcopy(self._splits[rows])
        self._splits[rows] = copy.deepcopy(rng)
        return rng

    def trains_batch_norm(self) -> bool:
        """Whether a training uses the moments of each batch, which takes more than one row."""
        return any(f.requires_grad for f in self.all_functions() if BatchNorm in type(f).__mro__)

    def _warn_of_overflow(self) -> None:
        """Warn of a BatchNorm whose running variance its dtype cannot hold: `predict` then uses a smaller one."""
        for function in self.all_functions():
            if isinstance(function, BatchNorm):
                beyond = function.variance == np.finfo(function.variance.dtype).max
                if beyond.any():
                    warn(
                        f"{function!r}: the variance of feature {int(beyond.argmax())} is beyond {self.dtype}, and "
                        "predictions differ from the training: divide that feature by a constant, or take "
                        "Model(dtype=np.float64)"
                    )


def _instead_of(x: Any) -> str:
    """What to do, for those who have given this as a Function."""
    if isinstance(x, type) and issubclass(x, Function):
        return f"; {x.__name__}(…) makes one"
    return "; functions of Tensors are for a Model that writes `call`" if callable(x) else ""


def _are_same(these: Sequence[Any], those: Sequence[Any]) -> bool:
    """Whether these objects are those."""
    return len(these) == len(those) and all(map(operator.is_, these, those))


def _attributes(function: Function) -> kernels.Attributes:
    """The attributes of a Function in which there are Functions or parameters, or could be when they are others."""
    own = {
        name: value
        for name, value in vars(function).items()
        if name not in function.unwatched
        and type(value) not in PLAIN
        and (not isinstance(value, Tensor) or parameters_of(value))
    }
    return kernels.Attributes(function, own, count=len(vars(function)))


def _search(function: Function, found: dict[int, Function]) -> None:
    """Add what `_all_within` gives to the Functions found, by their ids."""
    for child in function.children():
        if id(child) not in found:
            found[id(child)] = child
            if isinstance(child, Model) and child._is_settled():
                for inner in child._adopted:
                    found.setdefault(id(inner), inner)
            else:
                _search(child, found)


def _exact_buffers(functions: Iterable[Function]) -> set[int]:
    """The ids of the buffers that stay float64 in any model: the moments of Columns."""
    return {id(a) for f in functions if isinstance(f, Columns) for a in (f.mean, f.deviation)}


def _replaced(value: Any, arrays: dict[int, np.ndarray], seen: set[int]) -> Any:
    """The value with these arrays in the place of others, whose ids are given. Lists and dicts stay the same ones."""
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


@functools.lru_cache(maxsize=1024)
def _takes(forward: Callable[..., Any], inputs: int) -> bool:
    """Whether a Function's `forward` can be called with so many inputs."""
    try:
        inspect.signature(forward).bind(None, *[None] * inputs)
    except TypeError:
        return False
    return True


class _UnknownLengths(ValueError):
    """A model that writes `call` was asked for its output's shape without all lengths of its input's."""


def _blank(shapes: list[Any], dtypes: tuple[np.dtype, ...]) -> list[np.ndarray]:
    """Inputs of these shapes: zeros, masks that are True everywhere, and sparse rows with nothing in them."""
    return [
        given_as(np.zeros(shape[0], dtype)) if dtype.names else np.full(shape, dtype == np.bool_, dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def _with_axes(shape: Any, more: int = 0) -> Any:
    """A required shape with so many axes for the `...` in it, if there is one."""
    return shape and tuple([n for m in shape for n in ((None,) * more if m is ... else (m,))])


def _listed(outputs: Any, of: type = Tensor) -> list[Any]:
    """The outputs, or shapes, of a model in a list, a single one too."""
    is_single = not isinstance(outputs, tuple) or (of is tuple and not any(isinstance(y, tuple) for y in outputs))
    return [outputs] if is_single else list(outputs)


def _costs(function: Function, calls: list[Any], applications: list[Application], known: bool) -> tuple[str, ...]:
    """Of a Function that does this for a row: parameters, their memory, multiply-adds, activations."""
    made = multiply_adds(calls) if known else None
    activations = bytes_text(bytes_made(applications)) if known else "?"
    return *_sizes(function.parameters()), "?" if made is None else f"{made:,}", activations


def _sizes(parameters: list[Tensor]) -> tuple[str, str]:
    """The number of all elements, and their memory."""
    return f"{sum(p.size for p in parameters):,}", bytes_text(sum(p._data.nbytes for p in parameters))


def _text(shape: Any) -> str:
    """A shape as it is written, ? where nothing is known of it."""
    return "?" if shape is None else shape_text(shape)


def _gradient_of(x: Tensor) -> np.ndarray:
    """The gradient of a leaf; 0 where nothing contributed."""
    gradient = x.grad
    return kernels.full(x.shape, 0, x.dtype) if gradient is None else gradient


def MLP(
    inputs: int,
    sizes: Iterable[int],
    activation: Callable[[], Function] = ReLU,
    *,
    seed: int | None = None,
    dtype: Any = np.float32,
) -> Model:
    """A multilayer perceptron: a Model of Linear layers with an activation between them, and none after the last.

    `MLP(2, [100, 3])` is `Model([Linear(2, 100), ReLU(), Linear(100, 3)])`.

    Parameters
    ----------
    inputs : int
        The number of features of a row.
    sizes : iterable of int
        The number of outputs of each layer; the last is that of the model.
    activation : class or callable without arguments that returns a Function
        Called for each hidden layer, so that each has an activation of its own.
    seed, dtype
        As in `Model`.

    Raises TypeError or ValueError for sizes that are no positive integers, for no sizes, and for other activations.
    """
    if not isinstance(sizes, Iterable):
        raise TypeError(f"MLP takes the sizes of its layers in a list, MLP(2, [100, 3]), got {sizes!r}")
    if isinstance(activation, Function) or not callable(activation):
        raise TypeError(f"MLP: activation must be a class or a callable that makes a Function, got {activation!r}")
    inputs = positive_integer("MLP: inputs", inputs)
    sizes = [positive_integer(f"MLP: sizes[{i}]", size) for i, size in enumerate(sizes)]
    if not sizes:
        raise ValueError("MLP needs the size of at least one layer, got none")
    model = Model([Linear(inputs, sizes[0])], seed=seed, dtype=dtype)
    for before, size in pairwise(sizes):
        try:
            function = activation()
        except TypeError as error:
            raise TypeError(
                f"MLP: activation must be a class or a callable that makes a Function, got {activation!r}: {error}"
            ) from error
        if not isinstance(function, Function):
            raise TypeError(f"MLP: activation must make a Function, {activation!r} returned {function!r}")
        model.add(function).add(Linear(before, size))
    return model
