"""Files in the safetensors format: arrays by name, and texts beside them.

What is written is whole or not there: it is written beside its place and renamed. What is read is checked before
anything is allocated for it: the header here, its offsets, shapes, dtypes and sizes by the `safetensors` package. (That
could also write; but it copies all twice, and leaves files of random names behind where it is killed.)
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from caffelite.tables import shortened

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


class Form(NamedTuple):
    """What is known of an array without its values."""

    shape: tuple[int, ...]
    dtype: np.dtype


def longest_header(size: int) -> int:
    """How long a header may be in a file of this size: Python takes up to 25 times as much to read it."""
    return 2**20 + size // 16


def write(path: str | os.PathLike, arrays: Mapping[str, np.ndarray], texts: dict[str, str]) -> None:
    """Write arrays and texts by name to a file, which replaces an older one.

    It is written beside its place, its name followed by `.part`, and renamed when it is on the disk: there is always a
    whole file, the older one or the new one. What a killed program has left there is replaced.

    Raises OSError naming the path if it can't be written, or if the older file is read-only; that is then as it was.
    ValueError for texts, and names of arrays, that are longer than `longest_header`.
    """
    parts = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    parts = dict(sorted(parts.items(), key=lambda part: -part[1].itemsize))  # so that each is aligned
    header = _header(parts, texts)
    if len(header) > longest_header(len(header) + sum(array.nbytes for array in parts.values())):
        raise ValueError(f"{os.fspath(path)}: {len(parts)} arrays with their names and structure are too many")
    replace(path, [len(header).to_bytes(8, "little"), header, *parts.values()])


def replace(path: str | os.PathLike, parts: Iterable[Any]) -> None:
    """Write bytes and contiguous arrays, one after the other, to a file, which replaces an older one; see `write`."""
    target = os.path.realpath(path)  # of a link, the file it leads to
    beside = ""
    try:
        if os.path.exists(target) and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "the file that is there is read-only")
        with _opened_beside(target) as file:
            beside = file.name
            for part in parts:
                _write_all(file, _bytes(part))
            os.fsync(file.fileno())
            os.replace(beside, target)
    except OSError as error:
        if beside:
            with suppress(OSError):
                os.remove(beside)
        raise OSError(error.errno, f"nothing was written: {error.strerror}", os.fspath(path)) from None


def _opened_beside(target: str) -> Any:
    """An empty file beside the target: its name followed by `.part`, or, while somebody else writes that, another."""
    file = open(f"{target}.part", "ab", buffering=0)  # noqa: SIM115 (the caller closes it)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):  # and not renamed by him in the meantime
            file.truncate(0)
            return file
    except OSError:
        pass
    file.close()
    return open(f"{target}.{threading.get_native_id()}.part", "wb", buffering=0)


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

    Raises OSError for a path that can't be read, and ValueError saying what is wrong for what is no such file. What is
    read are the arrays of this file, also where another one has taken its place meanwhile.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (`close` is what `with` does at the end)
        try:
            header = self._header()
            self._check_sizes()
            self.texts: dict[str, str] = header.pop("__metadata__", None) or {}
            self.forms = {name: Form(tuple(x["shape"]), self._dtype(name, x["dtype"])) for name, x in header.items()}
            self._starts = {name: x["data_offsets"][0] for name, x in header.items()}
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

    def _header(self) -> dict[str, Any]:
        """The header; ValueError for one that is no JSON, that is too long, or in which a name comes twice."""
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise self.refuse("expected a file")
        length, size = int.from_bytes(self._file.read(8), "little"), status.st_size
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

        try:
            safe_open(self.path, "numpy")
        except SafetensorError as error:
            raise self.refuse(f"no safetensors file: {error}") from None

    def _dtype(self, name: str, dtype: str) -> np.dtype:
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
    return np.frombuffer(content, np.uint8).data if len(content) else b""


def _write_all(file: Any, content: Any) -> None:
    while content:
        content = content[file.write(content) :]


def strict_json(text: str) -> Any:
    """What a text of JSON says; ValueError where it is none, says NaN, has a name twice or is nested too deeply."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name comes twice")
        return found

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
