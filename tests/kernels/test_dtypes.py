"""The dtypes, layouts and sizes that kernels take."""

import numpy as np
import pytest

from caffelite import _kernels as kernels
from tests.kernels.arguments import ADAM, FLOAT_KERNELS, uniform
from tests.reference import LAYOUTS, ODD_DTYPES, assert_same_bits, name_failure, odd_array, plain_copy

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


@pytest.mark.parametrize("name", FLOAT_KERNELS)
def test_kernels_compute_in_float32_or_float64_only(name):
    for dtype in ODD_DTYPES:
        a = odd_array(dtype, (3, 3))
        native = np.dtype(dtype).newbyteorder("=")
        with name_failure(dtype):
            if native in DTYPES:
                assert_same_bits(FLOAT_KERNELS[name](a), FLOAT_KERNELS[name](a.astype(native)))
            else:
                with pytest.raises(TypeError, match=name):
                    FLOAT_KERNELS[name](a)


@pytest.mark.parametrize("name", FLOAT_KERNELS)
@both_dtypes
def test_kernels_give_the_plain_copys_bits(name, dtype):
    for layout in LAYOUTS:
        with name_failure(layout.__name__):
            odd = layout(uniform(3, 3, dtype=dtype) + 2)
            before = plain_copy(odd)
            assert_same_bits(FLOAT_KERNELS[name](odd), FLOAT_KERNELS[name](before))
            assert_same_bits(odd, before)


def test_float32_and_float64_do_not_mix():
    a, b = np.ones((3, 3), np.float32), np.ones((3, 3))
    mixtures = {
        "add": lambda: kernels.add(a, b),
        "add to": lambda: kernels.add(a, a, b),
        "relu to": lambda: kernels.relu(a, b),
        "where": lambda: kernels.where(a, a, b),
        "where condition": lambda: kernels.where(b, a, a),
        "softmax_grad": lambda: kernels.softmax_grad(a, b),
        "matmul": lambda: kernels.matmul(a, b),
        "matmul_stack": lambda: kernels.matmul_stack(a[None], b[None]),
        "matmul bias": lambda: kernels.matmul(a, a, bias=b[0]),
        "matmul to": lambda: kernels.matmul(a, a, b),
        "sum to": lambda: kernels.sum(a, 0, out=b[0]),
        "softmax_loss_grad": lambda: kernels.softmax_loss_grad(a, np.array([0, 1, 1]), np.array(1.0)),
        "sgd": lambda: kernels.update("sgd", a[0], b[0], None, np.zeros(4)),
        "sgd velocity": lambda: kernels.update("sgd", a[0], a[0], b[:1], np.zeros(4)),
        "ema": lambda: kernels.ema(a[0], b[0], 0.9),
        "adam": lambda: kernels.update("adam", a[0], b[0], a[:2].copy(), ADAM, np.array([[3, 1.0]])),
        "adam moments": lambda: kernels.update("adam", a[0], a[0], b[:2], ADAM, np.array([[3, 1.0]])),
    }
    for name, mixture in mixtures.items():
        with pytest.raises(TypeError, match=name.split()[0]) as raised:
            mixture()
        assert "float32" in str(raised.value)
        assert "float64" in str(raised.value)


def test_other_arguments_of_a_wrong_dtype_are_type_errors():
    order, state, rows = np.arange(3), np.ones(4, np.uint64), np.ones((3, 2))
    wrong = {
        "softmax_loss": lambda: kernels.softmax_loss(rows, order.astype(np.int32)),
        "check_labels": lambda: kernels.check_labels(order.astype(np.float64), 3),
        "convert": lambda: kernels.convert(order.astype(complex), np.float32),
        "convert to": lambda: kernels.convert(order, np.int32),
        "convert swapped to": lambda: kernels.convert(order, ">f4"),
        "convert bool": lambda: kernels.convert(order > 1, np.int64),
        "convert float": lambda: kernels.convert(rows, np.int64),
        "extreme_grad": lambda: kernels.extreme_grad(rows[0], np.zeros(2, np.int32), (3, 2), 0),
        "shuffle": lambda: kernels.shuffle(order.astype(np.int32), state),
        "shuffle state": lambda: kernels.shuffle(order, state.astype(np.int64)),
        "take": lambda: kernels.take(rows, order.astype(np.float64)),
        "take_grad": lambda: kernels.take_grad(rows, order.astype(np.float64), 3),
        "take objects": lambda: kernels.take(rows.astype(object), order),
        "take to": lambda: kernels.take(rows, order, np.ones((3, 2), np.float32)),
        "sgd": lambda: kernels.update("sgd", rows[0], rows[0], None, np.zeros(4, np.float32)),
        "adam": lambda: kernels.update("adam", *rows[:2], rows[:2], ADAM.astype(np.float32), np.array([[2, 1.0]])),
        "adam steps": lambda: kernels.update("adam", *rows[:2], rows[:2], ADAM, np.array([[2, 1]])),
        "count_steps": lambda: kernels.count_steps(np.array([[2, 1]])),
        "norm": lambda: kernels.norm(rows[0], np.ones(1, np.float32)),
        "limit_norm": lambda: kernels.limit_norm(rows[0], np.ones(1, np.float32), 1.0),
    }
    for name, call in wrong.items():
        with pytest.raises(TypeError, match=name.split()[0]):
            call()


@pytest.mark.parametrize("name", FLOAT_KERNELS)
def test_kernels_take_arrays_only(name):
    with pytest.raises(TypeError):
        FLOAT_KERNELS[name]([[1.0, 2.0, 3.0]] * 3)


def test_sizes_that_cannot_be_are_errors():
    one = np.ones(1, np.float32)
    for call in [
        lambda: kernels.matmul(np.broadcast_to(one, (2**40, 1)), np.broadcast_to(one, (1, 2**40))),
        lambda: kernels.add(np.broadcast_to(one, (2**40, 1)), np.broadcast_to(one, (1, 2**40))),
        lambda: kernels.relu(np.broadcast_to(one, (2**60,))),
        lambda: kernels.sum(np.broadcast_to(one, (2**60,))),
    ]:
        with pytest.raises((ValueError, MemoryError)):
            call()
