"""A limit for the seconds of a training of nets: which nets and epochs it leaves."""

import math
import re

import numpy as np
import pytest

from caffelite._support.warnings import TrainingWarning
from caffelite.sklearn import TableClassifier, TableRegressor
from caffelite.tables import budget as budgets
from caffelite.tables import recipe
from caffelite.tables.budget import Budget, Cost, NetRows, choose_plan
from caffelite.tables.recipe import Recipe
from tests.conftest import bits
from tests.tables.shop import run, shop, write_rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
COST = Cost(start=0.01, net=0.002, epoch=0.001)
BATCH_SIZE, STEPS_PER_EPOCH, EPOCHS = Recipe().training_length(600, 525)


@pytest.fixture
def slow_machine(monkeypatch):
    """Stop the clock, and let a training have the COST and all of its epochs."""
    monkeypatch.setattr(recipe, "PATIENCE", 1.0)
    monkeypatch.setattr(budgets, "measure_cost", lambda *args, **options: COST)
    monkeypatch.setattr(budgets, "clock", lambda: 0.0)


@pytest.mark.parametrize(
    ("seconds", "nets", "epochs"),
    [(9.0, 8, 40), (0.515, 8, 40), (0.51, 8, 39), (0.2, 5, 25), (0.1, 3, 20), (0.05, 2, 11), (0.025, 1, 13)],
)
def test_nets_and_epochs_become_fewer_by_about_the_same_factor(seconds, nets, epochs):
    plan = choose_plan(seconds, COST, 8, 40)
    assert plan[:2] == (nets, epochs)
    assert plan.seconds == COST.seconds(nets, epochs) <= seconds


@pytest.mark.parametrize(("epochs", "fewest"), [(300, 19), (40, 3), (31, 2), (1, 1)])
def test_the_smallest_training_is_one_net_of_a_sixteenth_of_the_epochs(epochs, fewest):
    for seconds in (-1.0, 0.0, 0.0101):
        plan = choose_plan(seconds, COST, 8, epochs)
        assert plan == (1, fewest, COST.seconds(1, fewest))


def test_more_seconds_never_make_a_smaller_training():
    for cost in (COST, Cost(0.01, 0.03, 0.00005), Cost(0.0, 0.0, 1.0)):
        total = cost.seconds(8, 40)
        plans = [choose_plan(seconds, cost, 8, 40) for seconds in np.linspace(0, 1.1 * total, 500)]
        assert [plan.nets for plan in plans] == sorted(plan.nets for plan in plans)
        assert plans[-1][:2] == (8, 40)
        assert {plan.nets for plan in plans} > {1, 2, 3, 8}


def epochs(estimator):
    """Return the number of epochs of each net."""
    return [history.epochs for history in estimator.histories_]


@pytest.mark.usefixtures("slow_machine")
@pytest.mark.parametrize("seconds", [0.2, 0.05, 5])
def test_an_estimator_trains_what_fits_into_its_time(seconds):
    estimator = TableRegressor(time=seconds, random_state=0).fit(X, Y)
    plan = choose_plan(0.95 * seconds, COST, 8, EPOCHS)
    assert epochs(estimator) == [plan.epochs] * plan.nets
    assert (plan.nets, plan.epochs) == (8, EPOCHS) or seconds < 5
    assert len(estimator.model_[0].functions) == plan.nets
    assert estimator.predict(X).shape == (600,)


@pytest.mark.usefixtures("slow_machine")
def test_the_rate_falls_to_0_in_the_last_step(monkeypatch):
    lengths, make_optimizer = [], Recipe.make_optimizer

    def record_length(recipe, net, steps):
        lengths.append(steps)
        return make_optimizer(recipe, net, steps)

    monkeypatch.setattr(Recipe, "make_optimizer", record_length)
    estimator = TableRegressor(time=0.05, random_state=0).fit(X, Y)
    assert lengths == [STEPS_PER_EPOCH * count for count in epochs(estimator)]


@pytest.mark.usefixtures("slow_machine")
def test_a_time_that_is_too_short_warns_and_trains_the_smallest():
    fewest = math.ceil(EPOCHS / 16)
    says = rf"time=0\.01: even 1 net of {fewest} epochs takes about 0\.01\d seconds of one thread"
    with pytest.warns(TrainingWarning, match=says):
        estimator = TableRegressor(time=0.01, random_state=0).fit(X, Y)
    assert epochs(estimator) == [fewest]
    estimator = TableRegressor(time=0.02, random_state=0).fit(X, Y)  # without a warning, which would be an error
    assert epochs(estimator) == [6]


@pytest.mark.usefixtures("slow_machine")
def test_the_number_of_nets_that_the_user_gives_is_an_upper_bound():
    estimator = TableRegressor(n_estimators=2, time=0.4, random_state=0).fit(X, Y)
    assert epochs(estimator) == [EPOCHS] * 2
    estimator = TableRegressor(n_estimators=1, time=0.03, random_state=0).fit(X, Y)
    assert epochs(estimator) == [16]


@pytest.mark.parametrize("kind", [TableClassifier, TableRegressor])
def test_a_table_with_time_enough_gets_the_same_bits_as_without(kind):
    y, weights = (Y > 0 if kind is TableClassifier else Y), RNG.uniform(0, 1, 600)
    without = kind(n_estimators=2, random_state=0).fit(X, y, weights)
    estimator = kind(n_estimators=2, random_state=0, time=1e6).fit(X, y, weights)
    assert bits(estimator.model_) == bits(without.model_)
    assert estimator.histories_ == without.histories_


def test_a_short_time_leaves_less_to_train_and_a_model_that_predicts():
    n = 20_000
    x = RNG.normal(size=(n, 5))
    y = x[:, 0] + np.abs(x[:, 1]) + 0.1 * RNG.normal(size=n)
    estimator = TableRegressor(time=0.5, random_state=0).fit(x, y)
    assert len(estimator.histories_) < 4 or max(epochs(estimator)) < 29
    assert estimator.score(x, y) > 0.8


def test_a_probe_of_a_large_table_takes_some_batches_and_the_short_last_one():
    x, y, weights = np.arange(1000.0)[:, None], np.arange(1000), np.arange(1000) + 1
    rows = NetRows((x, y[:, None]), y, weights, np.arange(870), np.arange(870, 1000))
    sample = rows.sample(64)
    assert (len(sample.training), len(sample.held_out)) == (8 * 64 + 870 % 64, 83)
    assert np.isin(sample.held_out, rows.held_out).all()
    inputs, targets, part = sample.take(sample.held_out)
    np.testing.assert_array_equal(inputs[0][:, 0], targets)
    np.testing.assert_array_equal(part, targets + 1)
    whole = rows.sample(256)
    np.testing.assert_array_equal(whole.training, rows.training)
    np.testing.assert_array_equal(whole.held_out, rows.held_out)


def test_the_seconds_before_the_training_count(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(budgets, "clock", lambda: now[0])
    monkeypatch.setattr(budgets, "measure_cost", lambda *args, **options: COST)
    plans = []
    for spent in (0.0, 0.4, 0.6):
        now[0] = 7.0
        budget = Budget(0.65, warns=False)
        now[0] += spent
        plans.append(budget.choose_plan(8, 40, None, None)[:2])
    assert plans[0] == (8, 40)
    assert plans[1:] == [choose_plan(0.95 * 0.65 - spent, COST, 8, 40)[:2] for spent in (0.4, 0.6)]
    assert budget.summary == "1 of 8 nets and 5 of 40 epochs, which take about 0.62 seconds of one thread"


@pytest.mark.usefixtures("slow_machine")
@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (9, "enough for all nets and epochs, which take about 0.51 seconds of one thread"),
        (0.1, "3 of 8 nets and 19 of 40 epochs, which take about 0.094 seconds of one thread"),
        (0.01, "even 1 net of 3 epochs takes about 0.015 seconds of one thread"),
    ],
)
def test_the_summary_says_what_was_chosen(seconds, says):
    budget = Budget(seconds, warns=False)
    budget.choose_plan(8, 40, None, None)
    assert budget.summary == says


@pytest.mark.usefixtures("slow_machine")
def test_train_says_what_fits_into_the_time(tmp_path):
    data, model = write_rows(tmp_path / "shop.csv", shop()), tmp_path / "model.safetensors"
    said = run("train", data, "--target", "price", "--nets", 4, "--time", 0.25, "--output", model)
    assert (said.status, said.err) == (0, "")
    says = r"--time 0\.25: 2 of 4 nets and (\d+) of \d+ epochs, which take about 0\.\d+ seconds of one thread"
    found = re.search(rf"^2 nets, [\d,]+ parameters, (\d+) epochs in .*\n{says}$", said.out, re.MULTILINE)
    assert found is not None, said.out
    assert found[1] == found[2]
