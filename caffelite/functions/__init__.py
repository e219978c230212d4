"""The Functions, one family a file. Importing them gives Tensor its operators and methods.

The names in a family's `__all__` are in caffelite, too: `cl.ReLU`, `cl.relu`. The operators behind methods and
functions have their names here only.
"""

from caffelite.core.elsewhere import hint_at_arguments
from caffelite.functions import (
    activation,
    attention,
    columns,
    composition,
    contraction,
    convolution,
    distribution,
    dropout,
    elementary,
    embedding,
    indexing,
    linear,
    loss,
    normalization,
    padding,
    pooling,
    rearrangement,
    recurrent,
    reduction,
    selection,
    several,
    shape,
    splines,
)
from caffelite.functions.activation import *
from caffelite.functions.arithmetic import Add, Divide, Multiply, Negative, Power, Subtract
from caffelite.functions.attention import *
from caffelite.functions.columns import *
from caffelite.functions.composition import *
from caffelite.functions.contraction import *
from caffelite.functions.convolution import *
from caffelite.functions.distribution import *
from caffelite.functions.dropout import *
from caffelite.functions.elementary import *
from caffelite.functions.elementary import Abs, Cos, Exp, Log, Sin, Sqrt
from caffelite.functions.embedding import *
from caffelite.functions.indexing import *
from caffelite.functions.indexing import Concatenate, Index, Split, Stack, TakeAlongAxis
from caffelite.functions.linear import *
from caffelite.functions.linear import MatMul
from caffelite.functions.loss import *
from caffelite.functions.normalization import *
from caffelite.functions.padding import *
from caffelite.functions.padding import PadAxes
from caffelite.functions.pooling import *
from caffelite.functions.rearrangement import *
from caffelite.functions.rearrangement import Flip, Repeat, Roll
from caffelite.functions.recurrent import *
from caffelite.functions.reduction import *
from caffelite.functions.reduction import CumSum, LogSumExp, Max, Mean, Min, Prod, Std, Sum, Var
from caffelite.functions.selection import *
from caffelite.functions.selection import Clip, Maximum, Minimum, Where
from caffelite.functions.several import *
from caffelite.functions.several import WeightedSum
from caffelite.functions.shape import *
from caffelite.functions.shape import ToShape, Transpose
from caffelite.functions.splines import *

__all__: list[str] = []
__all__ += activation.__all__
__all__ += attention.__all__
__all__ += columns.__all__
__all__ += composition.__all__
__all__ += contraction.__all__
__all__ += convolution.__all__
__all__ += distribution.__all__
__all__ += dropout.__all__
__all__ += elementary.__all__
__all__ += embedding.__all__
__all__ += indexing.__all__
__all__ += linear.__all__
__all__ += loss.__all__
__all__ += normalization.__all__
__all__ += padding.__all__
__all__ += pooling.__all__
__all__ += rearrangement.__all__
__all__ += recurrent.__all__
__all__ += reduction.__all__
__all__ += selection.__all__
__all__ += several.__all__
__all__ += shape.__all__
__all__ += splines.__all__

# Of these families, users make the layers themselves. The others have functions that make a Function at each call.
hint_at_arguments(attention, convolution, dropout, embedding, linear, normalization, pooling, recurrent)
