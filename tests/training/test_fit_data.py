"""The data that `fit` takes: arrays, generators and iterables of batches."""

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.numpy_parts import DTYPES, SquaredError, X, Y


def test_arrays_with_a_seed_are_a_generator_with_that_seed():
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    histories = [
        train(model, X, Y, seed=5, epochs=3, batch_size=16),
        train(other, cl.DataGenerator(X, Y, seed=5, batch_size=16), epochs=3),
    ]
    assert bits(model) == bits(other)
    assert histories[0] == histories[1]


@DTYPES
@pytest.mark.parametrize(
    "convert",
    [
        np.ndarray.tolist,
        lambda x: x.astype(np.float64),
        memoryview,
        cl.Tensor,
        lambda x: x.astype(">f4"),
    ],
    ids=["lists", "float64", "memoryview", "Tensor", "big-endian"],
)
def test_anything_numpy_can_read_is_data(dtype, convert):
    model, other = classifier(2, 16, 3, dtype=dtype), classifier(2, 16, 3, dtype=dtype)
    train(model, X, Y)
    train(other, convert(X), Y.tolist())
    assert bits(model) == bits(other)
    assert model.predict(X).tobytes() == other.predict(convert(X)).tobytes()
    assert model.evaluate(X, Y, loss=cl.SoftmaxLoss()) == other.evaluate(convert(X), Y.tolist(), loss=cl.SoftmaxLoss())


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.float16, bool])
def test_numbers_of_other_dtypes_become_the_dtype_of_the_model(kind):
    x = (np.arange(40).reshape(20, 2) % 7).astype(kind)
    model, other = classifier(2, 3), classifier(2, 3)
    train(model, x, Y[:20])
    train(other, x.astype(np.float32), Y[:20])
    assert bits(model) == bits(other)


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8"])
def test_labels_of_any_integer_dtype_give_the_same_bits(kind):
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    train(model, X, Y)
    train(other, X, Y.astype(kind))
    assert bits(model) == bits(other)


@DTYPES
def test_float_targets_become_the_dtype_of_the_model_and_integers_stay(dtype):
    seen = []

    def note(outputs, targets):
        seen.append((outputs.dtype, targets.dtype))
        return 0

    model = cl.Model([cl.Linear(2, 1)], dtype=dtype)
    for kind in (np.float16, np.float32, np.float64, np.int16, np.uint8):
        train(model, X, np.ones((len(X), 1), kind), loss=SquaredError(), metrics=[note], batch_size=len(X))
    assert [outputs for outputs, _ in seen] == [dtype] * 5
    assert [targets for _, targets in seen] == [dtype, dtype, dtype, np.int16, np.uint8]


def make_batches(x, y, size):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


class Batches:
    """An iterable of unknown length that can be read again."""

    def __iter__(self):
        yield from make_batches(X, Y, 25)


@pytest.mark.parametrize(
    "batches", [make_batches(X, Y, 25), tuple(make_batches(X.tolist(), Y.tolist(), 25)), Batches()], ids=type
)
def test_any_iterable_of_batches_is_data(batches):
    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    histories = [train(model, X, Y, shuffle=False, batch_size=25, epochs=2), train(other, batches, epochs=2)]
    assert bits(model) == bits(other)
    assert histories[0] == histories[1]
    assert other.evaluate(batches, loss=cl.SoftmaxLoss())["loss"] == pytest.approx(
        other.evaluate(X, Y, loss=cl.SoftmaxLoss())["loss"], rel=1e-6
    )


def test_an_iterator_that_is_exhausted_in_the_second_epoch_raises_value_error():
    model, once = classifier(2, 16, 3), classifier(2, 16, 3)
    with pytest.raises(ValueError, match="epoch 2"):
        train(model, iter(make_batches(X, Y, 25)), epochs=3)
    train(once, iter(make_batches(X, Y, 25)))
    assert bits(model) == bits(once)


def test_an_iterable_without_any_batch_raises_value_error():
    with pytest.raises(ValueError, match="epoch 1"):
        train(classifier(2, 3), [])
    with pytest.raises(ValueError, match="no batches"):
        classifier(2, 3).evaluate([], loss=cl.SoftmaxLoss())


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (X, TypeError),
        ((X,), TypeError),
        ((X, Y, Y, Y), TypeError),
        ((X, Y[:-1]), ValueError),
        ((X[:0], Y[:0]), ValueError),
        ((X, Y + 1), ValueError),
        ((X, Y.astype(float)), TypeError),
        ((X.astype(complex), Y), TypeError),
        ((X[:, :1], Y), ValueError),
    ],
)
def test_a_bad_batch_raises_before_its_step(batch, error):
    model, one_step = classifier(2, 3), classifier(2, 3)
    with pytest.raises(error):
        train(model, [(X, Y), batch])
    train(one_step, [(X, Y)])
    assert bits(model) == bits(one_step)


@pytest.mark.parametrize(
    ("x", "y"),
    [(X, None), (cl.DataGenerator(X, Y), Y), (cl.DataGenerator(X), None)],
    ids=["none", "two", "none in it"],
)
def test_data_without_targets_or_with_two_raise_value_error(x, y):
    model = classifier(2, 3)
    with pytest.raises(ValueError, match=r"\by\b|targets"):
        train(model, x, y)
    with pytest.raises(ValueError, match=r"\by\b|targets"):
        model.evaluate(x, y, loss=cl.SoftmaxLoss())
