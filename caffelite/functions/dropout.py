"""Dropout of elements and of weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import check_nonnegative
from caffelite.core.function import Function
from caffelite.core.modes import is_training
from caffelite.core.shard import current_shard
from caffelite.core.sparse import is_sparse
from caffelite.functions.linear import Linear
from caffelite.functions.shape import as_rows, restore_axes

__all__ = ["DropConnect", "Dropout"]


class Dropout(Function, recordable=True, rowwise=True):
    """Dropout: in training y = m ∘ x, dx = m ∘ dy; m = 0 with probability p, else 1 / (1 − p). In inference y = x.

    In training, each call draws a new mask m. The mask depends on the layer's seed, the number of earlier masks, and
    each element's position in C order (Philox counters). So backward draws it again instead of storing it, and any
    number of threads draws the same mask. p is rounded to a multiple of 2⁻¹⁶. The buffer `random` holds the seed and
    the number of masks. `forward` keeps a copy of it, `rng_state`, for backward.

    The seed comes from the operating system, or from a child of the `rng` given to `initialize`. So adding a Dropout
    does not change the initial values of other layers.

    As in PyTorch, an element is dropped by multiplying it by 0, so NaN and infinities become NaN rather than disappear.
    Raise ValueError unless 0 ≤ p < 1.

    N. Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = check_nonnegative("Dropout: p", p, 1.0)
        self.random = np.zeros(2, np.int64)
        self.initialize(None)

    def initialize(self, rng: Any) -> None:
        """Take another seed, and count the masks from 0 again."""
        self.random[:] = draw_seed(rng), 0

    def buffers(self) -> dict[str, np.ndarray]:
        """Return the seed and the number of masks so far, which are saved but not learned."""
        return {"random": self.random}

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.rng_state = None
        if is_training() and self.p > 0:
            self.offset = current_shard().offset(x.size)
            x, self.rng_state = kernels.dropout(x, self.random, self.p, self.offset)
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy if self.rng_state is None else kernels.dropout_grad(dy, self.rng_state, self.p, self.offset)

    def __repr__(self) -> str:
        return f"Dropout({self.p})"


class DropConnect(Linear, recordable=True, rowwise=True):
    """A Linear layer that drops weights in training as Dropout drops elements,  y = x V + b,  V = M ∘ W:

        dW = M ∘ (xᵀ dy),  db = Σ dy over the rows,  dx = dy Vᵀ,  M: 0 with probability p, else 1 / (1 − p)

    x is (n, …, in_features). All rows of x share the same mask M, and each call draws a new one. The bias is never
    dropped. Shapes, parameters and errors are as in Linear, and the buffer `random` as in Dropout.

    L. Wan et al., "Regularization of neural networks using DropConnect", ICML 2013.
    """

    def __init__(self, in_features: int, out_features: int, p: float = 0.5) -> None:
        self.p = check_nonnegative("DropConnect: p", p, 1.0)
        self.random = np.zeros(2, np.int64)
        super().__init__(in_features, out_features)

    def initialize(self, rng: Any) -> None:
        """Draw the parameters as Linear does, take another seed, and count the masks from 0 again."""
        rng = np.random.default_rng(rng)
        super().initialize(rng)
        self.random[:] = draw_seed(rng), 0

    def buffers(self) -> dict[str, np.ndarray]:
        """Return the seed and the number of masks so far, which are saved but not learned."""
        return {"random": self.random}

    def forward(self, x: Any) -> np.ndarray:
        x = self.check_input(x, self.weight, (self.in_features, self.out_features))
        self.x, self.W, self.lengths, self.rng_state = as_rows(x), self.weight.data, x.shape[:-1], None
        if is_training() and self.p > 0:
            self.W, self.rng_state = kernels.dropout(self.W, self.random, self.p)  # V
        y = kernels.matmul(self.x, self.W, bias=None if self.bias is None else self.bias.data)
        return restore_axes(y, self.lengths)

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        if self.rng_state is None:
            return super().backward(dy)
        dy = as_rows(dy)
        if self.weight.requires_grad:
            dV = kernels.matmul(self.x.T, dy)
            self.weight.add_grad(kernels.dropout_grad(dV, self.rng_state, self.p))
        if self.bias is not None:
            self.bias.add_grad_of(kernels.sum, dy, axis=0)
        if is_sparse(self.x) or not self.wants_gradient(0):
            return None
        return restore_axes(kernels.matmul(dy, self.W.T, kernels.output_like(self.x)), self.lengths)

    def __repr__(self) -> str:
        return f"DropConnect({self.in_features}, {self.out_features}, {self.p})"


def draw_seed(rng: Any) -> int:
    """Return a 63-bit seed from a child of a `numpy.random.Generator`, which may be given by its seed; see Dropout."""
    (child,) = np.random.default_rng(rng).spawn(1)
    return int(child.integers(2**63))
