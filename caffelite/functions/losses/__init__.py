"""The losses: for classes, for numbers, for distributions, of a function, and of several outputs."""

from caffelite.functions.losses import base, likelihood, multi_output
from caffelite.functions.losses.base import *
from caffelite.functions.losses.likelihood import *
from caffelite.functions.losses.multi_output import *

__all__: list[str] = []
__all__ += base.__all__
__all__ += likelihood.__all__
__all__ += multi_output.__all__
