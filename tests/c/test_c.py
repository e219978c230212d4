"""Models as C: what they compute there, what the files are like, and what can't be written."""

import copy
import itertools
import re
import shutil

import numpy as np
import pytest

import caffelite as cl
from caffelite import c, functions
from caffelite.c.exporting import source
from caffelite.c.int8 import as_int8
from caffelite.c.layers import IDENTITIES
from caffelite.c.net import LAYERS, STACKS
from caffelite.core.function import Function
from caffelite.model.dataflow import graph_of, random_rows
from tests.conftest import run
from tests.reference import special_values
from tests.tools.fuzz_c_export import CC, CHANGES, SANITIZED, STRICT, Drawn, Several, differing, outputs_in_c

needs_compiler = pytest.mark.skipif(CC is None, reason="there is no C compiler")
F32, F64 = np.float32, np.float64


def rows(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def lenet():
    model = cl.Model([cl.Conv2d(1, 6, 5, padding=2), cl.ReLU(), cl.MaxPool2d(2)], seed=0)
    model.add(cl.Conv2d(6, 16, 5)).add(cl.ReLU()).add(cl.MaxPool2d(2)).add(cl.Flatten())
    return model.add(cl.Linear(400, 120)).add(cl.ReLU()).add(cl.Linear(120, 10))


def memory(model, input_shape=None):
    """How many numbers there are between the layers."""
    found = re.findall(r"PREDICT_MEMORY \w+ memory\[(\d+)\];", source(model, "net.c", input_shape))
    return int(found[0]) if found else 0


# ---- what is computed -----------------------------------------------------------------------------------------------

PUBLIC = [vars(functions.activation)[name] for name in functions.activation.__all__]
ELEMENTWISE = [
    kind for kind in PUBLIC if isinstance(kind, type) and not issubclass(kind, functions.activation.AlongAxis)
]
ACTIVATIONS = [*[kind() for kind in ELEMENTWISE], cl.LeakyReLU(0.1), cl.ELU(0.5), cl.GELU(approximate=True)]


def listed():
    """Models in which each kind of layer is, and the shapes of their rows."""
    shared = cl.Linear(4, 4)
    models = [
        ((7,), [cl.MLP(7, [5, 5, 5, 3]), cl.Dropout(), cl.Softmax()]),
        (
            (1, 9, 8),
            [
                cl.Conv2d(1, 4, (3, 2), (2, 1), (2, 0), (1, 2)),
                cl.AvgPool2d(3, 2, 1),
                cl.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2),
            ],
        ),
        (
            (6, 9),
            [cl.Conv1d(6, 4, 3, stride=2, padding=2, groups=2), cl.MaxPool1d(3, 2, 1), cl.Upsample(2), cl.AvgPool1d(2)],
        ),
        (
            (6, 10),
            [
                *[cl.Conv1d(6, 4, 3, stride=2, padding="same", dilation=2), cl.PReLU(4), cl.InstanceNorm(4)],
                *[cl.Conv1d(4, 4, 3, padding="causal"), cl.MaxPool1d(3, 2, ceil=True), cl.PReLU()],
                *[cl.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2), cl.RMSNorm(4), cl.GlobalMaxPool(), cl.RMSNorm(6, 0.1)],
            ],
        ),
        (
            (4, 5, 3),
            [
                cl.Residual(cl.Model([cl.Conv2d(4, 4, 4, padding="same", groups=4), cl.BatchNorm(4), cl.ReLU()])),
                cl.GroupNorm(2, 4),
                cl.MaxPool2d(2),
                cl.Upsample((1, 3)),
                cl.GlobalAvgPool(),
            ],
        ),
        (
            (3, 4),
            [
                cl.DropConnect(4, 4),
                cl.LayerNorm(4),
                cl.Parallel([cl.Softmax(1), shared, cl.LogSoftmax()], axis=1),
                shared,
                cl.Reshape((4, 9)),
                cl.Linear(9, 2),
            ],
        ),
        (
            (2, 3),
            [
                cl.Parallel([cl.Dropout(), cl.Dropout(), cl.Tanh()]),
                cl.Residual(cl.Dropout()),
                cl.Residual(cl.Residual(cl.Tanh())),
            ],
        ),
        (
            (2, 5, 4),
            [
                cl.Pad(((1, 2), (0, 3))),
                cl.Conv2d(2, 3, 3),
                cl.Pad(((2, 7), (0, 1)), "reflect"),
                cl.ReLU(),
                cl.Pad(((0, 0), (3, 0)), "replicate"),
            ],
        ),
        ((3, 4), [cl.Pad(2), cl.Tanh(), cl.Pad(((0, 1),), "replicate")]),
        ((5,), [cl.Parallel(ACTIVATIONS)]),
        ((2, 2), [cl.Flatten(), cl.Dropout()]),
        ((2,), [cl.Columns({"a": [0.5, 1.0, 3.0], "b": [7, 7, 7]}), cl.Linear(2, 3)]),
        ((5, 4), [cl.RNN(4, 3, sequences=True), cl.LSTM(3, 6, True, layers=2), cl.GRU(6, 2, bidirectional=True)]),
        (
            (5, 6),
            [
                *[cl.PositionalEncoding(6, 7), cl.MultiHeadAttention(6, 2, causal=True, bias=False)],
                *[cl.TransformerBlock(6, 3, causal=True, rotary=True), cl.TransformerBlock(6, 1), cl.GlobalAvgPool()],
            ],
        ),
        ((1,), [cl.Linear(1, 1), cl.Residual(cl.Linear(1, 1, bias=False))]),
    ]
    return [(shape, cl.Model(layers, seed=1)) for shape, layers in models]


@needs_compiler
def test_models_of_each_kind_of_layer_compute_what_predict_does(tmp_path):
    nets = [(model, rows(3, *shape)) for shape, model in listed()]
    nets += [
        (cl.Model(model.functions, dtype=F64), rows(3, *shape)) for shape, model in [*listed()[1:6], *listed()[12:]]
    ]
    nets.append((cl.Model([cl.Embedding(9, 3), cl.Flatten()]), np.arange(8).reshape(2, 4)))
    nets.append((cl.Model([cl.Splines({"a": [0.0, 1, 2]}, 3)], seed=0), np.array([[0.5], [np.nan], [7]], F32)))
    assert differing(tmp_path, nets) == []
    kinds = {type(function) for model, _ in nets for function in model.all_functions()}
    assert kinds >= {
        kind for kind in (*LAYERS, *STACKS, *IDENTITIES) if hasattr(cl, kind.__name__)
    }  # all but operators


@needs_compiler
@pytest.mark.parametrize("kind", [cl.RNN, cl.GRU, cl.LSTM])
def test_recurrent_layers_of_any_depth_and_direction_compute_what_predict_does(kind, tmp_path):
    nets = []
    for sequences, layers, both in itertools.product([False, True], [1, 3], [False, True]):
        options = {"sequences": sequences, "layers": layers, "bidirectional": both}
        nets += [(cl.Model([kind(3, 4, **options)], seed=0, dtype=dtype), rows(3, 5, 3)) for dtype in (F32, F64)]
    assert differing(tmp_path, nets) == []


def test_a_recurrent_layer_is_a_loop_over_the_steps():
    short, long = (source(cl.Model([cl.GRU(3, 4)], seed=0), "net.c", (length, 3)) for length in (5, 50))
    assert "for (int t = 0; t < 50; t++)" in long
    assert long.count("\n") == short.count("\n")


class Attending(cl.Model):
    """Attention with all its inputs: a context, and a mask of this many axes."""

    def __init__(self, causal, rotary, dtype=F32):
        super().__init__(seed=0, dtype=dtype)
        self.attention = cl.MultiHeadAttention(4, 2, causal=causal, rotary=rotary)
        self.seen = np.tri(5, dtype=bool)

    def call(self, x, context, mask):
        return self.attention(x, context, mask)


class Masked(Attending):
    def call(self, x, mask):
        return self.attention(x, mask), self.attention(x, mask=self.seen), x


@needs_compiler
@pytest.mark.parametrize(("causal", "rotary"), [(False, False), (True, False), (False, True), (True, True)])
def test_attention_has_contexts_and_masks_as_inputs(causal, rotary, tmp_path):
    numbers, nets = np.random.default_rng(0), []
    for keys, dtype in ((5, F32), (8, F64)):
        for shape in ((3, keys), (3, 5, keys)):
            mask = numbers.random(shape) < 0.4
            mask[0] = False  # a row that sees nothing
            nets.append((Attending(causal, rotary, dtype), (rows(3, 5, 4), rows(3, keys, 4), mask)))
    nets.append((Masked(causal, rotary), (rows(3, 5, 4), numbers.random((3, 5)) < 0.5)))
    assert differing(tmp_path, nets) == []


@needs_compiler
@pytest.mark.parametrize("dtype", [F32, F64])
def test_several_inputs_and_outputs_are_arguments_in_their_order(dtype, tmp_path):
    x = rows(3, 4, 6), rows(3, 5, 6), rows(3, 5) > 0, np.arange(6).reshape(3, 2)
    nets = [(Several(6, 3, sequences, range(5 + len(CHANGES)), CHANGES, dtype), x) for sequences in (False, True)]
    nets.append((Several(6, 3, True, [0, 0, 3], (), dtype), x))  # twice the same
    assert differing(tmp_path, nets) == []
    text = source(nets[2][0], "net.c", ((4, 6), (5, 6), (5,), (2,)))
    number = "float" if dtype == F32 else "double"
    found = re.search(r"\nvoid PREDICT\(([^)]*)\);", text)[1]
    inputs = [f"const {number} *in_1", f"const {number} *in_2", "const uint8_t *in_3", "const int64_t *in_4"]
    assert re.split(r",\s+", found) == [*inputs, *[f"{number} *out_{i}" for i in (1, 2, 3)]]
    sizes = "IN_1 = 24, IN_2 = 30, IN_3 = 5, IN_4 = 2, OUT_1 = 24, OUT_2 = 24, OUT_3 = 12"
    found = re.search(r"enum { ([^}]*) };", text)[1]
    assert re.split(r",\s+", found) == [f"PREDICT_{size}" for size in sizes.split(", ")]
    assert max(map(len, text.splitlines())) <= len(" * ") + 120


class Sequences(cl.Model):
    """A model that does this with sequences and integers."""

    takes_indices = (False, True)

    def __init__(self, compute):
        super().__init__(seed=0)
        self.compute, self.one, self.two = compute, cl.GRU(3, 2), cl.LSTM(3, 2, layers=2)
        self.table = cl.Embedding(5, 3)

    def call(self, x, n):
        return self.compute(self, x, n)


class Pooled(cl.Model):
    """Means over what a mask lets through, and indices as numbers."""

    takes_indices = (False, False, True)

    def __init__(self, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.attention, self.table = cl.MultiHeadAttention(4, 2), cl.Embedding(9, 4)

    def call(self, x, mask, n):
        weight = cl.Tensor(mask, dtype=self.dtype).reshape(len(x), 5, 1)
        pooled = (self.attention(x, mask) * weight).sum(axis=1) / (weight.sum(axis=1) + 1)
        return pooled * n[:, :1] + self.table(n[:, 1])


@needs_compiler
@pytest.mark.parametrize("dtype", [F32, F64])
def test_masks_and_indices_may_be_used_as_numbers(dtype, tmp_path):
    given = rows(3, 5, 4), rows(3, 5) > 0, np.arange(6).reshape(3, 2)
    assert differing(tmp_path, [(Pooled(dtype), given)]) == []


def test_an_input_that_no_output_depends_on_stays_an_argument():
    class First(cl.Model):
        def call(self, x, y):
            return x * 2

    text = source(First(), "net.c", ((3,), (4,)))
    assert "void PREDICT(const float *in_1, const float *in_2, float *out_1)" in text
    assert "(void)in_2;" in text


def table():
    """A model of two columns of numbers and two of words, and its rows: a frame, and the arrays of that."""
    frame = {"age": [20.0, 31, 60], "town": ["Rome", "Oslo */", "Rome"], "pay": [1.0, 2, 4], "size": ["S", "L", "M"]}
    columns = cl.Columns(frame, size=2, bins=2)
    model = cl.Model([columns, cl.Linear(columns.features, 2)], seed=0)
    return model, frame, columns.arrays(frame)


@needs_compiler
def test_categories_are_indices_that_the_file_lists_by_number(tmp_path):
    model, frame, (numbers, codes) = table()
    frame |= {"town": ["Rome", None, "Bern"], "pay": [None, 3.0, 2.0]}
    numbers, codes = model.functions[0].arrays(frame)
    words = cl.Model([cl.Columns({"town": frame["town"]}), cl.Linear(2, 1)], seed=0)
    nets = [(model, (numbers.astype(F32), codes)), (words, codes[:, :1])]
    assert differing(tmp_path, nets) == []
    (found, _) = outputs_in_c(tmp_path, nets, SANITIZED)
    np.testing.assert_allclose(found, model.predict(frame), rtol=1e-5)
    text = source(model, "net.c")
    assert "\n *     town: 0 Oslo * /, 1 Rome, 2 (missing), 3 (another)\n" in text
    assert "\n *     size: 0 L, 1 M, 2 S, 3 (missing), 4 (another)\n" in text
    assert " * The numbers, NAN for a missing one:\n *     0 age\n *     1 pay\n" in text


@needs_compiler
@pytest.mark.parametrize(
    "name", ["/*", "*/", "/*/", "*/*", "??/", "???/", "\\", "a\r*/", "*\n/", "\0", "\u202e", "\ud800", "\u2028", "ü"]
)
def test_any_name_is_in_a_comment_without_warnings(name, tmp_path):
    frame = {name: [1.0, 2, 3], "word": [name, "b", "c"]}
    columns = cl.Columns(frame)
    model = cl.Model([columns, cl.Linear(columns.features, 1)], seed=0)
    numbers, codes = columns.arrays(frame)
    assert differing(tmp_path, [(model, (numbers.astype(F32), codes))]) == []
    source(model, f"{name}.c").encode()


@needs_compiler
def test_an_index_that_is_not_in_its_table_makes_nan(tmp_path):
    model, _, (numbers, codes) = table()
    embedding = cl.Model([cl.Embedding(5, 3)], seed=0)
    x, indices = numbers.astype(F32), np.array([[0, 1], [2, 4]])
    wrong = [(x, np.array([[0, 5], [-1, 0], [1, 2**40]])), np.array([[5, 1], [2, -(2**63)]])]
    found = outputs_in_c(tmp_path, [(model, (x, codes)), (embedding, indices)], SANITIZED, wrong)
    assert np.isnan(found[0]).all()
    expected = embedding.predict([[1, 1], [2, 2]])
    expected[0, 0] = expected[1, 1] = np.nan
    np.testing.assert_array_equal(found[1], expected)


@needs_compiler
def test_a_part_of_an_input_may_be_used(tmp_path):
    parts = Sequences(lambda model, x, n: (model.table(n[:, 1:3]), model.table(n[:, 2]) + x[:, 0], x))
    assert differing(tmp_path, [(parts, (rows(3, 4, 3), np.arange(12).reshape(3, 4) % 5))]) == []


# ---- weights of int8 ------------------------------------------------------------------------------------------------


def wide():
    return cl.Model([cl.Linear(60, 64), cl.ReLU(), cl.Linear(64, 10)], seed=0)


def convolutional(dtype=F32):
    """Each kind of layer that has weights of int8, with and without bias, and in groups."""
    layers = [cl.Conv2d(2, 4, 3, padding=1, groups=2), cl.ReLU(), cl.ConvTranspose2d(4, 6, 3, 2, groups=2)]
    layers += [cl.Reshape((6, -1)), cl.Conv1d(6, 3, 3, bias=False), cl.ConvTranspose1d(3, 2, 2, bias=False)]
    layers += [cl.TransformerBlock(120, 2), cl.DropConnect(120, 4)]
    return cl.Model(layers, seed=0, dtype=dtype)


def rounded(model):
    """The model with weights that are multiples of the largest of their output / 127."""
    other = copy.deepcopy(model)
    for f in other.all_functions():
        if isinstance(f, cl.Linear | cl.Conv2d | cl.ConvTranspose2d):
            w = f.weight.data
            if isinstance(f, cl.ConvTranspose2d):  # the groups, inputs, outputs, …
                w = w.reshape(f.groups, -1, *w.shape[1:])
                step = abs(w).max(axis=(1, *range(3, w.ndim)), keepdims=True) / 127
            else:
                others = 0 if isinstance(f, cl.Linear) else tuple(range(1, w.ndim))
                step = abs(w).max(axis=others, keepdims=True) / 127
            step[step == 0] = 1
            f.weight.data = (np.round(w / step) * step).reshape(f.weight.shape)
    return other


@needs_compiler
def test_quantized_weights_are_the_nearest_multiples_of_a_scale_for_each_output(tmp_path):
    nothing = cl.Model([cl.Linear(3, 2)], seed=0)
    nothing.functions[0].weight.data = [[0.0, 1], [0, 2], [0, 3]]
    nets = [(wide(), rows(3, 60)), (nothing, rows(3, 3))]
    nets += [(convolutional(dtype), rows(3, 2, 5, 5)) for dtype in (F32, F64)]
    found = outputs_in_c(tmp_path, nets, SANITIZED, quantize=True)
    for (model, x), y in zip(nets, found, strict=True):
        expected = rounded(model).predict(x)
        tolerance = 1e-5 if model.dtype == F32 else 1e-12
        np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * abs(expected).max())


def test_quantized_weights_are_a_quarter_and_the_error_is_told(tmp_path):
    model = wide()
    assert c.export(model, tmp_path / "floats.c") is None
    rounding = c.export(model, tmp_path / "bytes.c", quantize=True)
    floats, of_bytes = ((tmp_path / name).read_text() for name in ("floats.c", "bytes.c"))
    assert f"weights   {4 * (60 * 64 + 64 + 64 * 10 + 10) / 1000:.1f} kB" in floats
    assert f"weights   {(60 * 64 + 64 * 10 + 2 * 4 * (64 + 10)) / 1000:.1f} kB" in of_bytes
    assert len(of_bytes) < len(floats) / 2
    x = np.random.default_rng(0).standard_normal((256, 60)).astype(F32)
    y, other = model.predict(x), rounded(model).predict(x)
    expected = abs(y - other).max(), abs(y - other).mean(), abs(y).max()
    np.testing.assert_allclose(rounding, expected, rtol=1e-3)
    assert f"by {rounding.largest:.2g} at most and {rounding.mean:.2g} on average" in of_bytes
    assert "rounding" not in floats.split("*/")[0]
    assert 0 < rounding.mean < rounding.largest < 0.02 * rounding.output


def test_weights_that_are_no_numbers_are_not_quantized(tmp_path):
    model = wide()
    model.functions[2].weight.data[3, 4] = np.inf
    with pytest.raises(ValueError, match=r"quantize=True takes finite weights, and Linear\(64, 10\)"):
        c.export(model, tmp_path / "net.c", quantize=True)
    with pytest.raises(TypeError, match="quantize must be True or False"):
        c.export(model, tmp_path / "net.c", quantize=8)
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_missing_numbers_and_dates_of_columns_are_what_predict_makes_of_them(tmp_path):
    x = np.array([[0.5, np.nan, 3.0], [1e9, 2.0, np.nan], [-1e30, np.nan, np.nan], [1.5, 7.0, 2.0]])
    frame = {"a": x[:, 0], "b": x[:, 1], "c": [7.0, 1, 2, 3]}
    nets = []
    for robust, dtype in itertools.product((False, True), (F32, F64)):
        columns = cl.Columns({**frame, "when": np.arange(4).astype("datetime64[D]")}, robust=robust, bins=2 * robust)
        model = cl.Model([columns, cl.Linear(columns.features, 3)], seed=0, dtype=dtype)
        given = np.concatenate([x[:, :2], x[::-1, 2:], np.zeros((4, len(columns.numbers) - 3))], axis=1)
        nets.append((model, given.astype(dtype) if dtype == F32 or robust else given))
    assert differing(tmp_path, nets) == []


class Calling(cl.Model):
    """A model that does this, and has a layer `f` and a parameter."""

    def __init__(self, compute, dtype=F32):
        super().__init__(seed=0, dtype=dtype)
        self.compute, self.f, self.scale = compute, cl.Linear(3, 3), cl.LayerNorm(3)
        self.half = cl.Tensor(np.full(1, 0.5, dtype))
        self.w = cl.Tensor(np.array([0.5, -2, 3], dtype))
        self.attention, self.gru = cl.MultiHeadAttention(3, 1), cl.GRU(3, 3)

    def call(self, x):
        return self.compute(self, x)


def gated(model, x):
    a = model.f(x)
    s = model.scale(a).sigmoid()
    h = a * s - x / (2.0 * s) + (1 - s) * (-x) + model.half * model.f(model.f(a)) + 2 / (s + 1) + s**2 + 1.5**s
    h = cl.concatenate([h, x, (h.abs() + 0.1).log(), s.exp().sqrt()], axis=1)
    return h.reshape(len(x), 4, 3)


class Block(cl.Model):
    """A block of a residual net, as in examples/resnet.py."""

    def __init__(self, in_channels, out_channels, stride=1):
        super().__init__()
        self.f = cl.Model([cl.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False), cl.BatchNorm(out_channels)])
        self.g = cl.Conv2d(in_channels, out_channels, 1, stride) if in_channels != out_channels else None

    def call(self, x):
        return (self.f(x) + (x if self.g is None else self.g(x))).relu()


@needs_compiler
def test_models_that_write_call_compute_what_predict_does(tmp_path):
    blocks = cl.Model(
        [cl.Conv2d(3, 4, 3), Block(4, 4), Block(4, 6, 2), cl.Residual(Block(6, 6)), cl.GlobalAvgPool()], seed=0
    )
    nets = [(Calling(gated), rows(3, 3)), (Calling(gated, F64), rows(3, 3)), (blocks, rows(3, 3, 8, 8))]
    nets += [
        (cl.Model([cl.Linear(2, 3), Calling(gated), cl.Tanh()], seed=0), rows(3, 2)),
        (Calling(lambda model, x: x), rows(3, 3)),
    ]
    assert differing(tmp_path, nets) == []


@needs_compiler
@pytest.mark.filterwarnings("ignore:steps run in Python")  # as they make arrays in `call`
@pytest.mark.parametrize("dtype", [F32, F64])
def test_constants_and_shapes_that_a_call_makes_of_a_row(dtype, tmp_path):
    def token(model, x):  # the same for each row, as many as there are rows
        return cl.concatenate([model.w.reshape(1, 1, 3) * np.ones((len(x), 1, 1), dtype), x], axis=1)

    def masked(model, x):  # a mask of keys, with a row for each row
        return model.attention(x, mask=np.array([[True, False, True, True, False]] * len(x)))

    def decoded(model, x):  # a recurrent layer reads the same sequence for each row
        first, second = [model.gru(np.full((len(x), length, 3), 0.5, dtype), model.f(x)) for length in (1, 4)]
        return first + second

    nets = [
        (Calling(decoded, dtype), rows(3, 3)),
        (Calling(lambda model, x: model.attention(token(model, x)[:, :1], x), dtype), rows(3, 4, 3)),
        (Calling(token, dtype), rows(3, 2, 3)),
        (Calling(lambda model, x: x - model.w * np.ones((len(x), 1)), dtype), rows(3, 3)),
        (Calling(lambda model, x: x.reshape(-1, 1, 4) - x.reshape(-1, 4, 1), dtype), rows(3, 4)),
        (Calling(lambda model, x: (x + 1).reshape(-1, 1, 4) * (x + 1).reshape(-1, 4, 1), dtype), rows(3, 4)),
        (Calling(lambda model, x: x @ model.w.reshape(1, 3), dtype), rows(3, 1)),
        (Calling(lambda model, x: x.reshape(-1, 2, 1) @ model.w.reshape(1, 3), dtype), rows(3, 2)),
        (Calling(lambda model, x: x @ x.transpose(0, 1, 2, 4, 3), dtype), rows(3, 2, 3, 4, 2)),
        (Calling(masked, dtype), rows(3, 5, 3)),
        (Calling(lambda model, x: (x.reshape(-1, *[1] * 8, 3) * 2).softmax(), dtype), rows(3, 3)),
        (Calling(lambda model, x: x + np.arange(2)[[1] * len(x)].reshape(-1, 1), dtype), rows(3, 3)),
        (Calling(lambda model, x: x.reshape(-1, 2, 2, 2, 2, 3) @ x.reshape(-1, 2, 2, 2, 3, 2), dtype), rows(3, 48)),
    ]
    assert differing(tmp_path, nets) == []


@needs_compiler
@pytest.mark.parametrize("factor", [1e-20, 1e20, 2.2e38])
def test_norms_and_means_of_very_large_and_very_small_numbers_are_those_of_predict(factor, tmp_path):
    x = np.random.default_rng(0).uniform(-1, 1, (3, 4, 5)).astype(F32) * F32(factor)
    x[0] = abs(x[0])
    kinds = [cl.LayerNorm(5), cl.RMSNorm(5), cl.GroupNorm(2, 4), cl.InstanceNorm(4), cl.BatchNorm(4)]
    kinds += [cl.LayerNorm(5, 1e-50), cl.RMSNorm(5, 1e-50)]  # which is 0 in float32
    kinds += [cl.AvgPool1d(3), cl.GlobalAvgPool()]
    assert differing(tmp_path, [(cl.Model([kind], seed=0), x) for kind in kinds]) == []


@needs_compiler
def test_outputs_that_are_copies_have_functions_of_their_own(tmp_path):
    class Linear(cl.Model):  # the name of a layer
        def __init__(self):
            super().__init__(seed=0)
            self.f = cl.Linear(3, 3)

        def call(self, x):
            y = self.f(x)
            return x, y, y, x, y.reshape(-1, 1, 3)

    class Weight(Linear):  # the name of an array of weights
        pass

    odd = type("a name-/*", (Linear,), {})
    assert differing(tmp_path, [(kind(), rows(3, 3)) for kind in (Linear, Weight, odd)]) == []


@needs_compiler
def test_weights_too_small_for_a_scale_are_quantized_to_0(tmp_path):
    model = cl.Model([cl.Linear(3, 2), cl.Linear(2, 2)], seed=0)
    weight = model.functions[0].weight
    weight.data = weight.data * F32(1e-42)
    assert differing(tmp_path, [(model, rows(3, 3))]) == []
    _, scale, product = as_int8(model.functions[0])
    assert (scale >= np.finfo(F32).tiny).all()
    np.testing.assert_allclose(product, weight.data, atol=float(np.finfo(F32).tiny))


def test_the_error_of_quantizing_is_that_of_the_layer_alone_and_of_numbers(tmp_path):
    class Tied(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.words, self.scores = cl.Embedding(6, 6), cl.Linear(6, 6, bias=False)

        takes_indices = True

        def call(self, x):
            return self.scores(self.words(x))

    tied = Tied()
    tied.words.weight = tied.scores.weight
    rounding = c.export(tied, tmp_path / "net.c", input_shape=(1,), quantize=True)
    exact, product = tied.scores.weight.data, as_int8(tied.scores).product
    largest = max(abs(row @ exact - row @ product).max() for row in exact)
    np.testing.assert_allclose(rounding.largest, largest, rtol=1e-3)

    class Decoded(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f, self.identity = cl.Linear(6, 6, bias=False), cl.Embedding(6, 6)
            self.identity.weight.data = np.eye(6)

        takes_indices = True

        def call(self, x):
            return self.f(self.identity(x)) @ self.f.weight.transpose(1, 0)

    model = Decoded()
    rounding = c.export(model, tmp_path / "net.c", input_shape=(1,), quantize=True)
    exact, product = model.f.weight.data, as_int8(model.f).product
    np.testing.assert_allclose(rounding.largest, abs((exact - product) @ exact.T).max(), rtol=1e-3)

    class Root(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f = cl.Linear(3, 2)

        def call(self, x):
            return self.f(x).sqrt()

    rounding = c.export(Root(), tmp_path / "net.c", input_shape=(3,), quantize=True)
    assert np.isfinite(rounding.output)
    assert not np.isnan(rounding).any()


def test_indices_are_drawn_that_all_that_reads_them_knows(tmp_path):
    columns = cl.Columns({"a": ["u", "v", "w"], "b": ["p", "q", "q"]}, size=2)

    class Shared(cl.Model):
        takes_indices = True

        def __init__(self):
            super().__init__(seed=0)
            self.columns, self.few, self.many = columns, cl.Embedding(3, 4), cl.Embedding(90, 4)

        def call(self, n):
            return self.columns(n[:, 2:]) + self.few(n[:, 0]) + self.many(n[:, 0]) + self.many(n[:, 1])

    graph = graph_of(Shared(), ((4,),), lambda kind: True)
    (drawn,) = random_rows(graph, 3000, np.random.default_rng(0))
    assert drawn.min(axis=0).tolist() == [0, 0, 0, 0]
    assert drawn.max(axis=0).tolist() == [2, 89, 4, 3]
    c.export(Shared(), tmp_path / "net.c", (4,), quantize=True)


def test_categories_of_all_codes_are_drawn_to_measure_the_error_of_quantizing():
    frame = {"w": np.array(["a", "b", "c", "d"] * 5), "x": np.arange(20.0), "v": np.array(["a", "b"] * 10)}
    for kind in (cl.Columns, cl.Splines):
        model = cl.Model([kind(frame, 3), cl.ReLU()], seed=0)
        graph = graph_of(model, ((1,), (2,)), lambda kind: True)
        _, codes = random_rows(graph, 500, np.random.default_rng(0))
        assert [sorted(set(column.tolist())) for column in codes.T] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]


class Shrink(cl.Function):
    """y = x − x / (1 + |x|) in NumPy, whose formula says the same."""

    def formula(self, x):
        return x - self.part(x)

    def part(self, x):
        return x / (1 + x.abs())

    def forward(self, x):
        self.x = x
        return x - x / (1 + abs(x))

    def backward(self, dy):
        return dy * (1 - 1 / (1 + abs(self.x)) ** 2)


class Wide(Shrink):
    def forward(self, x):
        return 2 * super().forward(x)


@needs_compiler
def test_a_function_without_c_of_its_own_is_written_by_its_formula(tmp_path):
    nets = [
        (cl.Model([cl.Linear(3, 4), Shrink(), cl.Residual(Shrink())], seed=0), rows(3, 3)),
        (Calling(lambda model, x: x * Shrink()(model.f(x)) + x), rows(3, 3)),
    ]
    assert differing(tmp_path, nets) == []
    with pytest.raises(TypeError, match="no C for"):
        c.export(cl.Model([cl.Linear(3, 4), Wide()]), tmp_path / "net.c")


@needs_compiler
def test_random_nets_compute_what_predict_does(tmp_path):
    assert differing(tmp_path, [Drawn(seed).net() for seed in range(12)]) == []


@needs_compiler
@pytest.mark.slow
def test_many_random_nets_compute_what_predict_does(tmp_path):
    for start in range(1000, 2000, 50):
        assert differing(tmp_path, [Drawn(seed).net() for seed in range(start, start + 50)]) == []


@needs_compiler
def test_a_compilers_optimizations_change_little(tmp_path):
    assert differing(tmp_path, [(model, rows(3, *shape)) for shape, model in listed()[1:3]], ["-O3"]) == []


@needs_compiler
@pytest.mark.parametrize("dtype", [F32, F64])
def test_nan_and_infinities_are_what_they_are_in_predict(tmp_path, dtype):
    values = special_values(dtype).reshape(-1, 1)
    several = np.array(
        [[1, 2, np.nan], [np.nan, 0, 1], [np.inf, 0, 1], [-np.inf, 0, 1], [-np.inf] * 3, [88, 800, -800]]
    )
    along = cl.Model(
        [cl.Reshape((1, 3)), cl.Parallel([cl.Softmax(), cl.LogSoftmax(), cl.MaxPool1d(2, 1)])], dtype=dtype
    )
    nets = [(cl.Model([cl.Parallel(ACTIVATIONS)], dtype=dtype), values), (along, several)]
    for (model, x), y in zip(nets, outputs_in_c(tmp_path, nets, SANITIZED), strict=True):
        np.testing.assert_allclose(y, model.predict(x), rtol=2e-6, atol=1e-30 if dtype == F64 else 1e-37)


@needs_compiler
@pytest.mark.parametrize("dtype", [F32, F64])
def test_weights_have_the_bits_that_they_had(tmp_path, dtype):
    bits = {F32: np.uint32, F64: np.uint64}[dtype]
    rng, info = np.random.default_rng(0), np.finfo(dtype)
    drawn = rng.integers(0, np.iinfo(bits).max, 2000, dtype=bits).view(dtype)
    special = [
        0.0,
        -0.0,
        1.0,
        0.1,
        info.max,
        -info.max,
        info.tiny,
        info.smallest_subnormal,
        np.inf,
        -np.inf,
        1 / 3,
        1e16,
    ]
    weights = np.concatenate([drawn[~np.isnan(drawn)], np.array(special, dtype)])
    model = cl.Model([cl.Linear(len(weights), 1, bias=False)], dtype=dtype)
    model.functions[0].weight.data = weights[:, None]
    c.export(model, tmp_path / "net.c")
    main = (
        'FILE *file = fopen("weights", "wb"); return fwrite(weight_0, sizeof weight_0, 1, file) != 1 || fclose(file);'
    )
    (tmp_path / "main.c").write_text(f'#include <stdio.h>\n#include "net.c"\nint main(void)\n{{\n    {main}\n}}\n')
    run(CC, *STRICT, "main.c", "-o", "main", "-lm", cwd=tmp_path)
    run("./main", cwd=tmp_path)
    assert (tmp_path / "weights").read_bytes() == weights.tobytes()


@needs_compiler
def test_weights_that_are_nan_make_nan(tmp_path):
    model = cl.Model([cl.Linear(3, 2, bias=False)])
    model.functions[0].weight.data = [[1, np.nan], [2, 0], [3, 0]]
    computed = Calling(lambda model, x: x + model.w.log() + (model.w[1] - model.w[1].log()).sum())
    x = np.ones((1, 3), F32)
    y, z = outputs_in_c(tmp_path, [(model, x), (computed, x)], SANITIZED)
    np.testing.assert_array_equal(y, [[6, np.nan]])
    np.testing.assert_array_equal(z, [[np.nan] * 3])


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


def test_values_share_memory_where_they_are_not_needed_at_the_same_time():
    assert memory(cl.Model([cl.Linear(9, 4), cl.Softmax()])) == 0  # what comes last is where the caller wants it
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
    found = [float(number) for number in run("./main", cwd=tmp_path).split()]
    x = np.array([[0.5, -2.0]], F32)
    np.testing.assert_allclose(found, [one.predict(x).item(), two.predict(x).item()], rtol=1e-6)


@needs_compiler
def test_threads_may_call_it_at_the_same_time_where_the_memory_is_their_own(tmp_path):
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


class Doubled(cl.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


SHAPES = ((4, 3), ())  # of rows: a sequence, and its length


NINE = r"no C for (Subtract\(\)|Sum\(9\)|Max\(1\)) of rows with more than 8 axes"


def stateful(model, x, n):
    return model.two(x, *[cl.Tensor(np.zeros((2, len(x), 2), F32))] * 2)[0]


@pytest.mark.parametrize(
    ("model", "input_shape", "error", "message"),
    [
        (cl.Model([cl.Residual(cl.Model([Doubled(3, 3)]))]), None, TypeError, r"no C for Doubled\(3, 3\)"),
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
        (Calling(lambda model, x: (x, (x, x))), (3,), TypeError, r"^export: .* got \(Tensor, \(Tensor, Tensor\)\)$"),
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
def test_what_can_not_be_written_is_named_and_nothing_is_written(tmp_path, model, input_shape, error, message):
    path = tmp_path / "net.c"
    path.write_text("the older one")
    with pytest.raises(error, match=message):
        c.export(model, path, input_shape)
    assert path.read_text() == "the older one"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_no_model_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"takes a Model, got '.*'$"):
        c.export(str(tmp_path / "net.c"), cl.MLP(2, [1]))
    estimator = pytest.importorskip("caffelite.sklearn", exc_type=ImportError).MLPRegressor()
    with pytest.raises(TypeError, match=r"takes a Model, got MLPRegressor.*: an estimator's is its `model_`"):
        c.export(estimator, tmp_path / "net.c")


def test_a_file_that_can_not_be_written_is_named(tmp_path):
    with pytest.raises(OSError, match=r"nothing was written.*net\.c"):
        c.export(cl.MLP(2, [1]), tmp_path / "missing" / "net.c")
