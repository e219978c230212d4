"""`caffelite grade`: counts the exercises that files solve, and no file can end or hang it."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from caffelite import cli
from caffelite.exercises.sandbox import forbid_signals
from tests.conftest import posix

# Seconds for what hangs and for what ends. In them Python starts, which takes Windows longer.
SHORT, LONG = (4, 20) if os.name == "posix" else (20, 60)
RELU = """
import numpy as np
import caffelite as cl

def relu(x):
    return np.maximum(x, 0)
"""
WROTE = "mse wrote into the results"
SLOPE = """
def slope(f, w):
    return (f(w + 1e-5) - f(w - 1e-5)) / 2e-5
"""
MSE = """
def mse(p, y):
    error = p - y
    return (error**2).mean(), 2 * error / error.size
"""


def on_posix(*parameters):
    return pytest.param(*parameters, marks=posix)


def cell(source, kind="code"):
    return {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}


@pytest.fixture
def grades(tmp_path, capsys):
    """Write files, and run the command. Returns the row of each file."""

    def grade(seconds=LONG, **files):
        for name, content in files.items():
            name, _, suffix = name.rpartition("_")
            path = tmp_path / f"{name}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps({"cells": content}))
        assert cli.main(["grade", str(tmp_path), "--seconds", str(seconds)]) == 0
        header, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
        assert header == ["file", "right", "exercises", "problem"]
        return {row[0]: tuple(row[1:]) for row in rows}

    return grade


def test_it_counts_the_right_answers_of_each_file(grades):
    both = RELU + SLOPE + "def mse(p, y):\n    return 1\n"
    assert grades(anna_py=RELU + SLOPE, ben_py=both, cem_py=RELU) == {
        "anna.py": ("2", "relu slope", ""),
        "ben.py": ("2", "relu slope", ""),
        "cem.py": ("1", "relu", ""),
    }


def test_a_notebook_counts_as_its_cells_do(grades):
    cells = [
        cell("# Text", "markdown"),
        cell("%matplotlib inline\n" + RELU),
        cell('cl.exercises.check("relu", relu)'),
        cell('# your answer\n\n\ncl.exercises.check("mse", mse)'),  # left out: a NameError
        cell(SLOPE + 'cl.exercises.check("slope", slope)'),
    ]
    assert grades(anna_ipynb=cells) == {"anna.ipynb": ("2", "relu slope", "")}


def test_an_answer_is_also_what_a_file_gives_to_check(grades):
    program = "import caffelite as cl\nimport numpy as np\nmine = lambda x: np.maximum(x, 0)\n"
    assert grades(anna_py=program + "cl.exercises.check('relu', mine)")["anna.py"] == ("1", "relu", "")


def test_a_dict_with_the_name_of_an_exercise_is_an_answer(grades):
    program = "losses = {'digit': 'SoftmaxLoss', 'tags': 'SigmoidLoss', 'price': 'MSELoss', 'typos': 'MAELoss', "
    program += "'calls': 'PoissonLoss', 'parcel': 'QuantileLoss'}\ncurves = {'A': 'fine'}\n"
    assert grades(anna_py=program)["anna.py"] == ("1", "losses", "")


def test_a_function_that_was_only_imported_is_not_an_answer(grades):
    assert grades(anna_py="from caffelite import *\nfrom caffelite import MaxPool2d as MaxPool\n")["anna.py"][0] == "0"


def test_folders_of_students_are_read_and_hidden_ones_are_not(grades, tmp_path):
    for folder in ("anna", ".ipynb_checkpoints"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "exercises.py").write_text(RELU)
    (tmp_path / "anna" / "notes.txt").write_text("not a program")
    assert grades() == {str(Path("anna", "exercises.py")): ("1", "relu", "")}


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        ("import os\n    os._exit(0)", "mse ended Python"),
        on_posix("import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)", "mse ended Python"),
        pytest.param("while True:\n        pass", f"mse took more than {SHORT} seconds", marks=pytest.mark.slow),
        ("while True:\n        try: 1 / 0\n        except BaseException: pass", f"mse took more than {SHORT} seconds"),
        on_posix("import os\n    os.closerange(3, 100)", "mse ended Python"),
        on_posix("import os, sys\n    os.write(int(sys.argv[2]), b'right\\n')", WROTE),
        on_posix("import os, sys\n    os.write(int(sys.argv[2]), b'x' * 10**6)", WROTE),
        pytest.param("raise ValueError('\\ud83d')", "", marks=pytest.mark.slow),
        pytest.param("import sys\n    sys.exit()", "", marks=pytest.mark.slow),
        ("raise KeyboardInterrupt", "mse ended Python"),
        ("while True:\n        f = lambda: f()\n        f()", ""),
        ("return [0] * 10**10", ""),
        ("for _ in range(10**6): print('x' * 100)", ""),
        pytest.param("return input()", "", marks=pytest.mark.slow),
    ],
)
def test_an_answer_that_ends_or_hangs_does_not_count_and_those_after_it_do(ending, problem, grades):
    program = RELU + f"def mse(p, y):\n    {ending}\ndef descend(slope, w, lr, steps):\n"
    program += "    for _ in range(steps):\n        w = w - lr * slope(w)\n    return w\n"
    rows = grades(SHORT if "took" in problem else LONG, anna_py=program, ben_py=RELU)
    assert rows == {"anna.py": ("2", "relu descend", problem), "ben.py": ("1", "relu", "")}


@pytest.mark.parametrize(
    ("program", "right", "problem"),
    [
        ("def relu(x:\n", "0", "line 1: SyntaxError: '(' was never closed"),
        (RELU + "print(rleu(3))\n" + SLOPE, "1", "line 7: NameError: name 'rleu' is not defined"),
        (RELU + "while True:\n    pass", "0", f"the file took more than {SHORT} seconds"),
        (RELU + "raise ValueError('\\ud83d')", "1", "line 7: ValueError: \\ud83d"),
        (RELU + "raise ValueError('x' * 10**7)", "1", "line 7: ValueError: xxx"),
        (RELU + "import os\nos._exit(1)", "0", "the file ended Python"),
        (RELU + "import sys\nsys.exit('bye')", "1", "line 8: SystemExit: bye"),
        ("", "0", ""),
        (RELU + "if __name__ == '__main__':\n    input('')", "1", ""),
    ],
)
def test_the_problem_of_a_file_is_reported_and_what_came_before_it_counts(program, right, problem, grades):
    row = grades(SHORT if "took" in problem else LONG, anna_py=program)["anna.py"]
    assert row[0] == right
    assert row[2].startswith(problem)
    assert problem or not row[2]
    assert len(row[2]) <= 500


@pytest.mark.parametrize(
    "program",
    [
        "import os\nfor f in os.listdir('.'): os.remove(f)\n",
        on_posix("import os, shutil\nshutil.rmtree(os.getcwd())\n"),
        on_posix("import os, sys\nif os.path.exists(sys.argv[2]): os.remove(sys.argv[2])\nos.mkfifo(sys.argv[2])\n"),
        "import os, sys\nif os.path.exists(sys.argv[2]): os.remove(sys.argv[2])\nos.mkdir(sys.argv[2])\n",
        on_posix("import os\nfor _ in range(3000): os.mkdir('a'); os.chdir('a')\n"),
        on_posix("import os\nos.fork()\n"),
    ],
)
def test_files_and_processes_that_an_answer_makes_or_removes_change_no_result(program, grades):
    rows = grades(anna_py=program + RELU, ben_py=RELU)
    assert rows == {"anna.py": ("1", "relu", ""), "ben.py": ("1", "relu", "")}


@pytest.mark.parametrize(
    "write", ["open(sys.argv[2], 'a').write('x\\n')", pytest.param("print('x')", marks=pytest.mark.slow)]
)
def test_a_file_that_writes_on_and_on_ends(write, grades):
    program = f"import sys, time\nwhile True:\n    {write}\n    time.sleep(0.3)\n"
    rows = grades(SHORT, anna_py=RELU + program, ben_py=RELU)
    assert rows == {"anna.py": ("0", "", f"the file took more than {SHORT} seconds"), "ben.py": ("1", "relu", "")}


@posix
def test_an_answer_that_knows_where_the_results_go_cannot_write_one(grades):
    program = "import os, sys\nos.write(int(sys.argv[2]), b'x problem \\nx relu right\\n')\n"
    assert grades(anna_py=program, ben_py=RELU) == {
        "anna.py": ("0", "", "the file wrote into the results"),
        "ben.py": ("1", "relu", ""),
    }


@posix
def test_an_answer_cannot_send_a_signal_to_the_process_that_grades(grades):
    program = """
import os, signal
import numpy as np

def relu(x):
    for send, process in ((os.kill, os.getppid()), (os.killpg, os.getpgid(os.getppid()))):
        try:
            send(process, signal.SIGCONT)
            return
        except PermissionError:
            pass
    os.kill(os.getpid(), signal.SIGCONT)
    return np.maximum(x, 0)
"""
    assert grades(anna_py=program)["anna.py"] == ("1", "relu", "")
    with pytest.raises(PermissionError):
        forbid_signals("os.kill", (-1, signal.SIGKILL))


@posix
def test_a_process_group_whose_first_process_has_ended_gets_no_signal():
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as ended:
        ended.wait()
    with pytest.raises(PermissionError):
        forbid_signals("os.killpg", (ended.pid, signal.SIGCONT))


@posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_that_ends_it_ends_the_process_of_the_answer(name, tmp_path):
    number = getattr(signal, name)
    pid = tmp_path / "pid"
    source = f"import os, time\nopen({str(pid)!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(60)"
    (tmp_path / "anna.py").write_text(source)
    command = [sys.executable, "-m", "caffelite", "grade", tmp_path, "--seconds", "600"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not (pid.exists() and pid.read_text().endswith(".")):
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(30) == (130 if number == signal.SIGINT else -number)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()[:-1]), 0)


def test_a_broken_notebook_and_a_binary_file_are_reported(grades, tmp_path):
    (tmp_path / "cem.py").write_bytes(b"\xff\xfe")
    rows = grades(anna_ipynb="{", ben_ipynb="3", dan_ipynb=[cell("1 +"), cell(RELU)])
    for name in ("anna.ipynb", "ben.ipynb", "cem.py"):
        assert rows[name][2].startswith("cannot be read: ")
    assert rows["dan.ipynb"] == ("1", "relu", "cell 1, line 1: SyntaxError: invalid syntax")


def test_a_process_that_an_answer_starts_ends_with_it(grades, tmp_path):
    late = tmp_path / "late"
    source = f"import time; time.sleep(2); open({str(late)!r}, 'w')"
    program = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {source!r}])\n"
    assert grades(anna_py=program + RELU)["anna.py"] == ("1", "relu", "")
    time.sleep(2.5)
    assert not late.exists()


def test_programs_do_not_write_into_the_folder(grades, tmp_path):
    grades(anna_py=RELU + "open('mine.txt', 'w').close()")
    assert [path.name for path in tmp_path.iterdir()] == ["anna.py"]


def test_a_folder_without_files_raises(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "absent"):
        assert cli.main(["grade", str(folder)]) == 2
        said = capsys.readouterr().err
        assert said == f"caffelite grade: error: there is no file that ends in .py or .ipynb in {folder}\n"
