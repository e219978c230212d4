"""Function: an operator with a forward and a backward pass. Layers, losses and Models are Functions."""

from __future__ import annotations

import copy
import functools
import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.migration_hints import ForeignSetting, foreign_attributes, message_with_hint
from caffelite._support.reprs import init_arguments
from caffelite._support.terminal import make_writable
from caffelite.core.arrays import FLOATS, as_array, as_indices, as_real, is_foreign_array
from caffelite.core.autograd import (
    apply_once,
    call,
    check_input,
    collect_parameters,
    has_tensors,
    is_childless,
    is_parameter,
    matches_shape,
)
from caffelite.core.inputs import Shape as Shape
from caffelite.core.inputs import format_required_shape
from caffelite.core.inputs import format_shape as format_shape
from caffelite.core.modes import init_rng, initializing, meta_init, register_initialized
from caffelite.core.python_callback import replay_in_python
from caffelite.core.sparse import as_sparse, is_sparse
from caffelite.core.tensor import Tensor


@foreign_attributes(
    "apply count_params cpu cuda eval get_weights modules named_modules probabilities requires_grad_ "
    "set_weights to train trainable_variables trainable_weights variables"
)
class Function(ABC):
    """A layer or another operator: `forward` computes y from x, `backward` dx from dy.

    All are arrays. `forward` keeps in attributes what `backward` needs. `backward` adds to the gradient of each
    parameter with `parameter.add_grad(g)`, and returns the gradient of each differentiable input: an array, or a tuple
    of arrays. Neither writes into the arrays it gets. State that outlives a call is an array changed in place. A
    Function with several outputs returns a tuple. Its `backward` gets a tuple, with None for unused outputs.

    The Functions in its attributes are its children, and the Tensors there that require a gradient are its parameters.
    Both may be in lists, tuples and dicts. Its parameters, buffers and names include those of its children.

    A call `function(x)` applies a copy, which the resulting Tensor remembers. The copy keeps what its own `backward`
    needs, and shares the parameters. So you can call the same Function any number of times.

    `class ReLU(Function, recordable=True, rowwise=True)` declares two properties. A subclass has to declare them again.

    - `recordable`: `forward` and `backward` compute with kernels only. If not, a replayed step calls them in Python.
    - `rowwise`: outside training, each row of y depends only on the same row of the inputs. So `predict` may compute
      any rows together.
    """

    recordable = False
    rowwise = False
    runs_in_python = False  # whether a replayed step calls `forward` and `backward`, because they are not recordable
    _applied_inputs: tuple[Tensor | None, ...] = ()  # the inputs of the call; None for an input that is an array
    not_recorded: frozenset[str] = frozenset()  # attributes that do not change what a recorded step computes

    #: The shape that the input must have, batch axis first. In it, None is any length and ... is any number of axes.
    #: None alone accepts every shape.
    required_input_shape: Any = None

    #: The names of the input's first axes in errors: ("n", "length").
    axis_names: tuple[str, ...] = ("n",)

    #: Whether the input is integers. A Model converts all other inputs to its dtype. For several inputs: a tuple.
    takes_indices: bool | tuple[bool, ...] = False

    #: The number of indices if the input is indices, 0 … index_count − 1. None: unknown.
    index_count: int | None = None

    #: Whether the input may be sparse; `forward` then gets `SparseRows`.
    takes_sparse: bool = False

    #: Whether the input is float64 even in a float32 model. The Function itself converts its output.
    takes_float64: bool = False

    #: The Function that turns a frame into inputs, if a Model that begins with this one takes frames: `arrays(frame,
    #: what)` returns them, and `names` are the names of their columns. Its buffers stay float64 in any model, and the
    #: model sets its `dtype`, the dtype of y.
    frame_reader: Any = None

    #: The computation in inference, written with Tensor's operators and other Functions: a method that takes a Tensor
    #: for each input, or None. `caffelite.onnx` and `caffelite.c` write these if they do not know the Function.
    formula: Callable[..., Any] | None = None

    trainable = ForeignSetting("trainable")

    def __init_subclass__(
        cls, recordable: bool = False, rowwise: bool = False, by_row: bool = False, **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("__slots__"):
            raise TypeError(
                f"{cls.__name__} has __slots__, and caffelite looks for parameters in __dict__: leave __slots__ out"
            )
        cls.recordable, cls.rowwise = recordable, rowwise or by_row  # by_row: its former name
        cls.runs_in_python = not recordable and (
            cls.runs_in_python or not {"forward", "backward"}.isdisjoint(cls.__dict__)
        )
        if cls.runs_in_python:
            cls.forward = replay_in_python(cls.forward)  # type: ignore[method-assign]
            cls.backward = replay_in_python(cls.backward)  # type: ignore[method-assign] # it needs what that forward keeps
        if "parameters" in cls.__dict__ and not cls.__module__.startswith("caffelite."):
            cls.parameters = _check_complete(cls.parameters)  # type: ignore
        if "initialize" in cls.__dict__:
            cls.initialize = _wrap_initialize(cls.initialize)  # type: ignore[method-assign]

    @abstractmethod
    def forward(self, *inputs: Any) -> Any:
        """Return y, an array, or a tuple of arrays."""

    @abstractmethod
    def backward(self, dy: Any) -> Any:
        """Return the gradient of every differentiable input: an array, or a tuple of arrays."""

    def is_rowwise(self) -> bool:
        """Return whether each row of y is known to depend only on the same row of the inputs, outside training."""
        return self.rowwise and "forward" not in vars(self)

    def wants_gradient(self, i: int) -> bool:
        """Return True if the gradient of input i is needed. If not, `backward` may return None for it.

        It is needed for a Tensor that requires a gradient and, if you called `forward` yourself, for all inputs.
        """
        inputs = self._applied_inputs
        return not inputs or ((x := inputs[i]) is not None and x._requires_grad)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that the Function was created with, by name.

        `save` stores them, and `load` uses them. The values are JSON types, Functions, and tuples and lists of them. By
        default they are the attributes named like the parameters of `__init__`. For a flag, such as `bias`, the value
        is True if the attribute is not None. `seed` is left out, because the file has the values. Raise TypeError if an
        attribute is missing; then override this method.
        """
        return init_arguments(self)

    # ---- the Functions in it ------------------------------------------------------------------------------------

    def children(self) -> list[Function]:
        """Return the Function's children, in order of assignment, each once, also from lists, tuples and dicts."""
        return [child for _, child in self._named_children()]

    def _named_children(self) -> list[tuple[str, Function]]:
        """Return the children with their names: `first`, `blocks.2`, `heads.left`."""
        return [(name, part) for name, part in self._parts() if not isinstance(part, Tensor)]

    def _parts(self) -> list[tuple[str, Any]]:
        """Return the children and its own parameters with their names, in order of assignment, each once."""
        parts: dict[int, tuple[str, Any]] = {}
        seen: set[int] = set()
        for name, value in list(vars(self).items()):
            if type(value) not in PLAIN_TYPES and name not in self.not_recorded and name != "_applied_inputs":
                _collect_parts(value, name, parts, seen)
        return list(parts.values())

    def _walk(self, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Function]]:
        """Yield the children, each followed by its own, with the paths where they first occur: `blocks.2.norm`."""
        seen = {id(self)} if seen is None else seen
        for name, child in self._named_children():
            if id(child) not in seen:
                seen.add(id(child))
                yield prefix + name, child
                yield from child._walk(f"{prefix}{name}.", seen)

    def _descendants(self) -> list[Function]:
        """Return the children, each followed by its own descendants; each once."""
        return [function for _, function in self._walk()]

    def parameters(self) -> list[Tensor]:
        """Return the learned Tensors: the Function's own and its children's, in order of assignment, each once.

        A Tensor in an attribute (or in a list, tuple or dict there) is a parameter if it is a leaf that requires a
        gradient. It remains one when you freeze it. Override this method if you need another order.
        """
        own = collect_parameters(self.__dict__, PLAIN_TYPES)
        if own is not None:
            return own
        parts = [[part] if is_parameter(part) else part.parameters() for _, part in self._parts()]
        return list(dict.fromkeys([p for parameters in parts for p in parameters]))

    @property
    def requires_grad(self) -> bool:
        """Whether any parameters are trained. Set it to False to freeze all of them, and to True to unfreeze them.

        Training leaves frozen parameters as they are. Files record which are frozen. Buffers are not parameters.
        """
        return any(p.requires_grad for p in self.parameters())

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        for p in self.parameters():
            p.requires_grad = value

    def named_parameters(self) -> dict[str, Tensor]:
        """Return a dict of the parameters by name, in order: its own, `weight`, and its children's, `blocks.2.bias`.

        A parameter without a name is named after its attribute. Raise ValueError if two parameters have the same name.
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
        own_names = [p.name or paths.get(p) or str(i) for i, p in enumerate(own)]
        if len(set(own_names)) < len(own):
            own_names = [paths.get(p) or str(i) for i, p in enumerate(own)]
        names |= dict(zip(own, own_names, strict=True))
        result: dict[str, Tensor] = {}
        for p in parameters:
            if result.setdefault(names[p], p) is not p:
                raise ValueError(f"two parameters of {self!r} have the name {names[p]}")
        return result

    def buffers(self) -> dict[str, np.ndarray]:
        """Return, by name, the arrays that the Function and its children change in place but do not learn, each once.

        If your Function has buffers of its own, override this: `{"mean": self.mean, **super().buffers()}`.
        """
        buffers: dict[str, np.ndarray] = {}
        for prefix, child in self._named_children():
            for name, array in child.buffers().items():
                if not any(array is known for known in buffers.values()):
                    buffers[f"{prefix}.{name}"] = array
        return buffers

    def initialize(self, rng: Any) -> None:
        """Initialize the children's parameters, in order, from a seed or a `numpy.random.Generator`.

        If your Function has parameters of its own, override this. The override must initialize the children as well.
        """
        self._draw_children(np.random.default_rng(rng), set())

    def _set_initial_values(self) -> None:
        """Initialize the parameters that `__init__` created, except inside `meta_init()`."""
        if not meta_init.is_on:
            self.initialize(None)

    def _draw(self, rng: np.random.Generator, drawn: set[int]) -> None:
        """Initialize this Function and its descendants, except those in `drawn`, a set of ids, and add them to it."""
        if id(self) in drawn or type(self).initialize is Function.initialize:
            self._draw_children(rng, drawn)
        else:
            self.initialize(rng)
            drawn.update(map(id, (self, *self._descendants())))

    def _draw_children(self, rng: np.random.Generator, drawn: set[int]) -> None:
        drawn.add(id(self))
        for child in self.children():
            child._draw(rng, drawn)

    def python_code(self) -> Callable[..., Any]:
        """Return the Python code that decides which kernels run when the Function is applied."""
        return self.forward

    def _used_attributes(self, copy: Function) -> dict[str, Any]:
        """Return the attributes of this Function on which an applied copy based its decisions.

        `forward` set the copy's other attributes itself. If a Function runs in Python, a replay calls it again, and it
        reads its attributes then. So only attributes with Functions count, because their parameters take part.
        """
        copy_attributes = vars(copy)
        return {
            name: value
            for name, value in vars(self).items()
            if (copy_attributes.get(name) is value and not self.runs_in_python) or has_functions(value)
        }

    def copy(self) -> Function:
        """Return a copy with its own attributes, the same parameters, and copies of the children."""
        other = self._shallow_copy()
        attributes = other.__dict__
        if attributes and not is_childless(attributes, PLAIN_TYPES):
            other._copy_children({id(self): other})
        return other

    def _shallow_copy(self) -> Function:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        recording = kernels.recorder()
        if recording is not None:
            recording.record_copy(other, self)
        return other

    def _copy_children(self, copies: dict[int, Any]) -> None:
        """Replace the children with copies. `copies` has those that already exist, by the ids of the originals."""
        attributes = vars(self)
        for name, value in attributes.items():
            if type(value) not in PLAIN_TYPES and name not in self.not_recorded:
                attributes[name] = _copy_value(value, copies)

    # ---- the call -----------------------------------------------------------------------------------------------

    def output_shape(self, *input_shapes: Shape) -> Shape:
        """Return the shape of y for inputs of these shapes. The batch axis comes first; None is an unknown length.

        Raise ValueError, with the expected shape, if a shape does not fit.
        """
        return input_shapes[0]

    def check_input_shape(self, shape: Shape) -> None:
        """Raise ValueError, with the expected shape, unless the input has the required shape."""
        required = self.required_input_shape
        if not matches_shape(shape, required):
            rows = f"rows of {shape[-1]} features, " if ... in required and len(shape) > 1 else ""
            expected = format_required_shape(required, self.axis_names, shape)
            raise ValueError(f"{self._label()} got {rows}shape {format_shape(shape)}; expected {expected}")

    def _label(self) -> str:
        """Return the name in errors: `Linear(3 → 4)` for a Function with in_features and out_features, or its repr."""
        if hasattr(self, "in_features") and hasattr(self, "out_features"):
            return f"{type(self).__name__}({self.in_features} → {self.out_features})"
        return repr(self)

    # These run at every operation, and are compiled, in autograd.pyx.
    __call__ = call
    apply_once = apply_once
    check_input = check_input

    def _convert_first_input(self, x: Any) -> Any:
        """Convert a first input that is neither a Tensor nor an array, for `forward`.

        Raise TypeError for a sparse matrix if the Function does not accept one.
        """
        if is_sparse(x):
            if self.runs_in_python or not self.takes_sparse:
                raise TypeError(f"{self!r} takes no sparse matrix: put a Linear first, or give x.toarray()")
            return as_sparse(x)
        if is_foreign_array(x):
            return as_array(x, self)
        if self.runs_in_python or (isinstance(x, list | tuple) and has_tensors(x)):
            return x
        dtype = next((p.dtype for p in self.parameters()), None)
        return as_indices(x, self) if self.takes_indices else as_real(x, dtype, self)

    def _order_inputs(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the inputs of a call in the order of the parameters of `forward`, or of a model's `call`."""
        try:
            bound = inspect.signature(self.python_code()).bind(*inputs, **named)
        except TypeError as error:
            raise TypeError(f"{self!r}: {message_with_hint(error, self.python_code())}") from None
        bound.apply_defaults()
        if left_out := bound.kwargs.keys() & named:
            raise TypeError(f"{self!r}: {min(left_out)} can only be given by name, so it can't be an input of a call")
        return bound.args

    def _apply_tuples(self, inputs: tuple[Any, ...], parameters: Sequence[Tensor]) -> Any:
        """Return the result of a call with inputs that are tuples of Tensors."""
        function = TupleInputs(self, [len(x) if type(x) is tuple else None for x in inputs])
        return function.apply_once(*_flatten(inputs), parameters=parameters)

    def _restore_from(self, original: Function) -> None:
        """Become a new copy of `original`, applied to the inputs that this copy was applied to."""
        inputs = self._applied_inputs
        vars(self).clear()
        vars(self).update(vars(original.copy()))
        self._applied_inputs = inputs

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __str__(self) -> str:
        return make_writable(repr(self))


def _check_complete(parameters: Callable[[Function], list[Tensor]]) -> Callable[[Function], list[Tensor]]:
    """Wrap the `parameters` of a user's class: each parameter occurs once. TypeError if it leaves one out."""

    @functools.wraps(parameters)
    def wrapper(self: Function) -> list[Tensor]:
        result = list(dict.fromkeys(parameters(self)))
        if type(self).parameters is wrapper:  # a base may list only some, and the subclass adds its own
            for name, part in self._parts():
                if isinstance(part, Tensor) and part.requires_grad and not any(part is p for p in result):
                    raise TypeError(
                        f"{type(self).__name__}.parameters() leaves out the attribute {name}, a Tensor that requires a "
                        "gradient: it would not be trained. Without `parameters`, caffelite finds Tensors in attributes"
                    )
        return result

    return wrapper


def _wrap_initialize(initialize: Callable[..., None]) -> Callable[..., None]:
    """Wrap `initialize`: its values count as initial ones, which a Model with a seed may draw again.

    Inside the `__init__` of such a Model, however, None means its `rng`, and the Model keeps the values.
    """

    @functools.wraps(initialize)
    def wrapper(self: Function, *arguments: Any, **options: Any) -> None:
        if len(arguments) == 1 and arguments[0] is None:
            arguments = (init_rng(),)
        with initializing():
            initialize(self, *arguments, **options)
        register_initialized(self)

    return wrapper


# ---- Functions and Tensors in attributes ----------------------------------------------------------------------------


#: Types of attributes that contain neither Functions nor Tensors.
PLAIN_TYPES = frozenset(
    {type(None), bool, int, float, str, np.ndarray, kernels.RecordedArray, types.FunctionType, types.MethodType, type}
    | {type(dtype) for dtype in FLOATS}
)


def _collect_parts(value: Any, name: str, parts: dict[int, tuple[str, Any]], seen: set[int]) -> None:
    """Add the Functions and parameters in a value to `parts`, by their ids, each named by where it first occurs."""
    if Function in type(value).__mro__ or is_parameter(value):  # isinstance is slow with an abstract class
        parts.setdefault(id(value), (name, value))
        return
    items: Any = ()
    if isinstance(value, list | tuple):
        items = () if PLAIN_TYPES.issuperset(map(type, value)) else enumerate(value)
    elif isinstance(value, dict):
        items = value.items()
    if items and id(value) not in seen:
        seen.add(id(value))
        for key, item in items:
            if type(item) not in PLAIN_TYPES:
                _collect_parts(item, f"{name}.{key}", parts, seen)


def has_functions(value: Any) -> bool:
    """Return whether a value is a Function, or contains one in a list, tuple or dict."""
    parts: dict[int, tuple[str, Any]] = {}
    if type(value) not in PLAIN_TYPES:
        _collect_parts(value, "", parts, set())
    return any(isinstance(part, Function) for _, part in parts.values())


def _copy_value(value: Any, copies: dict[int, Any]) -> Any:
    """Return the value with copies of the Functions in it; the value itself if it contains none."""
    if id(value) in copies:
        return copies[id(value)]
    if not has_functions(value):
        return value
    other: Any
    if isinstance(value, Function):
        copies[id(value)] = other = value._shallow_copy()
        other._copy_children(copies)
    elif isinstance(value, dict):
        copies[id(value)] = other = copy.copy(value)
        other.update({key: _copy_value(item, copies) for key, item in value.items()})
    elif isinstance(value, list):
        copies[id(value)] = other = copy.copy(value)
        other[:] = [_copy_value(item, copies) for item in value]
    else:
        items = [_copy_value(item, copies) for item in value]
        copies[id(value)] = other = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return other


# ---- inputs in groups -----------------------------------------------------------------------------------------------


class TupleInputs(Function, recordable=True):
    """A Function that takes tuples, as a Function of the elements of these tuples.

    `lengths` has the length of each tuple, and None for inputs that are not tuples.
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
            gradients = (gradients,)  # of the first input only
        gradients = [*gradients, *[None] * (len(self.lengths) - len(gradients))]
        return _flatten([(None,) * n if g is None and n else g for g, n in zip(gradients, self.lengths, strict=True)])

    def __repr__(self) -> str:
        return repr(self.function)


def _flatten(values: Any) -> tuple[Any, ...]:
    """Return the values, with each tuple replaced by its elements."""
    return tuple([x for value in values for x in (value if type(value) is tuple else (value,))])
