"""The tests under ThreadSanitizer: `python tests/races.py`, on Linux; half an hour.

    apt-get install gcc clang libomp-dev

The project is copied to build/races and compiled there twice: with races planted, which have to be reported, and as it
is. In both copies every kernel is cut among threads, and lets other Python threads run, however small it is. Then no
race may be reported while the tests of the kernels run, on 2 and on 8 threads, and on 2 threads those of all that
brings threads together: recording and replaying, trainings, `fit_many`, `Prefetch`, sources, one model in many threads.

Design
------
(a) Only caffelite's own code is instrumented. Of Python and NumPy the locks are seen, the GIL among them, and what they
    copy by memcpy, not what they read and write otherwise.
(b) ThreadSanitizer knows nothing of OpenMP's barriers. LLVM's OpenMP tells it, by a library called Archer, and gcc's
    does not, so clang compiles.
(c) The sanitizer has to be in the process before Python is. Clang's own library ends the process if it is loaded like
    that, so it is gcc's, which serves clang's code as well.
(d) Of loops only those of x86-64-v2 are compiled: what reads or writes more than 16 bytes at once is not instrumented.
(e) Left out are tests that fork. In one of them a model predicts while it is trained, which is a race: what it predicts
    then is of parameters between two steps.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import run
from sanitize import KERNEL_TESTS, ROOT, Bug, build

FOLDER = ROOT / "build" / "races"

LAUNCH = "caffelite/_kernels/launch.pyx"
CHANGES = [
    ("setup.py", '"-O3", "-g0"', '"-O3", "-g"'),
    ("setup.py", '["-s", ', "["),  # a report names functions by these symbols
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
        "call.parts * share // shares - (share > 0),",  # the part before is the last one of the thread before
        "test_every_number_of_threads_gives_the_same_bits",
        REPORT,
    ),
    Bug(
        "caffelite/program/running.pyx",
        "self.function, self.lock = function, threading.RLock()",
        "self.function, self.lock = function, threading.Semaphore(8)",  # a lock for eight at a time
        "test_eight_threads_may_predict_at_once[1]",  # where no call is cut, which would show the other race
        REPORT,
    ),
]

SHARING = ["program", "training", "many", "data", "sources", "sparse", "modes", "threads"]
SHARING_TESTS = [f"tests/test_{name}.py" for name in SHARING]
NO_FORKS = "not fork and not processes and not joblib"

# What is no race, and why. (`race:libomp.so` would hide every race of kernels, whose callers OpenMP's functions are.)
SUPPRESSIONS = """
# OpenMP hands its own locks from thread to thread in ways of which Archer does not tell.
called_from_lib:libomp.so
"""

ENVIRONMENT = {
    "LD_PRELOAD": run("gcc", "-print-file-name=libtsan.so", cwd=ROOT).strip(),
    "OMP_TOOL_LIBRARIES": str(Path(run("clang", "-print-resource-dir", cwd=ROOT).strip()).parents[1] / "libarcher.so"),
    "OMP_WAIT_POLICY": "passive",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's products have locks of their own, which are not seen
    # Tests ask for more memory than there is: a MemoryError. The first race ends the process.
    "TSAN_OPTIONS": f"allocator_may_return_null=1 halt_on_error=1 suppressions={FOLDER / 'suppressions.txt'}",
}


def test(project, threads, *arguments):
    """Run the project's tests on so many threads; what was printed, by the sanitizer too, and the exit status."""
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
        done = test(planted, 2, "tests/test_kernels.py", "tests/test_threads.py", "-k", bug.test)
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
