"""What `fit_many` takes and refuses."""

import contextlib
import copy

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier
from tests.model.many_models import data, entries, many, small_models


def shared_function():
    models, optimizers = entries("plain", "SGD", 4)
    models[2] = cl.Model([*models[1].functions])
    optimizers[2] = cl.SGD(models[2].parameters(), lr=0.1)
    return {"models": models, "optimizers": optimizers}


def shared_dropout():
    dropout = cl.Dropout(0.5)
    models = [cl.Model([cl.Linear(4, 3), dropout], seed=i) for i in range(4)]
    return {"models": models, "optimizers": [cl.SGD(m.parameters(), lr=0.1) for m in models]}


def another_models_parameters(i, j):
    models, optimizers = entries("plain", "SGD", 4)
    optimizers[i] = cl.SGD([*models[i].parameters(), *models[j].parameters()], lr=0.1)
    return {"models": models, "optimizers": optimizers}


def with_optimizer(i, make):
    models, optimizers = entries("plain", "SGD", 4)
    optimizers[i] = make(models, optimizers)
    return {"models": models, "optimizers": optimizers}


def with_penalty():
    models, optimizers = entries("plain", "SGD", 4)
    return {"models": models, "optimizers": optimizers, "loss": cl.Penalized(cl.SoftmaxLoss(), models[0].parameters())}


BAD = [
    (lambda: {"models": []}, ValueError, "models: expected one or more, got none"),
    (lambda: {"models": classifier(4, 3)}, TypeError, "models: expected a list with one for each model"),
    (lambda: {"models": [classifier(4, 3), 3, 4, 5]}, TypeError, "model 1: expected a Model, got 3"),
    (lambda: {"optimizers": []}, ValueError, "optimizers: expected one for each of 4 models, got 0"),
    (lambda: {"loss": [cl.SoftmaxLoss()]}, ValueError, "loss: expected one for each of 4 models, got 1"),
    (lambda: {"loss": [*[cl.SoftmaxLoss()] * 3, "mse"]}, TypeError, "model 3: loss: expected a Function"),
    (lambda: {"rows": [None]}, ValueError, "rows: expected one for each of 4 models, got 1"),
    (lambda: {"rows": [None, [1, 2], [50], [3]]}, IndexError, "model 2: rows: index 50 in row 0 is not in 0 … 49"),
    (lambda: {"rows": [None, [1, 2], [-1], [3]]}, IndexError, "model 2: rows: index -1 in row 0"),
    (lambda: {"rows": [None, [[1, 2]], [1], [3]]}, ValueError, r"model 1: rows: .* got shape \(1, 2\)"),
    (lambda: {"rows": [None, [], [1], [3]]}, (ValueError, TypeError), "model 1: rows"),
    (
        lambda: {"rows": [np.ones(50, bool), None, None, None]},
        TypeError,
        r"model 0: rows: .* got a mask; np\.flatnonzero\(mask\) gives",
    ),
    (
        lambda: {"rows": [(np.arange(40), np.arange(40, 50))] * 4},
        TypeError,
        r"model 0: rows: got a pair of arrays; .* rows=\[train for train, test in folds\]",
    ),
    (lambda: {"loss": cl.SoftmaxLoss}, TypeError, r"model 0: loss: expected a Function such as SoftmaxLoss\(\)"),
    (
        lambda: {"loss": "mse"},
        TypeError,
        r"model 0: loss: expected a Function such as SoftmaxLoss\(\), or a function, got 'mse'",
    ),
    (lambda: with_optimizer(2, lambda ms, os: os[1]), ValueError, "model 2: the optimizer does not have the model's"),
    (lambda: with_optimizer(2, lambda ms, os: "SGD"), TypeError, "model 2: optimizer: expected an Optimizer"),
    (lambda: another_models_parameters(3, 1), ValueError, "models 1 and 3 share .*weight"),
    (shared_function, ValueError, "models 1 and 2 share .*weight"),
    (shared_dropout, ValueError, r"models 0 and 1 share a buffer \(2,\)"),
    (with_penalty, ValueError, "models 0 and 1 share .*weight"),
    (lambda: {"epochs": 0}, ValueError, "epochs must be at least 1"),
    (lambda: {"batch_size": 2.5}, TypeError, "batch_size must be an integer"),
    (lambda: {"seed": np.random.default_rng(0)}, TypeError, "seed: expected an integer or None"),
    (lambda: {"seed": -1}, ValueError, "seed: expected an integer from 0 on"),
    (lambda: {"x": np.zeros((50, 5))}, ValueError, "model 0: .*rows of 5 features"),
    (lambda: {"y": np.full(50, 3)}, ValueError, "model 0: .*3"),
    (lambda: {"y": np.zeros(49, int)}, ValueError, "model 0: x has 50 rows, y has shape"),
    (lambda: {"x": np.full((50, 4), "a")}, TypeError, "model 0: x: expected real numbers"),
]


@pytest.mark.parametrize(("given", "error", "text"), BAD, ids=[text for _, _, text in BAD])
def test_unusable_arguments_of_many_raise_before_anything_is_changed(given, error, text):
    x, y = data()
    models, optimizers = entries("plain", "SGD", 4)
    given = {"models": models, "optimizers": optimizers, "x": x, "y": y, "loss": cl.SoftmaxLoss(), **given()}
    known = [m for m in given["models"] if isinstance(m, cl.Model)] if isinstance(given["models"], list) else []
    before = [(bits(m), copy.deepcopy(m._model_state.rng.bit_generator.state)) for m in known]
    with pytest.raises(error, match=text):
        cl.fit_many(**given)
    assert [(bits(m), m._model_state.rng.bit_generator.state) for m in known] == before


def test_a_model_that_ends_with_what_the_loss_begins_with_warns():
    model = cl.Model([cl.Linear(4, 3), cl.Softmax()], seed=0)
    with pytest.warns(UserWarning, match="leave out Softmax"):
        many([model], [cl.SGD(model.parameters(), lr=0.1)], *data())


def test_threads_have_the_modes_of_their_caller(threads):
    models, optimizers = entries("plain", "SGD", 4)
    with cl.no_grad(), contextlib.suppress(AssertionError), pytest.raises(RuntimeError) as alone:
        models[0].fit(*data(), loss=cl.SoftmaxLoss(), optimizer=optimizers[0], verbose=0)
    with cl.no_grad(), pytest.raises(RuntimeError) as together:
        many(models, optimizers, *data())
    assert str(together.value) == str(alone.value)


def test_lists_of_data_for_each_model_raise():
    x, y = data()
    models, optimizers = entries("plain", "SGD", 3)
    before = [bits(model) for model in models]
    with pytest.raises(TypeError, match=r"lists of 3 arrays.* All models get the same x and y: select the rows"):
        many(models, optimizers, [x] * 3, [y] * 3)
    assert [bits(model) for model in models] == before


@pytest.mark.parametrize("name", ["rows", "validation_rows"])
def test_rows_that_all_weigh_0_raise_before_the_first_step(name):
    models, data, options = small_models()
    before = [bits(model) for model in models]
    rows = [np.arange(40)] * 4 + [np.arange(30, 40)]
    with pytest.raises(ValueError, match=f"model 4: {name}: all of 10 rows have sample_weight 0"):
        cl.fit_many(*data, **options, **{name: rows}, sample_weight=np.arange(40) < 30)
    assert [bits(model) for model in models] == before


def test_a_split_whose_rows_all_weigh_0_raises():
    _, data, options = small_models()
    with pytest.raises(ValueError, match=r"validation_split: all of .0 rows have sample_weight 0"):
        cl.fit_many(*data, **options, validation_split=0.25, sample_weight=np.arange(40) == 7)
