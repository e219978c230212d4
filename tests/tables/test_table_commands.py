"""The commands `train`, `predict` and `export`."""

import csv
import io
import os
import re
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest

import caffelite as cl
from caffelite import plots
from caffelite._support.extras import install_command
from caffelite.tables import TableModel, commands, report, schema
from caffelite.tables import training as learning
from caffelite.tables.reading import read
from tests.conftest import posix
from tests.tables.shop import run, shop, write_rows


def test_train_says_what_the_columns_were_taken_for_and_how_good_both_models_are(trained_models):
    out = trained_models.classes.out
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
        r"400 rows: 320 for training, 80 for testing",
        r"4 nets, [\d,]+ parameters, \d+ epochs in [\d.]+ seconds",
        r"best for the rows that a net holds out: epoch \d+ … \d+",
        r" +training +test +linear +boosted trees +always (no|yes)",
        r"accuracy( +[\d.]+){5}",
        r"F1 of (yes|no)( +[\d.]+){5}",
        r"area under the ROC curve( +[\d.]+){5}",
        r"log loss( +[\d.]+){5}",
        r"The nets do better than a linear model: log loss .*",
        r"(The nets do better than boosted trees|Boosted trees (may )?do as well): log loss .*",
        r"size +\d\.\d\d\d ± 0.\d\d\d",
        rf"model in {re.escape(str(trained_models.classes.model))}",
        rf"picture in {re.escape(str(trained_models.classes.picture))}",
    ]:
        assert len(re.findall(rf"^{line}$", out, re.MULTILINE)) == 1, line
    assert max(map(len, out.splitlines())) <= 120


def test_boosted_trees_take_one_thread_for_a_small_table_and_all_for_a_large_one(monkeypatch):
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_info, threadpool_limits

    def count_threads():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "openmp"}

    found, trees = [], SimpleNamespace(predict=lambda x: np.zeros(len(x)))
    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", lambda *arguments: found.append(count_threads()) or trees)
    frame = {"x": np.arange(40.0)}
    target = schema.Target("y", np.arange(40.0), None)
    with threadpool_limits(2, "openmp"):
        for min_cells in (41, 40):
            monkeypatch.setattr(learning, "MIN_THREADED_CELLS", min_cells)
            learning.predict_trees(cl.Columns(frame), frame, target, learning.split(target, 0.25, 0), 0)
        assert found == [{1}, {2}]
        assert count_threads() == {2}


def test_train_leaves_out_rows_without_the_target_and_counts_them(tmp_path):
    names, *rows = shop(60)
    gaps = [[*row[:-1], "" if i in (3, 40) else row[-1]] for i, row in enumerate(rows)]
    tables = {"gaps": gaps, "rest": [row for i, row in enumerate(rows) if i not in (3, 40)]}
    reports = []
    for name, lines in tables.items():
        path = write_rows(tmp_path / f"{name}.csv", [names, *lines])
        output = tmp_path / f"{name}.safetensors"
        found = run("train", path, "--target", "sold", "--nets", 1, "--epochs", 2, "--output", output)
        assert found.status == 0, found.err
        reports.append([line for line in found.out.splitlines() if not line.startswith(("1 net", "model", "picture"))])
    [line] = [line for line in reports[1] if line.startswith("58 rows: ")]
    assert reports[0].index(f"{line}; 2 rows without sold left out") == reports[1].index(line)
    assert reports[0][-5:] == reports[1][-5:]  # the same importances

    # And predict fills the gaps.
    predicted = run("predict", tmp_path / "gaps.safetensors", tmp_path / "gaps.csv")
    assert len(predicted.out.splitlines()) == 61


def test_a_regression_is_reported_in_the_units_of_the_table(trained_models):
    found = re.search(r"^root mean squared error((?: +[\d.]+){5})$", trained_models.values.out, re.MULTILINE)
    *net, linear, trees, mean = map(float, found[1].split())
    assert max(net) < 0.5 < linear < mean < 2
    assert trees < 1
    assert re.search(r"^ +training +test +linear +boosted trees +the mean$", trained_models.values.out, re.MULTILINE)
    assert re.search(r"^price: regression, -?[\d.]+ … [\d.]+, mean [\d.]+$", trained_models.values.out, re.MULTILINE)


def test_names_with_dollar_signs_are_drawn_as_they_are(tmp_path):
    rows = [["$p$^", "a$\\frac$", "y"], *[[i % 5, i % 7, ("$\\x$", "$^$")[i % 2]] for i in range(60)]]
    model = tmp_path / "m.safetensors"
    said = run("train", write_rows(tmp_path / "t.csv", rows), "--target", "y", "--epochs", 2, "--output", model)
    assert (said.status, said.err) == (0, "")
    assert (tmp_path / "m.png").exists()


@pytest.mark.parametrize("command", ["train", "predict"])
def test_an_output_that_cannot_be_written_is_reported_in_a_sentence(command, trained_models, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("too many names")

    monkeypatch.setattr(TableModel, "save", fail)
    monkeypatch.setattr("caffelite.cli.tables.replace_file", fail)
    given = ["--target", "sold", "--epochs", 1] if command == "train" else []
    model = [trained_models.classes.model] if command == "predict" else []
    said = run(command, *model, trained_models.data, *given, "--output", tmp_path / "m.safetensors")
    assert said.status == 1
    assert said.err.endswith("could not write " + str(tmp_path / "m.safetensors") + ": too many names\n")


@pytest.mark.parametrize("name", ["classes", "values"])
def test_the_picture_shows_predictions_curves_and_columns(name, trained_models):
    pixels = matplotlib.image.imread(getattr(trained_models, name).picture)[..., :3]
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
    assert [label.get_text() for label in confusion.get_yticklabels()] == ["a", "b", "c" * 17 + "…"]
    assert {label.get_rotation() for label in confusion.get_xticklabels()} == {90}
    figure = plots.table_picture(history, truth, predictions, ["a", "b", "c"], {"x": 0.5})
    assert {label.get_rotation() for label in figure.subfigs[0].axes[0].get_xticklabels()} == {0}
    assert len(curves) == 2
    assert [bar.get_width() for bar in bars.patches] == [-0.1, 0.5]


def test_the_title_of_the_bars_is_inside_the_picture_beside_long_names():
    history = cl.History({name: [1.0, 0.5] for name in ("loss", "accuracy", "val_loss", "val_accuracy")})
    figure = plots.table_picture(
        history, np.arange(2), np.arange(2), ["a", "b"], {"months_since_last_inquiry": 0.5, "x": 0.1}
    )
    figure.savefig(io.BytesIO(), format="png", dpi="figure")  # which makes room for the names
    [bars] = figure.subfigs[2].axes
    [title] = [x for x in bars.get_children() if getattr(x, "get_text", str)() == "log loss added if shuffled"]
    box = title.get_window_extent()
    assert 0 < box.x0 < box.x1 <= figure.bbox.x1


def test_predict_gives_classes_and_values_for_columns_in_any_order(trained_models, tmp_path):
    names, *rows = shop(50, seed=1)
    mixed = [[*row[::-1], "more"] for row in [names, *rows]]
    data = write_rows(tmp_path / "new.csv", mixed)
    found = run("predict", trained_models.classes.model, data)
    assert (found.status, found.err) == (0, "")
    lines = list(csv.reader(io.StringIO(found.out)))
    assert lines[0] == ["sold", "P(no)", "P(yes)"]
    assert len(lines) == 51
    p = np.array([line[1:] for line in lines[1:]], float)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    assert [line[0] for line in lines[1:]] == [["no", "yes"][i] for i in p.argmax(axis=1)]
    assert np.mean([line[0] == row[-1] for line, row in zip(lines[1:], rows, strict=True)]) > 0.8
    output = tmp_path / "predictions.csv"
    found = run("predict", trained_models.values.model, data, "--output", output)
    assert (found.status, found.out) == (0, f"predictions in {output}\n")
    first, *lines = output.read_text().splitlines()
    assert first == "price"
    assert np.corrcoef(np.array(lines, float), [row[-2] for row in rows])[0, 1] > 0.95


def test_predict_reports_the_same_scores_of_the_test_rows_as_train(trained_models):
    table = read(trained_models.data)
    target = schema.encode_target(table, "price")
    parts = learning.split(target, 0.2, 0)
    lines = run("predict", trained_models.values.model, trained_models.data).out.splitlines()
    errors = (np.array(lines[1:], float) - target.values)[parts.test]
    said = re.search(r"^root mean squared error +[\d.]+ +([\d.]+)", trained_models.values.out, re.MULTILINE)
    assert float(said[1]) == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-3)


def test_new_words_and_missing_numbers_are_predicted_and_said(trained_models, tmp_path):
    rows = [["size", "city", "age"], [1, "Rome", 3], [1, "Paris", ""], ["", "", 3]]
    found = run("predict", trained_models.classes.model, write_rows(tmp_path / "new.csv", rows))
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
def test_tables_that_a_model_cannot_be_applied_to_raise(rows, message, trained_models, tmp_path):
    data = write_rows(tmp_path / "new.csv", rows)
    found = run("predict", trained_models.classes.model, data, "--output", tmp_path / "out.csv")
    assert (found.status, found.out) == (2, "")
    assert re.fullmatch(rf"caffelite predict: error: {re.escape(data)}:? {re.escape(message)}\n", found.err)
    assert os.listdir(tmp_path) == ["new.csv"]


@pytest.mark.usefixtures("missing_matplotlib")
def test_numbers_named_as_categories_are_categories_in_predictions_too(tmp_path):
    rows = [["code", "y"], *[[f"0{1 + i % 3}", [5.5, 0.25, 2.75][i % 3]] for i in range(90)]]
    data = write_rows(tmp_path / "data.csv", rows)
    model = tmp_path / "model.safetensors"
    options = ["--category", "code", "--hidden", 32, "--nets", 2, "--output", model]
    found = run("train", data, "--target", "y", *options)
    assert re.search(r"^code +3 categories +0\d 3\d%, 0\d 3\d%, 0\d \d\d%$", found.out, re.MULTILINE)
    new = write_rows(tmp_path / "new.csv", [["code"], ["02"], ["01"], ["03"]])
    values = run("predict", model, new).out.split()[1:]
    np.testing.assert_allclose(np.array(values, float), [0.25, 5.5, 2.75], atol=0.3)


def test_a_table_without_a_line_of_names_is_an_error_that_asks_for_it(tmp_path):
    (tmp_path / "data.csv").write_text("-0.5,yes\n1.5,no\n")
    found = run("train", tmp_path / "data.csv", "--target", "sold")
    assert found.err.endswith("it has -0.5, yes; the first line should have the names of the columns\n")


@pytest.mark.usefixtures("forbidden_training")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.csv", "--target", "y"], "train: error: none.csv: No such file or directory"),
        pytest.param(["train", ".", "--target", "y"], "train: error: .: Is a directory", marks=posix),
        (["train", "data.csv", "--target", "Y"], "train: error: data.csv has no column 'Y'; it has x, y"),
        (
            ["train", "data.csv", "--target", "y", "--drop", "z"],
            "train: error: data.csv has no column 'z'; it has x, y",
        ),
        (["train", "data.csv", "--target", "x,y"], "train: error: data.csv has no column 'x,y'; it has x, y"),
        (["train", "data.csv"], "train: error: the following arguments are required: --target"),
        (
            ["train", "data.csv", "--target", "y"],
            "train: error: 15 rows are too few to train on some and test on others: give 20 or more",
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
        *[
            (
                ["train", "data.csv", "--target", "y", f"--time={x}"],
                f"train: error: argument --time: expected a number above 0 and below 1e+09, got {x!r}",
            )
            for x in ("0", "-1", "nan", "inf", "x")
        ],
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
def test_an_impossible_command_raises_in_a_sentence_and_writes_nothing(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_bytes(b"x,y\n" + b"1,2\n3,4\n5,6\n" * 5)
    cl.MLP(2, [2], seed=0).save("net.safetensors")
    before = {name: Path(name).read_bytes() for name in os.listdir()}
    found = run(*arguments)
    assert (found.status, found.out) == (2, "")
    assert found.err.splitlines()[-1] == f"caffelite {message}"
    assert {name: Path(name).read_bytes() for name in os.listdir()} == before


@pytest.mark.usefixtures("forbidden_training")
def test_a_picture_that_cannot_be_written_raises_before_the_training(tmp_path):
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


@pytest.mark.usefixtures("missing_matplotlib")
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


@pytest.mark.usefixtures("missing_matplotlib")
def test_without_matplotlib_there_is_a_model_and_no_picture(tmp_path):
    data = write_rows(tmp_path / "data.csv", shop(100))
    found = run("train", data, "--target", "sold", "--epochs", 2, "--output", tmp_path / "m.safetensors")
    assert found.status == 0
    assert found.out.endswith(f"picture skipped: it needs matplotlib ({install_command('plot')})\n")
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "m.safetensors"]


def exporter(fails=False):
    """Return a module that exports, as `caffelite.onnx` and `caffelite.c` do."""
    calls = []

    def export(model, path, input_shape=None):
        if fails:
            raise TypeError("Swish can't be exported")
        calls.append((model, input_shape))
        Path(path).write_text(f"{path.name} of {model!r}")

    return SimpleNamespace(export=export, calls=calls)


def test_export_says_what_the_inputs_are(trained_models, tmp_path, monkeypatch):
    modules = {"caffelite.onnx": exporter(), "caffelite.c": exporter()}
    monkeypatch.setattr(commands, "import_module", modules.get)
    onnx, c = tmp_path / "net.onnx", tmp_path / "net.c"
    found = run("export", trained_models.classes.model, "--onnx", onnx, "--c", c)
    assert (found.status, found.err) == (0, "")
    known = cl.load(trained_models.classes.model).columns.categories["city"]
    for line in [
        "numbers  0  size    as in the table, NaN where it is missing",
        "numbers  1  age     as in the table, NaN where it is missing",
        f"codes    0  city    {known.index('Ulm')} where it is 'Ulm'",
        "codes    0  city    3 where it is missing",
        "codes    0  city    4 where it is none of these",
        r"Inputs: numbers \(n, 2\), then codes \(n, 1\). Output: the probabilities of no, yes.",
        f"model in {re.escape(str(onnx))}",
    ]:
        assert re.search(rf"^{line}$", found.out, re.MULTILINE), line
    for module in modules.values():
        ((model, shape),) = module.calls
        assert shape is None
        assert model.predict((np.zeros((1, 2)), np.zeros((1, 1), np.int64))).shape == (1, 2)
    assert sorted(os.listdir(tmp_path)) == ["net.c", "net.onnx"]
    assert c.read_text().startswith("net.c of Model")


def test_the_features_of_a_date_are_listed():
    dates = np.datetime64("2020-01-01") + np.arange(800)
    told = report.inputs_table(cl.Splines({"since": dates}, 4))
    assert "0  since, year                     year" in told
    assert "1  since, month, sine              sin(2π · month / 12), counted from 0" in told
    assert "7  since, seconds                  seconds since 2020-01-01T00:00:00" in told


def test_dates_are_columns_of_a_model_and_words_among_them_raise(tmp_path):
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


def test_scores_of_an_older_file_do_not_become_probabilities(tmp_path):
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


def test_nothing_is_exported_if_a_part_cannot_be(trained_models, tmp_path, monkeypatch):
    modules = {"caffelite.onnx": exporter(), "caffelite.c": exporter(fails=True)}
    monkeypatch.setattr(commands, "import_module", modules.get)
    found = run("export", trained_models.classes.model, "--onnx", tmp_path / "net.onnx", "--c", tmp_path / "net.c")
    assert (found.status, found.out) == (2, "")
    assert found.err == "caffelite export: error: Swish can't be exported\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["onnx", "c"])
@pytest.mark.parametrize("task", ["classes", "values"])
def test_the_modules_take_what_export_gives_them(name, task, trained_models, tmp_path):
    pytest.importorskip(f"caffelite.{name}", exc_type=ImportError)
    found = run("export", getattr(trained_models, task).model, f"--{name}", tmp_path / "net")
    assert (found.status, found.err) == (0, "")
    assert (tmp_path / "net").stat().st_size > 10_000


def trips(n=120):
    """Return the lines of a table whose cells are written as spreadsheets do."""
    rng = np.random.default_rng(0)
    fares, days = rng.uniform(500, 5000, n), rng.integers(1, 29, (n, 2))
    cells = [
        [f"A{i}", f"${fare:,.2f}", f"{day}/{month % 12 + 1}/2021", str(bool(i % 2)), f"{fare / 2:,.1f} €"]
        for i, (fare, (day, month)) in enumerate(zip(fares, days, strict=True))
    ]
    return [["id", "fare", "day", "member", "cost"], *cells]


@pytest.fixture(scope="module")
def spreadsheet(tmp_path_factory):
    """Return such a table, a model of it from the command, and one from Python, with what was printed."""
    sklearn, pandas = pytest.importorskip("caffelite.sklearn"), pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("spreadsheet")
    data = write_rows(folder / "trips.csv", trips())
    said = run(
        "train", data, "--target", "cost", "--drop", "id,member", "--nets", 2, "--output", folder / "m.safetensors"
    )
    frame = pandas.read_csv(data)
    cost = frame["cost"].str.replace("[ ,€]", "", regex=True).astype(float)
    estimator = sklearn.TableRegressor(n_estimators=2, random_state=0).fit(frame[["fare", "day", "member"]], cost)
    estimator.model_.save(folder / "python.safetensors")
    return SimpleNamespace(folder=folder, data=data, said=said, frame=frame, estimator=estimator, cost=cost)


def test_the_report_says_how_cells_were_read_and_names_a_leak_before_the_scores(spreadsheet):
    out = spreadsheet.said.out
    assert spreadsheet.said.err == ""
    assert re.search(r"^fare +numbers +.*; in \$, with a decimal point$", out, re.MULTILINE)
    assert re.search(r"^day +dates +\d+/\d+/2021 … \d+/\d+/2021; the day is first$", out, re.MULTILINE)
    assert out.count("left out") == 2
    assert re.search(r"^cost: regression, .*; in €, with a decimal point$", out, re.MULTILINE)
    assert out.index("fare alone tells nearly everything") < out.index("root mean squared error")


def test_a_model_of_the_command_takes_frames_and_a_model_of_python_takes_files(spreadsheet):
    model = cl.load(spreadsheet.folder / "m.safetensors")
    said = run("predict", spreadsheet.folder / "m.safetensors", spreadsheet.data)
    np.testing.assert_array_equal(np.array(said.out.split()[1:], np.float32), model.predict(spreadsheet.frame)[:, 0])
    said = run("predict", spreadsheet.folder / "python.safetensors", spreadsheet.data)
    values = np.array(said.out.split()[1:], float)
    frame = spreadsheet.frame[["fare", "day", "member"]]
    np.testing.assert_allclose(values, spreadsheet.estimator.predict(frame), rtol=1e-5)
    assert np.corrcoef(values, spreadsheet.cost)[0, 1] > 0.9
    # No cell of another file has to tell again that the day is first.
    new = write_rows(spreadsheet.folder / "new.csv", [["fare", "day", "member"], ["$1,000", "1/2/2021", "true"]])
    alone = {"fare": [1000.0], "day": np.array(["2021-02-01"], "datetime64[us]"), "member": [True]}
    for name in ("m", "python"):
        path = spreadsheet.folder / f"{name}.safetensors"
        value = float(run("predict", path, new).out.split()[1])
        assert value == pytest.approx(cl.load(path).predict(alone)[0, 0])
    new = write_rows(spreadsheet.folder / "new.csv", [["fare", "day", "member"], ["$1,000", "2/31/2021", "true"]])
    said = run("predict", spreadsheet.folder / "m.safetensors", new)
    assert said.err.endswith("new.csv: day is '2/31/2021' in line 2; the model takes dates there\n")


def test_predictions_keep_the_columns_that_are_named(spreadsheet):
    model = spreadsheet.folder / "m.safetensors"
    cells = [row[0:2] + row[4:] for row in trips()]
    said = run("predict", model, spreadsheet.data, "--keep", "id,fare", "--keep", "cost")
    lines = list(csv.reader(io.StringIO(said.out)))
    assert lines[0] == ["id", "fare", "cost", "predicted cost"]
    assert [line[:3] for line in lines] == cells
    assert [line[3] for line in lines[1:]] == run("predict", model, spreadsheet.data).out.split()[1:]
    said = run("predict", model, spreadsheet.data, "--keep", "id,nme")
    assert (said.status, said.out) == (2, "")
    assert said.err.endswith("trips.csv has no column 'nme'; it has id, fare, day, member, cost\n")


def test_a_name_with_a_comma_is_a_column_if_there_is_one(path):
    rows = [["a,b", "a", "b", "y"], *[[i, i % 3, i % 5, i / 7] for i in range(40)]]
    data = commands.read(write_rows(path, rows))
    assert commands._find_names(data, ["a,b"]) == ["a,b"]
    assert commands._find_names(data, ["y,a", "b"]) == ["y", "a", "b"]
