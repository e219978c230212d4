"""Programs: a replay is the step itself, to the bit, with any passes."""

import gc
import threading
import weakref

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program import program as programs
from tests.cases import FAMILIES, every_function
from tests.cases.case import as_tuple
from tests.cases.optimizers import OPTIMIZERS
from tests.conftest import bits, training_step
from tests.core.tensors import Swish
from tests.program.steps import COMBINATIONS, batch, name_passes, small_net
from tests.reference import assert_same_bits


def state(model, optimizer):
    arrays = [*model.state_dict().values(), *[p.grad for p in model.parameters()]]
    return [a if a is None else a.tobytes() for a in arrays] + [
        np.asarray(v).tobytes() for v in optimizer.state_dict().values()
    ]


class NumPyOptimizer(cl.Optimizer):
    """A user's, in NumPy, with a state of its own."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.steps = 0

    def step(self):
        self.steps += 1
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - 2 * self.lr * p.grad / self.steps


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


def dtypes_and_passes():
    """Yield each combination of passes. Those in the middle are slow, except for single ones with float32."""
    for dtype in (np.float32, np.float64):
        for passes in COMBINATIONS:
            is_quick = passes in (COMBINATIONS[0], COMBINATIONS[-1]) or (dtype == np.float32 and len(passes) == 1)
            marks = [] if is_quick else [pytest.mark.slow]
            yield pytest.param(dtype, passes, id=f"{dtype.__name__}-{name_passes(passes)}", marks=marks)


@every_function
@pytest.mark.parametrize(("dtype", "passes"), list(dtypes_and_passes()), indirect=["passes"])
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
def test_every_function_replays_without_gradients(function):
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
    "a user's with a schedule": lambda p: NumPyOptimizer(p, cl.schedules.linear(0.1, 3)),
    "a user's": lambda p: NumPyOptimizer(p, 0.1),
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
def test_a_step_of_tensors_replays_to_the_bit_while_the_learning_rate_falls(dtype, passes):
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


def test_a_state_that_numpy_makes_inside_a_step_raises():
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
    def train_net(linear, tanh, loss):
        model = cl.Model([linear(3, 8), tanh(), cl.Linear(8, 4)], seed=0)
        x, y = batch(0, rows=40)
        history = model.fit(x, y, loss=loss(), optimizer=cl.SGD(model.parameters(), lr=0.5), epochs=4, verbose=0)
        return history["loss"], bits(model)

    expected = train_net(cl.Linear, cl.Tanh, cl.SoftmaxLoss)
    assert train_net(*map(overriding, (cl.Linear, cl.Tanh, cl.SoftmaxLoss))) == expected


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
    for _ in range(2):  # the first runs in Python, the second is replayed
        program(np.float32([50, 60]))
    with pytest.raises(RuntimeError, match="changed"):
        kept[1].backward()
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


def test_gradients_that_add_up_are_recorded_with_and_without_one_before(passes):
    w = cl.Tensor([1.0, 2.0], requires_grad=True)
    program = cl.capture(lambda x: (w * x).sum().backward(), np.array([1, 10], np.float32))
    for n in (2, 3, 4):
        program(np.array([1, 10], np.float32))
        assert w.grad.tolist() == [n, 10 * n]
    w.zero_grad()
    program(np.array([5, 5], np.float32))
    assert w.grad.tolist() == [5, 5]


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


def test_programs_of_two_row_counts_may_replace_each_others_kept_results(monkeypatch):
    recorded, model = [], Keeping()
    record = programs.Program.record
    monkeypatch.setattr(programs.Program, "record", lambda *given: recorded.append(given) or record(*given))
    x = np.random.default_rng(0).random((5, 4), np.float32)
    for _ in range(4):
        for rows in (5, 2):
            assert model.predict(x[:rows]).tobytes() == model(x[:rows]).data.tobytes()
    assert len(recorded) == 4  # twice for each number of rows


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
def test_a_users_function_that_returns_something_else_in_a_replay_raises(other):
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


def test_a_notebook_shows_the_listing_and_the_profile_as_tables():
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
