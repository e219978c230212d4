"""The file of a training step: the memory, a function for each call, and the functions that users call."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.text_table import format_bytes, shorten
from caffelite.c import kernel_calls
from caffelite.c.capture import Capture, Snapshots
from caffelite.c.emit import INDICES, as_comment, define_array, indent, loop, loops, wrap_items
from caffelite.c.memory import C_TYPES, SEEDED, SIZES, Memory, Region, plus
from caffelite.c.training_check import check_program
from caffelite.core.function import format_shape
from caffelite.model.model import Model
from caffelite.optimizers import Optimizer
from caffelite.program.ir import Instruction, get_owner

COMMENT = """\
{file}: a neural network that learns, written by caffelite.

{signatures}

{name}_init sets parameters and optimizer to what they were in the export. {name}_train makes a step on a batch and
returns its loss, {loss!r}, with {rule}. It returns NAN and learns nothing if a label or an index is wrong, or if
a number is not finite. {name}_learning_rate sets the rate of the next steps. {name}_state copies all that a training
changes to {macro}_STATE numbers if `save`, or back, and returns {macro}_STATE. Parameters come first.

{rows}
    memory     {memory}
    constants  {constants}
    a step     {flops} multiplications and additions

Arrays are in C order, and must not overlap. To compile it:

    cc -std=c99 -O3 -c {file}

and -lm to link. Faster: -O3 -march=native -fno-math-errno. Small: -O2 or -Os. With -D{macro}_CHECK, the file is a
program that repeats the first three steps of the export on one batch, and returns 1 if a loss differs.

{summary}"""


class TrainingFile:
    """The parts of the file: the memory, the functions of the calls, and what users call."""

    def __init__(
        self,
        model: Model,
        loss: Any,
        optimizer: Optimizer,
        name: str,
        snapshots: Snapshots,
        train: Capture,
        predict: Capture,
        num_inputs: int,
    ) -> None:
        self.model, self.loss, self.optimizer, self.name = model, loss, optimizer, name
        self.train, self.predict, self.num_inputs = train, predict, num_inputs
        self.memory = Memory(model.dtype, array_names(model, optimizer), snapshots)
        self.real = self.memory.number_type
        num_targets = len(train.inputs) - num_inputs
        self.inputs, self.targets = number("x", num_inputs), number("y", num_targets)
        self.outputs = number("y", len(predict.results))
        self.functions: list[str] = []
        self._add_captures()
        self.train_calls = self._write_calls(train, "return NAN;")
        self.predict_calls = self._write_calls(predict, "goto fail;")

    def _add_captures(self) -> None:
        """Plan the memory of both steps."""
        self.train.instructions = kernel_calls.defer_updates(self.train.instructions)
        try:
            uses = [[*map(kernel_calls.used_operands, x.instructions)] for x in (self.train, self.predict)]
        except kernel_calls.UnsupportedKernelError as error:
            raise TypeError(f"there is no C for the kernel {error}{self._find_layer(str(error))}") from None
        self.memory.add(self.train, [*self.inputs, *self.targets], uses[0])
        self.memory.add(self.predict, self.inputs, uses[1])
        for array, output in zip(self.predict.results, self.outputs, strict=True):
            if self._is_plain_result(array):
                self.memory.set_output(get_owner(array), output)
        self.memory.finish({id(self.optimizer.hyper)})

    def _find_layer(self, kernel: str) -> str:
        """Return ", of this layer", if one of the forward's calls is of this kernel."""
        for call in self.train.instructions:
            if call.call.facts.kernel == kernel and id(call) in self.train.layers:
                return f", of {shorten(self.train.layers[id(call)], 80)}"
        return ""

    def _is_plain_result(self, array: np.ndarray) -> bool:
        """Return whether a result is all of an array in C order that predict writes, and training does not use."""
        owner = get_owner(array)
        written = any(b.owner() is owner for call in self.predict.instructions for b in call.writes)
        is_whole = array.nbytes == owner.nbytes and array.flags.c_contiguous
        others = [get_owner(x) for x in self.predict.results]
        return written and is_whole and sum(x is owner for x in others) == 1

    # ---- calls ----

    def _write_calls(self, capture: Capture, on_stop: str) -> list[str]:
        types = dict.fromkeys(self.outputs, f"{self.real} *") | self._input_types(capture)
        return write_calls(capture, self.memory, types, self.functions, on_stop, parameter_places(self.model))

    def _input_types(self, capture: Capture) -> dict[str, str]:
        """Return the types of the caller's arrays that a step reads."""
        names = [*self.inputs, *self.targets] if capture is self.train else self.inputs
        return {x: f"const {C_TYPES[a.dtype.name]} *" for x, a in zip(names, capture.inputs, strict=True)}

    # ---- text ----

    def render(self, file_name: str, arrays: list[np.ndarray], losses: tuple[list[float], float] | None) -> str:
        predict = self._predict_function()
        main = "" if losses is None else check_program(self, arrays, *losses)
        library = kernel_calls.find_functions([*self.functions, predict], self.real)
        parts = [
            self._comment(file_name),
            (kernel_calls.LIBRARY / "kernel.h").read_text(encoding="utf-8"),
            self._declarations(),
            *[piece + "\n" for piece in library],
            "\n".join([define_constant(*constant) for constant in self._constant_arrays()]),
            self._struct(),
            *self.functions,
            self._init_function(),
            self._train_function(),
            predict,
            self._rate_function(),
            self._state_function(),
            main,
        ]
        return "\n".join([part for part in parts if part])

    @property
    def signatures(self) -> dict[str, str]:
        types, real = self._input_types(self.train), self.real
        inputs = [f"{types[x]}{x}" for x in self.inputs]
        targets = [f"{types[x]}{x}" for x in self.targets]
        outputs = [f"{real} *{x}" for x in self.outputs]
        return {
            "init": f"void {self.name}_init(void)",
            "train": wrap_items(f"{real} {self.name}_train(", [*inputs, *targets], ")"),
            "predict": wrap_items(f"void {self.name}_predict(", [*inputs, *outputs], ")"),
            "learning_rate": f"void {self.name}_learning_rate({real} rate)",
            "state": f"int {self.name}_state({real} *state, int save)",
        }

    def _declarations(self) -> str:
        macro = self.name.upper()
        length = sum(-(-count // SIZES[self.real]) for _, count in self._segments())
        lines = [f"#define {macro}_BYTES {self.num_bytes}", f"#define {macro}_STATE {length}", ""]
        return "\n".join([*lines, *[f"{text};" for text in self.signatures.values()], ""])

    def _comment(self, file_name: str) -> str:
        types = self._input_types(self.train)
        rows = []
        for x, array in zip([*self.inputs, *self.targets], self.train.inputs, strict=True):
            rows.append(f"{x:<11}{types[x].removesuffix(' *').removeprefix('const '):<9}{format_shape(array.shape)}")
        for x, array in zip(self.outputs, self.predict.results, strict=True):
            rows.append(f"{x:<11}{self.real:<9}{format_shape(array.shape)}, of {self.name}_predict")
        constants = sum(values.size * SIZES[kind] for _, values, kind in self._constant_arrays())
        flops = sum(call.call.flops or 0 for call in self.train.instructions) // 2
        macro = self.name.upper()
        signatures = "\n".join([f"    {text};" for text in self.signatures.values()])
        text = COMMENT.format(
            file=file_name,
            signatures=signatures,
            rows="\n".join([f"    {row}" for row in rows]),
            name=self.name,
            macro=macro,
            loss=self.loss,
            rule=type(self.optimizer).__name__,
            memory=f"{format_bytes(self.num_bytes)}, static: {self._memory_text()}",
            constants=format_bytes(constants),
            flops=f"{flops:,}",
            summary=self.model.summary(),
        )
        return f"/*\n * {as_comment(text)}\n */\n"

    def _memory_text(self) -> str:
        state = sum(r.size * SIZES[r.type] for r in self._ram() if r.kind == "state")
        scratch = sum(r.size * SIZES[r.type] for r in self._ram() if r.kind == "scratch")
        rest = self.num_bytes - state - scratch
        return (
            f"{format_bytes(state)} state, {format_bytes(scratch)} gradients and results, {format_bytes(rest)} shared"
        )

    # ---- memory ----

    def _ram(self) -> list[Region]:
        """Return the regions that steps write, and the hyper-parameters: the largest elements first."""
        regions = [r for r in self.memory.regions if r.kind != "constant"]
        return sorted(regions, key=lambda r: -SIZES[r.type])

    def _members(self) -> list[tuple[str, str, int]]:
        """Return the members of the struct: type, name and length."""
        members = [(r.type, r.name, r.size) for r in self._ram()]
        members += [(arena.type, arena.name, arena.size) for arena in self.memory.arenas.values()]
        members += [(self.real, "room", self.memory.room)] if self.memory.room else []
        return sorted(members, key=lambda member: -SIZES[member[0]])

    @property
    def num_bytes(self) -> int:
        total = sum(SIZES[kind] * length for kind, _, length in self._members())
        return -(-total // 8) * 8

    def _struct(self) -> str:
        members = "\n".join([f"    {kind} {name}[{length}];" for kind, name, length in self._members()])
        macro = self.name.upper()
        return (
            f"static struct {{\n{members}\n}} ram;\n"
            "#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L\n"
            f'_Static_assert(sizeof ram <= {macro}_BYTES, "{macro}_BYTES is too small");\n#endif\n'
        )

    def _constant_arrays(self) -> list[tuple[str, np.ndarray, str]]:
        """Return all constants with their types: of the steps, tables, and the first values of state."""
        arrays = [(r.name, r.first_values, r.type) for r in self.memory.regions if r.kind == "constant"]
        arrays += [(name, values, C_TYPES[values.dtype.name]) for name, values in self.memory.tables.values()]
        state = [r for r in self._ram() if r.kind == "state" and has_numbers(r)]
        arrays += [(f"first_{r.name}", r.first_values, r.type) for r in state]
        return [(name, values, kind) for name, values, kind in arrays if values is not None]

    def _init_function(self) -> str:
        lines = []
        for r in self._ram():
            if r.kind == "state":
                value = f"first_{r.name}[i]" if has_numbers(r) else "0"
                lines.append(indent(loop("i", r.size, f"ram.{r.name}[i] = {value};")))
        return "\n".join([self.signatures["init"], "{", *lines, "}", ""])

    # ---- the functions that users call ----

    def _train_function(self) -> str:
        lines = [*self.train_calls, f"return {element(self.memory.find_array(self.train.results[0]))};"]
        return "\n".join([self.signatures["train"], "{", indent("\n".join(lines)), "}", ""])

    def _predict_function(self) -> str:
        lines, sizes = [*self.predict_calls], []
        for output, array in zip(self.outputs, self.predict.results, strict=True):
            sizes.append((output, array.size))
            if not self._is_plain_result(array):
                strides = [s // array.itemsize for s in array.strides]
                lines.append(copy_result(output, self.memory.find_array(array), array.shape, strides))
        if any("goto fail" in line for line in lines):
            fill = "\n".join([loop("i", size, f"{x}[i] = NAN;") for x, size in sizes])
            text = indent("\n".join([*lines, "return;"])) + "\nfail:\n" + indent(fill)
        else:
            text = indent("\n".join(lines))
        return "\n".join([self.signatures["predict"], "{", text, "}", ""])

    def _rate_function(self) -> str:
        lines = []
        hypers = [r for r in self._ram() if r.buffer.owner() is self.optimizer.hyper]
        columns = len(self.optimizer.hyper_names)
        for r in hypers:
            lines += [f"    ram.{r.name}[{at}] = rate;" for at in range(0, r.size, columns)]
        ends = [call.operands[2] for call in self.train.instructions if call.call.facts.kernel == "follow"]
        lines += [f"    {element(self.memory.pointer(t))} = -1;  /* the schedule ends */" for t in ends]
        return "\n".join([self.signatures["learning_rate"], "{", *(lines or ["    (void)rate;"]), "}", ""])

    def _segments(self) -> list[tuple[str, int]]:
        """Return what `net_state` copies, as places and their bytes, the parameters first."""
        state = [r for r in self._ram() if r.kind == "state"]
        spans: list[tuple[Region, int, int]] = []
        rest = {r: [(r.begin, r.end)] for r in state}
        for p in self.model.parameters():
            owner = get_owner(p._data)
            begin = kernels.address(p._data) - kernels.address(owner)
            for r in state:
                if r.buffer.owner() is owner and r.begin <= begin < r.end:
                    spans.append((r, begin, begin + p.data.nbytes))
                    rest[r] = cut_out(rest[r], begin, begin + p.data.nbytes)
        spans += [(r, a, b) for r, parts in rest.items() for a, b in parts]
        merged: list[tuple[Region, int, int]] = []
        for r, begin, end in spans:
            if merged and merged[-1][0] is r and merged[-1][2] == begin:
                merged[-1] = r, merged[-1][1], end
            else:
                merged.append((r, begin, end))
        return [(place(r, a), (b - a) // r.dtype.itemsize * SIZES[r.type]) for r, a, b in merged]

    def _state_function(self) -> str:
        rows = [f"{{(unsigned char *)({where}), {count}}}" for where, count in self._segments()]
        table = wrap_items("    const struct { unsigned char *bytes; int count; } parts[] = {", rows, "};", " " * 8)
        return (
            f"{self.signatures['state']}\n{{\n{table}\n"
            "    unsigned char *to = (unsigned char *)state;\n"
            f"    for (int i = 0; i < {len(rows)}; i++) {{\n"
            "        for (int k = 0; k < parts[i].count; k++)\n"
            "            if (save)\n                to[k] = parts[i].bytes[k];\n"
            "            else\n                parts[i].bytes[k] = to[k];\n"
            f"        to += (parts[i].count + {SIZES[self.real] - 1}) / {SIZES[self.real]} * {SIZES[self.real]};\n"
            f"    }}\n    return {self.name.upper()}_STATE;\n}}\n"
        )


# ---- calls -----------------------------------------------------------------------------------------------------------


def write_calls(
    capture: Capture,
    memory: Memory,
    types: dict[str, str],
    functions: list[str],
    on_stop: str,
    places: dict[tuple[int, int], str],
) -> list[str]:
    """Add a function for each call to `functions`, and return the statements that call them, checks of inputs first.

    Calls that do the same share a function.
    `types` are the types of the caller's arrays, by name. `places` are the names of arrays, for comments.
    """
    checks: list[str] = []
    statements: list[str] = []
    for call in capture.instructions:
        body = kernel_calls.write_call(call, memory)
        if body is None:
            continue
        arrays = memory.inputs_in(body.text)
        parameters = ", ".join([f"{types[x]}{x}" for x in arrays]) or "void"
        kind = "int" if body.may_stop else "void"
        code = f"({parameters})\n{{\n{indent(body.text)}\n}}\n"
        twin = next((function for function in functions if function.endswith(code)), None)  # of the other step
        if twin is not None:
            name = re.findall(r"^APART static \w+ (\w+)", twin, re.M)[0]
        else:
            name = f"{call.call.facts.kernel}_{len(functions)}"
            comment = as_comment(describe_call(call, capture, places))
            functions.append(f"/* {comment} */\nAPART static {kind} {name}{code}")
        text = f"{name}({', '.join(arrays)})"
        statement = f"if (!{text})\n    {on_stop}" if body.may_stop else f"{text};"
        is_check = call.call.facts.kernel.startswith("check_") and bool(arrays)
        (checks if is_check else statements).append(statement)
    return checks + statements


def describe_call(call: Instruction, capture: Capture, places: dict[tuple[int, int], str]) -> str:
    """Return the layer of a call, if it is known, its kernel, its shapes, and the parameters that it uses."""
    operands = [x for x in call.operands if x is not None]
    shapes = [format_shape(x.shape) for x in operands]
    if call.call.facts.kernel == "pack":  # in C, a matrix
        shapes = [format_shape(call.call.facts.sizes[:2])]
    layer = capture.layers.get(id(call))
    what = f"{shorten(layer, 60)}: " if layer is not None else ""
    keys = [(id(x.buffer.owner()), x.offset) for x in operands if not x.buffer.is_temporary]
    names = [places[key] for key in keys if key in places]
    return f"{what}{call.call.name} {', '.join(shapes[:3])}{'; ' if names else ''}{', '.join(names)}"


def parameter_places(model: Model) -> dict[tuple[int, int], str]:
    """Return the names of parameters and their gradients, by the ids of the arrays that own the memory, and offsets."""
    places: dict[tuple[int, int], str] = {}
    for name, p in model.named_parameters().items():
        for text, array in ((name, p._data), (f"gradient of {name}", p._gradient)):
            if array is not None:
                owner = get_owner(array)
                places[id(owner), kernels.address(array) - kernels.address(owner)] = text
    return places


# ---- small parts -----------------------------------------------------------------------------------------------------


def number(letter: str, count: int) -> list[str]:
    """Return names of arrays: x, or x_1, x_2 and so on."""
    return [letter] if count == 1 else [f"{letter}_{i + 1}" for i in range(count)]


def array_names(model: Model, optimizer: Optimizer) -> dict[int, str]:
    """Return names in C for the arrays that a training changes, by the ids of the arrays that own the memory."""
    names: dict[int, str] = {}
    for tensors in (optimizer.parameters, model.parameters()):
        for p in tensors:
            if p._gradient is not None:
                names[id(get_owner(p._gradient))] = "gradients"
            names[id(get_owner(p._data))] = "parameters"
    for name, array in model.buffers().items():
        names.setdefault(
            id(get_owner(array)), "".join([x if x.isalnum() and x.isascii() else "_" for x in f"buffer_{name}"])
        )
    names[id(optimizer.hyper)] = "hyper"
    for entry in optimizer._schedule_state._rates_and_t:
        if entry is not None:
            names[id(get_owner(entry[0]))], names[id(get_owner(entry[1]))] = "rates", "schedule_step"
    for array in (optimizer._state_arrays or {}).values():
        names[id(get_owner(array))] = "optimizer_state"
    if isinstance(steps := vars(optimizer).get("steps"), np.ndarray):
        names[id(get_owner(steps))] = "optimizer_steps"
    return names


def has_numbers(region: Region) -> bool:
    """Return whether a first value of a region is not 0."""
    return region.first_values is not None and bool(region.first_values.any())


def define_constant(name: str, values: np.ndarray, kind: str) -> str:
    """Return the definition of a constant array of this type in C."""
    head = f"static const {kind} {name}[{values.size}] ="
    if kind == SEEDED:
        return f"{head} {{{', '.join([f'{int(x) & 0xFFFFFFFFFFFFFFFF}u' for x in values])}}};"
    return define_array(head, values)


def copy_result(output: str, pointer: str, shape: Sequence[int], strides: Sequence[int]) -> str:
    """Return loops that copy an array of any strides to an output in C order."""
    counts = dict(zip(INDICES, shape, strict=False))
    name, _, offset = pointer.partition(" + ")
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    here, there = [
        " + ".join([*first, *[f"{i} * {n}" if n != 1 else i for i, n in zip(counts, numbers, strict=True)]]) or "0"
        for first, numbers in (([], steps), ([offset] if offset else [], strides))
    ]
    return "\n".join(loops(counts, f"{output}[{here}] = {name}[{there}];"))


def element(pointer: str) -> str:
    """Return C for the first element behind a pointer."""
    name, _, offset = pointer.partition(" + ")
    return f"{name}[{offset or 0}]"


def place(region: Region, byte: int) -> str:
    return plus(f"ram.{region.name}", (byte - region.begin) // region.dtype.itemsize)


def cut_out(spans: list[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    """Return spans without what is between `begin` and `end`."""
    parts = [part for a, b in spans for part in ((a, min(b, begin)), (max(a, end), b))]
    return [(a, b) for a, b in parts if a < b]
