"""The Functions, one family a file. Importing them gives Tensor its operators and methods."""

from caffelite.functions.activation import (
    LogSoftmax,
    ReLU,
    Sigmoid,
    Softmax,
    Tanh,
    log_softmax,
    relu,
    sigmoid,
    softmax,
    tanh,
)
from caffelite.functions.arithmetic import Add, Divide, Multiply, Negative, Power, Subtract
from caffelite.functions.composition import Parallel, Residual
from caffelite.functions.dropout import DropConnect, Dropout
from caffelite.functions.elementary import Abs, Exp, Log, Sqrt, abs, exp, log, sqrt
from caffelite.functions.indexing import Concatenate, Index, Stack, concatenate, stack
from caffelite.functions.linear import Linear, MatMul, matmul
from caffelite.functions.loss import SoftmaxLoss
from caffelite.functions.normalization import BatchNorm, LayerNorm
from caffelite.functions.reduction import Max, Mean, Min, Sum, max, mean, min, sum
from caffelite.functions.selection import Clip, Where, clip, where
from caffelite.functions.shape import Flatten, Reshape, ToShape, Transpose, reshape, transpose

__all__ = [
    "Abs",
    "Add",
    "BatchNorm",
    "Clip",
    "Concatenate",
    "Divide",
    "DropConnect",
    "Dropout",
    "Exp",
    "Flatten",
    "Index",
    "LayerNorm",
    "Linear",
    "Log",
    "LogSoftmax",
    "MatMul",
    "Max",
    "Mean",
    "Min",
    "Multiply",
    "Negative",
    "Parallel",
    "Power",
    "ReLU",
    "Reshape",
    "Residual",
    "Sigmoid",
    "Softmax",
    "SoftmaxLoss",
    "Sqrt",
    "Stack",
    "Subtract",
    "Sum",
    "Tanh",
    "ToShape",
    "Transpose",
    "Where",
    "abs",
    "clip",
    "concatenate",
    "exp",
    "log",
    "log_softmax",
    "matmul",
    "max",
    "mean",
    "min",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "sqrt",
    "stack",
    "sum",
    "tanh",
    "transpose",
    "where",
]
