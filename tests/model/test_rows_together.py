"""Rows that belong together: pairs within a batch, graphs and states train in `fit`, and `predict` takes all at once.

And the other way round: rows that do not depend on each other are predicted in blocks, with the same bits.
"""

import collections
import sys
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.core.modes import inference
from caffelite.data import out_of_core
from caffelite.model.pure_code import is_pure
from caffelite.model.row_trace import RowTrace
from caffelite.program.recording import Recording

RNG = np.random.default_rng(0)
X = RNG.normal(size=(320, 8)).astype(np.float32)


class Net(cl.Model):
    """A model with one layer, and with what a test puts into `prepare` and `call`."""

    def __init__(self, dtype=np.float32):
        super().__init__(seed=0, dtype=dtype)
        self.layer = cl.Linear(8, 4)
        self.prepare()

    def prepare(self):
        pass

    def call(self, x):
        return self.layer(x)


class Pairs(Net):
    def call(self, a, b):
        return self.layer(a) @ self.layer(b).T


class Graph(Net):
    def call(self, x, adjacency):
        return adjacency @ self.layer(x)


class Stateful(cl.Model):
    def __init__(self):
        super().__init__(seed=0)
        self.gru, self.last, self.state = cl.GRU(3, 8), cl.Linear(8, 1), np.zeros((32, 8), np.float32)

    def call(self, x):
        y, state = self.gru(x, self.state)
        self.state = state.data
        return self.last(y)


class FixedBatch(Net):
    def call(self, x):
        return self.layer(x).reshape(32, 2, 2).sum(axis=(1, 2))


def by_hand(model, loss, batches, epochs=2, lr=0.01):
    optimizer = cl.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for inputs, y in batches:
            optimizer.zero_grad()
            loss(model(*inputs), y).backward()
            optimizer.step()
    return [p.data.copy() for p in model.parameters()]


def fit_options(model, **options):
    return {"optimizer": cl.SGD(model.parameters(), lr=0.01), "verbose": 0, "epochs": 2, **options}


def assert_same(model, parameters):
    for p, expected in zip(model.parameters(), parameters, strict=True):
        np.testing.assert_array_equal(p.data, expected)


# ---- fit, predict and evaluate ----


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("in_memory", [True, False])
def test_pairs_within_a_batch_train_as_by_hand(in_memory, dtype):
    x = X.astype(dtype)
    batches = [((x[i : i + 10], x[i : i + 10]), np.arange(10)) for i in range(0, 320, 10)]
    expected = by_hand(Pairs(dtype), cl.SoftmaxLoss(), batches)
    model = Pairs(dtype)
    if in_memory:
        options = fit_options(model, batch_size=10, shuffle=False)
        model.fit((x, x), np.tile(np.arange(10), 32), loss=cl.SoftmaxLoss(), **options)
    else:
        model.fit(batches, loss=cl.SoftmaxLoss(), **fit_options(model))
    assert_same(model, expected)
    assert model.predict((x[:10], x[:10])).shape == (10, 10)
    results = model.evaluate(batches, loss=cl.SoftmaxLoss(), metrics=["accuracy"])
    losses = [cl.SoftmaxLoss()(model(*inputs), y).item() for inputs, y in batches]
    assert results["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_pairs_of_the_validation_may_be_more_than_in_a_batch_of_the_training():
    model = Pairs()
    history = model.fit(
        (X, X),
        np.tile(np.arange(10), 32),
        loss=cl.SoftmaxLoss(),
        validation_data=((X[:20], X[:20]), np.arange(20)),
        **fit_options(model, batch_size=10, shuffle=False),
    )
    outputs = model(X[:20], X[:20])
    assert history["val_loss"][-1] == pytest.approx(cl.SoftmaxLoss()(outputs, np.arange(20)).item(), rel=1e-5)


def test_a_graph_with_its_adjacency_trains_and_predicts_all_nodes_whatever_the_batch_size():
    n = 1100  # more than the batch size of `predict`
    x, adjacency = RNG.normal(size=(n, 8)).astype(np.float32), (RNG.random((n, n)) < 0.01).astype(np.float32)
    y = RNG.integers(0, 4, n)
    model = Graph()
    expected = by_hand(Graph(), cl.SoftmaxLoss(), [((x, adjacency), y)])
    model.fit((x, adjacency), y, loss=cl.SoftmaxLoss(), **fit_options(model, batch_size=n, shuffle=False))
    assert_same(model, expected)
    whole = model(x, adjacency).data
    for batch_size in (1024, 100, 1):
        np.testing.assert_array_equal(model.predict((x, adjacency), batch_size=batch_size), whole)
    results = model.evaluate((x, adjacency), y, loss=cl.SoftmaxLoss(), batch_size=n)
    assert results["loss"] == pytest.approx(cl.SoftmaxLoss()(model(x, adjacency), y).item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
def test_states_go_from_batch_to_batch_as_by_hand():
    x = RNG.normal(size=(64, 5, 3)).astype(np.float32)
    y = x.sum(axis=(1, 2))[:, None]
    other, model = Stateful(), Stateful()
    expected = by_hand(other, cl.MSELoss(), [((x[:32],), y[:32]), ((x[32:],), y[32:])])
    model.fit(x, y, loss=cl.MSELoss(), **fit_options(model, shuffle=False))
    assert_same(model, expected)
    np.testing.assert_array_equal(model.state, other.state)
    np.testing.assert_array_equal(model.predict(x[:32]), other(x[:32]).data)
    np.testing.assert_array_equal(model.state, other.state)  # one batch further


def test_a_reshape_to_a_fixed_batch_trains_and_evaluates_the_batches_of_fit():
    model = FixedBatch()
    expected = by_hand(FixedBatch(), cl.MSELoss(), [((X[i : i + 32],), np.ones(32)) for i in range(0, 320, 32)])
    model.fit(X, np.ones(320), loss=cl.MSELoss(), **fit_options(model, shuffle=False))
    assert_same(model, expected)
    assert model.evaluate(X, np.ones(320), loss=cl.MSELoss(), batch_size=32)["loss"] > 0
    with pytest.raises(ValueError, match=r"ToShape\(32, 2, 2\) got shape \(320, 4\): it is for 32 rows"):
        model.predict(X)  # all 320 rows at once


@pytest.mark.parametrize("use", ["fit", "predict", "evaluate"])
def test_messages_have_only_numbers_of_rows_that_the_user_gave(use):
    n = 1500
    x, adjacency, y = np.zeros((n, 9), np.float32), np.eye(n, dtype=np.float32), np.zeros(n, int)
    model = Graph()
    uses = {
        "fit": lambda: model.fit((x, adjacency), y, loss=cl.SoftmaxLoss(), **fit_options(model, batch_size=n)),
        "predict": lambda: model.predict((x, adjacency)),
        "evaluate": lambda: model.evaluate((x, adjacency), y, loss=cl.SoftmaxLoss(), batch_size=n),
    }
    with pytest.raises(ValueError, match=r"got rows of 9 features, shape \(1500, 9\)"):
        uses[use]()


# ---- labels and indices, before any step ----


def test_labels_are_checked_against_the_first_batch_before_any_step():
    y = np.zeros(320, int)
    y[300] = 7
    for data in ({}, {"validation_data": (X, y)}):
        model = Net()
        before = [p.data.copy() for p in model.parameters()]
        labels = np.zeros(320, int) if data else y
        with pytest.raises(ValueError, match="label 7 in row 300 is not one of the classes 0 … 3"):
            model.fit(X, labels, loss=cl.SoftmaxLoss(), **fit_options(model, shuffle=False), **data)
        assert_same(model, before)
    with pytest.raises(ValueError, match="label 7 in row 300"):
        model.evaluate(X, y, loss=cl.SoftmaxLoss(), batch_size=32)


def test_labels_and_indices_of_a_second_fit_are_checked_before_a_step_is_replayed():
    class WordNet(cl.Model):
        takes_indices = True

        def __init__(self):
            super().__init__(seed=0)
            self.words, self.last = cl.Embedding(10, 4), cl.Linear(4, 2)

        def call(self, x):
            return self.last(self.words(x).mean(axis=1))

    x, y = RNG.integers(0, 10, (320, 5)), np.zeros(320, int)
    bad_x, bad_y = x.copy(), y.copy()
    bad_x[300, 3] = 12
    bad_y[310] = 2
    model = WordNet()
    options = fit_options(model, shuffle=False, loss=cl.SoftmaxLoss())
    model.fit(x, y, **options)
    before = [p.data.copy() for p in model.parameters()]
    with pytest.raises(IndexError, match=r"index 12 in row 300, at \(300, 3\), is not in 0 … 9"):
        model.fit(bad_x, y, **options)
    with pytest.raises(ValueError, match="label 2 in row 310 is not one of the classes 0 … 1"):
        model.fit(x, bad_y, **options)
    assert_same(model, before)
    model.evaluate(x, y, loss=cl.SoftmaxLoss(), batch_size=32)
    with pytest.raises(ValueError, match="label 2 in row 310"):
        model.evaluate(x, bad_y, loss=cl.SoftmaxLoss(), batch_size=32)


def test_a_replay_checks_no_labels_but_its_own():
    model = Net()
    model.fit(X, np.zeros(320, int), loss=cl.SoftmaxLoss(), **fit_options(model))
    (program,) = model._model_state.programs._programs.values()
    assert str(program).count("check_labels") == 1


def test_labels_of_pairs_are_checked_against_their_real_batch():
    model = Pairs()
    batches = [((X[:10], X[:10]), np.arange(10)), ((X[:10], X[:10]), np.arange(1, 11))]
    with pytest.raises(ValueError, match="label 10 in row 9 is not one of the classes 0 … 9"):
        model.fit(batches, loss=cl.SoftmaxLoss(), **fit_options(model))


def test_indices_are_checked_for_all_rows_before_any_step():
    class Words(cl.Model):
        takes_indices = True

        def __init__(self):
            super().__init__(seed=0)
            self.words, self.last = cl.Embedding(10, 4), cl.Linear(4, 2)

        def call(self, x):
            return self.last(self.words(x[:, 1:]).mean(axis=1))

    x, y = RNG.integers(0, 10, (320, 5)), np.zeros(320, int)
    x[300, 3], x[7, 0] = 12, 99  # nobody looks up the first column
    model = Words()
    before = [p.data.copy() for p in model.parameters()]
    with pytest.raises(IndexError, match=r"index 12 in row 300, at \(300, 3\), is not in 0 … 9"):
        model.fit(x, y, loss=cl.SoftmaxLoss(), **fit_options(model, shuffle=False))
    assert_same(model, before)


# ---- no run on rows of caffelite's own ----


class Weight:
    w = 1.0


def prepare_counter(net):
    net.state = collections.Counter()


def prepare_reference(net):
    net.config = Weight()
    net.state = weakref.ref(net.config)


def prepare_iterator(net):
    net.state = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])


def prepare_dict(net):
    class FixedDict(dict):
        def update(self, *arguments, **named):
            raise RuntimeError("no update")

    net.state = FixedDict(w=1.0)


def count(state):
    state["calls"] += 1
    return 1.0 / state["calls"]


STATES = {
    "counter": (prepare_counter, count, lambda state, calls: dict(state) == {"calls": calls}),
    "weakref": (prepare_reference, lambda state: state().w, lambda state, calls: isinstance(state, weakref.ref)),
    "iterator": (prepare_iterator, next, lambda state, calls: next(state) == calls + 1),
    "dict": (prepare_dict, lambda state: state["w"], lambda state, calls: dict(state) == {"w": 1.0}),
}


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("name", list(STATES))
def test_the_first_call_of_the_users_code_gets_the_first_batch(name, within):
    prepare, read, holds = STATES[name]
    shapes = []

    class StateNet(Net):
        def prepare(self):
            prepare(self)

        def call(self, x):
            shapes.append(x.shape)
            return self.layer(x) * read(self.state)

    def make():
        shapes.clear()
        own = StateNet()
        return own, cl.Model([cl.Linear(8, 8), own, cl.Tanh()], seed=0) if within else own

    y = np.zeros((64, 4), np.float32)
    own, model = make()
    model.fit(X[:64], y, loss=cl.MSELoss(), **fit_options(model, shuffle=False))
    assert shapes == [(32, 8)] * len(shapes)
    assert holds(own.state, len(shapes))
    own, model = make()
    model.predict(X)
    assert shapes == [(320, 8)]
    assert holds(own.state, 1)
    own, model = make()
    model.evaluate(X[:64], y, loss=cl.MSELoss(), batch_size=64)
    assert shapes == [(64, 8)]
    assert holds(own.state, 1)


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
def test_a_model_whose_code_changes_something_predicts_many_rows_in_one_call():
    class CountingNet(Net):
        def prepare(self):
            self.counter = collections.Counter()

        def call(self, x):
            self.counter["calls"] += 1
            return self.layer(x)

    model = CountingNet()
    rows = np.tile(X, (10, 1))
    np.testing.assert_array_equal(model.predict(rows), np.tile(model.predict(X), (10, 1)))
    assert model.counter["calls"] == 2


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
def test_a_function_of_the_users_gets_no_rows_but_the_users():
    shapes = []

    class Half(cl.Function):
        def forward(self, x):
            shapes.append(x.shape)
            return x / 2

        def backward(self, dy):
            return dy / 2

    model = cl.Model([cl.Embedding(10, 4), Half(), cl.Flatten(), cl.Linear(20, 2)], seed=0)
    x = RNG.integers(0, 10, (64, 5))
    model.fit(x, np.zeros(64, int), loss=cl.SoftmaxLoss(), **fit_options(model))
    model.predict(x)
    assert set(shapes) == {(32, 5, 4), (64, 5, 4)}


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
def test_a_count_under_a_lock_loses_no_prediction_in_four_threads():
    class LockedNet(Net):
        def prepare(self):
            self.lock, self.hits = threading.Lock(), 0

        def call(self, x):
            with self.lock:
                self.hits += 1
            return self.layer(x)

    def predict_three(model, k):
        for n in (k + 1, k + 11, k + 21):
            model.predict(X[:n])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(100):
            model = LockedNet()
            threads = [threading.Thread(target=predict_three, args=(model, k)) for k in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert model.hits == 12
    finally:
        sys.setswitchinterval(interval)


# ---- rows that do not depend on each other ----


def test_the_memory_of_a_prediction_does_not_grow_with_rows_that_do_not_depend_on_each_other():
    class WideNet(Net):
        def call(self, x):
            h = cl.concatenate([self.layer(x)] * 100, axis=1)
            return (h.relu() * 2.0).sum(axis=1, keepdims=True)

    rows = np.tile(X, (100, 1))  # 32,000 rows, 51 MB of hidden values
    model = WideNet()
    tracemalloc.start()
    y = model.predict(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    np.testing.assert_array_equal(y, np.tile(model.predict(X), (100, 1)))
    np.testing.assert_array_equal(model.predict(rows, batch_size=7)[:100], y[:100])


@pytest.mark.parametrize(
    "compute",
    [lambda y, n: y / n, lambda y, n: y - y.mean(axis=0), lambda y, n: y @ y[:4].T],
    ids=["the number of rows", "a mean", "the first rows"],
)
def test_rows_that_depend_on_all_others_are_predicted_at_once_whatever_the_batch_size(compute):
    class CrossRowNet(Net):
        def call(self, x):
            return compute(self.layer(x), len(x))

    model = CrossRowNet()
    expected = model(X).data
    for batch_size in (160, 100, 1):
        np.testing.assert_array_equal(model.predict(X, batch_size=batch_size), expected)


def test_an_error_in_a_later_block_names_the_row_among_all():
    class Words(cl.Model):
        takes_indices = True

        def __init__(self):
            super().__init__(seed=0)
            self.words = cl.Embedding(10, 4)

        def call(self, x):
            return self.words(x).mean(axis=1)

    x = RNG.integers(0, 10, (5000, 3))
    x[4321, 1] = 10
    with pytest.raises(IndexError, match="index 10 in row 4321"):
        Words().predict(x)


def test_rows_of_a_file_that_belong_together_are_read_and_predicted_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(out_of_core, "BUFFER", 32_000)
    path = tmp_path / "rows.npy"
    np.save(path, np.tile(X, (10, 1)))
    rows = np.load(path, mmap_mode="r")

    class CenteredNet(Net):
        def call(self, x):
            y = self.layer(x)
            return y - y.mean(axis=0)

    for model in (CenteredNet(), Net()):
        np.testing.assert_array_equal(model.predict(rows, batch_size=100), model(np.array(rows)).data)


def features(n):
    return RNG.normal(size=(n, 8)).astype(np.float32)


def sequences(n):
    return RNG.normal(size=(n, 5, 8)).astype(np.float32)


def numbers(n):
    return RNG.normal(size=n).astype(np.float32)


def square(n):
    return RNG.normal(size=(n, n)).astype(np.float32)


APART = {
    "a layer": (lambda net, x: net.layer(x).relu(), features),
    "the number of rows in a reshape": (lambda net, x: net.layer(x).reshape(len(x), 2, 2).sum(axis=2), features),
    "minus one in a reshape": (lambda net, x: net.layer(x).reshape(-1, 2, 2).transpose(0, 2, 1), features),
    "columns": (lambda net, x: net.layer(x)[:, 1:3] * x[..., :2] / x[:, [0]] + x[:, 0, None], features),
    "a softmax": (lambda net, x: cl.softmax(net.layer(x)), features),
    "attention": (lambda net, x: (cl.softmax((x @ x.transpose(0, 2, 1)) / 8**0.5) @ x)[:, -1], sequences),
    "a norm of rows": (lambda net, x: (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True), features),
    "concatenate": (lambda net, x: cl.concatenate([net.layer(x), x], axis=1), features),
    "stack": (lambda net, x: cl.stack([net.layer(x), x[:, :4]], axis=1), features),
    "split": (lambda net, x: cl.split(x, 2, axis=1)[0], features),
    "numbers": (lambda net, x: (x.reshape(-1, 1) * 2).exp() + 1, numbers),
    "products of weights": (lambda net, x: x @ net.layer.weight @ (net.layer.weight.T @ net.layer.weight), features),
    "the same state for each row": (lambda net, x: net.layer(x) + np.zeros((len(x), 4), np.float32), features),
}
TOGETHER = {
    "pairs": (lambda net, x: net.layer(x) @ net.layer(x).T, features),
    "the mean of the batch": (lambda net, x: net.layer(x) - net.layer(x).mean(axis=0), features),
    "the number of rows": (lambda net, x: net.layer(x) / len(x), features),
    "a number from the number of rows": (lambda net, x: net.layer(x) * (1 / x.shape[0]), features),
    "bounds from the number of rows": (lambda net, x: cl.clip(net.layer(x) * 100, -len(x), len(x)), features),
    "a softmax over rows": (lambda net, x: cl.softmax(net.layer(x), axis=0), features),
    "a sum over rows": (lambda net, x: net.layer(x).cumsum(axis=0), features),
    "the rows in reverse order": (lambda net, x: net.layer(x)[::-1], features),
    "rows that move": (lambda net, x: cl.roll(net.layer(x), 1, axis=0), features),
    "rows by their numbers": (lambda net, x: net.layer(x)[np.arange(len(x))[::-1]], features),
    "a view of the rows": (lambda net, x: net.layer(x) + x.data[::-1, :4], features),
    "a view of the first row": (lambda net, x: net.layer(x) + x.data[:1, :4], features),
    "the transpose": (lambda net, x: x.T, features),
    "one number": (lambda net, x: x.sum(), features),
    "a softmax of numbers": (lambda net, x: cl.softmax(x), numbers),
    "a broadcast of numbers": (lambda net, x: x[:, 0] + x[:, [1]], features),
    "an adjacency": (lambda net, a, x: a @ net.layer(x), square, features),
    "the best row": (lambda net, x: net.layer(x) + cl.argmax(x, axis=0)[:4], features),
    "positions": (lambda net, x: net.layer(x) + np.arange(len(x), dtype=np.float32)[:, None], features),
}


def trace_rows(call, rows):
    """Return whether all Functions keep the rows of blocks of 12 and 11 rows apart, and whether the blocks match."""
    model = type("CallNet", (Net,), {"call": call})()
    model.all_functions()
    traces = []
    for n in (12, 11):
        recording = Recording(strict=False)
        inputs = [make(n).view(kernels.RecordedArray) for make in rows]
        with inference(), recording:
            traces.append(RowTrace(recording, inputs))
            traces[-1].finish(model(*inputs))
    first, second = traces
    return first.are_apart and second.are_apart, first.matches(second)


@pytest.mark.parametrize("name", list(APART))
def test_two_blocks_show_that_rows_are_apart(name):
    call, *rows = APART[name]
    assert trace_rows(call, rows) == (True, True)


@pytest.mark.parametrize("name", list(TOGETHER))
def test_two_blocks_show_that_rows_may_belong_together(name):
    call, *rows = TOGETHER[name]
    are_apart, is_match = trace_rows(call, rows)
    assert not is_match if "number of rows" in name else not are_apart


KEPT, FACTOR = [], 2.0


def double(x):
    return x * FACTOR


def count_in_place(self, x):
    counts = self.counts
    counts += 1
    return self.layer(x) * counts[0]


def put_into(items, x):
    items.append(x)
    return x


def append_outputs(self, x):
    outputs = []
    for layer in self.layers:
        outputs.append(layer(x))  # noqa: PERF401 (as users write)
    h = outputs[0]
    h += outputs[1]
    return h


def loop_over_heads(self, x):
    h = self.layer(x)
    for head in self.heads.values():
        h += head(x)
    return h


PURE = {
    "a list inside": append_outputs,
    "a dict of layers": loop_over_heads,
    "operators and methods": lambda self, x: self.layer(x).relu() * 2.0 + x[:, :4],
    "a function of the user's": lambda self, x: double(self.layer(x)),
    "a loop over layers": lambda self, x: sum(layer(x) for layer in [self.layer, self.layer]),
}
IMPURE = {
    "a list that grows": lambda self, x: KEPT.append(1) or self.layer(x),
    "an attribute that is set": lambda self, x: setattr(self, "n", 1) or self.layer(x),
    "a list that another function fills": lambda self, x: put_into(self.items, self.layer(x)),
    "a random number": lambda self, x: self.layer(x) * np.random.rand(),  # noqa: NPY002
    "a print": lambda self, x: print(len(x)) or self.layer(x),
    "a method with an unknown name": lambda self, x: self.layer(x) * self.counts.fill(1),
    "an array in place": count_in_place,
}


@pytest.mark.parametrize("name", [*PURE, *IMPURE])
def test_code_is_pure_if_each_name_in_it_is_known_to_change_nothing(name):
    model = type("CallNet", (Net,), {"call": {**PURE, **IMPURE}[name]})()
    model.counts, model.items, model.layers = np.zeros(1), [1.0], [model.layer, model.layer]
    model.heads = {"left": model.layer}
    assert is_pure(model) == (name in PURE)
