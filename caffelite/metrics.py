"""Metrics: callables (outputs, targets) -> float, the mean over the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The share of rows whose largest output is at the target: outputs (n, C), targets (n,) integers.

    Raises ValueError for other shapes.
    """
    outputs, targets = np.asarray(outputs), np.asarray(targets)
    if outputs.ndim != 2 or targets.shape != outputs.shape[:1]:
        raise ValueError(f"accuracy got outputs of shape {outputs.shape} and targets of shape {targets.shape}")
    return float((outputs.argmax(axis=1) == targets).mean())


def named(metrics: Iterable[str | Metric]) -> dict[str, Metric]:
    """Metrics by their names in the history; ValueError for an unknown name or one taken twice, TypeError otherwise."""
    if isinstance(metrics, str) or callable(metrics):
        raise TypeError(f"metrics: expected a list such as ['accuracy'], got {metrics!r}")
    result: dict[str, Metric] = {}
    for metric in metrics:
        if isinstance(metric, str) and metric != "accuracy":
            raise ValueError(f"metrics: there is 'accuracy', got {metric!r}; pass a callable for any other")
        if not isinstance(metric, str) and not callable(metric):
            raise TypeError(f"metrics: expected 'accuracy' or a callable, got {metric!r}")
        name: Any = metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
        if name in result or name == "loss":
            raise ValueError(f"metrics: the name {name!r} is taken")
        result[name] = accuracy if isinstance(metric, str) else metric
    return result
