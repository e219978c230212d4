"""Augmentation: what happens to each image, and what it is drawn from."""

import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.cases import both_dtypes
from tests.cases.dropout import philox
from tests.conftest import train
from tests.reference import LAYOUTS, assert_close, assert_same_bits, plain_copy

MOVING = [cl.augment.shift(2), cl.augment.flip(), cl.augment.cutout(3), cl.augment.crop(4, padding=1)]
CHANGING = [
    cl.augment.rotate(30),
    cl.augment.zoom(0.3),
    cl.augment.brightness(0.4),
    cl.augment.contrast(0.5),
    cl.augment.noise(0.1),
]
MIXING = [cl.augment.mixup(0.4, classes=50), cl.augment.cutmix(classes=50)]
AUGMENTATIONS = [*MOVING, *CHANGING, *MIXING]
OF_IMAGES = [augmentation for augmentation in AUGMENTATIONS if augmentation.needs_images]
every_augmentation = pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=repr)
DRAWN = [(0, 0, 0), (7, 3, 1), (2**63 - 1, 2**62 + 2**31, 5), (12345678901234567, 2**32 + 1, 2**19)]
SHAPES = [(40, 5, 7), (3, 2, 6, 4), (17, 3, 1, 1), (0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4), (2, 3, 4, 0)]


def numbers(drawn, i, *counts):
    """Return what is drawn for image i: of each count m, a number below m."""
    seed, batch, before = drawn
    place = (before << 44) + i
    words = philox((place % 2**32, place >> 32, batch % 2**32, batch >> 32), (seed % 2**32, seed >> 32))
    return [m * word >> 32 for m, word in zip(counts, words, strict=False)]


def shift(x, drawn, pixels):
    y = np.zeros_like(x)
    H, W = x.shape[-2:]
    for i in range(len(x)):
        down, right = (number - pixels for number in numbers(drawn, i, 2 * pixels + 1, 2 * pixels + 1))
        for h in range(H):
            for w in range(W):
                if 0 <= h - down < H and 0 <= w - right < W:
                    y[i, ..., h, w] = x[i, ..., h - down, w - right]
    return y


def flip(x, drawn):
    return np.array([image[..., ::-1] if numbers(drawn, i, 2)[0] else image for i, image in enumerate(x)], x.dtype)


def crop(x, drawn, size, padding):
    height, width = size
    wide = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(padding, padding)] * 2)
    H, W = wide.shape[-2:]
    y = np.empty((*x.shape[:-2], height, width), x.dtype)
    for i in range(len(x)):
        top, left = numbers(drawn, i, H - height + 1, W - width + 1)
        top, left = H - height - top, W - width - left
        y[i] = wide[i, ..., top : top + height, left : left + width]
    return y


def resample(x, maps):
    """y[h, w] = x[u, v]: a sum over all pixels, each weighted by how near it is to (u, v)."""
    x = x.astype(np.float64)
    H, W = x.shape[-2:]
    y = np.zeros(x.shape)
    middle = np.array([H - 1, W - 1]) / 2
    for i, h, w in np.ndindex(len(x), H, W):
        u, v = middle + maps[i] @ ([h, w] - middle)
        near = np.maximum(1 - abs(np.arange(H) - u), 0)[:, None] * np.maximum(1 - abs(np.arange(W) - v), 0)
        y[i, ..., h, w] = (x[i] * near).sum(axis=(-2, -1))
    return y


def cut_out(x, drawn, size):
    y = x.copy()
    for i in range(len(x)):
        h, w = (number - size // 2 for number in numbers(drawn, i, *x.shape[-2:]))
        y[i, ..., max(h, 0) : max(h + size, 0), max(w, 0) : max(w + size, 0)] = 0
    return y


@both_dtypes
@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_image_becomes_what_its_row_draws(shape, drawn, dtype):
    x, state = np.random.default_rng(0).uniform(1, 2, shape).astype(dtype), np.array(drawn)
    before = x.copy()
    for extent in (0, 1, 2, 3, 8, 2**31 - 1):
        assert_same_bits(kernels.shift(x, state, extent), shift(x, drawn, extent))
        assert_same_bits(kernels.cutout(x, state, extent), cut_out(x, drawn, extent))
    for padding, height, width in ((0, 1, 1), (3, 2, 6), (9, 7, 18), (2**31 - 1, 3, 2)):
        if padding < 100 and height <= shape[-2] + 2 * padding and width <= shape[-1] + 2 * padding:
            y = kernels.crop(x, state, height, width, padding)
            assert_same_bits(y, crop(x, drawn, (height, width), padding))
    if x.size:
        assert_same_bits(kernels.flip(x, state), flip(x, drawn))
    assert_same_bits(x, before)
    assert state.tolist() == list(drawn)


@both_dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_pixels_come_from_between_the_pixels_around_their_place(shape, dtype):
    rng = np.random.default_rng(0)
    x, maps = rng.uniform(1, 2, shape).astype(dtype), rng.normal(size=(shape[0], 2, 2))
    for factor in (1, 1e-3, 1e3, 1e300):
        assert_close(kernels.affine(x, maps * factor), resample(x, maps * factor), dtype)
    assert_same_bits(kernels.affine(x, np.tile(np.eye(2), (len(x), 1, 1))), x)
    assert (kernels.affine(x, np.full(maps.shape, np.nan)) == 0).all()


def test_turning_is_counter_clockwise_and_a_factor_above_1_makes_larger():
    x, drawn = np.zeros((400, 9, 9), np.float32), np.array([3, 0, 0])
    x[:, 4, 6] = 1  # right of the middle
    h, w = np.indices((9, 9)) - 4
    numbers = np.random.default_rng([3, 0, 0]).uniform(-1, 1, 400)
    turned, _ = cl.augment.rotate(90).apply(x, None, drawn)
    up, right = -(turned * h).sum(axis=(1, 2)), (turned * w).sum(axis=(1, 2))
    np.testing.assert_allclose(np.degrees(np.arctan2(up, right)), 90 * numbers, atol=6)
    zoomed, _ = cl.augment.zoom(0.5).apply(x, None, drawn)
    distances = (zoomed * w).sum(axis=(1, 2)) / zoomed.sum(axis=(1, 2))
    assert np.corrcoef(distances, 1 + 0.5 * numbers)[0, 1] > 0.95


@both_dtypes
def test_pixels_become_brighter_farther_from_their_mean_and_noisy(dtype):
    x, drawn = np.random.default_rng(0).uniform(size=(50, 3, 6, 7)).astype(dtype), np.array([7, 3, 1])
    numbers = np.random.default_rng([7, 3, 1]).uniform(-1, 1, 50)[:, None, None, None]
    mean = x.mean(axis=(2, 3), keepdims=True, dtype=np.float64)
    normal = np.random.default_rng([7, 3, 1]).standard_normal(x.shape, dtype)
    for augmentation, truth in (
        (cl.augment.brightness(0.3), x + 0.3 * numbers),
        (cl.augment.contrast(0.3), mean + (1 + 0.3 * numbers) * (x - mean)),
        (cl.augment.noise(0.3), x + 0.3 * normal),
    ):
        assert_close(augmentation.apply(x, None, drawn)[0], truth, dtype)
    assert drawn.tolist() == [7, 3, 1]


@both_dtypes
def test_mixup_mixes_rows_and_targets_by_the_same_shares(dtype):
    rng = np.random.default_rng(0)
    x, labels = rng.uniform(size=(50, 4)).astype(dtype), rng.integers(5, size=50)
    numbers = rng.uniform(size=(50, 2))
    drawn = np.array([7, 3, 1])
    draws = np.random.default_rng([7, 3, 1])
    others, shares = draws.permutation(50), draws.beta(0.4, 0.4, 50)[:, None]
    mixed, y = cl.augment.mixup(0.4, classes=5).apply(x, labels, drawn)
    assert_close(mixed, shares * x + (1 - shares) * x[others], dtype)
    assert_close(y, shares * np.eye(5)[labels] + (1 - shares) * np.eye(5)[labels[others]], dtype)
    assert_close(y.sum(axis=1), np.ones(50), dtype)
    for classes in (None, 5):
        mixed_again, y = cl.augment.mixup(0.4, classes=classes).apply(x, numbers, drawn)
        assert_same_bits(mixed_again, mixed)
        assert_close(y, shares * numbers + (1 - shares) * numbers[others], dtype)
    for result in (mixed, y):
        assert result.dtype == dtype


@pytest.mark.parametrize("shape", [(60, 2, 7, 5), (60, 7, 5)])
@both_dtypes
def test_cutmix_replaces_a_rectangle_and_mixes_targets_by_its_area(shape, dtype):
    x = np.broadcast_to(np.arange(60, dtype=dtype).reshape(60, *[1] * (len(shape) - 1)), shape)
    y, probabilities = cl.augment.cutmix(classes=60)(x, np.arange(60))
    areas = []
    for i, image in enumerate(y):
        found = set(np.unique(image)) - {i}
        assert len(found) <= 1
        replaced = image.reshape(-1, 7, 5)[0] != i
        assert (image == image.reshape(-1, 7, 5)[0]).all()
        assert_same_bits(replaced, np.outer(replaced.any(axis=1), replaced.any(axis=0)))
        expected = np.eye(60)[i] * (1 - replaced.mean())
        for other in found:
            expected += np.eye(60)[int(other)] * replaced.mean()
        assert_close(probabilities[i], expected, dtype)
        areas.append(replaced.sum())
    assert len(set(areas)) > 8
    assert probabilities.dtype == y.dtype == dtype


def test_a_side_of_a_rectangle_is_the_given_part_of_the_image_or_less_at_its_border():
    sides = [cl.data.augment._interval(16, np.full(4000, part), np.random.default_rng(0)) for part in (0, 0.51, 1)]
    counts = [inside.sum(axis=1) for inside in sides]
    assert counts[0].max() == 0
    assert (counts[1].min(), counts[1].max()) == (4, 8)
    assert (counts[2].min(), counts[2].max()) == (8, 16)


@pytest.mark.parametrize("augmentation", MOVING, ids=repr)
@both_dtypes
def test_kept_pixels_keep_their_bits_and_new_ones_are_zero(augmentation, dtype):
    x = np.full((50, 4, 4), np.nan, dtype)
    y, _ = augmentation(x, None)
    assert (np.isnan(y) | ((y == 0) & ~np.signbit(y))).all()


@pytest.mark.usefixtures("restored_threads")
@every_augmentation
@both_dtypes
def test_every_number_of_threads_draws_the_same(augmentation, dtype):
    x = np.random.default_rng(0).normal(size=(201, 3, 40, 41)).astype(dtype)
    results = []
    for n in (1, 2, 3, 8):
        cl.set_num_threads(n)
        results.append(augmentation.apply(x, np.arange(201) % 50, np.array([7, 3, 1]))[0])
    for result in results[1:]:
        assert_same_bits(result, results[0])


@every_augmentation
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@both_dtypes
def test_odd_layouts_give_the_plain_copys_bits(augmentation, layout, dtype):
    odd = layout(np.random.default_rng(0).normal(size=(20, 6, 6)).astype(dtype))
    plain = plain_copy(odd)
    results = [augmentation.apply(x, np.arange(20), np.array([7, 3, 1])) for x in (odd, plain)]
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)
    assert_same_bits(odd, plain)


def test_every_move_and_every_place_is_as_likely_as_any_other():
    """Counts within 5 standard deviations; the seed is fixed."""
    n = 60_000
    x = np.zeros((n, 5, 5), np.float32)
    x[:, 2, 2] = 1
    moved = kernels.shift(x, np.array([1, 0, 0]), 2).sum(axis=0).ravel()
    cut = (kernels.cutout(x + 1, np.array([2, 0, 0]), 1) == 0).sum(axis=0).ravel()
    mirrored = kernels.flip(np.tile(np.float32([0, 1]), (n, 1, 1)), np.array([3, 0, 0])).sum(axis=0).ravel()
    for counts in (moved, cut, mirrored):
        expected = n / len(counts)
        assert counts.sum() == n
        assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


# ---- through a DataGenerator ----------------------------------------------------------------------------------------

X = np.random.default_rng(0).uniform(size=(50, 1, 6, 6)).astype(np.float32)
Y = np.arange(50)


def epochs(transform, count=2, **options):
    """Return the images of some epochs, each put back into the data's order."""
    generator = cl.DataGenerator(X, Y, **{"batch_size": 16, "seed": 0, **options}, transform=transform)
    images = []
    for _ in range(count):
        xs, ys = zip(*generator, strict=True)
        targets = np.concatenate(ys)
        order = targets.argsort() if targets.ndim == 1 else np.arange(len(targets))
        images.append(np.concatenate(xs)[order])
    return np.array(images)


@every_augmentation
def test_the_generators_seed_is_what_augmentations_draw_from(augmentation):
    first = epochs(augmentation)
    assert_same_bits(epochs(augmentation), first)
    assert (epochs(augmentation, seed=1, shuffle=False) != epochs(augmentation, shuffle=False)).any()


@every_augmentation
def test_each_epoch_and_each_batch_is_drawn_again(augmentation):
    same = np.tile(np.arange(1, 20 * 36 + 1, dtype=np.float32).reshape(20, 6, 6), (2, 1, 1))
    generator = cl.DataGenerator(same, Y[:40], batch_size=20, shuffle=False, seed=0, transform=augmentation)
    batches = [x for _ in range(3) for x, _ in generator]
    for i, batch in enumerate(batches):
        assert all((batch != other).any() for other in batches[:i])


@every_augmentation
def test_an_epoch_left_early_changes_no_later_one(augmentation):
    def second_epoch(batches):
        generator = cl.DataGenerator(X, Y, batch_size=16, shuffle=False, seed=0, transform=augmentation)
        for _ in zip(range(batches), generator, strict=False):
            pass
        return np.concatenate([x for x, _ in generator])

    assert_same_bits(second_epoch(1), second_epoch(4))


@every_augmentation
def test_two_passes_at_once_draw_what_each_would_draw_alone(augmentation):
    def generator():
        return cl.DataGenerator(X, Y, batch_size=16, shuffle=False, seed=0, transform=augmentation)

    one, two = generator(), generator()
    together = list(zip(one, one, strict=True))
    for i in range(2):
        for (x, _), pair in zip(two, together, strict=True):
            assert_same_bits(pair[i][0], x)


def test_an_augmentation_behind_others_changes_nothing_of_theirs():
    seen = []
    shift, flip = cl.augment.shift(2), cl.augment.flip()

    def shift_only(x, y):
        seen.append(shift(x, y)[0])
        return seen[-1], y

    def both(x, y):
        seen.append(shift(x, y)[0])
        return flip(seen[-1], y)

    alone, after = epochs(shift_only), epochs(both)
    assert (alone != after).any()
    for one, two in zip(seen[:8], seen[8:], strict=True):
        assert_same_bits(one, two)


def test_the_same_augmentation_twice_draws_twice():
    shift = cl.augment.shift(1)
    x = np.zeros((200, 5, 5), np.float32)
    x[:, 2, 2] = 1
    generator = cl.DataGenerator(x, np.arange(200), batch_size=200, seed=0, transform=lambda x, y: shift(*shift(x, y)))
    ((moved, _),) = generator
    assert (moved.sum(axis=0) > 0).all()  # two pixels away as well, and some not as far as they would be in one draw
    assert len(np.unique(np.argwhere(moved)[:, 1:], axis=0)) == 25


def test_an_augmentation_that_nobodys_transform_calls_draws_from_the_system():
    results = [cl.augment.shift(2)(X, Y)[0] for _ in range(2)]
    assert (results[0] != results[1]).any()


def test_after_a_transform_that_raised_augmentations_are_nobodys_again():
    def raises(x, y):
        raise ZeroDivisionError

    results = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            epochs(raises)
        results.append(cl.augment.shift(2)(X, Y)[0])
    assert (results[0] != results[1]).any()


def test_a_list_of_transforms_is_one_after_the_other():
    shift, flip = cl.augment.shift(2), cl.augment.flip()
    assert_same_bits(epochs([shift, flip]), epochs(lambda x, y: flip(*shift(x, y))))
    assert_same_bits(epochs((shift,)), epochs(shift))
    assert_same_bits(epochs([]), epochs(None))


def test_a_transform_in_a_list_that_returns_no_pair_raises():
    with pytest.raises(TypeError, match=r"transform: expected a pair \(x, y\) back, got ndarray"):
        epochs([cl.augment.flip(), lambda x, y: x, cl.augment.flip()])


@pytest.mark.parametrize("augmentation", [*MOVING, *CHANGING], ids=repr)
def test_labels_come_back_as_they_are(augmentation):
    y = object()
    assert augmentation(X, y)[1] is y


@pytest.mark.parametrize("augmentation", OF_IMAGES, ids=repr)
@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (X[0, 0], ValueError, r"\(n, C, H, W\) or \(n, H, W\), got shape \(6, 6\)"),
        (X[None], ValueError, r"\(1, 50, 1, 6, 6\)"),
        ((X * 255).astype(np.uint8), TypeError, "float32 or float64, got uint8"),
        ((X, X), TypeError, "takes images, one array of floats, got tuple"),
        (X.tolist(), TypeError, "got list"),
    ],
)
def test_something_other_than_an_array_of_images_raises(augmentation, x, error, message):
    with pytest.raises(error, match=f"{augmentation.name}.*{message}"):
        augmentation(x, Y)


@pytest.mark.parametrize("augmentation", [cl.augment.noise(1), cl.augment.mixup()], ids=repr)
def test_rows_of_any_shape_become_noisy_or_mixed(augmentation):
    for shape in ((50,), (50, 3), (50, 2, 3, 4, 5)):
        x = np.random.default_rng(0).normal(size=shape)
        changed, _ = augmentation(x, x)
        assert changed.shape == shape
        assert (changed != x).any()
    with pytest.raises(ValueError, match=rf"{augmentation.name}.*rows \(n, …\), got shape \(\)"):
        augmentation(np.array(1.0), Y)


@pytest.mark.parametrize("mixing", [cl.augment.mixup, cl.augment.cutmix])
@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (np.r_[3, 10, np.zeros(48, int)], ValueError, r"label 10 in row 1 of the batch is not in 0 … 9"),
        (np.r_[np.zeros(49, int), -1], ValueError, r"label -1 in row 49"),
        (Y[:40] % 10, ValueError, r"x of shape \(50, 1, 6, 6\) and y of shape \(40,\)"),
        (Y[:, None] % 10, ValueError, r"one label a row, \(n,\), got shape \(50, 1\)"),
        (Y > 3, TypeError, "y of floats, got bool"),
        (np.full(50, "a"), TypeError, "y of floats, got <U1"),
        ((Y, Y), TypeError, "y, one array, got tuple"),
    ],
)
def test_targets_that_cannot_be_mixed_raise(mixing, y, error, message):
    with pytest.raises(error, match=f"{mixing.__name__}.*{message}"):
        mixing(classes=10)(X, y)
    with pytest.raises(TypeError, match=rf"{mixing.__name__}\(.*got int64.*classes=10"):
        mixing()(X, Y)


@pytest.mark.parametrize(
    ("make", "message", "error"),
    [
        (lambda: cl.augment.crop(0), "crop: size takes 1 to", ValueError),
        (lambda: cl.augment.crop((2, 3, 4)), "crop: size", ValueError),
        (lambda: cl.augment.crop((2, 3.0)), "crop: size", TypeError),
        (lambda: cl.augment.crop(2, -1), "crop: padding", ValueError),
        (lambda: cl.augment.crop(2, 2**31), "crop: padding", ValueError),
        (lambda: cl.augment.crop(9)(X, Y), "crop.*9 × 9 pixels fits into images of 6 × 6 with 0", ValueError),
        (lambda: cl.augment.rotate(0), "rotate: degrees", ValueError),
        (lambda: cl.augment.rotate("15"), "rotate: degrees", TypeError),
        (lambda: cl.augment.rotate(np.inf), "rotate: degrees", ValueError),
        (lambda: cl.augment.zoom(1.0), "zoom: factor .* below 1", ValueError),
        (lambda: cl.augment.contrast(1), "contrast: factor .* below 1", ValueError),
        (lambda: cl.augment.brightness(-0.1), "brightness: amount", ValueError),
        (lambda: cl.augment.noise(np.nan), "noise: std", ValueError),
        (lambda: cl.augment.mixup(0), "mixup: alpha", ValueError),
        (lambda: cl.augment.mixup(classes=0), "mixup: classes", ValueError),
        (lambda: cl.augment.cutmix(classes=2.5), "cutmix: classes", TypeError),
        (lambda: kernels.crop(X, np.zeros(3, np.int64), -1, 2), "crop takes windows of 0 pixels or more", ValueError),
        (lambda: kernels.affine(X, np.eye(2)), r"affine .*\(50, 1, 6, 6\), got shape \(2, 2\)", ValueError),
        (lambda: kernels.affine(X, np.zeros((50, 2, 2), np.float32)), "affine .* float64, got float32", TypeError),
    ],
)
def test_an_argument_out_of_range_raises_with_its_name(make, message, error):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("make", [cl.augment.shift, cl.augment.cutout])
@pytest.mark.parametrize(
    ("extent", "error"),
    [(0, ValueError), (-1, ValueError), (2**31, ValueError), (10**30, ValueError), (1.5, TypeError)],
)
def test_a_distance_or_size_that_cannot_be_raises(make, extent, error):
    with pytest.raises(error, match=make.__name__):
        make(extent)


@pytest.mark.parametrize("kernel", [kernels.shift, kernels.cutout])
@pytest.mark.parametrize("pixels", [-1, 2**31])
def test_a_kernel_refuses_extents_that_its_draws_do_not_reach(kernel, pixels):
    with pytest.raises(ValueError, match="2³¹"):
        kernel(X, np.zeros(3, np.int64), pixels)


@every_augmentation
def test_augmentations_pickle_and_say_how_they_were_made(augmentation):
    assert repr(pickle.loads(pickle.dumps(augmentation))) == repr(augmentation)
    assert [repr(a) for a in AUGMENTATIONS] == [
        *("shift(2)", "flip()", "cutout(3)", "crop(4, 4, 1)", "rotate(30)", "zoom(0.3)", "brightness(0.4)"),
        *("contrast(0.5)", "noise(0.1)", "mixup(0.4, classes=50)", "cutmix(1, classes=50)"),
    ]


def test_the_same_seed_trains_the_same_weights_and_another_one_others():
    def weights(seed):
        model = cl.Model([cl.Flatten(), cl.Linear(36, 50)], seed=0)
        transform = [cl.augment.shift(1), cl.augment.rotate(20), cl.augment.mixup(classes=50)]
        data = cl.DataGenerator(X, Y, batch_size=16, shuffle=False, seed=seed, transform=transform)
        train(model, data, epochs=3)
        return model.parameters()[0].data

    assert_same_bits(weights(0), weights(0))
    assert (weights(0) != weights(1)).any()


@pytest.mark.parametrize("augmentation", OF_IMAGES, ids=repr)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_with_channels_last_raise_and_the_error_names_the_transpose(augmentation, channels):
    x = np.ones((4, 12, 12, channels), np.float32)
    with pytest.raises(ValueError, match=r"seems to be \(n, H, W, C\): give x.transpose\(0, 3, 1, 2\)"):
        augmentation(x, Y[:4])
    assert augmentation(x.transpose(0, 3, 1, 2), Y[:4])[0].shape[:2] == (4, channels)
