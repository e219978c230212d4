"""Function: an operator, forward and backward. Everything that a Model is made of is one, and so are losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.arrays import FLOATS, as_real
from caffelite.modes import mode
from caffelite.recording import in_python
from caffelite.tensor import Tensor, serial_numbers

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
    called_back = False  # whether `forward` and `backward` are called back at replays, or recorded as kernels
    _applied_inputs: tuple[Tensor | None, ...] = ()  # what it was applied to; None for a plain array
    unwatched: frozenset[str] = frozenset()  # attributes that have no influence on what a recorded step computes

    #: The shape of the input this Function requires, batch axis first, None = any; None where it takes every shape.
    required_input_shape: Shape | None = None

    def __init_subclass__(cls, recordable: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.recordable = recordable
        cls.called_back = not recordable and (cls.called_back or not {"forward", "backward"}.isdisjoint(cls.__dict__))
        if cls.called_back:
            cls.forward = in_python(cls.forward)  # type: ignore[method-assign]
            cls.backward = in_python(cls.backward)  # type: ignore[method-assign] # it needs what that forward keeps

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
        inputs = self._applied_inputs
        return not inputs or ((x := inputs[i]) is not None and x._requires_grad)

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
        """Apply a copy of this Function to Tensors, arrays or numbers, and record it in the graph.

        A list in the first place becomes an array of the parameters' dtype, float32 without any; a user's `forward`
        gets it as it is.
        """
        if inputs and isinstance(inputs[0], (list, tuple)) and not self.called_back:
            dtype = next((p.dtype for p in self.parameters()), None)
            inputs = (as_real(inputs[0], dtype, self), *inputs[1:])
        return self.copy().applied_to(*inputs)

    def applied_to(self, *inputs: Any) -> Tensor:
        """What a call gives, without the copy: for a Function that was made to be applied once."""
        arrays: list[Any] = []
        tensors: list[Tensor | None] = []
        versions, recorded = [], False
        recording = kernels.recorder()
        for x in inputs:
            if isinstance(x, Tensor):
                arrays.append(x._data if recording is None else x.data)
                tensors.append(x)
                versions.append((x, x._version, x._version[0]))
                recorded = recorded or x._requires_grad
            else:
                arrays.append(x)
                tensors.append(None)
        y = self.forward(*arrays)
        if type(y) is not np.ndarray or y.dtype not in FLOATS:
            y = _as_result(y, self)
        result = Tensor._of(y)
        parameters = self.parameters()
        shares = y.base is not None
        for array in arrays:
            shares = shares or array is y
        for p in parameters:
            shares = shares or p._data is y
        if shares:
            _share_version(result, [*tensors, *parameters])
        if mode.records_graph:
            for p in parameters:
                versions.append((p, p._version, p._version[0]))
                recorded = recorded or p._requires_grad
            if recorded:
                self._applied_inputs = result.inputs = tuple(tensors)
                result.function, result._versions, result._requires_grad = self, versions, True
                result._version_made, result._serial_number = result._version[0], next(serial_numbers)
        return result

    def _become(self, original: Function) -> None:
        """Be as `original` is, and as if it had just been applied to what this Function was applied to."""
        inputs = self._applied_inputs
        vars(self).clear()
        vars(self).update(vars(original))
        self._applied_inputs = inputs

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


def _as_result(y: Any, function: Function) -> np.ndarray:
    """What a Function's forward returned, as an array of float32 or float64; TypeError if it is nothing of the kind."""
    if y is None:
        raise TypeError(f"{function!r}.forward returned None; it has to return an array")
    return as_real(y, None, function)


def _share_version(result: Tensor, tensors: list[Tensor | None]) -> None:
    """Let a view have the version count of what it looks at."""
    for x in tensors:
        if x is not None and np.may_share_memory(x._data, result._data):
            result._version = x._version
