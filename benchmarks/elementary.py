"""The errors of exp, log, cbrt, tanh, sigmoid, softplus, sin and cos, in units in the last place (ulp).

float32: over all 2³² numbers there are, against float64. float64: over random numbers, against NumPy's longdouble where
that has more digits. NaN and infinite results have to be NaN and infinite for the same arguments, or the run ends.

    python benchmarks/elementary.py                # some minutes on two cores
    python benchmarks/elementary.py --every 1000   # every thousandth float32
    python benchmarks/elementary.py --quick        # only to see that it works
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import harness
import numpy as np

CHUNK = 2**22


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))


JUDGES = {"exp": np.exp, "log": np.log, "tanh": np.tanh, "sigmoid": sigmoid, "softplus": softplus}
JUDGES |= {"sin": np.sin, "cos": np.cos, "cbrt": np.cbrt}


def largest_error(name, x, wide):
    """Return the largest error in ulp of a kernel at x, and where; the judge computes in the type `wide`."""
    from caffelite import _kernels as kernels

    y = getattr(kernels, name)(x)
    with np.errstate(all="ignore"):
        truth = JUDGES[name](x.astype(wide))
        rounded = truth.astype(x.dtype)
        wrong = (np.isnan(y) != np.isnan(rounded)) | (np.isinf(y) != np.isinf(rounded))
        at_the_end = np.abs(truth) > np.finfo(x.dtype).max * (1 - 4 * np.finfo(x.dtype).eps)  # an ulp from infinity
        if (wrong & ~at_the_end).any():
            raise SystemExit(f"{name} of {x[wrong & ~at_the_end][0]!r} is {y[wrong & ~at_the_end][0]!r}")
        errors = np.abs(y.astype(wide) - truth) / np.spacing(np.abs(rounded)).astype(wide)
    errors = np.where(np.isfinite(y) & np.isfinite(rounded), errors, 0)
    worst = int(np.argmax(errors))
    return float(errors[worst]), x[worst]


def float32_errors(name, every, first):
    """As `largest_error`, for every `every`-th of the numbers whose bits are first … first + CHUNK · every − 1."""
    bits = np.arange(first, min(first + CHUNK * every, 2**32), every, dtype=np.uint64).astype(np.uint32)
    return largest_error(name, bits.view(np.float32), np.float64)


def float64_errors(name, count):
    rng = np.random.default_rng(0)
    near_0, wide = rng.uniform(-1, 1, count), rng.uniform(-750, 750, count)
    wide = 1500 * wide if name in ("sin", "cos") else wide  # C's functions compute beyond 2²⁰
    scales = np.exp(rng.uniform(-700, 700, count))
    x = np.concatenate([scales, abs(near_0)] if name == "log" else [near_0, wide, 1 / scales, -scales])
    return largest_error(name, x, np.longdouble)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take every so many-th float32 only (1)")
    parser.add_argument("--quick", action="store_true", help="every 100,003rd float32: a smoke test, not a measurement")
    options = parser.parse_args()
    every = 100_003 if options.quick else options.every

    harness.use_threads(1)
    rows = []
    with ProcessPoolExecutor(mp_context=harness.SPAWN) as pool:
        for name in JUDGES:
            results = list(pool.map(partial(float32_errors, name, every), range(0, 2**32, CHUNK * every)))
            error, where = max(results, key=lambda result: result[0])
            rows.append([name, f"{error:.2f}", f"x = {where}"])
        if np.finfo(np.longdouble).nmant > 60:
            double_rows = list(pool.map(partial(float64_errors, count=10_000 if options.quick else 10**6), JUDGES))
            rows = [[*row, f"{error:.2f}", f"x = {x}"] for row, (error, x) in zip(rows, double_rows, strict=True)]

    print(f"{harness.environment()}\n{-(-(2**32) // every):,} of the 2³² float32 numbers\n")
    header = ["largest error", "float32, ulp", "where", "float64, ulp", "where"]
    print(harness.table(header[: len(rows[0])], rows))


if __name__ == "__main__":
    main()
