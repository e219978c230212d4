"""flip, roll, repeat: what the cases of their Functions do not say."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from tests.reference import assert_same_bits

X = np.arange(24.0).reshape(2, 3, 4)


def gradient(f, x):
    """dx for dy = 0, 1, 2, …"""
    t = cl.Tensor(x, requires_grad=True)
    y = f(t)
    y.backward(np.arange(y.size, dtype=float).reshape(y.shape))
    return t.grad


@pytest.mark.parametrize(
    ("shift", "axis"),
    [(1, None), ((1, 4), None), (2, 0), (-1, -1), ((1, 2), (0, 2)), (1, (0, 1)), ((1, 2), 1), ((), ()), (30, [2])],
)
def test_roll_takes_what_numpy_takes(shift, axis):
    assert_same_bits(cl.roll(X, shift, axis).data, np.roll(X, shift, axis))
    dy = np.arange(24.0).reshape(X.shape)
    assert_same_bits(gradient(lambda t: cl.roll(t, shift, axis), X), np.roll(dy, np.negative(shift).tolist(), axis))


def test_roll_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="roll got 2 shifts for 3 axes"):
        cl.roll(X, (1, 2), (0, 1, 2))
    for shift, axis in ((1.0, 0), (1, "0"), (True, 0), ([1.5], 0), (None, 0)):
        with pytest.raises(TypeError, match="roll takes integers"):
            cl.roll(X, shift, axis)
    with pytest.raises(ValueError, match="axis"):
        cl.roll(X, 1, 3)


def test_a_flipped_tensor_shares_the_memory():
    t = cl.Tensor(X)
    for axis in (None, 0, -1, (0, 2), ()):
        assert_same_bits(cl.flip(t, axis).data, np.flip(X, axis))
        assert np.shares_memory(cl.flip(t, axis).data, X)
    for axis in (3, (0, 0)):
        with pytest.raises(ValueError, match="axis"):
            cl.flip(t, axis)


@pytest.mark.parametrize(
    ("repeats", "axis"), [(2, None), ([2] * 24, None), (0, 1), ([3, 0, 1], 1), ([2], -1), (np.array([1, 2]), 0)]
)
def test_repeat_takes_what_numpy_takes(repeats, axis):
    assert_same_bits(cl.repeat(X, repeats, axis).data, np.repeat(X, repeats, axis))
    assert_same_bits(cl.Tensor(X).repeat(repeats, axis).data, X.repeat(repeats, axis))
    places = np.repeat(np.arange(24).reshape(X.shape), repeats, axis)
    expected = np.bincount(places.ravel(), np.arange(places.size), minlength=24).reshape(X.shape) * 1.0
    assert_same_bits(gradient(lambda t: cl.repeat(t, repeats, axis), X), expected)


@given(data=st.data())
def test_repeat_is_numpys_for_random_shapes_and_counts(data):
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    counts = data.draw(st.lists(st.integers(0, 3), min_size=shape[axis], max_size=shape[axis]))
    x = np.random.default_rng(0).normal(size=shape)
    assert_same_bits(cl.repeat(x, counts, axis).data, np.repeat(x, counts, axis))
    assert cl.check_gradients(lambda t: cl.repeat(t, counts, axis), x) < 1e-7


def test_repeat_refuses_what_does_not_fit():
    for repeats in (-1, [1, 2], [1, -2, 3], []):
        with pytest.raises(ValueError, match="repeat takes an integer of 0 or more, or one for each of the 3 elements"):
            cl.repeat(X, repeats, 1)
    for repeats in (1.5, [1.0] * 3, True, None):
        with pytest.raises(TypeError, match="repeat takes integers"):
            cl.repeat(X, repeats, 1)
    with pytest.raises(ValueError, match="axis"):
        cl.repeat(X, 2, 3)


def test_counts_that_a_replay_may_find_changed_are_refused():
    with pytest.raises(TypeError, match="recorded"):
        cl.capture(lambda x, counts: cl.repeat(x, counts, 0), np.ones((3, 2)), np.array([1, 2, 0]))
