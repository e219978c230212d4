"""Every file in examples/ runs as it is, a new one too; what the present ones print is checked."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@functools.cache
def run(name):
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False)


def numbers_after(text, output):
    return [float(number) for number in re.findall(rf"{text} ([-+.e\d]*\d)", output)]


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_runs_without_a_warning_and_prints_something(name):
    example = run(name)
    assert example.returncode == 0, example.stderr
    assert example.stderr == ""
    assert example.stdout.strip()


def test_the_spiral_example_classifies_98_percent():
    assert float(run("spiral.py").stdout.splitlines()[-1]) >= 0.98


def test_the_digits_example_classifies_96_percent_of_the_test_images():
    output = run("digits.py").stdout
    (accuracy,) = numbers_after("test images: .* accuracy", output)
    assert accuracy >= 0.96
    (wrong,) = numbers_after("wrong:", output)
    assert wrong == round((1 - accuracy) * 360)


def test_the_loop_by_hand_learns_and_gives_the_bits_of_fit():
    output = run("textbook_loop.py").stdout
    assert output.endswith("fit(shuffle=False) gives the same weights and losses, to the bit\n")
    losses = numbers_after("loss", output)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.25


def test_own_functions_have_right_gradients_and_learn_in_fit():
    output = run("own_function.py").stdout
    errors = numbers_after("within", output)
    assert len(errors) == 2
    assert max(errors) < 1e-7
    first, last = re.search(r"mean absolute error: (\S+) after 1 epoch, (\S+) after 200", output).groups()
    assert float(last) < 0.05 < float(first)
