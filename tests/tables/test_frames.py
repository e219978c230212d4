"""Frames of pandas and polars, and dicts of columns: numbers as they are, categories by `Columns`, lies as errors."""

import copy
import decimal
import importlib
import pickle
import warnings

import numpy as np
import pytest

import caffelite as cl
from caffelite.data import frames
from caffelite.data.frames import Categories
from caffelite.files.safetensors import write_arrays
from caffelite.files.state import make_texts, state_arrays
from tests.reference import assert_same_bits

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

N = 60
RNG = np.random.default_rng(0)
NUMBERS = pandas.DataFrame(
    {
        "age": RNG.integers(18, 90, N),
        "income": RNG.normal(5e4, 1e4, N),
        "member": RNG.random(N) < 0.5,
        "height": RNG.normal(1.7, 0.1, N).astype(np.float32),
    }
)
CITIES, SEXES = np.array(["Rome", "Oslo", "Bonn"])[RNG.integers(0, 3, N)], np.array(["m", "f"])[RNG.integers(0, 2, N)]
MIXED = NUMBERS.assign(city=pandas.Categorical(CITIES), sex=SEXES)
Y = (MIXED["city"] == "Rome").astype(int) + 2 * (MIXED["age"] > 50)
ARRAY = NUMBERS.to_numpy().astype(np.float64)


def classifier(*layers, seed=0, dtype=np.float32):
    return cl.Model([*layers, cl.Linear(layers[0].features if layers else 4, 4)], seed=seed, dtype=dtype)


def fit_model(x, y, *layers, dtype=np.float32, **options):
    model = classifier(*layers, dtype=dtype)
    optimizer = cl.SGD(model.parameters(), lr=1e-9 if not layers else 0.1)
    history = model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=2, verbose=0, **options)
    return model, history


def make_frames(frame):
    """Return the same in every library."""
    return [
        frame,
        polars.from_pandas(frame),
        frame.to_dict("series"),
        {name: np.asarray(column) for name, column in frame.items()},
        convert(frame, "numpy_nullable"),
        convert(frame, "pyarrow"),
    ]


@np.errstate(invalid="ignore")  # pandas 2 sees whether numbers are integers by casting them, infinity too
def convert(frame, backend):
    return frame.convert_dtypes(dtype_backend=backend)


LIBRARIES = ["pandas", "polars", "dict of series", "dict of arrays", "pandas nullable", "pandas pyarrow"]
every_library = pytest.mark.parametrize("library", range(len(LIBRARIES)), ids=LIBRARIES)


# ---- numbers --------------------------------------------------------------------------------------------------------


@every_library
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_frame_of_numbers_trains_as_its_array(library, dtype):
    frame = make_frames(NUMBERS)[library]
    model, history = fit_model(frame, Y, dtype=dtype, validation_data=(frame, Y), sample_weight=NUMBERS["age"])
    other, of_array = fit_model(
        ARRAY, Y.to_numpy(), dtype=dtype, validation_data=(ARRAY, Y.to_numpy()), sample_weight=NUMBERS["age"].to_numpy()
    )
    assert history["loss"] == of_array["loss"]
    assert history["val_loss"] == of_array["val_loss"]
    assert (model.predict(frame) == other.predict(ARRAY)).all()
    assert model.evaluate(frame, Y, loss=cl.SoftmaxLoss()) == other.evaluate(ARRAY, Y, loss=cl.SoftmaxLoss())


def test_generators_and_batches_take_frames_too():
    generator = cl.DataGenerator(NUMBERS, Y, seed=0, batch_size=7)
    (x, _), *_ = generator
    assert x.shape == (7, 4)
    assert x.dtype == np.float64
    batches = [(NUMBERS[i : i + 20], Y[i : i + 20]) for i in range(0, N, 20)]
    model, history = fit_model(batches, None)
    other, of_arrays = fit_model([(a.to_numpy().astype(np.float64), b.to_numpy()) for a, b in batches], None)
    assert history["loss"] == of_arrays["loss"]
    assert (model.predict(NUMBERS) == other.predict(ARRAY)).all()


def test_a_column_is_targets_weights_or_an_input():
    for series in (NUMBERS["income"], polars.from_pandas(NUMBERS)["income"]):
        generator = cl.DataGenerator(series, series, sample_weight=series, shuffle=False, batch_size=N)
        for column in next(iter(generator)):
            assert (column == NUMBERS["income"].to_numpy()).all()


def test_frames_are_inputs_among_others():
    class Two(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.a, self.b = cl.Linear(4, 3), cl.Linear(2, 3)

        def call(self, a, b):
            return self.a(a) + self.b(b)

    model = Two()
    x = (NUMBERS, ARRAY[:, :2])
    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=1e-9), "verbose": 0}
    model.fit(x, Y % 3, **options)
    assert model.predict(x).shape == (N, 3)
    with pytest.raises(ValueError, match="moved: column 0 is 'height', and was 'age'"):
        model.predict((NUMBERS[NUMBERS.columns[::-1]], ARRAY[:, :2]))


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        (pandas.Series([1.0, np.nan, 3.0]), ValueError, "column 'a' has a missing value in row 1:"),
        (pandas.Series([None, 2, None], dtype="Int64"), ValueError, "'a' has a missing value in row 0 and 1 others"),
        (pandas.Series([True, None, None], dtype="boolean"), ValueError, "'a'.*row 1 and 1 others"),
        (polars.Series([1, None, 2]), ValueError, "'a' has a missing value in row 1"),
        (polars.Series([1.0, 2.0, float("nan")]), ValueError, "'a' has a missing value in row 2"),
        (np.array([1.0, np.nan, 3]), ValueError, "'a' has a missing value in row 1"),
        (pandas.Series(["x", "y", "z"]), TypeError, r"'a' holds words such as 'x'; expected numbers: cl\.Columns"),
        (pandas.Series(["x", 1, None], dtype=object), TypeError, "'a' holds words such as 'x'"),
        (polars.Series(["x", "y", None]), TypeError, "'a' holds words such as 'x'"),
        (np.array(["x", "y", "z"]), TypeError, "'a' holds words such as 'x'"),
        (pandas.Series(["x", "y", "z"], dtype="category"), TypeError, "'a' holds categories"),
        (pandas.Series([1, 2, 3], dtype="category"), TypeError, "'a' holds categories"),
        (pandas.Series([True, False, True], dtype="category"), TypeError, "'a' holds categories"),
        (polars.Series(["x", "y", "z"], dtype=polars.Categorical), TypeError, "'a' holds categories"),
        (polars.Series(["x", "y", "z"], dtype=polars.Enum(["x", "y", "z"])), TypeError, "'a' holds categories"),
        (pandas.Series(pandas.to_datetime(["2020-01-01"] * 3)), TypeError, "'a' holds datetime64.*days since a day"),
        (pandas.Series([decimal.Decimal(1), None, None]), TypeError, r"'a' holds objects such as Decimal\('1'\)"),
        (np.array([1j, 2, 3]), TypeError, "'a' holds complex128; expected numbers"),
        (pandas.Series([1j, 2, 3]), TypeError, "'a' holds complex128; expected numbers"),
        (polars.Series([[1], [2], [3]]), TypeError, r"'a' holds List\(Int64\)"),
        (Categories(np.zeros(3, int), ["x"]), TypeError, "'a' holds categories"),
        (np.zeros((3, 2)), ValueError, r"'a' of shape \(3, 2\)"),
        (np.zeros(4), ValueError, r"'b' of shape \(3,\) and 'a' of shape \(4,\)"),
        (np.array(1.0), ValueError, r"'a' of shape \(\); one row is \{name: \[value\], …\}"),
    ],
)
def test_a_cell_that_is_not_a_number_names_its_column(column, error, message):
    frame = {"b": np.arange(3.0), "a": column}
    if isinstance(column, pandas.Series):
        frame = pandas.DataFrame(frame)
    elif isinstance(column, polars.Series):
        frame = polars.DataFrame(frame)
    model = cl.Model([cl.Linear(2, 3)], seed=0)
    optimizer, before = cl.SGD(model.parameters(), lr=0.1), model.state_dict()
    with pytest.raises(error, match=f"x: .*{message}"):
        model.fit(frame, [0, 1, 2], loss=cl.SoftmaxLoss(), optimizer=optimizer)
    with pytest.raises(error, match=f"predict: .*{message}"):
        model.predict(frame)
    with pytest.raises(error, match=f"x: .*{message}"):
        cl.DataGenerator(frame)
    assert all((value == before[name]).all() for name, value in model.state_dict().items())


def test_targets_and_weights_that_are_missing_or_words_are_named():
    with pytest.raises(TypeError, match=r"targets: column 'city' holds categories.*np\.unique"):
        fit_model(NUMBERS, MIXED["city"])
    with pytest.raises(ValueError, match="targets: column 'y' has a missing value in row 3"):
        fit_model(NUMBERS, Y.rename("y").where(Y.index != 3))
    with pytest.raises(ValueError, match="sample_weight: column 'age' has a missing value in row 3"):
        fit_model(NUMBERS, Y, sample_weight=NUMBERS["age"].where(Y.index != 3))


def test_decimals_and_sparse_columns_are_numbers():
    frame = polars.DataFrame({"a": [decimal.Decimal("1.5"), decimal.Decimal("2.25")]})
    assert next(iter(cl.DataGenerator(frame, shuffle=False))).tolist() == [[1.5], [2.25]]
    sparse = pandas.DataFrame({"a": pandas.arrays.SparseArray([0, 0, 2])})
    assert next(iter(cl.DataGenerator(sparse, shuffle=False))).tolist() == [[0], [0], [2]]


def test_numbers_that_are_objects_are_numbers():
    model, _ = fit_model(NUMBERS, Y)
    assert (model.predict(NUMBERS.astype(object)) == model.predict(NUMBERS)).all()
    assert cl.Columns(NUMBERS.astype(object)).numbers == list(NUMBERS)
    assert (model.evaluate(NUMBERS, Y.astype(object), loss=cl.SoftmaxLoss())) == model.evaluate(
        NUMBERS, Y, loss=cl.SoftmaxLoss()
    )
    with pytest.raises(ValueError, match="'age' has a missing value in row 3"):
        model.predict(NUMBERS.astype(object).assign(age=[*[1.0] * 3, *[None] * (N - 3)]))


@pytest.mark.parametrize(
    ("x", "way_out"),
    [
        (polars.LazyFrame({"a": [1.0]}), r"\.collect\(\) makes a frame"),
        ([{"a": 1.0}], r"pandas\.DataFrame\(…\) makes a frame"),
        (NUMBERS.to_records(index=False), "{name: x.name. for name in x.dtype.names} makes a frame"),
    ],
)
def test_an_almost_frame_says_how_to_make_one(x, way_out):
    with pytest.raises(TypeError, match=f"predict: .*{way_out}"):
        classifier().predict(x)


def test_a_frame_without_columns_or_with_a_name_twice_raises():
    with pytest.raises(ValueError, match="no columns"):
        cl.DataGenerator(pandas.DataFrame(index=range(3)))
    with pytest.raises(ValueError, match="more than one column 'a'"):
        cl.DataGenerator(pandas.DataFrame(np.zeros((3, 3)), columns=["b", "a", "a"]))
    with pytest.raises(ValueError, match="no rows"):
        cl.DataGenerator(NUMBERS[:0])


# ---- a frame whose columns moved ------------------------------------------------------------------------------------


def copies(model, path):
    model.save(path)
    return [model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), cl.load(path)]


@pytest.mark.parametrize("given", ["frame", "generator", "batches"])
def test_a_frame_whose_columns_moved_or_differ_raises_value_error_naming_them(tmp_path, given):
    x = {"frame": NUMBERS, "generator": cl.DataGenerator(NUMBERS, Y), "batches": [(NUMBERS, Y)]}[given]
    trained, _ = fit_model(x, Y if given == "frame" else None)
    moved, renamed = NUMBERS[["income", "age", "member", "height"]], NUMBERS.rename(columns={"member": "joined"})
    for model in copies(trained, tmp_path / "model.safetensors"):
        uses = [
            model.predict,
            lambda x, model=model: model.evaluate(x, Y, loss=cl.SoftmaxLoss()),
            lambda x, model=model: model.evaluate(cl.DataGenerator(x, Y), loss=cl.SoftmaxLoss()),
            lambda x, model=model: model.evaluate([(x, Y)], loss=cl.SoftmaxLoss()),
        ]
        for use in uses:
            use(polars.from_pandas(NUMBERS))
            with pytest.raises(ValueError, match="moved: column 0 is 'income', and was 'age'"):
                use(moved)
            with pytest.raises(ValueError, match="'member' missing, 'joined' new"):
                use(renamed)
        assert (model.predict(ARRAY) == model.predict(NUMBERS)).all()


def test_validation_data_and_further_training_are_held_to_the_names():
    moved = NUMBERS[["income", "age", "member", "height"]]
    with pytest.raises(ValueError, match="validation_data's x: the frame's columns have moved"):
        fit_model(NUMBERS, Y, validation_data=(moved, Y))
    model, _ = fit_model(NUMBERS, Y)
    with pytest.raises(ValueError, match="x: the frame's columns have moved"):
        model.fit(moved, Y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1))


def test_a_model_that_was_fitted_on_arrays_takes_any_frame():
    model, _ = fit_model(ARRAY, Y)
    assert (model.predict(NUMBERS) == model.predict(NUMBERS.rename(columns=str.upper))).all()


@pytest.mark.parametrize("text", ["1", '{"a": 1}', "[1]", '[["a", 1.5]]', '[["a"], "b"]', "[", '[["a"], null'])
def test_a_file_with_other_names_of_columns_raises(tmp_path, text):
    model, _ = fit_model(NUMBERS, Y)
    texts = make_texts(model) | {"caffelite.columns": text}
    write_arrays(tmp_path / "model", state_arrays(model), texts)
    with pytest.raises(ValueError, match="model"):
        cl.load(tmp_path / "model")


# ---- categories -----------------------------------------------------------------------------------------------------


@every_library
def test_columns_find_numbers_and_categories_by_name(library):
    frame = make_frames(MIXED)[library]
    columns = cl.Columns(frame, size=2)
    assert columns.numbers == ["age", "income", "member", "height"]
    assert columns.categories == {"city": ("Bonn", "Oslo", "Rome"), "sex": ("f", "m")}
    assert columns.features == 4 + 2 + 2
    np.testing.assert_allclose(columns.center, ARRAY.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(columns.scale, ARRAY.std(axis=0), rtol=1e-6)
    numbers, codes = columns.arrays(frame)
    assert (numbers == ARRAY).all()
    assert (codes[:, 0] == MIXED["city"].cat.codes).all()
    assert (codes[:, 1] == (MIXED["sex"] == "m")).all()


@every_library
def test_a_model_of_columns_takes_frames_with_columns_in_any_order(tmp_path, library):
    model, history = fit_model(MIXED, Y, cl.Columns(MIXED), validation_data=(MIXED, Y), class_weight="balanced")
    other, of_arrays = fit_model(
        cl.Columns(MIXED).arrays(MIXED), Y, cl.Columns(MIXED), validation_data=(MIXED, Y), class_weight="balanced"
    )
    assert history["val_loss"] == of_arrays["val_loss"]
    scores = other.predict(MIXED)
    others = MIXED.assign(y=Y, name="?")[["sex", "y", "height", "name", "member", "city", "income", "age"]]
    for loaded in copies(model, tmp_path / "model.safetensors"):
        assert (loaded.predict(make_frames(others)[library]) == scores).all()
        assert (
            loaded.predict(make_frames(others)[library][:7] if library in (0, 1) else others[:7]) == scores[:7]
        ).all()
    fit_model(MIXED, Y, cl.Columns(MIXED), validation_split=0.2)
    fit_model([(MIXED[:30], Y[:30]), (MIXED[30:], Y[30:])], None, cl.Columns(MIXED))


def test_categories_have_the_order_of_their_type_and_those_that_do_not_occur_too():
    for column in (
        pandas.Series(pandas.Categorical(["b", "a"], ["c", "b", "a"])),
        polars.Series(["b", "a"], dtype=polars.Enum(["c", "b", "a"])),
        Categories(np.array([1, 2]), ["c", "b", "a"]),
    ):
        columns = cl.Columns({"a": column})
        assert columns.categories == {"a": ("c", "b", "a")}
        assert columns.arrays({"a": np.array(["a", "c"])})[0].tolist() == [[2], [0]]
        assert columns.arrays({"a": column})[0].tolist() == [[1], [2]]


def test_numbers_are_categories_if_the_user_reports_it():
    columns = cl.Columns({"a": pandas.Series([30, 10, 20], dtype="category")})
    for frame in ({"a": np.array([10, 30])}, pandas.DataFrame({"a": [10, 30]}), polars.DataFrame({"a": [10, 30]})):
        assert columns.arrays(frame)[0].tolist() == [[0], [2]]


def set_missing(frame, **rows):
    """Return the frame with nothing in these rows of its columns."""
    return frame.assign(
        **{name: frame[name].astype(object).where(~np.isin(np.arange(N), i)) for name, i in rows.items()}
    )


@every_library
def test_a_category_that_was_not_there_and_a_missing_one_have_codes_of_their_own(library):
    other = MIXED.assign(city=["Rome"] * 4 + ["Paris"] * 2 + [None] * (N - 6))
    columns = cl.Columns(MIXED)
    assert columns.arrays(make_frames(other)[library])[1][:, 0].tolist() == [2] * 4 + [4] * 2 + [3] * (N - 6)
    for learned in (columns, cl.Columns(make_frames(other)[library])):
        for embedding, known in zip(learned.embeddings, learned.categories.values(), strict=True):
            assert embedding.count == len(known) + 2
            assert (embedding.weight.data[-2:] == 0).all()
            assert (embedding.weight.data[:-2] != 0).all()
    assert cl.Columns(make_frames(other)[library]).categories["city"] == ("Paris", "Rome")


def test_unknown_categories_have_the_vector_0_and_missing_ones_are_learned():
    frame = {"city": np.array(["Rome", None, "Oslo", None] * 15)}
    y = np.array([0, 2, 1, 2] * 15)
    model = cl.Model([cl.Columns(frame, size=4), cl.Linear(2, 3)], seed=0)
    model.fit(frame, y, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters(), 0.1), epochs=30, verbose=0)
    assert model.predict({"city": np.array(["Oslo", None, "Rome"])}).argmax(axis=1).tolist() == [1, 2, 0]
    np.testing.assert_array_equal(model.predict({"city": ["Paris"]})[0], model.functions[1].bias.data)


@every_library
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_missing_number_becomes_the_mean_and_a_feature_marks_it(library, dtype):
    frame = set_missing(MIXED, income=[3, 7, 8], member=[0])
    columns = cl.Columns(make_frames(frame)[library])
    assert columns.numbers == ["age", "income", "member", "height"]
    assert columns.gaps.tolist() == [1, 2]
    assert columns.features == 4 + 2 + 3 + 2
    there = np.delete(ARRAY[:, 1], [3, 7, 8])
    np.testing.assert_allclose([columns.center[1], columns.scale[1]], [there.mean(), there.std()], rtol=1e-12)
    model = cl.Model([columns], dtype=dtype)
    y = model.predict(make_frames(frame)[library])
    assert y.dtype == dtype
    np.testing.assert_allclose(y[:, 0], (ARRAY[:, 0] - ARRAY[:, 0].mean()) / ARRAY[:, 0].std(), rtol=1e-5, atol=1e-6)
    assert (y[[3, 7, 8], 1] == 0).all()
    assert np.flatnonzero(y[:, 4]).tolist() == [3, 7, 8]
    assert np.flatnonzero(y[:, 5]).tolist() == [0]
    later = model.predict(make_frames(set_missing(MIXED, age=[5]))[library])  # without gaps when it was learned
    assert (later[5, 0], later[4, 0]) == (0, y[4, 0])
    assert (later[:, 4:6] == 0).all()


def test_a_column_in_which_everything_is_missing_stays_and_is_finite():
    frame = pandas.DataFrame({"a": [np.nan] * 3, "b": [None] * 3, "c": [1.0, 2.0, 3.0]})
    for x in (
        frame,
        polars.DataFrame({"a": [None] * 3, "b": [None] * 3, "c": [1.0, 2, 3]}),
        {k: list(frame[k]) for k in frame},
    ):
        for robust in (False, True):
            columns = cl.Columns(x, robust=robust)
            assert columns.numbers == ["a", "b", "c"]
            y = cl.Model([columns]).predict(x)
            assert (y[:, :2] == 0).all()
            assert (y[:, 3:] == 1).all()
            assert np.isfinite(y).all()
            assert np.isfinite(
                cl.Model([columns]).predict(pandas.DataFrame({"a": [5.0], "b": [7.0], "c": [2.0]}))
            ).all()


@pytest.mark.parametrize(
    "nothing",
    [
        pandas.Series([None] * 3, dtype="category"),
        pandas.Series([None] * 3, dtype="string"),
        polars.Series([None] * 3, dtype=polars.String),
        polars.Series([None] * 3, dtype=polars.Categorical),
        Categories(np.full(3, -1), ["x"]),
    ],
)
def test_a_column_for_words_in_which_everything_is_missing_is_one_of_categories(nothing):
    columns = cl.Columns({"a": nothing, "b": [1.0, 2, 3]})
    assert list(columns.categories) == ["a"]
    known = len(columns.categories["a"])
    assert columns.arrays({"a": nothing, "b": [1.0, 2, 3]})[1][:, 0].tolist() == [known] * 3
    assert columns.arrays({"a": ["y"], "b": [1.0]})[1].tolist() == [[known + 1]]


def test_columns_of_numbers_are_categories_if_they_are_named():
    frame = pandas.DataFrame({"zip": [103.0, np.nan, 7.0, 103.0], "b": [1.0, 2, 3, 4]})
    columns = cl.Columns(frame, categories=["zip"])
    assert columns.categories == {"zip": (7, 103)}
    assert columns.arrays(frame)[1][:, 0].tolist() == [1, 2, 0, 1]
    assert columns.arrays({"zip": np.array([7, 103, 8]), "b": np.zeros(3)})[1][:, 0].tolist() == [0, 1, 3]
    with pytest.raises(ValueError, match="Columns: categories: the frame has no column 'city'; there are zip, b"):
        cl.Columns(frame, categories=["city"])


def test_robust_columns_stay_within_limits_and_do_not_care_for_a_few_large_numbers():
    x = np.append(RNG.normal(size=99), 1e12)
    columns = cl.Columns({"x": x, "one": np.ones(100), "zeros": (np.arange(100) == 7) * 5.0}, robust=True)
    low, median, high = np.quantile(x, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(columns.center, [median, 1, 0], rtol=1e-12)
    np.testing.assert_allclose(columns.scale, [high - low, 1, 2.5], rtol=1e-12)
    z = (x - median) / (high - low)
    y = cl.Model([columns], dtype=np.float64).predict({"x": x, "one": np.ones(100), "zeros": np.full(100, 1e308)})
    np.testing.assert_allclose(y[:, 0], z / np.sqrt(1 + (z / 3) ** 2), rtol=1e-12)
    assert y[-1, 0] == pytest.approx(3)
    assert (y[:, 1] == 0).all()
    np.testing.assert_allclose(y[:, 2], 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bins_are_a_piecewise_linear_code_of_each_number(dtype):
    x = np.array([0.0, 1, 2, 3, 4, np.nan])
    columns = cl.Columns({"x": x, "constant": np.ones(6), "nothing": np.full(6, np.nan)}, bins=4)
    assert columns.bins == [4, 0, 0]
    assert columns.features == 3 + 2 + 4
    given = np.array([-1, 0, 0.5, 1, 2.25, 4, 9, np.nan])
    later = {"x": given, "constant": np.ones(8), "nothing": np.zeros(8)}
    code = cl.Model([columns], dtype=dtype).predict(later)[:, 5:]
    expected = np.clip(given[:, None] - np.arange(4), 0, 1)
    np.testing.assert_array_equal(code, np.where(np.isnan(given)[:, None], 0, expected))


def test_bins_hold_equally_many_numbers_and_narrow_ones_are_joined():
    x = np.sort(RNG.lognormal(size=1001))
    columns = cl.Columns({"x": x, "few": np.arange(1001) % 3, "close": np.arange(1001) // 500 + 1e-12 * x}, bins=10)
    np.testing.assert_array_equal(columns.edges[:11], np.quantile(x, np.linspace(0, 1, 11)))
    assert columns.bins[:2] == [10, 2]
    assert columns.bins[2] <= 2


def test_a_linear_model_of_bins_learns_steps():
    x = RNG.uniform(-1, 1, 2000)
    y = (np.floor(4 * x) % 2 > 0).astype(int)
    scores = []
    for bins in (0, 16):
        columns = cl.Columns({"x": x}, bins=bins)
        model = cl.Model([columns, cl.Linear(columns.features, 2)], seed=0)
        model.fit({"x": x}, y, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters(), 0.1), epochs=20, verbose=0)
        scores.append((model.predict({"x": x}).argmax(axis=1) == y).mean())
    assert scores[0] < 0.7 < 0.9 < scores[1]


@pytest.mark.parametrize("robust", [False, True])
def test_columns_with_bins_are_saved_copied_and_resumed_to_the_bit(tmp_path, robust):
    frame = MIXED.assign(when=pandas.Timestamp("2020-01-01", tz="UTC") + pandas.to_timedelta(np.arange(N), "D"))
    columns = cl.Columns(frame, robust=robust, bins=5)
    model = cl.Model([columns, cl.Linear(columns.features, 4)], seed=0)
    for loaded in copies(model, tmp_path / "model.safetensors"):
        assert (loaded.predict(frame) == model.predict(frame)).all()
        assert loaded.functions[0].bins == columns.bins


@pytest.mark.parametrize(
    ("bins", "error"), [(-1, ValueError), (2.5, TypeError), ([1, 2], ValueError), ("4", TypeError), (True, TypeError)]
)
def test_bins_are_a_number_or_one_for_each_column_of_numbers(bins, error):
    with pytest.raises(error, match="Columns: bins"):
        cl.Columns(NUMBERS, bins=bins)


def splines_and_columns(dtype, size=6):
    """Splines, and Columns with a Linear layer of the same function, for a frame with everything that there is."""
    rng = np.random.default_rng(4)
    frame = MIXED.assign(
        when=pandas.Timestamp("2020-01-01", tz="UTC") + pandas.to_timedelta(np.arange(N), "D"), one=1.0
    )
    frame["gaps"] = np.where(np.arange(N) % 3 == 0, np.nan, rng.normal(size=N))
    splines = cl.Splines(frame, size, bins=5)
    model = cl.Model([splines], seed=0, dtype=dtype)
    for p in model.parameters():
        p.data = rng.normal(size=p.shape)
    return frame, model, splines


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_splines_are_a_linear_function_of_the_codes_of_columns(dtype):
    frame, model, splines = splines_and_columns(dtype)
    columns = cl.Columns(frame, size=99, robust=True, bins=5)
    assert columns.bins == splines.bins
    later = frame.assign(gaps=frame["gaps"].to_numpy()[::-1])
    code = cl.Model([columns], seed=0, dtype=np.float64).predict(later)
    begin = len(columns.numbers) + len(columns.gaps)
    bins = code[:, begin : begin + sum(columns.bins)]
    expected = splines.bias.data.astype(np.float64) + np.zeros((N, 6))
    begin = 0
    for j, name in enumerate(columns.numbers):
        first, count, scale = splines.rows[j], columns.bins[j], splines.column_scale.data[j]
        share = bins[:, begin : begin + count]
        begin += count
        z = splines.z[splines.starts[j] : splines.starts[j + 1]]
        part = (z[0] + share @ np.diff(z))[:, None] * splines.slope.data[j]
        part = part + share @ splines.weight.data[first : first + count]
        missing = np.isnan(later[name]) if name in later else np.zeros(N, bool)
        part[missing] = splines.weight.data[first + count]
        expected += scale * part
    codes = columns.arrays(later)[1]
    for i in range(codes.shape[1]):
        j = len(columns.numbers) + i
        expected += splines.column_scale.data[j] * splines.weight.data[splines.rows[j] + codes[:, i]]
    np.testing.assert_allclose(model.predict(later), expected, rtol=0, atol=1e-4 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_splines_are_saved_copied_and_resumed_to_the_bit(dtype, tmp_path):
    frame, model, splines = splines_and_columns(dtype)
    for loaded in copies(model, tmp_path / "model.safetensors"):
        assert (loaded.predict(frame) == model.predict(frame)).all()
        assert loaded.functions[0].bins == splines.bins
        assert loaded.functions[0].z.dtype == np.float64


def test_splines_learn_steps_and_a_row_alone_is_as_in_its_batch():
    x, words = RNG.uniform(-1, 1, 2000), RNG.choice(["a", "b"], 2000)
    y = ((np.floor(4 * x) % 2 > 0) ^ (words == "a")).astype(int)
    frame = {"x": np.where(RNG.random(2000) < 0.1, np.nan, x), "words": words}
    model = cl.Model([cl.Splines(frame, 32), cl.SiLU(), cl.Linear(32, 2)], seed=0)
    optimizer = cl.AdamW(model.parameters(), 0.01)
    model.fit(frame, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=20, verbose=0)
    scores = model.predict(frame)
    assert (scores.argmax(axis=1) == y).mean() > 0.9
    for i in (0, 7, 1999):
        alone = model.predict({"x": frame["x"][i : i + 1], "words": words[i : i + 1]})
        np.testing.assert_array_equal(alone[0], scores[i])


def test_beyond_its_knots_a_spline_is_constant():
    frame = {"x": np.arange(10.0)}
    model = cl.Model([cl.Splines(frame, 4, bins=3)], seed=0)
    far = model.predict({"x": [-1e300, -1, 0, 9, 10, 1e300]})
    np.testing.assert_array_equal(far[:3], far[[0, 0, 0]])
    np.testing.assert_array_equal(far[3:], far[[3, 3, 3]])


@pytest.mark.parametrize("kind", [cl.Columns, lambda frame, **options: cl.Splines(frame, 4, **options)])
def test_rare_categories_count_as_unknown(kind):
    frame = {"word": ["a", "b", "a", "c", "b", None, "b"], "code": [1, 1, 1, 1, 2, 2, 3]}
    columns = kind(frame, categories=["code"], min_frequency=2)
    assert columns.categories == {"word": ("a", "b"), "code": (1, 2)}
    codes = [[0, 0], [1, 0], [0, 0], [3, 0], [1, 1], [2, 1], [1, 3]]
    np.testing.assert_array_equal(columns.arrays(frame)[0], codes)
    with pytest.raises(ValueError, match="min_frequency"):
        kind(frame, min_frequency=0)


def test_errors_of_splines_name_them():
    with pytest.raises(ValueError, match="Splines: size"):
        cl.Splines(NUMBERS, 0)
    with pytest.raises(TypeError, match="Splines takes a frame"):
        cl.Splines(3, 4)
    with pytest.raises(IndexError, match=r"Splines.*: index 9 in row 1, at \(1, 0\), is not in 0 … 3"):
        cl.Splines({"w": ["a", "b"]}, 3).forward(np.array([[0], [9]]))


@every_library
def test_columns_that_are_not_as_they_were_are_named(library):
    columns = cl.Columns(MIXED.assign(when=pandas.Timestamp("2020-01-01") + pandas.to_timedelta(np.arange(N), "D")))
    frame = MIXED.assign(when=pandas.Timestamp("2020-01-01"))
    lies = {
        "no column 'age'; there are income, member": (ValueError, frame.drop(columns="age")),
        "no column 'income'; there are age, income_2,": (ValueError, frame.rename(columns={"income": "income_2"})),
        "column 'age' holds words such as 'old'; expected numbers, as in": (TypeError, frame.assign(age="old")),
        "column 'age' has inf in row 0; expected finite numbers": (ValueError, frame.assign(age=np.inf)),
        "column 'sex' holds numbers such as 1; expected words such as 'f'": (TypeError, frame.assign(sex=1)),
        "column 'when' holds words such as 'today'; expected dates": (TypeError, frame.assign(when="today")),
        "column 'when' has the time zone UTC, and had no time zone in the frame": (
            TypeError,
            frame.assign(when=pandas.Timestamp("2020-01-01", tz="UTC")),
        ),
    }
    model = cl.Model([columns], seed=0)
    for message, (error, lie) in lies.items():
        if library in (3,) and "time zone" in message:
            continue  # an array of NumPy's has no time zone
        given = make_frames(lie)[library]
        with pytest.raises(error, match=f"predict: .*{message}"):
            model.predict(given)
        with pytest.raises(error, match=message):
            model.fit(given, Y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        (MIXED.assign(age=[[1]] * N), TypeError, "'age' holds object"),
        (MIXED.assign(age=np.inf), ValueError, "'age' has inf in row 0"),
        (NUMBERS[:0], ValueError, "'age' has no rows"),
        (MIXED[["sex"]][:0], ValueError, "'sex' has no rows"),
        (MIXED.rename(columns={"age": 1.5}), TypeError, "a name that is a word or an integer, got 1.5"),
        ([], ValueError, "one column or more"),
        ([("a", None), ("a", None)], ValueError, "different names"),
        ([("a", ("x", "x"))], ValueError, "different categories of column 'a'"),
        (["a", "b"], TypeError, "takes a frame of pandas, polars or Arrow, or a dict of columns, got .'a', 'b'"),
        (ARRAY, TypeError, "takes a frame of pandas, polars or Arrow, or a dict of columns, got array"),
        (polars.LazyFrame(), TypeError, r"got a LazyFrame; \.collect\(\) makes a frame from it"),
    ],
)
def test_columns_that_cannot_be_learned_raise(columns, error, message):
    with pytest.raises(error, match=f"^Columns.*{message}"):
        cl.Columns(columns)


def test_a_generator_of_frames_is_held_to_the_columns():
    columns = cl.Columns(NUMBERS)
    model, loss = classifier(columns), cl.SoftmaxLoss()
    for x in (NUMBERS, ARRAY):
        assert model.evaluate(cl.DataGenerator(x, Y), loss=loss)["loss"] == pytest.approx(
            model.evaluate(NUMBERS, Y, loss=loss)["loss"]
        )
    moved = NUMBERS[NUMBERS.columns[::-1]]
    message = "columns have moved: column 0 is 'height', and was 'age'"
    for wrapped in (lambda batches: batches, cl.Prefetch):
        with pytest.raises(ValueError, match=message):
            model.evaluate(wrapped(cl.DataGenerator(moved, Y)), loss=loss)
    with pytest.raises(ValueError, match=message):
        fit_model(NUMBERS, Y, columns, validation_data=cl.DataGenerator(moved, Y))
    fit_model(NUMBERS, Y, columns, validation_data=(moved, Y))
    model = classifier(cl.Columns(MIXED))
    parts = [MIXED[[*model.functions[0].numbers]], MIXED[["city", "sex"]].apply(lambda c: pandas.factorize(c)[0])]
    assert model.predict(tuple(parts)).shape == (N, 4)
    with pytest.raises(ValueError, match="columns have moved: column 0 is 'sex', and was 'city'"):
        model.predict((parts[0], parts[1][["sex", "city"]]))


def test_a_constant_column_is_not_scaled():
    columns = cl.Columns({"a": np.full(10, 0.1), "b": np.arange(10.0)})
    assert columns.scale[0] == 1


def test_columns_take_arrays_that_fit_and_no_others():
    columns = cl.Columns(MIXED)
    model = classifier(columns)
    numbers, codes = columns.arrays(MIXED)
    assert (model.predict((numbers, codes)) == model.predict(MIXED)).all()
    with pytest.raises(IndexError, match=r"predict\[1\]: index 7 in row 2"):
        model.predict((numbers, np.where(np.arange(N)[:, None] == 2, 7, codes)))
    for rows in (numbers, [[1.0, 2.0, True, 3.0, "Rome", "f"]], numbers.tolist()):
        with pytest.raises(ValueError, match=r"expected numbers .* a frame with the columns age, .*; got one (nda|li)"):
            model.predict(rows)
    with pytest.raises(ValueError, match=r"numbers \(n, 4\) and codes \(n, 2\)"):
        model.predict((numbers[:, 1:], codes))
    with pytest.raises(ValueError, match=r"got \(n,\); .*frame\[i : i \+ 1\] is a frame of one row"):
        classifier(cl.Columns(NUMBERS[["age", "income"]])).predict(NUMBERS[["age", "income"]].iloc[0])
    with pytest.raises(ValueError, match="Linear"):
        cl.Model([columns, cl.Linear(3, 2)])


def test_the_summary_knows_the_columns():
    assert "Columns(age, income, member, height, city[3], sex[2])" in str(classifier(cl.Columns(MIXED)).summary())


def test_nothing_warns_and_the_frame_stays_as_it_is():
    frame, before = MIXED.copy(), MIXED.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_model(frame, Y, cl.Columns(frame))
    pandas.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_of_many_columns_takes_no_step_for_each(library, monkeypatch):
    """The work for each column is what takes the time."""
    make = pytest.importorskip(library).DataFrame
    x = np.arange(600.0).reshape(3, 200)
    frame = make({f"c{i}": column for i, column in enumerate(x.T)})
    looks = []
    numbers = frames.to_numbers
    monkeypatch.setattr(frames, "to_numbers", lambda *given: looks.append(1) or numbers(*given))
    np.testing.assert_array_equal(frames.as_array(frame, "x"), x)
    columns = cl.Columns(frame)
    looks.clear()
    np.testing.assert_array_equal(columns.arrays(frame)[0], x)
    assert looks == []


def test_columns_of_several_dtypes_make_the_array_that_they_make_one_by_one():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"a": np.array([1, 2], np.int64), "b": np.array([0.5, 1], np.float32), "c": np.array([True, False])}
    )
    for names in (["a", "b", "c"], ["b", "c"], ["a", "c"], ["c"], ["a"]):
        one_by_one = frames.as_array({name: frame[name].to_numpy() for name in names}, "x")
        whole = frames.as_array(frame[names], "x")
        assert whole.dtype == one_by_one.dtype
        np.testing.assert_array_equal(whole, one_by_one)


@pytest.mark.parametrize("name", ["seconds since 1970", "integers beyond float32", "beyond float32's range"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_standardize_before_they_round(name, dtype):
    x = {
        "seconds since 1970": 1.7e9 + 0.25 * np.arange(400),
        "integers beyond float32": 20_000_001 + np.arange(400),
        "beyond float32's range": 1e200 * (1 + 0.01 * np.arange(400)),
    }[name]
    model = cl.Model([cl.Columns({"x": x, "one": np.ones(400)})], dtype=dtype)
    expected = (x / abs(x).max() - (x / abs(x).max()).mean()) / (x / abs(x).max()).std()
    y = model.predict({"x": x, "one": np.ones(400)})
    assert y.dtype == dtype
    np.testing.assert_allclose(y[:, 0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.predict(np.stack([x, np.ones(400)], axis=1)), y)
    np.testing.assert_array_equal(model.predict({"x": x[7:8], "one": [1.0]}), y[7:8])
    np.testing.assert_array_equal(model(np.stack([x, np.ones(400)], axis=1)).numpy(), y)


def test_a_net_learns_from_seconds_that_differ_by_less_than_float32_tells():
    x = 1.7e9 + np.arange(256.0)
    y = np.sin(np.arange(256) / 40)[:, None]
    losses = []
    for given in (x, x - 1.7e9):
        model = cl.Model([cl.Columns({"x": given}), cl.Linear(1, 16), cl.Tanh(), cl.Linear(16, 1)], seed=0)
        optimizer = cl.Adam(model.parameters(), lr=0.01)
        history = model.fit({"x": given}, y, loss=cl.MSELoss(), optimizer=optimizer, epochs=30, verbose=0)
        losses.append(history["loss"][-1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_columns_keep_their_moments_in_files_and_read_those_that_were_rounded(tmp_path):
    x = 1.7e9 + np.arange(50.0)
    model = cl.Model([cl.Columns({"x": x}), cl.Linear(1, 2)], seed=0)
    expected = model.predict({"x": x})
    model.save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(cl.load(tmp_path / "m.safetensors").predict({"x": x}), expected)
    np.testing.assert_array_equal(copy.deepcopy(model).predict({"x": x}), expected)
    arrays = {name: a.astype(np.float32) for name, a in state_arrays(model).items()}
    write_arrays(tmp_path / "old.safetensors", arrays, make_texts(model))
    old = cl.load(tmp_path / "old.safetensors")
    assert old.functions[0].center == np.float32(model.functions[0].center)
    again = cl.Model([cl.Columns({"x": x}), cl.Linear(1, 2)], seed=1).load(tmp_path / "old.safetensors")
    np.testing.assert_array_equal(again.predict({"x": x}), old.predict({"x": x}))


def test_a_training_of_columns_is_resumed_from_its_checkpoint(tmp_path):
    x, y = {"x": 1.7e9 + np.arange(40.0)}, np.arange(40) % 2

    def fit_model(epochs, **options):
        model = cl.Model([cl.Columns(x), cl.Linear(1, 2)], seed=0)
        optimizer = cl.Adam(model.parameters())
        model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, seed=0, verbose=0, **options)
        return model.predict(x)

    checkpoint = tmp_path / "c.safetensors"
    fit_model(2, callbacks=[cl.callbacks.Checkpoint(checkpoint)])
    np.testing.assert_array_equal(fit_model(4, resume=checkpoint), fit_model(4))


@pytest.mark.parametrize("module", ["c", "onnx"])
@pytest.mark.parametrize("x", [1.7e9 + np.arange(40.0), 1e200 * np.arange(40.0)])
def test_columns_that_an_export_would_round_away_raise(module, x, tmp_path):
    pytest.importorskip(module if module == "onnx" else "caffelite.c")
    model = cl.Model([cl.Columns({"when": x}), cl.Linear(1, 2)], seed=0)
    export = importlib.import_module(f"caffelite.{module}").export
    with pytest.raises(ValueError, match=r"column 'when' is about .* float32 can hardly tell its numbers apart: sub"):
        export(model, tmp_path / "model", (1,))
    assert list(tmp_path.iterdir()) == []


# ---- Functions that read frames ----


class FrameShift(cl.Function):
    """Columns a and b, less a center that stays float64, in the model's dtype."""

    takes_float64 = True
    required_input_shape = (None, 2)

    def __init__(self):
        self.names, self.center, self.dtype = [["a", "b"]], np.array([1e9, -1e9]), None

    @property
    def frame_reader(self):
        return self

    def arrays(self, frame, what):
        return (np.stack([np.asarray(frame[name], np.float64) for name in self.names[0]], axis=1),)

    def buffers(self):
        return {"center": self.center}

    def forward(self, x):
        return (x - self.center).astype(self.dtype)

    def backward(self, dy):
        return dy.astype(np.float64)


def test_a_model_with_a_users_frame_reader_takes_frames_and_keeps_its_buffers_float64(tmp_path):
    frame = {"b": RNG.normal(-1e9, 1, N), "other": RNG.normal(0, 1, N), "a": RNG.normal(1e9, 1, N)}
    y = ((frame["a"] > 1e9) ^ (frame["b"] > -1e9)).astype(int)
    model = cl.Model([cl.Model([FrameShift()]), cl.Linear(2, 8), cl.Tanh(), cl.Linear(8, 2)], seed=0)
    optimizer = cl.Adam(model.parameters(), lr=0.05)
    history = model.fit(frame, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=100, verbose=0)
    assert history["loss"][-1] < 0.3 < history["loss"][0]
    reader = model.frame_reader
    assert type(reader) is FrameShift
    assert (reader.dtype, reader.center.dtype) == (np.float32, np.float64)
    model.save(tmp_path / "net.safetensors")
    again = cl.load(tmp_path / "net.safetensors", custom={"FrameShift": FrameShift})
    assert_same_bits(again.predict(frame), model.predict(pandas.DataFrame(frame)))
    with pytest.raises(KeyError, match="a"):
        model.predict({"b": frame["b"]})
