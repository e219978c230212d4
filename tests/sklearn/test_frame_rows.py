"""Estimators of frames: tables of any library that gives an Arrow stream, with names as scikit-learn checks them."""

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

import caffelite as cl
from caffelite.sklearn import NetClassifier, NetRegressor, TableClassifier, TableRegressor
from tests.reference import assert_same_bits

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("narwhals")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N = 80
RNG = np.random.default_rng(0)
FRAME = pandas.DataFrame({"x": RNG.normal(size=N), "word": RNG.choice(["red", "green"], N), "n": RNG.integers(0, 9, N)})
LABELS = np.where((FRAME["x"] > 0) ^ (FRAME["word"] == "red"), "yes", "no")
NUMBERS = FRAME["x"].to_numpy() + (FRAME["word"] == "red").to_numpy()
TABLE = pyarrow.Table.from_pandas(FRAME)

LIBRARIES = {
    "polars": lambda frame: polars.from_pandas(frame),
    "pyarrow": pyarrow.Table.from_pandas,
    "pyarrow batch": pyarrow.RecordBatch.from_pandas,
    "pyarrow reader": lambda frame: pyarrow.Table.from_pandas(frame).to_reader(max_chunksize=7),
    "duckdb": lambda frame: pytest.importorskip("duckdb").connect().from_arrow(pyarrow.Table.from_pandas(frame)),
}
every_library = pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)


def net(frame, n_outputs):
    columns = cl.Columns(frame)
    return cl.Model([columns, cl.Linear(columns.features, n_outputs)])


def make_estimators():
    return [
        (TableClassifier(n_estimators=2, max_bins=8, random_state=0), LABELS),
        (TableRegressor(n_estimators=2, max_bins=8, random_state=0), NUMBERS),
        (NetClassifier(net, max_iter=3, random_state=0, early_stopping=True), LABELS),
        (NetClassifier(net, max_iter=3, random_state=0, early_stopping=True, scoring="f1_macro"), LABELS),
        (NetRegressor(net, max_iter=3, random_state=0), NUMBERS),
    ]


def outputs(estimator, frame):
    return estimator.predict_proba(frame) if hasattr(estimator, "predict_proba") else estimator.predict(frame)


@every_library
@pytest.mark.parametrize("i", range(5))
def test_an_estimator_has_the_same_bits_in_every_library(make, i):
    (estimator, y), (expected, _) = make_estimators()[i], make_estimators()[i]
    expected.fit(FRAME, y)
    estimator.fit(make(FRAME), y)
    assert estimator.n_features_in_ == 3
    assert estimator.feature_names_in_.tolist() == ["x", "word", "n"]
    assert_same_bits(outputs(estimator, make(FRAME)), outputs(expected, FRAME))
    assert estimator.score(make(FRAME), y) == expected.score(FRAME, y)
    assert_same_bits(outputs(expected, make(FRAME[:7])), outputs(expected, FRAME)[:7])
    if isinstance(estimator, NetRegressor):
        estimator.fit(make(FRAME), y, eval_set=(make(FRAME[:9]), y[:9]))
        assert len(estimator.validation_scores_) == 3


@every_library
@pytest.mark.parametrize("i", [0, 4])
def test_columns_that_moved_or_are_missing_raise_value_error(make, i):
    estimator, y = make_estimators()[i]
    estimator.fit(make(FRAME), y)
    for frame in (FRAME[["n", "x", "word"]], FRAME[["x", "n"]], FRAME.assign(more=1)):
        with pytest.raises(ValueError, match=r"[Cc]olumns|feature"):
            estimator.predict(make(frame))
    with pytest.raises(ValueError, match="inconsistent"):
        estimator.fit(make(FRAME), y[:-1])


def test_an_estimator_of_arrays_takes_tables_by_position():
    estimator = TableRegressor(n_estimators=1, random_state=0).fit(FRAME[["x", "n"]].to_numpy(), NUMBERS)
    table = TABLE.select(["x", "n"])
    with pytest.warns(UserWarning, match="fitted without feature names"):
        assert_same_bits(estimator.predict(table), estimator.predict(FRAME[["x", "n"]].to_numpy()))
    with (
        pytest.warns(UserWarning, match="fitted without feature names"),
        pytest.raises(ValueError, match="X has 1 features, but TableRegressor is expecting 2"),
    ):
        estimator.predict(TABLE.select(["n"]))


def test_columns_of_a_table_are_labels_and_weights():
    table = TABLE.append_column("y", pyarrow.array(LABELS)).append_column("w", pyarrow.array(RNG.random(N)))
    estimator, other = (TableClassifier(n_estimators=1, random_state=0) for _ in range(2))
    estimator.fit(TABLE, table["y"], table["w"])
    other.fit(FRAME, LABELS, table["w"].to_numpy())
    assert_same_bits(estimator.predict_proba(TABLE), other.predict_proba(FRAME))


def test_rows_of_a_table_are_taken_again_and_again():
    estimator = NetClassifier(net, max_iter=2, random_state=0, early_stopping=True)
    train, _ = train_test_split(np.arange(N), random_state=0)
    rows = TABLE.take(train)
    assert_same_bits(
        estimator.fit(rows, LABELS[train]).predict_proba(TABLE),
        estimator.fit(FRAME.iloc[train], LABELS[train]).predict_proba(FRAME),
    )
