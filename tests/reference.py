"""What several tests use: naive judges (NumPy, float64, no tricks), comparisons, awkward arrays; nothing of caffelite.

A judge of an operator takes its inputs, parameters last, and returns y and a function from dy to all gradients. If only
one Function needs it, it stands with its case in `cases/`.
"""

import contextlib
import math

import numpy as np

# Relative and absolute tolerance against the float64 truth.
TOLERANCE = {np.dtype(np.float32): (1.3e-6, 1e-5), np.dtype(np.float64): (1e-7, 1e-7)}


# ---- operators ----


def matmul_of_matrices(a, b):
    y = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        y += a[:, k : k + 1].astype(np.float64) * b[k : k + 1, :].astype(np.float64)
    return y


def linear(x, weight, bias=None):
    y = matmul_of_matrices(x, weight)

    def backward(dy):
        gradients = matmul_of_matrices(dy, weight.T), matmul_of_matrices(x.T, dy)
        return gradients if bias is None else (*gradients, dy.sum(axis=0))

    return y if bias is None else y + bias, backward


def normal(x):
    """Return the normal distribution, Φ(x)."""
    return np.reshape([math.erfc(-value / math.sqrt(2)) / 2 for value in x.ravel()], x.shape)


def softmax(scores):
    p = np.empty(scores.shape)
    for i, row in enumerate(scores.astype(np.float64)):
        e = np.exp(row - row.max())
        p[i] = e / e.sum()
    return p


def softmax_loss(scores, labels):
    n = len(scores)
    rows = np.empty(n)
    for i, row in enumerate(scores.astype(np.float64)):
        shifted = row - row.max()
        rows[i] = np.log(np.exp(shifted).sum()) - shifted[labels[i]]

    def backward(dy=1.0):
        d = softmax(scores)
        d[np.arange(n), labels] -= 1
        return (dy * d / n,)

    return rows.mean(), backward


def sum(x, axis=None, keepdims=False):
    return x.sum(axis=axis, keepdims=keepdims), lambda dy: (np.broadcast_to(keep_axes(dy, x, axis), x.shape),)


def keep_axes(dy, x, axis):
    """dy with the summed axes of x kept, of length 1."""
    return dy.reshape(np.zeros(x.shape).sum(axis=axis, keepdims=True).shape)


def unbroadcast(gradient, like):
    """Return the sum over the axes along which broadcasting repeated `like`."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - like.ndim)))
    repeated = tuple(i for i in range(like.ndim) if like.shape[i] == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=repeated, keepdims=True)


# ---- updates ----


def sgd(w, g, v, lr, momentum=0.0, weight_decay=0.0, nesterov=False):
    """Return the new w and v."""
    w, g, v = (np.asarray(a, dtype=np.float64) for a in (w, g, v))
    d = g + weight_decay * w
    v = momentum * v + d
    return w - lr * (d + momentum * v if nesterov else v), v


def adam(w, g, m, v, t, lr, beta1, beta2, eps, weight_decay=0.0, decoupled=False):
    """Return the new w, m and v in step t."""
    w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
    d = g if decoupled else g + weight_decay * w
    m = beta1 * m + (1 - beta1) * d
    v = beta2 * v + (1 - beta2) * d**2
    shrunk = w - lr * weight_decay * w if decoupled else w
    return shrunk - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps), m, v


# ---- comparing ----


def to_float64(array):
    """Floats as float64, anything else as it is."""
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def assert_close(actual, truth, dtype, scale=0.0):
    """`actual` has this dtype and the truth's shape and values.

    A long sum may be off by some units in the last place of `scale`, the sum of its terms' absolute values.
    """
    actual, truth = np.asarray(actual), np.asarray(truth)
    assert actual.dtype == dtype
    assert actual.shape == truth.shape
    rtol, atol = TOLERANCE[np.dtype(dtype)]
    allowed = atol + rtol * np.abs(truth) + 4 * np.finfo(dtype).eps * np.asarray(scale)
    excess = np.abs(actual - truth) - allowed
    assert actual.size == 0 or excess.max() <= 0, f"off by {np.abs(actual - truth).max()}"


@contextlib.contextmanager
def name_failure(what):
    """Name in the message of a failure which of several things failed. A loop is faster than a test for each."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{what}: {error}") from error


def assert_same_bits(actual, expected):
    """Assert the same shape, the same dtype but for its byte order, and the same bits; any NaN equals any other."""
    actual, expected = plain_copy(actual), plain_copy(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)
    if actual.dtype.kind == "f":
        zeros = actual == 0
        np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(expected[zeros]))


def assert_same_values(actual, truth):
    """NaN and infinities where the truth, rounded to the dtype, has them; other values close."""
    with np.errstate(all="ignore"):
        truth = np.asarray(truth).astype(actual.dtype)
    ordinary = np.isfinite(truth) & np.isfinite(actual)
    np.testing.assert_array_equal(np.where(ordinary, 0, actual), np.where(ordinary, 0, truth))
    np.testing.assert_allclose(actual[ordinary], truth[ordinary], rtol=2e-6)


# ---- awkward numbers ----

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, -2.0, 3.0, 0.5]


def special_values(dtype):
    """NaN, infinities, zeros, the largest finite numbers, the smallest normal and a denormal one."""
    info = np.finfo(dtype)
    return np.array([*SPECIAL, info.max, -info.max, info.tiny, info.smallest_subnormal], dtype)


# ---- awkward arrays ----


def plain_copy(array):
    """C-contiguous, aligned, writeable, in native byte order."""
    array = np.asarray(array)
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def read_only(array):
    copy = plain_copy(array)
    copy.flags.writeable = False
    return copy


def fortran_ordered(array):
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="F")


def images_last(array):
    """Return the first axis innermost in memory, the others in their order."""
    return with_axis_innermost(array, 0)


def channels_last(array):
    """Return the second axis innermost in memory, the others in their order."""
    return with_axis_innermost(array, 1)


def with_axis_innermost(array, axis):
    if array.ndim <= axis:
        return plain_copy(array)
    return np.moveaxis(plain_copy(np.moveaxis(array, axis, -1)), -1, axis)


def strided_view(array):
    """Every second element of a larger array, along each axis."""
    larger = np.full([2 * n for n in array.shape], 77, array.dtype)
    view = larger[(..., *[slice(None, None, 2)] * array.ndim)]
    view[...] = array
    return view


def negatively_strided(array):
    backwards = (..., *[slice(None, None, -1)] * array.ndim)
    return plain_copy(array[backwards])[backwards]


def zero_strided(array):
    """Return the first element along every axis, repeated: read-only, with strides of 0."""
    first = plain_copy(array[(slice(0, 1),) * array.ndim])
    return np.broadcast_to(first, array.shape)


def unaligned_view(array):
    view = np.ndarray(array.shape, array.dtype, buffer=bytearray(array.nbytes + 1), offset=1)
    view[...] = array
    return view


def field_of_records(array):
    """Strides that are no whole number of elements."""
    records = np.zeros(array.shape, [("value", array.dtype), ("flag", np.int8)])
    records["value"] = array
    return records["value"]


def byte_swapped(array):
    return array.astype(array.dtype.newbyteorder())


LAYOUTS = [
    read_only,
    fortran_ordered,
    images_last,
    channels_last,
    strided_view,
    negatively_strided,
    zero_strided,
    unaligned_view,
    field_of_records,
    byte_swapped,
]

# A type of numbers with more than 64 bits. On Windows, and on Macs with ARM, longdouble is float64.
WIDE = np.longdouble if np.dtype(np.longdouble).itemsize > 8 else np.complex128

# Dtypes that are neither float32 nor float64 in native byte order; arrays of them come from `odd_array`.
ODD_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", ">f4", ">f8", "longdouble", "complex64", "complex128"),
    *("object", "S3", "U3", "datetime64[s]", "timedelta64[s]", "V4", "i4,f4"),
]


def odd_array(dtype, shape):
    """Ones, or what comes closest to them."""
    dtype = np.dtype(dtype)
    if dtype.kind == "V":
        return np.zeros(shape, dtype)
    return np.ones(shape, np.int64).astype(dtype)
