"""The data that come with the package."""

import numpy as np
import pytest

import caffelite as cl


def test_a_spiral_is_float32_points_and_int64_labels_class_by_class():
    x, y = cl.datasets.spiral(points_per_class=7, classes=4, seed=0)
    assert (x.shape, x.dtype, y.dtype) == ((28, 2), np.float32, np.int64)
    assert y.tolist() == sorted(list(range(4)) * 7)


def test_without_noise_a_spiral_is_its_formula():
    x, y = cl.datasets.spiral(points_per_class=50, classes=3, noise=0)
    for j in range(3):
        r, angle = np.linspace(0, 1, 50), np.linspace(4 * j, 4 * (j + 1), 50)
        np.testing.assert_allclose(x[y == j], np.column_stack([r * np.sin(angle), r * np.cos(angle)]), atol=1e-6)


def test_the_noise_of_a_spiral_is_normal_and_in_the_angle():
    x, y = cl.datasets.spiral(points_per_class=20_000, classes=2, noise=0.1, seed=0)
    np.testing.assert_allclose(np.hypot(*x[y == 1].T), np.linspace(0, 1, 20_000), atol=1e-6)
    angle = np.arctan2(*x[y == 1][1:].T) - np.linspace(4, 8, 20_000)[1:]
    noise = (angle + np.pi) % (2 * np.pi) - np.pi
    assert abs(noise.mean()) < 0.003
    assert abs(noise.std() - 0.1) < 0.003


def test_the_same_seed_gives_the_same_spiral():
    assert (cl.datasets.spiral(seed=1)[0] == cl.datasets.spiral(seed=1)[0]).all()
    assert (cl.datasets.spiral(seed=1)[0] != cl.datasets.spiral(seed=2)[0]).any()
    assert (cl.datasets.spiral()[0] != cl.datasets.spiral()[0]).any()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"points_per_class": 0}, ValueError),
        ({"points_per_class": 1.5}, TypeError),
        ({"classes": -1}, ValueError),
        ({"classes": "3"}, TypeError),
        ({"noise": -0.1}, ValueError),
        ({"noise": float("nan")}, ValueError),
        ({"noise": "much"}, TypeError),
    ],
)
def test_a_spiral_of_impossible_size_or_noise_raises(options, error):
    with pytest.raises(error, match=next(iter(options))):
        cl.datasets.spiral(**options)


def test_digits_are_1437_images_to_learn_from_and_360_to_test_on():
    (x_train, y_train), (x_test, y_test) = cl.datasets.digits()
    assert (x_train.shape, y_train.shape) == ((1437, 8, 8), (1437,))
    assert (x_test.shape, y_test.shape) == ((360, 8, 8), (360,))
    for x, y in ((x_train, y_train), (x_test, y_test)):
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        assert (x.min(), x.max()) == (0, 1)
        assert (x * 16 == np.round(x * 16)).all()
        assert set(y.tolist()) == set(range(10))


def test_the_split_of_the_digits_is_stratified():
    (_, y_train), (_, y_test) = cl.datasets.digits()
    test, train = np.bincount(y_test), np.bincount(y_train)
    assert (abs(test - (test + train) * 360 / 1797) <= 1).all()


def test_digits_are_the_same_at_each_call_and_belong_to_the_caller():
    (first, _), _ = cl.datasets.digits()
    kept = first.copy()
    first[...] = -1
    (second, _), _ = cl.datasets.digits()
    assert (second == kept).all()


def test_digits_are_the_uci_images():
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    (x_train, y_train), (x_test, y_test) = cl.datasets.digits()
    x = np.concatenate([x_train, x_test]).reshape(1797, 64) * 16
    y = np.concatenate([y_train, y_test])
    theirs = sorted(zip(labels.tolist(), images.tolist(), strict=True))
    assert sorted(zip(y.tolist(), x.tolist(), strict=True)) == theirs
