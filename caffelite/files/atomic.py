"""Files that are written completely or not at all: a new file next to the old one, which it then replaces.

Windows has no owners, modes and locks like those of Linux and macOS. But there, nobody can remove or replace a file
that a program has open. So an open file needs no lock, and one that another program reads cannot be replaced.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

WINDOWS = os.name == "nt"
if not WINDOWS:
    import fcntl

LEFTOVER_AGE = 60  # seconds without a write, after which a file on Windows is not between its close and its new name
REPLACE_ATTEMPTS = 10 if WINDOWS else 1  # a virus scanner may have the older file open for a moment
REPLACE_INTERVAL = 0.1  # seconds between attempts


def replace_file(path: str | os.PathLike, parts: Iterable[Any]) -> None:
    """Write bytes and contiguous arrays, one after the other, to a file, and replace an older one.

    The content goes to a new file in the same folder, with a random name that ends in `.part`. Once it is on the disk,
    the new file is renamed. So there is always a complete file, either the older or the new one. The new file gets the
    mode of the older file and, if the system allows it, its owner. If the path is a link, the link stays, and its
    target is replaced. New files left in the folder by killed programs are removed.

    Raise OSError with the path if the file cannot be written, and in all cases of `check_writable`. The old file then
    stays unchanged.
    """
    target = os.path.realpath(path)
    temporary = ""
    try:
        old_status = _stat_target(path)
        _remove_leftovers(target)
        with _create_temporary(target, 0o666 if old_status is None else 0o600) as file:
            temporary = file.name
            if old_status is not None and not WINDOWS:
                _keep_owner_and_mode(file.fileno(), old_status)
            for part in parts:
                write_all(file, as_bytes(part))
            os.fsync(file.fileno())
            if WINDOWS:
                file.close()
            _replace(temporary, target)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                os.remove(temporary)
        raise OSError(error.errno, f"nothing was written: {error.strerror}", os.fspath(path)) from None


def check_writable(path: str | os.PathLike) -> None:
    """Raise OSError with the path if no file can be written there. To find out, make a new file there and remove it.

    The reason may be that the folder does not exist, that it or the older file is read-only, or that the path is a
    folder, a FIFO or a device. These are never opened.
    """
    try:
        _stat_target(path)
        target = os.path.realpath(path)
        folder = os.path.dirname(target)
        if not os.access(folder, os.W_OK):
            is_there = os.path.isdir(folder)
            what = "the folder is read-only" if is_there else "there is no such folder"
            raise OSError(errno.EACCES if is_there else errno.ENOENT, what)
        with _create_temporary(target, 0o600) as file:
            if WINDOWS:
                file.close()
            os.remove(file.name)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _replace(temporary: str, target: str) -> None:
    """Give a file the name of the older one. If a program has the older one open, wait for it for a second."""
    for _ in range(REPLACE_ATTEMPTS - 1):
        with suppress(PermissionError):
            return os.replace(temporary, target)
        time.sleep(REPLACE_INTERVAL)
    return os.replace(temporary, target)


def _stat_target(path: str | os.PathLike) -> os.stat_result | None:
    """Return the status of the file that will be replaced; None if there is none. OSError if it can't be replaced."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    _check_is_file(status, path)
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "the existing file is read-only")
    return status


class NotAFileError(OSError):
    """The path of a file is a FIFO, a socket or a device."""


def open_file(path: Any, flags: int) -> int:
    """Return an opener for `open` that refuses FIFOs and devices, because opening one may block forever or have
    effects.

    Raise NotAFileError for one, before opening it.
    """
    with suppress(FileNotFoundError):
        _check_is_file(os.stat(path), path)
    if WINDOWS and os.path.isdir(path):  # there, Python would raise PermissionError
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    file = os.open(path, flags if WINDOWS else flags | os.O_NONBLOCK, 0o666)
    try:
        _check_is_file(os.fstat(file), path)  # since the first check, one may have replaced the file
    except NotAFileError:
        os.close(file)
        raise
    return file


def open_no_link(path: Any, flags: int) -> int:
    """Return an opener like that of `open_file`, which also refuses links."""
    if not WINDOWS:
        return open_file(path, flags | os.O_NOFOLLOW)
    if os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    return open_file(path, flags)


def _check_is_file(status: os.stat_result, path: str | os.PathLike) -> None:
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # for a folder, Python raises
        raise NotAFileError(errno.EINVAL, "expected a file, and there is a FIFO, a socket or a device", os.fspath(path))


def _create_temporary(target: str, mode: int) -> Any:
    """Return a new file next to the target, with a name that nobody can guess. It is locked while it is written."""
    while True:
        beside = f"{target}.{os.urandom(8).hex()}.part"
        file = open(beside, "xb", buffering=0, opener=lambda path, flags: os.open(path, flags, mode))  # noqa: SIM115
        if not WINDOWS:
            with suppress(OSError):  # without locks, `_remove_leftovers` removes nothing
                fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.lexists(beside):
            return file
        file.close()  # another process removed it as a leftover before it was locked


def _remove_leftovers(target: str) -> None:
    """Remove new files that killed programs left next to the target. Files being written are locked."""
    folder, name = os.path.split(target)
    leftover = re.compile(re.escape(name) + r"\.[0-9a-f]{16}\.part")
    for path in [os.path.join(folder, file) for file in os.listdir(folder) if leftover.fullmatch(file)]:
        with suppress(OSError):
            status = os.lstat(path)
            if WINDOWS:
                if status.st_mtime < time.time() - LEFTOVER_AGE:
                    os.remove(path)  # raises PermissionError if a program has it open
            elif stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.remove(path)


def _keep_owner_and_mode(file: int, old: os.stat_result) -> None:
    new = os.fstat(file)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        with suppress(OSError):
            os.fchown(file, old.st_uid, old.st_gid)
    os.fchmod(file, stat.S_IMODE(old.st_mode))


def as_bytes(content: Any) -> Any:
    """Return the memory of a contiguous array, or of bytes, as bytes."""
    return np.frombuffer(content, np.uint8).data if memoryview(content).nbytes else b""


def write_all(file: Any, content: Any) -> None:
    """Write bytes to a file without a buffer. On a disk that fills, some of them are written before the OSError."""
    while content:
        content = content[file.write(content) :]
