"""A table of the user's own: the text of a CSV file, checked."""

from __future__ import annotations

import csv
import io
import itertools
from typing import Any

import numpy as np

from caffelite.web.playground.data import numbers, table

MAX_LETTERS = 2**19  # letters of a file
MAX_NAME = 100  # letters of the name of a file or a column
MAX_COLUMNS, MAX_CLASSES = 64, 16
MIN_ROWS = 20


class UploadedTable:
    """A CSV file with a header, and the column to predict, by default the last one.

    `inputs` are the other columns of numbers, and `left_out` are the columns of words. `classes` is the number of
    classes, None if the target is a number. `rows` are the rows without a gap; only these can be used. Raise
    ValueError, with the place, for other files.
    """

    def __init__(self, name: Any, text: Any, target: Any = None) -> None:
        if not isinstance(name, str) or not isinstance(text, str) or not isinstance(target, str | None):
            raise ValueError("a table is the name of a file, its text, and the name of a column")
        self.name = name.replace("\\", "/").rpartition("/")[2][:MAX_NAME] or "table.csv"
        self.text = text.removeprefix("\ufeff")
        if len(text) > MAX_LETTERS:
            raise ValueError(f"{self.name}: expected at most {MAX_LETTERS:,} letters, got {len(text):,}")
        self.column_names, rows = self._read()
        self.target = self.column_names[-1] if target is None else target
        if self.target not in self.column_names:
            raise ValueError(
                f"{self.name}: there is no column {target!r:.60}, only {', '.join(self.column_names)[:200]}"
            )
        cells = dict(zip(self.column_names, zip(*rows, strict=True), strict=True))
        candidates = [column for column in self.column_names if column != self.target]
        self.inputs = [column for column in candidates if numbers(cells[column]) is not None]
        self.left_out = [column for column in candidates if column not in self.inputs]
        if not 1 <= len(self.inputs) <= MAX_COLUMNS:
            expected = f"1 … {MAX_COLUMNS} columns of numbers beside {self.target!r}"
            raise ValueError(f"{self.name}: expected {expected}, got {len(self.inputs)}")
        self.labels = self._find_labels(cells)
        x, y = table(io.StringIO(self.text), self.target, len(rows), np.random.default_rng(0))
        self.rows = len(x)
        self.classes = int(y.max()) + 1 if len(y) and y.dtype.kind == "i" else None
        if self.rows < MIN_ROWS:
            raise ValueError(f"{self.name}: expected at least {MIN_ROWS} rows without a gap, got {self.rows}")
        if y.min() == y.max():
            raise ValueError(f"{self.name}: all rows have the same {self.target!r}: there is nothing to learn")
        if self.classes is not None and self.classes > MAX_CLASSES:
            raise ValueError(f"{self.name}: expected at most {MAX_CLASSES} classes, {self.target!r} has {self.classes}")

    def _read(self) -> tuple[list[str], list[list[str]]]:
        """Return the header, and the rows, all of its length."""
        if "\0" in self.text:
            raise ValueError(f"{self.name} is not a text file")
        try:
            lines = [row for row in csv.reader(io.StringIO(self.text)) if row]
        except csv.Error as error:
            raise ValueError(f"{self.name} is not a CSV file: {error}") from None
        if len(lines) <= MIN_ROWS:
            raise ValueError(f"{self.name}: expected a header and at least {MIN_ROWS} rows, got {len(lines)} lines")
        header, *rows = lines
        if len(set(header)) < len(header) or not all(0 < len(name) <= MAX_NAME for name in header):
            raise ValueError(f"{self.name}: expected a different name for each column, got {', '.join(header)[:200]}")
        for i, row in enumerate(rows):
            if len(row) != len(header):
                where = f"row {i + 1} has {len(row)} cells"
                raise ValueError(f"{self.name}: {where}, and the header has {len(header)}: {','.join(row)[:60]}")
        return header, rows

    def _find_labels(self, cells: dict[str, tuple[str, ...]]) -> list[str]:
        """Return the values of the target, in order. If they are classes, `table` numbers them in this order."""
        target = numbers(cells[self.target])
        whole = np.isfinite(np.array([numbers(cells[name]) for name in self.inputs])).all(axis=0).tolist()
        values = cells[self.target] if target is None else target.tolist()
        complete_rows = itertools.compress(values, whole)
        labels = {value for value in complete_rows if value != "" and value == value}
        return [value if isinstance(value, str) else f"{value:g}" for value in sorted(labels)]

    def with_target(self, target: Any) -> UploadedTable:
        """Return the same table, with another column to predict."""
        return self if target == self.target else UploadedTable(self.name, self.text, target)
