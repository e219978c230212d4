"""Ranks, and the rows of a batch that each of them computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from caffelite.core.python_callback import call_python
from caffelite.core.shard import PartialShard


class Communicator(ABC):
    """The processes that share batches. This process is number `rank` of `size`.

    All ranks must make each of these calls, in the same order. All get the same bits in each sum.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce_in_place(self, array: np.ndarray) -> None:
        """Replace this contiguous array with the sum of all ranks' arrays."""

    @abstractmethod
    def start_all_reduce(self, array: np.ndarray) -> Callable[[], None]:
        """Begin `all_reduce_in_place`. Meanwhile this rank can compute. The returned function waits for the sum."""

    @abstractmethod
    def all_gather(self, array: np.ndarray) -> np.ndarray:
        """Return the arrays of all ranks: (ranks, …). They must have the same shape and dtype."""

    @abstractmethod
    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value. It can be anything that pickle can write."""

    @abstractmethod
    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the values of all ranks. They can be anything that pickle can write."""

    @abstractmethod
    def training_context(self) -> AbstractContextManager[None]:
        """Return a context in which all ranks train. If one leaves by an exception and others wait for it, all end."""

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of all ranks' arrays. For bools, return whether any is True."""
        numbers = array.view(np.uint8) if array.dtype == np.bool_ else array
        result = np.array(numbers, order="C")
        self.all_reduce_in_place(result)
        return result.astype(np.bool_) if array.dtype == np.bool_ else result


class RankShard(PartialShard):
    """The rows of a batch that this rank computes.

    The parts are as equal as the number of rows allows. If there are fewer rows than ranks, a rank without rows
    computes a row that does not count. So its step is like those of other ranks, and adds 0 to each sum.
    """

    def __init__(self, comm: Communicator, whole: int) -> None:
        first, end = comm.rank * whole // comm.size, (comm.rank + 1) * whole // comm.size
        if first < end:
            super().__init__(first, end - first, whole)
        else:
            super().__init__(min(first, whole - 1), 1, whole, is_counted=False)
        self.comm = comm

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        return call_python("add up", self.comm.all_reduce, array)

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        return call_python("gather", self.comm.all_gather, array)
