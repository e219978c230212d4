"""The exercises: right answers, those of docs/exercises.md, pass. Wrong ones get a message that says what is wrong."""

import re
import sys
from itertools import pairwise
from pathlib import Path
from types import GeneratorType

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import training_step

EXERCISES = cl.exercises.EXERCISES
PAGE = Path(__file__).parents[2] / "docs" / "exercises.md"
OF_TIME = {"replay", "faster_than_numpy"}  # on a busy machine a right answer may be too slow


def feedback(name, answer):
    verdict = cl.exercises.check(name, answer)
    assert not verdict, f"a wrong answer to {name} passes"
    return verdict.message


def right_answers():
    """Return the solutions of the page, by the name of the exercise."""
    cells = re.findall(r"^```\{code-cell\}\n(?::.*\n)*((?:.*\n)*?)```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    namespace = {"np": np, "cl": cl}
    found = {}
    for cell in cells:
        check = re.search(r'^cl\.exercises\.check\("(\w+)", (\w+)\)$', cell, re.MULTILINE)
        if check and "return np.max(x, 0)" not in cell:
            exec(cell.replace(check[0], ""), namespace)
            found[check[1]] = namespace[check[2]]
    return found


RIGHT = right_answers()


def test_every_exercise_has_a_solution_on_the_page_and_a_text_and_hints():
    assert set(RIGHT) == set(EXERCISES)
    assert re.findall(r"^```\{exercise\} (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(EXERCISES)
    for exercise in EXERCISES.values():
        assert len(exercise.hints) >= 2
        assert exercise.task.startswith("Write `")
        assert exercise.difficulty in ("easy", "medium", "hard")
        assert isinstance(exercise.minutes, int)
        assert 3 <= exercise.minutes <= 60
        assert f"({exercise.difficulty}, {exercise.minutes} minutes.)" in cl.exercises.task(exercise.name)
    for words in ("easy", "medium", "hard"):
        assert sum(exercise.difficulty == words for exercise in EXERCISES.values()) >= 8


@pytest.mark.parametrize("name", [name for name in EXERCISES if name not in OF_TIME])
def test_a_right_answer_passes(name):
    verdict = cl.exercises.check(name, RIGHT[name])
    assert verdict, verdict
    assert repr(verdict).startswith(f"{name}: right.")


@pytest.mark.parametrize("name", sorted(OF_TIME))
def test_a_right_answer_that_is_timed_is_right_however_fast_it_is(name):
    verdict = cl.exercises.check(name, RIGHT[name])
    assert verdict or "times as fast" in verdict.message, verdict


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize(
    "answer", [None, 3, lambda *_: None, lambda: 0, object], ids=["None", "3", "no return", "no arguments", "object"]
)
def test_a_useless_answer_gets_a_verdict_and_no_error(name, answer):
    verdict = cl.exercises.check(name, answer)
    assert not verdict
    assert len(verdict.message) > 20
    assert f"cl.exercises.hint('{name}')" in repr(verdict)


def function(forward, backward=None, init=None):
    """Return a class of a Function with these methods."""
    methods = {"forward": forward, "backward": backward or (lambda self, dy: dy)}
    return type("Answer", (cl.Function,), methods | ({"__init__": init} if init else {}))


def in_place(x):
    x[x < 0] = 0
    return x


def loss_and(f):
    def cross_entropy(s, labels):
        p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
        return f(-np.log(p[np.arange(len(s)), labels]), p, np.eye(s.shape[1])[labels])

    return cross_entropy


def keep_positive(self, x):
    self.x = x
    return np.maximum(x, 0)


def sigmoid(self, x):
    self.x, self.y = x, 1 / (1 + np.exp(-x))
    return self.y


def layer_norm_forward(self, x):
    self.std = np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return (x - x.mean(axis=1, keepdims=True)) / self.std


class Scalar:
    """Sums and products, for subclasses with a backward."""

    def __init__(self, data, inputs=()):
        self.data, self.inputs, self.grad = data, inputs, 0.0

    def __add__(self, other):
        return type(self)(self.data + other.data, ((self, 1.0), (other, 1.0)))

    def __mul__(self, other):
        return type(self)(self.data * other.data, ((self, other.data), (other, self.data)))


class AssignedGradient(Scalar):
    def backward(self, gradient=1.0):
        self.grad = gradient
        for x, slope in self.inputs:
            x.backward(slope * gradient)


class EarlyWalk(Scalar):
    """Each visit passes on all that has come so far."""

    def backward(self):
        self.grad, rest = 1.0, [self]
        while rest:
            scalar = rest.pop()
            for x, slope in scalar.inputs:
                x.grad += slope * scalar.grad
                rest.append(x)


class DepthFirstWalk(Scalar):
    """Each Scalar is visited once, but not after all its results."""

    def backward(self):
        self.grad, rest, seen = 1.0, [self], set()
        while rest:
            scalar = rest.pop()
            if scalar not in seen:
                seen.add(scalar)
                for x, slope in scalar.inputs:
                    x.grad += slope * scalar.grad
                    rest.append(x)


class PathWalk(Scalar):
    def backward(self, gradient=1.0):
        self.grad += gradient
        for x, slope in self.inputs:
            x.backward(slope * gradient)


def dropout(scale, at):
    def init(self, p):
        self.p, self.rng = p, np.random.default_rng(0)

    def forward(self, x):
        self.mask = (self.rng.random(x.shape) >= at(self.p)) * scale(self.p)
        return x * self.mask if cl.is_training() else x

    return function(forward, lambda self, dy: dy * self.mask, init)


def embedding(self, count, size):
    self.W = cl.Tensor(np.random.default_rng(0).normal(size=(count, size)), requires_grad=True)


def look_up(self, indices):
    self.indices = indices
    return self.W.data[indices]


def count_once(self, dy):
    gradient = np.zeros_like(self.W.data)
    gradient[self.indices] += dy
    self.W.add_grad(gradient)


def batches_in_order(x, y, size, rng):
    for i in range(0, len(x), size):
        yield x[i : i + size], y[i : i + size]


def full_batches(x, y, size, rng):
    order = rng.permutation(len(x))
    for i in range(0, len(x) - size + 1, size):
        yield x[order[i : i + size]], y[order[i : i + size]]


def two_orders(x, y, size, rng):
    one, other = rng.permutation(len(x)), rng.permutation(len(x))
    for i in range(0, len(x), size):
        yield x[one[i : i + size]], y[other[i : i + size]]


def own_seed(x, y, size, rng):
    return RIGHT["batches"](x, y, size, np.random.default_rng(5))


def scores_of_a_net(x, y):
    model = cl.MLP(2, [8, 3], seed=0)
    return model.predict


def skip_training(x, y):
    model = cl.MLP(2, [8, 3], seed=0)
    return lambda x: model.predict(x).argmax(axis=1)


def one_step_too_many(model, loss, optimizer, x, y, steps):
    RIGHT["replay"](model, loss, optimizer, x, y, steps + 1)


def by_hand(model, loss, optimizer, x, y, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()


def update_in_numpy(w, g, v):
    v[:] = np.float32(0.9) * v + g
    w[:] = w - np.float32(0.1) * v


def decide(x):
    return x if x.data[0, 1] > 0 else x * 0.1


def attend(scale):
    def forward(self, q, k, v):
        scores = q @ np.swapaxes(k, -1, -2) * scale(q.shape[-1])
        exp = np.exp(scores)
        return exp / exp.sum(axis=-1, keepdims=True) @ v

    return function(forward, lambda self, dy: (dy, dy, dy))


def linear_of_ones(self, n, m):
    self.W, self.b = (cl.Tensor(np.ones(shape), requires_grad=True) for shape in ((n, m), (m,)))


def linear_of_arrays(self, n, m):
    self.W, self.b = np.ones((n, m)), np.zeros(m)


def linear(backward, forward=None):
    """Return a Linear with this backward, and a right forward or this one."""

    def init(self, n, m):
        self.W = cl.Tensor(np.random.default_rng(0).normal(size=(n, m)), requires_grad=True)
        self.b = cl.Tensor(np.zeros(m), requires_grad=True)

    def forward_right(self, x):
        self.x = x
        return x @ self.W.data + self.b.data

    return function(forward or forward_right, backward, init)


def backward_without_transpose(self, dy):
    self.W.add_grad(self.x @ dy)
    self.b.add_grad(dy.sum(axis=0))
    return dy @ self.W.data.T


def convolution(change):
    """Return a Conv2d whose forward changes its weights."""

    def init(self, inputs, outputs, k):
        rng = np.random.default_rng(0)
        self.W = cl.Tensor(rng.normal(size=(outputs, inputs, k, k)), requires_grad=True)
        self.b = cl.Tensor(rng.normal(size=outputs), requires_grad=True)

    def forward(self, x):
        windows = np.lib.stride_tricks.sliding_window_view(x, self.W.shape[2:], axis=(2, 3))
        return np.einsum("nchwab,ocab->nohw", windows, change(self.W.data)) + self.b.data[:, None, None]

    return function(forward, None, init)


def cross_entropy_of_table(s, labels):
    p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
    return -np.log(p[:, labels]).mean(), p


def gradient_of_table(s, labels):
    loss, ds = RIGHT["cross_entropy"](s, labels)
    ds = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
    ds[:, labels] -= 1
    return loss, ds / len(s)


def best_epoch_of_all(losses, patience):
    return int(np.argmin(losses)) + 1


def best_epoch_of_counter(losses, patience):
    best, worse = 0, 0
    for epoch in range(1, len(losses)):
        if losses[epoch] < losses[best]:
            best = epoch
        else:
            worse += 1
        if worse >= patience:
            break
    return best + 1


def last_epoch(losses, patience):
    for epoch in range(1, len(losses) + 1):
        if epoch - 1 - int(np.argmin(losses[:epoch])) >= patience:
            return epoch
    return len(losses)


def split_and(scale, order=lambda rng, n: rng.permutation(n), shift=0):
    def split(x, y, share, rng):
        chosen, n = order(rng, len(x)), round(share * len(x))
        val, train = chosen[:n], chosen[n:]
        return (
            scale(x[train], x[train], x),
            y[np.roll(train, shift)],
            scale(x[val], x[train], x),
            y[np.roll(val, shift)],
        )

    return split


def standardize(rows, by):
    return (rows - by.mean(axis=0)) / by.std(axis=0)


def rates(tried, choose=np.nanargmin):
    return lambda train: tried[choose([train(lr) for lr in tried])]


def digits_net(x, y, lr=3e-3, last=(), order=None):
    model = cl.Model([cl.Linear(64, 100), cl.ReLU(), cl.Linear(100, 10), *last], seed=0)
    x = x if order is None else x[order.permutation(len(x))]
    options = {"optimizer": cl.Adam(model.parameters(), lr=lr), "epochs": 20, "verbose": 0}
    model.fit(x, y, loss=cl.SoftmaxLoss(), **options)
    return lambda x: model.predict(x).argmax(axis=1)


def choices(name, **changes):
    """Return the right dict of an exercise with some other choices."""
    return RIGHT[name] | changes


def max_pool_forward(self, x):
    n, c, h, w = x.shape
    self.windows = x.reshape(n, c, h // 2, 2, w // 2, 2)
    self.y = self.windows.max(axis=(3, 5))
    return self.y


def all_equal_ones(self, dy):
    mask = self.windows == self.y[:, :, :, None, :, None]
    n, c, h, _, w, _ = mask.shape
    return (mask * dy[:, :, :, None, :, None]).reshape(n, c, 2 * h, 2 * w)


def turned_convolution(self, x):
    windows = np.lib.stride_tricks.sliding_window_view(x, self.W.shape[2], axis=2)
    return np.einsum("ncik,ock->noi", windows, self.W.data[:, :, ::-1]) + self.b.data[:, None]


def init_convolution(self, inputs, outputs, k):
    rng = np.random.default_rng(0)
    self.W = cl.Tensor(rng.normal(size=(outputs, inputs, k)), requires_grad=True)
    self.b = cl.Tensor(rng.normal(size=outputs), requires_grad=True)


WRONG = [
    ("relu", lambda x: np.max(x, 0), "use np.maximum"),
    ("relu", abs, "at (0, 0) is 2; it should be 0"),
    ("relu", lambda x: 2 * np.maximum(x, 0), "All numbers are 2 times what they should be."),
    ("relu", in_place, "has changed its argument"),
    ("relu", in_place, "Begin with x = x.copy()"),
    ("relu", lambda x: x.maximum(0), "raised AttributeError"),
    ("relu", lambda x: x if x > 0 else 0, "maximum and where work on all of it"),
    ("relu", lambda x: max(x, 0), "need one number, but this is an array"),
    ("slope", lambda f, w: (f(w + 1e-6) - f(w - 1e-6)) / 1e-6, "are 2 · eps apart"),
    ("slope", lambda f, w: (f(w + 1e-5) - f(w)) / 1e-5, "Use both sides of w"),
    ("slope", lambda f, w: (f(w + 1e-5) - f(w - 1e-5)) / 2 * 1e-5, "a / 2 * eps is (a / 2) · eps"),
    ("slope", lambda f, w: f(w + 1e-3) - f(w - 1e-3) / (2 * 1e-3), "put brackets around the difference"),
    ("slope", lambda f, w: (f(w - 1e-5) - f(w + 1e-5)) / (2 * 1e-5), "f(w + eps) comes first"),
    ("slope", lambda f, w: (f(w + 1e-16) - f(w - 1e-16)) / 2e-16, "w + 1e-16 is w"),
    ("mse", lambda p, y: ((p - y) ** 2).mean(), "Return the loss, dp, in this order. You returned one thing"),
    ("mse", lambda p, y: RIGHT["mse"](p, y)[::-1], "You returned dp, the loss."),
    ("mse", lambda p, y: (((p - y) ** 2).mean(), 2 * (p - y)), "divided by the number of elements"),
    ("mse", lambda p, y: (((p - y) ** 2).mean(), 2 * (y - p) / p.size), "wrong sign"),
    ("mse", lambda p, y: (((p - y) ** 2).sum(), 2 * (p - y)), "take the mean"),
    ("mse", lambda p, y: (((p - y) ** 2).mean(), 7 * (p - y) / p.size), "All numbers are 3.5 times"),
    ("mse", lambda p, y: (((p - y) ^ 2).mean(), p), "in Python, the power is **, not ^"),
    ("mse", lambda p, y: (((p - y) ** 2).mean() / 2, p - y), "it is half of it"),
    ("mse", lambda p, y: (np.sqrt(((p - y) ** 2).mean()), p - y), "it is its root"),
    ("mse", lambda p, y: (abs(p - y).mean(), p - y), "square the errors"),
    ("mse", lambda p, y: [3, p, y], "You returned a list of 3"),
    (
        "softmax",
        lambda s: np.exp(s) / np.exp(s).sum(axis=1, keepdims=True),
        "For scores of 1,000 the result is not finite",
    ),
    ("softmax", lambda s: np.exp(s) / np.exp(s).sum(axis=1), "keepdims=True keeps it"),
    ("softmax", lambda s: np.exp(s - s.max(axis=1)), "keepdims=True keeps it"),
    ("softmax", lambda s: np.exp(s - s.max()) / np.exp(s - s.max()).sum(), "sum along axis=1"),
    ("softmax", lambda s: (e := np.exp(s - s.max())) / e.sum(axis=1, keepdims=True), "of each row, not of all rows"),
    ("softmax", lambda s: s / s.sum(axis=1, keepdims=True), "the exponential is missing"),
    (
        "softmax",
        lambda s: np.exp(s - s.max(axis=1, keepdims=True)) / np.exp(s).sum(axis=1, keepdims=True),
        "subtracted below the line, too",
    ),
    ("cross_entropy", loss_and(lambda rows, p, onehot: (rows.mean(), p - onehot)), "divided by n"),
    ("cross_entropy", loss_and(lambda rows, p, onehot: (rows.sum(), p - onehot)), "take the mean"),
    ("cross_entropy", loss_and(lambda rows, p, onehot: (rows.mean(), p / len(p))), "subtract 1"),
    ("cross_entropy", lambda s, labels: (-np.log(s[np.arange(5), labels]).mean(), s), "Is it log s? p = softmax(s)."),
    ("cross_entropy", lambda s, labels: (0, (s - labels) / 5), "If that is a sum or a max along axis=1"),
    ("cross_entropy", cross_entropy_of_table, "p[:, labels] is a table"),
    ("cross_entropy", gradient_of_table, "1 is subtracted everywhere. ds[:, labels] is a table"),
    ("linear_backward", lambda x, W, dy: (dy @ W.T, x.T @ dy, dy.mean(axis=0)), "sum the rows"),
    (
        "linear_backward",
        lambda x, W, dy: (dy @ W.T, x.T @ dy),
        "Return dx, dW, db, in this order. You returned a",
    ),
    ("linear_backward", lambda x, W, dy: (x.T @ dy, dy @ W.T, dy.sum(axis=0)), "You returned dW, dx, db."),
    ("linear_backward", lambda x, W, dy: (dy @ W, x.T @ dy, dy.sum(axis=0)), "transpose W: dx = dy Wᵀ"),
    ("linear_backward", lambda x, W, dy: (dy @ W.T, x @ dy, dy.sum(axis=0)), "transpose x: dW = xᵀ dy"),
    ("linear_backward", lambda x, W, dy: (dy @ W.T, dy.T @ x, dy.sum(axis=0)), "it is transposed"),
    ("descend", lambda slope, w, lr, steps: w - lr * slope(w), "Is the `return` inside of the loop, or"),
    ("descend", lambda slope, w, lr, n: RIGHT["descend"](slope, w, -lr, n), "goes uphill"),
    ("ReLU", function(keep_positive, lambda self, dy: self.x > 0), "multiply it by dy"),
    ("ReLU", function(keep_positive), "only where x is above 0"),
    ("ReLU", function(keep_positive, lambda self, dy: np.maximum(dy, 0)), "depends on the sign of dy"),
    ("ReLU", type("Answer", (), {}), "has to be a subclass of cl.Function"),
    ("ReLU", cl.ReLU(), "Give the class ReLU itself"),
    ("Sigmoid", function(sigmoid, lambda self, dy: dy * self.x * (1 - self.x)), "with y, not x"),
    (
        "Sigmoid",
        function(sigmoid, lambda self, dy: dy * self.y * (1 - self.y)),
        "np.where computes both of its choices",
    ),
    ("Linear", function(lambda self, x: x, None, linear_of_arrays), "requires_grad=True"),
    ("Linear", function(lambda self, x: x @ self.W.data, None, linear_of_ones), "not drawn at random"),
    ("Linear", linear(None, lambda self, x: x @ self.W + self.b), "Use arrays: self.W.data and not self.W"),
    ("Linear", linear(backward_without_transpose), "transpose x: dW = xᵀ dy"),
    ("Linear", linear(lambda self, dy: dy @ self.W.data), "transpose W: dx = dy Wᵀ"),
    ("Dropout", dropout(lambda p: 1, lambda p: p), "Divide those that are kept by 1 − p"),
    ("Dropout", dropout(lambda p: 1 / p, lambda p: 1 - p), "of the elements are 0. p is the share that is dropped"),
    ("MaxPool", function(max_pool_forward, all_equal_ones), "only the first one should"),
    ("Conv1d", function(turned_convolution, None, init_convolution), "the window is flipped"),
    ("Conv2d", convolution(lambda W: W[:, :, ::-1, ::-1]), "the window is flipped"),
    ("Conv2d", convolution(lambda W: W.swapaxes(2, 3)), "rows and columns of the window are swapped"),
    ("Conv2d", convolution(lambda W: W), "The gradient is wrong"),
    ("LayerNorm", function(layer_norm_forward, lambda self, dy: dy / self.std), "They depend on x, too"),
    ("LayerNorm", function(lambda self, x: (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)), "That is BatchNorm"),
    ("Embedding", function(look_up, count_once, embedding), "use np.add.at"),
    ("Embedding", function(lambda self, indices: self.W[indices], None, embedding), "returned a Tensor"),
    ("Attention", function(lambda self, q, k, v: q @ k.T @ v), "whose axes .T reverses: np.swapaxes(a, -1, -2)"),
    ("Attention", attend(lambda d: 1.0), "not divided by √d"),
    ("Attention", attend(lambda d: 1 / np.sqrt(d)), "The gradient is wrong"),
    ("autograd", AssignedGradient, "it is 3; it should be 6. a is used twice, and both uses count: x.grad += …"),
    ("autograd", EarlyWalk, "s came too early"),
    ("autograd", DepthFirstWalk, "s came too early"),
    ("momentum", lambda w, g, v, lr, mu: (w - lr * v, mu * v + g), "First v, then w"),
    ("momentum", lambda w, g, v, lr, mu: w - lr * (mu * v + g), "Return the new w, the new v, in this order"),
    (
        "momentum",
        lambda w, g, v, lr, mu: RIGHT["momentum"](w, g, v, lr, mu)[::-1],
        "You returned the new v, the",
    ),
    ("adam", lambda w, g, m, s, t, lr: RIGHT["adam"](w, g, m, s, 10**6, lr), "not corrected"),
    ("batches", batches_in_order, "The rows are in order"),
    ("batches", full_batches, "The last two of the 10 rows are missing"),
    ("batches", two_orders, "don't belong together"),
    ("batches", own_seed, "no seed of your own"),
    ("train", scores_of_a_net, "return the class"),
    ("train", lambda x, y: cl.MLP(2, [8, 3], seed=0), "model.predict(x) and not model(x)"),
    ("train", lambda x, y: y, "The result of train has to be a function"),
    ("train", skip_training, "of the new points are right"),
    ("curves", choices("curves", B="fine"), "its validation loss rises after epoch 20"),
    ("curves", choices("curves", C="overfits"), "A net that overfits has a tiny training loss"),
    ("curves", choices("curves", E="underfits"), "still falling, and faster"),
    ("curves", choices("curves", D="rate too low"), "its steps are too large"),
    ("curves", choices("curves", A="good"), "'A' is 'good'; choose one of fine, overfits"),
    ("curves", choices("curves", stop=80), "after it, the net only memorizes"),
    ("curves", choices("curves", stop=np.array([20, 40])), "'stop' is array([20, 40]); it should be one of"),
    ("curves", choices("curves", stop=10), "until then, it still gets better"),
    ("curves", {"A": "fine"}, "has no key 'B'"),
    ("ten_percent", choices("ten_percent", A="rate too low"), "Here the gradient itself is 0"),
    ("ten_percent", choices("ten_percent", E="labels of other images"), "This loss falls at once"),
    ("ten_percent", choices("ten_percent", C="weights are 0"), "Its loss does fall"),
    ("losses", choices("losses", tags="SoftmaxLoss"), "a photo could have only one tag"),
    ("losses", choices("losses", digit=cl.MSELoss), "digits are names of classes here"),
    ("losses", choices("losses", typos="MSELoss"), "outweighs all others"),
    ("losses", choices("losses", typos="QuantileLoss"), "MAELoss says it more simply"),
    ("losses", choices("losses", parcel="GaussianLoss"), "the late side is much longer"),
    ("best_epoch", best_epoch_of_all, "training has stopped before that epoch"),
    ("best_epoch", lambda losses, n: int(np.argmin(losses)), "training has stopped before that epoch"),
    ("best_epoch", lambda losses, n: RIGHT["best_epoch"](losses, n) - 1, "Python counts from 0"),
    ("best_epoch", best_epoch_of_counter, "count from 0 again after each better one"),
    ("best_epoch", last_epoch, "in this epoch the training stops"),
    ("split", split_and(lambda rows, train, x: rows), "x_train is not right: it isn't scaled"),
    ("split", split_and(lambda rows, train, x: standardize(rows, x)), "That's a data leak"),
    ("split", split_and(lambda rows, train, x: standardize(rows, rows)), "it has its own mean and std"),
    ("split", split_and(lambda rows, train, x: rows - train.mean(axis=0)), "isn't divided by the standard deviation"),
    (
        "split",
        split_and(lambda rows, t, x: standardize(rows, t), lambda rng, n: np.arange(n)),
        "hold out the same rows",
    ),
    ("split", split_and(lambda rows, t, x: standardize(rows, t), shift=1), "the rows don't belong to their y"),
    ("split", split_and(lambda rows, t, x: standardize(rows, t), lambda g, n: g.integers(0, n, n)), "is in both parts"),
    ("split", lambda x, y, share, rng: RIGHT["split"](x, y, 1 - share, rng), "share is the part that is held out"),
    ("split", lambda *given: RIGHT["split"](*given)[:2], "Return four arrays"),
    ("split", lambda *given: (*(parts := RIGHT["split"](*given))[::2], *parts[1::2]), "scikit-learn's order"),
    ("find_rate", rates(np.linspace(1e-6, 1, 10)), "equal distances"),
    ("find_rate", rates(np.logspace(-6, 0, 7), np.argmin), "the training diverges: the loss is nan"),
    ("find_rate", rates(np.logspace(-6, 0, 7)), "Use the training runs that are left"),
    (
        "find_rate",
        lambda train: np.nanmin([train(lr) for lr in np.logspace(-6, 0, 7)]),
        "It returned 1.34, which is a loss",
    ),
    ("find_rate", rates(np.logspace(-6, 0, 50)), "50 training runs; 12 are allowed"),
    ("find_rate", rates(np.logspace(-6, 0, 7), np.nanargmax), "Return the rate with the smallest loss"),
    ("read_digits", lambda x, y: digits_net(x, y, order=np.random.default_rng(0)), "Do the labels belong to their"),
    ("read_digits", lambda x, y: digits_net(x, y, lr=1.0), "for nearly every image"),
    ("read_digits", lambda x, y: digits_net(x, y, last=[cl.ReLU()]), "it never says 1, 7, 8"),
    ("read_digits", lambda x, y: digits_net(x, y, lr=1e-4), "It learns. What keeps it from learning more?"),
    (
        "flop",
        lambda rows, sizes: sum(2 * rows * a * b for a, b in pairwise(sizes)),
        "those backward, too",
    ),
    (
        "flop",
        lambda rows, sizes: sum(6 * rows * a * b for a, b in pairwise(sizes)),
        "nobody needs it",
    ),
    ("recordable", lambda x: cl.Tensor(np.where(x.data > 0, x.data, 0.1 * x.data)), "It cannot be recorded"),
    ("recordable", lambda x: cl.where(x > 0, x, 0.1 * x), "It cannot be recorded"),
    ("recordable", decide, "leaky(x)"),
    ("replay", one_step_too_many, "one step too many"),
    ("replay", by_hand, "it should be 3 times"),
    ("faster_than_numpy", update_in_numpy, "it should be twice as fast"),
    ("faster_than_numpy", lambda w, g, v: None, "it should be"),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # exponentials that overflow
@pytest.mark.parametrize(("name", "answer", "message"), WRONG, ids=[f"{name}: {message}" for name, _, message in WRONG])
def test_a_wrong_answer_gets_the_reason_which_begins_with_a_capital_letter_or_a_name(name, answer, message):
    text = feedback(name, answer)
    assert message in text
    assert not re.match(r"(the|after|it|in|for) ", text)


def scribbles(function):
    """Return an answer with the results of another one, which then overwrites the arrays that it got."""

    def call_on_copies(*arguments):
        copies = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
        result = function(*copies)
        for x in arguments:
            if isinstance(x, np.ndarray):
                x[...] = 77
        return list(result) if isinstance(result, GeneratorType) else result

    return call_on_copies


def in_place_version(answer):
    """Return an answer with the same results, which overwrites the arrays that it got, in both directions if it has
    two.
    """
    if not isinstance(answer, type):
        return scribbles(answer)

    def method(name):
        return lambda self, *arguments: scribbles(getattr(super(cls, self), name))(*arguments)

    cls = type(answer.__name__, (answer,), {name: method(name) for name in ("forward", "backward")})
    return cls


#: Exercises whose answers get no arrays, or change those that they get.
WITHOUT_INPUTS = {"autograd", "flop", "recordable", "slope", "faster_than_numpy", "curves", "ten_percent", "losses"}


@pytest.mark.parametrize("name", [name for name in EXERCISES if name not in WITHOUT_INPUTS])
def test_a_right_answer_that_changes_its_inputs_is_right_or_gets_the_reason(name):
    verdict = cl.exercises.check(name, in_place_version(RIGHT[name]))
    assert verdict or re.search(r"has changed|has written into|times as fast as the loop", verdict.message), verdict


def test_descend_in_place_gets_the_hint_to_make_a_new_array():
    def descend(slope, w, lr, steps):
        for _ in range(steps):
            w -= lr * slope(w)
        return w

    assert "Write w = w - …" in feedback("descend", descend)


def test_a_leaky_that_writes_into_its_tensor_learns_why_it_is_not_recorded():
    def leaky(x):
        y = cl.maximum(x, 0.1 * x)
        x.data[...] = 77
        return y

    assert feedback("recordable", leaky).startswith("It cannot be recorded: assigning to elements")


def test_a_loss_of_a_changed_p_gets_a_hint_at_it():
    def cross_entropy(s, labels):
        p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
        ds, rows = p, np.arange(len(s))
        ds[rows, labels] -= 1
        return -np.log(p[rows, labels]).mean(), ds / len(s)

    with pytest.warns(RuntimeWarning, match="invalid value"):
        assert "Was p changed? ds = p.copy()." in feedback("cross_entropy", cross_entropy)


def test_every_exercise_has_a_typical_mistake_here():
    assert {name for name, *_ in WRONG} == set(EXERCISES)


def test_the_texts_are_shown_and_what_is_not_there_is_an_error():
    assert all(name in cl.exercises.tasks() for name in EXERCISES)
    assert repr(cl.exercises.task("relu")).startswith("Write `relu(x)`")
    assert cl.exercises.hint("relu", 2) == "Hint 2 of 2: np.maximum(x, 0)"
    with pytest.raises(ValueError, match="no exercise 'transformer'; there are relu, slope"):
        cl.exercises.check("transformer", None)
    with pytest.raises(ValueError, match="hints 1 to 2, got 3"):
        cl.exercises.hint("relu", 3)


@pytest.mark.parametrize(
    ("name", "meant"), [("Relu", "'relu' or 'ReLU'"), ("softmx", "'softmax'"), ("cross_entropie", "'cross_entropy'")]
)
def test_an_almost_right_name_gets_the_right_one(name, meant):
    with pytest.raises(ValueError, match=f"^there is no exercise '{name}'; did you mean {meant}\\?$"):
        cl.exercises.check(name, None)


@pytest.mark.parametrize("arguments", [(RIGHT["relu"], "relu"), (RIGHT["relu"],)], ids=["swapped", "no name"])
def test_check_whose_name_is_not_first_says_that_it_comes_first(arguments):
    with pytest.raises(
        TypeError, match=r"name of an exercise comes first, such as check\('relu', relu\); got <function"
    ):
        cl.exercises.check(*arguments)


def test_a_list_of_right_parts_is_as_good_as_a_tuple():
    for name in ("mse", "cross_entropy", "linear_backward", "momentum", "adam", "split"):
        verdict = cl.exercises.check(name, lambda *given, name=name: list(RIGHT[name](*given)))
        assert verdict, verdict


def test_a_factor_is_named_only_if_all_numbers_have_it():
    assert "times" not in feedback("relu", abs)


def test_the_line_of_an_error_in_an_answer_is_named():
    def relu(x):
        return x.mxaimum(0)

    assert re.search(r"raised AttributeError, in line \d+ of relu: ", feedback("relu", relu))


def test_an_error_names_the_last_line_of_the_answer_and_no_line_of_a_library():
    def relu(x):
        return np.maximm(x, 0)

    class Scalar:
        def __init__(self, data):
            self.data, self.grad = data, 0.0

    assert re.search(r"^relu\(x\) raised AttributeError, in line \d+ of relu: ", feedback("relu", relu))
    assert feedback("autograd", Scalar).startswith("a + b raised TypeError: unsupported operand")


def test_an_answer_that_exits_gets_a_verdict():
    def exits(*_):
        sys.exit("enough")

    class ReLU(cl.Function):
        forward = backward = exits

    class Embedding(cl.Function):
        def __init__(self, count, size):
            embedding(self, count, size)

        def forward(self, indices):
            return look_up(self, indices)

        backward = exits

    for name in EXERCISES:
        assert "raised SystemExit" in feedback(name, exits) or isinstance(RIGHT[name], (type, dict))
    assert re.search(r"raised SystemExit, in line \d+ of exits: enough\.", feedback("relu", exits))
    assert "raised SystemExit, in line" in feedback("ReLU", ReLU)
    assert "Embedding raised SystemExit, in line" in feedback("Embedding", Embedding)


def test_an_error_of_the_judge_itself_is_not_a_verdict():
    from caffelite.exercises.exercise import Exercise

    def relu(answer):
        """Write `relu(x)`."""
        return {}[answer]

    with pytest.raises(KeyError):
        Exercise(*_move_to_caffelite(relu), "easy", 5).judge(3)


def _move_to_caffelite(check):
    """Return a judge as if it were written in a file of caffelite."""
    code = check.__code__.replace(co_filename=cl.exercises.__file__)
    return check.__name__, type(check)(code, {"__doc__": check.__doc__}), (), ""


def test_every_task_names_the_function_that_its_solution_defines():
    assert {name: exercise.answer for name, exercise in EXERCISES.items()} == {
        name: getattr(answer, "__name__", name)
        for name, answer in RIGHT.items()  # a dict is called as its exercise
    }


def test_the_course_for_teachers_has_every_exercise_once_and_says_which_names_differ():
    page = (PAGE.parent / "teaching.md").read_text(encoding="utf-8")
    table = page.partition("Students do this:")[2].partition("A lesson takes")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(EXERCISES)
    differing = {name: exercise.answer for name, exercise in EXERCISES.items() if exercise.answer != name}
    assert len(differing) == 4
    for name, answer in differing.items():
        assert re.search(rf"`{name}`\s+(asks )?for\s+`{answer}`", page)


def test_a_verdict_says_what_was_returned_in_good_english():
    assert feedback("mse", lambda p, y: 3).endswith("You returned one thing, of type int.")
    assert feedback("slope", 3) == "slope has to be a function or a class, and is 3."


def test_the_judge_of_flop_counts_what_a_recording_counts():
    x, y = cl.datasets.spiral(points_per_class=10, seed=0)
    model = cl.MLP(2, [8, 8, 3], seed=0)
    step = training_step(model, cl.SGD(model.parameters(), lr=0.1))
    lines = str(cl.capture(step, x.astype(np.float32), y)).splitlines()
    head = lines[0].index("FLOP")
    counted = [re.search(r"([\d,]*)$", line[: head + 4])[1] for line in lines[2:]]
    assert sum(int(number.replace(",", "")) for number in counted if number) == RIGHT["flop"](30, [2, 8, 8, 3])


def test_a_backward_along_all_paths_is_right_and_is_told_to_be_slow():
    verdict = cl.exercises.check("autograd", PathWalk)
    assert verdict
    assert "2²⁰ paths" in verdict.message
    assert "slow" not in cl.exercises.check("autograd", RIGHT["autograd"]).message


def test_a_product_whose_shapes_do_not_fit_is_explained_in_words():
    class Linear(linear(backward_without_transpose)):
        def backward(self, dy):
            return super().backward(dy) if dy.shape[0] == dy.shape[1] == 0 else dy @ np.ones((5, 3))

    message = feedback("Linear", Linear)
    assert "a matrix with 3 columns times one with 5 rows. Either a .T is missing, or the two are swapped" in message
    assert "gufunc" not in message


def test_progress_counts_the_right_answers_of_the_session_and_names_the_next_exercise(monkeypatch):
    monkeypatch.setattr(cl.exercises, "_solved", {})
    assert cl.exercises.progress().startswith(f"0 of {len(EXERCISES)}, and about ")
    assert "\nNext: relu (easy, 3 minutes). relu(x): replace" in cl.exercises.progress()
    for name in ("relu", "mse", "relu"):
        cl.exercises.check(name, RIGHT[name])
    cl.exercises.check("softmax", None)
    assert cl.exercises.progress().startswith(f"2 of {len(EXERCISES)}, ")
    assert "\nNext: slope (easy, 5 minutes)." in cl.exercises.progress()
    for name, following in (
        ("curves", "ten_percent"),
        ("best_epoch", "split"),
        ("read_digits", "ten_percent"),  # nothing comes later in this section
        ("relu", "slope"),
    ):
        cl.exercises._solved.pop(name, None)
        cl.exercises._solved[name] = True
        assert f"\nNext: {following} (" in cl.exercises.progress()
    monkeypatch.setattr(cl.exercises, "_solved", dict.fromkeys(EXERCISES))
    assert cl.exercises.progress() == f"{len(EXERCISES)} of {len(EXERCISES)}"


def test_the_text_of_the_curves_has_their_numbers():
    from caffelite.exercises.judgement import CURVES, EPOCHS

    numbers = [float(number) for number in re.findall(r" (\d+\.\d\d)(?!\d)", EXERCISES["curves"].task)]
    assert numbers[:-1] == [loss for pair in CURVES.values() for losses in pair for loss in losses]
    assert f"{2.30:.2f}" in EXERCISES["curves"].task.splitlines()[-1]
    assert re.search(r"epoch +" + " +".join(map(str, EPOCHS)), EXERCISES["curves"].task)


def test_the_program_with_three_mistakes_is_as_bad_as_its_task_says():
    lines = [line[4:] for line in EXERCISES["read_digits"].task.splitlines() if line.startswith("    ")]
    namespace = {"np": np, "cl": cl}
    exec("\n".join(lines), namespace)
    assert feedback("read_digits", namespace["read_digits"]).startswith("10% of the test images are right")


@pytest.mark.sources
def test_every_formula_of_a_task_or_a_hint_is_a_formula_on_the_page(monkeypatch):
    monkeypatch.syspath_prepend(PAGE.parent / "_extensions")
    from exercise_text import FORMULAS, format_text

    texts = [text for exercise in EXERCISES.values() for text in (exercise.task, *exercise.hints)]
    together = " ".join(" ".join(texts).split())
    assert [formula for formula in FORMULAS if formula not in together] == []
    for text in texts:
        page = re.sub(r"`[^`]*`|\$[^$]*\$|^    .*$", "", format_text(text), flags=re.MULTILINE)
        assert not re.search("[√←ᵀ·²ᵗ]|Σ_", page), page
