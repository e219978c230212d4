"""DataGenerator makes mini-batches; Prefetch makes them ahead of time, in a thread."""

from __future__ import annotations

import copy
import functools
import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.moved_modules import rename_attributes
from caffelite.core.arrays import check_bool, check_positive_integer, make_rng
from caffelite.core.sparse import SparseRows
from caffelite.data import out_of_core
from caffelite.data.augment import augmentation_key
from caffelite.data.conversion import (
    as_rows,
    as_weights,
    count_rows,
    is_multi_target,
    name_targets,
    read,
    to_contiguous,
    tuple_hint,
)
from caffelite.data.frames import column_names, open_frame
from caffelite.data.lengths import MAX_WIDTHS, LengthGroups, as_lengths
from caffelite.data.out_of_core import Blocks, Source
from caffelite.data.prefetch import Call, prefetch, raise_error
from caffelite.data.transforms import Transform, as_transforms, check_pair, collate_rows, is_row_dataset


class Batch(NamedTuple):
    """Rows: a model's inputs, the targets, and the rows' weights in the loss (None: all equal).

    Inputs are arrays, sparse rows, or Sources, which are read when they are needed. Targets may be Sources too. If the
    rows have yet to be cut, there are `lengths`.
    """

    inputs: tuple[Any, ...]
    targets: tuple[Any, ...]
    weights: np.ndarray | None = None
    lengths: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.targets[0])

    def columns(self) -> list[Any]:
        """Return inputs, targets and weights (if any) as one list."""
        return [*self.inputs, *self.targets, *([] if self.weights is None else [self.weights])]

    def layout(self) -> Layout:
        """Return how many of the columns are inputs, targets and weights."""
        return Layout(len(self.inputs), len(self.targets), self.weights is not None)


class Layout(NamedTuple):
    """The columns of a batch: the number of inputs, the number of targets, and whether there are weights."""

    inputs: int
    targets: int
    has_weights: bool

    def batch(self, columns: Sequence[Any]) -> Batch:
        """Return the Batch of these columns, in the order of `Batch.columns`."""
        first, last = self.inputs, self.inputs + self.targets
        return Batch(tuple(columns[:first]), tuple(columns[first:last]), columns[last] if self.has_weights else None)


def unpack_single(arrays: tuple[Any, ...]) -> Any:
    """Return the only array of a tuple, or the tuple if it has several. This is the form that users get."""
    return arrays[0] if len(arrays) == 1 else arrays


@rename_attributes(
    _joins="_merges_last",
    _least="_min_rows",
    _numbers="_seed_and_epoch",
    _state="_shuffle_state",
    columns="column_names",
    in_dtype_of_model="has_model_dtype",
)
class DataGenerator:
    """A data loader: mini-batches of x, or of x and y, or of x, y and weights.

    Parameters
    ----------
    x, y : array-like, a frame of numbers, or a source
        Rows are on the first axis, with as many in x as in y, of any dtype except object. A tuple x holds several
        inputs, and a tuple y several targets, each with this number of rows. x may be a SciPy sparse matrix; its
        batches are CSR matrices. A mapped file (`np.memmap`), an h5py dataset, and any object with `shape`, `dtype` and
        slices is a source. If it is larger than 64 MiB, it is read block by block; `caffelite.sources` describes the
        order. Without y, x may also be a dataset such as PyTorch's: it has a length, and x[i] is a row (x, y) or (x1,
        x2, y). Each batch calls it again for its rows.
    batch_size : int
        Rows per batch; the last batch has the rows that are left.
    shuffle : bool
        Whether to draw a new order for every epoch.
    drop_last : bool
        Whether to leave out a last batch that is too short.
    seed : int or numpy.random.Generator, optional
        The same seed gives the same orders, here and in `Model.fit`. None draws a seed.
    sample_weight : array-like (n,), optional
        The weight of each row in the loss. Needs y.
    transform : callable (x, y) -> (x, y), or a list of them, optional
        Changes each batch before it is used, but not its number of rows. In a list, each transform gets the previous
        one's result. `caffelite.augment` has transforms, which draw from `seed`. The first gets fresh arrays in the
        data's own dtypes, or tuples if x or y are tuples, and may write to them. Needs y. Training then goes through
        Python for each batch. Exceptions of a transform are passed on unchanged.
    lengths : array-like (n,) of int, optional
        How many leading positions of each row count, from 1 to the width of x. Each batch then has rows of similar
        length and is cut to the longest: axis 1 of x, and of all inputs and targets that are as wide. With
        shuffle=False the rows keep their order. The data must be in memory.

    Each pass is one epoch, with `len()` batches. A batch is x, (x, y) or (x, y, weights), in fresh arrays; x and y are
    tuples if you gave tuples. Every row occurs once. If you leave an epoch early, the next pass is a new epoch. If the
    loss is a mean, a short last batch counts as much as a full one.

    Raise ValueError if there are no rows, if x, y and weights differ in length, if weights are negative or not finite,
    or if batch_size is below 1. Raise TypeError if batch_size is not an integer, if shuffle or drop_last is not a bool,
    if the data are Python objects, or if a transform can't be called.

    During an epoch, raise TypeError if a transform does not return a pair, and ValueError if a transform or a source
    returns the wrong number of rows, or a source changes its shape. Exceptions of a source are passed on.
    """

    has_model_dtype = False  # whether x, y and weights are already converted to a model's dtype

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 32,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int | np.random.Generator | None = None,
        sample_weight: Any = None,
        transform: Transform | Sequence[Transform] | None = None,
        lengths: Any = None,
    ) -> None:
        self.transform = as_transforms(transform)
        if y is None and is_row_dataset(x):
            self.transform = (functools.partial(collate_rows, x), *self.transform)
            x = y = np.arange(len(x))
        x = open_frame(x, "x")
        self.column_names = column_names(x)
        self.x = tuple([as_rows(f"x[{i}]", a) for i, a in enumerate(x)]) if isinstance(x, tuple) else as_rows("x", x)
        named = {} if y is None else {name: as_rows(name, read(a, name)) for name, a in name_targets(y, "y")}
        self.y = tuple(named.values()) if is_multi_target(y) else named.get("y")
        self.rows = rows = count_rows("x", self.x) if isinstance(self.x, tuple) else len(self.x)
        for name, a in named.items():
            if len(a) != rows:
                shapes = ", ".join([str(a.shape) for a in (*self._inputs(), *named.values())])
                raise ValueError(f"x has {rows} rows and {name} has {len(a)}: shapes {shapes}{tuple_hint(x)}")
        if sample_weight is not None and y is None:
            raise ValueError("sample_weight needs y, because the weights belong to the loss")
        self.sample_weight = None if sample_weight is None else as_weights(sample_weight, rows)
        if self.transform and y is None:
            raise ValueError("transform needs y: it takes x and y and returns them")
        self.lengths = None if lengths is None else as_lengths(lengths, self._columns())
        self._set_up(batch_size, shuffle, drop_last, _draw_words(make_rng("seed", seed)))

    @classmethod
    def from_batch(cls, data: Batch, batch_size: int = 32, shuffle: bool = True, seed: Any = None) -> DataGenerator:
        """Make batches of rows already checked and in a model's dtype. They need no seed if they are not shuffled."""
        self = cls.__new__(cls)
        self.column_names, self.transform, self.has_model_dtype = None, (), True
        self.x, self.y = (unpack_single(tuple(map(to_contiguous, arrays))) for arrays in (data.inputs, data.targets))
        self.sample_weight, self.lengths, self.rows = data.weights, data.lengths, data.rows
        words = np.zeros(4, np.uint64) if seed is None and not shuffle else _draw_words(make_rng("seed", seed))
        self._set_up(batch_size, shuffle, False, words)
        return self

    def _set_up(self, batch_size: int, shuffle: bool, drop_last: bool, words: np.ndarray) -> None:
        rows = self.rows
        self.batch_size = check_positive_integer("batch_size", batch_size)
        self.shuffle, self.drop_last = check_bool("shuffle", shuffle), check_bool("drop_last", drop_last)
        if drop_last and rows < self.batch_size:
            raise ValueError(f"drop_last leaves no batch of {rows} rows in batches of {self.batch_size}")
        columns = self._columns()
        is_out_of_core = Source in map(type, columns)
        if is_out_of_core and SparseRows in map(type, columns):
            raise ValueError("x is sparse, and so in memory; expected y in memory, too: np.array(y)")
        #: How the rows are read if they are not all in memory.
        self.blocks = Blocks(columns, rows, self.batch_size) if is_out_of_core else None
        # The order of the last epoch, which the next one shuffles further, and the state of the shuffle's generator.
        self._order = np.arange(0 if is_out_of_core else rows, dtype=np.int64)
        self._shuffle_state = words
        # The seed of augmentations and of the order of blocks, and the number of epochs begun.
        self._seed_and_epoch = np.array([int(self._shuffle_state[0]) >> 1, 0], np.int64)
        self._merges_last = False  # see `merge_single_rows`
        self._min_rows = self.batch_size  # with `drop_last`, the least rows of a batch that is kept
        self.groups = self._make_groups()

    def _make_groups(self) -> LengthGroups | None:
        """Return the rows in groups of similar length, or None without lengths. A short last batch is a shape, too."""
        if self.lengths is None:
            return None
        count = MAX_WIDTHS - (self.batch_sizes(self.rows)[1] > 0)
        return LengthGroups(self.lengths, self._columns(), count, self.batch_size)

    def restrict(self, rows: np.ndarray) -> DataGenerator:
        """Restrict the generator, before its first epoch, to these rows, int64 (m,), in this order. Return it."""
        self._order, self.rows = rows.copy(), len(rows)
        return self

    def join_batches(self, count: int) -> DataGenerator:
        """Return the same rows in batches that join `count` of these, from the same point in the sequence of orders.

        `drop_last` leaves out the same rows.
        """
        generator = copy.copy(self)  # shares the arrays that an epoch changes
        generator.batch_size *= count
        generator.blocks = None if self.blocks is None else Blocks(self._columns(), self.rows, generator.batch_size)
        generator.groups = generator._make_groups()
        return generator

    def sort_by_length(self) -> DataGenerator:
        """Sort the rows by their lengths, if they have any, for batches that are not shuffled. Return the generator."""
        if self.lengths is not None:
            self._order[:] = self._order[self.lengths[self._order].argsort(kind="stable")]
        return self

    def __len__(self) -> int:
        full, last = self.batch_sizes(self.rows)
        return full + (last > 0)

    def batch_sizes(self, rows: int) -> tuple[int, int]:
        """Return the number of batches of `batch_size`, and the rows of a last batch of another size, or 0 if none."""
        if self.drop_last:
            rows -= rows % self._min_rows
        full, last = divmod(rows, self.batch_size)
        return (full - 1, self.batch_size + 1) if self._merges_last and last == 1 and full else (full, last)

    @property
    def _seed(self) -> int:
        return int(self._seed_and_epoch[0])

    @property
    def _epochs(self) -> int:
        return int(self._seed_and_epoch[1])

    def __iter__(self) -> Iterator[Any]:
        return _run_calls(self.epoch())

    def epoch(self, first: int = 0) -> Iterator[Call]:
        """Return the batches of a new epoch, from batch `first` on, as calls that make them.

        The call raises a transform's exceptions, not the iterator, which would end at a StopIteration.
        """
        if self.blocks is not None:
            return self._read_batches(first)
        if self.shuffle:
            self.shuffle_rows()
        columns, order, epoch = self._columns(), self._order.copy(), self.begin()
        return (functools.partial(self._batch, columns, order, epoch, i, i) for i in range(first, len(self)))

    def shuffle_rows(self) -> None:
        """Shuffle the rows for the next epoch. If they have lengths, rows of similar length form the batches."""
        kernels.shuffle(self._order, self._shuffle_state)
        if self.groups is not None:
            self.groups.sort(self._order, self._shuffle_state, self.batch_size, *self.batch_sizes(self.rows))

    def _read_batches(self, first: int) -> Iterator[Call]:
        assert self.blocks is not None
        columns = self._columns()
        with closing(self.buffers(columns, self.allocate_buffers(columns), first // self.blocks.batches)) as buffers:
            epoch, number = self._epochs, first
            for read in buffers:
                try:
                    buffer = read()
                except StopIteration as error:  # from a user's source
                    yield functools.partial(raise_error, error)
                    return
                full, last = self.batch_sizes(len(buffer.order))
                for i in range(number % self.blocks.batches, full + (last > 0)):
                    yield functools.partial(self._batch, buffer.columns, buffer.order, epoch, number, i)
                    number += 1

    def allocate_buffers(self, columns: list[Any]) -> list[list[np.ndarray]]:
        """Allocate two buffers for these columns: one in use, one that is being read."""
        assert self.blocks is not None
        size = min(self.blocks.buffer + self._merges_last, self.rows)
        return [[np.empty((size, *x.shape[1:]), x.dtype) for x in columns] for _ in range(2)]

    def begin(self) -> int:
        """Begin a new epoch and return its number."""
        self._seed_and_epoch[1] += 1
        return self._epochs

    def buffers(
        self, columns: list[Any], memory: list[list[np.ndarray]], first: int = 0, epochs: int = 1
    ) -> Generator[Callable[[], BlockBuffer]]:
        """Return the buffers of a new epoch, from buffer `first` on, and of the epochs after it.

        `caffelite.sources` describes buffers. The columns are the generator's, in the dtypes to read them in. A thread
        reads each buffer while the one before is in use. When you ask for the next buffer, the memory of the last one
        is reused. This call begins the first epoch. To go on to a later epoch, call `begin`.
        """
        assert self.blocks is not None
        blocks, first_epoch = self.blocks, self.begin()
        full, last = self.batch_sizes(self.rows)
        rows = full * self.batch_size + last
        count = -(-len(self) // blocks.batches)
        closed = threading.Event()

        def buffer(epoch: int, ranges: np.ndarray, number: int, buffer_memory: list[np.ndarray]) -> BlockBuffer:
            pieces = blocks.pieces(ranges, number, rows, is_last=number == count - 1)
            order = np.arange(sum(stop - start for start, stop in pieces))
            arrays = [array[: len(order)] for array in buffer_memory]
            out_of_core.read(columns, pieces, arrays, closed.is_set)
            if self.shuffle:
                kernels.shuffle(order, self._random_words(epoch, number))
            return BlockBuffer(arrays, order, pieces)

        def calls() -> Iterator[Call]:
            memories = itertools.cycle(memory)
            for epoch in range(first_epoch, first_epoch + epochs):
                ranges = blocks.ranges(self._random_words(epoch) if self.shuffle else None)
                for number in range(first if epoch == first_epoch else 0, count):
                    yield functools.partial(buffer, epoch, ranges, number, next(memories))

        return prefetch(calls(), 1, closed.set)

    def _random_words(self, *numbers: int) -> np.ndarray:
        """Return random bits for an epoch, or for a buffer in it, from the seed."""
        return np.random.SeedSequence((self._seed, *numbers)).generate_state(4, np.uint64)

    def state(self) -> dict[str, np.ndarray]:
        """Return, by name, copies of the generator's position in the sequence of orders and draws."""
        state = {"order": self._order, "words": self._shuffle_state, "numbers": self._seed_and_epoch}
        return {name: array.copy() for name, array in state.items()}

    def check(self, state: dict[str, np.ndarray]) -> None:
        """Raise ValueError if this can't be the `state()` of a generator with as many rows."""
        own_state = self.state()
        if any(state[name].shape != x.shape or state[name].dtype != x.dtype for name, x in own_state.items()):
            raise ValueError("expected the state of a DataGenerator with as many rows")
        if not np.array_equal(np.sort(state["order"]), np.sort(self._order)) or (state["numbers"] < 0).any():
            raise ValueError("expected the state of a DataGenerator, whose order has each row once")

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go back to the position of a `state()`."""
        self._order[:], self._shuffle_state[:] = state["order"], state["words"]
        self._seed_and_epoch[:] = state["numbers"]

    def _columns(self) -> list[Any]:
        """Return the inputs, and the targets and weights if there are any, as a list."""
        return [*self._inputs(), *self._targets(), *([] if self.sample_weight is None else [self.sample_weight])]

    def _inputs(self) -> tuple[Any, ...]:
        return self.x if isinstance(self.x, tuple) else (self.x,)

    def _targets(self) -> tuple[Any, ...]:
        return self.y if isinstance(self.y, tuple) else () if self.y is None else (self.y,)

    def _weights(self, dtype: Any) -> np.ndarray | None:
        """Return the weights in a model's dtype. ValueError if one is outside its range."""
        return None if self.sample_weight is None else as_weights(self.sample_weight, len(self.sample_weight), dtype)

    def _batch(self, columns: list[np.ndarray], order: np.ndarray, epoch: int, number: int, i: int) -> Any:
        """Make batch i of columns in this order. `number` counts the epoch's batches."""
        first, stop = i * self.batch_size, (i + 1) * self.batch_size
        rows = order[first : stop if i < self.batch_sizes(len(order))[0] else None]
        taken = [_take_rows(column, rows) for column in columns]
        arrays = iter(taken if self.groups is None else self.groups.cut_rows(taken, rows))
        x, y = _repack(self.x, arrays), _repack(self.y, arrays)
        if self.transform:
            with augmentation_key(self._seed, (epoch << 32) + number):
                for transform in self.transform:
                    x, y = check_pair(transform(x, y), len(rows))
        return x if self.y is None else (x, y, *arrays)


class BlockBuffer(NamedTuple):
    """Rows that were read from a source.

    `columns` are the arrays of the rows, `order` is the order in which to use the rows, and `pieces` are the ranges
    that were read, in file order.
    """

    columns: list[np.ndarray]
    order: np.ndarray
    pieces: list[tuple[int, int]]


class Prefetch:
    """Batches that a thread makes ahead of time. It starts and ends with each pass.

        model.fit(cl.Prefetch(batches), …)      # batches: any iterable that `fit` takes, even a DataGenerator

    This helps if making a batch waits for a disk or a network, or computes without Python's lock, as NumPy does.

    Parameters
    ----------
    batches : iterable
        Each pass goes through it once, in order. The arrays of a batch are copied, so you may reuse them for the next
        one.
    depth : int
        How many batches may be ready or in progress, apart from the one in use.

    If making a batch raises an exception, you get the exception in place of that batch. If you leave a pass early or
    press Ctrl-C, the thread stops after the batch it is making. `len()` is the length of `batches`.

    Raise TypeError if `batches` is not an iterable, and TypeError or ValueError if the depth is not a positive
    integer. Raise RuntimeError if a process is forked during a pass and the child continues it, because threads are not
    copied to a child.
    """

    def __init__(self, batches: Iterable, depth: int = 2) -> None:
        if not isinstance(batches, Iterable):
            raise TypeError(f"Prefetch takes an iterable of batches, got {type(batches).__name__}")
        self.batches, self.depth = batches, check_positive_integer("depth", depth)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return _run_calls(self.epoch())

    def epoch(self, first: int = 0) -> Iterator[Call]:
        """Return the batches of a pass, from batch `first` on, each as a call that makes it."""
        return prefetch(start_epoch(self.batches, first, copy_batches=True), self.depth)


def merge_single_rows(batches: Any) -> Any:
    """Return the same batches, but a last batch of one row joins the one before it.

    This is for training a BatchNorm, which needs more than one row. The new batches start at the same point in the same
    sequence of orders. Batches that are not caffelite's stay as they are.
    """
    if type(batches) is Prefetch:
        return Prefetch(merge_single_rows(batches.batches), batches.depth)
    if type(batches) is not DataGenerator:
        return batches
    generator = copy.copy(batches)  # shares the arrays that an epoch changes
    generator._merges_last = True
    return generator


def _run_calls(batches: Any) -> Iterator[Any]:
    """Yield the result of each call. If a call raises, the thread that makes batches ends."""
    with closing(batches):
        for batch in batches:
            yield batch()


def start_epoch(batches: Iterable, first: int = 0, copy_batches: bool = False) -> Iterator[Call]:
    """Return the batches of an epoch, from batch `first` on, as calls that make them; see `DataGenerator.epoch`.

    An iterable that is not caffelite's also makes the first ones, but they are left out. With `copy_batches`, the calls
    return copies of its batches.
    """
    if type(batches) is DataGenerator or type(batches) is Prefetch:
        return batches.epoch(first)
    return _lazy_batches(iter(batches), first, _copy_batch if copy_batches else lambda batch: batch)


def _lazy_batches(batches: Iterator, first: int, change: Callable[[Any], Any]) -> Iterator[Call]:
    for batch in itertools.islice(batches, first, None):
        yield functools.partial(change, batch)


def _copy_batch(batch: Any) -> Any:
    """Return a batch with copies of its arrays."""
    if isinstance(batch, tuple | list):
        return type(batch)(map(_copy_batch, batch)) if type(batch) in (tuple, list) else batch
    return batch.copy() if isinstance(batch, np.ndarray) else batch


def _repack(template: Any, arrays: Iterator[Any]) -> Any:
    """Return the next arrays in the form the user gave theirs: one, a tuple of as many, or None."""
    if isinstance(template, tuple):
        return tuple(itertools.islice(arrays, len(template)))
    return None if template is None else next(arrays)


def _take_rows(x: np.ndarray | SparseRows, rows: np.ndarray) -> Any:
    """Return these rows as new arrays, or as a new matrix."""
    return x[rows].tocsr() if isinstance(x, SparseRows) else kernels.take(x, rows)


def _draw_words(rng: np.random.Generator) -> np.ndarray:
    """Draw four words of 64 random bits."""
    if type(rng.bit_generator) is np.random.PCG64:  # the same words, in a third of the time
        return rng.bit_generator.random_raw(4)
    return rng.integers(0, 2**64, size=4, dtype=np.uint64)


def is_replayed(batches: Iterable) -> TypeGuard[DataGenerator]:
    """Return whether steps fetch their batches themselves, from arrays or from buffers that are read."""
    return type(batches) is DataGenerator and not batches.transform
