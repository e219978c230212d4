"""Log: numbers and pictures of the user's own, which `live.log` adds to the page."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from caffelite.core.tensor import Tensor
from caffelite.web.curves import Curve

MAX_NAMES = 32  # names of curves, and of pictures
MAX_LETTERS = 60  # of a name
MAX_PIXELS = 256  # pixels of a side of a picture


class Log:
    """Curves and pictures by name. The training's thread calls all methods."""

    def __init__(self) -> None:
        self.curves: dict[str, Curve] = {}
        self.pictures: dict[str, dict[str, Any]] = {}
        self.has_news = False  # whether there are pictures that the page has not got

    def add(self, name: str, value: Any, step: int, reserved_names: Container[str]) -> None:
        """Add a number to a curve, or set a picture. Raise ValueError or TypeError, and change nothing, for others."""
        _check_name(name, reserved_names)
        number = _as_number(value)
        values: dict[str, Any] = self.pictures if number is None else self.curves
        pixels = _as_pixels(name, value) if number is None else None
        if name in (self.curves if number is None else self.pictures):
            raise ValueError(f"live.log: {name!r} is a number or a picture, and not both")
        if name not in values and len(values) >= MAX_NAMES:
            raise ValueError(f"live.log: at most {MAX_NAMES} names, got {name!r} as another one")
        if number is None:
            self.pictures[name] = {"name": name, "step": step, "pixels": pixels}
            self.has_news = True
        else:
            self.curves.setdefault(name, Curve()).extend([step], [number])

    def message(self) -> dict[str, Any]:
        """Return the pictures for the page."""
        self.has_news = False
        return {"pictures": [*self.pictures.values()]}


def _check_name(name: Any, reserved_names: Container[str]) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_LETTERS:
        raise ValueError(f"live.log: name is a text of 1 to {MAX_LETTERS} characters, got {name!r:.80}")
    if name in reserved_names:
        raise ValueError(f"live.log: the page has a curve {name!r} already; choose another name")


def _as_number(value: Any) -> float | None:
    """Return a number, including NumPy's, or None for anything else."""
    if isinstance(value, Tensor):
        value = value.data
    if not isinstance(value, int | float | np.number | np.bool_ | np.ndarray) or np.ndim(value) > 0:
        return None
    return float(value) if np.asarray(value).dtype.kind in "fiub" else None


def _as_pixels(name: str, value: Any) -> np.ndarray:
    """Return a picture as bytes (height, width, channels): its smallest number is black, its largest white."""
    array = np.asarray(value) if isinstance(value, np.ndarray | list) else np.empty(0, object)
    if array.dtype.kind not in "fiub" or array.ndim not in (2, 3) or (array.ndim == 3 and len(array) not in (1, 3)):
        got = f"shape {array.shape}" if array.dtype.kind in "fiub" else type(value).__name__
        raise TypeError(
            f"live.log: {name!r} is a number, or a picture of shape (height, width) or (channels, height, width), "
            f"with 1 or 3 channels; got {got}"
        )
    if not 0 < min(array.shape[-2:]) <= max(array.shape[-2:]) <= MAX_PIXELS:
        raise ValueError(
            f"live.log: a picture has 1 to {MAX_PIXELS} pixels a side, got {name!r} of shape {array.shape}"
        )
    planes = np.nan_to_num(array.reshape(-1, *array.shape[-2:]).astype(np.float64))
    low, high = planes.min(), planes.max()
    pixels = np.round(255 * ((planes - low) / ((high - low) or 1.0)))
    return np.ascontiguousarray(np.moveaxis(pixels, 0, -1), np.uint8)
