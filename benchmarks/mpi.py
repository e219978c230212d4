"""Training on several ranks: what messages cost, what share of a step they take, and what that lets one expect.

    python benchmarks/mpi.py                     # with 2 ranks
    python benchmarks/mpi.py --ranks 2 4 --mpirun /opt/openmpi/bin/mpirun
    python benchmarks/mpi.py --quick             # only to see that it works

First, sums over ranks of float32 arrays, as gradients are added up. Then steps of nets with Adam, softmax loss and one
thread a rank, on 256 rows shared by all: one process alone, and all ranks together, where "messages" is the part of the
step that a rank is in them, also waiting for ranks that are later. The least of the rounds counts.

The last table is a model, and no measurement. It takes a sum of b bytes over two ranks to last α + b/β, with α and β
fitted to the first table; one over N ranks log₂ N α + 2 (N − 1)/N b/β (R. Thakur, R. Rabenseifner and W. Gropp,
"Optimization of collective communication operations in MPICH", 2005); a step what it takes alone with the rows of a
share, interpolated between 256 rows and 16; and all else that a step of the first number of ranks was seen to take,
Python's part in a sum and waiting for each other, as much for any number. Where ranks are on other machines, α and β
are other numbers: --latency and --bandwidth say them.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import harness
import numpy as np

ROWS = 256
SIZES = {"64-32-10": (64, 32, 10), "64-100-10": (64, 100, 10), "784-300-10": (784, 300, 10)}
SIZES |= {"784-1000-1000-10": (784, 1000, 1000, 10)}
BYTES = [8, 256, 4096, 2**16, 2**20, 2**23]
RANKS = [2, 4, 8, 16, 32, 64]


def nets(quick):
    return dict(list(SIZES.items())[:2]) if quick else SIZES


def messages(ranks, quick):
    """Seconds of a sum over ranks, by bytes."""
    seconds = {}
    for size in BYTES[:4] if quick else BYTES:
        array = np.zeros(max(size // 4, 1), np.float32)
        times = []
        for _ in range(5 if quick else max(20, min(2000, 2**26 // size))):
            start = time.perf_counter()
            ranks.all_reduce_in_place(array)
            times.append(time.perf_counter() - start)
        seconds[size] = min(times)
    return seconds


class TimedGroup:
    """Ranks, and the seconds that this one has been in their sums."""

    def __init__(self, ranks):
        self.seconds = 0.0
        begin = self.time_calls(ranks.start_all_reduce)
        ranks.all_reduce_in_place = self.time_calls(ranks.all_reduce_in_place)
        ranks.start_all_reduce = lambda array: self.time_calls(begin(array))

    def time_calls(self, call):
        def timed_call(*arguments):
            start = time.perf_counter()
            result = call(*arguments)
            self.seconds += time.perf_counter() - start
            return result

        return timed_call


def steps(sizes, rows, optimizer_of, timed, quick):
    """Seconds of a step, and of messages in it."""
    import caffelite as cl

    steps = 10 if quick or parameters(sizes) > 10**6 else 40
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((rows * steps, sizes[0]), dtype=np.float32), rng.integers(0, 10, rows * steps)
    model = cl.MLP(sizes[0], sizes[1:], seed=0)
    fit = {"loss": cl.SoftmaxLoss(), "optimizer": optimizer_of(cl.Adam(model.parameters())), "batch_size": rows}
    model.fit(x, y, epochs=1, verbose=0, **fit)
    seconds = []
    for _ in range(1 if quick else 5):
        marks = []
        mark = lambda epoch, history, marks=marks: marks.append((time.perf_counter(), timed.seconds))  # noqa: E731
        model.fit(x, y, epochs=2, verbose=0, callbacks=[mark], **fit)
        seconds.append(tuple((after - before) / steps for before, after in zip(*marks, strict=True)))
    return min(seconds)


def measure_ranks(quick):
    """Run what `mpirun` starts; rank 0 prints all that was measured, as JSON."""
    from mpi4py import MPI

    import caffelite as cl
    from caffelite import mpi

    cl.set_num_threads(1)
    parallel = mpi.DataParallel(cl.SGD(cl.Linear(1, 1).parameters(), lr=0.1)).processes
    results = {"library": MPI.Get_library_version().split(",")[0].splitlines()[0].strip("\0")}
    results["messages"] = messages(parallel.comm, quick)
    timed = TimedGroup(parallel.comm)
    results["together"] = {name: steps(net, ROWS, mpi.DataParallel, timed, quick) for name, net in nets(quick).items()}
    if parallel.is_main:
        print(json.dumps(results))


def alone(net, quick):
    """Seconds of a step of one process, with all rows and with a sixteenth of them."""
    timed = argparse.Namespace(seconds=0.0)
    return [steps(net, rows, lambda optimizer: optimizer, timed, quick)[0] for rows in (ROWS, ROWS // 16)]


def parameters(net):
    return sum(m * n + n for m, n in pairwise(net))


def fit_latency(measured):
    """Latency and bandwidth of α + b/β, least squares of relative errors."""
    sizes, seconds = np.array([[int(size), time] for size, time in measured.items()]).T
    (latency, per_byte), *_ = np.linalg.lstsq(np.stack([1 / seconds, sizes / seconds], 1), np.ones(len(sizes)))
    return max(latency, 1e-7), 1 / max(per_byte, 1e-12)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--mpirun", default=shutil.which("mpirun", path=str(Path(sys.executable).parent)) or "mpirun")
    parser.add_argument("--latency", type=float, help="α of the model, in µs")
    parser.add_argument("--bandwidth", type=float, help="β of the model, in GB/s")
    parser.add_argument("--quick", action="store_true", help="small messages and nets, a few times")
    parser.add_argument("--of-ranks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of_ranks:
        measure_ranks(options.quick)
        return
    harness.use_threads(1)
    import caffelite as cl

    cl.set_num_threads(1)
    print(harness.environment("mpi4py"))
    found = {}
    for ranks in options.ranks:
        command = [options.mpirun, "-n", str(ranks), sys.executable, __file__, "--of-ranks"]
        command += ["--quick"] * options.quick
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        found[ranks] = json.loads(done.stdout.splitlines()[-1])
    print(found[options.ranks[0]]["library"])
    for ranks, measured in found.items():
        rows = [[size, f"{t * 1e6:.1f}", f"{int(size) / t / 1e9:.3f}"] for size, t in measured["messages"].items()]
        print(f"\nA sum over {ranks} ranks\n")
        print(harness.table(["bytes", "µs", "GB/s"], rows))
    times = {name: alone(net, options.quick) for name, net in nets(options.quick).items()}
    for ranks, measured in found.items():
        rows = []
        for name, (step, of_messages) in measured["together"].items():
            of_one, shares = times[name][0], f"{of_messages / step:.0%}"
            rows.append([name, f"{4 * parameters(SIZES[name]):,}", *[f"{t * 1e6:.0f}" for t in (of_one, step)]])
            rows[-1] += [f"{of_messages * 1e6:.0f}", shares, f"{of_one / step:.2f}"]
        print(f"\nSteps of {ROWS} rows, one rank and {ranks}\n")
        print(harness.table(["net", "bytes of gradient", "1 rank, µs", "all, µs", "messages, µs", "share", "×"], rows))
    first = options.ranks[0]
    latency, bandwidth = of_here = fit_latency(found[first]["messages"])
    latency = latency if options.latency is None else options.latency * 1e-6
    bandwidth = bandwidth if options.bandwidth is None else options.bandwidth * 1e9
    rows = []
    for name, (whole, sixteenth) in times.items():
        per_row, size = (whole - sixteenth) / (ROWS - ROWS // 16), 4 * parameters(SIZES[name])

        def step(n, latency, bandwidth, whole=whole, per_row=per_row, size=size):
            message = math.log2(n) * latency + 2 * (n - 1) / n * size / bandwidth
            return whole - per_row * (ROWS - ROWS / n) + message

        beside = max(found[first]["together"][name][0] - step(first, *of_here), 0)
        rows.append([name, *[f"{whole / (step(n, latency, bandwidth) + beside):.2f}" for n in RANKS]])
    print(f"\nThe model: speed-up expected, α = {latency * 1e6:.1f} µs, β = {bandwidth / 1e9:.2f} GB/s, {ROWS} rows\n")
    print(harness.table(["ranks", *map(str, RANKS)], rows))


if __name__ == "__main__":
    main()
