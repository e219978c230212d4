"""Programs: a replay is the step itself, to the bit, with any passes; and what can't be recorded is refused."""

import functools
import gc
import itertools
import math
import signal
import threading
import weakref
from typing import NamedTuple

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program import PASSES
from caffelite.program import program as programs
from caffelite.program.passes.place_temporaries import ALIGNMENT
from caffelite.program.step import RecordedStep
from tests.cases import FAMILIES, every_function
from tests.cases.case import as_tuple
from tests.cases.optimizers import OPTIMIZERS
from tests.conftest import bits
from tests.reference import assert_same_bits

COMBINATIONS = [list(some) for n in range(len(PASSES) + 1) for some in itertools.combinations(PASSES, n)]


@pytest.fixture(params=COMBINATIONS, ids=lambda passes: "+".join(p.__name__ for p in passes) or "no pass")
def passes(request, monkeypatch):
    """Every combination of passes."""
    monkeypatch.setattr(programs, "PASSES", request.param)


def small_net(dtype=np.float32, seed=0):
    return cl.Model([cl.Linear(3, 8), cl.ReLU(), cl.Linear(8, 8), cl.ReLU(), cl.Linear(8, 4)], seed=seed, dtype=dtype)


def batch(seed, dtype=np.float32, rows=6):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 3)).astype(dtype), rng.integers(0, 4, rows)


def training_step(model, optimizer, loss=None):
    loss = loss or cl.SoftmaxLoss()

    def step(x, y):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return value

    return step


def state(model, optimizer):
    arrays = [*model.state_dict().values(), *[p.grad for p in model.parameters()]]
    return [a if a is None else a.tobytes() for a in arrays] + [
        np.asarray(v).tobytes() for v in optimizer.state_dict().values()
    ]


class Doubled(cl.Optimizer):
    """A user's, in NumPy, with a state of its own."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.steps = 0

    def step(self):
        self.steps += 1
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - 2 * self.lr * p.grad / self.steps


class Swish(cl.Function):
    """A user's, in NumPy."""

    def forward(self, x):
        self.x, self.s = x, 1 / (1 + np.exp(-x))
        return x * self.s

    def backward(self, dy):
        return dy * (self.s + self.x * self.s * (1 - self.s))


class Scale(cl.Function):
    """A user's, in NumPy, with a parameter."""

    def __init__(self):
        self.factor = cl.Tensor(np.float32(1.5), requires_grad=True)

    def parameters(self):
        return [self.factor]

    def forward(self, x):
        self.x = x
        return x * self.factor.data

    def backward(self, dy):
        self.factor.add_grad((dy * self.x).sum())
        return dy * self.factor.data


# ---- replay is the step, to the bit --------------------------------------------------------------------------------


@every_function
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda dtype: dtype.__name__)
def test_every_function_replays_on_fresh_data_to_the_bit(function, dtype, passes):
    family = FAMILIES[function]
    for arguments in family.listed:
        case = family.build(*arguments)
        applied = case.function(dtype)

        def forward_and_backward(*arrays, applied=applied, case=case):
            inputs = [cl.Tensor(a) for a in arrays[: len(case.shapes)]]
            for x in inputs:
                x.requires_grad = True
            for p in applied.parameters():
                p.zero_grad()
            ys = as_tuple(applied(*inputs, *arrays[len(case.shapes) :]))
            if not case.training:
                return ys
            if len(ys) == 1:
                ys[0].backward(kernels.full(ys[0].shape, 0.5, ys[0].dtype))
            else:
                sum((i * y).sum() for i, y in enumerate(ys, start=1)).backward()
            return [*ys, *[x.grad for x in inputs], *[p.grad for p in applied.parameters()]]

        buffers = list(applied.buffers().values())
        with case.mode():
            program = cl.capture(forward_and_backward, *case.inputs(dtype, seed=0))
        for seed in (1, 2):
            fresh, before = case.inputs(dtype, seed), [array.copy() for array in buffers]
            with case.mode():
                replayed = [*program(*fresh), *[array.copy() for array in buffers]]
                for array, same in zip(buffers, before, strict=True):
                    array[...] = same
                eager = [*forward_and_backward(*fresh), *buffers]
            for r, e in zip(replayed, eager, strict=True):
                if e is not None:
                    assert r.tobytes() == np.asarray(e.data if isinstance(e, cl.Tensor) else e).tobytes()


@every_function
def test_every_function_replays_where_nobody_wants_gradients(function):
    """Nothing that backward alone would read keeps a kernel from being dropped."""
    for arguments in FAMILIES[function].listed:
        case = FAMILIES[function].build(*arguments)
        applied = case.function(np.float32)

        def forward(*arrays, applied=applied):
            return as_tuple(applied(*arrays))

        with cl.inference():
            program = cl.capture(forward, *case.inputs(np.float32, seed=0))
            fresh = case.inputs(np.float32, seed=1)
            for replayed, eager in zip(program(*fresh), forward(*fresh), strict=True):
                assert_same_bits(replayed, eager.data)


EVERY_OPTIMIZER = {
    **{name: case.make for name, case in OPTIMIZERS.items()},
    "groups": lambda p: cl.AdamW([{"parameters": [q], "lr": 0.1, "eps": 0.01 * i} for i, q in enumerate(p, start=1)]),
    "a schedule": lambda p: cl.SGD(p, lr=cl.schedules.cosine(0.1, 3, warmup=1), momentum=0.9),
    "a user's with a schedule": lambda p: Doubled(p, cl.schedules.linear(0.1, 3)),
    "a user's": lambda p: Doubled(p, 0.1),
}


@pytest.mark.parametrize("make", EVERY_OPTIMIZER.values(), ids=EVERY_OPTIMIZER)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda dtype: dtype.__name__)
def test_every_optimizer_replays_to_the_bit_and_leaves_the_state_of_eager_code(make, dtype, passes):
    replayed, eager = small_net(dtype), small_net(dtype)
    optimizers = make(replayed.parameters()), make(eager.parameters())
    program = cl.capture(training_step(replayed, optimizers[0]), *batch(0, dtype))
    step = training_step(eager, optimizers[1])
    step(*batch(0, dtype))
    for seed in range(1, 5):
        assert program(*batch(seed, dtype)).tobytes() == step(*batch(seed, dtype)).data.tobytes()
        assert state(replayed, optimizers[0]) == state(eager, optimizers[1])


def two_moons(dtype):
    """Points (100, 2) on two half circles, with noise, and the sides they are on, −1 or 1."""
    angle = np.linspace(0, np.pi, 50)
    above, below = [np.cos(angle), np.sin(angle)], [1 - np.cos(angle), 0.5 - np.sin(angle)]
    x = np.concatenate([above, below], axis=1).T + 0.1 * np.random.default_rng(0).standard_normal((100, 2))
    return x.astype(dtype), np.repeat([-1, 1], 50).astype(dtype)[:, None]


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda dtype: dtype.__name__)
def test_a_step_written_with_tensors_replays_to_the_bit_while_the_learning_rate_falls(dtype, passes):
    """The demo of micrograd: hinge loss, the squares of all parameters as penalty, SGD."""

    def training():
        model = cl.MLP(2, [16, 16, 1], seed=0, dtype=dtype)
        optimizer = cl.SGD(model.parameters(), lr=1.0)

        def step(x, y):
            optimizer.zero_grad()
            hinge = (1 - y * model(x)).relu().mean()
            loss = hinge + 1e-4 * sum((p * p).sum() for p in model.parameters())
            loss.backward()
            optimizer.step()
            return loss

        return model, optimizer, step

    x, y = two_moons(dtype)
    captured, captureds_optimizer, step_to_capture = training()
    eager, eagers_optimizer, step = training()
    program = cl.capture(step_to_capture, x, y)
    first = step(x, y).item()
    for k in range(1, 100):
        captureds_optimizer.lr = eagers_optimizer.lr = 1 - 0.9 * k / 100
        loss = program(x, y)
        assert loss.dtype == dtype
        assert loss.tobytes() == step(x, y).data.tobytes()
        assert state(captured, captureds_optimizer) == state(eager, eagers_optimizer)
    assert loss < first / 10


def test_replays_of_adam_follow_what_eager_steps_in_between_have_skipped_and_counted():
    replayed, eager = small_net(), small_net()
    optimizers = [cl.Adam(m.parameters(), lr=0.01) for m in (replayed, eager)]
    steps = [training_step(m, o) for m, o in zip((replayed, eager), optimizers, strict=True)]
    program = cl.capture(steps[0], *batch(0))
    steps[1](*batch(0))
    for seed in range(1, 7):
        if seed in (2, 5):  # one parameter gets no gradient, in both
            for step, model in zip(steps, (replayed, eager), strict=True):
                model.parameters()[2].requires_grad = False
                step(*batch(seed))
                model.parameters()[2].requires_grad = True
        else:
            program(*batch(seed))
            steps[1](*batch(seed))
        for optimizer in optimizers:
            optimizer.lr *= 0.9
        assert state(replayed, optimizers[0]) == state(eager, optimizers[1])
    assert optimizers[0].state_dict()["steps"].tolist() == [7, 7, 5, 7, 7, 7]


def test_a_state_that_numpy_makes_inside_a_step_is_refused():
    w, hyper = np.ones(3), np.array([0.1, 0.9, 0.0, 0.0])
    with pytest.raises(TypeError, match="sgd reads an array that NumPy made"):
        cl.capture(lambda g: kernels.update("sgd", w, g, np.zeros((1, 3)), hyper), np.ones(3))
    order = np.arange(5)
    with pytest.raises(TypeError, match="shuffle reads an array that NumPy made"):
        cl.capture(lambda: kernels.shuffle(order, np.ones(4, np.uint64)))


@pytest.mark.parametrize("function", [Swish, Scale])
def test_a_users_function_is_called_back_at_its_place(function, passes):
    def make():
        model = cl.Model([cl.Linear(3, 8), cl.ReLU(), function(), cl.Linear(8, 4)], seed=0)
        return model, cl.SGD(model.parameters(), lr=0.1, momentum=0.9)

    (replayed, first), (eager, second) = make(), make()
    program = cl.capture(training_step(replayed, first), *batch(0))
    step = training_step(eager, second)
    step(*batch(0))
    for seed in range(1, 4):
        assert program(*batch(seed)).tobytes() == step(*batch(seed)).data.tobytes()
        assert state(replayed, first) == state(eager, second)
    assert f"Python: {function.__name__}.forward" in str(program)
    assert f"Python: {function.__name__}.backward" in str(program)


def forward_alone(base):
    class Child(base):
        def forward(self, *inputs):
            return super().forward(*inputs)

    return Child


def backward_alone(base):
    class Child(base):
        def backward(self, dy):
            return super().backward(dy)

    return Child


@pytest.mark.parametrize("overriding", [forward_alone, backward_alone])
def test_a_function_that_overrides_half_of_another_trains_as_that_does(overriding):
    def trained(linear, tanh, loss):
        model = cl.Model([linear(3, 8), tanh(), cl.Linear(8, 4)], seed=0)
        x, y = batch(0, rows=40)
        history = model.fit(x, y, loss=loss(), optimizer=cl.SGD(model.parameters(), lr=0.5), epochs=4, verbose=0)
        return history["loss"], bits(model)

    expected = trained(cl.Linear, cl.Tanh, cl.SoftmaxLoss)
    assert trained(*map(overriding, (cl.Linear, cl.Tanh, cl.SoftmaxLoss))) == expected


def test_a_users_function_that_computes_wanted_gradients_only_is_replayed():
    class Product(cl.Function):
        def forward(self, a, b):
            self.a, self.b = a, b
            return a * b

        def backward(self, dy):
            return tuple(dy * x if self.wants_gradient(i) else None for i, x in enumerate((self.b, self.a)))

    w = cl.Tensor([1.0, 2.0, 3.0], requires_grad=True)

    def step(x):
        w.zero_grad()
        Product()(cl.Tensor(x), w).sum().backward()
        return w.grad

    program = cl.capture(step, np.ones(3, np.float32))
    assert program(np.float32([4, 5, 6])).tolist() == [4, 5, 6]


def test_a_graph_kept_from_a_recorded_step_notices_the_next_replay():
    w, kept = cl.Tensor([1.0, 2.0], requires_grad=True), []

    def step(x):
        kept.append((w * cl.Tensor(x) * w).sum())
        return kept[-1]

    program = cl.capture(step, np.ones(2, np.float32))
    program(np.float32([50, 60]))
    with pytest.raises(RuntimeError, match="changed"):
        kept[0].backward()
    assert w.grad is None


def test_a_textbook_loop_by_hand_can_be_captured(passes):
    replayed, eager = small_net(), small_net()
    loss = cl.SoftmaxLoss()

    def by_hand(model, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            h = x
            for function in model.functions:
                h = function.forward(h)
            value = loss.forward(h, y)
            d = loss.backward()
            for function in reversed(model.functions):
                d = function.backward(d)
            optimizer.step()
            return value

        return step

    optimizers = [cl.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (replayed, eager)]
    program, step = cl.capture(by_hand(replayed, optimizers[0]), *batch(0)), by_hand(eager, optimizers[1])
    step(*batch(0))
    for seed in range(1, 4):
        assert program(*batch(seed)) == step(*batch(seed))
        assert state(replayed, optimizers[0]) == state(eager, optimizers[1])


def test_gradients_that_add_up_over_calls_are_recorded_with_and_without_a_gradient_before(passes):
    w = cl.Tensor([1.0, 2.0], requires_grad=True)
    program = cl.capture(lambda x: (w * x).sum().backward(), np.array([1, 10], np.float32))
    for n in (2, 3, 4):
        program(np.array([1, 10], np.float32))
        assert w.grad.tolist() == [n, 10 * n]
    w.zero_grad()
    program(np.array([5, 5], np.float32))
    assert w.grad.tolist() == [5, 5]


# ---- what the passes do --------------------------------------------------------------------------------------------


def test_the_passes_drop_the_gradient_of_the_data_and_fuse_relu():
    model = small_net()
    program = cl.capture(training_step(model, cl.SGD(model.parameters(), lr=0.1)), *batch(0))
    names = [line.split()[0] for line in str(program).splitlines()[2:]]
    assert names.count("matmul_relu") == names.count("matmul_relu_grad") == 2
    assert "relu" not in names
    assert "relu_grad" not in names
    # Three products forward, three for weights, two for activations, none for the data.
    assert sum(name.startswith("matmul") for name in names) == 8


def test_relu_is_not_fused_where_somebody_else_sees_the_product(passes):
    linear, kept = cl.Linear(3, 4), []

    def step(x):
        h = linear.forward(x)
        kept[:] = [h]
        return kernels.relu(h)

    program = cl.capture(step, batch(0)[0])
    x = batch(1)[0]
    y = program(x)
    h = kept[0].copy()
    assert h.tobytes() == linear.forward(x).tobytes()
    assert y.tobytes() == kernels.relu(h).tobytes()


def test_temporaries_lie_aligned_in_one_block():
    model = small_net()
    program = cl.capture(lambda x: model(x), batch(0)[0])
    temporaries = {operand.buffer for _, operand in program._step.operands() if operand.buffer.temporary}
    assert len(temporaries) == 2  # the hidden layers; the result is seen from outside
    assert all(buffer.address % ALIGNMENT == 0 for buffer in temporaries)


def test_a_pass_that_forgets_a_write_is_seen_as_nan(monkeypatch):
    """The block of temporaries holds NaN before the first replay."""
    model = small_net()

    def forgetful(step):
        return RecordedStep(step.instructions[1:], step.memory)

    monkeypatch.setattr(programs, "PASSES", [forgetful, *PASSES])
    program = cl.capture(lambda x: model(x), batch(0)[0])
    assert np.isnan(program(batch(1)[0])).all()


def test_a_pass_that_is_appended_runs(monkeypatch):
    seen = []

    def look(step):
        seen.append(len(step.instructions))
        return step

    monkeypatch.setattr(programs, "PASSES", [*PASSES, look])
    cl.capture(lambda x: cl.relu(cl.Tensor(x)), np.ones(3, np.float32))
    assert seen == [1]


EPILOGUES = {
    "relu": lambda y, z, turned: kernels.relu(y),
    "relu in place": lambda y, z, turned: kernels.relu(y, y),
    "tanh": lambda y, z, turned: kernels.tanh(y),
    "its gradient": lambda y, z, turned: kernels.tanh_grad(y, z),
    "masked": lambda y, z, turned: kernels.relu_grad(y, z),
    "masked by a row": lambda y, z, turned: kernels.relu_grad(y, z[0]),
    "masked by a column": lambda y, z, turned: kernels.relu_grad(y, z[:, :1]),
    "as a mask": lambda y, z, turned: kernels.relu_grad(z, y),
    "masked by a view": lambda y, z, turned: kernels.relu_grad(y, turned),
    "a row added": lambda y, z, turned: kernels.add(y, z[0]),
    "added to a row": lambda y, z, turned: kernels.add(z[:1], y),
    "a row added, then relu": lambda y, z, turned: kernels.relu(kernels.add(y, z[0])),
    "a strided row added": lambda y, z, turned: kernels.add(y, turned[0]),
    "a column added": lambda y, z, turned: kernels.add(y, z[:, :1]),
    "a number subtracted from": lambda y, z, turned: kernels.subtract(0.5, y),
    "squared": lambda y, z, turned: kernels.multiply(y, y),
    "gelu": lambda y, z, turned: kernels.gelu(y)[0],
    "the slope of gelu": lambda y, z, turned: kernels.gelu(y)[1],
    "clipped": lambda y, z, turned: kernels.clip(y, -0.5, 0.25),
    "three inputs": lambda y, z, turned: kernels.where(z, y, -1.0),
    "three inputs, all the product": lambda y, z, turned: kernels.where(y, y, y),
    "a chain": lambda y, z, turned: kernels.multiply(kernels.tanh(kernels.add(y, z[0])), z),
}


SEVERAL = {"a chain", "a row added, then relu"}  # one is done in the product, or two where nobody sees it
TURNED = {"masked by a view", "a strided row added"}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5, 7, 3), (40, 300, 3), (3, 20, 100), (130, 40, 50), (1, 9, 9), (100, 3, 1)])
@pytest.mark.parametrize("kept", [False, True], ids=["nobody sees the product", "somebody sees it"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_what_follows_a_product_element_by_element_is_done_in_it_to_the_bit(epilogue, kept, shape, dtype):
    m, k, n = shape

    def step(a, b, z):
        turned = kernels.copy(z.T).T
        y = kernels.matmul(a, b)
        after = EPILOGUES[epilogue](y, z, turned)
        return (y, after) if kept else after

    def data(seed):
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), (m, n))]

    program = cl.capture(step, *data(0))
    products = [line.split()[0] for line in str(program).splitlines()[2:]]
    if epilogue not in SEVERAL:
        assert products == ["copy"] * (epilogue in TURNED) + [products[-1]]
        assert products[-1].startswith("matmul")
    for seed in (1, 2):
        results, expected = program(*data(seed)), step(*data(seed))
        for result, same in zip(results, expected, strict=True):
            assert result.tobytes() == same.tobytes()


OF_MORE_AXES = {  # and whether it is done in the product
    "gelu": (lambda y, z: kernels.gelu(y), True),
    "gelu in place": (lambda y, z: kernels.gelu(y, y), True),
    "gelu, of which nobody sees the slope": (lambda y, z: kernels.gelu(y)[0], True),
    "gelu and a product with its slope": (lambda y, z: kernels.multiply(z, kernels.gelu(y)[1]), True),
    "added": (lambda y, z: kernels.add(z, y), True),
    "masked by a copy in another order": (lambda y, z: kernels.relu_grad(y, kernels.copy(z.T).T), False),
    "a row added": (lambda y, z: kernels.add(y, z[0, 0, 0]), True),
    "a number for each row added": (lambda y, z: kernels.add(y, z[..., :1]), True),
    "rows added, the same to each matrix": (lambda y, z: kernels.add(y, z[0, 0]), False),
    "a row to each matrix added": (lambda y, z: kernels.add(y, z[:, :, :1]), False),
}


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 4, 5), (2, 1, 1, 5)])
@pytest.mark.parametrize("epilogue", OF_MORE_AXES)
def test_what_follows_a_product_of_more_axes_is_done_in_it_to_the_bit(epilogue, shape):
    after, fused = OF_MORE_AXES[epilogue]

    def step(a, b, z):
        return after(kernels.matmul(a, b).reshape(z.shape), z)

    def data(seed):
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(s).astype(np.float32) for s in ((math.prod(shape[:3]), 7), (7, 5), shape)]

    program = cl.capture(step, *data(0))
    if shape == (2, 3, 4, 5):
        assert ("\nmatmul_" in str(program) or (epilogue == "a row added" and len(program) == 1)) == fused
    for seed in (1, 2):
        for result, same in zip(several(program(*data(seed))), several(step(*data(seed))), strict=True):
            assert_same_bits(result, same)


def several(results):
    return results if isinstance(results, tuple) else (results,)


def convolved(x, w, shape):
    return kernels.convolution(x, w, shape, w[:, 0, 0, 0], stride=(1, 1), padding=(1, 1), dilation=(1, 1))


def spread(x, w, shape):
    return kernels.transposed_convolution(x, w, shape, stride=(1, 1), padding=(1, 1), dilation=(1, 1))


def convolved_depthwise(x, w, shape, of=kernels.convolution):
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": w.shape[0]}
    return of(x, w[:, :1], shape, w[:, 0, 0, 0], **window)


def pooled_back(x, w, shape):
    pooled, places = kernels.max_pool(x, (2, 2), (2, 2), (0, 0))
    return kernels.max_pool_grad(pooled, places, x, (2, 2), (2, 2), (0, 0))


MAKERS = {
    "convolution": convolved,
    "transposed_convolution": spread,
    "depthwise": convolved_depthwise,
    "transposed_depthwise": functools.partial(convolved_depthwise, of=kernels.transposed_convolution),
    "max_pool_grad": pooled_back,
    "batch_norm": lambda x, w, shape: kernels.batch_norm(x, w[:, 0, 0, 0], w[:, 1, 0, 0], 0.1)[0],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("channels", [3, 40])
@pytest.mark.parametrize("kept", [False, True], ids=["nobody sees the result", "somebody sees it"])
@pytest.mark.parametrize("epilogue", [name for name in EPILOGUES if not {"row", "column", "view"} & set(name.split())])
@pytest.mark.parametrize("maker", MAKERS)
def test_what_follows_a_kernel_on_images_element_by_element_is_done_in_it_to_the_bit(
    maker, epilogue, kept, channels, dtype
):
    if maker.endswith("depthwise") and channels < 32:
        pytest.skip("these are convolutions of images last")

    def data(seed):
        rng = np.random.default_rng(seed)
        shapes = (5, channels, 6, 7), (channels, channels, 3, 3), (5, channels, 6, 7)
        return [rng.standard_normal(shape).astype(dtype) for shape in shapes]

    def step(x, w, z):
        x, z = kernels.laid_for(x, w, 1), kernels.laid_for(z, w, 1)
        y = MAKERS[maker](x, w, (6, 7))
        after = EPILOGUES[epilogue](y, z, z)
        return (y, after) if kept else after

    program = cl.capture(step, *data(0))
    names = [line.split()[0] for line in str(program).splitlines()[2:]]
    assert epilogue in SEVERAL or any(name.startswith((f"{maker}_", "winograd_convolution_")) for name in names), names
    for seed in (1, 2):
        results, expected = program(*data(seed)), step(*data(seed))
        for result, same in zip(results, expected, strict=True):
            assert result.tobytes() == same.tobytes()


def test_what_somebody_changes_in_between_is_not_done_early(passes):
    z = np.ones((4, 4), np.float32)

    def changed_mask(a, b):
        mask = kernels.copy(z)
        y = kernels.matmul(a, b)
        kernels.copy(a, mask)
        return kernels.relu_grad(y, mask)

    def changed_product(a, b):
        y = kernels.matmul(a, b)
        kernels.add(y, 1.0, y)
        return kernels.tanh(y)

    def read_before(a, b):
        y, out = kernels.matmul(a, b), kernels.copy(a)
        total = kernels.sum(out)
        return kernels.relu(y, out), total

    for step in (changed_mask, changed_product, read_before):
        rng = np.random.default_rng(0)
        first, second = rng.standard_normal((2, 2, 4, 4)).astype(np.float32)
        results = cl.capture(step, *first)(*second)
        for result, same in zip(results, step(*second), strict=True):
            assert result.tobytes() == same.tobytes()


def test_memory_that_nobody_reads_any_more_serves_again():
    """Twelve layers: no more than a tenth above the largest sum of what is alive at once."""
    sizes = [64, 200, 180, 30, 500, 128, 64, 96, 300, 24, 128, 80, 10]
    model = cl.Model([f for a, b in itertools.pairwise(sizes) for f in (cl.Linear(a, b), cl.Tanh())])
    step = training_step(model, cl.SGD(model.parameters(), lr=0.1))
    program = cl.capture(step, np.ones((50, 64), np.float32), np.arange(50) % 10)
    lives = {}
    for i, operand in program._step.operands():
        if operand.buffer.temporary:
            lives.setdefault(operand.buffer, [i, i])[1] = i
    largest = max(sum(b.nbytes for b, (begin, end) in lives.items() if begin <= i <= end) for i in range(len(program)))
    block = program._step.memory[-1].nbytes
    assert largest < block <= 1.1 * largest
    assert block < 0.8 * sum(b.nbytes for b in lives)
    for one, (begin, end) in lives.items():
        for other, (other_begin, other_end) in lives.items():
            if one is not other and begin <= other_end and other_begin <= end:
                assert one.address + one.nbytes <= other.address or other.address + other.nbytes <= one.address


# ---- what changes between steps ------------------------------------------------------------------------------------


def test_a_learning_rate_set_later_takes_effect():
    model = small_net()
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    program = cl.capture(training_step(model, optimizer), *batch(0))
    before = model.state_dict()
    optimizer.lr = 0.0
    program(*batch(1))
    assert all((before[name] == values).all() for name, values in model.state_dict().items())


def test_a_learning_rate_set_inside_a_recorded_step_is_refused():
    optimizer = cl.SGD([cl.Tensor(1.0, requires_grad=True)], lr=0.1)

    def step(x):
        optimizer.lr = optimizer.lr / 2
        return kernels.relu(x)

    with pytest.raises(TypeError, match="lr was set"):
        cl.capture(step, np.ones(2, np.float32))
    assert optimizer.lr == 0.1


@pytest.mark.parametrize("change", ["assign", "load", "initialize", "add", "freeze"])
def test_a_program_never_answers_with_old_parameters(change):
    model, other = small_net(), small_net(seed=1)
    program = cl.capture(lambda x: model(x), batch(0)[0])
    x = batch(1)[0]
    program(x)
    if change == "assign":
        model.parameters()[0].data = np.ones((3, 8))
    elif change == "load":
        model.load_state_dict(other.state_dict())
    elif change == "initialize":
        model.initialize(7)
    elif change == "add":
        model.add(cl.Linear(4, 2))
    else:
        model.parameters()[0].requires_grad = False
    assert program(x).tobytes() == model.forward(x).tobytes()
    assert model.predict(x).tobytes() == model.forward(x).tobytes()


def child_of(base):
    """A class that overrides nothing."""
    return type("Child", (base,), {})


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("make", [cl.Linear, child_of(cl.Linear)])
def test_a_program_never_answers_with_replaced_parameters(make, by_hand):
    layer, x = make(3, 2), batch(0)[0]
    program = cl.capture(layer.forward if by_hand else layer, x)
    layer.weight = cl.Tensor(np.zeros((3, 2), np.float32), requires_grad=True)
    layer.bias = cl.Tensor(np.ones(2, np.float32), requires_grad=True)
    assert (program(x) == 1).all()


def test_an_optimizer_that_overrides_nothing_steps_the_parameters_it_has_now():
    old, new = (cl.Tensor(np.ones(3), requires_grad=True) for _ in range(2))
    optimizer = child_of(cl.SGD)([old], lr=0.1)

    def step(x):
        for p in (old, new):
            p.zero_grad()
            (p * x).sum().backward()
        optimizer.step()

    program = cl.capture(step, np.ones(3))
    optimizer.__init__([new], lr=0.1)
    program(np.ones(3))
    assert old.data.tolist() == [0.9] * 3
    assert new.data.tolist() == [0.9] * 3


@pytest.mark.parametrize("read", [cl.Tensor.detach, cl.Tensor])
def test_what_shares_a_parameters_memory_follows_it(read):
    w, x = cl.Tensor([1.0, 2.0]), np.ones(2, np.float32)
    program = cl.capture(lambda x: cl.Tensor(x) * read(w), x)
    w.requires_grad = True  # which moves it
    w.data = [3, 4]
    assert program(x).tolist() == [3, 4]


def test_a_replay_that_stops_has_changed_what_it_changed():
    w = cl.Tensor(np.ones(3, np.float32), requires_grad=True)

    def step(x, index):
        w.data = x
        return cl.Tensor(x)[index]

    program = cl.capture(step, np.ones(3, np.float32), np.array([0]))
    y = (w * w).sum()
    with pytest.raises(IndexError, match="7 is out of bounds"):
        program(np.full(3, 5, np.float32), np.array([7]))
    with pytest.raises(RuntimeError, match="changed"):
        y.backward()


def test_a_gradient_that_is_not_finite_is_named_in_a_replay_that_forgets_it_later():
    w = cl.Tensor(np.ones(3, np.float32), requires_grad=True, name="w")
    optimizer = cl.SGD([w], lr=0.1)

    def step(x):
        optimizer.zero_grad()
        (w * cl.Tensor(x)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    program = cl.capture(step, np.ones(3, np.float32))
    with pytest.raises(cl.TrainingDiverged, match=r"parameter 0, w \(3,\), is not finite"):
        program(np.float32([np.inf, 1, 1]))


def test_numpy_cannot_read_a_tensor_of_a_recorded_step():
    x = np.ones(3, np.float32)
    for read in (np.asarray, np.array, np.float32):
        with pytest.raises(TypeError, match="recorded"):
            cl.capture(lambda x, read=read: read(cl.Tensor(x) * 2.0) is None, x)


def test_a_frozen_parameter_stays_in_later_fits():
    model = small_net()
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = batch(0, rows=40)
    options = {"loss": cl.SoftmaxLoss(), "optimizer": optimizer, "verbose": 0}
    model.fit(x, y, **options)
    frozen = model.parameters()[0]
    frozen.requires_grad = False
    before = frozen.data.copy()
    model.fit(x, y, epochs=3, **options)
    assert (frozen.data == before).all()


def test_a_constant_kept_outside_is_read_at_each_replay():
    shift = np.zeros(3, np.float32)
    program = cl.capture(lambda x: kernels.add(x, shift), np.zeros(3, np.float32))
    shift[:] = 7
    assert program(np.ones(3, np.float32)).tolist() == [8, 8, 8]


def test_versions_move_on_with_replays():
    model = small_net()
    program = cl.capture(training_step(model, cl.SGD(model.parameters(), lr=0.1)), *batch(0))
    x, y = batch(1)
    value = cl.SoftmaxLoss()(model(x), y)
    program(x, y)
    with pytest.raises(RuntimeError, match="changed since its forward"):
        value.backward()


class Scaled(cl.Function, recordable=True):
    """s · x, with a number that may be set at any time."""

    def __init__(self, s):
        self.s = s

    def forward(self, x):
        return kernels.multiply(x, self.s)

    def backward(self, dy):
        return kernels.multiply(dy, self.s)


class ScaledInNumPy(cl.Function):
    def __init__(self, s):
        self.s = s
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * np.float32(self.s * self.calls)

    def backward(self, dy):
        return dy * np.float32(self.s)


@pytest.mark.parametrize("function", [Scaled, ScaledInNumPy])
def test_an_attribute_of_a_function_set_later_takes_effect(function):
    model = cl.Model([cl.Linear(3, 3), function(2.0)], seed=0)
    x = batch(0)[0]
    for s in (2.0, 3.0, 0.5):
        model.functions[1].s = s
        for _ in range(3):  # what a call leaves on its copy does not reach the next call
            assert model.predict(x).tobytes() == model.forward(x).tobytes()


def test_a_layer_or_an_optimizer_that_is_changed_is_recorded_anew():
    x, y = batch(0)
    replayed, eager = small_net(), small_net()
    first, second = [cl.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (replayed, eager)]
    program, step = cl.capture(training_step(replayed, first), x, y), training_step(eager, second)
    step(x, y)
    for optimizer in (first, second):
        optimizer.keep("velocity")
    assert program(x, y) == step(x, y).data
    for optimizer in (first, second):
        optimizer.__init__(optimizer.parameters[2:], lr=0.1, momentum=0.9)
    assert program(x, y) == step(x, y).data
    for model in (replayed, eager):
        model.functions[2].bias = None
    assert program(x, y) == step(x, y).data
    for model in (replayed, eager):
        model.functions[1] = Scaled(0.5)
    assert program(x, y) == step(x, y).data
    assert [p.data.tobytes() for p in replayed.parameters()] == [p.data.tobytes() for p in eager.parameters()]


def test_models_of_the_same_functions_in_another_order_are_told_apart():
    a, b, c = (cl.Linear(3, 3) for _ in range(3))
    model, x = cl.Model([cl.Model([a, b]), c]), batch(0)[0]
    model.predict(x)
    model.functions[:] = [cl.Model([b, a]), c]
    assert model.predict(x).tobytes() == model.forward(x).tobytes()


def test_predict_and_evaluate_leave_gradients_alone():
    model, (x, y) = small_net(), batch(0)
    optimizer, loss = cl.SGD(model.parameters(), lr=0.1), cl.SoftmaxLoss()
    model.predict(x)
    loss(model(x), y).backward()
    model.predict(x)
    assert all(p.grad is not None for p in model.parameters())
    optimizer.zero_grad()
    model.predict(x)
    model.evaluate(x, y, loss=loss)
    assert all(p.grad is None for p in model.parameters())


def test_a_program_does_not_hold_for_another_mode():
    class Doubles(cl.Function, recordable=True):
        def forward(self, x):
            return kernels.multiply(x, 2 if cl.is_training() else 1)

        def backward(self, dy):
            return dy

    program, x = cl.capture(lambda x: Doubles()(x), np.ones(2, np.float32)), np.ones(2, np.float32)
    with cl.inference():
        assert program(x).tolist() == [1, 1]
    assert program(x).tolist() == [2, 2]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "uint64", "float64"])
def test_a_step_may_be_given_integers_and_read_integers_kept_outside(dtype):
    images, shift, mask = np.arange(12).reshape(3, 4).astype(dtype), np.arange(3).astype(dtype), np.ones((4, 3), bool)
    w = cl.Tensor(np.ones((4, 3)), requires_grad=True, dtype=np.float32)

    def step(x, mask):
        w.zero_grad()
        x = cl.where(mask.T, cl.Tensor(x[:, ::-1], dtype=np.float32), 0)
        loss = (x @ w + cl.Tensor(shift, dtype=np.float32)).sum()
        loss.backward()
        return loss

    program = cl.capture(step, images, mask)
    images, shift[:], mask = images[::-1], shift[::-1] * 3 + 1, np.arange(12).reshape(4, 3) % 2 == 0
    result, gradient = program(images, mask), w.grad.copy()
    assert result == step(images, mask).data
    assert (gradient == w.grad).all()


@pytest.mark.parametrize("dtype", ["float16", ">f4", ">i4"])
def test_a_step_that_is_recorded_says_which_arrays_it_cannot_read(dtype):
    with pytest.raises(TypeError, match=f"{dtype}.*in native byte order, and not in float16"):
        cl.capture(lambda x: cl.Tensor(x) * 2, np.ones(3, dtype))


def test_a_parameter_that_is_given_a_view_of_itself_is_replayed():
    p = cl.Tensor(np.arange(6.0), requires_grad=True)
    program = cl.capture(lambda x: setattr(p, "data", p.data[::-1]), np.zeros(1))
    assert p.data.tolist() == [5, 4, 3, 2, 1, 0]
    program(np.zeros(1))
    assert p.data.tolist() == [0, 1, 2, 3, 4, 5]


def test_labels_kept_outside_are_a_constant():
    model, (x, y) = small_net(), batch(0)
    for labels in (y, y.astype(np.int32), np.repeat(y, 2)[::2], np.repeat(y, 2).astype(np.int8)[::2]):
        program = cl.capture(lambda x, labels=labels: cl.SoftmaxLoss()(model(x), labels), x)
        labels[:] = (labels + 1) % 4
        assert program(x) == cl.SoftmaxLoss()(model(x), labels).data
        labels[3] = 7
        with pytest.raises(ValueError, match="label 7 in row 3"):
            program(x)


def test_a_program_inside_a_captured_step_is_a_part_of_it():
    inner = cl.capture(lambda x: kernels.relu(x), np.ones(3, np.float32))
    outer = cl.capture(lambda x: kernels.add(inner(x), 1), np.ones(3, np.float32))
    assert outer(np.array([-5, 2, 3], np.float32)).tolist() == [1, 3, 4]


def test_results_in_tuples_and_dicts_are_copies():
    class Pair(NamedTuple):
        double: np.ndarray
        parts: dict

    def step(x):
        return Pair(kernels.add(x, x), {"negative": [kernels.negative(x)], "none": None})

    program = cl.capture(step, np.ones(2, np.float32))
    first, second = program(np.array([1, 2], np.float32)), program(np.array([3, 4], np.float32))
    assert first.double.tolist() == [2, 4]
    assert first.parts["negative"][0].tolist() == [-1, -2]
    assert second.double.tolist() == [6, 8]
    assert type(first.double) is np.ndarray


def test_a_stop_in_a_replay_does_not_run_the_step_again():
    counted = []

    class Counts(cl.Function):
        def forward(self, x):
            counted.append(1)
            return x

        def backward(self, dy):
            return dy

    model = cl.Model([cl.Linear(3, 4), Counts()], seed=0)
    program = cl.capture(training_step(model, cl.SGD(model.parameters(), lr=0.1)), *batch(0))
    before = len(counted)
    with pytest.raises(cl.TrainingDiverged):
        program(batch(0)[0] * np.float32(np.nan), batch(0)[1])
    assert len(counted) == before + 1


def test_a_metric_may_evaluate_the_model_that_is_trained():
    model, (x, y) = small_net(), batch(0, rows=40)
    seen = []

    def on_everything(outputs, targets):
        seen.append(model.evaluate(x, y, loss=cl.SoftmaxLoss())["loss"])
        return seen[-1]

    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1), "verbose": 0}
    history = model.fit(x, y, epochs=3, batch_size=10, metrics=[on_everything], **options)
    assert history["on_everything"] == seen
    assert len(seen) == 3


def test_the_kernel_that_relu_is_fused_into_does_not_write_what_it_reads():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((600, 600)).astype(np.float32)

    def step(x):
        h = kernels.copy(x)
        return kernels.relu(kernels.matmul(h, w), out=h)

    x = rng.standard_normal((600, 600)).astype(np.float32)
    assert cl.capture(step, x)(x).tobytes() == kernels.relu(kernels.matmul(x, w)).tobytes()


@pytest.mark.parametrize("k", [30, 300])
def test_the_kernel_that_a_mask_is_fused_into_does_not_write_its_mask(k):
    rng = np.random.default_rng(0)
    a, b, mask = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, k), (k, 20), (20, 20)))
    kept = mask.copy()
    program = cl.capture(lambda a, b: kernels.relu_grad(kernels.matmul(a, b), kept, kept), a, b)
    kept[...] = mask
    assert program(a, b).tobytes() == kernels.relu_grad(kernels.matmul(a, b), mask).tobytes()


def test_a_buffer_is_temporary_only_when_all_that_is_read_was_written():
    def halves(x):
        both = np.empty(4, np.float32)
        kernels.copy(x, both[:2])
        first = kernels.sum(both[:2])
        kernels.copy(x, both[2:])
        return kernels.add(kernels.sum(both), first)

    def one_half_twice(x):
        both = np.zeros(4, np.float32)
        kernels.copy(x, both[:2])
        kernels.copy(x, both[:2])
        return kernels.sum(both)

    x = np.array([1, 2], np.float32)
    assert cl.capture(halves, x)(2 * x) == 18
    with pytest.raises(TypeError, match="NumPy made inside"):
        cl.capture(one_half_twice, x)


def test_a_buffer_is_written_when_parts_with_gaps_make_up_all_of_it():
    def columns(x):
        both = np.empty((2, 2), np.float32)
        kernels.copy(x, both[:, 0])
        kernels.copy(x, both[::-1, 1])
        return kernels.sum(both)

    def one_column_twice(x):
        both = np.zeros((2, 2), np.float32)
        kernels.copy(x, both[:, 0])
        kernels.copy(x, both[::-1, 0])
        return kernels.sum(both)

    x = np.array([1, 2], np.float32)
    assert cl.capture(columns, x)(2 * x) == 12
    with pytest.raises(TypeError, match="NumPy made inside"):
        cl.capture(one_column_twice, x)


def test_indices_may_be_recorded_data():
    table = cl.Tensor(np.arange(12.0).reshape(4, 3), requires_grad=True)

    def look_up(rows, columns):
        table.zero_grad()
        y = table[rows, columns[None, 1:]] * 2.0
        y.sum().backward()
        return y, table.grad

    program = cl.capture(look_up, np.array([[0], [3]]), np.array([0, 1, 2], np.int16))
    rows, columns = np.array([[1], [-1]]), np.array([1, 1, 0], np.int16)
    for replayed, eager in zip(program(rows, columns), look_up(rows, columns), strict=True):
        assert replayed.tobytes() == np.asarray(eager).tobytes()
    before = table.grad.copy()
    with pytest.raises(IndexError, match="index 3 is out of bounds for an axis of length 3"):
        program(rows, np.array([1, 1, 3], np.int16))
    assert (table.grad == before).all()


def test_an_array_of_indices_that_is_kept_outside_is_read_at_each_replay():
    order, x = np.array([2, 0, 1]), np.arange(3, dtype=np.float32)
    program = cl.capture(lambda x: cl.Tensor(x)[order], x)
    order[:] = [1, 1, 0]
    assert program(x).tolist() == [1, 1, 0]


def test_an_array_of_indices_that_is_made_inside_is_refused():
    order, x = np.array([2, 0, 1]), np.arange(3, dtype=np.float32)
    with pytest.raises(TypeError, match="NumPy made inside"):
        cl.capture(lambda x: cl.Tensor(x)[order.copy()], x)


def test_a_mask_is_no_index_of_a_recorded_step():
    x = np.arange(3, dtype=np.float32)
    mask = x > 0
    for index in (lambda x: mask, lambda x: x > 0):
        with pytest.raises(TypeError, match="recorded"):
            cl.capture(lambda x, index=index: cl.Tensor(x)[index(cl.Tensor(x))], x)
    assert cl.capture(lambda x: cl.Tensor(x)[[False, True, True]], x)(x + 1).tolist() == [2, 3]


def test_labels_made_inside_a_recorded_step_are_refused():
    x, _ = batch(0)
    model = cl.Model([cl.Linear(x.shape[1], 3)], seed=0)
    with pytest.raises(TypeError, match="NumPy made inside"):
        cl.capture(lambda x: cl.SoftmaxLoss()(model(x), np.zeros(len(x), np.int64)), x)


def test_empty_views_can_be_recorded():
    x = np.arange(3, dtype=np.float32)
    assert cl.capture(lambda x: cl.Tensor(x)[:0].sum(), x)(x) == 0


def test_numbers_and_many_axes_can_be_recorded():
    x = np.arange(64, dtype=np.float32).reshape(2, 2, 2, 2, 2, 2)
    program = cl.capture(lambda x: kernels.multiply(x.transpose(5, 3, 1, 4, 2, 0), 3.0), x)
    assert (program(x + 1) == 3 * (x + 1).transpose(5, 3, 1, 4, 2, 0)).all()


def test_a_ctrl_c_while_recording_waits_for_its_end():
    class Interrupts(cl.Function):
        def forward(self, x):
            signal.raise_signal(signal.SIGINT)
            return x

        def backward(self, dy):
            return dy

    program = programs.Program(lambda x: Interrupts()(x))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            program(np.ones(2, np.float32))
        assert kernels.recorder() is None


# ---- what can't be recorded ----------------------------------------------------------------------------------------


def computes_in_numpy(self, x):
    return np.maximum(x, 0)


def reads_a_value(self, x):
    return kernels.multiply(x, x[0, 0].item())


def asks_for_the_sum(self, x):
    return kernels.multiply(x, x.sum())


def escapes(self, x):
    return kernels.multiply(x, np.asarray(x) + 1)


def copies(self, x):
    return kernels.relu(x.copy())


def makes_zeros(self, x):
    return kernels.add(x, np.zeros(x.shape, x.dtype))


def converts(self, x):
    return kernels.relu(x.astype(np.float32))


def assigns(self, x):
    y = kernels.copy(x)
    y[0] = 1
    return y


def formats(self, x):
    return kernels.multiply(x, float(f"{kernels.sum(x):.3f}"))


def returns_what_numpy_made(self, x):
    return np.asarray(x) * 2


@pytest.mark.parametrize(
    "forward",
    [
        computes_in_numpy,
        reads_a_value,
        asks_for_the_sum,
        escapes,
        copies,
        makes_zeros,
        converts,
        assigns,
        formats,
        returns_what_numpy_made,
    ],
)
def test_a_function_that_computes_outside_kernels_is_refused(forward):
    members = {"forward": forward, "backward": lambda self, dy: dy}
    false = type("False_", (cl.Function,), members, recordable=True)
    with pytest.raises(TypeError, match=r"recorded"):
        cl.capture(lambda x: false()(x), batch(0)[0])
    assert kernels.recorder() is None
    honest = type("Honest", (cl.Function,), members)
    program = cl.capture(lambda x: honest()(x), batch(0)[0])
    x = batch(1)[0]
    assert program(x).tobytes() == np.asarray(forward(None, x)).tobytes()


@pytest.mark.parametrize(
    "step",
    [
        lambda w: w.data.__isub__(1),
        lambda w: w.grad.__imul__(0),
        lambda w: w.item(),
        lambda w: float(w),
        lambda w: w > 0,
        lambda w: np.asarray(w.numpy()[...] + 1),
    ],
)
def test_reading_or_writing_parameters_with_numpy_in_a_recorded_step_is_refused(step):
    w = cl.Tensor(1.0, requires_grad=True)
    w.add_grad(1.0)
    with pytest.raises(TypeError, match="recorded"):
        cl.capture(lambda x: (step(w), kernels.relu(x))[1], np.ones(2, np.float32))
    assert w.item() == w.grad == 1


def test_an_optimizer_that_rebinds_its_state_is_refused():
    class Rebinding(cl.Optimizer, recordable=True):
        def __init__(self, parameters):
            super().__init__(parameters, lr=0.1)
            self.velocity = [np.zeros(p.shape, p.dtype) for p in self.parameters]

        def step(self):
            for i, p in enumerate(self.parameters):
                self.velocity[i] = kernels.add(kernels.multiply(self.velocity[i], 0.9), p.grad)
                kernels.subtract(p.data, self.velocity[i], p.data)

    model = small_net()
    with pytest.raises(TypeError, match="NumPy made inside"):
        cl.capture(training_step(model, Rebinding(model.parameters())), *batch(0))


def test_a_recorded_array_is_an_ordinary_one_after_the_recording():
    loss = cl.SoftmaxLoss()
    x, y = batch(0, rows=5)
    cl.capture(lambda x, y: loss.forward(kernels.matmul(x, x.T), y), x, y)
    assert loss.probabilities.sum() == pytest.approx(5, rel=1e-5)
    assert float(loss.probabilities[0, 0]) >= 0


def test_other_shapes_dtypes_and_counts_are_refused():
    program = cl.capture(lambda x: kernels.relu(x), np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(3, 2\)"):
        program(np.zeros((3, 2), np.float32))
    with pytest.raises(TypeError, match=r"float32.*float64"):
        program(np.zeros((2, 3)))
    with pytest.raises(TypeError, match="1 arrays, got 2"):
        program(np.zeros((2, 3), np.float32), np.zeros(1))


# ---- checks stay ---------------------------------------------------------------------------------------------------


def test_a_replay_that_stops_raises_what_eager_code_raises_and_writes_nothing():
    model = small_net()
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    program = cl.capture(training_step(model, optimizer), *batch(0))
    before = [p.data.tobytes() for p in model.parameters()]
    x, y = batch(1)
    y[4] = 9
    with pytest.raises(ValueError, match="label 9 in row 4"):
        program(x, y)
    x, y = batch(1)
    x[2] = np.nan
    with pytest.raises(cl.TrainingDiverged):
        program(x, y)
    assert before == [p.data.tobytes() for p in model.parameters()]
    assert np.isfinite(program(*batch(1)))


def test_a_step_that_fails_while_it_is_recorded_raises_what_eager_code_raises():
    model = small_net()
    step = training_step(model, cl.SGD(model.parameters(), lr=0.1))
    x, y = batch(0)
    with pytest.raises(ValueError, match="label 9 in row 4"):
        cl.capture(step, x, np.where(np.arange(6) == 4, 9, y))
    with pytest.raises(cl.TrainingDiverged):
        cl.capture(step, x * np.float32(np.nan), y)
    assert kernels.recorder() is None


def test_an_exception_in_a_users_function_comes_through_a_replay():
    class Fails(cl.Function):
        def forward(self, x):
            if x[0, 0] > 100:
                raise KeyError("over 100")
            return x

        def backward(self, dy):
            return dy

    program = cl.capture(lambda x: Fails()(x), batch(0)[0])
    with pytest.raises(KeyError, match="over 100"):
        program(batch(0)[0] + 1000)
    assert program(batch(1)[0]).tobytes() == batch(1)[0].tobytes()


class Keeping(cl.Model):
    """Keeps what is between its layers."""

    def __init__(self):
        super().__init__(seed=0)
        self.first, self.second = cl.Linear(4, 5), cl.Linear(5, 3)

    def call(self, x):
        self.between = self.first(x)
        return self.second(self.between)


def test_what_a_step_keeps_of_its_results_may_be_replaced_by_that_of_another(monkeypatch):
    recorded, model = [], Keeping()
    record = programs.Program.record
    monkeypatch.setattr(programs.Program, "record", lambda *given: recorded.append(given) or record(*given))
    x = np.random.default_rng(0).random((5, 4), np.float32)
    for _ in range(3):
        for rows in (5, 2):
            assert model.predict(x[:rows]).tobytes() == model(x[:rows]).data.tobytes()
    assert len(recorded) == 2


# ---- threads and memory --------------------------------------------------------------------------------------------


def test_another_threads_kernels_never_enter_a_recording():
    stop = threading.Event()
    ones = np.ones(4, np.float32)

    def busy():
        while not stop.is_set():
            kernels.negative(ones)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        model = small_net()
        for _ in range(20):
            assert "negative" not in str(cl.capture(lambda x: model(x), batch(0)[0]))
    finally:
        stop.set()
        thread.join()


def test_a_program_is_replayed_by_many_threads_at_once():
    model = small_net()
    program = cl.capture(lambda x: model(x), batch(0)[0])
    wrong = []

    def work(seed):
        x = batch(seed)[0]
        expected = model.forward(x).tobytes()
        wrong.extend(1 for _ in range(200) if program(x).tobytes() != expected)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_trained_model_is_freed_with_its_programs_without_the_garbage_collector():
    gc.disable()
    try:
        model = small_net()
        x, y = batch(0, rows=40)
        model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), epochs=2, verbose=0)
        model.predict(x)
        gone = weakref.ref(model.parameters()[0])
        del model
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("other", [lambda x: None, lambda x: x.astype(np.float64), lambda x: x[:1]])
def test_a_users_function_that_returns_something_else_in_a_replay_is_refused(other):
    results = [lambda x: x + 1]

    class Changes(cl.Function):
        def forward(self, x):
            return results[-1](x)

        def backward(self, dy):
            return dy

    program = cl.capture(lambda x: Changes()(x), np.ones(2, np.float32))
    assert program(np.ones(2, np.float32)).tolist() == [2, 2]
    results.append(other)
    with pytest.raises((TypeError, ValueError), match="when it was recorded"):
        program(np.ones(2, np.float32))


def test_a_replay_keeps_the_memory_it_works_on():
    model, (x, _) = small_net(), batch(0)
    program = cl.capture(lambda x: model(x), x)
    program(batch(1)[0])
    replay, result, expected = program.replay, program._result, model.forward(batch(1)[0])
    del program
    junk = [np.full(64, np.nan, np.float32) for _ in range(1000)]
    replay.run()
    assert result.tobytes() == expected.tobytes()
    assert len(junk) == 1000


def test_a_profile_lists_every_kernel_with_its_share():
    model = small_net()
    program = cl.capture(lambda x: model(x), batch(0)[0])
    table = program.profile(replays=3)
    assert len(table.splitlines()) == len(program) + 3
    assert "share" in table
    assert len(program) == 3


def test_a_notebook_shows_listing_and_profile_as_tables_and_the_listing_without_a_step():
    model = small_net()
    optimizer = cl.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    program = cl.capture(step, batch(0)[0])
    before = bits(model)
    html = program._repr_html_()
    assert bits(model) == before
    assert html.count("<tr>") == 1 + len(program)
    assert all(cell in html for line in str(program).splitlines()[2:] for cell in line.split())
    assert "GFLOP/s" in program.profile(2)._repr_html_()
