"""Conversions and checks of the arrays, numbers and axes that users give."""

from __future__ import annotations

import operator
import reprlib
import sys
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from caffelite import _kernels as kernels

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
ARRAY_TYPES = (np.ndarray, kernels.RecordedArray)
INTEGERS = (int, np.integer)
NUMBERS = (int, float, np.integer, np.floating)


def native_dtype(array: np.ndarray) -> np.dtype:
    """Return the dtype of an array, in the byte order of this processor."""
    return array.dtype.newbyteorder("=")


def as_real(data: Any, dtype: Any, what: Any) -> np.ndarray:
    """Return data as an array of float32 or float64 in native byte order, without a copy if possible.

    Without a `dtype`, arrays and NumPy scalars of float32 and float64 keep theirs. Other real numbers become float32.
    Raise TypeError for anything else. Its message begins with `what`.
    """
    if type(data) in ARRAY_TYPES and data.dtype in FLOATS and (dtype is None or dtype == data.dtype):
        array: np.ndarray = data
        return array
    array = as_array(data, what)
    if array.dtype.kind not in "buif" or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
        got = _describe_objects(array) if array.dtype.hasobject else str(array.dtype)
        if array.dtype.kind in "US":
            got += _describe_word(array)
        if array.dtype.names:
            got = "a structured array; {name: x[name] for name in x.dtype.names} makes a frame from it"
        raise TypeError(f"{what}: expected real numbers in float64 or less, got {got}")
    if dtype is None:
        keeps_dtype = array.dtype.kind == "f" and array.dtype.itemsize >= 4 and hasattr(data, "dtype")
        dtype = native_dtype(array) if keeps_dtype else np.float32
    if np.dtype(dtype) not in FLOATS:
        raise TypeError(f"{what}: expected float32 or float64, got {np.dtype(dtype)}")
    if array.ndim == 0 and isinstance(data, NUMBERS) and kernels.recorder() is not None:
        return kernels.full((), array.astype(dtype).item(), dtype)  # a replay does not make NumPy's array again
    return array if array.dtype == dtype else kernels.convert(array, dtype)


def _describe_word(texts: np.ndarray) -> str:
    """Return the part of a message about an array of texts: the first one that is not a number, and its place."""
    for position, x in np.ndenumerate(texts):
        try:
            float(x)
        except ValueError:  # noqa: PERF203 (only for errors)
            hint = "; pandas.DataFrame(…) makes a frame of such rows, and a model for it begins with cl.Columns(frame)"
            return f": {x.item()!r} at {list(position)}{hint if texts.ndim == 2 else ''}"
    return ", all of them numbers as texts; np.array(…, np.float32) converts them"


def _describe_objects(array: np.ndarray) -> str:
    """Return the part of a message about an array of objects: its first element that is not a number, and advice."""
    if array.ndim == 0:
        conversions = {"toarray": "an array", "collect": "a frame"}  # methods of sparse matrices and of lazy frames
        hints = [
            f"; .{name}() makes {what} from it" for name, what in conversions.items() if hasattr(array.item(), name)
        ]
        return f"object, {reprlib.repr(array.item())}{''.join(hints)}"
    for position, x in np.ndenumerate(array):
        if not isinstance(x, (*NUMBERS, np.bool_)):
            hint = "; pandas.DataFrame(…) makes a frame from it" if isinstance(x, dict) else ""
            return f"object, {reprlib.repr(x)} at {list(position)}{hint}"
    return "numbers as Python objects; np.array(…, np.float32) makes an array from them"


#: The hint if a model has made floats of an input of integers.
INDICES_HINT = (
    "if the model's input is indices, set model.takes_indices = True. A model of several inputs has one for each: "
    "takes_indices = (False, True)"
)


def as_indices(data: Any, what: Any) -> np.ndarray:
    """Return data as an array of int64, without a copy if possible.

    Raise TypeError, whose message begins with `what`, unless all are integers. Raise IndexError for an integer beyond
    int64.
    """
    array = as_array(data, what)
    if array.dtype.kind not in "iu":
        hint = f"; {INDICES_HINT}" if array.dtype.kind == "f" else ""
        raise TypeError(f"{what} takes indices: expected integers, got {array.dtype}{hint}")
    if array.dtype == np.uint64 and kernels.recorder() is None and (array > np.iinfo(np.int64).max).any():
        raise IndexError(f"{what}: the index {array.max()} is out of range")
    return array if array.dtype == np.int64 else kernels.convert(array, np.int64)


def flat_int64(indices: np.ndarray) -> np.ndarray:
    """Integers as an int64 array of one axis."""
    if indices.dtype != np.int64 or not indices.flags.c_contiguous:
        indices = kernels.convert(indices, np.int64)
    return indices.reshape(-1)


def raise_bad_index(
    what: str, max_index: Any, shape: tuple[int, ...], dtype: Any, indices: np.ndarray, min_index: int = 0
) -> None:
    """Raise IndexError for the first index that is below `min_index` or above `max_index`.

    `indices`, int64, were made from an array of this shape and dtype. `max_index` is the largest index, or one
    for each place of a row.
    """
    shape = shape or (1,)
    indices, max_index = indices.reshape(shape), np.broadcast_to(max_index, shape)
    is_bad = (indices - min_index).view(np.uint64) > max_index - min_index
    position = np.unravel_index(int(is_bad.argmax()), shape)
    index, where = indices[position].astype(dtype), "" if len(shape) == 1 else f", at {(*map(int, position),)},"
    raise IndexError(f"{what}: index {index} in row {position[0]}{where} is not in {min_index} … {max_index[position]}")


def as_array(data: Any, what: Any) -> np.ndarray:
    """Return data as a plain array, without a copy if possible. Raise ValueError if it has masked elements."""
    if type(data) is np.ndarray:
        return data
    if isinstance(data, np.ndarray) and type(data) not in ARRAY_TYPES and np.ma.is_masked(data):
        raise ValueError(f"{what}: got an array with masked elements; fill them in or leave them out")
    try:
        if not hasattr(data, "__array__") and hasattr(data, "__dlpack__"):
            return np.from_dlpack(data)
        return np.asarray(data)
    except BufferError as error:
        raise TypeError(f"{what}: expected an array in the memory of the CPU: {error}") from error
    except ValueError as error:
        label = what if isinstance(what, str) else f"{what!r}: x"
        has_arrays = isinstance(data, list | tuple) and any(hasattr(part, "__array__") for part in data)
        hint = "; several arrays are a tuple, and a model takes each as an argument, call(self, a, b)" * has_arrays
        raise ValueError(f"{label} is not an array: {error}{hint}") from error


def is_foreign_array(data: Any) -> bool:
    """Return whether this is an array of another library, such as PyTorch or JAX, or a data frame's column."""
    return not isinstance(data, np.ndarray | np.generic) and (hasattr(data, "__array__") or hasattr(data, "__dlpack__"))


def positions_in(array: np.ndarray, view: np.ndarray) -> np.ndarray:
    """Return the positions of a view's elements in the array, which is in C order: int64, in the view's shape."""
    positions, scale = np.arange(array.size), 8 // array.itemsize
    offset = (kernels.address(view) - kernels.address(array)) * scale
    return np.ndarray(view.shape, positions.dtype, positions, offset, [step * scale for step in view.strides])


def make_rng(what: str, seed: Any) -> np.random.Generator:
    """Return a Generator from a seed, or `seed` itself if it is a Generator. Otherwise an error about `what`."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: expected an integer from 0 on, got {seed!r}") from None


def find_outside(values: Any, min_value: int, max_value: int | None) -> tuple[int, Any]:
    """Return the first row whose value is not an integer in this range, and the value; (−1, None) without rows."""
    array = np.asarray(values, dtype=object).ravel()
    for row, value in enumerate(array):
        is_integer = isinstance(value, INTEGERS) and not isinstance(value, bool)
        if not is_integer or value < min_value or (max_value is not None and value > max_value):
            return row, value
    return (0, array[0]) if array.size else (-1, None)


def private_copy(data: Any) -> Any:
    """Return a copy of an array, which nobody else can change. In a recorded step no copy is needed."""
    if not hasattr(data, "__array__") and hasattr(data, "__dlpack__"):
        data = as_array(data, "targets")
    return data.copy() if isinstance(data, np.ndarray) and kernels.recorder() is None else data


def normalize_axes(axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes as a tuple, counted from 0; None is all. ValueError if an axis does not exist or comes twice."""
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, tuple) else (axis,)
    if any(isinstance(item, bool) for item in axes):
        raise TypeError(f"an axis is an integer, got {axis}")
    try:
        return normalize_axis_tuple(axes, ndim)
    except OverflowError:  # the number does not fit into an integer of C
        raise ValueError(f"there is no axis {axis} in an array of {ndim} axes") from None


def check_integers(
    name: str, value: Any, count: int, min_value: int = 1, max_value: int = sys.maxsize
) -> tuple[int, ...]:
    """Return the value as `count` integers; one is repeated. TypeError or ValueError unless all are in range."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(values) != count:
        raise ValueError(f"{name} takes one integer{f' or {count}' if count > 1 else ''}, got {value!r}")
    if any(isinstance(n, bool) or not isinstance(n, INTEGERS) for n in values):
        raise TypeError(f"{name} takes integers, got {value!r}")
    if not all(min_value <= n <= max_value for n in values):
        raise ValueError(f"{name} takes {min_value} to {max_value:,}, got {value!r}")
    return tuple([int(n) for n in values])


def to_integers(name: str, value: Any) -> tuple[int, ...]:
    """Return an integer, or those in a list, a tuple or a vector, as a tuple. Raise TypeError for anything else."""
    is_sequence = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)
    values = tuple(value) if is_sequence else (value,)
    try:
        if any(isinstance(n, bool) for n in values):
            raise TypeError("a bool is not an integer")
        return tuple([operator.index(n) for n in values])
    except TypeError:
        raise TypeError(f"{name} takes integers, got {value!r}") from None


def check_bool(name: str, value: Any) -> bool:
    """Return the value as a bool; TypeError unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_positive_integer(name: str, value: Any, max_value: float = sys.maxsize) -> int:
    """Return the value as an int; TypeError unless it is an integer, ValueError unless it is in 1 … max_value."""
    if type(value) is int and 1 <= value <= max_value:  # the usual case
        return value
    if isinstance(value, bool) or not isinstance(value, INTEGERS):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    if value > max_value:
        raise ValueError(f"{name} must be at most {max_value:,}, got {value}")
    return int(value)


def check_nonnegative(name: str, value: float, limit: float = float("inf")) -> float:
    """Return the value as a float; TypeError unless it is a number, ValueError unless 0 ≤ value < limit."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # the integer is larger than any float
        number = float("inf")
    if not 0 <= number < limit:
        finite = "finite" if limit == float("inf") else f"below {limit:g}"
        raise ValueError(f"{name} must be 0 or more and {finite}, got {value!r}")
    return number


def check_positive(name: str, value: float, limit: float = float("inf")) -> float:
    """Return the value as a float, checked as in `check_nonnegative`; ValueError for 0, too."""
    number = check_nonnegative(name, value, limit)
    if number == 0:
        raise ValueError(f"{name} must be above 0, got {value!r}")
    return number


def reshape_array(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return x in another shape, a view if the memory allows it."""
    view = x.reshape(shape)
    is_view = x.flags.c_contiguous or np.may_share_memory(view, x) or x.size == 0
    return view if is_view else kernels.copy(x).reshape(shape)
