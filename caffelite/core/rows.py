"""Which rows of a batch are computed here: all of them, or some, if several processes share each batch.

Most Functions compute row by row, and need not know. Those that do not ask `rows_here()`:

- BatchNorm, for the sums over all rows of the batch;
- Dropout and dropped attention, for the number of each element, by which they draw;
- a loss with weights, because the rows here may weigh nothing.

`caffelite.parallel` says which rows each process computes, and how the processes talk to each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np


class Rows:
    """All rows of a batch: what one process computes."""

    are_all = True
    counted = True  # whether sums over the batch have a part that is of these rows

    def in_batch(self, count: int) -> int:
        """How many numbers the batch has, if the rows here have so many, and each row has as many as any other."""
        return count

    def before(self, count: int) -> int:
        """How many of them come before the rows here."""
        return 0

    def total(self, array: np.ndarray) -> np.ndarray:
        """The sum of this array and of those of all other processes."""
        return array

    def gathered(self, array: np.ndarray) -> np.ndarray:
        """This array and those of all other processes, one after the other: (processes, …)."""
        return array[np.newaxis]


class SomeRows(Rows, ABC):
    """The `size` rows from `first` on of a batch of `whole` rows. If they are not `counted`, they count nowhere."""

    are_all = False

    def __init__(self, first: int, size: int, whole: int, counted: bool = True) -> None:
        self.first, self.size, self.whole, self.counted = first, size, whole, counted

    @property
    def slice(self) -> slice:
        """Their place in the batch."""
        return slice(self.first, self.first + self.size)

    def in_batch(self, count: int) -> int:
        if count % self.size != 0:
            raise ValueError(f"expected as many numbers for each of the {self.size} rows here, got {count}")
        return count // self.size * self.whole

    def before(self, count: int) -> int:
        return self.in_batch(count) // self.whole * self.first

    @abstractmethod
    def total(self, array: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def gathered(self, array: np.ndarray) -> np.ndarray: ...


ALL = Rows()
_here: ContextVar[Rows] = ContextVar("caffelite.rows.here", default=ALL)

#: The rows that this thread computes. `rows_here()` is asked at every operation, so it is not wrapped in a function.
rows_here = _here.get


@contextmanager
def computing(rows: Rows) -> Iterator[None]:
    """Inside, these rows of a batch are computed in this thread."""
    token = _here.set(rows)
    try:
        yield
    finally:
        _here.reset(token)
