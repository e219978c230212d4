"""The machine: what a step costs, how it is recorded, and how to be fast."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from timeit import timeit
from typing import Any

import numpy as np

from caffelite.core.tensor import Tensor
from caffelite.exercises.exercise import ERRORS, Wrong, call_answer, check_equal, exercise
from caffelite.functions import MSELoss
from caffelite.model.mlp import MLP
from caffelite.optimizers import SGD
from caffelite.program import capture


@exercise(
    "medium",
    15,
    "An (M, K) matrix times a (K, N) matrix takes M · N · K multiplications and as many additions.",
    "A layer has one product forward, x W, and two backward, xᵀ dy and dy Wᵀ. They have the same number of operations.",
    "The first layer needs no dx: nobody uses the gradient of the data.",
    takeaway="print(cl.capture(step, x, y)) shows the same number, product by product.",
)
def flop(answer: Any) -> None:
    """Write `flop(rows, sizes)`: count the floating-point operations in the matrix products of one training step.

    The net is made of Linear layers: sizes = [64, 100, 10] means 64 numbers in, 100 hidden units, 10 numbers out. Count
    the products forward and backward, but not the gradient of the data, which nobody needs. Biases, ReLU, loss and
    optimizer don't count.
    """
    for rows, sizes in ((200, [64, 100, 10]), (32, [2, 8, 8, 3]), (1, [5, 4])):
        layers = [2 * rows * a * b for a, b in pairwise(sizes)]
        right = 3 * sum(layers) - layers[0]
        mistakes = [
            (sum(layers), "these are the products forward; count those backward, too."),
            (3 * sum(layers), "the gradient of the data is counted; nobody needs it."),
            (right / 2, "a multiplication and an addition are two operations."),
        ]
        check_equal(f"flop({rows}, {sizes})", call_answer("flop(rows, sizes)", answer, rows, sizes), right, mistakes)


@exercise(
    "easy",
    10,
    "`x > 0` is a NumPy array of the current values. A replay can't compute it again, so `capture` raises TypeError.",
    "Which of x and 0.1 x is the larger one, for x above 0, and for x below?",
    "`return cl.maximum(x, 0.1 * x)`",
)
def recordable(answer: Any) -> None:
    """Write `leaky(x)` in a way that can be recorded: multiply the negative elements of the Tensor x by 0.1.

    Use caffelite's operations: no NumPy, no `if`, and no loop over the elements.
    """
    x = np.array([[-1.0, 2.0], [3.0, -4.0]], np.float32)
    new_x = -x
    result = call_answer("leaky(x)", answer, Tensor(x.copy()))
    if not isinstance(result, Tensor):
        raise Wrong(f"leaky(x) has to return a Tensor. It returned {type(result).__name__}.")
    check_equal("leaky(x)", result.data, np.where(x > 0, x, 0.1 * x), rtol=1e-5)
    try:
        program = capture(lambda x: answer(Tensor(x)), x.copy())
        replayed = program(new_x.copy())
    except ERRORS as error:
        raise Wrong(f"It cannot be recorded: {error}") from error
    replayed = replayed.data if isinstance(replayed, Tensor) else replayed
    mistakes = [(np.where(x > 0, new_x, 0.1 * new_x), "it repeats what it decided for the first data.")]
    check_equal("The replay on other data", replayed, np.where(new_x > 0, new_x, 0.1 * new_x), mistakes, rtol=1e-5)


@exercise(
    "medium",
    20,
    "A step by hand calls a dozen kernels from Python. `cl.capture(step, x, y)` records them.",
    "`program = cl.capture(step, x, y)` takes the first step. Each `program(x, y)` is one more.",
    "`program = cl.capture(step, x, y)`, and then `for _ in range(steps - 1): program(x, y)`",
    takeaway="`fit` goes further: it needs no Python between the steps either.",
)
def replay(answer: Any) -> str:
    """Write `train_replayed(model, loss, optimizer, x, y, steps)`: train without Python between the kernels.

    Take `steps` training steps on x and y, three times as fast as this loop:

        for _ in range(steps):
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()

    Afterwards the parameters should be the same, to the last bit.
    """
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    y = np.square(x[:, :1])

    def make_model() -> tuple[Any, ...]:
        model = MLP(4, [8, 1], seed=0)
        return model, MSELoss(), SGD(model.parameters(), lr=0.05)

    def train_eagerly(model: Any, loss: Any, optimizer: Any, x: Any, y: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()

    def train(step_loop: Any, steps: int) -> list[np.ndarray]:
        model, *rest = make_model()
        call_answer("train_replayed(…)", lambda: step_loop(model, *rest, x.copy(), y.copy(), steps) or True)
        return [p.data.copy() for p in model.parameters()]

    for steps in (1, 50):
        got, expected = train(answer, steps), train(train_eagerly, steps)
        if not all(map(np.array_equal, got, expected)):
            for n, message in ((steps - 1, "one step too few"), (steps + 1, "one step too many")):
                if all(map(np.array_equal, got, train(train_eagerly, n))):
                    raise Wrong(f"It takes {message}. (`capture` takes the first step itself.)")
            raise Wrong(f"After step {steps}, the parameters differ from those of the loop.")
    speedup = measure_speedup(lambda: train(answer, 500), lambda: train(train_eagerly, 500), rounds=7)
    if speedup < 3:
        raise Wrong(f"It is {speedup:.1f} times as fast as the loop; it should be 3 times.")
    return f"{speedup:.1f} times as fast as the loop."


@exercise(
    "hard",
    30,
    "NumPy makes an array for each operator, and goes through memory for each. One pass is enough.",
    'caffelite has a kernel for this: the lesson about the machine calls `kernels.update("sgd", w, g, v, hyper)`.',
    "`from caffelite import _kernels as kernels; hyper = np.array([0.1, 0.9, 0, 0])`, outside of the function.",
    '`kernels.update("sgd", w, g, v[None], hyper)`: v is a row of the rule\'s state.',
)
def faster_than_numpy(answer: Any) -> str:
    """Write `update(w, g, v)`: do this twice as fast as NumPy, for 10,000 float32 numbers.

        v[:] = 0.9 * v + g
        w[:] = w - 0.1 * v

    w and v change in place. Use whatever you like: a kernel of caffelite, Cython, C.
    """

    def numpy_update(w: np.ndarray, g: np.ndarray, v: np.ndarray) -> None:
        v[:] = np.float32(0.9) * v + g
        w[:] = w - np.float32(0.1) * v

    got = np.random.default_rng(0).normal(size=(3, 10_000)).astype(np.float32)
    expected = got.copy()
    gradient = got[1].copy()
    for _ in range(3):
        call_answer("update(w, g, v)", lambda: answer(*got) or True)
        numpy_update(*expected)
    if not np.array_equal(got[1], gradient):
        raise Wrong("update has changed g.")
    for name, i in (("w", 0), ("v", 2)):
        check_equal(f"{name} after three updates", got[i], expected[i], rtol=1e-4, atol=1e-5)
    speedup = measure_speedup(lambda: answer(*got), lambda: numpy_update(*expected), rounds=31, calls=50)
    if speedup < 2:
        raise Wrong(f"It is {speedup:.1f} times as fast as NumPy; it should be twice as fast.")
    return f"{speedup:.1f} times as fast as NumPy."


def measure_speedup(fast: Any, slow: Any, rounds: int, calls: int = 1) -> float:
    """How many times as fast `fast` is as `slow`: the median of rounds in which both run, one after the other."""
    return median(timeit(slow, number=calls) / timeit(fast, number=calls) for _ in range(rounds))
