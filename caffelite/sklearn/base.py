"""`Estimator`: the parameters of training and the training itself, which all estimators share.

It trains the model that `_build` makes, on the targets from `_encode_targets`. It keeps the same record of training as
scikit-learn's perceptrons.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from caffelite._support.moved_modules import rename_attributes
from caffelite.core.modes import real_batches_only
from caffelite.core.tensor import Tensor
from caffelite.functions.losses.base import Loss
from caffelite.model.lbfgs import minimize
from caffelite.model.model import Model
from caffelite.model.shapes import UnknownLengthError
from caffelite.optimizers import SGD, Adam, Optimizer, TrainingDiverged
from caffelite.sklearn.callback_tasks import CallbackTasks, FitMonitor, ValidationSet, change_rate
from caffelite.sklearn.frame_rows import (
    FrameRows,
    check_columns,
    check_frame_targets,
    input_features,
    is_frame,
    model_input,
    squeeze_column,
)
from caffelite.sklearn.penalized_loss import PenalizedLoss
from caffelite.training.history import History

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # before 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Old versions of scikit-learn have no callbacks."""

    def with_callbacks(method: Callable) -> Callable:
        """Return the method."""
        return method


TRAINING_PARAMETERS = (  # the parameters of objective and optimizer
    "solver",
    "alpha",
    "learning_rate_init",
    "momentum",
    "nesterovs_momentum",
    "beta_1",
    "beta_2",
    "epsilon",
    "optimizer",
)
MAX_SEED = 2**31 - 1
TINY = float(np.finfo(np.float64).tiny)


def compute_dtype(X: Any) -> np.dtype:
    """Return the dtype to compute in, for these rows."""
    return np.dtype(np.float32 if X.dtype == np.float32 else np.float64)


def warn_caller(text: str, category: Any = ConvergenceWarning, depth: int = 4) -> None:
    """Warn at the line that called `fit`, which is `depth` calls above."""
    warnings.warn(text, category, stacklevel=depth + hasattr(Estimator, "_init_callback_context"))


def is_stochastic(estimator: Any) -> bool:
    if estimator.solver == "lbfgs":
        raise AttributeError('partial_fit works with the solvers "adam" and "sgd"; "lbfgs" takes all rows at once')
    return True


@rename_attributes(_has_several="_is_multilabel", _made_with="_fitted_description")
@dataclass(eq=False, repr=False)
class Estimator(CallbackSupportMixin, BaseEstimator):
    """An estimator without its targets and its model: the parameters of training, and the training."""

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
        **MLPRegressor._parameter_constraints,
        "loss": [StrOptions({"squared_error", "poisson"})],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "batch_norm": ["boolean"],
        "class_weight": [dict, list, StrOptions({"balanced"}), None],
        "callbacks": [list, tuple, None],
        "build": [callable],
    }

    # ---- what subclasses define -------------------------------------------------------------------------------------

    _is_regression: ClassVar[bool]  # whether targets are, or else labels
    _model_parameters: ClassVar[tuple[str, ...]]  # the parameters that say what the model is

    def _build(self, n_features: Any, n_outputs: int, dtype: np.dtype, random_state: np.random.RandomState) -> Model:
        """Return a new model for rows of this many features."""
        raise NotImplementedError

    def _learn_targets(self, y: Any, classes: Any) -> None:
        """Set `n_outputs_`, `out_activation_` and everything else known about the targets."""
        raise NotImplementedError

    def _check_same_targets(self, y: Any) -> None:
        """Raise ValueError unless a warm start may continue with these targets."""

    def _encode_targets(self, y: Any) -> np.ndarray:
        """Return targets as the loss takes them, in the model's dtype; ValueError for unknown classes."""
        raise NotImplementedError

    def _loss(self) -> tuple[Loss, float]:
        """Return the loss, a mean over rows, and the factor that makes it the sum over a row's outputs, to minimize."""
        raise NotImplementedError

    def _link(self, scores: np.ndarray) -> np.ndarray:
        """Turn the model's scores into probabilities or predictions."""
        return self._loss()[0].link(scores)

    def _score(self, scores: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> float:
        """Return the score of the model's outputs, NaN where they are not finite."""
        raise NotImplementedError

    def _row_weights(self, weights: np.ndarray | None, y: Any, is_partial: bool) -> np.ndarray | None:
        """Compute the weights of rows in the loss from the sample weights."""
        return weights

    def _data_options(self, X: Any) -> dict[str, Any]:
        """Options of `validate_data` for these rows."""
        return {}

    @property
    def _takes_frames(self) -> bool:
        """Whether the model takes frames, and not arrays of numbers."""
        return False

    def _validation_score(self, validation: ValidationSet) -> float:
        """Return the score of the model as it is now, on validation rows."""
        scoring = getattr(self, "scoring", None)
        if scoring is None:
            outputs = self.model_.predict(validation.data()[0])
            return self._score(outputs, validation.targets, validation.weights)
        options = {} if validation.weights is None else {"sample_weight": validation.weights}
        return float(check_scoring(self, scoring)(self, validation.data()[0], validation.labels, **options))

    # ---- what fitting is made of ------------------------------------------------------------------------------------

    @property
    def _stops_early(self) -> bool:
        return self.early_stopping and self.solver != "lbfgs"

    def _check_data(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        """Return rows and their targets as arrays; targets of one column become a vector."""
        if self._takes_frames:
            rows = self._check_frame(X, y, reset)
            return rows, check_frame_targets(rows, y, self._is_regression)
        options = {"accept_sparse": "csr", "dtype": "numeric", "multi_output": True, "y_numeric": self._is_regression}
        X, y = validate_data(self, X, y, reset=reset, **options, **self._data_options(X))
        return X, squeeze_column(y)

    def _check_frame(self, X: Any, y: Any, reset: bool) -> FrameRows:
        """Return the rows of a frame. TypeError for anything else, ValueError for other columns than in `fit`."""
        if not is_frame(X):
            got = type(X).__name__
            raise TypeError(f"build takes a frame: expected X to be one of pandas, polars or Arrow, got {got}")
        return FrameRows(check_columns(self, X, y, reset))

    def _make_validation(self, eval_set: Any) -> ValidationSet:
        if not isinstance(eval_set, tuple | list) or len(eval_set) not in (2, 3):
            what = f"a {type(eval_set).__name__}"
            what += f" of {len(eval_set)}" if isinstance(eval_set, tuple | list) else ""
            raise ValueError(f"eval_set: expected (X, y) or (X, y, sample_weight), got {what}")
        X, y, *weights = eval_set
        X, y = self._check_data(X, y, reset=False)
        sample_weights = [_check_sample_weight(w, X, dtype=np.float64) for w in weights if w is not None]
        return ValidationSet(X, self._encode_targets(y), y, *sample_weights)

    def _split(self, X: Any, y: Any, weights: np.ndarray | None) -> tuple[Any, Any, np.ndarray | None, ValidationSet]:
        """Split into rows to train on and rows to score, the same as scikit-learn's perceptrons hold out."""
        train, held_out = train_test_split(
            np.arange(y.shape[0]),
            test_size=self.validation_fraction,
            stratify=None if self._is_regression or self.n_outputs_ > 1 else y,
            random_state=self._random_state,
        )
        if len(held_out) < 2:
            share = f"validation_fraction={self.validation_fraction} of {y.shape[0]} rows"
            raise ValueError(f"The validation set is too small: {share}")
        train_weights, held_out_weights = (None if weights is None else weights[rows] for rows in (train, held_out))
        labels = y[held_out]
        validation = ValidationSet(X[held_out], self._encode_targets(labels), labels, held_out_weights)
        return X[train], y[train], train_weights, validation

    def _initialize(self, X: Any) -> None:
        """Make the model, and begin the record of its training."""
        self.row_shape_ = X.shape[1:]
        model = self._build(input_features(X), self.n_outputs_, compute_dtype(X), self._random_state)
        if not isinstance(model, Model):
            raise TypeError(f"build: expected a function (n_features, n_outputs) -> Model, but it returned {model!r}")
        with suppress(UnknownLengthError), real_batches_only():  # then the objective checks the first batch
            shape = X.output_shape(model) if isinstance(X, FrameRows) else model.output_shape(X.shape)
            if shape != (X.shape[0], self.n_outputs_):
                raise ValueError(
                    f"build: expected a model of {self.n_outputs_} outputs a row, (n, {self.n_outputs_}), got one "
                    f"whose outputs have shape {shape} for X of shape {X.shape}: {model!r}"
                )
        self.model_, self._fitted_description = model, self._model_description()
        self.history_: Any = None  # of the last training
        self._optimizer: Optimizer | None = None
        self.n_iter_, self.t_, self._no_improvement_count = 0, 0, 0
        self.loss_curve_: list[float] = []
        self.best_loss_: float | None = None
        self.validation_scores_: list[float] | None = None
        self.best_validation_score_: float | None = None

    def _model_description(self) -> dict[str, Any]:
        """Return the parameters that define the model."""
        return {name: getattr(self, name) for name in self._model_parameters}

    def _check_same_model(self) -> None:
        """Raise ValueError if training continues with a model that differs from the parameters."""
        for name, now in self._model_description().items():
            if not np.array_equal(np.atleast_1d(then := self._fitted_description[name]), np.atleast_1d(now)):
                raise ValueError(f"training continues only with the same model: {name} was {then!r}, now it is {now!r}")

    def _prepare(self, is_partial: bool) -> None:
        """Make the objective and the optimizer of the current parameters, with the last optimizer's memory."""
        settings = [getattr(self, name, None) for name in TRAINING_PARAMETERS]
        previous = self._optimizer
        if is_partial and previous is not None and settings == self._settings:
            return
        self._settings: list[Any] = settings
        trainable = [p for p in self.model_.parameters() if p.requires_grad]
        weights = [p for p in trainable if p.data.ndim > 1]
        self._objective = PenalizedLoss(*self._loss(), weights, self.alpha, self.n_outputs_)
        self._optimizer = new = self._new_optimizer(trainable)
        if new is not None and type(previous) is type(new):
            vectors, previous_vectors = new.vectors(), previous.vectors()
            if {k: x.shape for k, x in vectors.items()} == {k: x.shape for k, x in previous_vectors.items()}:
                new.load_state_dict(new.state_dict() | previous_vectors)
                if isinstance(new, SGD):
                    new.lr = previous.lr
                    change_rate(new, self.learning_rate_init)

    def _new_optimizer(self, parameters: list[Tensor]) -> Optimizer | None:
        """Make the optimizer of the solver; None for L-BFGS."""
        if self.solver == "sgd":
            nesterov = self.nesterovs_momentum and self.momentum > 0
            return SGD(parameters, self.learning_rate_init, self.momentum, nesterov=nesterov)
        if self.solver == "adam":
            return Adam(parameters, self.learning_rate_init, (self.beta_1, self.beta_2), self.epsilon)
        return None

    # ---- fitting ----------------------------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Any:
        """Train on rows and their targets; return the estimator.

        Parameters
        ----------
        X : array-like, data frame or sparse matrix (n, features)
            If X is float32, `fit` computes in float32, and otherwise in float64.
        y : array-like (n,) or (n, outputs)
        sample_weight : array-like (n,), optional
            The weight of each row in the loss, not negative.
        eval_set : (X, y) or (X, y, sample_weight), optional
            Rows to score after each epoch (`validation_scores_`), and not to train on. `history_` then has their loss,
            too. `early_stopping` uses them instead of a share of X.

        Raise ValueError for parameters and data that cannot be used, and if training diverges.
        """
        self._validate_params()
        callbacks = list(self.callbacks or ())
        if not hasattr(self, "_init_callback_context"):
            return self._train(X, y, sample_weight, eval_set, callbacks)
        arguments = {"estimator": self, "X": X, "y": y, "metadata": {"sample_weight": sample_weight}}
        context = self._init_callback_context(max_subtasks=self.max_iter)
        context.call_on_fit_task_begin(**arguments)
        if getattr(self, "_skl_callbacks", None):
            callbacks.append(CallbackTasks(self, context, arguments))
        self._train(X, y, sample_weight, eval_set, callbacks)
        context.call_on_fit_task_end(**arguments, reconstruction_attributes=dict)
        return self

    @available_if(is_stochastic)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train for one more epoch, and return the estimator. The optimizer continues from the last call.

        X, y and sample_weight are as in `fit`. Raise ValueError with `early_stopping`, which is only for `fit`.
        """
        return self._train_part(X, y, sample_weight)

    def _train_part(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Any:
        self._validate_params()
        if self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True: it is one epoch")
        return self._train(X, y, sample_weight, None, list(self.callbacks or ()), is_partial=True, classes=classes)

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        eval_set: Any,
        callbacks: list[Any],
        is_partial: bool = False,
        classes: Any = None,
    ) -> Any:
        """Train a new model, or continue with the current one: on all rows, or, in parts, for one epoch."""
        is_new = not hasattr(self, "model_") or not (self.warm_start or is_partial)
        X, y = self._check_data(X, y, reset=is_new)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
        if weights is not None and not weights.any():
            raise ValueError(f"all {len(weights)} sample weights are zero")
        if is_new or not is_partial:
            self._random_state = check_random_state(self.random_state)
        if is_new:
            self._learn_targets(y, classes)
            self._initialize(X)
        else:
            self._check_same_model()
            if not is_partial:
                self._check_same_targets(y)
        validation = None if eval_set is None else self._make_validation(eval_set)
        if self._stops_early and validation is None:
            X, y, weights, validation = self._split(X, y, weights)
        seed = self._random_state.randint(MAX_SEED)
        if is_new:  # draw all other parameters from the same seed
            Model([self.model_], seed=seed, dtype=compute_dtype(X))
        self._prepare(is_partial)
        progress = FitMonitor(self, X.shape[0], validation)
        data: dict[str, Any] = {"x": model_input(X), "y": self._encode_targets(y)}
        data |= {"sample_weight": self._row_weights(weights, y, is_partial), "loss": self._objective}
        data |= {"callbacks": [progress, *callbacks], "verbose": 0}
        try:
            if self.solver == "lbfgs":
                unfinished = self._minimize(data)
            else:
                self._descend(data, X.shape[0], validation, seed, 1 if is_partial else self.max_iter)
                has_ended = progress.has_ended or is_partial or self.n_iter_ < self.max_iter
                unfinished = "" if has_ended else "it improved until the end"
            if unfinished:
                warn_caller(f"not converged after {self.n_iter_} iterations: {unfinished}")
        except (KeyboardInterrupt, TrainingDiverged) as error:
            self.history_ = error.history  # type: ignore[union-attr]
            self._handle_early_end(error, progress)
        return self

    def _descend(
        self, options: dict[str, Any], rows: int, validation: ValidationSet | None, seed: int, epochs: int
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
            validation_data=validation and validation.data(),
        )

    def _minimize(self, options: dict[str, Any]) -> str:
        """Train by L-BFGS, on all rows at once. Return why it did not converge, or an empty string."""
        tolerance = max(self.tol, TINY)  # which is above 0
        self.history_ = minimize(
            self.model_, **options, max_iterations=self.max_iter, max_evaluations=self.max_fun, tolerance=tolerance
        )
        self.loss_ = self.history_.objective
        return "" if self.history_.converged else self.history_.message

    def _handle_early_end(self, error: KeyboardInterrupt | TrainingDiverged, progress: FitMonitor) -> None:
        """Warn that Ctrl-C or a divergence has ended training. Raise ValueError if no good model is left."""
        if isinstance(error, KeyboardInterrupt):
            return warn_caller(f"training was interrupted after {self.n_iter_} iterations", UserWarning, depth=5)
        if not self._stops_early:
            raise ValueError(f"{error}; scale the features, or lower learning_rate_init") from error
        progress.record_divergence()
        warn_caller(f"training diverged in {error}; the model is the best one before that", depth=5)

    # ---- use --------------------------------------------------------------------------------------------------------

    def _predict_scores(self, X: Any) -> np.ndarray:
        """Return the model's outputs (n, outputs)."""
        check_is_fitted(self)
        if self._takes_frames:
            return self.model_.predict(self._check_frame(X, "no_validation", reset=False).frame)
        options = {"accept_sparse": "csr", "dtype": "numeric", **self._data_options(X)}
        X = validate_data(self, X, reset=False, **options)
        if X.shape[1:] != self.row_shape_:
            raise ValueError(f"X has rows of shape {X.shape[1:]}, but the estimator was fitted on {self.row_shape_}")
        return self.model_.predict(X)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
