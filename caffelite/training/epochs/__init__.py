"""Which Epochs go through the batches: those for data in memory, in files, or made one by one or in groups."""

from __future__ import annotations

from collections.abc import Iterable

from caffelite._support.interrupts import Interrupts
from caffelite.data.generator import is_replayed
from caffelite.training.epochs.accumulation import AccumulationEpochs
from caffelite.training.epochs.base import Epochs
from caffelite.training.epochs.in_memory import InMemoryEpochs
from caffelite.training.epochs.iterable import IterableEpochs
from caffelite.training.epochs.out_of_core import OutOfCoreEpochs
from caffelite.training.process_group import ProcessGroup
from caffelite.training.step import Step


def choose_epochs(
    step: Step, processes: ProcessGroup, batches: Iterable, epochs: int, interrupts: Interrupts | None = None
) -> Epochs:
    """Return the epochs over these batches."""
    if step.batches > 1:
        return AccumulationEpochs(step, processes, batches, interrupts)
    if is_replayed(batches):
        return (InMemoryEpochs if batches.blocks is None else OutOfCoreEpochs)(
            step, processes, batches, epochs, interrupts
        )
    return IterableEpochs(step, processes, batches, interrupts)
