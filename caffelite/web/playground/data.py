"""Points in the plane to learn: each function makes n of them from a random generator, with noise of this size.

A program of the playground has the source of its function. So each uses NumPy alone, and stands for itself.
"""

from __future__ import annotations

import numpy as np


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


CLASSES = {spiral: 3, moons: 2, circles: 2, xor: 2, blobs: 3}
NUMBERS = (plane, waves, hill)
DATA = {make.__name__: make for make in (*CLASSES, *NUMBERS)}
