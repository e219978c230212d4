"""Tensor: its data, dtype and attributes."""

import math
import operator
import re
from copy import copy as shallow_copy

import numpy as np
import pytest

import caffelite as cl
from tests.core.tensors import leaf
from tests.reference import LAYOUTS, WIDE, assert_same_bits, odd_array, plain_copy

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


@pytest.mark.parametrize("data", [2, 2.5, True, [1, 2], [1.5, 2], [[True], [False]], (1, 2), range(3), []])
def test_pythons_numbers_and_lists_become_float32(data):
    t = cl.Tensor(data)
    assert t.dtype == np.float32
    assert_same_bits(t.data, np.asarray(data, np.float32))


@pytest.mark.parametrize(
    "dtype", [*("bool", "int8", "int16", "int32", "int64", "float16", ">i4", ">f2"), "uint8", "uint64"]
)
def test_integers_bools_and_float16_become_float32(dtype):
    for data in (odd_array(dtype, (2, 3)), odd_array(dtype, ()), odd_array(dtype, ())[()]):
        t = cl.Tensor(data)
        assert t.dtype == np.float32
        assert (t.data == 1).all()


@both_dtypes
def test_float32_and_float64_arrays_and_scalars_keep_their_dtype(dtype):
    for data in (np.ones(3, dtype), np.ones((), dtype), dtype(1), np.ones(0, dtype)):
        assert cl.Tensor(data).dtype == dtype
        assert cl.Tensor(data).data.dtype.isnative
        assert cl.Tensor(data.astype(np.dtype(dtype).newbyteorder())).data.dtype == dtype


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype(WIDE).name,
        "complex64",
        "complex128",
        "object",
        "S3",
        "U3",
        "datetime64[s]",
        "timedelta64[s]",
        "V4",
        "i4,f4",
    ],
)
def test_a_dtype_that_is_not_real_or_beyond_64_bits_is_a_type_error(dtype):
    for data in (odd_array(dtype, (2,)), odd_array(dtype, ()), odd_array(dtype, (2,)).tolist()[0]):
        if isinstance(data, int | float | tuple):  # the same as from tolist
            continue
        with pytest.raises(TypeError, match="Tensor"):
            cl.Tensor(data)
        with pytest.raises(TypeError, match="Tensor"):
            cl.Tensor(data, dtype=np.float64)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, "object, None"),
        ([1, None], "object, None at [1]"),
        (2**70, f"object, {2**70}"),
        (np.array([[1.5, True], [2, "word"]], object), "object, 'word' at [1, 1]"),
        (
            np.array([1.5, True, np.int8(2)], object),
            "numbers as Python objects; np.array(…, np.float32) makes",
        ),
    ],
)
def test_objects_that_raise_are_shown_and_where(data, shown):
    with pytest.raises(TypeError, match=re.escape(f"got {shown}")):
        cl.Tensor(data)


@pytest.mark.parametrize("data", [None, "1.0", b"1", 1j, [None], ["a"], object(), {}, [2**70]])
def test_other_objects_are_type_errors(data):
    with pytest.raises(TypeError, match="Tensor"):
        cl.Tensor(data)


def test_subclasses_of_arrays_are_taken_as_plain_arrays(tmp_path):
    class Matrix(np.ndarray):
        """As np.matrix, of two axes whatever happens."""

        def reshape(self, *shape):
            return super().reshape(1, -1)

    for dtype in (np.float32, np.float64, np.int64):
        t = cl.Tensor(np.arange(4, dtype=dtype).reshape(2, 2).view(Matrix))
        assert type(t.data) is np.ndarray
        assert t.reshape(4).shape == (4,)
    on_disk = np.memmap(tmp_path / "numbers", np.float32, "w+", shape=3)
    t = cl.Tensor(on_disk)
    assert type(t.data) is np.ndarray
    assert np.shares_memory(t.data, on_disk)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_masked_element_is_not_taken_for_a_number(dtype):
    masked = np.ma.masked_array(np.arange(3, dtype=dtype), [False, True, False])
    t = leaf([0, 0, 0])
    for use in (cl.Tensor, t.add_grad, lambda a: t + a, lambda a: setattr(t, "data", a)):
        with pytest.raises(ValueError, match="masked elements"):
            use(masked)
    assert cl.Tensor(masked.filled(7)).data.tolist() == [0, 7, 2]
    assert cl.Tensor(np.ma.masked_array(masked.data)).data.tolist() == [0, 1, 2]


@pytest.mark.parametrize("number", [1e300, -1e300])
def test_a_number_beyond_float32_is_infinite_without_a_warning(number):
    expected = math.copysign(math.inf, number)
    assert (cl.Tensor([0.0]) + number).item() == expected
    assert cl.Tensor(number).item() == expected
    assert cl.Tensor([number]).item() == expected
    assert cl.Tensor(np.array(number), dtype=np.float32).item() == expected


def test_ragged_lists_raise():
    with pytest.raises((TypeError, ValueError)):
        cl.Tensor([[1, 2], [3]])


@both_dtypes
def test_a_dtype_may_be_asked_for(dtype):
    for data in ([1, 2], np.ones(2, np.float32), np.ones(2), np.ones(2, int)):
        assert cl.Tensor(data, dtype=dtype).dtype == dtype


@pytest.mark.parametrize("dtype", [np.int64, np.float16, WIDE, np.complex64, bool, object, str])
def test_no_other_dtype_may_be_asked_for(dtype):
    with pytest.raises(TypeError, match="float32 or float64"):
        cl.Tensor([1.0], dtype=dtype)


def test_an_array_is_shared_unless_a_gradient_is_required():
    a = np.ones(3)
    assert cl.Tensor(a).data is a
    assert cl.Tensor(a).numpy() is a
    t = leaf(a)
    t.data = [5, 6, 7]
    assert (a == 1).all()


def test_asking_for_a_gradient_later_copies_too():
    a = np.ones(3)
    t = cl.Tensor(a)
    t.requires_grad = True
    t.data = [5, 6, 7]
    assert (a == 1).all()
    kept = t.data
    t.requires_grad = False
    t.requires_grad = True
    assert t.data is kept


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@both_dtypes
def test_odd_layouts_hold_their_plain_copys_values(layout, dtype):
    odd = layout(np.arange(6.0).reshape(2, 3).astype(dtype))
    for t in (cl.Tensor(odd), leaf(odd)):
        assert t.dtype == dtype
        assert_same_bits(t.data, plain_copy(odd))
    t.data = np.zeros((2, 3))
    assert_same_bits(odd, layout(np.arange(6.0).reshape(2, 3).astype(dtype)))


def test_attributes():
    t = cl.Tensor(np.zeros((2, 3)), name="zeros")
    assert (t.shape, t.ndim, t.size, t.dtype, t.name) == ((2, 3), 2, 6, np.float64, "zeros")
    assert not t.requires_grad
    assert t.grad is None
    assert t.T.shape == (3, 2)
    assert cl.Tensor(np.zeros((2, 3, 4))).T.shape == (4, 3, 2)
    assert len(t) == 2
    with pytest.raises(TypeError):
        len(cl.Tensor(1.0))


def test_assigning_to_data_copies_into_place():
    t = leaf([1.0, 2.0])
    memory, values = t.data, np.array([3.0, 4.0])
    t.data = values
    assert t.data is memory
    assert t.data.tolist() == [3, 4]
    t.data = cl.Tensor([5, 6])
    assert t.data.tolist() == [5, 6]
    assert values.tolist() == [3, 4]


@pytest.mark.parametrize("values", [[1.0], [[1.0, 2.0]], 1.0, [1.0, 2.0, 3.0]])
def test_assigning_data_of_another_shape_raises_with_both_shapes(values):
    t = leaf([1.0, 2.0], name="w")
    with pytest.raises(ValueError, match=r"w \(2,\)") as raised:
        t.data = values
    assert str(np.shape(values)) in str(raised.value).replace("(2,)", "")
    assert t.data.tolist() == [1, 2]


def test_assigning_data_other_than_numbers_raises():
    t = leaf([1.0, 2.0])
    for values in (["a", "b"], [1j, 2], [None, 1]):
        with pytest.raises(TypeError):
            t.data = values
    assert t.data.tolist() == [1, 2]


def test_numpy_reads_a_tensor_as_its_array():
    t = cl.Tensor(np.arange(3.0))
    assert np.asarray(t) is t.data
    assert np.asarray(t, np.float32).dtype == np.float32
    copy = np.array(t)
    assert copy is not t.data
    assert copy.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="copy"):
        np.array(t, dtype=np.float32, copy=False)


def test_float_and_item_are_of_a_single_element():
    for t in (cl.Tensor(2.5), cl.Tensor([2.5]), cl.Tensor([[2.5]])):
        assert float(t) == 2.5
        assert type(t.item()) is float
        assert t.item() == 2.5
    for t in (cl.Tensor([1.0, 2.0]), cl.Tensor([])):
        with pytest.raises((TypeError, ValueError)):
            float(t)
        with pytest.raises(ValueError, match="size"):
            t.item()


def test_comparisons_are_plain_boolean_arrays():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])
    for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        expected = compare(a, b)
        for left, right in [(cl.Tensor(a), cl.Tensor(b)), (cl.Tensor(a), b), (a, cl.Tensor(b))]:
            result = compare(left, right)
            assert type(result) is np.ndarray
            assert result.dtype == bool
            assert result.tolist() == expected.tolist()
        assert compare(leaf(a), 2).tolist() == expected.tolist()
        assert compare(2, leaf(a)).tolist() == compare(b, a).tolist()


def test_tensors_are_keys():
    a, b = cl.Tensor([1.0]), cl.Tensor([1.0])
    assert hash(a) == hash(a)
    assert len({a, b, a}) == 2
    assert {a: 1, b: 2}[b] == 2


def test_reprs_are_short():
    assert repr(cl.Tensor([1.0, 2.5])) == "Tensor([1. , 2.5])"
    assert repr(leaf([1.0], name="w")) == "Tensor([1.], requires_grad=True, name='w')"
    assert "float64" in repr(cl.Tensor(np.ones(2)))
    assert "Add" in repr(leaf([1.0]) + 1)
    big = repr(cl.Tensor(np.zeros((1000, 1000))))
    assert len(big) < 400
    assert "(1000, 1000)" in big
    y = leaf([1.0]) + 1
    y.backward()
    assert repr(y)


def test_a_copy_is_a_new_leaf():
    t = leaf([1.0, 2.0], name="w")
    (t * t).sum().backward()
    copy = t.copy()
    assert copy.requires_grad
    assert copy.name == "w"
    assert copy.grad is None
    copy.data = [5, 6]
    assert t.data.tolist() == [1, 2]
    y = t + 1
    assert not (y.copy() * 1 + 0).inputs[0].inputs[0].inputs
    (y.copy() * 2).sum().backward()
    assert t.grad.tolist() == [2, 4]
    plain = cl.Tensor([1.0])
    assert not plain.copy().requires_grad
    assert not np.shares_memory(plain.copy().data, plain.data)


def test_pythons_shallow_copy_of_a_tensor_is_its_copy():
    t = leaf([1.0, 2.0], name="w")
    t.add_grad([1, 1])
    other = shallow_copy(t)
    assert (other.requires_grad, other.name, other.grad) == (True, "w", None)
    other.add_grad([5, 5])
    other.data = [7, 7]
    assert t.grad.tolist() == [1, 1]
    assert t.data.tolist() == [1, 2]


def test_a_detached_tensor_shares_memory_and_no_graph():
    t = leaf([1.0, 2.0])
    y = t * 2
    d = y.detach()
    assert d.data is y.data
    assert not d.requires_grad
    ((d * y).sum()).backward()
    assert t.grad.tolist() == [4, 8]


def test_a_tensor_is_a_sequence_of_its_rows():
    t = leaf([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert len(t) == 3
    assert [row.data.tolist() for row in t] == t.data.tolist()
    first, *_, last = t
    (first * last).sum().backward()
    assert t.grad.tolist() == [[5, 6], [0, 0], [1, 2]]
    for empty in (cl.Tensor(np.ones((0, 3))), cl.Tensor([])):
        assert list(empty) == []
    for raises in (iter, len):
        with pytest.raises(TypeError):
            raises(cl.Tensor(1.0))


def test_nothing_that_numpy_does_to_a_tensor_is_silent():
    """A ufunc would lose the graph."""
    for ufunc in (np.exp, np.abs):
        with pytest.raises(TypeError):
            ufunc(leaf([1.0]))
    array = np.ones(2, np.float32)
    with pytest.raises(TypeError):
        np.add(array, leaf([1.0, 2.0]))
    with pytest.raises(TypeError):
        array += leaf([1.0, 2.0])
