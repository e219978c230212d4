"""Forked children. What another thread of the parent held at the moment of the fork, nobody holds in the child.

The child has one thread, the one that forked. A lock that any other thread held would stay locked for ever, and what
it had begun would stay half done. So everything that has a lock is noted here and makes a new one in the child.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Protocol
from weakref import WeakSet


class Renewed(Protocol):
    """Has a lock, or something else that a thread may hold."""

    def _after_fork(self) -> None:
        """In a forked child: be as if no other thread had ever been."""


_noted: WeakSet[Renewed] = WeakSet()


def renew_in_children(thing: Renewed) -> None:
    """Have `thing._after_fork()` called in each forked child, as long as the thing lives."""
    _noted.add(thing)


def _renew_all() -> None:
    for thing in list(_noted):
        thing._after_fork()
    if "tqdm" in sys.modules:  # whose bars share a lock
        sys.modules["tqdm"].tqdm.set_lock(threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
