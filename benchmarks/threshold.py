"""The threshold: from how much work on two threads are faster than one.

A kernel is cut among threads if its `work`, which each kernel estimates by itself, is PARALLEL_WORK or more. Here each
of some kernels runs with growing work on one thread and cut between two, whatever the threshold says, again and again
in a replay. Where work means the same for all, they take the same time for a unit of it; where the threshold is right,
two threads pay from there on.

    python benchmarks/threshold.py
    python benchmarks/threshold.py --dtype float64
    python benchmarks/threshold.py --quick      # only to see that it works

One thread and two take turns in rounds; medians count. Run it while the machine does nothing else: a thread that waits
for a core keeps the other waiting.
"""

import argparse
from math import inf, log2
from statistics import median

import harness
import numpy as np

SIZES = [2**i for i in range(4, 15)]
PAYS = 1.05  # times as fast, there and with all more work


def calls(kernels, dtype):
    """Each kernel as a function of a size; the work is about 1,024 times the size."""
    rng = np.random.default_rng(0)

    def arrays(*shapes):
        return [rng.random(shape).astype(dtype) for shape in shapes]

    def matmul(size):  # a batch of 64 rows
        n = max(1, round((8 * size) ** 0.5))
        a, b, out = arrays((64, n), (n, n), (64, n))
        kernels.matmul(a, b, out)

    def copy(size):
        kernels.copy(*arrays(102 * size, 102 * size))

    def add(size):
        kernels.add(*arrays(102 * size, 102 * size, 102 * size))

    def add_bias(size):  # rows of 64
        rows = 1 + 102 * size // 64
        kernels.add(*arrays((rows, 64), 64, (rows, 64)))

    def sum_rows(size):  # 64 outputs
        kernels.sum(*arrays((1 + 171 * size // 64, 64)), 0)

    def softmax_loss(size):  # ten classes
        rows = 1 + 1024 * size // 1500
        kernels.softmax_loss(*arrays((rows, 10)), rng.integers(10, size=rows))

    def sgd(size):  # with momentum
        w, g, v = arrays(*[1024 * size // 40] * 3)
        kernels.update("sgd", w, g, v[None], np.array([1e-9, 0.9, 1e-4, 0.0]))

    return {f.__name__.replace("_", " "): f for f in (matmul, copy, add, add_bias, sum_rows, softmax_loss, sgd)}


def contestant(dtype):
    """Return measure(name, size, threads, at_least) -> (work, seconds of a call)."""
    import caffelite as cl
    from caffelite import _kernels as kernels

    class Recorder(kernels.Recorder):
        def __init__(self):
            self.entries = []

    cl.set_num_threads(2)
    recorded = {}

    def replays(name, size):
        """Return the work, how often a replay has the kernel, and replays in which one thread does it and two share it.

        So often that the call from Python is a small part.
        """
        with Recorder() as recorder:
            calls(kernels, dtype)[name](size)
        call = max(recorder.entries, key=lambda entry: entry.work)
        work, copies, both = call.work, max(1, 256 // size), []
        for call.work in (0.0, inf):
            both.append(kernels.Replay([call] * copies))
        return work, copies, *both

    def measure(name, size, threads, at_least):
        if (name, size) not in recorded:
            recorded[name, size] = replays(name, size)
        work, copies, *both = recorded[name, size]
        return work, harness.seconds_per_call("run()", at_least, run=both[threads - 1].run) / copies

    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is timed (7)")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test, not a measurement")
    options = parser.parse_args()
    rounds, at_least = (1, 1e-4) if options.quick else (options.rounds, 0.005)

    from caffelite import _kernels as kernels

    names = list(calls(kernels, options.dtype))
    measure = harness.Process(contestant, options.dtype, cores=None)
    seconds, work = {}, {}
    for _ in range(rounds):
        for size in SIZES:
            for name in names:
                for threads in (1, 2):
                    work[name, size], now = measure(name, size, threads, at_least)
                    seconds.setdefault((name, size, threads), []).append(now)
    one, two = [{(n, s): median(seconds[n, s, threads]) for n in names for s in SIZES} for threads in (1, 2)]
    speed = {key: one[key] / two[key] for key in one}

    print(f"{harness.environment()}\n{options.dtype}, median of {rounds} rounds\n")
    rows = [[f"{1024 * size:,}", *[f"{speed[name, size]:.2f}" for name in names]] for size in SIZES]
    print(harness.table(["work, about; speed with 2 threads, 1 thread = 1", *names], rows))
    print()

    here = min(SIZES, key=lambda size: abs(log2(1024 * size / kernels.PARALLEL_WORK)))
    rows = []
    for name in names:
        unit = one[name, here] / work[name, here]
        paying = [size for i, size in enumerate(SIZES) if min(speed[name, s] for s in SIZES[i:]) >= PAYS]
        row = [name, f"{1e9 * unit:.4f}", f"{1e6 * unit * kernels.PARALLEL_WORK:.1f}"]
        if paying:
            row += [f"{work[name, paying[0]]:,.0f}", f"{1e6 * one[name, paying[0]]:.1f}"]
        rows.append(row + ["never"] * (5 - len(row)))
    print(f"the threshold, PARALLEL_WORK, is {kernels.PARALLEL_WORK:,}; one thread's times\n")
    header = ["", "ns for a unit of work", "µs at the threshold", "2 threads are faster from a work of", "µs there"]
    print(harness.table(header, rows))


if __name__ == "__main__":
    main()
