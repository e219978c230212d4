"""The layers and constants of a model in C, each written once."""

from __future__ import annotations

import re

import numpy as np

from caffelite._support.text_table import shorten
from caffelite.c import emit
from caffelite.c.emit import HELPERS, Shape, as_comment, as_pointer, parameter
from caffelite.c.layers import CLayer
from caffelite.core.function import Function, format_shape

MAX_REPR = 80  # characters of a Function's `repr`


class Definitions:
    """The `texts` of a model's layers and constants in C, for numbers of a dtype."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype, self.number_type = dtype, "float" if dtype == np.float32 else "double"
        self.texts: list[str] = []
        self._used: set[str] = set()  # names of helpers
        self.constant_bytes = 0
        self._layers: dict[tuple, str] = {}  # names of layers, by what they were made of
        self._suffixes: dict[tuple, str] = {}  # the place of each Function's first use, as names say it
        self._constants: dict[tuple, str] = {}  # names of arrays outside of layers, by their bytes

    def add_constant(self, what: str, array: np.ndarray, shape: Shape) -> str:
        """Return the name of a flat array of this shape, which is defined if no other has the same numbers."""
        key = array.dtype.char, array.tobytes()
        if key not in self._constants:
            self._constants[key] = name = f"constant_{len(self._constants)}"
            comment = as_comment(shorten(what, MAX_REPR))
            self.texts.append(f"/* {comment}: {format_shape(shape)} */\n{self._define_constant(name, array)}\n")
        return self._constants[key]

    def add_layer(
        self, function: Function, path: Shape, layer: CLayer, aliases: dict[str, str], shapes: list[Shape]
    ) -> str:
        """Return the name of a layer, which is defined if no other is the same.

        Inputs that are the same array, or y's, have its name as their alias. If they see the array in another shape, a
        pointer of that shape has their name.
        """
        key = (*_identity(function, layer), *layer.body, *shapes, *aliases.values())
        if key not in self._layers:
            self._layers[key] = self._define_layer(function, path, layer, aliases, shapes)
        return self._layers[key]

    def _define_layer(
        self, function: Function, path: Shape, layer: CLayer, aliases: dict[str, str], shapes: list[Shape]
    ) -> str:
        """Write a layer in C, and return its name."""
        suffix = "".join(f"_{i}" for i in path)
        first = self._suffixes.setdefault(_identity(function, layer), suffix)  # the layer with the same weights
        views, pointers = {"y": layer.y, **layer.inputs}, []
        body = "\n".join(layer.body)
        for name, other in aliases.items():
            if views[name] == views[other]:
                body = re.sub(rf"\b{name}\[", f"{other}[", body)
            else:
                kind = as_pointer("", views[name])
                pointers.append(f"const {as_pointer(name, views[name])} = (const {kind}){other};")
        body = "\n".join([*pointers, body])
        for name in layer.constants:
            body = re.sub(rf"\b{name}\[", f"{name}{first}[", body)
        own_inputs = {name: layer.inputs[name] for name, other in aliases.items() if other == name}
        types = {name: layer.types.get(name, "float") for name in own_inputs}
        inputs = [f"const {parameter(name, view, types[name])}" for name, view in own_inputs.items()]
        inputs += [parameter(name, view) for name, view in layer.scratch.items()]
        function_name = f"{type(function).__name__.lower()}{suffix}"
        what = f"{'.'.join(map(str, path))}: {shorten(repr(function), MAX_REPR)}"
        sizes = f"{', '.join(map(format_shape, shapes[:-1]))} -> {format_shape(shapes[-1])}"
        in_place = ", in place" if "y" in aliases.values() else ""
        self.texts.append(f"/* {as_comment(what)}: {sizes}{in_place} */")
        if first == suffix:
            self.texts += [self._define_constant(f"{name}{first}", a) for name, a in layer.constants.items()]
        attribute = "NOIPA" if pointers or emit.has_two_orders(body) else "NOCLONE"
        signature = emit.wrap_items(f"static void {function_name}(", [*inputs, parameter("y", layer.y)], ")")
        self.texts.append(self.convert_code(f"{attribute}\n{signature}\n{{\n{emit.indent(body)}\n}}\n"))
        tables = [line for line in layer.body if line.startswith("static const int ")]
        self.constant_bytes += 4 * sum([int(n) for line in tables for n in re.findall(r"\[(\d+)\] = ", line)])
        return function_name

    def helpers(self) -> list[str]:
        """Return the functions of numbers that the texts call."""
        return [f"{self.convert_code(text)}\n" for name, text in HELPERS.items() if name in self._used]

    def convert_code(self, code: str) -> str:
        """C for numbers of the model's dtype, of C for `float`."""
        self._used |= {name for name in HELPERS if re.search(rf"\b{name}\(", code)}
        return code if self.number_type == "float" else emit.to_double(code)

    def _define_constant(self, name: str, array: np.ndarray) -> str:
        """Return the definition of an array of weights."""
        array = array.astype(self.dtype) if array.dtype.kind == "f" else array
        self.constant_bytes += array.nbytes
        number = self.number_type if array.dtype.kind == "f" else f"{array.dtype}_t"
        return emit.define_array(f"static const {number} {name}{emit.brackets(array.shape)} =", array)


def _identity(function: Function, layer: CLayer) -> tuple:
    """Return a key that is the same for layers of Functions that compute the same with the same weights, as copies."""
    arrays = *map(id, function.parameters()), *map(id, function.buffers().values())
    return repr(function), *arrays, *[(name, array.shape) for name, array in layer.constants.items()]
