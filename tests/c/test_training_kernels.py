"""Kernels in C beside their loops: all Functions with their gradients, all losses, and all optimizers."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.c.training import Step, compile_library, needs_shared_library, pointers, to_c, write_step
from tests.cases import FAMILIES
from tests.cases.case import as_tuple, random_dys
from tests.cases.optimizers import RULES, Case

TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}  # of the largest element

#: Kernels without C, by reason. A new kernel is in C, or here.
WITHOUT_C = {
    "portable kernels never choose it": """depthwise transposed_depthwise depthwise_weight_grad winograd_weights
        winograd_convolution winograd_sums winograd_weight_grad""",
    "a table that C has as a constant": "rotary_table",
    "of several processes": "feature_sums merge_moments batch_norm_grad_of_sums",
    "of augmentation": "shift crop flip cutout affine",
    "of sparse rows": "sparse_matmul sparse_matmul_grad sparse_to_dense use_columns",
    "of an epoch": """shuffle group_batches take_batch put_batch advance add_mean add_weighted_mean add_correct""",
}
NAMES_WITHOUT_C = {name for names in WITHOUT_C.values() for name in names.split()}


class Check(NamedTuple):
    """A step in C, its inputs, and its results in caffelite."""

    step: Step
    arrays: list
    expected: list


def make_step(case, function):
    """Return the step of a case: outputs and gradients, as a function of the inputs and of gradients of the outputs."""
    count = len(case.inputs())

    def step(*arrays):
        for p in function.parameters():
            p.zero_grad()
        with case.mode():
            ys = function.forward(*arrays[:count])
            dys = arrays[count:]
            gradients = function.backward(tuple(dys) if isinstance(ys, tuple) else dys[0])
        results = [*as_tuple(ys), *as_tuple(gradients), *[p.grad for p in function.parameters()]]
        return tuple([x for x in results if x is not None])

    return step


def write_cases(families, dtype, most=None):
    """Return the listed cases of Functions in C, at most so many of each, by a name."""
    steps = {}
    for kind, family in families.items():
        for number, arguments in enumerate(family.listed[:most]):
            case = family.build(*arguments)
            function, inputs = case.function(dtype), case.inputs(dtype)
            if any(x.size == 0 for x in inputs):
                continue
            with case.mode():
                ys = as_tuple(case.function(dtype).forward(*inputs))
            name = f"{kind.__name__.lower()}_{number}_{np.dtype(dtype).name}"
            arrays = [*inputs, *random_dys(ys)]
            with kernels.portable_kernels():
                expected = [np.array(y) for y in make_step(case, case.function(dtype))(*arrays)]
            steps[name] = Check(write_step(name, make_step(case, function), arrays, dtype), arrays, expected)
    return steps


def train_three_steps(make, dtype, clip_norm=None):
    """Return a step: three updates of one parameter, whose gradient is the input. It returns the parameter."""
    w = cl.Tensor(np.random.default_rng(2).normal(size=12).astype(dtype), requires_grad=True)
    optimizer = make([w])

    def step(g):
        for _ in range(3):
            optimizer.zero_grad()
            (w * g).sum().backward()
            optimizer.step(clip_norm=clip_norm)
        return (w.data,)

    return step


def write_updates(dtype):
    """Return three steps of each rule, with each of its options."""
    steps = {}
    for rule in RULES:
        for number, options in enumerate(rule.options.values()):
            steps[f"{rule.optimizer.__name__.lower()}_{number}"] = Case(rule, options).make
    steps["rate"] = lambda parameters: cl.SGD(parameters, lr=cl.schedules.linear(0.1, 10))
    steps["drops"] = lambda parameters: cl.SGD(parameters, lr=cl.schedules.steps(0.1, every=1, factor=0.5))
    g = np.random.default_rng(3).normal(size=12).astype(dtype)
    checks = {}
    for number, (name, make) in enumerate(steps.items()):
        clip_norm = 1.5 if number % 2 else None
        expected = [np.array(x) for x in train_three_steps(make, dtype, clip_norm)(g)]
        name = f"{name}_{np.dtype(dtype).name}"
        step = write_step(name, train_three_steps(make, dtype, clip_norm), [g], dtype)
        checks[name] = Check(step, [g], expected)
    return checks | write_other_kernels(g, dtype)


def write_other_kernels(x, dtype):
    """Return a step of the kernels that no layer and no optimizer calls alone."""
    average, used = np.ones(len(x), dtype), np.zeros(7, np.int64)

    def step(x):
        kernels.use_all_rows(used)
        kernels.ema(average, x, 0.9)
        return (average,)

    name = f"others_{np.dtype(dtype).name}"
    return {name: Check(write_step(name, step, [x], dtype), [x], [0.9 + 0.1 * x])}


def run_step(library, name, check):
    """Return the results of a step in C."""
    given = [to_c(x) for x in check.arrays]
    results = [np.empty(shape, np.int32 if dtype == np.int64 else dtype) for shape, dtype in check.step.shapes]
    assert getattr(library, name)(*pointers(*given, *results)) == 1, name
    return results


def assert_same_results(library, checks, dtype):
    for name, check in checks.items():
        expected = [y for y in check.expected if y.size]
        for mine, theirs in zip(run_step(library, name, check), expected, strict=True):
            size = max(1, abs(theirs).max(initial=0)) if np.isfinite(theirs).all() else 1
            np.testing.assert_allclose(mine, theirs, 0, TOLERANCE[dtype] * size, err_msg=name)


@needs_shared_library
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_each_function_and_its_gradient_in_c_equal_the_loops(dtype, tmp_path):
    checks = write_cases(FAMILIES, dtype, most=1) | write_updates(dtype)
    library = compile_library(tmp_path, {name: check.step.text for name, check in checks.items()}, "-O0")
    assert_same_results(library, checks, dtype)


@needs_shared_library
@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("group", range(4))
def test_every_case_of_every_function_in_c_equals_the_loops(group, dtype, tmp_path):
    checks = write_cases(dict(itertools.islice(FAMILIES.items(), group, None, 4)), dtype)
    library = compile_library(tmp_path, {name: check.step.text for name, check in checks.items()}, "-O2")
    assert_same_results(library, checks, dtype)


def test_every_kernel_is_in_c_or_is_listed_as_one_that_is_not():
    checks = write_cases(FAMILIES, np.float32) | write_updates(np.float32)
    in_c = set().union(*[check.step.kernels for check in checks.values()])
    assert in_c | NAMES_WITHOUT_C == set(kernels.KERNELS)
    assert not in_c & NAMES_WITHOUT_C
