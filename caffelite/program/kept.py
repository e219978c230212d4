"""The Programs that a model keeps: one for each shape of batch, as long as they fit into a memory budget.

A recording takes as long as ten steps in Python. So a Program is not dropped as soon as another shape comes: if shapes
alternated, each would be recorded again and again. If the budget is full, steps of a new shape run in Python. Only a
Program that was not used for a long time makes room.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.forks import renew_in_children
from caffelite.program.program import Program
from caffelite.program.running import Locked

BUDGET = 64 << 20  # bytes for all Programs of a model
# For each step's name, the number of Programs that are kept in any case, and the largest number. 4 are a full and a
# short batch, for training and for evaluation. `predict` has its own numbers.
LEAST, MOST = 4, 1024
OF_PREDICT = (2, 16)
STALE = 1000  # requests; a Program that none of the last ones used may be dropped


class Programs:
    """A model's Programs, found by the step's name, the shapes and the objects that it uses."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Any, Program] = OrderedDict()  # in the order of their last use
        self._requests = 0
        self._after_fork()
        renew_in_children(self)
        self._memory = np.zeros(kernels.CURSOR.itemsize // np.dtype(np.intp).itemsize, dtype=np.intp)
        self.cursor = self._memory.view(kernels.CURSOR)  # tells steps which batch is next, and where the sums are
        # The shapes and dtypes of the rows of outputs that a Program keeps for the metrics of an epoch.
        self.kept: weakref.WeakKeyDictionary[Program, list[tuple]] = weakref.WeakKeyDictionary()
        self.warned_of: set[str] = set()  # the obstacles about which the user was warned
        self._last: tuple | None = None  # the last request and its Program: often it is repeated

    def _after_fork(self) -> None:
        """Make new locks in a forked child, where no other thread holds the old ones."""
        self._lock, self._cursor_lock = threading.Lock(), threading.RLock()

    def using_cursor(self) -> Locked:
        """Lock the cursor and the Programs that use it for this thread. Afterwards the cursor is as it was before."""
        return Locked(self._memory, self._cursor_lock)

    def find(self, used: tuple, *key: Any) -> Program:
        """The Program for this key of a step that uses these objects; a new one if there is none yet.

        The key begins with the step's name. If there is no room for a new Program, it is not kept, and runs in Python.
        """
        last = self._last
        if last is not None and last[0] is used and last[1] == key:
            return last[2]
        of_objects = (*key, *map(id, used))
        with self._lock:
            self._requests += 1
            program = self._programs.get(of_objects)
            if program is None:
                program = Program()
                program.warned_of = self.warned_of
                if not self._has_room(key[0]):
                    program.runs_eagerly = True
                    return program
                program.used = used  # keeps them alive, so that no other object gets their ids
                self._programs[of_objects] = program
            program.asked_for = self._requests
            self._programs.move_to_end(of_objects)
            self._last = used, key, program
            return program

    def _has_room(self, name: str) -> bool:
        """Whether one more Program may be kept. If needed, drop Programs that were not used for a long time."""
        least, most = OF_PREDICT if name == "outputs" else (LEAST, MOST)
        while True:
            of_name = sum(key[0] == name for key in self._programs)
            memory = sum(program.nbytes for program in self._programs.values())
            if of_name < least or (of_name < most and memory < BUDGET):
                return True
            oldest = next(iter(self._programs))
            if self._requests - self._programs[oldest].asked_for < STALE:
                return False
            del self._programs[oldest]
