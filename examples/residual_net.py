"""A residual net by `call`, compared with a plain net of the same depth, on the three spirals.

Each of 20 blocks is f(h) = ReLU(h W + b). In the plain net, h ← f(h), every block's weights multiply the gradient on
its way to the first layer, and almost nothing arrives. With residual connections, h ← h + f(h), the gradient also
passes around the blocks. Both nets have the initial weights of `cl.Linear`. With `cl.initializers.he_normal`, which is
made for ReLU, the plain net trains, too. K. He et al., "Deep residual learning for image recognition", CVPR 2016.

python residual_net.py                # trains
python residual_net.py PICTURE.png    # draws what both nets have learned, too; needs matplotlib
"""

import sys

import numpy as np

import caffelite as cl

EPOCHS, BATCH = 100, 32


class DeepNet(cl.Model):
    """Points (n, 2) to scores of three classes (n, 3), by `depth` blocks of `width` units."""

    def __init__(self, depth, width, residual, seed):
        super().__init__(seed=seed)
        self.residual = residual
        self.first = cl.Linear(2, width)
        self.blocks = [cl.Model([cl.Linear(width, width), cl.ReLU()]) for _ in range(depth)]
        self.last = cl.Linear(width, 3)

    def call(self, x):
        h = self.first(x)
        for f in self.blocks:
            h = h + f(h) if self.residual else f(h)
        return self.last(h)


def gradient_of_first_layer(model):
    """Return the length of the loss's gradient for the first layer's weights."""
    cl.SoftmaxLoss()(model(x), y).backward()
    return np.linalg.norm(model.first.weight.grad)


def draw(path, models, histories):
    """Draw the regions in which each net decides for each spiral, and the losses, into a file."""
    from caffelite.plots import decision_regions
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), dpi=160, layout="constrained")
    *regions, losses = figure.subplots(1, 3, width_ratios=[1, 1, 1.3])
    for axes, name, colour in zip(regions, models, ("#D55E00", "#0072B2"), strict=True):
        decision_regions(models[name], x, y, axes=axes)
        axes.set_title(f"{name}: {histories[name]['accuracy'][-1]:.0%} right")
        losses.semilogy(range(1, EPOCHS + 1), histories[name]["loss"], color=colour)
        losses.annotate(
            name, (EPOCHS, histories[name]["loss"][-1]), (-4, 6), textcoords="offset points", color=colour, ha="right"
        )
    losses.set(title="loss", xlabel="epoch", xlim=(0, EPOCHS))
    losses.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


x, y = cl.datasets.spiral(seed=0)
rate = cl.schedules.cosine(3e-3, steps=EPOCHS * -(-len(x) // BATCH))
models, histories = {}, {}
for name in ("plain", "residual"):
    models[name] = model = DeepNet(depth=20, width=16, residual=name == "residual", seed=0)
    print(f"{name}: gradient of the first layer {gradient_of_first_layer(model):.1e} before the first step")
    histories[name] = history = model.fit(
        x,
        y,
        loss=cl.SoftmaxLoss(),
        optimizer=cl.Adam(model.parameters(), lr=rate),
        epochs=EPOCHS,
        batch_size=BATCH,
        metrics=["accuracy"],
    )
    print(
        f"{name}: after {history.epochs} epochs loss {history['loss'][-1]:.4f}, accuracy {history['accuracy'][-1]:.4f}"
    )

if len(sys.argv) > 1:
    draw(sys.argv[1], models, histories)
