"""The tests on a Python without its lock, run by that Python: `python tests/tools/run_free_threading.py`; half an hour.

    make PYTHON=python3.14t .venv/needs
    .venv/bin/python -m pip install 'safetensors>=0.9.0rc1' pytest-run-parallel
    make PYTHON=python3.14t .venv/test-alone
    .venv/bin/python tests/tools/run_free_threading.py

(This preview of safetensors is the first with wheels for such a Python.) If the system has none, compile one in five
minutes. On Debian, with a `deb-src` line for sid:

    apt-get install gcc make libssl-dev libffi-dev zlib1g-dev libsqlite3-dev libbz2-dev liblzma-dev
    apt-get source --download-only --tar-only python3.14
    ./configure --disable-gil --disable-test-modules --prefix=FOLDER && make && make install

The script runs three things:

1. All tests.
2. The tests of Functions, optimizers, Tensors and recordings, each on four threads at once.
3. The jobs of tests/core/free_threading.py for a minute, on eight threads.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # for the jobs

SHARED_TESTS = ["tests/optimizers", "tests/functions", "tests/model/test_predict.py"]
SHARED_TESTS += [f"tests/core/test_{name}.py" for name in ("tensor", "backward", "gradient", "sparse", "modes")]
SHARED_TESTS += [f"tests/program/test_{name}.py" for name in ("program", "guards", "capture", "buckets", "user_losses")]
NOT_SHARED = "memory or ctrl_c"  # tests of the whole process: its memory, its signals
SECONDS, THREADS = 60, 8


def test(*options):
    """Run tests; exit if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", *options]
    if subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_WAIT_POLICY": "passive"}, check=False).returncode:
        sys.exit("tests failed")


def main():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        sys.exit(f"{sys.executable} has its lock; run this script by a Python without it, such as python3.14t")
    test("-p", "no:run-parallel", "-n", "auto", "--dist", "worksteal")
    test("--parallel-threads=4", "-n", "auto", "--dist", "worksteal", "-k", f"not ({NOT_SHARED})", *SHARED_TESTS)

    from tests.core.free_threading import run_jobs

    print(f"{run_jobs(SECONDS, THREADS)} jobs on {THREADS} threads had the bits of one thread")
    if sys._is_gil_enabled():
        sys.exit("a module has brought the lock back")


if __name__ == "__main__":
    main()
