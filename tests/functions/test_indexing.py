"""take_along_axis, one_hot and split: what the cases of their Functions do not say."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from tests.reference import assert_same_bits, strided_view

X = np.arange(24.0).reshape(2, 3, 4)


# ---- take_along_axis ----


@pytest.mark.parametrize("kind", ["i1", "u2", ">i4", "i8", "u8"])
def test_indices_may_be_integers_of_any_width_and_layout(kind):
    indices = np.array([[2, 0, 2, 1], [1, 1, 0, 2]]).astype(kind)[:, None]
    expected = np.take_along_axis(X, indices.astype(int), 1)
    for like in (indices, strided_view(indices), indices.tolist()):
        assert_same_bits(cl.take_along_axis(X, like, 1).data, expected)


def test_without_an_axis_the_array_is_one_vector():
    assert_same_bits(cl.take_along_axis(X, [3, -1], None).data, np.array([3.0, 23.0]))
    with pytest.raises(ValueError, match=r"shapes \(24,\) and \(1, 1\)"):
        cl.take_along_axis(X, [[3]], None)


def test_elements_that_are_taken_several_times_add_up_their_gradients():
    t = cl.Tensor(X[0], requires_grad=True)
    cl.take_along_axis(t, [[1, 1, 3], [0, 2, 0], [2, 2, 2]]).backward([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert_same_bits(t.grad, np.array([[0, 3, 0, 3], [10, 0, 5, 0], [0, 0, 24, 0]], float))


@pytest.mark.parametrize("bad", [4, -5, 2**62])
def test_an_index_out_of_range_is_named_with_its_row_and_the_range(bad):
    says = rf"take_along_axis: index {bad} in row 2, at \(2, 1\), is not in -4 … 3"
    with pytest.raises(IndexError, match=says):
        cl.take_along_axis(X[0], [[0, 1], [2, 3], [3, bad]], 1)
    with pytest.raises(IndexError, match=rf"index {bad} in row 1 is not in -4 … 3"):
        cl.take_along_axis(X[0, 0], [0, bad], 0)


def test_a_replay_refuses_an_index_out_of_range_before_anything_is_written():
    w = cl.Tensor(np.ones((3, 4)), requires_grad=True)
    optimizer = cl.SGD([w], 0.1)

    def step(index):
        optimizer.zero_grad()
        cl.take_along_axis(w, index, 1).sum().backward()
        optimizer.step()
        return cl.one_hot(index, 4)

    program = cl.capture(step, np.array([[0], [1], [-1]]) % 4)
    program(np.array([[0], [0], [2]]))
    before = w.data.copy()
    with pytest.raises(IndexError, match=r"take_along_axis: index 4 in row 1, at \(1, 0\), is not in -4 … 3"):
        program(np.array([[0], [4], [5]]))
    assert_same_bits(w.data, before)
    with pytest.raises(IndexError, match=r"one_hot: index -1 in row 2, at \(2, 0\), is not in 0 … 3"):
        program(np.array([[0], [0], [-1]]))


@pytest.mark.parametrize(
    "take", [lambda indices: cl.take_along_axis(X, indices), lambda indices: cl.one_hot(indices, 3)]
)
def test_indices_are_integers(take):
    for indices in (1.0, [[[0.5]]], "0", [True], None, cl.Tensor([[[1.0]]])):
        with pytest.raises(TypeError, match=r"take_along_axis|one_hot"):
            take(indices)
    with pytest.raises(IndexError, match="18446744073709551615"):
        take(np.full((1, 1, 1), 2**64 - 1, np.uint64))


def test_take_along_axis_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"take_along_axis got shapes \(2, 3, 4\) and \(2,\)"):
        cl.take_along_axis(X, [0, 1])
    with pytest.raises(ValueError, match="broadcast"):
        cl.take_along_axis(X, np.zeros((2, 2, 1), int))
    with pytest.raises(ValueError, match="axis"):
        cl.take_along_axis(X, np.zeros((1, 1, 1), int), 3)


# ---- one_hot ----


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 2)])
@pytest.mark.parametrize("kind", ["i1", "u2", ">i4", "i8", "u8"])
def test_one_hot_has_a_1_at_each_index(shape, kind):
    indices = np.random.default_rng(0).integers(0, 4, shape).astype(kind)
    expected = np.eye(4, dtype=np.float32)[indices.astype(int)]
    for like in (indices, strided_view(indices), indices.tolist() if indices.size else indices):
        found = cl.one_hot(like, 4)
        assert type(found) is np.ndarray
        assert_same_bits(found, expected)


@given(data=st.data())
def test_one_hot_is_a_row_of_the_identity_for_random_shapes(data):
    classes = data.draw(st.integers(1, 9))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, max_side=4))
    indices = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, classes - 1)))
    assert_same_bits(cl.one_hot(indices, classes), np.eye(classes, dtype=np.float32)[indices])
    x = np.random.default_rng(0).normal(size=(*shape, classes)).astype(np.float32)
    taken = (cl.Tensor(x) * cl.one_hot(indices, classes)).sum(-1)
    assert_same_bits(taken.data, np.take_along_axis(x, indices[..., None], -1)[..., 0])


def test_one_hot_names_an_index_that_is_not_a_class():
    for bad in (3, -1):
        with pytest.raises(IndexError, match=rf"one_hot: index {bad} in row 1 is not in 0 … 2"):
            cl.one_hot([0, bad], 3)
    with pytest.raises(IndexError, match="one_hot: index 3 in row 0 is not in 0 … 2"):
        cl.one_hot(3, 3)
    for classes in (0, -1, 2.0, True, None):
        with pytest.raises((ValueError, TypeError), match="one_hot: classes"):
            cl.one_hot([0], classes)


def test_one_hot_in_a_call_is_recorded():
    class Net(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f = cl.Linear(5, 3)

        def call(self, x):
            return self.f(cl.one_hot(x, 5))

    model, x = Net(), np.array([4, 0, 2, 2])
    model.takes_indices = True
    program = cl.capture(lambda x: model(x), x)
    expected = model.f.weight.data[x] + model.f.bias.data
    assert_same_bits(program(x), expected)
    assert_same_bits(model.predict(x), expected)


# ---- split ----


@pytest.mark.parametrize(
    ("parts", "axis"),
    [(1, 0), (2, 0), (np.int64(3), 1), ([1], 2), ((1, 3), -1), (np.array([2, 1]), 1), ([], 0), ([9, -9], 1)],
)
def test_split_takes_what_numpy_takes(parts, axis):
    t = cl.Tensor(X, requires_grad=True)
    found, expected = cl.split(t, parts, axis), np.split(X, parts, axis)
    assert isinstance(found, list)
    for mine, theirs in zip(found, expected, strict=True):
        assert_same_bits(mine.data, theirs)
        assert mine.size == 0 or np.shares_memory(mine.data, t.data)
    sum((part * part).sum() for part in found).backward()
    times = sum(np.bincount(np.ravel(part).astype(int), minlength=24) for part in expected).reshape(X.shape)
    assert_same_bits(t.grad, 2 * X * times)


def test_a_part_that_nobody_used_has_no_gradient():
    t = cl.Tensor(X, requires_grad=True)
    cl.split(t, 3, axis=1)[1].sum().backward()
    assert_same_bits(t.grad, np.broadcast_to([[0.0], [1], [0]], X.shape))


def test_split_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="split got an axis of length 3, which 2 does not divide"):
        cl.split(X, 2, axis=1)
    for parts in (0, -1):
        with pytest.raises(ValueError, match="split: the number of parts"):
            cl.split(X, parts)
    for parts in (1.5, [1.0], True, None, "2"):
        with pytest.raises(TypeError, match="split takes integers"):
            cl.split(X, parts)
    with pytest.raises(ValueError, match="axis"):
        cl.split(X, 1, axis=3)
