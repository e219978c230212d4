"""Which rows of a batch are computed here."""

import numpy as np
import pytest

import caffelite as cl
from caffelite.core.shard import WHOLE_BATCH, PartialShard, current_shard, use_shard
from caffelite.distributed.mpi import Communicator, RankShard


class Third(Communicator):
    """Rank 2 of 3, the others of which have the same."""

    rank, size = 2, 3

    def all_reduce_in_place(self, array):
        array *= self.size

    def start_all_reduce(self, array):
        raise NotImplementedError

    def all_gather(self, array):
        return np.stack([array] * self.size)

    broadcast_object = all_gather_object = training_context = start_all_reduce


def test_one_process_computes_all_rows():
    rows, array = current_shard(), np.arange(3.0)
    assert rows is WHOLE_BATCH
    assert (rows.is_whole, rows.is_counted, rows.batch_count(12), rows.offset(12)) == (True, True, 12, 0)
    np.testing.assert_array_equal(rows.all_reduce(array), array)
    np.testing.assert_array_equal(rows.all_gather(array), [array])


def test_a_rank_computes_its_part_of_a_batch_inside_a_step_only():
    part = RankShard(Third(), 10)
    with use_shard(part):
        assert current_shard() is part
    assert current_shard() is WHOLE_BATCH
    assert (part.slice, part.is_counted, part.is_whole) == (slice(6, 10), True, False)
    assert (part.batch_count(8), part.offset(8)) == (20, 12)  # two numbers a row
    np.testing.assert_array_equal(part.all_reduce(np.ones(2)), [3, 3])
    assert part.all_gather(np.ones(2)).shape == (3, 2)
    with pytest.raises(ValueError, match="for each of the 4 rows here, got 7"):
        part.batch_count(7)


def test_a_rank_without_rows_computes_one_that_counts_nowhere():
    sizes = [[(part.slice, part.is_counted) for part in [RankShard(Third(), rows)]] for rows in (1, 2)]
    assert sizes == [[(slice(0, 1), True)], [(slice(1, 2), True)]]

    class First(Third):
        rank = 0

    part = RankShard(First(), 2)
    assert (part.slice, part.is_counted) == (slice(0, 1), False)


def test_a_layer_that_needs_all_rows_of_a_batch_asks_for_them():
    """Three ranks with the same rows have the moments of one, and the running variance of three times as many."""
    x = np.random.default_rng(0).normal(size=(4, 2))
    alone, one_of_three = (cl.Model([cl.BatchNorm(2)], dtype=np.float64).functions[0] for _ in range(2))
    y = alone.forward(x)
    dx = alone.backward(y)
    with use_shard(RankShard(Third(), 12)):
        np.testing.assert_allclose(one_of_three.forward(x), y, rtol=1e-12)
        np.testing.assert_allclose(one_of_three.backward(y), dx, atol=1e-12)
    np.testing.assert_allclose(one_of_three.mean, alone.mean, rtol=1e-12)
    np.testing.assert_allclose(one_of_three.variance - 0.9, (alone.variance - 0.9) * (12 / 11) / (4 / 3), rtol=1e-9)


def test_rows_of_others_may_have_all_the_weight():
    loss, scores = cl.SoftmaxLoss(), np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="no mean"):
        loss.forward(scores, [0, 1], [0, 0])
    with use_shard(RankShard(Third(), 6)):
        assert loss.forward(scores, [0, 1], [0, 0]) == 0
        assert not loss.backward().any()


def test_rows_are_some_or_all():
    with pytest.raises(TypeError, match="abstract"):
        PartialShard(0, 1, 2)
