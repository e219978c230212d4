"""The cost of `cl.live()`: trainings with a page that looks on, beside trainings without one.

    python benchmarks/live.py
    python benchmarks/live.py --quick       # only to see that it works

The page is a socket that reads all messages, in a process of its own. Trainings take turns; the ratio is of medians of
the rounds. Parameters have to be the same bits.
"""

import argparse
import statistics
import subprocess
import sys
import time

import harness
import numpy as np

READER = """
import sys
from websockets.sync.client import connect
address = sys.argv[1].replace("http", "ws").replace("/?", "/socket?")
with connect(address, origin=sys.argv[1].partition("/?")[0], max_size=None) as page:
    print("ready", flush=True)
    for message in page:
        pass
"""


def spiral(cl):
    x, y = cl.datasets.spiral(seed=0)
    return cl.MLP(2, [100, 3], seed=0), x, y, 150_000


def dense(cl):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6400, 784)).astype(np.float32), rng.integers(0, 10, 6400)
    return cl.MLP(784, [128, 64, 10], seed=0), x, y, 200


def convolutional(cl):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1600, 1, 14, 14)).astype(np.float32), rng.integers(0, 10, 1600)
    layers = [cl.Conv2d(1, 16, 3, padding="same"), cl.ReLU(), cl.MaxPool2d(2), cl.Flatten(), cl.Linear(16 * 49, 10)]
    return cl.Model(layers, seed=0), x, y, 900


def seconds(make, share, live):
    """The seconds of a training, and the bytes of its parameters."""
    import caffelite as cl

    model, x, y, epochs = make(cl)
    callbacks, reader = [], None
    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.05), "verbose": 0}
    if live:
        watching = cl.live(open_browser=False)
        callbacks = [watching]
        model_of_warm_up, *_ = make(cl)
        options_of_warm_up = options | {"optimizer": cl.SGD(model_of_warm_up.parameters(), lr=0.05)}
        model_of_warm_up.fit(x[:64], y[:64], epochs=1, callbacks=callbacks, **options_of_warm_up)
        command = [sys.executable, "-c", READER, watching.address]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        reader.stdout.readline()
    start = time.perf_counter()
    model.fit(x, y, epochs=max(1, int(epochs * share)), batch_size=32, callbacks=callbacks, **options)
    took = time.perf_counter() - start
    if reader is not None:
        reader.kill()
        reader.wait()
    return took, b"".join(p.data.tobytes() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    harness.use_threads(options.threads)
    rounds, share = (1, 0.02) if options.quick else (options.rounds, 1.0)
    print(harness.environment("starlette", "uvicorn"))
    rows = []
    for name, make in {"spiral": spiral, "784-128-64-10": dense, "convolutional": convolutional}.items():
        results = {live: [] for live in (False, True)}
        for _ in range(rounds):
            for live, found in results.items():
                found.append(seconds(make, share, live))
        (alone, watched) = ([took for took, _ in found] for found in results.values())
        if len({content for found in results.values() for _, content in found}) > 1:
            sys.exit(f"{name}: the parameters differ")
        ratio = statistics.median(watched) / statistics.median(alone)
        rows.append([name, f"{statistics.median(alone):.2f}", f"{statistics.median(watched):.2f}", f"{ratio:.3f}"])
    print(harness.table(["", "s alone", "s with a page", "ratio"], rows))


if __name__ == "__main__":
    main()
