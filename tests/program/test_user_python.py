"""A user's loss or `call` may do what it likes: `fit` trains as the loop by hand, to the bit.

What a replay would not repeat (NumPy inside, a look at values, random numbers drawn in Python, counters) is no reason
to refuse a program, and even less to train another net than the one that is written.
"""

import collections
import contextlib
import functools
import itertools
import random
import sys
import types
import warnings

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels

X = np.random.default_rng(0).normal(size=(48, 6)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, 48)
VALUES = X[:, :1] * 2 + 1
FORMS = {}


def form(recorded, *, y=LABELS, x=X):
    """A form of training: a function that makes a model and a loss. Is its step recorded, or is there a warning?"""

    def note(make):
        FORMS[make.__name__] = (make, recorded, x, y)
        return make

    return note


def net(out=3):
    return cl.MLP(6, [8, out], seed=0)


def focal(p):
    return -(((1 - p) ** 2) * (p + 1e-7).log()).mean()


# ---- losses ----


@form(recorded=False)
def focal_loss_by_fancy_indexing():
    return net(), lambda s, y: focal(s.softmax()[np.arange(len(y)), y])


@form(recorded=False)
def focal_loss_by_an_identity_matrix():
    return net(), lambda s, y: focal((s.softmax() * np.eye(3, dtype=np.float32)[y]).sum(axis=1))


@form(recorded=False)
def focal_loss_by_comparing():
    return net(), lambda s, y: focal((s.softmax() * (y[:, None] == np.arange(3)).astype(np.float32)).sum(axis=1))


@form(recorded=False)
def focal_loss_by_where():
    one_hot = lambda y: np.where(y[:, None] == np.arange(3), np.float32(1), np.float32(0))  # noqa: E731
    return net(), lambda s, y: focal((s.softmax() * one_hot(y)).sum(axis=1))


@form(recorded=True, y=(VALUES > 1).astype(np.float32))
def focal_loss_of_one_score():
    def loss(s, y):
        p, y = s.sigmoid(), cl.Tensor(y)
        return -(y * (1 - p) ** 2 * (p + 1e-7).log() + (1 - y) * p**2 * (1 - p + 1e-7).log()).mean()

    return net(1), loss


@form(recorded=False, y=VALUES)
def quantiles_by_a_comparison_of_arrays():
    class Quantiles(cl.Model):
        def __init__(self):
            super().__init__()
            self.q = np.float32([0.1, 0.5, 0.9])

        def call(self, outputs, y):
            d = cl.Tensor(y) - outputs
            return cl.where(outputs.data < y, self.q * d, (self.q - 1) * d).mean()

    return net(3), Quantiles()


@form(recorded=True, y=VALUES)
def quantiles_by_an_array_kept_outside():
    class Quantiles(cl.Model):
        def __init__(self):
            super().__init__()
            self.q = np.float32([0.1, 0.5, 0.9])

        def call(self, outputs, y):
            d = cl.Tensor(y) - outputs
            return (self.q * d.relu() + (1 - cl.Tensor(self.q)) * (-d).relu()).mean()

    return net(3), Quantiles()


@form(recorded=False, y=VALUES)
def quantiles_by_arithmetic_of_numpy():
    q = np.float32([0.1, 0.5, 0.9])
    return net(3), lambda o, y: ((q - 0.5) * (cl.Tensor(y) - o) + (cl.Tensor(y) - o).abs() * 0.5).mean()


@form(recorded=False)
def contrastive_with_integer_labels():
    def loss(h, y):
        same = (y[:-1] == y[1:]).astype(np.float32)
        d = ((h[1:] - h[:-1]) ** 2).sum(axis=1)
        return (same * d + (1 - same) * (1.0 - d).relu()).mean()

    return net(4), loss


@form(recorded=False, y=VALUES)
def a_weight_that_grows_by_a_counter():
    class Annealed(cl.Model):
        def __init__(self):
            super().__init__()
            self.t = 0

        def call(self, o, y):
            self.t += 1
            return ((o - y) ** 2).mean() * min(1.0, self.t / 10)

    return net(1), Annealed()


@form(recorded=False, y=VALUES)
def a_counter_in_an_enclosing_function():
    t = 0

    def loss(o, y):
        nonlocal t
        t += 1
        return ((o - y) ** 2).mean() * (1 / t)

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_in_a_dict():
    state = {"t": 0}

    def loss(o, y):
        state["t"] += 1
        return ((o - y) ** 2).mean() * (1 / state["t"])

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_in_an_object():
    config = types.SimpleNamespace(t=0)

    def count():
        config.t += 1
        return config.t

    return net(1), lambda o, y: ((o - y) ** 2).mean() * (1 / count())


@form(recorded=False, y=VALUES)
def a_counter_in_an_array():
    class Counts(Net):
        out = 1

        def prepare(self):
            self.t = np.zeros(1)

        def call(self, x):
            self.t[0] += 1
            return super().call(x) * float(1 / self.t[0])

    return Counts(), cl.MSELoss()


def loss_times(factor):
    """A loss whose factor Python computes, on a line of this file."""
    return net(1), lambda o, y: ((o - y) ** 2).mean() * (1 / factor())


@form(recorded=False, y=VALUES)
def a_counter_in_slots():
    class Box:
        __slots__ = ("t", "unset")

        def __init__(self):
            self.t = 0

        def count(self):
            self.t += 1
            return self.t

    return loss_times(Box().count)


@form(recorded=True, y=VALUES)
def a_number_and_a_result_kept_in_slots():
    class Box:
        __slots__ = ("factor", "last", "made_once")

    box = Box()
    box.factor = 0.5

    class Keeps(Net):
        out = 1

        def call(self, x):
            if not hasattr(box, "made_once"):
                box.made_once = 2.0
            box.last = super().call(x) * (box.factor * box.made_once)
            return box.last

    return Keeps(), cl.MSELoss()


@form(recorded=False, y=VALUES)
def a_counter_of_indexing():
    class Weights:
        t = 0

        def __getitem__(self, i):
            self.t += 1
            return self.t

    weights = Weights()
    return loss_times(lambda: weights[0])


@form(recorded=False, y=VALUES)
def a_counter_in_a_descriptor():
    class Counts:
        t = 0

        def __get__(self, of, kind):
            self.t += 1
            return self.t

    class Schedule:
        weight = Counts()

    schedule = Schedule()
    return loss_times(lambda: schedule.weight)


@form(recorded=False, y=VALUES)
def a_counter_in_an_attribute_of_a_function():
    def loss(o, y):
        loss.t += 1
        return ((o - y) ** 2).mean() * (1 / loss.t)

    loss.t = 0
    return net(1), loss


@form(recorded=False, y=VALUES)
def a_bound_method_that_takes_from_a_list():
    return loss_times(list(range(1, 100)).pop)


@form(recorded=False, y=VALUES)
def a_bound_method_of_an_iterator():
    return loss_times(itertools.count(1).__next__)


@form(recorded=False, y=VALUES)
def a_bound_method_of_a_random_stream():
    return loss_times(random.Random(0).random)


@form(recorded=False, y=VALUES)
def a_bound_method_of_numpys_random_stream():
    draw = np.random.default_rng(0).random
    return loss_times(lambda: 1 + draw())


@form(recorded=False, y=VALUES)
def a_counter_in_a_module_that_is_imported_inside():
    module = sys.modules["counts_of_a_user"] = types.ModuleType("counts_of_a_user")
    module.__file__, module.t = "counts_of_a_user.py", 0

    def count():
        import counts_of_a_user

        counts_of_a_user.t += 1
        return counts_of_a_user.t

    return loss_times(count)


@form(recorded=False, y=VALUES)
def a_counter_behind_the_decorator_of_a_library():
    t = [0]

    @contextlib.contextmanager
    def counted():
        t[0] += 1
        yield t[0]

    def loss(o, y):
        with counted() as count:
            return ((o - y) ** 2).mean() * (1 / count)

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_behind_a_cache():
    t = [0]

    @functools.lru_cache(maxsize=0)
    def count():
        t[0] += 1
        return t[0]

    return loss_times(count)


@form(recorded=False, y=VALUES)
def a_counter_in_a_dict_of_a_library():
    state = collections.UserDict(t=0)

    def loss(o, y):
        state["t"] += 1
        return ((o - y) ** 2).mean() * (1 / state["t"])

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_in_an_attribute_of_a_list():
    class Weights(list):
        t = 0

    weights = Weights([1.0])

    def loss(o, y):
        weights.t += 1
        return ((o - y) ** 2).mean() * (weights[0] / weights.t)

    return net(1), loss


@form(recorded=False, y=VALUES)
def a_counter_in_a_masked_array():
    t = np.ma.zeros(1)

    def loss(o, y):
        t[0] += 1
        return ((o - y) ** 2).mean() * float(1 / t[0])

    return net(1), loss


@form(recorded=True, y=VALUES)
def a_small_array_that_kernels_write():
    class Follows(Net):
        out = 1

        def prepare(self):
            self.mean = np.zeros(8, np.float32)

        def call(self, x):
            h = self.hidden(x)
            kernels.multiply(self.mean, 0.9, self.mean)
            return self.b(h + self.mean)

    return Follows(), cl.MSELoss()


@form(recorded=False, y=VALUES)
def an_iterator_of_weights():
    weights = itertools.cycle([0.5, 1.0, 2.0])
    return net(1), lambda o, y: ((o - y) ** 2).mean() * next(weights)


@form(recorded=False, y=VALUES)
def a_loss_that_looks_at_its_value():
    def loss(o, y):
        d = ((o - y) ** 2).mean()
        return d * 0.5 if d.item() > 1 else d

    return net(1), loss


@form(recorded=True, y=VALUES)
def a_function_of_functions():
    def half(o, y, factor):
        return ((o - y) ** 2).mean() * factor

    return net(1), functools.partial(half, factor=0.5)


@form(recorded=True, y=VALUES)
def an_object_that_is_called():
    class Scaled:
        factor = 0.5

        def __call__(self, o, y):
            return ((o - y) ** 2).mean() * self.factor

    return net(1), Scaled()


@form(recorded=False, y=VALUES)
def targets_transformed_by_numpy():
    return net(1), lambda o, y: ((o - np.tanh(y)) ** 2).mean()


# ---- models ----


class Net(cl.Model):
    """y = b(relu(a(x))), to be made in other ways below."""

    out = 3

    def __init__(self):
        super().__init__(seed=0)
        self.a, self.b = cl.Linear(6, 8), cl.Linear(8, self.out)
        self.prepare()

    def prepare(self):
        pass

    def hidden(self, x):
        return self.a(x).relu()

    def call(self, x):
        return self.b(self.hidden(x))


@form(recorded=True)
def a_model_that_keeps_its_hidden_values():
    class Keeps(Net):
        def call(self, x):
            self.h = self.hidden(x)
            return self.b(self.h)

    return Keeps(), cl.SoftmaxLoss()


@form(recorded=True)
def a_model_that_prepares_something_when_it_is_first_called():
    class Lazy(Net):
        scale = None

        def call(self, x):
            if self.scale is None:
                self.scale = 0.5
            return self.b(self.hidden(x) * self.scale)

    return Lazy(), cl.SoftmaxLoss()


@form(recorded=False)
def causal_padding_by_zeros():
    class Causal(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.c, self.f = cl.Conv1d(1, 4, 3), cl.Linear(24, 3)

        def call(self, x):
            x = x.reshape(len(x), 1, 6)
            x = cl.concatenate([cl.Tensor(np.zeros((len(x), 1, 2), np.float32)), x], axis=2)
            return self.f(self.c(x).relu().reshape(len(x), 24))

    return Causal(), cl.SoftmaxLoss()


@form(recorded=False, y=X)
def a_variational_autoencoder_with_noise_drawn_inside():
    class VAE(Net):
        out = 6

        def prepare(self):
            self.log_var, self.rng = cl.Linear(6, 8), np.random.default_rng(0)

        def call(self, x):
            noise = self.rng.standard_normal((len(x), 8)).astype(np.float32)
            return self.b(self.a(x) + (self.log_var(x) * 0.5).exp() * noise)

    return VAE(), cl.MSELoss()


@form(recorded=False)
def stochastic_depth_by_a_coin():
    class Depth(Net):
        def call(self, x):
            h = self.hidden(x)
            return self.b(h + h.tanh()) if random.random() < 0.5 else self.b(h)

    return Depth(), cl.SoftmaxLoss()


@form(recorded=False)
def stochastic_depth_by_numpys_global_stream():
    class Depth(Net):
        def call(self, x):
            h = self.hidden(x)
            return self.b(h + h.tanh()) if np.random.rand() < 0.5 else self.b(h)  # noqa: NPY002

    return Depth(), cl.SoftmaxLoss()


@form(recorded=False)
def scheduled_sampling_by_a_step_count():
    class Sampling(Net):
        def prepare(self):
            self.step = 0

        def call(self, x):
            self.step += 1
            h = self.hidden(x)
            return self.b(h if self.step > 5 else h * 0.5)

    return Sampling(), cl.SoftmaxLoss()


@form(recorded=False)
def a_mask_made_by_numpy():
    class Masked(Net):
        def call(self, x):
            mask = (x.data > 0).astype(np.float32)
            return self.b(self.hidden(x * mask))

    return Masked(), cl.SoftmaxLoss()


@form(recorded=False)
def a_temperature_that_falls():
    class Cooling(Net):
        def prepare(self):
            self.t = 1.0

        def call(self, x):
            if cl.is_training():
                self.t = max(0.1, self.t * 0.9)
            return super().call(x) / self.t

    return Cooling(), cl.SoftmaxLoss()


@form(recorded=True)
def a_learned_temperature():
    class Temperature(Net):
        def prepare(self):
            self.temperature = cl.Tensor(2.0, requires_grad=True)

        def call(self, x):
            return super().call(x) / self.temperature

    return Temperature(), cl.SoftmaxLoss()


@form(recorded=False)
def a_state_that_goes_from_batch_to_batch():
    class Stateful(Net):
        def prepare(self):
            self.state = cl.Tensor(np.zeros((1, 8), np.float32))

        def call(self, x):
            h = self.hidden(x) + self.state
            self.state = h.detach().mean(axis=0, keepdims=True)
            return self.b(h)

    return Stateful(), cl.SoftmaxLoss()


@form(recorded=False)
def a_queue_of_what_was_seen():
    class Queue(Net):
        def prepare(self):
            self.seen = collections.deque([0.0], maxlen=3)

        def call(self, x):
            self.seen.append(self.seen[-1] + 1)
            return super().call(x) * (1 / sum(self.seen))

    return Queue(), cl.SoftmaxLoss()


def by_hand(model, loss, x, y, epochs):
    """The training that `fit` is to do, step after step."""
    optimizer = cl.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for start in range(0, len(x), 16):
            optimizer.zero_grad()
            loss(model(x[start : start + 16]), y[start : start + 16]).backward()
            optimizer.step()
    return [p.data.copy() for p in model.parameters()]


def seeded(make):
    """A model and a loss, the global random streams being as they are at first."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    return make()


@pytest.mark.parametrize("name", FORMS)
def test_fit_trains_as_the_loop_by_hand_recorded_or_with_one_warning(name):
    make, recorded, x, y = FORMS[name]
    expected = by_hand(*seeded(make), x, y, epochs=4)
    model, loss = seeded(make)
    optimizer = cl.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y, loss=loss, optimizer=optimizer, epochs=4, batch_size=16, shuffle=False, verbose=0)
    for p, values in zip(model.parameters(), expected, strict=True):
        np.testing.assert_array_equal(p.data, values)
    assert len(caught) == (0 if recorded else 1), [str(warning.message) for warning in caught]
    for warning in caught:
        assert warning.category is cl.NotRecorded
        assert warning.filename == __file__


# ---- what is changed later ----

GLOBAL = 1.0


class Config:
    scale = 1.0


class Attributes(dict):
    """A dict with an attribute."""

    def __init__(self):
        super().__init__(scale=2.0)
        self.scale = 1.0


def _set_global(value):
    global GLOBAL
    GLOBAL = value


def deciding_by(kind):
    """A model whose outputs are multiplied by a number that it finds somewhere, and a function that sets the number."""
    holder = {"value": 1.0}
    hiding, missing, attributes = Config(), types.SimpleNamespace(), Attributes()
    listed, config, slow = [1.0], types.SimpleNamespace(scale=1.0, inner=types.SimpleNamespace(scale=1.0)), {"fast"}
    number, values = 1.0, np.ones(3)

    def set_closure(value):
        nonlocal number
        number = value

    ways = {
        "global": (lambda self: GLOBAL, _set_global),
        "closure": (lambda self: number, set_closure),
        "dict in closure": (lambda self: holder["value"], lambda v: holder.update(value=v)),
        "list in closure": (lambda self: listed[0], lambda v: listed.__setitem__(0, v)),
        "set": (lambda self: 1.0 if "fast" in slow else 10.0, lambda v: slow.clear()),
        "object": (lambda self: config.scale, lambda v: setattr(config, "scale", v)),
        "object in an object": (lambda self: config.inner.scale, lambda v: setattr(config.inner, "scale", v)),
        "class": (lambda self: Config.scale, lambda v: setattr(Config, "scale", v)),
        "attribute": (lambda self: self.scale, lambda v: setattr(model, "scale", v)),
        "object in an attribute": (lambda self: self.config.scale, lambda v: setattr(model.config, "scale", v)),
        "class attribute": (lambda self: self.of_class, lambda v: setattr(Scaled, "of_class", v)),
        "attribute that hides the class's": (lambda self: hiding.scale, lambda v: setattr(hiding, "scale", v)),
        "attribute that was missing": (
            lambda self: getattr(missing, "scale", 1.0),
            lambda v: vars(missing).update(scale=v),
        ),
        "attribute of a dict": (lambda self: attributes.scale, lambda v: setattr(attributes, "scale", v)),
        "helper": (lambda self: self.helper(), _set_global),
        "array": (lambda self: float(values[0]), lambda v: values.__setitem__(0, v)),
        "getattr": (lambda self: getattr(self, "scale"), lambda v: setattr(model, "scale", v)),  # noqa: B009
    }
    read, write = ways[kind]

    class Scaled(Net):
        of_class = 1.0

        def prepare(self):
            self.scale, self.config = 1.0, types.SimpleNamespace(scale=1.0)

        def helper(self):
            return GLOBAL

        def call(self, x):
            return super().call(x) * read(self)

    model = Scaled()
    return model, write


WAYS = [
    "global", "closure", "dict in closure", "list in closure", "set", "object", "object in an object", "class",
    "attribute", "object in an attribute", "class attribute", "array", "helper", "getattr",
    "attribute that hides the class's", "attribute that was missing", "attribute of a dict",
]  # fmt: skip


def test_what_is_remembered_of_ever_other_shapes_does_not_grow_without_end():
    class Mean(cl.Model):
        def call(self, x):
            return x.mean(axis=1)

    model = Mean()
    for length in range(1, 200):
        model.predict(np.ones((2, length), np.float32))
    assert len(model._own.found_before) <= 64


@pytest.mark.parametrize("kind", WAYS)
def test_what_a_model_decides_by_may_change_later(kind):
    model, write = deciding_by(kind)
    try:
        before = model.predict(X)
        model.fit(X, LABELS, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.0 + 1e-30), verbose=0)
        write(10.0)
        np.testing.assert_array_equal(model.predict(X), model(X).data)
        assert not np.array_equal(model.predict(X), before)
    finally:
        write(1.0)


@pytest.mark.parametrize("kind", WAYS)
def test_a_callback_may_change_what_a_model_decides_by(kind):
    def trained(by_fit):
        model, write = deciding_by(kind)
        optimizer = cl.SGD(model.parameters(), lr=0.05, momentum=0.9)
        try:
            if by_fit:
                call = lambda epoch, history: write(10.0)  # noqa: E731
                model.fit(
                    X, LABELS, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=3, batch_size=16, shuffle=False,
                    callbacks=[call], verbose=0,
                )  # fmt: skip
            else:
                for _ in range(3):
                    for start in range(0, 48, 16):
                        optimizer.zero_grad()
                        cl.SoftmaxLoss()(model(X[start : start + 16]), LABELS[start : start + 16]).backward()
                        optimizer.step()
                    write(10.0)
        finally:
            write(1.0)
            Config.scale = 1.0
        return [p.data.copy() for p in model.parameters()]

    for a, b in zip(trained(by_fit=True), trained(by_fit=False), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_that_decides_by_nothing_new_is_recorded_once(monkeypatch):
    recorded, record = [], cl.Program.record
    monkeypatch.setattr(cl.Program, "record", lambda *given: recorded.append(given) or record(*given))
    model, _ = deciding_by("object in an attribute")
    model.fit(X, LABELS, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), epochs=5, verbose=0)
    assert len(recorded) == 2  # one for each shape of batch: 32 and 16 rows


@pytest.mark.parametrize("layer", ["dropout", "batchnorm", "attention"])
def test_caffelites_own_layers_in_a_users_model_give_no_false_alarm(layer):
    class Own(Net):
        def prepare(self):
            self.layer = {
                "dropout": lambda: cl.Dropout(0.5),
                "batchnorm": lambda: cl.BatchNorm(8),
                "attention": lambda: cl.Linear(8, 8),
            }[layer]()

        def call(self, x):
            return self.b(self.layer(self.hidden(x)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Own()
        model.fit(X, LABELS, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters()), epochs=3, verbose=0)
        model.predict(X)
    assert "Python" not in str(next(iter(model._own.programs._programs.values())))


def test_evaluate_and_predict_run_what_cannot_be_recorded_in_python():
    model, loss = FORMS["a_mask_made_by_numpy"][0]()
    with pytest.warns(cl.NotRecorded):
        y = model.predict(X)
    np.testing.assert_array_equal(y, model(X).data)
    np.testing.assert_array_equal(model.predict(X[:1]), y[:1])
    assert model.evaluate(X, LABELS, loss=loss)["loss"] == pytest.approx(loss(model(X), LABELS).item())


def test_shapes_are_found_without_a_trace_in_counters_and_random_streams():
    make, _, x, y = FORMS["stochastic_depth_by_a_coin"]
    model, loss = make()
    state = random.getstate()
    with pytest.raises(ValueError, match="label"):
        model.fit(x, y + 3, loss=loss, optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0)
    assert random.getstate() == state


# ---- capture ----


@pytest.mark.parametrize(
    "name", ["a_counter_in_a_dict", "a_counter_in_an_enclosing_function", "an_iterator_of_weights"]
)
def test_capture_refuses_what_a_replay_would_not_repeat_and_names_the_line(name):
    make, _, x, y = FORMS[name]
    model, loss = make()
    with pytest.raises(TypeError, match=r"a replay would not \(.*test_user_python.py:\d+\)"):
        cl.capture(lambda x, y: loss(model(x), y), x, y)


def test_capture_names_the_line_of_an_array_that_numpy_made():
    def step(x):
        noise = np.ones(x.shape, np.float32)
        return cl.Tensor(x) + noise

    line = step.__code__.co_firstlineno + 2
    with pytest.raises(TypeError, match=rf"NumPy made inside .*test_user_python.py:{line}"):
        cl.capture(step, X)


# ---- losses that are functions ----


@pytest.mark.parametrize("value", [1.0, np.float32(1), None])
def test_a_loss_has_to_return_a_tensor(value):
    model = net()
    before = [p.data.copy() for p in model.parameters()]
    with pytest.raises(TypeError, match="has to return a Tensor"):
        model.fit(
            X, LABELS, loss=lambda o, y: value, optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0
        )  # fmt: skip
    for p, values in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.data, values)


def test_weights_go_to_a_function_that_takes_them():
    def loss(o, y, w):
        return (((o - y) ** 2).sum(axis=1) * w).sum() / w.sum()

    model, weights = net(1), np.linspace(0, 1, 48).astype(np.float32)
    options = {"optimizer": cl.SGD(model.parameters(), lr=0.1), "sample_weight": weights, "verbose": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.NotRecorded)
        model.fit(X, VALUES, loss=loss, **options)
    with pytest.raises(TypeError, match="takes no weights"):
        model.fit(X, VALUES, loss=lambda o, y: o.mean(), **options)


def test_a_function_is_a_loss_by_hand_too():
    loss = FORMS["a_function_of_functions"][0]()[1]
    model = net(1)
    expected = model.evaluate(X, VALUES, loss=loss)["loss"]
    assert expected == pytest.approx(loss(model(X), VALUES).item())


def test_what_is_no_loss_is_refused():
    for loss in (None, 3, "mse", cl.MSELoss):
        with pytest.raises(TypeError, match="loss: expected a Function"):
            net(1).evaluate(X, VALUES, loss=loss)


# ---- what gets a gradient and is not trained ----


def add_a_layer(model):
    model.add(cl.Linear(3, 3))


def replace_a_layer(model):
    model.functions[2] = cl.Linear(8, 3)


def replace_a_weight(model):
    model.functions[2].weight = cl.Tensor(np.ones((8, 3)), requires_grad=True)


def thaw(model):
    model.functions[0].requires_grad = True


def random_loss(scores, labels):
    """Which is not recorded."""
    return cl.SoftmaxLoss()(scores, labels) * random.uniform(0.9, 1.1)


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
@pytest.mark.parametrize("loss", [cl.SoftmaxLoss(), random_loss])
@pytest.mark.parametrize("change", [add_a_layer, replace_a_layer, replace_a_weight, thaw])
def test_a_layer_that_a_callback_adds_replaces_or_thaws_is_named_if_no_optimizer_has_it(change, loss):
    model = net()
    model.functions[0].requires_grad = change is not thaw
    optimizer = cl.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    def in_the_middle(epoch, history):
        if epoch == 1:  # when no step is recorded any more
            change(model)

    with pytest.warns(cl.TrainingWarning, match=r"not trained: [023].weight"):
        model.fit(X, LABELS, loss=loss, optimizer=optimizer, epochs=4, callbacks=[in_the_middle], verbose=0)


def test_a_learned_tensor_of_the_loss_is_named_if_no_optimizer_has_it():
    class Weighted(cl.Model):
        def __init__(self):
            super().__init__()
            self.log_variance = cl.Tensor(0.0, requires_grad=True)

        def call(self, o, y):
            return ((o - y) ** 2).mean() * (-self.log_variance).exp() + self.log_variance

    model, loss = net(1), Weighted()
    with pytest.warns(cl.TrainingWarning, match="not trained: Tensor"):
        model.fit(X, VALUES, loss=loss, optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0)
    both = cl.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    model.fit(X, VALUES, loss=loss, optimizer=both, epochs=3, verbose=0)
    assert loss.log_variance.item() != 0


# ---- the shapes of targets ----


def test_a_users_loss_gets_targets_in_the_outputs_shape_if_only_axes_of_length_1_differ():
    losses = {}
    for y in (VALUES, VALUES[:, 0]):
        for loss in (cl.MSELoss(), lambda o, y: ((o - y) ** 2).mean()):
            model = net(1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.NotRecorded)
                history = model.fit(
                    X, y, loss=loss, optimizer=cl.SGD(model.parameters(), lr=0.01), shuffle=False, verbose=0
                )  # fmt: skip
            losses[y.ndim, type(loss)] = history["loss"][0]
    first, *others = losses.values()
    assert others == pytest.approx([first] * 3, rel=1e-6)


def test_targets_that_arithmetic_would_broadcast_are_a_warning():
    model, loss = net(1), lambda o, y: ((o - y) ** 2).mean()
    with pytest.warns(
        cl.TrainingWarning, match=r"outputs of shape \(32, 1\) and targets of shape \(32, 2\)|larger than"
    ):
        model.fit(
            X, np.ones((48, 1, 2), np.float32), loss=loss, optimizer=cl.SGD(model.parameters(), lr=0.01), verbose=0
        )  # fmt: skip


def test_a_model_whose_code_belongs_to_no_module_is_trained():
    """`exec` without a __name__, as some notebooks and servers call it, makes functions without a module."""
    code = """
class Twice(cl.Model):
    def __init__(self):
        super().__init__(seed=0)
        self.linear = cl.Linear(2, 1)

    def call(self, x):
        return self.linear(x) * 2
"""
    names = {"cl": cl}
    exec(code, names)
    model = names["Twice"]()
    assert type(model).call.__module__ is None
    history = model.fit(
        X[:, :2], X[:, :1], loss=cl.MSELoss(), optimizer=cl.SGD(model.parameters(), lr=0.01), epochs=2, verbose=0
    )
    assert history["loss"][1] < history["loss"][0]
    model.summary((2,))
