"""explain and importances of TableClassifier and TableRegressor."""

import copy
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite.attribution.shapley import Game, enumerate_coalitions
from caffelite.sklearn import TableClassifier, TableRegressor
from caffelite.tables import evaluation
from tests.conftest import bits
from tests.sklearn.test_table_estimators import FRAME, KINDS, NUMBER, fit_estimator, outputs

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def estimator(request):
    return fit_estimator(request.param, categorical_features=["code"])


def values_of_one_output(explanation):
    return explanation.values if explanation.values.ndim == 2 else explanation.values[..., 1]


def test_contributions_of_a_frame_add_up_to_the_outputs(estimator):
    e = estimator.explain(FRAME[:8])
    assert e.columns == list(FRAME)
    assert e.classes == (["large", "small"] if isinstance(estimator, TableClassifier) else None)
    np.testing.assert_allclose(e.outputs, outputs(estimator, FRAME[:8]), rtol=1e-15)
    np.testing.assert_allclose(e.base + e.values.sum(axis=1), outputs(estimator, FRAME[:8]), rtol=0, atol=1e-9)
    if e.classes:
        np.testing.assert_allclose(e.values.sum(axis=2), 0, atol=1e-6)
        np.testing.assert_allclose(e.base.sum(), 1, atol=1e-6)


def test_the_base_is_the_mean_output_for_the_background_rows(estimator):
    e = estimator.explain(FRAME[:1], rows=37)
    numbers, codes = estimator.background_
    assert len(numbers) == len(codes) == 500
    few = (numbers[:37], codes[:37])
    predicted = estimator.model_.predict(few).mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(e.base, predicted if e.classes else predicted[0], rtol=1e-6)
    every_row = {row.tobytes() for row in estimator.columns_.arrays(FRAME)[0]}
    assert all(row.tobytes() in every_row for row in numbers)


def test_the_columns_that_decide_have_the_largest_contributions(estimator):
    e = estimator.explain(FRAME[:200], rows=30)
    sizes = dict(zip(e.columns, abs(values_of_one_output(e)).mean(axis=0), strict=True))
    assert max(sizes, key=sizes.get) in ("step", "skewed", "word", "code")
    assert min(sizes, key=sizes.get) == "flag"
    red = values_of_one_output(e)[(FRAME["word"][:200] == "red").to_numpy(bool), e.columns.index("word")]
    assert (red < 0).all() if isinstance(estimator, TableClassifier) else (red > 0).all()  # class 1 is "small"


def test_many_columns_are_within_the_errors_of_an_enumeration():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 8))
    y = np.where(x[:, 0] * x[:, 1] * x[:, 2] + x[:, 3] > 0, "yes", "no")
    model = fit_estimator(TableClassifier, x, y, n_estimators=3)
    e = model.explain(x[:6])
    assert e.columns == [f"x{i}" for i in range(8)]
    background = tuple(a[:100] for a in model.background_)
    game = Game([lambda inputs: model.predict_proba(inputs[0])], (x[:6],), background, (np.arange(8),))
    exact, _ = enumerate_coalitions(game)
    scores = (e.values - exact)[..., 0] / e.errors[..., 0]
    assert 0.7 < np.sqrt(np.mean(scores**2)) < 1.3
    assert abs(scores).max() < 4
    assert e.errors.max() < 0.01
    other = model.explain(x[:6], seed=1)
    assert not np.array_equal(other.values, e.values)
    np.testing.assert_array_equal(model.explain(x[:6], seed=0).values, e.values)
    np.testing.assert_array_equal(model.explain(x[2:3]).values[0], e.values[2])


def test_explaining_changes_nothing(estimator):
    before = bits(estimator.model_)
    estimator.explain(FRAME[:3])
    estimator.importances(FRAME[:100], outputs_as_targets(estimator)[:100])
    assert bits(estimator.model_) == before


def outputs_as_targets(estimator):
    return estimator.predict(FRAME)


def test_pickles_have_the_rows_and_old_ones_say_what_to_do(estimator):
    copied = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(copied.explain(FRAME[:2]).values, estimator.explain(FRAME[:2]).values)
    old = copy.deepcopy(estimator)
    del old.background_, old._target_name
    np.testing.assert_array_equal(outputs(old), outputs(estimator))
    with pytest.raises(ValueError, match=r"no rows of its training .* cl\.explain\(estimator\.model_, X, background\)"):
        old.explain(FRAME[:2])
    e = cl.explain(old.model_, FRAME[:2], FRAME[:50])
    np.testing.assert_allclose(e.base + e.values.sum(axis=1), e.outputs, atol=1e-12)


def test_a_file_of_the_model_has_no_rows(estimator, tmp_path):
    estimator.model_.save(tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    row = estimator.background_[0][0]
    assert np.isfinite(row).any()
    assert all(x.tobytes() not in content for x in row[np.isfinite(row) & (abs(row) > 1e-3)][:1])


def test_rows_of_weight_zero_are_not_kept():
    weights = (np.arange(len(FRAME)) % 3 > 0).astype(float)
    model = fit_estimator(TableRegressor, weights=weights)
    kept = {row.tobytes() for row in model.columns_.arrays(FRAME[weights > 0])[0]}
    assert len(model.background_[0]) == 400
    assert all(row.tobytes() in kept for row in model.background_[0])


def test_arrays_and_frames_of_polars_are_explained():
    polars = pytest.importorskip("polars")
    x = np.random.default_rng(0).normal(size=(60, 3))
    frame = polars.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2]})
    model = fit_estimator(TableRegressor, frame, x[:, 0])
    e = model.explain(frame[:4])
    table = e.frame()
    assert isinstance(table, polars.DataFrame)
    assert table.columns == ["a", "b", "c", "base", "output"]
    assert e.errors.max() == 0
    with pytest.raises(ValueError, match=r"X has 2 features|feature names|no column"):
        model.explain(frame[:4, :2])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rows": 501}, ValueError, "rows: the estimator has 500 rows of its training, got rows=501"),
        ({"rows": 0}, ValueError, "rows"),
        ({"rows": 1.5}, TypeError, "rows"),
    ],
)
def test_a_wrong_number_of_rows_raises(estimator, options, error, text):
    with pytest.raises(error, match=text):
        estimator.explain(FRAME[:2], **options)


# ---- importances ----------------------------------------------------------------------------------------------------


def test_importances_are_the_rise_of_the_loss_of_shuffled_columns(estimator):
    y = np.where(np.median(NUMBER) < NUMBER, "large", "small") if isinstance(estimator, TableClassifier) else NUMBER
    found = estimator.importances(FRAME, y, repeats=20)
    assert sorted(found) == sorted(FRAME)
    means = [mean for mean, _ in found.values()]
    assert means == sorted(means, reverse=True)
    assert all(error > 0 for _, error in found.values())

    def loss(frame):
        if isinstance(estimator, TableRegressor):
            return ((estimator.predict(frame) - y) ** 2).mean() / y.var()
        return -np.log(estimator.predict_proba(frame)[np.arange(len(y)), (y == "small").astype(int)]).mean()

    rng = np.random.default_rng(1)
    for name in ("word", "day", "step"):
        order = [rng.permutation(len(FRAME)) for _ in range(20)]
        rises = [loss(FRAME.assign(**{name: FRAME[name].to_numpy()[o]})) - loss(FRAME) for o in order]
        assert abs(found[name].mean - np.mean(rises)) < 4 * np.std(rises) / np.sqrt(10)
    assert found == estimator.importances(FRAME, y, repeats=20)


def test_importances_of_wrong_targets_raise(estimator):
    is_classifier = isinstance(estimator, TableClassifier)
    y = np.array(["large", "medium"] * 10) if is_classifier else np.full(20, np.nan)
    with pytest.raises(
        ValueError, match="class 'medium', which was not in the training" if is_classifier else "missing value in row 0"
    ):
        estimator.importances(FRAME[:20], y)
    with pytest.raises(ValueError, match="inconsistent"):
        estimator.importances(FRAME[:20], y[:5])


def test_a_random_part_of_very_many_rows_is_shuffled(monkeypatch):
    monkeypatch.setattr(evaluation, "MAX_SHUFFLED_ROWS", 150)
    model, asked = fit_estimator(TableRegressor), []
    predict = model._nets.predict
    monkeypatch.setattr(model._nets, "predict", lambda x: asked.append(len(x[0])) or predict(x))
    model.importances(FRAME, NUMBER, repeats=1)
    assert set(asked) == {150}
