"""What a model decides by may change later: a recorded step is recorded again, or captured code is refused."""

import dataclasses
import subprocess
import sys
import types
import warnings
from collections import OrderedDict
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program.guards.code import _installed_path, code_names, is_user_code, user_bases
from tests.conftest import posix
from tests.program.user_code import FORMS, LABELS, Net, X

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
    """Return a model whose outputs are multiplied by a number that it finds somewhere, and a function that sets the
    number.
    """
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
        "class attribute": (lambda self: self.of_class, lambda v: setattr(ScaledNet, "of_class", v)),
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

    class ScaledNet(Net):
        of_class = 1.0

        def prepare(self):
            self.scale, self.config = 1.0, types.SimpleNamespace(scale=1.0)

        def helper(self):
            return GLOBAL

        def call(self, x):
            return super().call(x) * read(self)

    model = ScaledNet()
    return model, write


WAYS = [
    "global", "closure", "dict in closure", "list in closure", "set", "object", "object in an object", "class",
    "attribute", "object in an attribute", "class attribute", "array", "helper", "getattr",
    "attribute that hides the class's", "attribute that was missing", "attribute of a dict",
]  # fmt: skip


def test_the_memory_for_ever_new_shapes_is_bounded():
    class Mean(cl.Model):
        def call(self, x):
            return x.mean(axis=1)

    model = Mean()
    for length in range(1, 200):
        model.predict(np.ones((2, length), np.float32))
    assert len(model._model_state.inference_cache) <= 64


@pytest.mark.parametrize("kind", WAYS)
def test_values_that_a_model_decides_by_may_change_later(kind):
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
    def train_net(by_fit):
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

    for a, b in zip(train_net(by_fit=True), train_net(by_fit=False), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_that_decides_by_nothing_new_is_recorded_again_at_each_doubling_only(monkeypatch):
    recorded, record = [], cl.Program.record
    monkeypatch.setattr(cl.Program, "record", lambda *given: recorded.append(given) or record(*given))
    model, _ = deciding_by("object in an attribute")
    model.fit(X, LABELS, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), epochs=5, verbose=0)
    programs = {given[0]: 0 for given in recorded}
    for given in recorded:
        programs[given[0]] += 1
    assert sorted(programs.values()) == [3, 3]  # for 32 and for 16 rows: two steps, and one after two replays


@pytest.mark.parametrize("layer", ["dropout", "batchnorm", "attention"])
def test_caffelites_own_layers_in_a_users_model_give_no_false_alarm(layer):
    class LayersNet(Net):
        def prepare(self):
            self.layer = {
                "dropout": lambda: cl.Dropout(0.5),
                "batchnorm": lambda: cl.BatchNorm(8),
                "attention": lambda: cl.Linear(8, 8),
            }[layer]()

        def call(self, x):
            return self.b(self.layer(self.hidden_layer(x)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LayersNet()
        model.fit(X, LABELS, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters()), epochs=3, verbose=0)
        model.predict(X)
    assert "Python" not in str(next(iter(model._model_state.programs._programs.values())))


def test_evaluate_and_predict_run_what_cannot_be_recorded_in_python():
    model, loss = FORMS["a_mask_made_by_numpy"][0]()
    with pytest.warns(cl.NotRecorded):
        y = model.predict(X)
    np.testing.assert_array_equal(y, model(X).data)
    np.testing.assert_array_equal(model.predict(X[:1]), y[:1])
    assert model.evaluate(X, LABELS, loss=loss)["loss"] == pytest.approx(loss(model(X), LABELS).item())


def test_a_dataclass_may_be_watched():
    @dataclasses.dataclass
    class Options:
        slope: float = 0.5

    options = Options()
    program = cl.capture(lambda x: cl.Tensor(x) * options.slope, X)
    program(X)
    np.testing.assert_array_equal(program(X), X / 2)
    options.slope = 0.25
    np.testing.assert_array_equal(program(X), X / 4)


def test_a_name_of_an_argument_in_a_call_is_not_taken_for_a_variable():
    def step(x, f):
        return f(x, GLOBAL=GLOBAL) + f(x, scale=1.0)

    names = code_names(step.__code__)
    assert "GLOBAL" in names.global_names
    assert "scale" not in names.global_names | names.missing


# ---- capture ----


@pytest.mark.parametrize(
    "name", ["a_counter_in_a_dict", "a_counter_in_an_enclosing_function", "an_iterator_of_weights"]
)
def test_capture_refuses_what_a_replay_would_not_repeat_and_names_the_line(name):
    make, _, x, y = FORMS[name]
    model, loss = make()
    with pytest.raises(TypeError, match=r"a replay would not. Do this .*user_code.py:\d+\)"):
        cl.capture(lambda x, y: loss(model(x), y), x, y)


def test_capture_names_the_line_of_an_array_of_new_random_numbers_in_each_step():
    def step(x):
        noise = np.random.default_rng().random(x.shape, np.float32)
        return cl.Tensor(x) + noise

    line = step.__code__.co_firstlineno + 2
    program = cl.capture(step, X)
    program(X)  # a first step may prepare something
    with pytest.raises(TypeError, match=rf"values of an array that NumPy made.*test_guards.py:{line}"):
        program(X)


def test_classes_of_the_interpreter_can_be_watched():
    """Since Python 3.12, these have their dict elsewhere than other classes."""
    guard = kernels.GuardTable()
    for kind in (ContextVar, OrderedDict, int, type(None)):
        guard.add_class_item(kind, "get")
    assert kernels.are_unchanged([guard])
    assert not user_bases(ContextVar)


@posix
def test_a_numpy_outside_of_the_folders_of_packages_is_a_library(tmp_path):
    """`pip install --target` puts packages anywhere."""
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (installed / name).exists():
            (tmp_path / name).symlink_to(installed / name, target_is_directory=True)
    program = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(Path(cl.__file__).parents[1])!r}]
import numpy as np, caffelite as cl
assert np.__file__.startswith({str(tmp_path)!r})
layer = cl.GRU(5, 4)
cl.Model([layer], seed=0)
x = np.ones((2, 3, 5), np.float32)

def step(x):
    with np.errstate(all="ignore"):
        return layer(x)

layer(x)
cl.capture(step, x)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", ["shelf/__init__.py", "shelf.py"])
def test_a_package_is_a_library_where_the_record_beside_it_lists_it(tmp_path, monkeypatch, file):
    (tmp_path / "shelf-1.0.dist-info").mkdir()
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / "shelf-1.0.dist-info/RECORD").write_text(f"{file},sha256=0,9\n", "utf-8")
    for name, path, is_of_user in (("shelf", file, False), ("shelf_of_mine", "shelf_of_mine.py", True)):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / path)
        monkeypatch.setitem(sys.modules, name, module)
        _installed_path.cache_clear()
        assert is_user_code(name, module.__file__) == is_of_user
