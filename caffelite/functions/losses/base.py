"""Losses: Functions of scores and targets that return the mean loss over the rows, 0-d.

Weights of the rows may be a third input; the loss is then Σ w l / Σ w. Targets and weights have no gradient.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.moved_modules import rename_attributes
from caffelite.core.arrays import as_real, check_nonnegative, check_positive, is_foreign_array
from caffelite.core.autograd import matches_shape
from caffelite.core.function import Function, Shape
from caffelite.core.shard import current_shard
from caffelite.core.tensor import Tensor
from caffelite.functions.losses.targets import (
    are_probabilities,
    as_ignore_label,
    as_labels,
    as_numbers,
    as_probabilities,
    as_weights,
    check_fractions,
    check_labels_shape,
    check_numbers_shape,
    check_scores_shape,
    raise_all_ignored,
    raise_bad_weights,
)

__all__ = ["FocalLoss", "HingeLoss", "HuberLoss", "MAELoss", "MSELoss", "Penalized", "SigmoidLoss", "SoftmaxLoss"]


class Loss(Function, recordable=True):
    """The base of all losses. It checks the targets, computes the mean of the rows' losses, and goes back from it.

    A loss has three methods. `convert_targets` makes arrays of targets. `losses` computes the loss of each row.
    `gradient` computes the gradient of the scores from the gradient of the mean.

    After `forward`, `value` is the mean, 0-d. If rows have weights w, `weight` is their sum Σ w, 0-d, and `row_weights`
    (n,) are w / Σ w. Otherwise both are None. The mean of an epoch is computed from the steps' values and weights.
    """

    value: np.ndarray | None = None
    weight: np.ndarray | None = None
    row_weights: np.ndarray | None = None
    ignore: int | None = None  # a label that counts nowhere

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
        """Raise unless these targets go with scores of this shape, in which None is any length."""
        self.convert_targets(targets, scores_shape)

    def link(self, scores: Any) -> np.ndarray:
        """Return the predictions that scores stand for, by default the scores themselves."""
        return as_real(scores, None, f"{self!r}.link")

    def rows(self, outputs: Any, targets: Any) -> np.ndarray:
        """Return the loss of each row, (n,): the mean over its labels or elements, and 0 if all its labels are ignored.

        This changes nothing in the loss: `backward` still belongs to the last `forward`.
        """
        scores = as_real(outputs, None, f"{self!r}.rows")
        loss: Any = self.copy()
        labels = loss.convert_targets(targets, scores.shape, scores.dtype)
        losses = loss.losses(scores, labels)
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
            targets = targets.copy()  # backward then reads the same targets as forward
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
    """Return the mean of the losses, the weight of each in it, and the sum of the weights. Rows may weigh nothing."""
    raise_error = functools.partial(raise_all_ignored, ignore) if weights is None else raise_bad_weights
    counted_labels = None if ignore is None else labels
    return kernels.weighted_mean(losses, weights, counted_labels, ignore, raise_error, not current_shard().is_whole)


# ---- of numbers, one by one ----


class PointwiseLoss(Loss, recordable=True):
    """A mean over the rows of the mean over a row's elements of f(s, t).

    Scores s have any shape (n, …), targets t the same, or (n,) for scores (n, 1). The gradient is dy f'(s, t) / (n k)
    for n rows of k elements, or dy f'(s, t) w / (k Σ w) if the rows have weights w.
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
        """Raise unless these targets are in the loss's range."""


class MSELoss(PointwiseLoss, recordable=True):
    """The mean squared error, y = mean (s − t)²:  ds = dy 2 (s − t) / (n k) for n rows of k elements.

    Scores s of any shape (n, …), targets t of the same; (n,) also for scores (n, 1).
    """

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores, self.targets = scores, targets
        return kernels.mse_loss(scores, targets)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.mse_loss_grad(self.scores, self.targets, dy, self.row_weights)


class MAELoss(PointwiseLoss, recordable=True):
    """The mean absolute error, y = mean |s − t|:  ds = dy sign(s − t) / (n k) for n rows of k elements; 0 where s = t.

    Scores s of any shape (n, …), targets t of the same; (n,) also for scores (n, 1).
    """

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores, self.targets = scores, targets
        return kernels.mae_loss(scores, targets)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.mae_loss_grad(self.scores, self.targets, dy, self.row_weights)


class HuberLoss(PointwiseLoss, recordable=True):
    """Squared near 0, absolute beyond: the mean of d²/2, d = s − t, or of delta (|d| − delta/2) if |d| > delta.

    ds = dy clip(d, −delta, delta) / (n k) for n rows of k elements. Scores s of any shape (n, …), targets t of the
    same; (n,) also for scores (n, 1). delta is above 0.

    P. Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35, 1964.
    """

    def __init__(self, delta: float = 1.0) -> None:
        self.delta = check_positive("HuberLoss: delta", delta)

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores, self.targets = scores, targets
        return kernels.huber_loss(scores, targets, self.delta)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.huber_loss_grad(self.scores, self.targets, dy, self.delta, self.row_weights)

    def __repr__(self) -> str:
        return f"HuberLoss({self.delta})"


class SigmoidLoss(PointwiseLoss, recordable=True):
    """Sigmoid and binary cross-entropy, fused:  y = mean −w t log p − (1 − t) log(1 − p),  p = sigmoid(s).

    ds = dy ((1 + (w − 1) t) p − w t) / (n k) for n rows of k elements. Scores s have any shape (n, …). Targets t have
    the same shape, with values 0 … 1 (also bools and integers). For scores (n, 1) they may be (n,). w is `pos_weight`,
    1 by default: one number, or for scores (n, …, C) an array (C,) with one for each output. If targets are out of
    range or NaN, a ValueError names the first bad row.
    """

    def __init__(self, pos_weight: float | Sequence[float] | np.ndarray | None = None) -> None:
        self.pos_weight = None if pos_weight is None else _check_pos_weight(pos_weight)
        self.positive = np.array(1.0 if self.pos_weight is None else self.pos_weight, ndmin=1)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_outputs(input_shapes[0])
        return super().output_shape(*input_shapes)

    def convert_targets(self, targets: Any, scores_shape: Shape, dtype: Any = None) -> np.ndarray:
        self._check_outputs(scores_shape)
        return super().convert_targets(targets, scores_shape, dtype)

    def _check_outputs(self, scores: Shape) -> None:
        if isinstance(self.pos_weight, list) and (len(scores) < 2 or scores[-1] not in (None, len(self.positive))):
            raise ValueError(
                f"SigmoidLoss got scores of shape {scores} and {len(self.positive)} weights in pos_weight; expected a "
                "weight for each output, the last axis of (n, …, C)"
            )

    def check_values(self, targets: np.ndarray) -> None:
        check_fractions(targets)

    def link(self, scores: Any) -> np.ndarray:
        """Return the probabilities of 1, sigmoid(scores)."""
        return kernels.sigmoid(super().link(scores))

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores, self.targets = scores, targets
        return kernels.sigmoid_loss(scores, targets, self.positive)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.sigmoid_loss_grad(self.scores, self.targets, dy, self.positive, self.row_weights)

    def __repr__(self) -> str:
        return f"SigmoidLoss({'' if self.pos_weight is None else self.pos_weight})"


def _check_pos_weight(value: Any) -> float | list[float]:
    """Return the `pos_weight` of a SigmoidLoss: a number ≥ 0, or a list of them. TypeError or ValueError if not."""
    name = "SigmoidLoss: pos_weight"
    if not isinstance(value, Sequence | np.ndarray) and not is_foreign_array(value):
        return check_nonnegative(name, value)
    numbers = as_real(value, np.float64, name)
    if numbers.ndim != 1 or numbers.size == 0:
        raise ValueError(f"{name} must be a number, or one for each output, got shape {numbers.shape}")
    return [check_nonnegative(name, number) for number in numbers.tolist()]


# ---- of labels ----


class LabelLoss(Loss, recordable=True):
    """A loss of scores (n, C), and one integer label of 0 … C − 1 for each row."""

    allow_nd = False  # whether scores may be (n, …, C), and labels (n, …)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, labels = input_shapes[:2]
        check_scores_shape(type(self).__name__, scores, self.allow_nd)
        check_labels_shape(type(self).__name__, labels, scores)
        return ()

    def convert_targets(self, targets: Any, scores_shape: Shape, dtype: Any = None) -> np.ndarray:
        return as_labels(type(self).__name__, targets, scores_shape, self.ignore, self.allow_nd)


class HingeLoss(LabelLoss, recordable=True):
    """The hinge of several classes, yᵢ = Σⱼ max(0, sᵢⱼ − sᵢ,label + margin) over the other classes j, and their mean.

    dsᵢⱼ = dy / n if sᵢⱼ − sᵢ,label + margin > 0, else 0;  dsᵢ,label = −Σⱼ dsᵢⱼ. Scores s (n, C), labels (n,) integers
    in 0 … C − 1. Bad labels raise as for `SoftmaxLoss`.

    J. Weston and C. Watkins, "Support vector machines for multi-class pattern recognition", ESANN 1999.
    """

    def __init__(self, margin: float = 1.0) -> None:
        self.margin = check_nonnegative("HingeLoss: margin", margin)

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores, self.labels = scores, targets
        return kernels.hinge_loss(scores, targets, self.margin)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.hinge_loss_grad(self.scores, self.labels, dy, self.margin, self.row_weights)

    def __repr__(self) -> str:
        return f"HingeLoss({self.margin})"


class SoftmaxLoss(LabelLoss, recordable=True):
    """Softmax and the mean negative log-likelihood of the labels (cross-entropy), fused:

        p = softmax(s),  y = −mean log p[i, label i],  ds = dy (p − onehot) / n

    Scores s are (n, C) and unnormalised. Targets are (n,) integers in 0 … C − 1. `probabilities` (n, C) are the last
    forward's. Bad labels raise ValueError or TypeError, naming the first bad row and the allowed range.

    Scores may be (n, …, C) with labels (n, …). The mean is then over the labels, each with the weight of its row.
    Labels equal to `ignore` do not count. If all labels are, `forward` raises ValueError.

    Targets may also be floats t of the scores' shape, with probabilities in each row: y = −mean Σ t log p. A ValueError
    names the first row with a value below 0, or with a sum that differs from 1 by more than 1e-3. With
    `label_smoothing` e, t (the one-hot labels, too) becomes (1 − e) t + e / C.

    C. Bishop, "Pattern Recognition and Machine Learning", 2006, section 4.3.4; C. Szegedy et al., "Rethinking the
    inception architecture for computer vision", CVPR 2016, section 7.
    """

    allow_nd = True

    def __init__(self, label_smoothing: float = 0.0, ignore: int | None = None) -> None:
        self.label_smoothing = check_nonnegative("SoftmaxLoss: label_smoothing", label_smoothing)
        if self.label_smoothing > 1:
            raise ValueError(f"SoftmaxLoss: label_smoothing must be in 0 … 1, got {label_smoothing!r}")
        self.ignore = as_ignore_label("SoftmaxLoss: ignore", ignore)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, targets = input_shapes[:2]
        return () if len(scores) > 1 and matches_shape(targets, scores) else super().output_shape(scores, targets)

    def convert_targets(self, targets: Any, scores_shape: Shape, dtype: Any = None) -> np.ndarray:
        if not are_probabilities(targets, scores_shape):
            return super().convert_targets(targets, scores_shape)
        if self.ignore is not None:
            raise ValueError(f"{self!r} takes labels, got probabilities of shape {np.shape(targets)}")
        return as_probabilities("SoftmaxLoss", targets, scores_shape, dtype)

    def link(self, scores: Any) -> np.ndarray:
        """Return the probabilities of the classes, softmax(scores)."""
        return kernels.softmax(super().link(scores))

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        losses, self.p = kernels.softmax_loss(scores, targets, self.label_smoothing, self.ignore)
        self.targets = targets
        return losses

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        options = self.label_smoothing, self.ignore
        return kernels.softmax_loss_grad(self.p, self.targets, dy, self.row_weights, *options)

    @property
    def probabilities(self) -> np.ndarray | None:
        """The softmax of the scores that the last forward got, or None if it failed."""
        return None if self.value is None else self.p

    def __repr__(self) -> str:
        arguments = [f"label_smoothing={self.label_smoothing}"] if self.label_smoothing else []
        arguments += [] if self.ignore is None else [f"ignore={self.ignore}"]
        return f"SoftmaxLoss({', '.join(arguments)})"


class FocalLoss(LabelLoss, recordable=True):
    """The softmax loss, with less weight for well classified rows:  y = −mean (1 − q)ᵞ log q,  q = p[label].

    p = softmax(s). ds = dy f (p − onehot) / n,  f = (1 − q)ᵞ − γ q (1 − q)^(γ−1) log q. With γ = 0 it is `SoftmaxLoss`.
    Scores s (n, …, C), labels (n, …) integers in 0 … C − 1. Bad labels raise as for `SoftmaxLoss`, γ below 0 raises
    ValueError.

    T. Lin et al., "Focal loss for dense object detection", ICCV 2017.
    """

    allow_nd = True

    def __init__(self, gamma: float = 2.0) -> None:
        self.gamma = check_nonnegative("FocalLoss: gamma", gamma)

    def link(self, scores: Any) -> np.ndarray:
        """Return the probabilities of the classes, softmax(scores)."""
        return kernels.softmax(super().link(scores))

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.labels = targets
        label_losses, self.p = kernels.softmax_loss(scores, targets)  # −log q
        losses, self.slopes = kernels.focal(label_losses, self.gamma)
        return losses

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        scale = 1 / self.slopes.size if self.row_weights is None else self.row_weights
        return kernels.softmax_loss_grad(self.p, self.labels, dy, kernels.multiply(self.slopes, scale))

    def __repr__(self) -> str:
        return f"FocalLoss({self.gamma})"


# ---- with a penalty ----


@rename_attributes(penalized="penalized_parameters")
class Penalized(Function, recordable=True):
    """A loss and a penalty of parameters:  y = loss + l1 Σ |w| + l2 Σ w² / 2,  dw = dy (l1 sign(w) + l2 w).

    `value` and `weight` belong to the loss without the penalty.
    """

    def __init__(self, loss: Function, parameters: Iterable[Tensor], l1: float = 0.0, l2: float = 0.0) -> None:
        if not isinstance(loss, Function):
            raise TypeError(f"Penalized takes a loss, such as SoftmaxLoss(), got {loss!r}")
        if hasattr(loss, "pair"):
            raise TypeError("Penalized takes one loss: put it around a loss in Losses, Losses([Penalized(l1, …), l2])")
        self.loss, self.penalized_parameters = loss, list(parameters)
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

    def link(self, scores: Any) -> np.ndarray:
        """Return the meaning of scores, by the `link` of the loss."""
        return self.loss.link(scores)  # type: ignore[attr-defined]

    def rows(self, outputs: Any, targets: Any) -> np.ndarray:
        """Return the loss of each row, (n,), without the penalty."""
        return self.loss.rows(outputs, targets)  # type: ignore[attr-defined]

    def output_shape(self, *input_shapes: Shape) -> Shape:
        return self.loss.output_shape(*input_shapes)

    def forward(self, scores: np.ndarray, targets: Any, *weights: Any) -> np.ndarray:
        self.value = self.loss.forward(scores, targets, *weights)
        self.weight = None if self.loss.runs_in_python else getattr(self.loss, "weight", None)
        y = self.value
        for p in self.penalized_parameters:
            y = kernels.add(y, kernels.sum(kernels.penalty(p.data, self.l1, self.l2)))
        return y

    def backward(self, dy: Any = 1.0) -> np.ndarray:
        dscores = self.loss.backward(dy)
        for p in self.penalized_parameters:
            dvalue = kernels.full((), dy, p.dtype) if isinstance(dy, int | float | np.generic) else dy
            p.add_grad(kernels.penalty_grad(as_real(dvalue, p.dtype, f"{self!r}.backward"), p.data, self.l1, self.l2))
        return dscores

    def __repr__(self) -> str:
        return f"Penalized({self.loss!r}, {len(self.penalized_parameters)} parameters, l1={self.l1}, l2={self.l2})"
