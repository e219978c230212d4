"""The group of all ranks: they begin with the same state, stop together, and check that they agree."""

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
from caffelite.distributed.mpi import Communicator, RankShard
from caffelite.distributed.sharded_step import ShardedEvaluationStep, ShardedStep
from caffelite.distributed.stop_signal import StopSignal
from caffelite.optimizers import Optimizer
from caffelite.training.history import History
from caffelite.training.loop import Listener, Loop
from caffelite.training.objective import Objective
from caffelite.training.process_group import ProcessGroup
from caffelite.training.step import EvaluationStep, Step

SAMPLED_ROWS = 8  # of each batch made in Python


class DistributedLoop(Loop):
    """The training loop on several ranks. All continue and end after the same epochs."""

    def __init__(self, model: Any, processes: RankGroup, *args: Any) -> None:
        super().__init__(*args)
        self.model, self.processes = model, processes

    def next_python_epoch(self, done: int) -> float:
        return self.processes.broadcast(super().next_python_epoch(done))

    def end_epochs(self, done: int) -> bool:
        self.processes.check_parameters(self.model, self.epochs.epoch)
        return self.processes.should_stop(self.model, self.epochs.epoch, super().end_epochs(done))


class RankGroup(ProcessGroup):
    """The group of all ranks, on one of them."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.rank, self.is_main = comm.rank, comm.rank == 0
        self.stop = StopSignal(self.is_main)

    # ---- around a training --------------------------------------------------------------------------------------

    def training_context(self) -> AbstractContextManager[None]:
        return self.comm.training_context()

    def share_streams(self, *streams: np.random.Generator) -> None:
        states = self.comm.broadcast_object([stream.bit_generator.state for stream in streams])
        for stream, state in zip(streams, states, strict=True):
            stream.bit_generator.state = state

    def call_on_main(self, make: Callable[[], Any]) -> Any:
        value = error = None
        if self.is_main:
            try:
                value = make()
            except Exception as raised:
                error = raised
        value, error = self.comm.broadcast_object((value, error))
        if error is not None:
            raise error
        return value

    def sync_state(
        self, model: Any, optimizer: Optimizer, data: Iterable[Any], facts: Callable[[], dict[str, Any]]
    ) -> None:
        """Copy parameters, buffers, the optimizer's state and the orders of data from rank 0.

        So random values that were drawn without a seed are the same on all ranks.
        """
        self.check_facts("fit", facts())
        for generator in data:
            while isinstance(generator, Prefetch):
                generator = generator.batches
            if isinstance(generator, DataGenerator):
                generator.restore(self.comm.broadcast_object(generator.state()))
        own_state = model.state_dict() | {f"optimizer.{name}": x for name, x in optimizer.state_dict().items()}
        if len(set(self.comm.all_gather_object(_checksum(own_state.values())))) > 1:
            state, optimizer_state = self.comm.broadcast_object((model.state_dict(), optimizer.state_dict()))
            model.load_state_dict(state)
            optimizer.load_state_dict(optimizer_state)

    def defer_interrupts(self, interrupts: InterruptsBetweenSteps) -> AbstractContextManager[None]:
        return self.stop.defer_interrupts(interrupts)

    def make_loop(
        self, model: Any, max_epochs: int, listeners: Sequence[Listener], history: History, interrupts: Any
    ) -> DistributedLoop:
        return DistributedLoop(model, self, max_epochs, listeners, history, interrupts)

    # ---- between steps ------------------------------------------------------------------------------------------

    def broadcast(self, value: float) -> float:
        return float(self.comm.all_gather(np.array([value], np.float64))[0, 0])  # rank 0's value

    def stop_flag(self, interrupts: Any) -> np.ndarray:
        return self.stop.flag

    def is_interrupted(self) -> bool:
        return bool(self.stop.requests()[1])

    def time_limits(self, is_done: Callable[[], bool]) -> Iterator[float]:
        return self.stop.time_limits(is_done)

    def end_step(self) -> None:
        self.stop.raise_interrupt()

    # ---- a step -------------------------------------------------------------------------------------------------

    def make_step(self, model: Any, objective: Objective, optimizer: Optimizer, clip_norm: float | None) -> Step:
        return ShardedStep(model, objective, optimizer, clip_norm, self.comm, self.stop)

    def make_evaluation_step(self, model: Any, objective: Objective) -> EvaluationStep:
        return ShardedEvaluationStep(model, objective, self.comm)

    def shard(self, rows: int) -> RankShard:
        return RankShard(self.comm, rows)

    def average_gradients(self, optimizer: Optimizer) -> None:
        average_gradients(self.comm, optimizer)

    # ---- outputs, targets and sums ------------------------------------------------------------------------------

    def gather_rows(self, rows: np.ndarray) -> np.ndarray:
        return self.comm.all_reduce(rows)

    def scatter_rows(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.is_main else np.zeros_like(rows)

    def reduce_sums(self, step: Step, sums: np.ndarray) -> np.ndarray:
        return sums if step.is_training else self.comm.all_reduce(sums)  # a training step has added them up

    def reset_rows(self, rows: list[np.ndarray]) -> None:
        for array in rows:  # the rows of other ranks must stay 0
            array[...] = 0

    # ---- whether all ranks do the same --------------------------------------------------------------------------

    def check_facts(self, what: str, facts: dict[str, Any]) -> None:
        """Raise RuntimeError unless all ranks have the same facts. It names the first rank and fact that differ."""
        all_facts = self.comm.all_gather_object({name: json.dumps(fact, default=str) for name, fact in facts.items()})
        for rank, rank_facts in enumerate(all_facts):
            for name in dict.fromkeys([*all_facts[0], *rank_facts]):
                first, other = all_facts[0].get(name), rank_facts.get(name)
                if first != other:
                    is_short = max(len(str(first)), len(str(other))) <= 50
                    raise RuntimeError(
                        f"{what}: rank {rank} differs from rank 0 in its {name}{f': {other}, {first}' * is_short}; "
                        "every rank has to run the same program on the same data"
                    )

    def check_batch(self, location: str, batch: Batch | None) -> None:
        """Raise RuntimeError unless all ranks got the same batch, or None. It compares only some rows."""
        rows = 0 if batch is None else batch.rows
        facts = {"number of rows in the batch": rows}
        if batch is not None:
            sample = np.linspace(0, rows - 1, SAMPLED_ROWS).astype(int)
            facts["checksum of the batch"] = _checksum(column[sample] for column in batch.columns())
        self.check_facts(location, facts)
        self.stop.reset()

    def check_parameters(self, model: Any, epoch: int) -> None:
        """Raise RuntimeError unless all ranks have the same parameters and buffers, to the bit."""
        arrays = [p._data for p in model.parameters()] + list(model.buffers().values())
        sums = self.comm.all_gather(np.array([_checksum(arrays)], np.int64))[:, 0]
        if (sums != sums[0]).any():
            rank = int((sums != sums[0]).argmax())
            raise RuntimeError(
                f"after epoch {epoch}, rank {rank} has other parameters than rank 0: they have drifted apart. Random "
                "numbers, decisions and batches made in Python must be the same on all ranks, and so must the "
                "instruction set, which CAFFELITE_ISA names"
            )

    def should_stop(self, model: Any, epoch: int, stops_here: bool) -> bool:
        """Whether a callback has ended the training after an epoch, on any rank.

        Raise RuntimeError unless all ranks have frozen the same parameters. Otherwise a rank would wait for gradients
        that no other rank sends.
        """
        frozen = _checksum([p.requires_grad for p in model.parameters()])
        values = self.comm.all_gather(np.array([frozen, stops_here], np.int64))
        rank = int((values[:, 0] != values[0, 0]).argmax())
        if rank > 0:
            raise RuntimeError(
                f"after epoch {epoch}, rank {rank} has frozen other parameters than rank 0; a callback has to do the "
                "same on all ranks"
            )
        return bool(values[:, 1].any())


def _checksum(values: Any) -> int:
    """Return a checksum of the bits of arrays, and of other values."""
    crc = 0
    for value in values:
        pieces: Iterable[Any]
        if isinstance(value, np.ndarray):
            pieces = [np.ascontiguousarray(value).view(np.uint8).data]
        else:
            pieces = value.bytes() if isinstance(value, SparseRows) else [repr(value).encode()]
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
    return crc
