"""Optimizers: what they share (`base`), the update rules (`rules`), and learning rates that change (`schedules`)."""

from caffelite.optimizers import rules, schedules
from caffelite.optimizers.base import Optimizer, TrainingDiverged
from caffelite.optimizers.rules import *

__all__ = ["Optimizer", "TrainingDiverged", "schedules"]
__all__ += rules.__all__
