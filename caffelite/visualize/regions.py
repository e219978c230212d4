"""The decision regions of a classifier in the plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite._support.colours import INK, PALETTE

TINT = 0.4  # how much of a class's colour its region has; the rest is white


def plane_extent(x: np.ndarray) -> tuple[float, float, float, float]:
    """Return the left, right, lower and upper ends of the plane around points (n, 2)."""
    low, high = x.min(axis=0), x.max(axis=0)
    margin = 0.06 * float((high - low).max()) or 1.0
    return low[0] - margin, high[0] + margin, low[1] - margin, high[1] + margin


def plane_points(across: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Return the points (n · m, 2) at n places across and m places up, the lowest row first."""
    return np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)


class Plane:
    """The part of the plane around some points (n, 2), with this many pixels along its longer side.

    `points` (m, 2) are the pixels' positions, the lowest row first.
    """

    def __init__(self, x: np.ndarray, pixels: int) -> None:
        self.extent = left, right, bottom, top = plane_extent(x)
        step = max(right - left, top - bottom) / pixels
        self.across = np.linspace(left, right, math.ceil((right - left) / step))
        self.up = np.linspace(bottom, top, math.ceil((top - bottom) / step))
        self.points = plane_points(self.across, self.up)

    def draw(self, axes: Any, outputs: np.ndarray, x: np.ndarray, y: np.ndarray, predictions: np.ndarray) -> None:
        """Draw the outputs (m, classes) at the pixels, and the points x with labels y and predictions (n, classes)."""
        from matplotlib.colors import to_rgb

        scores = outputs.reshape(len(self.up), len(self.across), -1)
        classes = scores.shape[-1]
        colours = np.array([to_rgb(PALETTE[k % len(PALETTE)]) for k in range(classes)])
        probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
        tint = TINT * probabilities.max(axis=-1, keepdims=True)
        regions = 1 - tint * (1 - colours[scores.argmax(axis=-1)])
        axes.imshow(regions, extent=self.extent, origin="lower", interpolation="nearest")
        for k in range(classes):
            lead = scores[..., k] - np.delete(scores, k, axis=-1).max(axis=-1, initial=-np.inf)
            if lead.min() < 0 < lead.max():
                axes.contour(self.across, self.up, lead, levels=[0], colors="white", linewidths=2)
        wrong = predictions.argmax(axis=1) != y
        axes.scatter(*x.T, c=colours[y], s=24, linewidths=0.6, edgecolors="white", zorder=3)
        axes.scatter(*x[wrong].T, c=colours[y[wrong]], s=32, linewidths=1.2, edgecolors=INK, zorder=4)
        axes.set(xlim=self.extent[:2], ylim=self.extent[2:], aspect="equal", xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
