"""Rules for names: `house.py` counts what breaks them, and `prose.py` reports it.

A function is a verb, or a noun for what it returns. A class is a noun of the field, and so is a fixture. One word means
one thing. So these are faults:

- a function that is a participle, as `checked` or `told_apart`: its first word ends in -ed or is an irregular past
  participle, and nothing follows, or a preposition or an adverb. (`named_parameters` is a noun with an adjective.)
- a function that begins with `of` or ends in `_of`, or is a lone preposition or adverb, as `about`.
- a class that is a participle (`Kept`) or an adjective (`Alone`), begins with a preposition or a pronoun (`OwnHosts`),
  or has an "of" in it (`OfEpoch`).
- a fixture that would be no name of a class, or that has a participle behind its noun (`threads_restored`).
- a test with a name of more than 90 characters.
- a class whose name another file of the package defines, too. The classes of `pytorch/` and `textbook.py` do not count,
  because these mirror PyTorch's layers and the framework.

Tests, benchmarks and examples follow these rules, too, but two of their files may each have a class of the same name.
Underscores at the ends of a name do not matter. Python files are parsed. In Cython files, regular expressions find
`def`, `cdef`, `cpdef` and `class`, and the indentation says where they end.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

CYTHON = {".pyx", ".pxi", ".pxd"}


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Past participles without -ed. `cut`, `put`, `read`, `run`, `set` and `split` are verbs, too.
IRREGULAR = word_set(
    """begun born bound bought broken brought built caught chosen done drawn driven fallen felt found forgotten frozen
    given gone grown had heard held hidden kept known laid led left lent lost made meant met paid redrawn
    rewritten said seen sent shown shut sold spent spun stood sunk swept taken taught thought told torn undone
    understood undisturbed unknown unseen withdrawn won worn woven written"""
)
#: Words in -ed that are verbs or nouns, and two of Python's functions.
NOT_PARTICIPLES = word_set("bed bleed embed exceed feed need proceed red reversed seed shed sorted speed succeed")
#: Words behind a participle with which it is not a noun.
PARTICLES = word_set(
    """about above after again anew apart around as at away back before behind beside between by down each for forth
    from here in inside into like of off on once only out over so there through to together under up upon with
    without"""
)
#: Prepositions and pronouns, with which no noun begins.
NO_NOUNS = word_set(
    """About After Against All Another Any At Before Behind Beside Both By Each Either Every For From His If In Its
    Least Like Most My No None Not Of Off On Only Other Others Our Own Several Some Such That The Their These
    They This Those To Until We What When Where Which While Who Whose With Without"""
)
#: Public names, which stay, a function that tracebacks show, and a name that two packages have for the same idea.
ALLOWED = word_set("Each NotRecorded Penalized ToShape Where add_grad_of inside")
ALLOWED_TWICE = word_set("Node")
#: Terms of the field that begin like a pronoun or a preposition.
TERMS = ("AllClasses", "AllReduce", "InMemory", "NotAFile", "OneHot", "OutOfCore")
ADJECTIVES = word_set(
    """Alike Alone Complete Elsewhere Fast Free Generous Latest Narrow Native Plain Quick Same Slow Sole Whole Wide"""
)
LONGEST_TEST = 90  # characters


class Definition(NamedTuple):
    path: Path
    line: int
    name: str
    is_class: bool
    lines: int
    docstring_lines: int
    is_fixture: bool = False


class Fault(NamedTuple):
    path: Path
    line: int
    rule: str
    text: str


def is_past_participle(word: str) -> bool:
    return word in IRREGULAR or (word.endswith("ed") and len(word) > 3 and word not in NOT_PARTICIPLES)


def is_participle(name: str) -> bool:
    """Return whether a function's name is a participle, alone or before a preposition or an adverb."""
    first, *rest = name.strip("_").split("_")
    return is_past_participle(first) and (not rest or rest[0] in PARTICLES)


def parts(name: str) -> list[str]:
    """Return the words of a name in snake_case or CamelCase, case as given."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)


def is_noun(name: str) -> bool:
    """Return whether the name of a class may be that of a thing."""
    words = parts(name)
    if not words or name.startswith(TERMS):
        return True
    is_adjective = len(words) == 1 and words[0] in ADJECTIVES
    return not (is_adjective or is_participle("_".join(words).lower()) or words[0] in NO_NOUNS or "Of" in words)


def is_fixture_noun(name: str) -> bool:
    """Return whether the name of a fixture may be that of a thing: its participles are in front of a noun."""
    words = name.strip("_").split("_")
    return is_noun("".join(map(str.capitalize, words))) and not any(map(is_past_participle, words[1:]))


def definitions(path: Path) -> list[Definition]:
    """Return the functions and classes of a file, with methods and inner functions."""
    text = path.read_text(encoding="utf-8")
    return list(cython_definitions(path, text) if path.suffix in CYTHON else python_definitions(path, text))


def python_definitions(path: Path, text: str) -> Iterator[Definition]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            lines = node.end_lineno - node.lineno + 1
            string = node.body[0]
            docstring_lines = string.end_lineno - string.lineno + 1 if ast.get_docstring(node) is not None else 0
            is_class = isinstance(node, ast.ClassDef)
            is_fixture = any(ast.unparse(decorator).startswith("pytest.fixture") for decorator in node.decorator_list)
            yield Definition(path, node.lineno, node.name, is_class, lines, docstring_lines, is_fixture)


CYTHON_CLASS = re.compile(r" *(?:cdef |cpdef )?class (\w+)")
CYTHON_FUNCTION = re.compile(r" *(?:async )?(?:def|cp?def(?: (?:inline|public|api))*(?: [^=(]*)?) \**(\w+)\([^=]*")
CYTHON_DOCSTRING = re.compile(r'(?:.*[^:\n]\n)*?.*:(?: *#.*)?\n *"{3}((?s:.*?))"{3}')


def cython_definitions(path: Path, text: str) -> Iterator[Definition]:
    lines = text.split("\n")
    for start, line in enumerate(lines):
        is_class = CYTHON_CLASS.match(line)
        definition = is_class or CYTHON_FUNCTION.match(line)
        if not definition:
            continue
        indent = len(line) - len(line.lstrip())
        end = start + 1
        for i in range(start + 1, len(lines)):
            if lines[i].strip():
                if len(lines[i]) - len(lines[i].lstrip()) <= indent and not lines[i].lstrip().startswith(")"):
                    break
                end = i + 1
        docstring = CYTHON_DOCSTRING.match("\n".join(lines[start:end]))
        docstring_lines = docstring[1].count("\n") + 1 if docstring else 0
        yield Definition(path, start + 1, definition[1], bool(is_class), end - start, docstring_lines)


def is_mirror(path: Path) -> bool:
    """Return whether a file has another's classes on purpose; a .pxd declares those of its .pyx."""
    return "pytorch" in path.parts or path.name == "textbook.py" or path.suffix == ".pxd"


def repeated_classes(all_definitions: Iterable[Definition]) -> dict[str, list[Definition]]:
    """Return the classes with a name that two files define, by name."""
    places = defaultdict(list)
    for definition in all_definitions:
        if definition.is_class and not is_mirror(definition.path) and definition.name not in ALLOWED_TWICE:
            places[definition.name].append(definition)
    return {name: classes for name, classes in sorted(places.items()) if len({c.path for c in classes}) > 1}


def broken_rule(name: str) -> str | None:
    """Return the rule that a function's name breaks, if there is one."""
    words = name.strip("_").split("_")
    if words[0] == "of" or (len(words) == 1 and words[0] in PARTICLES):
        return "of"
    if words[-1] == "of":
        return "_of"
    return "participle" if is_participle(name) else None


def check_name(definition: Definition) -> Iterator[Fault]:
    """Yield what is wrong with a name, whoever else has it."""
    path, line, name, is_class = definition[:4]
    if name in ALLOWED:
        return
    if is_class:
        if not is_noun(name):
            yield Fault(path, line, "no noun", f"class {name}: name it with a noun of the field")
        return
    if definition.is_fixture and not is_fixture_noun(name):
        yield Fault(path, line, "fixture", f"fixture {name}: name it with a noun for what a test gets")
    if name.startswith("test_") and len(name) > LONGEST_TEST:
        yield Fault(path, line, "long", f"{len(name)} characters: {name}")
    if rule := broken_rule(name):
        yield Fault(path, line, rule, f"function {name}: name it with a verb, or with what it returns")


def check_repeated(all_definitions: Iterable[Definition], root: Path) -> Iterator[Fault]:
    """Yield the classes that have the name of another one."""
    for name, classes in repeated_classes(all_definitions).items():
        for c in classes:
            others = {str(other.path.relative_to(root)) for other in classes if other.path != c.path}
            yield Fault(c.path, c.line, "twice", f"class {name}: {', '.join(sorted(others))} has one, too")
