"""The state of a model (parameters, buffers, structure, frozen parameters), and how files hold it."""

from __future__ import annotations

import inspect
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import warn
from caffelite.core.arrays import FLOATS, as_array, as_real
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.data.vocabulary import Vocabulary
from caffelite.files import hub, structure
from caffelite.files.safetensors import TRAINING_PREFIX, File, TensorSpec, strict_json, write_arrays

Self = TypeVar("Self", bound="BaseModel")


class BaseModel(Function, recordable=True):
    """A model as files and training see it: a Function with one dtype and a state. `Container` has the rest."""

    functions: list[Function]  # of a sequence, in order
    dtype: np.dtype
    _model_state: Any  # a `ModelState`: its random streams, column names, Programs and memory

    @property
    @abstractmethod
    def input_dtype(self) -> np.dtype:
        """The dtype of inputs that are floats."""

    @abstractmethod
    def is_sequence(self) -> bool:
        """Return whether the model applies `functions` one after the other."""

    def min_inputs(self) -> int:
        """Return the smallest number of inputs that the model takes; in a sequence, the first Function decides."""
        function: Any = self
        while isinstance(function, BaseModel) and function.is_sequence():
            if not function.functions:
                return 1
            function = function.functions[0]
        inputs = inspect.signature(function.python_code()).parameters.values()
        return sum(x.default is x.empty and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD) for x in inputs)

    @abstractmethod
    def all_functions(self) -> tuple[Function, ...]:
        """Return the Functions in the model and in its Functions, each once. The model registers new ones."""

    def structure(self) -> tuple[Any, ...]:
        """Return how the Functions follow and contain each other, as `all_functions` last found it."""
        return self._model_state.structure

    @abstractmethod
    def shape_for(self, inputs: Sequence[np.ndarray], n: int | None = None) -> Any:
        """Return `output_shape` for n rows like these; None if only a batch shows it, as for a user's `call`."""

    @abstractmethod
    def index_limits(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """Return, for each input, the largest index that the model takes at each place of a row; None for no limit."""

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the parameters (`0.weight`, `0.bias`, `2.weight` …) and of the buffers, by name."""
        return state_dict(self)

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Set parameters and buffers to the values of a `state_dict`.

        If not `strict`, names may differ: arrays without a value stay as they are, and other values are not used. The
        result lists both, `missing_keys` and `unexpected_keys`. Raise ValueError if there is no common name.

        Parameters are converted to the model's dtype, buffers to their own. Raise ValueError if names or shapes are
        not this model's, or if a buffer of integers can't hold a value. Raise TypeError for anything but numbers.
        After an error, nothing has changed.
        """
        return load_state_dict(self, state, strict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, buffers, the model's structure, its frozen parts and vocabularies to a safetensors file.

        The new file replaces an older one when it is complete. `caffelite.load` makes the model again; give it any
        classes that are not caffelite's. A Function is made again from its `arguments()`. If it can't return them,
        `save` warns with the reason, and saves only the values, for `Model.load`.

        Raise OSError naming the path if the file can't be written, and leave an older one as it was.
        """
        texts = make_texts(self)
        write_arrays(path, state_arrays(self), texts)
        if reason := texts.get("caffelite.unwritten"):
            message = f"{path} has values for `model.load`; caffelite.load can't make the model from it: {reason}"
            warn(message, UserWarning)

    def load(self: Self, path: str | os.PathLike[str]) -> Self:
        """Read parameters and buffers from a file saved by a model of the same structure. Return the model.

        Any safetensors file works if its arrays have the same names and shapes. But PyTorch's weights are transposed,
        so a file whose metadata names PyTorch raises ValueError. Floats are converted to the model's dtype.

        The path may be an address on the Hugging Face Hub, as in `caffelite.load`.

        Raise OSError if the path can't be read, and ValueError if the file is not valid or has other names, shapes or
        kinds of numbers. After a ValueError, nothing has changed.
        """
        with File(hub.local_path(path)) as file:
            self.load_state_dict(file.arrays(match_specs(file, state_specs(self), lossless=False)))
        return self

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Upload model",
        private: bool | None = None,
        token: str | bool | None = None,
    ) -> str:
        """Save the model in a repository on the Hugging Face Hub, such as "owner/name". Return the address of its page.

        If there is no such repository, it is created, and `private` says who can see it. It gets the file
        model.safetensors, and a README.md if it has none. `caffelite.load("hf://owner/name")` loads the model.

        Needs huggingface_hub: `pip install huggingface_hub`. Log in with `hf auth login`, or give a token. Errors of
        the Hub, for example if the name belongs to somebody else, are OSErrors.
        """
        return hub.push(self, repo_id, commit_message, private, token)


def named_state(model: Function) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
    """Return the parameters and the buffers by name. ValueError if a parameter and a buffer have the same name."""
    parameters, buffers = model.named_parameters(), model.buffers()
    if not parameters.keys().isdisjoint(buffers):
        raise ValueError(f"a parameter and a buffer have the name {min(parameters.keys() & buffers)}")
    return parameters, buffers


def state_dict(model: Function) -> dict[str, np.ndarray]:
    """Return copies of parameters and buffers by name; see `Model.state_dict`."""
    return {name: array.copy() for name, array in state_arrays(model).items()}


class IncompatibleKeys(NamedTuple):
    """The names that a state does not have, and the names that only the state has."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    @classmethod
    def compare(cls, names: Iterable[str], state: Mapping[str, Any]) -> IncompatibleKeys:
        """Compare a model's names with a state. Raise ValueError if they have none in common."""
        names = list(names)
        keys = cls([name for name in names if name not in state], [name for name in state if name not in names])
        if names and len(keys.missing_keys) == len(names):
            raise ValueError(f"load_state_dict: the model has {names[:3]} …, and the state {list(state)[:3]} …")
        return keys


def load_state_dict(model: Function, state: dict[str, Any], strict: bool = True) -> IncompatibleKeys:
    """Set the model's values from a `state_dict`; see `Model.load_state_dict`."""
    parameters, buffers = named_state(model)
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict: expected a dict of names and arrays, got {state!r}")
    if strict and {*parameters, *buffers} != state.keys():
        raise ValueError(f"Model has the parameters {[*parameters, *buffers]}, got {list(state)}")
    if buffers and kernels.recorder() is not None:
        kernels.raise_unrecordable("load_state_dict")
    keys = IncompatibleKeys.compare([*parameters, *buffers], state)
    parameters = {name: p for name, p in parameters.items() if name in state}
    buffers = {name: array for name, array in buffers.items() if name in state}
    new: dict[str, np.ndarray] = {}
    for name, old in (parameters | buffers).items():
        what = f"load_state_dict, {name}"
        if isinstance(old, Tensor) or old.dtype in FLOATS:
            new[name] = as_real(state[name], old.dtype, what)
        else:
            values = as_array(state[name], what)
            new[name] = values.astype(old.dtype)
            if not np.array_equal(new[name], values):
                raise ValueError(f"{what}: expected values that {old.dtype} holds, got {values.dtype}")
        if new[name].shape != old.shape:
            raise ValueError(f"load_state_dict: {name} has shape {old.shape}, got {new[name].shape}")
    for name, p in parameters.items():
        p.data = new[name]
    for name, array in buffers.items():
        array[...] = new[name]
    return keys


def fill(model: BaseModel, file: File) -> None:
    """Set all values from a file, in a model that was made inside `meta_init()`."""
    parameters = model.named_parameters()
    specs = match_specs(file, state_specs(model), lossless=True)
    model._model_state.allocate(model, model._descendants())
    arrays = {name: p._data for name, p in parameters.items()} | model.buffers()
    file.read({name: array for name, array in arrays.items() if specs[name].dtype == array.dtype})
    for name, array in arrays.items():
        if specs[name].dtype != array.dtype:
            array[...] = file.arrays([name])[name]
    for p in parameters.values():
        p._bump_version()


def state_arrays(model: Function) -> dict[str, np.ndarray]:
    """Return the arrays of parameters and buffers by name, not copied."""
    parameters, buffers = named_state(model)
    return {name: p.data for name, p in parameters.items()} | buffers


def state_specs(model: BaseModel) -> dict[str, TensorSpec]:
    """Return shape and dtype in a file of parameters and buffers, by name; even for a model made in `meta_init()`."""
    parameters, buffers = named_state(model)
    exact = float64_buffers(model._descendants())
    return {
        name: TensorSpec(x.shape, model.dtype if x.dtype in FLOATS and id(x) not in exact else x.dtype)
        for name, x in (parameters | buffers).items()
    }


def match_specs(file: File, expected: dict[str, TensorSpec], lossless: bool) -> dict[str, TensorSpec]:
    """Return the names and specs of the model's arrays in a file. ValueError unless the file has all of the model's."""
    file.check_not_pytorch()
    specs_in_file = {name: spec for name, spec in file.specs.items() if not name.startswith(TRAINING_PREFIX)}
    file.check(expected, specs_in_file, lossless)
    return specs_in_file


def float64_buffers(functions: Iterable[Function]) -> set[int]:
    """Return the ids of the buffers that stay float64 in any model: the buffers of Functions that read frames."""
    return {id(a) for f in functions if f.frame_reader is f for a in f.buffers().values()}


def make_texts(model: BaseModel) -> dict[str, str]:
    """Return the texts of a file: structure, or why it can't be written, frozen parameters, columns, vocabularies."""
    frozen = [name for name, p in model.named_parameters().items() if not p.requires_grad]
    texts = {"caffelite.frozen": structure.to_json(frozen)} if frozen else {}
    if model._model_state.column_names is not None:
        texts["caffelite.columns"] = structure.to_json(model._model_state.column_names)
    if vocabularies := find_vocabularies(model):
        texts["caffelite.vocabularies"] = structure.to_json(
            {name: {"words": x.words, "characters": x.characters} for name, x in vocabularies.items()}
        )
    try:
        return {"caffelite.structure": structure.to_json(structure.describe(model)), **texts}
    except structure.UnwritableError as error:
        return {"caffelite.unwritten": str(error), **texts}


def read_frozen(model: Function, texts: Mapping[str, str]) -> set[str]:
    """Return the names of frozen parameters in the texts of a file. ValueError if the model lacks one of them."""
    frozen = strict_json(texts.get("caffelite.frozen", "[]"))
    if not isinstance(frozen, list) or not all(isinstance(name, str) for name in frozen):
        raise ValueError(f"expected a list of the frozen parameters' names, got {frozen!r}")
    if unknown := set(frozen) - model.named_parameters().keys():
        raise ValueError(f"the model has no parameter {min(unknown)}, which the file calls frozen")
    return set(frozen)


def read_columns(texts: Mapping[str, str]) -> list[list[Any] | None] | None:
    """Return the names of columns, for each input, in the texts of a file. ValueError if they are not such names."""
    columns = strict_json(texts.get("caffelite.columns", "null"))
    inputs = [] if columns is None else columns
    if not isinstance(inputs, list) or not all(names is None or isinstance(names, list) for names in inputs):
        raise ValueError(f"expected the names of columns, for each input, got {columns!r}")
    if not all(isinstance(name, str | int) for names in inputs for name in names or ()):
        raise ValueError(f"expected names of columns that are words or integers, got {columns!r}")
    return columns


def find_vocabularies(model: Function) -> dict[str, Vocabulary]:
    """Return the vocabularies in attributes of a model and the Functions in it: `vocabulary`, `reader.vocabulary`."""
    return {
        f"{path}{name}": x
        for path, function in _functions_by_path(model).items()
        for name, x in vars(function).items()
        if type(x) is Vocabulary
    }


def read_vocabularies(model: Function, texts: Mapping[str, str]) -> list[tuple[Function, str, Vocabulary]]:
    """Return the vocabularies in the texts of a file, each with the Function and the attribute that it belongs to.

    ValueError if they can't be the model's.
    """
    vocabularies = strict_json(texts.get("caffelite.vocabularies", "{}"))
    if not isinstance(vocabularies, dict):
        raise ValueError(f"expected vocabularies by name, got {vocabularies!r:.80}")
    functions, result = _functions_by_path(model), []
    for name, x in vocabularies.items():
        path, attribute = name[: name.rfind(".") + 1], name[name.rfind(".") + 1 :]
        owner = functions.get(path)
        is_free = type(getattr(owner, attribute, None)) in (type(None), Vocabulary)
        if owner is None or not is_free or not attribute.isidentifier() or attribute.startswith("_"):
            raise ValueError(f"the model can't have a vocabulary in an attribute {name!r}")
        if not isinstance(x, dict) or x.keys() != {"words", "characters"} or not isinstance(x["characters"], bool):
            raise ValueError(f"expected words and characters of the vocabulary {name}, got {x!r:.80}")
        words = x["words"]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not words:
            raise ValueError(f"expected a list of the words of the vocabulary {name}, got {words!r:.80}")
        if len(set(words)) < len(words):
            raise ValueError(f"the vocabulary {name} has a word twice")
        result.append((owner, attribute, Vocabulary.from_words(words, x["characters"])))
    return result


def _functions_by_path(model: Function) -> dict[str, Function]:
    """Return the model and all Functions in it, each once, by the prefix of their attributes: "", "blocks.2."."""
    return {"": model, **{f"{path}.": function for path, function in model._walk()}}


def freeze(model: Function, names: set[str]) -> None:
    """Freeze the parameters with these names, and unfreeze all others."""
    for name, p in model.named_parameters().items():
        p.requires_grad = name not in names
