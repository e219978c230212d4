"""Losses: Functions of scores and targets that return the mean loss over the rows, 0-d.

All take weights of the rows as a third input; the loss is then Σ w l / Σ w. Targets and weights have no gradient.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real, first_outside, flat_int64, nonnegative, own_copy
from caffelite.core.function import Function, Shape, shape_text
from caffelite.core.sharing import share
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import common_length
from caffelite.functions.shape import reshaped

__all__ = ["HingeLoss", "HuberLoss", "MAELoss", "MSELoss", "Penalized", "SigmoidLoss", "SoftmaxLoss"]


class Loss(Function, recordable=True):
    """What losses share: from the losses of the rows to their mean, and back.

    A loss is `losses`, from scores and targets to the loss of each row; `gradient`, from that of the mean to that of
    the scores; `checked` and `check_targets`.

    After `forward`, `value` is the mean, 0-d, and `weight` the Σ w that it was divided by, or None where all rows
    counted alike: what an epoch's mean is made of.
    """

    value: np.ndarray | None = None
    weight: np.ndarray | None = None
    share: np.ndarray | None = None  # what each row counts for in the mean; None: 1 / rows
    ignore: int | None = None

    @abstractmethod
    def check_targets(self, targets: Any, scores_shape: Shape) -> None:
        """Raise unless `targets` are what scores of this shape, None = unknown, can be compared with."""

    @abstractmethod
    def checked(self, targets: Any, scores: np.ndarray) -> np.ndarray:
        """The targets, checked, as `losses` takes them."""

    @abstractmethod
    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The loss of each row; keeps what `gradient` needs."""

    @abstractmethod
    def gradient(self, dy: np.ndarray) -> np.ndarray:
        """The gradient of the scores, given that of the mean."""

    def link(self, scores: Any) -> np.ndarray:
        """What scores mean: the scores."""
        return as_real(scores, None, f"{self!r}.link")

    def forward(self, scores: np.ndarray, targets: Any, weights: Any = None) -> np.ndarray:
        self.value = self.weight = self.share = None
        targets = self.checked(own_copy(targets), scores)  # what is checked is what is used, here and in backward
        if weights is not None:
            weights = as_real(weights, scores.dtype.newbyteorder("="), f"{self!r}: weights")
            if weights.shape != scores.shape[:1]:
                raise ValueError(f"{self!r} got weights of shape {weights.shape} for scores of shape {scores.shape}")
        rows = self.losses(scores, targets)
        self.shape = scores.shape
        if weights is None and self.ignore is None:
            self.value = kernels.sum(rows, scale=1 / rows.size)
        else:
            labels = None if self.ignore is None else targets
            refuse = functools.partial(_refuse_labels, self.ignore) if weights is None else _refuse_weights
            mean = kernels.weighted_mean(rows, weights, labels, self.ignore, refuse, share() is not None)
            self.value, self.share, self.weight = mean
        return self.value

    def backward(self, dy: Any = 1.0) -> np.ndarray:
        if self.value is None:
            raise RuntimeError(f"{type(self).__name__}.backward without a forward that succeeded")
        if isinstance(dy, int | float | np.generic):
            dy = kernels.full((), dy, self.value.dtype)
        dy = as_real(dy, self.value.dtype, f"{self!r}.backward")
        return self.gradient(dy).reshape(self.shape)


def _refuse_weights(weights: np.ndarray) -> None:
    """Raise ValueError for the first of these weights that is none, or because nothing counts."""
    bad = ~((weights >= 0) & np.isfinite(weights))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"weight {weights[row]!s} in row {row}: weights must be finite and not below 0")
    raise ValueError("the weights of what counts sum up to nothing, or to infinity: there is no mean")


def _refuse_labels(ignore: int | None, labels: np.ndarray) -> None:
    """Raise ValueError because nothing counts."""
    raise ValueError(f"all {labels.size} labels are {ignore}, which is to be ignored: there is no mean")


# ---- of scores and targets, one by one ----


class PointwiseLoss(Loss, recordable=True):
    """A mean over rows of the mean over a row's elements of f(score, target).

    Targets are numbers, of the scores' shape, or (n,) for scores (n, 1).
    """

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, targets = input_shapes[:2]
        if len(scores) == len(targets) + 1 == 2 and scores[1] in (1, None):
            targets = (*targets, 1)
        try:
            for lengths in zip(scores, targets, strict=True):
                common_length(lengths)
        except ValueError:
            raise ValueError(
                f"{type(self).__name__} got targets of shape {input_shapes[1]} for scores of shape {scores}; "
                "expected the same shape"
            ) from None
        return ()

    def check_targets(self, targets: Any, scores_shape: Shape) -> None:
        self.output_shape(scores_shape, np.shape(targets))
        self.check_values(as_real(targets, None, f"{self!r}: targets"))

    def check_values(self, targets: np.ndarray) -> None:
        """Raise unless these targets are in the loss's range."""

    def checked(self, targets: Any, scores: np.ndarray) -> np.ndarray:
        targets = as_real(targets, scores.dtype.newbyteorder("="), f"{self!r}: targets")
        self.output_shape(scores.shape, targets.shape)
        self.check_values(targets)
        return targets

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        if scores.ndim == 0:
            raise ValueError(f"{type(self).__name__} got scores of shape (); expected rows")
        self.scores = reshaped(scores, (len(scores), math.prod(scores.shape[1:])))
        self.targets = reshaped(targets, self.scores.shape)
        return self.of_rows(self.scores, self.targets)

    @abstractmethod
    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The losses of rows (n, k): (n,)."""


class MSELoss(PointwiseLoss, recordable=True):
    """The mean squared error, y = mean (s − t)²:  ds = dy 2 (s − t) / k / n for rows of k elements.

    Scores s of any shape (n, …), targets t of the same; (n,) also for scores (n, 1).
    """

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return kernels.mse_loss(scores, targets)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.mse_loss_grad(self.scores, self.targets, dy, self.share)


class MAELoss(PointwiseLoss, recordable=True):
    """The mean absolute error, y = mean |s − t|:  ds = dy sign(s − t) / k / n for rows of k elements; 0 where s = t.

    Scores s of any shape (n, …), targets t of the same; (n,) also for scores (n, 1).
    """

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return kernels.mae_loss(scores, targets)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.mae_loss_grad(self.scores, self.targets, dy, self.share)


class HuberLoss(PointwiseLoss, recordable=True):
    """Squared near 0, absolute beyond: the mean of d²/2, d = s − t, or delta (|d| − delta/2) if |d| > delta.

    ds = dy clip(d, −delta, delta) / k / n for rows of k elements. Scores s of any shape (n, …), targets t of the same;
    (n,) also for scores (n, 1). delta is above 0.

    P. Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35, 1964.
    """

    def __init__(self, delta: float = 1.0) -> None:
        self.delta = nonnegative("HuberLoss: delta", delta)
        if self.delta == 0:
            raise ValueError("HuberLoss: delta must be above 0")

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return kernels.huber_loss(scores, targets, self.delta)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.huber_loss_grad(self.scores, self.targets, dy, self.delta, self.share)

    def __repr__(self) -> str:
        return f"HuberLoss({self.delta})"


class SigmoidLoss(PointwiseLoss, recordable=True):
    """Sigmoid and binary cross-entropy, fused:  y = mean −w t log p − (1 − t) log(1 − p),  p = sigmoid(s).

    ds = dy ((1 + (w − 1) t) p − w t) / k / n for rows of k elements. Scores s of any shape (n, …), targets t of the
    same, 0 … 1 (bools and integers, too); (n,) also for scores (n, 1). w is `pos_weight`, 1 if there is none. Targets
    out of range, NaN among them, raise ValueError naming the first bad row.
    """

    def __init__(self, pos_weight: float | None = None) -> None:
        self.pos_weight = None if pos_weight is None else nonnegative("SigmoidLoss: pos_weight", pos_weight)
        self.positive = 1.0 if self.pos_weight is None else self.pos_weight

    def check_values(self, targets: np.ndarray) -> None:
        rows = reshaped(targets, (targets.shape[0] if targets.ndim else 1, -1)) if targets.size else targets
        if targets.size:
            kernels.check_probabilities(rows, 1.0, math.inf, functools.partial(_refuse_targets, 1.0, math.inf))

    def link(self, scores: Any) -> np.ndarray:
        """What scores mean: the probabilities of 1, sigmoid(scores)."""
        return kernels.sigmoid(super().link(scores))

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return kernels.sigmoid_loss(scores, targets, self.positive)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.sigmoid_loss_grad(self.scores, self.targets, dy, self.positive, self.share)

    def __repr__(self) -> str:
        return f"SigmoidLoss({'' if self.pos_weight is None else self.pos_weight})"


def _refuse_targets(largest: float, tolerance: float, targets: np.ndarray) -> None:
    """Raise ValueError for the first of these rows, (n, C), that has a number out of range, or another sum than 1."""
    bad = ~((targets >= 0) & (targets <= largest))
    with np.errstate(invalid="ignore"):
        sums = targets.sum(axis=1, dtype=np.float64)
        rows = bad.any(axis=1) | ~(abs(sums - 1) <= tolerance)
    row = int(rows.argmax())
    if bad[row].any():
        value = targets[row, bad[row].argmax()]
        raise ValueError(f"target {value!s} in row {row} is not one of the probabilities, 0 … 1")
    raise ValueError(f"the targets in row {row} sum up to {sums[row]:.6g}: probabilities of all classes sum up to 1")


# ---- of labels ----

_NOT_ONE_HOT = ", not one-hot rows: y.argmax(axis=1)"


class OfLabels(Loss, recordable=True):
    """A loss of scores (n, …, C) and one integer label of 0 … C − 1, or `ignore`, for each C of them."""

    deep = False  # whether there may be axes between rows and classes

    def check_targets(self, targets: Any, scores_shape: Shape) -> None:
        self.labels_of(targets, scores_shape)

    def checked(self, targets: Any, scores: np.ndarray) -> np.ndarray:
        return self.labels_of(targets, scores.shape)

    def labels_of(self, targets: Any, scores_shape: Shape) -> np.ndarray:
        """The targets, checked, as int64 in one axis."""
        name = type(self).__name__
        if len(scores_shape) != 2 and not (self.deep and len(scores_shape) > 2):
            expected = "(n, …, classes)" if self.deep else "(n, classes)"
            raise ValueError(f"{name} got scores of shape {scores_shape}; expected {expected}")
        *rows, classes = scores_shape
        labels = np.asanyarray(targets)
        if labels.dtype.kind not in "iu":
            row, label = first_outside(targets, 0, None if classes is None else classes - 1)
            allowed = "integer labels" if classes is None else f"integer labels in 0 … {classes - 1}"
            raise TypeError(
                f"{name} takes {allowed}, got {labels.dtype}"
                + ("" if row < 0 else f": {label!r} in row {row}")
                + _instead_of(labels, label)
            )
        if labels.ndim != len(rows) or any(
            n not in (None, length) for n, length in zip(rows, labels.shape, strict=True)
        ):
            expected = "one label a row" if len(rows) == 1 else f"a label for each place, {shape_text(tuple(rows))}"
            if labels.ndim == len(scores_shape):
                expected += ", (n,), not a column: np.ravel(y)" if labels.shape[1:] == (1,) else _NOT_ONE_HOT
            raise ValueError(
                f"{name} got labels of shape {labels.shape} for scores of shape {scores_shape}: expected {expected}"
            )
        if labels.size == 0:
            raise ValueError(f"{name} got no labels")
        shape, dtype = labels.shape, labels.dtype
        labels = flat_int64(labels)
        if classes is not None:
            refuse = functools.partial(_refuse_label, classes, self.ignore, shape, dtype)
            kernels.check_labels(labels, classes, refuse, self.ignore)
        return labels

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, targets = input_shapes[:2]
        try:
            if len(scores) < 2 or (len(scores) > 2 and not self.deep):
                raise ValueError
            for lengths in zip(scores[:-1], targets, strict=True):
                common_length(lengths)
        except ValueError:
            expected = "(n, …, classes) and (n, …)" if self.deep else "(n, classes) and (n,)"
            raise ValueError(f"{type(self).__name__} got shapes {scores} and {targets}; expected {expected}") from None
        return ()


class HingeLoss(OfLabels, recordable=True):
    """The hinge of several classes, yᵢ = Σⱼ max(0, sᵢⱼ − sᵢ,label + margin) over the other classes j, and their mean.

    Scores s (n, C), labels (n,) integers in 0 … C − 1. ds is dy / n where a class adds to the loss, and at the label
    the negative sum of those. Bad labels raise as for `SoftmaxLoss`.

    J. Weston and C. Watkins, "Support vector machines for multi-class pattern recognition", ESANN 1999.
    """

    def __init__(self, margin: float = 1.0) -> None:
        self.margin = nonnegative("HingeLoss: margin", margin)

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores, self.labels = scores, targets
        return kernels.hinge_loss(scores, targets, self.margin)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.hinge_loss_grad(self.scores, self.labels, dy, self.margin, self.share)

    def __repr__(self) -> str:
        return f"HingeLoss({self.margin})"


class SoftmaxLoss(OfLabels, recordable=True):
    """Softmax and the mean negative log-likelihood of the labels (cross-entropy), fused:

        p = softmax(scores),  y = −mean log p[i, label i],  dscores = dy (p − onehot) / n

    scores (n, C) unnormalised, targets (n,) integers in 0 … C − 1. `probabilities` (n, C) are the last forward's.
    Bad labels raise ValueError or TypeError, naming the first bad row and the allowed range.

    Scores may be (n, …, C), labels (n, …): the mean is over the labels, each with the weight of its row. Labels that
    are `ignore` count nowhere; ValueError where all are. Or targets are floats of the scores' shape, t, whose rows are
    probabilities: y = −mean Σ t log p. Those below 0, and rows whose sum is off 1 by more than 1e-3, are a ValueError
    naming the row. With `label_smoothing` e, t (the one-hot labels, too) becomes (1 − e) t + e / C.

    C. Bishop, "Pattern Recognition and Machine Learning", 2006, section 4.3.4; C. Szegedy et al., "Rethinking the
    inception architecture for computer vision", CVPR 2016, section 7.
    """

    deep = True
    probabilities: np.ndarray | None = None

    def __init__(self, label_smoothing: float = 0.0, ignore: int | None = None) -> None:
        self.label_smoothing = nonnegative("SoftmaxLoss: label_smoothing", label_smoothing)
        if self.label_smoothing > 1:
            raise ValueError(f"SoftmaxLoss: label_smoothing must be in 0 … 1, got {label_smoothing!r}")
        if ignore is not None and (isinstance(ignore, bool) or not isinstance(ignore, int | np.integer)):
            raise TypeError(f"SoftmaxLoss: ignore must be an integer, got {ignore!r}")
        self.ignore = None if ignore is None else int(ignore)

    def check_targets(self, targets: Any, scores_shape: Shape) -> None:
        if _are_soft(targets, scores_shape):
            self.probabilities_of(targets, scores_shape, None)
        else:
            self.labels_of(targets, scores_shape)

    def checked(self, targets: Any, scores: np.ndarray) -> np.ndarray:
        self.probabilities = None
        self.soft = _are_soft(targets, scores.shape)
        if self.soft:
            return self.probabilities_of(targets, scores.shape, scores.dtype.newbyteorder("="))
        return self.labels_of(targets, scores.shape)

    def probabilities_of(self, targets: Any, scores_shape: Shape, dtype: Any) -> np.ndarray:
        """The targets, checked, as rows of probabilities."""
        if self.ignore is not None:
            raise ValueError(f"{self!r} takes labels, got probabilities of shape {np.shape(targets)}")
        array = as_real(targets, dtype, "SoftmaxLoss: targets")
        if any(n not in (None, length) for n, length in zip(scores_shape, array.shape, strict=True)) or not array.size:
            raise ValueError(f"SoftmaxLoss got targets of shape {array.shape} for scores of shape {scores_shape}")
        rows = reshaped(array, (array.size // array.shape[-1], array.shape[-1]))
        kernels.check_probabilities(rows, math.inf, 1e-3, functools.partial(_refuse_targets, math.inf, 1e-3))
        return rows

    def link(self, scores: Any) -> np.ndarray:
        """What scores mean: the probabilities of the classes, softmax(scores)."""
        return kernels.softmax(super().link(scores))

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, targets = input_shapes[:2]
        if len(targets) == len(scores) and len({scores[-1], targets[-1]} - {None}) < 2:  # probabilities
            targets = targets[:-1]
        return super().output_shape(scores, targets)

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        scores, shape = reshaped(scores, (scores.size // (scores.shape[-1] or 1), scores.shape[-1])), scores.shape
        self.targets = targets
        if self.soft:
            rows, self.p = kernels.soft_loss(scores, targets, self.label_smoothing)
        else:
            rows, self.p = kernels.softmax_loss(scores, targets, self.label_smoothing, self.ignore)
        self.probabilities = self.p.reshape(shape)
        return rows

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        if self.soft:
            return kernels.soft_loss_grad(self.p, self.targets, dy, self.share, self.label_smoothing)
        return kernels.softmax_loss_grad(self.p, self.targets, dy, self.share, self.label_smoothing, self.ignore)

    def __repr__(self) -> str:
        arguments = [f"label_smoothing={self.label_smoothing}"] if self.label_smoothing else []
        arguments += [] if self.ignore is None else [f"ignore={self.ignore}"]
        return f"SoftmaxLoss({', '.join(arguments)})"


def _are_soft(targets: Any, scores_shape: Shape) -> bool:
    """Whether these are probabilities, and not labels."""
    array = np.asanyarray(targets)
    return array.dtype.kind == "f" and array.ndim == len(scores_shape) >= 2


def _instead_of(labels: np.ndarray, first: Any) -> str:
    """What makes labels of what are none, if that is plain."""
    if isinstance(first, str):
        return "; classes, y = np.unique(y, return_inverse=True) numbers them"
    is_whole = labels.dtype.kind in "fb" and (labels == np.trunc(labels)).all()
    return "; y.astype(int) makes integers of them" if is_whole else ""


def _refuse_label(classes: int, ignore: int | None, shape: tuple, dtype: np.dtype, labels: np.ndarray) -> None:
    """Raise ValueError for the first of these labels, int64 made of that dtype and shape, that is no class."""
    bad = ((labels < 0) | (labels >= classes)) & (True if ignore is None else labels != ignore)
    place = np.unravel_index(int(bad.argmax()), shape)
    label, where = labels.astype(dtype).reshape(shape)[place], "" if len(shape) == 1 else f", at {(*map(int, place),)},"
    raise ValueError(f"label {label} in row {place[0]}{where} is not one of the classes 0 … {classes - 1}")


# ---- with a penalty ----


class Penalized(Function, recordable=True):
    """A loss and a penalty of parameters:  y = loss + l1 Σ |w| + l2 Σ w² / 2,  dw = dy (l1 sign(w) + l2 w).

    `value` and `weight` are those of the loss alone.
    """

    def __init__(self, loss: Function, parameters: Iterable[Tensor], l1: float = 0.0, l2: float = 0.0) -> None:
        if not isinstance(loss, Function):
            raise TypeError(f"Penalized takes a loss, such as SoftmaxLoss(), got {loss!r}")
        self.loss, self.penalized = loss, list(parameters)
        if not self.penalized or not all(isinstance(p, Tensor) for p in self.penalized):
            raise TypeError(f"Penalized takes a list of parameters, at least one Tensor, got {self.penalized!r}")
        self.l1, self.l2 = nonnegative("Penalized: l1", l1), nonnegative("Penalized: l2", l2)

    @property
    def ignore(self) -> int | None:
        """The label that counts nowhere, if there is one."""
        return getattr(self.loss, "ignore", None)

    def check_targets(self, targets: Any, scores_shape: Shape) -> None:
        if hasattr(self.loss, "check_targets"):
            self.loss.check_targets(targets, scores_shape)

    def link(self, scores: Any) -> np.ndarray:
        """What scores mean to the loss."""
        return self.loss.link(scores)  # type: ignore[attr-defined]

    def output_shape(self, *input_shapes: Shape) -> Shape:
        return self.loss.output_shape(*input_shapes)

    def forward(self, scores: np.ndarray, targets: Any, *weights: Any) -> np.ndarray:
        self.value = self.loss.forward(scores, targets, *weights)
        self.weight = None if self.loss.runs_in_python else getattr(self.loss, "weight", None)
        y = self.value
        for p in self.penalized:
            y = kernels.add(y, kernels.sum(kernels.penalty(p.data, self.l1, self.l2)))
        return y

    def backward(self, dy: Any = 1.0) -> np.ndarray:
        dscores = self.loss.backward(dy)
        for p in self.penalized:
            of_p = kernels.full((), dy, p.dtype) if isinstance(dy, int | float | np.generic) else dy
            p.add_grad(kernels.penalty_grad(as_real(of_p, p.dtype, f"{self!r}.backward"), p.data, self.l1, self.l2))
        return dscores

    def __repr__(self) -> str:
        return f"Penalized({self.loss!r}, {len(self.penalized)} parameters, l1={self.l1}, l2={self.l2})"
