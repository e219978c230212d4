"""What users of Keras and of scikit-learn type out of habit: it works, or the error says what to do instead."""

import copy
import functools
import inspect
import pickle
import re

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(60, 2)).astype(np.float32), rng.integers(0, 3, 60)
ONE_HOT = np.eye(3)[Y]


def spoilt(x, value=np.nan):
    """Float data with a value in one row that does not belong there."""
    x = x.astype(np.float64)
    x[7] = value
    return x


# ---- layers from one model in another ---------------------------------------------------------------------------


def trained_net():
    model = classifier(2, 16, 3, seed=1)
    train(model, X, Y)
    return model


def loaded_net(path):
    trained_net().save(path)
    return cl.load(path)


def set_by_hand():
    model = cl.Model([cl.Linear(2, 16), cl.ReLU(), cl.Linear(16, 3)])
    for p in model.parameters():
        p.data = np.full(p.shape, 0.5)
    return model


def with_state():
    model = classifier(2, 16, 3, seed=2)
    model.load_state_dict(trained_net().state_dict())
    return model


SOURCES = {
    "trained": lambda path: trained_net(),
    "loaded": loaded_net,
    "weights loaded": lambda path: classifier(2, 16, 3).load(loaded_net(path) and path),
    "state dict": lambda path: with_state(),
    "set by hand": lambda path: set_by_hand(),
    "unpickled": lambda path: pickle.loads(pickle.dumps(trained_net())),
    "copied": lambda path: copy.deepcopy(trained_net()),
}


@pytest.mark.parametrize("source", SOURCES)
def test_trained_loaded_and_set_layers_keep_their_values_in_a_seeded_model(source, tmp_path):
    old = SOURCES[source](tmp_path / "net.safetensors")
    before = bits(old.functions[0])
    new = cl.Model([*old.functions[:-1], cl.Linear(16, 2)], seed=0)
    assert bits(new.functions[0]) == before
    assert bits(cl.Model([old, cl.ReLU(), cl.Linear(3, 2)], seed=0).functions[0]) == bits(old)
    assert bits(new.functions[-1]) == bits(cl.Model([cl.Linear(16, 2)], seed=0))  # new layers are drawn from the seed


def test_a_trained_layer_keeps_its_values_in_the_attribute_of_a_users_model():
    class Head(cl.Model):
        def __init__(self, body):
            super().__init__(seed=0)
            self.body, self.head = body, cl.Linear(3, 2)

        def call(self, x):
            return self.head(self.body(x))

    body = trained_net()
    before = bits(body)
    assert bits(Head(body).body) == before


def test_layers_that_were_only_drawn_are_drawn_from_the_models_seed():
    layer = cl.Linear(2, 3)
    layer.initialize(5)
    model = cl.Model([cl.Model([layer], seed=9)], seed=0)
    assert bits(model) == bits(cl.Model([cl.Linear(2, 3)], seed=0))


def test_a_users_initialize_is_a_draw_and_not_a_value_set_by_hand():
    class Scale(cl.Function):
        def __init__(self):
            self.scale = cl.Tensor(np.ones(2), requires_grad=True)
            self.initialize(None)

        def parameters(self):
            return [self.scale]

        def initialize(self, rng):
            self.scale.data = np.random.default_rng(rng).normal(size=2)

        def forward(self, x):
            return x * self.scale.data

        def backward(self, dy):
            return dy * self.scale.data

    assert bits(cl.Model([Scale()], seed=0)) == bits(cl.Model([Scale()], seed=0))


def test_initialize_draws_what_was_trained_again():
    model, fresh = trained_net(), classifier(2, 16, 3, seed=7)
    model.initialize(7)
    assert bits(model) == bits(fresh)


def test_part_of_a_state_dict_goes_into_another_model():
    body, new = trained_net(), classifier(2, 16, 2)
    of_body = {name: x for name, x in body.state_dict().items() if name.startswith("0.")}
    new.load_state_dict(new.state_dict() | of_body)
    assert bits(new.functions[0]) == bits(body.functions[0])


# ---- frozen layers ----------------------------------------------------------------------------------------------


def test_a_frozen_function_is_left_as_it_is_until_it_is_thawed():
    model = classifier(2, 16, 3)
    optimizer = cl.AdamW(model.parameters(), weight_decay=0.1)
    train(model, X, Y, optimizer=optimizer)  # is recorded
    first, last = model.functions[0], model.functions[-1]
    first.requires_grad = False
    assert [f.requires_grad for f in (first, last, model, cl.ReLU())] == [False, True, True, False]
    before = bits(first), bits(last)
    train(model, X, Y, optimizer=optimizer)
    assert bits(first) == before[0]
    assert bits(last) != before[1]
    first.requires_grad = True
    train(model, X, Y, optimizer=optimizer)
    assert bits(first) != before[0]


def test_a_frozen_model_is_frozen_with_all_that_is_in_it():
    inner = classifier(2, 8)
    outer = cl.Model([inner, cl.ReLU(), cl.Linear(8, 3)], seed=0)
    inner.requires_grad = False
    before = bits(inner)
    train(outer, X, Y, optimizer=cl.Adam(outer.functions[-1].parameters()))
    assert bits(inner) == before


# ---- what is warned of ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "loss", "y"),
    [
        (cl.Softmax(), cl.SoftmaxLoss(), Y),
        (cl.Model([cl.Softmax()]), cl.Penalized(cl.SoftmaxLoss(), [cl.Tensor([1.0])], l1=1.0), Y),
        (cl.Sigmoid(), cl.SigmoidLoss(), ONE_HOT),
    ],
)
def test_probabilities_given_to_a_loss_of_scores_warn(last, loss, y):
    model = cl.Model([cl.Linear(2, 3), last], seed=0)
    with pytest.warns(UserWarning, match=r"takes scores: leave out S\w+\(\) at the end; loss.link gives"):
        train(model, X, y, loss=loss)


@pytest.mark.parametrize(
    ("end", "loss", "y"),
    [
        ("softmax", cl.SoftmaxLoss(), Y),
        ("sigmoid", cl.Penalized(cl.SigmoidLoss(), [cl.Tensor([1.0])], l1=1.0), ONE_HOT),
    ],
)
def test_probabilities_that_a_call_returns_are_warned_of_in_the_first_training_only(end, loss, y):
    class Ending(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.linear = cl.Linear(2, 3)

        def call(self, x):
            return getattr(self.linear(x), end)()

    model = Ending()
    with pytest.warns(cl.TrainingWarning, match=r"takes scores: leave out S\w+\(\) at the end"):
        train(model, X, y, loss=loss)
    train(model, X, y, loss=loss)
    model.evaluate(X, y, loss=loss)


def test_probabilities_given_to_a_loss_of_values_are_not():
    history = train(cl.Model([cl.Linear(2, 3), cl.Softmax()]), X, ONE_HOT, loss=cl.MSELoss(), epochs=2)
    assert history.epochs == 2


# ---- what help and print show -----------------------------------------------------------------------------------


def test_help_shows_what_a_model_is_made_with():
    class UserModel(cl.Model):
        def __init__(self, size, seed=None):
            super().__init__(seed=seed)

    assert list(inspect.signature(cl.Model).parameters) == ["functions", "seed", "dtype"]
    assert list(inspect.signature(UserModel).parameters) == ["size", "seed"]


def test_an_optimizer_shows_its_numbers():
    first, second = classifier(2, 16, 3).functions[::2]
    assert repr(cl.RMSProp(first.parameters(), lr=0.5)) == (
        "RMSProp(2 parameters, lr=0.5, alpha=0.99, eps=1e-08, momentum=0, weight_decay=0)"
    )
    groups = [{"parameters": first.parameters(), "lr": 0.5}, {"parameters": second.parameters()}]
    assert repr(cl.SGD(groups, lr=0.1)) == (
        "SGD(Group(2 parameters, lr=0.5, momentum=0, weight_decay=0, nesterov=0), "
        "Group(2 parameters, lr=0.1, momentum=0, weight_decay=0, nesterov=0))"
    )


# ---- errors that say what to do ---------------------------------------------------------------------------------


class Torch(cl.Model):
    def __init__(self):
        super().__init__()
        self.linear = cl.Linear(2, 3)

    def forward(self, x):
        return self.linear(x)


class IndexedData:
    def __len__(self):
        return 1

    def __getitem__(self, i):
        return X, Y


def keras_loss(y_true, y_pred):
    raise AssertionError


NAMED_METRIC = cl.metrics.metric(functools.partial(keras_loss), name="f")


def frozen_net():
    model = classifier(2, 3)
    model.requires_grad = False
    return model


def batches():
    yield X, Y


def fit(x=X, y=Y, sizes=(2, 16, 3), **options):
    train(classifier(*sizes), x, y, **options)


ERRORS = {
    "a layer's class": (lambda: cl.Model([cl.ReLU]), TypeError, "ReLU(…) makes one"),
    "a function of Tensors": (lambda: cl.Model([cl.relu]), TypeError, "are for a Model that writes `call`"),
    "forward for call": (lambda: train(Torch(), X, Y), ValueError, "Torch has no Functions: add some, or write a"),
    "one row": (
        lambda: classifier(2, 3).predict(X[0]),
        ValueError,
        "expected (n, …, 2); for a single example give x[None]",
    ),
    "one feature": (lambda: classifier(1, 3).predict(X[:, 0]), ValueError, "x[:, None] has rows of one number"),
    "summary of a number": (lambda: classifier(2, 3).summary(2), TypeError, "a row, such as (64,), got 2"),
    "labels in a column": (lambda: fit(y=Y[:, None]), ValueError, "one label a row, (n,), not a column: np.ravel(y)"),
    "float labels in a column": (lambda: fit(y=Y[:, None] * 1.0), ValueError, "(n,): np.ravel(y).astype(int)"),
    "labels from 1": (lambda: fit(y=Y + 1), ValueError, "not one of the classes 0 … 2; do they begin at 1? y - 1"),
    "too few outputs": (
        lambda: fit(sizes=(2, 2)),
        ValueError,
        "up to 2, the model needs 3 outputs, and it has 2",
    ),
    "one output": (lambda: fit(sizes=(2, 1)), ValueError, "labels up to 2, the model needs 3 outputs, and it has 1"),
    "ignored labels": (
        lambda: fit(y=Y * 2 - 1, sizes=(2, 2), loss=cl.SoftmaxLoss(ignore=-1)),
        ValueError,
        "labels up to 3, the model needs 4 outputs, and it has 2",
    ),
    "one-hot integers": (lambda: fit(y=ONE_HOT.astype(int)), ValueError, "not one-hot rows: y.argmax(axis=-1)"),
    "class_weight of one-hot": (lambda: fit(y=ONE_HOT, class_weight={1: 2.0}), TypeError, "y.argmax(axis=1)"),
    "words": (lambda: fit(y=[["a", "b"][i % 2] for i in Y]), TypeError, "np.unique(y, return_inverse=True) numbers"),
    "float labels": (lambda: fit(y=Y.astype(float)), TypeError, " in row 0; y.astype(int) makes integers of them"),
    "bool labels": (lambda: fit(y=Y > 1), TypeError, "y.astype(int) makes integers of them"),
    "one-hot bools": (
        lambda: fit(y=np.eye(3, dtype=bool)[Y]),
        TypeError,
        "y.argmax(axis=-1) makes labels from one-hot",
    ),
    "a column of weights": (
        lambda: fit(sample_weight=np.ones((60, 1))),
        ValueError,
        "60 rows, (60,), got shape (60, 1)",
    ),
    "objects": (lambda: fit(X.astype(object)), TypeError, "; np.array(…, np.float32) makes an array from them"),
    "missing objects": (lambda: fit([*X.tolist(), [1, None]]), TypeError, "None at [60, 1]"),
    "ragged rows": (lambda: fit([[1, 2], [3]], [0, 1]), ValueError, "x is not an array: "),
    "two targets": (lambda: fit(X, (Y, X)), ValueError, "give a loss for each output, loss=(l1, l2)"),
    "no y": (lambda: fit(y=None), ValueError, "an iterable of (x, y) batches, got an array of shape (60, 2)"),
    "no y, a list": (lambda: fit(np.ones((5, 4)).tolist(), None), TypeError, "without y, x must give batches"),
    "a generator not called": (lambda: fit(batches, None), ValueError, "got a function"),
    "an iterator": (
        lambda: fit(batches(), None, epochs=2),
        ValueError,
        "whose __iter__ returns a new iterator: these give their batches in every epoch",
    ),
    "pairs": (lambda: fit(zip(X, Y, strict=True), None), ValueError, "as many rows in x as in y, got one with x of"),
    "a PyDataset": (lambda: fit(IndexedData(), None), ValueError, "give it __iter__, such as (self[i] for i in range"),
    "a loss of Keras": (
        lambda: fit(loss=keras_loss),
        TypeError,
        "lambda outputs, targets: keras_loss(targets, ou",
    ),
    "a loss of Keras for an output": (lambda: fit(loss=(keras_loss,)), TypeError, "loss: keras_loss(y_true, y_pred)"),
    "a metric of scikit-learn": (lambda: fit(metrics=[keras_loss]), TypeError, "metrics: keras_loss(y_true, y_pred)"),
    "a metric with a name": (lambda: fit(metrics=[NAMED_METRIC]), TypeError, "metrics: f(y_true, y_pred)"),
    "a metric of an output": (lambda: fit(metrics=([keras_loss],)), TypeError, "metrics: keras_loss(y_true, y_pred)"),
    "acc": (lambda: fit(metrics=["acc"]), ValueError, "got 'acc'; did you mean 'accuracy'?"),
    "AUC": (lambda: fit(metrics=["AUC"]), ValueError, "got 'AUC'; did you mean 'auc'?"),
    "an unknown metric": (lambda: fit(metrics=["hinge"]), ValueError, "got 'hinge'; pass a callable for any other"),
    "a model for its parameters": (lambda: cl.Adam(classifier(2, 3)), TypeError, "such as model.parameters(), got Mod"),
    "a frozen model": (lambda: train(frozen_net(), X, Y), ValueError, "nothing to train: all parameters are frozen"),
    "a callback's class": (lambda: fit(callbacks=[cl.callbacks.CSVLog]), TypeError, "a class: give an instance of it"),
    "on_epoch_end": (lambda: fit(callbacks=[object()]), TypeError, "which has no __call__"),
    "val_acc": (
        lambda: fit(validation_split=0.2, callbacks=[cl.callbacks.EarlyStopping("val_acc")]),
        ValueError,
        "there is no 'val_acc' to monitor, only loss, val_loss; give its metric in metrics",
    ),
    "a rate by epoch": (lambda: fit(lr=lambda epoch: 0.1), TypeError, "set `optimizer.lr` in a callback"),
    "a seed below 0": (lambda: cl.Model(seed=-1), ValueError, "seed: expected an integer from 0 on, got -1"),
    "a float seed": (lambda: fit(seed=1.5), TypeError, "seed: expected an integer from 0 on, got 1.5"),
    "a word as seed": (lambda: cl.DataGenerator(X, seed="a"), TypeError, "expected an integer from 0 on, got 'a'"),
    "missing x": (lambda: fit(spoilt(X)), cl.TrainingDiverged, "the loss is nan; x is not finite in 1 of 60 rows"),
    "missing x in batches": (
        lambda: fit([(spoilt(X[:10], np.inf), Y[:10])], None),
        cl.TrainingDiverged,
        "epoch 1, batch 1: the loss is nan; x is not finite in 1 of 10 rows",
    ),
    "missing y": (
        lambda: fit(X, spoilt(X[:, 0]), (2, 1), loss=cl.MSELoss()),
        cl.TrainingDiverged,
        "y is not finite in 1 of 60 rows",
    ),
    "return_sequences": (lambda: cl.GRU(1, 16, return_sequences=True), TypeError, "GRU.__init__() got an unexpected"),
    "not measured": (lambda: cl.History(loss=[])["val_loss"], KeyError, "'val_loss' was not measured, only loss; fit"),
}


@pytest.mark.parametrize("habit", ERRORS)
def test_an_error_says_what_to_do(habit):
    run, kind, message = ERRORS[habit]
    with pytest.raises(kind, match=re.escape(message)):
        run()


def test_sparse_data_raise_with_a_way_out():
    class Sparse:
        def toarray(self):
            return X

    with pytest.raises(TypeError, match=re.escape("; .toarray() makes an array from it")):
        fit(Sparse())


def test_divergence_says_nothing_of_data_that_are_finite():
    with pytest.raises(cl.TrainingDiverged) as error:
        fit(X * 1e30, Y.astype(float), (2, 1), loss=cl.MSELoss(), lr=1e30)
    assert "not finite in" not in str(error.value)


class MaskedNet(cl.Model):
    takes_indices = True

    def __init__(self):
        super().__init__(seed=0)
        self.words, self.attention = cl.Embedding(3, 4), cl.MultiHeadAttention(4, 2)

    def call(self, x):
        return self.attention(self.words(x), x != 0)


def test_a_mask_that_call_makes_with_numpy_is_a_warning_that_says_what_is_faster():
    way_out = "A mask or condition on the inputs is one more input, `call(self, x, mask)`, predict((x, x != 0))"
    model, x = cl.Model([MaskedNet()]), np.zeros((3, 4), int)
    with pytest.warns(cl.NotRecorded, match=re.escape(way_out)):
        y = model.predict(x)
    np.testing.assert_array_equal(y, model(x).data)
