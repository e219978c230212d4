"""What the columns of a table are taken for, and what a net gets of them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.tables import shortened
from caffelite.data.frames import Categories
from caffelite.files.structure import as_text
from caffelite.functions import Columns
from caffelite.tabular.reading import Table, Words

RAREST = 5  # rows of a word that is a category of its own
MOST_CATEGORIES = 1000  # of a column, the most frequent ones
MOST_TEXT = 900_000  # bytes of categories in a file
MOST_CLASSES = 20  # of numbers that are taken for classes
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}(\D|$)")
OTHER, MISSING = "(other)", "(missing)"  # the categories of words that are no category, and of no word


class Encoding(NamedTuple):
    """What a net gets of each row: numbers, and the numbers of categories, by the names of the columns."""

    numbers: dict[str, float]  # and what stands where one is missing, the mean; `flag(name)` may be among them
    categories: dict[str, list[str]]


class Fact(NamedTuple):
    """What is said of a column."""

    name: str
    taken_for: str
    text: str


class Target(NamedTuple):
    """What is to be predicted: labels (n,) int64 of `classes`, or where these are None values (n,) float64."""

    name: str
    values: np.ndarray
    classes: list[str] | None


def percent(share: float) -> str:
    """A share as text: "40%", "1.5%"."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def flag(name: str) -> str:
    """The name of the column that says where this one, of numbers, is missing: 1 there, else 0."""
    return f"{name} is missing"


# ---- the target -----------------------------------------------------------------------------------------------------


def target_of(table: Table, name: str, task: str | None = None) -> Target:
    """The column to be predicted; `task` is "classification", "regression" or None, which decides by what is in it.

    Words are classes, and so are integers of which there are up to MOST_CLASSES.
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
    if len(words) > min(MOST_CATEGORIES, len(values) // 2):
        raise ValueError(f"{table.path}: {name}, the target, has {len(words):,} classes in {len(values):,} rows")
    classes = sorted(words) if isinstance(column, Words) else words
    places = {word: i for i, word in enumerate(classes)}
    return Target(name, np.array([places[word] for word in words])[values], classes)


def other_task(column: np.ndarray | Words, target: Target) -> str | None:
    """What else could be done with a column of integers than what is: `--task` decides."""
    if isinstance(column, Words) or (column != np.floor(column)).any():
        return None
    return "classification" if target.classes is None else "regression"


# ---- the other columns ----------------------------------------------------------------------------------------------


def taken_for(
    table: Table, training: np.ndarray, target: str, ignored: Collection[str] = ()
) -> tuple[Encoding, list[Fact]]:
    """What the columns are taken for, from what the rows of the training, (n,) bool, have in them.

    ValueError where no column is left, or a number is infinite or beyond float32.
    """
    encoding, facts = Encoding({}, {}), []
    if table.nameless:
        facts.append(Fact(f"({table.nameless} without a name)", "left out", ""))
    for name, column in table.columns.items():
        if name == target:
            continue
        if name in ignored:
            facts.append(Fact(name, "left out", "as you said"))
        elif isinstance(column, Words):
            facts.append(_take_words(name, column, training, encoding))
        else:
            _check_finite(table, name, column)
            facts.append(_take_numbers(name, column, training, encoding))
    for name in encoding.numbers.keys() & {flag(name) for name in table.columns} & table.columns.keys():
        raise ValueError(f"{table.path}: rename the column {name!r}, that is what the model calls one of its own")
    if len(as_text(encoding.categories).encode()) > MOST_TEXT:
        long = max(encoding.categories, key=lambda name: sum(map(len, encoding.categories[name])))
        raise ValueError(f"{table.path}: the words are too many or too long, most of them in {long!r}: drop it")
    if not (encoding.numbers or encoding.categories):
        raise ValueError(
            f"{table.path}: nothing to predict {target} from; "
            + (", ".join(f"{fact.name}: {fact.text}" for fact in facts) or "it is the only column")
        )
    return encoding, facts


def _take_numbers(name: str, column: np.ndarray, training: np.ndarray, encoding: Encoding) -> Fact:
    there = column[training & ~np.isnan(column)]
    if there.size == 0:
        return Fact(name, "left out", "empty")
    mean = float(there.mean())
    if there.min() == there.max():
        return Fact(name, "left out", f"{there[0]:g} everywhere")
    if problem := _why_indistinct(there):
        return Fact(name, "left out", f"all {problem}")
    encoding.numbers[name] = mean
    missing = int(np.isnan(column).sum())
    if np.isnan(column[training]).any():
        encoding.numbers[flag(name)] = 0.0
    text = f"{there.min():g} … {there.max():g}, mean {mean:.4g}"
    text += f"; {missing:,} missing" if missing else ""
    text += "; if it numbers the rows, --drop it" if _numbers_rows(column) else ""
    return Fact(name, "numbers", text)


def _numbers_rows(column: np.ndarray) -> bool:
    """Whether it is integers one after the other, in whatever order."""
    return bool((np.diff(np.sort(column)) == 1).all())


def _take_words(name: str, column: Words, training: np.ndarray, encoding: Encoding) -> Fact:
    there = column.codes[training]
    missing, counts = int((there < 0).sum()), np.bincount(there[there >= 0], minlength=len(column.words))
    frequent = np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]
    kept = [column.words[i] for i in frequent if counts[i] >= RAREST]
    different = int((counts > 0).sum())
    if different == 0:
        return Fact(name, "left out", "empty")
    if all(map(DATE.match, column.words)):
        return Fact(name, "left out", "dates: make numbers of what counts, such as the month, or the days since a day")
    if different == 1 and not missing:
        return Fact(name, "left out", f"{column.words[there[0]]!r} everywhere")
    if not kept:
        return Fact(name, "left out", f"{different:,} words in {len(there):,} rows, all rare")
    encoding.categories[name] = [OTHER, *[MISSING] * (missing > 0), *(w for w in kept if w not in (OTHER, MISSING))]
    shown = [f"{shortened(column.words[i], 20)} {percent(counts[i] / len(there))}" for i in frequent[:3] if counts[i]]
    rest = [f"{len(kept) - 3:,} more"] if len(kept) > 3 else []
    rest += [f"{different - len(kept):,} rare: {OTHER}"] if different > len(kept) else []
    rest += [f"{percent(missing / len(there))} {MISSING}"] if missing else []
    return Fact(name, f"{len(kept):,} categories", ", ".join(shown + rest))


# ---- what a net gets ------------------------------------------------------------------------------------------------


def encoding_of(columns: Columns) -> Encoding:
    """The encoding of tables that a net of these columns has learned from; ValueError where it can't have been one."""
    numbers = dict(zip(columns.numbers, columns.center.tolist(), strict=True))
    categories = {name: list(known) for name, known in columns.categories.items()}
    if not all(isinstance(x, str) for known in [columns.numbers, *categories.values(), categories] for x in known):
        raise ValueError("the names of columns and categories of a table are words")
    if without := [name for name, known in categories.items() if known[0] != OTHER]:
        raise ValueError(f"the first category of {without[0]!r} is not {OTHER}")
    return Encoding(numbers, categories)


def encoded(table: Table, encoding: Encoding) -> tuple[dict[str, Any], list[str]]:
    """The columns of a table as a net gets them, numbers float64 and Categories; and what is to be said of it.

    What is missing, and words that are no category, are what the encoding has for them. ValueError for a column that
    is not there, and words in a column of numbers.
    """
    flags = {flag(name) for name in encoding.numbers}
    wanted = [name for name in (*encoding.numbers, *encoding.categories) if name not in flags]
    if absent := [name for name in wanted if name not in table.columns]:
        raise ValueError(f"{table.path} has no column {', '.join(map(repr, absent[:10]))}, which the model needs")
    frame: dict[str, Any] = {}
    remarks: list[str] = []
    for name in wanted:
        column = table.columns[name]
        if name in encoding.categories:
            frame[name] = _categories(table, name, column, encoding.categories[name], remarks)
            continue
        if isinstance(column, Words):
            raise ValueError(_no_number(table, name, column, "the model takes numbers there"))
        _check_finite(table, name, column)
        missing = np.isnan(column)
        frame[name] = np.where(missing, encoding.numbers[name], column)
        if flag(name) in encoding.numbers:
            frame[flag(name)] = missing.astype(np.float64)
        elif missing.any():
            remarks.append(f"{name} is missing {table.where(missing)}, never in the training: the mean stands in")
    return frame, remarks


def _categories(table: Table, name: str, column: Any, names: list[str], remarks: list[str]) -> Categories:
    if not isinstance(column, Words):
        raise ValueError(f"{table.path}: {name} is numbers, the model takes words there")
    places = {word: i for i, word in enumerate(names)}
    # The last one is that of what is missing, whose code is −1.
    of_code = np.array([places.get(word, -1) for word in [*column.words, MISSING]], np.int64)
    codes = of_code[column.codes]
    if (new := codes < 0).any():
        row = new.argmax()
        what = "no word" if column.codes[row] < 0 else repr(column.words[column.codes[row]])
        remarks.append(f"{name} has {what} {table.where(new)}, no category of the training: {OTHER} stands in")
    return Categories(np.maximum(codes, 0), names)


def _why_indistinct(numbers: np.ndarray) -> str | None:
    """Why float32, in which a net computes, does not tell these numbers apart; None if it does."""
    float32, largest = np.finfo(np.float32), np.abs(numbers).max()
    if largest < float32.tiny:
        return f"within ±{largest:.2g}, too small for float32: multiply it before"
    if numbers.std() < 100 * float32.eps * abs(numbers.mean()):  # it rounds by a hundredth of their deviation or more
        return f"about {numbers.mean():g}, where float32 hardly tells them apart: subtract that before"
    return None


# ---- errors ---------------------------------------------------------------------------------------------------------


def _check_finite(table: Table, name: str, column: np.ndarray) -> None:
    beyond = np.abs(column) > np.finfo(np.float32).max
    if beyond.any():
        raise ValueError(f"{table.path}: {name} is {column[beyond.argmax()]:g} {table.where(beyond)}, beyond float32")


def _no_number(table: Table, name: str, column: Words, expected: str) -> str:
    """The error for words where numbers are expected, naming the first."""
    code = next((i for i, word in enumerate(column.words) if not _is_number(word)), 0)
    return f"{table.path}: {name} is {column.words[code]!r} {table.where(column.codes == code)}; {expected}"


def _is_number(word: str) -> bool:
    try:
        float(word.replace(",", "."))
    except ValueError:
        return False
    return True
