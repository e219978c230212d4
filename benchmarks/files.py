"""Files: what saving and loading a model costs beside NumPy's `save` and `load` of the same bytes.

`Model.save` waits until the file is on the disk, which `numpy.save` does not; both are shown, NumPy's also with
`os.fsync`. `caffelite.load` makes the model, `Model.load` fills one. The file is in the folder of temporary files, and
in the page cache when it is read.

    python benchmarks/files.py
    python benchmarks/files.py --quick      # only to see that it works

Contestants take turns, in one process that keeps its memory; the least of the rounds counts.
"""

import argparse
import gc
import os
import tempfile
import time
from pathlib import Path

import harness
import numpy as np


def contestants(folder, features):
    """Return a contestant that times them all, once each: seconds by name."""
    import caffelite as cl

    harness.keep_memory()
    path, array_path = Path(folder, "model.safetensors"), Path(folder, "array.npy")
    model = cl.MLP(features, [900, 300, 10], seed=0)
    values = np.concatenate([p.data.reshape(-1) for p in model.parameters()])

    def numpy_to_disk():
        with open(array_path, "wb") as file:
            np.save(file, values)
            os.fsync(file.fileno())

    def without_waiting():
        fsync, os.fsync = os.fsync, lambda file: None
        try:
            model.save(path)
        finally:
            os.fsync = fsync

    works = {
        "numpy.save, os.fsync": numpy_to_disk,
        "Model.save": lambda: model.save(path),
        "numpy.save": lambda: np.save(array_path, values),
        "Model.save but for os.fsync": without_waiting,
        "numpy.load": lambda: np.load(array_path),
        "caffelite.load": lambda: cl.load(path),
        "Model.load": lambda: model.load(path),
    }

    def measure():
        seconds = {}
        for name, work in works.items():
            gc.collect()
            start = time.perf_counter()
            work()
            seconds[name] = time.perf_counter() - start
        return seconds, values.size

    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="how often each is timed (50)")
    parser.add_argument("--quick", action="store_true", help="a small model, twice")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure = harness.Process(contestants, folder, 20 if options.quick else 784)
        rounds = [measure() for _ in range(2 if options.quick else options.rounds)]
        measure.close()
    best = {name: min(seconds[name] for seconds, _ in rounds) for name in rounds[0][0]}

    print(harness.environment("safetensors"))
    print(f"{rounds[0][1]:,} parameters, float32; ms, the least of {len(rounds)} rounds\n")
    rows, rival = [], ""
    for name, seconds in best.items():
        rival = name if name.startswith("numpy") else rival
        rows.append([name, f"{seconds * 1e3:.3f}", f"{seconds / best[rival]:.2f}"])
    print(harness.table(["", "ms", "NumPy = 1"], rows))


if __name__ == "__main__":
    main()
