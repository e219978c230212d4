"""The recipe for tables: the mean of a few nets of splines, each trained on different rows.

`caffelite train`, TableClassifier and TableRegressor use it. Every part of it gave better scores on the tables of
`benchmarks/tables.py` or `benchmarks/real_tables.py`. No single weight decay and number of bins suits all tables: small
and noisy ones need coarse nets, while others hold patterns that only finer nets can learn. So both compete.

It follows D. Holzmüller, L. Grinsztajn and I. Steinwart, "Better by default", NeurIPS 2024, and Y. Gorishniy,
A. Kotelnikov and A. Babenko, "TabM", ICLR 2025.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.function import Function
from caffelite.data.generator import unpack_single
from caffelite.functions import Linear, Parallel, SiLU, Softmax
from caffelite.model.many.fit import fit_many
from caffelite.model.many.shared_programs import Parts
from caffelite.model.model import Model
from caffelite.optimizers import AdamW, Optimizer, TrainingDiverged, schedules
from caffelite.tables.budget import Budget, NetRows
from caffelite.tables.splines import Splines
from caffelite.training.history import History

FOLDS = 8  # each net is trained on all folds but one, and validated on that one
EPOCHS = 40
MIN_STEPS, MAX_STEPS = 600, 2000
PATIENCE = 1 / 3  # of the epochs: a training ends after so many without a better one
LATE = 0.4  # of the epochs: nets whose best epochs come later, on average, could learn more
CLEAR = 2.0  # standard errors: finer nets win clearly
LARGE_TABLE = 10_000  # rows, above which four nets do as well as eight
PROBE_STEPS = 20_000  # of the learning rate of a net that is thrown away: more than it takes
MIN_PROBABILITY = float(np.finfo(np.float32).tiny)  # of a class, in a loss
MAX_SEED = 2**31 - 1
BACKGROUND = 100  # rows of the training that an explanation compares with


class Recipe(NamedTuple):
    """The numbers of the recipe. None means a value that depends on the number of rows."""

    nets: int | None = None
    hidden: Sequence[int] = (64, 64)
    max_bins: int = 32
    min_bins: int = 8
    bin_rows: int = 100  # at least, if there are more than the fewest bins
    learning_rate: float = 0.005
    weight_decay: float = 0.5
    min_frequency: int = 2
    epochs: int | None = None
    batch_size: int | None = None

    def number_of_nets(self, rows: int) -> int:
        return self.nets or (8 if rows <= LARGE_TABLE else 4)

    def make_columns(self, frame: Any, rows: int, categories: Sequence[Any] = ()) -> Splines:
        """Return the first layer of each net, for a frame of this many rows."""
        bins = self.number_of_bins(rows)
        return Splines(frame, self.hidden[0], categories, bins=bins, min_frequency=self.min_frequency)

    def number_of_bins(self, rows: int) -> int:
        return min(self.max_bins, max(self.min_bins, rows // self.bin_rows))

    def refine(self) -> Recipe:
        """Return the recipe of finer nets, which can learn more."""
        return self._replace(
            max_bins=4 * self.max_bins,
            min_bins=2 * self.min_bins,
            bin_rows=self.bin_rows // 5,
            learning_rate=2 * self.learning_rate,
            weight_decay=self.weight_decay / 10,
        )

    def make_net(self, columns: Splines, outputs: int, seed: int) -> Model:
        """Return an untrained net with its own copy of the columns."""
        net = Model([copy.deepcopy(columns), SiLU()], seed=seed)
        first, *sizes = self.hidden
        for size in sizes:
            net.add(Linear(first, size)).add(SiLU())
            first = size
        return net.add(Linear(first, outputs))

    def make_optimizer(self, net: Model, steps: int) -> Optimizer:
        """Return AdamW. The first layer learns faster, and the scale of each column much faster and without decay."""

        def rate(factor: float) -> Any:
            return schedules.cosine(factor * self.learning_rate, steps, warmup=min(max(1, steps // 50), steps - 1))

        columns, *layers = net.functions
        assert isinstance(columns, Splines)
        column_parameters = [p for p in columns.parameters() if p is not columns.column_scale]
        groups = [
            {"parameters": [p for function in layers for p in function.parameters()]},
            {"parameters": column_parameters, "lr": rate(2.0)},
            {"parameters": [columns.column_scale], "lr": rate(10.0), "weight_decay": 0.0},
        ]
        return AdamW(groups, lr=rate(1.0), betas=(0.9, 0.99), weight_decay=self.weight_decay)

    def make_probe(self, columns: Splines, outputs: int, loss: Function) -> Parts:
        """Return a net, its optimizer and its loss, only to measure how long their steps take."""
        net = self.make_net(columns, outputs, seed=0)
        return Parts(net, self.make_optimizer(net, PROBE_STEPS), loss)

    def training_length(self, rows: int, net_rows: int) -> tuple[int, int, int]:
        """Return the rows of a batch, the steps of an epoch and the number of epochs."""
        batch_size = self.batch_size or int(np.clip(2 ** round(np.log2(max(rows / 60, 1))), 64, 1024))
        steps_per_epoch = -(-net_rows // batch_size)
        steps = np.clip(EPOCHS * steps_per_epoch, MIN_STEPS, MAX_STEPS)
        return batch_size, steps_per_epoch, self.epochs or max(1, round(steps / steps_per_epoch))


class TrainedNet(NamedTuple):
    """A net, its history, and the rows that it was not trained on."""

    net: Model
    history: History
    held_out_rows: np.ndarray


def train(
    recipe: Recipe,
    columns: Splines,
    arrays: tuple[np.ndarray, ...],
    targets: np.ndarray,
    *,
    outputs: int,
    loss: Function,
    random: np.random.RandomState,
    weights: np.ndarray | None = None,
    metrics: Sequence[Any] = (),
    verbose: int | str = 0,
    budget: Budget | None = None,
    validation_rows: np.ndarray | None = None,
) -> list[TrainedNet]:
    """Train each net on all folds but one, and keep its best epoch on that fold.

    Half of the nets come first. Then as many finer nets compete with them on the same folds. The held-out rows decide
    which stay: the first nets, the finer ones, or both. The missing nets are trained last. They are finer only if the
    finer ones won alone. Finer nets that diverge lose.

    `arrays` are `columns.arrays(frame)`. Rows of weight 0 are left out. A budget may reduce the nets and their epochs.
    If there are validation rows, every net holds out these and no others.

    Raise the errors of `fit_many`. KeyboardInterrupt has a list `trained` of the nets that have completed an epoch.
    Each is as in its best one.
    """
    used = np.arange(len(targets)) if weights is None else np.flatnonzero(weights.astype(np.float32))
    count = recipe.number_of_nets(len(used))
    if validation_rows is None:
        folds = assign_folds(targets[used], random)
        held_out_rows = [used[folds == i % (folds.max() + 1)] for i in range(count)]
    else:
        held_out_rows = [validation_rows] * count
    seeds = random.randint(MAX_SEED, size=count + 1).tolist()
    options = {"loss": loss, "sample_weight": weights, "metrics": metrics, "verbose": verbose, "seed": seeds.pop()}
    training = TableTraining(arrays, targets, outputs, used, held_out_rows, seeds, options)
    finer_bins = recipe.refine().number_of_bins(len(used))
    finer_columns = columns.refine(arrays[0], finer_bins) if count > 1 else columns
    if budget is not None:
        recipe = training.plan(recipe, finer_columns, budget)
        count = recipe.number_of_nets(len(used))
    finer, trained = recipe.refine(), []
    try:
        if half := count // 2:
            trained = training.train(recipe, columns, range(half))
            with suppress(TrainingDiverged):
                finer_nets = training.train(finer, finer_columns, range(half))
                choice = training.choose(trained, finer_nets, LATE * training.find_length(recipe)[2])
                trained = [trained, finer_nets, trained + finer_nets][choice]
                if choice == 1:
                    recipe, columns = finer, finer_columns
        if len(trained) < count:
            trained = trained + training.train(recipe, columns, range(len(trained), count))
    except KeyboardInterrupt as interrupt:
        interrupt.trained = trained + getattr(interrupt, "trained", [])  # type: ignore[attr-defined]
        raise
    return trained


class TableTraining(NamedTuple):
    """The data and options that all nets of a table have in common."""

    arrays: tuple[np.ndarray, ...]
    targets: np.ndarray
    outputs: int
    used: np.ndarray  # rows
    held_out_rows: list[np.ndarray]  # of each net
    seeds: list[int]  # of each net
    options: dict[str, Any]  # of `fit_many`

    def find_length(self, recipe: Recipe) -> tuple[int, int, int]:
        """Return the rows of a batch, the steps of an epoch and the number of epochs."""
        rows = len(self.used)
        return recipe.training_length(rows, rows - min(map(len, self.held_out_rows)))

    def plan(self, recipe: Recipe, finer_columns: Splines, budget: Budget) -> Recipe:
        """Return the recipe with fewer nets and epochs, if the budget is not enough for all."""
        batch_size, _, epochs = self.find_length(recipe)
        weights, metrics, loss = (self.options[name] for name in ("sample_weight", "metrics", "loss"))
        held_out = self.held_out_rows[0]
        rows = NetRows(self.arrays, self.targets, weights, np.setdiff1d(self.used, held_out), held_out)
        make_probe = partial(recipe.refine().make_probe, finer_columns, self.outputs, loss)
        count = len(self.held_out_rows)
        plan = budget.choose_plan(count, epochs, make_probe, rows, batch_size=batch_size, metrics=metrics)
        return recipe._replace(nets=plan.nets, epochs=plan.epochs)

    def train(self, recipe: Recipe, columns: Splines, places: range) -> list[TrainedNet]:
        """Train the nets at these places. KeyboardInterrupt has a list `trained`."""
        batch_size, steps_per_epoch, epochs = self.find_length(recipe)
        held_out_rows = [self.held_out_rows[i] for i in places]
        nets = [recipe.make_net(columns, self.outputs, self.seeds[i]) for i in places]
        try:
            histories = fit_many(
                nets,
                unpack_single(self.arrays),
                self.targets,
                optimizers=[recipe.make_optimizer(net, epochs * steps_per_epoch) for net in nets],
                epochs=epochs,
                batch_size=batch_size,
                rows=[np.setdiff1d(self.used, rows) for rows in held_out_rows],
                validation_rows=held_out_rows,
                patience=max(1, round(PATIENCE * epochs)),
                **self.options,
            )
        except KeyboardInterrupt as interrupt:
            histories = getattr(interrupt, "histories", [History(loss=[])] * len(nets))
            trained = [*map(TrainedNet, nets, histories, held_out_rows)]
            interrupt.trained = [t for t in trained if t.history.epochs]  # type: ignore[attr-defined]
            raise
        return [*map(TrainedNet, nets, histories, held_out_rows)]

    def choose(self, first: list[TrainedNet], finer: list[TrainedNet], late: float) -> int:
        """Return 0 if the first nets stay, 1 if the finer ones win, and 2 if the mean of both wins.

        They win by a lower loss on the held-out rows. If the best epochs of the first nets were not late, little is
        left to learn. In that case, the loss must be lower by CLEAR standard errors.
        """
        losses = self.find_losses(first, finer)
        best = int(np.argmin(losses.mean(axis=1)))
        gain = losses[0] - losses[best]
        best_epoch = np.mean([np.argmin(t.history["val_loss"]) + 1 for t in first])
        margin = 0.0 if best_epoch > late else CLEAR * gain.std() / len(gain) ** 0.5
        return best if gain.mean() > margin else 0

    def find_losses(self, first: list[TrainedNet], finer: list[TrainedNet]) -> np.ndarray:
        """Return the loss of each held-out row, times its weight: of the first nets, the finer ones, and their mean."""
        rows, link = find_held_out_rows(first), self.options["loss"].link
        outputs = [predict_held_out(nets, rows, self.arrays, link) for nets in (first, finer)]
        losses = np.stack([row_losses(x, self.targets[rows]) for x in [*outputs, np.mean(outputs, axis=0)]])
        weights = self.options["sample_weight"]
        return losses if weights is None else losses * weights[rows]


def find_held_out_rows(trained: Sequence[TrainedNet]) -> np.ndarray:
    """Return the rows that nets hold out, each once and in order."""
    return np.unique(np.concatenate([t.held_out_rows for t in trained]))


def predict_held_out(
    trained: Sequence[TrainedNet],
    rows: np.ndarray,
    arrays: tuple[np.ndarray, ...],
    link: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return the predictions (n, k) float64 for these held-out rows, by the net that holds out the row.

    If several nets do, it is their mean. `link` turns the outputs of a net into predictions.
    """
    sums: Any = 0.0
    counts = np.zeros((len(rows), 1))
    for net, _, held_out in trained:
        is_own = np.isin(rows, held_out)
        if is_own.any():
            predictions = link(net.predict(unpack_single(tuple([x[rows[is_own]] for x in arrays]))))
            sums = sums + np.zeros((len(rows), predictions.shape[1]))
            sums[is_own] += predictions
            counts += is_own[:, None]
    return sums / counts


def row_losses(predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the loss of each row (n,): −log of the probability of its class, or the squared error.

    Predictions are probabilities (n, classes) for targets (n,) int, or numbers (n, 1) for targets (n,) or (n, 1) float.
    """
    predictions = predictions.astype(np.float64)
    if targets.dtype.kind == "f":
        return (predictions[:, 0] - targets.reshape(-1)) ** 2
    return -np.log(np.maximum(predictions[np.arange(len(targets)), targets], MIN_PROBABILITY))


def sample_background(arrays: tuple[np.ndarray, ...], rows: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    """Return copies of at most this many of these rows, in random order. They are the same each time."""
    chosen = np.random.default_rng(0).permutation(rows)[:count]
    return tuple([x[chosen] for x in arrays])


def assign_folds(targets: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Draw the fold 0 … FOLDS − 1 of each row. All folds get about the same number of rows of each class."""
    order = random.permutation(len(targets))
    if targets.dtype.kind == "i":
        order = order[np.argsort(targets[order], kind="stable")]
    folds = np.empty(len(targets), np.int64)
    folds[order] = np.arange(len(targets)) % min(FOLDS, len(targets))
    return folds


def average_classifiers(nets: Sequence[Model], classes: int) -> list[Function]:
    """Return the Functions of one model of the nets: the mean of their probabilities."""
    average = Linear(len(nets) * classes, classes, bias=False)
    average.weight.data = np.tile(np.eye(classes) / len(nets), (len(nets), 1))
    return _average_nets([Model([*net.functions, Softmax()]) for net in nets], average)


def average_regressors(nets: Sequence[Model], center: float, scale: float) -> list[Function]:
    """Return the Functions of one model of the nets: the mean of their values, times `scale`, plus `center`."""
    average = Linear(len(nets), 1)
    assert average.bias is not None
    average.weight.data = np.full((len(nets), 1), scale / len(nets))
    average.bias.data = np.array([center])
    return _average_nets(nets, average)


def _average_nets(nets: Sequence[Model], average: Linear) -> list[Function]:
    for p in average.parameters():
        p.requires_grad = False
    return [Parallel(nets), average]
