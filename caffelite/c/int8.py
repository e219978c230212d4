"""Weights as integers of one byte, with a scale for each output, and how far this moves the outputs."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from caffelite import functions
from caffelite.model.export_graph import ExportGraph, apply_to_rows, random_rows

RANDOM_ROWS = 256  # on which the error is measured

#: The Functions whose `weight` becomes int8.
QUANTIZED_CLASSES: tuple[type, ...] = (functions.Linear, functions.DropConnect, functions.Conv1d, functions.Conv2d)
QUANTIZED_CLASSES += (functions.ConvTranspose1d, functions.ConvTranspose2d)


class Int8Weight(NamedTuple):
    """A weight of int8, in its own shape, and a scale for each output:  weight ≈ numbers · scale."""

    numbers: np.ndarray
    scale: np.ndarray
    product: np.ndarray


def quantize_weight(f: Any) -> Int8Weight:
    """Round the weight of a layer. The largest weight of an output becomes ±127. ValueError unless all are finite."""
    weight, shape = f.weight.data, f.weight.shape
    if not np.isfinite(weight).all():
        raise ValueError(f"export: quantize=True takes finite weights, and {f!r} has weights that are not finite")
    outputs: tuple[int, ...] = (0,)
    if isinstance(f, functions.Linear):
        outputs = (1,)
    elif isinstance(f, functions.ConvTranspose2d):  # (inputs, outputs of a group, …)
        weight, outputs = weight.reshape(f.groups, -1, *shape[1:]), (0, 2)
    scale = abs(weight).max(axis=tuple(set(range(weight.ndim)) - {*outputs}), keepdims=True) / 127
    scale = np.where(scale == 0, 1, np.maximum(scale, np.finfo(scale.dtype).tiny)).astype(scale.dtype)
    numbers = np.rint(weight / scale).astype(np.int8)
    product = (numbers * scale).astype(weight.dtype)
    return Int8Weight(numbers.reshape(shape), scale.reshape(-1), product.reshape(shape))


class Rounding(NamedTuple):
    """How far int8 weights move the outputs of random rows; `output` is the largest of the outputs themselves."""

    largest: float
    mean: float
    output: float


def round_weights(model: Any) -> Any:
    """Return a copy of a model whose layers compute with rounded weights."""
    rounded = copy.deepcopy(model)
    for f in rounded.all_functions():
        if type(f) in QUANTIZED_CLASSES:
            f.__class__ = _rounding_class(type(f))
    return rounded


def measure_rounding(graph: ExportGraph, rounded: Any) -> Rounding:
    """Apply the model with its own weights and with rounded ones to the same random rows."""
    rows = random_rows(graph, RANDOM_ROWS, np.random.default_rng(0))
    exact, approximate = (
        np.concatenate([y.reshape(-1) for y in apply_to_rows(model, rows)]) for model in (graph.model, rounded)
    )
    with np.errstate(invalid="ignore"):
        is_same = (exact == approximate) | (np.isnan(exact) & np.isnan(approximate))
        differences = np.where(is_same, 0, abs(exact - approximate))
    differences[np.isnan(differences)] = np.inf  # at least one is not a number
    largest = abs(exact[np.isfinite(exact)]).max(initial=0)
    return Rounding(float(differences.max()), float(differences.mean()), float(largest))


def _rounding_class(kind: Any) -> type:
    """Make a subclass of a layer that rounds its weight while it computes. All others that read it get it as it is."""

    def forward(self: Any, x: np.ndarray) -> np.ndarray:
        exact = self.weight.data.copy()
        self.weight.data = quantize_weight(self).product
        try:
            return kind.forward(self, x)
        finally:
            self.weight.data = exact

    return type(kind)(kind.__name__, (kind,), {"forward": forward}, recordable=True)
