"""Nets in C, compiled with every warning an error, run under sanitizers, and compared with `predict`.

    python tests/tools/fuzz_c_export.py 1000 --seed 1
    CC=clang python tests/tools/fuzz_c_export.py 1000

draws as many nets. Each has to make of its rows what `predict` does, to 1e-5 of the largest output in float32; what
does not is printed, and the exit status is 1.
"""

import argparse
import functools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import caffelite as cl
from caffelite.c.exporting import render

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for what the tests share
from tests.conftest import run

CC = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-13}  # of the largest output
LARGEST = 1500  # numbers of a row between layers


def source(model, path, input_shape=None, quantize=False, check=True):
    """Return the text that `export` writes to this path."""
    return render(model, path, input_shape, quantize, check)[0]


MAIN = """\
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif
"""

#: Windows would change bytes that look like ends of lines and files.
BINARY = """\
#ifdef _WIN32
    _setmode(0, _O_BINARY);
    _setmode(1, _O_BINARY);
#endif
"""

#: Rows from the standard input; what a net makes of them, to the standard output. In arrays whose ends are guarded.
RUN = """
void {predict}({parameters});
static void run_{predict}(void)
{{
    {arrays}
    for (int i = 0; i < {rows}; i++) {{
        {reads}
        {predict}({arguments});
        {writes}
    }}
    {frees}
}}
"""
TYPES = {"float32": "float", "float64": "double", "int64": "int64_t", "bool": "uint8_t"}  # in C, by numpy's name


def several(x):
    """Return inputs or outputs as a tuple."""
    return x if isinstance(x, tuple) else (x,)


def to_c_types(model, x):
    """Return the inputs as the function in C gets them."""
    return [a.astype(model.dtype if a.dtype.kind == "f" else np.int64) if a.dtype != bool else a for a in several(x)]


def runner_code(i, inputs, outputs):
    """Return a function in C that reads, predicts and writes rows."""
    names = [f"in_{k}" for k in range(len(inputs))], [f"out_{k}" for k in range(len(outputs))]
    read, written = ([*zip(names[k], arrays, strict=True)] for k, arrays in enumerate((inputs, outputs)))
    types = {name: TYPES[a.dtype.name] for name, a in (*read, *written)}
    return RUN.format(
        predict=f"predict{i}",
        rows=len(inputs[0]),
        parameters=", ".join(f"{'const ' * (name in names[0])}{types[name]} *{name}" for name in types),
        arguments=", ".join(types),
        arrays="\n    ".join(f"{types[name]} *{name} = malloc({a[0].nbytes});" for name, a in (*read, *written)),
        reads="\n        ".join(f"if (fread({name}, {a[0].nbytes}, 1, stdin) != 1) exit(1);" for name, a in read),
        writes="\n        ".join(f"fwrite({name}, {a[0].nbytes}, 1, stdout);" for name, a in written),
        frees="\n    ".join(f"free({name});" for name in types),
    )


@functools.cache
def has_sanitizers():
    """Return whether the compiler has sanitizers. For Windows gcc has none; elsewhere they have to be there."""
    if os.name != "nt":
        return True
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "main.c").write_text("int main(void) { return 0; }\n")
        done = subprocess.run([CC, *SANITIZED, "main.c"], cwd=folder, capture_output=True, check=False)
    return done.returncode == 0


def outputs_in_c(folder, nets, flags, rows=None, **options):
    """Return what models, exported, compiled and linked into a program, make of their rows, or of these. `nets` are
    pairs.
    """
    declared, called, objects, given = [], [], [], []
    if flags == SANITIZED and not has_sanitizers():
        flags = []
    for i, (model, x) in enumerate(nets):
        shapes = tuple([a.shape[1:] for a in several(x)])
        shape = shapes if isinstance(x, tuple) else shapes[0]
        (folder / f"net{i}.c").write_text(source(model, f"net{i}.c", shape, **options))
        run(CC, *STRICT, *flags, f"-DPREDICT=predict{i}", "-c", f"net{i}.c", cwd=folder)
        inputs = to_c_types(model, x if rows is None else rows[i])
        declared.append(runner_code(i, inputs, several(model.predict(x))))
        called.append(f"    run_predict{i}();\n")
        objects.append(f"net{i}.o")
        given += [a[row].tobytes() for row in range(len(inputs[0])) for a in inputs]
    main = [MAIN, *declared, "int main(void)\n{\n", BINARY, *called, "    return 0;\n}\n"]
    (folder / "main.c").write_text("".join(main))
    run(CC, *flags, "main.c", *objects, "-o", "program", "-lm", cwd=folder)
    done = subprocess.run([folder / "program"], input=b"".join(given), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found, start = [], 0
    for model, x in nets:
        outputs = [np.empty_like(y) for y in several(model.predict(x))]
        for row in range(len(outputs[0])):
            for y in outputs:
                y[row] = np.frombuffer(done.stdout, y.dtype, y[0].size, start).reshape(y[0].shape)
                start += y[0].nbytes
        found.append(tuple(outputs) if len(outputs) > 1 else outputs[0])
    assert start == len(done.stdout)
    return found


def differing(folder, nets, flags=SANITIZED, **options):
    """Of these models with their rows, what is said of those that compute something else in C."""
    found = []
    for (model, x), outputs in zip(nets, outputs_in_c(folder, nets, flags, **options), strict=True):
        for y, truth in zip(several(outputs), several(model.predict(x)), strict=True):
            assert np.isfinite(truth).all(), f"{model!r} makes {truth}"
            error = abs(y - truth).max() / max(abs(truth).max(), 1e-3)  # if everything cancels except rounding errors
            if not error <= TOLERANCE[model.dtype]:
                shapes = [a.shape for a in several(x)]
                found.append(f"{error:.1e} for {shapes}, {model.dtype}: {model!r}")
    return found


OPERATORS = [
    lambda a, b: a + b,
    lambda a, b: a - 0.3 * b,
    lambda a, b: a * b.sigmoid() + (1 - b.sigmoid()) * 0.5,
    lambda a, b: (a + b) / 2,
    lambda a, b: a / (1 + b * b).sqrt(),
    lambda a, b: (-a.abs()).exp() + b,
]


class WovenNet(cl.Model):
    """A model that writes `call`: layers that keep the shape, and operators on what there is so far."""

    def __init__(self, layers, operators):
        super().__init__()
        self.layers, self.operators = layers, operators  # pairs of places among `found`, and an operator

    def call(self, x):
        found = [x]
        for layer in self.layers:
            found.append(layer(found[-1]))
        for i, j, operator in self.operators:
            found.append(operator(found[i % len(found)], found[j % len(found)]))
        return found[-1]


#: Calls that change the shape of a Tensor (n, a, b), in a model that writes `call`.
CHANGES = [
    lambda model, x: x.mean(axis=1),
    lambda model, x: x - x.max(axis=-1, keepdims=True),
    lambda model, x: cl.concatenate([x.sum(axis=2) * 0.1, x.min(axis=(1, 2), keepdims=True)[:, 0]], axis=1),
    lambda model, x: x[:, -1] * 2,
    lambda model, x: x[:, ::-2, None, 1:],
    lambda model, x: x[:, [0, -1, 0]],
    lambda model, x: x.transpose(0, 2, 1) + 1,
    lambda model, x: (x @ x.transpose(0, 2, 1)).softmax() @ x,
    lambda model, x: model.table[0, : x.shape[2]] * x + model.table[1, : x.shape[2]].reshape(1, 1, -1),
    lambda model, x: x @ model.table[: x.shape[2]],
    lambda model, x: cl.split(x, (1,), axis=1)[1] * cl.flip(x, axis=2)[:, :1],
    lambda model, x: x.reshape(-1, 1, *x.shape[1:]) - x.reshape(-1, x.shape[1], 1, x.shape[2]),
    lambda model, x: (x * x).reshape(-1, 1, 1, *x.shape[1:]) @ x.transpose(0, 2, 1).reshape(-1, 1, 1, *x.shape[:0:-1]),
    lambda model, x: x[:, 0, :1] @ model.table[:1],
    lambda model, x: cl.concatenate([model.table[[0] * len(x), : x.shape[2]].reshape(len(x), 1, -1), x], axis=1),
    lambda model, x: x.reshape(len(x), -1) * model.table[[1] * len(x), :1] + x.mean(axis=(1, 2)).reshape(len(x), 1),
    lambda model, x: cl.maximum(x, model.table[:1, : x.shape[2]].exp() - 1) / (2 + model.table[:1, 0].sin()),
]


class MultiOutputNet(cl.Model):
    """A model of a sequence, a context, a mask of it and indices, which makes several outputs."""

    takes_indices = (False, False, False, True)

    def __init__(self, size, heads, sequences, parts, changes, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.attention = cl.MultiHeadAttention(size, heads, rotary=size // heads % 2 == 0)
        self.lstm, self.gru, self.embedding = cl.LSTM(size, size, sequences), cl.GRU(size, size), cl.Embedding(9, size)
        self.block = cl.TransformerBlock(size, heads)
        self.table, self.parts, self.changes = (
            cl.Tensor(np.linspace(-1, 1, 144).reshape(12, 12), dtype=dtype),
            parts,
            changes,
        )

    def call(self, x, context, mask, indices):
        h = self.attention(x, context, mask) + x
        words = self.embedding(indices)
        _, state = self.gru(h, words[:, 0])
        y, (last, cells) = self.lstm(self.block(h), state, words[:, -1])
        found = [h, y, last, words, cells, *[change(self, x) for change in self.changes]]
        return tuple([found[i % len(found)] for i in self.parts])


class NetGenerator:
    """What is drawn from a seed."""

    def __init__(self, seed):
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.integer, self.choice = self.random.randint, self.random.choice

    def net(self):
        """Return a model with parameters and running moments, and rows for it."""
        model, x = self.choice([self.number_net] * 4 + [self.word_net, self.table_net, self.multi_input_net])()
        for p in model.parameters():
            p.data = p.data + self.numbers.normal(size=p.shape) * 0.1
        for function in model.all_functions():
            if isinstance(function, cl.BatchNorm):
                function.mean[:] = self.numbers.normal(size=function.features)
                function.variance[:] = self.numbers.uniform(0.2, 3, function.features)
        return model, x

    def model(self, functions):
        return cl.Model(functions, seed=0, dtype=self.choice([np.float32, np.float32, np.float64]))

    def rows(self, *shape):
        return self.numbers.normal(size=(3, *shape)).astype(np.float32)

    def number_net(self):
        axes = self.choice([1, 2, 2, 3, 3, 3, 4])
        shape = tuple([self.integer(1, {1: 40, 2: 15, 3: 9, 4: 4}[axes]) for _ in range(axes)])
        functions, _ = self.sequence(shape, self.integer(1, 7), depth=0)
        return self.model(functions), self.rows(*shape)

    def word_net(self):
        count, size, length = self.several(3, 1, 12)
        functions, _ = self.sequence((length, size), self.integer(1, 4), depth=0)
        x = self.numbers.integers(0, count, (3, length))
        return self.model([cl.Embedding(count, size), *functions]), x

    def table_net(self):
        numbers, words = self.choice([(0, 1), (1, 0), (2, 1), (1, 3), (4, 2)])
        table = {f"x{i}": self.numbers.normal(self.integer(-9, 9), 2, 20) for i in range(numbers)}
        kinds = [self.integer(1, 5) for _ in range(words)]
        table |= {f"w{i}": [f"word */ {j % kinds[i]}" for j in range(20)] for i in range(words)}
        if "x1" in table:
            table["x1"][3] = np.nan
        size, bins = self.integer(1, 4), self.integer(0, 3)
        if self.integer(0, 1):
            columns = cl.Splines(table, size, bins=bins)
        else:
            columns = cl.Columns(table, size, robust=self.integer(0, 1) == 0, bins=bins)
        functions, _ = self.sequence((columns.features,), self.integer(1, 4), depth=0)
        x = [self.rows(numbers), self.numbers.integers(0, np.add(kinds, 2), (3, words))]
        x[0][0, 1:2] = np.nan
        x = tuple([a for a in x if a.size])
        return self.model([columns, *functions]), x if len(x) > 1 else x[0]

    def multi_input_net(self):
        heads, length, keys = self.several(3, 1, 5)
        size = heads * self.integer(1, 4)
        parts = self.several(self.integer(1, 4), 0, 9)
        changes = self.random.sample(CHANGES, self.integer(0, 3)) if length > 1 and 1 < size <= 12 else []
        dtype, sequences = self.choice([np.float32, np.float32, np.float64]), self.integer(0, 1) == 0
        model = MultiOutputNet(size, heads, sequences, parts, changes, dtype)
        mask = self.numbers.random((3, keys) if self.integer(0, 1) else (3, length, keys)) < 0.6
        indices = self.numbers.integers(0, 9, (3, self.integer(1, 4)))
        return model, (self.rows(length, size), self.rows(keys, size), mask, indices)

    def sequence(self, shape, length, depth):
        """So many Functions, one after the other, for rows of this shape, and the shape of what they make."""
        functions = []
        while len(functions) < length:
            try:
                function = self.choice(self.kinds(shape, depth))()
                made = function.output_shape((None, *shape))[1:]
            except ValueError:  # a window that does not fit
                continue
            if np.prod(made) <= LARGEST:
                functions.append(function)
                shape = made
        return functions, shape

    def kinds(self, shape, depth):
        """Return what makes a Function for rows of this shape, if it fits."""
        axes = len(shape) - 1  # of series and images
        last, first, wide = shape[-1], shape[0], self.integer(1, 12)
        activations = [cl.ReLU, cl.Tanh, cl.Sigmoid, cl.SiLU, cl.Softplus, cl.GELU]
        made = [
            self.choice(activations),
            lambda: self.choice(
                [
                    *[cl.LeakyReLU(0.1), cl.LeakyReLU(2.0), cl.ELU(), cl.ELU(0.3), cl.GELU(approximate=True)],
                    *[cl.PReLU(), cl.PReLU(first)],
                ]
            ),
            lambda: self.choice([cl.Softmax, cl.LogSoftmax])(self.choice([-1, self.integer(1, len(shape))])),
            lambda: self.choice([cl.Dropout(), cl.Reshape(self.draw_shape(shape))]),
            *[cl.Flatten] * (self.integer(0, 3) == 0),
            lambda: self.choice([cl.LayerNorm(last, 0.1), cl.LayerNorm(last, 0.01, bias=False), cl.BatchNorm(first)]),
            lambda: cl.RMSNorm(last, 0.1),
            lambda: cl.RMSNorm(last, scale=False),
            *[lambda: self.choice([cl.Linear(last, wide), cl.Linear(last, wide, False), cl.DropConnect(last, wide)])]
            * 2,
        ]
        if axes in (1, 2):
            made += [lambda: self.convolution(first, axes)] * 8 + [lambda: self.pool(axes)] * 4
            made += [
                lambda: cl.Upsample(self.several(axes, 1, 3) if axes == 2 else self.integer(1, 3)),
                self.choice([cl.GlobalAvgPool, cl.GlobalMaxPool]),
                lambda: cl.InstanceNorm(first, 0.1),
            ]
        if axes == 1:
            made += [
                lambda: self.recurrent(last),
                lambda: self.attention(last),
                lambda: cl.PositionalEncoding(last, 15),
            ]
        if depth < 2:
            made += [lambda: self.compose(shape, depth + 1)] * 2
        return made

    def recurrent(self, features):
        kind, options = self.choice([cl.RNN, cl.GRU, cl.LSTM]), {"bidirectional": self.integer(0, 2) == 0}
        layers = self.choice([1, 1, 2, 3])
        return kind(features, self.integer(1, 6), self.integer(0, 3) > 0, layers=layers, **options)

    def attention(self, size):
        heads = self.choice([heads for heads in range(1, size + 1) if size % heads == 0])
        rotary = size // heads % 2 == 0 and self.integer(0, 1) == 0
        kind = self.choice([cl.MultiHeadAttention, cl.TransformerBlock])
        return kind(size, heads, causal=self.integer(0, 1) == 0, bias=self.integer(0, 2) > 0, rotary=rotary)

    def several(self, axes, least, most):
        return tuple([self.integer(least, most) for _ in range(axes)])

    def draw_shape(self, shape):
        """Another shape of as many elements."""
        n = int(np.prod(shape))
        divisors = [m for m in range(1, n + 1) if n % m == 0]
        first = self.choice(divisors)
        return self.choice([(first, n // first), (first, -1), (1, first, n // first), (first, 1, 1, n // first)])

    def convolution(self, channels, axes):
        groups = self.choice([g for g in range(1, channels + 1) if channels % g == 0] + [1] * 3)
        outputs, kernel = groups * self.integer(1, 4), self.several(axes, 1, 4)
        stride, dilation = self.several(axes, 1, 3), self.several(axes, 1, 2)
        padding, bias = self.several(axes, 0, 4), self.choice([True, True, False])
        options = {"dilation": dilation, "groups": groups, "bias": bias}
        if self.integer(0, 2) == 0:
            transposed = cl.ConvTranspose1d if axes == 1 else cl.ConvTranspose2d
            more = tuple([self.integer(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)])
            return transposed(channels, outputs, kernel, stride, padding, more, **options)
        kind = cl.Conv1d if axes == 1 else cl.Conv2d
        if self.integer(0, 2) == 0:
            padding = self.choice(["same", "causal"]) if axes == 1 else "same"
        return kind(channels, outputs, kernel, stride, padding, **options)

    def pool(self, axes):
        kernel = self.several(axes, 1, 4)
        kind = self.choice([[cl.MaxPool1d, cl.AvgPool1d], [cl.MaxPool2d, cl.AvgPool2d]][axes - 1])
        ceil = {"ceil": True} if issubclass(kind, cl.functions.pooling.MaxPool) and self.integer(0, 2) == 0 else {}
        return kind(kernel, self.several(axes, 1, 3), tuple([self.integer(0, k // 2) for k in kernel]), **ceil)

    def compose(self, shape, depth):
        """Return a Model, a Residual, a Parallel or a model that writes `call`."""
        functions, _ = self.sequence(shape, self.integer(0, 3), depth)
        kind = self.integer(0, 4)
        if kind == 0:
            return cl.Model(functions)
        if kind in (1, 4):  # of what keeps the shape
            kernel, groups = self.choice([1, 3]), self.choice([1, shape[0]])
            keeping = [cl.LayerNorm(shape[-1], 0.1), cl.Linear(shape[-1], shape[-1]), cl.Tanh(), cl.Dropout()]
            keeping += [cl.Conv1d(shape[0], shape[0], kernel, padding="same", groups=groups)] * 2 * (len(shape) == 2)
            keeping += [cl.Conv2d(shape[0], shape[0], kernel, padding="same", groups=groups)] * 2 * (len(shape) == 3)
            keeping += [cl.Residual(self.choice(keeping))]
            branch = self.random.sample(keeping, self.integer(1, 3))
            if kind == 4:
                places = [self.several(2, 0, 9) for _ in range(self.integer(0, 4))]
                return WovenNet(branch, [(*pair, self.choice(OPERATORS)) for pair in places])
            return cl.Residual(branch[0] if len(branch) == 1 else cl.Model(branch))
        axis = self.choice([-1, *range(1, len(shape) + 1)])
        beside = [self.sequence(shape, self.integer(0, 2), depth)[0] for _ in range(self.integer(0, 2))]
        parts = [cl.Model(part) for part in (functions, *beside)]
        if kind == 2:
            parts = [cl.Model([*part.functions, cl.Flatten()]) for part in parts]
            axis = -1
        return cl.Parallel(parts, axis)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    different = []
    for start in range(0, arguments.count, 50):
        seeds = range(arguments.seed + start, arguments.seed + min(start + 50, arguments.count))
        with tempfile.TemporaryDirectory() as folder:
            different += differing(Path(folder), [NetGenerator(seed).net() for seed in seeds])
        print(f"{seeds.stop - arguments.seed} nets, {len(different)} of them different", flush=True)
    print("\n".join(different))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
