"""A folder for a class without a network: wheels, notebooks, programs and the site. `make classroom`.

    python tests/tools/classroom.py [FOLDER]

The wheels are for machines of this kind and with this version of Python. Wheels for other versions that are in the
folder stay there. At the end caffelite is installed from the folder alone into an empty environment. There it trains a
net, opens the playground and runs all notebooks.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for what the tests share
sys.path.append(str(Path(__file__).parents[2] / "docs" / "_extensions"))
import notebooks

from tests.tools.wheels import repair_wheel

ROOT = Path(__file__).parents[2]
PACKAGES = ["caffelite[plot,web]", "pandas", "scikit-learn", "jupyterlab"]
NEED_MORE = ("mpi", "onnx")  # pages with programs that need other packages
PROGRAM = """
from urllib.request import urlopen
import caffelite as cl
from caffelite.web.playground.page import Playground
x, y = cl.datasets.spiral(seed=0)
model = cl.MLP(2, [100, 3], seed=0)
optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=300, verbose=0)
history.plot()
print(f"trained from the folder alone: {(model.predict(x).argmax(axis=1) == y).mean():.0%} right")
playground = Playground()
with urlopen(playground.server.address) as page:
    assert b"Play" in page.read()
playground.stop()
"""
README = """# caffelite for a class without a network

On Windows, use WSL. On Debian and Ubuntu, Python may need two packages. Install them at home, with a network:

    sudo apt install python3-venv binutils

Copy this folder to each machine. The following commands need no network and no compiler:

    python3 -m venv env
    env/bin/pip install --no-index --find-links wheels {packages}
    env/bin/caffelite spiral            # trains a net and draws it: spiral.png
    env/bin/caffelite playground        # a net that learns while you look, in the browser
    env/bin/jupyter lab notebooks       # the pages of the site, to run and to change

If pip says `from versions: none`, your `python3 --version` or `uname -m` is not in this list:

{supported}

- `notebooks/`: the pages of the site. Lesson 1 is `first-net.ipynb`, lesson 2 `downhill.ipynb`, lesson 3
  `the-framework.ipynb`, lesson 4 `generalization.ipynb`, lesson 5 `images.ipynb`, lesson 6 `guide.ipynb`, lesson 7
  `the-machine.ipynb` and `the-program.ipynb`. The exercises of all lessons are in `exercises.ipynb`. Write your answers
  into the cells that say `# your answer`.
- `solutions/`: the same notebooks with solutions. Teachers may want to delete this folder before they copy the rest.
  The pages of `site/` have the solutions, too, closed.
- `programs/`: examples, such as `env/bin/python programs/xor.py`, and `textbook.py`, a framework in NumPy.
- `site/index.html`: the documentation{site}. For teachers, `site/lesson-plans.html` has a plan for each lesson, and
  quizzes with answers for the first day and the last. `site/_static/playground/index.html` is the playground.

If many users share one machine, set CAFFELITE_NUM_THREADS=1 for each: then trainings do not wait for each other.

You may change and pass on the pages, notebooks and programs. They are under the MIT licence: keep the file LICENSE. The
handwritten digits are from E. Alpaydin and C. Kaynak, under CC BY 4.0: name them. Some pages use data of scikit-learn.
"""


def pip(*arguments, python=sys.executable):
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)], cwd=ROOT, check=True)


def supported_platforms(wheel):
    """Return the Python and the systems that a wheel of caffelite is for, in words."""
    python = re.search(r"-cp(\d)(\d+)-", wheel.name)
    system, *version, machine = re.search(r"(manylinux|macosx)_(\d+)_(\d+)_(\w+)$", wheel.stem).groups()
    name = "Linux with glibc" if system == "manylinux" else "macOS"
    return f"Python {python[1]}.{python[2]}, {name} {'.'.join(version)} or newer on {machine}"


def make_wheels(folder):
    """Add the wheels for this Python to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made, ".")
        (wheel,) = Path(made).glob("*.whl")
        wheel = repair_wheel(wheel, Path(made, "repaired"))
        remove_outdated(folder, wheel)
        wheel = Path(shutil.copy(wheel, folder))
    needed = [PACKAGES[0].replace("caffelite", str(wheel)), *PACKAGES[1:]]
    pip("download", "--only-binary", ":all:", "--progress-bar", "off", "--dest", folder, *needed)


def remove_outdated(folder, wheel):
    """Remove the wheels of other versions of caffelite, and those that a new wheel replaces."""
    for old in folder.glob("caffelite-*.whl"):
        if old.name.split("-")[1] != wheel.name.split("-")[1] or supported_platforms(old) == supported_platforms(wheel):
            old.unlink()


def make_notebooks(folder):
    """Notebooks for students in `notebooks/`, and those of them that have solutions, with these, in `solutions/`."""
    for name in ("notebooks", "solutions"):
        shutil.rmtree(folder / name, ignore_errors=True)
    pages = [page for page in notebooks.pages(ROOT / "docs") if page.stem not in NEED_MORE]
    notebooks.write(pages, folder / "notebooks", solutions=False)
    notebooks.write(
        [page for page in pages if notebooks.SOLUTION in page.read_text(encoding="utf-8")], folder / "solutions"
    )


def make_rest(folder):
    """Programs, the site and the README."""
    for name in ("programs", "site"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(ROOT / "examples", folder / "programs", ignore=shutil.ignore_patterns("__pycache__", "speed*"))
    shutil.copy(ROOT / "caffelite" / "textbook.py", folder / "programs")
    shutil.copy(ROOT / "LICENSE", folder)
    site = ROOT / "docs" / "_build" / "html"
    if site.exists():
        shutil.copytree(site, folder / "site")
    absent = "" if site.exists() else " (not here: run `make docs classroom`)"
    systems = sorted(f"- {supported_platforms(wheel)}" for wheel in folder.glob("wheels/caffelite-*.whl"))
    packages = " ".join(f"'{name}'" if "[" in name else name for name in PACKAGES)
    text = README.format(packages=packages, supported="\n".join(systems), site=absent)
    (folder / "README.md").write_text(text)


def check(folder):
    """Install caffelite from the folder alone into an empty environment, and run everything there."""
    with tempfile.TemporaryDirectory() as empty:
        environment, work = Path(empty, "env"), Path(empty, "work")
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        offline = "install", "--progress-bar", "off", "--no-index", "--find-links", folder / "wheels"
        pip(*offline, *PACKAGES, python=environment / "bin" / "python")
        for name in ("notebooks", "solutions"):
            shutil.copytree(folder / name, work / name)
        subprocess.run([environment / "bin" / "python", "-c", PROGRAM], cwd=work, check=True)
        for notebook in sorted(work.rglob("*.ipynb")):
            print("Running", notebook.relative_to(work), flush=True)
            subprocess.run([environment / "bin" / "jupyter", "execute", notebook], cwd=work, check=True)


def main(folder):
    make_wheels(folder / "wheels")
    make_notebooks(folder)
    make_rest(folder)
    print("Trying it in an empty environment, from the folder alone", flush=True)
    check(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    kinds = [
        f"{sum(path.suffix == end for path in files)} {what}"
        for end, what in ((".whl", "wheels"), (".ipynb", "notebooks"))
    ]
    site = "the site" if (folder / "site").exists() else "no site"
    print(f"{folder}: {sum(path.stat().st_size for path in files) / 1e6:.0f} MB, {', '.join(kinds)}, {site}")


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or [ROOT / "classroom"]).absolute())
