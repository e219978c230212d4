"""check_gradients: is a backward right? Compared with central differences, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite.function import Function
from caffelite.tensor import Tensor, as_real


def check_gradients(
    function: Function | Callable[..., Tensor],
    *inputs: Any,
    eps: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> float:
    """Compare the gradients of a Function, or of a callable on Tensors, with (f(x + eps) − f(x − eps)) / 2 eps.

    Everything runs on float64 copies, with a fixed random gradient of the output. Every element of every float input
    and of every parameter of a Function is checked; integer inputs are held fixed. Existing values and gradients are
    left alone.

    Returns the largest absolute error. Raises AssertionError naming the worst element, with both numbers, if
    |analytic − numeric| > atol + rtol |numeric| anywhere.
    """
    arrays = [_float64(x) for x in inputs]
    if isinstance(function, Function):
        parameters = function.parameters()
        with _Float64(parameters):
            return _check(function, arrays, parameters, eps, rtol, atol)
    return _check(function, arrays, [], eps, rtol, atol)


def _check(
    function: Any, arrays: list[np.ndarray], parameters: list[Tensor], eps: float, rtol: float, atol: float
) -> float:
    def output() -> Tensor:
        return function(*[Tensor(x) if x.dtype.kind == "f" else x for x in arrays])

    tensors = [Tensor(x, requires_grad=True) if x.dtype.kind == "f" else x for x in arrays]
    y = function(*tensors)
    if y.dtype != np.float64:
        raise TypeError(f"check_gradients: {function!r} made {y.dtype} from float64")
    dy = np.asarray(np.random.default_rng(0).uniform(0.5, 1.5, y.shape))
    y.backward(dy)

    checked = [(f"input {i}", arrays[i], t.grad) for i, t in enumerate(tensors) if isinstance(t, Tensor)]
    checked += [(f"parameter {p.name or i}", p.data, p.grad) for i, p in enumerate(parameters) if p.requires_grad]
    worst, excess, message = 0.0, -np.inf, ""
    for what, values, gradient in checked:
        for index in np.ndindex(values.shape):
            value = values[index]
            values[index] = value + eps
            above = output().data
            values[index] = value - eps
            below = output().data
            values[index] = value
            numeric = float((dy * (above - below)).sum() / (2 * eps))
            analytic = 0.0 if gradient is None else float(gradient[index])
            error = abs(analytic - numeric)
            error = np.inf if np.isnan(error) else error
            worst = max(worst, error)
            if error - (atol + rtol * abs(numeric)) > excess:
                excess = error - (atol + rtol * abs(numeric))
                message = (
                    f"{function!r}: the gradient of {what} at {index} is {analytic:.9g}, numerically {numeric:.9g}"
                )
    if excess > 0:
        raise AssertionError(message)
    return worst


def _float64(x: Any) -> np.ndarray:
    array = np.asarray(x.data if isinstance(x, Tensor) else x)
    return np.array(as_real(array, np.float64, "check_gradients")) if array.dtype.kind == "f" else array


class _Float64:
    """While it lasts, parameters hold float64 copies of their values, and no gradient."""

    FIELDS = ("_data", "_gradient", "_has_gradient", "_version")

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters

    def __enter__(self) -> None:
        self.before = [[getattr(p, field) for field in self.FIELDS] for p in self.parameters]
        for p in self.parameters:
            p._data, p._gradient, p._has_gradient, p._version = p._data.astype(np.float64), None, False, [0]

    def __exit__(self, *exception: Any) -> None:
        for p, values in zip(self.parameters, self.before, strict=True):
            for field, value in zip(self.FIELDS, values, strict=True):
                setattr(p, field, value)
