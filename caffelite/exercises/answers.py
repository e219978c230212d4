"""Judge the answers in one file: python -m caffelite.exercises.answers FILE SOCKET EXERCISE…

`caffelite grade` starts this program for each file. A file is a program or a notebook. It runs first. Then its answers
are judged, one after the other. SOCKET, which a `Sandbox` knows, gives a token, and gets lines of the token, a name and
a result. The first is the problem: the first error of the run, which is empty if there is none. Then each
exercise is right or wrong. If an answer ends this program, the lines before it count.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import caffelite
from caffelite.exercises import EXERCISES
from caffelite.exercises.exercise import ERRORS
from caffelite.exercises.sandbox import forbid_signals, limit_memory, open_channel

MAX_CHARACTERS = 500  # of a problem
PROBLEM = "problem"  # the name of the result that is the first error of a file
MODULE_NAME = "answers"  # of the module that a file becomes; `if __name__ == "__main__":` does not run
TIMED = ("replay", "faster_than_numpy")  # on a busy machine a right answer may be too slow
ATTEMPTS = 5  # for those


def read_cells(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the source of each cell of a notebook, or of the whole program."""
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix != ".ipynb":
        yield str(path), text
        return
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        if cell["cell_type"] == "code":
            # Commands of Jupyter, such as %matplotlib, are not Python.
            yield f"cell {number}", re.sub(r"^[%!?].*", "", "".join(cell["source"]), flags=re.MULTILINE)


def run_file(path: Path) -> tuple[dict[str, Any], str]:
    """Run a file. Returns its answers by exercise, and its first error in words.

    An answer is what the file gave to `cl.exercises.check`. If it gave nothing, it is the file's function, class or
    dict with the name that the task asks for.
    """
    answers: dict[str, Any] = {}
    module = sys.modules[MODULE_NAME] = ModuleType(MODULE_NAME)
    names = vars(module)
    vars(caffelite.exercises)["check"] = answers.__setitem__  # an endless loop in an answer would end the run
    try:
        errors = [execute(source, part, names) for part, source in read_cells(path)]
    except (ValueError, TypeError, KeyError, OSError) as error:
        errors = [f"cannot be read: {error}"]
    for name, exercise in EXERCISES.items():
        answer = names.get(exercise.answer)
        if getattr(answer, "__module__", None) == MODULE_NAME or isinstance(answer, dict):  # not an import
            answers.setdefault(name, answer)
    return answers, next(filter(None, errors), "")


def execute(source: str, part: str, names: dict[str, Any]) -> str:
    """Run a program or a cell. Returns its error in one line, and an empty text if it raises none."""
    try:
        exec(compile(source, part, "exec"), names)
    except ERRORS as error:
        if getattr(error, "name", None) in {exercise.answer for exercise in EXERCISES.values()}:
            return ""  # `check("relu", relu)` raises NameError if relu was left out
        return format_error(error, part)
    return ""


def format_error(error: BaseException, part: str) -> str:
    """Return an error of a file in one line."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None and line is None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == part else None
        trace = trace.tb_next
    cell = f"{part}, " if part.startswith("cell ") else ""
    return f"{cell}line {line}: {type(error).__name__}: {getattr(error, 'msg', error)}"


def main(path: str, descriptor: str, *names: str) -> None:
    """Run a file, judge the exercises of these names, and send the results."""
    limit_memory()
    sys.path.append(str(Path(path).parent))
    check = caffelite.exercises.check
    with open_channel(descriptor) as channel:
        token = channel.recv(2**10).decode()

        def send(name: str, result: str) -> None:
            channel.sendall(f"{token} {name} {result}\n".encode(errors="backslashreplace"))

        sys.addaudithook(forbid_signals)
        answers, problem = run_file(Path(path))
        send(PROBLEM, " ".join(problem.split())[:MAX_CHARACTERS])
        for name in names:
            attempts = ATTEMPTS if name in TIMED else 1
            passed = name in answers and any(check(name, answers[name]) for _ in range(attempts))
            send(name, "right" if passed else "wrong")


if __name__ == "__main__":
    main(*sys.argv[1:])
