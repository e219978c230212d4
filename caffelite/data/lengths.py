"""Lengths of rows: where a batch is cut, and which rows of similar length form a batch.

The rows are cut to one of a few widths, so a step is recorded for few shapes. The rows that fit into a width, but not
into a smaller one, form a group. An epoch shuffles the rows, sorts them by group, divides them into batches, and
shuffles the batches (`kernels.group_batches`). So the rows of a batch are from one group, or from neighbouring ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.sparse import is_sparse
from caffelite.data.conversion import read_all, read_array
from caffelite.data.out_of_core import Source

MAX_WIDTHS = 16  # and so as many recordings of a step
MAX_PADDING = 1.3  # positions of all batches, divided by the sum of all lengths; a goal


def as_lengths(lengths: Any, columns: Sequence[Any]) -> np.ndarray:
    """Return the rows' lengths, int64 (n,). The first column gives the number of rows and the largest length.

    Raise ValueError, naming the first row whose length is too large or not a positive integer. Raise ValueError for
    columns that cannot be cut: sources, sparse rows, and rows without positions.
    """
    x = columns[0]
    if any(isinstance(column, Source) or is_sparse(column) for column in columns):
        raise ValueError("lengths: expected x and y as arrays in memory, got a source or sparse rows")
    if x.ndim < 2:
        raise ValueError(f"lengths: expected x of shape (n, length, …), got shape {x.shape}")
    rows, width = x.shape[:2]
    array = read_all(read_array(lengths, "lengths"))
    if array.shape != (rows,):
        raise ValueError(f"lengths: expected a length for each of {rows} rows, ({rows},), got shape {array.shape}")
    if array.dtype.kind in "iu":
        bad = (array < 1) | (array > width)
    else:  # all are bad, so name the first one that is not an integer
        bad = np.array(
            [isinstance(n, bool) or not isinstance(n, int | float) or n % 1 != 0 for n in array.tolist()], bool
        )
        bad |= not bad.any()
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"lengths: expected integers from 1 to {width}, got {array.tolist()[row]!r} in row {row}")
    return np.ascontiguousarray(array, np.int64)


def choose_widths(lengths: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` widths, sorted, into which the lengths fit with little padding.

    Starting from all lengths that occur, it drops one by one the width whose rows need the least padding in the next.
    """
    widths, rows = np.unique(lengths, return_counts=True)
    while len(widths) > count:
        i = int((rows[:-1] * np.diff(widths)).argmin())
        rows[i + 1] += rows[i]
        widths, rows = np.delete(widths, i), np.delete(rows, i)
    return widths


def choose_batch_widths(lengths: np.ndarray, batch_size: int, count: int) -> np.ndarray:
    """Return at most `count` widths for batches of rows of similar length.

    If there are few lengths, each is a width. Otherwise the widths fit the batches of sorted rows. With few batches,
    however, each width would have just one, always of the same rows; so the widths then fit the rows, unless this needs
    too much padding.
    """
    ordered = np.sort(lengths)
    starts = np.arange(0, len(lengths), batch_size)
    longest = np.maximum.reduceat(ordered, starts)
    widths, sizes = choose_widths(lengths, count), np.diff(starts, append=len(lengths))
    padded = (sizes * widths[np.searchsorted(widths, longest)]).sum()
    if len(np.unique(lengths)) <= count or (len(longest) <= 2 * count and padded <= MAX_PADDING * lengths.sum()):
        return widths
    return choose_widths(longest, count)


def cut_batch(data: Any, lengths: np.ndarray | None) -> Any:
    """Return a Batch of views that end at the longest row, since nothing after it is used. None: no row is cut."""
    if lengths is None:
        return data
    columns, longest = data.columns(), lengths.max(initial=1)
    is_cut = follow_lengths(columns, columns[0].shape[1])
    views = [column[:, :longest] if cut else column for column, cut in zip(columns, is_cut, strict=True)]
    return data.layout().batch(views)


def follow_lengths(columns: Sequence[np.ndarray], width: int) -> list[bool]:
    """Return, for each column, whether its axis 1 has this width and is to be cut."""
    return [column.ndim > 1 and column.shape[1] == width for column in columns]


class LengthGroups:
    """Rows in groups of similar length, each with a width.

    Parameters
    ----------
    lengths : int64 (n,)
        The lengths, as returned by `as_lengths`.
    columns : sequence of arrays
        Inputs, targets and weights. All that are as wide as the first input are cut.
    count : int
        The largest number of widths.
    batch_size : int
        The rows of a batch, for `choose_batch_widths`.
    """

    def __init__(self, lengths: np.ndarray, columns: Sequence[np.ndarray], count: int, batch_size: int = 1) -> None:
        self.lengths, self.is_cut = lengths, follow_lengths(columns, columns[0].shape[1])
        self.widths = choose_batch_widths(lengths, batch_size, count)
        self.groups = np.searchsorted(self.widths, lengths).astype(np.int64)
        self._memory = np.empty(len(lengths) + len(self.widths), np.int64)

    def sort(self, order: np.ndarray, state: np.ndarray, batch_size: int, full: int, last: int) -> None:
        """Sort a shuffled order by group, and shuffle its full batches; see `kernels.group_batches`."""
        rows = full * batch_size + last
        memory = self._memory[: rows + len(self.widths)]
        kernels.group_batches(order[:rows], state, self.groups, memory, batch_size, full)

    def cut(self, columns: Sequence[np.ndarray], width: int) -> list[np.ndarray]:
        """Return views of columns, or of rows of them, that end at a width."""
        return [column[:, :width] if is_cut else column for column, is_cut in zip(columns, self.is_cut, strict=True)]

    def cut_rows(self, columns: Sequence[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
        """Return columns of these rows, cut to the longest of them."""
        return [*map(np.ascontiguousarray, self.cut(columns, self.lengths[rows].max()))]
