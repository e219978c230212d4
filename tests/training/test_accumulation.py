"""`fit(accumulate=k)`: the gradients of k batches make one step."""

import numpy as np
import pytest
from caffelite.callbacks import AverageWeights, Checkpoint, Each

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.callback_data import Rows

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)  # 60 rows
WEIGHTS = np.linspace(0.5, 2.0, 60)


def make_net(dtype=np.float64):
    layers = [cl.Linear(2, 8), cl.BatchNorm(8), cl.ReLU(), cl.Dropout(0.2), cl.Linear(8, 3)]
    return cl.Model(layers, seed=2, dtype=dtype)


def make_batches(size, weights=None):
    rows = [slice(i, i + size) for i in range(0, len(X), size)]
    return [(X[r], Y[r]) if weights is None else (X[r], Y[r], weights[r]) for r in rows]


def by_hand(model, optimizer, batches, count, epochs, loss=None):
    """Train in a loop by hand: the gradients of `count` batches add up, each times its weight."""
    loss = cl.SoftmaxLoss() if loss is None else loss
    for _ in range(epochs):
        for start in range(0, len(batches), count):
            optimizer.zero_grad()
            total = model.dtype.type(0)
            for x, y, *weights in batches[start : start + count]:
                weights = [w.astype(model.dtype) for w in weights]
                weight = model.dtype.type(weights[0].sum() if weights else len(y))
                loss(model(x.astype(model.dtype)), y, *weights).backward(weight)
                total += weight
            for p in model.parameters():
                p.grad[...] /= total
            optimizer.step()


def difference(model, other):
    return max(np.abs(p.data - q.data).max() for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
@pytest.mark.parametrize("way", ["in memory", "streamed"])
def test_it_has_the_bits_of_the_loop_by_hand(way, weights, dtype):
    """8 batches, the last of 4 rows, in groups of 3, 3 and 2."""
    model, hand = make_net(dtype), make_net(dtype)
    adam = cl.Adam(model.parameters(), lr=0.01), cl.Adam(hand.parameters(), lr=0.01)
    if way == "in memory":
        options = {"batch_size": 8, "shuffle": False, "sample_weight": weights}
        train(model, X, Y, optimizer=adam[0], epochs=3, accumulate=3, **options)
    else:
        train(model, make_batches(8, weights), optimizer=adam[0], epochs=3, accumulate=3)
    by_hand(hand, adam[1], make_batches(8, weights), 3, 3)
    assert model.state_dict().keys() == hand.state_dict().keys()
    if weights is None:
        assert all((model.state_dict()[name] == x).all() for name, x in hand.state_dict().items())
    else:  # NumPy adds the weights in another order
        assert difference(model, hand) < (1e-6 if dtype == np.float32 else 1e-14)


@pytest.mark.parametrize("options", [{}, {"sample_weight": WEIGHTS}, {"class_weight": {0: 3.0}}, {"clip_norm": 0.1}])
@pytest.mark.parametrize("metrics", [[], ["accuracy"], ["accuracy", "f1"]])
def test_groups_of_small_batches_train_as_large_batches_do(options, metrics):
    small, large = classifier(2, 8, 3, dtype=np.float64), classifier(2, 8, 3, dtype=np.float64)
    options = {"epochs": 4, "metrics": metrics, **options}
    history = train(small, X, Y, batch_size=4, accumulate=4, **options)
    expected = train(large, X, Y, batch_size=16, **options)
    assert difference(small, large) < 1e-12
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-12)


def test_one_batch_a_step_is_the_usual_training():
    one, other = make_net(), make_net()
    train(one, X, Y, accumulate=1)
    train(other, X, Y)
    assert bits(one) == bits(other)
    train(one, X, Y, accumulate=100, batch_size=60)  # a group may be larger than the epoch
    with pytest.raises(ValueError, match="accumulate"):
        train(one, X, Y, accumulate=0)
    with pytest.raises(TypeError, match="accumulate"):
        train(one, X, Y, accumulate=2.0)


@pytest.mark.parametrize("loss", ["ignoring", "own", "penalized"])
def test_other_losses_train_as_with_large_batches(loss):
    y = np.where(np.arange(60) % 7 == 0, -1, Y) if loss == "ignoring" else Y

    def make_loss(model):
        if loss == "ignoring":
            return cl.SoftmaxLoss(ignore=-1)
        if loss == "penalized":
            return cl.Penalized(cl.SoftmaxLoss(), model.parameters(), l2=0.1)
        return lambda outputs, targets: cl.SoftmaxLoss()(2 * outputs, targets)

    models = [classifier(2, 8, 3, dtype=np.float64) for _ in range(2)]
    for model, options in zip(models, [{"batch_size": 5, "accumulate": 3}, {"batch_size": 15}], strict=True):
        train(model, X, y, loss=make_loss(model), epochs=2, shuffle=False, **options)
    assert difference(*models) < 1e-12


@pytest.mark.parametrize("way", ["in memory", "streamed", "generator"])
def test_a_batch_whose_weights_are_all_0_is_left_out_of_its_group(way):
    weights = WEIGHTS * (np.arange(60) // 5 % 3 != 1) * (np.arange(60) < 50)
    kept = weights > 0
    model, other = make_net(), make_net()
    if way == "in memory":
        train(model, X, Y, sample_weight=weights, batch_size=5, accumulate=3, epochs=2, shuffle=False)
    elif way == "streamed":
        train(model, make_batches(5, weights), accumulate=3, epochs=2)
    else:
        data = cl.DataGenerator(X, Y, sample_weight=weights, batch_size=5, shuffle=False)
        train(model, data, accumulate=3, epochs=2)
    batches = [(X[r], Y[r], weights[r]) for i in range(0, 60, 5) if kept[r := slice(i, i + 5)].any()]
    train(other, batches, accumulate=2, epochs=2)  # in the groups 2, 2, 2, 1
    assert difference(model, other) == 0


def test_batches_of_other_shapes_go_into_one_group():
    rng = np.random.default_rng(0)
    tokens = [(rng.integers(0, 9, (4, n)), rng.integers(0, 2, 4)) for n in (3, 5, 4, 3, 6)]

    def recurrent():
        return cl.Model([cl.Embedding(9, 4), cl.GRU(4, 5), cl.Linear(5, 2)], seed=0, dtype=np.float64)

    model, hand = recurrent(), recurrent()
    train(model, tokens, accumulate=2, epochs=3, metrics=["f1"])
    optimizer, loss = cl.SGD(hand.parameters(), lr=0.1, momentum=0.9), cl.SoftmaxLoss()
    for _ in range(3):
        for start in (0, 2, 4):
            optimizer.zero_grad()
            group = tokens[start : start + 2]
            for x, y in group:
                loss(hand(x), y).backward(np.float64(1 / len(group)))
            optimizer.step()
    assert difference(model, hand) < 1e-13


@pytest.mark.parametrize("sparse", [False, True])
def test_sparse_gradients_add_up(sparse):
    tokens, y = np.arange(240).reshape(60, 4) % 50, Y
    models = []
    for options in ({"batch_size": 6, "accumulate": 2}, {"batch_size": 12}):
        layers = [cl.Embedding(90, 4, sparse=sparse), cl.Flatten(), cl.Linear(16, 3)]
        models.append(cl.Model(layers, seed=0, dtype=np.float64))
        train(models[-1], tokens, y, optimizer=cl.Adam(models[-1].parameters()), epochs=3, **options)
    assert difference(*models) < 1e-10


def test_rows_of_a_sparse_matrix_are_cut_into_batches():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    x = scipy_sparse.random(60, 30, density=0.2, format="csr", random_state=0)
    models = [classifier(30, 3, dtype=np.float64) for _ in range(2)]
    train(models[0], x, Y, batch_size=5, accumulate=4, epochs=2)
    train(models[1], x.toarray(), Y, batch_size=20, epochs=2)
    assert difference(*models) < 1e-12


def test_a_last_row_joins_the_batch_before_it_if_a_batch_norm_is_trained():
    x, y = X[:21], Y[:21]
    seen = []

    class Seeing(cl.Function):
        def forward(self, x):
            seen.append(len(x))
            return x

        def backward(self, dy):
            return dy

    model = cl.Model([Seeing(), cl.Linear(2, 4), cl.BatchNorm(4), cl.Linear(4, 3)], seed=0)
    train(model, x, y, batch_size=5, accumulate=2)
    assert seen == [5, 5, 5, 6]
    seen.clear()
    train(model, x, y, batch_size=5, accumulate=3)
    assert seen == [5, 5, 5, 6]
    seen.clear()
    train(model, cl.DataGenerator(x, y, batch_size=6, drop_last=True), accumulate=2)
    assert seen == [6, 6, 6]


def test_a_transform_gets_the_small_batches():
    seen = []

    def transform(x, y):
        seen.append(len(x))
        return x, y

    data = cl.DataGenerator(X, Y, batch_size=8, seed=0, transform=transform)
    model, other = make_net(), make_net()
    train(model, data, accumulate=3, epochs=2)
    assert seen == 2 * [8, 8, 8, 8, 8, 8, 8, 4]
    train(other, cl.DataGenerator(X, Y, batch_size=8, seed=0), accumulate=3, epochs=2)
    assert bits(model) == bits(other)


def test_data_that_are_read_are_trained_on_in_groups(monkeypatch):
    monkeypatch.setattr(cl.sources, "BUFFER", 32 * 24)
    models = [classifier(2, 3, dtype=np.float64) for _ in range(2)]
    for model, options in zip(models, [{"batch_size": 4, "accumulate": 4}, {"batch_size": 16}], strict=True):
        train(model, Rows(X), Rows(Y), epochs=3, **options)
    assert difference(*models) < 1e-12


def test_a_generator_may_fill_its_arrays_again():
    class Filling:
        def __iter__(self):
            x, y = np.empty((5, 2), np.float32), np.empty(5, np.int64)
            for i in range(0, 60, 5):
                x[:], y[:] = X[i : i + 5], Y[i : i + 5]
                yield x, y

    one, other = classifier(2, 3), classifier(2, 3)
    train(one, Filling(), accumulate=3, epochs=2, metrics=["f1"])
    train(other, make_batches(5), accumulate=3, epochs=2, metrics=["f1"])
    assert bits(one) == bits(other)


def test_an_exception_of_the_data_comes_through():
    def data():
        yield from make_batches(5)[:2]
        raise KeyError("mine")

    class Stopping:
        def __len__(self):
            return 60

        shape, dtype = (60, 2), np.dtype(np.float32)

        def __getitem__(self, rows):
            raise StopIteration("mine")

    with pytest.raises(KeyError, match="mine"):
        train(classifier(2, 3), data(), accumulate=3)
    with pytest.raises(StopIteration, match="mine"):
        train(classifier(2, 3), cl.DataGenerator(Stopping(), Y, transform=lambda x, y: (x, y)), accumulate=3)


def test_schedules_callbacks_and_the_optimizer_count_steps():
    model, steps = classifier(2, 3), []
    optimizer = cl.Adam(model.parameters(), lr=cl.schedules.linear(0.1, 6))
    each = Each(2, lambda step, training: steps.append(step))
    train(model, X, Y, batch_size=8, accumulate=3, epochs=2, optimizer=optimizer, callbacks=[each])
    state = optimizer.state_dict()
    assert steps == [2, 4, 6]
    assert state["t"] == state["steps"][0] == 6
    optimizer.lr = cl.schedules.linear(0.1, 6)
    with pytest.warns(cl.TrainingWarning, match="has 6 steps, but this training makes 9"):
        train(model, make_batches(8), accumulate=3, epochs=3, optimizer=optimizer)


@pytest.mark.parametrize("way", ["in memory", "streamed", "transform", "zeros"])
def test_a_checkpoint_is_between_two_groups(way, tmp_path):
    path = tmp_path / "checkpoint"

    def data():
        if way == "in memory":
            return cl.DataGenerator(X, Y, batch_size=8, seed=0)
        if way == "transform":
            return cl.DataGenerator(X, Y, batch_size=8, seed=0, transform=lambda x, y: (x, y))
        if way == "zeros":
            return cl.DataGenerator(X, Y, batch_size=8, seed=0, sample_weight=np.arange(60) % 3)
        return make_batches(8)

    def run(stop=None, resume=None, count=3):
        def f(step, training):
            assert training.optimizer.state_dict()["t"] == step
            if step == stop:
                training.write(path)
                raise KeyError

        model = make_net()
        optimizer = cl.Adam(model.parameters(), lr=cl.schedules.cosine(0.1, 9))
        options = {"metrics": ["accuracy", "f1"], "callbacks": [Each(1, f), AverageWeights(0.9)]}
        history = train(model, data(), optimizer=optimizer, epochs=3, accumulate=count, resume=resume, **options)
        return bits(model), history

    never_stopped = run()
    for stop in (1, 2, 3, 5):
        with pytest.raises(KeyError):
            run(stop)
        assert run(resume=path) == never_stopped
    for count in (1, 2):
        with pytest.raises(ValueError, match=r"batch size|number of batches in a step"):
            run(resume=path, count=count)


def test_replays_are_of_whole_steps_and_need_the_memory_of_a_small_batch(monkeypatch):
    x, y = np.tile(X, (20, 1)), np.tile(Y, 20)
    recorded, record = [], cl.Program.record
    monkeypatch.setattr(cl.Program, "record", lambda *given: (recorded.append(1), record(*given)))

    def recorded_bytes(**options):
        model = classifier(2, 256, 256, 3)
        train(model, x, y, epochs=3, shuffle=False, **options)
        return sum(program.nbytes for program in model._model_state.programs._programs.values())

    small = recorded_bytes(batch_size=16)
    recorded.clear()
    accumulated = recorded_bytes(batch_size=16, accumulate=10)
    assert len(recorded) == 2  # the step of 10 batches and the last one of 5
    assert accumulated < 3 * small < recorded_bytes(batch_size=160)


def test_a_loss_that_is_not_finite_stops_before_the_step_and_names_it():
    model, x = classifier(2, 3), X.copy()
    x[37] = np.nan
    for data in ((x, Y), ([(x[i : i + 5], Y[i : i + 5]) for i in range(0, 60, 5)], None)):
        model = classifier(2, 3)
        with pytest.raises(cl.TrainingDiverged, match=r"epoch 1, step 3: the loss is nan; x is not finite in 1 of"):
            train(model, *data, accumulate=3, **({} if data[1] is None else {"batch_size": 5, "shuffle": False}))
        other = classifier(2, 3)
        train(other, X[:30], Y[:30], batch_size=5, shuffle=False, accumulate=3)
        assert bits(model) == bits(other)


def test_several_outputs_are_measured_over_the_epoch():
    class Two(cl.Model):
        def __init__(self):
            super().__init__(seed=0, dtype=np.float64)
            self.f, self.g = cl.Linear(2, 3), cl.Linear(2, 3)

        def call(self, x):
            return self.f(x), self.g(x)

    def loss(outputs, targets):
        return cl.SoftmaxLoss()(outputs[0] + outputs[1], targets)

    def same(outputs, targets):
        return float((outputs[0] + outputs[1]).argmax(1).tolist() == targets.tolist()) + outputs[0].sum()

    histories = [
        train(Two(), X, Y, loss=loss, metrics=[same], epochs=2, **options)
        for options in ({"batch_size": 4, "accumulate": 4}, {"batch_size": 16})
    ]
    for name, values in histories[0].items():
        np.testing.assert_allclose(values, histories[1][name], rtol=1e-12)


def test_averages_follow_groups():
    models = [classifier(2, 8, 3, dtype=np.float64) for _ in range(2)]
    for model, options in zip(models, [{"batch_size": 4, "accumulate": 4}, {"batch_size": 16}], strict=True):
        train(model, X, Y, epochs=3, callbacks=[AverageWeights(0.9)], **options)
    assert difference(*models) < 1e-12


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(threads, restored_threads):
    models = [classifier(2, 300, 3) for _ in range(2)]
    for model, count in zip(models, (1, threads), strict=True):
        cl.set_num_threads(count)
        train(model, X, Y, batch_size=8, accumulate=3, epochs=2)
    assert bits(models[0]) == bits(models[1])


def test_the_checkpoint_of_a_training_of_single_batches_raises(tmp_path):
    path, model = tmp_path / "checkpoint", classifier(2, 3)
    train(model, make_batches(8), callbacks=[Checkpoint(path)])
    with pytest.raises(ValueError, match="number of batches in a step"):
        train(model, make_batches(8), epochs=2, accumulate=2, resume=path)


def test_several_targets_of_batches_add_up_as_in_one_batch():
    x, y = np.random.default_rng(0).normal(size=(40, 4)), (np.arange(40) % 3, np.random.default_rng(1).normal(size=40))

    class TwoHeads(cl.Model):
        def __init__(self):
            super().__init__(seed=0, dtype=np.float64)
            self.scores, self.numbers = cl.Linear(4, 3), cl.Linear(4, 1)

        def call(self, x):
            return self.scores(x), self.numbers(x)

    found = []
    for options in ({"batch_size": 20}, {"batch_size": 5, "accumulate": 4}):
        model = TwoHeads()
        history = model.fit(
            x, y, loss=cl.Losses([cl.SoftmaxLoss(), cl.MSELoss()], weights=[1, 0.5]), epochs=3, shuffle=False,
            optimizer=cl.SGD(model.parameters(), lr=0.1), metrics=(["accuracy", "f1"], ["mae"]), verbose=0, **options,
        )  # fmt: skip
        found.append((model.predict(x), dict(history)))
    for a, b in zip(*[predictions for predictions, _ in found], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    for name, values in found[0][1].items():
        np.testing.assert_allclose(values, found[1][1][name], atol=1e-12)


def test_losses_that_ignore_labels_are_not_accumulated():
    model = cl.Model([cl.Linear(2, 2)], seed=0)
    losses = cl.Losses([cl.SoftmaxLoss(ignore=-1)])
    with pytest.raises(ValueError, match=r"accumulate=2: .*ignores labels"):
        model.fit(
            np.ones((4, 2)), np.zeros(4, int), loss=losses, optimizer=cl.SGD(model.parameters(), lr=0.1), accumulate=2
        )
