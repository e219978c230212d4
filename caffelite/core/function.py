"""Function: an operator, forward and backward. Everything that a Model is made of is one, and so are losses."""

from __future__ import annotations

import copy
import functools
import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import FLOATS, as_array, as_indices, as_real, is_array_of_others
from caffelite.core.autograd import (
    applied_to,
    call,
    checked_input,
    fits,
    holds_tensors,
    is_childless,
    parameters_among,
    parameters_of,
)
from caffelite.core.construction import attributes_of
from caffelite.core.inputs import Shape, refusal
from caffelite.core.inputs import shape_text as shape_text
from caffelite.core.modes import initializing, without_values
from caffelite.core.recording import in_python
from caffelite.core.sparse import as_sparse, is_sparse
from caffelite.core.tensor import Tensor
from caffelite.core.terminal import writable

#: The types of attributes that hold neither Functions nor Tensors.
LEAVES = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        str,
        np.ndarray,
        kernels.Recorded,
        types.FunctionType,
        types.MethodType,
        type,
    }
    | {type(dtype) for dtype in FLOATS}
)


def formula_of(kind: type[Function]) -> Callable[..., Any] | None:
    """The `formula` of a class; None if it has none, or if it is of a base that computes something else."""
    for base in kind.__mro__:
        if "formula" in vars(base):
            return kind.formula
        if not {"forward", "__call__"}.isdisjoint(vars(base)):
            return None
    return None


class Function(ABC):
    """An operator: `forward` computes y from arrays, `backward` the gradients of the inputs from the gradient of y.

    The textbook's contract. `forward` keeps on `self` what `backward` needs; `backward` adds to the gradient of each
    parameter (`parameter.add_grad(g)`) and returns the gradient of each differentiable input, an array or a tuple of
    them. Neither writes into the arrays it is given. State that must outlive a call is an array changed in place.
    With several outputs, `forward` returns a tuple, and `backward` is given one, None for an output nobody used.

    The Functions in its attributes are its children, and the Tensors in its attributes that require a gradient are its
    parameters; those in lists, tuples and dicts too. Its parameters, buffers and names include its children's.

    Calling a Function on Tensors (or arrays) applies a copy of it and of its children, which own what they save and
    share the parameters, and notes the copy on the resulting Tensor. So an instance can be applied any number of times.

    `class ReLU(Function, recordable=True)` declares that `forward` and `backward` compute with kernels alone. It is
    said for each class anew. What is not declared so may use NumPy as it likes; where a step is recorded and
    replayed, it is called back at its place.
    """

    recordable = False
    called_back = False  # whether `forward` and `backward` are called back at replays, or recorded as kernels
    _applied_inputs: tuple[Tensor | None, ...] = ()  # what it was applied to; None for a plain array
    unwatched: frozenset[str] = frozenset()  # attributes that have no influence on what a recorded step computes

    #: The shape of the input this Function requires, batch axis first, None = any length, ... = any number of axes;
    #: None where it takes every shape.
    required_input_shape: Any = None

    #: The names of its axes in errors, as far as they have any: ("n", "length").
    axis_names: tuple[str, ...] = ("n",)

    #: Whether the input is integers, which stay what they are where others are converted to a Model's dtype; with
    #: several inputs, a tuple may say it of each.
    takes_indices: bool | tuple[bool, ...] = False

    #: How many indices there are, 0 … index_count − 1, for a Function that takes them; None where it does not say.
    index_count: int | None = None

    #: Whether the input may be sparse: `forward` then gets `SparseRows`.
    takes_sparse: bool = False

    #: Whether floats come as float64, whatever the model's dtype: the Function rounds them itself.
    takes_float64: bool = False

    #: What it computes in use, written with Tensor's operators and other Functions: a method of one Tensor for each
    #: input, or None. If `caffelite.onnx` or `caffelite.c` has no code of its own for the Function, it writes these
    #: operators instead.
    formula: Callable[..., Any] | None = None

    def __init_subclass__(cls, recordable: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("__slots__"):
            raise TypeError(
                f"{cls.__name__} has __slots__, and caffelite looks for parameters in __dict__: leave __slots__ out"
            )
        cls.recordable = recordable
        cls.called_back = not recordable and (cls.called_back or not {"forward", "backward"}.isdisjoint(cls.__dict__))
        if cls.called_back:
            cls.forward = in_python(cls.forward)  # type: ignore[method-assign]
            cls.backward = in_python(cls.backward)  # type: ignore[method-assign] # it needs what that forward keeps
        if "parameters" in cls.__dict__ and not cls.__module__.startswith("caffelite."):
            cls.parameters = _complete(cls.parameters)  # type: ignore
        if "initialize" in cls.__dict__:
            cls.initialize = _initializing(cls.initialize)  # type: ignore[method-assign]

    @abstractmethod
    def forward(self, *inputs: Any) -> Any:
        """Arrays in, an array out, or a tuple of arrays."""

    @abstractmethod
    def backward(self, dy: Any) -> Any:
        """The gradient of every differentiable input, given that of the output: an array, or a tuple of arrays."""

    def wants_gradient(self, i: int) -> bool:
        """Whether anybody wants the gradient of input i; None may stand in its place in what `backward` returns if not.

        Where the Function was called on Tensors, those want it that need a gradient; on arrays, all do.
        """
        inputs = self._applied_inputs
        return not inputs or ((x := inputs[i]) is not None and x._requires_grad)

    def arguments(self) -> dict[str, Any]:
        """What it was made with, by name: what a file says of it, to make it again.

        JSON values, and Functions; tuples and lists, too. By default the attributes that have the names of what
        `__init__` takes; of a flag, which is True or False by default, whether there is something (`bias`). `seed` is
        left out: a file brings the values. TypeError where there is no such attribute; then override this.
        """
        return attributes_of(self)

    # ---- the Functions in it ------------------------------------------------------------------------------------

    def children(self) -> list[Function]:
        """The Functions in its attributes, also in lists, tuples and dicts there, in order of assignment, each once."""
        return [child for _, child in self._named_children()]

    def _named_children(self) -> list[tuple[str, Function]]:
        """The children with their names, `first`, `blocks.2`, `heads.left`."""
        return [(name, part) for name, part in self._parts() if not isinstance(part, Tensor)]

    def _parts(self) -> list[tuple[str, Any]]:
        """The children and the parameters of its own, in order of assignment, each once, with their names."""
        found: dict[int, tuple[str, Any]] = {}
        seen: set[int] = set()
        for name, value in list(vars(self).items()):
            if type(value) not in LEAVES and name not in self.unwatched and name != "_applied_inputs":
                _gather(value, name, found, seen)
        return list(found.values())

    def _descendants(self) -> list[Function]:
        """The children, each followed by its own, and so on; each once."""
        found: dict[int, Function] = {}
        _descend(self, found)
        return list(found.values())

    def parameters(self) -> list[Tensor]:
        """What is learned, each Tensor once: its own parameters and its children's, in order of assignment.

        A Tensor in an attribute (or in a list, tuple or dict there) is a parameter if it is a leaf that requires a
        gradient; it stays one while it is frozen. A Function may override this for another order.
        """
        own = parameters_among(self.__dict__, LEAVES)
        if own is not None:
            return own
        parts = [parameters_of(part) or part.parameters() for _, part in self._parts()]
        return list(dict.fromkeys([p for parameters in parts for p in parameters]))

    @property
    def requires_grad(self) -> bool:
        """Whether some of the parameters are learned. Setting it sets it for each: False freezes them, True thaws them.

        A training leaves frozen parameters as they are, and a file says which are. Buffers, running means say, are no
        parameters.
        """
        return any(p.requires_grad for p in self.parameters())

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        for p in self.parameters():
            p.requires_grad = value

    def named_parameters(self) -> dict[str, Tensor]:
        """The parameters by name, in order: `weight`, `temperature`, or in a Function `first.weight`, `blocks.2.bias`.

        Its own have the names that they were given, or else those of their attributes. ValueError if two parameters
        have the same name.
        """
        names: dict[Tensor, str] = {}
        paths: dict[Tensor, str] = {}
        for path, part in self._parts():
            if isinstance(part, Tensor):
                paths[part] = path
            else:
                for name, p in part.named_parameters().items():
                    names.setdefault(p, f"{path}.{name}")
        parameters = self.parameters()
        own = [p for p in parameters if p not in names]
        named = [p.name or paths.get(p) or str(i) for i, p in enumerate(own)]
        if len(set(named)) < len(own):
            named = [paths.get(p) or str(i) for i, p in enumerate(own)]
        names |= dict(zip(own, named, strict=True))
        found: dict[str, Tensor] = {}
        for p in parameters:
            if found.setdefault(names[p], p) is not p:
                raise ValueError(f"two parameters of {self!r} have the name {names[p]}")
        return found

    def buffers(self) -> dict[str, np.ndarray]:
        """What is kept but not learned, by name: arrays that are changed in place; the children's, each array once.

        A Function with buffers of its own overrides this: `{"mean": self.mean, **super().buffers()}`.
        """
        found: dict[str, np.ndarray] = {}
        for prefix, child in self._named_children():
            for name, array in child.buffers().items():
                if not any(array is other for other in found.values()):
                    found[f"{prefix}.{name}"] = array
        return found

    def initialize(self, rng: Any) -> None:
        """Draw the parameters anew from a seed or a `numpy.random.Generator`: those of the children, in order.

        A Function with parameters of its own overrides this, and then draws its children too if they are to be.
        """
        self._draw_children(np.random.default_rng(rng), set())

    def _set_first_values(self) -> None:
        """Initialize the parameters that `__init__` has made, unless Functions are made `without_values`."""
        if not without_values.is_on:
            self.initialize(None)

    def _draw(self, rng: np.random.Generator, drawn: set[int]) -> None:
        """Draw what has not been `drawn`, Functions by their id, and note it there."""
        if id(self) in drawn or type(self).initialize is Function.initialize:
            self._draw_children(rng, drawn)
        else:
            self.initialize(rng)
            drawn.update(map(id, (self, *self._descendants())))

    def _draw_children(self, rng: np.random.Generator, drawn: set[int]) -> None:
        drawn.add(id(self))
        for child in self.children():
            child._draw(rng, drawn)

    def decider(self) -> Callable[..., Any]:
        """The code that decides, when the Function is applied, which kernels run."""
        return self.forward

    def _influential(self, copy: Function) -> dict[str, Any]:
        """The attributes that had an influence on what a copy of this Function did.

        What forward has set on the copy it did not need from the original. A Function that is called back reads its
        attributes anew, but those with Functions in them say whose parameters take part.
        """
        of_copy = vars(copy)
        return {
            name: value
            for name, value in vars(self).items()
            if (of_copy.get(name) is value and not self.called_back) or holds_functions(value)
        }

    def copy(self) -> Function:
        """A copy with attributes of its own, the same parameters, and copies of its children."""
        other = self._shallow_copy()
        own = other.__dict__
        if own and not is_childless(own, LEAVES):
            other._copy_children({id(self): other})
        return other

    def _shallow_copy(self) -> Function:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        recording = kernels.recorder()
        if recording is not None:
            recording.note_copy(other, self)
        return other

    def _copy_children(self, copies: dict[int, Any]) -> None:
        """Have copies of the children instead; `copies` are those there are already, by the ids of the originals."""
        own = vars(self)
        for name, value in own.items():
            if type(value) not in LEAVES and name not in self.unwatched:
                own[name] = _copied(value, copies)

    # ---- applying it --------------------------------------------------------------------------------------------

    def output_shape(self, *input_shapes: Shape) -> Shape:
        """The shape of y for inputs of these shapes, batch axis first, None = unknown.

        Raises ValueError naming both shapes where they don't fit.
        """
        return input_shapes[0]

    def check_input_shape(self, shape: Shape) -> None:
        """Raise ValueError, saying what is expected, unless an input's shape is `required_input_shape`."""
        required = self.required_input_shape
        if required is not None and not fits(shape, required):
            raise ValueError(refusal(self._label(), shape, required, self.axis_names))

    def _label(self) -> str:
        """How errors name it: by the features that go in and out, `Linear(3 → 4)`, or else as it is made."""
        if hasattr(self, "in_features") and hasattr(self, "out_features"):
            return f"{type(self).__name__}({self.in_features} → {self.out_features})"
        return repr(self)

    # Compiled, in autograd.pyx, for they run at every operation.
    __call__ = call
    applied_to = applied_to
    checked_input = checked_input

    def _first_input(self, x: Any) -> Any:
        """The first input of a call, where it is no Tensor and no array: what `forward` is to get.

        TypeError for a sparse matrix where it takes none.
        """
        if is_sparse(x):
            if self.called_back or not self.takes_sparse:
                raise TypeError(
                    f"{self!r} takes no sparse matrix: a Linear does, and x.toarray() makes an array for all else"
                )
            return as_sparse(x)
        if is_array_of_others(x):
            return as_array(x, self)
        if self.called_back or (isinstance(x, list | tuple) and holds_tensors(x)):
            return x
        dtype = next((p.dtype for p in self.parameters()), None)
        return as_indices(x, self) if self.takes_indices else as_real(x, dtype, self)

    def _in_order(self, inputs: tuple, named: dict[str, Any]) -> tuple:
        """The inputs of a call in the order in which `forward` takes them."""
        try:
            bound = inspect.signature(self.forward).bind(*inputs, **named)
        except TypeError as error:
            raise TypeError(f"{self!r}: {error}") from None
        bound.apply_defaults()
        if left_out := bound.kwargs.keys() & named:
            raise TypeError(f"{self!r}: {min(left_out)} can be given by name alone, and is no input of a call")
        return bound.args

    def _applied_to_groups(self, inputs: tuple, parameters: Sequence[Tensor]) -> Any:
        """What a call gives where some of the inputs are tuples of Tensors."""
        grouped = Grouped(self, [len(x) if type(x) is tuple else None for x in inputs])
        return grouped.applied_to(*_flat(inputs), parameters=parameters)

    def _become(self, original: Function) -> None:
        """Be as `original` is, and as if it had just been applied to what this Function was applied to."""
        inputs = self._applied_inputs
        vars(self).clear()
        vars(self).update(vars(original.copy()))
        self._applied_inputs = inputs

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __str__(self) -> str:
        return writable(repr(self))


def _complete(parameters: Callable[[Function], list[Tensor]]) -> Callable[[Function], list[Tensor]]:
    """The `parameters` of a user's class: it lists each parameter once, and may not leave one out."""

    @functools.wraps(parameters)
    def complete(self: Function) -> list[Tensor]:
        listed = list(dict.fromkeys(parameters(self)))
        if type(self).parameters is complete:  # and not that of a base, to which the class's own adds
            for name, part in self._parts():
                if isinstance(part, Tensor) and part.requires_grad and not any(part is p for p in listed):
                    raise TypeError(
                        f"{type(self).__name__}.parameters() leaves out the attribute {name}, a Tensor that requires a "
                        "gradient: it would not be trained. Tensors in attributes are found without `parameters`"
                    )
        return listed

    return complete


def _initializing(initialize: Callable[..., None]) -> Callable[..., None]:
    """An `initialize` that says of the values it sets that they were drawn."""

    @functools.wraps(initialize)
    def draw(self: Function, *arguments: Any, **options: Any) -> None:
        with initializing():
            initialize(self, *arguments, **options)

    return draw


# ---- what is in attributes ------------------------------------------------------------------------------------------


def _descend(function: Function, found: dict[int, Function]) -> None:
    """Add the descendants to those found, by their ids."""
    for child in function.children():
        if id(child) not in found:
            found[id(child)] = child
            _descend(child, found)


def _gather(value: Any, name: str, found: dict[int, tuple[str, Any]], seen: set[int]) -> None:
    """Add the Functions and parameters in a value to those found, by their ids, with the name of their first place."""
    if Function in type(value).__mro__ or parameters_of(value):  # isinstance is slow with an abstract class
        found.setdefault(id(value), (name, value))
        return
    items: Any = ()
    if isinstance(value, list | tuple):
        items = () if LEAVES.issuperset(map(type, value)) else enumerate(value)
    elif isinstance(value, dict):
        items = value.items()
    if items and id(value) not in seen:
        seen.add(id(value))
        for key, item in items:
            if type(item) not in LEAVES:
                _gather(item, f"{name}.{key}", found, seen)


def holds_functions(value: Any) -> bool:
    """Whether a value is a Function, or a list, tuple or dict with one in it."""
    found: dict[int, tuple[str, Any]] = {}
    if type(value) not in LEAVES:
        _gather(value, "", found, set())
    return any(isinstance(part, Function) for _, part in found.values())


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """The value with copies of the Functions in it; itself where there are none."""
    if id(value) in copies:
        return copies[id(value)]
    if not holds_functions(value):
        return value
    other: Any
    if isinstance(value, Function):
        copies[id(value)] = other = value._shallow_copy()
        other._copy_children(copies)
    elif isinstance(value, dict):
        copies[id(value)] = other = copy.copy(value)
        other.update({key: _copied(item, copies) for key, item in value.items()})
    elif isinstance(value, list):
        copies[id(value)] = other = copy.copy(value)
        other[:] = [_copied(item, copies) for item in value]
    else:
        items = [_copied(item, copies) for item in value]
        copies[id(value)] = other = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return other


# ---- inputs in groups -----------------------------------------------------------------------------------------------


class Grouped(Function, recordable=True):
    """A Function some of whose inputs are tuples, as a Function of their elements.

    `lengths` are those of its inputs, None for what is no tuple.
    """

    def __init__(self, function: Function, lengths: list[int | None]) -> None:
        self.function, self.lengths = function, lengths

    def forward(self, *inputs: Any) -> Any:
        rest = iter(inputs)
        groups = [next(rest) if n is None else tuple([next(rest) for _ in range(n)]) for n in self.lengths]
        return self.function.forward(*groups)

    def backward(self, dy: Any) -> Any:
        gradients = self.function.backward(dy)
        if not isinstance(gradients, tuple) or (self.lengths[0] and not any(isinstance(g, tuple) for g in gradients)):
            gradients = (gradients,)  # of the first input alone
        gradients = [*gradients, *[None] * (len(self.lengths) - len(gradients))]
        return _flat([(None,) * n if g is None and n else g for g, n in zip(gradients, self.lengths, strict=True)])

    def __repr__(self) -> str:
        return repr(self.function)


def _flat(values: Any) -> tuple:
    """The values, and the elements of those that are tuples."""
    return tuple([x for value in values for x in (value if type(value) is tuple else (value,))])
