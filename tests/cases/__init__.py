"""The cases: what the tests know of every Function and every optimizer, in one place for each.

A file here for each file of `caffelite/functions` and for each layer of `tables/`. A Function of that file is one
entry in the list CASES of this one. An elementwise Function is its judge and one line:

    def softsign(x):
        y = x / (1 + abs(x))
        return y, lambda dy: (dy * (1 - abs(y)) ** 2,)

    CASES = [elementwise(functions.Softsign, softsign, lambda torch, x: torch.nn.functional.softsign(x))]

Any other is a Family: a function `build` that makes a Case of arguments (the shapes, say, and the axis), lists of such
arguments, a hypothesis strategy that draws them, and inputs with NaN and infinities. What a Case can say is said there.

A judge is float64 NumPy without tricks and without anything of caffelite; it takes the inputs, then the parameters, and
returns y and a function from dy to all gradients in this order. Those that several files use are in `reference.py`. The
counterpart takes PyTorch's module and the same as its tensors, and returns y. Where only a module of PyTorch does what
is wanted, `torch.func.functional_call(torch.nn.GRU(3, 4), {"weight_ih_l0": w, …}, (x,))` gives it the parameters.

All of this is found by itself: every module here is imported, `test_functions.py`, `test_pytorch.py`, `test_program.py`
hold each Function to their properties, `test_rules.py` each optimizer of `optimizers.py`, and a Function or optimizer
without a case fails the suite.
"""

import importlib
import pkgutil

import numpy as np
import pytest

DTYPES = [np.float32, np.float64]

MODULES = {name: importlib.import_module(f"{__name__}.{name}") for _, name, _ in pkgutil.iter_modules(__path__)}

FAMILIES = {family.function: family for module in MODULES.values() for family in getattr(module, "CASES", [])}


def make_params(kind):
    """Return the listed or empty cases of all Functions, as pytest parameters."""
    return [
        pytest.param(family.build(*arguments), id=f"{function.__name__}-{'-'.join(map(str, arguments))}")
        for function, family in FAMILIES.items()
        for arguments in getattr(family, kind)
    ]


every_function = pytest.mark.parametrize("function", list(FAMILIES), ids=lambda function: function.__name__)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
