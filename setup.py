"""The extension modules: the bindings, and the loops once for each instruction set. All else is in pyproject.toml.

CAFFELITE_DEBUG=1 compiles with bounds and overflow checks, assertions and no optimization. CAFFELITE_LEVELS=native
compiles the loops only for the best instruction set of this processor: that halves the time, and the result is for this
machine alone. Set CAFFELITE_BUILT=1 if `python setup.py build_ext --inplace` has built the modules before: then nothing
is compiled. On Windows, the compiler is the gcc of mingw-w64 on the PATH.

Design
------
(a) Cython makes a C file of each .pyx. The C compiler makes an object of each C file, and for loops/ one object for
    each instruction set. The linker makes modules of the objects.
(b) A step is skipped if its result is newer than its sources. So after a change to one file of loops/, Cython runs
    once, the C compiler once for each instruction set, and the linker. If flags change, everything is compiled again.
(c) A file of loops/ is C in Cython's syntax. Cython also writes a function that makes a Python module of it. setup.py
    declares this function static, so the compiler drops it, together with everything that only it uses.
"""

import gc
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

DEBUG = os.environ.get("CAFFELITE_DEBUG") == "1"
PREBUILT = os.environ.get("CAFFELITE_BUILT") == "1"
NATIVE = os.environ.get("CAFFELITE_LEVELS") == "native"
WINDOWS = platform.system() == "Windows"
KERNELS = Path("caffelite", "_kernels")
# C files and objects. The end of a module's name tells a Python without its lock from one of the same version with it.
BUILD = Path("build", sysconfig.get_platform() + sysconfig.get_config_var("EXT_SUFFIX").rpartition(".")[0])
C_FILES = BUILD / "c"

# Not -ffast-math: it breaks the detection of NaN and changes the processor's rounding for the whole process.
# C needs no tables for unwinding the stack. The warnings would be about Cython's C.
FLAGS = ["-O3", "-g0", "-w", "-fno-math-errno", "-fno-trapping-math", "-fno-asynchronous-unwind-tables"]
FLAGS = ["-O0", "-g", "-UNDEBUG"] if DEBUG else FLAGS

# Symbols take four fifths of the space. The gap between code and constants takes a page. On Windows, the libraries of
# gcc become part of each module, because users do not have them.
LINK_FLAGS = ["-s", "-Wl,-z,noseparate-code"] if platform.system() == "Linux" and not DEBUG else []
LINK_FLAGS = ["-static"] if WINDOWS else LINK_FLAGS

# Without several versions of a loop, and without unrolling the last few iterations that do not fill a vector. This
# saves three quarters of the space, and makes nothing slower that the benchmarks measure.
LOOP_FLAGS = ["-fno-split-loops", "-fno-version-loops-for-strides", "-fno-loop-unroll-and-jam", "-fno-peel-loops"]
LOOP_FLAGS = [] if DEBUG else [*LOOP_FLAGS, "--param=max-completely-peel-times=4"]

# gcc does not reorder instructions before they have registers. For x86-64 this is its default. For ARM it would reorder
# them and then lack registers: the tile of the matrix product would store 18 of its 24 sums in every iteration.
LOOP_FLAGS = [] if DEBUG else [*LOOP_FLAGS, "-fno-schedule-insns"]

# A product and a sum are one instruction with one rounding, everywhere. gcc 13 and later would use two instructions in
# vectors that accumulate, and clang in sums over several statements, but one for the rest. Bits would then depend on
# threads and on neighbours.
LOOP_FLAGS = [] if DEBUG else [*LOOP_FLAGS, "--param=avoid-fma-max-bits=0", "-ffp-contract=fast"]

# Windows aligns the stack to 16 bytes, but gcc believes that its vectors of 32 and 64 bytes there are aligned. The
# assembler can make moves of them that need no alignment.
LOOP_FLAGS = [*LOOP_FLAGS, "-Wa,-muse-unaligned-vector-move"] if WINDOWS else LOOP_FLAGS

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "overflowcheck": DEBUG,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
    "embedsignature.format": "clinic",  # for `inspect.signature`
    "binding": False,  # functions do not become methods of a class
    "auto_pickle": False,
    "freethreading_compatible": True,
}

INSTRUCTION_SETS = {"generic": []}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS = {
        "x86-64-v2": ["-march=x86-64-v2"],
        "x86-64-v3": ["-march=x86-64-v3"],
        "x86-64-v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    }

UNALIGNED = [f"-fno-align-{what}" for what in ("functions", "jumps", "loops", "labels")]

# Modules that are compiled once. -O2 is for code that runs at every operation, -Os for code that should be small. The
# bindings are the largest: -O2 would take 11 of 29 seconds more, and save one of 40 instructions of an operation.
COMPILED_ONCE = {f"caffelite._kernels.{name}": "-O2" for name in ("launch", "replay")}
COMPILED_ONCE |= {"caffelite._kernels.bindings": "-O1"}
COMPILED_ONCE |= {"caffelite.core.autograd": "-O2", "caffelite.program.runner": "-O2", "caffelite.program.ir": "-Os"}
COMPILED_ONCE |= {f"caffelite._kernels.{name}": "-Os" for name in ("kernel", "record", "guards")}

SLOW_SOURCES = {"bindings", "tile"}  # take the compiler longest, whatever the size of their C files

# Flags for the compiler and the linker. The first pair that works is used. If none works, kernels use one thread.
OPENMP = [(["-fopenmp"], ["-fopenmp"]), (["-Xpreprocessor", "-fopenmp"], ["-lomp"])]

# Programs that test whether the compiler accepts flags, and, when they run, what the processor can do.
EMPTY_PROGRAM = "int main(void) { return 0; }"
OPENMP_PROGRAM = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }"
CPU_FEATURES = {  # as in bindings.pyx
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": ("avx2", "fma", "bmi2"),
}
CPU_PROGRAM = "int main(void) {{ __builtin_cpu_init(); return !({}); }}"

REPORT_INTERVAL = 3  # seconds without a finished file, after which a build says what it is doing


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
            sorted(path.as_posix() for path in (KERNELS / "loops").glob("*.pyx")),
            include_dirs=[str(KERNELS)],
            # Each module needs its own name for the function that Python looks up.
            define_macros=[("PyInit_registry", f"PyInit_loops_{isa.replace('-', '_')}")],
            extra_compile_args=[*FLAGS, *LOOP_FLAGS, "-fvisibility=hidden", *flags],
            extra_link_args=LINK_FLAGS,
        )
        for isa, flags in INSTRUCTION_SETS.items()
    ]
    return loops + compiled_once


class BuildKernels(build_ext):
    """Find out what the compiler can do; translate, compile and link what has changed."""

    def finalize_options(self):
        self.compiler = self.compiler or ("mingw32" if WINDOWS else None)
        super().finalize_options()
        self.parallel = self.parallel or min(os.cpu_count() or 1, 8)  # more would only wait for the bindings

    def run(self):
        if self.extensions and (self.compiler == "msvc" or (self.compiler == "mingw32" and not shutil.which("gcc"))):
            raise PlatformError(
                "the kernels are in the C of gcc, which Microsoft's compiler does not understand: install mingw-w64, "
                "put the folder of its gcc.exe on the PATH, and build with --compiler=mingw32, the default on Windows"
            )
        super().run()

    def build_extensions(self):
        self.adapt_to_compiler()
        self.drop_stale_objects()
        if NATIVE:
            self.leave_out_other_levels()
        self.translate()
        self.make_objects()
        super().build_extensions()  # links

    def drop_stale_objects(self):
        flags = [(e.name, e.define_macros, e.extra_compile_args, e.extra_link_args) for e in self.extensions]
        flags, flags_file = repr([DIRECTIVES, self.compiler.compiler_so, flags]), BUILD / "flags"
        if not flags_file.exists() or flags_file.read_text() != flags:
            shutil.rmtree(BUILD, ignore_errors=True)
            BUILD.mkdir(parents=True)
            flags_file.write_text(flags)

    def adapt_to_compiler(self):
        """Leave out flags and instruction sets that the compiler does not know, and add OpenMP if it does."""
        for compile_flags, link_flags in OPENMP:
            if self.compiles(OPENMP_PROGRAM, compile_flags, link_flags):
                launch = next(extension for extension in self.extensions if extension.name.endswith(".launch"))
                launch.extra_compile_args = launch.extra_compile_args + compile_flags
                launch.extra_link_args = launch.extra_link_args + link_flags
                break
        else:
            print("caffelite: no OpenMP here; kernels will use one thread", file=sys.stderr)
        flags = UNALIGNED + LOOP_FLAGS  # clang does not need these flags, and rejects or ignores them
        if not self.compiles(EMPTY_PROGRAM, ["-Werror", *flags]):
            unknown = {flag for flag in flags if not self.compiles(EMPTY_PROGRAM, ["-Werror", flag])}
            for extension in self.extensions:
                extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag not in unknown]
        self.extensions = [
            extension
            for extension in self.extensions
            if ".loops_" not in extension.name or self.compiles(EMPTY_PROGRAM, extension.extra_compile_args)
        ]

    def leave_out_other_levels(self):
        """Keep the loops of the best instruction set that this processor runs, and those that are there already."""
        best = next((isa for isa, needed in CPU_FEATURES.items() if self.runs(needed)), "x86-64-v2")
        self.extensions = [
            extension
            for extension in self.extensions
            if ".loops_" not in extension.name
            or extension.name.endswith((f"loops_{best.replace('-', '_')}", "loops_generic"))
            or Path(self.get_ext_fullpath(extension.name)).exists()  # else it would not fit the new bindings
        ]

    def runs(self, needed):
        """Whether the processor has all of these instructions."""
        return self.compiles(
            CPU_PROGRAM.format(" && ".join(f'__builtin_cpu_supports("{name}")' for name in needed)), run=True
        )

    def compiles(self, program, compile_flags=(), link_flags=(), run=False):
        """Whether the compiler takes a program, and, with `run`, whether the program then succeeds."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a virus scanner may have it open
            source, target = Path(folder, "try.c"), Path(folder, "try.exe")
            source.write_text(program)
            compiler = [word for word in self.compiler.compiler_so if word != "-shared"]  # mingw's, also to compile
            command = [*compiler, str(source), *compile_flags, *link_flags, "-o", str(target)]
            done = subprocess.run(command, capture_output=True, check=False)
            return done.returncode == 0 and (not run or subprocess.run([target], check=False).returncode == 0)

    def translate(self):
        """Let Cython write the C file of each source. The C files then take the place of the sources."""
        sources = list(dict.fromkeys(source for extension in self.extensions for source in extension.sources))
        options = {"compiler_directives": DIRECTIVES, "annotate": DEBUG, "build_dir": str(C_FILES)}
        options |= {"force": True, "quiet": True, "depfile": True}  # writes the list of what a source includes
        # Looking for garbage a thousand times less often saves Cython a quarter of its time.
        with ProcessPoolExecutor(self.parallel, initializer=gc.set_threshold, initargs=(1_000_000, 2, 100)) as pool:
            tasks = {}
            for source in sorted(sources, key=longest_first):
                target = (C_FILES / source).with_suffix(".c")
                if not self.force and is_up_to_date(target, Path(f"{target}.dep")):
                    continue
                module = Extension(source.removesuffix(".pyx").replace("/", "."), [source])
                tasks[short_name(source)] = pool.submit(cythonize, [module], **options)
            wait_for("1 of 2, translated", tasks, pool)
        for extension in self.extensions:
            extension.sources = [str((C_FILES / source).with_suffix(".c")) for source in extension.sources]

    def make_objects(self):
        """Compile the C files of all modules, several at a time. The objects then take the place of the sources."""
        units = []
        for extension in self.extensions:
            folder = str(BUILD / extension.name)
            extension.extra_objects = self.compiler.object_filenames(extension.sources, output_dir=folder)
            extension.depends = extension.extra_objects
            units += zip([extension] * len(extension.sources), extension.sources, extension.extra_objects, strict=True)
            extension.sources = []
        units = [unit for unit in units if self.force or not is_up_to_date(unit[2], Path(unit[2]).with_suffix(".d"))]
        units.sort(key=lambda unit: longest_first(unit[1]))
        with ThreadPoolExecutor(self.parallel) as pool:
            tasks = {}
            for extension, source, _ in units:
                level = extension.name.partition(".loops_")[2]
                name = short_name(source) + (f" for {level}" if level else "")
                tasks[name] = pool.submit(self.make_object, extension, source)
            wait_for("2 of 2, compiled", tasks, pool)

    def make_object(self, extension, source):
        """Compile a C file for a module."""
        is_family = Path(source).parent.name == "loops" and Path(source).stem != "registry"
        self.compiler.compile(
            [source],
            output_dir=str(BUILD / extension.name),
            macros=[("PyMODINIT_FUNC", "static PyObject *")] if is_family else extension.define_macros,
            include_dirs=extension.include_dirs,
            extra_postargs=[*extension.extra_compile_args, "-MMD"],  # writes the list of the headers beside the object
        )


def longest_first(source):
    """Return a key that sorts sources, or C files, by how long they probably take, those that take longest first."""
    return Path(source).stem not in SLOW_SOURCES, -os.path.getsize(source)


def short_name(source):
    """Return what messages call a file, such as "loops/tile.c"."""
    return "/".join(Path(source).parts[-2:])


def wait_for(done, tasks, pool):
    """Wait for tasks, futures by name in the order of their start. Say what is `done`, and what takes long."""
    start, pending = time.perf_counter(), dict(tasks)
    try:
        while pending:
            finished, _ = wait(pending.values(), timeout=REPORT_INTERVAL, return_when=FIRST_COMPLETED)
            seconds = time.perf_counter() - start
            for name in [name for name, task in pending.items() if task in finished]:
                pending.pop(name).result()  # raises its exception
                print(f"{seconds:4.0f} s: {done} {name}, {len(pending)} of {len(tasks)} left", flush=True)
            if not finished:
                running = [name for name, task in pending.items() if task.running()]
                print(f"{seconds:4.0f} s: still at work on {', '.join(running[: os.cpu_count()])}", flush=True)
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise


def is_up_to_date(target, dependencies):
    """Whether a file exists and is newer than those that its compiler listed in a file of dependencies."""
    try:
        target = os.path.getmtime(target)
        listing = dependencies.read_text().replace("\\\n", " ").partition(": ")[2]
        names = [name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", listing.strip())]
        return all(os.path.getmtime(name) < target for name in names)
    except OSError:
        return False


if __name__ == "__main__":  # Cython's processes import this file
    runpy.run_path(str(KERNELS / "generate.py"))["write_all"]()
    setup(ext_modules=[] if PREBUILT else extensions(), cmdclass={"build_ext": BuildKernels})
