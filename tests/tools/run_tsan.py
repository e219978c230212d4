"""The tests under ThreadSanitizer: `python tests/tools/run_tsan.py`, on Linux; half an hour.

    apt-get install gcc clang libomp-dev

The script copies the project to build/races and compiles it there twice. The first copy has planted races, which the
sanitizer must report. The second copy has none, and the sanitizer must report none. In both copies every kernel, even
a small one, is divided among threads and releases the GIL. The tests of the kernels run on 2 and on 8 threads. The
tests of all that uses several threads run on 2 threads: recordings, replays, trainings, `fit_many`, `Prefetch`,
sources, one model in many threads.

Design
------
(a) Only caffelite's own code is instrumented. In Python and NumPy the sanitizer sees the locks, such as the GIL, and
    copies by memcpy. It does not see other reads and writes.
(b) ThreadSanitizer knows nothing of OpenMP's barriers. LLVM's OpenMP tells it, by a library called Archer. gcc's OpenMP
    does not. So clang compiles.
(c) The sanitizer must be loaded before Python. Clang's own library ends the process if it is loaded like this. gcc's
    library does not, and works with clang's code as well.
(d) The script compiles only the loops of x86-64-v2, because larger reads and writes than 16 bytes are not
    instrumented.
(e) The script leaves out tests that fork. In one of them a model predicts while it is trained. This is a race: it may
    predict with parameters between two steps.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for what the tests share
from tests.conftest import run
from tests.tools.sanitize import KERNEL_TESTS, ROOT, Bug, build

FOLDER = ROOT / "build" / "races"

LAUNCH = "caffelite/_kernels/launch.pyx"
CHANGES = [
    ("setup.py", '"-O3", "-g0"', '"-O3", "-g"'),
    ("setup.py", '["-s", ', "["),  # reports use these symbols to name functions
    ("setup.py", '"x86-64-v3": ["-march=x86-64-v3"],', ""),
    ("setup.py", '"x86-64-v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],', ""),
    (LAUNCH, "PARALLEL_WORK = 4_000_000", "PARALLEL_WORK = 1"),
    (LAUNCH, "RELEASE_WORK = 200_000", "RELEASE_WORK = 1"),
]
REPORT = "ThreadSanitizer: data race"
BUGS = [
    Bug(
        LAUNCH,
        "call.parts * share // shares,",
        "call.parts * share // shares - (share > 0),",  # also computes the last part of the thread before
        "test_every_number_of_threads_gives_the_same_bits",
        REPORT,
    ),
    Bug(
        "caffelite/program/runner.pyx",
        "self.function, self.lock = function, threading.RLock()",
        "self.function, self.lock = function, threading.Semaphore(8)",  # a lock for eight at a time
        "test_eight_threads_may_predict_at_once[1]",  # it divides no calls, which would report the other race
        REPORT,
    ),
]

SHARING_TESTS = [f"tests/program/test_{name}.py" for name in ("program", "passes", "program_state", "capture")]
SHARING_TESTS += [f"tests/training/test_{name}.py" for name in ("inputs", "weights", "clipping", "epoch_metrics")]
SHARING_TESTS += [f"tests/training/test_{name}.py" for name in ("user_errors", "transforms", "batch_shapes")]
SHARING_TESTS += [
    f"tests/model/test_{name}.py" for name in ("many", "many_arguments", "many_validation", "predict_many")
]
SHARING_TESTS += [f"tests/data/test_{name}.py" for name in ("data", "out_of_core", "prefetch")]
SHARING_TESTS += [f"tests/core/test_{name}.py" for name in ("sparse", "modes", "threads")]
NO_FORKS = "not fork and not processes and not joblib"

# Reports that are not races. (`race:libomp.so` would hide every race in kernels, because OpenMP calls them.)
SUPPRESSIONS = """
# OpenMP passes its own locks from thread to thread, and Archer does not report this.
called_from_lib:libomp.so
"""

ENVIRONMENT = {
    "LD_PRELOAD": run("gcc", "-print-file-name=libtsan.so", cwd=ROOT).strip(),
    "OMP_TOOL_LIBRARIES": str(Path(run("clang", "-print-resource-dir", cwd=ROOT).strip()).parents[1] / "libarcher.so"),
    "OMP_WAIT_POLICY": "passive",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's products have their own locks, which the sanitizer does not see
    # Tests request too much memory and expect a MemoryError. The first race ends the process.
    "TSAN_OPTIONS": f"allocator_may_return_null=1 halt_on_error=1 suppressions={FOLDER / 'suppressions.txt'}",
}


def test(project, threads, *arguments):
    """Run the project's tests on this many threads. The result has the exit status and all output."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--capture=sys", *arguments],
        cwd=project,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(project), "CAFFELITE_NUM_THREADS": str(threads)},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "suppressions.txt").write_text(SUPPRESSIONS)
    planted = FOLDER / "planted"
    build(planted, CHANGES + BUGS, "clang", "-fsanitize=thread")
    for bug in BUGS:
        done = test(planted, 2, "tests/kernels/test_threads.py", "tests/core/test_threads.py", "-k", bug.test)
        if bug.report not in done.stdout:
            print(done.stdout)
            sys.exit(f"the sanitizer can't be trusted: the race planted for {bug.test} was not reported")
        print(f"the planted race was reported: {bug.test}", flush=True)

    project = FOLDER / "project"
    build(project, CHANGES, "clang", "-fsanitize=thread")
    for threads, tests in [(2, KERNEL_TESTS), (8, KERNEL_TESTS), (2, SHARING_TESTS)]:
        print(f"{threads} threads: {' '.join(tests)}", flush=True)
        done = test(project, threads, *tests, "-k", NO_FORKS)
        print(done.stdout, flush=True)
        if done.returncode != 0 or REPORT in done.stdout:
            sys.exit(f"on {threads} threads, tests failed or a race was reported")


if __name__ == "__main__":
    main()
