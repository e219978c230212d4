"""The tests with another C compiler: `python tests/tools/run_compiler.py clang`, on Linux; a quarter of an hour.

    apt-get install clang libomp-dev libclang-rt-dev

The script copies the project to build/compilers and compiles it there by this compiler. Our loops must compile without
a warning, and all tests must pass. `python tests/tools/run_compiler.py gcc-14 tests/kernels` runs some of the tests.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for what the tests share
from tests.conftest import copy_project, run

FOLDER = Path(__file__).parents[2] / "build" / "compilers"

# Each file uses some of the functions of a header. Cython repeats a function's attributes where it
# declares the result.
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-attributes", "-Wno-ignored-attributes"]


def main(compiler="clang", *tests):
    project = FOLDER / Path(compiler).name
    shutil.rmtree(project, ignore_errors=True)
    copy_project(project)
    environment = os.environ | {"CC": compiler, "PYTHONPATH": str(project), "OMP_WAIT_POLICY": "passive"}
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=project, env=environment)
    for source in sorted(project.glob("build/*/c/caffelite/_kernels/loops/*.c")):
        folders = ["-Icaffelite/_kernels", "-isystem", sysconfig.get_path("include")]
        run(compiler, "-fsyntax-only", "-march=native", *WARNINGS, *folders, source, cwd=project)
    print(f"{compiler} compiles the loops without a warning; now the tests", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", *tests]
    sys.exit(subprocess.run(command, cwd=project, env=environment, check=False).returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
