"""Your own Functions, loss, optimizer and metric, written in NumPy, in `fit`: learn y = sin 3x from points."""

import numpy as np

import caffelite as cl


class Swish(cl.Function):
    """Swish, y = x · sigmoid(x):  dx = dy (s + x s (1 − s)),  s = sigmoid(x)."""

    def forward(self, x):
        self.x, self.s = x, 1 / (1 + np.exp(-x))
        return x * self.s

    def backward(self, dy):
        return dy * (self.s + self.x * self.s * (1 - self.s))


class MeanSquaredError(cl.Function):
    """y = mean (scores − targets)²:  dscores = dy 2 (scores − targets) / size. Targets are constants."""

    def forward(self, scores, targets):
        self.difference = scores - targets
        return np.mean(self.difference**2)

    def backward(self, dy=1.0):
        return dy * (2 / self.difference.size) * self.difference


class SignSGD(cl.Optimizer):
    """w ← w − lr sign(g): a step of the same length for every weight.

    J. Bernstein, Y.-X. Wang, K. Azizzadenesheli and A. Anandkumar, "signSGD", ICML 2018.
    """

    def __init__(self, parameters, lr):
        super().__init__(parameters)
        self.lr = lr

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - self.lr * np.sign(p.grad)


def mean_absolute_error(outputs, targets):
    return float(np.abs(outputs - targets).mean())


def decay(epoch, history):
    """Set, as a callback, a smaller learning rate after every epoch."""
    optimizer.lr *= 0.99


rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (200, 1))
y = np.sin(3 * x)

swish_error = cl.check_gradients(Swish(), rng.standard_normal((5, 4)))
loss_error = cl.check_gradients(lambda scores: MeanSquaredError()(scores, y), rng.standard_normal(y.shape))
print(
    f"gradients against central differences: Swish within {swish_error:.1e}, MeanSquaredError within {loss_error:.1e}"
)

model = cl.Model([cl.Linear(1, 32), Swish(), cl.Linear(32, 1)], seed=0)
optimizer = SignSGD(model.parameters(), lr=0.01)
history = model.fit(
    x,
    y,
    loss=MeanSquaredError(),
    optimizer=optimizer,
    epochs=200,
    batch_size=20,
    metrics=[mean_absolute_error],
    callbacks=[decay],
)
print(f"mean absolute error: {history['mean_absolute_error'][0]:.3f} after 1 epoch, ", end="")
print(f"{history['mean_absolute_error'][-1]:.3f} after {history.epochs}")
