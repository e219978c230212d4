"""Which rows of a batch this process computes: all, or some of them if several processes share each batch.

Most Functions compute row by row, and need not know. The following ask `current_shard()`:

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


class Shard:
    """All rows of a batch: one process computes them alone."""

    is_whole = True
    is_counted = True  # whether these rows count in sums over the batch

    def batch_count(self, count: int) -> int:
        """Return how many numbers the entire batch has if the rows here have `count`, spread evenly over the rows."""
        return count

    def offset(self, count: int) -> int:
        """Return how many numbers of the batch come before the rows here, if these have `count`."""
        return 0

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of this array and the arrays of all other processes."""
        return array

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        """Return this array and the arrays of all other processes, stacked: (processes, …)."""
        return array[np.newaxis]


class PartialShard(Shard, ABC):
    """`size` rows, from row `first` on, of a batch of `batch_size` rows. Sums include them only if `is_counted`."""

    is_whole = False

    def __init__(self, first: int, size: int, batch_size: int, is_counted: bool = True) -> None:
        self.first, self.size, self.batch_size, self.is_counted = first, size, batch_size, is_counted

    @property
    def slice(self) -> slice:
        """The position of these rows in the batch."""
        return slice(self.first, self.first + self.size)

    def batch_count(self, count: int) -> int:
        if count % self.size != 0:
            raise ValueError(f"expected equally many numbers for each of the {self.size} rows here, got {count}")
        return count // self.size * self.batch_size

    def offset(self, count: int) -> int:
        return self.batch_count(count) // self.batch_size * self.first

    @abstractmethod
    def all_reduce(self, array: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def all_gather(self, array: np.ndarray) -> np.ndarray: ...


WHOLE_BATCH = Shard()
_current: ContextVar[Shard] = ContextVar("caffelite.current_shard", default=WHOLE_BATCH)

#: The rows that this thread computes. Every operation calls `current_shard()`, so no function wraps it, for speed.
current_shard = _current.get


@contextmanager
def use_shard(shard: Shard) -> Iterator[None]:
    """Inside, this thread computes these rows of a batch."""
    token = _current.set(shard)
    try:
        yield
    finally:
        _current.reset(token)
