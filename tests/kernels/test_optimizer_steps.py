"""Steps of SGD and Adam, norms of gradients, and numbers that are not finite."""

import numpy as np
import pytest

from caffelite import _kernels as kernels
from tests import reference
from tests.kernels.arguments import ADAM, refuse, uniform
from tests.reference import assert_close, assert_same_bits, read_only, to_float64

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


@both_dtypes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_finds_one_bad_element_anywhere(bad, dtype):
    for n in (1, 31, 32, 33, 100):
        a = np.full(n, np.finfo(dtype).max)
        assert kernels.all_finite(a)
        for i in range(n):
            a[i], kept = bad, a[i]
            assert not kernels.all_finite(a)
            assert not kernels.all_finite(a[::-1])
            a[i] = kept
    assert kernels.all_finite(np.empty(0, dtype))


@both_dtypes
@pytest.mark.parametrize(
    "hyper", [(0.1, 0, 0, 0), (0.1, 0, 0.01, 0), (0.1, 0.9, 0, 0), (0.1, 0.9, 0.01, 0), (0.1, 0.9, 0.01, 1)]
)
def test_steps_of_sgd_are_the_judges(hyper, dtype):
    for n in (0, 1, 67):
        w, v = uniform(n, dtype=dtype), np.zeros((1, n), dtype) if hyper[1] else None
        true_w, true_v = to_float64(w), np.zeros(n)
        for step in range(5):
            g = uniform(n, dtype=dtype, seed=step)
            kernels.update("sgd", w, g, v, np.array(hyper, np.float64))
            true_w, true_v = reference.sgd(true_w, g, true_v, *hyper)
        assert_close(w, true_w, dtype)
        if v is not None:
            assert_close(v[0], true_v, dtype)


def test_sgd_takes_contiguous_vectors_of_one_size():
    w, hyper = np.ones(6), np.array([0.1, 0.9, 0, 0])
    for g in (np.ones(5), np.ones((6, 1)), np.ones(12)[::2]):
        with pytest.raises(ValueError, match="sgd"):
            kernels.update("sgd", w, g, np.zeros((1, 6)), hyper)
        with pytest.raises(ValueError, match="sgd"):
            kernels.update("sgd", w, np.ones(6), g, hyper)
    with pytest.raises(ValueError, match="sgd"):
        kernels.update("sgd", read_only(w), np.ones(6), None, hyper)
    with pytest.raises(ValueError, match="sgd"):
        kernels.update("sgd", w, np.ones(6), None, hyper[:3])
    with pytest.raises(ValueError, match="sgd takes no steps"):
        kernels.update("sgd", w, np.ones(6), None, hyper, np.array([[6, 1.0]]))
    with pytest.raises(ValueError, match="'sdg'"):
        kernels.update("sdg", w, np.ones(6), None, hyper)
    assert (w == 1).all()


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(dtype, scale) for dtype in (np.float32, np.float64) for scale in (1.0, 1e-30, 1e30, 3e37)]
    + [(np.float64, 1e-200), (np.float64, 1e200), (np.float64, 1e306)],
)
def test_a_norm_is_as_exact_as_float64_and_neither_overflows_nor_vanishes(dtype, scale):
    for n in (1, 7, 8, 9, 67, 1000):
        g, others = uniform(n, dtype=dtype) * dtype(scale), np.array([2 * scale])
        before = g.copy()
        truth = scale * np.sqrt(np.sum((np.float64(g) / scale) ** 2))
        norm = kernels.norm(g)
        assert (norm.shape, norm.dtype) == ((1,), np.float64)
        least = 0 if scale < 1e-150 else truth  # squares of float64 may vanish, but not what counts
        assert least * (1 - 1e-14) <= norm[0] <= truth * (1 + 1e-14)
        assert kernels.norm(g, others)[0] == pytest.approx(np.hypot(norm[0], 2 * scale), rel=1e-15)
        assert_same_bits(g, before)
    assert kernels.norm(np.empty(0, dtype))[0] == 0


@both_dtypes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_norm_finds_one_bad_element_anywhere(bad, dtype):
    for n in (1, 8, 33):
        for i in range(n):
            g = np.full(n, np.finfo(dtype).max / 64)
            assert np.isfinite(kernels.norm(g)[0])
            g[i] = bad
            with pytest.raises(ArithmeticError):
                kernels.norm(g, None, refuse)
    with pytest.raises(ArithmeticError):
        kernels.norm(np.full(3, 1.7e308), None, refuse)  # finite, but not their norm


@both_dtypes
def test_a_norm_that_is_too_large_is_limited_by_one_factor(dtype):
    for n in (0, 1, 8, 67):
        g = uniform(n, dtype=dtype)
        norm = kernels.norm(g)
        for limit in (1e-3, norm[0] / 2, norm[0], norm[0] + 1e-3, 1e9):
            limited, factor = g.copy(), limit / (norm[0] + 1e-6)
            kernels.limit_norm(limited, norm, limit)
            assert_close(limited, np.float64(g) * factor if factor < 1 else np.float64(g), dtype)
            if factor >= 1:
                assert_same_bits(limited, g)
    huge = np.full(64, np.finfo(dtype).max / 8, dtype)  # the factor is a subnormal number
    kernels.limit_norm(huge, kernels.norm(huge), 1e-3)
    np.testing.assert_allclose(huge, 1e-3 / 8, rtol=1e-6)


def test_norms_are_of_contiguous_vectors():
    g, norm = np.ones(6), np.ones(1)
    for bad in (g[::2], np.ones((2, 3)), np.ones(())):
        with pytest.raises(ValueError, match="norm"):
            kernels.norm(bad)
        with pytest.raises(ValueError, match="limit_norm"):
            kernels.limit_norm(bad, norm, 1.0)
    for bad in (np.ones(2), np.ones(())):
        with pytest.raises(ValueError, match="norm"):
            kernels.norm(g, bad)
        with pytest.raises(ValueError, match="limit_norm"):
            kernels.limit_norm(g, bad, 1.0)
    with pytest.raises(ValueError, match="limit_norm"):
        kernels.limit_norm(read_only(g), norm, 1.0)


@both_dtypes
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999])
def test_an_exponential_moving_average_follows_a_vector(decay, dtype):
    for n in (0, 1, 67):
        average = uniform(n, dtype=dtype)
        expected = to_float64(average)
        for step in range(5):
            x = uniform(n, dtype=dtype, seed=step)
            kernels.ema(average, x, decay)
            expected = decay * expected + (1 - decay) * x
        assert_close(average, expected, dtype)
    same = uniform(67, dtype=dtype)
    average = same.copy()
    kernels.ema(average, same, decay)
    assert_same_bits(average, same)


def test_exponential_moving_averages_are_of_contiguous_vectors_of_one_size():
    for bad in (np.ones(5), np.ones((6, 1)), np.ones(12)[::2]):
        for arguments in ((bad, np.ones(6)), (np.ones(6), bad)):
            with pytest.raises(ValueError, match="ema"):
                kernels.ema(*arguments, 0.9)
    with pytest.raises(ValueError, match="ema"):
        kernels.ema(read_only(np.ones(6)), np.ones(6), 0.9)


@both_dtypes
@pytest.mark.parametrize("rule", ["adam", "adamw"])
@pytest.mark.parametrize(
    "hyper", [ADAM, (0.01, 0.9, 0.999, 1e-8, 0), (0.01, 0, 0.99, 1e-3, 0.1), (0.01, 0.5, 0, 1, 0), (0.01, 0, 0, 1, 0)]
)
def test_steps_of_adam_are_the_judges(hyper, rule, dtype):
    hyper = np.array(hyper, np.float64)
    for n in (0, 1, 67):
        w, moments, steps = uniform(n, dtype=dtype), np.zeros((2, n), dtype), np.array([[n, 0.0]])
        truth = to_float64(w), *to_float64(moments)
        for t in range(1, 6):
            g = uniform(n, dtype=dtype, seed=t)
            kernels.count_steps(steps)
            kernels.update(rule, w, g, moments, hyper, steps)
            truth = reference.adam(truth[0], g, *truth[1:], t, *hyper, decoupled=rule == "adamw")
        for array, true in zip((w, *moments), truth, strict=True):
            assert_close(array, true, dtype)


def test_each_parameter_of_a_run_is_in_its_own_step_of_adam():
    sizes, counts = [5, 0, 40, 3, 19], [1.0, 7.0, 1.0, 2.0, 1000.0]
    w, g, moments = uniform(67), uniform(67, seed=1), np.abs(uniform(2, 67, seed=2))
    expected = []
    for (size, t), last in zip(zip(sizes, counts, strict=True), np.cumsum(sizes), strict=True):
        part = slice(last - size, last)
        alone = w[part].copy(), moments[:, part].copy()
        kernels.update("adam", alone[0], g[part], alone[1], ADAM, np.array([[size, t]]))
        expected.append(np.vstack(alone))
    kernels.update("adam", w, g, moments, ADAM, np.array([sizes, counts]).T.copy())
    assert_same_bits(np.vstack([w, moments]), np.hstack(expected))


@both_dtypes
def test_a_mean_of_adam_that_gradients_no_longer_feed_ends_at_zero(dtype):
    w, zero, moments = np.ones(40, dtype), np.zeros(40, dtype), np.full((2, 40), 3 * np.finfo(dtype).tiny, dtype)
    for t in range(1, 20):
        kernels.update("adamw", w, zero, moments, ADAM, np.array([[40.0, t]]))
    assert (moments[0] == 0).all()
    assert (moments[1] > 0).all()


def test_adam_takes_contiguous_vectors_of_one_size_and_steps_of_that_many_elements():
    w, g, moments, steps = np.ones(6), np.ones(6), np.zeros((2, 6)), np.array([[2, 1.0], [4, 1.0]])
    bad = [(w, a, moments, ADAM, steps) for a in (g[:5], np.ones((6, 1)), np.ones(12)[::2])]
    bad += [(w, g, a, ADAM, steps) for a in (np.zeros((2, 5)), np.zeros((3, 6)), np.zeros((1, 6)), np.zeros(12), None)]
    bad += [(w, g, a, ADAM, steps) for a in (np.zeros((2, 12))[:, ::2], np.zeros((6, 2)).T)]
    bad += [(w, g, moments, ADAM, a) for a in (steps[:1], steps[0], np.zeros((0, 2)), steps.T, steps[:, :1], None)]
    bad += [(w, g, moments, ADAM[:4], steps)]
    bad += [(read_only(w), g, moments, ADAM, steps), (w, g, read_only(moments), ADAM, steps)]
    for arguments in bad:
        with pytest.raises(ValueError, match="adam"):
            kernels.update("adam", *arguments)
    for rows in (steps[0], steps.T, read_only(steps)):
        with pytest.raises(ValueError, match="count_steps"):
            kernels.count_steps(rows)
    assert (w == 1).all()
    assert (moments == 0).all()
