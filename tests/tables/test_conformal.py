"""Intervals and sets from rows that nets have held out."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.tables import TableModel, conformal, recipe
from caffelite.tables.conformal import ErrorScale, Factor, IntervalCalibration, Intervals, SetCalibration, Sets
from caffelite.tables.evaluation import calibration_error
from caffelite.tables.recipe import TrainedNet


@pytest.mark.parametrize(
    ("coverage", "for_interval", "for_set"),
    [(0.9, 19, 9), (0.5, 3, 1), (0.99, 199, 99), (0.05, 2, 1), (0.999, 1999, 999)],
)
def test_so_many_rows_are_needed_and_fewer_raise(coverage, for_interval, for_set):
    for needed, make in (
        (for_interval, lambda scores: IntervalCalibration(ErrorScale(1.0), scores)),
        (for_set, SetCalibration),
    ):
        regions = make(np.arange(needed, dtype=float)).make_regions(coverage)
        assert regions.coverage == coverage
        with pytest.raises(ValueError, match=f"coverage={coverage} needs {needed:,} rows .* there are {needed - 1:,}$"):
            make(np.arange(needed - 1, dtype=float)).make_regions(coverage)


def test_limits_are_the_scores_whose_ranks_the_theory_gives():
    calibration = IntervalCalibration(ErrorScale(1.0), np.arange(1.0, 40.0))  # 39 of them
    assert calibration.make_regions(0.95)[1:3] == (1, 39)
    assert calibration.make_regions(0.9)[1:3] == (2, 38)
    assert calibration.make_regions(0.5)[1:3] == (10, 30)
    assert SetCalibration(np.arange(1.0, 10.0)).make_regions(0.9).threshold == 9
    assert SetCalibration(np.arange(1.0, 10.0)).make_regions(0.75).threshold == 8


@pytest.mark.parametrize(
    ("coverage", "error"),
    [
        *[(coverage, ValueError) for coverage in (0, 1, 1.5, -0.1, np.nan, np.inf)],
        *[(coverage, TypeError) for coverage in (True, "a", None, [0.9])],
    ],
)
def test_a_coverage_that_is_not_between_0_and_1_raises(coverage, error):
    with pytest.raises(error, match="coverage must be"):
        SetCalibration(np.zeros(10_000)).make_regions(coverage)


def test_the_scale_is_larger_where_errors_are():
    rng = np.random.default_rng(0)
    x, code = rng.normal(size=3000), rng.integers(0, 3, 3000)
    x[:300] = np.nan
    expected = np.where(np.isnan(x), 5, np.where(x > 0, 2, 0.5)) * np.where(code == 1, 3, 1)
    features = [rng.normal(size=3000), x, code]
    errors = expected * rng.exponential(size=3000)
    scale, out_of_fold = conformal.fit_error_scale(features, errors)
    assert np.corrcoef(np.log(scale.predict(features)), np.log(expected))[0, 1] > 0.95
    assert np.corrcoef(np.log(out_of_fold), np.log(expected))[0, 1] > 0.94
    assert scale.predict(features).mean() == pytest.approx(errors.mean(), rel=0.1)
    new = [np.zeros(1), np.ones(1), np.array([7])]  # a code that was not there
    known = {f.feature: f for f in scale.factors}
    assert known[2].predict(new[2]) == 1
    assert scale.predict(new) > 0


def test_the_scale_for_a_row_does_not_know_its_own_error():
    rng = np.random.default_rng(0)
    features, errors = [rng.normal(size=400), rng.normal(size=400)], rng.exponential(size=400)
    _, before = conformal.fit_error_scale(features, errors)
    fold = np.flatnonzero(np.random.default_rng(0).permutation(400) % conformal.FOLDS == 0)
    changed = errors.copy()
    changed[fold] = errors[fold[::-1]]  # the same errors, of other rows
    _, after = conformal.fit_error_scale(features, changed)
    np.testing.assert_array_equal(after[fold], before[fold])
    assert (np.delete(after, fold) != np.delete(before, fold)).all()


def test_few_rows_and_errors_of_zero_have_one_scale():
    x = np.arange(39.0)
    scale, rows = conformal.fit_error_scale([x, x], x)
    assert scale == ErrorScale(19.0)
    np.testing.assert_array_equal(rows, np.full(39, 19.0))
    assert conformal.fit_error_scale([np.arange(500.0)], np.zeros(500))[0] == ErrorScale(1.0)
    scale, rows = conformal.fit_error_scale([np.full(500, np.nan), np.zeros(500)], np.r_[1e308, np.zeros(499)])
    assert np.isfinite(rows).all()
    assert (rows > 0).all()


def test_each_held_out_row_counts_once_with_the_mean_of_its_nets():
    nets = [cl.Model([cl.Linear(1, 1)]) for _ in range(3)]
    for i, net in enumerate(nets):
        net[0].weight.data, net[0].bias.data = np.ones((1, 1)), np.full(1, i)
    x = np.arange(6.0)[:, None]
    held_out = [np.array([4, 1]), np.array([0]), np.array([4, 1])]
    trained = [TrainedNet(net, cl.History(), rows) for net, rows in zip(nets, held_out, strict=True)]
    rows = recipe.find_held_out_rows(trained)
    np.testing.assert_array_equal(rows, [0, 1, 4])
    outputs = recipe.predict_held_out(trained, rows, (x,), np.asarray)
    np.testing.assert_array_equal(outputs, [[1], [2], [5]])


@pytest.mark.parametrize(("rows", "nets"), [(100, 8), (100, 3), (5, 8), (2, 1), (13, 2), (50_000, 4)])
def test_the_number_of_held_out_rows_is_known_before_the_training(rows, nets):
    folds = recipe.assign_folds(np.zeros((rows, 1)), np.random.RandomState(0))
    held_out = {i % (folds.max() + 1) for i in range(nets)}
    assert conformal.count_held_out(rows, nets) == min(conformal.MAX_ROWS, np.isin(folds, list(held_out)).sum())


def test_a_set_is_never_empty_and_grows_with_the_coverage():
    p = np.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(Sets(0.5, 0.1).predict(p), [[1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(Sets(0.5, 0.7).predict(p), [[1, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(Sets(0.5, 1.0).predict(p), [[1, 1, 1], [1, 1, 1]])


FACTORS = (Factor(0, np.array([0.0, 1.0]), np.array([1.0, 2.0, 3.0, 4.0])), Factor(2, None, np.array([0.5, 1.0])))
INTERVALS = Intervals(0.9, -1.25, 2.0, ErrorScale(0.1, FACTORS))


def make_model(regions, classes=None):
    frame = {"x": [1.0, 2.0, 3.0], "word": ["a", "b", "a"]}
    columns = cl.Columns(frame, 2)
    functions = [columns, cl.Linear(columns.features, 1 if classes is None else 2)]
    if classes is not None:
        functions.append(cl.Softmax())
    return TableModel(functions, "y", classes, regions=regions, seed=0)


def test_a_row_gets_its_prediction_and_its_scale_times_the_limits():
    outputs, arrays = np.array([[0.5], [2.0]]), (np.array([[7.0], [7.0]]), np.array([[0], [5]]))
    expected = [[0.5 - 1.25 * 0.1, 0.5 + 2 * 0.1], [2 - 1.25 * 0.3, 2 + 2 * 0.3]]
    np.testing.assert_allclose(INTERVALS.predict(outputs, arrays), expected)
    with_gap = ErrorScale(1.0, (Factor(1, np.zeros(1), np.array([1.0, 2.0, 3.0])),))
    numbers = np.array([[-1.0], [0.0], [np.nan]])
    found = with_gap.predict(conformal.make_features(np.zeros(3), (numbers,)))
    np.testing.assert_array_equal(found, [1, 2, 3])


@pytest.mark.parametrize(("regions", "classes"), [(INTERVALS, None), (Sets(0.8, 0.625), ["no", "yes"])])
def test_a_file_keeps_them(regions, classes, tmp_path):
    model = make_model(regions, classes)
    model.save(tmp_path / "m.safetensors")
    loaded = cl.load(tmp_path / "m.safetensors")
    assert loaded.regions.get_config() == regions.get_config()
    frame = {"x": [0.5, np.nan], "word": ["b", "c"]}
    arrays = loaded.columns.arrays(frame)
    found = loaded.regions.predict(loaded.predict(frame), arrays)
    np.testing.assert_array_equal(found, regions.predict(model.predict(frame), arrays))
    assert found.shape == (2, 2)


def change_factor(**values):
    return {"factors": [{"feature": 0, "edges": [0.0], "values": [1.0, 1.0, 1.0], **values}]}


@pytest.mark.parametrize(
    "change",
    [
        {"coverage": 1.0}, {"coverage": "a"}, {"low": 3.0}, {"high": np.inf}, {"level": 0.0}, {"other": 1.0},
        change_factor(feature=2), change_factor(feature=3, edges=None), change_factor(feature=-1),
        change_factor(feature=1, edges=None), change_factor(values=[1.0]), change_factor(values=[1.0, 0.0, 1.0]),
        change_factor(values=[1.0, np.nan, 1.0]), change_factor(values=[[1.0]] * 3),
        change_factor(feature=2, edges=None, values=[]),
    ],
)  # fmt: skip
def test_intervals_that_do_not_fit_raise(change):
    with pytest.raises((ValueError, TypeError)):
        make_model({**INTERVALS.get_config(), **change})


def test_sets_that_do_not_fit_raise():
    for config in ({"coverage": 0.9, "threshold": -1.0}, {"coverage": 0.9, "threshold": 0.5, "x": 1}):
        with pytest.raises((ValueError, TypeError)):
            make_model(config, ["no", "yes"])
    with pytest.raises(ValueError, match="expected Sets for classes, or Intervals for values"):
        make_model(INTERVALS, ["no", "yes"])
    with pytest.raises(ValueError, match="expected Sets for classes, or Intervals for values"):
        make_model(Sets(0.9, 0.5))


def test_the_calibration_error_is_the_mean_gap_of_ten_bins():
    p = np.array([[0.45, 0.55], [0.44, 0.56], [0.25, 0.75], [1.0, 0.0]])
    labels = np.array([1, 0, 1, 0])
    expected = (abs(0.55 + 0.56 - 1) + abs(0.75 - 1) + 0) / 4
    assert calibration_error(p, labels) == pytest.approx(expected)
