"""How well models predict rows that were held out, and whether simpler ones do as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from caffelite.tables.columns import Columns
from caffelite.tables.recipe import row_losses
from caffelite.tables.schema import Frame, Target
from caffelite.tables.table_model import TableModel
from caffelite.tables.training import TableSplit, take_rows
from caffelite.training import metrics

NOISE = 2.0  # standard errors
MIN_DIFFERENCE = 0.001  # difference of the log loss, or of R², that matters
SHUFFLES = 5  # of a column
MAX_SHUFFLED_ROWS = 10_000  # rows
MAX_PREDICTED_ROWS = 500_000  # rows, for all columns and shuffles


class Difference(NamedTuple):
    """By how much one model is better than another on the same rows, and the standard error of this difference."""

    mean: float
    error: float

    @classmethod
    def from_rows(cls, differences: np.ndarray) -> Difference:
        """Return the mean of the rows' differences (n,), and its standard error."""
        error = differences.std(ddof=1) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
        return cls(float(differences.mean()), float(error))

    @property
    def is_significant(self) -> bool:
        """Whether the difference is too large for chance, and large enough to matter."""
        return self.mean > max(NOISE * self.error, MIN_DIFFERENCE)


class TableEvaluation:
    """The outputs and scores of models for the rows that were held out.

    `models` has the outputs for the test rows by the model's name: nets, linear model, boosted trees if there are any,
    and baseline. The baseline has the same output for all rows: the share of each class among the training rows, or the
    mean. `scores` has first the nets' scores for the training rows, and then each model's scores for the test rows.
    """

    NETS, LINEAR, TREES, BASELINE = "nets", "linear", "trees", "baseline"

    def __init__(
        self,
        nets: TableModel,
        linear: TableModel,
        trees: np.ndarray | None,
        frame: Frame,
        target: Target,
        parts: TableSplit,
        seed: int,
    ) -> None:
        self.target, self.parts = target, parts
        test, values = take_rows(frame, parts.test), target.values[parts.training]
        if target.classes is None:
            self.baseline = values.mean()[None, None]
        else:
            self.baseline = np.bincount(values, minlength=len(target.classes))[None] / len(values)
        self.models = {self.NETS: nets.predict(test), self.LINEAR: linear.predict(test)}
        if trees is not None:
            self.models[self.TREES] = trees
        self.models[self.BASELINE] = np.repeat(self.baseline, parts.test.sum(), axis=0)
        training_scores = scores(nets.predict(take_rows(frame, parts.training)), target, parts.training)
        self.scores = [training_scores, *[scores(outputs, target, parts.test) for outputs in self.models.values()]]
        self.importances = importances(nets, frame, target, parts.test, seed)

    @property
    def metric(self) -> str:
        """The name of the score that compares models."""
        return "R²" if self.target.classes is None else "log loss"

    def score(self, model: str) -> float:
        """Return the score of a model for the test rows, by `metric`."""
        return self.scores[1 + list(self.models).index(model)][self.metric]

    def difference(self, better: str, worse: str) -> Difference:
        """By how much one model is better than another for the test rows, in log loss or R²."""
        rows = self.parts.test
        worse_losses, better_losses = (losses(self.models[name], self.target, rows) for name in (worse, better))
        return Difference.from_rows((worse_losses - better_losses) / unit(self.target, rows))


def losses(outputs: np.ndarray, target: Target, rows: np.ndarray) -> np.ndarray:
    """Return the loss of each of these rows: −log of the probability of its class, or the squared error."""
    return row_losses(outputs, target.values[rows])


def unit(target: Target, rows: np.ndarray) -> float:
    """Return the unit of differences of `losses`: for values their variance, to give R²; for classes, 1."""
    return 1.0 if target.classes is not None else float(target.values[rows].var()) or 1.0


def scores(outputs: np.ndarray, target: Target, rows: np.ndarray) -> dict[str, float]:
    """Return the scores of outputs for these rows of the table, by name."""
    values = target.values[rows]
    if target.classes is None:
        return {
            "R²": metrics.r2(outputs, values[:, None]),
            "root mean squared error": metrics.rmse(outputs, values[:, None]),
            "mean absolute error": metrics.mae(outputs, values[:, None]),
        }
    f1, labels, predicted = "F1, mean of the classes", values, outputs
    if len(target.classes) == 2:  # the F1 of the rare class
        rare = int(np.bincount(target.values, minlength=2).argmin())
        f1 = f"F1 of {target.classes[rare]}"
        labels, predicted = (values, outputs) if rare == 1 else (1 - values, outputs[:, ::-1])
    return {
        "accuracy": metrics.accuracy(outputs, values),
        f1: metrics.f1(predicted, labels),
        "area under the ROC curve": metrics.auc(outputs, values),
        "log loss": float(losses(outputs, target, rows).mean()),
    }


def calibration_error(probabilities: np.ndarray, values: np.ndarray, bins: int = 10) -> float:
    """Return the expected calibration error of probabilities (n, classes), for the classes (n,) of the rows.

    The rows are in bins of equal width, by the probability of the predicted class. The error is the difference between
    the mean of this probability and the share of correct predictions, averaged over the bins, weighted by rows.

    C. Guo et al., "On calibration of modern neural networks", ICML 2017.
    """
    confidence, is_right = probabilities.max(axis=1), probabilities.argmax(axis=1) == values
    places = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    return float(np.abs(np.bincount(places, confidence - is_right)).sum() / len(values))


def importances(model: TableModel, frame: Frame, target: Target, rows: np.ndarray, seed: int) -> dict[str, Difference]:
    """Return the importance of each column for these rows, (n,) bool; see `permute_columns`."""
    rng = np.random.default_rng(seed)
    rows = sample_rows(np.flatnonzero(rows), model.columns, SHUFFLES, rng)
    return permute_columns(
        model.predict, model.columns, model.columns.arrays(take_rows(frame, rows)), target, rows, SHUFFLES, rng
    )


def sample_rows(rows: np.ndarray, columns: Columns, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """Return those of the rows that `permute_columns` should take: random ones, in order, if there are very many."""
    max_rows = max(100, min(MAX_SHUFFLED_ROWS, MAX_PREDICTED_ROWS // (repeats * len(columns.columns))))
    return np.sort(rng.permutation(rows)[:max_rows])


def permute_columns(
    predict: Callable[[Any], np.ndarray],
    columns: Columns,
    inputs: tuple[np.ndarray, ...],
    target: Target,
    rows: np.ndarray,
    repeats: int,
    rng: np.random.Generator,
) -> dict[Any, Difference]:
    """By how much the log loss rises, or R² falls, if a column is shuffled among the rows.

    It is the mean over several shuffles. The largest come first. If several columns hold the same information, perhaps
    none of them matters. `inputs` are `columns.arrays(frame)` of the rows, and change while this runs.

    L. Breiman, "Random forests", Machine Learning 45, 2001, section 10.
    """
    model_input = inputs if len(inputs) > 1 else inputs[0]
    base_losses, scale = losses(predict(model_input), target, rows), unit(target, rows)
    feature_columns, result = columns.feature_columns(), {}
    for i, column in enumerate(columns.columns):
        parts = [(x, np.flatnonzero(owner == i)) for x, owner in zip(inputs, feature_columns, strict=True)]
        originals, shuffled = [x[:, features] for x, features in parts], np.zeros(len(rows))
        for _ in range(repeats):
            order = rng.permutation(len(rows))
            for (x, features), values in zip(parts, originals, strict=True):
                x[:, features] = values[order]
            shuffled += losses(predict(model_input), target, rows) / repeats
        for (x, features), values in zip(parts, originals, strict=True):
            x[:, features] = values
        result[column.name] = Difference.from_rows((shuffled - base_losses) / scale)
    return dict(sorted(result.items(), key=lambda item: -item[1].mean))
