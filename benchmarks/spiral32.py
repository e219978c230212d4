"""Small networks: what a training step costs beyond its arithmetic.

Steps per second on the spiral, 2-100-3, batch 32, SGD with momentum and weight decay: caffelite, PyTorch eager,
scikit-learn's MLPClassifier, NumPy written by hand, and JAX, side by side in one run.

    python benchmarks/spiral32.py            # the peers are the extra `bench`; those not installed are left out
    python benchmarks/spiral32.py --quick    # only to see that it works

Every contestant has its own process, all of them pinned to the same core, one working at a time. They start from the
same weights, take the same batches (the last of an epoch is short) and make the same updates: their loss curves are
compared before anything is timed, and a disagreement ends the run. Then come rounds, each of which times every
contestant once, so that a machine that is busy for a while is busy for all.

caffelite is timed through `Model.fit` as a user calls it, its loss history included. The peers are timed without
recording losses, with tensors sliced and no data loader, PyTorch with its fused SGD, JAX with donation, compiled for a
step and for an epoch.
"""

import argparse
import warnings
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import harness
import numpy as np

BATCH, LR, MOMENTUM, DECAY, SEED = 32, 0.1, 0.9, 1e-4, 0


@dataclass
class Task:
    x: np.ndarray  # (300, 2) float32
    y: np.ndarray  # (300,) int64
    weights: list[np.ndarray]  # W1 (2, 100), b1 (100,), W2 (100, 3), b2 (3,)
    orders: list[np.ndarray]  # the rows' order in each epoch, the one that `fit` takes

    def batches(self, order):
        return [order[i : i + BATCH] for i in range(0, len(order), BATCH)]


def spiral(epochs):
    import caffelite as cl

    x, y = cl.datasets.spiral(points_per_class=100, classes=3, seed=SEED)
    model = cl.Model([cl.Linear(2, 100), cl.ReLU(), cl.Linear(100, 3)], seed=SEED)
    rows = cl.DataGenerator(np.arange(len(x)), batch_size=len(x), seed=SEED)
    orders = [order for _ in range(epochs) for order in rows]
    return Task(x, y, [p.data.copy() for p in model.parameters()], orders)


# ---- the contestants: each prepares, and returns train(epochs, record) -> (seconds, losses) -------------------------


def caffelite(task):
    import caffelite as cl

    def train(epochs, record):
        model = cl.Model([cl.Linear(2, 100), cl.ReLU(), cl.Linear(100, 3)])
        for p, values in zip(model.parameters(), task.weights, strict=True):
            p.data = values
        optimizer = cl.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
        loss = cl.SoftmaxLoss()
        start = perf_counter()
        history = model.fit(
            task.x, task.y, loss=loss, optimizer=optimizer, epochs=epochs, batch_size=BATCH, seed=SEED, verbose=0
        )
        return perf_counter() - start, history["loss"]

    return train


def pytorch(task):
    import torch

    torch.set_num_threads(1)
    x, y = torch.from_numpy(task.x), torch.from_numpy(task.y)

    def train(epochs, record):
        model = torch.nn.Sequential(torch.nn.Linear(2, 100), torch.nn.ReLU(), torch.nn.Linear(100, 3))
        with torch.no_grad():
            for p, values in zip(model.parameters(), task.weights, strict=True):
                p.copy_(torch.from_numpy(values.T))
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True)
        cross_entropy = torch.nn.CrossEntropyLoss()
        losses = np.zeros(epochs)
        start = perf_counter()
        for epoch, order in enumerate(task.orders[:epochs]):
            order = torch.from_numpy(order)
            xs, ys = x[order], y[order]
            for i in range(0, len(xs), BATCH):
                xb, yb = xs[i : i + BATCH], ys[i : i + BATCH]
                optimizer.zero_grad()
                loss = cross_entropy(model(xb), yb)
                loss.backward()
                optimizer.step()
                if record:
                    losses[epoch] += loss.item() * len(xb) / len(xs)
        return perf_counter() - start, losses

    return train


def scikit_learn(task):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    warnings.simplefilter("ignore", ConvergenceWarning)  # it wants to go on until it has converged

    def train(epochs, record):
        classifier = MLPClassifier(
            [100], solver="sgd", learning_rate_init=LR, momentum=MOMENTUM, nesterovs_momentum=False, batch_size=BATCH,
            alpha=DECAY * BATCH, max_iter=1, tol=0, n_iter_no_change=10**9, random_state=SEED, warm_start=True,
        )  # fmt: skip
        classifier.fit(task.x, task.y)
        W1, b1, W2, b2 = [values.copy() for values in task.weights]
        classifier.coefs_, classifier.intercepts_ = [W1, W2], [b1, b2]
        classifier.set_params(max_iter=epochs)
        start = perf_counter()
        classifier.fit(task.x, task.y)
        return perf_counter() - start, np.array(classifier.loss_curve_[1:])

    return train


def numpy_by_hand(task):
    """All arrays are made beforehand, and parameters, gradients and velocities are one vector each."""
    sizes = np.cumsum([values.size for values in task.weights])
    w, g, v, step = np.zeros((4, sizes[-1]), np.float32)

    def views(vector):
        return [part.reshape(p.shape) for part, p in zip(np.split(vector, sizes[:-1]), task.weights, strict=True)]

    (W1, b1, W2, b2), (dW1, db1, dW2, db2) = views(w), views(g)
    onehot = np.eye(3, dtype=np.float32)[task.y]
    xs, ys = np.empty_like(task.x), np.empty_like(onehot)
    memory = [np.empty((BATCH, width), np.float32) for width in (100, 3, 1, 100)]
    matmul, add, subtract, multiply, divide = np.matmul, np.add, np.subtract, np.multiply, np.divide

    def train(epochs, record):
        w[:], v[:] = np.concatenate([values.ravel() for values in task.weights]), 0
        losses = np.zeros(epochs)
        start = perf_counter()
        for epoch, order in enumerate(task.orders[:epochs]):
            np.take(task.x, order, axis=0, out=xs)
            np.take(onehot, order, axis=0, out=ys)
            for i in range(0, len(xs), BATCH):
                x, y = xs[i : i + BATCH], ys[i : i + BATCH]
                n = len(x)
                h, s, row, dh = memory if n == BATCH else [array[:n] for array in memory]

                matmul(x, W1, h)
                add(h, b1, h)
                np.maximum(h, 0, out=h)
                matmul(h, W2, s)
                add(s, b2, s)

                np.maximum.reduce(s, 1, None, row, True)
                subtract(s, row, s)
                np.exp(s, s)
                add.reduce(s, 1, None, row, True)
                divide(s, row, s)
                if record:
                    losses[epoch] -= np.log((s * y).sum(axis=1)).sum() / len(xs)
                subtract(s, y, s)
                divide(s, n, s)

                matmul(h.T, s, dW2)
                add.reduce(s, 0, None, db2)
                matmul(s, W2.T, dh)
                multiply(dh, np.sign(h, h), dh)  # h ≥ 0, so its sign is ReLU's derivative
                matmul(x.T, dh, dW1)
                add.reduce(dh, 0, None, db1)

                multiply(v, MOMENTUM, v)
                add(v, g, v)
                multiply(w, DECAY, step)
                add(v, step, v)
                multiply(v, LR, step)
                subtract(w, step, w)
        return perf_counter() - start, losses

    return train


def jax(task, scan):
    import jax
    from jax import numpy as jnp

    def loss_of(parameters, x, y):
        W1, b1, W2, b2 = parameters
        scores = jnp.maximum(x @ W1 + b1, 0) @ W2 + b2
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1).mean()

    def step(state, batch):
        w, v = state
        loss, g = jax.value_and_grad(loss_of)(w, *batch)
        v = jax.tree.map(lambda v, g, w: MOMENTUM * v + g + DECAY * w, v, g, w)
        return (jax.tree.map(lambda w, v: w - LR * v, w, v), v), loss

    @partial(jax.jit, donate_argnums=0)
    def epoch_of_steps(state, order):
        full = len(order) // BATCH * BATCH
        xs, ys = x[order], y[order]
        batches = xs[:full].reshape(-1, BATCH, 2), ys[:full].reshape(-1, BATCH)
        state, losses = jax.lax.scan(step, state, batches)
        state, last = step(state, (xs[full:], ys[full:]))
        return state, jnp.append(losses, last)

    x, y = jnp.array(task.x), jnp.array(task.y)
    one_step = jax.jit(step, donate_argnums=0)
    split = jax.jit(lambda order: [(x[rows], y[rows]) for rows in task.batches(order)])

    def train(epochs, record):
        w = [jnp.array(values) for values in task.weights]
        state = w, [jnp.zeros_like(values) for values in w]
        losses = np.zeros(epochs)
        start = perf_counter()
        for epoch, order in enumerate(task.orders[:epochs]):
            if scan:
                state, values = epoch_of_steps(state, order)
            else:
                values = []
                for batch in split(order):
                    state, value = one_step(state, batch)
                    values.append(value)
            if record:
                losses[epoch] = np.average(np.array(values), weights=[len(rows) for rows in task.batches(order)])
        jax.block_until_ready(state)
        return perf_counter() - start, losses

    return train


CONTESTANTS = {
    "caffelite": caffelite,
    "PyTorch": pytorch,
    "scikit-learn": scikit_learn,
    "NumPy by hand": numpy_by_hand,
    "JAX, jit a step": partial(jax, scan=False),
    "JAX, scan an epoch": partial(jax, scan=True),
}
DIFFERS = {"scikit-learn"}  # see the note under the table


# ---- comparing and timing -------------------------------------------------------------------------------------------


def check_agreement(curves, tolerance=1e-3):
    """Raise unless every loss curve is caffelite's, but for the rounding of float32."""
    for name, curve in curves.items():
        error = np.max(np.abs(np.divide(curve, curves["caffelite"]) - 1))
        if not error <= tolerance and name not in DIFFERS:
            raise SystemExit(f"{name}'s losses differ from caffelite's by up to {error:.1e}: {list(curve)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=300, help="epochs in each timing, of 10 steps (300)")
    parser.add_argument("--rounds", type=int, default=7, help="how often each contestant is timed (7)")
    parser.add_argument("--compared", type=int, default=20, help="epochs whose losses are compared (20)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 5 epochs: a smoke test, no measurement")
    options = parser.parse_args()
    if options.quick:
        options.epochs, options.rounds, options.compared = 5, 2, 5

    harness.use_one_thread()
    task = spiral(max(options.epochs, options.compared))
    processes, missing = {}, []
    for name, make in CONTESTANTS.items():
        process = harness.Process(make, task)
        if process.missing:
            missing.append(f"{name} (no module {process.missing})")
        else:
            processes[name] = process
    curves = {name: train(options.compared, True)[1] for name, train in processes.items()}
    check_agreement(curves)

    machine = harness.Process(harness.machine_speed)
    speeds, seconds = [], {name: [] for name in processes}
    for _ in range(options.rounds):
        speeds.append(machine())
        for name, train in processes.items():
            seconds[name].append(train(options.epochs, False)[0])
    report(task, options, curves, seconds, speeds, missing)


def report(task, options, curves, seconds, speeds, missing):
    steps = options.epochs * len(task.batches(task.orders[0]))
    medians = {name: median(times) / steps * 1e6 for name, times in seconds.items()}
    rows = []
    for name, us in medians.items():
        least, ratio, loss = min(seconds[name]) / steps * 1e6, us / medians["caffelite"], curves[name][-1]
        mark = "*" if name in DIFFERS else " "
        rows.append([name, f"{1e6 / us:,.0f}", f"{us:.1f}", f"{least:.1f}", f"{ratio:.2f}", f"{loss:.5f}{mark}"])
    gflops, copied = (max(values) for values in zip(*speeds, strict=True))
    # Forward and the weights' gradients take a multiply-add a row and weight each, the hidden layer's gradient W2's.
    flops = 2 * len(task.x) / len(task.batches(task.orders[0])) * (2 * (2 * 100 + 100 * 3) + 100 * 3)

    print("spiral, 2-100-3, batch 32, SGD with momentum and weight decay, float32, one thread on one core")
    print(harness.environment("torch", "scikit-learn", "jax"))
    print(f"peak {gflops:.0f} GFLOP/s (NumPy's matmul, 1536³), copying {copied:.1f} GB/s")
    print(f"a step's multiply-adds take {flops / gflops / 1e3:.2f} µs at that peak")
    print(f"{options.rounds} rounds of {steps:,} steps; loss: the mean of epoch {options.compared}\n")
    print(harness.table(["", "steps/s", "µs/step, median", "least", "time, caffelite = 1", "loss "], rows))
    print()
    if "scikit-learn" in seconds:
        print(
            "* not compared: scikit-learn draws orders of its own, decays weights only, by alpha / rows of the batch,"
        )
        print("  and counts the penalty as loss")
    if "PyTorch" in seconds:
        print("On AMD processors PyTorch's matrix products (MKL) use AVX2, not AVX-512.")
    if missing:
        print(f"Not installed, left out: {'; '.join(missing)}")


if __name__ == "__main__":
    main()
