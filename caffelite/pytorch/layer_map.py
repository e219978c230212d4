"""The layers that caffelite and PyTorch both have: `KINDS`, a row for each.

A row has the two classes, how to make each from the other, and where PyTorch's arrays are in the Function. Most rows
say the first in words, `"kernel_size ceil_mode=ceil"`: the options that are kept, PyTorch's name first if the names
differ. All other options of PyTorch's have to be what the row's own module has, which `from_torch` checks.

The place of an array is a name, `"slope"`. `"weight.T"` is the transposed array; several names are arrays one below the
other.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import caffelite as cl
from caffelite.core.function import Function
from caffelite.pytorch import modules

Places = Mapping[str, str]  # PyTorch's names of arrays, and where these are in a Function
SAME = {"weight": "weight", "bias": "bias"}
SCALED = {"weight": "scale", "bias": "shift"}
PROJECTIONS = ("query", "key", "value")


class Kind(NamedTuple):
    """A kind of layer. Without `ours`, it is only read: the Function is a composition of others.

    `to_ours` gets the module, and `to_theirs` the Function. If it is a nest, its parts follow, already made.
    """

    ours: type[Function] | None
    theirs: type[nn.Module]
    to_ours: Callable[..., Function]
    to_theirs: Callable[..., nn.Module] | None = None
    places: Places | Callable[[Any], Places] = MappingProxyType({})

    def places_in(self, function: Function) -> Places:
        return self.places(function) if callable(self.places) else self.places


def row(
    ours: type[Function], theirs: Any, options: str = "", places: Places = MappingProxyType({}), **fixed: Any
) -> Kind:
    """A kind whose two classes take options alike; `fixed` ones are PyTorch's."""
    names = [(option.partition("=")[0], option.rpartition("=")[2]) for option in options.split()]
    return Kind(
        ours,
        theirs,
        lambda m: ours(**{name: option_of(m, their_name) for their_name, name in names}),
        lambda f: theirs(**{their_name: option_of(f, name) for their_name, name in names}, **fixed),
        places,
    )


def option_of(layer: Any, name: str) -> Any:
    """An argument that a layer was made with: for `bias`, whether it has one; for a tuple of one number, the number."""
    value = layer.arguments()[name] if isinstance(layer, Function) else getattr(layer, name)
    if name == "bias":
        return value is not None and value is not False
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def recurrent(ours: Any, theirs: Any) -> Kind:
    """A row for recurrent layers. PyTorch's constructor warns of dropout in a single layer, so it is set later."""

    def to_ours(m: Any) -> Function:
        options = {"layers": m.num_layers, "dropout": m.dropout, "bidirectional": m.bidirectional}
        return ours(m.input_size, m.hidden_size, getattr(m, "sequences", True), **options)

    def to_theirs(f: Any) -> nn.Module:
        m = theirs(f.in_features, f.hidden, f.layers, bidirectional=f.bidirectional, batch_first=True)
        m.dropout, m.sequences = f.dropout, f.sequences
        return m

    return Kind(ours, theirs, to_ours, to_theirs, places_of_recurrent)


def places_of_recurrent(f: Any) -> Places:
    """PyTorch numbers the first layer, too: `weight_ih_l0_reverse`."""
    return {re.sub(r"^(\w+_[ih]h)(_reverse)?$", r"\1_l0\2", name): name for name in f.named_parameters()}


def batch_norm(theirs: Any) -> Kind:
    """A row for batch normalization. Frozen in training mode, PyTorch's goes on with its moments."""
    kind = row(cl.BatchNorm, theirs, "num_features=features momentum eps", MOMENTS)

    def to_ours(m: Any) -> Function:
        if m.momentum is None:
            raise ValueError("momentum=None can't be kept; caffelite takes a number")
        is_frozen = m.affine and not any(p.requires_grad for p in m.parameters())
        if is_frozen and m.training and theirs is not modules.BatchNorm:
            raise ValueError("is frozen, but still takes the moments of each batch: call its eval()")
        return kind.to_ours(m)

    return kind._replace(to_ours=to_ours)


def gelu(m: Any) -> Function:
    return cl.GELU({"none": False, "tanh": True}[m.approximate])


def along_axis(ours: Any, theirs: Any) -> Kind:
    """A row for a softmax. Without `dim`, PyTorch guesses the axis from the input."""

    def to_ours(m: Any) -> Function:
        if m.dim is None:
            raise ValueError("dim=None can't be kept; caffelite takes a number")
        return ours(m.dim)

    return Kind(ours, theirs, to_ours, lambda f: theirs(f.axis))


def softplus(m: Any) -> Function:
    if m.beta != 1 or m.threshold < 20:
        raise ValueError(f"takes beta=1 and threshold=20 or more, got {m.beta} and {m.threshold}")
    return cl.Softplus()


def upsample(m: Any) -> Function:
    scale = m.scale_factor if isinstance(m.scale_factor, tuple) else (m.scale_factor,)
    if None in scale or any(s != int(s) for s in scale):
        raise ValueError(f"takes a scale_factor that is an integer, got {m.scale_factor}")
    return cl.Upsample(tuple(map(int, scale)) if len(scale) > 1 else int(scale[0]))


def upsampled(f: Any) -> nn.Module:
    return nn.Upsample(scale_factor=f.scale[0] if len({*f.scale}) == 1 else f.scale)


PADS = {
    "zero": (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    "reflect": (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    "replicate": (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
}


def pad(mode: str) -> Callable[[Any], Function]:
    """PyTorch's widths begin with the last axis."""
    return lambda m: cl.Pad([m.padding[i : i + 2] for i in range(0, len(m.padding), 2)][::-1], mode)


def padded(f: Any) -> nn.Module:
    if isinstance(f.widths, int) or len(f.widths) > 3:
        raise ValueError("is not for 1, 2 or 3 axes: give a pair of widths for each")
    return PADS[f.mode][len(f.widths) - 1]([n for pair in f.widths[::-1] for n in pair])


def global_pool(kind: type[Function], axes: int) -> Callable[[Any], Function]:
    """An adaptive pool to one element, which keeps the axes."""

    def to_ours(m: Any) -> Function:
        size = m.output_size if isinstance(m.output_size, tuple) else (m.output_size,)
        if {*size} != {1} or getattr(m, "return_indices", False):
            raise ValueError(f"takes output_size=1 and return_indices=False, got {m.output_size}")
        return cl.Model([kind(), cl.Reshape((-1, *[1] * axes))])

    return to_ours


def reshape(m: Any) -> Function:
    size = [operator.index(n) for n in m.unflattened_size]
    if m.dim != 1 or min(size, default=0) < 0:
        raise ValueError(f"takes dim=1 and lengths that are known, got {m.dim} and {m.unflattened_size}")
    return cl.Reshape(size)


def positions(f: Any) -> nn.Module:
    return modules.PositionalEncoding(f.size, f.max_length, f.table("float64"))


def parallel(f: Any, *parts: nn.Module) -> nn.Module:
    return modules.Parallel(parts, f.concatenate.axis)


def columns(f: cl.Columns) -> nn.Module:
    sizes = [embedding.size for embedding in f.embeddings]
    return modules.Columns({**f.arguments(), "gaps": f.gaps.tolist()}, *_of_table(f), sizes)


def splines(f: cl.Splines) -> nn.Module:
    return modules.Splines(f.arguments(), *_of_table(f), f.size)


def _of_table(f: cl.Columns) -> tuple[dict[str, np.ndarray], list[int]]:
    """The buffers, and the numbers of codes of each category."""
    buffers = {name: array for name, array in f.buffers().items() if "." not in name}
    return buffers, [len(names) + 2 for names in f.categories.values()]


def places_of_columns(f: cl.Columns) -> Places:
    embeddings = [f"embeddings.{i}.weight" for i in range(len(f.embeddings))]
    return {name: name for name in ("center", "scale", "edges", *embeddings)}


def of_table(ours: type[cl.Columns]) -> Callable[[Any], Function]:
    """Make the Function of a module again, from its arguments."""
    return lambda m: ours(**{name: value for name, value in m._columns.items() if name != "gaps"})


def positional_encoding(m: Any) -> Function:
    return cl.PositionalEncoding(m.size, m.max_length)


def attention(m: Any) -> Function:
    causal, bias = getattr(m, "causal", False), m.in_proj_bias is not None
    return cl.MultiHeadAttention(m.embed_dim, m.num_heads, causal, m.dropout, bias)


def self_attention(f: Any) -> nn.Module:
    return _causal(f, modules.SelfAttention(f.size, f.heads, f.dropout, f.bias, batch_first=True))


def block(m: Any) -> Function:
    options = getattr(m, "causal", False), m.dropout1.p, m.linear1.bias is not None
    return cl.TransformerBlock(m.self_attn.embed_dim, m.self_attn.num_heads, m.linear1.out_features, *options)


def encoder_layer(f: Any) -> nn.Module:
    """PyTorch drops behind the activation, too. Here it does not."""
    options = {"activation": "gelu", "batch_first": True, "norm_first": True, "bias": f.bias}
    m = modules.TransformerBlock(f.size, f.heads, f.hidden, f.dropout, **options)
    m.dropout.p = 0.0
    return _causal(f, m)


def _causal(f: Any, m: Any) -> nn.Module:
    if f.rotary:
        raise ValueError("has rotary=True, which PyTorch's attention does not have")
    m.causal = f.causal
    return m


def projections(prefix: str, own: str) -> dict[str, str]:
    """PyTorch has the weights of query, key and value in one array."""
    return {
        f"{prefix}in_proj_weight": " ".join(f"{own}{name}.weight.T" for name in PROJECTIONS),
        f"{prefix}in_proj_bias": " ".join(f"{own}{name}.bias" for name in PROJECTIONS),
        f"{prefix}out_proj.weight": f"{own}output.weight.T",
        f"{prefix}out_proj.bias": f"{own}output.bias",
    }


CONVOLUTION = "in_channels out_channels kernel_size stride padding dilation groups bias"
MOMENTS = {**SCALED, "running_mean": "mean", "running_var": "variance"}
SPLINES = {name: name for name in ("weight", "slope", "column_scale", "bias", "center", "scale", "edges", "z")}
BLOCK = {
    **projections("self_attn.", "attention."),
    **{f"norm1.{name}": f"attention_norm.{own}" for name, own in SCALED.items()},
    **{f"norm2.{name}": f"mlp_norm.{own}" for name, own in SCALED.items()},
    "linear1.weight": "widen.weight.T",
    "linear1.bias": "widen.bias",
    "linear2.weight": "narrow.weight.T",
    "linear2.bias": "narrow.bias",
}


def sequence(m: nn.Module, *functions: Function) -> cl.Model:
    """A Model of these Functions, in the dtype of a module's parameters."""
    is_float64 = any(p.dtype == torch.float64 for p in m.parameters())
    return cl.Model(functions, dtype=np.float64 if is_float64 else np.float32)


#: If several rows have the same Function, the first one makes the module.
KINDS = [
    Kind(cl.Model, nn.Sequential, sequence, lambda f, *parts: nn.Sequential(*parts)),
    Kind(cl.Residual, modules.Residual, lambda m, f: cl.Residual(f), lambda f, part: modules.Residual(part)),
    Kind(cl.Parallel, modules.Parallel, lambda m, *fs: cl.Parallel(fs, m.axis), parallel),
    row(cl.Linear, nn.Linear, "in_features out_features bias", {"weight": "weight.T", "bias": "bias"}),
    row(cl.Embedding, nn.Embedding, "num_embeddings=count embedding_dim=size sparse", {"weight": "weight"}),
    row(cl.Conv1d, nn.Conv1d, CONVOLUTION, SAME),
    row(cl.Conv2d, nn.Conv2d, CONVOLUTION, SAME),
    row(cl.ConvTranspose1d, nn.ConvTranspose1d, f"{CONVOLUTION} output_padding", SAME),
    row(cl.ConvTranspose2d, nn.ConvTranspose2d, f"{CONVOLUTION} output_padding", SAME),
    row(cl.MaxPool1d, nn.MaxPool1d, "kernel_size stride padding ceil_mode=ceil"),
    row(cl.MaxPool2d, nn.MaxPool2d, "kernel_size stride padding ceil_mode=ceil"),
    row(cl.AvgPool1d, nn.AvgPool1d, "kernel_size stride padding"),
    row(cl.AvgPool2d, nn.AvgPool2d, "kernel_size stride padding"),
    row(cl.GlobalAvgPool, modules.GlobalAvgPool),
    row(cl.GlobalMaxPool, modules.GlobalMaxPool),
    Kind(None, nn.AdaptiveAvgPool1d, global_pool(cl.GlobalAvgPool, 1)),
    Kind(None, nn.AdaptiveAvgPool2d, global_pool(cl.GlobalAvgPool, 2)),
    Kind(None, nn.AdaptiveAvgPool3d, global_pool(cl.GlobalAvgPool, 3)),
    Kind(None, nn.AdaptiveMaxPool1d, global_pool(cl.GlobalMaxPool, 1)),
    Kind(None, nn.AdaptiveMaxPool2d, global_pool(cl.GlobalMaxPool, 2)),
    Kind(None, nn.AdaptiveMaxPool3d, global_pool(cl.GlobalMaxPool, 3)),
    Kind(cl.Upsample, nn.Upsample, upsample, upsampled),
    batch_norm(modules.BatchNorm),
    batch_norm(nn.BatchNorm1d),
    batch_norm(nn.BatchNorm2d),
    batch_norm(nn.BatchNorm3d),
    row(cl.InstanceNorm, modules.InstanceNorm, "num_features=channels eps", SCALED, affine=True),
    row(cl.InstanceNorm, nn.InstanceNorm1d, "num_features=channels eps", SCALED, affine=True),
    row(cl.InstanceNorm, nn.InstanceNorm2d, "num_features=channels eps", SCALED, affine=True),
    row(cl.InstanceNorm, nn.InstanceNorm3d, "num_features=channels eps", SCALED, affine=True),
    row(cl.LayerNorm, nn.LayerNorm, "normalized_shape=features eps bias", SCALED),
    row(cl.RMSNorm, nn.RMSNorm, "normalized_shape=features eps", {"weight": "scale"}),
    row(cl.GroupNorm, nn.GroupNorm, "num_groups=groups num_channels=channels eps", SCALED),
    row(cl.ReLU, nn.ReLU),
    row(cl.LeakyReLU, nn.LeakyReLU, "negative_slope=slope"),
    row(cl.PReLU, nn.PReLU, "num_parameters=channels", {"weight": "slope"}),
    row(cl.ELU, nn.ELU, "alpha"),
    Kind(cl.GELU, nn.GELU, gelu, lambda f: nn.GELU("tanh" if f.approximate else "none")),
    row(cl.SiLU, nn.SiLU),
    row(cl.Mish, nn.Mish),
    row(cl.Tanh, nn.Tanh),
    row(cl.Sigmoid, nn.Sigmoid),
    Kind(cl.Softplus, nn.Softplus, softplus, lambda f: nn.Softplus(threshold=40)),
    along_axis(cl.Softmax, nn.Softmax),
    along_axis(cl.LogSoftmax, nn.LogSoftmax),
    Kind(None, nn.Softmax2d, lambda m: cl.Softmax(-3)),
    row(cl.Dropout, nn.Dropout, "p"),
    row(cl.Flatten, nn.Flatten),
    row(cl.Reshape, modules.Reshape, "shape"),
    Kind(None, nn.Unflatten, reshape),
    Kind(None, nn.Identity, lambda m: cl.Model()),
    *[Kind(cl.Pad, theirs, pad(mode), padded) for mode, classes in PADS.items() for theirs in classes],
    *[Kind(cl.Pad, theirs, pad("zero"), padded) for theirs in (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)],
    recurrent(cl.RNN, modules.RNN),
    recurrent(cl.GRU, modules.GRU),
    recurrent(cl.LSTM, modules.LSTM),
    recurrent(cl.RNN, nn.RNN),
    recurrent(cl.GRU, nn.GRU),
    recurrent(cl.LSTM, nn.LSTM),
    Kind(cl.Columns, modules.Columns, of_table(cl.Columns), columns, places_of_columns),
    Kind(cl.Splines, modules.Splines, of_table(cl.Splines), splines, SPLINES),
    Kind(cl.PositionalEncoding, modules.PositionalEncoding, positional_encoding, positions),
    Kind(cl.MultiHeadAttention, modules.SelfAttention, attention, self_attention, projections("", "")),
    Kind(cl.MultiHeadAttention, nn.MultiheadAttention, attention, self_attention, projections("", "")),
    Kind(cl.TransformerBlock, modules.TransformerBlock, block, encoder_layer, BLOCK),
    Kind(cl.TransformerBlock, nn.TransformerEncoderLayer, block, encoder_layer, BLOCK),
]

OF_OURS: dict[type, Kind] = {kind.ours: kind for kind in reversed(KINDS) if kind.ours is not None}
OF_THEIRS: dict[type, Kind] = {kind.theirs: kind for kind in KINDS}


def parts_of(nest: Any) -> dict[str, Any]:
    """The parts of a sequence, a Residual or a Parallel of either side, by name. They have the same order in both."""
    if isinstance(nest, nn.Sequential):
        return dict(nest._modules)
    if isinstance(nest, cl.Model) and nest.is_sequence():
        return {str(i): function for i, function in enumerate(nest.functions)}
    if isinstance(nest, cl.Residual | modules.Residual):
        return {"function": nest.function}
    if isinstance(nest, cl.Parallel | modules.Parallel):
        return {f"functions.{i}": function for i, function in enumerate(nest.functions)}
    return {}
