"""Nets in C: compiled with every warning an error, run under sanitizers, and compared with `predict`."""

import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import run

import caffelite as cl
from caffelite import c

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler")

STRICT = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
SANITIZED = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
ROWS = 3

MAIN = """\
#include <stdio.h>
#include <stdlib.h>

/* Rows from the standard input; what a net makes of them to the standard output. In arrays with guarded ends. */
#define RUN(number, predict, rows, inputs, outputs)                                        \\
    do {                                                                                   \\
        void predict(const number *x, number *y);                                          \\
        number *x = malloc(inputs * sizeof *x), *y = malloc(outputs * sizeof *y);          \\
        for (int i = 0; i < rows && fread(x, sizeof *x, inputs, stdin) == inputs; i++) {   \\
            predict(x, y);                                                                 \\
            fwrite(y, sizeof *y, outputs, stdout);                                         \\
        }                                                                                  \\
        free(x);                                                                           \\
        free(y);                                                                           \\
    } while (0)

int main(void)
{
"""


def outputs_in_c(folder, models, inputs, flags=SANITIZED):
    """What the models, exported, compiled and linked into one program, make of their inputs."""
    main, objects = MAIN, []
    for i, (model, x) in enumerate(zip(models, inputs, strict=True)):
        c.export(model, folder / f"net{i}.c", x.shape[1:])
        run(CC, *STRICT, *flags, f"-DPREDICT=predict{i}", "-c", f"net{i}.c", cwd=folder)
        objects.append(f"net{i}.o")
        number = "float" if model.dtype == np.float32 else "double"
        main += f"    RUN({number}, predict{i}, {len(x)}, {x[0].size}, {model.predict(x)[0].size});\n"
    (folder / "main.c").write_text(main + "    return 0;\n}\n")
    run(CC, *flags, "main.c", *objects, "-o", "program", "-lm", cwd=folder)
    given = b"".join(x.astype(model.dtype).tobytes() for model, x in zip(models, inputs, strict=True))
    done = subprocess.run([folder / "program"], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found, start = [], 0
    for model, x in zip(models, inputs, strict=True):
        y = model.predict(x)
        found.append(np.frombuffer(done.stdout, model.dtype, y.size, start).reshape(y.shape))
        start += y.nbytes
    assert start == len(done.stdout)
    return found


def check(folder, models, inputs, **options):
    """In C the models make of their inputs what `predict` does."""
    for model, x, y in zip(models, inputs, outputs_in_c(folder, models, inputs, **options), strict=True):
        truth = model.predict(x)
        scale = abs(truth).max()
        tolerance = (1e-5 if model.dtype == np.float32 else 1e-12) * scale
        assert np.isfinite(scale), model
        assert abs(y - truth).max() <= tolerance, f"{model!r} {x.shape}: {abs(y - truth).max() / scale}"


def rows(shape, seed=0, n=ROWS):
    return np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32)


# ---- random nets ----------------------------------------------------------------------------------------------------


class Drawn:
    """Random nets: layers that fit, one after the other, with parameters and running moments that were drawn."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)

    def net(self):
        """A model, and rows for it."""
        axes = self.random.choice([1, 1, 2, 2, 3, 3, 3])
        shape = tuple([self.random.randint(1, 12 if axes < 3 else 9) for _ in range(axes)])
        functions, _ = self.sequence(shape, self.random.randint(1, 7), depth=0)
        model = cl.Model(functions, seed=0, dtype=self.random.choice([np.float32, np.float32, np.float64]))
        for p in model.parameters():
            spread = 1 / np.sqrt(max(1, p.size // max(p.shape)))
            p.data = self.numbers.normal(size=p.shape) * spread + (p.name == "scale")
        for function in model.all_functions():
            if isinstance(function, cl.BatchNorm):
                function.mean[:] = self.numbers.normal(size=function.features)
                function.variance[:] = self.numbers.uniform(0.2, 3, function.features)
        return model, self.numbers.normal(size=(ROWS, *shape)).astype(np.float32)

    def sequence(self, shape, length, depth):
        functions = []
        while len(functions) < length:
            function = self.random.choice(self.fitting(shape, depth))()
            if np.prod(made := function.output_shape((None, *shape))[1:]) <= 2000:
                functions.append(function)
                shape = made
        return functions, shape

    def fitting(self, shape, depth):
        """What makes the layers that take rows of this shape."""
        whole, up_to = self.random.choice, self.random.randint
        axes = len(shape) - 1  # of an image, or a series
        made = [
            *[cl.ReLU, cl.Tanh, cl.Sigmoid, cl.SiLU, cl.Softplus, cl.GELU, lambda: cl.GELU(approximate=True)],
            *[lambda: cl.LeakyReLU(whole([0.0, 0.1, 2.0])), lambda: cl.ELU(whole([1.0, 0.3]))],
            *[cl.Dropout, cl.Flatten, lambda: cl.Reshape(self.divided(shape)), lambda: cl.LayerNorm(shape[-1])],
            *[lambda: cl.LayerNorm(shape[-1], eps=1e-3, bias=False), lambda: cl.BatchNorm(shape[0])],
            *[lambda: kind(axis=up_to(1, len(shape))) for kind in (cl.Softmax, cl.LogSoftmax)],
            *[lambda: cl.Linear(shape[-1], up_to(1, 12), bias=whole([True, False]))] * 4,
            lambda: cl.DropConnect(shape[-1], up_to(1, 12)),
            *[cl.GlobalAvgPool] * (axes > 0),
            *[lambda: cl.Upsample(up_to(1, 3))] * (axes in (1, 2)),
            *[lambda: cl.Upsample((up_to(1, 3), up_to(1, 3)))] * (axes == 2),
            *[lambda: self.window([cl.Conv1d, cl.Conv2d][axes - 1], shape)] * 6 * (axes in (1, 2)),
            *[lambda: self.window(cl.ConvTranspose2d, shape)] * 3 * (axes == 2),
            *[lambda: self.window(kind[axes - 1], shape) for kind in POOLS if axes in (1, 2)] * 2,
        ]
        if depth < 2:
            made += [lambda: self.residual(shape, depth), lambda: self.parallel(shape, depth)] * 2
            made += [lambda: cl.Model(self.sequence(shape, up_to(0, 3), depth + 1)[0])]
        return made
