"""Augmentation: random changes of images that keep what they show. For `DataGenerator(transform=)`.

    data = cl.DataGenerator(x, y, transform=cl.augment.shift(2), seed=0)

Each augmentation is a callable (x, y) -> (x, y). To use several, write a function:

    flip, shift = cl.augment.flip(), cl.augment.shift(4)

    def augmented(x, y):
        return flip(*shift(x, y))

x are images (n, C, H, W) or (n, H, W), float32 or float64. An augmentation returns a new array, and y as it is. It
raises ValueError for another number of axes, and TypeError for another dtype.

The change of an image depends only on the generator's seed, the epoch, the batch, the image's row, and how many
augmentations of the batch came before. It uses Philox counters, as Dropout does. So it is the same for any number of
threads, and an augmentation that you add at the end does not change the others. An augmentation gets seed and batch
from the generator that runs in the same thread. Outside a transform, it takes a seed from the operating system.
"""

from __future__ import annotations

import secrets
from contextvars import ContextVar, Token
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import positive_integer

__all__ = ["cutout", "flip", "shift"]

# (seed, batch, number of augmentations of the batch so far), while a generator's transform is running
_drawn: ContextVar[np.ndarray | None] = ContextVar("caffelite.augment", default=None)


class drawing:
    """Inside, augmentations are drawn from this seed for this batch."""

    def __init__(self, seed: int, batch: int) -> None:
        self.drawn = np.array([seed, batch, 0], np.int64)

    def __enter__(self) -> None:
        self.token: Token = _drawn.set(self.drawn)

    def __exit__(self, *error: object) -> None:
        _drawn.reset(self.token)


class Augmentation:
    """A kernel that changes images at random, and its arguments: a transform of a DataGenerator."""

    def __init__(self, kernel: str, **arguments: int) -> None:
        self.kernel, self.arguments = kernel, arguments

    def __call__(self, x: np.ndarray, y: Any) -> tuple[np.ndarray, Any]:
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{self!r} takes images, one array of floats, got {type(x).__name__}")
        drawn = _drawn.get()
        if drawn is None:
            drawn = np.array([secrets.randbits(63), 0, 0], np.int64)
        images = getattr(kernels, self.kernel)(x, drawn, **self.arguments)
        drawn[2] += 1
        return images, y

    def __repr__(self) -> str:
        return f"{self.kernel}({', '.join(map(str, self.arguments.values()))})"


def shift(pixels: int) -> Augmentation:
    """Move each image by whole pixels, −pixels … pixels down and to the right. Zeros fill the gap.

    All moves are equally likely. ValueError or TypeError unless pixels is an integer from 1 to 2³¹ − 1.
    """
    return Augmentation("shift", pixels=_pixels("shift: pixels", pixels))


def flip() -> Augmentation:
    """Mirror each image, left to right, with probability 1/2."""
    return Augmentation("flip")


def cutout(size: int) -> Augmentation:
    """Set a square of size × size pixels to 0, in all channels, around a random pixel of each image.

    All pixels are equally likely. If the square crosses the border, only the part inside is set. If the size is even,
    the pixel is the one below and to the right of the middle. ValueError or TypeError unless size is an integer from 1
    to 2³¹ − 1.

    T. DeVries and G. W. Taylor, "Improved regularization of convolutional neural networks with cutout",
    arXiv:1708.04552, 2017.
    """
    return Augmentation("cutout", size=_pixels("cutout: size", size))


def _pixels(name: str, value: Any) -> int:
    pixels = positive_integer(name, value)
    if pixels >= 2**31:
        raise ValueError(f"{name} must be below 2³¹, got {pixels}")
    return pixels
