"""The softmax loss, its labels, and how right outputs are counted."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from caffelite import _kernels as kernels
from tests import reference
from tests.kernels.arguments import cursor_at, uniform
from tests.reference import assert_close, assert_same_bits

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


@both_dtypes
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (64, 10), (3, 1000)])
def test_softmax_loss_and_its_gradient_are_the_judges(shape, dtype):
    scores, labels = 5 * uniform(*shape, dtype=dtype), np.random.default_rng(0).integers(0, shape[1], shape[0])
    rows, p = kernels.softmax_loss(scores, labels)
    value = kernels.sum(rows, scale=1 / rows.size)
    truth, backward = reference.softmax_loss(scores, labels)
    assert_close(value, truth, dtype)
    assert_close(p, reference.softmax(scores), dtype)
    gradient = kernels.softmax_loss_grad(p, labels, np.array(0.3, dtype))
    assert_close(gradient, backward(np.float64(np.array(0.3, dtype)))[0], dtype)


@both_dtypes
@given(st.integers(1, 200), st.integers(1, 6), st.floats(0, 30), st.integers(0, 2**32))
def test_few_classes_are_the_judges_and_have_the_bits_of_more_classes(dtype, n, classes, width, seed):
    rng = np.random.default_rng(seed)
    scores, labels = rng.uniform(-width, width, (n, classes)).astype(dtype), rng.integers(0, classes, n)
    rows, p = kernels.softmax_loss(scores, labels)
    assert_close(p, reference.softmax(scores), dtype)
    truth, _ = reference.softmax_loss(scores, labels)
    assert_close(kernels.sum(rows, scale=1 / n), truth, dtype, scale=1 + width)
    more = np.full((n, 7), -np.finfo(dtype).max / 2, dtype)
    more[:, :classes] = scores
    rows_of_more, p_of_more = kernels.softmax_loss(more, labels)
    assert_same_bits(rows, rows_of_more)
    assert_same_bits(p, np.ascontiguousarray(p_of_more[:, :classes]))
    i = rng.integers(n)
    assert_same_bits(kernels.softmax_loss(scores[i : i + 1], labels[i : i + 1])[1], p[i : i + 1])


@pytest.mark.parametrize("bad", [-1, 3, 10, 2**62, -(2**63)])
def test_check_labels_finds_the_first_bad_row(bad):
    labels = np.array([0, 1, 2, bad, 0, bad])
    assert kernels.check_labels(labels, 3) == 3
    assert kernels.check_labels(labels[:3], 3) == -1
    assert kernels.check_labels(labels[3:][::-1], 3) == 0
    assert kernels.check_labels(labels[:0], 3) == -1


def test_equal_outputs_count_as_numpys_argmax_does():
    outputs = np.array([[1, 1, 0], [0, 1, 1], [-np.inf] * 3, [0, -0.0, 0]], np.float32)
    for label in range(3):
        sums, labels = np.zeros((2, 2)), np.full(len(outputs), label)
        kernels.add_correct(cursor_at(sums=sums)[0], 1, outputs, labels)
        assert sums[1].tolist() == [(outputs.argmax(axis=1) == label).sum(), 4]


@pytest.mark.parametrize("row", [[np.nan, 1, 2], [1, np.nan, 2], [2, 1, np.nan], [np.nan]])
def test_outputs_that_are_nan_are_not_counted_as_right_or_wrong(row):
    outputs, sums = np.array([row, [0] * len(row)], np.float32), np.zeros((1, 2))
    kernels.add_correct(cursor_at(sums=sums)[0], 0, outputs, np.array([0, 0]))
    assert np.isnan(sums[0, 0])
    sums = np.zeros((1, 2))
    kernels.add_correct(cursor_at(sums=sums)[0], 0, outputs, np.array([-1, 0]), -1)
    assert sums[0].tolist() == [1, 1]


@pytest.mark.parametrize(("threshold", "ones"), [(0.0, 3), (0.5, 1)])
def test_a_single_output_above_the_threshold_counts_as_class_1(threshold, ones):
    outputs = np.array([[2], [0], [-1], [0.5], [1e-30]], np.float32)
    for label, correct in ((0, 5 - ones), (1, ones), (2, 0)):
        sums = np.zeros((1, 2))
        kernels.add_correct(cursor_at(sums=sums)[0], 0, outputs, np.full(5, label), None, threshold)
        assert sums[0].tolist() == [correct, 5]


@pytest.mark.parametrize("label", [-1, 3, 2**62, -(2**63)])
def test_an_unchecked_label_out_of_range_is_an_index_error(label):
    scores, labels = np.zeros((4, 3), np.float32), np.array([0, 1, label, 2])
    with pytest.raises(IndexError, match="softmax_loss"):
        kernels.softmax_loss(scores, labels)
    with pytest.raises(IndexError, match="softmax_loss_grad"):
        kernels.softmax_loss_grad(scores, labels, np.ones((), np.float32))
