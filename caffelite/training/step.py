"""A step on a batch: written here, recorded and replayed in `epochs.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.modes import inference
from caffelite.core.recording import Recording
from caffelite.data.generator import Batch
from caffelite.optimizers import Optimizer
from caffelite.training.objective import Objective


class Step:
    """A step of a training. It returns the model's outputs, a tuple of them if it has several."""

    trains = True

    def __init__(self, model: Any, objective: Objective, optimizer: Optimizer, clip_norm: float | None = None) -> None:
        self.model, self.objective, self.optimizer, self.clip_norm = model, objective, optimizer, clip_norm

    def __call__(self, batch: Batch) -> Any:
        self.optimizer.zero_grad()
        outputs = self.model(*batch.inputs)
        loss = self.objective(outputs, batch)
        loss.backward()
        self.optimizer.step(clip_norm=self.clip_norm)  # type: ignore[call-arg]  # the base class adds clip_norm
        return outputs

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Add what the step has measured to the sums that a cursor points to."""
        self.objective.measure(cursor, outputs, batch)

    def results(self, sums: np.ndarray, outputs: list[np.ndarray], targets: np.ndarray) -> np.ndarray:
        """A row of loss and metrics for an epoch, of its sums, and of the outputs and targets of all its rows."""
        return self.objective.results(sums, outputs, targets)

    def used(self) -> tuple[Any, ...]:
        """The objects on which a recorded step depends."""
        return (self.objective.loss, self.optimizer, *self.objective.metrics.values())

    def warn_of_untrained(self) -> None:
        """Warn of parameters that got a gradient and that the optimizer does not have.

        While a step is recorded, these are all that take part in it, and else the model's.
        """
        recording, trained = kernels.recorder(), self.optimizer.parameters
        if isinstance(recording, Recording):
            untrained = recording.untrained(trained)
        else:
            known = set(trained)
            untrained = [
                p for p in self.model.parameters() if p.requires_grad and p.grad is not None and p not in known
            ]
        if untrained:
            names = {p: name for name, p in self.model.named_parameters().items()}
            named = ", ".join([names.get(p, p.name or repr(p)) for p in untrained])
            self.objective.warn_once(
                f"not trained: {named}. A gradient is computed for each, but the optimizer does not have them. Make "
                "a new optimizer, or freeze them: requires_grad = False"
            )


class EvaluationStep(Step):
    """A step of an evaluation: the model's outputs and the loss, without gradients."""

    trains = False

    def __init__(self, model: Any, objective: Objective) -> None:
        self.model, self.objective = model, objective
        self.optimizer = self.clip_norm = None  # type: ignore[assignment]

    def __call__(self, batch: Batch) -> Any:
        with inference():
            outputs = self.model(*batch.inputs)
            self.objective.of(outputs, batch)
        return outputs

    def results(self, sums: np.ndarray, outputs: list[np.ndarray], targets: np.ndarray) -> np.ndarray:
        with inference():
            return super().results(sums, outputs, targets)

    def warn_of_untrained(self) -> None:
        """An evaluation trains nothing."""
