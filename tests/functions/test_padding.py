"""Pad and `pad`: what their cases do not say."""

import numpy as np
import pytest

import caffelite as cl
from tests.reference import assert_same_bits, special_values

X = np.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize(
    "widths",
    [2, np.int64(1), (1, 3), [(0, 1), (2, 0), (3, 9)], np.array([[1], [0], [2]]), {1: 2}, {-1: (0, 3), 0: (1, 0)}],
)
def test_widths_are_numpys(widths, mode):
    of_all = (
        [np.broadcast_to(widths.get(i, widths.get(i - 3, 0)), 2) for i in range(3)] if type(widths) is dict else widths
    )
    assert_same_bits(cl.pad(X, widths, mode).data, np.pad(X, of_all, mode))  # NumPy 2.2 takes no dict


def test_the_constant_is_a_number():
    assert_same_bits(cl.pad([1.0], (2, 1), constant_values=3).data, np.array([3, 3, 1, 3], np.float32))
    assert np.isnan(cl.pad([1.0], 1, constant_values=np.nan).data[[0, 2]]).all()
    for value in ([1, 2], "1", None, True):
        with pytest.raises(TypeError, match="constant_values"):
            cl.pad([1.0], 1, constant_values=value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_padding_copies_bits(mode, dtype):
    values = special_values(dtype)
    assert_same_bits(cl.pad(values, 2, mode).data, np.pad(values, 2, mode))


def test_a_single_number_has_no_axes_to_pad():
    assert cl.pad(1.5, 2).data == np.float32(1.5)


@pytest.mark.parametrize("mode", ["wrap", "symmetric", "zero", "", None])
def test_other_modes_raise(mode):
    with pytest.raises(ValueError, match=r"pad knows the modes constant, reflect, edge"):
        cl.pad(X, 1, mode)


@pytest.mark.parametrize(
    ("widths", "error", "says"),
    [
        *[
            (1.0, TypeError, "widths"),
            (True, TypeError, "widths"),
            ("1", TypeError, "widths"),
            (None, TypeError, "widths"),
        ],
        *[(-1, ValueError, "-1"), ((1, -2), ValueError, "-2"), ((1, 2, 3), ValueError, "3 axes")],
        *[([(1, 2)] * 2, ValueError, "3 axes"), ((), ValueError, "3 axes"), ([(1, 2), 3, 4], ValueError, "3 axes")],
        *[({3: 1}, ValueError, "axis 3"), ({0: (1, 2, 3)}, ValueError, "3 axes")],
    ],
)
def test_widths_that_do_not_fit_raise(widths, error, says):
    with pytest.raises(error, match=f"pad.*{says}|{says}"):
        cl.pad(X, widths)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_an_axis_without_elements_has_nothing_to_copy(mode):
    with pytest.raises(ValueError, match=r"PadAxes.*\(2, 0\).*length 0"):
        cl.pad(np.ones((2, 0)), 1, mode)
    assert cl.pad(np.ones((2, 0)), ((1, 1), (0, 0)), mode).shape == (4, 0)


def test_pad_surrounds_images_and_series_alone():
    images = X.reshape(2, 1, 3, 4)
    layer = cl.Pad(((1, 2), (0, 3)), "replicate")
    assert layer.output_shape((None, 5, 3, None)) == (None, 5, 6, None)
    assert_same_bits(layer(images).data, np.pad(images, ((0, 0), (0, 0), (1, 2), (0, 3)), "edge"))
    assert_same_bits(cl.Pad(2)(X).data, np.pad(X, ((0, 0), (0, 0), (2, 2))))


@pytest.mark.parametrize("widths", [(1, 2), (), [[1], [2]], ((1, 2, 3),), (1, (2, 3))])
def test_pad_takes_an_integer_or_a_pair_for_each_axis(widths):
    with pytest.raises(ValueError, match=r"Pad takes an integer, or a pair for each axis"):
        cl.Pad(widths)


def test_pad_refuses_other_widths_modes_and_shapes():
    for widths in (1.5, "1", None, ((1, 1.0),), True):
        with pytest.raises(TypeError, match="Pad: widths"):
            cl.Pad(widths)
    with pytest.raises(ValueError, match=r"Pad: widths.*-1"):
        cl.Pad(-1)
    for mode in ("constant", "edge", None):
        with pytest.raises(ValueError, match="Pad knows the modes zero, reflect, replicate"):
            cl.Pad(1, mode)
    for layer, shape in ((cl.Pad(((1, 2), (3, 4))), (2, 3, 4)), (cl.Pad(1), (4,))):
        with pytest.raises(ValueError, match=r"Pad\(.*got shape .*; expected \(n, \?"):
            layer(np.ones(shape))
    with pytest.raises(ValueError, match="length 0"):
        cl.Pad(1, "reflect")(np.ones((2, 3, 0)))


@pytest.mark.parametrize("mode", ["zero", "reflect", "replicate"])
def test_a_net_with_pad_is_saved_and_trains_as_one_with_padded_images(tmp_path, mode):
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(12, 1, 5, 4)).astype(np.float32), rng.integers(0, 3, 12)
    padded = cl.Pad(((1, 2), (2, 1)), mode)(images).data

    def train_net(functions, x):
        model = cl.Model([*functions, cl.Conv2d(1, 2, 3), cl.ReLU(), cl.Flatten(), cl.Linear(60, 3)], seed=0)
        model.fit(x, labels, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), 0.1), epochs=3, batch_size=5)
        return model

    inside, before = train_net([cl.Pad(((1, 2), (2, 1)), mode)], images), train_net([], padded)
    for p, q in zip(inside.parameters(), before.parameters(), strict=True):
        assert_same_bits(p.data, q.data)
    inside.save(tmp_path / "net")
    assert_same_bits(cl.load(tmp_path / "net").predict(images), before.predict(padded))
