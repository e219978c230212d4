"""What ranks that share the rows of each batch (`core/sharing.py`) do together in a training.

In a step, each computes with its share of the batch: the loss is the mean over it, and its gradient is scaled by what
the share counts for in the mean over the batch. Then all that is of the whole batch is added up over the ranks, the
gradients in one go with the loss, the metrics and whether somebody wants to be attended to; and each makes the same
step with the same gradient. So there is nothing else to be sent, and a decision that depends on time or signals is
taken by all after the same step.
"""

from __future__ import annotations

import functools
import json
import math
import time
import zlib
from _signal import SIGINT
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.function import Function
from caffelite.core.interrupts import InterruptsBetweenSteps
from caffelite.core.recording import PythonCall, call_python
from caffelite.core.sharing import Ranks, Share, share
from caffelite.core.sparse import SparseRows
from caffelite.core.tensor import Tensor
from caffelite.data.generator import Batch, DataGenerator
from caffelite.data.prefetch import Prefetch
from caffelite.functions.loss import Loss
from caffelite.optimizers import Optimizer
from caffelite.optimizers.base import Run
from caffelite.training.loop import Loop
from caffelite.training.objective import Objective, guard
from caffelite.training.step import EvaluationStep, Step
from caffelite.training.team import ATTENTION, Team

# Gradients of no more elements than this are copied into one message, in float64, with all else that is added up: up to
# there a second message costs more than the copies. Longer ones are added up where they lie.
COPIED = 4096

# Gradients of parameters with more elements than this are added up while backward goes on.
LARGE = 2**16

ROWS_COMPARED = 8  # of each batch that was made in Python


class Together(Team):
    """Trainings on several ranks: what it adds up in its steps, and when they stop to attend to something."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        # Where a replay looks; 1: no further step, for somebody wants attention.
        self.stop = np.zeros(1, np.int32)
        self.interrupts: InterruptsBetweenSteps | None = None  # held, but for `interrupt`
        self._interrupted = False
        self._since = 0.0

    @property
    def leads(self) -> bool:  # type: ignore[override]
        """Whether this is the rank that shows the training and writes files."""
        return self.ranks.rank == 0

    @property
    def rank(self) -> int:  # type: ignore[override]
        return self.ranks.rank

    def entered(self) -> AbstractContextManager[None]:
        return self.ranks.entered()

    def go_on(self) -> None:
        """From now on steps may be made, until there is something to attend to."""
        self.stop[0], self._since = 0, time.monotonic()

    def wishes(self) -> tuple[float, float]:
        """Whether this rank wants steps to stop, for attention and for a Ctrl-C."""
        is_time = self.leads and time.monotonic() - self._since >= ATTENTION
        return float(is_time), float(self.interrupts is not None and self.interrupts.pending[0] != 0)

    def heed(self, attention: float, interrupt: float) -> None:
        """Stop, if any rank wants that; a Ctrl-C on one of them is one on all."""
        if attention or interrupt:
            self.stop[0] = 1
        self._interrupted |= bool(interrupt)

    @contextmanager
    def holding(self, interrupts: InterruptsBetweenSteps) -> Iterator[None]:
        """Inside, a Ctrl-C takes effect on all ranks after the same step."""
        before, self.interrupts, self._interrupted = self.interrupts, interrupts, False
        try:
            with interrupts.held():
                yield
        finally:
            self.interrupts = before

    def stop_flag(self, interrupts: Any) -> np.ndarray:
        return self.stop

    def stretches(self, is_done: Callable[[], bool]) -> Iterator[float]:
        """One without end, until any rank wants attention."""
        self.go_on()
        while not is_done() and not self.stop[0]:
            yield np.inf
        self.interrupt()

    def step_done(self) -> None:
        self.interrupt()

    def interrupt(self) -> None:
        """Between two steps: have the Ctrl-C that all ranks have heard of take effect."""
        interrupts = self.interrupts
        if self._interrupted and interrupts is not None and interrupts.handler is not None:
            self._interrupted, interrupts.pending[0] = False, 0
            interrupts.handler(SIGINT, None)

    def agreed(self, value: float) -> float:
        """What rank 0 says."""
        return float(self.ranks.gathered(np.array([value], np.float64))[0, 0])

    def by_first(self, make: Callable[[], Any]) -> Any:
        """What rank 0 makes, or raises."""
        made = error = None
        if self.leads:
            try:
                made = make()
            except Exception as raised:
                error = raised
        made, error = self.ranks.of_first((made, error))
        if error is not None:
            raise error
        return made

    # ---- a step -------------------------------------------------------------------------------------------------

    def part_of_mean(self, share: Share, weight: np.ndarray | None, like: np.ndarray) -> np.ndarray:
        """What a share's mean counts for in that of the whole batch, as an array like the loss.

        `weight` is what the share's rows weigh together, a single element; None if each row weighs the same.
        """
        if weight is None:
            return kernels.full(like.shape, share.rows / share.whole if share.counts else 0.0, like.dtype)

        def part(weight: np.ndarray) -> np.ndarray:
            own = weight.astype(np.float64).reshape(1) * share.counts
            whole = float(self.ranks.total(own)[0])
            if not 0 < whole < math.inf:
                raise ValueError("the weights of what counts sum up to nothing, or to infinity: there is no mean")
            return np.full(like.shape, own[0] / whole, like.dtype)

        return call_python("part of the mean", part, weight)

    def average(self, optimizer: Optimizer) -> None:
        """Have the mean of all ranks' gradients in the place of each rank's own."""
        gradients = [(run, optimizer.parameters[run.parameters.start].shape[1:]) for run in optimizer.runs()]

        def average() -> None:
            for run, width in gradients:
                if run.used is None:
                    self.ranks.add_up(run.gradient)
                    run.gradient[...] /= self.ranks.size
                else:
                    listed = _add_up_rows(self.ranks, run, width)
                    run.gradient.reshape(-1, *width)[listed] /= self.ranks.size

        call_python("average over ranks", average)

    def step(self, model: Any, objective: Objective, optimizer: Optimizer, clip_norm: float | None) -> Step:
        return StepOfShare(model, OfShare.like(objective), optimizer, clip_norm, self)

    def evaluation_step(self, model: Any, objective: Objective) -> EvaluationStep:
        return EvaluationOfShare(model, OfShare.like(objective), self)

    def share(self, rows: int) -> Share:
        return self.ranks.share_of(rows)

    def all_rows(self, rows: np.ndarray) -> np.ndarray:
        return self.ranks.total(rows)

    def own_rows(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.leads else np.zeros_like(rows)

    def all_sums(self, step: Step, sums: np.ndarray) -> np.ndarray:
        return sums if step.trains else self.ranks.total(sums)  # a step of the training adds what is of all

    def forget(self, rows: list[np.ndarray]) -> None:
        for kept in rows:  # those of other ranks stay 0
            kept[...] = 0

    # ---- the training -------------------------------------------------------------------------------------------

    def share_streams(self, *streams: np.random.Generator) -> None:
        """Have the random streams be where they are on rank 0."""
        states = self.ranks.of_first([stream.bit_generator.state for stream in streams])
        for stream, state in zip(streams, states, strict=True):
            stream.bit_generator.state = state

    def check_same(self, what: str, facts: dict[str, Any]) -> None:
        """RuntimeError unless all ranks have the same facts; it names the first rank that has others, and which."""
        of_each = self.ranks.of_each({name: json.dumps(fact, default=str) for name, fact in facts.items()})
        for rank, theirs in enumerate(of_each):
            for name in dict.fromkeys([*of_each[0], *theirs]):
                first, other = of_each[0].get(name), theirs.get(name)
                if first != other:
                    is_short = max(len(str(first)), len(str(other))) <= 50
                    raise RuntimeError(
                        f"{what}: rank {rank} differs from rank 0 in its {name}{f': {other}, {first}' * is_short}; "
                        "every rank has to run the same program on the same data"
                    )

    def check_batch(self, where: str, batch: Batch | None) -> None:
        """RuntimeError unless all ranks were given the same batch, as far as some of its rows say, or None."""
        rows = 0 if batch is None else len(batch.targets)
        facts = {"number of rows in the batch": rows}
        if batch is not None:
            some = np.linspace(0, rows - 1, ROWS_COMPARED).astype(int)
            facts["checksum of the batch"] = _checksum(column[some] for column in batch.columns())
        self.check_same(where, facts)
        self.go_on()

    def begin(self, model: Any, optimizer: Optimizer, data: Iterable[Any], facts: Callable[[], dict[str, Any]]) -> None:
        """Have parameters, buffers, the optimizer's state and the orders of data as they are on rank 0.

        So what was drawn without a seed is the same everywhere.
        """
        self.check_same("fit", facts())
        for generator in data:
            while isinstance(generator, Prefetch):
                generator = generator.batches
            if isinstance(generator, DataGenerator):
                generator.restore(self.ranks.of_first(generator.state()))
        mine = model.state_dict() | {f"optimizer.{name}": x for name, x in optimizer.state_dict().items()}
        if len(set(self.ranks.of_each(_checksum(mine.values())))) > 1:
            state, of_optimizer = self.ranks.of_first((model.state_dict(), optimizer.state_dict()))
            model.load_state_dict(state)
            optimizer.load_state_dict(of_optimizer)

    def check_alike(self, model: Any, epoch: int) -> None:
        """RuntimeError unless all ranks have the same parameters and buffers, to the bit."""
        arrays = [p._data for p in model.parameters()] + list(model.buffers().values())
        sums = self.ranks.gathered(np.array([_checksum(arrays)], np.int64))[:, 0]
        if (sums != sums[0]).any():
            rank = int((sums != sums[0]).argmax())
            raise RuntimeError(
                f"after epoch {epoch}, rank {rank} has other parameters than rank 0: they have drifted apart. What is "
                "drawn or decided in Python, batches too, has to be the same on all ranks, and so has the instruction "
                "set, which CAFFELITE_ISA names"
            )

    def ends(self, model: Any, epoch: int, here: bool) -> bool:
        """Whether a callback has ended the training after an epoch, on any rank.

        RuntimeError unless the same parameters are frozen on all: others would wait for gradients that nobody sends.
        """
        frozen = _checksum([p.requires_grad for p in model.parameters()])
        found = self.ranks.gathered(np.array([frozen, here], np.int64))
        rank = int((found[:, 0] != found[0, 0]).argmax())
        if rank > 0:
            raise RuntimeError(
                f"after epoch {epoch}, rank {rank} has frozen other parameters than rank 0; a callback has to do the "
                "same on all ranks"
            )
        return bool(found[:, 1].any())


class LoopTogether(Loop):
    """The loop of a training on several ranks, which all go on and end after the same epochs."""

    def due(self, done: int) -> float:
        return self.team.agreed(super().due(done))

    def tell(self, done: int) -> bool:
        self.team.check_alike(self.model, self.epochs.epoch)
        return self.team.ends(self.model, self.epochs.epoch, super().tell(done))


Together.loop = LoopTogether


class OfShare(Objective):
    """The objective of a share of a batch."""

    @classmethod
    def like(cls, objective: Objective) -> OfShare:
        return cls(objective.loss, objective.metrics, objective.told)

    def judged(self, outputs: Any, batch: Batch) -> Any:
        if batch.weights is not None and (self.loss.called_back or not isinstance(self.loss, Loss)):
            return weighed(outputs, batch.weights)
        return outputs


class StepOfShare(Step):
    """One step of all ranks, each on its share of their batch."""

    def __init__(
        self, model: Any, objective: Objective, optimizer: Optimizer, clip_norm: float | None, together: Together
    ) -> None:
        super().__init__(model, objective, optimizer, clip_norm)
        self.together = together

    def __call__(self, batch: Batch) -> Any:
        part_here = share()
        assert part_here is not None
        self.optimizer.zero_grad()
        outputs = self.model(*batch.inputs)
        loss = self.objective.of(outputs, batch)
        weights = self.objective.weights(batch)
        part = self.together.part_of_mean(part_here, None if weights is None else kernels.sum(weights), loss.data)
        self.summation = summation = Summation(self.together, part_here, self.objective.quantities)
        loss.backward(part)
        summation.of(self.optimizer.runs(), self.optimizer.parameters, weights is None)
        summation.begin_early()
        kernels.copy(summation.nothing, summation.own)
        if part_here.counts:
            self.objective.measure(summation.cursor, outputs, batch)
        call_python("add up over ranks", summation, loss.data, part)
        guard(summation.value)
        self.optimizer.step(clip_norm=self.clip_norm)  # type: ignore[call-arg]
        return outputs

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Add what was measured of the whole batch."""
        for slot in range(len(self.summation.means)):
            here = slice(slot, slot + 1)
            kernels.add_weighted_mean(cursor, slot, self.summation.means[here], self.summation.weights[here])

    def used(self) -> tuple[Any, ...]:
        return (*super().used(), self.together)


class EvaluationOfShare(EvaluationStep):
    """A step of an evaluation on a share of a batch."""

    def __init__(self, model: Any, objective: Objective, together: Together) -> None:
        super().__init__(model, objective)
        self.together = together

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        part = share()
        if part is None or part.counts:
            super().measure(cursor, outputs, batch)

    def used(self) -> tuple[Any, ...]:
        return (*super().used(), self.together)


class Weighed(Function):
    """y = x,  dx = dy; but 0 where the rows, (n, …), weigh nothing together: a loss may have divided by their sum.

    What is before it has a gradient all the same, where rows of other ranks depend on these by BatchNorm's moments.
    """

    def forward(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        self.weigh = weights.any()
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy if self.weigh else np.zeros_like(dy)


def weighed(outputs: Any, weights: np.ndarray) -> Any:
    """Outputs, a tuple of them where a model has several, as a loss on a share gets them that is not caffelite's."""
    if isinstance(outputs, tuple):
        return tuple([Weighed()(x, weights) for x in outputs])
    return Weighed()(outputs, weights)


class Summation:
    """What is added up over the ranks between backward and update: gradients, the loss, what was measured.

    Called, it adds up; then there are in `value` the loss, and in `means` and `weights` what each quantity that was
    added to `cursor` is for the whole batch, all float64.
    """

    def __init__(self, together: Together, share: Share, quantities: int) -> None:
        self.together, self.share = together, share
        self.own = np.zeros((1, quantities, 2))
        self.nothing = np.zeros_like(self.own)
        self.cursor = np.zeros(1, kernels.CURSOR)
        self.cursor["sums"] = kernels.address(self.own)
        self.value, self.means, self.weights = np.zeros(1), np.zeros(quantities), np.zeros(quantities)

    def of(self, runs: list[Run], parameters: Sequence[Tensor], sizes: bool) -> None:
        """Say what gradients there are; and whether all rows weigh the same, so that weights tell the batch's size."""
        self.sizes = sizes
        self.listed = [run for run in runs if run.used is not None]
        self.widths = [parameters[run.parameters.start].shape[1:] for run in self.listed]
        pieces = [piece for run in runs if run.used is None for piece in _pieces(run, parameters)]
        self.early = [piece for piece in pieces if piece.size > LARGE]
        self.in_place = [piece for piece in pieces if COPIED < piece.size <= LARGE]
        self.copied = [piece for piece in pieces if piece.size <= COPIED]
        self.message = np.empty(3 + self.own.size + sum(gradient.size for gradient in self.copied))
        self.begun: dict[int, Callable[[], None]] = {}  # how to finish sums, by their places in `early`

    def begin_early(self) -> None:
        """Have replays of what this thread records begin with each large gradient as soon as it is complete."""
        recording = kernels.recorder()
        if recording is None:
            return
        # In the order in which they are complete, here too: it has to be the same on all ranks.
        places = [_last_write(recording.entries, gradient) for gradient in self.early]
        order = sorted(range(len(places)), key=places.__getitem__)
        self.early = [self.early[i] for i in order]
        for i in reversed(range(len(order))):
            call = PythonCall("begin to add up", functools.partial(self.begin, i), (), ())
            call.outputs = [None]
            recording.entries.insert(places[order[i]] + 1, call)

    def begin(self, i: int) -> None:
        """Begin to add up a large gradient."""
        if not self.share.counts:
            self.early[i][...] = 0
        self.begun[i] = self.together.ranks.begin_to_add_up(self.early[i])

    def __call__(self, value: np.ndarray, part: np.ndarray) -> None:
        """The gradients as they are; the share's loss, and what it counts for."""
        ranks, message, n = self.together.ranks, self.message, 3 + self.own.size
        counts = float(part.reshape(-1)[0])
        if not self.share.counts:
            for gradient in (*self.copied, *self.in_place, *[run.gradient for run in self.listed]):
                gradient[...] = 0
        for i in range(len(self.early)):
            if i not in self.begun:
                self.begin(i)
        message[0] = counts * float(value.reshape(-1)[0]) if counts else 0.0
        message[1:3] = self.together.wishes()
        message[3:n] = self.own.reshape(-1)
        place = n
        for gradient in self.copied:
            message[place : place + gradient.size] = gradient
            place += gradient.size
        ranks.add_up(message)
        for gradient in self.in_place:
            ranks.add_up(gradient)
        for run, width in zip(self.listed, self.widths, strict=True):
            _add_up_rows(ranks, run, width)
        for finish in self.begun.values():
            finish()
        self.begun.clear()
        place = n
        for gradient in self.copied:
            gradient[...] = message[place : place + gradient.size]
            place += gradient.size
        self.value[0] = message[0]
        self.together.heed(message[1], message[2])
        totals, self.weights[:] = message[3:n:2], message[4:n:2]
        np.divide(totals, self.weights, out=self.means, where=self.weights != 0)
        if self.sizes and self.weights[0] != self.share.whole:
            raise RuntimeError(
                f"rank {ranks.rank} has a batch of {self.share.whole} rows, and the ranks have computed "
                f"{self.weights[0]:g} together: they were not given the same batches"
            )


def _pieces(run: Run, parameters: Sequence[Tensor]) -> list[np.ndarray]:
    """The gradient of a run: that of each large parameter by itself, and what is between them."""
    cuts, place = [0], 0
    for p in parameters[run.parameters]:
        if p.size > LARGE:
            cuts += [place, place + p.size]
        place += p.size
    return [run.gradient[a:b] for a, b in pairwise([*cuts, place]) if a < b]


def _last_write(entries: list[Any], gradient: np.ndarray) -> int:
    """The place of the last call that may have written to a gradient."""
    for i in reversed(range(len(entries))):
        entry = entries[i]
        if isinstance(entry, PythonCall):
            if entry.gradients:
                return i
        elif any(entry.kernel.writes >> j & 1 and np.may_share_memory(a, gradient) for j, a in enumerate(entry.arrays)):
            return i
    return -1


def _add_up_rows(ranks: Ranks, run: Run, width: tuple[int, ...]) -> np.ndarray:
    """Add up a gradient of which each rank has used some rows: those that any has used, which are returned."""
    used = run.used
    assert used is not None
    rows = (len(used) - 1) // 2
    gradient = run.gradient.reshape(rows, -1)
    mine = np.arange(rows) if used[0] == rows else used[1 : 1 + used[0]]
    lists = np.full(int(ranks.gathered(np.array([len(mine)])).max()), -1)
    lists[: len(mine)] = mine
    listed = np.unique(ranks.gathered(lists))
    listed = listed[listed >= 0]
    values = gradient[listed]
    ranks.add_up(values)
    gradient[listed] = values
    used[0] = 0
    kernels.use_rows(used, listed, run.gradient.reshape(rows, *width), True)
    return listed


def _checksum(values: Any) -> int:
    """Of the bits of arrays and of other values."""
    found = 0
    for value in values:
        pieces: Iterable[Any]
        if isinstance(value, np.ndarray):
            pieces = [np.ascontiguousarray(value).view(np.uint8).data]
        else:
            pieces = value.bytes() if isinstance(value, SparseRows) else [repr(value).encode()]
        for piece in pieces:
            found = zlib.crc32(piece, found)
    return found
