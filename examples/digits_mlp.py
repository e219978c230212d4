"""Handwritten digits with two hidden layers and Adam: the bundled ones, or MNIST's.

python digits_mlp.py            # 64-128-64-10 on the 1,437 bundled images of 8 × 8 pixels, 30 epochs
python digits_mlp.py FOLDER     # 784-128-64-10 on MNIST's four files, .gz or unpacked, in FOLDER, 5 epochs
"""

import gzip
import sys
from pathlib import Path

import numpy as np

import caffelite as cl


def read_idx(folder, name):
    """Return an array of bytes in MNIST's format: two zeros, 8, the number of axes, their big-endian lengths, the
    bytes.
    """
    packed = folder / f"{name}.gz"
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    if data[:3] != b"\0\0\x08":
        raise SystemExit(f"{name} is not an idx file of unsigned bytes")
    start = 4 + 4 * data[3]
    return np.frombuffer(data, np.uint8, offset=start).reshape(np.frombuffer(data[4:start], ">u4"))


def read_mnist(folder):
    """Return the images, (n, 28, 28) in 0 … 1, and the labels, (n,), to train and to test."""
    return [
        (read_idx(folder, f"{part}-images-idx3-ubyte") / np.float32(255), read_idx(folder, f"{part}-labels-idx1-ubyte"))
        for part in ("train", "t10k")
    ]


mnist = len(sys.argv) > 1
(x, y), (x_test, y_test) = read_mnist(Path(sys.argv[1])) if mnist else cl.datasets.digits()
x, x_test = x.reshape(len(x), -1), x_test.reshape(len(x_test), -1)

model = cl.MLP(x.shape[1], [128, 64, 10], seed=0)
print(model.summary())

loss = cl.SoftmaxLoss()
model.fit(x, y, loss=loss, optimizer=cl.Adam(model.parameters()), epochs=5 if mnist else 30, batch_size=64)

results = model.evaluate(x_test, y_test, loss=loss, metrics=["accuracy"])
print(f"test images: loss {results['loss']:.4f}, accuracy {results['accuracy']:.4f}")
