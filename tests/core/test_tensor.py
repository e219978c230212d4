"""Tensor: data, operators, the graph and its walk, versions, modes."""

import gc
import math
import operator
import re
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from copy import copy as shallow_copy

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite import functions
from caffelite.core.recording import Recording
from tests.reference import LAYOUTS, assert_close, assert_same_bits, odd_array, plain_copy

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


def leaf(values, **options):
    return cl.Tensor(values, requires_grad=True, **options)


def elsewhere(function):
    """What a function returns in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=60)


class Swish(cl.Function):
    """Swish, y = x · sigmoid(x), as a user would write it."""

    def forward(self, x):
        self.x, self.s = x, 1 / (1 + np.exp(-x))
        return x * self.s

    def backward(self, dy):
        return dy * (self.s + self.x * self.s * (1 - self.s))


# ---- data ----


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
    ["longdouble", "complex64", "complex128", "object", "S3", "U3", "datetime64[s]", "timedelta64[s]", "V4", "i4,f4"],
)
def test_what_is_not_a_real_number_of_up_to_64_bits_is_a_type_error(dtype):
    for data in (odd_array(dtype, (2,)), odd_array(dtype, ()), odd_array(dtype, (2,)).tolist()[0]):
        if isinstance(data, int | float | tuple):  # what tolist makes of it
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
def test_objects_that_are_refused_are_shown_and_where(data, shown):
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
def test_what_is_masked_is_not_taken_for_a_number(dtype):
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


def test_ragged_lists_are_refused():
    with pytest.raises((TypeError, ValueError)):
        cl.Tensor([[1, 2], [3]])


@both_dtypes
def test_a_dtype_may_be_asked_for(dtype):
    for data in ([1, 2], np.ones(2, np.float32), np.ones(2), np.ones(2, int)):
        assert cl.Tensor(data, dtype=dtype).dtype == dtype


@pytest.mark.parametrize("dtype", [np.int64, np.float16, np.longdouble, np.complex64, bool, object, str])
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


def test_assigning_data_that_are_no_numbers_raises():
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


# ---- indexing, joining ----


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


def test_what_cannot_be_joined_raises():
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


def test_what_was_joined_gets_gradients_of_its_own():
    a, b = leaf([1.0, 2.0]), leaf([3.0])
    y = cl.concatenate([a, b, a])
    dy = np.arange(5.0)
    y.backward(dy)
    a.add_grad([10, 10])
    assert a.grad.tolist() == [13, 15]
    assert b.grad.tolist() == [2]
    assert dy.tolist() == [0, 1, 2, 3, 4]


# ---- operators ----

OPERATORS = {
    "+": (operator.add, lambda a, b: (1, 1)),
    "-": (operator.sub, lambda a, b: (1, -1)),
    "*": (operator.mul, lambda a, b: (b, a)),
    "/": (operator.truediv, lambda a, b: (1 / b, -a / b**2)),
    "**": (operator.pow, lambda a, b: (b * a ** (b - 1), a**b * np.log(a))),
}
every_operator = pytest.mark.parametrize("symbol", OPERATORS)


def derivatives(symbol, a, b):
    """The gradients of Σ (a ∘ b) in float64, with a and b of one shape."""
    da, db = OPERATORS[symbol][1](a, b)
    return np.broadcast_to(da, a.shape), np.broadcast_to(db, b.shape)


@every_operator
@both_dtypes
def test_operators_have_numpys_values_and_true_gradients(symbol, dtype):
    a, b = np.array([1.5, 2.0, 0.5]), np.array([0.5, 3.0, 2.0])
    x, y = leaf(a, dtype=dtype), leaf(b, dtype=dtype)
    result = OPERATORS[symbol][0](x, y)
    assert_close(result.data, OPERATORS[symbol][0](a, b), dtype)
    result.sum().backward()
    da, db = derivatives(symbol, a, b)
    assert_close(x.grad, da, dtype)
    assert_close(y.grad, db, dtype)


@every_operator
@both_dtypes
@pytest.mark.parametrize(
    "other",
    [2, 2.0, True, np.float32(2), np.float64(2), np.int8(2), np.bool_(True), np.longdouble(2), [2, 2, 2], [1.5, 2, 3]],
    ids=lambda other: f"{type(other).__name__}",
)
def test_numbers_on_either_side_adapt(symbol, dtype, other):
    a, b = np.array([1.5, 2.0, 0.5]), np.broadcast_to(np.asarray(other, np.float64), (3,))
    apply = OPERATORS[symbol][0]
    x = leaf(a, dtype=dtype)
    y = apply(x, other)
    assert type(y) is cl.Tensor
    assert_close(y.data, apply(a, b), dtype)
    y.sum().backward()
    assert_close(x.grad, derivatives(symbol, a, b)[0], dtype)
    x.zero_grad()
    y = apply(other, x)
    assert type(y) is cl.Tensor
    assert_close(y.data, apply(b, a), dtype)
    y.sum().backward()
    assert_close(x.grad, derivatives(symbol, b, a)[1], dtype)


@every_operator
@both_dtypes
@pytest.mark.parametrize("kind", ["float", "int8", "int64", "uint16", "bool"])
def test_arrays_on_either_side_of_the_same_dtype_or_integers(symbol, dtype, kind):
    a = np.array([1.5, 2.0, 0.5])
    other = np.array([1, 1, 1]).astype(dtype if kind == "float" else kind)
    apply = OPERATORS[symbol][0]
    for left, right, x in [(t := leaf(a, dtype=dtype), other, t), (other, t := leaf(a, dtype=dtype), t)]:
        y = apply(left, right)
        assert type(y) is cl.Tensor
        assert_close(y.data, apply(np.ones(3), a) if left is other else apply(a, np.ones(3)), dtype)
        y.sum().backward()
        assert x.grad.shape == (3,)


@pytest.mark.parametrize("symbol", [*OPERATORS, "@"])
def test_float32_and_float64_tensors_do_not_mix_and_arrays_take_their_dtype(symbol):
    apply = operator.matmul if symbol == "@" else OPERATORS[symbol][0]
    a, b = np.ones((2, 2), np.float32), np.ones((2, 2))
    for left, right in [(cl.Tensor(a), cl.Tensor(b)), (cl.Tensor(b), cl.Tensor(a))]:
        with pytest.raises(TypeError, match="float32") as raised:
            apply(left, right)
        assert "float64" in str(raised.value)
    for array, other in [(a, b), (b, a)]:
        assert apply(cl.Tensor(array), other).dtype == apply(other, cl.Tensor(array)).dtype == array.dtype


@pytest.mark.parametrize("symbol", [*OPERATORS, "@"])
@pytest.mark.parametrize(
    "other",
    [
        *(None, "2", b"2", 1j, object(), ["a"], np.complex64(2), np.complex128(2), np.str_("2"), np.bytes_(b"2")),
        *(np.datetime64(1, "s"), np.timedelta64(1, "s"), np.void(b"2")),
        *(np.ones(2, complex), np.ones(2, object), np.ones(2, "U1"), np.ones(2, np.longdouble), np.ones(2, "m8[s]")),
    ],
    ids=lambda other: f"{getattr(other, 'dtype', type(other).__name__)}",
)
def test_operators_refuse_what_is_not_a_real_number(symbol, other):
    apply = operator.matmul if symbol == "@" else OPERATORS[symbol][0]
    with pytest.raises(TypeError):
        apply(cl.Tensor([1.0, 2.0]), other)
    with pytest.raises(TypeError):
        apply(other, cl.Tensor([1.0, 2.0]))


@every_operator
@given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), seed=st.integers(0, 2**32))
def test_gradients_of_broadcast_operands_are_summed_back(symbol, shapes, seed):
    rng = np.random.default_rng(seed)
    a, b = (np.asarray(rng.uniform(0.5, 2, shape)) for shape in shapes.input_shapes)
    x, y = leaf(a), leaf(b)
    OPERATORS[symbol][0](x, y).backward(np.ones(shapes.result_shape))
    da, db = derivatives(symbol, *[np.array(whole) for whole in np.broadcast_arrays(a, b)])
    for tensor, whole in ((x, da), (y, db)):
        expected = np.zeros(tensor.shape)
        index = np.broadcast_to(np.arange(tensor.size).reshape(tensor.shape), whole.shape)
        np.add.at(expected.reshape(-1), index, whole)
        assert_close(tensor.grad, expected, np.float64)


def test_shapes_that_dont_broadcast_raise_with_both():
    for symbol in OPERATORS:
        with pytest.raises(ValueError, match=r"\(2,\)") as raised:
            OPERATORS[symbol][0](cl.Tensor([1.0, 2.0]), cl.Tensor([1.0, 2.0, 3.0]))
        assert "(3,)" in str(raised.value)


def test_minus_x():
    x = leaf([1.0, -2.0])
    y = -x
    y.sum().backward()
    assert y.data.tolist() == [-1, 2]
    assert x.grad.tolist() == [-1, -1]


@pytest.mark.parametrize("shapes", [((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((1, 1), (1, 1))])
def test_matrix_products_with_tensors_and_arrays_on_either_side(shapes):
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape) for shape in shapes)
    x, y = leaf(a), leaf(b)
    dy = np.asarray(rng.uniform(-1, 1, (a @ b).shape))
    (x @ y).backward(dy)
    left, right = a.reshape(-1, a.shape[-1]), b.reshape(b.shape[0], -1)
    matrix = dy.reshape(len(left), -1)
    da, db = (matrix @ right.T).reshape(a.shape), (left.T @ matrix).reshape(b.shape)
    assert_close(x.grad, da, np.float64)
    assert_close(y.grad, db, np.float64)
    for left, right in [(leaf(a), b), (a, leaf(b)), (leaf(a), cl.Tensor(b)), (cl.Tensor(a), leaf(b))]:
        result = left @ right
        assert_close(result.data, a @ b, np.float64)
        result.backward(dy)
        own, expected = (right, db) if isinstance(right, cl.Tensor) and right.requires_grad else (left, da)
        assert_close(own.grad, expected, np.float64)


def test_matrices_that_dont_fit_raise_with_both_shapes():
    with pytest.raises(ValueError, match=r"\(2, 3\)") as raised:
        cl.Tensor(np.ones((2, 3))) @ np.ones((2, 4))
    assert "(2, 4)" in str(raised.value)


METHODS = {
    "sum": [(), (0,), (-1, True), ((0, 1),), (None, True)],
    "mean": [(), (1,), (0, True), ((0, 1),), (None, True)],
    "reshape": [(6,), (3, 2), ((3, 2),), ([3, -1],), (np.int64(6),)],
    "transpose": [(), (1, 0), ((1, 0),), (-1, 0)],
}


@pytest.mark.parametrize(("name", "arguments"), [(name, a) for name in METHODS for a in METHODS[name]], ids=str)
def test_methods_and_functions_do_what_numpys_do(name, arguments):
    a = np.random.default_rng(0).uniform(-1, 1, (2, 3))
    if name in ("sum", "mean") and len(arguments) > 1:
        expected = getattr(a, name)(arguments[0], keepdims=arguments[1])
    else:
        expected = getattr(a, name)(*arguments)
    for result in (getattr(leaf(a), name)(*arguments), getattr(cl, name)(leaf(a), *arguments)):
        assert_close(result.data, expected, np.float64)
    x = leaf(a)
    y = getattr(x, name)(*arguments)
    dy = np.asarray(np.random.default_rng(1).uniform(-1, 1, y.shape))
    y.backward(dy)
    if name in ("sum", "mean"):
        axis = arguments[0] if arguments else None
        kept = dy.reshape(a.sum(axis=axis, keepdims=True).shape)
        expected = np.broadcast_to(kept, a.shape) * (y.size / a.size if name == "mean" else 1)
    else:
        expected = getattr(dy, "reshape" if name == "reshape" else "transpose")(*[(2, 3)] * (name == "reshape"))
    assert_close(x.grad, expected, np.float64)


def test_keywords_of_the_reductions():
    t = cl.Tensor(np.ones((2, 3)))
    assert t.sum(axis=1, keepdims=True).shape == (2, 1)
    assert cl.mean(t, axis=0).shape == (3,)


def test_relu_and_matmul_are_methods_and_functions():
    a, b = cl.Tensor([[-1.0, 2.0]]), cl.Tensor([[1.0], [3.0]])
    assert a.relu().data.tolist() == cl.relu(a).data.tolist() == [[0, 2]]
    assert a.matmul(b).data.tolist() == cl.matmul(a, b).data.tolist() == [[5]]


def test_a_view_of_a_tensor_shares_its_memory():
    t = cl.Tensor(np.arange(6.0))
    assert np.shares_memory(t.reshape(2, 3).data, t.data)
    assert np.shares_memory(t.reshape(2, 3).T.data, t.data)


# ---- the walk back ----


def test_shared_inputs_add_up():
    x = leaf([3.0])
    (x * x + x).backward()
    assert x.grad.tolist() == [7]


@pytest.mark.parametrize(
    "expression",
    [
        lambda a, b: (a * 2) + (a + b),
        lambda a, b: (a + b) + (a * 2),
        lambda a, b: (b + a) + (a * 2),
        lambda a, b: (2 * a) + (b + a),
        lambda a, b: (a + b).reshape(1) + (a + a),
    ],
)
def test_one_input_of_several_operations_does_not_disturb_another(expression):
    """PureTorch's aliased gradient buffers made b's gradient 3 here."""
    a, b = leaf([1.0]), leaf([5.0])
    expression(a, b).backward()
    assert a.grad.tolist() == [3]
    assert b.grad.tolist() == [1]


def test_the_gradient_that_backward_is_given_is_left_alone():
    x, dy = leaf([1.0, 2.0]), np.array([1.0, 3.0], np.float32)
    (x + x + x).backward(dy)
    assert dy.tolist() == [1, 3]
    assert x.grad.tolist() == [3, 9]


def test_an_operation_on_the_same_tensor_twice():
    x = leaf([2.0, 3.0])
    (x + x).sum().backward()
    assert x.grad.tolist() == [2, 2]
    x.zero_grad()
    (x - x).sum().backward()
    assert x.grad.tolist() == [0, 0]
    x.zero_grad()
    (x / x).sum().backward()
    assert x.grad.tolist() == [0, 0]


def test_a_diamond_is_walked_once_on_each_side():
    x = leaf([2.0])
    y = x * x
    for _ in range(40):  # 2⁴⁰ paths
        y = y * 0.5 + y * 0.5
    y.backward()
    assert x.grad.tolist() == [4]


def test_a_function_may_be_applied_twice():
    relu, swish = cl.ReLU(), Swish()
    x = leaf([1.0, -1.0, 2.0])
    (relu(x) * 10 + relu(-x) + swish(x) - swish(x)).sum().backward()
    np.testing.assert_allclose(x.grad, [10, -1, 10], atol=1e-6)


def test_a_layer_applied_twice_adds_both_contributions():
    linear = cl.Linear(2, 2)
    a, b = np.array([[1, 2]], np.float32), np.array([[3, 5]], np.float32)
    (linear(a).sum() + 10 * linear(b).sum()).backward()
    assert linear.weight.grad.tolist() == [[31, 31], [52, 52]]
    assert linear.bias.grad.tolist() == [11, 11]


def test_a_loss_applied_twice_before_backward():
    loss, w = cl.SoftmaxLoss(), leaf(np.zeros((2, 3)))
    first = loss(w * 1.0, [0, 1])
    second = loss(w * 2.0, [2, 2])
    first.backward()
    one = np.full((2, 3), 1 / 6) - np.array([[0.5, 0, 0], [0, 0.5, 0]])
    assert_close(w.grad, one, np.float64)
    second.backward()
    assert_close(w.grad, one + 2 * (np.full((2, 3), 1 / 6) - np.array([[0, 0, 0.5]] * 2)), np.float64)


def test_gradients_add_up_over_calls_until_they_are_forgotten():
    x = leaf([1.0, 2.0])
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5, 5]
    x.zero_grad()
    assert x.grad is None
    (x * 4).sum().backward()
    assert x.grad.tolist() == [4, 4]


def test_the_first_contribution_overwrites_what_lies_in_the_memory():
    x, w = leaf([1.0, 2.0]), leaf([[1.0, 1.0], [1.0, 1.0]])
    for t in (x, w):
        t.add_grad(np.full(t.shape, np.nan))
        t.zero_grad()
    (x @ w).sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert w.grad.tolist() == [[1, 1], [2, 2]]


def test_add_grad_adds_a_copy():
    x, g = leaf([1.0, 2.0]), np.array([1.0, 1.0], np.float32)
    x.add_grad(g)
    x.add_grad(g)
    assert x.grad.tolist() == [2, 2]
    assert g.tolist() == [1, 1]
    x.add_grad([1, 2])
    assert x.grad.tolist() == [3, 4]
    with pytest.raises(ValueError, match=r"\(2,\)") as raised:
        x.add_grad(np.ones((3,)))
    assert "(3,)" in str(raised.value)
    with pytest.raises(TypeError):
        x.add_grad(np.array(["a", "b"]))
    assert x.grad.tolist() == [3, 4]


@pytest.mark.parametrize("view", [lambda a: a[::-1], lambda a: a.T, lambda a: a[:, ::-1].T], ids=["rows", "T", "both"])
def test_a_view_of_itself_is_assigned_or_added_as_its_copy_would_be(view):
    values = np.arange(9.0).reshape(3, 3)
    p = leaf(values)
    p.data = view(p.data)
    assert (p.data == view(values)).all()
    p.add_grad(values)
    p.add_grad(view(p.grad))
    assert (p.grad == values + view(values)).all()
    memory = np.arange(9.0)
    cl.Tensor(memory[2:8]).data = memory[1:7]
    assert memory.tolist() == [0, 1, 1, 2, 3, 4, 5, 6, 8]


def test_a_gradient_does_not_alias_the_one_that_backward_was_given():
    x, dy = leaf([1.0, 2.0]), np.array([1.0, 1.0], np.float32)
    x.reshape(2).backward(dy)
    x.add_grad(dy)
    assert dy.tolist() == [1, 1]
    dy[...] = 77
    assert x.grad.tolist() == [2, 2]


def test_leaves_do_not_share_one_gradient():
    a, b = leaf([1.0]), leaf([1.0])
    (a + b).backward()
    a.grad[...] = 77
    assert b.grad.tolist() == [1]


def test_backward_without_an_argument_needs_a_single_element():
    x = leaf([1.0, 2.0])
    with pytest.raises(ValueError, match=r"\(2,\)"):
        (x * 2).backward()
    for shape in [(), (1,), (1, 1)]:
        (x.sum().reshape(shape) * 1).backward()
    assert x.grad.tolist() == [3, 3]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 2), (2, 1)])
def test_backward_with_a_gradient_of_another_shape_raises_with_both(shape):
    y = leaf([1.0, 2.0]) * 2
    with pytest.raises(ValueError, match=r"\(2,\)") as raised:
        y.backward(np.ones(shape))
    assert str(shape) in str(raised.value).replace("(2,)", "")


def test_backward_takes_arrays_lists_and_tensors():
    for dy in (np.array([1.0, 2.0]), [1, 2], cl.Tensor([1.0, 2.0]), np.array([1, 2], ">f8")):
        x = leaf([1.0, 1.0])
        (x * 3).backward(dy)
        assert x.grad.tolist() == [3, 6]
        assert x.grad.dtype == np.float32


def test_a_second_backward_through_a_freed_graph_raises():
    x = leaf([1.0])
    y = x * 2
    y.backward()
    with pytest.raises(RuntimeError, match="second"):
        y.backward()
    h = x * 2
    first, second = h * h, h + 1
    first.backward()
    with pytest.raises(RuntimeError, match="second"):
        second.backward()


def test_a_refused_second_backward_leaves_gradients_alone():
    x, z = leaf([1.0]), leaf([1.0])
    h = x * 2
    h.backward()
    x.zero_grad()
    with pytest.raises(RuntimeError, match="second"):
        (z * 3 + h).backward()
    assert x.grad is None
    assert z.grad is None


def test_backward_without_a_graph_raises():
    with pytest.raises(RuntimeError, match="gradient"):
        cl.Tensor([1.0]).backward()
    with cl.no_grad():
        y = leaf([1.0]) * 2
    with pytest.raises(RuntimeError, match="gradient"):
        y.backward()


def test_only_leaves_that_require_it_get_a_gradient():
    x, constant = leaf([1.0]), cl.Tensor([2.0])
    h = x * constant
    (h + constant).backward()
    assert x.grad.tolist() == [2]
    assert constant.grad is None
    assert h.grad is None


def test_an_intermediate_keeps_its_gradient_when_asked():
    x = leaf([1.0, 2.0])
    h = x * 3
    h.retain_grad()
    (h * h).sum().backward()
    assert h.grad.tolist() == [6, 12]
    assert x.grad.tolist() == [18, 36]


def test_operations_on_plain_data_record_nothing():
    y = cl.Tensor([1.0]) * 2 + np.ones(1, np.float32)
    assert not y.requires_grad
    assert y.function is None
    assert y.inputs == ()


def test_an_empty_tensor_goes_back():
    x = leaf(np.zeros((0, 3)))
    ((x * 2).sum() + 1).backward()
    assert x.grad.shape == (0, 3)


def test_a_chain_of_20_000_operations_goes_back():
    x = leaf([1.0])
    y = x
    for _ in range(10_000):
        y = y * 1.0 + 0.0
    y.backward()
    assert x.grad.tolist() == [1]


def test_a_chain_of_20_000_operations_may_be_dropped_and_shown():
    y = leaf([1.0])
    for _ in range(20_000):
        y = -y
    assert "Negative" in repr(y)
    del y


def where_odd(a, b):
    return cl.where([True, False, True], a, b)


@pytest.mark.parametrize("with_gradient", [0, 1])
@pytest.mark.parametrize(
    "operation", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.matmul, where_odd]
)
def test_nothing_is_computed_for_an_operand_without_gradient(operation, with_gradient):
    rng = np.random.default_rng(0)

    def backward(*need):
        operands = [cl.Tensor(rng.uniform(1, 2, (3, 3)), requires_grad=needed) for needed in need]
        y = operation(*operands)
        with Recording() as recording:
            y.backward(np.ones((3, 3)))
        return operands, [entry.name for entry in recording.entries]

    operands, kernels_of_one = backward(with_gradient == 0, with_gradient == 1)
    _, kernels_of_both = backward(True, True)
    assert operands[with_gradient].grad is not None
    assert operands[1 - with_gradient].grad is None
    assert len(kernels_of_one) < len(kernels_of_both)


def test_the_first_layer_computes_no_gradient_of_the_data():
    linear, x = cl.Linear(3, 2), np.ones((4, 3), np.float32)
    y = linear(x)
    with Recording() as recording:
        y.backward(np.ones((4, 2), np.float32))
    assert [entry.name for entry in recording.entries].count("matmul") == 1
    linear.forward(x)
    assert linear.backward(np.ones((4, 2), np.float32)).shape == (4, 3)  # on arrays, everybody wants everything


# ---- memory ----


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def graph_of_everything():
    """A graph of every kind of operation; weak references to its Tensors and applied Functions."""
    x, linear = leaf(np.ones((4, 3), np.float32)), cl.Linear(3, 3)
    h = Swish()(cl.ReLU()(linear(x)))
    h = ((h @ linear.weight) * h / 2.0 - h**2 + (-h)).reshape(12).reshape(3, 4).T
    y = cl.SoftmaxLoss()(h, [0, 1, 2, 0]) + h.mean() + h.sum(axis=0).sum()
    tensors, stack = {}, [y]
    while stack:
        tensor = stack.pop()
        if tensor is not None and tensor not in tensors:
            tensors[tensor] = None
            stack.extend(tensor.inputs)
    things = [*tensors, *[t.function for t in tensors if t.function is not None]]
    return y, x, [weakref.ref(thing) for thing in things if thing is not x and thing is not linear.weight]


@pytest.mark.usefixtures("without_collector")
def test_a_graph_holds_no_reference_cycle():
    y, _x, references = graph_of_everything()
    assert len(references) > 20
    assert all(reference() is not None for reference in references)
    del y
    assert [reference() for reference in references if reference() is not None] == []


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("backward", [True, False], ids=["with backward", "dropped without"])
def test_10_000_graphs_leave_nothing_behind(backward):
    x, w = np.ones((4, 3), np.float32), leaf(np.ones((3, 2), np.float32))

    def make_and_drop(graphs):
        for _ in range(graphs):
            y = cl.SoftmaxLoss()((x @ w).tanh() * 2 + w.mean(axis=0), [0, 1, 0, 1]) + (w * w).sum()
            if backward:
                y.backward()

    make_and_drop(100)
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    make_and_drop(10_000)
    # Not one for a hundred graphs; other threads and Python's free lists may take some.
    assert len(gc.get_objects()) - objects < 100
    assert sys.getallocatedblocks() - blocks < 10_000


@pytest.mark.usefixtures("without_collector")
def test_backward_frees_what_it_is_done_with_as_it_goes():
    alive = []

    class Watching(cl.Function):
        def forward(self, x):
            return x * 1

        def backward(self, dy):
            alive.append(sum(reference() is not None for reference in later))
            return dy

    y, later = Watching()(leaf([1.0])), []
    for _ in range(10):
        y = y * 2.0
        later.append(weakref.ref(y))
    y.backward()
    assert alive == [1]  # y itself


def test_backward_frees_the_graph_while_the_result_lives():
    y, x, references = graph_of_everything()
    y.backward()
    assert x.grad is not None
    assert [reference() for reference in references if reference() is not None and reference() is not y] == []


# ---- versions ----


class Descent(cl.Optimizer):
    """A user's optimizer, in NumPy."""

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data[...] -= self.lr * p.grad


def step_of(optimizer):
    def change(p):
        p.add_grad(np.ones(p.shape))
        optimizer([p], lr=0.1).step()
        p.zero_grad()

    return change


def assign(p):
    p.data = p.data + 1


CHANGES = {
    "SGD.step": step_of(cl.SGD),
    "a user's step": step_of(Descent),
    "p.data =": assign,
    "detached.data =": lambda p: assign(p.detach()),
    "view.data =": lambda p: assign(p.reshape(p.size)),
    "Tensor(p).data =": lambda p: assign(cl.Tensor(p)),
}
every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)

KEEPING = {
    "p * p": lambda p: p * p,
    "p * 2": lambda p: p * cl.Tensor(np.ones((2, 2)), requires_grad=True),
    "1 / p": lambda p: 1 / p,
    "p ** 3": lambda p: p**3,
    "2 ** p": lambda p: 2**p,
    "p @ p": lambda p: p @ p,
    "a @ p": lambda p: leaf(np.ones((3, 2))) @ p,
    "of a view": lambda p: p.reshape(4) * leaf(np.ones(4)),
    "of a view of a view": lambda p: p.reshape(4).reshape(2, 2).T @ leaf(np.ones((2, 2))),
    "a user's Function": lambda p: Swish()(p),
    "in the middle": lambda p: (p * p) * 2 + 1,
    "relu of a sum, times p": lambda p: (p + 1).relu() * p,
}


@every_change
@pytest.mark.parametrize("operation", KEEPING.values(), ids=KEEPING)
def test_values_changed_after_a_forward_that_kept_them_are_noticed(operation, change):
    p = leaf(np.full((2, 2), 1.5), name="p")
    y = operation(p)
    change(p)
    with pytest.raises(RuntimeError, match="changed"):
        y.backward(np.ones(y.shape))


NOT_KEEPING = {
    "p + p": lambda p: p + p,
    "a + p": lambda p: leaf(np.ones((2, 2))) + p,
    "p - 1": lambda p: p - 1,
    "-p": lambda p: -p,
    "sum": lambda p: p.sum(),
    "mean": lambda p: p.mean(axis=0),
    "reshape": lambda p: p.reshape(4),
    "transpose": lambda p: p.T,
    "relu keeps its output": lambda p: p.relu(),
}


@every_change
@pytest.mark.parametrize("operation", NOT_KEEPING.values(), ids=NOT_KEEPING)
def test_values_that_no_backward_needs_may_change(operation, change):
    p, before = leaf(np.full((2, 2), 1.5)), leaf(np.full((2, 2), 1.5))
    y, expected = operation(p), operation(before)
    change(p)
    y.backward(np.ones(y.shape))
    expected.backward(np.ones(y.shape))
    assert_same_bits(p.grad, before.grad)


def test_a_changed_output_that_its_own_function_kept_is_noticed():
    for operation in (lambda x: x.relu(), lambda x: 1 / x, lambda x: x**2.5):
        x = leaf([1.0, 2.0])
        y = operation(x)
        y.data = [-1, -1]
        with pytest.raises(RuntimeError, match="changed"):
            y.sum().backward()


def test_a_function_that_returns_its_input_shares_its_version():
    class Identity(cl.Function):
        def forward(self, x):
            return x

        def backward(self, dy):
            return dy

    x = leaf([1.0, 2.0])
    y = Identity()(x)
    z = (y * y).sum()
    x.data = [5, 5]
    with pytest.raises(RuntimeError, match="changed"):
        z.backward()


def notices_a_change(function, keep):
    """Whether backward refuses a graph of a Function that keeps its input in some way, and whose input changed."""
    function.keep = keep
    x = leaf([1.0, 2.0])
    y = function(x).sum()
    x.data = [5, 5]
    try:
        y.backward()
    except RuntimeError as error:
        if "changed" not in str(error):
            raise
        return True
    return False


def test_values_that_a_users_function_keeps_anywhere_are_noticed():
    class Square(cl.Function):
        def forward(self, x):
            self.kept = self.keep(x)
            return x * x

        def backward(self, dy):
            return dy

    for keep in (lambda x: [x], lambda x: {"x": (x,)}, cl.Tensor, lambda x: lambda: x, lambda x: iter([x])):
        assert notices_a_change(Square(), keep)


def test_values_that_a_declared_function_keeps_in_a_container_are_noticed():
    class Square(cl.Function, recordable=True):
        def forward(self, x):
            self.kept = self.keep(x)
            return kernels.multiply(x, x)

        def backward(self, dy):
            return dy

    for keep in (lambda x: [x], lambda x: ((x,), 1), lambda x: {"x": x}, lambda x: [{"a": (x,)}]):
        assert notices_a_change(Square(), keep)
    assert not notices_a_change(Square(), lambda x: None)


def test_a_class_that_overrides_nothing_keeps_what_its_base_keeps():
    relu = type("MyReLU", (cl.ReLU,), {})()
    assert not notices_a_change(relu, None)  # it keeps its output
    assert notices_a_change(type("MyLog", (functions.Log,), {})(), None)


def test_parameters_that_a_step_changed_before_it_failed_are_noticed():
    class Failing(cl.Optimizer):
        def step(self):
            self.parameters[0].data[...] = -99
            raise OSError("disk full")

    p = leaf([1.0, 2.0])
    y = (p * p).sum()
    p.add_grad([1, 1])
    with pytest.raises(OSError, match="disk full"):
        Failing([p], lr=0.1).step()
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()


@pytest.mark.parametrize("frozen", [True, False])
def test_a_view_of_a_parameter_shares_its_version(frozen):
    class Row(cl.Function):
        def __init__(self):
            self.table = cl.Tensor(np.ones((2, 3)), requires_grad=not frozen)

        def parameters(self):
            return [self.table]

        def forward(self):
            return self.table.data[0]

        def backward(self, dy):
            return ()

    row, w = Row(), leaf(np.ones(3))
    with cl.no_grad():
        y = row()
    z = (w * y).sum()
    row.table.data = np.full((2, 3), 50)
    with pytest.raises(RuntimeError, match="changed"):
        z.backward()


def test_a_parameter_that_is_the_result_shares_its_version():
    class Itself(cl.Function):
        def __init__(self):
            self.w = cl.Tensor(np.ones(3))

        def parameters(self):
            return [self.w]

        def forward(self, x):
            return self.w.data

        def backward(self, dy):
            return dy * 0

    itself, u = Itself(), leaf(np.ones(3))
    z = (itself(cl.Tensor(np.ones(3))) * u).sum()
    itself.w.data = np.full(3, 5)
    with pytest.raises(RuntimeError, match="changed"):
        z.backward()


def test_memory_that_a_tensor_has_left_is_still_watched():
    x, w = cl.Tensor(np.ones(3)), leaf(np.ones(3))
    view = x.detach()
    y = (w * x).sum()
    x.requires_grad = True  # which gives it memory of its own
    view.data = np.full(3, 9)
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()


def test_a_backward_that_returns_too_many_or_too_few_gradients_raises():
    class Pair(cl.Function):
        def forward(self, a, b):
            return a + b

        def backward(self, dy):
            return self.gradients * (dy,)

    for gradients in (1, 3):
        pair = Pair()
        pair.gradients = gradients
        with pytest.raises(ValueError, match=f"{gradients} gradients for 2 inputs"):
            pair(leaf([1.0]), leaf([2.0])).backward()


def test_a_function_that_knows_itself_is_no_trouble():
    class Selfish(cl.Function):
        def forward(self, x):
            self.me, self.x = self, x
            return x * 1

        def backward(self, dy):
            return dy

    x = leaf([1.0, 2.0])
    y = Selfish()(x)
    x.data = [5, 5]
    with pytest.raises(RuntimeError, match="changed"):
        y.sum().backward()


def test_layers_notice_their_parameters_changes():
    x = np.ones((2, 3), np.float32)
    for change in (
        lambda linear: linear.initialize(1),
        lambda linear: assign(linear.weight),
        lambda linear: cl.Model([linear]).load_state_dict(cl.Model([cl.Linear(3, 2)]).state_dict()),
        lambda linear: step_of(cl.SGD)(linear.weight),
        lambda linear: step_of(Descent)(linear.weight),
    ):
        linear = cl.Linear(3, 2)
        y = linear(x).sum()
        change(linear)
        with pytest.raises(RuntimeError, match="weight"):
            y.backward()


def test_a_backward_that_is_refused_for_a_change_leaves_gradients_alone():
    p, q = leaf([1.0, 2.0]), leaf([1.0, 2.0])
    y = (q * 3.0 + p * p).sum()
    assign(p)
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()
    assert q.grad is None
    assert p.grad is None


def test_unchanged_values_raise_no_alarm():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    y = (x * w).sum()
    other = leaf([0.0, 0.0])
    assign(other)
    x.zero_grad()
    x.add_grad([1, 1])
    y.backward()
    assert w.grad.tolist() == [1, 2]
    assert x.grad.tolist() == [4, 5]


# ---- threads ----


def test_graphs_made_and_walked_in_many_threads_do_not_mix():
    linear = cl.Linear(3, 2)
    linear.weight.requires_grad = linear.bias.requires_grad = False

    def gradient(i):
        x = leaf(np.full((1, 3), i, np.float32))
        for _ in range(50):
            x.zero_grad()
            (Swish()(linear(x)).relu() * float(i)).sum().backward()
        return x.grad

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(gradient, range(8)))
    for i, result in enumerate(results):
        assert_same_bits(result, gradient(i))


# ---- users' Functions ----


def test_a_users_function_joins_the_graph():
    x = leaf(np.linspace(-2, 2, 5))
    y = (Swish()(x * 2) + 1).sum()
    y.backward()
    s = 1 / (1 + np.exp(-2 * x.data))
    np.testing.assert_allclose(x.grad, 2 * (s + 2 * x.data * s * (1 - s)))
    assert Swish()(np.ones(3, np.float32)).dtype == np.float32


def test_a_users_function_may_have_parameters_and_several_inputs():
    class Scale(cl.Function):
        def __init__(self):
            self.factor = leaf(3.0, name="factor")

        def parameters(self):
            return [self.factor]

        def forward(self, x, shift, times):
            self.x, self.times = x, times
            return times * self.factor.data * x + shift

        def backward(self, dy):
            self.factor.add_grad(np.sum(self.times * dy * self.x))
            return self.times * dy * self.factor.data, dy

    scale, x, shift = Scale(), leaf([1.0, 2.0]), leaf([0.0, 5.0])
    y = scale(x, shift, 2)
    assert y.data.tolist() == [6, 17]
    y.backward([1, 10])
    assert x.grad.tolist() == [6, 60]
    assert shift.grad.tolist() == [1, 10]
    assert scale.factor.grad.tolist() == 42
    assert cl.check_gradients(Scale(), np.ones(3), np.ones(3), 2) < 1e-7


def test_a_users_function_may_return_a_scalar_and_no_gradient():
    class Largest(cl.Function):
        def forward(self, x, weight):
            self.x = x
            return x.max()

        def backward(self, dy):
            return dy * (self.x == self.x.max()), None

    x, w = leaf(np.array([1.0, 3.0])), leaf(np.array([1.0]))
    y = Largest()(x, w)
    assert y.shape == ()
    assert y.dtype == np.float64
    y.backward()
    assert x.grad.tolist() == [0, 1]
    assert w.grad is None


def test_gradients_of_a_users_function_are_checked():
    class Wrong(cl.Function):
        def __init__(self, gradient):
            self.gradient = gradient

        def forward(self, x, y):
            return x + y

        def backward(self, dy):
            return self.gradient

    for gradient in (np.ones(3), (np.ones(2), np.ones((1, 2))), np.ones(2), (np.ones(2),), 1.0):
        with pytest.raises(ValueError, match=r"Wrong\(\)"):
            Wrong(gradient)(leaf([1.0, 2.0]), leaf([1.0, 2.0])).backward([1, 1])
    with pytest.raises(TypeError, match=r"Wrong\(\)"):
        Wrong((np.ones(2), np.array(["a", "b"])))(leaf([1.0, 2.0]), leaf([1.0, 2.0])).backward([1, 1])


@pytest.mark.parametrize("dtype", ["int64", "bool", "float16", ">f4", ">f8", "complex64", "object", "longdouble", "U3"])
def test_a_users_function_that_returns_an_odd_dtype(dtype):
    class Odd(cl.Function):
        def forward(self, x):
            return odd_array(dtype, x.shape)

        def backward(self, dy):
            return dy

    if np.dtype(dtype).kind in "biuf" and np.dtype(dtype).itemsize <= 8:
        expected = np.float64 if dtype == ">f8" else np.float32
        y = Odd()(leaf([1.0, 2.0]))
        assert y.dtype == expected
        assert y.data.tolist() == [1, 1]
    else:
        with pytest.raises(TypeError, match="Odd"):
            Odd()(leaf([1.0, 2.0]))


def test_an_instance_keeps_nothing_of_a_call_on_tensors():
    swish = Swish()
    swish(leaf([1.0]))
    assert vars(swish) == {}


def test_the_abstract_classes_cannot_be_made():
    for abstract in (cl.Function, lambda: cl.Optimizer([leaf([1.0])], lr=0.1)):
        with pytest.raises(TypeError, match="abstract"):
            abstract()


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


def test_in_place_operators_make_a_new_tensor():
    x = leaf([1.0])
    y = x
    y += 1
    assert x.data.tolist() == [1]
    y.backward()
    assert x.grad.tolist() == [1]


def test_functions_of_the_package_are_what_the_operators_record():
    x = leaf([[1.0]])
    for y, function in [
        (x + 1, functions.Add),
        (x @ x, functions.MatMul),
        (x.relu(), functions.ReLU),
        (x.sum(), functions.Sum),
    ]:
        assert isinstance(y.function, function)
        assert math.isfinite(y.item())


def test_a_deep_graph_needs_no_recursion():
    limit = sys.getrecursionlimit()
    x = leaf([1.0])
    y = x
    for _ in range(2 * limit):
        y = y + 1
    assert elsewhere(y.backward) is None
    assert x.grad.tolist() == [1]


@pytest.mark.parametrize("index", [2**63, -(2**63) - 1, (0, 2**64), [2**63], ([0], 2**63), (..., [2**63 - 1, 2**63])])
def test_an_index_beyond_int64_is_out_of_bounds(index):
    with pytest.raises(IndexError):
        cl.Tensor(np.ones((2, 3)))[index]


@pytest.mark.parametrize("number", [4, np.int64(4), np.uint8(4)])
def test_a_number_of_any_kind_is_out_of_bounds_even_if_there_is_nothing_to_take(number):
    with pytest.raises(IndexError, match="index 4 is out of bounds for an axis of length 0"):
        cl.Tensor(np.ones((9, 0, 3)))[..., number, []]


def test_a_gradient_is_cleared_by_setting_it_to_none():
    t = cl.Tensor([1.0, 2.0], requires_grad=True)
    t.grad = None
    assert t.grad is None
    for _ in range(2):
        (t * t).sum().backward()
        assert t.grad.tolist() == [2, 4]
        t.grad = None
        assert t.grad is None
    optimizer, before = cl.SGD([t], 1.0), t.data.copy()
    optimizer.step()
    assert_same_bits(t.data, before)


def test_a_gradient_may_be_changed_in_place_and_is_set_to_nothing_else():
    t = cl.Tensor([1.0, 2.0], requires_grad=True)
    (t * t).sum().backward()
    t.grad *= 0.5
    assert t.grad.tolist() == [1, 2]
    for value in (np.zeros(2, np.float32), cl.Tensor([0.0, 0.0]), 0, [0, 0]):
        with pytest.raises(TypeError, match=r"Tensor.grad can be set to None only, got .*add_grad\(g\)"):
            t.grad = value
    assert t.grad.tolist() == [1, 2]


def test_a_replay_clears_gradients_that_the_step_sets_to_none():
    w = cl.Tensor(np.ones(2, np.float32), requires_grad=True)

    def step(x):
        w.grad = None
        (w * x).sum().backward()

    program = cl.capture(step, np.array([1, 2], np.float32))
    for x in ([3, 4], [5, 6]):
        program(np.array(x, np.float32))
        assert w.grad.tolist() == x
