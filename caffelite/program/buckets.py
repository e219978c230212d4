"""RowBuckets: Programs for any number of rows, of a function that computes each row by itself.

A recording takes as long as some ten calls in Python, and it keeps memory. So not every number of rows gets its own.
A row's results do not depend on the rows beside it, so a few Programs, the buckets, serve all numbers:

    1000 rows = 3 buckets of 256 rows + 3 of 64 + 2 of 16 + 2 of 4

A last bucket may get fewer rows than it computes. Then its last row is repeated, and the results of the repeated rows
are left out. A bucket has a fourth of the rows of the next larger one, so all smaller buckets together take a third of
the memory of the largest.

Many callers have only one number of rows, or this one and single rows. So the first number that is not a bucket's gets
a Program of its own. Another number gets one after several calls in a row with this number: more than 2 calls, then
more than 4, 8 and so on. So numbers that take turns are not recorded again and again. All Programs together take at
most twice the memory of the largest. If they take more, the Programs that the last call did not need are dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.sparse import to_row_array
from caffelite.program.program import Program

SIZES = (1024, 256, 64, 16, 4, 1)
MAX_REPEATED = 15  # rows; and less than half of the bucket


class RowBuckets:
    """The Programs of a function of rows. Each is recorded when it is needed for the first time."""

    def __init__(self) -> None:
        self.programs: dict[int, Program] = {}  # by their numbers of rows
        self.warned_reasons: set[str] = set()  # the obstacles about which the user was warned
        self.dependencies: Any = None  # objects that the Programs keep alive
        self.last_request = 0  # the number of the last request to the model for these Programs
        self.runs_eagerly = False  # because there is no room to keep it
        self.is_recorded = False
        # The last number of rows without a Program, and how many times in a row it came.
        self._last_rows = self._repeats = 0
        self._patience = 0  # how many times may come before a number of rows gets a Program of its own

    @property
    def nbytes(self) -> int:
        """The bytes of the memory of all Programs."""
        return sum(self._memory_sizes())

    def run(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """Return the function's results for these rows, by replays or by a recording."""
        rows = len(arrays[0])
        program = self._find_program(rows)
        if program is None:
            result = self._run_in_buckets(function, arrays, rows)
            self._limit_memory(SIZES)
        else:
            result = program.run(function, *arrays)
            self._limit_memory((rows,))
        self.is_recorded = True
        return result

    def _find_program(self, rows: int) -> Program | None:
        """Return a Program for all rows at once, or None if they are to be computed in buckets."""
        if self.runs_eagerly or kernels.recorder() is not None:  # nothing is recorded, or this is part of a recording
            return _eager()
        eager = [program for program in list(self.programs.values()) if program.runs_eagerly]
        if eager:  # the function can't be recorded
            return eager[0]
        if rows in SIZES:
            return self._get_program(rows)
        self._last_rows, self._repeats = rows, (self._repeats + 1 if rows == self._last_rows else 1)
        if self._repeats <= self._patience:
            return None
        self._patience = max(2 * self._patience, 2)
        self._drop_except(SIZES)
        return self._get_program(rows)

    def _run_in_buckets(self, function: Callable[..., Any], arrays: tuple[Any, ...], rows: int) -> Any:
        """Return the function's results, computed bucket by bucket."""
        data, results, is_tuple = [*map(to_row_array, arrays)], list[np.ndarray](), False
        try:
            for start, size in _split_rows(rows):
                program = self._get_program(size)
                is_tuple = program.run_bucket(function, data, start, size, results)
                if program.runs_eagerly:  # it could not be recorded
                    return program.run(function, *arrays)
        except Exception as error:
            bucket_error = error
        else:
            return tuple(results) if is_tuple else results[0]
        _eager().run(function, *arrays)  # this raises the error too, but it names the row by its number among all rows
        raise bucket_error

    def _get_program(self, rows: int) -> Program:
        """Return the Program for this number of rows; a new one if there is none yet."""
        program = self.programs.get(rows)
        if program is None:
            program = self.programs.setdefault(rows, Program())  # another thread may have made one by now
            program.warned_reasons = self.warned_reasons
        return program

    def _limit_memory(self, rows_to_keep: Sequence[int]) -> None:
        """If all Programs take more than twice the memory of the largest, keep only those for these numbers of rows."""
        sizes = self._memory_sizes()
        if sum(sizes) > 2 * max(sizes, default=0):
            self._drop_except(rows_to_keep)

    def _drop_except(self, rows_to_keep: Sequence[int]) -> None:
        for rows in set(self.programs) - set(rows_to_keep):
            self.programs.pop(rows, None)

    def _memory_sizes(self) -> list[int]:
        return [program.nbytes for program in list(self.programs.values())]


def _eager() -> Program:
    """Return a Program that records nothing."""
    program = Program()
    program.runs_eagerly = True
    return program


def _split_rows(rows: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the size of each bucket, from the largest to the smallest."""
    in_largest = rows - rows % SIZES[0]
    for start in range(0, in_largest, SIZES[0]):
        yield start, SIZES[0]
    for start, size in _split_rest(rows - in_largest):
        yield in_largest + start, size


@functools.lru_cache(maxsize=SIZES[0])
def _split_rest(rows: int) -> list[tuple[int, int]]:
    """Return the first row and the size of each bucket of fewer rows than the largest bucket has."""
    buckets, start = [], 0
    for size in SIZES:
        while start < rows and size - (rows - start) < min(size / 2, MAX_REPEATED + 1):
            buckets.append((start, size))
            start += size
    return buckets
