"""The check in the file of C, with which the outputs of every compiler are right."""

import itertools
import re
import shutil
import subprocess

import numpy as np
import pytest

import caffelite as cl
from caffelite import c
from caffelite.c.check import ROWS, choose_row
from tests.c.models import F32, F64, Calling, needs_compiler
from tests.conftest import run
from tests.tools.fuzz_c_export import CC, STRICT, MultiOutputNet, source

COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"there is no {name}"))
    for name in ("gcc", "clang")
]


class Transposes(cl.Model):
    """A model of which gcc 12 drops a call, if it may: a function of C that is called twice copies inside `memory`."""

    def __init__(self):
        super().__init__(seed=0)
        self.a, self.b = cl.Linear(4, 4), cl.Linear(40, 40)

    def call(self, x):
        for f in (self.a, self.b, self.a, self.b):
            x = f(x).transpose(0, 1, 3, 2)
        return self.a(x)


def lenet():
    model = cl.Model([cl.Conv2d(1, 3, 5, padding=2), cl.ReLU(), cl.MaxPool2d(2), cl.Conv2d(3, 4, 3)], seed=0)
    model.add(cl.BatchNorm(4))[-1].mean[:] = 0.1
    return model.add(cl.ReLU()).add(cl.AvgPool2d(2)).add(cl.Flatten()).add(cl.Linear(36, 5))


def table(kind, dtype):
    frame = {"age": [20.0, 31, 60], "town": ["Rome", "Oslo", "Rome"], "pay": [1e6, 2e6, 4e6]}
    columns = kind(frame, size=2, bins=2)
    return cl.Model([columns, cl.Linear(columns.features, 2)], seed=0, dtype=dtype)


def models():
    """Models of each kind, the shapes of their rows, and whether their weights are rounded."""
    words = [cl.Embedding(9, 4), cl.LSTM(4, 3, layers=2, bidirectional=True), cl.LayerNorm(6)]
    attention = cl.Model([cl.PositionalEncoding(4, 9), cl.TransformerBlock(4, 2, causal=True)], seed=0, dtype=F64)
    several = MultiOutputNet(4, 2, True, range(5), [], F32)
    return {
        "MLP": (cl.MLP(5, [7, 7, 3], seed=0), None, False),
        "LeNet": (lenet(), (1, 16, 16), False),
        "LeNet of bytes": (lenet(), (1, 16, 16), True),
        "recurrent": (cl.Model(words, seed=0, dtype=F64), (6,), False),
        "attention": (attention, (6, 4), False),
        "several inputs": (several, ((5, 4), (3, 4), (3,), (2,)), False),
        "columns": (table(cl.Columns, F32), None, False),
        "splines": (table(cl.Splines, F64), None, False),
        "transposes": (Transposes(), (16, 40, 4), False),
        "product with itself": (Calling(lambda model, x: model.f(x) @ (model.f(x) * x).tanh()), (3, 3), False),
    }


def check(folder, *command, text=None):
    """Compile a file with its check, and return the exit status of the program."""
    if text is not None:
        (folder / "net.c").write_text(text)
    run(*command, "-DCHECK", "net.c", "-o", "check", "-lm", cwd=folder)
    done = subprocess.run([folder / "check"], capture_output=True, check=False)
    assert done.stdout + done.stderr == b""
    return done.returncode


@pytest.fixture(scope="module")
def texts():
    return {name: source(model, "net.c", shape, quantize) for name, (model, shape, quantize) in models().items()}


@pytest.mark.parametrize("optimization", ["-O0", "-O1", "-O2", "-O3", "-Os"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_file_computes_what_predict_does_with_every_optimization(compiler, optimization, texts, tmp_path):
    failures = [name for name in texts if check(tmp_path, compiler, *STRICT, optimization, text=texts[name])]
    assert failures == []


@needs_compiler
@pytest.mark.parametrize("name", ["MLP", "LeNet of bytes", "recurrent", "attention", "columns"])
def test_the_check_fails_without_any_of_the_calls(name, texts, tmp_path):
    text = texts[name]
    start, end = text.index("\nvoid PREDICT("), text.index("#ifdef CHECK")
    calls = [*re.compile(r"\n    \w+\([^;]*\);").finditer(text, start, end)]
    assert calls
    for call in calls:
        without = text[: call.start()] + text[call.end() :]
        assert check(tmp_path, CC, "-std=c99", "-w", text=without) == 1, call[0]


@needs_compiler
@pytest.mark.parametrize(("scale", "dtype"), [(1, F32), (0.1, F64), (1e5, F32)])
def test_an_output_may_differ_by_a_ten_thousandth_of_its_size_and_1(scale, dtype, tmp_path):
    model = cl.Model([cl.Linear(3, 2, bias=False)], seed=0, dtype=dtype)
    model.functions[0].weight.data = np.array([[30, 0.3], [20, 0.2], [-50, 0.1]]) * scale
    text = source(model, "net.c")
    y = np.array(re.search(r"expected_y\[2\] = \{(.*)\}", text)[1].replace("f", "").split(", "), np.float64)
    size = float(re.search(r"differs\(y, expected_y, 2, ([\d.]+)", text)[1])
    std = model.predict(np.random.default_rng(1).normal(size=(1000, 3)).astype(dtype)).std()
    assert size == 1 if std < 70 else 0.5 < size / (std / 100) < 2  # rounding may change large outputs by more
    for place, sign, (share, status) in itertools.product((0, 1), (1, -1), [(0.9, 0), (1.1, 1)]):
        changed = y.copy()
        changed[place] += sign * share * 1e-4 * (size + abs(y[place]))
        numbers = ", ".join([f"{number:.9g}" for number in changed])
        other = re.sub(r"(expected_y\[2\] = \{).*\}", rf"\g<1>{numbers}}}", text)
        assert check(tmp_path, CC, *STRICT, text=other) == status


@needs_compiler
def test_outputs_that_are_not_finite_have_to_be_the_same(tmp_path):
    model = cl.Model([cl.Linear(3, 4)], seed=0)
    model.functions[0].bias.data = [np.nan, np.inf, -np.inf, 1]
    text = source(model, "net.c")
    expected = re.search(r"expected_y\[4\] = \{NAN, INFINITY, -INFINITY, (.*f)\}", text)
    assert check(tmp_path, CC, *STRICT, text=text) == 0
    names = ["NAN", "INFINITY", "-INFINITY", "0.5f"]
    for i, name in enumerate(names[:3]):
        for other in {*names} - {name}:
            numbers = [*names[:i], other, *names[i + 1 : 3], expected[1]]
            changed = text.replace(expected[0], f"expected_y[4] = {{{', '.join(numbers)}}}")
            assert check(tmp_path, CC, *STRICT, text=changed) == 1
    bias = text.replace("{NAN, INFINITY, -INFINITY, 1.0f};", "{NAN, INFINITY, -INFINITY, NAN};")
    assert check(tmp_path, CC, *STRICT, text=bias) == 1


def test_outputs_that_are_all_nan_are_expected_without_a_warning():
    model = cl.Model([cl.Linear(3, 2)], seed=0)
    model.functions[0].bias.data = [np.nan, np.nan]
    assert "expected_y[2] = {NAN, NAN};" in source(model, "net.c")
    model.functions[0].bias.data = [3e38, -3e38]
    assert "expected_y[2] = {3e+38f, -3e+38f};" in source(model, "net.c")


def test_the_expected_outputs_are_not_of_bfloat16():
    model = cl.MLP(64, [64, 3], seed=0)
    with cl.precision("bfloat16"):
        text = source(model, "net.c")
    assert text == source(model, "net.c")


def test_the_row_is_one_whose_outputs_tell_something():
    rng = np.random.default_rng(0)
    dead = np.zeros((ROWS, 2))
    dead[7] = 3, 4
    assert choose_row([dead]) == 7
    partly_nan = rng.normal(size=(ROWS, 5))
    partly_nan[:5], partly_nan[6:, 1], partly_nan[9, 0] = np.nan, np.inf, -np.inf
    assert choose_row([partly_nan]) == 5
    assert choose_row([np.full((ROWS, 3), np.nan)]) == 0
    text = source(cl.Model([cl.ReLU()]), "net.c", (4,))
    assert len(set(re.findall(r"[\d.]+(?=f)", re.search(r"expected_y\[4\] = (.*)", text)[1]))) > 1


def test_functions_that_read_an_array_in_two_orders_are_hidden_and_no_other_is_cloned(texts):
    def attributes(text):
        functions = re.findall(r"^(.*)\nstatic void (\w+)\(", text, re.MULTILINE)
        return {name.strip("_0123456789"): attribute for attribute, name in functions}

    for text in texts.values():
        assert {*attributes(text).values()} <= {"NOIPA", "NOCLONE"}
        assert "\nNOIPA\nvoid PREDICT(" in text
    assert attributes(texts["MLP"]) == {"linear": "NOCLONE", "relu": "NOCLONE"}
    assert attributes(texts["transposes"]) == {"linear": "NOCLONE", "transpose": "NOCLONE"}
    assert "\nNOCLONE\nstatic void conv2d_0(" in texts["LeNet"]
    assert attributes(texts["recurrent"])["lstm"] == "NOIPA"
    for call, attribute in [
        (lambda model, x: (h := model.f(x)) @ h.tanh(), "NOCLONE"),
        (lambda model, x: (h := model.f(x)) @ h, "NOIPA"),
        (lambda model, x: (h := model.f(x)).reshape(-1, 1, 3, 3) @ h.reshape(-1, 3, 3, 1), "NOIPA"),
    ]:
        assert attributes(source(Calling(call), "net.c", (3, 3)))["matmul"] == attribute


@needs_compiler
def test_nets_of_one_program_are_checked_each_by_itself_also_in_cplusplus(texts, tmp_path):
    assert check(tmp_path, CC, *STRICT, "-DPREDICT=other", text=texts["MLP"]) == 0
    assert check(tmp_path, CC, *STRICT, "-DPREDICT=call", "-DPREDICT_MEMORY=") == 0
    if (compiler := shutil.which("c++")) is None:
        pytest.skip("there is no C++ compiler")
    for name in ("several inputs", "splines"):
        assert check(tmp_path, compiler, *STRICT[1:], "-x", "c++", text=texts[name]) == 0


@needs_compiler
def test_a_file_has_no_main_unless_it_is_checked(texts, tmp_path):
    def has_main(*flags):
        run(CC, *STRICT, *flags, "-c", "net.c", "-o", "net.o", cwd=tmp_path)
        return b"main" in (tmp_path / "net.o").read_bytes()

    (tmp_path / "net.c").write_text(texts["MLP"])
    assert has_main("-DCHECK")
    assert not has_main()
    assert "stdio" not in texts["MLP"]
    (tmp_path / "net.c").write_text(source(cl.MLP(5, [7, 7, 3], seed=0), "net.c", check=False))
    assert not has_main("-DCHECK")
    assert "CHECK" not in (tmp_path / "net.c").read_text()


def test_a_check_that_is_neither_true_nor_false_raises_and_writes_nothing(tmp_path):
    with pytest.raises(TypeError, match=r"^export: check must be True or False, got 'yes'$"):
        c.export(cl.MLP(2, [1]), tmp_path / "net.c", check="yes")
    assert not [*tmp_path.iterdir()]


def test_export_leaves_parameters_moments_and_masks_of_a_model_as_they_were(tmp_path):
    model = cl.Model([cl.Linear(3, 4), cl.BatchNorm(4), cl.Dropout(), cl.Linear(4, 2)], seed=0)
    before = {name: x.copy() for name, x in model.state_dict().items()}
    for quantize in (False, True):
        c.export(model, tmp_path / "net.c", (3,), quantize)
    assert all(np.array_equal(x, before[name]) for name, x in model.state_dict().items())
