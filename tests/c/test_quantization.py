"""Weights of int8, and the error of quantizing."""

import copy

import numpy as np
import pytest

import caffelite as cl
from caffelite import c
from caffelite.c.int8 import quantize_weight
from caffelite.model.export_graph import random_rows, trace_graph
from tests.c.models import F32, F64, needs_compiler, rows
from tests.tools.fuzz_c_export import SANITIZED, differing, outputs_in_c


def wide():
    return cl.Model([cl.Linear(60, 64), cl.ReLU(), cl.Linear(64, 10)], seed=0)


def convolutional(dtype=F32):
    """Each kind of layer that has weights of int8, with and without bias, and in groups."""
    layers = [cl.Conv2d(2, 4, 3, padding=1, groups=2), cl.ReLU(), cl.ConvTranspose2d(4, 6, 3, 2, groups=2)]
    layers += [cl.Reshape((6, -1)), cl.Conv1d(6, 3, 3, bias=False), cl.ConvTranspose1d(3, 2, 2, bias=False)]
    layers += [cl.TransformerBlock(120, 2), cl.DropConnect(120, 4)]
    return cl.Model(layers, seed=0, dtype=dtype)


def quantize_weights(model):
    """Return the model with weights that are multiples of the largest of their output / 127."""
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
        expected = quantize_weights(model).predict(x)
        tolerance = 1e-5 if model.dtype == F32 else 1e-12
        np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * abs(expected).max())


def test_quantized_weights_are_a_quarter_and_the_error_is_printed(tmp_path):
    model = wide()
    assert c.export(model, tmp_path / "floats.c") is None
    rounding = c.export(model, tmp_path / "bytes.c", quantize=True)
    floats, of_bytes = ((tmp_path / name).read_text() for name in ("floats.c", "bytes.c"))
    assert f"weights   {4 * (60 * 64 + 64 + 64 * 10 + 10) / 1000:.1f} kB" in floats
    assert f"weights   {(60 * 64 + 64 * 10 + 2 * 4 * (64 + 10)) / 1000:.1f} kB" in of_bytes
    assert len(of_bytes) < len(floats) / 2
    x = np.random.default_rng(0).standard_normal((256, 60)).astype(F32)
    y, other = model.predict(x), quantize_weights(model).predict(x)
    expected = abs(y - other).max(), abs(y - other).mean(), abs(y).max()
    np.testing.assert_allclose(rounding, expected, rtol=1e-3)
    assert f"by {rounding.largest:.2g} at most and {rounding.mean:.2g} on average" in of_bytes
    assert "rounding" not in floats.split("*/")[0]
    assert 0 < rounding.mean < rounding.largest < 0.02 * rounding.output


def test_weights_that_are_not_finite_are_not_quantized(tmp_path):
    model = wide()
    model.functions[2].weight.data[3, 4] = np.inf
    with pytest.raises(ValueError, match=r"quantize=True takes finite weights, and Linear\(64, 10\)"):
        c.export(model, tmp_path / "net.c", quantize=True)
    with pytest.raises(TypeError, match="quantize must be True or False"):
        c.export(model, tmp_path / "net.c", quantize=8)
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_weights_too_small_for_a_scale_are_quantized_to_0(tmp_path):
    model = cl.Model([cl.Linear(3, 2), cl.Linear(2, 2)], seed=0)
    weight = model.functions[0].weight
    weight.data = weight.data * F32(1e-42)
    assert differing(tmp_path, [(model, rows(3, 3))]) == []
    _, scale, product = quantize_weight(model.functions[0])
    assert (scale >= np.finfo(F32).tiny).all()
    np.testing.assert_allclose(product, weight.data, atol=float(np.finfo(F32).tiny))


def test_the_quantization_error_counts_one_layer_and_numbers_only(tmp_path):
    class TiedNet(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.words, self.scores = cl.Embedding(6, 6), cl.Linear(6, 6, bias=False)

        takes_indices = True

        def call(self, x):
            return self.scores(self.words(x))

    tied = TiedNet()
    tied.words.weight = tied.scores.weight
    rounding = c.export(tied, tmp_path / "net.c", input_shape=(1,), quantize=True)
    exact, product = tied.scores.weight.data, quantize_weight(tied.scores).product
    largest = max(abs(row @ exact - row @ product).max() for row in exact)
    np.testing.assert_allclose(rounding.largest, largest, rtol=1e-3)

    class Decoder(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f, self.identity = cl.Linear(6, 6, bias=False), cl.Embedding(6, 6)
            self.identity.weight.data = np.eye(6)

        takes_indices = True

        def call(self, x):
            return self.f(self.identity(x)) @ self.f.weight.transpose(1, 0)

    model = Decoder()
    rounding = c.export(model, tmp_path / "net.c", input_shape=(1,), quantize=True)
    exact, product = model.f.weight.data, quantize_weight(model.f).product
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

    class SharedIndices(cl.Model):
        takes_indices = True

        def __init__(self):
            super().__init__(seed=0)
            self.columns, self.few, self.many = columns, cl.Embedding(3, 4), cl.Embedding(90, 4)

        def call(self, n):
            return self.columns(n[:, 2:]) + self.few(n[:, 0]) + self.many(n[:, 0]) + self.many(n[:, 1])

    graph = trace_graph(SharedIndices(), ((4,),), lambda kind: True)
    (drawn,) = random_rows(graph, 3000, np.random.default_rng(0))
    assert drawn.min(axis=0).tolist() == [0, 0, 0, 0]
    assert drawn.max(axis=0).tolist() == [2, 89, 4, 3]
    c.export(SharedIndices(), tmp_path / "net.c", (4,), quantize=True)


def test_categories_of_all_codes_are_drawn_to_measure_the_error_of_quantizing():
    frame = {"w": np.array(["a", "b", "c", "d"] * 5), "x": np.arange(20.0), "v": np.array(["a", "b"] * 10)}
    for kind in (cl.Columns, cl.Splines):
        model = cl.Model([kind(frame, 3), cl.ReLU()], seed=0)
        graph = trace_graph(model, ((1,), (2,)), lambda kind: True)
        _, codes = random_rows(graph, 500, np.random.default_rng(0))
        assert [sorted(set(column.tolist())) for column in codes.T] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]
