"""Reshape, Transpose, flip, roll, repeat: what their cases do not say."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from caffelite import functions
from tests.reference import assert_same_bits, channels_last, fortran_ordered, images_last, plain_copy


def test_reshape_and_transpose_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match=r"\(4,\)|\(4\)"):
        functions.ToShape(4).forward(np.ones((2, 3)))
    with pytest.raises(ValueError, match="axes"):
        functions.Transpose(0).forward(np.ones((2, 3)))


def test_reshape_and_transpose_take_arrays_of_numbers():
    t = cl.Tensor(np.arange(6.0).reshape(2, 3))
    assert_same_bits(t.reshape(np.array([3, 2])).data, t.data.reshape(3, 2))
    assert_same_bits(t.transpose(np.array([1, 0])).data, t.data.T)
    assert repr(functions.ToShape(*np.array([3, 2]))) == "ToShape(3, 2)"
    for method in (t.reshape, t.transpose):
        with pytest.raises(TypeError, match="integer"):
            method(1.0)


def test_images_last_are_flattened_without_a_copy_and_so_is_their_gradient():
    x = images_last(np.arange(120.0).reshape(2, 3, 4, 5))
    flatten = functions.Flatten()
    y = flatten.forward(x)
    assert np.shares_memory(x, y)
    dx = flatten.backward(fortran_ordered(y))
    assert_same_bits(dx, x)
    assert dx.strides == x.strides


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", [images_last, channels_last, fortran_ordered])
def test_a_net_behind_images_in_any_order_of_memory_trains_to_the_same_bits(layout, dtype):
    rng = np.random.default_rng(0)
    images, labels = rng.uniform(-1, 1, (20, 3, 4, 5)).astype(dtype), rng.integers(0, 4, 20)

    def gradients(x):
        model = cl.Model([cl.ReLU(), cl.Flatten(), cl.Linear(60, 4)], seed=0, dtype=dtype)
        h = model.forward(x)
        loss = cl.SoftmaxLoss()
        loss.forward(h, labels)
        dx = model.backward(loss.backward())
        return h, dx, *[p.grad for p in model.parameters()]

    for mine, plain in zip(gradients(layout(images)), gradients(plain_copy(images)), strict=True):
        assert_same_bits(mine, plain)
    assert gradients(images_last(images))[1].strides == images_last(images).strides


def test_transpose_refuses_an_order_of_no_axes_unless_there_are_none():
    matrix = cl.Tensor(np.ones((2, 3)))
    for order in [((),), ([],), (None, 0)]:
        with pytest.raises((ValueError, TypeError)):
            matrix.transpose(*order)
    assert matrix.transpose().shape == matrix.transpose(None).shape == (3, 2)
    number = cl.Tensor(1.0, True)
    number.transpose(()).backward()
    assert number.grad == 1


def test_bools_are_neither_lengths_nor_axes():
    matrix = cl.Tensor(np.ones((1, 1)))
    for call in [
        lambda: matrix.reshape(True, 1),
        lambda: matrix.reshape((1, True)),
        lambda: matrix.transpose(1, False),
    ]:
        with pytest.raises(TypeError, match="expected integers"):
            call()


@pytest.mark.parametrize("given", [{}, {2: 3}, {2, 3}, set(), "23"])
def test_a_shape_has_an_order(given):
    x = cl.Tensor(np.ones((2, 3) if len(given) else (), np.float32))
    for method in (x.reshape, x.transpose):
        with pytest.raises(TypeError):
            method(given)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 3), ()])
def test_squeeze_is_numpys(axis):
    x = np.arange(6.0).reshape(1, 2, 3, 1)
    t = cl.Tensor(x, requires_grad=True)
    for y in (cl.squeeze(t, axis), t.squeeze(axis)):
        assert_same_bits(y.data, np.squeeze(x, axis))
        assert np.shares_memory(y.data, t.data)
    (y * y).sum().backward()
    assert_same_bits(t.grad, 2 * x)


@pytest.mark.parametrize("axis", [0, -1, 2, (0, 1), (-1, 0), ()])
def test_expand_dims_is_numpys(axis):
    x = np.arange(6.0).reshape(2, 3)
    t = cl.Tensor(x, requires_grad=True)
    y = cl.expand_dims(t, axis)
    assert_same_bits(y.data, np.expand_dims(x, axis))
    assert np.shares_memory(y.data, t.data)
    (y * y).sum().backward()
    assert_same_bits(t.grad, 2 * x)


@given(data=st.data())
def test_squeeze_and_expand_dims_are_numpys_for_random_shapes(data):
    x = np.zeros(data.draw(hnp.array_shapes(min_dims=0, max_dims=4, max_side=2)))
    ones = [i - data.draw(st.sampled_from([0, x.ndim])) for i, n in enumerate(x.shape) if n == 1]
    axis = data.draw(st.none() | (st.lists(st.sampled_from(ones), unique=True).map(tuple) if ones else st.just(())))
    assert cl.squeeze(x, axis).shape == np.squeeze(x, axis).shape
    new = data.draw(st.integers(0, 3))
    axes = data.draw(st.permutations(range(x.ndim + new)))[:new]
    axes = tuple([axis - data.draw(st.sampled_from([0, x.ndim + new])) for axis in axes])
    assert cl.expand_dims(x, axes).shape == np.expand_dims(x, axes).shape
    assert cl.check_gradients(lambda t: cl.expand_dims(cl.squeeze(t, axis), axes[:1] and 0), x) < 1e-7


def test_squeeze_and_expand_dims_refuse_axes_that_do_not_fit():
    t = cl.Tensor(np.ones((1, 2)))
    with pytest.raises(ValueError, match=r"squeeze got shape \(1, 2\); expected length 1 along axis 1"):
        t.squeeze(1)
    for call in (lambda: t.squeeze(2), lambda: cl.expand_dims(t, 3), lambda: cl.expand_dims(t, (0, 0))):
        with pytest.raises(ValueError, match="axis"):
            call()
    for axis in (1.0, True, None):
        with pytest.raises(TypeError):
            cl.expand_dims(t, axis)


# ---- flip, roll, repeat ---------------------------------------------------------------------------------------------

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


def test_counts_that_a_replay_may_find_changed_raise():
    with pytest.raises(TypeError, match="recorded"):
        cl.capture(lambda x, counts: cl.repeat(x, counts, 0), np.ones((3, 2)), np.array([1, 2, 0]))
