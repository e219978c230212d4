"""Initializers: (shape, rng) -> array. `shape` is a weight's, inputs first; `rng` a `numpy.random.Generator`."""

import math

import numpy as np


def uniform_fan_in(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Uniform in (−1/√fan_in, 1/√fan_in), fan_in = shape[0]; float64.

    Y. LeCun, L. Bottou, G. Orr and K.-R. Müller, "Efficient BackProp", 1998, section 4.6, ask for a spread of
    1/√fan_in; this is the uniform form that PyTorch's Linear uses.
    """
    bound = 1 / math.sqrt(shape[0]) if shape[0] else 0.0
    return rng.uniform(-bound, bound, shape)
