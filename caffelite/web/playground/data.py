"""The data to learn. Each function returns at most n rows of x, and y, from a random generator.

A program of the playground has the source of its function. So each function uses only NumPy and caffelite, and nothing
else of this file.
"""

from __future__ import annotations

import csv
from typing import Any

import numpy as np

import caffelite as cl
from caffelite.web.playground.names import names

# ---- points of the plane, with noise of this size ----


def spiral(n, noise, rng):
    y = np.arange(n) % 3
    r = rng.uniform(0.1, 1, n)
    angle = 4 * r + 2 * np.pi / 3 * y + noise * rng.normal(size=n)
    return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1), y


def moons(n, noise, rng):
    y = np.arange(n) % 2
    angle = np.pi * rng.random(n)
    x = np.stack([np.cos(angle) * (1 - 2 * y) + y - 0.5, np.sin(angle) * (1 - 2 * y) + 0.5 * y - 0.25], axis=1)
    return 0.6 * x + 0.4 * noise * rng.normal(size=(n, 2)), y


def circles(n, noise, rng):
    y = np.arange(n) % 2
    r, angle = np.where(y == 0, 0.9, 0.4), 2 * np.pi * rng.random(n)
    x = np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)
    return x + 0.4 * noise * rng.normal(size=(n, 2)), y


def xor(n, noise, rng):
    x = rng.uniform(-1, 1, (n, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    return x + 0.4 * noise * rng.normal(size=(n, 2)), y


def blobs(n, noise, rng):
    y = np.arange(n) % 3
    angle = 2 * np.pi / 3 * y + 0.5
    centers = 0.55 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return centers + (0.12 + 0.4 * noise) * rng.normal(size=(n, 2)), y


def plane(n, noise, rng):
    x = rng.uniform(-1, 1, (n, 2))
    return x, 0.6 * x[:, :1] - 0.4 * x[:, 1:] + noise * rng.normal(size=(n, 1))


def waves(n, noise, rng):
    x = rng.uniform(-1, 1, (n, 2))
    return x, np.sin(3 * x[:, :1]) * np.cos(3 * x[:, 1:]) + noise * rng.normal(size=(n, 1))


def hill(n, noise, rng):
    x = rng.uniform(-1, 1, (n, 2))
    return x, 2 * np.exp(-4 * (x**2).sum(axis=1, keepdims=True)) - 1 + noise * rng.normal(size=(n, 1))


# ---- more than two inputs ----


def digits(n, noise, rng):
    (x, y), (x_test, y_test) = cl.datasets.digits()
    x, y = np.concatenate([x, x_test]).reshape(-1, 64), np.concatenate([y, y_test])
    rows = rng.permutation(len(x))[:n]
    return x[rows] + noise * rng.normal(size=(len(rows), 64)), y[rows]


def numbers(cells):
    """Return the cells as numbers, NaN for an empty one; None if there are words among them."""
    try:
        return np.array([float(cell or "nan") for cell in cells])
    except ValueError:
        return None


def table(lines, target, n, rng):
    """Return the columns of numbers, and the target. Words, or at most 10 whole numbers, are classes."""
    names, *rows = [row for row in csv.reader(lines) if row]
    cells = dict(zip(names, zip(*rows, strict=True), strict=True))
    columns = [numbers(column) for name, column in cells.items() if name != target]
    x, y = np.stack([column for column in columns if column is not None], axis=1), numbers(cells[target])
    whole = np.isfinite(x).all(axis=1) & (np.array(cells[target]) != "" if y is None else np.isfinite(y))
    chosen = rng.permutation(np.flatnonzero(whole))[:n]
    if y is None or (len(set(y[whole])) <= 10 and (y[whole] % 1 == 0).all()):
        classes = sorted(set(np.array(cells[target] if y is None else y)[whole].tolist()))
        y = np.array([classes.index(value) if value in classes else 0 for value in (cells[target] if y is None else y)])
        return x[chosen], y[chosen]
    return x[chosen], y[chosen, None]


CLASSES = {spiral: 3, moons: 2, circles: 2, xor: 2, blobs: 3, digits: 10, names: 27}
NUMBERS = (plane, waves, hill)
DATA: dict[str, Any] = {make.__name__: make for make in sorted((*CLASSES, *NUMBERS), key=lambda make: make is names)}
