"""The recipe of table estimators: the bins of Splines, and the competition of finer nets."""

import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite.functions import MSELoss, SoftmaxLoss
from caffelite.tables import recipe as recipes
from caffelite.tables.recipe import Recipe, TableTraining, TrainedNet

# ---- bins -----------------------------------------------------------------------------------------------------------


def test_the_outer_bins_are_split_at_growing_distances():
    x = np.random.default_rng(0).lognormal(sigma=2.0, size=1000)
    plain, robust = (cl.Columns({"x": x}, robust=robust, bins=8).edges for robust in (False, True))
    added = robust[~np.isin(robust, plain)]
    width = (plain[-2] - plain[-4]) / 2
    np.testing.assert_allclose(added, plain[-2] + width * np.array([2, 6, 14, 30]))
    assert (x >= added[-1]).sum() >= 2
    mirrored = cl.Columns({"x": -x}, robust=True, bins=8).edges
    np.testing.assert_allclose(mirrored, -robust[::-1], rtol=1e-12)


def test_one_outlier_gets_no_bins():
    x = np.random.default_rng(0).normal(size=1000)
    edges = cl.Columns({"x": x}, robust=True, bins=8).edges
    x[x.argmax()] = 1e300
    np.testing.assert_array_equal(cl.Columns({"x": x}, robust=True, bins=8).edges[:-1], edges[:-1])


@pytest.mark.parametrize("robust", [False, True])
def test_a_few_different_numbers_are_all_edges(robust):
    x = np.repeat([0.0, 1.0, 2.0, 5.0, 50.0], [50, 3, 1, 1, 60])
    columns = cl.Columns({"x": x}, robust=robust, bins=4)
    np.testing.assert_array_equal(columns.edges, [0, 1, 2, 5, 50])
    assert cl.Columns({"x": x}, bins=3).bins[0] < 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_finer_splines_have_the_columns_and_moments_of_the_others(dtype):
    rng = np.random.default_rng(0)
    frame = {"x": rng.normal(size=300), "word": rng.choice(["a", "b"], 300), "n": rng.integers(0, 9, 300).astype(dtype)}
    columns = cl.Splines(frame, 6, bins=3)
    numbers, codes = columns.arrays(frame)
    finer, expected = columns.refine(numbers, 20), cl.Splines(frame, 6, bins=20)
    assert finer.columns == expected.columns
    assert finer.bins == expected.bins
    for name, array in expected.buffers().items():
        np.testing.assert_array_equal(finer.buffers()[name], array)
    outputs = [cl.Model([splines], seed=0, dtype=dtype).predict((numbers, codes)) for splines in (finer, expected)]
    np.testing.assert_array_equal(*outputs)


def test_without_numbers_finer_splines_are_the_same():
    frame = {"word": ["a", "b", "a", "b"]}
    columns = cl.Splines(frame, 6)
    finer = columns.refine(columns.arrays(frame)[0], 20)
    assert finer is not columns
    assert finer.columns == columns.columns


# ---- the competition ------------------------------------------------------------------------------------------------


def train(x, y, count=4, recipe=None, **options):
    """Train nets on x (n, k), and return them."""
    frame = {f"x{i}": column for i, column in enumerate(x.T)}
    recipe = (Recipe() if recipe is None else recipe)._replace(nets=count)
    columns = recipe.make_columns(frame, len(y))
    classes = y.dtype.kind == "i"
    return recipes.train(
        recipe,
        columns,
        columns.arrays(frame),
        y if classes else y[:, None],
        outputs=int(y.max()) + 1 if classes else 1,
        loss=SoftmaxLoss() if classes else MSELoss(),
        random=np.random.RandomState(0),
        **options,
    )


def number_of_bins(trained):
    return [sum(t.net.functions[0].bins) for t in trained]


def teeth(n=1500, seed=0):
    """Return integers 0 … 59, and numbers that go up and down with them: eight bins can't tell."""
    x = np.random.default_rng(seed).integers(0, 60, (n, 1)).astype(np.float64)
    return x, np.sin(2.5 * x[:, 0])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_finer_nets_win_where_the_others_cannot_learn_enough(count, monkeypatch):
    x, y = teeth()
    result = train(x, y, count)
    assert number_of_bins(result) == [59] * count
    monkeypatch.setattr(TableTraining, "choose", lambda *arguments: 0)
    others = train(x, y, count)
    assert len(set(number_of_bins(others))) == 1
    best, worst = (np.mean([min(t.history["val_loss"]) for t in trained]) for trained in (result, others))
    assert best < 0.1 * worst


def test_nets_that_learn_noise_end_early_and_stay():
    rng = np.random.default_rng(0)
    result = train(rng.normal(size=(400, 6)), rng.integers(0, 2, 400))
    assert number_of_bins(result) == [59] * 4  # six columns of 8, and some in their tails
    assert Recipe().training_length(400, 350)[2] == 100
    assert all(t.history.epochs < 75 for t in result)


def test_a_single_net_has_no_competition(monkeypatch):
    monkeypatch.setattr(TableTraining, "choose", lambda *arguments: pytest.fail("finer nets were trained"))
    assert len(train(*teeth(300), count=1)) == 1


@pytest.mark.parametrize(("chosen", "expected"), [(0, "first" * 5), (1, "finer" * 5), (2, "firstfirstfinerfinerfirst")])
def test_the_kind_that_is_chosen_stays(chosen, expected, monkeypatch):
    monkeypatch.setattr(TableTraining, "choose", lambda *arguments: chosen)
    result = train(*teeth(), count=5, recipe=Recipe(epochs=2))
    assert "".join("finer" if bins == 59 else "first" for bins in number_of_bins(result)) == expected
    folds = [t.held_out_rows.tolist() for t in result]
    assert (folds[:2] == folds[2:4]) == (chosen == 2)


@pytest.mark.parametrize(
    ("shares", "is_late", "expected"),
    [
        ([1.0, 1.1, 1.2], True, 0),
        ([1.0, 0.9, 0.95], True, 1),
        ([1.0, 0.9, 0.8], True, 2),
        ([1.0, 0.9, 0.95], False, 0),  # not clearly better than by chance
        ([1.0, 0.3, 0.95], False, 1),
        ([1.0, 1.0, 1.0], True, 0),
    ],
)
def test_held_out_rows_decide_which_nets_stay(shares, is_late, expected, monkeypatch):
    losses = np.array(shares)[:, None] + np.outer([0, 1, 1], 0.5 * (-1.0) ** np.arange(20))
    monkeypatch.setattr(TableTraining, "find_losses", lambda *arguments: losses)
    training = TableTraining((), np.zeros(0), 1, np.zeros(0), [], [], {})
    history = cl.History(loss=[1.0] * 4, val_loss=[3.0, 2.0, 1.0, 2.0])
    nets = [TrainedNet(cl.Model(), history, np.zeros(0))]
    assert training.choose(nets, nets, late=2 if is_late else 3) == expected


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [False, True])
def test_losses_are_of_the_mean_of_the_nets_that_hold_out_the_same_rows(classes, weighted, monkeypatch):
    seen = []

    def find_losses(training, *results):
        seen.append((results, original(training, *results)))
        return seen[0][1]

    original = TableTraining.find_losses
    monkeypatch.setattr(TableTraining, "find_losses", find_losses)
    x, y = teeth(200)
    y = (y > 0).astype(np.int64) if classes else y
    weights = np.random.default_rng(1).uniform(0.5, 2, 200) if weighted else None
    train(x, y, recipe=Recipe(epochs=2), weights=weights)
    (results, losses), expected = seen[0], {}
    for pair in zip(*results, strict=True):
        for row in pair[0].held_out_rows:
            outputs = [t.net.predict(x[row : row + 1]).astype(np.float64) for t in pair]
            if classes:
                outputs = [np.exp(z) / np.exp(z).sum() for z in outputs]
            weight = 1.0 if weights is None else weights[row]
            outputs.append(sum(outputs) / 2)
            row_losses = [-np.log(z[0, y[row]]) if classes else (z[0, 0] - y[row]) ** 2 for z in outputs]
            expected[row] = weight * np.array(row_losses)
    np.testing.assert_allclose(losses, np.transpose([expected[row] for row in sorted(expected)]), rtol=1e-4)


def test_a_row_that_all_nets_hold_out_counts_once(monkeypatch):
    seen = []
    original = TableTraining.find_losses

    def find_losses(*arguments):
        seen.append(original(*arguments))
        return seen[-1]

    monkeypatch.setattr(TableTraining, "find_losses", find_losses)
    x, y = teeth(200)
    result = train(x, y, recipe=Recipe(epochs=2), validation_rows=np.arange(150, 200))
    assert [losses.shape for losses in seen] == [(3, 50)]
    assert all(t.held_out_rows.tolist() == [*range(150, 200)] for t in result)


def test_nets_of_two_kinds_are_one_model_in_files_and_pickles(tmp_path, monkeypatch):
    sklearn = pytest.importorskip("caffelite.sklearn")
    monkeypatch.setattr(TableTraining, "choose", lambda *arguments: 2)
    x, y = teeth(300)
    estimator = sklearn.TableRegressor(n_estimators=4, random_state=0).fit(x, y)
    nets = estimator.model_[0].functions
    assert len({net.functions[0].bins[0] for net in nets}) == 2
    predictions = estimator.predict(x)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).predict(x), predictions)
    estimator.model_.save(tmp_path / "model.safetensors")
    loaded = cl.load(tmp_path / "model.safetensors")
    arrays = estimator.columns_.arrays({"x0": x[:, 0]})
    np.testing.assert_array_equal(loaded.predict(*arrays), estimator.model_.predict(*arrays))
    np.testing.assert_allclose(loaded.predict(*arrays)[:, 0], predictions, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_ctrl_c_in_any_stage_keeps_the_nets_before(stage, monkeypatch):
    original, calls = recipes.fit_many, []

    def fit_many(nets, *data, **options):
        calls.append(len(nets))
        if len(calls) > stage:
            raise KeyboardInterrupt
        return original(nets, *data, **options)

    monkeypatch.setattr(recipes, "fit_many", fit_many)
    monkeypatch.setattr(TableTraining, "choose", lambda *arguments: 0)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(*teeth(200), recipe=Recipe(epochs=2))
    assert len(caught.value.trained) == 2 * (stage > 0)


def test_finer_nets_that_diverge_lose(monkeypatch):
    original = recipes.fit_many
    calls = []

    def fit_many(*arguments, **options):
        calls.append(options["optimizers"])
        if len(calls) == 2:
            raise cl.optimizers.TrainingDiverged("the loss is nan")
        return original(*arguments, **options)

    monkeypatch.setattr(recipes, "fit_many", fit_many)
    result = train(*teeth(), recipe=Recipe(epochs=2))
    assert [len(optimizers) for optimizers in calls] == [2, 2, 2]
    assert len(set(number_of_bins(result))) == 1
    assert number_of_bins(result)[0] < 59
