"""Which rows of a batch are computed here."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.core.shard import ALL, SomeRows, computing, rows_here
from caffelite.distributed.mpi import Ranks, RowsOfRank


class Third(Ranks):
    """Rank 2 of 3, the others of which have the same."""

    rank, size = 2, 3

    def add_up(self, array):
        array *= self.size

    def begin_to_add_up(self, array):
        raise NotImplementedError

    def gathered(self, array):
        return np.stack([array] * self.size)

    of_first = of_each = entered = begin_to_add_up


def test_one_process_computes_all_rows():
    rows, array = rows_here(), np.arange(3.0)
    assert rows is ALL
    assert (rows.are_all, rows.counted, rows.in_batch(12), rows.before(12)) == (True, True, 12, 0)
    np.testing.assert_array_equal(rows.total(array), array)
    np.testing.assert_array_equal(rows.gathered(array), [array])


def test_a_rank_computes_its_part_of_a_batch_inside_a_step_only():
    part = RowsOfRank(Third(), 10)
    with computing(part):
        assert rows_here() is part
    assert rows_here() is ALL
    assert (part.slice, part.counted, part.are_all) == (slice(6, 10), True, False)
    assert (part.in_batch(8), part.before(8)) == (20, 12)  # two numbers a row
    np.testing.assert_array_equal(part.total(np.ones(2)), [3, 3])
    assert part.gathered(np.ones(2)).shape == (3, 2)
    with pytest.raises(ValueError, match="for each of the 4 rows here, got 7"):
        part.in_batch(7)


def test_a_rank_without_rows_computes_one_that_counts_nowhere():
    sizes = [[(part.slice, part.counted) for part in [RowsOfRank(Third(), rows)]] for rows in (1, 2)]
    assert sizes == [[(slice(0, 1), True)], [(slice(1, 2), True)]]

    class First(Third):
        rank = 0

    part = RowsOfRank(First(), 2)
    assert (part.slice, part.counted) == (slice(0, 1), False)


def test_a_layer_that_needs_all_rows_of_a_batch_asks_for_them():
    """Three ranks with the same rows have the moments of one, and the running variance of three times as many."""
    x = np.random.default_rng(0).normal(size=(4, 2))
    alone, one_of_three = (cl.Model([cl.BatchNorm(2)], dtype=np.float64).functions[0] for _ in range(2))
    y = alone.forward(x)
    dx = alone.backward(y)
    with computing(RowsOfRank(Third(), 12)):
        np.testing.assert_allclose(one_of_three.forward(x), y, rtol=1e-12)
        np.testing.assert_allclose(one_of_three.backward(y), dx, atol=1e-12)
    np.testing.assert_allclose(one_of_three.mean, alone.mean, rtol=1e-12)
    np.testing.assert_allclose(one_of_three.variance - 0.9, (alone.variance - 0.9) * (12 / 11) / (4 / 3), rtol=1e-9)


def test_rows_of_others_may_have_all_the_weight():
    loss, scores = cl.SoftmaxLoss(), np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="no mean"):
        loss.forward(scores, [0, 1], [0, 0])
    with computing(RowsOfRank(Third(), 6)):
        assert loss.forward(scores, [0, 1], [0, 0]) == 0
        assert not loss.backward().any()


def test_rows_are_some_or_all():
    with pytest.raises(TypeError, match="abstract"):
        SomeRows(0, 1, 2)
