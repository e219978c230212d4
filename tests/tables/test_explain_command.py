"""caffelite train --explain and caffelite explain."""

import csv
import io
import re

import numpy as np
import pytest

import caffelite as cl
from caffelite.tables import TableModel, commands
from tests.tables.shop import run, shop, write_rows


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return the folder of a table and of a model of each task, trained with --explain."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("explained")
    data = write_rows(folder / "shop.csv", shop())
    for name, target, other in (("classes", "sold", "price"), ("values", "price", "sold")):
        model = folder / f"{name}.safetensors"
        said = run("train", data, "--target", target, "--drop", other, "--nets", 3, "--output", model, "--explain")
        assert said.err == ""
        assert said.status == 0
        assert f"picture in {folder / name}-explained.png" in said.out
        assert (folder / f"{name}-explained.png").read_bytes().startswith(b"\x89PNG")
    return folder


def read_lines(text):
    names, *lines = csv.reader(io.StringIO(text))
    return names, lines


@pytest.mark.parametrize("task", ["classes", "values"])
def test_the_contributions_and_the_base_add_up_to_the_prediction(models, task):
    said = run("explain", models / f"{task}.safetensors", models / "shop.csv")
    predicted = read_lines(run("predict", models / f"{task}.safetensors", models / "shop.csv").out)[1]
    names, lines = read_lines(said.out)
    assert said.err == ""
    assert len(lines) == 400
    if task == "classes":
        assert names == ["sold", "size", "city", "age", "base", "P(yes)"]
        assert [line[0] for line in lines] == [line[0] for line in predicted]
        expected = np.array([line[2] for line in predicted], float)
        numbers = np.array([line[1:] for line in lines], float)
    else:
        assert names == ["size", "city", "age", "base", "output"]
        expected, numbers = np.array(predicted, float)[:, 0], np.array(lines, float)
    np.testing.assert_allclose(numbers[:, :-1].sum(axis=1), numbers[:, -1], atol=2e-6)
    assert max(map(len, lines[0])) <= 13  # 17 digits would be noise
    np.testing.assert_allclose(numbers[:, -1], expected, atol=2e-6)
    age = numbers[:, names.index("age") - len(names)]
    assert abs(numbers[:, -5]).mean() > 5 * abs(age).mean()


def test_rows_are_in_the_file_only_with_explain(models, tmp_path):
    model = cl.load(models / "classes.safetensors")
    numbers, codes = model.background
    assert numbers.shape == (100, 2)
    assert codes.shape == (100, 1)
    known = {row.tobytes() for row in model.columns.arrays(read_frame(models))[0]}
    assert all(row.tobytes() in known for row in numbers)
    options = ["--target", "sold", "--drop", "price", "--nets", 3, "--output", tmp_path / "plain.safetensors"]
    assert run("train", models / "shop.csv", *options).status == 0
    plain = cl.load(tmp_path / "plain.safetensors")
    assert plain.background is None
    assert b"background" not in (tmp_path / "plain.safetensors").read_bytes()
    frame = read_frame(models)
    np.testing.assert_array_equal(plain.predict(frame), model.predict(frame))
    said = run("explain", tmp_path / "plain.safetensors", models / "shop.csv")
    assert said.status == 2
    assert "has no rows of the training to compare with: train it again with --explain" in said.err


def read_frame(folder):
    """Return the columns of the table that a model needs."""
    names, *lines = shop()
    columns = dict(zip(names, zip(*lines, strict=True), strict=True))
    ages = np.array([float(x) if x else np.nan for x in columns["age"]])
    return {"size": np.array(columns["size"]), "city": np.array(columns["city"]), "age": ages}


def test_a_loaded_model_saves_its_rows_again_and_exports_have_none(models, tmp_path):
    model = cl.load(models / "values.safetensors")
    model.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (models / "values.safetensors").read_bytes()
    assert run("export", models / "values.safetensors", "--c", tmp_path / "net.c").status == 0
    from caffelite.files.structure import to_json

    row = to_json(model.arguments()["background"][0][0])
    assert row not in (tmp_path / "net.c").read_text()
    assert row.encode() in (tmp_path / "again.safetensors").read_bytes()


@pytest.mark.parametrize(
    "background",
    [
        ([[1.0]], [[0]]),
        ([[1.0, 2.0]], [[0, 0]]),
        ([[1.0, 2.0]] * 2, [[0]]),
        ([], []),
        ([[1.0, 2.0]],),
        ([["a", 1.0]], [[0]]),
    ],
)
def test_a_background_that_does_not_fit_raises(models, background):
    model = cl.load(models / "values.safetensors")
    with pytest.raises(ValueError, match=r"background|argument|convert"):
        TableModel(model.functions, "price", None, background)


@pytest.mark.parametrize("options", [[], ["--row", 3], ["--column", "city"], ["--column", "size"]])
def test_a_picture_of_all_rows_of_a_row_or_of_a_column(models, tmp_path, options):
    picture = tmp_path / "picture.png"
    said = run("explain", models / "classes.safetensors", models / "shop.csv", "--picture", picture, *options)
    assert said.status == 0
    assert said.err == f"picture in {picture}\n"
    assert said.out.count("\n") == 401
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("task", ["classes", "values"])
def test_a_bar_counts_the_rows_on_a_terminal_and_blocks_change_no_number(models, task, monkeypatch):
    model, data = models / f"{task}.safetensors", models / "shop.csv"
    whole, lines, _ = commands.explain(model, data)
    monkeypatch.setattr(commands, "BLOCK_ROWS", 30)
    monkeypatch.setattr(commands, "BAR_DELAY", 0.0)
    monkeypatch.setattr(commands, "is_terminal", lambda stream: True)
    said = run("explain", model, data)
    assert [",".join(line) for line in lines] == said.out.splitlines()
    assert "/400 [" in said.err
    blocks, _, _ = commands.explain(model, data)
    for name in ("values", "errors", "outputs", "base"):
        np.testing.assert_array_equal(getattr(blocks, name), getattr(whole, name))
    assert list(blocks.data) == ["size", "city", "age"]
    assert len(blocks.data["size"]) == len(blocks) == 400


def test_values_go_into_a_file(models, tmp_path):
    out = tmp_path / "why.csv"
    said = run("explain", models / "values.safetensors", models / "shop.csv", "--output", out)
    assert said.out == f"explanations in {out}\n"
    assert read_lines(out.read_text())[0] == ["size", "city", "age", "base", "output"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--row", 1], "name a file, --picture FILE.png"),
        (["--picture", "a.png", "--row", 1, "--column", "city"], "choose one"),
        (["--picture", "a.png", "--row", 400], "there is no row 400: .* has the rows 0 … 399"),
        (["--picture", "a.png", "--column", "zip"], "there is no column 'zip': the model has size, city, age"),
        (["--output", "a.png", "--picture", "a.png"], "already reads or writes a.png"),
    ],
)
def test_options_that_can_not_be_raise_before_anything_is_written(models, tmp_path, monkeypatch, options, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "explain_rows", None)  # nor explained, which may take minutes
    said = run("explain", models / "classes.safetensors", models / "shop.csv", *options)
    assert said.status == 2
    assert said.out == ""
    assert re.search(text, said.err)
    assert list(tmp_path.iterdir()) == []


def test_importances_of_an_estimator_are_those_that_train_prints(tmp_path):
    sklearn = pytest.importorskip("caffelite.sklearn")
    from caffelite.tables import schema, training

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).round(3)
    y = np.where(x[:, 0] + x[:, 1] * x[:, 2] > 0, "yes", "no")
    rows = [["a", "b", "c", "y"], *[[*line, label] for line, label in zip(x.tolist(), y, strict=True)]]
    data = write_rows(tmp_path / "data.csv", rows)
    said = run("train", data, "--target", "y", "--nets", 2, "--output", tmp_path / "m.safetensors")
    parts = training.split(schema.Target("y", (y == "yes").astype(int), ["no", "yes"]), 0.2, 0)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    estimator = sklearn.TableClassifier(n_estimators=2, random_state=0).fit(frame[parts.training], y[parts.training])
    found = estimator.importances(frame[parts.test], y[parts.test])
    printed = [line.split() for line in said.out.splitlines() if " ± " in line and line[0] in "abc" and line[1] == " "]
    assert printed == [[name, f"{mean:.3f}", "±", f"{error:.3f}"] for name, (mean, error) in found.items()]
