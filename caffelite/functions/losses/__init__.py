"""The losses: for classes, numbers and distributions, from a function, and for several outputs."""

from caffelite.functions.losses.base import Penalized
from caffelite.functions.losses.classification import CrossEntropyLoss, FocalLoss, HingeLoss, SigmoidLoss, SoftmaxLoss
from caffelite.functions.losses.likelihood import GaussianLoss, PoissonLoss, QuantileLoss
from caffelite.functions.losses.multi_output import Losses
from caffelite.functions.losses.regression import HuberLoss, MAELoss, MSELoss

__all__ = [
    "CrossEntropyLoss",
    "FocalLoss",
    "GaussianLoss",
    "HingeLoss",
    "HuberLoss",
    "Losses",
    "MAELoss",
    "MSELoss",
    "Penalized",
    "PoissonLoss",
    "QuantileLoss",
    "SigmoidLoss",
    "SoftmaxLoss",
]
