"""Optimizers: what they share (`base`), the update rules (`rules`), and learning rates that change (`schedules`)."""

from caffelite.optimizers import schedules
from caffelite.optimizers.base import Group, Optimizer, TrainingDiverged
from caffelite.optimizers.rules import *  # noqa: F403
from caffelite.optimizers.rules import __all__ as _rules

__all__ = ["Group", "Optimizer", "TrainingDiverged", "schedules", *_rules]
