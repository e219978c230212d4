"""caffelite train --interval, and what caffelite predict then writes."""

import csv
import io
import re

import numpy as np
import pytest

import caffelite as cl
from caffelite.tables import recipe, training
from caffelite.tables.recipe import Recipe
from tests.tables.shop import run, shop, write_rows
from tests.tables.test_evaluation import numbers_and_words

OPTIONS = {"classes": ("--target", "sold", "--drop", "price"), "values": ("--target", "price", "--drop", "sold")}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return the folder of a table and of a model of each task, and what was printed."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("intervals")
    data, printed = write_rows(folder / "shop.csv", shop()), {}
    for name, options in OPTIONS.items():
        model = folder / f"{name}.safetensors"
        said = run("train", data, *options, "--nets", 4, "--output", model, "--interval", 0.9)
        assert said.err == ""
        assert said.status == 0
        printed[name] = said.out
    write_rows(folder / "new.csv", shop(seed=1))
    return folder, printed


def predict(model, data):
    names, *lines = csv.reader(io.StringIO(run("predict", model, data).out))
    return names, lines


def test_the_report_has_the_coverage_of_the_test_rows_and_the_size(models):
    _, printed = models
    found = re.search(
        r"90% intervals: (.*)% of the test rows are inside\. The median width is (.*)\.\n", printed["values"]
    )
    assert float(found[1]) > 80
    assert 0.3 < float(found[2]) < 2
    text = " ".join(printed["classes"].split())
    found = re.search(
        r"90% sets: they have the class of (.*)% of the test rows, and (.*) classes on average\. The expected "
        r"calibration error of the probabilities is (0\.\d\d\d)\.",
        text,
    )
    assert float(found[1]) > 80
    assert 1 <= float(found[2]) < 1.5
    assert float(found[3]) < 0.2


def test_predict_writes_intervals_that_hold_new_rows(models):
    folder, _ = models
    names, lines = predict(folder / "values.safetensors", folder / "new.csv")
    assert names == ["price", "low", "high"]
    numbers = np.array(lines, float)
    truth = np.array([float(line[7]) for line in shop(seed=1)[1:]])
    assert 0.85 < ((numbers[:, 1] <= truth) & (truth <= numbers[:, 2])).mean() < 0.97
    assert (numbers[:, 1] < numbers[:, 0]).all()
    assert (numbers[:, 0] < numbers[:, 2]).all()
    plain, _ = predict(train_without(folder, "values"), folder / "new.csv")
    assert plain == ["price"]


def test_predict_writes_sets_that_hold_new_rows(models):
    folder, _ = models
    names, lines = predict(folder / "classes.safetensors", folder / "new.csv")
    assert names == ["sold", "P(no)", "P(yes)", "in set(no)", "in set(yes)"]
    sets = np.array([line[3:] for line in lines])
    assert set(sets.ravel()) == {"0", "1"}
    truth = [["no", "yes"].index(line[8]) for line in shop(seed=1)[1:]]
    assert (sets[np.arange(len(truth)), truth] == "1").mean() > 0.85
    assert all(line[3 + ["no", "yes"].index(line[0])] == "1" for line in lines)


def train_without(folder, task):
    model = folder / f"plain-{task}.safetensors"
    assert run("train", folder / "shop.csv", *OPTIONS[task], "--nets", 4, "--output", model).status == 0
    return model


def test_the_nets_are_the_same_and_only_the_file_differs(models):
    folder, _ = models
    for task in OPTIONS:
        plain, model = cl.load(train_without(folder, task)), cl.load(folder / f"{task}.safetensors")
        assert plain.regions is None
        assert model.regions.coverage == 0.9
        for name, p in model.named_parameters().items():
            np.testing.assert_array_equal(p.data, plain.named_parameters()[name].data)
        assert b"regions" not in (folder / f"plain-{task}.safetensors").read_bytes()
    assert run("explain", folder / "values.safetensors", folder / "new.csv").status == 2
    assert run("export", folder / "values.safetensors", "--c", folder / "net.c").status == 0


def test_too_few_rows_raise_before_the_training(models, tmp_path, monkeypatch):
    folder, _ = models
    monkeypatch.setattr(recipe, "fit_many", None)
    said = run(
        "train",
        folder / "shop.csv",
        *OPTIONS["values"],
        "--nets",
        4,
        "--interval",
        0.99,
        "--output",
        tmp_path / "m.safetensors",
    )
    assert said.status == 2
    assert "error: coverage=0.99 needs 199 rows that the nets held out, and there are 160" in said.err
    for text in ("1", "0", "1.5", "nan", "a"):
        said = run("train", folder / "shop.csv", *OPTIONS["values"], "--interval", text)
        assert said.status == 2
        assert "argument --interval: expected a number above 0 and below 1" in said.err


@pytest.mark.parametrize(("coverage", "is_made"), [(0.8, True), (0.97, False)])
def test_after_ctrl_c_there_are_intervals_if_enough_rows_were_held_out(coverage, is_made, monkeypatch, capsys):
    frame, target = numbers_and_words()

    def interrupt_fit(nets, *data, **options):
        few = {name: options.pop(name)[:1] for name in ("optimizers", "rows", "validation_rows")}
        error = KeyboardInterrupt()
        error.histories = [*cl.fit_many(nets[:1], *data, **options, **few), *[cl.History(loss=[])] * (len(nets) - 1)]
        raise error

    monkeypatch.setattr(recipe, "fit_many", interrupt_fit)
    rows = np.ones(len(target.values), bool)
    nets = training.train_nets(frame, target, rows, Recipe(nets=5), 0, 0, coverage=coverage)
    held_out = -(-len(rows) // 8)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "caffelite: stopped, with 1 of 5 nets"
    assert (nets.model.regions is not None) == is_made
    if not is_made:
        reason = f"coverage=0.97 needs 66 rows that the nets held out, and there are {held_out}"
        assert said[1] == f"caffelite: without --interval: {reason}"
