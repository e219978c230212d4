"""The base of the losses: Functions of scores and targets that return the mean loss over the rows, 0-d.

The rows' weights w may be a third input; the loss is then Σ w l / Σ w. Targets and weights have no gradient.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.moved_modules import rename_attributes
from caffelite.core.arrays import as_real, check_nonnegative
from caffelite.core.function import Function, Shape
from caffelite.core.shard import current_shard
from caffelite.core.tensor import Tensor
from caffelite.functions.losses.targets import (
    as_numbers,
    as_weights,
    check_numbers_shape,
    raise_all_ignored,
    raise_bad_weights,
)

__all__ = ["Penalized"]


class Loss(Function, recordable=True):
    """The base of all losses. It checks the targets, computes the mean of the rows' losses, and back-propagates it.

    A loss has three methods. `convert_targets` makes arrays of targets. `losses` computes the loss of each row.
    `gradient` computes the gradient of the scores from the gradient of the mean.

    After `forward`, `value` is the mean, 0-d. If the rows have weights w, `weight` is their sum Σ w, 0-d, and
    `row_weights` (n,) is w / Σ w. Otherwise both are None. An epoch's loss is the mean of the steps' values.
    """

    value: np.ndarray | None = None
    weight: np.ndarray | None = None
    row_weights: np.ndarray | None = None
    ignore: int | None = None  # a label that does not count
    threshold: float | None = 0.5  # for single scores: class 1 is above it. None: the loss does not define one

    @abstractmethod
    def convert_targets(self, targets: Any, scores_shape: Shape, dtype: Any = None) -> np.ndarray:
        """Return the targets as `losses` takes them, in this dtype if they are floats; see `check_targets`."""

    @abstractmethod
    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the loss of each row. It keeps what `gradient` needs."""

    @abstractmethod
    def gradient(self, dy: np.ndarray) -> np.ndarray:
        """Return the gradient of the scores, given the gradient of the mean."""

    def check_targets(self, targets: Any, scores_shape: Shape) -> None:
        """Raise unless these targets fit scores of this shape, in which None is any length."""
        self.convert_targets(targets, scores_shape)

    def link(self, scores: Any) -> np.ndarray:
        """Return the predictions that the scores stand for, by default the scores themselves."""
        return as_real(scores, None, f"{self!r}.link")

    def rows(self, outputs: Any, targets: Any) -> np.ndarray:
        """Return the loss of each row, (n,): the mean over its labels or elements, and 0 if all its labels are ignored.

        This changes nothing in the loss: `backward` still belongs to the last `forward`.
        """
        scores = as_real(outputs, None, f"{self!r}.rows")
        loss: Any = self.copy()
        labels = loss.convert_targets(targets, scores.shape, scores.dtype)
        losses: np.ndarray = loss.losses(scores, labels)
        if losses.size == len(scores):
            return losses
        row_shape = len(scores), losses.size // len(scores)  # rows, and the labels of a row
        sums = kernels.sum(losses.reshape(row_shape), 1)
        if self.ignore is None:
            return kernels.multiply(sums, 1 / row_shape[1])
        is_ignored = kernels.equal(kernels.convert(labels, np.float64), float(self.ignore))
        label_counts = kernels.subtract(float(row_shape[1]), kernels.sum(is_ignored.reshape(row_shape), 1))
        return kernels.divide(sums, as_real(kernels.maximum(label_counts, 1.0), sums.dtype, "rows"))

    def forward(self, scores: np.ndarray, targets: Any, weights: Any = None) -> np.ndarray:
        self.value = self.weight = self.row_weights = None
        targets = self.convert_targets(targets, scores.shape, scores.dtype)
        if kernels.recorder() is None:  # a recorded step has its own targets
            targets = targets.copy()  # so that backward reads the same targets as forward
        weights = None if weights is None else as_weights(repr(self), weights, scores)
        losses = self.losses(scores, targets)
        if weights is None and self.ignore is None:
            self.value = kernels.sum(losses, scale=1 / losses.size)
        else:
            self.value, self.row_weights, self.weight = _weighted_mean(losses, weights, targets, self.ignore)
        return self.value

    def backward(self, dy: Any = 1.0) -> np.ndarray:
        if self.value is None:
            raise RuntimeError(f"{type(self).__name__}.backward needs a `forward` before it that succeeded")
        for x, what in zip(self._applied_inputs[1:], ("targets", "weights"), strict=False):
            if x is not None and x.requires_grad:
                hint = "or, if they need one, write the loss with operators: ((a - b) ** 2).mean()"
                raise ValueError(f"{self!r} computes no gradient for its {what}: give it {what}.detach(), {hint}")
        if isinstance(dy, int | float | np.generic):
            return self.gradient(kernels.full((), dy, self.value.dtype))
        return self.gradient(as_real(dy, self.value.dtype, f"{self!r}.backward"))


def _weighted_mean(losses: np.ndarray, weights: np.ndarray | None, labels: np.ndarray, ignore: int | None) -> Any:
    """Return the mean of the losses, the weight of each loss in it, and the sum of the weights. Weights may be 0."""
    raise_error = functools.partial(raise_all_ignored, ignore) if weights is None else raise_bad_weights
    counted_labels = None if ignore is None else labels
    return kernels.weighted_mean(losses, weights, counted_labels, ignore, raise_error, not current_shard().is_whole)


Compute = Callable[..., np.ndarray]


def use_kernels(kernel: Compute, gradient_kernel: Compute) -> tuple[Compute, Compute]:
    """Return the methods `losses` and `gradient` of a loss that two kernels compute."""

    def losses(self: Any, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores, self.targets = scores, targets
        return kernel(scores, targets)

    def gradient(self: Any, dy: np.ndarray) -> np.ndarray:
        return gradient_kernel(self.scores, self.targets, dy, self.row_weights)

    return losses, gradient


class PointwiseLoss(Loss, recordable=True):
    """A mean over the rows of the mean over a row's elements of f(s, t).

    Scores s have any shape (n, …), targets t the same shape, or (n,) for scores (n, 1). The gradient is dy f'(s, t) /
    (n k) for n rows of k elements, or dy f'(s, t) w / (k Σ w) if the rows have weights w.
    """

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, targets = input_shapes[:2]
        check_numbers_shape(type(self).__name__, targets, scores)
        return ()

    def convert_targets(self, targets: Any, scores_shape: Shape, dtype: Any = None) -> np.ndarray:
        numbers = as_numbers(type(self).__name__, targets, scores_shape, dtype)
        self.check_values(numbers)
        return numbers

    def check_values(self, targets: np.ndarray) -> None:
        """Raise unless these targets are in the range that the loss allows."""


@rename_attributes(penalized="penalized_parameters")
class Penalized(Function, recordable=True):
    """A loss with L1 or L2 regularization:  y = loss + l1 Σ |w| + l2 Σ w² / 2,  dw = dy (l1 sign(w) + l2 w).

    `value` and `weight` belong to the loss without the penalty.
    """

    def __init__(self, loss: Function, parameters: Iterable[Tensor], l1: float = 0.0, l2: float = 0.0) -> None:
        if not isinstance(loss, Function):
            raise TypeError(f"Penalized takes a loss, such as SoftmaxLoss(), got {loss!r}")
        if hasattr(loss, "pair"):
            raise TypeError("Penalized takes one loss: put it around a loss in Losses, Losses([Penalized(l1, …), l2])")
        self.loss: Any = loss
        self.penalized_parameters = list(parameters)
        if not self.penalized_parameters or not all(isinstance(p, Tensor) for p in self.penalized_parameters):
            raise TypeError(
                f"Penalized takes a list of parameters, at least one Tensor, got {self.penalized_parameters!r}"
            )
        self.l1, self.l2 = check_nonnegative("Penalized: l1", l1), check_nonnegative("Penalized: l2", l2)

    @property
    def ignore(self) -> int | None:
        """The label that does not count, or None."""
        return getattr(self.loss, "ignore", None)

    def check_targets(self, targets: Any, scores_shape: Shape) -> None:
        if hasattr(self.loss, "check_targets"):
            self.loss.check_targets(targets, scores_shape)

    @property
    def link(self) -> Any:
        """The `link` of the loss, which turns scores into predictions."""
        return self.loss.link

    def rows(self, outputs: Any, targets: Any) -> np.ndarray:
        """Return the loss of each row, (n,), without the penalty."""
        row_losses: np.ndarray = self.loss.rows(outputs, targets)
        return row_losses

    def output_shape(self, *input_shapes: Shape) -> Shape:
        y_shape: Shape = self.loss.output_shape(*input_shapes)
        return y_shape

    def forward(self, scores: np.ndarray, targets: Any, *weights: Any) -> np.ndarray:
        self.value = self.loss.forward(scores, targets, *weights)
        self.weight = None if self.loss.runs_in_python else getattr(self.loss, "weight", None)
        y: np.ndarray = self.value
        for p in self.penalized_parameters:
            y = kernels.add(y, kernels.sum(kernels.penalty(p.data, self.l1, self.l2)))
        return y

    def backward(self, dy: Any = 1.0) -> np.ndarray:
        dscores: np.ndarray = self.loss.backward(dy)
        for p in self.penalized_parameters:
            dvalue = kernels.full((), dy, p.dtype) if isinstance(dy, int | float | np.generic) else dy
            p.add_grad(kernels.penalty_grad(as_real(dvalue, p.dtype, f"{self!r}.backward"), p.data, self.l1, self.l2))
        return dscores

    def __repr__(self) -> str:
        return f"Penalized({self.loss!r}, {len(self.penalized_parameters)} parameters, l1={self.l1}, l2={self.l2})"


def unwrap_penalized(loss: Any) -> Any:
    """Return the loss inside a Penalized, or the loss itself if it is not one."""
    return loss.loss if isinstance(loss, Penalized) else loss
