"""The extension modules: one border, and the loops once for each instruction set. All else is in pyproject.toml.

CAFFELITE_DEBUG=1 compiles with bounds and overflow checks, assertions and no optimization. CAFFELITE_BUILT=1 says that
the modules were built in place before, by `python setup.py build_ext --inplace`: nothing is compiled.
"""

import copy
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("CAFFELITE_DEBUG") == "1"
BUILT = os.environ.get("CAFFELITE_BUILT") == "1"
KERNELS = Path("caffelite", "_kernels")

# Not -ffast-math: it breaks the detection of NaN and changes the processor's rounding for the whole process.
# Without tables for unwinding the stack, which C has no use for, and without warnings, which are of Cython's C.
FLAGS = ["-O3", "-g0", "-w", "-fno-math-errno", "-fno-trapping-math", "-fno-asynchronous-unwind-tables"]
FLAGS = ["-O0", "-g", "-UNDEBUG"] if DEBUG else FLAGS

# Without symbols, which take four fifths of the space, and without a page's gap between code and constants.
LINK_FLAGS = ["-s", "-Wl,-z,noseparate-code"] if platform.system() == "Linux" and not DEBUG else []

# Loops in one version each, and the few iterations that vectors leave over not written out one by one: a quarter of the
# space, and of no use to what is measured.
LOOP_FLAGS = ["-fno-split-loops", "-fno-version-loops-for-strides", "-fno-loop-unroll-and-jam", "-fno-peel-loops"]
LOOP_FLAGS = [] if DEBUG else [*LOOP_FLAGS, "--param=max-completely-peel-times=4"]

# A product and a sum are one instruction, with one rounding, everywhere: gcc 13 and later would make two of them in
# vectors that add up, and not in what is left over, so that bits depended on threads and on neighbours.
LOOP_FLAGS = [] if DEBUG else [*LOOP_FLAGS, "--param=avoid-fma-max-bits=0"]

INSTRUCTION_SETS = {"generic": []}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS = {
        "x86-64-v2": ["-march=x86-64-v2"],
        "x86-64-v3": ["-march=x86-64-v3"],
        "x86-64-v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    }

UNALIGNED = [f"-fno-align-{what}" for what in ("functions", "jumps", "loops", "labels")]

# What is compiled once, by how: what runs at every operation, and what is small rather than fast.
COMPILED_ONCE = {f"caffelite._kernels.{name}": "-O2" for name in ("border", "launch", "replay")}
COMPILED_ONCE |= {"caffelite.core.autograd": "-O2", "caffelite.program.running": "-O2", "caffelite.program.step": "-Os"}
COMPILED_ONCE |= {f"caffelite._kernels.{name}": "-Os" for name in ("kernel", "record", "watch")}

# Flags for compiling and for linking; the first pair that the compiler takes is used, and without any, one thread
# computes.
OPENMP = [(["-fopenmp"], ["-fopenmp"]), (["-Xpreprocessor", "-fopenmp"], ["-lomp"])]

NOTHING = "int main(void) { return 0; }"  # to find out whether a compiler takes flags


def extensions():
    options = {
        "define_macros": [("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        "include_dirs": [numpy.get_include()],
    }
    compiled_once = [
        Extension(
            name,
            [f"{name.replace('.', '/')}.pyx"],
            extra_compile_args=FLAGS if DEBUG else [*FLAGS, *UNALIGNED, optimization],
            extra_link_args=LINK_FLAGS,
            **options,
        )
        for name, optimization in COMPILED_ONCE.items()
    ]
    loops = [
        Extension(
            f"caffelite._kernels.loops_{isa.replace('-', '_')}",
            [str(KERNELS / "loops.pyx")],
            depends=[str(header) for header in (KERNELS / "loops").glob("*.h")],
            include_dirs=[str(KERNELS)],
            # One C file makes several modules, so each needs its own name for the function that Python looks up.
            define_macros=[("PyInit_loops", f"PyInit_loops_{isa.replace('-', '_')}")],
            extra_compile_args=FLAGS + LOOP_FLAGS + flags,
            extra_link_args=LINK_FLAGS,
        )
        for isa, flags in INSTRUCTION_SETS.items()
    ]
    return loops + compiled_once  # what takes longest first, so that no processor waits in the end


class BuildKernels(build_ext):
    """Finds out what the compiler can do, and builds some modules at a time, each in an object directory of its own."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or min(os.cpu_count() or 1, 4)  # each takes up to half a gigabyte

    def build_extensions(self):
        self.translate()
        loops = [extension for extension in self.extensions if ".loops_" in extension.name]
        launch = next(extension for extension in self.extensions if extension.name.endswith(".launch"))
        for compile_flags, link_flags in OPENMP:
            if self.compiles(
                "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }", compile_flags, link_flags
            ):
                launch.extra_compile_args = launch.extra_compile_args + compile_flags
                launch.extra_link_args = launch.extra_link_args + link_flags
                break
        else:
            print("caffelite: no OpenMP here; kernels will use one thread", file=sys.stderr)
        self.leave_out_flags()
        refused = [extension for extension in loops if not self.compiles(NOTHING, extension.extra_compile_args, [])]
        self.extensions = [extension for extension in self.extensions if extension not in refused]
        super().build_extensions()

    def leave_out_flags(self):
        """Leave out what only some compilers know: clang needs no such flags, and refuses or ignores them."""
        unknown = {flag for flag in UNALIGNED + LOOP_FLAGS if not self.compiles(NOTHING, ["-Werror", flag], [])}
        for extension in self.extensions:
            extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag not in unknown]

    def translate(self):
        """Have Cython write the C file of each source, and go on from these."""
        sources = list(dict.fromkeys(extension.sources[0] for extension in self.extensions))
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
        print("caffelite: compiling what has changed; all of it takes a minute or two", flush=True)
        cythonize(sources, compiler_directives=directives, annotate=DEBUG, nthreads=self.parallel, quiet=True)
        for extension in self.extensions:
            extension.sources = [str(Path(source).with_suffix(".c")) for source in extension.sources]

    def build_extension(self, extension):
        own, started = copy.copy(self), time.perf_counter()
        own.build_temp = os.path.join(self.build_temp, extension.name)
        super(BuildKernels, own).build_extension(extension)
        if (seconds := time.perf_counter() - started) > 0.1:  # else there was nothing to compile
            print(f"caffelite: compiled {extension.name} in {seconds:.0f} s", flush=True)

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


if __name__ == "__main__":  # Cython's processes import this file
    setup(ext_modules=[] if BUILT else extensions(), cmdclass={"build_ext": BuildKernels})
