"""An output that overlaps an operand."""

import numpy as np
import pytest

from caffelite import _kernels as kernels
from caffelite.program.recording import Recording
from tests.kernels.arguments import uniform
from tests.reference import assert_same_bits

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
OVERLAPS = {
    "the same": (np.s_[:, :], lambda v: v),
    "reversed": (np.s_[:, :], lambda v: v[::-1]),
    "transposed": (np.s_[:, :], lambda v: v.T),
    "shifted up": (np.s_[1:], lambda v: v[:-1]),
    "shifted down": (np.s_[:-1], lambda v: v[1:]),
    "interleaved": (np.s_[:, 1:7:2], lambda v: v[:, 0:6:2]),
    "a row of it": (np.s_[:, :], lambda v: v[3]),
    "a column of it": (np.s_[:, :], lambda v: v[:, 3:4]),
}


@pytest.mark.parametrize("name", OVERLAPS)
@both_dtypes
def test_an_output_that_overlaps_an_operand_is_as_with_a_copy_of_it(name, dtype):
    part, of = OVERLAPS[name]
    for kernel in (
        lambda x, out: kernels.copy(x, out),
        lambda x, out: kernels.exp(x, out),
        lambda x, out: kernels.subtract(out, x, out),
        lambda x, out: kernels.divide(x, out, out),
        lambda x, out: kernels.multiply(x, x, out),
    ):
        memory = uniform(8, 8, dtype=dtype)
        apart = memory.copy()
        kernel(of(memory), memory[part])
        kernel(of(apart).copy(), apart[part])
        assert_same_bits(memory, apart)


def test_an_operand_of_many_axes_may_overlap_the_output():
    memory = uniform(64).reshape([2] * 6)
    expected = memory.transpose(5, 3, 1, 4, 2, 0).copy()
    kernels.copy(memory.transpose(5, 3, 1, 4, 2, 0), memory)
    assert_same_bits(memory, expected)


def test_the_copy_of_an_operand_that_overlaps_the_output_is_recorded():
    memory = uniform(6)
    before = memory.copy()
    with Recording() as recording:
        kernels.copy(memory[::-1], memory)
    kernels.Replay(recording.entries).run()
    assert_same_bits(memory, before)
    with Recording() as recording:
        kernels.add(memory, uniform(6), memory)
    assert len(recording.entries) == 1


def test_take_and_matmul_refuse_to_write_into_an_operand():
    rows, order = uniform(4, 4), np.arange(4)
    for call in [
        lambda: kernels.take(rows, order, rows),
        lambda: kernels.take(order, order[:3], order[1:]),
        lambda: kernels.matmul(rows, rows, rows),
    ]:
        with pytest.raises(ValueError, match="into one of its operands"):
            call()


def test_an_operand_without_elements_overlaps_nothing():
    memory = np.ones(8, np.float32)
    kernels.matmul(memory[4:4].reshape(2, 0), np.ones((0, 2), np.float32), memory[:4].reshape(2, 2))
    assert memory.tolist() == [0] * 4 + [1] * 4
