"""`live`: a callback that shows training on a page while it runs, and lets you pause, continue and stop it.

The training's thread does everything that reads or changes training, in `between_steps`: about every 50 ms, after a
complete step. The server's thread only passes messages on. So a page sees training as it is between two steps, and no
bit of it depends on the page, unless somebody changes the rate or ends it.

With several ranks, rank 0 serves the page, and all ranks obey it.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import webbrowser
from contextlib import suppress
from typing import Any

from caffelite._support.terminal import echo
from caffelite.core.arrays import check_bool
from caffelite.web.cell import CellPage, has_widgets
from caffelite.web.controls import Controls
from caffelite.web.runs import Runs
from caffelite.web.server import Channel, Server
from caffelite.web.status import Status
from caffelite.web.updates import FAST_INTERVAL, SECONDS_AT_END, SECONDS_PAUSED, Updates

MAX_NAME, MAX_NOTE = 80, 500  # characters of the name of a run, and of its note
FLUSH_TIMEOUT = 5.0  # seconds that a training which has ended waits for the page that it has opened


class Live(CellPage):
    """The callback that `live` returns."""

    html = "live.html"

    def __init__(
        self, port: int, open_browser: bool, folder: str | os.PathLike[str] | None, name: str | None, note: str | None
    ) -> None:
        self.port, self.open_browser, self.runs = port, open_browser, Runs(folder)
        self.name, self.note = name or "", note or ""
        self.server: Server | None = None
        self._token: str | None = None
        self._training: Any = None
        self._last_messages: dict[str, dict[str, Any]] = {}  # of a training that has ended, for cells

    def __repr__(self) -> str:
        return f"cl.live(port={self.port})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("cl.live() has a server, and cannot be copied; make another one")

    @property
    def address(self) -> str | None:
        """The address of the page; None before the first training run."""
        return None if self.server is None else self.server.address

    def log(self, name: str, value: Any) -> None:
        """Show a value of your own at the current step: call this in a callback, such as one that runs each epoch.

        Numbers become a curve of this name. An array (height, width) or (channels, height, width) becomes a picture,
        which replaces the last one of this name. It has 1 or 3 channels, and at most 256 pixels per side.

        Raise RuntimeError if no training is running, and TypeError for any other value. Raise ValueError for a name
        that the page uses for a curve of its own, and for more than 32 names.
        """
        if self._training is None:
            raise RuntimeError("live.log: no training runs; call it in a callback of fit")
        self._status.add_value(name, value)

    # ---- of the training, on its thread -------------------------------------------------------------------------

    def begin(self, training: Any) -> None:
        """Serve the page, and print its address."""
        if self._training is not None:
            raise RuntimeError("this cl.live() shows another training now: make one for each")
        self._outer_error = sys.exc_info()[1]
        self._next_update = 0.0
        self._was_opened = False
        self._status = Status(self.runs.new_name() if training.is_main else "", self.name, self.note, training)
        self._updates = Updates(training, self._status, self.runs)
        self._controls = Controls(training, self._status, self._updates)
        if training.is_main:
            self._serve()
        self._training = training

    def _serve(self) -> None:
        self.server = Server(self, self.port, token=self._token)
        self.port, self._token = self.server.port, self.server.token
        self.server.start()
        echo(f"live: {self.server.directions}", flush=True)
        if has_widgets():
            self._show_in_cell()
        elif self.open_browser and _has_screen():
            threading.Thread(target=self._open_page, args=(self.server.address,), daemon=True).start()

    def _show_in_cell(self) -> None:
        """Show the page in the cell that trains, unless a cell shows it already."""
        from IPython.display import display

        is_shown, cell = self._cell is not None, self.open_cell()
        for channel in cell.open_channels():
            self._updates.join(channel)
        if not is_shown:
            display(cell.widget)

    def _open_page(self, address: str) -> None:
        with suppress(Exception):
            self._was_opened = webbrowser.open(address)

    def due(self, epochs: int) -> float:
        """Return the epoch after which Python must call this: the end of the one that a page wants."""
        wanted = 0 if self._training is None else self._controls.until_epoch
        return wanted if wanted > epochs else math.inf

    def steps_until_due(self) -> float:
        wanted = 0 if self._training is None else self._controls.steps
        return wanted or math.inf

    def steps_done(self, count: int) -> None:
        if self._training is not None:
            self._status.steps += count
            self._controls.steps_done(count)

    def __call__(self, epoch: int, history: Any) -> bool:
        """In `caffelite.minimize`, there are no steps, so only this is called."""
        if self._training is None:
            return False
        if self._training.optimizer is not None:
            self._status.add_epochs()
            return False
        self.steps_done(1)
        return bool(self.between_steps())

    def between_steps(self) -> bool | None:
        """Update the page, do what it asks for, and wait while training is paused."""
        if self._training is None:
            return None
        controls, now = self._controls, time.monotonic()
        was_asked = controls.handle_requests()
        if self._training.is_main and (now >= self._next_update or was_asked or controls.is_paused):
            self._next_update = now + FAST_INTERVAL
            self._updates.make(now, SECONDS_PAUSED if controls.is_paused else 0.0)
        if controls.is_paused:
            controls.wait()
        return controls.should_stop

    def end(self) -> None:
        """Show how training ended, and stop the server."""
        if self._training is None:
            return
        error = sys.exc_info()[1]
        try:
            if self._training.is_main:
                self._status.state, self._status.why = self._describe_end(None if error is self._outer_error else error)
                self._updates.make(time.monotonic(), SECONDS_AT_END, is_over=True)
                self._updates.save()
                self._flush_pages()
                self._last_messages = self._updates.messages
        finally:
            if self.server is not None:
                self.server.stop()
            self._training = None
            del self._status, self._updates, self._controls  # they know the training, and so its data

    def _describe_end(self, error: BaseException | None) -> tuple[str, str]:
        if isinstance(error, KeyboardInterrupt):
            return "stopped", "Ctrl-C"
        if error is not None:
            return "failed", f"{type(error).__name__}: {error}"[:500]
        if self._controls.should_stop:
            return "stopped", "from a page"
        done, epochs = self._training.history.epochs, self._training.epochs
        return "finished", "" if epochs is None or done >= epochs else f"after {done} of {epochs} epochs"

    def _flush_pages(self) -> None:
        """Wait until the pages have the last messages. The browser may still be opening a page."""
        end = time.monotonic() + FLUSH_TIMEOUT
        while self._was_opened and not self._updates.had_page and time.monotonic() < end:
            time.sleep(0.02)
        for channel in self._updates.pages:
            channel.wait_until_sent(1.0)

    # ---- of the server and of cells, on their threads -------------------------------------------------------------

    def on_connect(self, channel: Channel) -> None:
        updates = getattr(self, "_updates", None)  # a cell shows the page also when no training runs
        if updates is None:
            for kind, content in self._last_messages.items():
                channel.send(kind, content)
        else:
            updates.join(channel)

    def on_disconnect(self, channel: Channel) -> None:
        if (updates := getattr(self, "_updates", None)) is not None:
            updates.leave(channel)

    def on_receive(self, channel: Channel, message: dict[str, Any]) -> None:
        if message.get("kind") == "run":
            channel.send("run", self.runs.content(message.get("name")))
        elif (controls := getattr(self, "_controls", None)) is None:
            raise ValueError("no training runs")
        else:
            controls.add_request(channel, message.get("kind"), message.get("value"))


def _has_screen() -> bool:
    """Return whether a browser would open a window instead of taking over the terminal."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def live(
    port: int = 0,
    open_browser: bool = True,
    folder: str | os.PathLike[str] | None = None,
    name: str | None = None,
    note: str | None = None,
) -> Live:
    """Return a callback that shows training on a page: `model.fit(…, callbacks=[cl.live()])`.

    It prints the address of the page, which only this machine can reach, and opens it in a browser if there is a
    screen. In a notebook with the package anywidget, it shows the page in the cell instead. The page shows losses and
    metrics, sizes and histograms of weights and gradients, and dead and saturated units. Its pictures depend on the
    data: decision regions if x has two columns, and filters and mistakes if x are images. If the model writes text, the
    page shows the text. The page can pause training, take one step or one epoch, end training, change the learning
    rate, and save the model.

    Parameters
    ----------
    port : int
        The port of the address; 0 picks a free one.
    open_browser : bool
        Whether to open the page.
    folder : path, optional
        Keep each run in a file in this folder, which is created if it does not exist. The page shows all runs in the
        folder side by side. Without it, the page shows the runs of this callback. If the file cannot be written later,
        for example because the disk is full, caffelite gives a RuntimeWarning and training continues.
    name : str, optional
        The name of the run on the page, such as "lr 0.003". Without it, the name is the time at which it began.
    note : str, optional
        A sentence about the run, such as what it tries. The page shows it with the run.

    `live.log(name, value)` adds numbers and pictures of your own.

    Training computes the same bits as without the page, unless somebody uses the page to change the rate or end
    training. The page takes less than 2 % of the time. The server ends with training; an open page stays as it is.

    Needs `pip install starlette uvicorn websockets`. Raise ValueError for a port outside 0 … 65535, for a name that is
    not a string of 1 to 80 characters, and for a note that is not one of 1 to 500. When training begins, raise OSError
    if the port is taken or the folder cannot be written.
    """
    if type(port) is not int or not 0 <= port <= 65535:
        raise ValueError(f"live: port is an integer of 0 … 65535, got {port!r}")
    for argument, words, longest in (("name", name, MAX_NAME), ("note", note, MAX_NOTE)):
        if words is not None and not (isinstance(words, str) and 0 < len(words.strip()) <= longest):
            raise ValueError(f"live: {argument} is a text of 1 to {longest} characters, got {words!r:.100}")
    return Live(port, check_bool("live: open_browser", open_browser), folder, name, note)
