"""Shapley values: what they add up to, beside an enumeration of all orders, and their standard errors."""

import itertools
import math

import numpy as np
import pytest

import caffelite as cl
from caffelite.attribution import shapley
from caffelite.attribution.shapley import Game, enumerate_coalitions, sample_permutations, shapley_values
from tests.conftest import bits

DTYPES = [np.float32, np.float64]


def enumerate_orders(f, x, background):
    """Return the mean rise of f, as columns join in all orders, over all background rows: the definition."""
    d, values = len(x), 0.0
    for order in itertools.permutations(range(d)):
        mixed = np.repeat(background[None], d + 1, axis=0)
        for step, column in enumerate(order):
            mixed[step + 1 :, :, column] = x[column]
        outputs = f(mixed.reshape(-1, d)).reshape(d + 1, len(background), -1).mean(axis=1)
        rises = np.empty((d, outputs.shape[1]))
        rises[list(order)] = np.diff(outputs, axis=0)
        values = values + rises / math.factorial(d)
    return values


def random_net(seed, columns=None, outputs=2, dtype=np.float64, background=20):
    """Return a net of steep units, rows and background rows. Its columns interact."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 9)) if columns is None else columns
    net = cl.MLP(d, [16, outputs], seed=seed, dtype=dtype)
    for p in net.parameters():
        p.data = 3 * p.data
    return net.add(cl.Softmax()), rng.normal(size=(2, d)), rng.normal(size=(background, d))


def make_game(net, rows, background):
    owners = (np.arange(rows.shape[1]),)
    return Game([lambda inputs: net.predict(inputs[0]).astype(np.float64)], (rows,), (background,), owners)


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_an_enumeration_of_coalitions_is_the_mean_over_all_orders(columns):
    net, rows, background = random_net(columns, columns)
    values, errors = enumerate_coalitions(make_game(net, rows, background))
    expected = [enumerate_orders(net.predict, x, background) for x in rows]
    np.testing.assert_allclose(values, expected, atol=1e-12)
    assert not errors.any()


def test_random_orders_are_within_three_standard_errors_in_a_hundred_random_nets():
    scores = []
    for seed in range(100):
        game = make_game(*random_net(seed, background=100))
        exact, _ = enumerate_coalitions(game)
        values, errors = sample_permutations(game, seed)
        if game.columns == 2:
            np.testing.assert_allclose(values, exact, atol=1e-12)  # an order and its reverse are all orders
        else:
            scores.append(((values - exact) / errors)[..., 0].ravel())
    scores = np.concatenate(scores)
    assert len(scores) > 800
    assert (np.abs(scores) < 3).mean() > 0.99  # 99.7 % of normal numbers are
    assert np.abs(scores).max() < 5
    assert 0.9 < np.sqrt(np.mean(scores**2)) < 1.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [3, 12])
def test_contributions_add_up_to_the_output_less_the_base(columns, dtype):
    net, rows, background = random_net(0, columns, outputs=3, dtype=dtype)
    e = cl.explain(net, rows, background)
    assert e.values.shape == (2, columns, 3)
    np.testing.assert_allclose(e.base, net.predict(background).mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(e.outputs, net.predict(rows))
    np.testing.assert_allclose(e.base + e.values.sum(axis=1), e.outputs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(e.values.sum(axis=2), 0, atol=1e-6)  # probabilities
    assert e.errors.any() == (columns > 6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_additive_model_is_exact_and_its_errors_are_zero(dtype):
    rng = np.random.default_rng(0)
    x, background = rng.normal(size=(3, 9)), rng.normal(size=(30, 9))

    class Additive(cl.Model):
        def call(self, x):
            return (x * x + 2 * x.abs()).sum(axis=1)

    e = cl.explain(Additive(dtype=dtype), x, background)
    expected = x**2 + 2 * abs(x) - (background**2 + 2 * abs(background)).mean(axis=0)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(e.values, expected, atol=tolerance)
    assert e.errors.max() < tolerance


def test_interactions_of_two_columns_are_exact_and_halved():
    rng = np.random.default_rng(0)
    x, background = rng.normal(size=(2, 8)), rng.normal(size=(10, 8))

    class Products(cl.Model):
        def call(self, x):
            return x[:, 0] * x[:, 1] + x[:, 2] * x[:, 7]

    e = cl.explain(Products(dtype=np.float64), x, background)
    (a, b), (c, d) = x[0, :2], background[:, :2].T
    assert np.isclose(e.values[0, 0], ((a - c) * (b + d) / 2).mean())
    assert e.errors.max() < 1e-15
    assert not e.values[:, 3:7].any()


def test_a_row_has_the_same_contributions_alone_and_with_any_number_of_threads():
    net, _, background = random_net(3, 9, dtype=np.float32)
    rows = np.random.default_rng(1).normal(size=(7, 9))
    together, before = cl.explain(net, rows, background), cl.get_num_threads()
    cl.set_num_threads(1 if before > 1 else 3)
    try:
        alone = [cl.explain(net, rows[i : i + 1], background) for i in range(7)]
    finally:
        cl.set_num_threads(before)
    np.testing.assert_array_equal(np.concatenate([e.values for e in alone]), together.values)
    np.testing.assert_array_equal(np.concatenate([e.errors for e in alone]), together.errors)
    assert not np.array_equal(cl.explain(net, rows, background, seed=1).values, together.values)


def test_small_blocks_of_mixed_rows_change_nothing(monkeypatch):
    net, rows, background = random_net(4, 8)
    expected = shapley_values(make_game(net, rows, background), 0)
    for size in (1, 100, 3000):
        monkeypatch.setattr(shapley, "BLOCK_SIZE", size)
        values = shapley_values(make_game(net, rows, background), 0)
        np.testing.assert_allclose(values.values, expected.values, atol=1e-14)
        np.testing.assert_allclose(values.errors, expected.errors, atol=1e-14)


def test_more_rounds_come_until_the_errors_are_small(monkeypatch):
    net, rows, background = random_net(5, 8)
    monkeypatch.setattr(shapley, "MAX_ROUNDS", 200)
    game, errors = make_game(net, rows, background), {}
    outputs = net.predict(background)
    spread = np.maximum(outputs.std(axis=0).max(), abs(net.predict(rows) - outputs.mean(axis=0)).max(axis=1))
    for tolerance in (0.005, 1.0):
        monkeypatch.setattr(shapley, "TOLERANCE", tolerance)
        _, errors[tolerance] = sample_permutations(game, 0)
        assert (errors[tolerance].max(axis=(1, 2)) <= tolerance * spread).all()
    assert errors[1.0].max() > 1.5 * errors[0.005].max()


def test_a_mean_of_nets_gives_each_net_its_own_orders_and_the_same_contributions():
    nets = [random_net(seed, 5)[0] for seed in range(6)]
    _, rows, background = random_net(0, 5)
    average = cl.Linear(12, 2)
    average.weight.data, average.bias.data = np.tile(np.eye(2) / 6, (6, 1)), np.array([0.5, -1])
    model = cl.Model([cl.Parallel(nets), average], dtype=np.float64)

    class Wrapper(cl.Model):
        def __init__(self):
            super().__init__(dtype=np.float64)
            self.model = model

        def call(self, x):
            return self.model(x)

    np.testing.assert_allclose(
        cl.explain(model, rows, background).values, cl.explain(Wrapper(), rows, background).values, atol=1e-12
    )
    wide_nets = [random_net(seed, 9)[0] for seed in range(6)]
    model = cl.Model([cl.Parallel(wide_nets), average], dtype=np.float64)
    _, rows, background = random_net(0, 9)
    e = cl.explain(model, rows, background)
    exact, _ = enumerate_coalitions(make_game(model, rows, background))
    assert (abs(e.values - exact) < 4 * e.errors).all()
    np.testing.assert_allclose(e.base + e.values.sum(axis=1), e.outputs, atol=1e-12)


def test_the_model_and_its_random_stream_stay_as_they_are():
    model = cl.Model([cl.Linear(8, 8), cl.BatchNorm(8), cl.Dropout(0.5), cl.Linear(8, 2)], seed=0)
    x = np.random.default_rng(0).normal(size=(20, 8))
    before, state = bits(model), {k: v.copy() for k, v in model.buffers().items()}
    stream = model._model_state.rng.bit_generator.state
    cl.explain(model, x[:2], x)
    cl.attributions(model, x[:2])
    assert bits(model) == before
    assert all(p.grad is None for p in model.parameters())
    assert model._model_state.rng.bit_generator.state == stream
    assert all(np.array_equal(model.buffers()[name], array) for name, array in state.items())
    assert cl.is_training()
