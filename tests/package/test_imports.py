"""Imports go one way, from the edges to the kernels, and the package itself imports little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import caffelite

PACKAGE = Path(caffelite.__file__).parent

# A module imports from its own layer and from those above it in this table. Other subpackages have no place yet.
LAYERS = [
    {"_kernels", "_support", "textbook"},
    {"core"},
    {"data"},
    {"functions"},
    {"optimizers", "program", "files"},
    {"training"},
    {"model"},
    {"attribution", "distributed", "tables", "visualize"},
    {"__main__", "", "cli", "sklearn", "c", "onnx", "pytorch", "mpi", "web", "exercises"},
]
LAYER = {name: i for i, names in enumerate(LAYERS) for name in names}

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
    for path in PACKAGE.rglob("*.py")
}


def imports(module):
    """Return the modules of the package that a module imports, anywhere in it, relative to the package."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "caffelite"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import in line {node.lineno}"
            if node.module.split(".")[0] == "caffelite":
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    found.add(name if name.removeprefix("caffelite.") in MODULES else node.module)
    return {name.removeprefix("caffelite").lstrip(".") for name in found}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_its_own_layer_and_lower_ones_only(module):
    own = module.split(".")[0]
    assert own in LAYER, f"{module} has no place in LAYERS"
    for imported in imports(module):
        other = imported.split(".")[0]
        assert LAYER[other] <= LAYER[own], f"{module} imports {imported or 'the package'}"


def test_the_layers_up_to_the_model_do_not_import_the_package_itself():
    below = [module for module in MODULES if LAYER[module.split(".")[0]] <= LAYER["model"]]
    assert len(below) > 10
    assert [module for module in below if "" in imports(module)] == []


def test_no_module_imports_itself_through_others():
    inside = {module: {name for name in imports(module) if name not in ("", module)} for module in MODULES if module}

    def reach(module, seen):
        for imported in inside.get(module, ()):
            if imported not in seen:
                seen.add(imported)
                reach(imported, seen)
        return seen

    packages = {"functions", "_kernels"}  # they gather their own modules
    assert [m for m in inside if m not in packages and not m.startswith("_kernels") and m in reach(m, set())] == []


def test_kernels_mention_no_other_part_of_the_package():
    sources = [path for suffix in ("*.pyx", "*.pxd", "*.pxi") for path in (PACKAGE / "_kernels").rglob(suffix)]
    for path in sources:
        lines = path.read_text(encoding="utf-8").splitlines()
        imported = [line for line in lines if "caffelite" in line and ("import " in line)]
        assert all("caffelite._kernels" in line for line in imported), path.name


def test_importing_caffelite_imports_no_library_that_is_used_now_and_then():
    libraries = {"tqdm", "matplotlib", "torch", "sklearn", "safetensors", "scipy", "mpi4py"}
    program = f"import sys, caffelite; print(sorted({libraries} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_importing_caffelite_does_not_import_the_exercises_but_naming_them_does():
    program = (
        "import sys, caffelite; n = 'caffelite.exercises'; print(n in sys.modules, caffelite.exercises.__name__ == n)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
