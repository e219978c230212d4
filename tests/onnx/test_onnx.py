"""ONNX: what is exported computes what the model does, for any number of rows; what is imported computes it too."""

import importlib
import os
import pickle
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import caffelite as cl
import caffelite.onnx
from caffelite import functions
from caffelite.core.extras import how_to_install
from caffelite.functions.loss import Loss
from caffelite.onnx import layers, nodes, operators, rules
from caffelite.onnx.checking import runner
from tests.cases import FAMILIES, both_dtypes
from tests.tools import onnx_nodes, random_nets

LOSSES = Loss | functions.Penalized | functions.Losses | functions.WeightedSum
LAYERS = {kind: family for kind, family in FAMILIES.items() if not issubclass(kind, LOSSES)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


class Applied(cl.Model):
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


def run(path, *inputs):
    outputs = runner(onnx.load(path))(*inputs)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


# The rows of these are no examples: they index, reshape, normalize, move or mirror the first axis.
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
        model = Applied(case.function(dtype), dtype, tuple([x.dtype.kind == "i" for x in inputs]))
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


# ---- round trips ----------------------------------------------------------------------------------------------------


def test_random_nets_are_exported_and_loaded_again(tmp_path):
    as_it_was = 0
    for seed in range(24):
        model, loaded = random_nets.check(seed, tmp_path)
        as_it_was += repr(model) == repr(loaded)
    assert as_it_was > 6


SEQUENCES = [
    (cl.MLP(4, [8, 3], activation=cl.Tanh, seed=0), None),
    (
        cl.Model(
            [
                *[cl.Conv2d(1, 6, 5, padding=2), cl.BatchNorm(6, momentum=0.3), cl.ReLU(), cl.MaxPool2d(2)],
                *[cl.Conv2d(6, 16, 3, stride=2, groups=2, bias=False), cl.SiLU(), cl.AvgPool2d(2, padding=1)],
                *[cl.Upsample(2), cl.Dropout(0.2), cl.ConvTranspose2d(16, 3, 3, 2, 1, output_padding=1)],
                *[cl.GlobalAvgPool(), cl.Linear(3, 4), cl.LogSoftmax()],
            ],
        ),
        (1, 28, 28),
    ),
    (
        cl.Model(
            [
                *[cl.Conv1d(2, 4, 4, padding="same"), cl.GELU(), cl.GELU(approximate=True), cl.LeakyReLU(0.2)],
                *[cl.MaxPool1d(2, 1), cl.ELU(0.5), cl.Softplus(), cl.Flatten(), cl.Residual(cl.Linear(36, 36))],
                *[cl.Residual(cl.Model([cl.LayerNorm(36, 0.1), cl.Linear(36, 36, bias=False), cl.Sigmoid()]))],
                *[cl.Parallel([cl.Linear(36, 3), cl.Linear(36, 3)]), cl.Reshape((2, 3)), cl.Softmax(1)],
            ],
            dtype=np.float64,
        ),
        (2, 10),
    ),
    (
        cl.Model(
            [
                *[cl.Conv1d(2, 4, 3, stride=2, padding="same"), cl.InstanceNorm(4, 0.1), cl.PReLU()],
                *[cl.Conv1d(4, 4, 3, stride=2, padding="causal", dilation=2), cl.MaxPool1d(3, 2, ceil=True)],
                *[cl.ConvTranspose1d(4, 3, 3, 2, 1, output_padding=1), cl.GlobalMaxPool(), cl.Linear(3, 4)],
            ],
        ),
        (2, 21),
    ),
    (
        cl.Model(
            [
                *[cl.Embedding(7, 8), cl.PositionalEncoding(8, 6), cl.LSTM(8, 5, sequences=True)],
                *[cl.GRU(5, 4, sequences=True), cl.RNN(4, 3), cl.LayerNorm(3, bias=False)],
            ],
        ),
        (6,),
    ),
]


@pytest.mark.parametrize(("model", "shape"), SEQUENCES)
def test_a_sequence_comes_back_with_the_same_layers_names_and_values(model, shape, path):
    caffelite.onnx.export(model, path, shape)
    loaded = caffelite.onnx.load(path)
    assert (repr(loaded), loaded.dtype) == (repr(model), model.dtype)
    state, other = model.state_dict(), loaded.state_dict()
    assert list(state) == list(other)
    for name, array in state.items():
        if not name.endswith("random"):  # the seed of a Dropout
            np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_a_slope_of_float64_is_exported_with_all_its_digits(path):
    model = cl.Model([cl.LeakyReLU(0.01), cl.LeakyReLU(0.25)], dtype=np.float64)
    caffelite.onnx.export(model, path, (3,))
    x = np.array([[-1.0, 2.0, -1e9]])
    np.testing.assert_allclose(run(path, x), model.predict(x), rtol=1e-15)
    loaded = caffelite.onnx.load(path)
    assert repr(loaded) == repr(model)
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))


def test_a_learned_slope_stays_a_parameter(path):
    model = loaded_of(path, [("PRelu", ["x", "slope"], ["y"], {})], {"slope": np.full(3, 0.1, np.float32)})
    assert [p.shape for p in model.parameters()] == [(3,)]


def test_what_is_loaded_can_be_trained_exported_saved_and_copied(path, tmp_path):
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    model = cl.Model([cl.Reshape((2, 1)), cl.TransformerBlock(1, 1), cl.Flatten(), cl.Linear(2, 3)], seed=0)
    caffelite.onnx.export(model, path, (2,))
    loaded = caffelite.onnx.load(path)
    assert "Graph" in repr(loaded)
    assert sum(p.size for p in loaded.parameters()) == sum(p.size for p in model.parameters())
    copied = pickle.loads(pickle.dumps(loaded))
    for one in (model, loaded, copied):
        optimizer = cl.SGD(one.parameters(), lr=0.1)
        one.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(loaded.predict(x), model.predict(x), atol=1e-5)
    np.testing.assert_array_equal(loaded.predict(x), copied.predict(x))
    caffelite.onnx.export(loaded, path, (2,))
    np.testing.assert_allclose(run(path, x), loaded.predict(x), atol=1e-5)
    with pytest.warns(UserWarning, match="it was loaded from a file of ONNX"):
        loaded.save(tmp_path / "weights.safetensors")
    copied.initialize(1)
    copied.load(tmp_path / "weights.safetensors")
    np.testing.assert_array_equal(copied.predict(x), loaded.predict(x))


def test_a_tied_weight_stays_one(path):
    class Tied(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.embedding, self.takes_indices = cl.Embedding(5, 4), True

        def call(self, x):
            return self.embedding(x).tanh() @ self.embedding.weight.T

    caffelite.onnx.export(Tied(), path, (3,))
    loaded = caffelite.onnx.load(path)
    assert [p.shape for p in loaded.parameters()] == [(5, 4)]
    x = np.array([[0, 4, 1]])
    np.testing.assert_allclose(loaded.predict(x), run(path, x), atol=1e-6)


GATES = {
    "a gate": lambda self, x: self.f(x) * self.g(x).sigmoid(),
    "a gate of itself": lambda self, x: self.f(x) * self.g(x).silu(),
    "a multiple": lambda self, x: self.f(x) * 0.5,
    "a product of three": lambda self, x: self.f(x) * self.g(x) * x,
    "a square": lambda self, x: self.f(x) ** 2.0 * self.g(x),
}


@pytest.mark.parametrize("shape", [(4,), (5, 4)])
@pytest.mark.parametrize("gate", GATES)
def test_linears_whose_results_are_multiplied_are_loaded(gate, shape, path):
    class Gated(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f, self.g = cl.Linear(4, 4), cl.Linear(4, 4)

        def call(self, x):
            return GATES[gate](self, x)

    model = Gated()
    caffelite.onnx.export(model, path, shape)
    loaded = caffelite.onnx.load(path)
    x = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
    np.testing.assert_allclose(loaded.predict(x), model.predict(x), rtol=1e-6, atol=1e-6)
    assert any(isinstance(layer, cl.Linear) for layer in loaded.layers.values())


# ---- models that write `call` ---------------------------------------------------------------------------------------


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


class Pooled(cl.Model):
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
    model = Pooled(pool, dtype)
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


class Stacked(cl.Model):
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
    model = Stacked(layer, dtype)
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
        self.cross, self.last = cl.MultiHeadAttention(8, 2, rotary=True), cl.MultiHeadAttention(8, 1, causal=True)
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


class Counted(cl.Model):
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


class Scaled(cl.Linear):
    """A layer that computes something else than its class."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_group_normalization_of_opset_21_is_a_layer(path):
    rng = np.random.default_rng(0)
    constants = {"scale": rng.random(6).astype(np.float32), "shift": rng.random(6).astype(np.float32)}
    node = ("GroupNormalization", ["x", "scale", "shift"], ["y"], {"num_groups": 3, "epsilon": 0.1})
    graph = graph_of([node], constants, inputs=(("x", FLOAT, ("n", 6, 5)),), opset=21)
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
    path.write_bytes(graph_of([node], constants, inputs=(("x", FLOAT, ("n", 5, 6)),), opset=23))
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
        loaded = loaded_of(path, [node], {"w": w}, inputs=(("x", FLOAT, ("n", 2, 7, 8)),))
        assert first is None or [repr(function) for function in loaded.all_functions()] == [first]
        np.testing.assert_allclose(loaded.predict(x), run(path, x), atol=1e-5)


class Formula(Swish):
    """The same, and its formula."""

    def forward(self, x):
        return x / (1 + np.exp(-x))

    def formula(self, x):
        return x * x.sigmoid()


class Doubled(Formula):
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
    (lambda self, x: Doubled()(x), TypeError, "Doubled"),
    (lambda self, x: Swish()(x), TypeError, "Swish"),
    (lambda self, x: Scaled(3, 3)(x), TypeError, "Scaled"),
    (lambda self, x: cl.Tensor(np.tanh(x.data)), TypeError, "tanh"),
    (lambda self, x: x * float(x.sum()), TypeError, "item"),
    (lambda self, x: x / np.sqrt(len(x)), ValueError, "number of rows"),
    (lambda self, x: self.f(x) if len(x) == 2 else x, ValueError, "another number of rows"),
    (lambda self, x: cl.stack([x[i] for i in range(len(x))]), ValueError, "another number of rows"),
    (lambda self, x: x[: len(x) // 2], ValueError, "number of rows"),
    (lambda self, x: cl.Tensor(caffelite._kernels.exp(x.data)) + 1, TypeError, "kernel"),
]


@pytest.mark.parametrize(("compute", "error", "match"), REFUSED)
def test_what_is_no_graph_for_any_number_of_rows_is_refused_and_nothing_is_written(compute, error, match, path):
    path.write_bytes(b"older")
    with pytest.raises(error, match=match):
        caffelite.onnx.export(Counted(compute), path, (3,))
    assert path.read_bytes() == b"older"
    assert [other.name for other in path.parent.iterdir()] == ["net.onnx"]


def test_a_shape_that_is_needed_or_does_not_fit_is_said(path):
    conv = cl.Model([cl.Conv2d(1, 2, 3)])
    for model, shape, error, match in [
        (conv, None, ValueError, r"knows only \(n, 1, \?, \?\): give input_shape, such as \(1, 28, 28\)"),
        (cl.Model([cl.LSTM(3, 2)]), None, ValueError, r"knows only \(n, \?, 3\): give input_shape, such as \(28, 3\)"),
        (cl.Model([cl.ReLU()]), None, ValueError, r"input_shape, such as \(64,\)$"),
        (Counted(lambda self, x: x), None, ValueError, r"such as \(64,\), or \(\(64,\), \(3,\)\) for two inputs"),
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
    monkeypatch.setitem(rules.RULES, kind, wrong)
    model = cl.Model([cl.Residual(cl.Tanh())], dtype=dtype)
    with pytest.raises(Exception, match=r"anh|Reshape|ONNX"):
        caffelite.onnx.export(model, path, (3,))
    assert not path.exists()


# ---- files of others ------------------------------------------------------------------------------------------------


def test_onnxs_own_tests_of_its_operators(path):
    computed, _, _ = onnx_nodes.check(path, long=False)
    assert computed >= 400


def test_the_tests_that_give_numbers_of_numpy_are_among_them():
    names = {name for name, *_ in onnx_nodes.cases(long=False)}
    assert {"test_clip", "test_einsum_inner_prod"} <= names


def test_nets_of_old_opsets_that_pytorch_has_written_compute_what_their_files_say():
    count, refused = 0, []
    for path, inputs, outputs in onnx_nodes.nets():
        try:
            model = caffelite.onnx.load(path)
        except ValueError as error:
            refused.append(str(error))
            continue
        found = onnx_nodes.outputs_of(model, inputs)
        assert len(found) == len(outputs)
        for y, other in zip(outputs, found, strict=True):
            np.testing.assert_allclose(other, y, rtol=1e-3, atol=1e-5, err_msg=str(path))
        count += 1
    assert count >= 106
    assert all(re.search("not a pool of images|no images or series|has no output", why) for why in refused)


@pytest.mark.parametrize("opset", range(1, 7))
def test_a_sum_of_an_old_opset_broadcasts_as_its_attributes_say(opset, path):
    options = {"inputs": [("x", FLOAT, (4, 3, 2))], "outputs": [("y", FLOAT, (4, 3, 2))], "opset": opset}
    b = np.arange(3, dtype=np.float32)
    model = loaded_of(path, [("Add", ["x", "b"], ["y"], {"broadcast": 1, "axis": 1})], {"b": b}, **options)
    x = np.ones((4, 3, 2), np.float32)
    np.testing.assert_array_equal(model.predict(x), x + b[:, np.newaxis])


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 3), (4, 3, 2, 2)])
def test_the_slopes_of_an_old_prelu_are_those_of_channels(shape, path):
    options = {"inputs": [("x", FLOAT, shape)], "outputs": [("y", FLOAT, shape)], "opset": 6}
    slopes = np.array([1, 2, 3], np.float32)
    model = loaded_of(path, [("PRelu", ["x", "s"], ["y"], {})], {"s": slopes}, **options)
    y = model.predict(-np.ones(shape, np.float32))
    np.testing.assert_array_equal(y, np.broadcast_to(-slopes.reshape(3, *[1] * (len(shape) - 2)), shape))
    assert [p.size for p in model.parameters()] == [3]


def test_a_bias_that_two_old_sums_share_stays_one_parameter(path):
    options = {"inputs": [("x", FLOAT, (4, 3, 2))], "outputs": [("y", FLOAT, (4, 3, 2))], "opset": 6}
    nodes = chain("Add", 3, "b", broadcast=1, axis=1)
    model = loaded_of(path, nodes, {"b": np.arange(3, dtype=np.float32)}, **options)
    x = np.ones((4, 3, 2), np.float32)
    np.testing.assert_array_equal(model.predict(x), x + 3 * np.arange(3, dtype=np.float32)[:, np.newaxis])
    assert len(model.parameters()) == 1


@pytest.mark.slow
def test_all_of_onnxs_own_tests_of_its_operators(path):
    computed, refused, _ = onnx_nodes.check(path, long=True)
    assert computed >= 700
    assert refused >= onnx_nodes.NOT_THERE  # the list is no longer than it has to be


OF_ESTIMATORS = {"ArrayFeatureExtractor", "LinearClassifier", "LinearRegressor", "Normalizer", "Scaler", "ZipMap"}
FLOAT, DOUBLE, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64


def graph_of(nodes, constants, *, inputs=(("x", FLOAT, ("n", 3)),), outputs=(("y", FLOAT, None),), opset=17, ml=False):
    """A file's content: nodes (operator, inputs, outputs, attributes), arrays by name."""
    make = onnx.helper
    protos = [make.make_node(operator, i, o, name=f"the {operator}", **a) for operator, i, o, a in nodes]
    names = set()
    for i, proto in enumerate(protos):
        if proto.name in names:
            proto.name += f" {i}"
        names.add(proto.name)
        proto.domain = "ai.onnx.ml" if proto.op_type in OF_ESTIMATORS else ""
    graph = make.make_graph(
        protos,
        "graph",
        [make.make_tensor_value_info(*info) for info in inputs],
        [
            make.make_tensor_value_info(*info) if len(info) == 3 else make.make_empty_tensor_value_info(*info)
            for info in outputs
        ],
        [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    opsets = [make.make_opsetid("", opset)] + [make.make_opsetid("ai.onnx.ml", 3)] * ml
    return make.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def loaded_of(path, *arguments, **options):
    path.write_bytes(graph_of(*arguments, **options))
    return caffelite.onnx.load(path)


def test_a_classifier_of_scikit_learns_converter_gives_its_probabilities(path):
    rng = np.random.default_rng(0)
    w, b, v, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (1, 5), (5, 2), (1, 2)))
    model = loaded_of(
        path,
        [
            ("Cast", ["x"], ["cast"], {"to": FLOAT}),
            ("MatMul", ["cast", "w"], ["xw"], {}),
            ("Add", ["xw", "b"], ["h"], {}),
            ("Relu", ["h"], ["a"], {}),
            ("MatMul", ["a", "v"], ["av"], {}),
            ("Add", ["av", "c"], ["s"], {}),
            ("Softmax", ["s"], ["p"], {"axis": 1}),
            ("ArgMax", ["p"], ["best"], {"axis": 1}),
            ("ArrayFeatureExtractor", ["classes", "best"], ["label"], {}),
        ],
        {"w": w, "b": b, "v": v, "c": c, "classes": np.array([3, 7])},
        outputs=(("label", INT64, None), ("p", FLOAT, None)),
        ml=True,
    )
    assert repr(model) == "Model([Linear(3, 5), ReLU(), Linear(5, 2), Softmax(1)])"
    x = rng.standard_normal((4, 3)).astype(np.float32)
    scores = np.exp(np.maximum(x @ w + b, 0) @ v + c)
    np.testing.assert_allclose(model.predict(x), scores / scores.sum(1, keepdims=True), rtol=1e-5)


def test_the_scaler_of_scikit_learns_converter_is_read(path):
    nodes = [("Scaler", ["x"], ["s"], {"offset": [1.0, 2, 3], "scale": [2.0, 0.5, 1]}), ("Gemm", ["s", "w"], ["y"], {})]
    model = loaded_of(path, nodes, {"w": W}, ml=True)
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    scaled = (x - np.array([1, 2, 3], np.float32)) * np.array([2, 0.5, 1], np.float32)
    np.testing.assert_allclose(model.predict(x), scaled @ W, rtol=1e-5, atol=1e-6)
    assert (model.predict(x[:1])[0] == model.predict(x)[0]).all()
    caffelite.onnx.export(model, path, (3,))
    np.testing.assert_allclose(run(path, x), scaled @ W, rtol=1e-5, atol=1e-6)


def test_indices_that_keras_counts_from_the_end_go_into_an_embedding(path):
    nodes = [
        ("Cast", ["x"], ["a"], {"to": INT64}),
        ("Less", ["a", "zero"], ["negative"], {}),
        ("Add", ["a", "count"], ["wrapped"], {}),
        ("Where", ["negative", "wrapped", "a"], ["places"], {}),
        ("Gather", ["table", "places"], ["h"], {}),
        ("ReduceMean", ["h"], ["y"], {"axes": [1], "keepdims": 0}),
    ]
    table = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
    constants = {"zero": np.int64(0), "count": np.int64(7), "table": table}
    inputs = [("x", onnx.TensorProto.INT32, ("n", 5))]
    model = loaded_of(path, nodes, constants, inputs=inputs)
    x = np.random.default_rng(0).integers(7, size=(3, 5)).astype(np.int32)
    np.testing.assert_allclose(model.predict(x), table[x].mean(axis=1), rtol=1e-6)
    with pytest.raises(IndexError, match="index -1 in row 1"):
        model.predict(np.where(np.arange(3)[:, None] == 1, -1, x))
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(x, np.zeros((3, 4)), loss=cl.MSELoss(), optimizer=optimizer, verbose=0)


#: Nodes that make y of h, an array of a shape; constants; and whether the domain of estimators is needed.
COMPOSED = {
    "LRN": ([("LRN", ["h"], ["y"], {"size": 3, "alpha": 0.5, "beta": 0.7})], (5, 3, 2), {}),
    "LRN of images": ([("LRN", ["h"], ["y"], {"size": 5, "bias": 2.0})], (7, 3, 2), {}),
    "a dilated MaxPool": (
        [
            (
                "MaxPool",
                ["h"],
                ["y"],
                {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [2, 1], "pads": [1, 0, 2, 1]},
            )
        ],
        (2, 9, 8),
        {},
    ),
    "a dilated MaxPool with ceil_mode": (
        [("MaxPool", ["h"], ["y"], {"kernel_shape": [3], "dilations": [2], "strides": [3], "ceil_mode": 1})],
        (2, 9),
        {},
    ),
    "a MaxPool of three axes": ([("MaxPool", ["h"], ["y"], {"kernel_shape": [2, 3, 2]})], (2, 4, 5, 4), {}),
    "TopK": ([("TopK", ["h", "k"], ["y", "i"], {"axis": 1})], (6, 2), {"k": np.array([3])}),
    "the least of TopK": ([("TopK", ["h", "k"], ["y", "i"], {"largest": 0})], (2, 6), {"k": np.array([2])}),
    "the places of TopK": (
        [
            ("TopK", ["h", "k"], ["v", "i"], {}),
            ("Cast", ["i"], ["c"], {"to": "dtype"}),
            ("Mul", ["v", "c"], ["y"], {}),
        ],
        (2, 6),
        {"k": np.array([2])},
    ),
    **{
        f"Normalizer {norm}": ([("Normalizer", ["h"], ["y"], {"norm": norm})], (4,), {}) for norm in ("MAX", "L1", "L2")
    },
}
IN_FLOAT32_ALONE = ("LRN", "LRN of images", "Normalizer MAX", "Normalizer L1", "Normalizer L2")  # onnxruntime


@both_dtypes
@pytest.mark.parametrize("name", COMPOSED)
def test_what_is_composed_of_functions_is_what_onnxruntime_says_has_gradients_and_is_exported(name, dtype, path):
    nodes, row, constants = COMPOSED[name]
    code = DOUBLE if dtype == np.float64 else FLOAT
    nodes = [(op, i, o, {k: code if v == "dtype" else v for k, v in a.items()}) for op, i, o, a in nodes]
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in ((2, *row), row))
    graph = [("Mul", ["x", "w"], ["h"], {}), *nodes], {"w": w, **constants}
    model = loaded_of(path, *graph, inputs=[("x", code, ("n", *row))], outputs=[("y", code, None)], ml=True)
    y = model.predict(x)
    assert y.dtype == dtype
    if not (dtype == np.float64 and name in IN_FLOAT32_ALONE):
        np.testing.assert_allclose(y, run(path, x), rtol=1e-5, atol=1e-6)
    caffelite.onnx.export(model, path, row)  # which compares them
    if dtype == np.float64:
        r = rng.standard_normal(y.shape)
        (model(x) * r).sum().backward()
        (weight,) = model.parameters()
        for place in np.ndindex(row):
            sums = []
            for step in (1e-6, -1e-6):
                weight.data[place] = w[place] + step
                sums.append((model.predict(x) * r).sum())
            weight.data[place] = w[place]
            np.testing.assert_allclose(weight.grad[place], (sums[0] - sums[1]) / 2e-6, rtol=1e-4, atol=1e-6)
    before = abs(y).mean()
    model.fit(x, 0 * y, loss=cl.MSELoss(), optimizer=cl.SGD(model.parameters(), lr=0.02), epochs=20, verbose=0)
    assert "Normalizer" in name or abs(model.predict(x)).mean() < before


@both_dtypes
@pytest.mark.parametrize(("classes", "link"), [(2, "LOGISTIC"), (3, "NONE"), (3, "LOGISTIC"), (3, "SOFTMAX")])
def test_the_linear_classifiers_of_scikit_learns_converter_are_linears(classes, link, dtype, path):
    rng = np.random.default_rng(0)
    rows = 1 if classes == 2 else classes
    w, b = rng.standard_normal((rows, 3)).astype(np.float32), rng.standard_normal(rows).astype(np.float32)
    weights = {"coefficients": w.ravel().tolist(), "intercepts": b.tolist(), "classlabels_ints": [*range(classes)]}
    code = DOUBLE if dtype == np.float64 else FLOAT
    nodes = [("LinearClassifier", ["x"], ["label", "p"], {"post_transform": link, **weights})]
    options = {"inputs": [("x", code, ("n", 3))], "outputs": [("label", INT64, None), ("p", FLOAT, None)], "ml": True}
    model = loaded_of(path, nodes, {}, **options)
    x = rng.standard_normal((4, 3)).astype(dtype)
    s = x @ w.T + b
    s = np.concatenate([-s, s], axis=1) if classes == 2 else s
    softmax = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    expected = {"NONE": s, "LOGISTIC": 1 / (1 + np.exp(-s)), "SOFTMAX": softmax}[link]
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-6)
    assert model.predict(x).dtype == dtype
    of_link = {"NONE": "", "LOGISTIC": ", Sigmoid()", "SOFTMAX": ", Softmax(1)"}[link]
    assert repr(model) == f"Model([Linear(3, {classes}){of_link}])"


def test_a_logistic_regression_of_scikit_learns_converter_gives_its_probabilities_and_is_trained_on(path):
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((3, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
    weights = {"coefficients": w.ravel().tolist(), "intercepts": b.tolist(), "classlabels_strings": ["a", "b", "c"]}
    nodes = [
        ("Scaler", ["x"], ["s"], {"offset": [1.0, 2, 3], "scale": [2.0, 0.5, 1]}),
        ("LinearClassifier", ["s"], ["label", "p"], {"post_transform": "LOGISTIC", **weights}),
        ("Normalizer", ["p"], ["q"], {"norm": "L1"}),
        ("ZipMap", ["q"], ["y"], {"classlabels_strings": ["a", "b", "c"]}),
    ]
    model = loaded_of(path, nodes, {}, outputs=[("label", onnx.TensorProto.STRING, None), ("y",)], ml=True)
    x, t = rng.standard_normal((6, 3)).astype(np.float32), np.arange(6) % 3
    p = 1 / (1 + np.exp(-((x - [1, 2, 3]) * [2, 0.5, 1] @ w.T + b)))
    np.testing.assert_allclose(model.predict(x), p / p.sum(1, keepdims=True), rtol=1e-5)
    assert list(model.named_parameters()) == ["layers.the LinearClassifier.weight", "layers.the LinearClassifier.bias"]
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(x, np.eye(3)[t], loss=cl.MSELoss(), optimizer=optimizer, epochs=3, verbose=0)
    caffelite.onnx.export(model, path, (3,))  # which compares them


@both_dtypes
def test_the_linear_regressors_of_scikit_learns_converter_are_linears(dtype, path):
    w, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, -1], np.float32)
    attributes = {"coefficients": w.ravel().tolist(), "intercepts": b.tolist(), "targets": 2}
    code = DOUBLE if dtype == np.float64 else FLOAT
    nodes = [("LinearRegressor", ["x"], ["y"], attributes)]
    model = loaded_of(path, nodes, {}, inputs=[("x", code, ("n", 3))], outputs=[("y", FLOAT, None)], ml=True)
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(dtype)
    np.testing.assert_allclose(model.predict(x), x @ w.T + b, rtol=1e-5)
    assert repr(model) == "Model([Linear(3, 2)])"


@both_dtypes
@pytest.mark.parametrize("options", [{}, {"ignore_index": 1}, {"reduction": "sum"}, {"reduction": "none"}], ids=str)
def test_a_loss_of_labels_in_a_file_has_gradients(options, dtype, path):
    code = DOUBLE if dtype == np.float64 else FLOAT
    rng = np.random.default_rng(0)
    nodes = [("MatMul", ["x", "w"], ["s"], {}), ("SoftmaxCrossEntropyLoss", ["s", "t", "c"], ["y", "log_p"], options)]
    model = loaded_of(
        path,
        nodes,
        {"w": W.astype(dtype), "c": np.array([1, 2, 3], dtype)},
        inputs=[("x", code, ("n", 3)), ("t", INT64, ("n",))],
        outputs=[("y", code, None), ("log_p", code, None)],
    )
    x, t = rng.standard_normal((5, 3)).astype(dtype), np.array([0, 1, 2, 1, 0])
    loss, log_p = model(x, t)
    log_p.sum()
    loss.sum().backward()
    (weight,) = model.parameters()  # the weights of classes are none
    p, one_hot = np.full((5, 3), 1 / 3), np.eye(3)[t]
    share = np.array([1, 2, 3])[t] * (t != options.get("ignore_index"))
    if "reduction" not in options:
        share = share / share.sum()
    np.testing.assert_allclose(weight.grad, x.T @ ((p - one_hot) * share[:, np.newaxis]), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"the SoftmaxCrossEntropyLoss.*outside 0 … 2"):
        model(x, t + 1)


def attention(q, k, v, heads=1, seen=True, bias=0.0, scale=None, softcap=None):
    """Softmax(q kᵀ scale + bias) v in heads, for rows, one after the other."""
    y = np.zeros((*q.shape[:2], v.shape[2] // (k.shape[2] // (q.shape[2] // heads)) * heads))
    d = q.shape[2] // heads
    of_keys = k.shape[2] // d
    size = v.shape[2] // of_keys
    for row, i, h in np.ndindex(*q.shape[:2], heads):
        j = h * of_keys // heads
        s = k[row, :, j * d : (j + 1) * d] @ q[row, i, h * d : (h + 1) * d] * (scale or d**-0.5)
        s = s if softcap is None else np.tanh(s / softcap) * softcap
        s = s + np.broadcast_to(bias, (*q.shape[:2], k.shape[1]))[row, i]
        p = np.exp(s) * np.broadcast_to(seen, (*q.shape[:2], k.shape[1]))[row, i]
        y[row, i, h * size : (h + 1) * size] = p @ v[row, :, j * size : (j + 1) * size] / max(p.sum(), 1e-30)
    return y


@both_dtypes
@pytest.mark.parametrize("mask", ["none", "bool", "numbers", "lengths"])
@pytest.mark.parametrize(("heads", "of_keys"), [(1, 1), (4, 2)])
@pytest.mark.parametrize("options", [{}, {"is_causal": 1}, {"scale": 0.25, "softcap": 0.75}], ids=str)
def test_attention_is_the_judges_has_gradients_and_is_trained_and_exported(heads, of_keys, options, mask, dtype, path):
    rng = np.random.default_rng(0)
    length, keys, code = 3, 5, DOUBLE if dtype == np.float64 else FLOAT
    q, k, v = (
        rng.standard_normal((2, n, h * d)).astype(dtype)
        for n, h, d in ((3, heads, 2), (5, of_keys, 2), (5, of_keys, 3))
    )
    seen, bias = np.ones((2, length, keys), bool), 0.0
    inputs = [("q", code, ("n", *q.shape[1:])), ("k", code, ("n", *k.shape[1:])), ("v", code, ("n", *v.shape[1:]))]
    names, given, first = ["h", "k", "v"], [q, k, v], np.zeros(2, int)
    if mask == "bool":
        seen = rng.random((2, length, keys)) < 0.6
        seen[0, 1] = False  # a query that sees none
        inputs.append(("m", onnx.TensorProto.BOOL, ("n", 1, length, keys)))
        names, given = [*names, "m"], [*given, seen[:, np.newaxis]]
    elif mask == "numbers":
        bias = np.where(rng.random((2, length, keys)) < 0.6, rng.standard_normal((2, length, keys)), -np.inf)
        inputs.append(("m", code, ("n", 1, length, keys)))
        names, given = [*names, "m"], [*given, bias[:, np.newaxis].astype(dtype)]
    elif mask == "lengths":
        lengths = np.array([2, 4])
        seen &= np.arange(keys) < lengths[:, np.newaxis, np.newaxis]
        inputs.append(("m", INT64, ("n",)))
        names, given, first = [*names, "", "", "", "m"], [*given, lengths], lengths - length
    if "is_causal" in options:
        seen &= np.arange(keys) <= first[:, np.newaxis, np.newaxis] + np.arange(length)[:, np.newaxis]
    w = rng.standard_normal(q.shape[2]).astype(dtype)
    attributes = {"q_num_heads": heads, "kv_num_heads": of_keys, **options}
    nodes = [("Mul", ["q", "w"], ["h"], {}), ("Attention", names, ["y"], attributes)]
    model = loaded_of(path, nodes, {"w": w}, inputs=inputs, outputs=[("y", code, None)], opset=24)

    def judge(w):
        others = {"scale": options.get("scale"), "softcap": options.get("softcap")}
        return attention(q.astype(np.float64) * w, k, v, heads, seen, bias, **others)

    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-12}
    y = model.predict(tuple(given))
    assert y.dtype == dtype
    np.testing.assert_allclose(y, judge(w), **tolerance)
    r = rng.standard_normal(y.shape)
    (model(*given) * r.astype(dtype)).sum().backward()
    (weight,) = model.parameters()
    for i, e in enumerate(np.eye(len(w)) * 1e-5):
        slope = ((judge(w + e) - judge(w - e)) * r).sum() / 2e-5
        np.testing.assert_allclose(weight.grad[i], slope, rtol=1e-3, atol=1e-5)
    caffelite.onnx.export(model, path, tuple([x.shape[1:] for x in given]))  # which compares them
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(tuple(given), np.zeros_like(y), loss=cl.MSELoss(), optimizer=optimizer, epochs=2, verbose=0)
    assert np.isfinite(weight.data).all()


def test_an_attention_that_is_not_computed_is_refused_by_name(path):
    inputs = [(name, FLOAT, ("n", 3, 6)) for name in "qkv"]

    def loaded(**attributes):
        node = ("Attention", ["q", "k", "v"], ["y"], attributes)
        return loaded_of(path, [node], {}, inputs=inputs, outputs=[("y", FLOAT, None)], opset=24)

    x, heads = np.ones((2, 3, 6), np.float32), {"q_num_heads": 2, "kv_num_heads": 2}
    for attributes, match in [
        ({"q_num_heads": 2}, r"the Attention.*kv_num_heads"),
        ({"q_num_heads": 4, "kv_num_heads": 2}, r"the Attention.*\(2, 3, 6\).*q_num_heads = 4"),
        ({"q_num_heads": 3, "kv_num_heads": 2}, r"the Attention.*3 heads of queries, 2 of keys"),
        ({**heads, "qk_matmul_output_mode": 4}, r"the Attention.*qk_matmul_output_mode = 4"),
        ({**heads, "softmax_precision": 6}, r"the Attention.*softmax_precision = 6"),
    ]:
        with pytest.raises(ValueError, match=match):
            loaded(**attributes)(x, x, x)


BOOL = onnx.TensorProto.BOOL
AGAIN = {
    **{
        name: [(name, ["x", "w"], ["c"], {}), ("Where", ["c", "x", "w"], ["y"], {})]
        for name in ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
    },
    **{
        name: [
            ("Less", ["x", "w"], ["a"], {}),
            ("Cast", ["x"], ["b"], {"to": BOOL}),
            (name, ["a", "b"], ["c"], {}),
            ("Cast", ["c"], ["y"], {"to": FLOAT}),
        ]
        for name in ["And", "Or", "Xor"]
    },
    "Not": [("IsNaN", ["x"], ["a"], {}), ("Not", ["a"], ["b"], {}), ("Cast", ["b"], ["y"], {"to": FLOAT})],
    "Cast": [("Cast", ["x"], ["i"], {"to": INT64}), ("Cast", ["i"], ["y"], {"to": FLOAT})],
    "Max": [("Max", ["x", "w", "v"], ["y"], {})],
    "Min": [("Min", ["w", "x"], ["y"], {})],
    "ThresholdedRelu": [("ThresholdedRelu", ["x"], ["y"], {"alpha": 0.5})],
    **{
        name: [("Sigmoid", ["x"], ["p"], {}), (name, ["p"], ["y"], {})]
        for name in [
            *["Floor", "Ceil", "Round", "Sign", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh"],
            *["Asinh", "Atanh"],
        ]
    },
}


@pytest.mark.parametrize("name", AGAIN)
def test_what_was_loaded_and_computes_in_numpy_is_exported_again(name, path):
    w = np.linspace(-1, 1, 3).astype(np.float32)
    model = loaded_of(path, AGAIN[name], {"w": w, "v": np.zeros(3, np.float32)})
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    x[:4] = np.array([[np.nan], [0], [2], [-1]], np.float32)
    x[5] = w
    if name in ("Cast", "And", "Or", "Xor"):
        x = np.nan_to_num(x)
    before = run(path, x)
    np.testing.assert_allclose(model.predict(x), before, rtol=1e-5, atol=1e-6)
    caffelite.onnx.export(model, path, (3,))
    np.testing.assert_allclose(run(path, x), before, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(caffelite.onnx.load(path).predict(x), before, rtol=1e-5, atol=1e-6)


def test_masks_that_were_computed_of_indices_are_exported_again(path):
    nodes = [
        ("Equal", ["x", "zero"], ["padded"], {}),
        ("Not", ["padded"], ["there"], {}),
        ("Cast", ["there"], ["mask"], {"to": FLOAT}),
        ("Gather", ["table", "x"], ["h"], {}),
        ("Unsqueeze", ["mask", "last"], ["m"], {}),
        ("Mul", ["h", "m"], ["y"], {}),
    ]
    table = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
    constants = {"zero": np.int64(0), "last": np.array([2]), "table": table}
    model = loaded_of(path, nodes, constants, inputs=[("x", INT64, ("n", 5))])
    x = np.random.default_rng(0).integers(7, size=(3, 5))
    np.testing.assert_allclose(model.predict(x), table[x] * (x != 0)[..., None])
    caffelite.onnx.export(model, path, (5,))
    np.testing.assert_allclose(run(path, x), table[x] * (x != 0)[..., None])


EQUATIONS = "abc,cde->abde aecd,abcd->acbe acbe,aecd->abcd abde,dec->abc ab,b->a ab,cd->abcd ab,ab->ab ab,ac->a abc,cb"
EQUATIONS += " abc->ca abc->ba ab abc->ab"


@both_dtypes
@pytest.mark.parametrize("equation", EQUATIONS.split())
def test_einsum_is_numpys(equation, dtype, path):
    rng = np.random.default_rng(0)
    lengths = dict(zip("abcde", (3, 2, 4, 5, 6), strict=True))
    terms = equation.partition("->")[0].split(",")
    arrays = {
        name: rng.standard_normal([lengths[letter] for letter in term]).astype(dtype)
        for name, term in zip("xw", terms, strict=False)
    }
    kind = FLOAT if dtype == np.float32 else DOUBLE
    of_rows = {name: x for name, x in arrays.items() if len(x) == 3}  # an axis of rows: they are inputs
    model = loaded_of(
        path,
        [("Einsum", list(arrays), ["y"], {"equation": equation})],
        {name: x for name, x in arrays.items() if name not in of_rows},
        inputs=[(name, kind, ("n", *x.shape[1:])) for name, x in of_rows.items()],
        outputs=[("y", kind, None)],
    )
    found = model.predict(tuple(of_rows.values()) if len(of_rows) > 1 else of_rows["x"])
    np.testing.assert_allclose(found, np.einsum(equation, *arrays.values()), rtol=1e-5, atol=1e-6)


W = np.ones((3, 3), np.float32)

IMAGES = [("x", FLOAT, ("n", 4, 6, 6))]
EMPTY, LINE = np.zeros((0, 1), np.float32), np.ones((1, 20_000), np.float32)
MANY = {"w": np.ones((1, 1000, 1000), np.uint8), "i": np.zeros((1000, 1), np.int64)}
FAR = {"kernel_shape": [3], "pads": [0, 2**40]}
OF_NOTHING = [("ReduceSum", ["z"], ["sum"], {}), ("Add", ["x", "sum"], ["y"], {})]

OF_STEPS = {"inputs": [("x", FLOAT, (4, "n", 3))]}
OF_CLASSES = {"ml": True}
ONE_SCORE = {"coefficients": [1.0] * 3, "intercepts": [1.0], "classlabels_ints": [0, 1]}
PROBIT = {"coefficients": [1.0] * 3, "intercepts": [1.0], "post_transform": "PROBIT"}
OLD = {"opset": 6, "outputs": [("y", FLOAT, ("n", 3))]}

BAD_GRAPHS = [
    ([("CumSum", ["x", "w"], ["y"], {"exclusive": 1})], {"w": np.int64(1)}, {}, r"'the CumSum' \(CumSum\)"),
    ([("If", ["x"], ["y"], {})], {}, {}, r"'the If' \(If\)"),
    ([("Einsum", ["x"] * 3, ["y"], {"equation": "ij,jk,kl->il"})], {}, {}, "the Einsum.*equation 'ij,jk,kl->il'"),
    ([("Einsum", ["x"], ["y"], {"equation": "ii->i"})], {}, {}, "the Einsum.*equation 'ii->i'"),
    ([("Einsum", ["x"], ["y"], {"equation": "...i->i"})], {}, {}, "the Einsum.*equation"),
    ([("Einsum", ["x"], ["y"], {"equation": "ij->ik"})], {}, {}, "the Einsum.*quation"),
    ([("Resize", ["x", "", "s"], ["y"], {"mode": "cubic"})], {"s": np.ones(2, np.float32)}, {}, "mode = 'cubic'"),
    ([("Relu", ["z"], ["y"], {})], {}, {}, "the Relu.*'z'"),
    ([("Relu", ["x"], ["x"], {}), ("Relu", ["x"], ["y"], {})], {}, {}, "makes 'x'"),
    ([("Relu", ["x"], ["z"], {})], {}, {}, "its output 'y'"),
    ([("Relu", ["x"], ["y"], {})], {}, {"opset": 0}, "opset is 0"),
    ([("Add", ["x", "w"], ["y"], {"broadcast": 1})], {"w": W[0]}, OLD, "opset is 6, and onnx can't .*: n Dimension"),
    ([("Add", ["x", "w"], ["y"], {"wide": 1})], {"w": W[0]}, OLD, "opset is 6, and onnx can't .* attribute: wide"),
    ([("Relu", ["x"], ["y"], {})], {}, {"opset": 10**6}, "opset is 1000000"),
    ([("Mul", ["x", "w"], ["y"], {})], {"w": W.astype(np.float16)}, {}, "float16"),
    ([("Mul", ["x", "w"], ["y"], {})], {"w": W.astype(np.float64)}, {}, "float32, float64"),
    (
        [("RNN", ["x", "w", "w"], ["y"], {"activations": ["Relu"], "hidden_size": 3})],
        {"w": W[None]},
        OF_STEPS,
        "'Relu'",
    ),
    ([("LRN", ["x"], ["y"], {"size": 0})], {}, {"inputs": IMAGES}, "the LRN.*size = 0"),
    ([("MaxPool", ["x"], ["y"], {"kernel_shape": [2], "dilations": [-1]})], {}, OF_STEPS, "the MaxPool"),
    (
        [("LinearClassifier", ["x"], ["l", "y"], {"coefficients": [1.0] * 4})],
        {},
        OF_CLASSES,
        "4 coefficients.* 0 scores",
    ),
    ([("LinearClassifier", ["x"], ["l", "y"], {**PROBIT})], {}, OF_CLASSES, "post_transform = 'PROBIT'"),
    ([("LinearClassifier", ["x"], ["l", "y"], {**ONE_SCORE})], {}, OF_CLASSES, "one score for two classes.* 'NONE'"),
    ([("LinearClassifier", ["x"], ["y", "p"], {"coefficients": [1.0] * 3})], {}, OF_CLASSES, "makes labels"),
    ([("ArgMax", ["x"], ["y"], {})], {}, {"outputs": [("y", INT64, None)]}, "no output"),
    ([("MatMul", ["x", "w"], ["y"], {})], {"w": W[:2]}, {"inputs": []}, "the MatMul"),
    ([("GRU", ["x", "w", "w"], ["y"], {})], {"w": W[None]}, {}, "the GRU.*rank"),
    (
        [("GRU", ["x", "w", "r"], ["y"], {"hidden_size": 2})],
        {"w": np.ones((1, 6, 3), np.float32), "r": np.ones((1, 6, 2), np.float32)},
        {"inputs": [("x", FLOAT, (4, "n", 3))]},
        "the GRU.*linear_before_reset",
    ),
    ([("ConstantOfShape", ["s"], ["y"], {})], {"s": np.array([10**6, 10**6])}, {}, "the ConstantOfShape"),
    ([("Expand", ["w", "s"], ["y"], {})], {"w": W, "s": np.array([10**9, 3, 3])}, {}, "the Expand"),
    ([("Gemm", ["x"], ["y"], {})], {}, {}, r"the Gemm.*input size 1 not in range \[min=2, max=3\]"),
    ([("Gemm", ["x", ""], ["y"], {})], {}, {}, "the Gemm.*input 1 .* empty"),
    ([("Transpose", ["x"], ["y"], {"perm": 2.5})], {}, {}, "the Transpose.*Expected: 'INTS', actual: 'FLOAT'"),
    ([("Relu", ["x"], ["y"], {"slope": 1.0})], {}, {}, "the Relu.*Unrecognized attribute: slope"),
    (
        [("PadWindows", ["x"], ["y"], {"kernel_shape": [1]})],
        {},
        {},
        "the PadWindows.*operator that caffelite does not have",
    ),
    ([("Unsqueeze", ["w", "a"], ["z"], {}), ("MatMul", ["x", "z"], ["y"], {})], {"w": W, "a": [1, 1]}, {}, "the Unsq"),
    ([("Unsqueeze", ["w", "a"], ["z"], {}), ("MatMul", ["x", "z"], ["y"], {})], {"w": W, "a": [7]}, {}, "node 'the"),
    ([("Squeeze", ["w", "a"], ["z"], {}), ("MatMul", ["x", "z"], ["y"], {})], {"w": W, "a": [7]}, {}, "node 'the"),
    ([("Split", ["x"], ["y", "z"], {"axis": 9})], {}, {}, "the Split"),
    ([("Softmax", ["x"], ["y"], {"axis": 2})], {}, {}, "the Softmax"),
    ([("DepthToSpace", ["x"], ["y"], {"blocksize": 0})], {}, {"inputs": IMAGES}, "the DepthToSpace"),
    ([("MaxPool", ["x"], ["y"], {"kernel_shape": [2, 2], "strides": [0, 1]})], {}, {"inputs": IMAGES}, "the MaxPool"),
    (
        [("Gemm", ["x", "w"], ["z"], {}), ("Gemm", ["z", "v"], ["y"], {})],
        {"w": W, "v": W[:2]},
        {},
        "the Gemm 1.*before",
    ),
    ([("Tile", ["e", "r"], ["z"], {}), *OF_NOTHING], {"e": EMPTY, "r": [1, 2**31]}, {}, "the Tile.*array"),
    ([("Tile", ["w", "r"], ["z"], {}), *OF_NOTHING], {"w": W, "r": [2**31, 1]}, {}, "the Tile.*array"),
    ([("Resize", ["e", "", "", "r"], ["z"], {}), *OF_NOTHING], {"e": EMPTY, "r": [0, 2**31]}, {}, "the Resize.*array"),
    (
        [
            (
                "MaxPool",
                [
                    "w",
                ],
                ["z"],
                FAR,
            ),
            *OF_NOTHING,
        ],
        {"w": W[None]},
        {},
        "the MaxPool.*array",
    ),
    ([("Gemm", ["w", "w"], ["z"], {"transA": 1}), *OF_NOTHING], {"w": LINE}, {}, "the Gemm.*makes more constants"),
    (
        [("Einsum", ["w", "w"], ["z"], {"equation": "ai,bj->ij"}), *OF_NOTHING],
        {"w": LINE},
        {},
        "the Einsum.*makes more",
    ),
    (
        [("GatherND", ["w", "i"], ["v"], {}), ("Cast", ["v"], ["z"], {"to": FLOAT}), *OF_NOTHING],
        MANY,
        {},
        "the GatherND.*makes more",
    ),
    ([("ReduceSum", ["w", "a"], ["z"], {}), ("MatMul", ["x", "z"], ["y"], {})], {"w": W, "a": [7]}, {}, "node 'the"),
]


@pytest.mark.parametrize(("nodes", "constants", "options", "match"), BAD_GRAPHS)
def test_what_caffelite_has_not_is_refused_by_the_name_of_the_node(nodes, constants, options, match, path):
    with pytest.raises(ValueError, match=match):
        loaded_of(path, nodes, constants, **options)


def test_a_mistake_of_caffelites_is_not_blamed_on_the_file(path, monkeypatch):
    monkeypatch.setattr("caffelite.onnx.importing.Layers", lambda reader: None)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'nodes'"):
        loaded_of(path, [("MatMul", ["x", "w"], ["y"], {})], {"w": W})


@pytest.mark.parametrize("error", [ValueError, TypeError, IndexError, ZeroDivisionError, MemoryError])
def test_an_error_inside_caffelite_is_not_blamed_on_the_file(error, path, monkeypatch):
    def broken(g, node):
        raise error("a mistake")

    monkeypatch.setitem(layers.SINGLE, "MatMul", [broken])
    with pytest.raises(error, match=r"^a mistake$"):
        loaded_of(path, [("MatMul", ["x", "w"], ["y"], {})], {"w": W})


def test_what_a_constant_takes_more_memory_for_than_there_is_names_the_node(path, monkeypatch):
    def rule(node, *arrays):
        raise MemoryError

    monkeypatch.setitem(operators.OPERATORS, "Neg", rule)
    with pytest.raises(ValueError, match=r"the Neg.*MemoryError"):
        loaded_of(path, [("Neg", ["w"], ["z"], {}), ("Add", ["x", "z"], ["y"], {})], {"w": W})


def test_the_lengths_that_a_file_says_of_its_input_cost_no_memory(path):
    rng = np.random.default_rng(0)
    constants = {name: rng.random((1, rows, 3)).astype(np.float32) for name, rows in (("w", 9), ("r", 9))}
    nodes = [("GRU", ["x", "w", "r"], ["y"], {"hidden_size": 3, "linear_before_reset": 1})]
    model = loaded_of(path, nodes, constants, inputs=[("x", FLOAT, (2, 2**45, 3))])
    assert "Recurrence" in repr(model)


@pytest.mark.parametrize(
    ("node", "constants", "shape"),
    [
        (("Pad", ["x", "p"], ["y"], {}), {"p": np.array([0, 0, 1, 0, 0, 1])}, (8, 1, 20)),
        (("Tile", ["x", "r"], ["y"], {}), {"r": np.array([1, 2, 3])}, (8, 2, 54)),
        (("Expand", ["x", "s"], ["y"], {}), {"s": np.array([1, 3, 1])}, (8, 3, 18)),
        (("Resize", ["x", "", "s"], ["y"], {}), {"s": np.array([1, 1, 1.5], np.float32)}, (8, 1, 27)),
    ],
    ids=lambda x: x[0] if isinstance(x, tuple) and isinstance(x[0], str) else "",
)
def test_rows_of_a_large_batch_may_grow(node, constants, shape, path, monkeypatch):
    monkeypatch.setattr(nodes, "MOST", 100)
    model = loaded_of(path, [node], constants, inputs=[("x", FLOAT, ("n", 1, 18))])
    assert model.predict(np.ones((8, 1, 18), np.float32)).shape == shape


def test_constants_do_not_grow_beyond_what_a_file_of_their_size_should_have(path):
    nodes = [("Concat", [f"w{i}"] * 2, [f"w{i + 1}"], {"axis": 0}) for i in range(40)]
    with pytest.raises(ValueError, match="makes more constants"):
        loaded_of(path, [*nodes, ("MatMul", ["x", "w40"], ["y"], {})], {"w0": W})


def test_weights_in_another_file_are_read_from_the_same_folder_alone(tmp_path):
    proto = onnx.ModelProto.FromString(graph_of([("MatMul", ["x", "w"], ["y"], {})], {"w": 2 * W}))
    tensor = proto.graph.initializer[0]
    content = b"1234" + tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    folder = tmp_path / "folder"
    folder.mkdir()
    for target in (tmp_path / "weights", folder / "weights"):
        target.write_bytes(content)
    (folder / "link").symlink_to(tmp_path / "weights")

    def load(location, offset=4, length=36):
        del tensor.external_data[:]
        for key, value in {"location": location, "offset": offset, "length": length}.items():
            tensor.external_data.add(key=key, value=str(value))
        (folder / "net.onnx").write_bytes(proto.SerializeToString())
        return caffelite.onnx.load(folder / "net.onnx")

    assert (load("weights").functions[0].weight.data == 2).all()
    for location in ("../weights", str(tmp_path / "weights"), "link", "", "other", "."):
        with pytest.raises(ValueError, match="the tensor 'w'"):
            load(location)
    for offset, length in ((8, 36), (-1, 36), (0, 40)):
        with pytest.raises(ValueError, match="the tensor 'w' is not in the file"):
            load("weights", offset, length)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("AveragePool", {"pads": [1, 0, 2, 1]}),
        ("AveragePool", {"pads": [1, 0, 2, 1], "count_include_pad": 1}),
        ("AveragePool", {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("AveragePool", {"ceil_mode": 1, "strides": [2, 3]}),
        ("AveragePool", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ("MaxPool", {"pads": [1, 0, 2, 1]}),
        ("MaxPool", {"ceil_mode": 1, "strides": [2, 3]}),
        ("MaxPool", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ("Conv", {"auto_pad": "SAME_UPPER"}),
        ("Conv", {"pads": [2, 0, 1, 1], "dilations": [2, 1]}),
    ],
)
def test_windows_with_all_kinds_of_pads(operator, attributes, path):
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((2, 3, 3, 2)).astype(np.float32)} if operator == "Conv" else {}
    model = loaded_of(
        path,
        [(operator, ["x", *weights], ["y"], {"kernel_shape": [3, 2], **attributes})],
        weights,
        inputs=[("x", FLOAT, ("n", 3, 8, 7))],
    )
    for n in (1, 3):
        x = rng.standard_normal((n, 3, 8, 7)).astype(np.float32)
        np.testing.assert_allclose(model.predict(x), run(path, x), atol=1e-5)


#: What a refusal names: a node, an input, an output or an array, or what a whole file is without.
WHERE = (
    r"((node|its (in|out)put|the tensor|it defines an operator|nothing makes its output) ['\"]|not an ONNX file|"
    r"its opset|it has (no output|a name that|sparse)|it computes in|a name comes twice)"
)

NUMBERS = [*range(-3, 10), 64, 2**31 - 1, 2**31, 2**40, 2**62, -(2**31), -(2**63), 2**63 - 1]


def forged(content, rng):
    """A graph in which a few numbers, names or operators are others."""
    proto = onnx.ModelProto.FromString(content)
    nodes, tensors, pick = proto.graph.node, proto.graph.initializer, lambda xs: xs[rng.integers(len(xs))]
    constants = [a.t for node in nodes for a in node.attribute if a.name == "value"]
    for _ in range(rng.integers(1, 4)):
        node, other, kind = pick(nodes), pick(nodes), rng.integers(9)
        if kind < 3 and node.attribute:
            attribute = pick(node.attribute)
            attribute.i, attribute.f = pick(NUMBERS), pick([0.0, -1.0, 1e30, np.nan, np.inf])
            for i in range(len(attribute.ints)):
                attribute.ints[i] = pick([attribute.ints[i], pick(NUMBERS)])
            if kind == 2 and attribute.ints:
                del attribute.ints[-1]
        elif kind == 3:
            node.op_type = other.op_type
        elif kind == 4 and node.input and other.input:
            node.input[rng.integers(len(node.input))] = pick(other.input)
        elif kind == 5 and tensors:
            tensor = pick(tensors)
            array = onnx.numpy_helper.to_array(tensor)
            array = pick([array[:1], array[..., None], array.ravel(), array.astype(np.int64), array[:0], array.T])
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        elif kind == 6 and constants:
            constant = pick(constants)
            array = np.array(onnx.numpy_helper.to_array(constant))
            array[...] = pick([array * 0, array - 1, array + 1, array * 1000])
            array = pick([array, array.ravel(), array[None]])
            constant.CopyFrom(onnx.numpy_helper.from_array(array))
        elif kind == 7:
            dims = proto.graph.input[0].type.tensor_type.shape.dim
            pick(dims).dim_value = pick(NUMBERS)
        elif kind == 8 and node.attribute:
            del node.attribute[rng.integers(len(node.attribute))]
    return proto.SerializeToString()


def test_files_that_are_changed_at_random_are_models_or_a_valueerror(path, tmp_path):
    rng = np.random.default_rng(0)
    contents = []
    for model, shape in SEQUENCES[1:]:
        caffelite.onnx.export(model, path, shape)
        contents.append(path.read_bytes())
    opened, refused = 0, []
    for i in range(600):
        content = bytearray(contents[i % len(contents)])
        head = 400 if i % 2 else len(content)
        for place in rng.integers(0, head, rng.integers(1, 5)):
            content[place] = rng.integers(256)
        if i % 5 == 0:
            del content[rng.integers(len(content)) :]
        if i >= 300:
            content = forged(contents[i % len(contents)], rng)
        path.write_bytes(content)
        try:
            opened += isinstance(caffelite.onnx.load(path), cl.Model)
        except ValueError as error:
            refused.append(str(error))
    assert opened
    assert refused
    for why in refused:
        assert re.match(rf"{path}: {WHERE}", why), why


def chain(operator, count, *others, **attributes):
    """Nodes that apply an operator to x so many times, beside the same other inputs."""
    names = ["x", *[f"{operator} {i}" for i in range(1, count)], "y"]
    return [(operator, [names[i], *others], [names[i + 1]], attributes) for i in range(count)]


def linear(count):
    """MatMul and Add, again and again."""
    return [
        node
        for _, (x, *_), (y,), _ in chain("Linear", count)
        for node in [("MatMul", [x, "w"], [f"{y} w"], {}), ("Add", [f"{y} w", "b"], [y], {})]
    ]


def residuals(count):
    """x + relu(x), again and again."""
    return [
        node
        for _, (x,), (y,), _ in chain("Residual", count)
        for node in [("Relu", [x], [f"relu {y}"], {}), ("Add", [x, f"relu {y}"], [y], {})]
    ]


def in_each_other(operator, count, **attributes):
    """f(x) with x beside it, and that with tanh(x) beside it, and so on."""
    return [
        ("Relu", ["x"], ["start"], {}),
        *[("Tanh", ["x"], [f"tanh {i}"], {}) for i in range(count)],
        *[
            (operator, [y if i else "start", f"tanh {i}" if operator == "Concat" else "x"], [end], attributes)
            for i, (_, (y,), (end,), _) in enumerate(chain("y", count))
        ],
    ]


def beside(count):
    """Two chains, concatenated."""
    nodes = [*chain("Relu", count), *chain("Tanh", count)]
    nodes[count - 1][2][0], nodes[-1][2][0] = "end", "other end"
    return [*nodes, ("Concat", ["end", "other end"], ["y"], {"axis": 1})]


LONG = {
    "layers": lambda count: chain("Relu", count),
    "layers of two nodes": linear,
    "a product": lambda count: chain("Mul", count, "b"),
    "shapes": lambda count: chain("Reshape", count, "shape"),
    "Residuals": residuals,
    "Residuals in each other": lambda count: in_each_other("Add", count),
    "a Parallel": beside,
    "Parallels in each other": lambda count: in_each_other("Concat", count, axis=1),
    "constants": lambda count: [
        *[("Neg", ["b"], [f"minus {i}"], {}) for i in range(count)],
        ("Sum", ["x", *[f"minus {i}" for i in range(count)]], ["y"], {}),
    ],
}


def lines_run(function):
    """How many lines of `caffelite.onnx` a call runs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if "onnx" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("kind", LONG)
def test_loading_costs_as_much_for_each_node_of_a_long_graph_as_of_a_short_one(kind, path):
    constants = {"w": W, "b": W[0], "shape": np.array([-1, 3])}

    def lines(count):
        nodes = LONG[kind](count)
        used = {name for _, inputs, _, _ in nodes for name in inputs}
        path.write_bytes(graph_of(nodes, {name: a for name, a in constants.items() if name in used}))
        return lines_run(lambda: caffelite.onnx.load(path))

    lines(20)  # what is done once
    short, long = lines(40), lines(160)
    assert long < 4.5 * short


def test_exporting_costs_as_much_for_each_layer_of_a_deep_model_as_of_a_shallow_one(path):
    def lines(count):
        model = cl.Model([layer for _ in range(count) for layer in (cl.Linear(2, 2), cl.ReLU())], seed=0)
        return lines_run(lambda: caffelite.onnx.export(model, path))

    lines(2)
    short, long = lines(10), lines(40)
    assert long < 4.5 * short


@pytest.mark.parametrize("kind", ["a product", "Residuals in each other", "Parallels in each other"])
def test_a_graph_of_any_depth_is_loaded(kind, path):
    nodes = LONG[kind](1200)
    assert "Graph" in repr(loaded_of(path, nodes, {"b": W[0]} if kind == "a product" else {}))


def test_a_graph_becomes_layers_as_deep_as_files_take_them(path, tmp_path):
    for count in range(44, 52):
        model = loaded_of(path, in_each_other("Add", count), {})
        if "Graph" in repr(model):
            break
        model.save(tmp_path / "net.safetensors")
        assert repr(cl.load(tmp_path / "net.safetensors")) == repr(model)
    assert 44 < count < 51


def test_what_is_no_file_of_onnx_is_said(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        caffelite.onnx.load(path)
    for content in (b"", b"no graph at all", bytes(100)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not an ONNX file"):
            caffelite.onnx.load(path)
    with pytest.raises(OSError, match="directory"):
        caffelite.onnx.load(tmp_path)
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for ever
    with pytest.raises(ValueError, match="expected a file, and there is a FIFO"):
        caffelite.onnx.load(tmp_path / "fifo")


def test_layers_of_two_directions_with_states_and_lengths(path):
    rng = np.random.default_rng(0)
    parts = {"w": (2, 12, 4), "r": (2, 12, 3), "b": (2, 24)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in parts.items()}
    content = graph_of(
        [
            (
                "LSTM",
                ["x", "w", "r", "b", "", "h", "c"],
                ["y", "hn", "cn"],
                {"hidden_size": 3, "direction": "bidirectional"},
            )
        ],
        constants,
        inputs=[("x", FLOAT, (5, "n", 4)), ("h", FLOAT, (2, "n", 3)), ("c", FLOAT, (2, "n", 3))],
        outputs=[(name, FLOAT, None) for name in ("y", "hn", "cn")],
    )
    path.write_bytes(content)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((5, 2, 4), (2, 2, 3), (2, 2, 3))]
    with cl.inference():
        found = caffelite.onnx.load(path)(*inputs)
    for y, other in zip(runner(onnx.load(path))(*inputs), found, strict=True):
        np.testing.assert_allclose(other.numpy(), y, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_nets_that_pytorch_exports_are_loaded(path):
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    lenet = nn.Sequential(
        *[nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.GELU(), nn.AvgPool2d(2)],
        *[nn.Flatten(), nn.Linear(400, 84), nn.SiLU(), nn.BatchNorm1d(84), nn.Dropout(), nn.Linear(84, 10)],
    )

    class Series(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.attention = nn.Embedding(11, 8), nn.MultiheadAttention(8, 2, batch_first=True)
            self.lstm = nn.LSTM(8, 5, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x):
            x = self.embedding(x)
            return self.lstm(x + self.attention(x, x, x, need_weights=False)[0])[0][:, -1]

    expected = (
        "Model([Conv2d(1, 6, 5, padding=2), ReLU(), MaxPool2d(2), Conv2d(6, 16, 5), GELU(), AvgPool2d(2), Flatten(), "
        "Linear(400, 84), SiLU(), BatchNorm(84), Linear(84, 10)])"
    )
    for model, x, text in [
        (lenet, torch.randn(3, 1, 28, 28), expected),
        (Series(), torch.randint(0, 11, (3, 6)), "Graph"),
    ]:
        model.eval()
        torch.onnx.export(model, (x,), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}})
        loaded = caffelite.onnx.load(path)
        assert repr(loaded).startswith(text)
        more = torch.cat([x, x])
        np.testing.assert_allclose(loaded.predict(more.numpy()), model(more).detach().numpy(), atol=1e-5)


# ---- estimators, and what is not installed --------------------------------------------------------------------------


class Estimator:
    """What `export` asks of an estimator."""

    def __init__(self, model, loss, classes=None):
        self.model_, self._link = model, loss.link
        if classes is not None:
            self.classes_ = np.asarray(classes)


@both_dtypes
@pytest.mark.parametrize(
    ("loss", "columns", "classes"),
    [
        (cl.SoftmaxLoss(), 3, ["ant", "bee", "cat"]),
        (cl.SoftmaxLoss(), 3, [10, 20, 30]),
        (cl.SigmoidLoss(), 1, [False, True]),
        (cl.HingeLoss(), 3, [1, 2, 3]),
    ],
)
def test_a_classifier_is_exported_with_its_labels_and_probabilities(loss, columns, classes, dtype, path):
    model = cl.Model([cl.Linear(4, columns)], seed=0, dtype=dtype)
    caffelite.onnx.export(Estimator(model, loss, classes), path)
    x = np.random.default_rng(0).standard_normal((50, 4)).astype(dtype)
    labels, found = run(path, x)
    scores = loss.link(model.predict(x))
    scores = np.hstack([1 - scores, scores]) if columns == 1 else scores
    np.testing.assert_allclose(found, scores, atol=1e-6)
    assert list(labels) == [classes[i] for i in scores.argmax(1)]
    names = [info.name for info in onnx.load(path).graph.output]
    assert names == ["label", "scores" if isinstance(loss, cl.HingeLoss) else "probabilities"]
    np.testing.assert_allclose(caffelite.onnx.load(path).predict(x), scores, atol=1e-6)


def test_a_classifier_of_several_labels_a_row_says_which_are_likely(path):
    model = cl.Model([cl.Linear(4, 3)], seed=0)
    caffelite.onnx.export(Estimator(model, cl.SigmoidLoss(), [0, 1, 2]), path)
    x = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    labels, found = run(path, x)
    np.testing.assert_array_equal(labels, model.predict(x) > 0)
    np.testing.assert_allclose(found, cl.SigmoidLoss().link(model.predict(x)), atol=1e-6)


def test_a_regressor_is_exported_with_its_link(path):
    model = cl.MLP(2, [3, 1], seed=0)
    x = np.ones((3, 2), np.float32)
    estimator = Estimator(model, cl.MSELoss())
    for estimator._link in (cl.MSELoss().link, np.exp):
        caffelite.onnx.export(estimator, path)
        np.testing.assert_allclose(run(path, x), estimator._link(model.predict(x)), atol=1e-6)
    estimator._link = np.sinh
    with pytest.raises(TypeError, match="link"):
        caffelite.onnx.export(estimator, path)
    with pytest.raises(ValueError, match="one class"):
        caffelite.onnx.export(Estimator(model, cl.SigmoidLoss(), ["a"]), path)


def test_without_onnx_it_is_said_what_to_install():
    program = "import sys; sys.modules['onnx'] = None; import caffelite.onnx"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"ImportError: caffelite.onnx needs the onnx package: {how_to_install('onnx')}" in done.stderr


@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("kind", ["words", "two", "several", "value", "values", "counts", "net", "images"])
@both_dtypes
def test_the_estimators_are_exported_with_what_they_predict(kind, dtype, path):
    runtime, estimators = pytest.importorskip("onnxruntime"), pytest.importorskip("caffelite.sklearn")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(dtype)
    labels = np.argmax(x[:, :3], axis=1)
    estimator, y = {
        "words": (estimators.MLPClassifier((8,), max_iter=20), np.array(["red", "green", "blue"])[labels]),
        "two": (estimators.MLPClassifier((8,), max_iter=20), labels > 0),
        "several": (estimators.MLPClassifier((8,), max_iter=20), (x[:, :3] > 0).astype(int)),
        "value": (estimators.MLPRegressor((8,), max_iter=20), x[:, 0]),
        "values": (estimators.MLPRegressor((8,), max_iter=20), x[:, :2]),
        "counts": (estimators.MLPRegressor((8,), max_iter=20, loss="poisson"), rng.poisson(np.exp(x[:, 0]))),
        "net": (estimators.NetClassifier(lambda n, outputs: cl.Model([cl.Tanh(), cl.Linear(n, outputs)])), labels),
        "images": (
            estimators.NetClassifier(lambda shape, k: cl.Model([cl.Flatten(), cl.Linear(4, k)]), loss=cl.FocalLoss()),
            labels > 0,
        ),
    }[kind]
    x = x.reshape(-1, 1, 2, 2) if kind == "images" else x
    estimator.fit(x, y)
    caffelite.onnx.export(estimator, path)
    session = runtime.InferenceSession(path)
    first, *others = session.run(None, {session.get_inputs()[0].name: x})
    if others:
        np.testing.assert_array_equal(first, estimator.predict(x))
        np.testing.assert_allclose(others[0], estimator.predict_proba(x), atol=1e-6)
    else:
        np.testing.assert_allclose(first.reshape(len(x), -1), estimator.predict(x).reshape(len(x), -1), atol=1e-6)


# ---- pipelines of scikit-learn --------------------------------------------------------------------------------------

# skl2onnx's own warnings are not ours
of_pipelines = pytest.mark.filterwarnings("ignore:not converged", "ignore::DeprecationWarning", "ignore::FutureWarning")


def of_estimators():
    """The estimators, and scikit-learn's modules by name."""
    pytest.importorskip("skl2onnx")
    pytest.importorskip("onnxruntime")
    names = ("compose", "decomposition", "ensemble", "impute", "pipeline", "preprocessing")
    return pytest.importorskip("caffelite.sklearn"), {
        name: importlib.import_module(f"sklearn.{name}") for name in names
    }


def outputs_of(path, feeds):
    """What onnxruntime makes of a file, by the names of the outputs."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


@of_pipelines
@pytest.mark.parametrize(
    ("name", "target"),
    [
        *[("MLPClassifier", target) for target in ("words", "two", "several")],
        *[("NetClassifier", "labels"), ("TableClassifier", "words"), ("TableClassifier", "two")],
        *[
            ("MLPRegressor", "value"),
            ("MLPRegressor", "values"),
            ("NetRegressor", "value"),
            ("TableRegressor", "value"),
        ],
    ],
)
def test_a_pipeline_of_scikit_learn_is_exported_with_its_steps(name, target, path):
    estimators, modules = of_estimators()
    x = np.random.default_rng(0).normal(size=(120, 5)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.5)
    y = {
        "words": np.array(["red", "green", "blue"])[labels],
        "two": labels > 0,
        "several": (x[:, :3] > 0).astype(int),
        "labels": labels,
        "value": x[:, 0],
        "values": x[:, :2],
    }[target]
    options = {"M": {"hidden_layer_sizes": (8,), "max_iter": 20}, "T": {"n_estimators": 2}, "N": {}}[name[0]]
    build = [lambda n, outputs: cl.Model([cl.Linear(n, 8), cl.ReLU(), cl.Linear(8, outputs)])] * (name[0] == "N")
    steps = modules["preprocessing"].StandardScaler(), modules["decomposition"].PCA(4)
    last = getattr(estimators, name)(*build, random_state=0, **options)
    pipeline = modules["pipeline"].make_pipeline(*steps, last).fit(x, y)
    caffelite.onnx.export(pipeline, path)
    found = outputs_of(path, {"X": x})
    if hasattr(pipeline, "predict_proba"):
        np.testing.assert_array_equal(found["label"], pipeline.predict(x))
        np.testing.assert_allclose(found["probabilities"], pipeline.predict_proba(x), atol=1e-5)
    else:
        (values,) = found.values()
        np.testing.assert_allclose(values.reshape(y.shape), pipeline.predict(x), atol=1e-5)


@of_pipelines
def test_a_pipeline_of_frames_is_exported_with_an_example_of_its_rows(path):
    estimators, modules = of_estimators()
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": rng.normal(size=90), "b": rng.normal(size=90), "w": rng.choice(["x", "y", "z"], 90)})
    frame.loc[3, "a"] = np.nan
    frame = frame.astype({"a": np.float32, "b": np.float32})  # onnxruntime imputes in float32 only
    y = (frame["w"] == "x") | (frame["b"] > 1)
    numbers = modules["pipeline"].make_pipeline(
        modules["impute"].SimpleImputer(), modules["preprocessing"].StandardScaler()
    )
    columns = modules["compose"].make_column_transformer(
        (numbers, ["a", "b"]), (modules["preprocessing"].OneHotEncoder(), ["w"]), sparse_threshold=0
    )
    pipeline = modules["pipeline"].make_pipeline(columns, estimators.MLPClassifier((8,), max_iter=20)).fit(frame, y)
    with pytest.raises(ValueError, match=r"the Pipeline takes a frame: give rows of one, example=X\[:1\]"):
        caffelite.onnx.export(pipeline, path)
    assert not path.exists()
    caffelite.onnx.export(pipeline, path, example=frame[:1])
    feeds = {name: frame[[name]].to_numpy(object if name == "w" else np.float32) for name in frame}
    np.testing.assert_allclose(outputs_of(path, feeds)["probabilities"], pipeline.predict_proba(frame), atol=1e-5)


@of_pipelines
def test_skl2onnx_knows_the_estimators_when_they_are_registered(path):
    estimators, modules = of_estimators()
    skl2onnx = importlib.import_module("skl2onnx")
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    members = [(str(size), estimators.MLPClassifier((size,), max_iter=20)) for size in (3, 8)]
    vote = modules["ensemble"].VotingClassifier(members, voting="soft", flatten_transform=False).fit(x, x[:, 0] > 0)
    caffelite.onnx.register()
    for opset in (17, 21):
        path.write_bytes(
            skl2onnx.to_onnx(vote, x[:1], options={"zipmap": False}, target_opset=opset).SerializeToString()
        )
        found = outputs_of(path, {"X": x})
        np.testing.assert_allclose(found["probabilities"], vote.predict_proba(x), atol=1e-5)


@of_pipelines
def test_a_table_estimator_alone_takes_numbers_and_codes_and_has_its_labels(path):
    estimators, _ = of_estimators()
    rng = np.random.default_rng(0)
    frame = {"a": rng.normal(size=90), "w": rng.choice(["x", "y"], 90)}
    y = np.where(frame["w"] == "x", "yes", "no")
    table = pytest.importorskip("pandas").DataFrame(frame)
    model = estimators.TableClassifier(n_estimators=2, random_state=0).fit(table, y)
    caffelite.onnx.export(model, path)
    numbers, codes = model.columns_.arrays(table)
    found = outputs_of(path, {"input_0": numbers.astype(np.float32), "input_1": codes})
    np.testing.assert_array_equal(found["label"], model.predict(table))
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(table), atol=1e-5)


def test_without_skl2onnx_it_is_said_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    pipeline = SimpleNamespace(named_steps={}, steps=[1, 2])
    with pytest.raises(ImportError, match=r"the export of a Pipeline needs skl2onnx: .* -m pip install skl2onnx"):
        caffelite.onnx.export(pipeline, tmp_path / "net.onnx")
