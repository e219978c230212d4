"""View: the outputs of a net and of its units, in the plane or for the points that are held out."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from caffelite.core.modes import inference
from caffelite.core.tensor import Tensor
from caffelite.functions import Linear, softmax
from caffelite.training.history import History
from caffelite.visualize.regions import plane_points
from caffelite.web.playground.code import compute_features
from caffelite.web.playground.config import PIXELS, Setting
from caffelite.web.playground.data import CLASSES, DATA, digits
from caffelite.web.playground.names import names

GRID, SMALL = 64, 24  # points along a side of the plane, for the output and for each unit
MAX_POINTS = 1000  # of a curve
MAX_HELD_OUT = 500  # points whose outputs are shown
BARS = 8  # of a unit, for ranges of numbers
THUMBNAIL_POINTS, THUMBNAIL_NOISE = 90, 0.05


class View:
    """Looks at the model of a setting.

    In the plane, a unit has a map of its output at each point. Otherwise it has bars, the means of its output over
    training points. There is a bar for each class. If y are numbers, there is one for each of `BARS` equal parts of the
    points, ordered by y. A unit that gets an image shows its weights.
    """

    def __init__(self, setting: Setting, objects: dict[str, Any]) -> None:
        self.setting, self.model = setting, objects["model"]
        dtype = self.model.dtype
        if setting.is_plane:
            self.rows, self.points = (compute_features(setting, grid(n, setting.reach)) for n in (SMALL, GRID))
        else:
            self.rows, self.points = objects["x"].astype(dtype), objects["held_out"][0][:MAX_HELD_OUT].astype(dtype)
            self.means = _averaging_matrix(objects["y"], setting.classes)

    def snapshot(self) -> dict[str, Any]:
        """Return the outputs, the units' pictures, weights and biases: arrays that nobody changes."""
        linear = [f for f in self.model.functions if isinstance(f, Linear)]
        with inference():
            scores = self.model(Tensor(self.points))
            output = (softmax(scores) if self.setting.is_classification else scores).numpy()
            units = self._unit_pictures(linear)
        return {
            "output": output.reshape(GRID, GRID, -1) if self.setting.is_plane else output,
            "units": units,
            "weights": [f.weight.data.copy() for f in linear],
            "biases": [f.bias.data.copy() for f in linear if f.bias is not None],
        }

    def _unit_pictures(self, linear: list[Linear]) -> list[np.ndarray]:
        """For each layer but the last, the pictures of its units, uint8 (units, height, width); 128 is 0.

        Each has a scale of its own.
        """
        activations: list[np.ndarray] = []
        h = Tensor(self.rows)
        for f in self.model.functions:
            if f is linear[-1]:
                break
            if isinstance(f, Linear):
                activations.append(np.zeros(0))
            h = f(h)
            activations[-1] = h.numpy()
        if self.setting.is_plane:
            return [to_bytes(values.T.reshape(-1, SMALL, SMALL)) for values in activations]
        pictures = [to_bytes((self.means @ values).T[:, None]) for values in activations]
        if self.setting.is_image and pictures:
            pictures[0] = to_bytes(linear[0].weight.data.T.reshape(-1, PIXELS, PIXELS))
        return pictures


@functools.cache
def thumbnails() -> dict[str, dict[str, Any]]:
    """Return a few points of each data set, or an image or a word, by name."""
    pictures: dict[str, dict[str, Any]] = {digits.__name__: {"image": digits(1, 0, np.random.default_rng(0))[0][0]}}
    pictures[names.__name__] = {"word": "mia"}
    for name, make in DATA.items():
        if name not in pictures:
            x, y = make(THUMBNAIL_POINTS, THUMBNAIL_NOISE, np.random.default_rng(0))
            pictures[name] = {"x": x, "y": np.ravel(y).astype(np.float64), "classes": make in CLASSES}
    return pictures


def _averaging_matrix(y: np.ndarray, classes: int | None) -> np.ndarray:
    """Return the matrix (bars, n) that takes the mean over the points of each class, or of equal parts ordered by y."""
    y = np.ravel(y)
    parts = [np.flatnonzero(y == c) for c in range(classes)] if classes else np.array_split(np.argsort(y), BARS)
    means = np.zeros((len(parts), len(y)), np.float32)
    for row, part in zip(means, parts, strict=True):
        row[part] = 1 / max(1, len(part))
    return means


def grid(n: int, reach: float) -> np.ndarray:
    """Points of the plane (n · n, 2) float32 from −reach to reach, row by row from below."""
    side = np.linspace(-reach, reach, n, dtype=np.float32)
    return plane_points(side, side)


def curves(history: History) -> dict[str, Any]:
    """Return the curves of a history by name: epochs and values, at most MAX_POINTS, with the first and the last."""
    epochs = history.epochs
    indices = np.unique(np.linspace(0, epochs - 1, min(epochs, MAX_POINTS)).astype(int))
    places = indices.tolist()
    return {
        name: {"epoch": indices + 1, "value": np.array([values[i] for i in places], np.float64)}
        for name, values in history.items()
    }


def to_bytes(pictures: np.ndarray) -> np.ndarray:
    """Pictures (units, height, width) of bytes; the largest value of each unit is at an end of the range."""
    values = pictures.reshape(len(pictures), -1)
    if not np.isfinite(values).all():
        values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
    largest = np.maximum(values.max(axis=1), -values.min(axis=1))[:, None]
    scaled = values * (127 / np.where(largest > 0, largest, 1))
    return np.rint(scaled + 128).astype(np.uint8).reshape(pictures.shape)
