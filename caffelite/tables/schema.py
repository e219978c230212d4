"""The kinds of columns in a file: the target, numbers, categories and dates."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.text_table import number_text, shorten
from caffelite.data.frames import Categories
from caffelite.tables.column_types import CategoryColumn, DateColumn
from caffelite.tables.columns import Columns
from caffelite.tables.notation import DATES, describe_problem, read_as_learned
from caffelite.tables.reading import CSVTable, Words

MAX_CLASSES = 20  # of numbers that are taken for classes
MAX_TARGET_WORDS = 1000  # of a target
MIN_TEXT = 30  # characters of a word, on average, that is a text
TIME_ALONE = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d+)?)?")

Frame = dict[str, Any]  # columns by name: numbers (n,), Categories or dates (n,)


class ColumnSummary(NamedTuple):
    """A line of the report: a column's name, its kind, and a text about its values."""

    name: str
    kind: str
    text: str


class Target(NamedTuple):
    """The column to predict: labels (n,) int64 of `classes`, or values (n,) float64 if `classes` is None."""

    name: str
    values: np.ndarray
    classes: list[str] | None
    remark: str = ""


def percent_text(share: float) -> str:
    """Return a share as text: "40%", "1.5%"."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def describe_numbers(numbers: np.ndarray) -> str:
    """Return the range and the mean of numbers: "0 … 469.09, mean 19.41"."""
    return f"{number_text(numbers.min())} … {number_text(numbers.max())}, mean {number_text(numbers.mean(), 4)}"


# ---- the target -----------------------------------------------------------------------------------------------------


def drop_rows_without(table: CSVTable, name: str) -> CSVTable:
    """Return the rows of a table that have a value in a column, the target. Raise ValueError if there are none.

    Words that are numbers become numbers.
    """
    column = table.columns[name]
    if isinstance(column, Words) and column.reading is not None and column.reading.notation not in ("bool", *DATES):
        column = column.reading.values[column.codes]
    known = column.codes >= 0 if isinstance(column, Words) else ~np.isnan(column)
    if not known.any():
        raise ValueError(f"{table.path}: {name}, the target, is empty")
    columns: dict[str, np.ndarray | Words] = {
        other: column._replace(codes=column.codes[known]) if isinstance(column, Words) else column[known]
        for other, column in {**table.columns, name: column}.items()
    }
    return table._replace(columns=columns, lines=table.lines[known])


def encode_target(table: CSVTable, name: str, task: str | None = None) -> Target:
    """Return the column to predict, which has no gaps.

    `task` is "classification", "regression", or None to decide by its values. Words are classes. So are integers, if
    there are at most MAX_CLASSES different ones.
    """
    column = table.columns[name]
    if isinstance(column, Words) and task == "regression":
        column = _parse_words(table, name, column, "", "regression")
    if isinstance(column, Words):
        if task is None and (reason := describe_problem(column.words)):
            raise ValueError(f"{table.path}: {name}, the target: {reason}; or --task classification takes words")
        words, values = column.words, column.codes
    else:
        _check_finite(table, name, column)
        distinct, values = np.unique(column, return_inverse=True)
        are_integers = (distinct == np.floor(distinct)).all()
        if task is None and (len(distinct) > MAX_CLASSES or not are_integers):
            task = "regression"
        if task == "regression":
            if len(distinct) == 1:
                raise ValueError(f"{table.path}: {name}, the target, is {distinct[0]:g} everywhere")
            if problem := _precision_problem(column):
                raise ValueError(f"{table.path}: {name}, the target, is all {problem}")
            return Target(name, column, None)
        words = [str(int(x)) if x == np.floor(x) else repr(float(x)) for x in distinct]
    if len(words) == 1:
        raise ValueError(f"{table.path}: {name}, the target, is {words[0]!r} everywhere")
    if len(words) > min(MAX_TARGET_WORDS, len(values) // 2):
        raise ValueError(f"{table.path}: {name}, the target, has {len(words):,} classes in {len(values):,} rows")
    classes = sorted(words) if isinstance(column, Words) else words
    places = {word: i for i, word in enumerate(classes)}
    return Target(name, np.array([places[word] for word in words])[values], classes)


def other_task(column: np.ndarray | Words, target: Target) -> str | None:
    """Return the other task that is possible for a target of integers (`--task` selects it), or None for others."""
    if isinstance(column, Words) or (column != np.floor(column)).any():
        return None
    return "classification" if target.classes is None else "regression"


# ---- the other columns ----------------------------------------------------------------------------------------------


def select_columns(
    table: CSVTable, training: np.ndarray, target: str, min_frequency: int, ignored: Collection[str] = ()
) -> tuple[Frame, list[ColumnSummary]]:
    """Return the columns to predict from, and a ColumnSummary of each. The training rows, (n,) bool, decide its kind.

    A word that is in fewer rows than `min_frequency` is not a category. Raise ValueError if no column is left, and for
    an infinite number.
    """
    frame: Frame = {}
    summaries = [ColumnSummary(f"({table.nameless} without a name)", "left out", "")] if table.nameless else []
    for name, column in table.columns.items():
        if name == target:
            continue
        values: Any = None
        remark = ""
        if isinstance(column, Words) and column.reading is not None and column.reading.notation not in DATES:
            column, remark = column.reading.values[column.codes], column.reading.describe()
        if name in ignored:
            summaries.append(ColumnSummary(name, "left out", "as you said"))
        elif isinstance(column, Words):
            values, summary = _convert_words(name, column, training, min_frequency)
            summaries.append(summary)
        else:
            _check_finite(table, name, column)
            _, kind, text = _summarize_numbers(name, column, training)
            summaries.append(ColumnSummary(name, kind, text + remark))
            values = None if kind == "left out" else column
        if values is not None:
            frame[name] = values
    if not frame:
        raise ValueError(
            f"{table.path}: no column is left to predict {target} from; "
            + (", ".join(f"{summary.name}: {summary.text}" for summary in summaries) or "it is the only column")
        )
    return frame, summaries


def _summarize_numbers(name: str, column: np.ndarray, training: np.ndarray) -> ColumnSummary:
    values = column[training & ~np.isnan(column)]
    if values.size == 0:
        return ColumnSummary(name, "left out", "empty")
    missing = int(np.isnan(column).sum())
    if values.min() == values.max() and not np.isnan(column[training]).any():
        return ColumnSummary(name, "left out", f"{values[0]:g} everywhere")
    text = describe_numbers(values)
    text += f"; {missing:,} missing" if missing else ""
    text += "; if it numbers the rows, --drop it" if _is_row_index(column) else ""
    return ColumnSummary(name, "numbers", text)


def _is_row_index(column: np.ndarray) -> bool:
    """Return whether the numbers are successive integers, in any order."""
    return bool((np.diff(np.sort(column)) == 1).all())


def _convert_words(name: str, column: Words, training: np.ndarray, min_frequency: int) -> tuple[Any, ColumnSummary]:
    """Return the values of a column of words, or None if it is left out, and its ColumnSummary."""
    training_codes = column.codes[training]
    missing = int((training_codes < 0).sum())
    counts = np.bincount(training_codes[training_codes >= 0], minlength=len(column.words))
    order = np.argsort(-counts, kind="stable")
    frequent, distinct = int((counts >= min_frequency).sum()), int((counts > 0).sum())
    if distinct == 0:
        return None, ColumnSummary(name, "left out", "empty")
    if distinct == 1 and not missing:
        return None, ColumnSummary(name, "left out", f"{column.words[training_codes[0]]!r} everywhere")
    if column.reading is not None:
        dates = column.reading.values[column.codes]
        first, last = (column.words[column.codes[i]] for i in _date_range(dates, training))
        text = f"{first} … {last}" + (f"; {missing:,} missing" if missing else "")
        return dates, ColumnSummary(name, "dates", text + column.reading.describe())
    problem = describe_problem(column.words)
    if problem.startswith("dates"):
        return None, ColumnSummary(name, "left out", problem)
    hint = [problem] if problem else []
    if frequent == 0:
        text = f"{distinct:,} words in {len(training_codes):,} rows, all rare"
        if not problem and sum(map(len, column.words)) > MIN_TEXT * len(column.words):
            text = "texts, all different: add columns of what counts, such as a word in them"
        return None, ColumnSummary(name, "left out", "; ".join([*hint, text]))
    shown = [
        f"{shorten(column.words[i], 20)} {percent_text(counts[i] / len(training_codes))}"
        for i in order[: min(3, frequent)]
    ]
    rest = [f"{frequent - 3:,} more"] if frequent > 3 else []
    rest += [f"{distinct - frequent:,} rare"] if distinct > frequent else []
    rest += [f"{percent_text(missing / len(training_codes))} missing"] if missing else []
    text = ", ".join(shown + rest)
    text += "; for their order, write hours, such as 12.5" if all(map(TIME_ALONE.fullmatch, column.words)) else ""
    kind = "1 category" if frequent == 1 else f"{frequent:,} categories"
    return Categories(column.codes, column.words), ColumnSummary(name, kind, "; ".join([*hint, text]))


def _date_range(dates: np.ndarray, rows: np.ndarray) -> tuple[int, int]:
    """Return the places of the first and the last date in the rows that are True in (n,) bool."""
    known = [(date, i) for i, date in enumerate(dates.tolist()) if rows[i] and date is not None]
    return min(known)[1], max(known)[1]


# ---- what a model gets ----------------------------------------------------------------------------------------------


def word_column_names(columns: Columns) -> list[str]:
    """Return the names of the columns to read as words: dates, and categories, which may look like numbers."""
    return [column.name for column in columns.columns if isinstance(column, CategoryColumn | DateColumn)]


def make_frame(table: CSVTable, columns: Columns) -> tuple[Frame, list[str]]:
    """Return the columns of a table that a model needs, and remarks about them for the user.

    Raise ValueError if a column does not exist, and for words in a column of numbers or dates.
    """
    if absent := [column.name for column in columns.columns if column.name not in table.columns]:
        raise ValueError(f"{table.path} has no column {', '.join(map(repr, absent[:10]))}, which the model needs")
    frame: Frame = {}
    remarks: list[str] = []
    for column in columns.columns:
        name = column.name
        values: Any = table.columns[name]  # Words if its name is among `word_column_names`
        if isinstance(column, CategoryColumn):
            frame[name] = Categories(values.codes, values.words)
            unknown = np.array([*[word not in column.categories for word in values.words], False])[values.codes]
            if unknown.any():
                word = values.words[values.codes[unknown.argmax()]]
                remarks.append(f"{name} has {word!r} {table.where(unknown)}, not a category of the training")
            continue
        if isinstance(values, Words):
            values = _parse_words(table, name, values, column.notation, "the model")
        if isinstance(column, DateColumn):
            missing = np.array([x is None for x in values.tolist()])
        else:
            _check_finite(table, name, values)
            missing = np.isnan(values)
        frame[name] = values
        if missing.any() and not column.gaps:
            remarks.append(f"{name} is missing {table.where(missing)}, but never in the training")
    return frame, remarks


def _parse_words(table: CSVTable, name: str, column: Words, notation: str, user: str) -> np.ndarray:
    """Return words as numbers or dates. ValueError, with the line, if they are neither."""
    try:
        return read_as_learned(column.words, notation)[column.codes]
    except ValueError as error:
        word, kind, reason = error.args
        where = table.where(column.codes == column.words.index(word))
        raise ValueError(f"{table.path}: {name} is {word!r} {where}; {user} takes {kind} there{reason}") from None


def _precision_problem(numbers: np.ndarray) -> str | None:
    """Return the reason why float32, the dtype of nets, cannot tell these numbers apart; None if it can."""
    float32, largest = np.finfo(np.float32), np.abs(numbers).max()
    if largest > float32.max:
        return f"within ±{largest:.2g}, too large for float32: divide the column first"
    if largest < float32.tiny:
        return f"within ±{largest:.2g}, too small for float32: multiply the column first"
    if numbers.std() < 100 * float32.eps * abs(numbers.mean()):  # it rounds by a hundredth of their deviation or more
        return f"about {numbers.mean():g}, and float32 hardly tells them apart: subtract that number first"
    return None


# ---- errors ---------------------------------------------------------------------------------------------------------


def _check_finite(table: CSVTable, name: str, column: np.ndarray) -> None:
    infinite = np.isinf(column)
    if infinite.any():
        raise ValueError(f"{table.path}: {name} is {column[infinite.argmax()]:g} {table.where(infinite)}")
