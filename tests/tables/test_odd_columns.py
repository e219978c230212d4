"""Columns with masks, far dates, categories of other types or without rows, and half surrogate pairs."""

import datetime as dt
import subprocess
import sys

import numpy as np
import pytest

import caffelite as cl

Y = np.random.default_rng(1).normal(size=(40, 1)).astype(np.float32)


def test_the_vector_of_a_declared_category_without_rows_is_zero():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"c": pd.Categorical(["a", "b"] * 20, categories=["a", "b", "never"]), "x": np.arange(40.0)})
    columns = cl.Columns(frame)
    model = cl.Model([columns, cl.Linear(columns.features, 1)], seed=0)
    model.fit(frame, Y, loss=cl.MSELoss(), optimizer=cl.Adam(model.parameters(), 0.01), epochs=2, verbose=0)
    never, unknown = [pd.DataFrame({"c": [name], "x": [0.0]}) for name in ("never", "brand new")]
    np.testing.assert_array_equal(model.predict(never), model.predict(unknown))


def test_a_masked_array_raises_and_names_its_column():
    columns = cl.Columns({"a": np.arange(4.0)})
    column = np.ma.masked_array([1.0, 2.0, 3.0, 1e9], mask=[0, 0, 0, 1])
    with pytest.raises(ValueError, match="column 'a' has masked elements"):
        columns.arrays({"a": column})
    assert columns.arrays({"a": np.ma.masked_array(np.arange(4.0))})[0].shape == (4, 1)


@pytest.mark.parametrize("unit", ["Y", "D", "s"])
def test_dates_beyond_microseconds_raise_and_are_not_wrapped(unit):
    far = np.array([2020 - 1970, 300_000 - 1970], "datetime64[Y]").astype(f"datetime64[{unit}]")
    with pytest.raises(ValueError, match="column 'd' has a date in the year 300000 in row 1; expected years up to"):
        cl.Columns({"d": far})
    near = far[:1].repeat(2)
    assert cl.Columns({"d": near}).arrays({"d": near})[0].shape[0] == 2


def test_categories_of_float32_are_known_in_float64_and_the_other_way_round():
    values = np.array([0.1, 0.2, 0.5, 3.0])
    assert cl.Columns({"c": [1e300, 2e300] * 5}, categories=["c"]).arrays({"c": [2e300]})[0].tolist() == [[1]]
    for learned, given in (("f4", "f8"), ("f8", "f4"), ("f4", "f4"), ("f8", "f8")):
        columns = cl.Columns({"c": np.tile(values, 5).astype(learned)}, categories=["c"])
        assert columns.arrays({"c": values.astype(given)})[0].ravel().tolist() == [0, 1, 2, 3]


def test_nan_in_a_column_of_polars_that_is_a_category_is_missing():
    pl = pytest.importorskip("polars")
    columns = cl.Columns(pl.DataFrame({"c": [1.0, float("nan"), 2.0, None] * 5}), categories=["c"])
    assert columns.categories == {"c": (1, 2)}
    codes = columns.arrays(pl.DataFrame({"c": [2.0, float("nan"), 9.0, None]}))[0]
    assert codes.ravel().tolist() == [1, 2, 3, 2]


def test_half_a_surrogate_pair_is_saved_and_loaded(tmp_path):
    words = cl.Vocabulary(["ab\ud83d"], characters=True)
    model = cl.Model([cl.Embedding(len(words), 2), cl.Flatten(), cl.Linear(6, 2)], seed=0)
    model.vocabulary = words
    x, y = np.full((20, 3), 2), np.arange(20) % 2
    options = {"optimizer": cl.SGD(model.parameters(), 0.1), "epochs": 2, "verbose": 0}
    path = tmp_path / "c.safetensors"
    model.fit(x, y, loss=cl.SoftmaxLoss(), callbacks=[cl.callbacks.Checkpoint(path)], **options)
    for codes, expected in zip(cl.load(path).vocabulary.encode(["a\ud83d"]), words.encode(["a\ud83d"]), strict=True):
        np.testing.assert_array_equal(codes, expected)
    frame = {"c\ud83d": ["x\ud83d", "y"] * 5}
    table = cl.Model([cl.Columns(frame), cl.Linear(2, 1)], seed=0)
    table.save(path)
    np.testing.assert_array_equal(cl.load(path).predict(frame), table.predict(frame))


def test_dates_of_arrow_are_dates():
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    days = ["2020-01-01", "2021-06-01", None]
    arrow = pd.DataFrame({"d": pd.array(days, dtype="date32[pyarrow]")})
    plain = pd.DataFrame({"d": pd.to_datetime(days)})
    np.testing.assert_array_equal(cl.Columns(arrow).arrays(arrow)[0], cl.Columns(plain).arrays(plain)[0])


@pytest.mark.parametrize("date", [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23)])
def test_the_first_and_the_last_date_of_a_zone_are_dates(date):
    zone = dt.timezone(dt.timedelta(hours=5 if date.year == 1 else -5))
    frame = {"d": [date.replace(tzinfo=zone), dt.datetime(2020, 1, 1, tzinfo=zone)]}
    columns = cl.Columns(frame)
    assert columns.arrays(frame)[0][:, columns.numbers.index("d, year")].tolist() == [date.year, 2020]


def test_train_takes_the_smallest_date_of_dotnet(tmp_path):
    lines = [f"{'0001-01-01' if i % 3 else '2020-01-0' + str(1 + i % 9)} 00:00:00+01:00,{i % 2}" for i in range(80)]
    (tmp_path / "t.csv").write_text("d,y\n" + "\n".join(lines) + "\n")
    command = [sys.executable, "-m", "caffelite", "train", "t.csv", "--target", "y", "--nets", "1", "--epochs", "2"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
