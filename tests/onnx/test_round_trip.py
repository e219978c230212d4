"""Models that are exported and loaded again."""

import pickle

import numpy as np
import pytest

import caffelite as cl
import caffelite.onnx
from tests.onnx.graphs import SEQUENCES, load_graph, run
from tests.tools import random_nets


def test_random_nets_are_exported_and_loaded_again(tmp_path):
    as_it_was = 0
    for seed in range(24):
        model, loaded = random_nets.check(seed, tmp_path)
        as_it_was += repr(model) == repr(loaded)
    assert as_it_was > 6


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
    model = load_graph(path, [("PRelu", ["x", "slope"], ["y"], {})], {"slope": np.full(3, 0.1, np.float32)})
    assert [p.shape for p in model.parameters()] == [(3,)]


def test_a_loaded_model_can_be_trained_exported_saved_and_copied(path, tmp_path):
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
    class TiedNet(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.embedding, self.takes_indices = cl.Embedding(5, 4), True

        def call(self, x):
            return self.embedding(x).tanh() @ self.embedding.weight.T

    caffelite.onnx.export(TiedNet(), path, (3,))
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
    class GatedNet(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f, self.g = cl.Linear(4, 4), cl.Linear(4, 4)

        def call(self, x):
            return GATES[gate](self, x)

    model = GatedNet()
    caffelite.onnx.export(model, path, shape)
    loaded = caffelite.onnx.load(path)
    x = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
    np.testing.assert_allclose(loaded.predict(x), model.predict(x), rtol=1e-6, atol=1e-6)
    assert any(isinstance(layer, cl.Linear) for layer in loaded.layers.values())
