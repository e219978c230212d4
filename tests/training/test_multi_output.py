"""Several targets: y is a tuple wherever it is given, each output has its loss and its metrics."""

import numpy as np
import pytest

import caffelite as cl
from caffelite import sources
from caffelite.training.metrics.base import find_mode, resolve_metrics
from tests.conftest import bits, train

RNG = np.random.default_rng(0)
N = 50
X = RNG.normal(size=(N, 4)).astype(np.float32)
LABELS, NUMBERS = RNG.integers(0, 3, N), RNG.normal(size=(N, 2)).astype(np.float32)
Y = (LABELS, NUMBERS)
WEIGHTS = RNG.uniform(0, 2, N).astype(np.float32)
BOTH = (cl.SoftmaxLoss(), cl.MSELoss())
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


class TwoHeads(cl.Model):
    """Scores of three classes, and two numbers."""

    def __init__(self, dtype=np.float32):
        super().__init__(seed=0, dtype=dtype)
        self.body, self.scores, self.numbers = cl.Linear(4, 8), cl.Linear(8, 3), cl.Linear(8, 2)

    def call(self, x):
        h = self.body(x).relu()
        return self.scores(h), self.numbers(h)


def by_hand(batches, epochs=3, loss=BOTH, dtype=np.float32):
    """Return the model after a loop by hand, and the means over each epoch of the losses, weighted by rows."""
    model = TwoHeads(dtype)
    optimizer, loss = cl.SGD(model.parameters(), lr=0.1, momentum=0.9), cl.Losses(loss)
    seen = []
    for _ in range(epochs):
        sums = np.zeros(len(loss.losses))
        for x, y, *weights in batches:
            optimizer.zero_grad()
            loss.forward(model.forward(x), y, *weights)
            sums += [float(getattr(one, "value", 0)) * len(x) for one in loss._copies]
            model.backward(loss.backward())
            optimizer.step()
        seen.append(sums / N)
    return model, np.array(seen)


def in_batches(x=X, y=Y, *weights, size=16):
    """Return a list of batches, in order."""
    columns = [x, *y, *weights]
    cut = [[a[i : i + size] for a in columns] for i in range(0, len(x), size)]
    return [(x, (a, b), *weights) for x, a, b, *weights in cut]


def map_array(array, folder):
    """Return the array in a mapped file."""
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def shift_targets(x, y):
    """Return a transform that changes the input and the second target."""
    return x + 1, (y[0], 2 * y[1])


# ---- every way to give them -----------------------------------------------------------------------------------------


@DTYPES
def test_arrays_have_the_bits_of_the_loop_by_hand(dtype):
    model, data = TwoHeads(dtype), in_batches(X.astype(dtype), (LABELS, NUMBERS.astype(dtype)))
    history = train(model, X, Y, loss=BOTH, shuffle=False, batch_size=16, epochs=3)
    other, means = by_hand(data, dtype=dtype)
    assert bits(model) == bits(other)
    assert list(history) == ["loss", "loss_0", "loss_1"]
    rtol = 1e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(np.transpose([history["loss_0"], history["loss_1"]]), means, rtol=rtol)
    np.testing.assert_allclose(history["loss"], means.sum(axis=1), rtol=rtol)


def test_the_graph_by_hand_has_the_same_bits():
    model, other = TwoHeads(), by_hand(in_batches())[0]
    optimizer, loss = cl.SGD(model.parameters(), lr=0.1, momentum=0.9), cl.Losses(BOTH)
    for x, y in in_batches() * 3:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    assert bits(model) == bits(other)


def generator(**options):
    return cl.DataGenerator(X, Y, batch_size=16, seed=3, **options)


WAYS = {
    "generator": lambda folder: generator(),
    "transform": lambda folder: generator(transform=shift_targets),
    "read ahead": lambda folder: cl.Prefetch(generator()),
    "batches": lambda folder: in_batches(),
    "weighted batches": lambda folder: in_batches(X, Y, WEIGHTS),
    "weighted generator": lambda folder: generator(sample_weight=WEIGHTS),
    "mapped": lambda folder: cl.DataGenerator(
        map_array(X, folder), (map_array(LABELS, folder), NUMBERS), batch_size=16, seed=3
    ),
    "mapped targets": lambda folder: cl.DataGenerator(
        X, tuple(map_array(y, folder) for y in Y), batch_size=16, seed=3, sample_weight=WEIGHTS
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_the_bits_of_the_loop_by_hand(way, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BUFFER", 1500)
    monkeypatch.setattr(sources, "BLOCK", 256)
    model = TwoHeads()
    train(model, WAYS[way](tmp_path), loss=BOTH, epochs=3, metrics=(["accuracy"], ["mae"]))
    assert bits(model) == bits(by_hand(WAYS[way](tmp_path))[0])


def test_h5py_targets_are_read(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(sources, "BUFFER", 1500)
    model, other = TwoHeads(), TwoHeads()
    with h5py.File(tmp_path / "data.h5", "w") as file:
        x, *y = (file.create_dataset(name, data=data) for name, data in zip("xab", (X, *Y), strict=True))
        train(model, x, tuple(y), loss=BOTH, shuffle=False, batch_size=16)
    train(other, X, Y, loss=BOTH, shuffle=False, batch_size=16)
    assert bits(model) == bits(other)


def test_frames_lists_and_other_dtypes_are_targets(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"label": LABELS, "a": NUMBERS[:, 0], "b": NUMBERS[:, 1]})
    models = [TwoHeads() for _ in range(3)]
    train(models[0], X, Y, loss=BOTH, seed=1)
    train(models[1], X, (frame["label"], frame[["a", "b"]]), loss=list(BOTH), seed=1)
    train(models[2], X.tolist(), (LABELS.tolist(), NUMBERS.astype(">f8")), loss=BOTH, seed=1)
    assert bits(models[0]) == bits(models[1]) == bits(models[2])


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_split_holds_out_the_same_rows_of_all(weights):
    seen = []

    def note(outputs, targets):
        assert np.array_equal(targets[0], LABELS[[NUMBERS.tolist().index(row) for row in targets[1].tolist()]])
        seen.append(len(targets[0]))
        return 0.0

    history = train(TwoHeads(), X, Y, loss=BOTH, validation_split=0.3, metrics=[note], sample_weight=weights)
    assert seen == [35, 15]
    assert list(history)[4:] == ["val_loss", "val_loss_0", "val_loss_1", "val_note"]


def test_a_mapped_file_is_split_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BUFFER", 1500)
    monkeypatch.setattr(sources, "BLOCK", 128)
    y = tuple(map_array(y, tmp_path) for y in Y)
    history = train(TwoHeads(), map_array(X, tmp_path), y, loss=BOTH, validation_split=0.3, metrics=(["accuracy"], []))
    assert "val_loss_1" in history


@pytest.mark.parametrize("given", ["pair", "generator", "weighted"])
def test_validation_data_are_evaluated(given):
    data = {
        "pair": (X, Y),
        "generator": cl.DataGenerator(X, Y),
        "weighted": (X, Y, WEIGHTS),
    }[given]
    model, options = TwoHeads(), {"loss": BOTH, "metrics": (["accuracy", "f1"], ["mae"])}
    history = train(model, X, Y, validation_data=data, **options)
    weights = WEIGHTS if given == "weighted" else None
    found = model.evaluate(X, Y, sample_weight=weights, **options)
    last = {name.removeprefix("val_"): values[-1] for name, values in history.items() if name.startswith("val_")}
    assert last == pytest.approx(found, rel=1e-6)
    assert model.evaluate(in_batches(), **options) == pytest.approx(model.evaluate(X, Y, **options), rel=1e-6)


def test_one_target_in_a_tuple_is_one_target():
    models = [cl.Model([cl.Linear(4, 3)], seed=0) for _ in range(4)]
    options = {"seed": 0, "metrics": ["accuracy"]}
    histories = [
        train(models[0], X, LABELS, **options),
        train(models[1], X, (LABELS,), **options),
        train(models[2], X, tuple(LABELS.tolist()), **options),
        train(models[3], X, LABELS, loss=(cl.SoftmaxLoss(),), **options),
    ]
    assert histories[0] == histories[1] == histories[2]
    assert histories[3] == histories[0] | {"loss_0": histories[0]["loss"]}
    assert len(set(map(bits, models))) == 1


def test_class_weights_are_of_the_only_target():
    labels = np.where(np.arange(N) % 5 == 0, -1, LABELS)
    models, loss = [cl.Model([cl.Linear(4, 3)], seed=0) for _ in range(2)], cl.SoftmaxLoss(ignore=-1)
    train(models[0], X, labels, loss=loss, class_weight="balanced", seed=0)
    train(models[1], X, (labels,), loss=(loss,), class_weight="balanced", seed=0)
    assert bits(models[0]) == bits(models[1])


def test_a_generators_batches_have_the_targets_of_their_rows():
    for x, (labels, numbers) in cl.DataGenerator(X, Y, batch_size=7):
        places = [X.tolist().index(row) for row in x.tolist()]
        assert np.array_equal(labels, LABELS[places])
        assert np.array_equal(numbers, NUMBERS[places])
    ((_, (one,)),) = cl.DataGenerator(X, (LABELS,), batch_size=N, shuffle=False)
    assert np.array_equal(one, LABELS)


# ---- losses ---------------------------------------------------------------------------------------------------------


@DTYPES
def test_weights_multiply_the_losses_and_the_history_has_them_without(dtype):
    model, weights = TwoHeads(dtype), (0.25, 3.0)
    loss = cl.Losses(BOTH, weights=weights)
    history = train(model, X, Y, loss=loss, batch_size=16, shuffle=False, validation_data=(X, Y), epochs=2)
    outputs, values = model.predict(X), []
    for one, scores, y in zip(BOTH, outputs, Y, strict=True):
        values.append(float(one.forward(scores, y)))
    assert [history["val_loss_0"][-1], history["val_loss_1"][-1]] == pytest.approx(values, rel=1e-6)
    total = np.array([history["loss_0"], history["loss_1"]])
    np.testing.assert_allclose(history["loss"], np.dot(weights, total), rtol=1e-14)

    other = TwoHeads(dtype)
    optimizer = cl.SGD(other.parameters(), lr=0.1, momentum=0.9)
    for x, (labels, numbers) in in_batches(X.astype(dtype), (LABELS, NUMBERS.astype(dtype))) * 2:
        optimizer.zero_grad()
        scores, y = other(x)
        total = 0.25 * BOTH[0](scores, labels) + 3.0 * BOTH[1](y, numbers)
        total.backward()
        optimizer.step()
    assert bits(model) == bits(other)


def test_a_head_whose_loss_weighs_0_is_measured_and_not_trained():
    model = TwoHeads()
    before = model.numbers.weight.data.copy()
    history = train(model, X, Y, loss=cl.Losses(BOTH, weights=[1, 0]), epochs=2)
    assert np.array_equal(model.numbers.weight.data, before)
    assert history["loss"] == history["loss_0"]
    assert history["loss_1"][0] > 0


def test_gradients_are_right():
    loss, weights = cl.Losses([cl.SoftmaxLoss(), cl.HuberLoss()], weights=[0.5, 2]), WEIGHTS.astype(np.float64)
    scores, numbers = RNG.normal(size=(N, 3)), RNG.normal(size=(N, 2))
    cl.check_gradients(lambda a, b: loss((a, b), Y), scores, numbers)
    cl.check_gradients(lambda a, b: loss((a, b), Y, weights), scores, numbers)
    value = loss.forward((scores, numbers), Y)
    gradients = loss.backward(2.0)
    parts = cl.SoftmaxLoss(), cl.HuberLoss()
    values = [one.forward(x, y) for one, x, y in zip(parts, (scores, numbers), Y, strict=True)]
    assert value == pytest.approx(0.5 * values[0] + 2 * values[1], rel=1e-14)
    for gradient, one, weight in zip(gradients, parts, (0.5, 2), strict=True):
        np.testing.assert_allclose(gradient, one.backward(2 * weight), rtol=1e-14)


def test_one_loss_may_be_there_twice_and_a_penalty_is_part_of_one():
    same = cl.MSELoss()
    model, other = TwoHeads(), TwoHeads()
    y = (RNG.normal(size=(N, 3)), NUMBERS)
    train(model, X, y, loss=(same, same), seed=0)
    train(other, X, y, loss=(cl.MSELoss(), cl.MSELoss()), seed=0)
    assert bits(model) == bits(other)
    cl.check_gradients(lambda a, b: cl.Losses([same, same])((a, b), y), y[0] + 1, y[1] - 1)

    penalized = cl.Penalized(cl.SoftmaxLoss(), model.parameters(), l2=0.1)
    history = train(model, X, Y, loss=(penalized, cl.MSELoss()), lr=1e-9)
    assert history["loss_0"][0] == pytest.approx(model.evaluate(X, Y, loss=BOTH)["loss_0"], rel=1e-5)
    with pytest.raises(TypeError, match=r"Losses\(\[Penalized"):
        cl.Penalized(cl.Losses(BOTH), model.parameters())


def test_labels_that_count_nowhere_count_nowhere():
    labels = np.where(np.arange(N) % 3 == 0, -1, LABELS)
    model = TwoHeads()
    loss = cl.Losses([cl.SoftmaxLoss(ignore=-1), cl.MSELoss()])
    history = train(model, X, (labels, NUMBERS), loss=loss, lr=1e-12, batch_size=16, metrics=(["f1"], []))
    counts = labels >= 0
    found = model.evaluate(X[counts], (labels[counts], NUMBERS[counts]), loss=BOTH, metrics=(["f1"], []))
    assert history["loss_0"][0] == pytest.approx(found["loss_0"], rel=1e-5)
    assert history["f1_0"][0] == found["f1_0"]
    assert history["loss"][0] == pytest.approx(history["loss_0"][0] + history["loss_1"][0])


class Cubic(cl.Function):
    """The mean of |outputs − targets|³, in NumPy."""

    def forward(self, outputs, targets):
        self.d = outputs - targets
        return (np.abs(self.d) ** 3).mean()

    def backward(self, dy):
        return dy * 3 * self.d * np.abs(self.d) / self.d.size


def squared_error(outputs, targets):
    return ((outputs - targets) ** 2).mean()


def test_own_losses_are_called_with_their_output_and_target():
    models = [TwoHeads() for _ in range(3)]
    options = {"batch_size": 16, "seed": 0}
    histories = [
        train(models[0], X, Y, loss=BOTH, **options),
        train(models[1], X, Y, loss=(cl.SoftmaxLoss(), squared_error), **options),
        train(models[2], X, Y, loss=cl.Losses([cl.SoftmaxLoss(), squared_error]), **options),
    ]
    assert histories[1] == histories[2]
    assert bits(models[1]) == bits(models[2])
    np.testing.assert_allclose(histories[0]["loss_1"], histories[1]["loss_1"], rtol=1e-6)
    model, data = TwoHeads(), in_batches()
    train(model, data, loss=(cl.SoftmaxLoss(), Cubic()), epochs=3)
    assert bits(model) == bits(by_hand(data, loss=(cl.SoftmaxLoss(), Cubic()))[0])
    with pytest.raises(TypeError, match=r"Cubic.* takes no weights"):
        train(model, X, Y, loss=(cl.SoftmaxLoss(), Cubic()), sample_weight=WEIGHTS)


def test_an_own_loss_may_compute_in_float64():
    class Precise(cl.Function):
        def forward(self, outputs, targets):
            self.d = (outputs - targets).astype(np.float64)
            return (self.d**2).mean()

        def backward(self, dy):
            return (dy * 2 * self.d / self.d.size).astype(np.float32)

    for losses in (BOTH[0], Precise()), (Precise(), BOTH[1]):
        y = Y if losses[0] is BOTH[0] else (RNG.normal(size=(N, 3)), NUMBERS)
        history = train(TwoHeads(), X, y, loss=losses, epochs=3)
        assert history["loss"][-1] < history["loss"][0]


def test_an_own_loss_gets_targets_as_they_were_given():
    class Column(TwoHeads):
        def __init__(self):
            super().__init__()
            self.numbers = cl.Linear(8, 1)

    def loss(outputs, targets):
        assert targets.shape == outputs.shape[:1]
        return squared_error(outputs[:, 0], targets)

    train(Column(), X, (LABELS, NUMBERS[:, 0]), loss=(cl.SoftmaxLoss(), loss))


def test_a_loss_that_cannot_be_recorded_trains_with_one_warning():
    def in_numpy(outputs, targets):
        weight = float(np.abs(outputs.data).max() > 0)
        return weight * ((outputs - targets) ** 2).mean()

    model, other = TwoHeads(), TwoHeads()
    with pytest.warns(cl.NotRecorded) as warned:
        train(model, X, Y, loss=(cl.SoftmaxLoss(), in_numpy), batch_size=16, seed=0, epochs=2)
    assert len(warned) == 1
    train(other, X, Y, loss=(cl.SoftmaxLoss(), squared_error), batch_size=16, seed=0, epochs=2)
    assert bits(model) == bits(other)


@pytest.mark.parametrize("given", ["arrays", "batches"])
def test_a_single_loss_of_several_outputs_gets_tuples(given):
    class PairLoss(cl.Function):
        def forward(self, outputs, targets):
            assert isinstance(outputs, tuple)
            assert isinstance(targets, tuple)
            self.losses = [cl.SoftmaxLoss(), cl.MSELoss()]
            values = [f.forward(*pair) for f, *pair in zip(self.losses, outputs, targets, strict=True)]
            return values[0] + values[1]

        def backward(self, dy):
            return tuple(f.backward(dy) for f in self.losses)

    def both(outputs, targets):
        return cl.SoftmaxLoss()(outputs[0], targets[0]) + cl.MSELoss()(outputs[1], targets[1])

    def rows(outputs, targets):
        return len(outputs[1]) + len(targets[1])

    models = [TwoHeads() for _ in range(3)]
    data = {"x": in_batches()} if given == "batches" else {"x": X, "y": Y, "batch_size": 16, "shuffle": False}
    options = {"epochs": 2, "metrics": [rows], **data}
    for model, loss in zip(models, (BOTH, PairLoss(), both), strict=True):
        history = train(model, loss=loss, **options)
        assert history["rows"] == [2 * N] * 2
    assert bits(models[0]) == bits(models[1]) == bits(models[2])


def test_a_loss_of_one_output_and_two_targets_gets_them():
    def loss(outputs, targets):
        low, high = targets
        return ((outputs - low) ** 2).mean() + ((outputs - high) ** 2).mean()

    model = cl.Model([cl.Linear(4, 2)], seed=0)
    history = train(model, X, (NUMBERS, NUMBERS + 1), loss=loss, epochs=2)
    assert history["loss"][1] < history["loss"][0]


def test_a_further_fit_with_the_same_losses_records_nothing_again():
    model, losses = TwoHeads(), [cl.SoftmaxLoss(), squared_error]
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, X, Y, loss=tuple(losses), optimizer=optimizer, metrics=(["accuracy"], ["mae"]))
    assert len(model._model_state.programs._programs) == 2  # a full and a short batch
    train(model, X, Y, loss=tuple(losses), optimizer=optimizer, metrics=([], ["mse"]))
    assert len(model._model_state.programs._programs) == 4


# ---- metrics and callbacks ------------------------------------------------------------------------------------------


def test_each_output_has_its_metrics():
    model = TwoHeads()
    metrics = (["accuracy", "auc", cl.metrics.metric(lambda s, y: s.max(), "highest", "max")], ["mae", "r2"])
    history = train(model, X, Y, loss=BOTH, lr=1e-12, metrics=metrics)
    names = ["loss", "loss_0", "loss_1", "accuracy_0", "auc_0", "highest_0", "mae_1", "r2_1"]
    assert list(history) == names
    scores, numbers = model.predict(X)
    expected = [
        (scores.argmax(axis=1) == LABELS).mean(),
        cl.metrics.auc(scores, LABELS),
        scores.max(),
        np.abs(numbers - NUMBERS).mean(),
        cl.metrics.r2(numbers, NUMBERS),
    ]
    assert [history[name][0] for name in names[3:]] == pytest.approx(expected, rel=1e-5)


def test_each_accuracy_asks_its_own_loss_what_a_score_means():
    class Pair(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.both = cl.Linear(4, 2)

        def call(self, x):
            y = self.both(x)
            return y[:, :1], y[:, 1:].sigmoid()

    def brier(outputs, targets):  # of probabilities
        return ((outputs[:, 0] - targets) ** 2).mean()

    model, y = Pair(), ((X[:, 0] > 0.3).astype(np.float32), (X[:, 1] > 0.3).astype(np.float32))
    options = {"loss": (cl.SigmoidLoss(), brier), "metrics": (["accuracy"], ["accuracy", "f1"])}
    with pytest.warns(cl.TrainingWarning, match="probabilities"):
        history = train(model, X, y, lr=1e-12, **options)
    scores, probabilities = model.predict(X)
    assert history["accuracy_0"][0] == pytest.approx(((scores[:, 0] > 0) == y[0]).mean())
    assert history["accuracy_1"][0] == pytest.approx(((probabilities[:, 0] > 0.5) == y[1]).mean())


@pytest.mark.parametrize(("monitor", "is_max"), [("val_loss_1", False), ("accuracy_0", True), ("val_mae_1", False)])
def test_callbacks_monitor_the_parts(monitor, is_max):
    stop = cl.callbacks.EarlyStopping(monitor, patience=3)
    options = {"loss": BOTH, "metrics": (["accuracy"], ["mae"]), "validation_data": (X, Y), "epochs": 6}
    history = train(TwoHeads(), X, Y, callbacks=[stop], **options)
    assert stop.best == (max if is_max else min)(history[monitor])


def test_the_mode_of_a_part_is_known_by_the_name_of_its_metric():
    metrics = resolve_metrics((["accuracy", "top_k(2)"], [cl.metrics.metric(squared_error, "mine", "max")]))
    modes = {name: find_mode(name, metrics) for name in [*metrics, "loss_1", "val_loss_0", "loss"]}
    assert list(modes.values()) == ["max", "max", "max", "min", "min", "min"]
    assert find_mode("loss_1", {"loss_1": squared_error}) is None


# ---- other uses -----------------------------------------------------------------------------------------------------


def test_the_other_ways_to_train_and_look_take_several_targets():
    model, loss = TwoHeads(), cl.Losses(BOTH)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    tested = cl.find_lr(model, X, Y, loss=BOTH, optimizer=optimizer, batch_size=16, steps=5)
    assert len(tested.losses) == 5
    assert len(cl.inspect(model, X, Y, loss=BOTH).layers) >= 3
    assert cl.inspect(model, X, Y, loss=(cl.SoftmaxLoss(), squared_error)).loss == pytest.approx(
        model.evaluate(X, Y, loss=BOTH)["loss"], rel=1e-5
    )
    models = [TwoHeads() for _ in range(3)]
    optimizers = [cl.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    histories = cl.fit_many(models, X, Y, loss=loss, optimizers=optimizers, batch_size=16, shuffle=False, epochs=3)
    other, means = by_hand(in_batches())
    assert [bits(m) for m in models] == [bits(other)] * 3
    np.testing.assert_allclose(histories[0]["loss"], means.sum(axis=1), rtol=1e-6)


def test_minimize_takes_several_targets():
    pytest.importorskip("scipy")
    model = TwoHeads(np.float64)
    before = model.evaluate(X, Y, loss=BOTH)["loss"]
    found = cl.minimize(model, X, Y, loss=cl.Losses(BOTH, weights=[1, 2]), max_iterations=5, verbose=0)
    after = model.evaluate(X, Y, loss=cl.Losses(BOTH, weights=[1, 2]))
    assert after["loss_0"] + after["loss_1"] < before
    assert found["loss"][-1] == pytest.approx(after["loss"])


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"y": (LABELS, NUMBERS[:-1])}, ValueError, r"50.*y\[1\].*49"),
        ({"y": (LABELS,)}, ValueError, "1 target in y, 2 outputs of the model and 2 losses"),
        ({"y": LABELS}, ValueError, "1 target in y, 2 outputs of the model and 2 losses"),
        ({"y": (*Y, NUMBERS)}, ValueError, "3 targets in y.*2 losses"),
        ({"y": [*Y]}, ValueError, "2 losses; several targets are a tuple, got a list"),
        ({"y": (LABELS + 1, NUMBERS)}, ValueError, r"y\[0\]: label 3 in row"),
        ({"y": (LABELS, NUMBERS[:, :1])}, ValueError, r"y\[1\]: MSELoss got targets of shape \(50, 1\)"),
        ({"y": (LABELS.astype(float), NUMBERS)}, TypeError, r"y\[0\]: SoftmaxLoss takes"),
        ({"y": (LABELS, NUMBERS.astype(str))}, TypeError, r"y\[1\]"),
        ({"loss": (cl.SoftmaxLoss(),)}, ValueError, "1 loss:"),
        ({"loss": (*BOTH, cl.MSELoss())}, ValueError, "3 losses"),
        ({"loss": ()}, ValueError, "no losses"),
        ({"loss": cl.MSELoss()}, ValueError, r"MSELoss\(\) takes one output and one target, got 2 and 2 in y.*loss=\("),
        ({"loss": cl.MSELoss(), "y": NUMBERS}, ValueError, "got 2 and 1 in y"),
        ({"loss": (cl.SoftmaxLoss, cl.MSELoss())}, TypeError, "expected a Function"),
        ({"metrics": (["accuracy"],)}, ValueError, "metrics: .*2 losses, got 1"),
        ({"metrics": (["accuracy"], ["mae"], [])}, ValueError, "metrics: .*2 losses, got 3"),
        ({"metrics": (["accuracy"], "mae")}, TypeError, "a list for each output"),
        ({"metrics": (["accuracy", "accuracy"], [])}, ValueError, "'accuracy' is taken"),
        ({"metrics": ["accuracy"]}, ValueError, "accuracy takes one output.*a list for each output"),
        ({"metrics": (["mae"], ["mae"])}, ValueError, r"mae_0 got outputs of shape \(32, 3\)"),
        ({"class_weight": "balanced"}, ValueError, "sample_weight"),
        ({"sample_weight": WEIGHTS[:-1]}, ValueError, "sample_weight"),
        ({"validation_data": (X, LABELS)}, ValueError, "1 target in y"),
        ({"validation_data": (X, (LABELS, NUMBERS[1:]))}, ValueError, r"y\[1\]"),
    ],
)
def test_targets_and_losses_that_do_not_fit_raise_before_anything_is_written(options, error, message):
    model = TwoHeads()
    before = bits(model)
    options = {"loss": BOTH, "x": X, "y": Y} | options
    with pytest.raises(error, match=message):
        train(model, **options)
    assert bits(model) == before
    if options.keys() == {"x", "y", "loss"}:
        x, y, loss = (options[name] for name in ("x", "y", "loss"))
        for data in ([(x, y)], lambda: cl.DataGenerator(x, y)):
            with pytest.raises(error):
                train(model, data if isinstance(data, list) else data(), loss=loss)
        assert bits(model) == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), ValueError, "no losses"),
        ((cl.MSELoss(),), TypeError, "a list of losses"),
        ((5,), TypeError, "a list of losses"),
        ((BOTH, [1]), ValueError, "weight for each of 2"),
        ((BOTH, [1, -1]), ValueError, "weight of loss 1"),
        ((BOTH, [1, np.nan]), ValueError, "weight of loss 1"),
        (([cl.MSELoss(), "mse"],), TypeError, "expected a Function"),
    ],
)
def test_impossible_losses_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        cl.Losses(*arguments)


def test_losses_by_hand_say_which_target_is_wrong():
    loss, outputs = cl.Losses(BOTH), (np.zeros((N, 3)), np.zeros((N, 2)))
    with pytest.raises(ValueError, match=r"y\[0\]: label 3"):
        loss.forward(outputs, (LABELS + 1, NUMBERS))
    with pytest.raises(ValueError, match="2 targets in y, 1 output of"):
        loss.forward(outputs[0], Y)
    with pytest.raises(RuntimeError, match="needs a `forward`"):
        loss.backward()
    assert repr(cl.Losses(BOTH, weights=[1, 0.5])) == "Losses([SoftmaxLoss(), MSELoss()], weights=[1.0, 0.5])"


@pytest.mark.parametrize("changed", [lambda x, y: (x, y[0]), lambda x, y: (x, (y[0], y[1][1:])), lambda x, y: (x, [1])])
def test_a_transform_that_loses_a_target_raises(changed):
    with pytest.raises(ValueError, match=r"targets|transform"):
        train(TwoHeads(), cl.DataGenerator(X, Y, transform=changed), loss=BOTH)


def test_a_replay_names_the_target_that_is_not_finite_and_the_label_out_of_range():
    numbers = NUMBERS.copy()
    numbers[40] = np.nan
    with pytest.raises(cl.optimizers.TrainingDiverged, match=r"y\[1\] is not finite in 1 of 50 rows"):
        train(TwoHeads(), X, (LABELS, numbers), loss=BOTH, batch_size=8, shuffle=False)


def test_losses_of_a_function_that_returns_several_outputs():
    class Halves(cl.Function):
        def forward(self, x):
            return x[:, :3].copy(), x[:, 3:].copy()

        def backward(self, dy):
            return np.concatenate(dy, axis=1)

    model = cl.Model([cl.Linear(4, 5), Halves()], seed=0)
    history = train(model, X, Y, loss=BOTH, epochs=3, metrics=(["accuracy"], ["mae"]))
    assert history["loss"][-1] < history["loss"][0]
    assert [y.shape for y in model.predict(X)] == [(N, 3), (N, 2)]


def test_the_number_of_threads_changes_no_bit(restored_threads):
    found = set()
    for threads in (1, 2, 3, 8):
        cl.set_num_threads(threads)
        model = TwoHeads()
        train(model, X, Y, loss=cl.Losses(BOTH, weights=[0.3, 0.7]), batch_size=16, seed=0)
        found.add(bits(model))
    assert len(found) == 1


def test_the_loss_of_each_row_is_the_weighted_sum_over_its_outputs():
    loss, outputs = cl.Losses(BOTH, weights=[0.5, 2.0]), TwoHeads().predict(X)
    expected = 0.5 * BOTH[0].rows(outputs[0], LABELS) + 2 * BOTH[1].rows(outputs[1], NUMBERS)
    assert np.array_equal(loss.rows(outputs, Y), expected)
    with pytest.raises(ValueError, match="1 target in y, 2 outputs of the model and 2 losses"):
        loss.rows(outputs, LABELS)
