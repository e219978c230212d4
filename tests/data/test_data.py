"""DataGenerator: every pass is one epoch of fresh batches."""

import itertools
from collections import Counter

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train


def rows(generator):
    """Return the first column of an epoch's rows, in order."""
    return [int(row[0]) for batch in generator for row in (batch[0] if isinstance(batch, tuple) else batch)]


def numbered_rows(n):
    """x (n, 2) and y (n,) that both tell the row."""
    return np.column_stack([np.arange(n), np.arange(n)]).astype(np.float32), np.arange(n)


def test_an_epoch_has_every_row_once_with_its_target():
    x, y = numbered_rows(10)
    batches = list(cl.DataGenerator(x, y, batch_size=3, seed=0))
    assert [len(batch_x) for batch_x, _ in batches] == [3, 3, 3, 1]
    for batch_x, batch_y in batches:
        assert (batch_x[:, 0] == batch_y).all()
    assert sorted(itertools.chain(*[batch_y for _, batch_y in batches])) == list(range(10))


@pytest.mark.parametrize(("n", "size", "drop_last", "batches"), [(10, 3, False, 4), (10, 3, True, 3), (9, 3, True, 3)])
def test_the_length_is_the_number_of_batches(n, size, drop_last, batches):
    generator = cl.DataGenerator(*numbered_rows(n), batch_size=size, drop_last=drop_last)
    assert len(generator) == len(list(generator)) == batches


def test_drop_last_leaves_out_only_the_short_batch():
    generator = cl.DataGenerator(*numbered_rows(10), batch_size=4, shuffle=False, drop_last=True)
    assert rows(generator) == list(range(8))


def test_without_shuffle_rows_come_in_their_order_each_epoch():
    generator = cl.DataGenerator(*numbered_rows(7), batch_size=3, shuffle=False)
    assert rows(generator) == rows(generator) == list(range(7))


def test_each_epoch_is_shuffled_again():
    generator = cl.DataGenerator(*numbered_rows(50), batch_size=8, seed=0)
    epochs = [rows(generator) for _ in range(5)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, range(50)]}) == 6


def test_every_order_is_as_likely_as_any_other():
    generator = cl.DataGenerator(*numbered_rows(4), batch_size=4, seed=0)
    counts = Counter(tuple(rows(generator)) for _ in range(2400))
    assert len(counts) == 24
    assert 60 < min(counts.values()) <= max(counts.values()) < 140  # 100 expected, four standard deviations


def test_the_same_seed_gives_the_same_orders():
    def orders(seed):
        generator = cl.DataGenerator(*numbered_rows(30), seed=seed)
        return [rows(generator) for _ in range(3)]

    assert orders(5) == orders(5) == orders(np.random.default_rng(5))
    assert orders(5) != orders(6)
    assert orders(None) != orders(None)


def test_leaving_early_and_starting_again_starts_an_epoch():
    generator = cl.DataGenerator(*numbered_rows(20), batch_size=6, seed=0)
    for _ in generator:
        break
    assert sorted(rows(generator)) == list(range(20))


def test_two_passes_at_once_do_not_disturb_each_other():
    generator = cl.DataGenerator(*numbered_rows(12), batch_size=4, seed=0)
    pairs = list(zip(generator, generator, strict=True))
    for i in range(2):
        assert sorted(int(row) for pair in pairs for row in pair[i][1]) == list(range(12))


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_fresh_arrays(shuffle):
    x, y = numbered_rows(8)
    generator = cl.DataGenerator(x, y, batch_size=8, shuffle=shuffle, seed=0)
    for batch_x, batch_y in generator:
        batch_x[...], batch_y[...] = -1, -1
    assert (x == numbered_rows(8)[0]).all()
    assert (y == numbered_rows(8)[1]).all()
    assert sorted(rows(generator)) == list(range(8))


def test_without_y_batches_are_arrays_of_x():
    batches = list(cl.DataGenerator(numbered_rows(5)[0], batch_size=2, shuffle=False))
    assert [batch.shape for batch in batches] == [(2, 2), (2, 2), (1, 2)]


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8", "u1", "?", "c16", "U3", "M8[s]", ">f4", "i4,f8"])
def test_rows_of_any_dtype_without_objects_come_as_they_are(dtype):
    x = np.zeros(6, dtype) if "," in dtype else np.arange(6).astype(dtype)
    got = np.concatenate(list(cl.DataGenerator(x, batch_size=4, shuffle=False)))
    assert got.dtype.newbyteorder("=") == x.dtype.newbyteorder("=")
    assert (got == x).all()


def test_lists_and_arrays_of_many_axes_are_rows_too():
    assert rows(cl.DataGenerator([[3, 0], [4, 0], [5, 0]], shuffle=False)) == [3, 4, 5]
    images = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    (batch,) = cl.DataGenerator(images, shuffle=False)
    assert (batch == images).all()


def test_strided_rows_come_as_their_plain_copy():
    x = np.arange(60.0).reshape(10, 6)
    for odd in (x[::-2, ::3], np.asfortranarray(x), np.broadcast_to(x[:1], (4, 6))):
        assert (np.concatenate(list(cl.DataGenerator(odd, batch_size=3, shuffle=False))) == odd).all()


@pytest.mark.parametrize("x", [np.zeros((0, 2)), [], 3.0, np.zeros(())])
def test_no_rows_raise_value_error(x):
    with pytest.raises(ValueError, match="no rows"):
        cl.DataGenerator(x)


def test_x_and_y_of_different_lengths_raise_value_error_naming_both_shapes():
    with pytest.raises(ValueError, match=r"\(5, 2\).*\(4,\)"):
        cl.DataGenerator(numbered_rows(5)[0], np.arange(4))


def test_masked_elements_raise_value_error():
    masked = np.ma.masked_array(np.arange(3), [False, True, False])
    for x, y in ((masked, np.arange(3)), (np.arange(3), masked)):
        with pytest.raises(ValueError, match="masked elements"):
            cl.DataGenerator(x, y)


def test_python_objects_raise_type_error():
    with pytest.raises(TypeError, match="objects"):
        cl.DataGenerator(np.array([None, 1, "a"]))


@pytest.mark.parametrize(
    ("size", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError), ("2", TypeError), (True, TypeError)]
)
def test_a_batch_size_has_to_be_a_positive_integer(size, error):
    with pytest.raises(error, match="batch_size"):
        cl.DataGenerator(*numbered_rows(5), batch_size=size)


def test_drop_last_that_would_leave_nothing_raises_value_error():
    with pytest.raises(ValueError, match="drop_last"):
        cl.DataGenerator(*numbered_rows(5), batch_size=6, drop_last=True)


def test_a_batch_may_be_larger_than_the_data():
    assert rows(cl.DataGenerator(*numbered_rows(5), batch_size=2**40, shuffle=False)) == list(range(5))


# ---- several inputs, weights ----------------------------------------------------------------------------------------


def test_a_tuple_of_inputs_comes_as_tuples_of_the_same_rows():
    a, b, y, w = np.arange(10.0)[:, None], np.arange(10)[:, None, None], np.arange(10), np.arange(10) / 4
    for (x_a, x_b), targets, weights in cl.DataGenerator((a, b), y, sample_weight=w, batch_size=4, seed=0):
        assert (x_a[:, 0] == targets).all()
        assert (x_b[:, 0, 0] == targets).all()
        assert (weights * 4 == targets).all()
        assert x_b.dtype == b.dtype
    x_a, x_b = next(iter(cl.DataGenerator((a, b), shuffle=False)))
    assert (x_a == a).all()
    assert (x_b == b).all()


def test_inputs_and_weights_keep_the_order_that_the_seed_gives_without_them():
    x, y = np.arange(10.0), np.arange(10)
    plain = [targets.tolist() for _, targets in cl.DataGenerator(x, y, seed=3)]
    several = [targets.tolist() for _, targets, _ in cl.DataGenerator((x, x), y, sample_weight=x, seed=3)]
    assert plain == several


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (((np.zeros(3), np.zeros(4)), np.zeros(3)), {}, ValueError, r"\(3,\), \(4,\)"),
        (((np.zeros(3), np.zeros(3)), np.zeros(4)), {}, ValueError, r"3 rows.*4"),
        (((np.zeros(3), np.zeros(())), np.zeros(3)), {}, ValueError, r"x\[1\]"),
        (((np.zeros(3), np.array([None] * 3)), np.zeros(3)), {}, TypeError, r"x\[1\]"),
        (((), np.zeros(3)), {}, ValueError, "empty tuple"),
        ((np.zeros(3), np.zeros(3)), {"sample_weight": np.zeros(4)}, ValueError, r"3 rows.*\(4,\)"),
        ((np.zeros(3), np.zeros(3)), {"sample_weight": [1, -1, 1]}, ValueError, "row 1"),
        ((np.zeros(3), np.zeros(3)), {"sample_weight": [1, 1, np.nan]}, ValueError, "row 2"),
        ((np.zeros(3), np.zeros(3)), {"sample_weight": "abc"}, TypeError, "sample_weight"),
        ((np.zeros(3),), {"sample_weight": np.ones(3)}, ValueError, "needs y"),
    ],
)
def test_inputs_and_weights_that_do_not_fit_raise(arguments, options, error, message):
    with pytest.raises(error, match=message):
        cl.DataGenerator(*arguments, **options)


# ---- transform ------------------------------------------------------------------------------------------------------


def test_a_transform_changes_each_batch_and_gets_what_it_would_be_without():
    x, y = numbered_rows(10)
    given = []

    def transform(x, y):
        given.append((x.copy(), y.copy()))
        x *= 2  # it is the transform's own
        return x, y + 1

    options = {"batch_size": 4, "seed": 3}
    transformed = list(cl.DataGenerator(x, y, **options, transform=transform))
    plain = list(cl.DataGenerator(x, y, **options))
    assert len(transformed) == len(plain) == 3
    for (x_t, y_t), (x_g, y_g), (x_p, y_p) in zip(transformed, given, plain, strict=True):
        assert (x_g == x_p).all()
        assert (y_g == y_p).all()
        assert (x_t == 2 * x_p).all()
        assert (y_t == y_p + 1).all()
    assert (x == numbered_rows(10)[0]).all()


def test_a_transform_gets_a_tuple_of_inputs_and_weights_go_past_it():
    a, b, y, w = np.arange(10.0), np.arange(10), np.arange(10), np.arange(10) / 4

    def transform(x, y):
        return (x[0] + 1, x[1] + 2), y

    for (x_a, x_b), targets, weights in cl.DataGenerator((a, b), y, sample_weight=w, batch_size=4, transform=transform):
        assert (x_a == targets + 1).all()
        assert (x_b == targets + 2).all()
        assert (weights * 4 == targets).all()


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (None, TypeError, "pair .*got NoneType"),
        (np.zeros(5), TypeError, "pair .*got ndarray"),
        ((np.zeros(5),), TypeError, "pair .*got 1 parts"),
        ((np.zeros(5), np.zeros(5), np.zeros(5)), TypeError, "pair .*got 3 parts"),
        ((np.zeros(4), np.zeros(5)), ValueError, r"5 rows.*\(4,\), \(5,\)"),
        ((np.zeros((5, 2)), np.zeros(4)), ValueError, r"5 rows.*\(5, 2\), \(4,\)"),
        ((np.zeros(10), np.zeros(10)), ValueError, r"5 rows.*\(10,\)"),
        (((np.zeros(5), np.zeros(4)), np.zeros(5)), ValueError, r"5 rows.*\(5,\), \(4,\), \(5,\)"),
        ((3.0, np.zeros(5)), ValueError, r"5 rows.*\(\)"),
    ],
)
def test_a_transform_that_returns_no_pair_of_as_many_rows_raises(returned, error, message):
    generator = cl.DataGenerator(*numbered_rows(5), transform=lambda x, y: returned)
    with pytest.raises(error, match=f"transform.*{message}"):
        next(iter(generator))


def test_a_transform_that_cannot_be_called_or_has_no_targets_raises():
    with pytest.raises(TypeError, match=r"transform: expected a callable .* got 'shift'"):
        cl.DataGenerator(*numbered_rows(5), transform="shift")
    with pytest.raises(TypeError, match=r"transform\[1\]: expected a callable .* got 'shift'"):
        cl.DataGenerator(*numbered_rows(5), transform=[lambda x, y: (x, y), "shift"])
    with pytest.raises(ValueError, match="transform needs y"):
        cl.DataGenerator(numbered_rows(5)[0], transform=lambda x, y: (x, y))


@pytest.mark.parametrize("option", ["shuffle", "drop_last"])
def test_an_option_has_to_be_a_bool(option):
    x, y = numbered_rows(10)
    with pytest.raises(TypeError, match=f"{option} must be True or False, got 'no'"):
        cl.DataGenerator(x, y, **{option: "no"})
    assert getattr(cl.DataGenerator(x, y, **{option: np.False_}), option) is False


def test_a_generator_of_some_rows_trains_and_resumes_as_these_rows_alone(tmp_path):
    x, y = numbered_rows(12)
    rows, weights, log = np.array([0, 3, 3, 5, 7, 11]), np.arange(12.0), cl.callbacks.Checkpoint(tmp_path / "rows")

    def train_weights(generator, epochs=3, **options):
        model = classifier(2, 12)
        train(model, generator, epochs=epochs, **options)
        return bits(model)

    def some():
        return cl.DataGenerator(x, y, batch_size=4, seed=0, sample_weight=weights).restrict(rows)

    alone = cl.DataGenerator(x[rows], y[rows], batch_size=4, seed=0, sample_weight=weights[rows])
    expected = train_weights(alone)
    assert train_weights(some()) == expected
    train_weights(some(), epochs=2, callbacks=[log])
    assert train_weights(some(), resume=tmp_path / "rows") == expected
