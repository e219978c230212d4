"""What is exported computes what the model does, for any number of rows."""

import numpy as np
import onnx
import pytest

import caffelite as cl
import caffelite.onnx
from caffelite import functions
from caffelite.functions.losses.base import Loss
from caffelite.onnx import families
from tests.cases import FAMILIES, both_dtypes
from tests.onnx.graphs import FLOAT, load_graph, make_graph, run

LOSSES = Loss | functions.Penalized | functions.Losses | functions.WeightedSum
LAYERS = {kind: family for kind, family in FAMILIES.items() if not issubclass(kind, LOSSES)}


class FunctionNet(cl.Model):
    """A Function as a model."""

    def __init__(self, function, dtype, takes_indices):
        super().__init__(dtype=dtype)
        self.function, self.takes_indices = function, takes_indices

    def call(self, *inputs):
        if isinstance(self.function, functions.recurrent.Recurrent) and len(inputs) > 1 and inputs[-1].ndim == 1:
            outputs = self.function(*inputs[:-1], lengths=inputs[-1])
        else:
            outputs = self.function(*inputs)
        if isinstance(outputs, tuple) and isinstance(outputs[1], tuple):
            return outputs[0], *outputs[1]
        return outputs


# The rows of these are not examples: they index, reshape, normalize, move or mirror the first axis.
OF_ALL_ROWS = {functions.Index, functions.ToShape, functions.LayerNorm, functions.RMSNorm}
OF_ALL_ROWS |= {functions.Split, functions.Roll, functions.PadAxes}


@both_dtypes
@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_every_function_is_exported_and_computes_the_same(kind, dtype, path):
    exported = 0
    for arguments in LAYERS[kind].listed:
        case = LAYERS[kind].build(*arguments)
        inputs = case.inputs(dtype)
        if any(x.ndim == 0 or len(x) != len(inputs[0]) for x in inputs):
            continue  # no rows, or not as many of each
        model = FunctionNet(case.function(dtype), dtype, tuple([x.dtype.kind == "i" for x in inputs]))
        try:
            caffelite.onnx.export(model, path, tuple([x.shape[1:] for x in inputs]))  # which compares them
        except ValueError:
            assert kind in OF_ALL_ROWS, arguments
            continue
        graph = onnx.load(path).graph
        onnx.checker.check_model(path, full_check=True)
        assert all(info.type.tensor_type.shape.dim[0].dim_param == "batch" for info in graph.input)
        names = {initializer.name for initializer in graph.initializer}
        assert {name for name, p in model.named_parameters().items()} <= names
        exported += 1
    assert exported > 0


class Everything(cl.Model):
    """Several inputs, of which one is indices, one a mask, one lengths; several outputs."""

    def __init__(self, dtype=np.float32):
        super().__init__(seed=0, dtype=dtype)
        self.takes_indices = (False, True, False, True)
        self.embedding, self.block = cl.Embedding(5, 4), cl.TransformerBlock(4, 2, causal=True)
        self.lstm, self.gru = cl.LSTM(4, 3, sequences=True), cl.GRU(4, 3)
        self.zero = np.zeros((9, 3), dtype)

    def call(self, x, tokens, mask, lengths):
        h = self.block(x + self.embedding(tokens[:, ::-1]), mask)
        y, (last, cells) = self.lstm(h, self.zero[: len(x)], self.zero[: len(x)], lengths=lengths)
        flat = h.reshape(len(x) * 2, -1).reshape(len(x), -1)
        kept = cl.where(mask, h.sum(2), 0.0)
        return y[:, -1] + last, cells * 2 / len(x), cl.concatenate([flat, kept], 1), self.gru(h, lengths=lengths)


def inputs_of_everything(n, dtype=np.float32):
    rng = np.random.default_rng(n)
    lengths = rng.integers(1, 7, n)
    mask = np.arange(6) < lengths[:, None]
    return rng.standard_normal((n, 6, 4)).astype(dtype), rng.integers(0, 5, (n, 6)), mask, lengths


@both_dtypes
def test_inputs_may_be_several_and_be_indices_masks_and_lengths(dtype, path):
    model = Everything(dtype)
    caffelite.onnx.export(model, path, ((6, 4), (6,), (6,), ()))
    graph = onnx.load(path).graph
    kinds = [onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type) for info in graph.input]
    assert [info.name for info in graph.input] == ["x", "tokens", "mask", "lengths"]
    assert kinds == [dtype, np.int64, np.bool_, np.int64]
    loaded = caffelite.onnx.load(path)
    for n in (1, 8):
        inputs = inputs_of_everything(n, dtype)
        expected = model.predict(inputs)
        for y, other in zip(expected, loaded.predict(inputs), strict=True):
            np.testing.assert_allclose(other, y, atol=1e-5)
        if dtype == np.float32:
            for y, other in zip(expected, run(path, *inputs), strict=True):
                np.testing.assert_allclose(other, y, atol=1e-5)


class PooledAttention(cl.Model):
    """What `pool` makes of attention to words, of their mask, which attention takes too, and of their number."""

    takes_indices = (True, False, True)

    def __init__(self, pool, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.words, self.attention, self.scores = cl.Embedding(10, 8), cl.MultiHeadAttention(8, 2), cl.Linear(8, 3)
        self.pool = pool

    def call(self, words, mask, lengths):
        return self.scores(self.pool(self.attention(self.words(words), mask), mask, lengths))


@both_dtypes
@pytest.mark.parametrize(
    "pool",
    [
        lambda h, mask, lengths: (h * mask[:, :, None]).sum(axis=1),
        lambda h, mask, lengths: cl.where(mask[:, :, None], h, 0.0).sum(axis=1),
        lambda h, mask, lengths: h[:, 0] / cl.sum(cl.Tensor(mask, dtype=h.dtype), axis=1, keepdims=True),
        lambda h, mask, lengths: (h * (1 - cl.Tensor(mask, dtype=h.dtype))[:, :, None]).sum(axis=1),
        lambda h, mask, lengths: cl.einsum("nl,nld->nd", mask, h),
        lambda h, mask, lengths: h.sum(axis=1) / lengths[:, None],
        lambda h, mask, lengths: h.sum(axis=1) * cl.Tensor(lengths, dtype=h.dtype).reshape(-1, 1) + mask[:, :1],
    ],
)
def test_masks_and_lengths_may_be_used_as_numbers_too(pool, dtype, path):
    model = PooledAttention(pool, dtype)
    caffelite.onnx.export(model, path, ((6,), (6,), ()))
    kinds = [onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in onnx.load(path).graph.input]
    assert kinds == [np.int64, np.bool_, np.int64]
    loaded = caffelite.onnx.load(path)
    for n in (1, 7):
        rng = np.random.default_rng(n)
        inputs = rng.integers(0, 10, (n, 6)), rng.random((n, 6)) < 0.6, rng.integers(1, 7, n)
        expected, atol = model.predict(inputs), 1e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(run(path, *inputs), expected, atol=atol)
        np.testing.assert_allclose(loaded.predict(inputs), expected, atol=atol)


@both_dtypes
@pytest.mark.parametrize("robust", [False, True])
def test_columns_are_exported_with_what_is_missing_and_unknown(robust, dtype, path):
    rng = np.random.default_rng(0)
    n = 40
    frame = {
        "a": rng.lognormal(size=n),
        "b": np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)),
        "c": rng.choice(np.array(["x", "y", None], object), n),
        "when": np.arange(n).astype("datetime64[D]"),
    }
    columns = cl.Columns(frame, robust=robust, bins=4 * robust)
    model = cl.Model([columns, cl.Linear(columns.features, 3)], seed=0, dtype=dtype)
    caffelite.onnx.export(model, path)
    later = {**frame, "a": np.full(n, np.nan), "c": np.array(["z"] * n)}
    for given in (frame, later):
        numbers, codes = columns.arrays(given)
        expected, inputs = model.predict(given), (numbers.astype(dtype), codes)
        for found in (run(path, *inputs), caffelite.onnx.load(path).predict(inputs)):
            np.testing.assert_allclose(found, expected, atol=2e-5 if dtype == np.float32 else 1e-12)


class StackedLayers(cl.Model):
    """Recurrent layers in stacks and in both directions, from states, of sequences of several lengths or of one."""

    def __init__(self, layer, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.takes_indices = (False, True)
        self.deep = layer(4, 3, sequences=True, layers=2, bidirectional=True)
        self.top, self.stack = layer(6, 2, bidirectional=True), layer(6, 2, layers=3, dropout=0.5)
        self.first = cl.Linear(4, 12)

    def call(self, x, lengths):
        states = [self.first(x[:, 0]).reshape(len(x), 4, 3).transpose(1, 0, 2)] * len(self.deep.state_names)
        y, last = self.deep(x, *states, lengths=lengths)
        last = last[0] if isinstance(last, tuple) else last
        return y, last.transpose(1, 0, 2), self.top(y, lengths=lengths), self.top(x=y), self.stack(y)


@both_dtypes
@pytest.mark.parametrize("layer", [cl.RNN, cl.GRU, cl.LSTM])
def test_stacks_and_both_directions_are_exported_with_states_and_lengths(layer, dtype, path):
    model = StackedLayers(layer, dtype)
    caffelite.onnx.export(model, path, ((6, 4), ()))
    attributes = [a for node in onnx.load(path).graph.node for a in node.attribute if a.name == "direction"]
    assert {a.s for a in attributes} == {b"bidirectional"}
    for n in (1, 8):
        x, lengths = np.random.default_rng(n).standard_normal((n, 6, 4)).astype(dtype), np.arange(n) % 6 + 1
        expected = model.predict((x, lengths))
        results = [run(path, x, lengths)] if dtype == np.float32 else []
        if layer is not cl.RNN:  # for its lengths, it is turned by an operator that caffelite does not have
            results.append(caffelite.onnx.load(path).predict((x, lengths)))
        for result in results:
            for y, other in zip(expected, result, strict=True):
                np.testing.assert_allclose(other, y, atol=1e-5)


class Translator(cl.Model):
    """Attention with a context, and with masks of keys, of pairs, and of each row's pairs."""

    def __init__(self, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.takes_indices = False
        self.block = cl.TransformerBlock(8, 2, causal=True, rotary=True)
        self.cross = cl.MultiHeadAttention(8, 2, rotary=True, key_dim=6)
        self.last = cl.MultiHeadAttention(8, 3, causal=True, key_dim=5)
        self.pairs = np.random.default_rng(0).random((6, 7)) < 0.6

    def call(self, x, context, mask, rows):
        h = self.block(x, rows, None)  # without a cache
        h = h + self.cross(h, context, mask)
        return self.last(h, context, self.pairs), self.cross(h, context), self.last(h, context, mask=self.pairs[None])


@both_dtypes
def test_contexts_masks_and_rotary_positions_are_exported(dtype, path):
    model = Translator(dtype)
    caffelite.onnx.export(model, path, ((6, 8), (7, 8), (7,), (6, 6)))
    kinds = [onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in onnx.load(path).graph.input]
    assert kinds == [dtype, dtype, np.bool_, np.bool_]
    for n in (1, 8):
        rng = np.random.default_rng(n)
        x, context = (rng.standard_normal((n, length, 8)).astype(dtype) for length in (6, 7))
        inputs = x, context, rng.random((n, 7)) < 0.6, rng.random((n, 6, 6)) < 0.6
        expected = model.predict(inputs)
        results = [run(path, *inputs)] if dtype == np.float32 else []
        for result in (caffelite.onnx.load(path).predict(inputs), *results):
            for y, other in zip(expected, result, strict=True):
                np.testing.assert_allclose(other, y, atol=1e-5)


class ComputedNet(cl.Model):
    """Written as `compute` says."""

    def __init__(self, compute):
        super().__init__(seed=0)
        self.f, self.compute = cl.Linear(3, 3), compute

    def call(self, x):
        return self.compute(self, x)


class Swish(cl.Function):
    def forward(self, x):
        return x / (1 + np.exp(-x))

    def backward(self, dy):
        return dy


class ScaledLinear(cl.Linear):
    """A layer that computes something else than its class."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_group_normalization_of_opset_21_is_a_layer(path):
    rng = np.random.default_rng(0)
    constants = {"scale": rng.random(6).astype(np.float32), "shift": rng.random(6).astype(np.float32)}
    node = ("GroupNormalization", ["x", "scale", "shift"], ["y"], {"num_groups": 3, "epsilon": 0.1})
    graph = make_graph([node], constants, inputs=(("x", FLOAT, ("n", 6, 5)),), opset=21)
    path.write_bytes(graph)
    loaded = caffelite.onnx.load(path)
    assert [repr(function) for function in loaded.all_functions()] == ["GroupNorm(3, 6, eps=0.1)"]
    x = rng.standard_normal((4, 6, 5)).astype(np.float32)
    np.testing.assert_allclose(loaded.predict(x), run(path, x), atol=1e-6)
    caffelite.onnx.export(loaded, path, (6, 5))  # which compares them
    loaded.fit(x, x, loss=cl.MSELoss(), optimizer=cl.SGD(loaded.parameters(), lr=0.1), epochs=1, verbose=0)


def test_an_rms_normalization_of_opset_23_is_a_layer(path):
    constants = {"scale": np.random.default_rng(0).random(6).astype(np.float32)}
    node = ("RMSNormalization", ["x", "scale"], ["y"], {"epsilon": 0.1})
    path.write_bytes(make_graph([node], constants, inputs=(("x", FLOAT, ("n", 5, 6)),), opset=23))
    loaded = caffelite.onnx.load(path)
    assert [repr(function) for function in loaded.all_functions()] == ["RMSNorm(6, eps=0.1)"]
    x = np.random.default_rng(1).standard_normal((4, 5, 6)).astype(np.float32)
    np.testing.assert_allclose(
        loaded.predict(x), x / np.sqrt((x**2).mean(2, keepdims=True) + 0.1) * constants["scale"], 1e-5
    )


def test_pads_that_follow_the_size_are_a_convolutions_own_or_zeros_before_it(path):
    w = np.random.default_rng(0).random((3, 2, 3, 3)).astype(np.float32)
    x = np.random.default_rng(1).random((2, 2, 7, 8)).astype(np.float32)
    for word, first in (("SAME_UPPER", "Conv2d(2, 3, 3, stride=2, padding='same', bias=False)"), ("SAME_LOWER", None)):
        node = ("Conv", ["x", "w"], ["y"], {"auto_pad": word, "strides": [2, 2], "kernel_shape": [3, 3]})
        loaded = load_graph(path, [node], {"w": w}, inputs=(("x", FLOAT, ("n", 2, 7, 8)),))
        assert first is None or [repr(function) for function in loaded.all_functions()] == [first]
        np.testing.assert_allclose(loaded.predict(x), run(path, x), atol=1e-5)


class Formula(Swish):
    """The same, and its formula."""

    def forward(self, x):
        return x / (1 + np.exp(-x))

    def formula(self, x):
        return x * x.sigmoid()


class DoubledFormula(Formula):
    """A layer that computes something else than its class's formula."""

    def forward(self, x):
        return 2 * super().forward(x)


@both_dtypes
def test_a_function_without_a_rule_is_written_by_its_formula(dtype, path):
    class Net(cl.Model):
        def __init__(self):
            super().__init__(dtype=dtype, seed=0)
            self.f, self.g = cl.Linear(3, 4), Formula()

        def call(self, x):
            h = self.g(self.f(self.g(x)))
            return h + self.g(h.mean(axis=0)), h

    caffelite.onnx.export(Net(), path, (3,))  # which compares what they compute
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert operators.count("Sigmoid") == 3


REFUSED = [
    (lambda self, x: DoubledFormula()(x), TypeError, "DoubledFormula"),
    (lambda self, x: Swish()(x), TypeError, "Swish"),
    (lambda self, x: ScaledLinear(3, 3)(x), TypeError, "ScaledLinear"),
    (lambda self, x: cl.Tensor(np.tanh(x.data)), TypeError, "tanh"),
    (lambda self, x: x * float(x.sum()), TypeError, "item"),
    (lambda self, x: x / np.sqrt(len(x)), ValueError, "number of rows"),
    (lambda self, x: self.f(x) if len(x) == 2 else x, ValueError, "a different number of rows"),
    (lambda self, x: cl.stack([x[i] for i in range(len(x))]), ValueError, "a different number of rows"),
    (lambda self, x: x[: len(x) // 2], ValueError, "number of rows"),
    (lambda self, x: cl.Tensor(caffelite._kernels.exp(x.data)) + 1, TypeError, "kernel"),
]


@pytest.mark.parametrize(("compute", "error", "match"), REFUSED)
def test_a_call_without_a_graph_for_any_rows_raises_and_writes_nothing(compute, error, match, path):
    path.write_bytes(b"older")
    with pytest.raises(error, match=match):
        caffelite.onnx.export(ComputedNet(compute), path, (3,))
    assert path.read_bytes() == b"older"
    assert [other.name for other in path.parent.iterdir()] == ["net.onnx"]


def test_a_shape_that_is_needed_or_does_not_fit_is_reported(path):
    conv = cl.Model([cl.Conv2d(1, 2, 3)])
    for model, shape, error, match in [
        (conv, None, ValueError, r"knows only \(n, 1, \?, \?\): give input_shape, such as \(1, 28, 28\)"),
        (cl.Model([cl.LSTM(3, 2)]), None, ValueError, r"knows only \(n, \?, 3\): give input_shape, such as \(28, 3\)"),
        (cl.Model([cl.ReLU()]), None, ValueError, r"input_shape, such as \(64,\)$"),
        (ComputedNet(lambda self, x: x), None, ValueError, r"such as \(64,\), or \(\(64,\), \(3,\)\) for two inputs"),
        (conv, (None, 1, 8, 8), TypeError, "without the axis of the rows"),
        (conv, (3, 8, 8), ValueError, "3, 8, 8"),
        (conv, (1, 0, 8), ValueError, "1 or more"),
        (conv, 28, TypeError, "28"),
        (conv, (1, 8, 8.0), TypeError, "shape of a row"),
        (conv, ((1, 8, 8), (1, 8, 8)), ValueError, "one input"),
        (cl.Linear(2, 3), None, TypeError, "Model"),
    ]:
        with pytest.raises(error, match=match):
            caffelite.onnx.export(model, path, shape)
    assert not path.exists()


@both_dtypes
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (functions.Tanh, lambda g, a, x: g.node("Sigmoid", x)),
        (functions.Add, lambda g, a, x, y: g.node("Reshape", g.node("Add", x, y), g.integers((2, 3)))),
    ],
)
def test_an_export_that_differs_is_noticed(kind, wrong, dtype, path, monkeypatch):
    monkeypatch.setitem(families.RULES, kind, wrong)
    model = cl.Model([cl.Residual(cl.Tanh())], dtype=dtype)
    with pytest.raises(Exception, match=r"anh|Reshape|ONNX"):
        caffelite.onnx.export(model, path, (3,))
    assert not path.exists()
