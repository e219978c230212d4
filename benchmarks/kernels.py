"""Kernels alone: the matrix product and exp beside NumPy's, the optimizers' updates, and what a call costs.

GFLOP/s of `caffelite._kernels.matmul` and of `numpy.matmul`, and both as shares of the peak measured in the same run,
for the shapes that training small networks is made of. Nanoseconds an element of exp, log, tanh and sigmoid. GB/s of
SGD's and Adam's updates, beside a copy within as much memory. Then the nanoseconds of calls with next to nothing to
compute.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --dtype float64
    python benchmarks/kernels.py --quick      # only to see that it works

One thread. caffelite and NumPy each have a process pinned to the same core and take turns; the best round counts.
"""

import argparse

import harness
import numpy as np

INTO, NEW, ADD = "matmul(a, b, out)", "matmul(a, b)", "add(a, a)"

# M, K, N, and which operand is a transposed view: a in dW = xᵀ dy, b in dx = dy Wᵀ.
SHAPES = [(n, n, n, "") for n in (32, 64, 128, 256, 512, 1024)]
SHAPES += [(64, 784, 128, ""), (784, 64, 128, "a"), (128, 512, 512, "b")]
SHAPES += [(300, 2, 100, ""), (300, 100, 3, ""), (100, 300, 3, "a"), (300, 3, 100, "b"), (2, 300, 100, "a")]
SHAPES += [(64, 64, 10, ""), (64, 10, 64, "b"), (300, 100, 1, ""), (1, 512, 512, "")]

ELEMENTARY = ("exp", "log", "tanh", "sigmoid")
ELEMENTS = 4096  # they fit the first-level cache

# Numbers of parameters: of 64-100-10, 784-128-64-10, 784-512-512-10, and more than caches hold.
UPDATED = [7_510, 109_386, 669_706, 8_000_000]


def contestant(library, dtype):
    """Return measure(statement, M, K, N, transposed, at_least) -> seconds."""
    matmul, add = np.matmul, np.add
    if library == "caffelite":
        from caffelite._kernels import add, matmul
    rng = np.random.default_rng(0)

    def measure(statement, M, K, N, transposed, at_least):
        shapes = (K, M) if transposed == "a" else (M, K), (N, K) if transposed == "b" else (K, N)
        a, b = (rng.random(shape).astype(dtype) for shape in shapes)
        a, b, out = a.T if transposed == "a" else a, b.T if transposed == "b" else b, np.empty((M, N), dtype)
        return harness.seconds_per_call(statement, at_least, matmul=matmul, add=add, a=a, b=b, out=out)

    return measure


def elementary(dtype):
    """Return measure(name, at_least) -> seconds an element of caffelite's function, and of NumPy's, NaN for none."""
    from caffelite import _kernels as kernels

    x = np.random.default_rng(0).uniform(0.1, 5, ELEMENTS).astype(dtype)
    y = np.empty_like(x)

    def measure(name, at_least):
        functions = [getattr(kernels, name), getattr(np, name, None)]
        return [
            harness.seconds_per_call("f(x, y)", at_least, f=f, x=x, y=y) / ELEMENTS if f else np.nan for f in functions
        ]

    return measure


def updates(dtype):
    """Return measure(n, at_least) -> GB/s of SGD with momentum and of Adam on n parameters, and of copies beside them.

    A copy is within as much memory as the update works on. Bytes read and bytes written count.
    """
    from caffelite import _kernels as kernels

    def measure(n, at_least):
        w, g, moments = np.ones(n, dtype), np.full(n, 0.1, dtype), np.full((2, n), 0.1, dtype)
        steps = np.array([[n, 9.0]])
        sgd, adam = np.array([1e-3, 0.9, 1e-4, 0]), np.array([1e-3, 0.9, 0.999, 1e-8, 0])
        calls = [("'sgd', w, g, moments[:1], hyper", 3, 5, sgd), ("'adam', w, g, moments, hyper, steps", 4, 7, adam)]
        speeds = []
        for call, arrays, moved, hyper in calls:
            names = {"w": w, "g": g, "moments": moments, "steps": steps, "hyper": hyper}
            seconds = harness.seconds_per_call(f"kernels.update({call})", at_least, kernels=kernels, **names)
            source = np.ones(arrays * n // 2, dtype)
            copying = harness.seconds_per_call("copyto(to, x)", at_least, copyto=np.copyto, to=source.copy(), x=source)
            speeds += [moved * w.nbytes / seconds / 1e9, 2 * source.nbytes / copying / 1e9]
        return speeds

    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is timed (7)")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test, not a measurement")
    options = parser.parse_args()
    rounds, at_least = (1, 1e-4) if options.quick else (options.rounds, 0.02)

    harness.use_threads(1)
    libraries = ["caffelite", "NumPy"]
    machine = harness.Process(harness.machine_speed, options.dtype)
    update = harness.Process(updates, options.dtype)
    function = harness.Process(elementary, options.dtype)
    processes = {library: harness.Process(contestant, library, options.dtype) for library in libraries}
    tasks = [(INTO, *shape) for shape in SHAPES] + [(NEW, 1, 1, 1, ""), (ADD, 1, 1, 1, "")]
    gflops, copied, seconds, rates = 0.0, 0.0, {}, np.zeros((len(UPDATED), 4))
    element = np.full((len(ELEMENTARY), 2), np.inf)
    for _ in range(rounds):
        gflops, copied = np.maximum((gflops, copied), machine())
        for library, measure in processes.items():
            for task in tasks:
                now = measure(*task, at_least)
                seconds[task, library] = min(now, seconds.get((task, library), now))
        rates = np.maximum(rates, [update(n, at_least) for n in UPDATED])
        element = np.minimum(element, [function(name, at_least) for name in ELEMENTARY])

    print(f"{harness.environment()}\none thread, {options.dtype}, best of {rounds}")
    print(f"peak {gflops:.1f} GFLOP/s (NumPy's matmul, 1536³), copying {copied:.1f} GB/s\n")
    rows, calls = [], []
    for task in tasks:
        statement, M, K, N, transposed = task
        ours, numpys = [seconds[task, library] for library in libraries]
        if statement == INTO:
            speeds = [2e-9 * M * K * N / ours, 2e-9 * M * K * N / numpys]
            cells = [text for speed in speeds for text in (f"{speed:.1f}", f"{100 * speed / gflops:.0f}")]
            rows.append([f"{M} × {K} × {N}{transposed and f', {transposed}ᵀ'}", *cells, f"{numpys / ours:.2f}"])
        else:
            calls.append([statement, f"{1e9 * ours:.0f}", f"{1e9 * numpys:.0f}"])
    print(
        harness.table(["matmul, M × K × N", "GFLOP/s", "% of peak", "NumPy's", "% of peak", "speed, NumPy = 1"], rows)
    )
    rows = []
    for name, (ours, numpys) in zip(ELEMENTARY, 1e9 * element, strict=True):
        rows.append([name, f"{ours:.2f}", f"{ours * gflops / 64:.2f}", "–" if np.isnan(numpys) else f"{numpys:.2f}"])
    print()
    print(harness.table(["an element of 4,096", "ns", "cycles, of 64 FLOP at the peak", "NumPy's ns"], rows))
    rows = []
    for n, (sgd, sgd_copy, adam, adam_copy) in zip(UPDATED, rates, strict=True):
        shares = f"{100 * sgd / sgd_copy:.0f}", f"{100 * adam / adam_copy:.0f}"
        rows.append([f"{n:,}", f"{sgd:.1f}", shares[0], f"{adam:.1f}", shares[1]])
    print()
    print(
        harness.table(["update of so many parameters", "SGD, GB/s", "% of a copy", "Adam, GB/s", "% of a copy"], rows)
    )
    print()
    print(harness.table(["a call on 1 × 1 arrays, its output new", "ns", "NumPy's"], calls))


if __name__ == "__main__":
    main()
