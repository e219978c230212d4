"""Schedules, parameter groups, and optimizers of a user's own, in eager steps, replays and fit."""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest

import caffelite as cl
from caffelite import schedules
from tests.cases import both_dtypes
from tests.cases.optimizers import every_optimizer
from tests.conftest import bits, classifier, train, training_step


def parameter(values=(1.0,), gradient=None):
    p = cl.Tensor(np.array(values), requires_grad=True)
    p.add_grad(np.ones(p.shape) if gradient is None else np.array(gradient))
    return p


def collect_rates(optimizer, steps):
    """Return the rate before each step."""
    rates = []
    for _ in range(steps):
        rates.append(optimizer.lr)
        optimizer.step()
    return rates


# ---- their formulas -------------------------------------------------------------------------------------------------


def test_cosine_falls_along_half_a_cosine_and_stays_at_its_end():
    s = schedules.cosine(0.5, 10, end=0.1)
    expected = [0.1 + 0.4 * (1 + math.cos(math.pi * t / 10)) / 2 for t in range(11)]
    np.testing.assert_allclose([s(t) for t in range(11)], expected, rtol=1e-14)
    assert (s(0), s(10), s(11), s(10**9), s.steps) == (0.5, 0.1, 0.1, 0.1, 10)


def test_linear_falls_along_a_line():
    s = schedules.linear(0.5, 4, end=0.1)
    np.testing.assert_allclose([s(t) for t in range(6)], [0.5, 0.4, 0.3, 0.2, 0.1, 0.1], rtol=1e-14)


@pytest.mark.parametrize("schedule", [schedules.cosine, schedules.linear])
def test_a_warm_up_rises_to_lr_and_counts_among_the_steps(schedule):
    s, without = schedule(0.6, 9, warmup=3, end=0.1), schedule(0.6, 6, end=0.1)
    np.testing.assert_allclose([s(t) for t in range(3)], [0.2, 0.4, 0.6], rtol=1e-14)
    np.testing.assert_allclose([s(t) for t in range(3, 10)], [without(t) for t in range(7)], rtol=1e-14)
    assert s(9) == 0.1


def test_exponential_has_the_same_factor_at_every_step():
    s = schedules.exponential(1.0, 3, 0.001)
    np.testing.assert_allclose([s(t) for t in range(5)], [1, 0.1, 0.01, 0.001, 0.001], rtol=1e-13)


def test_steps_multiplies_after_every_so_many():
    s = schedules.steps(0.8, 7, every=3, factor=0.5)
    np.testing.assert_allclose([s(t) for t in range(9)], [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2])


def test_steps_keeps_its_rate_if_every_is_beyond_all_steps():
    assert {schedules.steps(0.8, 7, every=every, factor=0.5)(7) for every in (8, 2**63, 10**400)} == {0.8}


def test_steps_without_a_number_of_steps_falls_without_an_end():
    s = schedules.steps(0.8, every=3, factor=0.5)
    assert [s(t) for t in range(9)] == pytest.approx([0.8] * 3 + [0.4] * 3 + [0.2] * 3, rel=1e-14)
    assert (s(3 * 1000), s(3 * 1000 - 1)) == pytest.approx((0.8 * 0.5**1000, 0.8 * 0.5**999), rel=1e-13)
    assert s(10**30) == 0
    assert s.steps == math.inf
    assert repr(s) == "steps(0.8, every=3, factor=0.5)"
    assert {schedules.steps(0.8, every=every, factor=0.5)(7) for every in (8, 2**63, 10**400)} == {0.8}
    constant, sudden = schedules.steps(0.3, every=2, factor=1), schedules.steps(0.3, every=2, factor=0)
    assert [constant(t) for t in (0, 2, 10**9)] == [0.3] * 3
    assert [sudden(t) for t in range(5)] == [0.3, 0.3, 0, 0, 0]


@pytest.mark.parametrize("factor", [0.7, 0.1, 0.999])
def test_steps_without_a_number_of_steps_is_pytorchs(factor):
    torch = pytest.importorskip("torch")
    s = schedules.steps(0.5, every=7, factor=factor)
    peer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(peer, 7, factor)
    for t in range(200):
        np.testing.assert_allclose(s(t), scheduler.get_last_lr()[0], rtol=1e-9)
        peer.step()
        scheduler.step()


@both_dtypes
def test_replays_and_checkpoints_follow_steps_without_an_end(dtype, tmp_path):
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)

    def fit(epochs, **options):
        model = classifier(2, 5, 3, dtype=dtype)
        optimizer = cl.SGD(model.parameters(), lr=cl.schedules.steps(0.5, every=3, factor=0.7))
        model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, seed=1, verbose=0, **options)
        return model, optimizer

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it never ends
        model, optimizer = fit(7)
    schedule = cl.schedules.steps(0.5, every=3, factor=0.7)
    assert optimizer.lr == schedule(14) == pytest.approx(0.5 * 0.7**4)
    by_hand = classifier(2, 5, 3, dtype=dtype)
    own = cl.SGD(by_hand.parameters(), lr=0.5)
    generator = cl.DataGenerator(x.astype(dtype), y, seed=1)
    for t, batch in enumerate([batch for _ in range(7) for batch in generator]):
        own.lr = schedule(t)
        training_step(by_hand, own)(*batch)
    assert bits(by_hand) == bits(model)
    fit(4, callbacks=[cl.callbacks.Checkpoint(tmp_path / "c")])
    resumed, other = fit(7, resume=tmp_path / "c")
    assert bits(resumed) == bits(model)
    assert other.lr == optimizer.lr


def test_a_resumed_training_follows_new_steps_without_an_end_from_its_step_on(tmp_path):
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    schedule = cl.schedules.steps(0.5, every=3, factor=0.7)

    def fit(lr, epochs, **options):
        model = classifier(2, 3)
        optimizer = cl.SGD(model.parameters(), lr=lr)
        model.fit([(x, y)], loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, verbose=0, **options)
        return model

    fit(0.1, 4, callbacks=[cl.callbacks.Checkpoint(tmp_path / "c")])
    resumed, by_hand = fit(schedule, 6, resume=tmp_path / "c"), classifier(2, 3)
    optimizer = cl.SGD(by_hand.parameters(), lr=0.1)
    for optimizer.lr in (*[0.1] * 4, schedule(4), schedule(5)):
        training_step(by_hand, optimizer)(x, y)
    assert bits(resumed) == bits(by_hand)


@pytest.mark.parametrize("factor", [0, 1])
def test_no_training_is_too_long_for_steps_without_an_end(factor):
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    for batches in ([(x, y)], ((x, y) for _ in range(3))):  # of known and of unknown length
        model = classifier(2, 3)
        optimizer = cl.SGD(model.parameters(), lr=cl.schedules.steps(0.5, every=2, factor=factor))
        epochs = 3 if isinstance(batches, list) else 1
        model.fit(batches, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=epochs, verbose=0)
        assert optimizer.lr == 0.5 * factor


def test_a_plateau_scales_steps_without_an_end():
    optimizer = cl.SGD([parameter()], lr=schedules.steps(1.0, every=2, factor=0.5))
    assert collect_rates(optimizer, 3) == [1.0, 1.0, 0.5]
    optimizer.scale_lr(0.1)
    assert collect_rates(optimizer, 4) == pytest.approx([0.05, 0.025, 0.025, 0.0125])
    other = cl.SGD([parameter()], lr=1.0)
    other.load_state_dict(optimizer.state_dict())
    assert collect_rates(other, 3) == collect_rates(optimizer, 3)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10, 37, 100])
def test_one_cycle_is_pytorchs(steps):
    torch = pytest.importorskip("torch")
    s = schedules.one_cycle(0.5, steps)
    peer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(peer, max_lr=0.5, total_steps=steps)
    for t in range(steps):
        np.testing.assert_allclose(s(t), scheduler.get_last_lr()[0], rtol=1e-9, atol=1e-15)
        peer.step()
        if t + 1 < steps:
            scheduler.step()
    assert s(steps) == s(steps - 1)


def test_a_schedule_says_what_it_is():
    assert repr(schedules.cosine(0.1, 100, warmup=10)) == "cosine(0.1, 100, warmup=10, end=0)"


@pytest.mark.parametrize(
    ("make", "error", "name"),
    [
        (lambda: schedules.cosine(-0.1, 10), ValueError, "lr"),
        (lambda: schedules.cosine(float("nan"), 10), ValueError, "lr"),
        (lambda: schedules.cosine("fast", 10), TypeError, "lr"),
        (lambda: schedules.cosine(0.1, 0), ValueError, "steps"),
        (lambda: schedules.cosine(0.1, 10.0), TypeError, "steps"),
        (lambda: schedules.cosine(0.1, 10, warmup=10), ValueError, "warmup"),
        (lambda: schedules.linear(0.1, 10, warmup=-1), ValueError, "warmup"),
        (lambda: schedules.linear(0.1, 10, warmup=2.0), TypeError, "warmup"),
        (lambda: schedules.linear(0.1, 10, end=-1), ValueError, "end"),
        (lambda: schedules.linear(0.1, 10, end=float("inf")), ValueError, "end"),
        (lambda: schedules.exponential(0.1, 10, 0.0), ValueError, "above 0"),
        (lambda: schedules.exponential(0.0, 10, 0.1), ValueError, "above 0"),
        (lambda: schedules.steps(0.1, 10, every=0, factor=0.5), ValueError, "every"),
        (lambda: schedules.steps(0.1, 10, every=1, factor=-0.5), ValueError, "factor"),
        (lambda: schedules.steps(0.1, 1000, every=1, factor=1e9), ValueError, "not finite, at step"),
        (lambda: schedules.steps(0.1, every=2), TypeError, "factor"),
        (lambda: schedules.steps(0.1, factor=0.5), TypeError, "every"),
        (lambda: schedules.steps(0.1, every=2, factor=1.1), ValueError, "needs the number of steps"),
        (lambda: schedules.steps(0.1, every=2, factor=1 - 1e-9), ValueError, "so close to 1"),
        (lambda: schedules.one_cycle(0.1, -1), ValueError, "steps"),
        (lambda: schedules.cosine(0.1, 10)(-1), ValueError, "begins at step 0"),
    ],
)
def test_a_schedule_that_cannot_be_raises_when_it_is_made(make, error, name):
    with pytest.raises(error, match=name):
        make()


# ---- following one --------------------------------------------------------------------------------------------------


class Halving:
    """A user's schedule."""

    steps = 3

    def __call__(self, t):
        return 0.5**t


def test_an_optimizer_uses_the_rate_of_each_step_and_keeps_the_last():
    optimizer = cl.SGD([parameter()], lr=Halving())
    assert collect_rates(optimizer, 6) == [1, 0.5, 0.25, 0.125, 0.125, 0.125]


def test_the_rate_of_a_step_is_the_one_it_is_made_with():
    p = parameter([0.0])
    optimizer = cl.SGD([p], lr=Halving())
    for expected in (-1, -1.5, -1.75, -1.875, -2.0):
        optimizer.step()
        assert p.data == [expected]


@pytest.mark.parametrize(
    ("schedule", "error", "says"),
    [
        (lambda t: 0.1, TypeError, "steps"),
        ("cosine", TypeError, "lr"),
        (type("Late", (Halving,), {"__call__": lambda self, t: 1.0 - 0.5 * t}), ValueError, "step 3"),
        (type("Endless", (Halving,), {"__call__": lambda self, t: math.inf}), ValueError, "step 0"),
        (type("Worded", (Halving,), {"__call__": lambda self, t: "slow"}), TypeError, "step 0"),
        (type("Empty", (Halving,), {"steps": 0}), ValueError, "steps"),
        (type("Half", (Halving,), {"steps": 2.5}), TypeError, "steps"),
    ],
    ids=["no steps", "a word", "negative", "infinite", "no number", "none", "half a step"],
)
def test_something_other_than_a_schedule_raises_before_anything_is_done(schedule, error, says):
    schedule = schedule() if isinstance(schedule, type) else schedule
    with pytest.raises(error, match=says):
        cl.SGD([parameter()], lr=schedule)
    optimizer = cl.SGD([parameter()], lr=0.25)
    with pytest.raises(error, match=says):
        optimizer.lr = schedule
    assert collect_rates(optimizer, 2) == [0.25, 0.25]


def test_an_exception_of_a_users_schedule_comes_through():
    class BrokenSchedule(Halving):
        def __call__(self, t):
            raise StopIteration("no more rates")

    with pytest.raises(StopIteration, match="no more rates"):
        cl.SGD([parameter()], lr=BrokenSchedule())


def test_setting_lr_ends_the_schedule_and_another_begins_again():
    optimizer = cl.SGD([parameter()], lr=Halving())
    assert collect_rates(optimizer, 2) == [1, 0.5]
    optimizer.lr = 0.3
    assert collect_rates(optimizer, 2) == [0.3, 0.3]
    assert not {"t", "schedule"} & optimizer.state_dict().keys()
    optimizer.lr = Halving()
    assert collect_rates(optimizer, 3) == [1, 0.5, 0.25]


def test_a_step_that_diverges_does_not_advance_the_schedule():
    p = parameter()
    optimizer = cl.SGD([p], lr=Halving())
    optimizer.step()
    p.zero_grad()
    p.add_grad([np.nan])
    with pytest.raises(cl.TrainingDiverged):
        optimizer.step()
    assert (optimizer.lr, optimizer.state_dict()["t"]) == (0.5, 1)


class DoubleStepSGD(cl.SGD):
    """A user's, whose step calls its base's, twice."""

    def step(self):
        super().step()
        super().step()


def test_a_step_that_calls_its_bases_moves_the_schedule_once():
    assert collect_rates(DoubleStepSGD([parameter()], lr=Halving()), 3) == [1, 0.5, 0.25]


class NumPySGD(cl.Optimizer):
    """w ← w − lr g in NumPy."""

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - self.lr * p.grad


class Stopping(NumPySGD):
    """Ends its schedule in its third step."""

    count = 0

    def step(self):
        self.count += 1
        if self.count == 3:
            self.lr = 0.01
        super().step()


RULES = {
    "SGD": lambda p: cl.SGD(p, lr=schedules.cosine(0.1, 6, warmup=2), momentum=0.9),
    "Adam": lambda p: cl.Adam(p, lr=schedules.one_cycle(0.1, 9)),
    "groups": lambda p: cl.SGD(
        [
            {"parameters": p[:1], "lr": schedules.linear(0.1, 4)},
            {"parameters": p[1:3], "lr": 0.05, "momentum": 0.9},
            {"parameters": p[3:], "lr": schedules.exponential(0.1, 12, 0.01)},
        ],
        lr=0.1,
    ),
    "a user's": lambda p: NumPySGD(p, lr=Halving()),
    "a user's that calls SGD's": lambda p: DoubleStepSGD(p, lr=Halving(), momentum=0.5),
    "a user's that ends it": lambda p: Stopping(p, lr=schedules.linear(0.1, 20)),
}
every_rule = pytest.mark.parametrize("make", RULES.values(), ids=RULES)


@every_rule
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_replays_follow_a_schedule_to_the_bit(make, dtype):
    x, y = cl.datasets.spiral(points_per_class=10, seed=0)

    def training():
        model = classifier(2, 8, 3, dtype=dtype)
        optimizer = make(model.parameters())
        return model, optimizer, training_step(model, optimizer)

    (replayed, replayeds, to_capture), (eager, eagers, step) = training(), training()
    program = None
    for i in range(10):
        if i == 6:  # a rate set outside, and then a schedule
            replayeds.lr = eagers.lr = 0.02
        if i == 8:
            replayeds.lr, eagers.lr = Halving(), Halving()
        if program is None:
            program = cl.capture(to_capture, x.astype(dtype), y)
        else:
            program(x.astype(dtype), y)
        step(x.astype(dtype), y)
        assert [group["lr"] for group in replayeds.groups] == [group["lr"] for group in eagers.groups]
        assert bits(replayed) == bits(eager)


BEYOND_ITS_END = pytest.mark.filterwarnings("ignore:the schedule of the learning rate has")


@BEYOND_ITS_END
@every_rule
def test_fit_follows_a_schedule_as_steps_by_hand_do(make):
    x, y = cl.datasets.spiral(points_per_class=10, seed=0)
    model, by_hand, loss = classifier(2, 8, 3), classifier(2, 8, 3), cl.SoftmaxLoss()
    train(model, x, y, optimizer=make(model.parameters()), epochs=4, batch_size=8, shuffle=False)
    optimizer = make(by_hand.parameters())
    for _ in range(4):
        for begin in range(0, len(x), 8):
            optimizer.zero_grad()
            loss(by_hand(x[begin : begin + 8]), y[begin : begin + 8]).backward()
            optimizer.step()
    assert bits(model) == bits(by_hand)


def fit_warnings(schedule, x=None):
    """Return the warnings of a training of 3 epochs, of 4 batches unless others are given."""
    model = classifier(2, 3)
    optimizer = cl.SGD(model.parameters(), lr=schedule)
    given = cl.datasets.spiral(points_per_class=10, seed=0) if x is None else (x,)
    options = {"batch_size": 8} if x is None else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, *given, optimizer=optimizer, epochs=3, **options)
    assert all(warning.category is cl.TrainingWarning for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("make", "last"),
    [
        (lambda steps: schedules.cosine(0.1, steps), "rate 0 and change nothing"),
        (lambda steps: schedules.linear(0.1, steps, end=0.01), "rate 0.01."),
        (lambda steps: schedules.one_cycle(0.25, steps), "rate 1e-06."),
    ],
)
def test_a_schedule_shorter_than_the_training_is_a_warning_before_the_first_step(make, last):
    (message,) = fit_warnings(make(5))
    assert message.startswith(
        f"the schedule of the learning rate has 5 steps, but this training makes 12: the last 7 have {last}"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = classifier(2, 3)
        before = bits(model)
        with pytest.raises(cl.TrainingWarning):
            train(model, np.zeros((5, 2)), np.zeros(5, int), optimizer=cl.SGD(model.parameters(), lr=make(5)), epochs=6)
        assert bits(model) == before
    for steps in (12, 13):
        assert fit_warnings(make(steps)) == []


def test_a_schedule_that_earlier_trainings_have_used_up_is_a_warning():
    model, (x, y) = classifier(2, 3), cl.datasets.spiral(points_per_class=10, seed=0)
    optimizer = cl.SGD(model.parameters(), lr=schedules.cosine(0.1, 12))
    for _ in range(3):
        train(model, x, y, optimizer=optimizer, batch_size=8)
    with pytest.warns(
        cl.TrainingWarning, match="has 12 steps, but this training makes 4 after 12: the last 4 have rate 0"
    ):
        train(model, x, y, optimizer=optimizer, batch_size=8)
    optimizer.lr = 0.1  # ends the schedule
    train(model, x, y, optimizer=optimizer, batch_size=8)


def test_a_training_that_goes_on_counts_the_steps_that_are_left(tmp_path):
    path, (x, y) = tmp_path / "checkpoint", cl.datasets.spiral(points_per_class=10, seed=0)

    def run(epochs, resume=None):
        model = classifier(2, 3)
        optimizer = cl.SGD(model.parameters(), lr=schedules.cosine(0.1, 12))
        callbacks = [cl.callbacks.Checkpoint(path)]
        train(model, x, y, optimizer=optimizer, batch_size=8, epochs=epochs, callbacks=callbacks, resume=resume)

    run(1)
    run(3, resume=path)
    with pytest.warns(cl.TrainingWarning, match="makes 4 after 12"):
        run(4, resume=path)


class Endless:
    """Batches of which nobody knows how many there are."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for _ in range(self.count):
            yield np.zeros((5, 2)), np.zeros(5, int)


def test_a_rate_of_0_in_a_training_of_unknown_length_is_one_warning_at_once():
    (message,) = fit_warnings(schedules.cosine(0.1, 7), Endless(4))
    assert message.startswith("the schedule of the learning rate has ended: it has 7 steps, and 8 are made")
    assert fit_warnings(schedules.cosine(0.1, 12), Endless(4)) == []
    assert fit_warnings(schedules.cosine(0.1, 7, end=0.01), Endless(4)) == []
    model = classifier(2, 3)
    optimizer = cl.SGD(model.parameters(), lr=schedules.cosine(0.1, 7))
    train(model, Endless(7), optimizer=optimizer)
    with pytest.warns(cl.TrainingWarning, match="7 are made"):
        train(model, Endless(1), optimizer=optimizer)


@pytest.mark.parametrize("length", ["known", "unknown"])
@pytest.mark.parametrize("rate", [0, schedules.steps(0.0, 100, every=3, factor=0.5), schedules.cosine(0.0, 7)], ids=str)
def test_a_rate_that_is_always_0_is_one_warning_at_once(rate, length):
    (message,) = fit_warnings(rate, None if length == "known" else Endless(4))
    assert message.startswith("the learning rate is 0, so no step changes a parameter. Set optimizer.lr")


def test_a_rate_of_0_comes_before_the_first_step_also_in_fit_many():
    x, y = cl.datasets.spiral(points_per_class=4, seed=0)
    models = [classifier(2, 3), classifier(2, 3)]
    before = [bits(model) for model in models]
    optimizers = [cl.SGD(model.parameters(), lr=0) for model in models]
    with pytest.raises(cl.TrainingWarning, match="the learning rate is 0"):
        train(models[0], x, y, optimizer=optimizers[0])
    with pytest.warns(cl.TrainingWarning, match="the learning rate is 0"):
        cl.fit_many(models, x, y, loss=cl.SoftmaxLoss(), optimizers=optimizers, epochs=1)
    assert [bits(model) for model in models] == before


def test_a_group_with_a_rate_of_0_and_a_rule_without_a_rate_give_no_warning():
    x, y = cl.datasets.spiral(points_per_class=4, seed=0)
    model = classifier(2, 3, 3)
    first, second = model.functions[0].parameters(), model.functions[2].parameters()
    groups = [{"parameters": first, "lr": 0}, {"parameters": second}]
    train(model, x, y, optimizer=cl.SGD(groups, lr=0.1))

    class SignStep(cl.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters)

        def step(self):
            for p in self.parameters:
                p.data = p.data - 0.01 * np.sign(p.grad)

    before = bits(model)
    train(model, x, y, optimizer=SignStep(model.parameters()))
    assert bits(model) != before


def test_a_schedule_in_a_recorded_step_calls_no_python():
    model = classifier(2, 3)
    x, y = cl.datasets.spiral(points_per_class=4, seed=0)
    optimizer, loss = cl.SGD(model.parameters(), lr=schedules.cosine(0.1, 100)), cl.SoftmaxLoss()

    def step(x, y):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    program = cl.capture(step, x, y)
    program(x, y)
    assert "Python" not in str(program)
    assert "follow" in str(program)


def test_ending_a_schedule_needs_no_other_recording(monkeypatch):
    p = parameter()
    optimizer = cl.SGD([p], lr=Halving())
    recorded, record = [], cl.Program.record
    monkeypatch.setattr(cl.Program, "record", lambda *given: recorded.append(given) or record(*given))
    program = cl.capture(optimizer.step)
    program()
    optimizer.lr = 0.125
    for _ in range(3):
        program()
        assert optimizer.lr == 0.125
    assert len(recorded) == 1
    assert p.data == [1 - 1 - 0.5 - 3 * 0.125]


def test_lr_cannot_be_set_inside_a_recorded_step():
    optimizer = cl.SGD([parameter()], lr=0.1)

    def step():
        optimizer.groups[0]["lr"] = 0.2

    with pytest.raises(TypeError, match="recorded"):
        cl.capture(step)


# ---- groups ---------------------------------------------------------------------------------------------------------


def two_groups(rule=cl.SGD, **options):
    p, q = parameter([1.0, 2.0]), parameter([3.0])
    groups = [{"parameters": [p], "lr": 0.5}, {"parameters": iter([q]), "weight_decay": 0.5}]
    return p, q, rule(groups, lr=0.25, **options)


def test_a_group_has_its_own_hyper_parameters_and_the_others_from_the_optimizer():
    p, q, optimizer = two_groups()
    optimizer.step()
    assert (p.data.tolist(), q.data.tolist()) == ([0.5, 1.5], [3 - 0.25 * (1 + 1.5)])
    assert optimizer.parameters == (p, q)
    assert [dict(group) for group in optimizer.groups] == [
        {"parameters": (p,), "lr": 0.5, "momentum": 0, "weight_decay": 0, "nesterov": 0},
        {"parameters": (q,), "lr": 0.25, "momentum": 0, "weight_decay": 0.5, "nesterov": 0},
    ]
    assert repr(optimizer.groups[1]) == "Group(1 parameters, lr=0.25, momentum=0, weight_decay=0.5, nesterov=0)"


def test_a_list_of_parameters_is_one_group():
    optimizer = cl.Adam([parameter(), parameter()], betas=(0.5, 0.75))
    (group,) = optimizer.groups
    assert (len(group["parameters"]), group["beta1"], group["beta2"], group["lr"]) == (2, 0.5, 0.75, 1e-3)


def test_a_groups_hyper_parameter_may_be_set_and_is_used_by_the_next_step():
    p, q, optimizer = two_groups()
    optimizer.groups[0]["lr"] = 0.0
    optimizer.groups[1]["weight_decay"] = 0.0
    optimizer.step()
    assert (p.data.tolist(), q.data.tolist()) == ([1, 2], [2.75])
    assert optimizer.groups[1]["lr"] == 0.25


def test_lr_of_several_groups_is_the_first_ones_and_is_set_for_all():
    _, _, optimizer = two_groups()
    assert optimizer.lr == 0.5
    optimizer.lr = 0.125
    assert [group["lr"] for group in optimizer.groups] == [0.125, 0.125]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("lr", -1, ValueError),
        ("lr", "fast", TypeError),
        ("beta1", 1.0, ValueError),
        ("eps", float("nan"), ValueError),
        ("betas", (0.5, 0.5), KeyError),
        ("speed", 1.0, KeyError),
        ("parameters", [], TypeError),
    ],
)
def test_a_value_that_a_group_cannot_have_raises_and_changes_nothing(name, value, error):
    _, _, optimizer = two_groups(cl.Adam)
    before = optimizer.state_dict()
    with pytest.raises(error, match=r"lr|beta1|eps|betas|speed|parameters"):
        optimizer.groups[1][name] = value
    assert all(np.array_equal(value, before[name]) for name, value in optimizer.state_dict().items())


@pytest.mark.parametrize(
    ("groups", "error", "says"),
    [
        (lambda p: [{"parameters": [p], "speed": 1.0}], TypeError, r"group 0 has \['speed'\]"),
        (lambda p: [{"parameters": [p]}, p], TypeError, "groups such as"),
        (lambda p: [p, {"parameters": [p]}], TypeError, "takes Tensors, got dict"),
        (lambda p: [{"parameters": [p]}, {"parameters": []}], ValueError, "group 1 has no parameters"),
        (lambda p: [{"lr": 0.1}], ValueError, "group 0 has no parameters"),
        (lambda p: [{"parameters": 5}], TypeError, "groups such as"),
        (lambda p: [{"parameters": p}], TypeError, "groups such as"),
        (lambda p: [{"parameters": [p]}, {"parameters": [p]}], ValueError, "twice"),
        (lambda p: [{"parameters": [p], "lr": -1}], ValueError, "lr"),
        (lambda p: [{"parameters": [p], "momentum": "0"}], TypeError, "momentum"),
        (lambda p: [{"parameters": [p], "nesterov": True}], ValueError, "nesterov"),
    ],
)
def test_groups_that_cannot_be_raise(groups, error, says):
    with pytest.raises(error, match=says):
        cl.SGD(groups(parameter()), lr=0.1)


def test_neighbours_of_one_group_are_one_run_and_of_two_groups_two():
    model = classifier(3, 4, 5, 2)
    for p in model.parameters():
        p.add_grad(np.ones(p.shape))
    first, second = model.parameters()[:2], model.parameters()[2:]
    assert len(cl.SGD([{"parameters": [*first, *second]}], lr=0.1).segments()) == 1
    runs = cl.SGD([{"parameters": first}, {"parameters": second}], lr=0.1).segments()
    assert [run.data.size for run in runs] == [16, 25 + 12]


@every_optimizer
def test_groups_with_the_same_hyper_parameters_are_one_optimizer_to_the_bit(case):
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)

    def train_bits(grouped):
        model = classifier(2, 8, 8, 3)
        p = model.parameters()
        groups = [{"parameters": p[:1]}, {"parameters": p[1:4]}, {"parameters": p[4:]}]
        train(model, x, y, optimizer=case.make(groups if grouped else p), seed=0)
        return bits(model)

    assert train_bits(True) == train_bits(False)


# ---- state ----------------------------------------------------------------------------------------------------------


def test_a_state_has_the_hyperparameters_and_schedule_steps_of_each_group():
    p, q = parameter(), parameter()
    optimizer = cl.SGD([{"parameters": [p]}, {"parameters": [q], "lr": Halving()}], lr=0.5)
    optimizer.step()
    state = optimizer.state_dict()
    assert {name: np.asarray(value).tolist() for name, value in state.items()} == {
        "lr": [0.5, 0.5],
        "momentum": [0, 0],
        "weight_decay": [0, 0],
        "nesterov": [0, 0],
        "schedule.1": [1, 0.5, 0.25, 0.125],
        "t.1": 1,
    }


@every_rule
@pytest.mark.parametrize("steps", [0, 1, 5, 30])
def test_a_loaded_state_goes_on_in_the_middle_of_its_schedule(make, steps):
    def take_steps(optimizer, n):
        for _ in range(n):
            optimizer.step()
        return optimizer

    def parameters():
        return [parameter([1.0, 2.0]) for _ in range(5)]

    first = take_steps(make(parameters()), steps)
    second = make(parameters())
    for p, q in zip(first.parameters, second.parameters, strict=True):
        q.data = p.data
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    copies = [copy.deepcopy(first), pickle.loads(pickle.dumps(first)), second]
    if isinstance(second, Stopping):
        second.count = first.count
    take_steps(first, 4)
    for other in copies:
        take_steps(other, 4)
        assert [g["lr"] for g in other.groups] == [g["lr"] for g in first.groups]
        assert [p.data.tobytes() for p in other.parameters] == [p.data.tobytes() for p in first.parameters]


def test_a_schedule_that_was_ended_is_so_after_loading():
    first = cl.SGD([parameter()], lr=Halving())
    first.step()
    first.lr = 0.3
    second = cl.SGD([parameter()], lr=Halving())
    second.load_state_dict(first.state_dict())
    assert collect_rates(second, 3) == [0.3, 0.3, 0.3]


def test_a_replay_follows_a_schedule_that_was_loaded():
    p = parameter([0.0])
    optimizer = cl.SGD([p], lr=Halving())
    program = cl.capture(optimizer.step)
    state = optimizer.state_dict()
    program()
    optimizer.load_state_dict(state)
    program()
    program()
    assert p.data == [-1 - 0.5 - 0.5 - 0.25]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("t"),
        lambda state: state.pop("schedule"),
        lambda state: state.update(t=-1),
        lambda state: state.update(t=0.5),
        lambda state: state.update(t=float("nan")),
        lambda state: state.update(t=[1]),
        lambda state: state.update(schedule=[0.1, -0.1]),
        lambda state: state.update(schedule=[0.1, float("inf")]),
        lambda state: state.update(schedule=[0.1]),
        lambda state: state.update(schedule=[-2.0]),
        lambda state: state.update(schedule=[-1.5, 0.1]),
        lambda state: state.update(schedule=[-2.0, -0.1]),
        lambda state: state.update(schedule=[-0.0001, 0.1]),
        lambda state: state.update(schedule=0.1),
        lambda state: state.update({"t.0": 1}),
        lambda state: state.update(lr=-1.0),
    ],
)
def test_a_schedule_that_cannot_be_loaded_raises_before_anything_is_written(change):
    optimizer = cl.SGD([parameter()], lr=Halving(), momentum=0.9)
    optimizer.step()
    before = optimizer.state_dict()
    state = cl.SGD([parameter()], lr=schedules.linear(0.7, 5), momentum=0.5).state_dict()
    change(state)
    with pytest.raises(ValueError, match=r"state|lr"):
        optimizer.load_state_dict(state)
    assert all(np.array_equal(value, before[name]) for name, value in optimizer.state_dict().items())
    assert collect_rates(optimizer, 3) == [0.5, 0.25, 0.125]


# ---- a user's own ---------------------------------------------------------------------------------------------------


class AccumulatingSGD(cl.SGD):
    """Adds up the gradients of two batches."""

    calls = 0

    def zero_grad(self):
        self.calls += 1
        if self.calls % 2:
            super().zero_grad()


class HalvingAdam(cl.Adam):
    """Keeps half of the gradients."""

    def zero_grad(self):
        for p in self.parameters:
            if p.grad is not None:
                half = p.grad * 0.5
                p.zero_grad()
                p.add_grad(half)


class Slower(cl.SGD):
    """Sets its rate in every step."""

    def step(self):
        super().step()
        self.lr = self.lr * 0.9


class Freezing(cl.SGD):
    """Overrides what SGD's step uses: from a rate on, the second group stays as it is."""

    def segments(self):
        return super().segments() if self.lr > 0.05 else super().segments()[:1]


class HelperSGD(NumPySGD):
    """Overrides a helper of a user's step."""

    def step(self):
        self.move()

    def move(self):
        super().step()


class SignSGD(HelperSGD):
    def move(self):
        for p in self.parameters:
            p.data = p.data - 0.01 * np.sign(p.grad)


USERS = {
    "zero_grad": lambda p: AccumulatingSGD(p, lr=0.1, momentum=0.9),
    "zero_grad in NumPy": lambda p: HalvingAdam(p, lr=0.01),
    "step": lambda p: Slower(p, lr=0.1),
    "what step uses": lambda p: Freezing(
        [{"parameters": p[:2]}, {"parameters": p[2:]}], lr=schedules.linear(0.1, 8), momentum=0.9
    ),
    "a helper": lambda p: HelperSGD(p, lr=0.1),
    "another helper": lambda p: SignSGD(p, lr=0.1),
}


@BEYOND_ITS_END
@pytest.mark.parametrize("make", USERS.values(), ids=USERS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_an_overridden_method_is_called_in_every_step_of_fit(make, shuffled):
    x, y = cl.datasets.spiral(points_per_class=10, seed=0)
    model, by_hand, loss = classifier(2, 8, 3), classifier(2, 8, 3), cl.SoftmaxLoss()
    batches = cl.DataGenerator(x, y, batch_size=7, shuffle=shuffled, seed=1)
    train(model, batches, optimizer=make(model.parameters()), epochs=3)
    optimizer = make(by_hand.parameters())
    batches = cl.DataGenerator(x, y, batch_size=7, shuffle=shuffled, seed=1)
    for _ in range(3):
        for xs, ys in batches:
            optimizer.zero_grad()
            loss(by_hand(xs), ys).backward()
            optimizer.step()
    assert bits(model) == bits(by_hand)


@pytest.mark.parametrize("make", USERS.values(), ids=USERS)
def test_an_overridden_method_is_called_in_every_captured_step(make):
    x, y = cl.datasets.spiral(points_per_class=10, seed=0)

    def training():
        model = classifier(2, 8, 3)
        return model, training_step(model, make(model.parameters()))

    (replayed, to_capture), (eager, step) = training(), training()
    program = cl.capture(to_capture, x, y)
    step(x, y)
    for _ in range(5):
        assert program(x, y).tobytes() == step(x, y).data.tobytes()
        assert bits(replayed) == bits(eager)


def test_methods_outside_of_a_step_may_be_overridden_without_a_call_back():
    class NamedStateSGD(cl.SGD):
        def state_dict(self):
            return {"mine": super().state_dict()}

        def describe(self):
            return "mine"

    assert not NamedStateSGD.runs_in_python
    assert Freezing.runs_in_python


@pytest.mark.parametrize("error", [StopIteration, ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("method", ["step", "zero_grad"])
def test_an_exception_of_a_users_method_comes_through_a_captured_step(method, error):
    def fails(self):
        self.calls += 1
        if self.calls == 2:
            raise error("mine")

    failing = type("Failing", (NumPySGD,), {method: fails, "calls": 0})
    p, ones = parameter(), np.ones(1)
    optimizer = failing([p], lr=0.1)

    def step():
        optimizer.zero_grad()
        p.add_grad(ones)
        optimizer.step()

    program = cl.capture(step)
    with pytest.raises(error, match="mine"):
        program()
    program()
