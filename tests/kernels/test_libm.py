"""On Windows, the loops do not use mingw's own mathematical functions, whose precision depends on the thread."""

import shutil
import subprocess
from pathlib import Path

import pytest

from caffelite import _kernels as kernels

LOOPS = Path(kernels.__file__).parent / "loops"
MINGW = "x86_64-w64-mingw32-gcc"
CALLS = "double call(double x) { return sin(x) + cos(x) + exp(x) + log(x) + pow(x, x) + hypot(x, x); }\n"


@pytest.mark.sources
@pytest.mark.skipif(shutil.which(MINGW) is None, reason="there is no gcc for Windows")
def test_the_headers_of_the_loops_compile_for_windows_and_import_no_mathematical_function(tmp_path):
    for header in LOOPS.glob("*.h"):
        calls = CALLS if header.stem == "libm" else ""
        (tmp_path / f"{header.stem}.c").write_text(f'#include "loops/{header.name}"\n{calls}', encoding="utf-8")
    command = [MINGW, "-c", "-O1", "-w", "-march=x86-64-v3", f"-I{LOOPS.parent}", *sorted(tmp_path.iterdir())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = subprocess.run(["nm", "-u", "libm.o"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "LoadLibraryA" in names
    assert not {"sin", "cos", "sincos", "exp", "log", "pow", "hypot"} & set(names.split())
