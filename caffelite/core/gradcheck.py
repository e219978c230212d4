"""`gradient` of a callable, and `check_gradients`, which compares a backward pass with central differences."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from caffelite.core.arrays import as_real
from caffelite.core.autograd import topological_order
from caffelite.core.function import Function
from caffelite.core.modes import record_graph
from caffelite.core.tensor import Tensor

Outputs = tuple[Any, ...]  # arrays or Tensors, one or more


def gradient(f: Callable[..., Tensor], *xs: Any) -> Any:
    """Return the gradient of f(*xs) with respect to each x, as an array or a tuple.

    f gets arrays and Tensors of floats as Tensors. Each gradient has the shape and dtype of its x, and is 0 if f(*xs)
    does not depend on x. The `.grad` of the xs, of parameters and of all other Tensors stays as it is.

    There are no second derivatives: the results are arrays, and count as constants in further computations.

    Raise TypeError unless the xs are real numbers and f returns a Tensor, and ValueError unless it has one element.
    """
    leaves = [Tensor(as_real(x.data if isinstance(x, Tensor) else x, None, "gradient"), requires_grad=True) for x in xs]
    with record_graph():
        y = f(*leaves)
    if not isinstance(y, Tensor):
        raise TypeError(f"gradient: {f!r} returned {type(y).__name__}; it has to return a Tensor")
    if y.size != 1:
        raise ValueError(f"gradient: {f!r} has to return a single element, got shape {y.shape}; add .sum() or .mean()")
    if y.requires_grad:
        with _preserve_gradients(_find_other_leaves(y, leaves)):
            y.backward()
    gradients = tuple([np.zeros_like(leaf._data) if leaf.grad is None else leaf.grad for leaf in leaves])
    return gradients[0] if len(gradients) == 1 else gradients


def _find_other_leaves(y: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Return the Tensors that would get a gradient in a backward from y, except for these leaves."""
    graph = topological_order(y)
    tensors = [t for t in graph if t.function is None]
    tensors += [p for t in graph if t.function is not None for p in t.function.parameters()]
    known = set(leaves)
    return [t for t in dict.fromkeys(tensors) if t not in known]


def check_gradients(
    function: Function | Callable[..., Tensor | tuple[Tensor, ...]],
    *inputs: Any,
    eps: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> float:
    """Compare gradients with central differences, (f(x + eps) − f(x − eps)) / 2 eps.

    A Function, or a callable on Tensors, runs on float64 copies, with a fixed random gradient for each output. The
    check covers every element of each float input and, in a Function, of each parameter. Integer inputs are not varied.
    Nor are inputs after the first if the Function's backward returns no gradient for them (such as a loss's targets).
    Each forward starts from the same buffers (such as a random counter). Existing values and gradients do not change.

    Return the largest absolute error. Raise AssertionError, with the worst element and both of its values, if |analytic
    − numeric| > atol + rtol |numeric| anywhere, and also if forward or backward writes into the arrays it gets. Raise
    ValueError unless eps > 0, rtol ≥ 0 and atol ≥ 0 are finite.
    """
    if not (0 < eps < np.inf and 0 <= rtol < np.inf and 0 <= atol < np.inf):
        raise ValueError(f"check_gradients: expected finite eps > 0, rtol and atol ≥ 0; got {eps}, {rtol}, {atol}")
    name, arrays = repr(function), [_float64(x) for x in inputs]
    parameters = function.parameters() if isinstance(function, Function) else []
    if not parameters and not any(x.dtype.kind == "f" for x in arrays):
        raise TypeError(f"check_gradients: {name} has no float input and no parameter to check")
    if not isinstance(function, Function):

        def graph_outputs() -> Outputs:
            return _apply(function, [Tensor(x) if x.dtype.kind == "f" else x for x in arrays])

        return _compare(name, graph_outputs, arrays, _graph_gradients(function, arrays), [], eps, rtol, atol)
    with _preserve_gradients(parameters), _preserve_buffers(function) as restore:
        for p in parameters:
            p._data, p._version = p._data.astype(np.float64), [0]
        gradients = _backward_gradients(function, arrays)
        applied = function.copy()

        def outputs() -> Outputs:
            restore()
            return _float64_outputs(name, applied.forward(*arrays))

        return _compare(name, outputs, arrays, gradients, parameters, eps, rtol, atol)


def _backward_gradients(function: Function, arrays: list[np.ndarray]) -> list[Any]:
    """Return the gradients that `backward` returns; None for an input without a gradient."""
    applied = function.copy()
    with _assert_unchanged(f"{function!r}.forward", "input", arrays):
        y = applied.forward(*arrays)
    for output in y if isinstance(y, tuple) else (y,):
        if isinstance(output, Tensor):
            raise TypeError(
                f"check_gradients: {function!r}.forward returned a Tensor, expected an array: compute with the "
                f"parameter's array, {_parameter_name(function)}.data"
            )
    dy = _dy(_float64_outputs(repr(function), y))
    with (
        _assert_unchanged(f"{function!r}.backward", "input", arrays),
        _assert_unchanged(f"{function!r}.backward", "dy", list(dy)),
    ):
        gradients = applied.backward(dy if isinstance(y, tuple) else dy[0])
    gradients = list(gradients) if isinstance(gradients, tuple) else [gradients]
    if arrays and arrays[0].dtype.kind == "f" and gradients[0] is None:
        raise AssertionError(f"{function!r}.backward returned no gradient for its first input")
    return gradients + [None] * (len(arrays) - len(gradients))


def _graph_gradients(function: Callable[..., Any], arrays: list[np.ndarray]) -> list[Any]:
    """Return the gradients of float inputs from `Tensor.backward`, 0 if they have none; None for other inputs."""
    tensors = [Tensor(x, requires_grad=True) if x.dtype.kind == "f" else x for x in arrays]
    outputs = _apply(function, tensors)
    total, *_ = _apply(lambda *ys: sum((y * dy).sum() for y, dy in zip(ys, _dy(ys), strict=True)), outputs)
    graph = topological_order(total)
    used = [p for t in graph if t.function is not None for p in t.function.parameters()]
    with _preserve_gradients([t for t in (*graph, *used) if not any(t is x for x in tensors)]):
        if total.requires_grad:
            total.backward()
        return [(np.zeros(t.shape) if t.grad is None else t.grad) if isinstance(t, Tensor) else None for t in tensors]


def _apply(function: Callable[..., Any], inputs: Sequence[Any]) -> Outputs:
    """Return a callable's results, with their graph even inside `no_grad`. TypeError unless all are Tensors."""
    with record_graph():
        y = function(*inputs)
    for output in y if isinstance(y, tuple) else (y,):
        if not isinstance(output, Tensor):
            raise TypeError(
                f"check_gradients: {function!r} returned {type(output).__name__}; it has to return a Tensor"
            )
    return _float64_outputs(repr(function), y)


def _float64_outputs(name: str, y: Any) -> Outputs:
    """Return the outputs as a tuple. Raise TypeError unless they are float64."""
    outputs = y if isinstance(y, tuple) else (y,)
    for output in outputs:
        dtype = output.dtype if isinstance(output, Tensor) else np.asarray(output).dtype
        if dtype != np.float64:
            raise TypeError(f"check_gradients: {name} made {dtype} from float64")
    return outputs


def _dy(outputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Return random gradients of the outputs, the same ones every time."""
    rng = np.random.default_rng(0)
    return tuple([np.asarray(rng.uniform(0.5, 1.5, np.shape(y))) for y in outputs])


def _compare(
    name: str,
    outputs: Callable[[], Outputs],
    arrays: list[np.ndarray],
    gradients: list[Any],
    parameters: list[Tensor],
    eps: float,
    rtol: float,
    atol: float,
) -> float:
    """Return the largest error of `gradients`, one per array, and of the parameters' `grad`. Values vary in place."""
    dys = _dy(outputs())

    def values_now() -> list[np.ndarray]:
        return [np.array(y.data if isinstance(y, Tensor) else y) for y in outputs()]

    variables = [
        (f"input {i}", values, gradient)
        for i, (values, gradient) in enumerate(zip(arrays, gradients, strict=True))
        if values.dtype.kind == "f" and gradient is not None
    ]
    variables += [(f"parameter {p.name or i}", p.data, p.grad) for i, p in enumerate(parameters) if p.requires_grad]
    worst, excess, message = 0.0, -np.inf, ""
    for what, values, gradient in variables:
        gradient = np.zeros(values.shape) if gradient is None else np.asarray(gradient)
        if gradient.shape != values.shape:
            raise AssertionError(f"{name}: the gradient of {what}, shape {values.shape}, has shape {gradient.shape}")
        for index in np.ndindex(values.shape):
            value = values[index]
            values[index] = value + eps
            above, high = values_now(), values[index]
            values[index] = value - eps
            below, low = values_now(), values[index]
            values[index] = value
            step = high - low if high > low else 2 * eps  # value ± eps are rounded, and are equal if value is huge
            numeric = float(sum((dy * (a - b)).sum() for dy, a, b in zip(dys, above, below, strict=True)) / step)
            analytic = float(gradient[index])
            error = abs(analytic - numeric)
            error = np.inf if np.isnan(error) else error
            worst = max(worst, error)
            violation = error - (atol + rtol * abs(numeric)) if np.isfinite(numeric) else np.inf
            if violation > excess:
                excess = violation
                message = f"the gradient of {what} at {index} is {analytic:.9g}, numerically {numeric:.9g}"
    if excess > 0:
        raise AssertionError(f"{name}: {message} (of the sum of dy · output, each dy a fixed random array)")
    return worst


def _float64(x: Any) -> np.ndarray:
    array = np.asarray(x.data if isinstance(x, Tensor) else x)
    return np.array(as_real(array, np.float64, "check_gradients")) if array.dtype.kind == "f" else array


def _parameter_name(function: Function) -> str:
    """Return the name of a Function's first parameter in its own methods, such as "self.weight"."""
    return next((f"self.{name}" for name, value in vars(function).items() if isinstance(value, Tensor)), "self.weight")


@contextmanager
def _assert_unchanged(who: str, what: str, arrays: list[np.ndarray]) -> Iterator[None]:
    """Raise AssertionError if the code inside writes into these arrays."""
    before = [array.copy() for array in arrays]
    yield
    for i, (array, values) in enumerate(zip(arrays, before, strict=True)):
        if not np.array_equal(array, values, equal_nan=array.dtype.kind == "f"):
            raise AssertionError(f"{who} has changed its {what} {i}; make a new array, such as x * 2 instead of x *= 2")


@contextmanager
def _preserve_gradients(tensors: list[Tensor]) -> Iterator[None]:
    """Inside, the tensors have no gradient. Afterwards, restore their arrays, gradients and versions."""
    before = [(t._data, t._gradient, t._has_gradient, t._version, t._used_rows) for t in tensors]
    for t in tensors:
        t._gradient, t._has_gradient, t._used_rows = None, False, copy.copy(t._used_rows)
    try:
        yield
    finally:
        for t, state in zip(tensors, before, strict=True):
            t._data, t._gradient, t._has_gradient, t._version, t._used_rows = state


@contextmanager
def _preserve_buffers(function: Function) -> Iterator[Callable[[], None]]:
    """Yield a function that restores the current values of a Function's buffers. The exit restores them, too."""
    buffers = list(function.buffers().values())
    before = [array.copy() for array in buffers]

    def restore() -> None:
        for array, values in zip(buffers, before, strict=True):
            array[...] = values

    try:
        yield restore
    finally:
        restore()
