"""Random calls of the public API, and that the program that makes them notices faults."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="the program forks")

from tests.tools import fuzz

# Faults, and what the program prints.
FAULTS = {
    "value": ("fuzz_calls.same(np.float32(1.001), 1.0)", "Wrong: [1.001], expected [1.]"),
    "shape": ("fuzz_calls.same(np.ones(3), np.ones((3, 1)))", "Wrong: shape (3,), expected (3, 1)"),
    "number_for_nan": ("fuzz_calls.same(np.float32(0), np.nan)", "Wrong: [0.], expected [nan]"),
    "taken": ("fuzz_calls.as_numpy(lambda: 1, lambda: np.ones(2)[3])", "Wrong: 1, which NumPy refuses"),
    "refused": ("fuzz_calls.as_numpy(lambda: int('a'), lambda: 1)", "Wrong: a correct call was refused: ValueError"),
    "attribute": ("None.shape", "AttributeError: 'NoneType' object has no attribute 'shape'"),
    "recursion": ("raise RecursionError('deep')", "RecursionError: deep"),
    "no_text": ("raise ValueError", "ValueError:  ("),
    "crash": ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV, in a process that began with"),
    "hang": ("time.sleep(60)", "SIGALRM, in a process that began with"),
    "exit": ("os._exit(3)", "exit 3, in a process that began with"),
}

# A program whose kinds of call have these faults, except for one that is right and one that raises an error.
PLANTED = f"""
import os, signal, sys, time
import numpy as np
from tests.tools import fuzz, fuzz_calls

def as_it_should_be(rng):
    fuzz_calls.same(np.float32(1), 1.0)

def refused_with_a_text(rng):
    raise ValueError("expected something else")

faults = {FAULTS!r}
fuzz.SECONDS = 0.2
fuzz.KINDS.clear()
fuzz.KINDS.update(good=(as_it_should_be, 5), bad=(refused_with_a_text, 5))
for name, (fault, _) in faults.items():
    exec(f"def faulty(rng):\\n    {{fault}}")
    fuzz.KINDS[name] = faulty, 1
sys.exit(fuzz.main(["100", "--seed", "5"]))
"""


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=Path(fuzz.__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_thousand_random_calls_find_no_fault():
    count = os.environ.get("CAFFELITE_CALLS", "1000")
    code, said = run("tests/tools/fuzz.py", count)
    assert f"{count} calls from seed 0: 0 faults" in said, said[:5000]
    assert code == 0


def test_planted_faults_are_noticed_with_their_seeds_and_the_other_cases_run():
    code, said = run("-c", PLANTED)
    assert code == 1, said
    cases = [line.removeprefix("case ").split(", ", 1) for line in said.splitlines() if line.startswith("case ")]
    assert f"100 calls from seed 5: {len(cases)} faults" in said
    assert all(5 <= int(seed) < 105 for seed, _ in cases)
    seen = {}
    for _, text in cases:
        name, _, what = text.partition(": ")
        assert what.startswith(FAULTS[name][1]), text
        seen[name] = what
    assert seen.keys() == FAULTS.keys()
    table = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line and not line.startswith("case ")}
    assert table["good"][0] == table["good"][1]
    assert table["bad"] == [table["bad"][0], "0", "ValueError", table["bad"][0]]
    assert sum(int(table[name][0]) for name in ["good", "bad", *FAULTS]) == 100


def test_a_seed_repeats_its_case():
    code, said = run("tests/tools/fuzz.py", "--case", "4")
    assert said.startswith(f"case 4: {fuzz.draw_case(4)[1]}")
    assert (code == 0) == (fuzz.answer(4)[1] == "done")
    assert [fuzz.answer(seed) for seed in range(20)] == [fuzz.answer(seed) for seed in range(20)]
