"""The Functions, one family a file. Importing them gives Tensor its operators and methods.

The names in a family's `__all__` are in caffelite, too: `cl.ReLU`, `cl.relu`. The operators behind methods and
functions have their names here only.
"""

from caffelite._support.migration_hints import add_argument_hints
from caffelite.functions import (
    activation,
    attention,
    combinators,
    comparison,
    convolution,
    dropout,
    einstein_sum,
    embedding,
    indexing,
    linear,
    losses,
    math,
    normalization,
    padding,
    pooling,
    recurrent,
    reduction,
    shape,
)
from caffelite.functions.activation import *
from caffelite.functions.arithmetic import Add, Divide, Multiply, Negative, Power, Subtract
from caffelite.functions.attention import *
from caffelite.functions.combinators import *
from caffelite.functions.comparison import *
from caffelite.functions.comparison import Clip, Maximum, Minimum, Where
from caffelite.functions.convolution import *
from caffelite.functions.dropout import *
from caffelite.functions.einstein_sum import *
from caffelite.functions.embedding import *
from caffelite.functions.indexing import *
from caffelite.functions.indexing import Concatenate, Index, Split, Stack, TakeAlongAxis
from caffelite.functions.linear import *
from caffelite.functions.linear import MatMul
from caffelite.functions.losses import *
from caffelite.functions.losses.multi_output import WeightedSum
from caffelite.functions.math import *
from caffelite.functions.normalization import *
from caffelite.functions.padding import *
from caffelite.functions.padding import PadAxes
from caffelite.functions.pooling import *
from caffelite.functions.recurrent import *
from caffelite.functions.reduction import *
from caffelite.functions.reduction import CumSum, LogSumExp, Max, Mean, Min, Prod, Std, Sum, Var
from caffelite.functions.shape import *
from caffelite.functions.shape import Flip, Repeat, Roll, ToShape, Transpose

globals().update(math.FUNCTIONS)

__all__: list[str] = []
__all__ += activation.__all__
__all__ += attention.__all__
__all__ += combinators.__all__
__all__ += comparison.__all__
__all__ += convolution.__all__
__all__ += dropout.__all__
__all__ += einstein_sum.__all__
__all__ += embedding.__all__
__all__ += indexing.__all__
__all__ += linear.__all__
__all__ += losses.__all__
__all__ += math.__all__
__all__ += normalization.__all__
__all__ += padding.__all__
__all__ += pooling.__all__
__all__ += recurrent.__all__
__all__ += reduction.__all__
__all__ += shape.__all__

# Of these families, users make the layers themselves. The others have functions that make a Function at each call.
add_argument_hints(attention, convolution, dropout, embedding, linear, losses, normalization, pooling, recurrent)
