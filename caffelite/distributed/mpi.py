"""Ranks, and the rows of a batch that each of them computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from caffelite.core.recording import call_python
from caffelite.core.shard import PartialShard


class Ranks(ABC):
    """The processes that share batches. This process has the number `rank` of `size`.

    All ranks must make each of these calls, in the same order. All get the same bits of each sum.
    """

    rank: int
    size: int

    @abstractmethod
    def add_up(self, array: np.ndarray) -> None:
        """Replace this contiguous array by the sum of all ranks' arrays."""

    @abstractmethod
    def begin_to_add_up(self, array: np.ndarray) -> Callable[[], None]:
        """Begin `add_up`. This rank can compute meanwhile. Call the returned function to wait for the sum."""

    @abstractmethod
    def all_gather(self, array: np.ndarray) -> np.ndarray:
        """Return the arrays of all ranks: (ranks, …). They must have the same shape and dtype."""

    @abstractmethod
    def of_first(self, value: Any) -> Any:
        """Return rank 0's value. It can be anything that pickle can write."""

    @abstractmethod
    def of_each(self, value: Any) -> list[Any]:
        """Return the values of all ranks. They can be anything that pickle can write."""

    @abstractmethod
    def entered(self) -> AbstractContextManager[None]:
        """A context in which all ranks train. If one leaves by an exception and others wait for it, all end."""

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of all ranks' arrays. For bools, return whether any is True."""
        of_numbers = array.view(np.uint8) if array.dtype == np.bool_ else array
        found = np.array(of_numbers, order="C")
        self.add_up(found)
        return found.astype(np.bool_) if array.dtype == np.bool_ else found


class RowsOfRank(PartialShard):
    """The rows of a batch that this rank computes. Ranks have equal parts, as far as the number of rows allows.

    If a batch has fewer rows than ranks, a rank without rows computes a row that is not counted. So its step is like
    the steps of other ranks, and adds 0 to each sum.
    """

    def __init__(self, ranks: Ranks, whole: int) -> None:
        first, end = ranks.rank * whole // ranks.size, (ranks.rank + 1) * whole // ranks.size
        if first < end:
            super().__init__(first, end - first, whole)
        else:
            super().__init__(min(first, whole - 1), 1, whole, is_counted=False)
        self.ranks = ranks

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        return call_python("add up", self.ranks.all_reduce, array)

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        return call_python("gather", self.ranks.all_gather, array)
