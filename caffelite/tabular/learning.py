"""A net and a linear model learn the same rows of a table, and are held against each other on rows held out."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.function import Function
from caffelite.core.terminal import say
from caffelite.data.frames import Categories
from caffelite.functions import Columns, Linear, MSELoss, ReLU, SoftmaxLoss
from caffelite.model.table import TableModel
from caffelite.optimizers import AdamW
from caffelite.tabular.columns import OTHER, Target
from caffelite.training.callbacks import EarlyStopping
from caffelite.training.history import History

VALIDATION = 0.2  # of the rows that are not held out
PATIENCE = 20  # epochs without a better validation loss
EMBEDDING = 8  # numbers for each category
SMALL = 0.1  # how large they are at first: a category of few rows says little then
FEWEST = 20  # rows of a table

Frame = dict[str, Any]  # columns by name, numbers (n,) or Categories


class Split(NamedTuple):
    """Which rows are for what: (n,) bool each."""

    training: np.ndarray
    validation: np.ndarray
    test: np.ndarray


class Options(NamedTuple):
    """How to train."""

    hidden: Sequence[int]
    epochs: int
    batch_size: int | None  # None: as `batch_size` says
    lr: float
    seed: int
    verbose: Any = "auto"


def split(target: Target, test: float, seed: int) -> Split:
    """Hold out rows at random, of each class the same share; its first row stays in the training.

    ValueError for too few rows.
    """
    n = len(target.values)
    rng = np.random.default_rng(seed)
    rest = np.arange(n)
    parts = []
    for share in (test, VALIDATION):
        order = rng.permutation(rest)
        if target.classes is not None:
            order = order[np.argsort(target.values[order], kind="stable")]
        shares = np.arange(len(order) + 1) * share + rng.random()
        held_out = np.diff(np.floor(shares)) > 0
        if target.classes is not None:
            held_out[np.unique(target.values[order], return_index=True)[1]] = False
        parts.append(np.isin(np.arange(n), order[held_out]))
        rest = order[~held_out]
    if n < FEWEST or not all(part.any() for part in parts):
        raise ValueError(f"{n:,} rows are too few to learn from some and be judged by others")
    test_rows, validation = parts
    return Split(~(test_rows | validation), validation, test_rows)


def batch_size(rows: int) -> int:
    """32, or of many rows a power of 2, up to 1,024, that leaves 500 steps of an epoch."""
    return min(1024, max(32, 2 ** int(math.log2(rows / 500 + 1))))


def rows_of(frame: Frame, rows: np.ndarray) -> Frame:
    """These rows of a frame: numbers of them, or (n,) bool."""
    return {
        name: Categories(column.codes[rows], column.names) if isinstance(column, Categories) else column[rows]
        for name, column in frame.items()
    }


def learn(frame: Frame, target: Target, parts: Split, options: Options) -> tuple[TableModel, History]:
    """A net with the hidden layers of the options, a linear model where there are none, that has learned the training.

    It has the parameters of the epoch with the least loss on the validation rows, also where Ctrl-C ends the training
    after an epoch or more. Its outputs are scores of the classes, or values like the target's.
    """
    seen = rows_of(frame, parts.training)
    columns = Columns(seen, size=EMBEDDING)
    sizes = [columns.features, *options.hidden, 1 if target.classes is None else len(target.classes)]
    layers = [layer for sizes_of in pairwise(sizes) for layer in (Linear(*sizes_of), ReLU())]
    model = TableModel([columns, *layers[:-1]], target.name, target.classes, seed=options.seed)
    for embedding in columns.embeddings:
        embedding.weight.data = SMALL * embedding.weight.data

    values, metric = target.values, "accuracy"
    loss: Function = SoftmaxLoss()
    if target.classes is None:
        mean, scale = values[parts.training].mean(), values[parts.training].std() or 1.0
        values, loss, metric = (values[:, None] - mean) / scale, MSELoss(), "r2"
    try:
        history = model.fit(
            seen,
            values[parts.training],
            loss=loss,
            optimizer=AdamW(model.parameters(), lr=options.lr),
            epochs=options.epochs,
            batch_size=options.batch_size or batch_size(int(parts.training.sum())),
            validation_data=(rows_of(frame, parts.validation), values[parts.validation]),
            metrics=[metric],
            callbacks=[EarlyStopping(patience=PATIENCE)],
            verbose=options.verbose,
        )
    except KeyboardInterrupt as interrupt:
        history = getattr(interrupt, "history", None) or History(loss=[])
        if history.epochs == 0:
            raise
        say(f"caffelite: stopped in epoch {history.epochs + 1:,}", sys.stderr)
    if target.classes is None:
        last: Any = layers[-2]
        last.weight.data, last.bias.data = last.weight.data * scale, last.bias.data * scale + mean
    _give_others_a_vector(columns, seen)
    return model, history


def _give_others_a_vector(columns: Columns, seen: Frame) -> None:
    """Where no word was rare, so that nothing was learned for those to come: the mean of what was learned for all."""
    for (name, known), embedding in zip(columns.categories.items(), columns.embeddings, strict=True):
        counts = np.bincount(seen[name].codes, minlength=len(known))
        if known[0] == OTHER and counts[0] == 0:
            vectors = embedding.weight.data.copy()
            vectors[0] = counts @ vectors[: len(known)] / counts.sum()
            embedding.weight.data = vectors
