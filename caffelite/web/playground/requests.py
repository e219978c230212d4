"""RequestQueue: the requests of pages, which training waits for."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from caffelite.web.playground.config import Setting

FULL_SPEED = math.inf  # steps a second
Show = Callable[[str, dict[str, Any]], None]


class TrainingCancelled(BaseException):
    """Training is cancelled, because a page wants another net."""


class RequestQueue:
    """The requests of pages: settings to train and pictures to show.

    All public methods may be called on any thread, and return at once. The thread that trains calls
    `show(kind, message)` with each "frame" and with all other messages that pages requested.
    """

    def __init__(self, setting: Setting, show: Show) -> None:
        self.setting, self.show = setting, show
        self.playing, self.speed = False, FULL_SPEED
        self.stop_at: int | None = None  # the step after which it pauses
        self.steps = 0  # that are done
        self.problem: str | None = None
        self.followed_weight: tuple[int, int, int] | None = None  # the weight that frames explain
        self.text = "maria", 0  # the letters that frames show, and the draw of the names that the net writes
        self.ended = False
        self.has_edits = False  # whether a weight was set by hand
        self.edits: deque[tuple[tuple[int, int, int], float]] = deque()  # places and values of weights to set
        self._tasks: deque[str] = deque()  # the player's tasks between two steps
        self._restart = self._frame_due = False  # whether to begin again, and whether a frame is wanted
        self._changed = threading.Condition()

    def begin(self, setting: Setting) -> None:
        """Begin again with this setting. If the playground plays without a number of steps, it continues to play."""
        with self._changed:
            self.playing = self.playing and self.stop_at is None
            self.setting, self._restart, self.stop_at = setting, True, None
            self._changed.notify_all()

    def play(self, is_playing: bool = True) -> None:
        with self._changed:
            self.playing, self.stop_at, self._frame_due = is_playing, None, True
            self._changed.notify_all()

    def take_steps(self, steps: int) -> None:
        """Take this many steps, and pause."""
        with self._changed:
            done = 0 if self._restart else self.steps
            self.stop_at, self.playing = done + steps, True
            self._changed.notify_all()

    def set_speed(self, steps: float) -> None:
        """Take at most this many steps a second."""
        with self._changed:
            self.speed = steps
            self._changed.notify_all()

    def request_frame(self) -> None:
        """Make a frame, even while waiting."""
        with self._changed:
            self._frame_due = True
            self._changed.notify_all()

    def follow(self, place: tuple[int, int, int] | None) -> None:
        """Make frames explain this weight: its layer, and the units that it leads from and to."""
        with self._changed:
            self.followed_weight, self._frame_due = place, True
            self._changed.notify_all()

    def set_weight(self, value: float) -> None:
        """Give the weight that is followed now this value."""
        with self._changed:
            if self.followed_weight is not None:
                self.has_edits = True
                self.edits.append((self.followed_weight, value))
                self._add_task("set weight")

    def read(self, text: str, draw: int) -> None:
        """Make frames show a net of names after each of these letters, and the names of this draw."""
        with self._changed:
            self.text, self._frame_due = (text, draw), True
            self._changed.notify_all()

    def show_kernels(self) -> None:
        """Show the kernels of the next step."""
        self._add_task("show kernels")

    def run_kernel(self) -> None:
        """Pause, and run the next kernel of the next step. The last one ends the step."""
        self._add_task("run kernel")

    def _add_task(self, what: str) -> None:
        with self._changed:
            self._tasks.append(what)
            self._frame_due = True
            self._changed.notify_all()

    # ---- for the thread that trains -----------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait for a change, or for this long. Raise TrainingCancelled if training is to begin again."""
        with self._changed:
            if not self._restart:
                self._changed.wait(seconds)
        self.check()

    def wait_while_paused(self) -> None:
        """Wait until it plays or a page wants something. Raise TrainingCancelled if training is to begin again."""
        with self._changed:
            self._changed.wait_for(lambda: self.playing or self._frame_due or self._tasks or self._restart)
        self.check()

    def check(self) -> None:
        if self._restart:
            raise TrainingCancelled

    def wants_frame(self) -> bool:
        with self._changed:
            due, self._frame_due = self._frame_due, False
            return due

    def next_request(self) -> str | None:
        with self._changed:
            return self._tasks.popleft() if self._tasks else None
