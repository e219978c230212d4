"""Kernels for tables: standardizing, places between edges, splines."""

import numpy as np
import pytest

from caffelite import _kernels as kernels


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": np.zeros((4, 3), np.float32)}, TypeError, "standardize takes float64, got float32"),
        ({"x": np.zeros(3)}, ValueError, r"standardize got x \(3,\), center \(3,\)"),
        ({"center": np.zeros(2)}, ValueError, r"center \(2,\), scale \(3,\).*expected \(n, k\), \(k,\), \(k,\)"),
        ({"scale": np.ones(6)[::2]}, ValueError, "contiguous"),
        ({"limit": 0.0}, ValueError, "more than 0"),
        ({"limit": np.nan}, ValueError, "more than 0"),
        ({"gaps": np.array([0, 3])}, IndexError, r"standardize got gaps \[0, 3\] for 3 columns"),
        ({"gaps": np.array([-1])}, IndexError, r"gaps \[-1\] for 3 columns"),
        ({"gaps": np.array([0.0])}, TypeError, "int64"),
        ({"dtype": np.int64}, TypeError, "standardize makes float32 or float64"),
    ],
)
def test_standardize_refuses_what_does_not_fit(change, error, message):
    given = {"x": np.zeros((4, 3)), "center": np.zeros(3), "scale": np.ones(3), "gaps": np.array([1]), "limit": 3.0}
    with pytest.raises(error, match=message):
        kernels.standardize(*{**given, "dtype": np.float32, **change}.values())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": np.zeros((4, 2), np.float32)}, TypeError, "piecewise takes float64, float64 and int64, got float32"),
        ({"starts": np.array([0.0, 3, 5])}, TypeError, "got float64, float64, float64"),
        ({"x": np.zeros((4, 3))}, ValueError, r"piecewise got x \(4, 3\), edges \(5,\), starts \(3,\)"),
        ({"edges": np.arange(10.0)[::2]}, ValueError, "contiguous"),
        ({"starts": np.array([0, 3, 6])}, ValueError, r"piecewise got starts \[0, 3, 6\] for 5 edges"),
        ({"starts": np.array([1, 3, 5])}, ValueError, r"starts \[1, 3, 5\]"),
        ({"starts": np.array([0, 0, 5])}, ValueError, r"starts \[0, 0, 5\]"),
        ({"dtype": np.int64}, TypeError, "piecewise makes float32 or float64"),
    ],
)
def test_piecewise_refuses_what_does_not_fit(change, error, message):
    given = {"x": np.zeros((4, 2)), "edges": np.arange(5.0), "starts": np.array([0, 3, 5])}
    with pytest.raises(error, match=message):
        kernels.piecewise(*{**given, "dtype": np.float32, **change}.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_places_are_those_between_edges_and_missing_numbers_are_after_them(dtype):
    edges, starts = np.array([-1.0, 0, 0.5, 4, 7, 2, 3]), np.array([0, 4, 5, 7])
    x = np.array([[-5.0, 7, 2], [-1, 8, 2.25], [-0.5, -np.inf, 3], [0, 0, 99], [0.375, 7, -99], [4, 7, np.nan]])
    x = np.concatenate([x, [[np.inf, np.nan, np.inf], [np.nan, 7, -np.inf]]])
    places = [[0, 0, 0], [0, 0, 0.25], [0.5, 0, 1], [1, 0, 1], [1.75, 0, 0], [3, 0, 2], [3, 1, 1], [4, 0, 0]]
    np.testing.assert_array_equal(kernels.places(x, edges, starts, dtype), np.array(places, dtype))


def test_more_places_than_a_type_can_tell_apart_raise():
    starts = np.array([0, 2**23 + 1])
    edges = np.arange(2.0**23 + 1)
    assert kernels.places(np.array([[np.nan]]), edges, starts, np.float64) == 2**23 + 1
    with pytest.raises(ValueError, match="places got 8388609 edges of a column, too many for float32"):
        kernels.places(np.array([[np.nan]]), edges, starts, np.float32)


@pytest.mark.parametrize(
    "change",
    [
        {"edges": np.zeros(8)},
        {"edges": np.zeros(7, np.float32)},
        {"edges": np.zeros(14)[::2]},
        {"edge_starts": np.array([0, 3, 7])},
        {"edge_starts": np.array([0, 7])},
    ],
)
def test_edges_that_do_not_fit_the_table_raise(change):
    given = {
        "dy": np.zeros((3, 4)),
        "table": np.zeros((9, 4)),
        "places": np.zeros((3, 2)),
        "starts": np.array([0, 5, 9]),
    }
    given |= {"edges": np.zeros(7), "edge_starts": np.array([0, 4, 7])}
    kernels.splines_input_grad(*given.values())
    with pytest.raises(ValueError, match="splines_input_grad got edges"):
        kernels.splines_input_grad(*{**given, **change}.values())


SPLINES = {
    "table": np.zeros((9, 4)),
    "bias": np.zeros(4),
    "places": np.zeros((3, 1)),
    "codes": np.zeros((3, 1), np.int64),
    "starts": np.array([0, 5, 9]),
}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"table": np.zeros((9, 4), np.float32)}, TypeError, "splines got float32 and float64"),
        ({"table": np.zeros((9, 4), int)}, TypeError, "int64"),
        ({"table": np.zeros((8, 4))}, ValueError, r"table of shape \(8, 4\); expected 9 rows"),
        ({"table": np.zeros(9)}, ValueError, "an array of rows"),
        ({"bias": np.zeros(5)}, ValueError, r"bias of shape \(5,\)"),
        ({"places": np.zeros((2, 1))}, ValueError, r"places \(2, 1\), codes \(3, 1\)"),
        ({"places": np.zeros(3)}, ValueError, r"places \(3,\)"),
        ({"codes": np.zeros((3, 1))}, TypeError, "codes of int64, got float64"),
        ({"codes": np.array([[0], [4], [0]])}, IndexError, "a code that is not among the rows"),
        ({"codes": np.array([[0], [-1], [0]])}, IndexError, "a code that is not among the rows"),
        ({"codes": None}, ValueError, r"starts \(3,\)"),
        ({"codes": np.zeros((4, 0), np.int64), "starts": np.array([0, 9])}, ValueError, r"codes \(4, 0\)"),
        ({"starts": np.array([0, 5, 5])}, ValueError, "rising"),
        ({"starts": np.array([1, 5, 9])}, ValueError, "rising"),
        ({"starts": np.array([0.0, 5, 9])}, TypeError, "starts of int64"),
    ],
)
def test_splines_refuse_what_does_not_fit(change, error, message):
    kernels.splines(*SPLINES.values())
    with pytest.raises(error, match=message):
        kernels.splines(*{**SPLINES, **change}.values())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"slope": np.zeros((3, 4))}, ValueError, r"slope \(3, 4\)"),
        ({"slope": np.zeros((1, 5))}, ValueError, r"slope \(1, 5\)"),
        ({"slope": np.zeros((1, 4), np.float32)}, TypeError, "float32 and float64"),
        ({"scale": np.zeros(3)}, ValueError, r"scale \(3,\)"),
        ({"z": np.zeros(8)}, ValueError, r"z \(8,\)"),
        ({"z": np.zeros(5, np.float32)}, TypeError, "z in float64"),
        ({"weight": np.zeros((8, 4))}, ValueError, r"weight \(8, 4\)"),
    ],
)
def test_spline_table_refuses_what_does_not_fit(change, error, message):
    given = {"weight": np.zeros((9, 4)), "slope": np.zeros((1, 4)), "scale": np.zeros(2), "z": np.zeros(5)}
    given["starts"] = np.array([0, 5, 9])
    table = kernels.spline_table(*given.values())
    with pytest.raises(error, match=message):
        kernels.spline_table(*{**given, **change}.values())
    with pytest.raises(error, match=message.replace("spline_table", "spline_table_grad")):
        kernels.spline_table_grad(table, *{**given, **change}.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_standardize_takes_any_layout_and_numbers_of_any_size(dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 8)) * 10.0 ** rng.integers(-300, 300, (50, 8))
    x[rng.random(x.shape) < 0.2] = np.nan
    center, scale, gaps = np.zeros(8), np.full(8, 1e-10), np.array([7, 0, 3])
    for limit in (3.0, 1e-300):
        with np.errstate(over="ignore", invalid="ignore"):
            q = np.clip(x / scale / limit, -1e150, 1e150)
            expected = np.where(np.isnan(x), 0, limit * (q / np.sqrt(1 + q * q)))
        for laid_out in (x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
            y = kernels.standardize(laid_out, center, scale, gaps, limit, dtype)
            np.testing.assert_allclose(y[:, :8], expected.astype(dtype), rtol=1e-6)
            assert (y[:, 8:] == np.isnan(x[:, gaps])).all()
