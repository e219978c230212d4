"""What the operators of ONNX compute, written with Tensor's operators.

Each is a function of a `Node`, for its attributes, and of its inputs: Tensors, plain arrays (constants, shapes, and the
integers and masks that the model is given), or None where one is left out. Of plain arrays alone NumPy computes the
same. What is true or false, or an integer that depends on data, is a number of the model's dtype, 1 and 0, if it is no
plain array; it has no gradient.

Versions of an operator differ in where they have their arguments, as attributes or as inputs: `Node.argument`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper

from caffelite import _kernels as kernels
from caffelite import functions as f
from caffelite.core.arrays import normalized_axes
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor

Rule = Callable[..., Any]
MOST = 2**24  # numbers in an array that a file makes of a few bytes
GROWTH = 256  # times as many numbers may be made of data


class Refused(ValueError):
    """What is wrong with a file, or what it has that caffelite has not. Other errors are caffelite's mistakes."""


class Kept:
    """Arrays that NumPy makes of shapes. They are kept, the last hundred, since recordings take them for constants."""

    def __init__(self) -> None:
        self._arrays: dict[tuple, np.ndarray] = {}

    def __call__(self, array: np.ndarray) -> np.ndarray:
        found = self._arrays.setdefault((array.dtype.str, array.shape, array.tobytes()), array)
        while len(self._arrays) > 100:
            self._arrays.pop(next(iter(self._arrays)), None)
        return found


@dataclass(eq=False)
class Node:
    """A node of a graph."""

    operator: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    version: int  # of the operators
    dtype: np.dtype  # of the model
    layer: str | None = None  # the Function that it is, by name
    kept: Kept = field(default_factory=Kept)

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.attributes.get(attribute, default)

    def argument(self, name: str, value: Any, default: Any = None) -> Any:
        """An argument that is an attribute, or an input with this value, as a list or a number."""
        if value is None:
            return self.get(name, default)
        return self.constant(value, name).tolist()

    def constant(self, value: Any, what: str) -> np.ndarray:
        """The value as a plain array; ValueError if it is none."""
        if isinstance(value, Tensor | kernels.Recorded):
            raise self.refuse(f"gets a {what} that depends on data")
        return np.asarray(value)

    def refuse(self, why: str) -> Refused:
        return Refused(f"node {self.name!r} ({self.operator}) {why}")

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Here a Function or NumPy gets numbers of the file: what they raise becomes a refusal of this node."""
        try:
            yield
        except Refused:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
            raise self.refuse(f"can't be computed: {str(error) or type(error).__name__}") from error


def is_plain(*values: Any) -> bool:
    """Whether these are arrays that NumPy computes with at once."""
    return not any(isinstance(x, Tensor | kernels.Recorded) for x in values)


class Computed(Function):
    """What NumPy computes, as numbers of a dtype. It changes in steps, or not at all: the gradient is 0.

    `operator` is ONNX's that computes the same; of Max and Min, whether the first is that, or NaN. Cast is to a type.
    """

    def __init__(self, operator: str, compute: Callable[..., Any], dtype: np.dtype, to: int | None = None) -> None:
        self.operator, self.compute, self.dtype, self.to = operator, compute, dtype, to

    def forward(self, *inputs: Any) -> np.ndarray:
        self.inputs = inputs
        return np.asarray(self.compute(*inputs)).astype(self.dtype)

    def backward(self, dy: np.ndarray) -> tuple:
        return tuple(
            [np.zeros_like(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else None for x in self.inputs]
        )

    def __repr__(self) -> str:
        return self.operator


class Elementwise(Function):
    """An elementary function that caffelite has no kernel for, in NumPy, and its derivative; ONNX's `operator`."""

    def __init__(
        self, operator: str, compute: Callable[[np.ndarray], np.ndarray], derivative: Callable[[np.ndarray], Any]
    ) -> None:
        self.operator, self.compute, self.derivative = operator, compute, derivative

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return self.compute(x).astype(x.dtype)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return (dy * self.derivative(self.x)).astype(dy.dtype)

    def __repr__(self) -> str:
        return self.operator


def smooth(compute: Any, derivative: Any) -> Rule:
    """The rule for an elementary function."""
    return lambda node, x: compute(x) if is_plain(x) else Elementwise(node.operator, compute, derivative)(x)


erf = np.vectorize(math.erf, otypes=[np.float64])


def in_steps(compute: Callable[..., Any], operator: str = "") -> Rule:
    """The rule for what changes in steps: comparisons, logic, rounding; of this operator, or of the node's."""

    def rule(node: Node, *values: Any) -> Any:
        if is_plain(*values):
            return compute(*values)
        return Computed(operator or node.operator, compute, node.dtype)(*values)

    return rule


def either(plain: Callable[..., Any], of_tensors: Callable[..., Any]) -> Rule:
    """The rule for what NumPy computes of plain arrays, and caffelite of Tensors."""

    def rule(node: Node, *values: Any) -> Any:
        return plain(*values) if is_plain(*values) else of_tensors(*values)

    return rule


def bounded(node: Node, shape: Sequence[int], x: Any = None) -> list[int]:
    """The shape; ValueError if it is larger than what a file should make of x, or out of nothing.

    An axis of length 0 counts as one of length 1, because the others cost work all the same.
    """
    most = MOST if is_plain(x) else max(MOST, GROWTH * math.prod(x.shape))
    if any(n < 0 for n in shape) or math.prod([max(1, n) for n in shape]) > most:
        raise node.refuse(f"makes an array of shape {tuple(shape)}")
    return [int(n) for n in shape]


def float_of(x: Any) -> Any:
    """x as a Tensor, unless it is one."""
    return as_tensor(x)


# ---- arithmetic -----------------------------------------------------------------------------------------------------


def divide(node: Node, a: Any, b: Any) -> Any:
    if is_plain(a, b) and np.asarray(a).dtype.kind in "iu":
        if not np.all(b):
            raise node.refuse("divides integers by 0")
        return np.sign(a) * np.sign(b) * (abs(a) // abs(b))  # towards 0
    return a / b


def power(node: Node, a: Any, b: Any) -> Any:
    return np.power(a, b).astype(a.dtype) if is_plain(a, b) else as_tensor(a) ** b


def largest(node: Node, *values: Any) -> Any:
    return _chosen(node, np.greater_equal, np.maximum, values)


def smallest(node: Node, *values: Any) -> Any:
    return _chosen(node, np.less_equal, np.minimum, values)


def _chosen(node: Node, first_is_better: Any, plain: Any, values: Sequence[Any]) -> Any:
    """The first of two, where it is the better one or NaN, else the second; and so on."""
    found, *others = values
    for x in others:
        if is_plain(found, x):
            found = plain(found, x)
        else:
            better = in_steps(lambda a, b: first_is_better(a, b) | np.isnan(a))(node, found, x)
            found = f.where(better, found, x)
    return found


def total(node: Node, *values: Any) -> Any:
    found = values[0]
    for x in values[1:]:
        found = found + x
    return found


def gemm(node: Node, a: Any, b: Any, c: Any = None) -> Any:
    a, b = (float_of(x).T if node.get(flag, 0) else float_of(x) for x, flag in ((a, "transA"), (b, "transB")))
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    y = a @ b if alpha == 1 else (a @ b) * alpha
    return y if c is None else y + (c if beta == 1 else c * beta)


def einsum(node: Node, *values: Any) -> Any:
    """Sums of products, by letters for axes: of one array, or of two as a product of matrices."""
    *terms, result = letters_of(node)
    if is_plain(*values):
        return np.einsum(node.get("equation"), *values)
    if any(len(term) != x.ndim for term, x in zip(terms, values, strict=True)):
        raise node.refuse(f"sums {node.get('equation')!r} of shapes {', '.join(str(x.shape) for x in values)}")
    lengths = {
        letter: n for term, x in zip(terms, values, strict=True) for letter, n in zip(term, x.shape, strict=True)
    }
    others = [*terms[1:], terms[0]] if len(terms) > 1 else [""]
    summed = [_summed(float_of(x), *letters, result) for x, *letters in zip(values, terms, others, strict=True)]
    if len(summed) == 1:
        return _arranged(*summed[0], result)
    (x, p), (y, q) = summed
    both, rows, columns = ([n for n in p if n in q], [n for n in p if n not in q], [n for n in q if n not in p])
    batch, inner = [n for n in both if n in result], [n for n in both if n not in result]

    def matrices(x: Any, letters: Any, left: list[str], right: list[str]) -> Any:
        groups = [[n] for n in batch] + [left, right]
        shape = [math.prod(lengths[n] for n in group) for group in groups]
        return _arranged(x, letters, [*batch, *left, *right]).reshape(shape)

    y = matrices(x, p, rows, inner) @ matrices(y, q, inner, columns)
    made = [*batch, *rows, *columns]
    return _arranged(y.reshape([lengths[n] for n in made]), made, result)


def letters_of(node: Node) -> list[str]:
    """The letters of the axes of each input of an Einsum, and at last those of its output."""
    equation = node.get("equation").replace(" ", "")
    given, arrow, result = equation.partition("->")
    terms = given.split(",")
    if not arrow:
        result = "".join(sorted(letter for letter in set(given) - {","} if given.count(letter) == 1))
    are_letters = all(f"a{x}".isalpha() and len(set(x)) == len(x) for x in (*terms, result)) and set(result) <= set(
        given
    )
    if not are_letters or len(terms) != len(node.inputs) or len(terms) > 2:
        raise node.refuse(f"has the equation {equation!r}, which caffelite has not")
    return [*terms, result]


def _summed(x: Tensor, letters: str, *kept: str) -> tuple[Tensor, str]:
    """Summed over the axes whose letters are not kept, with the letters that are left."""
    left = "".join([letter for letter in letters if letter in "".join(kept)])
    axes = tuple([i for i, letter in enumerate(letters) if letter not in left])
    return (x.sum(axes) if axes else x), left


def _arranged(x: Tensor, letters: Sequence[str], order: Sequence[str]) -> Tensor:
    """With the axes in this order."""
    axes = [letters.index(letter) for letter in order]
    return x if axes == sorted(axes) else x.transpose(axes)


def softmax(kind: Any) -> Rule:
    def rule(node: Node, x: Any) -> Any:
        axis = node.get("axis", -1 if node.version >= 13 else 1)
        x = float_of(x)
        if node.version >= 13 or axis % x.ndim == x.ndim - 1:
            return kind(axis)(x)
        flat = x.reshape(math.prod(x.shape[: axis % x.ndim]), -1)  # as these versions have it
        return kind(-1)(flat).reshape(x.shape)

    return rule


def clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    low, high = node.argument("min", low), node.argument("max", high)
    return f.clip(x, low, high) if isinstance(x, Tensor) else np.clip(x, low, high).astype(x.dtype)


def cast(node: Node, x: Any, dtype: Any = None) -> Any:
    if dtype is None:
        try:
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(node.get("to")))
        except (KeyError, TypeError):
            raise node.refuse(f"casts to a type {node.get('to')} that there is not") from None
    if isinstance(x, Tensor):
        if dtype.kind == "f":
            if dtype != x.dtype:
                raise node.refuse(f"casts {x.dtype} to {dtype}: caffelite's models have one of them")
            return x
        return Computed(
            "Cast", np.trunc if dtype.kind in "iu" else np.bool_, x.dtype, helper.np_dtype_to_tensor_dtype(dtype)
        )(x)
    if isinstance(x, kernels.Recorded):
        if dtype == x.dtype or dtype.kind in "iu":
            return x
        return Computed("Cast", lambda a: a.astype(dtype), node.dtype, helper.np_dtype_to_tensor_dtype(dtype))(x)
    return x.astype(dtype)


# ---- reductions and norms -------------------------------------------------------------------------------------------


def reduction(of_tensor: Callable[..., Any], plain: Any = None) -> Rule:
    """The rule for a function (x, axis, keepdims)."""

    def rule(node: Node, x: Any, axes: Any = None) -> Any:
        axes = node.argument("axes", axes)
        keepdims = bool(node.get("keepdims", 1))
        if not axes and node.get("noop_with_empty_axes", 0):
            axes, keepdims = [], True
        elif not axes:
            axes = range(x.ndim)
        axis = normalized_axes(tuple(axes), x.ndim)
        if is_plain(x) and plain is not None:
            return plain(x, axis=axis, keepdims=keepdims)
        return of_tensor(float_of(x), axis, keepdims)

    return rule


def log_sum_exp(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    most = x.detach().max(axis, True).clip(np.finfo(x.dtype).min, np.finfo(x.dtype).max)
    y = (x - most).exp().sum(axis, True).log() + most
    return y if keepdims else y.reshape([n for i, n in enumerate(y.shape) if i not in axis])


def normalized(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x with mean 0 and variance 1 over axes."""
    x = x - x.mean(axes, True)
    return x / ((x * x).mean(axes, True) + eps).sqrt()


def of_channels(p: Any, x: Tensor) -> Any:
    """A number a channel, as it is broadcast to x."""
    return p.reshape(-1, *[1] * (x.ndim - 2))


def instance_norm(node: Node, x: Any, scale: Any, shift: Any) -> Any:
    x = float_of(x)
    y = normalized(x, tuple(range(2, x.ndim)), node.get("epsilon", 1e-5))
    return y * of_channels(scale, x) + of_channels(shift, x)


def group_norm(node: Node, x: Any, scale: Any, shift: Any) -> Any:
    x, groups = float_of(x), node.get("num_groups")
    n, channels = x.shape[:2]
    grouped = x.reshape(n, groups, channels // groups, *x.shape[2:])
    y = normalized(grouped, tuple(range(2, grouped.ndim)), node.get("epsilon", 1e-5))
    if len(scale) == channels:
        return y.reshape(x.shape) * of_channels(scale, x) + of_channels(shift, x)
    return (y * of_channels(scale, y) + of_channels(shift, y)).reshape(x.shape)


def layer_norm(node: Node, x: Any, scale: Any, shift: Any = None) -> Any:
    """With the means and the inverse deviations, if they are asked for."""
    x = float_of(x)
    axes = tuple(range(node.get("axis", -1) % x.ndim, x.ndim))
    mean = x.mean(axes, True) if node.operator == "LayerNormalization" else 0.0
    inverse = 1 / (((x - mean) * (x - mean)).mean(axes, True) + node.get("epsilon", 1e-5)).sqrt()
    y = (x - mean) * inverse * scale
    y = y if shift is None else y + shift
    return y if len(node.outputs) == 1 else (y, mean, inverse)


def mean_variance_norm(node: Node, x: Any) -> Any:
    x = float_of(x)
    return normalized(x, tuple([i % x.ndim for i in node.get("axes", [0, 2, 3])]), 1e-9)


def scaled(node: Node, x: Any) -> Any:
    x = float_of(x)
    offset, scale = (np.array(node.get(name, default), x.dtype) for name, default in (("offset", 0.0), ("scale", 1.0)))
    return (x - node.kept(offset)) * node.kept(scale)


def lp_norm(node: Node, x: Any) -> Any:
    x, axis = float_of(x), node.get("axis", -1)
    norm = x.abs().sum(axis, True) if node.get("p", 2) == 1 else (x * x).sum(axis, True).sqrt()
    return x / f.where(norm, norm, 1.0)


# ---- shapes ---------------------------------------------------------------------------------------------------------


def shape(node: Node, x: Any) -> np.ndarray:
    return np.array(x.shape, np.int64)[slice(node.get("start", 0), node.get("end"))]


def reshape(node: Node, x: Any, lengths: Any = None) -> Any:
    given = node.argument("shape", lengths)
    if not node.get("allowzero", 0):
        if any(n == 0 and i >= x.ndim for i, n in enumerate(given)):
            raise node.refuse(f"keeps an axis that shape {x.shape} has not")
        given = [x.shape[i] if n == 0 else n for i, n in enumerate(given)]
    return x.reshape(tuple([int(n) for n in given]))


def flatten(node: Node, x: Any) -> Any:
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    axes = node.argument("axes", axes)
    gone = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else normalized_axes(tuple(axes), x.ndim)
    if any(x.shape[i] != 1 for i in gone):
        raise node.refuse(f"takes away axes {sorted(gone)} of shape {x.shape}")
    return x.reshape(tuple([n for i, n in enumerate(x.shape) if i not in gone]))


def unsqueeze(node: Node, x: Any, axes: Any = None) -> Any:
    axes = node.argument("axes", axes)
    axes = [axes] if isinstance(axes, int) else axes
    ndim = x.ndim + len(axes)
    new, left = normalized_axes(tuple(axes), ndim), iter(x.shape)
    return x.reshape(tuple([1 if i in new else next(left) for i in range(ndim)]))


def transpose(node: Node, x: Any) -> Any:
    return x.transpose(node.get("perm") or range(x.ndim)[::-1])


def expand(node: Node, x: Any, lengths: Any) -> Any:
    to = bounded(node, np.broadcast_shapes(x.shape, tuple(node.constant(lengths, "shape").tolist())), x)
    if isinstance(x, Tensor):
        return x if list(x.shape) == to else x + node.kept(np.zeros(to, x.dtype))
    return np.broadcast_to(x, to)


def tile(node: Node, x: Any, repeats: Any) -> Any:
    counts = node.constant(repeats, "repeats").tolist()
    bounded(node, [max(1, n) * count for n, count in zip(x.shape, counts, strict=True)], x)
    if is_plain(x):
        return np.tile(x, counts)
    for axis, count in enumerate(counts):
        if count != 1:
            x = taken(float_of(x), axis, np.tile(np.arange(x.shape[axis]), count).tolist())
    return x


def concat(node: Node, *values: Any) -> Any:
    return concatenated(values, node.get("axis"))


def concatenated(values: Sequence[Any], axis: int) -> Any:
    return np.concatenate(values, axis) if is_plain(*values) else f.concatenate(values, axis)


def taken(x: Any, axis: int, places: Any) -> Any:
    return x[(*[slice(None)] * (axis % x.ndim), places)]


def gather(node: Node, x: Any, places: Any) -> Any:
    axis = node.get("axis", 0)
    if is_plain(x, places):
        return np.take(x, places, axis)
    if isinstance(x, kernels.Recorded):
        return taken(x, axis, _as_slice(node, node.constant(places, "place")))
    if isinstance(places, Tensor):
        places = np.asarray(places).astype(np.int64)
    return taken(float_of(x), axis, int(places) if places.ndim == 0 and is_plain(places) else places)


def _as_slice(node: Node, places: np.ndarray) -> Any:
    """Places that follow each other at the same distance as a slice; of integers, no others can be taken."""
    if places.ndim == 0:
        return int(places)
    step = int(places[1] - places[0]) if places.size > 1 else 1
    if places.ndim > 1 or step == 0 or (np.diff(places) != step).any():
        raise node.refuse("takes integers in an order that caffelite has not")
    end = int(places[-1]) + step
    return slice(int(places[0]), None if end < 0 else end, step)


def gather_nd(node: Node, x: Any, places: Any) -> Any:
    places = node.constant(places, "place")
    return x[tuple(np.moveaxis(places, -1, 0))]


def cast_like(node: Node, x: Any, like: Any) -> Any:
    dtype = node.dtype if isinstance(like, Tensor) else like.dtype
    return cast(node, x, dtype)


def mod(node: Node, a: Any, b: Any) -> Any:
    if not is_plain(a, b):
        raise node.refuse("divides what depends on data")
    return np.fmod(a, b) if node.get("fmod", 0) else np.mod(a, b)


def sliced(node: Node, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    starts, ends = node.argument("starts", starts), node.argument("ends", ends)
    axes = node.argument("axes", axes, list(range(len(starts))))
    steps = node.argument("steps", steps, [1] * len(starts))
    index = [slice(None)] * x.ndim
    for axis, *part in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(*part)
    return x[tuple(index)]


def split(node: Node, x: Any, sizes: Any = None) -> Any:
    axis, count = node.get("axis", 0), len(node.outputs)
    sizes = node.argument("split", sizes)
    if sizes is None:
        size = -(-x.shape[axis] // count)
        sizes = [size] * (count - 1) + [x.shape[axis] - size * (count - 1)]
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple([taken(x, axis, slice(a, b)) for a, b in itertools.pairwise(ends)])


def pad(node: Node, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    pads, mode = node.argument("pads", pads), node.get("mode", "constant")
    value = node.argument("value", value, 0.0)
    axes = node.argument("axes", axes, list(range(x.ndim)))
    for i, axis in enumerate(axes):
        x = padded(node, x, axis, pads[i], pads[i + len(axes)], mode, value)
    return x


def padded(node: Node, x: Any, axis: int, before: int, after: int, mode: str = "constant", value: float = 0.0) -> Any:
    """x with more numbers along an axis, or with fewer where they are below 0."""
    n = x.shape[axis]
    if before < 0 or after < 0:
        x = taken(x, axis, slice(max(0, -before), n + min(0, after)))
        before, after, n = max(0, before), max(0, after), x.shape[axis]
    if before == after == 0:
        return x
    bounded(node, [before + m + after if i == axis % x.ndim else m for i, m in enumerate(x.shape)], x)
    if mode != "constant":
        return taken(x, axis, np.pad(np.arange(n), (before, after), mode).tolist())  # type: ignore[call-overload]
    shapes = [[m if i == axis % x.ndim else k for i, k in enumerate(x.shape)] for m in (before, after)]
    first, last = [node.kept(np.full(shape, value, x.dtype)) for shape in shapes]
    return concatenated([first, x, last], axis)


def depth_to_space(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        return x.reshape((n, b, b, c // b**2, h, w)).transpose((0, 3, 4, 1, 5, 2)).reshape((n, c // b**2, h * b, w * b))
    return x.reshape((n, c // b**2, b, b, h, w)).transpose((0, 1, 4, 2, 5, 3)).reshape((n, c // b**2, h * b, w * b))


def space_to_depth(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    return x.reshape((n, c, h // b, b, w // b, b)).transpose((0, 3, 5, 1, 2, 4)).reshape((n, c * b**2, h // b, w // b))


def trilu(node: Node, x: Any, k: Any = None) -> Any:
    k = 0 if k is None else int(node.constant(k, "diagonal"))
    if is_plain(x):
        return np.triu(x, k) if node.get("upper", 1) else np.tril(x, k)
    ones = np.ones(x.shape[-2:], np.bool_)
    return f.where(node.kept(np.triu(ones, k) if node.get("upper", 1) else np.tril(ones, k)), x, 0.0)


def constant_of_shape(node: Node, lengths: Any) -> np.ndarray:
    value = node.get("value", np.zeros(1, np.float32))
    return np.full(bounded(node, node.constant(lengths, "shape").tolist()), value.item(), value.dtype)


def numbers_from_to(node: Node, start: Any, limit: Any, step: Any) -> np.ndarray:
    dtype: Any = start.dtype
    start, limit, step = (node.constant(x, "bound").item() for x in (start, limit, step))
    if step == 0:
        raise node.refuse("counts in steps of 0")
    bounded(node, [max(0, math.ceil((limit - start) / step))])
    return np.arange(start, limit, step).astype(dtype)


def where(node: Node, condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition, a, b) if is_plain(condition, a, b) else f.where(condition, a, b)


# ---- resizing -------------------------------------------------------------------------------------------------------


def resize(node: Node, x: Any, *inputs: Any) -> Any:
    """Along each axis the nearest elements, or a mean of two of them, weighed."""
    if node.operator == "Upsample" or node.version < 11:
        scales, sizes, mode = node.argument("scales", inputs[0] if inputs else None), None, "asymmetric"
    else:
        _, scales, sizes = [*inputs, None, None, None][:3]
        scales, sizes = (
            None if s is None or s.size == 0 else node.constant(s, "size").tolist() for s in (scales, sizes)
        )
        mode = node.get("coordinate_transformation_mode", "half_pixel")
    axes = node.get("axes") or list(range(x.ndim))
    lengths = [math.floor(x.shape[axis] * scales[i]) if sizes is None else sizes[i] for i, axis in enumerate(axes)]
    bounded(node, [lengths[axes.index(i)] if i in axes else n for i, n in enumerate(x.shape)], x)
    for i, axis in enumerate(axes):
        n, m = x.shape[axis], lengths[i]
        scale = m / n if sizes is not None else scales[i]
        if n == m and scale == 1:
            continue
        places = _places(mode, n, m, scale)
        if node.get("mode", "nearest") == "nearest":
            how = node.get("nearest_mode", "round_prefer_floor") if node.version >= 11 else "floor"
            x = taken(x, axis, np.clip(ROUNDED[how](places), 0, n - 1).astype(np.int64).tolist())
        else:
            x = _between(node, x, axis, np.clip(places, 0, n - 1))
    return x


ROUNDED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _places(mode: str, n: int, m: int, scale: float) -> np.ndarray:
    """Where in an axis of length n the m elements of the result are."""
    i = np.arange(m, dtype=np.float64)
    if mode == "align_corners":
        return i * (n - 1) / (n * scale - 1) if n * scale > 1 else i * 0
    if mode == "asymmetric":
        return i / scale
    if mode == "pytorch_half_pixel" and m == 1:
        return i * 0
    return (i + 0.5) / scale - 0.5


def _between(node: Node, x: Any, axis: int, places: np.ndarray) -> Any:
    """The means of the elements beside these places."""
    before = np.floor(places).astype(np.int64)
    after = np.minimum(before + 1, x.shape[axis] - 1)
    share = node.kept((places - before).reshape(-1, *[1] * (x.ndim - 1 - axis % x.ndim)).astype(x.dtype))
    return taken(x, axis, before.tolist()) * node.kept(1 - share) + taken(x, axis, after.tolist()) * share


# ---- windows --------------------------------------------------------------------------------------------------------


def window_of(node: Node, axes: int) -> tuple[list[int], list[int], list[int]]:
    """The strides, the dilations and the pads, before and after, of a node with windows of so many axes."""
    names = {"strides": [1] * axes, "dilations": [1] * axes, "pads": [0] * 2 * axes}
    for name, default in names.items():
        if len(node.get(name) or default) != len(default):
            raise node.refuse(f"has {name} = {node.get(name)}, expected {len(default)} numbers")
    strides, dilations, pads = [node.get(name) or default for name, default in names.items()]
    return strides, dilations, pads


def pads_of(node: Node, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """The pads before and after each axis of these lengths, for a node with windows: as it says, or lets us find."""
    window = node.get("kernel_shape")
    strides, dilations, pads = window_of(node, len(window))
    auto = node.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return list(zip(pads[: len(window)], pads[len(window) :], strict=True))
    found = []
    for n, k, s, d in zip(lengths, window, strides, dilations, strict=True):
        more = 0 if auto == "VALID" else max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
        found.append((more // 2, more - more // 2) if auto != "SAME_LOWER" else (more - more // 2, more // 2))
    return found


def _ceiling(node: Node, lengths: Sequence[int], pads: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pads with what a last window reaches beyond them, where `ceil_mode` has one."""
    if not node.get("ceil_mode", 0) or node.get("auto_pad", "NOTSET") != "NOTSET":
        return pads
    window, strides = node.get("kernel_shape"), node.get("strides") or [1] * len(lengths)
    found = []
    for n, k, s, (before, after) in zip(lengths, window, strides, pads, strict=True):
        count = -(-(n + before + after - k) // s) + 1
        if (count - 1) * s >= n + before:  # a window that would begin in the pads behind
            count -= 1
        found.append((before, max(after, (count - 1) * s + k - n - before)))
    return found


def max_pool(node: Node, x: Any) -> Any:
    x = float_of(x)
    for axis, (before, after) in enumerate(_ceiling(node, x.shape[2:], pads_of(node, x.shape[2:])), 2):
        x = padded(node, x, axis, before, after, value=-math.inf)
    kind = f.MaxPool1d if x.ndim == 3 else f.MaxPool2d
    return kind(node.get("kernel_shape"), node.get("strides") or 1)(x)


def average_pool(node: Node, x: Any) -> Any:
    """The means of windows, and not of what is outside: of its pads, where it has such, only what it counts."""
    x = float_of(x)
    pads = pads_of(node, x.shape[2:])
    counted = np.ones((1, 1, *x.shape[2:]), x.dtype)
    for axis, ((before, after), (_, last)) in enumerate(zip(pads, _ceiling(node, x.shape[2:], pads), strict=True), 2):
        x = padded(node, x, axis, before, last)
        counted = padded(node, counted, axis, before, after, value=float(node.get("count_include_pad", 0)))
        counted = padded(node, counted, axis, 0, last - after)
    kind = f.AvgPool1d if x.ndim == 3 else f.AvgPool2d
    pool = kind(node.get("kernel_shape"), node.get("strides") or 1)
    if (counted == 1).all():
        return pool(x)
    with kernels.Paused():
        shares = pool.forward(counted)
    return pool(x) / node.kept(shares)


def padded_windows(node: Node, x: Any) -> Any:
    """x with the zeros around it that a convolution is to see."""
    for axis, (before, after) in enumerate(pads_of(node, x.shape[2:]), 2):
        x = padded(node, x, axis, before, after)
    return x


def over_places(name: str) -> Rule:
    return lambda node, x: getattr(float_of(x), name)(tuple(range(2, x.ndim)), True)


def labels(node: Node, x: Any) -> Any:
    raise node.refuse("makes labels, which no model computes with")


OPERATORS: dict[str, Rule] = {
    "Identity": lambda node, x: x,
    "ZipMap": lambda node, x: x,  # to words, of what are probabilities
    "Cast": cast,
    "CastLike": cast_like,
    "Constant": lambda node: node.get("value"),
    "Add": lambda node, a, b: a + b,
    "Sub": lambda node, a, b: a - b,
    "Mul": lambda node, a, b: a * b,
    "Div": divide,
    "Pow": power,
    "Neg": lambda node, x: -x,
    "Mod": mod,
    "Reciprocal": lambda node, x: 1 / x,
    "Sum": total,
    "Mean": lambda node, *values: total(node, *values) / float(len(values)),
    "Max": largest,
    "Min": smallest,
    "MatMul": lambda node, a, b: a @ b,
    "Gemm": gemm,
    "Einsum": einsum,
    "Abs": either(np.abs, f.abs),
    "Exp": either(np.exp, f.exp),
    "Log": either(np.log, f.log),
    "Sqrt": either(np.sqrt, f.sqrt),
    "Relu": lambda node, x: f.relu(x),
    "LeakyRelu": lambda node, x: f.leaky_relu(x, node.get("alpha", 0.01)),
    "PRelu": lambda node, x, slope: f.relu(x) - f.relu(-x) * slope,
    "Elu": lambda node, x: f.elu(x, node.get("alpha", 1.0)),
    "Celu": lambda node, x: f.elu(x / node.get("alpha", 1.0)) * node.get("alpha", 1.0),
    "Selu": lambda node, x: f.elu(x, node.get("alpha", 1.6732632423543772)) * node.get("gamma", 1.0507009873554805),
    "ThresholdedRelu": lambda node, x: f.where(
        in_steps(np.greater, "Greater")(node, x, node.get("alpha", 1.0)), x, 0.0
    ),
    "Gelu": lambda node, x: f.gelu(x, node.get("approximate", "none") == "tanh"),
    "Sigmoid": lambda node, x: f.sigmoid(x),
    "HardSigmoid": lambda node, x: f.clip(x * node.get("alpha", 0.2) + node.get("beta", 0.5), 0, 1),
    "HardSwish": lambda node, x: x * f.clip(x / 6.0 + 0.5, 0, 1),
    "Swish": lambda node, x: x * f.sigmoid(x * node.get("alpha", 1.0)),
    "Mish": lambda node, x: x * f.tanh(f.softplus(x)),
    "Softplus": lambda node, x: f.softplus(x),
    "Softsign": lambda node, x: x / (f.abs(x) + 1.0),
    "Tanh": lambda node, x: f.tanh(x),
    "Softmax": softmax(f.Softmax),
    "LogSoftmax": softmax(f.LogSoftmax),
    "Clip": clip,
    "Erf": smooth(erf, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
    "Sin": smooth(np.sin, np.cos),
    "Cos": smooth(np.cos, lambda x: -np.sin(x)),
    "Tan": smooth(np.tan, lambda x: 1 / np.cos(x) ** 2),
    "Asin": smooth(np.arcsin, lambda x: 1 / np.sqrt(1 - x * x)),
    "Acos": smooth(np.arccos, lambda x: -1 / np.sqrt(1 - x * x)),
    "Atan": smooth(np.arctan, lambda x: 1 / (1 + x * x)),
    "Sinh": smooth(np.sinh, np.cosh),
    "Cosh": smooth(np.cosh, np.sinh),
    "Asinh": smooth(np.arcsinh, lambda x: 1 / np.sqrt(x * x + 1)),
    "Acosh": smooth(np.arccosh, lambda x: 1 / np.sqrt(x * x - 1)),
    "Atanh": smooth(np.arctanh, lambda x: 1 / (1 - x * x)),
    "Floor": in_steps(np.floor),
    "Ceil": in_steps(np.ceil),
    "Round": in_steps(np.round),
    "Sign": in_steps(np.sign),
    "IsNaN": in_steps(np.isnan),
    "Equal": in_steps(np.equal),
    "Less": in_steps(np.less),
    "LessOrEqual": in_steps(np.less_equal),
    "Greater": in_steps(np.greater),
    "GreaterOrEqual": in_steps(np.greater_equal),
    "Not": in_steps(np.logical_not),
    "And": in_steps(np.logical_and),
    "Or": in_steps(np.logical_or),
    "Xor": in_steps(np.logical_xor),
    "Where": where,
    "ReduceSum": reduction(f.sum, np.sum),
    "ReduceMean": reduction(f.mean),
    "ReduceMax": reduction(f.max, np.max),
    "ReduceMin": reduction(f.min, np.min),
    "ReduceL1": reduction(lambda x, axis, keepdims: x.abs().sum(axis, keepdims)),
    "ReduceL2": reduction(lambda x, axis, keepdims: (x * x).sum(axis, keepdims).sqrt()),
    "ReduceSumSquare": reduction(lambda x, axis, keepdims: (x * x).sum(axis, keepdims)),
    "ReduceLogSum": reduction(lambda x, axis, keepdims: x.sum(axis, keepdims).log()),
    "ReduceLogSumExp": reduction(log_sum_exp),
    "InstanceNormalization": instance_norm,
    "GroupNormalization": group_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm,
    "MeanVarianceNormalization": mean_variance_norm,
    "LpNormalization": lp_norm,
    "Scaler": scaled,
    "Shape": shape,
    "Size": lambda node, x: np.array(math.prod(x.shape), np.int64),
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Expand": expand,
    "Tile": tile,
    "Concat": concat,
    "Gather": gather,
    "GatherND": gather_nd,
    "Slice": sliced,
    "Split": split,
    "Pad": pad,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Trilu": trilu,
    "ConstantOfShape": constant_of_shape,
    "Range": numbers_from_to,
    "Resize": resize,
    "Upsample": resize,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": over_places("mean"),
    "GlobalMaxPool": over_places("max"),
    "PadWindows": padded_windows,
}

#: What an attribute may say, where there is something else that it could say.
ONLY: dict[str, dict[str, tuple]] = {
    "Resize": {
        "mode": ("nearest", "linear"),
        "coordinate_transformation_mode": ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"),
        "antialias": (0,),
        "exclude_outside": (0,),
        "keep_aspect_ratio_policy": ("stretch",),
    },
    "Upsample": {"mode": ("nearest",)},
    "SpaceToDepth": {"mode": ("DCR",)},
    "GatherND": {"batch_dims": (0,)},
    "Pad": {"mode": ("constant", "edge", "reflect", "wrap")},
    "LayerNormalization": {"stash_type": (1,)},
    "RMSNormalization": {"stash_type": (1,)},
    "MaxPool": {"dilations": ([1], [1, 1]), "storage_order": (0,)},
    "AveragePool": {"dilations": ([1], [1, 1])},
    "LSTM": {"activations": (["Sigmoid", "Tanh", "Tanh"],), "input_forget": (0,), "layout": (0,)},
    "GRU": {"activations": (["Sigmoid", "Tanh"],), "linear_before_reset": (1,), "layout": (0,)},
    "RNN": {"activations": (["Tanh"],), "layout": (0,)},
    "BatchNormalization": {"training_mode": (0,), "spatial": (1,)},
    "ConvTranspose": {"auto_pad": ("NOTSET", "VALID"), "output_shape": ()},
    "GroupNormalization": {"stash_type": (1,)},
    "Reshape": {"allowzero": (0, 1)},
}

#: What looks at attributes when a file is loaded, where a list of what they may say is not enough.
CHECKED: dict[str, Callable[[Node], Any]] = {"Einsum": letters_of}

#: Inputs that say how something is done, by their places, and are never learned.
SETTINGS: dict[str, tuple[int, ...]] = {
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Clip": (1, 2),
    "Pad": (2,),
    "Range": (0, 1, 2),
    "Dropout": (1,),
}

#: Operators that have several outputs; of others only the first is known.
SEVERAL = ("Split", "LayerNormalization", "RNN", "GRU", "LSTM")

#: Attributes that there may not be.
NOT_WITH: dict[str, tuple[str, ...]] = {
    "LSTM": ("clip", "activation_alpha", "activation_beta"),
    "GRU": ("clip", "activation_alpha", "activation_beta"),
    "RNN": ("clip", "activation_alpha", "activation_beta"),
}
