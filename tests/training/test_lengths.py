"""Rows of different lengths: batches of rows of similar length, cut to their longest."""

import numpy as np
import pytest
from caffelite.callbacks import Checkpoint, EarlyStopping

import caffelite as cl
from caffelite.data.lengths import MAX_WIDTHS, choose_widths
from caffelite.program import Program, cache, program
from caffelite.program.passes import PASSES
from caffelite.training.epochs import by_length, in_memory
from tests.conftest import bits, train
from tests.training.callback_data import StopAt, StopTraining

rng = np.random.default_rng(0)
LENGTHS = rng.integers(1, 13, 150)
X, Y = rng.integers(0, 9, (150, 12)), rng.integers(0, 5, (150, 12))
COUNTED = np.where(np.arange(12) < LENGTHS[:, None], Y, -1)  # -1: a place that does not count
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


class Reader(cl.Model):
    """Letters (n, length) to scores (n, length, 5)."""

    takes_indices = True

    def __init__(self, dtype=np.float32):
        super().__init__(seed=0, dtype=dtype)
        self.letters, self.attention = cl.Embedding(9, 8), cl.MultiHeadAttention(8, 2, causal=True)
        self.scores = cl.Linear(8, 5)

    def call(self, x):
        h = self.letters(x)
        return self.scores(h + self.attention(h))


class EagerReader(Reader):
    """Notes the shape of each batch, so its steps are not recorded."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def call(self, x):
        self.shapes = [*self.shapes, x.shape]
        return super().call(x)


def make_sequence(dtype=np.float32, sequences=True):
    return cl.Model([cl.Embedding(9, 8), cl.GRU(8, 8, sequences), cl.Linear(8, 5)], seed=0, dtype=dtype)


def train_by_hand(model, batches, epochs):
    """Train in a loop by hand, and return the mean loss of each epoch."""
    loss, optimizer, means = cl.SoftmaxLoss(), cl.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(epochs):
        total = weight = 0
        for x, y, *weights in batches:
            optimizer.zero_grad()
            value = loss(model(x), y, *weights)
            value.backward()
            optimizer.step()
            batch_weight = x.shape[1] * weights[0].astype(np.float64).sum() if weights else len(x)
            total, weight = total + batch_weight * float(value.data), weight + batch_weight
        means.append(total / weight)
    return means


def num_recordings(model):
    return sum(program.is_recorded for program in model._model_state.programs._programs.values())


# ---- training --------------------------------------------------------------------------------------------------------


@both_dtypes
@pytest.mark.parametrize("make", [Reader, make_sequence])
@pytest.mark.parametrize(
    ("batch_size", "options"),
    [(8, {}), (50, {}), (7, {"shuffle": False}), (8, {"sample_weight": np.linspace(0, 2, 150, dtype=np.float32)})],
    ids=["shuffled", "divided", "in order", "weighted"],
)
def test_fit_has_the_bits_and_losses_of_the_same_batches_by_hand(batch_size, options, make, dtype):
    """The loss counts each place, so a batch that is cut elsewhere has another loss."""
    weights = options.get("sample_weight")
    options = options if weights is None else {"sample_weight": weights.astype(dtype)}
    model, hand = make(dtype), make(dtype)
    history = train(model, X, Y, batch_size=batch_size, lengths=LENGTHS, epochs=4, seed=3, **options)
    batches = cl.DataGenerator(X, Y, batch_size=batch_size, lengths=LENGTHS, seed=3, **options)
    assert history["loss"] == pytest.approx(train_by_hand(hand, batches, 4), rel=1e-15 if weights is None else 1e-12)
    assert bits(model) == bits(hand)
    assert num_recordings(model) <= MAX_WIDTHS


@pytest.mark.parametrize("batch_size", [16, 25])
@pytest.mark.parametrize("top", [12, 200])
def test_batches_are_of_similar_length_and_of_at_most_16_shapes(top, batch_size):
    lengths = np.random.default_rng(1).integers(1, top + 1, 610)
    x = np.zeros((610, top), np.int64)
    model = EagerReader()
    with pytest.warns(cl.NotRecorded):
        train(model, x, x, lengths=lengths, batch_size=batch_size, epochs=3, seed=0)
    assert len(model.shapes) == 3 * -(-610 // batch_size)
    assert len(set(model.shapes)) <= MAX_WIDTHS
    assert sum(rows * width for rows, width in model.shapes) <= 1.3 * 3 * lengths.sum()
    assert [width for _, width in model.shapes] != sorted([width for _, width in model.shapes])
    model.shapes = []
    model.evaluate(x, x, loss=cl.SoftmaxLoss(), lengths=lengths, batch_size=batch_size)
    assert len(set(model.shapes)) <= MAX_WIDTHS
    assert sum(rows * width for rows, width in model.shapes) <= 1.3 * lengths.sum()


def test_widths_need_little_padding():
    """100 rows of length 1 need more padding than one row of length 2."""
    lengths = np.repeat([1, 2, 10], [100, 1, 5])
    assert choose_widths(lengths, 3).tolist() == [1, 2, 10]
    assert choose_widths(lengths, 2).tolist() == [1, 10]
    assert choose_widths(lengths, 1).tolist() == [10]


def test_a_recording_of_one_width_confirms_the_others(monkeypatch):
    """Each is recorded twice. Later a single step, of any width, runs in Python if the number of steps has doubled."""
    recorded, record = [], Program.record
    monkeypatch.setattr(Program, "record", lambda *arguments: recorded.append(1) or record(*arguments))
    model = Reader()
    train(model, X, Y, lengths=LENGTHS, batch_size=8, epochs=50)
    assert 2 * num_recordings(model) <= len(recorded) <= 2 * num_recordings(model) + 12


def test_all_recordings_are_kept(monkeypatch):
    monkeypatch.setattr(cache, "MEMORY_BUDGET", 0)
    model = make_sequence()
    train(model, X, Y, lengths=LENGTHS, batch_size=8, epochs=3)
    assert num_recordings(model) > 10


class NumpyHalf(cl.Function):
    """It computes in NumPy, so each replay calls Python."""

    def forward(self, x):
        return x / 2

    def backward(self, dy):
        return dy / 2


@pytest.mark.parametrize(
    ("calls_python", "passes", "shares"), [(False, PASSES, True), (True, PASSES, False), (False, PASSES[:2], False)]
)
def test_widths_share_one_block_of_temporaries_unless_they_call_python(monkeypatch, calls_python, passes, shares):
    monkeypatch.setattr(program, "PASSES", passes)

    def fit():
        layers = [cl.Embedding(9, 64), cl.Linear(64, 128), *[NumpyHalf()] * calls_python, cl.ReLU(), cl.Linear(128, 5)]
        model = cl.Model(layers, seed=0)
        train(model, np.tile(X, 8), np.tile(Y, 8), lengths=8 * LENGTHS, batch_size=16, epochs=4)
        return model, [p for p in model._model_state.programs._programs.values() if p.is_recorded]

    model, programs = fit()
    monkeypatch.setattr(by_length, "share_temporaries", list)
    other, programs_apart = fit()
    sizes, sizes_apart = ([p.nbytes for p in group] for group in (programs, programs_apart))
    assert bits(model) == bits(other)
    assert sum(sizes_apart) > 4 * max(sizes_apart) > 4 * cache.SMALL_MEMORY
    assert (sum(sizes) < 2 * max(sizes)) == shares


def test_each_epoch_has_each_row_once_in_other_batches_which_the_seed_draws():
    def epochs(seed):
        generator = cl.DataGenerator(
            np.arange(150)[:, None] + np.zeros((1, 12)), lengths=LENGTHS, batch_size=8, seed=seed
        )
        return [[(*batch[:, 0].astype(int).tolist(), batch.shape[1]) for batch in generator] for _ in range(3)]

    first = epochs(0)
    for batches in first:
        assert sorted(row for rows in batches for row in rows[:-1]) == list(range(150))
        assert all(LENGTHS[list(rows)].max() == width for *rows, width in batches)
    assert not {frozenset(rows[:-1]) for rows in first[0]} >= {frozenset(rows[:-1]) for rows in first[1]}
    assert first == epochs(0)
    assert first != epochs(1)


def test_rows_in_order_are_only_cut():
    batches = list(cl.DataGenerator(X, Y, lengths=LENGTHS, batch_size=40, shuffle=False))
    for i, (x, y) in enumerate(batches):
        rows = slice(40 * i, 40 * i + 40)
        width = LENGTHS[rows].max()
        np.testing.assert_array_equal(x, X[rows, :width])
        np.testing.assert_array_equal(y, Y[rows, :width])
        assert x.flags.c_contiguous


def test_inputs_and_targets_as_wide_as_x_are_cut_and_others_are_not():
    class Pair(Reader):
        takes_indices = (True, False, False)

        def call(self, x, mask, lengths):
            self.assert_shapes(x, mask, lengths)
            return super().call(x) * mask.reshape(*mask.shape, 1) + lengths.reshape(-1, 1, 1)

        def assert_shapes(self, x, mask, lengths):
            assert x.shape == mask.shape
            assert lengths.shape == x.shape[:1]

    mask = (np.arange(12) < LENGTHS[:, None]).astype(np.float32)
    inputs = X, mask, LENGTHS.astype(np.float32)
    model, hand = Pair(), Pair()
    train(model, inputs, Y, lengths=LENGTHS, batch_size=8, epochs=3, seed=1)
    batches = cl.DataGenerator(inputs, Y, lengths=LENGTHS, batch_size=8, seed=1)
    train(hand, [batch for _ in range(3) for batch in batches])
    assert bits(model) == bits(hand)
    x, labels = next(iter(cl.DataGenerator(X, Y[:, 0], lengths=np.full(150, 3))))
    assert (x.shape, labels.shape) == ((32, 3), (32,))


def test_of_two_outputs_only_the_one_that_follows_the_length_is_cut():
    """There are 5 classes, and some batches are 5 wide."""

    class TwoOutputs(Reader):
        def __init__(self):
            super().__init__(np.float64)
            self.memory, self.label = cl.GRU(8, 8), cl.Linear(8, 5)

        def call(self, x):
            return super().call(x), self.label(self.memory(self.letters(x)))

    model, hand, y = TwoOutputs(), TwoOutputs(), (COUNTED, Y[:, 0])
    loss = cl.Losses([cl.SoftmaxLoss(ignore=-1), cl.SoftmaxLoss()])
    options = {"loss": loss, "lengths": LENGTHS, "batch_size": 8, "seed": 1, "metrics": (["f1"], ["f1"])}
    train(model, X, y, **options)
    batches = list(cl.DataGenerator(X, y, lengths=LENGTHS, batch_size=8, seed=1))
    train(hand, batches, loss=loss)
    assert bits(model) == bits(hand)
    assert [outputs.shape for outputs in model.predict(X, lengths=LENGTHS)] == [(150, 12, 5), (150, 5)]


@both_dtypes
def test_a_recording_of_another_padding_width_is_not_replayed(dtype):
    """The rows of the second data are as many bytes longer as they are wider."""
    models = make_sequence(dtype), make_sequence(dtype)
    wide = [np.pad(a, ((0, 0), (0, 7)), constant_values=1) for a in (X, Y)]
    for model, second in zip(models, (wide, (X, Y)), strict=True):
        options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1)}
        for x, y in ((X, Y), second):
            train(model, x, y, lengths=LENGTHS, epochs=2, seed=0, **options)
    assert bits(models[0]) == bits(models[1])


def test_micro_batches_have_the_gradient_of_one_batch_of_all_their_rows():
    models = make_sequence(np.float64), make_sequence(np.float64)
    train(models[0], X, COUNTED, loss=cl.SoftmaxLoss(ignore=-1), lengths=LENGTHS, batch_size=10, accumulate=3, seed=0)
    train(models[1], X, COUNTED, loss=cl.SoftmaxLoss(ignore=-1), lengths=LENGTHS, batch_size=30, seed=0)
    assert num_recordings(models[0]) <= MAX_WIDTHS
    difference = [np.abs(p.data - q.data).max() for p, q in zip(*[m.parameters() for m in models], strict=True)]
    assert max(difference) < 0.05  # the parts have other numbers of places that count


@pytest.mark.usefixtures("restored_threads")
def test_any_number_of_threads_gives_the_same_bits():
    results = []
    for threads in (1, 2):
        cl.set_num_threads(threads)
        model = Reader()
        train(model, X, Y, lengths=LENGTHS, batch_size=8, epochs=2)
        results.append((bits(model), model.predict(X, lengths=LENGTHS).tobytes()))
    assert results[0] == results[1]


# ---- measurement -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Reader, make_sequence])
def test_an_evaluation_has_the_numbers_of_padded_rows(make):
    model, loss, seen = make(np.float64), cl.SoftmaxLoss(ignore=-1), []

    def spread(outputs, targets):
        seen.append((outputs, targets))
        return float(outputs[targets >= 0].std())

    options = {"loss": loss, "metrics": ["accuracy", "f1", spread], "batch_size": 20}
    padded = model.evaluate(X, COUNTED, **options)
    cut = model.evaluate(X, COUNTED, lengths=LENGTHS, **options)
    assert cut == pytest.approx(padded, rel=1e-12)
    (full, _), (outputs, targets) = seen
    np.testing.assert_array_equal(targets, COUNTED)
    np.testing.assert_allclose(outputs[COUNTED >= 0], full[COUNTED >= 0], 1e-12)


def test_validation_takes_the_lengths_of_the_rows_held_out_and_of_a_generator():
    model, other = Reader(np.float64), Reader(np.float64)
    held_out = model._model_state.find_split_rng(150, np.random.default_rng(1), reseed=True).permutation(150)[:30]
    rest = np.setdiff1d(np.arange(150), held_out)
    options = {"loss": cl.SoftmaxLoss(), "epochs": 3, "seed": 1, "shuffle": False, "metrics": ["accuracy"]}
    history = train(model, X, Y, lengths=LENGTHS, validation_split=0.2, **options)
    validation = cl.DataGenerator(X[held_out], Y[held_out], lengths=LENGTHS[held_out], batch_size=1024)
    again = train(other, X[rest], Y[rest], lengths=LENGTHS[rest], validation_data=validation, **options)
    assert bits(model) == bits(other)
    assert [*again.values()] == [pytest.approx(values, rel=1e-12) for values in history.values()]
    measured = model.evaluate(X[held_out], Y[held_out], lengths=LENGTHS[held_out], loss=cl.SoftmaxLoss())
    assert measured["loss"] == history["val_loss"][-1]


def test_early_stopping_watches_an_evaluation_of_cut_rows():
    model, loss = make_sequence(), cl.SoftmaxLoss(ignore=-1)
    validation = cl.DataGenerator(X[:50], COUNTED[:50], lengths=LENGTHS[:50])
    options = {
        "loss": loss,
        "validation_data": validation,
        "epochs": 300,
        "lr": 0.5,
        "callbacks": [EarlyStopping(patience=3)],
    }
    history = train(model, X[50:], COUNTED[50:], lengths=LENGTHS[50:], **options)
    assert history.epochs < 300
    assert min(history["val_loss"]) == pytest.approx(model.evaluate(X[:50], COUNTED[:50], loss=loss)["loss"])


@pytest.mark.parametrize("width", [5, 12, 18])
@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["cut", "padded"])
@pytest.mark.parametrize("make", [Reader, make_sequence])
def test_validation_data_may_have_another_width(make, lengths, width):
    x, y = [np.pad(a, ((0, 0), (0, 6)), constant_values=fill)[:, :width] for a, fill in ((X, 0), (COUNTED, -1))]
    loss, model = cl.SoftmaxLoss(ignore=-1), make(np.float64)
    history = train(model, X, COUNTED, lengths=lengths, loss=loss, validation_data=(x, y), epochs=2)
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(x, y, loss=loss)["loss"], rel=1e-12)
    y[140, width - 1] = 7
    with pytest.raises(ValueError, match=f"label 7 in row 140, at \\(140, {width - 1}\\)"):
        train(make(), X, COUNTED, lengths=lengths, loss=loss, validation_data=(x, y))


def test_metrics_of_an_epoch_get_rows_as_wide_as_x():
    class Shapes:
        def __call__(self, outputs, targets):
            self.shapes = outputs.shape, targets.shape
            return float((targets >= 0).sum())

    for y, shape in ((COUNTED, (150, 12)), (Y[:, 0], (150,))):
        metric, model = Shapes(), make_sequence(sequences=y.ndim == 2)
        options = {"lengths": LENGTHS, "loss": cl.SoftmaxLoss(ignore=-1), "metrics": [metric]}
        history = train(model, X, y, epochs=2, batch_size=8, **options)
        assert metric.shapes == ((*shape, 5), shape)
        assert history["Shapes"] == [(y >= 0).sum()] * 2


# ---- prediction ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [7, 1024])
@pytest.mark.parametrize("make", [Reader, make_sequence])
def test_predictions_are_in_the_order_of_the_rows_and_0_behind_their_lengths(make, batch_size):
    model = make(np.float64)
    padded, cut = model.predict(X), model.predict(X, lengths=LENGTHS, batch_size=batch_size)
    counts = np.arange(12) < LENGTHS[:, None]
    assert cut.shape == padded.shape
    np.testing.assert_allclose(cut[counts], padded[counts], 1e-12)
    assert not cut[~counts].any()
    alike = model.predict(X, lengths=np.full(150, 4))
    np.testing.assert_allclose(alike[:, :4], model.predict(X[:, :4]), 1e-12)
    assert not alike[:, 4:].any()


def test_outputs_that_do_not_follow_the_length_are_not_padded():
    """5 classes, and rows of length 5."""
    model = make_sequence(sequences=False)
    cut = model.predict(X, lengths=np.full(150, 5))
    np.testing.assert_array_equal(cut, model.predict(X[:, :5]))
    assert model.predict(X[:1], lengths=[3]).shape == (1, 5)


@pytest.mark.parametrize("rows", [2, 150])
def test_a_row_is_predicted_at_its_own_length_if_there_are_few_lengths(rows):
    class LastState(cl.Model):
        takes_indices = True

        def __init__(self):
            super().__init__(seed=0)
            self.letters, self.states, self.scores = cl.Embedding(9, 8), cl.GRU(8, 8), cl.Linear(8, 5)

        def call(self, x):
            return self.scores(self.states(self.letters(x)))

    for model in (make_sequence(sequences=False), LastState()):
        outputs = model.predict(X[:rows], lengths=LENGTHS[:rows])
        for i in (0, 1, rows // 2):
            np.testing.assert_allclose(outputs[i], model.predict(X[i : i + 1, : LENGTHS[i]])[0], 1e-4)


def test_rows_that_belong_together_are_predicted_together():
    class BatchCentering(Reader):
        def call(self, x):
            h = super().call(x)
            return h - h.mean(axis=0, keepdims=True)

    model = BatchCentering(np.float64)
    cut, padded = model.predict(X, lengths=LENGTHS), model.predict(X)
    counts = np.arange(12) < LENGTHS[:, None]
    np.testing.assert_allclose(cut[counts], padded[counts], 1e-9)
    assert not cut[~counts].any()


def test_outputs_that_are_narrower_than_x_raise():
    class Windows(Reader):
        def call(self, x):
            return super().call(x)[:, 2:]

    with pytest.raises(ValueError, match=r"rows cut to \d+ and \d+ have outputs of shape \(\d+, 5\) and \(\d+, 5\)"):
        Windows().predict(X, lengths=np.maximum(LENGTHS, 3))


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Reader, make_sequence])
@pytest.mark.parametrize("metrics", [(), ["f1"]])
def test_a_training_that_was_stopped_goes_on_to_the_same_bits(metrics, make, tmp_path, monkeypatch):
    monkeypatch.setattr(in_memory, "REPLAY_SECONDS", 0)
    path = tmp_path / "checkpoint.safetensors"
    options = {"loss": cl.SoftmaxLoss(ignore=-1), "lengths": LENGTHS, "epochs": 4, "seed": 5, "batch_size": 8}
    options |= {"metrics": metrics}
    whole = make()
    expected = train(whole, X, COUNTED, **options)
    for stop in (3, 30, 65):
        with pytest.raises(StopTraining):
            train(make(), X, COUNTED, callbacks=[Checkpoint(path, seconds=0), StopAt(stop)], **options)
        model = make()
        history = train(model, X, COUNTED, callbacks=[Checkpoint(path, seconds=0)], resume=path, **options)
        assert bits(model) == bits(whole)
        assert history == expected
    with pytest.raises(ValueError, match="another list of lengths"):
        train(make(), X, COUNTED, callbacks=[Checkpoint(path)], resume=path, **options | {"lengths": LENGTHS[::-1]})
    del options["lengths"]
    with pytest.raises(ValueError, match="another list of lengths"):
        train(make(), X, COUNTED, callbacks=[Checkpoint(path)], resume=path, **options)


# ---- errors ----------------------------------------------------------------------------------------------------------

ONES = np.ones(150, np.int64)
BAD = {
    "149 lengths": (ONES[1:], r"a length for each of 150 rows, \(150,\), got shape \(149,\)"),
    "a column": (ONES[:, None], r"got shape \(150, 1\)"),
    "0": (ONES - (np.arange(150) == 7), "integers from 1 to 12, got 0 in row 7"),
    "13": (ONES + 12 * (np.arange(150) == 8), "integers from 1 to 12, got 13 in row 8"),
    "a half": (ONES + 0.5 * (np.arange(150) == 9), "integers from 1 to 12, got 1.5 in row 9"),
    "floats": (ONES.astype(np.float32), "integers from 1 to 12, got 1.0 in row 0"),
    "NaN": (np.full(150, np.nan), "integers from 1 to 12, got nan in row 0"),
    "bools": (ONES > 0, "integers from 1 to 12, got True in row 0"),
    "words": (["a"] * 150, "integers from 1 to 12, got 'a' in row 0"),
    "2⁶⁴ − 1": (np.full(150, 2**64 - 1, np.uint64), "integers from 1 to 12, got 18446744073709551615 in row 0"),
}


@pytest.mark.parametrize(("lengths", "message"), BAD.values(), ids=BAD)
def test_lengths_that_cannot_be_raise_and_name_the_row(lengths, message):
    model = make_sequence()
    before = bits(model)
    for use in (
        lambda: train(model, X, Y, lengths=lengths),
        lambda: model.evaluate(X, Y, loss=cl.SoftmaxLoss(), lengths=lengths),
        lambda: model.predict(X, lengths=lengths),
        lambda: cl.DataGenerator(X, Y, lengths=lengths),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    assert bits(model) == before


def test_data_that_cannot_be_cut_raise():
    model, loss = make_sequence(), cl.SoftmaxLoss()
    generator = cl.DataGenerator(X, Y, lengths=LENGTHS)
    for x in (generator, [(X, Y)]):
        with pytest.raises(ValueError, match="lengths need x and y as arrays"):
            train(model, x, lengths=LENGTHS)
        with pytest.raises(ValueError, match="lengths need x and y as arrays"):
            model.evaluate(x, loss=loss, lengths=LENGTHS)
    with pytest.raises(ValueError, match=r"x of shape \(n, length, …\), got shape \(150,\)"):
        cl.DataGenerator(X[:, 0], Y, lengths=LENGTHS)


@pytest.mark.parametrize("make", [Reader, make_sequence])
def test_a_bad_label_or_index_is_named_before_the_first_step(make):
    """Neither is in the first batch of rows in order."""
    model = make()
    before = bits(model)
    labels, letters = Y.copy(), X.copy()
    row = int(np.flatnonzero(LENGTHS == 12)[-1])
    labels[row, 11], letters[row, 0] = 5, 9
    options = {"lengths": np.append(np.minimum(LENGTHS[:32], 4), LENGTHS[32:]), "shuffle": False}
    with pytest.raises(ValueError, match=f"label 5 in row {row}"):
        train(model, X, labels, **options)
    with pytest.raises(IndexError, match=f"x: index 9 in row {row}"):
        train(model, letters, Y, **options)
    with pytest.raises(IndexError, match=f"index 9 in row {row}"):
        model.predict(letters, lengths=LENGTHS)
    assert bits(model) == before
