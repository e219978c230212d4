"""The nets of the site's pages, and what makes and runs them."""

import functools
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
STATIC = DOCS / "_static"


def load_module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load_module(DOCS / "_wasm" / "build.py")


def run_clang(*arguments, program=""):
    """Return what clang answers, or nothing without clang and after an error."""
    if shutil.which(build.CLANG) is None:
        return ""
    done = subprocess.run([build.CLANG, *arguments], input=program, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout or "done"


@functools.cache
def missing_wasm():
    """Return whether clang cannot make WebAssembly of C that calls libm."""
    program = "#include <math.h>\nfloat f(float x) { return expf(x); }\n"
    with tempfile.TemporaryDirectory() as folder:
        linked = ("-lm", "-nostartfiles", "-Wl,--no-entry,--export=f", "-o", f"{folder}/f.wasm")
        return not run_clang("--target=wasm32-wasi", "-x", "c", "-", *linked, program=program)
