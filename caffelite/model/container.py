"""Container: a Function made of Functions, which it owns. What a Model is before it trains and predicts.

`memory.py` says what owning means: one dtype, one vector of parameters, one random stream.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.construction import signature_of
from caffelite.core.function import Function, Shape
from caffelite.core.sparse import is_sparse
from caffelite.core.tensor import Tensor
from caffelite.model import shapes
from caffelite.model.memory import Own

FLOAT64 = np.dtype(np.float64)


class _Complete(ABCMeta):
    """The class of Container classes: a container is one whole when `__init__` has run, a subclass's too."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """What `help` shows: that of `__init__`, and not of the call below."""
        return signature_of(cls)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        container = super().__call__(*arguments, **options)
        if "functions" not in vars(container):
            raise TypeError(f"{cls.__name__}.__init__ has to call super().__init__()")
        container.all_functions()
        return container


class Container(Function, recordable=True, metaclass=_Complete):
    """A Function made of Functions: those in `functions`, in sequence, or those in attributes.

    In a sequence, the first Function says what the container takes, and all of them what comes out.
    """

    functions: list[Function]
    dtype: np.dtype
    _own: Own

    @abstractmethod
    def is_sequence(self) -> bool:
        """Whether it applies `functions` one after the other."""

    # ---- the Functions in it ------------------------------------------------------------------------------------

    def all_functions(self) -> tuple[Function, ...]:
        """The Functions in it and in its Functions, each once. Those that are new become its own."""
        own = self._own
        if not own.tree or not kernels.are_unchanged(own.tree):
            own.adopt(self)
        return own.functions

    def structure(self) -> tuple:
        """How the Functions follow and contain each other; `all_functions` looks whether that has changed."""
        return self._own.structure

    def parameters(self) -> list[Tensor]:
        """The parameters in order, W₁, b₁, W₂, b₂ …, a shared one once; see `Function.parameters`."""
        self.all_functions()
        return self._own.parameters.copy() if self._own.has_parameters(self) else super().parameters()

    def initialize(self, seed: Any) -> None:
        """Draw all parameters anew, from a seed (which also restarts the model's stream) or from a Generator."""
        rng = self._own.restart_stream(seed)
        self.all_functions()
        self._draw_children(rng, set())

    def _draw(self, rng: np.random.Generator, drawn: set[int]) -> None:
        if type(self).initialize is Container.initialize:
            self._draw_children(rng, drawn)
        else:
            super()._draw(rng, drawn)

    def _parts(self) -> list[tuple[str, Any]]:
        """As every Function's; those in `functions` have their numbers alone as names."""
        return [(name.removeprefix("functions."), part) for name, part in super()._parts()]

    # ---- what it takes ------------------------------------------------------------------------------------------

    @property
    def takes_float64(self) -> bool:  # type: ignore[override]
        """Whether floats come as float64: as the first Function has it."""
        return bool(self.functions) and self.functions[0].takes_float64

    @property
    def input_dtype(self) -> np.dtype:
        """The dtype of inputs that are floats."""
        functions = self.functions
        return FLOAT64 if functions and functions[0].takes_float64 else self.dtype

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
        return not self.is_sequence() or (bool(self.functions) and self.functions[0].takes_sparse)

    def _first_input(self, x: Any) -> Any:
        if is_sparse(x) and self.is_sequence() and self.functions:
            return self.functions[0]._first_input(x)
        return super()._first_input(x)

    @property
    def required_input_shape(self) -> Any:
        """The shape of the input that the first Function of a sequence requires."""
        return self.functions[0].required_input_shape if self.functions else None

    # ---- shapes -------------------------------------------------------------------------------------------------

    def output_shape(self, *input_shapes: Shape) -> Any:
        """The shape of y, or of each of several; of a model that writes `call`, by calling it on zeros.

        For that, all lengths but the first have to be known, else ValueError.
        """
        return shapes.output_shape(self, input_shapes)

    def shape_for(self, inputs: Sequence[np.ndarray], n: int | None = None) -> Any:
        """`output_shape` for n rows like these; a model that writes `call` is called with masks where these are."""
        of_inputs: list[Any] = [(n, *x.shape[1:]) for x in inputs]
        if self.is_sequence() or type(self).output_shape is not Container.output_shape:
            return self.output_shape(*of_inputs)
        return shapes.shape_by_call(self, tuple(of_inputs), shapes.dtypes_like(self, inputs))

    def index_limits(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """The largest index that the model takes at each place of a row, for each input; None where any will do."""
        return shapes.index_limits(self, inputs)

    # ---- copies -------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: x for name, x in vars(self).items() if name not in self.not_recorded}
        return kept | {"_own": self._own.kept()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._own = Own(self, *state["_own"])
        self._own.note_adopted(self._descendants())  # they stay drawn as they are
        self.all_functions()
