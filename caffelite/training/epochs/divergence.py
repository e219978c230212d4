"""Explain why a training diverged: name the data, parameter or gradient, the epoch and the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite._support.tracebacks import error_note
from caffelite.core.sparse import finite_rows
from caffelite.core.tensor import Tensor
from caffelite.data.generator import Batch
from caffelite.files.state import BaseModel
from caffelite.optimizers import TrainingDiverged
from caffelite.training.step import Step


class annotate_step(error_note):
    """A context for a step: adds `epoch` and `batch` of `position`, counted from 1, to an exception.

    For TrainingDiverged it adds the reason: data or a parameter that is not finite. Otherwise it suggests to scale
    large data, or a smaller learning rate. It also names the first gradient that was not finite.
    """

    def __init__(self, position: Any, batches: Sequence[Batch], step: Step) -> None:
        self.position, self.batches, self.step, self.model = position, batches, step, step.model

    def location(self) -> str:
        number = self.position.batch // self.step.batches_per_step + 1
        return f"epoch {self.position.epoch + 1}, {self.step.unit} {number}"

    def what(self) -> str:
        return (
            f"in the step of {self.location()}, called by fit"
            if self.step.is_training
            else "in a step of an evaluation"
        )

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if not isinstance(error, TrainingDiverged):
            super().__exit__(kind, error, traceback)
        else:
            location = self.location()
            in_forward = str(error).startswith("the loss")  # then the gradients are still from the step before
            gradient = None if in_forward else first_nonfinite_gradient(self.model)
            first = f"; in the backward pass, the gradient of {gradient} was the first" if gradient else ""
            reason = "".join(map(describe_nonfinite, self.batches))
            if not reason:
                scale = describe_scale(self.batches[0].inputs[0])
                reason = f"{describe_nonfinite_parameter(self.model)}; {scale}try a smaller learning rate"
            raise TrainingDiverged(f"{location}: {error}{first}{reason}") from None


def describe_nonfinite(data: Batch) -> str:
    """Return text that says which data is not finite, and in how many rows."""
    y_names = ["y"] if len(data.targets) == 1 else [f"y[{i}]" for i in range(len(data.targets))]
    named_arrays = [*[("x", x) for x in data.inputs], *zip(y_names, data.targets, strict=True)]
    bad = [(name, ~finite_rows(a)) for name, a in named_arrays if a.dtype.kind == "f"]
    return "".join([_count_rows(name, rows) for name, rows in bad if rows.any()])


def _count_rows(name: str, is_bad: np.ndarray) -> str:
    count, first = is_bad.sum(), "first " if is_bad.sum() > 1 else ""
    return f"; {name} is not finite in {count} of {len(is_bad)} rows, {first}in row {is_bad.argmax()} of these"


def describe_scale(x: Any) -> str:
    """Return text that says how to scale x if it has numbers too large for the usual learning rates, or ""."""
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f" or abs(x).max() <= 10:
        return ""
    are_pixels = x[0].size >= 64 and x.min() >= 0 and x.max() <= 255 and (x == x.round()).all()
    scaled = "x / 255" if are_pixels else "(x - x.mean(axis=0)) / x.std(axis=0)"
    return f"x reaches {abs(x).max():.5g}: scale it, {scaled}, or "


def describe_nonfinite_parameter(model: BaseModel) -> str:
    """Return text that names the first parameter that is not finite, or "". It was so before the step."""
    names = [name for name, p in _named_parameters(model) if not np.isfinite(p._data).all()]
    return f"; the parameter {names[0]} is not finite" if names else ""


def first_nonfinite_gradient(model: BaseModel) -> str | None:
    """Return the parameter with the first gradient in the backward pass that is not finite, or None.

    The backward pass goes through the layers from the last to the first.
    """
    layers: dict[str, list[tuple[str, Tensor]]] = {}
    for name, p in _named_parameters(model):
        layers.setdefault(name.rpartition(".")[0], []).append((name, p))
    for layer in reversed(layers.values()):
        for name, p in layer:
            if p._has_gradient and p._gradient is not None and not np.isfinite(p._gradient).all():
                return name
    return None


def _named_parameters(model: BaseModel) -> list[tuple[str, Tensor]]:
    """Return the parameters with their names, or [] if two have the same name."""
    try:
        return list(model.named_parameters().items())
    except ValueError:
        return []
