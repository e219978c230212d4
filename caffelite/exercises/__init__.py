"""Exercises that grade themselves, from ReLU to a kernel that is faster than NumPy.

    import numpy as np
    import caffelite as cl

    print(cl.exercises.tasks())  # all of them, by name
    print(cl.exercises.task("relu"))  # the task
    print(cl.exercises.hint("relu"))
    cl.exercises.check("relu", lambda x: np.maximum(x, 0))
    print(cl.exercises.progress())  # 1 of 33, and what comes next

`import caffelite` does not import this package; `cl.exercises` does. The exercises are in five files: formulas.py,
layers.py, framework.py, judgement.py, machine.py. Each is a function that takes an answer and raises Wrong if it finds
a mistake. Its docstring is the task.
"""

from __future__ import annotations

from typing import Any

from caffelite._support.hints import did_you_mean
from caffelite._support.text_table import Text
from caffelite.exercises import formulas, framework, judgement, layers, machine
from caffelite.exercises.exercise import Exercise, Verdict, Wrong

__all__ = ["EXERCISES", "Verdict", "Wrong", "check", "hint", "progress", "task", "tasks"]

_MODULES = (formulas, layers, framework, judgement, machine)

#: All exercises by name, in the order of the lessons.
EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise
    for module in _MODULES
    for exercise in vars(module).values()
    if isinstance(exercise, Exercise)
}
_solved: dict[str, Verdict] = {}  # in this session, the last one at the end; nothing is written to a file


def _find(name: str) -> Exercise:
    if not isinstance(name, str):
        raise TypeError(f"the name of an exercise comes first, such as check('relu', relu); got {name!r}")
    if name not in EXERCISES:
        similar = " or ".join([repr(known) for known in EXERCISES if known.lower() == name.lower()])
        hint = f"; did you mean {similar}?" if similar else did_you_mean(name, EXERCISES)
        raise ValueError(f"there is no exercise {name!r}{hint or '; there are ' + ', '.join(EXERCISES)}")
    return EXERCISES[name]


def tasks() -> Text:
    """Return a list of all exercises: name, difficulty, minutes, and the first sentence of each."""
    width = max(map(len, EXERCISES))
    lines = []
    for module in _MODULES:
        lines += ["", module.__doc__.partition("\n")[0]]  # type: ignore[union-attr]  # each has a docstring
        inside = [e for e in EXERCISES.values() if vars(module).get(e.name) is e]
        lines += [f"  {e.name:{width}}  {e.difficulty:6}  {e.minutes:2} min  {e.title}" for e in inside]
    return Text("\n".join(lines[1:]))


def task(name: str) -> Text:
    """Return the text of an exercise. Raise ValueError if there is no exercise of this name."""
    exercise = _find(name)
    return Text(f"{exercise.task}\n\n({exercise.effort}.) Then: cl.exercises.check({name!r}, {exercise.answer})")


def hint(name: str, number: int = 1) -> Text:
    """Return a hint, the first one by default. Raise ValueError if there is no such exercise or hint."""
    hints = _find(name).hints
    if not 1 <= number <= len(hints):
        raise ValueError(f"the exercise {name!r} has hints 1 to {len(hints)}, got {number}")
    more = f" (The next one: cl.exercises.hint({name!r}, {number + 1}).)" if number < len(hints) else ""
    return Text(f"Hint {number} of {len(hints)}: {hints[number - 1].replace('`', '')}{more}")


def check(name: str, answer: Any = None) -> Verdict:
    """Judge an answer: a function, a class or a dict, as the task says.

    Returns a Verdict, which is true if the answer is right. Printed, it says what is wrong, with the numbers. Errors of
    the answer become part of the verdict. Raise ValueError if there is no exercise of this name, and TypeError if the
    first argument is not a name.
    """
    verdict = _find(name).judge(answer)
    if verdict:
        _solved.pop(name, None)
        _solved[name] = verdict
    return verdict


def progress() -> Text:
    """Return how many exercises you have solved in this session, "6 of 33", and which one comes next.

    It is the one after the last that you have solved, in its section if there is one. Nothing is kept in a file. After
    a restart, run the cells or the file with your answers again.
    """
    lines = [f"{len(_solved)} of {len(EXERCISES)}"]
    unsolved = [exercise for exercise in EXERCISES.values() if exercise.name not in _solved]
    if unsolved:
        minutes = sum(exercise.minutes for exercise in unsolved)
        lines[0] += f", and about {minutes / 60:.1f} hours to go"
        names, last = list(EXERCISES), next(reversed(_solved), "relu")
        section = next(vars(module) for module in _MODULES if last in vars(module))
        following = min(unsolved, key=lambda e: (e.name not in section, names.index(e.name) < names.index(last)))
        lines.append(f"Next: {following.name} ({following.effort}). {following.title}")
    return Text("\n".join(lines))
