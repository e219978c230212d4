"""A Tensor that takes part in a graph never becomes an array without a word, because its gradient would end there."""

import numpy as np
import pytest

import caffelite as cl

WAYS = {
    "cl.concatenate": lambda t: np.concatenate([t, t]),
    "cl.where": lambda t: np.where(t.data > 0, t, 0.0),
    "cl.einsum": lambda t: np.einsum("ij->i", t),
    "cl.stack": lambda t: np.stack([t, t]),
    "np.asarray": np.asarray,
    "np.array of Tensors": lambda t: np.array([t[0], t[1]]),
    "np.linalg.norm": np.linalg.norm,
    "np.zeros_like": np.zeros_like,
    "cl.Tensor": cl.Tensor,
    "cl.Tensor of a list": lambda t: cl.Tensor([t, t]),
    "DataGenerator": cl.DataGenerator,
}


@pytest.fixture
def result():
    model = cl.Model([cl.Linear(3, 2)], seed=0)
    return model(np.ones((4, 3), np.float32))


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_in_a_graph_raises_and_names_what_to_write(way, result):
    expected = (
        rf"use {way} instead of np\.{way[3:]}, or t\.data" if way.startswith("cl.") and way[3] != "T" else "t.data"
    )
    with pytest.raises(RuntimeError, match=expected):
        WAYS[way](result)


def test_sparse_matrices_of_scipy_raise_too(result):
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(RuntimeError, match=r"cl\.matmul"):
        sparse.eye(4, format="csr") @ result


@pytest.mark.parametrize("function", [np.exp, np.matmul])
def test_ufuncs_raise(function, result):
    with pytest.raises(TypeError, match="does not support ufuncs"):
        function(*[result] * function.nin)


def test_fit_says_it_instead_of_training_the_last_layer_only():
    class Cut(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.a, self.last = cl.Linear(3, 2), cl.Linear(4, 1)

        def call(self, x):
            return self.last(np.concatenate([self.a(x), self.a(x)], axis=1))

    model = Cut()
    with pytest.raises(RuntimeError, match=r"cl\.concatenate instead of np\.concatenate"):
        model.fit(
            np.ones((8, 3), np.float32),
            np.ones((8, 1), np.float32),
            loss=cl.MSELoss(),
            optimizer=cl.SGD(model.parameters(), lr=0.1),
            verbose=0,
        )


def test_functions_that_look_at_values_alone_stay(result):
    parameter = cl.Tensor(np.ones(3), requires_grad=True)
    with cl.no_grad():
        assert np.asarray(parameter).tolist() == [1, 1, 1]
        assert np.concatenate([parameter, parameter]).shape == (6,)
    assert (np.shape(result), np.ndim(result), np.size(result), np.size(result, 1)) == ((4, 2), 2, 8, 2)
    assert isinstance(result.numpy(), np.ndarray)
    assert isinstance(np.float64(2) * result, cl.Tensor)
    assert isinstance(np.ones((3, 4), np.float32) @ result, cl.Tensor)
    assert np.asarray(cl.Tensor([1.0, 2.0])).tolist() == [1, 2]
    assert np.concatenate([cl.Tensor([1.0]), np.ones(1, np.float32)]).tolist() == [1, 1]
    assert np.asarray(result.detach()).shape == (4, 2)
    parameter.data = result.data[:3, 0]
    assert float(result.sum()) == pytest.approx(result.data.sum())
