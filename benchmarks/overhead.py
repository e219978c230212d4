"""Overhead: what caffelite costs beyond computing.

A kernel call with next to nothing to compute, from Python and in a replay; `fit` beyond its steps, and what all of its
options add to a step; `predict` of one row and of ever other numbers of rows; what a replayed step allocates;
importing; and whether `fit` lets other Python threads run. The goals are beside the measurements.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --quick    # only to see that it works

One thread. Each measurement has a process pinned to the same core, and they take turns in rounds; the least of all
rounds counts, of imports the median. `fit` trains 2-100-3 on the spiral with batches of 32.
"""

import argparse
import gc
import os
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


def eager_seconds(name):
    """Seconds of a kernel called on 1 × 1 arrays from Python, its output new."""
    from caffelite import _kernels as kernels

    one = np.ones((1, 1), np.float32)
    return lambda: harness.seconds_per_call("kernel(a, a)", kernel=getattr(kernels, name), a=one)


def replay_seconds(name):
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
    """Return a new model's train(x, y, epochs=1, batch_size=32), which returns the seconds that `fit` took."""
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
    """Return what all of `fit`'s options together add to a step, as a share of it.

    Weights of rows and of classes, a norm that gradients are clipped to, a schedule, and every callback, in epochs of
    so many steps. Times are those of short fits that take turns, the least of many; what callbacks add to an epoch is
    measured with epochs of one step.
    """
    import caffelite as cl

    lr = 1e-7  # so that the last step has the same numbers to compute with as the first one
    if net == "spiral32":
        x, y = (array[:32] for array in cl.datasets.spiral(11, seed=0))
        sizes, rule, few, many = (2, 100, 3), partial(cl.SGD, momentum=0.9, weight_decay=1e-4), 100, 500
    else:
        (x, y), _ = cl.datasets.digits()
        x, y, sizes, rule = x[:200].reshape(200, 64), y[:200], (64, 100, 10), cl.Adam
        few, many = 10, 50

    def fitting(lr, callbacks=(), **options):
        """Return a function that gives the seconds of a `fit` of so many epochs, each of a single step."""
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

    def measure():
        with tempfile.TemporaryDirectory() as folder:
            callbacks = [
                cl.callbacks.EarlyStopping("loss", patience=10**9),
                cl.callbacks.ReduceLROnPlateau("loss", patience=10**9),
                cl.callbacks.CSVLog(f"{folder}/log.csv"),
            ]
            plain, with_options, called = fitting(lr), fitting(**options), fitting(lr, callbacks)
            fits = [(fit, epochs) for fit in (plain, with_options) for epochs in (few, many)]
            fits += [(called, 10), (called, 60)]
            least = dict.fromkeys(fits, 1.0)
            for _ in range(repeats):
                for fit, epochs in fits:
                    least[fit, epochs] = min(least[fit, epochs], fit(epochs))
        step, more = ((least[fit, many] - least[fit, few]) / (many - few) for fit in (plain, with_options))
        an_epoch = (least[called, 60] - least[called, 10]) / 50 - step
        return (more + an_epoch / steps) / step - 1

    return measure


def count_allocations(steps):
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
    """Return what a counting Python thread gets done beside `fit` on the same core, as a share of what it
    does alone.
    """
    x, y = rows(300)
    train = trainer()
    epochs = int(seconds / (train(x, y, epochs=100) / 100)) + 1

    def count_epochs(work):
        """Count a second while `work` runs."""
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

    return lambda: count_epochs(lambda: train(x, y, epochs)) / count_epochs(lambda: sleep(seconds))


# ---- predict ---------------------------------------------------------------------------------------------------------


def net_and_rows():
    """Return a small net, and rows that it takes."""
    import caffelite as cl

    return cl.MLP(64, [100, 10], seed=0), np.random.default_rng(0).random((1000, 64), np.float32)


def predicting_a_row():
    """Seconds of `predict` of one row."""
    model, x = net_and_rows()
    model.predict(x[:1])
    return lambda: harness.seconds_per_call("model.predict(row)", model=model, row=x[:1])


def predicting_other_numbers_of_rows():
    """Seconds of `predict` of 400 numbers of rows, as a share of those of the same calls without a recording."""
    import caffelite as cl

    model, x = net_and_rows()
    parts = [x[:n] for n in np.random.default_rng(0).integers(1, 1001, 400)]

    def in_python():
        with cl.inference():
            for part in parts:
                model(part)

    def measure():
        seconds = {}
        for function in (in_python, lambda: [model.predict(part) for part in parts]):
            start = perf_counter()
            function()
            seconds[function] = perf_counter() - start
        eager_seconds, predicted = seconds.values()
        return predicted / eager_seconds

    return measure


def memory_of_other_numbers_of_rows():
    """Bytes of the Programs of 400 numbers of rows, as a multiple of those of the largest Program."""
    model, x = net_and_rows()
    for n in np.random.default_rng(0).integers(1, 1001, 400):
        model.predict(x[:n])
    (kept,) = model._model_state.programs._programs.values()
    return lambda: kept.nbytes / max(program.nbytes for program in kept.programs.values())


# ---- importing ------------------------------------------------------------------------------------------------------


def importing():
    """Seconds that importing caffelite takes in a new interpreter that has imported NumPy."""
    code = "import time, numpy; t = time.perf_counter(); import caffelite; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # only the first round compiles Python's code
    options = {"capture_output": True, "text": True, "check": True, "env": environment}
    return lambda: float(subprocess.run(command, **options).stdout)


# ---- all of it ------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often each is measured (9)")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test, not a measurement")
    options = parser.parse_args()
    rounds, steps, seconds, repeats = (1, 100, 0.1, 3) if options.quick else (options.rounds, 10_000, 0.5, 200)

    # What, in which unit, units a second (or an allocation), the goal, how it is measured, which of the rounds counts.
    measurements = [
        ("an eager kernel call: add", "ns", 1e9, "≤ 150", partial(eager_seconds, "add"), min),
        ("an eager kernel call: matmul", "ns", 1e9, "≤ 150", partial(eager_seconds, "matmul"), min),
        ("a replayed kernel: add", "ns", 1e9, "≤ 10", partial(replay_seconds, "add"), min),
        ("a replayed kernel: matmul", "ns", 1e9, "≤ 10", partial(replay_seconds, "matmul"), min),
        ("fit beyond its step, first for a shape", "µs", 1e6, "≤ 500", partial(fit_beyond_steps, True), min),
        ("fit beyond its step, later", "µs", 1e6, "≤ 50", partial(fit_beyond_steps, False), min),
        *[
            (
                f"all options of fit beyond none, {net}, {epoch:,} steps an epoch, of a step",
                *("%", 1e2, "≤ 3", partial(options_beyond_plain_fit, net, epoch, repeats), median),
            )
            for net, epoch in (("spiral32", 1_875), ("digits", 300))
        ],
        ("predict of a row", "µs", 1e6, "≤ 5", predicting_a_row, min),
        *[
            (f"predict of 400 numbers of rows, {what}", "%", 1e2, goal, make, median)
            for what, goal, make in (
                ("of calls in Python", "≤ 120", predicting_other_numbers_of_rows),
                ("memory, of its largest recording", "≤ 200", memory_of_other_numbers_of_rows),
            )
        ],
        ("import beyond NumPy's", "ms", 1e3, "≤ 60", importing, median),
        ("a thread beside fit on one core, of alone", "%", 1e2, "> 0", partial(thread_beside_fit, seconds), min),
    ]
    harness.use_threads(1)
    processes = [harness.Process(make) for *_, make, _ in measurements]
    values = [[measure() for measure in processes] for _ in range(rounds)]
    blocks, peak = harness.Process(count_allocations, steps)()

    print(f"{harness.environment()}\none thread on one core, {rounds} rounds\n")
    lines = []
    for (name, unit, factor, goal, _, which), rounds_of in zip(measurements, zip(*values, strict=True), strict=True):
        lines.append([f"{name}, {unit}", f"{factor * which(rounds_of):.1f}", goal])
    lines.append([f"memory blocks left by {steps:,} replayed steps", f"{blocks}", "0"])
    lines.append([f"peak memory added by {steps:,} replayed steps, bytes", f"{peak}", "0"])
    print(harness.table(["", "measured", "goal"], lines))


if __name__ == "__main__":
    main()
