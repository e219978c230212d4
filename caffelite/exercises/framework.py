"""The framework: a graph, optimizers, batches, a training loop."""

from __future__ import annotations

from time import thread_time
from typing import Any

import numpy as np

from caffelite.data import datasets
from caffelite.exercises.exercise import Wrong, call_answer, check_equal, construct, exercise, unpack

RNG = np.random.default_rng
SLOW = 0.1  # seconds for 20 additions, which take a few microseconds if each Scalar is visited once


@exercise(
    "hard",
    45,
    "Each result keeps its inputs and a function for their gradients. backward goes from the newest to the oldest.",
    "Give each Scalar a number when it is made, counting up. In this order, inputs come before results.",
    "Gradients add up: `x.grad += …`, since x may have been used several times.",
    takeaway="Give it arrays instead of numbers, and it is the core of a framework.",
)
def autograd(answer: Any) -> str | None:
    """Write `class Scalar`: a number that remembers how it was made.

    `Scalar(3.0)` has two attributes: `data`, and `grad`, which starts at 0. You can add and multiply Scalars, `a + b`
    and `a * b`. After `c.backward()`, each Scalar a that c was made from has its gradient dc / da in `grad`. You may
    use a Scalar more than once.
    """

    def make_scalars(*values: float) -> list:
        return [construct(answer, object, "Scalar", value) for value in values]

    def check_derivatives(
        what: str, result: Any, inputs: list, value: float, gradients: list[float], mistakes: Any = ()
    ) -> None:
        check_equal(f"The data of {what}", getattr(result, "data", None), value)
        try:
            result.backward()
        except RecursionError:
            raise Wrong(f"backward of {what} calls itself without end.") from None
        except Exception as error:
            raise Wrong(f"backward of {what} raised {type(error).__name__}: {error}.") from error
        for name, scalar, gradient in zip("abc", inputs, gradients, strict=False):
            check_equal(f"The gradient of {name} in {what}", scalar.grad, gradient, mistakes)

    twice = "it is 3; it should be 6. a is used twice, and both uses count: x.grad += …, and not x.grad = …"
    formulas: list[tuple[str, Any, list[float], float, list[float]]] = [
        ("a + b", lambda a, b: a + b, [2.0, 5.0], 7, [1, 1]),
        ("a * b", lambda a, b: a * b, [2.0, 5.0], 10, [5, 2]),
        ("(a + b) * c", lambda a, b, c: (a + b) * c, [2.0, 5.0, -1.0], -7, [-1, -1, 7]),
        ("a * a", lambda a: a * a, [3.0], 9, [6]),
    ]
    for what, formula, values, value, gradients in formulas:
        inputs = make_scalars(*values)
        mistakes = [(3, twice)] if what == "a * a" else []
        check_derivatives(what, call_answer(what, formula, *inputs), inputs, value, gradients, mistakes)
    (a,) = make_scalars(3.0)
    square = call_answer("a * a", lambda a: a * a, a)
    both = call_answer("s * s + s", lambda s: s * s + s, square)
    early = (
        "it should be 114. s came too early: it passed its gradient on to a before all three uses of s had added "
        "to it. Visit a Scalar once, after everything that was made from it."
    )
    check_derivatives("s * s + s with s = a * a", both, [a], 90, [2 * 9 * 6 + 6], [(None, early)])
    (a,) = make_scalars(1.0)
    total = a
    for _ in range(20):
        total = call_answer("t + t", lambda t: t + t, total)
    begin = thread_time()
    check_derivatives("a doubled 20 times", total, [a], 2.0**20, [2.0**20])
    if (seconds := thread_time() - begin) > SLOW:
        return (
            f"But it is slow: to a number that is doubled 20 times, 2²⁰ paths lead, and backward walks all of them, in "
            f"{seconds:.1f} seconds. Visit each Scalar once, the newest first, and there are 21 visits."
        )
    return None


@exercise(
    "easy",
    5,
    "The velocity: v = mu · v + g. The step: w = w − lr · v.",
    "`return w - lr * v, v`, with the new v.",
)
def momentum(answer: Any) -> None:
    """Write `momentum(w, g, v, lr, mu)`: take one step of gradient descent with momentum.

    w are the parameters, g is their gradient, and v is the velocity, which is 0 before the first step. First
    v ← mu v + g, and then w ← w − lr v. Return the new w and the new v.
    """
    w = RNG(0).normal(size=4)
    mine, v, expected, u = w.copy(), np.zeros(4), w.copy(), np.zeros(4)
    old, t = w.copy(), np.zeros(4)  # for a step with the old velocity
    for i in range(3):
        g = RNG(i + 1).normal(size=4)
        result = call_answer("momentum(w, g, v, lr, mu)", answer, mine, g, v, 0.1, 0.9)
        old, t = old - 0.1 * t, 0.9 * t + g
        u = 0.9 * u + g
        expected = expected - 0.1 * u
        mine, v = map(np.asarray, unpack(result, (expected, u), "the new w", "the new v"))
        mistakes = [
            (old, "the step uses the velocity of before. First v, then w."),
            (w - 0.1 * 0.1 * g, "the gradient is multiplied by 1 − mu. Here it is not: v = mu v + g."),
        ]
        check_equal(f"w after step {i + 1}", mine, expected, mistakes)
        check_equal(f"v after step {i + 1}", v, u)


@exercise(
    "medium",
    15,
    "With β₁ = 0.9 and β₂ = 0.999, m = β₁ m + (1 − β₁) g averages g, and s = β₂ s + (1 − β₂) g² averages its square.",
    "Both begin at 0, so they are too small at first. Divide them by 1 − β₁ᵗ and 1 − β₂ᵗ.",
    "w − lr · (m / (1 − β₁ᵗ)) / (√(s / (1 − β₂ᵗ)) + 1e-8)",
)
def adam(answer: Any) -> None:
    """Write `adam(w, g, m, s, t, lr)`: take step number t of Adam. The first step has t = 1.

    First the averages, m ← 0.9 m + 0.1 g and s ← 0.999 s + 0.001 g². Then the step, w ← w − lr m̂ / (√ŝ + 1e-8), with
    m̂ = m / (1 − 0.9ᵗ) and ŝ = s / (1 − 0.999ᵗ). Return the new w, m and s.
    """
    w = RNG(0).normal(size=4)
    mine, m, s = w.copy(), np.zeros(4), np.zeros(4)
    right, mr, sr = w.copy(), np.zeros(4), np.zeros(4)
    for t in (1, 2, 3):
        g = RNG(t).normal(size=4)
        result = call_answer("adam(w, g, m, s, t, lr)", answer, mine, g, m, s, t, 0.01)
        before = right
        mr, sr = 0.9 * mr + 0.1 * g, 0.999 * sr + 0.001 * g * g
        m_hat, s_hat = mr / (1 - 0.9**t), sr / (1 - 0.999**t)
        right = before - 0.01 * m_hat / (np.sqrt(s_hat) + 1e-8)
        mine, m, s = map(np.asarray, unpack(result, (right, mr, sr), "the new w", "the new m", "the new s"))
        mistakes = [
            (before - 0.01 * mr / (np.sqrt(sr) + 1e-8), "m and s are not corrected for having begun at 0."),
            (before + 0.01 * m_hat / (np.sqrt(s_hat) + 1e-8), "it goes uphill: subtract."),
            (before - 0.01 * m_hat / (s_hat + 1e-8), "take the square root of ŝ."),
        ]
        check_equal(f"w after step {t}", mine, right, mistakes, rtol=1e-7)
        corrected = "return m and s without the correction, which is for the step only."
        check_equal(f"m after step {t}", m, mr, [(m_hat, corrected)])
        check_equal(f"s after step {t}", s, sr, [(s_hat, corrected)])


@exercise(
    "medium",
    10,
    "`rng.permutation(len(x))` is a random order of all rows.",
    "Take `size` of these numbers at a time, and index both arrays with them: `x[chosen], y[chosen]`.",
    "`for start in range(0, len(x), size): chosen = order[start : start + size]; yield x[chosen], y[chosen]`",
)
def batches(answer: Any) -> None:
    """Write `batches(x, y, size, rng)`: a generator that yields the mini-batches of one epoch.

    A batch is a pair of arrays, `size` rows of x and the same rows of y. rng, a NumPy generator, draws their order.
    Each row appears exactly once, and the last batch may be shorter.
    """
    x, y = np.arange(20).reshape(10, 2), np.arange(10) * 10
    orders = []
    for seed in (0, 1):
        pairs = call_answer("batches(x, y, 4, rng)", answer, x, y, 4, RNG(seed))
        try:
            pairs = [(np.asarray(a), np.asarray(b)) for a, b in pairs]
        except (TypeError, ValueError) as error:
            raise Wrong(f"It has to yield pairs (x, y) of arrays: {error}.") from None
        except Exception as error:
            raise Wrong(f"batches raised {type(error).__name__}: {error}.") from error
        sizes = [len(a) for a, _ in pairs]
        if sizes == [4, 4]:
            raise Wrong("The last two of the 10 rows are missing. The last batch may be shorter.")
        if sizes != [4, 4, 2]:
            raise Wrong(f"10 rows make batches of 4, 4 and 2 rows; yours have {sizes}.")
        for a, b in pairs:
            if not np.array_equal(a[:, 0] * 5, b):
                raise Wrong(f"Rows and targets don't belong together: x {a[:, 0]} has y {b}. Use one order for both.")
        orders.append(np.concatenate([b for _, b in pairs]) // 10)
        if sorted(orders[-1]) != list(range(10)):
            raise Wrong(f"Each row has to come exactly once; yours were: {sorted(orders[-1].tolist())}.")
    if any(np.array_equal(order, np.arange(10)) for order in orders):
        raise Wrong("The rows are in order. Shuffle them.")
    if np.array_equal(orders[0], orders[1]):
        raise Wrong("Two different generators give the same order. Use rng, and no seed of your own.")


@exercise(
    "medium",
    10,
    "`cl.MLP(2, [100, 3])`, `cl.SoftmaxLoss()` and `cl.SGD(…, lr=0.1, momentum=0.9)` are enough. predict gives scores.",
    "The class is the largest score: `model.predict(x).argmax(axis=1)`.",
    "`return lambda x: model.predict(x).argmax(axis=1)`, after `model.fit(x, y, …, epochs=300)`.",
)
def train(answer: Any) -> str:
    """Write `train(x, y)`: train a net to tell three spirals apart, and return a function that predicts.

    x is (300, 2), and y is (300,), with the classes 0, 1 and 2. Your function gets points of shape (n, 2),
    and returns their classes, of shape (n,). It should get 95 % of *other* points of the spirals right. Use caffelite,
    or NumPy alone.
    """
    x, y = datasets.spiral(points_per_class=100, seed=3)
    x_test, y_test = datasets.spiral(points_per_class=100, seed=4)
    predict = call_answer("train(x, y)", answer, x, y)
    predicted = np.asarray(call_answer("The result of train", predict, x_test))
    if predicted.shape == (300, 3):
        raise Wrong("Your function returns three scores for each point; return the class: .argmax(axis=1).")
    if predicted.shape != (300,):
        raise Wrong(f"Your function returned shape {predicted.shape} for 300 points; it should be (300,).")
    accuracy = float((predicted == y_test).mean())
    if accuracy < 0.95:
        hint = "It knows the points that it was trained on: has it memorized the noise (overfitting)?"
        if (np.asarray(predict(x.copy())) == y).mean() < 0.95:
            hint = "It doesn't even know the points that it was trained on: more epochs, or another learning rate?"
        raise Wrong(f"{accuracy:.0%} of the new points are right; it should be 95 %. {hint}")
    return f"{accuracy:.1%} of the new points."
