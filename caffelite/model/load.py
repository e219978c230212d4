"""`load`: make a Model from a file written by `Model.save` or by `Checkpoint`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from caffelite.core.modes import meta_init
from caffelite.files import hub, structure
from caffelite.files.safetensors import File, strict_json
from caffelite.files.state import fill, freeze, read_columns, read_frozen, read_vocabularies
from caffelite.model.model import Model
from caffelite.training import inputs


def load(path: str | os.PathLike[str], custom: Mapping[str, Any] | None = None) -> Model:
    """Return the Model in a file written by `Model.save` or by `Checkpoint`.

    The model has the file's parameters, buffers and vocabularies. Arrays of float16 and bfloat16 are converted to the
    model's dtype, which can represent all their values. `custom` maps names to the classes of the model's Functions
    that are not caffelite's, and to functions used as initializers: `load("net.safetensors", custom={"Swish": Swish})`.
    `load` calls them with what their `arguments()` returned. It calls nothing else named in a file and imports nothing,
    so you can load files from people you don't know.

    The path may be an address on the Hugging Face Hub: `load("hf://owner/name")` downloads, once, what
    `Model.push_to_hub` uploaded. `hf://owner/name@revision/file.safetensors` names another revision or file. This needs
    huggingface_hub: `pip install huggingface_hub`.

    Raise OSError if the path can't be read. Raise ValueError with the reason if the file is not valid, before it
    allocates memory for the contents. If a file holds only weights, use `Model.load`.
    """
    custom = {} if custom is None else custom
    if not isinstance(custom, Mapping) or not all(callable(x) for x in custom.values()):
        raise TypeError(f'custom: expected classes by name, {{"Swish": Swish}}, got {custom!r}')
    with File(hub.local_path(path)) as file:
        file.check_not_pytorch()
        if "caffelite.structure" not in file.texts:
            reason = file.texts.get("caffelite.unwritten", "its structure was not written")
            raise file.error(f"has parameters and no structure ({reason}): make the model, and call `model.load`")
        try:
            with meta_init():
                entries = strict_json(file.texts["caffelite.structure"])
                model = structure.build(entries, custom)
                if not isinstance(model, Model):
                    raise ValueError(f"expected a Model, but its structure is of a {type(model).__name__}")
                frozen, columns = read_frozen(model, file.texts), read_columns(file.texts)
                vocabularies = read_vocabularies(model, file.texts)
        except (ValueError, RecursionError, MemoryError) as error:
            raise file.error(error) from error
        fill(model, file)
        freeze(model, frozen)
        inputs.remember_columns(model, columns)
        for function, name, vocabulary in vocabularies:
            setattr(function, name, vocabulary)
    return model
