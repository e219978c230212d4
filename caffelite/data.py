"""DataGenerator: mini-batches. And what `fit` needs to turn anything with rows into batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.arrays import as_array, as_real, positive_integer


class DataGenerator:
    """Mini-batches of x, or of x and y: each pass over it is one epoch.

    Parameters
    ----------
    x, y : array-like
        Rows on the first axis, as many in y as in x. Any dtype but object.
    batch_size : int
        Rows a batch; the last batch has what is left.
    shuffle : bool
        Whether every epoch has an order of its own.
    drop_last : bool
        Leave out a last batch that is short.
    seed : int or numpy.random.Generator, optional
        The same seed gives the same orders, here and in `Model.fit`. None draws one.

    `len()` is the number of batches an epoch. Batches are fresh arrays, every row comes once, and leaving an epoch
    early is forgotten: the next pass is a new epoch. A short last batch weighs, in a loss that is a mean, as much as
    a full one.

    Raises ValueError for no rows, for x and y of different lengths, and for a batch_size below 1; TypeError for a
    batch_size that is not an integer, and for Python objects.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 32,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.x = _rows("x", x)
        self.y = None if y is None else _rows("y", y)
        if self.y is not None and len(self.y) != len(self.x):
            raise ValueError(f"x has {len(self.x)} rows and y has {len(self.y)}: shapes {self.x.shape}, {self.y.shape}")
        self.batch_size = positive_integer("batch_size", batch_size)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        if drop_last and len(self.x) < self.batch_size:
            raise ValueError(f"drop_last leaves nothing of {len(self.x)} rows in batches of {self.batch_size}")
        # The order of the last epoch, which the next one shuffles on; and the shuffle's generator.
        self._order = np.arange(len(self.x), dtype=np.int64)
        self._state = np.random.default_rng(seed).integers(0, 2**64, size=4, dtype=np.uint64)

    def __len__(self) -> int:
        rows = len(self.x)
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        if self.shuffle:
            kernels.shuffle(self._order, self._state)
        return self._batches(self._order.copy())

    def _batches(self, order: np.ndarray) -> Iterator[Any]:
        for i in range(len(self)):
            rows = order[i * self.batch_size : (i + 1) * self.batch_size]
            x = kernels.take(self.x, rows)
            yield x if self.y is None else (x, kernels.take(self.y, rows))


def as_targets(y: Any, dtype: np.dtype) -> np.ndarray:
    """Targets for a model of this dtype: floats in it, integers and bools as they are. TypeError for anything else."""
    array = as_array(y, "targets")
    if array.dtype.kind in "iub":
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    return as_real(array, dtype, "targets")


def _rows(name: str, data: Any) -> np.ndarray:
    array = as_array(data, name)
    if array.ndim == 0 or len(array) == 0:
        raise ValueError(f"{name} has no rows: shape {array.shape}")
    if array.dtype.hasobject:
        raise TypeError(f"{name} holds Python objects; expected numbers")
    return np.ascontiguousarray(array)
