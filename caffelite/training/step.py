"""A training step on one batch, as you would write it. `epochs/base.py` records it once and replays it after that."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite.core.modes import inference
from caffelite.data.generator import Batch
from caffelite.files.state import BaseModel
from caffelite.optimizers import Optimizer
from caffelite.training.objective import Objective


class Step:
    """A training step. It returns the model's output, or a tuple if the model has several."""

    is_training = True
    batches_per_step = 1  # how many batches of the data make a step
    unit = "batch"  # the name of a step's data in messages

    def __init__(
        self, model: BaseModel, objective: Objective, optimizer: Optimizer, clip_norm: float | None = None
    ) -> None:
        self.model, self.objective, self.optimizer, self.clip_norm = model, objective, optimizer, clip_norm

    def __call__(self, batch: Batch) -> Any:
        self.optimizer.zero_grad()
        outputs = self.model(*batch.inputs)
        loss = self.objective(outputs, batch)
        loss.backward()
        self.optimizer.step(clip_norm=self.clip_norm)
        return outputs

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Add the step's loss and metrics to the sums that the cursor points to."""
        self.objective.measure(cursor, outputs, batch)

    def results(self, sums: np.ndarray, outputs: list[np.ndarray], targets: list[np.ndarray]) -> np.ndarray:
        """Return loss and metrics of an epoch as one row, from its sums and all its outputs and targets."""
        return self.objective.results(sums, outputs, targets)

    def count_steps(self, batches: int) -> int:
        """Return the number of steps on this many batches of an epoch."""
        return -(-batches // self.batches_per_step)

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be equal when training continues from a checkpoint, by name."""
        return {"clip_norm": self.clip_norm}

    def key(self) -> tuple[Any, ...]:
        """Return the values that a recorded step depends on. The objects that it uses are in `dependencies`."""
        return (self.objective.names, self.clip_norm)

    def dependencies(self) -> tuple[Any, ...]:
        """Return the objects that a recorded step depends on."""
        return (*self.objective.dependencies, self.optimizer)


class EvaluationStep(Step):
    """An evaluation step: compute the model's outputs and the loss, without gradients."""

    is_training = False

    def __init__(self, model: BaseModel, objective: Objective) -> None:
        self.model, self.objective, self.clip_norm = model, objective, None

    def __call__(self, batch: Batch) -> Any:
        with inference():
            outputs = self.model(*batch.inputs)
            self.objective.compute_loss(outputs, batch)
        return outputs

    def results(self, sums: np.ndarray, outputs: list[np.ndarray], targets: list[np.ndarray]) -> np.ndarray:
        with inference():
            return super().results(sums, outputs, targets)

    def dependencies(self) -> tuple[Any, ...]:
        return self.objective.dependencies
