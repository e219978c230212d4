"""State dicts of PyTorch: the names and layouts of their arrays, and which of a Function's own arrays they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

import caffelite as cl
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.files import state as files
from caffelite.pytorch.layer_map import OF_OURS, parts_of

MOST_NAMED = 10  # in an error
COUNT = "num_batches_tracked"  # PyTorch's BatchNorm counts batches, which only momentum=None needs
HALVES = (torch.bfloat16, torch.float16)


class Place(NamedTuple):
    """The own arrays that are one array of PyTorch's: side by side along its first axis, each maybe transposed."""

    arrays: list[Any]
    is_transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        first, *others = self._seen(self.arrays[0]).shape
        return (len(self.arrays) * first, *others)

    def _seen(self, array: Any) -> Any:
        values = array.data if isinstance(array, Tensor) else array
        return values.T if self.is_transposed else values

    def joined(self) -> np.ndarray:
        """The values as PyTorch has them."""
        return np.concatenate([self._seen(array) for array in self.arrays])

    def divided(self, values: np.ndarray) -> list[np.ndarray]:
        """The values for each own array."""
        return [part.T if self.is_transposed else part for part in np.split(values, len(self.arrays))]


def places_in(function: Function, prefix: str = "") -> dict[str, Place]:
    """PyTorch's names of all arrays of a Function, with their places."""
    kind = next((OF_OURS[base] for base in type(function).__mro__ if base in OF_OURS), None)
    parts: dict[str, Any] = parts_of(function)
    if kind is None or parts or isinstance(function, cl.Model):
        parts = {**dict(function._parts()), **parts}
        parts |= {name: array for name, array in function.buffers().items() if name not in parts and "." not in name}
    else:
        parts = {name: _place(function, own) for name, own in kind.places_in(function).items()}
    found: dict[str, Place] = {}
    for name, part in parts.items():
        if isinstance(part, Function):
            found |= places_in(part, f"{prefix}{name}.")
        elif part is not None:
            found[prefix + name] = part if isinstance(part, Place) else Place([part], False)
    return found


def _place(function: Function, text: str) -> Place | None:
    """The place that a row of the table says; None if the Function has no such array, such as a bias."""
    arrays = [_attribute(function, name.removesuffix(".T")) for name in text.split()]
    return None if arrays[0] is None else Place(arrays, text.endswith(".T"))


def _attribute(function: Any, path: str) -> Any:
    """An attribute of an attribute, or of an element of a list: `embeddings.0.weight`."""
    for name in path.split("."):
        function = function[int(name)] if name.isdecimal() else getattr(function, name)
    return function


def load_state_dict(model: Any, state: Mapping[str, Any]) -> None:
    """Set parameters and buffers from a state dict of PyTorch, for a model of the same structure.

    Names are PyTorch's: numbers in a sequence, `0.weight`, and attributes of a model that writes `call`. If the state
    is of one module alone, `weight`, the model is a layer, or a sequence of one layer. Layouts are PyTorch's, too: the
    weight of a `Linear` is (out, in), and attention has one `in_proj_weight` for query, key and value.

    Values are Tensors of PyTorch or arrays, and become the model's dtype. bfloat16 and float16 stay exact. Random
    streams and numbers that PyTorch does not have, such as the seed of a Dropout, do not change.

    ValueError naming all arrays that are missing, unexpected or of another shape. Then nothing has changed.
    """
    if not isinstance(model, Function):
        raise TypeError(f"load_state_dict takes a Model or a Function, got {type(model).__name__}")
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict: expected a dict of names and arrays, got {state!r:.80}")
    part = model
    if isinstance(model, cl.Model) and model.is_sequence() and len(model) == 1:
        is_alone = not any(str(name).startswith("0.") for name in state)
        part = model[0] if is_alone else model
    store(model, matched(places_in(part), state, "load_state_dict: "))


def matched(places: dict[str, Place], state: Mapping[str, Any], where: str) -> list[tuple[Any, np.ndarray]]:
    """The own arrays and the values for them. ValueError unless names and shapes fit."""
    given = {name: value for name, value in state.items() if str(name).rpartition(".")[2] != COUNT}
    wrong = [f"{name} is missing" for name in places if name not in given]
    wrong += [f"{name} is unexpected" for name in given if name not in places]
    values = {name: _as_array(given[name], where + name) for name in places if name in given}
    for name, array in values.items():
        if array.shape != places[name].shape:
            wrong.append(f"{name} has shape {array.shape}, expected {places[name].shape}")
    if wrong:
        more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise ValueError(f"{where}{'; '.join(wrong[:MOST_NAMED])}{more}")
    return [
        pair for name, place in places.items() for pair in zip(place.arrays, place.divided(values[name]), strict=True)
    ]


def _as_array(value: Any, what: str) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    try:
        value = value.detach().cpu()
        return (value.float() if value.dtype in HALVES else value).numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ValueError(f"{what} is not a dense tensor of numbers: {error}") from None


def store(model: Function, pairs: list[tuple[Any, np.ndarray]]) -> None:
    """Set parameters and buffers of a model to values; all others stay. Nothing changes before all are checked."""
    parameters, buffers = files.named_state(model)
    names = {id(x): name for name, x in (parameters | buffers).items()}
    files.load_state_dict(model, files.state_dict(model) | {names[id(array)]: values for array, values in pairs})
