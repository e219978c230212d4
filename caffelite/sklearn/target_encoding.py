"""Classification and regression: how targets are encoded, the loss, the score, and predictions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import log_expit
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target, unique_labels

from caffelite import _kernels as kernels
from caffelite.functions import MSELoss, SigmoidLoss, SoftmaxLoss
from caffelite.functions.losses.base import Loss
from caffelite.sklearn.base import Estimator, is_stochastic
from caffelite.sklearn.penalized_loss import PoissonDeviance
from caffelite.training.metrics.regression import r2


@dataclass(eq=False, repr=False)
class Classification(ClassifierMixin, Estimator):
    """Labels, of two or more classes; or several of them, as an indicator matrix.

    The model has an output for each class. Their softmax gives the probabilities. For two classes, it has one output,
    whose sigmoid is the probability of the second class. For an indicator matrix, it has an output for each column.
    """

    _: KW_ONLY
    class_weight: Any = None

    _is_regression = False

    @available_if(is_stochastic)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Any:
        """Train for one more epoch, and return the estimator. The optimizer continues from the last call.

        X, y and sample_weight are as in `fit`. `classes` are all the classes that will occur, in any order. The first
        call needs them, unless y is an indicator matrix. Raise ValueError with `early_stopping`, because it needs an
        entire training run, and with `class_weight="balanced"`, because it depends on all rows.
        """
        self._validate_params()
        if classes is not None:
            classes = unique_labels(classes)
            if hasattr(self, "classes_") and not np.array_equal(classes, self.classes_):
                raise ValueError(f"classes are {classes}, and were {self.classes_} in the first call")
        elif not hasattr(self, "classes_") and not type_of_target(y).startswith("multilabel"):
            raise ValueError("classes must be passed on the first call to partial_fit")
        return self._train_part(X, y, sample_weight, classes)

    def _learn_targets(self, y: Any, classes: Any) -> None:
        check_classification_targets(y)
        self._is_multilabel = type_of_target(y).startswith("multilabel")
        if y.ndim == 2 and not self._is_multilabel:
            raise ValueError(f"expected labels (n,) or an indicator matrix of 0 and 1, got y of shape {y.shape}")
        labels = np.arange(y.shape[1]) if self._is_multilabel else unique_labels(y)
        self.classes_ = labels if classes is None else classes
        is_softmax = len(self.classes_) > 2 and not self._is_multilabel
        self.n_outputs_ = len(self.classes_) if is_softmax or self._is_multilabel else 1
        self.out_activation_ = "softmax" if is_softmax else "logistic"

    def _check_same_targets(self, y: Any) -> None:
        if not self._is_multilabel and not np.array_equal(labels := unique_labels(y), self.classes_):
            raise ValueError(f"warm_start continues with a model of the classes {self.classes_}; y has {labels}")

    def _encode_targets(self, y: Any) -> np.ndarray:
        if self._is_multilabel:
            if y.ndim != 2 or y.shape[1] != self.n_outputs_:
                raise ValueError(f"expected an indicator matrix of {self.n_outputs_} columns, got y of shape {y.shape}")
            return np.asarray(y.toarray() if issparse(y) else y, self.model_.dtype)
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            row = int(unknown.argmax())
            label = y[row : row + 1].tolist()[0]
            raise ValueError(f"y[{row}] is {label!r}, which is not one of the classes {self.classes_}")
        labels = np.searchsorted(self.classes_, y)
        return labels.astype(self.model_.dtype if self.n_outputs_ == 1 else np.int64)

    def _row_weights(self, weights: np.ndarray | None, y: Any, is_partial: bool) -> np.ndarray | None:
        if self.class_weight is None:
            return weights
        if is_partial and isinstance(self.class_weight, str):
            raise ValueError('class_weight="balanced" needs all rows: give partial_fit {class: weight}')
        class_weights = compute_sample_weight(self.class_weight, y)
        return class_weights if weights is None else weights * class_weights

    def _loss(self) -> tuple[Loss, float]:
        return (SoftmaxLoss(), 1) if self.out_activation_ == "softmax" else (SigmoidLoss(), self.n_outputs_)

    def _score(self, scores: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> float:
        if not np.isfinite(scores).all():
            return np.nan
        if self.out_activation_ == "softmax":
            right = scores.argmax(axis=1) == targets
        else:
            right = ((scores > 0) == (targets.reshape(scores.shape) > 0)).all(axis=1)
        if weights is None:  # in less time than an average takes
            return np.count_nonzero(right) / len(right)
        return float(np.average(right, weights=weights))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable classes (n,), or an indicator matrix (n, labels) of probabilities above ½."""
        scores = self._predict_scores(X)
        if self._is_multilabel:
            return (scores > 0).astype(int)
        if self.n_outputs_ > 1:
            return self.classes_[scores.argmax(axis=1)]
        return self.classes_[((scores[:, 0] > 0) & (len(self.classes_) > 1)).astype(int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes (n, classes), in the order of `classes_`; or of (n, labels)."""
        scores = self._predict_scores(X)
        probabilities = self._link(scores)
        if self.n_outputs_ > 1 or self._is_multilabel:
            return probabilities
        if len(self.classes_) == 1:
            return np.ones_like(probabilities)
        return np.concatenate([1 - probabilities, probabilities], axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of `predict_proba`, computed from the scores. So tiny probabilities do not give −∞."""
        scores = self._predict_scores(X)
        if self._is_multilabel:
            return log_expit(scores)
        if self.n_outputs_ > 1:
            return kernels.log_softmax(scores)
        if len(self.classes_) == 1:
            return np.zeros_like(scores)
        return log_expit(np.concatenate([-scores, scores], axis=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


@dataclass(eq=False, repr=False)
class Regression(RegressorMixin, MultiOutputMixin, Estimator):
    """Numbers, one or several per row."""

    _: KW_ONLY
    loss: str = "squared_error"

    _is_regression = True

    def _learn_targets(self, y: Any, classes: Any) -> None:
        self.n_outputs_ = 1 if y.ndim == 1 else y.shape[1]
        self.out_activation_ = "exp" if self.loss == "poisson" else "identity"

    def _encode_targets(self, y: Any) -> np.ndarray:
        outputs = 1 if y.ndim == 1 else y.shape[1]
        if outputs != self.n_outputs_:
            raise ValueError(f"expected {self.n_outputs_} targets a row, got y of shape {y.shape}")
        return np.asarray(y, self.model_.dtype)

    def _loss(self) -> tuple[Loss, float]:
        if self.out_activation_ == "exp":
            return PoissonDeviance(), self.n_outputs_
        return MSELoss(), self.n_outputs_ / 2

    def _score(self, scores: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> float:
        if not np.isfinite(scores).all():
            return np.nan
        predictions = self._link(scores)
        if weights is None:  # scikit-learn's own takes longer than an epoch of a small training
            return r2(predictions, targets)
        return float(r2_score(targets, predictions, sample_weight=weights))

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions, (n,) or (n, outputs)."""
        scores = self._predict_scores(X)
        predictions = self._link(scores)
        return predictions[:, 0] if self.n_outputs_ == 1 else predictions
