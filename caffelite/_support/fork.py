"""Forked child processes: give them new locks.

A child has one thread, the one that forked. If another thread of the parent held a lock, the lock would stay locked for
ever in the child, and the work of that thread would stay half done. So every object with a lock registers here, and
makes a new lock in the child.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Protocol
from weakref import ref


class ForkSafe(Protocol):
    """An object with a lock, or with something else that a thread may hold."""

    def _after_fork(self) -> None:
        """In a forked child, return to a state as if no other thread had ever existed."""


_registered: dict[object, ref[ForkSafe]] = {}  # no callbacks: a Ctrl-C inside one would be lost
_prune_at = 1000  # if more are registered, remove the objects that no longer exist


def reset_after_fork(thing: ForkSafe) -> None:
    """Call `thing._after_fork()` in each forked child, as long as the object exists."""
    global _prune_at
    _registered[object()] = ref(thing)  # a key that no other thread has
    if len(_registered) > _prune_at:
        for key in list(_registered):  # not items(), because garbage collection inside it may add objects
            if (reference := _registered.get(key)) is not None and reference() is None:
                _registered.pop(key, None)  # another thread may have removed it
        _prune_at = 1000 + 2 * len(_registered)


def _reset_all() -> None:
    for reference in tuple(_registered.values()):
        if (thing := reference()) is not None:
            thing._after_fork()
    if "tqdm" in sys.modules:  # tqdm's bars share a lock
        sys.modules["tqdm"].tqdm.set_lock(threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
