"""Datasets to learn with: made or bundled (offline.py), in their authors' files (files.py), or images (images.py)."""

from caffelite.data.datasets.files import cifar10, fashion_mnist, mnist
from caffelite.data.datasets.images import folder
from caffelite.data.datasets.offline import digits, spiral

__all__ = ["cifar10", "digits", "fashion_mnist", "folder", "mnist", "spiral"]
