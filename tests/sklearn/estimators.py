"""Estimators and data sets that several test files use."""

import numpy as np
from sklearn.datasets import load_diabetes, load_wine
from sklearn.preprocessing import scale

import caffelite as cl
from caffelite import sklearn as ours
from tests.conftest import bits


def net(features, outputs):
    return cl.MLP(features, [30, outputs])


def wine(classes=3, dtype=np.float64):
    x, y = load_wine(return_X_y=True)
    rows = y < classes
    return scale(x[rows]).astype(dtype), y[rows]


def diabetes(dtype=np.float64):
    x, y = load_diabetes(return_X_y=True)
    return scale(x[:150]).astype(dtype), scale(y[:150])


def estimators(**options):
    """One of each kind."""
    return [
        ours.MLPClassifier(hidden_layer_sizes=20, **options),
        ours.MLPRegressor(hidden_layer_sizes=20, **options),
        ours.NetClassifier(net, **options),
        ours.NetRegressor(net, **options),
    ]


def data_for(estimator, dtype=np.float64):
    return wine(dtype=dtype) if hasattr(estimator, "predict_proba") else diabetes(dtype)


def weight_bits(estimator):
    return bits(estimator.model_)
