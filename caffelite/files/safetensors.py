"""Files in the safetensors format: arrays by name, along with texts.

A file is written completely or not at all (`atomic.py`). A file is checked before memory is allocated for it. This
module checks the header. The `safetensors` package checks offsets, shapes, dtypes and sizes. (The package could also
write, but it copies everything twice, and leaves files with random names if killed.)

Texts are in the header. A long text, such as the names of many columns, is an array of bytes instead. The array's name
is `text:` and the text's name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.text_table import shorten
from caffelite.files.atomic import NotAFileError, as_bytes, open_file, replace_file

#: The dtypes of arrays, by their names in the format.
DTYPES = {name: np.dtype(code) for name, code in {"F64": "f8", "F32": "f4", "F16": "f2", "BOOL": "?"}.items()}
DTYPES |= {f"{kind.upper()}{8 * size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)}

MAX_MESSAGE = 500  # characters of a message about a file
TRAINING_PREFIX = "training:"  # in a checkpoint, names of arrays that are not the model's begin with this
TEXT_PREFIX = "text:caffelite."  # names of arrays that are long texts begin with this
MAX_TEXT = 2**16  # bytes; a longer text is not in the header


class TensorSpec(NamedTuple):
    """The shape and dtype of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype


def max_header_bytes(size: int) -> int:
    """Return the bytes that a header may have in a file of this size. Python needs up to 25 times as many for it."""
    return 2**20 + size // 16


def max_values(size: int) -> int:
    """Return the number of values in a long JSON text in a file of this size. Python needs up to 100 bytes for each."""
    return 2**19 + size // 6


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray], texts: dict[str, str]) -> None:
    """Write arrays and texts by name to a file, and replace an older one; see `replace_file`.

    Raise OSError as `replace_file` does, and ValueError as `encode_arrays` does.
    """
    replace_file(path, encode_arrays(path, arrays, texts))


class HeaderSizeError(ValueError):
    """The names and texts are so long that `File` would not read them."""


def encode_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray], texts: dict[str, str]) -> list[Any]:
    """Return the content of a file with these arrays and texts, as a list of pieces.

    Raise HeaderSizeError if names and texts are so long that `File` would not read them. Raise ValueError if an array's
    dtype is not in `DTYPES`.
    """
    encoded = {name: text.encode() for name, text in texts.items()}
    long = {name for name, text in encoded.items() if len(text) > MAX_TEXT and f"text:{name}".startswith(TEXT_PREFIX)}
    texts = {name: text for name, text in texts.items() if name not in long}
    parts = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    parts |= {f"text:{name}": np.frombuffer(encoded[name], np.uint8) for name in encoded if name in long}
    for name, array in parts.items():
        if array.dtype not in DTYPES.values():
            raise ValueError(f"{os.fspath(path)}: {name} is {array.dtype}; a file has {', '.join(DTYPES)}")
    parts = dict(sorted(parts.items(), key=lambda part: -part[1].itemsize))  # then every array is aligned
    header = _header(parts, texts)
    size = len(header) + sum(array.nbytes for array in parts.values())
    if len(header) > max_header_bytes(size) or any(_count_values(encoded[name]) > max_values(size) for name in long):
        raise HeaderSizeError(f"{os.fspath(path)}: {len(parts)} arrays with their names and structure are too many")
    return [len(header).to_bytes(8, "little"), header, *parts.values()]


def _header(arrays: Mapping[str, np.ndarray], texts: dict[str, str]) -> bytes:
    """Return the header of a file with these arrays in this order."""
    entries: dict[str, Any] = {"__metadata__": texts}
    names = {dtype: name for name, dtype in DTYPES.items()}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        entries[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)


def file_error(path: str | os.PathLike, why: Any) -> ValueError:
    """Return a ValueError that says what is wrong with a file."""
    return ValueError(f"{path}: {shorten(str(why), MAX_MESSAGE)}")


class File:
    """An open safetensors file of any program: its `texts`, and the `specs` of its arrays, by name.

    An array of bfloat16 is read as float32, because NumPy has no bfloat16. Raise OSError if the path can't be read.
    Raise ValueError with the reason if it is not a safetensors file. The arrays come from this file even if another one
    replaces it at the path in the meantime.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        try:
            self._file = open(path, "rb", buffering=0, opener=open_file)  # noqa: SIM115 (see `__exit__`)
        except NotAFileError as error:
            raise self.error(error.strerror) from None
        try:
            header = self._header()
            self._check_sizes()
            self.texts: dict[str, str] = header.pop("__metadata__", None) or {}
            self.specs = {
                name: TensorSpec(tuple(x["shape"]), self._dtype(name, x["dtype"])) for name, x in header.items()
            }
            self._offsets = {name: x["data_offsets"][0] for name, x in header.items()}
            self._bfloat16 = {name for name, x in header.items() if x["dtype"] == "BF16"}
            self.texts |= self._long_texts()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def error(self, why: Any) -> ValueError:
        """Return a ValueError that says what is wrong with this file."""
        return file_error(self.path, why)

    def check_not_pytorch(self) -> None:
        """Raise ValueError if PyTorch wrote the file: its weights are transposed, which a square one would not show."""
        if self.texts.get("format") == "pt":
            raise self.error(
                "is a file of PyTorch, which has other names and layouts: caffelite.pytorch.load_state_dict(model, "
                "safetensors.torch.load_file(path)) loads it"
            )

    def _header(self) -> dict[str, Any]:
        """Return the header. ValueError if it is not JSON, is too long, or has a name twice."""
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._file.read(8), "little")
        if size < 10 or length > size - 8:
            raise self.error(f"{size} bytes are not a complete safetensors file")
        if length > max_header_bytes(size):
            raise self.error(f"a header of {length} bytes, in a file of {size}, is too long")
        self._data = 8 + length
        try:
            header = strict_json(self._file.read(length).decode("utf-8"))
        except ValueError as error:
            raise self.error(f"not a safetensors file: its header is not JSON: {error}") from None
        return header

    def _check_sizes(self) -> None:
        """Raise ValueError unless the header is consistent and fits the size of the file."""
        from safetensors import SafetensorError, safe_open

        # Another file may have replaced this one at its path, except on Windows.
        path = f"/dev/fd/{self._file.fileno()}" if os.name == "posix" else self.path
        try:
            safe_open(path if os.path.exists(path) else self.path, "numpy")
        except SafetensorError as error:
            raise self.error(f"not a safetensors file: {error}") from None

    def _long_texts(self) -> dict[str, str]:
        """Read the texts that are arrays of bytes, and remove these from `specs`."""
        names = [name for name in self.specs if name.startswith(TEXT_PREFIX)]
        contents = {name: array.tobytes() for name, array in self.arrays(names).items()}
        size = os.fstat(self._file.fileno()).st_size
        for name in names:
            if self.specs.pop(name).dtype != np.uint8 or _count_values(contents[name]) > max_values(size):
                raise self.error(f"{name} is not a text, or has too many values for a file of {size} bytes")
        try:
            return {name.partition(":")[2]: text.decode() for name, text in contents.items()}
        except UnicodeDecodeError as error:
            raise self.error(f"a text is not UTF-8: {error}") from None

    def _dtype(self, name: str, dtype: str) -> np.dtype:
        if dtype == "BF16":
            return np.dtype(np.float32)
        if dtype not in DTYPES:
            raise self.error(f"{name} is of dtype {dtype}; expected one of {', '.join(DTYPES)}")
        return DTYPES[dtype]

    def check(self, expected: Mapping[str, TensorSpec], specs: Mapping[str, TensorSpec], lossless: bool) -> None:
        """Raise ValueError unless names, shapes and kinds of numbers are the expected ones.

        If `lossless`, the expected dtypes must hold all values of the file's dtypes, as float32 does for float16.
        """
        if missing := [name for name in expected if name not in specs]:
            raise self.error(f"has no {', '.join(missing[:10])}, which the model has")
        if unknown := [name for name in specs if name not in expected]:
            raise self.error(f"has {', '.join(unknown[:10])}, which the model does not have")
        for name, (shape, dtype) in expected.items():
            if specs[name].shape != shape:
                raise self.error(f"{name} has shape {specs[name].shape}; the model's has {shape}")
            other = specs[name].dtype
            if other.kind != dtype.kind or (lossless and not np.can_cast(other, dtype)):
                raise self.error(f"{name} is {other}; the model's is {dtype}")

    def read(self, into: Mapping[str, np.ndarray]) -> None:
        """Read arrays by name into given contiguous arrays of the same shape and dtype."""
        for name, array in into.items():
            if name in self._bfloat16:  # bfloat16 is the upper half of a float32
                halves = np.empty(array.shape, np.uint16)
                self._read(name, halves)
                array[...] = (halves.astype(np.uint32) << 16).view(np.float32)
            else:
                self._read(name, array)

    def _read(self, name: str, array: np.ndarray) -> None:
        self._file.seek(self._data + self._offsets[name])
        rest = as_bytes(array)
        while rest:
            count = self._file.readinto(rest)
            if not count:
                raise self.error(f"ends before the end of {name}")
            rest = rest[count:]

    def arrays(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Read the arrays with these names. This allocates memory, so call `check` first."""
        arrays = {name: np.empty(*self.specs[name]) for name in names}
        self.read(arrays)
        return arrays


def _count_values(text: bytes) -> int:
    """Return an upper limit on the number of values in a JSON text, not counting the names in objects."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


def strict_json(text: str, finite: bool = True) -> Any:
    """Return the value of a JSON text.

    Raise ValueError if the text is not JSON, has a name twice or is nested too deeply. If `finite`, NaN and Infinity
    raise ValueError, too.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise ValueError("a name comes twice")
        return result

    def reject(constant: str) -> None:
        raise ValueError(f"{constant} is not a number in JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=reject if finite else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
