"""The team of all ranks: they begin with the same state, stop together, and check that they agree."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite.core.sparse import SparseRows
from caffelite.data.generator import Batch, DataGenerator, Prefetch
from caffelite.distributed.allreduce import average_gradients
from caffelite.distributed.mpi import Ranks, RowsOfRank
from caffelite.distributed.sharded_step import EvaluationOfPart, StepOfPart
from caffelite.distributed.stop_signal import Stop
from caffelite.optimizers import Optimizer
from caffelite.training.history import History
from caffelite.training.loop import Listener, Loop
from caffelite.training.objective import Objective
from caffelite.training.process_group import Team
from caffelite.training.step import EvaluationStep, Step

ROWS_COMPARED = 8  # of each batch made in Python


class LoopOfRanks(Loop):
    """The training loop on several ranks. All continue and end after the same epochs."""

    def __init__(self, model: Any, team: TeamOfRanks, *rest: Any) -> None:
        super().__init__(*rest)
        self.model, self.team = model, team

    def next_due(self, done: int) -> float:
        return self.team.agreed(super().next_due(done))

    def tell(self, done: int) -> bool:
        self.team.check_alike(self.model, self.epochs.epoch)
        return self.team.ends(self.model, self.epochs.epoch, super().tell(done))


class TeamOfRanks(Team):
    """The team of all ranks, on one of them."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.rank, self.leads = ranks.rank, ranks.rank == 0
        self.stop = Stop(self.leads)

    # ---- around a training --------------------------------------------------------------------------------------

    def entered(self) -> AbstractContextManager[None]:
        return self.ranks.entered()

    def share_streams(self, *streams: np.random.Generator) -> None:
        states = self.ranks.of_first([stream.bit_generator.state for stream in streams])
        for stream, state in zip(streams, states, strict=True):
            stream.bit_generator.state = state

    def by_first(self, make: Callable[[], Any]) -> Any:
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

    def begin(self, model: Any, optimizer: Optimizer, data: Iterable[Any], facts: Callable[[], dict[str, Any]]) -> None:
        """Copy parameters, buffers, the optimizer's state and the orders of data from rank 0.

        So random values that were drawn without a seed are the same on all ranks.
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

    def holding(self, interrupts: InterruptsBetweenSteps) -> AbstractContextManager[None]:
        return self.stop.holding(interrupts)

    def loop(
        self, model: Any, until: int, listeners: Sequence[Listener], history: History, interrupts: Any
    ) -> LoopOfRanks:
        return LoopOfRanks(model, self, until, listeners, history, interrupts)

    # ---- between steps ------------------------------------------------------------------------------------------

    def agreed(self, value: float) -> float:
        return float(self.ranks.all_gather(np.array([value], np.float64))[0, 0])  # rank 0's value

    def stop_flag(self, interrupts: Any) -> np.ndarray:
        return self.stop.flag

    def is_interrupted(self) -> bool:
        return bool(self.stop.requests()[1])

    def stretches(self, is_done: Callable[[], bool]) -> Iterator[float]:
        return self.stop.stretches(is_done)

    def step_done(self) -> None:
        self.stop.interrupt()

    # ---- a step -------------------------------------------------------------------------------------------------

    def step(self, model: Any, objective: Objective, optimizer: Optimizer, clip_norm: float | None) -> Step:
        return StepOfPart(model, objective, optimizer, clip_norm, self.ranks, self.stop)

    def evaluation_step(self, model: Any, objective: Objective) -> EvaluationStep:
        return EvaluationOfPart(model, objective, self.ranks)

    def part(self, rows: int) -> RowsOfRank:
        return RowsOfRank(self.ranks, rows)

    def average(self, optimizer: Optimizer) -> None:
        average_gradients(self.ranks, optimizer)

    # ---- outputs, targets and sums ------------------------------------------------------------------------------

    def all_rows(self, rows: np.ndarray) -> np.ndarray:
        return self.ranks.all_reduce(rows)

    def own_rows(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.leads else np.zeros_like(rows)

    def all_sums(self, step: Step, sums: np.ndarray) -> np.ndarray:
        return sums if step.trains else self.ranks.all_reduce(sums)  # a training step has added them up

    def forget(self, rows: list[np.ndarray]) -> None:
        for kept in rows:  # the rows of other ranks must stay 0
            kept[...] = 0

    # ---- whether all ranks do the same --------------------------------------------------------------------------

    def check_same(self, what: str, facts: dict[str, Any]) -> None:
        """Raise RuntimeError unless all ranks have the same facts. It names the first rank and fact that differ."""
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
        """Raise RuntimeError unless all ranks got the same batch, or None. It compares only some rows."""
        rows = 0 if batch is None else batch.rows
        facts = {"number of rows in the batch": rows}
        if batch is not None:
            some = np.linspace(0, rows - 1, ROWS_COMPARED).astype(int)
            facts["checksum of the batch"] = _checksum(column[some] for column in batch.columns())
        self.check_same(where, facts)
        self.stop.go_on()

    def check_alike(self, model: Any, epoch: int) -> None:
        """Raise RuntimeError unless all ranks have the same parameters and buffers, to the bit."""
        arrays = [p._data for p in model.parameters()] + list(model.buffers().values())
        sums = self.ranks.all_gather(np.array([_checksum(arrays)], np.int64))[:, 0]
        if (sums != sums[0]).any():
            rank = int((sums != sums[0]).argmax())
            raise RuntimeError(
                f"after epoch {epoch}, rank {rank} has other parameters than rank 0: they have drifted apart. Random "
                "numbers, decisions and batches made in Python must be the same on all ranks, and so must the "
                "instruction set, which CAFFELITE_ISA names"
            )

    def ends(self, model: Any, epoch: int, here: bool) -> bool:
        """Whether a callback has ended the training after an epoch, on any rank.

        Raise RuntimeError unless all ranks have frozen the same parameters. Otherwise a rank would wait for gradients
        that no other rank sends.
        """
        frozen = _checksum([p.requires_grad for p in model.parameters()])
        found = self.ranks.all_gather(np.array([frozen, here], np.int64))
        rank = int((found[:, 0] != found[0, 0]).argmax())
        if rank > 0:
            raise RuntimeError(
                f"after epoch {epoch}, rank {rank} has frozen other parameters than rank 0; a callback has to do the "
                "same on all ranks"
            )
        return bool(found[:, 1].any())


def _checksum(values: Any) -> int:
    """Return a checksum of the bits of arrays, and of other values."""
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
