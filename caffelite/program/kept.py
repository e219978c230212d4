"""The Programs that a model keeps: one for each shape of batch, as long as they fit into a budget of memory.

A recording takes as long as ten steps in Python. So a Program is not dropped for the next shape that comes along: where
batches of many shapes follow each other in turn, each of them would be recorded time and again. Beyond the budget a
step runs in Python, until a Program has not been asked for in a long while.
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

BUDGET = 64 << 20  # bytes that the Programs of a model may take
LEAST, MOST = 4, 1024  # of one name are kept whatever they take, and not more however small they are: of a training's
OF_PREDICT = (2, 16)  # steps a full and a short batch, to train on and to evaluate; and of `predict`
STALE = 1000  # requests after which a Program that none of them was for may be dropped


class Programs:
    """A model's Programs, by what they were recorded for."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Any, Program] = OrderedDict()  # the one that was used last is last
        self._requests = 0
        self._after_fork()
        renew_in_children(self)
        self._memory = np.zeros(kernels.CURSOR.itemsize // np.dtype(np.intp).itemsize, dtype=np.intp)
        self.cursor = self._memory.view(kernels.CURSOR)  # through which steps find their batch and their sums
        # The forms of the rows of outputs that a Program keeps, for metrics of the epoch.
        self.kept: weakref.WeakKeyDictionary[Program, list[tuple]] = weakref.WeakKeyDictionary()
        self.warned_of: set[str] = set()  # what the user has been warned of
        self._last: tuple | None = None  # what was asked for last, and found: it is usual to ask for it again

    def _after_fork(self) -> None:
        """In a forked child, no other thread is looking for a Program, and none has the cursor."""
        self._lock, self._cursor_lock = threading.Lock(), threading.RLock()

    def using_cursor(self) -> Locked:
        """Have the cursor, and the Programs that go by it, for oneself; it is given back as it was."""
        return Locked(self._memory, self._cursor_lock)

    def find(self, used: tuple, *key: Any) -> Program:
        """The Program of a step that uses these objects, for this key; a new one if there is none yet.

        The first of the key is the step's name. A new one that there is no room for is not kept, and runs in Python.
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
                program.used = used  # as long as the Program lives, their ids are theirs
                self._programs[of_objects] = program
            program.asked_for = self._requests
            self._programs.move_to_end(of_objects)
            self._last = used, key, program
            return program

    def _has_room(self, name: str) -> bool:
        """Whether one more may be kept; Programs that were not asked for in a long while make room for it."""
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
