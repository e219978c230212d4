"""Settings of convolutions that several test files use."""

import numpy as np
import pytest

import caffelite as cl

CONVOLUTIONS = [cl.Conv1d, cl.Conv2d, cl.ConvTranspose1d, cl.ConvTranspose2d]
TRANSPOSED = [cl.ConvTranspose1d, cl.ConvTranspose2d]
every_convolution = pytest.mark.parametrize("layer", CONVOLUTIONS, ids=lambda layer: layer.__name__)


def uniform(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


GOOD = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
