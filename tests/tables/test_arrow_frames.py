"""Frames that give an Arrow stream: the bits of pandas, the library's memory, and errors that name the column."""

import datetime
import decimal
import gc
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import caffelite as cl
from caffelite.data import frames
from caffelite.tables import column_types, dates
from tests.reference import assert_same_bits

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
narwhals = pytest.importorskip("narwhals")

N = 60
RNG = np.random.default_rng(0)
GAPS = RNG.random((5, N)) < 0.2
NUMBERS = pandas.DataFrame(
    {
        "age": RNG.integers(18, 90, N),
        "income": RNG.normal(5e4, 1e4, N),
        "member": RNG.random(N) < 0.5,
        "height": RNG.normal(1.7, 0.1, N).astype(np.float32),
    }
)
MIXED = NUMBERS.assign(
    city=pandas.Categorical(np.array(["Rome", "Oslo", "Bonn"])[RNG.integers(0, 3, N)]),
    word=np.array(["a word", "a longer word than twelve bytes"])[RNG.integers(0, 2, N)],
    day=pandas.Timestamp("2021-03-01") + pandas.to_timedelta(RNG.integers(0, 300, N), "D"),
    hour=pandas.Timestamp("2020-01-01", tz="Europe/Rome") + pandas.to_timedelta(RNG.integers(0, 9999, N), "h"),
)
WITH_GAPS = MIXED.assign(
    age=MIXED["age"].astype("Int64").where(~GAPS[0]),
    income=MIXED["income"].where(~GAPS[1]),
    member=MIXED["member"].astype("boolean").where(~GAPS[2]),
    word=MIXED["word"].where(~GAPS[3], None),
    hour=MIXED["hour"].where(~GAPS[4]),
)
Y = RNG.integers(0, 2, N)


def arrow_table(frame):
    return pyarrow.Table.from_pandas(frame, preserve_index=False)


def two_chunks(frame):
    table = arrow_table(frame)
    return pyarrow.concat_tables([table.slice(0, 7), table.slice(7, 0), table.slice(7)])


def duckdb_relation(frame):
    connection = pytest.importorskip("duckdb").connect()
    connection.execute("set timezone = 'Europe/Rome'")
    return connection.from_arrow(arrow_table(frame))


LIBRARIES = {
    "polars": polars.from_pandas,
    "pyarrow": arrow_table,
    "pyarrow chunks": two_chunks,
    "pyarrow reader": lambda frame: arrow_table(frame).to_reader(max_chunksize=9),
    "pyarrow batch": lambda frame: arrow_table(frame).combine_chunks().to_batches()[0],
    "duckdb": duckdb_relation,
    "nanoarrow": lambda frame: pytest.importorskip("nanoarrow").c_array_stream(arrow_table(frame)),
    "narwhals": lambda frame: narwhals.from_native(polars.from_pandas(frame)),
}
every_library = pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)


def fit_model(x, y, *layers, **options):
    model = cl.Model([*layers, cl.Linear(layers[0].features if layers else 4, 2)], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=0.1 if layers else 1e-9)
    history = model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=2, verbose=0, **options)
    return model, history


# ---- the same bits ---------------------------------------------------------------------------------------------------


@every_library
@pytest.mark.parametrize("frame", [MIXED, WITH_GAPS], ids=["whole", "with gaps"])
def test_columns_of_every_library_have_the_same_bits(make, frame):
    expected = cl.Columns(frame, robust=True, bins=4)
    columns = cl.Columns(make(frame), robust=True, bins=4)
    assert columns.columns == expected.columns
    assert_same_bits(columns.center, expected.center)
    assert_same_bits(columns.edges, expected.edges)
    for array, other in zip(columns.arrays(make(frame)), expected.arrays(frame), strict=True):
        assert_same_bits(array, other)


@every_library
def test_a_model_of_columns_has_the_same_bits_in_every_library(make):
    model, history = fit_model(make(WITH_GAPS), Y, cl.Columns(make(WITH_GAPS)), validation_data=(make(WITH_GAPS), Y))
    other, of_pandas = fit_model(WITH_GAPS, Y, cl.Columns(WITH_GAPS), validation_data=(WITH_GAPS, Y))
    assert history["val_loss"] == of_pandas["val_loss"]
    assert_same_bits(model.predict(make(WITH_GAPS)), other.predict(WITH_GAPS))
    moved = WITH_GAPS[WITH_GAPS.columns[::-1]].assign(other=0.5)
    assert_same_bits(model.predict(make(moved)), other.predict(WITH_GAPS))


@every_library
def test_numbers_of_every_library_train_as_those_in_pandas(make):
    model, history = fit_model(make(NUMBERS), Y, validation_data=(make(NUMBERS), Y))
    other, of_pandas = fit_model(NUMBERS, Y, validation_data=(NUMBERS, Y))
    assert history["val_loss"] == of_pandas["val_loss"]
    assert_same_bits(model.predict(make(NUMBERS)), other.predict(NUMBERS))
    assert model.evaluate(make(NUMBERS), Y, loss=cl.SoftmaxLoss()) == other.evaluate(NUMBERS, Y, loss=cl.SoftmaxLoss())
    generator = cl.DataGenerator(make(NUMBERS), Y, seed=0)
    assert generator.column_names == [list(NUMBERS)]
    assert_same_bits(generator.x, cl.DataGenerator(NUMBERS, Y).x)
    with pytest.raises(ValueError, match="moved: column 0 is 'height', and was 'age'"):
        model.predict(make(NUMBERS[NUMBERS.columns[::-1]]))


class Batches:
    """One batch an epoch, which a library makes again."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        yield self.make(NUMBERS), Y


@every_library
def test_minimize_fit_many_windows_and_batches_take_every_library(make):
    models = [cl.Model([cl.Linear(4, 2)], seed=0) for _ in range(2)]
    losses = [
        cl.minimize(model, x, Y, loss=cl.SoftmaxLoss(), max_iterations=2, verbose=0)["loss"]
        for model, x in zip(models, (make(NUMBERS), NUMBERS), strict=True)
    ]
    assert losses[0] == losses[1]
    histories = [
        cl.fit_many([model], x, Y, loss=cl.SoftmaxLoss(), optimizers=[cl.SGD(model.parameters(), 1e-9)], verbose=0)
        for model, x in zip(models, (make(NUMBERS), NUMBERS), strict=True)
    ]
    assert histories[0][0]["loss"] == histories[1][0]["loss"]
    windows, expected = (cl.Windows(x, 3, targets=["age", "height"]) for x in (make(NUMBERS), NUMBERS))
    assert_same_bits(windows.y[:], expected.y[:])
    assert fit_model(Batches(make), None)[1]["loss"] == fit_model([(NUMBERS, Y)], None)[1]["loss"]


@pytest.mark.parametrize("make", [arrow_table, LIBRARIES["pyarrow reader"]])
def test_explanations_and_importances_take_frames_that_are_read_once(make):
    table_estimators = pytest.importorskip("caffelite.sklearn", exc_type=ImportError)
    estimator = table_estimators.TableClassifier(n_estimators=1, random_state=0).fit(make(MIXED), Y)
    expected = table_estimators.TableClassifier(n_estimators=1, random_state=0).fit(MIXED, Y)
    assert_same_bits(estimator.explain(make(MIXED[:3]), rows=4).values, expected.explain(MIXED[:3], rows=4).values)
    assert estimator.importances(make(MIXED), Y) == expected.importances(MIXED, Y)
    model = expected.model_
    few = cl.explain(model, make(MIXED[:2]), make(MIXED[5:9]))
    assert_same_bits(few.values, cl.explain(model, MIXED[:2], MIXED[5:9]).values)


def test_a_narwhals_frame_without_a_stream_is_converted_and_needs_narwhals(monkeypatch):
    class Foreign:
        """A frame as of modin: it has columns, and no Arrow stream."""

        __dataframe__ = None

    frame = narwhals.from_native(NUMBERS)
    monkeypatch.setattr(narwhals, "from_native", lambda x, **options: frame)
    assert_same_bits(cl.Columns(Foreign()).arrays(Foreign())[0], cl.Columns(NUMBERS).arrays(NUMBERS)[0])
    monkeypatch.setitem(sys.modules, "narwhals", None)
    with pytest.raises(ImportError, match=r"frames of tests\..* need narwhals: .* -m pip install narwhals"):
        cl.Columns(Foreign())


def test_a_stream_that_no_library_reads_raises_import_error_with_the_command(monkeypatch):
    def raise_error(*_, **__):
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")

    monkeypatch.setattr(narwhals, "from_arrow", raise_error)
    with pytest.raises(ImportError, match=r"frames of pyarrow\.lib need pyarrow: .* -m pip install pyarrow"):
        cl.Columns(arrow_table(NUMBERS).to_reader())


def test_an_arrow_stream_is_read_by_polars_if_there_is_no_pyarrow(monkeypatch):
    stream = SimpleNamespace(schema=None, __arrow_c_stream__=arrow_table(MIXED).__arrow_c_stream__)
    expected = cl.Columns(MIXED).arrays(MIXED)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for array, other in zip(cl.Columns(stream).arrays(stream), expected, strict=True):
        assert_same_bits(array, other)


# ---- types -----------------------------------------------------------------------------------------------------------


def read(*chunks, dtype=None):
    """Return a column of these chunks as a layer reads it."""
    column = pyarrow.chunked_array(list(chunks), dtype)
    return frames.get_columns(pyarrow.table({"a": column}), "x")["a"]


def read_numbers(*chunks, dtype=None):
    return frames.to_numbers(read(*chunks, dtype=dtype), "x", allow_missing=True)


def read_words(*chunks, dtype=None):
    codes, names = column_types.to_categories(read(*chunks, dtype=dtype), "x")
    return codes.tolist(), names


MOMENTS = [datetime.datetime(2020, 2, 29, 3, 5), None, datetime.datetime(1960, 1, 1)]


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
)
def test_numbers_keep_their_type_and_missing_ones_are_nan(dtype):
    values = np.array([1, 2, 3], dtype)
    assert_same_bits(read_numbers(values), values)
    numbers = read_numbers(pyarrow.array(values), pyarrow.nulls(1, pyarrow.from_numpy_dtype(dtype)))
    assert_same_bits(numbers, np.array([1, 2, 3, np.nan]))


@pytest.mark.parametrize("dtype", [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()])
def test_words_of_every_layout_are_sorted_and_missing_ones_are_minus_one(dtype):
    chunks = ["é", None, "", "a word of more than twelve bytes"], ["", "é"]
    names = ["", "a word of more than twelve bytes", "é"]
    assert read_words(*chunks, dtype=dtype) == ([2, -1, 0, 1, 0, 2], names)
    assert frames.describe_content(read(*chunks, dtype=dtype)) == "words such as 'é'"


def test_a_dictionary_may_differ_in_each_chunk_and_only_an_ordered_one_declares_categories():
    def chunk(indices, words, is_ordered):
        return pyarrow.DictionaryArray.from_arrays(pyarrow.array(indices), pyarrow.array(words), ordered=is_ordered)

    chunks = chunk([0, None, 1], ["c", "a", "never"], False), chunk([1, 0], ["a", None], False)
    assert read_words(*chunks) == ([1, -1, 0, -1, 0], ["a", "c"])
    ordered = chunk([2, None], ["c", "a", "b"], True)
    assert read_words(ordered) == ([2, -1], ["c", "a", "b"])
    assert frames.describe_content(read(ordered)) == "categories"
    assert read_words(chunk([1, 0, 1], [30, 10], False)) == ([0, 1, 0], [10, 30])
    assert read_words(chunk([0, 1, 2, 3], [1.5, np.nan, -1.0, 2.0], False)) == ([1, -1, 0, 2], [-1.0, 1.5, 2.0])


def test_large_integers_with_gaps_are_exact_categories():
    big = 2**60
    table = pyarrow.table({"id": [big, None, big + 1, big]})
    assert cl.Columns(table, categories=["id"]).categories == {"id": (big, big + 1)}


@pytest.mark.parametrize("bits", [32, 64, 128, 256])
def test_decimals_are_the_nearest_numbers(bits):
    make = getattr(pyarrow, f"decimal{bits}", None)
    if make is None:
        pytest.skip("this pyarrow has no decimals of this size")
    values = ["1.5", "-0.25", "-1234.56"] + ["123456789012345678901234567890.12", "-98765432109876543210.98"] * (
        bits > 64
    )
    precision = {32: 9, 64: 18, 128: 38, 256: 70}[bits]
    numbers = read_numbers([*map(decimal.Decimal, values), None], dtype=make(precision, 2))
    assert_same_bits(numbers, np.array([*map(float, values), np.nan]))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_keep_their_zone_and_missing_ones_are_not_a_time(unit):
    stamps = np.array(["2020-02-29T03:05", "NaT", "1960-01-01"], "M8[us]")
    zones = {None: None, "Europe/Rome": "Europe/Rome", "UTC": "UTC", "+02:00": "UTC+02:00"}
    for zone, name in zones.items():
        column = dates.to_dates(read(MOMENTS, dtype=pyarrow.timestamp(unit, zone)), "x")
        assert_same_bits(column.stamps, stamps)
        assert column.zone == name
    days = [None if x is None else x.date() for x in MOMENTS]
    for dtype in (pyarrow.date32(), pyarrow.date64()):
        assert dates.is_date_column(read(days, dtype=dtype))
        stamps = dates.to_dates(read(days, dtype=dtype), "x").stamps
        assert_same_bits(stamps, np.array(days, "M8[us]"))


def test_parts_of_columns_are_read_from_their_first_row_on():
    table = pyarrow.table(
        {
            "b": pyarrow.array([True, None, False] * 11),
            "w": pyarrow.array(["x", "y", None] * 11),
            "d": pyarrow.array(["x", "y", None] * 11).dictionary_encode(),
            "c": pyarrow.array([decimal.Decimal(1), None, decimal.Decimal(3)] * 11),
        }
    )
    whole = frames.get_columns(table, "x")
    for begin, length in ((0, 33), (1, 7), (9, 24), (17, 1), (32, 1)):
        for part in (table.slice(begin, length), table.combine_chunks().to_batches()[0].slice(begin, length)):
            columns = frames.get_columns(part, "x")
            for name in ("b", "c"):
                numbers, expected = (frames.to_numbers(x[name], "x", allow_missing=True) for x in (columns, whole))
                np.testing.assert_array_equal(numbers, expected[begin : begin + length])
            for name in ("w", "d"):
                codes, names = column_types.to_categories(columns[name], "x")
                assert [[*names, None][code] for code in codes] == table[name].to_pylist()[begin : begin + length]


def test_a_column_of_the_null_type_is_all_missing():
    columns = cl.Columns(pyarrow.table({"a": pyarrow.nulls(3), "b": [1.0, 2.0, 3.0]}))
    assert columns.numbers == ["a", "b"]
    assert np.isnan(columns.arrays(pyarrow.table({"a": pyarrow.nulls(2), "b": [1.0, 2.0]}))[0][:, 0]).all()


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_numbers_in_one_chunk_are_not_copied_and_cannot_be_written():
    table = pyarrow.table({"x": np.arange(9.0)})
    memory = table["x"].chunk(0).to_numpy()
    series = polars.Series("x", np.arange(9.0))
    generator = cl.DataGenerator(table, table["x"], sample_weight=table["x"])
    for array in (generator.x, generator.y, generator.sample_weight, read_numbers(table["x"].chunk(0))):
        assert np.shares_memory(array, memory)
        assert not array.flags.writeable
    assert np.shares_memory(cl.Columns(table).arrays(table)[0], memory)
    assert np.shares_memory(cl.DataGenerator(series).x, series.to_numpy())
    assert np.shares_memory(cl.DataGenerator(polars.DataFrame([series])).x, series.to_numpy())


def test_arrays_outlive_their_table_and_then_its_memory_is_free():
    gc.collect()
    before = pyarrow.total_allocated_bytes()
    table = pyarrow.table({"x": pyarrow.array(np.arange(99_999.0).tolist()), "w": ["word"] * 99_999})
    array = frames.to_numbers(frames.get_columns(table, "x")["x"], "x")
    del table
    gc.collect()
    assert (array == np.arange(99_999)).all()
    del array
    gc.collect()
    assert pyarrow.total_allocated_bytes() <= before


def test_only_the_columns_that_are_needed_are_converted():
    table = pyarrow.table({"x": [1.0, 2.0], "other": [[1], [2]]})
    assert cl.Columns({"x": np.zeros(2)}).arrays(table)[0].tolist() == [[1], [2]]


# ---- what is read once -----------------------------------------------------------------------------------------------


def test_a_reader_that_was_read_before_raises():
    reader = arrow_table(NUMBERS).to_reader()
    cl.Columns(reader)
    with pytest.raises(ValueError, match="a RecordBatchReader has no rows; if it was read before, it cannot be read"):
        cl.Columns(reader)


def test_labels_in_a_reader_are_read_once_for_class_weights_too():
    table = pyarrow.table({"y": Y.astype(float)})
    model = cl.Model([cl.Linear(4, 1)], seed=0)
    options = {"optimizer": cl.SGD(model.parameters(), 1e-9), "verbose": 0, "loss": cl.MSELoss()}
    with pytest.raises(TypeError, match="class_weight needs labels"):
        model.fit(NUMBERS, table.to_reader(), class_weight="balanced", **options)
    labels = pyarrow.table({"y": Y}).to_reader()
    options["loss"] = cl.SigmoidLoss()
    history = model.fit(NUMBERS, labels, class_weight={0: 2.0}, **options)
    again = cl.Model([cl.Linear(4, 1)], seed=0)
    options["optimizer"] = cl.SGD(again.parameters(), 1e-9)
    assert again.fit(NUMBERS, Y[:, None], class_weight={0: 2.0}, **options)["loss"] == history["loss"]


def test_the_error_of_a_library_that_cannot_read_its_rows_is_passed_on():
    def batches():
        yield arrow_table(NUMBERS).to_batches()[0]
        raise OSError("the disk is gone")

    reader = pyarrow.RecordBatchReader.from_batches(arrow_table(NUMBERS).schema, batches())
    with pytest.raises(OSError, match="the disk is gone"):
        cl.Columns(reader)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ([1.0, None, 3.0], ValueError, "column 'a' has a missing value in row 1: fill it"),
        ([None, 2, None], ValueError, "column 'a' has a missing value in row 0 and 1 others"),
        ([True, None, None], ValueError, "column 'a' has a missing value in row 1 and 1 others"),
        ([1.0, None, float("nan")], ValueError, "column 'a' has a missing value in row 1 and 1 others"),
        ([None, "x", "y"], TypeError, "column 'a' holds words such as 'x'; expected numbers"),
        (
            pyarrow.array(["x", "y", "z"]).dictionary_encode(),
            TypeError,
            "column 'a' holds categories; expected numbers",
        ),
        ([datetime.date(2020, 1, 1)] * 3, TypeError, "column 'a' holds Date; .*days since a day"),
        (
            pyarrow.array(MOMENTS, pyarrow.timestamp("us", "UTC")),
            TypeError,
            r"column 'a' holds Datetime\(time_unit='us', time_zone='UTC'\); .*days since a day",
        ),
        ([datetime.timedelta(1)] * 3, TypeError, "column 'a' holds Duration.*: make numbers of what counts"),
        ([datetime.time(1)] * 3, TypeError, "column 'a' holds Time; .*: make numbers of what counts"),
        ([b"x"] * 3, TypeError, "column 'a' holds Binary; expected numbers"),
        ([[1.0]] * 3, TypeError, r"column 'a' holds List\(Float64\); expected numbers"),
        ([{"x": 1.0}] * 3, TypeError, "column 'a' holds Struct.*; expected numbers"),
        (pyarrow.array([b"xy"] * 3, pyarrow.binary(2)), TypeError, "column 'a' holds .*; expected numbers"),
    ],
)
def test_a_cell_that_is_not_a_number_names_its_column_and_row(column, error, message):
    table = pyarrow.table({"b": [1.0, 2.0, 3.0], "a": column})
    model = cl.Model([cl.Linear(2, 3)], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    with pytest.raises(error, match=f"x: {message}"):
        model.fit(table, [0, 1, 2], loss=cl.SoftmaxLoss(), optimizer=optimizer)
    with pytest.raises(error, match=f"predict: {message}"):
        model.predict(table.to_reader())
    with pytest.raises(error, match=f"x: {message}"):
        cl.DataGenerator(table.to_batches()[0])


@every_library
def test_columns_that_are_not_as_they_were_are_named(make):
    columns = cl.Columns(MIXED)
    for message, frame in {
        "no column 'age'; there are income": MIXED.drop(columns="age"),
        "column 'age' holds words such as 'old'; expected numbers, as in": MIXED.assign(age="old"),
        "column 'age' has inf in row 0; expected finite numbers": MIXED.assign(age=np.inf),
        "column 'word' holds numbers such as 1; expected words such as 'a longer": MIXED.assign(word=1),
        "column 'day' holds words such as 'today'; expected dates": MIXED.assign(day="today"),
        "column 'day' has the time zone .*, and had no time zone": MIXED.assign(day=MIXED["hour"]),
    }.items():
        with pytest.raises((ValueError, TypeError), match=f"Columns: .*{message}"):
            columns.arrays(make(frame))


def test_tables_without_columns_or_rows_or_with_a_name_twice_raise():
    model, _ = fit_model(NUMBERS, Y)
    twice = pyarrow.table([[1.0], [2.0]], names=["age", "age"])
    for use in (model.predict, cl.Columns, cl.DataGenerator):
        with pytest.raises(ValueError, match="unique column names, got:\n- 'age' 2 times"):
            use(twice)
        with pytest.raises(ValueError, match="no columns"):
            use(pyarrow.table({}))
        with pytest.raises(ValueError, match="no rows"):
            use(arrow_table(NUMBERS[:0]))


def test_rows_that_are_missing_as_a_whole_raise():
    rows = pyarrow.array([{"a": 1.0}, None])
    struct = SimpleNamespace(schema=None, __arrow_c_stream__=pyarrow.chunked_array([rows]).__arrow_c_stream__)
    with pytest.raises(ValueError, match="struct has non-zero null count"):
        cl.Columns(struct)


def test_columns_alone_are_targets_and_weights_and_are_named():
    table = pyarrow.table({"y": Y, "w": RNG.random(N), "gap": [None, *Y[1:].tolist()]})
    batch = table.to_batches()[0]
    expected = fit_model(NUMBERS, Y, sample_weight=table["w"].to_numpy())[1]["loss"]
    from_native = narwhals.from_native
    for source in (table, batch, polars.from_arrow(table), from_native(table), from_native(polars.from_arrow(table))):
        assert fit_model(NUMBERS, source["y"], sample_weight=source["w"])[1]["loss"] == expected
        with pytest.raises(ValueError, match=r"targets.* has a missing value in row 0"):
            fit_model(NUMBERS, source["gap"])
    with pytest.raises(TypeError, match=r"targets holds Struct.*; expected numbers"):
        fit_model(NUMBERS, pyarrow.chunked_array([pyarrow.array([{"a": 1}] * N)]))


def test_an_array_with_a_method_collect_is_not_a_lazy_frame():
    class Replica:
        def __array__(self, dtype=None, copy=None):
            return np.ones((3, 1), np.float32)

        def collect(self):
            raise AssertionError

    model = cl.Model([cl.Linear(1, 1)], seed=0)
    assert_same_bits(model.predict(Replica()), model.predict(np.ones((3, 1), np.float32)))


@pytest.mark.parametrize(
    "use",
    [
        cl.Columns,
        cl.DataGenerator,
        cl.Model([cl.Linear(1, 1)], seed=0).predict,
        lambda x: cl.Windows(x, 2),
        lambda x: pytest.importorskip("caffelite.sklearn").TableClassifier().fit(x, [0]),
        lambda x: pytest.importorskip("caffelite.sklearn").NetClassifier(lambda frame, n: None).fit(x, [0]),
    ],
)
def test_a_lazy_frame_says_how_to_make_a_frame(use):
    with pytest.raises((TypeError, ValueError), match=r"\.collect\(\) makes a frame from it"):
        use(polars.LazyFrame({"a": [1.0]}))
