"""Film: it trains as `fit` does, to the bit, and its frames are what the model computed then."""

import json
import re
import sys
from base64 import b64decode
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import caffelite as cl
from caffelite._support.colours import PALETTE
from caffelite.visualize import animation as films
from caffelite.visualize.plots import TINT

Image = pytest.importorskip("PIL.Image")

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)
NUMBERS = np.linspace(-1, 1, 40)[:, None]
SQUARES = NUMBERS**2


def classifier(dtype=np.float32):
    return cl.Model(
        [cl.Linear(2, 16), cl.BatchNorm(16), cl.ReLU(), cl.Dropout(0.1), cl.Linear(16, 3)], seed=0, dtype=dtype
    )


def regression(dtype=np.float32):
    return cl.MLP(1, [8, 1], seed=0, dtype=dtype)


def arguments(model, **more):
    loss = cl.SoftmaxLoss() if model.functions[-1].weight.shape[1] > 1 else cl.MSELoss()
    given = {"loss": loss, "optimizer": cl.Adam(model.parameters(), lr=0.02), "epochs": 12, "verbose": 0}
    return given | more


def make_film(model=None, x=X, y=Y, frames=5, **more):
    model = classifier() if model is None else model
    return cl.plots.film(model, x, y, frames=frames, **arguments(model, **more))


def state(model):
    return [a.tobytes() for a in model.state_dict().values()]


OPTIONS = [
    {},
    {"batch_size": 7, "shuffle": False},
    {"validation_split": 0.25, "metrics": ["accuracy"], "clip_norm": 1.0},
    {"seed": 3, "epochs": 1},
    {"sample_weight": np.arange(60) % 3, "accumulate": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "as usual")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_training_has_the_bits_of_fit(options, dtype):
    fitted, model = classifier(dtype), classifier(dtype)
    given = arguments(fitted, **options)
    history = fitted.fit(X, Y, **given)
    film = make_film(model, **options)
    assert state(model) == state(fitted)
    assert film.history == history
    assert str(model._model_state.rng.bit_generator.state) == str(fitted._model_state.rng.bit_generator.state)


def test_callbacks_are_called_as_by_fit():
    epochs, fitted, model = [], classifier(), classifier()
    stop = lambda: cl.callbacks.EarlyStopping(monitor="loss", patience=2, min_delta=0.05)  # noqa: E731
    fitted.fit(X, Y, **arguments(fitted, callbacks=[stop()], epochs=60))
    film = make_film(model, callbacks=[stop(), lambda epoch, _: epochs.append(epoch)], epochs=60)
    assert state(model) == state(fitted)
    assert epochs == list(range(film.history.epochs))
    assert film.epochs[-1] == film.history.epochs < 60
    np.testing.assert_array_equal(
        film.outputs[-1], model.predict(film.points)
    )  # the best parameters, which it set back


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("make", "x", "y"), [(classifier, X, Y), (regression, NUMBERS, SQUARES)], ids=["plane", "curve"]
)
def test_each_frame_has_the_models_outputs_at_that_epoch(make, x, y, dtype):
    untrained, model = make(dtype), make(dtype)
    film = make_film(model, x, y)
    assert film.epochs == [0, 1, 3, 7, 12]
    assert len(film) == 5
    np.testing.assert_array_equal(film.outputs[0], untrained.predict(film.points))
    np.testing.assert_array_equal(film.outputs[-1], model.predict(film.points))
    half = make(dtype)
    half.fit(x, y, **arguments(half, epochs=7))
    np.testing.assert_array_equal(film.outputs[3], half.predict(film.points))
    assert [outputs.dtype for outputs in film.outputs] == [dtype] * 5


def test_the_last_picture_has_the_regions_of_the_trained_model():
    model = classifier()
    film = make_film(model, epochs=40)
    picture = film.frames[-1].astype(int)
    ends = np.array(
        [[film.points[:, 0].min(), film.points[:, 1].max()], [film.points[:, 0].max(), film.points[:, 1].min()]]
    )
    rows = np.flatnonzero((picture != 255).all(axis=-1).sum(axis=1) > 300)
    rows = rows[rows < len(picture) - films.LOSS * films.DPI]  # below is the loss, with the lines of a grid
    columns = np.flatnonzero((picture[rows] != 255).all(axis=-1).sum(axis=0) > 250)
    (top, bottom), (left, right) = rows[[0, -1]], columns[[0, -1]]
    decided, seen = [], []
    rng = np.random.default_rng(0)
    for across, down in rng.random((300, 2)):
        point = ends[0] + (ends[1] - ends[0]) * [across, down]
        scores = model.predict(point[None])[0]
        if abs(X - point).sum(axis=1).min() < 0.15 or np.sort(scores)[-1] - np.sort(scores)[-2] < 1:
            continue  # below a point, or near a border
        pixel = picture[round(top + down * (bottom - top)), round(left + across * (right - left))]
        tints = [255 * (1 - TINT * (1 - np.array(to_rgb(PALETTE[k])))) for k in range(3)]
        decided.append(scores.argmax())
        seen.append(np.argmin([abs(tint - pixel).sum() for tint in tints]))
    assert len(seen) > 40
    assert np.mean(np.array(seen) == decided) > 0.95


def test_frames_are_dense_at_the_beginning_and_there_is_one_at_most_for_each_epoch():
    assert make_film(epochs=100, frames=11).epochs == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 100]
    assert make_film(epochs=3, frames=40).epochs == [0, 1, 2, 3]


def test_a_gif_has_all_frames_and_stays_on_the_last(tmp_path):
    film = make_film()
    film.save(tmp_path / "film.gif", fps=5)
    with Image.open(tmp_path / "film.gif") as gif:
        assert gif.n_frames == len(film)
        assert gif.info["loop"] == 0
        assert gif.size == film.frames[0].shape[1::-1]
        durations = []
        for i, frame in enumerate(film.frames):
            gif.seek(i)
            durations.append(gif.info["duration"])
            off = abs(np.asarray(gif.convert("RGB")).astype(int) - frame)
            assert off.mean() < 2
            assert (np.asarray(gif.convert("RGB"))[0, 0] == 255).all()  # white stays white
    assert durations == [200] * 4 + [2200]
    assert (tmp_path / "film.gif").stat().st_size < 25_000 * len(film)


def test_a_page_has_all_frames_and_needs_nothing_else(tmp_path):
    film = make_film()
    film.save(tmp_path / "film.html")
    page = (tmp_path / "film.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?://|@[A-Z]+@", page)
    settings = json.loads(re.search(r"const film = (.*);", page)[1])
    assert settings["epochs"] == film.epochs
    pictures = [np.asarray(Image.open(BytesIO(b64decode(p))).convert("RGB")) for p in settings["pictures"]]
    for picture, frame in zip(pictures, film.frames, strict=True):
        assert abs(picture.astype(int) - frame).mean() < 2
    assert len(page) < 45_000 * len(film)
    assert film._repr_html_() in page
    assert 'aria-label="play"' in page
    assert "epoch 12" in page


def test_a_film_in_a_terminal_says_how_to_save_it():
    assert repr(make_film(epochs=2)) == 'Film(3 frames, epochs 0 … 2; .save("film.gif") writes it)'


def test_two_films_on_a_page_have_names_of_their_own():
    names = [re.search(r'id="(film-\w+)"', make_film(epochs=epochs)._repr_html_())[1] for epochs in (2, 3)]
    assert names[0] != names[1]


def test_the_curve_of_a_regression_is_drawn_with_its_error():
    model = regression()
    film = make_film(model, NUMBERS, SQUARES[:, 0])
    assert film.points.shape == (films.CURVE_POINTS, 1)
    assert film.points.min() < -1
    assert film.points.max() > 1
    picture = film.frames[-1]
    assert (abs(picture.astype(int) - np.round(255 * np.array(to_rgb(PALETTE[4])))).max(axis=-1) < 3).sum() > 300


def test_all_frames_have_one_size_and_their_text_is_within():
    film = make_film(epochs=2000, frames=3, batch_size=60)
    assert len({frame.shape for frame in film.frames}) == 1
    for frame in film.frames:
        edge = np.concatenate([frame[0], frame[-1], frame[:, 0], frame[:, -1]])
        assert (edge == 255).all()


def test_drawing_leaves_pyplot_alone():
    assert make_film().frames
    assert plt.get_fignums() == []


def test_a_training_that_diverges_raises_as_fit_does():
    model = classifier()
    with pytest.raises(cl.TrainingDiverged):
        make_film(model, optimizer=cl.SGD(model.parameters(), lr=1e30))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"x": np.zeros((4, 3))}, ValueError, r"film takes points \(n, 2\) with integer labels .* got shapes \(4, 3\)"),
        ({"y": Y[:-1]}, ValueError, r"got shapes \(60, 2\) and \(59,\)"),
        ({"y": Y.astype(float)}, ValueError, "of float32 and float64"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, ValueError, "got shapes"),
        ({"model": cl.Model([cl.Linear(2, 1)])}, ValueError, r"column of outputs for each class.*are \(n, 1\)"),
        ({"model": cl.Model([cl.Linear(1, 2)]), "x": NUMBERS, "y": SQUARES}, ValueError, r"one output.*are \(n, 2\)"),
        ({"model": cl.ReLU()}, TypeError, r"film takes a Model, got ReLU\(\)"),
        ({"frames": 1}, ValueError, "2 frames or more, got 1"),
        ({"frames": 0}, ValueError, "frames"),
        ({"epochs": 0}, ValueError, "epochs"),
        ({"rows": 3}, TypeError, "rows"),
    ],
)
def test_bad_arguments_are_named_before_the_training(given, error, message):
    model = given.pop("model", None) or classifier()
    before = [p.data.copy() for p in model.parameters()]
    more = {"loss": cl.SoftmaxLoss(), "optimizer": None, "epochs": 2}
    with pytest.raises(error, match=message):
        cl.plots.film(model, given.pop("x", X), given.pop("y", Y), **more | given)
    for p, values in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.data, values)


def test_other_files_raise(tmp_path):
    film = make_film()
    with pytest.raises(ValueError, match=r"Film.save writes .gif and .html, got 'film.mp4'"):
        film.save(tmp_path / "film.mp4")
    with pytest.raises(ValueError, match="fps"):
        film.save(tmp_path / "film.gif", fps=0)
    with pytest.raises(OSError, match="nowhere"):
        film.save(tmp_path / "nowhere" / "film.gif")


def test_without_matplotlib_it_raises_before_the_training(monkeypatch):
    model = classifier()
    before = state(model)
    monkeypatch.delitem(sys.modules, "caffelite._support.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"drawn by matplotlib, which is not installed: .* -m pip install matplotlib"):
        make_film(model)
    assert state(model) == before
