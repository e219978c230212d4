"""Read tables in files of comma-separated values into columns of numbers and columns of words."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.text_table import format_bytes, plural
from caffelite.tables.notation import MISSING_NUMBERS, MISSING_WORDS, Reading, read_words

DELIMITERS = (",", ";", "\t", "|")
CHUNK = 1000  # rows that are text at a time: as text they take ten times the memory
GZIP = b"\x1f\x8b"  # how such a file begins
MAX_EXPANSION = 100  # times its size that a gzip file may become,
MAX_EXTRA_BYTES = 16_000_000  # and so many bytes more


class Words(NamedTuple):
    """A column of words: each row's place in the list of different words, −1 if the word is missing."""

    codes: np.ndarray  # (n,) int64
    words: list[str]  # in the order of their first rows
    reading: Reading | None = None  # if all words are dates or numbers


class CSVTable(NamedTuple):
    """The content of a file: columns by name, and the line in which each row ends.

    A column is an array of numbers, (n,) float64 with NaN for a missing number, or Words.
    """

    path: str
    columns: dict[str, np.ndarray | Words]
    lines: np.ndarray  # (n,) int64, from 1
    nameless: int = 0  # columns that were left out, for they have no name

    def where(self, rows: np.ndarray) -> str:
        """Return a text about the rows that are True in (n,) bool: "in line 7 and 2 others"."""
        rest = int(np.count_nonzero(rows)) - 1
        more = f" and {plural(rest, 'other')}" if rest else ""
        return f"in line {self.lines[rows.argmax()]:,}{more}"


def read(path: str | os.PathLike, delimiter: str | None = None, *, as_words: Collection[str] = ()) -> CSVTable:
    """Read the table in a file of comma-separated values. The first line has the names of the columns.

    The file is UTF-8, with or without a byte order mark, plain or compressed by gzip. Cells may be quoted. Blanks
    around cells and empty lines don't count. By default, `delimiter` is whichever of comma, semicolon, tab and bar
    gives the most names.

    A column is numbers if each cell is a number or missing. A missing cell is empty, or NA, NaN, null, None or ?. If
    the delimiter is a semicolon, numbers may have a decimal comma. All other columns are words, and so are those in
    `as_words`. The former have a reading if their words are numbers such as $1,234.50, or dates.

    Raise OSError for a path that can't be read, and ValueError with the line if the file is not such a table.
    """
    path, words = os.fspath(path), set(as_words)
    content = None if os.path.isfile(path) else Path(path).read_bytes()  # a pipe can be read only once
    while True:
        try:
            with _open_text(path, content) as file:
                table, other_words = _read(path, file, delimiter, words)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise ValueError(f"{path} is not a text in UTF-8, it has the byte {byte:#04x}: save it as UTF-8") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file: {error}") from None
        if table is not None:
            for name, column in table.columns.items():
                if isinstance(column, Words) and name not in as_words:
                    table.columns[name] = column._replace(reading=read_words(column.words))
            return table
        words |= other_words


def _open_text(path: str, content: bytes | None) -> Any:
    """Return the text of a file, or of this content."""
    raw: Any = open(path, "rb") if content is None else io.BytesIO(content)  # noqa: SIM115 (closed with the text)
    is_packed = raw.read(2) == GZIP
    raw.seek(0)
    return io.TextIOWrapper(LimitedGzipFile(path, raw) if is_packed else raw, encoding="utf-8-sig", newline="")


class LimitedGzipFile(gzip.GzipFile):
    """The content of a gzip file; ValueError if it is much larger than the file. Closing it closes the file."""

    def __init__(self, path: str, file: Any) -> None:
        self.path, self.max_size = path, MAX_EXPANSION * file.seek(0, os.SEEK_END) + MAX_EXTRA_BYTES
        file.seek(0)
        super().__init__(fileobj=file, mode="rb")
        self.myfileobj = file

    def read1(self, size: int = -1) -> bytes:
        part = super().read1(size)
        if self.tell() > self.max_size:
            raise ValueError(
                f"{self.path}: the unpacked table is larger than {format_bytes(self.max_size)}, which is "
                f"{MAX_EXPANSION} times the file and {format_bytes(MAX_EXTRA_BYTES)}; if this is right, unpack the "
                "file first"
            )
        return part


def _read(path: str, file: Any, delimiter: str | None, words: set[str]) -> tuple[CSVTable | None, set[str]]:
    """Return the table, or None and the names of columns of words that began with numbers.

    The cells of such a column have to be read again, as words.
    """
    first = file.readline()
    delimiter = delimiter or max(DELIMITERS, key=lambda d: _count_cells(first, d))
    rows = _iter_rows(path, chain([first], file), delimiter)
    _, names = next(rows, (0, []))
    _check_names(path, names)
    columns = {name: ColumnParser(name in words, delimiter == ";") for name in names if name}
    lines, word_columns = [], set[str]()
    while chunk := list(islice(rows, CHUNK)):
        lines += [line for line, _ in chunk]
        for name, cells in zip(names, zip(*[cells for _, cells in chunk], strict=True), strict=True):
            if name and not columns[name].feed(cells):
                word_columns.add(name)
    if word_columns:
        return None, word_columns
    if not lines:
        raise ValueError(f"{path} has the names of columns and no rows")
    arrays = {name: column.values() for name, column in columns.items()}
    return CSVTable(path, arrays, np.array(lines), names.count("")), word_columns


def _count_cells(line: str, delimiter: str) -> int:
    """How many cells a line has; 0 if csv raises an error, for example for a cell of more than 131,072 characters."""
    try:
        return len(next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:
        return 0


def _iter_rows(path: str, lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows, first the row of names, each with the line in which it ends. Raise ValueError for a bad row."""
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    count = 0
    try:
        for row in reader:
            if len(row) != count and row:
                if count:
                    raise ValueError(
                        f"{path}: line {reader.line_num:,} has {plural(len(row), 'cell')}, the first has {count:,}"
                    )
                count = len(row)
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}: line {reader.line_num:,} is not a row of comma-separated values: {error}") from None


def _check_names(path: str, names: list[str]) -> None:
    names[:] = [name.strip() for name in names]
    if not any(names):
        raise ValueError(f"{path} is empty, expected the names of columns in its first line")
    if ColumnParser(False, False).parse_numbers([name for name in names if name]) is not None:
        raise ValueError(f"{path} begins with numbers, expected the names of columns in its first line")
    twice = [name for name, times in Counter(names).items() if name and times > 1]
    if twice:
        raise ValueError(f"{path} has more than one column {twice[0]!r}")


class ColumnParser:
    """A column that is being read. It is numbers as long as all its cells are numbers."""

    def __init__(self, as_words: bool, decimal_comma: bool) -> None:
        self.decimal_comma = decimal_comma
        self.signs: set[str] = set()  # comma and point, if a comma may be decimal: both are not plain numbers
        self.parts: list[np.ndarray] = []
        self.words: dict[str, int] | None = {} if as_words else None
        self._codes: dict[str, int] = {}  # of cells with their blanks

    def feed(self, cells: Sequence[str]) -> bool:
        """Take more cells. Return False if they are words, and earlier cells were kept as numbers."""
        if self.words is None:
            values = self.parse_numbers(cells)
            if values is not None:
                self.parts.append(values)
                return True
            if self.parts:
                return False
            self.words = {}
        for cell in dict.fromkeys(cells):
            if cell not in self._codes:
                word = cell.strip()
                missing = word.lower() in MISSING_WORDS
                self._codes[cell] = -1 if missing else self.words.setdefault(word, len(self.words))
        self.parts.append(np.fromiter(map(self._codes.__getitem__, cells), np.int64, len(cells)))
        return True

    def parse_numbers(self, cells: Sequence[str]) -> np.ndarray | None:
        """Return the cells as numbers, or None if one is not a number. (Python takes "1_000" for one. We do not.)"""
        try:
            values = np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            try:
                values = np.array([self._parse_number(cell.strip().lower()) for cell in cells], np.float64)
            except ValueError:
                return None
        text = "".join(cells)
        if self.decimal_comma:
            self.signs |= {sign for sign in ",." if sign in text}
        return None if "_" in text or len(self.signs) > 1 else values

    def _parse_number(self, cell: str) -> float:
        if cell in MISSING_NUMBERS:
            return np.nan
        return float(cell.replace(",", ".") if self.decimal_comma and "." not in cell else cell)

    def values(self) -> np.ndarray | Words:
        """Return the entire column."""
        values = np.concatenate(self.parts)
        return values if self.words is None else Words(values, list(self.words))
