"""Losses: of scores, which have a gradient, and of targets, which are held."""

import hypothesis.strategies as st
from reference import softmax_loss

from caffelite import functions
from cases.case import Case, Family


def of_classes(rows, classes):
    return Case(
        functions.SoftmaxLoss,
        ((rows, classes),),
        softmax_loss,
        lambda torch, scores, labels: torch.nn.functional.cross_entropy(scores, labels),
        low=0.0,
        high=4.0,
        held=lambda rng: [rng.integers(0, classes, rows)],
    )


CASES = [
    Family(
        of_classes,
        listed=[(4, 3), (1, 5), (3, 1), (1, 1)],
        empty=[],
        random=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    ),
]
