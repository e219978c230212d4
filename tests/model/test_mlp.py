"""The multilayer perceptron."""

import copy
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from tests.conftest import bits, classifier, train
from tests.training.numpy_parts import DTYPES, Scale, X, Y


@DTYPES
def test_a_multilayer_perceptron_equals_the_model_of_its_layers_and_seed(dtype):
    model = cl.MLP(2, [16, np.int64(8), 3], seed=0, dtype=dtype)
    by_hand = classifier(2, 16, 8, 3, dtype=dtype)
    assert repr(model) == repr(by_hand)
    assert model.dtype == dtype
    assert bits(model) == bits(by_hand)
    assert train(model, X, Y, epochs=2) == train(by_hand, X, Y, epochs=2)
    assert bits(model) == bits(by_hand)


def test_a_multilayer_perceptron_has_its_activation_between_layers_only():
    assert repr(cl.MLP(2, [1], cl.Tanh)) == "Model([Linear(2, 1)])"
    assert repr(cl.MLP(2, iter([4, 1]), activation=cl.Tanh)) == "Model([Linear(2, 4), Tanh(), Linear(4, 1)])"


def test_each_hidden_layer_has_an_activation_of_its_own():
    model = cl.MLP(2, [4, 4, 1], lambda: Scale(4))
    assert model.functions[1] is not model.functions[3]
    assert len(model.parameters()) == 8


def test_a_multilayer_perceptron_nests_grows_and_is_copied():
    model = cl.Model([cl.MLP(2, [4, 4]), cl.ReLU(), cl.MLP(4, [3])], seed=0)
    other = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    train(model, X, Y)
    train(other, X, Y)
    assert bits(other) == bits(model)
    assert cl.MLP(2, [4]).add(cl.Linear(4, 3)).output_shape((5, 2)) == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((2, 3), TypeError, "sizes of its layers in a list.* got 3"),
        ((2, []), ValueError, "at least one layer"),
        ((2, [4, 1.0]), TypeError, r"sizes\[1\] must be an integer, got 1.0"),
        ((2, "41"), TypeError, r"sizes\[0\] must be an integer, got '4'"),
        ((2, [4, True]), TypeError, r"sizes\[1\] must be an integer, got True"),
        ((2, [0, 1]), ValueError, r"sizes\[0\] must be at least 1, got 0"),
        (("2", [4]), TypeError, "inputs must be an integer, got '2'"),
        ((0, [4]), ValueError, "inputs must be at least 1, got 0"),
        ((2, [1], "relu"), TypeError, "that makes a Function, got 'relu'; give the class: activation=cl.ReLU$"),
        ((2, [1], "leaky_relu"), TypeError, "; give the class: activation=cl.LeakyReLU$"),
        ((2, [1], "linear regression"), TypeError, "got 'linear regression'$"),
        ((2, [4, 1], cl.ReLU()), TypeError, r"got ReLU\(\); give the class: activation=cl.ReLU$"),
        ((2, [4, 1], dict), TypeError, "must make a Function, .* returned {}"),
        ((2, [4, 1], cl.relu), TypeError, "got <function relu.*; give the class: activation=cl.ReLU$"),
        (([2, 100, 3],), TypeError, r"; give the sizes of the layers in a list, MLP\(2, \[100, 3\]\)$"),
        ((2, [4, 1], cl.SoftmaxLoss), TypeError, r"a Function of one input, .* got SoftmaxLoss\(\)"),
        ((2, [4, 1], functions.Sum), ValueError, r"shape \(\); expected \(n, …, 4\)"),
    ],
)
def test_a_multilayer_perceptron_that_cannot_be_made_raises(arguments, error, message):
    with pytest.raises(error, match=message):
        cl.MLP(*arguments)
