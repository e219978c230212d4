"""Frames: named columns in pandas, polars, a dict, or anything that narwhals reads. Here they become arrays.

`open_frame` lets narwhals read anything else into a pyarrow table. Columns in narwhals have the same methods as in
polars, and `find_library` returns the module with their types. This file imports a library only when a frame needs it.
"""

from __future__ import annotations

import importlib.util
import reprlib
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.extras import pip_command

ColumnNames = list[list[Any] | None] | None  # of each input; None for an input that is not a frame


class Categories(NamedTuple):
    """A column of categories: the index of each row's name, or −1 if it is missing."""

    codes: np.ndarray  # (n,) integers
    names: list[Any]  # all different


def open_frame(x: Any, what: Any) -> Any:
    """Open a frame, or the frames in a tuple, with pandas, polars or narwhals, or as a dict. Other values stay.

    A stream is read once, to its end. Raise TypeError, beginning with `what`, for a lazy frame.
    """
    if isinstance(x, tuple):
        return tuple([open_frame(a, what) for a in x])
    is_open = isinstance(x, Mapping) or any(is_instance(x, library, "DataFrame") for library in ("pandas", "polars"))
    if is_open or not is_frame(x):
        return x
    if is_lazy(x):
        raise TypeError(f"{what}: got a {type(x).__name__}; .collect() makes a frame from it")
    try:
        import narwhals

        frame = narwhals.from_native(x, eager_only=True, pass_through=True)
        if not isinstance(frame, narwhals.DataFrame):
            backend: Any = next(filter(importlib.util.find_spec, ("pyarrow", "polars")), "pyarrow")
            frame = narwhals.from_arrow(x, backend=backend)
    except ImportError as error:
        needed = error.name or "narwhals"
        raise ImportError(f"frames of {type(x).__module__} need {needed}: {pip_command(needed)}") from None
    if len(frame) == 0 and not hasattr(x, "__len__"):
        raise ValueError(f"{what}: a {type(x).__name__} has no rows; if it was read before, it cannot be read again")
    if frame.implementation.is_pyarrow():
        return frame
    return frame.to_native() if frame.implementation.is_polars() else frame.to_pandas()


def is_frame(x: Any) -> bool:
    """Return whether x has named columns: a dict, a library's frame, lazy or not, or an Arrow stream."""
    if isinstance(x, np.ndarray):  # a recording notes each use of its arrays
        return False
    if isinstance(x, Mapping):
        return not hasattr(x, "tocsr")  # a sparse matrix in DOK format is a mapping too
    is_known = hasattr(x, "__arrow_c_stream__") or hasattr(x, "__dataframe__") or is_lazy(x)
    return is_known and not is_series(x)


def is_lazy(x: Any) -> bool:
    """Return whether x is a frame that is not computed yet. An array with a `collect` method has no columns."""
    return hasattr(type(x), "collect") and hasattr(type(x), "columns")


def is_series(x: Any) -> bool:
    """Return whether x is a column of a frame. In Arrow, only a column has a length but no columns."""
    kind = type(x)  # a frame may compute its attributes
    is_arrow = hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")
    is_column = is_arrow and hasattr(kind, "__len__") and not hasattr(kind, "columns")
    return is_column or is_instance(x, "pandas", "Series")


def is_instance(x: Any, library: str, kind: str) -> bool:
    """Return whether x is an instance of this class of a library, without importing the library."""
    return isinstance(x, getattr(sys.modules.get(library), kind, ()))


def find_library(column: Any) -> Any:
    """Return the module of a polars or narwhals column, whose types have the same names in both; None for others."""
    for name in ("polars", "narwhals"):
        if is_instance(column, name, "Series"):
            return sys.modules[name]
    return None


def get_columns(frame: Any, what: Any) -> dict[Any, Any]:
    """Return the columns of a frame by name. ValueError, beginning with `what`, if there are none or names repeat."""
    frame = open_frame(frame, what)
    if isinstance(frame, Mapping):
        for name, x in frame.items():
            if np.ma.is_masked(x):
                raise ValueError(f"{what}: column {name!r} has masked elements; x.filled(np.nan) makes NaN of them")
        named = [(name, x if isinstance(x, Categories) else _infer_dtype(x)) for name, x in frame.items()]
    elif is_instance(frame, "pandas", "DataFrame"):
        named = [(name, _infer_dtype(frame.iloc[:, i])) for i, name in enumerate(frame.columns)]
    else:
        named = [(series.name, _infer_dtype(series)) for series in frame.iter_columns()]
    result = dict(named)
    _check_different([name for name, _ in named], what)
    shapes = {name: np.shape(x.codes if isinstance(x, Categories) else x) for name, x in named}
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if len(shape) != 1:
            hint = "; one row is {name: [value], …}" if shape == () else "; several inputs are a tuple"
            raise ValueError(f"{what}: expected columns (n,), got {name!r} of shape {shape}{hint}")
        if shape != shapes[first]:
            raise ValueError(
                f"{what}: expected columns (n,) of one length, got {first!r} of shape {shapes[first]} and {name!r} of "
                f"shape {shape}"
            )
    return result


def select(frame: Any, names: list[Any], what: Any) -> Any:
    """Return these columns of a frame as a frame. ValueError, beginning with `what`, if one is missing."""
    frame = open_frame(frame, what)
    if isinstance(frame, Mapping):
        frame = get_columns(frame, what)
    names_in_frame = list(frame if isinstance(frame, Mapping) else frame.columns)
    _check_different(names_in_frame, what)
    known = set(names_in_frame)
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"{what}: the frame has no column {missing[0]!r}; there are {join_names(names_in_frame)}")
    return {name: frame[name] for name in names} if isinstance(frame, Mapping) else frame[names]


def _check_different(names: list[Any], what: Any) -> None:
    """Raise ValueError, beginning with `what`, if there are no names or names repeat."""
    if not names:
        raise ValueError(f"{what}: the frame has no columns")
    if len(set(names)) < len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise ValueError(f"{what}: the frame has more than one column {twice!r}")


def join_names(names: list[Any], max_names: int = 8) -> str:
    """List the first names, and say how many more there are."""
    rest = [f"… {len(names) - max_names} more"] if len(names) > max_names else []
    return ", ".join([*map(str, names[:max_names]), *rest])


def _infer_dtype(column: Any) -> Any:
    """Return a pandas, polars or narwhals column, or an array, with the type of the column's content.

    Numbers stored as objects become numbers.
    """
    is_pandas = is_instance(column, "pandas", "Series")
    if not is_pandas:
        if is_instance(column, "polars", "Series"):
            return column
        if not isinstance(column, np.ndarray) and is_series(column):
            return _read_arrow(column)
        column = np.asarray(column)
    if column.dtype != object or column.ndim != 1:
        return column
    values = column.tolist()
    present = [x for x in values if not is_missing(x)]
    if 0 < len(present) < len(values) and all(
        isinstance(x, bool | int | float | np.number | np.bool_) for x in present
    ):
        return np.array([np.nan if is_missing(x) else float(x) for x in values])
    return column.infer_objects() if is_pandas else column


def _read_arrow(column: Any) -> Any:
    """Return an Arrow column as a narwhals column. Types that narwhals or pyarrow's functions do not know are cast."""
    if not hasattr(column, "to_native"):
        import pyarrow

        array = pyarrow.chunked_array(column if hasattr(column, "__arrow_c_stream__") else [pyarrow.array(column)])
        column = open_frame(pyarrow.table({"": array}), "").get_column("")
    native = column.to_native()
    if not column.implementation.is_pyarrow():
        return _infer_dtype(native)
    kinds = {"decimal": "double", "date64": "timestamp[ms]", "string_view": "large_string"}
    target = next((target for kind, target in kinds.items() if str(native.type).startswith(kind)), None)
    return column if target is None else sys.modules["narwhals"].from_native(native.cast(target), series_only=True)


def is_missing(x: Any) -> bool:
    """Return whether an object stands for a missing value: None, NaN, or pandas' NA and NaT."""
    try:
        return x is None or bool(x != x)
    except (TypeError, ValueError):  # NA is neither equal nor different; an array has several answers
        return x is getattr(sys.modules.get("pandas"), "NA", None)


def read_frames(x: Any, what: str, frame_reader: Any, expected: ColumnNames) -> tuple[Any, ColumnNames]:
    """Return x, with frames opened or turned into arrays by `frame_reader`, and the column names of its frames.

    A `frame_reader` finds columns by name. Without it, raise ValueError unless frames have the `expected` columns.
    """
    x = open_frame(x, what)
    if frame_reader is not None and is_frame(x):
        return frame_reader.arrays(x, what), None
    names = column_names(x)
    if expected is not None:
        check_names(expected, names, what)
    return x, names


def column_names(x: Any) -> ColumnNames:
    """Return the column names of each open frame among the inputs; None if there are no frames."""
    if type(x) is np.ndarray:
        return None
    inputs = x if isinstance(x, tuple) else (x,)
    names = [_names(frame) if is_frame(frame) else None for frame in inputs]
    return names if any(names) else None


def _names(frame: Any) -> list[Any]:
    return [name if isinstance(name, str | int) else str(name) for name in getattr(frame, "columns", frame)]


def check_names(expected: list[list[Any] | None], actual: ColumnNames, what: Any) -> None:
    """Raise ValueError, beginning with `what`, unless each frame has the expected columns in their order."""
    for expected_names, actual_names in zip(expected, actual or (), strict=False):
        if expected_names is None or actual_names is None or expected_names == actual_names:
            continue
        if len(expected_names) == len(actual_names) and set(expected_names) == set(actual_names):
            i = next(i for i, name in enumerate(expected_names) if name != actual_names[i])
            how = f"have moved: column {i} is {actual_names[i]!r}, and was {expected_names[i]!r}"
        else:
            missing, new = (
                [name for name in a if name not in b]
                for a, b in ((expected_names, set(actual_names)), (actual_names, set(expected_names)))
            )
            how = f"are not those the model was fitted on: {_quote_names(missing)} missing, {_quote_names(new)} new"
        raise ValueError(
            f"{what}: the frame's columns {how}; frame[{expected_names}] selects the right ones, if it has them"
        )


def _quote_names(names: list[Any]) -> str:
    return ", ".join(map(repr, names)) if names else "none"


def as_array(frame: Any, what: Any, *, allow_missing: bool = False) -> np.ndarray:
    """Return the numbers and bools of a frame, (n, columns), or of a column, (n,), in a dtype that holds them all.

    Missing values raise ValueError, or become NaN with `allow_missing`. Raise TypeError for anything else. Messages
    name the column and, if there is one, the row.
    """
    if is_series(frame):
        name = getattr(frame, "name", None)
        return to_numbers(_infer_dtype(frame), what if name in (None, "") else f"{what}: column {name!r}")
    frame = open_frame(frame, what)
    if (whole := _convert_whole(frame, allow_missing)) is not None:
        return whole
    named = get_columns(frame, what).items()
    arrays = [to_numbers(column, f"{what}: column {name!r}", allow_missing=allow_missing) for name, column in named]
    if len(arrays) == 1 and not arrays[0].flags.writeable:
        return arrays[0][:, np.newaxis]  # in the library's memory
    whole = np.empty((len(arrays[0]), len(arrays)), np.result_type(*arrays))
    for i, array in enumerate(arrays):
        whole[:, i] = array
    return whole


def _convert_whole(frame: Any, allow_missing: bool) -> np.ndarray | None:
    """Return all numbers of a frame in one step, or None if a column needs its own conversion.

    Missing values need their own conversion, unless `allow_missing` makes them NaN.
    """
    whole = None
    if is_instance(frame, "pandas", "DataFrame"):
        dtypes = set(frame.dtypes)
        if frame.columns.is_unique and dtypes and all(isinstance(x, np.dtype) and x.kind in "biuf" for x in dtypes):
            whole = frame.to_numpy(np.result_type(*dtypes))
    elif is_instance(frame, "polars", "DataFrame"):
        dtypes = set(frame.dtypes)
        if len(dtypes) == 1 and all(x.is_integer() or x.is_float() for x in dtypes):
            whole = None if any(frame.null_count().row(0)) and not allow_missing else frame.to_numpy()
    if whole is None or (not allow_missing and whole.dtype.kind == "f" and np.isnan(whole).any()):
        return None
    return np.ascontiguousarray(whole)


def to_numbers(column: Any, what: Any, *, allow_missing: bool = False) -> np.ndarray:
    """Return the numbers or bools of a column (n,).

    TypeError for anything else; ValueError for missing values, or NaN with `allow_missing`. Messages begin with `what`.
    """
    if not is_numeric(column):
        if allow_missing and is_all_missing(column):
            return np.full(len(column.codes if isinstance(column, Categories) else column), np.nan)
        raise TypeError(
            f"{what} holds {describe_content(column)}; expected numbers{'' if allow_missing else _number_hint(column)}"
        )
    values = column
    if library := find_library(column):
        as_float = column.dtype.is_decimal() or column.null_count() > 0
        values = (column.cast(library.Float64) if as_float else column).to_numpy()
    elif is_series(column):
        if column.isna().any():
            values = column.to_numpy(np.float64, na_value=np.nan)
        else:
            values = column.to_numpy(getattr(column.dtype, "numpy_dtype", None))  # nullable types have `numpy_dtype`
    if not allow_missing and values.dtype.kind == "f":
        check_missing(np.isnan(values), what)
    return values


def is_numeric(column: Any) -> bool:
    """Return whether a column holds numbers or bools. Some may be missing."""
    if isinstance(column, Categories):
        return False
    if library := find_library(column):
        return column.dtype.is_numeric() or column.dtype == library.Boolean
    return column.dtype.kind in "biuf" or str(column.dtype).startswith("decimal")  # Arrow types in pandas


def check_missing(missing: np.ndarray, what: Any) -> None:
    """Raise ValueError, naming the first row that is True, if there is one."""
    if missing.any():
        rest = np.count_nonzero(missing) - 1
        raise ValueError(
            f"{what} has a missing value in row {missing.argmax()}{f' and {rest:,} others' if rest else ''}: "
            "fill it, or leave the row out"
        )


def is_all_missing(column: Any) -> bool:
    """Return whether a column holds no value at all."""
    if isinstance(column, Categories):
        return bool((column.codes < 0).all())
    if find_library(column):
        return column.null_count() == len(column)
    if is_series(column):
        return bool(column.isna().all())
    return all(map(is_missing, column.tolist()))


def describe_content(column: Any) -> str:
    """Describe the content of a column that holds no numbers."""
    if is_categorical(column):
        return "categories"
    value = _first_value(column)
    if isinstance(value, str):
        return f"words such as {value!r}"
    return f"{column.dtype}" if value is None or column.dtype != object else f"objects such as {reprlib.repr(value)}"


def _number_hint(column: Any) -> str:
    """Return a hint for such a column where numbers are expected."""
    if is_categorical(column) or isinstance(_first_value(column), str):
        return (
            ": cl.Columns(frame) is a layer that learns what words and categories mean, and its arrays(frame) go into "
            "a DataGenerator; for labels, classes, y = np.unique(y, return_inverse=True) makes numbers"
        )
    return DATES_HINT if has_dates(column) else ""


DATES_HINT = ": make numbers of what counts, such as the month, or the days since a day"


def is_categorical(column: Any) -> bool:
    """Return whether a column has a categorical type."""
    return isinstance(column, Categories) or str(column.dtype).lower().startswith(("cat", "enum"))


def has_dates(column: Any) -> bool:
    return str(column.dtype).lower().startswith(("date", "time", "duration", "period"))


def _first_value(column: Any) -> Any:
    """Return the first word in a column or, if there are no words, the first value that is not missing, or None."""
    values = [x for x in (column.to_list() if hasattr(column, "to_list") else column.tolist()) if x is not None]
    return next((x for x in values if isinstance(x, str)), values[0] if values else None)
