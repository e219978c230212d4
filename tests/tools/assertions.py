"""Tests that assert nothing, which `house.py` counts: they fail only if something raises, and promise nothing.

A test asserts by `assert`, or a program in a string does; by pytest's `raises`, `warns` or `fail`; by a function whose
name begins with `assert_` or `check_`; or by a helper, a class or a fixture of the tests that does one of these.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PYTEST = {"raises", "warns", "deprecated_call", "fail"}
ASSERTION = re.compile(r"^ *assert ", re.MULTILINE)


class Module:
    """A file of the tests: its functions and classes, and the names that it imports from other files of the tests."""

    def __init__(self, path: Path):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.path = path
        self.definitions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        self.imports = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests")
            for alias in node.names
        }


class TestModules:
    """All files of the tests, by their names as modules."""

    __test__ = False

    def __init__(self, root: Path):
        paths = sorted((root / "tests").rglob("*.py"))
        self.modules = {".".join(path.relative_to(root).with_suffix("").parts): Module(path) for path in paths}

    def definition(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        """Return the function or class that a name means in a module, and its module, if it is one of the tests."""
        if module in self.modules:
            definitions, imports = self.modules[module].definitions, self.modules[module].imports
            first, _, rest = name.partition(".")
            if name in definitions:
                return module, definitions[name]
            if name in imports:
                return self.definition(*imports[name].rsplit(".", 1))
            if rest and first in imports:
                return self.definition(imports[first], rest)
        folders = module.removesuffix(".conftest").split(".")[:-1]  # a fixture of this folder or of one above it
        return self.definition(".".join([*folders, "conftest"]), name) if folders else None

    def asserts(self, module: str, node: ast.AST) -> bool:
        """Return whether a function of a module asserts anything, itself or by the functions that it names."""
        reached = [(module, node)]
        for module, node in reached:  # which grows
            if any(map(is_assertion, ast.walk(node))):
                return True
            found = [self.definition(module, name) for name in sorted(names(node))]
            reached += [definition for definition in found if definition and definition not in reached]
        return False

    def without_assertion(self) -> Iterator[tuple[Path, int, str]]:
        """Yield the file, the line and the name of each test that asserts nothing."""
        for name, module in self.modules.items():
            for test, node in module.definitions.items():
                if test.startswith("test_") and not self.asserts(name, node):
                    yield module.path, node.lineno, test


def is_assertion(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return bool(ASSERTION.search(node.value))
    if isinstance(node, ast.Call):
        *_, name = ast.unparse(node.func).split(".")
        return name in PYTEST or name.startswith(("assert_", "check_"))
    return isinstance(node, ast.Assert)


def names(node: ast.AST) -> set[str]:
    """Return the names that a function uses: of functions, also those of modules, and of fixtures."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.arg):
            found.add(part.arg)
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            found.add(f"{part.value.id}.{part.attr}")
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
            found.add(part.value)  # of `usefixtures`
    return found
