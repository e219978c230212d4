"""The order of an output in memory, and that it changes no bit."""

import itertools

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests import reference
from tests.kernels.arguments import FLOAT_KERNELS, uniform
from tests.reference import LAYOUTS, assert_same_bits, plain_copy

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
ORDERS = [plain_copy, reference.fortran_ordered, reference.images_last, reference.channels_last]
every_order = pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
IMAGES = (3, 4, 5, 6)


def strides_that_count(array):
    return [stride for stride, n in zip(array.strides, array.shape, strict=True) if n > 1]


def has_order(array, order):
    return strides_that_count(array) == strides_that_count(order(np.empty(array.shape, array.dtype)))


@pytest.mark.parametrize("name", [name for name in FLOAT_KERNELS if kernels.KERNELS[name].op and name != "copy"])
@every_order
@both_dtypes
def test_an_elementwise_kernels_output_has_the_memory_order_of_its_input(name, order, dtype):
    a = uniform(*IMAGES, dtype=dtype) + 2
    y = FLOAT_KERNELS[name](order(a))
    assert_same_bits(y, FLOAT_KERNELS[name](a))
    assert has_order(y, order)


@pytest.mark.parametrize("kernel", [kernels.gelu, kernels.gelu_tanh], ids=["gelu", "gelu_tanh"])
@every_order
@both_dtypes
def test_the_second_output_of_a_kernel_has_the_layout_of_the_first(kernel, order, dtype):
    a = uniform(*IMAGES, dtype=dtype) - 0.5
    y, slope = kernel(a)
    np.testing.assert_allclose(slope, (kernel(a + 1e-3)[0] - kernel(a - 1e-3)[0]) / 2e-3, atol=1e-3)
    assert_same_bits(kernel(order(a))[1], slope)
    alone, no_derivative = kernel(order(a), derivative=False)
    assert_same_bits(alone, y)
    assert no_derivative is None
    assert has_order(kernel(order(a))[1], order)
    wide = np.zeros((*a.shape, 2), dtype)
    in_place = order(a.copy())
    for out in (wide[..., 0], in_place):
        given, slope_beside = kernel(in_place, out)
        assert given is out
        assert_same_bits(out, y)
        assert_same_bits(slope_beside, slope)
    for strided in (wide[..., 0], order(a.copy())):  # its elements are where a slope would be written
        strided[...] = a
        kernel(strided, np.empty_like(a), derivative=False)
        assert_same_bits(strided, a)
        kernel(strided, strided, derivative=False)
        assert_same_bits(strided, y)
    deep = a.reshape(2, 1, *a.shape[:2], 1, -1).transpose(5, 3, 4, 1, 2, 0)
    assert_same_bits(kernel(deep)[1], slope.reshape(2, 1, *a.shape[:2], 1, -1).transpose(5, 3, 4, 1, 2, 0))


@every_order
@both_dtypes
def test_the_first_input_of_the_outputs_shape_gives_the_order(order, dtype):
    a, b = uniform(*IMAGES, dtype=dtype), uniform(*IMAGES, dtype=dtype, seed=1)
    others = [
        b,
        *[layout(b) for layout in LAYOUTS],
        b[:1],
        b[:, :1],
        b[0, :, :1, :1],
        b[..., 0, 0][..., None, None],
        0.5,
    ]
    for other in others:
        y = kernels.subtract(order(a), other)
        assert_same_bits(y, a - np.asarray(other, dtype))
        assert has_order(y, order)
        assert_same_bits(kernels.where(other, a, order(b)), np.where(other, a, b))
        if np.shape(other) != IMAGES:
            assert has_order(kernels.subtract(other, order(a)), order)


@every_order
def test_a_repeated_input_gives_no_order(order):
    a, repeated = uniform(*IMAGES), np.broadcast_to(uniform(4, 1, 1), IMAGES)
    assert has_order(kernels.add(repeated, order(a)), order)
    assert kernels.negative(repeated).flags.c_contiguous
    assert kernels.add(repeated, 1).flags.c_contiguous


@every_order
def test_a_part_of_an_array_gives_its_order_without_its_gaps(order):
    a = uniform(7, 8, 9, 10)
    for part in [np.s_[2:5], np.s_[:, 1:3], np.s_[..., ::2], np.s_[:, :, ::-1], np.s_[:, :1], np.s_[:1]]:
        y = kernels.negative(order(a)[part])
        assert_same_bits(y, -a[part])
        assert strides_that_count(y) == strides_that_count(np.copy(order(a)[part], order="K"))


def test_a_new_copy_is_in_c_order():
    for order in ORDERS:
        a = order(uniform(*IMAGES))
        assert kernels.copy(a).flags.c_contiguous
        assert kernels.convert(a, np.float64).flags.c_contiguous


@both_dtypes
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (64, 3, 5, 5), (17, 33, 9, 7), (130, 16, 8, 8), (5, 70, 3, 31)])
def test_a_copy_from_any_order_to_any_other_has_the_same_elements(shape, dtype):
    a = uniform(*shape, dtype=dtype)
    for before, after in itertools.product(ORDERS, ORDERS):
        out = after(np.full_like(a, np.nan))
        kernels.copy(before(a), out)
        assert_same_bits(out, a)
    out = np.full((*shape[:3], 2 * shape[3]), 77, dtype)
    kernels.copy(reference.images_last(a), out[..., : shape[3]])
    assert_same_bits(out[..., : shape[3]], a)
    assert (out[..., shape[3] :] == 77).all()


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_a_copy_in_another_order_that_threads_share_is_whole(threads):
    cl.set_num_threads(threads)
    a = uniform(67, 33, 17, 15)
    for before, after in itertools.permutations(ORDERS, 2):
        out = after(np.full_like(a, np.nan))
        kernels.copy(before(a), out)
        assert_same_bits(out, a)


@every_order
@both_dtypes
@pytest.mark.parametrize("shape", [(5, 3, 7), (70, 66, 3, 5), (3, 130, 2, 2), (1, 4, 3, 3), (6, 1, 2, 9), (9, 4, 1, 1)])
@pytest.mark.usefixtures("restored_threads")
def test_batch_norm_has_the_same_bits_and_keeps_the_order_in_every_order_of_memory(shape, order, dtype):
    x, dy = 10 + uniform(*shape, dtype=dtype), uniform(*shape, dtype=dtype, seed=1)
    scale, shift = uniform(shape[1], dtype=dtype), uniform(shape[1], dtype=dtype, seed=2)

    def everything(x, dy):
        y, moments = kernels.batch_norm(x, scale, shift, 1e-5)
        fixed = kernels.batch_norm_fixed(x, scale, shift, moments)
        return y, fixed, moments, *kernels.batch_norm_grad(dy, x, scale, moments)

    expected = everything(x, dy)
    for threads, other in itertools.product((1, 2, 3, 8), (order, plain_copy)):
        cl.set_num_threads(threads)
        results = everything(order(x), other(dy))
        for result, same in zip(results, expected, strict=True):
            assert_same_bits(result, same)
        if order is not reference.fortran_ordered and max(shape[2:]) > 1:
            assert all(has_order(result, order) for result in (*results[:2], results[3]))
    gaps = order(np.repeat(x, 2, 0))[::2]
    for result, same in zip(everything(gaps, dy), expected, strict=True):
        assert_same_bits(result, same)


@every_order
@both_dtypes
def test_a_dropped_element_is_dropped_in_every_order_of_memory(order, dtype):
    x, drawn = uniform(*IMAGES, dtype=dtype), np.array([7, 3])
    y = kernels.dropout_grad(order(x), drawn, 0.5)
    assert_same_bits(y, kernels.dropout_grad(x, drawn, 0.5))
    assert has_order(y, order)
