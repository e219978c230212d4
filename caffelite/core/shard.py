"""Which rows of a batch this process computes: all, or some of them if several processes share each batch.

Most Functions compute row by row, and need not know. These Functions ask `rows_here()`:

- BatchNorm, for the sums over all rows of the batch;
- Dropout and dropped attention, which draw random numbers by the position of an element in the batch;
- a loss with weights, because all weights of the rows here may be 0.

`caffelite.distributed` gives each process its rows, and lets the processes exchange arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np


class Rows:
    """All rows of a batch: one process computes them alone."""

    are_all = True
    counted = True  # whether these rows count in sums over the batch

    def in_batch(self, count: int) -> int:
        """How many numbers the whole batch has if the rows here have `count`, each row equally many."""
        return count

    def before(self, count: int) -> int:
        """How many numbers of the batch come before the rows here, if these have `count`."""
        return 0

    def total(self, array: np.ndarray) -> np.ndarray:
        """The sum of this array and the arrays of all other processes."""
        return array

    def gathered(self, array: np.ndarray) -> np.ndarray:
        """This array and the arrays of all other processes, stacked: (processes, …)."""
        return array[np.newaxis]


class SomeRows(Rows, ABC):
    """`size` rows, from row `first` on, of a batch of `whole` rows. Sums include them only if they are `counted`."""

    are_all = False

    def __init__(self, first: int, size: int, whole: int, counted: bool = True) -> None:
        self.first, self.size, self.whole, self.counted = first, size, whole, counted

    @property
    def slice(self) -> slice:
        """The place of these rows in the batch."""
        return slice(self.first, self.first + self.size)

    def in_batch(self, count: int) -> int:
        if count % self.size != 0:
            raise ValueError(f"expected equally many numbers for each of the {self.size} rows here, got {count}")
        return count // self.size * self.whole

    def before(self, count: int) -> int:
        return self.in_batch(count) // self.whole * self.first

    @abstractmethod
    def total(self, array: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def gathered(self, array: np.ndarray) -> np.ndarray: ...


ALL = Rows()
_here: ContextVar[Rows] = ContextVar("caffelite.rows.here", default=ALL)

#: The rows that this thread computes. Every operation calls `rows_here()`, so for speed no function wraps it.
rows_here = _here.get


@contextmanager
def computing(rows: Rows) -> Iterator[None]:
    """Inside, this thread computes these rows of a batch."""
    token = _here.set(rows)
    try:
        yield
    finally:
        _here.reset(token)
