"""Augmentation: what happens to each image, and what it is drawn from."""

import pickle

import numpy as np
import pytest
from cases import both_dtypes
from cases.dropout import philox
from conftest import train
from reference import LAYOUTS, assert_same_bits, plain_copy

import caffelite as cl
from caffelite import _kernels as kernels

AUGMENTATIONS = [cl.augment.shift(2), cl.augment.flip(), cl.augment.cutout(3)]
every_augmentation = pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=repr)
DRAWN = [(0, 0, 0), (7, 3, 1), (2**63 - 1, 2**62 + 2**31, 5), (12345678901234567, 2**32 + 1, 2**19)]
SHAPES = [(40, 5, 7), (3, 2, 6, 4), (17, 3, 1, 1), (0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4), (2, 3, 4, 0)]


def numbers(drawn, i, *counts):
    """What is drawn for image i: of each count m, a number below m."""
    seed, batch, before = drawn
    place = (before << 44) + i
    words = philox((place % 2**32, place >> 32, batch % 2**32, batch >> 32), (seed % 2**32, seed >> 32))
    return [m * word >> 32 for m, word in zip(counts, words, strict=False)]


def shifted(x, drawn, pixels):
    y = np.zeros_like(x)
    H, W = x.shape[-2:]
    for i in range(len(x)):
        down, right = (number - pixels for number in numbers(drawn, i, 2 * pixels + 1, 2 * pixels + 1))
        for h in range(H):
            for w in range(W):
                if 0 <= h - down < H and 0 <= w - right < W:
                    y[i, ..., h, w] = x[i, ..., h - down, w - right]
    return y


def flipped(x, drawn):
    return np.array([image[..., ::-1] if numbers(drawn, i, 2)[0] else image for i, image in enumerate(x)], x.dtype)


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
        assert_same_bits(kernels.shift(x, state, extent), shifted(x, drawn, extent))
        assert_same_bits(kernels.cutout(x, state, extent), cut_out(x, drawn, extent))
    if x.size:
        assert_same_bits(kernels.flip(x, state), flipped(x, drawn))
    assert_same_bits(x, before)
    assert state.tolist() == list(drawn)


@every_augmentation
@both_dtypes
def test_what_is_kept_keeps_its_bits_and_what_enters_is_zero(augmentation, dtype):
    x = np.full((50, 4, 4), np.nan, dtype)
    y, _ = augmentation(x, None)
    assert (np.isnan(y) | ((y == 0) & ~np.signbit(y))).all()


@pytest.mark.usefixtures("threads_restored")
@every_augmentation
@both_dtypes
def test_every_number_of_threads_draws_the_same(augmentation, dtype):
    x = np.random.default_rng(0).normal(size=(201, 3, 40, 41)).astype(dtype)
    results = []
    for n in (1, 2, 3, 8):
        cl.set_num_threads(n)
        results.append(getattr(kernels, augmentation.kernel)(x, np.array([7, 3, 1]), **augmentation.arguments))
    for result in results[1:]:
        assert_same_bits(result, results[0])


@every_augmentation
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@both_dtypes
def test_odd_layouts_give_the_plain_copys_bits(augmentation, layout, dtype):
    odd = layout(np.random.default_rng(0).normal(size=(20, 6, 6)).astype(dtype))
    plain = plain_copy(odd)
    results = [
        getattr(kernels, augmentation.kernel)(x, np.array([7, 3, 1]), **augmentation.arguments) for x in (odd, plain)
    ]
    assert_same_bits(*results)
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
    """The images of some epochs, each put back into the data's order."""
    generator = cl.DataGenerator(X, Y, **{"batch_size": 16, "seed": 0, **options}, transform=transform)
    images = []
    for _ in range(count):
        xs, ys = zip(*generator, strict=True)
        images.append(np.concatenate(xs)[np.concatenate(ys).argsort()])
    return np.array(images)


@every_augmentation
def test_the_generators_seed_is_what_augmentations_draw_from(augmentation):
    first = epochs(augmentation)
    assert_same_bits(epochs(augmentation), first)
    assert (epochs(augmentation, seed=1, shuffle=False) != epochs(augmentation, shuffle=False)).any()


@every_augmentation
def test_each_epoch_and_each_batch_is_drawn_anew(augmentation):
    same = np.tile(np.arange(1, 37, dtype=np.float32).reshape(6, 6), (40, 1, 1))
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


def test_two_passes_at_once_draw_what_each_would_draw_alone():
    def generator():
        return cl.DataGenerator(X, Y, batch_size=16, shuffle=False, seed=0, transform=cl.augment.shift(2))

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


@every_augmentation
def test_labels_come_back_as_they_are(augmentation):
    y = object()
    assert augmentation(X, y)[1] is y


@every_augmentation
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
def test_what_is_no_array_of_images_raises(augmentation, x, error, message):
    with pytest.raises(error, match=f"{augmentation.kernel}.*{message}"):
        augmentation(x, Y)


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
    assert [repr(a) for a in AUGMENTATIONS] == ["shift(2)", "flip()", "cutout(3)"]


def test_the_same_seed_trains_the_same_weights_and_another_one_others():
    def weights(seed):
        model = cl.Model([cl.Flatten(), cl.Linear(36, 50)], seed=0)
        shift, flip = cl.augment.shift(1), cl.augment.flip()
        data = cl.DataGenerator(
            X, Y, batch_size=16, shuffle=False, seed=seed, transform=lambda x, y: flip(*shift(x, y))
        )
        train(model, data, epochs=3)
        return model.parameters()[0].data

    assert_same_bits(weights(0), weights(0))
    assert (weights(0) != weights(1)).any()
