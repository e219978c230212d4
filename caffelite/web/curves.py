"""Curve: a quantity over a whole training, in a bounded number of points."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST = 512  # points


class Curve:
    """A quantity over a training: the mean, the least and the greatest of as many values for each point.

    If there are more than MOST points, two neighbours become one. So any number of values takes the same memory.
    """

    def __init__(self) -> None:
        self._points = np.empty((5, 0))  # x, mean, least, greatest, and the number of values
        self._width = 1  # values of a point, but of the last, which may have fewer

    def __len__(self) -> int:
        return self._points.shape[1]

    def extend(self, x: Any, values: Any) -> None:
        """Append values, and where they are. x only grows."""
        values = np.asarray(values, np.float64)
        new = np.stack([np.asarray(x, np.float64), values, values, values, np.ones(len(values))])
        self._points = np.concatenate([self._points, new], axis=1)
        count = self._points[4].sum()
        while count > MOST * self._width:
            self._width *= 2
        if self._width > 1 and len(values):
            self._points = _merged(self._points, self._width)

    def message(self) -> dict[str, np.ndarray]:
        """Return the points for the page. They have `low` and `high` only if these differ."""
        x, mean, low, high = self._points[:4].astype(np.float32)
        return {"x": x, "y": mean} | ({} if self._width == 1 else {"low": low, "high": high})


def _merged(points: np.ndarray, width: int) -> np.ndarray:
    """Merge neighbours into points of `width` values."""
    x, mean, low, high, count = points
    place = (np.cumsum(count) - 1) // width
    first = np.flatnonzero(np.diff(place, prepend=-1))
    counts = np.add.reduceat(count, first)
    with np.errstate(invalid="ignore"):
        means = np.add.reduceat(mean * count, first) / counts
    extremes = np.fmin.reduceat(low, first), np.fmax.reduceat(high, first)
    return np.stack([np.maximum.reduceat(x, first), means, *extremes, counts])
