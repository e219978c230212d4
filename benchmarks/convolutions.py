"""Convolutional nets: training steps beside PyTorch's and JAX's, and beside the time that their arithmetic would take.

µs a step for LeNet-5, a net of four convolutions on 32 × 32 images, ResNet-8, a depthwise-separable net on
spectrograms, 1-D convolutions on sensor data and a dense autoencoder, side by side in one run.

    python benchmarks/convolutions.py                 # the peers are the extra `bench`; without them, caffelite alone
    python benchmarks/convolutions.py --only lenet cifar --threads 1 2
    python benchmarks/convolutions.py --profile       # also kernel by kernel, as shares of the peak, and memory
    python benchmarks/convolutions.py --lenet-epochs  # instead: LeNet-5, 10 epochs of 60,000 images, by the clock
    python benchmarks/convolutions.py --quick         # only to see that it works, and without torch.compile

All is done as in steps.py: a process for each contestant, on the same core or cores, one working at a time; the same
weights, batches and updates; losses compared before anything is timed; rounds. caffelite is timed through `Model.fit`.

Peers get their best: fused optimizers, JAX with donation; both orders of images in memory, channels first and last (a
series is an image of height 1 to PyTorch then); and a malloc that keeps its memory. PyTorch eager is timed with malloc
as it is, too. `torch.compile` takes 10 to 40 s before its first step, for each net and order, which is not counted.

The data are random, ten batches of them, none short. MNIST's and CIFAR's files are not needed.
"""

import argparse
import math
import os
import re
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter

import harness
import numpy as np
from steps import compare, jax_rule, prepare, profiled, textbook_step
from workloads import SEED, adam, sgd

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


def normed(*arguments, **settings):
    """A convolution, BatchNorm instead of its bias, and ReLU."""
    conv = Conv(*arguments, **settings, bias=False)
    return conv, Norm(conv.outputs), RELU


def residual(inputs, outputs, stride):
    f = (*normed(inputs, outputs, (3, 3), stride, 1), *normed(outputs, outputs, (3, 3), padding=1)[:-1])
    return Block(f, normed(inputs, outputs, (1, 1), stride)[:-1] if stride > 1 else ())


def separable(channels):
    return *normed(channels, channels, (3, 3), padding=1, groups=channels), *normed(channels, channels, (1, 1))


def dense(*sizes, activation, at_end):
    layers = [part for shape in pairwise(sizes) for part in (Linear(*shape), activation)]
    return tuple(layers if at_end else layers[:-1])


@dataclass(frozen=True)
class Net:
    """Layers, float32; softmax loss on random labels, or where there are no classes the mean squared error to x."""

    title: str
    shape: tuple[int, ...]  # of a row
    layers: tuple
    classes: int
    batch: int
    optimizer: str  # its name in caffelite and in PyTorch, and its arguments
    settings: dict

    compared = 10  # steps, an epoch, over which losses agree: rounding errors grow fast in a net of many layers

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

    def fit(self, x, y, epochs):
        """Train a new model with `Model.fit`, which alone is timed: (seconds, model, history)."""
        model, loss, optimizer = self.network()
        start = perf_counter()
        history = model.fit(
            x, y, loss=loss, optimizer=optimizer, epochs=epochs, batch_size=self.batch, seed=SEED, verbose=0
        )
        return perf_counter() - start, model, history


def _shape_and_flops(layers, shape):
    """The shape of a row after the layers, and the FLOPs of each forward product and convolution."""
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
        (*normed(3, 16, **THREE), residual(16, 16, 1), residual(16, 32, 2), residual(32, 64, 2), MEAN, Linear(64, 10)),
        10, 64, *sgd(0.01),
    ),
    "separable": Net(  # DS-CNN: Y. Zhang et al., "Hello Edge: keyword spotting on microcontrollers", 2017
        "4 depthwise-separable blocks of 64", (1, 49, 10),
        (*normed(1, 64, (10, 4), 2, (5, 1)), *4 * separable(64), MEAN, Linear(64, 12)),
        12, 64, *adam(),
    ),
    "series": Net(
        "1-D convolutions 9-64-64", (9, 128),
        (*normed(9, 64, **FIVE), *normed(64, 64, **FIVE), MEAN, Linear(64, 6)),
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


def caffelite(task):
    import caffelite as cl

    cl.set_num_threads(task.threads)

    def train(epochs, record):
        seconds, _, history = task.net.fit(task.x, task.y, epochs)
        return seconds, history["loss"]

    return train


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
    if keeping:
        harness.keep_memory()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # compile in this process, and start no others
    import torch

    torch.set_num_threads(task.threads)
    layout = {"memory_format": torch.channels_last} if last else {}
    model = _torch_model(task.net.layers, flat=last).to(**layout)
    x, y = torch.from_numpy(task.x), torch.from_numpy(task.y)
    if last:
        x = (x if x.ndim == 4 else x[:, :, None]).contiguous(**layout)
    measure = torch.nn.CrossEntropyLoss() if task.net.classes else torch.nn.MSELoss()

    def loss_of(x, y):
        return measure(model(x), y)

    loss_of = torch.compile(loss_of) if compiled else loss_of

    @torch.no_grad()
    def start():
        for p, values in zip(model.parameters(), task.weights, strict=True):
            p.copy_(torch.from_numpy(values.T if values.ndim == 2 else values).reshape(p.shape))

    def train(epochs, record):
        start()
        optimizer = getattr(torch.optim, task.net.optimizer)(model.parameters(), **task.net.settings, fused=True)
        losses = np.zeros(epochs)
        began = perf_counter()
        for epoch, order in enumerate(map(torch.from_numpy, task.orders[:epochs])):
            batches = zip(x[order].split(task.net.batch), y[order].split(task.net.batch), strict=True)
            for xb, yb in batches:
                optimizer.zero_grad()
                loss = loss_of(xb, yb)
                loss.backward()
                optimizer.step()
                if record:
                    losses[epoch] += loss.item() * len(xb) / len(x)
        return perf_counter() - began, losses

    return train


def jax(task, last=False):
    """`last`: images are (n, height, width, channels), and their kernels with channels last, too."""
    harness.keep_memory()
    import jax
    from jax import lax
    from jax import numpy as jnp

    def laid(values, channels=1):
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

    def loss_of(w, x, y):
        out = apply(task.net.layers, x, iter(w))
        return -(jax.nn.log_softmax(out) * y).sum() / len(y) if task.net.classes else ((out - y) ** 2).mean()

    rule, moments = jax_rule(task.net)

    @partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        t, w, *moments = state
        loss, g = jax.value_and_grad(loss_of)(w, x, y)
        updated = [rule(t, *arrays) for arrays in zip(w, g, *moments, strict=True)]
        return (t + 1, *zip(*updated, strict=True)), loss

    x = jnp.array(laid(task.x))
    y = jax.nn.one_hot(task.y, task.net.classes) if task.net.classes else x
    split = jax.jit(lambda order: [(x[rows], y[rows]) for rows in task.batches(order)])
    # A kernel (outputs, inputs, height, width) becomes (height, width, inputs, outputs).
    weights = [laid(laid(values), 0) for values in task.weights]

    def train(epochs, record):
        w = tuple(map(jnp.array, weights))
        state = jnp.ones(()), w, *[tuple(map(jnp.zeros_like, w)) for _ in range(moments)]
        losses = []
        began = perf_counter()
        for order in task.orders[:epochs]:
            for xb, yb in split(order.astype(np.int32)):
                state, loss = step(state, xb, yb)
                losses.append(loss)
        jax.block_until_ready(state)
        seconds = perf_counter() - began
        return seconds, np.array(losses).reshape(epochs, -1).mean(1) if record else None

    return train


def contestants(net, quick):
    """Everybody, by name. Orders only where there are images or series, and torch.compile unless it has to be quick."""
    everybody = {"caffelite": caffelite}
    for order, last in [(", channels first", False), (", channels last", True)] if net.convolves else [("", False)]:
        everybody[f"PyTorch{order}"] = partial(pytorch, last=last)
        everybody[f"PyTorch{order}, malloc as it is"] = partial(pytorch, last=last, keeping=False)
        if not quick:
            everybody[f"torch.compile{order}"] = partial(pytorch, last=last, compiled=True)
        everybody[f"JAX{order}"] = partial(jax, last=last)
    return everybody


# ---- comparing and timing -------------------------------------------------------------------------------------------


def report(name, task, timed, curves, seconds, speeds):
    """Print a net's table; returns its row in the summary: caffelite's time, and peers' as multiples of it."""
    steps = timed * task.steps_an_epoch
    medians, least = [
        {peer: statistic(times) / steps * 1e6 for peer, times in seconds.items()} for statistic in (median, min)
    ]
    ratios = {peer: us / medians["caffelite"] for peer, us in medians.items()}
    rows = [
        [peer, f"{us:,.0f}", f"{least[peer]:,.0f}", f"{ratios[peer]:.2f}", f"{curves[peer][-1]:.5f}"]
        for peer, us in medians.items()
    ]
    gflops = max(gflops for gflops, _ in speeds)
    floor = task.flops / gflops / 1e3
    print(f"\n{name}: {task.net}; {cores(task.threads)}; {steps:,} steps a timing")
    print(f"A step's {task.flops / 1e6:,.0f} MFLOP take {floor:,.0f} µs at {gflops:.0f} GFLOP/s (NumPy's, 1536³);")
    print(f"loss: the mean of epoch {len(curves['caffelite'])}\n")
    print(harness.table([name, "µs/step, median", "least", "time, caffelite = 1", "loss"], rows))

    best = {}  # of each library, and of all
    for peer, ratio in ratios.items():
        if peer != "caffelite":
            for who in (peer.split(",")[0], "all"):
                best[who] = min(best.get(who, math.inf), ratio)
    of_peers = [f"{best[who]:.2f}" if who in best else "–" for who in ("PyTorch", "torch.compile", "JAX", "all")]
    own = least["caffelite"]
    return [f"{name}, {cores(task.threads)}", f"{own:,.0f}", f"{floor:,.0f}", f"{100 * floor / own:.0f}%", *of_peers]


def cores(threads):
    return f"{threads} thread{'s' * (threads > 1)}"


# ---- kernel by kernel, and memory -----------------------------------------------------------------------------------


def with_shares(profile, gflops):
    """The table of `Program.profile` with one more column: a kernel's GFLOP/s as a share of the peak."""
    head, rule, *rows = profile.splitlines()
    width = max(map(len, (head, rule, *rows)))
    lines = [f"{head:{width}}  of peak", rule + "-" * (width - len(rule) + 9)]
    for row in rows:
        _, _, *numbers = re.split(r"\s{2,}", row)
        share = f"{float(numbers[1]) / gflops:.0%}" if len(numbers) == 4 else ""  # µs, GFLOP/s, GB/s, share
        lines.append(f"{row:{width}}  {share:>7}".rstrip())
    return "\n".join(lines)


def memory_of_caffelite(net):
    """A contestant: () -> (bytes of the block of temporaries, the most that is alive at once, by how much it grows)."""
    import caffelite as cl

    step, x, y = textbook_step(net)

    def measure():
        cl.capture(step, x[:2], y[:2])
        programs = []
        grown = harness.memory_grown(lambda: programs.append(cl.capture(step, x[: net.batch], y[: net.batch])))
        recorded, lives = programs[0]._step, {}
        for i, operand in recorded.operands():
            if operand.buffer.temporary:
                lives.setdefault(operand.buffer, [i, i])[1] = i
        alive = [
            sum(buffer.nbytes for buffer, (begin, end) in lives.items() if begin <= i <= end)
            for i in range(len(recorded.instructions))
        ]
        return recorded.memory[-1].nbytes, max(alive), grown

    return measure


def memory_of_pytorch(net, last):
    """A contestant: () -> the bytes by which a process that has made steps of two rows grows in steps of a batch."""
    import torch

    torch.set_num_threads(1)
    layout = {"memory_format": torch.channels_last} if last else {}
    model = _torch_model(net.layers, flat=last).to(**layout)
    x, y = map(torch.from_numpy, net.data())
    if last:
        x = (x if x.ndim == 4 else x[:, :, None]).contiguous(**layout)
    loss = torch.nn.CrossEntropyLoss() if net.classes else torch.nn.MSELoss()
    optimizer = getattr(torch.optim, net.optimizer)(model.parameters(), **net.settings, fused=True)

    def train(rows):
        for _ in range(3):
            optimizer.zero_grad()
            loss(model(x[:rows]), y[:rows]).backward()
            optimizer.step()

    def measure():
        train(2)
        return harness.memory_grown(lambda: train(net.batch))

    return measure


def where_time_and_memory_go(name):
    """Print caffelite's kernels of a step, with shares of the peak measured before and after, and its memory."""
    net = NETS[name]
    machine, profile = harness.Process(harness.machine_speed), harness.Process(profiled, net)
    before = [machine()[0] for _ in range(5)]
    table, least = profile()
    gflops = max(before + [machine()[0] for _ in range(5)])
    print(f"\n{name}: the kernels of a step, the least of all replays, as shares of {gflops:.0f} GFLOP/s (NumPy's")
    print(f"matmul of 1536³ in the same minute). Without readings of the clock it takes {1e6 * least:,.1f} µs.\n")
    print(with_shares(table, gflops))
    block, alive, grown = harness.Process(memory_of_caffelite, net)()
    print(f"\nTemporaries of a step: {megabytes(block)} in one block, {block / alive:.2f} of what is alive at once,")
    print(f"{megabytes(alive)}. At the peak the process grows by {megabytes(grown)} while the step is recorded", end="")
    peers = [harness.Process(memory_of_pytorch, net, last) for last in ((False, True) if net.convolves else (False,))]
    if not peers[0].missing:
        print(";\nPyTorch's by", " or, channels last, ".join([megabytes(peer()) for peer in peers]), end="")
    print(".")
    for process in (machine, profile, *peers):
        process.close()


def megabytes(count):
    return "?" if count is None else f"{count / 1e6:.1f} MB"


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


def enlarged_digits(images):
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
    """A contestant: () -> (seconds of ten epochs of `fit`, its accuracy on images of digits that it has not seen)."""
    import caffelite as cl

    cl.set_num_threads(threads)
    (x, y), (x_test, y_test) = enlarged_digits(images)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETS, default=list(NETS), metavar="NAME",
                        help=f"these nets, of {', '.join(NETS)}")  # fmt: skip
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="numbers of threads, in turn (1)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed (5)")
    parser.add_argument("--profile", action="store_true", help="also caffelite's kernels and memory, one thread")
    parser.add_argument("--lenet-epochs", action="store_true", help="instead: ten epochs of LeNet-5 by the clock")
    parser.add_argument("--quick", action="store_true", help="2 short rounds: a smoke test, no measurement")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds

    harness.use_threads(1)
    print(f"float32, {rounds} rounds")
    print(harness.environment("torch", "jax"))
    if options.lenet_epochs:
        report_lenet_epochs(options.threads, options.quick)
        return
    summary = []
    for threads in options.threads:
        harness.use_threads(threads)
        for name in options.only:
            task, compared, timed = prepare(NETS[name], options.quick, caffelite, threads)
            everybody = contestants(task.net, options.quick)
            *results, missing = compare(everybody, task, compared, timed, rounds)
            summary.append(report(name, task, timed, *results))

    print("\nThe best times of peers with caffelite's as 1; the share of the multiply-adds, at the peak, in its time\n")
    header = ["caffelite, least", "µs/step", "floor, µs", "share", "PyTorch", "torch.compile", "JAX", "the best"]
    print(harness.table(header, summary))
    print("\nOn AMD processors PyTorch's matrix products (MKL) use AVX2, not AVX-512.")
    harness.use_threads(1)
    for name in options.only if options.profile else []:
        where_time_and_memory_go(name)
    if missing:
        print(f"\nNot installed, left out: {'; '.join(missing)}")


if __name__ == "__main__":
    main()
