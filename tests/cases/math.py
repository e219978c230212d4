"""Elementary functions."""

import numpy as np

from caffelite import functions
from tests.cases.case import elementwise


def exp(x):
    y = np.exp(x)
    return y, lambda dy: (dy * y,)


def log(x):
    return np.log(x), lambda dy: (dy / x,)


def sqrt(x):
    y = np.sqrt(x)
    return y, lambda dy: (dy / (2 * y),)


def cbrt(x):
    y = np.cbrt(x)
    return y, lambda dy: (dy / (3 * y**2),)


def absolute(x):
    return np.abs(x), lambda dy: (dy * np.sign(x),)


def sin(x):
    return np.sin(x), lambda dy: (dy * np.cos(x),)


def cos(x):
    return np.cos(x), lambda dy: (-dy * np.sin(x),)


CASES = [
    elementwise(functions.Exp, exp, lambda torch, x: x.exp()),
    elementwise(functions.Log, log, lambda torch, x: x.log(), signed=False),
    elementwise(functions.Sqrt, sqrt, lambda torch, x: x.sqrt(), signed=False),
    elementwise(functions.Cbrt, cbrt, lambda torch, x: x.sign() * x.abs() ** (1 / 3)),
    elementwise(functions.Abs, absolute, lambda torch, x: x.abs()),
    elementwise(functions.Sin, sin, lambda torch, x: x.sin()),
    elementwise(functions.Cos, cos, lambda torch, x: x.cos()),
]
