"""Sums, differences, products, quotients and powers."""

import numpy as np

from caffelite import functions
from tests.cases.case import broadcast, elementwise
from tests.reference import unbroadcast


def add(a, b):
    return a + b, lambda dy: (unbroadcast(dy, a), unbroadcast(dy, b))


def subtract(a, b):
    return a - b, lambda dy: (unbroadcast(dy, a), unbroadcast(-dy, b))


def multiply(a, b):
    return a * b, lambda dy: (unbroadcast(dy * b, a), unbroadcast(dy * a, b))


def divide(a, b):
    return a / b, lambda dy: (unbroadcast(dy / b, a), unbroadcast(-dy * a / b**2, b))


def power(a, b):
    """With dy / da = 0 where b = 0, and dy / db = 0 where a = 0 and b ≥ 0."""
    y = a**b

    def backward(dy):
        a_all, b_all = np.broadcast_arrays(a, b)
        da = np.where(b_all == 0, 0.0, b_all * a_all ** (b_all - 1))
        db = np.where((a_all == 0) & (b_all >= 0), 0.0, y * np.log(a_all))
        return unbroadcast(dy * da, a), unbroadcast(dy * db, b)

    return y, backward


def negative(x):
    return -x, lambda dy: (-dy,)


CASES = [
    broadcast(functions.Add, add, lambda torch, a, b: a + b),
    broadcast(functions.Subtract, subtract, lambda torch, a, b: a - b),
    broadcast(functions.Multiply, multiply, lambda torch, a, b: a * b),
    broadcast(functions.Divide, divide, lambda torch, a, b: a / b, low=0.5),
    broadcast(functions.Power, power, lambda torch, a, b: a**b, low=0.5, signed=False),
    elementwise(functions.Negative, negative, lambda torch, x: -x),
]
