"""Function: an operator, forward and backward. Everything that a Model is made of is one, and so are losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.recording import in_python
from caffelite.tensor import Tensor, as_real, mode

Shape = tuple[int | None, ...]


class Function(ABC):
    """An operator: `forward` computes y from arrays, `backward` the gradients of the inputs from the gradient of y.

    The textbook's contract. `forward` keeps on `self` what `backward` needs; `backward` adds to the gradient of each
    parameter (`parameter.add_grad(g)`) and returns the gradient of each differentiable input, an array or a tuple of
    them. Neither writes into the arrays it is given. State that must outlive a call is an array changed in place.

    Calling a Function on Tensors (or arrays) applies a shallow copy of it, which owns what it saves and shares the
    parameters, and notes the copy on the resulting Tensor. So one instance can be applied any number of times.

    `class ReLU(Function, recordable=True)` declares that `forward` and `backward` compute with kernels alone. It is
    said for each class anew. What is not declared so may use NumPy as it likes; where a step is recorded and
    replayed, it is called back at its place.
    """

    recordable = False
    _inputs_with_gradient: tuple[bool, ...] | None = None
    unwatched: frozenset[str] = frozenset()  # attributes that have no influence on what a recorded step computes

    #: The shape of the input this Function needs, batch axis first, None = any; None where it takes every shape.
    input_shape: Shape | None = None

    def __init_subclass__(cls, recordable: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.recordable = recordable
        for name in ("forward", "backward"):
            if not recordable and name in cls.__dict__:
                setattr(cls, name, in_python(cls.__dict__[name]))

    @abstractmethod
    def forward(self, *inputs: Any) -> np.ndarray:
        """Arrays in, an array out."""

    @abstractmethod
    def backward(self, dy: np.ndarray) -> Any:
        """The gradient of every differentiable input, given that of the output: an array, or a tuple of arrays."""

    def wants_gradient(self, i: int) -> bool:
        """Whether anybody wants the gradient of input i; None may stand in its place in what `backward` returns if not.

        Where the Function was called on Tensors, those want it that need a gradient; on arrays, all do.
        """
        return self._inputs_with_gradient is None or self._inputs_with_gradient[i]

    def parameters(self) -> list[Tensor]:
        """What is learned."""
        return []

    def initialize(self, rng: Any) -> None:  # noqa: B027 (drawing nothing is the right default)
        """Draw the parameters anew from a seed or a `numpy.random.Generator`."""

    def output_shape(self, *input_shapes: Shape) -> Shape:
        """The shape of y for inputs of these shapes, batch axis first, None = unknown.

        Raises ValueError naming both shapes where they don't fit.
        """
        return input_shapes[0]

    def __call__(self, *inputs: Any) -> Tensor:
        """Apply a copy of this Function to Tensors, arrays or numbers, and record it in the graph."""
        applied = self.copy()
        y = applied.forward(*[x.data if isinstance(x, Tensor) else x for x in inputs])
        if y is None:
            raise TypeError(f"{self!r}.forward returned None; it has to return an array")
        result = Tensor._of(as_real(y, None, self))
        tensors = tuple([x if isinstance(x, Tensor) else None for x in inputs])
        _share_version(result, tensors)
        if mode.records_graph:
            parameters = applied.parameters()
            needed = [x for x in (*tensors, *parameters) if x is not None]
            if any(x.requires_grad for x in needed):
                applied._inputs_with_gradient = tuple([x is not None and x.requires_grad for x in tensors])
                result.function, result.inputs = applied, tensors
                result._versions = tuple([(x, x._version[0]) for x in needed])
                result._version_made = result._version[0]
                result.requires_grad = True
        return result

    def copy(self) -> Function:
        """A shallow copy: its own attributes, the same parameters."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        recording = kernels.recorder()
        if recording is not None:
            recording.note_copy(other, self)
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _share_version(result: Tensor, tensors: tuple[Tensor | None, ...]) -> None:
    """Let a view have the version count of what it looks at."""
    y = result._data
    for x in tensors:
        if x is not None and (x._data is y or (y.base is not None and np.may_share_memory(x._data, y))):
            result._version = x._version
