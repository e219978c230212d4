"""Every Function against its counterpart in PyTorch, where that is installed."""

import collections
import contextlib
import copy
import importlib
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from tests.cases import FAMILIES, both_dtypes, every_function, make_params

torch = pytest.importorskip("torch")
door = importlib.import_module("caffelite.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


@pytest.mark.parametrize("case", make_params("listed") + make_params("empty"))
def test_values_and_gradients_are_pytorchs(case):
    case.check_against_pytorch(torch)


@every_function
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_values_and_gradients_are_pytorchs_for_random_shapes(function, data, seed):
    FAMILIES[function].build(*data.draw(FAMILIES[function].random)).check_against_pytorch(torch, seed)


# ---- caffelite.pytorch ----------------------------------------------------------------------------------------------

KINDS = importlib.import_module("caffelite.pytorch.layer_map").LAYER_PAIRS
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}
DTYPES = {np.float32: torch.float32, np.float64: torch.float64}
nn, modules = torch.nn, importlib.import_module("caffelite.pytorch.modules")
IN_ENCODER = {"activation": "gelu", "norm_first": True, "batch_first": True}
BOTH_WAYS = {"batch_first": True, "bidirectional": True}


def drops_nothing_behind_gelu(layer):
    layer.dropout.p = 0.0
    return layer


def set_to(layer, **attributes):
    vars(layer).update(attributes)
    return layer


FRAME = {
    "x": np.array([1e9 + 1, np.nan, *(1e9 + np.arange(20.0) ** 2)]),
    "word": np.array([None, "new", *["a", "b", "c", "a"] * 5], object),
    "y": np.linspace(-3, 40, 22),
    "day": np.datetime64("2024-02-27") + np.arange(0, 22 * 40, 40),
}
SEEN = {name: column[2:] for name, column in FRAME.items()} | {"x": np.array([np.nan, *FRAME["x"][3:]])}


def table_module(kind, names, *options, **make_params):
    """Return the module of a Function that has seen some rows of a table, and the arrays of other rows."""
    function = kind({name: SEEN[name] for name in names.split()}, *options, **make_params)
    arrays = function.arrays(FRAME)
    return door.to_torch(function), arrays if len(arrays) > 1 else arrays[0]


#: For each class of PyTorch in the table: modules, and the shape of an input, or the input itself.
EXAMPLES = {
    nn.Sequential: [
        (nn.Sequential(nn.Sequential(), nn.Tanh()), (2, 3)),
        (nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh())), (2, 3)),
    ],
    modules.Residual: [(modules.Residual(nn.Linear(3, 3)), (2, 3))],
    modules.Parallel: [
        (modules.Parallel([nn.Linear(3, 2), nn.Tanh()]), (2, 3)),
        (modules.Parallel([nn.Conv1d(2, 3, 3, padding=1), nn.Tanh()], 1), (2, 2, 5)),
    ],
    nn.Linear: [(nn.Linear(3, 4), (2, 3)), (nn.Linear(3, 4, bias=False), (2, 5, 3))],
    nn.Embedding: [(nn.Embedding(7, 3), "indices")],
    nn.Conv1d: [(nn.Conv1d(4, 6, 3, 2, 1, 2, 2), (2, 4, 9)), (nn.Conv1d(4, 2, 2, padding="same"), (2, 4, 5))],
    nn.Conv2d: [
        (nn.Conv2d(2, 3, (2, 3), (2, 1), (0, 1), (1, 2), bias=False), (2, 2, 7, 8)),
        (nn.Conv2d(2, 3, 4, padding="same"), (2, 2, 5, 6)),
        (nn.Conv2d(2, 3, 2, padding="valid"), (2, 2, 5, 6)),
    ],
    nn.ConvTranspose1d: [(nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2, dilation=2), (2, 4, 5))],
    nn.ConvTranspose2d: [(nn.ConvTranspose2d(2, 3, (2, 3), 2, (0, 1), (0, 1), bias=False), (2, 2, 4, 5))],
    nn.MaxPool1d: [(nn.MaxPool1d(3, 2, 1), (2, 3, 8)), (nn.MaxPool1d(3, 2, ceil_mode=True), (2, 3, 8))],
    nn.MaxPool2d: [
        (nn.MaxPool2d(2), (2, 3, 5, 6)),
        (nn.MaxPool2d((3, 2), (2, 1), (1, 0), ceil_mode=True), (2, 3, 6, 6)),
    ],
    nn.AvgPool1d: [(nn.AvgPool1d(3, 2, 1), (2, 3, 8))],
    nn.AvgPool2d: [(nn.AvgPool2d((3, 2), None, 1), (2, 3, 7, 6))],
    modules.GlobalAvgPool: [(modules.GlobalAvgPool(), (2, 3, 4, 5)), (modules.GlobalAvgPool(1), (2, 3, 4))],
    modules.GlobalMaxPool: [(modules.GlobalMaxPool(), (2, 3, 4)), (modules.GlobalMaxPool((3, 1)), (2, 3, 4, 5))],
    nn.AdaptiveAvgPool1d: [(nn.AdaptiveAvgPool1d(1), (2, 3, 4))],
    nn.AdaptiveAvgPool2d: [(nn.AdaptiveAvgPool2d((1, 1)), (2, 3, 4, 5))],
    nn.AdaptiveAvgPool3d: [(nn.AdaptiveAvgPool3d(1), (2, 3, 4, 2, 2))],
    nn.AdaptiveMaxPool1d: [(nn.AdaptiveMaxPool1d(1), (2, 3, 4))],
    nn.AdaptiveMaxPool2d: [(nn.AdaptiveMaxPool2d(1), (2, 3, 4, 5))],
    nn.AdaptiveMaxPool3d: [(nn.AdaptiveMaxPool3d(1), (2, 3, 4, 2, 2))],
    nn.Upsample: [(nn.Upsample(scale_factor=3), (2, 3, 4)), (nn.Upsample(scale_factor=(2, 3)), (2, 3, 4, 5))],
    modules.BatchNorm: [(modules.BatchNorm(3), (4, 3)), (modules.BatchNorm(3), (4, 3, 2, 2))],
    nn.BatchNorm1d: [(nn.BatchNorm1d(3, momentum=0.3, eps=0.1), (4, 3)), (nn.BatchNorm1d(3), (4, 3, 5))],
    nn.BatchNorm2d: [(nn.BatchNorm2d(3), (4, 3, 2, 3))],
    nn.BatchNorm3d: [(nn.BatchNorm3d(3), (4, 3, 2, 3, 2))],
    modules.InstanceNorm: [(modules.InstanceNorm(3, affine=True), (4, 3, 5))],
    nn.InstanceNorm1d: [(nn.InstanceNorm1d(3, eps=0.1, affine=True), (4, 3, 5))],
    nn.InstanceNorm2d: [(nn.InstanceNorm2d(3, affine=True), (4, 3, 5, 2))],
    nn.InstanceNorm3d: [(nn.InstanceNorm3d(3, affine=True), (4, 3, 5, 2, 2))],
    nn.LayerNorm: [(nn.LayerNorm(5, 0.1), (2, 3, 5)), (nn.LayerNorm((5,), bias=False), (2, 5))],
    nn.RMSNorm: [(nn.RMSNorm(5), (2, 3, 5)), (nn.RMSNorm(5, 0.1, False), (2, 5))],
    nn.GroupNorm: [(nn.GroupNorm(2, 4, 0.1), (2, 4, 5))],
    nn.ReLU: [(nn.ReLU(), (2, 3)), (nn.ReLU(inplace=True), (2, 3))],
    nn.LeakyReLU: [(nn.LeakyReLU(0.2), (2, 3))],
    nn.PReLU: [(nn.PReLU(), (2, 3)), (nn.PReLU(3), (2, 3, 4))],
    nn.ELU: [(nn.ELU(0.7), (2, 3))],
    nn.GELU: [(nn.GELU(), (2, 3)), (nn.GELU("tanh"), (2, 3))],
    nn.SiLU: [(nn.SiLU(), (2, 3))],
    nn.Mish: [(nn.Mish(), (2, 3))],
    nn.Tanh: [(nn.Tanh(), (2, 3))],
    nn.Sigmoid: [(nn.Sigmoid(), (2, 3))],
    nn.Softplus: [(nn.Softplus(), (2, 3))],
    nn.Softmax: [(nn.Softmax(1), (2, 3, 4))],
    nn.LogSoftmax: [(nn.LogSoftmax(-1), (2, 3, 4))],
    nn.Softmax2d: [(nn.Softmax2d(), (2, 3, 4, 4))],
    nn.Dropout: [(nn.Dropout(0.0), (2, 3))],
    nn.Flatten: [(nn.Flatten(), (2, 3, 4))],
    modules.Reshape: [(modules.Reshape((2, -1)), (2, 6))],
    nn.Unflatten: [(nn.Unflatten(1, (2, 3)), (2, 6))],
    nn.Identity: [(nn.Identity(), (2, 3))],
    **{
        getattr(nn, f"{name}Pad{axes}d"): [(getattr(nn, f"{name}Pad{axes}d")((1, 2, 0, 1, 2, 2)[: 2 * axes]), shape)]
        for name in ("Zero", "Reflection", "Replication")
        for axes, shape in ((1, (2, 3, 4)), (2, (2, 3, 4, 5)), (3, (2, 3, 4, 5, 6)))
    },
    nn.ConstantPad1d: [(nn.ConstantPad1d(2, 0.0), (2, 3, 4))],
    nn.ConstantPad2d: [(nn.ConstantPad2d(2, 0.0), (2, 3, 4, 5))],
    nn.ConstantPad3d: [(nn.ConstantPad3d(2, 0.0), (2, 3, 4, 5, 6))],
    modules.Columns: [
        table_module(cl.Columns, "x word y day", 2),
        table_module(cl.Columns, "x day", robust=True, bins=3),
        table_module(cl.Columns, "word"),
    ],
    modules.Splines: [
        table_module(cl.Splines, "x word y day", 3, bins=4),
        table_module(cl.Splines, "x y", 3, bins=[0, 2]),
        table_module(cl.Splines, "word", 3),
    ],
    modules.RNN: [(modules.RNN(3, 4, **BOTH_WAYS), (2, 5, 3))],
    modules.GRU: [(set_to(modules.GRU(3, 4, **BOTH_WAYS), sequences=False), (2, 5, 3))],
    modules.LSTM: [(set_to(modules.LSTM(3, 4, 2, batch_first=True), sequences=False), (2, 5, 3))],
    nn.RNN: [(nn.RNN(3, 4, 2, batch_first=True), (2, 5, 3))],
    nn.GRU: [(nn.GRU(3, 4, 2, **BOTH_WAYS), (2, 5, 3)), (nn.GRU(3, 4, batch_first=True), (2, 5, 3))],
    nn.LSTM: [(nn.LSTM(3, 4, 2, **BOTH_WAYS), (2, 5, 3)), (nn.LSTM(3, 4, batch_first=True), (2, 5, 3))],
    modules.PositionalEncoding: [
        (modules.PositionalEncoding(4, 9, cl.PositionalEncoding(4, 9).table("float64")), (2, 5, 4))
    ],
    modules.SelfAttention: [(set_to(modules.SelfAttention(4, 2, batch_first=True), causal=True), (2, 5, 4))],
    nn.MultiheadAttention: [
        (nn.MultiheadAttention(4, 2, batch_first=True), (2, 5, 4)),
        (nn.MultiheadAttention(4, 1, bias=False, batch_first=True), (2, 5, 4)),
    ],
    modules.TransformerBlock: [
        (set_to(modules.TransformerBlock(4, 2, 7, dropout=0.0, **IN_ENCODER), causal=True), (2, 5, 4))
    ],
    nn.TransformerEncoderLayer: [
        (nn.TransformerEncoderLayer(4, 2, 7, dropout=0.0, **IN_ENCODER), (2, 5, 4)),
        (nn.TransformerEncoderLayer(4, 2, 7, dropout=0.0, bias=False, **IN_ENCODER), (2, 5, 4)),
    ],
}
every_example = pytest.mark.parametrize(
    ("module", "shape"), [pytest.param(*e, id=repr(e[0])) for examples in EXAMPLES.values() for e in examples]
)


def with_random_values(module, dtype, seed=0):
    """Return a copy of a module, in which nothing is what it begins with. PReLU is behind it if it has no dtype of its
    own.
    """
    module, generator = copy.deepcopy(module), torch.Generator().manual_seed(seed)
    if not [*module.parameters()]:
        module = nn.Sequential(module, nn.PReLU())
    module.to(DTYPES[dtype])
    for tensor in [*module.parameters(), *[b for name, b in module.named_buffers() if "running" in name]]:
        tensor.data = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) + 0.2
    return module


def random_inputs(module, shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if not isinstance(shape, str) and not all(isinstance(n, int) for n in shape):
        return shape
    return rng.integers(0, 7, (2, 5)) if shape == "indices" else rng.standard_normal(shape).astype(dtype)


def apply_module(module, x):
    """Return what a module makes of an array, the first of its outputs."""
    x = tuple(map(torch.tensor, x)) if isinstance(x, tuple) else torch.tensor(x)
    y = module(x, x, x) if type(module) is nn.MultiheadAttention else module(x)
    return y[0] if isinstance(y, tuple) else y


def assert_close(mine, theirs, dtype):
    assert mine.dtype == dtype
    assert mine.shape == theirs.shape
    scale = max(1.0, abs(theirs).max(initial=0))
    np.testing.assert_allclose(mine, theirs, 0, TOLERANCE[dtype] * scale)


def assert_same_numbers(model, module, x, dtype, trains=True):
    """Assert the same outputs in use, and the same outputs, parameters and running moments after a step of training."""
    module.eval()
    with torch.no_grad():
        assert_close(model.predict(x), apply_module(module, x).numpy(), dtype)
    if not trains:
        return
    inputs = x if isinstance(x, tuple) else (cl.Tensor(x) if x.dtype == dtype else x,)
    y, theirs = model(*inputs), apply_module(module.train(), x)
    assert_close(y.data, theirs.detach().numpy(), dtype)
    dy = np.linspace(-1, 1, y.size).reshape(y.shape).astype(dtype)
    if model.parameters():
        y.backward(dy)
        theirs.backward(torch.tensor(dy))
        cl.SGD(model.parameters(), lr=0.1).step()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
    stepped = door.from_torch(module).state_dict()
    for name, array in model.state_dict().items():
        if array.dtype == dtype:
            assert_close(array, stepped[name], dtype)


def test_every_kind_has_an_example():
    assert {kind.module_class for kind in KINDS} == EXAMPLES.keys()


@both_dtypes
@every_example
def test_a_model_of_a_module_computes_what_the_module_does(module, shape, dtype):
    module = with_random_values(module, dtype)
    assert_same_numbers(door.from_torch(module), module, random_inputs(module, shape, dtype), dtype)


@both_dtypes
@every_example
def test_a_module_of_a_model_computes_what_the_model_does_and_comes_back(module, shape, dtype):
    model = door.from_torch(with_random_values(module, dtype))
    before = torch.random.get_rng_state()
    back = door.to_torch(model)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert back.training
    again = door.from_torch(back)
    assert repr(again) == repr(model)
    assert_same_state(again, model)
    assert_same_numbers(model, back, random_inputs(module, shape, dtype), dtype)


@every_example
def test_the_state_of_a_module_alone_goes_into_a_model_of_its_structure(module, shape):
    model = door.from_torch(with_random_values(module, np.float32))
    other = with_random_values(module, np.float32, seed=1)
    door.load_state_dict(model, other.state_dict())
    assert_same_state(model, door.from_torch(other))


def assert_same_state(one, other):
    """Equal bits of all that is not a random stream."""
    found, expected = one.state_dict(), other.state_dict()
    assert found.keys() == expected.keys()
    for name in found:
        if name.rpartition(".")[2] != "random":
            assert found[name].tobytes() == expected[name].tobytes(), name


class DoubledLinear(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class DoubledConv2d(nn.Conv2d):
    def _conv_forward(self, *inputs):
        return 2 * super()._conv_forward(*inputs)


class SquareLinear(nn.Linear):
    """A class that changes nothing but how it is made."""

    def __init__(self, size):
        super().__init__(size, size)

    def extra_repr(self):
        return "of its own"


def hooked_layer():
    layer = nn.Linear(2, 3)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def hooked_parameter():
    layer = nn.Linear(2, 3)
    layer.weight.register_hook(lambda gradient: 2 * gradient)
    return layer


def with_other_forward():
    layer = nn.Linear(2, 3)
    layer.forward = lambda x: x
    return layer


def tied_net():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second)


def frozen_moments():
    return nn.BatchNorm1d(3).requires_grad_(False)


def named_parts():
    return nn.Sequential(collections.OrderedDict(conv=nn.Conv3d(1, 1, 1)))


def patch_linear1():
    layer = nn.TransformerEncoderLayer(4, 2, dropout=0.0, **IN_ENCODER)
    layer.linear1.forward = lambda x: x
    return layer


REFUSED = [
    (patch_linear1, r"2\.linear1, Linear: has a forward of its own"),
    (lambda: nn.BatchNorm1d(3).eval(), "2, BatchNorm1d: is not in the mode of the whole"),
    (lambda: nn.Dropout(0.1).eval(), "2, Dropout: is not in the mode of the whole"),
    (lambda: nn.LSTM(2, 3, 2, dropout=0.1).eval(), "2, LSTM: is not in the mode of the whole"),
    (lambda: modules.Residual(nn.ReLU(inplace=True)), "2, Residual: has a part that changes its input in place"),
    (lambda: named_parts(), r"2\.conv, Conv3d: caffelite has no such layer"),
    (lambda: nn.ModuleList([nn.ReLU()]), "2, ModuleList: caffelite has no such layer"),
    (lambda: DoubledLinear(2, 3), "2, DoubledLinear: has a forward of its own"),
    (lambda: DoubledConv2d(2, 3, 1), "2, DoubledConv2d: has a _conv_forward of its own"),
    (with_other_forward, "2, Linear: has a forward of its own"),
    (hooked_layer, "2, Linear: has hooks"),
    (hooked_parameter, "2, Linear: has hooks"),
    (lambda: nn.LazyLinear(3), "2, LazyLinear: has hooks"),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)), "2, .*: weight is missing; parametrizations"),
    (tied_net, r"2\.1, Linear: shares its weight with 2\.0\.weight"),
    (frozen_moments, "2, BatchNorm1d: is frozen, but"),
    (lambda: nn.Linear(2, 3, device="meta"), "2, Linear: weight is not a dense tensor"),
    (lambda: nn.LSTM(2, 3), "2, LSTM: batch_first=False can't be kept"),
    (lambda: nn.LSTM(2, 3, bias=False, batch_first=True), "2, LSTM: bias=False can't be kept"),
    (lambda: nn.LSTM(2, 3, proj_size=2, batch_first=True), "2, LSTM: proj_size=2 can't be kept"),
    (lambda: nn.RNN(2, 3, nonlinearity="relu", batch_first=True), "2, RNN: nonlinearity='relu' can't be kept"),
    (lambda: nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), "2, Conv2d: padding_mode='reflect' can't be kept"),
    (lambda: nn.MaxPool2d(2, dilation=2), "2, MaxPool2d: dilation=2 can't be kept"),
    (lambda: nn.AvgPool2d(2, ceil_mode=True), "2, AvgPool2d: ceil_mode=True can't be kept"),
    (lambda: nn.AvgPool1d(2, padding=1, count_include_pad=False), "2, AvgPool1d: count_include_pad=False can't be"),
    (lambda: nn.AdaptiveAvgPool2d((1, 2)), "2, AdaptiveAvgPool2d: takes output_size=1"),
    (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), "2, Upsample: mode='bilinear' can't be kept"),
    (lambda: nn.Upsample(scale_factor=1.5), "2, Upsample: takes a scale_factor that is an integer, got 1.5"),
    (lambda: nn.BatchNorm1d(3, affine=False), "2, BatchNorm1d: affine=False can't be kept"),
    (lambda: nn.BatchNorm1d(3, momentum=None), "2, BatchNorm1d: momentum=None can't be kept"),
    (lambda: nn.BatchNorm1d(3, track_running_stats=False), "2, BatchNorm1d: track_running_stats=False can't be kept"),
    (lambda: nn.InstanceNorm1d(3), "2, InstanceNorm1d: affine=False can't be kept"),
    (lambda: nn.LayerNorm((2, 3)), "2, LayerNorm: .*got \\(2, 3\\)"),
    (lambda: nn.LayerNorm(3, elementwise_affine=False), "2, LayerNorm: elementwise_affine=False can't be kept"),
    (lambda: nn.Embedding(3, 4, padding_idx=0), "2, Embedding: padding_idx=0 can't be kept"),
    (lambda: nn.Embedding(3, 4, max_norm=1.0), "2, Embedding: max_norm=1.0 can't be kept"),
    (lambda: nn.Softmax(), "2, Softmax: dim=None can't be kept"),
    (lambda: nn.Softplus(2), "2, Softplus: takes beta=1"),
    (lambda: nn.Dropout(1.0), "2, Dropout: .*below 1, got 1.0"),
    (lambda: nn.Flatten(2), "2, Flatten: start_dim=2 can't be kept"),
    (lambda: nn.Unflatten(1, (-1, 2)), "2, Unflatten: takes dim=1"),
    (lambda: nn.ConstantPad1d(2, 1.5), "2, ConstantPad1d: value=1.5 can't be kept"),
    (lambda: nn.ZeroPad2d(-1), "2, ZeroPad2d: Pad: widths must be 0 or more"),
    (lambda: nn.MultiheadAttention(4, 2), "2, MultiheadAttention: batch_first=False can't be kept"),
    (lambda: nn.MultiheadAttention(4, 2, kdim=3, batch_first=True), "2, MultiheadAttention: kdim=3 can't be kept"),
    (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True), "bias_k is unexpected"),
    (lambda: nn.TransformerEncoderLayer(4, 2, batch_first=True), "2, TransformerEncoderLayer: norm_first=False"),
    (lambda: nn.TransformerEncoderLayer(4, 2, **IN_ENCODER), r"2\.dropout, Dropout: p=0.1 can't be kept"),
    (
        lambda: nn.TransformerEncoderLayer(4, 2, dropout=0.0, layer_norm_eps=0.1, **IN_ENCODER),
        r"2\.norm1, LayerNorm: eps=0.1 can't be kept",
    ),
    (
        lambda: nn.TransformerEncoderLayer(4, 2, dropout=0.0, **{**IN_ENCODER, "activation": nn.GELU("tanh")}),
        "2, TransformerEncoderLayer: activation=.*tanh",
    ),
]


@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_a_module_that_no_model_can_be_is_named(make, why):
    with pytest.raises(ValueError, match=f"^from_torch: .*{why}"):
        door.from_torch(nn.Sequential(nn.Tanh(), nn.Sequential(), make()))


def test_something_other_than_a_module_is_a_type_error():
    for convert in (door.from_torch, door.to_torch):
        with pytest.raises(TypeError, match=r"_torch takes a .*, got str"):
            convert("net.pt")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (cl.Residual(cl.DropConnect(3, 3)), r"0\.function, DropConnect: PyTorch has no such module"),
        (cl.Conv1d(1, 1, 2, padding="causal"), "0, Conv1d: .*causal"),
        (cl.Conv2d(1, 1, 3, 2, "same"), "0, Conv2d: .*same"),
        (cl.Pad(2), "0, Pad: .*give a pair of widths for each"),
        (cl.MultiHeadAttention(4, 2, rotary=True), "0, MultiHeadAttention: has rotary=True"),
        (
            cl.MultiHeadAttention(4, 2, key_dim=4),
            "0, MultiHeadAttention: has key_dim=4, and .* size / heads = 2",
        ),
    ],
)
def test_a_function_that_pytorch_has_not_is_named(function, why):
    with pytest.raises(ValueError, match=f"^to_torch: {why}"):
        door.to_torch(cl.Model([function]))


def test_parameters_that_two_functions_share_are_named():
    first, second = cl.Linear(3, 3), cl.Linear(3, 3)
    second.weight = first.weight
    with pytest.raises(ValueError, match=r"^to_torch: 1, Linear: shares a parameter with 0"):
        door.to_torch(cl.Model([first, second]))


class Net(cl.Model):
    """A model that writes `call`; and the same as a module."""

    def __init__(self, seed=None):
        super().__init__(seed=seed)
        self.embedding, self.blocks = cl.Embedding(7, 4), [cl.LSTM(4, 4), cl.MLP(4, [3, 2])]
        self.scale, self.takes_indices = cl.Tensor([1.0], requires_grad=True), True

    def call(self, x):
        return self.blocks[1](self.blocks[0](self.embedding(x))) * self.scale


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        mlp = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        self.embedding, self.blocks = nn.Embedding(7, 4), nn.ModuleList([nn.LSTM(4, 4, batch_first=True), mlp])
        self.scale = nn.Parameter(torch.tensor([3.0]))

    def forward(self, x):
        return self.blocks[1](self.blocks[0](self.embedding(x))[0][:, -1]) * self.scale


@pytest.mark.parametrize("as_arrays", [False, True])
def test_a_state_dict_goes_into_a_model_that_writes_call(as_arrays):
    model, module, x = Net(seed=0), Module(), np.random.default_rng(0).integers(0, 7, (3, 5))
    state = module.state_dict()
    door.load_state_dict(model, {name: t.numpy() for name, t in state.items()} if as_arrays else state)
    assert_close(model.predict(x), apply_module(module, x).detach().numpy(), np.float32)
    with pytest.raises(ValueError, match="Net: PyTorch has no such module"):
        door.to_torch(model)


def test_all_that_does_not_fit_in_a_state_dict_is_named_and_nothing_changes():
    model = cl.Model([cl.Linear(2, 3), cl.ReLU(), cl.BatchNorm(3)], seed=0)
    before = model.state_dict()
    state = door.to_torch(model).state_dict()
    for name, value in state.items():
        state[name] = value + 1
    del state["2.running_mean"]
    state |= {"0.weight": torch.zeros(2, 3), "other": torch.zeros(1)}
    why = r"2\.running_mean is missing; other is unexpected; 0\.weight has shape \(2, 3\), expected \(3, 2\)$"
    with pytest.raises(ValueError, match=f"^load_state_dict: {why}"):
        door.load_state_dict(model, state)
    assert_same_state(cl.Model(model.functions), model)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    with pytest.raises(TypeError, match="expected a dict"):
        door.load_state_dict(model, "net.pt")
    with pytest.raises(TypeError, match="takes a Model or a Function"):
        door.load_state_dict(nn.Linear(2, 3), state)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_halves_become_the_models_dtype_exactly(half):
    module = nn.Sequential(nn.Linear(2, 3)).to(half)
    expected = module[0].weight.detach().float().numpy().T
    model = cl.Model([cl.Linear(2, 3)], dtype=np.float64)
    door.load_state_dict(model, module.state_dict())
    for found in (model, door.from_torch(module)):
        np.testing.assert_array_equal(found[0].weight.data, expected)


def test_a_lone_layer_takes_names_without_a_prefix():
    layer, module = cl.MultiHeadAttention(4, 2), nn.MultiheadAttention(4, 2)
    door.load_state_dict(layer, module.state_dict())
    weights = np.concatenate([part.weight.data.T for part in (layer.query, layer.key, layer.value)])
    np.testing.assert_array_equal(weights, module.in_proj_weight.detach())


def test_shared_and_frozen_parameters_stay_so():
    shared = SquareLinear(3)
    module = nn.Sequential(collections.OrderedDict(a=shared, b=nn.Tanh(), c=shared, d=nn.BatchNorm1d(3).eval()))
    module.d.requires_grad_(False)
    model = door.from_torch(module)
    assert model[0] is model[2]
    assert [p.requires_grad for p in model.parameters()] == [True, True, False, False]
    back = door.to_torch(model)
    assert back[0] is back[2]
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    assert_same_numbers(model, back, x, np.float32)
    door.load_state_dict(model, back.state_dict())


def test_dropout_is_kept_if_both_drop():
    block = cl.TransformerBlock(4, 2, dropout=0.3)
    model = cl.Model([cl.LSTM(4, 4, True, 2, 0.2), cl.LSTM(4, 4, True, 3, 0.1), cl.Dropout(0.4), block])
    module = door.to_torch(model)
    assert (module[0].dropout, module[1].dropout, module[2].p) == (0.2, 0.1, 0.4)
    assert (module[3].self_attn.dropout, module[3].dropout1.p, module[3].dropout2.p) == (0.3, 0.3, 0.3)
    assert module[3].dropout.p == 0
    assert repr(door.from_torch(module)) == repr(model)


# ---- random nets ----------------------------------------------------------------------------------------------------


def pick(rng, items):
    return items[rng.integers(len(items))]


def activation(rng):
    kinds = [cl.ReLU, cl.LeakyReLU, cl.ELU, cl.GELU, cl.SiLU, cl.Mish, cl.Softplus, cl.Tanh, cl.Sigmoid, cl.Softmax]
    return pick(rng, [*kinds, cl.LogSoftmax, cl.PReLU, lambda: cl.GELU(approximate=True), lambda: cl.Dropout(0.0)])()


def on_vectors(rng, shape):
    (size,), out, bias = shape, int(rng.integers(1, 6)), bool(rng.integers(2))
    norms = [cl.BatchNorm(size, 0.3), cl.LayerNorm(size, 0.1, bias), cl.RMSNorm(size, 0.1), cl.GroupNorm(1, size, 0.1)]
    return pick(
        rng,
        [
            *[cl.Linear(size, out, bias), cl.MLP(size, [3, out]), pick(rng, norms), activation(rng)],
            *[cl.Residual(cl.Linear(size, size)), cl.Parallel([cl.Linear(size, out), activation(rng)])],
            cl.Reshape((size, 1)),
        ],
    )


def on_places(rng, shape):
    """Return a layer for series or images."""
    channels, axes, out = shape[0], len(shape) - 1, 2 * int(rng.integers(1, 3))
    size, stride, padding, dilation, groups = map(int, rng.integers((1, 1, 0, 1, 1), (4, 3, 2, 3, 3)))
    groups, bias, ceil = 1 if channels % 2 else groups, bool(rng.integers(2)), bool(rng.integers(2))
    conv, back, most, mean = [getattr(cl, f"{name}{axes}d") for name in ("Conv", "ConvTranspose", "MaxPool", "AvgPool")]
    mode = pick(rng, ["zero", "reflect", "replicate"] if min(shape[1:]) > 2 else ["zero", "replicate"])
    several = math.prod(shape[1:]) > 1  # PyTorch's InstanceNorm refuses a single place
    return pick(
        rng,
        [
            conv(channels, out, size, stride, padding, dilation, groups, bias),
            conv(channels, out, size, 1, "same", dilation, groups, bias),
            back(channels, out, size, stride, 0, stride - 1, groups, bias, dilation),
            pick(rng, [most(size, stride, min(padding, size // 2), ceil), mean(size, stride, min(padding, size // 2))]),
            pick(
                rng,
                [
                    cl.BatchNorm(channels),
                    cl.GroupNorm(groups, channels, 0.1),
                    cl.InstanceNorm(channels, 0.1) if several else cl.Tanh(),
                ],
            ),
            pick(rng, [cl.PReLU(channels), cl.Upsample(stride), cl.Softmax(1), activation(rng)]),
            pick(rng, [cl.Pad(((padding, stride),) * axes, mode), cl.Residual(cl.BatchNorm(channels))]),
            pick(rng, [cl.GlobalAvgPool(), cl.GlobalMaxPool(), cl.Flatten(), cl.Reshape((channels, -1))]),
        ],
    )


def on_sequences(rng, shape):
    length, size = shape
    out, both, stack, all_of_them, causal = int(rng.integers(1, 5)), *map(bool, rng.integers(0, 2, 4))
    heads = 2 if size % 2 == 0 else 1
    kind = pick(rng, [cl.RNN, cl.GRU, cl.LSTM])
    return pick(
        rng,
        [
            kind(size, out, all_of_them, layers=1 + stack, bidirectional=both),
            cl.MultiHeadAttention(size, heads, causal, bias=both),
            cl.TransformerBlock(size, heads, out, causal, bias=both),
            pick(rng, [cl.PositionalEncoding(size, length + 2), cl.LayerNorm(size, 0.1), activation(rng)]),
        ],
    )


def random_net(seed):
    """Return a model, and an input."""
    rng = np.random.default_rng(seed)
    dtype, kind = pick(rng, [np.float32, np.float64]), rng.integers(4)
    layers = [cl.Embedding(7, 4)] if kind == 3 else []
    shape = first = tuple(map(int, rng.integers(3, 8, (1, 2 + rng.integers(2), 2, 1)[kind])))
    shape = (*shape, 4) if layers else shape
    for _ in range(rng.integers(1, 6)):
        layer = (on_vectors if len(shape) == 1 else on_sequences if kind > 1 else on_places)(rng, shape)
        with contextlib.suppress(ValueError):  # a window that is too large
            shape = layer.output_shape((4, *shape))[1:]
            layers.append(layer)
    model = cl.Model(layers or [cl.Tanh()], seed=int(seed), dtype=dtype)
    for array in model.buffers().values():
        if array.dtype == dtype:
            array[:] = rng.uniform(0.5, 1.5, array.shape)
    return model, rng.integers(0, 7, (4, *first)) if kind == 3 else rng.standard_normal((4, *first)).astype(dtype)


@given(seed=st.integers(0, 2**32))
def test_random_nets_go_there_and_back(seed):
    model, x = random_net(seed)
    module = door.to_torch(model)
    back = door.from_torch(module) if model.parameters() else model
    assert_same_state(back, model)
    assert back.predict(x).tobytes() == model.predict(x).tobytes()
    other = copy.deepcopy(model)
    other.initialize(1)
    door.load_state_dict(other, module.state_dict())
    assert_same_state(other, model)
    if model.dtype == np.float64:
        assert_same_numbers(model, module, x, np.float64)
    else:
        assert_as_close_as_float32_is(model.predict(x), module.eval(), x)


def assert_as_close_as_float32_is(y, module, x):
    """Within 1e-5; or within 4 times the error of PyTorch's float32, for nets that make small errors large."""
    exact = copy.deepcopy(module).double()
    with torch.no_grad():
        theirs = apply_module(module, x).numpy()
        exact = apply_module(exact, x if x.dtype == np.int64 else x.astype(np.float64)).numpy()
    tolerance = max(1e-5 * max(1.0, abs(exact).max(initial=0)), 4 * abs(theirs - exact).max(initial=0))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, theirs, 0, tolerance)


@both_dtypes
def test_a_transposed_convolution_with_same_becomes_numbers_if_pytorch_can(dtype):
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(dtype)
    for kernel, stride in [(4, 2), (3, 1), (2, 3)]:
        model = cl.Model([cl.ConvTranspose1d(3, 4, kernel, stride, "same")], seed=0, dtype=dtype)
        module = door.to_torch(model)
        np.testing.assert_allclose(module(torch.tensor(x)).detach().numpy(), model.predict(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="cuts one pixel more behind than before"):
        door.to_torch(cl.Model([cl.ConvTranspose1d(3, 4, 3, 2, "same")]))


@both_dtypes
def test_a_state_dict_that_is_not_strict_leaves_out_a_buffer_of_pytorchs(dtype):
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("tril", torch.tril(torch.ones(3, 3)))
            self.first, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    class LongerNet(cl.Model):
        def __init__(self):
            super().__init__(seed=0, dtype=dtype)
            self.first, self.norm, self.last = cl.Linear(4, 3), cl.BatchNorm(3), cl.Linear(3, 2)

        def call(self, x):
            return self.last(self.norm(self.first(x)))

    module, model = Causal(), LongerNet()
    last = model.last.weight.data.copy()
    with pytest.raises(ValueError, match=r"last.weight is missing; last.bias is missing; tril is unexpected"):
        door.load_state_dict(model, module.state_dict())
    keys = door.load_state_dict(model, module.state_dict(), strict=False)
    assert keys == (["last.weight", "last.bias"], ["tril"])
    np.testing.assert_array_equal(model.first.weight.data, module.first.weight.detach().numpy().T)
    np.testing.assert_array_equal(model.last.weight.data, last)
    with pytest.raises(ValueError, match=r"first\.weight has shape"):
        door.load_state_dict(model, {"first.weight": torch.ones(2, 2)}, strict=False)
    with pytest.raises(ValueError, match=r"the model has .* and the state .*tril"):
        door.load_state_dict(model, {"tril": torch.ones(2, 2)}, strict=False)
