"""A step on a part of a batch, and its objective."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.function import Function
from caffelite.core.recording import call_python
from caffelite.core.shard import current_shard
from caffelite.core.tensor import Tensor
from caffelite.data.generator import Batch
from caffelite.distributed.allreduce import Summation
from caffelite.distributed.mpi import Ranks, RowsOfRank
from caffelite.distributed.stop_signal import Stop
from caffelite.functions.losses.base import Loss
from caffelite.functions.losses.multi_output import Losses
from caffelite.optimizers import Optimizer
from caffelite.training.objective import Objective, check_finite
from caffelite.training.step import EvaluationStep, Step


class StepOfPart(Step):
    """One step of all ranks, each on its own rows of the batch."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        optimizer: Optimizer,
        clip_norm: float | None,
        ranks: Ranks,
        stop: Stop,
    ) -> None:
        super().__init__(model, ObjectiveOfPart.like(objective), optimizer, clip_norm)
        self.ranks, self.stop = ranks, stop

    def __call__(self, batch: Batch) -> Any:
        part = current_shard()
        assert isinstance(part, RowsOfRank)
        self.optimizer.zero_grad()
        outputs = self.model(*batch.inputs)
        loss, weight = self.objective.of_part(outputs, batch, part)  # type: ignore[attr-defined]
        self.summation = summation = Summation(part, self.stop, self.objective.quantities)
        loss.backward(weight)
        are_equal = self.objective.terms[0].weights(batch) is None
        summation.of(self.optimizer.segments(), self.optimizer.parameters, equal=are_equal)
        summation.begin_early()
        kernels.copy(summation.nothing, summation.own)
        if part.is_counted:
            self.objective.measure(summation.cursor, outputs, batch)
        call_python("add up over ranks", summation, loss.data, weight)
        check_finite(summation.value)
        self.optimizer.step(clip_norm=self.clip_norm)  # type: ignore[call-arg]
        return outputs

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Add the loss and metrics of the whole batch."""
        for slot in range(len(self.summation.means)):
            here = slice(slot, slot + 1)
            kernels.add_weighted_mean(cursor, slot, self.summation.means[here], self.summation.weights[here])

    def used(self) -> tuple[Any, ...]:
        return (*super().used(), self.ranks)


class EvaluationOfPart(EvaluationStep):
    """An evaluation step on this rank's rows of a batch."""

    def __init__(self, model: Any, objective: Objective, ranks: Ranks) -> None:
        super().__init__(model, ObjectiveOfPart.like(objective))
        self.ranks = ranks

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        part = current_shard()
        if not isinstance(part, RowsOfRank) or part.is_counted:
            super().measure(cursor, outputs, batch)

    def used(self) -> tuple[Any, ...]:
        return (*super().used(), self.ranks)


def weight_of_part(part: RowsOfRank, weight: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    """Return the weight of this rank's mean in the mean over the batch, as an array like the loss.

    `weight`, a single element, is the sum of this rank's weights. It is None if all rows have equal weights.
    """
    if weight is None:
        return kernels.full(like.shape, part.size / part.batch_size if part.is_counted else 0.0, like.dtype)

    def divided(weight: np.ndarray) -> np.ndarray:
        own = weight.astype(np.float64).reshape(1) * part.is_counted
        whole = float(part.ranks.all_reduce(own)[0])
        if not 0 < whole < math.inf:
            raise ValueError("the weights of the rows that count sum up to 0 or infinity: there is no mean")
        return np.full(like.shape, own[0] / whole, like.dtype)

    return call_python("part of the mean", divided, weight)


# ---- rows whose weights are all 0 -----------------------------------------------------------------------------------


class ObjectiveOfPart(Objective):
    """The objective of a part of a batch. The weights of its rows may all be 0."""

    @classmethod
    def like(cls, objective: Objective) -> ObjectiveOfPart:
        return cls(objective.loss, objective.metrics, objective.warned_of)

    def of_part(self, outputs: Any, batch: Batch, part: RowsOfRank) -> tuple[Tensor, np.ndarray]:
        """Return the loss of this rank's rows, and its weight in the loss of the batch.

        Terms of `Losses` may have different weights, because labels that count nowhere differ. Then each term is
        multiplied by its own weight, and their sum counts as it is.
        """
        loss, shares = self.of(outputs, batch), []
        for term in self.terms:
            weights = term.weights(batch)
            shares.append(weight_of_part(part, None if weights is None else kernels.sum(weights), loss.data))
        if not isinstance(self.loss, Losses):
            return loss, shares[0]
        parts = [Shared()(term.value, share) for term, share in zip(self.terms, shares, strict=True)]
        return self.loss.total(*parts), kernels.full(loss.shape, float(part.is_counted), loss.dtype)

    def judged(self, loss: Any, outputs: Any, batch: Batch) -> Any:
        if batch.weights is None or (isinstance(loss, Loss) and not loss.runs_in_python):
            return outputs
        if isinstance(outputs, tuple):
            return tuple([ZeroIfWeightless()(x, batch.weights) for x in outputs])
        return ZeroIfWeightless()(outputs, batch.weights)


class Shared(Function):
    """y = share · x,  dx = share · dy;  y = 0 if the share is 0, because x may be NaN without rows that count."""

    def forward(self, x: np.ndarray, share: np.ndarray) -> np.ndarray:
        self.share = share
        return share * x if share else np.zeros_like(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy * self.share


class ZeroIfWeightless(Function):
    """y = x,  dx = dy; but dx = 0 if the weights of all rows, (n, …), are 0.

    A user's loss may have divided by the sum of the weights. The layers before it still need a gradient, because other
    ranks' rows depend on these rows through BatchNorm's mean and variance.
    """

    def forward(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        self.weigh = weights.any()
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy if self.weigh else np.zeros_like(dy)
