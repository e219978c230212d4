"""The options of `fit`, as one object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caffelite.core.arrays import check_positive, check_positive_integer
from caffelite.training.history import History
from caffelite.training.metrics.base import resolve_metrics


@dataclass
class FitOptions:
    """The options of one call of `Model.fit`, which describes them."""

    loss: Any
    optimizer: Any
    epochs: int
    batch_size: int | None
    shuffle: bool | None
    validation_data: Any
    validation_split: float
    callbacks: Iterable[Callable[[int, History], Any]]
    metrics: Any  # after `check`, the metrics by their names
    verbose: int | str
    seed: int | None
    sample_weight: Any
    class_weight: Mapping[int, float] | str | None
    clip_norm: float | None
    accumulate: int
    resume: Any
    precision: str | None
    lengths: Any

    def check(self) -> None:
        """Check the options that need neither the model nor its data. Raise ValueError or TypeError."""
        if isinstance(self.loss, str) or isinstance(self.optimizer, str):
            from caffelite._support.hints import string_hint  # only for errors

            got, hint = (self.loss, self.optimizer), string_hint(loss=self.loss, optimizer=self.optimizer)
            raise TypeError(f"fit takes a loss and an optimizer as objects, got {got}{hint}")
        self.epochs = check_positive_integer("epochs", self.epochs, math.inf)
        self.metrics = resolve_metrics(self.metrics)
        if self.clip_norm is not None:
            self.clip_norm = check_positive("clip_norm", self.clip_norm)
        self.accumulate = check_positive_integer("accumulate", self.accumulate)

    def batch_options(self) -> dict[str, Any]:
        """Return the options that batches have of their own, by name."""
        return {"batch_size": self.batch_size, "shuffle": self.shuffle}
