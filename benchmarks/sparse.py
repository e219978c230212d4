"""Sparse inputs: a net on a CSR matrix of 20,000 features, 1 % and 0.1 % of them not 0, beside its peers.

The net is 20000-64-20, in batches of 128 of 10,000 rows, float32, by SGD and by Adam. Contestants: caffelite on the CSR
matrix and on the array of it; scikit-learn's MLPClassifier on the CSR matrix; PyTorch by `embedding_bag`, which sums
the rows of a table with weights, on batches that were cut before (its optimizers fused). All have one core.

    python benchmarks/sparse.py
    python benchmarks/sparse.py --quick     # only to see that it works

Contestants take turns, each in a process of its own. µs a step are those of the fastest of the rounds, an epoch each;
MB is how much the process grows during its first epoch, data, parameters and the optimizer's state being there before.
The loss is that of the last epoch: the same of all that begin with the same weights, which scikit-learn does not.
"""

import argparse
import time

import harness
import numpy as np

HIDDEN, LABELS, BATCH, RATE = 64, 20, 128, {"SGD": 0.1, "Adam": 1e-3}


def data(rows, features, density):
    """Return a CSR matrix (rows, features) whose columns are used as often as words are, and labels that
    depend on it.
    """
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    per_row = max(1, round(features * density))
    columns = (features * rng.random((rows, per_row)) ** 2).astype(np.int32)
    x = sp.csr_array(
        (rng.random(rows * per_row, np.float32), columns.reshape(-1), np.arange(rows + 1) * per_row), (rows, features)
    )
    x.sum_duplicates()
    return x, (x @ rng.normal(size=(features, LABELS))).argmax(axis=1)


def net(features):
    import caffelite as cl

    return cl.MLP(features, [HIDDEN, LABELS], seed=0)


def caffelite(optimizer, rows, features, density, is_dense):
    import caffelite as cl

    harness.keep_memory()
    x, y = data(rows, features, density)
    x, model = x.toarray() if is_dense else x, net(features)
    rule, loss = getattr(cl, optimizer)(model.parameters(), lr=RATE[optimizer]), cl.SoftmaxLoss()
    return lambda: model.fit(x, y, loss=loss, optimizer=rule, batch_size=BATCH, shuffle=False, verbose=0)["loss"][-1]


def scikit_learn(optimizer, rows, features, density):
    from sklearn.neural_network import MLPClassifier

    harness.keep_memory()
    x, y = data(rows, features, density)
    options = {"solver": optimizer.lower(), "learning_rate_init": RATE[optimizer], "momentum": 0.0, "alpha": 0.0}
    model = MLPClassifier((HIDDEN,), batch_size=BATCH, shuffle=False, random_state=0, **options)
    labels = np.arange(LABELS)
    return lambda: model.partial_fit(x, y, classes=labels).loss_


def pytorch(optimizer, rows, features, density):
    import torch

    torch.set_num_threads(1)
    harness.keep_memory()
    x, y = data(rows, features, density)
    weight, bias, *others = [torch.tensor(p.data, requires_grad=True) for p in net(features).parameters()]
    rule = getattr(torch.optim, optimizer)([weight, bias, *others], lr=RATE[optimizer], fused=True)
    batches = []
    for i in range(0, rows, BATCH):
        part = x[i : i + BATCH]
        arrays = part.indices.astype(np.int64), part.indptr[:-1].astype(np.int64), part.data, y[i : i + BATCH]
        batches.append([torch.tensor(array) for array in arrays])

    def epoch():
        total = 0.0
        for columns, starts, values, labels in batches:
            h = torch.nn.functional.embedding_bag(columns, weight, starts, mode="sum", per_sample_weights=values)
            loss = torch.nn.functional.cross_entropy(torch.relu(h + bias) @ others[0] + others[1], labels)
            rule.zero_grad()
            loss.backward()
            rule.step()
            total += loss.detach() * len(labels)
        return float(total) / rows

    return epoch


def measure_epochs(contestant, *arguments):
    """Return a contestant's epochs: the loss, the seconds and, of the first, the bytes that the process has
    grown by.
    """
    epoch, first = contestant(*arguments), True

    def measure():
        nonlocal first
        grown, first = harness.memory_growth(epoch) if first else None, False
        start = time.perf_counter()
        loss = epoch()
        return loss, time.perf_counter() - start, grown

    return measure


CONTESTANTS = {
    "caffelite, CSR": (caffelite, False),
    "caffelite, array": (caffelite, True),
    "scikit-learn, CSR": (scikit_learn,),
    "PyTorch, embedding_bag": (pytorch,),
}


def compare(optimizer, rows, features, density, rounds):
    """Print a table; returns who could not be imported, and which module is missing."""
    sizes, running, missing = (optimizer, rows, features, density), {}, {}
    for name, (contestant, *options) in CONTESTANTS.items():
        process = harness.Process(measure_epochs, contestant, *sizes, *options)
        if process.missing:
            missing[name] = process.missing
        else:
            running[name] = process
    found = {name: [] for name in running}
    for _ in range(rounds):
        for name, process in running.items():
            found[name].append(process())
    for process in running.values():
        process.close()
    losses = {name: results[-1][0] for name, results in found.items()}
    for name, loss in losses.items():
        if name != "scikit-learn, CSR" and abs(loss - losses["caffelite, CSR"]) > 1e-3:
            raise SystemExit(f"{name} has the loss {loss}, and not {losses['caffelite, CSR']}")
    print(f"\n{optimizer}, {density:.1%} of {features:,} features\n")
    best = {name: min(seconds for _, seconds, _ in results) for name, results in found.items()}
    table = [
        [
            name,
            f"{1e6 * best[name] / -(-rows // BATCH):,.0f}",
            f"{best[name] / best['caffelite, CSR']:.2f}",
            "?" if results[0][2] is None else f"{max(results[0][2], 0) / 1e6:.0f}",
            f"{losses[name]:.4f}",
        ]
        for name, results in found.items()
    ]
    print(harness.table(["", "µs a step", "caffelite = 1", "MB", "loss"], table))
    return missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how many epochs are timed (5)")
    parser.add_argument("--quick", action="store_true", help="few rows, one density, SGD")
    options = parser.parse_args()
    harness.use_threads(1)
    print(harness.environment("scipy", "scikit-learn", "torch"))
    rows, features, rounds = (300, 2_000, 1) if options.quick else (10_000, 20_000, options.rounds)
    missing = {}
    for density in (0.01,) if options.quick else (0.01, 0.001):
        for optimizer in list(RATE)[: 1 if options.quick else None]:
            missing |= compare(optimizer, rows, features, density, rounds)
    if missing:
        print("\nleft out:", "; ".join(f"{name} (no module {module})" for name, module in missing.items()))


if __name__ == "__main__":
    main()
