"""Datasets to learn with: made or bundled (offline.py), or in the files that their authors publish (files.py)."""

from caffelite.data.datasets.files import cifar10, fashion_mnist, mnist
from caffelite.data.datasets.offline import digits, spiral

__all__ = ["cifar10", "digits", "fashion_mnist", "mnist", "spiral"]
