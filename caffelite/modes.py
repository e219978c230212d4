"""Modes, each thread's own: whether a graph is recorded, and whether Functions behave as in training."""

from __future__ import annotations

from caffelite.autograd import Mode, inference, no_grad

__all__ = ["inference", "is_training", "mode", "no_grad"]

mode = Mode()


def is_training() -> bool:
    """Whether Functions should behave as in training: everywhere but inside `inference()`."""
    return mode.training
