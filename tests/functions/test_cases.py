"""What a case can say beyond shapes, shown by users' Functions; and that a wrong Function is found."""

import dataclasses

import numpy as np
import pytest

import caffelite as cl
from tests.cases import both_dtypes
from tests.cases.case import Case


class Affine(cl.Function):
    """y = a x + b, elementwise; a, b start as 1 and 0."""

    def __init__(self):
        self.a, self.b = (cl.Tensor(np.full(3, value, np.float32), requires_grad=True) for value in (1, 0))

    def parameters(self):
        return [self.a, self.b]

    def forward(self, x):
        self.x = x
        return self.a.data * x + self.b.data

    def backward(self, dy):
        self.a.add_grad((dy * self.x).sum(axis=0))
        self.b.add_grad(dy.sum(axis=0))
        return self.a.data * dy


class RandomDrop(cl.Function):
    """Random elements as they are, 0 for the others."""

    def forward(self, x):
        self.mask = np.random.default_rng().random(x.shape) < 0.5
        return x * self.mask

    def backward(self, dy):
        return dy * self.mask


class DoubleInTraining(cl.Function):
    """2 x in training, x in use."""

    def forward(self, x):
        self.factor = x.dtype.type(2 if cl.is_training() else 1)
        return self.factor * x

    def backward(self, dy):
        return self.factor * dy


class Halves(cl.Function):
    """The left and the right half, in two outputs."""

    def forward(self, x):
        return x[:, :2].copy(), x[:, 2:].copy()

    def backward(self, dy):
        return np.concatenate(dy, axis=1)


class WeightedLoss(cl.Function):
    """Σ w x[label] / Σ w over the rows."""

    def forward(self, x, labels, weights):
        self.slope = np.zeros_like(x)
        self.slope[np.arange(len(x)), labels] = weights / weights.sum()
        return (self.slope * x).sum()

    def backward(self, dy):
        return dy * self.slope, None, None


class Rows(cl.Function):
    """Rows of a table, by their numbers."""

    def __init__(self):
        self.table = cl.Tensor(np.zeros((4, 3), np.float32), requires_grad=True)

    def parameters(self):
        return [self.table]

    def forward(self, indices):
        self.indices = indices
        return self.table.data[indices]

    def backward(self, dy):
        gradient = np.zeros_like(self.table.data)
        np.add.at(gradient, self.indices, dy)
        self.table.add_grad(gradient)


def normal(shape, rng):
    return rng.normal(size=shape)


def affine(x, a, b):
    return a * x + b, lambda dy: (a * dy, (x * dy).sum(axis=0), dy.sum(axis=0))


def halves(x):
    return (x[:, :2], x[:, 2:]), lambda left, right: (np.concatenate([left, right], axis=1),)


def weighted_loss(x, labels, weights):
    slope = weights[:, np.newaxis] * np.eye(x.shape[1])[labels] / weights.sum()
    return (slope * x).sum(), lambda dy: (dy * slope,)


def rows(indices, table):
    chosen = np.eye(len(table))[indices]
    return chosen @ table, lambda dy: (np.einsum("nki,nkj->ij", chosen, dy),)


def weighted_mean(torch, x, labels, weights):
    return (weights * x[torch.arange(len(x)), labels]).sum() / weights.sum()


CASES = {
    "drawn parameters": Case(Affine, ((4, 3),), affine, lambda torch, x, a, b: a * x + b, draw=normal),
    "a random mask": Case(
        RandomDrop,
        ((4, 3),),
        lambda x, mask: (x * mask, lambda dy: (dy * mask,)),
        lambda torch, x, mask: x * mask,
        saved=lambda function: {"mask": function.mask},
    ),
    "training": Case(DoubleInTraining, ((4, 3),), lambda x: (2 * x, lambda dy: (2 * dy,)), lambda torch, x: 2 * x),
    "inference": Case(
        DoubleInTraining, ((4, 3),), lambda x: (x, lambda dy: (dy,)), lambda torch, x: x.clone(), training=False
    ),
    "two outputs": Case(Halves, ((4, 5),), halves, lambda torch, x: (x[:, :2], x[:, 2:])),
    "labels and weights": Case(
        WeightedLoss,
        ((5, 3),),
        weighted_loss,
        weighted_mean,
        held=lambda rng: [rng.integers(0, 3, 5), rng.uniform(0.5, 1, 5)],
    ),
    "indices alone": Case(
        Rows,
        (),
        rows,
        lambda torch, indices, table: table[indices],
        held=lambda rng: [rng.integers(0, 4, (2, 5))],
        draw=normal,
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
@both_dtypes
def test_a_case_has_whatever_its_judge_needs(case, dtype):
    case.check_against_judge(dtype)


@every_case
def test_a_case_has_whatever_its_counterpart_needs(case):
    case.check_against_pytorch(pytest.importorskip("torch"))


@every_case
def test_a_gradient_of_the_wrong_sign_is_found(case):
    def judge(*arguments, **saved):
        y, backward = case.judge(*arguments, **saved)
        return y, lambda *dys: [-gradient for gradient in backward(*dys)]

    with pytest.raises(AssertionError, match="off by"):
        dataclasses.replace(case, judge=judge).check_against_judge(np.float64)


@every_case
def test_a_wrong_output_is_found(case):
    def judge(*arguments, **saved):
        y, backward = case.judge(*arguments, **saved)
        return (tuple(part + 1 for part in y) if isinstance(y, tuple) else y + 1), backward

    with pytest.raises(AssertionError, match="off by"):
        dataclasses.replace(case, judge=judge).check_against_judge(np.float64)


def test_long_sums_may_be_off_by_the_rounding_of_their_terms():
    case = Case(cl.ReLU, ((4,),), lambda x: (np.where(x > 0, x, 0) + 1e-4, lambda dy: (dy * (x > 0),)), None)
    with pytest.raises(AssertionError, match="off by"):
        case.check_against_judge(np.float32)
    dataclasses.replace(case, scale=1e3).check_against_judge(np.float32)
