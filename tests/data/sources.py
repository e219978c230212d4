"""Sources of rows that several test files use."""

import numpy as np

import caffelite as cl

N, FEATURES, CLASSES = 5_000, 8, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, FEATURES)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)


def classifier(dtype=np.float32, seed=0):
    return cl.Model([cl.Linear(FEATURES, 16), cl.ReLU(), cl.Linear(16, CLASSES)], seed=seed, dtype=dtype)


def fit_classifier(x, y=None, *, dtype=np.float32, model=None, **options):
    model = classifier(dtype) if model is None else model
    optimizer = cl.Adam(model.parameters(), lr=0.01)
    batch_size = None if y is None else 48  # batches have their own
    options = {"loss": cl.SoftmaxLoss(), "epochs": 2, "batch_size": batch_size, "verbose": 0, "seed": 1} | options
    history = model.fit(x, y, optimizer=optimizer, **options)
    return history, model.state_dict()


def assert_same(one, other):
    assert dict(one[0]) == dict(other[0])
    assert all((one[1][name] == x).all() for name, x in other[1].items())


class Stopping:
    """Writes a checkpoint when so many steps are done, or a few more, and stops there."""

    def __init__(self, path, at):
        self.path, self.at = path, at

    def begin(self, training):
        self.training = training

    def __call__(self, epoch, history):
        pass

    def between_steps(self):
        if self.training.optimizer.state_dict()["steps"].max() >= self.at:
            self.training.write(self.path)
            raise KeyboardInterrupt
