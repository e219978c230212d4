"""Shuffling rows and taking them."""

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests import reference
from tests.reference import assert_same_bits, odd_array


@pytest.mark.parametrize("n", [0, 1, 2, 3, 100, 10_000])
def test_shuffling_permutes(n):
    order, state = np.arange(n), np.arange(1, 5, dtype=np.uint64)
    kernels.shuffle(order, state)
    assert sorted(order) == list(range(n))
    assert n < 100 or (order != np.arange(n)).mean() > 0.9


def test_the_same_state_gives_the_same_order_and_moves_on():
    orders = []
    for _ in range(2):
        order, state = np.arange(50), np.arange(1, 5, dtype=np.uint64)
        kernels.shuffle(order, state)
        first = order.copy()
        kernels.shuffle(order, state)
        assert (order != first).any()
        orders.append(order)
    assert_same_bits(*orders)


def test_all_orders_are_equally_likely():
    counts, state = {}, np.random.default_rng(0).integers(0, 2**64, 4, np.uint64)
    for _ in range(24_000):
        order = np.arange(4)
        kernels.shuffle(order, state)
        key = order.tobytes()
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 24
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert 7.5 < chi_square < 49.7  # the middle 99.8 % for 23 degrees of freedom


def test_a_row_comes_to_every_place_equally_often():
    counts, state = np.zeros((37, 37)), np.random.default_rng(1).integers(0, 2**64, 4, np.uint64)
    for _ in range(3700):
        order = np.arange(37)
        kernels.shuffle(order, state)
        counts[order, np.arange(37)] += 1
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert 1140 < chi_square < 1458  # the middle 99.8 % for 36² degrees of freedom


@pytest.mark.parametrize("n", [1, 7, 40, 41])
def test_batches_have_rows_of_neighbouring_groups_in_their_order(n):
    rng = np.random.default_rng(n)
    shuffled, groups, state = rng.permutation(n), rng.integers(0, 5, n), np.arange(1, 5, dtype=np.uint64)
    by_group = shuffled[groups[shuffled].argsort(kind="stable")]
    full, orders = n // 4, set()
    batches = by_group[: 4 * full].reshape(full, 4)
    for _ in range(9):
        order = shuffled.copy()
        kernels.group_batches(order, state, groups, np.empty(n + 5, np.int64), 4, full)
        assert sorted(order[: 4 * full].reshape(full, 4).tolist()) == sorted(batches.tolist())
        np.testing.assert_array_equal(order[4 * full :], by_group[4 * full :])
        orders.add(order.tobytes())
    assert (len(orders) > 1) == (full > 1)


def test_rows_and_groups_that_are_not_there_raise_before_anything_changes():
    state, memory = np.arange(1, 5, dtype=np.uint64), np.empty(7, np.int64)
    for rows, groups in (([0, 1, 4], [0, 1, 2, 1]), ([0, -1, 2], [0, 1, 2, 1]), ([0, 1, 2], [0, 4, 1, 1])):
        order = np.array(rows)
        with pytest.raises(IndexError):
            kernels.group_batches(order, state, np.array(groups), memory, 1, 3)
        assert order.tolist() == rows
    with pytest.raises(ValueError, match="4 batches of 1 of 3 rows in 4 groups"):
        kernels.group_batches(np.arange(3), state, np.zeros(3, np.int64), memory, 1, 4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "complex128", ">f4", "S5", "i1,f8"])
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 5), (7, 0)])
def test_take_copies_rows_of_any_dtype(dtype, shape):
    rows, order = odd_array(dtype, shape), np.array([6, 0, 0, 3])
    rows.view(np.uint8)[...] = np.random.default_rng(0).integers(0, 2, rows.view(np.uint8).shape)
    taken = kernels.take(rows, order)
    assert taken.dtype == rows.dtype
    assert taken.tobytes() == rows[order].tobytes()
    if rows.dtype.isnative:
        out = np.empty_like(taken)
        assert kernels.take(rows, reference.unaligned_view(order), out) is out
        assert out.tobytes() == taken.tobytes()
    assert kernels.take(rows, order[:0]).shape == (0, *shape[1:])


@pytest.mark.parametrize("bad", [-1, 7, 2**62, -(2**63)])
def test_take_refuses_rows_that_are_not_there(bad):
    out = np.full((3, 2), 5.0)
    with pytest.raises(IndexError, match=f"{bad} at 1.* 7 rows"):
        kernels.take(np.ones((7, 2)), np.array([0, bad, 3]), out)
    assert (out == 5).all()


@pytest.mark.usefixtures("restored_threads")
def test_no_thread_takes_a_row_if_another_one_refuses_its_rows():
    cl.set_num_threads(2)
    out, order = np.full((1000, 10_000), 5, np.float32), np.zeros(1000, np.int64)
    order[-1] = 7
    with pytest.raises(IndexError, match="7 at 999"):
        kernels.take(np.ones((7, 10_000), np.float32), order, out)
    assert (out == 5).all()
