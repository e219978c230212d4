"""Explanations: how long contributions of columns take, and how far they are off, beside shap and captum.

    python benchmarks/explain.py
    python benchmarks/explain.py --rows 10
    python benchmarks/explain.py --quick      # only to see that it works

A TableClassifier or TableRegressor is trained on a table of scikit-learn's. `explain` computes Shapley values against
100 rows of the training. shap's KernelExplainer and PermutationExplainer get the same rows and the estimator's own
`predict_proba` or `predict`, with several numbers of samples. Errors are root mean squares relative to the largest
contribution of a row. The truth is a mean of many runs of `explain` with other seeds; tests compare those with an
enumeration of all coalitions. "same error" is the time that a contestant of shap takes for the error of `explain`, by
interpolation of the logarithms. A "<" is the time of its smallest run, if that has a smaller error already.

The second table compares `attributions` with captum's IntegratedGradients, with as many steps, on nets in memory. The
contestants take turns, each in a process of its own on one core. Times are processor times of one thread; the least of
the rounds counts.
"""

import argparse
import time
import warnings
from itertools import pairwise

import harness
import numpy as np

BACKGROUND = 100
TABLES = {"diabetes": "load_diabetes", "wine": "load_wine", "breast cancer": "load_breast_cancer"}
#: Coalitions of KernelExplainer, and permutations of PermutationExplainer. Each takes all background rows.
SAMPLES = {"kernel": (50, 100, 200, 400, 800, 1600, 3200), "permutation": (1, 2, 4, 8, 16)}
TRUTH_RUNS = 20
NETS = {"64-100-100-1": [64, 100, 100, 1], "784-256-256-10": [784, 256, 256, 10]}


def fit(table, quick):
    """Return an estimator of arrays of a table, and the arrays."""
    from sklearn import datasets

    from caffelite.sklearn import TableClassifier, TableRegressor

    x, y = getattr(datasets, TABLES[table])(return_X_y=True)
    kind = TableRegressor if table == "diabetes" else TableClassifier
    return kind(random_state=0, n_estimators=2 if quick else None).fit(x, y), x


def explain_table(table, quick, count):
    """Return a contestant: explanations of so many rows of a table, once, or as the mean of many runs."""
    estimator, x = fit(table, quick)
    rows = x[np.random.default_rng(1).permutation(len(x))[:count]]
    estimator.explain(rows, rows=BACKGROUND)

    def work(seeds):
        start = time.process_time()
        values = [estimator.explain(rows, rows=BACKGROUND, seed=seed).values for seed in seeds]
        return (time.process_time() - start) / len(rows), np.mean(values, axis=0)

    return work


def explain_by_shap(kind, table, quick, count):
    """Return a contestant: an explainer of shap's, which gets a number of samples."""
    warnings.simplefilter("ignore")
    import logging

    import shap

    logging.getLogger("shap").setLevel(logging.ERROR)
    estimator, x = fit(table, quick)
    rows = x[np.random.default_rng(1).permutation(len(x))[:count]]
    background = estimator.background_[0][:BACKGROUND]
    predict = getattr(estimator, "predict_proba", estimator.predict)

    def explain(samples):
        if kind == "kernel":
            explainer = shap.KernelExplainer(predict, background)
            return explainer.shap_values(rows, nsamples=samples, l1_reg=0, silent=True)
        masker = shap.maskers.Independent(background, max_samples=BACKGROUND)
        explainer = shap.PermutationExplainer(predict, masker, seed=0)
        evaluations = samples * (2 * x.shape[1] + 1)
        return explainer(rows, max_evals=evaluations, silent=True).values

    explain(SAMPLES[kind][0])  # compiles, in PermutationExplainer

    def work(samples):
        start = time.process_time()
        values = np.asarray(explain(samples))
        return (time.process_time() - start) / len(rows), values

    return work


def relative_error(values, truth):
    """Return the root mean square of the errors of each row, relative to the largest contribution, as a mean."""
    values, truth = values.reshape(len(truth), -1), truth.reshape(len(truth), -1)
    return np.mean(np.sqrt(np.mean((values - truth) ** 2, axis=1)) / np.abs(truth).max(axis=1))


def time_at(error, runs):
    """Return the seconds that a contestant takes for an error, and a prefix. Its runs are (seconds, error)."""
    runs = sorted(runs)
    if runs[0][1] <= error:
        return runs[0][0], "<"
    for (t0, e0), (t1, e1) in pairwise(runs):
        if e1 <= error:
            e1 = max(e1, 1e-3 * error)
            share = np.log(e0 / error) / np.log(e0 / e1)
            return t0 * (t1 / t0) ** share, ""
    t, e = runs[-1]
    return t * (e / error) ** 2, "~"  # beyond the largest: errors fall with the root of the time


def compare_tables(arguments):
    """Print the table of Shapley values."""
    lines = []
    for table in list(TABLES)[: 1 if arguments.quick else None]:
        own = harness.Process(explain_table, table, arguments.quick, arguments.rows)
        _, truth = own(range(1, 3 if arguments.quick else 1 + TRUTH_RUNS))
        times, errors = zip(*[(t, relative_error(v, truth)) for t, v in [own([0]) for _ in range(3)]], strict=True)
        own.close()
        line = [table, str(truth.shape[1]), f"{1e3 * min(times):.1f}", f"{errors[0]:.2%}"]
        for kind, samples in SAMPLES.items():
            process = harness.Process(explain_by_shap, kind, table, arguments.quick, arguments.rows)
            if process.missing:
                line += ["–", "–"]
                continue
            sizes = samples[:2] if arguments.quick else [n for n in samples if n < 2 ** truth.shape[1]]
            runs = []
            for size in sizes:
                seconds, values = process(size)
                runs.append((seconds, relative_error(values, truth)))
                if runs[-1][1] < errors[0]:
                    break
            process.close()
            seconds, prefix = time_at(errors[0], runs)
            line += [f"{prefix}{1e3 * seconds:.0f}", f"{prefix}{seconds / min(times):.0f}"]
        lines.append(line)
    header = ["ms a row", "columns", "caffelite", "error", "kernel, same error", "times", "permutation", "times"]
    print(harness.table(header, lines))


def integrate(sizes, rows, steps):
    """Return a contestant: integrated gradients of a net by caffelite."""
    import caffelite as cl

    model = cl.MLP(sizes[0], sizes[1:], seed=0)
    x = np.random.default_rng(0).normal(size=(rows, sizes[0])).astype(np.float32)

    def work():
        start = time.process_time()
        y = cl.attributions(model, x, output=0, steps=steps)
        return (time.process_time() - start) / rows, float(y.sum())

    return work


def integrate_by_captum(sizes, rows, steps):
    """Return a contestant: integrated gradients of the same net by captum."""
    import torch
    from captum.attr import IntegratedGradients

    import caffelite as cl
    from caffelite.pytorch import to_torch

    torch.set_num_threads(1)
    module = to_torch(cl.MLP(sizes[0], sizes[1:], seed=0))
    x = torch.tensor(np.random.default_rng(0).normal(size=(rows, sizes[0])).astype(np.float32))

    def work():
        start = time.process_time()
        y = IntegratedGradients(module).attribute(x, target=0, n_steps=steps, method="riemann_middle")
        return (time.process_time() - start) / rows, float(y.sum())

    return work


def compare_nets(arguments):
    """Print the table of integrated gradients."""
    lines = []
    for name, sizes in NETS.items():
        rows, steps = (4, 10) if arguments.quick else (200, 400)
        line = [name]
        for contestant in (integrate, integrate_by_captum):
            process = harness.Process(contestant, sizes, rows, steps)
            if process.missing:
                line.append("–")
                continue
            line.append(f"{1e3 * min(process()[0] for _ in range(1 if arguments.quick else 4)):.2f}")
            process.close()
        lines.append(line)
    print(harness.table([f"ms a row, {steps} steps", "caffelite", "captum"], lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5, help="rows to explain (default: %(default)s)")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    harness.use_threads(1)
    print(harness.environment("shap", "captum", "torch", "scikit-learn"), end="\n\n")
    compare_tables(arguments)
    print()
    compare_nets(arguments)


if __name__ == "__main__":
    main()
