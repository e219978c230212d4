"""Train nets on rows of a table, and a linear model and boosted trees to compare them with on held-out rows."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.terminal import echo
from caffelite._support.text_table import shorten
from caffelite.core.function import Function
from caffelite.data.frames import Categories
from caffelite.files.structure import to_json
from caffelite.functions import Linear, MSELoss, Softmax, SoftmaxLoss
from caffelite.model.model import Model
from caffelite.optimizers import AdamW
from caffelite.tables import conformal
from caffelite.tables import recipe as recipes
from caffelite.tables.budget import Budget
from caffelite.tables.columns import Columns, mean_and_deviation
from caffelite.tables.notation import Reading
from caffelite.tables.recipe import Recipe
from caffelite.tables.schema import Frame, Target
from caffelite.tables.splines import Splines
from caffelite.tables.table_model import TableModel
from caffelite.training.callbacks.early_stopping import EarlyStopping
from caffelite.training.history import History

MIN_ROWS = 20  # rows of a table
MAX_TEXT = 900_000  # bytes of names and categories in a file; a large file may have more

# The linear model
VALIDATION_SHARE = 0.2  # of its rows
EPOCHS, PATIENCE = 200, 20  # epochs, and those without a better validation loss
LEARNING_RATE = 0.01
EMBEDDING_SIZE = 8  # numbers for each category
EMBEDDING_SCALE = 0.1  # of the initial vectors: small, so rare categories matter little

# Boosted trees
MAX_CATEGORIES = 255  # of a column
MIN_THREADED_CELLS = 2_000_000  # of a table. On a busy machine, threads wait long for each other at every node


class TableSplit(NamedTuple):
    """The rows to train on and the rows to test on, (n,) bool each."""

    training: np.ndarray
    test: np.ndarray


class TrainedNets(NamedTuple):
    """The nets as one model, and the history of each net's training."""

    model: TableModel
    histories: list[History]

    def mean_history(self) -> History:
        """Return the mean of the histories, as long as the shortest."""
        epochs = min(history.epochs for history in self.histories)
        names = self.histories[0]
        means = {name: np.mean([history[name][:epochs] for history in self.histories], axis=0) for name in names}
        return History({name: values.tolist() for name, values in means.items()})


def split(target: Target, test: float, seed: int) -> TableSplit:
    """Hold out random rows, the same share of each class. The first row of a class is a training row.

    Raise ValueError for too few rows.
    """
    n = len(target.values)
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    if target.classes is not None:
        order = order[np.argsort(target.values[order], kind="stable")]
    shares = np.arange(n + 1) * test + rng.random()
    held_out = np.diff(np.floor(shares)) > 0
    if target.classes is not None:
        held_out[np.unique(target.values[order], return_index=True)[1]] = False
    test_rows = np.isin(np.arange(n), order[held_out])
    if n < MIN_ROWS or test_rows.sum() < 1 or (~test_rows).sum() < 2:
        raise ValueError(f"{n:,} rows are too few to train on some and test on others: give {MIN_ROWS} or more")
    return TableSplit(~test_rows, test_rows)


def take_rows(frame: Frame, rows: np.ndarray) -> Frame:
    """Return these rows of a frame. `rows` are numbers, or (n,) bool."""
    return {
        name: Categories(column.codes[rows], column.names) if isinstance(column, Categories) else column[rows]
        for name, column in frame.items()
    }


def train_nets(
    frame: Frame,
    target: Target,
    rows: np.ndarray,
    recipe: Recipe,
    seed: int,
    verbose: Any,
    keeps_background: bool = False,
    coverage: float | None = None,
    budget: Budget | None = None,
    readings: Mapping[str, Reading] | None = None,
) -> TrainedNets:
    """Train nets on these rows, (n,) bool, by the recipe. Their model may keep a few of the rows for explanations.

    With a coverage, it also has intervals or sets that contain the truth in this share of new rows. Raise ValueError
    before training if there are too few rows for them. If there is a budget, it determines the number of nets and
    epochs. The model remembers how the words of columns were read.

    After Ctrl-C, return the nets that have completed an epoch. Raise KeyboardInterrupt if there are none.
    """
    training_frame, count = take_rows(frame, rows), int(rows.sum())
    if coverage is not None:
        held_out = conformal.count_held_out(count, recipe.number_of_nets(count))
        conformal.check_coverage(coverage, held_out, ends=2 if target.classes is None else 1)
    columns = recipe.make_columns(training_frame, count)
    columns.set_notations({name: reading.notation for name, reading in (readings or {}).items()})
    _check_text(columns, recipe.number_of_nets(count))
    targets, outputs, loss, center, scale = _make_targets(target, rows)
    metrics = ["r2"] if target.classes is None else ["accuracy"]
    options: dict[str, Any] = {"outputs": outputs, "loss": loss, "metrics": metrics, "verbose": verbose}
    options |= {"random": np.random.RandomState(seed), "budget": budget}
    arrays = columns.arrays(training_frame)
    try:
        trained = recipes.train(recipe, columns, arrays, targets, **options)
    except KeyboardInterrupt as interrupt:
        trained = getattr(interrupt, "trained", [])
        if not trained:
            raise
        planned = recipe.number_of_nets(count) if budget is None or budget.plan is None else budget.plan.nets
        echo(f"caffelite: stopped, with {len(trained)} of {planned} nets", sys.stderr)
    nets = [t.net for t in trained]
    if target.classes is None:
        functions = recipes.average_regressors(nets, center, scale)
    else:
        functions = recipes.average_classifiers(nets, outputs)
    background = recipes.sample_background(arrays, np.arange(count), recipes.BACKGROUND) if keeps_background else None
    regions = None
    if coverage is not None:
        try:
            regions = conformal.calibrate(trained, arrays, targets, center, scale).make_regions(coverage)
        except ValueError as error:  # nets are missing, or nets of two kinds hold out the same rows
            echo(f"caffelite: without --interval: {error}", sys.stderr)
    model = TableModel(functions, target.name, target.classes, background, regions)
    return TrainedNets(model, [t.history for t in trained])


def train_linear(frame: Frame, target: Target, rows: np.ndarray, seed: int) -> TableModel:
    """Train a linear model on these rows, (n,) bool. A part of them is for early stopping."""
    training_frame, count = take_rows(frame, rows), int(rows.sum())
    columns = Columns(training_frame, size=EMBEDDING_SIZE)
    targets, outputs, loss, center, scale = _make_targets(target, rows)
    linear = Linear(columns.features, outputs)
    model = Model([columns, linear], seed=seed)
    for embedding in columns.embeddings:
        embedding.weight.data = EMBEDDING_SCALE * embedding.weight.data
    model.fit(
        training_frame,
        targets,
        loss=loss,
        optimizer=AdamW(model.parameters(), lr=LEARNING_RATE),
        epochs=EPOCHS,
        batch_size=min(1024, max(32, 2 ** int(math.log2(count / 500 + 1)))),  # which leaves 500 steps of an epoch
        validation_split=VALIDATION_SHARE,
        callbacks=[EarlyStopping(patience=PATIENCE)],
        verbose=0,
    )
    if target.classes is not None:
        return TableModel([columns, linear, Softmax()], target.name, target.classes)
    assert linear.bias is not None
    linear.weight.data, linear.bias.data = linear.weight.data * scale, linear.bias.data * scale + center
    return TableModel([columns, linear], target.name)


def predict_trees(columns: Columns, frame: Frame, target: Target, parts: TableSplit, seed: int) -> np.ndarray | None:
    """Return the outputs of boosted trees for the test rows, (n, classes) or (n, 1). None without scikit-learn."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits
    except ImportError:
        return None
    arrays = columns.arrays(frame)
    x = np.concatenate(arrays, axis=1, dtype=np.float64)
    are_categories = np.zeros(x.shape[1], bool)
    for i, known in enumerate(columns.categories.values(), start=len(columns.numbers)):
        x[x[:, i] == len(known), i] = np.nan  # missing
        are_categories[i] = len(known) < MAX_CATEGORIES
    values = target.values[parts.training]
    options: dict[str, Any] = {"random_state": seed, "categorical_features": are_categories}
    with threadpool_limits(1 if x.size < MIN_THREADED_CELLS else None, "openmp"):
        if target.classes is None:
            regressor = HistGradientBoostingRegressor(**options).fit(x[parts.training], values)
            return regressor.predict(x[parts.test])[:, None]
        # Early stopping holds out rows of each class.
        options["early_stopping"] = "auto" if np.bincount(values).min() > 1 else False
        classifier = HistGradientBoostingClassifier(**options).fit(x[parts.training], values)
        return classifier.predict_proba(x[parts.test])


def _make_targets(target: Target, rows: np.ndarray) -> tuple[np.ndarray, int, Function, float, float]:
    """Return the targets of these rows, the number of outputs, the loss, and the center and scale of numbers."""
    values = target.values[rows]
    if target.classes is not None:
        return values, len(target.classes), SoftmaxLoss(), 0.0, 1.0
    (center,), (scale,) = (x.tolist() for x in mean_and_deviation(values[:, None]))
    return ((values - center) / scale)[:, None], 1, MSELoss(), center, scale


def _check_text(columns: Splines, nets: int) -> None:
    """Raise ValueError, before training, if a file of the nets could not hold the names and categories."""
    text = nets * len(to_json(columns.arguments()).encode())
    if text > MAX_TEXT + nets * columns.weight.data.nbytes // 16:
        names = [column.name for column in columns.columns]
        longest = max(names, key=lambda name: len(name) + sum(map(len, columns.categories.get(name, ()))))
        raise ValueError(f"the names or words are too many or too long, most of all {shorten(longest, 100)!r}: drop it")
