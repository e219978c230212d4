"""PyTorch's database of operators: what corresponds to them here gives their values and their gradients.

`TABLE` has, for the name of an operator of PyTorch, a function of its arguments that computes it with caffelite. If
caffelite has no such argument, the function raises an error, which counts as a refusal. A wrong number is a failure.
"""

import importlib.util
import sys
import types
import unittest
import warnings
from collections import Counter

import numpy as np
import pytest

import caffelite as cl
from tests.tools.torch_layers import LAYERS
from tests.tools.torch_operators import NEEDS, OPERATORS, UnsupportedOption

pytestmark = pytest.mark.slow

LEAST_SHARE = 0.96  # of the samples that have to be computed
TOLERANCE = {"float32": (3e-4, 3e-5), "float64": (1e-7, 1e-9)}
TABLE = OPERATORS | LAYERS


def database(torch):
    """PyTorch's operators. Its module imports expecttest, of which these operators need nothing."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if importlib.util.find_spec("expecttest") is None:
            stub = types.ModuleType("expecttest")
            stub.TestCase, stub.assert_expected_inline = unittest.TestCase, None
            patch.setitem(sys.modules, "expecttest", stub)
        return importlib.import_module("torch.testing._internal.common_methods_invocations").op_db


def map_tensors(convert, value):
    """Return the value with all tensors of PyTorch in it converted."""
    if isinstance(value, list | tuple):
        parts = [map_tensors(convert, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {name: map_tensors(convert, part) for name, part in value.items()}
    return convert(value) if hasattr(value, "requires_grad") else value


def leaves(value):
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


class Comparison:
    """The samples of all operators, computed by both."""

    def __init__(self, torch):
        self.torch, self.rng = torch, np.random.default_rng(0)
        self.accepted, self.refused, self.wrong = Counter(), Counter(), []

    def compare_all(self):
        operators = [op for op in database(self.torch) if op.name in TABLE]
        for op in operators:
            if hasattr(cl, NEEDS.get(op.name, "Tensor")):
                floats = {self.torch.float32, self.torch.float64} & op.dtypes
                for dtype in floats or {self.torch.int64} & op.dtypes:
                    self.compare(op, dtype)
        return {op.name for op in operators}

    def compare(self, op, dtype):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            learns = op.supports_autograd and dtype.is_floating_point
            for sample in op.sample_inputs("cpu", dtype, requires_grad=learns):
                given = (sample.input, *sample.args), sample.kwargs
                try:
                    self.check(op, TABLE[op.name], str(dtype).partition(".")[2], *given)
                    self.accepted[op.name] += 1
                except (UnsupportedOption, ValueError, TypeError, IndexError):
                    self.refused[op.name] += 1
                except Exception as error:
                    shapes = map_tensors(lambda x: tuple(x.shape), given)
                    self.wrong.append(f"{op.name} {dtype} {shapes}: {type(error).__name__} {str(error)[:300]}")

    def check(self, op, function, dtype, inputs, options):
        """Compare results and gradients with PyTorch's in float64. AssertionError if they differ."""
        mine, theirs = [], []

        def to_mine(x):
            x, needed = x.detach(), x.requires_grad
            if not x.is_floating_point():
                return x.numpy()
            mine.append(cl.Tensor(x.numpy(), requires_grad=needed))
            return mine[-1]

        def to_theirs(x):
            if not x.is_floating_point():
                return x
            theirs.append(x.detach().double().requires_grad_(x.requires_grad))
            return theirs[-1]

        own = map_tensors(to_mine, (inputs, options))
        ys = leaves(function(*own[0], **own[1]))
        other = map_tensors(to_theirs, (inputs, options))
        truths = leaves(op(*other[0], **other[1]))
        assert len(ys) == len(truths), "another number of results"
        for y, truth in zip(ys, truths, strict=True):
            if isinstance(y, cl.Tensor):
                assert y.dtype == dtype, f"{y.dtype} for {dtype}"
            assert_alike(y, truth.detach().numpy(), dtype)
        learned = [i for i, truth in enumerate(truths) if truth.requires_grad]
        if not learned:
            return
        dys = [self.rng.uniform(-1, 1, tuple(truths[i].shape)) for i in learned]
        self.torch.autograd.backward([truths[i] for i in learned], [self.torch.tensor(dy) for dy in dys])
        total = sum((ys[i] * dy).sum() for i, dy in zip(learned, dys, strict=True))
        if total.requires_grad:
            total.backward()
        for x, same in zip(mine, theirs, strict=True):
            if x.requires_grad:
                expected = np.zeros(x.shape) if same.grad is None else same.grad.numpy()
                assert_alike(np.zeros(x.shape) if x.grad is None else x.grad, expected, dtype)


def assert_alike(y, truth, dtype):
    y = np.asarray(y.data if isinstance(y, cl.Tensor) else y)
    assert y.shape == truth.shape, f"shape {y.shape}, expected {truth.shape}"
    relative, absolute = TOLERANCE.get(dtype, (0, 0))
    largest = np.abs(truth[np.isfinite(truth)]).max(initial=1)
    np.testing.assert_allclose(y, truth, relative, absolute * largest)


@pytest.fixture(scope="module")
def comparison():
    found = Comparison(pytest.importorskip("torch"))
    found.known = found.compare_all()
    return found


def test_every_operator_of_the_table_is_pytorchs(comparison):
    assert set(TABLE) == comparison.known


def test_no_value_and_no_gradient_is_wrong(comparison):
    assert not comparison.wrong, "\n".join([f"{len(comparison.wrong)} samples", *comparison.wrong[:40]])


def test_nearly_all_samples_are_computed(comparison):
    accepted, refused = comparison.accepted.total(), comparison.refused.total()
    assert accepted >= LEAST_SHARE * (accepted + refused), f"{accepted} computed, refused: {comparison.refused}"
