"""Kernels alone: the matrix product beside NumPy's, and what a call costs.

GFLOP/s of `caffelite._kernels.matmul` and of `numpy.matmul`, and both as shares of the peak measured in the same run,
for the shapes that training small networks is made of. Then the nanoseconds of calls with next to nothing to compute.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --dtype float64
    python benchmarks/kernels.py --quick      # only to see that it works

One thread. caffelite and NumPy each have a process pinned to the same core and take turns; the best round counts.
"""

import argparse

import harness
import numpy as np

INTO, NEW, ADD = "matmul(a, b, out)", "matmul(a, b)", "add(a, a)"

# M, K, N, and whether a is a transposed view, as it is in dW = xᵀ dy.
SHAPES = [(n, n, n, False) for n in (32, 64, 128, 256, 512, 1024)]
SHAPES += [(64, 784, 128, False), (784, 64, 128, True), (300, 2, 100, False), (300, 100, 3, False)]
SHAPES += [(100, 300, 3, True), (64, 64, 10, False)]


def contestant(library, dtype):
    """Returns measure(statement, M, K, N, transposed, at_least) -> seconds."""
    matmul, add = np.matmul, np.add
    if library == "caffelite":
        from caffelite._kernels import add, matmul
    rng = np.random.default_rng(0)

    def measure(statement, M, K, N, transposed, at_least):
        a, b = (rng.random(shape).astype(dtype) for shape in ((K, M) if transposed else (M, K), (K, N)))
        a, out = a.T if transposed else a, np.empty((M, N), dtype)
        return harness.seconds_per_call(statement, at_least, matmul=matmul, add=add, a=a, b=b, out=out)

    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is timed (7)")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test, no measurement")
    options = parser.parse_args()
    rounds, at_least = (1, 1e-4) if options.quick else (options.rounds, 0.02)

    harness.use_one_thread()
    libraries = ["caffelite", "NumPy"]
    machine = harness.Process(harness.machine_speed, options.dtype)
    processes = {library: harness.Process(contestant, library, options.dtype) for library in libraries}
    tasks = [(INTO, *shape) for shape in SHAPES] + [(NEW, 1, 1, 1, False), (ADD, 1, 1, 1, False)]
    gflops, copied, seconds = 0.0, 0.0, {}
    for _ in range(rounds):
        gflops, copied = np.maximum((gflops, copied), machine())
        for library, measure in processes.items():
            for task in tasks:
                now = measure(*task, at_least)
                seconds[task, library] = min(now, seconds.get((task, library), now))

    print(f"{harness.environment()}\none thread, {options.dtype}, best of {rounds}")
    print(f"peak {gflops:.1f} GFLOP/s (NumPy's matmul, 1536³), copying {copied:.1f} GB/s\n")
    rows, calls = [], []
    for task in tasks:
        statement, M, K, N, transposed = task
        ours, numpys = [seconds[task, library] for library in libraries]
        if statement == INTO:
            speeds = [2e-9 * M * K * N / ours, 2e-9 * M * K * N / numpys]
            cells = [text for speed in speeds for text in (f"{speed:.1f}", f"{100 * speed / gflops:.0f}")]
            rows.append([f"{M} × {K} × {N}{', aᵀ' * transposed}", *cells, f"{numpys / ours:.2f}"])
        else:
            calls.append([statement, f"{1e9 * ours:.0f}", f"{1e9 * numpys:.0f}"])
    print(
        harness.table(["matmul, M × K × N", "GFLOP/s", "% of peak", "NumPy's", "% of peak", "speed, NumPy = 1"], rows)
    )
    print()
    print(harness.table(["a call on 1 × 1 arrays, its output new", "ns", "NumPy's"], calls))


if __name__ == "__main__":
    main()
