"""Trainings on several ranks beside those of one: `mpirun -n 3 python tests/ranks.py [NAME …]`.

Each case trains twice, as one process by itself and as all ranks together, from the same beginning. Rank 0 prints, as
JSON, by how much parameters, buffers and histories differ at most; and of what all ranks have, whether it is the same.
"""

import json
import sys
import time

import numpy as np

import caffelite as cl
from caffelite import mpi

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def rows(n, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape))


def labels(n, classes=3, seed=1, shape=()):
    return np.random.default_rng(seed).integers(0, classes, (n, *shape))


class Swish(cl.Function):
    """A user's Function: it is called back."""

    def forward(self, x):
        self.x, self.s = x, 1 / (1 + np.exp(-x))
        return x * self.s

    def backward(self, dy):
        return dy * (self.s + self.x * self.s * (1 - self.s))


class Cubic(cl.Function):
    """A user's loss, with weights."""

    def forward(self, scores, targets, weights=None):
        self.d = scores - targets
        self.w = np.ones(len(scores)) if weights is None else weights
        self.of = self.w.sum()
        return np.asarray((self.w * (np.abs(self.d) ** 3).mean(axis=1)).sum() / self.of, scores.dtype)

    def backward(self, dy=1.0):
        return (dy * 3 * self.d * np.abs(self.d) * self.w[:, None] / self.d.shape[1] / self.of).astype(self.d.dtype)


class Halving(cl.Optimizer):
    """A user's optimizer."""

    def step(self):
        for p in self.parameters:
            p.data = p.data - 0.05 * p.grad


def largest(outputs, targets):
    """A user's metric, a mean over rows."""
    return float(np.mean(np.abs(outputs).max(axis=1)))


@case
def dense(dtype):
    """Uneven shares, and a last batch that is short."""
    model = cl.MLP(8, [16, 3], cl.Tanh, seed=0, dtype=dtype)
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    fit = {"x": rows(101, 8), "y": labels(101), "loss": cl.SoftmaxLoss(), "batch_size": 20, "epochs": 17}
    return model, optimizer, fit | {"metrics": ["accuracy", "f1", largest], "validation_split": 0.2}


@case
def fewer_rows_than_ranks(dtype):
    """Batches of two rows, and a last one of one."""
    model = cl.MLP(4, [6, 2], cl.Sigmoid, seed=0, dtype=dtype)
    fit = {"x": rows(31, 4), "y": rows(31, 2, seed=2), "loss": cl.MSELoss(), "batch_size": 2, "epochs": 7}
    return model, cl.Adam(model.parameters(), lr=0.01), fit | {"metrics": ["r2"]}


@case
def weighted(dtype):
    """Weights of which many are 0, so that whole shares and whole batches weigh nothing; clipped; groups."""
    model = cl.MLP(5, [12, 1], cl.SiLU, seed=0, dtype=dtype)
    first, others = model.parameters()[:2], model.parameters()[2:]
    rate = cl.schedules.cosine(0.02, 80, warmup=5)
    optimizer = cl.AdamW([{"parameters": first, "lr": rate}, {"parameters": others, "lr": 0.01}])
    weights = np.where(np.arange(90) % 7 < 5, 0, rows(90, seed=3) ** 2)
    weights[20:40] = 0
    fit = {"x": rows(90, 5), "y": labels(90, 2), "loss": cl.SigmoidLoss(), "batch_size": 6, "epochs": 8}
    return model, optimizer, fit | {"sample_weight": weights, "shuffle": False, "clip_norm": 0.3}


@case
def convolutional(dtype):
    """BatchNorm of images and of features, Dropout of both."""
    model = cl.Model([cl.Conv2d(1, 4, 3, bias=False), cl.BatchNorm(4), cl.ReLU(), cl.MaxPool2d(2)], seed=0, dtype=dtype)
    for f in (cl.Dropout(0.3), cl.Flatten(), cl.Linear(36, 10, bias=False), cl.BatchNorm(10), cl.Tanh(), cl.Dropout(0.2)):
        model.add(f)
    optimizer = cl.Adam(model.add(cl.DropConnect(10, 3, 0.4)).parameters(), lr=2e-3)
    fit = {"x": rows(75, 1, 8, 8), "y": labels(75), "loss": cl.SoftmaxLoss(), "batch_size": 16, "epochs": 20}
    return model, optimizer, fit | {"metrics": ["accuracy"], "validation_data": (rows(30, 1, 8, 8, seed=5), labels(30))}


class Recurrent(cl.Model):
    def __init__(self, seed, dtype):
        super().__init__(seed=seed, dtype=dtype)
        self.lstm, self.gru = cl.LSTM(4, 6, sequences=True), cl.GRU(6, 5)
        self.last = cl.Linear(5, 3)
        self.takes_indices = (False, True)

    def call(self, x, lengths):
        return self.last(self.gru(self.lstm(x, lengths=lengths), lengths=lengths))


@case
def recurrent(dtype):
    """Rows of different lengths."""
    model = Recurrent(0, dtype)
    lengths = np.random.default_rng(4).integers(1, 8, 61)
    fit = {"x": (rows(61, 7, 4), lengths), "y": labels(61), "loss": cl.SoftmaxLoss(), "batch_size": 16, "epochs": 25}
    return model, cl.RMSProp(model.parameters(), lr=1e-3, momentum=0.5), fit


class Transformer(cl.Model):
    def __init__(self, seed, dtype):
        super().__init__(seed=seed, dtype=dtype)
        self.embedding, self.position = cl.Embedding(11, 8), cl.PositionalEncoding(8, 6)
        self.block = cl.TransformerBlock(8, 2, dropout=0.2, bias=False)
        self.takes_indices = (True, False)

    def call(self, x, mask):
        h = self.block(self.position(self.embedding(x)), mask)
        return h @ self.embedding.weight.T


@case
def transformer(dtype):
    """Masks, dropped attention, a tied output, and labels of which whole shares are to be ignored."""
    model = Transformer(0, dtype)
    x, y = labels(45, 11, shape=(6,)), labels(45, 11, seed=3, shape=(6,))
    mask = np.arange(6) < np.random.default_rng(6).integers(2, 7, (45, 1))
    y[~mask] = -1
    y[::3] = -1
    fit = {"x": (x, mask), "y": y, "loss": cl.SoftmaxLoss(ignore=-1), "batch_size": 4, "epochs": 9, "shuffle": False}
    return model, cl.Adam(model.parameters(), lr=1e-3), fit | {"metrics": ["accuracy", "top_k(3)"]}


@case
def sparse_rows_of_a_table(dtype):
    model = cl.Model([cl.Embedding(500, 4, sparse=True), cl.Flatten(), cl.Linear(12, 3)], seed=0, dtype=dtype)
    fit = {"x": labels(50, 500, shape=(3,)), "y": labels(50), "loss": cl.SoftmaxLoss(), "batch_size": 8, "epochs": 14}
    return model, cl.Adam(model.parameters(), lr=0.01), fit | {"clip_norm": 0.5}


@case
def sparse_inputs(dtype):
    import scipy.sparse

    x = scipy.sparse.random(60, 300, 0.02, "csr", rng=np.random.default_rng(0))
    model = cl.Model([cl.Linear(300, 8), cl.ELU(), cl.Linear(8, 2)], seed=0, dtype=dtype)
    fit = {"x": x, "y": labels(60, 2), "loss": cl.HingeLoss(), "batch_size": 14, "epochs": 20}
    return model, cl.SGD(model.parameters(), lr=0.1, momentum=0.9), fit


@case
def branches_and_penalties(dtype):
    model = cl.Model([cl.Residual(cl.Model([cl.Linear(6, 6), cl.GELU()])), cl.LayerNorm(6)], seed=0, dtype=dtype)
    model.add(cl.Parallel([cl.Linear(6, 2), cl.Linear(6, 3)]))
    loss = cl.Penalized(cl.HuberLoss(0.5), model.parameters(), l1=1e-3, l2=1e-2)
    fit = {"x": rows(40, 6), "y": rows(40, 5, seed=2), "loss": loss, "batch_size": 9, "epochs": 20}
    model.parameters()[1].requires_grad = False
    return model, cl.Adagrad(model.parameters(), lr=0.05), fit


@case
def large(dtype):
    """Gradients that are added up where they lie."""
    model = cl.MLP(60, [100, 3], cl.Tanh, seed=0, dtype=dtype)
    fit = {"x": rows(64, 60), "y": labels(64), "loss": cl.SoftmaxLoss(0.1), "batch_size": 20, "epochs": 25}
    return model, cl.SGD(model.parameters(), lr=0.05), fit


@case
def called_back(dtype):
    """A user's Function, loss, weights, optimizer and metric; batches of an iterable, made in Python."""
    model = cl.Model([cl.Linear(5, 8), Swish(), cl.Linear(8, 2)], seed=0, dtype=dtype)
    x, y, w = rows(43, 5).astype(dtype), rows(43, 2, seed=2).astype(dtype), (np.arange(43) % 3).astype(dtype)
    batches = [(x[i : i + 9], y[i : i + 9], w[i : i + 9]) for i in range(0, 43, 9)]
    return model, Halving(model.parameters()), {"x": batches, "loss": Cubic(), "epochs": 20, "metrics": ["mae", largest]}


@case
def augmented(dtype):
    """A transform, in a thread ahead."""
    model = cl.Model([cl.Flatten(), cl.Linear(36, 5), cl.Softplus(), cl.Linear(5, 3)], seed=0, dtype=dtype)
    x, shift = rows(50, 1, 6, 6), cl.augment.shift(1)
    batches = cl.Prefetch(cl.DataGenerator(x, labels(50), batch_size=15, transform=shift, seed=3))
    return model, cl.SGD(model.parameters(), lr=0.05), {"x": batches, "loss": cl.SoftmaxLoss(), "epochs": 25}


def trained(name, dtype, shared):
    """All that a training has in the end, by name."""
    model, optimizer, fit = CASES[name](dtype)
    started = time.perf_counter()
    history = model.fit(optimizer=mpi.DataParallel(optimizer) if shared else optimizer, verbose=0, **fit)
    seconds = time.perf_counter() - started
    arrays = model.state_dict() | {f"history {name}": np.array(values) for name, values in history.items()}
    return arrays, seconds


def main():
    from mpi4py import MPI

    cl.set_num_threads(1)
    world = MPI.COMM_WORLD
    names, found = sys.argv[1:] or list(CASES), {}
    for name in names:
        for dtype in (np.float64, np.float32):
            together, seconds = trained(name, dtype, shared=True)
            content = b"".join(np.ascontiguousarray(x).tobytes() for x in together.values())
            alike = len(set(world.allgather(content))) == 1
            if world.rank == 0:
                alone, seconds_alone = trained(name, dtype, shared=False)
                apart = {of: float(np.abs(alone[of].astype(float) - x).max()) for of, x in together.items()}
                worst = max(apart, key=lambda of: apart[of])
                found[f"{name} {np.dtype(dtype)}"] = [apart[worst], worst, alike, seconds, seconds_alone]
            world.barrier()
    if world.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
