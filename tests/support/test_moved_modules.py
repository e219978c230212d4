"""Pickles of older versions load: their modules, classes and attributes have other names now."""

import importlib
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite._support.moved_modules import CLASSES, MODULES

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)


def old_pickle(value, lines, attributes):
    """Return a pickle of the value with older names of modules and classes, which have lines, and of attributes."""
    data = pickle.dumps(value, protocol=2)
    pairs = [(f"{new}\n".encode(), f"{old}\n".encode()) for new, old in lines.items()]
    pairs += [(as_text(new), as_text(old)) for new, old in attributes.items()]
    for new, old in pairs:
        assert new in data, new
        data = data.replace(new, old)
    return data


def as_text(name):
    return b"X" + len(name).to_bytes(4, "little") + name.encode()


@pytest.mark.parametrize(("old", "new"), MODULES.items())
def test_a_module_of_an_old_name_offers_what_is_in_the_new_one(old, new):
    if "sklearn" in old:
        pytest.importorskip("sklearn")
    classes = {name: x for name, x in vars(importlib.import_module(new)).items() if isinstance(x, type)}
    assert classes or old == "caffelite.look"  # a folder
    classes = {name: x for name, x in classes.items() if (old, name) not in CLASSES}
    assert all(getattr(importlib.import_module(old), name) is x for name, x in classes.items())
    with pytest.raises(AttributeError):
        _ = importlib.import_module(old).no_such_name


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_a_class_of_an_old_name_is_the_new_one(module, name):
    if "sklearn" in module:
        pytest.importorskip("sklearn")
    new = getattr(importlib.import_module(MODULES[module]), CLASSES[module, name])
    assert getattr(importlib.import_module(module), name) is new


def test_estimators_of_an_older_version_predict():
    estimators = pytest.importorskip("caffelite.sklearn")
    net = estimators.MLPClassifier((4,), solver="lbfgs", random_state=0).fit(X, Y)
    lines = {
        "caffelite.sklearn.penalized_loss": "caffelite.sklearn.objective",
        "PenalizedLoss": "Objective",
    }
    table = estimators.TableClassifier(random_state=0).fit(X, Y)
    for estimator, old in (
        (net, old_pickle(net, lines, {})),
        (table, old_pickle(table, {}, {"_nets": "_side_by_side"})),
    ):
        np.testing.assert_array_equal(pickle.loads(old).predict_proba(X), estimator.predict_proba(X))


def test_callbacks_of_an_older_version_keep_their_state():
    each = cl.callbacks.Each(10, print)
    each.steps_done(7)
    assert pickle.loads(old_pickle(each, {}, {"_step": "_done"})).steps_until_due() == 3
    callbacks = "caffelite.training.callbacks"
    lines = {f"{callbacks}.checkpoint\nCheckpointMonitor": f"{callbacks}\n_MonitorOfCheckpoint"}
    checkpoint = cl.callbacks.Checkpoint("net", monitor="val_loss")
    assert pickle.loads(old_pickle(checkpoint, lines, {}))._monitor.monitor == "val_loss"


def test_a_module_that_never_was_is_missed_by_its_name():
    with pytest.raises(ModuleNotFoundError, match=r"caffelite\.functions\.never"):
        importlib.import_module("caffelite.functions.never")


def test_a_model_and_its_optimizer_of_an_older_version_go_on_training_to_the_same_bits():
    model = cl.Model([cl.Residual(cl.Linear(2, 2)), cl.Linear(2, 3)], seed=0)
    optimizer = cl.Adam(model.parameters(), lr=cl.schedules.cosine(0.01, 30))
    loss = cl.SoftmaxLoss()
    model.fit(X, Y, loss=loss, optimizer=optimizer, epochs=2, verbose=0)
    lines = {
        "caffelite.functions.combinators": "caffelite.functions.composition",
        "caffelite.functions.losses.classification": "caffelite.functions.loss",
        "ScheduleState": "Followed",
    }
    attributes = {
        "_model_state": "_own",
        "_segments": "_runs",
        "_state_arrays": "_kept",
        "_schedule_state": "_followed",
    }
    others = pickle.loads(old_pickle((model, optimizer, loss), lines, attributes))
    for m, o, loss_function in ((model, optimizer, loss), others):
        m.fit(X, Y, loss=loss_function, optimizer=o, epochs=2, verbose=0)
    np.testing.assert_array_equal(others[0].predict(X), model.predict(X))
    assert "_own" not in vars(others[0])


def test_an_attribute_of_the_users_keeps_its_name():
    model = cl.Model([cl.Linear(2, 3)], seed=0)
    model._own = 7
    assert pickle.loads(pickle.dumps(model))._own == 7
