"""Labels, rows and options that cannot be used raise before anything is written."""

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.reference import LAYOUTS, WIDE, plain_copy
from tests.training.numpy_parts import DTYPES, SquaredError, X, Y

BAD_LABELS = {
    "negative": (np.where(np.arange(60) >= 7, -1, Y), ValueError, r"-1 .*row 7\b.*0 … 2"),
    "the number of classes": (np.where(np.arange(60) == 50, 3, Y), ValueError, r"3 .*row 50\b.*0 … 2"),
    "large": (np.where(np.arange(60) == 0, 2**40, Y), ValueError, r"row 0\b.*0 … 2"),
    "beyond int64": (np.where(np.arange(60) == 9, 2**64 - 1, Y.astype(np.uint64)), ValueError, r"row 9\b.*0 … 2"),
    "just beyond int64": (np.where(np.arange(60) == 9, 2**63, Y.astype(np.uint64)), ValueError, r"row 9\b.*0 … 2"),
    "beyond uint64": ([*Y.tolist()[:-1], 2**70], TypeError, r"0 … 2"),
    "int8, negative": (np.where(np.arange(60) == 3, -128, Y).astype(np.int8), ValueError, r"-128 .*row 3\b.*0 … 2"),
    "float": (Y.astype(float), TypeError, r"0 … 2.*float64"),
    "half": (Y.astype(np.float16), TypeError, r"0 … 2.*float16"),
    "NaN": (np.where(Y == 1, np.nan, Y), TypeError, r"0 … 2.*float64"),
    "bool": (Y == 1, TypeError, r"0 … 2.*bool"),
    "complex": (Y.astype(complex), TypeError, r"0 … 2.*complex"),
    "string": (Y.astype(str), TypeError, r"0 … 2"),
    "object": (Y.astype(object), TypeError, r"0 … 2.*object"),
    "None": ([*Y.tolist()[:-1], None], TypeError, r"0 … 2.*object"),
    "time": (Y.astype("M8[s]"), TypeError, r"0 … 2"),
    "2-d": (Y[:, None], ValueError, r"\(60, 1\)"),
    "one-hot": (np.eye(3, dtype=int)[Y], ValueError, r"\(60, 3\)"),
    "too short": (Y[:-1], ValueError, r"60.*59|59.*60"),
    "too long": (np.append(Y, 0), ValueError, r"60.*61|61.*60"),
    "empty": (Y[:0], ValueError, r"60.*\(0,\)|\(0,\).*60"),
    "0-d": (np.int64(1), ValueError, r"60"),
}


@pytest.mark.parametrize("kind", BAD_LABELS)
@pytest.mark.parametrize("where", ["fit", "generator", "validation", "evaluate", "forward"])
def test_bad_labels_raise_before_anything_is_written(kind, where):
    labels, error, message = BAD_LABELS[kind]
    model, loss = classifier(2, 16, 3), cl.SoftmaxLoss()
    before = bits(model)
    calls = {
        "fit": lambda: train(model, X, labels, batch_size=16),
        "generator": lambda: train(model, cl.DataGenerator(X, labels, batch_size=16)),
        "validation": lambda: train(model, X, Y, validation_data=(X, labels)),
        "evaluate": lambda: model.evaluate(X, labels, loss=loss, batch_size=16),
        "forward": lambda: loss.forward(model.forward(X), labels),
    }
    with pytest.raises(error, match=None if where == "generator" else message):
        calls[where]()
    assert bits(model) == before
    assert all(p.grad is None for p in model.parameters())


def test_with_a_validation_split_the_first_bad_row_is_numbered_as_by_the_caller():
    labels = np.where(np.arange(60) >= 41, 9, Y)
    with pytest.raises(ValueError, match=r"row 41\b"):
        train(classifier(2, 3), X, labels, validation_split=0.4, seed=0)


def test_backward_after_a_forward_that_failed_raises_runtime_error():
    loss = cl.SoftmaxLoss()
    loss.forward(np.zeros((60, 3), np.float32), Y)
    with pytest.raises(ValueError, match="row 0"):
        loss.forward(np.zeros((60, 3), np.float32), Y + 3)
    with pytest.raises(RuntimeError):
        loss.backward()


def test_labels_that_change_after_forward_do_not_reach_backward():
    loss, labels = cl.SoftmaxLoss(), Y.copy()
    loss.forward(np.zeros((60, 3), np.float32), labels)
    expected = loss.backward()
    labels[...] = 0
    assert (loss.backward() == expected).all()


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (X[:, :1], ValueError),
        (np.ones((60, 3)), ValueError),
        (np.ones((60, 2, 2)), ValueError),
        (np.ones(60), ValueError),
        (np.ones(()), ValueError),
        (X[:0], ValueError),
        ([], ValueError),
        (np.ones((60, 0)), ValueError),
        (X[:59], ValueError),
        (np.concatenate([X, X]), ValueError),
        (X.astype(complex), TypeError),
        (X.astype(str), TypeError),
        (X.astype(object), TypeError),
        (X.astype(WIDE), TypeError),
        (X.astype("M8[s]"), TypeError),
        (np.zeros(60, "f4,f4"), TypeError),
        ([None] * 60, TypeError),
        ([[1.0, 2.0], [3.0]] * 30, ValueError),
    ],
)
def test_bad_rows_raise_before_anything_is_written(x, error):
    model = classifier(2, 16, 3)
    before = bits(model)
    for call in (
        lambda: train(model, x, Y),
        lambda: train(model, X, Y, validation_data=(x, Y)),
        lambda: model.evaluate(x, Y, loss=cl.SoftmaxLoss()),
    ):
        with pytest.raises(error):
            call()
    assert bits(model) == before


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (X[:, :1], ValueError),
        (np.ones((60, 2, 3)), ValueError),
        (np.ones(2), ValueError),
        (1.0, ValueError),
        (X[:0], ValueError),
        ([], ValueError),
        (X.astype(complex), TypeError),
        (X.astype(WIDE), TypeError),
        (X.astype(str), TypeError),
        (X.astype(object), TypeError),
        (None, TypeError),
    ],
)
def test_predict_raises_for_bad_rows(x, error):
    with pytest.raises(error):
        classifier(2, 16, 3).predict(x)


def test_wrong_shapes_are_named_both():
    model = classifier(64, 10)
    for call in (
        lambda: model.predict(np.ones((32, 100))),
        lambda: train(model, np.ones((32, 100)), np.zeros(32, int)),
        lambda: model.forward(np.ones((32, 100), np.float32)),
        lambda: model(np.ones((32, 100), np.float32)),
    ):
        with pytest.raises(ValueError, match=r"64.*100|100.*64"):
            call()


def test_epochs_and_the_batch_size_of_predict_are_never_none():
    with pytest.raises(TypeError, match="epochs must be an integer"):
        train(classifier(2, 3), X, Y, epochs=None)
    with pytest.raises(TypeError, match="batch_size must be an integer"):
        classifier(2, 3).predict(X, batch_size=None)


@pytest.mark.parametrize("name", ["epochs", "batch_size"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-1, ValueError), (1.0, TypeError), ("3", TypeError), (True, TypeError)],
)
def test_epochs_and_batch_size_raise_unless_they_are_a_positive_integer(name, value, error):
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(error, match=name):
        train(model, X, Y, **{name: value})
    if name == "batch_size":
        with pytest.raises(error, match=name):
            model.predict(X, batch_size=value)
        with pytest.raises(error, match=name):
            model.evaluate(X, Y, loss=cl.SoftmaxLoss(), batch_size=value)
    assert bits(model) == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"loss": "softmax"}, TypeError),
        ({"loss": cl.SoftmaxLoss}, TypeError),
        ({"optimizer": "sgd"}, TypeError),
        ({"optimizer": cl.SGD}, TypeError),
        ({"callbacks": [3]}, TypeError),
        ({"verbose": 3}, ValueError),
        ({"verbose": "loud"}, ValueError),
    ],
)
def test_other_bad_options_raise_before_the_first_step(options, error):
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(error, match=next(iter(options))):
        train(model, X, Y, **options)
    assert bits(model) == before


def test_a_loss_of_several_elements_raises_and_writes_nothing():
    class Elementwise(SquaredError):
        def forward(self, outputs, targets):
            return (outputs - targets) ** 2

    model = classifier(2, 1)
    before = bits(model)
    with pytest.raises(ValueError, match="single element"):
        train(model, X, np.ones((60, 1)), loss=Elementwise())
    assert bits(model) == before


def test_a_model_without_functions_raises_value_error():
    p = cl.Tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match="no Functions"):
        train(cl.Model(), X, Y, optimizer=cl.SGD([p], lr=0.1))
    with pytest.raises(ValueError, match="no Functions"):
        cl.Model().predict(X)


@DTYPES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_data_in_any_layout_give_the_bits_of_their_plain_copy_and_are_not_written(layout, dtype):
    odd_x, odd_y = layout(X.astype(dtype)), layout(Y)
    x, y = plain_copy(odd_x), plain_copy(odd_y)
    before = odd_x.tobytes(), odd_y.tobytes()
    model, other = classifier(2, 16, 3, dtype=dtype), classifier(2, 16, 3, dtype=dtype)
    assert train(model, x, y, validation_data=(x, y)) == train(other, odd_x, odd_y, validation_data=(odd_x, odd_y))
    train(model, x, y, validation_split=0.5)
    train(other, odd_x, odd_y, validation_split=0.5)
    train(model, [(x, y)])
    train(other, [(odd_x, odd_y)])
    assert bits(model) == bits(other)
    assert model.predict(x).tobytes() == other.predict(odd_x).tobytes()
    assert model.evaluate(x, y, loss=cl.SoftmaxLoss()) == other.evaluate(odd_x, odd_y, loss=cl.SoftmaxLoss())
    assert (odd_x.tobytes(), odd_y.tobytes()) == before


def test_masked_rows_and_labels_raise():
    mask = np.zeros(len(Y), bool)
    mask[3] = True
    for x, y in ((np.ma.masked_array(X, np.stack([mask, mask], axis=1)), Y), (X, np.ma.masked_array(Y, mask))):
        with pytest.raises(ValueError, match="masked elements"):
            train(classifier(2, 3), x, y)
