"""ResNet-8, a residual net of seven convolutions by `call`, on CIFAR-10's photographs or on coloured shapes made here.

A block is y = ReLU(f(x) + x), where f is two convolutions of 3 × 3 pixels with batch normalization. Some blocks halve
the image and double the channels. In these, a convolution of one pixel does the same to x. K. He et al., "Deep residual
learning for image recognition", CVPR 2016. Images are moved, mirrored and partly covered at random, and so never seen
twice.

python resnet.py            # 1,500 coloured circles, squares and triangles, 12 epochs: ten seconds
python resnet.py FOLDER     # CIFAR-10's binary files in FOLDER, 20 epochs: a quarter of an hour
"""

import sys

import numpy as np

import caffelite as cl

BATCH = 64


class Block(cl.Model):
    """y = ReLU(f(x) + x), or with `stride` s ReLU(f(x) + g(x)) of H/s × W/s pixels."""

    def __init__(self, in_channels, out_channels, stride=1):
        super().__init__()
        self.f = cl.Model(
            [
                cl.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
                cl.BatchNorm(out_channels),
                cl.ReLU(),
                cl.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
                cl.BatchNorm(out_channels),
            ]
        )
        self.g = cl.Conv2d(in_channels, out_channels, 1, stride) if in_channels != out_channels else None

    def call(self, x):
        return (self.f(x) + (x if self.g is None else self.g(x))).relu()


def resnet8(classes, seed):
    """Images (n, 3, H, W) to scores (n, classes)."""
    first = [cl.Conv2d(3, 16, 3, padding=1, bias=False), cl.BatchNorm(16), cl.ReLU()]
    blocks = [Block(16, 16), Block(16, 32, stride=2), Block(32, 64, stride=2)]
    return cl.Model([*first, *blocks, cl.GlobalAvgPool(), cl.Linear(64, classes)], seed=seed)


def shapes(n, seed):
    """n noisy images of a circle 0, a square 1 or a triangle 2: (n, 3, 24, 24) float32, (n,) int64.

    A shape has any place, size, turn and light colour, and the ground behind it any dark one.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    row, column = np.mgrid[:24, :24]
    centre, size = rng.uniform(9, 15, (2, n, 1, 1)), rng.uniform(5, 9, (n, 1, 1))
    down, right = row - centre[0], column - centre[1]
    turn = rng.uniform(0, 2 * np.pi, (n, 1, 1))
    # A regular polygon is where no side is nearer to its middle than `inner`: the sides look into `corners` directions.
    inside = np.hypot(down, right) < size
    for label, corners, inner in ((1, 4, 0.8), (2, 3, 0.65)):
        angles = turn + 2 * np.pi * np.arange(corners).reshape(-1, 1, 1, 1) / corners
        polygon = (down * np.sin(angles) + right * np.cos(angles) < inner * size).all(axis=0)
        inside = np.where(labels[:, None, None] == label, polygon, inside)
    colours, grounds = rng.uniform(0.5, 1, (n, 3, 1, 1)), rng.uniform(0, 0.5, (n, 3, 1, 1))
    images = np.where(inside[:, None], colours, grounds) + rng.normal(0, 0.1, (n, 3, 24, 24))
    return images.astype(np.float32), labels


if len(sys.argv) > 1:
    (x, y), (x_test, y_test) = cl.datasets.cifar10(sys.argv[1])
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    epochs = 20
else:
    (x, y), (x_test, y_test) = shapes(1_500, seed=0), shapes(500, seed=1)
    names = ["circle", "square", "triangle"]
    epochs = 12

transform = [cl.augment.shift(3), cl.augment.flip(), cl.augment.cutout(5)]
data = cl.DataGenerator(x, y, batch_size=BATCH, transform=transform, seed=0)
model = resnet8(len(names), seed=0)
print(model.summary(x.shape[1:]))

loss = cl.SoftmaxLoss()
rate = cl.schedules.cosine(3e-3, steps=epochs * len(data), warmup=len(data))
optimizer = cl.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
model.fit(data, loss=loss, optimizer=optimizer, epochs=epochs, metrics=["accuracy"], verbose=2)

predictions = model.predict(x_test).argmax(axis=1)
print(f"test images: accuracy {(predictions == y_test).mean():.4f}")
for k, name in enumerate(names):
    print(f"  {name:10}  {(predictions[y_test == k] == k).mean():.2f} found")
