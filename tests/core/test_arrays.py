import re

import numpy as np
import pytest

import caffelite as cl
from caffelite.core.arrays import (
    as_array,
    as_real,
    check_nonnegative,
    check_positive_integer,
    normalize_axes,
    positions_in,
)
from tests.reference import WIDE


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_real_arrays_of_the_wanted_dtype_are_shared(dtype):
    x = np.arange(6, dtype=dtype).reshape(2, 3)[:, ::2]
    assert as_real(x, None, "x") is x
    assert as_real(x, dtype, "x") is x


@pytest.mark.parametrize("x", [True, 2, 2.5, [1, 2], np.arange(3), np.ones(2, bool), np.ones(2, np.float16)])
def test_numbers_integers_and_halves_become_float32(x):
    y = as_real(x, None, "x")
    assert y.dtype == np.float32
    assert y.tolist() == np.asarray(x).tolist()


def test_real_numbers_take_the_dtype_that_is_asked_for_in_native_byte_order():
    x = np.array([1.5, -2.0], dtype=">f8")
    assert as_real(x, None, "x").dtype == np.dtype("=f8")
    assert as_real(x, np.float32, "x").dtype == np.dtype("=f4")
    assert as_real(x, np.float32, "x").tolist() == [1.5, -2.0]


@pytest.mark.parametrize("x", [1j, "one", [None], np.ones(2, WIDE), np.array([object()])])
def test_an_array_that_is_not_real_raises_with_the_given_name(x):
    with pytest.raises(TypeError, match=r"^layer 3: expected real numbers in float64 or less"):
        as_real(x, None, "layer 3")


@pytest.mark.parametrize("dtype", [np.float16, np.int64, bool])
def test_only_float32_and_float64_can_be_asked_for(dtype):
    with pytest.raises(TypeError, match=r"^x: expected float32 or float64, got"):
        as_real([1.0], dtype, "x")


def test_masked_elements_raise_and_a_mask_without_any_is_not():
    with pytest.raises(ValueError, match=r"^x: got an array with masked elements"):
        as_array(np.ma.masked_greater([1, 2], 1), "x")
    assert type(as_array(np.ma.masked_greater([1, 2], 5), "x")) is np.ndarray


@pytest.mark.parametrize(
    ("axis", "ndim", "axes"),
    [(None, 3, (0, 1, 2)), (None, 0, ()), (1, 3, (1,)), (-1, 3, (2,)), ((-1, 0), 3, (2, 0)), ((), 2, ())],
)
def test_axes_count_from_the_end_too_and_none_means_all(axis, ndim, axes):
    assert normalize_axes(axis, ndim) == axes


@pytest.mark.parametrize(("axis", "ndim"), [(2, 2), (-3, 2), (0, 0), ((0, 0), 2), ((0, -2), 2)])
def test_axes_that_are_not_there_or_come_twice_raise(axis, ndim):
    with pytest.raises(ValueError, match=r"ax[ei]s"):
        normalize_axes(axis, ndim)


@pytest.mark.parametrize("value", [1, 7, np.int8(7), np.uint64(7)])
def test_positive_integers_are_ints_afterwards(value):
    assert check_positive_integer("n", value) == value
    assert type(check_positive_integer("n", value)) is int


@pytest.mark.parametrize("value", [1.0, "1", None, True, [1]])
def test_a_size_that_is_not_an_integer_raises_with_its_name(value):
    with pytest.raises(TypeError, match=r"^layers must be an integer, got "):
        check_positive_integer("layers", value)


@pytest.mark.parametrize("value", [0, -1, np.int64(-3)])
def test_an_integer_below_one_raises_by_name(value):
    with pytest.raises(ValueError, match=rf"^layers must be at least 1, got {value}$"):
        check_positive_integer("layers", value)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.5), np.int64(3)])
def test_numbers_of_0_or_more_are_floats_afterwards(value):
    assert check_nonnegative("lr", value) == value
    assert type(check_nonnegative("lr", value)) is float


@pytest.mark.parametrize("value", [-1e-300, np.nan, np.inf, -np.inf, 10**400])
def test_negative_and_infinite_numbers_raise_by_name(value):
    with pytest.raises(ValueError, match=r"^lr must be 0 or more and finite, got "):
        check_nonnegative("lr", value)


def test_a_number_may_have_a_limit_that_it_must_stay_below():
    assert check_nonnegative("momentum", 0.999, 1) == 0.999
    with pytest.raises(ValueError, match=r"^momentum must be 0 or more and below 1, got 1$"):
        check_nonnegative("momentum", 1, 1)


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1], 1j])
def test_a_value_that_is_not_a_number_raises_with_its_name(value):
    with pytest.raises(TypeError, match=r"^lr must be a number, got "):
        check_nonnegative("lr", value)


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.float64, np.int64])
def test_a_view_has_the_places_of_its_elements(dtype):
    array, numbers = np.zeros((3, 4, 5), dtype), np.arange(60).reshape(3, 4, 5)
    for index in (..., (slice(None), 2), (slice(None, None, -2), slice(1, 3), slice(None, None, 3)), (1, ..., 3)):
        assert np.array_equal(positions_in(array, array[index]), numbers[index])
        assert np.array_equal(positions_in(array, array[index].T), numbers[index].T)


@pytest.mark.parametrize("axis", [2**31, -(2**31) - 1, 2**64, (0, 2**64)])
def test_an_axis_beyond_the_integers_of_c_is_one_that_is_not_there(axis):
    with pytest.raises(ValueError, match=r"there is no axis .* in an array of 2 axes"):
        normalize_axes(axis, 2)
    if isinstance(axis, int):
        t = cl.Tensor(np.ones((2, 3)))
        for call in [lambda: t.mean(axis), lambda: cl.concatenate([t], axis), lambda: cl.stack([t], axis)]:
            with pytest.raises(ValueError, match="there is no axis"):
                call()


@pytest.mark.parametrize("axis", [True, (0, False)])
def test_a_bool_is_not_an_axis(axis):
    with pytest.raises(TypeError, match="an axis is an integer"):
        normalize_axes(axis, 2)
    for join in (cl.concatenate, cl.stack):
        with pytest.raises(TypeError):
            join([np.ones((2, 3))], axis=axis)


# ---- arrays of other libraries ----


class Foreign:
    """It has rows, and a dtype of its own."""

    dtype = "torch.float32"

    def __init__(self, array):
        self.array = np.asarray(array)
        self.shape = self.array.shape

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        return type(self)(self.array[rows])


class PyTorchArray(Foreign):
    """As a tensor of PyTorch's or TensorFlow's, whose array NumPy can ask for."""

    def __array__(self, dtype=None, copy=None):
        return self.array if dtype is None else self.array.astype(dtype)


class DLPackArray(Foreign):
    """An array that has nothing but DLPack."""

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class DeviceArray(DLPackArray):
    """Not in the memory of the CPU."""

    def __dlpack__(self, **options):
        raise BufferError("cannot export it")


X, Y = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), np.arange(8) % 2


@pytest.mark.parametrize("kind", [PyTorchArray, DLPackArray])
def test_arrays_of_other_libraries_are_taken_wherever_arrays_are(kind):
    x, y, loss = kind(X), kind(Y), cl.SoftmaxLoss()

    def fit(x, y, weights):
        model = cl.MLP(3, [4, 2], seed=0)
        optimizer = cl.SGD(model.parameters(), lr=0.1)
        model.fit(x, y, loss=loss, optimizer=optimizer, sample_weight=weights, verbose=0, validation_data=(x, y))
        model.fit([(x, y)], loss=loss, optimizer=optimizer, verbose=0)
        return model

    weights = np.ones(8, np.float32)
    model, same = fit(x, y, kind(weights)), fit(X, Y, weights)
    for found, expected in [
        (model(x).data, same(X).data),
        (model.predict(x), same.predict(X)),
        (loss(model(x), y).data, loss(same(X), Y).data),
        (cl.ReLU()(x).data, cl.ReLU()(X).data),
        (cl.Embedding(2, 3)(y).shape, (8, 3)),
        (cl.Tensor(x).data, X),
        ((cl.Tensor(X) + x).data, X + X),
        (model.evaluate(x, y, loss=loss)["loss"], same.evaluate(X, Y, loss=loss)["loss"]),
    ]:
        np.testing.assert_array_equal(found, expected)


def test_a_call_with_an_array_of_another_library_keeps_the_graph_of_a_tensor():
    x = cl.Tensor(X, requires_grad=True)
    cl.MLP(3, [2], seed=0)(x).sum().backward()
    assert x.grad is not None


def test_an_array_that_is_not_in_the_cpus_memory_is_a_type_error():
    with pytest.raises(TypeError, match="expected an array in the memory of the CPU: cannot export it"):
        cl.Tensor(DeviceArray(X))


@pytest.mark.parametrize("given", [{}, slice(1), None, object()])
@pytest.mark.parametrize("function", [cl.Linear(3, 2), cl.LSTM(3, 2), cl.Conv2d(1, 2, 3), cl.BatchNorm(3), cl.ReLU()])
def test_something_other_than_an_array_is_a_type_error_that_names_the_function(function, given):
    with pytest.raises(TypeError, match=rf"^{re.escape(repr(function))}: expected real numbers"):
        function(given)


def test_integers_that_no_computer_counts_are_value_errors_or_index_errors():
    t, model = cl.Tensor(np.ones((2, 3))), cl.MLP(3, [2], seed=0)
    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1), "verbose": 0}
    for call in (
        lambda: model.fit(X, Y, **options, batch_size=2**63),
        lambda: cl.datasets.spiral(2**64),
        lambda: t.sum(axis=2**31),
        lambda: t.mean(axis=2**63),
        lambda: cl.concatenate([t, t], axis=2**31),
    ):
        with pytest.raises(ValueError, match=r"at most 9,223|axis|axes"):
            call()
    for index in (2**63, (slice(None), -(2**63) - 1)):
        with pytest.raises(IndexError, match="out of bounds"):
            t[index]
