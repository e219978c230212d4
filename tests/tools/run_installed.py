"""The tests of the caffelite that is installed, not of the one beside them: `run_installed.py [OPTIONS]`

They run in a folder that has the whole project except the package and its build. Tests marked `sources` do not run.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import caffelite

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, where the package may lie too: not before
from tests.conftest import copy_project


def main(arguments):
    installed = Path(caffelite.__file__).parent
    if Path(sys.prefix) not in installed.parents:
        sys.exit(f"caffelite is not installed here: it is imported from {installed}")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        copy_project(project)
        shutil.rmtree(project / "caffelite")
        (project / "setup.py").unlink()
        print(f"the tests of {installed}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not sources", *arguments]
        return subprocess.run(command, cwd=project, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
