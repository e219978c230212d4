"""What the README shows is run: its programs one after the other, and its new operator in a copy of the project."""

import operator
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import run, unpacked_source_distribution

import caffelite as cl
import caffelite.c

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_programs_run_and_print_what_their_comments_say(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they write their files
    namespace = {}
    expected = []
    for block in blocks("python"):
        expected += re.findall(r"^print\(.*\)  # ([^:\n]+)", block, re.MULTILINE)
        exec(compile(block, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out.splitlines()
    assert len(expected) >= 3
    assert [line for line in printed if line in expected] == expected
    listing = next(block for block in blocks("text") if block.startswith("kernel ")).splitlines()
    start = printed.index(listing[0])
    assert [line.rstrip() for line in printed[start : start + len(listing)]] == listing


def test_the_net_in_c_takes_the_memory_that_is_said_and_is_called_as_shown(tmp_path):
    net = cl.Model([cl.Conv2d(1, 16, 3, padding="same"), cl.BatchNorm(16), cl.ReLU(), cl.MaxPool2d(2)], seed=0)
    net.add(cl.Flatten()).add(cl.Linear(16 * 4 * 4, 10))
    caffelite.c.export(net, tmp_path / "digits.c", input_shape=(1, 8, 8))
    written = (tmp_path / "digits.c").read_text()
    weights, memory = re.search(
        r"here ([\d.]+ kB) of constants and ([\d.]+ kB) between", README.replace("\n", " ")
    ).groups()
    assert re.search(rf"weights +{weights}, constant\n.*memory +{memory}\n", written)

    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    image = np.random.default_rng(0).random((1, 1, 8, 8)).astype(np.float32)
    numbers = ", ".join(map(str, image.ravel()))
    main = f"int main(void) {{ const float image[64] = {{{numbers}}}; return read_digit(image); }}"
    (tmp_path / "program.c").write_text("\n".join([*blocks("c"), main]))
    run("cc", "-std=c99", "-O3", "program.c", "digits.c", "-lm", cwd=tmp_path)
    assert subprocess.run([tmp_path / "a.out"], check=False).returncode == net.predict(image).argmax()


def test_the_names_in_the_text_are_caffelites():
    before_the_new_operator = README[: README.index("## Adding an operator")]
    names = set(re.findall(r"\bcl\.([a-zA-Z_][\w.]*\w)", before_the_new_operator))
    assert len(names) >= 25
    for name in names:
        assert operator.attrgetter(name)(cl), name


def test_the_commands_are_targets_of_the_makefile():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = re.findall(r"^\$ make (\w+)", README, re.MULTILINE)
    assert commands[:2] == ["spiral", "test"]
    assert set(commands) <= set(targets)


def test_files_and_links_in_the_readme_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


# Where every Function and every kernel is tried. Of these tests, those of other Functions by name are left out.
OF_ALL = ["functions", "function", "cases", "kernels", "pytorch", "program", "imports", "tensor", "activation"]

CONFTEST = """
import re

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if re.search("::[^[]+$|softsign|x86-64", item.nodeid, re.IGNORECASE)]
"""


@pytest.mark.slow
def test_the_new_operator_applies_builds_and_passes_the_tests_of_all(tmp_path):
    project, _ = unpacked_source_distribution(tmp_path)
    run("git", "apply", "-", cwd=project, input="".join(blocks("diff")))
    compiler = tmp_path / "cc"  # which knows one instruction set, and hurries: the others take a minute each
    compiler.write_text('#!/bin/sh\ncase " $* " in *" -march=x86-64-v"[24]" "*) exit 1;; esac\nexec cc "$@" -O1\n')
    compiler.chmod(0o755)
    run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=project, env=os.environ | {"CC": str(compiler)})
    (project / "conftest.py").write_text(CONFTEST)
    pytest_here = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--verbose"]
    output = run(*pytest_here, *[f"tests/test_{name}.py" for name in OF_ALL], cwd=project)
    assert len(re.findall("Softsign.* PASSED", output)) > 20
