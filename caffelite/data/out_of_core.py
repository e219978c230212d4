"""Sources: rows that needn't be in memory. They are read in blocks when they are needed.

A block consists of neighbouring rows. An epoch over a source reads enough blocks to fill a buffer, in the order of the
file. It shuffles all rows of the buffer together, and trains on them while it reads the next buffer. In each epoch, the
blocks of each buffer are drawn again at random from the entire source.

So every row occurs once, the disk reads in long stretches, and a batch has rows from about 64 places. The rows of a
block are always in the same buffer. If neighbours are alike, as in a file sorted by label, a batch is only as mixed as
64 random places.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.tensor import Tensor

BUFFER = 64 * 2**20  # bytes; there are two buffers: one in use, one being read
BLOCK = BUFFER // 64  # bytes of neighbouring rows that are read together
HASH_SAMPLES = 64  # places that a source's hash samples


def is_source(x: Any) -> bool:
    """Return whether x's rows can be read by slices, and are not all in memory.

    It has `shape`, `dtype` and slices.
    """
    if isinstance(x, np.ndarray | np.generic | Tensor):
        return isinstance(x, np.memmap) and x.ndim > 0
    if not all(hasattr(x, name) for name in ("shape", "dtype", "__getitem__")) or not isinstance(x.shape, tuple):
        return False
    if any(hasattr(x, name) for name in ("__dlpack__", "toarray", "columns")):  # array in memory, sparse matrix, frame
        return False
    try:
        np.dtype(x.dtype)
    except TypeError:
        return False
    return len(x.shape) > 0


def open_source(data: Any, name: str) -> Any:
    """Return a source as a Source, or all its rows if they fit into a buffer; everything else as it is."""
    if not is_source(data):
        return data
    source = Source(data, name)
    return source if len(source) * source.row_bytes > BUFFER else source.rows(0, len(source))


class Source:
    """Rows (n, …) of anything with `shape`, `dtype` and slices, read as `dtype`; errors call it `name`.

    Reading raises ValueError if the source has changed its shape, or returns rows of the wrong number or shape. It also
    raises ValueError if a mapped file has become shorter, because reading it would end the process.
    """

    def __init__(self, data: Any, name: str, dtype: Any = None) -> None:
        self.data, self.name = data, name
        self.shape: tuple[int, ...] = tuple(map(int, data.shape))
        self.stored_dtype = np.dtype(data.dtype)
        self.dtype = self.stored_dtype if dtype is None else np.dtype(dtype)
        self.file = _MappedFile(data) if isinstance(data, np.memmap) and data._mmap is not None else None  # type: ignore
        self.region = _find_region(data)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row in this dtype."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def empty(self) -> np.ndarray:
        """An array without rows, of this shape and dtype."""
        return np.empty((0, *self.shape[1:]), self.dtype)

    def astype(self, dtype: Any) -> Source:
        """Return the same rows, read as another dtype."""
        return Source(self.data, self.name, dtype)

    def prefetch(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Announce that all rows in these ranges will be read, so that the disk can fetch many at once."""
        if isinstance(self.data, Ranges):
            self.data.prefetch(pieces)
        elif self.region is not None:
            for start, stop in pieces:
                self.region.prefetch(start, stop)

    def read(self, start: int, stop: int, into: np.ndarray) -> None:
        """Read these rows into an array."""
        now = tuple(self.data.shape)
        if now != self.shape:
            raise ValueError(f"{self.name} has shape {now} now; it had {self.shape} when it was given")
        if self.file is not None:
            self.file.check(self.name)
        rows = np.asarray(self.data[start:stop])
        if (rows.shape, rows.dtype) != ((stop - start, *self.shape[1:]), self.stored_dtype):
            raise ValueError(
                f"{self.name}: rows {start:,} … {stop - 1:,} came as {rows.dtype} of shape {rows.shape}; expected "
                f"{self.stored_dtype} of shape {(stop - start, *self.shape[1:])}, as the source declares"
            )
        with np.errstate(all="ignore"):
            np.copyto(into, rows, casting="unsafe")
        if self.region is not None:
            self.region.release(start, stop)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return these rows in a new array."""
        into = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self.read(start, stop, into)
        return into

    def digest(self) -> str:
        """Return a hash of rows from all over the source, or of all rows if they are few."""
        digest, step = hashlib.blake2b(), max(1, BLOCK // 16 // max(self.row_bytes, 1))
        for start in dict.fromkeys(np.linspace(0, max(len(self) - step, 0), HASH_SAMPLES).astype(int).tolist()):
            digest.update(self.rows(start, min(start + step, len(self))).data)
        return digest.hexdigest()[:32]


class _MappedFile:
    """The file that an array is mapped from."""

    def __init__(self, array: np.memmap) -> None:
        from mmap import ALLOCATIONGRANULARITY  # already imported, since the file is mapped

        self.map: Any = array._mmap  # type: ignore[attr-defined]
        self.end = array.offset - array.offset % ALLOCATIONGRANULARITY + len(self.map)  # of the mapped part

    def check(self, name: str) -> None:
        """Raise ValueError, beginning with the name, if the file is now shorter than the mapped part."""
        if (size := self.map.size()) < self.end:
            raise ValueError(f"{name}: its file has {size:,} bytes now, and {self.end:,} were mapped")


def _find_region(data: Any) -> _MappedRegion | _FileRegion | None:
    """Return the part of a file that holds these rows one after the other, if there is one."""
    if isinstance(data, np.memmap):
        in_file = data._mmap is not None and data.mode != "c"  # type: ignore[attr-defined]  # c: private
        return _MappedRegion(data) if in_file and data.flags.c_contiguous and data.size else None
    try:  # an h5py dataset knows its offset, unless it is stored in chunks
        offset, file = data.id.get_offset(), data.file.id.get_vfd_handle()
        return None if offset is None else _FileRegion(file, offset, data.nbytes // len(data))
    except Exception:  # not an h5py dataset
        return None


class _MappedRegion:
    """The part of a mapped file that holds the rows of an array one after the other.

    Rows that have been read are dropped from the process's memory, where they would otherwise stay as long as there is
    room. They stay in the system's cache, and writes are kept.
    """

    def __init__(self, array: np.memmap) -> None:
        import mmap  # already imported, since the file is mapped

        self.map: Any = array._mmap  # type: ignore[attr-defined]
        self.page, self.advice = mmap.PAGESIZE, vars(mmap)
        begin = np.frombuffer(self.map, np.uint8).__array_interface__["data"][0]
        self.offset, self.row_bytes = array.__array_interface__["data"][0] - begin, array.nbytes // len(array)

    def prefetch(self, start: int, stop: int) -> None:
        """Announce that all these rows will be read."""
        self._advise("MADV_WILLNEED", start, stop)

    def release(self, start: int, stop: int) -> None:
        """Note that these rows have been read."""
        self._advise("MADV_DONTNEED", start, stop)

    def _advise(self, advice: str, start: int, stop: int) -> None:
        begin, end = self.offset + start * self.row_bytes, self.offset + stop * self.row_bytes
        begin -= begin % self.page
        with suppress(OSError, ValueError, KeyError, AttributeError):  # some systems don't take this advice
            self.map.madvise(self.advice[advice], begin, end - begin)


class _FileRegion:
    """The part of an open file that holds rows one after the other; `file` is its descriptor."""

    def __init__(self, file: int, offset: int, row_bytes: int) -> None:
        self.file, self.offset, self.row_bytes = file, offset, row_bytes

    def prefetch(self, start: int, stop: int) -> None:
        """Announce that all these rows will be read."""
        with suppress(OSError, AttributeError):  # some systems don't take this advice
            begin, count = self.offset + start * self.row_bytes, (stop - start) * self.row_bytes
            os.posix_fadvise(self.file, begin, count, os.POSIX_FADV_WILLNEED)

    def release(self, start: int, stop: int) -> None:
        """Do nothing: rows that were read are only in the system's cache, which frees them itself."""


class Ranges:
    """The rows of a source in ranges, (m, 2) ascending, as one source with shape, dtype and slices."""

    def __init__(self, source: Source, ranges: np.ndarray) -> None:
        self.source, self.ranges = source, ranges
        self.shape = (int((ranges[:, 1] - ranges[:, 0]).sum()), *source.shape[1:])
        self.dtype = source.dtype

    def prefetch(self, pieces: Sequence[tuple[int, int]]) -> None:
        """As `Source.prefetch`, for places in the ranges."""
        self.source.prefetch([inner for start, stop in pieces for inner in _slice_ranges(self.ranges, start, stop)])

    def __getitem__(self, rows: slice) -> np.ndarray:
        pieces = list(_slice_ranges(self.ranges, rows.start, rows.stop))
        arrays = [np.empty((rows.stop - rows.start, *self.shape[1:]), self.dtype)]
        read([self.source], pieces, arrays)
        return arrays[0]


def _slice_ranges(ranges: np.ndarray, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows at places start … stop − 1, counted through these ranges."""
    ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
    for i in range(int(np.searchsorted(ends, start, "right")), len(ranges)):
        begin = int(ends[i] - (ranges[i, 1] - ranges[i, 0]))
        if begin >= stop:
            break
        first = int(ranges[i, 0])
        yield first + max(start - begin, 0), first + min(stop, int(ends[i])) - begin


def read(
    columns: Sequence[Any],
    pieces: Sequence[tuple[int, int]],
    into: Sequence[np.ndarray],
    is_cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Read the rows in these ranges of all columns, sources or arrays, one after the other into arrays.

    It ends early if `is_cancelled()` is True: then the rows are no longer needed.
    """
    for column in columns:
        if isinstance(column, Source):
            column.prefetch(pieces)
    row = 0
    for start, stop in pieces:
        if is_cancelled():
            return
        for column, array in zip(columns, into, strict=True):
            rows = array[row : row + stop - start]
            if isinstance(column, Source):
                column.read(start, stop, rows)
            else:
                rows[...] = column[start:stop]
        row += stop - start


class Blocks:
    """Divides the rows of columns, sources or arrays, into blocks and buffers; see the top of this file.

    A buffer has a whole number of batches, and at most `BUFFER` bytes if one batch fits. A row counts 8 bytes for its
    place in an order. An element counts at least 4 bytes, because it may be converted.
    """

    def __init__(self, columns: Sequence[Any], rows: int, batch_size: int = 1) -> None:
        elements = [(int(np.prod(x.shape[1:], dtype=np.int64)), x.dtype.itemsize) for x in columns]
        row_bytes = sum(count * max(size, 4) for count, size in elements) + 8
        chunks = [getattr(x.data, "chunks", None) for x in columns if isinstance(x, Source)]
        chunk = max([c[0] for c in chunks if isinstance(c, tuple) and c and isinstance(c[0], int)], default=1)
        self.rows, self.batch_size = rows, batch_size
        self.block = -(-max(BLOCK // row_bytes, 1) // chunk) * chunk  # whole chunks, if the source has chunks
        self.batches = max(BUFFER // row_bytes // batch_size, 1)  # in a buffer
        self.buffer = self.batches * batch_size

    def ranges(self, words: Any = None) -> np.ndarray:
        """Return the ranges of all blocks, (m, 2): in their order, or shuffled by random words."""
        starts = np.arange(0, self.rows, self.block)
        if words is not None:
            order = np.arange(len(starts))
            kernels.shuffle(order, words)
            starts = starts[order]
        return np.stack([starts, np.minimum(starts + self.block, self.rows)], axis=1)

    def pieces(self, ranges: np.ndarray, number: int, rows: int, is_last: bool) -> list[tuple[int, int]]:
        """Return the ranges that buffer `number` reads, in ascending order. `rows` is the number of rows in all."""
        return sorted(_slice_ranges(ranges, number * self.buffer, rows if is_last else (number + 1) * self.buffer))

    def hold_out(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw `count` rows at random, block by block. Return the ranges of the other rows and of these, ascending."""
        ranges = self.ranges()
        order = rng.permutation(len(ranges))
        shares = np.zeros(len(ranges), np.int64)
        lengths = (ranges[:, 1] - ranges[:, 0])[order]
        shares[order] = np.clip(count - (np.cumsum(lengths) - lengths), 0, lengths)
        cuts = ranges[:, 0] + shares
        rest, held_out = np.stack([cuts, ranges[:, 1]], axis=1), np.stack([ranges[:, 0], cuts], axis=1)
        return rest[rest[:, 0] < rest[:, 1]], held_out[held_out[:, 0] < held_out[:, 1]]


def select_ranges(column: Any, ranges: np.ndarray) -> Any:
    """Return the rows of a source or an array in these ranges."""
    if isinstance(column, Source):
        return Source(Ranges(column, ranges), column.name)
    return np.concatenate([column[start:stop] for start, stop in ranges])
