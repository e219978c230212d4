"""What test_mpi.py has several ranks do: `mpirun -n 3 python tests/tools/mpi_programs.py WHAT …`.

compare EPOCHS     train each case as one process alone, and as all ranks together, from the same beginning. Rank 0
                   prints, as JSON, by how much parameters, buffers and histories are off at most, and where. For
                   one or two epochs, nearly all are in float64 alone
check FOLDER       what all ranks do together and what all raise
train PATH SECONDS a training that goes on from its checkpoint
fail HOW WHEN RANK one rank fails before, between or after trainings, while others train, end or have other things to do
HOW RANK           a training in which one rank ends: raise, catch, exit, kill, leave; step, which is by hand;
                   late, while others are in a training before it
"""

import contextlib
import io
import json
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from unittest import mock

import numpy as np

import caffelite as cl
from caffelite import mpi
from caffelite.distributed import allreduce, stop_signal
from caffelite.training.callbacks.resume import CheckpointFile
from caffelite.training.epochs import in_memory

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
        with np.errstate(invalid="ignore"):
            return np.asarray((self.w * (np.abs(self.d) ** 3).mean(axis=1)).sum() / self.of, scores.dtype)

    def backward(self, dy=1.0):
        with np.errstate(invalid="ignore"):
            return (dy * 3 * self.d * np.abs(self.d) * self.w[:, None] / self.d.shape[1] / self.of).astype(self.d.dtype)


class Halving(cl.Optimizer):
    """A user's optimizer."""

    def step(self):
        for p in self.parameters:
            p.data = p.data - 0.05 * p.grad


def largest(outputs, targets):
    """Return a metric of a user's."""
    return float(np.mean(np.abs(outputs).max(axis=1)))


@case
def dense(dtype):
    """Uneven shares, and a last batch that is short."""
    model = cl.MLP(8, [16, 3], cl.Tanh, seed=0, dtype=dtype)
    optimizer = cl.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    fit = {"x": rows(101, 8), "y": labels(101), "loss": cl.SoftmaxLoss(), "batch_size": 20, "epochs": 17}
    return model, optimizer, fit | {"metrics": ["accuracy", "f1", largest], "validation_split": 0.2}


@case
def fewer_rows_than_ranks(dtype):
    """Batches of two rows, and a last one of one."""
    model = cl.MLP(4, [6, 2], cl.Sigmoid, seed=0, dtype=dtype)
    fit = {"x": rows(31, 4), "y": rows(31, 2, seed=2), "loss": cl.MSELoss(), "batch_size": 2, "epochs": 7}
    return model, cl.Adam(model.parameters(), lr=0.01), fit | {"metrics": ["r2"]}


@case
def zero_weights(dtype):
    """Weights of which many are 0, so that whole shares and whole batches weigh nothing; clipped; groups."""
    model = cl.MLP(5, [12, 1], cl.SiLU, seed=0, dtype=dtype)
    first, others = model.parameters()[:2], model.parameters()[2:]
    rate = cl.schedules.cosine(0.02, 120, warmup=5)
    optimizer = cl.AdamW([{"parameters": first, "lr": rate}, {"parameters": others, "lr": 0.01}])
    weights = np.where(np.arange(90) % 7 < 5, 0, rows(90, seed=3) ** 2)
    weights[20:40] = 0
    fit = {"x": rows(90, 5), "y": labels(90, 2), "loss": cl.SigmoidLoss(), "batch_size": 6, "epochs": 8}
    return model, optimizer, fit | {"sample_weight": weights, "shuffle": False, "clip_norm": 0.3}


@case
def convolutional(dtype):
    """BatchNorm of images and of features, Dropout of both."""
    model = cl.Model([cl.Conv2d(1, 4, 3, bias=False), cl.BatchNorm(4), cl.ReLU(), cl.MaxPool2d(2)], seed=0, dtype=dtype)
    for f in (
        cl.Dropout(0.3),
        cl.Flatten(),
        cl.Linear(36, 10, bias=False),
        cl.BatchNorm(10),
        cl.Tanh(),
        cl.Dropout(0.2),
    ):
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
def moments_of_rows_that_weigh_nothing(dtype):
    """Whole shares weigh nothing: what is before BatchNorm has a gradient there all the same."""
    model = cl.Model([cl.Linear(4, 5, bias=False), cl.BatchNorm(5), cl.Tanh(), cl.Linear(5, 3)], seed=0, dtype=dtype)
    y = np.where(np.arange(60) % 12 < 6, -1, labels(60))
    fit = {"x": rows(60, 4), "y": y, "loss": cl.SoftmaxLoss(ignore=-1), "batch_size": 12, "epochs": 12}
    return model, cl.SGD(model.parameters(), lr=0.1), fit | {"shuffle": False}


@case
def not_a_number_of_rows_that_weigh_nothing(dtype):
    """Return the same of a user's loss, which divides 0 by 0 there."""
    model, optimizer, fit = moments_of_rows_that_weigh_nothing(dtype)
    weights, loss = 1.0 * (fit["y"] >= 0), cl.Penalized(Cubic(), model.parameters(), l2=0.01)
    fit |= {"y": rows(60, 3, seed=2), "loss": loss, "sample_weight": weights}
    return model, optimizer, fit | {"validation_data": (rows(24, 4), rows(24, 3), weights[:24])}


@case
def recurrent(dtype):
    """Rows of different lengths."""
    model = Recurrent(0, dtype)
    lengths = np.random.default_rng(4).integers(1, 8, 61)
    fit = {"x": (rows(61, 7, 4), lengths), "y": labels(61), "loss": cl.SoftmaxLoss(), "batch_size": 16, "epochs": 25}
    return model, cl.RMSProp(model.parameters(), lr=1e-3, momentum=0.5), fit


@case
def cut_rows(dtype):
    """Batches of rows of similar length, cut to their longest; a short last batch; a metric of the epoch."""
    model = cl.Model([cl.Embedding(11, 6), cl.GRU(6, 6, sequences=True), cl.Linear(6, 4)], seed=0, dtype=dtype)
    x, y, lengths = labels(61, 11, shape=(9,)), labels(61, 4, shape=(9,)), np.random.default_rng(4).integers(1, 10, 61)
    y[np.arange(9) >= lengths[:, None]] = -1
    fit = {"x": x, "y": y, "loss": cl.SoftmaxLoss(ignore=-1), "batch_size": 8, "epochs": 12, "lengths": lengths}
    return model, cl.Adam(model.parameters(), lr=0.01), fit | {"metrics": ["accuracy", "f1"], "validation_split": 0.2}


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
    return model, cl.Adagrad(model.parameters(), lr=0.01), fit


@case
def large(dtype):
    """Return a gradient that takes more than a message."""
    model = cl.MLP(60, [100, 3], cl.Tanh, seed=0, dtype=dtype)
    fit = {"x": rows(64, 60), "y": labels(64), "loss": cl.SoftmaxLoss(0.1), "batch_size": 20, "epochs": 25}
    return model, cl.SGD(model.parameters(), lr=0.05), fit


@case
def user_code(dtype):
    """Return a user's Function, loss, weights, optimizer and metric; batches of an iterable, made in Python."""
    model = cl.Model([cl.Linear(5, 8), Swish(), cl.Linear(8, 2)], seed=0, dtype=dtype)
    x, y, w = rows(43, 5).astype(dtype), rows(43, 2, seed=2).astype(dtype), (np.arange(43) % 3).astype(dtype)
    batches = [(x[i : i + 9], y[i : i + 9], w[i : i + 9]) for i in range(0, 43, 9)]
    return (
        model,
        Halving(model.parameters()),
        {"x": batches, "loss": Cubic(), "epochs": 20, "metrics": ["mae", largest]},
    )


@case
def augmentation(dtype):
    """Return a transform, in a thread ahead."""
    model = cl.Model([cl.Flatten(), cl.Linear(36, 5), cl.Softplus(), cl.Linear(5, 3)], seed=0, dtype=dtype)
    x, shift = rows(50, 1, 6, 6), cl.augment.shift(1)
    batches = cl.Prefetch(cl.DataGenerator(x, labels(50), batch_size=15, transform=shift, seed=3))
    return model, cl.SGD(model.parameters(), lr=0.05), {"x": batches, "loss": cl.SoftmaxLoss(), "epochs": 25}


class TwoHeads(cl.Model):
    """Scores at two places, and a number."""

    def __init__(self, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.body, self.scores, self.number = cl.Linear(5, 8), cl.Linear(8, 6), cl.Linear(8, 1)

    def call(self, x):
        h = self.body(x).tanh()
        return self.scores(h).reshape(-1, 2, 3), self.number(h)


@case
def several_targets(dtype):
    """Labels of which many count nowhere, so that the losses weigh the ranks differently; and numbers."""
    model, places = TwoHeads(dtype), labels(70, shape=(2,))
    places[np.arange(70) % 10 > 3] = -1
    loss = cl.Losses([cl.SoftmaxLoss(ignore=-1), cl.HuberLoss()], weights=[0.5, 2.0])
    fit = {"x": rows(70, 5), "y": (places, rows(70, seed=2)), "loss": loss, "batch_size": 20, "epochs": 17}
    return model, cl.Adam(model.parameters(), lr=0.01), fit | {"metrics": (["accuracy"], ["mae"])}


@case
def several_weighted_targets(dtype):
    """Rows that weigh nothing, a user's loss; batches of an iterable."""
    model, places = TwoHeads(dtype), labels(43, shape=(2,))
    x, y, w = rows(43, 5).astype(dtype), rows(43, 1, seed=2).astype(dtype), (np.arange(43) % 9 > 5).astype(dtype)
    batches = [(x[i : i + 9], (places[i : i + 9], y[i : i + 9]), w[i : i + 9]) for i in range(0, 43, 9)]
    fit = {"x": batches, "loss": (cl.SoftmaxLoss(), Cubic()), "epochs": 20, "metrics": ([], ["mae", largest])}
    return model, cl.SGD(model.parameters(), lr=0.05), fit


def train_case(name, dtype, shared, epochs):
    """All that a training of a case has in the end, by name."""
    model, optimizer, fit = CASES[name](dtype)
    fit["epochs"] = min(fit["epochs"], epochs)
    history = model.fit(optimizer=mpi.DataParallel(optimizer) if shared else optimizer, verbose=0, **fit)
    return model.state_dict() | {f"history {name}": np.array(values) for name, values in history.items()}


def content(arrays):
    return b"".join(np.ascontiguousarray(x).tobytes() for x in arrays.values())


def compare(epochs):
    """For each case, by how much ranks together are off one alone, and where."""
    found = {}
    allreduce.SMALL_SIZE, allreduce.LARGE_SIZE = 40, 150  # so gradients go all ways there are
    for name in CASES:
        for dtype in (np.float64, np.float32) if epochs > 2 or name in ("dense", "large") else (np.float64,):
            shared = train_case(name, dtype, True, epochs)
            assert len(set(WORLD.allgather(content(shared)))) == 1, f"{name}: ranks have other bits"
            if WORLD.rank == 0:
                alone = train_case(name, dtype, False, epochs)
                off = {
                    of: float((np.abs(alone[of].astype(float) - x) / np.maximum(1, np.abs(x))).max())
                    for of, x in shared.items()
                }
                worst = max(off, key=lambda of: off[of])
                found[f"{name} {np.dtype(dtype)}"] = [off[worst], worst]
            WORLD.barrier()
    if WORLD.rank == 0:
        print(json.dumps(found))


# ---- what all ranks do, step by step ----

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


class Raises:
    """Inside, every rank raises this."""

    def __init__(self, kind, *words):
        self.kind, self.words = kind, words

    def __enter__(self):
        pass

    def __exit__(self, kind, error, traceback):
        assert isinstance(error, self.kind), f"expected {self.kind.__name__}, got {error!r}"
        assert all(word in str(error) for word in self.words), f"{self.words} are not in {error}"
        return True


def small(seed=0):
    model = cl.MLP(4, [5, 3], cl.Tanh, seed=seed, dtype=np.float64)
    return model, mpi.DataParallel(cl.SGD(model.parameters(), lr=0.05, momentum=0.9))


FIT = {"loss": cl.SoftmaxLoss(), "verbose": 0}


@check
def what_is_wrapped_is_an_optimizer_once(folder):
    model, optimizer = small()
    with Raises(TypeError, "is a DataParallel already"):
        mpi.DataParallel(optimizer)
    with Raises(TypeError, "takes an Optimizer"):
        mpi.DataParallel(model)
    with Raises(TypeError, "expected an Optimizer", "DataParallel"):
        cl.find_lr(model, rows(9, 4), labels(9), loss=cl.SoftmaxLoss(), optimizer=optimizer)
    with Raises(TypeError, "expected an Optimizer", "DataParallel"):
        cl.fit_many([model], rows(9, 4), labels(9), loss=cl.SoftmaxLoss(), optimizers=[optimizer])


@check
def attributes_and_states_are_the_optimizers_own(folder):
    _, optimizer = small()
    optimizer.lr = 0.5
    assert optimizer.optimizer.lr == optimizer.lr == optimizer.groups[0]["lr"] == 0.5
    assert optimizer.rank == WORLD.rank
    state = optimizer.state_dict()
    optimizer.load_state_dict(state | {"lr": 0.25})
    assert optimizer.optimizer.lr == 0.25
    assert "SGD" in repr(optimizer)
    assert pickle.loads(pickle.dumps(optimizer)).lr == 0.25


@check
def by_hand_the_gradient_is_the_mean_over_ranks(folder):
    model, optimizer = small()
    n, loss = 4, cl.SoftmaxLoss()
    x, y = rows(n * WORLD.size, 4), labels(n * WORLD.size)
    mine = slice(n * WORLD.rank, n * (WORLD.rank + 1))

    def step(x, y):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return value

    program = cl.capture(step, x[mine], y[mine])
    for _ in range(3):
        program(x[mine], y[mine])
    other, whole = small()
    for _ in range(4):
        whole.zero_grad()
        loss(other(x), y).backward()
        whole.optimizer.step()
    assert (
        max(np.abs(p.data - q.data).max() for p, q in zip(model.parameters(), other.parameters(), strict=True)) < 1e-14
    )


@check
def without_seeds_all_begin_as_rank_0_does(folder):
    model = cl.Model([cl.Linear(4, 5), cl.Dropout(0.5), cl.Linear(5, 3)])
    optimizer = mpi.DataParallel(cl.Adam(model.parameters()))
    shift = cl.augment.shift(1)
    model.fit(rows(30, 4), labels(30), optimizer=optimizer, epochs=2, batch_size=7, validation_split=0.3, **FIT)
    data = cl.DataGenerator(rows(30, 4), labels(30), batch_size=8)
    model.fit(data, optimizer=optimizer, epochs=2, **FIT)
    assert len(set(WORLD.allgather(content(model.state_dict())))) == 1
    images = cl.Model([cl.Flatten(), cl.Linear(16, 3)])
    data = cl.DataGenerator(rows(20, 1, 4, 4), labels(20), batch_size=8, transform=shift)
    for batches in (data, cl.Prefetch(cl.DataGenerator(rows(20, 1, 4, 4), labels(20), batch_size=8))):
        images.fit(batches, optimizer=mpi.DataParallel(cl.Adam(images.parameters())), epochs=2, **FIT)
        assert len(set(WORLD.allgather(content(images.state_dict())))) == 1


@check
def ranks_that_differ_are_named(folder):
    last, off = WORLD.size - 1, float(WORLD.rank == WORLD.size - 1)
    model, optimizer = small()
    x, y, named = rows(30, 4), labels(30), (RuntimeError, f"rank {last}")
    with Raises(*named, "its data"):
        model.fit(x + off, y, optimizer=optimizer, **FIT)
    with Raises(*named, "number of rows", "29"):
        model.fit(x[: 30 - int(off)], y[: 30 - int(off)], optimizer=optimizer, **FIT)
    with Raises(*named, "number of epochs"):
        model.fit(x, y, optimizer=optimizer, epochs=1 + int(off), **FIT)
    with Raises(*named, "validation data"):
        model.fit(x, y, optimizer=optimizer, validation_data=(x + off, y), **FIT)
    with Raises(*named, "number of rows in the batch"):
        model.fit([(x[: 9 - int(off)], y[: 9 - int(off)])], optimizer=optimizer, **FIT)
    with Raises(*named, "batch 2", "checksum"):
        model.fit([(x, y), (x + off, y)], optimizer=optimizer, **FIT)
    with Raises(*named, "epoch 1, batch 2"):
        model.fit([(x, y)] * (2 - int(off)), optimizer=optimizer, **FIT)
    with Raises(*named, "epoch 2", "drifted"):
        model.fit(x, y, optimizer=optimizer, epochs=3, callbacks=[lambda e, h: drift(model, off)], **FIT)
    with Raises(*named, "epoch 2", "frozen"):
        model.fit(x, y, optimizer=optimizer, epochs=3, callbacks=[lambda e, h: freeze(model, off and e)], **FIT)
    model.requires_grad = True
    other = cl.MLP(4, [5 + int(off), 3], cl.Tanh, seed=0)
    with Raises(*named, "its model"):
        other.fit(x, y, optimizer=mpi.DataParallel(cl.SGD(other.parameters(), lr=0.1)), **FIT)


def drift(model, off):
    model.parameters()[0].data[0, 0] += off


def freeze(model, off):
    if off:
        model.parameters()[0].requires_grad = False


@check
def all_raise_the_same(folder):
    model, optimizer = small()
    before = content(model.state_dict())
    for bad in (np.nan, np.inf):
        x = rows(30, 4)
        x[25, 2] = bad
        with Raises(cl.TrainingDiverged, "epoch 1, batch 1", "x is not finite in 1 of 30 rows"):
            model.fit(x, labels(30), optimizer=optimizer, batch_size=30, **FIT)
        assert content(model.state_dict()) == before
    with Raises(ValueError, "label 3 in row 7"):
        model.fit(rows(30, 4), np.where(np.arange(30) == 7, 3, 0), optimizer=optimizer, **FIT)
    with Raises(ValueError, "there is no mean"):
        loss = cl.SoftmaxLoss(ignore=0)
        model.fit(rows(30, 4), np.zeros(30, int), optimizer=optimizer, loss=loss, verbose=0)
    with Raises(FileNotFoundError):
        model.fit(rows(30, 4), labels(30), optimizer=optimizer, resume=f"{folder}/none", **FIT)


@check
def who_ends_the_training_on_one_rank_ends_it_on_all(folder):
    model, optimizer = small()
    one = WORLD.size - 1
    stop = lambda epoch, history: WORLD.rank == one and epoch == 3  # noqa: E731
    history = model.fit(rows(30, 4), labels(30), optimizer=optimizer, epochs=50, callbacks=[stop], **FIT)
    assert history.epochs == 4


@check
def a_ctrl_c_on_one_rank_is_one_on_all_after_the_same_step(folder):
    model, optimizer = small()

    def interrupt_last_rank(epoch, history):
        if epoch == 3 and WORLD.rank == WORLD.size - 1:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    interrupt_last_rank.due = lambda epochs: 4 if epochs < 4 else np.inf  # then epochs are replayed in one go
    with Raises(KeyboardInterrupt):
        model.fit(rows(40, 4), labels(40), optimizer=optimizer, epochs=10**6, callbacks=[interrupt_last_rank], **FIT)
    with Raises(KeyboardInterrupt):
        soon = lambda epoch, history: epoch == 3 and WORLD.rank == 0 and os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
        model.fit(rows(40, 4), labels(40), optimizer=optimizer, epochs=10**6, callbacks=[soon], **FIT)
    assert len(set(WORLD.allgather(content(model.state_dict())))) == 1


class Leaving:
    """Ends the training with an exception at some time between steps, the same on all ranks."""

    def __init__(self, times):
        self.times = times

    def __call__(self, epoch, history):
        pass

    def between_steps(self):
        self.times -= 1
        if self.times == 0:
            raise InterruptedError


def resumable(folder, shared, callbacks=(), resume=None):
    """Return a training with rows kept for a metric of the epoch; alone, or on all ranks."""
    model = cl.Model([cl.Linear(4, 6), cl.BatchNorm(6), cl.Tanh(), cl.Dropout(0.2), cl.Linear(6, 3)], seed=0)
    model = cl.Model(model.functions, dtype=np.float64, seed=1)
    optimizer = cl.SGD(model.parameters(), lr=cl.schedules.cosine(0.1, 40), momentum=0.9)
    callbacks = [cl.callbacks.EarlyStopping(patience=50), *callbacks]
    history = model.fit(
        *(rows(50, 4), labels(50)),
        optimizer=mpi.DataParallel(optimizer) if shared else optimizer,
        **FIT | {"epochs": 8, "batch_size": 11, "metrics": ["f1", "accuracy"], "validation_split": 0.2},
        callbacks=callbacks,
        resume=resume,
    )
    return model.state_dict() | {name: np.array(values) for name, values in history.items()}


@check
def a_checkpoint_is_one_processs_and_goes_on_on_any_number_of_ranks(folder):
    in_memory.REPLAY_SECONDS, stop_signal.REPLAY_SECONDS = (
        1e-4,
        0.0,
    )  # so they stop in the midst of epochs, small as they are
    alone = resumable(folder, shared=False)
    parts = [f"{folder}/alone-{WORLD.rank}", f"{folder}/together"]
    for written, path in enumerate(parts):
        with Raises(InterruptedError):
            resumable(folder, bool(written), [cl.callbacks.Checkpoint(path, seconds=0), Leaving(6)])
        WORLD.barrier()
        if written:
            assert CheckpointFile(path).text["done"] == {"epoch": 1, "batch": 2}
        for shared in (False, True):
            found = resumable(folder, shared, resume=parts[1] if written else f"{folder}/alone-0")
            # The bias before BatchNorm has no gradient but what is left of rounding.
            off = {name: np.abs(alone[name] - x).max() for name, x in found.items() if name not in ("0.bias", "1.mean")}
            assert max(off.values()) < 1e-12, off
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]


@check
def rank_0_alone_writes_and_speaks(folder):
    model, optimizer = small()
    log = cl.callbacks.CSVLog(f"{folder}/log-{WORLD.rank}.csv")
    fit = FIT | {"verbose": 2}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        model.fit(rows(20, 4), labels(20), optimizer=optimizer, epochs=3, callbacks=[log], **fit)
    WORLD.barrier()
    assert sorted(name for name in os.listdir(folder) if name.endswith(".csv")) == ["log-0.csv"]
    assert len(said.getvalue().splitlines()) == (3 if WORLD.rank == 0 else 0)


@check
def one_thread_trains_at_a_time(folder):
    """Another one's messages would be taken for its own."""
    model, optimizer = small()

    def another(epoch, history):
        thread = threading.Thread(target=fit_on_thread)
        thread.start()
        thread.join()

    def fit_on_thread():
        with Raises(RuntimeError, "another thread"):
            model.fit(rows(20, 4), labels(20), optimizer=small()[1], **FIT)

    assert model.fit(rows(20, 4), labels(20), optimizer=optimizer, callbacks=[another], **FIT).epochs == 1


class Refusing(cl.Function):
    """Raises in its third `backward`, when the gradients of what comes after it are being added up."""

    def __init__(self, calls):
        self.calls = calls

    def forward(self, x):
        return x.copy()

    def backward(self, dy):
        self.calls += 1
        if self.calls[0] == 3:
            raise ArithmeticError("in the midst of a step")
        return dy.copy()


@check
def sums_that_were_begun_are_finished_when_a_training_is_left(folder):
    model = cl.Model([cl.Linear(4, 300), Refusing(np.zeros(1)), cl.Linear(300, 300), cl.Linear(300, 3)], seed=0)
    optimizer = mpi.DataParallel(cl.SGD(model.parameters(), lr=0.05))
    with Raises(ArithmeticError, "in the midst"):
        model.fit(rows(30, 4), labels(30), optimizer=optimizer, epochs=5, batch_size=30, **FIT)
    gradient = model.parameters()[2].grad
    gradient[...] = 7
    WORLD.barrier()
    time.sleep(2 * mpi.POLL_INTERVAL)
    WORLD.barrier()
    assert (gradient == 7).all()


@check
def a_caught_exit_and_an_exception_in_a_thread_end_no_rank(folder):
    small()
    with Raises(SystemExit, "3"):
        sys.exit(3)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for target in (fail_by, sys.exit):
            thread = threading.Thread(target=target, args=("raise",))
            thread.start()
            thread.join()
    assert said.getvalue().count("Traceback") == 1
    WORLD.barrier()


@check
def rank_0_warns_if_the_mpi_has_no_thread_for_looking(folder):
    ranks = mpi.MPICommunicator(WORLD)
    with (
        mock.patch.object(mpi.MPI, "Query_thread", return_value=mpi.MPI.THREAD_SERIALIZED),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        ranks.connect()
    assert [each.category for each in said] == [cl.TrainingWarning] * (WORLD.rank == 0)
    assert all("MPI_THREAD_MULTIPLE" in str(each.message) for each in said)


@check
def rank_0_alone_may_be_asked_to_speak(folder):
    model, optimizer = small()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        verbose = 2 if WORLD.rank == 0 else 0  # for which rank 0 stops after each epoch, and others need not
        model.fit(rows(20, 4), labels(20), loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=30, verbose=verbose)
    assert len(said.getvalue().splitlines()) == (30 if WORLD.rank == 0 else 0)


def train(path, seconds):
    """Run a training that goes on from its checkpoint if it is there; it takes so many seconds at least."""
    resume = path if os.path.exists(path) else None
    wait = lambda epoch, history: time.sleep(seconds / 8)  # noqa: E731
    found = resumable("", True, [cl.callbacks.Checkpoint(path, seconds=0.01), wait], resume)
    if WORLD.rank == 0:
        print("end", json.dumps({name: x.tolist() for name, x in found.items()}))


# ---- how a training ends where one rank ends ----


class Dawdling:
    """Is late with the end of a training on rank 0."""

    def __call__(self, epoch, history):
        pass

    def end(self):
        time.sleep(1 if WORLD.rank == 0 else 0)


class RankDependentNet(cl.Model):
    """A model that has another layer on one rank, whose gradient is large enough to be sent by itself."""

    def __init__(self, who):
        super().__init__(seed=0)
        self.first, self.more, self.last = cl.Linear(4, 300), cl.Linear(300, 300, bias=False), cl.Linear(300, 3)
        self.is_there = who == WORLD.rank

    def call(self, x):
        x = self.first(x)
        return self.last(self.more(x) if self.is_there else x)


class Failing(cl.Function):
    """Fails in its `forward`."""

    def __init__(self, how):
        self.how = how

    def forward(self, x):
        fail_by(self.how)
        return x

    def backward(self, dy):
        return dy


def fail_by(how):
    if how == "raise":
        raise ZeroDivisionError("for some reason")
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "end":
        sys.exit()


def fail(how, when, who):
    """Have one rank, `who`, fail outside of trainings, while others go on."""
    x, y = rows(40, 4), labels(40)
    is_here = WORLD.rank == who
    if when == "before" and is_here:
        fail_by(how)
    model, optimizer = small()
    if when == "made" and is_here:
        fail_by(how)
    model.fit(x, y, optimizer=optimizer, **FIT)
    if when == "between" and is_here:
        fail_by(how)
    if when in ("predict", "evaluate"):
        if not is_here:
            time.sleep(120)
        failing = cl.Model([cl.Linear(4, 3), Failing(how)])
        failing.predict(x) if when == "predict" else failing.evaluate(x, y, loss=cl.SoftmaxLoss())
    model.fit(x, y, optimizer=optimizer, **FIT)
    if is_here:
        fail_by(how)


def end(how, who):
    """Train until something happens on one rank, `who`."""
    model, optimizer = small()
    if how == "standstill":
        cl.mpi.DEADLOCK_TIMEOUT = 2.0
        model = RankDependentNet(who)
        optimizer = cl.mpi.DataParallel(cl.SGD(model.parameters(), lr=0.1))

    def happen(epoch, history):
        if epoch != 5 or WORLD.rank != who:
            return
        if how in ("raise", "catch"):
            raise ZeroDivisionError("for some reason")
        if how == "exit":
            sys.exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    if how == "late":
        model.fit(rows(40, 4), labels(40), optimizer=optimizer, callbacks=[Dawdling()], **FIT)
    if how in ("leave", "step", "late") and WORLD.rank == who:
        return
    if how == "step":
        cl.SoftmaxLoss()(model(rows(40, 4)), labels(40)).backward()
        optimizer.step()
    try:
        model.fit(rows(40, 4), labels(40), optimizer=optimizer, epochs=10**6, callbacks=[happen], **FIT)
    except ZeroDivisionError:
        if how != "catch":
            raise


if __name__ == "__main__":
    from mpi4py import MPI

    WORLD = MPI.COMM_WORLD
    cl.set_num_threads(1)
    what, *options = sys.argv[1:]
    if what == "compare":
        compare(int(options[0]))
    elif what == "check":
        for each in CHECKS:
            each(options[0])
            WORLD.barrier()
        if WORLD.rank == 0:
            print(f"{len(CHECKS)} checks")
    elif what == "train":
        train(options[0], float(options[1]))
    elif what == "fail":
        fail(options[0], options[1], int(options[2]))
    else:
        end(what, int(options[0]))
