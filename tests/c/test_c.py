"""Models as C: what they compute there."""

import itertools
import re

import numpy as np
import pytest

import caffelite as cl
from caffelite import c, functions
from caffelite.c.layers import IDENTITIES
from caffelite.c.net import LAYERS, STACKS
from tests.c.models import F32, F64, Calling, Sequences, needs_compiler, rows
from tests.conftest import run
from tests.reference import special_values
from tests.tools.fuzz_c_export import (
    CC,
    CHANGES,
    SANITIZED,
    STRICT,
    MultiOutputNet,
    NetGenerator,
    differing,
    outputs_in_c,
    source,
)

PUBLIC = [vars(functions.activation)[name] for name in functions.activation.__all__]
ELEMENTWISE = [
    kind for kind in PUBLIC if isinstance(kind, type) and not issubclass(kind, functions.activation.AxisFunction)
]
ACTIVATIONS = [*[kind() for kind in ELEMENTWISE], cl.LeakyReLU(0.1), cl.ELU(0.5), cl.GELU(approximate=True)]


def layer_models():
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
                *[
                    cl.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2),
                    cl.RMSNorm(4, scale=False),
                    cl.GlobalMaxPool(),
                    cl.RMSNorm(6, 0.1),
                ],
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
        ((4, 5), [cl.ConvTranspose1d(4, 2, 5, 2, "same"), cl.Tanh(), cl.ConvTranspose1d(2, 2, 2, 3, "same", groups=2)]),
        ((4, 3, 5), [cl.ConvTranspose2d(4, 2, (3, 4), 2, "same")]),
        ((7, 4), [cl.Tanh(), cl.GlobalAvgPool(axis=1), cl.Linear(4, 2)]),
        ((3, 4, 5), [cl.GlobalMaxPool(axis=(3, 1)), cl.Linear(4, 2)]),
        ((5, 6), [cl.MultiHeadAttention(6, 2, True, key_dim=4, rotary=True), cl.MultiHeadAttention(6, 4, key_dim=3)]),
        ((1,), [cl.Linear(1, 1), cl.Residual(cl.Linear(1, 1, bias=False))]),
    ]
    return [(shape, cl.Model(layers, seed=1)) for shape, layers in models]


@needs_compiler
def test_models_of_each_kind_of_layer_compute_what_predict_does(tmp_path):
    nets = [(model, rows(3, *shape)) for shape, model in layer_models()]
    nets += [
        (cl.Model(model.functions, dtype=F64), rows(3, *shape))
        for shape, model in [*layer_models()[1:6], *layer_models()[12:]]
    ]
    nets.append((cl.Model([cl.Embedding(9, 3), cl.Flatten()]), np.arange(8).reshape(2, 4)))
    nets.append((cl.Model([cl.Splines({"a": [0.0, 1, 2]}, 3)], seed=0), np.array([[0.5], [np.nan], [7]], F32)))
    assert differing(tmp_path, nets) == []
    kinds = {type(function) for model, _ in nets for function in model.all_functions()}
    assert kinds >= {
        kind for kind in (*LAYERS, *STACKS, *IDENTITIES) if hasattr(cl, kind.__name__)
    }  # all except operators


@needs_compiler
@pytest.mark.parametrize("kind", [cl.RNN, cl.GRU, cl.LSTM])
def test_recurrent_layers_of_any_depth_and_direction_compute_what_predict_does(kind, tmp_path):
    nets = []
    for sequences, layers, both in itertools.product([False, True], [1, 3], [False, True]):
        options = {"sequences": sequences, "layers": layers, "bidirectional": both}
        nets += [(cl.Model([kind(3, 4, **options)], seed=0, dtype=dtype), rows(3, 5, 3)) for dtype in (F32, F64)]
    assert differing(tmp_path, nets) == []


def test_a_recurrent_layer_is_a_loop_over_the_steps():
    model = cl.Model([cl.GRU(3, 4)], seed=0)
    short, long = (source(model, "net.c", (length, 3), check=False) for length in (5, 50))
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


class MaskedAttention(Attending):
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
    nets.append((MaskedAttention(causal, rotary), (rows(3, 5, 4), numbers.random((3, 5)) < 0.5)))
    assert differing(tmp_path, nets) == []


@needs_compiler
@pytest.mark.parametrize("dtype", [F32, F64])
def test_several_inputs_and_outputs_are_arguments_in_their_order(dtype, tmp_path):
    x = rows(3, 4, 6), rows(3, 5, 6), rows(3, 5) > 0, np.arange(6).reshape(3, 2)
    nets = [
        (MultiOutputNet(6, 3, sequences, range(5 + len(CHANGES)), CHANGES, dtype), x) for sequences in (False, True)
    ]
    nets.append((MultiOutputNet(6, 3, True, [0, 0, 3], (), dtype), x))  # twice the same
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


class MaskedPooling(cl.Model):
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
    assert differing(tmp_path, [(MaskedPooling(dtype), given)]) == []


def test_an_input_that_no_output_depends_on_stays_an_argument():
    class First(cl.Model):
        def call(self, x, y):
            return x * 2

    text = source(First(), "net.c", ((3,), (4,)))
    assert "void PREDICT(const float *in_1, const float *in_2, float *out_1)" in text
    assert "(void)in_2;" in text


def table():
    """Return a model of two columns of numbers and two of words, and its rows: a frame, and the arrays of that."""
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


def apply_gate(model, x):
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
    nets = [(Calling(apply_gate), rows(3, 3)), (Calling(apply_gate, F64), rows(3, 3)), (blocks, rows(3, 3, 8, 8))]
    nets += [
        (cl.Model([cl.Linear(2, 3), Calling(apply_gate), cl.Tanh()], seed=0), rows(3, 2)),
        (Calling(lambda model, x: x), rows(3, 3)),
    ]
    assert differing(tmp_path, nets) == []


@needs_compiler
@pytest.mark.filterwarnings("ignore:steps run in Python")  # as they make arrays in `call`
@pytest.mark.parametrize("dtype", [F32, F64])
def test_constants_and_shapes_that_a_call_makes_of_a_row(dtype, tmp_path):
    def token(model, x):  # the same for each row, as many as there are rows
        return cl.concatenate([model.w.reshape(1, 1, 3) * np.ones((len(x), 1, 1), dtype), x], axis=1)

    def apply_mask(model, x):  # a mask of keys, with a row for each row
        return model.attention(x, mask=np.array([[True, False, True, True, False]] * len(x)))

    def decode(model, x):  # a recurrent layer reads the same sequence for each row
        first, second = [model.gru(np.full((len(x), length, 3), 0.5, dtype), model.f(x)) for length in (1, 4)]
        return first + second

    nets = [
        (Calling(decode, dtype), rows(3, 3)),
        (Calling(lambda model, x: model.attention(token(model, x)[:, :1], x), dtype), rows(3, 4, 3)),
        (Calling(token, dtype), rows(3, 2, 3)),
        (Calling(lambda model, x: x - model.w * np.ones((len(x), 1)), dtype), rows(3, 3)),
        (Calling(lambda model, x: x.reshape(-1, 1, 4) - x.reshape(-1, 4, 1), dtype), rows(3, 4)),
        (Calling(lambda model, x: (x + 1).reshape(-1, 1, 4) * (x + 1).reshape(-1, 4, 1), dtype), rows(3, 4)),
        (Calling(lambda model, x: x @ model.w.reshape(1, 3), dtype), rows(3, 1)),
        (Calling(lambda model, x: x.reshape(-1, 2, 1) @ model.w.reshape(1, 3), dtype), rows(3, 2)),
        (Calling(lambda model, x: x @ x.transpose(0, 1, 2, 4, 3), dtype), rows(3, 2, 3, 4, 2)),
        (Calling(apply_mask, dtype), rows(3, 5, 3)),
        (Calling(lambda model, x: (x.reshape(-1, *[1] * 8, 3) * 2).softmax(), dtype), rows(3, 3)),
        (Calling(lambda model, x: x + np.arange(2)[[1] * len(x)].reshape(-1, 1), dtype), rows(3, 3)),
        (Calling(lambda model, x: x.reshape(-1, 2, 2, 2, 2, 3) @ x.reshape(-1, 2, 2, 2, 3, 2), dtype), rows(3, 48)),
    ]
    assert differing(tmp_path, nets) == []


@needs_compiler
@pytest.mark.parametrize("factor", [1e-20, 1e20, 2.2e38])
def test_norms_and_means_of_huge_and_tiny_numbers_equal_predict(factor, tmp_path):
    x = np.random.default_rng(0).uniform(-1, 1, (3, 4, 5)).astype(F32) * F32(factor)
    x[0] = abs(x[0])
    kinds = [
        cl.LayerNorm(5),
        cl.RMSNorm(5),
        cl.RMSNorm(5, scale=False),
        cl.GroupNorm(2, 4),
        cl.InstanceNorm(4),
        cl.BatchNorm(4),
    ]
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


class DoubledShrink(Shrink):
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
        c.export(cl.Model([cl.Linear(3, 4), DoubledShrink()]), tmp_path / "net.c")


@needs_compiler
def test_random_nets_compute_what_predict_does(tmp_path):
    assert differing(tmp_path, [NetGenerator(seed).net() for seed in range(12)]) == []


@needs_compiler
@pytest.mark.slow
def test_many_random_nets_compute_what_predict_does(tmp_path):
    for start in range(1000, 2000, 50):
        assert differing(tmp_path, [NetGenerator(seed).net() for seed in range(start, start + 50)]) == []


@needs_compiler
def test_a_compilers_optimizations_change_little(tmp_path):
    assert differing(tmp_path, [(model, rows(3, *shape)) for shape, model in layer_models()[1:3]], ["-O3"]) == []


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
    run(tmp_path / "main", cwd=tmp_path)
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
