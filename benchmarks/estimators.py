"""Estimators: what `caffelite.sklearn`'s perceptrons take to fit, and how well they do, beside scikit-learn's own.

Both with scikit-learn's default parameters (100 hidden units, Adam, batches of 200, at most 200 epochs; 20 of the large
set), on three quarters of a set, standardized, in float64; the score, accuracy or R², is of the last quarter. Each seed
is another split, other first weights and other orders. The spread is the standard deviation of a score over the seeds.

    python benchmarks/estimators.py
    python benchmarks/estimators.py --threads 2 --dtype float32
    python benchmarks/estimators.py --quick      # only to see that it works

The two take turns, seed by seed, each in a process of its own on the same cores.
"""

import argparse
import statistics
import time
import warnings

import harness

SETS = {
    "wine": ("load_wine", "MLPClassifier", {}),
    "breast cancer": ("load_breast_cancer", "MLPClassifier", {}),
    "digits": ("load_digits", "MLPClassifier", {}),
    "diabetes": ("load_diabetes", "MLPRegressor", {}),
    "digits, early stopping": ("load_digits", "MLPClassifier", {"early_stopping": True}),
    "digits, lbfgs": ("load_digits", "MLPClassifier", {"solver": "lbfgs"}),
    "100,000 × 50": ("generated", "MLPClassifier", {"max_iter": 20}),
}


def contestant(module, dtype):
    """Return a function of the name of a set and a seed: seconds that `fit` takes, the score, and the iterations."""
    import importlib

    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    library = importlib.import_module(module)
    warnings.simplefilter("ignore")

    def data(loader):
        if loader == "generated":
            shape = {"n_samples": 100_000, "n_features": 50, "n_informative": 20, "n_classes": 5}
            return datasets.make_classification(**shape, n_clusters_per_class=3, random_state=0)
        return getattr(datasets, loader)(return_X_y=True)

    loaded = {}

    def fit(name, seed, rows, epochs):
        loader, kind, options = SETS[name]
        if loader not in loaded:
            loaded[loader] = data(loader)
        x, y = loaded[loader]
        stratify = y if kind == "MLPClassifier" else None
        x, x_test, y, y_test = train_test_split(x, y, stratify=stratify, random_state=seed)
        scaler = StandardScaler().fit(x)
        x, x_test = scaler.transform(x).astype(dtype)[:rows], scaler.transform(x_test).astype(dtype)
        if kind == "MLPRegressor":
            y, y_test = (y - y.mean()) / y.std(), (y_test - y.mean()) / y.std()
        estimator = getattr(library, kind)(random_state=seed, **{**options, **epochs})
        start = time.perf_counter()
        estimator.fit(x, y[:rows])
        return time.perf_counter() - start, estimator.score(x_test, y_test), estimator.n_iter_

    return fit


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds (10)")
    parser.add_argument("--threads", type=int, default=1, help="number of cores, and of threads (1)")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    parser.add_argument("--only", nargs="+", choices=SETS, default=[*SETS], metavar="SET", help=", ".join(SETS))
    parser.add_argument("--quick", action="store_true", help="few rows, three epochs, two seeds")
    options = parser.parse_args()
    harness.use_threads(options.threads)
    modules = {"scikit-learn": "sklearn.neural_network", "caffelite": "caffelite.sklearn"}
    processes = {
        name: harness.Process(contestant, module, options.dtype, cores=options.threads)
        for name, module in modules.items()
    }
    seeds, rows, epochs = (2, 400, {"max_iter": 3}) if options.quick else (options.seeds, None, {})

    print(harness.environment("scikit-learn", "scipy"))
    print(f"{options.dtype}, threads: {options.threads}; medians of {seeds} seeds; scores ± their spread\n")
    lines = []
    for name in options.only:
        results = {library: [] for library in processes}
        for seed in range(seeds):
            for library, fit in processes.items():
                results[library].append(fit(name, seed, rows, epochs))
        (theirs, their_scores, their_epochs), (ours, our_scores, our_epochs) = [
            tuple(zip(*of_seeds, strict=True)) for of_seeds in results.values()
        ]
        ratio = statistics.median([a / b for a, b in zip(theirs, ours, strict=True)])
        lines.append(
            [
                name,
                f"{1e3 * statistics.median(theirs):,.1f}",
                f"{1e3 * statistics.median(ours):,.1f}",
                f"{ratio:.2f}",
                *[f"{statistics.median(n):g}" for n in (their_epochs, our_epochs)],
                *[f"{statistics.mean(s):.4f} ± {statistics.stdev(s):.4f}" for s in (their_scores, our_scores)],
            ]
        )
    for process in processes.values():
        process.close()
    head = ["", "scikit-learn, ms", "caffelite, ms", "times", "epochs", "caffelite", "score", "caffelite"]
    print(harness.table(head, lines))


if __name__ == "__main__":
    main()
