"""Histograms over time of the weights and gradients of a training that is shown."""

from types import SimpleNamespace

import numpy as np
import pytest

import caffelite as cl
from caffelite.web import histograms, snapshots

LAST = histograms.LEVELS.index(0.99)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quantiles_are_of_weights_and_of_the_absolute_values_of_gradients(dtype):
    array = np.random.default_rng(0).normal(size=(20, 50)).astype(dtype)
    found, absolute = histograms.quantiles(array), histograms.quantiles(array, is_absolute=True)
    np.testing.assert_array_equal(found, np.quantile(array, histograms.LEVELS, method="nearest").astype(np.float32))
    np.testing.assert_allclose(absolute, np.quantile(abs(array), histograms.LEVELS, method="nearest"), rtol=1e-6)
    array[3, 4] = np.nan
    assert np.isnan(histograms.quantiles(array)).all()
    assert np.isnan(histograms.quantiles(None)).all()


def test_a_large_array_is_sampled_evenly_in_bounded_time():
    array = np.arange(3_000_000, dtype=np.float32).reshape(1000, 3000)
    found = histograms.quantiles(array)
    np.testing.assert_allclose(found / array.size, histograms.LEVELS, atol=0.04)


def test_columns_are_bounded_evenly_spread_and_end_at_the_newest_update():
    model = cl.MLP(2, [4, 3], seed=0)
    view = SimpleNamespace(model=model, place=0)
    shown = histograms.Histograms(view)
    for update in range(1, 1001):
        view.place = 10 * update
        model.parameters()[0].data[...] = update
        message = shown.message()
        steps = message["steps"]
        assert len(steps) <= histograms.MAX_COLUMNS
        assert (steps[0], steps[-1]) == (10, 10 * update)
        assert len(set(np.diff(steps)[:-1])) <= 1
        weights = message["rows"][0]["weights"]
        assert weights.shape == (len(histograms.LEVELS), len(steps))
        np.testing.assert_array_equal(weights[0], steps / 10)
        np.testing.assert_array_equal(weights[LAST], steps / 10)
    assert len(steps) > histograms.MAX_COLUMNS / 2


def test_matrices_are_named_by_their_layers_and_limited():
    layers = [cl.Conv2d(1, 8, 3), cl.ReLU(), cl.BatchNorm(8), cl.Flatten(), cl.Linear(8, 10)]
    assert [*snapshots.label_matrices(cl.Model(layers, seed=0))] == ["0 Conv2d", "4 Linear"]
    assert [*snapshots.label_matrices(cl.Model([cl.LSTM(3, 8)], seed=0))] == ["0 LSTM weight_ih", "0 LSTM weight_hh"]
    blocks = [cl.TransformerBlock(8, heads=2) for _ in range(3)]
    labels = [*snapshots.label_matrices(cl.Model([cl.Embedding(9, 8), *blocks, cl.Linear(8, 9)], seed=0))]
    assert len(labels) == snapshots.MAX_MATRICES
    assert (labels[0], labels[-1]) == ("0 Embedding", "4 Linear")
    assert "2.widen Linear" in labels


def test_a_model_without_matrices_has_no_histograms():
    view = SimpleNamespace(model=cl.Model([cl.LayerNorm(3)], seed=0), place=1)
    assert histograms.Histograms(view).message() is None
