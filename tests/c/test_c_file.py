"""The file of C: what it says, its memory, and what cannot be written."""

import re
import shutil

import numpy as np
import pytest

import caffelite as cl
from caffelite import c, functions
from caffelite.c.layers import IDENTITIES
from caffelite.c.net import LAYERS, STACKS
from caffelite.core.function import Function
from tests.c.models import F32, F64, Calling, Sequences, needs_compiler
from tests.conftest import run
from tests.tools.fuzz_c_export import CC, STRICT, source


def lenet():
    model = cl.Model([cl.Conv2d(1, 6, 5, padding=2), cl.ReLU(), cl.MaxPool2d(2)], seed=0)
    model.add(cl.Conv2d(6, 16, 5)).add(cl.ReLU()).add(cl.MaxPool2d(2)).add(cl.Flatten())
    return model.add(cl.Linear(400, 120)).add(cl.ReLU()).add(cl.Linear(120, 10))


def memory(model, input_shape=None):
    """How many numbers there are between the layers."""
    found = re.findall(r"PREDICT_MEMORY \w+ memory\[(\d+)\];", source(model, "net.c", input_shape))
    return int(found[0]) if found else 0


# ---- the file -------------------------------------------------------------------------------------------------------


def test_the_file_says_what_it_is(tmp_path):
    model = lenet()
    path = tmp_path / "lenet.c"
    c.export(model, path, input_shape=(1, 28, 28))
    text = path.read_text()
    comment = text[: text.index("*/")]
    assert comment.startswith("/*\n * lenet.c: ")
    for line in str(model.summary((1, 28, 28))).splitlines():
        assert f"\n * {line}\n" in comment
    size = model.functions[0].weight.dtype.itemsize * sum(p.size for p in model.parameters())
    tables = [int(n) for line in re.findall("static const int .*", text) for n in re.findall(r"\[(\d+)\] = ", line)]
    assert len(tables) == 4
    assert f"{(size + 4 * sum(tables)) / 1000:.1f} kB, constant" in comment
    assert "23.5 kB" in comment
    assert "enum { PREDICT_INPUTS = 784, PREDICT_OUTPUTS = 10 };" in text
    assert max(map(len, text.splitlines())) <= len(" * ") + 120
    assert not [path for path in tmp_path.iterdir() if path.name != "lenet.c"]


def test_the_file_of_a_float64_model_has_no_float():
    model = cl.Model([cl.Linear(2, 3), cl.GELU(), cl.LayerNorm(3), cl.Softmax()], dtype=F64)
    text = source(model, "net.c")
    code = text[text.index("*/") :]
    assert not re.search(r"\bfloat\b|\df\b|\b(exp|erfc|sqrt)f\b", code)
    assert "void predict(const double *x, double *y);" in text


def test_values_share_memory_if_they_are_not_needed_at_the_same_time():
    assert memory(cl.Model([cl.Linear(9, 4), cl.Softmax()])) == 0  # the last array is where the caller wants it
    assert memory(cl.MLP(9, [7, 8, 5])) == 7 + 8
    assert memory(cl.MLP(9, [7, 8, 6, 8, 7, 3])) == 8 + 7
    assert memory(lenet(), (1, 28, 28)) == 6 * 28 * 28 + 6 * 14 * 14
    wide = cl.Model(
        [cl.Linear(4, 10), cl.Residual(cl.Model([cl.Linear(10, 20), cl.ReLU(), cl.Linear(20, 10)])), cl.Linear(10, 1)]
    )
    assert memory(wide) == 10 + 20 + 10
    beside = cl.Model([cl.Linear(4, 10), cl.Parallel([cl.MLP(10, [50, 2]), cl.MLP(10, [60, 3])]), cl.ReLU()])
    assert memory(beside) == 10 + 60 + 2


def test_weights_of_a_layer_that_is_used_several_times_are_written_once():
    shared = cl.Linear(4, 4)
    text = source(cl.Model([shared, cl.ReLU(), shared, cl.Reshape((2, 2)), cl.Flatten(), shared]), "net.c")
    assert len(re.findall(r"weight\w*\[4\]\[4\] =", text)) == 1
    assert len(re.findall(r"^static void linear", text, re.MULTILINE)) == 1
    assert len(re.findall(r"^    linear_0\(", text, re.MULTILINE)) == 3


@needs_compiler
def test_two_nets_are_in_one_program_and_cplusplus_calls_them(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    one, two = cl.MLP(2, [3, 1], seed=0), cl.Model([cl.Linear(2, 1)], seed=1)
    c.export(one, tmp_path / "one.c")
    c.export(two, tmp_path / "two.c")
    run(CC, *STRICT, "-DPREDICT=two", "-c", "two.c", cwd=tmp_path)
    strict = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
    run(compiler, *strict, "-x", "c++", "-c", "one.c", cwd=tmp_path)  # as C++, in which its name is C's as well
    main = """\
#include <cstdio>
extern "C" void predict(const float *x, float *y);
extern "C" void two(const float *x, float *y);
int main()
{
    const float x[2] = {0.5f, -2.0f};
    float y[2];
    predict(x, y);
    two(x, y + 1);
    std::printf("%.9g %.9g", y[0], y[1]);
}
"""
    (tmp_path / "main.cpp").write_text(main)
    run(compiler, *strict, "main.cpp", "one.o", "two.o", "-o", "main", "-lm", cwd=tmp_path)
    found = [float(number) for number in run(tmp_path / "main", cwd=tmp_path).split()]
    x = np.array([[0.5, -2.0]], F32)
    np.testing.assert_allclose(found, [one.predict(x).item(), two.predict(x).item()], rtol=1e-6)


@needs_compiler
def test_threads_may_call_it_at_the_same_time_with_memory_of_their_own(tmp_path):
    c.export(cl.MLP(2, [3, 3, 1]), tmp_path / "net.c")
    run(CC, *STRICT, "-DPREDICT_MEMORY=", "-c", "net.c", cwd=tmp_path)
    run(CC, *STRICT, "-std=c11", "-DPREDICT_MEMORY=static _Thread_local", "-c", "net.c", cwd=tmp_path)


# ---- what can't be written ------------------------------------------------------------------------------------------

#: Functions that C is not written for.
NOT_IN_C = {
    *["Clip", "CumSum", "LogSumExp", "Prod", "Stack", "Std", "TakeAlongAxis", "Var", "Where"],
    *["FocalLoss", "GaussianLoss", "HingeLoss", "HuberLoss", "Losses", "MAELoss", "MSELoss", "Penalized"],
    *["PoissonLoss", "QuantileLoss", "SigmoidLoss", "SoftmaxLoss", "WeightedSum"],
}


def test_of_each_function_it_is_known_whether_there_is_c():
    every = {x for x in vars(functions).values() if isinstance(x, type) and issubclass(x, Function)}
    with_formula = {kind for kind in every if kind.formula is not None}
    assert {kind.__name__ for kind in every - {*LAYERS, *STACKS, *IDENTITIES} - with_formula} == NOT_IN_C


class DoubledLinear(cl.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


SHAPES = ((4, 3), ())  # of rows: a sequence, and its length
NINE = r"no C for (Subtract\(\)|Sum\(9\)|Max\(1\)) of rows with more than 8 axes"


def stateful(model, x, n):
    return model.two(x, *[cl.Tensor(np.zeros((2, len(x), 2), F32))] * 2)[0]


@pytest.mark.parametrize(
    ("model", "input_shape", "error", "message"),
    [
        (cl.Model([cl.Residual(cl.Model([DoubledLinear(3, 3)]))]), None, TypeError, r"no C for DoubledLinear\(3, 3\)"),
        (
            Calling(lambda model, x: x / len(x)),
            (3,),
            TypeError,
            r"no C for Divide\(\) of a number that depends on the number of rows",
        ),
        (Calling(lambda model, x: x / np.sqrt(len(x))), (3,), ValueError, "can't be followed.*depends on the number"),
        (Calling(lambda model, x: x - x.mean()), (3,), TypeError, r"no C for Mean\(\) as it is used"),
        (Calling(lambda model, x: x - x.mean(axis=0)), (3,), TypeError, r"no C for Mean\(0\) as it is used"),
        (Calling(lambda model, x: x + x[::-1]), (3,), ValueError, r"no C for Index\[.*\], which joins rows"),
        (Calling(lambda model, x: x.transpose()), (3,), TypeError, r"no C for Transpose\(\) as it is used"),
        (Calling(lambda model, x: x.clip(0, 1)), (3,), TypeError, r"no C for Clip\(0.*1.*\)$"),
        (Calling(lambda model, x: x.reshape(-1, 1)), (3,), TypeError, r"no C for ToShape\(-1, 1\) as it is used"),
        (Calling(lambda model, x: cl.concatenate([x, x])), (3,), TypeError, r"no C for Concatenate\(\) as it is used"),
        (Calling(lambda model, x: x if float(x.sum()) > 0 else -x), (3,), TypeError, "can't be followed"),
        (cl.Model([cl.ReLU()]), ((3,), (4,)), ValueError, "a sequence of Functions, which takes one input, got 2"),
        (cl.Model([cl.Columns({"a": [1.0, 2], "b": ["x", "y"]})]), (1,), ValueError, r"expected numbers \(n, 1\) and"),
        (cl.Model([cl.Embedding(5, 3), cl.GRU(3, 2)]), None, ValueError, r"knows only .*input_shape, such as \(28,\)"),
        (cl.Model([cl.Embedding(5, 3)]), None, ValueError, r"shape of a row: give input_shape, such as \(64,\)$"),
        (cl.Model([cl.Embedding(5, 3), cl.Linear(3, 2)]), None, ValueError, "shape of a row: give input_shape"),
        (
            Sequences(lambda model, x, n: model.one(x, lengths=n)),
            SHAPES,
            TypeError,
            r"no C for the lengths that GRU\(3,",
        ),
        (
            Sequences(lambda model, x, n: model.table(n[:, ::2])),
            ((4, 3), (6,)),
            TypeError,
            r"no C for Embedding\(5, 3\) of elements that are not adjacent",
        ),
        (Sequences(stateful), SHAPES, TypeError, r"no C for LSTM\(3, 2, layers=2\) as it is used in"),
        (Sequences(lambda model, x, n: functions.Index(...)(n)), SHAPES, TypeError, "of int64_t as x"),
        ("net.c", None, TypeError, r"export takes a Model, got 'net\.c'"),
        (Calling(lambda model, x: cl.Tensor([[1.0]])), (3,), TypeError, "does not depend on the row"),
        (Calling(lambda model, x: model.f(x)), None, ValueError, r"\(64,\), or \(\(64,\), \(3,\)\) for two inputs"),
        (Calling(lambda model, x: model.f(x)), (4,), ValueError, r"can't be followed.*Linear\(3 → 3\) got"),
        (cl.Linear(3, 4), None, TypeError, r"export takes a Model, got Linear\(3, 4\)"),
        (
            Calling(lambda model, x: x * (model.w * len(x))),
            (3,),
            ValueError,
            "^export: .*depends on the number",
        ),
        (
            Calling(lambda model, x: x + model.w * np.arange(len(x) * 3).reshape(-1, 3)),
            (3,),
            ValueError,
            "^export: .*depends on the number",
        ),
        (
            Calling(lambda model, x: model.f(x) * (np.linspace(0, 1, 900).reshape(300, 3) * len(x)).sum(axis=0)),
            (3,),
            ValueError,
            "^export: .{0,200} depends on the number of rows: .{0,200}$",
        ),
        (Calling(lambda model, x: model.f(x)[:, 3:]), (3,), ValueError, r"Index\[.*\] makes an array without elements"),
        (
            Calling(lambda model, x: cl.concatenate([x, np.zeros((len(x), 0))], axis=1)),
            (3,),
            ValueError,
            r"^export: Concatenate\(1\) gets an array without elements",
        ),
        (Calling(lambda model, x: (x, (x, x))), (3,), TypeError, r"^export: .* got \(Tensor, \(Tensor, Tensor\)\); "),
        (Calling(lambda model, x: x.reshape(-1, 1, 3, *[1] * 7) - x.reshape(-1, 3, *[1] * 8)), (3,), TypeError, NINE),
        (Calling(lambda model, x: x.sum(axis=9)), (*[1] * 8, 3), TypeError, NINE),
        (Calling(lambda model, x: x.max(axis=1)), (*[1] * 8, 3), TypeError, NINE),
        (cl.Model([cl.ReLU()]), None, ValueError, r"give input_shape, such as \(64,\)$"),
        (cl.Model([cl.Conv2d(1, 2, 3)]), None, ValueError, r"knows only \(n, 1, \?, \?\): .*input_shape, such as"),
        (cl.Model(), None, ValueError, r"give input_shape, such as \(64,\)$"),
        (cl.Model([cl.Conv2d(1, 2, 3)]), (3, 8, 8), ValueError, r"Conv2d\(1, 2, 3\) got shape \(n, 3, 8, 8\)"),
        (cl.Model([cl.ReLU()]), 3, TypeError, r"expected the shape of a row, such as \(64,\), got 3"),
        (cl.Model([cl.ReLU()]), (3, 0), ValueError, r"lengths are 1 or more, got \(3, 0\)"),
        (cl.Model([cl.ReLU()]), (3, 1.5), TypeError, r"expected the shape of a row.*got \(3, 1\.5\)"),
        (cl.Model([cl.ReLU()]), (2**16, 2**16), ValueError, r"1 to 2,147,483,647 numbers, got shape \(65536, 65536\)"),
        (cl.Model([cl.Softmax(0)]), (3,), ValueError, r"no C for Softmax\(0\)"),
        (cl.Model([cl.Parallel([cl.ReLU()], axis=0)]), (3,), ValueError, r"no C for Parallel\(\[ReLU\(\)\], axis=0\)"),
    ],
)
def test_an_unsupported_model_is_named_and_writes_nothing(tmp_path, model, input_shape, error, message):
    path = tmp_path / "net.c"
    path.write_text("the older one")
    with pytest.raises(error, match=message):
        c.export(model, path, input_shape)
    assert path.read_text() == "the older one"
    assert len(list(tmp_path.iterdir())) == 1


def test_something_other_than_a_model_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"takes a Model, got '.*'$"):
        c.export(str(tmp_path / "net.c"), cl.MLP(2, [1]))
    estimator = pytest.importorskip("caffelite.sklearn", exc_type=ImportError).MLPRegressor()
    with pytest.raises(TypeError, match=r"takes a Model, got MLPRegressor.*: an estimator's is its `model_`"):
        c.export(estimator, tmp_path / "net.c")


def test_a_file_that_can_not_be_written_is_named(tmp_path):
    with pytest.raises(OSError, match=r"nothing was written.*net\.c"):
        c.export(cl.MLP(2, [1]), tmp_path / "missing" / "net.c")
