"""Losses for classes: one label for each row, or 0 or 1 for each output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real, check_nonnegative, is_foreign_array
from caffelite.core.autograd import matches_shape
from caffelite.core.function import Shape
from caffelite.functions.losses.base import Loss, PointwiseLoss
from caffelite.functions.losses.targets import (
    are_probabilities,
    as_ignore_label,
    as_labels,
    as_probabilities,
    check_fractions,
    check_labels_shape,
    check_scores_shape,
)

__all__ = ["CrossEntropyLoss", "FocalLoss", "HingeLoss", "SigmoidLoss", "SoftmaxLoss"]


class LabelLoss(Loss, recordable=True):
    """A loss of scores (n, C) and integer labels, one of 0 … C − 1 for each row."""

    allow_nd = False  # whether scores may be (n, …, C), and labels (n, …)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, labels = input_shapes[:2]
        check_scores_shape(type(self).__name__, scores, self.allow_nd)
        check_labels_shape(type(self).__name__, labels, scores)
        return ()

    def convert_targets(self, targets: Any, scores_shape: Shape, dtype: Any = None) -> np.ndarray:
        return as_labels(type(self).__name__, targets, scores_shape, self.ignore, self.allow_nd)


class SoftmaxLoss(LabelLoss, recordable=True):
    """The cross-entropy for classes: softmax and mean negative log-likelihood, fused:

        p = softmax(s),  y = −mean log p[i, label i],  ds = dy (p − onehot) / n

    Scores s are (n, C) and unnormalised (logits). Targets are (n,) integers in 0 … C − 1. `probabilities` (n, C) are
    those of the last forward. Bad labels raise ValueError or TypeError, naming the first bad row and the allowed range.
    `cl.CrossEntropyLoss` is another name for this class.

    Scores may be (n, …, C) with labels (n, …). The mean is then over the labels, each with the weight of its row.
    Labels equal to `ignore` do not count. If all are ignored, `forward` raises ValueError.

    Targets may also be floats t of the scores' shape, the probabilities of the classes: y = −mean Σ t log p. A
    ValueError names the first row with a value below 0, or with a sum that differs from 1 by more than 1e-3. With
    `label_smoothing` e, t (or a one-hot label) becomes (1 − e) t + e / C.

    C. Bishop, "Pattern Recognition and Machine Learning", 2006, section 4.3.4; C. Szegedy et al., "Rethinking the
    inception architecture for computer vision", CVPR 2016, section 7.
    """

    allow_nd = True
    threshold = None

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
        """The softmax of the last forward's scores, or None if it failed."""
        return None if self.value is None else self.p

    def __repr__(self) -> str:
        arguments = [f"label_smoothing={self.label_smoothing}"] if self.label_smoothing else []
        arguments += [] if self.ignore is None else [f"ignore={self.ignore}"]
        return f"SoftmaxLoss({', '.join(arguments)})"


CrossEntropyLoss = SoftmaxLoss  # the name that most learners know


class FocalLoss(LabelLoss, recordable=True):
    """The focal loss: cross-entropy with less weight for well-classified rows,  y = −mean (1 − q)ᵞ log q, q = p[label].

    p = softmax(s). ds = dy f (p − onehot) / n,  f = (1 − q)ᵞ − γ q (1 − q)^(γ−1) log q. With γ = 0 it is `SoftmaxLoss`.
    Scores s (n, …, C), labels (n, …) integers in 0 … C − 1. Bad labels raise the same errors as in `SoftmaxLoss`; γ
    below 0 raises ValueError.

    T. Lin et al., "Focal loss for dense object detection", ICCV 2017.
    """

    allow_nd = True
    threshold = None

    def __init__(self, gamma: float = 2.0) -> None:
        self.gamma = check_nonnegative("FocalLoss: gamma", gamma)

    def link(self, scores: Any) -> np.ndarray:
        """Return the probabilities of the classes, softmax(scores)."""
        return kernels.softmax(super().link(scores))

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.labels = targets
        label_losses, self.p = kernels.softmax_loss(scores, targets)  # −log q
        losses, self.derivatives = kernels.focal(label_losses, self.gamma)
        return losses

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        scale = 1 / self.derivatives.size if self.row_weights is None else self.row_weights
        return kernels.softmax_loss_grad(self.p, self.labels, dy, kernels.multiply(self.derivatives, scale))

    def __repr__(self) -> str:
        return f"FocalLoss({self.gamma})"


class HingeLoss(LabelLoss, recordable=True):
    """The multi-class hinge loss, the mean of yᵢ = Σⱼ max(0, sᵢⱼ − sᵢ,label + margin) over the other classes j.

    dsᵢⱼ = dy / n if sᵢⱼ − sᵢ,label + margin > 0, else 0;  dsᵢ,label = −Σⱼ dsᵢⱼ. Scores s (n, C), labels (n,) integers
    in 0 … C − 1. Bad labels raise the same errors as in `SoftmaxLoss`.

    J. Weston and C. Watkins, "Support vector machines for multi-class pattern recognition", ESANN 1999.
    """

    def __init__(self, margin: float = 1.0) -> None:
        self.margin = check_nonnegative("HingeLoss: margin", margin)

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores, self.targets = scores, targets
        return kernels.hinge_loss(scores, targets, self.margin)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.hinge_loss_grad(self.scores, self.targets, dy, self.margin, self.row_weights)

    def __repr__(self) -> str:
        return f"HingeLoss({self.margin})"


class SigmoidLoss(PointwiseLoss, recordable=True):
    """The binary cross-entropy loss, from scores:  y = mean −w t log p − (1 − t) log(1 − p),  p = sigmoid(s).

    ds = dy ((1 + (w − 1) t) p − w t) / (n k) for n rows of k elements. Scores s have any shape (n, …). Targets t have
    the same shape, with values from 0 to 1 (bools and integers, too). For scores (n, 1) they may be (n,). w is
    `pos_weight`, 1 by default: one number, or for scores (n, …, C) an array (C,) with one for each output. If targets
    are out of range or NaN, a ValueError names the first bad row.
    """

    threshold = 0.0

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
        """Return the probabilities of class 1, sigmoid(scores)."""
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
