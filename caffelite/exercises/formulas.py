"""Formulas: functions of arrays, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite.exercises.exercise import Wrong, call_answer, check_equal, check_unchanged, exercise, unpack


@exercise(
    "easy",
    3,
    "np.maximum compares two arrays, element by element. One of them may be a number.",
    "`np.maximum(x, 0)`",
    takeaway="(np.max(x, 0) would be something else: the largest number of each column.)",
)
def relu(answer: Any) -> None:
    """Write `relu(x)`: replace every negative element of x by 0.

    x is an array of any shape. Return a new array of the same shape, and don't change x.
    """
    x = np.array([[-2.0, 0.5, 3.0], [0.0, -0.1, 7.0]])
    y = call_answer("relu(x)", answer, x)
    check_equal(
        "relu(x)", y, np.maximum(x, 0), [(np.max(x, 0), "np.max takes the maximum along an axis; use np.maximum.")]
    )
    check_unchanged("relu", answer, x)
    check_equal("relu of a row of five", call_answer("relu(x)", answer, np.arange(-2.0, 3)), [0, 0, 0, 1, 2])


@exercise(
    "easy",
    5,
    "Go a little to the right of w, and a little to the left. How far apart are these two places?",
    "`(f(w + eps) - f(w - eps)) / (2 * eps)`",
    takeaway="Its error shrinks with eps². With (f(w + eps) - f(w)) / eps, it shrinks only with eps.",
)
def slope(answer: Any) -> None:
    """Write `slope(f, w)`: measure how steep the function f is at w, with a central difference.

    f takes one number and returns one. Seven digits of the slope should be right.
    """
    for name, f, w, expected in (
        ("w²", lambda w: w * w, 3.0, 6.0),
        ("exp(w)", np.exp, 1.0, np.e),
        ("sin(w)", np.sin, 0.5, np.cos(0.5)),
    ):
        check_slope(answer, name, f, w, expected)


def check_slope(answer: Any, name: str, f: Any, w: float, expected: float) -> None:
    """Raise Wrong unless the answer finds the slope of the function at w."""
    places: list[float] = []

    def record(place: float) -> float:
        places.append(place)
        return f(place)

    got = call_answer(f"slope(f, {w})", answer, record, w)
    eps = max((np.max(np.abs(place - w)) for place in places), default=1e-5)
    right, left = f(w + eps), f(w - eps)
    mistakes = [
        (2 * expected, "w + eps and w − eps are 2 · eps apart, not eps."),
        (-expected, "f(w + eps) comes first."),
        (right - left / (2 * eps), "put brackets around the difference: (f(w + eps) - f(w - eps)) / (2 * eps)."),
        ((right - left) / 2 * eps, "a / 2 * eps is (a / 2) · eps. Write a / (2 * eps)."),
    ]
    if eps < 1e-9:
        mistakes = [(None, "f is only called at w, or nearly so (w + 1e-16 is w). Use a larger eps.")]
    check_equal(f"The slope of {name} at {w}", got, expected, mistakes, rtol=1e-3)
    if abs(got - expected) > 1e-7 * max(1, abs(expected)):
        raise Wrong(
            f"The slope of {name} at {w} is {got:.12g}; it should be {expected:.12g}. Fewer than seven digits are "
            "right. Use both sides of w, and an eps near 1e-5: if it is too small, rounding takes over."
        )


@exercise(
    "easy",
    10,
    "The loss is the mean of (p − y)². Its derivative for one element is 2 (p − y), over the number of elements.",
    "`return ((p - y) ** 2).mean(), 2 * (p - y) / p.size`",
    takeaway="The 1 / n comes from the mean: the loss takes one n-th of each squared error.",
)
def mse(answer: Any) -> None:
    """Write `mse(p, y)`: return the mean squared error of the predictions p, and its gradient dp.

    p and the targets y have the same shape. The loss is a number, and dp has the shape of p.
    """
    rng = np.random.default_rng(0)
    p, y = rng.normal(size=(2, 5, 3))
    error = p - y
    expected, right = (error**2).mean(), 2 * error / error.size
    loss, dp = unpack(call_answer("mse(p, y)", answer, p, y), (expected, right), "the loss", "dp")
    mistakes = [
        ((error**2).sum(), "it is the sum; take the mean."),
        (expected / 2, "it is half of it. Take the mean itself, without the ½."),
        (np.sqrt(expected), "it is its root. Take the mean itself."),
        (np.abs(error).mean(), "it is the mean of |p − y|; square the errors, as (p - y) ** 2."),
    ]
    check_equal("The loss", loss, expected, mistakes)
    mistakes = [
        (2 * error, "the loss is a mean, so the gradient has to be divided by the number of elements, p.size."),
        (error / error.size, "the derivative of e² is 2 e; the 2 is missing."),
        (-right, "it has the wrong sign: it is the gradient for y. Take p − y."),
        (2 * error / len(p), "it is divided by the number of rows; the mean goes over all elements, p.size."),
    ]
    check_equal("dp", dp, right, mistakes)


@exercise(
    "medium",
    10,
    "Softmax stays the same if you subtract a number from all scores of a row. Which number avoids large exponentials?",
    "Subtract the largest score of each row: `s - s.max(axis=1, keepdims=True)`.",
    "`exp = np.exp(s - s.max(axis=1, keepdims=True)); return exp / exp.sum(axis=1, keepdims=True)`",
)
def softmax(answer: Any) -> None:
    """Write `softmax(s)`: turn each row of scores into probabilities.

    s is (n, c): a row for each example, a column for each class. The probability of class k is
    p_k = exp(s_k) / Σ_j exp(s_j). Your function should survive scores of 1,000. Don't change s.
    """
    s = np.random.default_rng(0).normal(size=(4, 3))
    exp = np.exp(s)
    p = exp / exp.sum(axis=1, keepdims=True)
    got = call_answer("softmax(s)", answer, s)
    mistakes = [
        (exp / exp.sum(), "all numbers together add up to 1, but each row should: sum along axis=1."),
        (exp / exp.sum(axis=0), "the columns add up to 1, but each row should: axis=1, keepdims=True."),
        (exp, "these are the exponentials; divide each by the sum of its row."),
        (s / s.sum(axis=1, keepdims=True), "the exponential is missing: first np.exp, then divide."),
        (p / np.exp(s.max(axis=1, keepdims=True)), "the largest score has to be subtracted below the line, too."),
    ]
    check_equal("softmax(s)", got, p, mistakes)
    check_unchanged("softmax", answer, s)
    with np.errstate(all="ignore"):
        large = np.asarray(call_answer("softmax(s)", answer, s + 1000))
    if not np.isfinite(large).all():
        raise Wrong("For scores of 1,000 the result is not finite, because exp(1000) is infinite.")
    check_equal("softmax(s + 1000)", large, p)
    wide = np.array([[0.0, 1000.0], [0.0, -1000.0]])
    with np.errstate(all="ignore"):
        got = np.asarray(call_answer("softmax(s)", answer, wide))
    if not np.isfinite(got).all():
        raise Wrong("Rows of different size give NaN. Subtract the largest score of each row, not of all rows.")
    check_equal("softmax([[0, 1000], [0, -1000]])", got, [[0, 1], [1, 0]])


@exercise(
    "medium",
    15,
    "The probability of the right class in each row is `p[np.arange(n), labels]`.",
    "The gradient is the probabilities, minus 1 at the right class, all divided by n.",
    "`ds = p.copy(); ds[np.arange(n), labels] -= 1; return -np.log(p[np.arange(n), labels]).mean(), ds / n`",
    takeaway="This is why softmax and the logarithm belong together: most of their derivatives cancel.",
)
def cross_entropy(answer: Any) -> None:
    """Write `cross_entropy(s, labels)`: return the cross-entropy of the scores s, and its gradient ds.

    s is (n, c). labels is (n,), with the right class of each row, from 0 to c − 1. With p = softmax(s), the loss is the
    mean of −log p at the labels, a number. ds has the shape of s.
    """
    rng = np.random.default_rng(0)
    s, labels = rng.normal(size=(5, 3)), np.array([0, 2, 1, 1, 0])
    exp = np.exp(s)
    p = exp / exp.sum(axis=1, keepdims=True)
    onehot = np.eye(3)[labels]
    rows = -np.log(p[np.arange(5), labels])
    result = call_answer("cross_entropy(s, labels)", answer, s, labels)
    loss, ds = unpack(result, (rows.mean(), (p - onehot) / 5), "the loss", "ds")
    table = "p[:, labels] is a table (n, n): each row with all labels. Take one of each row, p[np.arange(n), labels]."
    mistakes = [
        (rows.sum(), "it is the sum over the rows; take the mean."),
        (-rows.mean(), "the sign: the loss is −log p, which is never negative."),
        (rows, "it has a number for each row; take their mean."),
        (-np.log(p).mean(), "it is the mean over all classes; take the right class of each row only."),
        (-np.log(p[:, labels]).mean(), table),
        (-np.log(p[:, labels]).sum() / 5, table),
        (np.nan, "it is nan: the log of a number below 0. Is it log s? p = softmax(s). Was p changed? ds = p.copy()."),
    ]
    check_equal("The loss", loss, rows.mean(), mistakes)
    mistakes = [
        (p - onehot, "the loss is a mean over n rows, so the gradient has to be divided by n."),
        (p / 5, "subtract 1 at the right class."),
        ((p - 1) / 5, f"1 is subtracted everywhere. {table.replace('p[', 'ds[')}"),
        ((onehot - p) / 5, "it has the wrong sign: it is p − onehot."),
        ((p - onehot) / 15, "divide by the number of rows, not by the number of elements."),
    ]
    check_equal("ds", ds, (p - onehot) / 5, mistakes)


@exercise(
    "medium",
    10,
    "dW has the shape of W, and dx has the shape of x. For each, only one product of two of x, W and dy fits.",
    "b is added to each row, so its gradient is the sum of the rows of dy.",
    "`return dy @ W.T, x.T @ dy, dy.sum(axis=0)`",
    takeaway="Two products backward for each product forward: that is why backward takes twice as long.",
)
def linear_backward(answer: Any) -> None:
    """Write `linear_backward(x, W, dy)`: return the gradients dx, dW and db of y = x W + b.

    x is (n, d), W is (d, m), b is (m,). dy is (n, m): the gradient of the loss with respect to y. Don't change them.
    """
    rng = np.random.default_rng(0)
    for n, d, m in ((3, 3, 3), (5, 3, 2)):  # square first: a product without .T gives numbers, and not an error
        x, W, dy = rng.normal(size=(n, d)), rng.normal(size=(d, m)), rng.normal(size=(n, m))
        right = dy @ W.T, x.T @ dy, dy.sum(axis=0)
        result = call_answer("linear_backward(x, W, dy)", answer, x, W, dy)
        dx, dW, db = unpack(result, right, "dx", "dW", "db")
        square = n == d == m
        mistakes = [(a @ b, "transpose W: dx = dy Wᵀ.") for a, b in ((dy, W), (W, dy), (W.T, dy)) if square]
        check_equal("dx", dx, right[0], mistakes)
        mistakes = [(a @ b, "transpose x: dW = xᵀ dy.") for a, b in ((x, dy), (dy, x), (dy, x.T)) if square]
        mistakes += [
            (right[1].T, "it is transposed: dW = xᵀ dy has the shape of W."),
            (right[1] / n, "dy has the 1 / n already; only sum."),
        ]
        check_equal("dW", dW, right[1], mistakes)
        mistakes = [
            (dy.mean(axis=0), "sum the rows; dy has the 1 / n of the mean already."),
            (dy, "b is added to every row, so sum over the rows."),
            (dy.sum(axis=0, keepdims=True), "it has the shape (1, m); b is (m,)."),
            (dy.sum(axis=1), "sum over the rows, axis=0."),
        ]
        check_equal("db", db, right[2], mistakes)
        check_unchanged("linear_backward", answer, x, W, dy)


@exercise(
    "easy",
    5,
    "Repeat: w ← w − lr · slope(w).",
    "`for _ in range(steps): w = w - lr * slope(w)`",
    takeaway="On (w − 3)², lr = 1 would make w jump from side to side for ever: try it.",
)
def descend(answer: Any) -> None:
    """Write `descend(slope, w, lr, steps)`: walk downhill from w by gradient descent.

    slope(w) is the slope of the loss at w, and lr is the learning rate. Take `steps` steps, and return the final w.
    w may be a number or an array. Don't change the array that you get.
    """

    def slope_of_square(w: Any) -> Any:
        return 2 * (w - 3)

    def descend_to(w: Any, steps: int, lr: float = 0.1) -> Any:
        for _ in range(steps):
            w = w - lr * slope_of_square(w)
        return w

    got = call_answer("descend(slope, w, lr, steps)", answer, slope_of_square, 0.0, 0.1, 10)
    mistakes = [
        (descend_to(0.0, 10, lr=-0.1), "it goes uphill: subtract the slope."),
        (descend_to(0.0, 9), "it makes one step too few."),
        (descend_to(0.0, 11), "it makes one step too many."),
        (descend_to(0.0, 1), "it makes one step. Is the `return` inside of the loop, or does w stay the same in it?"),
    ]
    check_equal("After 10 steps for (w − 3)², w", got, descend_to(0.0, 10), mistakes)
    check_equal("After 0 steps, w", call_answer("descend", answer, slope_of_square, 1.5, 0.1, 0), 1.5)
    w = np.array([0.0, 5.0])
    got = call_answer("descend", answer, slope_of_square, w, 0.1, 3)
    check_equal("After 3 steps for an array, w", got, descend_to(w, 3))
    passed = w.copy()
    answer(slope_of_square, passed, 0.1, 3)
    if not np.array_equal(w, passed):
        raise Wrong("descend has changed the array w that it got: w -= … writes into it. Write w = w - …")
