"""Layers: classes with forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.function import Function
from caffelite.core.modes import inference
from caffelite.core.tensor import Tensor
from caffelite.exercises.exercise import (
    Wrong,
    call_answer,
    check_backward,
    check_equal,
    check_unchanged,
    construct,
    exercise,
)

RNG = np.random.default_rng


def check_elementwise(answer: Any, name: str, x: np.ndarray, y: np.ndarray, dx: np.ndarray, mistakes: Any = ()) -> None:
    """Judge a Function of elements: its outputs, its gradient, and that it writes into no argument."""
    function = construct(answer, Function, name)
    check_equal("forward(x)", call_answer("forward(x)", function.forward, x), y)
    check_unchanged("forward", function.forward, x)
    dy = RNG(1).normal(size=x.shape)
    check_equal("backward(dy)", call_answer("backward(dy)", function.backward, dy), dy * dx, mistakes(dy))


def check_parameters(layer: Any, example: str, **shapes: tuple[int, ...]) -> None:
    """Raise Wrong unless the attributes of the example with these names are parameters of these shapes."""
    for name, shape in shapes.items():
        parameter = getattr(layer, name, None)
        if not isinstance(parameter, Tensor) or not parameter.requires_grad:
            raise Wrong(f"The attribute {name} has to be cl.Tensor(…, requires_grad=True).")
        if parameter.shape != shape:
            raise Wrong(f"{name} has the shape {parameter.shape}; for {example} it should have {shape}.")


@exercise(
    "easy",
    10,
    "backward needs to know where x was above 0. Keep it in forward: `self.is_positive = x > 0`.",
    "dx is dy where x is above 0, and 0 elsewhere: `dy * self.is_positive`.",
)
def ReLU(answer: Any) -> None:
    """Write `class ReLU(cl.Function)`: y = max(x, 0), element by element.

    `forward(self, x)` returns y, and stores in attributes whatever `backward` needs. `backward(self, dy)` returns
    dx. Both work on NumPy arrays.
    """
    x = np.array([[-2.0, 0.5, 3.0], [1.0, -0.1, 7.0]])
    positive = (x > 0).astype(float)

    def mistakes(dy: np.ndarray) -> list:
        return [
            (positive, "this is the derivative of ReLU; multiply it by dy, as the chain rule says."),
            (np.maximum(dy, 0), "it depends on the sign of dy; it should depend on the sign of x."),
            (dy, "dx is dy only where x is above 0."),
        ]

    check_elementwise(answer, "ReLU", x, np.maximum(x, 0), positive, mistakes)
    check_backward(construct(answer, Function, "ReLU"), x)


@exercise(
    "medium",
    15,
    "The derivative is y (1 − y). So keep y, not x.",
    "`np.exp(-x)` overflows for x below −710. `np.exp(-abs(x))` never does. Which formula fits each sign?",
    "`e = np.exp(-abs(x)); y = np.where(x >= 0, 1, e) / (1 + e)`",
)
def Sigmoid(answer: Any) -> None:
    """Write `class Sigmoid(cl.Function)`: y = 1 / (1 + exp(−x)), even for x = −1000.

    NumPy shouldn't warn about an overflow. `backward` needs no exponential: the y of `forward` is enough.
    """
    x = np.array([[-2.0, 0.5, 3.0], [0.0, -0.1, 7.0]])
    y = 1 / (1 + np.exp(-x))

    def mistakes(dy: np.ndarray) -> list:
        return [
            (y * (1 - y), "this is the derivative; multiply it by dy."),
            (dy * x * (1 - x), "the derivative is y (1 − y), with y, not x."),
        ]

    check_elementwise(answer, "Sigmoid", x, y, y * (1 - y), mistakes)
    check_backward(construct(answer, Function, "Sigmoid"), x)
    try:
        with np.errstate(over="raise", invalid="raise"):
            extremes = construct(answer, Function, "Sigmoid").forward(np.array([-1000.0, 1000.0]))
    except FloatingPointError:
        raise Wrong("For x = ±1000 an exponential overflows. (np.where computes both of its choices.)") from None
    check_equal("forward([-1000, 1000])", extremes, [0, 1])


@exercise(
    "medium",
    20,
    "The parameters are Tensors: `cl.Tensor(…, requires_grad=True)`. Their arrays are `self.W.data` and `self.b.data`.",
    "In backward, `self.W.add_grad(x.T @ dy)` adds to the gradient of W.",
    "backward returns `dx = dy @ self.W.data.T`.",
)
def Linear(answer: Any) -> None:
    """Write `class Linear(cl.Function)`, with `Linear(in_features, out_features)`: y = x W + b.

    Keep W, of shape (in_features, out_features), and b, of shape (out_features,), in attributes with these names, as
    Tensors with `requires_grad=True`. Draw W at random, and let b start at 0. `backward(dy)` adds to the gradients of
    both, and returns dx.
    """
    layer = construct(answer, Function, "Linear", 4, 3)
    check_parameters(layer, "Linear(4, 3)", W=(4, 3), b=(3,))
    if np.unique(layer.W.data).size < 6:
        raise Wrong("W is not drawn at random. If all weights are equal, all units learn the same.")
    x, dy = RNG(0).normal(size=(2, 5, 4))[0], RNG(1).normal(size=(5, 3))
    W, b = layer.W.data.astype(np.float64), layer.b.data.astype(np.float64)
    check_equal("forward(x)", call_answer("forward(x)", layer.forward, x), x @ W + b, rtol=1e-5, atol=1e-6)
    check_products(construct(answer, Function, "Linear", 3, 3))
    dx = call_answer("backward(dy)", layer.backward, dy)
    for name, gradient in (("W", x.T @ dy), ("b", dy.sum(axis=0))):
        if getattr(layer, name).grad is None:
            raise Wrong(f"backward leaves no gradient for {name}: self.{name}.add_grad(…).")
        check_equal(f"The gradient of {name}", getattr(layer, name).grad, gradient, rtol=1e-5, atol=1e-6)
    check_equal("dx", dx, dy @ W.T, rtol=1e-5, atol=1e-6)
    call_answer("backward(dy)", layer.backward, dy)
    if not np.allclose(layer.b.grad, 2 * dy.sum(axis=0), rtol=1e-5, atol=1e-6):
        raise Wrong("A second backward has to add to the gradients: use add_grad, and do not set .grad.")
    check_backward(construct(answer, Function, "Linear", 3, 3), x[:, :3])


def check_products(layer: Any) -> None:
    """Raise Wrong if the gradients of a Linear(3, 3) are products without .T. In a square, they raise no error."""
    x, dy = RNG(2).normal(size=(2, 3, 3))
    layer.forward(x.copy())
    dx, W = call_answer("backward(dy)", layer.backward, dy), layer.W.data
    check_equal("dx", dx, dy @ W.T, [(dy @ W, "transpose W: dx = dy Wᵀ.")], rtol=1e-5, atol=1e-6)
    if layer.W.grad is not None:
        mistakes = [(a @ b, "transpose x: dW = xᵀ dy.") for a, b in ((x, dy), (dy, x), (dy, x.T))]
        check_equal("The gradient of W", layer.W.grad, x.T @ dy, mistakes, rtol=1e-5, atol=1e-6)


@exercise(
    "medium",
    15,
    "`cl.is_training()` tells you whether the net is being trained.",
    "In training: `keep = rng.random(x.shape) >= p; y = x * keep / (1 - p)`. Otherwise y = x.",
    "backward uses the same mask: `dy * self.mask`, where the mask has the 1 / (1 − p) in it.",
)
def Dropout(answer: Any) -> None:
    """Write `class Dropout(cl.Function)`, with `Dropout(p)`: switch elements off at random.

    While the net trains, `forward` sets each element to 0 with probability p, and divides the others by 1 − p. That
    keeps the mean the same. When the net is used, `forward` returns x. The gradient only flows through the elements
    that were kept.
    """
    layer, x = construct(answer, Function, "Dropout", 0.25), np.ones((100, 100))
    with inference():
        check_equal("forward(x) in use (cl.is_training() is False)", call_answer("forward(x)", layer.forward, x), x)
    y = np.asarray(call_answer("forward(x)", layer.forward, x))
    dropped = (y == 0).mean()
    if dropped == 0:
        raise Wrong("In training, no element is 0.")
    if abs(dropped - 0.25) > 0.03:
        raise Wrong(f"With p = 0.25, {dropped:.0%} of the elements are 0. p is the share that is dropped.")
    if abs(y.mean() - 1) > 0.05:
        raise Wrong(f"The mean of ones has become {y.mean():.2f}. Divide those that are kept by 1 − p.")
    check_equal("backward(dy), for x = 1", call_answer("backward(dy)", layer.backward, np.full(x.shape, 2.0)), 2 * y)
    if np.array_equal(np.asarray(call_answer("forward(x)", layer.forward, x)), y):
        raise Wrong("Two calls have dropped the same elements. Draw new ones in each forward.")
    check_unchanged("forward", layer.forward, x)
    with inference():
        layer.forward(x.copy())
        check_equal("backward(dy) in use", call_answer("backward(dy)", layer.backward, x), x)


@exercise(
    "hard",
    30,
    "`x.reshape(n, c, h // 2, 2, w // 2, 2)` gives each window two axes of its own.",
    "For the way back, keep where the largest elements were: `windows == y[..., None, :, None]`.",
    "If two elements of a window are equal, only the first may get the gradient: use argmax of the flattened windows.",
)
def MaxPool(answer: Any) -> None:
    """Write `class MaxPool(cl.Function)`: keep the largest number of each window of 2 × 2 pixels.

    x is (n, c, h, w), with even h and w, and y is (n, c, h / 2, w / 2). Only the largest number of a window gets the
    gradient. In a tie, that's the first one, row by row.
    """
    rng = RNG(0)
    x = rng.permutation(2 * 3 * 4 * 6).reshape(2, 3, 4, 6).astype(float)
    layer = construct(answer, Function, "MaxPool")
    reference = functions.MaxPool2d(2)
    check_equal("forward(x)", call_answer("forward(x)", layer.forward, x), reference.forward(x))
    dy = rng.normal(size=(2, 3, 2, 3))
    check_equal("backward(dy)", call_answer("backward(dy)", layer.backward, dy), reference.backward(dy))
    check_backward(construct(answer, Function, "MaxPool"), x)
    layer = construct(answer, Function, "MaxPool")
    call_answer("forward(x)", layer.forward, np.ones((1, 1, 2, 2)))
    mistakes = [(np.ones((1, 1, 2, 2)), "all four equal numbers get the gradient; only the first one should.")]
    check_equal("backward([[1]]) of four ones", layer.backward(np.ones((1, 1, 1, 1))), [[[[1, 0], [0, 0]]]], mistakes)


@exercise(
    "hard",
    40,
    "An output is Σ over channels and places: y[:, o, i] = Σ_c Σ_j x[:, c, i + j] · W[o, c, j] + b[o].",
    "Loop over the k places of the window. In each round, one `np.einsum` does the rest.",
    "`for j in range(k): dW[:, :, j] = einsum('nol,ncl->oc', dy, x[:, :, j : j + l]); dx[:, :, j : j + l] += …`",
)
def Conv1d(answer: Any) -> None:
    """Write `class Conv1d(cl.Function)`, with `Conv1d(in_channels, out_channels, k)`: slide a window along a series.

    x is (n, in_channels, length). Keep W, of shape (out_channels, in_channels, k), and b, of shape
    (out_channels,), as Tensors in attributes. An output is y[n, o, i] = Σ_c Σ_j x[n, c, i + j] W[o, c, j] + b[o], so
    y is (n, out_channels, length − k + 1). Don't flip the window: no framework does.
    """
    layer = construct(answer, Function, "Conv1d", 2, 3, 4)
    check_parameters(layer, "Conv1d(2, 3, 4)", W=(3, 2, 4), b=(3,))
    x = RNG(0).normal(size=(2, 2, 9))
    W, b = layer.W.data.astype(np.float64), layer.b.data.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(x, 4, axis=2)
    y = np.einsum("ncik,ock->noi", windows, W) + b[:, None]
    flipped = np.einsum("ncik,ock->noi", windows, W[:, :, ::-1]) + b[:, None]
    mistakes = [
        (flipped, "the window is flipped. Frameworks don't do that: W[o, c, j] belongs to x[n, c, i + j]."),
        (y - b[:, None], "the bias is missing."),
    ]
    check_equal("forward(x)", call_answer("forward(x)", layer.forward, x), y, mistakes, rtol=1e-5, atol=1e-6)
    check_backward(construct(answer, Function, "Conv1d", 2, 3, 4), x)


@exercise(
    "hard",
    45,
    "Loop over the k × k pixels (a, b) of the window. Each round is a product: `np.einsum('nchw,oc->nohw', …)`.",
    "Forward: `y = y + einsum('nchw,oc->nohw', x[:, :, a : a + h, b : b + w], W[:, :, a, b])`.",
    "Back, for each pixel (a, b): `dW[:, :, a, b] = einsum('nohw,nchw->oc', dy, x[:, :, a : a + h, b : b + w])`.",
    "… and `dx[:, :, a : a + h, b : b + w] += einsum('nohw,oc->nchw', dy, W[:, :, a, b])`. h and w are those of dy.",
    takeaway="Most nets that recognize images are built on these few lines.",
)
def Conv2d(answer: Any) -> None:
    """Write `class Conv2d(cl.Function)`, with `Conv2d(in_channels, out_channels, k)`: slide a window over images.

    x is (n, in_channels, height, width). Keep W, of shape (out_channels, in_channels, k, k), and b, of shape
    (out_channels,), as Tensors in attributes. An output is
    y[n, o, i, j] = Σ_c Σ_a Σ_b x[n, c, i + a, j + b] W[o, c, a, b] + b[o]. There is no padding, so y
    has k − 1 fewer rows and columns than x. Don't flip the window.
    """
    layer = construct(answer, Function, "Conv2d", 2, 3, 3)
    check_parameters(layer, "Conv2d(2, 3, 3)", W=(3, 2, 3, 3), b=(3,))
    x = RNG(0).normal(size=(2, 2, 5, 6))
    layer.b.data = np.arange(1.0, 4)
    W, b = layer.W.data.astype(np.float64), np.arange(1.0, 4)[:, None, None]
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))

    def convolve(W: np.ndarray) -> np.ndarray:
        return np.einsum("nchwab,ocab->nohw", windows, W)

    y = convolve(W) + b
    mistakes = [
        (convolve(W[:, :, ::-1, ::-1]) + b, "the window is flipped: W[o, c, a, b] belongs to x[n, c, i + a, j + b]."),
        (convolve(W.swapaxes(2, 3)) + b, "rows and columns of the window are swapped."),
        (y - b, "the bias is missing."),
        (convolve(W[:, :1]) + b, "it only has the first input channel; add up all of them."),
    ]
    check_equal("forward(x)", call_answer("forward(x)", layer.forward, x), y, mistakes, rtol=1e-5, atol=1e-6)
    check_unchanged("forward", layer.forward, x)
    check_backward(construct(answer, Function, "Conv2d", 2, 3, 3), x)


@exercise(
    "hard",
    40,
    "Centre each row, then divide it by its standard deviation: xhat = (x − mean) / std.",
    "The mean and the standard deviation depend on x, too. So dx has three terms.",
    "dx = (dy − dy.mean(row) − xhat · (dy · xhat).mean(row)) / std",
)
def LayerNorm(answer: Any) -> None:
    """Write `class LayerNorm(cl.Function)`: bring each row to mean 0 and standard deviation 1.

    x is (n, d), and y = (x − mean) / √(variance + 1e-5), with the mean and the variance of each row. This one has no
    parameters.
    """
    x = RNG(0).normal(2, 3, size=(4, 6))
    layer = construct(answer, Function, "LayerNorm")
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    y = (x - mean) / np.sqrt(variance + 1e-5)
    columns = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)
    unbiased = (x - mean) / np.sqrt(x.var(axis=1, ddof=1, keepdims=True) + 1e-5)
    mistakes = [
        (columns, "the columns have mean 0. That is BatchNorm; here it is the rows: axis=1."),
        (unbiased, "the variance is divided by d − 1; divide by d, as np.var does."),
    ]
    check_equal("forward(x)", call_answer("forward(x)", layer.forward, x), y, mistakes)
    dy = RNG(1).normal(size=x.shape)
    result = call_answer("backward(dy)", layer.backward, dy)
    std = np.sqrt(variance + 1e-5)
    dx = (dy - dy.mean(axis=1, keepdims=True) - y * (dy * y).mean(axis=1, keepdims=True)) / std
    mistakes = [
        (dy / std, "mean and variance are treated as constants. They depend on x, too."),
        ((dy - dy.mean(axis=1, keepdims=True)) / std, "the variance is treated as a constant. It depends on x, too."),
    ]
    check_equal("backward(dy)", result, dx, mistakes)
    check_backward(construct(answer, Function, "LayerNorm"), x)


@exercise(
    "medium",
    15,
    "forward is one index: `self.W.data[indices]`.",
    "If an index occurs twice, its row of W is used twice. So its gradients add up.",
    "`gradient = np.zeros_like(W); np.add.at(gradient, indices, dy)`. `gradient[indices] += dy` counts repeats once.",
)
def Embedding(answer: Any) -> None:
    """Write `class Embedding(cl.Function)`, with `Embedding(count, size)`: look up a vector for each word.

    Keep the table W, of shape (count, size), as a Tensor in an attribute. `forward(indices)` gets integers of shape
    (n, length), and returns their vectors, of shape (n, length, size). `backward(dy)` adds to the gradient of W.
    Integers have no gradient, so it may return None.
    """
    layer = construct(answer, Function, "Embedding", 7, 3)
    check_parameters(layer, "Embedding(7, 3)", W=(7, 3))
    indices, W = np.array([[1, 2, 1, 1], [0, 6, 2, 5]]), layer.W.data.astype(np.float64)
    y = call_answer("forward(indices)", layer.forward, indices)
    check_equal("forward(indices)", y, W[indices], rtol=1e-6)
    check_unchanged("forward", layer.forward, indices)
    dy = RNG(1).normal(size=(2, 4, 3)).astype(layer.W.dtype)
    expected, counted_once = np.zeros((7, 3)), np.zeros((7, 3))
    np.add.at(expected, indices, dy)
    counted_once[indices] += dy
    try:
        layer.backward(dy.copy())
    except Exception as error:
        raise Wrong(f"backward(dy) raised {type(error).__name__}: {error}.") from error
    if layer.W.grad is None:
        raise Wrong("backward leaves no gradient for W: self.W.add_grad(…).")
    once = "a word that occurs twice counts only once. That's what `gradient[indices] += dy` does; use np.add.at."
    check_equal("The gradient of W", layer.W.grad, expected, [(counted_once, once)], rtol=1e-5, atol=1e-6)


@exercise(
    "hard",
    60,
    "scores = q kᵀ / √d, p = softmax of each row of scores, y = p v.",
    "Back: dv = pᵀ dy, dp = dy vᵀ. For softmax, ds = p (dp − Σ over the row of dp p).",
    "dq = ds k / √d and dk = dsᵀ q / √d. For stacks of matrices, transpose with `np.swapaxes(a, -1, -2)`.",
    takeaway="You have written the heart of a transformer, forward and backward.",
)
def Attention(answer: Any) -> None:
    """Write `class Attention(cl.Function)`: y = softmax(q kᵀ / √d) v.

    The queries q, the keys k and the values v are (n, length, d). The softmax goes along the last axis.
    `forward(q, k, v)` returns y, and `backward(dy)` returns three gradients: dq, dk, dv.
    """
    q, k, v = RNG(0).normal(size=(3, 2, 5, 4))
    layer = construct(answer, Function, "Attention")

    def attend(scale: float, axis: int = -1) -> np.ndarray:
        scores = q @ np.swapaxes(k, -1, -2) * scale
        exp = np.exp(scores - scores.max(axis=axis, keepdims=True))
        return exp / exp.sum(axis=axis, keepdims=True) @ v

    mistakes = [
        (attend(1.0), "the scores are not divided by √d."),
        (attend(1 / 4), "the scores are divided by d; divide by √d."),
        (
            attend(0.5, axis=-2),
            "the softmax goes along the wrong axis: each query shares 1 among the keys, along the last axis.",
        ),
    ]
    check_equal("forward(q, k, v)", call_answer("forward(q, k, v)", layer.forward, q, k, v), attend(0.5), mistakes)
    gradients = call_answer("backward(dy)", layer.backward, np.ones((2, 5, 4)))
    if not isinstance(gradients, tuple) or len(gradients) != 3:
        raise Wrong("backward has to return a tuple of three gradients: return dq, dk, dv.")
    check_backward(construct(answer, Function, "Attention"), q, k, v)
