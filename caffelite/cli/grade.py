"""`caffelite grade`."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caffelite._support.terminal import make_writable, write
from caffelite._support.text_table import plural
from caffelite.cli import argtypes
from caffelite.cli.options import add_command
from caffelite.cli.output import UsageError, as_csv
from caffelite.exercises import EXERCISES
from caffelite.exercises.answers import PROBLEM
from caffelite.exercises.sandbox import ENDING_SIGNALS, Sandbox, remove_folder

TEXT = """\
Count the exercises that students have solved, and print a table in CSV: a row for each program (.py) and each
notebook (.ipynb) in a folder and its subfolders. Each file runs in a process of its own, so an answer that exits,
hangs or writes forever cannot stop the run. An answer that is meant to do harm can still delete your files and end
your programs: use an account or a container where it can do no harm."""
SUFFIXES = (".py", ".ipynb")
THREAD_VARIABLES = ("CAFFELITE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
POLL_INTERVAL = 0.02  # seconds between two looks at the time
MAX_LINE = 2**12  # bytes of a result
ANSWERS = "caffelite.exercises.answers"  # the program that judges the answers of a file


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
    """Return the exercises that a file solves, and a description of its problems.

    If an answer ends or hangs its process, the exercises after it are judged in another one.
    """
    solved: list[str] = []
    problems: list[str] = []
    remaining = list(EXERCISES)
    while remaining:
        results, reason = run_answers(path, remaining, seconds)
        if PROBLEM not in results:
            return solved, [*problems, f"the file {reason}"]
        if results[PROBLEM] and results[PROBLEM] not in problems:
            problems.append(results[PROBLEM])
        solved += [name for name in remaining if results.get(name) == "right"]
        remaining = [name for name in remaining if name not in results]
        if remaining:
            problems.append(f"{remaining.pop(0)} {reason}")
    return solved, problems


def run_answers(path: Path, names: list[str], seconds: int) -> tuple[dict[str, str], str]:
    """Run `caffelite.exercises.answers` for a file. Return its results, and why there are no more.

    The results come through a socket, and each begins with a token that only that program knows. So no file that an
    answer writes or removes, and nothing that it writes to the socket, is taken for a result.
    """
    environment = os.environ | {"MPLBACKEND": "agg"} | dict.fromkeys(THREAD_VARIABLES, "1")
    token = secrets.token_hex()
    ours, theirs = socket.socketpair()
    ours.sendall(token.encode())
    with defer_signals() as signals, ours:
        folder = tempfile.mkdtemp()
        try:
            with theirs:
                sandbox = Sandbox(ANSWERS, path, names, theirs, cwd=folder, env=environment)
            try:
                return read_results(ours, token, [PROBLEM, *names], seconds, signals)
            finally:
                sandbox.kill()
        finally:
            remove_folder(folder, seconds)


def read_results(
    channel: socket.socket, token: str, names: list[str], seconds: int, signals: list[int]
) -> tuple[dict[str, str], str]:
    """Read lines of a token, a name and a result, until there is one for each name, or a signal has come.

    Returns the results by name, and why there are no more.
    """
    results: dict[str, str] = {}
    rest, end = b"", time.monotonic() + seconds
    channel.settimeout(POLL_INTERVAL)
    while len(results) < len(names) and not signals:
        if time.monotonic() > end:
            return results, f"took more than {plural(seconds, 'second')}"
        try:
            content = channel.recv(MAX_LINE)
        except TimeoutError:
            continue
        except ConnectionResetError:
            content = b""
        if not content:
            break
        *lines, rest = (rest + content).split(b"\n")
        for line in lines:
            mark, name, result = [*line.decode(errors="replace").split(" ", 2), "", ""][:3]
            if mark != token or name not in names:
                return results, "wrote into the results"
            if name not in results:  # a copy of the process, by os.fork, may judge it, too
                results[name], end = result, time.monotonic() + seconds
        if len(rest) > MAX_LINE:
            return results, "wrote into the results"
    return results, "ended Python"


@contextmanager
def defer_signals() -> Iterator[list[int]]:
    """Inside, signals that end a program are collected in a list. The first of them takes effect at the end."""
    signals: list[int] = []
    numbers = [number for number in ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda number, frame: signals.append(number)) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if signals:
            signal.raise_signal(signals[0])
