"""Arrays and other arguments for kernels, which several test files use."""

import inspect
import os
import subprocess
import sys
import textwrap

import numpy as np

from caffelite import _kernels as kernels


def uniform(*shape, dtype=np.float32, seed=0):
    return np.asarray(np.random.default_rng(seed).uniform(-1, 1, shape)).astype(dtype)


def run_python(program, **environment):
    """Run a program of its own; its output if it succeeds."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


ADAM = np.array([0.01, 0.9, 0.999, 1e-8, 0.1])  # η, β₁, β₂, ε, λ


def num_required(kernel):
    """How many arguments a kernel's function requires."""
    parameters = inspect.signature(getattr(kernels, kernel.name)).parameters.values()
    return sum(parameter.default is parameter.empty for parameter in parameters)


def places_in(a):
    """Places in three series, each of which lies in a column."""
    places = np.array([[0, 1, 1], [1, 1, 2], [2, 0, 1]], np.int64 if a.itemsize == 8 else np.int32)
    return places.T[:, None]


WITH_NUMBERS = ("clip", "clip_grad", "leaky_relu", "leaky_relu_grad", "elu", "elu_grad", "penalty", "penalty_grad")
WITH_NUMBERS += ("maximum_grad", "minimum_grad")
ELEMENTWISE = [
    kernel for kernel in kernels.KERNELS.values() if kernel.op and kernel.name not in ("full", *WITH_NUMBERS)
]
SERIES = {"stride": (1,), "padding": (1,), "dilation": (1,)}  # of a convolution of series
WINDOWS = ((1, 3), (1, 1), (0, 1))  # sizes, strides and pads of windows of a series
LEVELS = np.array([0.1, 0.5, 0.9])  # one for each element of a row
TURNED = np.array([[0.8, 0.5], [-0.4, 1.1]])


def steps_for(rule, rows):
    """Return the steps that a rule takes, of rows (elements, t, product of momenta); None if it takes none."""
    return np.ascontiguousarray(rows[:, : rule.steps]) if rule.steps else None


FLOAT_KERNELS = {
    **{
        kernel.name: lambda a, kernel=kernel: to_arrays(getattr(kernels, kernel.name)(*[a] * num_required(kernel)))[0]
        for kernel in ELEMENTWISE
    },
    "clip": lambda a: kernels.clip(a, 0.25, 0.5),
    "clip_grad": lambda a: kernels.clip_grad(a, a, 0.25, 0.5),
    "leaky_relu": lambda a: kernels.leaky_relu(a, 0.25),
    "leaky_relu_grad": lambda a: kernels.leaky_relu_grad(a, a, 0.25),
    "elu": lambda a: kernels.elu(a, 0.25),
    "elu_grad": lambda a: kernels.elu_grad(a, a, 0.25),
    "penalty": lambda a: kernels.penalty(a, 0.1, 0.2),
    "penalty_grad": lambda a: kernels.penalty_grad(a, a, 0.1, 0.2),
    "maximum_grad": lambda a: kernels.maximum_grad(a, a, a[::-1], True),
    "minimum_grad": lambda a: kernels.minimum_grad(a, a, a[::-1], False),
    "matmul": lambda a: kernels.matmul(a, a),
    "sum": lambda a: kernels.sum(a, 0),
    "cumsum": lambda a: kernels.cumsum(a, 0),
    "prod": lambda a: kernels.prod(a, 0),
    "prod_grad": lambda a: kernels.prod_grad(a[0], a, 1),
    "variance": lambda a: kernels.variance(a, 1, scale=0.5),
    "variance_grad": lambda a: kernels.variance_grad(a[0], a, 0, scale=0.5),
    "logsumexp": lambda a: kernels.logsumexp(a, 0),
    "logsumexp_grad": lambda a: kernels.logsumexp_grad(a[0], a, 1),
    "largest": lambda a: kernels.largest(a, 0)[0],
    "smallest": lambda a: kernels.smallest(a, 1)[0],
    "extreme_grad": lambda a: kernels.extreme_grad(a[0], np.array([0, 2, 1]), (3, 3), 0),
    "softmax": lambda a: kernels.softmax(a, 0),
    "softmax_grad": lambda a: kernels.softmax_grad(a, a),
    "log_softmax": lambda a: kernels.log_softmax(a),
    "log_softmax_grad": lambda a: kernels.log_softmax_grad(a, a, 0),
    "all_finite": lambda a: kernels.all_finite(a),
    "softmax_loss": lambda a: kernels.softmax_loss(a, np.array([0, 1, 1]))[1],
    "softmax_loss_grad": lambda a: kernels.softmax_loss_grad(a, np.array([0, 1, 1]), a[0, :1]),
    "soft_loss": lambda a: kernels.soft_loss(a, a, 0.1)[1],
    "soft_loss_grad": lambda a: kernels.soft_loss_grad(a, a, a[0, :1], None, 0.1),
    "hinge_loss": lambda a: kernels.hinge_loss(a, np.array([0, 1, 1]), 1.0),
    "hinge_loss_grad": lambda a: kernels.hinge_loss_grad(a, np.array([0, 1, 1]), a[0, :1], 1.0),
    "mse_loss": lambda a: kernels.mse_loss(a, a[::-1]),
    "mse_loss_grad": lambda a: kernels.mse_loss_grad(a, a[::-1], a[0, :1]),
    "mae_loss": lambda a: kernels.mae_loss(a, a[::-1]),
    "mae_loss_grad": lambda a: kernels.mae_loss_grad(a, a[::-1], a[0, :1]),
    "huber_loss": lambda a: kernels.huber_loss(a, a[::-1], 0.5),
    "huber_loss_grad": lambda a: kernels.huber_loss_grad(a, a[::-1], a[0, :1], 0.5),
    "sigmoid_loss": lambda a: kernels.sigmoid_loss(a, a[::-1], np.array([2.0])),
    "sigmoid_loss_grad": lambda a: kernels.sigmoid_loss_grad(a, a[::-1], a[0, :1], np.array([2.0])),
    "quantile_loss": lambda a: kernels.quantile_loss(a, a[::-1], LEVELS),
    "quantile_loss_grad": lambda a: kernels.quantile_loss_grad(a, a[::-1], a[0, :1], LEVELS),
    "poisson_loss": lambda a: kernels.poisson_loss(a, a[::-1]),
    "poisson_loss_grad": lambda a: kernels.poisson_loss_grad(a, a[::-1], a[0, :1]),
    "gaussian_loss": lambda a: kernels.gaussian_loss(a[:, :2], a[:, 2:]),
    "gaussian_loss_grad": lambda a: kernels.gaussian_loss_grad(a[:, :2], a[:, 2:], a[0, :1]),
    "focal": lambda a: kernels.focal(a, 2.0)[0],
    "weighted_mean": lambda a: kernels.weighted_mean(a[0], a[1])[1],
    "shift": lambda a: kernels.shift(a[None], np.array([7, 3, 1]), 1),
    "flip": lambda a: kernels.flip(a[:, None], np.array([7, 3, 1])),
    "cutout": lambda a: kernels.cutout(a[None], np.array([7, 3, 1]), 2),
    "crop": lambda a: kernels.crop(a[None], np.array([7, 3, 1]), 4, 2, 1),
    "affine": lambda a: kernels.affine(a[None], TURNED[None]),
    "check_probabilities": lambda a: kernels.check_probabilities(a, 0.5, 1.0),
    "max_pool": lambda a: kernels.max_pool(a[:, None], *WINDOWS)[0],
    "max_pool_grad": lambda a: kernels.max_pool_grad(a[:, None], places_in(a), a[:, None], *WINDOWS),
    "average_pool": lambda a: kernels.average_pool(a[:, None], *WINDOWS),
    "average_pool_grad": lambda a: kernels.average_pool_grad(a[:, None], a[:, None], *WINDOWS),
    "upsample": lambda a: kernels.upsample(a[:, None], (1, 2)),
    "upsample_grad": lambda a: kernels.upsample_grad(a[:, None], a[:, None], (1, 1)),
    "convolution": lambda a: kernels.convolution(a[:, None], a[:, None], (3,), a[0], **SERIES),
    "transposed_convolution": lambda a: kernels.transposed_convolution(
        a[:, :, None], a[:, None], (3,), a[0, :1], **SERIES
    ),
    "convolution_weight_grad": lambda a: kernels.convolution_weight_grad(
        *(a[:, None], a[:, None], np.full((1, 1, 3), np.nan, np.float32 if a.itemsize == 4 else np.float64)), **SERIES
    ),
}


def to_arrays(result):
    return [np.asarray(array) for array in (result if isinstance(result, tuple) else (result,)) if array is not None]


def cursor_at(*columns, order=None, sums=None):
    """Return a cursor on these columns, and what it points to."""
    addresses = np.array([kernels.address(column) for column in columns], np.intp)
    cursor = np.zeros((), kernels.CURSOR)
    for name, array in (("columns", addresses), ("order", order), ("sums", sums)):
        cursor[name] = 0 if array is None else kernels.address(array)
    return cursor, (addresses, columns, order, sums)


def refuse(values):
    raise ArithmeticError(f"got {values.tolist()}")


BEST, *OTHERS = kernels.available_instruction_sets()
