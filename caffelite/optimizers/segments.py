"""Segments: parameters that are neighbours in memory, which an optimizer updates together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from caffelite.core.arrays import FLOATS
from caffelite.core.tensor import Tensor


class Segment(NamedTuple):
    """Parameters of one group that are neighbours in memory, with their gradients; both as vectors."""

    data: np.ndarray
    gradient: np.ndarray
    state: np.ndarray | None  # this segment's part of the rule's vectors, one row each
    hyper: np.ndarray
    # The gradient's rows that may not be 0, if the parameter keeps a list. Such a parameter is its own segment.
    used_rows: np.ndarray | None
    is_sparse: bool  # whether only the used rows change
    start: int  # the position of its first element among all elements of its dtype
    parameters: slice  # its parameters among the optimizer's


def find_segments(
    parameters: Sequence[Tensor],
    group_indices: Sequence[int],
    hyper: np.ndarray,
    vectors: dict[np.dtype, np.ndarray] | None,
) -> list[Segment]:
    """Collect the parameters that have a gradient, and join those that are neighbours in memory.

    `group_indices` has the group of each parameter, which is its row in `hyper`. `vectors` are the rule's, as rows, for
    each dtype.
    """
    segments: list[Segment] = []
    position = dict.fromkeys(FLOATS, 0)
    for i, (p, group) in enumerate(zip(parameters, group_indices, strict=True)):
        start, indices = position[p.dtype], slice(i, i + 1)
        position[p.dtype] += p.size
        present_gradient = p._present_gradient()
        if present_gradient is None:
            continue
        data, gradient = p._data.reshape(-1), present_gradient.reshape(-1)
        last = segments[-1] if segments and segments[-1].used_rows is None and p._used_rows is None else None
        if last and last.data.dtype == p.dtype and last.parameters.stop == i and group_indices[i - 1] == group:
            both_data, both_gradients = join_views(last.data, data), join_views(last.gradient, gradient)
            if both_data is not None and both_gradients is not None:
                data, gradient, start = both_data, both_gradients, last.start
                indices = slice(last.parameters.start, i + 1)
                segments.pop()
        state = None if not vectors else vectors[p.dtype][:, start : start + data.size]
        segments.append(Segment(data, gradient, state, hyper[group], p._used_rows, p.is_sparse, start, indices))
    return segments


def join_views(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Return the vector of a and b together if b follows a in the same memory, otherwise None."""
    if a.base is None or a.base is not b.base or a.base.ndim != 1 or not a.base.flags.c_contiguous:
        return None
    origin, start_a, start_b = (array.__array_interface__["data"][0] for array in (a.base, a, b))
    if start_a + a.nbytes != start_b:
        return None
    first = (start_a - origin) // a.itemsize
    return a.base[first : first + a.size + b.size]
