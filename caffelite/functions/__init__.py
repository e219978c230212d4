"""The Functions, one family a file. Importing them gives Tensor its operators and methods."""

from caffelite.functions.activation import ReLU, Sigmoid, Tanh, relu, sigmoid, tanh
from caffelite.functions.arithmetic import Add, Divide, Multiply, Negative, Power, Subtract
from caffelite.functions.elementary import Exp, Log, exp, log
from caffelite.functions.linear import Linear, MatMul, matmul
from caffelite.functions.loss import SoftmaxLoss
from caffelite.functions.reduction import Mean, Sum, mean, sum
from caffelite.functions.shape import Reshape, Transpose, reshape, transpose

__all__ = [
    "Add",
    "Divide",
    "Exp",
    "Linear",
    "Log",
    "MatMul",
    "Mean",
    "Multiply",
    "Negative",
    "Power",
    "ReLU",
    "Reshape",
    "Sigmoid",
    "SoftmaxLoss",
    "Subtract",
    "Sum",
    "Tanh",
    "Transpose",
    "exp",
    "log",
    "matmul",
    "mean",
    "relu",
    "reshape",
    "sigmoid",
    "sum",
    "tanh",
    "transpose",
]
