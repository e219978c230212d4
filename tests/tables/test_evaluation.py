"""Learning from a table and evaluating what was learned; the file of the model."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.data.frames import Categories
from caffelite.files import safetensors, structure
from caffelite.files.safetensors import File
from caffelite.tables import Columns, TableModel, evaluation, recipe, report, schema, training
from tests.tables.shop import learn_nets

# ---- learning and judging -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [None, ["a", "b", "c", "d"]])
def test_rows_are_held_out_at_random_the_same_share_of_each_class(classes):
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [500, 300, 199, 1]))
    target = schema.Target("y", labels if classes else labels + 0.5, classes)
    parts = training.split(target, 0.2, seed=1)
    np.testing.assert_array_equal(sum(part.astype(int) for part in parts), 1)
    np.testing.assert_allclose([part.sum() for part in parts], [800, 200], atol=3)
    for label in range(3 if classes else 0):
        shares = [np.mean(labels[part] == label) for part in parts]
        np.testing.assert_allclose(shares, np.mean(labels == label), atol=0.01)
    if classes:
        assert parts.training[labels == 3].all()
    others = [training.split(target, 0.2, seed=seed).test for seed in (1, 2)]
    assert (others[0] == parts.test).all()
    assert 0.1 < (others[1] & parts.test).sum() / 200 < 0.35


@pytest.mark.parametrize("seed", range(5))
def test_a_class_of_one_row_is_in_the_training(seed):
    labels = np.r_[np.zeros(30, int), np.arange(1, 11)]
    parts = training.split(schema.Target("y", labels, [str(i) for i in range(11)]), 0.3, seed)
    assert parts.training[30:].all()


def test_too_few_rows_raise():
    with pytest.raises(ValueError, match="19 rows are too few"):
        training.split(schema.Target("y", np.arange(19.0), None), 0.2, 0)


def numbers_and_words(n=400):
    """Return a frame, and a target that is linear in its columns."""
    rng = np.random.default_rng(0)
    x, codes = rng.normal(1000, 50, n), rng.integers(0, 3, n)
    y = 5e4 + 20 * x + np.array([0, 1000, -3000])[codes]
    return {"x": x, "c": Categories(codes, ["a", "b", "c"])}, schema.Target("y", y, None)


def test_a_linear_model_finds_the_least_squares_in_the_units_of_the_table():
    frame, target = numbers_and_words()
    parts = training.split(target, 0.25, 0)
    model = training.train_linear(frame, target, parts.training, seed=0)
    predicted = model.predict(training.take_rows(frame, parts.test))[:, 0]
    np.testing.assert_allclose(predicted, target.values[parts.test], atol=0.03 * target.values.std())
    assert (model.target, model.classes) == ("y", None)


def test_the_nets_learn_a_target_in_the_units_of_the_table_and_tell_their_epochs():
    frame, target = numbers_and_words()
    nets, parts = learn_nets(frame, target)
    predicted = nets.model.predict(training.take_rows(frame, parts.test))[:, 0]
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
    target = schema.Target("y", above * 3.0, None) if is_regression else schema.Target("y", above * 1, ["no", "yes"])
    parts = training.split(target, 0.25, 0)
    outputs = training.predict_trees(cl.Splines(frame, 4), frame, target, parts, seed=0)
    assert outputs.shape == ((parts.test.sum(), 1) if is_regression else (parts.test.sum(), 2))
    predicted = outputs[:, -1] > (1.5 if is_regression else 0.5)
    assert (predicted == above[parts.test]).mean() > 0.99


@pytest.mark.parametrize("nets_that_begin", [0, 2])
def test_ctrl_c_keeps_the_nets_that_have_begun(nets_that_begin, monkeypatch, capsys):
    frame, target = numbers_and_words()
    begun = []

    def interrupt_fit(nets, *data, **options):
        begun.extend(nets[:nets_that_begin])
        histories = []
        if begun:
            few = {name: options.pop(name)[:nets_that_begin] for name in ("optimizers", "rows", "validation_rows")}
            histories = cl.fit_many(begun, *data, **options, **few)
        error = KeyboardInterrupt()
        error.histories = [*histories, *[cl.History(loss=[])] * (len(nets) - len(histories))]
        raise error

    monkeypatch.setattr(recipe, "fit_many", interrupt_fit)
    if not nets_that_begin:
        with pytest.raises(KeyboardInterrupt):
            learn_nets(frame, target, nets=5)
        return
    nets, parts = learn_nets(frame, target, nets=5)
    assert len(nets.histories) == 2
    assert capsys.readouterr().err == "caffelite: stopped, with 2 of 5 nets\n"
    test = training.take_rows(frame, parts.test)
    center, scale = target.values[parts.training].mean(), target.values[parts.training].std()
    expected = center + scale * np.mean([net.predict(test) for net in begun], axis=0)
    np.testing.assert_allclose(nets.model.predict(test), expected, rtol=1e-5)


def test_losses_and_scores_are_what_they_are_called():
    target = schema.Target("y", np.array([0, 1, 1, 2]), ["a", "b", "c"])
    rows = np.ones(4, bool)
    p = np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    expected = -np.log([0.7, 0.4, 0.8, 0.6])
    np.testing.assert_allclose(evaluation.losses(p, target, rows), expected)
    assert np.isfinite(evaluation.losses(np.array([[0, 1, 0]] * 4), target, rows)).all()
    scores = evaluation.scores(p, target, rows)
    assert list(scores) == ["accuracy", "F1, mean of the classes", "area under the ROC curve", "log loss"]
    assert scores["accuracy"] == 0.75
    assert scores["log loss"] == pytest.approx(expected.mean())
    values = schema.Target("y", np.array([1.0, 2.0, 4.0]), None)
    outputs = np.array([[1.0], [3.0], [4.0]])
    np.testing.assert_allclose(evaluation.losses(outputs, values, rows[:3]), [0, 1, 0])
    found = evaluation.scores(outputs, values, rows[:3])
    assert found["R²"] == pytest.approx(1 - 1 / np.sum((np.array([1, 2, 4]) - 7 / 3) ** 2))
    assert found["root mean squared error"] == pytest.approx(np.sqrt(1 / 3))
    assert found["mean absolute error"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("rare", [0, 1])
def test_f1_counts_the_rare_class(rare):
    labels = np.array([rare, rare, *[1 - rare] * 8])
    p = np.full((10, 2), 0.5)
    p[[0, 2], rare], p[[1, *range(3, 10)], rare] = 0.9, 0.1  # one of the two is found, and one is taken for them
    p[:, 1 - rare] = 1 - p[:, rare]
    target = schema.Target("y", labels, ["no", "yes"])
    scores = evaluation.scores(p, target, np.ones(10, bool))
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
    target = schema.Target("y", frame["x"] + noise * rng.normal(size=n), None)
    parts = training.split(target, 0.25, 0)
    of_trees = None if trees is None else trees(training.take_rows(frame, parts.test))[:, None]
    return evaluation.TableEvaluation(Says(nets, frame), Says(linear, frame), of_trees, frame, target, parts, seed=0)


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


def test_scores_are_written_without_exponents():
    found = judgement(exact, rough)
    found.scores = [{"R²": x, "root mean squared error": 1e6 * x} for x in (0.98765, 0.5, 0.25, -2.3e-6)]
    lines = report.scores_table(found).splitlines()
    assert lines[2].split() == ["R²", "0.9877", "0.5", "0.25", "0"]
    assert lines[3].split()[-4:] == ["987,650", "500,000", "250,000", "-2.3"]


def test_a_difference_that_does_not_matter_has_no_error():
    [sentence] = report.verdict(judgement(exact, lambda f: 1.0005 * f["x"], noise=0.001))
    assert sentence.endswith(", a difference below 0.001, which does not matter.")
    assert "±" not in sentence


def test_a_difference_that_may_be_chance_is_called_so():
    found = judgement(exact, lambda f: f["x"] - 0.04 * f["z"], noise=0.3, n=80)
    difference = found.difference("nets", "linear")
    assert evaluation.MIN_DIFFERENCE < difference.mean < evaluation.NOISE * difference.error
    [sentence] = report.verdict(found)
    assert sentence.startswith("A linear model may do as well: R² 0.")


def test_a_difference_is_paired_and_has_the_standard_error_of_its_mean():
    found = judgement(exact, lambda f: f["x"] + 0.1)
    y = found.target.values[found.parts.test]
    linear, nets = (
        evaluation.losses(found.models[name], found.target, found.parts.test) for name in ("linear", "nets")
    )
    d = (linear - nets) / y.var()
    mean, error = found.difference("nets", "linear")
    assert mean == pytest.approx(d.mean())
    assert error == pytest.approx(d.std(ddof=1) / np.sqrt(len(d)))
    assert found.difference("linear", "nets").mean == -mean


@pytest.mark.parametrize(("nets", "noise", "asks"), [(exact, 0.1, True), (exact, 0.5, False), (rough, 0.1, False)])
def test_the_report_asks_about_a_column_that_gives_the_target_away(nets, noise, asks):
    question = report.ask_about_leak(judgement(nets, exact, noise=noise))
    assert question.startswith("x alone tells nearly everything. Will you know it when you predict y?") == asks
    assert bool(question) == asks


def test_the_report_does_not_ask_about_one_of_two_good_columns_or_about_the_only_one():
    found = judgement(exact, exact)
    found.importances["z"] = evaluation.Difference(found.importances["x"].mean / 9, 0.0)
    assert report.ask_about_leak(found) == ""
    del found.importances["z"]
    assert report.ask_about_leak(found) == ""


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
    target = schema.Target("y", np.arange(40) % 2, ["a", "b"])
    model = TableModel([Columns(frame), cl.Linear(11, 2), cl.Softmax()], "y", ["a", "b"], seed=0)
    assert len(evaluation.importances(model, frame, target, np.ones(40, bool), 0)) == 10
    assert len(looks) == 1


def test_all_features_of_a_date_are_shuffled_together():
    days = np.datetime64("2020-01-01") + np.arange(400)
    frame = {"since": days, "x": np.arange(400.0)}
    target = schema.Target("y", np.arange(400.0), None)

    def predict(shown):
        seconds, year = shown["since, seconds"], shown["since, year"]
        np.testing.assert_array_equal(year, 2020 + (seconds >= 366 * 86400))
        return seconds / 86400

    found = evaluation.importances(Says(predict, frame), frame, target, np.ones(400, bool), 0)
    assert list(found) == ["since", "x"]
    assert found["since"].mean > 1


def test_of_many_columns_fewer_rows_are_shuffled(monkeypatch):
    rows = []
    frame = {f"x{i}": np.arange(3000.0) for i in range(100)}
    target = schema.Target("y", np.arange(3000.0), None)
    monkeypatch.setattr(evaluation, "MAX_PREDICTED_ROWS", 100_000)

    def predict(shown):
        rows.append(len(shown["x0"]))
        return shown["x0"]

    evaluation.importances(Says(predict, frame), frame, target, np.ones(3000, bool), 0)
    assert set(rows) == {200}


# ---- the file -------------------------------------------------------------------------------------------------------


def test_the_file_is_the_whole_model_and_load_makes_it_again(trained_models):
    model = cl.load(trained_models.classes.model)
    assert type(model) is TableModel
    assert (model.target, model.classes) == ("sold", ("no", "yes"))
    assert set(model.columns.categories["city"]) == {"Ulm", "Bonn", "Aachen"}
    assert model.columns.numbers == ["size", "age"]
    assert cl.load(trained_models.values.model).classes is None


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
def test_a_structure_of_no_table_raises(change, message, tmp_path):
    columns_ = cl.Columns({"x": np.arange(3.0), "w": np.array(["a", "b", "a"])})
    model = TableModel([columns_, cl.Linear(columns_.features, 2), cl.Softmax()], "y", ["no", "yes"])
    with File(_save(model, tmp_path)) as file:
        texts, arrays = dict(file.texts), file.arrays(file.specs)
    entries = structure.describe(model)
    entries[-1]["arguments"] |= change
    texts["caffelite.structure"] = structure.to_json(entries)
    safetensors.write_arrays(tmp_path / "other", arrays, texts)
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
def test_a_model_that_does_not_fit_a_table_is_not_made(functions):
    with pytest.raises(ValueError, match="expected Columns or Splines, and Functions after them"):
        TableModel(functions, "y", ["no", "yes"])


def _save(model, folder):
    model.save(folder / "model.safetensors")
    return folder / "model.safetensors"
