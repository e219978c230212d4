"""A folder for a class without a network: wheels, notebooks, programs and the site. `make classroom`.

    python tests/classroom.py [FOLDER]

The wheels are for machines of this kind and with this version of Python. At the end caffelite is installed from the
folder alone into an empty environment, where it trains a net.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from wheels import repaired

ROOT = Path(__file__).parent.parent
PACKAGES = ["scikit-learn", "jupyterlab"]  # beside caffelite with matplotlib
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n((?::[^\n]*\n)*)(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAM = """
import caffelite as cl
x, y = cl.datasets.spiral(seed=0)
model = cl.MLP(2, [100, 3], seed=0)
optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=300, verbose=0)
history.plot()
print(f"trained from the folder alone: {(model.predict(x).argmax(axis=1) == y).mean():.0%} right")
"""
README = """# caffelite for a class without a network

Copy this folder to each machine: {system} with Python {python}. On Windows, use WSL. No compiler is needed.

    python3 -m venv env
    env/bin/pip install --no-index --find-links wheels 'caffelite[plot]' scikit-learn jupyterlab
    env/bin/caffelite spiral            # trains a net and draws it: spiral.png
    env/bin/jupyter lab notebooks       # the pages of the site, to run and to change

- `notebooks/`: begin with `first-net.ipynb`, then `from-one-number.ipynb`
- `programs/`: examples, such as `env/bin/python programs/xor.py`
- `site/index.html`: the documentation{site}

If many users share one machine, set CAFFELITE_NUM_THREADS=1 for each: then trainings do not wait for each other.
"""


def notebook(page):
    """A page as a notebook: its code cells, and the text between them as Markdown."""
    text = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    text = re.sub(r"\{doc\}`([\w-]+)`", r"[\1](\1.ipynb)", text)
    cells = []
    for i, part in enumerate(CELL.split(text)):  # text, options, code, text, options, code … text
        source = part.strip().splitlines(keepends=True)
        if i % 3 == 0 and source:
            cells.append({"cell_type": "markdown", "metadata": {}, "source": source})
        if i % 3 == 1:
            tags = re.findall(r"^:tags: \[(.*)\]$", part, re.MULTILINE)
        if i % 3 == 2:
            metadata = {"tags": re.split(r",\s*", tags[0])} if tags else {}
            cells.append(
                {"cell_type": "code", "metadata": metadata, "source": source, "outputs": [], "execution_count": None}
            )
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


def pip(*arguments, python=sys.executable):
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)], cwd=ROOT, check=True)


def main(folder):
    shutil.rmtree(folder, ignore_errors=True)
    wheels, notebooks, programs = folder / "wheels", folder / "notebooks", folder / "programs"
    with tempfile.TemporaryDirectory() as made:
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made, ".")
        (wheel,) = Path(made).glob("*.whl")
        wheel = repaired(wheel, wheels)
    pip("download", "--only-binary", ":all:", "--progress-bar", "off", "--dest", wheels, f"{wheel}[plot]", *PACKAGES)

    notebooks.mkdir()
    for page in sorted(ROOT.glob("docs/*.md")):
        if "{code-cell}" in page.read_text():
            (notebooks / f"{page.stem}.ipynb").write_text(json.dumps(notebook(page.read_text()), indent=1))
    shutil.copytree(ROOT / "examples", programs, ignore=shutil.ignore_patterns("__pycache__", "speed*"))
    site = ROOT / "docs" / "_build" / "html"
    if site.exists():
        shutil.copytree(site, folder / "site")
    platform = re.search(r"(?:manylinux|macosx)_(\d+)_(\d+)_(\w+)$", wheel.stem)
    libc = "macOS {}.{}" if sys.platform == "darwin" else "Linux with glibc {}.{}"
    system = f"{libc.format(platform[1], platform[2])} or newer on {platform[3]}"
    version = ".".join(map(str, sys.version_info[:2]))
    absent = "" if site.exists() else " (not here: run `make docs` before `make classroom`)"
    (folder / "README.md").write_text(README.format(system=system, python=version, site=absent))

    print("Trying it in an empty environment, from the folder alone", flush=True)
    with tempfile.TemporaryDirectory() as empty:
        subprocess.run([sys.executable, "-m", "venv", empty], check=True)
        python = Path(empty, "bin", "python")
        offline = "install", "--progress-bar", "off", "--no-index", "--find-links", wheels
        pip(*offline, "caffelite[plot]", *PACKAGES, python=python)
        subprocess.run([python, "-c", PROGRAM], cwd=empty, check=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.0f} MB, {len(list(wheels.glob('*.whl')))} wheels, ", end="")
    print(f"{len(list(notebooks.iterdir()))} notebooks, {'with' if site.exists() else 'without'} the site")


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or [ROOT / "classroom"]).absolute())
