"""A step on a part of a batch, and its objective."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.function import Function
from caffelite.core.python_callback import call_python
from caffelite.core.shard import current_shard
from caffelite.core.tensor import Tensor
from caffelite.data.generator import Batch
from caffelite.distributed.allreduce import AllReduce
from caffelite.distributed.mpi import Communicator, RankShard
from caffelite.distributed.stop_signal import StopSignal
from caffelite.files.state import BaseModel
from caffelite.functions.losses.base import Loss
from caffelite.functions.losses.multi_output import Losses
from caffelite.optimizers import Optimizer
from caffelite.training.objective import Objective, check_finite
from caffelite.training.step import EvaluationStep, Step


class ShardedStep(Step):
    """One step of all ranks, each on its own rows of the batch."""

    def __init__(
        self,
        model: BaseModel,
        objective: Objective,
        optimizer: Optimizer,
        clip_norm: float | None,
        comm: Communicator,
        stop: StopSignal,
    ) -> None:
        super().__init__(model, ShardedObjective.from_objective(objective), optimizer, clip_norm)
        self.comm, self.stop = comm, stop

    def __call__(self, batch: Batch) -> Any:
        shard = current_shard()
        assert isinstance(shard, RankShard)
        self.optimizer.zero_grad()
        outputs = self.model(*batch.inputs)
        loss, weight = self.objective.shard_loss(outputs, batch, shard)  # type: ignore[attr-defined]
        self.all_reduce = all_reduce = AllReduce(shard, self.stop, self.objective.num_sums)
        loss.backward(weight)
        has_equal_weights = self.objective.terms[0].weights(batch) is None
        all_reduce.set_gradients(
            self.optimizer.segments(), self.optimizer.parameters, has_equal_weights=has_equal_weights
        )
        all_reduce.overlap_with_backward()
        kernels.copy(all_reduce.zeros, all_reduce.local_sums)
        if shard.is_counted:
            self.objective.measure(all_reduce.cursor, outputs, batch)
        call_python("add up over ranks", all_reduce, loss.data, weight)
        check_finite(all_reduce.value)
        self.optimizer.step(clip_norm=self.clip_norm)
        return outputs

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Add the loss and metrics of the entire batch."""
        for slot in range(len(self.all_reduce.means)):
            element = slice(slot, slot + 1)
            kernels.add_weighted_mean(cursor, slot, self.all_reduce.means[element], self.all_reduce.weights[element])

    def dependencies(self) -> tuple[Any, ...]:
        return (*super().dependencies(), self.comm)


class ShardedEvaluationStep(EvaluationStep):
    """An evaluation step on this rank's rows of a batch."""

    def __init__(self, model: BaseModel, objective: Objective, comm: Communicator) -> None:
        super().__init__(model, ShardedObjective.from_objective(objective))
        self.comm = comm

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        shard = current_shard()
        if not isinstance(shard, RankShard) or shard.is_counted:
            super().measure(cursor, outputs, batch)

    def dependencies(self) -> tuple[Any, ...]:
        return (*super().dependencies(), self.comm)


def shard_weight(shard: RankShard, weight: np.ndarray | None, loss: np.ndarray) -> np.ndarray:
    """Return the weight of this rank's mean in the mean over the batch, as an array like the loss.

    `weight`, a single element, is the sum of this rank's weights. It is None if all rows have equal weights.
    """
    if weight is None:
        return kernels.full(loss.shape, shard.size / shard.batch_size if shard.is_counted else 0.0, loss.dtype)

    def compute_share(weight: np.ndarray) -> np.ndarray:
        local_weight = weight.astype(np.float64).reshape(1) * shard.is_counted
        total_weight = float(shard.comm.all_reduce(local_weight)[0])
        if not 0 < total_weight < math.inf:
            raise ValueError("the weights of the rows that count sum up to 0 or infinity: there is no mean")
        return np.full(loss.shape, local_weight[0] / total_weight, loss.dtype)

    return call_python("part of the mean", compute_share, weight)


# ---- the objective --------------------------------------------------------------------------------------------------


class ShardedObjective(Objective):
    """The objective of a part of a batch. The weights of its rows may all be 0."""

    @classmethod
    def from_objective(cls, objective: Objective) -> ShardedObjective:
        return cls(objective.loss, objective.metrics, objective.warned_reasons)

    def shard_loss(self, outputs: Any, batch: Batch, shard: RankShard) -> tuple[Tensor, np.ndarray]:
        """Return the loss of this rank's rows, and its weight in the loss of the batch.

        Terms of `Losses` may have different weights, because each ignores other labels. Then each term is multiplied by
        its own weight, and their sum is used as it is.
        """
        loss, shares = self.compute_loss(outputs, batch), []
        for term in self.terms:
            weights = term.weights(batch)
            shares.append(shard_weight(shard, None if weights is None else kernels.sum(weights), loss.data))
        if not isinstance(self.loss, Losses):
            return loss, shares[0]
        parts = [ScaleByShare()(term.value, share) for term, share in zip(self.terms, shares, strict=True)]
        return self.loss.total(*parts), kernels.full(loss.shape, float(shard.is_counted), loss.dtype)

    def prepare_outputs(self, loss: Any, outputs: Any, batch: Batch) -> Any:
        if batch.weights is None or (isinstance(loss, Loss) and not loss.runs_in_python):
            return outputs
        if isinstance(outputs, tuple):
            return tuple([MaskGradient()(x, batch.weights) for x in outputs])
        return MaskGradient()(outputs, batch.weights)


class ScaleByShare(Function):
    """y = share · x,  dx = share · dy;  y = 0 if the share is 0, because x may be NaN if no rows count."""

    def forward(self, x: np.ndarray, share: np.ndarray) -> np.ndarray:
        self.share = share
        return share * x if share else np.zeros_like(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy * self.share


class MaskGradient(Function):
    """y = x,  dx = dy; but dx = 0 if the weights of all rows, (n, …), are 0.

    A user's loss may have divided by the sum of the weights. The layers before it still need a gradient, because the
    rows of other ranks depend on these rows through BatchNorm's mean and variance.
    """

    def forward(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        self.has_weight = weights.any()
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy if self.has_weight else np.zeros_like(dy)
