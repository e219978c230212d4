"""Activations, elementwise and along an axis."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family, elementwise, side
from tests.reference import normal, softmax, special_values


def relu(x):
    return np.where(x < 0, 0.0, x), lambda dy: (np.where(x <= 0, 0.0, dy),)


def leaky_relu(x, slope):
    return np.where(x > 0, x, slope * x), lambda dy: (np.where(x <= 0, slope * dy, dy),)


def prelu(shape, channels=1):
    along_channels = () if channels == 1 else (channels, *[1] * (len(shape) - 2))
    others = (0, *range(2, len(shape))) if channels > 1 else None

    def judge(x, slope):
        s = slope.reshape(along_channels)

        def gradients(dy):
            return np.where(x > 0, dy, s * dy), (dy * np.where(x > 0, 0, x)).sum(others).reshape(channels)

        return np.where(x > 0, x, s * x), gradients

    return Case(
        lambda: functions.PReLU(channels),
        (shape,),
        judge,
        lambda torch, x, slope: torch.nn.functional.prelu(x, slope),
        draw=lambda shape, rng: rng.uniform(-0.5, 1, shape),
        scale=3.0,
    )


def elu(x, alpha):
    y = np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))
    return y, lambda dy: (dy * np.where(x > 0, 1, alpha * np.exp(np.minimum(x, 0))),)


def gelu(x):
    return x * normal(x), lambda dy: (dy * (normal(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)),)


def gelu_tanh(x):
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    inner = np.sqrt(2 / np.pi) * (1 + 0.134145 * np.clip(x, -30, 30) ** 2)  # beyond that 1 − t² is 0
    return x * ((1 + t) / 2), lambda dy: (dy * ((1 + t) / 2 + x * ((1 - t * t) * inner) / 2),)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-abs(x))), lambda dy: (dy / (1 + np.exp(-x)),)


def tanh(x):
    y = np.tanh(x)
    return y, lambda dy: (dy * (1 - y * y),)


def sigmoid(x):
    y = 1 / (1 + np.exp(-x))
    return y, lambda dy: (dy * y * (1 - y),)


def silu(x):
    s = 1 / (1 + np.exp(-x))
    return x * s, lambda dy: (dy * s * (1 + x * (1 - s)),)


def mish(x):
    t = np.tanh(np.log1p(np.exp(x)))
    return x * t, lambda dy: (dy * (t + x * (1 - t * t) / (1 + np.exp(-x))),)


def softmax_along(x, axis):
    """y = softmax(x); the Jacobian of a row is diag(y) − y yᵀ."""
    rows = np.moveaxis(x, axis, -1)
    y = softmax(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)

    def backward(dy):
        dy = np.moveaxis(dy, axis, -1)
        jacobian = y[..., np.newaxis] * np.eye(y.shape[-1]) - y[..., np.newaxis] * y[..., np.newaxis, :]
        return (np.moveaxis((jacobian @ dy[..., np.newaxis])[..., 0], -1, axis),)

    return np.moveaxis(y, -1, axis), backward


def log_softmax_along(x, axis):
    y = softmax_along(x, axis)[0]
    return np.log(y), lambda dy: (dy - y * dy.sum(axis=axis, keepdims=True),)


def along(function, judge, pytorch):
    """Return a family of a Function along one axis."""

    def build(shape, axis):
        return Case(
            lambda: function(axis),
            (shape,),
            lambda x: judge(x, axis),
            lambda torch, x: pytorch(torch, x, axis),
            high=5.0,
        )

    @st.composite
    def random(draw):
        shape = list(draw(hnp.array_shapes(max_dims=4, max_side=3)))
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        shape[axis] = draw(side)
        return tuple(shape), axis

    inf, nan = np.inf, np.nan
    rows = [[0, -inf, 0], [-inf, -inf, -inf], [inf, 0, 1], [inf, inf, 0], [nan, 0, 1], [0, nan, 1], [0, -inf, inf]]
    return Family(
        build,
        listed=[((5,), -1), ((1,), 0), ((4, 3), -1), ((4, 3), 0), ((3, 1), 1), ((2, 3, 4), 1), ((2, 1, 3), -3)],
        empty=[((0, 3), -1), ((0, 3, 2), 1), ((2, 0, 3), -1)],
        random=random(),
        special=lambda dtype: [(((7, 3), -1), [np.array(rows)]), (((3, 7), 0), [np.array(rows).T])],
    )


def saturating(dtype):
    """Return special values, but for those at which 1 − y of a sigmoid's kin loses digits and isn't yet 0."""
    values = special_values(dtype)
    return values[~((abs(values) >= 1) & (abs(values) < 4))]


def with_number(function, judge, pytorch):
    """Return a family of an elementwise Function with one number."""

    def build(shape, number):
        return Case(
            lambda: function(number),
            (shape,),
            lambda x: judge(x, number),
            lambda torch, x: pytorch(torch, x, number),
        )

    return Family(
        build,
        listed=[((), 0.01), ((4,), 1.0), ((2, 3), 0.3), ((1, 3, 1), 0.0)],
        empty=[((0,), 1.0), ((2, 0, 3), 0.1)],
        random=st.tuples(hnp.array_shapes(min_dims=0, max_dims=5, max_side=4), st.floats(0, 3)),
        special=lambda dtype: [(((4,), 0.5), [special_values(dtype)])],
        special_gradients=lambda dtype: [(((4,), 0.5), [special_values(dtype)])],
    )


def two_form_family(function, judges, pytorch):
    """Return a family of an elementwise Function of two forms."""

    def build(shape, form):
        return Case(
            lambda: function(form),
            (shape,),
            judges[form],
            lambda torch, x: pytorch(torch, x, form),
        )

    return Family(
        build,
        listed=[((), False), ((4,), True), ((2, 3), False), ((1, 3, 1), True)],
        empty=[((0,), False), ((2, 0, 3), True)],
        random=st.tuples(hnp.array_shapes(min_dims=0, max_dims=5, max_side=4), st.booleans()),
        special=lambda dtype: [(((4,), form), [special_values(dtype)]) for form in judges],
        special_gradients=lambda dtype: [(((4,), form), [special_values(dtype)]) for form in judges],
    )


CASES = [
    elementwise(functions.ReLU, relu, lambda torch, x: x.relu()),
    with_number(functions.LeakyReLU, leaky_relu, lambda torch, x, slope: torch.nn.functional.leaky_relu(x, slope)),
    Family(
        prelu,
        listed=[((),), ((4,),), ((2, 3),), ((3, 2), 2), ((2, 3, 5), 3), ((3, 40, 4, 4), 40), ((1, 3, 1), 1)],
        empty=[((0,),), ((2, 0, 3),), ((0, 3), 3), ((0, 3, 4), 3), ((2, 3, 0), 3)],
        random=st.tuples(hnp.array_shapes(min_dims=0, max_dims=5, max_side=4))
        | hnp.array_shapes(min_dims=2, max_dims=5, max_side=5).map(lambda shape: (shape, shape[1])),
        special=lambda dtype: [
            (((14,),), [special_values(dtype)]),
            (((7, 2), 2), [special_values(dtype).reshape(7, 2)]),
        ],
        refused=[
            (lambda: functions.PReLU(3), (2, 4), r"PReLU\(3\) got shape .* expected \(n, 3, …\)"),
            (lambda: functions.PReLU(3), (3,), r"expected \(n, 3, …\)"),
        ],
    ),
    with_number(functions.ELU, elu, lambda torch, x, alpha: torch.nn.functional.elu(x, alpha)),
    two_form_family(
        functions.GELU,
        {False: gelu, True: gelu_tanh},
        lambda torch, x, form: torch.nn.functional.gelu(x, approximate="tanh" if form else "none"),
    ),
    elementwise(functions.Softplus, softplus, lambda torch, x: torch.nn.functional.softplus(x)),
    elementwise(functions.Mish, mish, lambda torch, x: torch.nn.functional.mish(x)),
    elementwise(functions.Tanh, tanh, lambda torch, x: x.tanh(), special=saturating),
    elementwise(functions.Sigmoid, sigmoid, lambda torch, x: x.sigmoid(), special=saturating),
    elementwise(functions.SiLU, silu, lambda torch, x: torch.nn.functional.silu(x)),
    along(functions.Softmax, softmax_along, lambda torch, x, axis: x.softmax(axis)),
    along(functions.LogSoftmax, log_softmax_along, lambda torch, x, axis: x.log_softmax(axis)),
]
