"""Data in the files their authors publish: MNIST and Fashion-MNIST as IDX files, CIFAR-10 in its binary version.

The loaders do not trust the files. They compare each header with the file's size before they allocate memory. They
unpack a gzip file only as far as the header says, and never beyond 256 MiB.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from caffelite._support.migration_hints import hint_arguments

TrainTestSplit = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

IDX = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
CIFAR = [*[f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin"]
CIFAR_ROW = 1 + 3 * 32 * 32  # bytes: the label, and the pixels of three channels

MAX_UNPACKED = 2**28  # bytes of an unpacked gzip file: several times the largest file of these datasets
MAX_RATIO = 1032  # gzip packs 258 bytes into two bits at best
CHUNK_BYTES = 256 * CIFAR_ROW  # bytes to read at a time: whole rows


@hint_arguments
def mnist(folder: str | os.PathLike[str], download: bool = False) -> TrainTestSplit:
    """Return 70,000 handwritten digits of 28 × 28 pixels: (x_train, y_train), (x_test, y_test).

    x_train (60,000, 28, 28) and x_test (10,000, 28, 28) are float32 in 0 … 1 (in the files 0 … 255), y is int64 in 0 …
    9. The folder must contain the files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
    t10k-labels-idx1-ubyte, each plain or with .gz. They are in the IDX format, and the number of rows may differ.

    With `download=True`, missing files are fetched through pooch (`pip install pooch`). Their SHA-256 is checked
    against the one that TensorFlow Datasets lists (tensorflow_datasets/url_checksums).

    Raise ValueError, naming the file, if the contents do not match the header, or if a gzip file unpacks to more than
    256 MiB. Raise FileNotFoundError if files are missing. With `download`, raise ConnectionError if a file can't be
    fetched and ValueError if its SHA-256 is wrong. Such a file is not kept.

    Y. LeCun, C. Cortes and C. J. C. Burges, "The MNIST database of handwritten digits", 1998.
    """
    return _images_and_labels("mnist", Path(folder), download)


@hint_arguments
def fashion_mnist(folder: str | os.PathLike[str], download: bool = False) -> TrainTestSplit:
    """Return 70,000 pictures of clothes of 28 × 28 pixels: (x_train, y_train), (x_test, y_test).

    x_train (60,000, 28, 28) and x_test (10,000, 28, 28) are float32 in 0 … 1 (in the files 0 … 255), y int64: T-shirt
    0, trouser 1, pullover 2, dress 3, coat 4, sandal 5, shirt 6, sneaker 7, bag 8, ankle boot 9. Files, `download` and
    errors are as in `mnist`. The file names are the same too, so the two datasets need different folders.

    H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning
    algorithms", arXiv:1708.07747, 2017; MIT licence.
    """
    return _images_and_labels("fashion_mnist", Path(folder), download)


@hint_arguments
def cifar10(folder: str | os.PathLike[str], download: bool = False) -> TrainTestSplit:
    """Return 60,000 photographs of 32 × 32 pixels: (x_train, y_train), (x_test, y_test).

    x_train (50,000, 3, 32, 32) and x_test (10,000, 3, 32, 32) are float32 in 0 … 1 (in the files 0 … 255), with
    channels red, green, blue. y is int64: airplane 0, automobile 1, bird 2, cat 3, deer 4, dog 5, frog 6, horse 7, ship
    8, truck 9.

    The files are from the binary version: data_batch_1.bin to data_batch_5.bin and test_batch.bin, each plain or with
    .gz, in the folder itself or in its subfolder cifar-10-batches-bin. Rows have 3,073 bytes, and the number of rows
    may differ. `download` (170 MB) and errors are as in `mnist`.

    A. Krizhevsky, "Learning multiple layers of features from tiny images", University of Toronto, 2009.
    """
    *train, test = [_read_cifar(path) for path in _find_files("cifar10", Path(folder), CIFAR, download)]
    splits = [np.concatenate(pieces) for pieces in ([piece for pieces in train for piece in pieces], test)]
    x_train, x_test = [_as_floats(rows[:, 1:].reshape(-1, 3, 32, 32)) for rows in splits]
    y_train, y_test = [rows[:, 0].astype(np.int64) for rows in splits]
    return (x_train, y_train), (x_test, y_test)


def _images_and_labels(dataset: str, folder: Path, download: bool) -> TrainTestSplit:
    files = _find_files(dataset, folder, IDX, download)
    splits = []
    for images_path, labels_path in (files[:2], files[2:]):
        images, labels = _read_idx(images_path, (28, 28)), _read_idx(labels_path, ())
        if len(images) != len(labels):
            raise ValueError(f"{images_path} has {len(images)} images, {labels_path} has {len(labels)} labels")
        _check_labels(labels_path, labels, 0)
        splits.append((_as_floats(images), labels.astype(np.int64)))
    return splits[0], splits[1]


def _find_files(dataset: str, folder: Path, names: list[str], download: bool) -> list[Path]:
    """Return the paths of these files, with or without .gz. If `download`, fetch missing ones."""
    from caffelite.data.datasets.download import DOWNLOADS, fetch  # slow to import

    def find(name: str) -> Path | None:
        places = (folder, folder / DOWNLOADS[dataset].folder)
        return next((path for p in places for path in (p / name, p / f"{name}.gz") if path.is_file()), None)

    missing = [name for name in names if find(name) is None]
    if missing and not download:
        raise FileNotFoundError(
            f"{dataset} needs the files {', '.join(missing)}, plain or with .gz, but they are not in {folder}. "
            "download=True fetches them"
        )
    if missing:
        fetch(dataset, folder, missing)
    return [path for path in map(find, names) if path is not None]


def _as_floats(pixels: np.ndarray) -> np.ndarray:
    return np.divide(pixels, 255, dtype=np.float32)


def _check_labels(path: Path, labels: np.ndarray, first_row: int) -> None:
    bad = labels > 9
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{path}: expected labels from 0 to 9, got {labels[row]} in row {first_row + row}")


# ---- formats --------------------------------------------------------------------------------------------------------


@contextmanager
def _open(path: Path) -> Iterator[tuple[IO[bytes] | gzip.GzipFile, int, bool]]:
    """Yield a file's content (unpacked if gzip), its size in bytes, and whether that is only an upper bound.

    Raise ValueError if a gzip file turns out to be damaged while it is read.
    """
    with open(path, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        if not is_gzip:
            yield file, size, False
            return
        try:
            with gzip.open(file) as content:
                yield content, min(MAX_RATIO * size, MAX_UNPACKED), True
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: expected a complete gzip file, got one with: {error}") from error


def _read_idx(path: Path, row: tuple[int, ...]) -> np.ndarray:
    """Return the elements (n, *row) of an IDX file of bytes.

    The format: four bytes (0, 0, 8 for bytes, and the number of axes), then the length of each axis, big-endian, then
    the elements.
    """
    magic = bytes([0, 0, 8, 1 + len(row)])
    with _open(path) as (file, size, is_bound):
        header = file.read(4 + 4 * magic[3])
        if header[:4] != magic or len(header) < 4 + 4 * magic[3]:
            raise ValueError(
                f"{path}: expected an IDX file of bytes with {magic[3]} axes: {magic.hex(' ')} and then "
                f"{magic[3]} lengths, got {header.hex(' ') or 'nothing'}"
            )
        shape = tuple(np.frombuffer(header, ">u4", offset=4).tolist())
        if shape[1:] != row:
            raise ValueError(f"{path}: expected rows of shape {row}, got a header with the shape {shape}")
        elements = math.prod(shape)
        total = len(header) + elements
        if size < total or (size != total and not is_bound):
            prefix = "at most " if is_bound else ""
            raise ValueError(f"{path}: expected {total} bytes for shape {shape}, got {prefix}{size}")
        array, filled = np.empty(elements, np.uint8), 0
        while piece := file.read(min(CHUNK_BYTES, elements - filled)):
            array[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        if filled < elements or file.read(1):
            got = filled if filled < elements else "more"
            raise ValueError(f"{path}: expected {elements} elements for shape {shape}, got {got}")
    return array.reshape(shape)


def _read_cifar(path: Path) -> list[np.ndarray]:
    """Return the rows of a CIFAR-10 file, in pieces (n, 3073): the label, then the pixels, channel by channel."""
    pieces: list[np.ndarray] = []
    total = 0
    with _open(path) as (file, size, _):
        while piece := file.read(CHUNK_BYTES):
            rows, total = total // CIFAR_ROW, total + len(piece)
            if total > size:
                raise ValueError(f"{path}: expected at most {size} bytes, got more")
            if len(piece) % CIFAR_ROW != 0:
                break
            pieces.append(np.frombuffer(piece, np.uint8).reshape(-1, CIFAR_ROW))
            _check_labels(path, pieces[-1][:, 0], rows)
    if not pieces or total % CIFAR_ROW != 0:
        raise ValueError(f"{path}: expected whole rows of {CIFAR_ROW} bytes, got {total} bytes")
    return pieces
