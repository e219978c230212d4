"""Tables: read, taken for what they are, learned from, judged; and the commands `train`, `predict` and `export`."""

import contextlib
import csv
import gzip
import io
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest

import caffelite as cl
from caffelite import cli, plots
from caffelite.core.extras import how_to_install
from caffelite.data.frames import Categories
from caffelite.files import safetensors, structure
from caffelite.files.safetensors import File
from caffelite.functions import Columns
from caffelite.model.table import TableModel
from caffelite.tabular import columns, commands, judging, learning, reading, recipe, report
from caffelite.tabular.reading import Words, read
from caffelite.tabular.recipe import Recipe

N = 400


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table.csv"


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def words(column):
    return [None if code < 0 else column.words[code] for code in column.codes]


def shop(n=N, seed=0):
    """The lines of a table in which `price` is not linear in size, and `sold` follows from city and price."""
    rng = np.random.default_rng(seed)
    size, city = rng.uniform(-2, 2, n), rng.choice(["Ulm", "Bonn", "Aachen"], n, p=[0.5, 0.3, 0.2])
    price = size**2 + 2 * (city == "Bonn") + 0.1 * rng.normal(size=n)
    sold = np.where(price + (city == "Ulm") > 2, "yes", "no")
    names = ["", "size", "city", "age", "country", "name", "since", "price", "sold"]
    ages = ["" if rng.random() < 0.1 else str(age) for age in rng.integers(1, 90, n)]
    cells = zip(
        range(n),
        size,
        city,
        ages,
        ["DE"] * n,
        map("n{}".format, range(n)),
        ["2020-01-02"] * n,
        price,
        sold,
        strict=True,
    )
    return [names, *cells]


def write_rows(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def run(*arguments):
    """The exit status of a command, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            status = exit.code
    return SimpleNamespace(status=status, out=out.getvalue(), err=err.getvalue())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of each task that `caffelite train` has written, with what was printed."""
    folder = tmp_path_factory.mktemp("trained")
    data = write_rows(folder / "shop.csv", shop())
    found = SimpleNamespace(folder=folder, data=data)
    for name, target, other in (("classes", "sold", "price"), ("values", "price", "sold")):
        model = folder / f"{name}.safetensors"
        said = run("train", data, "--target", target, "--drop", other, "--nets", 4, "--output", model)
        assert said.err == ""
        assert said.status == 0
        setattr(found, name, SimpleNamespace(model=model, picture=folder / f"{name}.png", out=said.out))
    return found


# ---- reading --------------------------------------------------------------------------------------------------------


def test_numbers_words_and_what_is_missing_are_read(path):
    table = read(write(path, "a, b,c ,d\n1,x, 1e3,2020\n,?,NA,\n\n-.5, y z ,None,nan\n 2 ,x,inf,null\n"))
    np.testing.assert_array_equal(table.columns["a"], [1, np.nan, -0.5, 2])
    assert words(table.columns["b"]) == ["x", None, "y z", "x"]
    np.testing.assert_array_equal(table.columns["c"], [1000, np.nan, np.nan, np.inf])
    np.testing.assert_array_equal(table.columns["d"], [2020, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(table.lines, [2, 3, 5, 6])


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a,b\n1.5,x\n", None),
        ("a;b\n1,5;x\n", None),
        ("a;b\n1.5;x\n", None),
        ("a\tb\n1.5\tx\n", None),
        ("a|b\n1.5|x\n", None),
        ("a:b\n1.5:x\n", ":"),
        ('"a","b"\n"1.5","x"\n', None),
        ("\ufeffa,b\r\n1.5,x\r\n", None),
    ],
)
def test_delimiters_are_found_and_decimal_commas_read_between_semicolons(text, delimiter, path):
    table = read(write(path, text), delimiter)
    assert list(table.columns) == ["a", "b"]
    np.testing.assert_array_equal(table.columns["a"], [1.5])
    assert words(table.columns["b"]) == ["x"]


def test_a_comma_between_commas_is_no_decimal_comma(path):
    assert words(read(write(path, 'a,b\n"1,234",x\n')).columns["a"]) == ["1,234"]


def test_quoted_cells_hold_anything_and_errors_name_the_line_of_the_file(path):
    text = 'a,b\n1,"x, ""y""\nz"\n2,w\n3\n'
    with pytest.raises(ValueError, match=r"table.csv: line 5 has 1 cell, the first has 2$"):
        read(write(path, text))
    table = read(write(path, text.removesuffix("3\n")))
    assert words(table.columns["b"]) == ['x, "y"\nz', "w"]
    np.testing.assert_array_equal(table.lines, [3, 4])


def test_gzip_is_read(path):
    path.write_bytes(gzip.compress(b"a,b\n1,x\n"))
    assert list(read(path).columns) == ["a", "b"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="not a whole gzip file"):
        read(path)


def test_a_gzip_file_is_unpacked_no_further_than_its_size_explains(path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_UNPACKED_MORE", 10_000)
    unpacked = []
    read1 = reading.Unpacked.read1
    monkeypatch.setattr(reading.Unpacked, "read1", lambda self, *size: unpacked.append(1) or read1(self, *size))
    for content in (b"x" * 3_000_000, b"a,b\n" + b"\n" * 3_000_000):
        path.write_bytes(gzip.compress(content))
        unpacked.clear()
        with pytest.raises(ValueError, match=r"unpacked table is larger than 3\d\d\.\d kB, .* unpack the file first"):
            read(path)
        assert 0 < len(unpacked) < 100  # of 8 kB each


def test_a_pipe_is_read_whole(path):
    os.mkfifo(path)
    text = "a,b\n" + "1,2\n" * 5000 + "x,3\n"  # more than a buffer, and read twice
    writer = threading.Thread(target=path.write_text, args=[text])
    writer.start()
    table = read(path)
    writer.join()
    assert len(table.lines) == 5001
    assert table.columns["a"].words == ["1", "x"]


def test_a_first_line_longer_than_a_cell_may_be_is_read(path):
    names = [f"column_number_{i:07}" for i in range(7000)]
    assert list(read(write(path, f"{','.join(names)}\n{','.join('1' * 7000)}\n")).columns) == names


def test_a_cell_that_is_too_long_is_refused_with_its_line(path):
    with pytest.raises(ValueError, match="line 1 is not a row of comma-separated values: field larger than"):
        read(write(path, "x" * 200_000))


def test_a_column_that_turns_out_to_be_words_has_the_words_it_began_with(path, monkeypatch):
    monkeypatch.setattr("caffelite.tabular.reading.CHUNK", 2)
    table = read(write(path, "a,b,c\n01,1,1\n1.0,2,2\n,3,3\nx,4,4\n1,5,1_0\n"))
    assert words(table.columns["a"]) == ["01", "1.0", None, "x", "1"]
    np.testing.assert_array_equal(table.columns["b"], [1, 2, 3, 4, 5])
    assert words(table.columns["c"]) == ["1", "2", "3", "4", "1_0"]  # a number to Python alone


def test_numbers_are_words_where_that_is_wanted(path):
    table = read(write(path, "a,b\n01,1\n1,2\n"), as_words=["a"])
    assert words(table.columns["a"]) == ["01", "1"]
    np.testing.assert_array_equal(table.columns["b"], [1, 2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty, expected the names of columns in its first line"),
        (b"\n\n", "is empty"),
        (b"a,b\n", "has the names of columns and no rows"),
        (b"1,2\n3,4\n", "begins with numbers, expected the names of columns"),
        (b"a,b,a\n1,2,3\n", "has more than one column 'a'"),
        (b"a,b\ncaf\xe9,1\n", "is not a text in UTF-8, it has the byte 0xe9"),
        ("a,b\n1,2\n".encode("utf-16"), "is not a text in UTF-8"),
        (b'a,b\n1,"x\n', "line 2 is not a row of comma-separated values"),
        (b'a,b\n1,"x"y\n', "line 2 is not a row of comma-separated values"),
        (b"a,b\n1,2,3\n", "line 2 has 3 cells, the first has 2"),
    ],
)
def test_what_is_no_table_is_refused(content, message, path):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(path)


# ---- what columns are taken for -------------------------------------------------------------------------------------


def taken(path, rows, target="y", **options):
    table = read(write_rows(path, rows))
    everything = np.ones(len(rows) - 1, bool)
    return columns.taken_for(table, everything, target, 2, **options)


def test_numbers_and_words_are_kept_as_they_are(path):
    cells = [[i, "ab"[i % 2] if 0 < i < 14 else "" if i else "rare", 1] for i in range(15)]
    frame, facts = taken(path, [["x", "w", "y"], *cells])
    np.testing.assert_array_equal(frame["x"], range(15))
    np.testing.assert_array_equal(frame["w"].codes, [0, *[1, 2] * 6, 1, -1])
    assert frame["w"].names == ["rare", "b", "a"]
    assert [fact[1:] for fact in facts] == [
        ("numbers", "0 … 14, mean 7; if it numbers the rows, --drop it"),
        ("2 categories", "b 47%, a 40%, 1 rare, 6.7% missing"),
    ]


def test_gaps_are_counted(path):
    frame, facts = taken(path, [["x", "y"], [1, 1], ["", 1], [5, 1], ["", 1]])
    np.testing.assert_array_equal(frame["x"], [1, np.nan, 5, np.nan])
    assert facts == [("x", "numbers", "1 … 5, mean 3; 2 missing")]


def test_only_rows_of_the_training_say_what_there_is(path):
    table = read(write_rows(path, [["x", "w", "y"], *[[i, "ab"[i >= 8], 1] for i in range(16)]]))
    frame, facts = columns.taken_for(table, np.arange(16) < 8, "y", 2)
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
        (["1/31/2020"], None),
        (["20-01-31"], None),
        (["2020-01/31"], None),
        (["2020-01-31T12:00Z", "2020-01-31T12:00"], None),
    ],
)
def test_dates_are_read(words, expected):
    dates = columns.dates_of(Words(np.array([0, -1, len(words) - 1]), words))
    if expected is None:
        assert dates is None
        return
    first, gap, last = cl.Columns({"d": dates}).arrays({"d": dates})[0][:, -1]  # seconds since the first one
    assert np.isnan(gap)
    stamps = np.array(expected, "datetime64[ms]")
    seconds = (stamps[-1] - stamps[0]) / np.timedelta64(1, "s")
    assert last - first == seconds


def test_dates_are_kept_and_their_first_and_last_are_said(path):
    cells = ["2021-03-01", "2020-05-01", "", "2020-12-31"]
    frame, facts = taken(path, [["since", "y"], *[[cell, 1] for cell in cells]])
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
    frame, facts = taken(path, [["x", "w", "y"], *[[i, cell, 1] for i, cell in enumerate(cells)]])
    assert list(frame) == ["x"]
    assert facts[1].taken_for == "left out"
    assert facts[1].text.startswith(reason)


def test_what_numbers_the_rows_is_said_to(path):
    rows = [["id", "x", "z", "y"], *[[7 - i, 1 + i // 2, i if i else "", 1] for i in range(6)]]
    _, facts = taken(path, rows)
    assert [fact.name for fact in facts if fact.text.endswith("; if it numbers the rows, --drop it")] == ["id"]


def test_a_table_with_nothing_to_predict_from_is_refused_with_the_reasons(path):
    with pytest.raises(ValueError, match="no column is left to predict y from; x: 1 everywhere, w: as you said"):
        taken(path, [["x", "w", "y"], [1, 1, 1], [1, 2, 3]], ignored=["w"])


def test_infinite_numbers_are_refused_with_their_line(path):
    with pytest.raises(ValueError, match=r"x is inf in line 3 and 1 other"):
        taken(path, [["x", "y"], [1, 1], ["inf", 1], ["-inf", 1]])


def test_words_that_would_not_fit_into_a_file_are_refused_before_the_training(monkeypatch):
    monkeypatch.setattr(learning, "MOST_TEXT", 100)
    frame = {"w": Categories(np.arange(40) % 2, ["a" * 20_000, "b" * 200])}
    with pytest.raises(ValueError, match="most of them in 'w': drop it"):
        learned(frame, columns.Target("y", np.arange(40.0), None))


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
    target = columns.target_of(table, "y", task)
    assert target.classes == classes
    other = {"1": "regression", "0": "regression"}.get(classes[0]) if classes else "classification"
    assert columns.other_task(table.columns["y"], target) == (None if 0.5 in cells or "01" in cells else other)
    if classes is None:
        assert target.values.tolist() == list(cells)
    else:
        assert [classes[label] for label in target.values] == [str(cell).removesuffix(".0") for cell in cells]


@pytest.mark.parametrize(
    ("cells", "task", "message"),
    [
        (["a", "", "b", "", "a"], None, "y, the target, is missing in line 3 and 1 other: leave these rows out"),
        ([1.5, "", 2], None, "y, the target, is missing in line 3: leave"),
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
def test_a_target_that_cannot_be_learned_is_refused(cells, task, message, path):
    table = read(write_rows(path, [["y", "x"], *[[cell, 1] for cell in cells]]))
    with pytest.raises(ValueError, match=message):
        columns.target_of(table, "y", task)


# ---- learning and judging -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [None, ["a", "b", "c", "d"]])
def test_rows_are_held_out_at_random_the_same_share_of_each_class(classes):
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [500, 300, 199, 1]))
    target = columns.Target("y", labels if classes else labels + 0.5, classes)
    parts = learning.split(target, 0.2, seed=1)
    np.testing.assert_array_equal(sum(part.astype(int) for part in parts), 1)
    np.testing.assert_allclose([part.sum() for part in parts], [800, 200], atol=3)
    for label in range(3 if classes else 0):
        shares = [np.mean(labels[part] == label) for part in parts]
        np.testing.assert_allclose(shares, np.mean(labels == label), atol=0.01)
    if classes:
        assert parts.training[labels == 3].all()
    others = [learning.split(target, 0.2, seed=seed).test for seed in (1, 2)]
    assert (others[0] == parts.test).all()
    assert 0.1 < (others[1] & parts.test).sum() / 200 < 0.35


@pytest.mark.parametrize("seed", range(5))
def test_a_class_of_one_row_is_in_the_training(seed):
    labels = np.r_[np.zeros(30, int), np.arange(1, 11)]
    parts = learning.split(columns.Target("y", labels, [str(i) for i in range(11)]), 0.3, seed)
    assert parts.training[30:].all()


def test_too_few_rows_are_refused():
    with pytest.raises(ValueError, match="19 rows are too few"):
        learning.split(columns.Target("y", np.arange(19.0), None), 0.2, 0)


def learned(frame, target, seed=0, **numbers):
    parts = learning.split(target, 0.25, 0)
    nets = learning.learn(frame, target, parts.training, Recipe(**{"nets": 2, **numbers}), seed, 0)
    return nets, parts


def numbers_and_words(n=400):
    """A frame, and a target that is linear in its columns."""
    rng = np.random.default_rng(0)
    x, codes = rng.normal(1000, 50, n), rng.integers(0, 3, n)
    y = 5e4 + 20 * x + np.array([0, 1000, -3000])[codes]
    return {"x": x, "c": Categories(codes, ["a", "b", "c"])}, columns.Target("y", y, None)


def test_a_linear_model_finds_the_least_squares_in_the_units_of_the_table():
    frame, target = numbers_and_words()
    parts = learning.split(target, 0.25, 0)
    model = learning.learn_linear(frame, target, parts.training, seed=0)
    predicted = model.predict(learning.rows_of(frame, parts.test))[:, 0]
    np.testing.assert_allclose(predicted, target.values[parts.test], atol=0.03 * target.values.std())
    assert (model.target, model.classes) == ("y", None)


def test_the_nets_learn_a_target_in_the_units_of_the_table_and_tell_their_epochs():
    frame, target = numbers_and_words()
    nets, parts = learned(frame, target)
    predicted = nets.model.predict(learning.rows_of(frame, parts.test))[:, 0]
    assert np.sqrt(np.mean((predicted - target.values[parts.test]) ** 2)) < 0.1 * target.values.std()
    assert len(nets.histories) == 2
    mean = nets.mean_history()
    assert list(mean) == ["loss", "r2", "val_loss", "val_r2"]
    assert mean["val_loss"][3] == np.mean([history["val_loss"][3] for history in nets.histories])


@pytest.mark.parametrize("is_regression", [False, True])
def test_boosted_trees_get_the_same_columns(is_regression):
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    codes, x = rng.integers(-1, 300, 3000), rng.normal(size=3000)
    frame = {
        "c": Categories(codes % 3 - 1, ["a", "b"]),
        "many": Categories(codes, [f"n{i}" for i in range(300)]),
        "x": x,
    }
    above = (frame["c"].codes == 1) | (x > 1)
    target = columns.Target("y", above * 3.0, None) if is_regression else columns.Target("y", above * 1, ["no", "yes"])
    parts = learning.split(target, 0.25, 0)
    outputs = learning.trees(cl.Splines(frame, 4), frame, target, parts, seed=0)
    assert outputs.shape == ((parts.test.sum(), 1) if is_regression else (parts.test.sum(), 2))
    predicted = outputs[:, -1] > (1.5 if is_regression else 0.5)
    assert (predicted == above[parts.test]).mean() > 0.99


@pytest.mark.parametrize("nets_that_begin", [0, 2])
def test_ctrl_c_keeps_the_nets_that_have_begun(nets_that_begin, monkeypatch, capsys):
    frame, target = numbers_and_words()
    begun = []

    def interrupted(nets, *data, **options):
        begun.extend(nets[:nets_that_begin])
        histories = []
        if begun:
            few = {name: options.pop(name)[:nets_that_begin] for name in ("optimizers", "rows", "validation_rows")}
            histories = cl.fit_many(begun, *data, **options, **few)
        error = KeyboardInterrupt()
        error.histories = [*histories, *[cl.History(loss=[])] * (len(nets) - len(histories))]
        raise error

    monkeypatch.setattr(recipe, "fit_many", interrupted)
    if not nets_that_begin:
        with pytest.raises(KeyboardInterrupt):
            learned(frame, target, nets=5)
        return
    nets, parts = learned(frame, target, nets=5)
    assert len(nets.histories) == 2
    assert capsys.readouterr().err == "caffelite: stopped, with 2 of 5 nets\n"
    test = learning.rows_of(frame, parts.test)
    center, scale = target.values[parts.training].mean(), target.values[parts.training].std()
    expected = center + scale * np.mean([net.predict(test) for net in begun], axis=0)
    np.testing.assert_allclose(nets.model.predict(test), expected, rtol=1e-5)


def test_losses_and_scores_are_what_they_are_called():
    target = columns.Target("y", np.array([0, 1, 1, 2]), ["a", "b", "c"])
    rows = np.ones(4, bool)
    p = np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    expected = -np.log([0.7, 0.4, 0.8, 0.6])
    np.testing.assert_allclose(judging.losses(p, target, rows), expected)
    assert np.isfinite(judging.losses(np.array([[0, 1, 0]] * 4), target, rows)).all()
    scores = judging.scores(p, target, rows)
    assert list(scores) == ["accuracy", "F1, mean of the classes", "area under the ROC curve", "log loss"]
    assert scores["accuracy"] == 0.75
    assert scores["log loss"] == pytest.approx(expected.mean())
    values = columns.Target("y", np.array([1.0, 2.0, 4.0]), None)
    outputs = np.array([[1.0], [3.0], [4.0]])
    np.testing.assert_allclose(judging.losses(outputs, values, rows[:3]), [0, 1, 0])
    found = judging.scores(outputs, values, rows[:3])
    assert found["R²"] == pytest.approx(1 - 1 / np.sum((np.array([1, 2, 4]) - 7 / 3) ** 2))
    assert found["root mean squared error"] == pytest.approx(np.sqrt(1 / 3))
    assert found["mean absolute error"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("rare", [0, 1])
def test_f1_is_that_of_the_rare_class(rare):
    labels = np.array([rare, rare, *[1 - rare] * 8])
    p = np.full((10, 2), 0.5)
    p[[0, 2], rare], p[[1, *range(3, 10)], rare] = 0.9, 0.1  # one of the two is found, and one is taken for them
    p[:, 1 - rare] = 1 - p[:, rare]
    target = columns.Target("y", labels, ["no", "yes"])
    scores = judging.scores(p, target, np.ones(10, bool))
    assert scores[f"F1 of {['no', 'yes'][rare]}"] == 0.5


class Says:
    """A model that says what a function makes of a frame, or of the arrays of one."""

    def __init__(self, function, frame):
        self.function, self.columns = function, Columns(frame)

    def predict(self, x):
        frame = dict(zip(self.columns.numbers, x.T, strict=True)) if isinstance(x, np.ndarray) else x
        return self.function(frame)[:, None]


def judgement(nets, linear, trees=None, noise=0.1, n=400):
    """Of models of y = x + noise."""
    rng = np.random.default_rng(0)
    frame = {"x": rng.normal(size=n), "z": rng.normal(size=n)}
    target = columns.Target("y", frame["x"] + noise * rng.normal(size=n), None)
    parts = learning.split(target, 0.25, 0)
    of_trees = None if trees is None else trees(learning.rows_of(frame, parts.test))[:, None]
    return judging.Judgement(Says(nets, frame), Says(linear, frame), of_trees, frame, target, parts, seed=0)


def exact(frame):
    return frame["x"]


def rough(frame):
    return 0.7 * frame["x"]


@pytest.mark.parametrize(
    ("nets", "linear", "trees", "said"),
    [
        (exact, rough, None, ["The nets do better than a linear model: R² 0.99"]),
        (rough, exact, None, ["A linear model does better: R² 0.99"]),
        (exact, lambda f: 1.0005 * f["x"], None, ["A linear model does as well: R² 0.99"]),
        (exact, lambda f: 1.005 * f["x"], None, ["A linear model does as well: R² 0.99"]),
        (exact, rough, exact, ["The nets do better than a linear", "Boosted trees do as well: R² 0.99"]),
        (rough, rough, exact, ["A linear model does as well", "Boosted trees do better: R² 0.99"]),
        (exact, exact, rough, ["A linear model does as well", "The nets do better than boosted trees: R² 0.99"]),
        (lambda f: f["z"], lambda f: 0.01 * f["z"], None, ["No model is reliably better than the baseline (the mean"]),
    ],
)
def test_the_verdict_says_which_is_better_if_that_is_more_than_chance(nets, linear, trees, said):
    found = report.verdict(judgement(nets, linear, trees))
    assert len(found) == len(said)
    assert all(sentence.startswith(expected) for sentence, expected in zip(found, said, strict=True))


def test_a_difference_is_paired_and_has_the_standard_error_of_its_mean():
    found = judgement(exact, lambda f: f["x"] + 0.1)
    y = found.target.values[found.parts.test]
    linear, nets = (judging.losses(found.models[name], found.target, found.parts.test) for name in ("linear", "nets"))
    d = (linear - nets) / y.var()
    mean, error = found.difference("nets", "linear")
    assert mean == pytest.approx(d.mean())
    assert error == pytest.approx(d.std(ddof=1) / np.sqrt(len(d)))
    assert found.difference("linear", "nets").mean == -mean


def test_a_column_matters_by_what_is_lost_when_it_is_shuffled():
    found = judgement(exact, exact)
    assert list(found.importances) == ["x", "z"]
    assert 1.5 < found.importances["x"].mean < 2.5  # R² of a shuffled copy is about −1
    assert 0 < found.importances["x"].error < 0.5
    np.testing.assert_allclose(found.importances["z"], 0, atol=1e-15)


def test_the_columns_that_matter_are_found_with_one_look_at_the_frame(monkeypatch):
    looks = []
    arrays = Columns.arrays
    monkeypatch.setattr(Columns, "arrays", lambda self, *given: looks.append(1) or arrays(self, *given))
    frame = {**{f"x{i}": np.arange(40.0) + i for i in range(9)}, "c": Categories(np.arange(40) % 2, ["a", "b"])}
    target = columns.Target("y", np.arange(40) % 2, ["a", "b"])
    model = TableModel([Columns(frame), cl.Linear(11, 2), cl.Softmax()], "y", ["a", "b"], seed=0)
    assert len(judging.importances(model, frame, target, np.ones(40, bool), 0)) == 10
    assert len(looks) == 1


def test_all_features_of_a_date_are_shuffled_together():
    days = np.datetime64("2020-01-01") + np.arange(400)
    frame = {"since": days, "x": np.arange(400.0)}
    target = columns.Target("y", np.arange(400.0), None)

    def predict(shown):
        seconds, year = shown["since, seconds"], shown["since, year"]
        np.testing.assert_array_equal(year, 2020 + (seconds >= 366 * 86400))
        return seconds / 86400

    found = judging.importances(Says(predict, frame), frame, target, np.ones(400, bool), 0)
    assert list(found) == ["since", "x"]
    assert found["since"].mean > 1


def test_of_many_columns_fewer_rows_are_shuffled(monkeypatch):
    rows = []
    frame = {f"x{i}": np.arange(3000.0) for i in range(100)}
    target = columns.Target("y", np.arange(3000.0), None)
    monkeypatch.setattr(judging, "MOST_PREDICTED", 100_000)

    def predict(shown):
        rows.append(len(shown["x0"]))
        return shown["x0"]

    judging.importances(Says(predict, frame), frame, target, np.ones(3000, bool), 0)
    assert set(rows) == {200}


# ---- the file -------------------------------------------------------------------------------------------------------


def test_the_file_is_the_whole_model_and_load_makes_it_again(trained):
    model = cl.load(trained.classes.model)
    assert type(model) is TableModel
    assert (model.target, model.classes) == ("sold", ("no", "yes"))
    assert set(model.columns.categories["city"]) == {"Ulm", "Bonn", "Aachen"}
    assert model.columns.numbers == ["size", "age"]
    assert cl.load(trained.values.model).classes is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["a"]}, "expected a different name for each class, .* for outputs"),
        ({"classes": ["a", "a"]}, "expected a different name for each class, .* for outputs"),
        ({"classes": ["a", "a", "b"]}, "expected a different name for each class, .* for outputs"),
        ({"classes": None}, "expected a different name for each class, .* for outputs"),
        ({"classes": ["a", 1]}, "classes that are words"),
        ({"classes": 10**9}, "can't be made"),
        ({"target": 3}, "target and classes that are words"),
    ],
)
def test_a_structure_of_no_table_is_refused(change, message, tmp_path):
    columns_ = cl.Columns({"x": np.arange(3.0), "w": np.array(["a", "b", "a"])})
    model = TableModel([columns_, cl.Linear(columns_.features, 2), cl.Softmax()], "y", ["no", "yes"])
    with File(_saved(model, tmp_path)) as file:
        texts, arrays = dict(file.texts), file.arrays(file.forms)
    entries = structure.described(model)
    entries[-1]["arguments"] |= change
    texts["caffelite.structure"] = structure.as_text(entries)
    safetensors.write(tmp_path / "other", arrays, texts)
    with pytest.raises(ValueError, match=message):
        cl.load(tmp_path / "other")


@pytest.mark.parametrize(
    "functions",
    [
        [],
        [cl.Linear(3, 2)],
        [cl.Parallel([cl.Columns({"x": np.arange(3)}), cl.Linear(1, 1)])],
    ],
)
def test_a_model_that_is_none_of_a_table_is_not_made(functions):
    with pytest.raises(ValueError, match="expected Columns or Splines, and Functions after them"):
        TableModel(functions, "y", ["no", "yes"])


def _saved(model, folder):
    model.save(folder / "model.safetensors")
    return folder / "model.safetensors"


# ---- the commands ---------------------------------------------------------------------------------------------------


def test_train_says_what_the_columns_were_taken_for_and_how_good_both_models_are(trained):
    out = trained.classes.out
    for line in [
        r"\(1 without a name\) +left out",
        r"size +numbers +-?[\d.]+ … [\d.]+, mean -?[\d.]+",
        r"city +3 categories +Ulm \d+%, Bonn \d+%, Aachen \d+%",
        r"age +numbers +1 … 89, mean [\d.]+; \d+ missing",
        r"country +left out +'DE' everywhere",
        r"name +left out +\d+ words in \d+ rows, all rare",
        r"since +left out +'2020-01-02' everywhere",
        r"price +left out +as you said",
        r"sold: classification, 2 classes: (no|yes) \d+%, (no|yes) \d+%",
        r"400 rows: 320 for the training, 80 for the test",
        r"4 nets, [\d,]+ parameters, \d+ epochs in [\d.]+ seconds",
        r"best for the rows that a net holds out: epoch \d+ … \d+",
        r" +training +test +linear +boosted trees +always (no|yes)",
        r"accuracy( +[\d.]+){5}",
        r"F1 of (yes|no)( +[\d.]+){5}",
        r"area under the ROC curve( +[\d.]+){5}",
        r"log loss( +[\d.]+){5}",
        r"The nets do better than a linear model: log loss .*",
        r"(The nets do better than boosted trees|Boosted trees do as well): log loss .*",
        r"size +\d\.\d\d\d ± 0.\d\d\d",
        rf"model in {trained.classes.model}",
        rf"picture in {trained.classes.picture}",
    ]:
        assert len(re.findall(rf"^{line}$", out, re.MULTILINE)) == 1, line
    assert max(map(len, out.splitlines())) <= 120


def test_a_regression_is_said_in_the_units_of_the_table(trained):
    found = re.search(r"^root mean squared error((?: +[\d.]+){5})$", trained.values.out, re.MULTILINE)
    *net, linear, trees, mean = map(float, found[1].split())
    assert max(net) < 0.5 < linear < mean < 2
    assert trees < 1
    assert re.search(r"^ +training +test +linear +boosted trees +the mean$", trained.values.out, re.MULTILINE)
    assert re.search(r"^price: regression, -?[\d.]+ … [\d.]+, mean [\d.]+$", trained.values.out, re.MULTILINE)


def test_names_with_dollar_signs_are_drawn_as_they_are(tmp_path):
    rows = [["$p$^", "a$\\frac$", "y"], *[[i % 5, i % 7, ("$\\x$", "$^$")[i % 2]] for i in range(60)]]
    model = tmp_path / "m.safetensors"
    said = run("train", write_rows(tmp_path / "t.csv", rows), "--target", "y", "--epochs", 2, "--output", model)
    assert (said.status, said.err) == (0, "")
    assert (tmp_path / "m.png").exists()


@pytest.mark.parametrize("command", ["train", "predict"])
def test_what_cannot_be_written_is_said_in_a_sentence(command, trained, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("too many names")

    monkeypatch.setattr(TableModel, "save", fail)
    monkeypatch.setattr(safetensors, "replace", fail)
    given = ["--target", "sold", "--epochs", 1] if command == "train" else []
    model = [trained.classes.model] if command == "predict" else []
    said = run(command, *model, trained.data, *given, "--output", tmp_path / "m.safetensors")
    assert said.status == 1
    assert said.err.endswith("could not write " + str(tmp_path / "m.safetensors") + ": too many names\n")


@pytest.mark.parametrize("name", ["classes", "values"])
def test_the_picture_shows_predictions_curves_and_columns(name, trained):
    pixels = matplotlib.image.imread(getattr(trained, name).picture)[..., :3]
    assert pixels.shape == (700, 1600, 3)
    for part in (pixels[:, :550], pixels[:, 650:1080], pixels[:, 1120:]):
        assert 0.005 < (part < 0.9).any(axis=-1).mean() < 0.99


def test_the_picture_counts_what_was_taken_for_what():
    history = cl.History({name: [1.0, 0.5] for name in ("loss", "accuracy", "val_loss", "val_accuracy")})
    truth, predictions = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 1, 0])
    figure = plots.table_picture(history, truth, predictions, ["a", "b", "c" * 30], {"x": 0.5, "z": -0.1})
    (confusion,), curves, (bars,) = [part.axes for part in figure.subfigs]
    assert [text.get_text() for text in confusion.texts] == ["2", "1", "0", "0", "2", "0", "1", "0", "0"]
    assert confusion.get_title(loc="left") == "66.7% of 6 held-out rows right"
    assert [label.get_text() for label in confusion.get_yticklabels()] == ["a", "b", "c" * 13 + "…"]
    assert len(curves) == 2
    assert [bar.get_width() for bar in bars.patches] == [-0.1, 0.5]


def test_predict_gives_classes_with_probabilities_and_values_for_rows_in_any_order_of_columns(trained, tmp_path):
    names, *rows = shop(50, seed=1)
    mixed = [[*row[::-1], "more"] for row in [names, *rows]]
    data = write_rows(tmp_path / "new.csv", mixed)
    found = run("predict", trained.classes.model, data)
    assert (found.status, found.err) == (0, "")
    lines = list(csv.reader(io.StringIO(found.out)))
    assert lines[0] == ["sold", "P(no)", "P(yes)"]
    assert len(lines) == 51
    p = np.array([line[1:] for line in lines[1:]], float)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    assert [line[0] for line in lines[1:]] == [["no", "yes"][i] for i in p.argmax(axis=1)]
    assert np.mean([line[0] == row[-1] for line, row in zip(lines[1:], rows, strict=True)]) > 0.8
    output = tmp_path / "predictions.csv"
    found = run("predict", trained.values.model, data, "--output", output)
    assert (found.status, found.out) == (0, f"predictions in {output}\n")
    first, *lines = output.read_text().splitlines()
    assert first == "price"
    assert np.corrcoef(np.array(lines, float), [row[-2] for row in rows])[0, 1] > 0.95


def test_what_predict_says_of_the_test_rows_is_what_train_said(trained):
    table = read(trained.data)
    target = columns.target_of(table, "price")
    parts = learning.split(target, 0.2, 0)
    lines = run("predict", trained.values.model, trained.data).out.splitlines()
    errors = (np.array(lines[1:], float) - target.values)[parts.test]
    said = re.search(r"^root mean squared error +[\d.]+ +([\d.]+)", trained.values.out, re.MULTILINE)
    assert float(said[1]) == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-3)


def test_new_words_and_missing_numbers_are_predicted_and_said(trained, tmp_path):
    rows = [["size", "city", "age"], [1, "Rome", 3], [1, "Paris", ""], ["", "", 3]]
    found = run("predict", trained.classes.model, write_rows(tmp_path / "new.csv", rows))
    assert found.status == 0
    assert len(found.out.splitlines()) == 4
    assert found.err.splitlines() == [
        "caffelite predict: size is missing in line 4, but never in the training",
        "caffelite predict: city has 'Rome' in line 2 and 1 other, not a category of the training",
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["size", "age"], [1, 2]], "has no column 'city', which the model needs"),
        (
            [["size", "city", "age"], [1, "Ulm", 2], ["big", "Ulm", 3]],
            "size is 'big' in line 3; the model takes numbers there",
        ),
        ([["size", "city", "age"], ["inf", "Ulm", 3]], "size is inf in line 2"),
        ([["size", "city", "age"]], "has the names of columns and no rows"),
    ],
)
def test_tables_that_a_model_cannot_be_applied_to_are_refused(rows, message, trained, tmp_path):
    data = write_rows(tmp_path / "new.csv", rows)
    found = run("predict", trained.classes.model, data, "--output", tmp_path / "out.csv")
    assert (found.status, found.out) == (2, "")
    assert re.fullmatch(rf"caffelite predict: error: {re.escape(data)}:? {re.escape(message)}\n", found.err)
    assert os.listdir(tmp_path) == ["new.csv"]


@pytest.mark.usefixtures("no_matplotlib")
def test_numbers_that_are_names_are_categories_where_that_is_said_and_at_predictions_too(tmp_path):
    rows = [["code", "y"], *[[f"0{1 + i % 3}", [5.5, 0.25, 2.75][i % 3]] for i in range(90)]]
    data = write_rows(tmp_path / "data.csv", rows)
    model = tmp_path / "model.safetensors"
    options = ["--category", "code", "--hidden", 32, "--nets", 2, "--output", model]
    found = run("train", data, "--target", "y", *options)
    assert re.search(r"^code +3 categories +0\d 3\d%, 0\d 3\d%, 0\d \d\d%$", found.out, re.MULTILINE)
    new = write_rows(tmp_path / "new.csv", [["code"], ["02"], ["01"], ["03"]])
    values = run("predict", model, new).out.split()[1:]
    np.testing.assert_allclose(np.array(values, float), [0.25, 5.5, 2.75], atol=0.3)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.csv", "--target", "y"], "train: error: none.csv: No such file or directory"),
        (["train", ".", "--target", "y"], "train: error: .: Is a directory"),
        (["train", "data.csv", "--target", "Y"], "train: error: data.csv has no column 'Y'; it has x, y"),
        (
            ["train", "data.csv", "--target", "y", "--drop", "z"],
            "train: error: data.csv has no column 'z'; it has x, y",
        ),
        (["train", "data.csv"], "train: error: the following arguments are required: --target"),
        (
            ["train", "data.csv", "--target", "y"],
            "train: error: 15 rows are too few to train on some and test on others",
        ),
        (
            ["train", "data.csv", "--target", "y", "--output", "m.txt"],
            "train: error: argument --output: expected a file that ends in .safetensors, got 'm.txt'",
        ),
        (
            ["train", "data.csv", "--target", "y", "--output", "no/m.safetensors"],
            "train: error: argument --output: there is no folder no",
        ),
        (
            ["train", "data.csv", "--target", "y", "--picture", "m.txt"],
            "train: error: argument --picture: expected a file that ends in .png or .jpg or .svg or .pdf, got 'm.txt'",
        ),
        *[
            (
                ["train", "data.csv", "--target", "y", f"--hidden={x}"],
                f"train: error: argument --hidden: expected integers, 1 or more, such as 64,64, got {x!r}",
            )
            for x in ("", "0", "4,,4", "x", "-1")
        ],
        *[
            (
                ["train", "data.csv", "--target", "y", f"--test={x}"],
                f"train: error: argument --test: expected a number above 0 and below 1, got {x!r}",
            )
            for x in ("0", "1", "nan", "x")
        ],
        (
            ["train", "data.csv", "--target", "y", "--lr=0"],
            "train: error: argument --lr: expected a number above 0 and below 1e+06, got '0'",
        ),
        (
            ["train", "data.csv", "--target", "y", "--delimiter=::"],
            "train: error: argument --delimiter: expected one character, or tab, got '::'",
        ),
        (["predict", "none.safetensors", "data.csv"], "predict: error: none.safetensors: No such file or directory"),
        (
            ["predict", "data.csv", "data.csv"],
            "predict: error: data.csv: 64 bytes are not a complete safetensors file",
        ),
        (
            ["predict", "net.safetensors", "data.csv"],
            "predict: error: net.safetensors is not a model of a table from caffelite train",
        ),
        (
            ["predict", "net.safetensors", "data.csv", "--output", "./data.csv"],
            "predict: error: the command already reads or writes data.csv: write another file",
        ),
        (["export", "net.safetensors"], "export: error: name a file to write: --onnx FILE, --c FILE or both"),
        (
            ["export", "net.safetensors", "--c", "net.safetensors"],
            "export: error: the command already reads or writes net.safetensors: write another file",
        ),
        (
            ["export", "net.safetensors", "--c", "net", "--onnx", "net"],
            "export: error: the command already reads or writes net: write another file",
        ),
        (["export", "none.safetensors", "--c", "net.c"], "export: error: none.safetensors: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence_and_nothing_is_written(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("x,y\n" + "1,2\n3,4\n5,6\n" * 5)
    cl.MLP(2, [2], seed=0).save("net.safetensors")
    before = {name: Path(name).read_bytes() for name in os.listdir()}
    found = run(*arguments)
    assert (found.status, found.out) == (2, "")
    assert found.err.splitlines()[-1] == f"caffelite {message}"
    assert {name: Path(name).read_bytes() for name in os.listdir()} == before


@pytest.mark.usefixtures("no_training")
def test_a_picture_that_could_not_be_written_beside_the_model_is_refused_before_the_training(tmp_path):
    data = write_rows(tmp_path / "data.csv", shop(100))
    (tmp_path / "m.png").mkdir()
    found = run("train", data, "--target", "price", "--output", tmp_path / "m.safetensors")
    assert (found.status, found.out) == (2, "")
    assert re.fullmatch(r"caffelite train: error: cannot write '.*m.png': Is a directory\n", found.err)
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "m.png"]


def test_a_training_that_diverges_writes_nothing(tmp_path):
    data = write_rows(tmp_path / "data.csv", shop(100))
    found = run("train", data, "--target", "price", "--lr", 1e5, "--output", tmp_path / "m.safetensors")
    assert found.status == 2
    assert re.fullmatch(r"caffelite train: error: .*epoch.*\n", found.err)
    assert os.listdir(tmp_path) == ["data.csv"]


@pytest.mark.usefixtures("no_matplotlib")
def test_the_same_seed_makes_the_same_file_and_another_another(tmp_path):
    data = write_rows(tmp_path / "data.csv", shop(100))
    contents = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(
            "train",
            data,
            "--target",
            "sold",
            "--epochs",
            2,
            "--seed",
            seed,
            "--output",
            tmp_path / f"{name}.safetensors",
        )
        contents.append((tmp_path / f"{name}.safetensors").read_bytes())
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_there_is_a_model_and_no_picture(tmp_path):
    data = write_rows(tmp_path / "data.csv", shop(100))
    found = run("train", data, "--target", "sold", "--epochs", 2, "--output", tmp_path / "m.safetensors")
    assert found.status == 0
    assert found.out.endswith(f"picture skipped: it needs matplotlib ({how_to_install('plot')})\n")
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "m.safetensors"]


def exporter(fails=False):
    """A module that exports, as `caffelite.onnx` and `caffelite.c` do."""
    calls = []

    def export(model, path, input_shape=None):
        if fails:
            raise TypeError("Swish can't be exported")
        calls.append((model, input_shape))
        Path(path).write_text(f"{path.name} of {model!r}")

    return SimpleNamespace(export=export, calls=calls)


def test_export_says_what_the_inputs_are(trained, tmp_path, monkeypatch):
    modules = {"caffelite.onnx": exporter(), "caffelite.c": exporter()}
    monkeypatch.setattr(commands, "import_module", modules.get)
    onnx, c = tmp_path / "net.onnx", tmp_path / "net.c"
    found = run("export", trained.classes.model, "--onnx", onnx, "--c", c)
    assert (found.status, found.err) == (0, "")
    known = cl.load(trained.classes.model).columns.categories["city"]
    for line in [
        "numbers  0  size    as in the table, NaN where it is missing",
        "numbers  1  age     as in the table, NaN where it is missing",
        f"codes    0  city    {known.index('Ulm')} where it is 'Ulm'",
        "codes    0  city    3 where it is missing",
        "codes    0  city    4 where it is none of these",
        r"Inputs: numbers \(n, 2\), then codes \(n, 1\). Output: the probabilities of no, yes.",
        f"model in {onnx}",
    ]:
        assert re.search(rf"^{line}$", found.out, re.MULTILINE), line
    for module in modules.values():
        ((model, shape),) = module.calls
        assert shape is None
        assert model.predict((np.zeros((1, 2)), np.zeros((1, 1), np.int64))).shape == (1, 2)
    assert sorted(os.listdir(tmp_path)) == ["net.c", "net.onnx"]
    assert c.read_text().startswith("net.c of Model")


def test_what_is_made_of_a_date_is_told():
    dates = np.datetime64("2020-01-01") + np.arange(800)
    told = report.of_inputs(cl.Splines({"since": dates}, 4))
    assert "0  since, year                     year" in told
    assert "1  since, month, sine              sin(2π · month / 12), counted from 0" in told
    assert "7  since, seconds                  seconds since 2020-01-01T00:00:00" in told


def test_dates_are_columns_of_a_model_and_words_among_them_are_refused(tmp_path):
    rng, months = np.random.default_rng(0), ["2020-01", "2021-06", "2022-12"]
    rows = [[f"{months[i % 3]}-{rng.integers(1, 29):02}", i % 3 * 2.5] for i in range(120)]
    data, model = write_rows(tmp_path / "t.csv", [["day", "y"], *rows]), tmp_path / "m.safetensors"
    assert run("train", data, "--target", "y", "--task", "regression", "--nets", 2, "--output", model).status == 0
    new = write_rows(tmp_path / "new.csv", [["day"], *[[f"{month}-15"] for month in months], [""]])
    found = run("predict", model, new)
    np.testing.assert_allclose(np.array(found.out.split()[1:4], float), [0, 2.5, 5], atol=0.3)
    assert found.err == "caffelite predict: day is missing in line 5, but never in the training\n"
    for cell, message in (
        ("soon", "day is 'soon' in line 3; the model takes dates there"),
        ("2020-01-01 1:00Z", "time zone"),
    ):
        found = run("predict", model, write_rows(tmp_path / "bad.csv", [["day"], ["2020-01-01"], [cell]]))
        assert found.status == 2
        assert message in found.err


def test_scores_of_an_older_file_are_no_probabilities(tmp_path):
    columns_ = cl.Columns({"x": np.arange(3.0)})
    path = tmp_path / "m.safetensors"
    TableModel([columns_, cl.Linear(1, 2)], "y", ["no", "yes"], seed=0).save(path)
    found = run("predict", path, write_rows(tmp_path / "t.csv", [["x"], [1]]))
    assert (found.status, found.out) == (2, "")
    assert found.err == f"caffelite predict: error: {path} gives no probabilities: train it again\n"


def test_export_of_any_model_takes_the_shape_of_a_row(tmp_path, monkeypatch):
    module = exporter()
    monkeypatch.setattr(commands, "import_module", {"caffelite.c": module}.get)
    cl.Model([cl.Flatten(), cl.Linear(12, 2)]).save(tmp_path / "net.safetensors")
    assert run("export", tmp_path / "net.safetensors", "--c", tmp_path / "net.c", "--input-shape", "3,2,2").status == 0
    assert module.calls[0][1] == (3, 2, 2)


def test_nothing_is_exported_where_something_cannot_be(trained, tmp_path, monkeypatch):
    modules = {"caffelite.onnx": exporter(), "caffelite.c": exporter(fails=True)}
    monkeypatch.setattr(commands, "import_module", modules.get)
    found = run("export", trained.classes.model, "--onnx", tmp_path / "net.onnx", "--c", tmp_path / "net.c")
    assert (found.status, found.out) == (2, "")
    assert found.err == "caffelite export: error: Swish can't be exported\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["onnx", "c"])
@pytest.mark.parametrize("task", ["classes", "values"])
def test_the_modules_take_what_export_gives_them(name, task, trained, tmp_path):
    pytest.importorskip(f"caffelite.{name}", exc_type=ImportError)
    found = run("export", getattr(trained, task).model, f"--{name}", tmp_path / "net")
    assert (found.status, found.err) == (0, "")
    assert (tmp_path / "net").stat().st_size > 10_000
