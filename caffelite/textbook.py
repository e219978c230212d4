"""caffelite in two hundred lines of NumPy: how a framework trains a net, without the parts that make it fast.

Start reading here. Each class has a namesake in caffelite that takes these arguments, and more. With dtype=float64 and
shuffle=False, it computes the same numbers up to rounding (caffelite shuffles by another rule). The last line of each
docstring names its file. In a program, you only change the import:

    from caffelite import textbook as cl

    model = cl.Model(seed=0).add(cl.Linear(2, 100)).add(cl.ReLU()).add(cl.Linear(100, 3))
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    history = model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=300)

Shapes: a batch has n rows of d features, which become m outputs or c classes. dy is the gradient of the loss with
respect to y, and has the shape of y. There are no checks here; caffelite tells you what is wrong with an argument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

__all__ = ["SGD", "DataGenerator", "Function", "Linear", "Model", "Optimizer", "Parameter", "ReLU", "SoftmaxLoss"]


class Parameter:
    """A learned array, `data`, and the gradient of the loss with respect to it, `grad`.

    In caffelite it is a Tensor: core/tensor.py
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.data, self.grad = np.zeros(shape), np.zeros(shape)


class Function(ABC):
    """y = f(x). `forward` keeps what `backward` needs; `backward` adds to the parameters' gradients and returns dx.

    In caffelite: core/function.py
    """

    @abstractmethod
    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return y, with a row for each row of x."""

    @abstractmethod
    def backward(self, dy: np.ndarray) -> np.ndarray:
        """Return dx, by the chain rule."""

    def parameters(self) -> list[Parameter]:
        """Return the learned arrays."""
        return []

    def initialize(self, rng: np.random.Generator) -> None:  # noqa: B027 (not abstract: most Functions learn nothing)
        """Draw the parameters at random."""


class Linear(Function):
    """y = x W + b:  dW = xᵀ dy,  db = Σ dy over the rows,  dx = dy Wᵀ.

    x (n, d), W (d, m), b (m,), y (n, m). W and b are drawn from U(−1/√d, 1/√d).
    In caffelite: functions/linear.py
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        self.weight, self.bias = Parameter((in_features, out_features)), Parameter((out_features,))
        self.initialize(np.random.default_rng())

    def initialize(self, rng: np.random.Generator) -> None:
        a = 1 / np.sqrt(len(self.weight.data))
        for p in self.parameters():
            p.data[...] = rng.uniform(-a, a, p.data.shape)

    def parameters(self) -> list[Parameter]:
        return [self.weight, self.bias]

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return x @ self.weight.data + self.bias.data

    def backward(self, dy: np.ndarray) -> np.ndarray:
        self.weight.grad += self.x.T @ dy
        self.bias.grad += dy.sum(axis=0)
        return dy @ self.weight.data.T


class ReLU(Function):
    """y = max(x, 0):  dx = dy where x > 0, else 0.

    In caffelite: functions/activation.py
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.is_positive = x > 0
        return np.maximum(x, 0)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy * self.is_positive


class SoftmaxLoss:
    """The mean of −log p at the label, p = exp s / Σ exp s:  ds = (p − onehot) / n.

    Scores s (n, c), labels (n,) integers from 0 to c − 1. The largest score of each row is subtracted first, so that
    exp cannot overflow. p holds the probabilities of the classes.
    In caffelite: functions/losses/classification.py. There a loss is a Function too, and its `backward` takes dy
    """

    def forward(self, scores: np.ndarray, labels: np.ndarray) -> float:
        scores = scores - scores.max(axis=1, keepdims=True)  # p stays the same, and exp does not overflow
        exp = np.exp(scores)
        total = exp.sum(axis=1, keepdims=True)
        self.p = exp / total
        self.at_labels = np.arange(len(labels)), labels  # the position of each row's label
        return (np.log(total[:, 0]) - scores[self.at_labels]).mean()

    def backward(self) -> np.ndarray:
        ds = self.p.copy()
        ds[self.at_labels] -= 1
        return ds / len(ds)


class Optimizer(ABC):
    """A rule that updates parameters from their gradients.

    In caffelite: optimizers/base.py
    """

    def __init__(self, parameters: list[Parameter], lr: float) -> None:
        self.parameters, self.lr = parameters, lr

    @abstractmethod
    def step(self) -> None:
        """Update the parameters once."""

    def zero_grad(self) -> None:
        """Set the gradients to 0. The next `backward` then begins a new sum."""
        for p in self.parameters:
            p.grad[...] = 0


class SGD(Optimizer):
    """v ← μ v + g + λ w,  w ← w − lr v:  momentum μ, weight decay λ, gradient g, parameter w, and v = 0 at first.

    In caffelite: optimizers/rules.py
    """

    def __init__(self, parameters: list[Parameter], lr: float, momentum: float = 0, weight_decay: float = 0) -> None:
        super().__init__(parameters, lr)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.velocity = [np.zeros_like(p.data) for p in parameters]

    def step(self) -> None:
        for p, v in zip(self.parameters, self.velocity, strict=True):
            v[...] = self.momentum * v + p.grad + self.weight_decay * p.data
            p.data -= self.lr * v


class DataGenerator:
    """Mini-batches of rows of x and y. Each pass over them is an epoch; with `shuffle`, each has its own order.

    In caffelite: data/generator.py
    """

    def __init__(self, x: Any, y: Any, *, batch_size: int = 32, shuffle: bool = True, seed: Any = None) -> None:
        self.x, self.y, self.batch_size, self.shuffle = np.asarray(x), np.asarray(y), batch_size, shuffle
        self.rng = np.random.default_rng(seed)

    def __iter__(self) -> Any:
        order = self.rng.permutation(len(self.x)) if self.shuffle else np.arange(len(self.x))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            yield self.x[rows], self.y[rows]


class Model(Function):
    """Functions applied one after the other.

    With a seed, `add` draws parameters from it: the same ones that caffelite draws.

    Here `backward` goes through a list. In caffelite, each call of a Function leaves a note on its result, and the
    loss's `backward` follows these notes: core/tensor.py, and `propagate` in core/autograd.pyx. From `fit` to a step
    there: training/fit.py, training/loop.py, training/epochs/in_memory.py, training/epochs/base.py, training/step.py.
    In caffelite: model/model.py
    """

    def __init__(self, *, seed: int | None = None) -> None:
        self.functions: list[Function] = []
        self.rng = np.random.default_rng(seed)

    def add(self, function: Function) -> Model:
        """Append a Function and return the model."""
        function.initialize(self.rng)
        self.functions.append(function)
        return self

    def parameters(self) -> list[Parameter]:
        return [p for function in self.functions for p in function.parameters()]

    def forward(self, x: np.ndarray) -> np.ndarray:
        for function in self.functions:
            x = function.forward(x)
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        for function in reversed(self.functions):
            dy = function.backward(dy)
        return dy

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        loss: SoftmaxLoss,
        optimizer: Optimizer,
        epochs: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: Any = None,
    ) -> dict[str, list[float]]:
        """Train on x (n, …) and y (n,), or on a DataGenerator. Return the mean loss of each epoch."""
        seed = self.rng if seed is None else seed
        batches = x if y is None else DataGenerator(x, y, batch_size=batch_size, shuffle=shuffle, seed=seed)
        history: dict[str, list[float]] = {"loss": []}
        for _ in range(epochs):
            total, count = 0.0, 0
            for x_batch, y_batch in batches:
                optimizer.zero_grad()
                value = loss.forward(self.forward(x_batch), y_batch)
                self.backward(loss.backward())
                optimizer.step()
                total += value * len(y_batch)
                count += len(y_batch)
            history["loss"].append(total / count)
        return history

    def predict(self, x: Any) -> np.ndarray:
        """Return the outputs for the rows of x."""
        return self.forward(np.asarray(x))
