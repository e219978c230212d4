"""TableClassifier and TableRegressor: tables as they are, without tuning."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial, partialmethod
from unittest import mock

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils import estimator_checks

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.sklearn import NetClassifier, NetRegressor, TableClassifier, TableRegressor
from caffelite.tables import recipe as recipes
from caffelite.tables.recipe import Recipe, assign_folds
from tests.conftest import bits

pandas = pytest.importorskip("pandas")

N = 600
KINDS = [TableClassifier, TableRegressor]


def table(n=N, seed=0):
    """Return a frame of everything that there is, a number that depends on it, and whether that is large."""
    rng = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "step": rng.uniform(-1, 1, n),
            "skewed": np.exp(3 * rng.normal(size=n)),
            "word": rng.choice(["red", "green", "blue"], n),
            "code": rng.integers(0, 4, n),
            "flag": rng.random(n) < 0.5,
            "day": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(rng.integers(0, 365, n), "D"),
        }
    )
    number = 2.0 * (frame["step"] > 0.3) + np.log(frame["skewed"]) / 3 + 1.5 * (frame["word"] == "red")
    number += np.sin(np.arange(4) * 2)[frame["code"]] + (frame["day"].dt.month > 6)
    for name, share in (("step", 0.05), ("word", 0.1), ("day", 0.02)):
        frame[name] = frame[name].mask(rng.random(n) < share)
    number = number.to_numpy()
    return frame, number, number > np.median(number)


FRAME, NUMBER, LARGE = table()
TARGETS = {TableClassifier: np.where(LARGE, "large", "small"), TableRegressor: NUMBER}


def fit_estimator(kind, frame=FRAME, y=None, weights=None, **options):
    options = {"n_estimators": 2, "random_state": 0, **options}
    return kind(**options).fit(frame, TARGETS[kind] if y is None else y, weights)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def estimator(request):
    return fit_estimator(request.param, categorical_features=["code"])


def outputs(estimator, frame=FRAME):
    return estimator.predict_proba(frame) if hasattr(estimator, "predict_proba") else estimator.predict(frame)


# scikit-learn says itself that HistGradientBoosting fails the first: a weight of 2 is not a second row where rows are
# split, and bins are quantiles. The second has nothing to check unless SCIPY_ARRAY_API is set.
NOT_PASSED = {"check_sample_weight_equivalence_on_dense_data", "check_array_api_input"}


@pytest.mark.parametrize("kind", [TableClassifier, pytest.param(TableRegressor, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_pass(kind):
    results = estimator_checks.check_estimator(kind(n_estimators=1), on_skip=None, on_fail=None)
    not_passed = {r["check_name"]: r["exception"] for r in results if r["status"] != "passed"}
    assert set(not_passed) <= NOT_PASSED, not_passed
    assert len(results) > 50
    estimator_checks.check_dataframe_column_names_consistency(kind.__name__, kind(n_estimators=1))


def test_it_learns_words_dates_gaps_and_steps(estimator):
    frame, number, large = table(seed=1)
    y = np.where(large, "large", "small") if isinstance(estimator, TableClassifier) else number
    assert estimator.score(frame, y) > 0.85
    assert estimator.n_features_in_ == 6
    assert list(estimator.feature_names_in_) == list(FRAME)
    assert len(estimator.histories_) == 2
    assert all(len(history["val_loss"]) == len(history["loss"]) for history in estimator.histories_)


def test_probabilities_belong_to_the_classes():
    x, y = load_wine(as_frame=True, return_X_y=True)
    estimator = fit_estimator(TableClassifier, x, y)
    p = estimator.predict_proba(x)
    assert p.shape == (178, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(estimator.predict(x), estimator.classes_[p.argmax(axis=1)])
    assert estimator.score(x, y) > 0.98
    assert -np.log(p[np.arange(178), y]).mean() < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bits_on_any_number_of_threads(kind):
    again, before = fit_estimator(kind), cl.get_num_threads()
    with_more = fit_estimator(kind, n_estimators=3)
    cl.set_num_threads(1 if before > 1 else 3)
    try:
        alone = fit_estimator(kind)
    finally:
        cl.set_num_threads(before)
    assert bits(again.model_) == bits(alone.model_)
    np.testing.assert_array_equal(outputs(again), outputs(alone))
    assert len(with_more.histories_) == 3
    other = fit_estimator(kind, random_state=1)
    assert bits(other.model_) != bits(alone.model_)


def threads_in(monkeypatch, estimator, call):
    """Return how many threads may compute while this method of the estimator runs, on a machine with 8."""
    seen = []

    def record_threads(function, *args, **options):
        seen.append(kernels.available_threads())
        return function(*args, **options)

    monkeypatch.setattr(recipes, "fit_many", partial(record_threads, recipes.fit_many))
    monkeypatch.setattr(cl.Model, "predict", partialmethod(partial(record_threads, cl.Model.predict)))
    cl.set_num_threads(8)
    call(estimator)
    assert kernels.available_threads() == cl.get_num_threads() == 8
    return set(seen)


METHODS = [
    lambda estimator: estimator.fit(FRAME, TARGETS[TableRegressor]),
    lambda estimator: estimator.predict(FRAME),
    lambda estimator: estimator.explain(FRAME[:2], rows=3),
    lambda estimator: estimator.importances(FRAME[:20], NUMBER[:20], repeats=1),
]


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize(("n_jobs", "threads"), [(None, 8), (1, 1), (3, 3), (-1, 8), (-2, 7), (-20, 1), (2**70, 8)])
def test_n_jobs_limits_the_threads_of_all_methods(n_jobs, threads, monkeypatch):
    estimator = fit_estimator(TableRegressor, n_estimators=1, n_jobs=n_jobs)
    for call in METHODS:
        with monkeypatch.context() as patch:
            assert threads_in(patch, estimator, call) == {threads}


@pytest.mark.usefixtures("restored_threads")
def test_n_jobs_limits_no_other_thread_and_ends_with_an_error():
    cl.set_num_threads(8)
    seen = []

    class Loss(cl.MSELoss):
        def backward(self, *args):
            with ThreadPoolExecutor(1) as pool:
                seen.append((kernels.available_threads(), pool.submit(kernels.available_threads).result()))
            raise ZeroDivisionError

    estimator = TableRegressor(n_estimators=1, n_jobs=1)
    with pytest.raises(ZeroDivisionError), mock.patch("caffelite.sklearn.table_estimators.MSELoss", Loss):
        estimator.fit(FRAME, NUMBER)
    (here, elsewhere), *_ = seen
    assert here == 1
    assert elsewhere > 1
    assert kernels.available_threads() == 8


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_n_jobs_does_not_change_a_bit(n_jobs):
    for kind in KINDS:
        estimator = fit_estimator(kind, n_jobs=n_jobs)
        assert bits(estimator.model_) == bits(fit_estimator(kind).model_)
        np.testing.assert_array_equal(outputs(estimator), outputs(estimator.set_params(n_jobs=None)))


def test_a_pickle_and_a_clone(estimator):
    copied = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(outputs(copied), outputs(estimator))
    assert clone(estimator).get_params() == estimator.get_params()


def test_a_row_alone_is_as_in_its_batch(estimator):
    whole = outputs(estimator)
    for i in (0, 3, N - 1):
        np.testing.assert_array_equal(outputs(estimator, FRAME[i : i + 1])[0], whole[i])


def test_polars_and_columns_in_a_dict_give_the_same_bits():
    polars = pytest.importorskip("polars")
    frame = FRAME.drop(columns="day")
    for kind in KINDS:
        expected = outputs(fit_estimator(kind, frame), frame)
        given = polars.from_pandas(frame)
        np.testing.assert_array_equal(outputs(fit_estimator(kind, given), given), expected)


def test_arrays_of_objects_are_tables():
    objects = FRAME[["step", "word", "code"]].to_numpy(dtype=object)
    frame = FRAME[["step", "word", "code"]]
    for kind in KINDS:
        of_objects, of_frame = fit_estimator(kind, objects), fit_estimator(kind, frame)
        assert of_objects.columns_.numbers == ["x0", "x2"]
        np.testing.assert_array_equal(outputs(of_objects, objects), outputs(of_frame, frame))


def test_the_model_takes_frames_and_is_saved(estimator, tmp_path):
    expected = outputs(estimator).reshape(N, -1)
    np.testing.assert_allclose(estimator.model_.predict(FRAME), expected, atol=2e-6)
    estimator.model_.save(tmp_path / "model.safetensors")
    loaded = cl.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(FRAME), estimator.model_.predict(FRAME))


def test_the_model_is_exported(estimator, tmp_path):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    import caffelite.c
    import caffelite.onnx

    caffelite.onnx.export(estimator.model_, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    numbers, codes = estimator.columns_.arrays(FRAME)
    arrays = dict(zip([given.name for given in session.get_inputs()], (numbers.astype(np.float32), codes), strict=True))
    np.testing.assert_allclose(session.run(None, arrays)[0], estimator.model_.predict(FRAME), atol=2e-5)
    caffelite.c.export(estimator.model_, tmp_path / "model.c")
    assert "(missing)" in (tmp_path / "model.c").read_text()


def test_numbers_far_from_zero_keep_their_digits():
    y = 1e7 + NUMBER
    estimator = fit_estimator(TableRegressor, y=y)
    assert r2_score(y, estimator.predict(FRAME)) > 0.9


def test_weights_say_which_rows_count():
    x = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    of_first, of_second = (x[:, 0] > 0).astype(int), (x[:, 1] > 0).astype(int)
    y, weights = np.where(np.arange(400) % 2, of_first, of_second), np.arange(400) % 2 + 1e-3
    for kind in KINDS:
        estimator = fit_estimator(kind, x, y, weights)
        assert ((estimator.predict(x) > 0.5) == of_first).mean() > 0.9
    unbalanced = (x[:, 0] + np.random.default_rng(1).normal(size=400) > 1.2).astype(int)
    plain, balanced = (fit_estimator(TableClassifier, x, unbalanced, class_weight=w) for w in (None, "balanced"))
    assert plain.predict(x).mean() < unbalanced.mean() < balanced.predict(x).mean()
    doubled = fit_estimator(TableClassifier, x, unbalanced, weights, class_weight={0: 1.0, 1: 4.0})
    weighted = fit_estimator(TableClassifier, x, unbalanced, weights * np.where(unbalanced, 4.0, 1.0))
    np.testing.assert_array_equal(doubled.predict_proba(x), weighted.predict_proba(x))


def test_searches_and_pipelines_take_it():
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    search = GridSearchCV(TableRegressor(n_estimators=1, random_state=0), {"max_bins": [4, 16]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.2
    assert cross_val_score(TableClassifier(n_estimators=1, random_state=0), FRAME, LARGE, cv=2).mean() > 0.8


LIES = {
    "a column is gone": (lambda f: f.drop(columns="word"), ValueError, "word"),
    "renamed": (lambda f: f.rename(columns={"word": "colour"}), ValueError, "colour"),
    "moved": (lambda f: f[list(f)[::-1]], ValueError, "same order"),
    "words became numbers": (lambda f: f.assign(word=1.5), TypeError, "column 'word' holds numbers"),
    "numbers became words": (lambda f: f.assign(step="a"), (TypeError, ValueError), "step"),
    "dates became words": (lambda f: f.assign(day="monday"), TypeError, "column 'day' holds"),
    "a date of a zone": (lambda f: f.assign(day=f["day"].dt.tz_localize("UTC")), TypeError, "column 'day' has"),
    "infinite": (lambda f: f.assign(skewed=np.inf), ValueError, "column 'skewed' has inf in row 0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_frame_that_is_not_as_it_was_raises(estimator, lie):
    change, error, says = LIES[lie]
    with pytest.raises(error, match=says):
        estimator.predict(change(FRAME))


def test_unknown_categories_and_missing_columns_of_numbers_are_taken(estimator):
    later = FRAME.assign(word="purple", code=99, step=np.nan, day=pandas.NaT)
    assert np.isfinite(outputs(estimator, later)).all()


@pytest.mark.parametrize("given", [["code"], [3], np.arange(6) == 3])
def test_numbers_that_are_categories_are_given_by_name_by_place_or_by_a_mask(given):
    estimator = fit_estimator(TableClassifier, categorical_features=given)
    assert list(estimator.columns_.categories) == ["word", "code"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"categorical_features": ["colour"]}, "the frame has no column 'colour'"),
        ({"categorical_features": [6]}, r"expected columns 0 … 5, got \[6\]"),
        ({"categorical_features": [True]}, "a mask of 6 columns"),
        ({"hidden_layer_sizes": (8, 0)}, "hidden_layer_sizes: expected sizes of at least 1"),
        ({"hidden_layer_sizes": []}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": [2.5]}, "hidden_layer_sizes"),
        ({"n_estimators": 0}, "n_estimators"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"max_bins": 0}, "max_bins"),
        ({"min_frequency": 0}, "min_frequency"),
        *[({"time": x}, "'time' parameter") for x in ("a", 0, -1, np.nan, np.inf, True)],
        *[({"n_jobs": x}, "'n_jobs' parameter") for x in ("a", 0, 1.5, True)],
    ],
)
def test_parameters_that_cannot_be_used_are_named(options, says):
    for kind in KINDS:
        with pytest.raises(ValueError, match=says):
            fit_estimator(kind, **options)


def test_data_that_cannot_be_used_are_named():
    with pytest.raises(ValueError, match="n_samples = 1"):
        fit_estimator(TableRegressor, FRAME[:1], NUMBER[:1])
    with pytest.raises(ValueError, match=r"y contains infinity"):
        fit_estimator(TableRegressor, y=np.where(NUMBER > 1, np.inf, NUMBER))
    with pytest.raises(ValueError, match=r"all 600 sample weights are zero|non-zero"):
        fit_estimator(TableClassifier, weights=np.zeros(N))
    with pytest.raises(ValueError, match="inconsistent"):
        fit_estimator(TableClassifier, y=LARGE[:-1])
    with pytest.raises(ValueError, match="column 'skewed' has inf in row 0"):
        fit_estimator(TableClassifier, FRAME.assign(skewed=np.inf))


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_is_missing_or_no_number_is_named_with_its_row(kind):
    series = pandas.Series(TARGETS[kind], dtype=object)
    for nothing in (None, np.nan, pandas.NA):
        with pytest.raises(ValueError, match=r"^y has a missing value in row 3 and 1 other"):
            fit_estimator(kind, y=series.mask(series.index.isin([3, 5]), nothing))
    if kind is TableRegressor:
        with pytest.raises(ValueError, match=r"^y is 'many' in row 4; expected numbers. TableClassifier takes classes"):
            fit_estimator(kind, y=series.replace(series[4], "many").replace(series[2], "2.5"))
        with pytest.raises(ValueError, match=r"y contains infinity.*: -inf in row 7"):
            fit_estimator(kind, y=series.replace(series[7], -np.inf))


@pytest.mark.parametrize(("kind", "absent"), [(TableClassifier, "predict_interval"), (TableRegressor, "predict_set")])
def test_a_method_of_the_other_estimator_names_the_right_one(kind, absent):
    right = "predict_set" if absent == "predict_interval" else "predict_interval"
    assert not hasattr(kind(), absent)
    with pytest.raises(AttributeError, match=rf"^{kind.__name__} has no attribute '{absent}'; it has {right}\(X, cov"):
        getattr(kind(), absent)
    with pytest.raises(AttributeError, match=f"^{kind.__name__} has no attribute 'predictions'$"):
        _ = kind().predictions


def test_few_rows_and_one_class_are_enough():
    assert fit_estimator(TableRegressor, FRAME[:2], NUMBER[:2]).predict(FRAME[:5]).shape == (5,)
    alone = fit_estimator(TableClassifier, FRAME[:9], np.zeros(9, int))
    np.testing.assert_array_equal(alone.predict_proba(FRAME), np.ones((N, 1)))
    wide = pandas.DataFrame(np.random.default_rng(0).normal(size=(50, 300)))
    assert fit_estimator(TableRegressor, wide, wide[0].to_numpy()).predict(wide).shape == (50,)


def test_each_part_has_its_share_of_each_class():
    y = np.repeat([0, 1, 2], [80, 16, 9])
    parts = assign_folds(y, np.random.RandomState(0))
    counts = np.stack([np.bincount(parts[y == c], minlength=8) for c in range(3)])
    assert (counts.max(axis=1) - counts.min(axis=1) <= 1).all()
    assert sorted(set(assign_folds(np.zeros((3, 1)), np.random.RandomState(0)))) == [0, 1, 2]


# ---- a net of one's own ---------------------------------------------------------------------------------------------


def net_of_a_frame(frame, n_outputs, width=16):
    columns = cl.Columns(frame, robust=True)
    return cl.Model([columns, cl.Linear(columns.features, width), cl.ReLU(), cl.Linear(width, n_outputs)])


def make_frame_estimator(kind, **options):
    options = {"random_state": 0, "max_iter": 60, "learning_rate_init": 0.01, **options}
    return kind(net_of_a_frame, **options)


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("options", [{}, {"early_stopping": True}, {"early_stopping": True, "scoring": "f1_macro"}])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_build_that_takes_a_frame_gets_it_as_it_is(library, options):
    frame, y = FRAME.drop(columns="day"), TARGETS[TableClassifier]
    if library == "polars":
        frame = pytest.importorskip("polars").from_pandas(frame)
    estimator = make_frame_estimator(NetClassifier, **options).fit(frame, y)
    assert estimator.score(frame, y) > 0.8
    assert estimator.n_features_in_ == 5
    assert estimator.model_.dtype == np.float32
    np.testing.assert_array_equal(estimator.predict_proba(frame[:3]), estimator.predict_proba(frame)[:3])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_nets_of_frames_are_searched_evaluated_and_pickled():
    search = GridSearchCV(make_frame_estimator(NetRegressor, max_iter=5), {"build__width": [4, 8]}, cv=2).fit(
        FRAME, NUMBER
    )
    assert search.best_params_["build__width"] in (4, 8)
    estimator = make_frame_estimator(NetRegressor, solver="lbfgs").fit(FRAME, NUMBER)
    assert estimator.score(FRAME, NUMBER) > 0.8
    scored = make_frame_estimator(NetRegressor).fit(FRAME, NUMBER, eval_set=(FRAME[:50], NUMBER[:50]))
    assert scored.validation_scores_[-1] == pytest.approx(scored.score(FRAME[:50], NUMBER[:50]), rel=1e-6)
    copied = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(copied.predict(FRAME), estimator.predict(FRAME))
    more = make_frame_estimator(NetRegressor, warm_start=True, max_iter=2).fit(FRAME, NUMBER)
    before = more.score(FRAME, NUMBER)
    assert more.fit(FRAME, NUMBER).score(FRAME, NUMBER) > before


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_net_of_frames_names_unusable_columns_and_arguments():
    estimator = make_frame_estimator(NetClassifier, max_iter=2).fit(FRAME, LARGE)
    for change, error, says in LIES.values():
        with pytest.raises(error, match=says):
            estimator.predict(change(FRAME))
    with pytest.raises(
        TypeError, match="build takes a frame: expected X to be one of pandas, polars or Arrow, got ndarray"
    ):
        estimator.predict(np.zeros((3, 6)))
    with pytest.raises(ValueError, match="must begin with Columns"):
        NetClassifier(lambda frame, n: cl.MLP(6, [n])).fit(FRAME, LARGE)
    with pytest.raises(ValueError, match="inconsistent"):
        make_frame_estimator(NetClassifier).fit(FRAME, LARGE[:-1])


# ---- what a review found --------------------------------------------------------------------------------------------


def test_an_outlier_does_not_take_the_bins_of_a_column():
    x = np.random.default_rng(0).normal(size=(1000, 2))
    y = (x[:, 0] > 0).astype(int)
    x[5, 0] = 1e8
    estimator = fit_estimator(TableClassifier, x, y)
    assert estimator.columns_.bins == [12, 12]  # 10, and one at each end
    assert estimator.score(x, y) > 0.95


def test_a_fit_that_fails_leaves_no_model():
    estimator = fit_estimator(TableRegressor)
    with pytest.raises(ValueError, match="learning_rate"):
        estimator.set_params(learning_rate=1e30).fit(FRAME, 1000 * NUMBER)
    with pytest.raises(NotFittedError):
        estimator.predict(FRAME)


def test_words_that_are_digits_stay_words_in_objects():
    objects = np.empty((N, 1), object)
    objects[:, 0] = [("1", "2", "3A", None)[i % 4] for i in range(N)]
    estimator = fit_estimator(TableClassifier, objects, np.arange(N) % 4)
    assert estimator.columns_.categories == {"x0": ("1", "2", "3A")}
    assert estimator.score(objects[:5], np.arange(5) % 4) == 1
    assert estimator.predict(objects[:1]) == [0]


@pytest.mark.parametrize("factor", [1e-200, 1e-300, 1e160])
def test_targets_may_be_of_any_size(factor):
    y = factor * NUMBER
    assert r2_score(NUMBER, fit_estimator(TableRegressor, y=y).predict(FRAME) / factor) > 0.9


@pytest.mark.filterwarnings("error")
def test_rows_of_weight_0_are_left_out():
    weights = (np.arange(N) < 20) * 1.0
    estimator = fit_estimator(TableClassifier, weights=weights, n_estimators=8)
    assert all(np.isfinite(history["val_loss"]).all() for history in estimator.histories_)
    with pytest.raises(ValueError, match="n_samples = 1"):
        fit_estimator(TableClassifier, weights=(np.arange(N) < 1) * 1.0)


def test_an_array_after_a_frame_and_a_frame_after_an_array_are_taken_by_their_places():
    x = np.random.default_rng(0).normal(size=(200, 3))
    y, frame = x[:, 0] + 2 * x[:, 1], pandas.DataFrame(x, columns=list("abc"))
    expected = fit_estimator(TableRegressor, x, y).predict(x)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(fit_estimator(TableRegressor, frame, y).predict(x), expected)
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        np.testing.assert_array_equal(fit_estimator(TableRegressor, x, y).predict(frame), expected)
    numbered = pandas.DataFrame(x)
    np.testing.assert_array_equal(fit_estimator(TableRegressor, numbered, y).predict(x), expected)
    np.testing.assert_array_equal(fit_estimator(TableRegressor, numbered, y).predict(numbered[[2, 0, 1]]), expected)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_labels_of_a_net_of_a_frame_may_be_sparse_and_build_may_be_a_class():
    sparse = pytest.importorskip("scipy.sparse")
    y = np.stack([LARGE, ~LARGE], axis=1).astype(int)
    dense, of_sparse = (
        make_frame_estimator(NetClassifier, max_iter=3).fit(FRAME, labels) for labels in (y, sparse.csr_array(y))
    )
    np.testing.assert_array_equal(of_sparse.predict_proba(FRAME), dense.predict_proba(FRAME))
    with pytest.raises(TypeError, match="dict expected at most 1 argument"):
        NetClassifier(dict).fit(np.zeros((4, 2)), [0, 1, 0, 1])


def test_the_estimators_have_the_numbers_of_the_recipe():
    recipe = TableClassifier()._recipe()
    assert recipe._replace(hidden=tuple(recipe.hidden)) == Recipe()
