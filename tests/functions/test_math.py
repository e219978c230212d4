"""Elementary functions: what their cases do not say."""

import numpy as np

import caffelite as cl
from caffelite import functions
from tests.cases import both_dtypes
from tests.reference import assert_same_bits


def test_the_absolute_value_has_slope_0_at_0_and_the_root_an_infinite_one():
    absolute, root = functions.Abs(), functions.Sqrt()
    absolute.forward(np.array([0.0, -0.0, 2.0, -2.0]))
    assert absolute.backward(np.full(4, 3.0)).tolist() == [0, 0, 3, -3]
    assert root.forward(np.array([0.0, 4.0])).tolist() == [0, 2]
    assert root.backward(np.ones(2)).tolist() == [np.inf, 0.25]


@both_dtypes
def test_sin_and_cos_of_large_and_of_exact_numbers_are_numpys(dtype):
    x = np.array([0.0, -0.0, 2**20, 2**20 + 1, 1e7, -1e15, 1e22, 1e38, 6381956970095103.0 * 2.0**50], dtype)
    x = np.concatenate([x, np.pi * np.arange(1, 2000, dtype=np.float64).astype(dtype)])
    for name in ("sin", "cos"):
        expected = getattr(np, name)(x.astype(np.longdouble))
        y = getattr(cl.Tensor(x), name)()
        np.testing.assert_allclose(y.data, expected.astype(dtype), 4 * np.finfo(dtype).eps, 0)
        alone = np.array([getattr(cl, name)(x[i : i + 1]).data[0] for i in range(9)])
        assert_same_bits(y.data[:9], alone)


def test_a_product_takes_sin_as_its_epilogue():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 4)), cl.Tensor(rng.standard_normal((4, 3)), requires_grad=True)

    def step(x):
        w.zero_grad()
        y = cl.maximum((cl.Tensor(x) @ w).sin().cos(), 0.1)
        y.sum().backward()
        return y

    program = cl.capture(step, x)
    assert "matmul_sin" in str(program)
    x = rng.standard_normal((5, 4))
    found, gradient = np.array(program(x).data), w.grad.copy()
    assert_same_bits(found, step(x).data)
    assert_same_bits(gradient, w.grad)


@both_dtypes
def test_the_cube_root_is_odd_and_exact_to_a_unit_at_any_scale(dtype):
    limits = np.finfo(dtype)
    scales = 2.0 ** np.linspace(limits.minexp, limits.maxexp - 1, 5000)
    x = np.concatenate([scales, [limits.smallest_subnormal, limits.tiny / 3, 1, 8, 27]]).astype(dtype)
    y = cl.cbrt(x).data
    expected = np.cbrt(x.astype(np.longdouble))
    assert (abs(y - expected) <= np.spacing(expected.astype(dtype))).all()
    assert_same_bits(cl.cbrt(-x).data, -y)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], dtype)
    assert_same_bits(cl.cbrt(special).data, special)


def test_the_cube_root_has_an_infinite_slope_at_0():
    root = functions.Cbrt()
    root.forward(np.array([0.0, -0.0, 8.0, -8.0]))
    np.testing.assert_allclose(root.backward(np.ones(4)), [np.inf, np.inf, 1 / 12, 1 / 12])
