"""The estimators: what all of them share, what classifiers and regressors do with targets, and where the model is from.

`Estimator` trains a model that `_build` makes, on targets that `_encoded` makes numbers of, and keeps the account that
scikit-learn's perceptrons keep. `Classification` and `Regression` know the targets; `Net` and `Perceptron`, the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse
from scipy.special import log_expit
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor as TheirRegressor
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from caffelite import _kernels as kernels
from caffelite.core.arrays import positive_integer
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.functions import (
    BatchNorm,
    Dropout,
    Linear,
    MSELoss,
    ReLU,
    Sigmoid,
    SigmoidLoss,
    SoftmaxLoss,
    Tanh,
)
from caffelite.functions.loss import Loss
from caffelite.model.minimize import minimize
from caffelite.model.model import Model
from caffelite.optimizers import SGD, Adam, Optimizer, TrainingDiverged
from caffelite.sklearn.objective import Objective, PoissonLoss
from caffelite.sklearn.progress import Improvement, Tasks, Validation
from caffelite.training.history import History
from caffelite.training.metrics import r2

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # before 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """There are no callbacks that could be supported."""

    def with_callbacks(method: Callable) -> Callable:
        """The method."""
        return method


__all__ = ["MLPClassifier", "MLPRegressor", "NetClassifier", "NetRegressor"]

ACTIVATIONS: dict[str, type[Function] | None] = {"identity": None, "logistic": Sigmoid, "tanh": Tanh, "relu": ReLU}
SETTINGS = (  # what objective and optimizer are made of
    "solver",
    "alpha",
    "learning_rate_init",
    "momentum",
    "nesterovs_momentum",
    "beta_1",
    "beta_2",
    "epsilon",
)
LARGEST_SEED = 2**31 - 1
TINY = float(np.finfo(np.float64).tiny)


def _is_stochastic(estimator: Any) -> bool:
    if estimator.solver == "lbfgs":
        raise AttributeError('partial_fit goes with the solvers "adam" and "sgd"; "lbfgs" takes all rows at once')
    return True


@dataclass(eq=False, repr=False)
class Estimator(CallbackSupportMixin, BaseEstimator):
    """What all estimators share: the parameters of training, and the training."""

    _: KW_ONLY
    solver: str = "adam"
    alpha: float = 0.0001
    batch_size: Any = "auto"
    learning_rate: str = "constant"
    learning_rate_init: float = 0.001
    power_t: float = 0.5
    max_iter: int = 200
    shuffle: bool = True
    random_state: Any = None
    tol: float = 1e-4
    verbose: bool | int = False
    warm_start: bool = False
    momentum: float = 0.9
    nesterovs_momentum: bool = True
    early_stopping: bool = False
    validation_fraction: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    n_iter_no_change: float = 10
    max_fun: int = 15000
    callbacks: list[Callable[[int, History], Any]] | tuple[Callable[[int, History], Any], ...] | None = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TheirRegressor._parameter_constraints,
        "loss": [StrOptions({"squared_error", "poisson"})],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "batch_norm": ["boolean"],
        "class_weight": [dict, list, StrOptions({"balanced"}), None],
        "callbacks": [list, tuple, None],
        "build": [callable],
    }

    # ---- what the others fill in ------------------------------------------------------------------------------------

    _are_numbers: ClassVar[bool]  # whether targets are, or else labels
    _of_model: ClassVar[tuple[str, ...]]  # the parameters that say what the model is

    def _build(self, n_features: int, n_outputs: int, dtype: np.dtype, random_state: np.random.RandomState) -> Model:
        """A new model for rows of so many features."""
        raise NotImplementedError

    def _learn_targets(self, y: Any, classes: Any) -> None:
        """Set `n_outputs_`, `out_activation_` and whatever else there is to know of the targets."""
        raise NotImplementedError

    def _check_same(self, y: Any) -> None:
        """ValueError unless a warm start may go on with these targets."""

    def _encoded(self, y: Any) -> np.ndarray:
        """Targets as the loss takes them, in the model's dtype; ValueError for what was not learned of."""
        raise NotImplementedError

    def _loss(self) -> tuple[Loss, float]:
        """The loss, a mean over rows, and what makes the sum over a row's outputs of it that is minimized."""
        raise NotImplementedError

    def _link(self, scores: np.ndarray) -> np.ndarray:
        """What the model's scores mean: probabilities, or what is predicted."""
        return self._loss()[0].link(scores)

    def _score(self, scores: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> float:
        """The score of the model's outputs, NaN where they are not finite."""
        raise NotImplementedError

    def _all_weights(self, weights: np.ndarray | None, y: Any, in_parts: bool) -> np.ndarray | None:
        """How much rows weigh in the loss, given how much they weigh in themselves."""
        return weights

    # ---- what fitting is made of ------------------------------------------------------------------------------------

    @property
    def _stops_early(self) -> bool:
        return self.early_stopping and self.solver != "lbfgs"

    @staticmethod
    def _dtype(X: Any) -> np.dtype:
        """What is computed in, of such rows."""
        return np.dtype(np.float32 if X.dtype == np.float32 else np.float64)

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        """Rows and their targets as arrays, targets of one column as a vector."""
        options = {"accept_sparse": "csr", "dtype": "numeric", "multi_output": True, "y_numeric": self._are_numbers}
        X, y = validate_data(self, X, y, reset=reset, **options)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y.toarray() if issparse(y) else y, warn=True)
        return X, y

    def _validation(self, eval_set: Any) -> Validation:
        if not isinstance(eval_set, tuple | list) or len(eval_set) not in (2, 3):
            what = f"a {type(eval_set).__name__}"
            what += f" of {len(eval_set)}" if isinstance(eval_set, tuple | list) else ""
            raise ValueError(f"eval_set: expected (X, y) or (X, y, sample_weight), got {what}")
        X, y, *weights = eval_set
        X, y = self._checked(X, y, reset=False)
        checked = [_check_sample_weight(w, X, dtype=np.float64) for w in weights if w is not None]
        return Validation(X, self._encoded(y), *checked)

    def _split(self, X: Any, y: Any, weights: np.ndarray | None) -> tuple[Any, Any, np.ndarray | None, Validation]:
        """What to train on, and what to score: the same rows that scikit-learn's perceptrons hold out."""
        kept, held_out = train_test_split(
            np.arange(y.shape[0]),
            test_size=self.validation_fraction,
            stratify=None if self._are_numbers or self.n_outputs_ > 1 else y,
            random_state=self._random_state,
        )
        if len(held_out) < 2:
            share = f"validation_fraction={self.validation_fraction} of {y.shape[0]} rows"
            raise ValueError(f"The validation set is too small: {share}")
        if weights is None:
            return X[kept], y[kept], None, Validation(X[held_out], self._encoded(y[held_out]))
        return X[kept], y[kept], weights[kept], Validation(X[held_out], self._encoded(y[held_out]), weights[held_out])

    def _begin(self, X: Any) -> None:
        """Make the model, and begin the account of its training."""
        model = self._build(X.shape[1], self.n_outputs_, self._dtype(X), self._random_state)
        if not isinstance(model, Model):
            raise TypeError(f"build: expected a function (n_features, n_outputs) -> Model, which returned {model!r}")
        shape = model.output_shape(X.shape)
        if shape != (X.shape[0], self.n_outputs_):
            raise ValueError(
                f"build: expected a model of {self.n_outputs_} outputs a row, (n, {self.n_outputs_}), got one whose "
                f"outputs have shape {shape} for X of shape {X.shape}: {model!r}"
            )
        self.model_, self._made_with = model, self._description()
        self.history_: Any = None  # of the last training
        self._optimizer: Optimizer | None = None
        self.n_iter_, self.t_, self._no_improvement_count = 0, 0, 0
        self.loss_curve_: list[float] = []
        self.best_loss_: float | None = None
        self.validation_scores_: list[float] | None = None
        self.best_validation_score_: float | None = None

    def _description(self) -> dict[str, Any]:
        """What the model is made by."""
        return {name: getattr(self, name) for name in self._of_model}

    def _check_same_model(self) -> None:
        """ValueError unless a training that goes on is of the model that the parameters say."""
        for name, now in self._description().items():
            if not np.array_equal(np.atleast_1d(then := self._made_with[name]), np.atleast_1d(now)):
                raise ValueError(
                    f"a training that goes on has the model that there is: {name} was {then!r}, is {now!r}"
                )

    def _prepare(self, in_parts: bool) -> None:
        """Have the objective and the optimizer, as the parameters are now, with what the last one remembers."""
        settings = [getattr(self, name) for name in SETTINGS]
        kept = self._optimizer
        if in_parts and kept is not None and settings == self._settings:
            return
        self._settings: list[Any] = settings
        trainable = [p for p in self.model_.parameters() if p.requires_grad]
        self._objective = Objective(*self._loss(), [p for p in trainable if p.data.ndim > 1], self.alpha)
        self._optimizer = new = self._new_optimizer(trainable)
        if new is not None and type(kept) is type(new):
            vectors, remembered = new.vectors(), kept.vectors()
            if {k: x.shape for k, x in vectors.items()} == {k: x.shape for k, x in remembered.items()}:
                new.load_state_dict(new.state_dict() | remembered)

    def _new_optimizer(self, parameters: list[Tensor]) -> Optimizer | None:
        """That of the solver; None for L-BFGS."""
        if self.solver == "sgd":
            nesterov = self.nesterovs_momentum and self.momentum > 0
            return SGD(parameters, self.learning_rate_init, self.momentum, nesterov=nesterov)
        if self.solver == "adam":
            return Adam(parameters, self.learning_rate_init, (self.beta_1, self.beta_2), self.epsilon)
        return None

    # ---- fitting ----------------------------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Any:
        """Train on rows and their targets; returns the estimator.

        Parameters
        ----------
        X : array-like, data frame or sparse matrix (n, features)
            float32 is computed in float32, all else in float64.
        y : array-like (n,) or (n, outputs)
        sample_weight : array-like (n,), optional
            How much each row weighs in the loss, not negative.
        eval_set : (X, y) or (X, y, sample_weight), optional
            Rows that are not trained on but scored after each epoch (`validation_scores_`); `history_` then has their
            loss, too. With `early_stopping` they are used instead of a share of X.

        Raises ValueError for parameters and data that cannot be used, and where the training diverges.
        """
        self._validate_params()
        callbacks = list(self.callbacks or ())
        if not hasattr(self, "_init_callback_context"):
            return self._train(X, y, sample_weight, eval_set, callbacks)
        given = {"estimator": self, "X": X, "y": y, "metadata": {"sample_weight": sample_weight}}
        context = self._init_callback_context(max_subtasks=self.max_iter)
        context.call_on_fit_task_begin(**given)
        if getattr(self, "_skl_callbacks", None):
            callbacks.append(Tasks(self, context, given))
        self._train(X, y, sample_weight, eval_set, callbacks)
        context.call_on_fit_task_end(**given, reconstruction_attributes=dict)
        return self

    @available_if(_is_stochastic)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train for one epoch more, the optimizer being as the last call left it; returns the estimator.

        X, y and sample_weight are as in `fit`. ValueError with `early_stopping`, which is for whole trainings.
        """
        return self._train_part(X, y, sample_weight)

    def _train_part(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Any:
        self._validate_params()
        if self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True: it is one epoch")
        return self._train(X, y, sample_weight, None, list(self.callbacks or ()), in_parts=True, classes=classes)

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        eval_set: Any,
        callbacks: list[Any],
        in_parts: bool = False,
        classes: Any = None,
    ) -> Any:
        """Train a new model, or the present one on; on all rows, or in parts, by one epoch."""
        begins = not hasattr(self, "model_") or not (self.warm_start or in_parts)
        X, y = self._checked(X, y, reset=begins)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
        if weights is not None and not weights.any():
            raise ValueError(f"all {len(weights)} sample weights are zero")
        if begins or not in_parts:
            self._random_state = check_random_state(self.random_state)
        if begins:
            self._learn_targets(y, classes)
            self._begin(X)
        else:
            self._check_same_model()
        if not begins and not in_parts:
            self._check_same(y)
        validation = None if eval_set is None else self._validation(eval_set)
        if self._stops_early and validation is None:
            X, y, weights, validation = self._split(X, y, weights)
        seed = self._random_state.randint(LARGEST_SEED)
        if begins:  # what is not drawn yet is drawn from the same seed
            Model([self.model_], seed=seed, dtype=self._dtype(X))
        self._prepare(in_parts)
        progress = Improvement(self, X.shape[0], validation)
        data = {"x": X, "y": self._encoded(y), "sample_weight": self._all_weights(weights, y, in_parts)}
        options = {"loss": self._objective, "callbacks": [progress, *callbacks], "verbose": 0}
        try:
            if self.solver == "lbfgs":
                self._minimize({**data, **options})
                unfinished = "" if self.history_.converged else self.history_.message
            else:
                self._descend({**data, **options}, X.shape[0], validation, seed, 1 if in_parts else self.max_iter)
                has_ended = progress.has_ended or in_parts or self.n_iter_ < self.max_iter
                unfinished = "" if has_ended else "there was improvement until the end"
            if unfinished:
                self._warn(f"not converged after {self.n_iter_} iterations: {unfinished}")
        except KeyboardInterrupt as error:
            self.history_ = error.history  # type: ignore[attr-defined]
            self._warn(f"the training was interrupted after {self.n_iter_} iterations", UserWarning)
        except TrainingDiverged as error:
            self.history_ = error.history  # type: ignore[attr-defined]
            if not self._stops_early:
                raise ValueError(f"{error}; scale the features, or lower learning_rate_init") from error
            progress.note_divergence()
            self._warn(f"the training diverged in {error}; the model is the best one before that")
        return self

    def _descend(
        self, options: dict[str, Any], rows: int, validation: Validation | None, seed: int, epochs: int
    ) -> None:
        """Train by the optimizer, batch by batch."""
        assert self._optimizer is not None
        self.history_ = self.model_.fit(
            **options,
            optimizer=self._optimizer,
            epochs=epochs,
            batch_size=min(200 if self.batch_size == "auto" else self.batch_size, rows),
            shuffle=self.shuffle,
            seed=seed,
            validation_data=validation and tuple([part for part in validation if part is not None]),
        )

    def _minimize(self, options: dict[str, Any]) -> None:
        """Train by L-BFGS, on all rows at once."""
        tolerance = max(self.tol, TINY)  # which is above 0
        self.history_ = minimize(
            self.model_, **options, max_iterations=self.max_iter, max_evaluations=self.max_fun, tolerance=tolerance
        )
        self.loss_ = self.history_.objective

    @staticmethod
    def _warn(text: str, category: Any = ConvergenceWarning) -> None:
        """Warn those who have called `fit`, which has called `_train`, which has called this."""
        warnings.warn(text, category, stacklevel=4 + hasattr(Estimator, "_init_callback_context"))

    # ---- use --------------------------------------------------------------------------------------------------------

    def _scores(self, X: Any) -> np.ndarray:
        """The model's outputs (n, outputs)."""
        check_is_fitted(self)
        return self.model_.predict(validate_data(self, X, reset=False, accept_sparse="csr", dtype="numeric"))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


# ---- targets ------------------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Classification(ClassifierMixin, Estimator):
    """Labels, of two or more classes; or several of them, as an indicator matrix.

    The model has an output for each class, of which the softmax are the probabilities; but only one, whose sigmoid is
    that of the second class, where there are two. With an indicator matrix it has an output for each column.
    """

    _: KW_ONLY
    class_weight: Any = None

    _are_numbers = False

    @available_if(_is_stochastic)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Any:
        """Train for one epoch more, the optimizer being as the last call left it; returns the estimator.

        X, y and sample_weight are as in `fit`. `classes` are all that there will be, in any order; needed with the
        first call, unless y is an indicator matrix. ValueError with `early_stopping`, which is for whole trainings, and
        for `class_weight="balanced"`, which is of all rows.
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
        self._has_several = type_of_target(y).startswith("multilabel")
        if y.ndim == 2 and not self._has_several:
            raise ValueError(f"expected labels (n,) or an indicator matrix of 0 and 1, got y of shape {y.shape}")
        found = np.arange(y.shape[1]) if self._has_several else unique_labels(y)
        self.classes_ = found if classes is None else classes
        is_softmax = len(self.classes_) > 2 and not self._has_several
        self.n_outputs_ = len(self.classes_) if is_softmax or self._has_several else 1
        self.out_activation_ = "softmax" if is_softmax else "logistic"

    def _check_same(self, y: Any) -> None:
        if not self._has_several and not np.array_equal(found := unique_labels(y), self.classes_):
            raise ValueError(f"warm_start takes up a model of the classes {self.classes_}; y has {found}")

    def _encoded(self, y: Any) -> np.ndarray:
        if self._has_several:
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

    def _all_weights(self, weights: np.ndarray | None, y: Any, in_parts: bool) -> np.ndarray | None:
        if self.class_weight is None:
            return weights
        if in_parts and isinstance(self.class_weight, str):
            raise ValueError('class_weight="balanced" is of all rows: give partial_fit {class: weight}')
        of_classes = compute_sample_weight(self.class_weight, y)
        return of_classes if weights is None else weights * of_classes

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
        """The most probable classes (n,), or an indicator matrix (n, labels) of what is more probable than not."""
        scores = self._scores(X)
        if self._has_several:
            return (scores > 0).astype(int)
        if self.n_outputs_ > 1:
            return self.classes_[scores.argmax(axis=1)]
        return self.classes_[((scores[:, 0] > 0) & (len(self.classes_) > 1)).astype(int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of the classes (n, classes), in the order of `classes_`; or of each label (n, labels)."""
        scores = self._scores(X)
        probabilities = self._link(scores)
        if self.n_outputs_ > 1 or self._has_several:
            return probabilities
        if len(self.classes_) == 1:
            return np.ones_like(probabilities)
        return np.concatenate([1 - probabilities, probabilities], axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithms of `predict_proba`; of the scores, so that none is −∞ because a probability is tiny."""
        scores = self._scores(X)
        if self._has_several:
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
    """Numbers, one a row or several."""

    _: KW_ONLY
    loss: str = "squared_error"

    _are_numbers = True

    def _learn_targets(self, y: Any, classes: Any) -> None:
        self.n_outputs_ = 1 if y.ndim == 1 else y.shape[1]
        self.out_activation_ = "exp" if self.loss == "poisson" else "identity"

    def _encoded(self, y: Any) -> np.ndarray:
        outputs = 1 if y.ndim == 1 else y.shape[1]
        if outputs != self.n_outputs_:
            raise ValueError(f"expected {self.n_outputs_} targets a row, got y of shape {y.shape}")
        return np.asarray(y, self.model_.dtype)

    def _loss(self) -> tuple[Loss, float]:
        return (PoissonLoss(), self.n_outputs_) if self.out_activation_ == "exp" else (MSELoss(), self.n_outputs_ / 2)

    def _score(self, scores: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> float:
        if not np.isfinite(scores).all():
            return np.nan
        predictions = self._link(scores)
        if weights is None:  # scikit-learn's own takes longer than an epoch of a small training
            return r2(predictions, targets)
        return float(r2_score(targets, predictions, sample_weight=weights))

    def predict(self, X: Any) -> np.ndarray:
        """The predictions, (n,) or (n, outputs)."""
        scores = self._scores(X)
        predictions = self._link(scores)
        return predictions[:, 0] if self.n_outputs_ == 1 else predictions


# ---- models -------------------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Net(Estimator):
    """Any model: what `build(n_features, n_outputs)` returns."""

    build: Callable[[int, int], Model]

    _of_model = ("build",)

    def _build(self, n_features: int, n_outputs: int, dtype: np.dtype, random_state: np.random.RandomState) -> Model:
        if isinstance(self.build, Function):
            raise TypeError(f"build: expected a function (n_features, n_outputs) -> Model, got a model, {self.build!r}")
        return self.build(n_features, n_outputs)


@dataclass(eq=False, repr=False)
class Perceptron(Estimator):
    """A multilayer perceptron, drawn as scikit-learn's are, to the same values from the same `random_state`."""

    hidden_layer_sizes: Any = (100,)
    activation: str = "relu"
    _: KW_ONLY
    dropout: float = 0.0
    batch_norm: bool = False

    _of_model = ("hidden_layer_sizes", "activation", "dropout", "batch_norm")

    def _build(self, n_features: int, n_outputs: int, dtype: np.dtype, random_state: np.random.RandomState) -> Model:
        hidden = np.atleast_1d(np.asarray(self.hidden_layer_sizes, dtype=object)).tolist()
        sizes = [n_features, *[positive_integer("hidden_layer_sizes", size) for size in hidden], n_outputs]
        activation = ACTIVATIONS[self.activation]
        model = Model(dtype=dtype)
        for inputs, outputs in pairwise(sizes[:-1]):
            model.add(Linear(inputs, outputs))
            if self.batch_norm:
                model.add(BatchNorm(outputs))
            if activation is not None:
                model.add(activation())
            if self.dropout > 0:
                model.add(Dropout(self.dropout))
        model.add(Linear(sizes[-2], sizes[-1]))
        self.n_layers_ = len(sizes)
        for layer in self._layers_of(model):
            limit = np.sqrt((2 if self.activation == "logistic" else 6) / (layer.in_features + layer.out_features))
            for p in layer.parameters():
                p.data = random_state.uniform(-limit, limit, p.shape)
        return model

    @staticmethod
    def _layers_of(model: Model) -> list[Linear]:
        return [function for function in model.functions if isinstance(function, Linear)]

    @property
    def coefs_(self) -> list[np.ndarray]:
        """The weights of the layers, (inputs, outputs); those of the model, not copies. What is set is copied."""
        check_is_fitted(self)
        return [layer.weight.data for layer in self._layers_of(self.model_)]

    @coefs_.setter
    def coefs_(self, values: Iterable[Any]) -> None:
        for layer, value in zip(self._layers_of(self.model_), values, strict=True):
            layer.weight.data = value

    @property
    def intercepts_(self) -> list[np.ndarray]:
        """The biases of the layers, (outputs,); those of the model, not copies. What is set is copied."""
        check_is_fitted(self)
        return [layer.bias.data for layer in self._layers_of(self.model_) if layer.bias is not None]

    @intercepts_.setter
    def intercepts_(self, values: Iterable[Any]) -> None:
        for layer, value in zip(self._layers_of(self.model_), values, strict=True):
            assert layer.bias is not None
            layer.bias.data = value


@dataclass(eq=False, repr=False)
class NetClassifier(Net, Classification):
    """A classifier of any Model: scikit-learn's ways with targets, training and its parameters, around a model of one's
    own.

        NetClassifier(lambda features, outputs: cl.Model([cl.Linear(features, 64), cl.GELU(), cl.Linear(64, outputs)]))

    Parameters
    ----------
    build : callable (n_features, n_outputs) -> Model
        Makes a new model of scores: `n_outputs` is the number of classes, or 1 for two classes; of labels, for an
        indicator matrix. Rows are vectors, of which `cl.Reshape` as the first Function makes images. The model becomes
        one of X's dtype; what it has not been trained or loaded with is drawn from `random_state`. A function that can
        be imported is pickled with the estimator, a lambda can't be.

    All others are those of `MLPClassifier`, and mean the same. `alpha` is of all parameters of two axes or more. So are
    the attributes, but for `coefs_`, `intercepts_` and `n_layers_`.
    """


@dataclass(eq=False, repr=False)
class NetRegressor(Net, Regression):
    """A regressor of any Model: scikit-learn's ways with training and its parameters, around a model of one's own.

        NetRegressor(lambda features, outputs: cl.MLP(features, [64, outputs], cl.Tanh))

    Parameters
    ----------
    build : callable (n_features, n_outputs) -> Model
        As for `NetClassifier`; `n_outputs` is the number of targets a row.

    All others are those of `MLPRegressor`, and mean the same. `alpha` is of all parameters of two axes or more. So are
    the attributes, but for `coefs_`, `intercepts_` and `n_layers_`.
    """


@dataclass(eq=False, repr=False)
class MLPClassifier(Perceptron, Classification):
    """A multilayer perceptron that classifies: scikit-learn's, by its parameters, attributes and what it minimizes.

    It minimizes, for the n rows of each batch, (Σ l + alpha/2 Σ W²) / n, where l is the logarithmic loss of a row,
    summed over its labels where it has several, and W the weights, not the biases. With the same `random_state` the
    first weights, and the rows held out by `early_stopping`, are scikit-learn's; the orders of the rows are not.

    Parameters
    ----------
    hidden_layer_sizes, activation, solver, alpha, batch_size, learning_rate, learning_rate_init, power_t, max_iter, \
    shuffle, random_state, tol, verbose, warm_start, momentum, nesterovs_momentum, early_stopping, \
    validation_fraction, beta_1, beta_2, epsilon, n_iter_no_change, max_fun
        As for `sklearn.neural_network.MLPClassifier`.
    dropout : float in [0, 1)
        The share of each hidden layer's outputs that is dropped in training. Not with "lbfgs", which needs the same
        loss each time.
    batch_norm : bool
        Whether each hidden layer's products are normalized before its activation (`cl.BatchNorm`).
    class_weight : {class: weight}, "balanced" or None
        What rows weigh by their class, as scikit-learn's classifiers have it; times `sample_weight`. A list of such,
        one for each label, with an indicator matrix. It has no part in validation.
    callbacks : list of callables (epoch, history)
        As for `cl.Model.fit`; see `cl.callbacks`. `history` has `val_loss` where there are validation rows.
        scikit-learn's own (since 1.9) are given by `set_callbacks`.

    Attributes
    ----------
    model_ : Model
        What was trained; its outputs are scores, of which `predict_proba` gives the probabilities.
    history_ : History
        Of the last call of `fit` or `partial_fit`.
    coefs_, intercepts_
        As scikit-learn's; the model's own arrays.
    loss_, best_loss_, loss_curve_
        As scikit-learn's, the penalty included.
    classes_, validation_scores_, best_validation_score_, t_, n_iter_, n_layers_, n_outputs_, out_activation_, \
    n_features_in_, feature_names_in_
        As scikit-learn's.

    What differs from scikit-learn's, besides the time it takes:

    - X of float32 is computed in float32, throughout; all else in float64.
    - `warm_start` keeps what the optimizer remembers, Adam's moments and the velocity; rates begin anew. `partial_fit`
      goes on with the orders of rows, where scikit-learn's draws the same ones at each call.
    - Adam's ε is added to √v̂, after the correction for the first steps (Kingma and Ba's algorithm 1); the velocity is
      without the learning rate, so that another rate takes effect at once.
    - In an epoch's loss a batch weighs as its rows weigh. With several outputs it is the sum over them that is
      reported, as it is minimized.
    - A training whose loss or gradient is not finite ends there: with a ValueError naming the batch; with
      `early_stopping` with a warning, and the best model before that.
    - `predict_log_proba` is computed from scores, and finite where a probability is 0 or 1.

    A row's prediction does not depend on the rows beside it, and no result on the number of threads. D. Kingma and
    J. Ba, ICLR 2015; X. Glorot and Y. Bengio, AISTATS 2010; D. C. Liu and J. Nocedal, 1989 (`cl.minimize`).
    """


@dataclass(eq=False, repr=False)
class MLPRegressor(Perceptron, Regression):
    """A multilayer perceptron that predicts numbers: scikit-learn's, by its parameters, attributes and what it
    minimizes.

    It minimizes, for the n rows of each batch, (Σ l + alpha/2 Σ W²) / n, where l is half the squared error of a row,
    summed over its targets, or with `loss="poisson"` half the deviance of counts whose rate is the exponential of the
    output; and W the weights, not the biases.

    Parameters
    ----------
    loss : "squared_error" or "poisson"
        By keyword only.

    All others are those of `MLPClassifier`, but for `class_weight`, and mean the same, as do the attributes, but for
    `classes_`; and all that is said there of differences. Scores on validation rows are R².
    """
