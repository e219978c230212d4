"""`from_torch` and `to_torch`: a net as a tree of parts, each made from its counterpart by a row of `LAYER_PAIRS`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import caffelite as cl
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.pytorch import modules
from caffelite.pytorch.layer_map import PAIR_BY_FUNCTION, PAIR_BY_MODULE, LayerPair, make_sequence, named_parts
from caffelite.pytorch.state import BATCH_COUNT, TorchArray, match_state, store, torch_arrays

#: Attributes of modules that are not options, or that a row of the table checks itself.
UNCHECKED_ATTRIBUTES = {
    *("training", "inplace", "init", "name", "threshold", "sequences", "causal", "activation_relu_or_gelu"),
}
HARMLESS_METHODS = {"extra_repr", "reset_parameters", "_reset_parameters"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def from_torch(module: nn.Module) -> cl.Model:
    """Return a Model that computes what a module of PyTorch computes, with copies of its weights.

    The module is a layer, or an `nn.Sequential` of layers and sequences. Positions in sequences stay the same. A module
    with float64 parameters gives a float64 Model, any other one a float32 Model. Frozen parameters stay frozen.
    Recurrent modules and attention give the first of PyTorch's two outputs: all states, and the attention of x to
    itself.

    Random numbers are caffelite's. `nn.Softplus` is x above its threshold; caffelite's differs by 2e-9 at most there.

    Raise ValueError with the name of a module

    - if caffelite has no such layer,
    - if it has an option that can't be kept, hooks, or a `forward` of its own,
    - if it shares a parameter with another module,
    - if it is a Dropout or a BatchNorm in `eval()`, and the whole is not in `eval()`.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"from_torch takes a module of PyTorch, got {type(module).__name__}")
    _check_whole(module)
    converted: dict[int, tuple[str, nn.Module, Function]] = {}

    def convert(m: nn.Module, path: str) -> Function:
        if id(m) not in converted:
            pair = _find_module_pair(m, path)
            parts = [convert(part, _join_path(path, name)) for name, part in named_parts(m).items()]
            try:
                function = pair.to_function(m, *parts)
            except (ValueError, TypeError, KeyError) as error:
                raise _error(path, m, str(error)) from None
            if pair.to_module is not None and not parts:
                with torch.device("meta"):  # which takes neither memory nor random numbers
                    expected = pair.to_module(function)
                _check_options(m, expected, path)
            converted[id(m)] = path, m, function
        return converted[id(m)][2]

    function = convert(module, "")
    is_model = isinstance(module, nn.Sequential)
    model: Any = function if is_model else make_sequence(module, function)
    pairs, frozen = [], []
    for path, m, function in converted.values():
        if not named_parts(m):
            arrays, state = torch_arrays(function), m.state_dict(keep_vars=True)
            pairs += match_state(arrays, state, f"from_torch: {_describe(path, m)}: ")
            frozen_arrays = [array for name, array in arrays.items() if not state[name].requires_grad]
            frozen += [p for array in frozen_arrays for p in array.arrays if isinstance(p, Tensor)]
    store(model, pairs)
    for p in frozen:
        p.requires_grad = False
    return model


def to_torch(model: Function) -> nn.Module:
    """Return a module of PyTorch that computes what a Model computes, with copies of its weights.

    The Model is a sequence of layers and of sequences, which may be in a `Residual` or a `Parallel`. It may also be a
    single layer. The modules are PyTorch's own if these compute the same. The others, such as a `BatchNorm` for any
    number of axes or an `LSTM` that gives one output, are in `caffelite.pytorch.modules`, and `from_torch` takes them
    back.

    The module is in training mode, as new ones are; `module.eval()` is caffelite's `inference()`. PyTorch's random
    stream does not change.

    ValueError naming the Function if PyTorch's modules can't say it.
    """
    if not isinstance(model, Function):
        raise TypeError(f"to_torch takes a Model or a Function, got {type(model).__name__}")
    converted: dict[int, nn.Module] = {}
    owners: dict[int, str] = {}  # of parameters, by their ids
    dtypes = [p.dtype for p in model.parameters()] + ([model.dtype] if isinstance(model, cl.Model) else [])
    dtype = torch.float64 if np.float64 in dtypes else torch.float32

    def convert(f: Function, path: str) -> nn.Module:
        if id(f) not in converted:
            pair, children = _find_function_pair(f, path), named_parts(f)
            parts = [convert(part, _join_path(path, name)) for name, part in children.items()]
            try:
                converted[id(f)] = m = pair.to_module(f, *parts)  # type: ignore[misc]
                if not children:
                    _set_state(m.to(dtype), torch_arrays(f))
            except (ValueError, TypeError) as error:
                raise _error(path, f, str(error), "to_torch") from None
            for p in () if children else f.parameters():
                if owner := owners.get(id(p)):
                    raise _error(path, f, f"shares a parameter with {owner}", "to_torch")
                owners[id(p)] = path
        return converted[id(f)]

    with torch.random.fork_rng(devices=[]):
        return convert(model, "")


def _set_state(m: nn.Module, arrays: dict[str, TorchArray]) -> None:
    """Set the values of a module, and which parameters are frozen."""
    m.load_state_dict({name: torch.tensor(array.to_torch()) for name, array in arrays.items()}, strict=False)
    if unset := [name for name in m.state_dict() if name not in arrays and name.rpartition(".")[2] != BATCH_COUNT]:
        raise ValueError(f"has no {', '.join(unset)}")
    for name, p in m.named_parameters():
        flags = {parameter.requires_grad for parameter in arrays[name].arrays}
        if len(flags) > 1:
            raise ValueError(f"is frozen in part, and PyTorch has one parameter {name}")
        p.requires_grad_(flags.pop())


def _find_function_pair(f: Function, path: str) -> LayerPair:
    """Return the row of a Function. ValueError if there is none that makes a module."""
    kind = type(f)
    is_sequence = isinstance(f, cl.Model) and f.is_sequence()
    if is_sequence and kind.forward is cl.Model.forward and kind.__call__ is cl.Model.__call__:
        kind = cl.Model
    pair = PAIR_BY_FUNCTION.get(kind)
    if pair is None or pair.to_module is None or "forward" in vars(f):
        raise _error(path, f, "PyTorch has no such module", "to_torch")
    return pair


def _find_module_pair(m: nn.Module, path: str) -> LayerPair:
    """Return the row of a module. ValueError if there is none, or if the module computes something else."""
    base = next((c for c in type(m).__mro__ if c in PAIR_BY_MODULE), None)
    if base is None:
        raise _error(path, m, "caffelite has no such layer")
    _check_methods(m, base, path)
    return PAIR_BY_MODULE[base]


def _check_methods(m: nn.Module, base: type, path: str) -> None:
    """ValueError if a module, or its class, replaces a method of a base that may change what it computes."""
    classes = type(m).__mro__
    for attributes in (vars(m), *map(vars, classes[: classes.index(base)])):
        for name in attributes:
            is_special = name.startswith("__") and name not in ("__call__", "__getattr__")
            if callable(getattr(base, name, None)) and not is_special and name not in HARMLESS_METHODS:
                raise _error(path, m, f"has a {name} of its own")


def _check_whole(module: nn.Module) -> None:
    """ValueError for features outside a module's options: hooks, shared parameters, modes, changes in place."""
    owners: dict[int, str] = {}
    for path, m in module.named_modules():
        if any(getattr(m, hooks) for hooks in HOOKS) or any(p._backward_hooks for p in m.parameters(recurse=False)):
            raise _error(path, m, "has hooks")
        for name, p in m._parameters.items():
            parameter_path = _join_path(path, name)
            if p is not None and owners.setdefault(id(p), parameter_path) != parameter_path:
                raise _error(path, m, f"shares its {name} with {owners[id(p)]}")
        if m.training != module.training and _depends_on_mode(m):
            raise _error(path, m, "is not in the mode of the whole module: call its train() or eval()")
        if isinstance(m, modules.Residual | modules.Parallel) and any(
            getattr(f, "inplace", False) for f in m.modules()
        ):
            raise _error(path, m, "has a part that changes its input in place")


def _depends_on_mode(m: nn.Module) -> bool:
    """Return whether a module computes something else in training. A frozen BatchNorm does not, in caffelite."""
    if isinstance(m, nn.modules.batchnorm._BatchNorm):
        return any(p.requires_grad for p in m.parameters())
    shares = getattr(m, "p", 0.0), getattr(m, "dropout", 0.0)
    return any(isinstance(share, float) and share > 0 for share in shares)


def _check_options(m: nn.Module, expected_module: nn.Module, path: str) -> None:
    """ValueError unless a module has the options of the one that its Function makes."""
    for name, expected in expected_module.named_modules():
        part: Any = m.get_submodule(name)
        part_path = _join_path(path, name)
        if name:
            if not isinstance(part, type(expected)):
                raise _error(part_path, part, f"caffelite expects {type(expected).__name__} here")
            _check_methods(part, type(expected), part_path)
        for option, value in vars(expected).items():
            actual = getattr(part, option, value)
            is_option = option[0] != "_" and option not in UNCHECKED_ATTRIBUTES and not isinstance(actual, torch.Tensor)
            if is_option and _canonical(actual) != _canonical(value):
                raise _error(part_path, part, f"{option}={actual!r} can't be kept; caffelite has {value!r}")


def _canonical(option: Any) -> Any:
    """Return the same value for options that mean the same."""
    if isinstance(option, list | tuple):
        return _canonical(option[0]) if len(set(option)) == 1 else tuple(option)
    if isinstance(option, nn.GELU) and option.approximate == "none":
        return nn.functional.gelu
    return 0 if option == "valid" else option


def _join_path(path: str, name: str) -> str:
    """Return the path of a part."""
    return f"{path}.{name}".strip(".")


def _describe(path: str, layer: Any) -> str:
    """How errors name a module or a Function: `2.conv, Conv3d`."""
    return f"{path}, {type(layer).__name__}" if path else type(layer).__name__


def _error(path: str, layer: Any, why: str, where: str = "from_torch") -> ValueError:
    return ValueError(f"{where}: {_describe(path, layer)}: {why}")
