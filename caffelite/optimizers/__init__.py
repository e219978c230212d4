"""Optimizers: their common base (`base`), the update rules (`rules`), and learning rate schedules (`schedules`)."""

from caffelite._support.migration_hints import add_argument_hints
from caffelite.optimizers import rules, schedules
from caffelite.optimizers.base import Optimizer, TrainingDiverged
from caffelite.optimizers.rules import *

__all__ = ["Optimizer", "TrainingDiverged", "schedules"]
__all__ += rules.__all__

add_argument_hints(rules)
