"""Indexing and joining Tensors."""

import numpy as np
import pytest

import caffelite as cl
from tests.core.tensors import leaf


def test_slices_are_views_and_fancy_indices_copies():
    t = leaf(np.arange(12.0).reshape(3, 4))
    for view in (t[1], t[1, 2], t[..., ::2], t[None, 1:], t[-1:, np.int64(1)]):
        assert np.shares_memory(view.data, t.data)
        assert view.shape == t.data[view.function.index].shape
        assert view._version is t._version
    for copy in (t[[1]], t[np.array(1)], t[t > 3], t[:, [0, 1]], t[True]):
        assert not np.shares_memory(copy.data, t.data)


def test_gradients_of_repeated_indices_add_up():
    t = leaf([1.0, 2.0, 3.0])
    y = t[[0, 2, 0, 0, -1]]
    assert y.data.tolist() == [1, 3, 1, 1, 3]
    y.backward([1, 2, 3, 4, 5])
    assert t.grad.tolist() == [8, 0, 7]


def test_comparisons_select():
    t = leaf([[1.0, -2.0], [-3.0, 4.0]])
    (t[t > 0] * 2.0).sum().backward()
    assert t.grad.tolist() == [[2, 0], [0, 2]]


def test_the_log_likelihood_of_labels_is_an_expression():
    x, labels = np.random.default_rng(0).normal(size=(5, 3)), np.array([0, 2, 1, 1, 0])
    scores, same = leaf(x), leaf(x)
    (-scores.log_softmax()[np.arange(5), labels].mean()).backward()
    cl.SoftmaxLoss()(same, labels).backward()
    np.testing.assert_allclose(scores.grad, same.grad, 1e-12)


def test_indices_may_change_after_they_were_used():
    t, index = leaf([1.0, 2.0, 3.0]), np.array([0, 0, 1])
    y = t[index]
    index[:] = 2
    y.sum().backward()
    assert t.grad.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (3, "3 is out of bounds"),
        ((0, -3), "-3 is out of bounds"),
        ([0, 3], "3 is out of bounds for an axis of length 3"),
        ((slice(None), [-3]), "-3 is out of bounds for an axis of length 2"),
        ((0, 0, 0), "too many indices"),
        (([], 9), "9 is out of bounds for an axis of length 2"),
        (([0], 0, 0), r"\(3, 2\).* 2 axes"),
        ((..., [0], ...), r"at most one \.\.\."),
        (([0, 1, 2], [0, 1]), r"\(3,\), \(2,\)"),
        ([True, False], r"\(2,\).*\(3,\)"),
        (np.ones((3, 3), bool), r"\(3, 3\).*\(3, 2\)"),
        (1.0, "integers"),
        ("a", "integers"),
        ([0.5], "integers"),
        (np.ones(2), "integers"),
        (cl.Tensor([1.0]), "integers"),
    ],
    ids=str,
)
def test_bad_indices_raise(index, message):
    with pytest.raises(IndexError, match=message):
        leaf(np.ones((3, 2)))[index]


def test_elements_cannot_be_assigned():
    with pytest.raises(TypeError, match="item assignment"):
        leaf([1.0])[0] = 2


def test_tensors_arrays_lists_and_numbers_are_joined_in_the_tensors_dtype():
    t = leaf(np.array([[1.0, 2.0]]))
    y = cl.concatenate([[[3, 4]], t, np.array([[5.0, 6.0]]), np.array([[7, 8]])])
    assert y.dtype == np.float64
    assert y.data.tolist() == [[3, 4], [1, 2], [5, 6], [7, 8]]
    z = cl.stack([1, t.sum(), np.float64(2)])
    assert z.data.tolist() == [1, 3, 2]
    (y.sum() + z.sum()).backward()
    assert t.grad.tolist() == [[2, 2]]
    assert cl.concatenate([[1, 2], [3]]).dtype == cl.stack(([1], [2])).dtype == np.float32
    assert cl.concatenate([[1, 2], np.array([3.0])]).dtype == np.float64
    assert cl.concatenate(row for row in t).data.tolist() == [1, 2]


def test_tensors_that_cannot_be_joined_raise():
    f32, f64 = cl.Tensor(np.ones((2, 3), np.float32)), leaf(np.ones((2, 3)))
    for join in (cl.concatenate, cl.stack):
        with pytest.raises(TypeError, match=r"float64 and float32"):
            join([f64, f32])
        with pytest.raises(ValueError, match="no Tensors"):
            join([])
        with pytest.raises(ValueError, match=r"\(2, 3\), \(3, 2\)"):
            join([f64, f64.T])
        with pytest.raises(ValueError, match="axis"):
            join([f64, f64], axis=3)
        with pytest.raises(TypeError):
            join(["a", f64])
    with pytest.raises(ValueError, match=r"\(2, 3\), \(3,\)"):
        cl.concatenate([f64, f64[0]])
    with pytest.raises(ValueError, match="axis"):
        cl.concatenate([f64.sum(), f64.sum()])


def test_joined_tensors_get_gradients_of_their_own():
    a, b = leaf([1.0, 2.0]), leaf([3.0])
    y = cl.concatenate([a, b, a])
    dy = np.arange(5.0)
    y.backward(dy)
    a.add_grad([10, 10])
    assert a.grad.tolist() == [13, 15]
    assert b.grad.tolist() == [2]
    assert dy.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("index", [2**63, -(2**63) - 1, (0, 2**64), [2**63], ([0], 2**63), (..., [2**63 - 1, 2**63])])
def test_an_index_beyond_int64_is_out_of_bounds(index):
    with pytest.raises(IndexError):
        cl.Tensor(np.ones((2, 3)))[index]


@pytest.mark.parametrize("number", [4, np.int64(4), np.uint8(4)])
def test_a_number_of_any_kind_is_out_of_bounds_even_if_there_is_nothing_to_take(number):
    with pytest.raises(IndexError, match="index 4 is out of bounds for an axis of length 0"):
        cl.Tensor(np.ones((9, 0, 3)))[..., number, []]
