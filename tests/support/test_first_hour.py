"""The mistakes of the first hour, and what caffelite says of them."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite._support import hints
from caffelite._support.migration_hints import ForeignAttribute
from caffelite.training.callbacks import advice
from tests.conftest import bits, train

DOCS = Path(__file__).parents[2] / "docs"
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 2)).astype(np.float32), RNG.integers(0, 2, 200)
SEQUENCES = RNG.normal(size=(200, 6, 3)).astype(np.float32)
MODEL = cl.MLP(2, [3], seed=0)
SGD = cl.SGD(MODEL.parameters(), lr=0.1)
TENSOR = cl.Tensor(np.ones((2, 3)))
HISTORY = cl.History(loss=[1.0, 0.5], accuracy=[0.5, 0.75])


def fit(x=X, y=Y, layers=None, **options):
    train(cl.Model(layers or [cl.Linear(2, 16), cl.ReLU(), cl.Linear(16, 2)], seed=0), x, y, **options)


def with_nan(*rows):
    x = X.copy()
    x[list(rows), 0] = np.nan
    return x


MISTAKES = {
    # ---- losses ----
    "numbers for SoftmaxLoss": (lambda: fit(y=X[:, 0]), TypeError, "for numbers use cl.MSELoss()"),
    "a column of numbers for SoftmaxLoss": (
        lambda: fit(y=X[:, :1], layers=[cl.Linear(2, 1)]),
        ValueError,
        "; for numbers use cl.MSELoss()",
    ),
    "counts for SoftmaxLoss": (
        lambda: fit(y=np.arange(200), layers=[cl.Linear(2, 1)]),
        ValueError,
        "and it has 1 (for numbers use cl.MSELoss(), for yes or no cl.SigmoidLoss())",
    ),
    "several labels for SoftmaxLoss": (
        lambda: fit(y=np.ones((200, 2), np.float32)),
        ValueError,
        "sum up to 1; for yes or no in each output use cl.SigmoidLoss()",
    ),
    "numbers for SigmoidLoss": (
        lambda: fit(y=X, loss=cl.SigmoidLoss()),
        ValueError,
        "0 … 1; for numbers use cl.MSELoss()",
    ),
    "labels for SigmoidLoss": (
        lambda: fit(y=np.arange(200) % 3, layers=[cl.Linear(2, 1)], loss=cl.SigmoidLoss()),
        ValueError,
        "0 … 1; for labels of classes use cl.SoftmaxLoss()",
    ),
    "labels for MSELoss": (lambda: fit(loss=cl.MSELoss()), ValueError, "for labels of classes use cl.SoftmaxLoss()"),
    "labels for MAELoss by hand": (
        lambda: cl.MAELoss()(TENSOR, np.array([0, 1])),
        ValueError,
        "for one number a row a model with one",
    ),
    "strings": (
        lambda: fit(loss="softmax", optimizer="adam"),
        TypeError,
        "give loss=cl.SoftmaxLoss(), and optimizer=cl.Adam(model.parameters())",
    ),
    "another optimizer": (lambda: fit(optimizer="RMSprop"), TypeError, "'RMSprop'); give optimizer=cl.RMSProp(model."),
    "an unknown string": (lambda: fit(loss="nll"), TypeError, "; give loss=cl.SoftmaxLoss() for classes or loss=cl"),
    "a string in evaluate": (lambda: MODEL.evaluate(X, Y, loss="mse"), TypeError, "got 'mse'; give loss=cl.MSELoss()"),
    # ---- layers ----
    "a layer that does not fit": (
        lambda: cl.Model([cl.Linear(2, 16), cl.ReLU(), cl.Linear(10, 2, bias=False)]),
        ValueError,
        "; it is layer 2 of the model, after ReLU(): Linear(16, 2, bias=False) fits",
    ),
    "a layer that is added": (
        lambda: cl.Model([cl.Conv2d(1, 8, 3)]).add(cl.BatchNorm(4)),
        ValueError,
        "; it is layer 1 of the model, after Conv2d(1, 8, 3): BatchNorm(8) fits",
    ),
    "a layer after Flatten": (
        lambda: fit(np.ones((200, 1, 8, 8)), layers=[cl.Conv2d(1, 8, 3), cl.Flatten(), cl.Linear(100, 2)]),
        ValueError,
        "; it is layer 2 of the model, after Flatten(): Linear(288, 2) fits",
    ),
    "a layer in a model": (
        lambda: fit(np.ones((200, 1, 8, 8)), layers=[cl.Model([cl.Conv2d(1, 8, 3), cl.Flatten(), cl.Linear(9, 2)])]),
        ValueError,
        "expected (n, …, 9); it is layer 2 of the model, after Flatten(): Linear(288, 2) fits",
    ),
    "a pool of sequences": (
        lambda: fit(SEQUENCES, layers=[cl.LSTM(3, 8, sequences=True), cl.GlobalMaxPool(), cl.ReLU(), cl.Linear(8, 2)]),
        ValueError,
        "after ReLU(): it fits if layer 1 is GlobalMaxPool(axis=1), which keeps the last axis of (n, 6, 8)",
    ),
    "a pool of pixels": (
        lambda: fit(np.ones((200, 4, 5, 6)), layers=[cl.Linear(6, 3), cl.GlobalAvgPool(), cl.Linear(3, 2)]),
        ValueError,
        "after GlobalAvgPool(): it fits if layer 1 is GlobalAvgPool(axis=(1, 2)), which keeps the last axis of (n, 4",
    ),
    "a recurrent layer of series": (
        lambda: fit(SEQUENCES, layers=[cl.Conv1d(6, 8, 1), cl.ReLU(), cl.LSTM(8, 2)]),
        ValueError,
        "ReLU(): it fits after cl.functions.Transpose(0, 2, 1), which swaps the axes of (n, 8, 3)",
    ),
    "a norm of sequences": (
        lambda: fit(SEQUENCES, layers=[cl.GRU(3, 8, sequences=True), cl.BatchNorm(8)]),
        ValueError,
        ": it fits after cl.functions.Transpose(0, 2, 1), which swaps the axes of (n, 6, 8)",
    ),
    "a series of another width": (
        lambda: fit(SEQUENCES, layers=[cl.Conv1d(6, 8, 1), cl.Conv1d(3, 8, 1)]),
        ValueError,
        "after Conv1d(6, 8, 1): Conv1d(8, 8, 1) fits",
    ),
    # ---- data ----
    "a dict": (
        lambda: fit(x={"a": X[:, 0], "b": X[:, 1], "c": X[:, 1]}),
        ValueError,
        "; x is a dict, whose values are columns: 'a', 'b', 'c'",
    ),
    "a word": (lambda: fit(x=[[1, 2.0], [3, "red"]], y=[0, 1]), TypeError, ": 'red' at [1, 1]; pandas.DataFrame(…)"),
    "numbers as words": (lambda: fit(x=[["1", "2"]], y=[0]), TypeError, "numbers as texts; np.array(…, np.float32)"),
    "NaN": (lambda: fit(with_nan(3)), cl.TrainingDiverged, "x is not finite in 1 of 200 rows, in row 3 of these"),
    "NaN in rows": (lambda: fit(with_nan(9, 4)), cl.TrainingDiverged, "in 2 of 200 rows, first in row 4 of these"),
    "a folder": (lambda: cl.datasets.mnist(), TypeError, 'give a folder for the files, such as mnist("data'),
    "a data set that was not unpacked": (
        lambda: fit(*cl.datasets.digits()),
        ValueError,
        "; unpack a data set as (x, y), (x_test, y_test)",
    ),
    "accuracy of numbers": (
        lambda: fit(y=X[:, :1], layers=[cl.Linear(2, 1)], loss=cl.MSELoss(), metrics=["accuracy"]),
        ValueError,
        ": for numbers use mae, rmse or r2",
    ),
    # ---- arguments ----
    "options of fit by their places": (
        lambda: MODEL.fit(X, Y, cl.SoftmaxLoss(), SGD, 10),
        TypeError,
        "but 6 were given; give loss=…, optimizer=…, epochs=… by name",
    ),
    "graph of a model and x": (lambda: cl.graph(MODEL, X), TypeError, "; give a Tensor, such as cl.graph(model(x))"),
    "graph of a model": (lambda: cl.graph(MODEL), TypeError, "graph takes a Tensor, such as model(x), got Model"),
    # ---- names ----
    "history.show": (lambda: HISTORY.show(), AttributeError, "; history.plot() draws the curves"),
    "Classifier": (lambda: cl.Classifier, AttributeError, "; or caffelite.sklearn.MLPClassifier"),
    "accuracy": (lambda: cl.accuracy, AttributeError, 'fit(…, metrics=["accuracy"])'),
    "history.loss": (lambda: HISTORY.loss, AttributeError, "no attribute 'loss'; a History is a dict"),
    "history.accuracy": (lambda: HISTORY.accuracy, AttributeError, "history['accuracy']"),
    "history.history": (lambda: HISTORY.history, AttributeError, "history['loss']"),
    "history.acuracy": (lambda: HISTORY.acuracy, AttributeError, "did you mean 'accuracy'?"),
    "predict_proba": (lambda: MODEL.predict_proba(X), AttributeError, "caffelite has loss.link(model.predict(x))"),
    "probabilities": (lambda: MODEL.probabilities(X), AttributeError, "caffelite has loss.link(model.predict(x))"),
    "loss.probabilities": (lambda: cl.SigmoidLoss().probabilities(X), AttributeError, "caffelite has loss.link(model"),
    "eval": (lambda: MODEL.eval(), AttributeError, "caffelite has no modes to set: predict and evaluate"),
    "train": (lambda: MODEL.train(), AttributeError, "caffelite has no modes to set: fit"),
    "eval of a layer": (lambda: MODEL[0].eval(), AttributeError, "'Linear' object has no attribute 'eval'; caffelite"),
    "trainable_variables": (lambda: MODEL.trainable_variables, AttributeError, "caffelite has parameters()"),
    "modules": (lambda: MODEL.modules(), AttributeError, "caffelite has functions"),
    "apply": (lambda: MODEL.apply(print), AttributeError, "caffelite has initializer="),
    "param_groups": (lambda: SGD.param_groups, AttributeError, "'param_groups'; caffelite has groups"),
    "means over positions": (lambda: cl.GlobalAveragePooling1D, AttributeError, "cl.GlobalAvgPool(axis=1)"),
    "maxima over positions": (lambda: cl.GlobalMaxPooling1D, AttributeError, "cl.GlobalMaxPool(axis=1)"),
    "iris": (lambda: cl.datasets.iris, AttributeError, "sklearn.datasets.load_iris(return_X_y=True)"),
    "load_iris": (lambda: cl.datasets.load_iris, AttributeError, "sklearn.datasets.load_iris(return_X_y=True)"),
    "wine": (lambda: cl.datasets.wine, AttributeError, "sklearn.datasets.load_wine(return_X_y=True)"),
    "moons": (lambda: cl.datasets.moons, AttributeError, "sklearn.datasets.make_moons(noise=0.1)"),
    "make_moons": (lambda: cl.make_moons, AttributeError, "cl.datasets.spiral()"),
    # ---- typos ----
    "a layer's name": (lambda: cl.Linaer, AttributeError, "has no attribute 'Linaer'; did you mean 'Linear'?"),
    "an optimizer's name": (lambda: cl.Adamm, AttributeError, "did you mean 'Adam'?"),
    "a callback's name": (lambda: cl.callbacks.EarlyStoping, AttributeError, "did you mean 'EarlyStopping'?"),
    "a schedule's name": (lambda: cl.schedules.cosin, AttributeError, "'caffelite.schedules' has no attribute 'cosin'"),
    "an initializer's name": (lambda: cl.initializers.he_norml, AttributeError, "did you mean 'he_normal'?"),
    "a data set's name": (lambda: cl.datasets.digit, AttributeError, "did you mean 'digits'?"),
    "an augmentation's name": (lambda: cl.augment.rotat, AttributeError, "did you mean 'rotate'?"),
    "an import of a layer": (lambda: exec("from caffelite import Linaer"), ImportError, "; did you mean 'Linear'?"),
    "an import of Keras's": (
        lambda: exec("from caffelite import Sequential"),
        ImportError,
        "cannot import name 'Sequential' from 'caffelite'; caffelite has cl.Model([…])",
    ),
    "an import of a callback": (
        lambda: exec("from caffelite.callbacks import EarlyStoping"),
        ImportError,
        "from 'caffelite.callbacks'; did you mean 'EarlyStopping'?",
    ),
    "a metric's name": (lambda: cl.metrics.acuracy, AttributeError, "did you mean 'accuracy'?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_that_says_what_to_write(mistake):
    run, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=re.escape(message)):
        run()


@pytest.mark.parametrize(
    ("layers", "count"),
    [
        ([cl.Linear(3, 2)], 0),  # the input is the user's own
        ([cl.Model([cl.Linear(2, 4)]), cl.Model([cl.ReLU(), cl.Linear(5, 2)])], 1),
    ],
)
def test_an_error_names_a_layer_once_and_not_the_first(layers, count):
    with pytest.raises(ValueError, match="got rows of") as caught:
        fit(layers=layers)
    assert str(caught.value).count("it is layer") == count


METHODS = "view unsqueeze permute masked_fill clamp flatten norm expand gather topk"


@pytest.mark.parametrize("name", METHODS.split())
def test_a_method_of_other_tensors_is_an_error_that_says_caffelites(name):
    with pytest.raises(AttributeError, match=rf"^'Tensor' object has no attribute '{name}'; caffelite has "):
        getattr(TENSOR, name)
    assert name not in dir(TENSOR)


NAMES = """tril zeros randn multinomial Conv3d SeparableConv2D SeparableConv2d ConvLSTM2D Cropping2D Dot
    TripletMarginLoss KLDivLoss CTCLoss cosine_similarity SELU GLU Adamax RAdam Rprop"""


@pytest.mark.parametrize("name", NAMES.split())
def test_a_name_that_users_of_other_frameworks_miss_has_a_hint(name):
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; caffelite has "):
        getattr(cl, name)


def test_the_ways_that_hints_for_tensors_show_are_right():
    x, i = cl.Tensor(RNG.normal(size=(4, 6)), dtype=np.float64), np.array([[0], [3], [1], [5]])
    a, b = cl.split(x, 2, axis=1)
    np.testing.assert_array_equal(cl.take_along_axis(x, i, 1).data, np.take_along_axis(x.data, i, 1))
    np.testing.assert_allclose((x**2).sum(axis=1).sqrt().data, np.linalg.norm(x.data, axis=1))
    np.testing.assert_allclose((a * b.sigmoid()).data, a.data / (1 + np.exp(-b.data)))
    top = np.argsort(-x.data, axis=1)[:, :2]
    np.testing.assert_array_equal(cl.take_along_axis(x, top, 1).data, -np.sort(-x.data, axis=1)[:, :2])
    assert x.reshape(len(x), -1).shape == (4, 6)
    assert cl.expand_dims(x, 1).shape == (4, 1, 6)
    assert (1.0507 * cl.elu(cl.Tensor([-1.0, 2.0]), 1.67326)).data == pytest.approx([-1.1113, 2.1014], abs=1e-4)


# Names of Python, NumPy and scikit-learn, of methods that a user writes, and of the programs' own classes.
OTHERS = """False None True print iter next len range super default_rng random integers r_ ravel dump transform export
    tensors There history on_epoch_end add_scalar save_for_backward saved_tensors loss_curve_ pipeline preprocessing
    neural_network model_selection make_pipeline GridSearchCV HistGradientBoostingClassifier Scale Cube Gated attn f g
    loss float32 float64 train_test_split autograd mlflow keras autolog log_metrics wandb log"""


@pytest.mark.parametrize("page", ["keras", "pytorch", "scikit-learn"])
def test_a_name_on_a_page_for_users_of_other_frameworks_is_caffelites_or_has_a_hint(page):
    text = (DOCS / f"coming-from-{page}.md").read_text(encoding="utf-8")
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    programs = re.findall(r"^```\{code-block\} python\n:caption: (.*?)\n(.*?)^```$", text, re.M | re.S)
    code = re.findall(r"`([^`]+)`", "\n".join(cells)) + [source for whose, source in programs if whose != "caffelite"]
    code = re.sub(r'"[^"]*"', "", "\n".join(code))
    names = set(re.findall(r"\b([A-Z]\w+)|\.([a-zA-Z_]\w*)|\b(\w+)\(", code))
    names = {name for match in names for name in match if name} - {*OTHERS.split()}
    assert len(names) > 5
    known = (cl, cl.Model, cl.Tensor, cl.SGD, cl.Linear, cl.History, cl.callbacks)
    missing = {name for name in names if not any(hasattr(thing, name) for thing in known)}
    for name in missing - hints.ARGUMENTS.keys():
        assert "; caffelite has " in hints.name_hint(name, cl.__all__, "cl"), name


@pytest.mark.parametrize("kind", [cl.Model, cl.Tensor, cl.SGD])
def test_an_attribute_of_other_frameworks_has_a_hint(kind):
    members = {name: inspect.getattr_static(kind, name) for name in dir(kind)}
    foreign = {name for name, value in members.items() if isinstance(value, ForeignAttribute)}
    assert foreign
    assert foreign <= hints.ATTRIBUTES.keys()


def test_an_attribute_with_a_hint_belongs_to_a_class():
    model = cl.Model([cl.Linear(2, 3)])
    for name in hints.ATTRIBUTES:
        messages = []
        for thing in (model, TENSOR, SGD):
            with pytest.raises(AttributeError) as caught:
                getattr(thing, name)
            messages.append(str(caught.value))
        assert any("; caffelite has" in message for message in messages), name


# ---- print(history) --------------------------------------------------------------------------------------------------


def test_a_printed_history_is_a_line_and_its_repr_all_numbers():
    assert str(HISTORY) == f"{HISTORY}" == "2 epochs, loss 1 → 0.5, accuracy 0.5 → 0.75"
    assert repr(HISTORY) == "{'loss': [1.0, 0.5], 'accuracy': [0.5, 0.75]}"
    assert str(cl.History(loss=[0.25])) == "1 epoch, loss 0.25"
    assert str(cl.History(loss=[])) == str(cl.History()) == "0 epochs"


# ---- warnings in a training ------------------------------------------------------------------------------------------


def pixels(shape=(64,)):
    (x, y), _ = cl.datasets.digits()
    return x.reshape(-1, *shape) * 255, y


def train_on_pixels(model, x, y, batch_size=32):
    return train(model, x, y, lr=0.1, epochs=2, batch_size=batch_size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pixels_that_are_not_scaled_are_named_after_the_first_epoch(dtype):
    x, y = pixels()
    model = cl.Model([cl.Linear(64, 100), cl.ReLU(), cl.Linear(100, 10)], seed=0, dtype=dtype)
    message = r"^x reaches 255, and after the first epoch 100% of the units of layer 1 ReLU\(\) are 0 for all rows: "
    with pytest.warns(cl.TrainingWarning, match=message) as caught:
        history = train_on_pixels(model, x, y)
    assert len(caught) == 1
    assert history["loss"][-1] == pytest.approx(np.log(10), rel=0.01)


def test_outputs_that_are_the_same_for_all_rows_are_named():
    x, y = pixels((1, 8, 8))
    model = cl.Model([cl.Conv2d(1, 4, 3), cl.ReLU(), cl.Flatten(), cl.Linear(144, 10), cl.Tanh()], seed=0)
    model[0].bias.data = np.full(4, -1e4)  # a unit that has died, in another way
    with pytest.warns(cl.TrainingWarning, match="100% of the units of layer 1"):
        train_on_pixels(model, x, y)
    squashed = cl.Model([cl.Linear(64, 10), cl.Tanh()], seed=0)
    squashed[0].bias.data = np.full(10, -1e6)
    with pytest.warns(cl.TrainingWarning, match="after the first epoch all rows have the same outputs: scale x"):
        train_on_pixels(squashed, x.reshape(-1, 64), y)


def dead_net(*before):
    """Return a net whose units are 0 for all rows, whatever these are."""
    linear = cl.Linear(64, 100)
    linear.bias.data = np.full(100, -1e9)
    return cl.Model([*before, linear, cl.ReLU(), cl.Linear(100, 10)])


class Net(cl.Model):
    def call(self, x):
        return x * 2


@pytest.mark.parametrize(
    "run",
    [
        lambda x, y: train_on_pixels(dead_net(), x / 255, y),
        lambda x, y: train_on_pixels(dead_net(cl.BatchNorm(64)), x, y),
        lambda x, y: train_on_pixels(cl.Model([*dead_net(), Net()]), x, y),  # its Python may have effects
        lambda x, y: train_on_pixels(
            dead_net(), cl.DataGenerator(x, y, transform=lambda x, y: (x / 255, y), seed=0), None, batch_size=None
        ),
        lambda x, y: train(cl.MLP(64, [100, 10], seed=0), x, y, lr=1e-5, batch_size=32),  # it learns
        lambda x, y: train_on_pixels(dead_net(), np.full_like(x, 255), y),  # the rows are all the same
    ],
    ids=["scaled", "BatchNorm", "call", "transform", "alive", "same rows"],
)
def test_a_training_that_large_numbers_did_not_kill_says_nothing_of_scales(run):
    assert run(*pixels()).epochs >= 1


def test_looking_for_dead_units_changes_no_bit_of_the_training(monkeypatch):
    x, y = pixels()
    results = []
    for large in (30, 300):  # below and above the numbers in x
        monkeypatch.setattr(advice, "LARGE", large)
        model = cl.Model([cl.Linear(64, 100), cl.ReLU(), cl.Dropout(0.5), cl.Linear(100, 10)], seed=0)
        results.append((train(model, x, y, lr=1e-5, epochs=3, batch_size=32), bits(model)))
    assert results[0] == results[1]


GUESSING = r"^the loss is \d+\.\d+; guessing would give {}: try a learning rate ten times smaller, and a new model$"


@pytest.mark.parametrize(
    ("loss", "outputs", "guess"), [(cl.SoftmaxLoss(0.1), 3, "1.099"), (cl.SigmoidLoss(), 1, "0.6931")]
)
def test_a_training_that_ends_above_the_loss_of_guessing_names_the_learning_rate(loss, outputs, guess):
    x, y = cl.datasets.spiral(seed=0)
    y = y if outputs == 3 else y % 2
    with pytest.warns(cl.TrainingWarning, match=GUESSING.format(guess)) as caught:
        train(cl.MLP(2, [100, outputs], seed=0), x, y, loss=loss, lr=30, momentum=0.9, batch_size=32, epochs=20)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 2, "batch_size": 8, "lr": 5},  # the first may be too few for any rate
        {"epochs": 5, "batch_size": 300, "lr": 30},
        {"callbacks": [cl.callbacks.EarlyStopping("loss", patience=20)]},  # the model is that of the best epoch
        {"lr": 0.3},  # it learns
        {"lr": 1, "class_weight": {0: 9, 1: 1, 2: 1}},
    ],
    ids=["two epochs", "five steps", "EarlyStopping", "small rate", "class weights"],
)
def test_a_training_that_may_be_right_is_not_compared_with_guessing(options):
    x, y = cl.datasets.spiral(seed=0)
    options = {"lr": 10, "momentum": 0.9, "batch_size": 32, "epochs": 20, **options}
    assert train(cl.MLP(2, [100, 3], seed=0), x, y, **options)["loss"][-1] > 0


def test_labels_by_chance_and_a_loss_that_only_falls_are_not_compared_with_guessing():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2000, 20)), rng.integers(0, 4, 2000)
    noise = train(cl.MLP(20, [32, 4], seed=0), x, y, lr=0.1, momentum=0.9, batch_size=32, epochs=3)["loss"]
    slow = train(cl.MLP(20, [32, 4], seed=0), 100 * x, y, lr=1e-7, batch_size=32, epochs=3)["loss"]
    assert min(noise) > 1.3
    assert slow[0] > slow[1] > slow[2] > 2 * np.log(4)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([cl.Linear(2, 16), cl.Linear(16, 2)], "Layers 0 and 1 are Linear, with nothing between them"),
        ([cl.Model([cl.Linear(2, 16), cl.Linear(16, 2)])], r"Layers 0\.0 and 0\.1 are Linear"),
    ],
)
def test_two_linear_layers_with_nothing_between_them_are_named_before_the_first_step(layers, message):
    model = cl.Model(layers, seed=0)
    before = [p.data.copy() for p in model.parameters()]
    with pytest.raises(cl.TrainingWarning, match=f"{message}.*Put ReLU"):  # warnings are errors here
        train(model, X, Y)
    for p, values in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.data, values)
    train(model, X, Y)  # once for a model


def test_two_linear_layers_for_a_reason_are_not_named():
    shared, frozen = cl.Linear(4, 4), cl.Linear(8, 8)
    frozen.requires_grad = False
    for layers in (
        [cl.Linear(8, 2), cl.Linear(2, 8)],  # a factorization
        [cl.Linear(8, 4), cl.ReLU(), cl.Linear(4, 8)],
        [cl.Linear(8, 4), shared, shared, cl.ReLU(), cl.Linear(4, 8)],  # one layer, twice
        [frozen, cl.Linear(8, 8)],
    ):
        model = cl.Model(layers, seed=0)
        assert train(model, np.ones((4, 8), np.float32), np.arange(4)).epochs == 1


def test_an_estimator_without_activations_is_what_the_user_asked_for():
    pytest.importorskip("sklearn")
    from caffelite.sklearn import MLPRegressor

    with pytest.warns(Warning, match="Maximum|max_iter|onverge") as caught:
        MLPRegressor((20,), activation="identity", max_iter=2, random_state=0).fit(X, X[:, 0])
    assert [warning.category.__name__ for warning in caught] == ["ConvergenceWarning"]
