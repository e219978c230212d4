"""`film`: training as an animated picture, with the model's outputs after some of the epochs.

While `fit` runs, a callback records the model's outputs on a grid. The pictures are drawn afterwards, because only then
is the length of the loss's axes known. The files are small because all frames share the same 64 colours, without
dithering. (matplotlib's PillowWriter gives each frame 256 colours of its own.)
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from caffelite._support.colours import FAINT, INK, PALETTE, style
from caffelite.core.arrays import check_positive, check_positive_integer
from caffelite.core.function import format_shape
from caffelite.model.model import Model
from caffelite.training.history import History
from caffelite.visualize.regions import Plane

PIXELS = 200  # along the longer side of the regions
CURVE_POINTS = 400  # points of a curve
MAX_POINTS = 2000  # rows to draw
WIDTH, DPI = 4.4, 100  # inches, and pixels per inch
TITLE, MAIN, LOSS = 0.3, 3.7, 1.25  # inches
COLOURS, MIN_DISTANCE = 64, 10  # colours of a film; of 255, how far others stay from the picture's own colours
LAST_SECONDS = 2.0  # seconds that an animation stays on its last frame


class Film:
    """A film of training, made by `film`, which a notebook shows with a slider.

    `history` is the result of `fit`. `epochs` has the number of completed epochs for each frame. `points` holds the
    inputs at which the model's outputs are drawn, (m, 2) or (m, 1), and `outputs` these outputs for each frame.
    """

    def __init__(self, subject: _Regions | _Curve) -> None:
        self.history = History()
        self.epochs: list[int] = []
        self.points: np.ndarray = subject.points
        self.outputs: list[np.ndarray] = []
        self._subject = subject
        self._predictions: list[np.ndarray] = []

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.epochs)

    def __repr__(self) -> str:
        return f'Film({len(self)} frames, epochs {self.epochs[0]} … {self.epochs[-1]}; .save("film.gif") writes it)'

    def _add_frame(self, model: Model, epoch: int) -> None:
        """Record a frame, replacing any frame of the same epoch."""
        if self.epochs[-1:] == [epoch]:
            for frame_list in (self.epochs, self.outputs, self._predictions):
                frame_list.pop()
        self.epochs.append(epoch)
        self.outputs.append(model.predict(self.points))
        self._predictions.append(model.predict(self._subject.x))

    @cached_property
    @style()
    def frames(self) -> list[np.ndarray]:
        """The pictures, each (height, width, 3) uint8, drawn when they are first needed."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        from caffelite._support.figures import Figure

        height = TITLE + MAIN * self._subject.height + LOSS  # of the figure; all frames have the same layout
        figure = Figure(WIDTH, height, layout="none", dpi=DPI)
        canvas = FigureCanvasAgg(figure)
        left, width = (WIDTH - MAIN - 0.1) / WIDTH, MAIN / WIDTH
        frames = []
        for epoch, outputs, predictions in zip(self.epochs, self.outputs, self._predictions, strict=True):
            figure.clear()
            main = figure.add_axes((left, LOSS / height, width, MAIN * self._subject.height / height))
            below = figure.add_axes((left, 0.3 / height, width, (LOSS - 0.55) / height))
            title = self._subject.draw(main, outputs, predictions)
            main.set_title(f"epoch {epoch:,}   {title}", fontsize=10, family="monospace")
            self._draw_loss(below, epoch)
            canvas.draw()
            frames.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
        return frames

    def _draw_loss(self, axes: Any, epoch: int) -> None:
        losses = np.array(self.history.get("loss", []))
        count = np.arange(1, len(losses) + 1)
        axes.plot(count, losses, color=FAINT, linewidth=1.5)
        axes.plot(count[:epoch], losses[:epoch], color=PALETTE[0], linewidth=1.5)
        if 0 < epoch <= len(losses):
            axes.plot([epoch], losses[epoch - 1], "o", color=PALETTE[0], markersize=5)
        if (losses > 0).all() and len(losses):
            axes.set_yscale("log")
        axes.set_xlim(0, max(1, len(losses)) * 1.02)
        axes.minorticks_off()
        axes.set_ylabel("loss", fontsize=9)
        axes.tick_params(labelsize=8)

    # ---- files --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike, *, fps: float = 8) -> None:
        """Write the film to a file: `.gif`, an animation, or `.html`, a page with a slider.

        `fps` is the number of frames per second. The last frame of a GIF stays for two more seconds. The page needs no
        other files and no network. Raise ValueError for any other file extension, and OSError if the file cannot be
        written.
        """
        path, fps = Path(path), check_positive("fps", fps)
        if path.suffix.lower() == ".gif":
            durations = [round(1000 / fps)] * len(self)
            durations[-1] += round(1000 * LAST_SECONDS)
            first, *rest = self._images
            options: Any = {"save_all": True, "append_images": rest, "duration": durations, "loop": 0}
            first.save(path, format="GIF", optimize=True, disposal=1, **options)
        elif path.suffix.lower() in (".html", ".htm"):
            path.write_text(PAGE.replace("FILM", self._html(fps)), encoding="utf-8")
        else:
            raise ValueError(f"Film.save writes .gif and .html, got {path.name!r}")

    @cached_property
    def _images(self) -> list[Any]:
        """Return the frames as Pillow images with 64 colours, the same in all frames."""
        from PIL import Image, ImageColor

        images = [Image.fromarray(frame) for frame in self.frames]
        sample = np.concatenate([self.frames[i] for i in sorted({0, len(self) // 3, len(self) - 1})])
        fixed_colours = np.array([ImageColor.getrgb(colour) for colour in ("#FFFFFF", INK, FAINT, *PALETTE)])
        count = COLOURS - len(fixed_colours)
        palette = Image.fromarray(sample).quantize(count, dither=Image.Dither.NONE).getpalette() or []
        candidates = np.array(palette).reshape(-1, 3)[:count]
        is_distinct = abs(candidates[:, None] - fixed_colours).max(axis=-1).min(axis=1) > MIN_DISTANCE
        colours = Image.new("P", (1, 1))
        colours.putpalette(np.concatenate([fixed_colours, candidates[is_distinct]]).reshape(-1).tolist())
        return [image.quantize(palette=colours, dither=Image.Dither.NONE) for image in images]

    def _html(self, fps: float) -> str:
        import json
        from base64 import b64encode
        from hashlib import sha256

        pictures = []
        for image in self._images:
            png = io.BytesIO()
            image.save(png, format="PNG", optimize=True)
            pictures.append(b64encode(png.getvalue()).decode())
        height, width = self.frames[0].shape[:2]
        values = {
            "ID": "film-" + sha256("".join(pictures).encode()).hexdigest()[:12],
            "WIDTH": str(width),
            "HEIGHT": str(height),
            "LAST": str(len(self) - 1),
            "EPOCH": f"epoch {self.epochs[-1]:,}",
            "PICTURE": pictures[-1],
            "SETTINGS": json.dumps({"epochs": self.epochs, "pictures": pictures, "milliseconds": 1000 / fps}),
        }
        html = WITH_SLIDER
        for name, value in values.items():
            html = html.replace(f"@{name}@", value)
        return html

    def _repr_html_(self) -> str:
        return self._html(fps=8)


class _Regions:
    """The picture for a classifier of points in the plane."""

    def __init__(self, model: Model, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y
        self.plane = Plane(x, PIXELS)
        self.points = self.plane.points
        self.height = len(self.plane.up) / len(self.plane.across)
        shape = model.predict(x[:1]).shape
        if len(shape) != 2 or shape[1] < 2:
            raise ValueError(
                "film draws the regions of a classifier with a column of outputs for each class, (n, classes); this "
                f"model's outputs are {format_shape((None, *shape[1:]))}"
            )

    def draw(self, axes: Any, outputs: np.ndarray, predictions: np.ndarray) -> str:
        shown_rows = _sample_rows(len(self.x))
        self.plane.draw(axes, outputs, self.x[shown_rows], self.y[shown_rows], predictions[shown_rows])
        return f"{np.mean(predictions.argmax(axis=1) == self.y):6.1%} right"


class _Curve:
    """The picture for a regression with one input."""

    height = 0.7

    def __init__(self, model: Model, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y.reshape(-1)
        low, high = float(x.min()), float(x.max())
        margin = 0.04 * (high - low) or 1.0
        self.points = np.linspace(low - margin, high + margin, CURVE_POINTS).reshape(-1, *x.shape[1:])
        shape = model.predict(x[:1]).shape
        if shape not in ((1,), (1, 1)):
            raise ValueError(
                "film draws the curve of a regression with one output, (n, 1) or (n,); this model's outputs are "
                f"{format_shape((None, *shape[1:]))}"
            )

    def draw(self, axes: Any, outputs: np.ndarray, predictions: np.ndarray) -> str:
        shown_rows, x = _sample_rows(len(self.x)), self.x.reshape(-1)
        low, high = self.y.min(), self.y.max()
        margin = 0.15 * float(high - low) or 1.0
        axes.scatter(x[shown_rows], self.y[shown_rows], s=14, color=PALETTE[5], linewidths=0)
        axes.plot(self.points.reshape(-1), outputs.reshape(-1), color=PALETTE[4], linewidth=2)
        axes.set(xlim=(self.points.min(), self.points.max()), ylim=(low - margin, high + margin))
        axes.grid(True)
        axes.tick_params(labelsize=8)
        return f"rms error {np.sqrt(np.mean((predictions.reshape(-1) - self.y) ** 2)):.3g}"


class _FrameRecorder:
    """The callback that records the frames."""

    def __init__(self, film: Film, frame_epochs: Iterable[int]) -> None:
        self.film, self.frame_epochs = film, sorted(frame_epochs)

    def begin(self, training: Any) -> None:
        self.model = training.model
        self.film._add_frame(self.model, training.history.epochs)

    def due(self, epochs: int) -> float:
        return next((epoch for epoch in self.frame_epochs if epoch > epochs), float("inf"))

    def __call__(self, epoch: int, history: History) -> None:
        if epoch + 1 in self.frame_epochs:
            self.film._add_frame(self.model, epoch + 1)


def film(
    model: Model,
    x: Any,
    y: Any,
    *,
    loss: Any,
    optimizer: Any,
    epochs: int,
    frames: int = 40,
    callbacks: Iterable[Callable[[int, History], Any]] = (),
    **options: Any,
) -> Film:
    """Train like `fit`, and return a film, which a notebook shows with a slider.

        film = cl.plots.film(model, x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=200)
        film.save("spiral.gif")

    A classifier has points x (n, 2) and integer labels y (n,), and its outputs have a column for each class: the film
    shows `decision_regions`. A regression has numbers x (n, 1) or (n,) and targets y (n, 1) or (n,): the film shows its
    curve. The loss is drawn below. The film shows at most 2,000 of the rows, but the title counts all.

    The first frame shows the model before training, and the last one after it. Most of the `frames` are near the
    beginning, where most happens: frame i is taken after about epochs · (i / (frames − 1))² epochs. There is at most
    one per epoch.

    All other arguments, including `options`, are as in `fit`: batch_size, shuffle, metrics and so on. The result has
    the same bits as that of `fit` with the same arguments, and the errors are the same. `film.history` is what `fit`
    returns, and `film.save(path)` writes a `.gif` or an `.html` file.

    This needs matplotlib (the extra `plot`), and otherwise raises ImportError before training. Raise ValueError for
    other shapes of x, y and the outputs, and for fewer than 2 frames.
    """
    import caffelite._support.figures  # noqa: F401 (raises ImportError without matplotlib)

    frames, last_epoch = check_positive_integer("frames", frames), check_positive_integer("epochs", epochs)
    if frames < 2:
        raise ValueError(f"film takes 2 frames or more, got {frames}")
    result = Film(_choose_subject(model, np.asarray(x), np.asarray(y)))
    frame_epochs = {round(last_epoch * (i / (frames - 1)) ** 2) for i in range(frames)}
    camera = _FrameRecorder(result, frame_epochs)
    options |= {"loss": loss, "optimizer": optimizer, "epochs": epochs, "callbacks": [*callbacks, camera]}
    result.history = model.fit(x, y, **options)
    result._add_frame(model, result.history.epochs)  # a callback may have set other parameters at the end
    return result


def _choose_subject(model: Model, x: np.ndarray, y: np.ndarray) -> _Regions | _Curve:
    if not isinstance(model, Model):
        raise TypeError(f"film takes a Model, got {model!r}")
    if x.ndim == 2 and x.shape[1] == 2 and y.shape == x.shape[:1] and y.dtype.kind in "iu" and len(x):
        return _Regions(model, x, y)
    are_columns = all(a.ndim == 1 or a.shape[1:] == (1,) for a in (x, y))
    if are_columns and len(x) == len(y) > 0 and x.dtype.kind in "iuf" and y.dtype.kind in "iuf":
        return _Curve(model, x, y)
    raise ValueError(
        "film takes points (n, 2) with integer labels (n,), or numbers (n, 1) with targets (n,) or (n, 1); "
        f"got shapes {x.shape} and {y.shape} of {x.dtype} and {y.dtype}"
    )


def _sample_rows(rows: int) -> np.ndarray:
    """Return the indices of the rows to draw."""
    return np.linspace(0, rows - 1, min(rows, MAX_POINTS)).astype(int)


PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>A training</title>
<style>:root { color-scheme: light dark } body { margin: 1rem; font-family: system-ui, sans-serif }</style>
FILM
</html>
"""

# The page works without the script, too: it then shows the last frame. Nothing moves until you press play.
WITH_SLIDER = """<div id="@ID@" style="width:@WIDTH@px;max-width:100%">
<img class="as-is" width="@WIDTH@" height="@HEIGHT@" style="max-width:100%;height:auto;display:block"
 alt="What the model computes after each epoch, and the loss" src="data:image/png;base64,@PICTURE@">
<div style="display:flex;gap:0.5rem;align-items:center;margin-top:0.25rem">
<button type="button" aria-label="play" style="width:2.5rem">▶</button>
<input type="range" min="0" max="@LAST@" value="@LAST@" aria-label="frame" style="flex:1;min-width:4rem">
<output style="min-width:6.5rem;text-align:right">@EPOCH@</output>
</div>
<script>
(() => {
  const film = @SETTINGS@;
  const root = document.getElementById("@ID@");
  const [image, button, slider, output] = ["img", "button", "input", "output"].map((name) => root.querySelector(name));
  const last = film.epochs.length - 1;
  let timer = null;
  const show = () => {
    const epoch = "epoch " + film.epochs[slider.value].toLocaleString("en");
    image.src = "data:image/png;base64," + film.pictures[slider.value];
    output.textContent = epoch;
    slider.setAttribute("aria-valuetext", epoch);
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "▶";
    button.setAttribute("aria-label", "play");
  };
  const next = () => {
    slider.value = Math.min(last, Number(slider.value) + 1);
    show();
    if (Number(slider.value) === last) stop();
  };
  slider.addEventListener("input", () => { stop(); show(); });
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(slider.value) === last) { slider.value = 0; show(); }
    button.textContent = "❚❚";
    button.setAttribute("aria-label", "pause");
    timer = setInterval(next, film.milliseconds);
  });
})();
</script>
</div>
"""
