"""The kinds of columns in a file: the target, numbers, categories and dates."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.text_table import shorten
from caffelite.data.columns import CategoryColumn, DateColumn
from caffelite.data.frames import Categories
from caffelite.functions import Columns
from caffelite.tables.reading import Table, Words

MOST_CLASSES = 20  # of numbers that are taken for classes
MOST_WORDS = 1000  # of a target
PARTS = ("year", "month", "day", "hour", "minute", "second")
SECOND, ZONE = r"(?::(?P<second>\d\d)(?P<fraction>\.\d+)?)?", r"(?:\s?(?P<zone>Z|[+-]\d\d:?\d\d))?"
TIME = rf"(?:[T ](?P<hour>\d{{1,2}}):(?P<minute>\d\d){SECOND}{ZONE})?"
YEAR_FIRST = re.compile(rf"(?P<year>\d{{4}})([-/.])(?P<month>\d{{1,2}})\2(?P<day>\d{{1,2}}){TIME}")
DAY_FIRST = re.compile(rf"(?P<day>\d{{1,2}})\.(?P<month>\d{{1,2}})\.(?P<year>\d{{4}}){TIME}")
AMBIGUOUS = re.compile(r"\d{1,2}([-/])\d{1,2}\1(\d\d|\d{4})(\D.*)?")

Frame = dict[str, Any]  # columns by name: numbers (n,), Categories or dates (n,)


class Fact(NamedTuple):
    """A line of the report: a column's name, its kind, and a text about its values."""

    name: str
    taken_for: str
    text: str


class Target(NamedTuple):
    """The column to predict: labels (n,) int64 of `classes`, or values (n,) float64 if `classes` is None."""

    name: str
    values: np.ndarray
    classes: list[str] | None


def percent(share: float) -> str:
    """A share as text: "40%", "1.5%"."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


# ---- the target -----------------------------------------------------------------------------------------------------


def target_of(table: Table, name: str, task: str | None = None) -> Target:
    """The column to predict. `task` is "classification", "regression", or None to decide by its values.

    Words are classes. So are integers, if there are at most MOST_CLASSES different ones.
    """
    column = table.columns[name]
    missing = column.codes < 0 if isinstance(column, Words) else np.isnan(column)
    if missing.any():
        raise ValueError(f"{table.path}: {name}, the target, is missing {table.where(missing)}: leave these rows out")
    if isinstance(column, Words):
        if task == "regression":
            raise ValueError(_no_number(table, name, column, "regression takes numbers"))
        words, values = column.words, column.codes
    else:
        _check_finite(table, name, column)
        different, values = np.unique(column, return_inverse=True)
        are_integers = (different == np.floor(different)).all()
        if task is None and (len(different) > MOST_CLASSES or not are_integers):
            task = "regression"
        if task == "regression":
            if len(different) == 1:
                raise ValueError(f"{table.path}: {name}, the target, is {different[0]:g} everywhere")
            if problem := _why_indistinct(column):
                raise ValueError(f"{table.path}: {name}, the target, is all {problem}")
            return Target(name, column, None)
        words = [str(int(x)) if x == np.floor(x) else repr(float(x)) for x in different]
    if len(words) == 1:
        raise ValueError(f"{table.path}: {name}, the target, is {words[0]!r} everywhere")
    if len(words) > min(MOST_WORDS, len(values) // 2):
        raise ValueError(f"{table.path}: {name}, the target, has {len(words):,} classes in {len(values):,} rows")
    classes = sorted(words) if isinstance(column, Words) else words
    places = {word: i for i, word in enumerate(classes)}
    return Target(name, np.array([places[word] for word in words])[values], classes)


def other_task(column: np.ndarray | Words, target: Target) -> str | None:
    """The other task that is possible for a target of integers (`--task` selects it), or None for other targets."""
    if isinstance(column, Words) or (column != np.floor(column)).any():
        return None
    return "classification" if target.classes is None else "regression"


# ---- the other columns ----------------------------------------------------------------------------------------------


def taken_for(
    table: Table, training: np.ndarray, target: str, min_frequency: int, ignored: Collection[str] = ()
) -> tuple[Frame, list[Fact]]:
    """The columns to predict from, and a Fact about each. The training rows, (n,) bool, decide its kind.

    A word that is in fewer rows than `min_frequency` is not a category. Raises ValueError if no column is left, and for
    an infinite number.
    """
    frame: Frame = {}
    facts = [Fact(f"({table.nameless} without a name)", "left out", "")] if table.nameless else []
    for name, column in table.columns.items():
        if name == target:
            continue
        values: Any = None
        if name in ignored:
            facts.append(Fact(name, "left out", "as you said"))
        elif isinstance(column, Words):
            values, fact = _take_words(name, column, training, min_frequency)
            facts.append(fact)
        else:
            _check_finite(table, name, column)
            facts.append(_take_numbers(name, column, training))
            values = None if facts[-1].taken_for == "left out" else column
        if values is not None:
            frame[name] = values
    if not frame:
        raise ValueError(
            f"{table.path}: no column is left to predict {target} from; "
            + (", ".join(f"{fact.name}: {fact.text}" for fact in facts) or "it is the only column")
        )
    return frame, facts


def _take_numbers(name: str, column: np.ndarray, training: np.ndarray) -> Fact:
    there = column[training & ~np.isnan(column)]
    if there.size == 0:
        return Fact(name, "left out", "empty")
    missing = int(np.isnan(column).sum())
    if there.min() == there.max() and not np.isnan(column[training]).any():
        return Fact(name, "left out", f"{there[0]:g} everywhere")
    text = f"{there.min():g} … {there.max():g}, mean {there.mean():.4g}"
    text += f"; {missing:,} missing" if missing else ""
    text += "; if it numbers the rows, --drop it" if _numbers_rows(column) else ""
    return Fact(name, "numbers", text)


def _numbers_rows(column: np.ndarray) -> bool:
    """Whether the numbers are successive integers, in any order."""
    return bool((np.diff(np.sort(column)) == 1).all())


def _take_words(name: str, column: Words, training: np.ndarray, min_frequency: int) -> tuple[Any, Fact]:
    """The values of a column of words, or None if it is left out, and the Fact about it."""
    there = column.codes[training]
    missing, counts = int((there < 0).sum()), np.bincount(there[there >= 0], minlength=len(column.words))
    order = np.argsort(-counts, kind="stable")
    kept, different = int((counts >= min_frequency).sum()), int((counts > 0).sum())
    if different == 0:
        return None, Fact(name, "left out", "empty")
    if different == 1 and not missing:
        return None, Fact(name, "left out", f"{column.words[there[0]]!r} everywhere")
    dates = dates_of(column)
    if dates is not None:
        first, last = (column.words[column.codes[i]] for i in _ends(dates, training))
        text = f"{first} … {last}" + (f"; {missing:,} missing" if missing else "")
        return dates, Fact(name, "dates", text)
    if all(map(AMBIGUOUS.fullmatch, column.words)):
        text = f"dates that do not say which number is the day, such as {column.words[0]}: write 2020-01-31"
        return None, Fact(name, "left out", text)
    if kept == 0:
        return None, Fact(name, "left out", f"{different:,} words in {len(there):,} rows, all rare")
    shown = [f"{shorten(column.words[i], 20)} {percent(counts[i] / len(there))}" for i in order[: min(3, kept)]]
    rest = [f"{kept - 3:,} more"] if kept > 3 else []
    rest += [f"{different - kept:,} rare"] if different > kept else []
    rest += [f"{percent(missing / len(there))} missing"] if missing else []
    return Categories(column.codes, column.words), Fact(name, f"{kept:,} categories", ", ".join(shown + rest))


def _ends(dates: np.ndarray, rows: np.ndarray) -> tuple[int, int]:
    """The places of the first and the last date in the rows that are True in (n,) bool."""
    there = [(date, i) for i, date in enumerate(dates.tolist()) if rows[i] and date is not None]
    return min(there)[1], max(there)[1]


def dates_of(column: Words) -> np.ndarray | None:
    """Words as dates (n,): datetime64, or objects if the dates have a time zone. None if a word is not a date.

    A date is 2020-01-31, 2020/1/31 or 31.1.2020. A time of the day may follow, and then a difference to UTC.
    """
    try:
        known = [_date(word) for word in column.words]
    except ValueError:
        return None
    if len({date.tzinfo is None for date in known}) != 1:
        return None
    if known[0].tzinfo is None:
        return np.array([*known, None], "datetime64[us]")[column.codes]
    return np.array([*known, None], object)[column.codes]


def _date(word: str) -> datetime.datetime:
    """A word as a date. Raises ValueError if it is not a date."""
    found = YEAR_FIRST.fullmatch(word) or DAY_FIRST.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is not a date")
    parts = found.groupdict()
    zone = None if parts["zone"] is None else datetime.timezone.utc
    year, month, day, hour, minute, second = [int(parts[name] or 0) for name in PARTS]
    date = datetime.datetime(year, month, day, hour, minute, second)
    date += datetime.timedelta(seconds=float(parts["fraction"] or 0))
    if zone is None or parts["zone"] == "Z":
        return date.replace(tzinfo=zone)
    sign, hours, minutes = parts["zone"][0], parts["zone"][1:3], parts["zone"][-2:]
    ahead = datetime.timedelta(hours=int(hours), minutes=int(minutes))
    return date.replace(tzinfo=datetime.timezone(-ahead if sign == "-" else ahead))


def _is_date(word: str) -> bool:
    try:
        _date(word)
    except ValueError:
        return False
    return True


# ---- what a model gets ----------------------------------------------------------------------------------------------


def names_of_words(columns: Columns) -> list[str]:
    """The names of the columns to read as words: dates, and categories, which may look like numbers."""
    return [column.name for column in columns.columns if isinstance(column, CategoryColumn | DateColumn)]


def frame_of(table: Table, columns: Columns) -> tuple[Frame, list[str]]:
    """The columns of a table that a model needs, and remarks about them for the user.

    Raises ValueError if a column does not exist, and for words in a column of numbers or dates.
    """
    if absent := [column.name for column in columns.columns if column.name not in table.columns]:
        raise ValueError(f"{table.path} has no column {', '.join(map(repr, absent[:10]))}, which the model needs")
    frame: Frame = {}
    remarks: list[str] = []
    for column in columns.columns:
        name = column.name
        given: Any = table.columns[name]  # Words if its name is among `names_of_words`
        if isinstance(column, CategoryColumn):
            frame[name] = Categories(given.codes, given.words)
            unknown = np.array([*[word not in column.categories for word in given.words], False])[given.codes]
            if unknown.any():
                word = given.words[given.codes[unknown.argmax()]]
                remarks.append(f"{name} has {word!r} {table.where(unknown)}, not a category of the training")
            continue
        if isinstance(column, DateColumn):
            frame[name] = _as_dates(table, name, given)
            missing = given.codes < 0
        else:
            if isinstance(given, Words):
                raise ValueError(_no_number(table, name, given, "the model takes numbers there"))
            _check_finite(table, name, given)
            frame[name], missing = given, np.isnan(given)
        if missing.any() and not column.gaps:
            remarks.append(f"{name} is missing {table.where(missing)}, but never in the training")
    return frame, remarks


def _as_dates(table: Table, name: str, column: Words) -> np.ndarray:
    no_date = next((i for i, word in enumerate(column.words) if not _is_date(word)), None)
    if no_date is not None:
        where = table.where(column.codes == no_date)
        raise ValueError(f"{table.path}: {name} is {column.words[no_date]!r} {where}; the model takes dates there")
    dates = dates_of(column)
    if dates is None:
        raise ValueError(f"{table.path}: {name} has dates with a time zone and dates without one")
    return dates


def _why_indistinct(numbers: np.ndarray) -> str | None:
    """The reason why float32, the dtype of nets, cannot tell these numbers apart; None if it can."""
    float32, largest = np.finfo(np.float32), np.abs(numbers).max()
    if largest > float32.max:
        return f"within ±{largest:.2g}, too large for float32: divide the column first"
    if largest < float32.tiny:
        return f"within ±{largest:.2g}, too small for float32: multiply the column first"
    if numbers.std() < 100 * float32.eps * abs(numbers.mean()):  # it rounds by a hundredth of their deviation or more
        return f"about {numbers.mean():g}, and float32 hardly tells them apart: subtract that number first"
    return None


# ---- errors ---------------------------------------------------------------------------------------------------------


def _check_finite(table: Table, name: str, column: np.ndarray) -> None:
    infinite = np.isinf(column)
    if infinite.any():
        raise ValueError(f"{table.path}: {name} is {column[infinite.argmax()]:g} {table.where(infinite)}")


def _no_number(table: Table, name: str, column: Words, expected: str) -> str:
    """The message of an error about words in a column of numbers. It names the first word."""
    code = next((i for i, word in enumerate(column.words) if not _is_number(word)), 0)
    return f"{table.path}: {name} is {column.words[code]!r} {table.where(column.codes == code)}; {expected}"


def _is_number(word: str) -> bool:
    try:
        float(word.replace(",", "."))
    except ValueError:
        return False
    return True
