"""Augmentation: images changed at random, in ways that leave them what they show. For `DataGenerator(transform=)`.

    data = cl.DataGenerator(x, y, transform=cl.augment.shift(2), seed=0)

Each augmentation is a callable (x, y) -> (x, y). Several are a function:

    flip, shift = cl.augment.flip(), cl.augment.shift(4)

    def augmented(x, y):
        return flip(*shift(x, y))

x are images (n, C, H, W) or (n, H, W), float32 or float64, of which a new array is made; y comes back as it is. Another
number of axes is a ValueError, another dtype a TypeError.

What happens to an image is a function of the generator's seed, the epoch, the batch, which augmentation of the batch it
is, and the image's row: Philox counters, as Dropout's. So it is the same for any number of threads, and an augmentation
more, behind the others, changes nothing of theirs. An augmentation learns seed and batch from the generator that is
calling in the same thread, through whatever functions; called by nobody's transform, it takes a seed of the operating
system's.
"""

from __future__ import annotations

import secrets
from contextvars import ContextVar, Token
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import positive_integer

__all__ = ["cutout", "flip", "shift"]

# (seed, batch, how many augmentations of the batch were drawn before), where a generator's transform is running
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
    """A kernel that changes images at random, with what it takes beside them: a transform of a DataGenerator."""

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
    """Move each image by whole pixels, −pixels … pixels down and as many to the right, each as likely; zeros enter.

    ValueError or TypeError unless pixels is an integer from 1 to 2³¹ − 1.
    """
    return Augmentation("shift", pixels=_pixels("shift: pixels", pixels))


def flip() -> Augmentation:
    """Mirror each image, left to right, with probability 1/2."""
    return Augmentation("flip")


def cutout(size: int) -> Augmentation:
    """Set a square of size × size pixels to 0, in all channels, around a pixel of each image, each as likely.

    Of a square that reaches over the border, what is inside. With an even size the pixel is the one below and to the
    right of the middle. ValueError or TypeError unless size is an integer from 1 to 2³¹ − 1.

    T. DeVries and G. W. Taylor, "Improved regularization of convolutional neural networks with cutout",
    arXiv:1708.04552, 2017.
    """
    return Augmentation("cutout", size=_pixels("cutout: size", size))


def _pixels(name: str, value: Any) -> int:
    pixels = positive_integer(name, value)
    if pixels >= 2**31:
        raise ValueError(f"{name} must be below 2³¹, got {pixels}")
    return pixels
