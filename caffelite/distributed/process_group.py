"""The group of all ranks, which begin with the same state, stop together, and check that they agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from caffelite._support.interrupts import Interrupts, InterruptsBetweenSteps
from caffelite.data.generator import DataGenerator, Prefetch
from caffelite.distributed.allreduce import average_gradients
from caffelite.distributed.consistency import check_fingerprints, checksum
from caffelite.distributed.mpi import Communicator
from caffelite.distributed.sharded_epochs import make_sharded_epochs
from caffelite.distributed.sharded_step import ShardedEvaluationStep, ShardedStep
from caffelite.distributed.stop_signal import StopSignal
from caffelite.files.state import BaseModel
from caffelite.optimizers import Optimizer
from caffelite.training.callbacks.base import LoopHook
from caffelite.training.epochs.base import Epochs
from caffelite.training.epochs.evaluation import Evaluation
from caffelite.training.history import History
from caffelite.training.loop import Loop
from caffelite.training.objective import Objective
from caffelite.training.process_group import ProcessGroup
from caffelite.training.step import Step


class DistributedLoop(Loop):
    """The training loop on several ranks. All continue and end after the same epochs."""

    def __init__(self, model: BaseModel, processes: RankGroup, *args: Any) -> None:
        super().__init__(*args)
        self.model, self.processes, self.comm = model, processes, processes.comm

    def next_python_epoch(self, done: int) -> float:
        return self.processes.broadcast(super().next_python_epoch(done))

    def end_epochs(self, done: int) -> bool:
        """Check that all ranks have the same parameters. Return whether a callback on any rank ends training."""
        self._check_parameters()
        should_stop = super().end_epochs(done)
        frozen = checksum([p.requires_grad for p in self.model.parameters()])
        values = self.comm.all_gather(np.array([frozen, should_stop], np.int64))
        rank = int((values[:, 0] != values[0, 0]).argmax())
        if rank > 0:  # it would wait for gradients that no other rank sends
            raise RuntimeError(
                f"after epoch {self.epochs.epoch}, rank {rank} has frozen other parameters than rank 0; a callback has "
                "to do the same on all ranks"
            )
        return bool(values[:, 1].any())

    def _check_parameters(self) -> None:
        """Raise RuntimeError unless all ranks have the same parameters and buffers, to the bit."""
        arrays = [p._data for p in self.model.parameters()] + list(self.model.buffers().values())
        sums = self.comm.all_gather(np.array([checksum(arrays)], np.int64))[:, 0]
        if (sums != sums[0]).any():
            rank = int((sums != sums[0]).argmax())
            raise RuntimeError(
                f"after epoch {self.epochs.epoch}, rank {rank} has other parameters than rank 0: they have drifted "
                "apart. Random numbers, decisions and batches made in Python must be the same on all ranks, and so "
                "must the instruction set, which CAFFELITE_ISA names"
            )


class RankGroup(ProcessGroup):
    """The group of all ranks, as one of them sees it."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.rank, self.is_main = comm.rank, comm.rank == 0
        self.stop = StopSignal(self.is_main)

    # ---- around a training --------------------------------------------------------------------------------------

    def training_context(self) -> AbstractContextManager[None]:
        return self.comm.training_context()

    def share_rngs(self, *rngs: np.random.Generator) -> None:
        states = self.comm.broadcast_object([rng.bit_generator.state for rng in rngs])
        for rng, state in zip(rngs, states, strict=True):
            rng.bit_generator.state = state

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

    def check_accumulate(self, count: int) -> None:
        raise ValueError(
            f"accumulate={count}: several processes share each batch, so none of them holds a large one; give "
            f"batch_size {count} times as large instead"
        )

    def sync_state(
        self, model: BaseModel, optimizer: Optimizer, data: Iterable[Any], fingerprint: Callable[[], dict[str, Any]]
    ) -> None:
        """Copy parameters, buffers, the optimizer's state and the orders of data from rank 0.

        So random values drawn without a seed are the same on all ranks.
        """
        check_fingerprints(self.comm, "fit", fingerprint())
        for generator in data:
            while isinstance(generator, Prefetch):
                generator = generator.batches
            if isinstance(generator, DataGenerator):
                generator.restore(self.comm.broadcast_object(generator.state()))
        own_state = model.state_dict() | {f"optimizer.{name}": x for name, x in optimizer.state_dict().items()}
        if len(set(self.comm.all_gather_object(checksum(own_state.values())))) > 1:
            state, optimizer_state = self.comm.broadcast_object((model.state_dict(), optimizer.state_dict()))
            model.load_state_dict(state)
            optimizer.load_state_dict(optimizer_state)

    def defer_interrupts(self, interrupts: InterruptsBetweenSteps) -> AbstractContextManager[None]:
        return self.stop.defer_interrupts(interrupts)

    # ---- its parts ----------------------------------------------------------------------------------------------

    def make_step(self, model: BaseModel, objective: Objective, optimizer: Optimizer, clip_norm: float | None) -> Step:
        return ShardedStep(model, objective, optimizer, clip_norm, self.comm, self.stop)

    def make_epochs(self, step: Step, batches: Any, epochs: int, interrupts: Interrupts | None = None) -> Epochs:
        return make_sharded_epochs(self.comm, self.stop, step, batches, epochs, interrupts)

    def make_evaluation(self, model: BaseModel, objective: Objective, batches: Iterable, times: int) -> Evaluation:
        step = ShardedEvaluationStep(model, objective, self.comm)
        return Evaluation(step, batches, times, self.make_epochs)

    def make_loop(
        self, model: BaseModel, max_epochs: int, hooks: Sequence[LoopHook], history: History, interrupts: Interrupts
    ) -> DistributedLoop:
        return DistributedLoop(model, self, max_epochs, hooks, history, interrupts)

    # ---- between steps ------------------------------------------------------------------------------------------

    def broadcast(self, value: float) -> float:
        return float(self.comm.all_gather(np.array([value], np.float64))[0, 0])  # rank 0's value

    def is_interrupted(self) -> bool:
        return bool(self.stop.requests()[1])

    def average_gradients(self, optimizer: Optimizer) -> None:
        average_gradients(self.comm, optimizer)
