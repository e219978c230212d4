"""The recipe for tables: the mean of a few nets of splines, each trained on different rows.

`caffelite train`, TableClassifier and TableRegressor use it. Each of its parts gave better scores on the tables of
`benchmarks/tables.py`.

It follows D. Holzmüller, L. Grinsztajn and I. Steinwart, "Better by default", NeurIPS 2024, and Y. Gorishniy,
A. Kotelnikov and A. Babenko, "TabM", ICLR 2025.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.function import Function
from caffelite.functions import Linear, Parallel, SiLU, Softmax
from caffelite.model.many.fit import fit_many
from caffelite.model.model import Model
from caffelite.optimizers import AdamW, Optimizer, schedules
from caffelite.tables.splines import Splines
from caffelite.training.history import History

FOLDS = 8  # each net is trained on all folds but one, and validated on that one
EPOCHS = 40
MIN_STEPS, MAX_STEPS = 600, 2000
MIN_BINS, MIN_BIN_ROWS = 8, 100  # at least
LARGE_TABLE = 20_000  # rows, above which four nets do as well as eight
MAX_SEED = 2**31 - 1
BACKGROUND = 100  # rows of the training that an explanation compares with


class Recipe(NamedTuple):
    """The numbers of the recipe. None means a value that depends on the number of rows."""

    nets: int | None = None
    hidden: Sequence[int] = (64, 64)
    max_bins: int = 32
    learning_rate: float = 0.005
    weight_decay: float = 0.5
    min_frequency: int = 2
    epochs: int | None = None
    batch_size: int | None = None

    def number_of_nets(self, rows: int) -> int:
        return self.nets or (8 if rows <= LARGE_TABLE else 4)

    def make_columns(self, frame: Any, rows: int, categories: Sequence[Any] = ()) -> Splines:
        """Return the first layer of each net, for a frame of so many rows."""
        bins = min(self.max_bins, max(MIN_BINS, rows // MIN_BIN_ROWS))
        return Splines(frame, self.hidden[0], categories, bins=bins, min_frequency=self.min_frequency)

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

    def training_length(self, rows: int, net_rows: int) -> tuple[int, int, int]:
        """Return the rows of a batch, the steps of an epoch and the number of epochs."""
        batch_size = self.batch_size or int(np.clip(2 ** round(np.log2(max(rows / 60, 1))), 64, 1024))
        steps_per_epoch = -(-net_rows // batch_size)
        steps = np.clip(EPOCHS * steps_per_epoch, MIN_STEPS, MAX_STEPS)
        return batch_size, steps_per_epoch, self.epochs or max(1, round(steps / steps_per_epoch))


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
) -> tuple[list[Model], list[History]]:
    """Train each net on all folds but one, and keep its best epoch on that fold.

    `arrays` are `columns.arrays(frame)`. Rows of weight 0 are left out. Return the nets and their histories.

    Raise what `fit_many` raises. KeyboardInterrupt has `nets` and `histories` of the nets that have completed an
    epoch. Each is as in its best one.
    """
    used = np.arange(len(targets)) if weights is None else np.flatnonzero(weights.astype(np.float32))
    count = recipe.number_of_nets(len(used))
    folds = assign_folds(targets[used], random)
    held_out_rows = [used[folds == i % (folds.max() + 1)] for i in range(count)]
    training_rows = [np.setdiff1d(used, held_out) for held_out in held_out_rows]
    batch_size, steps_per_epoch, epochs = recipe.training_length(len(used), max(map(len, training_rows)))
    nets = [recipe.make_net(columns, outputs, random.randint(MAX_SEED)) for _ in range(count)]
    try:
        histories = fit_many(
            nets,
            arrays if len(arrays) > 1 else arrays[0],
            targets,
            loss=loss,
            optimizers=[recipe.make_optimizer(net, epochs * steps_per_epoch) for net in nets],
            epochs=epochs,
            batch_size=batch_size,
            rows=training_rows,
            sample_weight=weights,
            validation_rows=held_out_rows,
            metrics=metrics,
            patience=epochs,
            seed=random.randint(MAX_SEED),
            verbose=verbose,
        )
    except KeyboardInterrupt as interrupt:
        partial_histories = getattr(interrupt, "histories", [History(loss=[])] * count)
        interrupt.nets = [net for net, history in zip(nets, partial_histories, strict=True) if history.epochs]  # type: ignore[attr-defined]
        interrupt.histories = [history for history in partial_histories if history.epochs]  # type: ignore[attr-defined]
        raise
    return nets, histories


def sample_background(arrays: tuple[np.ndarray, ...], rows: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    """Return copies of at most so many of these rows, in random order. They are the same each time."""
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
