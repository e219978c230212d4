"""Callbacks that write the history to files."""

from __future__ import annotations

import csv
import io
import os
import time
from pathlib import Path
from typing import Any

from caffelite._support.extras import install_command
from caffelite.files.atomic import open_file, write_all
from caffelite.training.callbacks.base import warn_on_write_error
from caffelite.training.history import History


class CSVLog:
    """Writes the history to a file of comma-separated values, one row after each completed epoch.

    The first row has the names: `epoch`, counted from 1, `loss` and so on. The file replaces an older one when training
    begins. If training continues from a checkpoint, the file also has the epochs before it. Numbers are written with
    all their digits.

    Raise OSError with the file's name before the first step if the file cannot be written. A FIFO or a device raises
    OSError and is never opened. If a later write fails, for example because the disk is full, caffelite gives a
    RuntimeWarning and training continues. The file keeps its rows, and the next write adds the missing ones.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def begin(self, training: Any) -> None:
        history, self._is_main = training.history, training.is_main
        self._rows = 0  # of the file
        self._write("wb", history, history.epochs)

    def __call__(self, epoch: int, history: History) -> None:
        with warn_on_write_error("the log was not written"):
            self._write("ab", history, epoch + 1)

    def _write(self, mode: str, history: History, epochs: int) -> None:
        """Write the names, if the file is new, and the epochs that the file lacks."""
        if not self._is_main:
            return
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if mode == "wb":
            writer.writerow(("epoch", *history))
        columns = [values[self._rows - epochs :] for values in history.values()]
        writer.writerows(zip(range(self._rows + 1, epochs + 1), *columns, strict=True))
        try:
            with open(self.path, mode, buffering=0, opener=open_file) as file:
                size = file.tell()
                try:
                    write_all(file, text.getvalue().encode())
                except OSError:
                    file.truncate(size)  # or the next row would follow a part of one
                    raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._rows = epochs


class TensorBoard:
    """Writes the history for TensorBoard: `tensorboard --logdir folder` shows its curves in a browser.

    Each quantity of the history is a scalar with the same tag (`loss`, `val_loss`, …). The step is the epoch, counted
    from 1. Each training run writes a file of its own into the folder, which is created if it does not exist. Every
    epoch is in the file as soon as it is completed. Give each run a folder of its own below `--logdir`. If training
    continues from a checkpoint, TensorBoard no longer shows the later epochs of an older file in the folder.

    Needs tensorboardX: `pip install tensorboardX`. Without it, raises ImportError. Raise OSError before the first step
    if the folder cannot be made or written. If a later write fails, caffelite gives a RuntimeWarning and training
    continues.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        _tensorboardx()
        self.folder = Path(folder).absolute()
        self._file: Any = None

    def begin(self, training: Any) -> None:
        if not training.is_main:
            return
        library = _tensorboardx()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = library.event_file_writer.EventsWriter(str(self.folder / "events"), f".{time.time_ns()}")
        if done := training.history.epochs:
            self._write(done + 1, session_log=library.proto.event_pb2.SessionLog(status=1))  # it starts at this step

    def __call__(self, epoch: int, history: History) -> None:
        if self._file is not None:
            summary = _tensorboardx().proto.summary_pb2.Summary()
            for name, values in history.items():
                summary.value.add(tag=name, simple_value=values[-1])
            with warn_on_write_error("the log for TensorBoard was not written"):
                self._write(epoch + 1, summary=summary)

    def _write(self, step: int, **content: Any) -> None:
        event = _tensorboardx().proto.event_pb2.Event(wall_time=time.time(), step=step, **content)
        self._file.write_event(event)
        self._file.flush()

    def end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with warn_on_write_error("the log for TensorBoard is not complete"):
                file.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}


def _tensorboardx() -> Any:
    try:
        import tensorboardX
    except ImportError as error:
        raise ImportError(f"TensorBoard needs tensorboardX: {install_command('tensorboard')}") from error
    return tensorboardX
