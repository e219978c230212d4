"""Shapley values of the columns of rows, by enumerating all coalitions or by random permutations.

Let f be the model, x a row, and b a background row. For a coalition S of columns, the mixed row has x's values in the
columns of S, and b's values in all others. v(S) is the mean of f(mixed row) over the background rows. The contribution
of a column is its Shapley value: how much v rises when the column joins, averaged over all orders in which the columns
may join. So the contributions add up to v(all columns) − v(no column) = f(x) − base.

Design:

(a) Mixed rows are rows of one batch. Their outputs come from `predict`, which replays kernels.
(b) If there are few columns, all coalitions are enumerated, so there is no sampling error.
(c) Otherwise columns join in random orders. An order and its reverse together (an antithetic pair) give the exact
    values of every model without interactions of three or more columns.
(d) All background rows are used equally often, so the base is the mean over exactly these rows.
(e) Shapley values are linear in the model. If it is a mean of nets, each net has its own orders: evaluating eight nets
    once gives eight orders for the price of one. This lowers the variance about fivefold.
(f) Each net and background row has two independent pairs of orders in a round. Their difference gives the standard
    error, which does not include the spread over background rows, since these are all used.
(g) All rows share the same orders, so a row has the same result alone or among others.

E. Strumbelj and I. Kononenko, "An efficient explanation of individual classifications using game theory", JMLR 2010.
R. Mitchell, J. Cooper, E. Frank and G. Holmes, "Sampling permutations for Shapley value estimation", JMLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.arrays import make_rng

Inputs = tuple[np.ndarray, ...]

MAX_ROUNDS = 4  # of two pairs of orders for each background row and net
TOLERANCE = 0.01  # sampling of a row ends at this standard error, relative to the spread of the outputs
BLOCK_SIZE = 1 << 17  # elements of the mixed rows that are made at once


class ShapleyValues(NamedTuple):
    """Contributions and their standard errors, each (n, columns, outputs), with base (outputs,) and outputs."""

    values: np.ndarray
    errors: np.ndarray
    base: np.ndarray
    outputs: np.ndarray  # (n, outputs)


class Game:
    """The rows to explain, the background rows, and the model.

    Parameters
    ----------
    functions : list of callables
        Each takes inputs and returns outputs (rows, outputs) in float64. The model is the mean of the functions.
    rows, background : tuple of arrays (n, features)
        An array for each input of the model.
    owners : tuple of arrays (features,)
        For each input, the number of the column that a feature belongs to.
    """

    def __init__(
        self,
        functions: Sequence[Callable[[Inputs], np.ndarray]],
        rows: Inputs,
        background: Inputs,
        owners: tuple[np.ndarray, ...],
    ) -> None:
        self.functions, self.rows, self.background, self.owners = functions, rows, background, owners
        self.columns = 1 + max(int(owner.max()) for owner in owners)
        self.features = sum(map(len, owners))
        self.row_outputs = [function(rows) for function in functions]
        self.background_outputs = [function(background) for function in functions]

    def column_values(self) -> list[np.ndarray]:
        """Return the values (n,) of each column in the rows. If it has several features, the first one counts."""
        values = {
            i: x
            for rows, owner in zip(self.rows, self.owners, strict=True)
            for i, x in zip(owner[::-1], rows.T[::-1], strict=True)
        }
        return [values[i] for i in range(self.columns)]

    def mix(self, rows: np.ndarray, background: slice, is_in: np.ndarray) -> Inputs:
        """Return each of these rows mixed with each background row by coalitions, is_in (walks, m, steps, columns).

        m is the number of background rows, or 1 if all have the same coalitions.
        """
        mixed = []
        for x, b, owner in zip(self.rows, self.background, self.owners, strict=True):
            x_values, b_values = x[rows][:, None, None, None], b[background][:, None]
            has_one_feature_each = np.array_equal(owner, np.arange(self.columns))
            values = np.where(is_in if has_one_feature_each else is_in[..., owner], x_values, b_values)
            mixed.append(values.reshape(-1, len(owner)))
        return tuple(mixed)


def shapley_values(game: Game, seed: Any) -> ShapleyValues:
    """Return the contributions of all columns to all outputs, exact ones if there are few columns."""
    enumerates = 2**game.columns <= 4 * MAX_ROUNDS * game.columns
    values, errors = enumerate_coalitions(game) if enumerates else sample_permutations(game, seed)
    base = np.mean([outputs.mean(axis=0) for outputs in game.background_outputs], axis=0)
    return ShapleyValues(values, errors, base, np.mean(game.row_outputs, axis=0))


def enumerate_coalitions(game: Game) -> tuple[np.ndarray, np.ndarray]:
    """Return the contributions from all 2^columns coalitions, with errors of 0."""
    d, m, n = game.columns, len(game.background[0]), len(game.rows[0])
    codes = np.arange(2**d)
    is_in = (codes[:, None] >> np.arange(d) & 1).astype(bool)
    weights = _coalition_weights(is_in)
    values = np.empty((n, d, game.row_outputs[0].shape[1]))
    block = max(1, BLOCK_SIZE // (len(codes) * m * game.features))
    for start in range(0, n, block):
        rows = np.arange(start, min(start + block, n))
        inputs = game.mix(rows, slice(None), is_in[:, None, None])
        outputs = np.mean([function(inputs) for function in game.functions], axis=0)
        v = outputs.reshape(len(rows), len(codes), m, -1).mean(axis=2)
        values[rows] = weights @ v
    return values, np.zeros_like(values)


def _coalition_weights(is_in: np.ndarray) -> np.ndarray:
    """Return the matrix (columns, coalitions) that turns the values of coalitions into contributions.

    `is_in` is (coalitions, d) for d columns. A column joins a coalition S with weight |S|! (d − 1 − |S|)! / d!.
    """
    d = is_in.shape[1]
    sizes = is_in.sum(axis=1)[:, None] - is_in  # without the column itself
    factorials = np.array([math.factorial(k) * math.factorial(d - 1 - k) / math.factorial(d) for k in range(d)])
    return (np.where(is_in, 1, -1) * factorials[sizes]).T


def sample_permutations(game: Game, seed: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the contributions from random orders of the columns, and their standard errors.

    Each row gets more rounds until its standard errors are at most `TOLERANCE` of its spread. The spread is the
    standard deviation of the background rows' outputs, or the row's distance from their mean if that is larger.
    """
    rng = make_rng("seed", seed)
    outputs = np.mean(game.background_outputs, axis=0)
    distances = np.abs(np.mean(game.row_outputs, axis=0) - outputs.mean(axis=0)).max(axis=1)
    spreads = np.maximum(distances, outputs.std(axis=0).max())
    d, m, n = game.columns, len(game.background[0]), len(game.rows[0])
    strata = m * len(game.functions)
    totals, squares = np.zeros((2, n, d, game.row_outputs[0].shape[1]))
    active, rounds = np.arange(n), np.zeros((n, 1, 1))
    for _ in range(MAX_ROUNDS):
        for k in range(len(game.functions)):
            places = rng.permuted(np.broadcast_to(np.arange(d), (2, m, d)), axis=2)
            _add_round(game, k, places, active, totals, squares)
        rounds[active] += 1
        values, errors = totals / (rounds * strata), np.sqrt(squares) / (rounds * strata)
        active = np.flatnonzero(errors.max(axis=(1, 2)) > TOLERANCE * spreads)
        if not len(active):
            break
    return values, errors


def _add_round(
    game: Game, k: int, places: np.ndarray, active: np.ndarray, totals: np.ndarray, squares: np.ndarray
) -> None:
    """Add the contributions of function k from two orders for each background row, and from the reverse orders.

    `places` (2, m, columns) is the position of each column in an order. `totals` gets the mean of both orders, and
    `squares` the variance of this mean. `active` holds the rows' indices.
    """
    d, m = game.columns, len(game.background[0])
    walks = np.concatenate([places, d - 1 - places])
    row_size = 4 * (d - 1) * game.features
    background_block = min(m, max(1, BLOCK_SIZE // row_size))
    row_block = max(1, BLOCK_SIZE // (row_size * background_block))
    for start in range(0, len(active), row_block):
        rows = active[start : start + row_block]
        for first in range(0, m, background_block):
            block = slice(first, min(first + background_block, m))
            part = walks[:, block]
            by_place = np.diff(_walk(game, k, rows, block, part), axis=3).reshape(len(rows), part.size, -1)
            index = part + d * np.arange(part.size // d).reshape(*part.shape[:2], 1)
            contributions = by_place[:, index.ravel()].reshape(len(rows), *part.shape, -1)
            pairs = (contributions[:, :2] + contributions[:, 2:]) / 2
            totals[rows] += pairs.mean(axis=1).sum(axis=1)
            squares[rows] += ((pairs[:, 0] - pairs[:, 1]) ** 2 / 4).sum(axis=1)


def _walk(game: Game, k: int, rows: np.ndarray, background: slice, places: np.ndarray) -> np.ndarray:
    """Return the outputs of function k as columns join, one after the other: (rows, walks, background, 1 + d, outputs).

    `places` (walks, background, d) is the position of each column. The first outputs belong to the background rows, and
    the last to the rows.
    """
    d = game.columns
    first, last = game.background_outputs[k][background], game.row_outputs[k][rows]
    outputs = np.empty((len(rows), *places.shape[:2], 1 + d, first.shape[1]))
    outputs[..., 0, :], outputs[..., -1, :] = first, last[:, None, None]
    size = len(rows) * math.prod(places.shape[:2]) * game.features
    step_block = max(1, BLOCK_SIZE // size)
    for start in range(1, d, step_block):
        steps = np.arange(start, min(start + step_block, d))
        inputs = game.mix(rows, background, places[:, :, None] < steps[:, None])
        part = game.functions[k](inputs)
        outputs[..., steps, :] = part.reshape(len(rows), *places.shape[:2], len(steps), -1)
    return outputs
