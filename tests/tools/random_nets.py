"""Random nets, and whether ONNX computes what they do: exported and run by onnxruntime, and loaded again.

    python tests/tools/random_nets.py 1000 --seed 1

Outputs are compared for other numbers of rows than the export has seen, float32 within 1e-5 of the largest.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx

import caffelite as cl
import caffelite.onnx
from caffelite.onnx.verify import make_runner

ACTIVATIONS = [
    *[cl.ReLU, cl.LeakyReLU, cl.ELU, cl.GELU, cl.SiLU, cl.Softplus, cl.Tanh, cl.Sigmoid, cl.Softmax, cl.LogSoftmax],
    lambda: cl.GELU(approximate=True),
]


def pick(rng, items):
    return items[rng.integers(len(items))]


def on_vectors(rng, size):
    """Return a layer for rows of this size, and the size that it makes."""
    kind, out = rng.integers(9), int(rng.integers(1, 9))
    if kind < 3:
        return cl.Linear(size, out, bias=bool(rng.integers(2))), out
    if kind == 3:
        return pick(rng, [cl.BatchNorm, cl.LayerNorm, cl.RMSNorm, lambda size: cl.PReLU()])(size), size
    if kind == 4:
        return pick(rng, [cl.Dropout(0.3), cl.DropConnect(size, size)]), size
    if kind == 5:
        return cl.Residual(pick(rng, [cl.Linear(size, size), cl.MLP(size, [out, size])])), size
    if kind == 6:
        return cl.Parallel([cl.Linear(size, out), pick(rng, ACTIVATIONS)()]), out + size
    return pick(rng, ACTIVATIONS)(), size


def vector_net(rng):
    first = int(rng.integers(1, 9))
    layers, size = [], first
    for _ in range(rng.integers(1, 7)):
        layer, size = on_vectors(rng, size)
        layers.append(layer)
    return layers, (first,)


def on_images(rng, shape):
    """Return a layer for images, or series, of this shape."""
    channels, *lengths = shape
    axes, out = len(lengths), 2 * int(rng.integers(1, 4))
    kind = rng.integers(7)
    groups = 2 if channels % 2 == 0 and rng.integers(2) else 1
    size, stride, padding = (int(n) for n in rng.integers((1, 1, 0), (4, 3, 2)))
    convolution, most, mean = [(cl.Conv1d, cl.MaxPool1d, cl.AvgPool1d), (cl.Conv2d, cl.MaxPool2d, cl.AvgPool2d)][
        axes - 1
    ]
    if kind < 2:
        if rng.integers(3) == 0:
            word = "causal" if axes == 1 and rng.integers(2) else "same"
            return convolution(channels, out, size, stride, word, int(rng.integers(1, 3)), groups)
        return convolution(channels, out, size, stride, padding, int(rng.integers(1, 3)), groups, bool(rng.integers(2)))
    if kind == 2:
        more = int(rng.integers(0, stride))
        transposed = cl.ConvTranspose1d if axes == 1 else cl.ConvTranspose2d
        return transposed(channels, out, size, stride, 0, more, groups, dilation=int(rng.integers(1, 3)))
    if kind == 3:
        if rng.integers(3) == 0:
            return most(size, stride, min(padding, size // 2), ceil=True)
        return pick(rng, [most, mean])(size, stride, min(padding, size // 2))
    if kind == 4:
        norms = [cl.BatchNorm(channels), cl.InstanceNorm(channels, 0.1)]
        return pick(rng, [*norms, cl.PReLU(channels), cl.Upsample(2), cl.Dropout(0.2)])
    return pick(rng, ACTIVATIONS[:7])()


def image_net(rng):
    first = (2 * int(rng.integers(1, 3)), *[int(n) for n in rng.integers(4, 9, rng.integers(1, 3))])
    layers, shape = [], first
    for _ in range(rng.integers(1, 6)):
        layer = on_images(rng, shape)
        try:
            made = layer.output_shape((None, *shape))[1:]
        except ValueError:  # the window is too large
            continue
        layers, shape = [*layers, layer], made
    size = int(np.prod(shape))
    layers += pick(
        rng,
        [
            [],
            [cl.Flatten(), cl.Linear(size, 3)],
            [pick(rng, [cl.GlobalAvgPool, cl.GlobalMaxPool])(), cl.Linear(shape[0], 3)],
        ],
    )
    return layers or [cl.Flatten()], first


def sequence_net(rng):
    length, size = int(rng.integers(1, 7)), 2 * int(rng.integers(1, 5))
    layers, first = [cl.Embedding(7, size)], (length,)
    if rng.integers(2):
        layers, first = [cl.Linear(3, size)], (length, 3)
    for _ in range(rng.integers(1, 4)):
        kind, causal = rng.integers(6), bool(rng.integers(2))
        if kind < 3:
            out = 2 * int(rng.integers(1, 5))
            layers.append([cl.RNN, cl.GRU, cl.LSTM][kind](size, out, sequences=True))
            size = out
        elif kind == 3:
            layers.append(cl.TransformerBlock(size, 2, causal=causal, dropout=0.1))
        elif kind == 4:
            layers.append(cl.MultiHeadAttention(size, 1, causal=causal))
        else:
            layers.append(cl.PositionalEncoding(size, 9))
    last = [[cl.GRU(size, 3)], [cl.LSTM(size, 3)], [cl.RNN(size, 3)], [cl.Linear(size, 2)], [cl.Flatten()]]
    return [*layers, *pick(rng, last)], first


class Operators(cl.Model):
    """A net that writes `call`: random operators one after the other."""

    def __init__(self, rng, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.size, self.length = (int(n) for n in rng.integers(2, 5, 2))
        self.f, self.g = cl.Linear(self.size, self.size), cl.Linear(self.size, self.size)
        self.offset = rng.standard_normal((self.length, self.size)).astype(dtype)
        self.positive, self.base = self.offset > 0, abs(self.offset) + dtype(0.5)
        self.which = [int(i) for i in rng.integers(0, len(self.steps()), rng.integers(1, 8))]

    def steps(self):
        c, k = self.size, self.length
        return [
            lambda x: self.f(x).tanh() * self.g(x).sigmoid(),
            lambda x: self.f(x) * self.g(x).sigmoid(),
            lambda x: self.f(x) * 0.5,
            lambda x: x + self.offset,
            lambda x: 2.0 - x / 3.0,
            lambda x: x - x.mean((1, 2), keepdims=True),
            lambda x: x / (x.abs().sum(2, keepdims=True) + 1.0),
            lambda x: cl.where(self.positive, x, -x),
            lambda x: x.clip(-1.0, None),
            lambda x: x[:, ::-1, [1, 0]] @ x[:, :, :2].transpose(0, 2, 1) @ x,
            lambda x: x.reshape(len(x) * k, c).reshape(len(x), k, c),
            lambda x: cl.concatenate([x[:, 1:], x[:, :1]], axis=1),
            lambda x: cl.stack([x[:, i] for i in range(k)], axis=1),
            lambda x: (x * x + 0.1).sqrt().log(),
            lambda x: x.softmax(1) + x.max(1, keepdims=True) - x.min((1, 2), keepdims=True),
            lambda x: self.base ** x.tanh(),
            lambda x: x[:, [0] * k, [j % c for j in range(k)]][:, :, None] + x,
            lambda x: x * (self.f.weight.T @ self.g.weight).sum(0),
            lambda x: x.transpose(1, 2, 0).transpose(2, 0, 1).exp().clip(None, 5.0),
        ]

    def call(self, x):
        steps = self.steps()
        for i in self.which:
            x = steps[i](x)
        return x, x.sum(2)[:, -1]


def random_net(seed):
    """Return a model, and the shape of a row."""
    rng = np.random.default_rng(seed)
    dtype = np.float32 if rng.integers(4) else np.float64
    kind = rng.integers(4)
    if kind == 3:
        model = Operators(rng, dtype)
        return model, (model.length, model.size)
    layers, shape = [vector_net, image_net, sequence_net][kind](rng)
    model = cl.Model(layers, seed=0, dtype=dtype)
    for name, a in model.buffers().items():
        if name.endswith(("mean", "variance")):
            a[:] = rng.uniform(0.5, 1.5, a.shape)
    return model, shape


def check(seed, folder):
    """AssertionError unless ONNX computes what the net of this seed does; the model, and the one loaded again."""
    model, shape = random_net(seed)
    path = Path(folder, "net.onnx")
    caffelite.onnx.export(model, path, shape)
    onnx.checker.check_model(path, full_check=True)
    loaded = caffelite.onnx.load(path)
    rng = np.random.default_rng(seed)
    for n in (2, 7):
        x = rng.standard_normal((n, *shape)).astype(model.dtype)
        x = rng.integers(0, 7, (n, *shape)) if model.takes_indices else x
        expected = to_list(model.predict(x))
        if model.dtype == np.float32:  # onnxruntime has not all operators in float64, and `export` has looked
            compare(expected, make_runner(onnx.load(path))(x), 1e-5, f"seed {seed}: {model!r}")
        tolerance = 1e-5 if model.dtype == np.float32 else 1e-7
        compare(expected, to_list(loaded.predict(x)), tolerance, f"seed {seed}, loaded: {model!r}")
    return model, loaded


def to_list(outputs):
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def compare(expected, found, tolerance, what):
    assert len(expected) == len(found), what
    for y, other in zip(expected, found, strict=True):
        assert y.shape == other.shape, what
        scale = max(1.0, abs(y).max(initial=0, where=np.isfinite(y)))
        np.testing.assert_allclose(other, y, rtol=0, atol=tolerance * scale, err_msg=what)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first net")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            check(seed, folder)
    print(f"{arguments.count} nets")
