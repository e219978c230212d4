"""Datasets: computed or bundled (builtin.py), in their authors' files (mnist_cifar.py), or images (images.py)."""

from caffelite.data.datasets.builtin import digits, spiral
from caffelite.data.datasets.images import folder
from caffelite.data.datasets.mnist_cifar import cifar10, fashion_mnist, mnist

__all__ = ["cifar10", "digits", "fashion_mnist", "folder", "mnist", "spiral"]
