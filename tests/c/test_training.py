"""Training steps as C: what they compute, what they promise, and what they refuse."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite import c
from tests.c.models import needs_compiler
from tests.c.training import (
    LIMITS,
    STEPS,
    compile_library,
    compilers,
    needs_shared_library,
    pointers,
    to_c,
)
from tests.c.training_nets import BATCH, NETS, labels, make_mlp, rows
from tests.conftest import run
from tests.tools.fuzz_c_export import CC, SANITIZED, STRICT

FLAGS = ("-O0", "-O1", "-O2", "-O3", "-Os")
F32 = np.dtype(np.float32)

pytestmark = pytest.mark.filterwarnings("ignore:the schedule of the learning rate")


def write_nets(folder, dtypes):
    """Return the texts and the nets by name; `dtypes` gives the dtype of each."""
    nets = {name: build(dtypes[name]) for name, build in NETS.items()}
    return {name: net.write(folder / "step.c", name=name) for name, net in nets.items()}, nets


def assert_losses(mine, theirs, dtype, name):
    np.testing.assert_allclose(mine, theirs, LIMITS[np.dtype(dtype)], err_msg=name)


@needs_shared_library
def test_losses_of_100_steps_are_those_that_fit_has(tmp_path):
    dtypes = {name: (np.float32, np.float64)[i % 2] for i, name in enumerate(NETS)}
    texts, nets = write_nets(tmp_path, dtypes)
    library = compile_library(tmp_path, texts, "-O1")
    for name, net in nets.items():
        losses = net.train_in_c(library, name)
        assert_losses(losses, net.fit(), dtypes[name], name)
        for mine, theirs in zip(*net.predict_in_c(library, name), strict=True):
            np.testing.assert_allclose(mine, theirs, 0, 100 * LIMITS[net.model.dtype] * (1 + abs(theirs).max()))


@needs_shared_library
@pytest.mark.slow
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_every_compiler_and_optimization_has_the_losses_that_fit_has(dtype, tmp_path):
    texts, nets = write_nets(tmp_path, dict.fromkeys(NETS, dtype))
    expected = {name: net.fit() for name, net in nets.items()}
    for cc in compilers().values():
        for flag in FLAGS:
            library = compile_library(tmp_path, texts, flag, cc=cc)
            for name, net in nets.items():
                assert_losses(net.train_in_c(library, name), expected[name], dtype, f"{name} {cc} {flag}")


@needs_compiler
@pytest.mark.slow
def test_sanitizers_find_nothing_in_the_check_of_any_net(tmp_path):
    for name, build in NETS.items():
        net = build(np.float32)
        net.write(tmp_path / "net.c")
        run(CC, *STRICT, "-O1", *SANITIZED, "-DNET_CHECK", "net.c", "-lm", "-o", "net", cwd=tmp_path)
        assert subprocess.run([tmp_path / "net"], check=False).returncode == 0, name


@needs_compiler
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_the_check_repeats_three_steps_and_returns_1_if_a_loss_differs(dtype, tmp_path):
    for name in ("dropout", "batch_norm", "microgpt"):
        text = NETS[name](dtype).write(tmp_path / "net.c")
        run(CC, *STRICT, "-DNET_CHECK", "net.c", "-lm", "-o", "net", cwd=tmp_path)
        assert subprocess.run([tmp_path / "net"], check=False).returncode == 0
        first = re.search(r"losses\[3\] = \{([\d.]+), ([\d.]+)", text)
        changed = text.replace(f"{{{first[1]}, {first[2]}", f"{{{first[1]}, {float(first[2]) + 0.01}")
        (tmp_path / "net.c").write_text(changed, encoding="utf-8")
        run(CC, *STRICT, "-DNET_CHECK", "net.c", "-lm", "-o", "net", cwd=tmp_path)
        assert subprocess.run([tmp_path / "net"], check=False).returncode == 1


@needs_compiler
@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_the_file_allocates_nothing_and_calls_only_libm(tmp_path):
    numbers = "exp expf log logf pow powf sqrt sqrtf tanhf erfcf expm1f log1pf sinf cosf"
    known = {*numbers.split(), "memcpy", "memset", "memmove"}
    for name in ("sgd", "lenet", "lstm", "gpt_dropout", "formula", "activations"):
        NETS[name](np.float32).write(tmp_path / "net.c")
        run(CC, *STRICT, "-O2", "-c", "net.c", cwd=tmp_path)
        symbols = run("nm", "-u", "net.o", cwd=tmp_path).split()
        assert set(symbols) - {"U"} <= known, name
        defined = run("nm", "--defined-only", "-g", "net.o", cwd=tmp_path).split()[2::3]
        assert sorted(defined) == [f"net_{x}" for x in ("init", "learning_rate", "predict", "state", "train")]


def test_calls_that_do_the_same_share_a_function(tmp_path):
    text = NETS["sgd"](np.float32).write(tmp_path / "net.c")
    functions = re.findall(r"^APART static \w+ \w+(\(.*?^\})", text, re.MULTILINE | re.DOTALL)
    assert len(functions) > 10
    assert len(set(functions)) == len(functions)


def test_the_file_is_the_same_on_every_instruction_set(tmp_path):
    script = (
        "import hashlib, sys, numpy as np, pathlib\n"
        "from tests.c.training_nets import NETS\n"
        "for name in sys.argv[1:]:\n"
        "    text = NETS[name](np.float32).write(pathlib.Path('net.c'))\n"
        "    print(name, hashlib.sha256(text.encode()).hexdigest())\n"
    )
    names = ["sgd", "batch_norm", "convolutions", "lenet", "lstm", "gpt_dropout"]
    texts = []
    for isa in kernels.available_instruction_sets():
        environment = {**dict(os.environ), "CAFFELITE_ISA": isa}
        environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        texts.append(run(sys.executable, "-c", script, *names, cwd=tmp_path, env=environment))
    assert len(set(texts)) == 1


def make_net(dtype=np.float32, optimizer=cl.SGD, **options):
    """Return a small net with its loss and optimizer."""
    model = make_mlp(dtype, cl.ReLU())
    return {"model": model, "loss": cl.SoftmaxLoss(), "optimizer": optimizer(model.parameters(), lr=0.1), **options}


def export(path, model, **options):
    c.export_training(model, path, **{"batch_size": BATCH, **options})
    return path.read_text(encoding="utf-8")


def load(folder, text, name="net"):
    """Return the functions of a file, compiled."""
    library = compile_library(folder, {"net": text})
    getattr(library, f"{name}_train").restype = ctypes.c_float
    getattr(library, f"{name}_learning_rate").argtypes = [ctypes.c_float]
    return library


def macro(text, name):
    return int(re.search(rf"#define {name} (\d+)", text)[1])


def get_state(library, text):
    state = np.zeros(macro(text, "NET_STATE"), np.float32)
    assert library.net_state(*pointers(state), 1) == state.size
    return state


def batch(step):
    part = slice(step * BATCH, (step + 1) * BATCH)
    return [rows(4, dtype=np.float32)[part], to_c(labels(3)[part])]


@needs_shared_library
def test_the_state_begins_with_the_parameters_and_restores_the_bits_without_init(tmp_path):
    net = NETS["dropout"](np.float32)
    model = net.model
    optimizer = cl.Adam(model.parameters(), lr=cl.schedules.linear(0.1, 50))
    text = export(tmp_path / "net.c", model, loss=cl.SoftmaxLoss(), optimizer=optimizer)
    library, other = load(tmp_path, text), load(tmp_path, text)
    library.net_init()
    state = get_state(library, text)
    flat = np.concatenate([p.data.reshape(-1) for p in model.parameters()])
    np.testing.assert_array_equal(state[: flat.size], flat)
    for step in range(5):
        library.net_train(*pointers(*batch(step)))
    state = get_state(library, text)
    other.net_state(*pointers(state), 0)
    for step in range(5, 10):
        assert library.net_train(*pointers(*batch(step))) == other.net_train(*pointers(*batch(step)))
    assert get_state(library, text).tobytes() == get_state(other, text).tobytes()


@needs_shared_library
def test_running_moments_stay_as_they_were_where_the_loss_is_not_finite(tmp_path):
    model = cl.Model([cl.Linear(4, 8), cl.BatchNorm(8), cl.Linear(8, 1)], seed=0)
    text = export(tmp_path / "net.c", model, loss=cl.MSELoss(), optimizer=cl.Adam(model.parameters()))
    library = load(tmp_path, text)
    library.net_init()
    x, y = batch(0)[0], np.ones((BATCH, 1), np.float32)
    library.net_train(*pointers(x, y))
    before = get_state(library, text)
    assert np.isnan(library.net_train(*pointers(x, np.full_like(y, np.inf))))
    assert get_state(library, text).tobytes() == before.tobytes()
    library.net_train(*pointers(x, y))
    assert get_state(library, text).tobytes() != before.tobytes()


@needs_shared_library
def test_a_learning_rate_holds_for_all_groups_and_ends_a_schedule(tmp_path):
    model = make_mlp(np.float32, cl.ReLU())
    p = model.parameters()
    rate = cl.schedules.linear(0.1, 50)
    optimizer = cl.SGD([{"parameters": p[:2], "lr": 0.01}, {"parameters": p[2:], "lr": rate}], lr=0.0)
    text = export(tmp_path / "net.c", model, loss=cl.SoftmaxLoss(), optimizer=optimizer)
    library = load(tmp_path, text)
    library.net_init()
    library.net_train(*pointers(*batch(0)))
    library.net_learning_rate(0.0)
    before = get_state(library, text)
    for step in range(3):
        library.net_train(*pointers(*batch(step)))
    assert get_state(library, text).tobytes() == before.tobytes()


@needs_shared_library
@pytest.mark.parametrize("wrong", ["a label", "a number"])
def test_a_wrong_batch_gives_nan_and_teaches_nothing(wrong, tmp_path):
    text = export(tmp_path / "net.c", **make_net(optimizer=cl.Adam))
    library = load(tmp_path, text)
    library.net_init()
    library.net_train(*pointers(*batch(0)))
    before = get_state(library, text)
    x, y = batch(1)
    if wrong == "a label":
        y[2] = 3
    else:
        x[2] = np.inf
    assert np.isnan(library.net_train(*pointers(x, y)))
    assert get_state(library, text).tobytes() == before.tobytes()
    assert np.isfinite(library.net_train(*pointers(*batch(1))))


@needs_shared_library
def test_an_index_that_is_not_in_its_table_makes_nan(tmp_path):
    net = NETS["gpt"](np.float32)
    library = load(tmp_path, net.write(tmp_path / "net.c"))
    library.net_init()
    (x,), (y,) = [[to_c(a) for a in part] for part in net.batch(0)]
    x[1, 2] = 11
    outputs = np.zeros((BATCH, 6, 11), np.float32)
    library.net_predict(*pointers(x, outputs))
    assert np.isnan(outputs).all()
    assert np.isnan(library.net_train(*pointers(x, y)))


class Slices(cl.Model):
    """Outputs that share memory with each other, and with the input."""

    def __init__(self):
        super().__init__(seed=0)
        self.layer = cl.Linear(4, 6)

    def call(self, x):
        h = self.layer(x)
        return h[:, 1:4], h, x


@needs_shared_library
def test_outputs_may_be_parts_of_arrays_and_the_input_itself(tmp_path):
    model = Slices()
    text = export(
        tmp_path / "net.c",
        model,
        loss=lambda outputs, targets: (outputs[0] ** 2).mean() + (outputs[1] * targets).mean(),
        optimizer=cl.SGD(model.parameters(), lr=0.1),
        input_shape=(4,),
        targets=np.ones((BATCH, 6), np.float32),
    )
    library, (x, _) = load(tmp_path, text), batch(0)
    library.net_init()
    outputs = [np.zeros((BATCH, n), np.float32) for n in (3, 6, 4)]
    library.net_predict(*pointers(x, *outputs))
    for mine, theirs in zip(outputs, model.predict(x), strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-5, 1e-6)


def test_model_optimizer_and_random_numbers_are_as_before(tmp_path):
    def train(exports):
        net = NETS["dropout"](np.float32)
        net.fit(2)
        if exports:
            net.write(tmp_path / "net.c")
        return net.fit(3), net.optimizer.state_dict(), [p.data.copy() for p in net.model.parameters()]

    losses, state, parameters = train(True)
    expected_losses, expected_state, expected_parameters = train(False)
    np.testing.assert_array_equal(losses, expected_losses)
    assert state == expected_state
    for values, expected in zip(parameters, expected_parameters, strict=True):
        np.testing.assert_array_equal(values, expected)


def test_gradients_are_as_before(tmp_path):
    net = make_net()
    assert all(p.grad is None for p in net["model"].parameters())
    export(tmp_path / "net.c", **net)
    assert all(p.grad is None for p in net["model"].parameters())


@needs_shared_library
def test_parameters_that_are_not_trainable_are_constants(tmp_path):
    model = make_mlp(np.float32, cl.ReLU())
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"model": model, "loss": cl.SoftmaxLoss(), "optimizer": optimizer}
    whole = export(tmp_path / "net.c", **options)
    text = export(tmp_path / "net.c", **options, trainable=[model.functions[-1]])
    assert macro(text, "NET_BYTES") < macro(whole, "NET_BYTES")
    assert macro(text, "NET_STATE") < macro(whole, "NET_STATE")
    assert all(p.requires_grad for p in model.parameters())
    library = load(tmp_path, text)
    library.net_init()
    losses = [library.net_train(*pointers(*batch(step))) for step in range(20)]
    model.functions[0].requires_grad = False
    for step in range(20):
        x, y = rows(4)[step * BATCH : (step + 1) * BATCH], labels(3)[step * BATCH : (step + 1) * BATCH]
        history = model.fit(
            x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, batch_size=BATCH, shuffle=False, verbose=0
        )
        np.testing.assert_allclose(losses[step], history["loss"][0], 1e-6)


@needs_shared_library
@pytest.mark.parametrize("name", ["sgd", "nadam", "batch_norm", "gpt_dropout", "lstm", "lenet"])
def test_the_bytes_in_the_file_are_the_static_memory(name, tmp_path):
    text = NETS[name](np.float32).write(tmp_path / "net.c")
    library = load(tmp_path, f"{text}\nint size(void);\nint size(void) {{ return (int)sizeof ram; }}\n")
    assert 0 <= macro(text, "NET_BYTES") - library.size() < 256


def test_small_nets_need_little_memory(tmp_path):
    spiral = cl.Model([cl.Linear(2, 100), cl.ReLU(), cl.Linear(100, 3)], seed=0)
    optimizer = cl.SGD(spiral.parameters(), lr=0.1, momentum=0.9)
    text = export(tmp_path / "net.c", spiral, loss=cl.SoftmaxLoss(), optimizer=optimizer, batch_size=32)
    assert macro(text, "NET_BYTES") < 40_000
    digits = cl.Model([cl.Linear(64, 100), cl.ReLU(), cl.Linear(100, 10)], seed=0)
    optimizer = cl.SGD(digits.parameters(), lr=0.1)
    text = export(tmp_path / "net.c", digits, loss=cl.SoftmaxLoss(), optimizer=optimizer, batch_size=1)
    assert macro(text, "NET_BYTES") < 100_000


def test_macros_have_the_name_in_capitals(tmp_path):
    text = export(tmp_path / "net.c", **make_net(name="first"))
    assert all(f"FIRST_{word}" in text for word in ("STATE", "BYTES", "CHECK"))
    assert "#ifdef FIRST_CHECK" not in export(tmp_path / "net.c", **make_net(name="first", check=False))


class Thresholds(cl.Function):
    """A Function in Python."""

    def forward(self, x):
        return np.where(x > 0, x, 0)

    def backward(self, dy):
        return dy


class NumPyRule(cl.Optimizer):
    """An optimizer in Python."""

    def step(self):
        for p in self.parameters:
            p.data -= 0.1 * p.grad


@pytest.mark.parametrize("what", ["a kernel", "a Function", "an optimizer"])
def test_a_step_without_c_raises_type_error_that_names_the_reason_and_no_file_is_written(what, tmp_path):
    layer = {"a kernel": cl.Embedding(5, 2, sparse=True), "a Function": Thresholds()}.get(what, cl.ReLU())
    model = cl.Model([layer, cl.Linear(2, 3)], seed=0)
    rule = NumPyRule if what == "an optimizer" else cl.SGD
    match = {"a kernel": "sgd of sparse rows", "a Function": "Thresholds", "an optimizer": "NumPyRule"}[what]
    with pytest.raises(TypeError, match=match):
        export(
            tmp_path / "net.c",
            model,
            loss=cl.SoftmaxLoss(),
            optimizer=rule(model.parameters(), lr=0.1),
            input_shape=() if what == "a kernel" else (2,),
        )
    assert not (tmp_path / "net.c").exists()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"name": "2nd"}, ValueError, "name"),
        ({"check": 1}, TypeError, "check"),
        ({"clip_norm": -1}, ValueError, "clip_norm"),
        ({"optimizer": cl.SGD}, TypeError, "optimizer"),
        ({"model": cl.Linear(2, 3)}, TypeError, "Model"),
        ({"targets": np.zeros(3, np.int64)}, ValueError, "8 rows"),
        ({"trainable": [3]}, TypeError, "trainable"),
        ({"trainable": [cl.Linear(4, 3)]}, ValueError, "trainable"),
    ],
)
def test_wrong_arguments_raise_an_error_that_names_them(options, error, match, tmp_path):
    with pytest.raises(error, match=match):
        export(tmp_path / "net.c", **{**make_net(), **options})
    assert not (tmp_path / "net.c").exists()


def test_steps_are_as_many_as_the_contract_says():
    assert STEPS == 100
    assert len(NETS) >= 40
