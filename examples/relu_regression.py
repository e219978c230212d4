"""An expression with its loss, relu(x W + b) and the mean squared error, trained without a layer, a loss or a Model.

The data come from such an expression with other numbers, and the training finds these numbers again. The step is
recorded once and then replayed. The program can draw the graph of the loss to a file:

python relu_regression.py              # trains
python relu_regression.py GRAPH.svg    # draws the graph, too
"""

import sys
from pathlib import Path

import numpy as np

import caffelite as cl

rng = np.random.default_rng(0)
true_W, true_b = np.float32([[1, -2], [0.5, 1], [-1, 0]]), np.float32([0.5, -0.25])
x = rng.standard_normal((200, 3), dtype=np.float32)
y = np.maximum(x @ true_W + true_b, 0)

W = cl.Tensor(rng.uniform(-0.5, 0.5, (3, 2)), requires_grad=True, dtype=np.float32, name="W")
b = cl.Tensor(np.zeros(2), requires_grad=True, dtype=np.float32, name="b")
optimizer = cl.SGD([W, b], lr=0.2, momentum=0.9)


def mean_squared_error(x, y):
    return ((cl.relu(x @ W + b) - y) ** 2).mean()


def step(x, y):
    optimizer.zero_grad()
    loss = mean_squared_error(x, y)
    loss.backward()
    optimizer.step()
    return loss


if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(cl.graph(mean_squared_error(x, y)), encoding="utf-8")

program = cl.capture(step, x, y)  # the first step
for k in range(2, 201):
    loss = program(x, y)
    if k % 50 == 0:
        print(f"step {k}: mean squared error {loss:.1e}")

print(f"W =\n{W.numpy().round(3)}\nb = {b.numpy().round(3)}")
error = max(np.abs(W.numpy() - true_W).max(), np.abs(b.numpy() - true_b).max())
print(f"away from the numbers that made the data: {error:.1e}")
