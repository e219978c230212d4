"""Losses of outputs that describe a distribution."""

import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family
from tests.cases.losses import drawn_weights, pointwise, shares, weighted_mean


def row_loss_case(make, shape, judged, counterpart, targets, weighted):
    """Return the case of a loss whose `judged` gives, of scores and targets, the loss of each row and its gradient."""

    def judge(scores, targets, weights=None):
        losses, slopes = judged(scores, targets.reshape(*scores.shape[:-1], -1))
        share = shares(len(scores), weights)
        return (share * losses).sum(), lambda dy: (dy * (share * slopes.T).T,)

    def theirs(torch, scores, targets, weights=None):
        targets = targets.reshape(*scores.shape[:-1], -1)
        return weighted_mean(torch, counterpart(torch, scores, targets), weights)

    def draw_targets(rng):
        return [targets(rng), *drawn_weights(rng, shape[0], weighted)]

    return Case(make, (shape,), judge, theirs, held=draw_targets)


def quantiles(rows, count, weighted=False, each=()):
    """Targets are far from the outputs, on both sides. `each`: the axes between rows and quantiles."""
    q = np.linspace(0.1, 0.9, count)

    def judge_quantiles(scores, targets):
        d = targets - scores
        losses = np.maximum(q * d, (q - 1) * d).reshape(rows, -1)
        return losses.mean(axis=1), np.where(d > 0, -q, 1 - q) / losses.shape[1]

    def counterpart(torch, scores, targets):
        d = targets - scores
        levels = torch.tensor(q, dtype=d.dtype)
        return torch.maximum(levels * d, (levels - 1) * d)

    def targets(rng):
        return rng.choice([-3.0, 3.0], (rows, *each) if count % 2 else (rows, *each, 1))

    return row_loss_case(
        lambda: functions.QuantileLoss(q), (rows, *each, count), judge_quantiles, counterpart, targets, weighted
    )


def poisson(s, t, number):
    return np.exp(s) - t * s, np.exp(s) - t


def gaussian(rows, k, weighted=False):
    def judge_gaussian(scores, targets):
        d, v = scores[:, :k] - targets, scores[:, k:]
        slopes = np.concatenate([d * np.exp(-v), (1 - d**2 * np.exp(-v)) / 2], axis=1) / k
        return ((v + d**2 * np.exp(-v)) / 2).mean(axis=1), slopes

    def counterpart(torch, scores, targets):
        variance = scores[:, k:].exp()
        return torch.nn.functional.gaussian_nll_loss(scores[:, :k], targets, variance, reduction="none")

    def targets(rng):
        return rng.normal(size=(rows, k) if k > 1 else rows)

    return row_loss_case(functions.GaussianLoss, (rows, 2 * k), judge_gaussian, counterpart, targets, weighted)


side = st.integers(1, 40)

CASES = [
    Family(
        quantiles,
        listed=[(4, 3), (1, 1), (5, 2, True), (2, 700), (300, 5, True), (4, 3, False, (5,)), (3, 2, True, (2, 4))],
        empty=[],
        random=st.tuples(side, side, st.booleans(), st.lists(st.integers(1, 4), max_size=2)),
    ),
    pointwise(
        lambda number: functions.PoissonLoss(),
        poisson,
        lambda torch, s, t, number: torch.nn.functional.poisson_nll_loss(s, t, reduction="none"),
        lambda rng, shape: rng.poisson(2.0, shape).astype(float),
    ),
    Family(
        gaussian,
        listed=[(4, 3), (1, 1), (5, 1, True), (3, 7, True)],
        empty=[],
        random=st.tuples(side, side, st.booleans()),
    ),
]
