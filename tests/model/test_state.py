"""Copies of a model, and states that are taken and loaded."""

import copy
import pickle

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.numpy_parts import DTYPES, Scale, X, Y

DUPLICATES = pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["deepcopy", "pickle"]
)


@DUPLICATES
@DTYPES
def test_a_copy_trains_on_with_the_same_bits(duplicate, dtype):
    model = classifier(2, 16, 3, dtype=dtype)
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    train(model, X, Y, optimizer=optimizer)
    for pair in ((model, optimizer), (optimizer, model)):
        copied = duplicate(pair)
        other, other_optimizer = copied if pair[0] is model else copied[::-1]
        assert bits(other) == bits(model)
        assert other.dtype == model.dtype
    train(model, X, Y, optimizer=optimizer, epochs=2)
    assert bits(other) != bits(model)
    train(other, X, Y, optimizer=other_optimizer, epochs=2)
    assert bits(other) == bits(model)


@DUPLICATES
def test_a_copy_keeps_what_was_shared_and_frozen(duplicate):
    shared = cl.Linear(4, 4)
    shared.bias.requires_grad = False
    model = cl.Model([cl.Linear(2, 4), shared, cl.Model([cl.ReLU(), shared]), cl.Linear(4, 3)], seed=0)
    other = duplicate(model)
    assert len(other.parameters()) == 6
    assert other.functions[1] is other.functions[2].functions[1]
    assert [p.requires_grad for p in other.parameters()] == [True, True, True, False, True, True]
    train(model, X, Y)
    train(other, X, Y)
    assert bits(other) == bits(model)


def test_a_state_is_a_copy_of_the_parameters_by_name():
    model = cl.Model([cl.Linear(2, 4), cl.Model([cl.ReLU(), cl.Linear(4, 3)]), Scale(3)])
    state = model.state_dict()
    assert len(state) == 5
    assert all((a == p.data).all() for a, p in zip(state.values(), model.parameters(), strict=True))
    before = bits(model)
    for values in state.values():
        values[...] = 0
    assert bits(model) == before


def test_a_loaded_state_replaces_the_parameters_in_place():
    model, other = classifier(2, 16, 3, seed=0), classifier(2, 16, 3, seed=1)
    data = [p.data for p in other.parameters()]
    other.load_state_dict(model.state_dict())
    assert bits(other) == bits(model)
    assert all(p.data is a for p, a in zip(other.parameters(), data, strict=True))


def test_a_state_of_the_other_dtype_is_converted():
    model = classifier(2, 16, 3, dtype=np.float64)
    other = classifier(2, 16, 3, seed=1)
    other.load_state_dict(model.state_dict())
    assert {p.dtype for p in other.parameters()} == {np.dtype(np.float32)}
    assert (other.functions[0].weight.data == model.functions[0].weight.data.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda state, last: state.pop(last), ValueError),
        (lambda state, last: state.update(more=np.ones(3)), ValueError),
        (lambda state, last: state.update({last: np.ones(4)}), ValueError),
        (lambda state, last: state.update({last: np.ones((3, 1))}), ValueError),
        (lambda state, last: state.update({last: 1.0}), ValueError),
        (lambda state, last: state.update({last: np.ones(3, complex)}), TypeError),
        (lambda state, last: state.update({last: np.array([None] * 3)}), TypeError),
        (lambda state, last: state.clear(), ValueError),
    ],
)
def test_a_state_of_another_model_raises_before_anything_is_written(change, error):
    model = classifier(2, 16, 3, seed=0)
    state = classifier(2, 16, 3, seed=1).state_dict()
    last = list(state)[-1]
    change(state, last)
    before = bits(model)
    with pytest.raises(error):
        model.load_state_dict(state)
    assert bits(model) == before


@pytest.mark.parametrize("state", [3, [1.0], "weights", np.ones(3)])
def test_a_state_has_to_be_a_dict(state):
    with pytest.raises(TypeError, match="expected a dict of names and arrays"):
        classifier(2, 3).load_state_dict(state)


@DTYPES
def test_a_state_that_is_not_strict_sets_the_common_names_and_returns_the_others(dtype):
    model, other = classifier(2, 4, 3, dtype=dtype), classifier(2, 4, seed=1, dtype=dtype)
    before, state = model.state_dict(), {**other.state_dict(), "head.weight": np.ones(3)}
    keys = model.load_state_dict(state, strict=False)
    assert keys == (["2.weight", "2.bias"], ["head.weight"])
    assert (keys.missing_keys, keys.unexpected_keys) == keys
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name] if name.startswith("2.") else state[name])
    assert model.load_state_dict(before) == ([], [])
    assert bits(model) == bits(classifier(2, 4, 3, dtype=dtype))


def test_a_state_that_is_not_strict_raises_for_other_shapes_and_for_no_common_name():
    model = classifier(2, 4, 3)
    before = bits(model)
    with pytest.raises(ValueError, match=r"the model has .*0.weight.* and the state .*net.weight"):
        model.load_state_dict({"net.weight": np.ones((2, 4))}, strict=False)
    with pytest.raises(ValueError, match=r"0\.weight has shape"):
        model.load_state_dict({"0.weight": np.ones((4, 2)), "0.bias": np.ones(4)}, strict=False)
    with pytest.raises(ValueError, match="has the parameters"):
        model.load_state_dict({"0.bias": np.ones(4)})
    assert bits(model) == before
