"""What Python's decisions depend on: values that a step or a callback replaces are seen, and a trial spoils nothing."""

import collections
import sys
import threading
import types
import weakref

import numpy as np
import pytest

import caffelite as cl

X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(32, 1)).astype(np.float32)

pytestmark = pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")


def squared_error(outputs, targets):
    return ((outputs - targets) * (outputs - targets)).mean()


def fourth(outputs, targets):
    d = (outputs - targets) * (outputs - targets)
    return (d * d).mean()


class Settings:
    def __init__(self, **values):
        self.__dict__.update(values)


class Net(cl.Model):
    """A model whose outputs have a factor that `find_factor` returns."""

    def __init__(self):
        super().__init__(seed=0)
        self.a, self.b = cl.Linear(4, 3), cl.Linear(3, 1)

    def call(self, x):
        return self.b(self.a(x).tanh()) * self.find_factor()


def small_net():
    return cl.MLP(4, [3, 1], seed=0)


def train_by_hand(model, loss, after_epoch):
    optimizer = cl.SGD(model.parameters(), 0.05)
    for epoch in range(6):
        for i in range(0, 32, 8):
            optimizer.zero_grad()
            loss(model(X[i : i + 8]), Y[i : i + 8]).backward()
            optimizer.step()
        after_epoch(epoch)
    return np.concatenate([p.data.ravel() for p in model.parameters()])


def train_by_fit(model, loss, after_epoch):
    optimizer = cl.SGD(model.parameters(), 0.05)
    callbacks = [lambda epoch, history: after_epoch(epoch)]
    model.fit(
        X, Y, loss=loss, optimizer=optimizer, epochs=6, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks
    )
    return np.concatenate([p.data.ravel() for p in model.parameters()])


def check(make):
    """Check that fit trains as the loop by hand what `make()` returns: a model, a loss and a callback (epoch)."""
    expected = train_by_hand(*make())
    np.testing.assert_allclose(train_by_fit(*make()), expected, rtol=1e-4, atol=1e-5)


def check_factor(init, find_factor):
    class FactorNet(Net):
        def __init__(self):
            super().__init__()
            init(self)

    FactorNet.find_factor = find_factor
    check(lambda: (FactorNet(), squared_error, lambda epoch: None))


# ---- functions and classes are values -------------------------------------------------------------------------------

current = squared_error


def test_a_function_in_a_global_that_a_callback_replaces_takes_effect():
    def make():
        global current
        current = squared_error

        def replace(epoch):
            global current
            current = fourth if epoch > 0 else current

        return small_net(), lambda o, y: current(o, y), replace

    check(make)


class First:
    f = staticmethod(squared_error)


class Second:
    f = staticmethod(fourth)


class Methods:
    def __init__(self):
        self.f = self.first

    def first(self, outputs, targets):
        return squared_error(outputs, targets)

    def second(self, outputs, targets):
        return fourth(outputs, targets)


@pytest.mark.parametrize("kind", ["function", "class", "bound method"])
def test_a_function_or_a_class_in_an_attribute_that_a_callback_replaces_takes_effect(kind):
    def make():
        settings = Methods() if kind == "bound method" else Settings(f=squared_error, cls=First)
        new = {"function": fourth, "class": Second, "bound method": getattr(settings, "second", None)}[kind]
        name = "cls" if kind == "class" else "f"

        def loss(outputs, targets):
            return settings.cls.f(outputs, targets) if kind == "class" else settings.f(outputs, targets)

        return small_net(), loss, lambda epoch: setattr(settings, name, new) if epoch == 1 else None

    check(make)


def test_a_function_of_a_users_module_that_is_replaced_takes_effect(monkeypatch):
    module = types.ModuleType("users_module")
    module.__file__, module.f = "/tmp/users_module.py", lambda x: x.tanh()
    monkeypatch.setitem(sys.modules, "users_module", module)

    class FactorNet(Net):
        def call(self, x):
            return self.b(module.f(self.a(x)))

    model = FactorNet()
    for _ in range(2):
        model.predict(X)
    module.f = lambda x: x * 2.0
    np.testing.assert_allclose(model.predict(X), model(X).data, rtol=1e-5, atol=1e-6)


def test_a_class_that_type_made_is_watched_like_any_other():
    def find_factor(self):
        self.n += 1
        return 1.0 / self.n

    def make():
        return type("Made", (Net,), {"n": 0, "find_factor": find_factor})(), squared_error, lambda epoch: None

    check(make)


# ---- arrays that NumPy made in place of others ----------------------------------------------------------------------


def multiply_share(self):
    self.share = self.share * 0.9
    return float(self.share[0])


def multiply_first_share(self):
    self.shares[0] = self.shares[0] * 0.9
    return float(self.shares[0][0])


def append_array(self):
    self.kept.append(np.ones(3))
    return 1.0 / len(self.kept)


@pytest.mark.parametrize(
    ("attributes", "find_factor"),
    [
        (lambda: {"share": np.ones(1)}, multiply_share),
        (lambda: {"shares": [np.ones(100)]}, multiply_first_share),
        (lambda: {"kept": []}, append_array),
    ],
    ids=["attribute", "in a list", "appended"],
)
def test_an_array_that_each_step_replaces_by_its_next_value_goes_on(attributes, find_factor):
    check_factor(lambda self: vars(self).update(attributes()), find_factor)


@pytest.mark.parametrize("first", [None, 0.0])
def test_a_value_that_decides_until_a_result_takes_its_place_is_seen(first):
    class StateNet(Net):
        def __init__(self):
            super().__init__()
            self.state = first

        def call(self, x):
            y = self.b(self.a(x))
            if isinstance(self.state, cl.Tensor):
                y = y + self.state.detach()
            self.state = y
            return y

    check(lambda: (StateNet(), squared_error, lambda epoch: None))


def test_capture_refuses_a_step_that_replaces_an_array_which_it_reads():
    state = Settings(h=np.ones(1))

    def step(x):
        state.h = state.h * 0.5
        return cl.Tensor(x) * float(state.h[0])

    with pytest.raises(TypeError, match="it changes h and reads it in Python"):
        cl.capture(step, X)


def test_a_step_that_may_read_too_many_objects_to_watch_runs_in_python():
    class FactorNet(Net):
        def __init__(self):
            super().__init__()
            self.rows = [Settings(w=1.0) for _ in range(1500)]

        def find_factor(self):
            return self.rows[1499].w

    model = FactorNet()
    with pytest.warns(cl.NotRecorded, match="more than 1,000 objects, too many to watch"):
        model.fit(X, Y, loss=cl.MSELoss(), optimizer=cl.SGD(model.parameters(), 0.05), epochs=2, verbose=0)
    model.predict(X)
    model.rows[1499].w = 4.0
    np.testing.assert_allclose(model.predict(X), model(X).data, rtol=1e-5, atol=1e-6)


# ---- a trial on rows of zeros leaves everything as it is ------------------------------------------------------------


def make_net(value, find_factor):
    class FactorNet(Net):
        def __init__(self):
            super().__init__()
            self.value = value

    FactorNet.find_factor = find_factor
    return FactorNet()


@pytest.mark.parametrize("kind", [collections.Counter, collections.OrderedDict, lambda: collections.defaultdict(int)])
def test_a_count_in_a_dict_counts_the_predictions(kind):
    def find_factor(self):
        self.value["rows"] = self.value.get("rows", 0) + 1
        return 1.0 / self.value["rows"]

    model = make_net(kind(), find_factor)
    for count in (1, 2, 3):
        model.predict(X)
        assert list(model.value.items()) == [("rows", count)]


def test_a_weak_reference_stays_one():
    settings = Settings(w=1.0)
    model = make_net(weakref.ref(settings), lambda self: self.value().w)
    for _ in range(2):
        model.predict(X)
        assert model.value() is settings


class FixedDict(dict):
    def update(self, *_):
        raise RuntimeError("no update")

    clear = update


class FixedList(list):
    def extend(self, *_):
        raise RuntimeError("no extend")

    clear = extend


@pytest.mark.parametrize("value", [FixedDict(w=1.0), FixedList([1.0])])
def test_methods_of_the_users_containers_are_not_called(value):
    model = make_net(
        value, lambda self: next(iter(self.value.values() if isinstance(self.value, dict) else self.value))
    )
    model.predict(X)
    assert len(model.value) == 1


def test_threads_may_predict_with_a_model_that_reads_a_deque():
    interval, errors = sys.getswitchinterval(), []
    sys.setswitchinterval(1e-5)

    def predict(model, k):
        try:
            for n in (k + 1, k + 11, k + 21):
                model.predict(X[:n])
        except Exception as error:
            errors.append(error)

    try:
        for _ in range(100):
            model = make_net(collections.deque([1.0, 2.0, 3.0] * 10), lambda self: sum(v for v in self.value))
            threads = [threading.Thread(target=predict, args=(model, k)) for k in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
