"""Windows of a series: what they are, that nothing is copied, and how they are split."""

import numpy as np
import pandas
import pytest

import caffelite as cl
from caffelite.data import out_of_core
from caffelite.data.out_of_core import is_source
from tests.cases import both_dtypes
from tests.conftest import train
from tests.reference import assert_same_bits


@pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 3)])
@pytest.mark.parametrize(("length", "horizon"), [(1, 1), (5, 1), (5, 3), (1, 19), (19, 1), (12, 8)])
@pytest.mark.parametrize("of_targets", [None, (20,), (20, 2)])
def test_rows_are_the_values_seen_and_those_that_follow(shape, length, horizon, of_targets):
    rng = np.random.default_rng(0)
    series = rng.normal(size=shape)
    targets = None if of_targets is None else rng.integers(9, size=of_targets)
    windows = cl.Windows(series, length, horizon, targets=targets)
    targets = series if targets is None else targets
    features = series.reshape(20, -1)
    x = [features[i : i + length] for i in range(20 - length - horizon + 1)]
    y = [targets[i + length : i + length + horizon] for i in range(20 - length - horizon + 1)]
    assert_same_bits(np.asarray(windows.x), np.array(x))
    assert_same_bits(np.asarray(windows.y), np.array(y))
    assert len(windows) == windows.rows == len(windows.x) == len(windows.y) == len(x)
    assert_same_bits(windows.x[1:3], np.array(x)[1:3])
    first = cl.Windows(series, length, horizon, channels_first=True)
    assert_same_bits(np.asarray(first.x), np.array(x).swapaxes(1, 2))


@pytest.mark.parametrize("shape", [(40,), (40, 3)])
@pytest.mark.parametrize(("length", "horizon"), [(1, 1), (5, 3), (7, 0)])
@pytest.mark.parametrize(("stride", "rate"), [(1, 1), (3, 1), (1, 4), (2, 5), (50, 2)])
def test_windows_with_steps_have_the_indices_of_keras(shape, length, horizon, stride, rate):
    series = np.random.default_rng(0).normal(size=shape)
    windows = cl.Windows(series, length, horizon, stride=stride, sampling_rate=rate)
    starts = [i for i in range(0, 40, stride) if i + (length + horizon - 1) * rate < 40]
    x = [[series.reshape(40, -1)[i + j * rate] for j in range(length)] for i in starts]
    y = [[series[i + (length + k) * rate] for k in range(horizon)] for i in starts] if horizon else x
    assert_same_bits(np.asarray(windows.x), np.array(x))
    assert_same_bits(np.asarray(windows.y), np.array(y))
    assert len(windows) == len(starts)
    assert np.shares_memory(windows.x.view, series)


def test_an_autoencoder_trains_on_windows_with_horizon_0():
    windows = cl.Windows(walk(), 16, 0, stride=2, channels_first=True)
    model = cl.Model([cl.Conv1d(1, 4, 4, stride=4), cl.Tanh(), cl.ConvTranspose1d(4, 1, 4, stride=4)], seed=0)
    assert windows.y.shape == (143, 1, 16)
    history = train(model, windows.x, windows.y, loss=cl.MSELoss(), epochs=40)
    assert history["loss"][-1] < 0.05 * history["loss"][0]
    first, last = windows.split(0.5, overlap=True)
    assert np.asarray(last.x)[0, 0, 0] == walk()[150]
    assert (first.stride, last.stride, len(first)) == (2, 2, 68)


def test_a_split_of_windows_with_steps_reaches_back_to_the_first_value():
    windows = cl.Windows(np.arange(100.0), 4, 2, sampling_rate=5, stride=3)
    first, last = windows.split(0.4, overlap=True)
    assert np.asarray(last.y)[0].tolist() == [60, 65]
    assert np.asarray(last.x)[0, :, 0].tolist() == [40, 45, 50, 55]
    assert np.asarray(first.y).max() < 60


def test_nothing_is_copied():
    series = np.zeros((1_000_000, 2), np.float32)
    windows = cl.Windows(series, 500, 100)
    for rows in (windows.x, windows.y):
        assert is_source(rows)
        assert np.shares_memory(rows.view, series)
    assert windows.x.shape == (999_401, 500, 2)
    assert windows.y.shape == (999_401, 100, 2)
    assert repr(windows) == "Windows(999,401 rows: x (500, 2), y (100, 2))"


def test_frames_and_their_columns_are_series():
    frame = pandas.DataFrame({"load": np.arange(10.0), "holiday": np.arange(10) % 2 == 0})
    windows = cl.Windows(frame, 3, targets=frame["load"])
    assert windows.x.shape == (7, 3, 2)
    assert np.asarray(windows.y).tolist() == [[i] for i in range(3, 10)]


# ---- where rows are taken -------------------------------------------------------------------------------------------


def walk(n=300, dtype=np.float64):
    return np.sin(np.arange(n) / 5).astype(dtype)


def recurrent(dtype=np.float32):
    return cl.Model([cl.GRU(1, 8), cl.Linear(8, 2)], seed=0, dtype=dtype)


@both_dtypes
def test_a_model_trains_on_windows_as_on_their_copies(dtype):
    windows = cl.Windows(walk(), 12, 2)
    copies = np.array(windows.x), np.array(windows.y)
    results = []
    for x, y in ((windows.x, windows.y), copies):
        model = recurrent(dtype)
        train(model, x, y, loss=cl.MSELoss(), epochs=2, validation_data=(x, y))
        results.append([model.predict(x), np.array(list(model.evaluate(x, y, loss=cl.MSELoss()).values()))])
        batches = cl.DataGenerator(x, y, batch_size=50, seed=3)
        results[-1] += [part for batch in batches for part in batch]
        train(model, batches, loss=cl.MSELoss())
        results[-1].append(model.predict(x))
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


def test_many_windows_are_read_block_by_block(monkeypatch):
    monkeypatch.setattr(out_of_core, "BUFFER", 2**14)
    monkeypatch.setattr(out_of_core, "BLOCK", 2**8)
    windows = cl.Windows(walk(), 12, 2)
    generator = cl.DataGenerator(windows.x, windows.y, batch_size=20, seed=0)
    assert generator.blocks is not None
    x, y = (np.concatenate(parts) for parts in zip(*generator, strict=True))
    order = np.lexsort(x[:, :, 0].T)
    plain = np.array(windows.x)
    assert_same_bits(x[order], plain[np.lexsort(plain[:, :, 0].T)])
    assert_same_bits(
        y[:, 0],
        np.array([np.sin(np.arange(300) / 5)[12 + i] for i in (plain[:, 0, 0][None] == x[:, 0]).argmax(axis=1)]),
    )
    model = recurrent()
    with pytest.warns(cl.TrainingWarning, match=OVERLAP):
        train(model, windows.x, windows.y, loss=cl.MSELoss(), epochs=2, validation_split=0.2)
    assert_same_bits(model.predict(windows.x), model.predict(plain))


OVERLAP = r"^validation_split draws windows at random, and windows overlap: .*windows\.split\(0\.2\)"


@pytest.mark.parametrize("channels_first", [False, True])
def test_a_random_split_of_windows_that_overlap_is_a_warning(channels_first):
    windows = cl.Windows(walk(), 12, 2, channels_first=channels_first, stride=11)
    assert windows.x.overlap()
    model = cl.Model([cl.Flatten(), cl.Linear(12, 2)], seed=0)
    with pytest.warns(cl.TrainingWarning, match=OVERLAP):
        train(model, windows.x, windows.y, loss=cl.MSELoss(), validation_split=0.2)
    apart = cl.Windows(walk(), 12, 2, channels_first=channels_first, stride=12)
    train(model, apart.x, apart.y, loss=cl.MSELoss(), validation_split=0.2)


def test_windows_in_place_of_x_and_y_raise_and_name_both_and_the_split():
    with pytest.raises(ValueError, match=r"got a Windows: give windows.x and windows.y; .* = windows\.split\(0\.2\)"):
        train(recurrent(), cl.Windows(walk(), 12, 2), loss=cl.MSELoss(), validation_split=0.2)


def test_convolutions_take_windows_with_channels_first():
    windows = cl.Windows(walk().reshape(-1, 2), 12, 3, channels_first=True)
    model = cl.Model([cl.Conv1d(2, 4, 3), cl.ReLU(), cl.Flatten(), cl.Linear(40, 6), cl.Reshape((3, 2))], seed=0)
    train(model, windows.x, windows.y, loss=cl.MSELoss())
    assert model.predict(windows.x).shape == (136, 3, 2)


# ---- split ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.77])
@pytest.mark.parametrize("with_targets", [False, True])
def test_the_parts_of_a_split_share_no_rows(share, with_targets):
    series = np.arange(100.0)
    windows = cl.Windows(series, 6, 2, targets=-series if with_targets else None, channels_first=True)
    training, validation = windows.split(share)
    seen = [set(np.abs(np.concatenate([np.ravel(part.x), np.ravel(part.y)]))) for part in (training, validation)]
    assert seen[0] == set(range(100 - round(100 * share)))
    assert seen[1] == set(range(100 - round(100 * share), 100))
    assert training.x.shape[1:] == windows.x.shape[1:] == (1, 6)
    reaching = windows.split(share, overlap=True)[1]
    assert abs(np.asarray(reaching.y)[0, 0]) == 100 - round(100 * share)
    assert np.asarray(reaching.x).min() == 100 - round(100 * share) - 6
    assert (np.sign(np.asarray(validation.y)) == (-1 if with_targets else 1)).all()


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: cl.Windows(np.zeros(10), 8, 3), ValueError, "10 rows is too short .* expected 11 rows or more"),
        (lambda: cl.Windows(np.zeros((2, 3, 4)), 1), ValueError, r"series: .*\(n, features\), got shape \(2, 3, 4\)"),
        (lambda: cl.Windows([], 1), ValueError, r"got shape \(0,\)"),
        (lambda: cl.Windows(np.zeros((5, 0)), 1), ValueError, r"got shape \(5, 0\)"),
        (lambda: cl.Windows(["a", "b"], 1), TypeError, "series: expected numbers, got <U1"),
        (lambda: cl.Windows(np.zeros(10), 2.0), TypeError, "length"),
        (lambda: cl.Windows(np.zeros(10), 2, -1), ValueError, "horizon"),
        (lambda: cl.Windows(np.zeros(10), 2, 0, targets=np.zeros(10)), ValueError, "y is the window itself"),
        (lambda: cl.Windows(np.zeros(10), 2, stride=0), ValueError, "stride"),
        (lambda: cl.Windows(np.zeros(10), 2, sampling_rate=1.5), TypeError, "sampling_rate"),
        (lambda: cl.Windows(np.zeros(10), 4, 1, sampling_rate=3), ValueError, "10 rows .* expected 13 rows or more"),
        (lambda: cl.Windows(np.zeros(10), 2, targets=np.zeros(9)), ValueError, r"targets have shape \(9,\).*\(10,\)"),
        (lambda: cl.Windows(np.zeros(10), 2, channels_first=1), TypeError, "channels_first"),
        (lambda: cl.Windows(np.zeros(10), 2).split(0), ValueError, "share above 0 and below 1, got 0"),
        (lambda: cl.Windows(np.zeros(10), 2).split(1.0), ValueError, "share above 0 and below 1, got 1.0"),
        (lambda: cl.Windows(np.zeros(10), 2).split("0.2"), TypeError, "share, got '0.2'"),
        (lambda: cl.Windows(np.zeros(10), 2).split(0.2), ValueError, "2 rows is too short"),
    ],
)
def test_arguments_that_give_no_windows_raise(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("library", ["pandas", "polars", "dict"])
def test_targets_are_columns_of_the_frame_by_name(library):
    columns = {"load": np.arange(20.0), "wind": np.arange(20.0) ** 2, "sun": np.ones(20)}
    frame = columns if library == "dict" else pytest.importorskip(library).DataFrame(columns)
    one, two = cl.Windows(frame, 5, 2, targets="wind"), cl.Windows(frame, 5, 2, targets=["wind", "load"])
    assert (np.asarray(one.y) == np.asarray(cl.Windows(frame, 5, 2, targets=columns["wind"]).y)).all()
    both = np.stack([columns["wind"], columns["load"]], axis=1)
    assert (np.asarray(two.y) == np.asarray(cl.Windows(frame, 5, 2, targets=both).y)).all()
    with pytest.raises(ValueError, match="Windows: targets: the frame has no column 'rain'; there are load, wind, sun"):
        cl.Windows(frame, 5, targets="rain")
    with pytest.raises(
        TypeError, match="targets: expected numbers, got 'wind', and the series is not a frame with names"
    ):
        cl.Windows(columns["load"], 5, targets="wind")


def test_windows_in_place_of_x_say_how_they_are_given():
    model = cl.Model([cl.GRU(1, 4), cl.Linear(4, 1)], seed=0)
    with pytest.raises(ValueError, match=r"got a Windows: give windows\.x and windows\.y"):
        model.fit(
            cl.Windows(np.arange(20.0), 5), loss=cl.MSELoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0
        )
