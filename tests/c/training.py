"""Steps of training as C: written, compiled together, and run beside caffelite."""

import ctypes
import os
import shutil
import subprocess
from typing import Any, NamedTuple

import numpy as np
import pytest

import caffelite as cl
from caffelite import c
from caffelite.c.capture import Snapshots, capture_step
from caffelite.c.emit import indent
from caffelite.c.kernel_calls import LIBRARY, find_functions, used_operands
from caffelite.c.memory import C_TYPES, Memory
from caffelite.c.training_file import copy_result, define_constant, write_calls
from tests.tools.fuzz_c_export import CC, STRICT

STEPS = 100
LIMITS = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}

needs_shared_library = pytest.mark.skipif(CC is None or os.name == "nt", reason="no compiler of shared libraries")


def compilers():
    """Return the compilers that are installed, by their names."""
    found = {"gcc": shutil.which("gcc"), "clang": shutil.which("clang") or shutil.which("clang-14")}
    return {name: path for name, path in found.items() if path}


def compile_library(folder, sources, *flags, cc=CC):
    """Compile texts of C, by name, to one shared library, with all warnings as errors, and load it."""
    paths = []
    for name, text in sources.items():
        paths.append(folder / f"{name}.c")
        paths[-1].write_text(text, encoding="utf-8")
    library = folder / f"library{len(list(folder.glob('*.so')))}.so"
    command = [cc, *STRICT, *(flags or ["-O1"]), "-fPIC", "-shared", *map(str, paths), "-lm", "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(library))


def to_c(array):
    """Return an array as C reads it: contiguous, and integers of 32 bits."""
    return np.ascontiguousarray(array, np.int32 if array.dtype == np.int64 else array.dtype)


def pointers(*arrays):
    """Return the addresses of arrays for a call. The arrays must live until it returns."""
    return [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]


def real_type(dtype):
    return ctypes.c_float if dtype == np.float32 else ctypes.c_double


# ---- nets ------------------------------------------------------------------------------------------------------------


class Net(NamedTuple):
    """What a training needs: the data are enough for STEPS batches."""

    model: cl.Model
    loss: Any
    optimizer: cl.Optimizer
    batch_size: int
    x: tuple
    y: tuple
    options: dict = {}  # noqa: RUF012

    def write(self, path, name="net", **options):
        """Write the step, and return the file's text."""
        shapes = tuple([x.shape[1:] for x in self.x])
        given = {"input_shape": shapes if len(shapes) > 1 else shapes[0], "name": name, **self.options, **options}
        c.export_training(
            self.model, path, loss=self.loss, optimizer=self.optimizer, batch_size=self.batch_size, **given
        )
        return path.read_text(encoding="utf-8")

    def batch(self, step):
        """Return inputs and targets of a step."""
        rows = slice(step * self.batch_size, (step + 1) * self.batch_size)
        return [x[rows] for x in self.x], [y[rows] for y in self.y]

    def fit(self, steps=STEPS):
        """Return the losses of steps, which `fit` makes."""
        losses, options = [], {name: x for name, x in self.options.items() if name == "clip_norm"}
        for step in range(steps):
            x, y = [tuple(arrays) if len(arrays) > 1 else arrays[0] for arrays in self.batch(step)]
            history = self.model.fit(
                x,
                y,
                loss=self.loss,
                optimizer=self.optimizer,
                batch_size=self.batch_size,
                shuffle=False,
                verbose=0,
                **options,
            )
            losses.append(history["loss"][0])
        return np.array(losses)

    def train_in_c(self, library, name="net", steps=STEPS):
        """Return the losses of steps in C, from `net_init` on."""
        train, losses = getattr(library, f"{name}_train"), []
        train.restype = real_type(self.model.dtype)
        getattr(library, f"{name}_init")()
        for step in range(steps):
            arrays = [self.convert(a) for part in self.batch(step) for a in part]
            losses.append(train(*pointers(*arrays)))
        return np.array(losses)

    def convert(self, array):
        """Return an array of the data as C reads it. The numbers of tables stay float64."""
        is_table = isinstance(self.model.functions[0], cl.Columns) if self.model.is_sequence() else False
        return to_c(array.astype(self.model.dtype) if array.dtype.kind == "f" and not is_table else array)

    def predict_in_c(self, library, name="net"):
        """Return the outputs for the first batch in C, and the model's."""
        x, _ = self.batch(0)
        outputs = self.model.predict(tuple(x) if len(x) > 1 else x[0])
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        arrays, results = [self.convert(a) for a in x], [np.empty(y.shape, self.model.dtype) for y in outputs]
        getattr(library, f"{name}_predict")(*pointers(*arrays, *results))
        return results, outputs


# ---- any step --------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A function of arrays that kernels compute, as a function of C."""

    text: str
    kernels: set
    shapes: list  # of the results, with their dtypes


def write_step(name, step, arrays, dtype):
    """Return a function of C that computes the results of a step, and reads its inputs."""
    snapshots = Snapshots()
    step.__module__ = "caffelite.test"  # so nothing watches what the test's code reads
    capture = capture_step(step, arrays, snapshots)
    inputs = [f"x_{i}" for i in range(len(arrays))]
    outputs = [f"y_{i}" for i in range(len(capture.results))]
    memory = Memory(np.dtype(dtype), {}, snapshots)
    memory.add(capture, inputs, [used_operands(call) for call in capture.instructions])
    memory.finish(set())
    types = {x: f"const {C_TYPES[a.dtype.name]} *" for x, a in zip(inputs, capture.inputs, strict=True)}
    functions, copies = [], []
    statements = write_calls(capture, memory, types, functions, "return 0;", {})
    results = [y for y in capture.results if isinstance(y, np.ndarray) and y.size]
    for y, output in zip(results, outputs, strict=False):
        strides = [s // y.itemsize for s in y.strides]
        copies.append(copy_result(output, memory.find_array(y), y.shape, strides))
    parameters = [f"{types[x]}{x}" for x in inputs]
    parameters += [f"{C_TYPES[y.dtype.name]} *{output}" for y, output in zip(results, outputs, strict=False)]
    voids = [f"(void){x};" for x in inputs]
    members = [(r.type, r.name, r.size) for r in memory.regions if r.kind != "constant"]
    members += [(a.type, a.name, a.size) for a in memory.arenas.values()]
    members += [(memory.number_type, "room", max(memory.room, 1))]
    struct = "\n".join([f"    {kind} {member}[{size}];" for kind, member, size in members])
    constants = [(r.name, r.first_values, r.type) for r in memory.regions if r.kind == "constant"]
    constants += [(name, values, C_TYPES[values.dtype.name]) for name, values in memory.tables.values()]
    first = [r for r in memory.regions if r.kind == "state"]
    constants += [(f"first_{r.name}", r.first_values, r.type) for r in first]
    parts = [
        (LIBRARY / "kernel.h").read_text(encoding="utf-8"),
        *[f"{piece}\n" for piece in find_functions(functions, memory.number_type)],
        *[define_constant(*constant) for constant in constants],
        f"static struct {{\n{struct}\n}} ram;\n",
        *functions,
        f"int {name}({', '.join(parameters) or 'void'});",
        f"int {name}({', '.join(parameters) or 'void'})\n{{",
        *[f"    for (int i = 0; i < {r.size}; i++)\n        ram.{r.name}[i] = first_{r.name}[i];" for r in first],
        indent("\n".join([*voids, "(void)ram;", *statements, *copies, "return 1;"])),
        "}",
    ]
    snapshots.restore()
    kinds = {call.call.facts.kernel for call in capture.instructions}
    return Step("\n".join(parts), kinds, [(y.shape, y.dtype) for y in results])
