"""Functions made of Functions."""

import hypothesis.strategies as st
import numpy as np

import caffelite as cl
from caffelite import functions
from tests.cases.case import Case, Family
from tests.reference import linear


def residual(rows, size):
    def judge(x, weight, bias):
        y, backward = linear(x, weight, bias)

        def backward_of_both(dy):
            dx, *others = backward(dy)
            return dx + dy, *others

        return x + y, backward_of_both

    return Case(
        lambda: functions.Residual(cl.Linear(size, size)),
        ((rows, size),),
        judge,
        lambda torch, x, weight, bias: x + torch.nn.functional.linear(x, weight.T, bias),
    )


def parallel(rows, size):
    """Return a layer beside the data themselves."""

    def judge(x, weight, bias):
        y, backward = linear(x, weight, bias)

        def backward_of_both(dy):
            dx, *others = backward(dy[:, :2])
            return dx + dy[:, 2:], *others

        return np.concatenate([y, x], axis=1), backward_of_both

    return Case(
        lambda: functions.Parallel([cl.Linear(size, 2), functions.Flatten()]),
        ((rows, size),),
        judge,
        lambda torch, x, weight, bias: torch.cat([torch.nn.functional.linear(x, weight.T, bias), x], 1),
    )


# How other Functions are put into each.
AROUND = {
    "Residual": functions.Residual,
    "Parallel": lambda f: functions.Parallel([f, f]),
}

SIZES = {"listed": [(1, 1), (3, 2), (4, 5)], "empty": [(0, 3)]}
CASES = [
    Family(
        residual,
        **SIZES,
        random=st.tuples(st.integers(1, 9), st.integers(1, 9)),
        refused=[
            (lambda: functions.Residual(cl.Linear(4, 3)), (12, 4), r"Residual.* shape \(.*, 4\).* shape \(.*, 3\)"),
            (lambda: functions.Residual(cl.Linear(4, 1)), (12, 4), r"Residual.* shape \(.*, 4\).* shape \(.*, 1\)"),
        ],
    ),
    Family(
        parallel,
        **SIZES,
        random=st.tuples(st.integers(1, 9), st.integers(1, 9)),
        refused=[
            (lambda: functions.Parallel([cl.Linear(4, 3), cl.Linear(4, 2)], axis=0), (5, 4), "differ along other axes")
        ],
    ),
]
