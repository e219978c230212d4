"""What has to be in a wheel and a source distribution, and how large they may be: `distributions.py FILE …`

Needs nothing but Python. Of each file it prints its size; for one that is not as it should be the exit status is 1.
"""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = "caffelite", "tests", "examples", "benchmarks", "docs"
BUILT = "docs/_build/", "docs/_notebooks/", "docs/gallery/", "examples/on_device/build/"  # by `make`
MADE = ".so", ".pyd", ".c", ".html", ".pyc"  # by compilers
BY_HAND = "/static/", "/c/kernels/", "/on_device/"  # folders whose files are not made by compilers
LOOPS = "/_kernels/loops/"  # files that become one module for each instruction set
SOURCES = ".pyx", ".pxd", ".pxi", ".h"
LEVELS = {"x86_64": ["x86_64_v2", "x86_64_v3", "x86_64_v4"]}  # of instructions, by processor; others have one
LEVELS["amd64"] = LEVELS["x86_64"]  # its name on Windows

# Bytes, 2 to 3 % more than the files have. Half of a wheel is loops for three instruction sets, a tenth the bindings, a
# quarter Python, and a twentieth OpenMP's library. A quarter of a source distribution is pictures, the film, and
# WebAssembly.
LARGEST_WHEEL, LARGEST_INSTALLED, LARGEST_SDIST = 3.4e6, 8.05e6, 3.25e6


def is_made(name):
    return name.endswith(MADE) and not is_by_hand(name)


def is_by_hand(name):
    return any(folder in name for folder in BY_HAND)


def is_source(name):
    """Return whether it is needed only to build the package. The C of a training step is a part of it."""
    return name.endswith((".c", *SOURCES)) and not is_by_hand(name)


def files(folder):
    """Return the files of a folder of the project that are not made by a compiler, a test or `make docs`."""
    found = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [name for name in names if not (is_made(name) or "/." in name or name.startswith(BUILT))]


def faults_of_wheel(path):
    """Return what is wrong with a wheel, in sentences."""
    archive = zipfile.ZipFile(path)
    names = archive.namelist()
    installed = sum(info.file_size for info in archive.infolist())
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {installed / 1e6:.2f} MB installed, {len(names)} files")
    platform = path.stem.rpartition("-")[2]
    processor = next((name for name in LEVELS if platform.endswith(name)), None)
    modules = [name for name in names if name.startswith("caffelite/") and name.endswith((".so", ".pyd"))]
    expected = [name[: -len(".pyx")] for name in files("caffelite") if name.endswith(".pyx") and LOOPS not in name]
    expected += [f"caffelite/_kernels/loops_{level}" for level in LEVELS.get(processor, ["generic"])]
    plain = [name for name in files("caffelite") if not is_source(name)]
    foreign = [
        name
        for name in names
        if name.split("/")[0] not in ("caffelite", "caffelite.libs") and ".dist-info/" not in name
    ]
    wrong = []
    if platform.startswith("linux"):
        wrong.append("it is for the machine that built it alone: auditwheel repair was not run")
    if path.stat().st_size > LARGEST_WHEEL:
        wrong.append(f"it is larger than {LARGEST_WHEEL / 1e6} MB")
    if installed > LARGEST_INSTALLED:
        wrong.append(f"installed, it is larger than {LARGEST_INSTALLED / 1e6} MB")
    wrong += [f"{name} is missing" for name in plain if name not in names]
    wrong += [f"{name} is not compiled" for name in expected if sum(m.startswith(f"{name}.") for m in modules) != 1]
    wrong += [f"{name} has no place in it" for name in names if is_source(name)]
    wrong += [f"{name} has no place in it" for name in foreign]
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        wrong.append("the licence is missing")
    return wrong


def faults_of_sdist(path):
    """Return what is wrong with a source distribution, in sentences."""
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(names)} files")
    needed = ["setup.py", "pyproject.toml", "README.md", "LICENSE", "Makefile", "CHANGELOG.md"]
    needed += [name for folder in FOLDERS for name in files(folder)]
    wrong = [f"{name} is missing" for name in needed if name not in names]
    wrong += [f"{name} is made by a compiler" for name in names if is_made(name)]
    if path.stat().st_size > LARGEST_SDIST:
        wrong.append(f"it is larger than {LARGEST_SDIST / 1e6} MB")
    return wrong


def faults(path):
    return faults_of_wheel(path) if path.suffix == ".whl" else faults_of_sdist(path)


def main(paths):
    found = [f"{path.name}: {fault}" for path in map(Path, paths) for fault in faults(path)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
