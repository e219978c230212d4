"""Initializers: the variances that they promise, and what a Linear layer does with them."""

import copy
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite import initializers
from caffelite.files import structure
from tests.cases import both_dtypes

FANS = [((300, 200), 300, 200), ((60, 50, 9), 450, 540), ((64, 32, 3, 3), 288, 576)]
VARIANCES = {
    "he_normal": lambda fan_in, fan_out: 2 / fan_in,
    "he_uniform": lambda fan_in, fan_out: 2 / fan_in,
    "xavier_normal": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "xavier_uniform": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
}
EVERY = [*[getattr(initializers, name) for name in VARIANCES], initializers.orthogonal, initializers.zeros]
EVERY += [initializers.normal(0.1), initializers.uniform(0.1)]


def initializer_name(initializer):
    return getattr(initializer, "__name__", repr(initializer))


def fourth_moment(values):
    """3 for a normal, 9/5 for a uniform distribution."""
    return (values**4).mean() / (values**2).mean() ** 2


@pytest.mark.parametrize(("shape", "fan_in", "fan_out"), FANS, ids=str)
@pytest.mark.parametrize("name", VARIANCES)
def test_weights_have_the_variance_that_their_fans_ask_for(name, shape, fan_in, fan_out):
    values = getattr(initializers, name)(shape, np.random.default_rng(0))
    variance = VARIANCES[name](fan_in, fan_out)
    assert values.shape == shape
    assert values.dtype == np.float64
    assert abs(values.mean()) < 5 * np.sqrt(variance / values.size)
    np.testing.assert_allclose(values.var(), variance, rtol=5 * np.sqrt(2 / values.size))
    np.testing.assert_allclose(fourth_moment(values), 3 if "normal" in name else 9 / 5, rtol=0.1)
    if "uniform" in name:
        assert np.abs(values).max() <= np.sqrt(3 * variance)


def test_normal_and_uniform_have_the_spread_that_is_given():
    rng = np.random.default_rng(0)
    values = initializers.normal(0.3)((200, 300), rng)
    np.testing.assert_allclose((values.std(), fourth_moment(values)), (0.3, 3), rtol=0.05)
    values = initializers.uniform(0.3)((200, 300), rng)
    np.testing.assert_allclose((values.std(), fourth_moment(values)), (0.3 / np.sqrt(3), 9 / 5), rtol=0.05)
    assert 0.299 < np.abs(values).max() <= 0.3


@pytest.mark.parametrize("shape", [(5, 5), (20, 7), (7, 20), (1, 4), (6, 2, 3), (12, 2, 3), (40, 2, 3, 3)], ids=str)
def test_an_orthogonal_weight_has_orthonormal_columns_or_rows(shape):
    weight = initializers.orthogonal(shape, np.random.default_rng(0)).reshape(shape[0], -1)
    product = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
    np.testing.assert_allclose(product, np.eye(min(weight.shape)), atol=1e-12)


def test_orthogonal_weights_are_uniform_among_all_of_them():
    rng = np.random.default_rng(0)
    draws = np.array([initializers.orthogonal((3, 3), rng) for _ in range(4000)])
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=0.05)  # the columns' signs are as likely to be either
    np.testing.assert_allclose((draws**2).mean(axis=0), 1 / 3, atol=0.03)
    assert 0.45 < (np.linalg.det(draws) > 0).mean() < 0.55


@pytest.mark.parametrize("initializer", EVERY, ids=initializer_name)
def test_the_same_stream_gives_the_same_weights(initializer):
    first, same, other = (initializer((4, 5), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.tobytes() == same.tobytes()
    assert initializer is initializers.zeros or first.tobytes() != other.tobytes()


@pytest.mark.parametrize("initializer", EVERY, ids=initializer_name)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_weights_without_elements_are_drawn_too(initializer, shape):
    assert initializer(shape, np.random.default_rng(0)).shape == shape


@pytest.mark.parametrize("initializer", EVERY[:5], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_a_vector_has_no_fans(initializer, shape):
    with pytest.raises(ValueError, match="shape"):
        initializer(shape, np.random.default_rng(0))


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
def test_a_spread_that_cannot_be_raises_when_it_is_given(value, error):
    for make, name in ((initializers.normal, "std"), (initializers.uniform, "limit")):
        with pytest.raises(error, match=name):
            make(value)


def test_a_layer_draws_its_weight_from_an_initializer_and_says_which():
    model = cl.Model([cl.Linear(30, 20, initializer=cl.initializers.he_normal)], seed=3)
    layer = model.functions[0]
    assert abs(layer.weight.data.std() - np.sqrt(2 / 30)) < 0.02
    assert not layer.bias.data.any()
    assert repr(layer) == "Linear(30, 20, initializer=he_normal)"
    assert repr(cl.Linear(2, 3, initializer=cl.initializers.normal(0.01))) == (
        "Linear(2, 3, initializer=normal(std=0.01))"
    )


EVERY_LAYER = {
    "Embedding": lambda f: cl.Embedding(30, 20, initializer=f),
    "RNN": lambda f: cl.RNN(30, 20, initializer=f),
    "GRU": lambda f: cl.GRU(30, 20, layers=2, bidirectional=True, initializer=f),
    "LSTM": lambda f: cl.LSTM(30, 20, initializer=f),
    "MultiHeadAttention": lambda f: cl.MultiHeadAttention(20, 4, initializer=f),
    "TransformerBlock": lambda f: cl.TransformerBlock(20, 4, initializer=f),
}
every_layer = pytest.mark.parametrize("make", EVERY_LAYER.values(), ids=EVERY_LAYER)


@every_layer
@both_dtypes
def test_an_initializer_draws_the_weights_and_only_these(make, dtype):
    model = cl.Model([make(cl.initializers.normal(0.01))], seed=0, dtype=dtype)
    for name, p in model.named_parameters().items():
        if p.ndim == 1:
            assert (p.data == ("norm.scale" in name)).all(), name
        else:
            assert 0 < abs(p.data).max() < 0.06, name
            assert p.data.std() == pytest.approx(0.01, rel=0.15), name


@every_layer
def test_a_layer_with_an_initializer_is_saved_with_it(make, tmp_path):
    model = cl.Model([make(cl.initializers.normal(0.25))], seed=0)
    model.save(tmp_path / "m")
    other = cl.load(tmp_path / "m")
    assert "initializer=normal(std=0.25)" in repr(model)
    assert repr(other) == repr(model)
    for each in (model, other):
        each.initialize(5)
    assert [p.data.tobytes() for p in other.parameters()] == [p.data.tobytes() for p in model.parameters()]
    with pytest.raises(TypeError, match="initializer: expected a callable"):
        make("he_normal")


def test_a_structure_has_an_initializer_only_if_there_is_one_so_older_files_load():
    older = [{"name": "Embedding", "arguments": {"count": 3, "size": 2, "sparse": False}}]
    assert structure.describe(structure.build(older, {})) == older
    assert len(structure.describe(cl.Embedding(3, 2, initializer=cl.initializers.zeros))) == 2


@pytest.mark.parametrize("layer", [cl.RNN, cl.GRU, cl.LSTM])
def test_recurrent_weights_are_drawn_from_inputs_to_units(layer):
    shapes = []

    def note_shape(shape, rng):
        shapes.append(shape)
        return cl.initializers.he_normal(shape, rng)

    recurrent = layer(300, 50, initializer=note_shape)
    assert shapes == [(300, 50 * layer.gates), (50, 50 * layer.gates)]
    cl.Model([recurrent], seed=0)
    assert recurrent.weight_ih.data.std() == pytest.approx(np.sqrt(2 / 300), rel=0.03)
    assert recurrent.weight_hh.data.std() == pytest.approx(np.sqrt(2 / 50), rel=0.03)


@pytest.mark.parametrize("initializer", EVERY, ids=initializer_name)
def test_a_model_with_an_initializer_pickles_and_is_copied(initializer):
    model = cl.Model([cl.Linear(3, 4, initializer=initializer)], seed=0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(other) == repr(model)
        model.initialize(5)
        other.initialize(5)
        assert other.functions[0].weight.data.tobytes() == model.functions[0].weight.data.tobytes()
