"""Tables: how well models of tables do as they are, and how long they take to fit.

The bundled tables of scikit-learn and generated ones, of 178 to 100,000 rows: mixed types, missing values, rare
categories, interactions, steps, periods, columns of noise, rare classes. A third of the generated tables is held out:
recipes are chosen on the others (`--chosen-on`), and these judge them.

    python benchmarks/tables.py
    python benchmarks/tables.py --only steps wine --models caffelite boosting
    python benchmarks/tables.py --chosen-on --seeds 3
    python benchmarks/tables.py --quick      # only to see that it works

Each seed is another split in three quarters and one quarter, and another seed of the model. Scores are of the last
quarter, means over seeds: R² of numbers, and of classes the AUC, one class against the others. Ranks are by score, and
for classes also by log loss. The models take turns, each in a process of its own on the same cores. The first fit of a
model is not timed.
"""

import argparse
import functools
import statistics
import time
import warnings
from dataclasses import dataclass
from typing import Any

import harness
import numpy as np

# ---- tables ---------------------------------------------------------------------------------------------------------
# Each is a function that returns a frame and the targets: float64 are numbers, integers are classes.


@dataclass
class Dataset:
    make: Any
    held_out: bool


TABLES = {}


def table(name, held_out=False):
    """Add the decorated function to the tables. It gets its own random generator."""

    def add(make):
        TABLES[name] = Dataset(lambda: make(np.random.default_rng(sum(map(ord, name)))), held_out)
        return make

    return add


def add_bundled(name, loader, dtype):
    def load():
        from sklearn import datasets

        data = getattr(datasets, loader)(as_frame=True)
        return data.data, data.target.to_numpy().astype(dtype)

    TABLES[name] = Dataset(load, held_out=False)


add_bundled("breast cancer", "load_breast_cancer", int)
add_bundled("wine", "load_wine", int)
add_bundled("digits", "load_digits", int)
add_bundled("diabetes", "load_diabetes", float)


def make_frame(x, **words):
    """Return a frame of the columns of x (n, k), and of columns of words given by their codes."""
    import pandas

    columns = {f"x{i}": column for i, column in enumerate(x.T)}
    columns |= {name: np.char.add(f"{name} ", codes.astype(str)) for name, codes in words.items()}
    return pandas.DataFrame(columns)


def add_gaps(rng, frame, share, columns):
    """Return the frame, without this share of the values of some columns."""
    for name in columns:
        frame[name] = frame[name].mask(rng.random(len(frame)) < share)
    return frame


def standardize(x):
    return (x - x.mean()) / x.std()


def draw_labels(rng, signal, share=0.5, strength=2.0):
    """Classes 0 and 1 of which about this share is 1, more often where the signal is larger."""
    threshold = np.quantile(signal, 1 - share)
    return (rng.random(len(signal)) < 1 / (1 + np.exp(strength * (threshold - signal) / signal.std()))).astype(int)


def add_noise(rng, signal, noise):
    """Return the standardized signal with normal noise of this deviation."""
    return standardize(signal) + noise * rng.normal(size=len(signal))


def random_steps(rng, x, count, depth=3):
    """Return a sum of random trees: each splits every column that it asks at one of its values."""
    total = np.zeros(len(x))
    for _ in range(count):
        leaf = np.zeros(len(x), int)
        for column in rng.choice(x.shape[1], depth):
            leaf = 2 * leaf + (x[:, column] > rng.choice(x[:, column]))
        total += rng.normal(size=2**depth)[leaf]
    return total


@table("mixed")
def _(rng, n=10_000):
    x = rng.normal(size=(n, 8))
    x[:, 6:] = np.exp(1.5 * x[:, 6:])
    shop, city, kind = rng.integers(5, size=n), rng.integers(40, size=n), rng.integers(12, size=n)
    slopes, levels = rng.normal(size=12), rng.normal(size=40)
    signal = x[:, 0] + x[:, 1] * (x[:, 2] > 0) + slopes[kind] * x[:, 3] + levels[city] + np.log1p(x[:, 6])
    gaps = rng.random(n) < 1 / (1 + np.exp(2 - x[:, 4]))  # a gap tells that x4 is large
    frame = add_gaps(rng, make_frame(x, shop=shop, city=city, kind=kind), 0.1, ["x0", "x5", "x6", "city"])
    frame["x4"] = frame["x4"].mask(gaps)
    return frame, draw_labels(rng, signal + 0.7 * x[:, 4])


@table("steps")
def _(rng, n=10_000):
    x = rng.normal(size=(n, 10))
    return make_frame(x), add_noise(rng, random_steps(rng, x, 20), 0.3)


@table("rules")
def _(rng, n=5_000):
    x = np.round(rng.gamma(2, 10, size=(n, 8)))
    job, region = rng.integers(15, size=n), rng.integers(6, size=n)
    signal = 2.0 * ((x[:, 0] > 15) & (x[:, 1] < 20)) + 1.5 * ((x[:, 2] > 30) | (job % 4 == 0))
    signal += 1.0 * ((region < 2) & (x[:, 3] > 10)) - 1.0 * (x[:, 4] > 25)
    return make_frame(x, job=job, region=region), draw_labels(rng, signal, 0.3, 4.0)


@table("interactions")
def _(rng, n=20_000):
    x = rng.uniform(-1, 1, size=(n, 12))
    signal = np.sign(x[:, 0] * x[:, 1]) + 2 * x[:, 2] * x[:, 3] + x[:, 4] * np.abs(x[:, 5]) + x[:, 6]
    return make_frame(x), draw_labels(rng, signal, 0.4, 3.0)


@table("periods")
def _(rng, n=5_000):
    x = rng.uniform(0, 1, size=(n, 8))
    signal = np.sin(20 * x[:, 0]) + np.cos(9 * x[:, 1]) * x[:, 2] + np.sin(6 * x[:, 3] + 3 * x[:, 4]) + x[:, 5]
    return make_frame(x), add_noise(rng, signal, 0.3)


@table("rare categories")
def _(rng, n=20_000):
    customer = np.minimum(rng.zipf(1.3, size=n), 3_000)
    product = rng.integers(25, size=n)
    x = rng.normal(size=(n, 5))
    likes = rng.normal(size=3_001)
    signal = likes[customer] + rng.normal(size=25)[product] * x[:, 0] + np.maximum(x[:, 1], 0)
    return make_frame(x, customer=customer, product=product), add_noise(rng, signal, 0.5)


@table("rare class")
def _(rng, n=30_000):
    x = rng.normal(size=(n, 15)) @ (np.eye(15) + 0.3 * rng.normal(size=(15, 15)))
    plan = rng.integers(8, size=n)
    signal = np.maximum(x[:, 0], x[:, 1]) + 0.7 * x[:, 2] * (plan < 3) + 0.5 * (x[:, 3] > 1) + 0.3 * x[:, 4] ** 2
    return add_gaps(rng, make_frame(x, plan=plan), 0.05, ["x0", "x3", "x7"]), draw_labels(rng, signal, 0.03, 2.5)


@table("columns of noise")
def _(rng, n=3_000):
    x = rng.normal(size=(n, 60))
    signal = x[:, 0] + x[:, 1] - x[:, 2] ** 2 + np.maximum(x[:, 3], x[:, 4]) + (x[:, 5] > 0.5)
    return make_frame(x), draw_labels(rng, signal, 0.5, 3.0)


@table("skewed")
def _(rng, n=2_000):
    x = np.exp(rng.normal(size=(n, 9)) * np.linspace(0.3, 2.5, 9))
    signal = np.log(x[:, 0] * x[:, 4]) + np.log(x[:, 8] + x[:, 7]) / 2 + np.sqrt(x[:, 1]) * (x[:, 2] > 1)
    return make_frame(x), add_noise(rng, signal, 0.4)


@table("large")
def _(rng, n=100_000):
    x = rng.normal(size=(n, 16))
    x[:, 8:12] = np.round(np.exp(x[:, 8:12] + 1))
    model, state = rng.integers(60, size=n), rng.integers(9, size=n)
    signal = standardize(random_steps(rng, x[:, :12], 8)) + np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    signal += rng.normal(size=60)[model] + 0.5 * rng.normal(size=9)[state] * x[:, 3]
    return add_gaps(rng, make_frame(x, model=model, state=state), 0.05, ["x1", "x9", "model"]), add_noise(
        rng, signal, 0.4
    )


@table("friedman", held_out=True)
def _(rng, n=1_000):
    x = rng.uniform(size=(n, 10))
    signal = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return make_frame(x), add_noise(rng, signal, 0.2)


@table("claims", held_out=True)
def _(rng, n=15_000):
    age, power, value = rng.integers(18, 90, size=n), rng.integers(4, 16, size=n), np.exp(rng.normal(9, 0.8, size=n))
    distance, other = rng.gamma(1.5, 8_000, size=n), rng.normal(size=(n, 4))
    brand, area = rng.integers(30, size=n), np.minimum(rng.zipf(1.5, size=n), 200)
    signal = 0.8 * (age < 25) + 0.4 * (age > 70) + 0.05 * power + 0.5 * np.log(value) + 0.3 * np.log(distance + 1)
    signal += 0.4 * rng.normal(size=30)[brand] + 0.5 * rng.normal(size=201)[area] + 0.4 * other[:, 0] * (power > 10)
    frame = make_frame(np.column_stack([age, power, value, distance, other]), brand=brand, area=area)
    frame["x2"] = frame["x2"].mask(rng.random(n) < 0.4 * (age < 30))  # the young do not tell the value
    return add_gaps(rng, frame, 0.1, ["x3", "brand"]), add_noise(rng, signal, 0.5)


@table("clicks", held_out=True)
def _(rng, n=50_000):
    counts = {"site": 1_000, "device": 40, "advert": 300, "hour": 24, "position": 7}
    codes = {name: np.minimum(rng.zipf(1.4, size=n) - 1, count - 1) for name, count in counts.items()}
    vectors = {name: rng.normal(size=(count, 3)) for name, count in counts.items()}
    factors = {name: vectors[name][codes[name]] for name in counts}
    signal = sum(factor[:, 0] for factor in factors.values())
    signal = (
        signal + (factors["site"] * factors["advert"]).sum(axis=1) + factors["device"][:, 1] * factors["hour"][:, 1]
    )
    return make_frame(np.empty((n, 0)), **codes), draw_labels(rng, signal, 0.1, 2.0)


@table("ten classes", held_out=True)
def _(rng, n=10_000):
    from sklearn.datasets import make_classification

    shape = {"n_features": 30, "n_informative": 12, "n_classes": 10, "n_clusters_per_class": 2, "flip_y": 0.02}
    x, y = make_classification(n, **shape, random_state=int(rng.integers(2**31)))
    return make_frame(x), y


@table("sensors", held_out=True)
def _(rng, n=8_000):
    hidden = rng.normal(size=(n, 4))
    x = hidden @ rng.normal(size=(4, 20)) + 0.3 * rng.normal(size=(n, 20))
    x[rng.random(x.shape) < 0.005] *= 30  # outliers
    machine = rng.integers(10, size=n)
    signal = np.sin(3 * hidden[:, 0]) + np.floor(2 * hidden[:, 1]) + hidden[:, 2] * rng.normal(size=10)[machine]
    return add_gaps(rng, make_frame(x, machine=machine), 0.03, [f"x{i}" for i in range(0, 20, 3)]), add_noise(
        rng, signal, 0.2
    )


# ---- models ---------------------------------------------------------------------------------------------------------
# Each is a function that imports what it needs and returns fit(frame, y, seed), which returns predict(frame):
# probabilities (n, classes) or numbers (n,).


def predictor(estimator, y):
    return estimator.predict if is_numeric(y) else estimator.predict_proba


def is_numeric(y):
    return y.dtype.kind == "f"


def word_columns(frame):
    return [name for name in frame if frame[name].dtype.kind not in "fiub"]


def as_categories(frame, max_categories=254):
    """Return a function that turns words into categories: the most frequent of this frame, the others are missing."""
    import pandas

    known = {name: frame[name].value_counts().index[:max_categories] for name in word_columns(frame)}

    def convert(frame):
        return frame.assign(**{name: pandas.Categorical(frame[name], known[name]) for name in known})

    return convert


def fill_gaps(frame):
    """Return a function that fills gaps, which pytabkit refuses: medians, columns that say where, and a word of their
    own.
    """
    words = word_columns(frame)
    medians = frame.drop(columns=words).median()
    add_gaps = [name for name in medians.index if frame[name].isna().any()]

    def fill(frame):
        flags = {f"{name} is missing": frame[name].isna().astype(float) for name in add_gaps}
        return frame.fillna({**medians.to_dict(), **dict.fromkeys(words, "(missing)")}).assign(**flags)

    return fill


def boosting():
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    def fit(frame, y, seed, **settings):
        convert = as_categories(frame)
        kind = HistGradientBoostingRegressor if is_numeric(y) else HistGradientBoostingClassifier
        estimator = kind(random_state=seed, categorical_features="from_dtype", **settings).fit(convert(frame), y)
        return lambda frame: predictor(estimator, y)(convert(frame))

    return fit


def tuned_boosting(tries=30):
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split

    fit_once = boosting()

    def fit(frame, y, seed):
        rng = np.random.default_rng(seed)
        train, held_out = train_test_split(
            np.arange(len(y)), test_size=0.2, random_state=seed, stratify=None if is_numeric(y) else y
        )

        def error(settings):
            predictions = fit_once(frame.iloc[train], y[train], seed, **settings)(frame.iloc[held_out])
            if is_numeric(y):
                return np.mean((predictions - y[held_out]) ** 2)
            return log_loss(y[held_out], predictions)

        draw_labels = [
            {
                "learning_rate": float(10 ** rng.uniform(-2, -0.5)),
                "max_iter": int(10 ** rng.uniform(1.7, 2.7)),
                "max_leaf_nodes": int(2 ** rng.uniform(2, 6.5)),
                "min_samples_leaf": int(2 ** rng.uniform(1, 6.5)),
                "l2_regularization": float(10 ** rng.uniform(-4, 1.5)),
                "max_features": float(rng.uniform(0.3, 1)),
            }
            for _ in range(tries)
        ]
        return fit_once(frame, y, seed, **min(draw_labels, key=error))

    return fit


def xgboost():
    from xgboost import XGBClassifier, XGBRegressor

    def fit(frame, y, seed):
        convert = as_categories(frame)
        kind = XGBRegressor if is_numeric(y) else XGBClassifier
        estimator = kind(random_state=seed, enable_categorical=True).fit(convert(frame), y)
        return lambda frame: predictor(estimator, y)(convert(frame))

    return fit


def pipeline(module):
    """Return the perceptrons of a module behind what scikit-learn's guide does to a table, on standardized numbers."""
    import importlib

    from sklearn.compose import TransformedTargetRegressor, make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    library = importlib.import_module(module)

    def fit(frame, y, seed):
        prepare = make_column_transformer(
            (
                make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()),
                make_column_selector(dtype_include="number"),
            ),
            (
                OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=2),
                make_column_selector(dtype_exclude="number"),
            ),
        )
        options = {"random_state": seed, "early_stopping": len(y) > 2_000}
        if is_numeric(y):
            perceptron = TransformedTargetRegressor(library.MLPRegressor(**options), transformer=StandardScaler())
        else:
            perceptron = library.MLPClassifier(**options)
        return predictor(make_pipeline(prepare, perceptron).fit(frame, y), y)

    return fit


def caffelite_tables():
    from caffelite.sklearn import TableClassifier, TableRegressor

    def fit(frame, y, seed):
        kind = TableRegressor if is_numeric(y) else TableClassifier
        return predictor(kind(random_state=seed).fit(frame, y), y)

    return fit


def pytabkit(name, threads=2):
    import pytabkit
    import torch

    def fit(frame, y, seed):
        torch.set_num_threads(threads)
        fill = fill_gaps(frame)
        kind = getattr(pytabkit, f"{name}_{'Regressor' if is_numeric(y) else 'Classifier'}")
        predict = predictor(kind(random_state=seed, device="cpu", n_threads=threads).fit(fill(frame), y), y)
        return lambda frame: predict(fill(frame))

    return fit


MODELS = {
    "caffelite": caffelite_tables,
    "boosting": boosting,
    "tuned boosting": tuned_boosting,
    "XGBoost": xgboost,
    "scikit-learn net": functools.partial(pipeline, "sklearn.neural_network"),
    "plain net": functools.partial(pipeline, "caffelite.sklearn"),
    "RealMLP": functools.partial(pytabkit, "RealMLP_TD"),
    "TabM": functools.partial(pytabkit, "TabM_D"),
}


# ---- judging --------------------------------------------------------------------------------------------------------


@functools.cache
def load_data(name, rows):
    frame, y = TABLES[name].make()
    return frame[:rows], y[:rows]


@dataclass
class Trial:
    """A model's predictions for the rows that it was not fitted on, their targets, and seconds."""

    predictions: Any
    targets: Any
    fitted_rows: int
    fit_seconds: float
    predict_seconds: float


def make_trials(make, clock):
    """Return a function of a frame, targets and a seed: the Trial of a fit on three quarters."""
    from sklearn.model_selection import train_test_split

    warnings.simplefilter("ignore")
    fit = make()
    first = [True]

    def run(frame, y, seed):
        split = {"test_size": 0.25, "random_state": seed, "stratify": None if is_numeric(y) else y}
        train, test, y_train, y_test = train_test_split(frame, y, **split)
        if first:
            first.clear()
            fit(train[:200], y_train[:200], seed)
        start = clock()
        predict = fit(train, y_train, seed)
        fitted = clock()
        predictions = predict(test)
        return Trial(predictions, y_test, len(y_train), fitted - start, clock() - fitted)

    return run


def contestant(make):
    """Return a function of a table's name, a seed and a number of rows: the score, the log loss and the seconds of a
    fit.
    """
    from sklearn.metrics import log_loss, r2_score, roc_auc_score

    run = make_trials(make, time.perf_counter)

    def judge(name, seed, rows):
        frame, y = load_data(name, rows)
        trial = run(frame, y, seed)
        predictions, y_test, seconds = trial.predictions, trial.targets, trial.fit_seconds
        if is_numeric(y):
            return r2_score(y_test, predictions), None, seconds
        positive = predictions[:, 1] if predictions.shape[1] == 2 else predictions
        return roc_auc_score(y_test, positive, multi_class="ovr"), log_loss(y_test, predictions), seconds

    return judge


def mean_ranks(scores):
    """Return the mean rank of each column of scores (tables, models), 1 is the largest."""
    from scipy.stats import rankdata

    return rankdata(-np.array(scores), axis=1).mean(axis=0)


def report(results, models):
    """Return the tables of scores and of log losses, with ranks and seconds, as text. results[table][model] are
    triples.
    """
    scores, losses, seconds = [
        {
            name: [statistics.mean(values) if None not in values else None for values in of_models]
            for name, of_models in (
                (name, [[triple[i] for triple in of_table[model]] for model in models])
                for name, of_table in results.items()
            )
        }
        for i in range(3)
    ]
    of_classes = {name: values for name, values in losses.items() if None not in values}

    def lines(values):
        return [[f"{name}{' *' * TABLES[name].held_out}", *[f"{x:.4f}" for x in row]] for name, row in values.items()]

    def ranks(values, sign):
        ranked = mean_ranks([[sign * x for x in row] for row in values.values()])
        return ["mean rank", *[f"{rank:.2f}" for rank in ranked]]

    total = ["seconds of a fit, all tables", *[f"{sum(column):.1f}" for column in zip(*seconds.values(), strict=True)]]
    text = harness.table(["AUC or R²", *models], [*lines(scores), ranks(scores, 1), total])
    if of_classes:
        text += "\n\n" + harness.table(["log loss", *models], [*lines(of_classes), ranks(of_classes, -1)])
    slow = [[name, *[f"{x:.2f}" for x in row]] for name, row in seconds.items()]
    return text + "\n\n" + harness.table(["seconds of a fit", *models], slow)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    parser.add_argument("--threads", type=int, default=2, help="number of cores, and of threads (2)")
    parser.add_argument("--only", nargs="+", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--chosen-on", action="store_true", help="without the tables that are held out, marked *")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=[*MODELS], metavar="MODEL", help=", ".join(MODELS)
    )
    parser.add_argument("--quick", action="store_true", help="400 rows of some tables, one seed, without tuning")
    options = parser.parse_args()
    harness.use_threads(options.threads)
    names = options.only or [name for name in TABLES if not (options.chosen_on and TABLES[name].held_out)]
    seeds, rows = options.seeds, None
    if options.quick:
        names, seeds, rows = names[::5], 1, 400
        options.models = [model for model in options.models if model != "tuned boosting"]

    print(harness.environment("scikit-learn", "xgboost", "pytabkit", "torch"))
    print(f"threads: {options.threads}, seeds: {seeds}; * held out from choosing a recipe\n")
    fits = {name: harness.Process(contestant, MODELS[name], cores=options.threads) for name in options.models}
    for name in [name for name, fit in fits.items() if fit.missing]:
        print(f"{name}: left out, since {fits[name].missing} is not installed")
        fits.pop(name).close()
    results = {
        name: {model: [fit(name, seed, rows) for seed in range(seeds)] for model, fit in fits.items()} for name in names
    }
    for fit in fits.values():
        fit.close()
    print(report(results, list(fits)))


if __name__ == "__main__":
    main()
