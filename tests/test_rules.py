"""Every optimizer of the package against the judge and the PyTorch counterpart that `cases/optimizers.py` gives it."""

import inspect

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from cases import DTYPES, both_dtypes
from cases.optimizers import RULES
from hypothesis import given
from reference import assert_close

import caffelite as cl
from caffelite import optimizers

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def stepped(rule, start, gradients, dtype):
    """A parameter after a step with each of these gradients, its shape that of `start`."""
    p = cl.Tensor(start.astype(dtype), requires_grad=True)
    optimizer = rule.make([p])
    for g in gradients:
        optimizer.zero_grad()
        p.add_grad(g.astype(dtype))
        optimizer.step()
    return p.data


def drawn(shape, seed, steps=10):
    """Values of a parameter, and gradients of all magnitudes."""
    rng = np.random.default_rng(seed)
    start = rng.normal(size=shape)
    gradients = [rng.normal(size=shape) * 10.0 ** rng.integers(-4, 3) for _ in range(steps)]
    return [np.float32(x) for x in (start, *gradients)]  # which float64 represents, too


def check_against_judge(rule, dtype, shape, seed):
    start, *gradients = drawn(shape, seed)
    truth, way = rule.judged(start.ravel().astype(float), [g.ravel().astype(float) for g in gradients])
    assert_close(stepped(rule, start, gradients, dtype), truth.reshape(shape), dtype, scale=way.reshape(shape))


def test_every_optimizer_of_the_package_has_a_case():
    optimizer = [c for _, c in inspect.getmembers(optimizers, inspect.isclass) if issubclass(c, cl.Optimizer)]
    made = {type(rule.make([cl.Tensor([0.0], requires_grad=True)])) for rule in RULES.values()}
    assert made == {c for c in optimizer if not inspect.isabstract(c)}


@every_rule
@both_dtypes
def test_steps_are_the_judges(rule, dtype):
    for shape in [(5, 7), (7,), (), (0, 3)]:
        check_against_judge(rule, dtype, shape, seed=0)


@every_rule
@given(shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=20), seed=st.integers(0, 2**32))
def test_steps_are_the_judges_for_random_shapes(rule, shape, seed):
    for dtype in DTYPES:
        check_against_judge(rule, dtype, shape, seed)


@every_rule
def test_steps_are_pytorchs(rule):
    torch = pytest.importorskip("torch")
    start, *gradients = (x.astype(float) for x in drawn((5, 7), seed=0, steps=18))
    p = torch.tensor(start, requires_grad=True)
    optimizer = rule.pytorch(torch, [p])
    for g in gradients:
        p.grad = torch.tensor(g)
        optimizer.step()
    np.testing.assert_allclose(stepped(rule, start, gradients, np.float64), p.detach().numpy(), 1e-9, 1e-9)
