"""Kinds of columns. Each learns from a column of a table, and turns each row's value into numbers or a code."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.warnings import warn
from caffelite.data import frames
from caffelite.tables import dates
from caffelite.tables.notation import DATES, NUMBERS, describe_problem, read_as_learned, read_words


class NumberColumn(NamedTuple):
    """Numbers or bools. `gaps` says whether some were missing when the column was learned."""

    name: Any
    gaps: bool
    notation: str = ""  # of words that are numbers

    @property
    def features(self) -> list[Any]:
        return [self.name]

    def get_config(self) -> Any:
        """Return the column's description for a file."""
        if self.notation:
            return {"gaps": self.gaps, "notation": self.notation}
        return {"gaps": True} if self.gaps else None


class DateColumn(NamedTuple):
    """Dates, on the wall clock of a time zone if they have one. Each of the parts becomes a number, or two."""

    name: Any
    gaps: bool
    zone: str | None
    parts: tuple[str, ...]
    first: float  # seconds since 1970
    notation: str = "year"  # of words that are dates

    @property
    def features(self) -> list[Any]:
        return [f"{self.name}, {part}" for part in dates.feature_names(self.parts)]

    def get_config(self) -> Any:
        config = {"gaps": self.gaps, "zone": self.zone, "parts": self.parts, "first": self.first}
        return config if self.notation == "year" else {**config, "notation": self.notation}

    def arrays(self, column: Any, what: str) -> np.ndarray:
        """Return the parts (n, features) float64; NaN where a date is missing."""
        if not dates.is_date_column(column):
            if frames.is_all_missing(column):
                return np.full((len(column), len(self.features)), np.nan)
            column = parse_column(self, column, what)
        column_dates = dates.to_dates(column, what)
        if (column_dates.zone is None) != (self.zone is None) and not np.isnat(column_dates.stamps).all():
            zone_text, learned_zone_text = [
                "no time zone" if zone is None else f"the time zone {zone}" for zone in (column_dates.zone, self.zone)
            ]
            raise TypeError(f"{what} has {zone_text}, and had {learned_zone_text} in the frame that was learned")
        return dates.features(column_dates, self.zone, self.parts, self.first)


class CategoryColumn(NamedTuple):
    """Categories by name. Their codes are 0 … k − 1, k is the code of a missing one, and k + 1 of an unknown one."""

    name: Any
    categories: tuple[Any, ...]

    @property
    def codes(self) -> int:
        """The number of codes."""
        return len(self.categories) + 2

    def get_config(self) -> Any:
        return self.categories

    def array(self, column: Any, what: str) -> np.ndarray:
        """Return the code of each row, (n,) int64. TypeError for numbers instead of words, or vice versa."""
        codes, names = to_categories(column, what)
        if names and self.categories and (are_words := _are_words(names)) != _are_words(self.categories):
            kinds = ["words" if words else "numbers" for words in (are_words, not are_words)]
            raise TypeError(
                f"{what} holds {kinds[0]} such as {names[0]!r}; expected {kinds[1]} such as {self.categories[0]!r}, as "
                "in the frame that was learned"
            )
        k = len(self.categories)
        known = {_shorten(name): i for i, name in enumerate(self.categories)}
        known |= {name: i for i, name in enumerate(self.categories)}
        return np.array([*[known.get(name, known.get(_shorten(name), k + 1)) for name in names], k], np.int64)[codes]


Column = NumberColumn | DateColumn | CategoryColumn


def parse_column(learned: NumberColumn | DateColumn, column: Any, what: str) -> np.ndarray:
    """Return the numbers or dates of a column of words. TypeError, beginning with `what`, if a word is neither."""
    codes, names = to_categories(column, what)
    try:
        return read_as_learned([*map(str, names)], learned.notation)[codes]
    except ValueError as error:
        word, kind, reason = error.args
        got = f"words such as {word!r}" if word in names else frames.describe_content(column)
        raise TypeError(f"{what} holds {got}; expected {kind}, as in the frame that was learned{reason}") from None


def infer_columns(frame: Any, categories: Sequence[Any], what: str, min_frequency: int) -> list[Column]:
    """Return the kind of each column of a frame. `categories` names columns of numbers that are categories.

    Categories with fewer rows than `min_frequency` are left out.

    Raise ValueError or TypeError, beginning with `what` and naming the column, for columns that can't be used.
    """
    named = frames.get_columns(frame, what)
    if unknown := [name for name in categories if name not in named]:
        raise ValueError(
            f"{what}: categories: the frame has no column {unknown[0]!r}; there are {frames.join_names([*named])}"
        )
    return [
        _infer_column(name, column, name in set(categories), f"{what}: column {name!r}", min_frequency)
        for name, column in named.items()
    ]


def _infer_column(name: Any, column: Any, is_category: bool, what: str, min_frequency: int) -> Column:
    if not isinstance(name, str | int):
        raise TypeError(f"{what}: expected a name that is a word or an integer, got {name!r}")
    if len(column.codes if isinstance(column, frames.Categories) else column) == 0:
        raise ValueError(f"{what} has no rows")
    if dates.is_date_column(column):
        return _learn_dates(name, column, what)
    if not (is_category or has_words(column)) and (frames.is_numeric(column) or frames.is_all_missing(column)):
        return NumberColumn(name, False)
    codes, names = to_categories(column, what)
    if not (is_category or frames.is_categorical(column)) and all(isinstance(word, str) for word in names):
        if reading := read_words(names):
            values = reading.values[codes]
            if reading.notation in DATES:
                return _learn_dates(name, values, what)._replace(notation=reading.notation)
            return NumberColumn(name, False, reading.notation)
        if problem := describe_problem(names):
            warn(f"{what}: {problem}", UserWarning)
    if min_frequency > 1:
        counts = np.bincount(codes[codes >= 0], minlength=len(names))
        names = [name for name, count in zip(names, counts, strict=True) if count >= min_frequency]
    return CategoryColumn(name, tuple([int(x) if isinstance(x, float) and x.is_integer() else x for x in names]))


def _learn_dates(name: Any, column: Any, what: str) -> DateColumn:
    stamps, zone = dates.to_dates(column, what)
    present = stamps[~np.isnat(stamps)]
    parts = dates.varying_parts(dates.to_local_time(present, zone))
    first = float(dates.to_seconds(present).min()) if len(present) else 0.0
    return DateColumn(name, len(present) < len(stamps), zone, parts, first)


def find_absent_codes(column: CategoryColumn, values: Any, what: str) -> np.ndarray:
    """Return the codes of the categories that no row has. Only a type that declares its categories can have some."""
    if not (isinstance(values, frames.Categories) or frames.is_categorical(values)):
        return np.zeros(0, np.int64)
    counts = np.bincount(column.array(values, what), minlength=column.codes)
    return np.flatnonzero(counts[: len(column.categories)] == 0)


def column_from_config(name: Any, config: Any) -> Column:
    """Return the column of this name that a file describes as `config`. ValueError if it is not a valid description."""
    if not isinstance(name, str | int):
        raise TypeError(f"Columns: expected names that are words or integers, got {name!r}")
    if config is None:
        return NumberColumn(name, False)
    if isinstance(config, list | tuple):
        categories = tuple(config)
        if len({(type(x), x) for x in categories}) < len(categories):
            raise ValueError(f"Columns: expected different categories of column {name!r}, got {categories}")
        return CategoryColumn(name, categories)
    config = {**config} if isinstance(config, dict) else {}
    notation = config.pop("notation", "year" if "parts" in config else "")
    is_number = config.keys() == {"gaps"} and isinstance(config["gaps"], bool)
    is_known = isinstance(notation, str) and notation in (("", *NUMBERS) if is_number else DATES)
    if not is_known or not (is_number or config.keys() == {"gaps", "zone", "parts", "first"}):
        raise ValueError(f"Columns: expected the kind of column {name!r}, got {reprlib.repr(config)}")
    if is_number:
        return NumberColumn(name, config["gaps"], notation)
    gaps, zone, parts, first = (config[key] for key in ("gaps", "zone", "parts", "first"))
    if (
        not isinstance(gaps, bool)
        or not isinstance(zone, str | None)
        or not isinstance(first, float | int)
        or not isinstance(parts, list | tuple)
        or not set(parts) <= set(dates.PARTS)
        or len(set(parts)) < len(parts)
        or not parts
    ):
        raise ValueError(f"Columns: expected dates of column {name!r}, got {reprlib.repr(config)}")
    return DateColumn(name, gaps, zone, tuple(parts), float(first), notation)


def _shorten(name: Any) -> Any:
    """Return the shortest decimal of a number that float32 holds: 0.1 of float32 and of float64 are one category."""
    if not isinstance(name, float) or abs(name) > float(np.finfo(np.float32).max) or name != np.float32(name):
        return name
    return float(str(np.float32(name)))


def _are_words(names: Sequence[Any]) -> bool:
    return any(isinstance(name, str) for name in names)


# ---- categories ------------------------------------------------------------------------------------------------------


def has_words(column: Any) -> bool:
    """Return whether a column is of a type for words or categories, even if it has none."""
    return frames.is_categorical(column) or str(column.dtype).lower().startswith(("str", "large_string", "<u"))


def to_categories(column: Any, what: Any) -> frames.Categories:
    """Return the categories of a column. Words or numbers become categories, in sorted order.

    TypeError, beginning with `what`, for anything else.
    """
    try:
        codes, names = _factorize(column)
    except TypeError:  # values that cannot be sorted
        codes, names = np.zeros(0, np.int64), [None]
    names = [name.item() if isinstance(name, np.generic) else name for name in names]
    if nan := [i for i, name in enumerate(names) if name != name]:  # it is missing, and the last in order
        codes, names = np.where(codes >= nan[0], -1, codes), names[: nan[0]]
    if not all(isinstance(name, str | int | float) for name in names):
        way_out = frames.DATES_HINT if frames.has_dates(column) else ""
        raise TypeError(
            f"{what} holds {frames.describe_content(column)}; expected numbers, words or categories of such{way_out}"
        )
    return frames.Categories(codes, names)


def _factorize(column: Any) -> tuple[np.ndarray, list[Any]]:
    if isinstance(column, frames.Categories):
        return column
    if frames.is_instance(column, "pandas", "Series"):
        if isinstance(column.dtype, sys.modules["pandas"].CategoricalDtype):
            return column.cat.codes.to_numpy(), column.cat.categories.tolist()
        codes, names = sys.modules["pandas"].factorize(column, sort=True)
        return codes, names.tolist()
    library = frames.find_library(column)
    if library is not None and not frames.is_numeric(column):
        return _factorize_words(column, library)
    if library is not None:
        missing, present = column.is_null().to_numpy(), column.drop_nulls().to_numpy()
    else:
        missing = np.array([*map(frames.is_missing, column)], bool) if column.dtype == object else column != column
        present = column[~missing]
    codes = np.full(len(column), -1, np.int64)
    names, codes[~missing] = np.unique(present, return_inverse=True)
    return codes, names.tolist()


def _factorize_words(column: Any, library: Any) -> tuple[np.ndarray, list[Any]]:
    """Return the codes and names of words or categories in polars, or in narwhals, where the column is pyarrow's."""
    if column.dtype not in (library.String, library.Categorical, library.Enum) and not frames.is_all_missing(column):
        raise TypeError
    if library.__name__ == "polars":
        if column.dtype != library.Enum:
            words = column.cast(library.String)
            column = words.cast(library.Enum(words.unique().drop_nulls().sort()))
        return column.to_physical().cast(library.Int64).fill_null(-1).to_numpy(), column.dtype.categories.to_list()
    names: list[Any] = []
    if column.dtype == library.Categorical:
        native = column.to_native()
        if native.type.ordered:
            names = [*dict.fromkeys([x for chunk in native.chunks for x in chunk.dictionary.drop_null().to_pylist()])]
        column = library.from_native(native.cast(native.type.value_type), series_only=True)
    if frames.is_all_missing(column):
        return np.full(len(column), -1), names
    names = names or sorted(column.drop_nulls().unique().to_list(), key=lambda name: (name != name, name))
    codes = column.replace_strict(names, range(len(names)), return_dtype=library.Int64)
    return codes.fill_null(-1).to_numpy(), names
