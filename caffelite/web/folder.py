"""FolderPage: a page that shows the runs in a folder, without training."""

from __future__ import annotations

import os
from typing import Any

from caffelite.web.runs import Runs
from caffelite.web.server import Channel, Server


class FolderPage:
    """Serves the page of the runs that `cl.live(folder=…)` has written to a folder, until `stop`.

    The page asks for the list again now and then, so it also shows runs that another program trains meanwhile.

    Raise OSError if the folder cannot be read or another program has the port, and ValueError if it has no runs.
    """

    html = "live.html"

    def __init__(self, folder: str | os.PathLike[str], port: int = 0) -> None:
        os.listdir(folder)
        self.runs = Runs(folder)
        if not self.runs.list_runs():
            raise ValueError(f"{os.fspath(folder)} has no runs: cl.live(folder=…) writes a file NAME.run for each")
        self.server = Server(self, port)
        self.server.start()

    def stop(self) -> None:
        """Stop the server."""
        self.server.stop()

    # ---- of the server, on its thread ---------------------------------------------------------------------------

    def on_connect(self, channel: Channel) -> None:
        self._send_list(channel)

    def on_receive(self, channel: Channel, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "runs":
            self._send_list(channel)
        elif kind == "run":
            channel.send("run", self.runs.content(message.get("name")))
        else:
            raise ValueError(f"there is no training here, so the page cannot ask for {kind!r:.80}")

    def on_disconnect(self, channel: Channel) -> None:
        pass

    def _send_list(self, channel: Channel) -> None:
        channel.send("runs", {"runs": self.runs.list_runs(), "now": None})
