"""The playground's page: it asks for settings and steps, and gets frames."""

from __future__ import annotations

import functools
import math
import threading
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

import numpy as np

from caffelite.web.cell import CellPage
from caffelite.web.playground import config as choices
from caffelite.web.playground.code import build_objects, program_code
from caffelite.web.playground.config import TABLE, Setting
from caffelite.web.playground.data import DATA, digits
from caffelite.web.playground.engine import Engine
from caffelite.web.playground.loops import describe_loop, split_fused_name
from caffelite.web.playground.names import LETTERS, names
from caffelite.web.playground.names_view import check_text
from caffelite.web.playground.requests import FULL_SPEED
from caffelite.web.playground.table import UploadedTable
from caffelite.web.playground.view import MAX_HELD_OUT, thumbnails
from caffelite.web.server import Channel, Server, encode_message

MAX_NAME = 100  # of a kernel's name
PICTURES = {digits.__name__: "image", names.__name__: "text"}  # of data that are not in the plane


@functools.cache
def playground() -> Playground:
    """Return the playground: small nets that learn to tell points of the plane apart, while you watch and change them.

    In a notebook, it appears in the cell. Elsewhere, its text has the address of its page, which only this machine can
    reach. A program has one playground, and all its pages show the same net.

    Needs `pip install starlette uvicorn websockets`, and in a notebook `pip install anywidget`.
    """
    return Playground()


class Playground(CellPage):
    """The page, its server and its engine. It computes only while somebody is looking."""

    html = "playground.html"

    def __init__(self, port: int = 0) -> None:
        self.channels: list[Channel] = []
        self.server = Server(self, port)
        self.engine = Engine(Setting(), self._show)
        self.table: UploadedTable | None = None  # that was sent last
        self.changed_by: Any = None  # the page that has set it: its name and number, if it sends them
        self.server.start()

    def __repr__(self) -> str:
        return f"The playground is at {self.server.directions}"

    def stop(self) -> None:
        """Stop training and the server."""
        self.engine.stop()
        self.server.stop()

    def _show(self, kind: str, message: dict[str, Any]) -> None:
        content = encode_message(kind, message)
        for channel in [*self.channels]:
            channel.send(kind, content)

    def _describe(self, objects: dict[str, Any]) -> dict[str, Any]:
        """Return the description of the setting for a page. `objects` has its data and model; see `build_objects`."""
        setting, table = self.engine.setting, self.table
        (x, y), (held_x, held_y) = (objects["x"], objects["y"]), objects["held_out"]
        if setting.has_features:  # pictures show the points
            held_x, x = np.split(objects["points"], [len(held_x)])
        shown = slice(None if setting.is_plane else MAX_HELD_OUT)
        letters = list(LETTERS) if setting.is_text else None
        inputs = setting.table.inputs if setting.table else setting.features if setting.is_plane else None
        return {
            "setting": setting.to_message(),
            "by": self.changed_by,
            "site": find_site(),
            "speed": None if self.engine.speed == FULL_SPEED else self.engine.speed,
            "choices": {
                **choices.CHOICES,
                "data": [*DATA, *[TABLE] * (table is not None)],
                "loss": list(setting.losses),
                "target": [] if table is None else table.column_names,
            },
            "limits": {
                "layers": choices.MAX_LAYERS,
                "units": choices.MAX_UNITS,
                "points": setting.rows,
                "features": list(choices.FEATURES) if setting.is_plane and setting.table is None else [],
            },
            "table": None if table is None else {"name": table.name, "rows": table.rows, "left_out": table.left_out},
            "inputs": letters or inputs or setting.inputs,
            "picture": "plane" if setting.is_plane else PICTURES.get(setting.data, "bars"),
            "reach": setting.reach,
            "classes": setting.is_classification,
            "labels": setting.table.labels if setting.table and setting.is_classification else letters,
            "outputs": setting.outputs,
            "steps": setting.steps,
            "x": x if setting.is_plane else np.empty(0),
            "y": np.ravel(y).astype(np.float64) if setting.is_plane else np.empty(0),
            "held_x": held_x[shown] if setting.is_plane or setting.is_image else np.empty(0),
            "held_y": np.empty(0) if setting.is_text else np.ravel(held_y)[shown].astype(np.float64),
            "parameters": sum(p.data.size for p in objects["model"].parameters()),
        }

    def _send_loop(self, channel: Channel, kernel: Any) -> None:
        """Send the lines and the machine instructions of a kernel, once they are found."""
        if not isinstance(kernel, str) or len(kernel) > MAX_NAME:
            raise ValueError(f"expected the name of a kernel, got {kernel!r:.40}")
        names = split_fused_name(kernel)  # ValueError if there is none

        def find() -> None:
            channel.send("loop", {"kernel": kernel, "loops": [describe_loop(name) for name in names]})

        threading.Thread(target=find, daemon=True, name="caffelite.playground.loop").start()

    def _begin(self, setting: Setting, by: Any) -> None:
        objects = build_objects(setting)  # which raises ValueError for what does not fit together
        self.changed_by = by if len(str(by)) < 100 else None
        self.table = setting.table or self.table
        self.engine.begin(setting)
        self._show("setting", self._describe(objects))

    # ---- Page ---------------------------------------------------------------------------------------------------

    def on_connect(self, channel: Channel) -> None:
        self.channels.append(channel)
        channel.send("thumbnails", {"data": thumbnails()})
        channel.send("setting", self._describe(build_objects(self.engine.setting)))
        self.engine.request_frame()

    def on_disconnect(self, channel: Channel) -> None:
        self.channels.remove(channel)
        if not self.channels:
            self.engine.play(False)

    def on_receive(self, channel: Channel, message: dict[str, Any]) -> None:
        request, engine = message.get("ask"), self.engine
        if request == "set":
            self._begin(Setting.from_message(message.get("setting"), self.table), message.get("by"))
        elif request == "table":
            table = UploadedTable(message.get("name"), message.get("text"))
            choice = engine.setting.to_message() | {"data": TABLE, "target": None, "points": choices.MAX_POINTS}
            self._begin(Setting.from_message(choice, table), None)
        elif request == "again":
            engine.begin(engine.setting)
        elif request in ("play", "pause"):
            engine.play(request == "play")
        elif request == "step":
            engine.take_steps(1)
        elif request == "epoch":
            engine.take_steps(engine.setting.steps - engine.steps % engine.setting.steps)
        elif request == "speed":
            engine.set_speed(_check_speed(message.get("value")))
        elif request == "follow":
            engine.follow(_check_place(message.get("place"), engine.setting))
        elif request == "weight":
            if engine.problem is not None:
                raise ValueError("the training has ended, so no weight can be set")
            engine.set_weight(_check_weight(message.get("value")))
        elif request == "read":
            engine.read(*check_text(message.get("text"), message.get("draw")))
        elif request == "kernels":
            engine.show_kernels()
        elif request == "kernel":
            engine.run_kernel()
        elif request == "code":
            epochs = max(1, math.ceil(engine.steps / engine.setting.steps))
            text = program_code(engine.setting, epochs, engine.has_edits)
            channel.send("code", {"text": text, "epochs": epochs})
        elif request == "loop":
            self._send_loop(channel, message.get("kernel"))
        else:
            raise ValueError(f"there is nothing called {request!r:.40}")


@functools.cache
def find_site() -> str | None:
    """Return the address of the project's site, which also has a playground; None if the package names none."""
    try:
        urls = [url.partition(", ") for url in metadata("caffelite").get_all("Project-URL") or ()]
    except PackageNotFoundError:  # the sources are used as they are
        return None
    return next((address.rstrip("/") + "/" for name, _, address in urls if name == "Documentation"), None)


def _check_place(place: Any, setting: Setting) -> tuple[int, int, int] | None:
    """Return the place of a weight. ValueError if the net has none there."""
    if place is None:
        return None
    if setting.is_text:
        raise ValueError("the weights of a recurrent net cannot be followed")
    sizes = [setting.inputs, *setting.layers, setting.outputs]
    if not isinstance(place, list) or len(place) != 3 or any(type(i) is not int for i in place):
        raise ValueError(f"expected a layer and two units, got {place!r:.40}")
    layer, source, target = place
    if not 0 <= layer < len(sizes) - 1 or not (0 <= source < sizes[layer] and 0 <= target < sizes[layer + 1]):
        raise ValueError(f"there is no weight {place}")
    return layer, source, target


def _check_weight(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= choices.MAX_WEIGHT:
        raise ValueError(f"expected a weight from -{choices.MAX_WEIGHT} to {choices.MAX_WEIGHT}, got {value!r:.40}")
    return float(value)


def _check_speed(value: Any) -> float:
    if value is None:
        return FULL_SPEED
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"expected steps a second, got {value!r:.40}")
    return float(value)
