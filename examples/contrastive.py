"""Contrastive pairs: digits become points in the plane, near each other if they are the same digit.

The net gets two images and gives the distance d of their points. Pairs of one digit cost d², and other pairs cost
max(0, 1 − d)². The net never learns which digit an image shows, only whether two are the same.
R. Hadsell, S. Chopra and Y. LeCun, "Dimensionality reduction by learning an invariant mapping", CVPR 2006.

python contrastive.py                # trains: a few seconds
python contrastive.py PICTURE.png    # draws the points of test images, too; needs matplotlib
"""

import sys

import numpy as np

import caffelite as cl


class Distance(cl.Model):
    """Two images (n, 64) → the distance (n,) of their points."""

    def __init__(self, seed=None):
        super().__init__(seed=seed)
        self.point = cl.MLP(64, [128, 128, 2])

    def call(self, a, b):
        return (((self.point(a) - self.point(b)) ** 2).sum(axis=1) + 1e-6).sqrt()


def contrastive(d, same):
    near, apart = d**2, (1 - d).relu() ** 2
    return (apart + (near - apart) * same).mean()


rng = np.random.default_rng(0)
(x, y), (x_test, y_test) = cl.datasets.digits()
x, x_test = x.reshape(-1, 64), x_test.reshape(-1, 64)
first = rng.integers(0, len(x), 20_000)
alike = [rng.choice(np.flatnonzero(y == y[i])) for i in first[:10_000]]
second = np.concatenate([alike, rng.integers(0, len(x), 10_000)])
same = (y[first] == y[second]).astype(float)

model = Distance(seed=0)
optimizer = cl.Adam(model.parameters(), lr=cl.schedules.cosine(2e-3, steps=10 * 313))
model.fit((x[first], x[second]), same, loss=contrastive, optimizer=optimizer, epochs=10, batch_size=64, verbose=0)

points, of_test = model.point.predict(x), model.point.predict(x_test)
nearest = np.linalg.norm(of_test[:, None] - points, axis=2).argmin(axis=1)
print(f"the digit of the nearest training image is right for {(y[nearest] == y_test).mean():.4f} of the test images")

if len(sys.argv) > 1:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(6, 5), dpi=160, layout="constrained").subplots()
    drawn = axes.scatter(*of_test.T, c=y_test, cmap="tab10", s=14)
    axes.legend(*drawn.legend_elements(), title="digit", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_aspect("equal")
    axes.figure.savefig(sys.argv[1])
