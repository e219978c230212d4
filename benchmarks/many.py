"""Many small models: `cl.fit_many` beside one `Model.fit` after the other, and scikit-learn's MLPRegressor likewise.

256 models 20-32-1, ReLU, with a seed and a learning rate of their own, on the same rows, mean squared error, Adam,
batches of 32, float32. What is timed is the training alone; models and optimizers are made before, anew for each round.
scikit-learn makes its weights in `fit`, which takes it 0.1 % of the time; of it, every sixteenth model is timed.

With `--patience`, each model also evaluates a fifth as many rows after each epoch, and stops early. The table then has
the mean number of epochs. scikit-learn is left out, because its early stopping is another one.

    python benchmarks/many.py
    python benchmarks/many.py --patience 5
    python benchmarks/many.py --threads 1 2 --rows 500 --epochs 20 50 100
    python benchmarks/many.py --quick       # only to see that it works

Each contestant is in a process of its own, and they take turns; the median of the rounds counts.
"""

import argparse
import time
import warnings

import harness
import numpy as np


def data(rows):
    """Features (rows, 20) and a target (rows, 1), which is no linear function of them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 20), dtype=np.float32)
    return x, np.tanh(x @ rng.standard_normal((20, 1), dtype=np.float32)) + x[:, :1] * x[:, 1:2]


def rates(models):
    """Return a learning rate for each."""
    return np.geomspace(1e-4, 1e-2, models)


def caffelite(models, rows, epochs, patience, together):
    """Return a contestant that gives seconds a model, and the means of the models' last losses and of their epochs."""
    import caffelite as cl

    x, y = data(rows + rows // 5)
    validation = {} if patience is None else {"validation_data": (x[rows:], y[rows:])}
    x, y, loss = x[:rows], y[:rows], cl.MSELoss()
    options = {"loss": loss, "epochs": epochs, **validation}

    def callbacks():
        return [] if patience is None else [cl.callbacks.EarlyStopping(patience=patience)]

    def measure():
        model_list = [cl.MLP(20, [32, 1], seed=i) for i in range(models)]
        optimizers = [cl.Adam(m.parameters(), lr=lr) for m, lr in zip(model_list, rates(models), strict=True)]
        start = time.perf_counter()
        if together:
            histories = cl.fit_many(model_list, x, y, optimizers=optimizers, patience=patience, verbose=0, **options)
        else:
            histories = [
                m.fit(x, y, optimizer=optimizer, callbacks=callbacks(), verbose=0, **options)
                for m, optimizer in zip(model_list, optimizers, strict=True)
            ]
        seconds = time.perf_counter() - start
        loss_and_epochs = np.mean([(history["loss"][-1], history.epochs) for history in histories], axis=0)
        return seconds / models, *loss_and_epochs.tolist()

    return measure


def scikit_learn(models, rows, epochs, patience):
    """As `caffelite`, of every sixteenth model."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    warnings.simplefilter("ignore", ConvergenceWarning)  # it takes all epochs for a failure to converge
    x, y = data(rows)

    def measure():
        chosen = rates(models)[::16]
        options = {"alpha": 0.0, "batch_size": 32, "max_iter": epochs, "tol": 0.0, "n_iter_no_change": epochs}
        model_list = [
            MLPRegressor(hidden_layer_sizes=(32,), learning_rate_init=lr, random_state=i, **options)
            for i, lr in enumerate(chosen)
        ]
        start = time.perf_counter()
        for m in model_list:
            m.fit(x, y.ravel())
        seconds = time.perf_counter() - start
        loss = 2 * float(np.mean([m.loss_curve_[-1] for m in model_list]))  # whose loss is half of ours
        return seconds / len(chosen), loss, float(epochs)

    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=256)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--epochs", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--patience", type=int, help="validate after each epoch, and stop early")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few models, two epochs, once")
    options = parser.parse_args()
    if options.quick:
        options.models, options.rows, options.epochs, options.threads, options.rounds = 16, 64, [2], [2], 1
    contestants = {
        "scikit-learn, one after the other": (scikit_learn,),
        "fit, one after the other": (caffelite, False),
        "fit_many": (caffelite, True),
    }
    if options.patience is not None:
        del contestants["scikit-learn, one after the other"]
    print(harness.environment("scikit-learn"))
    print(f"{options.models} models 20-32-1, {options.rows} rows, the median of {options.rounds} rounds")
    left_out = {}
    for threads in options.threads:
        harness.use_threads(threads)
        for epochs in options.epochs:
            processes = {}
            for name, (make, *further) in contestants.items():
                process = harness.Process(
                    make, options.models, options.rows, epochs, options.patience, *further, cores=threads
                )
                if process.missing is None:
                    processes[name] = process
                else:
                    left_out[name] = process.missing
            measured = {name: [] for name in processes}
            for _ in range(options.rounds):
                for name, process in processes.items():
                    measured[name].append(process())
            for process in processes.values():
                process.close()
            print(f"\n{epochs} epochs, {threads} thread{'s' if threads > 1 else ''}\n")
            print(harness.table(["", "ms a model", "fit_many = 1", "loss", "epochs"], make_rows(measured)))
    for name, module in left_out.items():
        print(f"\nleft out: {name} (no module {module})")


def make_rows(measured):
    """Return a row for each contestant, from its rounds."""
    seconds = {name: float(np.median([s for s, *_ in rounds])) for name, rounds in measured.items()}
    rows = []
    for name, s in seconds.items():
        _, loss, epochs = measured[name][0]
        rows.append([name, f"{s * 1e3:.3f}", f"{s / seconds['fit_many']:.2f}", f"{loss:.4f}", f"{epochs:.1f}"])
    return rows


if __name__ == "__main__":
    main()
