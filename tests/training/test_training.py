"""Columns: several inputs and outputs, indices, weights; metrics of whole epochs; what users' parts raise in a fit."""

import itertools
import re
import tracemalloc

import numpy as np
import pytest

import caffelite as cl
from caffelite.program import kept
from tests.conftest import bits, classifier, train
from tests.reference import assert_same_bits

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(30, 2)).astype(np.float32), RNG.normal(size=(30, 3)).astype(np.float32)
TARGETS = RNG.normal(size=(30, 3)).astype(np.float32)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


class SquaredError(cl.Function):
    """The mean over rows of Σ (outputs − targets)²; of rows that weigh w, Σ w l / Σ w."""

    def forward(self, outputs, targets, weights=None):
        w = np.ones(len(outputs), outputs.dtype) if weights is None else weights
        self.share, self.difference = (w / w.sum())[:, None], outputs - targets
        return (self.share * self.difference**2).sum(dtype=outputs.dtype)

    def backward(self, dy):
        return dy * 2 * self.share * self.difference


class Unweighted(cl.Function):
    """A loss that takes no weights."""

    def forward(self, outputs, targets):
        self.difference = outputs - targets
        return (self.difference**2).mean()

    def backward(self, dy):
        return dy * 2 * self.difference / self.difference.size


class Towers(cl.Model):
    """W a + V b, for rows a of two features and b of three."""

    def __init__(self, dtype=np.float32):
        super().__init__([cl.Linear(2, 3, bias=False), cl.Linear(3, 3, bias=False)], seed=0, dtype=dtype)

    def call(self, a, b):
        return self.functions[0](a) + self.functions[1](b)

    def output_shape(self, *shapes):
        a, b = shapes
        if a[1:] != (2,) or b[1:] != (3,):
            raise ValueError(f"Towers got rows of shapes {a} and {b}")
        return (a[0], 3)


def pairs(size, weights=None):
    """An iterable of batches of the two inputs."""
    for i in range(0, 30, size):
        rows = slice(i, i + size)
        yield ((A[rows], B[rows]), TARGETS[rows], *([] if weights is None else [weights[rows]]))


# ---- several inputs -------------------------------------------------------------------------------------------------


@DTYPES
def test_a_model_of_two_inputs_learns_what_one_of_both_side_by_side_learns(dtype):
    towers, one = Towers(dtype), cl.Model([cl.Linear(5, 3, bias=False)], dtype=dtype)
    one.parameters()[0].data = np.concatenate([p.data for p in towers.parameters()])
    options = {"loss": SquaredError(), "lr": 0.01, "epochs": 5, "batch_size": 8, "seed": 0}
    histories = [
        train(towers, (A, B), TARGETS, **options),
        train(one, np.concatenate([A, B], axis=1), TARGETS, **options),
    ]
    rtol = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=rtol)
    both = [towers.predict((A, B), batch_size=7), one.predict(np.concatenate([A, B], axis=1))]
    np.testing.assert_allclose(*both, rtol=rtol, atol=rtol)


def test_arrays_a_generator_and_batches_of_two_inputs_give_the_same_bits():
    models = [Towers() for _ in range(4)]
    options = {"loss": SquaredError(), "lr": 0.01, "epochs": 3}
    histories = [
        train(models[0], (A, B), TARGETS, batch_size=8, seed=3, **options),
        train(models[1], cl.DataGenerator((A, B), TARGETS, batch_size=8, seed=3), **options),
        train(models[2], (A.astype(np.float64), B.tolist()), TARGETS.tolist(), batch_size=8, seed=3, **options),
    ]
    assert histories[0] == histories[1] == histories[2]
    assert bits(models[0]) == bits(models[1]) == bits(models[2])
    train(models[3], list(pairs(8)), **options)
    other = Towers()
    train(other, (A, B), TARGETS, batch_size=8, shuffle=False, **options)
    assert bits(models[3]) == bits(other)


def test_two_inputs_are_validated_on_and_split():
    loss, model = SquaredError(), Towers()
    for data in ((A, B), TARGETS), cl.DataGenerator((A, B), TARGETS):
        history = train(model, (A, B), TARGETS, loss=loss, lr=0, validation_data=data)
        assert history["val_loss"][0] == pytest.approx(model.evaluate((A, B), TARGETS, loss=loss)["loss"], rel=1e-6)
    seen = []

    def note(outputs, targets):
        seen.append(sorted(targets[:, 0].tolist()))
        return 0

    train(model, (A, B), TARGETS, loss=loss, lr=0, validation_split=0.3, metrics=[note])
    assert len(seen[1]) == 9
    assert sorted(seen[0] + seen[1]) == sorted(TARGETS[:, 0].tolist())


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ((A, B[:-1]), ValueError, r"\(30, 2\).*\(29, 3\)"),
        ((A[:-1], B[:-1]), ValueError, "29.*30"),
        ((A, B[:, :2]), ValueError, "Towers"),
        ((A, 5.0), ValueError, "no rows"),
        ((), ValueError, "input"),
        ((A, B.astype(str)), TypeError, r"x\[1\]"),
    ],
)
def test_inputs_that_do_not_fit_raise_before_anything_is_written(x, error, message):
    model = Towers()
    before = bits(model)
    with pytest.raises(error, match=message):
        train(model, x, TARGETS, loss=SquaredError())
    with pytest.raises(error):
        train(model, [(x, TARGETS)], loss=SquaredError())
    with pytest.raises(error):
        train(model, (A, B), TARGETS, loss=SquaredError(), validation_data=(x, TARGETS))
    assert bits(model) == before


# ---- indices and masks ----------------------------------------------------------------------------------------------


class Lookup(cl.Model):
    """Notes the dtypes of what it is called with: indices, numbers and a mask."""

    takes_indices = (True, False, False)

    def __init__(self):
        super().__init__([cl.Linear(2, 3)])
        self.seen = []

    def call(self, indices, numbers, mask):
        self.seen.append([np.dtype(x.dtype) for x in (indices, numbers, mask)])
        return self.functions[0](numbers)

    def output_shape(self, *shapes):
        return (shapes[0][0], 3)


@pytest.mark.parametrize("kind", ["u1", "i4", "i8", ">i2", "u8", np.longlong])
def test_indices_become_int64_numbers_the_models_dtype_and_a_mask_stays_bool(kind):
    x = (np.arange(60).astype(kind), X.astype(np.float64), np.ones((60, 5), bool))
    model = Lookup()
    train(model, x, Y)
    train(model, [(x, Y)])
    train(model, x, Y, validation_split=0.5)
    model.predict(x)
    model.evaluate(x, Y, loss=cl.SoftmaxLoss())
    assert len(model.seen) >= 5
    assert all(dtypes == [np.int64, np.float32, np.bool_] for dtypes in model.seen)


class Masked(cl.Model):
    """Words and a mask, or lengths."""

    def __init__(self):
        super().__init__(seed=0)
        self.words, self.block, self.memory = cl.Embedding(10, 4), cl.TransformerBlock(4, 2), cl.GRU(4, 3)

    def call(self, words, mask=None, lengths=None):
        return self.memory(self.block(self.words(words), mask), lengths=lengths)


WORDS = np.arange(300).reshape(60, 5) % 10
MASK = WORDS > 3


@pytest.mark.parametrize("takes", [True, (True, True), (True, False)])
def test_a_mask_beside_indices_stays_bool_whatever_takes_indices_says_of_it(takes):
    model, expected = Masked(), Masked()
    model.takes_indices, expected.takes_indices = takes, (True, False)
    assert train(model, (WORDS, MASK), Y) == train(expected, (WORDS, MASK), Y)


@pytest.mark.parametrize(
    ("takes", "x", "message"),
    [
        (
            False,
            (WORDS, MASK),
            r"Embedding\(10, 4\) takes indices: .* set model.takes_indices = True. A model of several",
        ),
        (
            (True, False),
            (WORDS, MASK.astype(int)),
            r"takes a mask of bool, .* got float32; a model leaves an input of bools",
        ),
    ],
)
def test_integers_that_became_floats_say_what_to_set(takes, x, message):
    model = Masked()
    model.takes_indices = takes
    with pytest.raises(TypeError, match=message):
        train(model, x, Y)


def test_lengths_that_became_floats_say_what_to_set():
    class Memory(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.memory = cl.GRU(2, 3)

        def call(self, x, lengths):
            return self.memory(x, lengths=lengths)

    x = np.zeros((60, 4, 2)), np.full(60, 3)
    with pytest.raises(
        TypeError, match=r"lengths that are integers in 1 … 4, got float32.*takes_indices = \(False, True\)"
    ):
        train(Memory(), x, Y)


def test_a_model_is_called_with_inputs_by_the_names_that_call_has():
    model, lengths = Masked(), np.full(60, 3)
    expected = model(WORDS, None, lengths)
    for y in (model(WORDS, lengths=lengths), model(words=WORDS, lengths=lengths), model(WORDS, None, lengths=lengths)):
        assert_same_bits(y.data, expected.data)
    with pytest.raises(
        TypeError, match=r"Masked\(.*\): got an unexpected keyword argument 'length'; did you mean 'lengths'\?$"
    ):
        model(WORDS, length=lengths)
    with pytest.raises(TypeError, match="missing a required argument: 'words'"):
        model(mask=MASK)


@pytest.mark.parametrize("x", [X, X > 0, X.astype(str), X.astype(complex)])
def test_what_is_no_integer_is_no_index(x):
    class Indices(cl.Model):
        takes_indices = True

    model = Indices([cl.Linear(2, 3)])
    for use in (lambda: train(model, x, Y), lambda: model.predict(x), lambda: train(model, [(x, Y)])):
        with pytest.raises(TypeError, match="integers"):
            use()


def test_an_index_beyond_int64_raises_index_error_and_other_numbers_of_inputs_value_error():
    model = Lookup()
    with pytest.raises(IndexError, match=str(2**63 + 5)):
        model.predict((np.full(60, 2**63 + 5, np.uint64), X, X > 0))
    with pytest.raises(ValueError, match="3 inputs, got 2"):
        model.predict((np.arange(60), X))


# ---- several outputs ------------------------------------------------------------------------------------------------


class TwoHeads(Towers):
    """W a and V b, each for itself."""

    def call(self, a, b):
        return self.functions[0](a), self.functions[1](b)


class OfBoth(SquaredError):
    """The squared error of the sum of two outputs."""

    def __call__(self, outputs, targets):
        assert isinstance(outputs, tuple)
        return super().__call__(outputs[0] + outputs[1], targets)


def test_a_model_with_two_outputs_predicts_a_tuple_and_its_loss_and_metrics_get_one():
    def largest(outputs, targets):
        assert [x.shape for x in outputs] == [targets.shape] * 2
        return max(x.max() for x in outputs)

    two, one = TwoHeads(), Towers()
    histories = [
        train(two, (A, B), TARGETS, loss=OfBoth(), lr=0.01, epochs=3, metrics=[largest]),
        train(one, (A, B), TARGETS, loss=SquaredError(), lr=0.01, epochs=3),
    ]
    assert histories[0]["loss"] == histories[1]["loss"]
    outputs = two.predict((A, B), batch_size=7)
    assert isinstance(outputs, tuple)
    np.testing.assert_allclose(outputs[0] + outputs[1], one.predict((A, B)), rtol=1e-5)
    with pytest.raises(ValueError, match="one output"):
        train(two, (A, B), TARGETS, loss=OfBoth(), metrics=["mse"])


@pytest.mark.parametrize("how", ["arrays", "generator", "batches"])
def test_a_metric_of_several_outputs_is_of_all_rows(how):
    def difference(outputs, targets):
        rows.append(len(targets))
        return float((outputs[0] - outputs[1]).max())

    model, rows = TwoHeads(), []
    inputs, targets = (A, B), TARGETS
    data = {
        "arrays": {"x": inputs, "y": targets, "shuffle": False, "batch_size": 8},
        "generator": {"x": cl.DataGenerator(inputs, targets, batch_size=8, shuffle=False)},
        "batches": {"x": [((A[i : i + 8], B[i : i + 8]), targets[i : i + 8]) for i in range(0, 30, 8)]},
    }[how]
    history = train(model, loss=OfBoth(), lr=1e-12, epochs=2, metrics=[difference], **data)
    first, second = model.predict(inputs)
    assert history["difference"] == pytest.approx([(first - second).max()] * 2, rel=1e-5)
    assert rows == [30, 30]


# ---- weights --------------------------------------------------------------------------------------------------------


WEIGHTS = RNG.integers(0, 4, size=30)


def given_as(how, weights, size=8):
    """The same rows and weights as arrays, as a generator, and as batches."""
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
        train(weighted, **given_as(how, WEIGHTS, 30), **options),
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
    history = train(model, loss=SquaredError(), lr=0, metrics=[rows, "mae"], **given_as(how, weights))
    errors = ((model.predict(A) - TARGETS) ** 2).sum(axis=1)
    assert history["loss"][0] == pytest.approx((weights * errors).sum() / weights.sum(), rel=1e-5)
    assert history["rows"] == [30]
    assert history["mae"][0] == pytest.approx(np.abs(model.predict(A) - TARGETS).mean(), rel=1e-5)


@EACH_WAY
@pytest.mark.parametrize("without", [[0], [1], [3], [0, 1, 3], [0, 1, 2]])
def test_a_batch_whose_weights_are_all_0_is_no_step(how, without):
    weights, nan = np.ones(30), A.copy()
    for batch in without:
        weights[8 * batch : 8 * batch + 8] = 0
    counts = weights > 0
    nan[~counts] = np.nan  # what would end the training
    options = {"loss": SquaredError(), "epochs": 4, "metrics": ["mse"]}
    model, other = classifier(2, 3), classifier(2, 3)
    optimizers = [cl.Adam(m.parameters(), lr=0.01) for m in (model, other)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "A", nan)
        given = given_as(how, weights)
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


class Epochs:
    """An iterable that is no DataGenerator, of the batches of one."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        yield from self.data


def test_weights_are_in_validation_data_and_evaluate_and_are_split_with_their_rows():
    model, loss, weights = classifier(2, 3), SquaredError(), RNG.uniform(size=30)
    errors = ((model.predict(A) - TARGETS) ** 2).sum(axis=1)
    expected = pytest.approx((weights * errors).sum() / weights.sum(), rel=1e-5)
    generator = cl.DataGenerator(A, TARGETS, sample_weight=weights, batch_size=7)
    assert model.evaluate(A, TARGETS, loss=loss, sample_weight=weights, batch_size=7)["loss"] == expected
    assert model.evaluate(generator, loss=loss)["loss"] == expected
    assert model.evaluate(list(generator), loss=loss)["loss"] == expected
    for data in ((A, TARGETS, weights), generator):
        assert train(model, A, TARGETS, loss=loss, lr=0, validation_data=data)["val_loss"] == [expected]
    history = train(model, A, TARGETS, loss=loss, lr=0, sample_weight=weights, validation_split=0.4)
    trained, held_out = history["loss"][0], history["val_loss"][0]
    assert trained != held_out
    split = np.random.default_rng(5).permutation(30)[:12]
    history = train(model, A, TARGETS, loss=loss, lr=0, sample_weight=weights, validation_split=0.4, seed=5)
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


def test_weights_beside_data_that_bring_their_own_or_for_a_loss_that_takes_none_raise():
    model, ones = classifier(2, 3), np.ones(30)
    before = bits(model)
    for x in (cl.DataGenerator(A, TARGETS), [(A, TARGETS)]):
        with pytest.raises(ValueError, match="sample_weight"):
            train(model, x, loss=SquaredError(), sample_weight=ones)
    for given in given_as("arrays", ones), given_as("generator", ones), given_as("batches", ones):
        with pytest.raises(TypeError, match="takes no weights"):
            train(model, loss=Unweighted(), **given)
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

POINTS, ARMS = cl.datasets.spiral(points_per_class=20, seed=0)
UNEVEN = np.r_[0:20, 20:30, 40:45]  # 20, 10 and 5 rows of the classes
OF_CLASS = {0: 2, 2: 3}


def fitted(x, y, dtype=np.float32, **options):
    """A model trained by full batches, and the history."""
    model = classifier(2, 8, 3, dtype=dtype)
    history = train(model, x, y, **{"batch_size": len(x), "epochs": 5, "shuffle": False, **options})
    return model, history


@DTYPES
def test_a_class_weight_of_two_is_each_of_its_rows_twice(dtype):
    times = np.array([2, 1, 3])[ARMS]
    model, history = fitted(POINTS, ARMS, dtype, class_weight=OF_CLASS)
    other, expected = fitted(POINTS.repeat(times, axis=0), ARMS.repeat(times), dtype)
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=rtol)
    np.testing.assert_allclose(model.predict(POINTS), other.predict(POINTS), rtol=rtol, atol=rtol)


@DTYPES
def test_gradients_of_weighted_rows_are_those_of_repeated_ones(dtype):
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
        model, history = fitted(POINTS, ARMS, class_weight=OF_CLASS, sample_weight=given, batch_size=7)
        other, expected = fitted(POINTS, ARMS, sample_weight=weights, batch_size=7)
        assert bits(model) == bits(other)
        assert history == expected


def test_balanced_weights_are_scikit_learns():
    compute = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    x, y = POINTS[UNEVEN], ARMS[UNEVEN]
    weights = compute("balanced", classes=np.arange(3), y=y)
    np.testing.assert_allclose(weights, 35 / (3 * np.array([20, 10, 5])))
    for given in (y, y.astype(np.uint8), y.tolist()):
        assert bits(fitted(x, given, class_weight="balanced")[0]) == bits(fitted(x, y, sample_weight=weights[y])[0])
    explicit = dict(enumerate(weights.tolist()))
    assert bits(fitted(x, y, class_weight=explicit)[0]) == bits(fitted(x, y, class_weight="balanced")[0])


def test_weighted_losses_are_pytorchs():
    torch = pytest.importorskip("torch")
    weights = [2.0, 1.0, 3.0]
    model, history = fitted(POINTS, ARMS, np.float64, class_weight=OF_CLASS, lr=0.0, epochs=1)
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
        model, _ = fitted(POINTS, y, class_weight="balanced", loss=loss)
        other, _ = fitted(POINTS, y, sample_weight=weights, loss=cl.SoftmaxLoss(ignore=-1))
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
    history = fitted(POINTS, ARMS, class_weight=OF_CLASS, validation_data=(POINTS, ARMS), lr=0.0)[1]
    plain = fitted(POINTS, ARMS, validation_data=(POINTS, ARMS), lr=0.0)[1]
    assert history["val_loss"] == plain["val_loss"] == [pytest.approx(plain["loss"][0])] * 5
    assert history["loss"] != plain["loss"]
    split = {"validation_split": 0.3, "seed": 1, "lr": 0.0}
    assert (
        fitted(POINTS, ARMS, class_weight=OF_CLASS, **split)[1]["val_loss"]
        == (fitted(POINTS, ARMS, **split)[1]["val_loss"])
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


# ---- clipping -------------------------------------------------------------------------------------------------------


def test_a_fit_clips_as_a_loop_by_hand_does():
    model, other = classifier(2, 8, 3), classifier(2, 8, 3)
    history = train(model, POINTS, ARMS, lr=0.5, clip_norm=0.1, batch_size=7, shuffle=False, epochs=4)
    optimizer, loss = cl.SGD(other.parameters(), lr=0.5, momentum=0.9), cl.SoftmaxLoss()
    for _ in range(4):
        for i in range(0, 60, 7):
            optimizer.zero_grad()
            loss(other(POINTS[i : i + 7]), ARMS[i : i + 7]).backward()
            if i < 30:
                optimizer.step(clip_norm=0.1)
            else:  # the same in two steps
                optimizer.clip_gradients(0.1)
                optimizer.step()
    assert bits(model) == bits(other)
    assert history.epochs == 4


def test_each_fit_has_its_own_norm():
    """Programs are kept; another norm, or none, is another step."""
    model = classifier(2, 8, 3)
    start, optimizer, loss = model.state_dict(), cl.SGD(model.parameters(), lr=0.5), cl.SoftmaxLoss()

    def after(clip_norm):
        model.load_state_dict(start)
        train(model, POINTS, ARMS, loss=loss, optimizer=optimizer, epochs=2, seed=0, clip_norm=clip_norm)
        return bits(model)

    first = [after(norm) for norm in (None, 0.1, 0.01, 1e9)]
    assert first == [after(norm) for norm in (None, 0.1, 0.01, 1e9)]
    assert first[0] == first[3]
    assert len(set(first)) == 3


def test_the_gradients_of_a_users_optimizer_are_clipped():
    class Plain(cl.Optimizer):
        def step(self):
            for p in self.parameters:
                p.data = p.data - np.float32(self.lr) * p.grad

    model, other = classifier(2, 8, 3), classifier(2, 8, 3)
    options = {"epochs": 3, "seed": 0, "clip_norm": 0.1}
    train(model, POINTS, ARMS, optimizer=Plain(model.parameters(), lr=0.5), **options)
    train(other, POINTS, ARMS, optimizer=cl.SGD(other.parameters(), lr=0.5), **options)
    np.testing.assert_allclose(model.predict(POINTS), other.predict(POINTS), rtol=1e-5, atol=1e-6)


def test_clipping_gives_the_same_bits_for_any_number_of_threads(threads_restored):
    x, y = RNG.normal(size=(64, 1200)).astype(np.float32), RNG.integers(0, 10, size=64)
    seen = set()
    for threads in (1, 2, 3):
        cl.set_num_threads(threads)
        model = classifier(1200, 800, 10)
        train(model, x, y, clip_norm=0.05, seed=0)
        seen.add(bits(model))
    assert len(seen) == 1


# ---- metrics of whole epochs ----------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("batch_size", [7, 60, 100])
def test_a_metric_of_an_epoch_is_that_of_all_its_rows_at_once(dtype, batch_size):
    names = ["precision", "accuracy", "recall", "f1", "auc", "top_k(2)"]
    model, loss = classifier(2, 8, 3, dtype=dtype), cl.SoftmaxLoss()
    model.fit(X, Y, loss=loss, optimizer=cl.Adam(model.parameters(), lr=0.05), epochs=20, verbose=0)
    outputs = model.predict(X)
    expected = {name: metric(outputs, Y) for name, metric in cl.metrics.named(names).items()}
    assert len(set(expected.values())) > 4
    data = [(X[i : i + batch_size], Y[i : i + batch_size]) for i in range(0, 60, batch_size)]
    for given in ({"x": X, "y": Y, "batch_size": batch_size}, {"x": data}):
        history = train(model, lr=0, metrics=names, epochs=3, **given)
        measured = model.evaluate(loss=loss, metrics=names, **given)
        assert list(history) == list(measured) == ["loss", *names]
        for name, value in expected.items():
            assert history[name] == [pytest.approx(value, rel=1e-12)] * 3
            assert measured[name] == pytest.approx(value, rel=1e-12)


def test_metrics_of_an_epoch_change_neither_the_training_nor_what_is_replayed():
    models = [classifier(2, 8, 3) for _ in range(2)]
    histories = [
        train(m, X, Y, epochs=6, seed=0, metrics=given) for m, given in zip(models, (["auc", "f1"], []), strict=True)
    ]
    assert bits(models[0]) == bits(models[1])
    assert histories[0]["loss"] == histories[1]["loss"]
    programs = list(models[0]._own.programs._programs.values())
    assert programs
    assert not any("Python" in str(program) for program in programs)


def test_a_metric_of_an_epoch_is_found_again_by_the_next_fit():
    model, optimizer = classifier(2, 8, 3), None
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, X, Y, optimizer=optimizer, metrics=["f1", "top_k(2)"], loss=LOSS, batch_size=32)
    assert len(model._own.programs._programs) == 2


LOSS = cl.SoftmaxLoss()


def test_batches_whose_memory_is_used_again_are_measured_as_they_were():
    def batches():
        x, y = np.empty((20, 2), np.float32), np.empty(20, np.int64)
        for i in range(0, 60, 20):
            x[:], y[:] = X[i : i + 20], Y[i : i + 20]
            yield x, y

    model = classifier(2, 3)
    measured = model.evaluate(batches(), loss=LOSS, metrics=["f1"])
    assert measured["f1"] == cl.metrics.f1(model.predict(X), Y)


@pytest.mark.parametrize(
    ("metric", "targets"),
    [
        ("accuracy", np.zeros((60, 3), int)),
        ("mse", np.zeros((60, 2))),
        ("r2", np.zeros((60, 3, 1))),
        ("f1", np.zeros((60, 3))),
        ("auc", np.zeros((60, 1))),
    ],
)
def test_a_metric_of_another_shape_raises_before_anything_is_written(metric, targets):
    class Nothing(cl.Function):
        def forward(self, scores, targets):
            self.shape = scores.shape
            return np.zeros((), np.float32)

        def backward(self, dy):
            return np.ones(self.shape, np.float32)

    model = classifier(2, 3)
    before = bits(model)
    for given in ({"x": X, "y": targets}, {"x": [(X, targets)]}):
        with pytest.raises(ValueError, match=rf"{metric}.*\(\d+, 3\)"):
            train(model, loss=Nothing(), metrics=[metric], **given)
    assert bits(model) == before


# ---- faults ---------------------------------------------------------------------------------------------------------


class Checked(SquaredError):
    """A loss that refuses negative targets."""

    def check_targets(self, targets, scores_shape):
        assert scores_shape == np.shape(targets)
        if (np.asarray(targets) < 0).any():
            raise ValueError(f"row {np.nonzero(np.asarray(targets) < 0)[0][0]} is negative")


class Subclass(cl.DataGenerator):
    pass


def test_a_loss_is_asked_about_the_targets_of_each_batch_before_its_step():
    good = np.abs(TARGETS)
    bad = good.copy()
    bad[13] = -1
    for make in (lambda y: Subclass(A, y, batch_size=10, shuffle=False), lambda y: Epochs(cl.DataGenerator(A, y))):
        model, loss = classifier(2, 3), Checked()
        with pytest.raises(ValueError, match=r"row \d+ is negative"):
            train(model, make(bad), loss=loss)
        with pytest.raises(ValueError, match=r"row \d+ is negative"):
            model.evaluate(make(bad), loss=loss)
    model, one_step = classifier(2, 3), classifier(2, 3)
    with pytest.raises(ValueError, match="row 3 is negative"):
        train(model, Subclass(A, bad, batch_size=10, shuffle=False), loss=Checked())
    train(one_step, A[:10], good[:10], loss=Checked(), shuffle=False)
    assert bits(model) == bits(one_step)


@pytest.mark.parametrize("epochs", [10**9, 10**12, 10**30])
@pytest.mark.parametrize("metrics", [[], ["f1"]])
def test_epochs_without_end_need_no_memory_before_they_are_done(epochs, metrics):
    model = classifier(2, 3)
    train(model, X, Y, metrics=metrics)
    for x, y in ((X, Y), ([(X, Y)], None)):
        tracemalloc.start()
        history = train(model, x, y, epochs=epochs, metrics=metrics, callbacks=[lambda epoch, _: epoch == 4])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert history.epochs == 5
        assert peak < 2**20


def test_more_epochs_than_are_added_up_at_once_have_the_history_of_epochs_one_by_one():
    models = [classifier(2, 3) for _ in range(2)]
    options = {"epochs": 2500, "batch_size": 50, "metrics": ["accuracy"], "seed": 0, "lr": 1e-3}
    histories = [
        train(model, X, Y, callbacks=callbacks, **options)
        for model, callbacks in zip(models, ([], [lambda epoch, history: None]), strict=True)
    ]
    assert bits(models[0]) == bits(models[1])
    assert histories[0] == histories[1]
    assert histories[0].epochs == 2500
    numbers = itertools.count()

    def number(outputs, targets):
        return next(numbers)

    assert train(models[0], X, Y, epochs=2500, batch_size=60, metrics=[number])["number"] == list(range(2500))


class Stops:
    """Raises StopIteration wherever it is asked to."""

    def __call__(self, *arguments):
        raise StopIteration("mine")

    __iter__ = __call__


class Stopping(cl.Function):
    def __init__(self, where):
        self.where = where

    def forward(self, x):
        if self.where == "forward":
            raise StopIteration("mine")
        return x

    def backward(self, dy):
        if self.where == "backward":
            raise StopIteration("mine")
        return dy


class StoppingDescent(cl.SGD):
    def step(self):
        raise StopIteration("mine")


def stopping_uses():
    def with_function(where):
        return train(cl.Model([cl.Linear(2, 3), Stopping(where)]), X, Y)

    def in_the_second_epoch():
        calls = itertools.count()

        def metric(outputs, targets):
            if next(calls) == 1:
                raise StopIteration("mine")
            return 0

        train(classifier(2, 3), X, Y, metrics=[metric], epochs=3)

    class Refusing(SquaredError):
        check_targets = Stops()

    def with_optimizer():
        model = classifier(2, 3)
        train(model, X, Y, optimizer=StoppingDescent(model.parameters(), lr=0.1))

    return {
        "metric": lambda: train(classifier(2, 3), X, Y, metrics=[Stops()]),
        "metric, evaluate": lambda: classifier(2, 3).evaluate(X, Y, loss=LOSS, metrics=[Stops()]),
        "metric, batches": lambda: train(classifier(2, 3), [(X, Y)], metrics=[Stops()]),
        "metric, replay": in_the_second_epoch,
        "callback": lambda: train(classifier(2, 3), X, Y, callbacks=[Stops()]),
        "forward": lambda: with_function("forward"),
        "backward": lambda: with_function("backward"),
        "predict": lambda: cl.Model([Stopping("forward")]).predict(X),
        "iterable": lambda: train(classifier(2, 3), Stops()),
        "iterable, evaluate": lambda: classifier(2, 3).evaluate(Stops(), loss=LOSS),
        "check, batches": lambda: train(classifier(2, 3), [(A, TARGETS)], loss=Refusing()),
        "optimizer": with_optimizer,
        "transform": lambda: train(classifier(2, 3), cl.DataGenerator(X, Y, transform=Stops())),
        "transform, evaluate": lambda: classifier(2, 3).evaluate(cl.DataGenerator(X, Y, transform=Stops()), loss=LOSS),
    }


@pytest.mark.parametrize("where", stopping_uses())
def test_a_users_stop_iteration_comes_through_as_it_is(where):
    with pytest.raises(StopIteration, match="mine"):
        stopping_uses()[where]()


@pytest.mark.parametrize("kind", "bhilqBHILQ")
def test_labels_of_every_c_integer_type_are_labels(kind):
    labels, model, other = Y.astype(kind), classifier(2, 3), classifier(2, 3)
    assert labels.dtype.char == kind  # where two types have one size, NumPy keeps the one that was asked for
    options = {"epochs": 3, "metrics": ["accuracy"], "batch_size": 25, "shuffle": False}
    expected = train(other, X, Y, **options)
    assert train(model, X, labels, **options) == expected
    assert bits(model) == bits(other)
    batches = [(X[i : i + 25], labels[i : i + 25]) for i in range(0, 60, 25)]
    assert train(classifier(2, 3), batches, epochs=3, metrics=["accuracy"]) == expected
    measured = model.evaluate(X, labels, loss=LOSS, metrics=["accuracy"])
    assert measured == other.evaluate(X, Y, loss=LOSS, metrics=["accuracy"])
    step = cl.capture(lambda x, y: cl.SoftmaxLoss()(model(x), y), X, labels)
    assert step(X, labels) == cl.SoftmaxLoss()(model(X), Y).data
    assert cl.SoftmaxLoss()(model(X), labels).data == cl.SoftmaxLoss()(model(X), Y).data


# ---- losses that know what counts -----------------------------------------------------------------------------------


def test_the_historys_loss_is_without_the_penalty_and_of_the_labels_that_count():
    model = classifier(2, 3)
    labels = np.where(np.arange(60) % 7 == 0, -1, Y)
    parts = [slice(0, 25), slice(25, 50), slice(50, 60)]
    plain = cl.SoftmaxLoss(ignore=-1)
    penalized = cl.Penalized(plain, model.parameters(), l1=0.3, l2=0.7)
    options = {"epochs": 2, "batch_size": 25, "lr": 0.0, "shuffle": False}
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
        assert train(model, batches, loss=loss, epochs=2, lr=0.0)["loss"] == pytest.approx(
            [total / count] * 2, rel=1e-6
        )


def test_the_penalty_is_trained_on():
    model, w = cl.Model([cl.Linear(2, 3)], seed=0), np.linspace(0.5, 2, 60).astype(np.float32)
    loss = cl.Penalized(cl.SoftmaxLoss(), model.parameters(), l2=100.0)
    before = np.abs(model.parameters()[0].data).sum()
    history = train(model, X, Y, loss=loss, lr=0.005, epochs=3, sample_weight=w)
    assert np.abs(model.parameters()[0].data).sum() < before / 2
    assert history["loss"][0] < 3


# ---- transforms of batches ------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("options", [{}, {"sample_weight": np.arange(60) % 3}, {"drop_last": True, "shuffle": False}])
def test_a_transform_that_changes_nothing_changes_no_bit_of_the_training(options, dtype):
    """With a short last batch, weights, batches without weight, several epochs, metrics and validation."""

    def trained(**transform):
        model = classifier(2, 16, 3, dtype=dtype)
        data = cl.DataGenerator(X, Y, batch_size=25, seed=4, **options, **transform)
        measures = ["accuracy", "f1"]
        history = train(model, data, epochs=4, metrics=measures, validation_data=data)
        return bits(model), dict(history), model.evaluate(data, loss=LOSS, metrics=measures)

    (weights, history, measured), (expected, other, same) = trained(transform=lambda x, y: (x, y)), trained()
    assert weights == expected
    assert history == other
    assert measured == same


def test_training_sees_what_the_transform_makes_of_batches_and_the_caller_keeps_theirs():
    x, y = X.copy(), Y.copy()
    doubled = train(classifier(2, 3), cl.DataGenerator(2 * X, 2 - Y, batch_size=25, seed=4), epochs=3)

    def transform(x, y):
        x *= 2
        return x, 2 - y

    data = cl.DataGenerator(x, y, batch_size=25, seed=4, transform=transform)
    assert train(classifier(2, 3), data, epochs=3) == doubled
    assert (x == X).all()
    assert (y == Y).all()


def test_a_transform_may_change_shapes_and_dtypes_and_targets_from_labels_to_probabilities():
    data = cl.DataGenerator(
        X, Y, batch_size=25, transform=lambda x, y: (np.hstack([x, x]).astype(np.int8), np.eye(3, dtype=">f8")[y])
    )
    assert train(classifier(4, 3), data, epochs=2).epochs == 2


def test_a_transforms_exception_comes_through_and_training_can_go_on():
    calls = itertools.count()

    def transform(x, y):
        if next(calls) == 4:
            raise LookupError("mine")
        return x, y

    model, other = classifier(2, 3), classifier(2, 3)
    with pytest.raises(LookupError, match="mine"):
        train(model, cl.DataGenerator(X, Y, batch_size=25, seed=4, transform=transform), epochs=3)
    data = cl.DataGenerator(X, Y, batch_size=25, seed=4)
    train(other, [batch for _ in range(2) for batch in data][:4])
    assert bits(model) == bits(other)
    train(model, X, Y)


def test_labels_that_a_transform_spoils_are_named_before_anything_is_written():
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(ValueError, match="row 0"):
        train(model, cl.DataGenerator(X, Y, shuffle=False, transform=lambda x, y: (x, y + 3)))
    assert bits(model) == before


@pytest.mark.parametrize("metrics", [[], ["accuracy", "f1"]], ids=str)
@pytest.mark.parametrize("shuffled", [False, True])
def test_validation_after_each_epoch_is_what_evaluate_gives_then(shuffled, metrics):
    def rows():  # a generator's are in other batches each time, so that their sums are rounded otherwise
        return (cl.DataGenerator(X, Y, batch_size=7, seed=3), None) if shuffled else (X, Y)

    def evaluate(epoch, history):
        found.append(model.evaluate(x, y, loss=loss, metrics=metrics))

    model, loss, found, (x, y), validation = classifier(2, 5, 3), cl.SoftmaxLoss(), [], rows(), rows()
    options = {"validation_data": validation[0] if shuffled else validation, "callbacks": [evaluate]}
    history = train(model, X, Y, loss=loss, epochs=4, metrics=metrics, **options)
    for name in ("loss", *metrics):
        assert history[f"val_{name}"] == [values[name] for values in found]


# ---- batches of many shapes ----


def texts(lengths, epochs=3):
    """A net that takes texts, and batches of these lengths in turn."""
    rng = np.random.default_rng(0)
    model = cl.Model([cl.Embedding(20, 4), cl.GRU(4, 8), cl.Linear(8, 2)], seed=0)
    batches = [(rng.integers(0, 20, (8, length)), rng.integers(0, 2, 8)) for length in lengths]
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(batches, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, verbose=0)
    return model


@pytest.fixture
def recorded(monkeypatch):
    calls, record = [], cl.Program.record
    monkeypatch.setattr(cl.Program, "record", lambda *given: calls.append(given) or record(*given))
    return calls


def test_batches_of_forty_lengths_in_turn_are_recorded_once_each(recorded):
    texts(range(1, 41))
    assert len(recorded) == 40


def test_steps_beyond_the_budget_of_memory_run_in_python_with_the_same_bits(recorded, monkeypatch):
    expected = bits(texts(range(1, 11)))
    recorded.clear()
    monkeypatch.setattr(kept, "BUDGET", 0)
    model = texts(range(1, 11))
    assert bits(model) == expected
    assert len(recorded) == kept.LEAST


def test_a_program_that_was_not_asked_for_in_a_long_while_makes_room(recorded, monkeypatch):
    monkeypatch.setattr(kept, "BUDGET", 0)
    monkeypatch.setattr(kept, "STALE", 5)
    model = texts(range(1, 7))
    recorded.clear()
    for rows in (1, 2, 3, *range(2, 20), 3, 3):
        model.predict(np.zeros((rows, 5), int))
    assert recorded
    assert len(model._own.programs._programs) <= kept.LEAST + kept.OF_PREDICT[0]


class Called(cl.Model):
    """A model that writes `call`: its rows may depend on each other."""

    def __init__(self):
        super().__init__(seed=0)
        self.linear = cl.Linear(2, 3)

    def call(self, x):
        return self.linear(x)


def test_predict_of_ever_other_numbers_of_rows_records_few_of_them(recorded):
    model, x = Called(), np.random.default_rng(0).normal(size=(100, 2))
    for rows in range(1, 101):
        np.testing.assert_array_equal(model.predict(x[:rows]), model(x[:rows].astype(np.float32)).data)
    assert len(recorded) == 16


@pytest.mark.parametrize(
    "batches",
    [lambda g: g, cl.Prefetch, lambda g: [(X, Y)]],
    ids=["DataGenerator", "Prefetch", "list"],
)
def test_batches_refuse_a_batch_size_and_a_shuffle_that_are_not_theirs(batches):
    model = classifier(2, 3)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    given = batches(cl.DataGenerator(X, Y, batch_size=10, seed=0))
    before = bits(model)
    with pytest.raises(ValueError, match=r"batch_size=5 needs x and y as arrays.* leave out batch_size"):
        model.fit(given, loss=cl.SoftmaxLoss(), optimizer=optimizer, batch_size=5, verbose=0)
    with pytest.raises(ValueError, match=r"shuffle=False needs x and y as arrays.* leave out shuffle"):
        model.fit(given, loss=cl.SoftmaxLoss(), optimizer=optimizer, shuffle=False, verbose=0)
    with pytest.raises(ValueError, match=r"batch_size=5 needs x and y as arrays.* leave out batch_size"):
        model.evaluate(given, loss=cl.SoftmaxLoss(), batch_size=5)
    assert bits(model) == before


def test_a_generators_own_batch_size_may_be_given_again():
    model, given = classifier(2, 3), cl.DataGenerator(X, Y, batch_size=10, seed=0)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(given, loss=cl.SoftmaxLoss(), optimizer=optimizer, batch_size=10, shuffle=True, verbose=0)
    assert model.evaluate(given, loss=cl.SoftmaxLoss(), batch_size=10)["loss"] > 0
