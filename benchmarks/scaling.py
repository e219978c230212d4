"""Threads: how much faster `fit` is with more of them.

`Model.fit` with 1, 2, 4 … threads, up to all cores, for networks from large to tiny. Threads split outputs and never
sums, so the weights have to be the same to the bit for every number of threads: they are compared, and a difference
ends the run.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --threads 1 2
    python benchmarks/scaling.py --quick      # only to see that it works

The numbers of threads take turns in rounds; medians count. Run it while the machine does nothing else: a thread that
waits for a core keeps all others waiting.
"""

import argparse
import os
from itertools import pairwise
from statistics import median
from time import perf_counter

import harness
import numpy as np

# Name: sizes of the layers, batch, rows, epochs of a timing.
WORKLOADS = {
    "784-512-512-10, batch 128": ([784, 512, 512, 10], 128, 2560, 2),
    "784-128-64-10, batch 64": ([784, 128, 64, 10], 64, 2560, 10),
    "spiral, 2-100-3, batch 32": ([2, 100, 3], 32, 300, 100),
}


def fits(sizes, batch, rows):
    """A contestant: train(threads, epochs) -> (seconds, the trained parameters)."""
    import caffelite as cl

    rng = np.random.default_rng(0)
    x, y = rng.random((rows, sizes[0]), np.float32), rng.integers(sizes[-1], size=rows)

    def train(threads, epochs):
        cl.set_num_threads(threads)
        model = cl.Model(seed=0)
        for inputs, outputs in pairwise(sizes[:-1]):
            model.add(cl.Linear(inputs, outputs)).add(cl.ReLU())
        model.add(cl.Linear(*sizes[-2:]))
        optimizer = cl.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        start = perf_counter()
        model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, batch_size=batch, verbose=0)
        return perf_counter() - start, b"".join(p.data.tobytes() for p in model.parameters())

    return train


def main():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    doubled = sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores, 1})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=doubled, help=f"numbers of threads ({doubled})")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is timed (7)")
    parser.add_argument("--quick", action="store_true", help="2 short rounds: a smoke test, no measurement")
    options = parser.parse_args()
    numbers = list(dict.fromkeys([1, *options.threads]))

    rows = []
    for name, (sizes, batch, count, epochs) in WORKLOADS.items():
        rounds = options.rounds
        if options.quick:
            count, epochs, rounds = 2 * batch, 1, 2
        train = harness.Process(fits, sizes, batch, count, pinned=False)
        warm_up = {threads: train(threads, epochs) for threads in numbers}
        reference = warm_up[1][1]
        seconds = {threads: [] for threads in numbers}
        for _ in range(rounds):
            for threads in numbers:
                elapsed, weights = train(threads, epochs)
                seconds[threads].append(elapsed)
                if weights != reference:
                    raise SystemExit(f"{name}: the weights after training with {threads} threads are not those with 1")
        steps = epochs * -(-count // batch)
        us = [median(seconds[threads]) / steps * 1e6 for threads in numbers]
        rows.append([name, *[f"{value:,.0f}" for value in us], *[f"{us[0] / value:.2f}" for value in us[1:]]])

    print(harness.environment())
    print(f"fit, SGD with momentum and weight decay, float32; µs a step, median of {rounds} rounds")
    print("the weights are the same to the bit for every number of threads\n")
    header = [
        "",
        *[f"{n} thread{'s' * (n > 1)}" for n in numbers],
        *[f"speed with {n}, 1 thread = 1" for n in numbers[1:]],
    ]
    print(harness.table(header, rows))


if __name__ == "__main__":
    main()
