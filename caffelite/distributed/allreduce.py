"""Add up gradients, loss and metrics over all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.recording import PythonCallback, call_python
from caffelite.core.tensor import Tensor
from caffelite.distributed.mpi import Ranks, RowsOfRank
from caffelite.distributed.stop_signal import Stop
from caffelite.optimizers import Optimizer
from caffelite.optimizers.segments import Segment

# Gradients of at most this many elements are copied into one float64 message, with the loss and metrics. Up to this
# size a second message costs more than the copies. Longer gradients are added up in place.
COPIED = 4096

# If a parameter has more elements than this, its gradient is added up while backward continues.
LARGE = 2**16


class Summation:
    """Adds up, between backward and update: the gradients, the loss, the metrics, and requests to stop.

    A call adds up. Afterwards `value` is the loss of the whole batch. `means` and `weights` are the mean and the weight
    of each quantity that was added to `cursor`, also of the whole batch. All are float64.
    """

    def __init__(self, part: RowsOfRank, stop: Stop, quantities: int) -> None:
        self.part, self.stop = part, stop
        self.own = np.zeros((1, quantities, 2))
        self.nothing = np.zeros_like(self.own)
        self.cursor = np.zeros(1, kernels.CURSOR)
        self.cursor["sums"] = kernels.address(self.own)
        self.value, self.means, self.weights = np.zeros(1), np.zeros(quantities), np.zeros(quantities)

    def of(self, runs: list[Segment], parameters: Sequence[Tensor], equal: bool) -> None:
        """Set the gradients to add up. `equal`: all rows have equal weights."""
        self.equal = equal  # then the sum of the weights is the size of the batch
        self.listed = [run for run in runs if run.used_rows is not None]
        self.widths = [parameters[run.parameters.start].shape[1:] for run in self.listed]
        pieces = [piece for run in runs if run.used_rows is None for piece in _pieces(run, parameters)]
        self.early = [piece for piece in pieces if piece.size > LARGE]
        self.in_place = [piece for piece in pieces if COPIED < piece.size <= LARGE]
        self.copied = [piece for piece in pieces if piece.size <= COPIED]
        sizes = [gradient.size for gradient in self.copied]
        self.message = np.empty(3 + self.own.size + sum(sizes))
        ends = np.cumsum([3 + self.own.size, *sizes])
        self.places = [self.message[begin:end] for begin, end in pairwise(ends)]  # of the copied gradients
        self.begun: dict[int, Callable[[], None]] = {}  # functions that wait for a sum, by its place in `early`

    def begin_early(self) -> None:
        """Change the recording: replays begin to add up each large gradient as soon as it is complete."""
        recording = kernels.recorder()
        if recording is None:
            return
        # The step being recorded uses the same order as its replays, because it must be the same on all ranks.
        places = [_last_write(recording.entries, gradient) for gradient in self.early]
        order = sorted(range(len(places)), key=places.__getitem__)
        self.early = [self.early[i] for i in order]
        for i in reversed(range(len(order))):
            call = PythonCallback("begin to add up", functools.partial(self.begin, i), (), ())
            call.outputs = [None]
            recording.entries.insert(places[order[i]] + 1, call)

    def begin(self, i: int) -> None:
        """Begin to add up a large gradient."""
        if not self.part.is_counted:
            self.early[i][...] = 0
        self.begun[i] = self.part.ranks.begin_to_add_up(self.early[i])

    def __call__(self, value: np.ndarray, weight: np.ndarray) -> None:
        """Add up. `value` is the loss of this rank's rows, and `weight` their share of the mean."""
        ranks, message, n = self.part.ranks, self.message, 3 + self.own.size
        counts = float(weight.reshape(-1)[0])
        if not self.part.is_counted:
            for gradient in (*self.copied, *self.in_place, *[run.gradient for run in self.listed]):
                gradient[...] = 0
        for i in range(len(self.early)):
            if i not in self.begun:
                self.begin(i)
        message[0] = counts * float(value.reshape(-1)[0]) if counts else 0.0
        message[1:3] = self.stop.requests()
        message[3:n] = self.own.reshape(-1)
        for place, gradient in zip(self.places, self.copied, strict=True):
            place[:] = gradient
        ranks.add_up(message)
        for gradient in self.in_place:
            ranks.add_up(gradient)
        for run, width in zip(self.listed, self.widths, strict=True):
            add_up_rows(ranks, run, width)
        for finish in self.begun.values():
            finish()
        self.begun.clear()
        for place, gradient in zip(self.places, self.copied, strict=True):
            gradient[...] = place
        self.value[0] = message[0]
        self.stop.read(message[1], message[2])
        totals, self.weights[:] = message[3:n:2], message[4:n:2]
        np.divide(totals, self.weights, out=self.means, where=self.weights != 0)
        if self.equal and self.weights[0] != self.part.batch_size:
            raise RuntimeError(
                f"rank {ranks.rank} has a batch of {self.part.batch_size} rows, and the ranks have computed "
                f"{self.weights[0]:g} together: they did not get the same batches"
            )


def average_gradients(ranks: Ranks, optimizer: Optimizer) -> None:
    """Replace each gradient of an optimizer's parameters by the mean of all ranks' gradients."""
    gradients = [(run, optimizer.parameters[run.parameters.start].shape[1:]) for run in optimizer.segments()]

    def average() -> None:
        for run, width in gradients:
            if run.used_rows is None:
                ranks.add_up(run.gradient)
                run.gradient[...] /= ranks.size
            else:
                listed = add_up_rows(ranks, run, width)
                run.gradient.reshape(-1, *width)[listed] /= ranks.size

    call_python("average over ranks", average)


def add_up_rows(ranks: Ranks, run: Segment, width: tuple[int, ...]) -> np.ndarray:
    """Add up a gradient with only some rows used on each rank. Return the rows that any rank has used."""
    used = run.used_rows
    assert used is not None
    rows = (len(used) - 1) // 2
    gradient = run.gradient.reshape(rows, -1)
    mine = np.arange(rows) if used[0] == rows else used[1 : 1 + used[0]]
    lists = np.full(int(ranks.all_gather(np.array([len(mine)])).max()), -1)
    lists[: len(mine)] = mine
    listed = np.unique(ranks.all_gather(lists))
    listed = listed[listed >= 0]
    values = gradient[listed]
    ranks.add_up(values)
    gradient[listed] = values
    used[0] = 0
    kernels.use_rows(used, listed, run.gradient.reshape(rows, *width), True)
    return listed


def _pieces(run: Segment, parameters: Sequence[Tensor]) -> list[np.ndarray]:
    """Return a run's gradient in pieces: one for each large parameter, and one for all parameters between two."""
    cuts, place = [0], 0
    for p in parameters[run.parameters]:
        if p.size > LARGE:
            cuts += [place, place + p.size]
        place += p.size
    return [run.gradient[a:b] for a, b in pairwise([*cuts, place]) if a < b]


def _last_write(entries: list[Any], gradient: np.ndarray) -> int:
    """Return the place of the last call that may have written to a gradient, or -1."""
    for i in reversed(range(len(entries))):
        entry = entries[i]
        if isinstance(entry, PythonCallback):
            if entry.gradients:
                return i
        elif any(entry.kernel.writes >> j & 1 and np.may_share_memory(a, gradient) for j, a in enumerate(entry.arrays)):
            return i
    return -1
