"""Container: a Function made of Functions, which it owns. A Model is a Container that trains and predicts.

The Functions it owns share one dtype, one vector of parameters and one random stream. See `state.py`.
"""

from __future__ import annotations

import inspect
import operator
from abc import ABCMeta, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.migration_hints import DefaultProperty, check_call
from caffelite._support.moved_modules import rename_attributes
from caffelite._support.reprs import init_arguments, init_signature, unstored_arguments
from caffelite.core.function import Function, Shape
from caffelite.core.modes import init_scope
from caffelite.core.sparse import is_sparse
from caffelite.core.tensor import Tensor
from caffelite.files.state import BaseModel
from caffelite.model import shapes
from caffelite.model.misfit import describe_misfit
from caffelite.model.state import ModelState

FLOAT64 = np.dtype(np.float64)


class _ContainerMeta(ABCMeta):
    """The metaclass of Containers: it registers their Functions when `__init__` has run, a subclass's included."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature that `help` shows: the one of `__init__`, not of `__call__` below."""
        return init_signature(cls)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        with init_scope():
            container = super().__call__(*arguments, **options)
            if "functions" not in vars(container):
                raise TypeError(f"{cls.__name__}.__init__ has to call super().__init__()")
            container.all_functions()
        if not cls.__module__.startswith("caffelite."):
            check_call(cls)
            container._model_state.init_arguments = unstored_arguments(container, arguments, options)
        return container


@rename_attributes(_own="_model_state")
class Container(BaseModel, recordable=True, metaclass=_ContainerMeta):
    """A Function made of Functions: `functions` in sequence, or Functions in attributes.

    In a sequence, the first Function determines which inputs the container takes.
    """

    _model_state: ModelState

    # ---- the Functions in it ------------------------------------------------------------------------------------

    def all_functions(self) -> tuple[Function, ...]:
        state = self._model_state
        if not state.guards or not kernels.are_unchanged(state.guards):
            state.register(self)
        return state.functions

    @DefaultProperty
    def layers(self) -> list[Function]:
        """Return the container's Functions: `functions` of a sequence, otherwise `children()`."""
        return self.functions if self.is_sequence() else self.children()

    def parameters(self) -> list[Tensor]:
        """Return the parameters in order, W₁, b₁, W₂, b₂ …, each once; see `Function.parameters`."""
        self.all_functions()
        return self._model_state.parameters.copy() if self._model_state.has_parameters(self) else super().parameters()

    def initialize(self, seed: Any) -> None:
        """Draw all parameters again, from a seed (which also restarts the model's stream) or a Generator."""
        rng = self._model_state.restart_rng(seed)
        self.all_functions()
        self._draw_children(rng, set())

    def _draw(self, rng: np.random.Generator, drawn_ids: set[int]) -> None:
        if type(self).initialize is Container.initialize:
            self._draw_children(rng, drawn_ids)
        else:
            super()._draw(rng, drawn_ids)

    def _parts(self) -> list[tuple[str, Any]]:
        """List the parts of a Function by name; those in `functions` have only their numbers as names."""
        return [(name.removeprefix("functions."), part) for name, part in super()._parts()]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that the container was made with, by name; see `Function.arguments`.

        An argument that `__init__` did not store in an attribute of the same name has the value that was passed. The
        container remembers such a value if it consists of numbers, strings and Functions.
        """
        return init_arguments(self, self._model_state.init_arguments)

    # ---- a sequence, as a list ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of `functions`. TypeError unless the container is a sequence."""
        return len(self._sequence())

    def __iter__(self) -> Iterator[Function]:
        """Iterate over `functions`. TypeError unless the container is a sequence."""
        return iter(self._sequence())

    def __getitem__(self, index: int | slice) -> Any:
        """Return Function number `index` of a sequence, or for a slice a Model that shares its Functions.

        Raise IndexError if there is no Function of this number, ValueError for a slice of Functions that do not fit
        together, and TypeError for a model that writes `call`.
        """
        functions = self._sequence()
        if isinstance(index, slice):
            part = self._make_sequence(functions[index])
            if part.functions[:1] == functions[:1] and "_takes_indices" in vars(self):
                part.takes_indices = self.takes_indices
            return part
        if not -len(functions) <= operator.index(index) < len(functions):
            raise IndexError(f"there is no Function {index} in a Model of {len(functions)} Functions")
        return functions[index]

    def __bool__(self) -> bool:
        """Return True, even without Functions: a container that writes `call` has no length to decide by."""
        return True

    @abstractmethod
    def _make_sequence(self, functions: list[Function]) -> Container:
        """Return a new sequence of these Functions, in the same dtype."""

    def _sequence(self) -> list[Function]:
        if not self.is_sequence():
            raise TypeError(
                f"{type(self).__name__} writes `call` and is not a sequence, so it has no length and no [i]: its "
                "Functions are in its attributes, and `children()` lists them"
            )
        return self.functions

    # ---- what it takes ------------------------------------------------------------------------------------------

    @property
    def takes_float64(self) -> bool:  # type: ignore[override]
        """Whether floats come as float64: the first Function decides."""
        return bool(self.functions) and self.functions[0].takes_float64

    @property
    def frame_reader(self) -> Any:
        """The reader that the first Function of a sequence has."""
        return self.functions[0].frame_reader if self.is_sequence() and self.functions else None

    @property
    def input_dtype(self) -> np.dtype:
        functions = self.functions
        return FLOAT64 if functions and functions[0].takes_float64 else self.dtype

    @property
    def takes_indices(self) -> bool | tuple[bool, ...]:
        """Whether the input is integers, which are not converted to the model's dtype. The first Function decides.

        A model that writes `call` sets it, to a tuple if it has several inputs. If there are several, an input of bools
        is a mask and stays bool, whatever is set.
        """
        value = self.__dict__.get("_takes_indices")
        return value if value is not None else bool(self.functions) and self.functions[0].takes_indices

    @takes_indices.setter
    def takes_indices(self, value: bool | tuple[bool, ...]) -> None:
        self._takes_indices = value

    @property
    def takes_sparse(self) -> bool:  # type: ignore[override]
        """Whether the input may be sparse. The first Function decides; in `call`, each Function that gets it checks."""
        return not self.is_sequence() or (bool(self.functions) and self.functions[0].takes_sparse)

    def _convert_first_input(self, x: Any) -> Any:
        if is_sparse(x) and self.is_sequence() and self.functions:
            return self.functions[0]._convert_first_input(x)
        return super()._convert_first_input(x)

    @property
    def required_input_shape(self) -> Any:
        """The input shape that the first Function of a sequence requires."""
        return self.functions[0].required_input_shape if self.functions else None

    # ---- shapes -------------------------------------------------------------------------------------------------

    def output_shape(self, *input_shapes: Shape) -> Any:
        """Return the shape of the output, or of each of several outputs.

        If a model writes `call`, a copy of it is called on zeros. Raise ValueError in this case unless the inputs'
        lengths, except the first, are all known.
        """
        try:
            return shapes.output_shape(self, input_shapes)
        except ValueError as error:
            if type(error) is not ValueError or not self.is_sequence() or len(input_shapes) != 1:
                raise
            raise ValueError(f"{error}{describe_misfit(self.functions, *input_shapes)}") from None

    def shape_for(self, inputs: Sequence[np.ndarray], n: int | None = None) -> Any:
        return shapes.shape_for(self, inputs, n)

    def index_limits(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        return shapes.index_limits(self, inputs)

    # ---- copies -------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        attributes = {name: x for name, x in vars(self).items() if name not in self.not_recorded}
        return attributes | {"_model_state": self._model_state.persistent_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._model_state = ModelState(self, *state["_model_state"])
        self._model_state.mark_registered(self._descendants())  # their parameters are then not drawn again
        self.all_functions()
