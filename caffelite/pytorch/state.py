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
from caffelite.pytorch.layer_map import PAIR_BY_FUNCTION, named_parts

MAX_NAMED = 10  # in an error
BATCH_COUNT = "num_batches_tracked"  # PyTorch's BatchNorm counts batches, which only momentum=None needs
HALF_DTYPES = (torch.bfloat16, torch.float16)


class TorchArray(NamedTuple):
    """The own arrays that are one array of PyTorch's: side by side along its first axis, each maybe transposed."""

    arrays: list[Any]
    is_transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        first, *rest = self._view(self.arrays[0]).shape
        return (len(self.arrays) * first, *rest)

    def _view(self, array: Any) -> Any:
        values = array.data if isinstance(array, Tensor) else array
        return values.T if self.is_transposed else values

    def to_torch(self) -> np.ndarray:
        """Return the values as PyTorch has them."""
        return np.concatenate([self._view(array) for array in self.arrays])

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """Return the values for each own array."""
        return [part.T if self.is_transposed else part for part in np.split(values, len(self.arrays))]


def torch_arrays(function: Function, prefix: str = "") -> dict[str, TorchArray]:
    """PyTorch's names of all arrays of a Function, with their places."""
    pair = next((PAIR_BY_FUNCTION[base] for base in type(function).__mro__ if base in PAIR_BY_FUNCTION), None)
    parts: dict[str, Any] = named_parts(function)
    if pair is None or parts or isinstance(function, cl.Model):
        parts = {**dict(function._parts()), **parts}
        parts |= {name: array for name, array in function.buffers().items() if name not in parts and "." not in name}
    else:
        parts = {name: _parse_array(function, text) for name, text in pair.find_array_names(function).items()}
    arrays: dict[str, TorchArray] = {}
    for name, part in parts.items():
        if isinstance(part, Function):
            arrays |= torch_arrays(part, f"{prefix}{name}.")
        elif part is not None:
            arrays[prefix + name] = part if isinstance(part, TorchArray) else TorchArray([part], False)
    return arrays


def _parse_array(function: Function, text: str) -> TorchArray | None:
    """Return the place that a row of the table says; None if the Function has no such array, such as a bias."""
    arrays = [_attribute(function, name.removesuffix(".T")) for name in text.split()]
    return None if arrays[0] is None else TorchArray(arrays, text.endswith(".T"))


def _attribute(function: Any, path: str) -> Any:
    """Return an attribute of an attribute, or of an element of a list: `embeddings.0.weight`."""
    for name in path.split("."):
        function = function[int(name)] if name.isdecimal() else getattr(function, name)
    return function


def load_state_dict(model: Function, state: Mapping[str, Any], strict: bool = True) -> files.IncompatibleKeys:
    """Set parameters and buffers from a state dict of PyTorch, for a model of the same structure.

    Names are PyTorch's: numbers in a sequence, `0.weight`, and attributes of a model that writes `call`. If the state
    is of one module alone, `weight`, the model is a layer, or a sequence of one layer. Layouts are PyTorch's, too: the
    weight of a `Linear` is (out, in), and attention has one `in_proj_weight` for query, key and value.

    Values are Tensors of PyTorch or arrays, and become the model's dtype. bfloat16 and float16 stay exact. Random
    streams and numbers that PyTorch does not have, such as the seed of a Dropout, do not change.

    ValueError naming all arrays that are missing, unexpected or of another shape. Then nothing has changed. If not
    `strict`, arrays may be missing or unexpected. The result has both lists, `missing_keys` and `unexpected_keys`.
    """
    if not isinstance(model, Function):
        raise TypeError(f"load_state_dict takes a Model or a Function, got {type(model).__name__}")
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict: expected a dict of names and arrays, got {state!r:.80}")
    part = model
    if isinstance(model, cl.Model) and model.is_sequence() and len(model) == 1:
        is_alone = not any(str(name).startswith("0.") for name in state)
        part = model[0] if is_alone else model
    arrays = torch_arrays(part)
    store(model, match_state(arrays, state, "load_state_dict: ", strict))
    return files.IncompatibleKeys.compare(arrays, _drop_batch_counts(state))


def _drop_batch_counts(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if str(name).rpartition(".")[2] != BATCH_COUNT}


def match_state(
    arrays: dict[str, TorchArray], state: Mapping[str, Any], where: str, strict: bool = True
) -> list[tuple[Any, np.ndarray]]:
    """Return the own arrays and the values for them. ValueError unless names and shapes fit."""
    state, wrong = _drop_batch_counts(state), []
    if strict:
        wrong += [f"{name} is missing" for name in arrays if name not in state]
        wrong += [f"{name} is unexpected" for name in state if name not in arrays]
    else:
        files.IncompatibleKeys.compare(arrays, state)
    values = {name: _as_array(state[name], where + name) for name in arrays if name in state}
    for name, value in values.items():
        if value.shape != arrays[name].shape:
            wrong.append(f"{name} has shape {value.shape}, expected {arrays[name].shape}")
    if wrong:
        more = f" and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        raise ValueError(f"{where}{'; '.join(wrong[:MAX_NAMED])}{more}")
    return [
        pair
        for name, array in arrays.items()
        if name in values
        for pair in zip(array.arrays, array.split(values[name]), strict=True)
    ]


def _as_array(value: Any, what: str) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    try:
        value = value.detach().cpu()
        return (value.float() if value.dtype in HALF_DTYPES else value).numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ValueError(f"{what} is not a dense tensor of numbers: {error}") from None


def store(model: Function, pairs: list[tuple[Any, np.ndarray]]) -> None:
    """Set parameters and buffers of a model to values; all others stay. Nothing changes before all are checked."""
    parameters, buffers = files.named_state(model)
    names = {id(x): name for name, x in (parameters | buffers).items()}
    files.load_state_dict(model, files.state_dict(model) | {names[id(array)]: values for array, values in pairs})
