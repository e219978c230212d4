"""How sure a model of a table is: intervals and sets that contain the truth in a chosen share of new rows.

Design: (a) Each net of the recipe holds out rows, whose errors are like those of new rows. (b) An ErrorScale learns
from these errors how large an error to expect for a row. (c) The scores of the held-out rows are their errors divided
by the scale. An interval reaches from a low quantile of the scores to a high one, times the scale of its row. (d) For
classes, a score is 1 − the probability of the row's class. A set has the classes whose scores are below a quantile.

If n scores and the score of a new row are in random order, the new one is among the k lowest with a probability of k /
(n + 1) or more. So k is that share of n + 1, rounded up, and a high coverage needs many rows.

V. Vovk, A. Gammerman and G. Shafer, "Algorithmic Learning in a Random World", 2005. H. Papadopoulos et al., "Regression
conformal prediction with nearest neighbours", JAIR 40, 2011 (scores). R. Barber et al., "Predictive inference with the
jackknife+", Annals of Statistics 49, 2021 (rows of each fold). M. Sadinle, J. Lei and L. Wasserman, "Least ambiguous
set-valued classifiers", JASA 114, 2019 (sets).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.arrays import check_nonnegative, check_positive
from caffelite.functions import SoftmaxLoss
from caffelite.tables import recipe
from caffelite.tables.recipe import TrainedNet

MAX_ROWS = 10_000  # held-out rows

# The error scale
MIN_ROWS = 40  # below, all rows have the same scale
BINS, MIN_BIN_ROWS = 8, 20  # of a number: at most, at least
FOLDS = 4  # the scale of a row is learned from the rows of the other folds
ROUNDS, RATE = 10, 0.3  # each round improves one column, by this part of the way
PRIOR = 20  # rows of the mean error that are added to each bin


class Factor(NamedTuple):
    """A factor of an ErrorScale, `values[bin]`. The bin follows from one feature of a row.

    Bins of numbers are between `edges`, and the last one is for missing numbers. Without edges, the bin is a code, and
    the last one is for new codes.
    """

    feature: int
    edges: np.ndarray | None
    values: np.ndarray

    def predict(self, feature: np.ndarray) -> np.ndarray:
        bins = np.minimum(feature, len(self.values) - 1) if self.edges is None else find_bins(feature, self.edges)
        return self.values[bins]


class ErrorScale(NamedTuple):
    """The size of the error to expect for a row: a level, times a factor for each of some features.

    The features of a row are its prediction, its numbers and its codes.
    """

    level: float
    factors: tuple[Factor, ...] = ()

    def predict(self, features: list[np.ndarray]) -> np.ndarray:
        """Return the scale of each row (n,), above 0."""
        scale = np.full(len(features[0]), self.level)
        for factor in self.factors:
            scale *= factor.predict(features[factor.feature])
        return scale


class Intervals(NamedTuple):
    """Intervals of one coverage."""

    coverage: float
    low: float  # the ends, in scales of a row from its prediction
    high: float
    scale: ErrorScale

    def predict(self, outputs: np.ndarray, arrays: tuple[np.ndarray, ...]) -> np.ndarray:
        """Return the ends of the intervals (n, 2) of rows with these outputs (n, 1)."""
        predictions = outputs[:, 0].astype(np.float64)
        scale = self.scale.predict(make_features(predictions, arrays))
        return np.stack([predictions + self.low * scale, predictions + self.high * scale], axis=1)

    def get_config(self) -> dict[str, Any]:
        """Return numbers and lists for a file, which `read_regions` reads."""
        factors = [
            {"feature": f.feature, "edges": None if f.edges is None else f.edges.tolist(), "values": f.values.tolist()}
            for f in self.scale.factors
        ]
        ends = {"coverage": self.coverage, "low": self.low, "high": self.high}
        return {**ends, "level": self.scale.level, "factors": factors}


class Sets(NamedTuple):
    """Sets of classes of one coverage."""

    coverage: float
    threshold: float  # the largest score in a set

    def predict(self, outputs: np.ndarray, arrays: tuple[np.ndarray, ...] = ()) -> np.ndarray:
        """Return which classes are in the set of each row, bool (n, classes), from probabilities (n, classes).

        The most probable class always is.
        """
        sets = 1 - outputs.astype(np.float64) <= self.threshold
        sets[np.arange(len(sets)), outputs.argmax(axis=1)] = True
        return sets

    def get_config(self) -> dict[str, Any]:
        """Return numbers for a file, which `read_regions` reads."""
        return self._asdict()


class IntervalCalibration(NamedTuple):
    """The scale, and the scores of held-out rows in order. They make Intervals of any coverage."""

    scale: ErrorScale
    scores: np.ndarray

    def make_regions(self, coverage: float) -> Intervals:
        """Return the Intervals of a coverage. Half of the rest is beyond each end. ValueError for too few rows."""
        count = len(self.scores)
        check_coverage(coverage, count, ends=2)
        rank = find_rank(0.5 + coverage / 2, count)
        return Intervals(float(coverage), float(self.scores[count - rank]), float(self.scores[rank - 1]), self.scale)


class SetCalibration(NamedTuple):
    """The scores of held-out rows in order. They make Sets of any coverage."""

    scores: np.ndarray

    def make_regions(self, coverage: float) -> Sets:
        """Return the Sets of a coverage. ValueError for too few rows."""
        count = len(self.scores)
        check_coverage(coverage, count, ends=1)
        return Sets(float(coverage), float(self.scores[find_rank(coverage, count) - 1]))


def read_regions(config: dict[str, Any], numbers: int, codes: int) -> Intervals | Sets:
    """Return the Intervals or Sets of a file for rows of this many numbers and codes. ValueError if they don't fit."""
    check_positive("coverage", config["coverage"], limit=1)
    if "threshold" in config:
        sets = Sets(**config)
        check_nonnegative("threshold", sets.threshold)
        return sets
    names = ("low", "high", "level")
    factors = tuple([_read_factor(factor, numbers, codes) for factor in config["factors"]])
    low, high, level = (float(config[name]) for name in names)
    if config.keys() != {"coverage", *names, "factors"} or not (-math.inf < low <= high < math.inf and level > 0):
        raise ValueError(f"expected low ≤ high and a level above 0, got {low}, {high} and {level}")
    return Intervals(config["coverage"], low, high, ErrorScale(level, factors))


def _read_factor(config: dict[str, Any], numbers: int, codes: int) -> Factor:
    feature, edges, values = (config[name] for name in Factor._fields)
    factor = Factor(feature, None if edges is None else np.array(edges, np.float64), np.array(values, np.float64))
    is_number = feature in range(1 + numbers)
    is_code = feature in range(1 + numbers, 1 + numbers + codes)
    size = len(values) if edges is None else len(edges) + 2
    if not (is_code if edges is None else is_number) or factor.values.shape != (size,) or size == 0:
        raise ValueError(f"expected a factor for one of {1 + numbers} numbers and {codes} codes, got {config}")
    if not (np.isfinite(factor.values) & (factor.values > 0)).all():
        raise ValueError(f"expected values above 0, got {values}")
    return factor


def find_rank(share: float, count: int) -> int:
    """Return the k for which a new score is among the k lowest of this many rows with this probability."""
    return math.ceil(round((count + 1) * share, 9))


def check_coverage(coverage: float, rows: int, ends: int) -> None:
    """Raise ValueError or TypeError unless it is between 0 and 1, and this many held-out rows are enough for it."""
    check_positive("coverage", coverage, limit=1)
    needed = math.ceil(round(ends / (1 - coverage), 6)) - 1
    if rows < needed:
        raise ValueError(f"coverage={coverage} needs {needed:,} rows that the nets held out, and there are {rows:,}")


def count_held_out(rows: int, nets: int) -> int:
    """Return how many of this many rows the nets of the recipe hold out together."""
    folds = min(recipe.FOLDS, rows)
    return min(MAX_ROWS, sum(rows // folds + (i < rows % folds) for i in range(min(nets, folds))))


def calibrate(
    trained: list[TrainedNet],
    arrays: tuple[np.ndarray, ...],
    targets: np.ndarray,
    center: float = 0.0,
    scale: float = 1.0,
) -> IntervalCalibration | SetCalibration:
    """Return the calibration of nets, from the rows that they have held out.

    `arrays` and `targets` are as in training: classes (n,), or numbers (n, 1). Intervals are of center + scale ·
    targets.
    """
    is_class = targets.dtype.kind == "i"
    rows = recipe.find_held_out_rows(trained)
    rows = np.sort(np.random.default_rng(0).permutation(rows)[:MAX_ROWS])
    outputs = recipe.predict_held_out(trained, rows, arrays, SoftmaxLoss().link if is_class else np.asarray)
    if is_class:
        return SetCalibration(np.sort(1 - outputs[np.arange(len(rows)), targets[rows]]))
    predictions, errors = center + scale * outputs[:, 0], scale * (targets[rows, 0] - outputs[:, 0])
    features = make_features(predictions, tuple([x[rows] for x in arrays]))
    error_scale, row_scales = fit_error_scale(features, np.abs(errors))
    return IntervalCalibration(error_scale, np.sort(errors / row_scales))


def make_features(predictions: np.ndarray, arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Return the features of an ErrorScale, (n,) each: floats are numbers, and integers are codes."""
    return [predictions, *[column for x in arrays for column in x.T]]


def fit_error_scale(features: list[np.ndarray], errors: np.ndarray) -> tuple[ErrorScale, np.ndarray]:
    """Learn the size of errors (n,) from features. Return an ErrorScale, and the scale of each row without itself.

    The model is a Poisson regression by boosting: the logarithm of the scale is a sum of functions of one feature. Each
    round takes the feature that improves the likelihood most. The scale of a row is of a model that was learned from
    the other folds. The ErrorScale is the geometric mean of these models.
    """
    count, top = len(errors), errors.max(initial=0)
    level = float(top * (errors / top).mean()) if top > 0 else 1.0
    if count < MIN_ROWS or top == 0:
        return ErrorScale(level), np.full(count, level)
    bins = min(BINS, count // MIN_BIN_ROWS)
    edges = [find_edges(x, bins) if x.dtype.kind == "f" else None for x in features]
    codes = [x if e is None else find_bins(x, e) for x, e in zip(features, edges, strict=True)]
    sizes = [int(x.max()) + 2 if e is None else len(e) + 2 for x, e in zip(codes, edges, strict=True)]
    starts = np.cumsum([0, *sizes])
    table = np.stack(codes, axis=1) + starts[:-1]
    folds = np.random.default_rng(0).permutation(count) % FOLDS
    scales, sums = np.empty(count), np.zeros(starts[-1])
    for fold in range(FOLDS):
        held_out = folds == fold
        logs = boost_factors(table[~held_out], starts, errors[~held_out], level)
        scales[held_out] = level * np.exp(logs[table[held_out]].sum(axis=1))
        sums += logs
    values = np.split(np.exp(sums / FOLDS), starts[1:-1])
    factors = [Factor(i, e, v) for i, (e, v) in enumerate(zip(edges, values, strict=True)) if (v != 1).any()]
    return ErrorScale(level, tuple(factors)), scales


def boost_factors(table: np.ndarray, starts: np.ndarray, errors: np.ndarray, level: float) -> np.ndarray:
    """Return the logarithm of the factor of each bin.

    `table` (n, k) has the bins of each row, counted over all features. The bins of feature i begin at starts[i].
    """
    features, size = table.shape[1], int(starts[-1])
    scale, logs, flat = np.full(len(table), level), np.zeros(size), table.ravel()
    totals = np.bincount(flat, np.repeat(errors, features), size) + PRIOR * level
    for _ in range(ROUNDS):
        expected = np.bincount(flat, np.repeat(scale, features), size) + PRIOR * level
        steps = np.log(totals / expected)
        gains = np.add.reduceat(totals * steps - totals + expected, starts[:-1])  # of the likelihood, for a whole step
        best = int(gains.argmax())
        bins = slice(starts[best], starts[best + 1])
        logs[bins] += RATE * steps[bins]
        scale *= np.exp(RATE * steps[table[:, best]])
    return logs


def find_edges(numbers: np.ndarray, bins: int) -> np.ndarray:
    """Return the edges between bins of equally many numbers (n,), leaving out NaN."""
    ordered = np.sort(numbers[~np.isnan(numbers)])
    return np.unique(ordered[np.arange(1, bins) * len(ordered) // bins]) if len(ordered) else np.zeros(0)


def find_bins(numbers: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the bin of each number (n,). NaN is in the last one, len(edges) + 1."""
    return np.where(np.isnan(numbers), len(edges) + 1, np.searchsorted(edges, numbers, side="right"))
