"""predict_interval and predict_set of TableRegressor and TableClassifier."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import caffelite as cl
from caffelite.sklearn import TableClassifier, TableRegressor
from tests.sklearn.test_table_estimators import FRAME, KINDS, NUMBER, N, fit_estimator

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def estimator(request):
    return fit_estimator(request.param, categorical_features=["code"])


def regions(estimator, x=FRAME, coverage=0.9):
    return getattr(estimator, "predict_set" if isinstance(estimator, TableClassifier) else "predict_interval")(
        x, coverage
    )


def measure_coverage(estimator, x, y, coverage):
    """Return the share of rows whose number is in its interval, or whose class is in its set."""
    found = regions(estimator, x, coverage)
    if isinstance(estimator, TableClassifier):
        return found[np.arange(len(y)), np.searchsorted(estimator.classes_, y)].mean()
    return ((found[:, 0] <= y) & (y <= found[:, 1])).mean()


# With errors of rows that a net was trained on, the means would be 0.62.
@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_are_covered_as_promised(kind):
    shares = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(3000, 40))
        y = x[:, 0] + rng.normal(size=3000)
        y = np.digitize(y, [-0.5, 0.5]) if kind is TableClassifier else y
        estimator = fit_estimator(kind, x[:400], y[:400], n_estimators=4)
        shares.append(measure_coverage(estimator, x[400:], y[400:], 0.8))
    assert 0.77 < np.mean(shares) < 0.84
    assert min(shares) > 0.8 - 200**-0.5


def test_intervals_are_wider_if_the_noise_is_larger():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4000, 3))
    deviation = np.where(x[:, 1] > 0, 1.0, 0.1)
    y = x[:, 0] + deviation * rng.normal(size=4000)
    estimator = fit_estimator(TableRegressor, x[:2000], y[:2000], n_estimators=4)
    low, high = estimator.predict_interval(x[2000:]).T
    is_loud = x[2000:, 1] > 0
    assert np.median((high - low)[is_loud]) > 5 * np.median((high - low)[~is_loud])
    covered = (low <= y[2000:]) & (y[2000:] <= high)
    assert 0.8 < covered[is_loud].mean() < 0.97
    assert 0.85 < covered[~is_loud].mean() < 0.99


def test_each_end_of_an_interval_is_passed_as_often():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6000, 2))
    y = x[:, 0] + rng.exponential(size=6000)
    low, high = fit_estimator(TableRegressor, x[:3000], y[:3000], n_estimators=4).predict_interval(x[3000:], 0.8).T
    assert 0.07 < (y[3000:] < low).mean() < 0.13
    assert 0.07 < (y[3000:] > high).mean() < 0.13


def test_a_higher_coverage_has_larger_intervals_and_sets(estimator):
    few, many = (regions(estimator, coverage=coverage) for coverage in (0.3, 0.95))
    if isinstance(estimator, TableClassifier):
        assert few.dtype == bool
        assert few.shape == (N, 2)
        assert (few <= many).all()
        assert few.sum() < many.sum()
        most_probable = estimator.predict_proba(FRAME).argmax(axis=1)
        assert few[np.arange(N), most_probable].all()
    else:
        assert few.dtype == np.float64
        assert few.shape == (N, 2)
        assert (many[:, 0] < few[:, 0]).all()
        assert (few[:, 0] < few[:, 1]).all()
        assert (few[:, 1] < many[:, 1]).all()
    np.testing.assert_array_equal(regions(estimator), regions(estimator, coverage=0.9))


def test_a_row_alone_and_frames_of_polars_and_pickles_give_the_same_bits(estimator):
    whole = regions(estimator)
    for i in range(0, N, 37):
        np.testing.assert_array_equal(regions(estimator, FRAME[i : i + 1])[0], whole[i])
    np.testing.assert_array_equal(regions(pickle.loads(pickle.dumps(estimator))), whole)
    polars = pytest.importorskip("polars")
    np.testing.assert_array_equal(regions(estimator, polars.from_pandas(FRAME)), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_no_bit(kind):
    before, expected = cl.get_num_threads(), regions(fit_estimator(kind))
    cl.set_num_threads(1 if before > 1 else 3)
    try:
        np.testing.assert_array_equal(regions(fit_estimator(kind)), expected)
    finally:
        cl.set_num_threads(before)


def test_old_pickles_say_what_to_do(estimator):
    old = copy.deepcopy(estimator)
    del old._calibration
    np.testing.assert_array_equal(old.predict(FRAME), estimator.predict(FRAME))
    with pytest.raises(ValueError, match=f"this {type(estimator).__name__} does not know .* fit it again"):
        regions(old)
    with pytest.raises(NotFittedError):
        regions(clone(estimator))


def test_too_few_rows_raise_and_say_how_many_are_needed(estimator):
    is_classifier = isinstance(estimator, TableClassifier)
    needed = "999" if is_classifier else "1,999"
    with pytest.raises(
        ValueError, match=rf"coverage=0\.999 needs {needed} rows that the nets held out, and there are 150"
    ):
        regions(estimator, coverage=0.999)
    for coverage, error in (
        (0, ValueError),
        (1, ValueError),
        (np.nan, ValueError),
        (True, TypeError),
        ("a", TypeError),
    ):
        with pytest.raises(error, match="coverage"):
            regions(estimator, coverage=coverage)


def test_rows_of_weight_zero_are_not_counted():
    weights = (np.arange(N) % 3 > 0).astype(float)
    with pytest.raises(ValueError, match=r"there are 100$"):
        fit_estimator(TableRegressor, weights=weights).predict_interval(FRAME, 0.9999)
    with pytest.raises(ValueError, match=r"there are 400$"):
        fit_estimator(TableClassifier, weights=weights, n_estimators=9).predict_set(FRAME, 0.9999)


def test_two_rows_one_class_and_targets_without_noise():
    tiny = fit_estimator(TableRegressor, FRAME[:2], NUMBER[:2])
    with pytest.raises(ValueError, match="needs 3 rows that the nets held out, and there are 2"):
        tiny.predict_interval(FRAME, 0.5)
    assert np.isfinite(tiny.predict_interval(FRAME[:5], 0.2)).all()
    alone = fit_estimator(TableClassifier, FRAME[:40], np.zeros(40, int))
    np.testing.assert_array_equal(alone.predict_set(FRAME), np.ones((N, 1), bool))
    rare = fit_estimator(TableClassifier, FRAME, np.r_[[0], np.repeat([1, 2], [200, N - 201])])
    assert rare.predict_set(FRAME).any(axis=1).all()
    constant = fit_estimator(TableRegressor, FRAME, np.full(N, 7.0))
    np.testing.assert_allclose(constant.predict_interval(FRAME), 7.0, atol=0.1)
    one = fit_estimator(TableRegressor, n_estimators=1)
    low, high = one.predict_interval(FRAME).T
    assert (low < high).all()
