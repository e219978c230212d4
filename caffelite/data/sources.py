"""Sources: rows that don't have to be in memory, read in blocks as they are needed.

An epoch over a source reads blocks of neighbouring rows, as many as fill a buffer, in the order in which they lie; the
rows of a buffer are shuffled together, and trained on while the next buffer is read. The blocks of a buffer are drawn
at random from the whole source, anew for each epoch. So every row comes once, the disk reads in long stretches, and a
batch has rows from some 64 places. Rows of one block come within the same buffer: where neighbours are alike, as in a
file that is sorted by label, a batch is as mixed as 64 places are that were drawn at random.
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

BUFFER = 64 * 2**20  # bytes of rows that are in memory, twice: in use, and being read
BLOCK = BUFFER // 64  # bytes of neighbouring rows that are read in one go
SAMPLED = 64  # blocks that tell a source from another


def is_source(x: Any) -> bool:
    """Whether rows can be read from it by slices, and it is not all in memory: it has `shape`, `dtype` and slices."""
    if isinstance(x, np.ndarray | np.generic | Tensor):
        return isinstance(x, np.memmap) and x.ndim > 0
    if not all(hasattr(x, name) for name in ("shape", "dtype", "__getitem__")) or not isinstance(x.shape, tuple):
        return False
    if any(hasattr(x, name) for name in ("__dlpack__", "toarray", "columns")):  # arrays in memory, sparse ones, frames
        return False
    try:
        np.dtype(x.dtype)
    except TypeError:
        return False
    return len(x.shape) > 0


class Source:
    """Rows (n, …) of anything with `shape`, `dtype` and slices, to be read as `dtype`; `name` is what errors call it.

    Reading raises ValueError where the source has another shape than it had, or gives other rows than it said, and
    where a mapped file has become shorter, of which the system would end the process.
    """

    def __init__(self, data: Any, name: str, dtype: Any = None) -> None:
        self.data, self.name = data, name
        self.shape: tuple[int, ...] = tuple(map(int, data.shape))
        self.stored = np.dtype(data.dtype)
        self.dtype = self.stored if dtype is None else np.dtype(dtype)
        self.file = _File(data) if isinstance(data, np.memmap) and data._mmap is not None else None  # type: ignore
        self.extent = _extent(data)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def row_bytes(self) -> int:
        """The memory of a row, in this dtype."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def blank(self) -> np.ndarray:
        """No rows, of this shape and dtype."""
        return np.empty((0, *self.shape[1:]), self.dtype)

    def astype(self, dtype: Any) -> Source:
        """The same rows, read as another dtype."""
        return Source(self.data, self.name, dtype)

    def expect(self, pieces: Sequence[tuple[int, int]]) -> None:
        """The rows in these ranges will be read, all of them: the disk may fetch many at once, in its own order."""
        if isinstance(self.data, Ranges):
            self.data.expect(pieces)
        elif self.extent is not None:
            for start, stop in pieces:
                self.extent.expect(start, stop)

    def read(self, start: int, stop: int, into: np.ndarray) -> None:
        """Have these rows in an array."""
        now = tuple(self.data.shape)
        if now != self.shape:
            raise ValueError(f"{self.name} has shape {now} now; it had {self.shape} when it was given")
        if self.file is not None:
            self.file.check(self.name)
        rows = np.asarray(self.data[start:stop])
        if (rows.shape, rows.dtype) != ((stop - start, *self.shape[1:]), self.stored):
            raise ValueError(
                f"{self.name}: rows {start:,} … {stop - 1:,} came as {rows.dtype} of shape {rows.shape}; expected "
                f"{self.stored} of shape {(stop - start, *self.shape[1:])}, as the source says of itself"
            )
        with np.errstate(all="ignore"):
            np.copyto(into, rows, casting="unsafe")
        if self.extent is not None:
            self.extent.forget(start, stop)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """These rows in an array of their own."""
        into = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self.read(start, stop, into)
        return into

    def digest(self) -> str:
        """A hash of rows from all over the source: of all of them where they are few."""
        found, step = hashlib.blake2b(), max(1, BLOCK // 16 // max(self.row_bytes, 1))
        for start in dict.fromkeys(np.linspace(0, max(len(self) - step, 0), SAMPLED).astype(int).tolist()):
            found.update(self.rows(start, min(start + step, len(self))).data)
        return found.hexdigest()[:32]


class _File:
    """The file that an array is mapped from."""

    def __init__(self, array: np.memmap) -> None:
        from mmap import ALLOCATIONGRANULARITY  # which whoever has mapped the file has imported

        self.map: Any = array._mmap  # type: ignore[attr-defined]
        self.end = array.offset - array.offset % ALLOCATIONGRANULARITY + len(self.map)  # of what is mapped

    def check(self, name: str) -> None:
        """ValueError, beginning with the name, where the file ends before what is mapped of it."""
        if (size := self.map.size()) < self.end:
            raise ValueError(f"{name}: its file has {size:,} bytes now, and {self.end:,} were mapped")


def _extent(data: Any) -> _Mapped | _InFile | None:
    """Where in a file the rows of these data lie one behind the other, if they do."""
    if isinstance(data, np.memmap):
        in_file = data._mmap is not None and data.mode != "c"  # type: ignore[attr-defined]  # c: private
        return _Mapped(data) if in_file and data.flags.c_contiguous and data.size else None
    try:  # an h5py dataset says so; in chunks there is no offset
        offset, file = data.id.get_offset(), data.file.id.get_vfd_handle()
        return None if offset is None else _InFile(file, offset, data.nbytes // len(data))
    except Exception:  # anything else that has slices
        return None


class _Mapped:
    """The part of a mapped file in which the rows of an array lie one behind the other.

    What has been read is dropped from the process's memory, where it would stay as long as there is any; from the
    system's cache it is not, and writes are kept.
    """

    def __init__(self, array: np.memmap) -> None:
        import mmap  # which whoever has mapped the file has imported

        self.map: Any = array._mmap  # type: ignore[attr-defined]
        self.page, self.advice = mmap.PAGESIZE, vars(mmap)
        begin = np.frombuffer(self.map, np.uint8).__array_interface__["data"][0]
        self.offset, self.row_bytes = array.__array_interface__["data"][0] - begin, array.nbytes // len(array)

    def expect(self, start: int, stop: int) -> None:
        """These rows will be read, all of them."""
        self._advise("MADV_WILLNEED", start, stop)

    def forget(self, start: int, stop: int) -> None:
        """These rows have been read."""
        self._advise("MADV_DONTNEED", start, stop)

    def _advise(self, advice: str, start: int, stop: int) -> None:
        begin, end = self.offset + start * self.row_bytes, self.offset + stop * self.row_bytes
        begin -= begin % self.page
        with suppress(OSError, ValueError, KeyError):  # it is advice, which some systems don't take
            self.map.madvise(self.advice[advice], begin, end - begin)


class _InFile:
    """The part of a file, open under this number, in which rows of so many bytes lie one behind the other."""

    def __init__(self, file: int, offset: int, row_bytes: int) -> None:
        self.file, self.offset, self.row_bytes = file, offset, row_bytes

    def expect(self, start: int, stop: int) -> None:
        """These rows will be read, all of them."""
        with suppress(OSError, AttributeError):  # it is advice, which some systems don't take
            begin, count = self.offset + start * self.row_bytes, (stop - start) * self.row_bytes
            os.posix_fadvise(self.file, begin, count, os.POSIX_FADV_WILLNEED)

    def forget(self, start: int, stop: int) -> None:
        """What has been read is in the system's cache alone, which sees to that by itself."""


class Ranges:
    """The rows of a source that lie in ranges, (m, 2) ascending, as one: something with shape, dtype and slices."""

    def __init__(self, source: Source, ranges: np.ndarray) -> None:
        self.source, self.ranges = source, ranges
        self.shape = (int((ranges[:, 1] - ranges[:, 0]).sum()), *source.shape[1:])
        self.dtype = source.dtype

    def expect(self, pieces: Sequence[tuple[int, int]]) -> None:
        """As `Source.expect`, of places in the ranges."""
        self.source.expect([inner for start, stop in pieces for inner in _pieces(self.ranges, start, stop)])

    def __getitem__(self, rows: slice) -> np.ndarray:
        pieces = list(_pieces(self.ranges, rows.start, rows.stop))
        rooms = [np.empty((rows.stop - rows.start, *self.shape[1:]), self.dtype)]
        read([self.source], pieces, rooms)
        return rooms[0]


def _pieces(ranges: np.ndarray, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """What lies at places start … stop − 1 of these ranges, one behind the other: ranges."""
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
    left: Callable[[], bool] = lambda: False,
) -> None:
    """Have the rows in these ranges of all columns, sources or arrays, one behind the other in arrays.

    It ends early where somebody has `left`, who wanted them.
    """
    for column in columns:
        if isinstance(column, Source):
            column.expect(pieces)
    place = 0
    for start, stop in pieces:
        if left():
            return
        for column, room in zip(columns, into, strict=True):
            rows = room[place : place + stop - start]
            if isinstance(column, Source):
                column.read(start, stop, rows)
            else:
                rows[...] = column[start:stop]
        place += stop - start


class Blocks:
    """How rows of columns, sources or arrays, are divided into blocks and buffers; see above.

    A buffer has a whole number of batches, and so many bytes, counting for each row its place in an order, and for each
    element no less than the four bytes that it may become.
    """

    def __init__(self, columns: Sequence[Any], rows: int, batch_size: int = 1) -> None:
        elements = [(int(np.prod(x.shape[1:], dtype=np.int64)), x.dtype.itemsize) for x in columns]
        row_bytes = sum(count * max(size, 4) for count, size in elements) + 8
        chunks = [getattr(x.data, "chunks", None) for x in columns if isinstance(x, Source)]
        chunk = max([c[0] for c in chunks if isinstance(c, tuple) and c and isinstance(c[0], int)], default=1)
        self.rows, self.batch_size = rows, batch_size
        self.block = -(-max(BLOCK // row_bytes, 1) // chunk) * chunk  # whole chunks, where the source has such
        self.batches = max(BUFFER // row_bytes // batch_size, 1)  # of a buffer
        self.buffer = self.batches * batch_size

    def ranges(self, words: Any = None) -> np.ndarray:
        """The ranges of all rows, block by block, (m, 2): in their order, or shuffled by random words."""
        starts = np.arange(0, self.rows, self.block)
        if words is not None:
            order = np.arange(len(starts))
            kernels.shuffle(order, words)
            starts = starts[order]
        return np.stack([starts, np.minimum(starts + self.block, self.rows)], axis=1)

    def pieces(self, ranges: np.ndarray, number: int, rows: int, is_last: bool) -> list[tuple[int, int]]:
        """What the buffer of this number, of so many rows in all, reads: ranges in the order in which they lie."""
        return sorted(_pieces(ranges, number * self.buffer, rows if is_last else (number + 1) * self.buffer))

    def held_out(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The ranges of all rows but so many, and of these, drawn at random block by block; both ascending."""
        ranges = self.ranges()
        order = rng.permutation(len(ranges))
        shares = np.zeros(len(ranges), np.int64)
        lengths = (ranges[:, 1] - ranges[:, 0])[order]
        shares[order] = np.clip(count - (np.cumsum(lengths) - lengths), 0, lengths)
        cuts = ranges[:, 0] + shares
        kept, out = np.stack([cuts, ranges[:, 1]], axis=1), np.stack([ranges[:, 0], cuts], axis=1)
        return kept[kept[:, 0] < kept[:, 1]], out[out[:, 0] < out[:, 1]]


def part(column: Any, ranges: np.ndarray) -> Any:
    """The rows of a source or an array that lie in these ranges."""
    if isinstance(column, Source):
        return Source(Ranges(column, ranges), column.name)
    return np.concatenate([column[start:stop] for start, stop in ranges])
