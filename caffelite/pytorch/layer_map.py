"""The layers that caffelite and PyTorch both have: `LAYER_PAIRS`, a row for each.

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

ArrayNames = Mapping[str, str]  # PyTorch's names of arrays, and where these are in a Function
SAME = {"weight": "weight", "bias": "bias"}
SCALED = {"weight": "scale", "bias": "shift"}
PROJECTIONS = ("query", "key", "value")


class LayerPair(NamedTuple):
    """A kind of layer. Without `function_class`, it is only read: the Function is a composition of others.

    `to_function` gets the module, and `to_module` the Function. If it is a nest, its parts follow, already made.
    """

    function_class: type[Function] | None
    module_class: type[nn.Module]
    to_function: Callable[..., Function]
    to_module: Callable[..., nn.Module] | None = None
    array_names: ArrayNames | Callable[[Any], ArrayNames] = MappingProxyType({})

    def find_array_names(self, function: Function) -> ArrayNames:
        return self.array_names(function) if callable(self.array_names) else self.array_names


def pair_layers(
    function_class: type[Function],
    module_class: Any,
    options: str = "",
    array_names: ArrayNames = MappingProxyType({}),
    **fixed: Any,
) -> LayerPair:
    """Return a kind whose two classes take options alike; `fixed` ones are PyTorch's."""
    name_pairs = [(option.partition("=")[0], option.rpartition("=")[2]) for option in options.split()]
    return LayerPair(
        function_class,
        module_class,
        lambda m: function_class(**{name: get_option(m, torch_name) for torch_name, name in name_pairs}),
        lambda f: module_class(**{torch_name: get_option(f, name) for torch_name, name in name_pairs}, **fixed),
        array_names,
    )


def get_option(layer: Any, name: str) -> Any:
    """Return an argument that a layer was made with: for `bias`, whether it has one; for a tuple of one, the number."""
    value = layer.arguments()[name] if isinstance(layer, Function) else getattr(layer, name)
    if name == "bias":
        return value is not None and value is not False
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def pair_recurrent(function_class: Any, module_class: Any) -> LayerPair:
    """Return a row for recurrent layers. PyTorch's constructor warns of dropout in one layer, so it is set later."""

    def to_function(m: Any) -> Function:
        options = {"layers": m.num_layers, "dropout": m.dropout, "bidirectional": m.bidirectional}
        return function_class(m.input_size, m.hidden_size, getattr(m, "sequences", True), **options)

    def to_module(f: Any) -> nn.Module:
        m = module_class(f.in_features, f.hidden, f.layers, bidirectional=f.bidirectional, batch_first=True)
        m.dropout, m.sequences = f.dropout, f.sequences
        return m

    return LayerPair(function_class, module_class, to_function, to_module, recurrent_names)


def recurrent_names(f: Any) -> ArrayNames:
    """PyTorch numbers the first layer, too: `weight_ih_l0_reverse`."""
    return {re.sub(r"^(\w+_[ih]h)(_reverse)?$", r"\1_l0\2", name): name for name in f.named_parameters()}


def pair_batch_norm(module_class: Any) -> LayerPair:
    """Return a row for batch normalization. Frozen in training mode, PyTorch's goes on with its moments."""
    pair = pair_layers(cl.BatchNorm, module_class, "num_features=features momentum eps", MOMENTS)

    def to_function(m: Any) -> Function:
        if m.momentum is None:
            raise ValueError("momentum=None can't be kept; caffelite takes a number")
        is_frozen = m.affine and not any(p.requires_grad for p in m.parameters())
        if is_frozen and m.training and module_class is not modules.BatchNorm:
            raise ValueError("is frozen, but still takes the moments of each batch: call its eval()")
        return pair.to_function(m)

    return pair._replace(to_function=to_function)


def pair_softmax(function_class: Any, module_class: Any) -> LayerPair:
    """Return a row for a softmax. Without `dim`, PyTorch guesses the axis from the input."""

    def to_function(m: Any) -> Function:
        if m.dim is None:
            raise ValueError("dim=None can't be kept; caffelite takes a number")
        return function_class(m.dim)

    return LayerPair(function_class, module_class, to_function, lambda f: module_class(f.axis))


def make_softplus(m: Any) -> Function:
    if m.beta != 1 or m.threshold < 20:
        raise ValueError(f"takes beta=1 and threshold=20 or more, got {m.beta} and {m.threshold}")
    return cl.Softplus()


def make_upsample(m: Any) -> Function:
    scale = m.scale_factor if isinstance(m.scale_factor, tuple) else (m.scale_factor,)
    if None in scale or any(s != int(s) for s in scale):
        raise ValueError(f"takes a scale_factor that is an integer, got {m.scale_factor}")
    return cl.Upsample(tuple(map(int, scale)) if len(scale) > 1 else int(scale[0]))


PADDING_CLASSES = {
    "zero": (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    "reflect": (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    "replicate": (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
}


def make_pad(mode: str) -> Callable[[Any], Function]:
    """PyTorch's widths begin with the last axis."""
    return lambda m: cl.Pad([m.padding[i : i + 2] for i in range(0, len(m.padding), 2)][::-1], mode)


def make_pad_module(f: Any) -> nn.Module:
    if isinstance(f.widths, int) or len(f.widths) > 3:
        raise ValueError("is not for 1, 2 or 3 axes: give a pair of widths for each")
    return PADDING_CLASSES[f.mode][len(f.widths) - 1]([n for pair in f.widths[::-1] for n in pair])


def make_global_pool(kind: type[Function], axes: int) -> Callable[[Any], Function]:
    """Return an adaptive pool to one element, which keeps the axes."""

    def to_function(m: Any) -> Function:
        size = m.output_size if isinstance(m.output_size, tuple) else (m.output_size,)
        if {*size} != {1} or getattr(m, "return_indices", False):
            raise ValueError(f"takes output_size=1 and return_indices=False, got {m.output_size}")
        return cl.Model([kind(), cl.Reshape((-1, *[1] * axes))])

    return to_function


def make_reshape(m: Any) -> Function:
    size = [operator.index(n) for n in m.unflattened_size]
    if m.dim != 1 or min(size, default=0) < 0:
        raise ValueError(f"takes dim=1 and lengths that are known, got {m.dim} and {m.unflattened_size}")
    return cl.Reshape(size)


def make_columns_module(f: cl.Columns) -> nn.Module:
    sizes = [embedding.size for embedding in f.embeddings]
    return modules.Columns({**f.arguments(), "gaps": f.gaps.tolist()}, *_table_state(f), sizes)


def make_splines_module(f: cl.Splines) -> nn.Module:
    return modules.Splines(f.arguments(), *_table_state(f), f.size)


def _table_state(f: cl.Columns) -> tuple[dict[str, np.ndarray], list[int]]:
    """Return the buffers, and the numbers of codes of each category."""
    buffers = {name: array for name, array in f.buffers().items() if "." not in name}
    return buffers, [len(names) + 2 for names in f.categories.values()]


def columns_names(f: cl.Columns) -> ArrayNames:
    embeddings = [f"embeddings.{i}.weight" for i in range(len(f.embeddings))]
    return {name: name for name in ("center", "scale", "edges", *embeddings)}


def make_table_function(function_class: type[cl.Columns]) -> Callable[[Any], Function]:
    """Make the Function of a module again, from its arguments."""
    return lambda m: function_class(**{name: value for name, value in m._columns.items() if name != "gaps"})


def make_attention(m: Any) -> Function:
    causal, bias = getattr(m, "causal", False), m.in_proj_bias is not None
    return cl.MultiHeadAttention(m.embed_dim, m.num_heads, causal, m.dropout, bias)


def make_attention_module(f: Any) -> nn.Module:
    if f.heads * f.head_size != f.size:
        size = f.size / f.heads
        raise ValueError(f"has key_dim={f.key_dim}, and PyTorch's heads have size / heads = {size:g} numbers")
    return _set_causal(f, modules.SelfAttention(f.size, f.heads, f.dropout, f.bias, batch_first=True))


def make_block(m: Any) -> Function:
    options = getattr(m, "causal", False), m.dropout1.p, m.linear1.bias is not None
    return cl.TransformerBlock(m.self_attn.embed_dim, m.self_attn.num_heads, m.linear1.out_features, *options)


def make_block_module(f: Any) -> nn.Module:
    """PyTorch drops behind the activation, too. Here it does not."""
    options = {"activation": "gelu", "batch_first": True, "norm_first": True, "bias": f.bias}
    m = modules.TransformerBlock(f.size, f.heads, f.hidden, f.dropout, **options)
    m.dropout.p = 0.0
    return _set_causal(f, m)


def _set_causal(f: Any, m: Any) -> nn.Module:
    if f.rotary:
        raise ValueError("has rotary=True, which PyTorch's attention does not have")
    m.causal = f.causal
    return m


def projections(torch_prefix: str, function_prefix: str) -> dict[str, str]:
    """PyTorch has the weights of query, key and value in one array."""
    return {
        f"{torch_prefix}in_proj_weight": " ".join(f"{function_prefix}{name}.weight.T" for name in PROJECTIONS),
        f"{torch_prefix}in_proj_bias": " ".join(f"{function_prefix}{name}.bias" for name in PROJECTIONS),
        f"{torch_prefix}out_proj.weight": f"{function_prefix}output.weight.T",
        f"{torch_prefix}out_proj.bias": f"{function_prefix}output.bias",
    }


def pair_transposed_convolutions(function_class: Any, module_class: Any) -> LayerPair:
    """Return a row for transposed convolutions. PyTorch's padding is numbers."""

    def to_module(f: Any) -> nn.Module:
        padding, extra = [before for before, _ in f.crops()], [before - behind for before, behind in f.crops()]
        if min(extra) < 0:
            raise ValueError("cuts one pixel more behind than before, and PyTorch's padding is the same on both sides")
        sizes = f.in_channels, f.out_channels, f.kernel_size, f.stride, padding, extra
        return module_class(*sizes, f.groups, f.bias is not None, f.dilation)

    pair = pair_layers(function_class, module_class, f"{CONVOLUTION} output_padding", SAME)
    return pair._replace(to_module=to_module)


CONVOLUTION = "in_channels out_channels kernel_size stride padding dilation groups bias"
MOMENTS = {**SCALED, "running_mean": "mean", "running_var": "variance"}
SPLINES = {name: name for name in ("weight", "slope", "column_scale", "bias", "center", "scale", "edges", "z")}
BLOCK = {
    **projections("self_attn.", "attention."),
    **{f"norm1.{name}": f"attention_norm.{attribute}" for name, attribute in SCALED.items()},
    **{f"norm2.{name}": f"mlp_norm.{attribute}" for name, attribute in SCALED.items()},
    "linear1.weight": "widen.weight.T",
    "linear1.bias": "widen.bias",
    "linear2.weight": "narrow.weight.T",
    "linear2.bias": "narrow.bias",
}


def make_sequence(m: nn.Module, *functions: Function) -> cl.Model:
    """Return a Model of these Functions, in the dtype of a module's parameters."""
    is_float64 = any(p.dtype == torch.float64 for p in m.parameters())
    return cl.Model(functions, dtype=np.float64 if is_float64 else np.float32)


#: If several rows have the same Function, the first one makes the module.
LAYER_PAIRS = [
    LayerPair(cl.Model, nn.Sequential, make_sequence, lambda f, *parts: nn.Sequential(*parts)),
    LayerPair(cl.Residual, modules.Residual, lambda m, f: cl.Residual(f), lambda f, part: modules.Residual(part)),
    LayerPair(
        *(cl.Parallel, modules.Parallel, lambda m, *functions: cl.Parallel(functions, m.axis)),
        lambda f, *parts: modules.Parallel(parts, f.concatenate.axis),
    ),
    pair_layers(cl.Linear, nn.Linear, "in_features out_features bias", {"weight": "weight.T", "bias": "bias"}),
    pair_layers(cl.Embedding, nn.Embedding, "num_embeddings=count embedding_dim=size sparse", {"weight": "weight"}),
    pair_layers(cl.Conv1d, nn.Conv1d, CONVOLUTION, SAME),
    pair_layers(cl.Conv2d, nn.Conv2d, CONVOLUTION, SAME),
    pair_transposed_convolutions(cl.ConvTranspose1d, nn.ConvTranspose1d),
    pair_transposed_convolutions(cl.ConvTranspose2d, nn.ConvTranspose2d),
    pair_layers(cl.MaxPool1d, nn.MaxPool1d, "kernel_size stride padding ceil_mode=ceil"),
    pair_layers(cl.MaxPool2d, nn.MaxPool2d, "kernel_size stride padding ceil_mode=ceil"),
    pair_layers(cl.AvgPool1d, nn.AvgPool1d, "kernel_size stride padding"),
    pair_layers(cl.AvgPool2d, nn.AvgPool2d, "kernel_size stride padding"),
    pair_layers(cl.GlobalAvgPool, modules.GlobalAvgPool, "axis"),
    pair_layers(cl.GlobalMaxPool, modules.GlobalMaxPool, "axis"),
    LayerPair(None, nn.AdaptiveAvgPool1d, make_global_pool(cl.GlobalAvgPool, 1)),
    LayerPair(None, nn.AdaptiveAvgPool2d, make_global_pool(cl.GlobalAvgPool, 2)),
    LayerPair(None, nn.AdaptiveAvgPool3d, make_global_pool(cl.GlobalAvgPool, 3)),
    LayerPair(None, nn.AdaptiveMaxPool1d, make_global_pool(cl.GlobalMaxPool, 1)),
    LayerPair(None, nn.AdaptiveMaxPool2d, make_global_pool(cl.GlobalMaxPool, 2)),
    LayerPair(None, nn.AdaptiveMaxPool3d, make_global_pool(cl.GlobalMaxPool, 3)),
    LayerPair(
        *(cl.Upsample, nn.Upsample, make_upsample),
        lambda f: nn.Upsample(scale_factor=f.scale[0] if len({*f.scale}) == 1 else f.scale),
    ),
    *map(pair_batch_norm, (modules.BatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)),
    pair_layers(cl.InstanceNorm, modules.InstanceNorm, "num_features=channels eps", SCALED, affine=True),
    pair_layers(cl.InstanceNorm, nn.InstanceNorm1d, "num_features=channels eps", SCALED, affine=True),
    pair_layers(cl.InstanceNorm, nn.InstanceNorm2d, "num_features=channels eps", SCALED, affine=True),
    pair_layers(cl.InstanceNorm, nn.InstanceNorm3d, "num_features=channels eps", SCALED, affine=True),
    pair_layers(cl.LayerNorm, nn.LayerNorm, "normalized_shape=features eps bias", SCALED),
    pair_layers(cl.RMSNorm, nn.RMSNorm, "normalized_shape=features eps elementwise_affine=scale", {"weight": "scale"}),
    pair_layers(cl.GroupNorm, nn.GroupNorm, "num_groups=groups num_channels=channels eps", SCALED),
    *map(pair_layers, (cl.ReLU, cl.SiLU, cl.Mish, cl.Tanh), (nn.ReLU, nn.SiLU, nn.Mish, nn.Tanh)),
    *map(pair_layers, (cl.Sigmoid, cl.Flatten), (nn.Sigmoid, nn.Flatten)),
    pair_layers(cl.LeakyReLU, nn.LeakyReLU, "negative_slope=slope"),
    pair_layers(cl.PReLU, nn.PReLU, "num_parameters=channels", {"weight": "slope"}),
    pair_layers(cl.ELU, nn.ELU, "alpha"),
    LayerPair(
        *(cl.GELU, nn.GELU, lambda m: cl.GELU({"none": False, "tanh": True}[m.approximate])),
        lambda f: nn.GELU("tanh" if f.approximate else "none"),
    ),
    LayerPair(cl.Softplus, nn.Softplus, make_softplus, lambda f: nn.Softplus(threshold=40)),
    pair_softmax(cl.Softmax, nn.Softmax),
    pair_softmax(cl.LogSoftmax, nn.LogSoftmax),
    LayerPair(None, nn.Softmax2d, lambda m: cl.Softmax(-3)),
    pair_layers(cl.Dropout, nn.Dropout, "p"),
    pair_layers(cl.Reshape, modules.Reshape, "shape"),
    LayerPair(None, nn.Unflatten, make_reshape),
    LayerPair(None, nn.Identity, lambda m: cl.Model()),
    *[
        LayerPair(cl.Pad, module_class, make_pad(mode), make_pad_module)
        for mode, classes in (
            *PADDING_CLASSES.items(),
            ("zero", (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)),
        )
        for module_class in classes
    ],
    *map(pair_recurrent, (cl.RNN, cl.GRU, cl.LSTM), (modules.RNN, modules.GRU, modules.LSTM)),
    *map(pair_recurrent, (cl.RNN, cl.GRU, cl.LSTM), (nn.RNN, nn.GRU, nn.LSTM)),
    LayerPair(cl.Columns, modules.Columns, make_table_function(cl.Columns), make_columns_module, columns_names),
    LayerPair(cl.Splines, modules.Splines, make_table_function(cl.Splines), make_splines_module, SPLINES),
    LayerPair(
        *(cl.PositionalEncoding, modules.PositionalEncoding, lambda m: cl.PositionalEncoding(m.size, m.max_length)),
        lambda f: modules.PositionalEncoding(f.size, f.max_length, f.table("float64")),
    ),
    LayerPair(cl.MultiHeadAttention, modules.SelfAttention, make_attention, make_attention_module, projections("", "")),
    LayerPair(cl.MultiHeadAttention, nn.MultiheadAttention, make_attention, make_attention_module, projections("", "")),
    LayerPair(cl.TransformerBlock, modules.TransformerBlock, make_block, make_block_module, BLOCK),
    LayerPair(cl.TransformerBlock, nn.TransformerEncoderLayer, make_block, make_block_module, BLOCK),
]

PAIR_BY_FUNCTION: dict[type, LayerPair] = {
    kind.function_class: kind for kind in reversed(LAYER_PAIRS) if kind.function_class is not None
}
PAIR_BY_MODULE: dict[type, LayerPair] = {kind.module_class: kind for kind in LAYER_PAIRS}


def named_parts(nest: Any) -> dict[str, Any]:
    """Return the parts of a sequence, a Residual or a Parallel of either side, by name. Both have the same order."""
    if isinstance(nest, nn.Sequential):
        return dict(nest._modules)
    if isinstance(nest, cl.Model) and nest.is_sequence():
        return {str(i): function for i, function in enumerate(nest.functions)}
    if isinstance(nest, cl.Residual | modules.Residual):
        return {"function": nest.function}
    if isinstance(nest, cl.Parallel | modules.Parallel):
        return {f"functions.{i}": function for i, function in enumerate(nest.functions)}
    return {}
