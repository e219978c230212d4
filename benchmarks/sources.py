"""Sources: training from a file that is larger than the memory it may have, beside the same steps from memory.

Rows of 784 float32 and their labels are generated into a file, and the net mnist (784-128-64-10, batches of 64, Adam)
goes through it once, mapped or as an h5py dataset; and as many times through the file's first 256 MiB in memory as give
as many steps. Both shuffle. The file is read from the disk: the system is told to forget it before each run.

    python benchmarks/sources.py --gigabytes 20
    python benchmarks/sources.py --quick      # a small file: only to see that it works

Each run has a process of its own, whose private memory may not grow beyond `--limit` (RLIMIT_DATA: what it allocates,
not what of mapped files is in memory; all of it, with the system's cache, is limited by a control group in which this
script is started). The table has the process's peak of both, sampled every 50 ms, and the rate at
which the file was read; a plain read of the file says what the disk gives.
"""

import argparse
import os
import resource
import tempfile
import threading
import time
from pathlib import Path

import harness
import numpy as np

FEATURES, CLASSES, BATCH = 784, 10, 64
IN_MEMORY = 2**28  # bytes
CHUNK = 2**25


def generate(folder, size, formats):
    """Files of so many bytes of rows, which a random matrix gives their labels; returns the number of rows."""
    rng = np.random.default_rng(0)
    teacher = rng.standard_normal((FEATURES, CLASSES), np.float32)
    rows, step = size // (4 * FEATURES), CHUNK // (4 * FEATURES)
    with open(folder / "x", "wb") as x_file, open(folder / "y", "wb") as y_file:
        for start in range(0, rows, step):
            x = rng.standard_normal((min(step, rows - start), FEATURES), np.float32)
            x.tofile(x_file)
            (x @ teacher).argmax(axis=1).tofile(y_file)
    if "h5py" in formats:
        import h5py

        with h5py.File(folder / "h5", "w") as file:
            dataset = file.create_dataset("x", (rows, FEATURES), np.float32)
            x = np.memmap(folder / "x", np.float32, "r", shape=(rows, FEATURES))
            for start in range(0, rows, step):
                dataset[start : start + step] = x[start : start + step]
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    return rows


def forget(path):
    """Have the system drop a file from its cache."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def training(kind, folder, rows, limit):
    """Return a contestant: trains once through the rows; returns seconds, and the peaks of private and of mapped
    memory.
    """
    import caffelite as cl

    y = np.fromfile(folder / "y", np.int64)
    epochs = 1
    if kind == "memory":
        count = min(rows, IN_MEMORY // (4 * FEATURES)) // BATCH * BATCH
        x = np.fromfile(folder / "x", np.float32, count * FEATURES).reshape(count, FEATURES)
        y, epochs = y[:count], max(1, round(rows / count))
    elif kind == "h5py":
        import h5py

        x = h5py.File(folder / "h5")["x"]
    else:
        x = np.memmap(folder / "x", np.float32, "r", shape=(rows, FEATURES))
    model = cl.MLP(FEATURES, [128, 64, CLASSES], seed=0)
    optimizer = cl.Adam(model.parameters())
    options = {"loss": cl.SoftmaxLoss(), "optimizer": optimizer, "batch_size": BATCH, "verbose": 0, "seed": 0}
    model.fit(np.zeros((BATCH, FEATURES), np.float32), y[:BATCH], **options)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def train():
        with MemorySampler() as peaks:
            start = time.perf_counter()
            model.fit(x, y, epochs=epochs, **options)
            seconds = time.perf_counter() - start
        return seconds, epochs * len(x), peaks.private, peaks.mapped

    return train


class MemorySampler:
    """While it is entered, a thread looks at how much memory the process has; afterwards it has the peaks, in bytes."""

    def __enter__(self):
        self.private = self.mapped = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self):
        while not self.done.wait(0.05):
            lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
            self.private = max(self.private, 1024 * int(lines["RssAnon"].split()[0]))
            self.mapped = max(self.mapped, 1024 * int(lines["RssFile"].split()[0]))

    def __exit__(self, *error):
        self.done.set()
        self.thread.join()


def read_rate(path):
    """Bytes a second that a plain read of the file gives."""
    room, start, count = bytearray(2**21), time.perf_counter(), 0
    with open(path, "rb", buffering=0) as file:
        while n := file.readinto(room):
            count += n
    return count / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4, help="size of the file (4)")
    parser.add_argument("--limit", type=float, default=1, help="gigabytes of private memory (1)")
    parser.add_argument("--threads", type=int, default=1, help="threads that compute; one more reads (1)")
    parser.add_argument(
        "--formats", nargs="+", choices=["memmap", "h5py"], default=["memmap"], help="formats of files (memmap)"
    )
    parser.add_argument("--folder", help="folder for the file, on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed (3)")
    parser.add_argument("--quick", action="store_true", help="a file of 0.3 GB, once")
    options = parser.parse_args()
    if options.quick:
        options.gigabytes, options.rounds = min(options.gigabytes, 0.3), 1
    harness.use_threads(options.threads)

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        folder = Path(folder)
        rows = generate(folder, int(options.gigabytes * 1e9), options.formats)
        forget(folder / "x")
        disk = read_rate(folder / "x")
        found = {}
        for _ in range(options.rounds):
            for kind in ("memory", *options.formats):
                for path in folder.iterdir():
                    forget(path)
                train = harness.Process(training, kind, folder, rows, int(options.limit * 1e9), cores=None)
                found.setdefault(kind, []).append(train())
                train.close()

    print(harness.environment("h5py"))
    of_threads = f"on {options.threads} thread{'s' * (options.threads > 1)}"
    print(f"{rows:,} rows of {4 * FEATURES:,} bytes; the fastest of {options.rounds} rounds, {of_threads}")
    print(f"a plain read of the file: {disk / 1e6:,.0f} MB/s\n")
    table, fastest = [], {kind: max(runs, key=lambda run: run[1] / run[0]) for kind, runs in found.items()}
    in_memory = fastest["memory"][1] / fastest["memory"][0]
    for kind, (seconds, trained, *_) in fastest.items():
        private, mapped = (max(run[i] for run in found[kind]) / 1e6 for i in (2, 3))
        speed = trained / seconds
        rate = "" if kind == "memory" else f"{4 * FEATURES * speed / 1e6:,.0f}"
        cells = [f"{1e6 * BATCH / speed:.1f}", f"{100 * speed / in_memory:.0f} %", rate]
        table.append([kind, *cells, f"{private:,.0f}", f"{mapped:,.0f}"])
    head = ["rows from", "µs a step", "speed", "MB/s read", "MB private", "MB mapped"]
    print(harness.table(head, table))


if __name__ == "__main__":
    main()
