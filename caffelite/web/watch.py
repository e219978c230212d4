"""What a page shows of a training: its layers, and what the model makes of the plane, or of images.

All of it is read between two steps. Nothing of the training changes: no gradient, no random stream, no buffer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.modes import inference
from caffelite.core.tensor import Tensor
from caffelite.data.generator import DataGenerator
from caffelite.look.inspection import SATURATED
from caffelite.training.callbacks import Training
from caffelite.training.history import History

ROWS = 256  # that are looked at
MOST_POINTS = 1000  # of a curve
GRID = 48  # points along a side of the plane
MOST_IMAGES, MOST_FILTERS = 24, 32
RANGES = {functions.Tanh: (-1.0, 1.0), functions.Sigmoid: (0.0, 1.0)}


def points(history: History) -> dict[str, Any]:
    """The curves of a history by name: epochs and values, at most MOST_POINTS of them, with the first and the last."""
    epochs = history.epochs
    kept = np.unique(np.linspace(0, epochs - 1, min(epochs, MOST_POINTS)).astype(int))
    places = kept.tolist()
    return {
        name: {"epoch": kept + 1, "value": np.array([values[i] for i in places], np.float64)}
        for name, values in history.items()
    }


class Watch:
    """Reads from a training what its page shows. `described` is what stays the same, `last` the last views by kind."""

    def __init__(self, training: Training) -> None:
        self.training, self.model = training, training.model
        self.last: dict[str, dict[str, Any]] = {}
        batches = training.batches
        self.batches = len(batches) if hasattr(batches, "__len__") else None
        self.x, self.y = _rows(batches)
        self.view = self._view()
        names = self.model.functions if self.model.is_sequence() else []
        self.layers = [f"{i} {type(f).__name__}" for i, f in enumerate(names)]
        self.described: dict[str, Any] = {
            "model": repr(self.model),
            "parameters": sum(p.data.size for p in self.model.parameters()),
            "loss": repr(training.loss),
            "optimizer": type(training.optimizer).__name__ if training.optimizer is not None else None,
            "epochs": training.epochs,
            "view": self.view,
        }

    def steps_of(self, epochs: int | None) -> int | None:
        """The number of steps of so many epochs, None if it is not known."""
        return None if epochs is None or self.batches is None else epochs * self.batches

    def file(self) -> np.ndarray:
        """The bytes of a file of the model, as it is now."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.safetensors")
            self.model.save(path)
            return np.frombuffer(path.read_bytes(), np.uint8)

    def views(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what there is to see, each with its kind."""
        found = {"layers": self._layers()}
        if self.view == "plane":
            found["plane"] = self._plane()
        if self.view == "images":
            found["images"] = self._images()
        self.last = found
        yield from found.items()

    # ---- layers -------------------------------------------------------------------------------------------------

    def _layers(self) -> dict[str, Any]:
        """For each layer of a sequence the sizes of its weights and gradients, and the shares of units without use."""
        rows: list[dict[str, Any]] = []
        dead: dict[int, float] = {}
        saturated: dict[int, float] = {}
        if self.x is not None and self.model.is_sequence():
            dead, saturated = self._shares()
        functions_of = self.model.functions if self.model.is_sequence() else [self.model]
        for i, f in enumerate(functions_of):
            parameters = f.parameters()
            rows.append(
                {
                    "name": self.layers[i] if self.layers else type(f).__name__,
                    "size": sum(p.data.size for p in parameters),
                    "weights": _rms([p.data for p in parameters]),
                    "gradients": _rms([p.grad for p in parameters if p.grad is not None]),
                    "dead": dead.get(i),
                    "saturated": saturated.get(i),
                }
            )
        return {"layers": rows}

    def _shares(self) -> tuple[dict[int, float], dict[int, float]]:
        """The share of dead units of each ReLU, and the share of values at the ends of each tanh and sigmoid."""
        dead: dict[int, float] = {}
        saturated: dict[int, float] = {}
        with inference():
            h: Any = self.x if self.model.takes_indices else Tensor(self.x, dtype=self.model.dtype)
            for i, f in enumerate(self.model.functions):
                h = f(h)
                y = h.numpy()
                if isinstance(f, functions.ReLU):
                    dead[i] = float((y == 0).reshape(len(y), -1).all(axis=0).mean())
                for kind, (low, high) in RANGES.items():
                    if isinstance(f, kind):
                        margin = SATURATED * (high - low)
                        saturated[i] = float(((y < low + margin) | (y > high - margin)).mean())
        return dead, saturated

    # ---- what the model makes of its inputs ---------------------------------------------------------------------

    def _view(self) -> str | None:
        if self.x is None or self.y is None or self.y.ndim > 2 or (self.y.ndim == 2 and self.y.shape[1] != 1):
            return None
        if self.x.ndim == 2 and self.x.shape[1] == 2 and self.x.dtype.kind == "f":
            return "plane"
        is_image = self.x.ndim == 4 and self.x.shape[1] in (1, 3) and self.y.dtype.kind in "iu" and self.y.ndim == 1
        return "images" if is_image else None

    def _plane(self) -> dict[str, Any]:
        """Scores of each point of a grid over the plane, and the points themselves."""
        assert self.x is not None
        assert self.y is not None
        low, high = self.x.min(axis=0), self.x.max(axis=0)
        margin = 0.08 * np.maximum(high - low, 1e-6)
        low, high = low - margin, high + margin
        across, up = (np.linspace(a, b, GRID) for a, b in zip(low, high, strict=True))
        grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
        scores = np.asarray(self.model.predict(grid.astype(self.model.dtype)))
        is_classes = self.y.dtype.kind in "iub"
        if is_classes and scores.shape[1] > 1:
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        elif is_classes:
            scores = 1 / (1 + np.exp(-np.clip(scores, -50, 50)))
        targets = self.y.reshape(len(self.y), -1)[:, 0]
        return {
            "scores": scores.reshape(GRID, GRID, -1),
            "low": low.tolist(),
            "high": high.tolist(),
            "x": self.x,
            "y": targets.astype(np.float64),
            "classes": is_classes,
        }

    def _images(self) -> dict[str, Any]:
        """Images that the model takes for another class, and the filters of its first convolution."""
        assert self.x is not None
        assert self.y is not None
        guesses = np.asarray(self.model.predict(self.x)).reshape(len(self.x), -1).argmax(axis=1)
        wrong = np.flatnonzero(guesses != self.y)
        shown = wrong[:MOST_IMAGES]
        message = {"wrong": len(wrong), "of": len(self.x), "images": _as_bytes(self.x[shown])}
        message |= {"truth": self.y[shown], "guesses": guesses[shown]}
        first = next((f for f in self.model.all_functions() if isinstance(f, functions.Conv2d)), None)
        if first is not None and first.weight.shape[1] in (1, 3):
            message["filters"] = _as_bytes(first.weight.data[:MOST_FILTERS])
        return message


def _rows(batches: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The first rows of data in memory, as arrays; None for others."""
    if not isinstance(batches, DataGenerator) or batches.y is None or tuple in (type(batches.x), type(batches.y)):
        return None, None
    try:
        x, y = np.array(batches.x[:ROWS]), np.array(batches.y[:ROWS])
    except (TypeError, ValueError, KeyError):  # sparse rows, frames and files
        return None, None
    return (x, y) if x.dtype.kind in "fiub" and y.dtype.kind in "fiub" and x.ndim > 1 else (None, None)


def _rms(arrays: list[np.ndarray]) -> float | None:
    """The root of the mean square of all numbers."""
    size = sum(a.size for a in arrays)
    return None if size == 0 else float(np.sqrt(sum([float(np.vdot(a, a)) for a in arrays]) / size))


def _as_bytes(images: np.ndarray) -> np.ndarray:
    """Images (n, channels, height, width) as uint8 (n, height, width, channels); each uses the whole range."""
    axes = (1, 2, 3)
    low, high = images.min(axis=axes, keepdims=True), images.max(axis=axes, keepdims=True)
    scaled = (images - low) / np.maximum(high - low, 1e-12) * 255
    return np.ascontiguousarray(scaled.transpose(0, 2, 3, 1).astype(np.uint8))
