"""Initializers: (shape, rng) -> array. `shape` is a weight's, inputs first; `rng` a `numpy.random.Generator`."""

from collections.abc import Callable

import numpy as np

Initializer = Callable[[tuple[int, ...], np.random.Generator], np.ndarray]


def uniform(bound: float) -> Initializer:
    """Uniform in (−bound, bound), float64.

    With bound 1/√fan_in, what PyTorch's Linear draws; after Y. LeCun, L. Bottou, G. Orr and K.-R. Müller, "Efficient
    BackProp", 1998, section 4.6, who ask for a spread of 1/√fan_in.
    """
    return lambda shape, rng: rng.uniform(-bound, bound, shape)
