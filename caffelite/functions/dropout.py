"""Dropout, of elements and of weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import nonnegative
from caffelite.core.function import Function
from caffelite.core.modes import is_training
from caffelite.core.rows import rows_here
from caffelite.functions.linear import Linear
from caffelite.functions.shape import as_rows, from_rows

__all__ = ["DropConnect", "Dropout"]


class Dropout(Function, recordable=True):
    """In training, each element is 0 with probability p and x / (1 − p) else; in inference, y = x. dx likewise of dy.

    Each application in training draws another mask, a function of the layer's seed, of how many were drawn before, and
    of each element's number in C order: Philox counters, so backward draws it again instead of keeping it, and any
    number of threads draws the same. Of 16 bits an element, p is rounded to a multiple of 2⁻¹⁶. Seed and count are the
    buffer `random`; a copy of it made by forward, `drawn`, is what belongs to this application.

    The seed is the operating system's, or of the stream that `initialize` is given: of a child of that stream, which
    moves on no further. So a Dropout more or less changes no parameter that is drawn, before it or behind it.

    As in PyTorch, an element that is dropped is multiplied by 0: NaN and infinities become NaN, and are not hidden.
    ValueError unless 0 ≤ p < 1.

    N. Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = nonnegative("Dropout: p", p, 1.0)
        self.random = np.zeros(2, np.int64)
        self.initialize(None)

    def initialize(self, rng: Any) -> None:
        """Take another seed, and begin to count again."""
        self.random[:] = seed_of(rng), 0

    def buffers(self) -> dict[str, np.ndarray]:
        """What is kept but not learned: the seed, and how many masks were drawn."""
        return {"random": self.random}

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.drawn = None
        if is_training() and self.p > 0:
            self.first = rows_here().before(x.size)
            x, self.drawn = kernels.dropout(x, self.random, self.p, self.first)
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy if self.drawn is None else kernels.dropout_grad(dy, self.drawn, self.p, self.first)

    def __repr__(self) -> str:
        return f"Dropout({self.p})"


class DropConnect(Linear, recordable=True):
    """A Linear layer whose weights are dropped in training as Dropout drops elements, y = x V + b,  V = M ∘ W:

        dW = M ∘ (xᵀ dy),  db = Σ dy over the rows,  dx = dy Vᵀ,  M: 0 with probability p, else 1 / (1 − p)

    x (n, …, in_features), one mask for all its rows, another at each application; the bias is never dropped.
    Parameters, their draws and errors are Linear's; the buffer `random` is Dropout's.

    L. Wan et al., "Regularization of neural networks using DropConnect", ICML 2013.
    """

    def __init__(self, in_features: int, out_features: int, p: float = 0.5) -> None:
        self.p = nonnegative("DropConnect: p", p, 1.0)
        self.random = np.zeros(2, np.int64)
        super().__init__(in_features, out_features)

    def initialize(self, rng: Any) -> None:
        """Draw the parameters as Linear does, take another seed, and begin to count again."""
        rng = np.random.default_rng(rng)
        super().initialize(rng)
        self.random[:] = seed_of(rng), 0

    def buffers(self) -> dict[str, np.ndarray]:
        """What is kept but not learned: the seed, and how many masks were drawn."""
        return {"random": self.random}

    def forward(self, x: Any) -> np.ndarray:
        x = self.checked_input(x, self.weight, (self.in_features, self.out_features))
        self.x, self.lengths, self.W, self.drawn = as_rows(x), x.shape[:-1], self.weight.data, None
        if is_training() and self.p > 0:
            self.W, self.drawn = kernels.dropout(self.W, self.random, self.p)
        y = kernels.matmul(self.x, self.W, bias=None if self.bias is None else self.bias.data)
        return from_rows(y, self.lengths)

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        if self.drawn is None:
            return super().backward(dy)
        dy = as_rows(dy)
        if self.weight.requires_grad:
            dV = kernels.matmul(self.x.T, dy)
            self.weight.add_grad(kernels.dropout_grad(dV, self.drawn, self.p))
        if self.bias is not None:
            self.bias.add_grad_of(kernels.sum, dy, axis=0)
        return self.input_gradient(dy)

    def __repr__(self) -> str:
        return f"DropConnect({self.in_features}, {self.out_features}, {self.p})"


def seed_of(rng: Any) -> int:
    """A seed of 63 bits from a child of a stream, a `numpy.random.Generator` or what makes one; see Dropout."""
    (child,) = np.random.default_rng(rng).spawn(1)
    return int(child.integers(2**63))
