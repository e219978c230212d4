"""`live`: a callback that shows a training on a page while it runs, and lets one pause, go on and stop it.

The training's thread does all that reads or changes the training, in `between_steps`: about every 50 ms, when a whole
number of steps is done. The server's thread only passes messages on. So a page sees a training as it is between two
steps, and no bit of it depends on the page, unless somebody changes the rate or ends it.

What it costs is bounded. Each part of the page (curves, layers, regions …) is made when a page is open, at most ten
times a second, and so seldom that it takes no more than its SHARE of the time. If a part took long, the next one waits.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import time
import webbrowser
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from caffelite.core.arrays import boolean
from caffelite.core.terminal import say
from caffelite.files import safetensors as files
from caffelite.files.state import arrays_of, texts_of
from caffelite.training.team import ONE_PROCESS
from caffelite.web import watch
from caffelite.web.curves import Curve
from caffelite.web.runs import Runs
from caffelite.web.server import Channel, Server, as_bytes

OFTEN, SELDOM = 0.1, 0.4  # seconds between two updates: of numbers and of the plane, and of other pictures
SHARE = 0.0015  # of the time, for each part, twice that for the units
FREE = 0.2  # seconds that a part may take at the end, and while the training is paused
COPYING = 0.05  # seconds that it takes to copy a model, before its units are inspected
EARLY = 0.06  # seconds that a part may take once in the first seconds, before it has had its share
LARGEST = 2**29  # bytes of a model that the page may save
ALONE = 5.0  # seconds after which a training that is paused goes on, if there is no page
PATIENCE = 5.0  # seconds that a training which has ended waits for the page that it has opened

PARTS: dict[str, Callable[[watch.Watched], dict[str, Any] | None]] = {
    "layers": watch.layers,
    "units": watch.units,
    "regions": watch.regions,
    "filters": watch.filters,
    "mistakes": watch.mistakes,
    "text": watch.text,
}
ROWS_OF = {
    "units": 3 * watch.ROWS,
    "regions": watch.GRID**2 / 3,
    "mistakes": watch.IMAGES / 3,
    "text": watch.LETTERS / 3,
}


class Part:
    """A part of the page: when it is due, so that it takes no more than its share of the time."""

    def __init__(self, share: float, often: float) -> None:
        self.share, self.often, self.due = share, often, 0.0
        self.fails = self.is_made = False

    def took(self, seconds: float, now: float) -> None:
        """Note how long it took, without the time for which the thread has waited for others."""
        self.is_made = True
        self.due = now + max(self.often, seconds / self.share)


class Live:
    """The callback that `live` returns."""

    page = "live.html"

    def __init__(self, port: int, open_browser: bool, folder: str | os.PathLike[str] | None) -> None:
        self.port, self.open_browser, self.runs = port, open_browser, Runs(folder)
        self.server: Server | None = None
        self._token: str | None = None
        self._lock = threading.Lock()
        self._training: Any = None
        self._wanted = self._until_epoch = 0  # steps to make, and the epoch up to which to train, while it is paused

    def __repr__(self) -> str:
        return f"cl.live(port={self.port})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("cl.live() has a server, and cannot be copied; make another one")

    @property
    def address(self) -> str | None:
        """The address of the page, None before the first training."""
        return None if self.server is None else self.server.address

    # ---- of the training ----------------------------------------------------------------------------------------

    def begin(self, training: Any) -> None:
        """Serve the page, and print its address."""
        if self._training is not None:
            raise RuntimeError("this cl.live() shows another training now: make one for each")
        if not training.leads:
            return
        name = self.runs.new_name()
        self._begin_watching(training, name)
        try:
            self.server = Server(self, self.port, token=self._token)
        except OSError:
            self._training = None
            raise
        self.port, self._token = self.server.port, self.server.token
        self.server.start()
        self._begun = time.monotonic()
        say(f"live: {self.server.address}", flush=True)
        if self.open_browser and _has_screen():
            threading.Thread(target=self._open, args=(self.server.address,), daemon=True).start()

    def _begin_watching(self, training: Any, name: str) -> None:
        self._training, self.name = training, name
        self._has_controls = training.team in (None, ONE_PROCESS)
        self._watched = watch.Watched(training)
        self._curves: dict[str, Curve] = {name: Curve() for name in training.history}
        self._more = {name: Curve() for name in ("loss of the last steps", "learning rate", "steps per second")}
        self._sizes: dict[str, tuple[Curve, Curve]] = {}
        self._seen = 0  # epochs of the history that the curves have
        self._first_epoch = training.history.epochs
        self._steps = 0
        self._last_look = (0, 0.0, 0, math.nan)  # steps, time, epochs, loss so far
        self._steps_per_second = math.nan
        self._outer_error = sys.exc_info()[1]
        self._begun = self._now = time.monotonic()
        self._waited = 0.0
        self._state, self._why, self._is_over = "running", "", False
        self._pauses, self._wanted, self._until_epoch, self._ends = False, 0, 0, False
        self._next = 0.0
        self._asked: deque[tuple[Channel | None, dict[str, Any]]] = deque(maxlen=64)
        self._wakes = threading.Event()
        self._channels: set[Channel] = set()
        self._was_seen = self._opened = False
        self._unsent: dict[str, bytes] = {}
        self._messages: dict[str, dict[str, Any]] = {}  # the newest of each kind, for pages and files
        self._due: dict[str, Part] = {
            name: Part(
                SHARE * (2 if name == "units" else 1), OFTEN if name in ("status", "layers", "regions") else SELDOM
            )
            for name in ("status", *PARTS, "runs", "file")
        }

    def _open(self, address: str) -> None:
        with suppress(Exception):
            self._opened = webbrowser.open(address)

    def due(self, epochs: int) -> float:
        return self._until_epoch if self._until_epoch > epochs else math.inf

    def steps_until_due(self) -> float:
        return self._wanted if self._wanted > 0 else math.inf

    def steps_done(self, count: int) -> None:
        if self._training is not None:
            self._steps += count
            self._wanted = max(0, self._wanted - count)

    def __call__(self, epoch: int, history: Any) -> bool:
        """In `caffelite.minimize` there are no steps, so this is all that is called."""
        if self._training is None or self._training.optimizer is not None:
            return False
        self._steps += 1
        return bool(self.between_steps())

    def between_steps(self) -> bool | None:
        """Update the page, do what it asks for, and wait while the training is paused."""
        if self._training is None:
            return None
        self._now = time.monotonic()
        if self._now >= self._next or self._asked or self._pauses:
            self._next = self._now + OFTEN
            self._obey()
            self._update(at_once=self._pauses)
            if self._pauses:
                self._wait()
        return self._ends

    def end(self) -> None:
        """Show how it ended, and end the server."""
        if self._training is None:
            return
        error = sys.exc_info()[1]
        try:
            self._now = time.monotonic()
            self._state, self._why = self._end_of(None if error is self._outer_error else error)
            self._is_over = True
            self._update(at_once=True)
            with suppress(OSError):
                self.runs.keep(self.name, self._messages)
            self._say_goodbye()
        finally:
            self._training = self._watched = None  # type: ignore[assignment]
            server, self._channels = self.server, set()
            if server is not None:
                server.stop()

    def _end_of(self, error: BaseException | None) -> tuple[str, str]:
        if isinstance(error, KeyboardInterrupt):
            return "stopped", "Ctrl-C"
        if error is not None:
            return "failed", f"{type(error).__name__}: {error}"[:500]
        if self._ends:
            return "stopped", "from a page"
        done, epochs = self._training.history.epochs, self._training.epochs
        return "finished", "" if epochs is None or done >= epochs else f"after {done} of {epochs} epochs"

    def _say_goodbye(self) -> None:
        """Wait until the pages have got the last messages. A page that the browser opens may still be on its way."""
        end = time.monotonic() + PATIENCE
        while self._opened and not self._was_seen and time.monotonic() < end:
            time.sleep(0.02)
        for channel in [*self._channels]:
            channel.wait_until_sent(1.0)

    # ---- updates ------------------------------------------------------------------------------------------------

    def _update(self, at_once: bool) -> None:
        """Make the parts that are due. At once: also those that are not, if they take little time."""
        self._note_results()
        if not self._channels and not self._is_over and self.runs.folder is None:
            return
        self._make("status", self._status, at_once)
        for name, make in PARTS.items():
            if self._due[name].is_made or self._has_time_for(name, at_once):
                self._make(name, functools.partial(make, self._watched), at_once)
        if self._channels:
            self._make("runs", lambda: {"runs": self.runs.listed(), "now": self.name}, at_once)
        if self.runs.folder is not None and not self._is_over:
            self._make("file", self._keep, False)
        self._send()

    def _has_time_for(self, name: str, at_once: bool) -> bool:
        """Whether a part that was never made has its time. The time of steps on as many rows is a guess of it."""
        rows = getattr(self._training.batches, "batch_size", 32)
        seconds = self._now - self._begun - self._waited
        free = FREE if at_once else SHARE * seconds + min(EARLY, 0.01 * seconds)
        rate = self._rate()
        return name not in ROWS_OF or (rate > 0 and ROWS_OF[name] / rows / rate + (name == "units") * COPYING <= free)

    def _make(self, name: str, make: Callable[[], dict[str, Any] | None], at_once: bool) -> None:
        part = self._due[name]
        if part.fails or not (self._now >= part.due or (at_once and part.due - self._now <= FREE / part.share)):
            return
        clock = time.perf_counter if name in ("runs", "file") else time.thread_time  # a disk makes one wait
        begun = clock()
        try:
            message = make()
        except Exception as error:  # a picture that cannot be drawn is no reason to end a training
            message = {"error": f"{type(error).__name__}: {error}"[:300]}
            part.fails = True
        if message is None:
            part.fails = True
        else:
            self._publish(name, message)
        part.took(clock() - begun, self._now)

    def _publish(self, kind: str, message: dict[str, Any]) -> None:
        message = {"run": self.name, **message}
        with self._lock:
            self._messages[kind] = message
        if self._channels:
            self._unsent[kind] = as_bytes(kind, message)

    def _send(self) -> None:
        """Send what was published. Then the server's thread works while the training replays steps without Python."""
        with self._lock:
            channels = [*self._channels]
        for kind, content in self._unsent.items():
            for channel in channels:
                channel.send(kind, content)
        self._unsent.clear()

    def _keep(self) -> None:
        part = self._due["file"]
        self.runs.keep(self.name, self._messages)
        part.fails = False

    def _note_results(self) -> None:
        """Move the history, and the loss of the last steps, into the curves."""
        training = self._training
        history, epochs = training.history, training.history.epochs
        if epochs > self._seen:
            places = np.arange(self._seen + 1, epochs + 1)
            for name, curve in self._curves.items():
                curve.extend(places, history[name][self._seen : epochs])
            self._seen = epochs
        steps, then, whole, before = self._last_look
        so_far = math.nan if training.loss_so_far is None else training.loss_so_far()
        passed = self._now - self._waited - then
        if then and self._steps > steps and passed > 0:
            self._steps_per_second = (self._steps - steps) / passed
        self._last_look = (self._steps, self._now - self._waited, epochs, so_far)
        if self._steps == steps:
            return
        place, per_epoch = self._place(), self._steps_per_epoch()
        if not math.isnan(so_far) and per_epoch is not None:
            inside = self._steps_inside()
            new = self._steps - steps
            if whole == epochs and 0 < new < inside and not math.isnan(before):
                so_far += (so_far - before) * (inside - new) / new  # of the steps since the last look only
            self._more["loss of the last steps"].extend([place], [so_far])
        if training.optimizer is not None:
            self._more["learning rate"].extend([place], [training.optimizer.lr])
        if not math.isnan(self._steps_per_second):
            self._more["steps per second"].extend([place], [self._steps_per_second])

    def _steps_per_epoch(self) -> float | None:
        done = self._training.history.epochs - self._first_epoch
        return self._training.steps_per_epoch or (self._steps / done if done else None)

    def _steps_inside(self) -> float:
        """How many steps of the current epoch are done."""
        per_epoch = self._steps_per_epoch()
        whole = self._training.history.epochs - self._first_epoch
        return self._steps - whole * (per_epoch or 0)

    def _place(self) -> float:
        """Where the training is, in epochs."""
        history, per_epoch = self._training.history, self._steps_per_epoch()
        if per_epoch is None:
            return float(history.epochs)
        return history.epochs + min(1.0, max(0.0, self._steps_inside() / per_epoch))

    def _rate(self) -> float:
        """Steps a second, without the time that it was paused."""
        seconds = self._now - self._begun - self._waited
        return self._steps / seconds if self._steps and seconds > 0 else math.nan

    def _status(self) -> dict[str, Any]:
        training = self._training
        place, rate, per_epoch = self._place(), self._rate(), self._steps_per_epoch()
        left = math.nan
        if training.epochs is not None and per_epoch is not None and rate > 0:
            left = max(0.0, (training.epochs - place) * per_epoch / rate)
        curves = {name: curve.message() for name, curve in (self._curves | self._more).items() if len(curve)}
        self._publish("curves", {"curves": curves, "sizes": self._size_curves(place)})
        optimizer = training.optimizer
        scheduled = optimizer is not None and optimizer._followed[0] is not None
        return {
            "name": self.name,
            "state": self._state,
            "why": self._why,
            "epoch": training.history.epochs,
            "epochs": training.epochs,
            "place": place,
            "step": self._steps,
            "steps_per_second": self._steps_per_second,
            "seconds": self._now - self._begun - self._waited,
            "left": left,
            "lr": None if optimizer is None else optimizer.lr,
            "scheduled": scheduled,
            "results": {name: values[-1] for name, values in training.history.items() if values},
            "parameters": sum(p.size for p in training.model.parameters()),
            "model": watch.described(training.model),
            "optimizer": type(optimizer).__name__ if optimizer is not None else "L-BFGS",
            "loss": watch.described(training.loss),
            "controls": self._has_controls and optimizer is not None,
        }

    def _size_curves(self, place: float) -> dict[str, Any]:
        """The sizes of weights and gradients over the training, of parameters with two or more axes."""
        layers = self._messages.get("layers")
        if layers is not None and "rows" in layers and layers is not getattr(self, "_last_layers", None):
            self._last_layers = layers
            for row in [row for row in layers["rows"] if len(row["shape"]) > 1][:12]:
                weights, gradients = self._sizes.setdefault(row["name"], (Curve(), Curve()))
                weights.extend([place], [row["size"]])
                gradients.extend([place], [row["gradient"]])
        return {name: {"weight": w.message(), "gradient": g.message()} for name, (w, g) in self._sizes.items()}

    # ---- what pages ask for -------------------------------------------------------------------------------------

    def _obey(self) -> None:
        """Do what pages have asked for. It runs in the training's thread, between two steps."""
        while self._asked:
            channel, message = self._asked.popleft()
            kind = message["kind"]
            try:
                if kind == "pause":
                    self._pauses, self._wanted, self._until_epoch = True, 0, 0
                elif kind == "go":
                    self._pauses, self._wanted, self._until_epoch = False, 0, 0
                elif kind == "step":
                    self._pauses, self._wanted = True, 1
                elif kind == "epoch":
                    self._pauses, self._until_epoch = True, self._training.history.epochs + 1
                elif kind == "stop":
                    self._ends = True
                elif kind == "rate":
                    self._set_rate(message["value"])
                elif kind == "save" and channel is not None:
                    channel.send("saved", self._saved())
                elif kind == "kernels":
                    self._time_kernels()
            except Exception as error:  # the page is told so, and the training goes on
                if channel is not None:
                    channel.send("refused", {"why": f"{error}" or type(error).__name__})
        state = "paused" if self._pauses else "running"
        if state != self._state:
            self._state = state
            self._due["status"].due = 0.0

    def _set_rate(self, rate: float) -> None:
        optimizer = self._training.optimizer
        if len(optimizer.groups) > 1 or optimizer._followed[0] is not None:
            if optimizer.lr == 0:
                raise ValueError("the rate is 0 now, so it cannot be multiplied")
            optimizer.scale_lr(rate / optimizer.lr)  # groups and schedules keep their form
        else:
            optimizer.lr = rate

    def _saved(self) -> dict[str, Any]:
        model = self._training.model
        arrays = arrays_of(model)
        if sum(array.nbytes for array in arrays.values()) > LARGEST:
            raise ValueError("the model is too large for the page: use cl.callbacks.Checkpoint")
        name = f"model-{self.name}-epoch-{self._training.history.epochs}.safetensors"
        parts = [memoryview(part).cast("B") for part in files.content(name, arrays, texts_of(model)) if len(part)]
        return {"name": name, "content": np.frombuffer(b"".join(parts), np.uint8)}

    def _time_kernels(self) -> None:
        begun = time.monotonic()
        self._publish("kernels", watch.kernels(self._watched))
        self._send()
        self._note_wait(time.monotonic() - begun)

    def _note_wait(self, seconds: float) -> None:
        self._waited += seconds
        if self._training.waited is not None:
            self._training.waited(seconds)

    def _wait(self) -> None:
        """Wait until pages want the training to go on."""
        done = self._training.epochs is not None and self._training.history.epochs >= self._training.epochs
        begun = seen = time.monotonic()
        told = len(self._channels), 0
        try:
            while self._pauses and not self._ends and not done:
                if self._wanted > 0 or self._until_epoch > self._training.history.epochs:
                    break
                self._wakes.wait(0.25)
                self._wakes.clear()
                self._now = time.monotonic()
                if self._channels:
                    seen = self._now
                elif self._now - seen > ALONE:
                    self._asked.append((None, {"kind": "go"}))
                now_told = len(self._channels), len(self._asked)
                self._obey()
                if now_told != told:
                    self._note_wait(self._now - begun)
                    begun, told = self._now, now_told
                    self._update(at_once=True)
        finally:
            self._note_wait(time.monotonic() - begun)
            self._now = time.monotonic()
            self._next = 0.0

    # ---- of the server, on its thread ---------------------------------------------------------------------------

    def joined(self, channel: Channel) -> None:
        with self._lock:
            self._channels.add(channel)
            messages = [*self._messages.items()]
        for kind, message in messages:
            channel.send(kind, message)
        self._was_seen = True
        self._wakes.set()

    def left(self, channel: Channel) -> None:
        with self._lock:
            self._channels.discard(channel)

    def received(self, channel: Channel, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "run":
            channel.send("run", self.runs.content(message.get("name")))
            return
        if kind not in ("pause", "go", "step", "epoch", "stop", "save", "rate", "kernels"):
            raise ValueError(f"the page asked for {kind!r:.80}, which is unknown")
        if not self._has_controls and kind != "save":
            raise ValueError("several processes make each step together: stop them with Ctrl-C")
        if kind == "rate":
            message = {"kind": kind, "value": _as_rate(message.get("value"))}
        self._asked.append((channel, message))
        self._wakes.set()


def _as_rate(value: Any) -> float:
    """The learning rate that a page has sent. Raises ValueError if it is not a possible one."""
    if type(value) not in (int, float) or not 0 <= value < 1e9:
        raise ValueError(f"a learning rate is a number, 0 or more, got {value!r:.80}")
    return float(value)


def _has_screen() -> bool:
    """Whether a browser would open a window, and not take over the terminal."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def live(port: int = 0, open_browser: bool = True, folder: str | os.PathLike[str] | None = None) -> Live:
    """Return a callback that shows the training on a page: `model.fit(…, callbacks=[cl.live()])`.

    It prints the address of the page, which only this machine can reach, and opens it in a browser if there is a
    screen. The page shows losses and metrics, sizes of weights and gradients, dead and saturated units, and pictures
    that suit the data: decision regions if x has two columns, filters and mistakes if x are images, text if the model
    writes text. It can pause the training, make one step or one epoch, end it, change the rate, and save the model.

    Parameters
    ----------
    port : int
        The port of the address; 0 is one that is free.
    open_browser : bool
        Whether to open the page.
    folder : path, optional
        Keep each run in a file of this folder, which is made if it does not exist. The page shows all runs of the
        folder side by side. Without it, the page shows the runs of this callback.

    The training computes the same bits as without it, unless a page changes the rate or ends the training. It takes
    less than 2 % of the time. The server ends with the training; a page that is open keeps what it shows.

    Needs the extra `web`: `pip install 'caffelite[web]'`. Raises ValueError for a port outside 0 … 65535. When the
    training begins, it raises OSError if the port is taken, or if the folder cannot be written.
    """
    if type(port) is not int or not 0 <= port <= 65535:
        raise ValueError(f"live: port is an integer of 0 … 65535, got {port!r}")
    return Live(port, boolean("live: open_browser", open_browser), folder)
