"""`Model.forward` and `Model.backward` in sequence, or by the graph that `call` makes."""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_array, as_indices, as_real, is_foreign_array
from caffelite.core.autograd import has_tensors, propagate
from caffelite.core.modes import record_graph
from caffelite.core.sparse import as_sparse, is_sparse
from caffelite.core.tensor import Tensor
from caffelite.model.container import Container
from caffelite.model.tracing import to_list


class SequentialExecution:
    """Copies of a sequence's Functions, which keep what `backward` needs. The originals keep nothing."""

    def __init__(self, model: Container) -> None:
        self.functions = [function.copy() for function in model.functions]

    def forward(self, *inputs: Any) -> Any:
        """Apply one Function after the other."""
        if is_sparse(inputs[0]) and self.functions:
            inputs = (self.functions[0]._convert_first_input(inputs[0]),)
        for function in self.functions:
            inputs = (function.forward(*inputs),)
            if inputs[0] is None:
                raise TypeError(f"{function!r}.forward returned None; it has to return an array")
        return inputs[0]

    def backward(self, dy: Any) -> Any:
        """Return the gradient of the input, from the last Function to the first."""
        for function in reversed(self.functions):
            dy = function.backward(dy)
            if dy is None and not (function.takes_indices or function.takes_sparse):
                raise TypeError(f"{function!r}.backward returned None; it has to return the gradient of its input")
        return dy


class GraphExecution:
    """The graph of Tensors that a model's `call` makes."""

    def __init__(self, model: Container) -> None:
        self.model = ref(model)  # weak, since the model keeps this graph
        self.inputs: list[Any] = []
        self.outputs: Any = ()

    def forward(self, *inputs: Any) -> Any:
        """Return the arrays that `call` computes. Every float input is a leaf that requires a gradient."""
        model: Any = self.model()
        self.inputs = [as_input(model, x) for x in inputs]
        for x in self.inputs:
            if isinstance(x, Tensor):
                x._requires_grad = True
        with record_graph():
            self.outputs = model(*self.inputs)
        return tuple([y.data for y in self.outputs]) if isinstance(self.outputs, tuple) else self.outputs.data

    def backward(self, dy: Any) -> Any:
        """Return the gradient of every float input, and None for the others."""
        gradients: dict[Tensor, np.ndarray] = {}
        dys = dy if isinstance(self.outputs, tuple) else (dy,)
        if not isinstance(dys, tuple) or len(dys) != len(to_list(self.outputs)):
            raise ValueError(f"{type(self.model()).__name__}.backward takes as many gradients as the model has outputs")
        for y, d in zip(to_list(self.outputs), dys, strict=True):
            if d is None or not y.requires_grad:
                continue
            d = as_real(d, y.dtype, "backward")
            if d.shape != y.shape:
                raise ValueError(f"backward of an output of shape {y.shape} got a gradient of shape {d.shape}")
            gradients[y] = d if y not in gradients else kernels.add(gradients[y], d)
        for x in self.inputs:
            if isinstance(x, Tensor):
                x._has_gradient = False
        propagate(gradients)
        dxs = [_gradient_or_zeros(x) if isinstance(x, Tensor) else None for x in self.inputs]
        return dxs[0] if len(dxs) == 1 else tuple(dxs)


def unpack_inputs(model: Container, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs of a call. For several inputs, a single tuple may hold all of them, as in `predict`."""
    is_packed = len(inputs) == 1 and isinstance(inputs[0], tuple) and model.min_inputs() > 1
    return inputs[0] if is_packed else inputs


def as_input(model: Container, x: Any) -> Any:
    """Return x as `call` gets it: floats as a Tensor, everything else as it is."""
    if is_sparse(x):
        return as_sparse(x)
    if isinstance(x, list | tuple) and not has_tensors(x):
        x = as_indices(x, model) if model.takes_indices is True else as_real(x, model.input_dtype, model)
    elif not isinstance(x, Tensor) and is_foreign_array(x):
        x = as_array(x, model)
    return Tensor(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def check_outputs(model: Container, outputs: Any) -> Any:
    """Return the outputs of `call`. TypeError unless they are a Tensor or a tuple of Tensors."""
    tensors = to_list(outputs)
    if not tensors or not all(isinstance(y, Tensor) for y in tensors):
        got = _format_types(outputs)
        hint = ""
        if isinstance(outputs, tuple) and any(isinstance(y, tuple) for y in outputs):
            hint = "; `return y, *states` gives one tuple"
        elif isinstance(outputs, tuple) and any(y is None for y in outputs):
            hint = "; leave out what is None, such as `return y if loss is None else (y, loss)`"
        raise TypeError(f"{type(model).__name__}.call has to return a Tensor or a tuple of them, got {got}{hint}")
    return outputs


def _format_types(x: Any) -> str:
    """Return the types in nested tuples and lists, such as "(Tensor, (Tensor, None))". No array is read."""
    if isinstance(x, tuple | list):
        types = ", ".join(map(_format_types, x))
        return f"({types})" if isinstance(x, tuple) else f"[{types}]"
    kind = np.ndarray if isinstance(x, kernels.RecordedArray) else type(x)
    return "None" if x is None else kind.__name__


def _gradient_or_zeros(x: Tensor) -> np.ndarray:
    """Return the gradient of a leaf; zeros if it has none."""
    gradient = x.grad
    return kernels.full(x.shape, 0, x.dtype) if gradient is None else gradient
