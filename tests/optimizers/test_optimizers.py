"""Optimizers: the base class, what SGD and Adam have of their own, runs, state. `test_rules` is about every rule."""

import copy
import itertools
import pickle

import numpy as np
import pytest

import caffelite as cl
from tests import reference
from tests.cases.optimizers import every_optimizer
from tests.conftest import bits, classifier, train


def parameter(values, gradient=None, **options):
    p = cl.Tensor(np.asarray(values, options.pop("dtype", np.float64)), requires_grad=True, **options)
    if gradient is not None:
        p.add_grad(gradient)
    return p


class NumPySGD(cl.Optimizer):
    """w ← w − lr g, a user's, in NumPy."""

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - self.lr * p.grad


# ---- the base class -------------------------------------------------------------------------------------------------


def test_the_base_class_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        cl.Optimizer([parameter([1.0])])


@pytest.mark.parametrize("parameters", [[], (), iter([])])
def test_no_parameters_raise_value_error(parameters):
    with pytest.raises(ValueError, match="no parameters"):
        cl.SGD(parameters, lr=0.1)


def test_a_parameter_that_is_not_a_tensor_raises_type_error():
    with pytest.raises(TypeError, match="ndarray"):
        cl.SGD([np.ones(3)], lr=0.1)


def test_a_parameter_given_twice_raises_value_error():
    p = parameter([1.0])
    with pytest.raises(ValueError, match="twice"):
        cl.SGD([p, p], lr=0.1)


def test_the_result_of_an_operation_is_not_a_parameter():
    with pytest.raises(ValueError, match="leaves"):
        cl.SGD([parameter([1.0]) * 2], lr=0.1)


def test_parameters_are_a_list_in_the_given_order():
    parameters = [parameter([1.0]), parameter([2.0])]
    assert cl.SGD(iter(parameters), lr=0.1).parameters is not parameters
    assert all(a is b for a, b in zip(cl.SGD(iter(parameters), lr=0.1).parameters, parameters, strict=True))


CHANGES = {
    "pop": lambda o: o.parameters.pop(),
    "append": lambda o: o.parameters.append(parameter([3.0])),
    "extend": lambda o: o.parameters.extend([parameter([3.0])]),
    "insert": lambda o: o.parameters.insert(0, parameter([3.0])),
    "remove": lambda o: o.parameters.remove(o.parameters[0]),
    "clear": lambda o: o.parameters.clear(),
    "reverse": lambda o: o.parameters.reverse(),
    "assign": lambda o: setattr(o, "parameters", [parameter([3.0])]),
    "assign an element": lambda o: o.parameters.__setitem__(0, parameter([3.0])),
    "assign a group's": lambda o: o.groups[0].__setitem__("parameters", [parameter([3.0])]),
    "delete an element": lambda o: o.parameters.__delitem__(0),
    "delete": lambda o: delattr(o, "parameters"),
    "add in place": lambda o: setattr(o, "parameters", o.parameters.__iadd__([parameter([3.0])])),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("rule", [cl.SGD, NumPySGD])
def test_parameters_cannot_be_changed_afterwards(rule, change):
    parameters = [parameter([1.0], [1.0]), parameter([2.0], [1.0])]
    optimizer = rule(parameters, lr=0.5)
    with pytest.raises((TypeError, AttributeError) if change is CHANGES["delete"] else TypeError):
        change(optimizer)
    optimizer.step()
    assert [p.data.tolist() for p in parameters] == [[0.5], [1.5]]
    assert len(optimizer.parameters) == 2


@pytest.mark.parametrize(
    "given", [parameter([[1.0]]), {"parameters": [parameter([1.0])]}, None], ids=["Tensor", "dict", "None"]
)
def test_parameters_that_are_not_a_list_raise_type_error(given):
    with pytest.raises(TypeError, match="list of Tensors"):
        cl.SGD(given, lr=0.1)


def test_a_bad_learning_rate_raises_when_it_is_set_and_changes_nothing():
    optimizer = cl.SGD([parameter([1.0])], lr=0.1)
    for value, error in ((-1, ValueError), (float("nan"), ValueError), ("1", TypeError)):
        with pytest.raises(error, match="lr"):
            optimizer.lr = value
    assert optimizer.lr == 0.1


def test_nesterov_without_momentum_raises_value_error():
    with pytest.raises(ValueError, match="nesterov"):
        cl.SGD([parameter([1.0])], lr=0.1, nesterov=True)


def test_a_learning_rate_set_between_steps_is_used_by_the_next():
    p = parameter([0.0], [1.0])
    optimizer = cl.SGD([p], lr=1)
    optimizer.step()
    optimizer.lr = 10
    optimizer.step()
    assert p.data == [-11]


def test_zero_grad_forgets_every_gradient():
    parameters = [parameter([1.0], [2.0]), parameter([1.0])]
    cl.SGD(parameters, lr=0.1).zero_grad()
    assert [p.grad for p in parameters] == [None, None]


def test_a_parameter_without_a_gradient_is_skipped_with_its_velocity():
    p, q = parameter([1.0], [1.0]), parameter([1.0], [1.0])
    optimizer = cl.SGD([p, q], lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer.step()
    before, velocity = q.data.copy(), optimizer.state_dict()["velocity.float64"][1]
    q.zero_grad()
    optimizer.step()
    assert q.data == before
    assert optimizer.state_dict()["velocity.float64"][1] == velocity
    assert p.data != before


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("rule", [cl.SGD, cl.Adam, NumPySGD])
def test_a_gradient_that_is_not_finite_raises_before_anything_is_written(rule, value):
    parameters = [parameter([1.0, 2.0], [1.0, 1.0]), parameter([3.0, 4.0], [0.0, value], name="bias")]
    optimizer = rule(parameters, lr=0.1)
    before = optimizer.state_dict()
    with pytest.raises(cl.TrainingDiverged, match=r"parameter 1, bias \(2,\)"):
        optimizer.step()
    assert np.concatenate([p.data for p in parameters]).tolist() == [1, 2, 3, 4]
    assert all(np.array_equal(value, before[name]) for name, value in optimizer.state_dict().items())


@pytest.mark.parametrize("rule", [cl.SGD, NumPySGD])
def test_a_step_between_forward_and_backward_is_noticed(rule):
    w = parameter([1.0, 2.0], [1.0, 1.0])
    y = (w * w).sum()
    rule([w], lr=0.1).step()
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()


def test_a_step_of_a_subclass_of_a_rule_is_checked_too():
    class LoggedSGD(cl.SGD):
        steps = 0

        def step(self):
            super().step()
            self.steps += 1

    p = parameter([1.0], [2.0])
    optimizer = LoggedSGD([p], lr=0.5)
    optimizer.step()
    assert (p.data, optimizer.steps) == ([0.0], 1)
    p.add_grad([np.nan])
    with pytest.raises(cl.TrainingDiverged):
        optimizer.step()
    assert optimizer.steps == 1


# ---- SGD ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_sgd_is_its_formula(dtype, momentum, nesterov, decay):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(5, 7)).astype(dtype)
    p = parameter(start, dtype=dtype)
    optimizer = cl.SGD([p], lr=0.1, momentum=momentum, weight_decay=decay, nesterov=nesterov)
    w, v = start.astype(np.float64), 0.0
    for _ in range(10):
        gradient = rng.normal(size=w.shape).astype(dtype)
        optimizer.zero_grad()
        p.add_grad(gradient)
        optimizer.step()
        g = gradient + decay * w
        v = momentum * v + g
        w = w - 0.1 * (g + momentum * v if nesterov else v)
    rtol, atol = (1e-5, 1e-6) if dtype == np.float32 else (1e-13, 0)  # terms near 1 cancel: eps of 1, not of the result
    np.testing.assert_allclose(p.data, w, rtol=rtol, atol=atol)
    assert p.dtype == dtype


def test_weights_and_biases_decay_alike():
    layer = cl.Linear(2, 2, initializer=lambda shape, rng: np.ones(shape))
    layer.bias.data = [1.0, 1.0]
    for p in layer.parameters():
        p.add_grad(np.zeros(p.shape))
    cl.SGD(layer.parameters(), lr=0.5, weight_decay=0.5).step()
    assert layer.weight.data.tolist() == [[0.75, 0.75], [0.75, 0.75]]
    assert layer.bias.data.tolist() == [0.75, 0.75]


def test_parameters_of_both_dtypes_share_an_optimizer():
    parameters = [parameter([1.0], [1.0], dtype=dtype) for dtype in (np.float32, np.float64, np.float32)]
    optimizer = cl.SGD(parameters, lr=0.5, momentum=0.5)
    optimizer.step()
    optimizer.step()
    assert [p.data.tolist() for p in parameters] == [[-0.25]] * 3


def test_parameters_of_no_and_of_one_element_are_updated():
    parameters = [parameter(np.zeros((0, 3)), np.zeros((0, 3))), parameter(1.0, 1.0), parameter([[1.0]], [[1.0]])]
    cl.SGD(parameters, lr=0.5, momentum=0.5).step()
    assert [p.data.tolist() for p in parameters] == [[], 0.5, [[0.5]]]


# ---- Adam -----------------------------------------------------------------------------------------------------------


def random_gradients(shapes, steps, dtype):
    """For each step a gradient for each shape, of all magnitudes; now and then None."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield [
            None if rng.random() < 0.2 else (rng.normal(size=shape) * 10.0 ** rng.integers(-4, 3)).astype(dtype)
            for shape in shapes
        ]


SHAPES = [(5, 7), (7,), (7, 3), (3,), ()]
each_adam = pytest.mark.parametrize(("rule", "decoupled"), [(cl.Adam, False), (cl.AdamW, True)], ids=["Adam", "AdamW"])


@each_adam
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("joined", [False, True])
def test_adam_is_its_formula_with_the_steps_of_each_parameter(rule, decoupled, dtype, decay, joined):
    rng = np.random.default_rng(1)
    parameters = classifier(5, 7, 3, dtype=dtype).parameters() if joined else []
    parameters = parameters or [parameter(rng.normal(size=shape), dtype=dtype) for shape in SHAPES]
    optimizer = rule(parameters, lr=0.01, betas=(0.8, 0.99), weight_decay=decay)
    truth = [(p.data.ravel().astype(np.float64), np.zeros(p.size), np.zeros(p.size)) for p in parameters]
    counts = [0] * len(parameters)
    for gradients in random_gradients([p.shape for p in parameters], 10, dtype):
        optimizer.zero_grad()
        for i, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
            if g is not None:
                p.add_grad(g)
                counts[i] += 1
                w, m, v = truth[i]
                hyper = (0.01, 0.8, 0.99, 1e-8, decay, decoupled)
                truth[i] = reference.adam(w, g.ravel(), m, v, counts[i], *hyper)
        optimizer.step()
    assert optimizer.state_dict()["steps"].tolist() == counts
    assert len(set(counts)) > 1
    for p, (w, _, _) in zip(parameters, truth, strict=True):
        reference.assert_close(p.data.ravel(), w, dtype)


@each_adam
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1}, {"betas": (0.0, 0.99)}, {"betas": (0.5, 0.0), "eps": 1e-3}, {"lr": 0.1, "eps": 0.0}],
    ids=str,
)
def test_adam_is_pytorchs(rule, decoupled, dtype, options):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    starts = [rng.normal(size=shape).astype(dtype) for shape in SHAPES]
    ours = [parameter(start, dtype=dtype) for start in starts]
    theirs = [torch.tensor(start, requires_grad=True) for start in starts]
    optimizer, peer = rule(ours, **options), getattr(torch.optim, rule.__name__)(theirs, **options)
    for gradients in random_gradients(SHAPES, 18, dtype):
        optimizer.zero_grad()
        peer.zero_grad()
        for p, q, g in zip(ours, theirs, gradients, strict=True):
            if g is not None:
                p.add_grad(g)
                q.grad = torch.tensor(g)
        optimizer.step()
        peer.step()
    assert optimizer.state_dict()["steps"].tolist() == [peer.state[q]["step"] for q in theirs]
    for p, q in zip(ours, theirs, strict=True):
        reference.assert_close(p.data, q.detach().numpy(), dtype)


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("gradients", [[1e30] * 3, [1e-30] * 3, [3e38, 1.0, -3e38], [1e-38, 0.0, 1e30], [0.0, 1.0]])
def test_huge_and_tiny_gradients_of_adam_give_numbers_as_in_pytorch(gradients, eps):
    torch = pytest.importorskip("torch")
    p, q = parameter([1.0] * 40, dtype=np.float32), torch.ones(40, requires_grad=True)
    optimizer, peer = cl.Adam([p], lr=0.1, eps=eps), torch.optim.Adam([q], lr=0.1, eps=eps)
    for g in gradients:
        p.zero_grad()
        p.add_grad(np.full(40, g, np.float32))
        q.grad = torch.full((40,), g)
        optimizer.step()
        peer.step()
        np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=1e-6, atol=1e-6)
        if not torch.isfinite(q).all():
            break


def test_decay_moves_weights_by_the_gradient_in_adam_and_by_themselves_in_adamw():
    for rule, expected in ((cl.Adam, [0.9, -3.9]), (cl.AdamW, [0.95, -3.8])):  # lr · sign(w), and lr λ w
        p = parameter([1.0, -4.0], [0.0, 0.0])
        rule([p], lr=0.1, weight_decay=0.5).step()
        np.testing.assert_allclose(p.data, expected, rtol=1e-7)


def test_a_skipped_parameter_of_adam_keeps_its_moments_and_its_count():
    p, q = parameter([1.0], [1.0]), parameter([1.0], [1.0])
    optimizer = cl.AdamW([p, q], lr=0.1)
    optimizer.step()
    before = q.data.copy(), optimizer.state_dict()
    q.zero_grad()
    optimizer.step()
    after = optimizer.state_dict()
    assert after["steps"].tolist() == [2, 1]
    assert q.data == before[0]
    for name in ("first_moment.float64", "second_moment.float64"):
        assert after[name][1] == before[1][name][1]
        assert after[name][0] != before[1][name][0]


def test_parameters_of_both_dtypes_share_an_adam():
    parameters = [parameter([1.0, 2.0], [1.0, -1.0], dtype=dtype) for dtype in (np.float32, np.float64, np.float32)]
    optimizer = cl.Adam(parameters, lr=0.5)
    optimizer.step()
    for p in parameters:
        np.testing.assert_allclose(p.data, [0.5, 2.5], rtol=1e-6)
    assert {name: np.shape(value) for name, value in optimizer.state_dict().items()} == {
        **dict.fromkeys(("lr", "beta1", "beta2", "eps", "weight_decay"), ()),
        "steps": (3,),
        **dict.fromkeys(("first_moment.float32", "second_moment.float32"), (4,)),
        **dict.fromkeys(("first_moment.float64", "second_moment.float64"), (2,)),
    }


def test_parameters_of_no_elements_are_nothing_to_adam():
    parameters = [parameter(np.zeros((0, 3)), np.zeros((0, 3))), parameter(1.0, 1.0), parameter([[1.0]], [[1.0]])]
    cl.Adam(parameters, lr=0.5).step()
    for p, expected in zip(parameters, [np.zeros((0, 3)), 0.5, [[0.5]]], strict=True):
        np.testing.assert_allclose(p.data, expected, rtol=1e-7)


# ---- runs of neighbours ---------------------------------------------------------------------------------------------


def with_gradients(model):
    for p in model.parameters():
        p.add_grad(np.ones(p.shape, p.dtype))
    return model


def test_a_model_is_one_run():
    model = with_gradients(classifier(3, 4, 5, 2))
    (run,) = cl.SGD(model.parameters(), lr=0.1).segments()
    assert run.data.size == run.gradient.size == sum(p.size for p in model.parameters())
    assert np.shares_memory(run.data, model.parameters()[0].data)


def test_a_model_is_still_one_run_after_a_fit_and_in_its_copies():
    x, y = cl.datasets.spiral(points_per_class=10, seed=0)
    model = classifier(2, 8, 3)
    train(model, x, y)
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert len(cl.SGD(with_gradients(one).parameters(), lr=0.1).segments()) == 1


def test_a_parameter_without_a_gradient_parts_a_run_in_two():
    model = with_gradients(classifier(3, 4, 5, 2))
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    assert len(optimizer.segments()) == 1
    model.parameters()[2].zero_grad()
    assert [run.data.size for run in optimizer.segments()] == [3 * 4 + 4, 5 + 5 * 2 + 2]


def test_subsets_and_separate_tensors_are_runs_of_their_own():
    parameters = with_gradients(classifier(3, 4, 5, 2)).parameters()
    assert len(cl.SGD([parameters[0], parameters[2], parameters[3]], lr=0.1).segments()) == 2
    assert len(cl.SGD(parameters[::-1], lr=0.1).segments()) == 6
    assert len(cl.SGD([parameter([1.0], [1.0]), parameter([1.0], [1.0])], lr=0.1).segments()) == 2


@every_optimizer
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [0, 2, 4], [0, 3, 1, 2], [3, 0, 1]], ids=str)
def test_runs_and_single_parameters_are_updated_with_the_same_bits(order, case):
    def train_bits(one_by_one):
        model = classifier(3, 4, 5, 2)
        parameters = [model.parameters()[i] for i in order]
        groups = [[p] for p in parameters] if one_by_one else [parameters]
        optimizers = [case.make(group) for group in groups]
        rng = np.random.default_rng(0)
        for step in range(5):
            for i, p in enumerate(model.parameters()):
                p.zero_grad()
                if step in (0, 4) or i != 3:  # at first and at last all have a gradient, otherwise all except one
                    p.add_grad(rng.normal(size=p.shape))
            for optimizer in optimizers:
                optimizer.step()
        return bits(model)

    assert train_bits(True) == train_bits(False)


def test_two_optimizers_over_the_halves_are_one_over_the_whole():
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)

    def train_bits(cuts):
        model, loss = classifier(2, 8, 8, 3), cl.SoftmaxLoss()
        optimizers = [
            cl.SGD(model.parameters()[a:b], lr=0.1, momentum=0.9, weight_decay=1e-3)
            for a, b in itertools.pairwise([0, *cuts, 6])
        ]
        for _ in range(5):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss(model(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
        return bits(model)

    assert train_bits([]) == train_bits([3]) == train_bits([1, 2, 5])


def test_an_optimizer_follows_its_parameters_when_the_model_grows():
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)

    def train_bits(grows_at):
        model, loss = classifier(2, 3), cl.SoftmaxLoss()
        optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(6):
            if step == grows_at:
                model.add(cl.Linear(3, 4))
            optimizer.zero_grad()
            h = model.functions[0](x)
            loss(h, y).backward()
            optimizer.step()
        return b"".join(p.data.tobytes() for p in model.functions[0].parameters())

    assert train_bits(None) == train_bits(3)


def test_an_optimizer_follows_a_layer_that_moves_to_another_model():
    first = classifier(2, 3, 3)
    optimizer = cl.SGD(first.parameters(), lr=1.0)
    with_gradients(first)
    assert len(optimizer.segments()) == 1
    cl.Model([first.functions[2]])
    before = [p.data.copy() for p in first.parameters()]
    optimizer.step()
    assert all((p.data == w - 1).all() for p, w in zip(first.parameters(), before, strict=True))


# ---- state ----------------------------------------------------------------------------------------------------------


@every_optimizer
def test_a_loaded_state_goes_on_with_the_same_bits(case):
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    first = classifier(2, 8, 3)
    optimizer = case.make(first.parameters())
    train(first, x, y, optimizer=optimizer, seed=1)
    second = classifier(2, 8, 3, seed=5)
    second.load_state_dict(first.state_dict())
    resumed = case.make(second.parameters(), lr=0.7)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.lr == optimizer.lr != 0.7
    train(first, x, y, optimizer=optimizer, epochs=2, seed=2)
    train(second, x, y, optimizer=resumed, epochs=2, seed=2)
    assert bits(first) == bits(second)


def test_a_state_is_a_copy():
    p = parameter([1.0], [1.0])
    optimizer = cl.SGD([p], lr=0.1, momentum=0.9)
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.step()
    assert state["velocity.float64"] == [1.0]
    state["velocity.float64"][...] = 100
    assert optimizer.state_dict()["velocity.float64"] == [1.9]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("velocity.float64"),
        lambda state: state.update(more=1.0),
        lambda state: state.update({"velocity.float64": np.zeros(3)}),
        lambda state: state.update(lr=-1.0),
        lambda state: state.update(lr=float("nan")),
        lambda state: state.update(momentum=float("nan")),
        lambda state: state.update(weight_decay=-1.0),
        lambda state: state.update(lr=[0.1, 0.2]),
    ],
)
def test_a_state_of_another_optimizer_raises_before_anything_is_written(change):
    optimizer = cl.SGD([parameter([1.0, 2.0], [1.0, 1.0])], lr=0.1, momentum=0.9)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    state = cl.SGD([parameter([1.0, 2.0])], lr=0.5, momentum=0.5).state_dict()
    change(state)
    with pytest.raises(ValueError, match=r"state|lr|momentum|weight_decay"):
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert {name: np.array(v).tolist() for name, v in after.items()} == {
        name: np.array(v).tolist() for name, v in before.items()
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", [1.0, -1.0]),
        ("steps", [1.0, float("nan")]),
        ("steps", [1.0]),
        ("second_moment.float64", [1.0, 1.0, -1e-9]),
        ("second_moment.float64", [1.0, 1.0, float("nan")]),
        ("first_moment.float64", [1.0]),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("eps", float("inf")),
        ("velocity", 1.0),
    ],
)
def test_a_state_that_adam_could_not_have_raises_before_anything_is_written(name, value):
    optimizer = cl.Adam([parameter([1.0, 2.0], [1.0, 1.0]), parameter([3.0], [1.0])])
    optimizer.step()
    before = optimizer.state_dict()
    state = cl.Adam([parameter([1.0, 2.0]), parameter([3.0])], lr=0.7).state_dict()
    with pytest.raises(ValueError, match=name):
        optimizer.load_state_dict(state | {name: value})
    assert all(np.array_equal(value, before[key]) for key, value in optimizer.state_dict().items())


def test_a_state_that_is_not_numeric_raises_type_error():
    optimizer = cl.SGD([parameter([1.0, 2.0])], lr=0.1)
    with pytest.raises(TypeError, match="lr"):
        optimizer.load_state_dict(optimizer.state_dict() | {"lr": "fast"})


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["deepcopy", "pickle"]
)
@every_optimizer
def test_a_copied_optimizer_goes_on_with_the_same_bits(duplicate, case):
    model = with_gradients(classifier(2, 3))
    optimizer = case.make(model.parameters())
    optimizer.step()
    other = duplicate(optimizer)
    for each in (optimizer, other):
        each.step()
    assert [p.data.tobytes() for p in other.parameters] == [p.data.tobytes() for p in model.parameters()]


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["deepcopy", "pickle"]
)
def test_a_copied_optimizer_updates_the_parameters_that_it_has(duplicate):
    model = with_gradients(classifier(2, 3))
    optimizer = cl.SGD(model.parameters(), lr=1.0)
    optimizer.step()
    other = duplicate(optimizer)
    before = [p.data.copy() for p in other.parameters]
    kept = bits(model)
    other.step()
    assert all((p.data == w - 1).all() for p, w in zip(other.parameters, before, strict=True))
    assert bits(model) == kept


# ---- clipping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("norm", [0.1, 1.0, 5.0, 100.0])
def test_clipped_gradients_are_pytorchs(norm, dtype):
    torch = pytest.importorskip("torch")
    gradients = [np.random.default_rng(i).normal(size=shape).astype(dtype) for i, shape in enumerate([(3, 4), 7, ()])]
    ours = [cl.Tensor(np.zeros_like(g), requires_grad=True) for g in gradients]
    theirs = [torch.zeros(g.shape, dtype=getattr(torch, np.dtype(dtype).name), requires_grad=True) for g in gradients]
    for p, q, g in zip(ours, theirs, gradients, strict=True):
        p.add_grad(g)
        q.grad = torch.tensor(g)
    cl.SGD(ours, lr=0.1).clip_gradients(norm)
    torch.nn.utils.clip_grad_norm_(theirs, norm)
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.grad, q.grad.numpy(), rtol=1e-6 if dtype == np.float32 else 1e-12)


def test_all_gradients_count_together_wherever_they_lie():
    """In several vectors, of two dtypes, in groups, some without a gradient or none in the model at all."""
    model = classifier(2, 4, 3)
    others = [parameter(np.zeros(3)), parameter(np.zeros(2), dtype=np.float32), parameter(np.zeros(5))]
    *some, frozen, last = model.parameters()
    groups = [{"parameters": [*some[::-1], others[0]], "lr": 0.1}, {"parameters": [last, frozen, *others[1:]]}]
    optimizer = cl.SGD(groups, lr=0.2)
    given = {}
    for i, p in enumerate([*some, last, *others[:2]]):
        given[p] = np.random.default_rng(i).normal(size=p.shape).astype(p.dtype)
        p.add_grad(given[p])
    norm = np.sqrt(sum((np.float64(g) ** 2).sum() for g in given.values()))
    optimizer.clip_gradients(1.5)
    for p, g in given.items():
        np.testing.assert_allclose(p.grad, g * (1.5 / (norm + 1e-6)), rtol=1e-6)
    assert frozen.grad is others[2].grad is None


def test_gradients_of_a_smaller_norm_are_left_alone():
    p = parameter([0.0, 0.0], [3.0, 4.0])
    for norm in (5.1, 1e30):
        cl.SGD([p], lr=0.1).clip_gradients(norm)
        assert p.grad.tolist() == [3, 4]
    cl.SGD([parameter([1.0])], lr=0.1).clip_gradients(1.0)  # no gradient at all


def test_huge_gradients_have_a_norm():
    p = parameter(np.zeros(10), np.full(10, 1e30), dtype=np.float32)
    cl.SGD([p], lr=0.1).clip_gradients(1.0)
    np.testing.assert_allclose(p.grad, 10**-0.5, rtol=1e-6)


@pytest.mark.parametrize("gradients", [[[1.0, np.inf], [0.0]], [[1.0, 0.0], [np.nan]], [[1.7e308, 1.7e308], [1.0]]])
def test_gradients_without_a_norm_raise_before_anything_is_written(gradients):
    parameters = [parameter(np.zeros_like(g), g) for g in gradients]
    with pytest.raises(cl.TrainingDiverged, match="not finite"):
        cl.SGD(parameters, lr=0.1).clip_gradients(1.0)
    for p, g in zip(parameters, gradients, strict=True):
        np.testing.assert_array_equal(p.grad, g)


@pytest.mark.parametrize(
    ("norm", "error"), [(0, ValueError), (-1.0, ValueError), (np.nan, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_a_norm_that_cannot_be_raises(norm, error):
    with pytest.raises(error, match="norm"):
        cl.SGD([parameter([1.0], [1.0])], lr=0.1).clip_gradients(norm)
    with pytest.raises(error, match="clip_norm"):
        train(classifier(2, 3), *cl.datasets.spiral(5), clip_norm=norm)


@every_optimizer
def test_a_recorded_step_clips_as_an_eager_one(case):
    starts = [np.random.default_rng(i).normal(size=n).astype(np.float32) for i, n in enumerate((5, 3))]
    gradients = [
        [np.random.default_rng(10 * t + n).normal(size=n).astype(np.float32) for n in (5, 3)] for t in range(6)
    ]

    def take_steps(recorded):
        parameters = [cl.Tensor(start.copy(), requires_grad=True) for start in starts]
        optimizer = case.make(parameters)

        def step(*gs):
            optimizer.zero_grad()
            for p, g in zip(parameters, gs, strict=True):
                p.add_grad(g)
            optimizer.step(clip_norm=1.0)

        program = None
        for t, gs in enumerate(gradients):
            gs = [np.float32(0.1 if t == 3 else 1) * g for g in gs]  # not all are too large
            if not recorded:
                step(*gs)
            elif program is None:
                program = cl.capture(step, *gs)
            else:
                program(*gs)
        return [array.tobytes() for p in parameters for array in (p.data, p.grad)]

    assert take_steps(True) == take_steps(False)


def test_the_default_rate_of_rmsprop_is_pytorchs():
    assert cl.RMSProp([cl.Tensor([1.0], requires_grad=True)]).lr == 0.01


class Forgetful(cl.Optimizer):
    """Does not call super().__init__."""

    def __init__(self, parameters):
        self.mine = list(parameters)

    def step(self):
        for p in self.mine:
            p.data = p.data - 0.1 * p.grad


def test_an_optimizer_without_super_init_reports_it_wherever_it_is_used():
    model = cl.MLP(2, [3], seed=0)
    optimizer, x, y = Forgetful(model.parameters()), np.ones((4, 2)), np.zeros(4, int)
    for use in (
        optimizer.step,
        optimizer.zero_grad,
        optimizer.state_dict,
        lambda: optimizer.lr,
        lambda: repr(optimizer),
        lambda: model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, verbose=0),
    ):
        with pytest.raises(TypeError, match=r"Forgetful.__init__ has to call super\(\).__init__\(parameters, lr\)"):
            use()
    with pytest.raises(AttributeError, match="'SGD' object has no attribute 'rate'"):
        _ = cl.SGD(model.parameters(), lr=0.1).rate


def test_hyper_cannot_be_replaced_because_recorded_steps_read_it():
    optimizer = cl.SGD([parameter([1.0], [1.0])], lr=0.5)
    with pytest.raises(AttributeError, match=r"set optimizer.lr or optimizer.groups\[0\]\[name\].*'lr', 'momentum'"):
        optimizer.hyper = np.zeros_like(optimizer.hyper)
    optimizer.hyper[0, 0] = 0.25  # in place, it stays what it was
    assert optimizer.lr == copy.deepcopy(optimizer).lr == pickle.loads(pickle.dumps(optimizer)).lr == 0.25
