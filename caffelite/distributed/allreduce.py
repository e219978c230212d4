"""Add up gradients, loss and metrics over all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.python_callback import PythonCallback, call_python
from caffelite.core.tensor import Tensor
from caffelite.distributed.mpi import Communicator, RankShard
from caffelite.distributed.stop_signal import StopSignal
from caffelite.optimizers import Optimizer
from caffelite.optimizers.segments import Segment

# Gradients of at most this many elements are copied into one float64 message, with the loss and metrics. Up to this
# size a second message costs more than the copies. Longer gradients are added up in place.
SMALL_SIZE = 4096

# If a parameter has more elements than this, its gradient is added up while backward continues.
LARGE_SIZE = 2**16

# Numbers at the beginning of a message: the loss, and two requests to stop.
HEADER = 3


class AllReduce:
    """Adds up, between backward and update: the gradients, the loss, the metrics, and requests to stop.

    Call it to add up. Afterwards `value` is the loss of the entire batch. `means` and `weights` are the mean and the
    weight of each quantity added to `cursor`, also over the entire batch. All are float64.
    """

    def __init__(self, shard: RankShard, stop: StopSignal, num_sums: int) -> None:
        self.shard, self.stop = shard, stop
        self.local_sums = np.zeros((1, num_sums, 2))
        self.zeros = np.zeros_like(self.local_sums)
        self.cursor = np.zeros(1, kernels.CURSOR)
        self.cursor["sums"] = kernels.address(self.local_sums)
        self.value, self.means, self.weights = np.zeros(1), np.zeros(num_sums), np.zeros(num_sums)

    def set_gradients(self, segments: list[Segment], parameters: Sequence[Tensor], has_equal_weights: bool) -> None:
        """Set the gradients to add up. `has_equal_weights` tells whether all rows have equal weights."""
        self.has_equal_weights = has_equal_weights  # if so, the sum of the weights is the batch size
        self.sparse_segments = [segment for segment in segments if segment.used_rows is not None]
        self.row_shapes = [parameters[segment.parameters.start].shape[1:] for segment in self.sparse_segments]
        pieces = [piece for segment in segments if segment.used_rows is None for piece in _pieces(segment, parameters)]
        self.large_gradients = [piece for piece in pieces if piece.size > LARGE_SIZE]
        self.medium_gradients = [piece for piece in pieces if SMALL_SIZE < piece.size <= LARGE_SIZE]
        self.small_gradients = [piece for piece in pieces if piece.size <= SMALL_SIZE]
        sizes = [gradient.size for gradient in self.small_gradients]
        self.message = np.empty(HEADER + self.local_sums.size + sum(sizes))
        ends = np.cumsum([HEADER + self.local_sums.size, *sizes])
        self.slots = [self.message[begin:end] for begin, end in pairwise(ends)]  # for the copied gradients
        self.handles: dict[int, Callable[[], None]] = {}  # wait for a sum, by its index in `large_gradients`

    def overlap_with_backward(self) -> None:
        """Change the recording so that replays begin to add up each large gradient as soon as it is complete."""
        recording = kernels.recorder()
        if recording is None:
            return
        # The step being recorded uses the same order as its replays, because it must be the same on all ranks.
        last_writes = [_last_write(recording.entries, gradient) for gradient in self.large_gradients]
        order = sorted(range(len(last_writes)), key=last_writes.__getitem__)
        self.large_gradients = [self.large_gradients[i] for i in order]
        for i in reversed(range(len(order))):
            call = PythonCallback("begin to add up", functools.partial(self.start_reduce, i), (), ())
            call.outputs = [None]
            recording.entries.insert(last_writes[order[i]] + 1, call)

    def start_reduce(self, i: int) -> None:
        """Begin to add up a large gradient."""
        if not self.shard.is_counted:
            self.large_gradients[i][...] = 0
        self.handles[i] = self.shard.comm.start_all_reduce(self.large_gradients[i])

    def __call__(self, value: np.ndarray, weight: np.ndarray) -> None:
        """Add up. `value` is the loss of this rank's rows, and `weight` their share of the mean."""
        comm, message, n = self.shard.comm, self.message, HEADER + self.local_sums.size
        share = float(weight.reshape(-1)[0])
        if not self.shard.is_counted:
            sparse_gradients = [segment.gradient for segment in self.sparse_segments]
            for gradient in (*self.small_gradients, *self.medium_gradients, *sparse_gradients):
                gradient[...] = 0
        for i in range(len(self.large_gradients)):
            if i not in self.handles:
                self.start_reduce(i)
        message[0] = share * float(value.reshape(-1)[0]) if share else 0.0
        message[1:HEADER] = self.stop.requests()
        message[HEADER:n] = self.local_sums.reshape(-1)
        for slot, gradient in zip(self.slots, self.small_gradients, strict=True):
            slot[:] = gradient
        comm.all_reduce_in_place(message)
        for gradient in self.medium_gradients:
            comm.all_reduce_in_place(gradient)
        for segment, row_shape in zip(self.sparse_segments, self.row_shapes, strict=True):
            all_reduce_rows(comm, segment, row_shape)
        for finish in self.handles.values():
            finish()
        self.handles.clear()
        for slot, gradient in zip(self.slots, self.small_gradients, strict=True):
            gradient[...] = slot
        self.value[0] = message[0]
        self.stop.read(message[1], message[2])
        totals, self.weights[:] = message[HEADER:n:2], message[HEADER + 1 : n : 2]
        np.divide(totals, self.weights, out=self.means, where=self.weights != 0)
        if self.has_equal_weights and self.weights[0] != self.shard.batch_size:
            raise RuntimeError(
                f"rank {comm.rank} has a batch of {self.shard.batch_size} rows, and the ranks have computed "
                f"{self.weights[0]:g} together: they did not get the same batches"
            )


def average_gradients(comm: Communicator, optimizer: Optimizer) -> None:
    """Replace each gradient of an optimizer's parameters with the mean of all ranks' gradients."""
    gradients = [
        (segment, optimizer.parameters[segment.parameters.start].shape[1:]) for segment in optimizer.segments()
    ]

    def average() -> None:
        for segment, row_shape in gradients:
            if segment.used_rows is None:
                comm.all_reduce_in_place(segment.gradient)
                segment.gradient[...] /= comm.size
            else:
                rows = all_reduce_rows(comm, segment, row_shape)
                segment.gradient.reshape(-1, *row_shape)[rows] /= comm.size

    call_python("average over ranks", average)


def all_reduce_rows(comm: Communicator, segment: Segment, row_shape: tuple[int, ...]) -> np.ndarray:
    """Add up a gradient of which each rank used only some rows. Return the rows that any rank used."""
    used = segment.used_rows
    assert used is not None
    rows = (len(used) - 1) // 2
    gradient = segment.gradient.reshape(rows, -1)
    local_rows = np.arange(rows) if used[0] == rows else used[1 : 1 + used[0]]
    row_lists = np.full(int(comm.all_gather(np.array([len(local_rows)])).max()), -1)
    row_lists[: len(local_rows)] = local_rows
    union = np.unique(comm.all_gather(row_lists))
    union = union[union >= 0]
    values = gradient[union]
    comm.all_reduce_in_place(values)
    gradient[union] = values
    used[0] = 0
    kernels.use_rows(used, union, segment.gradient.reshape(rows, *row_shape), True)
    return union


def _pieces(segment: Segment, parameters: Sequence[Tensor]) -> list[np.ndarray]:
    """Return a segment's gradient in pieces: one for each large parameter, and one for all parameters between two."""
    cuts, place = [0], 0
    for p in parameters[segment.parameters]:
        if p.size > LARGE_SIZE:
            cuts += [place, place + p.size]
        place += p.size
    return [segment.gradient[a:b] for a, b in pairwise([*cuts, place]) if a < b]


def _last_write(entries: list[Any], gradient: np.ndarray) -> int:
    """Return the index of the last call that may have written to a gradient, or -1."""
    for i in reversed(range(len(entries))):
        entry = entries[i]
        if isinstance(entry, PythonCallback):
            if entry.gradients:
                return i
        elif any(entry.writes >> j & 1 and np.may_share_memory(a, gradient) for j, a in enumerate(entry.arrays)):
            return i
    return -1
