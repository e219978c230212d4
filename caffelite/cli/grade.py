"""`caffelite grade`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from caffelite._support.terminal import make_writable, write
from caffelite._support.text_table import plural
from caffelite.cli import argtypes
from caffelite.cli.options import add_command
from caffelite.cli.output import UsageError, as_csv
from caffelite.exercises import EXERCISES

TEXT = """\
Count the exercises that students have solved, and print a table in CSV: a row for each program (.py) and each notebook
(.ipynb) in a folder and its subfolders. Each file runs in a process of its own, so no answer can end or hang the run.
It can still delete your files: use an account or a container where it can do no harm."""
SUFFIXES = (".py", ".ipynb")
THREAD_VARIABLES = ("CAFFELITE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
POLL_INTERVAL = 0.02  # seconds between two looks at a process


def add(commands: Any) -> None:
    """Add the command."""
    add_argument = add_command(commands, grade, "count the exercises that students have solved", TEXT)
    add_argument("folder", metavar="FOLDER", type=Path, help="the folder with a file, or a folder, for each student")
    help = "time for a file to run, and then for each exercise (default: %(default)s)"
    add_argument("--seconds", type=argtypes.positive, default=20, metavar="N", help=help)


def grade(arguments: argparse.Namespace) -> int:
    """Judge the files of a folder."""
    folder, seconds = arguments.folder, arguments.seconds
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not paths:
        raise UsageError(f"there is no file that ends in {' or '.join(SUFFIXES)} in {folder}")
    print_row("file", "right", "exercises", "problem")
    for path in paths:
        solved, problems = grade_file(path.resolve(), seconds)
        print_row(str(path.relative_to(folder)), len(solved), " ".join(solved), "; ".join(problems))
    return 0


def print_row(*cells: Any) -> None:
    write(make_writable(as_csv([cells])), sys.stdout)


def grade_file(path: Path, seconds: int) -> tuple[list[str], list[str]]:
    """Return the exercises that a file solves, and its problems in words.

    If an answer ends or hangs its process, the exercises after it are judged in another one.
    """
    solved: list[str] = []
    problems: list[str] = []
    remaining = list(EXERCISES)
    while remaining:
        lines, reason = run_answers(path, remaining, seconds)
        if not lines:
            return solved, [*problems, f"the file {reason}"]
        problem, *verdicts = lines
        if problem and problem not in problems:
            problems.append(problem)
        solved += [name for name, verdict in zip(remaining, verdicts, strict=False) if verdict == "right"]
        remaining = remaining[len(verdicts) :]
        if remaining:
            problems.append(f"{remaining.pop(0)} {reason}")
    return solved, problems


def run_answers(path: Path, names: list[str], seconds: int) -> tuple[list[str], str]:
    """Run `caffelite.exercises.answers` for a file. Returns the lines of its results, and why there are no more."""
    environment = os.environ | {"MPLBACKEND": "agg"} | dict.fromkeys(THREAD_VARIABLES, "1")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        results = Path(folder, ".results")
        results.touch()
        process = subprocess.Popen(
            [sys.executable, "-m", "caffelite.exercises.answers", path, results, *names],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        size, end, reason = 0, time.monotonic() + seconds, "ended Python"
        try:
            while process.poll() is None:
                if results.stat().st_size > size:
                    size, end = results.stat().st_size, time.monotonic() + seconds
                if time.monotonic() > end:
                    reason = f"took more than {plural(seconds, 'second')}"
                    break
                time.sleep(POLL_INTERVAL)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)  # with all processes that it has started
            process.wait()
        return results.read_text(encoding="utf-8", errors="replace").splitlines(), reason
