"""PyTorch's own database of modules, with what its tests give them: caffelite takes most of it, and nothing is wrong.

The database has samples for each module: what it is made with, and an input. The counterparts here are of layers of one
input, with the same weights. A counterpart refuses an option that caffelite does not have, such as an adaptive pool to
more than one number. An image or a series without an axis of rows is a batch of one.
"""

import collections
import contextlib
import importlib
import math
import sys
import types
import unittest
import warnings

import numpy as np
import pytest

import caffelite as cl
from tests.cases import both_dtypes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

TOLERANCE = {np.float32: 1e-4, np.float64: 1e-9}
EXPECTED_SHARE = 0.75  # of the samples that are taken


class UnsupportedOption(ValueError):
    """An option that caffelite does not have."""


def require(*conditions):
    if not all(conditions):
        raise UnsupportedOption


def set_parameters(layer, module, *names):
    """Return a layer with a module's weight and bias, if there are any, as its parameters of these names."""
    for name, theirs in zip(names, (module.weight, getattr(module, "bias", None)), strict=False):
        if theirs is not None:
            getattr(layer, name).data = theirs.detach().numpy().reshape(getattr(layer, name).shape)
    return layer


def numbers(value):
    return list(value) if isinstance(value, tuple) else value


def linear(m):
    layer = cl.Linear(m.in_features, m.out_features, bias=m.bias is not None)
    layer.weight.data = m.weight.detach().numpy().T
    if m.bias is not None:
        layer.bias.data = m.bias.detach().numpy()
    return layer


def embedding(m):
    require(m.padding_idx is None, m.max_norm is None, not m.scale_grad_by_freq)
    return set_parameters(cl.Embedding(m.num_embeddings, m.embedding_dim), m, "weight")


def convolution(kind):
    def make(m):
        require(m.padding_mode == "zeros")
        sizes = map(numbers, (m.kernel_size, m.stride, m.padding, m.dilation))
        layer = kind(m.in_channels, m.out_channels, *sizes, m.groups, bias=m.bias is not None)
        return set_parameters(layer, m, "weight", "bias")

    return make


def transposed_convolution(kind):
    def make(m):
        require(m.padding_mode == "zeros")
        sizes = map(numbers, (m.kernel_size, m.stride, m.padding, m.output_padding))
        layer = kind(m.in_channels, m.out_channels, *sizes, m.groups, m.bias is not None, numbers(m.dilation))
        return set_parameters(layer, m, "weight", "bias")

    return make


def batch_norm(m):
    require(m.momentum is not None)
    layer = set_parameters(cl.BatchNorm(m.num_features, m.momentum, m.eps), m, "scale", "shift")
    if m.track_running_stats:
        layer.mean[:], layer.variance[:] = m.running_mean.numpy(), m.running_var.numpy()
    return layer


def instance_norm(m):
    require(m.training or not m.track_running_stats)
    return set_parameters(cl.InstanceNorm(m.num_features, m.eps), m, "scale", "shift")


def over_features(layer, m):
    """Return the layer; for features along several axes, a model that puts them on one axis and back."""
    shape = m.normalized_shape
    return layer if len(shape) == 1 else cl.Model([cl.Flatten(), layer, cl.Reshape(shape)])


def layer_norm(m):
    layer = cl.LayerNorm(math.prod(m.normalized_shape), m.eps, bias=m.bias is not None)
    return over_features(set_parameters(layer, m, "scale", "shift"), m)


def rms_norm(m):
    return over_features(set_parameters(cl.RMSNorm(math.prod(m.normalized_shape), m.eps), m, "scale"), m)


def group_norm(m):
    return set_parameters(cl.GroupNorm(m.num_groups, m.num_channels, m.eps), m, "scale", "shift")


def softplus(m):
    require(m.beta == 1, m.threshold >= 20)
    return cl.Softplus()


def max_pool(kind):
    def make(m):
        require(m.dilation in (1, (1,), (1, 1)), not m.return_indices)
        return kind(*map(numbers, (m.kernel_size, m.stride, m.padding)), ceil=m.ceil_mode)

    return make


def average_pool(kind):
    def make(m):
        pads = m.padding not in (0, (0,), (0, 0))
        require(not m.ceil_mode, m.count_include_pad or not pads, not getattr(m, "divisor_override", None))
        return kind(*map(numbers, (m.kernel_size, m.stride, m.padding)))

    return make


def global_pool(kind):
    def make(m):
        require({m.output_size} <= {1, (1,), (1, 1), (1, 1, 1)}, not getattr(m, "return_indices", False))
        return kind()

    return make


def pad(mode):
    def make(m):
        require(getattr(m, "value", 0) == 0)
        pairs = [m.padding[i : i + 2] for i in range(0, len(m.padding), 2)]
        return cl.Pad(tuple(pairs[::-1]), mode=mode)

    return make


def counterparts():
    """Return a function for each class of PyTorch, from a module to the layer that does the same."""
    found = {
        "Linear": linear,
        "Embedding": embedding,
        "LayerNorm": layer_norm,
        "GroupNorm": group_norm,
        "ReLU": lambda m: cl.ReLU(),
        "ELU": lambda m: cl.ELU(m.alpha),
        "LeakyReLU": lambda m: cl.LeakyReLU(m.negative_slope),
        "GELU": lambda m: cl.GELU(m.approximate == "tanh"),
        "SiLU": lambda m: cl.SiLU(),
        "Mish": lambda m: cl.Mish(),
        "Tanh": lambda m: cl.Tanh(),
        "Sigmoid": lambda m: cl.Sigmoid(),
        "Softplus": softplus,
        "Softmax": lambda m: cl.Softmax(m.dim),
        "LogSoftmax": lambda m: cl.LogSoftmax(m.dim),
        "Softmax2d": lambda m: cl.Softmax(-3),
        "PReLU": lambda m: set_parameters(cl.PReLU(m.num_parameters), m, "slope"),
        "RMSNorm": rms_norm,
    }
    for axes in (1, 2, 3):
        found |= {f"BatchNorm{axes}d": batch_norm, f"InstanceNorm{axes}d": instance_norm}
        found |= {f"AdaptiveAvgPool{axes}d": global_pool(cl.GlobalAvgPool)}
        found |= {f"AdaptiveMaxPool{axes}d": global_pool(cl.GlobalMaxPool)}
        if hasattr(cl, "Pad"):
            found |= {f"ZeroPad{axes}d": pad("zero"), f"ConstantPad{axes}d": pad("zero")}
            found |= {f"ReflectionPad{axes}d": pad("reflect"), f"ReplicationPad{axes}d": pad("replicate")}
    for axes in (1, 2):
        found[f"Conv{axes}d"] = convolution(getattr(cl, f"Conv{axes}d"))
        found[f"ConvTranspose{axes}d"] = transposed_convolution(getattr(cl, f"ConvTranspose{axes}d"))
        found[f"MaxPool{axes}d"] = max_pool(getattr(cl, f"MaxPool{axes}d"))
        found[f"AvgPool{axes}d"] = average_pool(getattr(cl, f"AvgPool{axes}d"))
    return found


def database(monkeypatch):
    """PyTorch's database. It imports a package that PyTorch's own tests need, and of which nothing is used here."""
    if importlib.util.find_spec("expecttest") is None:
        expecttest = types.ModuleType("expecttest")
        expecttest.TestCase = unittest.TestCase
        monkeypatch.setitem(sys.modules, "expecttest", expecttest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("torch.testing._internal.common_modules").module_db


def samples(info, dtype, training):
    """Modules and their inputs."""
    torch.manual_seed(0)
    kind = torch.float32 if dtype is np.float32 else torch.float64
    for sample in info.module_inputs_func(info, device="cpu", dtype=kind, requires_grad=True, training=training):
        made, given = sample.constructor_input, sample.forward_input
        x, *_ = *given.args, *given.kwargs.values()
        yield info.module_cls(*made.args, **made.kwargs).to(kind).train(training), x


def mine(layer, x, dy, dtype, training, adds_rows):
    """Return the output, and the gradients of the input and of the parameters."""
    cl.Model([layer], dtype=dtype)
    x, dy = (x[None], None if dy is None else dy[None]) if adds_rows else (x, dy)
    with contextlib.nullcontext() if training else cl.inference():
        y = layer.forward(x)
        dx = None if dy is None else layer.backward(np.ascontiguousarray(dy.reshape(y.shape)))
    y, dx = (y[0], None if dx is None else dx[0]) if adds_rows else (y, dx)
    return y, dx, [p.grad for p in layer.parameters()]


def theirs(module, x):
    """Return the output, a gradient for it, and the gradients of the input and of the parameters."""
    y = module(x)
    dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    y.backward(dy)
    gradients = [p.grad.numpy() for p in module.parameters()]
    return y.detach().numpy(), dy.numpy(), None if x.grad is None else x.grad.numpy(), gradients


def has_no_rows(info, x):
    """Whether features have no axis of rows; or images, series and volumes none before that of their channels."""
    name = info.module_cls.__name__
    if name == "Linear":
        return x.ndim == 1
    return name[-1] == "d" and name[-2].isdigit() and not name.startswith("BatchNorm") and x.ndim == 1 + int(name[-2])


def check(info, make, module, x, dtype):
    """AssertionError unless the counterpart gives what the module gives. False if it refuses."""
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    training = module.training or not getattr(module, "track_running_stats", True)  # the batch's own moments
    try:
        layer = make(module)
        y, dy, dx, gradients = theirs(module, x)
        found = mine(layer, x.detach().numpy(), dy, dtype, training, has_no_rows(info, x))
    except (UnsupportedOption, ValueError, TypeError):
        return False
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(found[0].reshape(y.shape), y, tolerance, tolerance)
    if dx is not None:
        np.testing.assert_allclose(found[1], dx, tolerance, tolerance)
    for p, own in zip(gradients, found[2], strict=False):  # layers have a scale of ones where the module has none
        own = own.T if isinstance(layer, cl.Linear) else own.reshape(p.shape)
        np.testing.assert_allclose(own, p, tolerance, tolerance)
    if isinstance(layer, cl.BatchNorm) and module.track_running_stats:
        np.testing.assert_allclose(layer.mean, module.running_mean, tolerance, tolerance)
        np.testing.assert_allclose(layer.variance, module.running_var, tolerance, tolerance)
    return True


@both_dtypes
@pytest.mark.parametrize("training", [True, False])
def test_modules_of_pytorchs_database_have_counterparts_that_give_their_numbers(dtype, training, monkeypatch):
    known, taken, refused = counterparts(), [], []
    for info in database(monkeypatch):
        make = known.pop(info.module_cls.__name__, None)
        for module, x in samples(info, dtype, training) if make else ():
            accepted = check(info, make, module, x, dtype)
            (taken if accepted else refused).append(f"{module} of {tuple(x.shape)}")
    assert not known
    share = len(taken) / (len(taken) + len(refused))
    assert share >= EXPECTED_SHARE, f"{share:.0%} of the samples are taken; refused are {', '.join(refused)}"


@both_dtypes
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_models_of_pytorchs_modules_give_their_numbers_or_raise(dtype, training, monkeypatch):
    from_torch = importlib.import_module("caffelite.pytorch").from_torch
    taken, refused = collections.Counter(), collections.Counter()
    for info in database(monkeypatch):
        for module, x in samples(info, dtype, training):
            try:
                model = cl.Model([from_torch(module)], dtype=dtype)
                found = mine(model, x.detach().numpy(), None, dtype, training, has_no_rows(info, x))[0]
            except (ValueError, TypeError):
                refused[info.module_cls] += 1
                continue
            taken[info.module_cls] += 1
            expected = module(x, x, x) if info.module_cls is torch.nn.MultiheadAttention else module(x)
            expected = expected[0] if isinstance(expected, tuple) else expected
            np.testing.assert_allclose(found, expected.detach().numpy(), TOLERANCE[dtype], TOLERANCE[dtype])
    assert taken.total() >= 100
    assert refused.total() >= 1000
