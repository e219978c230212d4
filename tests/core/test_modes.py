"""no_grad and inference: what they switch off, and for whom."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import caffelite as cl


def leaf(values):
    return cl.Tensor(values, requires_grad=True)


def test_no_grad_records_nothing_and_ends():
    x = leaf([1.0])
    with cl.no_grad():
        y = x * 2
        with cl.no_grad():
            pass
        assert not (x + 1).requires_grad
        assert cl.is_training()
    assert not y.requires_grad
    assert y.function is None
    assert (x * 2).requires_grad
    with pytest.raises(ZeroDivisionError), cl.no_grad():
        raise ZeroDivisionError
    assert (x * 2).requires_grad


def test_inference_switches_off_gradients_and_training():
    x = leaf([1.0])
    assert cl.is_training()
    with cl.inference():
        assert not cl.is_training()
        assert not (x * 2).requires_grad
        with cl.inference():
            pass
        assert not cl.is_training()
    assert cl.is_training()
    assert (x * 2).requires_grad
    with pytest.raises(ZeroDivisionError), cl.inference():
        raise ZeroDivisionError
    assert cl.is_training()
    assert (x * 2).requires_grad


def test_modes_are_a_threads_own():
    x = leaf([1.0])
    for mode in (cl.no_grad, cl.inference):
        with mode(), ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: ((x * 2).requires_grad, cl.is_training())).result(60) == (True, True)

    inside, outside = threading.Event(), threading.Event()

    def other():
        with cl.inference():
            inside.set()
            assert outside.wait(10)
            return (x * 2).requires_grad, cl.is_training()

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(other)
        assert inside.wait(10)
        assert (x * 2).requires_grad
        assert cl.is_training()
        outside.set()
        assert result.result(10) == (False, False)
