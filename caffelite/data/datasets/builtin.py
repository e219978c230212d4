"""Computed data, and data that comes with the package."""

from __future__ import annotations

from importlib import resources

import numpy as np

from caffelite.core.arrays import check_nonnegative, check_positive_integer


def spiral(
    points_per_class: int = 100, classes: int = 3, noise: float = 0.2, seed: int | np.random.Generator | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return intertwined spirals in the plane, one for each class j: x (n, 2) float32, y (n,) int64.

    The rows are sorted by class. The radius r goes from 0 to 1, and the angle from 4 j to 4 (j + 1) radians, plus noise
    · N(0, 1). The point at angle a is (r sin a, r cos a). A. Karpathy, Stanford CS231n, "Neural networks case study".

    Raise ValueError or TypeError unless the sizes are positive integers and noise is at least 0.
    """
    points_per_class = check_positive_integer("points_per_class", points_per_class)
    classes = check_positive_integer("classes", classes)
    noise = check_nonnegative("noise", noise)
    rng = np.random.default_rng(seed)
    r = np.tile(np.linspace(0, 1, points_per_class), classes)
    angle = np.concatenate([np.linspace(4 * j, 4 * (j + 1), points_per_class) for j in range(classes)])
    angle += noise * rng.standard_normal(angle.size)
    x = np.column_stack([r * np.sin(angle), r * np.cos(angle)]).astype(np.float32)
    return x, np.repeat(np.arange(classes, dtype=np.int64), points_per_class)


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return 1,797 handwritten digits of 8 × 8 pixels: (x_train, y_train), (x_test, y_test).

    x_train (1437, 8, 8) and x_test (360, 8, 8) are float32 in 0 … 1 (in the original 0 … 16), y is int64 in 0 … 9. The
    split is stratified by class and stored with the data.

    E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
    doi:10.24432/C50P49, CC BY 4.0. These are its test images, as scikit-learn distributes them.
    """
    with resources.files("caffelite.data.datasets").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        x = arrays["images"].astype(np.float32) / np.float32(16)
        y = arrays["labels"].astype(np.int64)
        test = arrays["test"]
    return (x[~test], y[~test]), (x[test], y[test])
