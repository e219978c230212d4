"""Classify three Gaussian blobs in the plane: train on 300 points, test on 30 others."""

import numpy as np

import caffelite as cl

CENTRES = np.array([[0, 2], [-2, -1], [2, -1]])


def blobs(points_per_class, rng):
    """Points (n, 2) around the centres with a standard deviation of 0.5, and the numbers of their centres (n,)."""
    y = np.repeat(np.arange(len(CENTRES)), points_per_class)
    return CENTRES[y] + 0.5 * rng.standard_normal((len(y), 2)), y


rng = np.random.default_rng(0)
x, y = blobs(100, rng)
x_test, y_test = blobs(10, rng)

model = cl.MLP(2, [16, 3], seed=0)
loss = cl.SoftmaxLoss()
history = model.fit(x, y, loss=loss, optimizer=cl.SGD(model.parameters(), lr=0.1, momentum=0.9), epochs=20)
print(f"loss {history['loss'][0]:.4f} after 1 epoch, {history['loss'][-1]:.4f} after {history.epochs}")

accuracy = model.evaluate(x_test, y_test, loss=loss, metrics=["accuracy"])["accuracy"]
print(f"{len(y_test)} test points: accuracy {accuracy:.4f}")
