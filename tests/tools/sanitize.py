"""The tests under gcc's AddressSanitizer and UndefinedBehaviorSanitizer: `make sanitize`, on Linux.

The script copies the project to build/sanitize and compiles it there twice. The first copy has planted bugs: the
sanitizers must report them on every instruction set that this processor runs. The second copy has none: all tests must
pass on the best instruction set, and the tests of the kernels on the others. The script leaves out the slow tests,
which compile, and the tests of the benchmarks and of the command line, which run the same kernels in other processes.

Only caffelite's own code is instrumented. The sanitizers know the end of an allocation. They do not know the end of an
operand inside one, such as a parameter in the memory of a Program. NumPy also keeps the memory of freed small arrays
for later use, so the sanitizers do not notice its use after the free.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from caffelite._kernels import available_instruction_sets

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for what the tests share
from tests.conftest import copy_project, run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "sanitize"
FAMILIES = (
    "convolution",
    "convolution_errors",
    "convolutional_nets",
    "pooling",
    "normalization",
    "reduction",
    "attention",
    "recurrent",
    "embedding",
)
KERNEL_TESTS = ["tests/kernels", *(f"tests/functions/test_{family}.py" for family in FAMILIES)]
KERNEL_TESTS += ["tests/data/test_augment.py", "tests/tables/test_frames.py"]
MOST_TESTS = ["--ignore=tests/package/test_benchmarks.py", "--ignore=tests/cli/test_cli.py"]

# For the compiler and the linker. -g1 names lines. With the variables of -g, too, gcc takes very long for the largest
# files. Python's own flags may include -fwrapv, which would make every signed overflow legal.
FLAGS = "-g1 -fno-omit-frame-pointer -fno-wrapv -fsanitize=address,undefined -fno-sanitize-recover=all"

# With -O3, the loops for AVX-512 would take a quarter of an hour to compile.
CHANGES = [("setup.py", '"-O3", "-g0"', '"-O2", "-ftree-vectorize", "-g1"')]

# AddressSanitizer must be loaded first, with the C++ library. Otherwise the first C++ exception ends the process.
LIBRARIES = ("libasan.so", "libstdc++.so.6")

ENVIRONMENT = {
    "LD_PRELOAD": ":".join(run("gcc", f"-print-file-name={library}", cwd=ROOT).strip() for library in LIBRARIES),
    "PYTHONMALLOC": "malloc",  # Python's own allocator leaves no gaps between objects that could be guarded
    # CPython and NumPy keep memory until the process ends. Tests request too much memory and expect a MemoryError.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


class Bug(NamedTuple):
    """A bug to plant: the file and the text to replace, a test that runs into it, and the sanitizer's report."""

    file: str
    text: str
    planted: str
    test: str
    report: str


BUGS = [
    Bug(
        "caffelite/_kernels/loops/batches.pyx",
        "for i in range(call.size[0] - 1, 0, -1):",
        "for i in range(call.size[0], 0, -1):",
        "test_shuffling_permutes",
        "AddressSanitizer: heap-buffer-overflow",
    ),
    Bug(
        "caffelite/_kernels/loops/batches.pyx",
        "cursor.position += call.size[0]",
        "cursor.position += call.size[0] + 0x7fffffffffffffffLL",
        "test_a_recorded_batch_is_found_and_measured_through_the_cursor",
        "runtime error: signed integer overflow",
    ),
]


def build(project, changes, compiler="gcc", flags=FLAGS):
    """Copy the project, make the changes, which may plant bugs, and compile the copy with a sanitizer."""
    copy_project(project)
    for file, text, planted, *_ in changes:
        source = (project / file).read_text(encoding="utf-8")
        if source.count(text) != 1:
            sys.exit(f"no place for a change: {file} should contain {text!r} once")
        (project / file).write_text(source.replace(text, planted))
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", f"-j{os.cpu_count()}"]
    run(*command, cwd=project, env=os.environ | {"CC": compiler, "CFLAGS": flags})


def test(project, isa, *arguments, **options):
    """Run the project's tests. pytest does not capture the report that a sanitizer writes when it ends the process."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--capture=sys", *arguments],
        cwd=project,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(project), "CAFFELITE_ISA": isa},
        check=False,
        **options,
    )


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    best, *others = available_instruction_sets()

    planted = FOLDER / "planted"
    build(planted, CHANGES + BUGS)
    for isa in (best, *others):
        for bug in BUGS:
            done = test(planted, isa, *KERNEL_TESTS, "-k", bug.test, capture_output=True, text=True)
            if done.returncode == 0 or bug.report not in done.stderr:
                print(done.stdout, done.stderr)
                sys.exit(f"the sanitizers can't be trusted: on {isa} the bug planted for {bug.test} was not reported")
            print(f"{isa}: the planted bug was reported: {bug.report}", flush=True)

    project = FOLDER / "project"
    build(project, CHANGES)
    for isa in (best, *others):
        print(f"{isa}: the tests", flush=True)
        if test(project, isa, *(MOST_TESTS if isa == best else KERNEL_TESTS)).returncode != 0:
            sys.exit(f"the tests failed under the sanitizers on {isa}")


if __name__ == "__main__":
    main()
