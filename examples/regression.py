"""Regression with a band: from noisy points, the median of y at each x and the band that holds 90 % of the points.

The noise is larger on the right. A loss of squares would not show that, but the loss of quantiles does. For the share
q, its mean is least at the value below which a share q of the y are. So a net with three outputs learns three quantiles
at once. R. Koenker and G. Bassett, "Regression quantiles", Econometrica 46, 1978.

python regression.py                # trains
python regression.py PICTURE.png    # draws the points and the band, too; needs matplotlib
"""

import sys

import numpy as np

import caffelite as cl

SHARES = np.array([0.05, 0.5, 0.95])
DEVIATIONS = np.array([-1.645, 0, 1.645])  # of the normal distribution at these quantiles


def middle(x):
    return np.sin(x) + x / 4


def spread(x):
    return 0.1 + 0.05 * x


def points(n, rng):
    """x (n, 1) in 0 … 10, and y (n, 1): the middle with normal noise whose standard deviation is the spread."""
    x = rng.uniform(0, 10, (n, 1))
    return x, middle(x) + spread(x) * rng.standard_normal((n, 1))


class QuantileLoss(cl.Model):
    """The mean over rows of Σ max(q d, (q − 1) d) over the shares q, d = y − output: outputs (n, 3), y (n, 1).

    Written with Tensors: it needs no backward, and a recorded step holds its kernels, and no Python.
    """

    def __init__(self, shares):
        super().__init__()
        self.tilts = np.float32(shares) - np.float32(0.5)

    def call(self, outputs, y):
        d = y - outputs
        return (self.tilts * d + 0.5 * cl.abs(d)).sum(axis=1).mean()


def draw(path, x, y, grid, quantiles):
    """Points, median, band and the true curves into a file."""
    from matplotlib.figure import Figure

    blue, orange, ink = "#0072B2", "#E69F00", "#333333"
    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained")
    axes = figure.subplots()
    axes.plot(x, y, ".", color=ink, alpha=0.25, markersize=3.5, markeredgewidth=0)
    low, median, high = quantiles.T
    axes.fill_between(grid[:, 0], low, high, color=blue, alpha=0.2, linewidth=0, label="band of 90 %, learned")
    axes.plot(grid, median, color=blue, linewidth=2, label="median, learned")
    for k in DEVIATIONS:
        axes.plot(
            grid, middle(grid) + k * spread(grid), "--", color=orange, linewidth=1, label="truth" if k == 0 else ""
        )
    axes.set(xlim=(0, 10), xlabel="x", ylabel="y")
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


rng = np.random.default_rng(0)
x, y = points(2000, rng)
x_test, y_test = points(2000, rng)

model = cl.MLP(1, [32, 32, 3], activation=cl.Tanh, seed=0)
EPOCHS, BATCH = 150, 50
rate = cl.schedules.cosine(0.01, steps=EPOCHS * len(x) // BATCH)
history = model.fit(
    x / 5 - 1,
    y,
    loss=QuantileLoss(SHARES),
    optimizer=cl.Adam(model.parameters(), lr=rate),
    epochs=EPOCHS,
    batch_size=BATCH,
)
print(f"loss {history['loss'][0]:.4f} after 1 epoch, {history['loss'][-1]:.4f} after {history.epochs}")

low, median, high = model.predict(x_test / 5 - 1).T
inside = np.mean((low < y_test[:, 0]) & (y_test[:, 0] < high))
print(f"of {len(x_test)} other points, {inside:.1%} lie in the band of 90 %")

grid = np.linspace(0, 10, 500)[:, None]
quantiles = model.predict(grid / 5 - 1)
truth = middle(grid) + DEVIATIONS * spread(grid)
errors = np.abs(quantiles - truth).mean(axis=0)
print("mean distance from the truth: " + ", ".join(f"{q:.0%} {e:.3f}" for q, e in zip(SHARES, errors, strict=True)))

if len(sys.argv) > 1:
    draw(sys.argv[1], x, y, grid, quantiles)
