"""Losses: of scores, which have a gradient, and of targets and weights, which are held."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

import caffelite as cl
from caffelite import functions
from tests.cases.case import Case, Family
from tests.reference import softmax, special_values


class GridCase(Case):
    """Scores are multiples of 1/64, so that their differences are, too, and no kink is near if it isn't one."""

    def array(self, rng, shape, dtype):
        return np.round(super().array(rng, shape, np.float64) * 64).astype(dtype) / 64


def shares(rows, weights):
    """Return what each row counts for in a weighted mean."""
    weights = np.ones(rows) if weights is None else np.repeat(weights, rows // len(weights))
    return weights / weights.sum()


def drawn_weights(rng, rows, weighted):
    """Weights of rows, one of them 0 where there are several; none if not asked for."""
    weights = rng.uniform(0.5, 2, rows)
    weights[1:2] = 0
    return [weights] if weighted else []


def weighted_mean(torch, rows, weights):
    """Return the mean of the losses (n, …) of PyTorch's reduction "none"."""
    rows = rows.reshape(len(rows), -1).mean(dim=1)
    return rows.mean() if weights is None else (weights * rows).sum() / weights.sum()


# ---- of scores and targets, one by one ----


def squared_error(s, t, number):
    return (s - t) ** 2, 2 * (s - t)


def absolute(s, t, number):
    return np.abs(s - t), np.sign(s - t)


def huber(s, t, delta):
    d = s - t
    return np.where(abs(d) > delta, delta * (abs(d) - delta / 2), d * d / 2), np.clip(d, -delta, delta)


def cross_entropy(s, t, positive):
    """−positive t log p − (1 − t) log(1 − p) by the logarithms of p and 1 − p, and its slope."""
    positive = np.asarray(positive)
    log_p, log_q = [np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))) for x in (s, -s)]
    p, weight = 1 / (1 + np.exp(-s)), 1 + (positive - 1) * t
    return (1 - t) * s - weight * log_p if np.all(np.isinf(s)) else -positive * t * log_p - (1 - t) * log_q, (
        weight * p - positive * t
    )


def pointwise(make, loss, pytorch, targets, more=()):
    """Return a family of a loss of scores and targets of one shape; `targets` draws those. `more` cases are listed,
    too.
    """

    def build(shape, number=1.0, weighted=False):
        number = list(np.linspace(0.3, 2, shape[-1])) if number == "one each" else number

        def judge(scores, targets, weights=None):
            losses, slopes = loss(scores, targets.reshape(scores.shape), number)
            rows = len(scores)
            share = shares(rows, weights).reshape(rows, *[1] * (scores.ndim - 1))
            return (share * losses).sum() * rows / scores.size, lambda dy: (dy * share * slopes * rows / scores.size,)

        def counterpart(torch, scores, targets, weights=None):
            return weighted_mean(torch, pytorch(torch, scores, targets.reshape(scores.shape), number), weights)

        def draw_targets(rng):
            drawn = targets(rng, shape)
            return [drawn[:, 0] if shape[1:] == (1,) else drawn, *drawn_weights(rng, shape[0], weighted)]

        return Case(lambda: make(number), (shape,), judge, counterpart, held=draw_targets)

    return Family(
        build,
        listed=[
            *[((4, 3),), ((1,), 0.5), ((5, 1), 2.0, True), ((3, 2, 2), 0.3, True)],
            *[((2, 700), 1.0, True), ((4,),), *more],
        ],
        empty=[],
        random=st.tuples(hnp.array_shapes(max_dims=4, max_side=6), st.sampled_from([0.3, 1.0, 2.0]), st.booleans()),
        special=lambda dtype: [(((1,),), [[value], [0.5]]) for value in special_values(dtype)],
        special_gradients=lambda dtype: [(((1,),), [[value], [0.5]]) for value in special_values(dtype)],
    )


def away_from_scores(rng, shape):
    return rng.choice([-3.0, 0.0, 3.0], shape)


def between_0_and_1(rng, shape):
    return rng.choice([0.0, 1.0, 0.25, 0.7], shape)


# ---- of labels ----


def hinge(rows, classes, margin=1.0, weighted=False):
    def judge(scores, labels, weights=None):
        own = np.eye(classes)[labels]
        over = np.maximum(scores - (own * scores).sum(axis=1, keepdims=True) + margin, 0) * (1 - own)
        share = shares(rows, weights)
        slopes = np.sign(over) - own * np.sign(over).sum(axis=1, keepdims=True)
        return (share * over.sum(axis=1)).sum(), lambda dy: (dy * share[:, np.newaxis] * slopes,)

    def counterpart(torch, scores, labels, weights=None):
        each = torch.nn.functional.multi_margin_loss(scores, labels, margin=margin, reduction="none")
        return weighted_mean(torch, each * classes, weights)

    return GridCase(
        lambda: functions.HingeLoss(margin),
        ((rows, classes),),
        judge,
        counterpart,
        held=lambda rng: [rng.integers(0, classes, rows), *drawn_weights(rng, rows, weighted)],
    )


def softmax_case(shape, kind="labels", smoothing=0.0, weighted=False):
    """Return the softmax loss of scores of this shape: of labels, of labels some of which are ignored, of
    probabilities.
    """
    *of_labels, classes = shape
    ignore = -1 if kind == "some ignored" else None

    def targets(scores, given):
        """Probabilities (n, C), and whether each row of them counts."""
        if kind == "probabilities":
            return given.reshape(-1, classes), np.ones(scores.size // classes, bool)
        counts = given.reshape(-1) != ignore
        return np.eye(classes)[np.where(counts, given.reshape(-1), 0)], counts

    def judge(scores, given, weights=None):
        t, counts = targets(scores, given)
        t, p = (1 - smoothing) * t + smoothing / classes, softmax(scores.reshape(-1, classes))
        share = shares(len(p), weights) * counts
        share /= share.sum()
        slopes = share[:, np.newaxis] * (p * t.sum(axis=1, keepdims=True) - t)
        value = -(share[:, np.newaxis] * t * np.log(p)).sum()
        return value, lambda dy: (dy * slopes.reshape(scores.shape),)

    def counterpart(torch, scores, given, weights=None):
        options = {"label_smoothing": smoothing} | ({} if ignore is None else {"ignore_index": ignore})
        loss, scores = torch.nn.functional.cross_entropy, scores.movedim(-1, 1)
        given = given.movedim(-1, 1) if kind == "probabilities" else given
        if weights is None and kind != "probabilities":
            return loss(scores, given, **options)
        each = loss(scores, given, reduction="none", **options)
        w = torch.ones(len(each), dtype=each.dtype) if weights is None else weights
        w = w.reshape(-1, *[1] * (each.ndim - 1)) * torch.ones_like(each)
        if ignore is not None:
            w = w * (given != ignore)
        return (w * each).sum() / w.sum()

    def draw_targets(rng):
        if kind == "probabilities":
            given = rng.dirichlet(np.ones(classes), of_labels)
            given[0] = 1 / classes  # so its first number alone, repeated, is of probabilities, too
        else:
            given = rng.integers(-1 if kind == "some ignored" else 0, classes, of_labels)
            given.reshape(-1)[0] = 0
        return [given, *drawn_weights(rng, shape[0], weighted)]

    return Case(
        lambda: functions.SoftmaxLoss(smoothing, ignore),
        (tuple(shape),),
        judge,
        counterpart,
        low=0.0,
        high=4.0,
        held=draw_targets,
    )


def focal(shape, gamma=2.0, weighted=False):
    *of_labels, classes = shape

    def judge(scores, labels, weights=None):
        p = softmax(scores.reshape(-1, classes))
        onehot = np.eye(classes)[labels.reshape(-1)]
        own = (p * onehot).sum(axis=1, keepdims=True)
        share = shares(len(p), weights)[:, np.newaxis]
        value = -(share * (1 - own) ** gamma * np.log(own)).sum()
        slope = -((1 - own) ** gamma) / own
        if gamma and classes > 1:
            slope = slope + gamma * (1 - own) ** (gamma - 1) * np.log(own)
        return value, lambda dy: ((dy * share * slope * own * (onehot - p)).reshape(scores.shape),)

    def counterpart(torch, scores, labels, weights=None):
        logs = scores.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return weighted_mean(torch, -((1 - logs.exp()) ** gamma) * logs, weights)

    def draw_targets(rng):
        return [rng.integers(0, classes, of_labels), *drawn_weights(rng, shape[0], weighted)]

    return Case(lambda: functions.FocalLoss(gamma), (tuple(shape),), judge, counterpart, high=4.0, held=draw_targets)


# ---- with a penalty ----


class PenalizedCase(Case):
    """Parameters that are in no Model have their dtype from the start."""

    def function(self, dtype=np.float64):
        rng = np.random.default_rng(0)
        values = [rng.choice([-1, 1], shape) * rng.uniform(0.1, 2, shape) for shape in [(4, 2), (3,)]]
        return self.make([cl.Tensor(value.astype(dtype), requires_grad=True) for value in values])


def penalized_case(rows, classes, l1=0.1, l2=0.2):
    def make(parameters=None):
        parameters = [cl.Tensor([1.0], requires_grad=True)] if parameters is None else parameters
        return functions.Penalized(functions.SoftmaxLoss(), parameters, l1=l1, l2=l2)

    def judge(scores, labels, *parameters):
        value, backward = softmax_case((rows, classes)).judge(scores, labels)
        penalty = sum((l1 * abs(w) + l2 * w * w / 2).sum() for w in parameters)
        return value + penalty, lambda dy: (*backward(dy), *[dy * (l1 * np.sign(w) + l2 * w) for w in parameters])

    def counterpart(torch, scores, labels, *parameters):
        penalty = sum(l1 * w.abs().sum() + l2 * (w * w).sum() / 2 for w in parameters)
        return torch.nn.functional.cross_entropy(scores, labels) + penalty

    return PenalizedCase(
        make,
        ((rows, classes),),
        judge,
        counterpart,
        held=lambda rng: [rng.integers(0, classes, rows)],
    )


side = st.integers(1, 40)

CASES = [
    pointwise(
        lambda number: functions.MSELoss(),
        squared_error,
        lambda torch, s, t, number: torch.nn.functional.mse_loss(s, t, reduction="none"),
        away_from_scores,
    ),
    pointwise(
        lambda number: functions.MAELoss(),
        absolute,
        lambda torch, s, t, number: torch.nn.functional.l1_loss(s, t, reduction="none"),
        away_from_scores,
    ),
    pointwise(
        functions.HuberLoss,
        huber,
        lambda torch, s, t, delta: torch.nn.functional.huber_loss(s, t, reduction="none", delta=delta),
        away_from_scores,
    ),
    pointwise(
        functions.SigmoidLoss,
        cross_entropy,
        lambda torch, s, t, positive: torch.nn.functional.binary_cross_entropy_with_logits(
            s, t, reduction="none", pos_weight=torch.tensor(positive, dtype=s.dtype)
        ),
        between_0_and_1,
        more=[((4, 3), "one each", True), ((2, 2, 3), "one each"), ((2, 700), "one each"), ((600, 2), "one each")],
    ),
    Family(
        hinge,
        listed=[(4, 3), (1, 5, 0.3, True), (3, 1), (7, 4, 0.0078125)],
        empty=[],
        random=st.tuples(side, side, st.sampled_from([0.0078125, 0.5078125, 6.0]), st.booleans()),
    ),
    Family(
        softmax_case,
        listed=[
            *[((4, 3),), ((1, 5),), ((3, 1),), ((1, 1),), ((70, 3), "labels", 0.1, True), ((4, 3), "labels", 1.0)],
            *[((4, 3), "some ignored", 0.1), ((2, 3, 4), "some ignored", 0.0, True), ((2, 3, 2, 4), "labels", 0.0)],
            *[((4, 3), "probabilities"), ((2, 3, 4), "probabilities", 0.2, True), ((2, 3, 4), "labels", 0.3, True)],
        ],
        empty=[],
        random=st.tuples(
            st.one_of(st.tuples(side, side), hnp.array_shapes(min_dims=2, max_dims=4, max_side=6)),
            st.sampled_from(["labels", "some ignored", "probabilities"]),
            st.sampled_from([0.0, 0.1, 0.5]),
            st.booleans(),
        ),
    ),
    Family(
        focal,
        listed=[((4, 3),), ((1, 5), 0.5, True), ((1, 2),), ((2, 3, 4), 1.0, True), ((4, 3), 0.0), ((70, 17), 5.0)],
        empty=[],
        random=st.tuples(
            st.one_of(st.tuples(side, st.integers(2, 40)), hnp.array_shapes(min_dims=2, max_dims=4, min_side=2)),
            st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]),
            st.booleans(),
        ),
    ),
    Family(penalized_case, listed=[(4, 3), (1, 2, 0.0, 0.5), (3, 2, 0.5, 0.0)], empty=[], random=st.tuples(side, side)),
]
