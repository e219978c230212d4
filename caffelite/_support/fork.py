"""Forked child processes: give them new locks.

A child has one thread, the one that forked. If another thread of the parent held a lock, the lock would stay locked for
ever in the child, and the work of that thread would stay half done. So every object with a lock registers here, and
makes a new lock in the child.
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import count
from typing import Protocol
from weakref import ref


class Renewed(Protocol):
    """An object with a lock, or with something else that a thread may hold."""

    def _after_fork(self) -> None:
        """In a forked child, return to a state as if no other thread had ever existed."""


_noted: dict[int, ref[Renewed]] = {}  # no callbacks: a Ctrl-C inside one would be lost
_number = count()
_enough = 1000  # if more are noted, remove the objects that no longer exist


def renew_in_children(thing: Renewed) -> None:
    """Call `thing._after_fork()` in each forked child, as long as the object exists."""
    global _enough
    _noted[next(_number)] = ref(thing)
    if len(_noted) > _enough:
        for number in list(_noted):  # not items(), because garbage collection inside it may add objects
            if (noted := _noted.get(number)) is not None and noted() is None:
                _noted.pop(number, None)  # another thread may have removed it
        _enough = 1000 + 2 * len(_noted)


def _renew_all() -> None:
    for noted in tuple(_noted.values()):
        if (thing := noted()) is not None:
            thing._after_fork()
    if "tqdm" in sys.modules:  # tqdm's bars share a lock
        sys.modules["tqdm"].tqdm.set_lock(threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
