"""Overhead: what caffelite costs beyond computing.

A kernel call with next to nothing to compute, from Python and in a replay; `fit` beyond its steps, and what all of its
options add to a step; what a replayed step allocates; importing; and whether `fit` lets other Python threads run. The
goals are beside the measurements.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --quick    # only to see that it works

One thread. Each measurement has a process pinned to the same core, and they take turns in rounds; the least of all
rounds counts, of imports the median. `fit` trains 2-100-3 on the spiral with batches of 32.
"""

import argparse
import gc
import itertools
import subprocess
import sys
import tempfile
import tracemalloc
from functools import partial
from statistics import median
from threading import Thread
from time import perf_counter, sleep

import harness
import numpy as np

# ---- kernels --------------------------------------------------------------------------------------------------------


def eager(name):
    """Seconds of a kernel called on 1 × 1 arrays from Python, its output new."""
    from caffelite import _kernels as kernels

    one = np.ones((1, 1), np.float32)
    return lambda: harness.seconds_per_call("kernel(a, a)", kernel=getattr(kernels, name), a=one)


def replayed(name):
    """Seconds that a kernel on 1 × 1 arrays adds to a replay: of 400 of them less 200, their work included."""
    import caffelite as cl
    from caffelite import _kernels as kernels

    kernel, one = getattr(kernels, name), np.ones((1, 1), np.float32)

    def chain(length):
        def function(x):
            y = x
            for _ in range(length):
                y = kernel(y, x)
            return y

        program = cl.capture(function, one)
        assert len(program) == length
        return program.replay.run

    short, long = chain(200), chain(400)
    return lambda: (
        (harness.seconds_per_call("replay()", replay=long) - harness.seconds_per_call("replay()", replay=short)) / 200
    )


# ---- fit ------------------------------------------------------------------------------------------------------------


def trainer():
    """A new model's train(x, y, epochs=1, batch_size=32), which returns the seconds that `fit` took."""
    import caffelite as cl

    model = cl.Model([cl.Linear(2, 100), cl.ReLU(), cl.Linear(100, 3)], seed=0)
    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1, momentum=0.9), "verbose": 0}

    def train(x, y, epochs=1, batch_size=32):
        start = perf_counter()
        model.fit(x, y, epochs=epochs, batch_size=batch_size, **options)
        return perf_counter() - start

    return train


def rows(count):
    import caffelite as cl

    x, y = cl.datasets.spiral(points_per_class=-(-count // 3), seed=0)
    return x[:count], y[:count]


def fit_beyond_steps(first):
    """Seconds of a `fit` of one step, less a step of a long `fit`: of a new model, or of one trained before."""
    x, y = rows(32)

    def measure():
        train = trainer()
        train(x, y)
        step = min(train(x, y, epochs=500) for _ in range(5)) / 500
        return min((trainer() if first else train)(x, y) for _ in range(30)) - step

    return measure


def options_beyond_plain_fit(net, steps, repeats):
    """What all of `fit`'s options together add to a step, as a share of it.

    Weights of rows and of classes, a norm that gradients are clipped to, a schedule, and every callback, in epochs of
    so many steps. Times are those of short fits, the least of many, of which two take turns; what callbacks add to an
    epoch is measured with epochs of one step.
    """
    import caffelite as cl

    folder = tempfile.TemporaryDirectory()
    callbacks = [
        cl.callbacks.EarlyStopping("loss", patience=10**9),
        cl.callbacks.ReduceLROnPlateau("loss", patience=10**9),
        cl.callbacks.CSVLog(f"{folder.name}/log.csv"),
    ]
    if net == "spiral32":
        (x, y), sizes, rule, lr = rows(32), (2, 100, 3), partial(cl.SGD, momentum=0.9, weight_decay=1e-4), 1e-3
    else:
        (x, y), _ = cl.datasets.digits()
        x, y, sizes, rule, lr = x[:200].reshape(200, 64), y[:200], (64, 100, 10), cl.Adam, 1e-5

    def fitting(lr, callbacks=(), **options):
        """Seconds of a `fit` of so many epochs, each of a single step."""
        model, loss = cl.MLP(sizes[0], sizes[1:], seed=0), cl.SoftmaxLoss()
        options |= {"loss": loss, "optimizer": rule(model.parameters(), lr=lr), "callbacks": callbacks, "verbose": 0}

        def fit(epochs):
            start = perf_counter()
            model.fit(x, y, epochs=epochs, batch_size=len(x), **options)
            return perf_counter() - start

        return fit

    options = {
        "lr": cl.schedules.cosine(lr, steps=10**6),
        "sample_weight": np.linspace(0.5, 1.5, len(y)),
        "class_weight": "balanced",
        "clip_norm": 0.1,
    }
    fits = {
        "plain": fitting(lr),
        "options": fitting(**options),
        "callbacks": fitting(lr, callbacks=callbacks),
    }
    few, many = 10, 60

    def measure():
        least = dict.fromkeys(itertools.product(fits, (few, many)), 1.0)
        for _ in range(repeats):
            for name, epochs in least:
                least[name, epochs] = min(least[name, epochs], fits[name](epochs))
        step = {name: (least[name, many] - least[name, few]) / (many - few) for name in fits}
        return (step["options"] + (step["callbacks"] - step["plain"]) / steps) / step["plain"] - 1

    return measure


def allocated(steps):
    """Two `fit`s of one epoch over the same rows, of so many steps and of twice as many: what the second has more.

    Memory blocks left at the end, and bytes at the peak, of Python's and of NumPy's. Each has its Program already, and
    Python has filled its free lists.
    """
    x, y = rows(32 * steps)
    train = trainer()

    def blocks_and_peak(batch_size):
        before = sys.getallocatedblocks()
        train(x, y, batch_size=batch_size)
        blocks = sys.getallocatedblocks() - before
        tracemalloc.start()
        train(x, y, batch_size=batch_size)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return blocks, peak

    def measure():
        gc.disable()
        for _ in range(10):
            blocks_and_peak(16), blocks_and_peak(32)
        once, twice = [np.min([blocks_and_peak(size) for _ in range(5)], axis=0) for size in (32, 16)]
        return twice - once

    return measure


def thread_beside_fit(seconds):
    """What a counting Python thread gets done beside `fit` on the same core, as a share of what it does alone."""
    x, y = rows(300)
    train = trainer()
    epochs = int(seconds / (train(x, y, epochs=100) / 100)) + 1

    def counted(work):
        """Counts a second while `work` runs."""
        count, running = 0, True

        def run():
            nonlocal count
            while running:
                count += 1

        thread = Thread(target=run)
        thread.start()
        start, before = perf_counter(), count
        work()
        rate = (count - before) / (perf_counter() - start)
        running = False
        thread.join()
        return rate

    return lambda: counted(lambda: train(x, y, epochs)) / counted(lambda: sleep(seconds))


# ---- importing ------------------------------------------------------------------------------------------------------


def importing():
    """Seconds that importing caffelite takes in a new interpreter that has imported NumPy."""
    code = "import time, numpy; t = time.perf_counter(); import caffelite; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    return lambda: float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


# ---- all of it ------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often each is measured (9)")
    parser.add_argument("--quick", action="store_true", help="one round, and short: a smoke test, no measurement")
    options = parser.parse_args()
    rounds, steps, seconds, repeats = (1, 100, 0.1, 3) if options.quick else (options.rounds, 10_000, 0.5, 200)

    # What, in which unit, units a second (or an allocation), the goal, how it is measured, which of the rounds counts.
    measurements = [
        ("an eager kernel call: add", "ns", 1e9, "≤ 150", partial(eager, "add"), min),
        ("an eager kernel call: matmul", "ns", 1e9, "≤ 150", partial(eager, "matmul"), min),
        ("a replayed kernel: add", "ns", 1e9, "≤ 10", partial(replayed, "add"), min),
        ("a replayed kernel: matmul", "ns", 1e9, "≤ 10", partial(replayed, "matmul"), min),
        ("fit beyond its step, first for a shape", "µs", 1e6, "≤ 500", partial(fit_beyond_steps, True), min),
        ("fit beyond its step, later", "µs", 1e6, "≤ 50", partial(fit_beyond_steps, False), min),
        *[
            (
                f"all options of fit, {net}, epochs of {epoch:,} steps, of a step",
                *("%", 1e2, "≤ 3", partial(options_beyond_plain_fit, net, epoch, repeats), median),
            )
            for net, epoch in (("spiral32", 1_875), ("digits", 300))
        ],
        ("import beyond NumPy's", "ms", 1e3, "≤ 60", importing, median),
        ("a thread beside fit on one core, of alone", "%", 1e2, "> 0", partial(thread_beside_fit, seconds), min),
    ]
    harness.use_threads(1)
    processes = [harness.Process(make) for *_, make, _ in measurements]
    values = [[measure() for measure in processes] for _ in range(rounds)]
    blocks, peak = harness.Process(allocated, steps)()

    print(f"{harness.environment()}\none thread on one core, {rounds} rounds\n")
    lines = []
    for (name, unit, factor, goal, _, which), rounds_of in zip(measurements, zip(*values, strict=True), strict=True):
        lines.append([f"{name}, {unit}", f"{factor * which(rounds_of):.1f}", goal])
    lines.append([f"memory blocks left by {steps:,} replayed steps", f"{blocks}", "0"])
    lines.append([f"peak memory added by {steps:,} replayed steps, bytes", f"{peak}", "0"])
    print(harness.table(["", "measured", "goal"], lines))


if __name__ == "__main__":
    main()
