"""The state of a model (parameters, buffers, structure, frozen parameters), and how files hold it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import warn
from caffelite.core.arrays import FLOATS, as_array, as_real
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.data.vocabulary import Vocabulary
from caffelite.files import safetensors as files
from caffelite.files import structure
from caffelite.functions import Columns


def named_state(model: Any) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
    """The parameters and the buffers by name. ValueError if a parameter and a buffer have the same name."""
    parameters, buffers = model.named_parameters(), model.buffers()
    if not parameters.keys().isdisjoint(buffers):
        raise ValueError(f"a parameter and a buffer have the name {min(parameters.keys() & buffers)}")
    return parameters, buffers


def state_dict(model: Any) -> dict[str, np.ndarray]:
    """Return copies of parameters and buffers by name; see `Model.state_dict`."""
    parameters, buffers = named_state(model)
    return {name: p.data.copy() for name, p in parameters.items()} | {k: x.copy() for k, x in buffers.items()}


def load_state_dict(model: Any, state: dict[str, Any]) -> None:
    """Set the model's values from a `state_dict`; see `Model.load_state_dict`."""
    parameters, buffers = named_state(model)
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict: expected a dict of names and arrays, got {state!r}")
    if {*parameters, *buffers} != state.keys():
        raise ValueError(f"Model has the parameters {[*parameters, *buffers]}, got {list(state)}")
    if buffers and kernels.recorder() is not None:
        kernels.refuse("load_state_dict")
    new: dict[str, np.ndarray] = {}
    for name, old in (parameters | buffers).items():
        what = f"load_state_dict, {name}"
        if isinstance(old, Tensor) or old.dtype in FLOATS:
            new[name] = as_real(state[name], old.dtype, what)
        else:
            given = as_array(state[name], what)
            new[name] = given.astype(old.dtype)
            if not np.array_equal(new[name], given):
                raise ValueError(f"{what}: expected values that {old.dtype} holds, got {given.dtype}")
        if new[name].shape != old.shape:
            raise ValueError(f"load_state_dict: {name} has shape {old.shape}, got {new[name].shape}")
    for name, p in parameters.items():
        p.data = new[name]
    for name, array in buffers.items():
        array[...] = new[name]


def save(model: Any, path: str | os.PathLike) -> None:
    """Write the model to a safetensors file; see `Model.save`."""
    texts = texts_of(model)
    files.write(path, arrays_of(model), texts)
    if reason := texts.get("caffelite.unwritten"):
        warn(f"{path} has values for `model.load`; caffelite.load can't make the model from it: {reason}", UserWarning)


def load(model: Any, path: str | os.PathLike) -> None:
    """Set parameters and buffers from a file; see `Model.load`."""
    with files.File(path) as file:
        found = found_in(file, forms_of(model), exactly=False)
        model.load_state_dict(file.arrays(found))


def fill(model: Any, file: files.File) -> None:
    """Set all values from a file, in a model that was made `without_values`."""
    parameters, buffers = named_state(model)
    expected, exact = _forms(model, parameters | buffers), exact_buffers(model._descendants())
    exact_names = {name for name, x in buffers.items() if id(x) in exact}
    older = {name for name in exact_names if name in file.forms and file.forms[name].dtype == model.dtype}
    expected.update({name: expected[name]._replace(dtype=model.dtype) for name in older})
    found_in(file, expected, exactly=True)
    model._own.allocate(model, model._descendants())
    now = {name: p._data for name, p in parameters.items()} | model.buffers()
    rounded = {name: np.empty_like(now[name], model.dtype) for name in older}
    file.read(now | rounded)
    for name, values in rounded.items():
        now[name][...] = values
    for p in parameters.values():
        p._note_change()


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """The arrays of parameters and buffers by name, not copied."""
    parameters, buffers = named_state(model)
    return {name: p.data for name, p in parameters.items()} | buffers


def forms_of(model: Any) -> dict[str, files.Form]:
    """Shape and dtype of parameters and buffers, by name. Also for a model that was made `without_values`."""
    parameters, buffers = named_state(model)
    return _forms(model, parameters | buffers)


def _forms(model: Any, state: dict[str, Any]) -> dict[str, files.Form]:
    """Shape and dtype that these parameters and buffers have in a file."""
    exact = exact_buffers(model._descendants())
    return {
        name: files.Form(x.shape, model.dtype if x.dtype in FLOATS and id(x) not in exact else x.dtype)
        for name, x in state.items()
    }


def found_in(file: files.File, forms: dict[str, files.Form], exactly: bool) -> dict[str, files.Form]:
    """The names and forms of the model's arrays in a file. ValueError unless the file has all that the model has."""
    file.refuse_pytorchs()
    found = {name: form for name, form in file.forms.items() if not name.startswith(files.OF_TRAINING)}
    file.check(forms, found, exactly)
    return found


def exact_buffers(functions: Iterable[Function]) -> set[int]:
    """The ids of the buffers that stay float64 in any model: the buffers of Columns and Splines."""
    return {id(a) for f in functions if isinstance(f, Columns) for a in f.buffers().values()}


def texts_of(model: Any) -> dict[str, str]:
    """The texts of a file: structure, or why it can't be written, frozen parameters, names of columns, vocabularies."""
    frozen = [name for name, p in model.named_parameters().items() if not p.requires_grad]
    found = {"caffelite.frozen": structure.as_text(frozen)} if frozen else {}
    if model._own.column_names is not None:
        found["caffelite.columns"] = structure.as_text(model._own.column_names)
    if vocabularies := vocabularies_of(model):
        found["caffelite.vocabularies"] = structure.as_text(
            {name: {"words": x.words, "characters": x.characters} for name, x in vocabularies.items()}
        )
    try:
        return {"caffelite.structure": structure.as_text(structure.described(model)), **found}
    except structure.Unwritable as error:
        return {"caffelite.unwritten": str(error), **found}


def frozen_in(model: Any, texts: Mapping[str, str]) -> set[str]:
    """The names of frozen parameters in the texts of a file. ValueError if the model does not have one of them."""
    frozen = files.strict_json(texts.get("caffelite.frozen", "[]"))
    if not isinstance(frozen, list) or not all(isinstance(name, str) for name in frozen):
        raise ValueError(f"expected a list of the frozen parameters' names, got {frozen!r}")
    if unknown := set(frozen) - model.named_parameters().keys():
        raise ValueError(f"the model has no parameter {min(unknown)}, which the file calls frozen")
    return set(frozen)


def columns_in(texts: Mapping[str, str]) -> list[list[Any] | None] | None:
    """The names of columns, for each input, in the texts of a file. ValueError if they are not such names."""
    given = files.strict_json(texts.get("caffelite.columns", "null"))
    inputs = [] if given is None else given
    if not isinstance(inputs, list) or not all(names is None or isinstance(names, list) for names in inputs):
        raise ValueError(f"expected the names of columns, for each input, got {given!r}")
    if not all(isinstance(name, str | int) for names in inputs for name in names or ()):
        raise ValueError(f"expected names of columns that are words or integers, got {given!r}")
    return given


def vocabularies_of(model: Any) -> dict[str, Vocabulary]:
    """The vocabularies in attributes of a model and of the Functions in it: `vocabulary`, `reader.vocabulary`."""
    return {
        f"{path}{name}": x
        for path, function in _named_functions(model).items()
        for name, x in vars(function).items()
        if type(x) is Vocabulary
    }


def vocabularies_in(model: Any, texts: Mapping[str, str]) -> list[tuple[Function, str, Vocabulary]]:
    """The vocabularies in the texts of a file, each with the Function and the attribute that it belongs to.

    ValueError if they can't be the model's.
    """
    given = files.strict_json(texts.get("caffelite.vocabularies", "{}"))
    if not isinstance(given, dict):
        raise ValueError(f"expected vocabularies by name, got {given!r:.80}")
    functions, found = _named_functions(model), []
    for name, x in given.items():
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
        found.append((owner, attribute, Vocabulary.of(words, x["characters"])))
    return found


def _named_functions(model: Any) -> dict[str, Function]:
    """The model and all Functions in it, each once, by the beginnings of their attributes' names: "", "blocks.2."."""
    found, seen = {"": model}, {id(model)}

    def add(function: Function, path: str) -> None:
        for name, child in function._named_children():
            if id(child) not in seen:
                seen.add(id(child))
                found[f"{path}{name}."] = child
                add(child, f"{path}{name}.")

    add(model, "")
    return found


def freeze(model: Any, names: set[str]) -> None:
    """Freeze the parameters with these names, and unfreeze all others."""
    for name, p in model.named_parameters().items():
        p.requires_grad = name not in names
