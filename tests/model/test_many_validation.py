"""Validation, metrics and patience in `fit_many`."""

import contextlib
import copy
import functools
import signal
import threading
import warnings

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits
from tests.model.many_models import MODELS, OPTIMIZERS, ROWS, TwoHeads, assert_alike, data, entries, lone, many


def stopping(patience):
    return {} if patience is None else {"callbacks": [cl.callbacks.EarlyStopping(patience=patience)]}


def both(made, x, y, *, batch_size=32, patience=None, rows=None, loss=None, **options):
    """Train models one after the other, and others at once: all must end alike. Return the histories."""
    alone, together = made(), made()
    sizes = batch_size if isinstance(batch_size, list) else [batch_size] * len(alone[0])
    expected = []
    for i, (model, optimizer) in enumerate(zip(*alone, strict=True)):
        taken = slice(None) if rows is None or rows[i] is None else rows[i]
        part = x[taken], (tuple(one[taken] for one in y) if isinstance(y, tuple) else y[taken])
        own = {"batch_size": sizes[i], **stopping(patience), **options}
        expected += lone([model], [optimizer], *part, loss=loss, **own)
    found = many(*together, x, y, loss=loss, batch_size=batch_size, patience=patience, rows=rows, **options)
    assert found == expected
    assert [list(history) for history in found] == [list(history) for history in expected]
    assert_alike(together, alone)
    for one, other in zip(alone[0], together[0], strict=True):
        splits = [{n: s.bit_generator.state for n, s in m._model_state.split_rngs.items()} for m in (one, other)]
        assert splits[0] == splits[1]
    return found


VALIDATED = {
    "data": {"validation_data": True},
    "weighted data": {"validation_data": True, "weights": True},
    "split": {"validation_split": 0.3},
    "split by a seed": {"validation_split": 0.3, "seed": 5},
    "a row alone at the end": {"validation_split": 0.35},  # 33 rows, in batches of 16
}


@pytest.mark.parametrize("patience", [None, 2])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", VALIDATED)
def test_validation_and_patience_equal_lone_fits(threads, how, model, patience):
    x, y = data()
    options = dict(VALIDATED[how])
    if "validation_data" in options:
        weights = [np.linspace(0, 1, 20)] if options.pop("weights", False) else []
        options["validation_data"] = (x[:20] + 0.1, y[:20], *weights)
    options |= {"metrics": ["accuracy", "f1"], "epochs": 6, "batch_size": 16, "patience": patience}
    both(lambda: entries(model, "Adam"), x, y, **options)


@pytest.mark.parametrize("model", ["plain", "random and normalized"])
def test_rows_to_evaluate_and_weights_equal_lone_fits(threads, model):
    x, y = data()
    weights = np.linspace(0, 2, len(y))
    held_out = [np.arange(i, len(y), 5) for i in range(5)]
    rows = [np.setdiff1d(np.arange(len(y)), test) for test in held_out]
    alone, together = entries(model, "Adam"), entries(model, "Adam")
    options = {"epochs": 5, "batch_size": 16, "metrics": ["accuracy"]}
    found = many(*together, x, y, rows=rows, validation_rows=held_out, sample_weight=weights, patience=2, **options)
    for i, (a, optimizer) in enumerate(zip(*alone, strict=True)):
        test = held_out[i]
        expected = a.fit(
            *(x[rows[i]], y[rows[i]]),
            **options,
            **stopping(2),
            loss=cl.SoftmaxLoss(),
            optimizer=optimizer,
            sample_weight=weights[rows[i]],
            validation_data=(x[test], y[test], weights[test]),
            verbose=0,
        )
        assert found[i] == expected
    assert_alike(together, alone)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"validation_rows": [[0]]}, ValueError, "validation_rows: expected one for each of 4 models, got 1"),
        ({"validation_rows": [[0], [1], [999], [2]]}, IndexError, "model 2: validation_rows: index 999"),
        ({"validation_rows": [[0], np.zeros(0, int), [1], [2]]}, ValueError, "model 1: validation_rows"),
        ({"validation_rows": [[0.5]] * 4}, TypeError, "model 0: validation_rows"),
        ({"sample_weight": np.ones(3)}, ValueError, "model 0: .*weight"),
        ({"sample_weight": np.full(len(data()[1]), -1.0)}, ValueError, "model 0: .*weight"),
    ],
)
def test_rows_to_evaluate_and_weights_are_checked_before_anything_is_changed(given, error, text):
    models, optimizers = entries("plain", "SGD", 4)
    before = [bits(m) for m in models]
    with pytest.raises(error, match=text):
        many(models, optimizers, *data(), **given)
    assert [bits(m) for m in models] == before


class Shift(cl.Function, rowwise=True):
    """x − 10⁹, subtracted in float64."""

    takes_float64 = True

    def forward(self, x):
        return (x - 1e9).astype(np.float32)

    def backward(self, dy):
        return dy


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_models_that_round_the_rows_differently_get_rows_of_their_own(threads, order):
    x, y = data()
    far = 1e9 + x.astype(np.float64)

    def make_models():
        models = [cl.Model([cl.Linear(4, 3)], seed=0), cl.Model([Shift(), cl.Linear(4, 3)], seed=0)]
        models = [models[i] for i in order]
        return models, [cl.SGD(m.parameters(), 1e-20) for m in models]

    models, _ = make_models()
    for model, outputs in zip(models, cl.predict_many(models, far), strict=True):
        np.testing.assert_array_equal(outputs, model.predict(far))
    (alone, of_alone), together = make_models(), make_models()
    assert many(*together, far, y) == lone(alone, of_alone, far, y)


def test_each_model_stops_at_an_epoch_of_its_own(threads):
    x, y = data()
    histories = both(
        lambda: entries("random and normalized", "Adam", 8),
        x[:30],
        y[:30],
        validation_data=(x[30:], y[30:]),
        epochs=60,
        patience=3,
        batch_size=8,
    )
    lengths = {history.epochs for history in histories}
    assert len(lengths) > 3
    assert max(lengths) < 60
    assert list(histories[0]) == ["loss", "val_loss"]


def test_a_further_training_holds_out_the_same_rows(threads):
    x, y = data()
    alone, together = entries("plain", "Adam"), entries("plain", "Adam")
    options = {"validation_split": 0.2, "epochs": 2, "metrics": ["accuracy"]}
    for _ in range(2):
        assert many(*together, x, y, patience=1, **options) == lone(*alone, x, y, **stopping(1), **options)
    assert_alike(together, alone)


@pytest.mark.parametrize("options", [{}, {"validation_split": 0.25, "metrics": ["mae"], "patience": 2}])
def test_batch_sizes_may_be_each_models_own(threads, options):
    x, y = data(2)
    sizes = [16, 50, 7, 16, 1, 64, 49, 33]
    loss = cl.SigmoidLoss()

    def make_models():
        models = [cl.Model([cl.Linear(4, 6), cl.BatchNorm(6), cl.ReLU(), cl.Linear(6, 1)], seed=i) for i in range(8)]
        return models, [cl.SGD(m.parameters(), lr=0.1) for m in models]

    sizes[4] = 2  # a batch of one row has no variance
    both(make_models, x, y, batch_size=sizes, epochs=4, loss=loss, **options)


@pytest.mark.parametrize("how", ["data", "split"])
def test_folds_go_with_validation(threads, how):
    x, y = data()
    rng = np.random.default_rng(1)
    folds = [np.delete(np.arange(ROWS), np.arange(i, ROWS, 5)) for i in range(5)]
    folds += [rng.integers(0, ROWS, ROWS), np.arange(17)[::-1], None]
    given = {"validation_data": (x[::2], y[::2])} if how == "data" else {"validation_split": 0.4}
    options = {"rows": folds, "epochs": 8, "batch_size": 16, "patience": 2, "metrics": ["balanced_accuracy"]}
    both(lambda: entries("plain", "Adam", 8), x, y, **options, **given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", ["plain", "data", "split"])
def test_several_targets_have_the_histories_of_lone_fits(threads, how, dtype):
    x, labels = data()
    numbers = np.stack([x[:, 0] * x[:, 1], x[:, 2]], axis=1)

    def make_models():
        models = [TwoHeads(seed, dtype) for seed in range(6)]
        return models, [cl.Adam(m.parameters(), lr=0.01 * (i + 1)) for i, m in enumerate(models)]

    loss = cl.Losses([cl.SoftmaxLoss(), cl.MSELoss()], weights=[1.0, 0.5])
    options = {"loss": loss, "epochs": 6, "batch_size": 16, "metrics": (["accuracy"], ["mae", "r2"])}
    if how == "data":
        options["validation_data"] = x[:20] + 0.1, (labels[:20], numbers[:20])
    elif how == "split":
        options["validation_split"] = 0.3
    histories = both(make_models, x, (labels, numbers), patience=None if how == "plain" else 2, **options)
    names = ["loss", "loss_0", "loss_1", "accuracy_0", "mae_1", "r2_1"]
    assert list(histories[0]) == names + ([] if how == "plain" else [f"val_{name}" for name in names])


def test_metrics_of_ones_own_and_losses_in_python_go_with_patience(threads):
    def furthest(outputs, targets):
        return np.abs(outputs - targets).max()

    def own_loss(outputs, targets):
        return ((outputs - targets) ** 2).mean()

    x, y = data()
    made = functools.partial(entries, "plain", "SGD")
    onto = np.eye(3)[y]
    options = {"validation_data": (x[:9], onto[:9]), "epochs": 5, "patience": 1, "metrics": [furthest, "mse"]}
    for loss in (cl.MSELoss(), own_loss):
        both(made, x, onto, loss=loss, **options)


def test_a_model_that_diverges_gets_the_parameters_of_its_best_epoch(threads):
    x, y = data()
    rates = [0.01, 1e4, 0.02, 1e5, 0.01, 3e3, 0.03]

    def make_models():
        models = [cl.Model([cl.Linear(4, 8), cl.ReLU(), cl.Linear(8, 3)], seed=i) for i in range(7)]
        return models, [cl.SGD(m.parameters(), lr=lr) for m, lr in zip(models, rates, strict=True)]

    options = {"loss": cl.MSELoss(), "validation_split": 0.2, "epochs": 40}
    alone, together = make_models(), make_models()
    histories = []
    for i, (model, optimizer) in enumerate(zip(*alone, strict=True)):
        with pytest.raises(cl.TrainingDiverged) if rates[i] > 1 else contextlib.nullcontext() as caught:
            histories += lone([model], [optimizer], x, np.eye(3)[y], **stopping(40), **options)
        if caught is not None:
            histories.append(caught.value.history)
    with pytest.raises(cl.TrainingDiverged, match=r"model 1 diverged: epoch \d+, batch \d") as caught:
        many(*together, x, np.eye(3)[y], patience=40, **options)
    assert caught.value.histories == histories
    assert_alike(together, alone, but=["gradient"])


def test_ctrl_c_gives_each_model_its_best_epoch(threads):
    x, y = data()
    models, optimizers = entries("plain", "Adam", 9)
    first = [bits(model) for model in models]
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        many(models, optimizers, x, y, epochs=10_000_000, patience=10_000_000, validation_data=(x[:20], 2 - y[:20]))
    timer.join()
    histories = caught.value.histories
    begun = [i for i, history in enumerate(histories) if history.epochs]
    assert 0 < len(begun) <= threads
    for i in begun:
        best = int(np.argmin(histories[i]["val_loss"]))
        model = MODELS["plain"](i)
        lone([model], [OPTIMIZERS["Adam"](model.parameters(), i)], x, y, epochs=best + 1)
        assert bits(models[i]) == bits(model)
    changed = [i for i, m in enumerate(models) if bits(m) != first[i]]  # one may have ended no epoch yet
    assert set(begun) <= set(changed)
    assert len(changed) <= threads


BAD_VALIDATION = [
    (
        {"patience": 3},
        ValueError,
        "patience watches val_loss: give validation_data, validation_split or validation_rows",
    ),
    ({"patience": 0, "validation_split": 0.2}, ValueError, "patience must be at least 1"),
    ({"patience": 1.5, "validation_split": 0.2}, TypeError, "patience must be an integer"),
    (
        {"validation_split": 0.2, "validation_data": True},
        ValueError,
        "one of validation_data, validation_split and validation_rows",
    ),
    ({"validation_split": 1.0}, ValueError, r"model 0: validation_split must be in \[0, 1\), got 1.0"),
    ({"validation_split": True}, TypeError, "model 0: validation_split must be a number"),
    (
        {"validation_split": 0.1, "rows": [None, None, [1, 2, 3], None]},
        ValueError,
        "model 2: validation_split 0.1 of 3 rows leaves no row to evaluate",
    ),
    ({"validation_data": 3}, TypeError, r"validation_data: expected \(x, y\) or \(x, y, weights\), got int"),
    (
        {"validation_data": cl.DataGenerator(*data())},
        TypeError,
        r"validation_data: expected \(x, y\) or \(x, y, weights\), got DataGenerator",
    ),
    ({"validation_data": (np.zeros((5, 4)), None)}, TypeError, r"validation_data: expected \(x, y\), got None for y"),
    (
        {"validation_data": (np.zeros((5, 3)), np.zeros(5, int))},
        ValueError,
        "model 0: .*rows of 3 features",
    ),
    (
        {"validation_data": (np.zeros((5, 4)), np.zeros(4, int))},
        ValueError,
        "model 0: validation_data's x has 5 rows, y has shape",
    ),
    ({"validation_data": (np.zeros((5, 4)), np.full(5, 7))}, ValueError, "model 0: .*7"),
    (
        {"validation_data": (np.zeros((5, 4)), np.zeros(5, int), np.full(5, -1.0))},
        ValueError,
        "model 0: .*weight",
    ),
    ({"metrics": "accuracy"}, TypeError, r"metrics: expected a list such as \['accuracy'\]"),
    ({"metrics": ["acuracy"]}, ValueError, "acuracy"),
    ({"metrics": ["loss_0"], "loss": cl.Losses([cl.SoftmaxLoss()])}, ValueError, "loss_0"),
    ({"batch_size": [16, 16]}, ValueError, "batch_size: expected one for each of 4 models, got 2"),
    ({"batch_size": [16, 0, 1, 1]}, ValueError, "model 1: batch_size must be at least 1"),
    ({"batch_size": [16, 16, 1.5, 1]}, TypeError, "model 2: batch_size must be an integer"),
    ({"batch_size": "16"}, (TypeError, ValueError), "batch_size"),
    ({"shuffle": 1}, TypeError, "shuffle must be True or False, got 1"),
]


@pytest.mark.parametrize(("given", "error", "text"), BAD_VALIDATION, ids=[text for _, _, text in BAD_VALIDATION])
def test_validation_it_cannot_use_raises_before_anything_is_changed(given, error, text):
    x, y = data()
    models, optimizers = entries("plain", "SGD", 4)
    if given.get("validation_data") is True:
        given = {**given, "validation_data": (x, y)}
    before = [(bits(m), copy.deepcopy(m._model_state.rng.bit_generator.state)) for m in models]
    with pytest.raises(error, match=text):
        many(models, optimizers, x, y, **given)
    assert [(bits(m), m._model_state.rng.bit_generator.state) for m in models] == before
    assert not any(m._model_state.split_rngs for m in models)


def test_validation_frames_must_have_the_columns_of_the_training(threads):
    pandas = pytest.importorskip("pandas")
    x, y = data()
    frame = pandas.DataFrame(x, columns=list("abcd"))
    both(lambda: entries("plain", "SGD"), x, y, validation_data=(x[:9], y[:9]), epochs=2)
    models, optimizers = entries("plain", "SGD", 3)
    with pytest.raises(ValueError, match="model 0: validation_data's x"):
        many(models, optimizers, frame, y, validation_data=(frame[list("bacd")], y))
    found = many(models, optimizers, frame, y, validation_data=(frame[:9], y[:9]), epochs=2)
    assert found == lone(*entries("plain", "SGD", 3), frame, y, validation_data=(frame[:9], y[:9]), epochs=2)


def test_a_warning_of_a_schedule_knows_what_is_held_out_and_joined():
    x, y = data()
    steps = 3 * 2  # 33 rows in batches of 16; the last one joins the one before
    for length, warns in ((steps, 0), (steps - 1, 1)):
        models = [MODELS["random and normalized"](0)]
        optimizers = [cl.SGD(models[0].parameters(), lr=cl.schedules.cosine(0.1, length))]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            many(models, optimizers, x, y, epochs=3, batch_size=16, validation_split=0.35)
        assert len(caught) == warns
