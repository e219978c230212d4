"""Which Epochs go through the batches: those for data in memory, in files, or made one by one or in groups."""

from __future__ import annotations

from collections.abc import Iterable

from caffelite._support.interrupts import Interrupts
from caffelite.data.generator import is_replayed
from caffelite.training.epochs.accumulation import Grouped
from caffelite.training.epochs.base import Epochs
from caffelite.training.epochs.in_memory import InMemory
from caffelite.training.epochs.iterable import Streamed
from caffelite.training.epochs.out_of_core import Buffered
from caffelite.training.process_group import Team
from caffelite.training.step import Step


def epochs_of(step: Step, team: Team, batches: Iterable, epochs: int, interrupts: Interrupts | None = None) -> Epochs:
    """Return the epochs over these batches."""
    if step.batches > 1:
        return Grouped(step, team, batches, interrupts)
    if is_replayed(batches):
        return (InMemory if batches.blocks is None else Buffered)(step, team, batches, epochs, interrupts)
    return Streamed(step, team, batches, interrupts)
