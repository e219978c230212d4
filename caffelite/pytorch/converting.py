"""`from_torch` and `to_torch`: a net as a tree of parts, each made from its counterpart by a row of `KINDS`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

import caffelite as cl
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.pytorch import modules
from caffelite.pytorch.layer_map import OF_OURS, OF_THEIRS, Kind, parts_of, sequence
from caffelite.pytorch.state import COUNT, Place, matched, places_in, store

#: Attributes of modules that are not options, or that a row of the table checks itself.
NO_OPTIONS = {"training", "inplace", "init", "name", "threshold", "sequences", "causal", "activation_relu_or_gelu"}
HARMLESS = {"extra_repr", "reset_parameters", "_reset_parameters"}  # methods that change nothing that is computed
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def from_torch(module: nn.Module) -> cl.Model:
    """A Model that computes what a module of PyTorch computes, with copies of its weights.

    The module is a layer, or an `nn.Sequential` of layers and sequences. Positions in sequences stay the same. A module
    with float64 parameters gives a float64 Model, any other one a float32 Model. Frozen parameters stay frozen.
    Recurrent modules and attention give the first of PyTorch's two outputs: all states, and the attention of x to
    itself.

    Random numbers are caffelite's. `nn.Softplus` is x above its threshold; caffelite's differs by 2e-9 at most there.

    Raises ValueError with the name of a module

    - if caffelite has no such layer,
    - if it has an option that can't be kept, hooks, or a `forward` of its own,
    - if it shares a parameter with another module,
    - if it is a Dropout or a BatchNorm in `eval()`, and the whole is not in `eval()`.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"from_torch takes a module of PyTorch, got {type(module).__name__}")
    _check_surroundings(module)
    made: dict[int, tuple[str, nn.Module, Function]] = {}

    def function_of(m: nn.Module, path: str) -> Function:
        if id(m) not in made:
            kind = _kind_of_theirs(m, path)
            parts = [function_of(part, _below(path, name)) for name, part in parts_of(m).items()]
            try:
                function = kind.to_ours(m, *parts)
            except (ValueError, TypeError, KeyError) as error:
                raise _refusal(path, m, str(error)) from None
            if kind.to_theirs is not None and not parts:
                with torch.device("meta"):  # which takes neither memory nor random numbers
                    again = kind.to_theirs(function)
                _check_options(m, again, path)
            made[id(m)] = path, m, function
        return made[id(m)][2]

    function = function_of(module, "")
    is_model = isinstance(module, nn.Sequential)
    model: Any = function if is_model else sequence(module, function)
    pairs, frozen = [], []
    for path, m, function in made.values():
        if not parts_of(m):
            state = m.state_dict(keep_vars=True)
            found = matched(places_in(function), state, f"from_torch: {_named(path, m)}: ")
            pairs += found
            frozen += [p for p, of in _owners(places_in(function), state) if not of.requires_grad]
    store(model, pairs)
    for p in frozen:
        p.requires_grad = False
    return model


def to_torch(model: Function) -> nn.Module:
    """A module of PyTorch that computes what a Model computes, with copies of its weights.

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
    made: dict[int, nn.Module] = {}
    places: dict[int, str] = {}  # of parameters, by their ids
    dtypes = [p.dtype for p in model.parameters()] + ([model.dtype] if isinstance(model, cl.Model) else [])
    dtype = torch.float64 if np.float64 in dtypes else torch.float32

    def module_of(f: Function, path: str) -> nn.Module:
        if id(f) not in made:
            kind, children = _kind_of_ours(f, path), parts_of(f)
            parts = [module_of(part, _below(path, name)) for name, part in children.items()]
            try:
                made[id(f)] = m = kind.to_theirs(f, *parts)  # type: ignore[misc]
                if not children:
                    _fill(m.to(dtype), places_in(f))
            except (ValueError, TypeError) as error:
                raise _refusal(path, f, str(error), "to_torch") from None
            for p in () if children else f.parameters():
                if other := places.get(id(p)):
                    raise _refusal(path, f, f"shares a parameter with {other}", "to_torch")
                places[id(p)] = path
        return made[id(f)]

    with torch.random.fork_rng(devices=[]):
        return module_of(model, "")


def _fill(m: nn.Module, places: dict[str, Place]) -> None:
    """Set the values of a module, and which parameters are frozen."""
    m.load_state_dict({name: torch.tensor(place.joined()) for name, place in places.items()}, strict=False)
    if unset := [name for name in m.state_dict() if name not in places and name.rpartition(".")[2] != COUNT]:
        raise ValueError(f"has no {', '.join(unset)}")
    for name, p in m.named_parameters():
        flags = {own.requires_grad for own in places[name].arrays}
        if len(flags) > 1:
            raise ValueError(f"is frozen in part, and PyTorch has one parameter {name}")
        p.requires_grad_(flags.pop())


def _kind_of_ours(f: Function, path: str) -> Kind:
    """The row of a Function. ValueError if there is none that makes a module."""
    kind = type(f)
    is_sequence = isinstance(f, cl.Model) and f.is_sequence()
    if is_sequence and kind.forward is cl.Model.forward and kind.__call__ is cl.Model.__call__:
        kind = cl.Model
    found = OF_OURS.get(kind)
    if found is None or found.to_theirs is None or "forward" in vars(f):
        raise _refusal(path, f, "PyTorch has no such module", "to_torch")
    return found


def _kind_of_theirs(m: nn.Module, path: str) -> Kind:
    """The row of a module. ValueError if there is none, or if the module does not compute what the row's class does."""
    base = next((c for c in type(m).__mro__ if c in OF_THEIRS), None)
    if base is None:
        raise _refusal(path, m, "caffelite has no such layer")
    _check_methods(m, base, path)
    return OF_THEIRS[base]


def _check_methods(m: nn.Module, base: type, path: str) -> None:
    """ValueError if a module, or its class, replaces a method of a base that may change what it computes."""
    classes = type(m).__mro__
    for own in (vars(m), *map(vars, classes[: classes.index(base)])):
        for name in own:
            is_harmless = name in HARMLESS or (name.startswith("__") and name not in ("__call__", "__getattr__"))
            if callable(getattr(base, name, None)) and not is_harmless:
                raise _refusal(path, m, f"has a {name} of its own")


def _check_surroundings(module: nn.Module) -> None:
    """ValueError for features outside a module's options: hooks, shared parameters, modes, changes in place."""
    owners: dict[int, str] = {}
    for path, m in module.named_modules():
        if any(getattr(m, hooks) for hooks in HOOKS) or any(p._backward_hooks for p in m.parameters(recurse=False)):
            raise _refusal(path, m, "has hooks")
        for name, p in m._parameters.items():
            place = _below(path, name)
            if p is not None and owners.setdefault(id(p), place) != place:
                raise _refusal(path, m, f"shares its {name} with {owners[id(p)]}")
        if m.training != module.training and _depends_on_mode(m):
            raise _refusal(path, m, "is not in the mode of the whole module: call its train() or eval()")
        if isinstance(m, modules.Residual | modules.Parallel) and any(
            getattr(f, "inplace", False) for f in m.modules()
        ):
            raise _refusal(path, m, "has a part that changes its input in place")


def _depends_on_mode(m: nn.Module) -> bool:
    """Whether a module computes something else in training. A BatchNorm that is frozen does not, in caffelite."""
    if isinstance(m, nn.modules.batchnorm._BatchNorm):
        return any(p.requires_grad for p in m.parameters())
    shares = getattr(m, "p", 0.0), getattr(m, "dropout", 0.0)
    return any(isinstance(share, float) and share > 0 for share in shares)


def _check_options(m: nn.Module, again: nn.Module, path: str) -> None:
    """ValueError unless a module has the options of the one that its Function makes."""
    for name, expected in again.named_modules():
        found: Any = m.get_submodule(name)
        place = _below(path, name)
        if name:
            if not isinstance(found, type(expected)):
                raise _refusal(place, found, f"caffelite expects {type(expected).__name__} here")
            _check_methods(found, type(expected), place)
        for option, value in vars(expected).items():
            given = getattr(found, option, value)
            is_option = option[0] != "_" and option not in NO_OPTIONS and not isinstance(given, torch.Tensor)
            if is_option and _plain(given) != _plain(value):
                raise _refusal(place, found, f"{option}={given!r} can't be kept; caffelite has {value!r}")


def _plain(option: Any) -> Any:
    """The same value for options that mean the same."""
    if isinstance(option, list | tuple):
        return _plain(option[0]) if len(set(option)) == 1 else tuple(option)
    if isinstance(option, nn.GELU) and option.approximate == "none":
        return nn.functional.gelu
    return 0 if option == "valid" else option


def _owners(places: dict[str, Place], state: Mapping[str, Any]) -> Iterator[tuple[Tensor, Any]]:
    """The parameters, each with the one of PyTorch's that it is in."""
    for name, place in places.items():
        yield from [(own, state[name]) for own in place.arrays if isinstance(own, Tensor)]


def _below(path: str, name: str) -> str:
    """The path of a part."""
    return f"{path}.{name}".strip(".")


def _named(path: str, layer: Any) -> str:
    """How errors name a module or a Function: `2.conv, Conv3d`."""
    return f"{path}, {type(layer).__name__}" if path else type(layer).__name__


def _refusal(path: str, layer: Any, why: str, where: str = "from_torch") -> ValueError:
    return ValueError(f"{where}: {_named(path, layer)}: {why}")
