"""The stubs that `_kernels/generate.py` writes have what is there, with its parameters."""

import ast
import inspect
from pathlib import Path

import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite import functions
from caffelite._kernels.operations import KERNELS, OPERATIONS

PACKAGE = Path(cl.__file__).parent


def stub(name):
    return ast.parse((PACKAGE / f"{name}.pyi").read_text(encoding="utf-8")).body


def functions_of_stub(body):
    return {node.name: [a.arg for a in all_arguments(node.args)] for node in body if isinstance(node, ast.FunctionDef)}


def all_arguments(arguments):
    stars = [x for x in (arguments.vararg, arguments.kwarg) if x is not None]
    return [*arguments.args, *stars, *arguments.kwonlyargs]


def parameters(function):
    return sorted(inspect.signature(function).parameters)


def test_every_binding_is_in_the_stub_with_its_parameters():
    typed = functions_of_stub(stub("_kernels/bindings"))
    offered = {name: getattr(kernels.bindings, name) for name in kernels.bindings.__all__}
    offered = {name: value for name, value in offered.items() if not isinstance(value, type) and callable(value)}
    assert set(typed) >= set(offered)
    for name, function in offered.items():
        assert sorted(typed[name]) == parameters(function), name


def test_every_method_that_functions_add_to_tensors_is_typed():
    (typed,) = [node for node in stub("core/tensor_methods") if isinstance(node, ast.ClassDef)]
    methods = functions_of_stub(typed.body)
    assert {"sqrt", "cbrt", "sum", "reshape", "matmul", "__add__", "__rmatmul__", "__neg__", "__getitem__"} <= set(
        methods
    )
    for name, names in methods.items():
        found = parameters(getattr(cl.Tensor, name)) if not name.startswith("__") and name != "matmul" else None
        assert found is None or len(found) == len(names), name
    own = {name for name, value in vars(cl.Tensor).items() if inspect.isfunction(value)}
    added = {name for name in own if vars(cl.Tensor)[name].__module__.startswith("caffelite.functions")}
    assert added <= set(methods)


def test_the_functions_of_the_table_are_typed_and_public():
    names = {row.kernel for row in OPERATIONS if row.y}
    assert set(functions_of_stub(stub("functions/math"))) == names == set(functions.math.__all__)
    assert all(getattr(cl, name).__doc__ for name in names)


@pytest.mark.parametrize("row", KERNELS, ids=lambda row: row.name)
def test_a_kernel_of_the_table_has_its_formula_and_its_work(row):
    kernel = kernels.KERNELS[row.name]
    assert kernel.work == row.work
    assert row.formula in getattr(kernels, row.name).__doc__
