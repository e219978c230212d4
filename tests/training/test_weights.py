"""Weights of rows and of classes, and the labels and penalties that count in a loss."""

import re

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.columns import ARMS, POINTS, RNG, TARGETS, A, Epochs, SquaredError, X, Y, pairs

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


class UnweightedLoss(cl.Function):
    """A loss that takes no weights."""

    def forward(self, outputs, targets):
        self.difference = outputs - targets
        return (self.difference**2).mean()

    def backward(self, dy):
        return dy * 2 * self.difference / self.difference.size


# ---- weights --------------------------------------------------------------------------------------------------------
WEIGHTS = RNG.integers(0, 4, size=30)


def weighted_data(how, weights, size=8):
    """Return the same rows and weights as arrays, as a generator, and as batches."""
    if how == "arrays":
        return {"x": A, "y": TARGETS, "sample_weight": weights, "batch_size": size, "shuffle": False}
    if how == "generator":
        return {"x": cl.DataGenerator(A, TARGETS, sample_weight=weights, batch_size=size, shuffle=False)}
    return {"x": [(x[0], y, w) for x, y, w in pairs(size, np.asarray(weights))]}


EACH_WAY = pytest.mark.parametrize("how", ["arrays", "generator", "batches"])


@DTYPES
@EACH_WAY
def test_a_weight_of_two_is_a_row_twice(dtype, how):
    weighted, repeated = classifier(2, 3, dtype=dtype), classifier(2, 3, dtype=dtype)
    options = {"loss": SquaredError(), "lr": 0.01, "epochs": 5}
    histories = [
        train(weighted, **weighted_data(how, WEIGHTS, 30), **options),
        train(repeated, A.repeat(WEIGHTS, axis=0), TARGETS.repeat(WEIGHTS, axis=0), batch_size=100, **options),
    ]
    rtol = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=rtol)
    np.testing.assert_allclose(weighted.predict(A), repeated.predict(A), rtol=rtol, atol=rtol)


@EACH_WAY
def test_the_loss_of_an_epoch_weighs_its_rows_and_metrics_do_not(how):
    def rows(outputs, targets):
        return len(targets)

    model, weights = classifier(2, 3), RNG.uniform(0.1, 2, size=30)
    history = train(model, loss=SquaredError(), lr=1e-300, metrics=[rows, "mae"], **weighted_data(how, weights))
    errors = ((model.predict(A) - TARGETS) ** 2).sum(axis=1)
    assert history["loss"][0] == pytest.approx((weights * errors).sum() / weights.sum(), rel=1e-5)
    assert history["rows"] == [30]
    assert history["mae"][0] == pytest.approx(np.abs(model.predict(A) - TARGETS).mean(), rel=1e-5)


@EACH_WAY
@pytest.mark.parametrize("without", [[0], [1], [3], [0, 1, 3], [0, 1, 2]])
def test_a_batch_whose_weights_are_all_0_makes_no_step(how, without):
    weights, nan = np.ones(30), A.copy()
    for batch in without:
        weights[8 * batch : 8 * batch + 8] = 0
    counts = weights > 0
    nan[~counts] = np.nan  # values that would end the training
    options = {"loss": SquaredError(), "epochs": 4, "metrics": ["mse"]}
    model, other = classifier(2, 3), classifier(2, 3)
    optimizers = [cl.Adam(m.parameters(), lr=0.01) for m in (model, other)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "A", nan)
        given = weighted_data(how, weights)
    history = train(model, optimizer=optimizers[0], **given, **options)
    kept = [(A[i : i + 8], TARGETS[i : i + 8], weights[i : i + 8]) for i in range(0, 30, 8) if counts[i]]
    expected = train(other, kept, optimizer=optimizers[1], **options)
    assert bits(model) == bits(other)
    assert history == expected
    state, same = (optimizer.state_dict() for optimizer in optimizers)
    assert repr(state) == repr(same)


def test_weights_follow_their_rows_through_every_order():
    weights = RNG.integers(0, 3, size=30) * (np.arange(30) > 20)
    model, other = classifier(2, 3), classifier(2, 3)
    options = {"loss": SquaredError(), "lr": 0.01, "epochs": 6}
    data = {"batch_size": 3, "seed": 1}
    histories = [
        train(model, A, TARGETS, sample_weight=weights, **data, **options),
        train(other, Epochs(cl.DataGenerator(A, TARGETS, sample_weight=weights, **data)), **options),
    ]
    assert bits(model) == bits(other)
    assert histories[0] == histories[1]


def test_weights_are_in_validation_data_and_evaluate_and_are_split_with_their_rows():
    model, loss, weights = classifier(2, 3), SquaredError(), RNG.uniform(size=30)
    errors = ((model.predict(A) - TARGETS) ** 2).sum(axis=1)
    expected = pytest.approx((weights * errors).sum() / weights.sum(), rel=1e-5)
    generator = cl.DataGenerator(A, TARGETS, sample_weight=weights, batch_size=7)
    assert model.evaluate(A, TARGETS, loss=loss, sample_weight=weights, batch_size=7)["loss"] == expected
    assert model.evaluate(generator, loss=loss)["loss"] == expected
    assert model.evaluate(list(generator), loss=loss)["loss"] == expected
    for data in ((A, TARGETS, weights), generator):
        assert train(model, A, TARGETS, loss=loss, lr=1e-300, validation_data=data)["val_loss"] == [expected]
    history = train(model, A, TARGETS, loss=loss, lr=1e-300, sample_weight=weights, validation_split=0.4)
    trained, held_out = history["loss"][0], history["val_loss"][0]
    assert trained != held_out
    split = np.random.default_rng(5).permutation(30)[:12]
    history = train(model, A, TARGETS, loss=loss, lr=1e-300, sample_weight=weights, validation_split=0.4, seed=5)
    of_split = (weights[split] * errors[split]).sum() / weights[split].sum()
    assert history["val_loss"][0] == pytest.approx(of_split, rel=1e-5)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (np.where(np.arange(30) == 7, -1, 1), ValueError, "row 7"),
        (np.where(np.arange(30) == 7, np.nan, 1), ValueError, "row 7"),
        (np.where(np.arange(30) == 7, np.inf, 1), ValueError, "row 7"),
        (np.where(np.arange(30) == 7, 1e300, 1), ValueError, "row 7"),  # too large for float32
        (np.zeros(30), ValueError, "0"),
        (np.full(30, 1e-300), ValueError, "0"),
        (np.ones(29), ValueError, r"30.*\(29,\)"),
        (np.ones((30, 1)), ValueError, r"30.*\(30, 1\)"),
        (1.0, ValueError, r"30.*\(\)"),
        (["heavy"] * 30, TypeError, "numbers"),
        (np.ones(30, complex), TypeError, "numbers"),
    ],
)
def test_bad_weights_raise_before_anything_is_written(weights, error, message):
    model, loss = classifier(2, 3), SquaredError()
    before = bits(model)
    with np.errstate(over="ignore"):
        with pytest.raises(error, match=message):
            train(model, A, TARGETS, loss=loss, sample_weight=weights)
        with pytest.raises(error, match=message):
            train(model, A, TARGETS, loss=loss, validation_data=(A, TARGETS, weights))
        with pytest.raises(error, match=message):
            model.evaluate(A, TARGETS, loss=loss, sample_weight=weights)
        if message != "0":
            with pytest.raises(error, match=message):
                train(model, [(A, TARGETS, weights)], loss=loss)
    assert bits(model) == before


def test_weights_given_twice_or_for_a_loss_that_takes_none_raise():
    model, ones = classifier(2, 3), np.ones(30)
    before = bits(model)
    for x in (cl.DataGenerator(A, TARGETS), [(A, TARGETS)]):
        with pytest.raises(ValueError, match="sample_weight"):
            train(model, x, loss=SquaredError(), sample_weight=ones)
    for given in weighted_data("arrays", ones), weighted_data("generator", ones), weighted_data("batches", ones):
        with pytest.raises(TypeError, match="takes no weights"):
            train(model, loss=UnweightedLoss(), **given)
    with pytest.raises(ValueError, match="needs y"):
        cl.DataGenerator(A, sample_weight=ones)
    assert bits(model) == before


def test_an_epoch_in_which_nothing_weighs_has_no_loss():
    model = classifier(2, 3)
    before = bits(model)
    history = train(model, [(A, TARGETS, np.zeros(30))], loss=SquaredError(), metrics=["accuracy", "mse"])
    assert all(np.isnan(values[0]) for values in history.values())
    assert bits(model) == before


# ---- weights of classes ---------------------------------------------------------------------------------------------
UNEVEN = np.r_[0:20, 20:30, 40:45]  # 20, 10 and 5 rows of the classes
OF_CLASS = {0: 2, 2: 3}


def fit_full_batches(x, y, dtype=np.float32, **options):
    """Return a model trained by full batches, and the history."""
    model = classifier(2, 8, 3, dtype=dtype)
    history = train(model, x, y, **{"batch_size": len(x), "epochs": 5, "shuffle": False, **options})
    return model, history


@DTYPES
def test_a_class_weight_of_two_is_each_of_its_rows_twice(dtype):
    times = np.array([2, 1, 3])[ARMS]
    model, history = fit_full_batches(POINTS, ARMS, dtype, class_weight=OF_CLASS)
    other, expected = fit_full_batches(POINTS.repeat(times, axis=0), ARMS.repeat(times), dtype)
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=rtol)
    np.testing.assert_allclose(model.predict(POINTS), other.predict(POINTS), rtol=rtol, atol=rtol)


@DTYPES
def test_gradients_of_weighted_rows_equal_repeated_ones(dtype):
    times = np.random.default_rng(0).integers(0, 5, size=len(ARMS))

    def gradients(x, y, *weights):
        model, loss = classifier(2, 8, 3, dtype=dtype), cl.SoftmaxLoss()
        loss(model(x.astype(dtype)), y, *weights).backward()
        return np.concatenate([p.grad.ravel() for p in model.parameters()])

    weighted = gradients(POINTS, ARMS, times.astype(dtype))
    repeated = gradients(POINTS.repeat(times, axis=0), ARMS.repeat(times))
    atol = 1e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(weighted, repeated, rtol=0, atol=atol)


def test_class_weights_are_weights_of_rows_and_multiply_them():
    rows = np.random.default_rng(0).uniform(0.5, 2, size=len(ARMS))
    of_class = np.array([2, 1, 3])[ARMS]
    for given, weights in ((None, of_class), (rows, rows * of_class)):
        model, history = fit_full_batches(POINTS, ARMS, class_weight=OF_CLASS, sample_weight=given, batch_size=7)
        other, expected = fit_full_batches(POINTS, ARMS, sample_weight=weights, batch_size=7)
        assert bits(model) == bits(other)
        assert history == expected


def test_balanced_weights_are_scikit_learns():
    compute = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    x, y = POINTS[UNEVEN], ARMS[UNEVEN]
    weights = compute("balanced", classes=np.arange(3), y=y)
    np.testing.assert_allclose(weights, 35 / (3 * np.array([20, 10, 5])))
    for given in (y, y.astype(np.uint8), y.tolist()):
        assert bits(fit_full_batches(x, given, class_weight="balanced")[0]) == bits(
            fit_full_batches(x, y, sample_weight=weights[y])[0]
        )
    explicit = dict(enumerate(weights.tolist()))
    assert bits(fit_full_batches(x, y, class_weight=explicit)[0]) == bits(
        fit_full_batches(x, y, class_weight="balanced")[0]
    )


def test_weighted_losses_are_pytorchs():
    torch = pytest.importorskip("torch")
    weights = [2.0, 1.0, 3.0]
    model, history = fit_full_batches(POINTS, ARMS, np.float64, class_weight=OF_CLASS, lr=1e-300, epochs=1)
    scores, labels = torch.tensor(model.predict(POINTS)), torch.tensor(ARMS)
    expected = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights, dtype=torch.float64))(scores, labels)
    assert history["loss"][0] == pytest.approx(expected.item(), rel=1e-12)


def test_labels_to_be_ignored_have_no_part_in_the_balance():
    y = np.where(np.arange(len(ARMS)) % 4 == 0, -1, ARMS)
    counted = y != -1
    y_counted = y[counted]
    counts = np.bincount(y_counted)
    weights = np.ones(len(y))
    weights[counted] = counted.sum() / (3 * counts[y_counted])
    for loss in (cl.SoftmaxLoss(ignore=-1), None):
        if loss is None:
            frozen = classifier(2, 3)
            frozen.requires_grad = False
            loss = cl.Penalized(cl.SoftmaxLoss(ignore=-1), frozen.parameters(), l2=0.0)
        model, _ = fit_full_batches(POINTS, y, class_weight="balanced", loss=loss)
        other, _ = fit_full_batches(POINTS, y, sample_weight=weights, loss=cl.SoftmaxLoss(ignore=-1))
        np.testing.assert_allclose(model.predict(POINTS), other.predict(POINTS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [bool, np.int8])
@pytest.mark.parametrize("columns", [(), (1,)])
def test_class_weights_go_with_one_score_a_row(dtype, columns):
    y = (ARMS > 0).astype(dtype).reshape(-1, *columns)
    options = {"loss": cl.SigmoidLoss(), "lr": 0.05, "epochs": 3, "seed": 0}
    model, other = classifier(2, 1), classifier(2, 1)
    train(model, POINTS, y, class_weight={1: 0.25}, **options)
    train(other, POINTS, y, sample_weight=np.where(ARMS > 0, 0.25, 1), **options)
    assert bits(model) == bits(other)


def test_class_weights_have_no_part_in_validation():
    history = fit_full_batches(POINTS, ARMS, class_weight=OF_CLASS, validation_data=(POINTS, ARMS), lr=1e-300)[1]
    plain = fit_full_batches(POINTS, ARMS, validation_data=(POINTS, ARMS), lr=1e-300)[1]
    assert history["val_loss"] == plain["val_loss"] == [pytest.approx(plain["loss"][0])] * 5
    assert history["loss"] != plain["loss"]
    split = {"validation_split": 0.3, "seed": 1, "lr": 1e-300}
    assert (
        fit_full_batches(POINTS, ARMS, class_weight=OF_CLASS, **split)[1]["val_loss"]
        == (fit_full_batches(POINTS, ARMS, **split)[1]["val_loss"])
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"class_weight": {3: 2.0}}, ValueError, "label 3 does not occur; there are [0, 1, 2]"),
        ({"class_weight": {-1: 2.0}}, ValueError, "label -1 does not occur"),
        ({"class_weight": {"0": 2.0}}, ValueError, "label '0' does not occur"),
        ({"class_weight": {0: -1.0}}, ValueError, "the weight of label 0 must be 0 or more"),
        ({"class_weight": {0: np.nan}}, ValueError, "the weight of label 0 must be 0 or more"),
        ({"class_weight": {0: "2"}}, TypeError, "the weight of label 0 must be a number"),
        ({"class_weight": {0: 0, 1: 0, 2: 0}}, ValueError, "all of 60 weights are 0"),
        ({"class_weight": "uniform"}, TypeError, "expected {label: weight} or \"balanced\", got 'uniform'"),
        ({"class_weight": [1, 2, 3]}, TypeError, "expected {label: weight}"),
        ({"class_weight": OF_CLASS, "y": ARMS.astype(float)}, TypeError, "needs labels: expected integers"),
        ({"class_weight": OF_CLASS, "y": np.eye(3)[ARMS]}, TypeError, "needs labels: expected integers"),
        ({"class_weight": OF_CLASS, "y": np.eye(3, dtype=int)[ARMS]}, ValueError, "one label a row"),
        ({"class_weight": "balanced", "y": ARMS[:9]}, ValueError, "x has 60 rows, y has shape (9,)"),
        ({"class_weight": OF_CLASS, "sample_weight": [1.0]}, ValueError, "a weight for each of 60 rows"),
        (
            {"class_weight": OF_CLASS, "x": cl.DataGenerator(POINTS, ARMS), "y": None},
            ValueError,
            "class_weight needs x and y as arrays",
        ),
        (
            {"class_weight": "balanced", "x": [(POINTS, ARMS)], "y": None},
            ValueError,
            "class_weight needs x and y as arrays",
        ),
    ],
)
def test_class_weights_that_cannot_be_raise_before_anything_happens(options, error, message):
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(error, match=re.escape(message)):
        train(model, **{"x": POINTS, "y": ARMS, **options})
    assert bits(model) == before


# ---- losses that know what counts -----------------------------------------------------------------------------------


def test_the_historys_loss_is_without_the_penalty_and_of_the_labels_that_count():
    model = classifier(2, 3)
    labels = np.where(np.arange(60) % 7 == 0, -1, Y)
    parts = [slice(0, 25), slice(25, 50), slice(50, 60)]
    plain = cl.SoftmaxLoss(ignore=-1)
    penalized = cl.Penalized(plain, model.parameters(), l1=0.3, l2=0.7)
    options = {"epochs": 2, "batch_size": 25, "lr": 1e-300, "shuffle": False}
    total = count = 0
    for part in parts:
        counting = int((labels[part] >= 0).sum())
        total += counting * float(plain.forward(model.predict(X[part]), labels[part]))
        count += counting
    for loss in (plain, penalized):
        assert train(model, X, labels, loss=loss, **options)["loss"] == pytest.approx([total / count] * 2, rel=1e-6)
        measured = model.evaluate(X, labels, loss=loss, batch_size=25)
        assert measured["loss"] == pytest.approx(total / count, rel=1e-6)
        batches = [(X[part], labels[part]) for part in parts]
        assert train(model, batches, loss=loss, epochs=2, lr=1e-300)["loss"] == pytest.approx(
            [total / count] * 2, rel=1e-6
        )


def test_the_penalty_is_trained_on():
    model, w = cl.Model([cl.Linear(2, 3)], seed=0), np.linspace(0.5, 2, 60).astype(np.float32)
    loss = cl.Penalized(cl.SoftmaxLoss(), model.parameters(), l2=100.0)
    before = np.abs(model.parameters()[0].data).sum()
    history = train(model, X, Y, loss=loss, lr=0.005, epochs=3, sample_weight=w)
    assert np.abs(model.parameters()[0].data).sum() < before / 2
    assert history["loss"][0] < 3
