"""The states of the random streams of Python and NumPy, to compare."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

STREAMS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)


def get_state(stream: Any) -> Any:
    """Return the whole state of a random stream, also a normal number that it keeps for later.

    The operating system's random numbers have a new state each time.
    """
    if isinstance(stream, random.SystemRandom):
        return object()
    if isinstance(stream, random.Random):
        return stream.getstate()
    if isinstance(stream, np.random.RandomState):
        return stream.get_state(legacy=False)
    return getattr(stream, "bit_generator", stream).state


def are_equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(are_equal(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b
