"""AverageWeights: a moving average of the weights, and the step that it follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite._support.moved_modules import rename_attributes
from caffelite.core.arrays import check_nonnegative
from caffelite.core.tensor import Tensor
from caffelite.data.generator import Batch
from caffelite.training.callbacks.base import LoopHook
from caffelite.training.history import History
from caffelite.training.step import Step


@rename_attributes(_others="_swap_buffers")
class AverageWeights:
    """Keeps a moving average of the weights, and gives it to the model at the end:

        a ← a + (1 − decay) (w − a)   after each step            (a₀: the weights before the first step)

    The average often predicts better than the last weights. With decay 0.999, it covers about a thousand steps. During
    training, `val_…` and all callbacks after an epoch see the model with the average, so `EarlyStopping` restores the
    average of the best epoch. Between the steps of an epoch, the model has the weights being trained.

    All parameters are averaged. Buffers are not: the model has the buffers of the last step. BatchNorm's running
    statistics are already averages. (Keras does the same, and so does PyTorch's AveragedModel by default.) A checkpoint
    has the average and the weights w. `caffelite.load` reads the average, and a resumed run continues with w.

    Raise ValueError unless 0 ≤ decay < 1. Raise ValueError in `caffelite.minimize`, which has no such steps.

    B. Polyak and A. Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control Optim. 30, 1992.
    """

    def __init__(self, decay: float = 0.999) -> None:
        self.decay = check_nonnegative("decay", decay, 1.0)
        self._model: Any = None
        self._is_shown = False  # whether the model has the average, and `_swap_buffers` the weights; or the reverse
        self._swap_buffers: dict[Tensor, np.ndarray] = {}

    def begin(self, training: Any) -> None:
        if training.optimizer is None:
            raise ValueError("AverageWeights averages after each step of an optimizer; minimize has none")
        self._model, self._is_shown = training.model, False
        arrays = {p: self._swap_buffers.get(p) for p in self._model.parameters()}
        self._swap_buffers = {p: _flat_data(p).copy() if array is None else array for p, array in arrays.items()}
        for p, average in self._swap_buffers.items():
            kernels.copy(_flat_data(p), out=average)

    def due(self, epochs: int) -> float:
        return math.inf

    def __call__(self, epoch: int, history: History) -> None:
        pass

    def end(self) -> None:
        self._model = None

    def update(self) -> None:
        """Move the average towards the weights. A recorded step repeats this."""
        for p in self._model.parameters():
            average = self._swap_buffers.get(p)
            if average is None:  # a callback has added this parameter to the model
                average = self._swap_buffers[p] = _flat_data(p).copy()
            kernels.ema(average, _flat_data(p), self.decay)

    def arrays(self) -> Iterable[np.ndarray]:
        """Return the arrays that a recorded step changes."""
        return self._swap_buffers.values()

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside, the model has the average weights."""
        if self._is_shown:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def apply_average(self) -> None:
        """Give the model the average weights, unless it already has them."""
        if not self._is_shown:
            self._swap()

    def restore_weights(self) -> None:
        """Give the model the weights being trained, unless it already has them."""
        if self._is_shown:
            self._swap()

    def _swap(self) -> None:
        """Exchange average and weights: all of them, or none if Ctrl-C comes first."""
        with InterruptsBetweenSteps() as interrupts, interrupts.defer():
            for p, buffer in self._swap_buffers.items():
                weights = _flat_data(p)
                weights_copy = kernels.copy(weights)
                kernels.copy(buffer, out=weights)
                kernels.copy(weights_copy, out=buffer)
                p._bump_version()
            self._is_shown = not self._is_shown

    def state_dict(self) -> dict[str, Any]:
        """Return the decay and, during training, the weights being trained: `weights.0.weight` and so on."""
        if self._model is None:
            return {"decay": self.decay}
        with self.averaged_weights():
            named = self._model.named_parameters().items()
            weights = {f"weights.{name}": self._swap_buffers[p].reshape(p.shape).copy() for name, p in named}
        return {"decay": self.decay, **weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict` into a model that has the average. Raise ValueError before any change if it can't be."""
        parameters = self._model.named_parameters()
        expected = {f"weights.{name}": p.shape for name, p in parameters.items()}
        shapes = {name: np.shape(array) for name, array in state.items() if name != "decay"}
        if shapes != expected or state.get("decay") != self.decay:
            raise ValueError(
                f"AverageWeights: expected decay {self.decay:g} and weights {expected}, got {state.get('decay')} and "
                f"{shapes}"
            )
        for name, p in parameters.items():
            kernels.copy(_flat_data(p), out=self._swap_buffers[p])
            p.data = state[f"weights.{name}"]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_model": None, "_is_shown": False, "_swap_buffers": {}}


class AveragingHook(LoopHook):
    """Gives the model its average weights after an epoch and at the end, and takes them back before further steps.

    It is the first hook, so validation and all others see the average.
    """

    def __init__(self, average: AverageWeights) -> None:
        self.average = average

    def next_python_epoch(self, done: int, epoch_hooks: list[kernels.EpochHook] | None) -> float:
        return done + 1

    def results(self, epochs: int) -> Sequence[Sequence[float]]:
        self.average.apply_average()
        return ()

    def between_steps(self) -> None:
        self.average.restore_weights()

    def end(self) -> None:
        self.average.apply_average()


class AveragingStep(Step):
    """A step, after which an average follows the weights."""

    def __init__(self, step: Step, average: AverageWeights) -> None:
        super().__init__(step.model, step.objective, step.optimizer, step.clip_norm)
        self.step, self.average = step, average
        self.batches_per_step, self.unit = step.batches_per_step, step.unit

    def __call__(self, *batches: Batch) -> Any:
        outputs = self.step(*batches)
        self.average.update()
        return outputs

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        self.step.measure(cursor, outputs, batch)

    def fingerprint(self) -> dict[str, Any]:
        return self.step.fingerprint()

    def key(self) -> tuple[Any, ...]:
        return (*self.step.key(), self.average.decay)

    def dependencies(self) -> tuple[Any, ...]:
        return (*self.step.dependencies(), *self.average.arrays())


def _flat_data(p: Tensor) -> np.ndarray:
    return p._recorded_data().reshape(-1)
