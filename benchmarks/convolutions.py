"""Convolutional nets: training steps beside PyTorch's and JAX's, and beside the time that their arithmetic would take.

µs a step for LeNet-5, a net of four convolutions on 32 × 32 images, ResNet-8, a depthwise-separable net on
spectrograms, 1-D convolutions on sensor data and a dense autoencoder, side by side in one run.

    python benchmarks/convolutions.py                 # the peers are the extra `bench`; without them, caffelite alone
    python benchmarks/convolutions.py --only lenet cifar --threads 1 2
    python benchmarks/convolutions.py --profile       # also kernel by kernel, as shares of the peak, and memory
    python benchmarks/convolutions.py --lenet-epochs  # instead: LeNet-5, 10 epochs of 60,000 images, by the clock
    python benchmarks/convolutions.py --quick         # only to see that it works, PyTorch in one form

All is done as in steps.py: a process for each contestant, on the same core or cores, one working at a time; the same
weights, batches and updates; losses compared before anything is timed; rounds. caffelite is timed through `Model.fit`.

Peers get their best: fused optimizers, JAX with donation; both orders of images in memory, channels first and last (a
series is an image of height 1 to PyTorch then); and a malloc that keeps its memory. PyTorch eager is timed with malloc
as it is, too. `torch.compile` takes 10 to 40 s before its first step, for each net and order, which is not
counted; nor is what others do the first time: everybody trains once before.

The data are random, ten batches of them, none short. MNIST's and CIFAR's files are not needed.
"""

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter

import harness
import numpy as np
from contestants import (
    begin,
    caffelite_memory,
    compare_all,
    cores,
    jax_trainer,
    make_parser,
    megabytes,
    pytorch_memory_growth,
    pytorch_trainer,
    report_profile,
    start_pytorch,
    tensors,
)
from workloads import SEED, Trainable, adam, sgd

# ---- nets -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conv:
    """A convolution, of images where `kernel` has two lengths, of series where it has one."""

    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    stride: int = 1
    padding: tuple[int, ...] | int = 0
    groups: int = 1
    bias: bool = True

    @property
    def paddings(self):
        return self.padding if isinstance(self.padding, tuple) else (self.padding,) * len(self.kernel)


@dataclass(frozen=True)
class Linear:
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Norm:
    features: int


@dataclass(frozen=True)
class Block:
    """y = relu(f(x) + g(x)), g being the identity where there is none."""

    f: tuple
    g: tuple = ()


RELU, SIGMOID, POOL, MEAN, FLATTEN = "relu", "sigmoid", "pool", "mean", "flatten"  # POOL: the maximum of 2 × 2


def conv_bn(*arguments, **settings):
    """Return a convolution, BatchNorm instead of its bias, and ReLU."""
    conv = Conv(*arguments, **settings, bias=False)
    return conv, Norm(conv.outputs), RELU


def residual(inputs, outputs, stride):
    f = (*conv_bn(inputs, outputs, (3, 3), stride, 1), *conv_bn(outputs, outputs, (3, 3), padding=1)[:-1])
    return Block(f, conv_bn(inputs, outputs, (1, 1), stride)[:-1] if stride > 1 else ())


def separable(channels):
    return *conv_bn(channels, channels, (3, 3), padding=1, groups=channels), *conv_bn(channels, channels, (1, 1))


def dense(*sizes, activation, at_end):
    layers = [part for shape in pairwise(sizes) for part in (Linear(*shape), activation)]
    return tuple(layers if at_end else layers[:-1])


@dataclass(frozen=True)
class Net(Trainable):
    """Layers, float32; softmax loss on random labels, or where there are no classes the mean squared error to x."""

    title: str
    shape: tuple[int, ...]  # of a row
    layers: tuple
    classes: int
    batch: int
    optimizer: str  # its name in caffelite and in PyTorch, and its arguments
    settings: dict

    check_steps = 10  # steps, an epoch, over which losses agree: rounding errors grow fast in a net of many layers

    def __str__(self):
        return f"{self.title}, {'×'.join(map(str, self.shape))}, batch {self.batch}, {self.optimizer}"

    @property
    def flops(self):
        """A step's multiply-adds for a row, counted twice: as in workloads.py, of products and convolutions."""
        _, (first, *others) = _shape_and_flops(self.layers, self.shape)
        return 2 * first + 3 * sum(others)

    @property
    def convolves(self):
        return len(self.shape) > 1

    def data(self):
        """x (rows, *shape) float32, and labels (rows,) int64 or x once more."""
        rng, rows = np.random.default_rng(SEED), 10 * self.batch
        x = rng.random((rows, *self.shape), np.float32)
        return x, rng.integers(self.classes, size=rows) if self.classes else x

    def network(self):
        """caffelite's model, loss and optimizer; the model's parameters are the same each time."""
        import caffelite as cl

        model = cl.Model(seed=SEED)
        for layer in _caffelite_layers(self.layers):
            model.add(layer)
        loss = cl.SoftmaxLoss() if self.classes else cl.MSELoss()
        return model, loss, getattr(cl, self.optimizer)(model.parameters(), **self.settings)


def _shape_and_flops(layers, shape):
    """Return the shape of a row after the layers, and the FLOPs of each forward product and convolution."""
    flops = []
    for layer in layers:
        match layer:
            case Conv():
                places = [
                    (n + 2 * padding - length) // layer.stride + 1
                    for n, padding, length in zip(shape[1:], layer.paddings, layer.kernel, strict=True)
                ]
                shape = layer.outputs, *places
                flops.append(2 * math.prod(shape) * math.prod(layer.kernel) * layer.inputs // layer.groups)
            case Linear(inputs, outputs):
                assert shape == (inputs,), shape
                shape = (outputs,)
                flops.append(2 * inputs * outputs)
            case Block(f, g):
                after, of_f = _shape_and_flops(f, shape)
                same, of_g = _shape_and_flops(g, shape)
                assert same == after
                shape, flops = after, [*flops, *of_f, *of_g]
            case "pool":
                shape = shape[0], *[n // 2 for n in shape[1:]]
            case "mean":
                shape = shape[:1]
            case "flatten":
                shape = (math.prod(shape),)
    return shape, flops


THREE, FIVE = {"kernel": (3, 3), "padding": 1}, {"kernel": (5,), "padding": 2}
FOUR_CONVOLUTIONS = (Conv(3, 32, **THREE), RELU, Conv(32, 32, **THREE), RELU, POOL)
FOUR_CONVOLUTIONS += (Conv(32, 64, **THREE), RELU, Conv(64, 64, **THREE), RELU, POOL, FLATTEN)
FOUR_CONVOLUTIONS += dense(64 * 8 * 8, 128, 10, activation=RELU, at_end=False)


def lenet(padding, features):
    convolutions = (Conv(1, 6, (5, 5), padding=padding), RELU, POOL, Conv(6, 16, (5, 5)), RELU, POOL, FLATTEN)
    return convolutions + dense(features, 120, 84, 10, activation=RELU, at_end=False)


NETS = {
    "lenet": Net("LeNet-5", (1, 28, 28), lenet(2, 400), 10, 64, *adam()),
    "cifar": Net("convolutions 3-32-32-pool-64-64-pool-128-10", (3, 32, 32), FOUR_CONVOLUTIONS, 10, 64, *sgd(0.01)),
    "resnet": Net(
        "ResNet-8", (3, 32, 32),
        (*conv_bn(3, 16, **THREE), residual(16, 16, 1), residual(16, 32, 2), residual(32, 64, 2), MEAN, Linear(64, 10)),
        10, 64, *sgd(0.01),
    ),
    "separable": Net(  # DS-CNN: Y. Zhang et al., "Hello Edge: keyword spotting on microcontrollers", 2017
        "4 depthwise-separable blocks of 64", (1, 49, 10),
        (*conv_bn(1, 64, (10, 4), 2, (5, 1)), *4 * separable(64), MEAN, Linear(64, 12)),
        12, 64, *adam(),
    ),
    "series": Net(
        "1-D convolutions 9-64-64", (9, 128),
        (*conv_bn(9, 64, **FIVE), *conv_bn(64, 64, **FIVE), MEAN, Linear(64, 6)),
        6, 64, *adam(),
    ),
    "autoencoder": Net(
        "dense 784-128-32-128-784, sigmoid", (784,),
        dense(784, 128, 32, 128, 784, activation=SIGMOID, at_end=True),
        0, 128, *adam(),
    ),
}  # fmt: skip


# ---- the contestants: each prepares, and returns train(epochs, record) -> (seconds, losses) -------------------------


def _caffelite_layers(layers):
    import caffelite as cl

    class Residual(cl.Model):
        def __init__(self, block):
            super().__init__()
            self.f, self.g = [cl.Model(_caffelite_layers(part)) for part in (block.f, block.g)]
            self.projects = bool(block.g)

        def call(self, x):
            return (self.f(x) + (self.g(x) if self.projects else x)).relu()

    simple = {RELU: cl.ReLU, SIGMOID: cl.Sigmoid, POOL: lambda: cl.MaxPool2d(2), MEAN: lambda: cl.GlobalAvgPool(),
              FLATTEN: cl.Flatten}  # fmt: skip
    made = []
    for layer in layers:
        match layer:
            case Conv(inputs, outputs, kernel, stride, padding, groups, bias):
                of, kernel = (cl.Conv2d, kernel) if len(kernel) == 2 else (cl.Conv1d, kernel[0])
                made.append(of(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=bias))
            case Linear(inputs, outputs):
                made.append(cl.Linear(inputs, outputs))
            case Norm(features):
                made.append(cl.BatchNorm(features))
            case Block():
                made.append(Residual(layer))
            case _:
                made.append(simple[layer]())
    return made


def _torch_model(layers, flat):
    """PyTorch's module; with `flat`, a series is an image of height 1."""
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.f, self.g = [_torch_model(part, flat) for part in (block.f, block.g)]

        def forward(self, x):
            return nn.functional.relu(self.f(x) + self.g(x), inplace=True)

    simple = {RELU: lambda: nn.ReLU(inplace=True), SIGMOID: nn.Sigmoid, POOL: lambda: nn.MaxPool2d(2),
              FLATTEN: nn.Flatten}  # fmt: skip
    made, axes = [], 2
    for layer in layers:
        match layer:
            case Conv(inputs, outputs, kernel, stride, _, groups, bias):
                paddings = layer.paddings
                if flat and len(kernel) == 1:
                    kernel, paddings = (1, *kernel), (0, *paddings)
                axes = len(kernel)
                of = nn.Conv2d if axes == 2 else nn.Conv1d
                made.append(of(inputs, outputs, kernel, stride, paddings, groups=groups, bias=bias))
            case Linear(inputs, outputs):
                made.append(nn.Linear(inputs, outputs))
            case Norm(features):
                made.append(nn.BatchNorm2d(features) if axes == 2 else nn.BatchNorm1d(features))
            case Block():
                made.append(Residual(layer))
            case "mean":
                made += [nn.AdaptiveAvgPool2d(1) if axes == 2 else nn.AdaptiveAvgPool1d(1), nn.Flatten()]
            case _:
                made.append(simple[layer]())
    return nn.Sequential(*made)


def pytorch(task, last=False, compiled=False, keeping=True):
    """`last`: channels last in memory. `compiled`: by torch.compile. `keeping`: malloc keeps its memory."""
    torch = start_pytorch(task, keeping)
    layout = {"memory_format": torch.channels_last} if last else {}
    model = _torch_model(task.net.layers, flat=last).to(**layout)
    x, y = tensors(task)
    if last:
        x = (x if x.ndim == 4 else x[:, :, None]).contiguous(**layout)
    return pytorch_trainer(task, model, [x, y], task.weights, compiled)


def jax(task, last=False):
    """`last`: images are (n, height, width, channels), and their kernels with channels last, too."""
    harness.keep_memory()
    import jax
    from jax import lax
    from jax import numpy as jnp

    def to_layout(values, channels=1):
        return np.moveaxis(values, channels, -1) if last and values.ndim > 2 else values

    def convolution(x, kernel, layer):
        places = "HW"[: len(layer.kernel)]
        of_images, of_kernels = (f"N{places}C", f"{places}IO") if last else (f"NC{places}", f"OI{places}")
        return lax.conv_general_dilated(
            x, kernel, [layer.stride] * len(places), [(p, p) for p in layer.paddings],
            dimension_numbers=(of_images, of_kernels, of_images),
        )  # fmt: skip

    def depthwise(x, kernel, layer):
        """Of stride 1: a sum of shifted images takes XLA a sixth of the time of its convolution with groups."""
        first = 1 if last else 2  # axis of places
        around, (height, width) = [(0, 0)] * 4, x.shape[first : first + 2]
        around[first : first + 2] = [(p, p) for p in layer.paddings]
        x, y = jnp.pad(x, around), 0
        for down in range(layer.kernel[0]):
            rows = lax.slice_in_dim(x, down, down + height, axis=first)
            for right in range(layer.kernel[1]):
                shifted = lax.slice_in_dim(rows, right, right + width, axis=first + 1)
                y += shifted * (kernel[down, right, 0] if last else kernel[:, :, down, right, None])
        return y

    def apply(layers, x, weights):
        for layer in layers:
            channel = x.ndim - 1 if last else 1
            along = [1] * x.ndim  # the shape of a vector of numbers for the channels
            along[channel] = -1
            match layer:
                case Conv():
                    x = (convolution if layer.groups == 1 else depthwise)(x, next(weights), layer)
                    x = x + next(weights).reshape(along) if layer.bias else x
                case Linear():
                    x = x @ next(weights) + next(weights)
                case Norm():  # without running moments: a little less than the others do
                    axes = tuple(i for i in range(x.ndim) if i != channel)
                    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
                    scale, shift = next(weights).reshape(along), next(weights).reshape(along)
                    x = (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift
                case Block(f, g):
                    fx = apply(f, x, weights)
                    x = jnp.maximum(fx + apply(g, x, weights), 0)
                case "relu":
                    x = jnp.maximum(x, 0)
                case "sigmoid":
                    x = jax.nn.sigmoid(x)
                case "pool":
                    for axis in (1, 2) if last else (2, 3):
                        x = jnp.maximum(*[lax.slice_in_dim(x, i, None, 2, axis) for i in (0, 1)])
                case "mean":
                    x = x.mean(tuple(i for i in range(1, x.ndim) if i != channel))
                case "flatten":
                    x = jnp.moveaxis(x, -1, 1) if last else x
                    x = x.reshape(len(x), -1)
        return x

    # A kernel (outputs, inputs, height, width) becomes (height, width, inputs, outputs).
    weights = [to_layout(to_layout(values), 0) for values in task.weights]
    return jax_trainer(task, lambda w, x: apply(task.net.layers, x, iter(w)), [to_layout(task.x)], weights)


def contestants(net, quick):
    """Return the peers, by name: orders only where there are images or series, PyTorch's other forms unless it is
    quick.
    """
    peers = {}
    for order, last in [(", channels first", False), (", channels last", True)] if net.convolves else [("", False)]:
        peers[f"PyTorch{order}"] = partial(pytorch, last=last)
        peers[f"JAX{order}"] = partial(jax, last=last)
        if not quick:
            peers[f"PyTorch{order}, malloc as it is"] = partial(pytorch, last=last, keeping=False)
            peers[f"torch.compile{order}"] = partial(pytorch, last=last, compiled=True)
    return peers


# ---- kernel by kernel, and memory -----------------------------------------------------------------------------------


def pytorch_memory(net, last):
    """Return a contestant: () -> the bytes by which a process that has made steps of two rows grows in steps of a
    batch.
    """
    import torch

    torch.set_num_threads(1)
    layout = {"memory_format": torch.channels_last} if last else {}
    model = _torch_model(net.layers, flat=last).to(**layout)
    x, y = map(torch.from_numpy, net.data())
    if last:
        x = (x if x.ndim == 4 else x[:, :, None]).contiguous(**layout)
    return lambda: pytorch_memory_growth(net, model, [x, y], np.s_[:2], np.s_[: net.batch])


def report_time_and_memory(name):
    """Print caffelite's kernels of a step, with shares of the peak measured before and after, and its memory."""
    net = NETS[name]
    report_profile(name, net)
    block, alive, grown = harness.Process(caffelite_memory, net, np.s_[:2], np.s_[: net.batch])()
    print(f"\nTemporaries of a step: {megabytes(block)} in one block, {block / alive:.2f} of what is alive at once,")
    print(f"{megabytes(alive)}. At the peak the process grows by {megabytes(grown)} while the step is recorded", end="")
    peers = [harness.Process(pytorch_memory, net, last) for last in ((False, True) if net.convolves else (False,))]
    if not peers[0].missing:
        print(";\nPyTorch's by", " or, channels last, ".join([megabytes(peer()) for peer in peers]), end="")
    print(".")
    for process in peers:
        process.close()


# ---- LeNet-5, ten epochs --------------------------------------------------------------------------------------------

# As SimpleChains.jl has it: no padding, so 12² and 4² places behind the pools; Adam with this rate.
UNPADDED = Net("LeNet-5 without padding", (1, 28, 28), lenet(0, 256), 10, 64, *adam())
EPOCHS, IMAGES, RATE = 10, 60_000, 3e-4

# Seconds of 10 epochs of MNIST's 60,000 images after a first run that compiles, and cores; Adam with this rate.
# C. Elrod, N. Korsbo, C. Rackauckas, 14 April 2022, https://julialang.org/blog/2022/04/simple-chains/
PUBLISHED = {
    "SimpleChains, Core i7-1165G7 (laptop)": (5.320512, 4),
    "SimpleChains, EPYC 7513": (3.083624, 32),
    "SimpleChains, Core i9-10980XE": (1.230244, 18),
}


def enlarge_digits(images):
    """Images (n, 1, 28, 28) made of the package's digits, and their labels: 60,000 to train on, 10,000 of others.

    Each is one of them three times as large, in a place up to two pixels from the middle, with noise.
    """
    import caffelite as cl

    rng, parts = np.random.default_rng(SEED), []
    for (x, y), count in zip(cl.datasets.digits(), (images, images // 6), strict=True):
        chosen = rng.integers(len(x), size=count)
        large = x[chosen].repeat(3, axis=1).repeat(3, axis=2)
        out = np.zeros((count, 1, 28, 28), np.float32)
        place = rng.integers(5, size=(count, 2))
        for down in range(5):
            for right in range(5):
                here = (place == (down, right)).all(axis=1)
                out[here, 0, down : down + 24, right : right + 24] = large[here]
        parts.append((out + rng.normal(0, 0.1, out.shape).astype(np.float32), y[chosen]))
    return parts


def lenet_epochs(net, threads, images):
    """Return a contestant: () -> (seconds of ten epochs of `fit`, its accuracy on images of digits that it has not
    seen).
    """
    import caffelite as cl

    cl.set_num_threads(threads)
    (x, y), (x_test, y_test) = enlarge_digits(images)
    model, loss, _ = net.network()
    optimizer = cl.Adam(model.parameters(), lr=RATE)

    def train():
        start = perf_counter()
        model.fit(x, y, loss=loss, optimizer=optimizer, epochs=EPOCHS, batch_size=net.batch, seed=SEED, verbose=0)
        seconds = perf_counter() - start
        return seconds, (model.predict(x_test).argmax(axis=1) == y_test).mean()

    return train


def report_lenet_epochs(numbers, quick):
    """Print seconds and GFLOP/s of LeNet-5's ten epochs, caffelite's and those that SimpleChains published."""
    images = 600 if quick else IMAGES
    rows = []
    for net in (NETS["lenet"], UNPADDED):
        for threads in numbers:
            harness.use_threads(threads)
            process = harness.Process(lenet_epochs, net, threads, images, cores=threads)
            seconds, accuracy = process()
            process.close()
            gflops = EPOCHS * images * net.flops / seconds / 1e9
            rows.append([f"caffelite, {net.title}, {cores(threads)}", f"{seconds:.2f}", f"{gflops:.0f}",
                         f"{gflops / threads:.0f}", f"{100 * accuracy:.1f}%"])  # fmt: skip
    for name, (seconds, count) in PUBLISHED.items():
        gflops = EPOCHS * IMAGES * UNPADDED.flops / seconds / 1e9
        rows.append([f"{name}, {count} cores", f"{seconds:.2f}", f"{gflops:.0f}", f"{gflops / count:.0f}", ""])
    print(f"\nLeNet-5, {EPOCHS} epochs of {images:,} images. caffelite: `fit`, all included, batches of 64, on images")
    print("made of the package's digits. SimpleChains: published in 2022, on MNIST, without padding, batches in")
    print("proportion to its threads, after a first run that compiles (34 s and more);")
    print("https://julialang.org/blog/2022/04/simple-chains/\n")
    print(harness.table(["", "s", "GFLOP/s", "GFLOP/s a core", "accuracy on others"], rows))


# ---- all of it ------------------------------------------------------------------------------------------------------


def main():
    parser = make_parser(__doc__, NETS)
    parser.add_argument("--profile", action="store_true", help="also caffelite's kernels and memory, one thread")
    parser.add_argument("--lenet-epochs", action="store_true", help="instead: ten epochs of LeNet-5 by the clock")
    options = parser.parse_args()

    begin(options)
    if options.lenet_epochs:
        report_lenet_epochs(options.threads, options.quick)
        return
    missing = compare_all(NETS, contestants, options)
    for name in options.only if options.profile else []:
        report_time_and_memory(name)
    if missing:
        print(f"\nNot installed, left out: {'; '.join(missing)}")


if __name__ == "__main__":
    main()
