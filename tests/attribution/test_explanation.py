"""Explanation: its frame and its pictures."""

import datetime
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite.attribution import Explanation
from caffelite.attribution.explanation import rank_values, to_axis
from tests.visualize.test_plots import draw_pixels, texts

pandas = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

DATA = pandas.DataFrame(
    {
        "age": [30.0, 41.0, np.nan, 22.0],
        "city": ["Ulm", "Bonn", None, "Ulm"],
        "day": pandas.to_datetime(["2024-01-02", None, "2024-03-04 05:06", "2024-05-06"], format="ISO8601"),
    },
    index=[5, 6, 7, 8],
)
ONE = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 0.0], [1.0, 1.0, 1.0], [-4.0, 0.0, 0.25]])


def one_output(data=DATA, columns=("age", "city", "day")):
    return Explanation(ONE, np.full_like(ONE, 0.1), 10.0, 10.0 + ONE.sum(axis=1), list(columns), data, target="price")


def two_classes():
    values = np.stack([-ONE / 20, ONE / 20], axis=2)
    base = np.array([0.6, 0.4])
    return Explanation(values, 0 * values, base, base + values.sum(axis=1), ["age", "city", "day"], DATA, ["no", "yes"])


def test_a_frame_has_the_index_of_the_rows_and_adds_up():
    frame = one_output().frame()
    assert list(frame.columns) == ["age", "city", "day", "base", "output"]
    assert list(frame.index) == [5, 6, 7, 8]
    np.testing.assert_allclose(frame["output"], frame[["age", "city", "day", "base"]].sum(axis=1))
    as_dict = one_output({name: DATA[name].to_numpy() for name in DATA}).frame()
    assert isinstance(as_dict, dict)
    np.testing.assert_array_equal(as_dict["city"], ONE[:, 1])


def test_a_frame_is_about_the_second_of_two_classes_or_the_predicted_one_of_several():
    frame = two_classes().frame()
    assert list(frame["class"]) == ["yes"] * 4  # so the signs of rows can be compared
    np.testing.assert_allclose(frame["city"], ONE[:, 1] / 20)
    np.testing.assert_array_equal(frame["base"], [0.4] * 4)
    frame = two_classes().frame("no")
    np.testing.assert_allclose(frame["city"], -ONE[:, 1] / 20)
    values, base = np.stack([-ONE / 20, ONE / 20, 0 * ONE], axis=2), np.array([0.6, 0.4, 0.0])
    columns, classes = ["age", "city", "day"], ["no", "yes", "perhaps"]
    frame = Explanation(values, 0 * values, base, base + values.sum(axis=1), columns, DATA, classes).frame()
    assert list(frame["class"]) == ["no", "yes", "yes", "no"]
    np.testing.assert_allclose(frame["city"], ONE[:, 1] / 20 * [-1, 1, 1, -1])
    np.testing.assert_array_equal(frame["base"], [0.6, 0.4, 0.4, 0.6])
    with pytest.raises(ValueError, match=r"expected an output of \['no', 'yes'\], got 'maybe'"):
        two_classes().frame("maybe")
    with pytest.raises(ValueError, match="of one output, got 1"):
        one_output().frame(1)


def test_columns_named_like_base_and_output_stay():
    data = {"base": np.zeros(4), "output": np.zeros(4), "x": np.zeros(4)}
    frame = one_output(data, data).frame()
    assert list(frame) == ["base", "output", "x", "base_", "output_"]


def test_outputs_without_classes_need_an_index():
    x = np.random.default_rng(0).normal(size=(5, 3))
    e = cl.explain(cl.MLP(3, [2], seed=0), x[:2], x)
    np.testing.assert_array_equal(e.frame(1)["x2"], e.values[:, 2, 1])
    for call in (e.frame, e.plot, e.summary, lambda: e.dependence("x0")):
        with pytest.raises(ValueError, match=r"expected an output of \[0, 1\], got None"):
            call()
    assert repr(e) == "Explanation(2 rows, 3 columns, 2 outputs, exact)"
    assert repr(one_output()) == "Explanation(4 rows, 3 columns, standard errors up to 0.1)"


def test_a_pickle_of_an_explanation():
    copied = pickle.loads(pickle.dumps(one_output()))
    np.testing.assert_array_equal(copied.values, ONE)
    assert copied.frame().equals(one_output().frame())


def test_a_waterfall_leads_from_the_base_to_the_output():
    axes = one_output().plot(0).axes[0]
    bars = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in axes.patches]
    np.testing.assert_allclose(bars, [(11.5, 9.5, 2), (10.5, 11.5, 1), (10.0, 10.5, 0)])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["city = Ulm", "age = 30", "day = 2024-01-02"]
    assert texts(axes) == ["−2.00", "+1.00", "+0.50"]
    assert axes.get_title(loc="left") == "price: 9.50; on average 10.00"
    labels = [label.get_text() for label in one_output().plot(-2).axes[0].get_yticklabels()]
    assert labels == ["age = missing", "city = missing", "day = 2024-03-04 05:06:00"]
    with pytest.raises(IndexError):
        one_output().plot(4)


@pytest.mark.parametrize("kind", ["numpy", "polars", "objects"])
def test_labels_are_the_same_for_all_kinds_of_frames(kind):
    columns = {
        "age": np.array([30.25, np.nan]),
        "flag": np.array([True, False]),
        "id": np.array([1234567, 3]),
        "day": np.array(["2024-01-02", "NaT"], "datetime64[us]"),
    }
    data = {**columns, "city": np.array(["Ulm", None], object)}
    if kind == "polars":
        polars = pytest.importorskip("polars")
        data = polars.DataFrame({**columns, "age": polars.Series([30.25, None]), "city": ["Ulm", None]})
    if kind == "objects":
        data = {**data, "day": np.array([datetime.date(2024, 1, 2), None], object)}
    values = np.arange(10.0)[::-1].reshape(2, 5)
    e = Explanation(values, 0 * values, 0.0, values.sum(axis=1), list(data if kind != "polars" else data.columns), data)
    labels = [[label.get_text() for label in e.plot(row).axes[0].get_yticklabels()] for row in (0, 1)]
    assert labels[0] == ["age = 30.25", "flag = True", "id = 1,234,567", "day = 2024-01-02", "city = Ulm"]
    assert labels[1] == ["age = missing", "flag = False", "id = 3", "day = missing", "city = missing"]
    for column in e.columns:
        assert sum(len(c.get_offsets()) for c in e.dependence(column).axes[0].collections) == 2
    e.summary()


def test_many_columns_are_added_up_in_the_last_bar():
    values = np.arange(20.0)[None] - 3
    data = {f"c{i}": np.array([i]) for i in range(20)}
    e = Explanation(values, 0 * values, 1.0, 1 + values.sum(axis=1), list(data), data)
    axes = e.plot().axes[0]
    assert len(axes.patches) == 12
    assert axes.get_yticklabels()[-1].get_text() == "9 other columns"
    assert np.isclose(axes.patches[-1].get_x(), 1.0)
    assert len(e.summary().axes[0].get_yticklabels()) == 12


def test_a_summary_has_a_point_for_each_row_and_column():
    figure = one_output().summary()
    axes, bar = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["age", "city", "day"]
    points = np.concatenate([collection.get_offsets().data for collection in axes.collections])
    np.testing.assert_allclose(np.sort(points[:, 0]), np.sort(ONE.ravel()))
    assert [label.get_text() for label in bar.get_yticklabels()] == ["low", "high"]
    colours = axes.collections[0].get_facecolors()
    assert len({tuple(colour) for colour in colours}) == 4  # low, middle, high and missing
    assert axes.get_xlabel() == "contribution to price"
    assert bar.get_ylabel() == "value"
    assert axes.get_title("left").endswith("a point each; words are grey")
    numbers = one_output(DATA.assign(city=1.0)).summary()
    assert numbers.axes[0].get_title("left").endswith("a point each")
    assert two_classes().summary().axes[0].get_xlabel() == "contribution to probability of yes"
    words = one_output(DATA.assign(age="a", day="b")).summary()
    assert len(words.axes) == 1  # no scale of colours


def test_dates_have_the_colours_of_their_order_and_words_have_none():
    np.testing.assert_array_equal(rank_values(DATA["day"]), [0, np.nan, 0.5, 1])
    np.testing.assert_array_equal(rank_values(DATA["age"]), [0.5, 1, np.nan, 0])
    assert np.isnan(rank_values(DATA["city"])).all()
    axes = one_output().summary().axes[0]
    assert len({tuple(colour) for colour in axes.collections[2].get_facecolors()}) == 4


@pytest.mark.parametrize("days", [0, 1, 100, 1095, 1460, 4000])
def test_dates_of_any_range_have_an_axis_without_a_warning(days):
    day = np.datetime64("2017-08-31", "us") + np.linspace(0, days * 86_400_000_000, 4).astype("timedelta64[us]")
    figure = one_output(DATA.assign(day=day)).dependence("day")
    figure.canvas.draw()  # a warning is an error
    assert 2 <= len(figure.axes[0].get_xticks()) <= 8


def test_values_in_a_picture_keep_six_digits():
    data = DATA.assign(age=[2017.66, 52.5163, 1e6, 1 / 3])
    labels = [one_output(data).plot(row).axes[0].get_yticklabels() for row in range(4)]
    texts = {text for row in labels for label in row if (text := label.get_text()).startswith("age")}
    assert texts == {"age = 2017.66", "age = 52.5163", "age = 1,000,000", "age = 0.333333"}


def test_a_row_that_does_not_exist_raises_and_a_negative_one_counts_from_the_end():
    explanation = one_output()
    for row in (4, -5):
        with pytest.raises(IndexError, match=rf"plot: there is no row {row}; the explanation has the rows 0 … 3"):
            explanation.plot(row)
    assert explanation.plot(-1).axes[0].get_title(loc="left") == explanation.plot(3).axes[0].get_title(loc="left") != ""


def test_a_summary_of_several_classes_has_bars():
    values = np.random.default_rng(0).normal(size=(4, 3, 9))
    outputs = 1 / 9 + values.sum(axis=1)
    e = Explanation(values, 0 * values, np.full(9, 1 / 9), outputs, ["age", "city", "day"], DATA, list("abcdefghi"))
    axes = e.summary().axes[0]
    lengths = sum(container.datavalues for container in axes.containers)
    np.testing.assert_allclose(lengths, np.sort(abs(values).mean(axis=0).sum(axis=1))[::-1])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [*"abcdefg", "2 other classes"]
    axes = e.dependence("city").axes[0]
    assert axes.get_ylabel() == "contribution to probability of the predicted class"
    points = np.concatenate([collection.get_offsets().data[:, 1] for collection in axes.collections])
    np.testing.assert_allclose(np.sort(points), np.sort(values[np.arange(4), 1, outputs.argmax(axis=1)]))
    assert e.dependence("age", "c").axes[0].get_ylabel() == "contribution to probability of c"


def test_a_dependence_has_contributions_over_values_dates_and_words():
    axes = one_output().dependence("age").axes[0]
    known, missing = [collection.get_offsets().data for collection in axes.collections]
    np.testing.assert_allclose(known, [[30, 1], [41, 0], [22, -4]])
    np.testing.assert_allclose(missing[:, 1], [1])
    assert axes.get_title(loc="right") == "missing"
    axes = one_output().dependence("city").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["Ulm", "Bonn", "missing"]
    assert [len(collection.get_offsets()) for collection in axes.collections] == [2, 1, 1]
    axes = one_output().dependence("day").axes[0]
    assert [len(collection.get_offsets()) for collection in axes.collections] == [3, 1]
    with pytest.raises(ValueError, match="no column 'zip'; there are age, city, day"):
        one_output().dependence("zip")


@pytest.mark.parametrize("draw", ["plot", "summary", "dependence"])
def test_pictures_have_pixels_also_of_names_with_signs_of_tex(draw):
    e = one_output(DATA.rename(columns={"age": "$a_b"}), ["$a_b", "city", "day"])
    figure = e.dependence("$a_b") if draw == "dependence" else getattr(e, draw)()
    assert (draw_pixels(figure) < 255).any()
    e.plot(axes=figure.axes[0])


def test_pictures_show_dates_and_numbers_that_are_words_on_their_axes():
    days = np.array(["1/2/2020", None, "31/12/2020"], object)
    axis = to_axis(days)
    assert axis.dtype == "datetime64[us]"
    assert str(axis[0]) == "2020-02-01T00:00:00.000000"
    np.testing.assert_array_equal(to_axis(np.array(["$1,000.5", "$2"])), [1000.5, 2])
    assert to_axis(np.array(["a", None], object)).tolist() == ["a", None]
