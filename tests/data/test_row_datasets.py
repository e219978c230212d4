"""Datasets of rows, as PyTorch has them: DataGenerator calls them for each row and stacks the results."""

import numpy as np
import pytest

import caffelite as cl
from tests.cases import both_dtypes
from tests.reference import assert_same_bits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4))
Y = (X[:, 0] > 0).astype(int)


class Rows:
    """Rows (x, y), which it counts."""

    def __init__(self, make=lambda i: (X[i], Y[i]), count=50):
        self.make, self.count, self.calls = make, count, []

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        assert type(i) is int
        self.calls.append(i)
        return self.make(i)


class TwoInputs(cl.Model):
    def __init__(self):
        super().__init__(seed=0)
        self.a, self.b = cl.Linear(4, 2), cl.Linear(2, 2)

    def call(self, a, b):
        return self.a(a) + self.b(b)


def train(data, dtype=np.float32, model=None, **options):
    model = model or cl.MLP(4, [8, 2], seed=0, dtype=dtype)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    history = model.fit(data, loss=cl.SoftmaxLoss(), optimizer=optimizer, verbose=0, **{"epochs": 3, **options})
    return model, history


@both_dtypes
def test_a_training_on_a_dataset_is_the_training_on_its_arrays(dtype):
    options = {"batch_size": 16, "seed": 3, "sample_weight": np.arange(1.0, 51)}
    model, history = train(cl.DataGenerator(Rows(), **options), dtype, validation_data=cl.DataGenerator(Rows()))
    other, expected = train(cl.DataGenerator(X, Y, **options), dtype, validation_data=(X, Y))
    for p, same in zip(model.parameters(), other.parameters(), strict=True):
        assert_same_bits(p.data, same.data)
    assert history["loss"] == expected["loss"]
    assert history["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-6)


def test_rows_of_several_inputs_are_batches_of_a_tuple():
    data = Rows(lambda i: (X[i], X[i, :2], Y[i]))
    for x, y in cl.DataGenerator(data, batch_size=20, shuffle=False):
        assert [part.shape[1:] for part in x] == [(4,), (2,)]
        assert len(y) == len(x[0])
    nested = cl.DataGenerator(Rows(lambda i: ((X[i], X[i, :2]), Y[i])), seed=1)
    for batch, same in zip(nested, cl.DataGenerator(data, seed=1), strict=True):
        for a, b in zip((*batch[0], batch[1]), (*same[0], same[1]), strict=True):
            assert_same_bits(a, b)
    _, history = train(nested, model=TwoInputs())
    _, same = train(cl.DataGenerator((X, X[:, :2]), Y, seed=1), model=TwoInputs())
    assert len(history["loss"]) == len(same["loss"]) == 3


def test_each_epoch_asks_for_its_rows_in_its_order():
    rows = Rows()
    generator = cl.DataGenerator(rows, batch_size=32, seed=0)
    for _ in range(2):
        rows.calls.clear()
        assert [len(y) for _, y in generator] == [32, 18]
        assert sorted(rows.calls) == list(range(50)) != rows.calls
    noisy = Rows(lambda i: (RNG.normal(size=4), Y[i]))
    (x, _), *_ = generator = cl.DataGenerator(noisy, shuffle=False)
    assert (x != next(iter(generator))[0]).all()


def test_a_transform_gets_what_was_stacked():
    def double(x, y):
        return 2 * x, y

    for x, y in cl.DataGenerator(Rows(), shuffle=False, batch_size=50, transform=double):
        assert_same_bits(x, 2 * X)
        assert_same_bits(y, Y)


def test_a_dataset_of_pytorch_trains():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    model, _ = train(cl.DataGenerator(torch.utils.data.Subset(data, range(50)), seed=0), epochs=20)
    assert (model.predict(X).argmax(axis=1) == Y).mean() > 0.8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda i: (X[i, : 1 + (i == 7)], Y[i]),
            r"row\[0\] has shape \(1,\) in row 0 and \(2,\) in row 7",
        ),
        (lambda i: (X[i], Y[i])[: 2 - (i == 7)], "the dataset's row has length 2 in row 0 and 1 in row 7"),
    ],
)
def test_rows_that_do_not_fit_together_raise_and_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        train(cl.DataGenerator(Rows(make), shuffle=False))


def test_an_exception_of_a_dataset_comes_through():
    with pytest.raises(ZeroDivisionError):
        train(cl.DataGenerator(Rows(lambda i: (X[i], 1 // (i - 7))), shuffle=False))


def test_fit_says_what_to_make_of_a_dataset():
    with pytest.raises(ValueError, match=r"got a Rows: if x\[i\] is a row, as in PyTorch, give cl.DataGenerator\(x\);"):
        train(Rows())


def test_the_error_for_two_inputs_and_a_target_in_a_batch_names_the_tuple():
    batches = [(X, X[:, :2], Y)]
    with pytest.raises(ValueError, match=r"takes 2 inputs, and a batch of 3 arrays is \(x, y, weights\): give"):
        train(batches, model=TwoInputs())


def test_a_sequence_of_rows_without_targets_is_an_array_as_before():
    (batch,) = cl.DataGenerator(Rows(lambda i: X[i]), shuffle=False, batch_size=50)
    assert_same_bits(batch, X)
