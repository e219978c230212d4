"""Ranks, and the rows of a batch that each of them computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from caffelite.core.recording import call_python
from caffelite.core.rows import SomeRows


class Ranks(ABC):
    """All processes that share batches, as one of them sees them: it has the number `rank` of `size`.

    All ranks have to make each of these calls, in the same order. All get the same bits of what is added up.
    """

    rank: int
    size: int

    @abstractmethod
    def add_up(self, array: np.ndarray) -> None:
        """Write the sum of the arrays of all ranks into this one, which is contiguous."""

    @abstractmethod
    def begin_to_add_up(self, array: np.ndarray) -> Callable[[], None]:
        """As `add_up`, while this rank computes other things. Call what this returns to wait for the sum."""

    @abstractmethod
    def gathered(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all ranks, which have the same shape and dtype: (ranks, …)."""

    @abstractmethod
    def of_first(self, value: Any) -> Any:
        """The value that rank 0 has. It can be anything that can be pickled."""

    @abstractmethod
    def of_each(self, value: Any) -> list[Any]:
        """The values of all ranks. They can be anything that can be pickled."""

    @abstractmethod
    def entered(self) -> AbstractContextManager[None]:
        """Inside, all ranks train. If one leaves by an exception and others wait for it, all end."""

    def total(self, array: np.ndarray) -> np.ndarray:
        """The sum of the arrays of all ranks; of bools, whether any is True."""
        of_numbers = array.view(np.uint8) if array.dtype == np.bool_ else array
        found = np.array(of_numbers, order="C")
        self.add_up(found)
        return found.astype(np.bool_) if array.dtype == np.bool_ else found


class RowsOfRank(SomeRows):
    """The rows of a batch that this rank computes: equal parts, as far as the number of rows allows.

    If a batch has fewer rows than there are ranks, a rank without rows takes one that is not counted. So its step is
    like those of the other ranks, and adds 0 to each sum.
    """

    def __init__(self, ranks: Ranks, whole: int) -> None:
        first, end = ranks.rank * whole // ranks.size, (ranks.rank + 1) * whole // ranks.size
        if first < end:
            super().__init__(first, end - first, whole)
        else:
            super().__init__(min(first, whole - 1), 1, whole, counted=False)
        self.ranks = ranks

    def total(self, array: np.ndarray) -> np.ndarray:
        return call_python("add up", self.ranks.total, array)

    def gathered(self, array: np.ndarray) -> np.ndarray:
        return call_python("gather", self.ranks.gathered, array)
