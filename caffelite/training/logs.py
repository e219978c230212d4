"""Callbacks that write the history to files."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from caffelite.files import safetensors as files
from caffelite.training.history import History


class CSVLog:
    """Writes the history to a file of comma-separated values, one row after each completed epoch.

    The first row has the names: `epoch`, counted from 1, `loss` and so on. The file replaces an older one when the
    training begins. If the training continues from a checkpoint, the file also has the epochs before it. Numbers are
    written with all their digits. Raises OSError with the file's name if the file cannot be written: before the first
    step if it cannot be created. A FIFO or a device raises OSError and is never opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def begin(self, training: Any) -> None:
        history, self._leads = training.history, training.leads
        self._write("wb", [("epoch", *history), *zip(range(1, history.epochs + 1), *history.values(), strict=True)])

    def __call__(self, epoch: int, history: History) -> None:
        self._write("ab", [(epoch + 1, *[values[-1] for values in history.values()])])

    def _write(self, mode: str, rows: list[tuple]) -> None:
        if not self._leads:
            return
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        try:
            with open(self.path, mode, opener=files.open_file) as file:
                file.write(text.getvalue().encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
