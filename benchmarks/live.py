"""The cost of `cl.live()`: trainings with a page that looks on, beside trainings without one.

    python benchmarks/live.py
    python benchmarks/live.py --quick       # only to see that it works

The page is a socket that reads all messages, in a process of its own. Trainings take turns; the ratios are of medians
of the rounds. The time of the processor is that of the thread that trains. Two shares of it follow: the callback's own
time on this thread, and the time of the server's thread. On a machine that others use too, these shares say most.
Beginning and ending the server are not in it: they take about 0.3 s. Parameters have to be the same bits.
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
from contextlib import suppress
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
address = sys.argv[1].replace("http", "ws").replace("/?", "/socket?")
with connect(address, origin=sys.argv[1].partition("/?")[0], max_size=None) as page:
    print("ready", flush=True)
    with suppress(ConnectionClosed):
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


def language(cl):
    rng, vocabulary = np.random.default_rng(0), cl.Vocabulary(["abcdefghijklmnopqrstuvwxyz "], characters=True)
    tokens = rng.integers(2, len(vocabulary), (480, 65))
    model = cl.Model([cl.Embedding(len(vocabulary), 64), cl.PositionalEncoding(64, 64)], seed=0)
    model.add(cl.TransformerBlock(64, heads=4, causal=True)).add(cl.TransformerBlock(64, heads=4, causal=True))
    model.add(cl.Linear(64, len(vocabulary)))
    model.vocabulary = vocabulary
    return model, tokens[:, :-1], tokens[:, 1:], 60


class EmptyCallback:
    """A callback that does nothing, and notes when it ends."""

    def due(self, epochs):
        return float("inf")

    def __call__(self, epoch, history):
        pass

    def end(self):
        self.ended = read_clocks()


def read_clocks():
    """Return the time, that of the processor on this thread, and that on other threads."""
    return time.perf_counter(), time.thread_time(), time.process_time() - time.thread_time()


class TimedMethod:
    """A method, and the seconds that the processor spends in it."""

    def __init__(self, method):
        self.method, self.seconds = method, 0.0

    def __call__(self, *arguments):
        start = time.thread_time()
        try:
            return self.method(*arguments)
        finally:
            self.seconds += time.thread_time() - start


class Clock(EmptyCallback):
    """The last callback. It takes the time from the first step on; before it, a page begins to look at the training."""

    def __init__(self, live):
        self.live, self.reader = live, None

    def begin(self, training):
        if self.live is not None:
            command = [sys.executable, "-c", READER, self.live.address]
            self.reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self.reader.stdout.readline()
        self.started = read_clocks()


def seconds(make, share, is_live):
    """Return the seconds of a training, those of the processor on its thread, on others, in the callback; and
    parameters.
    """
    import caffelite as cl

    model, x, y, epochs = make(cl)
    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.05), "verbose": 0}
    live = cl.live(open_browser=False) if is_live else None
    if is_live:
        live.between_steps = TimedMethod(live.between_steps)
    first, clock = EmptyCallback(), Clock(live)
    callbacks = [first, live, clock] if is_live else [first, clock]
    model.fit(x, y, epochs=max(1, int(epochs * share)), batch_size=32, callbacks=callbacks, **options)
    took = [end - start for start, end in zip(clock.started, first.ended, strict=True)]
    took.append(live.between_steps.seconds if is_live else 0.0)
    if clock.reader is not None:
        clock.reader.wait(10)
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
    nets = {"spiral": spiral, "784-128-64-10": dense, "convolutional": convolutional, "language": language}
    for name, make in nets.items():
        results = {live: [] for live in (False, True)}
        for _ in range(rounds):
            for live, found in results.items():
                found.append(seconds(make, share, live))
        if len({content for found in results.values() for _, content in found}) > 1:
            sys.exit(f"{name}: the parameters differ")
        row = [name]
        for i in range(2):
            alone, watched = (statistics.median(took[i] for took, _ in found) for found in results.values())
            row += [f"{alone:.2f}", f"{watched:.2f}", f"{watched / alone:.3f}"]
        for i in (3, 2):
            shares = [took[i] / took[1] for took, _ in results[True]]
            row.append(f"{statistics.median(shares):.2%}")
        rows.append(row)
    heading = ["", "s alone", "with a page", "ratio", "s of processor", "with a page", "ratio", "callback", "server"]
    print(harness.table(heading, rows))


if __name__ == "__main__":
    main()
