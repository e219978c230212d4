"""Modules of PyTorch that compute what a Function does, if PyTorch has no such module.

Names and layouts of their parameters are PyTorch's. Recurrent modules and attention give one output, not a tuple, so
they fit into an `nn.Sequential`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Residual(nn.Module):
    """y = x + f(x)."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return x + self.function(x)


class Parallel(nn.Module):
    """The outputs of several modules, concatenated along an axis."""

    def __init__(self, functions: Iterable[nn.Module], axis: int = -1) -> None:
        super().__init__()
        self.functions, self.axis = nn.ModuleList(functions), axis

    def forward(self, x: Any) -> Any:
        return torch.cat([function(x) for function in self.functions], self.axis)


class Reshape(nn.Module):
    """Each row of x in another shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Any) -> Any:
        return x.reshape(len(x), *self.shape)


class GlobalAvgPool(nn.Module):
    """The mean of each channel, (n, C, …) → (n, C)."""

    def forward(self, x: Any) -> Any:
        return x.flatten(2).mean(2)


class GlobalMaxPool(nn.Module):
    """The largest element of each channel, (n, C, …) → (n, C)."""

    def forward(self, x: Any) -> Any:
        return x.flatten(2).max(2).values


class PositionalEncoding(nn.Module):
    """Adds the waves of a table (max_length, size) to sequences of vectors."""

    def __init__(self, size: int, max_length: int, table: Any) -> None:
        super().__init__()
        self.size, self.max_length = size, max_length
        self.register_buffer("table", torch.tensor(table), persistent=False)

    def forward(self, x: Any) -> Any:
        return x + self.table[: x.shape[1]].to(x.dtype)


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization of any number of axes. Frozen, it uses the running moments in training, too."""

    def forward(self, x: Any) -> Any:
        uses_batch = self.training and (self.weight.requires_grad or self.bias.requires_grad)
        moments = self.running_mean, self.running_var
        return nn.functional.batch_norm(x, *moments, self.weight, self.bias, uses_batch, self.momentum, self.eps)


class InstanceNorm(nn.modules.instancenorm._InstanceNorm):
    """Instance normalization of any number of axes."""

    def forward(self, x: Any) -> Any:
        return nn.functional.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)


class OneOutput:
    """A recurrent module that gives the states of all steps; or the last one, of both directions side by side."""

    sequences = True
    bidirectional: bool

    def forward(self, x: Any) -> Any:
        y, last = super().forward(x)  # type: ignore[misc]
        if self.sequences:
            return y
        h = last[0] if isinstance(last, tuple) else last
        return torch.cat(tuple(h[-2:] if self.bidirectional else h[-1:]), -1)


class RNN(OneOutput, nn.RNN):
    """An RNN of one output."""


class GRU(OneOutput, nn.GRU):
    """A GRU of one output."""


class LSTM(OneOutput, nn.LSTM):
    """An LSTM of one output."""


class SelfAttention(nn.MultiheadAttention):
    """Attention of x (n, length, size) to itself."""

    causal = False

    def forward(self, x: Any) -> Any:
        mask = unseen(x) if self.causal else None
        return super().forward(x, x, x, need_weights=False, attn_mask=mask)[0]


class TransformerBlock(nn.TransformerEncoderLayer):
    """A layer of a transformer that may be causal."""

    causal = False

    def forward(self, x: Any) -> Any:
        return super().forward(x, unseen(x) if self.causal else None, is_causal=self.causal)


def unseen(x: Any) -> Any:
    """What a position does not see in a causal layer: True for those behind it."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
