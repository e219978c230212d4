"""Curve: a quantity over an entire training run, in a bounded number of points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_POINTS = 512  # points


class Curve:
    """A quantity over a training run: the mean, minimum and maximum of the same number of values for each point.

    If there are more than MAX_POINTS, two neighbours become one. So any number of values takes the same memory.
    """

    def __init__(self) -> None:
        self._points = np.empty((5, 0))  # x, mean, least, greatest, and the number of values
        self._width = 1  # values of a point, but of the last, which may have fewer
        self._new: list[tuple[Sequence[float], Sequence[float]]] = []  # not yet in the points: x and values

    def extend(self, x: Sequence[float], values: Sequence[float]) -> None:
        """Append values and their places. x only grows."""
        self._new.append((x, values))
        if len(self._new) >= MAX_POINTS:
            self._merge_new()

    def __len__(self) -> int:
        self._merge_new()
        return self._points.shape[1]

    def _merge_new(self) -> None:
        """Move the new values into the points. Many at once take as long as one."""
        if not self._new:
            return
        x, values = (np.concatenate(parts).astype(np.float64) for parts in zip(*self._new, strict=True))
        self._new = []
        new = np.stack([x, values, values, values, np.ones(len(values))])
        self._points = np.concatenate([self._points, new], axis=1)
        count = self._points[4].sum()
        while count > MAX_POINTS * self._width:
            self._width *= 2
        if self._width > 1:
            self._points = _merge(self._points, self._width)

    def message(self) -> dict[str, np.ndarray]:
        """Return the points for the page. They have `low` and `high` only if these differ."""
        self._merge_new()
        x, mean, low, high = self._points[:4].astype(np.float32)
        return {"x": x, "y": mean} | ({} if self._width == 1 else {"low": low, "high": high})


def _merge(points: np.ndarray, width: int) -> np.ndarray:
    """Merge neighbours into points of `width` values."""
    x, mean, low, high, count = points
    place = (np.cumsum(count) - 1) // width
    first = np.flatnonzero(np.diff(place, prepend=-1))
    counts = np.add.reduceat(count, first)
    with np.errstate(invalid="ignore"):
        means = np.add.reduceat(mean * count, first) / counts
    extremes = np.fmin.reduceat(low, first), np.fmax.reduceat(high, first)
    return np.stack([np.maximum.reduceat(x, first), means, *extremes, counts])
