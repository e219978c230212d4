"""Sharing: several processes, ranks, run the same program, and each takes its share of the rows of every batch.

What a step is of the whole batch then, it is in parts: gradients, BatchNorm's moments, what is measured. Who computes
such a part asks `share()` which rows there are here, and has it added up over `share().ranks`. All ranks get the same
bits of what is added up, and so decide alike. How they talk to each other is no matter here: `caffelite.mpi` does it
by MPI.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

_share: ContextVar[Share | None] = ContextVar("caffelite.sharing.share", default=None)


class Ranks(ABC):
    """All processes that share batches, as one of them sees them: `rank` is its number, of so many, `size`.

    Each of these calls has to be made by all of them, in the same order.
    """

    rank: int
    size: int

    @abstractmethod
    def add_up(self, array: np.ndarray) -> None:
        """Have in an array, which is contiguous, the sum of those of all ranks: the same bits everywhere."""

    @abstractmethod
    def begin_to_add_up(self, array: np.ndarray) -> Callable[[], None]:
        """As `add_up`, while something else is computed: the sum is there when what this returns has been called."""

    @abstractmethod
    def gathered(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all ranks, which are of one shape and dtype: (ranks, …)."""

    @abstractmethod
    def of_first(self, value: Any) -> Any:
        """What rank 0 has: anything that can be pickled."""

    @abstractmethod
    def of_each(self, value: Any) -> list[Any]:
        """What each rank has: anything that can be pickled."""

    @abstractmethod
    def entered(self) -> AbstractContextManager[None]:
        """Inside, they train together: where one leaves it by an exception and others wait for it, all end."""

    def total(self, array: np.ndarray) -> np.ndarray:
        """The sum of the arrays of all ranks; of bools, whether any is True."""
        of_numbers = array.view(np.uint8) if array.dtype == np.bool_ else array
        found = np.array(of_numbers, order="C")
        self.add_up(found)
        return found.astype(np.bool_) if array.dtype == np.bool_ else found

    def share_of(self, rows: int) -> Share:
        """This rank's share of a batch of so many rows.

        Where there are fewer rows than ranks, one without rows takes one that counts nowhere: so its step is as those
        of the others, and adds 0 to all that is added up.
        """
        first, end = self.rank * rows // self.size, (self.rank + 1) * rows // self.size
        if first < end:
            return Share(self, first, end - first, rows, True)
        return Share(self, min(first, rows - 1), 1, rows, False)


class Share(NamedTuple):
    """A share of a batch: where its rows begin, how many they are, and of how many; and whether they count."""

    ranks: Ranks
    first: int
    rows: int
    whole: int
    counts: bool

    @property
    def own(self) -> slice:
        """Its rows in the batch."""
        return slice(self.first, self.first + self.rows)

    def of_whole(self, count: int) -> int:
        """How many the whole batch has of what are so many here, each row having as many.

        ValueError where the rows here have not.
        """
        if count % self.rows != 0:
            raise ValueError(f"expected as many numbers for each of the {self.rows} rows of a share, got {count}")
        return count // self.rows * self.whole

    def before(self, count: int) -> int:
        """How many come before those of this share, of what are so many here; as `of_whole`."""
        return self.of_whole(count) // self.whole * self.first


def share() -> Share | None:
    """What share of a batch this thread computes, in a training on several ranks; else None."""
    return _share.get()


@contextmanager
def sharing(share: Share | None) -> Iterator[None]:
    """Inside, what is computed is of this share of a batch."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)
