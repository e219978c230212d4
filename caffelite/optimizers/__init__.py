"""Optimizers: their common base (`base`), the update rules (`rules`), and learning rate schedules (`schedules`)."""

from caffelite.core.construction import with_hints
from caffelite.optimizers import rules, schedules
from caffelite.optimizers.base import Optimizer, TrainingDiverged
from caffelite.optimizers.rules import *

__all__ = ["Optimizer", "TrainingDiverged", "schedules"]
__all__ += rules.__all__

for name in rules.__all__:
    if "__init__" in vars(vars(rules)[name]):
        with_hints(vars(rules)[name])
