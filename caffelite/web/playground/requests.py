"""Wishes: the requests of pages, which the training waits for."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from caffelite.web.playground.config import Setting

AS_FAST = math.inf  # steps a second
Show = Callable[[str, dict[str, Any]], None]


class Abandoned(BaseException):
    """The training ends, since another one is wanted."""


class Wishes:
    """The requests of pages: settings to train and pictures to show.

    All public methods may be called on any thread, and return at once. The thread that trains calls
    `show(kind, message)` with each "frame" and with all other messages that pages requested.
    """

    def __init__(self, setting: Setting, show: Show) -> None:
        self.setting, self.show = setting, show
        self.playing, self.speed = False, AS_FAST
        self.until: int | None = None  # the step after which it pauses
        self.steps = 0  # that are done
        self.problem: str | None = None
        self.followed: tuple[int, int, int] | None = None  # the weight that frames explain
        self.ended = False
        self._asked: deque[str] = deque()  # the player's tasks between two steps
        self._anew = self._due = False  # whether to begin again, and whether a frame is wanted
        self._changed = threading.Condition()

    def begin(self, setting: Setting) -> None:
        """Begin again with this setting. It goes on playing if it plays."""
        with self._changed:
            self.setting, self._anew, self.until = setting, True, None
            self._changed.notify_all()

    def play(self, is_playing: bool = True) -> None:
        with self._changed:
            self.playing, self.until, self._due = is_playing, None, True
            self._changed.notify_all()

    def take(self, steps: int) -> None:
        """Take so many steps, and pause."""
        with self._changed:
            done = 0 if self._anew else self.steps
            self.until, self.playing = done + steps, True
            self._changed.notify_all()

    def at_speed(self, steps: float) -> None:
        """Take at most so many steps a second."""
        with self._changed:
            self.speed = steps
            self._changed.notify_all()

    def look(self) -> None:
        """Make a frame, also while it waits."""
        with self._changed:
            self._due = True
            self._changed.notify_all()

    def follow(self, place: tuple[int, int, int] | None) -> None:
        """Have frames explain this weight: its layer, and the units that it leads from and to."""
        with self._changed:
            self.followed, self._due = place, True
            self._changed.notify_all()

    def show_kernels(self) -> None:
        """Show the kernels of the next step."""
        self._ask("show kernels")

    def run_kernel(self) -> None:
        """Pause, and run the next kernel of the next step. The last one ends the step."""
        self._ask("run kernel")

    def _ask(self, what: str) -> None:
        with self._changed:
            self._asked.append(what)
            self._due = True
            self._changed.notify_all()

    # ---- for the thread that trains -----------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait for a change, or for so long. Raises Abandoned if the training is to begin again."""
        with self._changed:
            if not self._anew:
                self._changed.wait(seconds)
        self.check()

    def wait_while_paused(self) -> None:
        """Wait until it plays, something is wanted, or the training is to begin again: then it raises Abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: self.playing or self._due or self._asked or self._anew)
        self.check()

    def check(self) -> None:
        if self._anew:
            raise Abandoned

    def wants_frame(self) -> bool:
        with self._changed:
            due, self._due = self._due, False
            return due

    def next_asked(self) -> str | None:
        with self._changed:
            return self._asked.popleft() if self._asked else None
