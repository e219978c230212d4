"""Losses: numbers at the end of the range, labels, state."""

import math

import numpy as np
import pytest
import reference
from cases import both_dtypes
from reference import assert_close, assert_same_bits

import caffelite as cl


@both_dtypes
@pytest.mark.parametrize("scores", [[3e38, -3e38], [-3e38, 3e38], [3e38, 3e38], [-3e38, -3e38], [1000, 0], [0, 1000]])
def test_scores_at_the_end_of_float32_have_a_finite_loss_and_gradient(scores, dtype):
    loss = cl.SoftmaxLoss()
    value = loss.forward(np.array([scores] * 100, dtype), np.array([0, 1] * 50))
    assert np.isfinite(value)
    assert value >= 0
    assert np.isfinite(loss.backward()).all()
    np.testing.assert_allclose(loss.probabilities.sum(axis=1), 1)


@both_dtypes
def test_a_softmax_loss_of_not_a_number_is_not_a_number(dtype):
    for scores, label in [
        ([0, np.nan], 0),
        ([np.nan, 0], 1),
        ([np.nan, np.nan], 0),
        ([np.inf, 0], 0),
        ([np.inf, np.inf], 1),
        ([-np.inf, -np.inf], 0),
    ]:
        loss = cl.SoftmaxLoss()
        assert np.isnan(loss.forward(np.array([scores], dtype), np.array([label])))
        assert np.isnan(loss.backward()).any()


@both_dtypes
def test_a_score_of_minus_infinity_is_a_class_of_probability_0(dtype):
    scores = np.array([[0.0, -np.inf, 0.0]], dtype)
    loss = cl.SoftmaxLoss()
    assert loss.forward(scores, np.array([0])) == pytest.approx(math.log(2))
    assert loss.probabilities.tolist() == [[0.5, 0.0, 0.5]]
    assert loss.forward(scores, np.array([1])) == np.inf
    assert loss.backward().tolist() == [[0.5, -1.0, 0.5]]


SCORES = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 1.0], [0.2, 0.1, 0.0], [3.0, 1.0, 2.0]], np.float32)

BAD_LABELS = {
    "negative": ([0, -1, 2, -5], ValueError, 1),
    "too large": ([0, 1, 3, 9], ValueError, 2),
    "the smallest int64": (np.array([0, 1, 2, -(2**63)]), ValueError, 3),
    "beyond int64, unsigned": (np.array([0, 2**63, 1, 2], np.uint64), ValueError, 1),
    "all bits set, unsigned": (np.array([2**64 - 1, 0, 1, 2], np.uint64), ValueError, 0),
    "beyond int64, in a list": ([0, 1, 2**63, 2], (TypeError, ValueError), 2),
    "beyond uint64, in a list": ([0, 1, 2, 2**70], (TypeError, ValueError), 3),
    "float": ([0.0, 1.0, 2.0, 0.0], TypeError, 0),
    "fractions": ([0.5, 1.0, 2.0, 0.0], TypeError, 0),
    "nan": ([np.nan, 1, 2, 0], (TypeError, ValueError), 0),
    "bool": ([True, False, True, False], TypeError, 0),
    "string": (["0", "1", "2", "0"], TypeError, 0),
    "bytes": ([b"0", b"1", b"2", b"0"], TypeError, 0),
    "object": (np.array([0, 1, None, 2], object), TypeError, 2),
    "complex": ([0j, 1, 2, 0], TypeError, 0),
    "timedelta": (np.array([0, 1, 2, 0], "m8[s]"), TypeError, 0),
}

BAD_SHAPES = {
    "2-d": [[0, 1, 2, 0]],
    "a column": [[0], [1], [2], [0]],
    "too short": [0, 1, 2],
    "too long": [0, 1, 2, 0, 1],
    "empty": np.array([], np.int64),
    "0-d": np.int64(1),
}


@pytest.mark.parametrize("labels", BAD_LABELS)
def test_bad_labels_raise_with_the_first_bad_row_and_the_allowed_range(labels):
    targets, error, row = BAD_LABELS[labels]
    for method in (cl.SoftmaxLoss().forward, lambda scores, y: cl.SoftmaxLoss().check_targets(y, scores.shape)):
        with pytest.raises(error, match=rf"row {row}\b") as raised:
            method(SCORES, targets)
        assert "0 … 2" in str(raised.value)


@pytest.mark.parametrize("labels", BAD_SHAPES)
def test_labels_of_another_shape_raise_with_both_shapes(labels):
    targets = BAD_SHAPES[labels]
    with pytest.raises(ValueError, match="SoftmaxLoss") as raised:
        cl.SoftmaxLoss().forward(SCORES, targets)
    assert str(np.shape(targets)) in str(raised.value)
    assert str(SCORES.shape) in str(raised.value)


def test_an_empty_list_of_labels_raises():
    with pytest.raises((TypeError, ValueError), match="0 … 2"):
        cl.SoftmaxLoss().forward(SCORES, [])


@pytest.mark.parametrize("shape", [(4,), (4, 3, 2), (), (0, 3)])
def test_scores_that_are_no_matrix_of_rows_raise(shape):
    with pytest.raises(ValueError, match=r"SoftmaxLoss|softmax_loss"):
        cl.SoftmaxLoss().forward(np.zeros(shape, np.float32), np.zeros(shape[:1], np.int64))


def test_backward_needs_a_forward_that_succeeded():
    loss = cl.SoftmaxLoss()
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()
    loss.forward(SCORES, [0, 1, 2, 0])
    with pytest.raises(ValueError, match="row 3"):
        loss.forward(SCORES, [0, 1, 2, 3])
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()
    loss.forward(SCORES, [0, 1, 2, 0])
    with pytest.raises(TypeError):
        loss.forward(SCORES.astype(np.float16), [0, 1, 2, 0])
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()


def test_backward_is_of_the_labels_that_forward_saw():
    loss, labels = cl.SoftmaxLoss(), np.array([0, 1, 2, 0])
    loss.forward(SCORES, labels)
    expected = loss.backward().copy()
    labels[1] = 3
    assert_same_bits(loss.backward(), expected)


def test_probabilities_are_the_softmax_and_survive_backward():
    loss = cl.SoftmaxLoss()
    assert loss.probabilities is None
    loss.forward(SCORES, [0, 1, 2, 0])
    loss.backward()
    assert_close(loss.probabilities, reference.softmax(SCORES), np.float32)


def test_probabilities_stay_with_the_instance_that_ran():
    loss = cl.SoftmaxLoss()
    loss.forward(SCORES, [0, 1, 2, 0])
    kept, values = loss.probabilities, loss.probabilities.copy()
    loss(cl.Tensor(SCORES * 2), [0, 1, 2, 0])
    assert loss.probabilities is kept
    loss.forward(SCORES * 2, [0, 1, 2, 0])
    assert_same_bits(kept, values)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i4"])
def test_labels_are_integers_of_any_width(dtype):
    expected = cl.SoftmaxLoss().forward(SCORES, [0, 1, 2, 0])
    assert_same_bits(cl.SoftmaxLoss().forward(SCORES, np.array([0, 1, 2, 0], dtype)), expected)


def test_the_incoming_gradient_scales_the_losss():
    loss = cl.SoftmaxLoss()
    loss.forward(SCORES, [0, 1, 2, 0])
    assert_close(loss.backward(-2.5), reference.softmax_loss(SCORES, [0, 1, 2, 0])[1](-2.5)[0], np.float32)
    with pytest.raises(ValueError, match=r"\(2,\)"):
        loss.backward(np.ones(2))
    for dy in (None, "1", 1j):
        with pytest.raises(TypeError, match=r"SoftmaxLoss\(\).backward"):
            loss.backward(dy)
