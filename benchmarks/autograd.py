"""Dynamic graphs: what Tensors cost beside PyTorch's, what recording a step saves, and whether graphs are let go.

    python benchmarks/autograd.py
    python benchmarks/autograd.py --quick    # only to see that it works

- A chain of 100 elementwise operations on 16 numbers, forward and backward: next to nothing to compute.
- The demo of micrograd (A. Karpathy, demo.ipynb, 2020): two moons of 50 points each, an MLP 2-16-16-1 with ReLU, the
  hinge loss with the squares of all parameters as penalty, 100 steps on all points with a falling learning rate.
- One row through 784-128-64-10 with ReLU: `Model.predict`, and an nn.Sequential in `torch.inference_mode()`.
- 10,000 graphs of that loss, made and dropped with Python's garbage collector off: what stays.

float32, one thread. Every contestant has its own process, all of them pinned to the same core, and they take turns in
rounds. Their gradients and their loss curves, from the same weights, are compared before anything is timed, and a
disagreement ends the run. PyTorch, which may be missing, runs eagerly: the moons once as its users write them, and once
with tensors alone and as few operations as we could find.
"""

import argparse
import gc
import math
import os
import sys
from itertools import pairwise
from statistics import median
from time import perf_counter

import harness
import numpy as np

STEPS = 100  # of a training on the moons
SIZES = (2, 16, 16, 1)
PENALTY = 1e-4


# ---- the chain: each contestant prepares, and returns measure(at_least) -> (seconds, gradient) ----------------------


def chain_caffelite():
    import caffelite as cl

    x, dy = cl.Tensor(np.linspace(-1, 1, 16), requires_grad=True, dtype=np.float32), np.ones(16, np.float32)

    def forward_and_backward():
        x.zero_grad()
        y = x
        for _ in range(25):
            y = (y * 0.9 + x).tanh().relu()
        y.backward(dy)

    return lambda at_least: (harness.seconds_per_call("f()", at_least, f=forward_and_backward), x.grad)


def chain_pytorch():
    import torch

    torch.set_num_threads(1)
    x, dy = torch.linspace(-1, 1, 16, requires_grad=True), torch.ones(16)

    def forward_and_backward():
        x.grad = None
        y = x
        for _ in range(25):
            y = (y * 0.9 + x).tanh().relu()
        y.backward(dy)

    return lambda at_least: (harness.seconds_per_call("f()", at_least, f=forward_and_backward), x.grad.numpy())


CHAIN = {"caffelite": chain_caffelite, "PyTorch": chain_pytorch}


# ---- the moons: each contestant prepares, and returns train(trainings) -> (seconds, losses of the last) -------------


def moons():
    """Points (100, 2) on two half circles, with a standard deviation of 0.1, and their sides (100, 1), −1 or 1."""
    angle = np.linspace(0, np.pi, 50)
    above, below = [np.cos(angle), np.sin(angle)], [1 - np.cos(angle), 0.5 - np.sin(angle)]
    x = np.concatenate([above, below], axis=1).T + 0.1 * np.random.default_rng(0).standard_normal((100, 2))
    return x.astype(np.float32), np.repeat(np.float32([-1, 1]), 50)[:, None]


def first_weights():
    """W1 (in, out), b1 (out,), W2, b2 … as micrograd draws them: weights from −1 to 1, biases 0."""
    rng, weights = np.random.default_rng(0), []
    for inputs, outputs in pairwise(SIZES):
        weights += [rng.uniform(-1, 1, (inputs, outputs)), np.zeros(outputs)]
    return [values.astype(np.float32) for values in weights]


def learning_rate(k):
    return 1 - 0.9 * k / STEPS


def make_trainer(start, step):
    """Return a contestant's train: start() sets the parameters; step(k) makes a step and returns its loss."""

    def train(trainings):
        seconds = 0.0
        for _ in range(trainings):
            start()
            start_time = perf_counter()
            losses = [step(k) for k in range(STEPS)]
            seconds += perf_counter() - start_time
        return seconds, np.array([float(loss) for loss in losses])

    return train


def network():
    """caffelite's model and its loss on the moons, a function of points and sides."""
    import caffelite as cl

    model = cl.MLP(SIZES[0], SIZES[1:])

    def loss(x, y):
        hinge = (1 - y * model(x)).relu().mean()
        return hinge + PENALTY * sum((p * p).sum() for p in model.parameters())

    return model, loss


def moons_caffelite(captured):
    import caffelite as cl

    model, loss = network()
    optimizer, (x, y) = cl.SGD(model.parameters(), lr=1.0), moons()

    def train_on(x, y):
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        optimizer.step()
        return value

    make_step = cl.capture(train_on, x, y) if captured else train_on

    def start():
        for p, values in zip(model.parameters(), first_weights(), strict=True):
            p.data = values

    def step(k):
        optimizer.lr = learning_rate(k)
        return make_step(x, y)

    return make_trainer(start, step)


def moons_pytorch():
    import torch

    torch.set_num_threads(1)
    x, y = map(torch.from_numpy, moons())
    layers = [layer for shape in pairwise(SIZES) for layer in (torch.nn.Linear(*shape), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1])
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1.0, fused=True)

    @torch.no_grad()
    def start():
        for p, values in zip(parameters, first_weights(), strict=True):
            p.copy_(torch.from_numpy(values.T))

    def step(k):
        optimizer.param_groups[0]["lr"] = learning_rate(k)
        optimizer.zero_grad(set_to_none=True)
        hinge = (1 - y * model(x)).relu().mean()
        loss = hinge + PENALTY * sum((p * p).sum() for p in parameters)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return make_trainer(start, step)


def moons_pytorch_tensors():
    """Two operations for the penalty of all parameters, and the update by hand: PyTorch's SGD takes longer."""
    import torch

    torch.set_num_threads(1)
    x, y = map(torch.from_numpy, moons())
    W1, b1, W2, b2, W3, b3 = parameters = [torch.from_numpy(values).requires_grad_() for values in first_weights()]

    @torch.no_grad()
    def start():
        for p, values in zip(parameters, first_weights(), strict=True):
            p.copy_(torch.from_numpy(values))

    def step(k):
        h = torch.addmm(b1, x, W1).relu()
        h = torch.addmm(b2, h, W2).relu()
        hinge = (1 - y * torch.addmm(b3, h, W3)).relu().mean()
        vector = torch.cat([p.view(-1) for p in parameters])
        loss = torch.add(hinge, vector.dot(vector), alpha=PENALTY)
        for p in parameters:
            p.grad = None
        loss.backward()
        with torch.no_grad():
            for p in parameters:
                p.sub_(p.grad, alpha=learning_rate(k))
        return loss.detach()

    return make_trainer(start, step)


CAPTURED = "caffelite, captured"
MOONS = {
    CAPTURED: (moons_caffelite, True),
    "caffelite": (moons_caffelite, False),
    "PyTorch, nn.Sequential, fused SGD": (moons_pytorch,),
    "PyTorch, tensors, SGD by hand": (moons_pytorch_tensors,),
}


# ---- a row predicted: each contestant prepares, and returns measure(at_least) -> (seconds, outputs) -----------------

ROW_SIZES = (784, 128, 64, 10)


def row_and_weights():
    """Return a row (1, in), and W1 (in, out), b1, W2, b2 …"""
    rng = np.random.default_rng(0)
    shapes = [shape for n, m in pairwise(ROW_SIZES) for shape in ((n, m), (m,))]
    return rng.random((1, ROW_SIZES[0]), np.float32), [rng.uniform(-0.1, 0.1, s).astype(np.float32) for s in shapes]


def predict_caffelite():
    import caffelite as cl

    x, weights = row_and_weights()
    model = cl.MLP(ROW_SIZES[0], ROW_SIZES[1:])
    for p, values in zip(model.parameters(), weights, strict=True):
        p.data = values
    return lambda at_least: (harness.seconds_per_call("f(x)", at_least, f=model.predict, x=x), model.predict(x))


def predict_pytorch():
    import torch

    torch.set_num_threads(1)
    x, weights = row_and_weights()
    row = torch.from_numpy(x)
    layers = [layer for shape in pairwise(ROW_SIZES) for layer in (torch.nn.Linear(*shape), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1])
    for p, values in zip(model.parameters(), weights, strict=True):
        p.data = torch.from_numpy(values.T.copy())

    def measure(at_least):
        with torch.inference_mode():
            return harness.seconds_per_call("f(x)", at_least, f=model, x=row), model(row).numpy()

    return measure


PREDICT = {"caffelite": (predict_caffelite,), "PyTorch": (predict_pytorch,)}


# ---- graphs that are dropped ----------------------------------------------------------------------------------------


def graph_leftovers(backward):
    """Return a contestant: measure(graphs) -> KiB of memory and objects that so many graphs leave, each of
    three times.
    """
    _, loss = network()
    x, y = moons()

    def make_and_drop(graphs):
        for _ in range(graphs):
            value = loss(x, y)
            if backward:
                value.backward()

    def measure(graphs):
        gc.collect()
        gc.disable()
        make_and_drop(1000)  # Python fills its free lists, and the allocator what it keeps
        left = []
        for _ in range(3):  # a page that is touched for the first time has not been left
            objects, kib = len(gc.get_objects()), resident_kib()
            make_and_drop(graphs)
            left.append((resident_kib() - kib, len(gc.get_objects()) - objects))
        return tuple(map(min, zip(*left, strict=True)))

    return measure


def resident_kib():
    """KiB of this process in memory now, but for what is mapped from files, as code is that begins to be used.

    The most that there have been, of all, where the system has no /proc. On Windows, which has neither, nan.
    """
    if sys.platform == "win32":
        return math.nan
    try:
        with open("/proc/self/statm") as pages:
            total, shared = map(int, pages.read().split()[1:3])
            return (total - shared) * os.sysconf("SC_PAGE_SIZE") // 1024
    except FileNotFoundError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


# ---- all of it ------------------------------------------------------------------------------------------------------


def check_agreement(results, tolerance):
    """Raise unless all have the numbers of the first, but for the rounding of float32."""
    (first, expected), *rest = results.items()
    for name, values in rest:
        error = np.max(np.abs(values - expected) / np.abs(expected).max())
        if not error <= tolerance:
            raise SystemExit(f"{name}'s numbers differ from {first}'s by up to {error:.1e}: {values.tolist()}")


def compete(contestants, argument, check_with, rounds, tolerance):
    """Compare what all return beside the time, then time them in turns: (results, seconds by name, missing modules)."""
    processes, missing = {}, set()
    for name, (make, *arguments) in contestants.items():
        process = harness.Process(make, *arguments)
        if process.missing:
            missing.add(process.missing)
        else:
            processes[name] = process
    results = {name: process(check_with)[1] for name, process in processes.items()}
    check_agreement(results, tolerance)
    seconds = {name: [] for name in processes}
    for _ in range(rounds):
        for name, process in processes.items():
            seconds[name].append(process(argument)[0])
    for process in processes.values():
        process.close()
    return results, seconds, missing


def rows(seconds, per):
    """Rows of a table: µs for one of so many, median and least, and the median beside that of the first."""
    medians = {name: median(times) / per * 1e6 for name, times in seconds.items()}
    first = next(iter(medians.values()))
    return [[n, f"{us:.2f}", f"{min(seconds[n]) / per * 1e6:.2f}", f"{us / first:.2f}"] for n, us in medians.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often each is timed (9)")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test, not a measurement")
    options = parser.parse_args()
    rounds, at_least, trainings, graphs = (1, 0.01, 1, 1000) if options.quick else (options.rounds, 0.1, 20, 10_000)

    harness.use_threads(1)
    print(f"{harness.environment('torch')}\nfloat32, one thread on one core, {rounds} rounds")

    chain = {name: (make,) for name, make in CHAIN.items()}
    _, seconds, missing = compete(chain, at_least, 0, rounds, tolerance=1e-5)
    print("\nAn operation forward and backward, of 100: y · 0.9, y + x, tanh y, relu y. Goal: PyTorch ≥ 2 times.\n")
    print(harness.table(["", "µs, median", "least", "time, caffelite = 1"], rows(seconds, 100)))

    curves, seconds, _ = compete(MOONS, trainings, 1, rounds, tolerance=1e-4)
    print(f"\nA step of micrograd's moons: {'-'.join(map(str, SIZES))}, 100 points. Goal: PyTorch ≥ 50 times captured.")
    print(f"The loss goes from {curves[CAPTURED][0]:.4f} to {curves[CAPTURED][-1]:.4f} in {STEPS} steps.\n")
    print(harness.table(["", "µs/step, median", "least", "time, captured = 1"], rows(seconds, trainings * STEPS)))

    _, seconds, _ = compete(PREDICT, at_least, 0, rounds, tolerance=1e-5)
    print(f"\nA row predicted: {'-'.join(map(str, ROW_SIZES))}. Goal: PyTorch ≥ 2 times.\n")
    print(harness.table(["", "µs, median", "least", "time, caffelite = 1"], rows(seconds, 1)))

    left = {
        "with backward": harness.Process(graph_leftovers, True)(graphs),
        "dropped without": harness.Process(graph_leftovers, False)(graphs),
    }
    print(f"\nMemory that {graphs:,} graphs of this loss leave behind without the garbage collector. Goal: 0.\n")
    lines = [[name, f"{max(kib, 0)}", f"{objects}"] for name, (kib, objects) in left.items()]
    print(harness.table(["", "KiB of memory", "objects"], lines))
    if missing:
        print(f"\nNot installed, left out: PyTorch (no module {', '.join(missing)})")


if __name__ == "__main__":
    main()
