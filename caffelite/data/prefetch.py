"""Prefetch, and iteration over the batches of an epoch, whoever makes them."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from caffelite.core.arrays import positive_integer
from caffelite.data.ahead import Call, ahead
from caffelite.data.generator import DataGenerator, made


class Prefetch:
    """Batches that are made ahead of their use, by a thread that begins and ends with each pass over them.

        model.fit(cl.Prefetch(batches), …)      # batches: any iterable that `fit` takes, a DataGenerator too

    It is faster if making a batch waits for a disk or a network, or computes without Python's lock, as NumPy does.

    Parameters
    ----------
    batches : iterable
        Iterated once for each pass, in order. It may fill a batch's arrays again for the next one: they are copied.
    depth : int
        The number of batches that may be ready, or in the making, besides the one in use.

    An exception that is raised while a batch is made is raised in place of the batch. If you leave a pass early, its
    thread stops after the batch in the making; so it does at Ctrl-C. `len()` is that of `batches`. Raises TypeError if
    `batches` is not iterable, TypeError or ValueError if depth is not a positive integer, and RuntimeError if a process
    that was forked during a pass continues it: threads are not forked.
    """

    def __init__(self, batches: Iterable, depth: int = 2) -> None:
        if not isinstance(batches, Iterable):
            raise TypeError(f"Prefetch takes an iterable of batches, got {type(batches).__name__}")
        self.batches, self.depth = batches, positive_integer("depth", depth)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return made(self.epoch())

    def epoch(self, first: int = 0) -> Iterator[Call]:
        """The batches of a pass, but for so many first ones, each given when it is called."""
        return ahead(epoch_of(self.batches, first, copied=True), self.depth)


def epoch_of(batches: Iterable, first: int = 0, copied: bool = False) -> Iterator[Call]:
    """The batches of an epoch, but for so many first ones, each made when it is called; see `DataGenerator.epoch`.

    An iterable that is not caffelite's makes the first ones, too. With `copied`, its arrays are copied.
    """
    if type(batches) is DataGenerator or type(batches) is Prefetch:
        return batches.epoch(first)
    return _given(iter(batches), first, _copied if copied else lambda batch: batch)


def _given(batches: Iterator, first: int, change: Callable[[Any], Any]) -> Iterator[Call]:
    for batch in itertools.islice(batches, first, None):
        yield functools.partial(change, batch)


def _copied(batch: Any) -> Any:
    """A batch with copies of its arrays."""
    if isinstance(batch, tuple | list):
        return type(batch)(map(_copied, batch)) if type(batch) in (tuple, list) else batch
    return batch.copy() if isinstance(batch, np.ndarray) else batch


def without_single_rows(batches: Any) -> Any:
    """The same batches, but that a last batch of one row joins the one before it, for a BatchNorm that is trained.

    They come from the same place in the same sequence of orders. Batches that others make stay as they are.
    """
    if type(batches) is Prefetch:
        return Prefetch(without_single_rows(batches.batches), batches.depth)
    if type(batches) is not DataGenerator:
        return batches
    joining = copy.copy(batches)  # which has the arrays of the original that an epoch changes
    joining._joins = True
    return joining
