"""The room of the playground's page: it asks for settings and steps, and gets frames."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from caffelite.web.playground import config as choices
from caffelite.web.playground.code import made, program_of
from caffelite.web.playground.config import TABLE, Setting
from caffelite.web.playground.data import DATA
from caffelite.web.playground.engine import Engine
from caffelite.web.playground.loops import loop_of, parts
from caffelite.web.playground.requests import AS_FAST
from caffelite.web.playground.table import Table
from caffelite.web.playground.view import MOST_HELD
from caffelite.web.server import Channel, Server, as_bytes

MOST_LETTERS = 100  # of a kernel's name
CHOICES = {
    "data": list(DATA),
    "activation": list(choices.ACTIVATIONS),
    "norm": list(choices.NORMS),
    "optimizer": list(choices.OPTIMIZERS),
    "schedule": list(choices.SCHEDULES),
}


class Playground:
    """The page, its server and its engine. It computes only while somebody looks."""

    page = "playground.html"

    def __init__(self, port: int = 0) -> None:
        self.channels: list[Channel] = []
        self.server = Server(self, port)
        self.engine = Engine(Setting(), self._show)
        self.table: Table | None = None  # that was sent last
        self.by: Any = None  # the page that has set it: its name and number, if it sends them
        self.server.start()

    def stop(self) -> None:
        """End the training and the server."""
        self.engine.stop()
        self.server.stop()

    def _show(self, kind: str, message: dict[str, Any]) -> None:
        content = as_bytes(kind, message)
        for channel in [*self.channels]:
            channel.send(kind, content)

    def _described(self, names: dict[str, Any]) -> dict[str, Any]:
        """The description of the setting for a page. `names` has the setting's data and model; see `made`."""
        setting, table = self.engine.setting, self.table
        (x, y), (held_x, held_y) = (names["x"], names["y"]), names["held_out"]
        shown = slice(None if setting.is_plane else MOST_HELD)
        return {
            "setting": setting.described(),
            "by": self.by,
            "speed": None if self.engine.speed == AS_FAST else self.engine.speed,
            "choices": {
                **CHOICES,
                "data": [*DATA, *[TABLE] * (table is not None)],
                "loss": list(setting.losses),
                "target": [] if table is None else table.columns,
            },
            "limits": {"layers": choices.MOST_LAYERS, "units": choices.MOST_UNITS, "points": setting.rows},
            "table": None if table is None else {"name": table.name, "rows": table.rows, "left_out": table.left_out},
            "inputs": setting.table.inputs if setting.table else setting.inputs,
            "picture": "plane" if setting.is_plane else "image" if setting.is_image else "bars",
            "reach": setting.reach,
            "classes": setting.is_classes,
            "labels": setting.table.labels if setting.table and setting.is_classes else None,
            "outputs": setting.outputs,
            "steps": setting.steps,
            "x": x if setting.is_plane else np.empty(0),
            "y": np.ravel(y).astype(np.float64) if setting.is_plane else np.empty(0),
            "held_x": held_x[shown] if setting.is_plane or setting.is_image else np.empty(0),
            "held_y": np.ravel(held_y)[shown].astype(np.float64),
            "parameters": sum(p.data.size for p in names["model"].parameters()),
        }

    def _send_loop(self, channel: Channel, kernel: Any) -> None:
        """Send the lines and the machine instructions of a kernel, when they are found."""
        if not isinstance(kernel, str) or len(kernel) > MOST_LETTERS:
            raise ValueError(f"expected the name of a kernel, got {kernel!r:.40}")
        names = parts(kernel)  # ValueError if there is none

        def find() -> None:
            channel.send("loop", {"kernel": kernel, "loops": [loop_of(name) for name in names]})

        threading.Thread(target=find, daemon=True, name="caffelite.playground.loop").start()

    def _begin(self, setting: Setting, by: Any) -> None:
        names = made(setting)  # which raises ValueError for what does not fit together
        self.by = by if len(str(by)) < 100 else None
        self.table = setting.table or self.table
        self.engine.begin(setting)
        self._show("setting", self._described(names))

    # ---- Room ---------------------------------------------------------------------------------------------------

    def joined(self, channel: Channel) -> None:
        self.channels.append(channel)
        channel.send("setting", self._described(made(self.engine.setting)))
        self.engine.look()

    def left(self, channel: Channel) -> None:
        self.channels.remove(channel)
        if not self.channels:
            self.engine.play(False)

    def received(self, channel: Channel, message: dict[str, Any]) -> None:
        what, engine = message.get("ask"), self.engine
        if what == "set":
            self._begin(Setting.of(message.get("setting"), self.table), message.get("by"))
        elif what == "table":
            table = Table(message.get("name"), message.get("text"))
            given = engine.setting.described() | {"data": TABLE, "target": None, "points": choices.MOST_POINTS}
            self._begin(Setting.of(given, table), None)
        elif what == "again":
            engine.begin(engine.setting)
        elif what in ("play", "pause"):
            engine.play(what == "play")
        elif what == "step":
            engine.take(1)
        elif what == "epoch":
            engine.take(engine.setting.steps - engine.steps % engine.setting.steps)
        elif what == "speed":
            engine.at_speed(_speed(message.get("value")))
        elif what == "follow":
            engine.follow(_place(message.get("place"), engine.setting))
        elif what == "kernels":
            engine.show_kernels()
        elif what == "kernel":
            engine.run_kernel()
        elif what == "code":
            epochs = max(1, math.ceil(engine.steps / engine.setting.steps))
            channel.send("code", {"text": program_of(engine.setting, epochs), "epochs": epochs})
        elif what == "loop":
            self._send_loop(channel, message.get("kernel"))
        else:
            raise ValueError(f"there is nothing called {what!r:.40}")


def _place(place: Any, setting: Setting) -> tuple[int, int, int] | None:
    """The place of a weight. ValueError if the net has none there."""
    if place is None:
        return None
    sizes = [setting.inputs, *setting.layers, setting.outputs]
    if not isinstance(place, list) or len(place) != 3 or any(type(i) is not int for i in place):
        raise ValueError(f"expected a layer and two units, got {place!r:.40}")
    layer, source, target = place
    if not 0 <= layer < len(sizes) - 1 or not (0 <= source < sizes[layer] and 0 <= target < sizes[layer + 1]):
        raise ValueError(f"there is no weight {place}")
    return layer, source, target


def _speed(value: Any) -> float:
    if value is None:
        return AS_FAST
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"expected steps a second, got {value!r:.40}")
    return float(value)
