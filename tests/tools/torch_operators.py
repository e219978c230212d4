"""PyTorch's operators of tensors, by name, as functions of its arguments that compute with caffelite.

If caffelite has no such argument, the function raises an error: `UnsupportedOption`, ValueError, TypeError
or IndexError.
"""

import itertools
import math

import numpy as np

import caffelite as cl


class UnsupportedOption(Exception):
    """caffelite has no such argument."""


def require(**expected):
    """Refuse arguments, by name, that have another value than these."""
    for name, (given, value) in expected.items():
        if given is not value and given != value:
            raise UnsupportedOption(f"{name}={given}")


# ---- adaptors: PyTorch's arguments to caffelite's -------------------------------------------------------------------


def axes(x, dim):
    """PyTorch's dim as an axis. It takes an empty list for all axes, and gives a number one axis."""
    none = dim is None or x.ndim == 0 or (isinstance(dim, list | tuple) and not dim)
    return None if none else _to_tuple(dim)


def _to_tuple(dim):
    return tuple(dim) if isinstance(dim, list | tuple) else dim


def reduction(function):
    def apply(x, dim=None, keepdim=False, *, dtype=None):
        require(dtype=(dtype, None))
        return function(x, axes(x, dim), keepdim)

    return apply


def along(function):
    """Return a function along an axis; a number is taken for one element."""

    def apply(x, dim, dtype=None):
        require(dtype=(dtype, None))
        return function(x, dim) if x.ndim else function(x.reshape(1), 0).reshape(())

    return apply


def extreme(function, place, binary):
    """max and min: of two Tensors, of all elements, or along an axis with the places."""

    def apply(x, dim=None, keepdim=False, *, other=None):
        other = dim if isinstance(dim, cl.Tensor) else other
        if other is not None:
            return binary(x, other)
        if dim is None:
            return function(x)
        return function(x, axes(x, dim), keepdim), place(x, axes(x, dim), keepdim)

    return apply


def scatter(function, with_mean=False):
    def apply(x, dim=None, unbiased=True, keepdim=False, *, correction=None):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        y = function(x, axes(x, dim), keepdim, float(unbiased) if correction is None else correction)
        return (y, cl.mean(x, axes(x, dim), keepdim)) if with_mean else y

    return apply


def clamp(x, min=None, max=None):
    if isinstance(min, cl.Tensor | np.ndarray) or isinstance(max, cl.Tensor | np.ndarray):
        x = x if min is None else cl.maximum(x, min)
        return x if max is None else cl.minimum(x, max)
    return x.clip(min, max)


def add(x, other, alpha=1):
    return x + other * alpha if alpha != 1 else x + other


def subtract(x, other, alpha=1):
    return x - other * alpha if alpha != 1 else x - other


def divide(x, other, rounding_mode=None):
    require(rounding_mode=(rounding_mode, None))
    return x / other


def plus_product(product):
    """β x + α times a product of the others."""
    return lambda x, a, b, beta=1, alpha=1: x * beta + product(a, b) * alpha


def as_shape(shape):
    return shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape


def flatten(x, start_dim=0, end_dim=-1):
    if x.ndim == 0:
        return x.reshape(1)
    first, last = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape(*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])


def swap(x, dim0, dim1):
    order = list(range(x.ndim))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return x.transpose(*order)


def moveaxis(x, source, destination):
    return x.transpose(*np.moveaxis(np.empty(range(x.ndim)), source, destination).shape) if x.ndim else x


def select(x, dim, index):
    return x[(*[slice(None)] * (dim % x.ndim), index)]


def narrow(x, dim, start, length):
    start = int(start)
    start = start + x.shape[dim] if start < 0 else start
    return select(x, dim, slice(start, start + length))


def expand(x, *shape):
    shape = as_shape(shape)
    old = (None,) * (len(shape) - x.ndim) + x.shape
    shape = [m if n == -1 else n for n, m in zip(shape, old, strict=True)]
    return x + np.zeros(shape)


def chunk(x, chunks, dim=0):
    return pieces(x, -(-x.shape[dim] // chunks), dim)


def pieces(x, size, dim=0):
    """Parts of one size, or of several."""
    n = x.shape[dim]
    if isinstance(size, int):
        size = [size] * (n // size) + ([n % size] if n % size else []) if n else [0]
    ends = np.cumsum([0, *size]).tolist()
    return [select(x, dim, slice(a, b)) for a, b in itertools.pairwise(ends)]


def at_least(count):
    """atleast_1d, atleast_2d, atleast_3d."""
    shapes = {1: lambda s: s or (1,), 2: lambda s: (1,) * (2 - len(s)) + s}
    shapes[3] = lambda s: {0: (1, 1, 1), 1: (1, *s, 1), 2: (*s, 1)}.get(len(s), s)

    def apply(*xs):
        ys = [x.reshape(*shapes[count](x.shape)) for x in (xs[0] if isinstance(xs[0], list | tuple) else xs)]
        return ys if len(ys) > 1 or isinstance(xs[0], list | tuple) else ys[0]

    return apply


def side_by_side(count, axis):
    """hstack, vstack, dstack."""

    def apply(xs):
        xs = [at_least(count)(x) for x in xs]
        return cl.concatenate(xs, 0 if axis == 1 and xs[0].ndim == 1 else axis)

    return apply


def concatenate(xs, dim=0):
    shapes = [x.shape for x in xs]
    return cl.concatenate([x for x in xs if x.shape != (0,)] if len({*map(len, shapes)}) > 1 else list(xs), dim)


def column_stack(xs):
    return cl.concatenate([x.reshape(-1, 1) if x.ndim < 2 else x for x in xs], 1)


def take(x, index, dim=None):
    return cl.take_along_axis(x, index, dim) if dim is not None else x.reshape(-1)[index.reshape(-1)]


def gather(x, dim, index, sparse_grad=False):
    """Return the elements at an index, which may be shorter than x."""
    if x.ndim == 0 or index.ndim == 0:
        raise UnsupportedOption("no axes")
    places = list(np.indices(index.shape, sparse=True))
    places[dim] = index
    return x[tuple(places)]


def repeat(x, repeats, dim=None, output_size=None):
    counts = repeats.tolist() if isinstance(repeats, np.ndarray) else repeats
    return cl.repeat(x, counts, dim)


def tile(x, *counts):
    counts = as_shape(counts)
    counts = (1,) * (x.ndim - len(counts)) + tuple(counts)
    x = x.reshape(*(1,) * (len(counts) - x.ndim), *x.shape)
    for axis, count in enumerate(counts):
        x = cl.concatenate([x] * count, axis) if count else select(x, axis, slice(0, 0))
    return x


def pad_array(x, pad, mode="constant", value=None):
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    for axis, (before, after) in enumerate(widths):  # negative ones cut off
        x = select(x, axis, slice(max(-before, 0), x.shape[axis] - max(-after, 0)))
    widths = [(max(before, 0), max(after, 0)) for before, after in widths]
    mode = {"replicate": "edge"}.get(mode, mode)
    return cl.pad(x, widths, mode=mode, **({"constant_values": value or 0.0} if mode == "constant" else {}))


def squeeze(x, dim=None):
    if dim is None:
        return cl.squeeze(x)
    dims = {d % max(x.ndim, 1) for d in (dim if isinstance(dim, list | tuple) else (dim,))}
    return x.reshape(*[n for i, n in enumerate(x.shape) if not (i in dims and n == 1)])


def einsum(operands, letters):
    if len(operands) != 2:
        raise UnsupportedOption("other than two operands")
    return cl.einsum(letters, *operands)


def vector_norm(x, ord=2, dim=None, keepdim=False, dtype=None):
    require(dtype=(dtype, None))
    a, axis = x.abs(), axes(x, dim)
    if ord in (np.inf, -np.inf):
        return (cl.max if ord > 0 else cl.min)(a, axis, keepdim)
    if ord == 0:
        return cl.Tensor(np.count_nonzero(x.data, axis=axis, keepdims=keepdim), dtype=x.dtype)
    return (x * x).sum(axis, keepdim).sqrt() if ord == 2 else (a**ord).sum(axis, keepdim) ** (1 / ord)


OPERATORS = {
    # arithmetic
    "add": add,
    "sub": subtract,
    "mul": lambda x, y: x * y,
    "div": divide,
    "true_divide": divide,
    "pow": lambda x, y: x**y,
    "__radd__": lambda x, y: y + x,
    "__rsub__": lambda x, y: y - x,
    "__rmul__": lambda x, y: y * x,
    "__rdiv__": lambda x, y: y / x,
    "__rpow__": lambda x, y: y**x,
    "rsub": lambda x, y, alpha=1: y - x * alpha,
    "neg": lambda x: -x,
    "positive": lambda x: x * 1,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / x.sqrt(),
    "lerp": lambda x, y, weight: x + weight * (y - x),
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi),
    # elementary
    "abs": cl.abs,
    "exp": cl.exp,
    "exp2": lambda x: 2.0**x,
    "log": cl.log,
    "log2": lambda x: x.log() / math.log(2),
    "log10": lambda x: x.log() / math.log(10),
    "sqrt": cl.sqrt,
    "sin": cl.sin,
    "cos": cl.cos,
    "tan": lambda x: x.sin() / x.cos(),
    "tanh": cl.tanh,
    "sigmoid": cl.sigmoid,
    "logaddexp": lambda x, y: cl.maximum(x, y) + cl.softplus(-(x - y).abs()),
    # choices
    "maximum": cl.maximum,
    "minimum": cl.minimum,
    "clamp": clamp,
    "clamp_min": lambda x, low: clamp(x, low),
    "clamp_max": lambda x, high: clamp(x, None, high),
    "where": lambda x, condition, y: cl.where(condition, x, y),
    "masked_fill": lambda x, mask, value: cl.where(mask, value, x),
    # reductions
    "sum": reduction(cl.sum),
    "mean": reduction(cl.mean),
    "prod": reduction(cl.prod),
    "amax": reduction(cl.max),
    "amin": reduction(cl.min),
    "logsumexp": reduction(cl.logsumexp),
    "max": extreme(cl.max, cl.argmax, cl.maximum),
    "min": extreme(cl.min, cl.argmin, cl.minimum),
    "argmax": reduction(cl.argmax),
    "argmin": reduction(cl.argmin),
    "cumsum": along(cl.cumsum),
    "var": scatter(cl.var),
    "std": scatter(cl.std),
    "var_mean": scatter(cl.var, with_mean=True),
    "std_mean": scatter(cl.std, with_mean=True),
    "linalg.vector_norm": vector_norm,
    # products
    "matmul": lambda a, b: a @ b,
    "__rmatmul__": lambda a, b: b @ a,
    "mm": lambda a, b: a @ b,
    "bmm": lambda a, b: a @ b,
    "mv": lambda a, b: a @ b,
    "dot": lambda a, b: a @ b,
    "vdot": lambda a, b: a @ b,
    "inner": lambda a, b: a @ (b.T if b.ndim < 3 else swap(b, -1, -2)) if a.ndim and b.ndim else a * b,
    "outer": lambda a, b: a[:, None] * b,
    "addmm": plus_product(lambda a, b: a @ b),
    "addmv": plus_product(lambda a, b: a @ b),
    "addr": plus_product(lambda a, b: a[:, None] * b),
    "baddbmm": plus_product(lambda a, b: a @ b),
    "addbmm": plus_product(lambda a, b: (a @ b).sum(0)),
    "linalg.vecdot": lambda a, b, dim=-1: (a * b).sum(dim),
    "einsum": einsum,
    # shapes
    "reshape": lambda x, *shape: x.reshape(*as_shape(shape)),
    "view": lambda x, *shape: x.reshape(*as_shape(shape)),
    "reshape_as": lambda x, other: x.reshape(*other.shape),
    "view_as": lambda x, other: x.reshape(*other.shape),
    "unflatten": lambda x, dim, sizes: x.reshape(*x.shape[: dim % x.ndim], *sizes, *x.shape[dim % x.ndim + 1 :]),
    "flatten": flatten,
    "ravel": lambda x: x.reshape(-1),
    "transpose": swap,
    "permute": lambda x, *order: x.transpose(*as_shape(order)),
    "movedim": moveaxis,
    "t": lambda x: x.T,
    "T": lambda x: x.T,
    "mT": lambda x: swap(x, -1, -2),
    "clone": lambda x, memory_format=None: x * 1,
    "contiguous": lambda x, memory_format=None: x * 1,
    "expand": expand,
    "expand_as": lambda x, other: expand(x, *other.shape),
    "broadcast_to": expand,
    "squeeze": squeeze,
    "unsqueeze": lambda x, dim: cl.expand_dims(x, dim),
    "flip": lambda x, dims: cl.flip(x, tuple(dims)),
    "fliplr": lambda x: cl.flip(x, 1),
    "flipud": lambda x: cl.flip(x, 0),
    "roll": lambda x, shifts, dims=None: cl.roll(x, _to_tuple(shifts), axes(x, dims)),
    "repeat_interleave": repeat,
    "repeat": tile,
    "tile": tile,
    "constant_pad_nd": lambda x, pad, value=0: pad_array(x, pad, "constant", value),
    "nn.functional.pad": pad_array,
    "take_along_dim": take,
    "atleast_1d": at_least(1),
    "atleast_2d": at_least(2),
    "atleast_3d": at_least(3),
    # parts
    "__getitem__": lambda x, index: x[index],
    "select": select,
    "narrow": narrow,
    "index_select": lambda x, dim, index: select(x, dim, np.atleast_1d(index)) if x.ndim else x * 1,
    "gather": gather,
    "unbind": lambda x, dim=0: [select(x, dim, i) for i in range(x.shape[dim])],
    "chunk": chunk,
    "split": pieces,
    "split_with_sizes": pieces,
    "cat": lambda xs, dim=0: concatenate(xs, dim),
    "stack": lambda xs, dim=0: cl.stack(list(xs), dim),
    "hstack": lambda xs: side_by_side(1, 1)(xs),
    "vstack": lambda xs: side_by_side(2, 0)(xs),
    "dstack": lambda xs: side_by_side(3, 2)(xs),
    "column_stack": column_stack,
    "nn.functional.one_hot": lambda x, num_classes=-1: cl.one_hot(x, x.max() + 1 if num_classes == -1 else num_classes),
}

#: The operator of caffelite that an operator needs. Without it, the tests leave the operator out.
NEEDS = {
    "flip": "flip",
    "fliplr": "flip",
    "flipud": "flip",
    "constant_pad_nd": "pad",
    "nn.functional.pad": "pad",
    "einsum": "einsum",
    "roll": "roll",
    "squeeze": "squeeze",
    "unsqueeze": "expand_dims",
    "repeat_interleave": "repeat",
    "take_along_dim": "take_along_axis",
    "nn.functional.one_hot": "one_hot",
}
