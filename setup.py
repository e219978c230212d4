"""The extension modules: one border, and the loops once for each instruction set. All else is in pyproject.toml.

CAFFELITE_DEBUG=1 compiles with bounds and overflow checks, assertions and no optimization.
"""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("CAFFELITE_DEBUG") == "1"
KERNELS = Path("caffelite", "_kernels")

# Not -ffast-math: it breaks the detection of NaN and changes the processor's rounding for the whole process.
FLAGS = ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-fno-math-errno", "-fno-trapping-math"]

INSTRUCTION_SETS = {"generic": []}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS = {
        "x86-64-v2": ["-march=x86-64-v2"],
        "x86-64-v3": ["-march=x86-64-v3"],
        "x86-64-v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    }

# Flags for compiling and for linking; the first pair that the compiler takes is used, and without any, one thread
# computes.
OPENMP = [(["-fopenmp"], ["-fopenmp"]), (["-Xpreprocessor", "-fopenmp"], ["-lomp"])]


def extensions():
    options = {
        "define_macros": [("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        "include_dirs": [numpy.get_include()],
    }
    tape, border = (
        Extension(f"caffelite._kernels.{name}", [str(KERNELS / f"{name}.pyx")], extra_compile_args=FLAGS, **options)
        for name in ("tape", "border")
    )
    loops = Extension("caffelite._kernels.loops", [str(KERNELS / "loops.pyx")])
    directives = {
        "language_level": 3,
        "boundscheck": DEBUG,
        "wraparound": False,
        "overflowcheck": DEBUG,
        "cdivision": True,
        "initializedcheck": False,
        "embedsignature": True,
        "freethreading_compatible": False,
    }
    tape, border, loops = cythonize([tape, border, loops], compiler_directives=directives, annotate=DEBUG)
    return [tape, border] + [
        Extension(
            f"caffelite._kernels.loops_{isa.replace('-', '_')}",
            loops.sources,
            depends=[str(KERNELS / "tile.h"), str(KERNELS / "vectors.h")],
            # One C file makes several modules, so each needs its own name for the function that Python looks up.
            define_macros=[("PyInit_loops", f"PyInit_loops_{isa.replace('-', '_')}")],
            extra_compile_args=FLAGS + flags,
        )
        for isa, flags in INSTRUCTION_SETS.items()
    ]


class BuildKernels(build_ext):
    """Finds out what the compiler can do, and gives every module an object directory of its own."""

    def build_extensions(self):
        tape, border, *loops = self.extensions
        for compile_flags, link_flags in OPENMP:
            if self.compiles(
                "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }", compile_flags, link_flags
            ):
                tape.extra_compile_args = tape.extra_compile_args + compile_flags
                tape.extra_link_args = tape.extra_link_args + link_flags
                break
        else:
            print("caffelite: no OpenMP here; kernels will use one thread", file=sys.stderr)
        self.extensions = [tape, border] + [
            extension
            for extension in loops
            if self.compiles("int main(void) { return 0; }", extension.extra_compile_args, [])
        ]
        super().build_extensions()

    def build_extension(self, extension):
        base, self.build_temp = self.build_temp, os.path.join(self.build_temp, extension.name)
        try:
            super().build_extension(extension)
        finally:
            self.build_temp = base

    def compiles(self, program, compile_flags, link_flags):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "try.c")
            source.write_text(program)
            command = [
                *self.compiler.compiler_so,
                str(source),
                *compile_flags,
                *link_flags,
                "-o",
                str(Path(folder, "try")),
            ]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernels})
