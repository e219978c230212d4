"""The log as CSV, and TensorBoard."""

import copy
import os
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from caffelite.callbacks import CSVLog, Training

import caffelite as cl
from tests.conftest import bits, classifier, posix, train
from tests.training.callback_data import VALIDATION, X, Y

# ---- the log --------------------------------------------------------------------------------------------------------


def read_rows(path):
    return [line.split(",") for line in path.read_text().splitlines()]


def test_the_log_has_a_row_for_each_epoch_as_soon_as_it_is_completed(tmp_path):
    path, seen = tmp_path / "log.csv", []
    path.write_text("an older file")
    callbacks = [CSVLog(path), lambda *_: seen.append(len(read_rows(path)))]
    history = train(
        classifier(2, 3), X, Y, epochs=3, metrics=["accuracy"], validation_data=VALIDATION, callbacks=callbacks
    )
    names, *rows = read_rows(path)
    assert names == ["epoch", "loss", "accuracy", "val_loss", "val_accuracy"]
    assert [int(row[0]) for row in rows] == [1, 2, 3]
    assert [[float(value) for value in row[1:]] for row in rows] == [list(row) for row in zip(*history.values())]  # noqa: B905
    assert seen == [2, 3, 4]


def test_the_log_of_a_training_that_goes_on_has_the_epochs_before(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n1,3.0\n2,2.0\n3,1.5\n")  # epoch 3 was in no checkpoint
    history = cl.History({"loss": [3.0, 2.0]})
    log = CSVLog(path)
    model = classifier(2, 3)
    log.begin(Training(model, cl.SGD(model.parameters(), lr=1.0), cl.SoftmaxLoss(), history))
    history["loss"].append(1.25)
    log(2, history)
    assert path.read_text() == "epoch,loss\n1,3.0\n2,2.0\n3,1.25\n"


def test_a_log_that_cannot_be_written_is_an_error_before_the_first_step(tmp_path):
    model = classifier(2, 3)
    before = bits(model)
    path = tmp_path / "missing" / "log.csv"
    with pytest.raises(FileNotFoundError, match=re.escape(repr(str(path)))):
        train(model, X, Y, callbacks=[CSVLog(path)])
    assert bits(model) == before


class FullDisk:
    """A callback: during these epochs, counted from 1, no file may grow over `size` bytes."""

    def __init__(self, size, epochs):
        self.size, self.epochs = size, epochs
        self.resource = pytest.importorskip("resource")
        self.limits = self.resource.getrlimit(self.resource.RLIMIT_FSIZE)

    def __call__(self, epoch, history):
        size = self.size if epoch + 1 in self.epochs else self.limits[0]
        self.resource.setrlimit(self.resource.RLIMIT_FSIZE, (size, self.limits[1]))

    def end(self):
        self.resource.setrlimit(self.resource.RLIMIT_FSIZE, self.limits)


def test_a_log_on_a_full_disk_is_a_warning_and_later_has_the_rows_that_it_lacked(tmp_path):
    path, contents = tmp_path / "log.csv", []
    size = len("epoch,loss\n1,1.")  # so a part of a row is written
    callbacks = [FullDisk(size, [1, 2]), CSVLog(path), lambda *_: contents.append(path.read_text())]
    with pytest.warns(RuntimeWarning, match=f"not written: .*File too large: '{path}'; the training continues") as all:
        history = train(classifier(2, 3), X, Y, epochs=4, callbacks=callbacks)
    assert [warning.filename for warning in all] == [train.__code__.co_filename] * 2
    assert contents[:2] == ["epoch,loss\n"] * 2
    _, *rows = read_rows(path)
    assert [[int(epoch), float(loss)] for epoch, loss in rows] == [[i, x] for i, x in enumerate(history["loss"], 1)]
    assert history.epochs == len(rows) == 4


def test_tensorboard_on_a_full_disk_is_a_warning_and_the_training_continues(tmp_path):
    pytest.importorskip("tensorboardX")
    callbacks = [FullDisk(100, [1, 2, 3]), cl.callbacks.TensorBoard(tmp_path)]
    with pytest.warns(RuntimeWarning, match="TensorBoard was not written: .*File too large"):
        assert train(classifier(2, 3), X, Y, epochs=3, callbacks=callbacks).epochs == 3


@pytest.mark.parametrize("kind", [pytest.param("fifo", marks=posix), "device"])
def test_a_log_into_a_fifo_or_a_device_is_an_error_before_the_first_step(kind, tmp_path):
    """Opening a FIFO would wait for ever, or until the test is given up."""
    model, path = classifier(2, 3), tmp_path / "fifo" if kind == "fifo" else Path(os.devnull)
    if kind == "fifo":
        os.mkfifo(path)
    before = bits(model)
    with pytest.raises(OSError, match=f"expected a file, and there is a FIFO, a socket or a device: '.*{path.name}'"):
        train(model, X, Y, callbacks=[CSVLog(path)])
    assert bits(model) == before


# ---- TensorBoard ----------------------------------------------------------------------------------------------------


def scalars_in(folder):
    """Return the scalars in the event files of a folder, (tag, step, value), as a reader of these files finds them."""
    messages = pytest.importorskip("tensorboardX").proto.event_pb2
    found = []
    for path in sorted(folder.glob("events.*"), key=lambda path: int(path.suffix[1:])):  # by their time
        content, place = path.read_bytes(), 0
        while place < len(content):  # a record: its length, a checksum, the message, a checksum
            length = int.from_bytes(content[place : place + 8], "little")
            event = messages.Event.FromString(content[place + 12 : place + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            if event.session_log.status == messages.SessionLog.START:
                found = [scalar for scalar in found if scalar[1] < event.step]  # as TensorBoard does
            place += 16 + length
    return found


def expected_scalars(history):
    rows = zip(*history.values(), strict=True)
    return [(name, i, np.float32(x)) for i, row in enumerate(rows, 1) for name, x in zip(history, row, strict=True)]


def test_tensorboard_gets_the_history_as_soon_as_an_epoch_is_completed(tmp_path):
    pytest.importorskip("tensorboardX")
    folder, seen = tmp_path / "runs" / "first", []
    callbacks = [cl.callbacks.TensorBoard(folder), lambda *_: seen.append(len(scalars_in(folder)))]
    options = {"metrics": ["accuracy"], "validation_data": VALIDATION, "callbacks": callbacks}
    history = train(classifier(2, 3), X, Y, epochs=3, **options)
    assert scalars_in(folder) == expected_scalars(history)
    assert seen == [4, 8, 12]
    copy.deepcopy(callbacks[0])
    pickle.dumps(callbacks[0])


def test_tensorboard_shows_each_epoch_of_a_training_that_goes_on_once(tmp_path):
    pytest.importorskip("tensorboardX")
    folder, path = tmp_path / "run", tmp_path / "checkpoint"
    callbacks = [cl.callbacks.TensorBoard(folder), cl.callbacks.Checkpoint(path, every=2)]
    train(classifier(2, 3), X, Y, epochs=3, callbacks=callbacks)  # epoch 3 is in no checkpoint
    history = train(classifier(2, 3), X, Y, epochs=5, callbacks=callbacks, resume=path)
    assert scalars_in(folder) == expected_scalars(history)


def test_a_folder_that_cannot_be_made_is_an_error_before_the_first_step(tmp_path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(OSError, match="file"):
        train(model, X, Y, callbacks=[cl.callbacks.TensorBoard(tmp_path / "file" / "run")])
    assert bits(model) == before


def test_without_tensorboardx_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"-m pip install tensorboardX"):
        cl.callbacks.TensorBoard(tmp_path)
