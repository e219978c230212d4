"""Histograms over time: how the numbers of weights and gradients are distributed, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite.web.snapshots import TrainingView, label_matrices

LEVELS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)  # of the quantiles
SAMPLE = 2048  # numbers of an array that are sorted, at most
MAX_COLUMNS = 128  # points in time


class Histograms:
    """Quantiles of weights, and of the absolute values of their gradients, at evenly spread updates and at the last."""

    def __init__(self, view: TrainingView) -> None:
        self.view = view
        self.steps: list[int] = []
        self.columns: list[dict[str, np.ndarray]] = []  # by layer: (2, levels), of weights and of gradients
        self._count, self._width = 0, 1  # updates, and updates for each column

    def message(self) -> dict[str, Any] | None:
        """Add the current step. Return all columns for the page, or None if the model has no matrices."""
        layers = label_matrices(self.view.model)
        if not layers:
            return None
        if (self._count - 1) % self._width:  # the last column was only the newest one
            self.steps.pop()
            self.columns.pop()
        self.steps.append(self.view.place)
        self.columns.append(
            {name: np.stack([quantiles(p.data), quantiles(p.grad, True)]) for name, p in layers.items()}
        )
        self._count += 1
        if len(self.steps) > MAX_COLUMNS:
            del self.steps[1::2], self.columns[1::2]
            self._width *= 2
        rows = []
        for name in layers:
            weights, gradients = np.stack([column[name] for column in self.columns], axis=-1)
            rows.append({"name": name, "weights": weights, "gradients": gradients})
        return {"steps": np.array(self.steps), "levels": LEVELS, "rows": rows}


def quantiles(array: Any, is_absolute: bool = False) -> np.ndarray:
    """Return the quantiles of an array, or of its absolute values; NaN if it is missing or not finite."""
    if not isinstance(array, np.ndarray) or array.size == 0:
        return np.full(len(LEVELS), np.nan, np.float32)
    flat = array.reshape(-1)
    if flat.size > SAMPLE:
        flat = flat[np.random.default_rng(flat.size).integers(0, flat.size, SAMPLE)]
    ordered = np.sort(np.abs(flat) if is_absolute else flat)  # NaN is last
    places = np.rint(np.array(LEVELS) * (ordered.size - 1)).astype(int)
    return np.where(np.isfinite(ordered[-1]), ordered[places], np.nan).astype(np.float32)
