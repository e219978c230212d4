"""Naive judges: NumPy, float64, no tricks. And the awkward arrays that several tests use. Imports nothing of caffelite.

A judge of an operator takes its inputs, parameters last, and returns y and a function from dy to all gradients.
"""

import numpy as np

# Relative and absolute tolerance against the float64 truth.
TOLERANCE = {np.dtype(np.float32): (1.3e-6, 1e-5), np.dtype(np.float64): (1e-7, 1e-7)}


# ---- operators ----


def matmul_of_matrices(a, b):
    y = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        y += a[:, k : k + 1].astype(np.float64) * b[k : k + 1, :].astype(np.float64)
    return y


def matmul(a, b):
    """A vector counts as a row on the left and as a column on the right."""
    rows, columns = np.atleast_2d(a), b[:, np.newaxis] if b.ndim == 1 else b
    if rows.ndim > 2 or columns.ndim > 2:
        return matmul_of_stacks(a, b, rows, columns)

    def backward(dy):
        dy = dy.reshape(rows.shape[0], columns.shape[1])
        da, db = matmul_of_matrices(dy, columns.T), matmul_of_matrices(rows.T, dy)
        return da.reshape(a.shape), db.reshape(b.shape)

    return matmul_of_matrices(rows, columns).reshape(a.shape[:-1] + b.shape[1:]), backward


def matmul_of_stacks(a, b, rows, columns):
    stack = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    places = list(np.ndindex(stack))

    def backward(dy):
        dy = dy.reshape(*stack, rows.shape[-2], columns.shape[-1])
        da, db = np.zeros(rows.shape), np.zeros(columns.shape)
        for i in places:
            # Where a stack is repeated, the gradients of its repetitions add up.
            m, n = (
                tuple(0 if s == 1 else j for s, j in zip(x.shape[:-2], i[len(i) - x.ndim + 2 :], strict=True))
                for x in (rows, columns)
            )
            da[m] += matmul_of_matrices(dy[i], columns[n].T)
            db[n] += matmul_of_matrices(rows[m].T, dy[i])
        return da.reshape(a.shape), db.reshape(b.shape)

    y = np.zeros((*stack, rows.shape[-2], columns.shape[-1]))
    wide_rows, wide_columns = (np.broadcast_to(x, stack + x.shape[-2:]) for x in (rows, columns))
    for i in places:
        y[i] = matmul_of_matrices(wide_rows[i], wide_columns[i])
    return y.reshape(stack + a.shape[-2:-1] + (b.shape[-1:] if b.ndim > 1 else ())), backward


def linear(x, weight, bias=None):
    y = matmul_of_matrices(x, weight)

    def backward(dy):
        gradients = matmul_of_matrices(dy, weight.T), matmul_of_matrices(x.T, dy)
        return gradients if bias is None else (*gradients, dy.sum(axis=0))

    return y if bias is None else y + bias, backward


def relu(x):
    return np.where(x < 0, 0.0, x), lambda dy: (np.where(x <= 0, 0.0, dy),)


def exp(x):
    y = np.exp(x)
    return y, lambda dy: (dy * y,)


def log(x):
    return np.log(x), lambda dy: (dy / x,)


def tanh(x):
    y = np.tanh(x)
    return y, lambda dy: (dy * (1 - y * y),)


def sigmoid(x):
    y = 1 / (1 + np.exp(-x))
    return y, lambda dy: (dy * y * (1 - y),)


def sqrt(x):
    y = np.sqrt(x)
    return y, lambda dy: (dy / (2 * y),)


def absolute(x):
    return np.abs(x), lambda dy: (dy * np.sign(x),)


def clip(x, low, high):
    inside = (x >= (-np.inf if low is None else low)) & (x <= (np.inf if high is None else high))
    return np.clip(x, low, high), lambda dy: (np.where(inside, dy, 0.0),)


def where(a, b, condition):
    def backward(dy):
        return unbroadcast(np.where(condition, dy, 0.0), a), unbroadcast(np.where(condition, 0.0, dy), b)

    return np.where(condition, a, b), backward


def softmax_along(x, axis=-1):
    """y = softmax(x); the Jacobian of a row is diag(y) − y yᵀ."""
    rows = np.moveaxis(x, axis, -1)
    y = softmax(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)

    def backward(dy):
        dy = np.moveaxis(dy, axis, -1)
        jacobian = y[..., np.newaxis] * np.eye(y.shape[-1]) - y[..., np.newaxis] * y[..., np.newaxis, :]
        return (np.moveaxis((jacobian @ dy[..., np.newaxis])[..., 0], -1, axis),)

    return np.moveaxis(y, -1, axis), backward


def log_softmax_along(x, axis=-1):
    y = softmax_along(x, axis)[0]
    return np.log(y), lambda dy: (dy - y * dy.sum(axis=axis, keepdims=True),)


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
    return x.sum(axis=axis, keepdims=keepdims), lambda dy: (np.broadcast_to(kept(dy, x, axis), x.shape),)


def mean(x, axis=None, keepdims=False):
    y, backward = sum(x, axis, keepdims)
    count = x.size / max(y.size, 1)
    return y / count, lambda dy: (backward(dy)[0] / count,)


def largest(x, axis=None, keepdims=False):
    """The first of the largest elements, in C order of the reduced ones, has the gradient."""
    axes = tuple(range(x.ndim)) if axis is None else np.atleast_1d(np.array(axis, int)) % x.ndim
    axes = sorted(int(a) for a in axes)
    rest = [d for d in range(x.ndim) if d not in axes]
    together = x.transpose([*rest, *axes])
    flat = together.reshape(int(np.prod([x.shape[d] for d in rest])), int(np.prod([x.shape[d] for d in axes])))

    def backward(dy):
        d = np.zeros(flat.shape)
        for i, row in enumerate(flat):
            d[i, row.argmax()] = dy.reshape(-1)[i]
        return (d.reshape(together.shape).transpose(np.argsort([*rest, *axes])),)

    return x.max(axis=axis, keepdims=keepdims), backward


def smallest(x, axis=None, keepdims=False):
    y, backward = largest(-x, axis, keepdims)
    return -y, backward


def kept(dy, x, axis):
    """dy with the summed axes of x kept, of length 1."""
    return dy.reshape(np.empty(x.shape).sum(axis=axis, keepdims=True).shape)


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


def reshape(x, shape):
    return x.reshape(shape), lambda dy: (dy.reshape(x.shape),)


def transpose(x, axes=None):
    inverse = None if axes is None else np.argsort([axis % x.ndim for axis in axes])
    return x.transpose(axes), lambda dy: (dy.transpose(inverse),)


def index(x, index):
    def backward(dy):
        dx = np.zeros(x.shape)
        np.add.at(dx, index, dy)
        return (dx,)

    return np.array(x[index]), backward


def concatenate(*arrays, axis=0):
    ends = np.cumsum([x.shape[axis] for x in arrays])
    return np.concatenate(arrays, axis), lambda dy: tuple(np.split(dy, ends[:-1], axis))


def stack(*arrays, axis=0):
    return np.stack(arrays, axis), lambda dy: tuple(np.moveaxis(dy, axis, 0))


def unbroadcast(gradient, like):
    """The sum over the axes along which broadcasting repeated `like`."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - like.ndim)))
    repeated = tuple(i for i in range(like.ndim) if like.shape[i] == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=repeated, keepdims=True)


# ---- updates ----


def sgd(w, g, v, lr, momentum=0.0, weight_decay=0.0, nesterov=False):
    """The new w and v, element by element."""
    w, g, v = (np.array(a, dtype=np.float64) for a in (w, g, v))
    for i in range(w.size):
        d = g[i] + weight_decay * w[i]
        v[i] = momentum * v[i] + d
        w[i] -= lr * (d + momentum * v[i] if nesterov else v[i])
    return w, v


def adam(w, g, m, v, t, lr, beta1, beta2, eps, weight_decay=0.0, decoupled=False):
    """The new w, m and v in step t, element by element."""
    w, g, m, v = (np.array(a, dtype=np.float64) for a in (w, g, m, v))
    for i in range(w.size):
        d = g[i] if decoupled else g[i] + weight_decay * w[i]
        m[i] = beta1 * m[i] + (1 - beta1) * d
        v[i] = beta2 * v[i] + (1 - beta2) * d**2
        shrunk = w[i] - lr * weight_decay * w[i] if decoupled else w[i]
        w[i] = shrunk - lr * (m[i] / (1 - beta1**t)) / (np.sqrt(v[i] / (1 - beta2**t)) + eps)
    return w, m, v


# ---- comparing ----


def widened(array):
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


def assert_same_bits(actual, expected):
    """The same shape, the same dtype but for its byte order, and the same bits; any NaN equals any other."""
    actual, expected = plain_copy(actual), plain_copy(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)
    if actual.dtype.kind == "f":
        zeros = actual == 0
        np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(expected[zeros]))


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


def strided(array):
    """Every second element of a larger array, along each axis."""
    larger = np.full([2 * n for n in array.shape], 77, array.dtype)
    view = larger[(..., *[slice(None, None, 2)] * array.ndim)]
    view[...] = array
    return view


def negatively_strided(array):
    backwards = (..., *[slice(None, None, -1)] * array.ndim)
    return plain_copy(array[backwards])[backwards]


def zero_strided(array):
    """The first element along every axis, repeated: read-only, with strides of 0."""
    first = plain_copy(array[(slice(0, 1),) * array.ndim])
    return np.broadcast_to(first, array.shape)


def unaligned(array):
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
    strided,
    negatively_strided,
    zero_strided,
    unaligned,
    field_of_records,
    byte_swapped,
]

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
