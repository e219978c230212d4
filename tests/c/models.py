"""Models that are written as C."""

import numpy as np
import pytest

import caffelite as cl
from tests.tools.fuzz_c_export import CC

needs_compiler = pytest.mark.skipif(CC is None, reason="there is no C compiler")
F32, F64 = np.float32, np.float64


def rows(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


class Sequences(cl.Model):
    """A model that does this with sequences and integers."""

    takes_indices = (False, True)

    def __init__(self, compute):
        super().__init__(seed=0)
        self.compute, self.one, self.two = compute, cl.GRU(3, 2), cl.LSTM(3, 2, layers=2)
        self.table = cl.Embedding(5, 3)

    def call(self, x, n):
        return self.compute(self, x, n)


class Calling(cl.Model):
    """A model that does this, and has a layer `f` and a parameter."""

    def __init__(self, compute, dtype=F32):
        super().__init__(seed=0, dtype=dtype)
        self.compute, self.f, self.scale = compute, cl.Linear(3, 3), cl.LayerNorm(3)
        self.half = cl.Tensor(np.full(1, 0.5, dtype))
        self.w = cl.Tensor(np.array([0.5, -2, 3], dtype))
        self.attention, self.gru = cl.MultiHeadAttention(3, 1), cl.GRU(3, 3)

    def call(self, x):
        return self.compute(self, x)
