"""find_lr: find a learning rate to start with."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from caffelite._support.colours import CURVES, style
from caffelite.core.arrays import check_positive, check_positive_integer
from caffelite.core.function import Function
from caffelite.data.generator import DataGenerator, merge_single_rows
from caffelite.model.model import Model
from caffelite.optimizers import Optimizer, TrainingDiverged, schedules
from caffelite.training import inputs
from caffelite.training.history import History

SMOOTHING = 0.9  # the share of the running mean that each step keeps
MAX_RISE = 3.0  # the smoothed loss may rise above the lowest one by this many times the lowest


class RateTest:
    """The result of `find_lr`: `lrs` and `losses` with one element per step, `smoothed`, and `suggestion`.

    `smoothed` is the running mean of the losses, m ← 0.9 m + 0.1 loss, divided by 1 − 0.9ᵗ because it starts at 0.
    `suggestion` is a tenth of the rate at which `smoothed` was lowest. This is well below the rates whose steps go too
    far. The first tenth of the steps is left out, because the mean there is over few losses. `suggestion` is None if
    the loss never fell.
    """

    def __init__(self, lrs: np.ndarray, losses: np.ndarray) -> None:
        self.lrs, self.losses, self.smoothed = lrs, losses, _smooth(losses)
        self.suggestion: float | None = None
        first = len(lrs) // 10
        lowest = first + int(np.argmin(self.smoothed[first:])) if len(lrs) else 0
        if lowest > first:
            self.suggestion = float(lrs[lowest] / 10)

    def __repr__(self) -> str:
        suggestion = "None" if self.suggestion is None else f"{self.suggestion:.2g}"
        return f"RateTest(suggestion={suggestion}, {len(self.lrs)} steps)"

    @style()
    def plot(self) -> Any:
        """Draw the losses over the rates and return the matplotlib figure. Needs the extra `plot`."""
        from caffelite._support.figures import Figure

        figure = Figure(5, 3.5)
        axes = figure.subplots()
        axes.plot(self.lrs, self.losses, color="0.75", label="loss")
        axes.plot(self.lrs, self.smoothed, label="smoothed")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, color=CURVES[1], linestyle=":", label=f"suggestion {self.suggestion:.2g}")
        axes.set(xscale="log", xlabel="learning rate", title="loss")
        axes.legend()
        return figure


def find_lr(
    model: Model,
    x: Any,
    y: Any = None,
    *,
    loss: Function,
    optimizer: Optimizer,
    batch_size: int | None = None,
    low: float = 1e-7,
    high: float = 10.0,
    steps: int = 100,
) -> RateTest:
    """Try learning rates from `low` to `high` on a copy of a model, one step each.

    From step to step, the rate grows by a constant factor. The search ends early if the loss rises to four times the
    lowest, or if training diverges. The model, the loss, the optimizer and their random streams do not change. L. N.
    Smith, "Cyclical learning rates for training neural networks", WACV 2017.

    Parameters
    ----------
    x, y : array-like (n, …)
        As for `fit`. Or pass a DataGenerator as x, and no y.
    loss, optimizer
        As for `fit`. All groups of the optimizer get the same rates.
    batch_size : int, optional
        32 if None. A DataGenerator has its own; a different one raises ValueError.
    steps : int
    low, high : float
        The rates of the first and the last step.

    Raise the errors of `fit` for data that cannot be used, and ValueError unless 0 < low < high and steps > 1.
    """
    low, high, steps = check_positive("low", low), check_positive("high", high), check_positive_integer("steps", steps)
    if low >= high or steps < 2:
        raise ValueError(f"find_lr takes 2 or more steps from low to high rates, got {steps} from {low} to {high}")
    loss = inputs.as_losses(loss)
    inputs.check_optimizer(model, optimizer)
    if isinstance(x, DataGenerator):
        x = copy.copy(x)
        x._order, x._shuffle_state = x._order.copy(), x._shuffle_state.copy()
        x._seed_and_epoch = x._seed_and_epoch.copy()
    elif y is None:
        raise TypeError(f"find_lr takes x and y as arrays, or a DataGenerator, got {type(x).__name__}")
    model, loss, optimizer = copy.deepcopy((model, loss, optimizer))  # together, since they share parameters
    given, options = inputs.UserData(x, y), {"batch_size": batch_size}
    batches = inputs.as_batches(model, given, loss, options, batch_size=32, shuffle=True, seed=0)
    if inputs.trains_batch_norm(model):
        batches = merge_single_rows(batches)
    rates = schedules.exponential(low, steps - 1, high)
    optimizer.lr = rates
    try:
        history = model.fit(
            _SingleBatches(batches), loss=loss, optimizer=optimizer, epochs=steps, callbacks=[_has_risen], verbose=0
        )
    except TrainingDiverged as error:
        history = error.history  # type: ignore[attr-defined]
    losses = np.array(history["loss"])
    return RateTest(rates.rates[: len(losses)], losses)


class _SingleBatches:
    """Batches as an iterable: each pass over it gives the next single batch, and starts again after the last."""

    def __init__(self, batches: Any) -> None:
        self._batches = (batch for epoch in itertools.repeat(batches) for batch in epoch)

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._batches, 1)


def _has_risen(epoch: int, history: History) -> bool:
    """Return whether the loss is far above the lowest one."""
    smoothed = _smooth(np.array(history["loss"]))
    lowest = smoothed.min()
    return bool(smoothed[-1] > lowest + MAX_RISE * abs(lowest))


def _smooth(losses: np.ndarray) -> np.ndarray:
    means, mean = np.empty(len(losses)), 0.0
    for t, loss in enumerate(losses):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        means[t] = mean / (1 - SMOOTHING ** (t + 1))
    return means
