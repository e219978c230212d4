"""Measures of the house, with their limits: python tests/tools/house.py [--list MEASURE], or `make house`.

It counts names that break the rules of `names.py`, files that a room should not have, words of a concern in rooms that
should not know it, tests that assert nothing, and what is too long. The exit status is 1 if a limit is exceeded.
`--list` prints the places that count. Lines are all lines, with blank ones and comments; without a docstring where that
is said.
"""

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.tools.assertions import TestModules  # noqa: E402
from tests.tools.names import CYTHON, Definition, definitions, is_participle, parts, repeated_classes, word_set  # noqa: E402

SOURCES = {".py", ".pyi", *CYTHON, ".c", ".h", ".js", ".css", ".html"}

#: Files and folders that have a better name now, by the folder that they were in.
OLD_FILES = {
    "": "look parallel tabular",
    "_kernels": "border spinning watch",
    "_kernels/loops": "products publish published rows strip weighing",
    "c": "code sequences",
    "cli": "arguments command saying values",
    "core": "cautions construction drawing elsewhere own_loss rows surroundings tables",
    "data": "background columns sources",
    "data/datasets": "files offline",
    "functions": "columns composition contraction distribution elementary rearrangement selection several targets",
    "model": "alike applied at_once dataflow loading memory minimize predicting rates table",
    "onnx": "attributes checking models rules versions",
    "program": "blocks facts kept picture running stages step",
    "pytorch": "kinds",
    "sklearn": "fitting nets rows targets",
    "training": "buffered choosing counting door each fitting in_memory steps streamed team",
    "web": "watch",
    "web/playground": "follow setting wishes",
    "web/static": "said",
}
#: Names that no file should have.
PRIVATE_WORDS = word_set(
    """alike applied at_once buffered cautions choosing door elsewhere film kept own_loss predicting said saying
    several spinning streamed surroundings weighing wishes"""
)
OLD_TESTS = word_set(
    """compiled hostile installed kills pages races ranks test_ancestor_faults test_cautions test_differences
    test_habits test_own_steps test_several test_show"""
)

WITHOUT_PROCESSES = ("model", "training", "functions")
BELOW_TABLES = word_set(
    """_kernels _support core data functions optimizers program files training model parallel distributed"""
)
PROCESS_WORDS = word_set("rank ranks team teams Team Teams mpi")


class Place(NamedTuple):
    path: Path
    line: int
    text: str
    count: int = 1


class House:
    """The files of a checkout; each is read once."""

    def __init__(self, root: Path):
        self.root = root
        self.package = root / "caffelite"

    def files(self, folder: str = "", deep: bool = True) -> list[Path]:
        """Return the sources of a folder, without what Cython makes of them."""
        room = self.package / folder
        paths = room.rglob("*") if deep else room.glob("*")
        return sorted(path for path in paths if path.suffix in SOURCES and path.is_file() and not is_generated(path))

    @cached_property
    def definitions(self) -> list[Definition]:
        paths = [path for path in self.files() if path.suffix in {".py", ".pyx", ".pxi"}]
        return [definition for path in paths for definition in definitions(path)]

    @property
    def functions(self) -> list[Definition]:
        return [definition for definition in self.definitions if not definition.is_class]


def is_generated(path: Path) -> bool:
    if path.suffix in {".pyi", ".pxi"}:
        return path.read_text(encoding="utf-8").startswith("# _kernels/generate.py writes this file.\n")
    by_hand = {".html": "static", ".c": "kernels"}  # all others, Cython has made
    return path.suffix in by_hand and path.parent.name != by_hand[path.suffix]


def as_places(chosen: Iterable[Definition], count: Callable[[Definition], int] = lambda definition: 1) -> list[Place]:
    return [Place(d.path, d.line, d.name, count(d)) for d in chosen]


def participles(house: House) -> list[Place]:
    return as_places(d for d in house.functions if is_participle(d.name))


def name_endings(house: House) -> list[Place]:
    return as_places(d for d in house.functions if d.name.rstrip("_").endswith("_of"))


def prepositions(house: House) -> list[Place]:
    return as_places(d for d in house.functions if d.name.strip("_") == "of")


def classes_in_two_files(house: House) -> list[Place]:
    return [
        Place(classes[0].path, classes[0].line, f"{name}, also in {', '.join(str(c.path) for c in classes[1:])}")
        for name, classes in repeated_classes(house.definitions).items()
    ]


def old_files(house: House) -> Iterator[Place]:
    for room, stems in OLD_FILES.items():
        for path in sorted((house.package / room).glob("*")):
            if path.stem in stems.split() and has_sources(path):
                yield Place(path, 1, "old name")
    for path in house.files():
        room = str(path.parent.relative_to(house.package)).removeprefix(".")
        if path.stem in PRIVATE_WORDS and path.stem not in OLD_FILES.get(room, "").split():
            yield Place(path, 1, "private word")
    for path in sorted((house.root / "tests").rglob("*.py")):
        if path.stem in OLD_TESTS:
            yield Place(path, 1, "old name")


def has_sources(path: Path) -> bool:
    """Return whether it is a source, or a folder with sources: git does not remove a folder with compiled files."""
    paths = [path] if path.is_file() else path.rglob("*")
    return any(p.suffix in SOURCES and not is_generated(p) for p in paths)


def files_beside_rooms(house: House, room: str) -> list[Place]:
    return [Place(path, 1, path.name) for path in house.files(room, deep=False) if path.stem != "__init__"]


def entries_at_top(house: House) -> list[Place]:
    modules = [path for path in house.files(deep=False) if path.stem not in {"__init__", "__main__"}]
    rooms = sorted(path for path in house.package.glob("*") if path.is_dir() and has_sources(path))
    return [Place(path, 1, path.name) for path in [*rooms, *modules]]


def words_of_processes(house: House) -> Iterator[Place]:
    for room in WITHOUT_PROCESSES:
        for path in house.files(room):
            for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
                for word in re.findall(r"\w+", line):
                    if PROCESS_WORDS & {*parts(word)}:
                        yield Place(path, number, word)


def imports_of_columns(house: House) -> Iterator[Place]:
    for room in sorted(BELOW_TABLES):
        for path in house.files(room):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.suffix == ".py" else ():
                if isinstance(node, ast.ImportFrom) and (
                    any(alias.name == "Columns" for alias in node.names)
                    or re.match(r"caffelite\.(tables|tabular)\b", node.module or "")
                ):
                    yield Place(path, node.lineno, ast.unparse(node))


def long_files(house: House) -> Iterator[Place]:
    for path in house.files():
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > 500 and "loops" not in path.parts:
            yield Place(path, 1, f"{lines} lines")


def long_classes(house: House) -> list[Place]:
    return [
        Place(d.path, d.line, f"{d.name}: {d.lines} lines") for d in house.definitions if d.is_class and d.lines > 350
    ]


def long_functions(house: House) -> Iterator[Place]:
    for d in house.functions:
        lines = d.lines - d.docstring_lines
        if lines > 50 and "loops" not in d.path.parts:
            yield Place(d.path, d.line, f"{d.name}: {lines} lines")


def long_tests(house: House) -> Iterator[Place]:
    for path in sorted((house.root / "tests").rglob("*.py")):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > 900:
            yield Place(path, 1, f"{lines} lines")


def tests_without_assertion(house: House) -> list[Place]:
    return [Place(*test) for test in TestModules(house.root).without_assertion()]


def model_class(house: House) -> list[Definition]:
    room = house.package / "model"
    return [d for d in house.definitions if d.is_class and d.name == "Model" and d.path.is_relative_to(room)]


def lines_of_model(house: House) -> list[Place]:
    return as_places(model_class(house), lambda d: d.lines)


def lines_of_fit(house: House) -> list[Place]:
    return as_places(
        (
            method
            for model in model_class(house)
            for method in house.functions
            if method.name == "fit" and method.path == model.path and 0 < method.line - model.line < model.lines
        ),
        lambda d: d.lines - d.docstring_lines,
    )


def lines_of_package(house: House) -> list[Place]:
    counts = ((path, path.read_text(encoding="utf-8").count("\n")) for path in house.files())
    return [Place(path, 1, f"{lines} lines", lines) for path, lines in counts]


class Measure(NamedTuple):
    limit: int
    before: int  # at 79e9458
    title: str
    places: Callable[[House], Iterable[Place]]


MEASURES = {
    "participles": Measure(15, 286, "functions that are a participle", participles),
    "of-endings": Measure(15, 147, "functions that end in _of", name_endings),
    "of": Measure(0, 14, "functions that are called of", prepositions),
    "classes": Measure(6, 24, "class names in two files, without pytorch/ and textbook.py", classes_in_two_files),
    "old-files": Measure(0, 101, "files with an old name", old_files),
    "training": Measure(8, 25, "files in training/ beside its rooms", lambda h: files_beside_rooms(h, "training")),
    "core": Measure(14, 30, "files in core/", lambda h: files_beside_rooms(h, "core")),
    "processes": Measure(12, 143, "words of ranks and teams in model/ training/ functions/", words_of_processes),
    "columns": Measure(0, 5, "imports of Columns or tables in rooms below tables/", imports_of_columns),
    "top": Measure(23, 21, "rooms and modules of caffelite/, without __init__ and __main__", entries_at_top),
    "files": Measure(2, 4, "files above 500 lines, without loops/", long_files),
    "long-classes": Measure(0, 3, "classes above 350 lines, with docstrings", long_classes),
    "functions": Measure(0, 4, "functions above 50 lines without docstring, without loops/", long_functions),
    "model": Measure(330, 365, "lines of class Model, with docstrings", lines_of_model),
    "fit": Measure(45, 41, "lines of Model.fit, without docstring", lines_of_fit),
    "tests": Measure(0, 17, "test files above 900 lines", long_tests),
    "assertions": Measure(0, 8, "tests that assert nothing, and only run", tests_without_assertion),
    "lines": Measure(75510, 62937, "lines of the package", lines_of_package),
}


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=MEASURES, metavar="MEASURE", help=f"print the places: {' '.join(MEASURES)}")
    options = parser.parse_args(arguments)
    house = House(root)
    if options.list:
        for path, line, text, _ in MEASURES[options.list].places(house):
            print(f"{path.relative_to(root).as_posix()}:{line}: {text}")
        return 0
    exceeded = False
    print(f"{'measure':12} {'':62} {'now':>6} {'limit':>6} {'79e9458':>8}")
    for name, measure in MEASURES.items():
        now = sum(place.count for place in measure.places(house))
        mark = " *" if now > measure.limit else ""
        exceeded |= bool(mark)
        print(f"{name:12} {measure.title:62} {now:6} {measure.limit:6} {measure.before:8}{mark}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
