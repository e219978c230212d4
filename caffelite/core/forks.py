"""Forked children. What another thread of the parent held at the moment of the fork, nobody holds in the child.

The child has one thread, the one that forked. A lock that any other thread held would stay locked for ever, and what
it had begun would stay half done. So everything that has a lock is noted here and makes a new one in the child.
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import count
from typing import Protocol
from weakref import ref


class Renewed(Protocol):
    """Has a lock, or something else that a thread may hold."""

    def _after_fork(self) -> None:
        """In a forked child: be as if no other thread had ever been."""


_noted: dict[int, ref[Renewed]] = {}  # without callbacks, in which a Ctrl-C would be lost
_number = count()
_enough = 1000  # if as many are noted, those that are gone are left out


def renew_in_children(thing: Renewed) -> None:
    """Have `thing._after_fork()` called in each forked child, as long as the thing lives."""
    global _enough
    _noted[next(_number)] = ref(thing)
    if len(_noted) > _enough:
        for number in list(_noted):  # not of items(): making those, Python may collect garbage, which may note things
            if (noted := _noted.get(number)) is not None and noted() is None:
                _noted.pop(number, None)  # another thread may do the same
        _enough = 1000 + 2 * len(_noted)


def _renew_all() -> None:
    for noted in tuple(_noted.values()):
        if (thing := noted()) is not None:
            thing._after_fork()
    if "tqdm" in sys.modules:  # whose bars share a lock
        sys.modules["tqdm"].tqdm.set_lock(threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
