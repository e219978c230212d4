"""Modules of PyTorch that compute what a Function does, if PyTorch has no such module.

Names and layouts of their parameters are PyTorch's. Recurrent modules and attention give one output, not a tuple, so
they fit into an `nn.Sequential`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from caffelite.tables.columns import Z_LIMIT


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


class GlobalPool(nn.Module):
    """The base of the global pools: of each channel, (n, C, …) → (n, C), or along another `axis` or several."""

    def __init__(self, axis: Any = None) -> None:
        super().__init__()
        self.axis = axis

    def move_places(self, x: Any) -> Any:
        """Return x with all elements that are pooled along the last axis."""
        axes = tuple(range(2, x.ndim)) if self.axis is None else self.axis
        axes = axes if isinstance(axes, tuple) else (axes,)
        return x.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))


class GlobalAvgPool(GlobalPool):
    """The mean of all elements that are pooled."""

    def forward(self, x: Any) -> Any:
        return self.move_places(x).mean(-1)


class GlobalMaxPool(GlobalPool):
    """The largest of all elements that are pooled; of equals the first."""

    def forward(self, x: Any) -> Any:
        return self.move_places(x).max(-1).values


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


class SingleOutput:
    """A recurrent module that gives the states of all steps; or the last one, of both directions side by side."""

    sequences = True
    bidirectional: bool

    def forward(self, x: Any) -> Any:
        y, last = super().forward(x)  # type: ignore[misc]
        if self.sequences:
            return y
        h = last[0] if isinstance(last, tuple) else last
        return torch.cat(tuple(h[-2:] if self.bidirectional else h[-1:]), -1)


class RNN(SingleOutput, nn.RNN):
    """An RNN of one output."""


class GRU(SingleOutput, nn.GRU):
    """A GRU of one output."""


class LSTM(SingleOutput, nn.LSTM):
    """An LSTM of one output."""


class TableModule(nn.Module):
    """Base class of modules that take the columns of a table: numbers (n, k), and codes (n, m) of categories.

    If there are both, x is a tuple of them. NaN is a missing number. `_columns` are the arguments of the Function, by
    name. `counts` has the number of codes of each category. The statistics of the numbers stay in float64 if the module
    is converted to another dtype.
    """

    def __init__(self, columns: dict[str, Any], buffers: dict[str, Any], counts: Sequence[int]) -> None:
        super().__init__()
        self._columns, self.counts = columns, tuple(counts)
        for name, values in buffers.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))
        bins = np.array(columns["bins"], np.int64)  # of each number
        column = np.repeat(np.arange(len(bins)), bins)  # of each bin
        last = np.cumsum(bins + 1) - 1
        bin_indices = {"column": column, "lower": np.arange(len(column)) + column, "first": last - bins, "last": last}
        for name, indices in bin_indices.items():
            self.register_buffer(name, torch.tensor(indices), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        float64_buffers = {name: x for name, x in self._buffers.items() if x is not None and x.dtype == torch.float64}
        super()._apply(fn, recurse)
        for name, x in float64_buffers.items():
            self._buffers[name] = x.to(self._buffers[name].device)
        return self

    def _inputs(self, x: Any) -> tuple[Any, Any]:
        """Return the numbers in float64 and the codes; None if there are none."""
        numbers, codes = x if isinstance(x, tuple) else (None, x) if self.counts else (x, None)
        return None if numbers is None else numbers.double(), codes

    def _bin_shares(self, numbers: Any) -> Any:
        """Return the piecewise linear code of each number, (n, bins): 1 for bins below it, the share of its own bin."""
        width = self.edges[self.lower + 1] - self.edges[self.lower]
        return ((numbers[:, self.column] - self.edges[self.lower]) / width).clamp(0, 1)


class Columns(TableModule):
    """The columns of a table as features: numbers are standardized, each category has an `nn.Embedding`."""

    def __init__(self, columns: dict[str, Any], buffers: dict[str, Any], counts: Sequence[int], sizes: Any) -> None:
        super().__init__(columns, buffers, counts)
        self.embeddings = nn.ModuleList([nn.Embedding(*pair) for pair in zip(counts, sizes, strict=True)])
        self.register_buffer("zero", torch.zeros(()), persistent=False)  # which has the dtype of the output

    def forward(self, x: Any) -> Any:
        numbers, codes = self._inputs(x)
        parts = []
        if numbers is not None:
            z = (numbers - self.center) / self.scale
            if self._columns["robust"]:
                z = z / (1 + (z / Z_LIMIT) ** 2).sqrt()
            gaps = numbers.isnan()
            parts = [z.masked_fill(gaps, 0), gaps[:, self._columns["gaps"]], self._bin_shares(numbers).nan_to_num(0)]
        parts += [embedding(codes[:, i]) for i, embedding in enumerate(self.embeddings)]
        return torch.cat([part.to(self.zero.dtype) for part in parts], 1)


class Splines(TableModule):
    """The columns of a table as a sum of functions of one column each: linear splines, and vectors of categories."""

    def __init__(self, columns: dict[str, Any], buffers: dict[str, Any], counts: Sequence[int], size: int) -> None:
        super().__init__(columns, buffers, counts)
        k = len(self.center)
        self.weight = nn.Parameter(torch.zeros(len(self.edges) + sum(counts), size))
        self.register_parameter("slope", nn.Parameter(torch.zeros(k, size)) if k else None)
        self.column_scale = nn.Parameter(torch.ones(k + len(counts)))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Any) -> Any:
        numbers, codes = self._inputs(x)
        y, k, dtype = self.bias, self.center.shape[0], self.weight.dtype
        if numbers is not None:
            scale, gaps, column = self.column_scale[:k], numbers.isnan(), self.column
            shares = self._bin_shares(numbers.masked_fill(gaps, 0))
            steps = self.z[self.lower + 1] - self.z[self.lower]
            z = self.z[self.first].expand_as(numbers).index_add(1, column, shares * steps)
            y = y + (z.to(dtype) * scale * ~gaps) @ self.slope
            y = y + (shares.to(dtype) * (scale * ~gaps)[:, column]) @ self.weight[self.lower]
            y = y + (scale * gaps) @ self.weight[self.last]
        begin = self.edges.shape[0]
        for i, count in enumerate(self.counts):
            y = y + self.column_scale[k + i] * nn.functional.embedding(codes[:, i], self.weight[begin : begin + count])
            begin += count
        return y


class SelfAttention(nn.MultiheadAttention):
    """Attention of x (n, length, size) to itself."""

    causal = False

    def forward(self, x: Any) -> Any:
        mask = causal_mask(x) if self.causal else None
        return super().forward(x, x, x, need_weights=False, attn_mask=mask)[0]


class TransformerBlock(nn.TransformerEncoderLayer):
    """A layer of a transformer that may be causal."""

    causal = False

    def forward(self, x: Any) -> Any:
        return super().forward(x, causal_mask(x) if self.causal else None, is_causal=self.causal)


def causal_mask(x: Any) -> Any:
    """Return a causal layer's mask, True for the positions that a position does not see: the positions behind it."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
