"""Losses of several outputs. The cases have one output; `test_multi_output.py` has the others, which come in tuples."""

import hypothesis.strategies as st

import caffelite as cl
from caffelite import functions
from caffelite.functions.losses.multi_output import WeightedSum
from tests.cases.case import Case, Family


def weighted_sum(shape, weights):
    def judge(*inputs):
        y = sum(w * x for w, x in zip(weights, inputs, strict=True))
        return y, lambda dy: tuple(w * dy for w in weights)

    return Case(
        lambda: WeightedSum(weights),
        (shape,) * len(weights),
        judge,
        lambda torch, *inputs: sum(w * x for w, x in zip(weights, inputs, strict=True)),
    )


def one_of_losses(rows, columns, weight=1.0):
    def judge(scores, targets):
        errors = scores - targets
        return weight * (errors**2).mean(), lambda dy: (2 * weight * dy * errors / scores.size,)

    return Case(
        lambda: functions.Losses([cl.MSELoss()], weights=[weight]),
        ((rows, columns),),
        judge,
        lambda torch, scores, targets: weight * torch.nn.functional.mse_loss(scores, targets),
        held=lambda rng: [rng.choice([-3.0, 0.0, 3.0], (rows, columns))],
    )


weight, side = st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(1, 9)

CASES = [
    Family(
        weighted_sum,
        listed=[((), [1.0]), ((), [2.0, 1.0]), ((3, 2), [0.0, 1.0, 0.5])],
        empty=[((0,), [1.0, 2.0])],
        random=st.tuples(st.sampled_from([(), (3,), (2, 5)]), st.lists(weight, min_size=1, max_size=4)),
    ),
    Family(
        one_of_losses,
        listed=[(4, 3), (1, 1, 0.5), (2, 1, 0.0)],
        empty=[],
        random=st.tuples(side, side, weight),
    ),
]
