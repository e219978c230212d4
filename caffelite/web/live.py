"""`live`: a callback that shows a training on a local page while it runs."""

from __future__ import annotations

import json
import math
import os
import threading
import time
import webbrowser
from pathlib import Path
from typing import Any

from caffelite.core.arrays import boolean
from caffelite.core.terminal import say
from caffelite.files import safetensors as files
from caffelite.training.callbacks import Training
from caffelite.training.history import History
from caffelite.web.server import Channel, Server
from caffelite.web.watch import Watch, points

SHARE = 0.005  # of the time of a training, that its numbers may take, and as much for its views
SHORTEST = 0.1  # seconds between two updates
LOOK = 0.05  # seconds between two looks at the pages, while the training waits
MOST_EARLIER = 20  # runs of a folder that are shown
NAME = "%Y-%m-%d %H.%M.%S"

_servers: dict[int, Live] = {}  # by the port that was asked for


def live(port: int = 0, open_browser: bool = True, folder: str | os.PathLike | None = None) -> Watching:
    """Return a callback that shows a training on a web page: `model.fit(…, callbacks=[cl.live()])`.

    It prints the page's address when the training begins. The page shows loss and metrics, learning rate, time left,
    weights, gradients and dead units of each layer, and what the model makes of the plane or of images. Its buttons
    pause the training, take a step, go on, stop, change the learning rate, and save the model. The page may be open
    several times, and closed. Then the training goes on, and nothing is computed for it.

    The results have the bits of a training without it. An open page takes at most 1 % of the time of the training. The
    page is for this machine's user only. It ends with the program.

    Parameters
    ----------
    port : int
        The port of the page, 0 for one that is free. Trainings with the same port, one after the other, share a page.
    open_browser : bool
        Whether to open the page in a browser.
    folder : path, optional
        Where the curves of each training are written at its end, a file of JSON each. The page shows the last ones of
        the folder for comparison. Without it, nothing is written. A page can save its curves, and open such files.

    Raises ImportError if the extra `web` is not installed, OSError if another program has the port or the folder can't
    be written, and ValueError for a port outside 0 … 65535.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"live: port: expected an integer of 0 … 65535, got {port!r}")
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Watching(port, boolean("live: open_browser", open_browser), None if folder is None else Path(folder))


class Watching:
    """The callback that `live` returns."""

    def __init__(self, port: int, open_browser: bool, folder: Path | None) -> None:
        self.port, self.open_browser, self.folder = port, open_browser, folder
        self._run: Run | None = None

    @property
    def address(self) -> str | None:
        """The address of the page, None before the first training."""
        page = _servers.get(self.port)
        return None if page is None else page.server.address

    def begin(self, training: Training) -> None:
        page = _servers.get(self.port)
        if page is None:
            page = _servers[self.port] = Live(self.port)
            say(f"caffelite: the training is shown at {page.server.address}", flush=True)
            if self.open_browser:
                webbrowser.open(page.server.address)
        self._run = Run(training, page, self.folder)
        page.begin(self._run)

    def due(self, epochs: int) -> float:
        return epochs + 1 if self._run is not None and self._run.stops else math.inf

    def steps_until_due(self) -> float:
        return math.inf if self._run is None else self._run.steps_until_due()

    def steps_done(self, count: int) -> None:
        if self._run is not None:
            self._run.steps += count

    def between_steps(self) -> None:
        if self._run is not None:
            self._run.between_steps()

    def __call__(self, epoch: int, history: History) -> bool:
        self.between_steps()
        return self._run is not None and self._run.stops

    def end(self) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None


class Run:
    """One training: what its pages see of it, and what they ask of it."""

    def __init__(self, training: Training, page: Live, folder: Path | None) -> None:
        self.training, self.page, self.folder = training, page, folder
        self.name, self.started = time.strftime(NAME), time.perf_counter()
        self.watch = Watch(training)
        self.steps = self.first = 0
        self.state, self.stops = "running", False
        self.until: int | None = None  # the step after which it pauses
        self.waited, self._lock = 0.0, threading.Lock()
        self._due = self._views_due = 0.0  # when the pages get the next numbers and views
        self._rate: float | None = None
        self._saves: list[Channel] = []

    # ---- on the thread of the training --------------------------------------------------------------------------

    def steps_until_due(self) -> float:
        return math.inf if self.until is None else max(1, self.until - self.steps)

    def between_steps(self) -> None:
        """Do what the pages ask, update them, and wait while the training is paused."""
        self._obey()
        if self.until is not None and self.steps >= self.until:
            self.until, self.state = None, "paused"
            self.look()
        self._update()
        began = time.perf_counter()
        while self.state == "paused":
            time.sleep(LOOK)
            self._obey()
            self._update()
        self.waited += time.perf_counter() - began

    def end(self) -> None:
        self._obey()
        epochs = self.training.epochs
        is_done = epochs is None or self.training.history.epochs >= epochs
        self.state = "ended" if is_done else "stopped"
        self.look()
        self._update()
        if self.folder is not None:
            content = json.dumps(self.curves(), allow_nan=False, separators=(",", ":"))
            files.replace(self.folder / f"{self.name}.json", [content.encode()])
        self.page.earlier = self.page.of_folder(self.folder)

    def _obey(self) -> None:
        with self._lock:
            rate, self._rate = self._rate, None
            saves, self._saves = self._saves, []
        if rate is not None and self.training.optimizer is not None:
            now = self.training.optimizer.lr
            if now > 0:  # of a schedule, all rates to come
                self.training.optimizer.scale_lr(rate / now)
            else:
                self.training.optimizer.lr = rate
            self._due = 0.0
        for channel in saves:
            channel.send("model", {"name": f"{self.name}.safetensors", "bytes": self.watch.file()})

    def _update(self) -> None:
        now = time.perf_counter()
        if now < self._due or not self.page.channels:
            return
        self.page.broadcast("progress", self.progress())
        self._due = now + max(SHORTEST, (time.perf_counter() - now) / SHARE)
        if now >= self._views_due:
            began = time.perf_counter()
            for kind, message in self.watch.views():
                self.page.broadcast(kind, message)
            took = 0.0 if self._views_due == 0.0 else time.perf_counter() - began  # the first ones are recorded
            self._views_due = began + max(SHORTEST, took / SHARE)

    # ---- on any thread ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Have the pages get all there is to see at the next chance."""
        self._due = self._views_due = 0.0

    def progress(self) -> dict[str, Any]:
        """The state of the training, and its curves."""
        training, history = self.training, self.training.history
        seconds = time.perf_counter() - self.started - self.waited
        per_second = self.steps / seconds if seconds > 0 else 0.0
        total = self.watch.steps_of(training.epochs)
        left = None if total is None or per_second == 0 else max(total - self.steps, 0) / per_second
        return {
            "name": self.name,
            "state": "stopping" if self.stops and self.state == "running" else self.state,
            "epoch": history.epochs,
            "epochs": training.epochs,
            "step": self.steps,
            "rate": per_second,
            "seconds": seconds,
            "left": left if self.state in ("running", "paused") else None,
            "lr": None if training.optimizer is None else float(training.optimizer.lr),
            "curves": points(history),
        }

    def curves(self) -> dict[str, Any]:
        """What is kept of a training that has ended."""
        history = {
            name: [x if math.isfinite(x) else None for x in values] for name, values in self.training.history.items()
        }
        model, epochs = self.watch.described["model"], list(range(1, self.training.history.epochs + 1))
        return {"caffelite": "run", "name": self.name, "model": model, "epochs": epochs, "history": history}

    def ask(self, channel: Channel, message: dict[str, Any]) -> None:
        """Note what a page asks for. ValueError if there is no such thing."""
        what, self._due = message.get("ask"), 0.0
        if what == "rate":
            rate = message.get("value")
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e6:
                raise ValueError(f"expected a learning rate above 0, got {rate!r}")
            with self._lock:
                self._rate = float(rate)
        elif what == "save":
            with self._lock:
                self._saves.append(channel)
            if self.state in ("ended", "stopped"):
                self._obey()
        elif what in ("pause", "go", "step", "stop"):
            if self.state in ("ended", "stopped"):
                raise ValueError("the training has ended")
            self.until = self.steps + 1 if what == "step" else None
            self.state = "paused" if what == "pause" else "running"
            self.stops = self.stops or what == "stop"
        else:
            raise ValueError(f"there is nothing called {what!r:.40}")


class Live:
    """The room of the page: the last training, and who looks at it."""

    page = "live.html"

    def __init__(self, port: int) -> None:
        self.channels: list[Channel] = []
        self.run: Run | None = None
        self.earlier: list[dict[str, Any]] = []
        self.server = Server(self, port)
        self.server.start()

    def begin(self, run: Run) -> None:
        """Show a training that begins."""
        self.run, self.earlier = run, self.of_folder(run.folder)
        for channel in self.channels:
            self._welcome(channel)

    def of_folder(self, folder: Path | None) -> list[dict[str, Any]]:
        """The curves of the last trainings in a folder. Files that are none are passed over."""
        found = []
        for path in sorted(folder.glob("*.json"))[-MOST_EARLIER:] if folder is not None else []:
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                if content["caffelite"] == "run":
                    found.append(content)
            except (OSError, ValueError, KeyError, TypeError):  # noqa: PERF203
                continue
        return found

    def broadcast(self, kind: str, message: dict[str, Any]) -> None:
        for channel in [*self.channels]:
            channel.send(kind, message)

    def _welcome(self, channel: Channel) -> None:
        run = self.run
        if run is None:
            return
        of_others = [other for other in self.earlier if other.get("name") != run.name]
        channel.send("run", {**run.watch.described, "name": run.name, "earlier": of_others})
        channel.send("progress", run.progress())
        run.look()
        if run.state in ("ended", "stopped"):
            for kind, message in run.watch.last.items():
                channel.send(kind, message)

    # ---- Room ---------------------------------------------------------------------------------------------------

    def joined(self, channel: Channel) -> None:
        self.channels.append(channel)
        self._welcome(channel)

    def received(self, channel: Channel, message: dict[str, Any]) -> None:
        if self.run is None:
            raise ValueError("there is no training")
        self.run.ask(channel, message)

    def left(self, channel: Channel) -> None:
        self.channels.remove(channel)
        if not self.channels and self.run is not None and self.run.state == "paused":
            self.run.state = "running"  # nobody is there to go on
