"""Random batches with which a training step is recorded and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite.core.arrays import as_array
from caffelite.functions.losses.base import unwrap_penalized
from caffelite.functions.losses.classification import FocalLoss, HingeLoss, SoftmaxLoss
from caffelite.functions.losses.multi_output import Losses
from caffelite.model.export_graph import random_rows, trace_graph
from caffelite.model.model import Model
from caffelite.model.shapes import dry_run, input_dtypes, zeros
from caffelite.model.tracing import to_list

LABEL_LOSSES = (SoftmaxLoss, HingeLoss, FocalLoss)


def make_inputs(model: Model, shapes: Sequence[tuple[int, ...]], rows: int) -> list[np.ndarray]:
    """Return a random batch of inputs, with valid indices. A model that can't be traced gets zeros."""
    model.all_functions()
    dtypes = input_dtypes(model, [False] * len(shapes))
    try:
        inputs = random_rows(trace_graph(model, shapes, lambda kind: True), rows, np.random.default_rng(0))
    except (TypeError, ValueError):
        return zeros([(rows, *shape) for shape in shapes], dtypes)
    return [x.astype(dtype) if x.dtype.kind == "f" else x for x, dtype in zip(inputs, dtypes, strict=True)]


def make_targets(model: Model, loss: Any, inputs: list[np.ndarray], example: Any) -> list[np.ndarray]:
    """Return a batch of targets: the example, or random ones for the loss and the shape of the model's outputs."""
    if example is not None:
        arrays = [
            as_array(x, "export_training: targets") for x in (example if isinstance(example, tuple) else (example,))
        ]
        if wrong := [x.shape for x in arrays if x.shape[:1] != (len(inputs[0]),)]:
            raise ValueError(f"export_training: targets have shape {wrong[0]}; expected {len(inputs[0])} rows")
        kinds: dict[str, Any] = {"f": model.dtype, "i": np.int64, "u": np.int64, "b": np.bool_}
        return [x.astype(kinds[x.dtype.kind]) for x in arrays]
    with dry_run(model):
        outputs = [y.shape for y in to_list(model(*inputs))]
    losses = list(loss.losses) if isinstance(loss, Losses) else [loss] * min(len(outputs), 1)
    rng = np.random.default_rng(1)
    return [
        _draw_targets(unwrap_penalized(term), shape, model.dtype, rng)
        for term, shape in zip(losses, outputs, strict=False)
    ]


def _draw_targets(loss: Any, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    if isinstance(loss, LABEL_LOSSES):
        return rng.integers(0, shape[-1], shape[:-1])
    # A QuantileLoss has one target a row, and a GaussianLoss one for two scores.
    for candidate in (shape, shape[:1], (*shape[:-1], shape[-1] // 2) if shape else ()):
        try:
            getattr(loss, "check_targets", lambda *_: None)(np.zeros(candidate, dtype), shape)
        except ValueError:
            continue
        return rng.integers(0, 2, candidate).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)
