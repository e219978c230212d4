"""The Programs that a model keeps: one for each shape of batch, as long as they fit into a memory budget.

A recording takes as long as ten steps in Python. So a Program is not dropped as soon as another shape comes: if shapes
alternated, each would be recorded again and again. If the budget is full, steps of a new shape run in Python. Only a
Program that was not used for a long time makes room.

A training with another batch size makes new Programs. They replace all Programs that neither this training nor the one
before has used. So the Programs of trainings take at most twice the memory of the largest training.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.fork import reset_after_fork
from caffelite.program.buckets import RowBuckets
from caffelite.program.program import SMALL_MEMORY, Program
from caffelite.program.runner import LockedArray

MEMORY_BUDGET = 64 << 20  # bytes for all Programs of a model
# For each step's name, the number of Programs that are kept in any case, and the largest number. 4 are a full and a
# short batch, for training and for evaluation. `predict` has its own numbers, and so have batches of 16 widths.
MIN_PROGRAMS, MAX_PROGRAMS = 4, 1024
PREDICT_LIMITS = (2, 16)
OTHER_LIMITS = {"outputs": PREDICT_LIMITS, "fetch, cut and step": (32, MAX_PROGRAMS)}
STALE_REQUESTS = 1000  # requests; a Program that none of the last ones used may be dropped


def are_same_objects(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether both sequences hold the same objects."""
    return len(a) == len(b) and all(map(operator.is_, a, b))


class Request(NamedTuple):
    """A request for the Program of a step, and its answer."""

    dependencies: tuple[Any, ...]
    key: tuple[Any, ...]
    precision: str
    program: Program | RowBuckets


class ProgramCache:
    """A model's Programs, found by the step's name, the shapes and the objects that it uses."""

    def __init__(self) -> None:
        self._programs: dict[Any, Program | RowBuckets] = {}
        self.disturbances = 0  # how often a user's Python has run between the steps of trainings
        self._requests = self._training = self._last_training = 0  # requests when the last two trainings began
        self._after_fork()
        reset_after_fork(self)
        self._memory = np.zeros(kernels.CURSOR.itemsize // np.dtype(np.intp).itemsize, dtype=np.intp)
        self.cursor = self._memory.view(kernels.CURSOR)  # tells steps which batch is next, and where the sums are
        # The shapes and dtypes of the rows of outputs that a Program keeps for the metrics of an epoch.
        self.output_specs: weakref.WeakKeyDictionary[Program, list[tuple[Any, ...]]] = weakref.WeakKeyDictionary()
        self.warned_reasons: set[str] = set()  # the warnings that this model has given
        # The last request for a step of each name, and its Program: often it is repeated.
        self._last: dict[str, Request] = {}

    def _after_fork(self) -> None:
        """Make new locks in a forked child, where no other thread holds the old ones."""
        self._lock, self._cursor_lock = threading.Lock(), threading.RLock()

    def lock_cursor(self) -> LockedArray:
        """Lock the cursor and the Programs that use it for this thread. Afterwards the cursor is as it was before."""
        return LockedArray(self._memory, self._cursor_lock)

    def find(self, cls: type[Any], dependencies: tuple[Any, ...], *key: Any) -> Any:
        """Return the Program, or RowBuckets, for this key of a step that uses these objects, in this thread's
        precision.

        The key begins with the step's name. If there is none yet, it makes a new one. If there is no room for a new
        Program, it is not kept, and runs in Python.
        """
        last, precision = self._last.get(key[0]), kernels.current_precision()
        if (
            last is not None
            and last.key == key
            and last.precision == precision
            and (last.dependencies is dependencies or are_same_objects(last.dependencies, dependencies))
        ):
            last.program.last_request = self._requests
            return last.program
        full_key = (*key, precision, *map(id, dependencies))
        with self._lock:
            self._requests += 1
            program = self._programs.get(full_key)
            if program is None:
                program = cls()
                program.warned_reasons = self.warned_reasons
                self._drop_idle()
                if not self._has_room(key[0]):
                    program.runs_eagerly = True
                    return program
                program.dependencies = dependencies  # keeps them alive: no other object gets their ids
                self._programs[full_key] = program
            program.last_request = self._requests
            self._last[key[0]] = Request(dependencies, key, precision, program)
            return program

    def begin_training(self) -> None:
        """Begin a training. If it needs new Programs, older ones make room."""
        with self._lock:
            self._requests += 1
            self._last_training, self._training = self._training, self._requests

    def mark_used(self, programs: Iterable[Program]) -> None:
        """Mark that these Programs, which `find` returned, are used again."""
        for program in programs:
            program.last_request = self._requests

    def _has_room(self, name: str) -> bool:
        """Return whether one more Program may be kept. If needed, drop Programs that were not used for a long time."""
        min_count, max_count = OTHER_LIMITS.get(name, (MIN_PROGRAMS, MAX_PROGRAMS))
        while True:
            count = sum(key[0] == name for key in self._programs)
            if count < min_count or (count < max_count and self._nbytes() < MEMORY_BUDGET):
                return True
            oldest = min(self._programs, key=lambda key: self._programs[key].last_request)
            if self._requests - self._programs[oldest].last_request < STALE_REQUESTS:
                return False
            self._drop(oldest)

    def _drop_idle(self) -> None:
        """Drop the Programs that no step has used since the training before this one began."""
        if self._nbytes() > SMALL_MEMORY:
            for key, program in list(self._programs.items()):
                if program.last_request < self._last_training:
                    self._drop(key)

    def _drop(self, key: Any) -> None:
        del self._programs[key]
        self._last.pop(key[0], None)

    def _nbytes(self) -> int:
        return sum(program.nbytes for program in self._programs.values())
