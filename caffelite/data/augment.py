"""Augmentation: random changes to images that keep what they show, for `DataGenerator(transform=)`.

    data = cl.DataGenerator(x, y, transform=[cl.augment.flip(), cl.augment.rotate(15)], seed=0)

Each augmentation is a callable (x, y) -> (x, y). x are images (n, C, H, W) or (n, H, W), float32 or float64. An
augmentation returns a new array, and y unchanged; only `mixup` and `cutmix` change y. It raises ValueError for any
other number of axes and for shapes such as (n, 28, 28, 3), with channels last, and TypeError for other dtypes.

The change to an image depends only on the generator's seed, the epoch, the batch, the image's row, and how many
augmentations of the batch came before. So it is the same for any number of threads, and adding an augmentation at the
end does not affect the others. An augmentation gets seed and batch from the generator that runs in the same thread.
Outside a transform, it takes a seed from the operating system.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.moved_modules import rename_attributes
from caffelite.core.arrays import (
    FLOATS,
    as_real,
    check_integers,
    check_positive,
    check_positive_integer,
    find_outside,
    native_dtype,
)

__all__ = ["brightness", "contrast", "crop", "cutmix", "cutout", "flip", "mixup", "noise", "rotate", "shift", "zoom"]

MAX_PIXELS = 2**31 - 1  # pixels
# (seed, batch, number of augmentations of the batch so far), while a generator's transform is running
_key: ContextVar[np.ndarray | None] = ContextVar("caffelite.augment", default=None)


class augmentation_key:
    """Inside, augmentations draw from this seed for this batch."""

    def __init__(self, seed: int, batch: int) -> None:
        self.key = np.array([seed, batch, 0], np.int64)

    def __enter__(self) -> None:
        self.token: Token = _key.set(self.key)

    def __exit__(self, *error: object) -> None:
        _key.reset(self.token)


@rename_attributes(of_images="needs_images")
class Augmentation:
    """A random change of images, `change(x, key, *arguments)`: a transform of a DataGenerator.

    `key` holds the int64 numbers (seed, batch, how many augmentations of the batch came before).
    """

    def __init__(self, name: str, change: Callable[..., Any], *arguments: Any, needs_images: bool = True) -> None:
        self.name, self.change, self.arguments = name, change, arguments
        self.needs_images = needs_images  # otherwise any rows will do

    def __call__(self, x: np.ndarray, y: Any) -> tuple[np.ndarray, Any]:
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{self!r} takes images, one array of floats, got {type(x).__name__}")
        if native_dtype(x) not in FLOATS:
            raise TypeError(f"{self!r} takes float32 or float64, got {x.dtype}")
        if x.ndim == 0 or (self.needs_images and x.ndim not in (3, 4)):
            expected = "images (n, C, H, W) or (n, H, W)" if self.needs_images else "rows (n, …)"
            raise ValueError(f"{self!r} takes {expected}, got shape {x.shape}")
        if self.needs_images and x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] == x.shape[2] > 4:
            raise ValueError(
                f"{self!r} takes images (n, C, H, W), got shape {x.shape}, which seems to be (n, H, W, C): give "
                "x.transpose(0, 3, 1, 2)"
            )
        key = _key.get()
        if key is None:
            key = np.array([secrets.randbits(63), 0, 0], np.int64)
        pair = self.apply(x, y, key)
        key[2] += 1
        return pair

    def apply(self, x: np.ndarray, y: Any, key: np.ndarray) -> tuple[np.ndarray, Any]:
        """Return the changed rows."""
        return self.change(x, key, *self.arguments), y

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{x:g}' if isinstance(x, float) else str(x) for x in self.arguments)})"


def shift(pixels: int) -> Augmentation:
    """Shift each image by −pixels … pixels along both axes. Zeros fill the gap.

    All shifts are equally likely. Raise ValueError or TypeError unless pixels is an integer from 1 to 2³¹ − 1.
    """
    return Augmentation("shift", kernels.shift, check_positive_integer("shift: pixels", pixels, MAX_PIXELS))


def flip() -> Augmentation:
    """Mirror each image left to right with probability 1/2."""
    return Augmentation("flip", kernels.flip)


def cutout(size: int) -> Augmentation:
    """Set a square of size × size pixels to 0, in all channels, around a random pixel of each image.

    All pixels are equally likely. If the square crosses the border, only the part inside is set. If the size is even,
    the pixel is the one below and to the right of the square's centre. Raise ValueError or TypeError unless size is an
    integer from 1 to 2³¹ − 1.

    T. DeVries and G. W. Taylor, "Improved regularization of convolutional neural networks with cutout",
    arXiv:1708.04552, 2017.
    """
    return Augmentation("cutout", kernels.cutout, check_positive_integer("cutout: size", size, MAX_PIXELS))


def crop(size: int | tuple[int, int], padding: int = 0) -> Augmentation:
    """Cut a window of this size out of each image at a uniformly random position.

    `size` is (height, width) or one integer for both. First, `padding` lines of zeros are added on each side. The new
    images are (n, C, *size). To predict, crop the centre yourself: `x[..., 2:30, 2:30]` matches `crop(28)` of 32 × 32
    pixels.

    Raise ValueError or TypeError unless size and padding are integers below 2³¹, with size ≥ 1 and padding ≥ 0. The
    augmentation raises ValueError if the window is larger than the images with their padding.
    """
    height, width = check_integers("crop: size", size, 2, max_value=MAX_PIXELS)
    (around,) = check_integers("crop: padding", padding, 1, min_value=0, max_value=MAX_PIXELS)
    return Augmentation("crop", kernels.crop, height, width, around)


# ---- rotation and scaling, with interpolation -----------------------------------------------------------------------


def rotate(degrees: float) -> Augmentation:
    """Rotate each image by a random angle of −degrees … degrees, counter-clockwise.

    The centre stays in place. All angles are equally likely. Each new pixel is a bilinear interpolation of the four
    pixels around the point it comes from. Outside the image, pixels count as 0. Raise ValueError or TypeError unless
    degrees is positive and finite.
    """
    return Augmentation("rotate", _rotate, check_positive("rotate: degrees", degrees))


def _rotate(x: np.ndarray, key: np.ndarray, degrees: float) -> np.ndarray:
    angle = _uniform(x, key) * np.radians(degrees)
    maps = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # (2, 2, n)
    return kernels.affine(x, np.moveaxis(maps, 2, 0))


def zoom(factor: float) -> Augmentation:
    """Scale each image about its centre by a random number in 1 − factor … 1 + factor.

    Above 1, the image grows. All numbers are equally likely. The size in pixels does not change. Interpolation is as in
    `rotate`. Raise ValueError or TypeError unless 0 < factor < 1.
    """
    return Augmentation("zoom", _zoom, check_positive("zoom: factor", factor, 1))


def _zoom(x: np.ndarray, key: np.ndarray, factor: float) -> np.ndarray:
    return kernels.affine(x, np.eye(2) / (1 + factor * _uniform(x, key)[:, None, None]))


# ---- brightness, contrast and noise ---------------------------------------------------------------------------------


def brightness(amount: float) -> Augmentation:
    """Add a random number in −amount … amount to all pixels of each image.

    All numbers are equally likely. Pixels are not limited to a range. Raise ValueError or TypeError unless amount is
    positive and finite.
    """
    return Augmentation("brightness", _brighten, check_positive("brightness: amount", amount))


def _brighten(x: np.ndarray, key: np.ndarray, amount: float) -> np.ndarray:
    return kernels.add(x, _per_image(x, amount * _uniform(x, key)))


def contrast(factor: float) -> Augmentation:
    """Multiply each image's contrast by a random number c in 1 − factor … 1 + factor.

        y = m + c (x − m),  with the mean m of each channel of the image

    All numbers are equally likely. Pixels are not limited to a range. Raise ValueError or TypeError unless 0 < factor
    < 1.
    """
    return Augmentation("contrast", _change_contrast, check_positive("contrast: factor", factor, 1))


def _change_contrast(x: np.ndarray, key: np.ndarray, factor: float) -> np.ndarray:
    mean = kernels.sum(x, (-2, -1), keepdims=True, scale=1 / max(x.shape[-2] * x.shape[-1], 1))
    c = _per_image(x, 1 + factor * _uniform(x, key))
    return kernels.add(mean, kernels.multiply(c, kernels.subtract(x, mean)))


def noise(std: float) -> Augmentation:
    """Add a random number to each pixel, from the normal distribution N(0, std²).

    x may be any rows (n, …) of floats. Raise ValueError or TypeError unless std is positive and finite.
    """
    return Augmentation("noise", _add_noise, check_positive("noise: std", std), needs_images=False)


def _add_noise(x: np.ndarray, key: np.ndarray, std: float) -> np.ndarray:
    return kernels.add(x, kernels.multiply(_rng(key).standard_normal(x.shape, native_dtype(x)), std))


def _rng(key: np.ndarray) -> np.random.Generator:
    """Return the random number generator for this augmentation of this batch."""
    return np.random.default_rng(key.tolist())


def _uniform(x: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Draw a number from −1 to 1 for each image: (n,) float64."""
    return _rng(key).uniform(-1, 1, len(x))


def _per_image(x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return numbers (n,) in the dtype of the rows x, with as many axes as x."""
    return numbers.astype(native_dtype(x)).reshape(-1, *[1] * (x.ndim - 1))


# ---- mixtures of pairs ----------------------------------------------------------------------------------------------


def mixup(alpha: float = 0.2, *, classes: int | None = None) -> Augmentation:
    """Mix each row with another row of its batch, and their targets in the same way:

        x ← λ x + (1 − λ) x',  y ← λ y + (1 − λ) y',  λ from the Beta distribution Beta(α, α)

    The partners are the batch's rows in random order, and each row has its own λ. x may be any rows (n, …) of floats.

    If you give `classes`, y holds labels (n,), integers in 0 … classes − 1, which become probabilities (n, classes) for
    `SoftmaxLoss`. Otherwise y holds floats (n, …), such as probabilities or the targets of `MSELoss`.

    Raise ValueError or TypeError unless alpha is positive and finite and classes a positive integer. The augmentation
    raises TypeError for integers without `classes`, and ValueError for a label that is not one of the classes.

    H. Zhang, M. Cisse, Y. N. Dauphin and D. Lopez-Paz, "mixup: beyond empirical risk minimization", ICLR 2018.
    """
    return Mixture("mixup", _mix, alpha, classes, needs_images=False)


def cutmix(alpha: float = 1.0, *, classes: int | None = None) -> Augmentation:
    """Replace a rectangle of each image with another image's, and mix their targets:

        y ← λ y + (1 − λ) y',  1 − λ is the replaced fraction of the image

    The rectangle has the sides H √(1 − λ) and W √(1 − λ), rounded down to pixels, with λ from the Beta distribution
    Beta(α, α). Its centre is a random pixel, and only the part inside the image counts. y, `classes` and errors are as
    in `mixup`.

    S. Yun et al., "CutMix: regularization strategy to train strong classifiers with localizable features", ICCV 2019.
    """
    return Mixture("cutmix", _paste, alpha, classes)


class Mixture(Augmentation):
    """An Augmentation that mixes each row with another one, and their targets.

    `change(x, partners, shares, rng)` returns mixed rows and x's shares in them, (n,).
    """

    def __init__(
        self, name: str, change: Callable[..., Any], alpha: Any, classes: Any, needs_images: bool = True
    ) -> None:
        self.alpha = check_positive(f"{name}: alpha", alpha)
        self.classes = None if classes is None else check_positive_integer(f"{name}: classes", classes)
        options = [] if classes is None else [f"classes={classes}"]
        super().__init__(name, change, self.alpha, *options, needs_images=needs_images)

    def apply(self, x: np.ndarray, y: Any, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        targets = self._as_floats(y, x)
        rng = _rng(key)
        partners, shares = rng.permutation(len(x)), rng.beta(self.alpha, self.alpha, len(x))
        mixed, shares = self.change(x, partners, shares, rng)
        return mixed, _blend(targets, partners, shares)

    def _as_floats(self, y: Any, x: np.ndarray) -> np.ndarray:
        """Return targets in x's dtype, with labels as probabilities of the classes."""
        if not isinstance(y, np.ndarray):
            raise TypeError(f"{self!r} takes y, one array, got {type(y).__name__}")
        if y.shape[:1] != x.shape[:1]:
            raise ValueError(f"{self!r} got x of shape {x.shape} and y of shape {y.shape}: expected as many rows")
        if y.dtype.kind == "f":
            return as_real(y, native_dtype(x), f"{self!r}: y")
        if y.dtype.kind not in "iu" or self.classes is None:
            raise TypeError(
                f"{self!r} takes y of floats, got {y.dtype}; {self.name}(…, classes=10) makes probabilities of labels "
                "of 10 classes"
            )
        if y.ndim != 1:
            raise ValueError(f"{self!r} takes one label a row, (n,), got shape {y.shape}")
        if ((y < 0) | (y >= self.classes)).any():
            row, label = find_outside(y, 0, self.classes - 1)
            raise ValueError(f"{self!r}: label {label} in row {row} of the batch is not in 0 … {self.classes - 1}")
        probabilities = np.zeros((len(y), self.classes), native_dtype(x))
        probabilities[np.arange(len(y)), y] = 1
        return probabilities


def _mix(x: np.ndarray, partners: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> tuple:
    return _blend(x, partners, shares), shares


def _paste(x: np.ndarray, partners: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> tuple:
    down, across = [_interval(size, np.sqrt(1 - shares), rng) for size in x.shape[-2:]]
    replaced = down.sum(axis=1) * across.sum(axis=1) / max(x.shape[-2] * x.shape[-1], 1)
    inside = (down[:, :, None] & across[:, None, :]).astype(native_dtype(x))
    inside = inside.reshape(len(x), *[1] * (x.ndim - 3), *x.shape[-2:])
    return kernels.where(inside, kernels.take(kernels.copy(x), partners), x), 1 - replaced


def _interval(size: int, part: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return, for n images, which of `size` lines are in an interval around a random line: (n, size) bool.

    The interval covers this fraction (n,) of the lines, rounded down, as far as the lines exist.
    """
    length = (size * part).astype(np.int64)[:, None]
    first = rng.integers(max(size, 1), size=(len(part), 1)) - length // 2
    lines = np.arange(size)
    return (lines >= first) & (lines < first + length)


def _blend(a: np.ndarray, partners: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return λ a + (1 − λ) a[others] for rows (n, …) with λ (n,), in the dtype of a."""
    rest = kernels.take(kernels.copy(a), partners)
    return kernels.add(kernels.multiply(_per_image(a, shares), a), kernels.multiply(_per_image(a, 1 - shares), rest))


# Their names in pickles from older versions.
_rotated, _zoomed, _brightened, _contrasted, _noisy = _rotate, _zoom, _brighten, _change_contrast, _add_noise
_mixed, _pasted = _mix, _paste
