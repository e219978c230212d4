"""The shapes of a model's outputs, and other facts that are found by applying it to zeros."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.modes import inference, real_batches_only, shape_inference
from caffelite.core.sparse import from_row_array, is_sparse, to_row_array
from caffelite.files.state import BaseModel
from caffelite.model.tracing import Trace, to_list
from caffelite.program.recording import is_internal
from caffelite.training.inputs import largest_indices

INT64, BOOL = np.dtype(np.int64), np.dtype(np.bool_)


class UnknownLengthError(ValueError):
    """The output shape of a model with a `call` is unknown: a row's length is, or the user's Python code decides."""


@functools.lru_cache(maxsize=1024)
def accepts_inputs(forward: Callable[..., Any], inputs: int) -> bool:
    """Return whether you can call a Function's `forward` with this number of inputs."""
    try:
        inspect.signature(forward).bind(None, *[None] * inputs)
    except TypeError:
        return False
    return True


def check_sequence(functions: list[Function]) -> None:
    """Raise ValueError if a Function can't follow the one before it, for any number of axes of the input."""
    if find_extra_axes(functions) is None:
        with real_batches_only():
            infer_shape(functions)


def find_extra_axes(functions: list[Function]) -> int | None:
    """Return how many axes `...` has to be in the first input if all Functions fit; None if no number does."""
    for extra_axes in range(4):
        with suppress(ValueError), real_batches_only():
            infer_shape(functions, extra_axes=extra_axes)
            return extra_axes
    return None


def infer_shape(functions: list[Function], shape: Any = None, *, extra_axes: int = 0) -> Any:
    """Return the shape after these Functions; None if it is not known.

    Without a shape to start from, it takes the first required one, with `extra_axes` axes for its `...`.
    """
    for function in functions:
        shape = fill_ellipsis(function.required_input_shape, extra_axes) if shape is None else shape
        try:
            shape = None if shape is None else function.output_shape(*to_list(shape, kind=tuple))
        except UnknownLengthError:  # after a convolution, for example, if the size of the images is unknown
            shape = None
    return shape


def fill_ellipsis(shape: Any, extra_axes: int = 0) -> Any:
    """Return a required shape with `extra_axes` axes in place of its `...`, if it has one."""
    return shape and tuple([n for m in shape for n in ((None,) * extra_axes if m is ... else (m,))])


def output_shape(model: BaseModel, input_shapes: tuple[Shape, ...]) -> Any:
    """Return the shape of each output; see `Model.output_shape`."""
    if model.is_sequence():
        count = len(input_shapes)
        if count != 1 and not (model.functions and accepts_inputs(type(model.functions[0]).forward, count)):
            raise ValueError(
                f"{type(model).__name__} is a sequence of Functions, which takes one input, got {count} "
                f"of shapes {', '.join(map(format_shape, input_shapes))}; for several, write `call`"
            )
        shapes: Any = input_shapes
        for function in model.functions:
            shapes = (function.output_shape(*shapes),)
        (shape,) = shapes
        return shape
    return infer_call_shape(model, input_shapes, input_dtypes(model, [False] * len(input_shapes)))


def shape_for(model: BaseModel, inputs: Sequence[np.ndarray], n: int | None) -> Any:
    """Return the shape of each output for n rows like these; None if only a batch of the user's can show it.

    That is so for a `call` in which the user's Python code decides. caffelite's own `call` is tried on zeros. If it
    raises, the batch decides, too.
    """
    input_shapes: list[Any] = [(n, *x.shape[1:]) for x in inputs]
    try:
        with real_batches_only():
            if model.is_sequence() or not is_internal(type(model).output_shape):
                return model.output_shape(*input_shapes)
            return infer_call_shape(model, tuple(input_shapes), dtypes_like(model, inputs))
    except UnknownLengthError:
        if not model.is_sequence() and not accepts_inputs(type(model).call, len(inputs)):  # type: ignore[attr-defined]
            raise TypeError(
                f"{type(model).__name__}.call{inspect.signature(model.python_code())} got {len(inputs)}: several "
                "inputs are a tuple, fit((a, b), y), and each one is an argument, call(self, a, b)"
            ) from None
        return None
    except Exception:
        if model.is_sequence() or not is_internal(type(model).output_shape):
            raise
        return None


def infer_call_shape(model: BaseModel, input_shapes: tuple[Shape, ...], dtypes: tuple[np.dtype, ...]) -> Any:
    """Return the output shapes of a model that writes `call`, by calling it on zeros of these dtypes."""
    model.all_functions()
    if real_batches_only.is_on and model._model_state.runs_user_code(model):
        raise UnknownLengthError(f"only a batch shows the output shape of {type(model).__name__}")
    rows = tuple([shape[1:] for shape in input_shapes])
    shapes = infer_once(model, ("shapes", rows, dtypes), lambda model: call_on_zeros(model, rows, dtypes))
    n = input_shapes[0][:1] if input_shapes else ()
    output_shapes = [n + shape[1:] if shape[:1] == (None,) else shape for shape in to_list(shapes, kind=tuple)]
    return tuple(output_shapes) if shapes and isinstance(shapes[0], tuple) else output_shapes[0]


def call_on_zeros(model: BaseModel, rows: tuple[Shape, ...], dtypes: tuple[np.dtype, ...]) -> Any:
    """Return the output shapes for rows of these shapes, with None for the number of rows."""
    if any(None in shape for shape in rows):
        raise UnknownLengthError(
            f"{type(model).__name__}.output_shape calls the model, and has to know all lengths but the first; "
            f"got rows of {', '.join(map(str, rows))}"
        )
    n = 2  # any number but 1, which could be broadcast
    outputs = model(*zeros([(n, *shape) for shape in rows], dtypes))
    shapes = [(None, *y.shape[1:]) if y.shape[:1] == (n,) else y.shape for y in to_list(outputs)]
    return tuple(shapes) if isinstance(outputs, tuple) else shapes[0]


def zeros(shapes: list[Any], dtypes: tuple[np.dtype, ...]) -> list[np.ndarray]:
    """Return inputs of these shapes: zeros, masks that are True everywhere, or empty sparse rows."""
    return [
        from_row_array(np.zeros(shape[0], dtype)) if dtype.names else np.full(shape, dtype == np.bool_, dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def input_dtypes(model: BaseModel, are_masks: Sequence[bool]) -> tuple[np.dtype, ...]:
    """Return the dtype in which the model gets each input. `are_masks` says which inputs are bool; see `as_inputs`."""
    n, flags = len(are_masks), model.takes_indices
    flags = flags if isinstance(flags, tuple) else (flags,) * n
    if len(flags) != n:
        raise ValueError(f"{type(model).__name__} takes {len(flags)} inputs, got {n}")
    kinds = zip(flags, are_masks, strict=True)
    return tuple([INT64 if indices else BOOL if mask and n > 1 else model.input_dtype for indices, mask in kinds])


def dtypes_like(model: BaseModel, inputs: Sequence[Any]) -> tuple[np.dtype, ...]:
    """Return the dtype in which the model gets each of these inputs; for sparse inputs, the dtype of a row."""
    dtypes = input_dtypes(model, [to_row_array(x).dtype == np.bool_ for x in inputs])
    pairs = zip(inputs, dtypes, strict=True)
    return tuple([kernels.sparse_row(dtype, x.shape[1]) if is_sparse(x) else dtype for x, dtype in pairs])


def infer_once(model: BaseModel, key: tuple[Any, ...], find: Callable[[Any], Any]) -> Any:
    """Return `find(copy of the model)`. The result is kept by its key until the model's attributes change."""
    attributes, result = model._model_state.inference_cache.get(key, (None, None))
    if attributes is None or not kernels.are_unchanged([attributes]):
        with dry_run(model):
            model_copy: Any = model._shallow_copy()  # since `call` may store something in the model
            result = find(model_copy)
        values = {k: x for k, x in model._used_attributes(model_copy).items() if k not in model.not_recorded}
        model._model_state.cache_inference(key, (kernels.AttributeGuard(model, values), result))
    return result


@contextmanager
def dry_run(model: BaseModel) -> Iterator[None]:
    """Let the body apply the model without any effect that lasts.

    It makes no graph, records nothing and warns of nothing. A user's `call` or `forward` may change the user's objects,
    so this happens only once there is a batch, unless the user asks for shapes.
    """
    with inference(), shape_inference(), kernels.pause_recording(), np.errstate(all="ignore"):
        yield


def runs_user_code(function: Function) -> bool:
    """Return whether code of the user's runs if this Function is applied."""
    kind: Any = type(function)
    return not all(map(is_internal, (function.python_code(), kind.forward, kind.__call__)))


def row_shapes(model: BaseModel, input_shape: Any) -> list[tuple[int, ...]]:
    """Return the shape of a row of each input of an export; ValueError or TypeError if a length is missing or wrong."""
    if input_shape is None:
        model.all_functions()
        extra_axes = find_extra_axes(model.functions) if model.is_sequence() else None
        required: Any = model.required_input_shape
        shapes = required if required and isinstance(required[0], tuple) else (required,)
        candidates = [fill_ellipsis(shape, extra_axes or 0) for shape in shapes]
        for axes, shape in zip(shapes, candidates, strict=True):
            if shape is None or (axes[1:] == (...,) and shape[1:] == ()):  # an Embedding takes any number of indices
                for_two = "" if model.is_sequence() else ", or ((64,), (3,)) for two inputs"
                raise ValueError(f"export has to know the shape of a row: give input_shape, such as (64,){for_two}")
            if None in shape[1:]:
                example = tuple([28 if n is None else n for n in shape[1:]])
                raise ValueError(
                    f"export has to know the shape of a row, and knows only {format_shape(shape)}: give "
                    f"input_shape, such as {example}"
                )
        return [shape[1:] for shape in candidates]
    if not isinstance(input_shape, tuple | list):
        raise TypeError(f"export: expected the shape of a row, such as (64,), got {input_shape!r}")
    is_nested = bool(input_shape) and all(isinstance(row, tuple | list) for row in input_shape)
    rows = [tuple(row) for row in input_shape] if is_nested else [tuple(input_shape)]
    for n in [n for row in rows for n in row]:
        if isinstance(n, bool) or not isinstance(n, int | np.integer):
            raise TypeError(
                f"export: expected the shape of a row, without the axis of the rows, such as (64,), got {input_shape!r}"
            )
        if n < 1:
            raise ValueError(f"export: lengths are 1 or more, got {input_shape!r}")
    return rows


def index_limits(model: BaseModel, inputs: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """Return, for each input, the largest index allowed at each place of a row; None for no limit, or an unknown one.

    Only a batch shows the limits of a model in which the user's Python code decides.
    """
    functions = model.all_functions()
    if not any(f.index_count is not None for f in functions) or model._model_state.runs_user_code(model):
        return [None] * len(inputs)
    dtypes = dtypes_like(model, inputs)
    key = "largest indices", tuple([x.shape[1:] for x in inputs]), dtypes

    def find(model: BaseModel) -> list[np.ndarray | None]:
        rows, trace = zeros([(2, *x.shape[1:]) for x in inputs], dtypes), Trace(model)
        trace.model(*rows)
        lookups = [(step.function, step.inputs) for step in trace.all_steps()]
        return [largest_indices(lookups, array) for array in rows]

    limits: list[np.ndarray | None] = infer_once(model, key, find)
    return limits
