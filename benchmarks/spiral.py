"""Small networks: what a training step costs beyond its arithmetic.

µs a step on the spiral, 2-100-3, SGD with momentum and weight decay: caffelite, PyTorch eager, scikit-learn's
MLPClassifier, NumPy written by hand, and JAX, side by side in one run. Two workloads: `spiral` takes all 300 rows in
every step, `spiral32` batches of 32 in a new order each epoch, of which the last is short. Then, kernel by kernel,
where the time of caffelite's two steps goes.

    python benchmarks/spiral.py            # the peers are the extra `bench`; those not installed are left out
    python benchmarks/spiral.py --quick    # only to see that it works

Every contestant has its own process, all of them pinned to the same core, one working at a time. They start from the
same weights, take the same batches and make the same updates: their loss curves are compared before anything is timed,
and a disagreement ends the run. Then come rounds, each of which times every contestant once, so that a machine that is
busy for a while is busy for all.

caffelite is timed through `Model.fit` as a user calls it, on a new model each time, its loss history included. The
peers are timed without recording losses, with tensors sliced and no data loader, PyTorch with its fused SGD, JAX with
donation, compiled for a step and for ten: an epoch of `spiral32`, ten epochs of `spiral`.
"""

import argparse
import warnings
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import harness
import numpy as np

LR, MOMENTUM, DECAY, SEED = 0.1, 0.9, 1e-4, 0
WORKLOADS = {"spiral": 300, "spiral32": 32}  # the rows of a batch, of 300


@dataclass
class Task:
    x: np.ndarray  # (300, 2) float32
    y: np.ndarray  # (300,) int64
    weights: list[np.ndarray]  # W1 (2, 100), b1 (100,), W2 (100, 3), b2 (3,)
    orders: list[np.ndarray]  # the rows' order in each epoch, the one that `fit` takes
    batch: int

    @property
    def shuffled(self):
        """Whether orders differ; where a batch is all rows, they need not."""
        return self.batch < len(self.x)

    @property
    def steps_an_epoch(self):
        return -(-len(self.x) // self.batch)

    def batches(self, order):
        return [order[i : i + self.batch] for i in range(0, len(order), self.batch)]


def spiral(batch, steps):
    import caffelite as cl

    x, y = cl.datasets.spiral(points_per_class=100, classes=3, seed=SEED)
    model = cl.Model([cl.Linear(2, 100), cl.ReLU(), cl.Linear(100, 3)], seed=SEED)
    task = Task(x, y, [p.data.copy() for p in model.parameters()], [], batch)
    rows = cl.DataGenerator(np.arange(len(x)), batch_size=len(x), shuffle=task.shuffled, seed=SEED)
    task.orders = [order for _ in range(steps // task.steps_an_epoch) for order in rows]
    return task


def network(task):
    """caffelite's model, loss and optimizer."""
    import caffelite as cl

    model = cl.Model([cl.Linear(2, 100), cl.ReLU(), cl.Linear(100, 3)])
    for p, values in zip(model.parameters(), task.weights, strict=True):
        p.data = values
    return model, cl.SoftmaxLoss(), cl.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)


# ---- the contestants: each prepares, and returns train(epochs, record) -> (seconds, losses) -------------------------


def caffelite(task):
    def train(epochs, record):
        model, loss, optimizer = network(task)
        start = perf_counter()
        history = model.fit(
            task.x, task.y, loss=loss, optimizer=optimizer, epochs=epochs, batch_size=task.batch,
            shuffle=task.shuffled, seed=SEED, verbose=0,
        )  # fmt: skip
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
            batches = [(x, y)]
            if task.shuffled:
                order = torch.from_numpy(order)
                batches = zip(x[order].split(task.batch), y[order].split(task.batch), strict=True)
            for xb, yb in batches:
                optimizer.zero_grad()
                loss = cross_entropy(model(xb), yb)
                loss.backward()
                optimizer.step()
                if record:
                    losses[epoch] += loss.item() * len(xb) / len(x)
        return perf_counter() - start, losses

    return train


def scikit_learn(task):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    warnings.simplefilter("ignore", ConvergenceWarning)  # it wants to go on until it has converged

    def train(epochs, record):
        classifier = MLPClassifier(
            [100], solver="sgd", learning_rate_init=LR, momentum=MOMENTUM, nesterovs_momentum=False,
            batch_size=task.batch, shuffle=task.shuffled, alpha=DECAY * task.batch, max_iter=1, tol=0,
            n_iter_no_change=10**9, random_state=SEED, warm_start=True,
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
    xs, ys, batch = task.x.copy(), onehot.copy(), task.batch
    memory = [np.empty((batch, width), np.float32) for width in (100, 3, 1, 100)]
    matmul, add, subtract, multiply, divide = np.matmul, np.add, np.subtract, np.multiply, np.divide

    def train(epochs, record):
        w[:], v[:] = np.concatenate([values.ravel() for values in task.weights]), 0
        losses = np.zeros(epochs)
        start = perf_counter()
        for epoch, order in enumerate(task.orders[:epochs]):
            if task.shuffled:
                np.take(task.x, order, axis=0, out=xs)
                np.take(onehot, order, axis=0, out=ys)
            for i in range(0, len(xs), batch):
                x, y = xs[i : i + batch], ys[i : i + batch]
                n = len(x)
                h, s, row, dh = memory if n == batch else [array[:n] for array in memory]

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

    def epoch_of_steps(state, order):
        full = len(order) // task.batch * task.batch
        xs, ys = x[order], y[order]
        batches = xs[:full].reshape(-1, task.batch, 2), ys[:full].reshape(-1, task.batch)
        state, losses = jax.lax.scan(step, state, batches)
        state, last = step(state, (xs[full:], ys[full:]))
        return state, jnp.append(losses, last)

    x, y = jnp.array(task.x), jnp.array(task.y)
    one_step = jax.jit(step, donate_argnums=0)
    epoch_at_once = jax.jit(epoch_of_steps, donate_argnums=0)
    ten_at_once = jax.jit(
        lambda state: jax.lax.scan(lambda state, _: step(state, (x, y)), state, length=10), donate_argnums=0
    )
    split = jax.jit(lambda order: [(x[rows], y[rows]) for rows in task.batches(order)])

    def train(epochs, record):
        w = [jnp.array(values) for values in task.weights]
        state = w, [jnp.zeros_like(values) for values in w]
        values = []  # the losses of the steps, as they come
        start = perf_counter()
        if scan and task.shuffled:
            for order in task.orders[:epochs]:
                state, value = epoch_at_once(state, order)
                values.append(value)
        elif scan:
            for _ in range(epochs // 10):
                state, value = ten_at_once(state)
                values.append(value)
        else:
            for order in task.orders[:epochs]:
                for batch in split(order) if task.shuffled else [(x, y)]:
                    state, value = one_step(state, batch)
                    values.append(value)
        jax.block_until_ready(state)
        seconds = perf_counter() - start
        rows = [len(batch) for batch in task.batches(task.orders[0])]
        losses = np.hstack(values).reshape(epochs, -1) if record else np.zeros((epochs, len(rows)))
        return seconds, np.average(losses, axis=1, weights=rows)

    return train


CONTESTANTS = {
    "caffelite": caffelite,
    "PyTorch": pytorch,
    "scikit-learn": scikit_learn,
    "NumPy by hand": numpy_by_hand,
    "JAX, jit a step": partial(jax, scan=False),
    "JAX, scan of ten": partial(jax, scan=True),
}
DIFFERS = {"scikit-learn"}  # see the note under the table


# ---- comparing and timing -------------------------------------------------------------------------------------------


def check_agreement(curves, tolerance=1e-3):
    """Raise unless every loss curve is caffelite's, but for the rounding of float32."""
    for name, curve in curves.items():
        error = np.max(np.abs(np.divide(curve, curves["caffelite"]) - 1))
        if not error <= tolerance and name not in DIFFERS:
            raise SystemExit(f"{name}'s losses differ from caffelite's by up to {error:.1e}: {list(curve)}")


def compare(task, steps, compared, rounds):
    """Check and time all contestants: loss curves and seconds by name, the machine's speeds, who is missing."""
    processes, missing = {}, []
    for name, make in CONTESTANTS.items():
        process = harness.Process(make, task)
        if process.missing:
            missing.append(f"{name} (no module {process.missing})")
        else:
            processes[name] = process
    curves = {name: train(compared // task.steps_an_epoch, True)[1] for name, train in processes.items()}
    check_agreement(curves)

    machine = harness.Process(harness.machine_speed)
    speeds, seconds = [], {name: [] for name in processes}
    for _ in range(rounds):
        speeds.append(machine())
        for name, train in processes.items():
            seconds[name].append(train(steps // task.steps_an_epoch, False)[0])
    return curves, seconds, speeds, missing


def profiled(task):
    """A contestant: profile(replays) -> (the table of a training step's kernels, the least seconds of a replay)."""
    import caffelite as cl

    model, loss, optimizer = network(task)

    def step(x, y):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return value

    program = cl.capture(step, task.x[: task.batch], task.y[: task.batch])

    def profile(replays):
        seconds = min(harness.seconds_per_call("replay()", 1e-3, replay=program.tape.replay) for _ in range(10))
        return program.profile(replays), seconds

    return profile


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="steps in each timing, rounded to tens (3000)")
    parser.add_argument("--rounds", type=int, default=7, help="how often each contestant is timed (7)")
    parser.add_argument("--compared", type=int, default=200, help="steps whose losses are compared, rounded (200)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 50 steps: a smoke test, no measurement")
    options = parser.parse_args()
    steps, compared = [max(10, number // 10 * 10) for number in (options.steps, options.compared)]
    rounds = options.rounds
    if options.quick:
        steps, compared, rounds = 50, 50, 2

    harness.use_one_thread()
    tasks = {name: spiral(batch, max(steps, compared)) for name, batch in WORKLOADS.items()}
    print("2-100-3, SGD with momentum and weight decay, float32, one thread on one core")
    print(harness.environment("torch", "scikit-learn", "jax"))
    print(f"{rounds} rounds of {steps:,} steps; loss: the mean of the epoch that ends with step {compared}")
    for name, task in tasks.items():
        curves, seconds, speeds, missing = compare(task, steps, compared, rounds)
        report(name, task, steps, curves, seconds, speeds)
    print()
    if "scikit-learn" in seconds:
        print(
            "* not compared: scikit-learn draws orders of its own, decays weights only, by alpha / rows of the batch,"
        )
        print("  and counts the penalty as loss")
    if "PyTorch" in seconds:
        print("On AMD processors PyTorch's matrix products (MKL) use AVX2, not AVX-512.")

    for name, task in tasks.items():
        table, least = harness.Process(profiled, task)(20 if options.quick else 20_000)
        print(f"\nWhere the time goes: the kernels of a step of {name}, each with a reading of the clock, the least of")
        print(f"all replays. Without readings a replay takes {1e6 * least:.2f} µs.")
        print("`fit` also fetches batches and sums losses.\n")
        print(table)
    if missing:
        print(f"\nNot installed, left out: {'; '.join(missing)}")


def report(name, task, steps, curves, seconds, speeds):
    medians = {name: median(times) / steps * 1e6 for name, times in seconds.items()}
    rows = []
    for peer, us in medians.items():
        least, ratio, loss = min(seconds[peer]) / steps * 1e6, us / medians["caffelite"], curves[peer][-1]
        mark = "*" if peer in DIFFERS else " "
        rows.append([peer, f"{us:.1f}", f"{least:.1f}", f"{ratio:.2f}", f"{1e6 / us:,.0f}", f"{loss:.5f}{mark}"])
    gflops, copied = (max(values) for values in zip(*speeds, strict=True))
    # Forward and the weights' gradients take a multiply-add a row and weight each, the hidden layer's gradient W2's.
    flops = 2 * len(task.x) / task.steps_an_epoch * (2 * (2 * 100 + 100 * 3) + 100 * 3)

    print(f"\n{name}, batch {task.batch}: a step's multiply-adds take {flops / gflops / 1e3:.2f} µs at the peak,")
    print(f"{gflops:.0f} GFLOP/s (NumPy's matmul, 1536³); copying {copied:.1f} GB/s\n")
    print(harness.table([name, "µs/step, median", "least", "time, caffelite = 1", "steps/s", "loss "], rows))


if __name__ == "__main__":
    main()
