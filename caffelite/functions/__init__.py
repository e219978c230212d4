"""The Functions, one family a file. Importing them gives Tensor its operators and methods."""

from caffelite.functions.activation import ReLU, relu
from caffelite.functions.arithmetic import Add, Divide, Multiply, Negative, Power, Subtract
from caffelite.functions.linear import Linear, MatMul, matmul
from caffelite.functions.loss import SoftmaxLoss
from caffelite.functions.reduction import Mean, Sum, mean, sum
from caffelite.functions.shape import Reshape, Transpose, reshape, transpose

__all__ = [
    "Add",
    "Divide",
    "Linear",
    "MatMul",
    "Mean",
    "Multiply",
    "Negative",
    "Power",
    "ReLU",
    "Reshape",
    "SoftmaxLoss",
    "Subtract",
    "Sum",
    "Transpose",
    "matmul",
    "mean",
    "relu",
    "reshape",
    "sum",
    "transpose",
]
