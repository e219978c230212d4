"""Nets, steps and Functions that the tests of programs record."""

import itertools

import numpy as np

import caffelite as cl
from caffelite.program import PASSES

COMBINATIONS = [list(some) for n in range(len(PASSES) + 1) for some in itertools.combinations(PASSES, n)]


def name_passes(passes):
    return "+".join(p.__name__ for p in passes) or "no pass"


def small_net(dtype=np.float32, seed=0):
    return cl.Model([cl.Linear(3, 8), cl.ReLU(), cl.Linear(8, 8), cl.ReLU(), cl.Linear(8, 4)], seed=seed, dtype=dtype)


def batch(seed, dtype=np.float32, rows=6):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 3)).astype(dtype), rng.integers(0, 4, rows)
