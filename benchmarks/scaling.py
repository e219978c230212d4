"""Threads: how much faster `fit` is with more of them.

`Model.fit` with 1, 2, 4 … threads, up to all cores, on the networks in workloads.py, from large to tiny. Threads split
outputs and never sums, so the weights have to be the same to the bit for every number of threads: they are compared,
and a difference ends the run.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --threads 1 2 --only mnist mnistbig
    python benchmarks/scaling.py --quick      # only to see that it works

The numbers of threads take turns in rounds; medians count. Run it while the machine does nothing else: a thread that
waits for a core keeps all others waiting.
"""

import argparse
import os
from statistics import median

import harness
from workloads import WORKLOADS, add_options


def fits(net):
    """Return a contestant: train(epochs, threads) -> (seconds, the trained parameters, the number of steps)."""
    import caffelite as cl

    x, y = net.data()

    def train(epochs, threads):
        cl.set_num_threads(threads)
        seconds, model, _ = net.fit(x, y, epochs)
        return seconds, b"".join(p.data.tobytes() for p in model.parameters()), epochs * -(-len(x) // net.batch)

    return train


def main():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    doubled = sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores, 1})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--threads", type=int, nargs="+", default=doubled, help=f"numbers of threads ({doubled})")
    options = parser.parse_args()
    numbers = list(dict.fromkeys([1, *options.threads]))
    rounds = 2 if options.quick else options.rounds

    rows = []
    for name in options.only:
        train = harness.Process(fits, WORKLOADS[name], cores=None)
        epochs = 1 if options.quick else harness.epochs_to_time(train, 1)
        reference = train(epochs, 1)[1]
        seconds = {threads: [] for threads in numbers}
        for _ in range(rounds):
            for threads in numbers:
                elapsed, weights, steps = train(epochs, threads)
                seconds[threads].append(elapsed)
                if weights != reference:
                    raise SystemExit(f"{name}: the weights after training with {threads} threads are not those with 1")
        us = [median(seconds[threads]) / steps * 1e6 for threads in numbers]
        ratios = [f"{us[0] / value:.2f}" for value in us[1:]]
        rows.append([f"{name}: {WORKLOADS[name]}", *[f"{value:,.1f}" for value in us], *ratios])

    print(harness.environment())
    print(f"fit, float32; µs a step, median of {rounds} rounds")
    print("the weights are the same to the bit for every number of threads\n")
    header = [
        "",
        *[f"{n} thread{'s' * (n > 1)}" for n in numbers],
        *[f"speed with {n}, 1 thread = 1" for n in numbers[1:]],
    ]
    print(harness.table(header, rows))


if __name__ == "__main__":
    main()
