"""check_gradients: is a backward right? Compared with central differences, element by element."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from caffelite.function import Function
from caffelite.tensor import Tensor, as_real, inputs_first, mode


def check_gradients(
    function: Function | Callable[..., Tensor],
    *inputs: Any,
    eps: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> float:
    """Compare the gradients of a Function, or of a callable on Tensors, with (f(x + eps) − f(x − eps)) / 2 eps.

    Everything runs on float64 copies, with a fixed random gradient of the output. Every element of every parameter of a
    Function is checked, and of every float input. Integer inputs are held fixed, and so are inputs after the first
    that a Function's backward returns no gradient for (a loss's targets). Existing values and gradients are left alone,
    and so are a Function's buffers, which every evaluation begins with: a Dropout always draws the same mask.

    Returns the largest absolute error. Raises AssertionError naming the worst element, with both numbers, if
    |analytic − numeric| > atol + rtol |numeric| anywhere; ValueError for tolerances that no number can exceed.
    """
    if not (0 < eps < np.inf and 0 <= rtol < np.inf and 0 <= atol < np.inf):
        raise ValueError(f"check_gradients: expected finite eps > 0, rtol and atol ≥ 0; got {eps}, {rtol}, {atol}")
    arrays = [_float64(x) for x in inputs]
    if not isinstance(function, Function):

        def forward(*arrays: np.ndarray) -> np.ndarray:
            return _applied(function, [Tensor(x) if x.dtype.kind == "f" else x for x in arrays]).data

        return _check(repr(function), forward, arrays, _by_graph(function, arrays), [], eps, rtol, atol)
    parameters, applied = function.parameters(), function.copy()
    buffers = [(array, array.copy()) for array in getattr(function, "buffers", dict)().values()]

    def forward_again(*arrays: np.ndarray) -> np.ndarray:
        for array, before in buffers:
            array[...] = before
        return applied.forward(*arrays)

    with _restored(parameters):
        for p in parameters:
            p._data, p._version = p._data.astype(np.float64), [0]
        try:
            gradients = _by_hand(function, arrays)
            return _check(repr(function), forward_again, arrays, gradients, parameters, eps, rtol, atol)
        finally:
            for array, before in buffers:
                array[...] = before


def _by_hand(function: Function, arrays: list[np.ndarray]) -> list[Any]:
    """The gradients that `backward` returns, None for inputs without one."""
    applied = function.copy()
    gradients = applied.backward(_dy(applied.forward(*arrays)))
    gradients = list(gradients) if isinstance(gradients, tuple) else [gradients]
    if arrays and arrays[0].dtype.kind == "f" and gradients[0] is None:
        raise AssertionError(f"{function!r}.backward returned no gradient for its first input")
    return gradients + [None] * (len(arrays) - len(gradients))


def _by_graph(function: Callable[..., Tensor], arrays: list[np.ndarray]) -> list[Any]:
    """The gradients that `Tensor.backward` leaves on float inputs, 0 where nothing contributed; None for the others."""
    tensors = [Tensor(x, requires_grad=True) if x.dtype.kind == "f" else x for x in arrays]
    y = _applied(function, tensors)
    graph = inputs_first(y)
    used = [p for t in graph if t.function is not None for p in t.function.parameters()]
    with _restored([t for t in (*graph, *used) if not any(t is x for x in tensors)]):
        if y.requires_grad:
            y.backward(_dy(y.data))
        return [(np.zeros(t.shape) if t.grad is None else t.grad) if isinstance(t, Tensor) else None for t in tensors]


def _applied(function: Callable[..., Tensor], inputs: list[Any]) -> Tensor:
    """What a callable returns, with its graph, in `no_grad` too; TypeError if it is no Tensor."""
    before, mode.records_graph = mode.records_graph, True
    try:
        y = function(*inputs)
    finally:
        mode.records_graph = before
    if not isinstance(y, Tensor):
        raise TypeError(f"check_gradients: {function!r} returned {type(y).__name__}; it has to return a Tensor")
    return y


def _dy(y: np.ndarray) -> np.ndarray:
    """The gradient of the output: random, and the same every time."""
    return np.asarray(np.random.default_rng(0).uniform(0.5, 1.5, np.shape(y)))


def _check(
    name: str,
    forward: Callable[..., np.ndarray],
    arrays: list[np.ndarray],
    gradients: list[Any],
    parameters: list[Tensor],
    eps: float,
    rtol: float,
    atol: float,
) -> float:
    """The largest error of `gradients`, of the arrays in order, and of the parameters' `grad`."""

    if not parameters and not any(x.dtype.kind == "f" for x in arrays):
        raise TypeError(f"check_gradients: {name} has no float input and no parameter to check")
    y = np.asarray(forward(*arrays))
    if y.dtype != np.float64:
        raise TypeError(f"check_gradients: {name} made {y.dtype} from float64")
    dy = _dy(y)
    checked = [
        (f"input {i}", values, gradient)
        for i, (values, gradient) in enumerate(zip(arrays, gradients, strict=True))
        if values.dtype.kind == "f" and gradient is not None
    ]
    checked += [(f"parameter {p.name or i}", p.data, p.grad) for i, p in enumerate(parameters) if p.requires_grad]
    worst, excess, message = 0.0, -np.inf, ""
    for what, values, gradient in checked:
        gradient = np.zeros(values.shape) if gradient is None else np.asarray(gradient)
        if gradient.shape != values.shape:
            raise AssertionError(f"{name}: the gradient of {what}, shape {values.shape}, has shape {gradient.shape}")
        for index in np.ndindex(values.shape):
            value = values[index]
            values[index] = value + eps
            above = np.array(forward(*arrays))
            values[index] = value - eps
            below = np.array(forward(*arrays))
            values[index] = value
            numeric = float((dy * (above - below)).sum() / (2 * eps))
            analytic = float(gradient[index])
            error = abs(analytic - numeric)
            error = np.inf if np.isnan(error) else error
            worst = max(worst, error)
            over = error - (atol + rtol * abs(numeric)) if np.isfinite(numeric) else np.inf
            if over > excess:
                excess = over
                message = f"the gradient of {what} at {index} is {analytic:.9g}, numerically {numeric:.9g}"
    if excess > 0:
        raise AssertionError(f"{name}: {message} (of the sum of dy · output, dy a fixed random array)")
    return worst


def _float64(x: Any) -> np.ndarray:
    array = np.asarray(x.data if isinstance(x, Tensor) else x)
    return np.array(as_real(array, np.float64, "check_gradients")) if array.dtype.kind == "f" else array


@contextmanager
def _restored(tensors: list[Tensor]) -> Iterator[None]:
    """Inside, the tensors have no gradient; afterwards they have their arrays, gradients and versions of before."""
    before = [(t._data, t._gradient, t._has_gradient, t._version) for t in tensors]
    for t in tensors:
        t._gradient, t._has_gradient = None, False
    try:
        yield
    finally:
        for t, state in zip(tensors, before, strict=True):
            t._data, t._gradient, t._has_gradient, t._version = state
