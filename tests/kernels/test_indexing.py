"""Flat indices, and the gradients of what was taken by an index."""

import numpy as np
import pytest

from caffelite import _kernels as kernels
from tests import reference
from tests.kernels.arguments import refuse, uniform
from tests.reference import assert_same_bits

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


@pytest.mark.parametrize("kind", ["i1", "i8", "u2", ">i4"])
def test_ravel_index_is_numpys_for_indices_from_either_end(kind):
    rng, lengths = np.random.default_rng(0), (4, 3, 70)
    shapes = [(5, 1, 2), (1,), (7, 1)]
    indices = [
        rng.integers(-n if kind[-2] == "i" else 0, n, s).astype(kind) for n, s in zip(lengths, shapes, strict=True)
    ]
    expected = np.ravel_multi_index([np.where(i < 0, i + n, i) for i, n in zip(indices, lengths, strict=True)], lengths)
    places = kernels.ravel_index(lengths, *indices)
    assert_same_bits(places, expected)
    assert_same_bits(kernels.ravel_index(lengths, *[reference.strided_view(i) for i in indices]), expected)
    assert kernels.ravel_index((3,), -1) == 2


def test_ravel_index_takes_more_axes_than_a_call_has():
    index = np.arange(64).reshape(2, 2, 2, 2, 2, 2).transpose(5, 3, 1, 4, 2, 0)
    assert_same_bits(kernels.ravel_index((3, 64), index[..., :1] % 3, index), index[..., :1] % 3 * 64 + index)


def test_ravel_index_takes_every_place_of_an_axis_and_lists_of_many_axes():
    index, lengths = np.array([[1, 0, 2], [2, 2, 1]]), (2, 4, 3)
    expected = np.ravel_multi_index((np.arange(2)[:, None, None], index[:, :, None], np.arange(3)), lengths)
    assert_same_bits(kernels.ravel_index(lengths, None, index[:, :, None], None), expected)
    odd = np.arange(96).reshape(2, 2, 2, 2, 2, 3)[..., ::2].transpose(5, 3, 1, 4, 2, 0)
    expected = np.arange(2).reshape(2, 1, 1, 1, 1, 1) * 96 + odd
    places = np.arange(2).reshape(2, 1, 1, 1, 1, 1).tolist()
    assert_same_bits(kernels.ravel_index((2, 96), places, odd), expected)


def test_ravel_index_refuses_negative_indices_that_do_not_count_from_the_end():
    assert kernels.ravel_index((3, 4), np.array([2]), 1, wraps=False) == 9
    for indices in ((np.array([2, -1]), 0), (0, -1)):
        with pytest.raises(IndexError, match="index -1 is out of bounds"):
            kernels.ravel_index((3, 4), *indices, wraps=False)
    with pytest.raises(ArithmeticError, match=r"\[2, 3\]"):
        kernels.ravel_index((3,), np.array([2, 3]), on_stop=refuse)


@pytest.mark.parametrize("bad", [4, -5, 2**62, -(2**63)])
def test_ravel_index_names_the_index_that_is_out_of_bounds(bad):
    with pytest.raises(IndexError, match=f"{bad} is out of bounds.* 4"):
        kernels.ravel_index((3, 4), np.array([0, 1, 2]), np.array([3, bad, 9]))
    with pytest.raises(IndexError, match=r"\(3,\).*\(2,\)"):
        kernels.ravel_index((3, 4), np.array([0, 1, 2]), np.array([3, 0]))
    for indices in ([np.array([1]), np.array([2])], []):
        with pytest.raises(ValueError, match=f"{len(indices)} indices"):
            kernels.ravel_index((5,), *indices)


@both_dtypes
@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 70), (9, 2, 3), (9, 0), (0, 3)])
def test_take_grad_adds_up_what_was_taken_repeatedly(shape, dtype):
    dy, order = uniform(*shape, dtype=dtype), np.random.default_rng(0).integers(0, 4, shape[0])
    expected = np.zeros((6, *shape[1:]), dtype)
    np.add.at(expected, order, dy)
    assert_same_bits(kernels.take_grad(dy, order, 6), expected)


@pytest.mark.parametrize("bad", [-1, 7, 2**62, -(2**63)])
def test_take_grad_refuses_rows_that_are_not_there(bad):
    with pytest.raises(IndexError, match=f"{bad} at 1.* 7 rows"):
        kernels.take_grad(np.ones((3, 2)), np.array([0, bad, 3]), 7)


def test_extreme_grad_refuses_places_that_are_not_there_and_other_shapes():
    dy = np.ones(2, np.float32)
    for place in (-1, 3, 2**62, -(2**63)):
        with pytest.raises(IndexError, match="extreme_grad"):
            kernels.extreme_grad(dy, np.array([0, place]), (3, 2), 0)
    for shape in ((3,), (3, 3), (2, 2, 2), (0,)):
        with pytest.raises(ValueError, match=r"\(2,\)"):
            kernels.extreme_grad(dy, np.array([0, 1]), shape, 0)
