"""Files that are written completely or not at all."""

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite.files import atomic
from caffelite.files.atomic import _create_temporary
from caffelite.files.safetensors import File
from tests.conftest import classifier, posix, train
from tests.files.conftest import assert_same_state

KILLED = """
import os, sys
import caffelite as cl
os.fsync = lambda file: os._exit(1)
cl.MLP(2, [3], seed=0).save(sys.argv[1])
"""


def test_temporary_files_of_a_killed_program_are_removed(path):
    subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    (left,) = os.listdir(path.parent)
    assert left.startswith("model.safetensors.")
    os.utime(path.with_name(left), (0, 0))
    model = classifier(2, 3)
    model.save(path)
    assert os.listdir(path.parent) == [path.name]
    assert_same_state(cl.load(path), model)


def test_files_that_another_program_writes_are_left_alone(path):
    with _create_temporary(str(path), 0o666) as file:
        os.utime(file.name, (0, 0))
        classifier(2, 3).save(path)
        assert sorted(os.listdir(path.parent)) == sorted([path.name, Path(file.name).name])


@posix
def test_no_link_beside_the_file_is_followed(path, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = [f"{path}.part", f"{path}.{bytes(8).hex()}.part"]
    for name in names:
        os.symlink(victim, name)
    classifier(2, 3).save(path)
    assert not path.is_symlink()
    monkeypatch.setattr(os, "urandom", bytes)  # so the name is guessed after all
    with pytest.raises(FileExistsError, match="nothing was written"):
        classifier(2, 3).save(path)
    assert victim.read_text() == "precious"
    assert all(map(os.path.islink, names))


@posix
def test_no_fifo_is_opened(path, tmp_path):
    """Opening one would wait for ever, or until the test is given up."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    os.mkfifo(f"{path}.part")
    model = classifier(2, 3)
    for load in (cl.load, model.load):
        with pytest.raises(ValueError, match="expected a file, and there is a FIFO"):
            load(fifo)
    with pytest.raises(OSError, match="nothing was written: expected a file, and there is a FIFO"):
        model.save(fifo)
    with pytest.raises(OSError, match="expected a file, and there is a FIFO") as error:
        train(model, np.zeros((2, 2)), [0, 1], callbacks=[cl.callbacks.Checkpoint(fifo)])
    assert error.value.filename == str(fifo)
    model.save(path)
    assert cl.load(path)


@posix
def test_a_file_is_read_as_it_was_opened_though_another_one_takes_its_place(path, monkeypatch):
    model, header = classifier(2, 3), File._header
    model.save(path)

    def replace_file(file):
        found = header(file)
        os.remove(path)
        os.mkfifo(path)  # opening it would wait for ever
        return found

    monkeypatch.setattr(File, "_header", replace_file)
    assert_same_state(cl.load(path), model)


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
@posix
def test_a_file_that_is_written_again_keeps_its_mode(mode, path):
    model = classifier(2, 3)
    model.save(path)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    path.chmod(mode)
    model.save(path)
    assert path.stat().st_mode & 0o777 == mode


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_a_file_that_is_written_again_keeps_its_owner(path):
    model = classifier(2, 3)
    model.save(path)
    os.chown(path, 1234, 2345)
    model.save(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_writers_of_the_same_file_at_once_write_it_whole(path):
    """As ranks do that all come to `model.save` at the end of a program."""
    models = [cl.MLP(2, [3], seed=seed) for seed in range(4)]
    first = [model.functions[0].weight.data[0, 0] for model in models]
    with ThreadPoolExecutor(len(models)) as pool:
        for _ in range(20):
            list(pool.map(lambda model: model.save(path), models))
            assert os.listdir(path.parent) == [path.name]
            found = cl.load(path)
            assert_same_state(found, models[first.index(found.functions[0].weight.data[0, 0])])


def test_a_file_that_another_program_has_open_for_a_moment_is_replaced_on_windows(path, monkeypatch):
    """While it is open there, for example in a virus scanner, `os.replace` raises PermissionError."""
    model, replace, attempts = classifier(2, 3), os.replace, []

    def replace_at_third_attempt(*paths):
        attempts.append(1)
        if len(attempts) < 3:
            raise PermissionError(errno.EACCES, "Access is denied")
        replace(*paths)

    monkeypatch.setattr(os, "replace", replace_at_third_attempt)
    monkeypatch.setattr(atomic, "REPLACE_INTERVAL", 0)
    monkeypatch.setattr(atomic, "REPLACE_ATTEMPTS", 3)
    model.save(path)
    assert_same_state(cl.load(path), model)
    attempts.clear()
    monkeypatch.setattr(atomic, "REPLACE_ATTEMPTS", 2)
    with pytest.raises(PermissionError, match="nothing was written: Access is denied"):
        model.save(path)
    assert os.listdir(path.parent) == [path.name]


@posix
def test_a_link_raises_an_error_on_windows_too(path, monkeypatch):
    classifier(2, 3).save(path)
    link = path.with_name("link")
    link.symlink_to(path)
    for windows in (False, True):
        monkeypatch.setattr(atomic, "WINDOWS", windows)
        os.close(atomic.open_no_link(path, os.O_RDONLY))
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            atomic.open_no_link(link, os.O_RDONLY)


def test_a_file_is_on_the_disk_before_it_takes_the_place_of_the_older_one(path, monkeypatch):
    done = []
    monkeypatch.setattr(os, "fsync", lambda file: done.append(("fsync", os.fstat(file).st_size > 0)))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("replace") or replace(*paths))
    classifier(2, 3).save(path)
    assert done == [("fsync", True), "replace"]


@posix
def test_a_link_stays_a_link(path, tmp_path):
    target = tmp_path / "folder" / "target"
    target.parent.mkdir()
    path.symlink_to(target)
    classifier(2, 3).save(path)
    assert path.is_symlink()
    assert cl.load(target)


@pytest.mark.parametrize("where", ["missing/model", "."])
def test_a_path_that_cannot_be_written_is_named(where, tmp_path):
    with pytest.raises(OSError, match="nothing was written") as error:
        classifier(2, 3).save(tmp_path / where)
    assert error.value.filename == str(tmp_path / where)
    assert os.listdir(tmp_path) == []


def test_a_read_only_file_is_left_alone(path, monkeypatch):
    classifier(2, 3).save(path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "access", lambda *arguments: False)  # which root is never told
    with pytest.raises(PermissionError, match="read-only"):
        classifier(2, 3, seed=1).save(path)
    assert path.read_bytes() == before


FULL = """
import resource, sys
import caffelite as cl
cl.MLP(2, [3], seed=0).save(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    cl.MLP(20, [300], seed=0).save(sys.argv[1])
except OSError as error:
    print(type(error).__name__, error)
"""


@posix
def test_a_disk_that_is_full_leaves_the_older_file_whole(path):
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True)
    assert done.stdout == f"OSError [Errno 27] nothing was written: File too large: {str(path)!r}\n"
    assert os.listdir(path.parent) == [path.name]
    assert repr(cl.load(path)) == "Model([Linear(2, 3)])"
