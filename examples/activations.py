"""All activations that are applied element by element, each in a net 784-128-64-10 on handwritten digits.

The bundled images of 8 × 8 pixels are scaled up to 28 × 28, the size of MNIST's. Each pixel becomes 3 × 3, with a
margin of 2. The same seed draws the same first weights and orders for every activation. Times are on one thread.

python activations.py                # trains
python activations.py PICTURE.png    # draws each activation and its slope, too; needs matplotlib
"""

import sys
import time

import numpy as np

import caffelite as cl
from caffelite.functions import activation

# Those that caffelite has, but for the two that are applied along an axis.
names = [name for name in activation.__all__ if name[0].isupper() and name not in ("Softmax", "LogSoftmax")]
ACTIVATIONS = [*[getattr(cl, name)() for name in names], cl.GELU(approximate=True)]
EPOCHS = 15


def enlarge(images):
    """Images (n, 8, 8) as rows (n, 784) of 28 × 28 pixels."""
    large = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    return large.reshape(len(images), -1)


def value_and_slope(f, x):
    """y and dy/dx at the points x."""
    t = cl.Tensor(x, requires_grad=True)
    y = f(t)
    y.sum().backward()
    return y.numpy(), t.grad


def draw(path, accuracies):
    """Draw a panel for each activation, with its value, its slope and what it reached, into a file."""
    from matplotlib.figure import Figure

    rows = -(-len(ACTIVATIONS) // 3)
    figure = Figure(figsize=(9, 2.5 * rows), dpi=160, layout="constrained")
    panels = figure.subplots(rows, 3, sharex=True, sharey=True)
    x = np.linspace(-4, 4, 401, dtype=np.float32)
    for axes in panels.flat[len(ACTIVATIONS) :]:
        axes.remove()
    for axes, f in zip(panels.flat, ACTIVATIONS, strict=False):
        y, slope = value_and_slope(f, x)
        axes.plot(x, y, color="#0072B2", linewidth=2, label="y", zorder=3)
        axes.plot(x, slope, color="#E69F00", linewidth=1.5, label="dy/dx")
        axes.set_title(f"{f}\n{accuracies[repr(f)]:.1%}", fontsize=10)
        axes.set(xlim=(-4, 4), ylim=(-1.2, 2.4), xticks=range(-4, 5, 2), yticks=range(-1, 3))
        axes.grid(color="#DDDDDD", linewidth=0.8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    panels[0, 0].legend(frameon=False, loc="upper left")
    figure.suptitle("Activations, and the test images that a net with them reads rightly", fontsize=11)
    figure.savefig(path)


(x, y), (x_test, y_test) = cl.datasets.digits()
x, x_test = enlarge(x), enlarge(x_test)
loss = cl.SoftmaxLoss()
cl.set_num_threads(1)  # so the times don't depend on what else the machine does at the moment

print(f"{'activation':22}{'loss':>8}{'test accuracy':>15}{'seconds':>9}")
accuracies = {}
for f in ACTIVATIONS:
    model = cl.MLP(784, [128, 64, 10], activation=f.copy, seed=0)
    started = time.perf_counter()
    history = model.fit(x, y, loss=loss, optimizer=cl.Adam(model.parameters()), epochs=EPOCHS, verbose=0)
    seconds = time.perf_counter() - started
    accuracy = model.evaluate(x_test, y_test, loss=loss, metrics=["accuracy"])["accuracy"]
    accuracies[repr(f)] = accuracy
    print(f"{f!r:22}{history['loss'][-1]:8.4f}{accuracy:15.4f}{seconds:9.2f}")

if len(sys.argv) > 1:
    draw(sys.argv[1], accuracies)
