"""Epochs: how training goes through its batches, in memory, in files, made one by one or in groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from caffelite._support.interrupts import Interrupts
from caffelite.data.generator import is_replayed
from caffelite.training.epochs.accumulation import AccumulationEpochs
from caffelite.training.epochs.base import Epochs
from caffelite.training.epochs.by_length import LengthEpochs
from caffelite.training.epochs.in_memory import InMemoryEpochs
from caffelite.training.epochs.iterable import IterableEpochs
from caffelite.training.epochs.out_of_core import OutOfCoreEpochs
from caffelite.training.step import Step


def make_epochs(step: Step, batches: Iterable[Any], epochs: int, interrupts: Interrupts | None = None) -> Epochs:
    """Return the epochs of a step over these batches."""
    if step.batches_per_step > 1:
        return AccumulationEpochs(step, batches, interrupts)
    if is_replayed(batches):
        in_memory = InMemoryEpochs if batches.groups is None else LengthEpochs
        kind = in_memory if batches.blocks is None else OutOfCoreEpochs
        return kind(step, batches, epochs, interrupts)
    return IterableEpochs(step, batches, interrupts)
