"""`attributions`: integrated gradients.

M. Sundararajan, A. Taly and Q. Yan, "Axiomatic attribution for deep networks", ICML 2017.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite._support.warnings import warn
from caffelite.attribution.explain import read_inputs, select_output
from caffelite.core.arrays import check_positive_integer
from caffelite.core.gradcheck import gradient
from caffelite.core.modes import inference
from caffelite.model.model import Model
from caffelite.program.program import Program

TOLERANCE = 1e-3  # for the sum of a row's attributions, relative to the largest output
MAX_STEPS = 1600
BLOCK_SIZE = 1 << 18  # elements of the points whose gradients are computed at once


def attributions(model: Model, x: Any, output: Any = None, baseline: Any = 0, steps: int = 50) -> np.ndarray:
    """Attribute the outputs to the elements of x by integrated gradients, in float64:

        attributions = (x − b) · mean over t of df/dx at b + t (x − b),   t = ½/steps, 1½/steps … 1 − ½/steps

    b is the baseline. The attributions of a row add up to f(x) − f(b), within 1e-3 of the largest output for any row or
    baseline. If `steps` is too small for a row, it is doubled, up to 1,600. If that is still not enough, there is a
    warning. The shape is that of x for one output, and (…, k) for outputs (n, k).

    Parameters
    ----------
    model : Model
        It takes one input of floats, and its rows must not depend on each other.
    x : array-like (n, …)
    output : int or tuple of int, optional
        As for `explain`.
    baseline : array-like
        A number, a row, or one row for each row of x: an input without information, such as a black image.
    steps : int
        How many gradients to compute for each row.

    Raise TypeError for several inputs, indices and sparse matrices. Raise ValueError if the baseline does not fit, and
    for numbers that are not finite. The model and its gradients do not change.
    """
    steps = check_positive_integer("steps", steps)
    inputs, _ = read_inputs(model, "x", x)
    if len(inputs) > 1 or inputs[0].dtype.kind != "f":
        raise TypeError("attributions: expected a model that takes one input of floats; cl.explain takes any input")
    rows = inputs[0].astype(np.float64)
    try:
        starts = np.broadcast_to(np.asarray(baseline, np.float64), rows.shape)
    except ValueError:
        shape = np.shape(baseline)
        raise ValueError(f"attributions: expected a baseline for rows {rows.shape}, got shape {shape}") from None
    for name, values in (("x", rows), ("the baseline", starts)):
        if not np.isfinite(values).all():
            raise ValueError(f"attributions: {name} has a number that is not finite in row {_bad_row(values)}")
    gradients = _Gradients(model, output, inputs[0].dtype)
    first, last = gradients.outputs(starts), gradients.outputs(rows)
    for values in (first, last):
        if not np.isfinite(values).all():
            raise ValueError(f"attributions: the output for row {_bad_row(values)} is not finite")
    largest = max(np.abs(first).max(), np.abs(last).max())
    result, left = np.zeros((*rows.shape, first.shape[1])), np.arange(len(rows))
    while True:
        result[left] = _integrate(gradients, rows[left], starts[left], steps)
        sums = result.reshape(len(rows), -1, first.shape[1]).sum(axis=1)
        gaps = np.abs(sums - (last - first))
        left = np.flatnonzero((gaps > TOLERANCE * largest).any(axis=1))
        if not len(left) or 2 * steps > MAX_STEPS:
            break
        steps *= 2
    if len(left):
        i = left[gaps[left].max(axis=1).argmax()]
        text = f"the attributions of row {i} miss its output by {gaps[i].max():.2g} after {steps:,} steps"
        warn(f"{text}: there may be jumps between the baseline and x", UserWarning)
    return result[..., 0] if gradients.is_single else result


def _bad_row(values: np.ndarray) -> int:
    return int(np.argwhere(~np.isfinite(values))[0, 0])


def _integrate(gradients: _Gradients, rows: np.ndarray, starts: np.ndarray, steps: int) -> np.ndarray:
    """Return the attributions (n, …, outputs) from this many gradients for each row."""
    n, row_shape, dtype = len(rows), rows.shape[1:], gradients.dtype
    first, differences = starts.astype(dtype), (rows - starts).astype(dtype)
    times = ((np.arange(steps) + 0.5) / steps).astype(dtype).reshape(-1, *[1] * len(row_shape))
    sums = np.zeros((n, *row_shape, gradients.count))
    size = min(max(1, BLOCK_SIZE // max(1, rows[0].size)), n * steps)
    for start in range(0, n * steps, size):
        index = np.minimum(np.arange(start, start + size), n * steps - 1)  # the last block is as large as the others
        row, step = np.divmod(index, steps)
        points = differences[row]
        points *= times[step]
        points += first[row]
        used = min(size, n * steps - start)
        block_rows, places = np.unique(row[:used], return_index=True)
        for j in range(gradients.count):
            sums[block_rows, ..., j] += np.add.reduceat(gradients(points, j)[:used], places, axis=0, dtype=np.float64)
    return (rows - starts)[..., None] * sums / steps


class _Gradients:
    """The gradients of a model's outputs with respect to its input, by a Program for each number of points."""

    def __init__(self, model: Model, output: Any, dtype: np.dtype) -> None:
        self.model, self.output, self.dtype = model, output, dtype
        self.programs: dict[int, Program] = {}
        self.count, self.is_single = 0, False

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs (n, k) that the model predicts."""
        y = select_output(self.model.predict(x.astype(self.dtype)), self.output, "attributions").astype(np.float64)
        self.is_single = y.ndim == 1 or y.shape[1] == 1
        y = y.reshape(len(y), -1)
        self.count = y.shape[1]
        return y

    def __call__(self, points: np.ndarray, j: int) -> np.ndarray:
        """Return the gradient of output j at these points."""
        program = self.programs.get(len(points))
        if program is None:
            program = self.programs[len(points)] = Program(self._step)
        weights = np.zeros((len(points), self.count), self.model.dtype)
        weights[:, j] = 1
        with inference():
            return program(points, weights)

    def _step(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        def weighted_sum(t: Any) -> Any:
            y = select_output(self.model(t), self.output, "attributions")
            return (y * (weights if y.ndim == 2 else weights[:, 0])).sum()

        return gradient(weighted_sum, x)
