"""The kinds of calls that fuzz.py makes, their arguments, and the judges of their results."""

import contextlib
import copy
import math
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np

import caffelite as cl
from caffelite import functions, metrics
from caffelite.optimizers import rules, schedules
from caffelite.training.metrics.base import METRICS
from tests.cases import FAMILIES
from tests.cases.optimizers import OPTIMIZERS
from tests.reference import (
    LAYOUTS,
    ODD_DTYPES,
    TOLERANCE,
    assert_same_bits,
    odd_array,
    plain_copy,
    to_float64,
    zero_strided,
)

KINDS = {}


class Wrong(Exception):
    """A case found a wrong value, or a correct call that was refused."""


def kind(weight):
    """Make a function of a Generator a kind of call, so many times as likely as one of weight 1."""

    def register(function):
        KINDS[function.__name__] = function, weight
        return function

    return register


@contextlib.contextmanager
def must_work():
    """Inside are correct calls: any exception is wrong."""
    try:
        yield
    except Exception as error:
        raise Wrong(f"a correct call was refused: {type(error).__name__}: {error}") from error


# ---- arguments ------------------------------------------------------------------------------------------------------

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -3e38, 1e-38, 1e-45, 1.0, -1.0]
INTEGERS = [0, 1, 2, 3, 4, 5, 7, -1, -2, -3, 2**7, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, 2**63, -(2**63), 2**64]
NUMBERS = [0.0, 0.5, -0.5, 1.0, 0.1, 1e-8, 1e300, -1e300, math.nan, math.inf, -math.inf, 10**400, True, False]
NUMBERS += [np.float32(0.5), np.float64(2), np.int8(3), np.bool_(True), np.array(2), np.array(0.25)]
THINGS = [
    None,
    ...,
    "",
    "a",
    "same",
    "float64",
    b"a",
    1j,
    {},
    {"a": 1},
    set(),
    {1},
    [],
    (),
    [[]],
    [1, [2]],
    [None],
    "1",
]
THINGS += [object(), int, len, slice(None), range(3), np.float32, np.datetime64("2020-01-01"), float("nan"), [1.0, 2]]


def pick(rng, items):
    return items[rng.integers(len(items))]


def an_integer(rng):
    """Often a small number, sometimes one that is too large for C, or of NumPy."""
    n = pick(rng, INTEGERS[:10] if rng.integers(4) else INTEGERS)
    return np.int64(n) if rng.integers(8) == 0 and abs(n) < 2**31 else n


def a_shape(rng, axes=3):
    """Return a shape of so many axes at most; each 64th array is empty."""
    least = 0 if rng.integers(16) == 0 else 1
    return tuple(int(n) for n in rng.integers(least, 5, rng.integers(axes + 1)))


def an_array(rng, shape, dtype, special=True):
    """Ordinary numbers, at times with NaN, infinities, zeros and the largest and smallest numbers among them."""
    x = np.asarray(rng.standard_normal(shape))
    if special and rng.integers(4) == 0:
        x = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), x)
    return np.asarray(x).astype(dtype)


def lay_out(rng, array):
    """Return the array in one of many layouts; its values stay."""
    return plain_copy(array) if rng.integers(2) else pick(rng, [f for f in LAYOUTS if f is not zero_strided])(array)


def a_dtype(rng):
    return pick(rng, [np.float32, np.float64])


def anything(rng):
    """Return an argument of any kind: a number, an array of any dtype, text, a container, an object."""
    which = rng.integers(6)
    if which < 2:
        return an_integer(rng)
    if which == 2:
        return pick(rng, NUMBERS)
    if which == 3:
        return pick(rng, THINGS)
    if which == 4:
        return odd_array(pick(rng, ODD_DTYPES), a_shape(rng))
    array = lay_out(rng, an_array(rng, a_shape(rng), a_dtype(rng)))
    return pick(rng, [array, array.tolist(), cl.Tensor(array)])


def mostly(rng, likely, share=4):
    """Return what is likely, and once in so many times anything."""
    return anything(rng) if rng.integers(share) == 0 else likely


# ---- judging --------------------------------------------------------------------------------------------------------


def same(actual, truth, scale=0.0):
    """Raise Wrong unless the values are the truth, rounded to their dtype; `scale` as in `assert_close`."""
    actual, truth = np.asarray(actual), np.asarray(truth)
    if actual.shape != truth.shape:
        raise Wrong(f"shape {actual.shape}, expected {truth.shape}")
    if actual.dtype.kind != "f":
        if not np.array_equal(actual, truth):
            raise Wrong(f"{actual!r}, expected {truth!r}")
        return
    with np.errstate(all="ignore"):
        truth, scale = truth.astype(actual.dtype), np.asarray(scale)
        rtol, atol = TOLERANCE[actual.dtype.newbyteorder("=")]
        allowed = 2 * atol + 4 * rtol * np.abs(truth) + 8 * np.finfo(actual.dtype).eps * scale
        right = (actual == truth) | (np.abs(actual - truth) <= allowed) | (np.isnan(actual) & np.isnan(truth))
        # A number next to the largest one may be rounded to infinity, and the other way round.
        right |= (
            (np.abs(actual) > 0.999 * np.finfo(actual.dtype).max)
            & (np.sign(actual) == np.sign(truth))
            & (np.abs(truth) > 0.999 * np.finfo(actual.dtype).max)
        )
    if not right.all():
        raise Wrong(
            f"{actual[~right].ravel()[:3]}, expected {truth[~right].ravel()[:3]}, {(~right).sum()} of {right.size}"
        )


def as_numpy(mine, theirs, taken=True, scale=0.0):
    """Return what `mine` gives, which has to be what NumPy's `theirs` gives. If NumPy refuses, `mine` has to.

    With `taken`, what NumPy takes may not be refused.
    """
    try:
        with np.errstate(all="ignore"):
            truth = theirs()
    except Exception:
        raise Wrong(f"{mine()!r}, which NumPy refuses") from None
    with must_work() if taken else contextlib.nullcontext():
        value = mine()
    same(value.data if isinstance(value, cl.Tensor) else value, truth, scale)
    return value


# ---- constructors ---------------------------------------------------------------------------------------------------

CLASSES = {name: getattr(cl, name) for name in functions.__all__ if isinstance(getattr(cl, name), type)}
MAKERS = {
    **CLASSES,
    **{name: getattr(cl, name) for name in ("Tensor", "DataGenerator", "Prefetch", "Model", "MLP")},
    **{name: getattr(cl.callbacks, name) for name in ("EarlyStopping", "ReduceLROnPlateau", "CSVLog", "Checkpoint")},
    **{
        f"schedules.{name}": getattr(schedules, name)
        for name in ("cosine", "linear", "exponential", "steps", "one_cycle")
    },
    **{f"optimizers.{name}": getattr(cl, name) for name in rules.__all__},
    "spiral": cl.datasets.spiral,
    "top_k": metrics.top_k,
}
LARGEST = 10**6  # an integer that a maker gets; a larger one may be right, and takes its time and memory
KEYWORDS = [
    "bias",
    "axis",
    "p",
    "alpha",
    "slope",
    "eps",
    "momentum",
    "padding",
    "stride",
    "causal",
    "lr",
    "seed",
    "dtype",
]


@kind(12)
def constructors(rng):
    """Anything is made with any arguments, shown, and asked for the shape of its output."""
    name = pick(rng, list(MAKERS))
    likely = (
        [cl.Tensor(np.ones(3), True)] if name.startswith("optimizers") and rng.integers(3) else pick(rng, INTEGERS[:6])
    )
    arguments = [mostly(rng, likely, 3)] if rng.integers(8) else []
    arguments += [mostly(rng, pick(rng, INTEGERS[:6]), 3) for _ in range(rng.integers(4))]
    # Sizes that overflow are an error, and large ones made: only those beyond the limit of memory, or small, are quick.
    arguments = [2**62 if isinstance(a, int) and LARGEST < a < 2**62 else a for a in arguments]
    options = {pick(rng, KEYWORDS): anything(rng)} if rng.integers(6) == 0 else {}
    made = MAKERS[name](*arguments, **options)
    if not repr(made):
        raise Wrong(f"{name} has an empty repr")
    if isinstance(made, cl.Function):
        made.output_shape(pick(rng, [a_shape(rng, 4), (None, *a_shape(rng, 3))]))


# ---- Functions ------------------------------------------------------------------------------------------------------

CASES = [(family, arguments) for family in FAMILIES.values() for arguments in (*family.listed, *family.empty)]


def a_case(rng):
    family, arguments = pick(rng, CASES)
    return family.build(*arguments)


@kind(6)
def functions_against_judges(rng):
    """Try a Function by hand, forward and backward, against its judge."""
    case, dtype, seed = a_case(rng), a_dtype(rng), int(rng.integers(2**32))
    function, inputs = case.function(dtype), case.inputs(dtype, seed)
    with must_work():
        ys, dys, gradients = case.forward_and_backward(function, [lay_out(rng, x) for x in inputs])
    truths, backward = case.reference(function, inputs)
    for mine, truth in zip([*ys, *gradients], [*truths, *backward(*map(to_float64, dys))], strict=True):
        same(mine, truth, max(case.scale, 1.0))


@kind(6)
def functions_of_tensors(rng):
    """Try a Function of Tensors in any layout: the bits of the Function by hand, of plain copies."""
    case, dtype, seed = a_case(rng), a_dtype(rng), int(rng.integers(2**32))
    inputs = case.inputs(dtype, seed)
    shaped = len(case.shapes)  # indices and labels behind them keep their values
    inputs = [pick(rng, LAYOUTS)(x) if i < shaped else lay_out(rng, x) for i, x in enumerate(inputs)]
    function, other = case.function(dtype), case.function(dtype)
    with must_work():
        ys, dys, gradients = case.forward_and_backward(function, list(map(plain_copy, inputs)))
    if case.saved(function) or len(ys) > 1:  # a mask that it drew
        return
    tensors = [cl.Tensor(x, i < len(case.shapes)) if i < len(case.shapes) else x for i, x in enumerate(inputs)]
    with must_work(), case.mode():
        y = other(*tensors)
        assert_same_bits(y.data, ys[0])
        if case.training and y.requires_grad:
            y.backward(dys[0])
            mine = [t.grad for t in [*tensors[: len(case.shapes)], *other.parameters()]]
            for one, two in zip([g for g in mine if g is not None], gradients, strict=True):
                assert_same_bits(one, two)


@kind(10)
def functions_of_anything(rng):
    """Try a Function called with arrays of any shape and dtype, and backward if it takes them."""
    case, dtype = a_case(rng), a_dtype(rng)
    function = case.function(dtype)
    inputs = [mostly(rng, x, 2) for x in case.inputs(dtype)]
    inputs = [
        cl.Tensor(x, True) if isinstance(x, np.ndarray) and x.dtype == dtype and rng.integers(2) else x for x in inputs
    ]
    if rng.integers(8) == 0:
        inputs = [*inputs, anything(rng)] if rng.integers(2) else inputs[:-1]
    y = function(*inputs)
    if isinstance(y, cl.Tensor) and y.requires_grad:
        y.backward(mostly(rng, np.ones(y.shape, y.dtype)))


# ---- Tensors --------------------------------------------------------------------------------------------------------

OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
    "@": lambda a, b: a @ b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
}


def an_operand(rng, dtype, special):
    """Return what stands beside a Tensor, and whether it is such that it is to be taken."""
    shape, which = a_shape(rng), rng.integers(8)
    if which < 4:
        array = lay_out(rng, an_array(rng, shape, dtype, special))
        return (array if which == 0 else cl.Tensor(array)), True
    if which == 4:
        return pick(rng, [0, 1, -2, 0.5, True, 3e38, math.nan, np.float32(0.5), np.float64(2), np.int8(3)]), True
    if which == 5:
        return rng.integers(-3, 4, shape).astype(pick(rng, [np.int8, np.int64, np.uint8, bool])), True
    return anything(rng), False


def power(a, b):
    """As C's pow, whose (-inf)**0.5 is inf: NumPy takes it for a root, or not, as the processor has it."""
    return np.where(np.isneginf(a) & (np.asarray(b) == 0.5), np.inf, np.power(a, b))


@kind(20)
def operators(rng):
    """Try a Tensor and something else on either side of an operator."""
    symbol, dtype = pick(rng, list(OPERATORS)), a_dtype(rng)
    t = cl.Tensor(lay_out(rng, an_array(rng, a_shape(rng), dtype, symbol != "@")))
    other, taken = an_operand(rng, dtype, symbol != "@")
    if not taken:
        OPERATORS[symbol](*((t, other) if rng.integers(2) else (other, t)))
        return
    with np.errstate(all="ignore"):  # the other operand takes the Tensor's dtype
        wide = to_float64(t.data), to_float64(np.asarray(other).astype(dtype))
    pairs = [(t, other), wide] if rng.integers(2) else [(other, t), wide[::-1]]
    scale = 8.0 if symbol == "@" else 0.0
    operate = OPERATORS[symbol]
    judge = power if symbol == "**" else operate
    as_numpy(lambda: operate(*pairs[0]), lambda: judge(*pairs[1]), True, scale)


def an_index(rng, shape):
    """One entry of an index of an axis, or of several, that may be out of bounds or nothing of the kind."""
    which, n = rng.integers(12), pick(rng, [*shape, 3])
    if which < 3:
        return int(rng.integers(-n - 1, n + 1))
    if which < 6:
        return slice(*[None if rng.integers(2) else int(rng.integers(-5, 6)) for _ in range(3)])
    if which == 6:
        return pick(rng, [None, ...])
    if which < 9:
        entry = rng.integers(-n - (rng.integers(8) == 0), max(n, 1), a_shape(rng, 2)).astype(
            pick(rng, [np.int64, np.int8])
        )
        return entry.tolist() if rng.integers(2) else lay_out(rng, entry)
    if which == 9:
        return rng.random(pick(rng, [shape[:1], shape[:2], (n,)])) < 0.5
    return mostly(rng, an_integer(rng), 2)


@kind(14)
def indexing(rng):
    """x[index] and its gradient, where repeated elements add up."""
    x = an_array(rng, a_shape(rng), a_dtype(rng))
    entries = [an_index(rng, x.shape) for _ in range(rng.integers(4))]
    # An array of one number in no axis may be out of bounds if there is nothing to take; a number may not.
    index = tuple([e.item() if isinstance(e, np.ndarray) and e.ndim == 0 else e for e in entries])
    index = index[0] if len(index) == 1 and rng.integers(2) else index
    if any(isinstance(entry, cl.Tensor) for entry in (index if isinstance(index, tuple) else [index])):
        return
    t = cl.Tensor(lay_out(rng, x), True)
    y = as_numpy(lambda: t[index], lambda: x[index], taken=False)
    with must_work():
        dy = an_array(rng, y.shape, x.dtype, special=False)
        y.backward(dy)
    truth = np.zeros(x.shape)
    np.add.at(truth, index, dy)
    same(t.grad, truth)


REDUCTIONS = ["sum", "mean", "max", "min"]


@kind(12)
def reductions(rng):
    """Try a reduction over axes that may not be there."""
    name, x = pick(rng, REDUCTIONS), an_array(rng, a_shape(rng), a_dtype(rng), special=False)
    axes = [int(a) for a in rng.integers(-x.ndim - 1, x.ndim + 1, rng.integers(3))]
    axis = pick(rng, [None, tuple(axes), axes[0] if axes else 0, mostly(rng, an_integer(rng), 2)])
    keepdims = bool(rng.integers(2))
    if rng.integers(4) == 0 and name != "sum" and name != "mean" and x.size:
        x.reshape(-1)[rng.integers(x.size)] = pick(rng, SPECIAL)
    t = cl.Tensor(lay_out(rng, x), True)

    def theirs():
        total = to_float64(x).sum(axis=axis, keepdims=keepdims)
        if name == "sum" or total.size == 0:  # NumPy refuses some extremes of nothing that have no elements
            return total
        if x.size == 0 and name == "mean":
            raise ValueError("a mean of no elements")
        return getattr(to_float64(x), name)(axis=axis, keepdims=keepdims)

    call = pick(rng, [getattr(t, name), lambda **options: getattr(cl, name)(t, **options)])
    y = as_numpy(lambda: call(axis=axis, keepdims=keepdims), theirs, False, x.size)
    with must_work():
        y.backward(np.ones(y.shape, y.dtype))
    if name in ("sum", "mean"):
        same(t.grad, np.full(x.shape, y.size / x.size if name == "mean" and x.size else 1.0))
    elif y.size and not np.isnan(y.data).any():
        same(t.grad.sum(), y.size)


@kind(14)
def shapes(rng):
    """Tensors in other shapes, joined, clipped, chosen from: as NumPy's functions."""
    dtype = a_dtype(rng)
    x = an_array(rng, a_shape(rng), dtype)
    t = cl.Tensor(lay_out(rng, x))
    axes = (
        tuple(int(n) for n in rng.permutation(x.ndim))
        if rng.integers(2)
        else tuple(an_integer(rng) for _ in range(rng.integers(4)))
    )
    shape = (
        tuple(int(n) for n in rng.permutation(x.shape))
        if rng.integers(2)
        else tuple(mostly(rng, pick(rng, [-1, 1, 2, 4, x.size]), 8) for _ in range(rng.integers(4)))
    )
    axis = mostly(rng, int(rng.integers(-3, 3)), 4)
    others = [an_array(rng, x.shape if rng.integers(4) else a_shape(rng), dtype) for _ in range(rng.integers(3))]
    lo, hi = (pick(rng, [None, 0, -0.5, 1.0, np.float32(0.5)]) for _ in range(2))
    condition = rng.random(x.shape if rng.integers(2) else a_shape(rng)) < 0.5
    two = others[0] if others else x
    calls = [
        (lambda: t.reshape(shape), lambda: x.reshape(shape)),
        (lambda: t.reshape(*shape), lambda: x.reshape(*(shape or [()]))),
        (lambda: t.transpose(axes), lambda: x.transpose(axes)),
        (lambda: t.transpose(*axes), lambda: x.transpose(*axes)),
        (lambda: t.T, lambda: x.T),
        (lambda: cl.concatenate([t, *others], axis), lambda: np.concatenate([x, *others], axis)),
        (lambda: cl.stack([t, *others], axis), lambda: np.stack([x, *others], axis)),
        (lambda: t.clip(lo, hi), lambda: x if lo is hi is None else np.clip(x, lo, hi)),
        (lambda: cl.where(condition, t, two), lambda: np.where(condition, x, two)),
        (lambda: cl.Tensor([*t]), lambda: np.array([*x])) if x.ndim == 1 and x.size else (lambda: -t, lambda: -x),
    ]
    mine, theirs = pick(rng, calls)
    as_numpy(mine, theirs, taken=False)


@kind(6)
def methods_of_anything(rng):
    """Try a function of Tensors with arguments that may be anything."""
    names = ["sum", "mean", "max", "min", "reshape", "transpose", "clip", "softmax", "log_softmax", "matmul", "where"]
    names += ["exp", "log", "sqrt", "abs", "tanh", "sigmoid", "relu", "concatenate", "stack", "gelu", "elu", "softplus"]
    function = getattr(cl, pick(rng, names))
    t = cl.Tensor(an_array(rng, a_shape(rng), a_dtype(rng)), bool(rng.integers(2)))
    arguments = [mostly(rng, t, 3), *[anything(rng) for _ in range(rng.integers(3))]]
    y = function(*arguments)
    if not isinstance(y, cl.Tensor):
        raise Wrong(f"{function.__name__} gives {y!r}")


@kind(6)
def attributes_of_tensors(rng):
    """Try what a Tensor does besides computing, with anything."""
    t = cl.Tensor(an_array(rng, a_shape(rng), a_dtype(rng)), bool(rng.integers(2)))
    before, x = t.data.copy(), anything(rng)
    calls = [
        lambda: setattr(t, "data", x),
        lambda: t.add_grad(x),
        lambda: t.backward(x),
        lambda: t.item(),
        lambda: float(t),
        lambda: bool(t),
        lambda: len(t),
        lambda: list(t),
        lambda: t == x,
        lambda: repr(t),
        lambda: cl.Tensor(x, dtype=pick(rng, [None, np.float32, np.float64, anything(rng)])),
        lambda: copy.deepcopy(t),
    ]
    try:
        pick(rng, calls)()
    except Exception:
        assert_same_bits(t.data, before)  # a refused call writes nothing
        raise


SMOOTH = [
    *[lambda t, w: t * w, lambda t, w: t + w, lambda t, w: t.tanh(), lambda t, w: t.sigmoid() * 2.0],
    *[lambda t, w: (t * 0.3).exp(), lambda t, w: (t * t + 1.0).sqrt(), lambda t, w: (t * t + 0.5).log()],
    *[lambda t, w: t.softmax(-1) * w, lambda t, w: t - t.mean(0, keepdims=True), lambda t, w: t @ (w.T @ w) * 0.1],
    *[lambda t, w: t[::-1] + t[:, [0, 0, 2, 1]], lambda t, w: t.T.reshape(*t.shape), lambda t, w: t / (w * w + 1.0)],
    *[lambda t, w: cl.concatenate([t[1:], t[:1]]) * t, lambda t, w: cl.stack([t, w]).sum(0)],
]


@kind(3)
def graphs(rng):
    """Try a random graph of Tensors: its gradient along a random direction is the difference quotient."""
    steps = [pick(rng, SMOOTH) for _ in range(rng.integers(1, 6))]
    x, w, dx, dw = (rng.standard_normal((3, 4)) for _ in range(4))

    def value(x, w):
        a, b = cl.Tensor(x, True), cl.Tensor(w, True)
        t = a
        for step in steps:
            t = step(t, b)
        return a, b, (t * t).mean()

    with must_work():
        a, b, y = value(x, w)
        y.backward()
        slope = (a.grad * dx).sum() + (0.0 if b.grad is None else (b.grad * dw).sum())
        h = 1e-6
        _, _, up = value(x + h * dx, w + h * dw)
        _, _, down = value(x - h * dx, w - h * dw)
    quotient = (up.item() - down.item()) / (2 * h)
    if not abs(slope - quotient) <= 1e-5 * (1 + abs(slope) + abs(y.item())):
        raise Wrong(f"a slope of {slope}, expected {quotient}")


# ---- losses and metrics ---------------------------------------------------------------------------------------------


@kind(8)
def labels(rng):
    """SoftmaxLoss of labels that may be none: the judge's value, or an error."""
    n, classes, dtype = int(rng.integers(1, 6)), int(rng.integers(1, 6)), a_dtype(rng)
    scores = an_array(rng, (n, classes), dtype, special=False) * pick(rng, [1, 30, 1e4])
    targets = rng.integers(0, classes, n)
    damage = rng.integers(8)
    if damage == 0:
        targets[rng.integers(n)] = pick(rng, [-1, classes, 2**31, -(2**63), 2**63 - 1])
    odd = pick(rng, [targets.astype(pick(rng, ["i1", "u8", "f4", "f8", "O", "U3"])), targets[:, None], targets[1:]])
    given = odd if damage == 1 else anything(rng) if damage == 2 else targets.tolist() if damage == 3 else targets
    loss = cl.SoftmaxLoss()
    value = loss.forward(scores, given)
    labels = np.asarray(given)
    if labels.shape == scores.shape and labels.dtype.kind == "f":  # probabilities
        return
    if labels.shape != (n,) or not ((labels >= 0) & (labels < classes) & (labels == np.floor(labels))).all():
        raise Wrong(f"a loss of {value} for labels {given!r} of {classes} classes")
    wide, labels = to_float64(scores), labels.astype(int)
    shifted = wide - wide.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    same(value, -logs[np.arange(n), labels].mean())
    same(loss.backward(), (np.exp(logs) - np.eye(classes)[labels]) / n)


@kind(6)
def measures(rng):
    """Metrics against NumPy."""
    n, classes = int(rng.integers(1, 9)), int(rng.integers(2, 5))
    scores, targets = an_array(rng, (n, classes), a_dtype(rng), special=False), rng.integers(0, classes, n)
    values, truth = an_array(rng, (n,), np.float64, False), an_array(rng, (n,), np.float32, False)
    which = rng.integers(8)
    if which == 0:
        name = pick(rng, list(METRICS))
        float(getattr(metrics, name)(mostly(rng, scores, 2), mostly(rng, targets, 2)))
        return
    predicted = scores.argmax(axis=1)
    there = np.array([1]) if classes == 2 else np.union1d(predicted, targets)
    hit, seen, real = ((a[:, None] == there).sum(axis=0) for a in (targets[targets == predicted], predicted, targets))

    def share(a, b):
        return np.mean([x / y if y else 0.0 for x, y in zip(a, b, strict=True)])

    difference = values - to_float64(truth)
    with must_work():
        mine = [
            lambda: (metrics.accuracy(scores, targets), (predicted == targets).mean()),
            lambda: (metrics.precision(scores, targets), share(hit, seen)),
            lambda: (metrics.recall(scores, targets), share(hit, real)),
            lambda: (metrics.f1(scores, targets), share(2 * hit, seen + real)),
            lambda: (metrics.mse(values, truth), (difference**2).mean()),
            lambda: (metrics.mae(values, truth), abs(difference).mean()),
            lambda: (metrics.rmse(values, truth), np.sqrt((difference**2).mean())),
        ][which - 1]()
    same(*mine)


# ---- optimizers and schedules ---------------------------------------------------------------------------------------


@kind(4)
def optimizers(rng):
    """Try some steps of an optimizer against its formula, and its state copied to another on the way."""
    case, dtype = OPTIMIZERS[pick(rng, list(OPTIMIZERS))], a_dtype(rng)
    start = np.float32(rng.standard_normal(a_shape(rng))).astype(dtype)
    gradients = [np.float32(rng.standard_normal(start.shape)).astype(dtype) for _ in range(rng.integers(1, 5))]
    with must_work():
        parameter = cl.Tensor(start, True)
        optimizer = case.make([parameter])
        for g in gradients:
            optimizer.zero_grad()
            parameter.add_grad(lay_out(rng, g))
            optimizer.step()
            if rng.integers(4) == 0:
                state, optimizer = optimizer.state_dict(), case.make([parameter])
                optimizer.load_state_dict(state)
    truth, way = case.reference(to_float64(start).ravel(), [to_float64(g).ravel() for g in gradients])
    same(parameter.data, truth.reshape(start.shape), 4 * way.reshape(start.shape))


@kind(3)
def rates(rng):
    """Schedules against their formulas."""
    steps, lr, end = int(rng.integers(1, 50)), float(rng.uniform(0.01, 1)), float(rng.uniform(0.001, 0.01))
    warmup, every, t = int(rng.integers(steps)), int(rng.integers(1, 9)), int(rng.integers(60))
    at = min(t, steps)
    part = (at - warmup) / (steps - warmup)
    rising = lr * (at + 1) / max(warmup, 1)
    with must_work():
        same(
            *pick(
                rng,
                [
                    lambda: (
                        schedules.cosine(lr, steps, warmup, end)(t),
                        rising if at < warmup else end + (lr - end) * (1 + math.cos(math.pi * part)) / 2,
                    ),
                    lambda: (
                        schedules.linear(lr, steps, warmup, end)(t),
                        rising if at < warmup else end + (lr - end) * (1 - part),
                    ),
                    lambda: (schedules.exponential(lr, steps, end)(t), lr * (end / lr) ** (at / steps)),
                    lambda: (schedules.steps(lr, steps, every, 0.5)(t), lr * 0.5 ** (at // every)),
                ],
            )()
        )


# ---- data, models, files --------------------------------------------------------------------------------------------


@kind(4)
def batches(rng):
    """Check that a DataGenerator gives each row once an epoch, beside its target; Prefetch gives the same batches."""
    n, size, last = int(rng.integers(1, 20)), int(rng.integers(1, 8)), bool(rng.integers(2))
    x = lay_out(rng, np.float32(rng.standard_normal((n, 2))))
    options = {"batch_size": size, "shuffle": bool(rng.integers(2)), "drop_last": last, "seed": int(rng.integers(99))}
    if n < size and last:
        return
    with must_work():
        epoch = [(a.copy(), b.copy()) for a, b in cl.DataGenerator(x, np.arange(n), **options)]
        ahead = [(a.copy(), b.copy()) for a, b in cl.Prefetch(cl.DataGenerator(x, np.arange(n), **options))]
    rows = np.concatenate([b for _, b in epoch])
    if len(set(rows.tolist())) != (n // size * size if last else n) or not all(len(b) == size for _, b in epoch[:-1]):
        raise Wrong(f"rows {rows} in batches of {size}")
    same(np.concatenate([a for a, _ in epoch]), x[rows])
    for one, two in zip(epoch, ahead, strict=True):
        assert_same_bits(one[0], two[0])
        assert_same_bits(one[1], two[1])


def a_model(rng, classes=3):
    """Return a small classifier of rows of four numbers."""
    seed, dtype = int(rng.integers(99)), a_dtype(rng)
    activation = pick(
        rng, [cl.ReLU, cl.Tanh, cl.GELU, cl.SiLU, lambda: cl.LayerNorm(5), lambda: cl.Residual(cl.Linear(5, 5))]
    )
    return cl.Model([cl.Linear(4, 5), activation(), cl.Linear(5, classes)], seed=seed, dtype=dtype)


def an_optimizer(rng, model):
    rule = pick(
        rng, [lambda p: cl.SGD(p, 0.1, momentum=0.9), lambda p: cl.Adam(p, 0.01), lambda p: cl.RMSProp(p, 0.01)]
    )
    return rule(model.parameters())


@kind(0.5)
def trainings(rng):
    """`fit`, which replays a recorded step, gives the bits of the loop by hand; a row alone that of its batch."""
    model, n, size, epochs = a_model(rng), int(rng.integers(1, 12)), int(rng.integers(1, 6)), int(rng.integers(1, 4))
    x, y = lay_out(rng, np.float32(rng.standard_normal((n, 4)))), rng.integers(0, 3, n)
    by_hand, seed = copy.deepcopy(model), int(rng.integers(99))
    with must_work():
        state, optimizer = (
            np.random.default_rng(seed).bit_generator.state,
            an_optimizer(np.random.default_rng(seed), model),
        )
        optimizer.lr = min(optimizer.lr, 1e-3)  # so none diverges
        model.fit(
            x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, batch_size=size, shuffle=False, verbose=0
        )
        other = np.random.default_rng(seed)
        other.bit_generator.state = state
        optimizer, loss = an_optimizer(other, by_hand), cl.SoftmaxLoss()
        optimizer.lr = min(optimizer.lr, 1e-3)
        for _ in range(epochs):
            for i in range(0, n, size):
                optimizer.zero_grad()
                loss.forward(by_hand.forward(x[i : i + size].astype(by_hand.dtype)), y[i : i + size])
                by_hand.backward(loss.backward())
                optimizer.step()
        for p, q in zip(model.parameters(), by_hand.parameters(), strict=True):
            assert_same_bits(p.data, q.data)
        scores, i = model.predict(x), int(rng.integers(n))
        assert_same_bits(model.predict(x[i : i + 1])[0], scores[i])


@kind(2)
def odd_trainings(rng):
    """`fit`, `predict` or `evaluate` with something that may be anything: refused, parameters and data unchanged."""
    model, x, y = a_model(rng), np.float32(rng.standard_normal((6, 4))), rng.integers(0, 3, 6)
    before = [p.data.copy() for p in model.parameters()]
    options = {
        "loss": cl.SoftmaxLoss(),
        "optimizer": an_optimizer(rng, model),
        "epochs": 1,
        "batch_size": 3,
        "verbose": 0,
    }
    names = [
        *options,
        "shuffle",
        "validation_data",
        "validation_split",
        "callbacks",
        "metrics",
        "seed",
        "sample_weight",
    ]
    names += ["class_weight", "clip_norm", "x", "y"]
    which = pick(rng, names)
    odd = anything(rng)
    if which in ("epochs",) and not isinstance(odd, float | str) and np.ndim(odd) == 0 and np.size(odd) == 1:
        odd = -abs(odd) if isinstance(odd, int) else "many"  # a training may be long
    data = {"x": x, "y": y, **options, which: odd}
    call = rng.integers(3)
    try:
        if call == 0 and which in ("x", "batch_size"):
            model.predict(data["x"], batch_size=data["batch_size"])
        elif call == 1 and which in ("x", "y", "loss", "metrics", "batch_size"):
            taken = {name: data[name] for name in ("loss", "metrics", "batch_size") if name in data}
            model.evaluate(data["x"], data["y"], **taken)
        else:
            model.fit(data.pop("x"), data.pop("y"), **data)
    except Exception as error:
        if not isinstance(error, cl.TrainingDiverged) and which not in ("callbacks", "validation_data", "x"):
            for p, q in zip(model.parameters(), before, strict=True):
                assert_same_bits(p.data, q)
        raise


@kind(2)
def copies(rng):
    """Check that a model that was saved and loaded, pickled or copied predicts the same bits."""
    model, x = a_model(rng), np.float32(rng.standard_normal((3, 4)))
    with must_work():
        which, scores = rng.integers(4), model.forward(x.astype(model.dtype))
        if which == 0:
            with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
                model.save(Path(folder, "m.safetensors"))
                other = cl.load(Path(folder, "m.safetensors"))
        elif which == 1:
            other = pickle.loads(pickle.dumps(model))
        elif which == 2:
            other = copy.deepcopy(model)
        else:
            other = copy.deepcopy(model)
            other.initialize(7)
            other.load_state_dict(model.state_dict())
        assert_same_bits(other.forward(x.astype(model.dtype)), scores)


SHARED_MEMORY = "/dev/shm" if os.name == "posix" and os.path.isdir("/dev/shm") else None


@kind(2)
def odd_states(rng):
    """Try a state that is not the model's, or a file that is not there: refused, parameters unchanged."""
    model = a_model(rng)
    before, state = [p.data.copy() for p in model.parameters()], dict(model.state_dict())
    name = pick(rng, list(state))
    which = rng.integers(5)
    if which == 0:
        del state[name]
    elif which == 1:
        state["more"] = np.ones(3)
    elif which == 2:
        state[name] = anything(rng)
    try:
        if which < 3:
            model.load_state_dict(state)
        elif which == 3:
            model.load_state_dict(anything(rng))
        else:
            path = anything(rng)
            if isinstance(path, int | np.integer):  # a file that is open
                return
            cl.load(path)
    except Exception:
        for p, q in zip(model.parameters(), before, strict=True):
            assert_same_bits(p.data, q)
        raise


@kind(0.5)
def recordings(rng):
    """Check that what was recorded with one array and replayed with another gives the bits of the call."""
    steps, w = [pick(rng, SMOOTH[:10]) for _ in range(rng.integers(1, 5))], rng.standard_normal((3, 4))
    weight = cl.Tensor(w)

    def call(x):
        t = cl.Tensor(x) if not isinstance(x, cl.Tensor) else x
        for step in steps:
            t = step(t, weight)
        return t

    with must_work():
        program = cl.capture(call, rng.standard_normal((3, 4)))
        for _ in range(2):
            x = rng.standard_normal((3, 4))
            y = program(x)
            assert_same_bits(y.data if isinstance(y, cl.Tensor) else y, call(x).data)


@kind(0.1)
def many(rng):
    """`fit_many` gives each model the bits of its own `fit`."""
    seed = int(rng.integers(99))
    x, y = np.float32(rng.standard_normal((8, 4))), rng.integers(0, 3, 8)
    with must_work():
        together = [cl.Model([cl.Linear(4, 5), cl.ReLU(), cl.Linear(5, 3)], seed=i) for i in range(2)]
        alone = copy.deepcopy(together)
        rules = [cl.SGD(m.parameters(), 0.1) for m in together]
        options = {"loss": cl.SoftmaxLoss(), "epochs": 2, "batch_size": 3, "seed": seed}
        cl.fit_many(together, x, y, optimizers=rules, **options)
        for m in alone:
            m.fit(x, y, optimizer=cl.SGD(m.parameters(), 0.1), verbose=0, **options)
        for a, b in zip(together, alone, strict=True):
            for p, q in zip(a.parameters(), b.parameters(), strict=True):
                assert_same_bits(p.data, q.data)
