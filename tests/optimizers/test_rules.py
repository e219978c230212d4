"""Every optimizer of the package: its judge, its counterpart in PyTorch, and what else `cases/optimizers.py` says."""

import functools
import importlib
import inspect
import re
from pathlib import Path

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from caffelite import optimizers
from tests.cases import DTYPES, both_dtypes
from tests.cases.optimizers import RULES, every_optimizer, every_optimizer_of_pytorch, every_rule
from tests.conftest import classifier
from tests.reference import assert_close

any_shape = hnp.array_shapes(min_dims=0, max_dims=3, max_side=20)
any_seed = st.integers(0, 2**32)
SHAPES = [(5, 7), (7,), (7, 3), (3,), (), (0, 3)]


def draw_gradients(shape, seed, steps=10):
    """Values of a parameter, and gradients of all magnitudes; both are numbers of float32, in float64."""
    rng = np.random.default_rng(seed)
    start = rng.normal(size=shape)
    gradients = [rng.normal(size=shape) * 10.0 ** rng.integers(-4, 3) for _ in range(steps)]
    return [np.float32(x).astype(float) for x in (start, *gradients)]


def draw_many_gradients(shapes, steps=18):
    """As above for several parameters: the values of each, and its gradients, now and then None."""
    rng = np.random.default_rng(2)
    starts, gradients = [], []
    for seed, shape in enumerate(shapes):
        start, *all_gradients = draw_gradients(shape, seed, steps)
        starts.append(start)
        gradients.append([None if rng.random() < 0.2 else g for g in all_gradients])
    return starts, gradients


def as_parameters(starts, dtype=np.float64):
    return [cl.Tensor(start.astype(dtype), requires_grad=True) for start in starts]


def take_steps(optimizer, gradients):
    """Take a step of our optimizer for each of the gradients, of which every parameter has its own or None."""
    for of_step in zip(*gradients, strict=True):
        optimizer.zero_grad()
        for p, g in zip(optimizer.parameters, of_step, strict=True):
            if g is not None:
                p.add_grad(g.astype(p.dtype))
        optimizer.step()


def take_steps_of_pytorch(torch, optimizer, parameters, gradients):
    torch.set_default_dtype(torch.float64)  # also of numbers that an optimizer keeps, such as NAdam's product
    try:
        for of_step in zip(*gradients, strict=True):
            for p, g in zip(parameters, of_step, strict=True):
                p.grad = None if g is None else torch.tensor(g)
            optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)


def check_against_judge(case, parameters, gradients):
    starts = [p.data.astype(float) for p in parameters]
    take_steps(case.make(parameters), gradients)
    for p, start, own in zip(parameters, starts, gradients, strict=True):
        truth, way = case.reference(start.ravel(), [g.ravel() for g in own if g is not None])
        assert_close(p.data, truth.reshape(p.shape), p.dtype, scale=way.reshape(p.shape))


def check_against_pytorch(torch, optimizer, peer, starts, gradients):
    """`optimizer` and `peer` make one of a list of parameters."""
    ours, theirs = as_parameters(starts), [torch.tensor(start, requires_grad=True) for start in starts]
    take_steps(optimizer(ours), gradients)
    take_steps_of_pytorch(torch, peer(theirs), theirs, gradients)
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=1e-9, atol=1e-9)


def test_every_optimizer_of_the_package_has_a_case():
    optimizer = [c for _, c in inspect.getmembers(optimizers, inspect.isclass) if issubclass(c, cl.Optimizer)]
    assert {rule.optimizer for rule in RULES} == {c for c in optimizer if not inspect.isabstract(c)}
    assert len({rule.optimizer for rule in RULES}) == len(RULES)


# ---- the rules ------------------------------------------------------------------------------------------------------


@every_optimizer
@both_dtypes
def test_steps_are_the_judges(case, dtype):
    for shape in [(5, 7), (7,), (), (0, 3)]:
        start, *gradients = draw_gradients(shape, seed=0)
        check_against_judge(case, as_parameters([start], dtype), [gradients])


@every_optimizer
@given(shape=any_shape, seed=any_seed)
def test_steps_are_the_judges_for_random_shapes(case, shape, seed):
    start, *gradients = draw_gradients(shape, seed)
    for dtype in [np.float64] if case.rule.jumps else DTYPES:
        check_against_judge(case, as_parameters([start], dtype), [gradients])


@every_optimizer
@both_dtypes
@pytest.mark.parametrize("joined", [False, True])
def test_parameters_that_have_no_gradient_in_some_steps_are_the_judges(case, dtype, joined):
    model = classifier(5, 7, 3, dtype=dtype)  # which holds its parameters
    starts, gradients = draw_many_gradients([p.shape for p in model.parameters()] if joined else SHAPES)
    check_against_judge(case, model.parameters() if joined else as_parameters(starts, dtype), gradients)


@every_optimizer_of_pytorch
def test_steps_are_pytorchs(case):
    torch = pytest.importorskip("torch")
    starts, gradients = draw_many_gradients(SHAPES)
    check_against_pytorch(torch, case.make, lambda ps: case.pytorch(torch, ps), starts, gradients)


@every_optimizer_of_pytorch
@given(shape=any_shape, seed=any_seed)
def test_steps_are_pytorchs_for_random_shapes(case, shape, seed):
    torch = pytest.importorskip("torch")
    start, *gradients = draw_gradients(shape, seed)
    check_against_pytorch(torch, case.make, lambda ps: case.pytorch(torch, ps), [start], [gradients])


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.pytorch], ids=lambda rule: rule.pytorch)
def test_groups_with_other_hyper_parameters_are_pytorchs(rule):
    torch = pytest.importorskip("torch")
    starts, gradients = draw_many_gradients(SHAPES * len(rule.options))

    def add_groups(optimizer, name):
        """Return an optimizer, of parameters under a name, with a group for each of the rule's options."""
        parts = [slice(i, i + len(SHAPES)) for i in range(0, len(starts), len(SHAPES))]
        options = list(zip(parts, rule.options.values(), strict=True))
        return lambda ps: optimizer([{name: ps[part], **own} for part, own in options], lr=0.1)

    peer = getattr(torch.optim, rule.pytorch)
    check_against_pytorch(
        torch, add_groups(rule.optimizer, "parameters"), add_groups(peer, "params"), starts, gradients
    )


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.pytorch], ids=lambda rule: rule.pytorch)
def test_steps_with_the_options_of_pytorchs_own_tests_are_pytorchs(rule):
    torch = pytest.importorskip("torch")
    pytest.importorskip("expecttest")  # which PyTorch's tests import
    every = importlib.import_module("torch.testing._internal.common_optimizers").optim_db
    (peer,) = [info for info in every if info.optim_cls.__name__ == rule.pytorch]
    known, tried = inspect.signature(rule.optimizer).parameters.keys(), 0
    starts, gradients = draw_many_gradients(SHAPES, steps=50)
    for given_ in peer.optim_inputs_func(device="cpu"):
        options = {"lr": 1e-3, **given_.kwargs} if rule.optimizer is cl.SGD else given_.kwargs
        if options.keys() <= known:
            options = {name: float(value) if name == "lr" else value for name, value in options.items()}
            ours, theirs = (functools.partial(one, **options) for one in (rule.optimizer, peer.optim_cls))
            check_against_pytorch(torch, ours, theirs, starts, gradients)
            tried += 1
    assert tried > 2


@every_optimizer_of_pytorch
@pytest.mark.parametrize("gradients", [[1e30] * 3, [1e-30] * 3, [3e38, 1.0, -3e38], [1e-38, 0.0, 1e30], [0.0, 1.0]])
def test_huge_and_tiny_gradients_give_numbers_as_in_pytorch(case, gradients):
    torch = pytest.importorskip("torch")
    p, q = cl.Tensor(np.ones(40, np.float32), requires_grad=True), torch.ones(40, requires_grad=True)
    optimizer, peer = case.make([p]), case.pytorch(torch, [q])
    largest = 1.0  # of the parameters so far, if products are rounded before they are added; PyTorch's are not
    for g in gradients:
        g = np.full(40, g, np.float32)
        take_steps(optimizer, [[g]])
        take_steps_of_pytorch(torch, peer, [q], [[g]])
        if not torch.isfinite(q).all():
            break
        if cl._kernels.ISA == "x86-64-v2":
            largest = max(largest, float(q.detach().abs().max()))
        np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=1e-6, atol=1e-6 * largest)


@every_optimizer
def test_the_state_of_a_dead_unit_ends_at_0(case):
    p = cl.Tensor(np.ones(3, np.float32), requires_grad=True)
    optimizer = case.make([p], weight_decay=0.0)  # which would be a gradient
    first = 1e-18 if case.rule.nonnegative else 1e-35  # its square, if it is kept, is not 0
    take_steps(optimizer, [[np.full(3, g) for g in [first, *[0.0] * 1000]]])
    state = optimizer.state_dict()
    for name in case.rule.fading:
        assert not state.get(f"{name}.float32", np.zeros(3)).any()


# ---- hyper-parameters and state -------------------------------------------------------------------------------------


@every_rule
def test_a_rule_names_the_loop_that_is_its_formula(rule):
    """In a comment, which has to name a loop that is there."""
    loop, file = re.search(r"`(\w+)` in (_kernels/loops/\w+)", inspect.getsource(rule.optimizer)).groups()
    assert loop == rule.optimizer.__name__.lower()
    sources = list(Path(cl.__file__).parent.glob(f"{file}.p*"))
    if not sources:
        pytest.skip("the sources of the kernels are not installed")
    assert any(f"cdef int {loop}(" in source.read_text(encoding="utf-8") for source in sources)


@every_rule
@pytest.mark.parametrize(
    ("value", "error"),
    [
        *[(value, ValueError) for value in [-0.1, float("nan"), float("inf")]],
        *[(value, TypeError) for value in ["0.1", None, True]],
    ],
    ids=str,
)
def test_a_hyper_parameter_below_0_or_no_number_raises(rule, value, error):
    arguments = inspect.signature(rule.optimizer).parameters.values()
    for name in ["lr", *[argument.name for argument in arguments if type(argument.default) is float]]:
        with pytest.raises(error, match=name):
            rule.optimizer(as_parameters([np.ones(1)]), **{"lr": 0.1, name: value})


REFUSED = [(rule.optimizer, *refused) for rule in RULES for refused in rule.refused]


@pytest.mark.parametrize(("optimizer", "options", "error"), REFUSED, ids=str)
def test_a_hyper_parameter_out_of_the_range_of_its_rule_raises(optimizer, options, error):
    (name,) = options
    with pytest.raises(error, match=name.removesuffix("s")):
        optimizer(as_parameters([np.ones(1)]), **options)


with_momentum = [rule for rule in RULES if "momentum" in inspect.signature(rule.optimizer).parameters]


@pytest.mark.parametrize("rule", with_momentum, ids=lambda rule: rule.optimizer.__name__)
def test_momentum_can_change_but_not_begin(rule):
    (p,) = as_parameters([np.ones(1)])
    with_momentum, without = rule.optimizer([p], lr=0.1, momentum=0.9), rule.optimizer([p], lr=0.1)
    with_momentum.groups[0]["momentum"] = 0.0
    with_momentum.groups[0]["momentum"] = 0.5
    with pytest.raises(ValueError, match="momentum"):
        without.groups[0]["momentum"] = 0.5
    with pytest.raises(ValueError, match="momentum"):
        without.load_state_dict({**without.state_dict(), "momentum": 0.5})
    assert without.state_dict()["momentum"] == 0


@pytest.mark.parametrize("value", [[1.0, -1e-9], [np.nan, 0.0], [np.inf, 0.0], [0.0]], ids=str)
@every_rule
def test_a_sum_of_squares_that_cannot_be_raises_before_anything_is_written(rule, value):
    (p,) = as_parameters([np.ones(2)])
    optimizer = rule.optimizer([p], lr=0.1)
    take_steps(optimizer, [[np.ones(2)]])
    before = optimizer.state_dict()
    for name in [f"{name}.float64" for name in rule.nonnegative]:
        with pytest.raises(ValueError, match=name):
            optimizer.load_state_dict({**rule.optimizer([p], lr=0.7).state_dict(), name: value})
    assert all(np.array_equal(value, before[key]) for key, value in optimizer.state_dict().items())
