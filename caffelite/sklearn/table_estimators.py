"""Estimators of tables as they are: words, dates and missing values included, without tuning.

Both train a few nets on different rows and average them. `TableEstimator` has the nets and their training. The two
estimators have the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial, wraps
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from caffelite import _kernels as kernels
from caffelite._support.moved_modules import rename_attributes
from caffelite.attribution.explain import explain_game
from caffelite.attribution.explanation import Explanation
from caffelite.attribution.shapley import Game
from caffelite.core.arrays import check_positive_integer
from caffelite.core.function import Function
from caffelite.data import frames
from caffelite.data.generator import unpack_single
from caffelite.functions import MSELoss, SoftmaxLoss
from caffelite.model.model import Model
from caffelite.optimizers import TrainingDiverged
from caffelite.sklearn.frame_rows import check_columns, check_known_targets, check_target_numbers, is_frame
from caffelite.tables import conformal, evaluation
from caffelite.tables import recipe as recipes
from caffelite.tables.budget import Budget
from caffelite.tables.columns import mean_and_deviation
from caffelite.tables.schema import Target
from caffelite.tables.table_model import TableModel

Method = TypeVar("Method", bound=Callable[..., Any])
COLUMN_NAME = "x{}"  # the name of a column of an array
MAX_BACKGROUND = 500  # rows of the training that an estimator keeps


class Number(Interval):
    """An Interval without bools."""

    def is_satisfied_by(self, val: Any) -> bool:
        return not isinstance(val, bool) and super().is_satisfied_by(val)


def limit_threads(method: Method) -> Method:
    """Make a method of an estimator use at most `n_jobs` of the threads that its own thread may use."""

    @wraps(method)
    def call(self: TableEstimator, *args: Any, **options: Any) -> Any:
        if self.n_jobs is None:
            return method(self, *args, **options)
        available = kernels.available_threads()
        threads = self.n_jobs if self.n_jobs > 0 else max(1, available + 1 + self.n_jobs)
        with kernels.thread_limit(min(threads, available)):
            return method(self, *args, **options)

    return cast(Method, call)


@rename_attributes(_side_by_side="_nets")
@dataclass(eq=False, repr=False)
class TableEstimator(BaseEstimator):
    """The base of both estimators: the nets, their training, and their outputs."""

    _: KW_ONLY
    n_estimators: int | None = None
    hidden_layer_sizes: Any = (64, 64)
    max_bins: int = 32
    learning_rate: float = 0.005
    weight_decay: float = 0.5
    categorical_features: Any = None
    min_frequency: int = 2
    time: float | None = None
    n_jobs: int | None = None
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left"), None],
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "max_bins": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "categorical_features": ["array-like", None],
        "min_frequency": [Interval(Integral, 1, None, closed="left")],
        "time": [Number(Real, 0, None, closed="neither"), None],
        "n_jobs": [Number(Integral, 1, None, closed="left"), Number(Integral, None, -1, closed="right"), None],
        "random_state": ["random_state"],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    _link = staticmethod(lambda outputs: outputs)  # the model's outputs are probabilities, or predictions
    _center, _scale = 0.0, 1.0  # of the targets

    # ---- fitting ----------------------------------------------------------------------------------------------------

    @limit_threads
    def _train_nets(
        self, frame: Any, targets: np.ndarray, weights: np.ndarray | None, outputs: int, loss: Function, budget: Any
    ) -> list[Model]:
        """Train each net on all folds but one, and keep its best epoch on that fold. Return the nets."""
        if weights is not None and not weights.any():
            raise ValueError(f"all {len(targets)} sample weights are zero")
        used = np.arange(len(targets)) if weights is None else np.flatnonzero(weights.astype(np.float32))
        if len(used) < 2:
            raise ValueError(f"{type(self).__name__} needs 2 rows or more, for training and validation: n_samples = 1")
        recipe, arrays = self._recipe(), self.columns_.arrays(frame, "X")
        random = check_random_state(self.random_state)
        options = {"outputs": outputs, "loss": loss, "random": random, "weights": weights, "budget": budget}
        try:
            trained = recipes.train(recipe, self.columns_, arrays, targets, **options)
        except TrainingDiverged as error:
            raise ValueError(f"{error}; lower learning_rate, or sample weights") from error
        self.histories_ = [t.history for t in trained]
        self.background_ = recipes.sample_background(arrays, used, MAX_BACKGROUND)
        self._calibration = conformal.calibrate(trained, arrays, targets, self._center, self._scale)
        return [t.net for t in trained]

    def _recipe(self) -> recipes.Recipe:
        return recipes.Recipe(
            nets=self.n_estimators,
            hidden=self._hidden_sizes(),
            max_bins=self.max_bins,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            min_frequency=self.min_frequency,
        )

    def _hidden_sizes(self) -> list[int]:
        sizes = np.atleast_1d(np.asarray(self.hidden_layer_sizes, dtype=object)).tolist()
        if not sizes or any(not isinstance(size, Integral) or size < 1 for size in sizes):
            raise ValueError(f"hidden_layer_sizes: expected sizes of at least 1, got {self.hidden_layer_sizes!r}")
        return [int(size) for size in sizes]

    # ---- data -------------------------------------------------------------------------------------------------------

    def _fit_columns(self, X: Any, y: Any) -> tuple[Any, np.ndarray, Budget | None]:
        """Learn the columns of X. Return X as a frame, y as one column, and the budget, which begins now."""
        self._validate_params()
        budget = None if self.time is None else Budget(self.time)
        self.__dict__.pop("model_", None)  # if this fit fails, there is none
        X = frames.open_frame(X, "X")
        recipe, frame = self._recipe(), self._to_frame(X, y, reset=True)
        name = getattr(y, "name", None) if frames.is_series(y) else None
        self._target_name = None if name in (None, "") else str(name)
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        check_known_targets(y)
        self.columns_ = recipe.make_columns(frame, len(y), self._category_names(frame))
        return frame, y, budget

    def _to_frame(self, X: Any, y: Any, reset: bool) -> Any:
        """Return X as a frame. ValueError for other columns than in `fit`, and if y is None."""
        column_names = None if reset else [column.name for column in self.columns_.columns]
        if is_frame(X):
            X = check_columns(self, X, y, reset)
            if column_names is None or column_names[0] != COLUMN_NAME.format(0) or hasattr(self, "feature_names_in_"):
                return X
            columns = [*frames.get_columns(X, "X").values()]  # of an estimator that was fitted on an array
        else:
            options = {"dtype": None, "ensure_all_finite": False}
            X = validate_data(self, X, reset=reset, **options)
            validate_data(self, X, y, reset=reset, skip_check_array=True)
            columns = [to_numbers(column) for column in X.T]
            column_names = column_names or [COLUMN_NAME.format(i) for i in range(X.shape[1])]
        return dict(zip(column_names, columns, strict=True))

    def _category_names(self, frame: Any) -> list[Any]:
        """Return the names of the columns of numbers that are categories."""
        if self.categorical_features is None:
            return []
        chosen, names = np.asarray(self.categorical_features), [*frames.get_columns(frame, "X")]
        if chosen.dtype == bool:
            if chosen.shape != (len(names),):
                raise ValueError(f"categorical_features: expected a mask of {len(names)} columns, got {chosen.shape}")
            chosen = np.flatnonzero(chosen)
        if chosen.dtype.kind in "iu" and not set(chosen.tolist()) <= set(names):
            if not ((chosen >= 0) & (chosen < len(names))).all():
                raise ValueError(f"categorical_features: expected columns 0 … {len(names) - 1}, got {chosen.tolist()}")
            return [names[i] for i in chosen]
        return chosen.tolist()

    def _read(self, X: Any) -> tuple[np.ndarray, ...]:
        """Return X as the arrays that the nets take."""
        check_is_fitted(self)
        return self.columns_.arrays(self._to_frame(X, "no_validation", reset=False), "X")

    @limit_threads
    def _predict_inputs(self, inputs: Any) -> np.ndarray:
        """Return the mean outputs of the nets, float64 (n, outputs), in the unit of the targets."""
        outputs = self._nets.predict(inputs)
        means = outputs.reshape(len(outputs), len(self.histories_), -1).astype(np.float64).mean(axis=1)
        return self._rescale(means)

    def _predict_regions(self, X: Any, coverage: float) -> np.ndarray:
        """Return the intervals or sets of a coverage for the rows X."""
        check_is_fitted(self)
        calibration = getattr(self, "_calibration", None)
        if calibration is None:
            raise ValueError(
                f"this {type(self).__name__} does not know its errors on rows that were held out: fit it again"
            )
        regions, arrays = calibration.make_regions(coverage), self._read(X)
        return regions.predict(self._predict_inputs(unpack_single(arrays)), arrays)

    def _rescale(self, outputs: np.ndarray) -> np.ndarray:
        """Return outputs of nets (n, outputs) in the unit of the targets."""
        return self._center + self._scale * outputs

    def _join_nets(self, functions: list[Function], classes: list[str] | None = None) -> None:
        """Make one model: the nets side by side, and then the average of their outputs."""
        self.model_ = TableModel(functions, self._target_name or "y", classes)
        self._nets = self.model_[:1]  # once, since it keeps its recordings

    # ---- explanations -----------------------------------------------------------------------------------------------

    @limit_threads
    def explain(self, X: Any, rows: int | None = None, seed: int | None = None) -> Explanation:
        """Return how much each column contributes to each output for the rows X, as Shapley values.

        A row's contributions add up to its output minus the mean output for `rows` training rows, 100 by default. The
        estimator keeps up to 500 of these in `background_`. `seed` is for the random orders of the columns; by default,
        it is `random_state` if this is an integer, and otherwise 0. `cl.explain` describes the method.

        Raise ValueError if the estimator has no such rows, or too few.
        """
        check_is_fitted(self)
        background = getattr(self, "background_", None)
        if background is None:
            raise ValueError(
                f"this {type(self).__name__} has no rows of its training to compare with: fit it again, or call "
                "cl.explain(estimator.model_, X, background)"
            )
        available = len(background[0])
        count = min(recipes.BACKGROUND, available) if rows is None else check_positive_integer("rows", rows)
        if count > available:
            raise ValueError(f"rows: the estimator has {available} rows of its training, got rows={count}")
        frame = self._to_frame(X, "no_validation", reset=False)
        arrays = self.columns_.arrays(frame, "X")

        def predict(net: Model, inputs: Any) -> np.ndarray:
            return self._rescale(net.predict(inputs if len(inputs) > 1 else inputs[0]).astype(np.float64))

        nets = self.model_[0].functions
        few = tuple([x[:count] for x in background])
        game = Game([partial(predict, net) for net in nets], arrays, few, self.columns_.feature_columns())
        names = [column.name for column in self.columns_.columns]
        classes = self.classes_.tolist() if hasattr(self, "classes_") else None
        seed = self._default_seed() if seed is None else seed
        target = getattr(self, "_target_name", None)
        return explain_game(game, seed, names, frames.select(frame, names, "X"), classes, target)

    def importances(self, X: Any, y: Any, repeats: int = 5) -> dict[Any, evaluation.Difference]:
        """Return how much each column matters for the rows X: {column: (mean, error)}, the largest first.

        This is the rise of the log loss or, for numbers, the fall of R² when the column is shuffled among the rows. The
        mean is over several shuffles, and the error is the standard error over the rows. Use rows that were not trained
        on. If there are more than 10,000 rows, or 500,000 predictions, a random part is used. `caffelite train` prints
        the same.

        Raise ValueError for a class in y that was not in the training data.
        """
        check_is_fitted(self)
        repeats, X = check_positive_integer("repeats", repeats), frames.open_frame(X, "X")
        frame = self._to_frame(X, "no_validation", reset=False)
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        rng = np.random.default_rng(self._default_seed())
        rows = evaluation.sample_rows(np.arange(len(y)), self.columns_, repeats, rng)
        inputs = tuple([x[rows] for x in self.columns_.arrays(frame, "X")])

        return evaluation.permute_columns(
            self._predict_inputs, self.columns_, inputs, self._target(y), rows, repeats, rng
        )

    def _target(self, y: np.ndarray) -> Target:
        """Return y as the target of `caffelite train`."""
        return Target("y", check_target_numbers(y), None)

    def _default_seed(self) -> int:
        return int(self.random_state) if isinstance(self.random_state, Integral) else 0

    def __getattr__(self, name: str) -> Any:
        other = {"predict_interval": "predict_set", "predict_set": "predict_interval"}.get(name)
        hint = f"; it has {other}(X, coverage=0.9)" if other else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}", name=name, obj=self)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags


@dataclass(eq=False, repr=False)
class TableClassifier(ClassifierMixin, TableEstimator):
    """A classifier for tables of numbers, words and dates that needs no tuning.

        model = TableClassifier(random_state=0).fit(frame, y)
        model.predict_proba(frame)

    X is a frame of pandas, polars or Arrow, or an array. Its columns may be numbers, bools, dates, words and
    categories. All may have missing values. `cl.Columns` describes how they are converted.

    It trains a few nets, and averages their probabilities. A net begins with `cl.Splines`, a piecewise linear function
    of each column. A small multilayer perceptron follows. Each net trains on 7/8 of the rows, and keeps its parameters
    from the epoch that was best on the other rows. These have the same share of each class. Finer nets, with more bins
    and less weight decay, compete with half of the nets on the same rows. The held-out rows decide which stay: the
    original nets, the finer ones, or both. No result depends on the number of threads. With `time`, it depends on the
    speed of the machine.

    Parameters
    ----------
    n_estimators : int, optional
        The number of nets. By default, it is 8, or 4 if there are more than 10,000 rows.
    hidden_layer_sizes : int or list of int
        The sizes of the hidden layers. The first is the size of Splines.
    max_bins : int
        The largest number of bins for a column of numbers, not counting its tails. There are fewer if a bin would get
        fewer than 100 rows, but at least 8. Finer nets have up to four times as many.
    learning_rate : float
        The highest learning rate of AdamW. It rises for 2 % of the steps, and then falls to 0 like a cosine. Splines
        have twice this rate, and the scales of columns ten times this rate. Finer nets have twice these rates.
    weight_decay : float
        The weight decay of AdamW, for all parameters except the scales of columns. Finer nets have a tenth of it.
    categorical_features : list of names or places, or a mask, optional
        The columns of numbers to treat as categories. Columns of words are always categories.
    min_frequency : int
        Categories with fewer rows than this count as unknown.
    time : float, optional
        How many seconds of one thread `fit` may take. If training would take longer, there are fewer nets and epochs.
        `fit` first trains a net for a moment to find out how many; the learning rates then fall to 0 over these epochs.
        `histories_` shows the nets and their epochs, which depend on the speed of the machine. If there is enough time,
        the result is the same as without `time`. There is at least one net with a sixteenth of the epochs. If even that
        takes longer, `fit` warns. Seconds are processor time, so two threads finish in about half of them, and a busy
        machine takes longer.
    n_jobs : int, optional
        How many threads `fit`, `predict` and the other methods use at most. -1 means all that `cl.get_num_threads()`
        allows, -2 one fewer. They never use more than it allows, for example in a joblib worker. None is the same as
        -1.
    random_state : int, RandomState or None
    class_weight : {class: weight}, "balanced" or None
        The weight of each class. It multiplies `sample_weight`.

    Attributes
    ----------
    model_ : Model
        The nets side by side, and the average of their probabilities (n, classes). It takes frames, as `predict` does.
        `save`, `caffelite.onnx.export` and `caffelite.c.export` write it to a file.
    columns_ : Splines
        The first layer, which knows the columns. `columns_.arrays(frame)` returns the arrays that an exported model
        takes.
    background_ : tuple of arrays
        Up to 500 random training rows, as `columns_.arrays` returns them, for `explain`. A pickle has them; a file
        written by `model_.save` does not. After `del estimator.background_`, the estimator still predicts, but can't
        explain.
    histories_ : list of History
        The history of each net. `val_loss` is computed on the rows that it was not trained on.
    classes_, n_features_in_, feature_names_in_
        As scikit-learn's.

    Raise ValueError or TypeError, naming the column, if a column is missing or of another kind than in `fit`.

    The recipe follows D. Holzmüller, L. Grinsztajn and I. Steinwart, "Better by default", NeurIPS 2024, and Y.
    Gorishniy, A. Kotelnikov and A. Babenko, "TabM", ICLR 2025, with those parts that gave better scores on the tables
    of `benchmarks/tables.py` and `benchmarks/real_tables.py`. `caffelite train` uses it too.
    """

    _: KW_ONLY
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TableClassifier:
        """Train on rows X (n, columns) and their classes y (n,); return the estimator.

        `sample_weight` (n,), not negative, is the weight of each row in the loss, and in choosing the best epoch.
        """
        frame, y, budget = self._fit_columns(X, y)
        check_classification_targets(y)
        self.classes_, targets = np.unique(y, return_inverse=True)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, y, dtype=np.float64)
        if self.class_weight is not None:
            class_weights = compute_sample_weight(self.class_weight, y)
            weights = class_weights if weights is None else weights * class_weights
        outputs = len(self.classes_)
        nets = self._train_nets(frame, targets, weights, outputs, SoftmaxLoss(), budget)
        self._join_nets(recipes.average_classifiers(nets, outputs), [*map(str, self.classes_.tolist())])
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes (n, classes), in the order of `classes_`."""
        return self._predict_inputs(unpack_single(self._read(X)))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable classes (n,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return which classes are in the set of each row, bool (n, classes), in the order of `classes_`.

        For at least the share `coverage` of new rows from the same source, the set contains the true class. This holds
        to within 1/√n for n rows that the nets held out, and on average over all rows: for a single class, the share
        may be lower. A set always has the most probable class, so it is never empty. Row weights do not matter.

        Raise ValueError if there are too few rows for the coverage (0.9 needs 9), and if it is not between 0 and 1.

        M. Sadinle, J. Lei and L. Wasserman, "Least ambiguous set-valued classifiers with bounded error levels", JASA
        114, 2019.
        """
        return self._predict_regions(X, coverage)

    def _target(self, y: np.ndarray) -> Target:
        if unknown := [label for label in np.unique(y).tolist() if label not in self.classes_]:
            raise ValueError(f"y has the class {unknown[0]!r}, which was not in the training: {self.classes_.tolist()}")
        return Target("y", np.searchsorted(self.classes_, y), [str(label) for label in self.classes_])


@dataclass(eq=False, repr=False)
class TableRegressor(RegressorMixin, TableEstimator):
    """A regressor for tables of numbers, words and dates that needs no tuning.

        model = TableRegressor(random_state=0).fit(frame, y)
        model.predict(frame)

    It minimizes the squared error. `model_` returns the average of the nets' predictions (n, 1), in float32. Everything
    else is as in `TableClassifier`, except `class_weight` and `classes_`.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TableRegressor:
        """Train on rows X (n, columns) and their numbers y (n,); return the estimator.

        `sample_weight` (n,), not negative, is the weight of each row in the loss, and in choosing the best epoch.
        """
        frame, y, budget = self._fit_columns(X, y)
        y = check_target_numbers(y)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, y, dtype=np.float64)
        center, scale = mean_and_deviation(y[:, np.newaxis])
        self._center, self._scale = float(center[0]), float(scale[0])
        targets = ((y - self._center) / self._scale)[:, np.newaxis]
        nets = self._train_nets(frame, targets, weights, 1, MSELoss(), budget)
        self._join_nets(recipes.average_regressors(nets, self._center, self._scale))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions (n,)."""
        return self._predict_inputs(unpack_single(self._read(X)))[:, 0]

    def predict_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return the two ends of an interval for each row (n, 2).

        For at least the share `coverage` of new rows from the same source, the interval contains the true number. This
        holds to within 1/√n for n rows that the nets held out. About as many numbers are below an interval as above. An
        interval is wider if larger errors are expected for its row. Row weights do not matter.

        Raise ValueError if there are too few rows for the coverage (0.9 needs 19), and if it is not between 0 and 1.

        H. Papadopoulos, V. Vovk and A. Gammerman, "Regression conformal prediction with nearest neighbours", JAIR 40,
        2011. R. Barber, E. Candès, A. Ramdas and R. Tibshirani, "Predictive inference with the jackknife+", Annals of
        Statistics 49, 2021.
        """
        return self._predict_regions(X, coverage)


def to_numbers(column: np.ndarray) -> np.ndarray:
    """Return objects as float64 if all are numbers or missing. Words stay words, even "1"."""
    if column.dtype.kind != "O":
        return column
    missing = [frames.is_missing(x) for x in column]
    if all(is_nan or isinstance(x, Real | np.bool_) for x, is_nan in zip(column, missing, strict=True)):
        return np.array([np.nan if is_nan else float(x) for x, is_nan in zip(column, missing, strict=True)], np.float64)
    return column
