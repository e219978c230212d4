"""How well a model predicts, and whether simpler ones do as well."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from caffelite.model.table import TableModel
from caffelite.tabular.columns import Target, flag
from caffelite.tabular.learning import Frame, Split, rows_of
from caffelite.training import metrics

NOISE = 2.0  # standard errors
SHUFFLES = 5  # of a column
MOST_SHUFFLED = 10_000  # rows


class Difference(NamedTuple):
    """By how much one model is better than another, and the standard error of that, from the same rows."""

    mean: float
    error: float

    @property
    def is_sure(self) -> bool:
        """Whether it is hardly chance."""
        return self.mean > NOISE * self.error


class Judgement:
    """What a net, a linear model and a baseline make of the rows that were held out.

    The baseline says the same of all rows: what suits those of the training best, how often each class comes, or the
    mean. `scores` are those of the net for the rows of each part, of the linear model and of the baseline.
    """

    def __init__(
        self, net: TableModel, linear: TableModel, frame: Frame, target: Target, parts: Split, seed: int
    ) -> None:
        self.target, self.parts = target, parts
        self.outputs = [net.predict(rows_of(frame, rows)) for rows in parts]
        values = target.values[parts.training]
        if target.classes is None:
            self.baseline = values.mean()[None, None]
        else:
            with np.errstate(divide="ignore"):
                self.baseline = np.log(np.bincount(values, minlength=len(target.classes)) / len(values))[None]
        others = [linear.predict(rows_of(frame, parts.test)), self.baseline]
        self.scores = [
            scores(outputs, target, rows)
            for outputs, rows in zip(self.outputs + others, [*parts, parts.test, parts.test], strict=True)
        ]
        self.losses = [losses(outputs, target, parts.test) for outputs in (self.outputs[-1], *others)]
        self.importances = importances(net, frame, target, parts.test, seed)

    def difference(self, better: int, worse: int) -> Difference:
        """By how much one of the models, 0 the net, 1 the linear one, 2 the baseline, is better for the test rows.

        That is a difference of the log loss, or of R².
        """
        differences = self.losses[worse] - self.losses[better]
        if self.target.classes is None:
            differences = differences / (self.target.values[self.parts.test].var() or 1.0)
        error = differences.std(ddof=1) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
        return Difference(float(differences.mean()), float(error))


def losses(outputs: np.ndarray, target: Target, rows: np.ndarray) -> np.ndarray:
    """The loss of each of these rows: −log of the probability of its class, or the squared error."""
    values = target.values[rows]
    outputs = np.broadcast_to(outputs.astype(np.float64), (len(values), outputs.shape[1]))
    if target.classes is None:
        return (outputs[:, 0] - values) ** 2
    highest = outputs.max(axis=1)
    log_sums = highest + np.log(np.exp(outputs - highest[:, None]).sum(axis=1))
    return log_sums - outputs[np.arange(len(values)), values]


def scores(outputs: np.ndarray, target: Target, rows: np.ndarray) -> dict[str, float]:
    """How good outputs for these rows of the table are, by name; the first is what is spoken of."""
    values = target.values[rows]
    outputs = np.broadcast_to(outputs, (len(values), outputs.shape[1]))
    if target.classes is None:
        return {
            "R²": metrics.r2(outputs, values[:, None]),
            "root mean squared error": metrics.rmse(outputs, values[:, None]),
            "mean absolute error": metrics.mae(outputs, values[:, None]),
        }
    f1 = f"F1 of {target.classes[1]}" if len(target.classes) == 2 else "F1, mean of the classes"
    return {
        "accuracy": metrics.accuracy(outputs, values),
        f1: metrics.f1(outputs, values),
        "area under the ROC curve": metrics.auc(outputs, values),
        "log loss": float(losses(outputs, target, rows).mean()),
    }


def _main_score(outputs: np.ndarray, target: Target, rows: np.ndarray) -> float:
    return next(iter(scores(outputs, target, rows).values()))


def importances(model: TableModel, frame: Frame, target: Target, rows: np.ndarray, seed: int) -> dict[str, float]:
    """By how much accuracy, or R², falls where a column is shuffled among the rows, the mean of SHUFFLES times.

    L. Breiman, "Random forests", Machine Learning 45, 2001, section 10. Of columns that tell the same, none may matter.
    """
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(rows)
    rows = np.sort(rng.permutation(rows)[:MOST_SHUFFLED])
    inputs = model.columns.arrays(rows_of(frame, rows))  # once: a shuffle changes a column of them, or two
    columns = [x[:, i] for x in inputs for i in range(x.shape[1])]
    places = dict(zip([name for names in model.columns.names for name in names], columns, strict=True))
    whole = _main_score(model.predict(inputs), target, rows)
    flags = {flag(name) for name in frame}
    found = {}
    for name in frame:
        if name in flags:
            continue
        falls = []
        shuffled = [(column, column.copy()) for k in (name, flag(name)) if (column := places.get(k)) is not None]
        for _ in range(SHUFFLES):
            order = rng.permutation(len(rows))
            for column, values in shuffled:
                column[:] = values[order]
            falls.append(whole - _main_score(model.predict(inputs), target, rows))
        for column, values in shuffled:
            column[:] = values
        found[name] = float(np.mean(falls))
    return dict(sorted(found.items(), key=lambda item: -item[1]))
