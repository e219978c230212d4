"""Numbers and dates that are written in words, in files and in frames."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.tables.notation import describe_problem, read_as_learned, read_words


@pytest.mark.parametrize(
    ("words", "numbers", "notation"),
    [
        (["$1,676.45", "$667.42"], [1676.45, 667.42], "$."),
        (["-$5", "$-6.5", "\u22127 $"], [-5, -6.5, -7], "$."),
        (["1.234,50 €", "2 €"], [1234.5, 2], "€,"),
        (["12%", "5.5 %"], [12, 5.5], "%."),
        (["1.234%", "2.5%"], [1.234, 2.5], "%."),
        (["1 234", "1\u2009234\u2009567.5", "1\u202f000"], [1234, 1234567.5, 1000], "."),
        (["1'234", "5"], [1234, 5], "."),
        (["1,234,567", "1,234"], [1234567, 1234], "."),
        (["1,234", "0,5"], [1.234, 0.5], ","),
        (["$1,234", "$99"], [1234, 99], "$."),
        (["$1.234,50", "$99,5"], [1234.5, 99.5], "$,"),
        (["1,234", "12.5"], [1234, 12.5], "."),
        (["1,5", "1.234"], [1.5, 1234], ","),
        (["$1e3", "none", "?"], [1000, np.nan, np.nan], "$."),
        (["True", "FALSE"], [1, 0], "bool"),
    ],
)
def test_words_that_are_numbers_are_read_in_the_only_way_that_fits_all(words, numbers, notation):
    reading = read_words(words)
    np.testing.assert_array_equal(reading.values, [*numbers, np.nan])
    assert reading.notation == notation


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["01", "2", "1e3"],  # names, such as postal codes: numbers of a file are read before
        ["none", "?"],
        ["$5", "5"],
        ["$5", "€5"],
        ["5 $ 50"],
        ["1.5", "2,5"],
        ["1,23", "1,234.5"],
        ["12,34,567"],
        ["1,234 567"],
        ["True", "1"],
        ["1,234", "yes"],
        ["1,234", "345"],
    ],
)
def test_words_that_do_not_fit_or_do_not_tell_their_decimal_sign_stay_words(words):
    assert read_words(words) is None


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["none", "5", "1,234"], "no cell tells whether 1,234 is 1234 or 1.234: write one of these"),
        (["1/2/2020", "3/4/2020"], "dates that do not say which number is the day, such as 1/2/2020: write 2020-01-31"),
        ([*[f"${i}" for i in range(30)], "unknown"], "'unknown' is not a number like '$0'"),
        ([*[f"${i}" for i in range(30)], "31"], "'31' is not a number like '$0'"),
        ([*[f"2020-01-{i}" for i in range(1, 31)], "soon"], "'soon' is not a date like '2020-01-1'"),
        (["1", "2", "3+"], ""),  # categories
        ([f"a{i}" for i in range(30)], ""),
        ([str(i) for i in range(30)], ""),
        ([], ""),
    ],
)
def test_words_that_look_like_numbers_or_dates_are_told_apart_with_an_example(words, problem):
    assert describe_problem(words) == problem


def test_later_words_are_read_as_those_of_the_training():
    assert read_as_learned(["$1,234"], "$.").tolist()[0] == 1234
    assert read_as_learned(["1,234"], ",").tolist()[0] == 1.234
    assert str(read_as_learned(["1/2/2020"], "day")[0]) == "2020-02-01T00:00:00.000000"
    assert str(read_as_learned(["1/2/2020"], "month")[0]) == "2020-01-02T00:00:00.000000"
    assert str(read_as_learned(["1/2/2020", "31/1/2020"], "year")[0]) == "2020-02-01T00:00:00.000000"
    for words, learned, bad, reason in [
        (["5", "€5"], "€.", "5", ""),
        (["$5", "€5"], "", ".5", ": not all have the same unit"),
        (["5%"], "", "5%", ""),
        (["1,234"], "", "1,234", ": no cell tells whether 1,234 is 1234 or 1.234: write one of these"),
        (["1/2/2020"], "year", "1/2/2020", ": dates that do not say which"),
        (["2020-01-01", "31/1/2020"], "month", "31/1/2020", ""),
    ]:
        with pytest.raises(ValueError, match=f"{bad}.*{reason}") as error:
            read_as_learned(words, learned)
        assert bool(error.value.args[2]) == bool(reason)


WORDS = {
    "price": ["$1,000.50", "$2", None, "$3"],
    "day": ["1/2/2020", "31/12/2020", "5/5/2021", None],
    "new": ["True", "False", "True", "True"],
}
VALUES = {
    "price": np.array([1000.5, 2, np.nan, 3]),
    "day": np.array(["2020-02-01", "2020-12-31", "2021-05-05", "NaT"], "datetime64[us]"),
    "new": np.array([True, False, True, True]),
}


@pytest.mark.parametrize("library", ["pandas", "polars", None])
def test_words_of_frames_are_the_numbers_and_dates_that_they_write(library, tmp_path):
    make = dict if library is None else pytest.importorskip(library).DataFrame
    frame = make(WORDS if library else {name: np.array(x, object) for name, x in WORDS.items()})
    columns, expected = cl.Columns(frame, bins=2), cl.Columns(VALUES, bins=2)
    assert columns.numbers == expected.numbers
    np.testing.assert_array_equal(columns.arrays(frame)[0], expected.arrays(VALUES)[0])
    np.testing.assert_array_equal(expected.arrays(frame)[0], expected.arrays(VALUES)[0])
    np.testing.assert_array_equal(columns.arrays(VALUES)[0], expected.arrays(VALUES)[0])

    # A model that is loaded still knows that the day is first.
    model = cl.Model([columns, cl.Linear(columns.features, 1)], seed=0)
    model.save(tmp_path / "model.safetensors")
    loaded = cl.load(tmp_path / "model.safetensors")
    row = {"price": ["$1,000"], "day": ["1/2/2020"], "new": ["true"]}
    values = {"price": [1000.0], "day": np.array(["2020-02-01"], "datetime64[us]"), "new": [True]}
    np.testing.assert_array_equal(loaded.predict(row), model.predict(values))
    for name, word, message in [
        ("price", "€5", "column 'price' holds words such as '€5'; expected numbers, as in the frame"),
        ("day", "12/31/2020", "column 'day' holds words such as '12/31/2020'; expected dates, as in the frame"),
    ]:
        with pytest.raises(TypeError, match=message):
            loaded.predict({**row, name: [word]})


def test_words_of_frames_that_could_be_read_in_two_ways_stay_categories_with_a_warning():
    for words, message in [(["1,234", "5"], "column 'x': no cell tells"), (["1/2/2020", "2/1/2020"], "the day, such")]:
        with pytest.warns(UserWarning, match=message):
            columns = cl.Columns({"x": words})
        assert columns.categories == {"x": tuple(sorted(words))}


def test_categories_that_are_declared_stay_categories():
    pandas = pytest.importorskip("pandas")
    words = ["$1", "$2"]
    assert cl.Columns({"x": words}, categories=["x"]).categories == {"x": ("$1", "$2")}
    assert cl.Columns({"x": pandas.Series(words, dtype="category")}).categories == {"x": ("$1", "$2")}
