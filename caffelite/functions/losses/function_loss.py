"""A user's function as a loss."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from caffelite import _kernels as kernels
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor


class FunctionLoss(Function, recordable=True):
    """The loss that a function computes from outputs and targets: `function(outputs, targets) -> Tensor`.

    The outputs are a Tensor, or a tuple of Tensors if the model has several; targets and weights are arrays.
    """

    _cache: ClassVar[WeakValueDictionary[int, FunctionLoss]] = WeakValueDictionary()

    def __init__(self, function: Callable[..., Tensor]) -> None:
        check_argument_order("loss", function)
        self.function = function

    @classmethod
    def from_function(cls, function: Callable[..., Tensor]) -> FunctionLoss:
        """Return the loss of this function, always the same object, so that its recorded steps can be reused."""
        loss = cls._cache.get(id(function))
        if loss is None:
            loss = cls._cache[id(function)] = cls(function)
        return loss

    def python_code(self) -> Callable[..., Any]:
        return self.function

    def __call__(self, *inputs: Any) -> Any:
        recording = kernels.recorder()
        if recording is not None:
            recording.guard_code(self.function)
        return self.function(*inputs)

    def forward(self, outputs: Any, *targets: Any) -> Any:
        is_tuple = isinstance(outputs, tuple)
        self.outputs = tuple([Tensor._from_array(y) for y in (outputs if is_tuple else (outputs,))])
        for y in self.outputs:
            y._requires_grad = True
        self.value = self.function(self.outputs if is_tuple else self.outputs[0], *targets)
        return self.value.data

    def backward(self, dy: Any = 1.0) -> Any:
        self.value.backward(dy)
        gradients = tuple([y.grad for y in self.outputs])
        return gradients if len(gradients) > 1 else gradients[0]

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))


OwnLoss = FunctionLoss  # its name in pickles from older versions


def as_loss(loss: Any) -> Function:
    """Return a loss as a Function. Raise TypeError for a class, and for anything that cannot be called."""
    if isinstance(loss, Function):
        return loss
    if not callable(loss) or isinstance(loss, type):
        from caffelite._support.hints import string_hint  # only for errors

        got = f"{loss!r}{string_hint(loss=loss)}"
        raise TypeError(f"loss: expected a Function such as SoftmaxLoss(), or a function, got {got}")
    return FunctionLoss.from_function(loss)


def check_argument_order(argument: str, function: Callable[..., Any]) -> None:
    """Raise TypeError if a loss or metric calls its first parameter y_true, because it would get the outputs there."""
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):  # compiled code may have no signature
        names = list(inspect.signature(function).parameters)
    if names[:1] == ["y_true"]:
        name = getattr(function, "__name__", "f")
        raise TypeError(
            f"{argument}: {name}({', '.join(names[:2])}) takes the targets first; caffelite gives the outputs first: "
            f"give lambda outputs, targets: {name}(targets, outputs). Outputs are scores, without softmax or sigmoid"
        )
