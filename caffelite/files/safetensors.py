"""Files in the safetensors format: arrays by name, and texts beside them.

What is written is whole or not there: it is written beside its place and renamed. What is read is checked before
anything is allocated for it: the header here, its offsets, shapes, dtypes and sizes by the `safetensors` package. (That
could also write; but it copies all twice, and leaves files of random names behind where it is killed.)

Texts are in the header. A long one, the names of many columns say, is an array of bytes instead: `text:` and its name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.tables import shortened

#: The dtypes of arrays, by the names that the format has for them.
DTYPES = {
    name: np.dtype(dtype)
    for name, dtype in {
        "F64": "f8",
        "F32": "f4",
        "F16": "f2",
        "BOOL": "?",
        **{f"{kind.upper()}{8 * size}": f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    }.items()
}


MOST_SAID = 500  # characters of what is wrong with a file
OF_TRAINING = "training:"  # how the names of arrays begin that are not the model's, in a checkpoint
OF_TEXTS = "text:caffelite."  # how the names of arrays begin that are long texts
LONGEST_TEXT = 2**16  # bytes of a text in a header


class Form(NamedTuple):
    """What is known of an array without its values."""

    shape: tuple[int, ...]
    dtype: np.dtype


def longest_header(size: int) -> int:
    """How long a header may be in a file of this size: Python takes up to 25 times as much to read it."""
    return 2**20 + size // 16


def most_values(size: int) -> int:
    """How many values a long text of JSON may have in a file of this size: Python takes up to 100 bytes for each."""
    return 2**19 + size // 6


def write(path: str | os.PathLike, arrays: Mapping[str, np.ndarray], texts: dict[str, str]) -> None:
    """Write arrays and texts by name to a file, which replaces an older one; see `replace`.

    Raises OSError as `replace` does, and ValueError as `content`.
    """
    replace(path, content(path, arrays, texts))


class TooLong(ValueError):
    """The names and texts of a file are too long to be read again."""


def content(path: str | os.PathLike, arrays: Mapping[str, np.ndarray], texts: dict[str, str]) -> list[Any]:
    """What is in a file with these arrays and texts, piece by piece.

    Raises TooLong for names and texts that are too long to be read again, and ValueError for an array of another dtype
    than `DTYPES`.
    """
    encoded = {name: text.encode() for name, text in texts.items()}
    long = {name for name, text in encoded.items() if len(text) > LONGEST_TEXT and f"text:{name}".startswith(OF_TEXTS)}
    texts = {name: text for name, text in texts.items() if name not in long}
    parts = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    parts |= {f"text:{name}": np.frombuffer(encoded[name], np.uint8) for name in encoded if name in long}
    for name, array in parts.items():
        if array.dtype not in DTYPES.values():
            raise ValueError(f"{os.fspath(path)}: {name} is {array.dtype}; a file has {', '.join(DTYPES)}")
    parts = dict(sorted(parts.items(), key=lambda part: -part[1].itemsize))  # so that each is aligned
    header = _header(parts, texts)
    size = len(header) + sum(array.nbytes for array in parts.values())
    if len(header) > longest_header(size) or any(_values(encoded[name]) > most_values(size) for name in long):
        raise TooLong(f"{os.fspath(path)}: {len(parts)} arrays with their names and structure are too many")
    return [len(header).to_bytes(8, "little"), header, *parts.values()]


def replace(path: str | os.PathLike, parts: Iterable[Any]) -> None:
    """Write bytes and contiguous arrays, one after the other, to a file, which replaces an older one.

    They are written beside its place, to a new file with a random name that ends in `.part`. That is renamed when it is
    on the disk: there is always a whole file, the older one or the new one. The new file gets the older one's mode and,
    if the system allows it, its owner. If the path is a link, the link stays, and the file that it leads to is
    replaced. What a killed program has left beside the file is removed.

    Raises OSError naming the path if it cannot be written, and for all that `check_place` refuses; the older file is
    then as it was.
    """
    target = os.path.realpath(path)
    beside = ""
    try:
        older = _older(path)
        _remove_leftovers(target)
        with _new_beside(target, 0o666 if older is None else 0o600) as file:
            beside = file.name
            if older is not None:
                _keep_owner_and_mode(file.fileno(), older)
            for part in parts:
                _write_all(file, _bytes(part))
            os.fsync(file.fileno())
            os.replace(beside, target)
    except OSError as error:
        if beside:
            with suppress(OSError):
                os.remove(beside)
        raise OSError(error.errno, f"nothing was written: {error.strerror}", os.fspath(path)) from None


def check_place(path: str | os.PathLike) -> None:
    """Raise OSError, naming the path, if no file can be written there.

    That is where there is no such folder, where it or the older file is read-only, and where a folder, a FIFO or a
    device is: these are never opened.
    """
    try:
        _older(path)
        folder = os.path.dirname(os.path.realpath(path))
        if not os.access(folder, os.W_OK):
            is_there = os.path.isdir(folder)
            what = "the folder is read-only" if is_there else "there is no such folder"
            raise OSError(errno.EACCES if is_there else errno.ENOENT, what)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _older(path: str | os.PathLike) -> os.stat_result | None:
    """What is known of the file that is to be replaced; None if there is none, OSError if it can't be replaced."""
    try:
        older = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(older.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    _check_kind(older, path)
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "the file that is there is read-only")
    return older


class NoFile(OSError):
    """A FIFO, a socket or a device, where a file is expected."""


def open_file(path: Any, flags: int) -> int:
    """An opener for `open` that opens no FIFO and no device: that may wait for ever, or do something.

    Raises NoFile for one, before it is opened.
    """
    with suppress(FileNotFoundError):
        _check_kind(os.stat(path), path)
    file = os.open(path, flags | os.O_NONBLOCK, 0o666)
    try:
        _check_kind(os.fstat(file), path)  # it may have taken the file's place meanwhile
    except NoFile:
        os.close(file)
        raise
    return file


def _check_kind(status: os.stat_result, path: str | os.PathLike) -> None:
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # Python says it of a folder
        raise NoFile(errno.EINVAL, "expected a file, and there is a FIFO, a socket or a device", os.fspath(path))


def _new_beside(target: str, mode: int) -> Any:
    """A new file beside the target, under a name that nobody can guess, locked while it is written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        beside = f"{target}.{os.urandom(8).hex()}.part"
        file = open(beside, "wb", buffering=0, opener=lambda path, _: os.open(path, flags, mode))  # noqa: SIM115
        with suppress(OSError):  # without locks there are no leftovers: see `_remove_leftovers`
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.lexists(beside):
            return file
        file.close()  # somebody took it for a leftover before it was locked


def _remove_leftovers(target: str) -> None:
    """Remove what killed programs left beside the target: a file that is still being written is locked."""
    folder, name = os.path.split(target)
    leftover = re.compile(re.escape(name) + r"\.[0-9a-f]{16}\.part")
    for path in [os.path.join(folder, found) for found in os.listdir(folder) if leftover.fullmatch(found)]:
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.remove(path)


def _keep_owner_and_mode(file: int, older: os.stat_result) -> None:
    new = os.fstat(file)
    if (older.st_uid, older.st_gid) != (new.st_uid, new.st_gid):
        with suppress(OSError):
            os.fchown(file, older.st_uid, older.st_gid)
    os.fchmod(file, stat.S_IMODE(older.st_mode))


def _header(arrays: Mapping[str, np.ndarray], texts: dict[str, str]) -> bytes:
    """The header of a file in which these arrays follow each other."""
    entries: dict[str, Any] = {"__metadata__": texts}
    names = {dtype: name for name, dtype in DTYPES.items()}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        entries[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)


def refusal(path: str | os.PathLike, why: Any) -> ValueError:
    """The error to raise for a file with this fault."""
    return ValueError(f"{path}: {shortened(str(why), MOST_SAID)}")


class File:
    """An open safetensors file, by whomever: its `texts`, and the `forms` of its arrays, by name.

    An array of bfloat16, which NumPy has not, is read as float32. Raises OSError for a path that can't be read, and
    ValueError saying what is wrong for what is no such file. What is read are the arrays of this file, also where
    another one has taken its place meanwhile.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        try:
            self._file = open(path, "rb", buffering=0, opener=open_file)  # noqa: SIM115 (see `__exit__`)
        except NoFile as error:
            raise self.refuse(error.strerror) from None
        try:
            header = self._header()
            self._check_sizes()
            self.texts: dict[str, str] = header.pop("__metadata__", None) or {}
            self.forms = {name: Form(tuple(x["shape"]), self._dtype(name, x["dtype"])) for name, x in header.items()}
            self._starts = {name: x["data_offsets"][0] for name, x in header.items()}
            self._halves = {name for name, x in header.items() if x["dtype"] == "BF16"}
            self.texts |= self._long_texts()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def refuse(self, why: Any) -> ValueError:
        """The error to raise for a file with this fault."""
        return refusal(self.path, why)

    def refuse_pytorchs(self) -> None:
        """ValueError for a file that says it is PyTorch's: square weights would be taken over wrongly."""
        if self.texts.get("format") == "pt":
            raise self.refuse(
                "is PyTorch's, whose names and layouts are others: copy its arrays by `model.load_state_dict`, under "
                "the model's names, and the weights of Linear layers transposed"
            )

    def _header(self) -> dict[str, Any]:
        """The header; ValueError for one that is no JSON, that is too long, or in which a name comes twice."""
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._file.read(8), "little")
        if size < 10 or length > size - 8:
            raise self.refuse(f"{size} bytes that are no safetensors file, or not all of one")
        if length > longest_header(size):
            raise self.refuse(f"a header of {length} bytes, in a file of {size}, is too long")
        self._data = 8 + length
        try:
            header = strict_json(self._file.read(length).decode("utf-8"))
        except ValueError as error:
            raise self.refuse(f"no safetensors file, its header is no JSON: {error}") from None
        return header

    def _check_sizes(self) -> None:
        """ValueError unless all that the header says goes together, and with the size of the file."""
        from safetensors import SafetensorError, safe_open

        opened = f"/dev/fd/{self._file.fileno()}"  # another file may have taken the place of this one
        try:
            safe_open(opened if os.path.exists(opened) else self.path, "numpy")
        except SafetensorError as error:
            raise self.refuse(f"no safetensors file: {error}") from None

    def _long_texts(self) -> dict[str, str]:
        """The texts that are arrays of bytes, which are no longer among the arrays then."""
        names = [name for name in self.forms if name.startswith(OF_TEXTS)]
        found = {name: array.tobytes() for name, array in self.arrays(names).items()}
        size = os.fstat(self._file.fileno()).st_size
        for name in names:
            if self.forms.pop(name).dtype != np.uint8 or _values(found[name]) > most_values(size):
                raise self.refuse(f"{name} is no text, or one of too many values for a file of {size} bytes")
        try:
            return {name.partition(":")[2]: text.decode() for name, text in found.items()}
        except UnicodeDecodeError as error:
            raise self.refuse(f"a text is not UTF-8: {error}") from None

    def _dtype(self, name: str, dtype: str) -> np.dtype:
        if dtype == "BF16":
            return np.dtype(np.float32)
        if dtype not in DTYPES:
            raise self.refuse(f"{name} is of dtype {dtype}; expected one of {', '.join(DTYPES)}")
        return DTYPES[dtype]

    def check(self, forms: Mapping[str, Form], found: Mapping[str, Form], exactly: bool) -> None:
        """ValueError unless the arrays found have these names, shapes and, `exactly` or in kind, dtypes."""
        if missing := [name for name in forms if name not in found]:
            raise self.refuse(f"has no {', '.join(missing[:10])}, which the model has")
        if unknown := [name for name in found if name not in forms]:
            raise self.refuse(f"has {', '.join(unknown[:10])}, which the model has not")
        for name, (shape, dtype) in forms.items():
            if found[name].shape != shape:
                raise self.refuse(f"{name} has shape {found[name].shape}; the model's has {shape}")
            other = found[name].dtype
            if other != dtype if exactly else other.kind != dtype.kind:
                raise self.refuse(f"{name} is {other}; the model's is {dtype}")

    def read(self, into: Mapping[str, np.ndarray]) -> None:
        """Read arrays by name into contiguous ones of their forms."""
        for name, array in into.items():
            if name in self._halves:  # the upper halves of float32
                halves = np.empty(array.shape, np.uint16)
                self._read(name, halves)
                array[...] = (halves.astype(np.uint32) << 16).view(np.float32)
            else:
                self._read(name, array)

    def _read(self, name: str, array: np.ndarray) -> None:
        self._file.seek(self._data + self._starts[name])
        rest = _bytes(array)
        while rest:
            count = self._file.readinto(rest)
            if not count:
                raise self.refuse(f"ends before the end of {name}")
            rest = rest[count:]

    def arrays(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The arrays of these names. Memory for them is taken now: `check` them first."""
        found = {name: np.empty(*self.forms[name]) for name in names}
        self.read(found)
        return found


def _bytes(content: Any) -> Any:
    """What is in a contiguous array, or in bytes, as it lies in memory."""
    return np.frombuffer(content, np.uint8).data if memoryview(content).nbytes else b""


def _values(text: bytes) -> int:
    """How many values a text of JSON has at most, the names in objects not counted."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


def _write_all(file: Any, content: Any) -> None:
    while content:
        content = content[file.write(content) :]


def strict_json(text: str, finite: bool = True) -> Any:
    """What a text of JSON says.

    ValueError where it is none, has a name twice or is nested too deeply; and where it says NaN or Infinity, if all
    numbers have to be finite.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name comes twice")
        return found

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse if finite else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
