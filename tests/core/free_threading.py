"""Work for many Python threads at once: each trains nets of its own, and all predict with the same ones.

Each job returns bytes, which must be those of the same job on a single thread. `tests/tools/run_free_threading.py` runs
the jobs for a minute, a test of test_free_threading.py for a second.
"""

import random
import sys
import threading
import time

import numpy as np

import caffelite as cl
from tests.conftest import bits, classifier, train, training_step

SEEDS = range(3)
ROWS = (1, 5, 64, 200)  # a bucket's number, two in buckets, and one in blocks

X, Y = cl.datasets.spiral(points_per_class=40, seed=0)
IMAGES = np.random.default_rng(0).normal(size=(24, 1, 8, 8)).astype(np.float32)
TEXTS = np.random.default_rng(1).integers(0, 9, (40, 6))
WORDS = TEXTS[:, 0] % 3
LOSS = cl.SoftmaxLoss()  # threads may share a loss, since each call applies a copy


class UserNet(cl.Model):
    """A net whose `call` is Python of the user's, which reads one of its attributes."""

    def __init__(self, seed):
        super().__init__(seed=seed)
        self.inner, self.outer, self.slope = cl.Linear(2, 16), cl.Linear(16, 3), 0.5

    def call(self, x):
        return self.outer(cl.tanh(self.inner(x) * self.slope))


def user_loss(outputs, targets):
    return LOSS(outputs, targets) + (outputs * outputs).mean() * 0.01


# ---- nets of a thread's own ------------------------------------------------------------------------------------------


def fit_layers(seed):
    model = classifier(2, 24, 3, seed=seed)
    history = train(model, X, Y, epochs=6, loss=LOSS, validation_split=0.2)
    return bits(model) + np.array(history["val_loss"]).tobytes()


def fit_user_net(seed):
    model = UserNet(seed)
    train(model, X, Y, epochs=6, loss=user_loss, metrics=["balanced_accuracy"])
    return bits(model)


def fit_images(seed):
    layers = [cl.Conv2d(1, 4, 3), cl.BatchNorm(4), cl.ReLU(), cl.MaxPool2d(2), cl.Flatten(), cl.Dropout(0.3)]
    model = cl.Model([*layers, cl.Linear(36, 3)], seed=seed)
    train(model, IMAGES, np.arange(24) % 3, epochs=4, batch_size=8)
    return bits(model)


def fit_texts(seed):
    model = cl.Model([cl.Embedding(9, 4), cl.Flatten(), cl.Linear(24, 3)], seed=seed)
    train(model, TEXTS, WORDS, epochs=4, batch_size=8, optimizer=cl.Adam(model.parameters()))
    return bits(model)


def train_by_hand(seed):
    model = UserNet(seed)
    step = training_step(model, cl.Adam(model.parameters(), lr=0.01), LOSS)
    return b"".join([step(X[i : i + 30], Y[i : i + 30]).data.tobytes() for i in (0, 30, 60)]) + bits(model)


def train_by_replays(seed):
    model = classifier(2, 8, 3, seed=seed)
    program = cl.capture(training_step(model, cl.Adam(model.parameters(), lr=0.01), LOSS), X[:30], Y[:30])
    return b"".join([program(X[i : i + 30], Y[i : i + 30]).tobytes() for i in range(0, 60, 10)]) + bits(model)


def fit_several(seed):
    models = [classifier(2, 8, 3, seed=seed + i) for i in range(5)]
    optimizers = [cl.SGD(model.parameters(), lr=0.1) for model in models]
    cl.fit_many(models, X, Y, loss=LOSS, optimizers=optimizers, epochs=2, verbose=0)
    return b"".join(map(bits, models))


OWN_JOBS = (fit_layers, fit_user_net, fit_images, fit_texts, train_by_hand, train_by_replays, fit_several)


# ---- nets that all threads share -------------------------------------------------------------------------------------


class SharedNets:
    """Nets that nobody has used yet."""

    def __init__(self):
        rows = np.random.default_rng(2).normal(size=(max(ROWS), 2)).astype(np.float32)
        self.inputs = [rows[:n].copy() for n in ROWS]
        layers, user_net = classifier(2, 40, 3), UserNet(0)
        program = cl.capture(lambda x: cl.tanh(cl.Tensor(x)) * 2.0, self.inputs[2])
        self.uses = {
            "layers": lambda x: layers.predict(x, batch_size=128),
            "user_net": lambda x: user_net.predict(x, batch_size=50),
            "forward": lambda x: user_net(x).data,
            "program": lambda x: program(self.inputs[2] * np.float32(len(x))),
            "evaluate": lambda x: np.array(list(layers.evaluate(X, Y, loss=LOSS).values())),
        }

    def predict(self, name, i):
        return self.uses[name](self.inputs[i]).tobytes()


def list_jobs():
    """Return functions by their names. All of them may run at the same time."""
    shared = SharedNets()
    jobs = {f"{job.__name__}({seed})": lambda job=job, seed=seed: job(seed) for job in OWN_JOBS for seed in SEEDS}
    for name in shared.uses:
        for i, n in enumerate(ROWS):
            jobs[f"{name}, {n} rows"] = lambda name=name, i=i: shared.predict(name, i)
    return jobs


def run_at_once(threads, work):
    """Call `work(i)` on this many threads, which begin together. Raise the first error."""
    barrier, errors = threading.Barrier(threads), []

    def run(i):
        try:
            barrier.wait()
            work(i)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def run_jobs(seconds, threads=8):
    """Run jobs in random order, again and again. Return how many have run; AssertionError if one has other bytes."""
    expected = {name: job() for name, job in list_jobs().items()}
    counts, end, interval = [0] * threads, time.monotonic() + seconds, sys.getswitchinterval()
    jobs = list_jobs()

    def work(i):
        rng, names = random.Random(i), list(jobs)
        while time.monotonic() < end:
            rng.shuffle(names)
            for name in names:
                assert jobs[name]() == expected[name], f"{name} has other bytes beside other threads"
                counts[i] += 1
                if time.monotonic() > end:
                    break

    sys.setswitchinterval(1e-5)  # Python with its lock changes threads more often
    try:
        run_at_once(threads, work)
    finally:
        sys.setswitchinterval(interval)
    return sum(counts)
