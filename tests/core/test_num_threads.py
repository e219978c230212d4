"""The number of threads that a replay finds by measuring, and how long OpenMP's threads spin."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite._kernels.openmp import SPINS
from tests.conftest import bits, classifier, posix, train, training_step

pytestmark = pytest.mark.usefixtures("restored_threads")

with_openmp = pytest.mark.skipif(not kernels.OPENMP, reason="compiled without OpenMP")
# KMP_INIT_AT_FORK is set by scikit-learn. A forked child of LLVM's OpenMP then ends with a segmentation fault.
NAMES = ("CAFFELITE_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_INIT_AT_FORK")


# ---- the choice, by a clock that the tests set ----------------------------------------------------------------------


class Machine:
    """Replays steps on a clock of its own. `seconds(n)` is the time of a step on n threads."""

    def __init__(self, most):
        self.team, self.most, self.now = kernels.ThreadTuner(), most, 0.0

    def replay(self, until, seconds):
        """Replay steps until a time. Returns the number of threads of each step."""
        numbers = []
        while self.now < until:
            numbers.append(self.team.begin(self.most, self.now))
            self.now += seconds(numbers[-1])
            self.team.end(self.now)
        return numbers


def quiet(one, n):
    """Return a tenth of a step is not divided."""
    return one * (0.1 + 0.9 / n)


def busy(one, slower, n):
    """On several threads a step is slower."""
    return one if n == 1 else one * slower


MOST = pytest.mark.parametrize("most", [2, 3, 8])
STEP = pytest.mark.parametrize("one", [3e-4, 5e-3], ids=["0.3 ms", "5 ms"])


@MOST
@STEP
def test_on_a_quiet_machine_a_replay_runs_on_all_threads_but_for_short_trials(most, one):
    machine = Machine(most)
    numbers = machine.replay(5, lambda n: quiet(one, n))
    assert machine.team.number == most
    assert set(numbers) > {most}  # it does try fewer
    assert machine.now < 1.04 * len(numbers) * quiet(one, most)


@MOST
@STEP
@pytest.mark.parametrize("slower", [1.0, 1.2, 2, 5])
def test_a_second_thread_that_gains_nothing_costs_at_most_five_percent(most, one, slower):
    machine = Machine(most)
    for second in range(1, 6):
        start = machine.now
        numbers = machine.replay(second, lambda n: busy(one, slower, n))
        assert machine.now - start <= 1.05 * len(numbers) * one
    assert set(numbers) <= {1, 2}


@STEP
def test_a_machine_that_becomes_busy_slows_the_next_second_by_five_percent_at_most(one):
    machine = Machine(2)
    machine.replay(3, lambda n: quiet(one, n))
    start = machine.now
    numbers = machine.replay(start + 1, lambda n: busy(one, 3, n))
    assert machine.now - start <= 1.05 * len(numbers) * one


@MOST
@STEP
def test_a_machine_that_becomes_quiet_gets_all_threads_again(most, one):
    machine = Machine(most)
    machine.replay(5, lambda n: busy(one, 3, n))
    assert machine.team.number == 1
    machine.replay(10, lambda n: quiet(one, n))
    assert machine.team.number == most


def test_if_some_threads_are_faster_than_one_and_than_all_they_are_kept():
    machine = Machine(8)
    numbers = machine.replay(20, lambda n: 4e-4 if n == 8 else quiet(3e-4, n))
    assert machine.team.number == 4
    assert np.mean(np.equal(numbers[len(numbers) // 2 :], 4)) > 0.9


def test_no_step_runs_on_more_threads_than_are_allowed_then():
    machine = Machine(8)
    machine.replay(1, lambda n: quiet(3e-4, n))
    for most in (3, 2, 1, 5):
        machine.most = most
        numbers = machine.replay(machine.now + 3, lambda n: quiet(3e-4, n))
        assert max(numbers) == most


# ---- the choice has an effect, and none on bits ---------------------------------------------------------------------


def capture_step(dtype=np.float32):
    """Return a training step whose products are divided among threads, captured, and its model and batch."""
    model = classifier(300, 257, 65, dtype=dtype)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(333, 300)).astype(dtype), rng.integers(0, 65, 333)
    step = training_step(model, cl.Adam(model.parameters(), lr=1e-3))
    return cl.capture(step, x, y), model, (x, y)


def force(program, number):
    """Let the next replay run on this number of threads."""
    program.replay.tuner.number = program.replay.tuner.tried = number


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whichever_numbers_of_threads_a_replay_chooses_the_bits_are_the_same(dtype):
    found = set()
    for numbers in [(1,) * 8, (8,) * 8, (1, 2, 3, 8, 5, 1, 8, 2)]:
        program, model, batch = capture_step(dtype)
        kernels.set_num_threads(8, False)
        for number in numbers:
            force(program, number)
            program(*batch)
        found.add(bits(model))
    assert len(found) == 1


def test_a_fit_that_chooses_its_threads_has_the_bits_of_one_thread():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1300, 256)).astype(np.float32), rng.integers(0, 64, 1300)
    found = set()
    for number, is_users in [(1, True), (8, False)]:
        kernels.set_num_threads(number, is_users)
        model = classifier(256, 512, 64)
        train(model, x, y, optimizer=cl.Adam(model.parameters(), lr=1e-3), batch_size=512, epochs=20)
        found.add(bits(model))
    assert len(found) == 1


def test_several_python_threads_may_choose_at_once():
    kernels.set_num_threads(1)
    model = classifier(300, 257, 65)
    x = np.random.default_rng(0).normal(size=(6, 900, 300)).astype(np.float32)
    expected = [model.predict(part).tobytes() for part in x]
    kernels.set_num_threads(4, False)
    with ThreadPoolExecutor(6) as pool:
        for _ in range(20):
            assert [p.tobytes() for p in pool.map(model.predict, x)] == expected


def in_a_process(program, **environment):
    """Return what a program that imports this file prints in a new process, and its errors, with only these
    settings.
    """
    setting = f"import os, sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    inherited = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", setting + program],
        env=inherited | environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


CHOSEN = """
from tests.core.test_num_threads import capture_step, cl, force, kernels
program, model, batch = capture_step()
"""


@with_openmp
@posix
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the system does not list a process's threads")
def test_a_replay_starts_the_threads_that_it_has_chosen_and_no_more():
    printed, _ = in_a_process(f"""
import os
os.environ["CAFFELITE_NUM_THREADS"] = "1"
{CHOSEN}
for _ in range(4):  # two of them in Python; then four replays follow
    program(*batch)
kernels.set_num_threads(8, False)
for number in (1, 3, 6):
    before = len(os.listdir("/proc/self/task"))
    force(program, number)
    program(*batch)
    print(len(os.listdir("/proc/self/task")) - before)
""")
    assert printed.split() == ["0", "2", "3"]


@with_openmp
@pytest.mark.parametrize(
    ("statement", "environment", "chooses"),
    [
        ("", {}, True),
        ("", {"OMP_WAIT_POLICY": "passive"}, True),
        ("", {"CAFFELITE_NUM_THREADS": "2"}, False),
        ("", {"OMP_NUM_THREADS": "2"}, False),
        ("cl.set_num_threads(2)", {}, False),
        ("cl.set_num_threads(2)", {"OMP_NUM_THREADS": "3"}, False),
    ],
)
def test_a_number_that_the_user_set_is_obeyed(statement, environment, chooses):
    """A ThreadTuner that has chosen knows how many threads there are at most."""
    printed, _ = in_a_process(
        f"""
os.sched_getaffinity = lambda process: {{0, 1}}  # as on two processors
{CHOSEN}
{statement}
never = kernels.ThreadTuner().number
for _ in range(3):
    program(*batch)
print(program.replay.tuner.number != never)
""",
        **environment,
    )
    assert printed.split() == [str(chooses)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_goes_on_with_a_program_whose_threads_were_chosen():
    printed, _ = in_a_process(f"""
{CHOSEN}
import hashlib
kernels.set_num_threads(4, False)
force(program, 4)
program(*batch)

def digest():
    for _ in range(3):
        program(*batch)
    return hashlib.sha256(b"".join(p.data.tobytes() for p in model.parameters())).hexdigest()

child = os.fork()
os.write(1, digest().encode() + b" ")
if child:
    _, status = os.waitpid(child, 0)
    sys.exit(status != 0)
""")
    first, second = printed.split()
    assert first == second


# ---- spinning -------------------------------------------------------------------------------------------------------


@with_openmp
@pytest.mark.parametrize(
    ("environment", "spins"),
    [
        ({}, SPINS),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "passive"}, "0"),
        ({"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "9"}, "9"),
    ],
)
def test_openmp_spins_shortly_or_as_the_environment_says_and_the_environment_stays(environment, spins):
    """OpenMP itself prints how long it spins; a child of the process sees the environment that C has."""
    printed, errors = in_a_process(
        """
before = dict(os.environ)
import caffelite, subprocess, sys
assert dict(os.environ) == before
del os.environ["OMP_DISPLAY_ENV"]
show = "import os; [print(f'{name}={value}') for name, value in os.environ.items()]"
print(subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout)
""",
        OMP_DISPLAY_ENV="verbose",
        **environment,
    )
    if "GOMP_SPINCOUNT" not in errors:
        pytest.skip("not gcc's OpenMP")
    assert re.findall(r"GOMP_SPINCOUNT = '(.*)'", errors) == [spins]
    assert sorted(re.findall("(?m)^(?:GOMP_SPINCOUNT|OMP_WAIT_POLICY)=.*", printed)) == [
        f"{name}={value}" for name, value in sorted(environment.items())
    ]
