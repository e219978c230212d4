"""Updates: when to make which part of the page, and where to send it.

The page may take only a small share of the time. Each part (curves, layers, regions …) is made only when a page is
open, and at most ten times a second. It is made rarely enough to take no more than its SHARE of the time. If a part
took long, the next one waits. The first time, a part may take more, so that the page of a slow run does not stay empty.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from caffelite._support.warnings import warn
from caffelite.web import snapshots, text
from caffelite.web.histograms import Histograms
from caffelite.web.runs import STALE_AFTER, Runs
from caffelite.web.server import Channel, encode_message
from caffelite.web.status import Status

# Seconds between two updates: of numbers and of the plane, and of other pictures.
FAST_INTERVAL, SLOW_INTERVAL = 0.1, 0.4
TIME_SHARE = 0.0015  # of the time, for each part
TEXT_SHARE = 3 * TIME_SHARE  # for texts; a model that writes them has no plane, images or classes
FIRST_SHARE = 0.005  # of the time until then, for a part that was never made
COPY_SECONDS = 0.005  # seconds that it takes to copy a model, before its units are inspected
SECONDS_AT_END, SECONDS_PAUSED = 0.3, 1.0  # seconds that a part may take at the end, and while the training is paused

PARTS: dict[str, Callable[[snapshots.TrainingView], dict[str, Any] | None]] = {
    "layers": snapshots.layers,
    "units": snapshots.units,
    "regions": snapshots.regions,
    "filters": snapshots.filters,
    "mistakes": snapshots.mistakes,
    "attention": text.attention,
}
STATEFUL_PARTS = ("text", "histograms")  # parts that add to what they have made before
PREDICTIONS = ("regions", "mistakes", "text", "attention")


class Part:
    """A part of the page, and the time when it is due. It takes no more than its share of the time."""

    def __init__(self, share: float, min_interval: float, max_interval: float = math.inf) -> None:
        self.share, self.min_interval, self.max_interval, self.due = share, min_interval, max_interval, 0.0
        self.has_failed = self.is_made = False

    def record_time(self, seconds: float, now: float) -> None:
        """Record how long it took, without the time for which the thread has waited for others."""
        self.is_made = True
        self.due = now + min(max(self.min_interval, seconds / self.share), self.max_interval)


class Updates:
    """The parts of the page of one training run: makes those that are due, and sends them to all open pages.

    The training's thread makes and sends them. The server's thread adds and removes pages.
    """

    def __init__(self, training: Any, status: Status, runs: Runs) -> None:
        self.training, self.status, self.runs = training, status, runs
        self.view = snapshots.TrainingView(training)
        self.text_sampler, self.histograms = text.TextSampler(self.view), Histograms(self.view)
        self.had_page = False  # whether a page has ever been open
        self.has_warned = False  # that the run is not kept
        self.wake_event = threading.Event()  # set when a page joins or asks for something
        self._lock = threading.Lock()
        self._channels: set[Channel] = set()
        self._messages: dict[str, dict[str, Any]] = {}  # the newest of each kind, for new pages and for the file
        self._unsent: dict[str, bytes] = {}
        self._rows_by_part = {  # rows of the training that take as long, by and large
            "units": 3 * snapshots.num_inspected_rows(self.view),
            "regions": snapshots.GRID**2 / 3,
            "mistakes": snapshots.CLASS_ROWS / 3,
            "attention": 3.0,
        }
        frequent = ("status", "layers", "regions", "text")
        self._parts = {
            name: Part(TIME_SHARE, FAST_INTERVAL if name in frequent else SLOW_INTERVAL)
            for name in ("status", *PARTS, *STATEFUL_PARTS, "runs")
        }
        self._parts["text"].share = TEXT_SHARE
        # Without a longest interval, the run would seem to have stopped.
        self._parts["file"] = Part(TIME_SHARE, SLOW_INTERVAL, max_interval=STALE_AFTER / 2)

    # ---- pages, on the server's thread --------------------------------------------------------------------------

    def join(self, channel: Channel) -> None:
        """Send all parts to a new page."""
        with self._lock:
            self._channels.add(channel)
        for kind, message in self.messages.items():
            channel.send(kind, message)
        self.had_page = True
        self.wake_event.set()

    def leave(self, channel: Channel) -> None:
        with self._lock:
            self._channels.discard(channel)

    @property
    def messages(self) -> dict[str, dict[str, Any]]:
        """The newest message of each kind."""
        with self._lock:
            return dict(self._messages)

    @property
    def pages(self) -> list[Channel]:
        """The pages that are open."""
        with self._lock:
            return [*self._channels]

    # ---- parts, on the training's thread ------------------------------------------------------------------------

    def make(self, now: float, budget: float = 0.0, is_over: bool = False) -> None:
        """Make and send the parts that are due. Make the others too if each takes at most `budget` seconds.

        If a page asks for something in the meantime, the others wait.
        """
        self.status.update(now)
        is_kept = self.runs.folder is not None
        if not self._channels and not is_over and not is_kept:
            return
        self._make("status", self._make_status, now, budget)
        self.send()
        for name in (*PARTS, *STATEFUL_PARTS):
            if self.wake_event.is_set() and not is_over:
                budget = 0.0
            if self._parts[name].is_made or self._has_time_for(name, budget):
                self._make(name, functools.partial(self._make_picture, name, budget), now, budget)
        if self._channels:
            self._make("runs", lambda: {"runs": self.runs.list_runs(), "now": self.status.name}, now, budget)
        if is_kept and not is_over:
            self._make("file", self._save_file, now)
        self.send()

    def make_status_due(self) -> None:
        """Do not wait until the numbers are due, because the state has changed."""
        self._parts["status"].due = 0.0

    def _has_time_for(self, name: str, budget: float) -> bool:
        """Return whether there is time for a part that was never made. Steps on as many rows give an estimate."""
        rows, rate = self._rows_by_part.get(name), self.status.rate
        if rows is None:
            return True
        steps = rows / getattr(self.training.batches, "batch_size", 32)
        guess = steps / rate + COPY_SECONDS  # NaN before the first step
        return guess <= max(budget, FIRST_SHARE * self.status.seconds)

    def _make(self, name: str, make: Callable[[], dict[str, Any] | None], now: float, budget: float = 0.0) -> None:
        part = self._parts[name]
        if part.has_failed or not (now >= part.due or part.due - now <= budget / part.share):
            return
        clock = time.perf_counter if name in ("runs", "file") else time.thread_time  # a disk makes one wait
        begun = clock()
        try:
            message = make()
        except Exception as error:  # an error in a picture must not end a training
            message = {"error": f"{type(error).__name__}: {error}"[:300]}
            part.has_failed = True
        if message is None:
            part.has_failed = True
        else:
            self.publish(name, message)
        if name == "layers" and message is not None:
            self.status.add_sizes(message)
        part.record_time(clock() - begun, now)

    def _make_status(self) -> dict[str, Any]:
        self.publish("curves", self.status.curves())
        if self.status.log.has_news:
            self.publish("pictures", self.status.log.message())
        return self.status.numbers()

    def _make_picture(self, name: str, budget: float) -> dict[str, Any] | None:
        """Read a picture. Predictions use the averaged weights, if there are any, as held-out results do."""
        with self.training.averaged_weights() if name in PREDICTIONS else nullcontext():
            self.view.place = self.status.place
            if name == "histograms":
                return self.histograms.message()
            if name == "text":
                return self.text_sampler.write(max(budget, text.WRITING_SECONDS))
            return PARTS[name](self.view)

    def _save_file(self) -> dict[str, Any]:
        error = self.save()
        return {"path": str(self.runs.path(self.status.name))} if error is None else {"error": str(error)}

    def publish(self, kind: str, message: dict[str, Any]) -> None:
        """Keep a message for new pages and for the file. `send` sends it."""
        message = {"run": self.status.name, **message}
        with self._lock:
            self._messages[kind] = message
        if self._channels:
            self._unsent[kind] = encode_message(kind, message)

    def send(self) -> None:
        """Send what was published. The server's thread then works while training replays steps without Python."""
        for kind, content in self._unsent.items():
            for channel in self.pages:
                channel.send(kind, content)
        self._unsent.clear()

    def save(self) -> OSError | None:
        """Keep the run as it is now. If it cannot be written, return the error, and warn of the first one."""
        try:
            self.runs.save(self.status.name, self._messages)
        except OSError as error:
            if not self.has_warned:
                self.has_warned = True
                warn(f"cl.live: the run is not kept: {error}", RuntimeWarning)
            return error
        return None
