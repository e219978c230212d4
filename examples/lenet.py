"""LeNet-5, the first convolutional net in practical use, on MNIST or on the bundled digits, enlarged to its size.

It has two convolutions of 5 × 5 pixels, each with a pool, and three dense layers. Here it has ReLU and max-pools. Y.
LeCun et al., "Gradient-based learning applied to document recognition", Proceedings of the IEEE, 1998.

python lenet.py            # the 1,437 bundled images, 8 × 8 pixels enlarged to 28 × 28, 30 epochs: a second or two
python lenet.py FOLDER     # MNIST's four files, .gz or unpacked, in FOLDER, 5 epochs
"""

import sys
import time

import numpy as np

import caffelite as cl

BATCH = 64


def enlarge(images):
    """Images (n, 8, 8) as (n, 28, 28): each pixel three times along both axes, in a margin of two."""
    large = cl.Upsample(3).forward(images[:, None])[:, 0]
    return np.pad(large, ((0, 0), (2, 2), (2, 2)))


if len(sys.argv) > 1:
    (x, y), (x_test, y_test) = cl.datasets.mnist(sys.argv[1])
    epochs = 5
else:
    (x, y), (x_test, y_test) = cl.datasets.digits()
    x, x_test = enlarge(x), enlarge(x_test)
    epochs = 30
x, x_test = x[:, None], x_test[:, None]  # a convolution takes (n, channels, height, width), here one channel

model = cl.Model(seed=0)
model.add(cl.Conv2d(1, 6, 5, padding=2)).add(cl.ReLU()).add(cl.MaxPool2d(2))
model.add(cl.Conv2d(6, 16, 5)).add(cl.ReLU()).add(cl.MaxPool2d(2))
model.add(cl.Flatten()).add(cl.Linear(400, 120)).add(cl.ReLU())
model.add(cl.Linear(120, 84)).add(cl.ReLU()).add(cl.Linear(84, 10))
print(model.summary((1, 28, 28)))

loss = cl.SoftmaxLoss()
rate = cl.schedules.cosine(2e-3, steps=epochs * -(-len(x) // BATCH))
started = time.perf_counter()
history = model.fit(x, y, loss=loss, optimizer=cl.Adam(model.parameters(), lr=rate), epochs=epochs, batch_size=BATCH)
seconds = time.perf_counter() - started
print(f"{len(x) * epochs / seconds:,.0f} images per second")

results = model.evaluate(x_test, y_test, loss=loss, metrics=["accuracy"])
print(f"test images: loss {results['loss']:.4f}, accuracy {results['accuracy']:.4f}")
