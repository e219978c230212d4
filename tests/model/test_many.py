"""cl.fit_many: each model's bits are those of its lone fit, on any number of threads."""

import contextlib
import copy
import functools
import itertools
import re
import signal
import threading
import warnings

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program import Program
from tests.conftest import bits, classifier

ROWS = 50  # in batches of 16, the last one of 2


@pytest.fixture(params=[1, 3])
def threads(request, threads_restored):
    cl.set_num_threads(request.param)
    return request.param


def data(outputs=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 4)), rng.integers(0, outputs, ROWS)


class Swish(cl.Function):
    """Computed by NumPy: recorded steps call it back."""

    def forward(self, x):
        self.x, self.s = x, 1 / (1 + np.exp(-x))
        return x * self.s

    def backward(self, dy):
        return dy * (self.s + self.x * self.s * (1 - self.s))


class Gated(cl.Model):
    """No sequence."""

    def __init__(self, seed):
        super().__init__(seed=seed)
        self.f, self.g = cl.Linear(4, 3), cl.Linear(4, 3)

    def call(self, x):
        return self.f(x) * self.g(x).sigmoid()


class Plain(cl.Optimizer):
    """Computed by NumPy."""

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - self.lr * p.grad


def frozen(seed):
    model = classifier(4, 8, 3, seed=seed)
    model.functions[0].requires_grad = False
    return model


def one_seed(seed):
    return cl.Model([cl.Linear(4, 3)], seed=7)


MODELS = {
    "plain": lambda seed: classifier(4, 8, 3, seed=seed),
    "float64": lambda seed: classifier(4, 8, 3, seed=seed, dtype=np.float64),
    "of several widths": lambda seed: classifier(4, 5 + seed % 3, 3, seed=seed),
    "random and normalized": lambda seed: cl.Model(
        [cl.Linear(4, 8), cl.BatchNorm(8), cl.Dropout(0.3), cl.ReLU(), cl.DropConnect(8, 3)], seed=seed
    ),
    "Python": lambda seed: cl.Model([cl.Linear(4, 8), Swish(), cl.Linear(8, 3)], seed=seed),
    "call": Gated,
    "frozen": frozen,
    "of one seed": one_seed,
}
OPTIMIZERS = {
    "SGD": lambda ps, i: cl.SGD(ps, lr=0.1 + 0.01 * i),
    "Adam": lambda ps, i: cl.Adam(ps, lr=0.01 * (i + 1), weight_decay=0.01 * i),
    "schedule": lambda ps, i: cl.SGD(ps, lr=cl.schedules.cosine(0.1 + 0.01 * i, steps=6, warmup=2), momentum=0.9),
    "groups": lambda ps, i: cl.SGD([{"parameters": ps[:1], "lr": 0.05}, {"parameters": ps[1:]}], lr=0.1),
    "Python": lambda ps, i: Plain(ps, lr=0.1),
}


def entries(model, optimizer, count=5):
    models = [MODELS[model](seed) for seed in range(count)]
    return models, [OPTIMIZERS[optimizer](m.parameters(), i) for i, m in enumerate(models)]


def lone(models, optimizers, x, y, rows=None, loss=None, **options):
    """What one fit after the other gives."""
    losses = loss if isinstance(loss, list) else [loss or cl.SoftmaxLoss()] * len(models)
    histories = []
    for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        part = (x, y) if rows is None else (x[rows[i]], y[rows[i]])
        histories.append(model.fit(*part, loss=losses[i], optimizer=optimizer, verbose=0, **options))
    return histories


def many(models, optimizers, x, y, loss=None, **options):
    return cl.fit_many(models, x, y, loss=loss or cl.SoftmaxLoss(), optimizers=optimizers, **options)


def state(model, optimizer):
    """All that a training leaves, to the bit."""
    arrays = {**model.state_dict(), **optimizer.state_dict()}
    found = {name: np.asarray(x).tobytes() for name, x in arrays.items()}
    for i, p in enumerate(model.parameters()):
        found[f"gradient {i}"] = None if p.grad is None else p.grad.tobytes()
        found[f"is as drawn {i}"] = p._has_initial_values()
    return found | {"stream": model._own.rng.bit_generator.state}


def assert_alike(these, those, but=()):
    for i, (a, b) in enumerate(zip(zip(*these, strict=True), zip(*those, strict=True), strict=True)):
        one, other = state(*a), state(*b)
        assert [name for name in one if one[name] != other[name] and name.split()[0] not in but] == [], f"model {i}"


@pytest.mark.filterwarnings("ignore:the schedule of the learning rate has 6 steps")
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [*[(model, "Adam") for model in MODELS], *[("plain", other) for other in OPTIMIZERS if other != "Adam"]],
)
def test_each_model_has_the_bits_of_its_lone_fit(threads, model, optimizer):
    x, y = data()
    alone, together = entries(model, optimizer), entries(model, optimizer)
    for options in ({}, {"seed": 5}, {"shuffle": False}):  # one after the other: then there is something in all of them
        options = {"epochs": 3, "batch_size": 16, **options}
        assert many(*together, x, y, **options) == lone(*alone, x, y, **options)
        assert_alike(together, alone)


def test_a_schedule_with_fewer_steps_than_the_training_is_a_warning():
    x, y = data()
    steps = 2 * -(-len(x) // 16)
    for length, warns in ((steps, 0), (steps - 1, 1)):
        models = [MODELS["plain"](0)]
        optimizers = [cl.SGD(models[0].parameters(), lr=cl.schedules.cosine(0.1, length))]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            many(models, optimizers, x, y, epochs=2, batch_size=16)
        assert [f"makes {steps}: the last 1 have rate 0" in str(w.message) for w in caught] == [True] * warns


def test_they_go_on_with_fit_and_predict(threads):
    x, y = data()
    alone, together = entries("plain", "Adam"), entries("plain", "Adam")
    lone(*alone, x, y, epochs=2)
    many(*together, x, y, epochs=2)
    for these, those in zip(zip(*alone, strict=True), zip(*together, strict=True), strict=True):
        assert np.array_equal(these[0].predict(x), those[0].predict(x))
    assert lone(*alone, x, y, epochs=2) == lone(*together, x, y, epochs=2)
    assert_alike(together, alone)


def test_models_of_all_kinds_go_together(threads):
    x, y = data()
    alone, together = (
        tuple([*itertools.chain(*column)] for column in zip(*[entries(m, "Adam", 4) for m in MODELS], strict=True))
        for _ in range(2)
    )
    assert many(*together, x, y, epochs=2, batch_size=16) == lone(*alone, x, y, epochs=2, batch_size=16)
    assert_alike(together, alone)


@pytest.mark.parametrize("seed", [None, 3])
def test_folds_are_what_their_rows_would_give(threads, seed):
    x, y = data()
    rng = np.random.default_rng(1)
    folds = [np.delete(np.arange(ROWS), np.arange(i, ROWS, 5)) for i in range(5)]  # 40 rows each
    folds += [rng.integers(0, ROWS, ROWS), np.arange(17)[::-1], np.array([3], dtype=np.uint8)]
    alone, together = entries("plain", "Adam", len(folds)), entries("plain", "Adam", len(folds))
    options = {"epochs": 3, "batch_size": 16, "seed": seed}
    histories = many(*together, x, y, rows=[folds[0].tolist(), *folds[1:]], **options)
    assert histories == lone(*alone, x, y, rows=folds, **options)
    assert_alike(together, alone)


def test_losses_may_be_each_models_own(threads):
    x, y = data()
    alone, together = entries("plain", "SGD"), entries("plain", "SGD")
    losses = [
        [
            cl.Penalized(cl.SoftmaxLoss(label_smoothing=0.1 * (i % 2)), m.parameters()[::2], l2=0.1)
            for i, m in enumerate(ms)
        ]
        for ms in (alone[0], together[0])
    ]
    assert many(*together, x, y, loss=losses[1], epochs=3) == lone(*alone, x, y, loss=losses[0], epochs=3)
    assert_alike(together, alone)


def test_models_that_differ_in_a_number_alone_are_not_confused(threads):
    def made():
        models = [
            cl.Model([cl.Linear(4, 8), cl.LeakyReLU(slope), cl.Dropout(p), cl.Linear(8, 3)], seed=0)
            for slope in (0.0, 0.1)
            for p in (0.0, 0.2, 0.5)
            for _ in range(4)
        ]
        return models, [cl.SGD(m.parameters(), lr=0.1, momentum=0.9 * (i % 2)) for i, m in enumerate(models)]

    x, y = data()
    alone, together = made(), made()
    assert many(*together, x, y, epochs=3) == lone(*alone, x, y, epochs=3)
    assert_alike(together, alone)


def test_a_constant_that_a_step_looks_at_is_each_models_own(threads):
    class Branching(cl.Model):
        def __init__(self, seed):
            super().__init__(seed=seed)
            self.f, self.sign = cl.Linear(4, 3), np.array([seed % 2])

        def call(self, x):
            return self.f(x) if self.sign[0] else self.f(x).tanh()

    def made():
        models = [Branching(seed) for seed in range(10)]
        return models, [cl.SGD(m.parameters(), lr=0.1) for m in models]

    x, y = data()
    alone, together = made(), made()
    assert many(*together, x, y, epochs=3) == lone(*alone, x, y, epochs=3)
    assert_alike(together, alone)


def test_several_inputs_and_indices(threads):
    class Tabular(cl.Model):
        takes_indices = (False, True)

        def __init__(self, seed, sparse):
            super().__init__(seed=seed)
            self.embedding, self.last = cl.Embedding(6, 3, sparse=sparse), cl.Linear(7, 3)

        def call(self, numbers, words):
            return self.last(cl.concatenate([numbers, self.embedding(words)], axis=1))

    def made():
        models = [Tabular(seed, sparse=seed % 2 == 0) for seed in range(8)]
        return models, [cl.SGD(m.parameters(), lr=0.1) for m in models]

    x, y = data()
    words = np.arange(ROWS) % 6
    alone, together = made(), made()
    expected = [
        m.fit((x, words), y, loss=cl.SoftmaxLoss(), optimizer=o, epochs=3, verbose=0)
        for m, o in zip(*alone, strict=True)
    ]
    assert many(*together, (x, words), y, epochs=3) == expected
    assert_alike(together, alone)


def test_models_that_are_alike_share_their_recordings(threads, monkeypatch):
    recordings = []

    def record(self, *arguments, original=Program.record):
        recordings.append(self)
        original(self, *arguments)

    monkeypatch.setattr(Program, "record", record)
    many(*entries("plain", "Adam", 12), *data(), epochs=2, batch_size=16)
    assert len(recordings) <= 2 * threads
    recordings.clear()
    many(*entries("Python", "Adam", 6), *data(), epochs=2, batch_size=16)
    assert len(recordings) == 2 * 6


def test_kernels_in_it_run_on_the_threads_it_has(threads):
    sizes = []

    class Notes(Swish):
        def forward(self, x):
            sizes.append((kernels.team_size(), threading.current_thread()))
            return super().forward(x)

    models = [cl.Model([cl.Linear(4, 8), Notes(), cl.Linear(8, 3)], seed=i) for i in range(6)]
    many(models, [cl.SGD(m.parameters(), lr=0.1) for m in models], *data(), epochs=20)
    assert {size for size, _ in sizes} == {1}
    assert len({thread for _, thread in sizes}) <= threads
    assert kernels.team_size() == threads


def test_a_graph_made_before_knows_that_the_values_are_gone(threads):
    x, y = data()
    models, optimizers = entries("plain", "SGD", 5)
    values = [cl.SoftmaxLoss()(m(x.astype(np.float32)), y) for m in models]
    many(models, optimizers, x, y)
    for value in values:
        with pytest.raises(RuntimeError, match="changed"):
            value.backward()


def test_the_callers_arrays_are_not_written_and_may_lie_as_they_like(threads):
    x, y = data()
    wide = np.zeros((2 * ROWS, 8))[::-2, ::2]
    wide[...] = x
    wide.flags.writeable = False
    alone, together = entries("plain", "Adam"), entries("plain", "Adam")
    assert many(*together, wide, y.astype(">i2")) == lone(*alone, x, y)
    assert_alike(together, alone)
    assert np.array_equal(wide, x)


# ---- how it ends ----------------------------------------------------------------------------------------------------


def test_who_diverges_does_not_stop_the_others(threads):
    x, y = data()
    x = 100 * x
    rates = [0.001, 1e30, 0.002, 1e25, 0.001, 1e28, 0.003]

    def made():
        models = [cl.Model([cl.Linear(4, 8), cl.Dropout(0.1), cl.Linear(8, 3)], seed=i) for i in range(7)]
        return models, [cl.SGD(m.parameters(), lr=lr) for m, lr in zip(models, rates, strict=True)]

    alone, together = made(), made()
    histories, messages = [], []
    for i, model_and_optimizer in enumerate(zip(*alone, strict=True)):
        diverges = pytest.raises(cl.TrainingDiverged) if rates[i] > 1 else contextlib.nullcontext()
        with diverges as caught:
            histories += lone(*[[one] for one in model_and_optimizer], x, y, epochs=3)
        if caught is not None:
            messages.append(str(caught.value))
            histories.append(caught.value.history)
    with pytest.raises(cl.TrainingDiverged) as caught:
        many(*together, x, y, epochs=3)
    assert len(messages) == 3
    assert str(caught.value) == f"model 1 diverged: {messages[0]}; so did 3, 5"
    assert caught.value.histories == histories
    assert caught.value.history is caught.value.histories[1]
    assert_alike(together, alone, but=["gradient"])  # which is as it was where the step that diverged was recorded


@pytest.mark.parametrize("kind", [ZeroDivisionError, StopIteration, KeyboardInterrupt])
def test_what_a_users_function_raises_comes_through(threads, kind):
    class Raising(cl.Function):
        def __init__(self, at):
            self.left = np.array([at])

        def forward(self, x):
            self.left -= 1
            if self.left == 0:
                raise kind("mine")
            return x

        def backward(self, dy):
            return dy

    before = threading.active_count()  # others may have left a thread that watches progress bars
    x, y = data()
    models = [*entries("plain", "SGD", 3)[0], cl.Model([cl.Linear(4, 3), Raising(6)], seed=0)]
    models += entries("plain", "SGD", 3)[0]
    with pytest.raises(kind, match="mine"):
        many(models, [cl.SGD(m.parameters(), lr=0.1) for m in models], x, y, epochs=100)
    assert threading.active_count() == before
    assert np.isfinite(models[0].predict(x)).all()


def test_ctrl_c_ends_all_between_steps(threads):
    before = threading.active_count()
    x, y = data()
    alone, together = entries("plain", "Adam", 9), entries("plain", "Adam", 9)
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        many(*together, x, y, epochs=10_000_000, batch_size=16)
    timer.join()
    assert threading.active_count() == before
    histories = caught.value.histories
    assert len(histories) == 9
    done = [int(optimizer.steps[0, 1]) for optimizer in together[1]]
    begun = [i for i in range(9) if done[i] > 0]
    assert 0 < len(begun) <= threads
    for i in begun:
        assert histories[i].epochs == done[i] // 4
        take(alone[0][i], alone[1][i], x, y, done[i])
        assert bits(together[0][i]) == bits(alone[0][i])


def take(model, optimizer, x, y, steps):
    """So many steps of a fit in batches of 16."""
    left = [steps]

    class Until(cl.DataGenerator):
        """Batches, as long as there are steps left."""

        def __iter__(self):
            for batch in super().__iter__():
                if left[0] > 0:
                    left[0] -= 1
                    yield batch

    batches = Until(x, y, batch_size=16, seed=model._own.rng)
    epochs = -(-steps // 4)
    model.fit(batches, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, verbose=0)


def test_a_handler_of_ctrl_c_that_raises_nothing_lets_it_go_on(threads):
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
        timer.start()
        histories = many(*entries("plain", "Adam", 4), *data(), epochs=1000)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    assert [h.epochs for h in histories] == [1000] * 4


# ---- what it is given -----------------------------------------------------------------------------------------------


def shared_function():
    models, optimizers = entries("plain", "SGD", 4)
    models[2] = cl.Model([*models[1].functions])
    optimizers[2] = cl.SGD(models[2].parameters(), lr=0.1)
    return {"models": models, "optimizers": optimizers}


def shared_dropout():
    dropout = cl.Dropout(0.5)
    models = [cl.Model([cl.Linear(4, 3), dropout], seed=i) for i in range(4)]
    return {"models": models, "optimizers": [cl.SGD(m.parameters(), lr=0.1) for m in models]}


def of_another(i, j):
    models, optimizers = entries("plain", "SGD", 4)
    optimizers[i] = cl.SGD([*models[i].parameters(), *models[j].parameters()], lr=0.1)
    return {"models": models, "optimizers": optimizers}


def with_optimizer(i, make):
    models, optimizers = entries("plain", "SGD", 4)
    optimizers[i] = make(models, optimizers)
    return {"models": models, "optimizers": optimizers}


def penalized():
    models, optimizers = entries("plain", "SGD", 4)
    return {"models": models, "optimizers": optimizers, "loss": cl.Penalized(cl.SoftmaxLoss(), models[0].parameters())}


BAD = [
    (lambda: {"models": []}, ValueError, "models: expected one or more, got none"),
    (lambda: {"models": classifier(4, 3)}, TypeError, "models: expected a list with one for each model"),
    (lambda: {"models": [classifier(4, 3), 3, 4, 5]}, TypeError, "model 1: expected a Model, got 3"),
    (lambda: {"optimizers": []}, ValueError, "optimizers: expected one for each of 4 models, got 0"),
    (lambda: {"loss": [cl.SoftmaxLoss()]}, ValueError, "loss: expected one for each of 4 models, got 1"),
    (lambda: {"loss": [*[cl.SoftmaxLoss()] * 3, "mse"]}, TypeError, "model 3: loss: expected a Function"),
    (lambda: {"rows": [None]}, ValueError, "rows: expected one for each of 4 models, got 1"),
    (lambda: {"rows": [None, [1, 2], [50], [3]]}, IndexError, "model 2: rows: index 50 in row 0 is not in 0 … 49"),
    (lambda: {"rows": [None, [1, 2], [-1], [3]]}, IndexError, "model 2: rows: index -1 in row 0"),
    (lambda: {"rows": [None, [[1, 2]], [1], [3]]}, ValueError, r"model 1: rows: .* got shape \(1, 2\)"),
    (lambda: {"rows": [None, [], [1], [3]]}, (ValueError, TypeError), "model 1: rows"),
    (
        lambda: {"rows": [np.ones(50, bool), None, None, None]},
        TypeError,
        r"model 0: rows: .* got a mask; np\.flatnonzero\(mask\) gives",
    ),
    (
        lambda: {"rows": [(np.arange(40), np.arange(40, 50))] * 4},
        TypeError,
        r"model 0: rows: got a pair of arrays; .* rows=\[train for train, test in folds\]",
    ),
    (lambda: {"loss": cl.SoftmaxLoss}, TypeError, r"model 0: loss: expected a Function such as SoftmaxLoss\(\)"),
    (
        lambda: {"loss": "mse"},
        TypeError,
        r"model 0: loss: expected a Function such as SoftmaxLoss\(\), or a function, got 'mse'",
    ),
    (lambda: with_optimizer(2, lambda ms, os: os[1]), ValueError, "model 2: the optimizer does not have the model's"),
    (lambda: with_optimizer(2, lambda ms, os: "SGD"), TypeError, "model 2: optimizer: expected an Optimizer"),
    (lambda: of_another(3, 1), ValueError, "models 1 and 3 share .*weight"),
    (shared_function, ValueError, "models 1 and 2 share .*weight"),
    (shared_dropout, ValueError, r"models 0 and 1 share a buffer \(2,\)"),
    (penalized, ValueError, "models 0 and 1 share .*weight"),
    (lambda: {"epochs": 0}, ValueError, "epochs must be at least 1"),
    (lambda: {"batch_size": 2.5}, TypeError, "batch_size must be an integer"),
    (lambda: {"seed": np.random.default_rng(0)}, TypeError, "seed: expected an integer or None"),
    (lambda: {"seed": -1}, ValueError, "seed: expected an integer from 0 on"),
    (lambda: {"x": np.zeros((50, 5))}, ValueError, "model 0: .*rows of 5 features"),
    (lambda: {"y": np.full(50, 3)}, ValueError, "model 0: .*3"),
    (lambda: {"y": np.zeros(49, int)}, ValueError, "model 0: x has 50 rows, y has shape"),
    (lambda: {"x": np.full((50, 4), "a")}, TypeError, "model 0: x: expected real numbers"),
]


@pytest.mark.parametrize(("given", "error", "text"), BAD, ids=[text for _, _, text in BAD])
def test_what_it_cannot_use_is_refused_before_anything_is_changed(given, error, text):
    x, y = data()
    models, optimizers = entries("plain", "SGD", 4)
    given = {"models": models, "optimizers": optimizers, "x": x, "y": y, "loss": cl.SoftmaxLoss(), **given()}
    known = [m for m in given["models"] if isinstance(m, cl.Model)] if isinstance(given["models"], list) else []
    before = [(bits(m), copy.deepcopy(m._own.rng.bit_generator.state)) for m in known]
    with pytest.raises(error, match=text):
        cl.fit_many(**given)
    assert [(bits(m), m._own.rng.bit_generator.state) for m in known] == before


def test_a_model_that_ends_with_what_the_loss_begins_with_is_warned_of():
    model = cl.Model([cl.Linear(4, 3), cl.Softmax()], seed=0)
    with pytest.warns(UserWarning, match="leave out Softmax"):
        many([model], [cl.SGD(model.parameters(), lr=0.1)], *data())


def test_threads_have_the_modes_of_their_caller(threads):
    models, optimizers = entries("plain", "SGD", 4)
    with cl.no_grad(), contextlib.suppress(AssertionError), pytest.raises(RuntimeError) as alone:
        models[0].fit(*data(), loss=cl.SoftmaxLoss(), optimizer=optimizers[0], verbose=0)
    with cl.no_grad(), pytest.raises(RuntimeError) as together:
        many(models, optimizers, *data())
    assert str(together.value) == str(alone.value)


def test_lists_of_data_for_each_model_are_refused():
    x, y = data()
    models, optimizers = entries("plain", "SGD", 3)
    before = [bits(model) for model in models]
    with pytest.raises(TypeError, match=r"lists of 3 arrays.* All models get the same x and y: select the rows"):
        many(models, optimizers, [x] * 3, [y] * 3)
    assert [bits(model) for model in models] == before


# ---- validation, metrics and patience -------------------------------------------------------------------------------


class TwoHeads(cl.Model):
    def __init__(self, seed, dtype=np.float32):
        super().__init__(seed=seed, dtype=dtype)
        self.body, self.classes, self.numbers = cl.Linear(4, 8), cl.Linear(8, 3), cl.Linear(8, 2)

    def call(self, x):
        h = self.body(x).relu()
        return self.classes(h), self.numbers(h)


def stopping(patience):
    return {} if patience is None else {"callbacks": [cl.callbacks.EarlyStopping(patience=patience)]}


def both(made, x, y, *, batch_size=32, patience=None, rows=None, loss=None, **options):
    """Train models one after the other, and others at once: all must end alike. Return the histories."""
    alone, together = made(), made()
    sizes = batch_size if isinstance(batch_size, list) else [batch_size] * len(alone[0])
    expected = []
    for i, (model, optimizer) in enumerate(zip(*alone, strict=True)):
        taken = slice(None) if rows is None or rows[i] is None else rows[i]
        part = x[taken], (tuple(one[taken] for one in y) if isinstance(y, tuple) else y[taken])
        own = {"batch_size": sizes[i], **stopping(patience), **options}
        expected += lone([model], [optimizer], *part, loss=loss, **own)
    found = many(*together, x, y, loss=loss, batch_size=batch_size, patience=patience, rows=rows, **options)
    assert found == expected
    assert [list(history) for history in found] == [list(history) for history in expected]
    assert_alike(together, alone)
    for one, other in zip(alone[0], together[0], strict=True):
        splits = [{n: s.bit_generator.state for n, s in m._own.splits.items()} for m in (one, other)]
        assert splits[0] == splits[1]
    return found


VALIDATED = {
    "data": {"validation_data": True},
    "weighted data": {"validation_data": True, "weights": True},
    "split": {"validation_split": 0.3},
    "split by a seed": {"validation_split": 0.3, "seed": 5},
    "a row alone at the end": {"validation_split": 0.35},  # 33 rows, in batches of 16
}


@pytest.mark.parametrize("patience", [None, 2])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", VALIDATED)
def test_validation_and_patience_are_those_of_lone_fits(threads, how, model, patience):
    x, y = data()
    options = dict(VALIDATED[how])
    if "validation_data" in options:
        weights = [np.linspace(0, 1, 20)] if options.pop("weights", False) else []
        options["validation_data"] = (x[:20] + 0.1, y[:20], *weights)
    options |= {"metrics": ["accuracy", "f1"], "epochs": 6, "batch_size": 16, "patience": patience}
    both(lambda: entries(model, "Adam"), x, y, **options)


@pytest.mark.parametrize("model", ["plain", "random and normalized"])
def test_rows_to_evaluate_and_weights_are_those_of_lone_fits(threads, model):
    x, y = data()
    weights = np.linspace(0, 2, len(y))
    held_out = [np.arange(i, len(y), 5) for i in range(5)]
    rows = [np.setdiff1d(np.arange(len(y)), test) for test in held_out]
    alone, together = entries(model, "Adam"), entries(model, "Adam")
    options = {"epochs": 5, "batch_size": 16, "metrics": ["accuracy"]}
    found = many(*together, x, y, rows=rows, validation_rows=held_out, sample_weight=weights, patience=2, **options)
    for i, (a, optimizer) in enumerate(zip(*alone, strict=True)):
        test = held_out[i]
        expected = a.fit(
            *(x[rows[i]], y[rows[i]]),
            **options,
            **stopping(2),
            loss=cl.SoftmaxLoss(),
            optimizer=optimizer,
            sample_weight=weights[rows[i]],
            validation_data=(x[test], y[test], weights[test]),
            verbose=0,
        )
        assert found[i] == expected
    assert_alike(together, alone)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"validation_rows": [[0]]}, ValueError, "validation_rows: expected one for each of 4 models, got 1"),
        ({"validation_rows": [[0], [1], [999], [2]]}, IndexError, "model 2: validation_rows: index 999"),
        ({"validation_rows": [[0], np.zeros(0, int), [1], [2]]}, ValueError, "model 1: validation_rows"),
        ({"validation_rows": [[0.5]] * 4}, TypeError, "model 0: validation_rows"),
        ({"sample_weight": np.ones(3)}, ValueError, "model 0: .*weight"),
        ({"sample_weight": np.full(len(data()[1]), -1.0)}, ValueError, "model 0: .*weight"),
    ],
)
def test_rows_to_evaluate_and_weights_are_checked_before_anything_is_changed(given, error, text):
    models, optimizers = entries("plain", "SGD", 4)
    before = [bits(m) for m in models]
    with pytest.raises(error, match=text):
        many(models, optimizers, *data(), **given)
    assert [bits(m) for m in models] == before


class Shifted(cl.Function, by_row=True):
    """x − 10⁹, subtracted in float64."""

    takes_float64 = True

    def forward(self, x):
        return (x - 1e9).astype(np.float32)

    def backward(self, dy):
        return dy


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_models_that_round_the_rows_differently_get_rows_of_their_own(threads, order):
    x, y = data()
    far = 1e9 + x.astype(np.float64)

    def made():
        models = [cl.Model([cl.Linear(4, 3)], seed=0), cl.Model([Shifted(), cl.Linear(4, 3)], seed=0)]
        models = [models[i] for i in order]
        return models, [cl.SGD(m.parameters(), 1e-20) for m in models]

    models, _ = made()
    for model, outputs in zip(models, cl.predict_many(models, far), strict=True):
        np.testing.assert_array_equal(outputs, model.predict(far))
    (alone, of_alone), together = made(), made()
    assert many(*together, far, y) == lone(alone, of_alone, far, y)


def test_each_model_stops_at_an_epoch_of_its_own(threads):
    x, y = data()
    histories = both(
        lambda: entries("random and normalized", "Adam", 8),
        x[:30],
        y[:30],
        validation_data=(x[30:], y[30:]),
        epochs=60,
        patience=3,
        batch_size=8,
    )
    lengths = {history.epochs for history in histories}
    assert len(lengths) > 3
    assert max(lengths) < 60
    assert list(histories[0]) == ["loss", "val_loss"]


def test_a_further_training_holds_out_the_same_rows(threads):
    x, y = data()
    alone, together = entries("plain", "Adam"), entries("plain", "Adam")
    options = {"validation_split": 0.2, "epochs": 2, "metrics": ["accuracy"]}
    for _ in range(2):
        assert many(*together, x, y, patience=1, **options) == lone(*alone, x, y, **stopping(1), **options)
    assert_alike(together, alone)


@pytest.mark.parametrize("options", [{}, {"validation_split": 0.25, "metrics": ["mae"], "patience": 2}])
def test_batch_sizes_may_be_each_models_own(threads, options):
    x, y = data(2)
    sizes = [16, 50, 7, 16, 1, 64, 49, 33]
    loss = cl.SigmoidLoss()

    def made():
        models = [cl.Model([cl.Linear(4, 6), cl.BatchNorm(6), cl.ReLU(), cl.Linear(6, 1)], seed=i) for i in range(8)]
        return models, [cl.SGD(m.parameters(), lr=0.1) for m in models]

    sizes[4] = 2  # a batch of one row has no variance
    both(made, x, y, batch_size=sizes, epochs=4, loss=loss, **options)


@pytest.mark.parametrize("how", ["data", "split"])
def test_folds_go_with_validation(threads, how):
    x, y = data()
    rng = np.random.default_rng(1)
    folds = [np.delete(np.arange(ROWS), np.arange(i, ROWS, 5)) for i in range(5)]
    folds += [rng.integers(0, ROWS, ROWS), np.arange(17)[::-1], None]
    given = {"validation_data": (x[::2], y[::2])} if how == "data" else {"validation_split": 0.4}
    options = {"rows": folds, "epochs": 8, "batch_size": 16, "patience": 2, "metrics": ["balanced_accuracy"]}
    both(lambda: entries("plain", "Adam", 8), x, y, **options, **given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", ["plain", "data", "split"])
def test_several_targets_have_the_histories_of_lone_fits(threads, how, dtype):
    x, labels = data()
    numbers = np.stack([x[:, 0] * x[:, 1], x[:, 2]], axis=1)

    def made():
        models = [TwoHeads(seed, dtype) for seed in range(6)]
        return models, [cl.Adam(m.parameters(), lr=0.01 * (i + 1)) for i, m in enumerate(models)]

    loss = cl.Losses([cl.SoftmaxLoss(), cl.MSELoss()], weights=[1.0, 0.5])
    options = {"loss": loss, "epochs": 6, "batch_size": 16, "metrics": (["accuracy"], ["mae", "r2"])}
    if how == "data":
        options["validation_data"] = x[:20] + 0.1, (labels[:20], numbers[:20])
    elif how == "split":
        options["validation_split"] = 0.3
    histories = both(made, x, (labels, numbers), patience=None if how == "plain" else 2, **options)
    names = ["loss", "loss_0", "loss_1", "accuracy_0", "mae_1", "r2_1"]
    assert list(histories[0]) == names + ([] if how == "plain" else [f"val_{name}" for name in names])


def test_metrics_of_ones_own_and_losses_in_python_go_with_patience(threads):
    def furthest(outputs, targets):
        return np.abs(outputs - targets).max()

    def own_loss(outputs, targets):
        return ((outputs - targets) ** 2).mean()

    x, y = data()
    made = functools.partial(entries, "plain", "SGD")
    onto = np.eye(3)[y]
    options = {"validation_data": (x[:9], onto[:9]), "epochs": 5, "patience": 1, "metrics": [furthest, "mse"]}
    for loss in (cl.MSELoss(), own_loss):
        both(made, x, onto, loss=loss, **options)


def test_a_model_that_diverges_gets_the_parameters_of_its_best_epoch(threads):
    x, y = data()
    rates = [0.01, 1e4, 0.02, 1e5, 0.01, 3e3, 0.03]

    def made():
        models = [cl.Model([cl.Linear(4, 8), cl.ReLU(), cl.Linear(8, 3)], seed=i) for i in range(7)]
        return models, [cl.SGD(m.parameters(), lr=lr) for m, lr in zip(models, rates, strict=True)]

    options = {"loss": cl.MSELoss(), "validation_split": 0.2, "epochs": 40}
    alone, together = made(), made()
    histories = []
    for i, (model, optimizer) in enumerate(zip(*alone, strict=True)):
        with pytest.raises(cl.TrainingDiverged) if rates[i] > 1 else contextlib.nullcontext() as caught:
            histories += lone([model], [optimizer], x, np.eye(3)[y], **stopping(40), **options)
        if caught is not None:
            histories.append(caught.value.history)
    with pytest.raises(cl.TrainingDiverged, match=r"model 1 diverged: epoch \d+, batch \d") as caught:
        many(*together, x, np.eye(3)[y], patience=40, **options)
    assert caught.value.histories == histories
    assert_alike(together, alone, but=["gradient"])


def test_ctrl_c_gives_each_model_its_best_epoch(threads):
    x, y = data()
    models, optimizers = entries("plain", "Adam", 9)
    first = [bits(model) for model in models]
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        many(models, optimizers, x, y, epochs=10_000_000, patience=10_000_000, validation_data=(x[:20], 2 - y[:20]))
    timer.join()
    histories = caught.value.histories
    begun = [i for i, history in enumerate(histories) if history.epochs]
    assert 0 < len(begun) <= threads
    for i in begun:
        best = int(np.argmin(histories[i]["val_loss"]))
        model = MODELS["plain"](i)
        lone([model], [OPTIMIZERS["Adam"](model.parameters(), i)], x, y, epochs=best + 1)
        assert bits(models[i]) == bits(model)
    assert [bits(m) for i, m in enumerate(models) if i not in begun] == [
        b for i, b in enumerate(first) if i not in begun
    ]


BAD_VALIDATION = [
    (
        {"patience": 3},
        ValueError,
        "patience watches val_loss: give validation_data, validation_split or validation_rows",
    ),
    ({"patience": 0, "validation_split": 0.2}, ValueError, "patience must be at least 1"),
    ({"patience": 1.5, "validation_split": 0.2}, TypeError, "patience must be an integer"),
    (
        {"validation_split": 0.2, "validation_data": True},
        ValueError,
        "one of validation_data, validation_split and validation_rows",
    ),
    ({"validation_split": 1.0}, ValueError, r"model 0: validation_split must be in \[0, 1\), got 1.0"),
    ({"validation_split": True}, TypeError, "model 0: validation_split must be a number"),
    (
        {"validation_split": 0.1, "rows": [None, None, [1, 2, 3], None]},
        ValueError,
        "model 2: validation_split 0.1 of 3 rows leaves no row to evaluate",
    ),
    ({"validation_data": 3}, TypeError, r"validation_data: expected \(x, y\) or \(x, y, weights\), got int"),
    (
        {"validation_data": cl.DataGenerator(*data())},
        TypeError,
        r"validation_data: expected \(x, y\) or \(x, y, weights\), got DataGenerator",
    ),
    ({"validation_data": (np.zeros((5, 4)), None)}, TypeError, r"validation_data: expected \(x, y\), got None for y"),
    (
        {"validation_data": (np.zeros((5, 3)), np.zeros(5, int))},
        ValueError,
        "model 0: .*rows of 3 features",
    ),
    (
        {"validation_data": (np.zeros((5, 4)), np.zeros(4, int))},
        ValueError,
        "model 0: validation_data's x has 5 rows, y has shape",
    ),
    ({"validation_data": (np.zeros((5, 4)), np.full(5, 7))}, ValueError, "model 0: .*7"),
    (
        {"validation_data": (np.zeros((5, 4)), np.zeros(5, int), np.full(5, -1.0))},
        ValueError,
        "model 0: .*weight",
    ),
    ({"metrics": "accuracy"}, TypeError, r"metrics: expected a list such as \['accuracy'\]"),
    ({"metrics": ["acuracy"]}, ValueError, "acuracy"),
    ({"metrics": ["loss_0"], "loss": cl.Losses([cl.SoftmaxLoss()])}, ValueError, "loss_0"),
    ({"batch_size": [16, 16]}, ValueError, "batch_size: expected one for each of 4 models, got 2"),
    ({"batch_size": [16, 0, 1, 1]}, ValueError, "model 1: batch_size must be at least 1"),
    ({"batch_size": [16, 16, 1.5, 1]}, TypeError, "model 2: batch_size must be an integer"),
    ({"batch_size": "16"}, (TypeError, ValueError), "batch_size"),
    ({"shuffle": 1}, TypeError, "shuffle must be True or False, got 1"),
]


@pytest.mark.parametrize(("given", "error", "text"), BAD_VALIDATION, ids=[text for _, _, text in BAD_VALIDATION])
def test_validation_it_cannot_use_is_refused_before_anything_is_changed(given, error, text):
    x, y = data()
    models, optimizers = entries("plain", "SGD", 4)
    if given.get("validation_data") is True:
        given = {**given, "validation_data": (x, y)}
    before = [(bits(m), copy.deepcopy(m._own.rng.bit_generator.state)) for m in models]
    with pytest.raises(error, match=text):
        many(models, optimizers, x, y, **given)
    assert [(bits(m), m._own.rng.bit_generator.state) for m in models] == before
    assert not any(m._own.splits for m in models)


def test_validation_frames_must_have_the_columns_of_the_training(threads):
    pandas = pytest.importorskip("pandas")
    x, y = data()
    frame = pandas.DataFrame(x, columns=list("abcd"))
    both(lambda: entries("plain", "SGD"), x, y, validation_data=(x[:9], y[:9]), epochs=2)
    models, optimizers = entries("plain", "SGD", 3)
    with pytest.raises(ValueError, match="model 0: validation_data's x"):
        many(models, optimizers, frame, y, validation_data=(frame[list("bacd")], y))
    found = many(models, optimizers, frame, y, validation_data=(frame[:9], y[:9]), epochs=2)
    assert found == lone(*entries("plain", "SGD", 3), frame, y, validation_data=(frame[:9], y[:9]), epochs=2)


def test_a_warning_of_a_schedule_knows_what_is_held_out_and_joined():
    x, y = data()
    steps = 3 * 2  # 33 rows in batches of 16, of which the last joins the one before
    for length, warns in ((steps, 0), (steps - 1, 1)):
        models = [MODELS["random and normalized"](0)]
        optimizers = [cl.SGD(models[0].parameters(), lr=cl.schedules.cosine(0.1, length))]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            many(models, optimizers, x, y, epochs=3, batch_size=16, validation_split=0.35)
        assert len(caught) == warns


# ---- predict_many ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, ROWS, 1500])
def test_predict_many_has_the_bits_of_predict(threads, rows):
    x = np.random.default_rng(2).normal(size=(rows, 4))
    trained, others = ([m for kind in MODELS for m in entries(kind, "Adam", 4)[0]] for _ in range(2))
    optimizers = [cl.Adam(m.parameters()) for m in trained]
    many(trained, optimizers, *data(), epochs=2)  # BatchNorms have seen something
    for models in (trained, others, trained[:1]):
        before = [bits(model) for model in models]
        for _ in range(2):
            found = cl.predict_many(models, x)
            expected = [model.predict(x) for model in models]
            assert [y.tobytes() for y in found] == [y.tobytes() for y in expected]
            assert [(y.shape, y.dtype) for y in found] == [(y.shape, y.dtype) for y in expected]
        assert [bits(model) for model in models] == before


def test_predict_many_takes_what_predict_takes(threads):
    x, _ = data()
    heads = [TwoHeads(seed) for seed in range(5)]
    for found, model in zip(cl.predict_many(iter(heads), x.tolist(), batch_size=16), heads, strict=True):
        assert isinstance(found, tuple)
        for y, expected in zip(found, model.predict(x, batch_size=16), strict=True):
            assert np.array_equal(y, expected)
    readers = [cl.Model([cl.Embedding(5, 3), cl.Flatten(), cl.Linear(6, 2)], seed=i) for i in range(5)]
    words = np.array([[0, 4], [1, 2], [3, 3]])
    for y, model in zip(cl.predict_many(readers, words), readers, strict=True):
        assert np.array_equal(y, model.predict(words))
    same = cl.predict_many([heads[0]] * 4, x)
    assert all(np.array_equal(a, b) for ys in same for a, b in zip(ys, same[0], strict=True))
    words[1, 1] = 5
    with pytest.raises(IndexError, match="model 0: predict: index 5 in row 1"):
        cl.predict_many(readers, words)


def test_predict_many_shares_recordings(threads, monkeypatch):
    recordings = []

    def record(self, *arguments, original=Program.record):
        recordings.append(self)
        original(self, *arguments)

    monkeypatch.setattr(Program, "record", record)
    cl.predict_many(entries("plain", "Adam", 12)[0], data()[0])
    assert 0 < len(recordings) <= threads


def test_predict_many_refuses_before_it_predicts():
    x, _ = data()
    models = entries("plain", "SGD", 3)[0]
    with pytest.raises(ValueError, match="models: expected one or more, got none"):
        cl.predict_many([], x)
    with pytest.raises(TypeError, match="models: expected a list with one for each model"):
        cl.predict_many(models[0], x)
    with pytest.raises(TypeError, match="model 3: expected a Model, got 3"):
        cl.predict_many([*models, 3], x)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        cl.predict_many(models, x, batch_size=0)
    with pytest.raises(ValueError, match=r"model 3: .*rows of 4 features"):
        cl.predict_many([*models, classifier(5, 3)], x)
    with pytest.raises(TypeError, match="model 0: predict: expected real numbers"):
        cl.predict_many(models, np.full((5, 4), "a"))


def test_what_a_function_raises_in_predict_many_comes_through(threads):
    class Raising(cl.Function):
        def forward(self, x):
            raise ZeroDivisionError("mine")

        def backward(self, dy):
            return dy

        def output_shape(self, shape):
            return shape

    models = [*entries("plain", "SGD", 3)[0], cl.Model([cl.Linear(4, 3), Raising()], seed=0)]
    with pytest.raises(ZeroDivisionError, match="mine"):
        cl.predict_many(models, data()[0])


@pytest.mark.parametrize("name", ["rows", "validation_rows"])
def test_rows_that_all_weigh_0_are_refused_before_the_first_step(name):
    models, data, options = small_models()
    before = [bits(model) for model in models]
    rows = [np.arange(40)] * 4 + [np.arange(30, 40)]
    with pytest.raises(ValueError, match=f"model 4: {name}: all of 10 rows have sample_weight 0"):
        cl.fit_many(*data, **options, **{name: rows}, sample_weight=np.arange(40) < 30)
    assert [bits(model) for model in models] == before


def test_a_split_whose_rows_all_weigh_0_is_refused():
    _, data, options = small_models()
    with pytest.raises(ValueError, match=r"validation_split: all of .0 rows have sample_weight 0"):
        cl.fit_many(*data, **options, validation_split=0.25, sample_weight=np.arange(40) == 7)


# ---- progress -------------------------------------------------------------------------------------------------------


def small_models():
    """Five models with the arguments of `fit_many`. The first does not learn."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    models = [cl.MLP(3, [4, 1], seed=i) for i in range(5)]
    optimizers = [cl.SGD(m.parameters(), lr=0.01 if i else 1e-30) for i, m in enumerate(models)]
    return models, (models, x, x[:, :1]), {"loss": cl.MSELoss(), "optimizers": optimizers}


def test_the_epochs_of_all_models_are_shown_without_those_that_an_early_end_saves(capsys):
    _, data, options = small_models()
    histories = cl.fit_many(*data, **options, epochs=40, validation_split=0.25, patience=1, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    found = [re.match(r"5 models, epoch (\d+)/(\d+)  loss \S+  val_loss \S+  ", line).groups() for line in lines]
    assert histories[0].epochs == 2
    assert [int(epoch) for epoch, _ in found] == list(range(1, len(lines) + 1))
    assert len(lines) == sum(history.epochs for history in histories)
    assert int(found[-1][1]) < 5 * 40


def test_a_verbose_that_there_is_not_is_refused_before_the_first_step():
    models, data, options = small_models()
    before = [bits(model) for model in models]
    with pytest.raises(ValueError, match="verbose: expected 0, 1, 2 or"):
        cl.fit_many(*data, **options, verbose=7)
    assert [bits(model) for model in models] == before
