"""The room of the playground's page: it asks for settings and steps, and gets frames."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite.web.playground import setting as choices
from caffelite.web.playground.data import DATA
from caffelite.web.playground.engine import AS_FAST, RANGE, Engine
from caffelite.web.playground.program import made, program_of
from caffelite.web.playground.setting import Setting
from caffelite.web.server import Channel, Server

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
        self.by: Any = None  # who has set it: the page's name and number, which it may send
        self.server.start()

    def stop(self) -> None:
        """End the training and the server."""
        self.engine.stop()
        self.server.stop()

    def _show(self, frame: dict[str, Any]) -> None:
        for channel in [*self.channels]:
            channel.send("frame", frame)

    def _described(self) -> dict[str, Any]:
        setting = self.engine.setting
        names = made(setting)
        return {
            "setting": setting.described(),
            "by": self.by,
            "choices": CHOICES,
            "limits": {"layers": choices.MOST_LAYERS, "units": choices.MOST_UNITS, "range": RANGE},
            "classes": setting.is_classes,
            "outputs": setting.outputs,
            "steps": setting.steps,
            "x": names["x"],
            "y": np.ravel(names["y"]).astype(np.float64),
            "held_x": names["held_out"][0],
            "held_y": np.ravel(names["held_out"][1]).astype(np.float64),
            "parameters": sum(p.data.size for p in names["model"].parameters()),
        }

    def _tell(self) -> None:
        """Tell all pages the setting."""
        described = self._described()
        for channel in [*self.channels]:
            channel.send("setting", described)

    # ---- Room ---------------------------------------------------------------------------------------------------

    def joined(self, channel: Channel) -> None:
        self.channels.append(channel)
        channel.send("setting", self._described())
        self.engine.look()

    def left(self, channel: Channel) -> None:
        self.channels.remove(channel)
        if not self.channels:
            self.engine.play(False)

    def received(self, channel: Channel, message: dict[str, Any]) -> None:
        what, engine = message.get("ask"), self.engine
        if what == "set":
            setting = Setting.of(message.get("setting"))
            made(setting)  # which raises ValueError for what does not fit together
            self.by = message.get("by") if len(str(message.get("by"))) < 100 else None
            engine.begin(setting)
            self._tell()
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
        elif what == "program":
            epochs = max(1, math.ceil(engine.steps / engine.setting.steps))
            channel.send("program", {"text": program_of(engine.setting, epochs), "epochs": epochs})
        else:
            raise ValueError(f"there is nothing called {what!r:.40}")


def _place(place: Any, setting: Setting) -> tuple[int, int, int] | None:
    """The place of a weight. ValueError if the net has none there."""
    if place is None:
        return None
    sizes = [2, *setting.layers, setting.outputs]
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
