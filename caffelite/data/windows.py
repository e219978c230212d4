"""Windows of a series: the steps that a model sees, and the steps that follow. No window is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from caffelite.core.arrays import NUMBERS, as_array, check_bool, check_integers, check_positive_integer
from caffelite.data import frames


class WindowRows:
    """Rows that overlap in memory, as a source: `shape`, `dtype` and slices. `np.asarray` turns it into an array."""

    def __init__(self, view: np.ndarray) -> None:
        self.view, self.shape, self.dtype, self.ndim = view, view.shape, view.dtype, view.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        return self.view[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.view, dtype, copy=copy)

    def overlap(self) -> bool:
        """Return whether a row has values that the next row has, too."""
        return np.may_share_memory(self.view[:1], self.view[1:2])

    def __repr__(self) -> str:
        return f"WindowRows{self.shape}"


Rows = WindowRows  # its name in pickles from older versions


class Windows:
    """Sliding windows of a time series: x has `length` values, y the next `horizon`.

        windows = cl.Windows(series, length=24, horizon=6)
        training, validation = windows.split(0.2)
        model.fit(training.x, training.y, validation_data=(validation.x, validation.y), …)

    By default x[i] = series[i : i + length] and y[i] = targets[i + length : i + length + horizon], for every i for
    which both exist: `rows` = n − length − horizon + 1. With horizon 0, y is x, for an autoencoder.

    Parameters
    ----------
    series : array-like (n,) or (n, features), or a frame
        Numbers in order of time, equally spaced.
    length : int
        How many values a window has.
    horizon : int
        How many values after the window to predict. 0: the window itself.
    targets : array-like (n,) or (n, k), or the name of a column of the frame, or a list of names, optional
        The values to predict, if not the series itself.
    channels_first : bool
        If True, windows are (features, length), for `Conv1d`. Otherwise they are (length, features), for recurrent
        layers and attention.
    stride : int
        How far apart the starts of neighbouring windows are.
    sampling_rate : int
        How far apart neighbouring values of a window and its y are: of one value per minute, 60 takes one per hour.
        `length` and `horizon` count the values that are taken.

    `x` is (rows, length, features), with one feature for a series (n,). `y` is (rows, horizon) for targets (n,), and
    (rows, horizon, k) for targets (n, k). Both are sources: views with `shape`, `dtype` and slices, which `fit`,
    `predict`, `evaluate` and `DataGenerator` accept. They copy the windows if these take 64 MiB or less, and read
    larger ones block by block (`caffelite.sources`). So windows never need `length` times the memory of the series.

    With `horizon` 1, y is (rows, 1). If your own loss or metric selects a column of the outputs, select it in the
    targets too: `outputs[:, 0] <= targets[:, 0]`. NumPy would broadcast (rows,) and (rows, 1) to (rows, rows).

    `model.predict(series[None, -length:])` returns the values after the end of a series (n, features).

    Raise ValueError if the series is too short for a window, for other shapes, and for targets of another length or
    with horizon 0. Raise TypeError if the data are not numbers, or `length`, `horizon`, `stride` or `sampling_rate` is
    not an integer.
    """

    def __init__(
        self,
        series: Any,
        length: int,
        horizon: int = 1,
        *,
        targets: Any = None,
        channels_first: bool = False,
        stride: int = 1,
        sampling_rate: int = 1,
    ) -> None:
        self.length = check_positive_integer("Windows: length", length)
        (self.horizon,) = check_integers("Windows: horizon", horizon, 1, 0)
        self.stride = check_positive_integer("Windows: stride", stride)
        self.sampling_rate = check_positive_integer("Windows: sampling_rate", sampling_rate)
        self.channels_first = check_bool("Windows: channels_first", channels_first)
        series = frames.open_frame(series, "Windows: series")
        self.series = _to_numbers(series, "series")
        self.targets = self.series if targets is None else _to_numbers(_select_targets(series, targets), "targets")
        n = len(self.series)
        if len(self.targets) != n:
            raise ValueError(
                f"Windows: targets have shape {self.targets.shape} and the series {self.series.shape}: expected equal "
                "lengths"
            )
        if self.horizon == 0 and targets is not None:
            raise ValueError("Windows: with horizon 0, y is the window itself: leave out targets")
        span = (self.length + self.horizon - 1) * self.sampling_rate + 1  # from a window's first value to y's last
        self.rows = (n - span) // self.stride + 1
        if self.rows < 1:
            raise ValueError(
                f"Windows: a series of {n} rows is too short for a window of length {self.length} and horizon "
                f"{self.horizon}: expected {span} rows or more"
            )
        features = self.series.reshape(n, -1) if self.series.ndim == 1 else self.series
        x = self._take_windows(features, self.length)  # (rows, features, length)
        self.x = self.y = WindowRows(x if self.channels_first else x.swapaxes(1, 2))
        if self.horizon > 0:
            y = self._take_windows(self.targets[self.length * self.sampling_rate :], self.horizon)
            self.y = WindowRows(y if y.ndim == 2 else y.swapaxes(1, 2))

    def _take_windows(self, series: np.ndarray, length: int) -> np.ndarray:
        """Return a view of this many values from the start of each row, along the last axis."""
        view = sliding_window_view(series, (length - 1) * self.sampling_rate + 1, axis=0)
        return view[:: self.stride][: self.rows][..., :: self.sampling_rate]

    def __len__(self) -> int:
        return self.rows

    def split(self, share: float, *, overlap: bool = False) -> tuple[Windows, Windows]:
        """Return the windows of the first part of the series, and those of the last part, a fraction `share` of it.

        Use the first part for training and the last for validation. (A random split would validate on rows used in
        training.) Each row of the series is in the windows of only one part. With `overlap`, the last part's first
        windows reach back into the first part by a window's length, so that its y start with its first row.

        Raise ValueError unless 0 < share < 1, or if a part is too short for a window.
        """
        if isinstance(share, bool) or not isinstance(share, NUMBERS):
            raise TypeError(f"split: expected a share, got {share!r}")
        if not 0 < share < 1:
            raise ValueError(f"split: expected a share above 0 and below 1, got {share!r}")
        n = len(self.series)
        cut = n - round(n * share)
        reach = self.length * self.sampling_rate * check_bool("split: overlap", overlap) * (self.horizon > 0)
        return self._part(0, cut), self._part(max(cut - reach, 0), n)

    def _part(self, first: int, stop: int) -> Windows:
        targets = None if self.targets is self.series else self.targets[first:stop]
        steps = {"stride": self.stride, "sampling_rate": self.sampling_rate}
        options: dict[str, Any] = {"targets": targets, "channels_first": self.channels_first, **steps}
        return Windows(self.series[first:stop], self.length, self.horizon, **options)

    def __repr__(self) -> str:
        return f"Windows({self.rows:,} rows: x {self.x.shape[1:]}, y {self.y.shape[1:]})"


def _select_targets(series: Any, targets: Any) -> Any:
    """Return the columns of a frame that targets name, and other targets as they are."""
    names = [targets] if isinstance(targets, str) else targets
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return targets
    if not frames.is_frame(series):
        raise TypeError(
            f"Windows: targets: expected numbers, got {targets!r}, and the series is not a frame with names"
        )
    columns = frames.get_columns(frames.select(series, names, "Windows: targets"), "Windows: targets")
    return columns[targets] if isinstance(targets, str) else columns


def _to_numbers(data: Any, what: str) -> np.ndarray:
    """Return a series (n,) or (n, k) as an array in native byte order, which may be mapped from a file."""
    name = f"Windows: {what}"
    is_named = frames.is_frame(data) or frames.is_series(data)
    array = np.asarray(frames.as_array(data, name) if is_named else as_array(data, name))
    if array.ndim not in (1, 2) or 0 in array.shape:
        raise ValueError(f"{name}: expected (n,) or (n, features), got shape {array.shape}")
    if array.dtype.kind not in "buif":
        raise TypeError(f"{name}: expected numbers, got {array.dtype}")
    return array
