"""What the columns of a table are taken for."""

import numpy as np
import pytest

import caffelite as cl
from caffelite._support.text_table import number_text
from caffelite.data.frames import Categories
from caffelite.tables import schema, training
from caffelite.tables.notation import read_words
from caffelite.tables.reading import read
from tests.tables.shop import learn_nets, write_rows


def infer_columns(path, rows, target="y", **options):
    table = read(write_rows(path, rows))
    everything = np.ones(len(rows) - 1, bool)
    return schema.select_columns(table, everything, target, 2, **options)


def test_numbers_and_words_are_kept_as_they_are(path):
    cells = [[i, "ab"[i % 2] if 0 < i < 14 else "" if i else "rare", 1] for i in range(15)]
    frame, facts = infer_columns(path, [["x", "w", "y"], *cells])
    np.testing.assert_array_equal(frame["x"], range(15))
    np.testing.assert_array_equal(frame["w"].codes, [0, *[1, 2] * 6, 1, -1])
    assert frame["w"].names == ["rare", "b", "a"]
    assert [fact[1:] for fact in facts] == [
        ("numbers", "0 … 14, mean 7; if it numbers the rows, --drop it"),
        ("2 categories", "b 47%, a 40%, 1 rare, 6.7% missing"),
    ]


def test_gaps_are_counted(path):
    frame, facts = infer_columns(path, [["x", "y"], [1, 1], ["", 1], [5, 1], ["", 1]])
    np.testing.assert_array_equal(frame["x"], [1, np.nan, 5, np.nan])
    assert facts == [("x", "numbers", "1 … 5, mean 3; 2 missing")]


def test_only_rows_of_the_training_say_what_there_is(path):
    table = read(write_rows(path, [["x", "w", "y"], *[[i, "ab"[i >= 8], 1] for i in range(16)]]))
    frame, facts = schema.select_columns(table, np.arange(16) < 8, "y", 2)
    assert list(frame) == ["x"]
    assert facts[0].text.startswith("0 … 7, mean 3.5")
    assert facts[1] == ("w", "left out", "'a' everywhere")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["2020-01-31", "2021-2-3"], ["2020-01-31", "2021-02-03"]),
        (["2020/1/31", "31.1.2020"], ["2020-01-31", "2020-01-31"]),
        (["2020-01-31 7:05", "2020-01-31T23:59:59.25"], ["2020-01-31T07:05", "2020-01-31T23:59:59.250"]),
        (["2020-01-31T12:00Z", "2020-01-31T12:00+02:00"], ["2020-01-31T12:00", "2020-01-31T10:00"]),
        (["2020-01-31 12:00:00-0930", "2020-01-31 12:00 Z"], ["2020-01-31T21:30", "2020-01-31T12:00"]),
        (["2020-01-31", "2020-13-01"], None),
        (["2020-01-31", "2020-01-31T25:00"], None),
        (["2020-01-31", "soon"], None),
        (["1/31/2020", "2/1/2020"], ["2020-01-31", "2020-02-01"]),
        (["1-2-2020 7:05", "31-1-2020 7:05"], ["2020-02-01T07:05", "2020-01-31T07:05"]),
        (["1/2/2020", "2020-01-31"], None),
        (["1/31/2020", "31/1/2020"], None),
        (["20-01-31"], None),
        (["2020-01/31"], None),
        (["2020-01-31T12:00Z", "2020-01-31T12:00"], None),
    ],
)
def test_dates_are_read(words, expected):
    reading = read_words(words)
    if expected is None:
        assert reading is None
        return
    dates = reading.values[[0, -1, len(words) - 1]]
    first, gap, last = cl.Columns({"d": dates}).arrays({"d": dates})[0][:, -1]  # seconds since the first one
    assert np.isnan(gap)
    stamps = np.array(expected, "datetime64[ms]")
    seconds = (stamps[-1] - stamps[0]) / np.timedelta64(1, "s")
    assert last - first == seconds


def test_dates_are_kept_and_their_first_and_last_are_reported(path):
    cells = ["2021-03-01", "2020-05-01", "", "2020-12-31"]
    frame, facts = infer_columns(path, [["since", "y"], *[[cell, 1] for cell in cells]])
    np.testing.assert_array_equal(frame["since"], np.array([cell or "NaT" for cell in cells], "datetime64[us]"))
    assert facts == [("since", "dates", "2020-05-01 … 2021-03-01; 1 missing")]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (["a"] * 9, "'a' everywhere"),
        ([7.5] * 9, "7.5 everywhere"),
        ([""] * 9, "empty"),
        (list("abcdefghi"), "9 words in 9 rows, all rare"),
        (["2020-01-02"] * 9, "'2020-01-02' everywhere"),
        (
            [f"1/{i + 1}/2020" for i in range(9)],
            "dates that do not say which number is the day, such as 1/1/2020",
        ),
    ],
)
def test_columns_that_tell_nothing_are_left_out_with_the_reason(cells, reason, path):
    frame, facts = infer_columns(path, [["x", "w", "y"], *[[i, cell, 1] for i, cell in enumerate(cells)]])
    assert list(frame) == ["x"]
    assert facts[1].kind == "left out"
    assert facts[1].text.startswith(reason)


def test_a_column_that_numbers_the_rows_is_reported(path):
    rows = [["id", "x", "z", "y"], *[[7 - i, 1 + i // 2, i if i else "", 1] for i in range(6)]]
    _, facts = infer_columns(path, rows)
    assert [fact.name for fact in facts if fact.text.endswith("; if it numbers the rows, --drop it")] == ["id"]


def test_a_table_with_nothing_to_predict_from_raises_with_the_reasons(path):
    with pytest.raises(ValueError, match="no column is left to predict y from; x: 1 everywhere, w: as you said"):
        infer_columns(path, [["x", "w", "y"], [1, 1, 1], [1, 2, 3]], ignored=["w"])


def test_infinite_numbers_raise_with_their_line(path):
    with pytest.raises(ValueError, match=r"x is inf in line 3 and 1 other"):
        infer_columns(path, [["x", "y"], [1, 1], ["inf", 1], ["-inf", 1]])


def test_words_that_would_not_fit_into_a_file_raise_before_the_training(monkeypatch):
    monkeypatch.setattr(training, "MAX_TEXT", 100)
    frame = {"w": Categories(np.arange(40) % 2, ["a" * 20_000, "b" * 200])}
    with pytest.raises(ValueError, match="most of all 'w': drop it"):
        learn_nets(frame, schema.Target("y", np.arange(40.0), None))
    with pytest.raises(ValueError, match=r"names or words are too many or too long, most of all 'ppp.*…': drop it"):
        learn_nets({"x": np.arange(40.0), "p" * 20_000: np.arange(40.0)}, schema.Target("y", np.arange(40.0), None))


@pytest.mark.parametrize(
    ("cells", "task", "classes"),
    [
        (["b", "a"] * 5, None, ["a", "b"]),
        ([3, 1, 10] * 4, None, ["1", "3", "10"]),
        ([0.0, 1.0] * 4, None, ["0", "1"]),
        (range(21), None, None),
        ([0.5, 1.5] * 4, None, None),
        ([0, 1] * 4, "regression", None),
        (["01", "1"] * 4, "classification", ["01", "1"]),
        ([0.5, 1.5] * 4, "classification", ["0.5", "1.5"]),
    ],
)
def test_words_and_few_integers_are_classes_and_other_numbers_values(cells, task, classes, path):
    as_words = ["y"] if task == "classification" else []
    table = read(write_rows(path, [["y", "x"], *[[cell, 1] for cell in cells]]), as_words=as_words)
    target = schema.encode_target(table, "y", task)
    assert target.classes == classes
    other = {"1": "regression", "0": "regression"}.get(classes[0]) if classes else "classification"
    assert schema.other_task(table.columns["y"], target) == (None if 0.5 in cells or "01" in cells else other)
    if classes is None:
        assert target.values.tolist() == list(cells)
    else:
        assert [classes[label] for label in target.values] == [str(cell).removesuffix(".0") for cell in cells]


@pytest.mark.parametrize(
    ("cells", "task", "message"),
    [
        (["a"] * 5, None, "is 'a' everywhere"),
        ([1.5] * 5, "regression", "is 1.5 everywhere"),
        (["1", "2", "x", "3"], "regression", "y is 'x' in line 4; regression takes numbers"),
        (list("abcde"), None, "has 5 classes in 5 rows"),
        ([1.5, "inf"], None, "y is inf in line 3"),
        ([1.5, 1e39], None, "the target, is all within ±1e[+]39, too large for float32: divide the column first"),
        ([1e9 + 0.5, 1e9 + 1], None, "the target, is all about 1e[+]09, and float32"),
        ([1e-299, 1e-297], None, "the target, is all within ±1e-297, too small for float32: multiply the column first"),
    ],
)
def test_a_target_that_cannot_be_learned_raises(cells, task, message, path):
    table = read(write_rows(path, [["y", "x"], *[[cell, 1] for cell in cells]]))
    with pytest.raises(ValueError, match=message):
        schema.encode_target(table, "y", task)


def test_rows_without_the_target_are_left_out_with_their_lines(path):
    rows = [["y", "word", "x"], ["a", "u", 1], ["", "v", 2], ["b", "w", 3], ["NA", "u", 4], ["a", "", 5]]
    table = schema.drop_rows_without(read(write_rows(path, rows)), "y")
    assert [table.columns["y"].words[code] for code in table.columns["y"].codes] == ["a", "b", "a"]
    assert table.columns["x"].tolist() == [1, 3, 5]
    words = table.columns["word"]
    assert [words.words[code] if code >= 0 else None for code in words.codes] == ["u", "w", None]
    assert table.where(table.columns["x"] == 5) == "in line 6"

    numbers = schema.drop_rows_without(read(write_rows(path, [["y", "x"], [1.5, 1], ["", 2], [2.5, 3]])), "y")
    assert numbers.columns["y"].tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="x, the target, is empty"):
        schema.drop_rows_without(read(write_rows(path, [["x", "y"], ["", 1], ["?", 2]])), "x")


@pytest.mark.parametrize(
    ("number", "texts"),
    [
        (2.3e6, ["2,300,000", "2,300,000"]),
        (79012.34, ["79,012.3", "79,012"]),
        (-1234567.8, ["-1,234,568", "-1,234,568"]),
        (10000.0, ["10,000", "10,000"]),
        (99999.99, ["100,000", "100,000"]),
        (2015.0, ["2015", "2015"]),
        (469.09, ["469.09", "469.1"]),
        (0.000123456789, ["0.000123457", "0.0001235"]),
        (1e-9, ["1e-09", "1e-09"]),
        (1e20, ["1e+20", "1e+20"]),
        (0.0, ["0", "0"]),
    ],
)
def test_numbers_of_the_report_have_commas_and_no_exponent_in_a_usual_range(number, texts):
    assert [number_text(number, digits) for digits in (6, 4)] == texts
    assert number_text(number) == texts[0]


def test_times_without_a_date_are_categories_with_advice(path):
    rows = [[f"{i % 3 + 8}:30", f"{i % 3}:30 h", i] for i in range(30)]
    _, facts = schema.select_columns(read(write_rows(path, [["time", "word", "y"], *rows])), np.ones(30, bool), "y", 2)
    assert [fact.kind for fact in facts] == ["3 categories"] * 2
    assert facts[0].text.endswith("33%; for their order, write hours, such as 12.5")
    assert facts[1].text.endswith("33%")


def test_numbers_and_dates_in_words_are_read_and_the_report_says_how(path):
    rows = [
        [f"${i},000.5", f"{i}/{13 - i}/2020", f"{i},5 €", "no" if i % 2 else "yes", "FALSE", i] for i in range(1, 9)
    ]
    rows += [["$9", "13/1/2020", "1.000 €", "no", "True", 9], ["none", "", "?", "yes", "True", 9]]
    frame, facts = infer_columns(path, [["cost", "day", "euro", "word", "member", "y"], *rows])
    np.testing.assert_array_equal(frame["cost"], [*[1000 * i + 0.5 for i in range(1, 9)], 9, np.nan])
    np.testing.assert_array_equal(frame["euro"], [*[i + 0.5 for i in range(1, 9)], 1000, np.nan])
    assert str(frame["day"][0]) == "2020-12-01T00:00:00.000000"
    assert facts == [
        ("cost", "numbers", "9 … 8000.5, mean 4001; 1 missing; in $, with a decimal point"),
        ("day", "dates", "13/1/2020 … 1/12/2020; 1 missing; the day is first"),
        ("euro", "numbers", "1.5 … 1000, mean 115.6; 1 missing; in €, with a decimal comma"),
        ("word", "2 categories", "no 50%, yes 50%"),
        ("member", "numbers", "0 … 1, mean 0.2; true is 1"),
    ]


def test_words_that_are_nearly_numbers_and_texts_have_a_hint(path):
    text = "the customer has complained about order number"
    rows = [[f"{i},000", f"{i}.5" if i else "unknown", f"{text} {i}", "ab"[i < 2], i] for i in range(25)]
    _, facts = infer_columns(path, [["many", "size", "text", "class", "y"], *rows], ignored=["many"])
    assert facts[1:] == [
        ("size", "left out", "'unknown' is not a number like '1.5'; 25 words in 25 rows, all rare"),
        ("text", "left out", "texts, all different: add columns of what counts, such as a word in them"),
        ("class", "2 categories", "a 92%, b 8.0%"),
    ]
    rows = [["1,234", "ab"[i == 3], i] for i in range(4)] + [["5", "a", 5]]
    _, facts = infer_columns(path, [["x", "class", "y"], *rows])
    assert facts == [
        ("x", "1 category", "no cell tells whether 1,234 is 1234 or 1.234: write one of these; 1,234 80%, 1 rare"),
        ("class", "1 category", "a 80%, 1 rare"),
    ]


def test_a_target_of_numbers_in_words_is_numbers_or_raises(path):
    def encode(cells, task=None):
        table = read(write_rows(path, [["y", "x"], *[[cell, 1] for cell in cells]]))
        table = schema.drop_rows_without(table, "y")
        return schema.encode_target(table, "y", task)

    costs = [f"${i},000.50" for i in range(1, 30)]
    target = encode([*costs, "none"])
    assert target.classes is None
    np.testing.assert_array_equal(target.values, [1000 * i + 0.5 for i in range(1, 30)])
    assert encode(["$1,000,000", "$2"] * 5).classes == ["2", "1000000"]
    assert encode(["True", "False"] * 5).classes == ["False", "True"]
    with pytest.raises(ValueError, match=r"y, the target: 'x' is not a number like '.1,000\.50'; or --task class"):
        encode([*costs, "x"] * 2)
    with pytest.raises(ValueError, match=r"y, the target: no cell tells whether 1,234 is 1234 or 1\.234"):
        encode(["1,234", "2,345"] * 5)
    assert encode(["1,234", "2,345"] * 5, "classification").classes == ["1,234", "2,345"]
