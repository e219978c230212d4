"""Several inputs and outputs, indices and masks."""

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, train
from tests.reference import assert_same_bits
from tests.training.columns import TARGETS, A, B, SquaredError, X, Y, pairs

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


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
        history = train(model, (A, B), TARGETS, loss=loss, lr=1e-300, validation_data=data)
        assert history["val_loss"][0] == pytest.approx(model.evaluate((A, B), TARGETS, loss=loss)["loss"], rel=1e-6)
    seen = []

    def note(outputs, targets):
        seen.append(sorted(targets[:, 0].tolist()))
        return 0

    train(model, (A, B), TARGETS, loss=loss, lr=1e-300, validation_split=0.3, metrics=[note])
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


class MaskedNet(cl.Model):
    """Words and a mask, or lengths."""

    def __init__(self):
        super().__init__(seed=0)
        self.words, self.block, self.memory = cl.Embedding(10, 4), cl.TransformerBlock(4, 2), cl.GRU(4, 3)

    def call(self, words, mask=None, lengths=None):
        return self.memory(self.block(self.words(words), mask), lengths=lengths)


WORDS = np.arange(300).reshape(60, 5) % 10
MASK = WORDS > 3


@pytest.mark.parametrize("takes", [True, (True, True), (True, False)])
def test_a_mask_beside_indices_stays_bool_whatever_takes_indices_names_it(takes):
    model, expected = MaskedNet(), MaskedNet()
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
    model = MaskedNet()
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
    model, lengths = MaskedNet(), np.full(60, 3)
    expected = model(WORDS, None, lengths)
    for y in (model(WORDS, lengths=lengths), model(words=WORDS, lengths=lengths), model(WORDS, None, lengths=lengths)):
        assert_same_bits(y.data, expected.data)
    with pytest.raises(
        TypeError, match=r"MaskedNet\(.*\): got an unexpected keyword argument 'length'; did you mean 'lengths'\?$"
    ):
        model(WORDS, length=lengths)
    with pytest.raises(TypeError, match="missing a required argument: 'words'"):
        model(mask=MASK)


@pytest.mark.parametrize("x", [X, X > 0, X.astype(str), X.astype(complex)])
def test_a_number_that_is_not_an_integer_is_not_an_index(x):
    class Indices(cl.Model):
        takes_indices = True

    model = Indices([cl.Linear(2, 3)])
    for use in (lambda: train(model, x, Y), lambda: model.predict(x), lambda: train(model, [(x, Y)])):
        with pytest.raises(TypeError, match="integers"):
            use()


def test_an_index_beyond_int64_and_a_wrong_number_of_inputs_raise():
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


class PairLoss(SquaredError):
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
        train(two, (A, B), TARGETS, loss=PairLoss(), lr=0.01, epochs=3, metrics=[largest]),
        train(one, (A, B), TARGETS, loss=SquaredError(), lr=0.01, epochs=3),
    ]
    assert histories[0]["loss"] == histories[1]["loss"]
    outputs = two.predict((A, B), batch_size=7)
    assert isinstance(outputs, tuple)
    np.testing.assert_allclose(outputs[0] + outputs[1], one.predict((A, B)), rtol=1e-5)
    with pytest.raises(ValueError, match="one output"):
        train(two, (A, B), TARGETS, loss=PairLoss(), metrics=["mse"])


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
    history = train(model, loss=PairLoss(), lr=1e-12, epochs=2, metrics=[difference], **data)
    first, second = model.predict(inputs)
    assert history["difference"] == pytest.approx([(first - second).max()] * 2, rel=1e-5)
    assert rows == [30, 30]
