"""The losses: for classes, for numbers, for distributions, of a function, and of several outputs."""

from caffelite.functions.losses.base import (
    FocalLoss,
    HingeLoss,
    HuberLoss,
    MAELoss,
    MSELoss,
    Penalized,
    SigmoidLoss,
    SoftmaxLoss,
)
from caffelite.functions.losses.likelihood import GaussianLoss, PoissonLoss, QuantileLoss
from caffelite.functions.losses.multi_output import Losses

__all__ = [
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
